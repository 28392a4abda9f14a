//! `messages`, and the pictures and sounds in them.
//!
//! A message is said in the same words whatever follows it, so that a longer history begins with the shorter one.

use std::collections::HashSet;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::spelled::{self, Chat, Item, Message, Part, each, given};
use super::{WireError, wrong};
use crate::wire::extra;
use crate::wire::json;
use crate::wire::parts::blocks::failed;

/// Writes all messages.
pub(super) fn translate(messages: &str, chat: &mut Chat) -> Result<(), WireError> {
    let mut calls = Calls::default();
    let is_list = each(messages, |at, message| {
        chat.push(&translated(at, message, &mut calls)?);
        Ok(())
    })?;
    if is_list { Ok(()) } else { Err(wrong("messages", "must be an array of messages")) }
}

/// Fields that are said in other words, or put in their place.
const READ: [&str; 8] =
    ["role", "content", "images", "thinking", "tool_name", "tool_call_id", "tool_calls", "is_error"];

fn translated(at: usize, message: Item<'_>, calls: &mut Calls) -> Result<Message, WireError> {
    let place = format!("messages[{at}]");
    let fields = match message {
        Item::Object(fields) => fields,
        Item::Text(text) => return Ok(Message::new("user", text.into())),
        Item::Other => return Ok(Message::new("user", "".into())),
    };
    // An Ollama takes a message without a role, and its templates pass over it.
    let role = given(&fields, "role").and_then(json::string).filter(|role| !role.is_empty());
    let role = role.map_or_else(|| "user".to_owned(), |role| role.to_lowercase());
    let content = given(&fields, "content").unwrap_or("\"\"");
    let mut out = said(&role, content, fields.get("images"), &format!("{place}."))?;
    let text = |name: &str| given(&fields, name).and_then(json::string).filter(|text| !text.is_empty());
    let (thinking, tool_name, answers) = (text("thinking"), text("tool_name"), text("tool_call_id"));
    let called = calls.made(at, given(&fields, "tool_calls").unwrap_or("[]"))?;
    let answers = if role == "tool" {
        calls.answered(answers, tool_name.clone().or_else(|| fields.string("name")).as_deref())
    } else {
        answers
    };
    let answers = answers.map(|id| extra::without_extra(&id).0.to_owned());
    if role == "tool" && fields.get("is_error") == Some("true") {
        fail(&mut out);
    }
    for (key, text) in [("reasoning_content", thinking), ("tool_name", tool_name), ("tool_call_id", answers)] {
        if let Some(text) = text {
            out.fields.insert(key.into(), text.into());
        }
    }
    if !called.is_empty() {
        out.fields.insert("tool_calls".into(), called.into());
    }
    let mut others = Map::new();
    for (key, raw) in fields.0.iter().filter(|(key, _)| !READ.contains(&key.as_ref())) {
        // A field that nobody knows, nested too deep for a tree, is left out.
        others.insert(key.as_ref().to_owned(), spelled::value(raw.get()).unwrap_or_default());
    }
    for (key, value) in others.into_iter().filter(|(_, value)| !value.is_null()) {
        out.fields.entry(key).or_insert(value);
    }
    Ok(out)
}

/// Has the result of a call say that it failed: clients mark it so as Anthropic's API does, and Ollama's has no word for it.
fn fail(result: &mut Message) {
    if result.parts.is_empty() {
        let text = result.fields["content"].as_str().unwrap_or_default().to_owned();
        result.fields["content"] = failed(text, true).into();
        return;
    }
    match result.parts.iter_mut().find_map(|part| if let Part::Text(text) = part { Some(text) } else { None }) {
        Some(text) => *text = failed(std::mem::take(text), true),
        None => result.parts.insert(0, Part::Text("Error:".into())),
    }
}

/// The calls so far: in Ollama's API they mostly have no ids, and in chat completions a result names its call by one.
#[derive(Default)]
struct Calls {
    /// Those of the last message that made any.
    last: Vec<Call>,
    /// All ids that the client gave.
    given: HashSet<String>,
}

struct Call {
    id: String,
    name: String,
    /// The id is none of the client's.
    made_up: bool,
    answered: bool,
}

impl Calls {
    /// The `tool_calls` of a message. One without a name keeps its place: a result may follow it. Nothing of a history is
    /// refused.
    fn made(&mut self, at: usize, list: &str) -> Result<Vec<Value>, WireError> {
        let mut calls = Vec::new();
        let mut out = Vec::new();
        each(list, |n, call: Box<RawValue>| {
            let call = json::value(call.get()).unwrap_or_default();
            let function = call.get("function").unwrap_or(&Value::Null);
            let text =
                |value: Option<&Value>| value.and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
            let (own, name) = (text(call.get("id")), text(function.get("name")));
            let name = name.unwrap_or_else(|| "unknown".into());
            let arguments = match function.get("arguments") {
                None | Some(Value::Null) => "{}".into(),
                Some(Value::String(text)) => text.clone(),
                // What is no object is wrapped into one further on.
                Some(arguments) => arguments.to_string(),
            };
            self.given.extend(own.clone());
            let made_up = own.is_none();
            // The same history has to get the same ids each time.
            let id = own.unwrap_or_else(|| format!("call_{at}_{n}"));
            out.push(spelled::call(&id, name.clone(), arguments));
            calls.push(Call { id, name, made_up, answered: false });
            Ok(())
        })?;
        if !calls.is_empty() {
            self.last = calls;
        }
        Ok(out)
    }

    /// The id of the call that a result answers. `None` where no call waits for one.
    fn answered(&mut self, own: Option<String>, name: Option<&str>) -> Option<String> {
        if let Some(id) = own {
            if let Some(call) = self.last.iter_mut().find(|call| call.id == id) {
                call.answered = true;
            } else if !self.given.contains(&id) && self.last.iter().any(|call| call.made_up && !call.answered) {
                // Ollama's Python SDK drops the ids of calls: one that only the result has names none of them.
                return self.answered(None, name);
            }
            return Some(id);
        }
        let named = self.last.iter().position(|call| !call.answered && name == Some(call.name.as_str()));
        let at = named.or_else(|| self.last.iter().position(|call| !call.answered))?;
        let call = self.last.get_mut(at)?;
        call.answered = true;
        Some(call.id.clone())
    }
}

/// A message of text, or of parts with `images` behind the text. `place` is the path of what holds both, up to its dot.
pub(super) fn said(role: &str, content: &str, images: Option<&str>, place: &str) -> Result<Message, WireError> {
    let mut parts = Vec::new();
    let text = json::string(content);
    let is_list = each(content, |_, part| {
        let part: Value = part;
        parts.push(Part::media(&part));
        Ok(())
    })?;
    // What is neither text nor parts is told as it is spelled.
    let text = text.or_else(|| (!is_list).then(|| content.to_owned()));
    let before = parts.len();
    let are_list = each(images.filter(|images| *images != "null").unwrap_or("[]"), |at, image| {
        match image {
            Item::Text(data) => parts.push(Part::media(&media(data))),
            // What is nothing is passed over.
            Item::Other => {}
            Item::Object(_) => return Err(wrong(format!("{place}images[{at}]"), "must be a base64 string")),
        }
        Ok(())
    })?;
    if !are_list {
        return Err(wrong(format!("{place}images"), "must be an array of base64 strings"));
    }
    if let Some(text) = text {
        if parts.is_empty() {
            return Ok(Message::new(role, text.into()));
        }
        if !text.is_empty() {
            parts.insert(before, Part::Text(text));
        }
    }
    Ok(if parts.is_empty() { Message::new(role, json!([])) } else { Message::of(role, parts) })
}

/// A picture or a sound: Ollama takes both as `images`.
fn media(mut data: String) -> Value {
    if data.starts_with("data:") {
        return json!({"type": "image_url", "image_url": {"url": data}});
    }
    // Go's decoder skips line ends, that of others does not.
    if data.bytes().any(|b| b.is_ascii_whitespace()) {
        data.retain(|c| !c.is_ascii_whitespace());
    }
    let mime = match head(&data) {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E'] => return sound(data, "wav"),
        [b'I', b'D', b'3', ..] | [0xFF, 0xE0..=0xFF, ..] => return sound(data, "mp3"),
        [0xFF, 0xD8, 0xFF, ..] => "image/jpeg",
        [b'G', b'I', b'F', ..] => "image/gif",
        [b'R', b'I', b'F', ..] => "image/webp",
        [b'B', b'M', ..] => "image/bmp",
        _ => "image/png",
    };
    json!({"type": "image_url", "image_url": {"url": format!("data:{mime};base64,{data}")}})
}

fn sound(data: String, format: &str) -> Value {
    json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
}

/// The first bytes that base64 text stands for; 0 for those it does not have.
fn head(data: &str) -> [u8; 12] {
    let mut out = [0; 12];
    for (four, three) in data.as_bytes().chunks_exact(4).zip(out.chunks_exact_mut(3)) {
        let bits = four.iter().fold(0, |bits: u32, letter| (bits << 6) | sextet(*letter));
        let [_, first, second, third] = bits.to_be_bytes();
        three.copy_from_slice(&[first, second, third]);
    }
    out
}

fn sextet(letter: u8) -> u32 {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => 0,
    };
    u32::from(value)
}
