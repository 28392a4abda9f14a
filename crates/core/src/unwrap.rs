//! The text inside a result that a client wraps in JSON: `{"output": "…", "exit_code": 1}`, text parts, answers to several
//! queries. Previews, placeholders, briefs and the pages of recall all look at this text, so that they speak of the same
//! lines.
//!
//! Pure. What is data rather than a wrapping stays as it is.

use serde_json::{Map, Value};

use crate::preview::clean::{says_nothing, shorten};
use crate::preview::sniff::parse_json;

/// The text inside a wrapper, and what the wrapper says about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inner {
    /// The text.
    pub text: String,
    /// The exit code, where the wrapping names one. Of several, the first that is not 0.
    pub exit: Option<i64>,
    /// Whether the call succeeded, where the wrapper says so.
    pub ok: Option<bool>,
    /// The short members beside the text: `exit_code = 1, duration = 3`.
    pub around: String,
}

/// Members that hold the text, in the order in which they are shown.
const TEXTS: &[&str] = &["content", "text", "output", "stdout", "result", "response", "stderr"];

/// Members that stand beside a text and are no data of their own.
const BESIDE: &[&str] = &[
    "type",
    "error",
    "exit_code",
    "exitCode",
    "exit_status",
    "exit_code_meaning",
    "returncode",
    "return_code",
    "exception_info",
    "signal",
    "status",
    "success",
    "ok",
    "is_error",
    "isError",
    "query",
    "command",
    "cmd",
    "cwd",
    "duration",
    "duration_ms",
    "timeout",
    "timed_out",
    "truncated",
    "approval",
    "annotations",
    "cache_control",
    "structuredContent",
    "_meta",
    "metadata",
];

/// Members that hold the exit code.
const EXITS: &[&str] = &["exit_code", "exitCode", "exit_status", "returncode", "return_code"];

/// How deep a wrapping in a wrapping is opened.
const DEEPEST: usize = 3;

/// The text inside a result; `None` where the result is its own text.
pub fn unwrap(text: &str) -> Option<Inner> {
    opened(text, 0)
}

fn opened(text: &str, depth: usize) -> Option<Inner> {
    if depth >= DEEPEST {
        return None;
    }
    let value = parse_json(text)?;
    let inner = inside(&value, text.len(), depth)?;
    Some(match opened(&inner.text, depth + 1) {
        Some(within) => within.within(inner),
        None => inner,
    })
}

fn inside(value: &Value, bytes: usize, depth: usize) -> Option<Inner> {
    match value {
        Value::String(text) => Some(Inner { text: text.clone(), ..Inner::default() }),
        Value::Object(map) => object(map, bytes, depth),
        Value::Array(items) if depth < DEEPEST => array(items, bytes, depth),
        _ => None,
    }
}

impl Inner {
    /// Fills in what this wrapper does not say from the one around it.
    fn within(self, outer: Inner) -> Inner {
        let around = [outer.around, self.around].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ");
        Inner { text: self.text, exit: self.exit.or(outer.exit), ok: self.ok.or(outer.ok), around }
    }

    /// Whether the call failed, as far as the wrapper says.
    pub fn failed(&self) -> bool {
        self.exit.is_some_and(|code| code != 0) || self.exit.is_none() && self.ok == Some(false)
    }
}

fn object(map: &Map<String, Value>, bytes: usize, depth: usize) -> Option<Inner> {
    let known = map.keys().all(|key| TEXTS.contains(&key.as_str()) || BESIDE.contains(&key.as_str()));
    let mut parts: Vec<String> = Vec::new();
    let mut shown: Vec<&str> = Vec::new();
    for key in TEXTS.iter().filter(|_| known) {
        match map.get(*key) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                shown.push(key);
                // MCP servers say the same in `result` as in `content`.
                if !text.is_empty() && !parts.contains(text) {
                    parts.push(text.clone());
                }
            }
            Some(other) => {
                shown.push(key);
                parts.push(inside(other, bytes, depth + 1)?.text);
            }
        }
    }
    if shown.is_empty() {
        // Any other name, where its text is nearly all there is.
        let large = |v: &Value| v.as_str().is_some_and(|s| s.len() * 10 > bytes * 6);
        let (key, text) = map.iter().find(|(_, v)| large(v))?;
        shown.push(key);
        parts.push(text.as_str().unwrap_or_default().to_owned());
    }
    if let Some(error) = map.get("error").and_then(Value::as_str).filter(|e| !says_nothing(e))
        && !parts.iter().any(|part| part.contains(error))
    {
        parts.push(format!("Error: {error}"));
    }
    let flag = |keys: &[&str]| keys.iter().find_map(|key| map.get(*key)?.as_bool());
    Some(Inner {
        text: joined(&parts),
        exit: EXITS.iter().find_map(|key| map.get(*key)?.as_i64()),
        ok: flag(&["success", "ok"]).or_else(|| flag(&["is_error", "isError"]).map(|error| !error)),
        around: around(map, &shown),
    })
}

/// Text parts, or the answers to several queries: all of one kind, or one that is nearly all there is.
fn array(items: &[Value], bytes: usize, depth: usize) -> Option<Inner> {
    let read = |item: &Value| item.as_object().and_then(|map| object(map, bytes, depth + 1));
    let Some(all) = items.iter().map(read).collect::<Option<Vec<Inner>>>().filter(|all| !all.is_empty()) else {
        return items.iter().filter_map(read).find(|inner| inner.text.len() * 10 > bytes * 6);
    };
    if let [one] = all.as_slice() {
        return Some(one.clone());
    }
    let query =
        |item: &Value| ["query", "command", "cmd"].iter().find_map(|key| Some(item.get(key)?.as_str()?.to_owned()));
    let parts: Vec<String> = items
        .iter()
        .zip(&all)
        .map(|(item, inner)| query(item).map_or(inner.text.clone(), |query| format!("[{query}]\n{}", inner.text)))
        .collect();
    let exits = || all.iter().filter_map(|inner| inner.exit);
    let oks = || all.iter().filter_map(|inner| inner.ok);
    Some(Inner {
        text: joined(&parts),
        exit: exits().find(|code| *code != 0).or_else(|| exits().next()),
        ok: oks().next().map(|_| oks().all(|ok| ok)),
        around: String::new(),
    })
}

/// Texts behind each other, each on lines of its own.
fn joined(parts: &[String]) -> String {
    let mut out = String::with_capacity(parts.iter().map(|p| p.len() + 1).sum());
    for part in parts {
        if !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        out.push_str(part);
    }
    out
}

fn around(map: &Map<String, Value>, but: &[&str]) -> String {
    let said = |key: &str, value: &Value| {
        !but.contains(&key) && !value.is_object() && !value.is_array() && !value.is_null() && key != "type"
    };
    let short = map.iter().filter(|(key, value)| said(key, value));
    short
        .take(8)
        .map(|(key, value)| format!("{key} = {}", shorten(&value.to_string(), 120)))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> (String, Option<i64>, Option<bool>) {
        let inner = unwrap(&value.to_string()).unwrap();
        (inner.text, inner.exit, inner.ok)
    }

    #[test]
    fn wrappings_of_real_clients_are_opened() {
        // hermes, mini-swe-agent, vibe, Cline (one query and two), Qwen's parts, an MCP server's.
        for (value, text, exit, ok) in [
            (json!({"output": "a\nb\n", "exit_code": 0, "error": null}), "a\nb\n", Some(0), None),
            (json!({"output": "", "exit_code": 2, "error": "no such file"}), "Error: no such file", Some(2), None),
            (json!({"output": "", "exit_code": 0, "error": "(none)"}), "", Some(0), None),
            (json!({"output": "x", "returncode": 1, "exception_info": ""}), "x", Some(1), None),
            (
                json!({"command": "make", "stdout": "x\n", "stderr": "error: y", "returncode": 2}),
                "x\nerror: y",
                Some(2),
                None,
            ),
            (
                json!([{"query": "wc -c notes.txt", "result": "2588 notes.txt\n", "success": true}]),
                "2588 notes.txt\n",
                None,
                Some(true),
            ),
            (
                json!([{"query": "ls", "result": "a\n", "success": true}, {"query": "cat b", "result": "", "error": "no b", "success": false}]),
                "[ls]\na\n[cat b]\nError: no b",
                None,
                Some(false),
            ),
            (json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), "one\ntwo", None, None),
            (json!({"content": [{"type": "text", "text": "one"}], "isError": true}), "one", None, Some(false)),
            (json!({"result": "{\"output\": \"in\", \"exit_code\": 3}"}), "in", Some(3), None),
        ] {
            assert_eq!(read(value.clone()), (text.to_owned(), exit, ok), "{value}");
        }
        let around = unwrap(r#"{"output":"a","exit_code":1,"error":null,"duration":2.5}"#).unwrap().around;
        assert_eq!(around, "exit_code = 1, duration = 2.5");
    }

    #[test]
    fn data_stays_data() {
        for text in [
            "plain",
            "",
            "{}",
            "[]",
            "{\"output\": ",
            r#"{"id": 3, "text": "hi", "author": "x"}"#,
            r#"{"result": 42}"#,
            r#"{"result": {"rows": [1, 2]}}"#,
            r#"[{"name": "a", "status": "failed"}, {"name": "b", "status": "passed"}]"#,
            r#"[1, 2]"#,
            r#"{"error": "boom"}"#,
        ] {
            assert_eq!(unwrap(text), None, "{text}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(unwrap(&deep), None);
    }

    #[test]
    fn exit_codes_decide() {
        let failed = |text: &str| unwrap(text).unwrap().failed();
        assert!(!failed(r#"{"output":"error: x","exit_code":0,"success":false}"#));
        assert!(failed(r#"{"output":"","exit_code":1,"success":true}"#));
        assert!(failed(r#"{"result":"","success":false}"#) && !failed(r#"{"result":""}"#));
    }
}
