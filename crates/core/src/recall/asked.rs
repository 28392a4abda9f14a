//! What a call of the recall tool asks for. Models write arguments in many wrong ways; what can be understood is, and for
//! the rest there are words that help the model to do better.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use super::page::Span;

/// Longest arguments that are read, in bytes. A call needs some dozen.
const LONGEST: usize = 16 * 1024;

/// Longest query, in characters.
const QUERY: usize = 400;

/// A record's id wherever it stands: bare, behind `windowsill recall`, as the name of a file.
static RECORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:^|[^0-9A-Za-z_])(r[0-9a-f]{12,64})(?:$|[^0-9A-Za-z_])").expect("it is a constant")
});

/// Some messages by number: `12-40`, `12..40`, `messages 12 to 40`.
static RANGE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:messages?\s+)?#?(\d{1,9})\s*(?:-|–|\.\.|to)\s*#?(\d{1,9})$").expect("it is a constant")
});

/// What one call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// One text.
    Text(Reference, Span),
    /// What holds these words.
    Search(String, Span),
    /// Nothing that can be understood.
    Unclear,
}

/// Which text is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A record by its id.
    Record(String),
    /// A message by its index in the conversation, and the conversation, where that is named.
    Message(Option<String>, usize),
    /// Messages from one index to another, both included.
    Messages(Option<String>, usize, usize),
    /// Nothing that looks like an id.
    Other(String),
}

/// The question of a call that names a record and wants to know something of it, instead of reading it.
pub fn question(arguments: &str) -> Option<(String, String)> {
    if arguments.len() > LONGEST {
        return None;
    }
    let Asked::Text(Reference::Record(id), _) = Asked::read(arguments) else { return None };
    let value: Value = serde_json::from_str(arguments).ok()?;
    let asked = value.get("question").and_then(Value::as_str).map(str::trim).filter(|asked| !asked.is_empty())?;
    Some((id, asked.to_owned()))
}

impl Asked {
    /// Reads the arguments of a call as the model wrote them.
    pub fn read(arguments: &str) -> Asked {
        if arguments.len() > LONGEST {
            return Asked::Unclear;
        }
        let text = arguments.trim();
        match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(map)) => Asked::of_object(&map),
            // Spelled as a string once too often, or without the object.
            Ok(Value::String(inner)) if inner.trim_start().starts_with('{') => Asked::read(&inner),
            Ok(Value::String(inner)) => Asked::of_words(&inner, Span::default()),
            Ok(_) => Asked::Unclear,
            // Broken JSON: what can be made out of it.
            Err(_) => match RECORD.captures(text) {
                Some(found) => Asked::Text(Reference::Record(found[1].to_owned()), Span::default()),
                None => Asked::of_words(&without_marks(text), Span::default()),
            },
        }
    }

    fn of_object(map: &Map<String, Value>) -> Asked {
        // Some wrap the arguments once more.
        if let Some(Value::Object(inner)) =
            ["arguments", "parameters", "input", "args"].iter().find_map(|k| map.get(*k))
        {
            return Asked::of_object(inner);
        }
        let text = |keys: &[&str]| {
            keys.iter().filter_map(|k| map.get(*k)).find_map(|value| match value {
                Value::String(s) if !s.trim().is_empty() => Some(s.trim().to_owned()),
                Value::Number(n) => Some(n.to_string()),
                Value::Array(items) => items.first().and_then(Value::as_str).map(str::to_owned),
                _ => None,
            })
        };
        let number = |keys: &[&str]| keys.iter().filter_map(|k| map.get(*k)).find_map(whole_number);
        let span = Span {
            offset: number(&["offset", "start", "from", "line", "start_line"]),
            limit: number(&["limit", "lines", "count", "max", "max_lines"]),
        };
        let id = text(&["id", "record", "record_id", "ID", "ref", "path", "file"]);
        let query = text(&["query", "q", "search", "term", "text", "keywords", "pattern"]);
        match (id.map(|id| Reference::read(&id)), query) {
            (Some(Reference::Other(_)) | None, Some(query)) => Asked::of_words(&query, span),
            (Some(reference), _) => Asked::Text(reference, span),
            (None, None) => Asked::Unclear,
        }
    }

    fn of_words(text: &str, span: Span) -> Asked {
        match Reference::read(text) {
            Reference::Record(id) if text.trim() == id => Asked::Text(Reference::Record(id), span),
            _ if text.chars().any(char::is_alphanumeric) => {
                Asked::Search(text.trim().chars().take(QUERY).collect(), span)
            }
            _ => Asked::Unclear,
        }
    }
}

impl Reference {
    /// Reads an id, wherever it stands in a text.
    pub fn read(text: &str) -> Reference {
        if let Some(found) = RECORD.captures(text) {
            return Reference::Record(found[1].to_owned());
        }
        let bare = text.trim().trim_start_matches("windowsill recall").trim();
        let numbered = |conversation: Option<&str>, text: &str| {
            let conversation = conversation.map(str::to_owned);
            let text = text.trim();
            if let Some(found) = RANGE.captures(text) {
                return Some(Reference::Messages(conversation, found[1].parse().ok()?, found[2].parse().ok()?));
            }
            let single = text.trim_start_matches("message").trim_start().trim_start_matches('#');
            Some(Reference::Message(conversation, index(single)?))
        };
        let of = |(conversation, text): (&str, &str)| {
            (!conversation.contains(['/', '\\', ' '])).then(|| numbered(Some(conversation), text)).flatten()
        };
        numbered(None, bare)
            .or_else(|| bare.rsplit_once(':').and_then(of))
            .unwrap_or_else(|| Reference::Other(bare.chars().take(QUERY).collect()))
    }
}

/// The index of a message. One that is too large for any number is that of no message.
fn index(digits: &str) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(usize::MAX))
}

/// A number, also where it is spelled as a string.
fn whole_number(value: &Value) -> Option<i64> {
    let float = match value {
        Value::Number(n) => n.as_f64()?,
        Value::String(s) => s.trim().parse::<f64>().ok()?,
        _ => return None,
    };
    float.is_finite().then(|| float.trunc().clamp(-1e12, 1e12) as i64)
}

/// Broken JSON without what is syntax in it, and without the names of the arguments.
fn without_marks(text: &str) -> String {
    let words = text.replace(['{', '}', '[', ']', '"', ':', ',', '\\', '\''], " ");
    let named = |word: &&str| !matches!(*word, "query" | "id" | "offset" | "limit" | "arguments" | "name");
    words.split_whitespace().filter(named).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "r3f9a0c12d4e5";

    #[test]
    fn a_question_wants_a_record() {
        let id = r#"{"id":"windowsill recall r3f9a0c12d4e5","question":" Which test failed? "}"#;
        assert_eq!(question(id), Some((ID.into(), "Which test failed?".into())));
        for none in [
            r#"{"id":"r3f9a0c12d4e5"}"#,
            r#"{"question":"Why?"}"#,
            r#"{"id":"12","question":"Why?"}"#,
            "r3f9a0c12d4e5?",
        ] {
            assert_eq!(question(none), None, "{none}");
        }
    }

    #[test]
    fn arguments_as_models_write_them() {
        let record = || Reference::Record(ID.into());
        let all = Span::default;
        let from = |offset, limit| Span { offset, limit };
        for (arguments, expect) in [
            (format!(r#"{{"id":"{ID}"}}"#), Asked::Text(record(), all())),
            (format!(r#"{{"id":"{ID}","offset":"40","limit":20.0}}"#), Asked::Text(record(), from(Some(40), Some(20)))),
            (format!(r#"{{"id":"windowsill recall {ID}"}}"#), Asked::Text(record(), all())),
            (format!(r#"{{"id":"/data/large_tool_results/{ID}.txt","query":""}}"#), Asked::Text(record(), all())),
            (format!(r#"{{"id":["{ID}"]}}"#), Asked::Text(record(), all())),
            (format!(r#""{{\"id\": \"{ID}\"}}""#), Asked::Text(record(), all())),
            (format!(r#"{{"arguments":{{"id":"{ID}","limit":-3}}}}"#), Asked::Text(record(), from(None, Some(-3)))),
            (format!(r#"{{"id": "{ID}"#), Asked::Text(record(), all())),
            (ID.into(), Asked::Text(record(), all())),
            (format!(r#"{{"query":"{ID}"}}"#), Asked::Text(record(), all())),
            (r#"{"query":"the port"}"#.into(), Asked::Search("the port".into(), all())),
            (r#"{"query":"the port","id":"none"}"#.into(), Asked::Search("the port".into(), all())),
            (r#"{"query": "the port"#.into(), Asked::Search("the port".into(), all())),
            (r#""the port""#.into(), Asked::Search("the port".into(), all())),
            (r#"{"id":"12"}"#.into(), Asked::Text(Reference::Message(None, 12), all())),
            (r#"{"id":7}"#.into(), Asked::Text(Reference::Message(None, 7), all())),
            (r#"{"id":"12-40"}"#.into(), Asked::Text(Reference::Messages(None, 12, 40), all())),
            (
                r#"{"id":"messages 12 to 40","offset":3}"#.into(),
                Asked::Text(Reference::Messages(None, 12, 40), from(Some(3), None)),
            ),
            (r#"{"id":"c01:12..40"}"#.into(), Asked::Text(Reference::Messages(Some("c01".into()), 12, 40), all())),
            (r#"{"id":"message #12"}"#.into(), Asked::Text(Reference::Message(None, 12), all())),
            (
                r#"{"id":"12-99999999999999999999"}"#.into(),
                Asked::Text(Reference::Other("12-99999999999999999999".into()), all()),
            ),
            (r#"{"id":"c01:12"}"#.into(), Asked::Text(Reference::Message(Some("c01".into()), 12), all())),
            (
                r#"{"id":"c01:99999999999999999999"}"#.into(),
                Asked::Text(Reference::Message(Some("c01".into()), usize::MAX), all()),
            ),
            (r#"{"id":"../../etc/passwd"}"#.into(), Asked::Text(Reference::Other("../../etc/passwd".into()), all())),
            (r#"{"id":"/etc/x:1"}"#.into(), Asked::Text(Reference::Other("/etc/x:1".into()), all())),
            (r#"{"query":"!?"}"#.into(), Asked::Unclear),
            ("{}".into(), Asked::Unclear),
            ("".into(), Asked::Unclear),
            ("[1]".into(), Asked::Unclear),
            (format!(r#"{{"query":"{}"}}"#, "x".repeat(20_000)), Asked::Unclear),
        ] {
            assert_eq!(Asked::read(&arguments), expect, "{}", &arguments[..arguments.len().min(80)]);
        }
    }
}
