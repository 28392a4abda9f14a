//! Anthropic's own tools that the client runs: a request names them by a type, and a model of Anthropic's was trained on the
//! schema. Any other model is told what is public of it (platform.claude.com/docs: bash tool, text editor tool, memory tool,
//! computer use tool).

use serde_json::{Map, Value, json};

/// The function for a tool of a type such as `bash_20250124`; `None` for one that no client runs, or that is not known.
pub(super) fn function(kind: &str, tool: &Map<String, Value>) -> Option<Value> {
    let family = kind.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    let version: u32 = kind[family.len()..].trim_start_matches('_').parse().unwrap_or(u32::MAX);
    let (name, description, parameters) = match family {
        "bash" => ("bash", BASH.to_owned(), bash()),
        "text_editor" => {
            let name = if version < 20_250_429 { "str_replace_editor" } else { "str_replace_based_edit_tool" };
            (name, EDITOR.to_owned(), editor(version))
        }
        "memory" => ("memory", MEMORY.to_owned(), memory()),
        "computer" => ("computer", screen(tool), computer(version, tool)),
        _ => return None,
    };
    let name = tool.get("name").and_then(Value::as_str).unwrap_or(name);
    let description = tool.get("description").and_then(Value::as_str).unwrap_or(&description);
    Some(json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}))
}

const BASH: &str = "Runs a command in a bash shell that stays open between calls. `restart` starts the shell anew.";

const EDITOR: &str = "Views, creates and edits text files. `str_replace` replaces a text that stands in the file exactly once; \
                      `insert` puts a text behind a line.";

const MEMORY: &str = "Reads and writes files under /memories, which stay from one conversation to the next. Look there before a \
                      task, and note what will be needed again.";

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn number(description: &str) -> Value {
    json!({"type": "integer", "description": description})
}

fn point(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "description": description})
}

fn lines() -> Value {
    point("For `view`: the first and the last line to show, from 1; -1 is the end of the file.")
}

fn bash() -> Value {
    json!({"type": "object", "properties": {
        "command": text("The command to run. Required unless `restart` is true."),
        "restart": {"type": "boolean", "description": "Starts the shell anew."},
    }})
}

fn editor(version: u32) -> Value {
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    // The newer ones cannot undo.
    if version < 20_250_429 {
        commands.push("undo_edit");
    }
    let inserted = if version < 20_250_429 { "new_str" } else { "insert_text" };
    let mut properties = json!({
        "command": {"type": "string", "enum": commands},
        "path": text("Path of the file or directory."),
        "file_text": text("For `create`: the content of the file."),
        "old_str": text("For `str_replace`: the text to replace."),
        "new_str": text("For `str_replace`: the text in its place."),
        "insert_line": number("For `insert`: the line behind which the text is put; 0 is the beginning."),
        "view_range": lines(),
    });
    properties[inserted]["type"] = "string".into();
    let what = if inserted == "new_str" {
        "The text in the place of the old one, or to insert."
    } else {
        "For `insert`: the text."
    };
    properties[inserted]["description"] = what.into();
    json!({"type": "object", "properties": properties, "required": ["command", "path"]})
}

fn memory() -> Value {
    json!({"type": "object", "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": text("Path under /memories, for all commands but `rename`."),
        "view_range": lines(),
        "file_text": text("For `create`: the content of the file."),
        "old_str": text("For `str_replace`: the text to replace."),
        "new_str": text("For `str_replace`: the text in its place."),
        "insert_line": number("For `insert`: the line behind which the text is put; 0 is the beginning."),
        "insert_text": text("For `insert`: the text."),
        "old_path": text("For `rename`: the path as it is."),
        "new_path": text("For `rename`: the new path."),
    }, "required": ["command"]})
}

fn screen(tool: &Map<String, Value>) -> String {
    let size = |key: &str| tool.get(key).and_then(Value::as_u64);
    let of = match (size("display_width_px"), size("display_height_px")) {
        (Some(width), Some(height)) => format!(" of {width} × {height} pixels"),
        _ => String::new(),
    };
    format!("Uses the mouse and the keyboard of a computer, and takes pictures of its screen{of}.")
}

fn computer(version: u32, tool: &Map<String, Value>) -> Value {
    let mut actions = vec![
        "key",
        "type",
        "mouse_move",
        "left_click",
        "left_click_drag",
        "right_click",
        "middle_click",
        "double_click",
        "screenshot",
        "cursor_position",
    ];
    if version >= 20_250_124 {
        actions.extend(["left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click"]);
    }
    let zooms = version >= 20_251_124 && tool.get("enable_zoom").is_none_or(|zoom| *zoom == true);
    if zooms {
        actions.push("zoom");
    }
    let mut properties = json!({
        "action": {"type": "string", "enum": actions},
        "coordinate": point("Where: x and y, in pixels from the top left corner."),
        "start_coordinate": point("For `left_click_drag`: where it begins."),
        "text": text("For `type`: the text. For `key` and `hold_key`: the keys, such as `ctrl+s`."),
    });
    if version >= 20_250_124 {
        properties["scroll_direction"] = json!({"type": "string", "enum": ["up", "down", "left", "right"]});
        properties["scroll_amount"] = number("For `scroll`: how far.");
        properties["duration"] = json!({"type": "number", "description": "For `hold_key` and `wait`: seconds."});
    }
    if zooms {
        properties["region"] = json!({"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4,
            "description": "For `zoom`: x and y of the top left corner and of the bottom right one."});
    }
    json!({"type": "object", "properties": properties, "required": ["action"]})
}
