//! From a request to the bytes that are forwarded: measure, plan, apply, in that order. When a count shows that the plan's
//! estimates were low, it is planned again from the same start with better ones.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use tracing::{debug, warn};

use super::live::Ahead;
use super::prefix::{Prefix, client_marks};
use super::{App, Error, headers};
use crate::apply;
use crate::config::{ModelHints, Resolved};
use crate::conversation::edit::{Edit, View};
use crate::conversation::wire::openai_chat::{self, Request};
use crate::conversation::{Conversation, Digest, Tokens, chain, repair};
use crate::measure::count::Counted;
use crate::measure::window::Window;
use crate::measure::{self, Known, Sureness, own, spread, tokens};
use crate::plan::emergency::{self, Refusal};
use crate::plan::rewrite::{self, Out};
use crate::plan::{self, Action, Facts, Lines, Plan, Policy, Regions};
use crate::store::{Located, Original};
use crate::upstream::Upstream;

/// The window that is assumed where nobody knows it: so large that nothing is ever rewritten for it.
const UNKNOWN_WINDOW: Tokens = 1 << 30;

/// How often a plan is made anew because a count was higher than estimated.
const PLANS: usize = 4;

/// Share of the first line from which a prompt is counted instead of estimated.
const COUNT_FROM: f64 = 0.9;

/// The longest text that is counted with the vocabulary while a plan is made (bytes): a millisecond or two.
const COUNTED_TEXT: usize = 64 * 1024;

/// The longest request of which each message is counted where it comes near a line (bytes): some milliseconds. A person who
/// asks for the regions gets them whatever it takes.
const SHARED_OUT: usize = 512 * 1024;

/// Takes the estimate of a history that was sent before just under the limit, whatever is rounded up.
const SENT_BEFORE: f64 = 0.97;

/// Why a request is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It came from the client.
    First,
    /// Nothing will be sent: no model is asked, either.
    DryRun,
    /// The server refused it.
    Emergency {
        /// What the refusal taught.
        refusal: Refusal,
        /// What we took the refused prompt for.
        counted: Tokens,
    },
}

/// A request ready to be sent.
pub(super) struct Prepared {
    /// As the client sent it, but for the messages that had to be repaired.
    pub request: Request,
    /// Chain hash of each prefix of the body.
    pub chain: Vec<Digest>,
    /// Where the record knew this history before.
    pub located: Option<Located>,
    /// Name of the conversation.
    pub id: String,
    /// Name of the session that the client gave.
    pub session: Option<String>,
    /// The window, and where it is known from.
    pub window: Window,
    /// The policy and where its values come from.
    pub policy: Arc<Resolved>,
    /// The view.
    pub view: View,
    /// Whether the view is new.
    pub view_changed: bool,
    /// Originals that leave the prompt with this view.
    pub originals: Vec<Original>,
    /// The messages of the view.
    pub out: Vec<Out>,
    /// The bytes to forward.
    pub body: Bytes,
    /// Prompt tokens of these.
    pub tokens: Tokens,
    /// How sure that is.
    pub sureness: Sureness,
    /// The uncorrected estimate of the view, to calibrate with.
    pub raw_estimate: Tokens,
    /// The client's history, with edits made earlier.
    pub before: Regions,
    /// The view.
    pub after: Regions,
    /// The lines that were looked at.
    pub lines: Lines,
    /// The layers that acted.
    pub actions: Vec<&'static str>,
    /// Why, in words without message text.
    pub because: Vec<String>,
    /// Trouble that was downgraded.
    pub warnings: Vec<String>,
    /// What tells the messages as the client sent them from others.
    pub client_marks: Vec<u64>,
    /// What it has in common with the last prompt of the conversation, once that is known.
    pub prefix: Option<Prefix>,
    /// The vocabulary it was counted with.
    pub own: Option<Arc<own::Model>>,
    /// Counts this request as under way.
    pub flight: Option<super::live::Flight>,
}

impl Prepared {
    /// The layers that acted, as they stand in the header.
    pub(super) fn action(&self) -> String {
        if self.actions.is_empty() { "none".into() } else { self.actions.join(",") }
    }

    /// (prompt + output reserved) / window.
    pub(super) fn pressure(&self) -> f64 {
        let window = self.window.tokens.unwrap_or(UNKNOWN_WINDOW);
        f64::from(self.tokens + self.after.output_reserved) / f64::from(window.max(1))
    }

    /// Sets our headers on a reply.
    pub(super) fn mark(&self, to: &mut HeaderMap<HeaderValue>) {
        headers::set(to, "x-windowsill-conversation", &self.id);
        headers::set(to, "x-windowsill-window", &self.window.tokens.map_or("unknown".into(), |w| w.to_string()));
        headers::set(to, "x-windowsill-window-source", &self.window.source);
        headers::set(to, "x-windowsill-prompt-tokens", &self.tokens.to_string());
        headers::set(to, "x-windowsill-prompt-tokens-source", self.sureness.as_str());
        headers::set(to, "x-windowsill-action", &self.action());
        if !self.warnings.is_empty() {
            headers::set(to, "x-windowsill-warning", &self.warnings.join("; "));
        }
    }
}

/// What planning goes on with.
struct Draft<'a> {
    upstream: &'a Arc<Upstream>,
    request: &'a Request,
    policy: Policy,
    old: View,
    key: String,
    can_count: bool,
    /// The model's own vocabulary, where its file is on this machine.
    own: Option<Arc<own::Model>>,
    /// What was counted before anything was planned.
    counted: Option<(Tokens, Sureness)>,
    id: &'a str,
    /// Where the window is known from.
    source: String,
    warnings: Vec<String>,
}

/// A view that was drafted, with its bytes and size.
struct Drafted {
    view: View,
    originals: Vec<Original>,
    out: Vec<Out>,
    body: Bytes,
    tokens: Tokens,
    sureness: Sureness,
    plan: Plan,
}

impl App {
    /// Measures, plans and applies.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        mut request: Request,
        from_client: &HeaderMap,
        attempt: Attempt,
    ) -> Result<Prepared, Error> {
        let mut warnings = Vec::new();
        let window = self.window_of(upstream, &request.model).await;
        let policy = self.policy(&request.model, &window, headers::text(from_client, &headers::PROFILE));
        warnings.extend(policy.warning.clone());
        let repaired = self.repair(&mut request, &policy.policy)?;
        let session = headers::text(from_client, &headers::SESSION);
        let seed = format!("{}\n{}", session.as_deref().unwrap_or(""), request.model);
        let chain = chain::chain(&seed, &request.conversation.body);
        let located = self.store.locate(&chain)?;
        let id = name(located.as_ref(), &chain, session.as_deref());
        let stored = self.store.view(&chain)?.map(|(_, view)| View::clone(&view)).unwrap_or_default();
        let depth = located.as_ref().map_or(0, |l| l.depth);
        let ahead = self.ahead(&id, &chain, depth, attempt);
        let old = ahead.as_ref().map_or_else(|| stored.clone(), |a| a.view.clone());
        let conversation = &mut request.conversation;
        let client_marks = client_marks(conversation.tools.as_deref(), &conversation.system, &conversation.body);
        if let Some(located) = &located {
            let length = policy.policy.template.tool_call_id_length;
            let place = (located, id.as_str(), seed.as_str());
            if let Some(body) = self.settled(&conversation.body, &chain, &client_marks, place, length).await {
                conversation.body = body;
            }
        }
        let own = self.measure.counters.of(upstream, &window).await;
        let mut draft = Draft {
            upstream,
            policy: policy.policy.clone(),
            key: format!("{}/{}", upstream.name(), request.model),
            can_count: own.is_some() || upstream.can_count(),
            own,
            counted: None,
            request: &request,
            old,
            id: &id,
            source: window.source.clone(),
            warnings,
        };
        let (facts, sureness) = self.measured(&mut draft, &chain, &window, depth, &policy, attempt).await;
        let lines =
            (draft.policy != policy.policy && attempt == Attempt::First).then(|| Lines::of(&facts, &policy.policy));
        let drafted = self.draft(&mut draft, facts, sureness, &chain, from_client, attempt).await?;
        let Draft { key, warnings, own, .. } = draft;
        let changed = drafted.view != stored;
        let raw_estimate = self.measure.raw_total(&key, &request.conversation, &drafted.view);
        let mut actions = layers(&drafted.plan, policy.policy.strategy);
        let mut because: Vec<String> = drafted.plan.because.iter().map(ToString::to_string).collect();
        let mut originals = drafted.originals;
        if let Some(ahead) = ahead {
            actions.extend(ahead.layers);
            because.splice(0..0, ahead.because);
            originals.extend(ahead.originals);
        }
        in_order(&mut actions);
        because.extend(repaired);
        debug!(key, ?because, "prepared");
        Ok(Prepared {
            chain,
            located,
            session,
            window,
            policy,
            view: View { messages: request.conversation.body.len(), ..drafted.view },
            view_changed: changed,
            originals,
            out: drafted.out,
            body: drafted.body,
            tokens: drafted.tokens,
            sureness: drafted.sureness,
            raw_estimate,
            before: drafted.plan.before,
            after: drafted.plan.after,
            lines: lines.unwrap_or(drafted.plan.lines),
            actions,
            because,
            warnings,
            client_marks,
            prefix: None,
            own,
            flight: None,
            id,
            request,
        })
    }

    /// The view that was made ahead for what now comes, if it is the next request: longer than what was forwarded.
    fn ahead(&self, id: &str, chain: &[Digest], forwarded: usize, attempt: Attempt) -> Option<Ahead> {
        let fits =
            |a: &mut Ahead| a.depth == forwarded && chain.len() > a.depth && chain.get(a.depth - 1) == Some(&a.chain);
        self.lives.with(id, |live| {
            let ahead = live.ahead.take_if(|a| attempt == Attempt::First && fits(a))?;
            if let Some(tokens) = ahead.tokens {
                live.known = Some((ahead.chain, fingerprint(&ahead.view), Known { messages: ahead.depth, tokens }));
            }
            Some(ahead)
        })
    }

    fn repair(&self, request: &mut Request, policy: &Policy) -> Result<Vec<String>, Error> {
        let body = std::mem::take(&mut request.conversation.body);
        let leading = request.conversation.system.len();
        let repaired =
            repair::repair(body, policy.template.tool_call_id_length).map_err(|o| Error::orphan(&o, leading))?;
        request.conversation.body = repaired.body;
        Ok(repaired.notes)
    }

    /// The policy of a model, worked out once.
    pub(super) fn policy(&self, model: &str, window: &Window, header: Option<String>) -> Arc<Resolved> {
        let key = (model.to_owned(), header);
        if let Some(known) = self.policies.lock().get(&key) {
            return Arc::clone(known);
        }
        let hints = ModelHints { parameters: None, template: window.template.as_deref() };
        let resolved = Arc::new(self.config.policy(model, &hints, key.1.as_deref()));
        let mut all = self.policies.lock();
        // Names come from clients: they may not fill the memory.
        if all.len() > 512 {
            all.clear();
        }
        all.insert(key, Arc::clone(&resolved));
        resolved
    }

    /// The facts, with the prompt counted where it comes near a line.
    async fn measured(
        &self,
        draft: &mut Draft<'_>,
        chain: &[Digest],
        window: &Window,
        forwarded: usize,
        policy: &Resolved,
        attempt: Attempt,
    ) -> (Facts, Sureness) {
        let conversation = &draft.request.conversation;
        let live = self.lives.with(draft.id, |l| l.clone());
        let print = fingerprint(&draft.old);
        let known: Option<Known> = live
            .known
            .filter(|(at, view, k)| *view == print && k.messages >= 1 && chain.get(k.messages - 1) == Some(at))
            .map(|(_, _, k)| k);
        let mut facts = self.measure.facts(&draft.key, conversation, &draft.old, known);
        facts.window = window.tokens.unwrap_or(UNKNOWN_WINDOW);
        facts.output_reserved =
            plan::output_reserved(facts.window, draft.request.max_tokens, self.config.window.output_reserved);
        facts.forwarded = forwarded;
        facts.background = policy.background;
        let mut sureness = self.measure.sureness(&draft.key);
        if known.is_some() && sureness == Sureness::Estimated {
            sureness = Sureness::Calibrated;
        }
        facts.slack = measure::slack(facts.window, if draft.can_count { Sureness::Counted } else { sureness });
        if let Attempt::Emergency { refusal, counted } = attempt {
            draft.policy = emergency::policy(&draft.policy, refusal);
            return (emergency::facts(&facts, counted, refusal), sureness);
        }
        let again = attempt == Attempt::First && forwarded >= conversation.body.len();
        if again {
            draft.policy = short_of_the_wall(&draft.policy);
        }
        let lines = Lines::of(&facts, &draft.policy);
        // Where not even one token a byte comes near a line, nothing needs counting.
        let bound = tokens::upper_bound(draft.request.body.len(), conversation);
        let near = |t: Tokens| f64::from(t) > f64::from(lines.clear_at) * COUNT_FROM;
        let estimate = plan::plan(conversation, &facts, &draft.policy).before.prompt();
        // By the model's own vocabulary it costs little.
        let far = draft.own.is_none() && (bound.is_some_and(|b| !near(b)) || !near(estimate));
        if !draft.can_count || far {
            if again && !draft.can_count && estimate > lines.limit && estimate / 2 <= lines.limit {
                // It was sent before, as it is, and estimates only change as more is learnt. Should the window be another
                // now, the server will say so.
                emergency::scale(&mut facts, f64::from(lines.limit) / f64::from(estimate) * SENT_BEFORE);
            }
            return (facts, sureness);
        }
        let out = rewrite::rewrite(conversation, &draft.old, &draft.policy.template);
        let body = bytes_of(draft.request, &out);
        match exact(draft, &body).await {
            Ok((exact, counted_by)) => {
                // The costs follow the count, so that lines are compared with what the server will see.
                let wanted = attempt == Attempt::DryRun || near(exact) && body.len() <= SHARED_OUT;
                let shares = if wanted { self.shares(draft, &out, &body).await } else { None };
                let (counted, places) = shares.map_or((None, Vec::new()), |(c, p)| (Some(c), p));
                let sum = |f: &Facts| plan::plan(conversation, f, &draft.policy).before.prompt();
                spread::spread(&mut facts, counted.as_ref(), &places, exact, &sum);
                draft.counted = Some((exact, counted_by));
                (facts, counted_by)
            }
            Err(e) => {
                warn!(upstream = draft.upstream.name(), error = %e, "the server could not count the prompt; estimating");
                draft.warnings.push("the prompt could not be counted, only estimated".into());
                facts.slack = measure::slack(facts.window, sureness);
                if matches!(e, crate::upstream::Error::Status { .. }) {
                    // It will not take the request as it is: pictures for a model that cannot see. What media cost is then
                    // only a guess, and nothing is cut for a guess; the server's own words on it reach the client.
                    facts.costs.iter_mut().for_each(|cost| cost.media = 0);
                }
                (facts, sureness)
            }
        }
    }

    /// Plans until the view fits what is counted.
    async fn draft(
        self: &Arc<Self>,
        draft: &mut Draft<'_>,
        mut facts: Facts,
        sureness: Sureness,
        chain: &[Digest],
        from_client: &HeaderMap,
        attempt: Attempt,
    ) -> Result<Drafted, Error> {
        let conversation = &draft.request.conversation;
        let mut written: Option<Option<Arc<str>>> = None;
        let slack = facts.slack;
        let mut round = 0;
        loop {
            round += 1;
            let plan = guarded(conversation, &facts, draft);
            if !plan.fits {
                if tighten(&mut facts) {
                    continue;
                }
                return Err(self.cannot_fit(draft, &facts, &plan));
            }
            // A shorter reply is the smaller loss, before the user's own message is cut.
            let least = facts.window / 8;
            if facts.output_reserved > least && plan.actions.iter().any(|a| matches!(a, Action::Cut { .. })) {
                facts.output_reserved = least;
                continue;
            }
            let asks = plan.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. }));
            if asks && written.is_none() && attempt == Attempt::First {
                written = Some(
                    self.written(
                        draft.upstream,
                        draft.request,
                        draft.id,
                        &draft.old,
                        &plan,
                        chain,
                        from_client,
                        facts.window,
                    )
                    .await,
                );
            }
            if !asks && attempt == Attempt::First {
                // The client goes first; what was begun for later is begun again behind this reply.
                self.stop_making(draft.id);
            }
            let count = |text: &str| self.text_cost(draft, text);
            let applied = if plan.actions.is_empty() {
                apply::Applied { view: draft.old.clone(), originals: Vec::new() }
            } else {
                apply::apply(&apply::Input {
                    conversation,
                    id: draft.id,
                    plan: &plan,
                    old: &draft.old,
                    store: &self.store,
                    count: &count,
                    written: written.as_ref().and_then(|w| w.as_deref()),
                })?
            };
            let out = rewrite::rewrite(conversation, &applied.view, &draft.policy.template);
            let body = bytes_of(draft.request, &out);
            let planned = plan.after.prompt();
            let (tokens, sureness) = match self.recount(draft, &plan, &body).await {
                Some(exact) => exact,
                None => (self.estimated(draft, &facts, &applied.view, conversation, &plan), sureness),
            };
            let limit = facts.window.saturating_sub(facts.output_reserved).saturating_sub(slack);
            if tokens <= limit || round >= PLANS {
                if tokens > limit {
                    return Err(self.cannot_fit(draft, &facts, &plan));
                }
                let mut room = facts.window.saturating_sub(tokens);
                if draft.request.max_tokens.is_some_and(|asked| asked > room) && !sureness.is_exact() {
                    // An estimate changes as more is learnt; the same history must give the same bytes.
                    room = self.counted_room(draft, &body, facts.window).await.unwrap_or(room);
                }
                let body =
                    if facts.window < UNKNOWN_WINDOW { lower_max_tokens(draft.request, body, room) } else { body };
                return Ok(Drafted {
                    view: applied.view,
                    originals: applied.originals,
                    out,
                    body,
                    tokens,
                    sureness,
                    plan,
                });
            }
            debug!(round, tokens, planned, limit, "counted more than planned; planning again");
            // What was made is longer than planned by so much: aim lower by that, and a little more.
            let more = tokens - planned.min(tokens);
            facts.slack = facts.slack.saturating_add(more + more / 8 + 8);
        }
    }

    /// The room that a prompt leaves, by the server's own count, where it can count.
    async fn counted_room(&self, draft: &Draft<'_>, body: &Bytes, window: Tokens) -> Option<Tokens> {
        if !draft.can_count || window >= UNKNOWN_WINDOW {
            return None;
        }
        Some(window.saturating_sub(exact(draft, body).await.ok()?.0))
    }

    fn cannot_fit(&self, draft: &Draft<'_>, facts: &Facts, plan: &Plan) -> Error {
        Error::cannot_fit(&draft.request.model, facts.window, &draft.source, &plan.after, plan.lines.limit)
    }

    /// The shares of the messages of a view by the model's own vocabulary, where it is here, and which of the client's
    /// messages each is, if it is one as it came.
    async fn shares(&self, draft: &Draft<'_>, out: &[Out], body: &Bytes) -> Option<(Counted, Vec<Option<usize>>)> {
        let own = draft.own.as_ref()?;
        let conversation = &draft.request.conversation;
        let view = openai_chat::parse(body).ok()?.conversation;
        if view.system.len() != conversation.system.len() || view.system.len() + view.body.len() != out.len() {
            return None;
        }
        let as_it_came = |o: &Out| o.at.filter(|at| conversation.body.get(*at).is_some_and(|m| *m.bytes() == o.bytes));
        let places = out[view.system.len()..].iter().map(as_it_came).collect();
        Some((own.shares(draft.upstream, body, view).await?, places))
    }

    /// Tokens of what an edit put in place.
    fn edit_cost(&self, draft: &Draft<'_>, edit: &Edit) -> Tokens {
        let (Edit::Text { text, .. } | Edit::Arguments { arguments: text, .. } | Edit::Fold { brief: text, .. }) = edit;
        tokens::AROUND + self.text_cost(draft, text)
    }

    /// Tokens of a text: by the model's own vocabulary, where it is here and the text is not so long that this would hold
    /// others up.
    fn text_cost(&self, draft: &Draft<'_>, text: &str) -> Tokens {
        match &draft.own {
            Some(own) if text.len() <= COUNTED_TEXT => own.text(text),
            _ => self.measure.count(&draft.key, text),
        }
    }

    /// The exact size of what would be sent, where it matters and can be told.
    async fn recount(&self, draft: &Draft<'_>, plan: &Plan, body: &Bytes) -> Option<(Tokens, Sureness)> {
        if !draft.can_count {
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
        made.edit_costs = match &draft.own {
            Some(_) => view.edits.iter().map(|e| self.edit_cost(draft, e)).collect(),
            None => view.edits.iter().map(|e| self.measure.edit_cost(&draft.key, e)).collect(),
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
async fn exact(draft: &Draft<'_>, body: &Bytes) -> Result<(Tokens, Sureness), crate::upstream::Error> {
    if let Some(own) = &draft.own {
        let media = measure::count::media(&draft.request.conversation);
        if let Some(exact) = own.total(draft.upstream, body, media).await {
            return Ok((exact.tokens, exact.sureness()));
        }
    }
    Ok((draft.upstream.count(body).await?, Sureness::Counted))
}

/// The layers that a plan's actions belong to.
pub(super) fn layers(plan: &Plan, strategy: plan::Strategy) -> Vec<&'static str> {
    let mut out = plan.actions.iter().map(|action| action.layer(strategy)).collect();
    in_order(&mut out);
    out
}

fn in_order(layers: &mut Vec<&'static str>) {
    let order = ["evict", "clear", "summarize", "truncate"];
    layers.sort_by_key(|a| order.iter().position(|o| o == a));
    layers.dedup();
}

/// The name of the conversation: the one that this history continues, else a new one.
fn name(located: Option<&Located>, chain: &[Digest], session: Option<&str>) -> String {
    let Some(tip) = chain.last() else { return session.unwrap_or("empty").to_owned() };
    match located {
        // It goes on where the record ends, or is sent again.
        Some(l) if l.depth == l.conversation_depth || l.depth == chain.len() => l.conversation.clone(),
        Some(_) => match session {
            Some(session) => format!("{session}.{}", &tip.hex()[..8]),
            None => format!("c{}", &tip.hex()[..12]),
        },
        None => session.map_or_else(|| format!("c{}", &tip.hex()[..12]), str::to_owned),
    }
}

/// Plans. Should a pure room panic, the request goes on with what is certain: nothing is changed.
fn guarded(conversation: &Conversation, facts: &Facts, draft: &mut Draft<'_>) -> Plan {
    let act = std::panic::AssertUnwindSafe(|| plan::plan(conversation, facts, &draft.policy));
    std::panic::catch_unwind(act).unwrap_or_else(|_| {
        warn!(conversation = draft.id, "planning failed; the request goes on unchanged");
        draft.warnings.push("planning failed; nothing was rewritten".into());
        let facts = Facts { window: UNKNOWN_WINDOW, ..Facts::default() };
        plan::plan(&Conversation::default(), &facts, &Policy::default())
    })
}

/// Before a request is refused, less is kept for the reply: a short answer is better than none. False when there is
/// nothing more to give.
fn tighten(facts: &mut Facts) -> bool {
    let least = (facts.window / 32).max(16);
    let more = facts.output_reserved > least;
    facts.output_reserved = facts.output_reserved.min(least);
    more
}

/// The policy for a history that was forwarded before: the same history gives the same bytes, unless they no longer fit.
fn short_of_the_wall(policy: &Policy) -> Policy {
    Policy { clear_at: 1.0, summarize_at: 1.0, ..policy.clone() }
}

/// What tells one view from another.
pub(super) fn fingerprint(view: &View) -> Digest {
    if view.edits.is_empty() {
        return Digest::default();
    }
    Digest::of(&serde_json::to_vec(&view.edits).unwrap_or_default())
}

/// The bytes of a request with the messages of a view; the client's own where nothing differs.
pub(super) fn bytes_of(request: &Request, out: &[Out]) -> Bytes {
    let conversation = &request.conversation;
    let same = out.len() == conversation.system.len() + conversation.body.len() && out.iter().all(|m| !m.changed);
    if same {
        return request.body.clone();
    }
    let messages: Vec<Bytes> = out.iter().map(|m| m.bytes.clone()).collect();
    openai_chat::write(request, &messages, &[])
}

/// `max_tokens` larger than the room left is lowered to it.
fn lower_max_tokens(request: &Request, body: Bytes, room: Tokens) -> Bytes {
    if request.max_tokens.is_none_or(|asked| asked <= room) {
        return body;
    }
    let text = String::from_utf8_lossy(&body);
    let Ok(fields) = crate::conversation::wire::json::Fields::read(&text) else { return body };
    let lowered = room.max(1).to_string();
    let keys = ["max_tokens", "max_completion_tokens", "n_predict"];
    let changes: Vec<(&str, Option<&str>)> = keys
        .into_iter()
        .filter(|k| fields.get(k).and_then(|v| v.parse::<f64>().ok()).is_some_and(|n| n > f64::from(room)))
        .map(|k| (k, Some(lowered.as_str())))
        .collect();
    crate::conversation::wire::json::with_fields(&text, &changes).unwrap_or_else(|_| body.clone())
}
