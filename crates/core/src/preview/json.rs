//! JSON documents and JSON lines: shape, counts, first items, and the members that report trouble.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::clean::shorten;
use super::fit::Draft;
use super::signal::{Grade, grade, grade_line};

/// Members that stand out are looked for until so many were found.
const STANDOUTS: usize = 400;

/// Objects looked at in all: bounds the time on documents of many megabytes.
const VISITS: usize = 60_000;

/// Keys whose value says how something went.
const STATES: &[&str] = &[
    "status",
    "state",
    "result",
    "outcome",
    "conclusion",
    "level",
    "severity",
    "verdict",
    "phase",
    "type",
    "action",
    "kind",
    "health",
];

/// Values that say that it went badly.
const BAD: &[&str] = &[
    "failed",
    "fail",
    "failure",
    "error",
    "errored",
    "fatal",
    "critical",
    "high",
    "broken",
    "crashed",
    "timeout",
    "timed_out",
    "rejected",
    "denied",
    "cancelled",
    "canceled",
    "aborted",
    "unhealthy",
    "down",
    "invalid",
    "blocked",
    "crashloopbackoff",
];

/// Keys whose presence with a value says that something went badly.
const TROUBLES: &[&str] = &[
    "error",
    "errors",
    "exception",
    "err",
    "failure",
    "failures",
    "traceback",
    "stderr",
    "error_message",
    "errormessage",
    "vulnerabilities",
];

/// Drafts a parsed document.
pub(super) fn document(value: &Value) -> Draft {
    let mut walk = Walk { draft: Draft::default(), next: 0, standouts: 0, visits: 0 };
    walk.draft.summary = match value {
        Value::Array(items) => format!("JSON array of {}", items.len()),
        Value::Object(map) => format!("JSON object of {} keys", map.len()),
        _ => "JSON value".to_owned(),
    };
    walk.visit("", value, 0);
    walk.draft
}

struct Walk {
    draft: Draft,
    next: usize,
    standouts: usize,
    visits: usize,
}

impl Walk {
    fn say(&mut self, rank: u16, text: String) {
        self.draft.remark(self.next, rank, text);
        self.next += 1;
    }

    fn visit(&mut self, path: &str, value: &Value, depth: u16) {
        self.visits += 1;
        if self.visits > VISITS {
            return;
        }
        let rank = 96u16.saturating_sub(depth * 6);
        match value {
            Value::Array(items) => {
                let members: Vec<(String, &Value)> =
                    items.iter().enumerate().map(|(i, v)| (format!("{path}[{i}]"), v)).collect();
                self.collection(path, &members, rank, depth);
            }
            Value::Object(map) if is_mapping(map) => {
                let members: Vec<(String, &Value)> = map.iter().map(|(k, v)| (join(path, k), v)).collect();
                self.collection(path, &members, rank, depth);
            }
            Value::Object(map) => {
                let trouble = trouble(map);
                if depth > 0 || map.len() > 12 {
                    let keys: Vec<&str> = map.keys().take(40).map(String::as_str).collect();
                    self.say(rank - 2, format!("{}: {{{}}}", name(path), keys.join(", ")));
                }
                if trouble && depth > 0 {
                    self.standout(path, map, 1, 1);
                }
                for (key, inner) in map {
                    let path = join(path, key);
                    match inner {
                        Value::Array(_) | Value::Object(_) => self.visit(&path, inner, depth + 1),
                        scalar => {
                            self.say(rank - 8 + u16::from(is_state(key)) * 6, format!("{path} = {}", brief(scalar)))
                        }
                    }
                }
            }
            scalar => self.say(rank, format!("{} = {}", name(path), brief(scalar))),
        }
    }

    /// An array, or an object used as a map: what its members have in common, and those that stand out.
    fn collection(&mut self, path: &str, members: &[(String, &Value)], rank: u16, depth: u16) {
        self.say(rank, format!("{}: {} × {}", name(path), members.len(), common(members)));
        let bad: Vec<usize> = (0..members.len())
            .filter(|&i| {
                members[i].1.as_object().is_some_and(trouble)
                    || members[i].1.as_str().is_some_and(|s| grade_line(s) >= Grade::Trouble)
            })
            .take(STANDOUTS)
            .collect();
        for &i in &bad {
            match members[i].1 {
                Value::Object(map) => self.standout(&members[i].0, map, bad.len(), members.len()),
                other => self.say(66, format!("{} = {}", members[i].0, brief(other))),
            }
        }
        for (i, (path, member)) in members.iter().enumerate().take(300) {
            if bad.binary_search(&i).is_ok() {
                continue;
            }
            let worth = match i {
                0 => 74,
                1 => 62,
                _ if i + 1 == members.len() => 58,
                _ => 48u16.saturating_sub((i as u16).min(40)),
            };
            self.say(worth.saturating_sub(depth * 6).max(1), format!("{path} = {}", brief(member)));
        }
        for (path, member) in members {
            self.nested(path, member, depth + 1);
        }
    }

    /// Below the members of a collection only what stands out is worth a line.
    fn nested(&mut self, path: &str, value: &Value, depth: u16) {
        self.visits += 1;
        if self.visits > VISITS || depth > 24 {
            return;
        }
        let mut inner = |path: String, value: &Value| {
            if let Value::Object(map) = value
                && trouble(map)
            {
                self.standout(&path, map, 2, 2);
            }
            if matches!(value, Value::Object(_) | Value::Array(_)) {
                self.nested(&path, value, depth + 1);
            }
        };
        match value {
            Value::Object(map) => map.iter().for_each(|(k, v)| inner(join(path, k), v)),
            Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| inner(format!("{path}[{i}]"), v)),
            _ => {}
        }
    }

    fn standout(&mut self, path: &str, map: &Map<String, Value>, bad: usize, of: usize) {
        if self.standouts >= STANDOUTS {
            return;
        }
        self.standouts += 1;
        // Where most are bad, being bad is no news; then the first few are enough.
        let rank = if bad * 3 <= of.max(3) { 93 } else { 86 };
        self.say(rank - (self.standouts / 12).min(20) as u16, format!("{path} = {}", object(map)));
    }
}

fn name(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

fn join(path: &str, key: &str) -> String {
    let key = shorten(key, 80);
    if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }
}

fn is_state(key: &str) -> bool {
    STATES.contains(&key.to_ascii_lowercase().as_str())
}

/// Many members, all objects: the keys are data, not names of fields.
fn is_mapping(map: &Map<String, Value>) -> bool {
    map.len() > 12 && map.values().filter(|v| v.is_object()).count() * 10 > map.len() * 9
}

/// Whether an object reports that something went badly.
pub(crate) fn trouble(map: &Map<String, Value>) -> bool {
    map.iter().any(|(key, value)| {
        let key = key.to_ascii_lowercase();
        match value {
            Value::String(s) if STATES.contains(&key.as_str()) => BAD.contains(&s.to_ascii_lowercase().as_str()),
            Value::String(s) => TROUBLES.contains(&key.as_str()) && !s.trim().is_empty(),
            Value::Array(a) => TROUBLES.contains(&key.as_str()) && !a.is_empty(),
            Value::Object(o) => TROUBLES.contains(&key.as_str()) && !o.is_empty(),
            Value::Bool(b) => {
                *b && TROUBLES.contains(&key.as_str()) || !*b && matches!(key.as_str(), "success" | "ok" | "passed")
            }
            _ => false,
        }
    })
}

/// What the members of a collection have in common: keys with their types, frequent values and ranges.
fn common(members: &[(String, &Value)]) -> String {
    let mut keys: Vec<&str> = Vec::new();
    let mut stats: BTreeMap<&str, Column<'_>> = BTreeMap::new();
    let mut scalars = Column::default();
    for (_, member) in members.iter().take(20_000) {
        match member {
            Value::Object(map) => {
                for (key, value) in map {
                    if !stats.contains_key(key.as_str()) {
                        if keys.len() >= 40 {
                            continue;
                        }
                        keys.push(key);
                    }
                    stats.entry(key).or_default().add(value);
                }
            }
            other => scalars.add(other),
        }
    }
    if keys.is_empty() {
        return scalars.describe();
    }
    let columns: Vec<String> =
        keys.iter().map(|key| format!("{}: {}", shorten(key, 60), stats[key].describe())).collect();
    format!("{{{}}}", columns.join("; "))
}

/// What one key's values look like.
#[derive(Default)]
struct Column<'v> {
    kinds: BTreeMap<&'static str, usize>,
    values: BTreeMap<&'v str, usize>,
    many: bool,
    /// The smallest number and the largest: by value, told as they are spelled.
    range: Option<[(f64, &'v Number); 2]>,
}

impl<'v> Column<'v> {
    fn add(&mut self, value: &'v Value) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            Value::Number(n) => {
                if let Some(x) = n.as_f64() {
                    let [low, high] = self.range.unwrap_or([(x, n), (x, n)]);
                    self.range = Some([if x < low.0 { (x, n) } else { low }, if x >= high.0 { (x, n) } else { high }]);
                }
                "number"
            }
            Value::String(s) => {
                if !self.many {
                    *self.values.entry(s).or_default() += 1;
                    self.many = self.values.len() > 8 || s.len() > 40;
                }
                "string"
            }
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        *self.kinds.entry(kind).or_default() += 1;
    }

    fn describe(&self) -> String {
        let total: usize = self.kinds.values().sum();
        if self.kinds.len() == 1 && !self.many && !self.values.is_empty() && self.values.len() * 2 <= total.max(2) {
            let mut values: Vec<(&str, usize)> = self.values.iter().map(|(v, n)| (*v, *n)).collect();
            values.sort_by_key(|(v, n)| (std::cmp::Reverse(*n), *v));
            let shown: Vec<String> = values.iter().map(|(v, n)| format!("{v} {n}")).collect();
            return shown.join(", ");
        }
        if let (1, Some([(_, low), (_, high)])) = (self.kinds.len(), self.range) {
            return if low == high { low.to_string() } else { format!("{low}…{high}") };
        }
        let kinds: Vec<&str> = self.kinds.keys().copied().collect();
        kinds.join("|")
    }
}

/// A value in a few words: scalars as they are, containers by size below the first level.
fn brief(value: &Value) -> String {
    match value {
        Value::Object(map) => object(map),
        Value::Array(items) if items.len() <= 4 && items.iter().all(|v| !v.is_object() && !v.is_array()) => {
            short(value)
        }
        Value::Array(items) => format!("[{} items]", items.len()),
        other => short(other),
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(s) if s.len() > 300 => Value::String(shorten(s, 240).into_owned()).to_string(),
        other => other.to_string(),
    };
    shorten(&text, 300).into_owned()
}

/// An object's scalars; what tells it apart (ids, states, messages) first.
pub(crate) fn object(map: &Map<String, Value>) -> String {
    let weight = |key: &str| {
        let key = key.to_ascii_lowercase();
        match key.as_str() {
            "id" | "name" | "key" | "title" | "uid" => 0,
            _ if STATES.contains(&key.as_str()) => 1,
            _ if TROUBLES.contains(&key.as_str()) || key.contains("message") || key.contains("reason") => 2,
            _ => 3,
        }
    };
    let mut members: Vec<(&String, &Value)> = map.iter().collect();
    members.sort_by_key(|(key, _)| weight(key));
    let mut out = String::from("{");
    for (n, (key, value)) in members.iter().enumerate() {
        if out.len() > 400 {
            out.push_str(&format!(", …+{} keys", members.len() - n));
            break;
        }
        if n > 0 {
            out.push_str(", ");
        }
        let shown = match value {
            Value::Object(inner) => format!("{{{} keys}}", inner.len()),
            Value::Array(_) => brief(value),
            other => shorten(&short(other), 160).into_owned(),
        };
        out.push_str(&format!("{}: {shown}", shorten(key, 60)));
    }
    out.push('}');
    out
}

/// Drafts JSON lines. Two that are only wrappings of a log (cargo's, go test's) are read as the log they wrap.
pub(super) fn lines(text: &str) -> Option<Draft> {
    let mut values = Vec::new();
    let mut others = 0;
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => values.push(value),
            _ => others += 1,
        }
    }
    if values.len() < 2 || others > values.len() {
        return None;
    }
    if let Some(log) = wrapped_log(&values) {
        let mut draft = super::log::draft(&grade(&log.0));
        // The lines are those of the log inside, not of the text: their numbers would mislead.
        draft.pieces.iter_mut().for_each(|piece| piece.lines = 0);
        draft.summary = [log.1, draft.summary].iter().filter(|s| !s.is_empty()).cloned().collect::<Vec<_>>().join("; ");
        return Some(draft);
    }
    let mut draft = document(&Value::Array(values));
    draft.summary = draft.summary.replace("JSON array of", "JSON lines:");
    Some(draft)
}

/// The log inside JSON lines of cargo (`rendered`) or `go test -json` (`Output`), and counts of what the events say.
fn wrapped_log(values: &[Value]) -> Option<(String, String)> {
    let mut log = String::new();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    let mut found = 0;
    for value in values {
        if let Some(rendered) = value.pointer("/message/rendered").or(value.get("rendered")).and_then(Value::as_str) {
            found += 1;
            log.push_str(rendered);
            log.push('\n');
        } else if let Some(action) = value.get("Action").and_then(Value::as_str) {
            found += 1;
            if let Some(output) = value.get("Output").and_then(Value::as_str) {
                log.push_str(output);
            } else if let Some(test) = value.get("Test").and_then(Value::as_str) {
                *ends.entry(action.to_owned()).or_default() += 1;
                if action == "fail" {
                    failed.push(test.to_owned());
                }
            } else if action == "fail" {
                failed.push(format!("package {}", value.get("Package").and_then(Value::as_str).unwrap_or("?")));
            }
        }
    }
    if found * 2 < values.len() {
        return None;
    }
    let mut facts: Vec<String> =
        ["pass", "fail", "skip"].iter().filter_map(|k| ends.get(*k).map(|n| format!("{n} {k}"))).collect();
    if !failed.is_empty() {
        facts.push(format!("failed: {}", failed.join(", ")));
    }
    Some((log, facts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(draft: &Draft) -> String {
        draft.render(&draft.order(), 6000).0
    }

    #[test]
    fn shape_counts_and_standouts() {
        let mut rows: Vec<String> =
            (0..40).map(|i| format!(r#"{{"id":"run-{i}","status":"passed","ms":{i}}}"#)).collect();
        rows[17] = r#"{"id":"job-x77","status":"failed","ms":91022,"log":{"error":"disk full"}}"#.to_owned();
        let value: Value =
            serde_json::from_str(&format!(r#"{{"total":40,"items":[{}]}}"#, rows.join(","))).expect("valid");
        let text = shown(&document(&value));
        for want in [
            "total = 40",
            "items: 40 ×",
            "passed 39, failed 1",
            "items[17] = {id: \"job-x77\", status: \"failed\"",
            "disk full",
            "0…91022",
        ] {
            assert!(text.contains(want), "{want} in {text}");
        }
    }

    #[test]
    fn logs_in_json_lines() {
        let go = [
            r#"{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}"#,
            r#"{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:12: want 3\n"}"#,
            r#"{"Action":"fail","Package":"p","Test":"TestA"}"#,
            r#"{"Action":"pass","Package":"p","Test":"TestB"}"#,
        ]
        .join("\n");
        let text = shown(&lines(&go).expect("json lines"));
        for want in ["1 pass, 1 fail", "failed: TestA", "a_test.go:12: want 3"] {
            assert!(text.contains(want), "{want} in {text}");
        }
    }
}
