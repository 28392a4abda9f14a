//! The guardrails: ceilings on what a turn and a session may take, the watchdog, and what is done about models that are too
//! small for what they are asked.

use super::glob::Glob;
use super::problem::Problem;
use super::written::{Reader, Sourced, Value};
use super::written::{Sources, note};
use super::{Layers, written as read};

/// Keys of `[ceiling]`.
pub(crate) const CEILING_KEYS: &[&str] = &[
    "turn_tokens",
    "turn_requests",
    "turn_minutes",
    "session_tokens",
    "session_requests",
    "session_minutes",
    "action",
    "price_per_million",
    "watts",
];

/// Keys of `[watch]`.
pub(crate) const WATCH_KEYS: &[&str] = &["repeated_calls", "action", "except", "small_model"];

/// What is done once a guardrail has seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// Nothing; it is not looked at.
    Allow,
    /// It is said: in a header, an event and the log.
    Warn,
    /// The model is told, too: a line is added to the newest result.
    Note,
    /// The request is refused.
    Refuse,
}

impl Response {
    /// As it is written in the config.
    pub fn as_str(self) -> &'static str {
        match self {
            Response::Allow => "allow",
            Response::Warn => "warn",
            Response::Note => "note",
            Response::Refuse => "refuse",
        }
    }
}

/// The most that may be spent; 0 for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Most {
    /// Tokens that a server evaluated or wrote.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
    /// Minutes from the first request of a turn to the last.
    pub minutes: u64,
}

/// The settings of `[ceiling]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// For one turn: what a person asks, and all requests until a person speaks again.
    pub turn: Most,
    /// For one conversation.
    pub session: Most,
    /// What is done at the ceiling.
    pub action: Response,
    /// What a million tokens cost, in any currency; 0 where nothing is to be said of it.
    pub price_per_million: f64,
    /// Watts that the machine draws while a model works; 0 where nothing is to be said of it.
    pub watts: f64,
}

/// The settings of `[watch]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    /// How often the same call makes a loop; 0 looks for none.
    pub repeated_calls: usize,
    /// What is done about a loop.
    pub action: Response,
    /// Tools whose calls are meant to repeat.
    pub except: Vec<Glob>,
    /// What is done about a model too small for what it is asked.
    pub small_model: Response,
}

/// Reads `[ceiling]`.
pub(super) fn ceiling(layers: &Layers, sources: &mut Sources, problems: &mut Vec<Problem>) -> Option<Ceiling> {
    let mut taken = Taken { layers, sources, problems };
    let watts = taken.take("ceiling.watts", read::amount, f64::to_string);
    let price = taken.take("ceiling.price_per_million", read::amount, f64::to_string);
    let action = taken.take("ceiling.action", warn_or_refuse, shown);
    let mut most = |of: [&str; 3]| {
        let [minutes, requests, tokens] = of.map(|key| taken.take(key, read::at_most, u64::to_string));
        Some(Most { tokens: tokens?, requests: requests?, minutes: minutes? })
    };
    let session = most(["ceiling.session_minutes", "ceiling.session_requests", "ceiling.session_tokens"]);
    let turn = most(["ceiling.turn_minutes", "ceiling.turn_requests", "ceiling.turn_tokens"]);
    Some(Ceiling { turn: turn?, session: session?, action: action?, price_per_million: price?, watts: watts? })
}

/// Reads `[watch]`.
pub(super) fn watch(layers: &Layers, sources: &mut Sources, problems: &mut Vec<Problem>) -> Option<Watch> {
    let mut taken = Taken { layers, sources, problems };
    let small_model = taken.take("watch.small_model", allow_warn_or_refuse, shown);
    let except = taken.take("watch.except", read::names, |names: &Vec<String>| names.join(", "));
    let action = taken.take("watch.action", warn_note_or_refuse, shown);
    let repeated_calls = taken.take("watch.repeated_calls", repeats, usize::to_string);
    let except = except?.iter().map(|name| Glob::new(name)).collect();
    Some(Watch { repeated_calls: repeated_calls?, action: action?, except, small_model: small_model? })
}

/// What is read of one table.
struct Taken<'a> {
    layers: &'a Layers,
    sources: &'a mut Sources,
    problems: &'a mut Vec<Problem>,
}

impl Taken<'_> {
    fn take<T>(&mut self, key: &str, reader: Reader<T>, show: impl Fn(&T) -> String) -> Option<T> {
        let setting: Option<Sourced<T>> = self.layers.take(key, reader, self.problems);
        note(key, setting.as_ref(), show, self.sources);
        setting.map(|setting| setting.value)
    }
}

fn shown(response: &Response) -> String {
    response.as_str().to_owned()
}

fn response(value: &Value, choices: &[Response]) -> Result<Response, String> {
    let words: Vec<&str> = choices.iter().map(|choice| choice.as_str()).collect();
    let chosen = read::choice(value, &words)?;
    choices.iter().find(|choice| choice.as_str() == chosen).copied().ok_or_else(String::new)
}

fn warn_or_refuse(value: &Value) -> Result<Response, String> {
    response(value, &[Response::Warn, Response::Refuse])
}

fn warn_note_or_refuse(value: &Value) -> Result<Response, String> {
    response(value, &[Response::Warn, Response::Note, Response::Refuse])
}

fn allow_warn_or_refuse(value: &Value) -> Result<Response, String> {
    response(value, &[Response::Allow, Response::Warn, Response::Refuse])
}

/// Twice is no pattern yet.
fn repeats(value: &Value) -> Result<usize, String> {
    let n = value.whole().and_then(|n| usize::try_from(n).ok()).filter(|n| *n == 0 || (3..=1000).contains(n));
    n.ok_or_else(|| "must be a whole number of calls from 3 to 1000, or 0 for none".to_owned())
}
