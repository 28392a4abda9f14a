//! `tools` and `tool_choice`.

use serde_json::{Map, Value, json};

use super::{WireError, wrong};

/// Writes the tools of a request into a chat completion request.
pub(super) fn translate(asked: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    let there = |key: &str| asked.get(key).filter(|v| !v.is_null());
    let Some(tools) = there("tools") else {
        return match there("tool_choice").map(|c| c["type"].as_str().unwrap_or_default().to_owned()) {
            Some(kind) if kind == "any" || kind == "tool" => {
                Err(wrong("tool_choice", "asks for a call, and `tools` offers none"))
            }
            _ => Ok(()),
        };
    };
    let tools = tools.as_array().ok_or_else(|| wrong("tools", "must be an array of tools"))?;
    if tools.is_empty() {
        return Ok(());
    }
    let tools: Result<Vec<Value>, WireError> = tools.iter().enumerate().map(|(at, t)| tool(at, t)).collect();
    chat.insert("tools".into(), tools?.into());
    let Some(choice) = there("tool_choice") else { return Ok(()) };
    let said = match choice.get("type").and_then(Value::as_str) {
        Some("auto") => "auto".into(),
        Some("any") => "required".into(),
        Some("none") => "none".into(),
        Some("tool") => {
            let name = choice.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| wrong("tool_choice.name", "must be the name of a tool"))?;
            json!({"type": "function", "function": {"name": name}})
        }
        _ => return Err(wrong("tool_choice.type", "must be `auto`, `any`, `tool` or `none`")),
    };
    chat.insert("tool_choice".into(), said);
    if let Some(single) = choice.get("disable_parallel_tool_use").and_then(Value::as_bool) {
        chat.insert("parallel_tool_calls".into(), (!single).into());
    }
    Ok(())
}

fn tool(at: usize, tool: &Value) -> Result<Value, WireError> {
    let place = format!("tools[{at}]");
    let Some(fields) = tool.as_object() else { return Err(wrong(place, "must be an object")) };
    let name = fields.get("name").and_then(Value::as_str);
    let schema = fields.get("input_schema").filter(|s| !s.is_null());
    match fields.get("type").and_then(Value::as_str) {
        None | Some("custom") => {}
        // Kinds such as `bash_20250124` have no schema of their own: Claude was trained on it.
        Some(kind) if schema.is_none() => {
            let what = format!(
                "is a tool of Anthropic's (`{kind}`), which no local model or server has. Leave it out, or offer a tool of your own with an `input_schema`"
            );
            return Err(wrong(place, &what));
        }
        Some(_) => {}
    }
    let name = name.ok_or_else(|| wrong(format!("{place}.name"), "must be a string"))?;
    let schema = schema.cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !schema.is_object() {
        return Err(wrong(format!("{place}.input_schema"), "must be a JSON schema"));
    }
    let mut function = Map::new();
    function.insert("name".into(), name.into());
    if let Some(text) = fields.get("description").filter(|d| d.is_string()) {
        function.insert("description".into(), text.clone());
    }
    function.insert("parameters".into(), schema);
    if let Some(strict) = fields.get("strict").filter(|s| s.is_boolean()) {
        function.insert("strict".into(), strict.clone());
    }
    Ok(json!({"type": "function", "function": function}))
}
