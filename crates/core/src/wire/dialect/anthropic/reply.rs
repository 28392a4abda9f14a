//! A reply as a message of Anthropic's, whole or as a stream of its events.

use serde_json::{Value, json};

use super::super::said::{CallPart, Said, Usage};
use super::super::{Answered, Head, Kept, Managed, ReplyEncoder, event};
use super::calls::{Calls, id_of};
use super::ending::Ending;
use super::error;
use crate::conversation::managed::{Edits, Taken};
use crate::wire::reply;

/// The reply to one request.
pub(super) struct Reply {
    /// As the client named it.
    model: String,
    /// What was left out of the request.
    warnings: Vec<String>,
    id: String,
    usage: Usage,
    /// What may end it, and what did.
    ending: Ending,
    /// The block that is written now.
    open: Option<Open>,
    /// Blocks begun, which is the index of the next.
    blocks: usize,
    /// Its calls; the first that waits is open if [`Open::Call`] is.
    calls: Calls,
    /// Words and thoughts between the pieces of a call: a block of their own, behind it.
    between: Vec<(Open, String)>,
    /// Nothing more is written.
    over: bool,
    /// An error has ended the reply.
    failed: bool,
    /// What is kept of it, where the client wants that.
    going_on: Option<GoingOn>,
    /// What was done with the history, where the client asks for that.
    management: Management,
}

/// What is kept of a reply for requests that go on from it.
#[derive(Debug)]
struct GoingOn {
    /// What of its request holds on.
    head: String,
    /// The reply, as far as it is written.
    said: Said,
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

impl Reply {
    pub(super) fn new(model: String, warnings: Vec<String>, stops: Vec<String>, most: Option<u64>) -> Reply {
        Reply {
            model,
            warnings,
            id: String::new(),
            usage: Usage::default(),
            ending: Ending::of(stops, most),
            open: None,
            blocks: 0,
            calls: Calls::default(),
            between: Vec::new(),
            over: false,
            failed: false,
            going_on: None,
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
        let alone = self.ending.is_compaction();
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
        self.going_on = Some(GoingOn { head, said: Said::default() });
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
            content.push(json!({"type": "tool_use", "id": id_of(&self.id, call, nth), "name": name, "input": input}));
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
        if let Some(GoingOn { said: kept, .. }) = &mut self.going_on {
            kept.reasoning.push_str(&said.reasoning);
            kept.text.push_str(&said.text);
            kept.refusal.push_str(&said.refusal);
        }
    }

    fn message(&self, content: Vec<Value>, stop_reason: Value, usage: Value) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop_reason, "stop_sequence": self.ending.stop, "usage": usage,
        })
    }

    /// `None` where nothing says why the reply ended.
    fn stop_reason(&self) -> Option<&'static str> {
        self.ending.reason(&self.usage, self.calls.seen > 0)
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
            if !self.ending.is_compaction() {
                let mut round = usage.clone();
                round["type"] = "message".into();
                rounds.push(round);
            }
            usage["iterations"] = rounds.into();
        }
        usage
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
                let told = self.calls.end_first();
                if let Some(GoingOn { said, .. }) = &mut self.going_on {
                    said.calls.extend(told);
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
        if self.calls.is_open() {
            return self.between.push((kind, text.to_owned()));
        }
        self.say_between(out);
        self.say(kind, text, out);
    }

    /// Writes what came between the pieces of calls.
    fn say_between(&mut self, out: &mut String) {
        for (kind, text) in std::mem::take(&mut self.between) {
            self.say(kind, &text, out);
        }
    }

    fn say(&mut self, kind: Open, text: &str, out: &mut String) {
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
        if self.calls.take(part, &self.id) {
            self.write_calls(false, out);
        }
    }

    /// Whatever of the calls is still to be written.
    fn all_calls(&mut self, out: &mut String) {
        self.write_calls(true, out);
    }

    fn write_calls(&mut self, all: bool, out: &mut String) {
        while let Some(first) = self.calls.first() {
            if self.open != Some(Open::Call) {
                // The name may come in pieces, before the arguments.
                if (first.name.is_empty() || first.arguments.is_empty()) && !all {
                    return;
                }
                let block = json!({"type": "tool_use", "id": first.id, "name": first.name, "input": {}});
                self.close(out);
                self.begin(Open::Call, &block, out);
            }
            let Some((new, done)) = self.calls.news(all) else { return };
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
        self.ending.window = head.window;
        self.ending.note(said);
        self.note_model(said);
        self.calls.seen = said.calls.len();
        if let Some(GoingOn { said: kept, .. }) = &mut self.going_on {
            *kept = said.clone();
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
        self.ending.window = head.window;
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
        self.ending.note(said);
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
        self.say_between(&mut out);
        self.close(&mut out);
        self.over = true;
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": self.ending.stop});
        let mut delta = json!({"type": "message_delta", "delta": delta, "usage": self.usage()});
        if let Some(applied) = self.applied() {
            delta["context_management"] = applied;
        }
        out.push_str(&event("message_delta", &delta));
        out.push_str(&event("message_stop", &json!({"type": "message_stop"})));
        out
    }

    fn kept(&self) -> Kept {
        let going_on = self.going_on.as_ref().filter(|_| !self.failed);
        let reply = going_on.map(|GoingOn { head, said }| Answered {
            id: format!("msg_{}", self.id),
            head: head.clone(),
            json: Value::from(self.content(said)).to_string(),
        });
        Kept { items: Vec::new(), reply }
    }
}
