//! The part of a brief that a model writes: taken ready where it was made ahead of need, waited for where it is being
//! made, asked for where nothing else is left. How it is made between requests: `ahead`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::drafts::Draft;
use super::slots::slots;
use crate::clock::now_ms;
use crate::config::{Resolved, SummaryModel};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Digest, Message, Tokens};
use crate::plan::rewrite::{self, Out};
use crate::plan::{Action, Cost, Plan, economics};
use crate::proxy::servers::window_of;
use crate::proxy::state::live::{Brief, Making};
use crate::proxy::state::notes::{key, note_event};
use crate::proxy::traffic::{Asked, Errand, begin_errand, moves_nothing, why_not};
use crate::proxy::{App, state::headers};
use crate::store::{Batch, Event};
use crate::summarizer::{self, Job, Wanted};
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;
use crate::wire::openai_chat::{self, Request};
use crate::{brief, pinned};

/// How long a request waits for its brief: for the one in the making, and for one of its own where there is none.
const WAIT: Duration = Duration::from_secs(90);

/// With less of that left, none is begun.
const BEGUN: Duration = Duration::from_secs(10);

/// How long a summary may take that nobody waits for. A local model writes a thousand tokens within this even at five a
/// second.
const UNSEEN: Duration = Duration::from_secs(240);

/// What stands for a message that no brief is made from, so that roles go on to alternate.
const LEFT_OUT: &str = "[left out here: it stays in view]";

/// Replies of fewer tokens tell nothing of a model's speed.
const TELLING: Tokens = 16;

/// How a summarizer did lately. One that writes nothing of use (the smallest models do) is left out for a while, and
/// longer each time, since asking costs the user minutes.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Trial {
    failures: u32,
    skip: u32,
    /// Tokens that the model writes in a second, in a running mean.
    writes: Option<f64>,
}

impl Trial {
    pub(in crate::proxy) fn may_try(&mut self) -> bool {
        let may = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        may
    }

    /// Whether it is left out the next time.
    fn rests(&self) -> bool {
        self.skip > 0
    }

    pub(in crate::proxy) fn note(&mut self, useful: bool) {
        self.failures = if useful { 0 } else { (self.failures + 1).min(6) };
        self.skip = if useful { 0 } else { (1 << self.failures) - 1 };
    }

    /// Takes in how fast a reply was written.
    fn wrote(&mut self, speed: f64) {
        self.writes = Some(self.writes.map_or(speed, |before| before.midpoint(speed)));
    }

    /// Seconds that so many tokens take; `None` where no reply told yet.
    fn foreseen(&self, tokens: Tokens) -> Option<f64> {
        self.writes.map(|writes| f64::from(tokens) / writes)
    }
}

/// Takes in how fast a model wrote a reply that was sent at a moment.
pub(in crate::proxy) fn note_speed(app: &App, who: (&Upstream, &str), reported: &Reported, sent: Option<Instant>) {
    if let Some(speed) = speed(reported, sent, Instant::now()) {
        let name = format!("{}/{}", who.0.name(), who.1);
        app.turn.summarizers.lock().get_or_insert_mut(name, Default::default).wrote(speed);
    }
}

/// Tokens of a reply that were written in a second: from its first word on, or behind what the server says that reading took.
fn speed(reported: &Reported, sent: Option<Instant>, ended: Instant) -> Option<f64> {
    let written = reported.completion.filter(|written| *written >= TELLING)?;
    let first = [reported.thought, reported.spoke].into_iter().flatten().min();
    let seconds = match (first, reported.prompt_ms) {
        (Some(first), _) => ended.saturating_duration_since(first).as_secs_f64(),
        (None, Some(read)) => ended.saturating_duration_since(sent?).as_secs_f64() - read / 1000.0,
        (None, None) => return None,
    };
    (seconds > 0.0).then(|| f64::from(written) / seconds)
}

/// What is asked of whom.
pub(in crate::proxy) struct Ask<'a> {
    pub(in crate::proxy) upstream: &'a Arc<Upstream>,
    pub(in crate::proxy) headers: &'a HeaderMap,
    pub(in crate::proxy) options: ChatOptions,
    pub(in crate::proxy) request: &'a Request,
    pub(in crate::proxy) summary_model: &'a SummaryModel,
    pub(in crate::proxy) id: &'a str,
    pub(in crate::proxy) view: &'a [Out],
    /// Tokens of the view, for the figures.
    pub(in crate::proxy) view_tokens: Tokens,
    /// How long a request waits for the answer, where one does.
    pub(in crate::proxy) waited_for: Option<Duration>,
    /// Another prompt may be sent without taking the conversation's own out of the server's cache.
    pub(in crate::proxy) spare_slot: bool,
    pub(in crate::proxy) messages: &'a [&'a Message],
    pub(in crate::proxy) previous: Option<&'a str>,
    pub(in crate::proxy) window: Tokens,
    pub(in crate::proxy) wanted: Wanted<'a>,
}

/// A brief that a request needs, with all that is asked for it: it is made to its end also where the client gives up, since the
/// same request comes again, and would begin it again and again.
struct Needed {
    upstream: Arc<Upstream>,
    headers: HeaderMap,
    options: ChatOptions,
    request: Arc<Request>,
    /// The same with the tools that the last prompt had, and without its messages.
    held: Request,
    old: View,
    policy: Arc<Resolved>,
    id: String,
    of: Covered,
    view_tokens: Tokens,
    window: Tokens,
    max_tokens: Tokens,
    focus: Option<String>,
    /// How long the request waits for it.
    patience: Duration,
}

/// The messages that a brief is to cover, from the first.
struct Covered {
    /// How many.
    to: usize,
    /// The chain hash of the last of them.
    tip: Digest,
    /// Those of all.
    chain: Vec<Digest>,
    /// How often a person had changed the conversation when these were looked up.
    steered: u64,
}

/// Who writes a brief, and how that one is asked.
struct Writer<'a> {
    upstream: Arc<Upstream>,
    /// The model, where it is not the conversation's own.
    model: Option<&'a str>,
    window: Tokens,
    options: ChatOptions,
    /// Work for a model that nobody waits for gives way to clients.
    errand: Option<Errand>,
}

/// What a model wrote for the fold of a plan, if anything of use. The policy is the one that the request itself was
/// resolved with, profile header included.
pub(in crate::proxy) async fn written(app: &Arc<App>, draft: &Draft<'_>, plan: &Plan, window: Tokens) -> Option<Brief> {
    let (id, chain) = (draft.situation.id(), &draft.situation.history.chain);
    let body = &draft.request.conversation.body;
    let began = Instant::now();
    if let Some(making) = app.lives.with(id, |l| l.work.making.clone()) {
        // One that was not begun yet is not waited for: the pause before it may be long, and it gives way to requests.
        if making.is_for(chain) {
            let (_waiting, mut over) = (making.waited_for(), making.over.clone());
            let _ = tokio::time::timeout(WAIT, over.wait_for(|over| *over)).await;
        }
        app.lives.stop_making(id);
    }
    let patience = WAIT.saturating_sub(began.elapsed());
    let needed = needed(app, draft, plan, (window, patience))?;
    let ready = brief_at_hand(app, id, chain, body, &draft.old);
    if ready.as_ref().is_some_and(|brief| covers(app, draft, plan, brief, needed.of.to)) {
        return ready;
    }
    if let Some(why) = too_slow(app, &needed) {
        return ready.or_else(|| not_summarized(app, id, &why));
    }
    let making = make_needed(app, needed);
    let _waiting = making.waited_for();
    // It ends by itself.
    let _ = making.over.clone().wait_for(|over| *over).await;
    brief_at_hand(app, id, chain, body, &draft.old)
}

/// Why a request does not wait for its brief: at the speed at which its model writes, it would not be there before the wait ends. It is
/// made without a model then, and the model writes behind the reply, where the client leaves it the time.
fn too_slow(app: &App, needed: &Needed) -> Option<String> {
    if needed.patience < BEGUN {
        return Some(format!("the one in the making was not there within {} s", WAIT.as_secs()));
    }
    let who = match &needed.policy.summary_model {
        SummaryModel::Own => who(&needed.upstream, &needed.held.model),
        SummaryModel::Other { upstream, model } => who(app.servers.named(upstream)?, model),
        SummaryModel::Embedded => return None,
    };
    let seconds = app.turn.summarizers.lock().get(&who)?.foreseen(needed.max_tokens)?;
    (seconds > needed.patience.as_secs_f64()).then(|| {
        let tens = (seconds / 10.0).round() * 10.0;
        format!("{who} would take about {tens:.0} s to write it, and the client waits")
    })
}

/// Whether a brief tells so much of a fold up to `to` that another one is not worth asking for, and of the last fold all.
fn covers(app: &App, draft: &Draft<'_>, plan: &Plan, brief: &Brief, to: usize) -> bool {
    let costs = app.measure.costs(&draft.situation.key, &draft.request.conversation);
    let untold =
        costs.get(brief.covers..to).unwrap_or_default().iter().map(Cost::total).fold(0, Tokens::saturating_add);
    brief.covers >= folded_to(&draft.old) && !economics::worth_keeping_up(untold, plan.lines.summary)
}

/// What is to be asked for the fold of a plan.
fn needed(app: &App, draft: &Draft<'_>, plan: &Plan, (window, patience): (Tokens, Duration)) -> Option<Needed> {
    let Draft { situation, request, held, old, .. } = draft;
    let policy = &situation.policy;
    let (to, budget) = plan.actions.iter().find_map(|a| match a {
        Action::Fold { to, budget, .. } => Some((*to, *budget)),
        _ => None,
    })?;
    Some(Needed {
        upstream: Arc::clone(&situation.upstream),
        headers: app.outgoing(&situation.from_client),
        options: ChatOptions { num_ctx: situation.window.set, ..ChatOptions::default() },
        request: Arc::clone(request),
        held: held.clone(),
        old: old.clone(),
        policy: Arc::clone(policy),
        id: situation.id().to_owned(),
        of: Covered {
            to,
            tip: *situation.history.chain.get(to.checked_sub(1)?)?,
            chain: situation.history.chain.get(..to)?.to_vec(),
            steered: situation.history.seen.steered,
        },
        view_tokens: plan.before.prompt(),
        window,
        max_tokens: (budget.min(plan.lines.summary) / 4 * 3).min(policy.policy.summary_max_tokens),
        focus: draft.focus.as_ref().or(policy.focus.as_ref()).cloned(),
        patience,
    })
}

/// Begins a brief that a request needs. It ends by itself once its request waits no longer, and gives way to clients that want another
/// model of the server once nobody waits for it.
fn make_needed(app: &Arc<App>, needed: Needed) -> Making {
    let (done, over) = watch::channel(false);
    let making = Making {
        cancel: CancellationToken::new(),
        over,
        asking: Arc::new(AtomicBool::new(true)),
        waiting: Arc::default(),
        chain: needed.of.tip,
        covers: needed.of.to,
    };
    let errand = app.traffic.errand(&needed.upstream, &needed.held.model);
    app.lives.with(&needed.id, |l| l.work.making = Some(making.clone()));
    let (owned, mine) = (Arc::clone(app), making.clone());
    app.tasks.spawn(async move {
        let (size, id) = (needed.request.body.len(), needed.id.clone());
        let worker = Arc::clone(&owned);
        let work = async move { ask_needed(&worker, needed).await };
        tokio::select! {
            () = mine.cancel.cancelled() => {}
            () = errand.stopped() => {}
            _ = owned.aside.run(size, work.boxed()) => {}
        }
        made(&owned, &id, &mine);
        let _ = done.send(true);
    });
    making
}

/// Forgets what was being made, unless that is something else by now.
pub(in crate::proxy) fn made(app: &App, id: &str, making: &Making) {
    app.lives.with(id, |l| drop(l.work.making.take_if(|other| Arc::ptr_eq(&other.asking, &making.asking))));
}

/// Asks for a brief that a request needs, and keeps it for that request, or for the next one like it.
async fn ask_needed(app: &App, needed: Needed) {
    let started = Instant::now();
    let Needed { request, old, policy, of: Covered { to, chain, .. }, .. } = &needed;
    let (messages, previous) = folded(request, old, *to);
    // The prefix up to the cut is a prefix of what the server holds, and the tail is not needed for a summary of the
    // rest.
    let view: Vec<Out> = rewrite::rewrite(&request.conversation, old, &policy.policy.template)
        .into_iter()
        .take_while(|m| m.at.is_none_or(|at| at < *to))
        .collect();
    let view = readable(view, old);
    let ask = Ask {
        upstream: &needed.upstream,
        headers: &needed.headers,
        options: needed.options,
        request: &needed.held,
        summary_model: &policy.summary_model,
        id: &needed.id,
        view: &view,
        view_tokens: needed.view_tokens,
        waited_for: Some(needed.patience),
        spare_slot: false,
        messages: &messages,
        previous: previous.as_deref(),
        window: needed.window,
        wanted: Wanted {
            max_tokens: needed.max_tokens,
            temperature: policy.summary_temperature,
            focus: needed.focus.as_deref(),
        },
    };
    let Some((text, read)) = ask_for_brief(app, &ask).await else { return };
    let covers = reach(&view, read, *to).max(told(old));
    let Some(chain) = covers.checked_sub(1).and_then(|last| chain.get(last)).copied() else { return };
    let seconds = started.elapsed().as_secs_f64();
    let brief = Brief { covers, chain, text, seconds, reply: None, unread: left_out(old) };
    app.lives.with(&needed.id, |l| {
        if l.work.steered == needed.of.steered {
            l.work.brief = Some(brief);
        }
    });
}

/// A brief that was made ahead for a history that this one goes on, where it goes farther than what its view tells.
pub(in crate::proxy) fn brief_at_hand(
    app: &App,
    id: &str,
    chain: &[Digest],
    body: &[Message],
    view: &View,
) -> Option<Brief> {
    let ready = app.lives.with(id, |l| l.work.brief.clone());
    ready.filter(|brief| brief.covers > told(view) && brief.is_of(chain, body, None))
}

/// Asks, and accounts for it. Returns what was written, and of how many messages of the view.
pub(in crate::proxy) async fn ask_for_brief(app: &App, ask: &Ask<'_>) -> Option<(Arc<str>, usize)> {
    let started = Instant::now();
    let key = key(app, ask.upstream, ask.request);
    let count = move |text: &str| app.measure.count(&key, text);
    let Writer { upstream, model, window, options, errand } = match writer(app, ask).await {
        Ok(writer) => writer,
        Err(why) => return not_summarized(app, ask.id, &why),
    };
    let name = model.unwrap_or(&ask.request.model);
    let who = who(&upstream, name);
    if !app.turn.summarizers.lock().get_or_insert_mut(who.clone(), Default::default).may_try() {
        // A reason that was told before is why it is left out, so it is not told in other words in between.
        let told = app.lives.with(ask.id, |l| l.work.unsummarized.is_some());
        let why = (!told).then(|| format!("{who} wrote nothing of use lately, and is left out for a while"));
        return why.and_then(|why| not_summarized(app, ask.id, &why));
    }
    let slots = slots(app, &upstream, model.unwrap_or(&ask.request.model), None).await;
    // A client's key is for its own server alone.
    let json = headers::json();
    let job = Job {
        upstream: &upstream,
        headers: if Arc::ptr_eq(&upstream, ask.upstream) { ask.headers } else { &json },
        options,
        request: ask.request,
        other_model: model,
        view: ask.view,
        messages: ask.messages,
        previous: ask.previous,
        window,
        wanted: ask.wanted,
        count: &count,
        limit: ask.waited_for.unwrap_or(UNSEEN),
        retry: ask.waited_for.is_none() && (ask.spare_slot || model.is_some()),
        spare_slot: slots.spare,
    };
    let mut asking = Asking { app, ask, by: (&upstream, name), started, answered: false };
    let answer = match &errand {
        None => summarizer::ask(&job).await,
        Some(errand) => tokio::select! {
            () = errand.stopped() => return None,
            answer = summarizer::ask(&job) => answer,
        },
    };
    asking.answered = true;
    app.turn.summarizers.lock().get_or_insert_mut(who.clone(), Default::default).note(answer.text.is_some());
    note_summary(app, ask, (&upstream, name), &answer, started.elapsed());
    let Some(text) = answer.text else { return not_summarized(app, ask.id, &format!("{who}: {}", answer.how)) };
    app.lives.with(ask.id, |l| l.work.unsummarized = None);
    Some((Arc::from(text), answer.read))
}

/// A question for a brief that is under way. Where nobody waits for the answer any more, what it took is accounted for, too: the server
/// worked, and did not tell how much.
struct Asking<'a> {
    app: &'a App,
    ask: &'a Ask<'a>,
    by: (&'a Upstream, &'a str),
    started: Instant,
    answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let answer = summarizer::Answer::broken_off();
            note_summary(self.app, self.ask, self.by, &answer, self.started.elapsed());
        }
    }
}

/// A server and its model as it is told, by the server's own name for it: a client may call it as it likes.
fn who(upstream: &Upstream, model: &str) -> String {
    format!("{}/{}", upstream.name(), upstream.canonical(model))
}

/// Who writes a brief, or why nobody does.
async fn writer<'a>(app: &'a App, ask: &Ask<'a>) -> Result<Writer<'a>, String> {
    let writer = |upstream: &Arc<Upstream>, model, window, options| Writer {
        upstream: Arc::clone(upstream),
        model,
        window,
        options,
        errand: None,
    };
    match ask.summary_model {
        SummaryModel::Own => Ok(writer(ask.upstream, None, ask.window, ask.options)),
        SummaryModel::Other { upstream, model } => {
            let found = app.servers.named(upstream);
            let other = found.ok_or_else(|| format!("there is no upstream `{upstream}` for summary_model"))?;
            let (mut errand, waits) = (None, ask.waited_for.is_some());
            if !waits {
                errand = begin_errand(app, other, model, (Asked::Other, &Arc::default())).await;
            }
            if errand.is_none() && !(waits && moves_nothing(app, other, model, Asked::Other).await) {
                return Err(format!("summary_model {upstream}/{model} {}", why_not(other).await));
            }
            let window = window_of(app, other, model).await;
            let options = ChatOptions { num_ctx: window.set, ..ChatOptions::default() };
            Ok(Writer { errand, ..writer(other, Some(model.as_str()), window.tokens.unwrap_or(ask.window), options) })
        }
        SummaryModel::Embedded => {
            let found = app.servers.all.iter().find_map(|u| Some((u, u.embedded_model()?)));
            let (other, model) = found.ok_or("summary_model is \"embedded\", and windowsill serves no model")?;
            let window = window_of(app, other, model).await.tokens.unwrap_or(ask.window);
            Ok(writer(other, Some(model), window, ChatOptions::default()))
        }
    }
}

/// Whether a model of these would be asked for a brief now that a person waits for. Asks nobody.
pub(in crate::proxy) async fn is_asked(app: &App, own: (&Arc<Upstream>, &str), summary_model: &SummaryModel) -> bool {
    let embedded = || app.servers.all.iter().find_map(|upstream| Some((upstream, upstream.embedded_model()?)));
    let found = match summary_model {
        SummaryModel::Own => Some(own),
        SummaryModel::Other { upstream, model } => app.servers.named(upstream).map(|other| (other, model.as_str())),
        SummaryModel::Embedded => embedded(),
    };
    let Some((upstream, model)) = found else { return false };
    let is_other = matches!(summary_model, SummaryModel::Other { .. });
    if is_other && !moves_nothing(app, upstream, model, Asked::Other).await {
        return false;
    }
    let who = who(upstream, model);
    !app.turn.summarizers.lock().peek(&who).is_some_and(Trial::rests)
}

/// Accounts for an answer of a model that was asked for a brief.
fn note_summary(
    app: &App,
    ask: &Ask<'_>,
    (upstream, name): (&Upstream, &str),
    answer: &summarizer::Answer,
    took: Duration,
) {
    let who = who(upstream, name);
    let mut reported = Reported::default();
    reported.read(&answer.reply);
    app.metrics.spend("summary", &reported);
    app.lives.with(ask.id, |l| {
        l.accounts.spend.add_summary(&reported);
        l.work.spent = reported.prompt.map(|read| (u64::from(read), reported.completion.unwrap_or(0).into()));
        if answer.continued {
            l.prompt.held = reported.prompt.map(|prompt| (prompt, reported.completion));
        }
    });
    let milliseconds = took.as_millis() as u64;
    let mut data = reported.event("summary", (upstream, name), ask.view_tokens, milliseconds);
    data["by"] = json!(who);
    data["how"] = json!(answer.how);
    data["used"] = json!(answer.text.is_some());
    info!(conversation = ask.id, by = %who, how = %answer.how, used = answer.text.is_some(), milliseconds, "summary");
    let event = Event { now_ms: now_ms(), conversation: Some(ask.id.to_owned()), kind: "model_usage".into(), data };
    let batch = Batch { events: vec![event], ..Batch::default() };
    if let Err(e) = app.store.record_later(batch) {
        tracing::debug!(error = %e, "an event was not recorded");
    }
}

/// Says why no model writes briefs of a conversation: once, until it is another reason.
pub(in crate::proxy) fn not_summarized<T>(app: &App, id: &str, because: &str) -> Option<T> {
    let before = app.lives.with(id, |l| l.work.unsummarized.replace(because.to_owned()));
    if before.as_deref() != Some(because) {
        warn!(conversation = id, because, "no summary");
        note_event(app, id, "not_summarized", json!({"because": because}));
    }
    None
}

/// The messages that a fold up to `to` takes in anew, with those that no model has told of yet, and the brief before it.
pub(in crate::proxy) fn folded<'a>(request: &'a Request, old: &View, to: usize) -> (Vec<&'a Message>, Option<String>) {
    let body = &request.conversation.body;
    let fold = old.edits.iter().find_map(|e| match e {
        Edit::Fold { brief, .. } => Some(pinned::without(brief).to_owned()),
        _ => None,
    });
    let from = told(old).min(to);
    let unread = left_out(old);
    let read = (from..to.min(body.len())).filter(|at| !unread.contains(at));
    (read.map(|at| &body[at]).collect(), fold)
}

/// One past the last message that a view folds.
pub(in crate::proxy) fn folded_to(view: &View) -> usize {
    view.edits.iter().find_map(|edit| if let Edit::Fold { to, .. } = edit { Some(*to) } else { None }).unwrap_or(0)
}

/// One past the last message that a model's part of a view's brief tells of; 0 where there is none.
pub(in crate::proxy) fn told(view: &View) -> usize {
    let told = view.edits.iter().find_map(|edit| match edit {
        Edit::Fold { to, brief, .. } => brief::goes_to(pinned::without(brief), *to),
        _ => None,
    });
    told.unwrap_or(0)
}

/// One past the last of `all` messages that a model read, which had the first `read` messages of a view of them.
pub(in crate::proxy) fn reach(view: &[Out], read: usize, all: usize) -> usize {
    match view.get(..read) {
        Some(part) if read < view.len() => part.iter().filter_map(|m| m.at).next_back().map_or(0, |at| at + 1),
        _ => all,
    }
}

/// What a model may read for a brief: the messages of a view without what the client is likely to replace, since the brief stands
/// on when that is gone. A message that holds the last brief stays: where it is replaced, the fold holds no longer anyway.
pub(in crate::proxy) fn readable(mut out: Vec<Out>, view: &View) -> Vec<Out> {
    let unread = left_out(view);
    let is_unread = |m: &&mut Out| m.at.is_some_and(|at| unread.contains(&at));
    for message in out.iter_mut().filter(is_unread) {
        message.bytes = openai_chat::new_message("user", LEFT_OUT);
        message.changed = true;
    }
    out
}

/// The messages of a view that no brief is made from.
pub(in crate::proxy) fn left_out(view: &View) -> Vec<usize> {
    let began = view.edits.iter().find_map(began).unwrap_or(0);
    view.unread().into_iter().filter(|at| *at >= began).collect()
}

/// Where a fold begins.
fn began(edit: &Edit) -> Option<usize> {
    match edit {
        Edit::Fold { from, .. } => Some(*from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_is_foreseen_by_what_replies_took() {
        let sent = Instant::now();
        let after = |seconds: u64| sent + Duration::from_secs(seconds);
        let streamed = Reported { completion: Some(50), spoke: Some(after(20)), ..Reported::default() };
        assert_eq!(speed(&streamed, Some(sent), after(30)), Some(5.0), "reading took twenty seconds");
        let whole = Reported { completion: Some(50), prompt_ms: Some(20_000.0), ..Reported::default() };
        assert_eq!(speed(&whole, Some(sent), after(30)), Some(5.0));
        assert_eq!(speed(&Reported { completion: Some(3), ..whole.clone() }, Some(sent), after(30)), None);
        assert_eq!(
            speed(&Reported { prompt_ms: None, ..whole }, Some(sent), after(30)),
            None,
            "nobody says what reading took"
        );
        let mut trial = Trial::default();
        assert_eq!(trial.foreseen(384), None);
        trial.wrote(5.0);
        assert_eq!(trial.foreseen(500), Some(100.0));
        (0..4).for_each(|_| trial.wrote(40.0));
        assert!(trial.foreseen(500).is_some_and(|seconds| seconds < 14.0), "it is as fast as it was lately");
    }
}
