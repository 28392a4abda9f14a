//! `system` and `messages`: content blocks become messages of chat completions.
//!
//! A message is said in the same words whatever follows it, so that a longer history begins with the shorter one. Turns of
//! one role in a row are one turn, as Anthropic has it: chat templates that want roles to alternate fail on them.

use serde_json::{Map, Value, json};

use super::{WireError, wrong};

/// All messages.
pub(super) fn translate(asked: &Map<String, Value>) -> Result<Vec<Value>, WireError> {
    let mut out = Out::default();
    match asked.get("system") {
        None | Some(Value::Null) => {}
        Some(Value::Array(blocks)) => {
            let kept: Vec<Value> = blocks.iter().filter_map(without_billing).collect();
            out.system(&texts("system", &kept.into())?);
        }
        Some(text) => out.system(&texts("system", &without_billing(text).unwrap_or_else(|| "".into()))?),
    }
    let messages = match asked.get("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(wrong("messages", "must be an array of messages")),
        None => return Err(wrong("messages", "is missing; it must be an array of messages")),
    };
    if messages.is_empty() {
        return Err(wrong("messages", "must hold at least one message"));
    }
    for (at, message) in messages.iter().enumerate() {
        let place = format!("messages[{at}]");
        let Some(message) = message.as_object() else { return Err(wrong(place, "must be an object")) };
        let content = message.get("content").unwrap_or(&Value::Null);
        match message.get("role").and_then(Value::as_str) {
            Some("user") => user(&mut out, &place, content)?,
            Some("assistant") => assistant(&mut out, &place, content)?,
            // Claude Code reminds the model this way, in the middle of a conversation.
            Some("system") => {
                let text = texts(&format!("{place}.content"), content)?;
                if out.messages.iter().all(|m| m["role"] == "system") {
                    out.system(&text);
                } else {
                    out.user(vec![text_part(&format!("<system-reminder>\n{text}\n</system-reminder>"))]);
                }
            }
            _ => return Err(wrong(format!("{place}.role"), "must be `user` or `assistant`")),
        }
    }
    Ok(out.finish())
}

/// Claude Code puts a line for Anthropic's billing before its system prompt, with a checksum of the whole request: it says
/// nothing to a model, and makes a server evaluate the whole prompt anew each turn (anthropics/claude-code#68900,
/// ggml-org/llama.cpp#21793). `None` for a block that is no more than this line.
fn without_billing(block: &Value) -> Option<Value> {
    let text = block.get("text").unwrap_or(block).as_str().unwrap_or_default();
    if !text.starts_with("x-anthropic-billing-header:") {
        return Some(block.clone());
    }
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest).trim_start_matches('\n');
    (!rest.is_empty()).then(|| rest.into())
}

/// Messages in the making. Content of users stays an array of parts until the end.
#[derive(Default)]
struct Out {
    messages: Vec<Value>,
}

impl Out {
    /// Many chat templates fail on, or lose, a second system message.
    fn system(&mut self, text: &str) {
        if let Some(first) = self.messages.first_mut() {
            let before = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{before}\n\n{text}").into();
        } else if !text.is_empty() {
            self.messages.push(json!({"role": "system", "content": text}));
        }
    }

    fn user(&mut self, parts: Vec<Value>) {
        match self.messages.last_mut() {
            Some(last) if last["role"] == "user" => {
                if let Some(before) = last["content"].as_array_mut() {
                    before.extend(parts);
                }
            }
            _ => self.messages.push(json!({"role": "user", "content": parts})),
        }
    }

    fn assistant(&mut self, mut text: String, mut thought: String, mut calls: Vec<Value>) {
        if let Some(last) = self.messages.pop_if(|m| m["role"] == "assistant") {
            let both = |key: &str, new: String| match last[key].as_str().unwrap_or_default() {
                "" => new,
                before if new.is_empty() => before.to_owned(),
                before => format!("{before}\n\n{new}"),
            };
            text = both("content", text);
            thought = both("reasoning_content", thought);
            let before = last["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
            calls = [before, &calls].concat();
        }
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() });
        if !thought.is_empty() {
            message.insert("reasoning_content".into(), thought.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        self.messages.push(message.into());
    }

    /// Parts that are all text become one string: chat templates that take no parts exist.
    fn finish(mut self) -> Vec<Value> {
        for message in self.messages.iter_mut().filter(|m| m["role"] == "user") {
            let parts = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(text) = joined(parts) {
                message["content"] = text.into();
            }
        }
        self.messages
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The texts of parts, joined by line ends; `None` where one of them is no text.
fn joined(parts: &[Value]) -> Option<String> {
    let texts: Option<Vec<&str>> = parts.iter().map(|p| p.get("text").and_then(Value::as_str)).collect();
    Some(texts?.join("\n"))
}

/// A string, or an array of text blocks.
fn texts(place: &str, content: &Value) -> Result<String, WireError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts = blocks.iter().enumerate().map(|(at, block)| {
                let text = block.get("text").and_then(Value::as_str).or(block.as_str());
                text.ok_or_else(|| wrong(format!("{place}[{at}]"), "must be a block of type `text`"))
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err(wrong(place, "must be a string or an array of text blocks")),
    }
}

/// A content block, and its place in the request.
type Block<'a> = (String, &'a Map<String, Value>);

/// The content blocks of a message.
fn blocks<'a>(place: &str, content: &'a Value) -> Result<Vec<Block<'a>>, WireError> {
    let Value::Array(blocks) = content else {
        return Err(wrong(format!("{place}.content"), "must be a string or an array of content blocks"));
    };
    let read = |(at, block): (usize, &'a Value)| {
        let place = format!("{place}.content[{at}]");
        match block.as_object() {
            Some(fields) => Ok((place, fields)),
            None => Err(wrong(place, "must be an object with a `type`")),
        }
    };
    blocks.iter().enumerate().map(read).collect()
}

fn kind(block: &Map<String, Value>) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn string<'a>(place: &str, block: &'a Map<String, Value>, key: &str) -> Result<&'a str, WireError> {
    block.get(key).and_then(Value::as_str).ok_or_else(|| wrong(format!("{place}.{key}"), "must be a string"))
}

/// Results of tools first, each a message, then what else the user says.
fn user(out: &mut Out, place: &str, content: &Value) -> Result<(), WireError> {
    if let Value::String(text) = content {
        out.user(vec![text_part(text)]);
        return Ok(());
    }
    let mut parts = Vec::new();
    let mut results = Vec::new();
    for (place, block) in blocks(place, content)? {
        match kind(block) {
            "tool_result" => {
                let (result, media) = result(&place, block)?;
                results.push(result);
                parts.extend(media);
            }
            _ => parts.push(part(&place, block)?),
        }
    }
    let none = results.is_empty();
    out.messages.append(&mut results);
    if none || !parts.is_empty() {
        out.user(parts);
    }
    Ok(())
}

/// A tool message, and the images that it cannot hold: in chat completions those are a user's.
fn result(place: &str, block: &Map<String, Value>) -> Result<(Value, Vec<Value>), WireError> {
    let id = string(place, block, "tool_use_id")?;
    let mut lines = Vec::new();
    let mut media = Vec::new();
    match block.get("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => lines.push(text.clone()),
        Some(Value::Array(inner)) => {
            for (at, one) in inner.iter().enumerate() {
                let place = format!("{place}.content[{at}]");
                let Some(one) = one.as_object() else { return Err(wrong(place, "must be an object with a `type`")) };
                let part = match kind(one) {
                    // A tool that was found by a search for tools, by its name.
                    "tool_reference" => text_part(string(&place, one, "tool_name")?),
                    _ => part(&place, one)?,
                };
                match part.get("text").and_then(Value::as_str) {
                    Some(text) => lines.push(text.to_owned()),
                    None => {
                        lines.push("[image: in the user's message below]".into());
                        media.push(text_part(&format!("[image of the tool result {id}]")));
                        media.push(part);
                    }
                }
            }
        }
        Some(_) => return Err(wrong(format!("{place}.content"), "must be a string or an array of content blocks")),
    }
    let mut text = lines.join("\n");
    if text.is_empty() && block.get("is_error").and_then(Value::as_bool) == Some(true) {
        text = "error".into();
    }
    Ok((json!({"role": "tool", "tool_call_id": id, "content": text}), media))
}

/// A block that a user or a tool says, as a content part of chat completions.
fn part(place: &str, block: &Map<String, Value>) -> Result<Value, WireError> {
    match kind(block) {
        "text" => Ok(text_part(string(place, block, "text")?)),
        "image" => {
            let source = block.get("source").and_then(Value::as_object);
            let source = source.ok_or_else(|| wrong(format!("{place}.source"), "must be an object"))?;
            let inner = format!("{place}.source");
            let url = match kind(source) {
                "base64" => {
                    let media_type = string(&inner, source, "media_type")?;
                    format!("data:{media_type};base64,{}", string(&inner, source, "data")?)
                }
                "url" => string(&inner, source, "url")?.to_owned(),
                _ => {
                    let what = "must be of type `base64` or `url`: files kept at Anthropic cannot be read here";
                    return Err(wrong(inner, what));
                }
            };
            Ok(json!({"type": "image_url", "image_url": {"url": url}}))
        }
        "document" => document(place, block),
        "search_result" => {
            let text = texts(&format!("{place}.content"), block.get("content").unwrap_or(&Value::Null))?;
            let head = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
            Ok(text_part(format!("{}\n{}\n{text}", head("title"), head("source")).trim()))
        }
        other => {
            let what = format!(
                "is of type `{other}`, which no local model can read; `text`, `image`, `document` with text in it, `search_result`, `tool_use` and `tool_result` can be"
            );
            Err(wrong(place, &what))
        }
    }
}

/// A document that is text; its title and context stand before it.
fn document(place: &str, block: &Map<String, Value>) -> Result<Value, WireError> {
    let source = block.get("source").and_then(Value::as_object);
    let source = source.ok_or_else(|| wrong(format!("{place}.source"), "must be an object"))?;
    let inner = format!("{place}.source");
    let text = match kind(source) {
        "text" => string(&inner, source, "data")?.to_owned(),
        "content" => texts(&format!("{inner}.content"), source.get("content").unwrap_or(&Value::Null))?,
        _ => {
            return Err(wrong(
                inner,
                "must be of type `text` or `content`: no local server reads PDFs. Send their text",
            ));
        }
    };
    let mut lines: Vec<&str> = ["title", "context"].iter().filter_map(|k| block.get(*k)?.as_str()).collect();
    lines.push(&text);
    Ok(text_part(&lines.join("\n")))
}

/// Texts, thoughts and calls of one turn, in one message.
fn assistant(out: &mut Out, place: &str, content: &Value) -> Result<(), WireError> {
    let mut text: Vec<&str> = Vec::new();
    let mut thought: Vec<&str> = Vec::new();
    let mut calls: Vec<Value> = Vec::new();
    if let Value::String(all) = content {
        text.push(all);
    } else {
        for (place, block) in blocks(place, content)? {
            match kind(block) {
                "text" => text.push(string(&place, block, "text")?),
                "thinking" => thought.push(string(&place, block, "thinking")?),
                // Only Anthropic can read these.
                "redacted_thinking" => {}
                "tool_use" => calls.push(call(&place, block)?),
                other => {
                    let what = format!(
                        "is of type `{other}`, which no local server knows; `text`, `thinking` and `tool_use` can be told"
                    );
                    return Err(wrong(place, &what));
                }
            }
        }
    }
    // The pieces of one reply: nothing stood between them.
    out.assistant(text.concat(), thought.join("\n"), calls);
    Ok(())
}

fn call(place: &str, block: &Map<String, Value>) -> Result<Value, WireError> {
    let input = match block.get("input") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input.clone(),
        Some(_) => return Err(wrong(format!("{place}.input"), "must be an object")),
    };
    let function = json!({"name": string(place, block, "name")?, "arguments": input.to_string()});
    Ok(json!({"id": string(place, block, "id")?, "type": "function", "function": function}))
}
