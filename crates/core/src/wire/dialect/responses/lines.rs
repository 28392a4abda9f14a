//! What a local server cannot be told in its own words, said in a line: what it was and what it said.
//!
//! Media have one place, [`media`], so that it is said alike everywhere.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::super::super::json::Fields;
use super::super::spelled::value;

/// Characters of one text in a line, and of a whole line: the item itself is in the record.
const LONGEST_TEXT: usize = 2_000;
const LONGEST_LINE: usize = 8_000;

/// Fields that say nothing to a model: what an item is called, and what only its maker can read.
const MUTE: [&str; 9] =
    ["type", "id", "status", "encrypted_content", "fingerprint", "container_id", "caller", "created_by", "svg_usage"];

/// The line for an item or a part of this type.
pub(super) fn line(kind: &str, item: &Fields<'_>) -> String {
    let mut fields = Map::new();
    for (key, raw) in item.0.iter().filter(|(key, _)| !MUTE.contains(&&**key)) {
        fields.insert(key.clone().into_owned(), value(raw.get()).unwrap_or_default());
    }
    // A call that failed says so; one that is done goes without saying.
    let status = item.string("status").filter(|status| !matches!(status.as_str(), "completed" | ""));
    let status = status.map(|status| format!(" {}", clipped(&status, 40))).unwrap_or_default();
    let kind = clipped(kind, 80);
    match plain(Value::Object(fields)) {
        Some(said) => format!("[{kind}{status}: {}]", clipped(&said.to_string(), LONGEST_LINE)),
        None => format!("[{kind}{status}]"),
    }
}

/// A value without what says nothing, its texts cut.
fn plain(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) if is_data(&text) => Some(format!("{} bytes of data", text.len()).into()),
        Value::String(text) => Some(clipped(&text, LONGEST_TEXT).into()),
        Value::Array(all) => {
            let all: Vec<Value> = all.into_iter().filter_map(plain).collect();
            (!all.is_empty()).then(|| all.into())
        }
        Value::Object(all) => {
            let all = all.into_iter().filter(|(key, _)| !key.starts_with("encrypted"));
            let all: Map<String, Value> = all.filter_map(|(key, value)| Some((key, plain(value)?))).collect();
            (!all.is_empty()).then(|| all.into())
        }
        other => Some(other),
    }
}

/// Whether a text is no words: a data URL, or long and of the letters of base64 alone.
fn is_data(text: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_');
    text.starts_with("data:") || text.len() > 512 && text.bytes().all(is_base64)
}

/// The beginning of a text, with a sign where it was cut.
fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The line for media that cannot be given to a server, or that are not there: what they are, how they are called, and where.
pub(super) fn media(what: &str, name: &str, kept: Option<&str>) -> String {
    let name = if name.is_empty() { String::new() } else { format!(" {}", clipped(name, 200)) };
    match kept {
        Some(id) => format!("[{what}{name}, kept elsewhere as {}: it cannot be read here]", clipped(id, 200)),
        None => format!("[{what}{name}: it cannot be read here]"),
    }
}

/// A file part: its text where it is one, else a line.
pub(super) fn file(part: &Fields<'_>) -> String {
    let name = part.string("filename").unwrap_or_default();
    if let Some(data) = part.string("file_data").filter(|data| !data.is_empty()) {
        if let Some(text) = text_of(&data) {
            return format!("[file {}]\n{text}", if name.is_empty() { "without a name" } else { &name });
        }
        return media(&format!("file of {} bytes", data.len() / 4 * 3), &name, None);
    }
    let kept = ["file_url", "file_id"].into_iter().find_map(|key| part.string(key));
    media("file", &name, kept.as_deref())
}

/// The text in a data URL, where it holds one.
fn text_of(data: &str) -> Option<String> {
    let (head, data) = data.strip_prefix("data:")?.split_once(";base64,")?;
    let kind = head.split(';').next().unwrap_or_default();
    let is_text = kind.starts_with("text/") || matches!(kind, "application/json" | "application/xml");
    if !is_text {
        return None;
    }
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}
