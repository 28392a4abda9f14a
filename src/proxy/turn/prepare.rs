//! From a request to the bytes that are forwarded, one value after the other: what it stands on ([`Situation`]), what stands
//! before its messages ([`Head`]), what it weighs ([`Measured`]), the plan and its view ([`Planned`]), and the request as it is
//! sent ([`Prepared`]).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use tracing::debug;

use super::admission::{Admitted, advice};
use super::draft::{Draft, Drafted, Settled};
use super::headers;
use super::history::{History, Switched};
use super::measured::{Measured, Wishes};
use super::prefix::Prefix;
use super::retold;
use super::situation::Situation;
use super::system::Indexed;
use crate::config::{Gauge, Resolved};
use crate::conversation::edit::{Edit, Rule, View};
use crate::conversation::{Digest, Message, Role, Tokens};
use crate::guard::triggers::Pace;
use crate::measure::window::Window;
use crate::measure::{self, Known, ModelKey, Sureness, own};
use crate::plan::emergency::Refusal;
use crate::plan::rewrite::Out;
use crate::plan::{self, Facts, Lines, Plan, Regions};
use crate::proxy::desk::rules::{Ruled, Scope};
use crate::proxy::standing::{self, Held, Standing};
use crate::proxy::view::Subject;
use crate::proxy::{App, Error, gauge};
use crate::recall::missed::{self, Missed};
use crate::store::{Located, Original};
use crate::upstream::Upstream;
use crate::usage::Reported;
use crate::wire::openai_chat::{self, Request};

/// The window that is assumed where nobody knows it: so large that nothing is ever rewritten for it.
pub(in crate::proxy) const UNKNOWN_WINDOW: Tokens = 1 << 30;

/// Why a request is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Attempt {
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
pub(in crate::proxy) struct Prepared {
    /// As the client sent it, but for the messages that had to be repaired.
    pub request: Request,
    /// What is believed of its model is kept under this key.
    pub key: ModelKey,
    /// Chain hash of each prefix of the body.
    pub chain: Vec<Digest>,
    /// Where the record knew this history before.
    pub located: Option<Located>,
    /// Whether this history is the beginning of a longer one that the record has: a chat that begins alike, or an earlier
    /// request sent again. The longer one stays as it is.
    pub repeats_a_beginning: bool,
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
    /// Known messages that are spelled otherwise than in the record, by index.
    pub respelled: Vec<usize>,
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
    pub flight: Option<crate::proxy::live::Flight>,
    /// What it takes of a pool that the slots of its server share.
    pub room: Option<crate::proxy::pool::Room>,
    /// How long it waited for that.
    pub waited: std::time::Duration,
    /// The client is to be told which of its stop sequences ended the reply.
    pub tells_stop: bool,
}

impl Prepared {
    /// The history and the forwarded view, from which a new view is made.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        Subject {
            conversation: &self.request.conversation,
            id: &self.id,
            key: &self.key,
            own: self.own.as_deref(),
            old: &self.view,
        }
    }

    /// The layers that acted, as they stand in the header.
    pub(in crate::proxy) fn action(&self) -> String {
        if self.actions.is_empty() { "none".into() } else { self.actions.join(",") }
    }

    /// What the conversation is called.
    pub(in crate::proxy) fn title(&self) -> String {
        self.standing.title.clone().unwrap_or_else(|| super::save::title(&self.request.conversation))
    }

    /// (prompt + output reserved) / window.
    pub(in crate::proxy) fn pressure(&self) -> f64 {
        let window = self.window.tokens.unwrap_or(UNKNOWN_WINDOW);
        f64::from(self.tokens + self.after.output_reserved) / f64::from(window.max(1))
    }

    /// Prompt tokens of what was planned, as the server counted them: without what was recalled.
    pub(in crate::proxy) fn counted(&self, reported: &Reported) -> Option<Tokens> {
        if self.recalled.is_empty() { reported.prompt } else { self.first_prompt }
    }

    /// Whether the server can have counted so many tokens in this prompt.
    pub(in crate::proxy) fn is_plausible(&self, reported: Tokens) -> bool {
        let sent = measure::Sent {
            planned: self.tokens,
            exact: matches!(self.sureness, Sureness::Counted | Sureness::Own(_)),
            window: self.window.tokens,
            most: measure::tokens::upper_bound(self.body.len(), &self.request.conversation),
        };
        measure::is_plausible(reported, sent)
    }

    /// Sets our headers on a reply.
    pub(in crate::proxy) fn mark(&self, to: &mut HeaderMap<HeaderValue>, gauge: &Gauge) {
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
        if !self.waited.is_zero() {
            headers::set(to, "x-windowsill-waited", &format!("{:.1}; for=room", self.waited.as_secs_f64()));
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
        headers::warn(to, &self.warnings);
    }
}

/// What stands before the messages of a prompt: the client's tools and instructions, by index where that is asked for, and the
/// tools of ours.
pub(in crate::proxy) struct Head {
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    tools: Option<Bytes>,
    /// Whether the model has the tool that says that a task is done.
    pub(in crate::proxy) done: bool,
    admitted: Option<Arc<Admitted>>,
    indexed: Option<Indexed>,
    /// What the client is told.
    pub(in crate::proxy) warnings: Vec<String>,
}

/// A plan that fits, with what became of the request.
struct Planned {
    drafted: Drafted,
    /// The client's history, with edits made earlier.
    before: Regions,
    /// The lines that were looked at.
    lines: Lines,
    /// Seconds that making the view took, with what was made ahead of it.
    seconds: f64,
}

impl App {
    /// Measures, plans and applies.
    ///
    /// # Errors
    /// What the client must be told: what the guardrails refuse, or a prompt that cannot be made to fit.
    pub(in crate::proxy) async fn prepare(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        mut request: Request,
        from_client: &HeaderMap,
        attempt: Attempt,
    ) -> Result<Prepared, Error> {
        let situation = self.situation(upstream, &mut request, from_client, attempt).boxed().await?;
        let mut head = self.head(&situation, &mut request)?;
        // Only now: the record holds the messages as they came, and the next model may take more.
        head.warnings.extend(retold::tell(&mut request, &situation.window.takes));
        let Measured { mut draft, facts, sureness, wishes } = self.measured(&situation, &head, request).boxed().await;
        let planned = match self.planned(&mut draft, facts, sureness, &head).boxed().await {
            Err(refused) if refused.is_too_long() && attempt == Attempt::First && !sureness.is_exact() => {
                let (facts, sureness) = self.uncounted(&draft, false);
                let planned = self.planned(&mut draft, facts, sureness, &head).boxed().await;
                planned.map_err(|_| refused)?
            }
            planned => planned?,
        };
        let mut settled = draft.settled();
        let by_index = head.admitted.is_some();
        settled.warnings.extend(advice(&settled.request, by_index, situation.window.tokens, &planned.drafted.plan));
        let mut prepared = self.prepared(situation, head, wishes, planned, settled);
        gauge::settle(&self.measure, &mut prepared, attempt);
        debug!(key = %prepared.key, because = ?prepared.because, "prepared");
        Ok(prepared)
    }

    /// Puts together what stands before the messages.
    fn head(&self, situation: &Situation<'_>, request: &mut Request) -> Result<Head, Error> {
        let Situation { history, policy, from_client, .. } = situation;
        let mut warnings = Vec::new();
        let admitted = self.admit(request, situation, &mut warnings)?;
        let done = self.offer_done(request, policy, from_client);
        let tools = self.tool_for(request, policy, from_client);
        let (listed, readable) = (admitted.as_deref(), tools.is_some());
        let indexed = self.index_system(request, situation, listed, readable, &mut warnings)?;
        // Where the view had no room for it, it stays out while the view is the same.
        let wanted = history.old().lacks() && !history.old().bare || indexed.is_some();
        if let Some(tools) = tools.as_ref().filter(|_| wanted) {
            request.offer(tools.clone());
        }
        Ok(Head { tools, done, admitted, indexed, warnings })
    }

    /// Plans and makes the view. What was counted in its favor before is told of the history as the client sent it.
    async fn planned(
        self: &Arc<Self>,
        draft: &mut Draft<'_>,
        facts: Facts,
        sureness: Sureness,
        head: &Head,
    ) -> Result<Planned, Error> {
        let situation = draft.situation;
        let since = |depth: usize| facts.costs.iter().skip(depth).map(plan::Cost::total).sum();
        let ahead = situation.history.ahead.as_ref().map(|ahead| (ahead, since(ahead.depth)));
        let usual = &situation.policy.policy;
        let is_other = draft.policy != *usual && situation.attempt == Attempt::First;
        let lines = is_other.then(|| Lines::of(&facts, usual));
        let started = Instant::now();
        let drafted = self.drafted(draft, facts, sureness, head.tools.as_ref()).boxed().await?;
        let mut seconds = started.elapsed().as_secs_f64();
        let mut before = drafted.plan.before;
        // Before, the tools were not there.
        before.tools = match &head.admitted {
            Some(admitted) => admitted.list.sent,
            None => before.tools.saturating_sub(drafted.added),
        };
        before.system += head.indexed.as_ref().map_or(0, Indexed::saved);
        if let Some((ahead, since)) = ahead {
            seconds += ahead.seconds;
            // Without it, the prompt would be what was forwarded last and what came since.
            let was = ahead.regions.0;
            before = Regions { history: was.history.saturating_add(since), ..was };
        }
        let lines = lines.unwrap_or(drafted.plan.lines);
        Ok(Planned { drafted, before, lines, seconds })
    }

    /// The request as it is sent, and all that is told and kept of it.
    fn prepared(
        &self,
        situation: Situation<'_>,
        head: Head,
        wishes: Wishes,
        planned: Planned,
        settled: Settled,
    ) -> Prepared {
        let actions = actions(&situation, &planned.drafted.plan);
        let because = because(&situation, &head, &wishes, &planned);
        let Situation { attempt, window, policy, history, key, own, pace, .. } = situation;
        let Head { tools, admitted, indexed, .. } = head;
        let Wishes { standing, scope, ruled, granted } = wishes;
        let Planned { drafted, before, lines, seconds } = planned;
        let Settled { request, done, wanted, mut warnings } = settled;
        warnings.extend(cut(&drafted.view, &request.conversation.body));
        let is_fork = history.inherits.is_some();
        let History { chain, located, repeats_a_beginning, id, session, stored, ahead, switched, .. } = history;
        let History { client_marks, respelled, .. } = history;
        let left_out = indexed.iter().filter(|i| i.is_new).flat_map(|i| i.originals.clone());
        let made_ahead = ahead.into_iter().flat_map(|ahead| ahead.originals);
        let before_this = located.as_ref().map_or(chain.len(), |l| l.depth);
        let bare = tools.is_some() && drafted.view.lacks() && !request.offers();
        let view = View { bare, ..drafted.view };
        let missed = match attempt {
            Attempt::First => missed::missed(&request.conversation.body, &stored, before_this),
            Attempt::DryRun | Attempt::Emergency { .. } => Vec::new(),
        };
        let standing_new = ruled.is_some().then(|| standing::text(&standing));
        let standing_changed = granted.to_record(&standing, is_fork, folds(&view) != folds(&stored)).or(standing_new);
        let more = made_ahead.chain(granted.originals).chain(left_out);
        Prepared {
            known: self.known(&id, &chain, &view, &key),
            view_changed: view != stored,
            view: View { messages: request.conversation.body.len(), ..view },
            originals: drafted.originals.into_iter().chain(more).collect(),
            actions,
            because,
            waits: waits(&pace, &drafted.plan),
            after: drafted.plan.after,
            out: drafted.out,
            body: drafted.body,
            tokens: drafted.tokens,
            sureness: drafted.sureness,
            lowered: drafted.lowered,
            recalled: Vec::new(),
            first_prompt: None,
            prefix: None,
            flight: None,
            room: None,
            waited: std::time::Duration::ZERO,
            tells_stop: false,
            wanted,
            key,
            chain,
            located,
            repeats_a_beginning,
            id,
            session,
            window,
            policy,
            before,
            seconds,
            switched,
            lines,
            warnings,
            client_marks,
            respelled,
            tools,
            done,
            admitted,
            indexed,
            missed,
            own,
            standing,
            standing_changed,
            scope,
            ruled,
            request,
        }
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
fn actions(situation: &Situation<'_>, plan: &Plan) -> Vec<&'static str> {
    let mut out = layers(plan, situation.policy.policy.strategy);
    out.extend(situation.history.ahead.iter().flat_map(|ahead| &ahead.layers));
    in_order(&mut out);
    out
}

/// Why the request is sent as it is, in words without message text: the pace, what people asked for, what was made ahead, the
/// plan, and what was done to its head.
fn because(situation: &Situation<'_>, head: &Head, wishes: &Wishes, planned: &Planned) -> Vec<String> {
    let plan = &planned.drafted.plan;
    let mut out: Vec<String> = situation.pace.reason(plan).into_iter().collect();
    out.extend(wishes.granted.because.iter().cloned());
    out.extend(situation.history.ahead.iter().flat_map(|ahead| ahead.because.iter().cloned()));
    out.extend(gauge::reasons(&plan.because, planned.before.prompt(), planned.drafted.tokens));
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

/// The layers that a plan's actions belong to.
pub(in crate::proxy) fn layers(plan: &Plan, strategy: plan::Strategy) -> Vec<&'static str> {
    let mut out = plan.actions.iter().map(|action| action.layer(strategy)).collect();
    in_order(&mut out);
    out
}

fn in_order(layers: &mut Vec<&'static str>) {
    let order = ["evict", "clear", "summarize", "truncate"];
    layers.sort_by_key(|a| order.iter().position(|o| o == a));
    layers.dedup();
}

/// What tells one view from another, and the same view before another model, which counts it otherwise.
pub(in crate::proxy) fn fingerprint(view: &View, key: &ModelKey) -> Digest {
    Digest::of(&serde_json::to_vec(&(key.as_str(), &view.edits)).unwrap_or_default())
}

/// The bytes of a request with the messages of a view; the client's own where nothing differs.
pub(in crate::proxy) fn bytes_of(request: &Request, out: &[Out]) -> Bytes {
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
