//! The request: its fields in the words of chat completions, and those that the reply repeats.

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::spelled::{self, Asked, Chat};
use super::super::{Heard, wrong};
use super::reply::Reply;
use super::{given, items, list_if, object_if, path, text, text_if, tools};

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

pub(super) fn read(body: &[u8]) -> Result<Heard, WireError> {
    spelled::reading(body, &["input"], |asked| heard(&asked, body.len()))
}

fn heard(asked: &Asked<'_>, size: usize) -> Result<Heard, WireError> {
    let fields = &asked.fields;
    refuse(fields)?;
    let stream = flag(fields, "stream")?;
    let model = text_if(fields, "", "model")?;
    let mut written = Chat::new(model, size);
    items::messages(asked, text_if(fields, "", "instructions")?, &mut written)?;
    let mut chat = Map::new();
    if let Some(stream) = stream {
        chat.insert("stream".into(), stream.into());
    }
    if stream == Some(true) {
        chat.insert("stream_options".into(), json!({"include_usage": true}));
    }
    let offered = tools::read(fields)?;
    let parallel = flag(fields, "parallel_tool_calls")?;
    if !offered.chat.is_empty() {
        chat.insert("tools".into(), offered.chat.into());
        if let Some(choice) = offered.choice {
            chat.insert("tool_choice".into(), choice);
        }
        if let Some(parallel) = parallel {
            chat.insert("parallel_tool_calls".into(), parallel.into());
        }
    }
    settings(fields, &mut chat)?;
    let includes = list_if(fields, "", "include")?;
    let carried = includes.iter().any(|name| name == "reasoning.encrypted_content");
    let encoder = Reply::new(model.unwrap_or_default(), echo(fields), offered.special, carried);
    let session = crate::wire::session::session(fields);
    Ok(Heard { chat: written.end(&chat), encoder: Box::new(encoder), session, tells_stop: false })
}

/// What asks for a memory that is not there, or for a reply that comes later.
fn refuse(fields: &Map<String, Value>) -> Result<(), WireError> {
    for key in ["previous_response_id", "conversation"] {
        if given(fields, key).is_some() {
            let what = "cannot be followed: windowsill keeps no responses for the client. Send the whole history in \
                        `input`, with `store: false`";
            return Err(wrong(key, what));
        }
    }
    if flag(fields, "background")? == Some(true) {
        return Err(wrong("background", "cannot be true: the reply is sent on this connection and not kept for later"));
    }
    if given(fields, "prompt").is_some() {
        let what = "cannot be used: prompt templates are stored at OpenAI. Send its text in `instructions` or `input`";
        return Err(wrong("prompt", what));
    }
    Ok(())
}

/// How the reply is to be made.
fn settings(fields: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    if let Some(limit) = given(fields, "max_output_tokens") {
        if !limit.is_u64() {
            return Err(wrong("max_output_tokens", "must be a whole number of tokens, 0 or more"));
        }
        chat.insert("max_tokens".into(), limit.clone());
    }
    for key in ["temperature", "top_p"] {
        if let Some(value) = given(fields, key) {
            if !value.is_number() {
                return Err(wrong(key, "must be a number"));
            }
            chat.insert(key.into(), value.clone());
        }
    }
    if let Some(reasoning) = object_if(fields, "", "reasoning")?
        && let Some(effort) = text_if(reasoning, "reasoning", "effort")?
    {
        chat.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(words) = object_if(fields, "", "text")?
        && let Some(format) = object_if(words, "text", "format")?
        && let Some(format) = response_format(format)?
    {
        chat.insert("response_format".into(), format);
    }
    for key in COPIED {
        if let Some(value) = given(fields, key) {
            chat.insert(key.into(), value.clone());
        }
    }
    Ok(())
}

/// `text.format` as `response_format`. In chat completions the schema lies one level deeper.
fn response_format(format: &Map<String, Value>) -> Result<Option<Value>, WireError> {
    const AT: &str = "text.format";
    match text(format, AT, "type")? {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({"type": "json_object"}))),
        "json_schema" => {
            let mut inner = Map::new();
            inner.insert("name".into(), text(format, AT, "name")?.into());
            if let Some(about) = text_if(format, AT, "description")? {
                inner.insert("description".into(), about.into());
            }
            let schema = object_if(format, AT, "schema")?;
            let schema = schema.ok_or_else(|| wrong(path(AT, "schema"), "is missing: it must be a JSON schema"))?;
            inner.insert("schema".into(), schema.clone().into());
            if let Some(strict) = given(format, "strict") {
                inner.insert("strict".into(), strict.clone());
            }
            Ok(Some(json!({"type": "json_schema", "json_schema": inner})))
        }
        _ => Err(wrong("text.format.type", "must be \"text\", \"json_object\" or \"json_schema\"")),
    }
}

fn flag(fields: &Map<String, Value>, key: &str) -> Result<Option<bool>, WireError> {
    match given(fields, key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(wrong(key, "must be true or false")),
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
