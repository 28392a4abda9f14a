//! Jinja as llama.cpp runs it (`common/jinja`), which is Hugging Face's with a few turns of its own: nothing, undefined
//! and maps print as nothing; lists print their items one after the other; numbers and JSON are spelled in its own way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use minijinja::machinery::WhitespaceConfig;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior};
use regex::Regex;
use serde_json::Value;

use super::date::strftime;
use super::{loops, rope};

/// The variable that tells `strftime_now` the time.
pub(super) const NOW: &str = "__now";

/// An environment with what chat templates use.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Chainable);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(|state, value, method, args| match (value.as_str(), method, args) {
        (Some(text), "upper" | "lower" | "title" | "capitalize", []) => Ok(Jinja::from(cased(text, method))),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        env.add_filter(name, move |text: Cow<'_, str>| cased(&text, name));
    }
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
    env.add_filter(rope::ADDED, |before: Jinja, more: &str| rope::added(&before, more));
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

/// Of a list of messages those with a call of this id, those whose calls have ids that are no text, and what is no message;
/// all of what is no such list.
fn calling(value: Jinja, id: Jinja) -> Jinja {
    match (value.downcast_object_ref::<List>(), id.as_str()) {
        (Some(messages), Some(id)) => {
            let places = messages.calls().get(id).map_or(&[][..], Vec::as_slice);
            let all = messages.calls().get("").map_or(&[][..], Vec::as_slice);
            let mut places = [places, all].concat();
            places.sort_unstable();
            places.dedup();
            list(places.into_iter().filter_map(|at| messages.items.get(at).cloned()).collect())
        }
        _ => value,
    }
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
    static RULES: LazyLock<[(Regex, &str); 8]> = LazyLock::new(|| {
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
            // minijinja panics on an empty list that is read backwards this way.
            (rule(r"(\w+(?:\.\w+)*)\[::-1\]"), "(${1} | reverse)"),
            (rule(r"~\s*([A-Za-z_]\w*)\s*~"), "~ (${1} | some) ~"),
            (rule(r"(\{%-?\s*set\s+\w+\s*=\s*\w+\[-?\d*:-?\d*\])(\s*-?%\})"), "${1} | __items${2}"),
        ]
    });
    let ours = RULES.iter().fold(source.to_owned(), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned());
    let whitespace = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let shortened = loops::shortened(&ours, whitespace);
    rope::roped(&shortened, whitespace)
}

/// A JSON value as templates see it.
pub(super) fn value(json: &Value) -> Jinja {
    match json {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        // llama.cpp keeps whole numbers in 64 bits with a sign, whatever comes of it.
        Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), ..) => Jinja::from(n),
            (None, Some(n), _) => Jinja::from(n as i64),
            (None, None, Some(n)) => Jinja::from(n),
            _ => Jinja::from(()),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(items) => list(items.iter().map(value).collect()),
        Value::Object(map) => {
            Jinja::from_object(Dict(map.iter().map(|(k, v)| (Arc::from(k.as_str()), value(v))).collect()))
        }
    }
}

/// A map that is spelled as Python spells it where it becomes text.
#[derive(Debug)]
struct Dict(Vec<(Arc<str>, Jinja)>);

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let key = key.as_str()?;
        self.0.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(k, _)| Jinja::from(Arc::clone(k))).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&repr(&Jinja::from_dyn_object(Arc::clone(self)), false))
    }
}

/// A list as templates see it.
pub(super) fn list(items: Vec<Jinja>) -> Jinja {
    Jinja::from_object(List { items, calls: OnceLock::new() })
}

/// A list that is spelled as Python spells it where it becomes text.
#[derive(Debug)]
struct List {
    items: Vec<Jinja>,
    calls: OnceLock<HashMap<Arc<str>, Vec<usize>>>,
}

impl List {
    /// Of messages: the places of those with a call of an id, in order; under the empty one those of calls whose id is no
    /// text, and of what is no message.
    fn calls(&self) -> &HashMap<Arc<str>, Vec<usize>> {
        self.calls.get_or_init(|| {
            let mut out: HashMap<Arc<str>, Vec<usize>> = HashMap::new();
            for (at, message) in self.items.iter().enumerate() {
                if message.kind() != ValueKind::Map {
                    out.entry(Arc::from("")).or_default().push(at);
                }
                let calls = message.get_attr("tool_calls").unwrap_or_default();
                for call in calls.try_iter().into_iter().flatten() {
                    let id = call.get_attr("id").unwrap_or_default();
                    out.entry(Arc::from(id.as_str().unwrap_or_default())).or_default().push(at);
                }
            }
            out
        })
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.items.get(usize::try_from(key.clone()).ok()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&repr(&Jinja::from_dyn_object(Arc::clone(self)), false))
    }
}

/// A value as text: as it is, or within another, where strings are quoted.
fn repr(value: &Jinja, within: bool) -> String {
    match value.kind() {
        ValueKind::String if within => match value.as_str().unwrap_or_default() {
            text if text.contains('\'') => serde_json::to_string(text).unwrap_or_default(),
            text => format!("'{text}'"),
        },
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Number if !value.is_integer() => float(value),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|v| repr(&v, true)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let keys: Vec<Jinja> = value.try_iter().into_iter().flatten().collect();
            let entry = |k: &Jinja| {
                let v = value.get_item(k).unwrap_or_default();
                format!("{}: {}", repr(k, true), repr(&v, true))
            };
            format!("{{{}}}", keys.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

/// A fraction as llama.cpp prints it: six places, without the zeros at the end but for one.
fn float(value: &Jinja) -> String {
    let number = f64::try_from(value.clone()).unwrap_or(0.0);
    let text = format!("{number:.6}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
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

/// `tojson` as llama.cpp spells it: Python's `json.dumps` with `ensure_ascii=False`, and fractions of six digits.
fn tojson(value: &Jinja, args: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = args.get("indent").ok().flatten();
    let ascii = args.get::<Option<bool>>("ensure_ascii").ok().flatten().unwrap_or(false);
    let sort = args.get::<Option<bool>>("sort_keys").ok().flatten().unwrap_or(false);
    let separators: Option<Vec<String>> = args.get("separators").ok().flatten();
    let mut value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("no JSON can be made of it: {e}")))?;
    if sort {
        value.sort_all_objects();
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        _ if indent.is_some() => (",", ": "),
        _ => (", ", ": "),
    };
    let mut out = String::new();
    Dumps { indent, ascii, item, key }.write(&mut out, &value, 0);
    Ok(out)
}

struct Dumps<'a> {
    indent: Option<usize>,
    ascii: bool,
    item: &'a str,
    key: &'a str,
}

impl Dumps<'_> {
    fn write(&self, out: &mut String, value: &Value, depth: usize) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push(']');
            }
            Value::Object(map) if !map.is_empty() => {
                out.push('{');
                for (i, (key, item)) in map.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.string(out, key);
                    out.push_str(self.key);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push('}');
            }
            Value::String(text) => self.string(out, text),
            Value::Number(n) if n.is_f64() => out.push_str(&six_digits(n.as_f64().unwrap_or(0.0))),
            other => out.push_str(&other.to_string()),
        }
    }

    fn line(&self, out: &mut String, again: bool, depth: usize) {
        if again {
            out.push_str(self.item);
        }
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', (indent * depth).min(256)));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        let quoted = serde_json::to_string(text).unwrap_or_default();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}

/// A fraction as C++ streams print it (`%g`): six significant digits, the exponent only where it is shorter.
fn six_digits(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 { "0".into() } else { format!("{number}").to_lowercase() };
    }
    let scientific = format!("{number:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{number:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}
