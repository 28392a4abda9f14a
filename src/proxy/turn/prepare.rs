//! From a request to the bytes that are forwarded, one value after the other: what it stands on ([`Situation`]), what stands
//! before its messages ([`Head`]), what it weighs ([`Measured`]), the plan and its view ([`Planned`]), and the request as it is
//! sent ([`Prepared`]).

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use http::HeaderMap;
use tracing::debug;

use super::admission::advice;
use super::attempt::{Attempt, in_order, layers};
use super::client::{is_whole, outcome};
use super::counted_head::count_brief;
use super::draft::drafted;
use super::drafts::{Draft, Drafted, Settled};
use super::guard::too_small;
use super::head::{Head, head};
use super::history::{History, known};
use super::measured::{Measured, Wishes, measured, told_head, uncounted};
use super::phases::Phases;
use super::prepared::{Client, Made, Past, Prepared, Sending, Told, Wanted, in_proportion};
use super::rules::Ruled;
use super::situation::{Situation, of_request};
use super::stage::Stage;
use super::system::Indexed;
use super::{gauge, retold};
use crate::conversation::edit::{Edit, Rule, View};
use crate::conversation::{Message, Role, Tokens};
use crate::guard::triggers::Pace;
use crate::measure::Sureness;
use crate::plan::{self, Facts, Lines, Plan, Regions, Strategy};
use crate::proxy::state::gauge::{Marks, reasons};
use crate::proxy::state::live::Whole;
use crate::proxy::state::standing;
use crate::proxy::{App, Error};
use crate::recall::missed;
use crate::upstream::{Kind, Upstream};
use crate::wire::openai_chat::Request;

/// Why nothing is rewritten though a line is passed: the same history gets the same bytes.
const SENT_AGAIN: &str = "This history was sent before, and is forwarded as it was: it is rewritten once it goes on.";

/// A plan that fits, with what became of the request.
struct Planned {
    drafted: Drafted,
    /// The client's history, with edits made earlier, and how sure the size of it is.
    before: (Regions, Sureness),
    /// The client's history without any.
    client: Client,
    /// The lines that were looked at.
    lines: Lines,
    /// Seconds that making the view took, with what was made ahead of it.
    seconds: f64,
}

/// Measures, plans and applies.
///
/// # Errors
/// What the client must be told: what the guardrails refuse, or a prompt that cannot be made to fit.
pub(in crate::proxy) async fn prepare(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    mut request: Request,
    from_client: &HeaderMap,
    attempt: Attempt,
) -> Result<Prepared, Error> {
    let began = Instant::now();
    let situation = of_request(app, upstream, &mut request, from_client, attempt).boxed().await?;
    in_situation(app, situation, request, began).await
}

/// Measures, plans and applies, once it is known what a request stands on. `began`: when that was asked.
///
/// # Errors
/// As [`prepare`] has them.
pub(in crate::proxy) async fn in_situation(
    app: &Arc<App>,
    situation: Situation,
    mut request: Request,
    began: Instant,
) -> Result<Prepared, Error> {
    let attempt = situation.attempt;
    let upstream = &situation.upstream;
    if upstream.kind() == Some(Kind::Ollama) {
        request.takes_functions_for_tools();
    }
    let preparing = (attempt == Attempt::First).then(|| app.lives.prepare(situation.id()));
    let is_at = |phase| {
        if !attempt.is_dry() {
            app.lives.is_at(situation.id(), phase);
        }
    };
    is_at("counted");
    Stage::Head.begins(situation.id());
    let mut head = head(app, &situation, &mut request)?;
    // Only now: the record holds the messages as they came, and the next model may take more.
    head.warnings.extend(retold::tell(&mut request, &situation.window.takes));
    Stage::Measured.begins(situation.id());
    let Measured { mut draft, facts, sureness, wishes } = measured(app, &situation, &head, request).boxed().await;
    let counted = began.elapsed();
    Stage::Planned.begins(situation.id());
    is_at("planned");
    let planned = match planned(app, &mut draft, facts, sureness, &head).boxed().await {
        Err(refused) if refused.is_too_long() && attempt == Attempt::First && !sureness.is_exact() => {
            let (facts, sureness) = uncounted(app, &draft, false);
            let planned = planned(app, &mut draft, facts, sureness, &head).boxed().await;
            planned.map_err(|_| refused)?
        }
        planned => planned?,
    };
    let done = outcome(app, &draft, &planned.drafted, &planned.before.0).boxed().await;
    let brief = draft.wrote;
    let mut settled = draft.settled();
    let by_index = head.admitted.is_some();
    settled.warnings.extend(advice(&settled.request, by_index, situation.window.tokens, &planned.drafted.plan));
    settled.warnings.extend(cut(&planned.drafted.view, &settled.request.conversation.body));
    if attempt == Attempt::First {
        settled.warnings.extend(too_small(app, &situation, &settled.request, planned.drafted.tokens)?);
    }
    if !attempt.is_dry() {
        let model = (&situation.key, situation.own.as_deref());
        count_brief(app, upstream, model, &settled.request, &planned.drafted.view).boxed().await;
    }
    let mut prepared = prepared(app, situation, head, wishes, planned, settled);
    prepared.told.client = done;
    // A summary of all is for the client to use or not: until its block comes back, the history stays as it was.
    prepared.made.view_changed &= !is_whole(&prepared);
    let planned = began.elapsed().saturating_sub(counted + brief);
    prepared.sending.phases = Phases { counted, planned, brief, ..Phases::default() };
    prepared.sending.preparing = preparing;
    gauge::settle(&app.measure, &mut prepared, attempt);
    debug!(key = %prepared.key, because = ?prepared.told.because, "prepared");
    Ok(prepared)
}

/// Plans and makes the view. What was counted in its favor before is told of the history as the client sent it.
async fn planned(
    app: &Arc<App>,
    draft: &mut Draft<'_>,
    facts: Facts,
    sureness: Sureness,
    head: &Head,
) -> Result<Planned, Error> {
    let situation = draft.situation;
    let (whole, sizes) = app.lives.with(situation.id(), |live| (live.accounts.whole, live.accounts.sizes));
    // What came behind so many messages, as it is told of each of them.
    let since = |depth: usize| {
        let messages = draft.request.conversation.body.iter().zip(&facts.costs).skip(depth);
        // Without the model's own vocabulary, a plan's costs err high, and these are to be right.
        let size = |(message, cost): (&Message, &plan::Cost)| match situation.own {
            Some(_) => cost.total(),
            None => sizes.message(message).saturating_add(cost.media),
        };
        messages.map(size).fold(0, Tokens::saturating_add)
    };
    let ahead = situation.history.ahead.as_ref().map(|ahead| (ahead, since(ahead.depth)));
    let usual = &situation.policy.policy;
    let is_other = draft.policy != *usual && situation.attempt == Attempt::First;
    // The head is told by its first count, and the lines stand where that leaves them: an estimate of it moves none.
    let (system, tools) = match sureness.is_exact() {
        true => (facts.system, facts.tools),
        false => told_head(app, draft, draft.request.offers(), (facts.system, facts.tools)),
    };
    let lines = (is_other || (system, tools) != (facts.system, facts.tools)).then(|| {
        // What is kept less for the reply to a history that is sent again moves no line of the conversation.
        let configured = app.config.window.output_reserved;
        let facts = Facts { system, tools, ..facts.clone() };
        let usually = plan::output_reserved(facts.window, facts.head(), draft.request.max_tokens, configured);
        Lines::of(&Facts { output_reserved: usually.max(facts.output_reserved), ..facts }, usual)
    });
    let (mut client, counted) = (unchanged(draft, &facts), draft.counted.is_some());
    let is_same = |whole: &Whole| whole.of.is_none_or(|of| of == Whole::model(&situation.key));
    let whole = whole.filter(|whole| whole.messages <= situation.history.forwarded() && is_same(whole));
    let grown = whole.map(|whole| (whole, since(whole.messages)));
    let offered = if draft.request.offers() { tool_of_ours(app, draft) } else { 0 };
    // Only a change of it counts, and an estimate in place of its first count is none.
    let (system, tools) = told_head(app, draft, false, (facts.system, facts.tools.saturating_sub(offered)));
    let started = Instant::now();
    let drafted = drafted(app, draft, facts, sureness, head.tools.as_ref()).boxed().await?;
    let mut seconds = started.elapsed().as_secs_f64();
    let (mut before, mut before_sureness) = (drafted.plan.before, sureness);
    // Before, the tools were not there.
    let sent = head.admitted.as_ref().map(|admitted| admitted.list.sent);
    before.tools = sent.unwrap_or_else(|| before.tools.saturating_sub(drafted.added));
    client.tools = sent.unwrap_or_else(|| client.tools.saturating_sub(offered));
    let indexed = head.indexed.as_ref().map_or(0, Indexed::saved);
    before.system += indexed;
    client.system += indexed;
    if let Some((ahead, since)) = ahead {
        seconds += ahead.seconds;
        // Without it, the prompt would be what was forwarded last and what came since.
        let was = ahead.regions.0;
        before = Regions { history: was.history.saturating_add(since), ..was };
        before_sureness = Sureness::Calibrated;
    }
    let lines = lines.unwrap_or(drafted.plan.lines);
    let head = system.saturating_add(indexed).saturating_add(sent.unwrap_or(tools));
    let client = match grown.filter(|_| !drafted.view.edits.is_empty()) {
        Some((whole, more)) => Client { tokens: whole.grown(head, more), head, goes_on: true },
        None => {
            let as_sent = drafted.view.edits.is_empty() && sent.is_none() && indexed == 0;
            let tokens = match drafted.sureness.is_exact() && !counted {
                // It is forwarded as it is.
                _ if as_sent => drafted.tokens.saturating_sub(drafted.added),
                // What was estimated of it is as far off as what was estimated of the view, which was counted since.
                true => in_proportion(client.prompt(), drafted.tokens, drafted.plan.after.prompt()),
                false => client.prompt(),
            };
            Client { tokens, head, goes_on: false }
        }
    };
    Ok(Planned { drafted, before: (before, before_sureness), client, lines, seconds })
}

/// What the client's history takes, had nothing ever been rewritten in it.
fn unchanged(draft: &Draft<'_>, facts: &Facts) -> Regions {
    let conversation = &draft.request.conversation;
    if facts.view.edits.is_empty() {
        return Regions::of(conversation, facts, &draft.policy);
    }
    let (view, edit_costs) = (View::default(), Vec::new());
    Regions::of(conversation, &Facts { view, edit_costs, told: None, ..facts.clone() }, &draft.policy)
}

/// Tokens of the tool that reads back what left the prompt.
fn tool_of_ours(app: &App, draft: &Draft<'_>) -> Tokens {
    let situation = draft.situation;
    let asks = situation.policy.digest_model.is_some();
    Marks::of_tool(&app.measure, (&situation.key, situation.own.as_deref()), &draft.request, asks)
}

/// The request as it is sent, and all that is told and kept of it.
fn prepared(
    app: &App,
    situation: Situation,
    head: Head,
    wishes: Wishes,
    planned: Planned,
    settled: Settled,
) -> Prepared {
    let actions = actions(&situation, &planned.drafted.plan);
    let is_sent_again = situation.is_sent_again(&settled.request);
    let because = because(&situation, &head, &wishes, &planned);
    let Situation { attempt, window, policy, history, key, own, pace, .. } = situation;
    let Head { tools, admitted, indexed, .. } = head;
    let Wishes { standing, scope, ruled, granted } = wishes;
    let Planned { drafted, before, client, lines, seconds } = planned;
    let Settled { request, at_head, wanted, warnings } = settled;
    let is_fork = history.inherits.is_some();
    let History { chain, located, repeats_a_beginning, id, session, stored, ahead, switched, .. } = history;
    let History { client_marks, respelled, seen, .. } = history;
    let left_out = indexed.iter().filter(|i| i.is_new).flat_map(|i| i.originals.clone());
    let made_ahead = ahead.into_iter().flat_map(|ahead| ahead.originals);
    let before_this = located.as_ref().map_or(chain.len(), |l| l.depth);
    let bare = tools.is_some() && drafted.view.lacks() && !request.offers();
    let view = View { bare, ..drafted.view };
    let missed = match attempt {
        Attempt::First => missed::missed(&request.conversation.body, &stored, before_this),
        Attempt::DryRun | Attempt::Count | Attempt::Emergency { .. } => Vec::new(),
    };
    let standing_new = ruled.is_some().then(|| standing::text(&standing));
    let standing_changed = granted.to_record(&standing, is_fork, folds(&view) != folds(&stored)).or(standing_new);
    let more = made_ahead.chain(granted.originals).chain(left_out);
    let weighed = known(app, &id, &chain, &view, &key);
    let mut waits = waits(&pace, &drafted.plan);
    let folds_by_itself = policy.policy.strategy != Strategy::Off && !wanted.paused;
    if waits.is_empty() && is_sent_again && folds_by_itself && drafted.tokens > lines.fold_at {
        waits.push(SENT_AGAIN.to_owned());
    }
    let was = (view != stored).then(|| stored.mark());
    let (view_changed, view) = (view != stored, View { messages: request.conversation.body.len(), ..view });
    Prepared {
        history: Past {
            seen,
            known: weighed,
            chain,
            located,
            repeats_a_beginning,
            session,
            switched,
            client_marks,
            respelled,
            missed,
        },
        made: Made {
            view,
            view_changed,
            was,
            originals: drafted.originals.into_iter().chain(more).collect(),
            out: drafted.out,
            body: drafted.body,
            tokens: drafted.tokens,
            sureness: drafted.sureness,
            lowered: drafted.lowered,
            before,
            client,
            after: drafted.plan.after,
            lines,
            seconds,
        },
        told: Told { actions, because, waits, warnings, client: None },
        head: Head { tools, at_head, admitted, indexed, warnings: Vec::new() },
        wishes: Wanted { standing, standing_changed, scope, ruled, wanted },
        sending: Sending::default(),
        request,
        id,
        key,
        own,
        window,
        policy,
    }
}

/// That what the client asks now was too long for the window, and what was cut of it.
fn cut(view: &View, body: &[Message]) -> Option<String> {
    let newest = body.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
    let cut = view.edits.iter().filter_map(|edit| match edit {
        Edit::Text { at, rule: Rule::Truncate, record, .. } if *at >= newest => {
            Some(format!("message {at} (whole: windowsill recall {record})"))
        }
        _ => None,
    });
    let all: Vec<String> = cut.collect();
    (!all.is_empty()).then(|| format!("too long for the window, so its middle was cut: {}", all.join(", ")))
}

/// The layers that acted, with those of what was made ahead.
fn actions(situation: &Situation, plan: &Plan) -> Vec<&'static str> {
    let mut out = layers(plan, situation.policy.policy.strategy);
    out.extend(situation.history.ahead.iter().flat_map(|ahead| &ahead.layers));
    in_order(&mut out);
    if let Attempt::Emergency { .. } = situation.attempt {
        out.push("emergency");
    }
    out
}

/// Why the request is sent as it is, in words without message text: the pace, what people asked for, what was made ahead, the
/// plan, and what was done to its head.
fn because(situation: &Situation, head: &Head, wishes: &Wishes, planned: &Planned) -> Vec<String> {
    let plan = &planned.drafted.plan;
    let mut out: Vec<String> = situation.pace.reason(plan).into_iter().collect();
    out.extend(wishes.granted.because.iter().cloned());
    let ahead = situation.history.ahead.as_ref().map(|ahead| &ahead.because);
    out.extend(ahead.and_then(|(due, _)| due.clone()));
    // What was made ahead is told by the prompt that it was made for.
    let all = [ahead.map_or(&[][..], |(_, because)| because), &plan.because].concat();
    let (before, sureness) = planned.before;
    out.extend(reasons(&all, (before.prompt(), !sureness.is_exact()), planned.drafted.tokens));
    out.extend(situation.repaired.iter().cloned());
    out.extend(wishes.ruled.as_ref().map(Ruled::because));
    out.extend(head.admitted.as_ref().map(|a| a.because()));
    out.extend(head.indexed.as_ref().map(Indexed::because));
    out
}

/// Why lines that are passed led to nothing; a pace that waits says so itself.
fn waits(pace: &Pace, plan: &Plan) -> Vec<String> {
    let pace = pace.waits(plan);
    let of_lines = plan.waits.iter().filter(|waiting| pace.is_none() || waiting.rule != "summarize");
    let of_lines: Vec<String> = of_lines.map(ToString::to_string).collect();
    pace.into_iter().chain(of_lines).collect()
}

/// How far the fold of a view reaches.
fn folds(view: &View) -> usize {
    view.edits.iter().find_map(|edit| if let Edit::Fold { to, .. } = edit { Some(*to) } else { None }).unwrap_or(0)
}
