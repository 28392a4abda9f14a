//! What is done between requests, so that none has to wait for it: the brief is made while the server is idle, by continuing
//! the prompt that it holds; and when the next turn would pass the wall, the history is folded now and the new prompt is
//! sent for evaluation, so that the next request finds it in the server's cache.
//!
//! A request of the same conversation always goes first: it stops whatever is under way here. So does a request for another
//! model of the same server, and nothing is begun for a model that is not in memory (`proxy/traffic.rs`). So does a request of
//! another conversation that has no slot left (`proxy/pool.rs`).

pub mod background;
pub(super) mod retention;
pub(super) mod title;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use title::title_behind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::state::live::{Ahead, Brief, Making};
use super::state::view::{Intent, Subject, make_view, planned};
use super::traffic::Asked;
use super::turn::attempt;
use super::turn::brief::{Ask, folded, folded_to, left_out, reach, readable, told};
use super::turn::prepared::Prepared;
use super::{App, Error, turn::relay};
use crate::apply::{Applied, Words};
use crate::clock::now_ms;
use crate::conversation::edit::View;
use crate::conversation::{Role, Tokens};
use crate::guard::triggers::Pace;
use crate::measure::Known;
use crate::plan::asked::Next;
use crate::plan::rewrite::{self, Out};
use crate::plan::{self, Action, Facts, Plan, Strategy, economics};
use crate::proxy::state::live::Reply;
use crate::proxy::traffic::begin_errand;
use crate::proxy::turn::account::{Accounted, Outcome};
use crate::proxy::turn::brief::{ask_for_brief, made};
use crate::proxy::turn::slots::slots;
use crate::store::{Batch, Event};
use crate::summarizer::{self, Wanted};
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;
use crate::wire::openai_chat::{self, Request};

/// After a reply that calls tools the client is back at once; nothing is begun when it is.
const AFTER_TOOL_CALLS: Duration = Duration::from_millis(750);

/// A step is taken to be as long as the last one, and a little more.
const NEXT_STEP: f64 = 1.25;

/// The least that a step is taken for, as a share of the window.
const SMALL_STEP: f64 = 0.02;

/// The longest that evaluating a prompt ahead may take.
const PREFILL: Duration = Duration::from_secs(600);

/// One reply, and what is to be done behind it.
struct Behind {
    upstream: Arc<Upstream>,
    headers: HeaderMap,
    prepared: Prepared,
    outcome: Outcome,
    window: Tokens,
    /// Tokens that the server holds: prompt and reply, as it counted them.
    used: Tokens,
    /// Tokens that the last step added.
    step: Tokens,
    /// One past the last message that a model has told of.
    told: usize,
}

/// Begins what is done behind a reply.
pub(super) fn begin(app: &Arc<App>, of: Accounted) {
    if of.outcome.end == relay::End::Complete && !of.prepared.history.repeats_a_beginning {
        title_behind(app, &of.prepared);
    }
    work_ahead(app, of);
}

/// A fold that was made ahead: its plan, its view, the messages to send, and the seconds that a model wrote on the brief.
type Made = (Plan, Applied, Vec<Out>, f64);

/// Begins behind a reply what the next requests will need, if nobody is waiting.
fn work_ahead(app: &Arc<App>, of: Accounted) {
    let Accounted { upstream, headers, prepared, outcome } = of;
    let Some(window) = prepared.window.tokens else { return };
    let Some(prompt) = outcome.reported.prompt else { return };
    let used = prompt + outcome.reported.completion.unwrap_or(0);
    let strategy = prepared.policy.policy.strategy;
    let may = prepared.policy.background && outcome.end == relay::End::Complete && !prepared.request.unloads();
    let Some(tip) = prepared.history.chain.last().copied() else { return };
    if !may || strategy == Strategy::Off || prepared.wishes.wanted.paused {
        return;
    }
    let due = app.lives.with(&prepared.id, |l| l.work.fold_due.is_some());
    let step = last_step(&prepared);
    let fold = due || passes_with(used, step, prepared.made.lines.fold_at, window);
    let (from, line) = prepared.made.lines.brief_at(used);
    let told = told_of(app, &prepared, &outcome.reported.text);
    let lags = told < folded_to(&prepared.made.view);
    let is_near = due || economics::brief_is_due(used, step, from, line);
    let brief = strategy == Strategy::Summarize
        && prepared.made.lines.no_summary().is_none()
        && (lags || is_near && economics::worth_keeping_up(untold(app, &prepared, told), prepared.made.lines.summary));
    let busy = app.lives.with(&prepared.id, |l| l.in_flight > 0 || l.work.making.is_some());
    if busy || !brief && !fold {
        return;
    }
    let (done, over) = watch::channel(false);
    let making = Making {
        cancel: CancellationToken::new(),
        over,
        asking: Arc::new(AtomicBool::new(false)),
        waiting: Arc::default(),
        chain: tip,
        covers: prepared.history.chain.len(),
    };
    let stopped = app.lives.with(&prepared.id, |l| {
        l.work.making = Some(making.clone());
        l.work.stopped
    });
    let owned = Arc::clone(app);
    app.tasks.spawn(async move {
        let wait = match (outcome.reported.called_tools, stopped) {
            (false, 0) => Duration::ZERO,
            (_, stopped) => AFTER_TOOL_CALLS * 2u32.pow(stopped),
        };
        let (size, id) = (prepared.request.body.len(), prepared.id.clone());
        let behind = Behind { upstream, headers, prepared, outcome, window, used, step, told };
        let (worker, asking, waiting) = (Arc::clone(&owned), Arc::clone(&making.asking), Arc::clone(&making.waiting));
        let work = async move {
            tokio::time::sleep(wait).await;
            make_ahead(&worker, &behind, (brief, fold), (&asking, &waiting)).await;
        };
        tokio::select! {
            () = making.cancel.cancelled() => {}
            done = owned.aside.run(size, work.boxed()) => {
                if let Err(e) = done {
                    debug!(conversation = %id, error = %e, "nothing was made ahead of need");
                }
            }
        }
        made(&owned, &id, &making);
        let _ = done.send(true);
    });
}

/// Makes a brief, a fold, or both, while the conversation's model is in memory and nobody wants another one there. What is
/// not made is due again behind the next reply.
async fn make_ahead(
    app: &Arc<App>,
    behind: &Behind,
    (brief, fold): (bool, bool),
    (asking, waiting): (&AtomicBool, &Arc<AtomicUsize>),
) {
    let Behind { upstream, prepared, .. } = behind;
    let Some(errand) = begin_errand(app, upstream, &prepared.request.model, (Asked::Own, waiting)).await else {
        debug!(conversation = %prepared.id, "nothing is made ahead: others are served, its model is not in memory, or another one is wanted");
        return;
    };
    let work = async {
        if brief && would_use_a_brief(app, behind) {
            asking.store(true, Ordering::Relaxed);
            make_brief(app, behind).await;
            asking.store(false, Ordering::Relaxed);
        }
        if fold {
            fold_ahead(app, behind).await;
        }
    };
    tokio::select! {
        () = errand.stopped() => debug!(conversation = %prepared.id, "stopped: its slot, or another model, is wanted"),
        () = work => {}
    }
}

/// Whether a brief has a use: it tells of what is folded already, or a fold is in sight. Where a clearing would do at the wall, a
/// brief is made only once there is much to tell.
fn would_use_a_brief(app: &App, behind: &Behind) -> bool {
    let Behind { prepared, used, step, told, .. } = behind;
    let (_, line) = prepared.made.lines.brief_at(*used);
    let at_wall = line == prepared.made.lines.limit;
    let is_much = || economics::worth_a_summary(untold(app, prepared, *told), prepared.made.lines.summary);
    if *told < folded_to(&prepared.made.view) || at_wall && is_much() {
        return true;
    }
    let plan = foreseen(app, behind, &prepared.request, economics::steps_ahead(*step, line));
    plan.is_some_and(|plan| !at_wall || plan.actions.iter().any(|a| matches!(a, Action::Fold { .. })))
}

/// One past the last message that a brief of a model tells of, in the view or at hand.
fn told_of(app: &App, prepared: &Prepared, reply: &str) -> usize {
    brief_behind(app, prepared, reply).map_or_else(|| told(&prepared.made.view), |brief| brief.covers)
}

/// Tokens of the history after so many messages.
fn untold(app: &App, prepared: &Prepared, told: usize) -> Tokens {
    let costs = app.measure.costs(&prepared.key, &prepared.request.conversation);
    costs.iter().skip(told).map(plan::Cost::total).fold(0, Tokens::saturating_add)
}

/// The brief that was made for the history of a request and its reply, or for the beginning of it.
fn brief_behind(app: &App, prepared: &Prepared, reply: &str) -> Option<Brief> {
    let body = &prepared.request.conversation.body;
    let brief = app.lives.with(&prepared.id, |l| l.work.brief.clone());
    brief.filter(|brief| {
        brief.covers > told(&prepared.made.view) && brief.is_of(&prepared.history.chain, body, Some(reply))
    })
}

async fn make_brief(app: &Arc<App>, behind: &Behind) {
    let Behind { upstream, prepared, outcome, window, .. } = behind;
    let Outcome { reported, recalled, .. } = outcome;
    let body = &prepared.request.conversation.body;
    let mut view = readable(prepared.made.out.clone(), &prepared.made.view);
    let mut reply = None;
    // The reply stands in the server's cache behind the prompt, with what it recalled; a client that echoes it lets the next
    // prompt begin with all of it. The brief then holds for histories with this reply alone.
    if !reported.called_tools && !reported.text.is_empty() {
        view.extend_from_slice(recalled);
        reply = Some(Reply::new(body.len() + recalled.len(), &reported.text));
        let bytes = openai_chat::new_message("assistant", &reported.text);
        view.push(Out { bytes, role: Role::Assistant, at: None, calls: false, changed: true });
    }
    let (messages, previous) = folded(&prepared.request, &prepared.made.view, body.len());
    let budget = prepared.made.lines.brief;
    let ask = Ask {
        upstream,
        headers: &behind.headers,
        options: ChatOptions { num_ctx: prepared.window.set, ..ChatOptions::default() },
        request: &prepared.request,
        summary_model: &prepared.policy.summary_model,
        id: &prepared.id,
        view: &view,
        view_tokens: behind.used,
        waited_for: None,
        spare_slot: spare_slots(app, upstream, &prepared.request.model).await.is_some_and(|n| n > 0),
        messages: &messages,
        previous: previous.as_deref(),
        window: *window,
        wanted: Wanted {
            max_tokens: (budget / 4 * 3).min(prepared.policy.policy.summary_max_tokens),
            temperature: prepared.policy.summary_temperature,
            focus: prepared.wishes.standing.focus().or(prepared.policy.focus.as_deref()),
        },
    };
    let started = Instant::now();
    let Some((text, read)) = ask_for_brief(app, &ask).await else { return };
    let covers = reach(&view, read, prepared.history.chain.len()).max(told(&prepared.made.view));
    let Some(chain) = covers.checked_sub(1).and_then(|last| prepared.history.chain.get(last)).copied() else { return };
    let seconds = started.elapsed().as_secs_f64();
    let (unread, reply) = (left_out(&prepared.made.view), reply.filter(|_| read >= view.len()));
    let brief = Brief { covers, chain, text, seconds, reply, unread };
    app.lives.with(&prepared.id, |l| {
        if l.work.steered == prepared.history.seen.steered {
            l.work.brief = Some(brief);
        }
        l.work.stopped = 0;
    });
}

/// Slots of the server that no conversation under way needs; `None` where there are too few already.
async fn spare_slots(app: &App, upstream: &Upstream, model: &str) -> Option<usize> {
    let slots = upstream.loaded(model).await.ok().and_then(|loaded| loaded.slots).unwrap_or(1);
    (slots as usize).checked_sub(app.lives.lately())
}

/// Folds now what the next request would have to, and has the server evaluate the new prompt. What goes wrong here is
/// left to that request.
async fn fold_ahead(app: &Arc<App>, behind: &Behind) {
    let prepared = &behind.prepared;
    let Some(tip) = prepared.history.chain.last().copied() else { return };
    if spare_slots(app, &behind.upstream, &prepared.request.model).await.is_none() {
        // Another conversation's prompt would have to go for this one's.
        return;
    }
    // The first prompt that lacks something is the first with the tool that reads it back.
    let mut request = std::borrow::Cow::Borrowed(&prepared.request);
    if let Some(tools) = prepared.head.tools.as_ref().filter(|_| !request.offers()) {
        request.to_mut().offer(tools.clone());
    }
    let started = Instant::now();
    let (plan, applied, out, waited) = match folded_now(app, behind, &request) {
        Ok(Some(folded)) => folded,
        Ok(None) => return,
        Err(e) => {
            debug!(conversation = %prepared.id, error = %e, "no fold ahead of need");
            return;
        }
    };
    info!(conversation = %prepared.id, before = plan.before.prompt(), after = plan.after.prompt(), "folded ahead of need");
    let why = app.lives.with(&prepared.id, |l| l.work.fold_due.take());
    let ahead = Ahead {
        depth: prepared.history.chain.len(),
        chain: tip,
        of: prepared.made.view.mark(),
        reply: app.lives.with(&prepared.id, |l| l.work.brief.as_ref().filter(|b| b.chain == tip).and_then(|b| b.reply)),
        view: View { bare: false, ..applied.view },
        originals: applied.originals,
        layers: attempt::layers(&plan, prepared.policy.policy.strategy),
        because: (why.as_ref().and_then(Pace::why).map(str::to_owned), plan.because.clone()),
        regions: (plan.before, plan.after),
        seconds: waited,
        tokens: None,
    };
    let stands = app.lives.with(&prepared.id, |l| {
        let stands = l.work.steered == prepared.history.seen.steered;
        if stands {
            l.work.ahead = Some(ahead);
        }
        stands
    });
    if !stands {
        return;
    }
    let tokens = prefill(app, behind, &request, &out).await;
    app.lives.with(&prepared.id, |l| {
        let seconds = waited + started.elapsed().as_secs_f64();
        if let Some(ahead) = l.work.ahead.as_mut().filter(|a| a.chain == tip) {
            (ahead.tokens, ahead.seconds) = (tokens, seconds);
        }
    });
}

/// The plan that the next request would make if it were `more` tokens longer than what the server holds, where that folds
/// or clears and pays.
fn foreseen(app: &App, behind: &Behind, request: &Request, more: Tokens) -> Option<Plan> {
    let Behind { prepared, outcome, window, used, .. } = behind;
    let conversation = &request.conversation;
    let known = outcome.counted().map(|tokens| Known { messages: conversation.body.len(), tokens });
    let mut facts = Facts {
        window: *window,
        output_reserved: prepared.made.after.output_reserved,
        forwarded: conversation.body.len(),
        ..app.measure.facts(&prepared.key, conversation, &prepared.made.view, known)
    };
    prepared.wishes.wanted.tell(&mut facts);
    // One that is due for another reason than the wall has a policy of its own.
    let due = app.lives.with(&prepared.id, |l| l.work.fold_due.clone());
    let is_due = due.is_some();
    let policy = &due.unwrap_or_default().policy(&prepared.policy.policy);
    let next = Next { used: *used, more, limit: prepared.made.lines.limit, is_due };
    planned(conversation, &facts, policy, Intent::Ahead(next))
}

/// The plan that the next request would make, applied to what was forwarded last; and the seconds that its brief took.
fn folded_now(app: &App, behind: &Behind, request: &Request) -> Result<Option<Made>, Error> {
    let Behind { prepared, window, step, .. } = behind;
    let Some(plan) = foreseen(app, behind, request, next_step(*step, *window)) else { return Ok(None) };
    let conversation = &request.conversation;
    let policy = &prepared.policy.policy;
    let brief = brief_behind(app, prepared, &behind.outcome.reported.text);
    let words = Words {
        pins: &prepared.wishes.wanted.texts,
        written: brief.as_ref().map(Brief::written),
        focus: prepared.wishes.standing.focus().or(prepared.policy.focus.as_deref()),
        keep: prepared.policy.keep,
        digests: None,
    };
    let applied = make_view(app, &Subject { conversation, ..prepared.subject() }, &plan, words)?;
    let out = rewrite::rewrite(conversation, &applied.view, &policy.template);
    Ok(Some((plan, applied, out, brief.map_or(0.0, |b| b.seconds))))
}

/// Has the server evaluate a prompt that will come. Should the request come meanwhile, what was evaluated so far is in
/// the cache, and not lost. Returns the prompt's tokens.
async fn prefill(app: &App, behind: &Behind, request: &Request, out: &[Out]) -> Option<Tokens> {
    let started = Instant::now();
    let body = summarizer::prefill(request, out);
    let Behind { upstream, prepared, outcome, .. } = behind;
    let last = outcome.reported.prompt.map(|prompt| (prompt, outcome.reported.completion));
    let id_slot = slots(app, upstream, &prepared.request.model, last).await.own;
    let options = ChatOptions { num_ctx: prepared.window.set, id_slot, ..ChatOptions::default() };
    let asked = behind.upstream.chat(&behind.headers, "/v1/chat/completions", body, options);
    let mut reply = tokio::time::timeout(PREFILL, asked).await.ok()?.ok()?;
    let mut bytes = Vec::new();
    while let Some(Ok(chunk)) = reply.body.next().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > 1 << 20 {
            return None;
        }
    }
    let mut reported = Reported::default();
    reported.read(&bytes);
    app.metrics.spend("prefill", &reported);
    let id = &behind.prepared.id;
    app.lives.with(id, |l| {
        l.accounts.spend.add_prefill(&reported);
        l.prompt.held = reported.prompt.map(|prompt| (prompt, reported.completion)).or(l.prompt.held);
    });
    let model = (&**upstream, prepared.request.model.as_str());
    let data = reported.event("prefill", model, 0, started.elapsed().as_millis() as u64);
    let event = Event { now_ms: now_ms(), conversation: Some(id.clone()), kind: "model_usage".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
    reported.prompt
}

/// Tokens that the next step is taken to add, after one of `step`.
fn next_step(step: Tokens, window: Tokens) -> Tokens {
    (f64::from(step) * NEXT_STEP).max(f64::from(window) * SMALL_STEP) as Tokens
}

/// Whether a next step like the last one would pass a line.
fn passes_with(used: Tokens, step: Tokens, line: Tokens, window: Tokens) -> bool {
    used.saturating_add(next_step(step, window)) > line
}

/// Tokens by which this prompt is longer than the last one, where that is known.
fn last_step(prepared: &Prepared) -> Tokens {
    prepared.sending.prefix.filter(|p| p.because.is_none()).map_or(0, |p| prepared.made.tokens.saturating_sub(p.tokens))
}
