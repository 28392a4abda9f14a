//! `system` and `messages`: content blocks become messages of chat completions.
//!
//! A message is said in the same words whatever follows it, so that a longer history begins with the shorter one. Turns of
//! one role in a row are one turn, as Anthropic has it: chat templates that want roles to alternate fail on them.

use serde_json::Value;

use super::super::spelled::{self, Asked, Chat, Item, Message, Part, each, given, joined, object, text as string};
use super::{WireError, wrong};
use crate::wire::json::{self, Fields};

/// Writes all messages.
pub(super) fn translate(asked: &Asked<'_>, chat: &mut Chat) -> Result<(), WireError> {
    let mut out = Out { chat, last: None };
    if let Some(text) = asked.spelled("system").filter(|text| *text != "null") {
        out.system(&system(text)?);
    }
    let messages = asked.spelled("messages");
    let messages = messages.ok_or_else(|| wrong("messages", "is missing; it must be an array of messages"))?;
    let mut none = true;
    let is_list = each(messages, |at, item| {
        none = false;
        let place = format!("messages[{at}]");
        let Item::Object(fields) = item else { return Err(wrong(place, "must be an object")) };
        message(&mut out, &place, &fields)
    })?;
    if !is_list {
        return Err(wrong("messages", "must be an array of messages"));
    }
    out.flush();
    if none { Err(wrong("messages", "must hold at least one message")) } else { Ok(()) }
}

fn message(out: &mut Out<'_>, place: &str, message: &Fields<'_>) -> Result<(), WireError> {
    let content = message.get("content").unwrap_or("null");
    match message.string("role").as_deref() {
        Some("user") => user(out, place, content),
        Some("assistant") => assistant(out, place, content),
        // Claude Code reminds the model this way, in the middle of a conversation.
        Some("system") => {
            let text = texts(&format!("{place}.content"), content)?;
            if out.is_at_the_start() {
                out.system(&text);
            } else {
                out.user(vec![Part::Text(format!("<system-reminder>\n{text}\n</system-reminder>"))]);
            }
            Ok(())
        }
        _ => Err(wrong(format!("{place}.role"), "must be `user` or `assistant`")),
    }
}

/// `system`: a string, or an array of text blocks.
fn system(raw: &str) -> Result<String, WireError> {
    let mut lines = Vec::new();
    let is_list = each(raw, |_, block: Item<'_>| {
        let text =
            block.text().ok_or_else(|| wrong(format!("system[{}]", lines.len()), "must be a block of type `text`"))?;
        lines.extend(without_billing(text));
        Ok(())
    })?;
    if is_list {
        return Ok(joined(lines, "\n"));
    }
    let text = json::string(raw).ok_or_else(|| wrong("system", "must be a string or an array of text blocks"))?;
    Ok(without_billing(text).unwrap_or_default())
}

/// Claude Code puts a line for Anthropic's billing before its system prompt, with a checksum of the whole request: it says
/// nothing to a model, and makes a server evaluate the whole prompt anew each turn (anthropics/claude-code#68900,
/// ggml-org/llama.cpp#21793). `None` for a text that is no more than this line.
fn without_billing(text: String) -> Option<String> {
    if !text.starts_with("x-anthropic-billing-header:") {
        return Some(text);
    }
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest).trim_start_matches('\n');
    (!rest.is_empty()).then(|| rest.to_owned())
}

/// Messages in the making: the last one may grow, those before it are written.
struct Out<'a> {
    chat: &'a mut Chat,
    last: Option<Message>,
}

impl Out<'_> {
    /// Whether nobody but the system has said anything.
    fn is_at_the_start(&self) -> bool {
        self.chat.is_empty() && self.last.as_ref().is_none_or(|last| last.is_of("system"))
    }

    fn flush(&mut self) {
        let Some(last) = self.last.take() else { return };
        self.chat.push(&if last.is_of("user") { last.plain() } else { last });
    }

    fn push(&mut self, message: Message) {
        self.flush();
        self.last = Some(message);
    }

    /// Many chat templates fail on, or lose, a second system message.
    fn system(&mut self, text: &str) {
        if let Some(first) = &mut self.last {
            let before = first.fields["content"].as_str().unwrap_or_default();
            first.fields["content"] = format!("{before}\n\n{text}").into();
        } else if !text.is_empty() {
            self.push(Message::new("system", text.into()));
        }
    }

    fn user(&mut self, parts: Vec<Part>) {
        match &mut self.last {
            Some(last) if last.is_of("user") => last.parts.extend(parts),
            _ => self.push(Message::of("user", parts)),
        }
    }

    fn assistant(&mut self, mut text: String, mut thought: String, mut calls: Vec<Value>) {
        if let Some(mut last) = self.last.take_if(|last| last.is_of("assistant")) {
            text = both(last.fields.remove("content"), text);
            thought = both(last.fields.remove("reasoning_content"), thought);
            if let Some(Value::Array(mut before)) = last.fields.remove("tool_calls") {
                before.append(&mut calls);
                calls = before;
            }
        }
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
        let mut message = Message::new("assistant", content);
        if !thought.is_empty() {
            message.fields.insert("reasoning_content".into(), thought.into());
        }
        if !calls.is_empty() {
            message.fields.insert("tool_calls".into(), calls.into());
        }
        self.push(message);
    }
}

/// What was said before, and what is new.
fn both(before: Option<Value>, new: String) -> String {
    match before {
        Some(Value::String(mut before)) if !before.is_empty() => {
            if !new.is_empty() {
                before.push_str("\n\n");
                before.push_str(&new);
            }
            before
        }
        _ => new,
    }
}

/// A string, or an array of text blocks.
fn texts(place: &str, raw: &str) -> Result<String, WireError> {
    if let Some(text) = json::string(raw) {
        return Ok(text);
    }
    let mut lines = Vec::new();
    let is_list = each(raw, |at, block: Item<'_>| {
        lines.push(block.text().ok_or_else(|| wrong(format!("{place}[{at}]"), "must be a block of type `text`"))?);
        Ok(())
    })?;
    match is_list {
        true => Ok(joined(lines, "\n")),
        false => Err(wrong(place, "must be a string or an array of text blocks")),
    }
}

/// Reads the content blocks at a place one after the other, each with its own place.
fn blocks(
    place: &str,
    content: &str,
    mut one: impl FnMut(&str, &Fields<'_>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let is_list = each(content, |at, block| {
        let place = format!("{place}[{at}]");
        match block {
            Item::Object(block) => one(&place, &block),
            _ => Err(wrong(place, "must be an object with a `type`")),
        }
    })?;
    if is_list { Ok(()) } else { Err(wrong(place, "must be a string or an array of content blocks")) }
}

fn kind(block: &Fields<'_>) -> String {
    block.string("type").unwrap_or_default()
}

/// Results of tools first, each a message, then what else the user says.
fn user(out: &mut Out<'_>, place: &str, content: &str) -> Result<(), WireError> {
    if let Some(text) = json::string(content) {
        out.user(vec![Part::Text(text)]);
        return Ok(());
    }
    let mut parts = Vec::new();
    let mut none = true;
    blocks(&format!("{place}.content"), content, |place, block| {
        match kind(block).as_str() {
            "tool_result" => {
                none = false;
                out.push(result(place, block, &mut parts)?);
            }
            kind => parts.push(part(place, kind, block)?),
        }
        Ok(())
    })?;
    if none || !parts.is_empty() {
        out.user(parts);
    }
    Ok(())
}

/// A tool message. The images that it cannot hold go among `media`: in chat completions those are a user's.
fn result(place: &str, block: &Fields<'_>, media: &mut Vec<Part>) -> Result<Message, WireError> {
    let id = string(block, place, "tool_use_id")?;
    let mut lines = Vec::new();
    let content = given(block, "content").unwrap_or("\"\"");
    if let Some(text) = json::string(content) {
        lines.push(text);
    } else {
        blocks(&format!("{place}.content"), content, |place, one| {
            let part = match kind(one).as_str() {
                // A tool that was found by a search for tools, by its name.
                "tool_reference" => Part::Text(string(one, place, "tool_name")?),
                kind => part(place, kind, one)?,
            };
            match part {
                Part::Text(text) => lines.push(text),
                part @ Part::Media(_) => {
                    lines.push("[image: in the user's message below]".into());
                    media.push(Part::Text(format!("[image of the tool result {id}]")));
                    media.push(part);
                }
            }
            Ok(())
        })?;
    }
    let mut text = joined(lines, "\n");
    if text.is_empty() && block.get("is_error") == Some("true") {
        text = "error".into();
    }
    Ok(Message::result(id, text))
}

/// A block that a user or a tool says, as a content part of chat completions.
fn part(place: &str, kind: &str, block: &Fields<'_>) -> Result<Part, WireError> {
    match kind {
        "text" => Ok(Part::Text(string(block, place, "text")?)),
        "image" => image(place, block),
        "document" => document(place, block),
        "search_result" => {
            let text = texts(&format!("{place}.content"), block.get("content").unwrap_or("null"))?;
            let head = |key: &str| block.string(key).unwrap_or_default();
            Ok(Part::Text(format!("{}\n{}\n{text}", head("title"), head("source")).trim().to_owned()))
        }
        other => {
            let what = format!(
                "is of type `{other}`, which no local model can read; `text`, `image`, `document` with text in it, `search_result`, `tool_use` and `tool_result` can be"
            );
            Err(wrong(place, &what))
        }
    }
}

/// Where a picture or a document comes from, and the place of that.
fn source<'a>(place: &str, block: &Fields<'a>) -> Result<(String, Fields<'a>), WireError> {
    let inner = format!("{place}.source");
    match block.get("source").map(object).transpose()?.flatten() {
        Some(source) => Ok((inner, source)),
        None => Err(wrong(inner, "must be an object")),
    }
}

fn image(place: &str, block: &Fields<'_>) -> Result<Part, WireError> {
    let (inner, source) = source(place, block)?;
    match kind(&source).as_str() {
        "base64" => {
            let media_type = string(&source, &inner, "media_type")?;
            let data = string(&source, &inner, "data")?;
            Ok(Part::image(&format!("data:{media_type};base64,{data}")))
        }
        "url" => Ok(Part::image(&string(&source, &inner, "url")?)),
        _ => Err(wrong(inner, "must be of type `base64` or `url`: files kept at Anthropic cannot be read here")),
    }
}

/// A document that is text; its title and context stand before it.
fn document(place: &str, block: &Fields<'_>) -> Result<Part, WireError> {
    let (inner, source) = source(place, block)?;
    let text = match kind(&source).as_str() {
        "text" => string(&source, &inner, "data")?,
        "content" => texts(&format!("{inner}.content"), source.get("content").unwrap_or("null"))?,
        _ => {
            return Err(wrong(
                inner,
                "must be of type `text` or `content`: no local server reads PDFs. Send their text",
            ));
        }
    };
    let mut lines: Vec<String> = ["title", "context"].iter().filter_map(|k| block.string(k)).collect();
    lines.push(text);
    Ok(Part::Text(joined(lines, "\n")))
}

/// Texts, thoughts and calls of one turn, in one message.
fn assistant(out: &mut Out<'_>, place: &str, content: &str) -> Result<(), WireError> {
    let mut text: Vec<String> = Vec::new();
    let mut thought: Vec<String> = Vec::new();
    let mut calls: Vec<Value> = Vec::new();
    if let Some(all) = json::string(content) {
        text.push(all);
    } else {
        blocks(&format!("{place}.content"), content, |place, block| {
            match kind(block).as_str() {
                "text" => text.push(string(block, place, "text")?),
                "thinking" => thought.push(string(block, place, "thinking")?),
                // Only Anthropic can read these.
                "redacted_thinking" => {}
                "tool_use" => calls.push(call(place, block)?),
                other => {
                    let what = format!(
                        "is of type `{other}`, which no local server knows; `text`, `thinking` and `tool_use` can be told"
                    );
                    return Err(wrong(place, &what));
                }
            }
            Ok(())
        })?;
    }
    // The pieces of one reply: nothing stood between them.
    out.assistant(joined(text, ""), joined(thought, "\n"), calls);
    Ok(())
}

fn call(place: &str, block: &Fields<'_>) -> Result<Value, WireError> {
    let input = match given(block, "input") {
        None => "{}".into(),
        Some(input) if input.starts_with('{') => spelled::value(input)?.to_string(),
        Some(_) => return Err(wrong(format!("{place}.input"), "must be an object")),
    };
    let name = string(block, place, "name")?;
    Ok(spelled::call(string(block, place, "id")?, name, input))
}
