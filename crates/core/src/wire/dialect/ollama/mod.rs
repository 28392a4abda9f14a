//! Ollama's native API (`POST /api/chat`, `POST /api/generate`), as its SDKs, langchain-ollama, Open WebUI and litellm
//! speak it.
//!
//! What only Ollama has a word for (`options`, `think`, `keep_alive`) stays in the request beside what it means in the
//! words of chat completions, since Ollama may be the server. `truncate` and `shift` are left out: the length is seen to
//! here.

use serde_json::{Map, Value, json};

use super::spelled::{self, Asked, Chat};
use super::{Heard, Unsaid, WireError, object, wrong};
use context::Context;
pub use reply::timestamp;
use reply::{Api, Reply};

mod context;
pub mod embed;
mod messages;
pub mod models;
mod reply;
mod request;

/// Reads a request to `POST /api/chat`. `None` where it holds no message (it loads or unloads a model), or where only an Ollama can
/// answer it (`_debug_render_only`).
///
/// # Errors
/// What has the wrong shape, with the path of the field.
pub fn chat(body: &[u8]) -> Result<Option<Heard>, WireError> {
    spelled::reading(body, &["messages"], |asked| {
        let model = model(&asked.fields)?;
        let messages = match asked.spelled("messages") {
            None | Some("null") => return Ok(None),
            Some(_) if renders(&asked.fields) => return Ok(None),
            Some(messages) => messages,
        };
        let mut chat = Chat::new(Some(&model), body.len());
        messages::translate(messages, &mut chat)?;
        if chat.is_empty() {
            return Ok(None);
        }
        let rest = request::translate(asked.fields)?;
        let encoder = Box::new(Reply::new(Api::Chat, model, Vec::new()));
        Ok(Some(Heard {
            chat: chat.end(&rest),
            encoder,
            session: None,
            tells_stop: false,
            unsaid: Unsaid::default(),
            follows: None,
        }))
    })
}

/// Reads a request to `POST /api/generate`. A `context` of ours is the conversation so far. `None` where it cannot be said
/// as messages (`raw`, `suffix`, `template`, an Ollama's `context`, `_debug_render_only`), or where it holds no prompt: it loads or unloads
/// a model.
///
/// # Errors
/// What has the wrong shape, with the path of the field; a `context` of ours that is not whole.
pub fn generate(body: &[u8]) -> Result<Option<Heard>, WireError> {
    spelled::reading(body, &["prompt", "images"], |asked| generated(asked, body.len()))
}

fn generated(all: Asked<'_>, size: usize) -> Result<Option<Heard>, WireError> {
    let (prompt, images) = (all.spelled("prompt").unwrap_or("null"), all.spelled("images").unwrap_or("null"));
    let mut asked = all.fields;
    let model = model(&asked)?;
    let before = context::read(asked.get("context"))?;
    let others = beyond(&asked).into_iter().filter(|name| *name != "context").count();
    let mut messages = match before {
        Context::Foreign => return Ok(None),
        Context::Ours(_) if others > 0 => {
            let why = "was made by windowsill, which sends it as messages: leave out `raw`, `suffix` and `template`";
            return Err(wrong("context", why));
        }
        _ if others > 0 => return Ok(None),
        Context::Ours(messages) => messages,
        Context::Empty => Vec::new(),
    };
    BEYOND.iter().for_each(|name| drop(asked.shift_remove(*name)));
    let system = match asked.shift_remove("system") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(_) => return Err(wrong("system", "must be a string")),
    };
    let prompt = if prompt == "null" { "\"\"" } else { prompt };
    if !prompt.starts_with('"') {
        return Err(wrong("prompt", "must be a string"));
    }
    if prompt == "\"\"" && (spells_nothing(images) || unloads(&asked)) {
        return Ok(None);
    }
    if !system.is_empty() {
        messages.retain(|message| message["role"] != "system");
        messages.insert(0, json!({"role": "system", "content": system}));
    }
    let mut chat = Chat::new(Some(&model), size);
    messages.iter().for_each(|message| chat.push(message));
    let said = messages::said("user", prompt, Some(images), "")?;
    chat.push(&said);
    messages.push(context::kept(said));
    // An Ollama reads none of these here.
    ["messages", "tools"].iter().for_each(|name| drop(asked.shift_remove(*name)));
    let rest = request::translate(asked)?;
    let encoder = Box::new(Reply::new(Api::Generate, model, messages));
    Ok(Some(Heard {
        chat: chat.end(&rest),
        encoder,
        session: None,
        tells_stop: false,
        unsaid: Unsaid::default(),
        follows: None,
    }))
}

/// Has an Ollama tell the prompt that its template makes, and generate nothing (`api/types.go`, `DebugRenderOnly`).
const RENDERS: &str = "_debug_render_only";

/// What of a request to `POST /api/generate` cannot be said as messages.
const BEYOND: [&str; 5] = ["raw", "suffix", "template", "context", RENDERS];

fn beyond(asked: &Map<String, Value>) -> Vec<&'static str> {
    BEYOND.into_iter().filter(|name| asked.get(*name).is_some_and(|value| !says_nothing(value))).collect()
}

/// What a request asks for that is not said as messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsayable {
    /// It only loads a model.
    Loads,
    /// It only unloads one.
    Unloads,
    /// These fields, which only an Ollama understands.
    OllamaAlone(Vec<&'static str>),
}

/// What a request asks for that [`chat`] or, where `generate`, [`self::generate`] has no messages of.
pub fn unsayable(body: &[u8], generate: bool) -> Unsayable {
    let asked = object(body).unwrap_or_default();
    let has = |key: &str| asked.get(key).is_some_and(|value| !says_nothing(value));
    let unloads = unloads(&asked);
    let asks = match generate {
        true => has("prompt") || has("suffix") || has("images") && !unloads,
        false => renders(&asked),
    };
    match (asks, unloads) {
        (true, _) => Unsayable::OllamaAlone(beyond(&asked)),
        (false, true) => Unsayable::Unloads,
        (false, false) => Unsayable::Loads,
    }
}

fn renders(asked: &Map<String, Value>) -> bool {
    asked.get(RENDERS) == Some(&Value::Bool(true))
}

/// Whether the model is to be given up behind this request: a `keep_alive` of 0, as a number or as a duration such as `"0s"`.
fn unloads(asked: &Map<String, Value>) -> bool {
    match asked.get("keep_alive") {
        Some(Value::Number(lasts)) => lasts.as_f64() == Some(0.0),
        Some(Value::String(lasts)) => lasts.contains('0') && !lasts.contains(|c: char| matches!(c, '1'..='9')),
        _ => false,
    }
}

/// An error reply.
pub fn error(message: &str) -> Value {
    json!({ "error": message })
}

/// An error as a line of a stream, after which nothing comes.
pub fn error_line(message: &str) -> String {
    format!("{}\n", error(message))
}

/// The message of an error in OpenAI's shape; of any other, what there is of it.
pub fn message_of(error: &Value) -> String {
    let message = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
    message.map_or_else(|| error.to_string(), str::to_owned)
}

fn model(asked: &Map<String, Value>) -> Result<String, WireError> {
    match asked.get("model") {
        Some(Value::String(model)) if !model.is_empty() => Ok(model.clone()),
        _ => Err(wrong("model", "must be the name of a model")),
    }
}

/// As [`says_nothing`], of what may be megabytes.
fn spells_nothing(raw: &str) -> bool {
    let is_list = raw.starts_with('[');
    raw == "null" || raw == "false" || raw == "\"\"" || is_list && raw[1..raw.len() - 1].trim_ascii().is_empty()
}

/// Whether a field has the value that Go gives to an absent one.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Number(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests;
