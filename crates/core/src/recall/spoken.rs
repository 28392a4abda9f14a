//! Calls of our tools that a model writes as text, where its server does not take them for calls: `<tool_call>{…}`, a block of
//! JSON, `windowsill_recall(id="…")`. Only a text that is such calls and nothing else is one; a text that speaks of the tool
//! is not.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use super::{done, is_named};

/// Longest text that can be calls, in bytes.
const LONGEST: usize = 4 * 1024;

/// What models put before a call, and what ends it. What begins like another comes behind it.
const WRAPPERS: [(&str, &str); 15] = [
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<function_call>", "</function_call>"),
    ("<function_calls>", "</function_calls>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    ("<|python_tag|>", "<|eom_id|>"),
    ("[TOOL_CALLS]", ""),
    ("```json", "```"),
    ("```tool_call", "```"),
    ("```tool_code", "```"),
    ("```python", "```"),
    ("```xml", "```"),
    ("```", "```"),
    ("[", "]"),
];

/// How deep calls may be wrapped.
const DEEPEST: usize = 3;

/// Keys under which an object names the tool.
const NAMES: [&str; 4] = ["name", "tool", "tool_name", "function"];

/// Keys that such an object may begin with beside them.
const OTHERS: [&str; 6] = ["type", "id", "arguments", "parameters", "args", "input"];

/// Bytes of an object that may come before the tool's name.
const BEFORE_NAME: usize = 400;

static FIRST_KEY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"^\{\s*"([^"]*)("?)"#).expect("it is a constant"));

static NAMED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#""(?:name|tool|tool_name|function)"\s*:\s*"([^"]*)("?)"#).expect("it is a constant"));

static ARGUMENT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"^\s*,?\s*(?:(\w+)\s*[=:]\s*)?("(?:[^"\\]|\\.)*"|'[^']*'|[\w.\-]+)\s*"#).expect("it is a constant")
});

static PARAMETER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?s)^\s*<parameter(?:=|\s+name=")(\w+)"?>\s*(.*?)\s*</parameter>"#).expect("it is a constant")
});

/// The calls of one of these tools that a text is: the tool, and the arguments of each. `None` where it is anything else.
pub fn calls(text: &str, tools: &[&'static str]) -> Option<(&'static str, Vec<String>)> {
    if text.len() > LONGEST {
        return None;
    }
    tools.iter().find_map(|tool| {
        let (calls, rest) = take(text, tool, 0)?;
        (rest.trim().is_empty() && !calls.is_empty()).then_some((*tool, calls))
    })
}

/// Whether a text that is still being written may become calls of one of these tools.
pub fn may_become(text: &str, tools: &[&str]) -> bool {
    text.len() <= LONGEST && tools.iter().any(|tool| may_be(text, tool, 0))
}

fn may_be(text: &str, tool: &str, depth: usize) -> bool {
    let text = text.trim_start();
    if text.is_empty() {
        return true;
    }
    if let Some((_, rest)) = take(text, tool, depth) {
        let rest = rest.trim_start();
        let closes = |end: &str| !end.is_empty() && end.starts_with(rest);
        return rest.is_empty() || WRAPPERS.iter().any(|(_, end)| closes(end)) || may_be(rest, tool, depth);
    }
    for (start, _) in WRAPPERS {
        if start.starts_with(text) {
            return true;
        }
        if let Some(rest) = text.strip_prefix(start)
            && depth < DEEPEST
            && may_be(rest, tool, depth + 1)
        {
            return true;
        }
    }
    match text.as_bytes()[0] {
        b'{' => may_be_object(text, tool),
        _ => STARTS.iter().any(|start| begins(text, tool, start)),
    }
}

/// How a call begins that is no JSON.
const STARTS: [&str; 6] = ["", "functions.", "print(", "<function=", "<invoke name=\"", "<tool_call name=\""];

/// Whether a text begins with the tool's name behind `start`, as far as it goes, and then as a call does.
fn begins(text: &str, tool: &str, start: &str) -> bool {
    if start.starts_with(text) {
        return true;
    }
    let Some(rest) = text.strip_prefix(start) else { return false };
    let name = &rest[..crate::preview::clean::floor(rest, tool.len())];
    if !is_beginning(name, tool) {
        return false;
    }
    let after = rest[name.len()..].trim_start();
    match start {
        _ if name.len() < tool.len() => rest.len() < tool.len(),
        _ if after.is_empty() => true,
        "" | "functions." | "print(" => after.starts_with(['(', '{']),
        _ => after.starts_with(['>', '"']),
    }
}

/// Whether this can become the tool's name.
fn is_beginning(name: &str, tool: &str) -> bool {
    name.len() <= tool.len() && is_named(&format!("{name}{}", &tool[name.len()..]), tool)
}

fn may_be_object(text: &str, tool: &str) -> bool {
    let inside = text[1..].trim_start();
    if inside.is_empty() {
        return true;
    }
    let Some(first) = FIRST_KEY.captures(text) else { return false };
    let known = |key: &str| if first[2].is_empty() { key.starts_with(&first[1]) } else { *key == first[1] };
    if !NAMES.iter().chain(&OTHERS).any(|key| known(key)) {
        return false;
    }
    match NAMED.captures(text) {
        // A namespace may stand before it.
        Some(found) if found[2].is_empty() => {
            let bare = found[1].rsplit(['.', ':', '/']).next().unwrap_or("");
            is_beginning(bare, tool) || "functions".starts_with(&found[1])
        }
        Some(found) => is_named(&found[1], tool) || &found[1] == "function",
        None => text.len() < BEFORE_NAME,
    }
}

/// The calls at the beginning of a text, and what follows them.
fn take<'a>(text: &'a str, tool: &str, depth: usize) -> Option<(Vec<String>, &'a str)> {
    let (mut all, mut rest) = one(text, tool, depth)?;
    // Several in a row.
    while let Some((more, after)) = one(rest.trim_start().trim_start_matches(','), tool, depth) {
        all.extend(more);
        rest = after;
    }
    Some((all, rest))
}

fn one<'a>(text: &'a str, tool: &str, depth: usize) -> Option<(Vec<String>, &'a str)> {
    let text = text.trim_start();
    for (start, end) in WRAPPERS {
        let Some(inside) = text.strip_prefix(start).filter(|_| depth < DEEPEST) else { continue };
        let Some((calls, rest)) = take(inside, tool, depth + 1) else { continue };
        let rest = rest.trim_start();
        // Some forget the end.
        return match rest.strip_prefix(end) {
            Some(rest) => Some((calls, rest)),
            None if rest.is_empty() && end != "]" => Some((calls, rest)),
            None => None,
        };
    }
    if text.starts_with('{') {
        let (value, rest) = value(text)?;
        return Some((vec![of_object(value.as_object()?, tool)?], rest));
    }
    as_function(text, tool).or_else(|| as_markup(text, tool))
}

/// The JSON value at the beginning of a text.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// `{"name": …, "arguments": {…}}` in its spellings.
fn of_object(map: &Map<String, Value>, tool: &str) -> Option<String> {
    let named = NAMES.iter().find_map(|key| map.get(*key))?;
    if let Value::Object(inner) = named {
        return of_object(inner, tool);
    }
    if !is_named(named.as_str()?, tool) {
        return None;
    }
    let arguments = ["arguments", "parameters", "args", "input"].iter().find_map(|key| map.get(*key));
    Some(match arguments {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => {
            let others = map.iter().filter(|(key, _)| !NAMES.contains(&key.as_str()) && *key != "type");
            Value::Object(others.map(|(k, v)| (k.clone(), v.clone())).collect()).to_string()
        }
    })
}

/// `windowsill_recall(id="…", offset=3)`, with `print(…)` around it, or the JSON behind the name.
fn as_function<'a>(text: &'a str, tool: &str) -> Option<(Vec<String>, &'a str)> {
    let printed = text.strip_prefix("print(");
    let inside = printed.unwrap_or(text);
    let inside = inside.strip_prefix("functions.").unwrap_or(inside);
    let name = inside.get(..tool.len()).filter(|name| is_named(name, tool))?;
    let after = inside[name.len()..].trim_start();
    let (arguments, rest) = match after.strip_prefix('(') {
        Some(within) => {
            let (arguments, rest) = within_brackets(within, tool)?;
            (arguments, rest.trim_start().strip_prefix(')')?)
        }
        None => {
            let (value, rest) = value(after).filter(|(v, _)| v.is_object())?;
            (value.to_string(), rest)
        }
    };
    let rest = match printed {
        Some(_) => rest.trim_start().strip_prefix(')')?,
        None => rest,
    };
    Some((vec![arguments], rest.trim_start_matches(';')))
}

fn within_brackets<'a>(text: &'a str, tool: &str) -> Option<(String, &'a str)> {
    if text.trim_start().starts_with('{') {
        let (value, rest) = value(text.trim_start())?;
        return Some((value.to_string(), rest));
    }
    let (mut map, mut rest) = (Map::new(), text);
    while let Some(found) = ARGUMENT.captures(rest) {
        let written = found.get(2)?.as_str();
        let value = match written.as_bytes()[0] {
            b'\'' => Value::String(written.trim_matches('\'').to_owned()),
            _ => serde_json::from_str(written).unwrap_or_else(|_| Value::String(written.to_owned())),
        };
        // One without a name is what most is asked by.
        let key = found.get(1).map_or(if tool == done::NAME { "note" } else { "id" }, |m| m.as_str());
        map.insert(key.to_owned(), value);
        rest = &rest[found.get(0)?.end()..];
    }
    Some((Value::Object(map).to_string(), rest))
}

/// `<function=windowsill_recall>{…}</function>`, `<invoke name="windowsill_recall"><parameter name="id">…`.
fn as_markup<'a>(text: &'a str, tool: &str) -> Option<(Vec<String>, &'a str)> {
    let forms =
        [("<function=", "</function>"), ("<invoke name=\"", "</invoke>"), ("<tool_call name=\"", "</tool_call>")];
    let (inside, end) = forms.iter().find_map(|(start, end)| Some((text.strip_prefix(start)?, end)))?;
    let (name, mut rest) = inside.split_once('>')?;
    if !is_named(name.trim_end_matches('"'), tool) {
        return None;
    }
    let arguments = match value(rest.trim_start()).filter(|(v, _)| v.is_object()) {
        Some((value, after)) => {
            // Behind the white space that was skipped.
            rest = after;
            value.to_string()
        }
        None => {
            let mut map = Map::new();
            while let Some(found) = PARAMETER.captures(rest) {
                map.insert(found[1].to_owned(), Value::String(found[2].to_owned()));
                rest = &rest[found.get(0)?.end()..];
            }
            Value::Object(map).to_string()
        }
    };
    let rest = rest.trim_start();
    match rest.strip_prefix(end) {
        Some(rest) => Some((vec![arguments], rest)),
        None => rest.is_empty().then(|| (vec![arguments], rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recall::NAME;
    use proptest::prelude::*;

    fn calls(text: &str) -> Option<Vec<String>> {
        super::calls(text, &[NAME]).map(|(_, all)| all)
    }

    fn may_become(text: &str) -> bool {
        super::may_become(text, &[NAME])
    }

    #[test]
    fn each_tool_is_told_from_the_other_and_only_those_that_are_asked_for_count() {
        for text in written().iter().map(|text| text.replace(NAME, done::NAME)) {
            let (tool, all) = super::calls(&text, &[NAME, done::NAME]).unwrap_or_else(|| panic!("none in {text}"));
            assert_eq!((tool, all.len()), (done::NAME, 1), "{text}");
            assert!(text.char_indices().all(|(end, _)| super::may_become(&text[..end], &[NAME, done::NAME])), "{text}");
            assert_eq!((calls(&text), super::calls(&text, &[])), (None, None), "{text}");
            assert!(!may_become(&text) && !super::may_become(&text, &[]), "{text}");
        }
        let bare = super::calls("windowsill_done(\"It works.\")", &[done::NAME]);
        assert_eq!(bare, Some((done::NAME, vec![r#"{"note":"It works."}"#.to_owned()])));
    }

    const ID: &str = "r3f9a0c12d4e5";

    fn written() -> Vec<String> {
        let object = format!(r#"{{"name": "windowsill_recall", "arguments": {{"id": "{ID}", "offset": 3}}}}"#);
        vec![
            object.clone(),
            format!("\n<tool_call>\n{object}\n</tool_call>"),
            format!("<tool_call>{object}"),
            format!("```json\n{object}\n```"),
            format!("```\n{object}\n```\n"),
            format!("[TOOL_CALLS][{object}]"),
            format!("[{object}]"),
            format!("<|python_tag|>{object}"),
            format!(r#"{{"type":"function","name":"windowsill_recall","parameters":{{"id":"{ID}","offset":3}}}}"#),
            format!(
                r#"{{"type":"function","function":{{"name":"windowsill_recall","arguments":"{{\"id\":\"{ID}\",\"offset\":3}}"}}}}"#
            ),
            format!(r#"{{"tool":"functions.windowsill_recall","id":"{ID}","offset":3}}"#),
            format!(r#"windowsill_recall(id="{ID}", offset=3)"#),
            format!("windowsill_recall(id='{ID}', offset: 3);"),
            format!(r#"[windowsill_recall(id="{ID}", offset=3)]"#),
            format!("```tool_code\nprint(windowsill_recall(id=\"{ID}\", offset=3))\n```"),
            format!(r#"windowsill_recall({{"id": "{ID}", "offset": 3}})"#),
            format!("windowsill_recall\n{{\"id\": \"{ID}\", \"offset\": 3}}"),
            format!(r#"<function=windowsill_recall>{{"id": "{ID}", "offset": 3}}</function>"#),
            format!(
                "<tool_call>\n<function=windowsill_recall>\n<parameter=id>\n{ID}\n</parameter>\n<parameter=offset>\n3\n</parameter>\n</function>\n</tool_call>"
            ),
            format!(
                r#"<function_calls><invoke name="windowsill_recall"><parameter name="id">{ID}</parameter><parameter name="offset">3</parameter></invoke></function_calls>"#
            ),
        ]
    }

    #[test]
    fn calls_as_models_write_them() {
        for text in written() {
            let all = calls(&text).unwrap_or_else(|| panic!("none in {text}"));
            assert_eq!(all.len(), 1, "{text}");
            let read: Value = serde_json::from_str(&all[0]).unwrap();
            assert_eq!((&read["id"], read["offset"].to_string().trim_matches('"')), (&Value::from(ID), "3"), "{text}");
            // However far it is written, it may become one.
            for (end, _) in text.char_indices() {
                assert!(may_become(&text[..end]), "{:?}", &text[..end]);
            }
            assert!(may_become(&text));
        }
        assert_eq!(calls(&format!(r#"windowsill_recall("{ID}")"#)).unwrap(), [format!(r#"{{"id":"{ID}"}}"#)]);
        let two = format!("{}\n{}", written()[1], written()[1]);
        assert_eq!(calls(&two).map(|all| all.len()), Some(2));
    }

    #[test]
    fn texts_that_only_look_like_calls_go_on() {
        let object = r#"{"name": "windowsill_recall", "arguments": {"id": "1"}}"#;
        for (text, may) in [
            ("Let me look.", false),
            ("windowsill_recall is a tool that reads back", false),
            ("windowsill_recalls(id=1)", false),
            (r#"{"name": "Anna", "age": 3}"#, false),
            (r#"{"answer": 42}"#, false),
            (r#"{"name": "run", "arguments": {"cmd": "ls"}}"#, false),
            ("```python\ndef f():", false),
            ("```rust\nfn main() {}", false),
            ("[1] is the first note", false),
            ("<b>bold</b>", false),
            ("I call windowsill_recall(id=1)", false),
            (&format!("{object} and then I go on"), false),
            (&format!("<tool_call>{object}</tool_call> Well, that is it"), false),
            (&format!(r#"[{object}, {{"name": "run", "arguments": {{}}}}]"#), false),
            ("windowsill_recall(id=", true),
            ("<tool_call>", true),
            (r#"{"name": "windowsill_re"#, true),
        ] {
            assert_eq!(calls(text), None, "{text}");
            assert_eq!(may_become(text), may, "{text}");
        }
        assert!(!may_become(&format!("{{\"arguments\": {{\"x\": \"{}", "y".repeat(500))));
        assert!(calls(&format!("windowsill_recall(id=\"{}\")", "x".repeat(LONGEST))).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(?s)[\\[{<`\"(a-z_ =:,\\n\\]})>é]{0,200}") {
            let _ = (calls(&text), may_become(&text));
        }

        #[test]
        fn what_is_a_call_may_become_one(n in 0usize..20, cut in 0usize..400) {
            let text = &written()[n];
            let end = crate::preview::clean::floor(text, cut);
            prop_assert!(may_become(&text[..end]));
        }
    }
}
