//! The request: its fields in the words of chat completions, and those that the reply repeats.

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::spelled::{self, Asked, Chat};
use super::super::{Heard, wrong};
use super::given;
use super::items::{self, Items, With};
use super::reply::Reply;
use super::tally::Tally;
use super::tools::Tools;

/// What servers take under the same name. Most of it is not in the Responses API, but clients of local servers send it.
const COPIED: [&str; 12] = [
    "stop",
    "seed",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "chat_template_kwargs",
    "keep_alive",
    "options",
    "think",
];

pub(super) fn read(body: &[u8], known: &Items) -> Result<Heard, WireError> {
    spelled::reading(body, &["input"], |asked| heard(&asked, known, body.len()))
}

fn heard(asked: &Asked<'_>, known: &Items, size: usize) -> Result<Heard, WireError> {
    let fields = &asked.fields;
    refuse(fields)?;
    let model = given(fields, "model").and_then(Value::as_str);
    let mut written = Chat::new(model, size);
    let tools = Tools::read(fields, &items::brought(asked)?)?;
    let mut tally = Tally::default();
    let with = With { tools: &tools, known, tally: &mut tally };
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
    if is(fields, "background") {
        tally.warnings.push("the reply came on this connection, not in the background".into());
    }
    if given(fields, "prompt").is_some() {
        let what = "prompt is left out, for templates are kept at OpenAI: send its text in `instructions` or `input`";
        tally.warnings.push(what.into());
    }
    let left_out = tools.left_out.clone();
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
    let includes = given(fields, "include").and_then(Value::as_array).into_iter().flatten();
    let carried = includes.into_iter().any(|name| name == "reasoning.encrypted_content");
    let stored = fields.get("store") != Some(&Value::Bool(false));
    let encoder = Reply::new(model.unwrap_or_default(), echo(fields), offered.special, carried, stored);
    let session = crate::wire::session::session(fields);
    let unsaid = tally.unsaid(&left_out);
    Ok(Heard { chat: written.end(&chat), encoder: Box::new(encoder), session, tells_stop: false, unsaid })
}

fn is(fields: &Map<String, Value>, key: &str) -> bool {
    fields.get(key) == Some(&Value::Bool(true))
}

/// What asks for a memory that is not there: without it the reply would be one to another question.
fn refuse(fields: &Map<String, Value>) -> Result<(), WireError> {
    for key in ["previous_response_id", "conversation"] {
        if given(fields, key).is_some() {
            let what = "cannot be followed: windowsill keeps no responses for the client. Send the whole history in \
                        `input`, with `store: false`";
            return Err(wrong(key, what));
        }
    }
    Ok(())
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
    for key in COPIED {
        if let Some(value) = given(fields, key) {
            chat.insert(key.into(), value.clone());
        }
    }
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

/// The fields of a Response object that repeat the request. `temperature` and `top_p` stay null where the client left
/// them to the server: what it takes then is not known here.
fn echo(fields: &Map<String, Value>) -> Map<String, Value> {
    let or = |key: &str, otherwise: Value| given(fields, key).cloned().unwrap_or(otherwise);
    let reasoning = |key: &str| fields.get("reasoning").and_then(|r| r.get(key)).cloned().unwrap_or_default();
    let mut words = or("text", json!({}));
    if let Some(words) = words.as_object_mut()
        && given(words, "format").is_none()
    {
        words.insert("format".into(), json!({"type": "text"}));
    }
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("background", false.into());
    put("instructions", or("instructions", Value::Null));
    put("max_output_tokens", or("max_output_tokens", Value::Null));
    put("max_tool_calls", or("max_tool_calls", Value::Null));
    put("metadata", or("metadata", json!({})));
    put("parallel_tool_calls", or("parallel_tool_calls", true.into()));
    put("previous_response_id", Value::Null);
    put("prompt_cache_key", or("prompt_cache_key", Value::Null));
    put("reasoning", json!({"effort": reasoning("effort"), "summary": reasoning("summary")}));
    put("safety_identifier", or("safety_identifier", Value::Null));
    if let Some(tier) = given(fields, "service_tier") {
        put("service_tier", tier.clone());
    }
    put("store", or("store", false.into()));
    put("temperature", or("temperature", Value::Null));
    put("text", words);
    put("tool_choice", or("tool_choice", "auto".into()));
    put("tools", or("tools", json!([])));
    put("top_p", or("top_p", Value::Null));
    put("truncation", or("truncation", "disabled".into()));
    put("user", or("user", Value::Null));
    out
}
