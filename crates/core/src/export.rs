//! One conversation as a file for somebody to keep: Markdown to read, or JSON Lines to work on. Plain functions over the messages
//! as their client sent them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::conversation::edit::{Edit, View};

/// What stands above the messages of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Id of the conversation.
    pub id: &'a str,
    /// What it is called; its id where it has no title.
    pub title: &'a str,
}

/// A message as it is exported.
#[derive(Debug, Clone, Copy)]
pub struct Exported<'a> {
    /// Its index in the body.
    pub at: usize,
    /// Who said it.
    pub role: &'a str,
    /// The JSON message as it came.
    pub raw: &'a [u8],
}

/// A conversation as Markdown, from its first message to its last. `view`: what stands in its prompt at present; the fold is marked,
/// and so are the messages that are shortened there.
pub fn markdown(head: Head<'_>, messages: &[Exported<'_>], view: Option<&View>) -> String {
    let edits = view.map(|v| v.edits.as_slice()).unwrap_or_default();
    let mut out = format!(
        "# {}\n\nConversation `{}`, {} messages, as the client sent them. Numbers count from 0; leading system messages \
         are not counted.\n\n",
        heading(head),
        head.id,
        messages.len()
    );
    for one in messages {
        edits.iter().for_each(|edit| out.push_str(&edited(edit, one.at)));
        out.push_str(&message(one.at, one.role, one.raw));
    }
    out
}

/// Fields of a message whose text stays when it is masked: without them it would be another request.
const SHAPE: [&str; 5] = ["role", "type", "id", "tool_call_id", "name"];

/// A message with its texts replaced, to be shown to others: each letter by `x`, each digit by `0`, in the same places, so that it is as
/// long as before and has the same lines. Roles, names of tools and ids stay.
pub fn masked(message: &Value) -> Value {
    match message {
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                let value = match value.as_str() {
                    Some(_) if SHAPE.contains(&key.as_str()) => value.clone(),
                    // JSON in a string: it stays JSON.
                    Some(text) if key == "arguments" => match serde_json::from_str::<Value>(text) {
                        Ok(inner) => blank(&inner).to_string().into(),
                        Err(_) => xs(text).into(),
                    },
                    _ => masked(value),
                };
                (key.clone(), value)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(all) => all.iter().map(masked).collect(),
        Value::String(text) => xs(text).into(),
        other => other.clone(),
    }
}

/// Values of a call without what they say.
fn blank(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), blank(value))).collect(),
        Value::Array(all) => all.iter().map(blank).collect(),
        Value::String(text) => xs(text).into(),
        Value::Number(_) => 0.into(),
        other => other.clone(),
    }
}

/// A text without what it says. The kind of an embedded picture stays, so that it still is one.
fn xs(text: &str) -> String {
    let head = if text.starts_with("data:") { text.find(',').map_or(0, |comma| comma + 1) } else { 0 };
    let x = |c: char| match c {
        c if c.is_numeric() => '0',
        c if c.is_uppercase() => 'X',
        c if c.is_alphabetic() => 'x',
        c => c,
    };
    text[..head].chars().chain(text[head..].chars().map(x)).collect()
}

/// The messages of a conversation as JSON Lines (<https://jsonlines.org>): each line is one message as its client sent it, so
/// that the lines make the `messages` of a request again. What is no JSON stands as a string.
pub fn jsonl<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut out = String::new();
    for raw in messages {
        match serde_json::from_slice::<&serde_json::value::RawValue>(raw) {
            // Line breaks stand between the parts of JSON alone: in a string they are escaped (RFC 8259, section 7).
            Ok(json) => out.extend(json.get().chars().filter(|c| !matches!(c, '\n' | '\r'))),
            Err(_) => out.push_str(&Value::from(String::from_utf8_lossy(raw)).to_string()),
        }
        out.push('\n');
    }
    out
}

/// The title of a conversation on one line.
pub fn heading(head: Head<'_>) -> String {
    let title = if head.title.trim().is_empty() { head.id } else { head.title };
    title.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is told of an edit right before the message at this index.
fn edited(edit: &Edit, at: usize) -> String {
    match edit {
        Edit::Fold { from, to, keep, brief, .. } if *to == at => {
            fold(*from, *to, keep, brief.chars().count()) + &fenced("", brief)
        }
        Edit::Text { at: of, record, .. } if *of == at => {
            format!("*Shortened in the prompt; `windowsill recall {record}`.*\n\n")
        }
        Edit::Arguments { at: of, record, .. } if *of == at => {
            format!("*Its arguments are shortened in the prompt; `windowsill recall {record}`.*\n\n")
        }
        Edit::Recalled { at: of, of: parts, .. } if *of == at => {
            let numbers: Vec<String> = parts.iter().map(usize::to_string).collect();
            format!("*In the prompt, parts of {} were recalled behind it.*\n\n", numbers.join(", "))
        }
        _ => String::new(),
    }
}

/// The line that marks a fold of the messages `from..to`, of which those in `keep` stay in the prompt. `brief_chars`: how long its
/// brief is.
pub fn fold(from: usize, to: usize, keep: &[usize], brief_chars: usize) -> String {
    let last = to.saturating_sub(1);
    let mut line =
        format!("---\n\n*Folded: messages {from} to {last} now stand as a brief of {brief_chars} characters");
    if !keep.is_empty() {
        let keep: Vec<String> = keep.iter().map(usize::to_string).collect();
        let _ = write!(line, "; still in full: {}", keep.join(", "));
    }
    line.push_str(".*\n\n---\n\n");
    line
}

/// One message under its heading. Never fails: what is not understood is printed as it came.
pub fn message(at: usize, role: &str, raw: &[u8]) -> String {
    let mut out = format!("## {at} · {role}");
    let Ok(value) = serde_json::from_slice::<Value>(raw) else {
        let _ = write!(out, "\n\n{}", fenced("", &String::from_utf8_lossy(raw)));
        return out;
    };
    if let Some(name) = value.get("name").and_then(Value::as_str).filter(|n| !n.is_empty()) {
        let _ = write!(out, " · {}", one_line(name));
    }
    if let Some(id) = value.get("tool_call_id").and_then(Value::as_str).filter(|n| !n.is_empty()) {
        let _ = write!(out, " · answers {}", one_line(id));
    }
    out.push_str("\n\n");
    let text = content(&value);
    let text = text.trim_end();
    if role == "tool" || role == "function" {
        out.push_str(&fenced("", text));
    } else if !text.is_empty() {
        let _ = write!(out, "{text}\n\n");
    }
    for call in calls(&value) {
        out.push_str(&fenced("json", &serde_json::to_string_pretty(&call).unwrap_or_default()));
    }
    out
}

/// All that a message says, on lines of its own: for snippets.
pub fn plain(raw: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(raw) else {
        return String::from_utf8_lossy(raw).into_owned();
    };
    let mut text = content(&value);
    for call in calls(&value) {
        let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
        let arguments = call.get("arguments").map(Value::to_string).unwrap_or_default();
        let _ = write!(text, "\n{name} {arguments}");
    }
    text
}

/// The text of `content`: a string, or parts. A part that is not text is named with its size.
fn content(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

fn part(part: &Value) -> String {
    match part.get("text").and_then(Value::as_str).or_else(|| part.as_str()) {
        Some(text) => text.to_owned(),
        None => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("part");
            format!("[{}, {} bytes]", one_line(kind), part.to_string().len())
        }
    }
}

/// Tool calls as `{"id", "name", "arguments"}`, the arguments as JSON where they are.
fn calls(message: &Value) -> Vec<Value> {
    let listed = message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let legacy = message.get("function_call").map(|call| (None, call));
    let calls = listed.iter().map(|call| (call.get("id"), call.get("function").unwrap_or(call))).chain(legacy);
    calls
        .filter(|(_, function)| function.is_object())
        .map(|(id, function)| {
            let mut out = serde_json::Map::new();
            if let Some(id) = id {
                out.insert("id".into(), id.clone());
            }
            out.insert("name".into(), function.get("name").cloned().unwrap_or_default());
            let arguments = function.get("arguments").cloned().unwrap_or_default();
            let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
            out.insert("arguments".into(), parsed.unwrap_or(arguments));
            Value::Object(out)
        })
        .collect()
}

fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// A code block whose fence is longer than any run of backticks inside.
fn fenced(language: &str, text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat((longest + 1).max(3));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_message_keeps_its_shape_and_nothing_of_what_it_says() {
        let message = serde_json::json!({"role": "assistant", "content": "Tür 4711\n is open.", "reasoning_content": "Hm, 9",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"/home/ann\",\"line\":12}"}},
                {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{broken 1"}}]});
        let masked_one = masked(&message);
        assert_eq!(
            masked_one,
            serde_json::json!({"role": "assistant", "content": "Xxx 0000\n xx xxxx.", "reasoning_content": "Xx, 0",
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"/xxxx/xxx\",\"line\":0}"}},
                    {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{xxxxxx 0"}}]})
        );
        let parts = serde_json::json!({"role": "user", "content": [{"type": "text", "text": "Ann"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR9"}}, {"type": "image_url", "image_url": {"url": "data:nothing"}}]});
        let masked_parts = masked(&parts).to_string();
        assert!(
            masked_parts.contains("data:image/png;base64,xXXXX0") && masked_parts.contains("xxxx:xxxxxxx"),
            "{masked_parts}"
        );
        assert!(!masked_parts.contains("Ann"));
    }

    #[test]
    fn lines_are_the_messages_again() {
        let raw: [&[u8]; 3] =
            [b"{\n\t\"role\": \"user\",\r\n\t\"content\": \"a\\nb\\r \xe2\x80\xa8\"}", b"[1, 2]", b"\xffno JSON\n"];
        let lines = jsonl(raw);
        let read: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read[0], serde_json::json!({"role": "user", "content": "a\nb\r \u{2028}"}));
        assert_eq!(read[1..], [serde_json::json!([1, 2]), serde_json::json!("\u{fffd}no JSON\n")]);
        assert_eq!(jsonl([]), "");
    }

    #[test]
    fn hostile_text_stays_inside_its_fence() {
        let raw =
            serde_json::json!({"role": "tool", "tool_call_id": "a\nb", "content": "````\n# not a heading"}).to_string();
        let one = [Exported { at: 0, role: "tool", raw: raw.as_bytes() }];
        let out = markdown(Head { id: "c1", title: " \n" }, &one, None);
        assert!(out.starts_with("# c1\n\nConversation `c1`, 1 messages"), "{out}");
        assert!(out.ends_with("## 0 · tool · answers ab\n\n`````\n````\n# not a heading\n`````\n\n"), "{out}");
    }
}
