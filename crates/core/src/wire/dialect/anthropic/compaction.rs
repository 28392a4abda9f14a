//! Compaction blocks of a history: the last one stands for all that comes before it, in whatever message it is
//! (platform.claude.com/docs: compaction). One that failed (`content: null`) changes nothing, and neither does one without words,
//! which only its own server can read.

use serde_json::value::RawValue;

use super::super::Compaction;
use super::super::spelled::{Item, each, given};
use crate::wire::json::Fields;

/// The last compaction of a history that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// The message that it stands in, and which of its blocks it is.
    pub(super) at: usize,
    pub(super) block: usize,
    /// What it says, and its mark; empty where it has none of ours.
    pub(super) stands: Compaction,
    /// Whether it says which tools are offered behind it.
    pub(super) tells_tools: bool,
}

/// Looks for the last compaction in `messages`, an array as it is spelled. Says in `warnings` what cannot be read.
pub(super) fn last(messages: &str, warnings: &mut Vec<String>) -> Option<Cut> {
    memchr::memmem::find(messages.as_bytes(), b"\"compaction\"")?;
    let (mut found, mut opaque) = (None, 0);
    let _ = each(messages, |at, item| {
        let Item::Object(message) = item else { return Ok(()) };
        let content = given(&message, "content").unwrap_or_default();
        for (block, raw) in parts(content).into_iter().enumerate() {
            let Ok(fields) = Fields::read(raw) else { continue };
            if fields.string("type").as_deref() != Some("compaction") {
                continue;
            }
            let stands = read(&fields);
            opaque += usize::from(stands.text.is_empty() && given(&fields, "encrypted_content").is_some());
            if !stands.text.is_empty() {
                let tells_tools = given(&fields, "tool_changes").is_some();
                found = Some(Cut { at, block, stands, tells_tools });
            }
        }
        Ok(())
    });
    if opaque > 0 {
        warnings.push("a compaction without words is left out: only the server that made it can read it".into());
    }
    found
}

/// What a block says, and its mark. Streams of Anthropic's bring no `signature`, so that ours stands in both fields.
fn read(block: &Fields<'_>) -> Compaction {
    let text = block.string("content").filter(|text| !text.trim().is_empty()).unwrap_or_default();
    let marks = ["signature", "encrypted_content"].iter().filter_map(|key| block.string(key));
    let mark = marks.into_iter().find(|mark| crate::wire::compacted::is_mark(mark)).unwrap_or_default();
    Compaction { mark, text }
}

/// The blocks of a content, as they are spelled.
fn parts(content: &str) -> Vec<&str> {
    if content.starts_with('{') {
        return vec![content];
    }
    let all: Vec<&RawValue> = serde_json::from_str(content).unwrap_or_default();
    all.into_iter().map(RawValue::get).collect()
}

/// A content without its first blocks, up to and with this one.
pub(super) fn behind(content: &str, block: usize) -> String {
    let rest = parts(content);
    format!("[{}]", rest.get(block + 1..).unwrap_or_default().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(messages: &str) -> (Option<Cut>, usize) {
        let mut warnings = Vec::new();
        let found = last(messages, &mut warnings);
        (found, warnings.len())
    }

    #[test]
    fn the_last_one_that_says_something_counts() {
        let messages = r#"[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"compaction","content":"one","tool_changes":[]},
            {"type":"text","text":"b"},{"type":"compaction","content":"two","signature":"EqQB"},{"type":"text","text":"c"}]},
            {"role":"assistant","content":[{"type":"compaction","content":null}]},{"role":"assistant","content":[{"type":"compaction","content":""}]}]"#;
        let (cut, warned) = found(messages);
        let stands = Compaction { mark: String::new(), text: "two".into() };
        assert_eq!((cut, warned), (Some(Cut { at: 1, block: 2, stands, tells_tools: false }), 0));
        assert_eq!(behind(r#"[{"a":1}, "b",{"c":[2]}]"#, 0), r#"["b",{"c":[2]}]"#);
        assert_eq!(behind(r#"{"a":1}"#, 0), "[]");
    }

    #[test]
    fn what_only_its_own_server_can_read_is_told() {
        let opaque =
            r#"[{"role":"assistant","content":[{"type":"compaction","content":null,"encrypted_content":"EqQB"}]}]"#;
        assert_eq!(found(opaque), (None, 1));
        assert_eq!(found(r#"[{"role":"user","content":"\"compaction\""}]"#), (None, 0));
        assert_eq!(found("[3"), (None, 0));
    }
}
