//! What people want of a conversation beyond the next request: pins, changes that wait for a break, whether it is rewritten at
//! all, a title. It is kept in the record, and what it means for one history is worked out anew with every request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::scope::Scope;
use super::steer::Steer;
use crate::admission::Listing;
use crate::config::PinPattern;
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Digest, Message, Role, Tokens, person};
use crate::measure::ModelKey;
use crate::pinned::{self, Pin};
use crate::plan::{Facts, Pins};
use crate::proxy::{App, Error};
use crate::store::{About, Batch, Store};

/// A pin takes at most one part in this many of the window.
pub(in crate::proxy) const LARGEST_PIN: Tokens = 10;

/// All pins of a conversation take at most one part in this many of the window.
pub(in crate::proxy) const ALL_PINS: Tokens = 4;

/// Messages of a conversation that do not come back by themselves, the last that were named.
pub(in crate::proxy) const UNWANTED: usize = 500;

/// Lines that patterns pin at most, the newest.
const LINES: usize = 200;

/// What is wanted of one conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::proxy) struct Standing {
    /// What a person pinned, in order.
    pub(in crate::proxy) pins: Vec<Pinned>,
    /// How many pins there ever were: each has a number of its own.
    pub(in crate::proxy) numbered: u64,
    /// Whether a person stopped the rewriting.
    pub(in crate::proxy) paused: bool,
    /// Changes that wait for the next natural break, in the order in which they were asked for.
    pub(in crate::proxy) wishes: Vec<Steer>,
    /// A title that a model wrote.
    pub(in crate::proxy) title: Option<String>,
    /// What the messages say that a person does not want to come back by themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::proxy) unwanted: Vec<Digest>,
    /// Histories behind which nothing comes back by itself, by the chain hash of the last message: a person took it back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::proxy) quiet: Vec<Digest>,
    /// What a person wants to be done with the client's tools; without a word, what the settings say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) tools: Option<Listing>,
    /// Whose rules it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) ruled_for: Option<Scope>,
}

impl Standing {
    /// What the next brief is to keep above all.
    pub(in crate::proxy) fn focus(&self) -> Option<&str> {
        self.wishes.iter().find_map(|wish| match wish {
            Steer::Focus(focus) => Some(focus.as_str()),
            _ => None,
        })
    }

    /// The changes that wait for a break and can still be done: what was folded meanwhile is neither cleared nor put back.
    pub(in crate::proxy) fn waiting(&self, view: &View) -> Vec<&Steer> {
        let is_folded = |at: usize| view.edits.iter().any(|e| matches!(e, Edit::Fold { .. }) && e.touches(at));
        let can_be = |wish: &&Steer| match wish {
            Steer::Restore(at) | Steer::Clear(at) | Steer::Evict(at) => !is_folded(*at),
            Steer::Brief(_) | Steer::Focus(_) | Steer::Undo => true,
        };
        self.wishes.iter().filter(can_be).collect()
    }

    /// Has nothing come back by itself behind the message that this chain hash ends with.
    pub(in crate::proxy) fn keep_quiet(&mut self, behind: Digest) {
        self.quiet.push(behind);
        let many = self.quiet.len().saturating_sub(UNWANTED);
        self.quiet.drain(..many);
    }

    /// Without the changes that waited for a break, now that there was one; a focus waits for a fold.
    pub(in crate::proxy) fn after_break(&self, folded: bool) -> Standing {
        let waits = |wish: &&Steer| !folded && matches!(wish, Steer::Focus(_));
        Standing { wishes: self.wishes.iter().filter(waits).cloned().collect(), ..self.clone() }
    }
}

/// A pin of a person's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::proxy) struct Pinned {
    /// Its number.
    pub(in crate::proxy) id: u64,
    /// What is pinned.
    #[serde(flatten)]
    pub(in crate::proxy) what: What,
    /// Unix time in milliseconds.
    pub(in crate::proxy) created_ms: i64,
    /// The rule that it comes from, where it is one of the project's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) rule: Option<i64>,
    /// An agent pinned it, and no person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::proxy) by_agent: bool,
}

/// What can be pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::proxy) enum What {
    /// A text, word for word.
    Text(Arc<str>),
    /// A message of the history, by its place and what it says.
    Message(usize, Digest),
}

impl What {
    /// Where a pinned message stands now: a client may have rebuilt its history.
    pub(in crate::proxy) fn place(&self, body: &[Message]) -> Option<usize> {
        let What::Message(at, digest) = self else { return None };
        let is_it = |message: &Message| message.digest == *digest;
        if body.get(*at).is_some_and(is_it) { Some(*at) } else { body.iter().rposition(is_it) }
    }
}

/// What is wanted, as it applies to one history.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Held {
    /// Texts that hold through folds.
    pub(in crate::proxy) texts: Vec<Pin>,
    /// Messages that hold, by index.
    pub(in crate::proxy) messages: Vec<usize>,
    /// Tokens of the texts in front of a brief, all of them together.
    pub(in crate::proxy) tokens: Tokens,
    /// Nothing is rewritten.
    pub(in crate::proxy) paused: bool,
    /// What does not come back by itself.
    pub(in crate::proxy) unwanted: Vec<Digest>,
    /// Histories behind which nothing comes back by itself.
    pub(in crate::proxy) quiet: Vec<Digest>,
    /// Lines that a pattern matches and that found no room.
    pub(in crate::proxy) left_out: usize,
}

impl Held {
    /// What is to be said of it on a reply.
    pub(in crate::proxy) fn warning(&self) -> Option<String> {
        let n = self.left_out;
        (n > 0)
            .then(|| format!("{n} lines that a [[pin]] matches found no room: they go with the messages they stand in"))
    }

    /// Tells the planner.
    pub(in crate::proxy) fn tell(&self, facts: &mut Facts) {
        facts.pins = Pins { messages: self.messages.clone(), tokens: self.tokens };
        facts.paused = self.paused;
    }
}

/// A line that a pattern pins.
pub(in crate::proxy) struct Matched {
    /// Its words.
    pub(in crate::proxy) line: String,
    /// The message that it stands in.
    pub(in crate::proxy) at: usize,
    /// Which pattern.
    pub(in crate::proxy) pattern: usize,
}

/// The lines of people's words that patterns pin, the oldest first.
pub(in crate::proxy) fn matched(body: &[Message], patterns: &[PinPattern]) -> Vec<Matched> {
    if patterns.is_empty() {
        return Vec::new();
    }
    let mut out: Vec<Matched> = Vec::new();
    for (at, message) in body.iter().enumerate().rev() {
        let Some(words) = person::words(message) else { continue };
        for line in words.lines().rev().map(str::trim).filter(|line| !line.is_empty()) {
            let Some(pattern) = patterns.iter().position(|p| p.fits(line)) else { continue };
            if out.len() < LINES && !out.iter().any(|known| known.line == line) {
                out.push(Matched { line: line.to_owned(), at, pattern });
            }
        }
    }
    out.reverse();
    out
}

/// What is wanted of a conversation; of a fork that nobody said anything of, what was wanted of the one it parted from.
pub(in crate::proxy) fn standing_of(app: &App, id: &str, parent: Option<&str>) -> Result<Arc<Standing>, Error> {
    standing_in(&app.store, id, parent)
}

/// The same, of a record.
pub(in crate::proxy) fn standing_in(store: &Store, id: &str, parent: Option<&str>) -> Result<Arc<Standing>, Error> {
    for name in [Some(id), parent].into_iter().flatten() {
        if let Some(json) = store.standing(name)? {
            // By way of a tree: numbers keep their digits here, and a flattened type cannot read them otherwise.
            let read = serde_json::from_str::<serde_json::Value>(&json).and_then(serde_json::from_value);
            return read
                .map(Arc::new)
                .map_err(|e| Error::Internal { doing: "read what is pinned", source: Box::new(e) });
        }
    }
    Ok(Arc::default())
}

/// Changes what is wanted of a conversation, and waits until that is in the record.
pub(in crate::proxy) async fn change_standing<T>(
    app: &App,
    id: &str,
    change: impl FnOnce(&mut Standing) -> T,
) -> Result<T, Error> {
    // One at a time: each reads what the last one wrote.
    let _turn = app.standing_turn.lock().await;
    let mut standing = Standing::clone(&*standing_of(app, id, None)?);
    let done = change(&mut standing);
    app.store
        .record(Batch {
            about: Some((id.to_owned(), About::Standing(text(&standing)))),
            durable: true,
            ..Batch::default()
        })
        .await?;
    Ok(done)
}

/// What is wanted, for this history at this window.
pub(in crate::proxy) fn held(
    app: &App,
    key: &ModelKey,
    standing: &Standing,
    patterns: &[PinPattern],
    body: &[Message],
    window: Tokens,
) -> Held {
    let (unwanted, quiet) = (standing.unwanted.clone(), standing.quiet.clone());
    let mut out = Held { paused: standing.paused, unwanted, quiet, ..Held::default() };
    if standing.pins.is_empty() && patterns.is_empty() {
        return out;
    }
    for pin in &standing.pins {
        match &pin.what {
            What::Text(text) => out.texts.push(Pin { text: Arc::clone(text), at: said_at(body, text) }),
            What::Message(..) => out.messages.extend(pin.what.place(body)),
        }
    }
    // The newest lines come first where not all find room.
    let (mut room, mut lines) = (window / ALL_PINS / 2, Vec::new());
    for Matched { line, at, .. } in matched(body, patterns).into_iter().rev() {
        let tokens = app.measure.count(key, &line);
        if tokens <= room.min(window / LARGEST_PIN) {
            room -= tokens;
            lines.push(Pin { text: line.into(), at: Some(at) });
        } else {
            out.left_out += 1;
        }
    }
    out.texts.extend(lines.into_iter().rev());
    let block = pinned::block(&out.texts, &|_| false);
    out.tokens = if block.is_empty() { 0 } else { app.measure.count(key, &block) };
    out
}

/// As it is kept.
pub(in crate::proxy) fn text(standing: &Standing) -> String {
    serde_json::to_string(standing).unwrap_or_else(|_| "{}".to_owned())
}

/// The first message of a person that says a text word for word: while that stands in the prompt, nobody need repeat it.
fn said_at(body: &[Message], text: &str) -> Option<usize> {
    body.iter().position(|message| message.role == Role::User && message.text.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_folded_meanwhile_waits_no_longer() {
        let fold = Edit::Fold {
            from: 1,
            to: 6,
            keep: vec![4],
            brief: "b".into(),
            unread: Vec::new(),
            read: None,
            struck: Vec::new(),
        };
        let view = View { edits: vec![fold], ..View::default() };
        let gone = [Steer::Clear(2), Steer::Restore(3), Steer::Evict(5)];
        let stays = [Steer::Clear(4), Steer::Evict(7), Steer::Focus("f".to_owned()), Steer::Brief("b".to_owned())];
        let standing = Standing {
            wishes: [gone, [Steer::Clear(6), Steer::Undo, Steer::Restore(0)]].concat(),
            ..Standing::default()
        };
        let left: Vec<Steer> = standing.waiting(&view).into_iter().cloned().collect();
        assert_eq!(left, [Steer::Clear(6), Steer::Undo, Steer::Restore(0)]);
        let standing = Standing { wishes: stays.to_vec(), ..Standing::default() };
        assert_eq!(standing.waiting(&view).len(), stays.len());
        assert_eq!(standing.waiting(&View::default()).len(), stays.len());
    }
}
