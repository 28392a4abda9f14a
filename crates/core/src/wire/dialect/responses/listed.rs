//! Messages of the record as items of the Responses API: what a client that has its history kept here gets to see of it.

use serde_json::{Value, json};

/// How the words begin that stand in a user message and are not the user's.
const REMINDER: &str = "<system-reminder>\n";

/// The items of one message, as it stands in the record. `id` is what their ids are made of. A message that is no JSON has none.
pub fn items(raw: &[u8], id: &str) -> Vec<Value> {
    let Ok(message) = serde_json::from_slice::<Value>(raw) else { return Vec::new() };
    let text = |key: &str| message[key].as_str().unwrap_or_default();
    match text("role") {
        "assistant" => of_assistant(&message, id),
        "tool" => {
            let output = match &message["content"] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            vec![json!({"id": format!("fco_{id}"), "type": "function_call_output", "status": "completed",
                "call_id": text("tool_call_id"), "output": output})]
        }
        role => {
            let role = if matches!(role, "system" | "developer") { role } else { "user" };
            vec![json!({"id": format!("msg_{id}"), "type": "message", "status": "completed", "role": role,
                "content": content(&message["content"])})]
        }
    }
}

/// What people said in a history, as items.
pub fn of_user<'a>(messages: impl Iterator<Item = &'a [u8]>, id: &str) -> Vec<Value> {
    let is_said = |item: &Value| {
        let first = item["content"][0]["text"].as_str().unwrap_or_default();
        item["role"] == "user" && !first.starts_with(REMINDER)
    };
    let all = messages.enumerate().flat_map(|(at, raw)| items(raw, &format!("{id}_{at}")));
    all.filter(is_said).collect()
}

fn of_assistant(message: &Value, id: &str) -> Vec<Value> {
    let mut out = Vec::new();
    let thought = ["reasoning_content", "reasoning", "thinking"].iter().find_map(|key| message[key].as_str());
    if let Some(thought) = thought.filter(|thought| !thought.is_empty()) {
        out.push(json!({"id": format!("rs_{id}"), "type": "reasoning", "summary": [],
            "content": [{"type": "reasoning_text", "text": thought}]}));
    }
    let said = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    };
    if !said.is_empty() {
        let part = json!({"type": "output_text", "text": said, "annotations": [], "logprobs": []});
        out.push(json!({"id": format!("msg_{id}"), "type": "message", "status": "completed", "role": "assistant",
            "content": [part]}));
    }
    for (nth, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let text = |key: &str| call["function"][key].as_str().unwrap_or_default();
        out.push(json!({"id": format!("fc_{id}_{nth}"), "type": "function_call", "status": "completed",
            "call_id": call["id"].as_str().unwrap_or_default(), "name": text("name"), "arguments": text("arguments")}));
    }
    out
}

/// The parts of what a user said.
fn content(said: &Value) -> Vec<Value> {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    match said {
        Value::String(said) => vec![text(said)],
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part["type"].as_str() {
                Some("image_url") => json!({"type": "input_image", "image_url": part["image_url"]["url"],
                    "detail": part["image_url"]["detail"].as_str().unwrap_or("auto")}),
                Some("input_audio") => part.clone(),
                _ => text(part["text"].as_str().unwrap_or_default()),
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_listed_as_items() {
        let of = |message: Value| items(message.to_string().as_bytes(), "x");
        let kinds =
            |items: &[Value]| items.iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let said = of(json!({"role": "assistant", "content": "Hi", "reasoning_content": "hm", "tool_calls": [call]}));
        assert_eq!(kinds(&said), ["reasoning", "message", "function_call"]);
        assert_eq!(
            (&said[2]["call_id"], &said[2]["name"], &said[2]["id"]),
            (&json!("c1"), &json!("f"), &json!("fc_x_0"))
        );
        let result = of(json!({"role": "tool", "tool_call_id": "c1", "content": "18"}));
        assert_eq!((&result[0]["call_id"], &result[0]["output"]), (&json!("c1"), &json!("18")));
        let parts = json!([{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:,"}}]);
        let seen = of(json!({"role": "user", "content": parts}));
        assert_eq!(seen[0]["content"][1], json!({"type": "input_image", "image_url": "data:,", "detail": "auto"}));
        assert!(items(b"no", "x").is_empty());
        let reminder = json!({"role": "user", "content": "<system-reminder>\nno\n</system-reminder>"}).to_string();
        let user = json!({"role": "user", "content": "Hi"}).to_string();
        let all = [reminder.as_bytes(), user.as_bytes()];
        assert_eq!(of_user(all.into_iter(), "x").len(), 1);
    }
}
