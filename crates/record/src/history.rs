//! A conversation's folded messages as Markdown, for people and agents that open files.
//!
//! The file is generated from the record and only ever grows; how far it goes is committed with the fold.

use std::fmt::Write as _;
use std::io::{BufWriter, Seek, Write as _};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::{Edit, View};

use super::files::Files;
use super::schema::{file_error, sqlite_error};
use super::types::{ConversationRow, Error, NodeRow};

/// Ids of the nodes of a history from the given depth on, the deepest first. Ids only: messages can be large.
pub(super) const WALK: &str = "WITH RECURSIVE up(id, parent, depth) AS (
        SELECT id, parent, depth FROM node WHERE chain = ?1
        UNION ALL
        SELECT n.id, n.parent, n.depth FROM up JOIN node n ON n.id = up.parent WHERE up.depth > ?2 + 1
    )
    SELECT id, depth FROM up WHERE depth > ?2";

/// The chain digests of a history, the deepest first.
pub(super) const CHAIN: &str = "WITH RECURSIVE up(chain, parent) AS (
        SELECT chain, parent FROM node WHERE chain = ?1
        UNION ALL
        SELECT n.chain, n.parent FROM up JOIN node n ON n.id = up.parent
    )
    SELECT chain FROM up";

/// A fold as the file tells of it.
pub(super) struct Fold<'a> {
    /// First folded message.
    pub(super) from: usize,
    /// One past the last.
    pub(super) to: usize,
    /// Messages inside that stay in the prompt.
    pub(super) keep: &'a [usize],
    /// Length of the brief.
    pub(super) brief_chars: usize,
}

/// Appends the folded messages that are not in the file yet, and a line that marks the fold.
pub(super) fn append(
    conn: &Connection,
    path: &Path,
    files: &Files,
    conversation: i64,
    chain: &Digest,
    fold: &Fold<'_>,
    durable: bool,
) -> Result<(), Error> {
    let wrap = |e| sqlite_error(path, e);
    let sql = "SELECT name, title, history_to, history_bytes FROM conversation WHERE id = ?1";
    let head = conn.query_row(sql, [conversation], |r| {
        Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?, r.get::<_, usize>(2)?, r.get::<_, u64>(3)?))
    });
    let (name, title, done, bytes) = head.map_err(wrap)?;
    let start = fold.from.max(done);
    if fold.to <= start {
        return Ok(());
    }
    let mut nodes = walk(conn, chain, start).map_err(wrap)?;
    nodes.retain(|(_, depth)| *depth <= fold.to);
    if nodes.is_empty() {
        tracing::warn!(conversation = name, "folded messages are not recorded: the history file stays as it is");
        return Ok(());
    }
    let (file_path, file, end) = files.open_history(&name, bytes)?;
    let io = |e| file_error(&file_path, e);
    let mut out = BufWriter::new(file);
    if end == 0 {
        out.write_all(header(&name, &title).as_bytes()).map_err(io)?;
    }
    for (id, depth) in nodes {
        let sql = "SELECT role, raw FROM node WHERE id = ?1";
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, String>(0)?, r.get::<_, Vec<u8>>(1)?));
        if let Some((role, raw)) = conn.query_row(sql, [id], row).optional().map_err(wrap)? {
            out.write_all(message(depth - 1, &role, &raw).as_bytes()).map_err(io)?;
            files.watch.at("a history: some of it is written");
        }
    }
    out.write_all(mark(fold).as_bytes()).map_err(io)?;
    let mut file = out.into_inner().map_err(|e| io(e.into_error()))?;
    let bytes = file.stream_position().map_err(io)?;
    files.watch.at("a history: written");
    if durable {
        files.sync_history(&file).map_err(io)?;
    }
    let sql = "UPDATE conversation SET history_to = ?2, history_bytes = ?3 WHERE id = ?1";
    conn.execute(sql, params![conversation, fold.to, bytes]).map_err(wrap)?;
    Ok(())
}

/// A conversation from its first message to its last, with the fold in force marked, and the edits of single messages.
pub(super) fn whole(row: &ConversationRow, messages: &[NodeRow], view: Option<&View>) -> String {
    let edits = view.map(|v| v.edits.as_slice()).unwrap_or_default();
    let fold = edits.iter().find_map(|edit| match edit {
        Edit::Fold { from, to, keep, brief, .. } => {
            Some((Fold { from: *from, to: *to, keep, brief_chars: brief.chars().count() }, brief))
        }
        _ => None,
    });
    let title = if row.title.trim().is_empty() { &row.id } else { &row.title };
    let mut out = format!(
        "# {}\n\nConversation `{}`, {} messages, as the client sent them. Numbers count from 0; leading system messages \
         are not counted.\n\n",
        title.split_whitespace().collect::<Vec<_>>().join(" "),
        row.id,
        messages.len()
    );
    for node in messages {
        if let Some((fold, brief)) = fold.as_ref().filter(|(fold, _)| fold.to == node.at) {
            out.push_str(&mark(fold));
            out.push_str(&fenced("", brief));
        }
        for edit in edits {
            match edit {
                Edit::Text { at, record, .. } if *at == node.at => {
                    let _ = write!(out, "*Shortened in the prompt; `windowsill recall {record}`.*\n\n");
                }
                Edit::Arguments { at, record, .. } if *at == node.at => {
                    let _ =
                        write!(out, "*Its arguments are shortened in the prompt; `windowsill recall {record}`.*\n\n");
                }
                Edit::Recalled { at, of, .. } if *at == node.at => {
                    let numbers: Vec<String> = of.iter().map(usize::to_string).collect();
                    let _ =
                        write!(out, "*In the prompt, parts of {} were recalled behind it.*\n\n", numbers.join(", "));
                }
                _ => {}
            }
        }
        out.push_str(&message(node.at, &node.role, &node.raw));
    }
    out
}

/// Nodes of the history that ends in `chain`, deeper than `above`, in order: row and depth.
pub(super) fn walk(conn: &Connection, chain: &Digest, above: usize) -> rusqlite::Result<Vec<(i64, usize)>> {
    let mut statement = conn.prepare_cached(WALK)?;
    let rows = statement.query_map(params![chain.0, super::read::bounded(above)], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let mut nodes = rows.collect::<rusqlite::Result<Vec<(i64, usize)>>>()?;
    nodes.reverse();
    Ok(nodes)
}

fn header(name: &str, title: &str) -> String {
    let title = if title.trim().is_empty() { name } else { title };
    format!(
        "# {}\n\nConversation `{name}`: messages that left the prompt, as the client sent them. Numbers count from 0; \
         leading system messages are not counted.\n\n",
        title.split_whitespace().collect::<Vec<_>>().join(" ")
    )
}

fn mark(fold: &Fold<'_>) -> String {
    let Fold { from, to, keep, brief_chars } = fold;
    let mut line =
        format!("---\n\n*Folded: messages {from} to {} now stand as a brief of {brief_chars} characters", to - 1);
    if !keep.is_empty() {
        let keep: Vec<String> = keep.iter().map(usize::to_string).collect();
        let _ = write!(line, "; still in full: {}", keep.join(", "));
    }
    line.push_str(".*\n\n---\n\n");
    line
}

/// One message under its heading. Never fails: what is not understood is printed as it came.
fn message(at: usize, role: &str, raw: &[u8]) -> String {
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
pub(super) fn plain(raw: &[u8]) -> String {
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
