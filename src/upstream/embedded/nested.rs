//! PURE: how deep a grammar or a JSON schema is nested. llama.cpp reads both by calling itself, level by level, and a stack
//! that overflows ends its process, with all that it holds evaluated.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// The most levels of a grammar or a schema that llama.cpp is given. Those of real tools have some ten.
pub(super) const DEEPEST: usize = 256;

/// The most rules of a grammar that lead to one another in one chain.
pub(super) const LONGEST_CHAIN: usize = 1024;

/// Refuses a grammar that is nested too deep, by parentheses or from rule to rule.
///
/// # Errors
/// By how much it is too deep.
pub(super) fn grammar(text: &str) -> Result<(), String> {
    let read = Grammar::read(text);
    if read.deepest > DEEPEST {
        let levels = read.deepest;
        return Err(format!("`grammar` is nested {levels} levels deep: the embedded engine takes at most {DEEPEST}"));
    }
    match read.longest_chain() {
        rules if rules > LONGEST_CHAIN => Err(format!(
            "`grammar` has a chain of {rules} rules that lead to one another: the embedded engine takes at most \
             {LONGEST_CHAIN}"
        )),
        _ => Ok(()),
    }
}

/// Refuses a JSON schema that is nested too deep, what its references lead to included.
///
/// # Errors
/// That it is, by the name of the field it stands in.
pub(super) fn schema(field: &str, schema: &Value) -> Result<(), String> {
    let mut depth = Depth { root: schema, seen: HashSet::new() };
    if depth.fits(schema, 0) {
        return Ok(());
    }
    Err(format!(
        "`{field}` is nested more than {DEEPEST} levels deep, references included: the embedded engine takes no more"
    ))
}

/// Walks a schema as llama.cpp does: what a reference leads to is looked at once.
struct Depth<'a> {
    root: &'a Value,
    seen: HashSet<&'a str>,
}

impl<'a> Depth<'a> {
    fn fits(&mut self, value: &'a Value, level: usize) -> bool {
        if level > DEEPEST {
            return false;
        }
        match value {
            Value::Array(all) => all.iter().all(|one| self.fits(one, level + 1)),
            Value::Object(all) => {
                let to = all.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
                let led = to.is_none_or(|to| match self.root.pointer(to) {
                    Some(target) if self.seen.insert(to) => self.fits(target, level + 1),
                    _ => true,
                });
                led && all.values().all(|one| self.fits(one, level + 1))
            }
            _ => true,
        }
    }
}

/// What of a GBNF grammar tells how deep it is.
struct Grammar<'a> {
    /// The deepest level of parentheses.
    deepest: usize,
    /// The rules that each rule names, by its name.
    rules: HashMap<&'a str, Vec<&'a str>>,
    /// The names of the rules, in the order in which they are first written.
    order: Vec<&'a str>,
}

impl<'a> Grammar<'a> {
    fn read(text: &'a str) -> Grammar<'a> {
        let mut out = Grammar { deepest: 0, rules: HashMap::new(), order: Vec::new() };
        let (mut level, mut rule, mut last) = (0_usize, "", "");
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let word = name(&bytes[at..]);
            match bytes[at] {
                _ if word > 0 => {
                    last = text.get(at..at + word).unwrap_or_default();
                    out.rules.entry(rule).or_default().push(last);
                    out.order.push(last);
                    at += word;
                    continue;
                }
                b':' if bytes[at..].starts_with(b"::=") => {
                    // The name before it is that of the next rule, and no part of this one.
                    out.rules.entry(rule).or_default().pop();
                    rule = last;
                    at += 2;
                }
                b'(' => {
                    level += 1;
                    out.deepest = out.deepest.max(level);
                }
                b')' => level = level.saturating_sub(1),
                b'"' => at += closed(&bytes[at..], b'"'),
                b'[' => at += closed(&bytes[at..], b']'),
                b'#' => at += bytes[at..].iter().take_while(|b| !matches!(b, b'\n' | b'\r')).count().saturating_sub(1),
                _ => {}
            }
            at += 1;
        }
        out
    }

    /// The longest chain that is found where every rule is followed once, in the order in which llama.cpp follows them in
    /// search of endless ones.
    fn longest_chain(&self) -> usize {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut longest = 0;
        for first in std::iter::once(&"root").chain(&self.order) {
            let mut path: Vec<std::slice::Iter<'_, &str>> = Vec::new();
            let mut next = Some(*first);
            loop {
                if let Some(rule) = next.take()
                    && seen.insert(rule)
                {
                    path.push(self.rules.get(rule).map(|all| all.iter()).unwrap_or_default());
                    longest = longest.max(path.len());
                }
                let Some(names) = path.last_mut() else { break };
                next = names.next().copied();
                if next.is_none() {
                    path.pop();
                }
            }
        }
        longest
    }
}

/// How many bytes of a name stand here.
fn name(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')).count()
}

/// How far it is to the closing sign of what opens here, or to the end.
fn closed(bytes: &[u8], close: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != close {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parentheses_are_counted_where_they_are_some() {
        let deep = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
        assert_eq!(grammar(&deep(DEEPEST)), Ok(()));
        let why = grammar(&deep(20_000)).unwrap_err();
        assert!(why.contains("20000 levels") && why.contains("at most 256"), "{why}");
        // In texts, classes and comments they are signs like others.
        let signs = format!("root ::= \"\\\"{0}\" [\\]{0}] x # {0}\nx ::= \"b\"", "(".repeat(300));
        assert_eq!(grammar(&signs), Ok(()));
        for open in ["root ::= \"", "root ::= [", "root ::= \"\\", "#", "::=", "a ::= b ::= c", "é ::= (é"] {
            assert_eq!(grammar(open), Ok(()), "{open}");
        }
    }

    #[test]
    fn chains_of_rules_are_measured_and_circles_end() {
        let chain = |n: usize| (0..n).map(|i| format!("r{i} ::= \"a\" r{}\n", i + 1)).collect::<String>();
        assert_eq!(grammar(&chain(LONGEST_CHAIN - 1)), Ok(()));
        let why = grammar(&format!("root ::= r0\n{}", chain(20_000))).unwrap_err();
        assert!(why.contains("a chain of 20002 rules") && why.contains("at most 1024"), "{why}");
        assert_eq!(grammar("a ::= b\nb ::= a | a b\n"), Ok(()));
        let wide = (0..5_000).map(|i| format!("r{i} ::= \"a\"\n")).collect::<String>();
        assert_eq!(grammar(&wide), Ok(()));
    }

    #[test]
    fn schemas_are_followed_through_their_references() {
        let named = |n: usize| {
            let links = (0..n).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})));
            let mut all: serde_json::Map<String, Value> = links.collect();
            all.insert(format!("d{n}"), json!({"type": "string"}));
            json!({"$ref": "#/$defs/d0", "$defs": all})
        };
        assert_eq!(schema("json_schema", &named(100)), Ok(()));
        let why = schema("json_schema", &named(20_000)).unwrap_err();
        assert!(why.contains("`json_schema`") && why.contains("256"), "{why}");
        let itself =
            json!({"properties": {"next": {"$ref": "#"}, "other": {"$ref": "#/none"}, "far": {"$ref": "http://x"}}});
        assert_eq!(schema("tools", &itself), Ok(()));
        let mut nested = json!("end");
        for _ in 0..300 {
            nested = json!({ "items": nested });
        }
        assert!(schema("json_schema", &nested).is_err());
    }
}
