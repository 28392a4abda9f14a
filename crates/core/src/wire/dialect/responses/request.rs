//! The request: its fields in the words of chat completions, and those that the reply repeats.

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::spelled::{self, Asked, Chat};
use super::super::{Before, Heard, wrong};
use super::compaction::{self, conversation};
use super::given;
use super::head::Head as Held;
use super::items::{self, Items, With};
use super::reply::Reply;
use super::tally::Tally;
use super::tools::Tools;

/// Fields that mean something to OpenAI's servers alone, or were said in other words.
const THEIRS: [&str; 39] = [
    "background",
    "client_metadata",
    "context_management",
    "conversation",
    "function_call",
    "functions",
    "generate",
    "include",
    "input",
    "instructions",
    "logprobs",
    "max_output_tokens",
    "max_tool_calls",
    "messages",
    "metadata",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "verbosity",
];

/// What a request stands on beside its own words.
#[derive(Debug, Clone, Copy, Default)]
pub struct On<'a> {
    /// What `previous_response_id` leads to.
    pub before: Option<&'a Before>,
    /// What the newest compaction in `input` stands for.
    pub restored: Option<&'a Before>,
    /// `input` begins with the items of the `conversation`.
    pub conversation: bool,
}

pub(super) fn read(body: &[u8], known: &Items, on: On<'_>) -> Result<Heard, WireError> {
    spelled::reading(body, &["input"], |asked| heard(&asked, known, &on, body.len()))
}

fn heard(asked: &Asked<'_>, known: &Items, on: &On<'_>, size: usize) -> Result<Heard, WireError> {
    let (fields, before) = (&asked.fields, on.before);
    let follows = previous(fields)?;
    let model = given(fields, "model").and_then(Value::as_str);
    let earlier = before.map_or(0, Before::bytes) + on.restored.map_or(0, Before::bytes);
    let mut written = Chat::new(model, size + earlier);
    let mut head = before.map(|before| Held::read(&before.head)).unwrap_or_default();
    head.response = Value::Null;
    let compacted = compaction::found(asked)?.newest.map(|(at, stands)| (at, stands.text()));
    if let Some((_, text)) = &compacted {
        let (tools, unreached) = (text.head.tools.clone(), text.head.unreached.clone());
        head = Held { tools, unreached, ..Held::default() };
    }
    head.tools.extend(items::brought(asked)?);
    let tools = Tools::read(fields, &head.tools)?;
    let mut tally = Tally::default();
    tally.elsewhere = elsewhere(fields);
    tally.elsewhere.retain(|field| !(on.conversation && *field == "conversation"));
    let restored = on.restored;
    let with = With { tools: &tools, known, before, compacted, restored, head: &mut head, tally: &mut tally };
    // Reply objects have lists of items here, too.
    let instructions =
        given(fields, "instructions").map(|said| said.as_str().map_or_else(|| said.to_string(), str::to_owned));
    items::messages(asked, instructions, with, &mut written)?;
    let mut chat = Map::new();
    if let Some(stream) = given(fields, "stream") {
        chat.insert("stream".into(), stream.clone());
    }
    if is(fields, "stream") {
        chat.insert("stream_options".into(), json!({"include_usage": true}));
    }
    let stored = fields.get("store") != Some(&Value::Bool(false));
    if is(fields, "background") && !stored {
        tally.warnings.push("the reply came on this connection, not in the background".into());
    }
    if given(fields, "prompt").is_some() {
        let what = "prompt is left out, for templates are kept at OpenAI: send its text in `instructions` or `input`";
        tally.warnings.push(what.into());
    }
    let left_out = tools.left_out.clone();
    let unreached = tools.unreached(&head.unreached);
    head.unreached.extend(unreached.iter().cloned());
    let offered = tools.offered(fields, &mut tally.warnings);
    if !offered.chat.is_empty() {
        chat.insert("tools".into(), offered.chat.into());
        if let Some(choice) = offered.choice {
            chat.insert("tool_choice".into(), choice);
        }
        if let Some(parallel) = given(fields, "parallel_tool_calls") {
            chat.insert("parallel_tool_calls".into(), parallel.clone());
        }
    }
    settings(fields, &tally.update, &mut chat);
    logprobs(fields, &mut chat);
    let carried = includes(fields, "reasoning.encrypted_content");
    let previous = follows.as_deref().filter(|_| before.is_some());
    let mut echo = echo(fields, previous, stored);
    if let Some(id) = conversation(fields).filter(|_| on.conversation) {
        echo.insert("conversation".into(), json!({"id": id}));
    }
    let mut encoder = Reply::new(model.unwrap_or_default(), echo, offered.special, carried, (head, stored));
    encoder.output.unreached = unreached;
    encoder.telemetry.wanted = is(fields, "timings_per_token") || is(fields, "return_progress");
    let session = crate::wire::session::session(fields);
    let unsaid = tally.unsaid(&left_out);
    let follows = follows.filter(|_| before.is_none());
    Ok(Heard { chat: written.end(&chat), encoder: Box::new(encoder), session, tells_stop: false, unsaid, follows })
}

fn is(fields: &Map<String, Value>, key: &str) -> bool {
    fields.get(key) == Some(&Value::Bool(true))
}

/// The id of the reply that the request goes on from.
fn previous(fields: &Map<String, Value>) -> Result<Option<String>, WireError> {
    let id = match given(fields, "previous_response_id") {
        None => None,
        Some(Value::String(id)) => Some(id).filter(|id| !id.is_empty()),
        Some(_) => return Err(wrong("previous_response_id", "must be a string")),
    };
    if id.is_some() && given(fields, "conversation").is_some() {
        return Err(wrong("previous_response_id", "cannot be given beside `conversation`"));
    }
    Ok(id.cloned())
}

/// What refers to conversations and prompt templates that are stored at OpenAI.
fn elsewhere(fields: &Map<String, Value>) -> Vec<&'static str> {
    ["conversation", "prompt"].into_iter().filter(|key| given(fields, key).is_some()).collect()
}

/// How the reply is to be made; `update` is what the history says of it since. Values of another type than they should have go
/// on as they are: some servers pass over them, and others say what is wrong.
fn settings(fields: &Map<String, Value>, update: &Map<String, Value>, chat: &mut Map<String, Value>) {
    for (key, name) in [("max_output_tokens", "max_tokens"), ("temperature", "temperature"), ("top_p", "top_p")] {
        if let Some(value) = given(fields, key) {
            chat.insert(name.into(), value.clone());
        }
    }
    for all in [fields, update] {
        let said = |key: &str, inner: &str| given(all.get(key)?.as_object()?, inner);
        if let Some(Value::String(effort)) = said("reasoning", "effort") {
            chat.insert("reasoning_effort".into(), effort.as_str().into());
        }
        if let Some(Value::Object(format)) = said("text", "format") {
            chat.shift_remove("response_format");
            chat.extend(response_format(format).map(|format| ("response_format".to_owned(), format)));
        }
    }
    // Sampling and grammars have other names at each server, and what nobody here knows may be meant for it.
    for (key, value) in fields.iter().filter(|(key, value)| !THEIRS.contains(&key.as_str()) && !value.is_null()) {
        chat.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// What a client asks for by `include`.
fn includes(fields: &Map<String, Value>, what: &str) -> bool {
    given(fields, "include").and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| one == what))
}

/// How likely the tokens of the reply are, where the client asks for that.
fn logprobs(fields: &Map<String, Value>, chat: &mut Map<String, Value>) {
    if !includes(fields, "message.output_text.logprobs") {
        return;
    }
    let most = given(fields, "top_logprobs").filter(|most| most.as_u64().is_some_and(|most| most > 0));
    chat.insert("logprobs".into(), true.into());
    chat.extend(most.map(|most| ("top_logprobs".to_owned(), most.clone())));
}

/// `text.format` as `response_format`. In chat completions the schema lies one level deeper.
fn response_format(format: &Map<String, Value>) -> Option<Value> {
    match format.get("type").and_then(Value::as_str)? {
        "json_object" => Some(json!({"type": "json_object"})),
        "json_schema" => {
            let mut inner = Map::from_iter([("name".to_owned(), json!("format"))]);
            let known = ["name", "description", "schema", "strict"].into_iter();
            inner.extend(known.filter_map(|key| Some((key.to_owned(), given(format, key)?.clone()))));
            Some(json!({"type": "json_schema", "json_schema": inner}))
        }
        // `text`, and what no server knows either.
        _ => None,
    }
}

/// The fields of a Response object that repeat the request. OpenResponses wants each of them (its schema `ResponseResource`):
/// what the client left to the server has the value that OpenAI names as the default.
fn echo(fields: &Map<String, Value>, previous: Option<&str>, stored: bool) -> Map<String, Value> {
    let or = |key: &str, otherwise: Value| given(fields, key).cloned().unwrap_or(otherwise);
    let reasoning = |key: &str| fields.get("reasoning").and_then(|r| r.get(key)).cloned().unwrap_or_default();
    let mut words = or("text", json!({}));
    if let Some(words) = words.as_object_mut() {
        let format = words.entry("format").or_insert(Value::Null);
        if format.is_null() {
            *format = json!({"type": "text"});
        }
        if let Some(format) = format.as_object_mut().filter(|format| format.get("type") == Some(&"json_schema".into()))
        {
            let whole = [
                ("name", "format".into()),
                ("description", Value::Null),
                ("schema", Value::Null),
                ("strict", false.into()),
            ];
            whole.into_iter().for_each(|(key, value)| _ = format.entry(key).or_insert(value));
            if format["strict"].is_null() {
                format["strict"] = false.into();
            }
        }
    }
    let number = |key: &str, usual: Value| given(fields, key).filter(|n| n.is_number()).cloned().unwrap_or(usual);
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("background", (stored && is(fields, "background")).into());
    put("instructions", or("instructions", Value::Null));
    put("max_output_tokens", or("max_output_tokens", Value::Null));
    put("max_tool_calls", or("max_tool_calls", Value::Null));
    put("metadata", or("metadata", json!({})));
    put("parallel_tool_calls", or("parallel_tool_calls", true.into()));
    put("previous_response_id", previous.into());
    put("prompt_cache_key", or("prompt_cache_key", Value::Null));
    put("reasoning", json!({"effort": reasoning("effort"), "summary": reasoning("summary")}));
    put("safety_identifier", or("safety_identifier", Value::Null));
    put("frequency_penalty", number("frequency_penalty", 0.0.into()));
    put("presence_penalty", number("presence_penalty", 0.0.into()));
    put("service_tier", or("service_tier", "default".into()));
    put("store", stored.into());
    put("temperature", number("temperature", 1.0.into()));
    put("text", words);
    put("tool_choice", or("tool_choice", "auto".into()));
    put("tools", echoed_tools(given(fields, "tools")));
    put("top_logprobs", number("top_logprobs", 0.into()));
    put("top_p", number("top_p", 1.0.into()));
    put("truncation", or("truncation", "disabled".into()));
    put("user", or("user", Value::Null));
    out
}

/// The tools as the Response object repeats them: a function has each of its fields.
fn echoed_tools(tools: Option<&Value>) -> Value {
    let mut tools = tools.filter(|tools| tools.is_array()).cloned().unwrap_or_else(|| json!([]));
    for tool in tools.as_array_mut().into_iter().flatten() {
        let function = tool.as_object_mut().filter(|tool| tool.get("type").is_some_and(|kind| kind == "function"));
        // One that is written as in chat completions has them a level deeper.
        if let Some(function) = function.filter(|tool| tool.contains_key("name")) {
            for key in ["description", "parameters", "strict"] {
                function.entry(key).or_insert(Value::Null);
            }
        }
    }
    tools
}
