//! What a prepared request leaves in the record: originals, messages, the view, events, the conversation's gauge. Nothing
//! leaves the prompt before it is durable here.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::warn;

use super::class::Class;
use super::headers;
use super::prepare::Prepared;
use super::remind;
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Digest, Message, Role, Tokens, person};
use crate::passage;
use crate::plain;
use crate::plan::{Lines, Regions};
use crate::proxy::desk::rules::Scope;
use crate::proxy::gauge::{self, Gauge};
use crate::proxy::live::Kept;
use crate::proxy::{App, Error};
use crate::store::{Batch, ConversationUpdate, Event, Node};
use crate::upstream::Upstream;

impl App {
    /// Makes originals, messages and the view durable, before a view without them is sent. What needs no waiting is
    /// queued.
    pub(in crate::proxy) async fn save(&self, upstream: &Upstream, prepared: &mut Prepared) -> Result<(), Error> {
        let Some(tip) = prepared.chain.last().copied() else { return Ok(()) };
        self.note_missed(prepared);
        let depth = prepared.located.as_ref().map_or(0, |l| l.depth);
        // They can be large, and nothing reads them again.
        let originals = std::mem::take(&mut prepared.originals);
        let batch = Batch { originals, ..self.batch(upstream, prepared, tip, depth) };
        // What left the system text must be safe, too.
        let left = prepared.indexed.as_ref().is_some_and(|i| i.is_new);
        if !prepared.view_changed && batch.recalled.is_none() && !left {
            if let Err(e) = self.store.record_soon(batch).await {
                // Nothing left the prompt: the conversation can go on without its record.
                warn!(conversation = %prepared.id, error = %e, "the record cannot be written");
            }
            // Where nobody counts, what was forwarded is planned by what the record says of it: another process knows no other
            // reason to leave it as it was.
            if prepared.own.is_none() && !upstream.can_count() {
                self.in_record().await;
            }
            return Ok(());
        }
        if prepared.view_changed {
            self.lives.with(&prepared.id, |l| l.spend.rewrites += 1);
        }
        self.store.record(batch).await?;
        if let Some(shared) = for_forks(prepared) {
            self.store.record(Batch { view: Some(shared), ..Batch::default() }).await?;
        }
        Ok(())
    }

    /// Counts what was read again after it had left the prompt.
    fn note_missed(&self, prepared: &Prepared) {
        if prepared.missed.is_empty() {
            return;
        }
        self.remember(&prepared.id);
        self.lives.with(&prepared.id, |live| prepared.missed.iter().for_each(|missed| live.missed.add(missed.kind)));
        prepared.missed.iter().for_each(|missed| self.metrics.missed(missed.kind.as_str()));
    }

    /// What a request adds to the record: the messages after the first `depth`, and what its view takes out of the prompt.
    fn batch(&self, upstream: &Upstream, prepared: &Prepared, tip: Digest, depth: usize) -> Batch {
        let now_ms = now_ms();
        let mut events = Vec::new();
        if prepared.view_changed && !prepared.actions.is_empty() {
            events.push(Event {
                now_ms,
                conversation: Some(prepared.id.clone()),
                kind: "context_compaction".into(),
                data: compaction(upstream, prepared),
            });
        }
        if let Some(before) = &prepared.switched {
            events.push(Event {
                now_ms,
                conversation: Some(prepared.id.clone()),
                kind: "model_changed".into(),
                data: json!({
                    "was": before.model, "was_upstream": before.upstream, "model": upstream.canonical(&prepared.request.model),
                    "upstream": upstream.name(), "window": prepared.window.tokens,
                    "edits": prepared.view.edits.len(),
                }),
            });
        }
        let listed = prepared.admitted.as_ref().filter(|a| a.is_new);
        events.extend(listed.map(|a| Event {
            now_ms,
            conversation: Some(prepared.id.clone()),
            kind: "tools_listed".into(),
            data: a.event(prepared.after.tools),
        }));
        events.extend(prepared.missed.iter().map(|missed| Event {
            now_ms,
            conversation: Some(prepared.id.clone()),
            kind: "missed".into(),
            data: json!({"kind": missed.kind.as_str(), "message": missed.at, "of": missed.of}),
        }));
        events.extend(remind::event(prepared).map(|data| Event {
            now_ms,
            conversation: Some(prepared.id.clone()),
            kind: "recalled_ahead".into(),
            data,
        }));
        events.extend(prepared.ruled.as_ref().map(|ruled| ruled.event(&prepared.id, now_ms)));
        let indexed = prepared.indexed.as_ref().filter(|i| i.is_new);
        events.extend(indexed.map(|i| i.event(&prepared.id, now_ms)));
        Batch {
            recalled: listed.map(|a| a.kept(tip)),
            conversation: (!prepared.repeats_a_beginning).then(|| self.update(upstream, prepared, tip, now_ms)),
            nodes: nodes(&prepared.chain, &prepared.request.conversation.body, depth),
            view: prepared.view_changed.then(|| (tip, prepared.view.clone())),
            events,
            standing: prepared.standing_changed.clone().map(|text| (prepared.id.clone(), text)),
            durable: prepared.view_changed || indexed.is_some(),
            ..Batch::default()
        }
    }

    /// Says on a reply that the record cannot be written at present.
    pub(in crate::proxy) fn mark_record(&self, to: &mut HeaderMap<HeaderValue>) {
        let Some(trouble) = self.store.trouble() else { return };
        headers::set(to, "x-windowsill-record", "unwritable");
        let text = format!("this conversation goes on unrecorded: {}", trouble.error);
        headers::warn(to, &[plain::line(&text).to_string()]);
    }

    fn update(&self, upstream: &Upstream, prepared: &Prepared, tip: Digest, now_ms: i64) -> ConversationUpdate {
        let forked = prepared.located.as_ref().filter(|l| l.conversation != prepared.id);
        self.remember(&prepared.id);
        self.note_fold(prepared);
        let kept = self.lives.with(&prepared.id, |l| Kept::of(l));
        let gauge = gauge::planned(&self.measure, prepared);
        let parent = forked.map(|l| (l.conversation.clone(), l.depth));
        ConversationUpdate { parent, ..update(upstream, prepared, tip, (&kept, &gauge), now_ms) }
    }
}

/// The record's entry of the conversation after a request or its reply.
pub(super) fn update(
    upstream: &Upstream,
    prepared: &Prepared,
    tip: Digest,
    (kept, gauge): (&Kept, &Gauge),
    now_ms: i64,
) -> ConversationUpdate {
    ConversationUpdate {
        id: prepared.id.clone(),
        parent: None,
        session: prepared.session.clone(),
        model: upstream.canonical(&prepared.request.model),
        upstream: upstream.name().to_owned(),
        tip,
        depth: prepared.chain.len(),
        state: state(prepared, kept, gauge),
        now_ms,
        title: prepared.title(),
    }
}

/// What is told of a rewrite.
fn compaction(upstream: &Upstream, prepared: &Prepared) -> serde_json::Value {
    json!({
        "action": prepared.action(), "because": prepared.because, "window": prepared.window.tokens,
        "window_source": prepared.window.source, "before": regions(&prepared.before),
        "after": regions(&prepared.after), "prompt_tokens": prepared.tokens,
        "prompt_tokens_source": prepared.sureness.as_str(), "model": upstream.canonical(&prepared.request.model),
        "task": prepared.policy.task, "seconds": rounded(prepared.seconds), "focus": null, "depth": depth(&prepared.view),
    })
}

/// How many messages of a conversation stand as its brief.
pub(in crate::proxy) fn depth(view: &View) -> usize {
    let folded = |edit: &Edit| match edit {
        Edit::Fold { from, to, keep, .. } => Some((to - from).saturating_sub(keep.len())),
        _ => None,
    };
    view.edits.iter().find_map(folded).unwrap_or(0)
}

/// Seconds to the millisecond.
pub(in crate::proxy) fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// The part of a new view that still holds when the client edits its last message: the edits before it, under the chain
/// hash of what stands before it.
fn for_forks(prepared: &Prepared) -> Option<(Digest, View)> {
    let body = &prepared.request.conversation.body;
    let before = crate::conversation::step::last_user(body)?;
    if prepared.located.as_ref().is_some_and(|l| l.depth >= before) {
        // That part was forwarded on its own, in a view of its own, which stays as it is.
        return None;
    }
    let chain = *prepared.chain.get(before.checked_sub(1)?)?;
    let holds = |edit: &&Edit| match edit {
        Edit::Text { at, .. } | Edit::Arguments { at, .. } | Edit::Recalled { at, .. } => *at < before,
        // A brief may hold words of messages behind its fold.
        Edit::Fold { to, .. } => *to <= before && prepared.view.read() <= before,
    };
    let edits: Vec<Edit> = prepared.view.edits.iter().filter(holds).cloned().collect();
    (!edits.is_empty())
        .then_some((chain, View { messages: before, edits, bare: prepared.view.bare, ..View::default() }))
}

/// A conversation's state, as it is kept and shown.
#[derive(Serialize)]
struct State<'a> {
    window: Option<Tokens>,
    window_source: &'a str,
    prompt_tokens: Tokens,
    prompt_tokens_source: &'a str,
    pressure: f64,
    regions: Parts,
    counts: &'a BTreeMap<String, Tokens>,
    lines: Drawn,
    class: &'a str,
    waits: &'a [String],
    profile: &'a str,
    named_profile: &'a Option<String>,
    task: &'a Option<String>,
    scope: Option<Value>,
    action: String,
    edits: BTreeMap<String, usize>,
    messages: usize,
    system_messages: usize,
    #[serde(flatten)]
    kept: &'a Kept,
}

/// The lines that prompts are kept under.
#[derive(Serialize)]
struct Drawn {
    limit: Tokens,
    clear_at: Tokens,
    clear_to: Tokens,
    summarize_at: Tokens,
    summarize_to: Tokens,
    fold_at: Tokens,
    evict_over: Tokens,
}

/// Tokens by region.
#[derive(Serialize)]
struct Parts {
    system: Tokens,
    tools: Tokens,
    brief: Tokens,
    history: Tokens,
    media: Tokens,
    output_reserved: Tokens,
    prompt: Tokens,
}

impl Parts {
    fn of(r: &Regions) -> Parts {
        let Regions { system, tools, brief, history, media, output_reserved } = *r;
        Parts { system, tools, brief, history, media, output_reserved, prompt: r.prompt() }
    }
}

/// A conversation's state as JSON.
fn state(prepared: &Prepared, kept: &Kept, gauge: &Gauge) -> String {
    let Lines { limit, clear_at, clear_to, summarize_at, summarize_to, fold_at, evict_over, .. } = prepared.lines;
    let mut edits = BTreeMap::new();
    for edit in &prepared.view.edits {
        let key = match edit {
            Edit::Text { rule, .. } | Edit::Arguments { rule, .. } => format!("{rule:?}").to_lowercase(),
            Edit::Recalled { .. } => "recalled".to_owned(),
            Edit::Fold { to, from, .. } => {
                edits.insert("folded_messages".to_owned(), to - from);
                "fold".to_owned()
            }
        };
        *edits.entry(key).or_default() += 1;
    }
    let state = State {
        window: prepared.window.tokens,
        window_source: &prepared.window.source,
        prompt_tokens: gauge.regions.prompt(),
        prompt_tokens_source: gauge.source,
        pressure: gauge.pressure(prepared.window.tokens),
        regions: Parts::of(&gauge.regions),
        counts: &gauge.counts,
        lines: Drawn { limit, clear_at, clear_to, summarize_at, summarize_to, fold_at, evict_over },
        class: Class::of(&prepared.request.conversation).as_str(),
        waits: &prepared.waits,
        profile: &prepared.policy.profile,
        named_profile: &prepared.policy.named_profile,
        task: &prepared.policy.task,
        scope: prepared.scope.as_ref().map(Scope::json),
        action: prepared.action(),
        edits,
        messages: prepared.request.conversation.body.len(),
        system_messages: prepared.request.conversation.system.len(),
        kept,
    };
    serde_json::to_string(&state).unwrap_or_default()
}

/// Regions as JSON.
pub(in crate::proxy) fn regions(r: &Regions) -> Value {
    json!(Parts::of(r))
}

/// The messages behind `depth` as nodes of the record.
pub(in crate::proxy) fn nodes(chain: &[Digest], body: &[Message], depth: usize) -> Vec<Node> {
    let depth = depth.min(chain.len());
    let size = |messages: &[Message]| messages.iter().map(|m| m.raw.len()).sum::<usize>();
    // A slice keeps the whole request in memory until the new part of it is written: where that is most of it, a copy would
    // take more.
    let most = size(&body[depth..]) * 2 >= size(body);
    (depth..chain.len())
        .map(|at| {
            let message = &body[at];
            let bytes = if message.raw.is_empty() { message.bytes() } else { &message.raw };
            Node {
                chain: chain[at],
                parent: at.checked_sub(1).map(|p| chain[p]),
                depth: at + 1,
                role: match message.role {
                    Role::System => "system",
                    Role::User => "user",
                    Role::Assistant => "assistant",
                    Role::Tool => "tool",
                    Role::Other => "other",
                },
                digest: message.digest,
                raw: if most { bytes.clone() } else { Bytes::copy_from_slice(bytes) },
                text: passage::searched(message),
            }
        })
        .collect()
}

/// Characters of a title.
const TITLE: usize = 80;

/// The first words of a person; where there are none, of the first user message. A client's examples are neither.
pub(in crate::proxy) fn title(conversation: &Conversation) -> String {
    let body = person::without_examples(&conversation.body);
    let words = body.iter().filter_map(person::words).find(|words| !words.is_empty());
    let first =
        words.unwrap_or_else(|| body.iter().find(|m| m.role == Role::User).map_or("", |m| m.text.as_str()).into());
    at_a_word(&first.split_whitespace().take(TITLE).collect::<Vec<_>>().join(" "), TITLE)
}

/// A text in at most `most` characters. Where it is cut, it ends with a whole word, if it has words, and "…".
pub(in crate::proxy) fn at_a_word(text: &str, most: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(most.saturating_sub(1)).filter(|_| text.chars().nth(most).is_some())
    else {
        return text.to_owned();
    };
    let cut = &text[..end];
    let goes_on = !text[end..].starts_with(char::is_whitespace);
    // Where words are long, or not divided by spaces, the cut is where it is.
    let word = cut.rfind(char::is_whitespace).filter(|at| goes_on && at * 2 > end).unwrap_or(end);
    format!("{}…", cut[..word].trim_end().trim_end_matches([',', ';', ':']))
}

/// Milliseconds since 1970.
pub(in crate::proxy) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat;

    #[test]
    fn titles_end_with_a_word_and_are_no_examples() {
        for (text, expect) in [
            ("Fix a bug", "Fix a bug"),
            ("one two three four", "one two…"),
            ("one twothree four", "one twoth…"),
            ("one two, three", "one two…"),
            ("one two th", "one two th"),
            ("日本語の長い題名はここで切れる", "日本語の長い題名は…"),
        ] {
            let title = at_a_word(text, 10);
            assert_eq!(title, expect);
            assert!(title.chars().count() <= 10, "{title}");
        }
        let said = [
            "Change get_factorial() to use math.factorial",
            "I switched to a new code base. Please don't consider the above files.",
            "I have *added these files to the chat*: a.py",
            "Please mend the harbor, and do it in such a way that no ship has to wait outside for long.",
        ];
        let messages: Vec<Value> = said.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let of = |messages: &[Value]| {
            title(
                &openai_chat::parse(&json!({"model": "m", "messages": messages}).to_string().into())
                    .unwrap()
                    .conversation,
            )
        };
        assert_eq!(of(&messages), "Please mend the harbor, and do it in such a way that no ship has to wait…");
        assert_eq!(of(&messages[..1]), said[0], "alone it is no example");
    }
}
