//! `tools` and `tool_choice`. Tools that Anthropic's own servers run are left out; those of Anthropic's that the client runs
//! ([`own`]) are functions like any.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::own;
use super::{Head, WireError, wrong};
use crate::wire::json;
use crate::wire::parts::blocks::tool_name;

/// What a message changes of the tools that are offered: a `tool_addition` or a `tool_removal`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Change {
    name: String,
    /// Offered from here on, or no longer.
    added: bool,
    /// The tool itself, where the message brings it.
    definition: Option<Value>,
}

impl Change {
    /// Reads the `tool` of such a block; `None` where it names none.
    pub(super) fn read(added: bool, tool: &Value) -> Option<Change> {
        let definition = tool.get("definition").filter(|definition| definition.is_object()).cloned();
        Some(Change { name: tool_name(tool)?.to_owned(), added, definition })
    }
}

/// What messages changed of the tools, as a compaction block says it: the last word on each.
pub(super) fn told(changes: &[Change]) -> Vec<Value> {
    let mut last: Vec<&Change> = Vec::new();
    for change in changes {
        last.retain(|known| known.name != change.name);
        last.push(change);
    }
    let one = |change: &Change| {
        let kind = if change.added { "tool_addition" } else { "tool_removal" };
        let tool = match change.definition.as_ref().filter(|_| change.added) {
            Some(definition) => json!({"type": "tool_definition", "definition": definition}),
            None => json!({"type": "tool_reference", "name": change.name}),
        };
        json!({"type": kind, "tool": tool})
    };
    last.into_iter().map(one).collect()
}

/// Writes the tools of a request into a chat completion request, as they are offered after its last message.
pub(super) fn translate(
    asked: &Map<String, Value>,
    Head { tools, changes, .. }: &Head,
    chat: &mut Map<String, Value>,
    warnings: &mut Vec<String>,
) -> Result<(), WireError> {
    let there = |key: &str| asked.get(key).filter(|v| !v.is_null());
    let tools = match tools {
        None => &[][..],
        Some(tools) => tools.as_array().ok_or_else(|| wrong("tools", "must be an array of tools"))?,
    };
    let offered = offered(tools, changes, warnings)?;
    let choice = there("tool_choice").map(|choice| chosen(choice, &offered, warnings));
    if offered.is_empty() {
        return Ok(());
    }
    chat.insert("tools".into(), offered.into());
    chat.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
    let single = there("tool_choice").and_then(|choice| choice.get("disable_parallel_tool_use")?.as_bool());
    chat.extend(single.map(|single| ("parallel_tool_calls".to_owned(), (!single).into())));
    Ok(())
}

/// `tool_choice` in the words of chat completions. A call that cannot be had is no reason to refuse the request: servers that
/// speak this dialect themselves pass over such a choice, too.
fn chosen(choice: &Value, offered: &[Value], warnings: &mut Vec<String>) -> Value {
    let kind = choice.get("type").unwrap_or(choice).as_str().unwrap_or_default();
    let name = choice.get("name").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "auto" => "auto".into(),
        "none" => "none".into(),
        "any" | "tool" if offered.is_empty() => {
            warnings.push("tool_choice asks for a call, and no tool is offered here".into());
            "auto".into()
        }
        "any" => "required".into(),
        "tool" if offered.iter().any(|tool| tool["function"]["name"] == name) => {
            json!({"type": "function", "function": {"name": name}})
        }
        "tool" => {
            warnings.push(format!("tool_choice asks for `{}`, which is not offered here", word(name)));
            "auto".into()
        }
        _ => {
            warnings.push("tool_choice is left out: its type must be `auto`, `any`, `tool` or `none`".into());
            "auto".into()
        }
    }
}

/// The tools of the request, less those that were taken back, with those that came with a message.
fn offered(tools: &[Value], changes: &[Change], warnings: &mut Vec<String>) -> Result<Vec<Value>, WireError> {
    let named = |tool: &Value| tool["name"].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<(String, Value)> = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        if let Some(tool) = self::tool(&format!("tools[{at}]"), tool, warnings)? {
            all.push((named(&tool["function"]), tool));
        }
    }
    let mut gone: Vec<&str> = Vec::new();
    for change in changes {
        gone.retain(|name| *name != change.name);
        if !change.added {
            gone.push(&change.name);
        } else if let Some(definition) = &change.definition {
            // What stands in the history is no reason to refuse it.
            let new = self::tool("tool_addition", definition, warnings).ok().flatten();
            all.retain(|(name, _)| new.is_none() || *name != change.name);
            all.extend(new.map(|tool| (change.name.clone(), tool)));
        }
    }
    all.retain(|(name, _)| !gone.contains(&name.as_str()));
    Ok(all.into_iter().map(|(_, tool)| tool).collect())
}

/// A name for a header.
fn word(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_graphic()).take(64).collect()
}

/// A tool as a function. `None` for one that Anthropic's servers run, which is told.
fn tool(place: &str, tool: &Value, warnings: &mut Vec<String>) -> Result<Option<Value>, WireError> {
    let nameless = |warnings: &mut Vec<String>| {
        warnings.push(format!("{place} is not offered: it must be an object with a name"));
        Ok(None)
    };
    let Some(fields) = tool.as_object() else { return nameless(warnings) };
    let schema = fields.get("input_schema").filter(|s| !s.is_null());
    let kind = fields.get("type").and_then(Value::as_str).filter(|kind| *kind != "custom");
    if let Some(kind) = kind.filter(|_| schema.is_none()) {
        let function = own::function(kind, fields);
        if function.is_none() {
            let name = tool_name(tool).unwrap_or(kind);
            let (name, kind) = (word(name), word(kind));
            warnings.push(format!("the tool `{name}` ({kind}) is not offered: no local server runs it"));
        }
        return Ok(function);
    }
    let Some(name) = fields.get("name").and_then(Value::as_str) else { return nameless(warnings) };
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
    Ok(Some(json::object([("type", "function".into()), ("function", function.into())])))
}
