//! What a request weighs, and what people want of its conversation: the facts that it is planned by. A prompt that comes near a
//! line is counted; of any other, what was reported stands and what is new is estimated.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tracing::warn;

use super::admission::cost_of_hidden_calls;
use super::attempt::{Attempt, bytes_of};
use super::counted_calls::learned_of_calls;
use super::counted_head::counted_head;
use super::draft::shares;
use super::drafts::Draft;
use super::head::Head;
use super::history::known;
use super::rules::{Ruled, put_rules, scope};
use super::situation::Situation;
use super::steering::{Granted, grant};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Tokens};
use crate::measure::count::Counted;
use crate::measure::{self, Sureness, spread, tokens};
use crate::plan::rewrite;
use crate::plan::{self, Facts, Lines, Policy, Regions, emergency};
use crate::proxy::App;
use crate::proxy::state::gauge::Marks;
use crate::proxy::state::scope::Scope;
use crate::proxy::state::standing::{Held, Standing, held, standing_of};
use crate::proxy::turn::drafts::exact;
use crate::remind;
use crate::wire::openai_chat::Request;

/// Share of the first line from which a prompt is counted instead of estimated.
const COUNT_FROM: f64 = 0.9;

/// The longest request that is counted with the model's own vocabulary far from any line, too (bytes): some milliseconds. Of a
/// longer one, what was reported of its beginning is kept, and what is new is estimated.
const COUNTED_ANYWAY: usize = 16 * 1024;

/// About the bytes of a message around its text.
const AROUND: usize = 64;

/// The longest request of which each message is counted where it comes near a line (bytes): some milliseconds. A person who
/// asks for the regions gets them whatever it takes.
const SHARED_OUT: usize = 512 * 1024;

/// Takes the estimate of a history that was sent before just under the limit, whatever is rounded up.
const SENT_BEFORE: f64 = 0.97;

/// A request that was measured.
pub(in crate::proxy) struct Measured<'a> {
    /// What it is planned from.
    pub(in crate::proxy) draft: Draft<'a>,
    pub(in crate::proxy) facts: Facts,
    /// How sure these are.
    pub(in crate::proxy) sureness: Sureness,
    pub(in crate::proxy) wishes: Wishes,
}

/// What people want of the conversation of a request.
pub(in crate::proxy) struct Wishes {
    pub(in crate::proxy) standing: Arc<Standing>,
    /// Whose rules the conversation gets, where rules are on.
    pub(in crate::proxy) scope: Option<Scope>,
    /// The rules that it begins with.
    pub(in crate::proxy) ruled: Option<Ruled>,
    /// The changes that waited for a break and are made with this request.
    pub(in crate::proxy) granted: Granted,
}

/// Measures a request as it would be sent: with the rules that it begins with, and with the changes that waited for a break.
pub(in crate::proxy) async fn measured<'a>(
    app: &App,
    situation: &'a Situation,
    head: &Head,
    request: Request,
) -> Measured<'a> {
    let mut warnings = [&situation.warnings[..], &head.warnings].concat();
    let (mut standing, wanted) = wanted(app, situation, &request, &mut warnings);
    let focus = standing.focus().map(str::to_owned);
    let mut draft = Draft {
        situation,
        policy: situation.pace.policy(&situation.policy.policy),
        old: situation.history.old().clone(),
        counted: None,
        held: request.without_messages(),
        request: Arc::new(request),
        warnings,
        written: None,
        wrote: std::time::Duration::ZERO,
        digests: None,
        at_head: head.at_head,
        wanted,
        focus,
    };
    if let Attempt::Emergency { .. } = situation.attempt {
        remind::take_back(&mut draft.old, &draft.request.conversation.body);
    }
    let (mut facts, mut sureness) = counted_facts(app, &mut draft).boxed().await;
    let scope = scope(app, &draft, &situation.from_client);
    let ruled = scope.as_ref().and_then(|scope| put_rules(app, &mut draft, &facts, scope, &mut standing));
    if ruled.is_some() {
        (facts, sureness) = counted_facts(app, &mut draft).boxed().await;
    }
    let mut granted = Granted::default();
    let breaks = || {
        let rewrites = || plan::asked::breaks(&draft.request.conversation, &facts, &draft.policy);
        situation.attempt == Attempt::First && (situation.history.ahead.is_some() || rewrites())
    };
    if let Some((view, made)) = grant(app, &draft.subject(), &standing, breaks) {
        (draft.old, granted) = (view, made);
        (facts, sureness) = counted_facts(app, &mut draft).boxed().await;
    }
    Measured { draft, facts, sureness, wishes: Wishes { standing, scope, ruled, granted } }
}

/// What is wanted of the conversation of a request, and what that means for its history. What cannot be read is no reason
/// to refuse the request.
pub(in crate::proxy) fn wanted(
    app: &App,
    situation: &Situation,
    request: &Request,
    warnings: &mut Vec<String>,
) -> (Arc<Standing>, Held) {
    let Situation { history, key, policy, .. } = situation;
    let standing = standing_of(app, &history.id, history.inherits.as_deref()).unwrap_or_else(|e| {
        tracing::warn!(conversation = %history.id, error = %e, "what is pinned cannot be read");
        warnings.push("what is pinned could not be read".into());
        Arc::default()
    });
    let held = held(app, key, &standing, &policy.pins, &request.conversation.body, situation.known_window());
    warnings.extend(held.warning());
    (standing, held)
}

/// The facts, with the prompt counted where it comes near a line.
async fn counted_facts(app: &App, draft: &mut Draft<'_>) -> (Facts, Sureness) {
    let situation = draft.situation;
    let (mut facts, sureness) = uncounted(app, draft, true);
    if let Attempt::Emergency { refusal, counted } = situation.attempt {
        draft.policy = emergency::policy(&draft.policy, facts.window, refusal);
        return (emergency::facts(&facts, counted, refusal), sureness);
    }
    let again = situation.is_sent_again(&draft.request);
    // A history that is sent again is counted where it was the first time, so that it is told by the same numbers.
    let lines = Lines::of(&facts, &draft.policy);
    if again {
        draft.policy = short_of_the_wall(&draft.policy);
    }
    let estimate = draft.sum(&facts);
    let depends = matters(draft, &lines, estimate);
    if !situation.can_count() || !depends && !has_new_head(app, draft) && !has_new_view(app, draft) {
        if again && !situation.can_count() {
            draft.keep_what_fit(&mut facts);
        }
        return (facts, sureness);
    }
    let out = rewrite::rewrite(&draft.request.conversation, &draft.old, &draft.policy.template);
    let body = bytes_of(&draft.request, &out);
    match exact(draft, &body).await {
        Ok(counted) => {
            if learned_of_calls(app, draft).await {
                (facts, _) = uncounted(app, draft, true);
            }
            let by_message = is_near(draft, &lines, counted.0) || has_new_head(app, draft);
            let wanted = situation.attempt.is_dry() || by_message && body.len() <= SHARED_OUT;
            let shared_out = match (wanted, situation.own.is_some()) {
                (true, true) => shares(app, draft, &out, &body).await,
                (_, false) => counted_head(app, draft, &out, counted.0).await.map(|head| (head, Vec::new())),
                _ => None,
            };
            spread(app, draft, &mut facts, counted, shared_out);
            (facts, counted.1)
        }
        // What is told would have been closer; nothing is decided by it.
        Err(_) if !depends && !again => (facts, sureness),
        Err(e) => {
            not_counted(draft, &mut facts, sureness, &e);
            if again {
                draft.keep_what_fit(&mut facts);
            }
            (facts, sureness)
        }
    }
}

/// Whether system prompt and tools can be counted, and never were: their first count is told with every prompt that has them, and
/// should be right. An estimate of tools may be off by half, and by all of it where a template leaves them out.
fn has_new_head(app: &App, draft: &Draft<'_>) -> bool {
    let Draft { situation, request, old, .. } = draft;
    if !situation.can_count() || request.body.len() > SHARED_OUT {
        return false;
    }
    let tool = (request.offers(), situation.policy.digest_model.is_some());
    let by = (&situation.key, situation.own.as_deref());
    let kept = Marks::of(&app.measure, by, request, old, tool).kept(&app.measure);
    kept.system.is_none() || kept.tools.is_none()
}

/// Whether nobody has told yet what a prompt takes in this view, and it is short: a person changed it, or it was made between requests.
/// What it would be estimated at by the prompts before it, which were several times as long, may be off by a third.
fn has_new_view(app: &App, draft: &Draft<'_>) -> bool {
    let Situation { history, key, .. } = draft.situation;
    let is_told = || known(app, &history.id, &history.chain, &draft.old, key).is_some();
    !draft.old.edits.is_empty() && length(draft) <= COUNTED_ANYWAY && !is_told()
}

/// The facts without a count of the prompt that is planned; `reported`: with what replies told of such prompts. Nothing is
/// refused for a size that replies alone told.
pub(in crate::proxy) fn uncounted(app: &App, draft: &Draft<'_>, reported: bool) -> (Facts, Sureness) {
    let Draft { situation, request, old, .. } = draft;
    let conversation = &request.conversation;
    let (history, key) = (&situation.history, &situation.key);
    let most = tokens::upper_bound(request.body.len(), conversation);
    let known = known(app, &history.id, &history.chain, old, key);
    let known = known.filter(|known| reported && measure::can_be_of(known.tokens, most));
    let mut facts = match reported {
        true => app.measure.facts(key, conversation, old, known),
        false => app.measure.unreported(key, conversation, old),
    };
    facts.window = situation.known_window();
    if reported && known.is_none() {
        // What was counted of them once is better than an estimate, which may be several times too high.
        (facts.system, facts.tools) = told_head(app, draft, request.offers(), (facts.system, facts.tools));
    }
    cost_of_hidden_calls(app, conversation, &mut facts, known.is_some());
    let configured = app.config.window.output_reserved;
    facts.output_reserved = plan::output_reserved(facts.window, facts.head(), request.max_tokens, configured);
    facts.forwarded = history.forwarded();
    draft.wanted.tell(&mut facts);
    let mut sureness = app.measure.sureness(key);
    if known.is_some() && sureness == Sureness::Estimated {
        sureness = Sureness::Calibrated;
    }
    let can_count = situation.can_count();
    facts.slack = measure::slack(facts.window, if can_count { Sureness::Counted } else { sureness });
    facts.counting.guessed = !can_count && sureness == Sureness::Estimated;
    (facts, sureness)
}

/// System prompt and tools as they were counted first, with the tool of ours or without it; where that is not known, as they are planned.
pub(super) fn told_head(
    app: &App,
    draft: &Draft<'_>,
    with_ours: bool,
    (system, tools): (Tokens, Tokens),
) -> (Tokens, Tokens) {
    let Draft { situation, request, old, .. } = draft;
    let tool = (with_ours, situation.policy.digest_model.is_some());
    let by = (&situation.key, situation.own.as_deref());
    let kept = Marks::of(&app.measure, by, request, old, tool).kept(&app.measure);
    (kept.system.unwrap_or(system), kept.tools.unwrap_or(tools))
}

/// Has the costs follow a count, so that lines are compared with what the server will see. `shared_out`: what parts of it were
/// counted to be, and which of the client's messages each of them is.
fn spread(
    app: &App,
    draft: &mut Draft<'_>,
    facts: &mut Facts,
    (exact, counted_by): (Tokens, Sureness),
    shared_out: Option<(Counted, Vec<Option<usize>>)>,
) {
    let (counted, places) = shared_out.map_or((None, Vec::new()), |(c, p)| (Some(c), p));
    if let Some(counted) = counted.as_ref().filter(|_| !draft.situation.attempt.is_dry()) {
        let asks = draft.situation.policy.digest_model.is_some();
        let (key, own) = (&draft.situation.key, draft.situation.own.as_deref());
        let tool = (draft.request.offers(), asks);
        let head = Regions { system: counted.system, tools: counted.tools, ..Regions::default() };
        Marks::of(&app.measure, (key, own), &draft.request, &View::default(), tool).note(&app.measure, &head);
    }
    let sum = |f: &Facts| draft.sum(f);
    spread::spread(facts, counted.as_ref(), &places, exact, &sum);
    if counted.is_some() {
        // What a client may get for its reply is a share of what system prompt and tools really leave.
        let (asked, configured) = (draft.request.max_tokens, app.config.window.output_reserved);
        let reserve = plan::output_reserved(facts.window, facts.head(), asked, configured);
        facts.output_reserved = facts.output_reserved.min(reserve);
    }
    let prompt = exact.max(sum(facts));
    draft.counted = Some((exact, counted_by));
    if draft.situation.is_sent_again(&draft.request) {
        reserve_as_before(facts, prompt);
    }
}

impl Draft<'_> {
    /// Has a history that was sent before fit by its estimate, too: estimates only change as more is learned. Should the
    /// window be another now, the server will say so.
    fn keep_what_fit(&self, facts: &mut Facts) {
        let estimate = self.sum(facts);
        reserve_as_before(facts, estimate);
        let limit = Lines::of(facts, &self.policy).limit;
        if estimate > limit && estimate / 2 <= limit {
            emergency::scale(facts, f64::from(limit) / f64::from(estimate) * SENT_BEFORE);
        }
    }

    /// Prompt tokens by the costs of its facts, before anything is changed.
    fn sum(&self, facts: &Facts) -> Tokens {
        Regions::of(&self.request.conversation, facts, &self.policy).prompt()
    }
}

/// Keeps no more for the reply than a prompt leaves that was sent before: it may have been sent with less.
fn reserve_as_before(facts: &mut Facts, prompt: Tokens) {
    let room = facts.window.saturating_sub(prompt).saturating_sub(facts.slack);
    if room >= plan::least_reserve(facts.window) {
        facts.output_reserved = facts.output_reserved.min(room);
    }
}

/// Whether a prompt comes near the first line, ours or the client's.
fn is_near(draft: &Draft<'_>, lines: &Lines, prompt: Tokens) -> bool {
    let first = draft.policy.client.first_line().unwrap_or(lines.clear_at).min(lines.clear_at);
    f64::from(prompt) > f64::from(first) * COUNT_FROM
}

/// Whether a decision depends on the count of a prompt.
fn matters(draft: &Draft<'_>, lines: &Lines, estimate: Tokens) -> bool {
    let Draft { situation, request, .. } = draft;
    // By the model's own vocabulary a short one costs little; and who asks for a count wants one.
    let is_cheap = situation.own.is_some() && (request.body.len() <= COUNTED_ANYWAY || length(draft) <= COUNTED_ANYWAY);
    if is_cheap || situation.attempt.is_dry() {
        return true;
    }
    // Where not even one token a byte comes near a line, nothing needs counting.
    let bound = tokens::upper_bound(request.body.len(), &request.conversation);
    bound.is_none_or(|most| is_near(draft, lines, most)) && is_near(draft, lines, estimate)
}

/// About the bytes of a request as its view has it: of a long history that was folded, little may be left.
fn length(draft: &Draft<'_>) -> usize {
    let Conversation { system, body, .. } = &draft.request.conversation;
    let mut sizes: Vec<usize> = body.iter().map(|message| message.raw.len()).collect();
    let mut more = draft.held.body.len() + system.iter().map(|message| message.raw.len()).sum::<usize>();
    for edit in &draft.old.edits {
        match edit {
            Edit::Fold { from, to, brief, keep, .. } => {
                let folded = (*from..(*to).min(sizes.len())).filter(|at| !keep.contains(at));
                folded.for_each(|at| sizes[at] = 0);
                more += brief.len();
            }
            Edit::Text { at, text, .. } => {
                sizes.get_mut(*at).into_iter().for_each(|size| *size = (*size).min(text.len() + AROUND));
            }
            Edit::Recalled { text, .. } => more += text.len(),
            Edit::Arguments { .. } => {}
        }
    }
    more + sizes.iter().sum::<usize>()
}

/// Goes on with the estimate where the server could not count.
fn not_counted(draft: &mut Draft<'_>, facts: &mut Facts, sureness: Sureness, e: &crate::upstream::Error) {
    warn!(upstream = draft.situation.upstream.name(), error = %e, "the server could not count the prompt; estimating");
    draft.warnings.push("the prompt could not be counted, only estimated".into());
    facts.slack = measure::slack(facts.window, sureness);
    facts.counting.guessed = sureness == Sureness::Estimated;
    if matches!(e, crate::upstream::Error::Status { .. }) {
        // It will not take the request as it is: pictures for a model that cannot see. What media cost is then only a guess,
        // and nothing is cut for a guess; the server's own words on it reach the client.
        facts.costs.iter_mut().for_each(|cost| cost.media = 0);
    }
}

/// The policy for a history that was forwarded before: the same history gives the same bytes, unless they no longer fit.
fn short_of_the_wall(policy: &Policy) -> Policy {
    Policy { clear_at: 1.0, summarize_at: 1.0, ..policy.clone() }
}
