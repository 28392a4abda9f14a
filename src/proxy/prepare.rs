//! From a request to the bytes that are forwarded: measure, plan, apply, in that order. When a count shows that the plan's
//! estimates were low, it is planned again from the same start with better ones.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use tracing::{debug, warn};

use super::admission::{Admitted, Asked};
use super::draft::{Draft, exact};
use super::history::{History, Switched};
use super::prefix::Prefix;
use super::rules::{Ruled, Scope};
use super::standing::{self, Granted, Held, Standing};
use super::system::Indexed;
use super::{App, Error, headers};
use crate::config::{Gauge, ModelHints, Resolved};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Digest, Tokens, repair};
use crate::measure::window::Window;
use crate::measure::{self, Known, ModelKey, Sureness, own, shown, spread, tokens};
use crate::plan::emergency::{self, Refusal};
use crate::plan::rewrite::{self, Out};
use crate::plan::{self, Facts, Lines, Plan, Policy, Regions};
use crate::recall::missed::{self, Missed};
use crate::store::{Located, Original};
use crate::upstream::Upstream;
use crate::usage::Reported;
use crate::wire::openai_chat::{self, Request};

/// The window that is assumed where nobody knows it: so large that nothing is ever rewritten for it.
pub(super) const UNKNOWN_WINDOW: Tokens = 1 << 30;

/// Share of the first line from which a prompt is counted instead of estimated.
const COUNT_FROM: f64 = 0.9;

/// The longest request that is counted with the model's own vocabulary far from any line, too (bytes): some milliseconds. Of a
/// longer one, what was reported of its beginning is kept, and what is new is estimated.
const COUNTED_ANYWAY: usize = 16 * 1024;

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
    /// What is believed of its model is kept under this key.
    pub key: ModelKey,
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
    /// What was known of the size of its beginning.
    pub known: Option<Known>,
    /// The client's history, with edits made earlier.
    pub before: Regions,
    /// Seconds that making the view took, with what was made ahead of it.
    pub seconds: f64,
    /// The conversation's model until now, where it is another.
    pub switched: Option<Switched>,
    /// The view.
    pub after: Regions,
    /// The lines that were looked at.
    pub lines: Lines,
    /// The layers that acted.
    pub actions: Vec<&'static str>,
    /// Why, in words without message text.
    pub because: Vec<String>,
    /// Why lines that are passed did not lead to anything.
    pub waits: Vec<String>,
    /// Trouble that was downgraded.
    pub warnings: Vec<String>,
    /// The longest reply that the client asked for and the one that was forwarded, where that is shorter.
    pub lowered: Option<(Tokens, Tokens)>,
    /// What tells the messages as the client sent them from others.
    pub client_marks: Vec<u64>,
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    pub tools: Option<Bytes>,
    /// Whether the model has the tool that says that a task is done.
    pub done: bool,
    /// The client's tools and the list that stands for them, where they are named by index.
    pub admitted: Option<Arc<Admitted>>,
    /// What was left out of the system text, where that is said by index.
    pub indexed: Option<Indexed>,
    /// What the reply recalled: messages of ours behind the prompt.
    pub recalled: Vec<Out>,
    /// Where something was recalled, prompt tokens of the first round as the server counted them.
    pub first_prompt: Option<Tokens>,
    /// What the newest messages read again after it had left the prompt.
    pub missed: Vec<Missed>,
    /// What it has in common with the last prompt of the conversation, once that is known.
    pub prefix: Option<Prefix>,
    /// The vocabulary it was counted with.
    pub own: Option<Arc<own::Model>>,
    /// What people want of the conversation.
    pub standing: Arc<Standing>,
    /// What that is from now on, where it changed.
    pub standing_changed: Option<String>,
    /// Whose rules the conversation gets, where rules are on.
    pub scope: Option<Scope>,
    /// The rules that it begins with.
    pub ruled: Option<Ruled>,
    /// What it means for this history.
    pub wanted: Held,
    /// Counts this request as under way.
    pub flight: Option<super::live::Flight>,
}

impl Prepared {
    /// The layers that acted, as they stand in the header.
    pub(super) fn action(&self) -> String {
        if self.actions.is_empty() { "none".into() } else { self.actions.join(",") }
    }

    /// What the conversation is called.
    pub(super) fn title(&self) -> String {
        self.standing.title.clone().unwrap_or_else(|| super::save::title(&self.request.conversation))
    }

    /// Whether this history is the beginning of a longer one that the record has: a chat that begins alike, or an earlier
    /// request sent again. The longer one stays as it is.
    pub(super) fn repeats_a_beginning(&self) -> bool {
        let length = self.chain.len();
        self.located
            .as_ref()
            .is_some_and(|l| l.depth == length && length < l.conversation_depth && l.conversation == self.id)
    }

    /// (prompt + output reserved) / window.
    pub(super) fn pressure(&self) -> f64 {
        let window = self.window.tokens.unwrap_or(UNKNOWN_WINDOW);
        f64::from(self.tokens + self.after.output_reserved) / f64::from(window.max(1))
    }

    /// Prompt tokens of what was planned, as the server counted them: without what was recalled.
    pub(super) fn counted(&self, reported: &Reported) -> Option<Tokens> {
        if self.recalled.is_empty() { reported.prompt } else { self.first_prompt }
    }

    /// Sets our headers on a reply.
    pub(super) fn mark(&self, to: &mut HeaderMap<HeaderValue>, gauge: &Gauge) {
        headers::set(to, "x-windowsill-conversation", &self.id);
        headers::set(to, "x-windowsill-window", &self.window.tokens.map_or("unknown".into(), |w| w.to_string()));
        headers::set(to, "x-windowsill-window-source", &self.window.source);
        headers::set(to, "x-windowsill-prompt-tokens", &self.tokens.to_string());
        headers::set(to, "x-windowsill-prompt-tokens-source", self.sureness.as_str());
        headers::set(to, "x-windowsill-action", &self.action());
        if self.window.tokens.is_some() {
            headers::set(to, "x-windowsill-pressure", &format!("{:.4}", self.pressure()));
            headers::set(to, "x-windowsill-severity", gauge.severity(self.pressure()).as_str());
        }
        if let Some((asked, left)) = self.lowered {
            headers::set(to, "x-windowsill-max-tokens", &format!("{left}; asked={asked}"));
        }
        if let Some(indexed) = &self.indexed {
            headers::set(to, "x-windowsill-system", &indexed.header());
        }
        if let Some(admitted) = &self.admitted {
            headers::set(to, "x-windowsill-tools", &admitted.header(self.after.tools));
        }
        if !self.warnings.is_empty() {
            headers::set(to, "x-windowsill-warning", &self.warnings.join("; "));
        }
    }
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
        if let Some(wanted) = request.num_ctx.filter(|_| attempt != Attempt::DryRun) {
            self.measure.windows.want(upstream, &request.model, wanted).await;
        }
        let window = self.window_of(upstream, &request.model).boxed().await;
        let header = headers::text(from_client, &headers::PROFILE);
        let policy = self.policy(&request.model, &window, header, request.task.as_deref());
        warnings.extend(policy.warning.clone());
        let repaired = self.repair(&mut request, &policy.policy)?;
        let history = self.history(&mut request, upstream, &policy, from_client, attempt).boxed().await?;
        let guarded = self.guard(&request, &history, attempt)?;
        warnings.extend(guarded.warnings);
        let pace = self.pace(&policy, &history, &request.conversation.body, attempt);
        let old = history.old().clone();
        let patience = if attempt == Attempt::DryRun { shown::QUESTION_WAITS } else { shown::REQUEST_WAITS };
        let own = self.measure.counters.of(upstream, &request.model, &window, patience).boxed().await;
        let key = self.key(upstream, &request);
        let asked = Asked { key: &key, own: own.as_deref(), window: window.tokens, policy: &policy, from_client };
        let admitted = self.admit(&mut request, &history, &asked, &mut warnings)?;
        let done = self.offer_done(&mut request, &policy, from_client);
        let tools = self.tool_for(&request, &policy, from_client);
        let (listed, readable) = (admitted.as_deref(), tools.is_some());
        let indexed = self.index_system(&mut request, &history.id, &asked, listed, readable, &mut warnings)?;
        if let Some(tools) = tools.as_ref().filter(|_| old.lacks() || indexed.is_some()) {
            request.offer(tools.clone());
        }
        let known_window = window.tokens.unwrap_or(UNKNOWN_WINDOW);
        let (mut standing, wanted) = self.wanted(&history, &key, &policy, &request, known_window, &mut warnings);
        let request = Arc::new(request);
        let mut draft = Draft {
            upstream,
            policy: pace.policy(&policy.policy),
            resolved: &policy,
            key,
            can_count: own.is_some() || upstream.can_count(),
            own,
            counted: None,
            held: request.without_messages(),
            request,
            old,
            id: &history.id,
            window: &window,
            warnings,
            written: None,
            digests: None,
            note: guarded.note,
            done,
            pace,
            wanted,
            focus: standing.focus().map(str::to_owned),
        };
        let (mut facts, mut sureness) = self.measured(&mut draft, &history, &window, attempt).boxed().await;
        let scope = self.scope(&draft, from_client);
        let ruled = scope.as_ref().and_then(|scope| self.put_rules(&mut draft, &facts, &history, scope, &mut standing));
        if ruled.is_some() {
            (facts, sureness) = self.measured(&mut draft, &history, &window, attempt).boxed().await;
        }
        let mut granted = Granted::default();
        let breaks = attempt == Attempt::First && (history.ahead.is_some() || breaks(&draft, &facts));
        if let Some((view, made)) = self.grant(&draft.bench(), &standing, breaks) {
            (draft.old, granted) = (view, made);
            (facts, sureness) = self.measured(&mut draft, &history, &window, attempt).boxed().await;
        }
        let added = self.offer(&mut draft, &mut facts, tools.as_ref());
        let behind =
            history.ahead.as_ref().map_or(0, |ahead| facts.costs.iter().skip(ahead.depth).map(plan::Cost::total).sum());
        let lines =
            (draft.policy != policy.policy && attempt == Attempt::First).then(|| Lines::of(&facts, &policy.policy));
        let started = Instant::now();
        let mut drafted =
            self.drafted(&mut draft, facts, sureness, &history.chain, from_client, attempt).boxed().await?;
        // Before, the tools were not there.
        let added = added.saturating_add(self.done_cost(&draft));
        drafted.plan.before.tools = drafted.plan.before.tools.saturating_sub(added);
        if let Some(admitted) = &admitted {
            drafted.plan.before.tools = admitted.list.sent;
        }
        drafted.plan.before.system += indexed.as_ref().map_or(0, Indexed::saved);
        let Draft { key, warnings, own, request, held, done, pace, wanted, .. } = draft;
        drop(held);
        let request = Arc::unwrap_or_clone(request);
        let History { chain, located, id, session, stored, ahead, switched, client_marks, .. } = history;
        let mut seconds = started.elapsed().as_secs_f64();
        let mut before = drafted.plan.before;
        let changed = drafted.view != stored;
        let before_this = located.as_ref().map_or(chain.len(), |l| l.depth);
        let again = match attempt {
            Attempt::First => missed::missed(&request.conversation.body, &stored, before_this),
            Attempt::DryRun | Attempt::Emergency { .. } => Vec::new(),
        };
        let is_fork = located.as_ref().is_some_and(|l| l.conversation != id);
        let standing_new = ruled.is_some().then(|| standing::text(&standing));
        let standing_changed =
            granted.to_record(&standing, is_fork, folds(&drafted.view) != folds(&stored)).or(standing_new);
        let known = self.known(&id, &chain, &drafted.view, &key);
        let mut actions = layers(&drafted.plan, policy.policy.strategy);
        let mut because: Vec<String> = drafted.plan.because.iter().map(ToString::to_string).collect();
        let mut originals = drafted.originals;
        if let Some(ahead) = ahead {
            actions.extend(ahead.layers);
            because.splice(0..0, ahead.because);
            originals.extend(ahead.originals);
            seconds += ahead.seconds;
            // Without it, the prompt would be what was forwarded last and what came since.
            before = Regions { history: ahead.regions.0.history.saturating_add(behind), ..ahead.regions.0 };
        }
        originals.extend(granted.originals);
        because.splice(0..0, granted.because);
        in_order(&mut actions);
        because.splice(0..0, pace.reason(&drafted.plan));
        because.extend(repaired);
        because.extend(ruled.as_ref().map(Ruled::because));
        because.extend(admitted.as_ref().map(|a| a.because()));
        because.extend(indexed.as_ref().map(Indexed::because));
        originals.extend(indexed.iter().filter(|i| i.is_new).flat_map(|i| i.originals.clone()));
        debug!(%key, ?because, "prepared");
        Ok(Prepared {
            key,
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
            known,
            before,
            seconds,
            switched,
            after: drafted.plan.after,
            lines: lines.unwrap_or(drafted.plan.lines),
            actions,
            because,
            waits: drafted.plan.waits.iter().map(ToString::to_string).collect(),
            warnings,
            lowered: drafted.lowered,
            client_marks,
            tools,
            done,
            admitted,
            indexed,
            recalled: Vec::new(),
            first_prompt: None,
            missed: again,
            prefix: None,
            own,
            standing,
            standing_changed,
            scope,
            ruled,
            wanted,
            flight: None,
            id,
            request,
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
    pub(super) fn policy(
        &self,
        model: &str,
        window: &Window,
        header: Option<String>,
        task: Option<&str>,
    ) -> Arc<Resolved> {
        // What the server says of a model may be another once it is loaded, and nothing while the server does not answer.
        let key = (model.to_owned(), header, window.identity.clone(), task.map(str::to_owned));
        if let Some(known) = self.policies.lock().get(&key) {
            return Arc::clone(known);
        }
        let hints = ModelHints { parameters: window.parameters, template: window.template.as_deref() };
        let resolved = Arc::new(self.config.policy_for(model, &hints, key.1.as_deref(), task));
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
        history: &History,
        window: &Window,
        attempt: Attempt,
    ) -> (Facts, Sureness) {
        let request = Arc::clone(&draft.request);
        let conversation = &request.conversation;
        let (chain, forwarded) = (&history.chain, history.forwarded());
        let known = self.known(draft.id, chain, &draft.old, &draft.key);
        let mut facts = self.measure.facts(&draft.key, conversation, &draft.old, known);
        facts.window = window.tokens.unwrap_or(UNKNOWN_WINDOW);
        self.cost_of_hidden_calls(conversation, &mut facts, known.is_some());
        let configured = self.config.window.output_reserved;
        facts.output_reserved = plan::output_reserved(facts.window, facts.head(), draft.request.max_tokens, configured);
        facts.forwarded = forwarded;
        draft.wanted.tell(&mut facts);
        let mut sureness = self.measure.sureness(&draft.key);
        if known.is_some() && sureness == Sureness::Estimated {
            sureness = Sureness::Calibrated;
        }
        facts.slack = measure::slack(facts.window, if draft.can_count { Sureness::Counted } else { sureness });
        facts.guessed = !draft.can_count && sureness == Sureness::Estimated;
        if let Attempt::Emergency { refusal, counted } = attempt {
            draft.policy = emergency::policy(&draft.policy, facts.window, refusal);
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
        // By the model's own vocabulary a short one costs little; and who asks for a count wants one.
        let short = draft.own.is_some() && draft.request.body.len() <= COUNTED_ANYWAY;
        let cheap = short || attempt == Attempt::DryRun;
        let far = !cheap && (bound.is_some_and(|b| !near(b)) || !near(estimate));
        if !draft.can_count || far {
            if again && !draft.can_count && estimate > lines.limit && estimate / 2 <= lines.limit {
                // It was sent before, as it is, and estimates only change as more is learned. Should the window be another
                // now, the server will say so.
                emergency::scale(&mut facts, f64::from(lines.limit) / f64::from(estimate) * SENT_BEFORE);
            }
            return (facts, sureness);
        }
        let out = rewrite::rewrite(conversation, &draft.old, &draft.policy.template);
        let body = bytes_of(&request, &out);
        match exact(draft, &body).await {
            Ok((exact, counted_by)) => {
                // The costs follow the count, so that lines are compared with what the server will see.
                let wanted = attempt == Attempt::DryRun || near(exact) && body.len() <= SHARED_OUT;
                let shares = if wanted { self.shares(draft, &out, &body).await } else { None };
                let (counted, places) = shares.map_or((None, Vec::new()), |(c, p)| (Some(c), p));
                let sum = |f: &Facts| plan::plan(conversation, f, &draft.policy).before.prompt();
                spread::spread(&mut facts, counted.as_ref(), &places, exact, &sum);
                draft.counted = Some((exact, counted_by));
                let room = facts.window.saturating_sub(exact.max(sum(&facts))).saturating_sub(facts.slack);
                if again && room >= plan::least_reserve(facts.window) {
                    // It may have been sent with less kept for the reply: then that is what fits now, too.
                    facts.output_reserved = facts.output_reserved.min(room);
                }
                (facts, counted_by)
            }
            Err(e) => {
                warn!(upstream = draft.upstream.name(), error = %e, "the server could not count the prompt; estimating");
                draft.warnings.push("the prompt could not be counted, only estimated".into());
                facts.slack = measure::slack(facts.window, sureness);
                facts.guessed = sureness == Sureness::Estimated;
                if matches!(e, crate::upstream::Error::Status { .. }) {
                    // It will not take the request as it is: pictures for a model that cannot see. What media cost is then
                    // only a guess, and nothing is cut for a guess; the server's own words on it reach the client.
                    facts.costs.iter_mut().for_each(|cost| cost.media = 0);
                }
                (facts, sureness)
            }
        }
    }
}

/// Whether a request rewrites something that the server may hold: then other changes come at no price of their own.
fn breaks(draft: &Draft<'_>, facts: &Facts) -> bool {
    let plan = plan::plan(&draft.request.conversation, facts, &draft.policy);
    plan.actions.iter().any(|action| action.first() < facts.forwarded)
}

/// How far the fold of a view reaches.
fn folds(view: &View) -> usize {
    view.edits.iter().find_map(|edit| if let Edit::Fold { to, .. } = edit { Some(*to) } else { None }).unwrap_or(0)
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

/// The policy for a history that was forwarded before: the same history gives the same bytes, unless they no longer fit.
fn short_of_the_wall(policy: &Policy) -> Policy {
    Policy { clear_at: 1.0, summarize_at: 1.0, ..policy.clone() }
}

/// What tells one view from another, and the same view before another model, which counts it otherwise.
pub(super) fn fingerprint(view: &View, key: &ModelKey) -> Digest {
    Digest::of(&serde_json::to_vec(&(key.as_str(), &view.edits)).unwrap_or_default())
}

/// The bytes of a request with the messages of a view; the client's own where nothing differs.
pub(super) fn bytes_of(request: &Request, out: &[Out]) -> Bytes {
    let conversation = &request.conversation;
    let same = out.len() == conversation.system.len() + conversation.body.len()
        && out.iter().all(|m| !m.changed)
        && request.listed_tools.is_none();
    if same {
        return request.body.clone();
    }
    let messages: Vec<Bytes> = out.iter().map(|m| m.bytes.clone()).collect();
    openai_chat::write(request, &messages, &[])
}
