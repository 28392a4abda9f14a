//! A reply as Ollama gives it: one object, or a line for each piece and a last one with the figures.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::said::{CallPart, Said, Usage};
use super::super::{Head, ReplyEncoder, json as spelled};
use super::{context, error, error_line, message_of};
use crate::wire::reply;

/// Which of the two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    /// `/api/chat`: the reply is a `message`.
    Chat,
    /// `/api/generate`: the reply is a `response`.
    Generate,
}

/// The reply to one request.
pub(super) struct Reply {
    api: Api,
    /// As the client named it.
    model: String,
    created_at: String,
    usage: Usage,
    finish: Option<String>,
    /// Ollama gives calls whole, so they wait for the end of the stream.
    calls: Vec<CallPart>,
    /// Where the last call of each number stands among them.
    latest: HashMap<u64, usize>,
    /// What the reply answers: `/api/generate` gives it back as `context`, with the reply behind it.
    past: Vec<Value>,
    /// The words of the reply so far, where they are given back.
    words: String,
    /// The last line was said.
    over: bool,
}

impl Reply {
    pub(super) fn new(api: Api, model: String, past: Vec<Value>) -> Reply {
        Reply {
            api,
            model,
            created_at: String::new(),
            usage: Usage::default(),
            finish: None,
            calls: Vec::new(),
            latest: HashMap::new(),
            past,
            words: String::new(),
            over: false,
        }
    }

    fn begin(&mut self, head: &Head) {
        self.created_at = timestamp(head.created);
        self.usage.prompt = head.prompt_tokens;
    }

    fn add(&mut self, said: &Said) {
        // No prompt is empty: 0 says that the server did not count.
        let prompt = said.usage.prompt.filter(|n| *n > 0);
        self.usage = self.usage.and(Usage { prompt, ..said.usage });
        if said.finish.is_some() {
            self.finish.clone_from(&said.finish);
        }
        if self.api == Api::Generate {
            self.words.push_str(&text(said));
        }
    }

    /// What the client sends to go on behind this reply.
    fn context(&mut self) -> Option<Value> {
        if self.api == Api::Chat {
            return None;
        }
        let mut all = std::mem::take(&mut self.past);
        all.push(json!({"role": "assistant", "content": std::mem::take(&mut self.words)}));
        Some(context::write(&all))
    }

    /// A piece of the reply, up to `done`.
    fn piece(&self, text: &str, thinking: &str, calls: &[CallPart], logprobs: &[Value]) -> Map<String, Value> {
        let mut said = Map::new();
        if self.api == Api::Chat {
            said.insert("role".into(), "assistant".into());
        }
        said.insert(if self.api == Api::Chat { "content" } else { "response" }.into(), text.into());
        if !thinking.is_empty() {
            said.insert("thinking".into(), thinking.into());
        }
        if !calls.is_empty() {
            said.insert("tool_calls".into(), calls.iter().enumerate().map(call).collect());
        }
        let mut out = Map::new();
        out.insert("model".into(), self.model.as_str().into());
        out.insert("created_at".into(), self.created_at.as_str().into());
        match self.api {
            Api::Chat => drop(out.insert("message".into(), said.into())),
            Api::Generate => out.extend(said),
        }
        if !logprobs.is_empty() {
            out.insert("logprobs".into(), logprobs.iter().map(logprob).collect());
        }
        out
    }

    fn line(&self, text: &str, thinking: &str, calls: &[CallPart], logprobs: &[Value]) -> String {
        let mut piece = self.piece(text, thinking, calls, logprobs);
        piece.insert("done".into(), false.into());
        format!("{}\n", Value::Object(piece))
    }

    /// What the last line has, or the only one.
    fn done(&mut self, mut piece: Map<String, Value>) -> Value {
        // To Ollama, a reply that calls a tool has stopped like any.
        let cut = matches!(self.finish.as_deref(), Some("length" | "model_context_window_exceeded"));
        let reason = if cut { "length" } else { "stop" };
        let done = self.finish.as_deref() != Some(reply::BROKEN_OFF);
        let (prompt, written) = (nanoseconds(self.usage.prompt_ms), nanoseconds(self.usage.completion_ms));
        let load = nanoseconds(self.usage.load_ms);
        let figures = [
            ("done", Some(done.into())),
            ("done_reason", done.then(|| reason.into())),
            ("context", self.context()),
            ("total_duration", Some(load.saturating_add(prompt).saturating_add(written).into())),
            ("load_duration", Some(load.into())),
            ("prompt_eval_count", self.usage.prompt.map(Value::from)),
            ("prompt_eval_duration", Some(prompt.into())),
            ("eval_count", self.usage.completion.map(Value::from)),
            ("eval_duration", Some(written.into())),
        ];
        piece.extend(figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        piece.into()
    }

    /// Takes in a part of a call.
    fn call(&mut self, part: &CallPart) {
        // Some servers number all calls of a reply 0: another id is another call.
        let another =
            |call: &CallPart| part.name.is_some() && part.id.is_some() && call.id.is_some() && part.id != call.id;
        let known = self.latest.get(&part.index).and_then(|at| self.calls.get_mut(*at));
        match known.filter(|call| !another(call)) {
            Some(call) => {
                call.id = call.id.take().or_else(|| part.id.clone());
                if let Some(piece) = &part.name {
                    reply::grow_name(call.name.get_or_insert_default(), piece, !call.arguments.is_empty());
                }
                call.arguments.push_str(&part.arguments);
            }
            None => {
                self.latest.insert(part.index, self.calls.len());
                self.calls.push(part.clone());
            }
        }
    }
}

impl ReplyEncoder for Reply {
    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn whole(&mut self, head: &Head, said: &Said) -> Value {
        if let Some(failed) = &said.error {
            return error(&message_of(failed));
        }
        self.begin(head);
        self.add(said);
        let piece = self.piece(&text(said), &said.reasoning, &said.calls, &said.logprobs);
        self.done(piece)
    }

    fn start(&mut self, head: &Head) -> String {
        self.begin(head);
        String::new()
    }

    /// A piece without a word: NDJSON has no comments, and clients add the pieces up.
    fn ping(&mut self) -> String {
        if self.over { String::new() } else { self.line("", "", &[], &[]) }
    }

    fn chunk(&mut self, said: &Said) -> String {
        if self.over {
            return String::new();
        }
        self.add(said);
        said.calls.iter().for_each(|part| self.call(part));
        let text = text(said);
        let mut out = String::new();
        if !text.is_empty() || !said.reasoning.is_empty() || !said.logprobs.is_empty() {
            out = self.line(&text, &said.reasoning, &[], &said.logprobs);
        }
        if let Some(failed) = &said.error {
            self.over = true;
            out.push_str(&error_line(&message_of(failed)));
        }
        out
    }

    fn end(&mut self) -> String {
        if self.over {
            return String::new();
        }
        self.over = true;
        let mut out = String::new();
        if !self.calls.is_empty() {
            out = self.line("", "", &self.calls, &[]);
        }
        let last = self.piece("", "", &[], &[]);
        out.push_str(&format!("{}\n", self.done(last)));
        out
    }
}

/// How likely a token was, in the fields that Ollama has for it (`api/types.go`, `Logprob`).
fn logprob(token: &Value) -> Value {
    let mut out = Map::new();
    for key in ["token", "logprob", "bytes"] {
        out.extend(token.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let Some(others) = token.get("top_logprobs").and_then(Value::as_array).filter(|others| !others.is_empty()) {
        out.insert("top_logprobs".into(), others.iter().map(logprob).collect());
    }
    out.into()
}

/// Ollama has no word for a refusal.
fn text(said: &Said) -> String {
    [said.text.as_str(), &said.refusal].concat()
}

fn call((index, call): (usize, &CallPart)) -> Value {
    let arguments = match spelled::value(&call.arguments) {
        Ok(arguments @ Value::Object(_)) => arguments,
        _ if call.arguments.trim().is_empty() => json!({}),
        // A model's mistake: the client sees what it wrote, and the model sees it again.
        _ => json!({"_unparsed": call.arguments}),
    };
    let name = call.name.as_deref().unwrap_or_default();
    let function = json!({"index": index, "name": name, "arguments": arguments});
    match &call.id {
        Some(id) => json!({"id": id, "function": function}),
        None => json!({"function": function}),
    }
}

/// What is not known is 0, and a number that is none as well.
fn nanoseconds(milliseconds: Option<f64>) -> u64 {
    milliseconds.map_or(0, |ms| (ms * 1e6).round() as u64)
}

/// A Unix time (seconds) as RFC 3339, in UTC.
pub fn timestamp(unix: u64) -> String {
    let (year, month, day) = date(unix / 86_400);
    let (hour, minute, second) = (unix / 3_600 % 24, unix / 60 % 60, unix % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day from the days since 1970 (Howard Hinnant's `civil_from_days`). Years begin with March here, so that
/// the day that leap years add is a year's last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}
