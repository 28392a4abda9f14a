//! A plan until it fits: what is to be sent is made and counted, and planned again from the same start where it came out
//! longer than planned.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tracing::{debug, warn};

use super::prepare::{Attempt, UNKNOWN_WINDOW, bytes_of};
use super::recall::rewrites;
use super::remind;
use super::situation::Situation;
use crate::apply::{Applied, Words};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Tokens};
use crate::measure::count::Counted;
use crate::measure::{self, Sureness, tokens};
use crate::plan::rewrite::{self, Out};
use crate::plan::{self, Action, Facts, Plan, Policy, Regions, Strategy};
use crate::proxy::live::Brief;
use crate::proxy::standing::Held;
use crate::proxy::view::Subject;
use crate::proxy::{App, Error};
use crate::recall;
use crate::store::Original;
use crate::wire::json;
use crate::wire::openai_chat::{self, Request};

/// How often a plan is made anew because a count was higher than estimated.
const PLANS: usize = 4;

/// What planning goes on with.
pub(in crate::proxy) struct Draft<'a> {
    pub(in crate::proxy) situation: &'a Situation<'a>,
    pub(in crate::proxy) request: Arc<Request>,
    /// The same with the tools that the last prompt had, and without its messages.
    pub(in crate::proxy) held: Request,
    /// The policy that is planned by: the request's, or a milder or harder one.
    pub(in crate::proxy) policy: Policy,
    pub(in crate::proxy) old: View,
    /// What was counted before anything was planned.
    pub(in crate::proxy) counted: Option<(Tokens, Sureness)>,
    pub(in crate::proxy) warnings: Vec<String>,
    /// What a model wrote for the fold, if anything, once one was asked.
    pub(in crate::proxy) written: Option<Option<Brief>>,
    /// Digests by message, once they were asked for.
    pub(in crate::proxy) digests: Option<HashMap<usize, String>>,
    /// Whether the model has the tool that says that a task is done.
    pub(in crate::proxy) done: bool,
    /// What people want of the conversation.
    pub(in crate::proxy) wanted: Held,
    /// What the next brief is to keep above all.
    pub(in crate::proxy) focus: Option<String>,
}

impl Draft<'_> {
    /// For whoever changes the view.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        Subject {
            conversation: &self.request.conversation,
            id: self.situation.id(),
            key: &self.situation.key,
            own: self.situation.own.as_deref(),
            old: &self.old,
        }
    }

    /// What became of the request.
    pub(in crate::proxy) fn settled(self) -> Settled {
        let Draft { request, held, done, wanted, warnings, .. } = self;
        // It shares the request's parts, which then need not be copied.
        drop(held);
        Settled { request: Arc::unwrap_or_clone(request), done, wanted, warnings }
    }
}

/// What became of a request once it was planned.
pub(in crate::proxy) struct Settled {
    pub(in crate::proxy) request: Request,
    pub(in crate::proxy) done: bool,
    pub(in crate::proxy) wanted: Held,
    pub(in crate::proxy) warnings: Vec<String>,
}

/// A view that was drafted, with its bytes and size.
pub(in crate::proxy) struct Drafted {
    pub(in crate::proxy) view: View,
    pub(in crate::proxy) originals: Vec<Original>,
    pub(in crate::proxy) out: Vec<Out>,
    pub(in crate::proxy) body: Bytes,
    pub(in crate::proxy) tokens: Tokens,
    pub(in crate::proxy) sureness: Sureness,
    pub(in crate::proxy) plan: Plan,
    /// What the client asked for as the longest reply, and what was forwarded, where that is less.
    pub(in crate::proxy) lowered: Option<(Tokens, Tokens)>,
}

impl App {
    /// Offers the tool that reads back what left the prompt, if something is about to leave it for the first time. Returns
    /// the prompt tokens that this adds.
    pub(in crate::proxy) fn offer(&self, draft: &mut Draft<'_>, facts: &mut Facts, tools: Option<&Bytes>) -> Tokens {
        let Some(tools) = tools.filter(|_| !draft.request.offers()) else { return 0 };
        if !rewrites(&draft.request.conversation, facts, &draft.policy) {
            return 0;
        }
        Arc::make_mut(&mut draft.request).offer(tools.clone());
        let added = self.text_cost(draft, &recall::definition(draft.situation.policy.digest_model.is_some()));
        facts.tools = facts.tools.saturating_add(added);
        draft.counted = draft.counted.map(|(tokens, sureness)| (tokens.saturating_add(added), sureness));
        added
    }

    /// What the tool adds to a prompt that says that a task is done.
    pub(in crate::proxy) fn done_cost(&self, draft: &Draft<'_>) -> Tokens {
        if draft.done { self.text_cost(draft, recall::done::DEFINITION) } else { 0 }
    }

    /// Drafts the view. No request is refused for a tool of ours: where it does not fit with it, it goes without.
    pub(in crate::proxy) async fn drafted(
        self: &Arc<Self>,
        draft: &mut Draft<'_>,
        facts: Facts,
        sureness: Sureness,
    ) -> Result<Drafted, Error> {
        if !draft.request.offers() && !draft.done {
            return self.draft(draft, facts, sureness).boxed().await;
        }
        // A view that had no room for the tool goes without it again while it stays as it is.
        let stays = draft.request.offers() && draft.old.bare && {
            let (request, mut bare) = (Arc::clone(&draft.request), self.bare(draft, &facts));
            let plan = self.plan_giving_way(&request.conversation, &mut bare, draft);
            plan.fits && plan.actions.is_empty()
        };
        if !stays {
            let drafted = self.draft(draft, facts.clone(), sureness).boxed().await;
            if drafted.as_ref().err().is_none_or(|e| !e.is_too_long()) {
                return drafted;
            }
        }
        let bare = self.bare(draft, &facts);
        let request = Arc::make_mut(&mut draft.request);
        request.withdraw();
        recall::done::withdraw(request);
        draft.done = false;
        draft.counted = None;
        self.draft(draft, bare, sureness).boxed().await
    }

    /// The facts of the request without the tools of ours.
    fn bare(&self, draft: &Draft<'_>, facts: &Facts) -> Facts {
        let of_recall = match draft.request.offers() {
            true => self.text_cost(draft, &recall::definition(draft.situation.policy.digest_model.is_some())),
            false => 0,
        };
        let ours = of_recall.saturating_add(self.done_cost(draft));
        Facts { tools: facts.tools.saturating_sub(ours), ..facts.clone() }
    }

    /// Plans, with less kept for the reply where nothing else gives way.
    fn plan_giving_way(&self, conversation: &Conversation, facts: &mut Facts, draft: &mut Draft<'_>) -> Plan {
        loop {
            let plan = guarded(conversation, facts, draft);
            if !plan::gives_way(facts, &plan, self.config.window.output_reserved) {
                return plan;
            }
        }
    }

    /// Plans until the view fits what is counted.
    async fn draft(
        self: &Arc<Self>,
        draft: &mut Draft<'_>,
        mut facts: Facts,
        sureness: Sureness,
    ) -> Result<Drafted, Error> {
        let request = Arc::clone(&draft.request);
        let conversation = &request.conversation;
        let slack = facts.slack;
        // Before a request is refused, as little as can be is kept for its reply.
        let most = facts.window.saturating_sub(plan::least_reserve(facts.window)).saturating_sub(slack);
        let mut shortest: Option<Drafted> = None;
        // The regions of the shortest view that was made, and what it had to fit, for the words of a refusal.
        let mut refused: Option<(Regions, Tokens)> = None;
        let mut round = 0;
        let (after, limit) = loop {
            round += 1;
            let plan = self.plan_giving_way(conversation, &mut facts, draft);
            if !plan.fits {
                break refused.unwrap_or((plan.after, plan.lines.limit));
            }
            if draft.situation.attempt == Attempt::First {
                self.ask_models(draft, &plan, facts.window).boxed().await;
            }
            let Applied { view, originals } = self.applied(draft, &plan)?;
            let out = rewrite::rewrite(conversation, &view, &draft.policy.template);
            let body = bytes_of(&request, &out);
            let planned = plan.after.prompt();
            let (tokens, sureness) = match self.recount(draft, &plan, &body).await {
                Some(exact) => exact,
                None => (self.estimated(draft, &facts, &view, conversation, &plan), sureness),
            };
            let limit = facts.window.saturating_sub(facts.output_reserved).saturating_sub(slack);
            let made = Drafted { view, originals, out, body, tokens, sureness, plan, lowered: None };
            if tokens <= limit {
                let made = remind::reminded(self, draft, limit, made).boxed().await;
                return Ok(self.with_reply_room(draft, facts.window, made).await);
            }
            let so_far = refused.filter(|(regions, _)| regions.prompt() <= tokens);
            let told = so_far.unwrap_or((made.plan.after.of_prompt(tokens), limit));
            refused = Some(told);
            if tokens <= most && shortest.as_ref().is_none_or(|other| tokens < other.tokens) {
                shortest = Some(made);
            }
            if round >= PLANS {
                break told;
            }
            debug!(round, tokens, planned, limit, "counted more than planned; planning again");
            // What was made is longer than planned by so much: aim lower by that, and a little more.
            let more = tokens - planned.min(tokens);
            facts.slack = facts.slack.saturating_add(more + more / 8 + 8);
        };
        match shortest {
            Some(made) => Ok(self.with_reply_room(draft, facts.window, made).await),
            None => Err(self.cannot_fit(draft, facts.window, &after, limit)),
        }
    }

    /// Asks for no longer a reply than there is room for.
    async fn with_reply_room(&self, draft: &Draft<'_>, window: Tokens, made: Drafted) -> Drafted {
        if window >= UNKNOWN_WINDOW {
            return made;
        }
        let mut room = window.saturating_sub(made.tokens);
        if draft.request.max_tokens.is_some_and(|asked| asked > room) && !made.sureness.is_exact() {
            // An estimate changes as more is learned; the same history must give the same bytes.
            room = self.counted_room(draft, &made.body, window).await.unwrap_or(room);
        }
        let asked = draft.request.max_tokens.filter(|asked| *asked > room);
        let lowered = asked.map(|asked| (asked, room.max(1)));
        Drafted { lowered, body: lower_max_tokens(&draft.request, made.body, room), ..made }
    }

    /// Asks for what other models write for a plan: once, however often the request is planned.
    async fn ask_models(self: &Arc<Self>, draft: &mut Draft<'_>, plan: &Plan, window: Tokens) {
        let situation = draft.situation;
        let asks = plan.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. }));
        if !asks {
            // The client goes first; what was begun for later is begun again behind this reply.
            self.stop_making(situation.id());
            let folds = plan.actions.iter().any(|a| matches!(a, Action::Fold { .. }));
            if let Some(why) = plan.lines.no_summary().filter(|_| folds && draft.policy.strategy == Strategy::Summarize)
            {
                self.not_summarized::<()>(situation.id(), &why);
            }
            // What is there costs nothing, however little there is to fold.
            if folds && draft.written.is_none() {
                let body = &draft.request.conversation.body;
                let ready = self.brief_at_hand(situation.id(), &situation.history.chain, body, &draft.old);
                draft.written = ready.map(Some);
            }
        } else if draft.written.is_none() {
            draft.written = Some(self.written(draft, plan, window).await);
        }
        if draft.digests.is_none() {
            draft.digests = self.digests(draft, plan).await;
        }
    }

    /// The view that a plan makes, with what was written for it.
    fn applied(&self, draft: &Draft<'_>, plan: &Plan) -> Result<Applied, Error> {
        let mut applied = self.material(draft, plan)?;
        if let Some(note) = &draft.situation.note {
            self.noted(draft.situation.id(), &draft.request.conversation, note, &mut applied)?;
        }
        Ok(applied)
    }

    fn material(&self, draft: &Draft<'_>, plan: &Plan) -> Result<Applied, Error> {
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
        Ok(self.make_view(&draft.subject(), plan, words)?)
    }

    /// The room that a prompt leaves, by the server's own count, where it can count.
    async fn counted_room(&self, draft: &Draft<'_>, body: &Bytes, window: Tokens) -> Option<Tokens> {
        if !draft.situation.can_count() || window >= UNKNOWN_WINDOW {
            return None;
        }
        Some(window.saturating_sub(exact(draft, body).await.ok()?.0))
    }

    fn cannot_fit(&self, draft: &Draft<'_>, window: Tokens, after: &Regions, limit: Tokens) -> Error {
        let source = &draft.situation.window.source;
        let error = Error::cannot_fit(&draft.request.model, window, source, after, limit);
        match draft.wanted.paused {
            true => error.with_hint(
                "somebody stopped the rewriting of this conversation: take it up again on the page at `/`, or with \
                 {\"on\": true} to …/rewriting",
            ),
            false => error,
        }
    }

    /// The shares of the messages of a view by the model's own vocabulary, where it is here, and which of the client's
    /// messages each is, if it is one as it came.
    pub(in crate::proxy) async fn shares(
        &self,
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
        Some((own.shares(draft.situation.upstream, body).await?, places))
    }

    /// Tokens of what an edit put in place.
    fn edit_cost(&self, draft: &Draft<'_>, edit: &Edit) -> Tokens {
        let (Edit::Text { text, .. }
        | Edit::Recalled { text, .. }
        | Edit::Arguments { arguments: text, .. }
        | Edit::Fold { brief: text, .. }) = edit;
        tokens::AROUND + self.text_cost(draft, text)
    }

    /// Tokens of a text: by the model's own vocabulary, where it is here and the text is not so long that this would hold
    /// others up.
    fn text_cost(&self, draft: &Draft<'_>, text: &str) -> Tokens {
        self.measure.text(&draft.situation.key, draft.situation.own.as_deref(), text)
    }

    /// The exact size of what would be sent, where it matters and can be told.
    async fn recount(&self, draft: &Draft<'_>, plan: &Plan, body: &Bytes) -> Option<(Tokens, Sureness)> {
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
        &self,
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
        made.edit_costs = match &draft.situation.own {
            Some(_) => view.edits.iter().map(|e| self.edit_cost(draft, e)).collect(),
            None => view.edits.iter().map(|e| self.measure.edit_cost(&draft.situation.key, conversation, e)).collect(),
        };
        made.view = view.clone();
        let still = Policy {
            strategy: plan::Strategy::Off,
            clear_at: 1.0,
            evict_over: plan::Size::Tokens(Tokens::MAX),
            ..draft.policy.clone()
        };
        plan::plan(conversation, &made, &still).before.prompt()
    }
}

/// The size of a request: by the model's own vocabulary where its file is on this machine, else by the server.
pub(in crate::proxy) async fn exact(
    draft: &Draft<'_>,
    body: &Bytes,
) -> Result<(Tokens, Sureness), crate::upstream::Error> {
    let Situation { upstream, own, .. } = draft.situation;
    if let Some(own) = own {
        let media = measure::count::media(&draft.request.conversation);
        if let Some(exact) = own.total(upstream, body, media).await {
            return Ok((exact.tokens, exact.sureness()));
        }
    }
    Ok((upstream.count(body).await?, Sureness::Counted))
}

/// Plans. Should a pure room panic, the request goes on with what is certain: nothing is changed.
fn guarded(conversation: &Conversation, facts: &Facts, draft: &mut Draft<'_>) -> Plan {
    let act = std::panic::AssertUnwindSafe(|| plan::plan(conversation, facts, &draft.policy));
    std::panic::catch_unwind(act).unwrap_or_else(|_| {
        warn!(conversation = draft.situation.id(), "planning failed; the request goes on unchanged");
        draft.warnings.push("planning failed; nothing was rewritten".into());
        let facts = Facts { window: UNKNOWN_WINDOW, ..Facts::default() };
        plan::plan(&Conversation::default(), &facts, &Policy::default())
    })
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
