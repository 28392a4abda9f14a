//! Blocks that no local server reads, as text: documents, and what a cloud's own servers wrote into a history (searches, fetched
//! pages, runs of code, calls of MCP tools, compactions). The names are those of Anthropic's Messages API, as its Python SDK
//! has them (`anthropic` 2.14, `types/beta/*_block_param.py`). A block of a kind that is not known says its name and its size.

use base64::Engine as _;
use serde_json::Value;

use super::{Kind, Said, of_base64, size};
use crate::wire::json::{self, Fields};

/// What a block says, and what it was where something of it is lost.
pub fn told(raw: &str) -> (Option<Kind>, String) {
    let Ok(fields) = Fields::read(raw) else { return unknown("", raw) };
    let kind = fields.string("type").unwrap_or_default();
    match kind.as_str() {
        "document" => document(&fields),
        "image" => {
            let id =
                fields.get("source").and_then(|source| Fields::read(source).ok()).and_then(|s| s.string("file_id"));
            let id = id.map(|id| format!(" {id}")).unwrap_or_default();
            (Some(Kind::Picture), format!("[image{id}: it is kept elsewhere, and cannot be read here; in the record]"))
        }
        "container_upload" => {
            let id = fields.string("file_id").unwrap_or_default();
            (Some(Kind::Document), format!("[file {id}: uploaded to a cloud's container, and cannot be read here]"))
        }
        // They steer a cloud's server, or can be read there alone, and say nothing to a model.
        "thinking" | "redacted_thinking" | "fallback" | "mcp_tool_listing" => (None, String::new()),
        _ => match json::value(raw) {
            Ok(block) => block_of(&kind, &block, raw),
            Err(_) => unknown(&kind, raw),
        },
    }
}

fn block_of(kind: &str, block: &Value, raw: &str) -> (Option<Kind>, String) {
    let text = |key: &str| block[key].as_str().unwrap_or_default();
    match kind {
        "text" => (None, text("text").to_owned()),
        // As OpenAI's API has them.
        "" | "input_text" | "output_text" if block["text"].is_string() => (None, text("text").to_owned()),
        "compaction" => (None, text("content").to_owned()),
        "search_result" | "tool_reference" | "browser_state" => (None, walked(block)),
        "server_tool_use" => (Some(Kind::Block), called(text("name"), &block["input"])),
        "mcp_tool_use" => {
            (Some(Kind::Block), called(&format!("{}/{}", text("server_name"), text("name")), &block["input"]))
        }
        "tool_use" => (None, called(text("name"), &block["input"])),
        "tool_addition" | "tool_removal" => (None, change(kind, &block["tool"])),
        _ if kind.ends_with("tool_result") => {
            let lost = (kind != "tool_result").then_some(Kind::Block);
            let what = kind.trim_end_matches("tool_result").trim_end_matches('_');
            let head = if what.is_empty() { "result".to_owned() } else { format!("{what} result") };
            let said = failed(walked(&block["content"]), block["is_error"] == true);
            (lost, format!("[{head}]\n{said}").trim_end().to_owned())
        }
        _ => unknown(kind, raw),
    }
}

fn unknown(kind: &str, raw: &str) -> (Option<Kind>, String) {
    let kind: String = kind.chars().filter(|c| c.is_alphanumeric() || "_-.".contains(*c)).take(60).collect();
    let what = if kind.is_empty() { "a part".to_owned() } else { format!("a part of type {kind}") };
    (Some(Kind::Block), format!("[{what}, {}: this server cannot read it; in the record]", size(raw.len())))
}

/// A call in one line: its name and the one text that it was made with, else all of its input.
fn called(name: &str, input: &Value) -> String {
    let only = match input.as_object() {
        Some(fields) if fields.is_empty() => return format!("[{name}]"),
        Some(fields) if fields.len() == 1 => fields.values().next().and_then(Value::as_str),
        _ => None,
    };
    format!("[{name}: {}]", only.map_or_else(|| input.to_string(), str::to_owned))
}

/// That a tool is offered from here on, or no longer.
fn change(kind: &str, tool: &Value) -> String {
    let name = tool_name(tool).unwrap_or("a tool");
    match kind {
        "tool_removal" => format!("[the tool {name} is not available from here on]"),
        _ => format!("[the tool {name} is available from here on]"),
    }
}

/// The name of the tool that a `tool_addition` or a `tool_removal` is about.
pub fn tool_name(tool: &Value) -> Option<&str> {
    let definition = &tool["definition"];
    let servers = [&definition["mcp_server_name"], &tool["mcp_server_name"], &tool["server_name"]];
    let names = [&definition["name"], &tool["name"]].into_iter().chain(servers);
    names.into_iter().find_map(Value::as_str)
}

/// The text of a result, which begins with `Error:` where the call failed, unless it says so itself.
pub fn failed(text: String, is_error: bool) -> String {
    if !is_error || says_so(&text) {
        return text;
    }
    if text.trim().is_empty() { "Error: the call failed and said nothing.".into() } else { format!("Error: {text}") }
}

fn says_so(text: &str) -> bool {
    let text = text.trim_start();
    let begins = text.get(..5).is_some_and(|word| word.eq_ignore_ascii_case("error"));
    begins && !text[5..].starts_with(|c: char| c.is_alphanumeric() || c == '_') || text.starts_with("<tool_use_error>")
}

/// Fields that hold what only a cloud can read, or that say nothing to a model.
const SILENT: [&str; 10] = [
    "type",
    "encrypted_content",
    "encrypted_stdout",
    "encrypted_index",
    "signature",
    "cache_control",
    "citations",
    "caller",
    "page_age",
    "tool_use_id",
];

/// What a nested value says, in lines: its texts and those of what is in it.
fn walked(value: &Value) -> String {
    let mut lines = Vec::new();
    walk(value, &mut lines);
    lines.join("\n")
}

fn walk(value: &Value, lines: &mut Vec<String>) {
    let push = |lines: &mut Vec<String>, text: &str| {
        if !text.trim().is_empty() {
            lines.push(text.to_owned());
        }
    };
    match value {
        Value::String(text) => push(lines, text),
        Value::Array(items) => items.iter().for_each(|item| walk(item, lines)),
        Value::Object(fields) => {
            let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
            if matches!(kind, "document" | "image") {
                return push(lines, &told(&value.to_string()).1);
            }
            let titled =
                ["title", "url", "source"].map(|key| fields.get(key).and_then(Value::as_str).unwrap_or_default());
            push(lines, &titled.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": "));
            for (key, inner) in fields.iter().filter(|(key, _)| !SILENT.contains(&key.as_str())) {
                match (key.as_str(), inner) {
                    ("title" | "url" | "source", Value::String(_)) => {}
                    ("text" | "content" | "stdout" | "stderr" | "data" | "lines" | "tool_name" | "name", _) => {
                        walk(inner, lines)
                    }
                    (_, Value::Array(_) | Value::Object(_)) => walk(inner, lines),
                    (_, Value::Null) => {}
                    (_, Value::String(text)) => push(lines, &format!("{key}: {text}")),
                    (_, other) => push(lines, &format!("{key}: {other}")),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A document: text is told as text, behind its title and context; of anything else a line says what it was.
fn document(fields: &Fields<'_>) -> (Option<Kind>, String) {
    let title = fields.string("title").filter(|title| !title.is_empty());
    let source = fields.get("source").and_then(|source| Fields::read(source).ok());
    let of = |key: &str| source.as_ref().and_then(|source| source.string(key));
    let context = fields.string("context");
    let behind = |text: String| {
        let lines = [title.clone(), context.clone(), Some(text)].into_iter().flatten();
        (None, lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n"))
    };
    let kept = |what: &str, why: &str| {
        let name = title.as_deref().map(|title| format!(" {title},")).unwrap_or_default();
        (Some(Kind::Document), format!("[document{name} {what}: {why}; in the record]"))
    };
    match of("type").as_deref() {
        Some("text") => behind(of("data").unwrap_or_default()),
        Some("content") => {
            let content = source.as_ref().and_then(|source| json::value(source.get("content")?).ok());
            behind(walked(&content.unwrap_or_default()))
        }
        Some("url") => kept(&of("url").unwrap_or_default(), "this server fetches no documents"),
        Some("base64") => {
            let (media_type, data) = (of("media_type").unwrap_or_default(), of("data").unwrap_or_default());
            match (Source { name: title.as_deref(), media_type: &media_type, data: &data }).said() {
                Said::Line(kind, line) => (Some(kind), line),
                Said::Text(text) => (None, text),
                Said::Same(_) | Said::Other(_) => (None, String::new()),
            }
        }
        _ => kept(&of("file_id").unwrap_or_default(), "it is kept elsewhere, and cannot be read here"),
    }
}

/// A file with its payload in base64.
pub(super) struct Source<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) media_type: &'a str,
    pub(super) data: &'a str,
}

impl Source<'_> {
    pub(super) fn said(&self) -> Said {
        let name = self.name.unwrap_or_default();
        if let Some(text) = self.text() {
            return Said::Text(if name.is_empty() { text } else { format!("{name}\n{text}") });
        }
        let is_pdf = self.media_type == "application/pdf" || name.to_ascii_lowercase().ends_with(".pdf");
        let why = if is_pdf { "this server reads no PDFs" } else { "this server reads no such files" };
        let space = if name.is_empty() { "" } else { " " };
        let size = if self.data.is_empty() { String::new() } else { format!(", {}", size(of_base64(self.data))) };
        Said::Line(Kind::Document, format!("[document{space}{name}{size}: {why}; in the record]"))
    }

    /// What it says, where it is text.
    fn text(&self) -> Option<String> {
        let is_text = self.media_type.starts_with("text/")
            || ["json", "xml", "yaml", "toml", "javascript"].iter().any(|kind| {
                self.media_type
                    .strip_prefix("application/")
                    .is_some_and(|rest| rest.split('+').any(|part| part.ends_with(kind)))
            });
        let bytes = base64::engine::general_purpose::STANDARD.decode(self.data).ok().filter(|_| is_text)?;
        String::from_utf8(bytes).ok()
    }
}
