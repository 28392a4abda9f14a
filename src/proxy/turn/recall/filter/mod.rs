//! Pure: takes the calls of our tool out of a reply, and leaves all else as it is. A chunk of the stream in, what of it the
//! client may see out; the same for a whole reply. Several rounds read as one reply.

pub(super) mod answered;
mod settle;

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use self::answered::{Answered, Held};
use crate::conversation::Tokens;
use crate::recall::spoken;
use crate::wire::extra;

/// A call of our tool, as the model wrote it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    /// What its server must hear again with it, see [`extra`].
    pub(super) extra: Option<Value>,
}

/// Calls of one round that are looked at. A model that writes more is stuck or means harm: what follows is the client's and passes
/// on, so that a call costs the same however many stand before it.
const LOOKED_AT: usize = 256;

/// What a fragment of a call is taken to weigh beside its text (bytes).
const FRAGMENT: usize = 64;

/// Whose call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The name is not whole yet.
    Unknown,
    /// Whether it goes to the client is known once it is whole.
    Held,
    Ours,
    /// The client's; its index in what the client sees.
    Client(usize),
}

/// A call in the making.
#[derive(Debug)]
struct Partial {
    index: u64,
    call: Call,
    whose: Whose,
    /// Fragments that came before it was known whose it is.
    held: Vec<Value>,
    /// It goes to the client as another call than the model wrote.
    instead: bool,
    /// Bytes of its arguments when it was found to be answered here.
    judged: Option<usize>,
}

impl Partial {
    fn new(index: u64, call: Call, whose: Whose) -> Partial {
        Partial { index, call, whose, held: Vec::new(), instead: false, judged: None }
    }
}

/// The calls of a round.
#[derive(Debug, Default)]
struct Calls {
    /// At most [`LOOKED_AT`].
    all: Vec<Partial>,
    /// The last of the calls behind these, at most [`LOOKED_AT`] again: the server's number, which several may share, the id, and
    /// the number that the client has.
    passed: VecDeque<(u64, String, usize)>,
    /// A whole reply has more calls than are looked at.
    many: bool,
    /// Calls of this round that the client has.
    clients: usize,
    /// One came in the form that OpenAI had before `tool_calls`.
    older: bool,
}

/// What the client saw of the earlier rounds.
#[derive(Debug, Default)]
struct Earlier {
    text: String,
    reasoning: String,
    /// Tokens that they wrote.
    tokens: Tokens,
}

/// Calls that a model writes as text.
#[derive(Debug, Default)]
struct Spoken {
    /// The tools that the model may call so.
    tools: Vec<&'static str>,
    /// Text that may still become a call of ours.
    held: String,
    /// Whether text of this round can be such a call at all: nothing else was said before.
    listens: bool,
}

/// Reads one reply over all of its rounds.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Which calls are answered here.
    answered: Answered,
    /// What the client knows the reply by: `id`, `created` of the first round.
    head: Option<(Value, Value)>,
    round: usize,
    calls: Calls,
    /// Text and reasoning of this round.
    pub(super) text: String,
    pub(super) reasoning: String,
    earlier: Earlier,
    /// Text of this round is set apart from that before it.
    apart: bool,
    role_seen: bool,
    spoken: Spoken,
    /// No further round follows.
    last: bool,
    /// Bytes of the reply that may still be kept.
    room: usize,
    /// The reply was longer than can be kept: it passes on, and no call of ours in it is answered.
    endless: bool,
    finish: Option<String>,
}

impl Filter {
    /// `apart`: whether text of two rounds may be set apart by a blank line; not where each token must be accounted for.
    /// `spoken`: the tools that text can be a call of; none where the client wants no calls.
    /// `most`: bytes of the reply that are kept.
    pub(super) fn new(apart: bool, spoken: Vec<&'static str>, most: usize, answered: Answered) -> Filter {
        let spoken = Spoken { listens: !spoken.is_empty(), tools: spoken, held: String::new() };
        Filter { apart, spoken, room: most, answered, ..Filter::default() }
    }

    /// Notes tools that the model knows from now on.
    pub(super) fn taught(&mut self, names: Vec<String>) {
        self.answered.taught.extend(names);
    }

    /// Which calls are answered here.
    pub(super) fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Whether the reply was longer than can be kept: what is known of it is not the whole.
    pub(super) fn is_endless(&self) -> bool {
        self.endless
    }

    /// Whether so many bytes more can be kept. Where they cannot, what was kept is let go.
    fn keeps(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes).filter(|_| !self.endless) {
            Some(room) => self.room = room,
            None => self.keep_no_more(),
        }
        !self.endless
    }

    /// Lets go of what was kept of this round. What the earlier rounds said, a whole reply still needs.
    fn keep_no_more(&mut self) {
        if self.endless {
            return;
        }
        self.endless = true;
        // Once it has begun, text of this round is not set apart a second time.
        self.apart &= self.text.is_empty();
        (self.text, self.reasoning) = (String::new(), String::new());
        for partial in &mut self.calls.all {
            partial.call.arguments = String::new();
        }
    }

    /// Our calls of this round; none where the round ended so that they cannot be answered.
    fn answerable(&self) -> impl Iterator<Item = &Call> {
        let cut = matches!(self.finish.as_deref(), Some("length" | "content_filter")) || self.endless;
        self.calls.all.iter().filter(move |c| c.whose == Whose::Ours && !cut).map(|c| &c.call)
    }

    /// [`Filter::answerable`], to keep.
    pub(super) fn ours(&self) -> Vec<Call> {
        self.answerable().cloned().collect()
    }

    /// Whether the model is to go on once our calls are answered: there is nothing for the client to do.
    pub(super) fn goes_on(&self) -> bool {
        !self.last && self.calls.clients == 0 && self.answerable().next().is_some()
    }

    /// Whether the client has calls of this round.
    pub(super) fn calls_client(&self) -> bool {
        self.calls.clients > 0
    }

    /// Whether a reason to stop came.
    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    fn clients(&self) -> impl Iterator<Item = &Call> {
        self.calls.all.iter().filter(|c| matches!(c.whose, Whose::Client(_))).map(|c| &c.call)
    }

    /// The reply as the client has it, as a message.
    pub(super) fn message(&self) -> Value {
        let calls: Vec<Value> = self.clients().map(call_json).collect();
        let text = self.whole_text();
        let mut out = json!({"role": "assistant", "content": if text.is_empty() { Value::Null } else { text.into() }});
        if !calls.is_empty() {
            out["tool_calls"] = calls.into();
        }
        out
    }

    fn whole_text(&self) -> String {
        format!("{}{}", self.earlier.text, self.text)
    }

    /// Begins the next round of the same reply. `wrote`: tokens of the round that ended.
    pub(super) fn next_round(&mut self, wrote: Tokens, last: bool) {
        self.earlier.tokens += wrote;
        self.round += 1;
        self.last = last;
        self.earlier.text.push_str(&std::mem::take(&mut self.text));
        self.earlier.reasoning.push_str(&std::mem::take(&mut self.reasoning));
        self.calls.all.clear();
        self.calls.passed.clear();
        self.calls.clients = 0;
        self.spoken.held.clear();
        self.spoken.listens = !self.spoken.tools.is_empty() && !last;
        self.finish = None;
    }

    /// The model has no tool of ours in this round after all.
    pub(super) fn make_last(&mut self) {
        self.last = true;
        self.spoken.listens = false;
    }

    /// Holds back text while it may be a call of ours; what is known to be text is left in place. Returns whether anything
    /// of the delta was changed.
    fn listen(&mut self, delta: &mut Map<String, Value>, finished: bool) -> bool {
        if !self.spoken.listens {
            return false;
        }
        let text = delta.get("content").and_then(Value::as_str).unwrap_or("");
        let keeps = self.keeps(text.len());
        self.spoken.held.push_str(text);
        // What the server takes for calls itself comes apart from the text.
        let called = delta.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
        if keeps && !finished && !called && spoken::may_become(&self.spoken.held, &self.spoken.tools) {
            let holds = delta.get("content").is_some_and(|t| t.as_str().is_some_and(|t| !t.is_empty()));
            if holds {
                delta.remove("content");
            }
            return holds;
        }
        self.spoken.listens = false;
        let held = std::mem::take(&mut self.spoken.held);
        let whole = keeps && finished && !called && self.calls.all.is_empty();
        let calls = spoken::calls(&held, &self.spoken.tools);
        if let Some((tool, all)) = calls.filter(|_| whole && self.finish.as_deref() != Some("length")) {
            delta.remove("content");
            for (index, arguments) in all.into_iter().enumerate() {
                let call = Call { name: tool.into(), arguments, ..Call::default() };
                self.calls.all.push(Partial::new(index as u64, call, Whose::Ours));
            }
            return true;
        }
        let differs = delta.get("content").and_then(Value::as_str).unwrap_or("") != held;
        if differs {
            delta.insert("content".into(), held.into());
        }
        differs
    }

    /// What was held back, where the reply ends without a reason to stop.
    pub(super) fn left(&mut self) -> Option<Value> {
        self.spoken.listens = false;
        let held = std::mem::take(&mut self.spoken.held);
        self.text.push_str(&held);
        let (id, created) = self.head.clone().unwrap_or_default();
        let choice = json!({"index": 0, "delta": {"content": held}, "finish_reason": null});
        let chunk = json!({"id": id, "object": "chat.completion.chunk", "created": created, "choices": [choice]});
        (!held.is_empty()).then_some(chunk)
    }

    /// What the client may see of a chunk; `None` for nothing of it. The flag says whether it differs from what came.
    pub(super) fn chunk(&mut self, mut chunk: Value) -> Option<(Value, bool)> {
        let mut changed = self.rename(&mut chunk);
        let mut empty = false;
        if let Some(choice) = chunk.get_mut("choices").and_then(|c| c.get_mut(0)) {
            if let Some(finish) = crate::wire::reply::finish_of(choice) {
                self.finish = Some(finish.to_owned());
            }
            let finished = self.finish.is_some();
            if finished && choice.get("delta").is_none_or(Value::is_null) {
                choice["delta"] = json!({});
            }
            if let Some(delta) = choice.get_mut("delta").and_then(Value::as_object_mut) {
                let (differs, nothing) = self.delta(delta, finished);
                changed |= differs;
                empty = differs && nothing;
            }
            changed |= self.settle_finish(choice);
            empty &= choice.get("finish_reason").is_none_or(Value::is_null);
        }
        if self.is_finished() && self.goes_on() {
            // The reply is not over for the client: no reason to stop, no figures.
            let said = chunk.pointer("/choices/0/delta").and_then(Value::as_object);
            if said.is_none_or(is_empty) {
                return None;
            }
            chunk.as_object_mut().map(|c| c.remove("usage"));
            return Some((chunk, true));
        }
        changed |= self.sum(&mut chunk);
        (!empty).then_some((chunk, changed))
    }

    /// One reply has one id.
    fn rename(&mut self, value: &mut Value) -> bool {
        match &self.head {
            None => {
                self.head = Some((value["id"].clone(), value["created"].clone()));
                false
            }
            Some((id, created)) if self.round > 0 && value.is_object() => {
                for (key, of_first) in [("id", id), ("created", created)] {
                    if !of_first.is_null() {
                        value[key] = of_first.clone();
                    }
                }
                true
            }
            Some(_) => false,
        }
    }

    /// Takes our calls out of a delta. Returns whether anything was changed, and whether nothing is left.
    fn delta(&mut self, delta: &mut Map<String, Value>, finished: bool) -> (bool, bool) {
        let mut changed = false;
        if self.round > 0 && self.role_seen && delta.remove("role").is_some() {
            changed = true;
        }
        self.role_seen |= delta.contains_key("role");
        changed |= self.newer(delta);
        changed |= self.listen(delta, finished);
        if let Some(Value::String(text)) = delta.get_mut("content").filter(|t| **t != "") {
            let keeps = self.keeps(text.len());
            if self.apart && self.text.is_empty() && needs_space(&self.earlier.text, text) {
                self.earlier.text.push_str("\n\n");
                self.text.push_str(text);
                text.insert_str(0, "\n\n");
                changed = true;
            } else if keeps {
                self.text.push_str(text);
            }
        }
        for key in ["reasoning_content", "reasoning"] {
            if let Some(Value::String(text)) = delta.get(key) {
                if self.keeps(text.len()) {
                    self.reasoning.push_str(text);
                }
                break;
            }
        }
        let fragments = match delta.get_mut("tool_calls") {
            Some(Value::Array(all)) => Some(std::mem::take(all)),
            _ => None,
        };
        let had = fragments.as_ref().map_or(0, Vec::len);
        let mut kept = Vec::new();
        for fragment in fragments.into_iter().flatten() {
            changed |= self.fragment(fragment, &mut kept);
        }
        if finished || self.endless {
            changed |= self.give_up_waiting(&mut kept);
            changed |= self.settle(&mut kept);
        }
        if !kept.is_empty() {
            delta.insert("tool_calls".into(), kept.into());
        } else if had > 0 {
            delta.remove("tool_calls");
        }
        (changed || self.round > 0, is_empty(delta))
    }

    /// Reads a fragment of a call; what the client may see goes to `kept`. Returns whether that differs from what came.
    fn fragment(&mut self, fragment: Value, kept: &mut Vec<Value>) -> bool {
        let said = |path: &str| fragment.pointer(path).and_then(Value::as_str).unwrap_or("");
        let (id, name) = (said("/id"), said("/function/name"));
        let index = fragment.get("index").and_then(Value::as_u64);
        let last = self.calls.all.len().saturating_sub(1) as u64;
        // Some servers number every call 0, or none.
        let goes_on = |of: &str| id.is_empty() || name.is_empty() || of == id;
        let number = index.unwrap_or(u64::MAX);
        let passed = self.calls.passed.iter().rev().find(|(of, ..)| *of == number);
        if let Some(at) = passed.filter(|(_, of, _)| goes_on(of)).map(|(.., at)| *at) {
            kept.push(numbered(fragment, at));
            return index != Some(at as u64);
        }
        let same = |p: &Partial| p.index == index.unwrap_or(last) && goes_on(&p.call.id);
        let at = match self.calls.all.iter().rposition(same) {
            Some(at) => at,
            None if self.calls.all.len() >= LOOKED_AT => {
                let id = id.to_owned();
                return self.pass_on(fragment, number, id, kept);
            }
            None => {
                let index = index.unwrap_or(self.calls.all.len() as u64);
                self.calls.all.push(Partial::new(index, Call::default(), Whose::Unknown));
                self.calls.all.len() - 1
            }
        };
        let arguments = match fragment.pointer("/function/arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(object) => object.to_string(),
        };
        // While nobody knows whose call it is, the fragment itself is kept, too.
        let keeps = self.keeps(FRAGMENT + name.len() + 2 * arguments.len());
        let partial = &mut self.calls.all[at];
        if partial.call.id.is_empty() {
            partial.call.id.push_str(id);
        }
        if keeps && partial.call.name != name {
            partial.call.name.push_str(name);
        }
        if keeps {
            partial.call.arguments.push_str(&arguments);
            partial.call.extra = fragment.get(extra::FIELD).cloned().or(partial.call.extra.take());
        }
        if partial.whose == Whose::Unknown {
            // A name whose arguments have begun is whole.
            partial.whose = match self.answered.held(&partial.call.name, !partial.call.arguments.is_empty()) {
                Held::Answered => Whose::Ours,
                Held::Hidden => Whose::Held,
                Held::Perhaps => Whose::Unknown,
                Held::No => {
                    self.calls.clients += 1;
                    Whose::Client(self.calls.clients - 1)
                }
            };
        }
        match partial.whose {
            Whose::Ours => {
                partial.held.clear();
                true
            }
            Whose::Unknown | Whose::Held => {
                partial.held.push(fragment);
                true
            }
            Whose::Client(at) => {
                let changed = !partial.held.is_empty() || index != Some(at as u64);
                let mut all = std::mem::take(&mut partial.held);
                all.push(fragment);
                kept.extend(all.into_iter().map(|f| numbered(f, at)));
                changed
            }
        }
    }

    /// The first fragment of a call behind those that are looked at: it is the client's, and so is what was held back.
    fn pass_on(&mut self, fragment: Value, number: u64, id: String, kept: &mut Vec<Value>) -> bool {
        self.keep_no_more();
        let let_go = self.give_up_waiting(kept) | self.settle(kept);
        let at = self.calls.clients;
        self.calls.clients += 1;
        let differs = number != at as u64;
        if self.calls.passed.len() == LOOKED_AT {
            self.calls.passed.pop_front();
        }
        self.calls.passed.push_back((number, id, at));
        kept.push(numbered(fragment, at));
        let_go || differs
    }

    /// A reply that ends in calls of ours alone, with nobody to answer them, just ends.
    fn settle_finish(&self, choice: &mut Value) -> bool {
        let calls = matches!(choice.get("finish_reason").and_then(Value::as_str), Some("tool_calls" | "function_call"));
        if self.is_finished() && self.goes_on() {
            choice["finish_reason"] = Value::Null;
        } else if calls && !self.calls.all.is_empty() && !self.calls_client() {
            choice["finish_reason"] = json!("stop");
        } else if self.ends_in_calls_after_all(choice) {
            choice["finish_reason"] = json!("tool_calls");
        } else {
            return false;
        }
        true
    }

    /// Whether a reply ends in calls though its server says otherwise: one goes to the client in place of another, or came in the
    /// older form.
    fn ends_in_calls_after_all(&self, choice: &Value) -> bool {
        let says = |reason: &str| choice.get("finish_reason").is_some_and(|finish| finish == reason);
        self.calls.older && says("function_call") || self.calls.all.iter().any(|c| c.instead) && says("stop")
    }

    /// Adds up what the rounds wrote. The prompt is the last round's: the whole of what the window now holds.
    fn sum(&self, value: &mut Value) -> bool {
        let Some(usage) = value.get_mut("usage").and_then(Value::as_object_mut).filter(|_| self.earlier.tokens > 0)
        else {
            return false;
        };
        let number = |usage: &Map<String, Value>, key: &str| usage.get(key).and_then(Value::as_u64);
        for key in ["completion_tokens", "total_tokens"] {
            if let Some(n) = number(usage, key) {
                usage.insert(key.into(), json!(n + u64::from(self.earlier.tokens)));
            }
        }
        true
    }

    /// The same for a whole reply. `None` where it is no reply of the usual shape.
    pub(super) fn whole(&mut self, mut value: Value) -> Option<(Value, bool)> {
        let mut changed = self.rename(&mut value);
        let choice = value.get_mut("choices")?.get_mut(0)?;
        self.finish = Some(choice.get("finish_reason").and_then(Value::as_str).unwrap_or("stop").to_owned());
        let message = choice.get_mut("message")?.as_object_mut()?;
        changed |= self.newer(message);
        // A message is a delta that says everything at once.
        let all = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let behind = all.len().saturating_sub(LOOKED_AT);
        self.calls.many = behind > 0;
        let looked_at = all.iter().take(LOOKED_AT).cloned().enumerate();
        let calls: Vec<Value> = looked_at.map(|(i, call)| numbered(call, i)).collect();
        let mut delta = json!({"content": message.get("content"), "tool_calls": calls});
        for key in ["reasoning_content", "reasoning"] {
            delta[key] = message.get(key).cloned().unwrap_or_default();
        }
        let delta = delta.as_object_mut()?;
        changed |= self.delta(delta, true).0;
        if self.calls.many {
            self.keep_no_more();
            self.calls.clients += behind;
        }
        let differs = |c: &Partial| c.whose == Whose::Ours || c.instead;
        if self.round > 0 || self.calls.all.iter().any(differs) {
            self.rewrite(message);
            changed = true;
        }
        changed |= self.settle_finish(choice);
        changed |= self.sum(&mut value);
        Some((value, changed))
    }

    /// Makes a whole message what the client may see of it, behind what the earlier rounds said.
    fn rewrite(&self, message: &mut Map<String, Value>) {
        // Of a reply that is too long to be kept, the text stands in the message alone.
        let own = |key: &str, kept: &str| match message.get(key).and_then(Value::as_str).filter(|_| self.endless) {
            Some(text) => text.to_owned(),
            None => kept.to_owned(),
        };
        let text = self.earlier.text.clone() + &own("content", &self.text);
        let reasoning = ["reasoning_content", "reasoning"].into_iter().find(|k| message.contains_key(*k));
        let reasoning = reasoning.map(|key| (key, self.earlier.reasoning.clone() + &own(key, &self.reasoning)));
        message.insert("content".into(), if text.is_empty() { Value::Null } else { text.into() });
        if let Some(Value::Array(all)) = message.get_mut("tool_calls") {
            // They were read in this order a moment ago.
            let written = std::mem::take(all).into_iter().enumerate();
            all.extend(written.filter_map(|(at, call)| self.for_client(at, call)));
            if all.is_empty() {
                message.remove("tool_calls");
            }
        }
        if let Some((key, reasoning)) = reasoning {
            message.insert(key.into(), reasoning.into());
        }
    }
}

fn needs_space(before: &str, after: &str) -> bool {
    !before.is_empty() && !before.ends_with(char::is_whitespace) && !after.starts_with(char::is_whitespace)
}

/// Whether a delta says nothing.
fn is_empty(delta: &Map<String, Value>) -> bool {
    delta.values().all(|v| v.is_null() || *v == "" || v.as_array().is_some_and(Vec::is_empty))
}

fn numbered(mut fragment: Value, index: usize) -> Value {
    if fragment.is_object() {
        fragment["index"] = json!(index);
    }
    fragment
}

/// A call as it stands in a message.
pub(super) fn call_json(call: &Call) -> Value {
    let mut out =
        json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
    if let Some(extra) = &call.extra {
        out[extra::FIELD] = extra.clone();
    }
    out
}

#[cfg(test)]
mod tests;
