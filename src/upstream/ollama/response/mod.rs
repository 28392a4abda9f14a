//! Pure: Ollama's replies in OpenAI's shape, streamed or whole, and its errors.

use std::borrow::Cow;

use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::upstream::event::{Event, Says};
use crate::wire::json as spelled;
use crate::wire::reply::{self, Collected};

/// So much of what is no reply is repeated to the client (characters).
const SHOWN: usize = 300;

/// What every chunk of a reply has in common.
pub(super) struct Head {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Makes an id for a call that comes without one.
    pub(super) call_id: fn() -> String,
}

/// One line of the stream, or the whole reply.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Record<'a> {
    model: String,
    #[serde(borrow)]
    message: Option<Said<'a>>,
    done: bool,
    done_reason: Option<String>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    prompt_eval_count: Option<u64>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u64>,
    eval_duration: Option<u64>,
    load_duration: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said<'a> {
    content: Option<String>,
    thinking: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Called<'a>>>,
}

#[derive(Deserialize)]
struct Called<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: CalledFunction<'a>,
}

#[derive(Deserialize)]
struct CalledFunction<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// The state of a streamed reply.
pub(super) struct Chunks {
    head: Head,
    include_usage: bool,
    model: String,
    started: bool,
    calls: usize,
    /// The last event is out: the rest of the stream says nothing.
    over: bool,
}

impl Chunks {
    pub(super) fn new(head: Head, include_usage: bool) -> Chunks {
        Chunks { head, include_usage, model: String::new(), started: false, calls: 0, over: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// The events for one line, appended to `out`.
    pub(super) fn line(&mut self, line: &[u8], out: &mut Vec<Event>) {
        if self.over {
            return;
        }
        let Some(line) = framed(line) else { return };
        let line = &strict(line)[..];
        let record: Record<'_> = match serde_json::from_slice(line) {
            Ok(record) => record,
            Err(_) => return self.fail_with(&no_record(line), out),
        };
        if let Some(told) = record.failed(line) {
            return self.fail_with(&told, out);
        }
        if !record.done && record.message.is_none() && record.model.is_empty() {
            return self.fail_with(&no_record(line), out);
        }
        if self.model.is_empty() {
            self.model.clone_from(&record.model);
        }
        let mut delta = record.message.as_ref().map(|said| self.delta(said)).unwrap_or_default();
        if !self.started {
            delta.shift_insert(0, "role".into(), "assistant".into());
            self.started = true;
        }
        if !delta.is_empty() || record.logprobs.is_some() {
            let logprobs = record.logprobs.and_then(logprobs);
            self.chunk(json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": null}]), &[], out);
        }
        if record.done {
            self.finish(&record, out);
        }
    }

    /// The stream has ended: if the reply has not, that is an error, and no `[DONE]` follows.
    pub(super) fn end(&mut self, out: &mut Vec<Event>) {
        if !self.over {
            self.fail("Ollama ended the reply before it was done", out);
        }
    }

    fn delta(&mut self, said: &Said<'_>) -> Map<String, Value> {
        let mut delta = Map::new();
        if let Some(thinking) = said.thinking.as_ref().filter(|text| !text.is_empty()) {
            delta.insert("reasoning_content".into(), thinking.as_str().into());
        }
        if let Some(content) = said.content.as_ref().filter(|text| !text.is_empty()) {
            delta.insert("content".into(), content.as_str().into());
        }
        let calls = said.tool_calls.as_deref().unwrap_or_default();
        if !calls.is_empty() {
            let first = self.calls;
            let indexed = calls.iter().enumerate().map(|(i, call)| {
                let mut read = call.read(self.head.call_id);
                read.shift_insert(0, "index".into(), (first + i).into());
                Value::Object(read)
            });
            delta.insert("tool_calls".into(), indexed.collect());
            self.calls += calls.len();
        }
        delta
    }

    fn finish(&mut self, record: &Record<'_>, out: &mut Vec<Event>) {
        let reason = finish_reason(record, self.calls > 0);
        let finish = json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}]);
        let timings = ("timings", timings(record));
        match usage(record).filter(|_| self.include_usage) {
            Some(usage) => {
                self.chunk(finish, &[], out);
                self.chunk(json!([]), &[("usage", usage), timings], out);
            }
            None => self.chunk(finish, &[timings], out),
        }
        out.push(Event::done());
        self.over = true;
    }

    fn chunk(&self, choices: Value, extra: &[(&str, Value)], out: &mut Vec<Event>) {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.model,
            "system_fingerprint": "fp_ollama",
            "choices": choices,
        });
        for (name, value) in extra {
            chunk[*name] = value.clone();
        }
        out.push(Event::chunk(chunk));
    }

    fn fail(&mut self, message: &str, out: &mut Vec<Event>) {
        self.fail_with(&Told { message: message.to_owned(), ..Told::default() }, out);
    }

    fn fail_with(&mut self, told: &Told, out: &mut Vec<Event>) {
        out.push(Event::chunk(told.body("api_error")));
        self.over = true;
    }
}

impl Record<'_> {
    /// The error that a record is, if it is one: `error`, or what gateways say instead.
    fn failed(&self, line: &[u8]) -> Option<Told> {
        if let Some(error) = self.error.filter(|e| !matches!(e.get(), "null" | "\"\"" | "false")) {
            return Some(told(error.get().as_bytes()));
        }
        if self.message.is_some() || self.done {
            return None;
        }
        error_told(line)
    }
}

/// The error that JSON of another shape is.
fn error_told(line: &[u8]) -> Option<Told> {
    let error = reply::error_in(&serde_json::from_slice(line).ok()?)?;
    let message = error["message"].as_str().unwrap_or_default().to_owned();
    Some(Told { message, fields: error.as_object().cloned().unwrap_or_default() })
}

/// What is told of a line that is none of Ollama's: the error that it is, or else what stands there.
fn no_record(line: &[u8]) -> Told {
    error_told(line).unwrap_or_else(|| {
        let what = if serde_json::from_slice::<IgnoredAny>(line).is_ok() { "no reply" } else { "not JSON" };
        let shown: String = String::from_utf8_lossy(line).chars().take(SHOWN).collect();
        Told { message: format!("Ollama sent a line that is {what}: {shown}"), ..Told::default() }
    })
}

/// JSON for a strict reader, where it is nearly some; see [`spelled::lenient`].
fn strict(text: &[u8]) -> Cow<'_, [u8]> {
    if serde_json::from_slice::<IgnoredAny>(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let mended = spelled::lenient(&String::from_utf8_lossy(text));
    mended.map_or(Cow::Borrowed(text), |value| Cow::Owned(value.to_string().into_bytes()))
}

/// A line without what server-sent events put before their data: some gateways speak them here, too. `None` for what holds no
/// data.
fn framed(line: &[u8]) -> Option<&[u8]> {
    if [&b"event:"[..], b":", b"id:", b"retry:"].iter().any(|start| line.starts_with(start)) {
        return None;
    }
    Some(line.strip_prefix(b"data:").unwrap_or(line).trim_ascii()).filter(|data| *data != b"[DONE]")
}

impl Called<'_> {
    fn read(&self, call_id: fn() -> String) -> Map<String, Value> {
        let id = self.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(call_id);
        let arguments = self.function.arguments.map_or("{}", RawValue::get);
        // An object, whose text is what OpenAI calls the arguments; a string would be that text already.
        let arguments = serde_json::from_str::<String>(arguments).unwrap_or_else(|_| arguments.to_owned());
        let function = json!({"name": self.function.name, "arguments": arguments});
        Map::from_iter([("id".into(), id.into()), ("type".into(), "function".into()), ("function".into(), function)])
    }
}

fn finish_reason(record: &Record<'_>, called: bool) -> &'static str {
    match record.done_reason.as_deref() {
        Some("length") => "length",
        _ if called => "tool_calls",
        _ => "stop",
    }
}

fn logprobs(tokens: &RawValue) -> Option<Value> {
    let content: Value = serde_json::from_str(tokens.get()).ok()?;
    content.is_array().then(|| json!({"content": content, "refusal": null}))
}

/// `None` where Ollama did not say how long the prompt was: no number is better than a wrong one.
fn usage(record: &Record<'_>) -> Option<Value> {
    let prompt = record.prompt_eval_count?;
    let completion = record.eval_count.unwrap_or(0);
    Some(json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}))
}

/// What Ollama reported, under the names llama-server uses: counts, and milliseconds. `prompt_n` is the whole prompt,
/// cached tokens included.
fn timings(record: &Record<'_>) -> Value {
    let ms = |ns: u64| ns as f64 / 1e6;
    let all = [
        ("prompt_n", record.prompt_eval_count.map(Value::from)),
        ("prompt_ms", record.prompt_eval_duration.map(ms).map(Value::from)),
        ("predicted_n", record.eval_count.map(Value::from)),
        ("predicted_ms", record.eval_duration.map(ms).map(Value::from)),
        ("load_ms", record.load_duration.map(ms).map(Value::from)),
    ];
    Value::Object(all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

/// A whole reply, in OpenAI's shape.
#[derive(Debug)]
pub(super) enum Completion {
    Reply(String),
    /// Ollama said 200 and then an error.
    Error(String),
}

/// The reply to a request that was not streamed; `Err` says what is wrong with it.
pub(super) fn completion(head: Head, body: &[u8]) -> Result<Completion, String> {
    let body = &strict(body)[..];
    let Ok(record) = serde_json::from_slice::<Record<'_>>(body) else { return streamed(head, body) };
    if let Some(told) = record.failed(body) {
        return Ok(Completion::Error(told.body("api_error").to_string()));
    }
    // What was said before the end is a reply that broke off.
    let says =
        |said: &Said<'_>| said.content.as_ref().is_some_and(|text| !text.is_empty()) || said.tool_calls.is_some();
    if !record.done && !record.message.as_ref().is_some_and(says) {
        let shown: String = String::from_utf8_lossy(body).chars().take(SHOWN).collect();
        return Err(format!("the reply is not done: {shown}"));
    }
    let head = &head;
    let nothing = Said::default();
    let said = record.message.as_ref().unwrap_or(&nothing);
    let calls = said.tool_calls.as_deref().unwrap_or_default();
    let content = said.content.as_deref().unwrap_or_default();
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if let Some(thinking) = said.thinking.as_ref().filter(|text| !text.is_empty()) {
        message["reasoning_content"] = thinking.as_str().into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.iter().map(|call| Value::Object(call.read(head.call_id))).collect();
        if content.is_empty() {
            message["content"] = Value::Null;
        }
    }
    // Here clients expect a usage: what is not known is 0, as Ollama's own OpenAI layer has it; `timings` has no 0.
    let counted = record.eval_count.unwrap_or(0);
    let known = json!({"prompt_tokens": 0, "completion_tokens": counted, "total_tokens": counted});
    let reply = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": record.model,
        "system_fingerprint": "fp_ollama",
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": record.logprobs.and_then(logprobs),
            "finish_reason": record.done.then(|| finish_reason(&record, !calls.is_empty())),
        }],
        "usage": usage(&record).unwrap_or(known),
        "timings": timings(&record),
    });
    Ok(Completion::Reply(reply.to_string()))
}

/// The same where it came as a stream though none was asked for.
fn streamed(head: Head, body: &[u8]) -> Result<Completion, String> {
    let is_json = |line: &[u8]| framed(line).is_none_or(|data| serde_json::from_slice::<IgnoredAny>(data).is_ok());
    let lines = || body.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    if lines().next().is_none() || !lines().all(is_json) {
        return Err("the reply is not the JSON of a chat".to_owned());
    }
    let (mut chunks, mut events) = (Chunks::new(head, true), Vec::new());
    lines().for_each(|line| chunks.line(line, &mut events));
    chunks.end(&mut events);
    let mut all = Collected::default();
    for event in events {
        let Says::Chunk(value) = event.says else { continue };
        if reply::error_in(&value).is_some() {
            return Ok(Completion::Error(value.to_string()));
        }
        all.add(&value);
    }
    Ok(Completion::Reply(all.value().to_string()))
}

/// The body of an error in OpenAI's shape. What llama-server said inside Ollama's envelope comes out whole.
pub(super) fn error(status: u16, body: &[u8]) -> String {
    let told = told(body);
    let by_status = match status {
        404 => "not_found_error",
        401 | 403 => "authentication_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    told.body(by_status).to_string()
}

/// The status of an error that is the request's: Ollama says 500 where an option has a value of another type, and clients try a
/// 500 again.
pub(super) fn blamed(status: StatusCode, body: &[u8]) -> StatusCode {
    let said = told(body).message;
    let wrong = said.starts_with("option ") && said.contains(" must be of type ");
    if status.is_server_error() && wrong { StatusCode::BAD_REQUEST } else { status }
}

/// What an error says, with the fields that came beside its message.
#[derive(Default)]
struct Told {
    message: String,
    fields: Map<String, Value>,
}

impl Told {
    fn body(&self, default_type: &str) -> Value {
        let mut error = json!({"message": self.message, "type": default_type, "param": null, "code": null});
        for (name, value) in self.fields.iter().filter(|(name, value)| *name != "message" && !value.is_null()) {
            error[name] = value.clone();
        }
        json!({ "error": error })
    }
}

/// Unwraps `{"error": …}` and JSON inside strings, a few times over.
fn told(body: &[u8]) -> Told {
    let text = String::from_utf8_lossy(body);
    let mut value: Value = serde_json::from_slice(body).unwrap_or_else(|_| Value::from(text.trim()));
    for _ in 0..6 {
        value = match value {
            Value::Object(mut fields) => match fields.remove("error") {
                Some(inner) => inner,
                None => {
                    let message = fields.get("message").and_then(Value::as_str).unwrap_or("Ollama gave no reason");
                    return Told { message: message.to_owned(), fields };
                }
            },
            Value::String(text) => match serde_json::from_str::<Value>(&text) {
                Ok(inner) if inner.is_object() => inner,
                _ => return Told { message: text, fields: Map::new() },
            },
            other => return Told { message: other.to_string(), fields: Map::new() },
        };
    }
    Told { message: "Ollama gave no reason".to_owned(), fields: Map::new() }
}

#[cfg(test)]
mod tests;
