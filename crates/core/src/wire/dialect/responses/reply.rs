//! The reply: a Response object, whole or told in events.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::said::{Said, Usage};
use super::super::{Answered, Head, Kept, ReplyEncoder, Summarized, event};
use super::calls::{Form, free_text};
use super::compaction::Text;
use super::head::Head as Held;
use super::output::{Body, Kind, Names, Output, Part};
use super::tools::Special;
use crate::wire::reply;

/// What there is to say, in the order in which it was first heard. Items are told one after another: what belongs to a
/// later item waits until the one before it is whole, so that nothing is said of an item after its end.
pub(super) struct Reply {
    head: Head,
    model: String,
    /// The fields of the Response object that repeat the request.
    echo: Map<String, Value>,
    names: Names,
    /// What is kept with the reply for requests that go on from it.
    held: Held,
    /// Whether the client wants it stored.
    stored: bool,
    events: Events,
    pub(super) output: Output,
    finish: Option<String>,
    usage: Usage,
    error: Value,
    /// The stream was ended by an error.
    over: bool,
    pub(super) telemetry: Telemetry,
    /// Unix time now, as far as it was told (seconds).
    now: u64,
}

/// The events of a stream, one after another.
#[derive(Default)]
struct Events {
    /// Nothing is streamed.
    quiet: bool,
    /// The number of the next one.
    sequence: u64,
}

impl Events {
    fn tell(&mut self, out: &mut String, name: &str, data: Value) {
        if self.quiet {
            return;
        }
        let mut all = json!({"type": name, "sequence_number": self.sequence});
        if let (Some(all), Value::Object(data)) = (all.as_object_mut(), data) {
            all.extend(data);
        }
        self.sequence += 1;
        out.push_str(&event(name, &all));
    }
}

/// How llama-server's work goes on, in its own words.
#[derive(Default)]
pub(super) struct Telemetry {
    /// The client asked for it.
    pub(super) wanted: bool,
    /// What the server said of it last.
    timings: Option<Value>,
}

impl ReplyEncoder for Reply {
    fn whole(&mut self, head: &Head, said: &Said) -> Value {
        self.events.quiet = true;
        self.start(head);
        let mut said = said.clone();
        for (at, call) in said.calls.iter_mut().enumerate() {
            call.index = at as u64;
        }
        self.chunk(&said);
        self.end();
        self.response(self.status())
    }

    fn start(&mut self, head: &Head) -> String {
        self.head = head.clone();
        self.names.reply.clone_from(&head.id);
        let mut out = String::new();
        let response = self.response("in_progress");
        self.tell(&mut out, "response.created", json!({"response": response}));
        self.tell(&mut out, "response.in_progress", json!({"response": response}));
        out
    }

    /// An event, since Codex gives up after minutes without one, whatever comments come (`stream_idle_timeout_ms`).
    fn ping(&mut self) -> String {
        let mut out = String::new();
        if !self.over {
            let response = self.response("in_progress");
            self.tell(&mut out, "response.in_progress", json!({"response": response}));
        }
        out
    }

    fn chunk(&mut self, said: &Said) -> String {
        let mut out = String::new();
        if self.over {
            return out;
        }
        if let Some(model) = &said.model {
            self.model.clone_from(model);
        }
        self.usage = self.usage.and(said.usage);
        if let Some(finish) = &said.finish {
            self.finish = Some(finish.clone());
        }
        if let Some(error) = &said.error {
            self.over = true;
            self.error = failure(error);
            let response = self.response("failed");
            self.tell(&mut out, "response.failed", json!({"response": response}));
            return out;
        }
        self.note_telemetry(said, &mut out);
        if let Some(compaction) = &said.compaction {
            self.output.compaction(compaction);
        }
        if ![&said.reasoning, &said.text, &said.refusal].into_iter().all(String::is_empty) || !said.calls.is_empty() {
            self.output.tell_unreached();
        }
        self.output.text(Kind::Reasoning, &said.reasoning, &[]);
        self.output.text(Kind::Text, &said.text, &said.logprobs);
        self.output.text(Kind::Refusal, &said.refusal, &[]);
        for part in &said.calls {
            self.output.call(part);
        }
        self.advance(&mut out, false);
        out
    }

    fn end(&mut self) -> String {
        let mut out = String::new();
        if self.over {
            return out;
        }
        self.over = true;
        if self.output.items.is_empty() {
            self.output.tell_unreached();
            self.output.add(Body::Message(vec![Part { kind: Kind::Text, text: String::new(), logprobs: Vec::new() }]));
        }
        self.advance(&mut out, true);
        let status = self.status();
        let mut data = json!({"response": self.response(status)});
        if let Some(timings) = self.telemetry.timings.take() {
            data["timings"] = timings;
        }
        self.tell(&mut out, &format!("response.{status}"), data);
        out
    }

    fn at(&mut self, now: u64) {
        self.now = now;
    }

    fn compacted(&self) -> Summarized {
        let head = self.held.clone();
        Box::new(move |brief| Text::written(brief, &head))
    }

    fn kept(&self) -> Kept {
        if !self.stored {
            return Kept::default();
        }
        let told = self.output.items[..self.output.front].iter().enumerate();
        let items: Vec<(String, String)> = told
            .map(|(at, item)| (self.names.id(item), self.names.item(item, self.status_of(at), true).to_string()))
            .collect();
        let all: Vec<&str> = items.iter().map(|(_, json)| json.as_str()).collect();
        let json = format!("[{}]", all.join(","));
        let whole = self.over && self.error.is_null();
        let mut response = self.response(self.status());
        response["output"] = Value::Null;
        let head = || Held { response, ..self.held.clone() }.json();
        let reply = whole.then(|| Answered { id: format!("resp_{}", self.head.id), head: head(), json });
        Kept { items, reply }
    }
}

impl Reply {
    pub(super) fn new(
        model: &str,
        echo: Map<String, Value>,
        special: HashMap<String, Special>,
        carried: bool,
        (held, stored): (Held, bool),
    ) -> Reply {
        Reply {
            head: Head { id: String::new(), created: 0, prompt_tokens: None, window: None },
            model: model.to_owned(),
            echo,
            names: Names { reply: String::new(), special, carried },
            held,
            stored,
            events: Events::default(),
            output: Output::default(),
            finish: None,
            usage: Usage::default(),
            error: Value::Null,
            over: false,
            telemetry: Telemetry::default(),
            now: 0,
        }
    }

    /// Hands on what llama-server tells of its work, where the client asked for it: its own API tells it in the same events.
    fn note_telemetry(&mut self, said: &Said, out: &mut String) {
        if !self.telemetry.wanted {
            return;
        }
        self.telemetry.timings = said.telemetry.timings.clone().or(self.telemetry.timings.take());
        if let Some(progress) = &said.telemetry.progress {
            let response = self.response("in_progress");
            let mut data = json!({"response": response, "prompt_progress": progress});
            data["timings"] = said.telemetry.timings.clone().unwrap_or_default();
            self.tell(out, "response.in_progress", data);
        }
    }

    /// Tells what can be told now.
    fn advance(&mut self, out: &mut String, ended: bool) {
        while self.output.front < self.output.items.len() {
            let (at, last) = (self.output.front, self.output.front + 1 == self.output.items.len());
            let cut = last && self.status() == "incomplete";
            let item = &mut self.output.items[at];
            let done = ended || (!last || item.is_apart()) && item.complete();
            if let Body::Call(call) = &mut item.body {
                let waits = call.name.as_ref().and_then(|name| self.names.special.get(name));
                // The name may come in pieces, before the arguments.
                let waits = call.name.is_none()
                    || call.arguments.is_empty()
                    || waits.is_some_and(|special| special.form.waits());
                if waits && !done {
                    return;
                }
                // From here on the call keeps the id that the client has seen.
                call.id.get_or_insert_with(|| format!("call_{}_{}", self.head.id, item.nth));
                if done && !cut && call.arguments.trim().is_empty() {
                    call.arguments.push_str("{}");
                }
            }
            if !item.open {
                item.open = true;
                let item = self.names.item(&self.output.items[at], "in_progress", false);
                self.tell(out, "response.output_item.added", json!({"output_index": at, "item": item}));
            }
            match &self.output.items[at].body {
                Body::Call(_) => self.tell_call(out, at, done),
                Body::Reasoning(_) | Body::Message(_) => self.tell_parts(out, at, done),
                Body::Compaction(_) => self.tell_compacting(out, at),
                Body::Unreached(_) => self.tell_unreached(out, at),
            }
            if !done {
                return;
            }
            let status = if cut { "incomplete" } else { "completed" };
            let item = self.names.item(&self.output.items[at], status, true);
            self.tell(out, "response.output_item.done", json!({"output_index": at, "item": item}));
            self.output.front += 1;
        }
    }

    fn tell_parts(&mut self, out: &mut String, at: usize, done: bool) {
        let id = self.names.id(&self.output.items[at]);
        loop {
            let item = &mut self.output.items[at];
            let (Body::Reasoning(parts) | Body::Message(parts)) = &item.body else { return };
            let Some(part) = parts.get(item.part) else { return };
            let (kind, nth) = (part.kind, item.part);
            let delta = part.text.get(item.told..).unwrap_or_default().to_owned();
            let new = part.logprobs.get(item.told_logprobs..).unwrap_or_default().to_vec();
            let whole = (done || nth + 1 < parts.len()).then(|| (part.text.clone(), part.logprobs.clone()));
            let fresh = !std::mem::replace(&mut item.part_open, whole.is_none());
            (item.part, item.told, item.told_logprobs) =
                if whole.is_some() { (nth + 1, 0, 0) } else { (nth, part.text.len(), part.logprobs.len()) };
            let about = |more: Value, logprobs: &[Value]| {
                let mut data = json!({"item_id": id, "output_index": at, "content_index": nth});
                if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
                    data.extend(more);
                    if kind == Kind::Text && !data.contains_key("part") {
                        data.insert("logprobs".into(), logprobs.into());
                    }
                }
                data
            };
            if fresh {
                self.tell(out, "response.content_part.added", about(json!({"part": kind.part("", &[])}), &[]));
            }
            if !delta.is_empty() {
                let mut data = about(json!({"delta": delta}), &new);
                if let Some(timings) = &self.telemetry.timings {
                    data["timings"] = timings.clone();
                }
                self.tell(out, &format!("response.{}.delta", kind.name()), data);
            }
            let Some((whole, all)) = whole else { return };
            let key = if kind == Kind::Refusal { "refusal" } else { "text" };
            self.tell(out, &format!("response.{}.done", kind.name()), about(json!({key: whole}), &all));
            self.tell(out, "response.content_part.done", about(json!({"part": kind.part(&whole, &all)}), &[]));
        }
    }

    fn tell_call(&mut self, out: &mut String, at: usize, done: bool) {
        let id = self.names.id(&self.output.items[at]);
        let (form, name) =
            (self.names.form(&self.output.items[at]), self.names.name(&self.output.items[at]).to_owned());
        let item = &mut self.output.items[at];
        let Body::Call(call) = &item.body else { return };
        let delta = match (form, done) {
            (Form::Function, _) => call.arguments.get(item.told..).unwrap_or_default().to_owned(),
            // The text of a custom call lies inside of its arguments: it can be read when they are whole.
            (Form::Custom, true) => free_text(&call.arguments),
            (Form::Shell, true) => return self.tell_commands(out, at),
            _ => String::new(),
        };
        item.told = call.arguments.len();
        // A copy for each piece would make long arguments cost the square of their length.
        let whole = (done && form == Form::Function).then(|| call.arguments.clone());
        let kind = match form {
            Form::Function => "response.function_call_arguments",
            Form::Custom => "response.custom_tool_call_input",
            _ => return,
        };
        if !delta.is_empty() {
            let data = json!({"item_id": id, "output_index": at, "delta": delta});
            self.tell(out, &format!("{kind}.delta"), data);
        }
        if done {
            let data = match form {
                Form::Custom => json!({"item_id": id, "output_index": at, "input": delta}),
                _ => json!({"item_id": id, "output_index": at, "name": name, "arguments": whole}),
            };
            self.tell(out, &format!("{kind}.done"), data);
        }
    }

    /// Says once that a summary is being written.
    fn tell_compacting(&mut self, out: &mut String, at: usize) {
        if std::mem::replace(&mut self.output.items[at].told, 1) == 0 {
            let id = self.names.id(&self.output.items[at]);
            self.tell(out, "response.compaction.compacting", json!({"item_id": id, "output_index": at}));
        }
    }

    /// Says that an MCP server has no tools here.
    fn tell_unreached(&mut self, out: &mut String, at: usize) {
        let about = json!({"item_id": self.names.id(&self.output.items[at]), "output_index": at});
        self.tell(out, "response.mcp_list_tools.in_progress", about.clone());
        self.tell(out, "response.mcp_list_tools.failed", about);
    }

    /// The commands of a shell call have events of their own.
    fn tell_commands(&mut self, out: &mut String, at: usize) {
        let item = self.names.item(&self.output.items[at], "in_progress", true);
        for (nth, command) in item["action"]["commands"].as_array().into_iter().flatten().enumerate() {
            let about = |key: &str, command: &Value| json!({"output_index": at, "command_index": nth, key: command});
            self.tell(out, "response.shell_call_command.added", about("command", &json!("")));
            self.tell(out, "response.shell_call_command.delta", about("delta", command));
            self.tell(out, "response.shell_call_command.done", about("command", command));
        }
    }

    fn tell(&mut self, out: &mut String, name: &str, data: Value) {
        self.events.tell(out, name, data);
    }

    fn status(&self) -> &'static str {
        match self.finish.as_deref() {
            _ if !self.error.is_null() => "failed",
            Some("length" | "content_filter" | "model_context_window_exceeded" | reply::BROKEN_OFF) => "incomplete",
            _ => "completed",
        }
    }

    /// The status of an item: what the reply was cut in is incomplete.
    fn status_of(&self, at: usize) -> &'static str {
        let cut = at >= self.output.front || self.status() == "incomplete" && at + 1 == self.output.items.len();
        if cut { "incomplete" } else { "completed" }
    }

    fn response(&self, status: &str) -> Value {
        let details = match self.finish.as_deref().filter(|_| status == "incomplete") {
            // There is no word for it.
            None | Some(reply::BROKEN_OFF) => Value::Null,
            Some("content_filter") => json!({"reason": "content_filter"}),
            Some(_) => json!({"reason": "max_output_tokens"}),
        };
        let announced = self.output.items.iter().enumerate().filter(|(_, item)| item.open);
        let output: Vec<Value> = announced.map(|(at, item)| self.names.item(item, self.status_of(at), true)).collect();
        let completed = (status == "completed").then(|| self.now.max(self.head.created));
        let mut out = json!({
            "id": format!("resp_{}", self.head.id), "object": "response", "created_at": self.head.created,
            "completed_at": completed, "status": status, "error": self.error, "incomplete_details": details, "model": self.model,
            "output": output, "usage": self.usage(),
        });
        if let Some(out) = out.as_object_mut() {
            out.extend(self.echo.clone());
        }
        out
    }

    fn usage(&self) -> Value {
        let usage = self.usage;
        if usage.prompt.is_none() && usage.completion.is_none() {
            return Value::Null;
        }
        let input = usage.prompt.or(self.head.prompt_tokens).unwrap_or(0);
        let output = usage.completion.unwrap_or(0);
        json!({
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": usage.cached.unwrap_or(0), "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning.unwrap_or(0)},
            "total_tokens": input.saturating_add(output),
        })
    }
}

/// The error of a response, from one that a server sent in its stream.
fn failure(error: &Value) -> Value {
    let has = |key: &str, value: &str| error.get(key).is_some_and(|it| it == value);
    let overflow = has("code", "context_length_exceeded") || has("type", "exceed_context_size_error");
    let code = if overflow { "context_length_exceeded" } else { "server_error" };
    let message = error.get("message").unwrap_or(error);
    let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    json!({"code": code, "message": message})
}
