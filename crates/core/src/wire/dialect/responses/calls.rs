//! Tools that the client runs itself: the functions that they are to a model, and their calls as items, both ways.
//!
//! The schemas are those of OpenAI's own API (types of its SDK 3.57). Nothing is said of an argument that the client left
//! out, so that a call which comes back is said in the words in which the model made it.

use serde_json::{Map, Value, json};

use super::super::super::json::Fields;
use super::super::spelled::{given, value};

/// What a tool is to its client, which decides how its calls are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Takes JSON arguments.
    #[default]
    Function,
    /// Takes free text.
    Custom,
    /// One command, as a list of words.
    LocalShell,
    /// Commands, each a line for a shell.
    Shell,
    /// Edits of files.
    ApplyPatch,
    /// Looks for tools that are not offered yet.
    ToolSearch,
    /// Mouse and keyboard, several actions at once.
    Computer,
    /// The same, one action at once.
    ComputerPreview,
}

impl Form {
    /// The form of a tool that the client runs, by the `type` in `tools` or in `tool_choice`. What runs at OpenAI has none.
    pub(super) fn of_tool(kind: &str) -> Option<Form> {
        Some(match kind {
            "function" => Form::Function,
            "custom" => Form::Custom,
            "local_shell" => Form::LocalShell,
            "shell" => Form::Shell,
            "apply_patch" => Form::ApplyPatch,
            "tool_search" => Form::ToolSearch,
            "computer" | "computer_use" => Form::Computer,
            "computer_use_preview" => Form::ComputerPreview,
            _ => return None,
        })
    }

    /// The form of a call in the history, by the item's `type`.
    pub(super) fn of_call(kind: &str) -> Option<Form> {
        Some(match kind {
            "function_call" => Form::Function,
            "custom_tool_call" => Form::Custom,
            "local_shell_call" => Form::LocalShell,
            "shell_call" => Form::Shell,
            "apply_patch_call" => Form::ApplyPatch,
            "tool_search_call" => Form::ToolSearch,
            "computer_call" => Form::Computer,
            _ => return None,
        })
    }

    /// The `type` of its calls, and what their ids begin with.
    pub(super) fn item(self) -> (&'static str, &'static str) {
        match self {
            Form::Function => ("function_call", "fc"),
            Form::Custom => ("custom_tool_call", "ctc"),
            Form::LocalShell => ("local_shell_call", "lsh"),
            Form::Shell => ("shell_call", "sh"),
            Form::ApplyPatch => ("apply_patch_call", "apc"),
            Form::ToolSearch => ("tool_search_call", "tsc"),
            Form::Computer | Form::ComputerPreview => ("computer_call", "cu"),
        }
    }

    /// The name of a tool that has none of its own.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Form::Function | Form::Custom => None,
            Form::LocalShell => Some("local_shell"),
            Form::Shell => Some("shell"),
            Form::ApplyPatch => Some("apply_patch"),
            Form::ToolSearch => Some("tool_search"),
            Form::Computer | Form::ComputerPreview => Some("computer"),
        }
    }

    /// What a model is told of a tool that has no schema of its own: a description and parameters.
    pub(super) fn schema(self) -> Option<(&'static str, Value)> {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        let whole = json!({"type": "integer"});
        let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required});
        Some(match self {
            Form::Function | Form::Custom | Form::ToolSearch => return None,
            Form::LocalShell => (
                "Runs a command on the user's computer and returns its output. `command` is the program and its arguments, such as [\"bash\", \"-lc\", \"ls -l\"].",
                object(
                    json!({"command": texts, "working_directory": {"type": "string"}, "timeout_ms": whole,
                        "env": {"type": "object", "additionalProperties": {"type": "string"}}, "user": {"type": "string"}}),
                    json!(["command"]),
                ),
            ),
            Form::Shell => (
                "Runs shell commands, one after the other, and returns what each prints and its exit code.",
                object(
                    json!({"commands": texts, "timeout_ms": whole, "max_output_length": whole}),
                    json!(["commands"]),
                ),
            ),
            Form::ApplyPatch => (
                "Creates, changes or deletes one file. `diff` holds the lines of the new file, each after `+`, or the changes: lines to keep after a space, to remove after `-`, to add after `+`, parts of the file behind lines that begin with `@@`. No diff to delete a file.",
                object(
                    json!({"type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                        "path": {"type": "string"}, "diff": {"type": "string"}}),
                    json!(["type", "path"]),
                ),
            ),
            Form::Computer => {
                (COMPUTER, object(json!({"actions": {"type": "array", "items": action()}}), json!(["actions"])))
            }
            Form::ComputerPreview => (COMPUTER, object(json!({"action": action()}), json!(["action"]))),
        })
    }

    /// The arguments of a call in the history.
    pub(super) fn arguments(self, item: &Fields<'_>) -> String {
        let raw = |key: &str| given(item, key).map(str::to_owned);
        let text = |key: &str| {
            given(item, key).map(|raw| super::super::super::json::string(raw).unwrap_or_else(|| raw.to_owned()))
        };
        let arguments = match self {
            // Servers read the arguments as JSON, and some fail on nothing at all.
            Form::Function | Form::ToolSearch => text("arguments").filter(|text| !text.trim().is_empty()),
            Form::Custom => Some(json!({"input": text("input").unwrap_or_default()}).to_string()),
            Form::LocalShell => raw("action").map(|action| without(&action, &["type"])),
            Form::Shell => raw("action").map(|action| without(&action, &[])),
            Form::ApplyPatch => raw("operation"),
            Form::Computer | Form::ComputerPreview => {
                ["actions", "action"].iter().find_map(|key| raw(key).map(|actions| format!("{{\"{key}\":{actions}}}")))
            }
        };
        arguments.unwrap_or_else(|| "{}".into())
    }

    /// The fields of a call's item that say what is called, from the arguments that a model gave. Arguments that are no JSON,
    /// or lack what must be there, call for nothing: half a command is not run. An item that is announced holds no text yet.
    pub(super) fn fields(self, arguments: &str, filled: bool) -> Map<String, Value> {
        let mut given = match serde_json::from_str(if self.waits() { arguments } else { "" }) {
            Ok(Value::Object(given)) => given,
            _ => Map::new(),
        };
        // Models that were trained on an item put its field around the arguments.
        let around = ["action", "operation"]
            .into_iter()
            .find(|key| given.len() == 1 && given.get(*key).is_some_and(Value::is_object));
        if let (Some(key), false) = (around, matches!(self, Form::Computer | Form::ComputerPreview | Form::ToolSearch))
            && let Some(Value::Object(inner)) = given.shift_remove(key)
        {
            given = inner;
        }
        let said = match self {
            Form::Function => json!({"arguments": if filled { arguments } else { "" }}),
            Form::Custom => json!({"input": if filled { free_text(arguments) } else { String::new() }}),
            Form::LocalShell => json!({"action": command(given)}),
            Form::Shell => {
                let commands = given.shift_remove("commands").or_else(|| given.shift_remove("command"));
                let whole = |key: &str| given.get(key).filter(|n| n.is_u64()).cloned().unwrap_or_default();
                json!({"action": {"commands": texts(commands), "max_output_length": whole("max_output_length"),
                    "timeout_ms": whole("timeout_ms")}})
            }
            Form::ApplyPatch => {
                let text = |key: &str| given.get(key).and_then(Value::as_str).unwrap_or_default();
                let mut operation = json!({"type": "update_file", "path": text("path"), "diff": text("diff")});
                match text("type") {
                    "delete_file" => operation = json!({"type": "delete_file", "path": text("path")}),
                    "create_file" => operation["type"] = "create_file".into(),
                    _ => {}
                }
                json!({"operation": operation})
            }
            Form::ToolSearch => json!({"execution": "client", "arguments": given}),
            Form::Computer => {
                let one = given.shift_remove("action").map(|action| json!([action]));
                let actions = given.shift_remove("actions").filter(Value::is_array).or(one);
                json!({"actions": actions.unwrap_or_else(|| json!([])), "pending_safety_checks": []})
            }
            Form::ComputerPreview => {
                let first = given.shift_remove("actions").and_then(|mut all| all.get_mut(0).map(Value::take));
                let action = given.shift_remove("action").or(first).unwrap_or_else(|| json!({"type": "screenshot"}));
                json!({"action": action, "pending_safety_checks": []})
            }
        };
        match said {
            Value::Object(said) => said,
            _ => Map::new(),
        }
    }

    /// Whether the item is told when its arguments are whole, and not before.
    pub(super) fn waits(self) -> bool {
        !matches!(self, Form::Function | Form::Custom)
    }
}

const COMPUTER: &str = "Uses the mouse and the keyboard of a computer and returns a picture of its screen.";

fn action() -> Value {
    let kinds = ["click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait"];
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let whole = json!({"type": "integer"});
    let point = json!({"type": "object", "properties": {"x": whole, "y": whole}});
    json!({"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": kinds}, "x": whole,
        "y": whole, "button": {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]},
        "keys": texts, "text": {"type": "string"}, "scroll_x": whole, "scroll_y": whole,
        "path": {"type": "array", "items": point}}})
}

/// The action of a local shell: one line is one for bash.
fn command(mut given: Map<String, Value>) -> Map<String, Value> {
    let command = match given.shift_remove("command") {
        Some(Value::String(line)) => json!(["bash", "-lc", line]),
        words => texts(words),
    };
    let env = given.shift_remove("env").filter(Value::is_object).unwrap_or_else(|| json!({}));
    let mut action = Map::from_iter([("type".to_owned(), json!("exec")), ("command".to_owned(), command)]);
    action.insert("env".into(), env);
    let known = |key: &str| ["timeout_ms", "user", "working_directory"].contains(&key);
    action.extend(given.into_iter().filter(|(key, _)| known(key)));
    action
}

/// A list of texts, also where a model gave one text.
fn texts(given: Option<Value>) -> Value {
    match given {
        Some(Value::String(one)) => json!([one]),
        Some(Value::Array(all)) => all.into_iter().filter(Value::is_string).collect(),
        _ => json!([]),
    }
}

/// An object without these fields, and without what says nothing.
fn without(object: &str, fields: &[&str]) -> String {
    match value(object) {
        Ok(Value::Object(mut all)) => {
            let says = |value: &Value| !value.is_null() && value.as_object().is_none_or(|inner| !inner.is_empty());
            all.retain(|key, value| says(value) && !fields.contains(&key.as_str()));
            Value::Object(all).to_string()
        }
        _ => object.to_owned(),
    }
}

/// The text in the arguments of a call of a custom tool. Models that give it another name, or no name at all, meant the
/// same.
pub(super) fn free_text(arguments: &str) -> String {
    let text = match serde_json::from_str(arguments) {
        Ok(Value::String(text)) => Some(text),
        Ok(Value::Object(fields)) if fields.is_empty() => Some(String::new()),
        Ok(Value::Object(fields)) => {
            let only = fields.values().next().filter(|_| fields.len() == 1);
            fields.get("input").or(only).and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    };
    text.unwrap_or_else(|| arguments.to_owned())
}
