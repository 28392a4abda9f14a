//! Digests of large results: a small model condenses each result that is about to be evicted, before the request is sent on.
//! The request waits for them only so long, all together; what is not ready by then, or of no use, is a preview.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tracing::{debug, info, warn};

use super::draft::Draft;
use super::headers;
use super::save::now_ms;
use crate::conversation::Role;
use crate::conversation::edit::Rule;
use crate::conversation::step::last_user;
use crate::measure::ModelKey;
use crate::plan::{Action, Plan};
use crate::preview::Pointer;
use crate::proxy::App;
use crate::proxy::traffic::Asked;
use crate::store::{Batch, Event};
use crate::summarizer::digest::{self, Answer, Job};
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;

/// How long a request waits for all of its digests.
const WAIT: Duration = Duration::from_secs(45);

/// Digests made for one request; further results get previews.
const MOST: usize = 8;

/// The window of a digest model of which nobody knows it: what every server loads at least.
const SMALL_WINDOW: u32 = 4096;

impl App {
    /// What the digest model made of the results that a plan evicts, by message. `None` where there is nothing to condense.
    pub(in crate::proxy) async fn digests(
        self: &Arc<Self>,
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
            .filter(|(at, _)| self.measure.count(&draft.situation.key, &body[*at].text) > over)
            .take(MOST)
            .collect();
        if large.is_empty() {
            return None;
        }
        let model = draft.situation.policy.digest_model.clone()?;
        let other = Arc::clone(self.upstreams.iter().find(|u| u.name() == model.upstream)?);
        if !self.moves_nothing(&other, &model.model, Asked::Other).await {
            let why = "the digest model is not in memory, and would push another one out";
            draft.warnings.push(format!("{} large results got a preview, not a digest: {why}", large.len()));
            return Some(HashMap::new());
        }
        let who = format!("digest {}/{}", model.upstream, model.model);
        let question = last_user(body).map_or("", |at| body[at].text.as_str());
        let until = Instant::now() + WAIT;
        let mut made = HashMap::new();
        let mut missing = 0;
        for (at, budget) in large {
            let left = until.saturating_duration_since(Instant::now());
            let may_try = self.summarizers.lock().get_or_insert_mut(who.clone(), Default::default).may_try();
            if left.is_zero() || !may_try {
                debug!(conversation = draft.situation.id(), who, may_try, "no digest; a preview instead");
                missing += 1;
                continue;
            }
            let answer = self.digest(draft, (&other, &model.model), (at, budget, question), left).await;
            self.summarizers.lock().get_or_insert_mut(who.clone(), Default::default).note(answer.text.is_some());
            match answer.text {
                Some(text) => drop(made.insert(at, text)),
                None => missing += 1,
            }
        }
        if missing > 0 {
            draft.warnings.push(format!("{missing} large results got a preview, since no digest came of them"));
        }
        Some(made)
    }

    /// Asks for one digest, and accounts for it.
    async fn digest(
        &self,
        draft: &Draft<'_>,
        (other, model): (&Arc<Upstream>, &str),
        (at, budget, question): (usize, u32, &str),
        limit: Duration,
    ) -> Answer {
        let started = Instant::now();
        let text = &draft.request.conversation.body[at].text;
        let nothing = |how: String| Answer { how, ..Answer::default() };
        // The id that the original is going to have.
        let id = match self.store.free_id(text) {
            Ok(id) => id,
            Err(e) => {
                warn!(error = %e, "the record cannot be asked; no digest");
                return nothing(e.to_string());
            }
        };
        let path = self.store.result_path(&id).display().to_string();
        let (own, theirs) = (draft.situation.key.clone(), ModelKey::new(other.name(), model));
        let count = |text: &str| self.measure.count(&own, text);
        let count_theirs = |text: &str| self.measure.count(&theirs, text);
        let window = match tokio::time::timeout(limit, self.window_of(other, model)).await {
            Ok(window) => window,
            Err(_) => return nothing("its server does not answer".into()),
        };
        let id_slot = self.slots(other, model, None).await.spare;
        let job = Job {
            upstream: other,
            model,
            // A client's key is for its own server alone.
            headers: &if Arc::ptr_eq(other, draft.situation.upstream) {
                self.outgoing(draft.situation.from_client)
            } else {
                headers::json()
            },
            options: ChatOptions { num_ctx: window.set, id_slot, ..ChatOptions::default() },
            temperature: draft.situation.policy.summary_temperature,
            window: window.tokens.unwrap_or(SMALL_WINDOW),
            text,
            call: crate::apply::call(&draft.request.conversation, at),
            pointer: Pointer { id: &id, path: &path },
            question,
            budget,
            count: &count,
            theirs: &count_theirs,
            limit: limit.saturating_sub(started.elapsed()),
        };
        let answer = digest::ask(&job).await;
        let mut reported = Reported::default();
        reported.read(&answer.reply);
        self.metrics.spend("digest", &reported);
        self.lives.with(draft.situation.id(), |l| l.spend.add_digest(&reported));
        let milliseconds = started.elapsed().as_millis() as u64;
        let mut data = reported.event("digest", (other, model), self.measure.count(&theirs, text), milliseconds);
        data["how"] = json!(answer.how);
        data["used"] = json!(answer.text.is_some());
        info!(conversation = draft.situation.id(), how = %answer.how, used = answer.text.is_some(), milliseconds, "digest");
        let event = Event {
            now_ms: now_ms(),
            conversation: Some(draft.situation.id().to_owned()),
            kind: "model_usage".into(),
            data,
        };
        if let Err(e) = self.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
            debug!(error = %e, "an event was not recorded");
        }
        answer
    }
}
