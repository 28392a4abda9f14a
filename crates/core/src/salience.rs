//! Salience: what the session itself says that its next steps will need. A name (a path, an identifier, a number) that
//! the assistant used itself, in a call, an edit or its own words, is worth more than one that only stood in a result; a
//! late use is worth more than an early one, and every use counts.
//!
//! The weights are fitted on recorded sessions (docs/notes/memory.md).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::conversation::step::call_of;
use crate::conversation::task::Keep;
use crate::conversation::{Message, Role};
use crate::preview::signal::{Grade, grade};

/// What a name in a result is worth, of what one is worth that the assistant used.
const SEEN: f32 = 0.1;

/// What a name in the words of a user is worth, by the same measure.
const ASKED: f32 = 0.3;

/// What a name in a result is worth that was read a second time: it was missed.
const READ_AGAIN: f32 = 0.2;

/// What a name in the words of a user is worth where these are kept longest, as much as one that the assistant used.
const ASKED_LONGEST: f32 = 1.0;

/// What a name in a result is worth where what was read is kept longest.
const SEEN_LONGEST: f32 = 0.3;

/// What a name in a line of trouble is worth beside that, where errors are kept longest.
const IN_TROUBLE: f32 = 0.6;

/// What the name of a file is worth where files are kept longest, as many times as otherwise.
const FILE_LONGEST: f32 = 2.0;

/// What a word of the focus is worth: more than any name can come to by itself.
const FOCUS: f32 = 4.0;

/// Letters from which a word of the focus counts.
const FOCUS_LETTERS: usize = 4;

/// Results are read for names in the newest so many bytes of a history. Bounds the time a fold takes; what is older was
/// taken up since, or is worth next to nothing.
const RESULTS_READ: usize = 1 << 19;

/// A shorter result, in bytes, says that something was done, not what was read.
const SHORTEST_RESULT: usize = 200;

/// Bytes of one message that are read for names.
const READ: usize = 1 << 17;

/// How much each name would be missed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Salience {
    names: HashMap<String, f32>,
    /// Words of the focus, in lower case.
    focus: Vec<String>,
}

impl Salience {
    /// The salience of the names in a history, as it stands at its end. `focus` is what a person wants kept above all,
    /// `keep` what is kept longest for what the conversation is for.
    pub fn of(body: &[Message], focus: Option<&str>, keep: Option<Keep>) -> Salience {
        let mut names: HashMap<String, f32> = HashMap::new();
        let mut results = 0;
        let again = read_again(body);
        for (at, message) in body.iter().enumerate().rev() {
            let worth = match message.role {
                Role::Assistant => 1.0,
                Role::User if keep == Some(Keep::Words) => ASKED_LONGEST,
                Role::User => ASKED,
                Role::Tool if matches!(keep, Some(Keep::Sources | Keep::Findings)) => SEEN_LONGEST,
                Role::Tool if again.contains(&at) => READ_AGAIN,
                Role::Tool | Role::System | Role::Other => SEEN,
            };
            if message.role == Role::Tool {
                results += message.text.len();
                if results > RESULTS_READ {
                    continue;
                }
            }
            let back = (body.len() - at) as f32;
            let lately = back * back.sqrt();
            let worth = worth / lately;
            let text = spoken(message);
            let mut found: Vec<&str> = self::names(&text[..floor(&text, READ)]).map(|name| &text[name]).collect();
            found.sort_unstable();
            found.dedup();
            for name in found {
                match names.get_mut(name) {
                    Some(sum) => *sum += worth,
                    None => {
                        names.insert(name.to_owned(), worth);
                    }
                }
            }
            if keep == Some(Keep::Errors) && message.role == Role::Tool {
                for name in in_trouble(&text[..floor(&text, READ)]) {
                    *names.entry(name.to_owned()).or_default() += IN_TROUBLE / lately;
                }
            }
        }
        if keep == Some(Keep::Files) {
            names.iter_mut().filter(|(name, _)| is_file(name)).for_each(|(_, worth)| *worth *= FILE_LONGEST);
        }
        let words = focus.unwrap_or_default().split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '/' | '.'));
        let focus = words.filter(|w| w.len() >= FOCUS_LETTERS).take(40).map(str::to_lowercase).collect();
        Salience { names, focus }
    }

    /// How much a name would be missed.
    pub fn name(&self, name: &str) -> f32 {
        self.names.get(name).copied().unwrap_or(0.0) + if self.is_focus(name) { FOCUS } else { 0.0 }
    }

    fn is_focus(&self, name: &str) -> bool {
        !self.focus.is_empty() && {
            let lower = name.to_lowercase();
            self.focus.iter().any(|word| lower.contains(word.as_str()))
        }
    }

    /// All names with their salience, the highest first.
    pub fn ranked(&self) -> Vec<(&str, f32)> {
        let mut all: Vec<(&str, f32)> = self.names.iter().map(|(name, worth)| (name.as_str(), *worth)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        all
    }
}

/// The names in the lines of a result that report trouble, each once.
fn in_trouble(text: &str) -> HashSet<&str> {
    let graded = grade(text);
    let lines = graded.lines.iter().zip(&graded.grades).filter(|(_, grade)| **grade >= Grade::Trouble);
    lines.flat_map(|(line, _)| names(line).map(|name| &line[name])).collect()
}

/// Whether a name is that of a file: with a folder before it, or a short extension of letters behind it.
fn is_file(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, end)| end);
    name.contains('/')
        || extension.is_some_and(|e| matches!(e.len(), 1..=5) && e.bytes().all(|b| b.is_ascii_alphabetic()))
}

/// The results of calls that were made before with the same arguments.
fn read_again(body: &[Message]) -> HashSet<usize> {
    let mut made = HashSet::new();
    let mut out = HashSet::new();
    for (at, message) in body.iter().enumerate().filter(|(_, m)| m.role == Role::Tool) {
        let Some((caller, nth)) = call_of(body, at) else { continue };
        let call = &body[caller].calls[nth];
        if message.text.len() >= SHORTEST_RESULT && !made.insert((call.name.as_str(), call.arguments.as_str())) {
            out.insert(at);
        }
    }
    out
}

/// What a message says, calls included. Line breaks and quotes in arguments are opened; all else stands as it was sent.
pub fn spoken(message: &Message) -> Cow<'_, str> {
    if message.calls.is_empty() {
        return Cow::Borrowed(&message.text);
    }
    let mut out = message.text.trim_end().to_owned();
    for call in &message.calls {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&call.name);
        out.push(' ');
        out.push_str(&opened(&call.arguments));
    }
    Cow::Owned(out)
}

/// Arguments with their line breaks and quotes opened.
fn opened(arguments: &str) -> Cow<'_, str> {
    if arguments.contains('\\') {
        Cow::Owned(arguments.replace("\\n", "\n").replace("\\\"", "\""))
    } else {
        Cow::Borrowed(arguments)
    }
}

/// The shortest name, in bytes.
const SHORTEST: usize = 4;

/// The longest name, in bytes: what is longer is data.
const LONGEST: usize = 160;

/// Where names stand in a text: paths, addresses, identifiers of code, numbers of three digits and more, hashes.
pub fn names(text: &str) -> impl Iterator<Item = Range<usize>> {
    Names { text, at: 0 }
}

struct Names<'t> {
    text: &'t str,
    at: usize,
}

impl Iterator for Names<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        while self.at < bytes.len() {
            let start = self.at + bytes[self.at..].iter().position(|b| is_part(*b))?;
            let mut end = start;
            while end < bytes.len() && (is_part(bytes[end]) || is_joint(bytes, start, end)) {
                end += 1;
            }
            self.at = end;
            let inner = |b: &u8| b.is_ascii_alphanumeric();
            let Some(first) = bytes[start..end].iter().position(inner) else { continue };
            let last = bytes[start..end].iter().rposition(inner).unwrap_or(first);
            let name = start + first..start + last + 1;
            if (SHORTEST..=LONGEST).contains(&name.len()) && is_name(&bytes[name.clone()]) {
                return Some(name);
            }
        }
        None
    }
}

fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'/' | b'.' | b'-' | b'@' | b'~')
}

/// Whether the colon at `at` joins two parts of a name: `std::fs`, `https://…`, `localhost:8080` but not `a.rs:12`.
fn is_joint(bytes: &[u8], start: usize, at: usize) -> bool {
    let next = |n: usize| bytes.get(at + n).copied();
    bytes[at] == b':'
        && (next(1) == Some(b':') && next(2).is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            || at > start && bytes[at - 1] == b':' && next(1).is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            || next(1) == Some(b'/') && next(2) == Some(b'/'))
}

/// Whether a run of letters, digits and joints is a name, and not a word.
fn is_name(word: &[u8]) -> bool {
    if word.iter().all(u8::is_ascii_digit) {
        return true;
    }
    let camel = word.windows(2).any(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase());
    let joined = word
        .windows(3)
        .any(|w| matches!(w[1], b'_' | b'/' | b'.' | b'-' | b':' | b'@') && w[0] != w[1] && w[2] != b'.');
    let digits = word.iter().filter(|b| b.is_ascii_digit()).count();
    camel || joined || digits >= 2
}

/// The largest index up to `at` where a character begins.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat::message;

    #[test]
    fn names_are_told_from_words() {
        for (text, expect) in [
            ("The editor fails in src/store/rows.rs:214, see Rows::next.", &["src/store/rows.rs", "Rows::next"][..]),
            (
                "wait 250 ms at http://127.0.0.1:8080/v1 (retry_budget=9187)",
                &["http://127.0.0.1", "8080/v1", "retry_budget", "9187"],
            ),
            ("getUserName and HttpClient, not the cat.", &["getUserName", "HttpClient"]),
            ("commit 3f9a1bc on --no-verify; e.g. this", &["3f9a1bc", "no-verify"]),
            ("héé 日本/語 a_b ... ---- ::", &[]),
        ] {
            let found: Vec<&str> = names(text).map(|name| &text[name]).collect();
            assert_eq!(found, expect, "{text}");
        }
    }

    #[test]
    fn what_the_assistant_took_up_counts_more() {
        let read = |value: serde_json::Value| message(value.to_string().into()).unwrap();
        let call = serde_json::json!([{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"src/a.rs\"}"}}]);
        let body = [
            read(serde_json::json!({"role": "user", "content": "Look at src/a.rs."})),
            read(serde_json::json!({"role": "assistant", "content": "", "tool_calls": call})),
            read(serde_json::json!({"role": "tool", "tool_call_id": "a", "content": "mod once_seen;"})),
        ];
        let salience = Salience::of(&body, Some("the once thing"), None);
        assert!(salience.name("src/a.rs") > 2.0 * Salience::of(&body, None, None).name("once_seen"));
        assert_eq!(salience.ranked()[0].0, "src/a.rs");
        assert!(salience.name("once_seen") > FOCUS && salience.name("unknown_name") == 0.0);
        assert_eq!(spoken(&body[1]), "read {\"path\": \"src/a.rs\"}");
    }

    #[test]
    fn what_a_task_keeps_longest_weighs_more() {
        let read = |value: serde_json::Value| message(value.to_string().into()).unwrap();
        let call = serde_json::json!([{"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}]);
        let body = [
            read(serde_json::json!({"role": "user", "content": "Mind the user_wish in src/b.rs."})),
            read(serde_json::json!({"role": "assistant", "content": "", "tool_calls": call})),
            read(serde_json::json!({"role": "tool", "tool_call_id": "a",
                "content": "error: cannot find bad_name\nbuilt good_name in src/a.rs"})),
        ];
        let of = |keep, name: &str| Salience::of(&body, None, keep).name(name);
        for (keep, more, same) in [
            (Keep::Errors, "bad_name", "good_name"),
            (Keep::Files, "src/a.rs", "good_name"),
            (Keep::Words, "user_wish", "good_name"),
            (Keep::Sources, "good_name", "user_wish"),
            (Keep::Findings, "good_name", "user_wish"),
        ] {
            assert!(of(Some(keep), more) > 1.9 * of(None, more), "{keep:?}");
            assert_eq!(of(Some(keep), same), of(None, same), "{keep:?}");
            assert_eq!(Keep::read(keep.as_str()), Some(keep));
        }
        assert_eq!(Keep::read("everything"), None);
    }
}
