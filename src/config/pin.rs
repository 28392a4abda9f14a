//! `[[pin]]`: patterns of what people say that holds through every fold.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};

use super::file::Layer;
use super::problem::Problem;
use super::written::{self as read, Value, Written};

/// The keys of `[[pin]]`.
pub(crate) const KEYS: &[&str] = &["match"];

/// Longest pattern (bytes).
const LONGEST: usize = 1_000;

/// Largest compiled pattern (bytes).
const LARGEST: usize = 1 << 20;

/// Lines that have nothing in common: a pattern that matches all of them matches everything.
const UNLIKE: [&str; 5] = ["a", "7", "-", "B", "ж"];

/// A pattern: each line of a person's words that it matches is pinned.
#[derive(Debug, Clone)]
pub struct PinPattern {
    regex: Regex,
    /// Where it stands: `config.toml:9`, `profile NAME` or `environment`.
    pub source: String,
}

impl PartialEq for PinPattern {
    fn eq(&self, other: &PinPattern) -> bool {
        self.text() == other.text() && self.source == other.source
    }
}

impl PinPattern {
    /// As it was written.
    pub fn text(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether it matches a line.
    pub fn fits(&self, line: &str) -> bool {
        self.regex.is_match(line)
    }
}

/// The patterns of a file, or the one of the environment.
pub(crate) fn resolve(layer: &Layer, problems: &mut Vec<Problem>) -> Vec<PinPattern> {
    let alone = layer.values.get("pin.match").map(|written| ("match".to_owned(), written.clone()));
    let alone = alone.map(|entry| ("environment".to_owned(), BTreeMap::from([entry])));
    let tables = layer.pins.iter().cloned().chain(alone);
    tables.filter_map(|(place, table)| one(&place, &table, problems)).collect()
}

fn one(place: &str, table: &BTreeMap<String, Written>, problems: &mut Vec<Problem>) -> Option<PinPattern> {
    let Some(written) = table.get("match") else {
        let problem = Problem::new(place, "this [[pin]] has no `match`");
        problems.push(problem.hint("for instance, match = '(?i)^rule:'"));
        return None;
    };
    let regex = written.read(pattern, problems)?;
    Some(PinPattern { regex: regex.value, source: regex.source })
}

fn pattern(value: &Value) -> Result<Regex, String> {
    let text = read::any_text(value).map_err(|_| "must be a regular expression in quotes".to_owned())?;
    if text.trim().is_empty() {
        return Err("must not be empty: an empty pattern pins everything".into());
    }
    if text.len() > LONGEST {
        return Err(format!("must have at most {LONGEST} bytes, and has {}", text.len()));
    }
    let regex = RegexBuilder::new(&text).size_limit(LARGEST).build();
    let regex = regex.map_err(|e| format!("must be a regular expression: {}", last_line(&e.to_string())))?;
    if regex.is_match("") || UNLIKE.iter().all(|line| regex.is_match(line)) {
        return Err("must not match every line: everything would be pinned, and nothing could be folded".into());
    }
    Ok(regex)
}

/// What a regular expression's error comes to: its last line says it.
fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or(error).trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_must_mean_something_and_not_everything() {
        let read = |text: &str| pattern(&Value::Text(text.to_owned()));
        for good in ["(?i)^rule:", "always|never", r"\bMUST\b"] {
            assert!(read(good).is_ok(), "{good}");
        }
        for wrong in ["", "  ", ".*", ".", "x?", "^", r"\S", "a|", "("] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read(&"a".repeat(1001)).is_err() && read(r"\w{1000}{1000}").is_err());
        assert!(pattern(&Value::Bool(true)).is_err());
    }
}
