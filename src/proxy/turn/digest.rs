//! Digests of large results: a small model condenses each result that is about to be evicted, before the request is sent on.
//! The request waits for them only so long, all together; what is not ready by then, or of no use, is a preview.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::drafts::Draft;
use super::slots::slots;
use crate::clock::now_ms;
use crate::conversation::Role;
use crate::conversation::edit::Rule;
use crate::conversation::step::last_user;
use crate::measure::ModelKey;
use crate::plan::{Action, Plan};
use crate::preview::Pointer;
use crate::proxy::App;
use crate::proxy::servers::window_of;
use crate::proxy::state::headers;
use crate::proxy::traffic::{Asked, moves_nothing, why_not};
use crate::store::{Batch, Event};
use crate::summarizer::digest::{self, Answer, Job};
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;
use crate::wire::openai_chat::Request;

/// How long a request waits for all of its digests.
const WAIT: Duration = Duration::from_secs(45);

/// Digests made for one request; further results get previews.
const MOST: usize = 8;

/// The window of a digest model of which nobody knows it: what every server loads at least.
const SMALL_WINDOW: u32 = 4096;

/// Digests by what they were asked with: those that are being made, and the last that were made. A client that gave up and tries
/// again finds them; a view that has one keeps it by itself.
pub(in crate::proxy) type Begun = Mutex<LruCache<blake3::Hash, watch::Receiver<Option<Option<String>>>>>;

/// How many digests are found again.
pub(in crate::proxy) const FOUND_AGAIN: NonZeroUsize = NonZeroUsize::new(64).expect("it is more than none");

/// What one digest is made of.
struct Wanted {
    other: Arc<Upstream>,
    model: String,
    /// Who writes it, for the trials that it may have.
    who: String,
    headers: HeaderMap,
    /// The conversation.
    id: String,
    /// Its model.
    own: ModelKey,
    request: Arc<Request>,
    at: usize,
    budget: u32,
    question: String,
    temperature: f64,
}

impl Wanted {
    /// What tells it from others: never shared by two conversations.
    fn key(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        let text = self.request.conversation.body[self.at].text.as_str();
        for part in [self.id.as_str(), &self.who, &self.budget.to_string(), &self.question, text] {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hash.finalize()
    }
}

/// What the digest model made of the results that a plan evicts, by message. `None` where there is nothing to condense.
pub(in crate::proxy) async fn digests(
    app: &Arc<App>,
    draft: &mut Draft<'_>,
    plan: &Plan,
) -> Option<HashMap<usize, String>> {
    let over = plan.lines.digest_over?;
    let request = Arc::clone(&draft.request);
    let body = &request.conversation.body;
    let evicted = plan.actions.iter().filter_map(|action| match action {
        Action::Preview { at, budget, rule: Rule::Evict } => Some((*at, *budget)),
        _ => None,
    });
    let large: Vec<(usize, u32)> = evicted
        .filter(|(at, _)| body[*at].role == Role::Tool && body[*at].media.is_empty())
        .filter(|(at, _)| app.measure.count(&draft.situation.key, &body[*at].text) > over)
        .take(MOST)
        .collect();
    if large.is_empty() {
        return None;
    }
    let model = draft.situation.policy.digest_model.clone()?;
    let other = Arc::clone(app.servers.named(&model.upstream)?);
    if !moves_nothing(app, &other, &model.model, Asked::Other).await {
        let why = why_not(&other).await;
        draft
            .warnings
            .push(format!("{} large results got a preview, not a digest: the digest model {why}", large.len()));
        return Some(HashMap::new());
    }
    let who = format!("digest {}/{}", model.upstream, model.model);
    let question = last_user(body).map_or("", |at| body[at].text.as_str());
    let until = Instant::now() + WAIT;
    let mut made = HashMap::new();
    let mut missing = 0;
    for (at, budget) in large {
        let left = until.saturating_duration_since(Instant::now());
        let may_try = app.turn.summarizers.lock().get_or_insert_mut(who.clone(), Default::default).may_try();
        if left.is_zero() || !may_try {
            debug!(conversation = draft.situation.id(), who, may_try, "no digest; a preview instead");
            missing += 1;
            continue;
        }
        let wanted = Wanted {
            other: Arc::clone(&other),
            model: model.model.clone(),
            who: who.clone(),
            // A client's key is for its own server alone.
            headers: match Arc::ptr_eq(&other, &draft.situation.upstream) {
                true => app.outgoing(&draft.situation.from_client),
                false => headers::json(),
            },
            id: draft.situation.id().to_owned(),
            own: draft.situation.key.clone(),
            request: Arc::clone(&request),
            at,
            budget,
            question: question.to_owned(),
            temperature: draft.situation.policy.summary_temperature,
        };
        let mut digest = wanted_digest(app, wanted);
        let text = tokio::time::timeout(left, digest.wait_for(Option::is_some)).await;
        match text.ok().and_then(Result::ok).and_then(|text| text.clone().flatten()) {
            Some(text) => drop(made.insert(at, text)),
            None => missing += 1,
        }
    }
    if missing > 0 {
        draft.warnings.push(format!("{missing} large results got a preview, since no digest came of them"));
    }
    Some(made)
}

/// A digest that was begun for a request, or is begun now. It is made to its end though its client goes away: one that tries
/// again finds it.
fn wanted_digest(app: &Arc<App>, wanted: Wanted) -> watch::Receiver<Option<Option<String>>> {
    let key = wanted.key();
    let mut begun = app.turn.digests.lock();
    // One of which nothing came is tried anew.
    if let Some(digest) = begun.get(&key).filter(|digest| *digest.borrow() != Some(None)) {
        return digest.clone();
    }
    let (done, digest) = watch::channel(None);
    begun.put(key, digest.clone());
    let owned = Arc::clone(app);
    app.tasks.spawn(async move {
        let answer = digest_of(&owned, &wanted, WAIT).await;
        let trials = &owned.turn.summarizers;
        trials.lock().get_or_insert_mut(wanted.who.clone(), Default::default).note(answer.text.is_some());
        let _ = done.send(Some(answer.text));
    });
    digest
}

/// Asks for one digest, and accounts for it.
async fn digest_of(app: &App, wanted: &Wanted, limit: Duration) -> Answer {
    let started = Instant::now();
    let Wanted { other, model, at, budget, question, .. } = wanted;
    let text = &wanted.request.conversation.body[*at].text;
    let nothing = |how: String| Answer { how, ..Answer::default() };
    // The id that the original is going to have.
    let id = match app.store.free_id(text) {
        Ok(id) => id,
        Err(e) => {
            warn!(error = %e, "the record cannot be asked; no digest");
            return nothing(e.to_string());
        }
    };
    let path = app.store.result_path(&id).display().to_string();
    let (own, theirs) = (wanted.own.clone(), ModelKey::new(other.name(), &other.canonical(model)));
    let count = |text: &str| app.measure.count(&own, text);
    let count_theirs = |text: &str| app.measure.count(&theirs, text);
    let window = match tokio::time::timeout(limit, window_of(app, other, model)).await {
        Ok(window) => window,
        Err(_) => return nothing("its server does not answer".into()),
    };
    let id_slot = slots(app, other, model, None).await.spare;
    let job = Job {
        upstream: other,
        model,
        headers: &wanted.headers,
        options: ChatOptions { num_ctx: window.set, id_slot, ..ChatOptions::default() },
        temperature: wanted.temperature,
        window: window.tokens.unwrap_or(SMALL_WINDOW),
        text,
        call: crate::apply::call(&wanted.request.conversation, *at),
        pointer: Pointer { id: &id, path: &path },
        question,
        budget: *budget,
        count: &count,
        theirs: &count_theirs,
        limit: limit.saturating_sub(started.elapsed()),
    };
    let answer = digest::ask(&job).await;
    let mut reported = Reported::default();
    reported.read(&answer.reply);
    app.metrics.spend("digest", &reported);
    app.lives.with(&wanted.id, |l| l.accounts.spend.add_digest(&reported));
    let milliseconds = started.elapsed().as_millis() as u64;
    let mut data = reported.event("digest", (other, model), app.measure.count(&theirs, text), milliseconds);
    data["how"] = json!(answer.how);
    data["used"] = json!(answer.text.is_some());
    info!(conversation = %wanted.id, how = %answer.how, used = answer.text.is_some(), milliseconds, "digest");
    let event = Event { now_ms: now_ms(), conversation: Some(wanted.id.clone()), kind: "model_usage".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
    answer
}
