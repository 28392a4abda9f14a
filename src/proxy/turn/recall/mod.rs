//! The tool that windowsill answers itself, within one reply: the model calls it, the call is run against the record, and
//! the model goes on; the client sees one ordinary reply.
//!
//! The tool is offered from the first prompt on that lacks something, and then always, since the tools stand at the head of
//! a prompt: whether a view has edits says it, also after a restart. A call and its result stand in the history from then on
//! ([`crate::recall::weave`]), so that the next prompt begins with this one.
//!
//! Of the figures that the client gets, `completion_tokens` is the sum over the rounds, and `prompt_tokens` that of the last:
//! what the window now holds. The rounds before are accounted for under the role `recall`.

pub(in crate::proxy) mod files;
mod filter;
mod lookup;
pub(in crate::proxy) mod offer;
mod stream;
mod told;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use filter::{Call, Filter, call_json};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::prepared::Prepared;
use super::replied::Keeper;
use super::{opening, refused, relay};
use crate::clock::now_ms;
use crate::conversation::{Digest, Tokens, repair};
use crate::plan::rewrite::Out;
use crate::proxy::turn::account::{Closing, Outcome, account, spend};
use crate::proxy::turn::completed::done_within;
use crate::proxy::turn::prefix::note_recalled;
use crate::proxy::turn::recall::lookup::recalled;
use crate::proxy::turn::recall::told::told_of_tools;
use crate::proxy::turn::whole::{LARGEST_BUFFERED, read_up_to, too_large};
use crate::proxy::{App, Error, aside};
use crate::recall::{self, done, memory};
use crate::store::{Batch, Event, Recalled};
use crate::upstream::event::Says;
use crate::upstream::{ChatOptions, Reply, Upstream};
use crate::usage::Reported;
use crate::wire::{json as spelled, openai_chat, reply};
use crate::{admission, measure};

pub(in crate::proxy) use filter::answered::Answered;
pub(in crate::proxy) use lookup::{as_shown, left_the_prompt};

/// Rounds of one reply that may end in calls of ours. The one behind them has no such tool.
const ROUNDS: usize = 4;

/// Calls of ours in one round that are answered; a model that writes more is stuck.
const CALLS: usize = 8;

/// Share of the window that the results of one round may take together.
const SHARE: u32 = 6;

/// Tokens that one of several results may take, where the room lasts.
const PART: Tokens = 320;

/// What stands for a result that the window has no room for after all.
const NO_ROOM: &str = "[no room: the context window is full. Go on with what is there]";

/// What stands for an older result of the same reply that made room for a newer one.
const MADE_ROOM: &str = "[taken out again to make room for what was asked for after it]";

/// What a model is told that says a task is done while it calls tools of the client.
const OPEN: &str =
    "[not noted: other tools were called with it. Call windowsill_done alone, once their results are there]";

/// Bytes of a token at most, nearly: tokens of more are runs of spaces and the like.
const BYTES_A_TOKEN: usize = 32;

/// So many bytes of a reply are kept with the smallest window, too.
const LEAST_KEPT: usize = 256 * 1024;

/// Fields that make every token of a reply count: text of ours between two rounds would be one too many.
const EXACT: [&str; 5] = ["response_format", "logprobs", "grammar", "json_schema", "prediction"];

/// Where a reply of several rounds is.
struct Rounds {
    /// The round, from 0.
    at: usize,
    started: Instant,
    /// Tokens that the rounds before it wrote.
    wrote: Tokens,
    /// Where something was recalled, prompt tokens of the first round as the server counted them.
    first_prompt: Option<Tokens>,
}

/// One reply in the making, over all of its rounds.
pub(in crate::proxy) struct Answering {
    app: Arc<App>,
    upstream: Arc<Upstream>,
    headers: HeaderMap,
    path: String,
    /// Taken when it is accounted for.
    prepared: Option<Prepared>,
    started: Instant,
    filter: Filter,
    /// What the server reported of this round.
    pub(in crate::proxy) reported: Reported,
    rounds: Rounds,
    /// Messages of ours behind the prompt: calls and results.
    made: Vec<Bytes>,
    /// Of these, how many stood there before this round's.
    settled: usize,
    /// The window, less what the prompt of the next round takes.
    left: Option<Tokens>,
    remembered: bool,
    keeper: Option<Keeper>,
}

/// What keeps a reply from going on.
pub(in crate::proxy) enum Stopped {
    /// The server cannot be reached.
    Gone(Error),
    /// It answered with an error.
    Refused(Reply),
}

impl Answering {
    pub(in crate::proxy) fn new(
        app: Arc<App>,
        upstream: Arc<Upstream>,
        headers: HeaderMap,
        path: String,
        prepared: Prepared,
        started: Instant,
    ) -> Answering {
        let (exact, may_call) = aside::once(prepared.made.body.len(), || asked_for(&prepared.made.body));
        let most = longest_reply(prepared.window.tokens);
        // Without the tool in the prompt, a text that looks like a call of it is a text.
        let at_head = prepared.head.at_head;
        let tools =
            [(recall::NAME, prepared.request.offers()), (done::NAME, at_head.done), (memory::NAME, at_head.memory)];
        let spoken = tools.into_iter().filter(|(_, has)| may_call && *has).map(|(name, _)| name).collect();
        let answered = prepared.answered();
        let keeper = Keeper::of(&app.store, &prepared);
        Answering {
            app,
            upstream,
            headers,
            path,
            prepared: Some(prepared),
            started,
            filter: Filter::new(!exact, spoken, most, answered),
            reported: Reported::default(),
            rounds: Rounds { at: 0, started, wrote: 0, first_prompt: None },
            made: Vec::new(),
            settled: 0,
            left: None,
            remembered: false,
            keeper,
        }
    }

    /// Runs the calls of the round that ended.
    async fn answer(&mut self, calls: &[Call]) {
        let Some(prepared) = &self.prepared else { return };
        let key = &prepared.key;
        let (mut room, mut left) = self.room(prepared, 0);
        if room < PART.min(prepared.window.tokens.unwrap_or(0) / SHARE) {
            // What this reply read before has been read; what it asks for now has not.
            let count = |raw: &Bytes| self.app.measure.count(key, &String::from_utf8_lossy(raw));
            let freed = take_out(&mut self.made, &count);
            (room, left) = self.room(prepared, freed);
        }
        // Parts too small to read anything of are no use to anybody: then the first calls get theirs.
        let budget = (room / Tokens::try_from(calls.len().clamp(1, CALLS)).unwrap_or(1)).max(PART);
        let alone = self.filter.goes_on();
        let (mut written, mut results, mut taught) = (Vec::new(), Vec::new(), Vec::new());
        for (at, call) in calls.iter().enumerate() {
            let id = if call.id.is_empty() { self.new_id(prepared, at) } else { call.id.clone() };
            let (name, arguments) = as_ours(call);
            let text = match at {
                ..CALLS if recall::is_ours(name) => {
                    recalled(&self.app, prepared, &call.arguments, budget.min(room)).await.text
                }
                ..CALLS if done::is_ours(name) && !alone => OPEN.to_owned(),
                ..CALLS if done::is_ours(name) => {
                    done_within(&self.app, prepared, &call.arguments, &self.filter.text).await
                }
                ..CALLS if memory::is_ours(name) => {
                    files::answered(&self.app, prepared, &call.arguments, budget.min(room)).await
                }
                ..CALLS => {
                    let (text, names) = told_of_tools(
                        &self.app,
                        prepared,
                        self.filter.answered(),
                        (&call.name, &call.arguments),
                        budget.min(room),
                    );
                    taught.extend(names);
                    text
                }
                _ => format!("[left out: at most {CALLS} calls at once]"),
            };
            room = room.saturating_sub(self.app.measure.count(key, &text));
            let extra = call.extra.clone();
            written.push(call_json(&Call { id: id.clone(), name: name.into(), arguments, extra }));
            results.push(openai_chat::new_result(&id, &text));
        }
        let mut message = json!({"role": "assistant", "content": null, "tool_calls": written});
        if alone && !self.filter.text.is_empty() {
            message["content"] = json!(self.filter.text);
        }
        if alone && !self.filter.reasoning.is_empty() {
            // Templates show it within the turn, and models that think between calls want it.
            message["reasoning_content"] = json!(self.filter.reasoning);
        }
        let all = std::iter::once(Bytes::from(message.to_string())).chain(results);
        let messages = all.filter_map(|raw| openai_chat::message(raw).ok()).collect();
        // Arguments that are no object, ids of a shape that the template refuses.
        let repaired = repair::repair(messages, prepared.policy.policy.template.tool_call_id_length);
        self.settled = self.made.len();
        let bodies: Vec<Bytes> = repaired.unwrap_or_default().body.iter().map(|m| m.bytes().clone()).collect();
        let added: Tokens = bodies.iter().map(|m| self.app.measure.count(key, &String::from_utf8_lossy(m))).sum();
        self.left = left.map(|left| left.saturating_sub(added));
        self.made.extend(bodies);
        info!(conversation = %prepared.id, round = self.rounds.at, calls = calls.len(), budget, "recalled");
        self.filter.taught(taught);
    }

    /// Whether another round follows this one, as far as it came.
    pub(in crate::proxy) fn goes_on_now(&self) -> bool {
        self.filter.goes_on()
    }

    /// Whether the model has no tool of ours any more.
    fn is_last(&self) -> bool {
        self.rounds.at >= ROUNDS
    }

    /// An id for a call without one.
    fn new_id(&self, prepared: &Prepared, at: usize) -> String {
        let tip = prepared.history.chain.last().copied().unwrap_or_default();
        let digest = Digest::of(format!("recall {} {} {at}", tip.hex(), self.rounds.at).as_bytes());
        format!("call_{}", &digest.hex()[..16])
    }

    /// Tokens that the results of this round may take: what the window has left, and never so many that a result would be
    /// evicted on the next turn. And what is left without them. `freed`: tokens of the prompt that the server reported which do not
    /// stand in the next one.
    fn room(&self, prepared: &Prepared, freed: Tokens) -> (Tokens, Option<Tokens>) {
        let key = &prepared.key;
        let Some(window) = prepared.window.tokens else { return (0, None) };
        // A window holds no more than itself, whatever a server says.
        let reported = self.reported.prompt.filter(|prompt| *prompt <= window);
        let held = match (reported, self.reported.completion) {
            (Some(prompt), wrote) => {
                let wrote = wrote.unwrap_or_else(|| self.app.measure.count(key, &self.filter.text) + 64);
                prompt.saturating_sub(freed) + wrote
            }
            _ => {
                let made = self.made_tokens(prepared);
                prepared.made.tokens + made + self.app.measure.count(key, &self.filter.text) + 64
            }
        };
        let taken = held + prepared.made.after.output_reserved + measure::slack(window, prepared.made.sureness);
        let most = (prepared.made.lines.evict_over / 4 * 3).min(window / SHARE);
        (window.saturating_sub(taken).min(most), Some(window.saturating_sub(held)))
    }

    /// Tokens of the calls and results behind the prompt.
    fn made_tokens(&self, prepared: &Prepared) -> Tokens {
        self.made.iter().map(|m| self.app.measure.count(&prepared.key, &String::from_utf8_lossy(m))).sum()
    }

    /// Sends the prompt with what was recalled behind it. Where that is too much after all, without the newest results; and
    /// where the calls alone are too much, without this round and without the tool.
    async fn again(&mut self) -> Result<Reply, Stopped> {
        self.account_round();
        let wrote = self.reported.completion.unwrap_or(0);
        self.rounds.wrote = self.rounds.wrote.saturating_add(wrote);
        self.rounds.at += 1;
        self.filter.next_round(wrote, self.rounds.at >= ROUNDS);
        self.reported = Reported::default();
        self.rounds.started = Instant::now();
        let mut reply = self.send().await?;
        if refused::is_too_long(&mut reply).await {
            warn!("the server refused the prompt with what was recalled; again without the newest results");
            for raw in &mut self.made[self.settled..] {
                if openai_chat::message(raw.clone()).is_ok_and(|m| m.role == crate::conversation::Role::Tool) {
                    *raw = openai_chat::with_text(raw, NO_ROOM);
                }
            }
            reply = self.send().await?;
        }
        if refused::is_too_long(&mut reply).await {
            warn!("the server refused the prompt with the calls alone; again without them and the tool");
            self.made.truncate(self.settled);
            self.left = self.prepared.as_ref().and_then(|prepared| {
                Some(
                    prepared
                        .window
                        .tokens?
                        .saturating_sub(prepared.made.tokens)
                        .saturating_sub(self.made_tokens(prepared)),
                )
            });
            self.rounds.at = ROUNDS;
            self.filter.make_last();
            reply = self.send().await?;
        }
        if reply.status.is_success() { Ok(reply) } else { Err(Stopped::Refused(reply)) }
    }

    async fn send(&self) -> Result<Reply, Stopped> {
        let Some(prepared) = &self.prepared else {
            return Err(Stopped::Gone(Error::Internal { doing: "go on with a reply", source: "it is over".into() }));
        };
        let (num_ctx, tells_stop) = (prepared.window.set, prepared.sending.tells_stop);
        let options = ChatOptions { num_ctx, tells_stop, ..ChatOptions::default() };
        let body = aside::once(prepared.made.body.len(), || self.body(prepared));
        let reply = self.upstream.chat(&self.headers, &self.path, body, options).await;
        let reply = reply.map_err(|e| Stopped::Gone(e.into()))?;
        opening::opened(reply, prepared.request.stream).await.map_err(Stopped::Gone)
    }

    /// The request as it was sent, with what was recalled behind its messages.
    fn body(&self, prepared: &Prepared) -> Bytes {
        let text = String::from_utf8_lossy(&prepared.made.body);
        let all = prepared.made.out.iter().map(|m| &m.bytes).chain(&self.made);
        let spelled: Vec<std::borrow::Cow<'_, str>> = all.map(|m| String::from_utf8_lossy(m)).collect();
        let messages = format!("[{}]", spelled.join(","));
        let mut changes = vec![("messages", Some(messages.as_str()))];
        // What was written so far counts.
        let fields = spelled::Fields::read(&text).ok();
        let left: Vec<(&str, String)> = ["max_tokens", "max_completion_tokens", "n_predict"]
            .into_iter()
            .filter_map(|k| {
                let most = fields.as_ref()?.get(k)?.parse::<f64>().ok().filter(|n| *n >= 1.0)?;
                let room = self.left.map_or(most, f64::from);
                Some((k, (most - f64::from(self.rounds.wrote)).min(room).max(1.0).to_string()))
            })
            .collect();
        changes.extend(left.iter().map(|(k, v)| (*k, Some(v.as_str()))));
        let own = prepared.request.own_tools().map(|own| prepared.head.at_head.without(own));
        let own = own.as_deref().map(String::from_utf8_lossy);
        if self.rounds.at >= ROUNDS {
            // It has read enough. The head of the prompt is another one for this once.
            changes.push(("tools", own.as_deref()));
        }
        spelled::with_fields(&text, &changes).unwrap_or_else(|_| prepared.made.body.clone())
    }

    /// Notes what was recalled, before the client can come back with the reply.
    pub(in crate::proxy) async fn remember(&mut self) {
        let Some(recalled) = self.unremembered() else { return };
        if let Err(e) = self.app.store.record(Batch { recalled: Some(recalled), ..Batch::default() }).await {
            warn!(error = %e, "what was recalled is not in the record: the next prompt will lack it");
        }
    }

    fn unremembered(&mut self) -> Option<Recalled> {
        let chain = *self.prepared.as_ref()?.history.chain.last()?;
        // A reply without any is only noted where another reply to the same prompt had some.
        if self.remembered || self.filter.is_endless() || self.made.is_empty() && !self.app.store.recalls().any(&chain)
        {
            return None;
        }
        self.remembered = true;
        let reply = openai_chat::message(Bytes::from(self.filter.message().to_string())).ok()?.digest;
        Some(Recalled { chain, reply, messages: self.made.clone() })
    }

    /// Puts what the client has of the reply on record.
    pub(in crate::proxy) async fn keep(&mut self) {
        let said = self.said();
        if let Some(keeper) = self.keeper.as_mut().filter(|_| !self.filter.goes_on()) {
            keeper.keep(said).await;
        }
    }

    /// What the client has of the reply. What was longer than can be kept is not the whole of anything.
    fn said(&self) -> Option<Value> {
        reply::said(&self.filter.message()).filter(|_| !self.filter.is_endless())
    }

    /// Accounts for a round that was not the last.
    fn account_round(&mut self) {
        let Some(prepared) = &self.prepared else { return };
        if self.rounds.at == 0 {
            self.rounds.first_prompt = self.reported.prompt;
        }
        self.app.metrics.spend("recall", &self.reported);
        spend(&self.app, prepared, &self.reported);
        self.app.lives.with(&prepared.id, |l| l.accounts.spend.add_round(&self.reported));
        let milliseconds = self.rounds.started.elapsed().as_millis() as u64;
        let model = (&*self.upstream, prepared.request.model.as_str());
        let data = self.reported.event("recall", model, prepared.made.tokens, milliseconds);
        let event =
            Event { now_ms: now_ms(), conversation: Some(prepared.id.clone()), kind: "model_usage".into(), data };
        if let Err(e) = self.app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
            debug!(error = %e, "an event was not recorded");
        }
    }

    /// Takes in how it ended. Only the first call counts.
    pub(in crate::proxy) fn finish(&mut self, end: relay::End) -> Option<Closing> {
        // A reply that broke off before it recalled anything takes the place of no other reply to the same prompt.
        let counts = matches!(end, relay::End::Complete) || !self.made.is_empty();
        if let Some(recalled) = counts.then(|| self.unremembered()).flatten()
            && let Err(e) = self.app.store.record_next(Batch { recalled: Some(recalled), ..Batch::default() })
        {
            debug!(error = %e, "what was recalled is not in the record");
        }
        let prepared = self.prepared.take()?;
        let said = self.said();
        let reply = self.keeper.take().and_then(|mut keeper| keeper.reply(said));
        if self.rounds.at == 0 && !self.made.is_empty() {
            self.rounds.first_prompt = self.reported.prompt;
        }
        let recalled: Vec<Out> = self.made.iter().filter_map(as_out).collect();
        note_recalled(&self.app, &prepared, &recalled);
        let mut reported = std::mem::take(&mut self.reported);
        reported.called_tools = self.filter.calls_client();
        let outcome = Outcome { reported, recalled, first_prompt: self.rounds.first_prompt, end };
        let upstream = Arc::clone(&self.upstream);
        Some(account(&self.app, upstream, &self.headers, prepared, (outcome, reply), self.started))
    }

    /// Answers a reply that came whole.
    pub(in crate::proxy) async fn whole(&mut self, first: Bytes) -> Result<Bytes, Stopped> {
        let answered = self.rounds(first).await;
        let end = match &answered {
            Ok(_) => relay::End::Complete,
            Err(_) => relay::End::Failed("the reply could not go on".into()),
        };
        if let Some(closing) = self.finish(end) {
            closing.now().await;
        }
        answered
    }

    async fn rounds(&mut self, first: Bytes) -> Result<Bytes, Stopped> {
        let mut bytes = first;
        loop {
            let Ok(value) = aside::once(bytes.len(), || serde_json::from_slice(&bytes)) else { break };
            let says = Says::Chunk(value);
            self.reported.hear(&says);
            let Says::Chunk(value) = says else { break };
            let Some((value, changed)) = self.filter.whole(value) else { break };
            let calls = self.filter.ours();
            let more = self.filter.goes_on();
            if !calls.is_empty() && !self.is_last() {
                self.answer(&calls).await;
            }
            if !more {
                bytes = if changed { Bytes::from(value.to_string()) } else { bytes };
                break;
            }
            let reply = self.again().await?;
            bytes = match read_up_to(reply.body, LARGEST_BUFFERED).await {
                Ok((bytes, None)) => bytes,
                Ok((_, Some(_))) => return Err(Stopped::Gone(too_large("put behind what was recalled"))),
                Err(e) => return Err(Stopped::Gone(e)),
            };
        }
        self.remember().await;
        Ok(bytes)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(closing) = self.finish(relay::End::Canceled) {
            closing.later();
        }
    }
}

/// Whether every token of the reply to a request counts, and whether the model may call tools.
fn asked_for(body: &[u8]) -> (bool, bool) {
    let body = String::from_utf8_lossy(body);
    let Ok(fields) = spelled::Fields::read(&body) else { return (false, false) };
    let exact = EXACT.iter().any(|k| fields.get(k).is_some_and(|v| !matches!(v, "null" | "false")));
    (exact, fields.string("tool_choice").as_deref() != Some("none"))
}

/// Takes the results that a reply read out of its messages again. Returns how many tokens that frees.
fn take_out(made: &mut [Bytes], count: &dyn Fn(&Bytes) -> Tokens) -> Tokens {
    let mut freed: Tokens = 0;
    for raw in made {
        let is_result = openai_chat::message(raw.clone()).is_ok_and(|m| m.role == crate::conversation::Role::Tool);
        let short = openai_chat::with_text(raw, MADE_ROOM);
        let (before, after) = (count(raw), count(&short));
        if is_result && after < before {
            *raw = short;
            freed = freed.saturating_add(before - after);
        }
    }
    freed
}

/// The most bytes that a reply is kept of, with a window of so many tokens: no reply is longer than its window, and hardly any
/// token than these bytes.
fn longest_reply(window: Option<Tokens>) -> usize {
    let bytes = window.map_or(LARGEST_BUFFERED, |window| (window as usize).saturating_mul(BYTES_A_TOKEN));
    bytes.clamp(LEAST_KEPT, LARGEST_BUFFERED)
}

/// An error reply as the client may see it.
pub(in crate::proxy) async fn refusal(reply: Reply) -> Result<(StatusCode, Bytes), Error> {
    let (bytes, _) = read_up_to(reply.body, 1 << 20).await?;
    Ok((reply.status, bytes))
}

/// A call as it stands in the prompt: of a tool that the list does not show, through the index.
fn as_ours(call: &Call) -> (&'static str, String) {
    if recall::is_ours(&call.name) {
        return (recall::NAME, call.arguments.clone());
    }
    if done::is_ours(&call.name) {
        return (done::NAME, call.arguments.clone());
    }
    if memory::is_ours(&call.name) {
        return (memory::NAME, call.arguments.clone());
    }
    if call.name.ends_with(admission::NAME) {
        return (admission::NAME, call.arguments.clone());
    }
    let hidden = [call.name.clone()].into();
    let message = json!({"tool_calls": [call_json(call)]}).to_string();
    let through =
        admission::through(message.as_bytes(), &hidden).and_then(|m| serde_json::from_slice::<Value>(&m).ok());
    let arguments = through.as_ref().and_then(|m| m.pointer("/tool_calls/0/function/arguments")?.as_str());
    (admission::NAME, arguments.unwrap_or(&call.arguments).to_owned())
}

fn as_out(raw: &Bytes) -> Option<Out> {
    let message = openai_chat::message(raw.clone()).ok()?;
    Some(Out { bytes: raw.clone(), role: message.role, at: None, calls: !message.calls.is_empty(), changed: true })
}
