//! After the reply: what it cost, what that teaches the estimates, and whether a brief should be begun.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::attempt::fingerprint;
use super::brief::note_speed;
use super::place::said;
use super::prepared::{Made, Prepared, Sending};
use super::replied::recorded;
use super::save::updated;
use super::stage::Stage;
use super::{gauge, relay, traced};
use crate::clock::now_ms;
use crate::conversation::{Digest, Tokens};
use crate::measure::{Known, Sample, Sureness};
use crate::plan::Regions;
use crate::plan::rewrite::Out;
use crate::proxy::state::fresh::Learned;
use crate::proxy::state::live::{Kept, Whole};
use crate::proxy::state::whose::mark_of;
use crate::proxy::{App, aside};
use crate::store::{Batch, Counted, Event, LastReply};
use crate::upstream::Upstream;
use crate::usage::Reported;

/// Below this share of a calibrated count, a server that says so must have dropped messages.
const DROPPED_BELOW: f64 = 0.7;

/// A request that was answered, with all that is known of it.
pub(in crate::proxy) struct Accounted {
    /// Who answered it.
    pub(in crate::proxy) upstream: Arc<Upstream>,
    /// The client's headers, as a server may see them.
    pub(in crate::proxy) headers: HeaderMap,
    pub(in crate::proxy) prepared: Prepared,
    pub(in crate::proxy) outcome: Outcome,
}

/// What became of a reply.
pub(in crate::proxy) struct Outcome {
    /// What the server said of it; of several rounds, of the last one.
    pub(in crate::proxy) reported: Reported,
    /// What it recalled: messages of ours behind the prompt.
    pub(in crate::proxy) recalled: Vec<Out>,
    /// Where something was recalled, prompt tokens of the first round as the server counted them.
    pub(in crate::proxy) first_prompt: Option<Tokens>,
    /// How it ended.
    pub(in crate::proxy) end: relay::End,
}

impl Outcome {
    /// Of a reply that recalled nothing.
    pub(super) fn of_one_round(reported: Reported, end: relay::End) -> Outcome {
        Outcome { reported, recalled: Vec::new(), first_prompt: None, end }
    }

    /// Prompt tokens of what was planned, as the server counted them: without what was recalled.
    pub(in crate::proxy) fn counted(&self) -> Option<Tokens> {
        if self.recalled.is_empty() { self.reported.prompt } else { self.first_prompt }
    }
}

/// A reply that was taken in. What the record gets of it is one batch, so that nobody reads a part of it.
#[must_use]
pub(in crate::proxy) struct Closing {
    app: Arc<App>,
    batch: Option<Batch>,
    accounted: Accounted,
}

impl Closing {
    /// Puts it on record, and begins what is done behind the reply. Returns once a kill cannot take the reply any more.
    pub(in crate::proxy) async fn now(self) {
        // The next request may reach another windowsill, which goes on from what the server counted.
        let nobody_waits = |batch: &Batch| batch.last_reply.is_none() && !self.app.store.is_shared();
        if self.batch.as_ref().is_none_or(nobody_waits) {
            return self.later();
        }
        let Closing { app, batch, accounted } = self;
        if let Some(batch) = batch {
            recorded(&app.store, batch).await;
        }
        (app.after)(&app, accounted);
    }

    /// The same, without waiting for the record.
    pub(in crate::proxy) fn later(self) {
        let Closing { app, batch, accounted } = self;
        if let Some(Err(e)) = batch.map(|batch| app.store.record_later(batch)) {
            debug!(error = %e, "a reply's figures were not recorded");
        }
        (app.after)(&app, accounted);
    }
}

/// Takes in what a reply reported. `reply`: what it said, where that is still to be recorded.
pub(in crate::proxy) fn account(
    app: &Arc<App>,
    upstream: Arc<Upstream>,
    headers: &HeaderMap,
    mut prepared: Prepared,
    (outcome, reply): (Outcome, Option<LastReply>),
    started: Instant,
) -> Closing {
    Stage::Accounted.begins(&prepared.id);
    take_in_route(&mut prepared, &outcome);
    prepared.sending.flight = None;
    prepared.sending.room = None;
    let (outcome, doubted) = without_doubtful(&prepared, outcome);
    let Outcome { reported, end, .. } = &outcome;
    app.metrics.spend("main", reported);
    spend(app, &prepared, reported);
    super::parked::learn(app, &upstream, &prepared, reported);
    if *end == relay::End::Complete {
        note_speed(app, (&upstream, &prepared.request.model), reported, prepared.sending.phases.sent);
    }
    if let Some(prefix) = prepared.sending.prefix {
        app.metrics.prefix(prefix.tokens, prefix.because.map(|b| (b.as_str(), prefix.lost)));
    }
    let mut events = vec![usage_event(&upstream, &prepared, reported, end, started)];
    prepared.sending.route = None;
    traced::ended(app, headers, &upstream, &prepared.id, &events[0].data);
    if matches!(end, relay::End::Failed(_)) {
        app.metrics.failure(200, "reply_failed");
    }
    events.extend(mismatch_event(&upstream, &prepared));
    events.extend(doubted.map(|tokens| doubted_event(&prepared, tokens)));
    let counted = outcome.counted().filter(|n| *n > 0);
    let far_below = counted.is_some_and(|n| !prepared.is_plausible(n));
    let dropped = counted.filter(|exact| looks_dropped(app, &prepared, *exact));
    events.extend(dropped.map(|exact| dropped_event(&prepared, exact)));
    // What a server counted of the messages that it kept is no count of what was sent.
    let counted = counted.filter(|_| dropped.is_none() && !far_below);
    let client = prepared.client_tokens(counted.unwrap_or(prepared.made.tokens));
    events[0].data["client_tokens"] = json!(client);
    if !prepared.history.repeats_a_beginning {
        let (messages, head) = (prepared.request.conversation.body.len(), Some(prepared.made.client.head));
        let of = Some(Whole::model(&prepared.key));
        app.lives.with(&prepared.id, |l| l.accounts.whole = Some(Whole { messages, tokens: client, head, of }));
    }
    let answered = counted.or(prepared.made.sureness.is_exact().then_some(prepared.made.tokens));
    if let Some(prompt) = answered.filter(|_| *end == relay::End::Complete && dropped.is_none()) {
        app.measure.windows.answered(&upstream, &prepared.request.model, prompt);
    }
    if let Some(exact) = counted {
        let sample = aside::once(prepared.request.body.len(), || learn_from(app, &prepared, exact));
        prepared.sending.told.learned = app.store.is_shared().then(|| Learned::of(&sample, exact));
    }
    if !matches!(end, relay::End::Failed(_)) {
        let depth = prepared.history.chain.len();
        app.lives.with(&prepared.id, |l| l.prompt.taken = prepared.history.chain.last().map(|tip| (*tip, depth)));
    }
    let batch = figures(app, &upstream, &prepared, &outcome, counted);
    let batch = batch.map(|batch| Batch { last_reply: reply, events, ..batch });
    let accounted = Accounted { upstream, headers: headers.clone(), prepared, outcome };
    Closing { app: Arc::clone(app), batch, accounted }
}

/// What a reply tells of its server, for the choice between several.
fn take_in_route(prepared: &mut Prepared, outcome: &Outcome) {
    let Sending { route, phases, .. } = &prepared.sending;
    if let (Some(route), Some(sent), relay::End::Complete) = (route, phases.sent, &outcome.end) {
        let reported = &outcome.reported;
        let first = reported.thought.or(reported.spoke).map(|first| first.saturating_duration_since(sent));
        prepared.sending.told.served = route.answered(reported, (first, sent.elapsed()), prepared.made.view_changed);
    }
}

/// Counts what a reply took of its key's tokens. Where the server does not say, or its client left before it could, that is what was
/// sent.
pub(super) fn spend(app: &App, prepared: &Prepared, reported: &Reported) {
    let whose = app.lives.with(&prepared.id, |live| live.whose.clone());
    if let Some(mark) = whose.as_deref().and_then(mark_of) {
        let rest = || Some(reported.prompt?.saturating_sub(reported.cached.unwrap_or(0)));
        let evaluated = reported.evaluated.or_else(rest).unwrap_or(prepared.made.tokens);
        app.turn.meters.spend(mark, u64::from(evaluated) + u64::from(reported.completion.unwrap_or(0)));
    }
}

/// Learns from what the server counted; returns what there was to learn.
fn learn_from(app: &App, prepared: &Prepared, exact: Tokens) -> Sample {
    let conversation = &prepared.request.conversation;
    let sample = app.measure.sample(&prepared.key, conversation, &prepared.made.view, prepared.history.known);
    app.measure.learn(&prepared.key, &sample, exact);
    if let Some(own) = &prepared.own {
        own.learn(prepared.made.tokens, exact);
    }
    sample
}

/// Keeps in memory what a reply told, and returns what the record is to have of it.
fn figures(
    app: &App,
    upstream: &Upstream,
    prepared: &Prepared,
    outcome: &Outcome,
    counted: Option<Tokens>,
) -> Option<Batch> {
    let reported = &outcome.reported;
    let sent = if outcome.recalled.is_empty() { counted } else { counted.and(reported.prompt) };
    let gauge = gauge::after_reply(&app.measure, prepared, sent);
    let body = &prepared.request.conversation.body;
    // What was recalled stands in the prompt and not in the history.
    let Regions { system, tools, media, .. } = gauge.regions;
    // Where nothing is rewritten, the client has what the model sees; else a tool of ours is nothing that it has.
    let ours = if prepared.made.view.edits.is_empty() { 0 } else { gauge.ours };
    let head = (system + tools + media).saturating_sub(ours);
    let history = prepared.client_tokens(gauge.regions.prompt()).saturating_sub(head);
    let learns = counted.is_some() && outcome.recalled.is_empty();
    let sizes = app.lives.with(&prepared.id, |l| l.accounts.sizes);
    let written = app.measure.writes_calls(&prepared.key);
    let sizes = if learns { sizes.learned(body, history, written) } else { sizes };
    let kept = app.lives.with(&prepared.id, |l| {
        l.accounts.sizes = sizes;
        l.accounts.spend.add(reported);
        l.accounts.books.see(now_ms());
        l.replied = said(&reported.text);
        l.prompt.held = reported.prompt.map(|prompt| (prompt, reported.completion));
        if let (Some(exact), Some(tip)) = (counted, prepared.history.chain.last()) {
            let known = Known { messages: prepared.history.chain.len(), tokens: exact };
            l.prompt.known = Some((*tip, fingerprint(&prepared.made.view, &prepared.key), known));
        }
        // A brief that was folded in is no longer ahead of anything; the record of a task that this reply finished is.
        if prepared.told.actions.contains(&"summarize") {
            l.work.brief.take_if(|brief| brief.covers < prepared.history.chain.len());
        }
        Kept::of(l)
    });
    let tip = prepared.history.chain.last().copied()?;
    let update = updated(upstream, prepared, tip, (&kept, &gauge), now_ms());
    let conversation = (!prepared.history.repeats_a_beginning).then_some(update);
    let view = fingerprint(&prepared.made.view, &prepared.key);
    let counted = counted.map(|tokens| Counted { chain: tip, view, tokens });
    // Only now: what a server refuses is no spelling to remember.
    let respelled = respelled(prepared);
    Some(Batch { conversation, counted, respelled, ..Batch::default() })
}

/// Whether a server took far less than was sent. Only said where the estimate has been right before.
fn looks_dropped(app: &App, prepared: &Prepared, exact: Tokens) -> bool {
    let counted = matches!(prepared.made.sureness, Sureness::Counted | Sureness::Own(_));
    let trusted = counted || app.measure.sureness(&prepared.key) == Sureness::Calibrated;
    let Made { tokens, after, .. } = &prepared.made;
    let sure = if counted { *tokens } else { at_least(*tokens, after.tools, prepared.history.known) };
    trusted && prepared.made.tokens > 512 && f64::from(exact) < f64::from(sure) * DROPPED_BELOW
}

/// The outcome without the size of a prompt that the server cannot have counted, and that size.
fn without_doubtful(prepared: &Prepared, outcome: Outcome) -> (Outcome, Option<Tokens>) {
    let counted = outcome.counted().filter(|n| *n > 0);
    let last = outcome.reported.prompt.filter(|n| prepared.window.tokens.is_some_and(|window| *n > window));
    let doubted = counted.filter(|n| !prepared.is_plausible(*n)).or(last);
    // Too little is what servers say that dropped messages, which is told as that.
    let Some(doubted) = doubted.filter(|doubted| *doubted > prepared.made.tokens) else { return (outcome, None) };
    let reported = Reported { prompt: None, cached: None, evaluated: None, ..outcome.reported };
    (Outcome { reported, first_prompt: None, ..outcome }, Some(doubted))
}

/// That a server reported a prompt of a size that it cannot have.
fn doubted_event(prepared: &Prepared, tokens: Tokens) -> Event {
    warn!(conversation = %prepared.id, planned = prepared.made.tokens, reported = tokens, "the server reported a prompt of a size that it cannot have; it is not taken");
    let data = json!({"planned_prompt_tokens": prepared.made.tokens, "prompt_tokens": tokens});
    event(prepared, "usage_doubted", data)
}

/// What the server reported of a reply, as an event.
fn usage_event(
    upstream: &Upstream,
    prepared: &Prepared,
    reported: &Reported,
    end: &relay::End,
    started: Instant,
) -> Event {
    let mut data = reported.event(
        "main",
        (upstream, &prepared.request.model),
        prepared.made.tokens,
        started.elapsed().as_millis() as u64,
    );
    data["window"] = json!(prepared.window.tokens);
    data["output_reserved"] = json!(prepared.made.after.output_reserved);
    data["messages"] = json!(prepared.request.conversation.body.len());
    data["action"] = json!(prepared.action());
    data["phases"] = prepared.sending.phases.told(prepared.sending.waited, reported, Instant::now());
    if let Some(route) = &prepared.sending.route {
        data["route"] = route.json();
    }
    let evaluated = data["evaluated_tokens"].as_u64().and_then(|n| Tokens::try_from(n).ok());
    data["prefix"] = json!(prepared.sending.prefix.map(|p| p.json(evaluated)));
    data["end"] = json!(match end {
        relay::End::Complete => "complete",
        relay::End::Failed(_) => "failed",
        relay::End::Canceled => "canceled",
    });
    event(prepared, "model_usage", data)
}

/// That the server must have dropped messages, and says nothing of it.
fn dropped_event(prepared: &Prepared, exact: Tokens) -> Event {
    warn!(conversation = %prepared.id, planned = prepared.made.tokens, reported = exact, "the server evaluated far fewer tokens than were sent: it may have dropped messages");
    let data = json!({"planned_prompt_tokens": prepared.made.tokens, "prompt_tokens": exact});
    event(prepared, "silent_truncation", data)
}

/// That the server counts otherwise than the model's own vocabulary: told once.
fn mismatch_event(upstream: &Upstream, prepared: &Prepared) -> Option<Event> {
    let (own, theirs) = prepared.own.as_ref()?.take_mismatch()?;
    let data =
        json!({"own_tokens": own, "server_tokens": theirs, "model": upstream.canonical(&prepared.request.model)});
    Some(event(prepared, "count_mismatch", data))
}

fn event(prepared: &Prepared, kind: &str, data: Value) -> Event {
    Event { now_ms: now_ms(), conversation: Some(prepared.id.clone()), kind: kind.into(), data }
}

/// What an estimated prompt has at least: what its server counted of its beginning, and half of an estimate, which errs high. Many
/// templates write no tools into a prompt, and leave none out for want of room.
fn at_least(estimate: Tokens, tools: Tokens, known: Option<Known>) -> Tokens {
    known.map_or(0, |known| known.tokens).max(estimate.saturating_sub(tools) / 2)
}

/// The spellings of known messages that take the place of older ones.
fn respelled(prepared: &Prepared) -> Vec<(Digest, Bytes)> {
    let body = &prepared.request.conversation.body;
    let now = |at: &usize| {
        let raw = &body.get(*at)?.raw;
        // A message that was added here has no bytes of the client's.
        (!raw.is_empty()).then(|| (prepared.history.chain[*at], Bytes::copy_from_slice(raw)))
    };
    prepared.history.respelled.iter().filter_map(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An estimate that is half too high is no sign of messages that were dropped; less than the beginning is.
    #[test]
    fn an_estimate_says_little_of_what_was_dropped() {
        assert_eq!(at_least(9000, 0, None), 4500);
        assert_eq!(at_least(9000, 0, Some(Known { messages: 3, tokens: 8000 })), 8000);
        assert_eq!(at_least(9000, 0, Some(Known { messages: 3, tokens: 200 })), 4500);
        // A template that writes no tools: 296 tokens were evaluated of what was taken for 965.
        assert!(296 >= at_least(965, 600, None), "nothing was dropped");
        assert_eq!(at_least(500, 600, None), 0);
    }
}
