//! A question to one original, answered by a model in a fresh context that sees nothing but its text: so that a log of 100 KB costs a
//! conversation some lines. The digest model reads it, where there is one, else the conversation's own while it is idle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tracing::{debug, info};

use super::prepared::Prepared;
use super::slots::slots;
use super::whole::read_up_to;
use crate::config::Resolved;
use crate::conversation::Tokens;
use crate::measure::ModelKey;
use crate::proxy::servers::{upstream_of, window_of};
use crate::proxy::state::notes::note_event;
use crate::proxy::traffic::{Asked, moves_nothing};
use crate::proxy::{App, state::headers};
use crate::question::{self, Part};
use crate::store::Original;
use crate::unwrap::unwrap;
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;

/// Most that a model may write about one part.
const WRITES: Tokens = 256;

/// Tokens of the question, and of what stands around the text.
const AROUND: Tokens = 256;

/// The window of a model of which nobody knows it.
const SMALL_WINDOW: Tokens = 4096;

/// The longest part: beyond it small models lose the middle.
const PART: Tokens = 6_000;

/// How long all parts may take together, asked by a person, and within a reply.
pub(in crate::proxy) const PATIENCE: Duration = Duration::from_secs(600);
const WITHIN_A_REPLY: Duration = Duration::from_secs(90);

/// Longest question, in bytes.
pub(in crate::proxy) const LONGEST: usize = 2_000;

/// Who reads the text.
pub(in crate::proxy) struct Reader {
    upstream: Arc<Upstream>,
    model: String,
    window: Tokens,
    options: ChatOptions,
}

impl Reader {
    fn name(&self) -> String {
        format!("{}/{}", self.upstream.name(), self.model)
    }
}

/// What was found in a text.
pub(in crate::proxy) struct Answered {
    pub(in crate::proxy) by: String,
    pub(in crate::proxy) found: Vec<(String, Vec<usize>)>,
    pub(in crate::proxy) parts: usize,
    /// The last line that was read, and how many there are.
    pub(in crate::proxy) last: usize,
    pub(in crate::proxy) total: usize,
    /// As it is shown.
    pub(in crate::proxy) text: String,
}

/// The same within a reply, where somebody can read without taking the conversation's prompt out of the server's cache.
pub(in crate::proxy) async fn ask_within(
    app: &App,
    prepared: &Prepared,
    original: &Original,
    question: &str,
) -> Option<Answered> {
    let inner = (original.kind == "tool_result").then(|| unwrap(&original.text)).flatten();
    let text = inner.map_or_else(|| original.text.to_string(), |inner| inner.text);
    let upstream = upstream_of(app, &prepared.request.model).await.ok()?;
    let reader = reader(app, &prepared.policy, &upstream, &prepared.request.model).await?;
    let question: String = question.chars().take(LONGEST / 4).collect();
    Some(read_for(app, &prepared.id, &original.id, &text, &question, &reader, WITHIN_A_REPLY).await)
}

/// Who may read at any time: the digest model, or the conversation's own in a slot that nobody needs.
pub(in crate::proxy) async fn reader(
    app: &App,
    policy: &Resolved,
    upstream: &Arc<Upstream>,
    model: &str,
) -> Option<Reader> {
    if let Some(other) = &policy.digest_model {
        let upstream = app.servers.named(&other.upstream)?;
        if !moves_nothing(app, upstream, &other.model, Asked::Other).await {
            return None;
        }
        return Some(reader_of(app, Arc::clone(upstream), &other.model, None).await);
    }
    let spare = slots(app, upstream, model, None).await.spare?;
    Some(reader_of(app, Arc::clone(upstream), model, Some(spare)).await)
}

pub(in crate::proxy) async fn reader_of(
    app: &App,
    upstream: Arc<Upstream>,
    model: &str,
    id_slot: Option<u32>,
) -> Reader {
    let window = window_of(app, &upstream, model).await;
    let options = ChatOptions { num_ctx: window.set, id_slot, ..ChatOptions::default() };
    Reader { upstream, model: model.to_owned(), window: window.tokens.unwrap_or(SMALL_WINDOW), options }
}

pub(in crate::proxy) async fn read_for(
    app: &App,
    conversation: &str,
    id: &str,
    text: &str,
    asked: &str,
    reader: &Reader,
    patience: Duration,
) -> Answered {
    let key = ModelKey::new(reader.upstream.name(), &reader.upstream.canonical(&reader.model));
    let count = |text: &str| app.measure.count(&key, text);
    // A tenth is left for what the estimate may miss.
    let budget = (reader.window / 10 * 9).saturating_sub(WRITES + AROUND + count(asked)).clamp(64, PART);
    let (parts, total) = question::parts(text, budget, &count);
    let until = Instant::now() + patience;
    let (mut answers, mut read, mut last) = (Vec::new(), 0, 0);
    for part in &parts {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(said) = tokio::time::timeout(left, put(app, conversation, reader, part, asked)).await else { break };
        let Some(said) = said else { break };
        answers.extend(question::found(&said, part));
        (read, last) = (read + 1, part.last);
    }
    let shown = question::shown(id, &reader.name(), (read, last, total), &answers, text);
    info!(conversation, by = %reader.name(), parts = read, answers = answers.len(), "an original was asked");
    let data = json!({"record": id, "by": reader.name(), "parts": read, "lines": total, "lines_read": last, "answers": answers.len()});
    note_event(app, conversation, "question", data);
    Answered { by: reader.name(), found: answers, parts: read, last, total, text: shown }
}

/// Puts the question about one part. `None` where no answer comes.
async fn put(app: &App, conversation: &str, reader: &Reader, part: &Part, asked: &str) -> Option<String> {
    let started = Instant::now();
    let mut body = json!({
        "model": reader.model, "messages": [{"role": "user", "content": question::prompt(part, asked)}],
        "max_tokens": WRITES, "temperature": 0, "stream": false,
    });
    // The client of the conversation said how long its model is to stay in memory.
    let kept = app.lives.with(conversation, |live| {
        let own = live.prompt.model.as_ref()?;
        let same = own.model == reader.upstream.canonical(&reader.model) && own.upstream == reader.upstream.name();
        live.prompt.keep_alive.clone().filter(|_| same)
    });
    if let Some(keep_alive) = kept.and_then(|kept| serde_json::from_str(&kept).ok()) {
        body["keep_alive"] = keep_alive;
    }
    let (json_headers, body) = (headers::json(), Bytes::from(body.to_string()));
    let sent = reader.upstream.chat(&json_headers, "/v1/chat/completions", body, reader.options);
    let reply = match sent.await {
        Ok(reply) if reply.status.is_success() => reply,
        Ok(reply) => {
            debug!(status = reply.status.as_u16(), "a question was refused");
            return None;
        }
        Err(e) => {
            debug!(error = %e, "a question could not be asked");
            return None;
        }
    };
    let bytes: Bytes = read_up_to(reply.body, 1 << 20).await.ok()?.0;
    let mut reported = Reported::default();
    reported.read(&bytes);
    app.metrics.spend("question", &reported);
    app.lives.with(conversation, |live| live.accounts.spend.add_digest(&reported));
    let mut data =
        reported.event("question", (&reader.upstream, &reader.model), 0, started.elapsed().as_millis() as u64);
    data["by"] = json!(reader.name());
    note_event(app, conversation, "model_usage", data);
    let value: Value = serde_json::from_slice(&bytes).ok()?;
    value.pointer("/choices/0/message/content").and_then(Value::as_str).map(str::to_owned)
}
