//! `tools` and `tool_choice`: what the model may call, as functions.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::wrong;
use super::{given, list_if, object_if, path, text, text_if};

/// What a call must say of its tool besides the name, so that the client knows it again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Special {
    /// Takes free text rather than JSON.
    pub(super) custom: bool,
    /// The group it came in. Codex looks a tool up by both names.
    pub(super) namespace: Option<String>,
}

/// The tools of a request.
pub(super) struct Offered {
    /// `tools` of chat completions.
    pub(super) chat: Vec<Value>,
    /// `tool_choice` of chat completions.
    pub(super) choice: Option<Value>,
    /// The tools that are not just functions, by name.
    pub(super) special: HashMap<String, Special>,
}

struct Tool {
    name: String,
    special: Special,
    chat: Value,
}

pub(super) fn read(fields: &Map<String, Value>) -> Result<Offered, WireError> {
    let mut tools = Vec::new();
    add(list_if(fields, "", "tools")?, "tools", None, &mut tools)?;
    let (allowed, choice) = match given(fields, "tool_choice") {
        None => (None, None),
        Some(Value::String(mode)) if ["auto", "none", "required"].contains(&mode.as_str()) => {
            (None, Some(mode.as_str()))
        }
        Some(Value::Object(choice)) => match text(choice, "tool_choice", "type")? {
            "function" | "custom" => {
                let name = known(&tools, choice, "tool_choice")?;
                return Ok(offered(tools, Some(json!({"type": "function", "function": {"name": name}}))));
            }
            "allowed_tools" => {
                let mode = text(choice, "tool_choice", "mode")?;
                if !["auto", "required"].contains(&mode) {
                    return Err(wrong("tool_choice.mode", "must be \"auto\" or \"required\""));
                }
                (Some(allowed(&tools, choice)?), Some(mode))
            }
            _ => {
                let what = "forces a tool that runs at OpenAI; a local server has none of these. Give a function, or \
                            \"auto\"";
                return Err(wrong("tool_choice", what));
            }
        },
        Some(_) => return Err(wrong("tool_choice", "must be \"auto\", \"none\", \"required\" or an object")),
    };
    if let Some(allowed) = allowed {
        tools.retain(|tool| allowed.contains(&tool.name));
    }
    if choice == Some("required") && tools.is_empty() {
        return Err(wrong("tool_choice", "forces a call, but `tools` has no function or custom tool to call"));
    }
    Ok(offered(tools, choice.map(Value::from)))
}

fn offered(tools: Vec<Tool>, choice: Option<Value>) -> Offered {
    let mut out = Offered { chat: Vec::new(), choice, special: HashMap::new() };
    for tool in tools {
        out.chat.push(tool.chat);
        if tool.special != Special::default() {
            out.special.insert(tool.name, tool.special);
        }
    }
    out
}

/// Adds the tools of a list. Where two have the same name the first one counts: a chat completion has no namespaces.
fn add(list: &[Value], at: &str, namespace: Option<&str>, tools: &mut Vec<Tool>) -> Result<(), WireError> {
    for (nth, tool) in list.iter().enumerate() {
        let at = format!("{at}[{nth}]");
        let Value::Object(tool) = tool else { return Err(wrong(at, "must be an object")) };
        let custom = match text(tool, &at, "type")? {
            "function" => false,
            "custom" => true,
            "namespace" if namespace.is_none() => {
                let name = text(tool, &at, "name")?;
                add(list_if(tool, &at, "tools")?, &path(&at, "tools"), Some(name), tools)?;
                continue;
            }
            // Runs at OpenAI.
            _ => continue,
        };
        let name = text(tool, &at, "name")?.to_owned();
        let chat = if custom { free(tool, &name, &at)? } else { function(tool, &name, &at)? };
        if !tools.iter().any(|tool| tool.name == name) {
            tools.push(Tool { name, special: Special { custom, namespace: namespace.map(str::to_owned) }, chat });
        }
    }
    Ok(())
}

fn function(tool: &Map<String, Value>, name: &str, at: &str) -> Result<Value, WireError> {
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    if let Some(about) = text_if(tool, at, "description")? {
        out.insert("description".into(), about.into());
    }
    // Many templates look into the parameters without asking whether there are any.
    let parameters = object_if(tool, at, "parameters")?.cloned().map(Value::Object);
    out.insert("parameters".into(), parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})));
    if let Some(strict) = given(tool, "strict") {
        out.insert("strict".into(), strict.clone());
    }
    Ok(json!({"type": "function", "function": out}))
}

/// A tool that takes free text, as a function of one string. A grammar cannot be enforced; the model can read it.
fn free(tool: &Map<String, Value>, name: &str, at: &str) -> Result<Value, WireError> {
    let mut input = json!({"type": "string"});
    if let Some(format) = object_if(tool, at, "format")? {
        let at = path(at, "format");
        if let Some(grammar) = text_if(format, &at, "definition")? {
            let syntax = text_if(format, &at, "syntax")?.unwrap_or("the");
            input["description"] = format!("Text of this {syntax} grammar:\n{grammar}").into();
        }
    }
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    if let Some(about) = text_if(tool, at, "description")? {
        out.insert("description".into(), about.into());
    }
    out.insert("parameters".into(), json!({"type": "object", "properties": {"input": input}, "required": ["input"]}));
    Ok(json!({"type": "function", "function": out}))
}

fn known<'a>(tools: &[Tool], choice: &'a Map<String, Value>, at: &str) -> Result<&'a str, WireError> {
    let name = text(choice, at, "name")?;
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(name);
    }
    Err(wrong(path(at, "name"), "must be the name of a function or custom tool in `tools`"))
}

/// The names that `allowed_tools` allows.
fn allowed(tools: &[Tool], choice: &Map<String, Value>) -> Result<Vec<String>, WireError> {
    let mut out = Vec::new();
    for (nth, tool) in list_if(choice, "tool_choice", "tools")?.iter().enumerate() {
        let at = format!("tool_choice.tools[{nth}]");
        let Value::Object(tool) = tool else { return Err(wrong(at, "must be an object")) };
        match text(tool, &at, "type")? {
            "function" | "custom" => out.push(known(tools, tool, &at)?.to_owned()),
            "namespace" => {
                let name = text(tool, &at, "name")?;
                let members = tools.iter().filter(|tool| tool.special.namespace.as_deref() == Some(name));
                out.extend(members.map(|tool| tool.name.clone()));
            }
            // Left out of the tools as well.
            _ => {}
        }
    }
    Ok(out)
}
