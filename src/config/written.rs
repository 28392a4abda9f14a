//! A value as somebody wrote it, and the readers that turn it into what the program needs.
//!
//! A reader is pure: a value in, a typed value or one sentence saying what it must be out. It knows neither key nor
//! place; [`Written::read`] puts those around the sentence.

use crate::admission::Listing;
use crate::conversation::Tokens;
use crate::plan::{ClearLine, FoldAt, KeepRecent, Size, Strategy};

use super::problem::{Problem, near};

/// A value from a file, the environment or the command line, with where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Written {
    /// The value.
    pub(crate) value: Value,
    /// As a person would type it, for messages: strings in quotes. Empty for secrets.
    pub(crate) shown: String,
    /// Its name in messages: the key, or the environment variable or flag.
    pub(crate) name: String,
    /// Where it stands, for problems: `config.toml:9:12`.
    pub(crate) place: String,
    /// Where it comes from, for `profile show`: `config.toml:9`, `environment WINDOWSILL_LISTEN`, `default`.
    pub(crate) source: String,
}

/// The kinds of value there are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// A TOML string.
    Text(String),
    /// Text without a type, from the environment or the command line: read as whatever the key needs.
    Word(String),
    /// A TOML integer.
    Whole(i64),
    /// A TOML float.
    Real(f64),
    /// A TOML boolean.
    Bool(bool),
    /// A TOML array of strings.
    Names(Vec<String>),
    /// A TOML value that no key takes: a date, a table, a mixed array.
    Other,
}

/// A typed value and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it comes from: `config.toml:9`, `environment WINDOWSILL_LISTEN`, `profile qwen3`, `default`.
    pub source: String,
}

impl Written {
    /// Text from outside a file: a flag or an environment variable.
    pub(crate) fn word(name: &str, text: &str, place: &str, source: &str) -> Written {
        let shown = if is_secret(name) { String::new() } else { mask(&format!("{text:?}")) };
        Written {
            value: Value::Word(text.to_owned()),
            shown,
            name: name.to_owned(),
            place: place.to_owned(),
            source: source.to_owned(),
        }
    }

    /// The typed value, or `None` and one more problem.
    pub(crate) fn read<T>(&self, read: Reader<T>, problems: &mut Vec<Problem>) -> Option<Sourced<T>> {
        match read(&self.value) {
            Ok(value) => Some(Sourced { value, source: self.source.clone() }),
            Err(wanted) => {
                problems.push(self.problem(&wanted));
                None
            }
        }
    }

    /// The problem that this value is not as `wanted` says; `wanted` may carry a hint after a line break.
    pub(crate) fn problem(&self, wanted: &str) -> Problem {
        let (wanted, hint) = wanted.split_once('\n').unwrap_or((wanted, ""));
        let message = match self.shown.as_str() {
            "" => format!("`{}` {wanted}", self.name),
            shown => format!("`{}` is {shown}; it {wanted}", self.name),
        };
        let problem = Problem::new(&self.place, message);
        if hint.is_empty() { problem } else { problem.hint(hint) }
    }
}

/// Whether a key, variable or flag of this name holds a secret, so that its value is never shown.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    name.ends_with("api_key")
        || name.ends_with("headers")
        || matches!(name.as_str(), "hash" | "record" | "windowsill_record")
}

/// Text with the user and password of an address in it blotted out.
pub(crate) fn mask(text: &str) -> String {
    let credentials = text.find("://").and_then(|scheme| {
        let start = scheme + "://".len();
        let end = start + text[start..].find('/').unwrap_or(text.len() - start);
        Some((start, start + text[start..end].rfind('@')?))
    });
    match credentials {
        Some((start, end)) => format!("{}…{}", &text[..start], &text[end..]),
        None => text.to_owned(),
    }
}

/// Reads one kind of value; the error completes the sentence "it …", with a hint after a line break.
pub(crate) type Reader<T> = fn(&Value) -> Result<T, String>;

impl Value {
    /// The text of a string or word.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Word(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number, read from a word if need be.
    pub(crate) fn whole(&self) -> Option<i64> {
        match self {
            Value::Whole(n) => Some(*n),
            Value::Word(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Value::Real(x) => Some(*x),
            Value::Word(text) => text.trim().replace('_', "").parse().ok(),
            _ => self.whole().map(|n| n as f64),
        }
    }
}

/// A string that is not empty.
pub(crate) fn text(value: &Value) -> Result<String, String> {
    match value.text() {
        Some(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        _ => Err("must be a string that is not empty".to_owned()),
    }
}

/// A string that may be empty.
pub(crate) fn any_text(value: &Value) -> Result<String, String> {
    value.text().map(|text| text.trim().to_owned()).ok_or_else(|| "must be a string".to_owned())
}

/// `true` or `false`.
pub(crate) fn boolean(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(yes) => Ok(*yes),
        Value::Word(text) if text.eq_ignore_ascii_case("true") || text == "1" => Ok(true),
        Value::Word(text) if text.eq_ignore_ascii_case("false") || text == "0" => Ok(false),
        _ => Err("must be `true` or `false`".to_owned()),
    }
}

/// A list of strings; from the environment, names between commas.
pub(crate) fn names(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Names(names) => Ok(names.clone()),
        Value::Word(text) => {
            Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
        }
        _ => Err("must be a list of strings, such as [\"a\", \"b\"]".to_owned()),
    }
}

/// A share of the window: above 0 and at most 1.
pub(crate) fn share(value: &Value) -> Result<f64, String> {
    value
        .number()
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| "must be a share of the window, above 0 and at most 1".to_owned())
}

/// A share that may be nothing but not all.
pub(crate) fn headroom(value: &Value) -> Result<f64, String> {
    value
        .number()
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| "must be a share of each device's memory, from 0 to below 1".to_owned())
}

/// A share of the window, or a whole number of tokens above 1.
pub(crate) fn size(value: &Value) -> Result<Size, String> {
    let most = f64::from(Tokens::MAX);
    match value.number() {
        Some(share) if share > 0.0 && share <= 1.0 => Ok(Size::Share(share)),
        Some(tokens) if tokens > 1.0 && tokens <= most && tokens.fract() == 0.0 => Ok(Size::Tokens(tokens as Tokens)),
        _ => Err("must be a share of the window, above 0 and at most 1, or a whole number of tokens".to_owned()),
    }
}

/// `"off"`, or a size as [`size`] reads it.
pub(crate) fn size_or_off(value: &Value) -> Result<Option<Size>, String> {
    match value.text() {
        Some(text) if text.trim().eq_ignore_ascii_case("off") => Ok(None),
        _ => size(value).map(Some).map_err(|wanted| format!("{wanted}, or \"off\"")),
    }
}

/// How such a size is written.
pub(crate) fn show_size_or_off(size: &Option<Size>) -> String {
    size.as_ref().map_or_else(|| "off".to_owned(), show_size)
}

/// A whole number from `least` to `most`; `unit` completes "a whole number of …".
fn whole(value: &Value, least: u64, most: u64, unit: &str) -> Result<u64, String> {
    value
        .whole()
        .and_then(|n| u64::try_from(n).ok())
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| format!("must be a whole number of {unit} from {least} to {most}"))
}

/// Most tokens any setting may name: far above every window there is, far below overflow in sums.
const MOST_TOKENS: u64 = 100_000_000;

/// Tokens, at least 1.
pub(crate) fn tokens(value: &Value) -> Result<Tokens, String> {
    whole(value, 1, MOST_TOKENS, "tokens").map(|n| n as Tokens)
}

/// Tokens of a brief: below 16 nothing can be said.
pub(crate) fn brief_tokens(value: &Value) -> Result<Tokens, String> {
    whole(value, 16, MOST_TOKENS, "tokens").map(|n| n as Tokens)
}

/// `"auto"`, or messages, at least 1: the newest is never rewritten anyway.
pub(crate) fn keep_recent(value: &Value) -> Result<KeepRecent, String> {
    match value.text() {
        Some(text) if text.trim().eq_ignore_ascii_case("auto") => Ok(KeepRecent::ByWindow),
        _ => whole(value, 1, 1_000_000, "messages")
            .map(|n| KeepRecent::Messages(n as usize))
            .map_err(|wanted| format!("{wanted}, or \"auto\"")),
    }
}

/// How that is written.
pub(crate) fn show_keep_recent(keep: &KeepRecent) -> String {
    match keep {
        KeepRecent::ByWindow => "auto".to_owned(),
        KeepRecent::Messages(n) => n.to_string(),
    }
}

/// `"auto"` or `"off"`.
pub(crate) fn auto_or_off(value: &Value) -> Result<bool, String> {
    Ok(choice(value, &["auto", "off"])? == "auto")
}

/// How that is written.
pub(crate) fn show_auto_or_off(on: &bool) -> String {
    if *on { "auto" } else { "off" }.to_owned()
}

/// `"line"` or `"wall"`.
pub(crate) fn fold_at(value: &Value) -> Result<FoldAt, String> {
    Ok(if choice(value, &["line", "wall"])? == "line" { FoldAt::Line } else { FoldAt::Wall })
}

/// How that is written.
pub(crate) fn show_fold_at(at: &FoldAt) -> String {
    match at {
        FoldAt::Line => "line",
        FoldAt::Wall => "wall",
        FoldAt::Now => "now",
    }
    .to_owned()
}

/// Which line clearing waits for.
pub(crate) fn clear_line(value: &Value) -> Result<ClearLine, String> {
    Ok(match choice(value, &["pays", "line", "wall"])? {
        "line" => ClearLine::Line,
        "wall" => ClearLine::Wall,
        _ => ClearLine::Pays,
    })
}

/// How that is written.
pub(crate) fn show_clear_line(line: &ClearLine) -> String {
    match line {
        ClearLine::Pays => "pays",
        ClearLine::Line => "line",
        ClearLine::Wall => "wall",
    }
    .to_owned()
}

/// Bytes of a request body.
pub(crate) fn body_bytes(value: &Value) -> Result<u64, String> {
    whole(value, 1, 1 << 40, "bytes")
}

/// Bytes of a request's headers; hyper takes no buffer below 8192.
pub(crate) fn header_bytes(value: &Value) -> Result<usize, String> {
    whole(value, 8192, 1 << 30, "bytes").map(|n| n as usize)
}

/// Connections open at once.
pub(crate) fn connections(value: &Value) -> Result<usize, String> {
    whole(value, 1, 1_000_000, "connections").map(|n| n as usize)
}

/// Seconds, up to a day.
pub(crate) fn seconds(value: &Value) -> Result<u64, String> {
    whole(value, 0, 86_400, "seconds")
}

/// Seconds of a wait that must be there, up to a day.
pub(crate) fn wait_seconds(value: &Value) -> Result<u64, String> {
    whole(value, 1, 86_400, "seconds")
}

/// Days; 0 sets no limit.
pub(crate) fn days(value: &Value) -> Result<u32, String> {
    whole(value, 0, 1_000_000, "days").map(|n| n as u32)
}

/// The most of something; 0 sets no limit.
pub(crate) fn at_most(value: &Value) -> Result<u64, String> {
    value
        .whole()
        .and_then(|n| u64::try_from(n).ok())
        .filter(|n| *n <= 1 << 50)
        .ok_or_else(|| "must be a whole number, or 0 for no limit".to_owned())
}

/// An amount of money or power, from 0.
pub(crate) fn amount(value: &Value) -> Result<f64, String> {
    value
        .number()
        .filter(|amount| (0.0..1e9).contains(amount))
        .ok_or_else(|| "must be a number, and not negative".to_owned())
}

/// What a model's choice of words is spread by, as servers take it.
pub(crate) fn temperature(value: &Value) -> Result<f64, String> {
    value.number().filter(|t| (0.0..=2.0).contains(t)).ok_or_else(|| "must be a temperature, from 0 to 2".to_owned())
}

/// Bytes of the record; 0 sets no limit.
pub(crate) fn record_bytes(value: &Value) -> Result<u64, String> {
    whole(value, 0, 1 << 60, "bytes")
}

/// Length of a tool call id; 0 when any id is accepted.
pub(crate) fn id_length(value: &Value) -> Result<Option<usize>, String> {
    whole(value, 0, 64, "characters").map(|n| (n > 0).then_some(n as usize))
}

/// What to do when clearing is not enough.
pub(crate) fn strategy(value: &Value) -> Result<Strategy, String> {
    match choice(value, &["summarize", "truncate", "off"])? {
        "summarize" => Ok(Strategy::Summarize),
        "truncate" => Ok(Strategy::Truncate),
        _ => Ok(Strategy::Off),
    }
}

/// What is done with a client's tools.
pub(crate) fn listing(value: &Value) -> Result<Listing, String> {
    Ok(Listing::read(choice(value, &["as_sent", "auto", "index"])?).unwrap_or_default())
}

/// What is done with a client's system text.
pub(crate) fn system_listing(value: &Value) -> Result<Listing, String> {
    Ok(Listing::read(choice(value, &["as_sent", "index"])?).unwrap_or_default())
}

/// One of a few words; the error lists them and names the one that was most likely meant.
pub(crate) fn choice<'a>(value: &Value, choices: &[&'a str]) -> Result<&'a str, String> {
    let given = value.text().unwrap_or_default().trim();
    if let Some(found) = choices.iter().find(|choice| **choice == given) {
        return Ok(found);
    }
    let listed = choices.iter().map(|choice| format!("{choice:?}")).collect::<Vec<_>>().join(", ");
    let hint = near(given, choices).map(|likely| format!("\ndid you mean {likely:?}?")).unwrap_or_default();
    Err(format!("must be one of {listed}{hint}"))
}

/// How a size is written.
pub(crate) fn show_size(size: &Size) -> String {
    match size {
        Size::Share(share) => share.to_string(),
        Size::Tokens(tokens) => tokens.to_string(),
    }
}

/// How a strategy is written.
pub(crate) fn show_strategy(strategy: &Strategy) -> String {
    match strategy {
        Strategy::Summarize => "summarize",
        Strategy::Truncate => "truncate",
        Strategy::Off => "off",
    }
    .to_owned()
}

/// Key, value and source of settings, as text.
pub(super) type Sources = Vec<(String, String, String)>;

/// Writes down a setting and where it comes from.
pub(super) fn note<T>(key: &str, setting: Option<&Sourced<T>>, show: impl Fn(&T) -> String, sources: &mut Sources) {
    sources.extend(setting.map(|setting| (key.to_owned(), show(&setting.value), setting.source.clone())));
}
