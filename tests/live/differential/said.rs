//! What a reply says, of each dialect and however it was framed: enough to tell two replies apart.

use serde_json::Value;

use super::ask::Dialect;
use crate::support::http::Reply;

/// What is compared of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// The text, with calls of tools behind it.
    pub(crate) text: String,
    /// Why it ended, in the dialect's word.
    pub(crate) finish: String,
}

/// Reads a reply with status 200.
pub(crate) fn read(dialect: Dialect, reply: &Reply) -> Said {
    let events = objects(&reply.text);
    match dialect {
        Dialect::Chat => chat(&events),
        Dialect::Responses => responses(&events),
        Dialect::Messages => messages(&events),
        Dialect::Ollama | Dialect::Generate => ollama(&events),
    }
}

/// The JSON objects of a body: one, one a line, or one a `data:` line.
fn objects(text: &str) -> Vec<Value> {
    if let Ok(whole) = serde_json::from_str(text) {
        return vec![whole];
    }
    let data = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    data.filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn chat(events: &[Value]) -> Said {
    let (mut text, mut finish) = (String::new(), String::new());
    for event in events {
        let choice = &event["choices"][0];
        let said = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        text.push_str(said["content"].as_str().unwrap_or(""));
        for call in said["tool_calls"].as_array().into_iter().flatten() {
            text.push_str(call["function"]["name"].as_str().unwrap_or(""));
            text.push_str(call["function"]["arguments"].as_str().unwrap_or(""));
        }
        if let Some(word) = choice["finish_reason"].as_str() {
            word.clone_into(&mut finish);
        }
    }
    Said { text, finish }
}

fn responses(events: &[Value]) -> Said {
    let last = events.last().unwrap_or(&Value::Null);
    let reply = if last["response"].is_object() { &last["response"] } else { last };
    let mut text = String::new();
    for item in reply["output"].as_array().into_iter().flatten() {
        for part in item["content"].as_array().into_iter().flatten() {
            text.push_str(part["text"].as_str().unwrap_or(""));
        }
        text.push_str(item["name"].as_str().unwrap_or(""));
        text.push_str(item["arguments"].as_str().unwrap_or(""));
    }
    Said { text, finish: String::new() }
}

fn messages(events: &[Value]) -> Said {
    let (mut text, mut finish) = (String::new(), String::new());
    for event in events {
        for block in event["content"].as_array().into_iter().flatten() {
            text.push_str(block["text"].as_str().unwrap_or(""));
            text.push_str(block["name"].as_str().unwrap_or(""));
        }
        text.push_str(event["content_block"]["name"].as_str().unwrap_or(""));
        text.push_str(event["delta"]["text"].as_str().unwrap_or(""));
        for of in [event, &event["delta"]] {
            if let Some(word) = of["stop_reason"].as_str() {
                word.clone_into(&mut finish);
            }
        }
    }
    Said { text, finish }
}

fn ollama(events: &[Value]) -> Said {
    let (mut text, mut finish) = (String::new(), String::new());
    for event in events {
        text.push_str(event["message"]["content"].as_str().or(event["response"].as_str()).unwrap_or(""));
        for call in event["message"]["tool_calls"].as_array().into_iter().flatten() {
            text.push_str(call["function"]["name"].as_str().unwrap_or(""));
        }
        if let Some(word) = event["done_reason"].as_str() {
            word.clone_into(&mut finish);
        }
    }
    Said { text, finish }
}
