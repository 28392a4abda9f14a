//! What the planner asks for until a prompt fits ([`crate::plan::fit`]): views are made, models are asked for what they write, and
//! what would be sent is counted.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tracing::{debug, warn};

use super::attempt::{Attempt, bytes_of};
use super::brief::{brief_at_hand, not_summarized, written};
use super::digest::digests;
use super::drafts::{Draft, Drafted};
use super::guard::noted;
use super::remind;
use crate::apply::{Applied, Words};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Tokens};
use crate::measure::count::Counted;
use crate::measure::{Sureness, own, tokens};
use crate::plan::fit::{CannotFit, Fitting, Ours};
use crate::plan::rewrite::{self, Out};
use crate::plan::{Action, Facts, Plan, Regions, Strategy};
use crate::proxy::state::gauge::{Marks, UNKNOWN_WINDOW};
use crate::proxy::state::live::Brief;
use crate::proxy::state::view::{Subject, make_view};
use crate::proxy::turn::drafts::exact;
use crate::proxy::{App, Error};
use crate::wire::json;
use crate::wire::openai_chat::{self, Request};

/// The tools of ours that a request has, or may get. `tools`: the client's with the one that reads back what left the prompt.
fn ours(app: &App, draft: &Draft<'_>, tools: Option<&Bytes>) -> Ours {
    let offered = draft.request.offers();
    let (may_come, asks) = (tools.is_some() && !offered, draft.situation.policy.digest_model.is_some());
    let key = (&draft.situation.key, draft.situation.own.as_deref());
    Ours {
        recall: if offered || may_come { Marks::of_tool(&app.measure, key, &draft.request, asks) } else { 0 },
        offered,
        may_come,
        at_head: draft.at_head.definitions().map(|ours| text_cost(app, draft, ours)).sum(),
    }
}

/// Plans, makes and counts until the view fits what is counted.
pub(in crate::proxy) async fn drafted(
    app: &Arc<App>,
    draft: &mut Draft<'_>,
    facts: Facts,
    sureness: Sureness,
    tools: Option<&Bytes>,
) -> Result<Drafted, Error> {
    let (request, policy, window) = (Arc::clone(&draft.request), draft.policy.clone(), facts.window);
    let conversation = &request.conversation;
    let began = ours(app, draft, tools);
    let mut fitting = Fitting::new(conversation, facts, &policy, app.config.window.output_reserved, began);
    let start = Start { began, counted: draft.counted, sureness, tools };
    if let Some(made) = fitted(app, draft, &mut fitting, start).await? {
        let made = recalled(app, draft, &fitting, start, made).boxed().await;
        return Ok(with_reply_room(app, draft, window, made).await);
    }
    match fitting.end() {
        Ok(made) => Ok(with_reply_room(app, draft, window, made.what).await),
        Err(CannotFit { after, limit }) => Err(cannot_fit(app, draft, window, &after, limit)),
    }
}

/// What planning starts from.
#[derive(Clone, Copy)]
struct Start<'a> {
    /// The tools of ours that are there.
    began: Ours,
    /// What was counted before anything was planned.
    counted: Option<(Tokens, Sureness)>,
    sureness: Sureness,
    tools: Option<&'a Bytes>,
}

/// The first view that fits, of those that are planned one after the other.
async fn fitted(
    app: &Arc<App>,
    draft: &mut Draft<'_>,
    fitting: &mut Fitting<'_, Drafted>,
    start: Start<'_>,
) -> Result<Option<Drafted>, Error> {
    let Start { began, counted, sureness, tools } = start;
    let (request, policy) = (Arc::clone(&draft.request), draft.policy.clone());
    let (conversation, window) = (&request.conversation, fitting.facts().window);
    while let Some(plan) = next(fitting, draft) {
        let ours = fitting.ours();
        draft.go_with(ours, tools);
        if draft.situation.attempt == Attempt::First {
            let asked = std::time::Instant::now();
            app.lives.is_at(draft.situation.id(), "brief");
            ask_models(app, draft, &plan, window).boxed().await;
            app.lives.is_at(draft.situation.id(), "planned");
            draft.wrote += asked.elapsed();
        }
        let Applied { view, originals } = applied(app, draft, fitting.facts(), &plan)?;
        let out = rewrite::rewrite(conversation, &view, &policy.template);
        let body = bytes_of(&draft.request, &out);
        draft.counted = counted_with(counted, began, ours);
        let (tokens, sureness) = match recount(app, draft, &plan, &body).await {
            Some(exact) => exact,
            None => (estimated(app, draft, fitting.facts(), &view, conversation, &plan), sureness),
        };
        let doubt = match sureness {
            Sureness::OwnUnchecked(_) => own::doubt(out.len(), window, draft.request.conversation.tools.is_some()),
            _ => 0,
        };
        // What a server refused was counted before, too.
        let refused = matches!(draft.situation.attempt, Attempt::Emergency { .. });
        fitting.doubts(doubt, refused || !sureness.is_exact());
        debug!(tokens, planned = plan.after.prompt(), "made a view");
        let added = ours.tokens().saturating_sub(if began.offered { began.recall } else { 0 });
        let made = Drafted { view, originals, out, body, tokens, sureness, added, plan: plan.clone(), lowered: None };
        if let Some(made) = fitting.made(plan, tokens, made) {
            return Ok(Some(made.what));
        }
    }
    Ok(None)
}

/// A view with what comes back behind its last message, if anything. Where a person asks and that has no room, a fold comes before
/// its time: it is due within the next steps anyway, and what answers is not left out for want of some hundred tokens.
async fn recalled(
    app: &Arc<App>,
    draft: &mut Draft<'_>,
    fitting: &Fitting<'_, Drafted>,
    start: Start<'_>,
    made: Drafted,
) -> Drafted {
    let limit = fitting.limit();
    let Some(asked) = remind::asked(app, draft, &made) else { return made };
    let Some(whole) = remind::block_of(app, draft, Tokens::MAX, &made, &asked) else { return made };
    let free = limit.saturating_sub(made.tokens);
    let wanted = remind::cost(app, draft, &whole.text);
    if wanted <= free {
        return remind::reminded(app, draft, limit, made, Some(whole)).await;
    }
    let (request, policy) = (Arc::clone(&draft.request), draft.policy.clone());
    let facts = Facts { foreseen: wanted, ..fitting.facts().clone() };
    let (reserve, reserved) = (app.config.window.output_reserved, facts.output_reserved);
    let mut again = Fitting::new(&request.conversation, facts, &policy, reserve, fitting.ours());
    let folds = |early: &Plan| early.actions.iter().any(|action| matches!(action, Action::Fold { .. }));
    let may_fold =
        asked.is_persons() && again.first_plan().is_some_and(|early| early.fits && !early.hard && folds(early));
    if may_fold && again.facts().output_reserved == reserved {
        let kept = (draft.at_head, draft.counted);
        if let Ok(Some(made)) = fitted(app, draft, &mut again, start).await {
            let limit = again.limit();
            let block = remind::block_of(app, draft, limit.saturating_sub(made.tokens), &made, &asked);
            if block.is_some() {
                return remind::reminded(app, draft, limit, made, block).await;
            }
        }
        (draft.at_head, draft.counted) = kept;
        draft.request = request;
    }
    let block = remind::block_of(app, draft, free, &made, &asked);
    remind::reminded(app, draft, limit, made, block).await
}

/// Asks for no longer a reply than there is room for.
async fn with_reply_room(app: &App, draft: &Draft<'_>, window: Tokens, made: Drafted) -> Drafted {
    if window >= UNKNOWN_WINDOW {
        return made;
    }
    let mut room = window.saturating_sub(made.tokens);
    if draft.request.max_tokens.is_some_and(|asked| asked > room) && !made.sureness.is_exact() {
        // An estimate changes as more is learned; the same history must give the same bytes.
        room = counted_room(app, draft, &made.body, window).await.unwrap_or(room);
    }
    let asked = draft.request.max_tokens.filter(|asked| *asked > room);
    let lowered = asked.map(|asked| (asked, room.max(1)));
    Drafted { lowered, body: lower_max_tokens(&draft.request, made.body, room), ..made }
}

/// Asks for what other models write for a plan: once, however often the request is planned.
async fn ask_models(app: &Arc<App>, draft: &mut Draft<'_>, plan: &Plan, window: Tokens) {
    let situation = draft.situation;
    let asks = plan.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. }));
    if !asks {
        // The client goes first; what was begun for later is begun again behind this reply.
        app.lives.stop_making(situation.id());
        let folds = plan.actions.iter().any(|a| matches!(a, Action::Fold { .. }));
        if let Some(why) = plan.lines.no_summary().filter(|_| folds && draft.policy.strategy == Strategy::Summarize) {
            not_summarized::<()>(app, situation.id(), &why);
        }
        // What is there costs nothing, however little there is to fold.
        if folds && draft.written.is_none() {
            let body = &draft.request.conversation.body;
            let ready = brief_at_hand(app, situation.id(), &situation.history.chain, body, &draft.old);
            draft.written = ready.map(Some);
        }
    } else if draft.written.is_none() {
        draft.written = Some(written(app, draft, plan, window).await);
    }
    if draft.digests.is_none() {
        draft.digests = digests(app, draft, plan).await;
    }
}

/// The view that a plan makes, with what was written for it.
fn applied(app: &App, draft: &Draft<'_>, facts: &Facts, plan: &Plan) -> Result<Applied, Error> {
    let mut applied = material(app, draft, facts, plan)?;
    if let Some(note) = &draft.situation.note {
        noted(app, draft.situation.id(), &draft.request.conversation, note, &mut applied)?;
    }
    Ok(applied)
}

fn material(app: &App, draft: &Draft<'_>, facts: &Facts, plan: &Plan) -> Result<Applied, Error> {
    if plan.actions.is_empty() {
        return Ok(Applied { view: draft.old.clone(), originals: Vec::new() });
    }
    let policy = &draft.situation.policy;
    let written = draft.written.as_ref().and_then(Option::as_ref);
    let words = Words {
        pins: &draft.wanted.texts,
        written: written.map(Brief::written),
        focus: draft.focus.as_deref().or(policy.focus.as_deref()),
        keep: policy.keep,
        digests: draft.digests.as_ref(),
    };
    Ok(make_view(app, &Subject { counting: facts.counting, ..draft.subject() }, plan, words)?)
}

/// The room that a prompt leaves, by the server's own count, where it can count.
async fn counted_room(_app: &App, draft: &Draft<'_>, body: &Bytes, window: Tokens) -> Option<Tokens> {
    if !draft.situation.can_count() || window >= UNKNOWN_WINDOW {
        return None;
    }
    Some(window.saturating_sub(exact(draft, body).await.ok()?.0))
}

fn cannot_fit(_app: &App, draft: &Draft<'_>, window: Tokens, after: &Regions, limit: Tokens) -> Error {
    let source = &draft.situation.window.source;
    let error = Error::cannot_fit(&draft.request.model, window, source, after, limit);
    match draft.wanted.paused {
        true => error.with_hint(
            "somebody stopped the rewriting of this conversation: take it up again on the page, or with `windowsill unpause ID`",
        ),
        false => error,
    }
}

/// The shares of the messages of a view by the model's own vocabulary, where it is here, and which of the client's
/// messages each is, if it is one as it came.
pub(in crate::proxy) async fn shares(
    app: &App,
    draft: &Draft<'_>,
    out: &[Out],
    body: &Bytes,
) -> Option<(Counted, Vec<Option<usize>>)> {
    let own = draft.situation.own.as_ref()?;
    let conversation = &draft.request.conversation;
    let view = openai_chat::parse(body).ok()?.conversation;
    if view.system.len() != conversation.system.len() || view.system.len() + view.body.len() != out.len() {
        return None;
    }
    let as_it_came = |o: &Out| o.at.filter(|at| conversation.body.get(*at).is_some_and(|m| *m.bytes() == o.bytes));
    let places = out[view.system.len()..].iter().map(as_it_came).collect();
    let counted = own.shares(&draft.situation.upstream, body).await?;
    let is_silent = app.measure.writes_calls(&draft.situation.key) == Some(false);
    Some((if is_silent { counted.without_calls() } else { counted }, places))
}

/// Tokens of what an edit put in place.
fn edit_cost(app: &App, draft: &Draft<'_>, edit: &Edit) -> Tokens {
    let (Edit::Text { text, .. }
    | Edit::Recalled { text, .. }
    | Edit::Arguments { arguments: text, .. }
    | Edit::Fold { brief: text, .. }) = edit;
    if matches!(edit, Edit::Arguments { .. }) && app.measure.writes_calls(&draft.situation.key) == Some(false) {
        return 0;
    }
    tokens::AROUND + text_cost(app, draft, text)
}

/// Tokens of a text: by the model's own vocabulary, where it is here and the text is not so long that this would hold
/// others up.
fn text_cost(app: &App, draft: &Draft<'_>, text: &str) -> Tokens {
    app.measure.text(&draft.situation.key, draft.situation.own.as_deref(), text)
}

/// The exact size of what would be sent, where it matters and can be told.
async fn recount(_app: &App, draft: &Draft<'_>, plan: &Plan, body: &Bytes) -> Option<(Tokens, Sureness)> {
    if !draft.situation.can_count() {
        return None;
    }
    if plan.actions.is_empty() {
        // Counted a moment ago, or far from any line. The plan's own sum is that of figures rounded up one by one.
        return draft.counted;
    }
    exact(draft, body).await.ok()
}

/// The size of a view where it cannot be counted: the plan's figures with the material that was really made.
fn estimated(
    app: &App,
    draft: &Draft<'_>,
    facts: &Facts,
    view: &View,
    conversation: &Conversation,
    plan: &Plan,
) -> Tokens {
    if plan.actions.is_empty() {
        return plan.after.prompt();
    }
    let mut made = facts.clone();
    let cost = |edit: &Edit| match &draft.situation.own {
        Some(_) => edit_cost(app, draft, edit),
        None => app.measure.edit_cost(&draft.situation.key, conversation, edit),
    };
    made.edit_costs = view.edits.iter().map(|edit| facts.counting.scaled(cost(edit))).collect();
    made.view = view.clone();
    Regions::of(conversation, &made, &draft.policy).prompt()
}

/// The next plan. Should a pure room panic, the request goes on with what is certain: nothing is changed.
fn next<M>(fitting: &mut Fitting<'_, M>, draft: &mut Draft<'_>) -> Option<Plan> {
    let act = std::panic::AssertUnwindSafe(|| fitting.next_plan());
    std::panic::catch_unwind(act).unwrap_or_else(|_| {
        warn!(conversation = draft.situation.id(), "planning failed; the request goes on unchanged");
        draft.warnings.push("planning failed; nothing was rewritten".into());
        Some(fitting.unchanged())
    })
}

/// What was counted before anything was planned, with the tools of ours that it goes with now.
fn counted_with(counted: Option<(Tokens, Sureness)>, began: Ours, now: Ours) -> Option<(Tokens, Sureness)> {
    let (tokens, sureness) = counted?;
    match (began.offered, now.offered) {
        _ if now.at_head != began.at_head => None,
        (true, false) => None,
        (false, true) => Some((tokens.saturating_add(now.recall), sureness)),
        _ => Some((tokens, sureness)),
    }
}

/// `max_tokens` larger than the room left is lowered to it.
fn lower_max_tokens(request: &Request, body: Bytes, room: Tokens) -> Bytes {
    if request.max_tokens.is_none_or(|asked| asked <= room) {
        return body;
    }
    let text = String::from_utf8_lossy(&body);
    let Ok(fields) = json::Fields::read(&text) else { return body };
    let lowered = room.max(1).to_string();
    let keys = ["max_tokens", "max_completion_tokens", "n_predict"];
    let changes: Vec<(&str, Option<&str>)> = keys
        .into_iter()
        .filter(|k| fields.get(k).and_then(|v| v.parse::<f64>().ok()).is_some_and(|n| n > f64::from(room)))
        .map(|k| (k, Some(lowered.as_str())))
        .collect();
    json::with_fields(&text, &changes).unwrap_or_else(|_| body.clone())
}
