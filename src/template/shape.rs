//! The messages of a request as llama.cpp puts them before a template (`common/chat.cpp`): what it reads of them, in
//! its order, and the repairs it makes for single families of templates.

use serde_json::{Map, Value, json};

use super::family::Family;
use super::{Caps, Template};

/// What a template sees of a request.
#[derive(Debug, Default)]
pub(super) struct Shaped {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Value>,
}

/// Repairs of a template's own source, before it is compiled.
pub(super) fn source(source: &str) -> String {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.contains("<|channel|>") && source.contains("in message.content or") {
        source = source.replace(
            "{%- if \"<|channel|>analysis<|message|>\" in message.content or \"<|channel|>final<|message|>\" in message.content %}",
            "{%- if false %}",
        );
    }
    if source.contains("[TOOL_CALLS]") && source.contains("if (message['content'] is none or") {
        source = source.replace(
            "{%- if (message['content'] is none or message['content'] == '' or message['content']|length == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or message['tool_calls']|length == 0) %}",
            "{%- if false %}",
        );
    }
    source
}

/// What the source of a template tells of how messages are read for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reads {
    /// Texts are trimmed: StepFun's.
    trims: bool,
    /// It knows developers; to others they are systems.
    developers: bool,
}

impl Reads {
    /// For a template with this source.
    pub(super) fn of(source: &str) -> Reads {
        let trims = source.contains("You have access to the following functions in JSONSchema format");
        Reads { trims, developers: source.contains("<|channel|>") }
    }
}

/// Shapes messages and tools for a template.
pub(super) fn shape(template: &Template, messages: &[Value], tools: Option<&Value>) -> Shaped {
    let mut out: Vec<Value> = messages.iter().map(|m| read(template, m)).collect();
    if !template.caps.system_role && out.first().is_some_and(|m| m["role"] == "system") {
        let system = out.remove(0);
        if let Some(first) = out.first_mut() {
            first["content"] = json!(format!("{}\n{}", joined(&system["content"]), joined(&first["content"])));
        }
    }
    out.iter_mut().for_each(|m| fit(template, m));
    match template.family {
        Family::DeepSeek4 => {
            let order = in_call_order(&out.iter().map(Place::of).collect::<Vec<_>>());
            out = order.into_iter().map(|i| out[i].clone()).collect();
        }
        Family::Gemma4Outdated => out = gemma(out),
        _ => {}
    }
    Shaped { messages: out, tools: self::tools(tools) }
}

/// A message by itself, as [`shape`] has it in most templates.
pub(super) fn alone(template: &Template, from: &Value) -> Value {
    let mut out = read(template, from);
    fit(template, &mut out);
    out
}

/// Tool definitions as a template sees them.
pub(super) fn tools(from: Option<&Value>) -> Option<Value> {
    let tools = from.and_then(Value::as_array).filter(|t| !t.is_empty())?;
    Some(Value::Array(tools.iter().map(tool).collect()))
}

/// A message as it is read for a template.
fn read(template: &Template, from: &Value) -> Value {
    let mut out = message(from, template.reads.trims);
    fit_content(&mut out, template.caps);
    if !template.reads.developers && out["role"] == "developer" {
        out["role"] = json!("system");
    }
    out
}

/// A message that was read, as a template wants it.
fn fit(template: &Template, message: &mut Value) {
    if template.caps.object_arguments {
        objects(message);
    }
    match template.family {
        Family::Ministral => ministral(message),
        Family::Harmony => thinking(message, true),
        Family::Lfm2 => thinking(message, false),
        _ => {}
    }
}

/// What llama.cpp reads of a message, in its order.
pub(super) fn message(from: &Value, trim: bool) -> Value {
    let text = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        if trim { text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b') } else { text }.to_owned()
    };
    let mut out = Map::new();
    out.insert("role".into(), from["role"].clone());
    let content = match &from["content"] {
        Value::Array(parts) if !parts.is_empty() => {
            let read = |p: &Value| {
                let part = p.as_str().map(|_| p).or_else(|| p.get("text").filter(|t| t.is_string()))?;
                Some(json!({"type": "text", "text": text(part)}))
            };
            Value::Array(parts.iter().filter_map(read).collect())
        }
        other => json!(text(other)),
    };
    out.insert("content".into(), content);
    let reasoning = text(&from["reasoning_content"]);
    for (key, value) in
        [("reasoning_content", reasoning), ("name", text(&from["name"])), ("tool_call_id", text(&from["tool_call_id"]))]
    {
        if !value.is_empty() {
            out.insert(key.into(), json!(value));
        }
    }
    let calls: Vec<Value> = from["tool_calls"].as_array().into_iter().flatten().map(call).collect();
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    Value::Object(out)
}

fn call(from: &Value) -> Value {
    let arguments = match &from["function"]["arguments"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut out = json!({"type": "function", "function": {"name": from["function"]["name"], "arguments": arguments}});
    if from["id"].as_str().is_some_and(|id| !id.is_empty()) {
        out["id"] = from["id"].clone();
    }
    out
}

fn tool(from: &Value) -> Value {
    let function = &from["function"];
    let parameters = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
    let description = function.get("description").cloned().unwrap_or_else(|| json!(""));
    json!({"type": "function", "function": {"name": function["name"], "description": description, "parameters": parameters}})
}

/// Content as the template wants it.
pub(super) fn fit_content(message: &mut Value, caps: Caps) {
    match &message["content"] {
        Value::Array(_) if caps.string_content && !caps.typed_content => {
            message["content"] = json!(joined(&message["content"]))
        }
        Value::String(text) if !caps.string_content && caps.typed_content => {
            message["content"] = json!([{"type": "text", "text": text}]);
        }
        _ => {}
    }
}

/// The text of a content: a string, or its parts joined by line breaks.
fn joined(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let mut out = String::new();
            for part in parts.iter().filter_map(|p| p["text"].as_str()) {
                if !out.is_empty() {
                    out.push('\n');
                }
                out.push_str(part);
            }
            out
        }
        _ => String::new(),
    }
}

/// Arguments of calls as objects. llama.cpp refuses a request in which they are no JSON; they stay as they are here.
fn objects(message: &mut Value) {
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if let Some(read) = arguments.as_str().and_then(|a| serde_json::from_str::<Value>(a).ok()) {
            *arguments = read;
        }
    }
}

/// Ministral 3: what a system or assistant message says, as parts, its reasoning first.
fn ministral(message: &mut Value) {
    if message["role"] != "system" && message["role"] != "assistant" {
        return;
    }
    let mut parts = Vec::new();
    if let Some(reasoning) = message["reasoning_content"].as_str() {
        parts.push(json!({"type": "thinking", "thinking": reasoning}));
    }
    match &message["content"] {
        Value::String(text) => parts.push(json!({"type": "text", "text": text})),
        Value::Array(more) => parts.extend(more.iter().cloned()),
        _ => {}
    }
    message["content"] = Value::Array(parts);
    if let Some(fields) = message.as_object_mut() {
        fields.shift_remove("reasoning_content");
    }
}

/// gpt-oss and LFM2: reasoning is called `thinking`; in gpt-oss it takes the place of what is said beside calls.
fn thinking(message: &mut Value, instead: bool) {
    let Some(reasoning) = message.get("reasoning_content").cloned() else { return };
    message["thinking"] = reasoning;
    if instead
        && message.get("tool_calls").is_some()
        && let Some(fields) = message.as_object_mut()
    {
        fields.shift_remove("content");
    }
}

/// What of a message tells its place among the results of its turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// It may stand between results, or is one.
    within: bool,
    result: bool,
    /// The call that it answers.
    answers: String,
    /// The calls that the assistant makes, if any.
    calls: Option<Vec<String>>,
}

impl Place {
    /// That of a message as it was read.
    pub(super) fn of(message: &Value) -> Place {
        let role = message["role"].as_str().unwrap_or_default();
        let id = |m: &Value, key: &str| m[key].as_str().unwrap_or_default().to_owned();
        let calls = message["tool_calls"].as_array().filter(|_| role == "assistant");
        Place {
            within: role == "user" || role == "tool",
            result: role == "tool",
            answers: id(message, "tool_call_id"),
            calls: calls.map(|calls| calls.iter().map(|c| id(c, "id")).collect()),
        }
    }
}

/// DeepSeek V4: results stand in the order of their calls. Where each message comes from.
pub(super) fn in_call_order(places: &[Place]) -> Vec<usize> {
    let mut out: Vec<usize> = (0..places.len()).collect();
    let mut order: &[String] = &[];
    let mut at = 0;
    while at < places.len() {
        if let Some(calls) = &places[at].calls {
            order = calls;
        }
        let run = places[at..].iter().take_while(|p| p.within).count();
        let slots: Vec<usize> = (at..at + run).filter(|i| places[*i].result).collect();
        let mut results = slots.clone();
        results.sort_by_key(|i| order.iter().rposition(|o| !o.is_empty() && *o == places[*i].answers).unwrap_or(0));
        slots.into_iter().zip(results).for_each(|(slot, result)| out[slot] = result);
        at += run.max(1);
    }
    out
}

/// Older templates of Gemma 4: calls, their results and the answer are one message.
fn gemma(messages: Vec<Value>) -> Vec<Value> {
    let calls = |m: &Value| m["tool_calls"].as_array().is_some_and(|c| !c.is_empty());
    let mut out = Vec::new();
    let mut rest = messages.into_iter().peekable();
    while let Some(message) = rest.next() {
        if message["role"] != "assistant" || !calls(&message) {
            out.push(message);
            continue;
        }
        let mut turn = json!({"role": "assistant", "tool_calls": message["tool_calls"]});
        let mut responses = Vec::new();
        while let Some(result) = rest.next_if(|m| m["role"] == "tool") {
            let content = &result["content"];
            let read = content.as_str().and_then(|t| serde_json::from_str::<Value>(t).ok());
            let name = message["tool_calls"][responses.len()]["function"]["name"].as_str().filter(|n| !n.is_empty());
            let name = name.or_else(|| result["tool_call_id"].as_str()).unwrap_or_default();
            responses.push(json!({"name": name, "response": read.unwrap_or_else(|| content.clone())}));
        }
        if !responses.is_empty() {
            turn["tool_responses"] = Value::Array(responses);
        }
        let says = |m: &Value| match &m["content"] {
            Value::String(text) => !text.is_empty(),
            Value::Array(parts) => !parts.is_empty(),
            _ => false,
        };
        if let Some(answer) = rest.next_if(|m| m["role"] == "assistant" && !calls(m) && says(m)) {
            turn["content"] = answer["content"].clone();
        }
        if let Some(reasoning) = message.get("reasoning_content") {
            turn["reasoning_content"] = reasoning.clone();
        }
        out.push(turn);
    }
    out
}
