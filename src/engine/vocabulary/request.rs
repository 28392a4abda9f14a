//! Pure: a chat request as llama.cpp's reader takes it. Servers take looser ones: whatever of a message is no text is left out,
//! for it is counted apart, and what is missing is empty.

use serde_json::{Map, Value, json};

/// A chat request (OpenAI's shape), with what of it a template may see.
pub(super) fn plain(from: &Value) -> Value {
    let messages = from["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut out = Map::new();
    out.insert("messages".into(), messages.iter().map(message).collect());
    if let Some(tools) = from["tools"].as_array().filter(|tools| !tools.is_empty()) {
        out.insert("tools".into(), tools.iter().map(tool).collect());
    }
    out.insert("chat_template_kwargs".into(), Value::Object(kwargs(from)));
    if let Some(generate) = from["add_generation_prompt"].as_bool() {
        out.insert("add_generation_prompt".into(), generate.into());
    }
    if let Some(schema) = from.pointer("/response_format/json_schema/schema") {
        out.insert("json_schema".into(), schema.clone());
    }
    if let Some(last) = messages.last().filter(|last| !calls(last)) {
        let continues = match &from["continue_final_message"] {
            asked @ (Value::Bool(true) | Value::String(_)) => asked.clone(),
            // llama-server goes on with a reply that was begun.
            _ => (last["role"] == "assistant").into(),
        };
        out.insert("continue_final_message".into(), continues);
    }
    Value::Object(out)
}

/// The variables that a request gives the template.
fn kwargs(from: &Value) -> Map<String, Value> {
    let mut out = from["chat_template_kwargs"].as_object().cloned().unwrap_or_default();
    match from["reasoning_effort"].as_str() {
        Some("none") => {
            out.insert("enable_thinking".into(), false.into());
            out.shift_remove("reasoning_effort");
        }
        Some(effort) if !effort.is_empty() => {
            out.insert("reasoning_effort".into(), effort.into());
        }
        _ => {}
    }
    out
}

fn calls(message: &Value) -> bool {
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

fn message(from: &Value) -> Value {
    let mut out = Map::new();
    out.insert("role".into(), from["role"].as_str().unwrap_or_default().into());
    let content = match &from["content"] {
        Value::Array(parts) => Value::Array(parts.iter().filter_map(part).collect()),
        other => other.as_str().unwrap_or_default().into(),
    };
    out.insert("content".into(), content);
    for key in ["reasoning_content", "name", "tool_call_id"] {
        if let Some(text) = from[key].as_str().filter(|text| !text.is_empty()) {
            out.insert(key.into(), text.into());
        }
    }
    if calls(from) {
        out.insert("tool_calls".into(), from["tool_calls"].as_array().into_iter().flatten().map(call).collect());
    }
    Value::Object(out)
}

/// A part of a message, if it is text.
fn part(from: &Value) -> Option<Value> {
    let text = from.as_str().or_else(|| from["text"].as_str())?;
    Some(json!({"type": "text", "text": text}))
}

fn call(from: &Value) -> Value {
    let function = &from["function"];
    let name = function["name"].as_str().unwrap_or_default();
    let mut out = json!({"type": "function", "function": {"name": name, "arguments": function["arguments"].clone()}});
    if let Some(id) = from["id"].as_str().filter(|id| !id.is_empty()) {
        out["id"] = id.into();
    }
    out
}

fn tool(from: &Value) -> Value {
    let function = &from["function"];
    let mut out = json!({"name": function["name"].as_str().unwrap_or_default()});
    for key in ["description", "parameters"] {
        if let Some(value) = function.get(key).filter(|value| !value.is_null()) {
            out[key] = value.clone();
        }
    }
    json!({"type": "function", "function": out})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_would_refuse_is_left_out_or_empty() {
        let asked = json!({
            "model": "m", "temperature": 1, "reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": "low"},
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "a"}], "x": 1},
                {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            ],
            "tools": [{"function": {"name": "f", "description": null, "strict": true}}],
        });
        let plain = plain(&asked);
        assert_eq!(
            plain,
            json!({
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
                ],
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "chat_template_kwargs": {"enable_thinking": false},
            })
        );
    }

    #[test]
    fn a_reply_that_was_begun_is_gone_on_with() {
        let continued = |last: Value, asked: Value| {
            plain(&json!({"messages": [last], "continue_final_message": asked}))["continue_final_message"].clone()
        };
        assert_eq!(continued(json!({"role": "assistant", "content": "It"}), Value::Null), true);
        assert_eq!(continued(json!({"role": "assistant", "tool_calls": [{}]}), json!(true)), Value::Null);
        assert_eq!(continued(json!({"role": "user", "content": "b"}), Value::Null), false);
        assert_eq!(continued(json!({"role": "user", "content": "b"}), json!("content")), "content");
    }
}
