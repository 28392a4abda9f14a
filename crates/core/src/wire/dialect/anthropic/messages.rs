//! `system` and `messages`: content blocks become messages of chat completions.
//!
//! A message is said in the same words whatever follows it, so that a longer history begins with the shorter one. Turns of
//! one role in a row are one turn, as Anthropic has it: chat templates that want roles to alternate fail on them.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::spelled::{self, Asked, Chat, Item, Message, Part, each, given, joined, object};
use super::compaction::{self, Cut};
use super::tools::Change;
use super::{Before, WireError, wrong};
use crate::wire::compacted;
use crate::wire::extra;
use crate::wire::json::{self, Fields};
use crate::wire::parts::{CARRIED, blocks};

/// Writes all messages, behind what was said before in a thread. Returns what they change of the tools that are offered, in
/// order.
pub(super) fn translate(
    text: Option<&str>,
    from: From<'_>,
    asked: &Asked<'_>,
    chat: &mut Chat,
) -> Result<Vec<Change>, WireError> {
    let mut out = Out { chat, last: None, changes: Vec::new() };
    if let Some(text) = text {
        out.system(&system(text)?);
    }
    if let From::Reply(before) = from {
        out.recorded(before);
        assistant(&mut out, &before.reply)?;
    }
    let messages = messages_of(asked)?;
    let newest = newest_of_the_user(messages);
    let is_list = each(messages, |at, item| {
        let passed = newest.is_some_and(|newest| at < newest);
        match (item, from.cut()) {
            (Item::Object(fields), Some(cut)) if at < cut.at => before_cut(&mut out, &fields, cut, passed),
            (Item::Object(fields), Some(cut)) if at == cut.at => at_cut(&mut out, &fields, from, cut),
            (Item::Object(fields), _) => message(&mut out, &fields, passed),
            (Item::Text(text), cut) if cut.is_none_or(|cut| at > cut.at) => {
                out.user(vec![Part::Text(text)]);
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    if !is_list {
        return Err(wrong("messages", "must be an array of messages"));
    }
    out.flush();
    Ok(out.changes)
}

/// The `messages` of a request, as they are spelled.
pub(super) fn messages_of<'a>(asked: &Asked<'a>) -> Result<&'a str, WireError> {
    let messages = asked.spelled("messages");
    messages.ok_or_else(|| wrong("messages", "is missing; it must be an array of messages"))
}

/// What a history goes on from, beside what the request itself holds.
#[derive(Clone, Copy)]
pub(super) enum From<'a> {
    /// Nothing.
    Start,
    /// A reply, and the messages that it answers.
    Reply(&'a Before),
    /// A compaction in it, by its words.
    Words(&'a Cut),
    /// A compaction in it that was made here: the messages that it stands for.
    Messages(&'a Cut, &'a Before),
}

impl<'a> From<'a> {
    fn cut(self) -> Option<&'a Cut> {
        match self {
            From::Words(cut) | From::Messages(cut, _) => Some(cut),
            From::Start | From::Reply(_) => None,
        }
    }
}

/// A message that a later compaction stands for. The instructions that the session begins with hold on.
fn before_cut(out: &mut Out<'_>, fields: &Fields<'_>, cut: &Cut, passed: bool) -> Result<(), WireError> {
    let is_system = matches!(fields.string("role").as_deref(), Some("system" | "developer"));
    if is_system && out.is_at_the_start() {
        return message(out, fields, passed);
    }
    if cut.tells_tools {
        return Ok(());
    }
    blocks(given(fields, "content").unwrap_or("\"\""), |block| {
        out.note_changes(block);
        Ok(())
    })
}

/// The message with the compaction: what stands for the earlier ones, then what the message says behind it.
fn at_cut(out: &mut Out<'_>, fields: &Fields<'_>, from: From<'_>, cut: &Cut) -> Result<(), WireError> {
    match from {
        From::Messages(_, before) => out.recorded(before),
        _ => out.user(vec![Part::Text(compacted::told(&cut.stands.text).into_owned())]),
    }
    let content = given(fields, "content").unwrap_or_default();
    let mut nth = 0;
    blocks(content, |block| {
        // The changes of tools that it sums up.
        if nth == cut.block {
            out.note_changes(block);
        }
        nth += 1;
        Ok(())
    })?;
    let rest = compaction::behind(content, cut.block);
    match fields.string("role").as_deref() {
        _ if rest == "[]" => Ok(()),
        Some("assistant") => assistant(out, &rest),
        _ => user(out, &rest),
    }
}

/// Where the newest message of the user stands, where some message asks for it.
fn newest_of_the_user(messages: &str) -> Option<usize> {
    memchr::memmem::find(messages.as_bytes(), b"\"clear_at\"")?;
    let mut newest = None;
    let _ = each(messages, |at, item| {
        if matches!(item, Item::Object(fields) if fields.string("role").as_deref() == Some("user")) {
            newest = Some(at);
        }
        Ok(())
    });
    newest
}

/// `passed`: the user said something after it.
fn message(out: &mut Out<'_>, message: &Fields<'_>, passed: bool) -> Result<(), WireError> {
    let content = given(message, "content").unwrap_or("\"\"");
    match message.string("role").as_deref() {
        Some("assistant") => assistant(out, content),
        // Claude Code reminds the model this way, in the middle of a conversation.
        Some("system" | "developer") => {
            let text = instruction(out, content)?;
            // A reminder that holds until the user's next message: it stays in the array, and is not shown any more.
            let is_over = passed && message.string("clear_at").as_deref() == Some("next_user_message");
            let is_shown = !text.is_empty() && !is_over;
            if is_shown && out.is_at_the_start() {
                out.system(&text);
            } else if is_shown {
                out.user(vec![Part::Text(format!("<system-reminder>\n{text}\n</system-reminder>"))]);
            }
            Ok(())
        }
        _ => user(out, content),
    }
}

/// What a system message in the middle says.
fn instruction(out: &mut Out<'_>, content: &str) -> Result<String, WireError> {
    if let Some(text) = json::string(content) {
        return Ok(text);
    }
    let mut lines = Vec::new();
    blocks(content, |block| {
        out.note_changes(block);
        lines.push(told(block));
        Ok(())
    })?;
    Ok(joined(lines, "\n"))
}

/// `system`: a string, an array of text blocks, or one of them.
fn system(raw: &str) -> Result<String, WireError> {
    let mut lines = Vec::new();
    if let Some(block) = object(raw)? {
        return Ok(without_billing(told(&block)).unwrap_or_default());
    }
    let is_list = each(raw, |_, block: Item<'_>| {
        let text = match block {
            Item::Object(block) => told(&block),
            Item::Text(text) => text,
            Item::Other => return Ok(()),
        };
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
    changes: Vec<Change>,
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

    /// Messages of the record, in the words of chat completions.
    fn recorded(&mut self, before: &Before) {
        self.flush();
        before.messages.iter().for_each(|message| self.chat.push_spelled(message));
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

    fn assistant(&mut self, mut parts: Vec<Part>, mut thought: String, mut calls: Vec<Value>) {
        if let Some(mut last) = self.last.take_if(|last| last.is_of("assistant")) {
            parts = behind(&mut last, parts);
            thought = both(last.fields.remove("reasoning_content"), thought);
            if let Some(Value::Array(mut before)) = last.fields.remove("tool_calls") {
                before.append(&mut calls);
                calls = before;
            }
        }
        let mut message = if parts.iter().any(|part| matches!(part, Part::Media(_))) {
            Message::of("assistant", parts)
        } else {
            // The pieces of one reply: nothing stood between them.
            let text = joined(parts.into_iter().filter_map(Part::text).collect(), "");
            Message::new("assistant", if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() })
        };
        if !thought.is_empty() {
            message.fields.insert("reasoning_content".into(), thought.into());
        }
        if !calls.is_empty() {
            message.fields.insert("tool_calls".into(), calls.into());
        }
        self.push(message);
    }

    /// Notes what a block changes of the tools that are offered.
    fn note_changes(&mut self, block: &Fields<'_>) {
        match kind(block).as_str() {
            change @ ("tool_addition" | "tool_removal") => {
                let tool = given(block, "tool").and_then(|tool| json::value(tool).ok());
                self.changes.extend(tool.and_then(|tool| Change::read(change == "tool_addition", &tool)));
            }
            // What was offered at the end of what was compacted.
            "compaction" => {
                let changes = given(block, "tool_changes").and_then(|changes| json::value(changes).ok());
                for change in changes.iter().filter_map(Value::as_array).flatten() {
                    self.changes.extend(Change::read(change["type"] == "tool_addition", &change["tool"]));
                }
            }
            _ => {}
        }
    }
}

/// The parts of a turn that was begun, and those that come behind them.
fn behind(last: &mut Message, new: Vec<Part>) -> Vec<Part> {
    let mut parts = std::mem::take(&mut last.parts);
    if let Some(Value::String(text)) = last.fields.remove("content").filter(|_| parts.is_empty()) {
        parts.extend(Some(Part::Text(text)).filter(|part| !part.is_empty()));
    }
    let mut new = new.into_iter().filter(|part| !part.is_empty()).peekable();
    if let (Some(Part::Text(before)), Some(Part::Text(_))) = (parts.last_mut(), new.peek()) {
        before.push_str("\n\n");
    }
    parts.extend(new);
    parts
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

/// Reads content blocks one after the other. A bare string is a text, and so is a content that is neither a list nor a block:
/// nothing that stands in a history is a reason to refuse it. What is nothing is passed over.
fn blocks(content: &str, mut one: impl FnMut(&Fields<'_>) -> Result<(), WireError>) -> Result<(), WireError> {
    if let Some(block) = object(content)? {
        return one(&block);
    }
    let spelled = |text: &str| json!({"type": "text", "text": text}).to_string();
    if !content.starts_with('[') {
        return object(&spelled(content))?.map_or(Ok(()), |block| one(&block));
    }
    let read = each(content, |_, block| match block {
        Item::Text(text) => object(&spelled(&text))?.map_or(Ok(()), |block| one(&block)),
        Item::Object(block) => one(&block),
        Item::Other => Ok(()),
    });
    read.map(|_| ())
}

fn kind(block: &Fields<'_>) -> String {
    block.string("type").unwrap_or_default()
}

/// Results of tools first, each a message, then what else the user says.
fn user(out: &mut Out<'_>, content: &str) -> Result<(), WireError> {
    if let Some(text) = json::string(content) {
        out.user(vec![Part::Text(text)]);
        return Ok(());
    }
    let mut parts = Vec::new();
    let mut none = true;
    blocks(content, |block| {
        out.note_changes(block);
        if kind(block) == "tool_result" {
            none = false;
            let result = result(block, &mut parts)?;
            out.push(result);
        } else {
            parts.extend(part(block));
        }
        Ok(())
    })?;
    if none || !parts.is_empty() {
        out.user(parts);
    }
    Ok(())
}

/// A tool message. The images that it cannot hold go among `media`: in chat completions those are a user's.
fn result(block: &Fields<'_>, media: &mut Vec<Part>) -> Result<Message, WireError> {
    let id = block.string("tool_use_id").unwrap_or_default();
    let id = extra::without_extra(&id).0;
    let is_error = block.get("is_error") == Some("true");
    let mut parts = Vec::new();
    let content = given(block, "content").unwrap_or("\"\"");
    if let Some(text) = json::string(content) {
        parts.push(Part::Text(text));
    } else {
        blocks(content, |one| {
            if let Some(picture) = Some(one).filter(|one| kind(one) == "image").and_then(image) {
                parts.push(Part::Text("[image: in the user's message below]".into()));
                media.push(Part::Text(format!("[image of the tool result {id}]")));
                media.push(picture);
            } else {
                parts.extend(part(one));
            }
            Ok(())
        })?;
    }
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        let text = joined(parts.into_iter().filter_map(Part::text).collect(), "\n");
        return Ok(Message::result(id, blocks::failed(text, is_error)));
    }
    match parts.first_mut() {
        Some(Part::Text(first)) => *first = blocks::failed(std::mem::take(first), is_error),
        _ if is_error => parts.insert(0, Part::Text("Error:".into())),
        _ => {}
    }
    Ok(Message { parts, ..Message::result(id, String::new()) })
}

/// A block as a content part of chat completions. What they have no word for is carried as it is, and told as text on its way
/// to the server: the record keeps it. `None` for what says nothing to a model.
fn part(block: &Fields<'_>) -> Option<Part> {
    match kind(block).as_str() {
        "text" => Some(Part::Text(block.string("text").unwrap_or_default())),
        "image" => Some(image(block).unwrap_or_else(|| carried(block))),
        "document" | "search_result" | "tool_reference" | "compaction" => match blocks::told(&as_it_stands(block)) {
            (None, text) => Some(Part::Text(text)).filter(|part| !part.is_empty()),
            _ => Some(carried(block)),
        },
        "thinking" | "redacted_thinking" | "fallback" | "mcp_tool_listing" => None,
        _ => Some(carried(block)),
    }
}

/// What a block says as text.
fn told(block: &Fields<'_>) -> String {
    blocks::told(&as_it_stands(block)).1
}

/// A block as it is spelled, without the mark of Anthropic's cache, which moves each turn.
fn as_it_stands(block: &Fields<'_>) -> String {
    let mut out = String::from("{");
    for (key, value) in block.0.iter().filter(|(key, _)| key != "cache_control") {
        let comma = if out.len() > 1 { "," } else { "" };
        out.push_str(&format!("{comma}{}:{}", json::quote(key), value.get()));
    }
    out.push('}');
    out
}

fn carried(block: &Fields<'_>) -> Part {
    let whole = format!("{{\"type\":\"{CARRIED}\",\"block\":{}}}", as_it_stands(block));
    // Half of a surrogate pair is JSON as it is spelled, and cannot be read as a value.
    let whole = if whole.contains("\\u") { json::paired(&whole) } else { whole };
    RawValue::from_string(whole).map_or_else(|_| Part::Text(told(block)), Part::Media)
}

/// A picture that is here, or has an address.
fn image(block: &Fields<'_>) -> Option<Part> {
    let source = object(block.get("source")?).ok()??;
    match kind(&source).as_str() {
        "base64" => {
            let media_type = source.string("media_type").unwrap_or_else(|| "image/png".into());
            Some(Part::image(&format!("data:{media_type};base64,{}", source.string("data")?)))
        }
        "url" => Some(Part::image(&source.string("url")?)),
        _ => None,
    }
}

/// Texts, thoughts and calls of one turn, in one message.
fn assistant(out: &mut Out<'_>, content: &str) -> Result<(), WireError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut thought: Vec<String> = Vec::new();
    let mut calls: Vec<Value> = Vec::new();
    if let Some(all) = json::string(content) {
        parts.push(Part::Text(all));
    } else {
        blocks(content, |block| {
            out.note_changes(block);
            match (kind(block).as_str(), parts.last_mut()) {
                ("thinking", _) => thought.push(block.string("thinking").unwrap_or_default()),
                ("tool_use", _) => calls.push(call(block)),
                // The pieces of one reply: nothing stood between them.
                ("text", Some(Part::Text(before))) => before.push_str(&block.string("text").unwrap_or_default()),
                _ => parts.extend(part(block)),
            }
            Ok(())
        })?;
    }
    out.assistant(parts, joined(thought, "\n"), calls);
    Ok(())
}

fn call(block: &Fields<'_>) -> Value {
    let input = match given(block, "input") {
        None => "{}".into(),
        // One that is nested too deep for a tree stays as it is spelled.
        Some(input) if input.starts_with('{') => {
            spelled::value(input).map_or_else(|_| input.to_owned(), |v| v.to_string())
        }
        // A call that its model did not finish: what is no object is wrapped into one further on.
        Some(input) => json::string(input).unwrap_or_else(|| input.to_owned()),
    };
    let of = |key: &str| block.string(key).unwrap_or_default();
    spelled::call(&of("id"), of("name"), input)
}
