//! Anthropic's Messages API (`POST /v1/messages`), as Claude Code and Anthropic's SDKs speak it.
//!
//! Nothing of a history is refused: a block that no local server reads is told as text. Tools that Anthropic's servers run and MCP
//! connectors are left out, and the reply says so. What only steers Anthropic's own servers is left out: `metadata`, `cache_control`, `service_tier`,
//! `container`, citations, signatures of thoughts. What a client asks to be done with its history (`context_management`,
//! `compaction`) is handed on: see [`Unsaid::edits`].

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::spelled::{self, Asked, Chat};
use super::{Before, Compaction, Heard, Unsaid, WireError, wrong};
use crate::conversation::managed::Edits;
use compaction::Cut;
use messages::From;

mod calls;
mod compaction;
mod ending;
mod managed;
mod messages;
mod own;
mod reply;
mod tools;

/// Fields that mean something to Anthropic's servers alone, or were said in other words.
const THEIRS: [&str; 25] = [
    "model",
    "messages",
    "system",
    "stream",
    "max_tokens",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "metadata",
    "service_tier",
    "context_management",
    "compaction",
    "thread",
    "container",
    "mcp_servers",
    "cache_control",
    "betas",
    "inference_geo",
    "diagnostics",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// Reads a request of the Messages API.
///
/// # Errors
/// What has the wrong shape, or what no local server can do; with the path of the field.
pub fn request(body: &[u8]) -> Result<Heard, WireError> {
    spelled::reading(body, &SPELLED, |asked| read(asked, Known::Nothing, body.len()))
}

/// Reads the same where the messages are known that a compaction in it stands for: see [`Unsaid::stands_for`].
///
/// # Errors
/// As [`request`].
pub fn opened(body: &[u8], stood: &Before) -> Result<Heard, WireError> {
    spelled::reading(body, &SPELLED, |asked| read(asked, Known::Compacted(stood), body.len()))
}

/// Reads the same where the request continues a thread whose last reply is known.
///
/// # Errors
/// As [`request`].
pub fn going_on(body: &[u8], before: &Before) -> Result<Heard, WireError> {
    spelled::reading(body, &SPELLED, |asked| read(asked, Known::Thread(before), body.len()))
}

/// What is known of a history beside what the request itself holds.
#[derive(Clone, Copy)]
enum Known<'a> {
    Nothing,
    /// The thread that it continues.
    Thread(&'a Before),
    /// The messages that its compaction stands for.
    Compacted(&'a Before),
}

fn read(asked: Asked<'_>, known: Known<'_>, size: usize) -> Result<Heard, WireError> {
    let thread = thread(&asked.fields)?;
    let mut chat = prompt(&asked, known, size)?;
    let Prompt { rest, model, warnings, head, edits, cut, .. } = &mut chat;
    let asked = asked.fields;
    let stream = match asked.get("stream") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(stream)) => *stream,
        Some(_) => return Err(wrong("stream", "must be true or false")),
    };
    match asked.get("max_tokens").filter(|v| !v.is_null()) {
        // What is no limit is for the server to take as it does.
        Some(most) if most.is_number() => {
            rest.insert("max_tokens".into(), most.clone());
        }
        Some(_) => return Err(wrong("max_tokens", "must be a whole number of tokens, at least 1")),
        // Anthropic demands it; a server that has a limit of its own needs none.
        None => {}
    }
    let stops = stops(asked.get("stop_sequences"));
    if !stops.is_empty() {
        rest.insert("stop".into(), stops.clone().into());
    }
    rest.insert("stream".into(), stream.into());
    if stream {
        rest.insert("stream_options".into(), json!({"include_usage": true}));
    }
    let tells_stop = !stops.is_empty();
    let most = asked.get("max_tokens").and_then(Value::as_u64);
    let mut encoder = Box::new(reply::Reply::new(std::mem::take(model), std::mem::take(warnings), stops, most));
    if let Some(edits) = &*edits {
        encoder.manages(edits, tools::told(&head.changes));
    }
    if thread.is_some() {
        encoder.keep(head.json());
    }
    let session = crate::wire::session::session(&asked);
    // A compaction stands for what came before it, a thread included.
    let follows = thread.flatten().filter(|_| matches!(known, Known::Nothing) && cut.is_none());
    let unsaid = Unsaid { edits: edits.take(), stands_for: stands_for(cut.take(), known), ..Unsaid::default() };
    Ok(Heard { chat: chat.end(), encoder, session, tells_stop, unsaid, follows })
}

/// Whether the client wants the conversation held here, and the id of the reply that it goes on from, if it does
/// (`thread`, beta `message-threads-2026-08-12`; types of the SDK anthropic 2.12).
fn thread(asked: &Map<String, Value>) -> Result<Option<Option<String>>, WireError> {
    let Some(thread) = asked.get("thread").filter(|thread| !thread.is_null()) else { return Ok(None) };
    let previous = thread.get("previous_message_id").and_then(Value::as_str);
    match (thread.get("type").and_then(Value::as_str), previous) {
        (Some("create"), _) => Ok(Some(None)),
        (Some("continue"), Some(id)) => Ok(Some(Some(id.to_owned()))),
        (Some("continue"), None) => Err(wrong("thread.previous_message_id", "must be the id of a reply")),
        _ => Err(wrong("thread.type", "must be `create` or `continue`")),
    }
}

/// The texts in `stop_sequences`; one that stands alone counts, and what is no text is passed over.
fn stops(asked: Option<&Value>) -> Vec<String> {
    let all = match asked {
        Some(Value::Array(all)) => all.as_slice(),
        other => other.map_or(&[][..], std::slice::from_ref),
    };
    all.iter().filter_map(|stop| stop.as_str().map(str::to_owned)).collect()
}

/// Reads a request to `POST /v1/messages/count_tokens`: a chat completion request that is only counted, and what else there is to
/// know of it. `stood`: the messages that a compaction in it stands for, where they are known.
///
/// # Errors
/// As [`request`].
pub fn counted(body: &[u8], stood: Option<&Before>) -> Result<(bytes::Bytes, Unsaid), WireError> {
    let known = stood.map_or(Known::Nothing, Known::Compacted);
    spelled::reading(body, &SPELLED, |mut asked| {
        // What is answered by a summary alone is counted as any other request.
        asked.fields.remove("compaction");
        let mut prompt = prompt(&asked, known, body.len())?;
        let stands_for = stands_for(prompt.cut.take(), known);
        let unsaid = Unsaid { edits: prompt.edits.take(), stands_for, ..Unsaid::default() };
        Ok((prompt.end(), unsaid))
    })
}

/// A compaction that may have been made here, where that was not looked up yet.
fn stands_for(cut: Option<Cut>, known: Known<'_>) -> Option<Compaction> {
    let stands = cut.map(|cut| cut.stands)?;
    (matches!(known, Known::Nothing) && !stands.mark.is_empty()).then_some(stands)
}

/// What can be megabytes: it is read one by one.
const SPELLED: [&str; 2] = ["system", "messages"];

/// All that makes the prompt, and the fields that are kept as they are.
struct Prompt {
    chat: Chat,
    /// All but the messages.
    rest: Map<String, Value>,
    model: String,
    /// What was left out.
    warnings: Vec<String>,
    /// What holds on in a thread.
    head: Head,
    /// What the client asks to be done with its history.
    edits: Option<Edits>,
    /// The compaction that stands for its beginning.
    cut: Option<Cut>,
}

/// What a thread keeps beside its messages: a request that continues it does not repeat these.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Head {
    system: Option<Box<RawValue>>,
    tools: Option<Value>,
    /// What messages changed of the tools.
    changes: Vec<tools::Change>,
}

impl Head {
    fn read(json: &str) -> Head {
        serde_json::from_str(json).unwrap_or_default()
    }

    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Prompt {
    fn end(self) -> bytes::Bytes {
        self.chat.end(&self.rest)
    }
}

fn prompt(all: &Asked<'_>, known: Known<'_>, size: usize) -> Result<Prompt, WireError> {
    let asked = &all.fields;
    let mut warnings = Vec::new();
    let edits = managed::edits(asked, &mut warnings)?;
    let cut = compaction::last(messages::messages_of(all)?, &mut warnings);
    let (from, before) = match (&cut, known) {
        (Some(cut), Known::Compacted(stood)) => (From::Messages(cut, stood), Some(stood)),
        (Some(cut), _) => (From::Words(cut), None),
        (None, Known::Thread(before)) => (From::Reply(before), Some(before)),
        (None, _) => (From::Start, None),
    };
    let mut head = before.map(|before| Head::read(&before.head)).unwrap_or_default();
    if let Some(own) = all.spelled("system").filter(|own| *own != "null") {
        head.system = RawValue::from_string(own.to_owned()).ok();
    }
    if let Some(own) = asked.get("tools").filter(|own| !own.is_null()) {
        head.tools = Some(own.clone());
    }
    // A server that has one model alone needs no name; others say what is missing.
    let model = match asked.get("model") {
        None | Some(Value::Null) => None,
        Some(Value::String(model)) => Some(model.clone()),
        Some(_) => return Err(wrong("model", "must be the name of a model")),
    };
    if asked.get("mcp_servers").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        let what = "no local server connects to MCP servers: let the client connect to them, and offer their tools";
        warnings.push(format!("mcp_servers is left out: {what}"));
    }
    let mut chat = Chat::new(model.as_deref(), size + before.map_or(0, Before::bytes));
    let system = head.system.as_ref().map(|system| system.get());
    let changes = messages::translate(system, from, all, &mut chat)?;
    head.changes.extend(changes);
    let mut rest = Map::new();
    tools::translate(asked, &head, &mut rest, &mut warnings)?;
    thinking(asked, &mut rest);
    // Sampling is spelled alike, and what nobody here knows may be meant for the server.
    for (key, value) in asked.iter().filter(|(key, value)| !THEIRS.contains(&key.as_str()) && !value.is_null()) {
        rest.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Ok(Prompt { chat, rest, model: model.unwrap_or_default(), warnings, head, edits, cut })
}

/// `thinking`, `output_config`. A model that cannot think is not refused for being asked to: Claude Code always asks.
fn thinking(asked: &Map<String, Value>, chat: &mut Map<String, Value>) {
    let mut kwargs = match asked.get("chat_template_kwargs") {
        Some(Value::Object(own)) => own.clone(),
        _ => Map::new(),
    };
    let there = |key: &str| asked.get(key).filter(|v| !v.is_null());
    // How much and when it thinks otherwise is for the model's template to say.
    if there("thinking").is_some_and(|thinking| thinking["type"] == "disabled") {
        kwargs.entry("enable_thinking").or_insert(false.into());
        // Ollama's word for it.
        chat.insert("think".into(), false.into());
    }
    let config = there("output_config");
    if let Some(effort) = config.and_then(|c| c.get("effort")).and_then(Value::as_str) {
        // No template knows more than three levels.
        let level = if matches!(effort, "max" | "xhigh") { "high" } else { effort };
        kwargs.entry("reasoning_effort").or_insert(level.into());
    }
    if !kwargs.is_empty() {
        chat.insert("chat_template_kwargs".into(), kwargs.into());
    }
    let format = config.and_then(|c| c.get("format")).or(there("output_format")).filter(|f| !f.is_null());
    // Any other format is text, or one that nobody knows.
    let schema = format.filter(|format| format["type"] == "json_schema").and_then(|format| format.get("schema"));
    if let Some(schema) = schema.filter(|schema| schema.is_object()) {
        let schema = json!({"name": "output", "schema": schema, "strict": true});
        chat.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
    }
}

/// A list of models, or one, as clients of Anthropic's read it; from OpenAI's. All that stands there stays.
pub fn models(mut list: Value) -> Value {
    let entry = |model: &mut Value| {
        let id = model.get("id").cloned().unwrap_or_default();
        let Some(fields) = model.as_object_mut() else { return };
        fields.insert("type".into(), "model".into());
        fields.insert("display_name".into(), id);
        // Anthropic's own value for a model of which it is not known.
        fields.insert("created_at".into(), "1970-01-01T00:00:00Z".into());
        fields.insert("lifecycle".into(), "active".into());
        let window = fields.get("context_window").cloned().unwrap_or_default();
        fields.insert("max_input_tokens".into(), window);
        let told = capabilities(fields);
        fields.insert("capabilities".into(), told);
    };
    let Some(data) = list.get_mut("data").and_then(Value::as_array_mut) else {
        entry(&mut list);
        return list;
    };
    data.iter_mut().for_each(entry);
    let id = |model: Option<&Value>| model.and_then(|m| m.get("id")).cloned().unwrap_or_default();
    let (first, last) = (id(data.first()), id(data.last()));
    list["has_more"] = false.into();
    list["first_id"] = first;
    list["last_id"] = last;
    list
}

/// What Anthropic's clients may ask of a model here: what windowsill does for any of them, and of pictures what the server says.
/// Nothing that is asked of a model which cannot do it is refused.
fn capabilities(model: &Map<String, Value>) -> Value {
    let is = |supported: bool| json!({"supported": supported});
    let named = |list: Option<&Value>, word: &str| {
        list.and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| one.as_str() == Some(word)))
    };
    let own = model.get("capabilities");
    let modalities = model.get("architecture").and_then(|of| of.get("input_modalities"));
    let pictures = named(modalities, "image") || ["vision", "multimodal"].iter().any(|word| named(own, word));
    let (yes, no) = (is(true), is(false));
    json!({
        "batch": no, "citations": no, "code_execution": no, "pdf_input": no, "image_input": is(pictures), "structured_outputs": yes,
        "compaction": {"supported": true, "summarize": yes},
        "context_management": {
            "supported": true, "clear_thinking_20251015": yes, "clear_tool_uses_20250919": yes, "compact_20260112": yes,
        },
        "effort": {"supported": true, "low": yes, "medium": yes, "high": yes, "xhigh": yes, "max": yes},
        "server_tools": {"supported": false, "code_execution": no, "web_search": no},
        "thinking": {"supported": true, "types": {"adaptive": yes, "enabled": yes, "disabled": yes, "between_tools": yes}},
    })
}

/// An error in Anthropic's shape, from one in OpenAI's. `request_id` is the id that the reply's header names.
pub fn error(status: u16, error: &Value, request_id: &str) -> Value {
    let said = match error {
        Value::String(text) => text.clone(),
        other => other.get("message").and_then(Value::as_str).map_or_else(|| other.to_string(), str::to_owned),
    };
    let number = |key: &str| error.get(key).and_then(Value::as_u64);
    let kind = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    let too_long = kind("code") == "context_length_exceeded" || kind("type") == "exceed_context_size_error";
    // Claude Code compacts by itself where it reads these words, and takes the numbers out of them.
    let message = match (too_long, number("n_prompt_tokens").zip(number("n_ctx"))) {
        (true, Some((prompt, window))) => format!("prompt is too long: {prompt} tokens > {window} maximum. {said}"),
        (true, None) => format!("prompt is too long: {said}"),
        _ => said,
    };
    let kind = match status {
        400 | 405 | 409 | 410 | 411 | 415 | 422 => "invalid_request_error",
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    };
    let mut told = json!({"type": kind, "message": message});
    // Anthropic's SDKs send the whole history under a new thread where they read this.
    if let Some(code @ ("thread_not_found" | "thread_unsupported_request")) = error.get("code").and_then(Value::as_str)
    {
        told["details"] = json!({"error_code": code});
    }
    json!({"type": "error", "error": told, "request_id": request_id})
}

#[cfg(test)]
mod block_tests;
#[cfg(test)]
mod managed_tests;
#[cfg(test)]
mod tests;
