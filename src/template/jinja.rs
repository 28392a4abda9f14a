//! Jinja as llama.cpp runs it (`common/jinja`), which is Hugging Face's with a few turns of its own: nothing, undefined
//! and maps print as nothing; lists print their items one after the other; numbers and JSON are spelled in its own way.

use std::borrow::Cow;
use std::sync::LazyLock;

use minijinja::machinery::WhitespaceConfig;
use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior};
use regex::Regex;
use serde_json::Value;

use super::date::strftime;
use super::dumps::{six_digits, tojson};
use super::values::{backwards, calling, calls_before, first_calling, float, list, repr, value, with};
use super::{loops, macros, numbers, rope, scans, sums};

/// The variable that tells `strftime_now` the time.
pub(super) const NOW: &str = "__now";

/// How chat templates treat white space around blocks.
pub(super) const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

/// An environment with what chat templates use.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Chainable);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(|state, value, method, args| match (value.as_str(), method, args) {
        (Some(text), "upper" | "lower" | "title" | "capitalize", []) => Ok(Jinja::from(cased(text, method))),
        (Some(text), "strip" | "lstrip" | "rstrip", []) => Ok(Jinja::from(stripped(text, method, None))),
        (Some(text), "strip" | "lstrip" | "rstrip", [of]) if of.as_str().is_some() => {
            Ok(Jinja::from(stripped(text, method, of.as_str())))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        env.add_filter(name, move |text: Cow<'_, str>| cased(&text, name));
    }
    env.add_filter("trim", |value: &Jinja, of: Option<&str>| match value.kind() {
        ValueKind::Undefined => String::new(),
        _ => stripped(value.as_str().map_or_else(|| repr(value, false).into(), Cow::from).as_ref(), "strip", of)
            .to_owned(),
    });
    env.set_formatter(print);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Jinja| match value.kind() {
        ValueKind::Number if !value.is_integer() => six_digits(f64::try_from(value.clone()).unwrap_or(0.0)),
        _ => repr(value, false),
    });
    env.add_filter("some", |value: Jinja| match value.kind() {
        ValueKind::Undefined | ValueKind::None => Jinja::from(""),
        _ => value,
    });
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("indent", indent);
    env.add_filter(loops::CALLING, calling);
    env.add_filter(loops::WITH, with);
    env.add_filter(numbers::BEFORE, calls_before);
    env.add_filter(numbers::FIRST, first_calling);
    env.add_filter(scans::BACKWARDS, backwards);
    env.add_filter(rope::ADDED, |before: Jinja, more: &str| rope::added(&before, more));
    env.add_filter("__same", |a: &Jinja, b: &Jinja| same(a, b));
    env.add_filter(ITEMS, |value: Jinja| match value.kind() {
        ValueKind::Iterable => list(value.try_iter().into_iter().flatten().collect()),
        _ => value,
    });
    // Nothing is not iterable in Python; what is, is a sequence to llama.cpp.
    for name in ["iterable", "sequence"] {
        env.add_test(name, |value: &Jinja| {
            matches!(
                value.kind(),
                ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
            )
        });
    }
    env.add_filter("from_json", |text: &str| {
        let read = serde_json::from_str::<Value>(text);
        read.map(|v| value(&v)).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
    });
    env.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raise(message)))
    });
    env.add_function("strftime_now", |state: &State<'_, '_>, format: &str| {
        strftime(state.lookup(NOW).and_then(|n| i64::try_from(n).ok()).unwrap_or(0), format)
    });
    env
}

/// The filter that makes a list of what is only walked through: a place in it is then found at once.
const ITEMS: &str = "__items";

/// Whether two values are equal. Maps and lists that hold maps or lists never are, be they the same: llama.cpp compares
/// only those that it can hash (`value_t::equivalent`).
fn same(a: &Jinja, b: &Jinja) -> bool {
    let holds = |value: &Jinja| matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable);
    let deep = |value: &Jinja| {
        let items = || value.try_iter().into_iter().flatten();
        match value.kind() {
            ValueKind::Map => items().any(|key| value.get_item(&key).is_ok_and(|item| holds(&item))),
            _ => holds(value) && items().any(|item| holds(&item)),
        }
    };
    a == b && !deep(a) && !deep(b)
}

/// A text with its lines indented, but for the first and the empty ones unless told; a line break at its end stays.
fn indent(
    text: &str,
    width: Option<Jinja>,
    first: Option<bool>,
    blank: Option<bool>,
    more: Kwargs,
) -> Result<String, Error> {
    let width = more.get::<Option<Jinja>>("width").ok().flatten().or(width);
    let told =
        |name: &str, given: Option<bool>| more.get::<Option<bool>>(name).ok().flatten().or(given).unwrap_or(false);
    let (first, blank) = (told("first", first), told("blank", blank));
    let by = match &width {
        Some(text) if text.as_str().is_some() => text.as_str().unwrap_or_default().to_owned(),
        Some(n) => " ".repeat(usize::try_from(n.clone()).unwrap_or(4).min(256)),
        None => " ".repeat(4),
    };
    let (lines, last) = match text.strip_suffix('\n') {
        Some(lines) => (lines, true),
        None => (text, false),
    };
    let mut out = String::with_capacity(text.len() + 64);
    for line in lines.split('\n') {
        if !out.is_empty() {
            out.push('\n');
        }
        // What stands before the first line that is not empty is as the first, as llama.cpp has it.
        if if out.is_empty() { first } else { !line.is_empty() || blank } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    if last {
        out.push('\n');
        if blank {
            out.push_str(&by);
        }
    }
    Ok(out)
}

/// A text in capitals, or with them where words begin: ASCII alone, as C has it.
fn cased(text: &str, how: &str) -> String {
    let mut begins = true;
    let each = |c: char| {
        let upper = match how {
            "upper" => true,
            "lower" => false,
            _ => begins && !c.is_ascii_whitespace(),
        };
        begins = how == "title" && c.is_ascii_whitespace();
        if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }
    };
    text.chars().map(each).collect()
}

/// A text without white space at its ends, as C's `isspace` has it, or without these characters.
fn stripped<'a>(text: &'a str, how: &str, of: Option<&str>) -> &'a str {
    let goes = |c: char| of.map_or(matches!(c, ' ' | '\t'..='\r'), |of| of.contains(c));
    let text = if how == "rstrip" { text } else { text.trim_start_matches(goes) };
    if how == "lstrip" { text } else { text.trim_end_matches(goes) }
}

/// The length of a value, of a text in bytes; of what is not there, nothing.
fn length(value: &Jinja) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().len()),
        _ => value.len().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("cannot calculate length of value of type {}", value.kind()),
            )
        }),
    }
}

/// Marks an error that `raise_exception` made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raise(pub(super) String);

/// Rewrites what Hugging Face's Jinja knows and minijinja does not: `{% generation %}` marks the assistant's words for
/// training and changes nothing here; lists in a namespace are changed in place by `append` and `pop(0)`;
/// what is not there may be added to a text.
pub(super) fn prepared(source: &str) -> String {
    static RULES: LazyLock<[(Regex, &str); 9]> = LazyLock::new(|| {
        let rule = |pattern: &str| Regex::new(pattern).expect("the pattern is a constant and a test runs it");
        [
            (rule(r"\{%(-?)\s*generation\s*(-?)%\}"), "{%${1} if true ${2}%}"),
            (rule(r"\{%(-?)\s*endgeneration\s*(-?)%\}"), "{%${1} endif ${2}%}"),
            (
                rule(r"\{%(-?)\s*set\s+\w+\s*=\s*(\w+\.\w+)\.append\(([^\n]*?)\)\s*(-?)%\}"),
                "{%${1} set ${2} = ${2} + [${3}] ${4}%}",
            ),
            (
                rule(r"\{%(-?)\s*set\s+(\w+)\s*=\s*(\w+\.\w+)\.pop\(0\)\s*(-?)%\}"),
                "{%${1} set ${2} = ${3}[0] -%}{%- set ${3} = ${3}[1:] ${4}%}",
            ),
            // Nothing, added to a text, is no text.
            (rule(r#"('[^'\n]*'|"[^"\n]*")\s*\+\s*(\w+(?:\.\w+)+)\s*(-?\}\})"#), "${1} + (${2} | some) ${3}"),
            // A message, as one of a list.
            (
                rule(r"(^|[^\w.\])}])([A-Za-z_]\w*)\s*==\s*([A-Za-z_]\w*\[-?\d+\])([^\w.\[(]|$)"),
                "${1}(${2} | __same(${3}))${4}",
            ),
            // minijinja panics on an empty list that is read backwards this way.
            (rule(r"(\w+(?:\.\w+)*)\[::-1\]"), "(${1} | reverse)"),
            (rule(r"~\s*([A-Za-z_]\w*)\s*~"), "~ (${1} | some) ~"),
            (rule(r"(\{%-?\s*set\s+\w+\s*=\s*\w+\[-?\d*:-?\d*\])(\s*-?%\})"), "${1} | __items${2}"),
        ]
    });
    RULES.iter().fold(source.to_owned(), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned())
}

/// Rewrites a [`prepared`] template so that it renders the same in less time.
pub(super) fn quickened(source: &str) -> String {
    let rewritten = rope::roped(&loops::shortened(source, WHITESPACE), WHITESPACE);
    macros::inlined(&sums::divided(&rewritten, WHITESPACE), WHITESPACE)
}

/// Prints what a template puts out.
fn print(out: &mut Output<'_>, state: &State<'_, '_>, value: &Jinja) -> Result<(), Error> {
    let write = |out: &mut Output<'_>, text: &str| {
        out.write_str(text).map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
    };
    match value.kind() {
        ValueKind::String => write(out, value.as_str().unwrap_or_default()),
        ValueKind::Bool => write(out, if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => write(out, &float(value)),
        ValueKind::None | ValueKind::Undefined | ValueKind::Map => Ok(()),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.try_for_each(|item| print(out, state, &item)),
        _ => minijinja::escape_formatter(out, state, value),
    }
}
