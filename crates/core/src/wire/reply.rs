//! A chat completion as servers really send it: the error that a body or a chunk may be, whatever its shape; a whole reply as
//! the chunks of a stream, and a stream's chunks as a whole reply.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::extra;
pub use super::finish::{finish_of, is_failure};

/// How far down an error inside an error is looked for.
const DEPTH: usize = 4;

/// What a server said, at most (bytes): an error's text is for people.
const LONGEST: usize = 4096;

/// Where errors have their words, the plainest first.
const WORDS: [&str; 14] = [
    "message",
    "detail",
    "msg",
    "error",
    "error_message",
    "error_msg",
    "title",
    "reason",
    "errors",
    "fault",
    "faultstring",
    "base_resp",
    "status_msg",
    "description",
];

/// How a reply of ours ends that holds a brief and nothing else.
pub const COMPACTION: &str = "windowsill_compaction";

/// How a reply ends that came whole without a word of why it ended: nothing says that it is all of it.
pub const BROKEN_OFF: &str = "windowsill_broken_off";

/// The error that a server's answer is, or an event of its stream, as an `error` object in OpenAI's shape: it has a `message`
/// in the server's words. `None` for a reply and a part of one.
pub fn error_in(value: &Value) -> Option<Value> {
    // Google's API wraps its errors so.
    if let Some([only]) = value.as_array().map(Vec::as_slice) {
        return only.is_object().then(|| error_in(only)).flatten();
    }
    let fields = value.as_object()?;
    if let Some(error) = fields.get("error").filter(|error| is_told(error)) {
        return Some(shaped(error, fields, DEPTH));
    }
    let choices = fields.get("choices").and_then(Value::as_array).filter(|all| !all.is_empty());
    if let Some(choices) = choices {
        let error = choices.iter().find_map(|choice| choice.get("error").filter(|error| is_told(error)))?;
        return Some(shaped(error, &Map::new(), DEPTH));
    }
    if fields.len() == 1 && fields.get("error").is_some_and(|e| !e.is_null()) {
        return Some(made("", None));
    }
    is_error(value, fields).then(|| shaped(value, &Map::new(), DEPTH))
}

/// Whether an answer without choices and without `error` is one all the same.
fn is_error(value: &Value, fields: &Map<String, Value>) -> bool {
    let is = |key: &str, word: &Value| fields.get(key).is_some_and(|v| v == word);
    // SGLang and older vLLMs do without the envelope.
    let calls_itself_one = ["object", "type", "status"].iter().any(|key| is(key, &"error".into()))
        || is("status", &"failed".into())
        || ["success", "ok"].iter().any(|key| is(key, &false.into()));
    // FastAPI's own errors, those of GraphQL's kind, and of gateways.
    let has_one = ["detail", "errors", "fault"].iter().any(|key| fields.get(*key).is_some_and(says));
    let words =
        ["message", "msg", "error_msg"].iter().any(|key| fields.get(*key).is_some_and(|v| v.is_string() && says(v)));
    // DashScope, Baidu and GLM say a code of their own beside the words.
    let fine =
        |code: &Value| ["0", "200", "ok", "success"].iter().any(|fine| code.as_str() == Some(fine)) || *code == 200;
    let coded =
        ["code", "error_code"].iter().any(|key| fields.get(*key).is_some_and(|code| is_told(code) && !fine(code)));
    // MiniMax.
    let failed = fields.get("base_resp").and_then(|told| told.get("status_code")).is_some_and(|code| code != 0);
    calls_itself_one || has_one || failed || words && (coded || status_of(value).is_some())
}

/// The error of an event that calls itself one, whatever its data is.
pub fn error_named(data: &str) -> Value {
    match serde_json::from_str::<Value>(data) {
        Ok(value) => error_in(&value).unwrap_or_else(|| shaped(&value, &Map::new(), DEPTH)),
        Err(_) => made(data, None),
    }
}

/// Whether the error in this body or chunk stands where clients look for it: `error.message` is a text.
pub fn is_plain(value: &Value) -> bool {
    value.pointer("/error/message").is_some_and(Value::is_string)
}

/// The HTTP status that an error carries in its own fields.
pub fn status_of(error: &Value) -> Option<u16> {
    let read = |key: &str| {
        let value = error.get(key)?;
        let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())?;
        u16::try_from(number).ok().filter(|status| (400..600).contains(status))
    };
    ["code", "status", "status_code", "statusCode", "http_status"].iter().find_map(|key| read(key))
}

/// An error of our own making about a server, in OpenAI's shape.
pub fn upstream_error(code: &str, message: &str) -> Value {
    json!({"message": message, "type": "upstream_error", "param": null, "code": code})
}

/// Whether a value says anything: an empty object, an empty text and `false` do not.
pub fn says(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// Whether an `error` tells of one: some servers send one with each reply, of which all fields are empty or 0.
pub fn is_told(error: &Value) -> bool {
    match error {
        Value::Object(fields) => fields.values().any(is_told),
        Value::Number(number) => number.as_f64() != Some(0.0),
        other => says(other),
    }
}

/// An error in OpenAI's shape. `around` is what it stands in.
fn shaped(error: &Value, around: &Map<String, Value>, depth: usize) -> Value {
    match error {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner) if inner.is_object() && depth > 0 => {
                error_in(&inner).unwrap_or_else(|| shaped(&inner, around, depth - 1))
            }
            _ => made(text, Some(around)),
        },
        Value::Object(fields) => {
            let words = WORDS.iter().find_map(|key| fields.get(*key).filter(|v| says(v)));
            match words {
                Some(Value::String(words)) if fields.get("message").is_some_and(|m| m == words.as_str()) => {
                    let mut out = Value::Object(fields.clone());
                    fill(&mut out);
                    out
                }
                Some(inner) if depth > 0 => {
                    let mut out = shaped(inner, fields, depth - 1);
                    keep_status(&mut out, fields);
                    out
                }
                _ => made(&error.to_string(), Some(around)),
            }
        }
        Value::Array(all) => {
            let words = |one: &Value| shaped(one, &Map::new(), depth.saturating_sub(1))["message"].clone();
            let all: Vec<String> = all
                .iter()
                .take(if depth == 0 { 0 } else { 16 })
                .filter_map(|one| words(one).as_str().map(str::to_owned))
                .collect();
            made(&all.join("; "), Some(around))
        }
        // `"error": true`, and the words beside it.
        other => {
            let beside = ["message", "detail", "msg"].iter().find_map(|key| around.get(*key)?.as_str());
            made(beside.unwrap_or(&other.to_string()), Some(around))
        }
    }
}

fn made(words: &str, around: Option<&Map<String, Value>>) -> Value {
    let mut end = words.len().min(LONGEST);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = json!({"message": words[..end].trim()});
    if let Some(around) = around {
        keep_status(&mut out, around);
    }
    fill(&mut out);
    out
}

/// Keeps the code that stands beside an error.
fn keep_status(out: &mut Value, around: &Map<String, Value>) {
    for key in ["code", "status", "status_code", "statusCode"] {
        if let Some(value) = around.get(key).filter(|v| says(v))
            && out.get(key).is_none_or(Value::is_null)
        {
            out[key] = value.clone();
        }
    }
}

/// The fields that clients expect.
fn fill(error: &mut Value) {
    if error.get("message").and_then(Value::as_str).is_none_or(|m| m.trim().is_empty()) {
        error["message"] = json!("the inference server reported an error and gave no reason");
    }
    for (key, value) in [("type", json!("server_error")), ("param", Value::Null), ("code", Value::Null)] {
        if error.get(key).is_none() {
            error[key] = value;
        }
    }
}

/// Whether this is a whole reply: its first choice has a `message`, and no `delta`.
pub fn is_whole(value: &Value) -> bool {
    value.pointer("/choices/0").is_some_and(came_whole)
}

/// Whether a choice came whole.
pub fn came_whole(choice: &Value) -> bool {
    choice.get("message").is_some_and(Value::is_object) && choice.get("delta").is_none()
}

/// Why a choice that came whole ended. Where it does not say so, calls that are whole are an end of their own; `None`: it broke
/// off, as far as anybody can tell.
pub fn end_of(choice: &Value) -> Option<&str> {
    let calls = || {
        let calls = choice.pointer("/message/tool_calls")?.as_array().filter(|calls| !calls.is_empty())?;
        calls.iter().all(is_whole_call).then_some("tool_calls")
    };
    finish_of(choice).or_else(calls)
}

/// Whether the arguments of a call are an object, so that nothing can follow.
fn is_whole_call(call: &Value) -> bool {
    match call.pointer("/function/arguments") {
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text).is_ok(),
        Some(arguments) => arguments.is_object(),
        None => false,
    }
}

/// Whether a whole reply says that it broke off, or does not say why it ended.
pub fn breaks_off(whole: &Value) -> bool {
    let first = whole.pointer("/choices/0").filter(|choice| came_whole(choice));
    first.is_some_and(|choice| end_of(choice).is_none_or(is_failure))
}

/// A whole reply as the chunks of a stream: what each choice says, why it ends as far as it says so, and what it cost.
pub fn chunks(whole: &Value) -> Vec<Value> {
    let mut head = whole.as_object().cloned().unwrap_or_default();
    for key in ["choices", "usage", "timings"] {
        head.remove(key);
    }
    head.insert("object".into(), "chat.completion.chunk".into());
    let chunk = |choices: Value| {
        let mut chunk = head.clone();
        chunk.insert("choices".into(), choices);
        chunk
    };
    let mut out = Vec::new();
    let choices = whole.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (at, choice) in choices.iter().enumerate() {
        let index = choice.get("index").cloned().unwrap_or_else(|| at.into());
        let mut said = choice.as_object().cloned().unwrap_or_default();
        let mut delta = said.remove("message").unwrap_or_default();
        if let Some(calls) = delta.get_mut("tool_calls").and_then(Value::as_array_mut) {
            for (nth, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.is_object()) {
                call["index"] = nth.into();
            }
        }
        said.insert("index".into(), index.clone());
        said.insert("delta".into(), delta);
        said.insert("finish_reason".into(), Value::Null);
        out.push(Value::Object(chunk(json!([said]))));
        if let Some(finish) = end_of(choice) {
            out.push(Value::Object(chunk(json!([{"index": index, "delta": {}, "finish_reason": finish}]))));
        }
    }
    let mut cost = chunk(json!([]));
    let figures = ["usage", "timings"].iter().filter_map(|key| Some((*key, whole.get(*key).filter(|v| says(v))?)));
    let figures: Vec<(String, Value)> = figures.map(|(key, value)| (key.to_owned(), value.clone())).collect();
    if !figures.is_empty() {
        cost.extend(figures);
        out.push(cost.into());
    }
    out
}

/// Whether a choice of a chunk says anything that belongs to the reply: a role alone does not.
pub fn says_something(choice: &Value) -> bool {
    let said = choice.get("delta").or(choice.get("message")).and_then(Value::as_object);
    said.is_some_and(|fields| fields.iter().any(|(key, value)| key != "role" && says(value)))
}

/// The calls of a message of a reply, or of a delta: `tool_calls`. Where there are none, the one call in the form that OpenAI had
/// before them (`function_call`: a name and arguments), said as [`newer`] says it.
pub fn calls(message: &Value) -> Cow<'_, [Value]> {
    match message.get("tool_calls").and_then(Value::as_array) {
        Some(calls) if !calls.is_empty() => Cow::Borrowed(calls),
        _ => match message.as_object().and_then(legacy_call).map(newer) {
            Some(call) => Cow::Owned(vec![call]),
            None => Cow::Borrowed(&[]),
        },
    }
}

/// The `function_call` of a message or a delta, where it says anything: some servers send an empty one with each reply.
pub fn legacy_call(message: &Map<String, Value>) -> Option<&Value> {
    let call = message.get("function_call").filter(|call| call.is_object())?;
    ["name", "arguments"].iter().any(|key| call.get(*key).is_some_and(says)).then_some(call)
}

/// A `function_call` as the first of `tool_calls`, without an id.
pub fn newer(call: &Value) -> Value {
    json!({"index": 0, "type": "function", "function": call})
}

/// What a message of a reply says to its client, as a message of a history: its words and calls, not what the model thought.
/// `None` where it says nothing.
pub fn said(message: &Value) -> Option<Value> {
    let mut out = json!({"role": "assistant", "content": message.get("content").cloned().unwrap_or_default()});
    for key in ["refusal", "tool_calls", "function_call"] {
        let is_empty = key == "function_call" && message.as_object().and_then(legacy_call).is_none();
        if let Some(value) = message.get(key).filter(|value| says(value) && !is_empty) {
            out[key] = value.clone();
        }
    }
    (says(&out["content"]) || out.as_object().is_some_and(|fields| fields.len() > 2)).then_some(out)
}

/// Adds a piece of a call's name to it. Some servers send the name in pieces, and some send all of it with every part;
/// `begun`: arguments came already, so that the name is whole.
pub fn grow_name(name: &mut String, piece: &str, begun: bool) {
    if name.is_empty() || !begun && name != piece {
        name.push_str(piece);
    }
}

/// A whole reply in the making, out of the chunks of a stream.
#[derive(Debug, Default)]
pub struct Collected {
    head: Map<String, Value>,
    choices: Vec<Choice>,
}

#[derive(Debug, Default)]
struct Choice {
    index: u64,
    message: Map<String, Value>,
    calls: Vec<Value>,
    rest: Map<String, Value>,
}

impl Collected {
    /// Takes in a chunk. Texts add up, calls are put together, and of other fields the last one counts.
    pub fn add(&mut self, chunk: &Value) {
        for (key, value) in chunk.as_object().into_iter().flatten() {
            if key == "choices" {
                for choice in value.as_array().into_iter().flatten() {
                    self.choice(choice);
                }
                continue;
            }
            // One reply has one id.
            let is_of_first = matches!(key.as_str(), "id" | "created") && self.head.contains_key(key);
            if !value.is_null() && !is_of_first {
                self.head.insert(key.clone(), value.clone());
            }
        }
    }

    fn choice(&mut self, said: &Value) {
        let index = said.get("index").and_then(Value::as_u64).unwrap_or(0);
        let at = match self.choices.iter().position(|c| c.index == index) {
            Some(at) => at,
            None => {
                self.choices.push(Choice { index, ..Choice::default() });
                self.choices.len() - 1
            }
        };
        let choice = &mut self.choices[at];
        // Some say all so far beside each piece.
        let in_pieces = said.get("delta").is_some_and(says);
        for (key, value) in said.as_object().into_iter().flatten() {
            match key.as_str() {
                "message" if in_pieces => {}
                "delta" | "message" => choice.delta(value),
                "index" => {}
                _ if value.is_null() || value == "" => {}
                "logprobs" => choice.logprobs(value),
                _ => drop(choice.rest.insert(key.clone(), value.clone())),
            }
        }
    }

    /// What the first choice says so far; see [`said`].
    pub fn said(&self) -> Option<Value> {
        let choice = self.choices.iter().find(|choice| choice.index == 0)?;
        let mut message = choice.message.clone();
        let mut calls = choice.calls.clone();
        calls.iter_mut().filter_map(Value::as_object_mut).for_each(|call| drop(call.remove("index")));
        message.insert("tool_calls".into(), calls.into());
        said(&message.into())
    }

    /// Whether no chunk came.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// The whole reply.
    pub fn value(mut self) -> Value {
        self.choices.sort_by_key(|choice| choice.index);
        let choices: Vec<Value> = self.choices.into_iter().map(Choice::value).collect();
        let mut out = self.head;
        out.insert("object".into(), "chat.completion".into());
        out.insert("choices".into(), choices.into());
        out.into()
    }
}

impl Choice {
    fn delta(&mut self, delta: &Value) {
        for (key, value) in delta.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("tool_calls", Value::Array(parts)) => parts.iter().for_each(|part| self.call(part)),
                (_, Value::Null) => {}
                ("function_call", Value::Object(part)) => self.legacy(part),
                ("role", _) => drop(self.message.insert(key.clone(), value.clone())),
                (_, Value::String(more)) => match self.message.get_mut(key) {
                    Some(Value::String(text)) => text.push_str(more),
                    _ => drop(self.message.insert(key.clone(), value.clone())),
                },
                (_, Value::Array(more)) => match self.message.get_mut(key) {
                    Some(Value::Array(all)) => all.extend(more.iter().cloned()),
                    _ => drop(self.message.insert(key.clone(), value.clone())),
                },
                _ => drop(self.message.insert(key.clone(), value.clone())),
            }
        }
    }

    /// Adds a piece of a call in the older form: the name comes once, the arguments in pieces.
    fn legacy(&mut self, part: &Map<String, Value>) {
        let call = self.message.entry("function_call").or_insert_with(|| json!({}));
        for key in ["name", "arguments"] {
            let more = match part.get(key) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text.clone(),
                Some(object) => object.to_string(),
            };
            let before = call[key].as_str().unwrap_or_default();
            if key == "arguments" || before.is_empty() {
                call[key] = (before.to_owned() + &more).into();
            }
        }
    }

    fn call(&mut self, part: &Value) {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, name) = (text(part.get("id")), text(part.pointer("/function/name")));
        let last = self.calls.len().saturating_sub(1) as u64;
        let index = part.get("index").and_then(Value::as_u64).unwrap_or(last);
        // Some servers number all calls of a reply 0: another id and a name are another call.
        // So is a name behind arguments that are whole, where there are no ids.
        let arguments = part.pointer("/function/arguments").is_some_and(says);
        let another = |call: &Value| match call["id"].as_str() {
            Some("") | None => arguments && is_whole_call(call),
            Some(other) => !id.is_empty() && other != id,
        };
        let same = |call: &Value| call["index"] == index && (name.is_empty() || !another(call));
        let at = self.calls.iter().rposition(same).unwrap_or_else(|| {
            let function = json!({"name": "", "arguments": ""});
            self.calls.push(json!({"index": index, "id": "", "type": "function", "function": function}));
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        if call["id"] == "" {
            call["id"] = id.into();
        }
        let begun = call["function"]["arguments"] != "";
        if let Value::String(so_far) = &mut call["function"]["name"] {
            grow_name(so_far, &name, begun);
        }
        let more = match part.pointer("/function/arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(object) => object.to_string(),
        };
        let before = text(call.pointer("/function/arguments"));
        call["function"]["arguments"] = (before + &more).into();
        if let Some(extra) = part.get(extra::FIELD).filter(|extra| says(extra)) {
            call[extra::FIELD] = extra.clone();
        }
    }

    fn logprobs(&mut self, more: &Value) {
        let Some(Value::Object(all)) = self.rest.get_mut("logprobs") else {
            self.rest.insert("logprobs".into(), more.clone());
            return;
        };
        for (key, value) in more.as_object().into_iter().flatten() {
            match (all.get_mut(key), value) {
                (Some(Value::Array(all)), Value::Array(more)) => all.extend(more.iter().cloned()),
                (_, Value::Null) => {}
                _ => drop(all.insert(key.clone(), value.clone())),
            }
        }
    }

    fn value(self) -> Value {
        let Choice { index, mut message, mut calls, mut rest } = self;
        message.entry("role").or_insert_with(|| "assistant".into());
        let legacy = message.get("function_call").is_some_and(says);
        let usual = match calls.is_empty() {
            true if legacy => "function_call",
            true => "stop",
            false => "tool_calls",
        };
        for call in calls.iter_mut().filter_map(Value::as_object_mut) {
            call.remove("index");
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        message.entry("content").or_insert(Value::Null);
        rest.entry("finish_reason").or_insert_with(|| usual.into());
        rest.insert("index".into(), index.into());
        rest.insert("message".into(), message.into());
        rest.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_from_replies_in_every_shape() {
        let words = "the model crashed";
        for body in [
            json!({"error": {"message": words}}),
            json!({"error": words}),
            json!({"error": {"error": {"message": words}}}),
            json!({"error": json!({"error": {"message": words, "code": 500}}).to_string()}),
            json!({"error": {"detail": words}}),
            json!({"error": true, "message": words}),
            json!({"type": "error", "error": {"type": "api_error", "message": words}}),
            json!({"object": "error", "message": words, "code": 400}),
            json!({"detail": words}),
            json!({"detail": [{"loc": ["body"], "msg": words}]}),
            json!({"message": words, "status": 503}),
            json!({"msg": words, "code": 500, "data": null}),
            json!({"msg": words, "code": 1261}),
            json!({"message": words, "code": "InternalError", "request_id": "r"}),
            json!({"error_msg": words, "error_code": 336100}),
            json!({"errors": [{"message": words}]}),
            json!({"success": false, "message": words}),
            json!({"status": "failed", "reason": words}),
            json!({"fault": {"faultstring": words}}),
            json!({"base_resp": {"status_code": 1004, "status_msg": words}, "choices": null}),
            json!({"choices": [{"index": 0, "error": {"code": 502, "message": words}, "message": {"content": ""}}]}),
            json!([{"error": {"code": 503, "message": words}}]),
            json!({"choices": [{"delta": {"content": ""}, "finish_reason": "error"}], "error": {"message": words}}),
        ] {
            let error = error_in(&body).unwrap_or_else(|| panic!("{body}"));
            assert_eq!((&error["message"], error["type"].is_string()), (&json!(words), true), "{body}");
            assert!(error.get("code").is_some() && error.get("param").is_some(), "{body}");
        }
        for body in [
            json!({"choices": [{"delta": {"content": words}}], "error": null}),
            json!({"choices": [{"delta": {"content": words}, "error": null}], "success": false}),
            json!({"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}}),
            json!({"status": "completed", "success": true, "msg": words}),
            json!({"code": 200, "msg": words, "data": {}}),
            json!({"code": 0, "msg": words, "data": {}}),
            json!({"choices": [{"delta": {"content": words}}], "error": {}}),
            json!({"choices": [{"delta": {"content": words}}], "error": {"code": 0, "message": "", "param": null}}),
            json!({"choices": [{"delta": {"content": words}}], "error": "", "detail": "x"}),
            json!({"choices": [{"message": {"content": "{\"error\": 1}"}}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 1}}),
            json!({"id": "x", "object": "chat.completion.chunk"}),
            json!({"message": {"role": "assistant", "content": "hi"}, "done": true}),
            json!([words]),
            json!(null),
        ] {
            assert_eq!(error_in(&body), None, "{body}");
        }
        assert!(error_in(&json!({"error": {}})).unwrap()["message"].as_str().unwrap().contains("gave no reason"));
        assert_eq!(error_named(words)["message"], words);
        assert_eq!(error_named("{\"message\":\"m\",\"code\":\"503\"}")["message"], "m");
        assert_eq!(status_of(&error_named("{\"message\":\"m\",\"code\":\"503\"}")), Some(503));
        assert_eq!(status_of(&json!({"code": 1})), None);
    }

    #[test]
    fn a_whole_reply_and_its_chunks_say_the_same() {
        let whole = json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "usage": {"prompt_tokens": 3},
            "choices": [
                {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{\"x\":1}"}}]}},
                {"index": 1, "finish_reason": "length", "message": {"role": "assistant", "content": "ho"}}]});
        assert!(is_whole(&whole));
        let mut all = Collected::default();
        let chunks = chunks(&whole);
        assert_eq!(chunks.len(), 5);
        assert!(!chunks.iter().any(is_whole) && chunks.iter().all(|c| c["object"] == "chat.completion.chunk"));
        chunks.iter().for_each(|chunk| all.add(chunk));
        assert_eq!(all.value(), whole);
    }

    #[test]
    fn a_call_in_the_older_form_is_put_together() {
        let mut all = Collected::default();
        for delta in [
            json!({"role": "assistant", "content": null, "function_call": {"name": "sh", "arguments": ""}}),
            json!({"function_call": {"arguments": "{\"a\":"}}),
            json!({"function_call": {"name": "", "arguments": "1}"}}),
            json!({"function_call": null}),
        ] {
            all.add(&json!({"choices": [{"delta": delta, "finish_reason": null}]}));
        }
        let call = json!({"name": "sh", "arguments": "{\"a\":1}"});
        assert_eq!(all.said().unwrap()["function_call"], call);
        let choice = all.value()["choices"][0].clone();
        assert_eq!((&choice["message"]["function_call"], &choice["finish_reason"]), (&call, &json!("function_call")));
        let said = |message: Value| calls(&message).into_owned();
        let one = json!([{"index": 0, "type": "function", "function": call}]);
        assert_eq!(json!(said(json!({"tool_calls": [], "function_call": call}))), one);
        assert_eq!(said(json!({"tool_calls": [{"id": "a"}], "function_call": call})), [json!({"id": "a"})]);
        for nothing in [json!(null), json!({}), json!({"name": "", "arguments": null}), json!("sh")] {
            assert!(said(json!({"content": "hi", "function_call": nothing})).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn pieces_are_put_together() {
        let mut all = Collected::default();
        for delta in [
            json!({"role": "assistant", "content": null}),
            json!({"content": "The "}),
            json!({"content": "end", "tool_calls": [{"index": 0, "id": "a", "function": {"name": "s", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"name": "h"}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"name": "sh", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
            json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "sh", "arguments": {"x": 2}}}]}),
        ] {
            all.add(&json!({"id": "c", "choices": [{"delta": delta, "finish_reason": ""}]}));
        }
        let so_far = all.said().unwrap();
        let choice = all.value()["choices"][0].clone();
        assert_eq!(so_far, choice["message"], "what it says is what it comes to");
        assert_eq!(said(&json!({"content": " ", "reasoning_content": "hm", "tool_calls": []})), None);
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("The end"), &json!("tool_calls"))
        );
        let calls = &choice["message"]["tool_calls"];
        assert_eq!(calls[0]["function"]["name"], "sh");
        assert_eq!(
            (calls[0]["function"]["arguments"].as_str(), calls[1]["function"]["arguments"].as_str()),
            (Some("{\"a\":1}"), Some("{\"x\":2}"))
        );
    }
}
