//! What part of a user message a *person* wrote. Clients speak in the user's name, too: reminders, their environment,
//! rules of the project, files, the output of tools, tasks of their own.
//!
//! Pure. It goes by form (tags around a block, openings, notices) and never guesses: what it does not know is a person's.

mod blocks;
mod forms;
mod tags;

use std::borrow::Cow;

pub use self::blocks::{blocks, is_rules};
use self::forms::{HEADS, NOTICES, TAILS};
use self::tags::strip;
use super::{Message, Role};

/// Who wrote a text that came in the user's name, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said<'a> {
    /// A person wrote these words; what the client put around them is gone.
    Person(Cow<'a, str>),
    /// Rules of the project or the user (`AGENTS.md` and the like), and no words beside them.
    Rules,
    /// Files that the client sends along, as aider does.
    Files,
    /// Output of a tool, of clients without a role for it.
    Output,
    /// The client's own summary of what it dropped.
    Handover,
    /// A request that the client makes for itself: a title, tags.
    Task,
    /// Reminders, the environment, notices.
    Reminder,
}

/// The words of a person in a user message: `None` where there are none, empty where there is only a picture.
pub fn words(message: &Message) -> Option<Cow<'_, str>> {
    if message.role != Role::User {
        return None;
    }
    match said(&message.text) {
        Said::Person(words) if words.is_empty() && message.media.is_empty() => None,
        Said::Person(words) => Some(words),
        Said::Reminder if !message.media.is_empty() => Some(Cow::Borrowed("")),
        _ => None,
    }
}

/// Whether a client asks for something of its own, by the system prompt that it sends for that.
pub fn is_errand(system: &[Message]) -> bool {
    let says = |message: &Message| {
        let text = message.text.as_str();
        let head = &text[..crate::preview::clean::floor(text, forms::ERRAND_WITHIN)];
        forms::ERRANDS.iter().any(|errand| head.contains(errand))
    };
    system.iter().any(says)
}

/// Whether all messages before this one are a client's examples of how to answer.
pub fn ends_examples(message: &Message) -> bool {
    message.role == Role::User && message.text.trim_start().starts_with(forms::BEHIND_EXAMPLES)
}

/// A conversation without the examples that its client puts in front of it.
pub fn without_examples(body: &[Message]) -> &[Message] {
    let behind = body.iter().rposition(ends_examples).map_or(0, |at| at + 1);
    &body[behind..]
}

/// Whether a user message carries what a client tells the model on its own: rules, reminders, the environment.
pub fn has_context(message: &Message) -> bool {
    message.role == Role::User
        && (matches!(said(&message.text), Said::Rules | Said::Reminder) || !blocks(&message.text).is_empty())
}

/// Whether a user message is the output of a tool or nothing but reminders: it goes before anything a person wrote.
pub fn is_aside(message: &Message) -> bool {
    message.role == Role::User
        && message.media.is_empty()
        && matches!(said(&message.text), Said::Output | Said::Reminder)
}

/// Tells who wrote a text that came in the user's name.
pub fn said(text: &str) -> Said<'_> {
    let text = text.trim();
    if text.is_empty() {
        return Said::Person(Cow::Borrowed(""));
    }
    if let Some(kind) = tasks(text).or_else(|| forms::opening(text)) {
        return match task_behind(text).filter(|_| kind == Said::Output) {
            Some(asked) => Said::Person(Cow::Borrowed(asked)),
            None => kind,
        };
    }
    let stripped = strip(text);
    let rest = match stripped.rest {
        Cow::Borrowed(rest) => without_notices(rest),
        Cow::Owned(rest) => Cow::Owned(without_notices(&rest).into_owned()),
    };
    let rest = trimmed(rest);
    if rest.is_empty() {
        // What could be a person's own way to write is theirs where nothing else is left.
        return if stripped.soft { Said::Person(Cow::Borrowed(text)) } else { stripped.kind.unwrap_or(Said::Reminder) };
    }
    if let Some(kind) = forms::opening(&rest) {
        return kind;
    }
    Said::Person(trimmed(between_labels(rest)))
}

/// What a person asked behind the last output of the turn before: smolagents puts both into one message.
fn task_behind(text: &str) -> Option<&str> {
    let (output, asked) = text.rsplit_once("\nNew task:\n")?;
    (output.starts_with("Observation:") && !asked.trim().is_empty()).then(|| asked.trim())
}

/// Open WebUI's helpers: a task over a chat is the client's, a question over documents is a person's.
fn tasks(text: &str) -> Option<Said<'_>> {
    let body = text.strip_prefix("### Task:")?;
    if body.contains("<chat_history>") || body.contains("\n### Chat History") {
        return Some(Said::Task);
    }
    if !body.contains("\n### Guidelines") {
        return None;
    }
    if let Some(asked) = tags::inside(body, "user_query") {
        return Some(Said::Person(Cow::Borrowed(asked)));
    }
    let (_, asked) = body.rsplit_once("</context>")?;
    (!asked.trim().is_empty()).then(|| Said::Person(Cow::Borrowed(asked.trim())))
}

/// The text without lines that are notices of a client. A notice in brackets ends with its paragraph.
fn without_notices(text: &str) -> Cow<'_, str> {
    if !NOTICES.iter().any(|(notice, _)| text.contains(notice)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut skips = false;
    for line in text.split_inclusive('\n') {
        let found = NOTICES.iter().find(|(notice, _)| line.trim_start().starts_with(notice));
        skips = match found {
            Some((_, whole_paragraph)) => *whole_paragraph,
            None if line.trim().is_empty() => false,
            None => skips,
        };
        if found.is_none() && !skips {
            out.push_str(line);
        }
    }
    Cow::Owned(out)
}

/// The words between a label that a client puts before them and the instructions that it puts after them.
fn between_labels(text: Cow<'_, str>) -> Cow<'_, str> {
    let start = HEADS.iter().filter_map(|head| at_line(&text, head).map(|at| at + head.len())).max().unwrap_or(0);
    let tail = TAILS.iter().filter_map(|tail| at_line(&text[start..], tail)).min();
    let end = tail.map_or(text.len(), |at| start + at);
    let (start, end) = if text[start..end].trim().is_empty() { (0, text.len()) } else { (start, end) };
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[start..end]),
        Cow::Owned(text) => Cow::Owned(text[start..end].to_owned()),
    }
}

/// Where a text stands at the beginning of a line.
fn at_line(text: &str, what: &str) -> Option<usize> {
    text.match_indices(what).map(|(at, _)| at).find(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
}

fn trimmed(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) if text.trim().len() == text.len() => Cow::Owned(text),
        Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests;
