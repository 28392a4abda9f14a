//! A reply as a message of Anthropic's, whole or as a stream of its events.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::super::said::{CallPart, Said, Usage};
use super::super::whole::Whole;
use super::super::{Answered, Head, Kept, Managed, ReplyEncoder, event};
use super::error;
use crate::conversation::managed::{Edits, Taken};
use crate::wire::reply;

/// A reply that ends so many tokens before the window's end was ended by it.
const NEAR: u64 = 16;

/// The reply to one request.
pub(super) struct Reply {
    /// As the client named it.
    model: String,
    /// What was left out of the request.
    warnings: Vec<String>,
    id: String,
    usage: Usage,
    finish: Option<String>,
    /// The client's stop sequences, and the one that ended the reply.
    stops: Vec<String>,
    stop: Option<String>,
    /// The longest reply that the client wants (tokens).
    most: Option<u64>,
    /// The window, prompt and reply together (tokens).
    window: Option<u64>,
    /// The block that is written now.
    open: Option<Open>,
    /// Blocks begun, which is the index of the next.
    blocks: usize,
    /// Calls that wait for the one before them to be whole; the first is open if [`Open::Call`] is.
    calls: VecDeque<Call>,
    /// The last call of each number, as the how manieth of the reply.
    latest: HashMap<u64, usize>,
    /// Calls seen.
    called: usize,
    /// Of these, told to their end.
    told: usize,
    refused: bool,
    /// Nothing more is written.
    over: bool,
    /// An error has ended the reply.
    failed: bool,
    /// What is kept with the reply for requests that go on from it, where the client wants that.
    head: Option<String>,
    /// The reply, as far as it is written, where it is kept.
    said: Said,
    /// What was done with the history, where the client asks for that.
    management: Management,
}

/// What a client asks to be done with its history, and what was done.
#[derive(Debug, Default)]
struct Management {
    /// The edits that are told where they were made; `None` where the client asks for none.
    asked: Option<Vec<Taken>>,
    /// What messages changed of the tools, for a block that stands for them.
    tool_changes: Vec<Value>,
    done: Managed,
    /// The block is still to be written.
    waits: bool,
}

/// What kind of block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    Call,
}

/// A call in the making.
#[derive(Debug, Default)]
struct Call {
    id: String,
    /// The server gave the id.
    given: bool,
    name: String,
    arguments: String,
    whole: Whole,
    /// Bytes of the arguments that were sent.
    sent: usize,
}

impl Reply {
    pub(super) fn new(model: String, warnings: Vec<String>, stops: Vec<String>, most: Option<u64>) -> Reply {
        Reply {
            model,
            warnings,
            id: String::new(),
            usage: Usage::default(),
            finish: None,
            stops,
            stop: None,
            most,
            window: None,
            open: None,
            blocks: 0,
            calls: VecDeque::new(),
            latest: HashMap::new(),
            called: 0,
            told: 0,
            refused: false,
            over: false,
            failed: false,
            head: None,
            said: Said::default(),
            management: Management::default(),
        }
    }

    /// Notes what the client asks to be done with its history.
    pub(super) fn manages(&mut self, edits: &Edits, tool_changes: Vec<Value>) {
        let whole = edits.compact.as_ref().is_some_and(|compact| compact.whole);
        let thinking = edits.thinking.map(|_| Taken::Thinking);
        let uses = edits.uses.as_ref().map(|_| Taken::Uses);
        let asked = (!whole).then(|| thinking.into_iter().chain(uses).collect());
        self.management = Management { asked, tool_changes, ..Management::default() };
    }

    /// The block that stands for what was summarized; without words where nothing came of it.
    fn compaction(&mut self) -> Option<Value> {
        let alone = self.finish.as_deref() == Some(reply::COMPACTION);
        let waits = std::mem::take(&mut self.management.waits);
        if !(waits || alone && self.blocks == 0) {
            return None;
        }
        let Some(made) = &self.management.done.compaction else {
            return Some(json!({"type": "compaction", "content": null}));
        };
        let mut block =
            json!({"type": "compaction", "content": made.text, "signature": made.mark, "encrypted_content": made.mark});
        if !self.management.tool_changes.is_empty() {
            block["tool_changes"] = self.management.tool_changes.clone().into();
        }
        Some(block)
    }

    /// Writes that block, before anything else of the reply.
    fn write_compaction(&mut self, out: &mut String) {
        let Some(mut block) = self.compaction() else { return };
        // The words and the mark come with the one delta that such a block has.
        let text = block["content"].take();
        let mark = block.as_object_mut().and_then(|block| block.remove("encrypted_content"));
        let start = json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        out.push_str(&event("content_block_start", &start));
        self.blocks += 1;
        self.delta(&json!({"type": "compaction_delta", "content": text, "encrypted_content": mark}), out);
        let stop = json!({"type": "content_block_stop", "index": self.blocks.saturating_sub(1)});
        out.push_str(&event("content_block_stop", &stop));
    }

    /// What was done with the history, of what the client asked for.
    fn applied(&self) -> Option<Value> {
        let asked = self.management.asked.as_ref()?;
        let told = self.management.done.taken.iter().filter(|(taken, ..)| asked.contains(taken));
        let one = |(taken, count, tokens): &(Taken, usize, u64)| match taken {
            Taken::Uses => {
                json!({"type": "clear_tool_uses_20250919", "cleared_tool_uses": count, "cleared_input_tokens": tokens})
            }
            Taken::Thinking => {
                json!({"type": "clear_thinking_20251015", "cleared_thinking_turns": count, "cleared_input_tokens": tokens})
            }
        };
        Some(json!({"applied_edits": told.map(one).collect::<Vec<_>>()}))
    }

    /// Has the reply kept, for requests that go on from it.
    pub(super) fn keep(&mut self, head: String) {
        self.head = Some(head);
    }

    /// The content blocks of a reply.
    fn content(&self, said: &Said) -> Vec<Value> {
        let mut content = Vec::new();
        if !said.reasoning.is_empty() {
            content.push(json!({"type": "thinking", "thinking": said.reasoning, "signature": ""}));
        }
        for text in [&said.text, &said.refusal] {
            if !text.is_empty() {
                content.push(json!({"type": "text", "text": text}));
            }
        }
        for (nth, call) in said.calls.iter().enumerate() {
            let input = match serde_json::from_str::<Value>(&call.arguments) {
                Ok(input @ Value::Object(_)) => input,
                _ if call.arguments.trim().is_empty() => json!({}),
                // A model's mistake: the client sees what it wrote, and the model sees it again.
                _ => json!({"_unparsed": call.arguments}),
            };
            let name = call.name.clone().unwrap_or_default();
            content.push(json!({"type": "tool_use", "id": self.id_of(call, nth), "name": name, "input": input}));
        }
        content
    }

    /// Notes the server's own name of the model, where the client named none.
    fn note_model(&mut self, said: &Said) {
        if let Some(model) = said.model.as_ref().filter(|_| self.model.is_empty()) {
            self.model.clone_from(model);
        }
    }

    /// Takes in what is kept of a chunk; its calls are taken in as they are told.
    fn hold(&mut self, said: &Said) {
        if self.head.is_some() {
            self.said.reasoning.push_str(&said.reasoning);
            self.said.text.push_str(&said.text);
            self.said.refusal.push_str(&said.refusal);
        }
    }

    fn message(&self, content: Vec<Value>, stop_reason: Value, usage: Value) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop_reason, "stop_sequence": self.stop, "usage": usage,
        })
    }

    /// `None` where nothing says why the reply ended.
    fn stop_reason(&self) -> Option<&'static str> {
        Some(match self.finish.as_deref() {
            Some(reply::BROKEN_OFF) => return None,
            Some(reply::COMPACTION) => "compaction",
            Some("model_context_window_exceeded") => "model_context_window_exceeded",
            Some("length") if self.fills_window() => "model_context_window_exceeded",
            Some("length") => "max_tokens",
            Some("content_filter") => "refusal",
            _ if self.refused => "refusal",
            _ if self.called > 0 => "tool_use",
            _ if self.stop.is_some() => "stop_sequence",
            _ => "end_turn",
        })
    }

    /// Whether it was the window that ended a reply, and not the client's `max_tokens`.
    fn fills_window(&self) -> bool {
        let (Some(window), Some(prompt), Some(wrote)) = (self.window, self.usage.prompt, self.usage.completion) else {
            return false;
        };
        // llama-server ends a reply with the window's last token or the one before, and pads windows to 256.
        self.most.is_none_or(|most| wrote < most) && prompt.saturating_add(wrote) + NEAR >= window
    }

    /// Notes the stop sequence that ended the reply. A template has some of its own, which are nobody's.
    fn note_stop(&mut self, said: &Said) {
        if let Some(stop) = said.stop.as_ref().filter(|stop| self.stops.contains(stop)) {
            self.stop = Some(stop.clone());
        }
    }

    /// Anthropic's `input_tokens` leaves out what came from the cache.
    fn usage(&self) -> Value {
        let cached = self.usage.cached.unwrap_or(0);
        let mut usage = json!({
            "input_tokens": self.usage.prompt.unwrap_or(0).saturating_sub(cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached.min(self.usage.prompt.unwrap_or(cached)),
            "output_tokens": self.usage.completion.unwrap_or(0),
        });
        let done = &self.management.done;
        if done.compaction.is_some() {
            let (read, wrote) = done.spent;
            let mut rounds = vec![json!({
                "type": "compaction", "input_tokens": read, "output_tokens": wrote,
                "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            })];
            if self.finish.as_deref() != Some(reply::COMPACTION) {
                let mut round = usage.clone();
                round["type"] = "message".into();
                rounds.push(round);
            }
            usage["iterations"] = rounds.into();
        }
        usage
    }

    fn id_of(&self, call: &CallPart, nth: usize) -> String {
        call.id.clone().unwrap_or_else(|| format!("toolu_{}_{nth}", self.id))
    }

    fn begin(&mut self, kind: Open, block: &Value, out: &mut String) {
        let start = json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        out.push_str(&event("content_block_start", &start));
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        let delta = json!({"type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta});
        out.push_str(&event("content_block_delta", &delta));
    }

    fn close(&mut self, out: &mut String) {
        match self.open.take() {
            None => return,
            Some(Open::Thinking) => self.delta(&json!({"type": "signature_delta", "signature": ""}), out),
            Some(Open::Call) => {
                if let Some(Call { id, name, arguments, .. }) = self.calls.pop_front() {
                    self.told += 1;
                    let call = CallPart { index: 0, id: Some(id), name: Some(name), arguments };
                    self.said.calls.extend(self.head.is_some().then_some(call));
                }
            }
            Some(Open::Text) => {}
        }
        let stop = json!({"type": "content_block_stop", "index": self.blocks.saturating_sub(1)});
        out.push_str(&event("content_block_stop", &stop));
    }

    fn text(&mut self, kind: Open, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(kind) {
            self.all_calls(out);
            self.close(out);
            let block = match kind {
                Open::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                _ => json!({"type": "text", "text": ""}),
            };
            self.begin(kind, &block, out);
        }
        let delta = match kind {
            Open::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            _ => json!({"type": "text_delta", "text": text}),
        };
        self.delta(&delta, out);
    }

    /// Takes in a part of a call, and writes what can be written: one call at a time, as blocks follow each other.
    fn call(&mut self, part: &CallPart, out: &mut String) {
        // Some servers number all calls of a reply 0: another id and a name are another call.
        let another = |c: &Call| part.name.is_some() && part.id.as_ref().is_some_and(|id| c.given && c.id != *id);
        let latest = self.latest.get(&part.index).copied();
        let waits = latest.and_then(|nth| nth.checked_sub(self.told));
        let known = waits.filter(|at| self.calls.get(*at).is_some_and(|call| !another(call)));
        if known.is_none() && part.name.is_none() && latest.is_some() {
            // Behind arguments that are whole comes white space, or nonsense.
            return;
        }
        let at = known.unwrap_or_else(|| {
            let id = self.id_of(part, self.called);
            self.latest.insert(part.index, self.called);
            self.called += 1;
            let given = part.id.is_some();
            self.calls.push_back(Call { id, given, ..Call::default() });
            self.calls.len() - 1
        });
        if let Some(call) = self.calls.get_mut(at) {
            if let Some(name) = &part.name {
                call.name.clone_from(name);
            }
            call.arguments.push_str(&part.arguments);
        }
        self.write_calls(false, out);
    }

    /// Whatever of the calls is still to be written.
    fn all_calls(&mut self, out: &mut String) {
        self.write_calls(true, out);
    }

    fn write_calls(&mut self, all: bool, out: &mut String) {
        while let Some(first) = self.calls.front() {
            if self.open != Some(Open::Call) {
                if first.name.is_empty() && !all {
                    return;
                }
                let block = json!({"type": "tool_use", "id": first.id, "name": first.name, "input": {}});
                self.close(out);
                self.begin(Open::Call, &block, out);
            }
            let several = self.calls.len() > 1;
            let Some(first) = self.calls.front_mut() else { return };
            let new = first.arguments.get(first.sent..).unwrap_or_default().to_owned();
            first.sent = first.arguments.len();
            // The next one begins once this one is whole: parts of several may come by turns.
            let done = all || several && first.whole.is(&first.arguments);
            if !new.is_empty() {
                self.delta(&json!({"type": "input_json_delta", "partial_json": new}), out);
            }
            if !done {
                return;
            }
            self.close(out);
        }
    }
}

impl ReplyEncoder for Reply {
    fn managed(&mut self, managed: &Managed) {
        self.management.waits = managed.compaction.is_some();
        self.management.done = managed.clone();
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn whole(&mut self, head: &Head, said: &Said) -> Value {
        self.id.clone_from(&head.id);
        self.usage = said.usage;
        self.usage.prompt = self.usage.prompt.or(head.prompt_tokens);
        self.finish.clone_from(&said.finish);
        self.window = head.window;
        self.note_stop(said);
        self.note_model(said);
        self.called = said.calls.len();
        self.refused = !said.refusal.is_empty();
        if self.head.is_some() {
            self.said = said.clone();
        }
        let mut content = self.content(said);
        if let Some(block) = self.compaction() {
            content.insert(0, block);
        }
        let mut message = self.message(content, self.stop_reason().into(), self.usage());
        if let Some(applied) = self.applied() {
            message["context_management"] = applied;
        }
        message
    }

    fn start(&mut self, head: &Head) -> String {
        self.id.clone_from(&head.id);
        self.usage.prompt = head.prompt_tokens;
        self.window = head.window;
        let message = self.message(Vec::new(), Value::Null, self.usage());
        let mut out = event("message_start", &json!({"type": "message_start", "message": message}));
        out.push_str(&self.ping());
        out
    }

    fn ping(&mut self) -> String {
        if self.over { String::new() } else { event("ping", &json!({"type": "ping"})) }
    }

    fn chunk(&mut self, said: &Said) -> String {
        let mut out = String::new();
        if self.over {
            return out;
        }
        self.usage = self.usage.and(said.usage);
        if said.finish.is_some() {
            self.finish.clone_from(&said.finish);
        }
        self.note_stop(said);
        self.refused |= !said.refusal.is_empty();
        self.hold(said);
        if said.error.is_none() {
            self.write_compaction(&mut out);
        }
        self.text(Open::Thinking, &said.reasoning, &mut out);
        self.text(Open::Text, &said.text, &mut out);
        self.text(Open::Text, &said.refusal, &mut out);
        for part in &said.calls {
            self.call(part, &mut out);
        }
        if let Some(failed) = &said.error {
            (self.over, self.failed) = (true, true);
            let status = reply::status_of(failed).unwrap_or(500);
            out.push_str(&event("error", &error(status, failed, &format!("req_{}", self.id))));
        }
        out
    }

    fn end(&mut self) -> String {
        let mut out = String::new();
        if self.over {
            return out;
        }
        self.write_compaction(&mut out);
        self.all_calls(&mut out);
        self.close(&mut out);
        self.over = true;
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": self.stop});
        let mut delta = json!({"type": "message_delta", "delta": delta, "usage": self.usage()});
        if let Some(applied) = self.applied() {
            delta["context_management"] = applied;
        }
        out.push_str(&event("message_delta", &delta));
        out.push_str(&event("message_stop", &json!({"type": "message_stop"})));
        out
    }

    fn kept(&self) -> Kept {
        let head = self.head.as_ref().filter(|_| !self.failed);
        let json = |said| Value::from(self.content(said)).to_string();
        let reply =
            head.map(|head| Answered { id: format!("msg_{}", self.id), head: head.clone(), json: json(&self.said) });
        Kept { items: Vec::new(), reply }
    }
}
