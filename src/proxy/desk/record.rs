//! What people and agents ask of the record: one text by its id, messages of a conversation, what holds some words. Reads
//! only, and never a file by a name that came from outside.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use super::rewrites;
use super::rows::row_json;
use crate::proxy::turn::steering::no_message;
use crate::proxy::{App, Error};
use crate::recall::{Reference, Span};
use crate::store::{ConversationRow, EventFilter, Gone, Hit, Passage, Store};
use crate::unwrap::unwrap;
use crate::wire::openai_chat;

/// What was asked of the record.
#[derive(Debug)]
pub enum Asked {
    /// One text.
    Text(Box<Text>),
    /// What a search found.
    Hits(Vec<Hit>),
}

/// One text of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The record's id; a message that was never taken out of a prompt has none.
    pub id: Option<String>,
    /// The conversation it was recorded in first.
    pub conversation: String,
    /// Index of its message in the body; none for a whole conversation.
    pub at: Option<usize>,
    /// Kind of the original, role of the message, or `history`.
    pub kind: String,
    /// The call that it answers, in one line.
    pub call: Option<String>,
    /// The text, exactly as it came.
    pub text: String,
}

impl Text {
    /// What a message says, without its JSON; any other text as it is.
    pub fn said(&self) -> Cow<'_, str> {
        if self.is_message() { spoken(&self.text).into() } else { Cow::Borrowed(&self.text) }
    }

    fn is_message(&self) -> bool {
        self.id.is_none() && self.at.is_some() && self.kind != MESSAGES
    }

    /// What a message says, or the text inside a result that came wrapped in JSON: what lines are counted in, since that of a wrapping is
    /// one line.
    pub fn inner(&self) -> Option<String> {
        if self.is_message() {
            return Some(spoken(&self.text));
        }
        let is_result = self.id.is_some() && self.kind == "tool_result";
        is_result.then(|| unwrap(&self.text)).flatten().map(|inner| inner.text)
    }
}

/// The record, as the command line and agents look at it: no server is asked.
pub struct Record {
    pub(in crate::proxy) store: Store,
}

impl Record {
    /// Opens the record for reading.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(data_dir: &std::path::Path) -> Result<Record, Error> {
        Ok(Record { store: Store::open_readonly(data_dir)? })
    }

    /// `windowsill context [ID]`.
    ///
    /// # Errors
    /// 404 for an unknown conversation.
    pub fn context(&self, id: Option<&str>) -> Result<Value, Error> {
        let Some(id) = id else {
            let rows = self.store.conversations(1000)?;
            return Ok(json!({"conversations": rows.iter().map(row_json).collect::<Vec<_>>()}));
        };
        let row = row(&self.store, id, "`windowsill context` lists them")?;
        context(&self.store, &row)
    }

    /// `windowsill recall TERM | ID | CONVERSATION[:MESSAGE]`, in one conversation (and what it forked from) or everywhere.
    ///
    /// # Errors
    /// For an id, a message or a conversation that is not there; 400 for nothing to search for.
    pub fn recall(&self, what: &str, conversation: Option<&str>, limit: usize) -> Result<Asked, Error> {
        let scope = match conversation {
            Some(id) => Some(row(&self.store, id, "`windowsill context` lists them")?.id),
            None => None,
        };
        let scope = scope.as_deref();
        if let Some(text) = whole(&self.store, what, scope)? {
            return Ok(Asked::Text(Box::new(text)));
        }
        Ok(Asked::Hits(self.search(what, scope, limit)?))
    }

    /// The passages that fit these words, the best first.
    ///
    /// # Errors
    /// 400 where there is no word to search for.
    pub fn search(&self, query: &str, conversation: Option<&str>, limit: usize) -> Result<Vec<Hit>, Error> {
        searchable(query)?;
        Ok(self.store.search(query, conversation, limit)?)
    }

    /// The same, each with the short messages beside it.
    ///
    /// # Errors
    /// As [`Record::search`].
    pub fn passages(&self, query: &str, conversation: Option<&str>, limit: usize) -> Result<Vec<Passage>, Error> {
        searchable(query)?;
        Ok(self.store.passages(query, conversation, limit, &mut |_| true)?)
    }

    /// How many conversations are not searched yet, since an older windowsill recorded them.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn unindexed(&self) -> Result<usize, Error> {
        Ok(self.store.unindexed()?)
    }
}

/// Refuses a query without a word.
pub(in crate::proxy) fn searchable(query: &str) -> Result<(), Error> {
    if query.chars().any(char::is_alphanumeric) {
        return Ok(());
    }
    Err(Error::client(
        400,
        "empty_query",
        format!("`{}` holds no word to search for", short(query)),
        "give a word, a phrase, an id such as r3f9a0c12d4e5, or CONVERSATION:MESSAGE",
    ))
}

/// The row of a conversation, by its id or the beginning of it.
///
/// # Errors
/// 404 for an unknown one.
pub(in crate::proxy) fn row_of(app: &App, id: &str) -> Result<ConversationRow, Error> {
    row(&app.store, id, "`windowsill context` and the page list them")
}

/// A hit as JSON, for the command line and over HTTP.
pub fn hit_json(hit: &Hit) -> Value {
    let Hit { id, conversation, at, kind, call, date, snippet, exact, .. } = hit;
    json!({"id": id, "conversation": conversation, "message": at, "kind": kind, "call": call, "date": date,
        "snippet": snippet, "exact": exact})
}

/// The kind of a text that is several messages.
pub(in crate::proxy) const MESSAGES: &str = "messages";

/// Most bytes of messages that are put together.
const LONGEST: usize = 4 << 20;

/// The text that an id names: a record, a message of a conversation, or the whole of one. `None` where it looks like none of
/// these, and should be searched for. `scope`: only what this conversation, or one it forked from, recorded.
///
/// # Errors
/// For what looks like an id and is not there.
pub(in crate::proxy) fn whole(store: &Store, what: &str, scope: Option<&str>) -> Result<Option<Text>, Error> {
    let what = what.trim();
    match Reference::read(what) {
        Reference::Record(id) if is_name_of(&id, what) => record(store, &id, scope).map(Some),
        Reference::Message(Some(conversation), at) => match named(store, &conversation)? {
            // It may as well be a file and a line.
            None => {
                store.pruned_conversation(&conversation)?.map_or(Ok(None), |gone| Err(pruned(&conversation, &gone)))
            }
            Some(row) if scope.is_some_and(|s| s != row.id) => Err(foreign(what)),
            Some(row) => message(store, &row, at).map(Some),
        },
        Reference::Message(None, at) => match scope {
            None => Ok(None),
            Some(scope) => message(store, &row(store, scope, "")?, at).map(Some),
        },
        Reference::Messages(Some(conversation), from, to) => match named(store, &conversation)? {
            None => {
                store.pruned_conversation(&conversation)?.map_or(Ok(None), |gone| Err(pruned(&conversation, &gone)))
            }
            Some(row) if scope.is_some_and(|s| s != row.id) => Err(foreign(what)),
            Some(row) => messages(store, &row, from, to).map(Some),
        },
        Reference::Messages(None, from, to) => match scope {
            None => Ok(None),
            Some(scope) => messages(store, &row(store, scope, "")?, from, to).map(Some),
        },
        Reference::Record(_) | Reference::Other(_) => match named(store, what)? {
            Some(row) => {
                if scope.is_some_and(|s| s != row.id) {
                    return Err(foreign(what));
                }
                let Some(text) = store.history(&row.id)? else { return Ok(None) };
                Ok(Some(Text { id: None, conversation: row.id, at: None, kind: "history".into(), call: None, text }))
            }
            None => match shortened(store, what)? {
                Some(id) => record(store, &id, scope).map(Some),
                None => store.pruned_conversation(what)?.map_or(Ok(None), |gone| Err(pruned(what, &gone))),
            },
        },
    }
}

/// Whether what stands behind the first letter is the beginning of an id: three digits of one, as the commands show them. `cafe` and
/// `race` are words that people search for, so that letters alone must be five.
fn begins_an_id(rest: &str) -> bool {
    let least = if rest.bytes().any(|b| b.is_ascii_digit()) { 3 } else { 5 };
    rest.len() >= least && rest.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The record whose id begins so, where the word is no whole id and looks like the beginning of one.
fn shortened(store: &Store, word: &str) -> Result<Option<String>, Error> {
    if !word.strip_prefix('r').is_some_and(begins_an_id) {
        return Ok(None);
    }
    let mut found = store.originals_like(word)?;
    if found.len() > 1 {
        let message = format!("`{}` begins the ids of several records, such as {}", short(word), found.join(", "));
        return Err(Error::client(400, "ambiguous", message, "give more of the id"));
    }
    Ok(found.pop())
}

/// The conversation that a word names: by its whole id, or by the beginning of one that is not a word people search for.
fn named(store: &Store, word: &str) -> Result<Option<ConversationRow>, Error> {
    let is_id = word.strip_prefix('c').is_some_and(begins_an_id);
    match store.conversation(word) {
        Ok(row) => Ok(row.filter(|row| row.id == word || is_id)),
        Err(crate::store::Error::Ambiguous { .. }) if !is_id => Ok(None),
        Err(e) => Err(ambiguous(e)),
    }
}

/// One original.
fn record(store: &Store, id: &str, scope: Option<&str>) -> Result<Text, Error> {
    let found = match scope {
        Some(scope) => store.original_in(id, scope)?,
        None => store.original(id)?,
    };
    let Some(o) = found else {
        if scope.is_some() && store.original(id)?.is_some() {
            return Err(foreign(id));
        }
        return Err(missing(store, id)?);
    };
    Ok(Text {
        id: Some(o.id),
        conversation: o.conversation,
        at: Some(o.at),
        kind: o.kind,
        call: o.call,
        text: o.text.to_string(),
    })
}

fn message(store: &Store, row: &ConversationRow, at: usize) -> Result<Text, Error> {
    let Some(node) = store.message(&row.id, at)? else { return Err(no_message(row, at)) };
    let text = String::from_utf8_lossy(&node.raw).into_owned();
    Ok(Text { id: None, conversation: node.conversation, at: Some(node.at), kind: node.role, call: None, text })
}

/// What several messages say, each behind its number and role; as many as are worth printing at once.
fn messages(store: &Store, row: &ConversationRow, from: usize, to: usize) -> Result<Text, Error> {
    let all = store.messages_and_reply(&row.id)?;
    let (from, to) = (from.min(to), from.max(to).min(all.len().saturating_sub(1)));
    let mut out = message(store, row, from)?;
    let mut text = String::new();
    for (at, node) in all.into_iter().enumerate().take(to + 1).skip(from) {
        text.push_str(&format!("[{at}] {}: {}\n", node.role, spoken(&String::from_utf8_lossy(&node.raw))));
        if text.len() > LONGEST && at < to {
            text.push_str(&format!("[{} more messages: ask for {}-{to}]\n", to - at, at + 1));
            break;
        }
    }
    (out.kind, out.text) = (MESSAGES.into(), text);
    Ok(out)
}

/// What a message says, instead of its JSON.
pub(in crate::proxy) fn spoken(raw: &str) -> String {
    let Ok(message) = openai_chat::message(Bytes::from(raw.to_owned())) else { return raw.to_owned() };
    let calls = message.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
    let parts = std::iter::once(message.text.to_string()).chain(calls).filter(|p| !p.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

/// Whether the whole of what was asked is an id, as a marker, a command or a file name has it.
fn is_name_of(id: &str, what: &str) -> bool {
    let bare = what.trim_start_matches("windowsill recall").trim();
    bare == id
        || bare.strip_suffix(".txt").is_some_and(|b| b.strip_suffix(id).is_some_and(|d| d.ends_with(['/', '\\'])))
}

/// Why a record is not there.
///
/// # Errors
/// When the database cannot be read.
pub(in crate::proxy) fn missing(store: &Store, id: &str) -> Result<Error, crate::store::Error> {
    Ok(match store.pruned_original(id)? {
        Some(gone) => pruned(id, &gone),
        None => unknown(id),
    })
}

pub(in crate::proxy) fn unknown(id: &str) -> Error {
    let hint = "ids stand in the placeholders, such as r3f9a0c12d4e5";
    Error::client(404, "not_found", format!("no record `{}`", short(id)), hint)
}

fn pruned(id: &str, gone: &Gone) -> Error {
    Error::client(410, "pruned", format!("`{}` {gone}", short(id)), "the record holds nothing of it any more")
}

fn foreign(id: &str) -> Error {
    Error::client(404, "not_found", format!("`{}` is not of this conversation", short(id)), "")
}

/// The conversation of an id, of the beginning of one, or of a session.
pub(in crate::proxy) fn row(store: &Store, id: &str, hint: &str) -> Result<ConversationRow, Error> {
    match store.conversation(id) {
        Ok(Some(row)) => Ok(row),
        Ok(None) => Err(match store.pruned_conversation(id)? {
            Some(gone) => pruned(id, &gone),
            None => Error::client(404, "not_found", format!("no conversation `{}` in the record", short(id)), hint),
        }),
        Err(e) => Err(ambiguous(e)),
    }
}

fn ambiguous(e: crate::store::Error) -> Error {
    match e {
        crate::store::Error::Ambiguous { .. } => Error::client(400, "ambiguous", e.to_string(), "give more of the id"),
        e => e.into(),
    }
}

/// A conversation's gauge, what was done to it, and where its history is.
pub(in crate::proxy) fn context(store: &Store, row: &ConversationRow) -> Result<Value, Error> {
    let events = store.trace().since(0, 1000, &EventFilter::of(&row.id))?;
    let mut out = row_json(row);
    let folds = rewrites::told(&events);
    out["compactions"] = json!(folds);
    out["history_file"] = json!(store.history_path(&row.id).display().to_string());
    Ok(out)
}

/// Lines `A..B` of a text, counted from 1, both included; either may be left out.
///
/// # Errors
/// 400 for what is no range, 416 for one that begins behind the end.
pub fn lines<'a>(text: &'a str, range: &str) -> Result<&'a str, Error> {
    let bad = || {
        let message = format!("`{}` is not a range of lines", short(range));
        Error::client(400, "bad_range", message, "write A..B (or A-B), A.. or ..B, counted from 1")
    };
    let (from, to) = range.split_once("..").or_else(|| range.split_once('-')).unwrap_or((range, range));
    let number = |s: &str, empty: usize| if s.is_empty() { Ok(empty) } else { s.parse().map_err(|_| bad()) };
    let (from, to): (usize, usize) = (number(from.trim(), 1)?, number(to.trim(), usize::MAX)?);
    if from == 0 || to < from {
        return Err(bad());
    }
    taken(text, from - 1, (to - from).saturating_add(1))
}

/// The lines that `offset` (from 1; below 0 it counts from the end) and `limit` ask for.
///
/// # Errors
/// 400 for what is no number, 416 for an offset behind the end.
pub fn page<'a>(text: &'a str, offset: Option<&str>, limit: Option<&str>) -> Result<&'a str, Error> {
    let number = |key: &str, value: Option<&str>| match value.map(str::trim).filter(|v| !v.is_empty()) {
        None => Ok(None),
        Some(v) => v.parse::<i64>().map(Some).map_err(|_| {
            let message = format!("`{key}={}` is not a whole number", short(v));
            Error::client(400, "bad_range", message, "offset counts lines from 1, limit is how many")
        }),
    };
    let span = Span { offset: number("offset", offset)?, limit: number("limit", limit)? };
    let total = text.split_inclusive('\n').count();
    let (from, count) = span.of(total).ok_or_else(|| behind(total))?;
    taken(text, from, count)
}

fn taken(text: &str, from: usize, count: usize) -> Result<&str, Error> {
    let mut ends = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    });
    let start = match from {
        0 => 0,
        _ => match ends.nth(from - 1) {
            Some(start) if start < text.len() => start,
            _ => return Err(behind(text.split_inclusive('\n').count())),
        },
    };
    let rest = &text[start..];
    let length = rest.split_inclusive('\n').take(count).map(str::len).sum();
    Ok(&rest[..length])
}

fn behind(total: usize) -> Error {
    Error::client(416, "bad_range", format!("it has {total} lines: the range begins behind its end"), "")
}

/// What somebody wrote, short enough to repeat.
pub(in crate::proxy) fn short(text: &str) -> String {
    clipped(text, 80)
}

/// The first characters of a text, on one line.
pub(in crate::proxy) fn clipped(text: &str, characters: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_letters_of_an_id_are_enough_unless_they_are_a_word() {
        assert!(["4ca", "97d", "84ff753e", "abcde"].iter().all(|rest| begins_an_id(rest)));
        assert!(!["afe", "ade", "4c", "", "4cx"].iter().any(|rest| begins_an_id(rest)));
    }

    #[test]
    fn ranges_of_lines() {
        let text = "one\ntwo\r\nthree\nfour";
        for (range, expect) in [
            ("1..2", Ok("one\ntwo\r\n")),
            ("2", Ok("two\r\n")),
            ("1-2", Ok("one\ntwo\r\n")),
            ("2-", Ok("two\r\nthree\nfour")),
            ("..", Ok(text)),
            ("3..", Ok("three\nfour")),
            ("..1", Ok("one\n")),
            ("4..99", Ok("four")),
            ("5..6", Err(416)),
            ("0..1", Err(400)),
            ("3..2", Err(400)),
            ("a..b", Err(400)),
            ("", Err(400)),
            ("-1..2", Err(400)),
            ("99999999999999999999..", Err(400)),
        ] {
            let expect = if range.is_empty() { Ok(text) } else { expect };
            assert_eq!(lines(text, range).map_err(|e| e.status()), expect, "{range}");
        }
        for (offset, limit, expect) in [
            (None, None, Ok(text)),
            (Some("2"), Some("1"), Ok("two\r\n")),
            (Some("-1"), None, Ok("four")),
            (Some("5"), None, Err(416)),
            (Some("x"), None, Err(400)),
            (None, Some("0"), Ok(text)),
            (Some(""), Some("2"), Ok("one\ntwo\r\n")),
        ] {
            assert_eq!(page(text, offset, limit).map_err(|e| e.status()), expect, "{offset:?} {limit:?}");
        }
        assert_eq!(lines("", "1..").unwrap(), "");
        assert_eq!(page("", None, Some("3")).unwrap(), "");
    }

    #[test]
    fn ids_as_people_write_them() {
        let id = "r3f9a0c12d4e5";
        for (what, is) in [
            (id.to_owned(), true),
            (format!("windowsill recall {id}"), true),
            (format!("/data/large_tool_results/{id}.txt"), true),
            (format!("what of {id}?"), false),
            (format!("{id} and more"), false),
        ] {
            assert_eq!(is_name_of(id, &what), is, "{what}");
        }
    }
}
