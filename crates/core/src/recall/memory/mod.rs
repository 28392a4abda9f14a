//! The memory tool that windowsill runs itself: its definition, what a call asks for, which paths it may name, and how the text of a
//! file is shown and edited. Commands, answers and errors are those of Anthropic's memory tool `memory_20250818`, as its page and
//! the SDKs' own `BetaLocalFilesystemMemoryTool` have them (anthropic 2.12.0, `lib/tools/_beta_builtin_memory_tool.py`).
//!
//! Pure: nothing here looks at a file.

mod path;
mod text;

use serde_json::{Map, Value};

use crate::wire::openai_chat::Request;

pub use path::{Place, ROOT};
pub use text::{Entry, directory, inserted, numbered, replaced};

/// The tool's name: not Anthropic's own, for a client may have a tool of that name which it runs itself.
pub const NAME: &str = "windowsill_memory";

/// The tool as it stands behind the client's own. These bytes are part of every prompt of a conversation that has the tool: to
/// change them makes the server evaluate all of these prompts once more.
pub const DEFINITION: &str = r#"{"type":"function","function":{"name":"windowsill_memory","description":"Files below /memories that stay from one conversation to the next. View /memories before you begin, to see what was noted before; note there what is worth knowing in later conversations. Commands: view (path, view_range), create (path, file_text), str_replace (path, old_str, new_str), insert (path, insert_line, insert_text), delete (path), rename (old_path, new_path).","parameters":{"type":"object","properties":{"command":{"type":"string","enum":["view","create","str_replace","insert","delete","rename"]},"path":{"type":"string"},"view_range":{"type":"array","items":{"type":"integer"},"description":"first and last line, from 1; -1 for the end"},"file_text":{"type":"string"},"old_str":{"type":"string"},"new_str":{"type":"string"},"insert_line":{"type":"integer","description":"insert behind this line; 0 for the beginning"},"insert_text":{"type":"string"},"old_path":{"type":"string"},"new_path":{"type":"string"}},"required":["command"]}}}"#;

/// Bytes that a file may have.
pub const LARGEST_FILE: usize = 256 * 1024;

/// Bytes that all files of one memory may have together.
pub const LARGEST_MEMORY: u64 = 16 << 20;

/// Files and directories that one memory may hold.
pub const MOST_FILES: usize = 1_000;

/// Whether a model that writes this name means the tool.
pub fn is_ours(name: &str) -> bool {
    super::is_named(name, NAME)
}

/// Has a request offer the tool. Returns false where it cannot: without tools of its own, and where the client has a memory tool.
pub fn offer(request: &mut Request) -> bool {
    let own = request.own_tools().filter(|own| !has_memory(own));
    let Some(tools) = own.and_then(|own| super::with_tool(own, DEFINITION, NAME)) else { return false };
    request.list_more(tools);
    true
}

/// Whether a client's tools hold a memory tool of its own. Anthropic's becomes a function of this name
/// (`crate::wire::dialect::anthropic`).
fn has_memory(tools: &[u8]) -> bool {
    let all: Vec<Value> = serde_json::from_slice(tools).unwrap_or_default();
    all.iter().filter_map(|tool| tool.pointer("/function/name")?.as_str()).any(|name| super::is_named(name, "memory"))
}

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Shows a file with line numbers, or what a directory holds.
    View {
        /// What is shown.
        path: Place,
        /// First and last line, from 1; a last line of -1 stands for the end.
        range: Option<(i64, i64)>,
    },
    /// Makes a file that is not there yet.
    Create {
        /// Where.
        path: Place,
        /// Its whole text.
        text: String,
    },
    /// Replaces a text that stands in a file once.
    Replace {
        /// The file.
        path: Place,
        /// What is replaced.
        old: String,
        /// What stands there then.
        new: String,
    },
    /// Inserts a text behind a line.
    Insert {
        /// The file.
        path: Place,
        /// The line; 0 for the beginning.
        line: i64,
        /// What is inserted.
        text: String,
    },
    /// Deletes a file, or a directory with all that it holds.
    Delete {
        /// What is deleted.
        path: Place,
    },
    /// Moves a file or a directory to where nothing is.
    Rename {
        /// From where.
        old: Place,
        /// To where.
        new: Place,
    },
}

impl Command {
    /// Reads the arguments of a call.
    ///
    /// # Errors
    /// In words for the model: for what is no command, a field that is missing, or a path that leads elsewhere.
    pub fn read(arguments: &str) -> Result<Command, String> {
        let fields: Map<String, Value> = serde_json::from_str(arguments).map_err(|_| {
            "the arguments are no JSON object; send {\"command\": \"view\", \"path\": \"/memories\"}".to_owned()
        })?;
        let text = |key: &str| match fields.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("`{key}` must be a text")),
            None => Err(format!("`{key}` is missing")),
        };
        // An empty text is often left out.
        let or_empty =
            |key: &str| if fields.get(key).is_none_or(Value::is_null) { Ok(String::new()) } else { text(key) };
        let path = |key: &str| text(key).and_then(|path| Place::read(&path));
        match text("command")?.as_str() {
            "view" => Ok(Command::View { path: path("path")?, range: range(fields.get("view_range"))? }),
            "create" => Ok(Command::Create { path: path("path")?, text: small(or_empty("file_text")?)? }),
            "str_replace" => {
                Ok(Command::Replace { path: path("path")?, old: text("old_str")?, new: small(or_empty("new_str")?)? })
            }
            "insert" => {
                let line = whole(fields.get("insert_line")).ok_or("`insert_line` must be a whole number")?;
                Ok(Command::Insert { path: path("path")?, line, text: small(text("insert_text")?)? })
            }
            "delete" => Ok(Command::Delete { path: path("path")? }),
            "rename" => Ok(Command::Rename { old: path("old_path")?, new: path("new_path")? }),
            other => {
                let other: String = other.chars().take(40).collect();
                Err(format!(
                    "Unknown command: {other}. Commands are view, create, str_replace, insert, delete, rename."
                ))
            }
        }
    }
}

/// A text that a file may hold.
///
/// # Errors
/// With the numbers, where it is too long.
pub fn small(text: String) -> Result<String, String> {
    match text.len() {
        0..=LARGEST_FILE => Ok(text),
        many => Err(format!("a memory file may have {LARGEST_FILE} bytes, and this would have {many}")),
    }
}

fn whole(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn range(value: Option<&Value>) -> Result<Option<(i64, i64)>, String> {
    let wrong = || "`view_range` must be two whole numbers, such as [1, 40]".to_owned();
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(ends)) if ends.is_empty() => Ok(None),
        Some(Value::Array(ends)) => match ends.as_slice() {
            [from, to] => Ok(Some((whole(Some(from)).ok_or_else(wrong)?, whole(Some(to)).ok_or_else(wrong)?))),
            _ => Err(wrong()),
        },
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::recall::AtHead;

    #[test]
    fn the_tool_stands_behind_the_clients_unless_it_has_a_memory_of_its_own() {
        let with = |tools: &str| {
            let body = format!(r#"{{"tools":{tools},"messages":[]}}"#);
            crate::wire::openai_chat::parse(&Bytes::from(body)).unwrap()
        };
        let mut request = with(r#"[{"type":"function","function":{"name":"f"}}]"#);
        assert!(offer(&mut request) && request.changes_tools());
        let all = request.own_tools().unwrap().clone();
        let read: Vec<Value> = serde_json::from_slice(&all).unwrap();
        assert_eq!((read.len(), &read[1]["function"]["name"]), (2, &Value::from(NAME)));
        assert!(!offer(&mut request), "never twice");
        let both = AtHead { done: true, memory: true };
        let bare = with(r#"[{"type":"function","function":{"name":"f"}}]"#);
        let mut request = bare.clone();
        assert_eq!(both.offer(&mut request), both);
        let all = request.own_tools().unwrap().clone();
        assert_eq!(&both.without(&all), bare.own_tools().unwrap());
        assert!(both.definitions().all(|ours| String::from_utf8_lossy(&all).contains(ours)));
        both.withdraw(&mut request);
        assert_eq!((request.own_tools(), request.changes_tools()), (bare.own_tools(), false));
        for own in [
            r#"[{"type":"function","function":{"name":"memory"}}]"#,
            r#"[{"type":"function","function":{"name":"Memory"}}]"#,
            "[]",
        ] {
            assert!(!offer(&mut with(own)), "{own}");
        }
    }

    #[test]
    fn calls_are_read_as_models_write_them() {
        let place = |path: &str| Place::read(path).unwrap();
        for (arguments, is) in [
            (r#"{"command":"view","path":"/memories"}"#, Command::View { path: place("/memories"), range: None }),
            (
                r#"{"command":"view","path":"/memories/a","view_range":[2,"-1"]}"#,
                Command::View { path: place("/memories/a"), range: Some((2, -1)) },
            ),
            (
                r#"{"command":"create","path":"/memories/a","file_text":null}"#,
                Command::Create { path: place("/memories/a"), text: String::new() },
            ),
            (
                r#"{"command":"str_replace","path":"/memories/a","old_str":"x"}"#,
                Command::Replace { path: place("/memories/a"), old: "x".into(), new: String::new() },
            ),
            (
                r#"{"command":"insert","path":"/memories/a","insert_line":"3","insert_text":"y"}"#,
                Command::Insert { path: place("/memories/a"), line: 3, text: "y".into() },
            ),
            (
                r#"{"command":"rename","old_path":"/memories/a","new_path":"/memories/b/c"}"#,
                Command::Rename { old: place("/memories/a"), new: place("/memories/b/c") },
            ),
        ] {
            assert_eq!(Command::read(arguments), Ok(is), "{arguments}");
        }
        for (arguments, says) in [
            ("x", "no JSON object"),
            ("[]", "no JSON object"),
            ("{}", "`command` is missing"),
            (r#"{"command":"run","path":"/memories"}"#, "Unknown command: run"),
            (r#"{"command":"view"}"#, "`path` is missing"),
            (r#"{"command":"view","path":7}"#, "`path` must be a text"),
            (r#"{"command":"view","path":"/etc"}"#, "must start with /memories"),
            (r#"{"command":"view","path":"/memories/a","view_range":[1]}"#, "two whole numbers"),
            (r#"{"command":"insert","path":"/memories/a","insert_text":"y"}"#, "`insert_line`"),
            (r#"{"command":"rename","old_path":"/memories/a"}"#, "`new_path` is missing"),
        ] {
            let said = Command::read(arguments).unwrap_err();
            assert!(said.contains(says), "{arguments}: {said}");
        }
        let long =
            serde_json::json!({"command": "create", "path": "/memories/a", "file_text": "x".repeat(LARGEST_FILE + 1)});
        assert!(Command::read(&long.to_string()).unwrap_err().contains("262145"));
    }
}
