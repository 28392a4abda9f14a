//! What people want of a conversation beyond the next request: pins, changes that wait for a break, whether it is rewritten at
//! all, a title. It is kept in the record, and what it means for one history is worked out anew with every request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::turn::situation::Situation;
use super::view::Subject;
use super::{App, Error};
use crate::config::PinPattern;
use crate::conversation::edit::View;
use crate::conversation::{Digest, Message, Role, Tokens, person};
use crate::measure::ModelKey;
use crate::pinned::{self, Pin};
use crate::plan::Facts;
use crate::store::{Batch, Original};
use crate::wire::openai_chat::Request;

/// A pin takes at most one part in this many of the window.
pub(super) const LARGEST_PIN: Tokens = 10;

/// All pins of a conversation take at most one part in this many of the window.
pub(super) const ALL_PINS: Tokens = 4;

/// Lines that patterns pin at most, the newest.
const LINES: usize = 200;

/// What is wanted of one conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Standing {
    /// What a person pinned, in order.
    pub(super) pins: Vec<Pinned>,
    /// How many pins there ever were: each has a number of its own.
    pub(super) numbered: u64,
    /// Whether a person stopped the rewriting.
    pub(super) paused: bool,
    /// Changes that wait for the next natural break, in the order in which they were asked for.
    pub(super) wishes: Vec<super::desk::steer::Steer>,
    /// A title that a model wrote.
    pub(super) title: Option<String>,
    /// Whose rules it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ruled_for: Option<super::desk::rules::Scope>,
}

impl Standing {
    /// What the next brief is to keep above all.
    pub(super) fn focus(&self) -> Option<&str> {
        self.wishes.iter().find_map(|wish| match wish {
            super::desk::steer::Steer::Focus(focus) => Some(focus.as_str()),
            _ => None,
        })
    }

    /// Without the changes that waited for a break, now that there was one; a focus waits for a fold.
    fn after_break(&self, folded: bool) -> Standing {
        let waits = |wish: &&super::desk::steer::Steer| !folded && matches!(wish, super::desk::steer::Steer::Focus(_));
        Standing { wishes: self.wishes.iter().filter(waits).cloned().collect(), ..self.clone() }
    }
}

/// A pin of a person's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pinned {
    /// Its number.
    pub(super) id: u64,
    /// What is pinned.
    #[serde(flatten)]
    pub(super) what: What,
    /// Unix time in milliseconds.
    pub(super) created_ms: i64,
    /// The rule that it comes from, where it is one of the project's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<i64>,
}

/// What can be pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// A text, word for word.
    Text(Arc<str>),
    /// A message of the history, by its place and what it says.
    Message(usize, Digest),
}

impl What {
    /// Where a pinned message stands now: a client may have rebuilt its history.
    pub(super) fn place(&self, body: &[Message]) -> Option<usize> {
        let What::Message(at, digest) = self else { return None };
        let is_it = |message: &Message| message.digest == *digest;
        if body.get(*at).is_some_and(is_it) { Some(*at) } else { body.iter().rposition(is_it) }
    }
}

/// What is wanted, as it applies to one history.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// Texts that hold through folds.
    pub(super) texts: Vec<Pin>,
    /// Messages that hold, by index.
    pub(super) messages: Vec<usize>,
    /// Tokens of the texts in front of a brief, all of them together.
    pub(super) tokens: Tokens,
    /// Nothing is rewritten.
    pub(super) paused: bool,
    /// Lines that a pattern matches and that found no room.
    pub(super) left_out: usize,
}

impl Held {
    /// What is to be said of it on a reply.
    pub(super) fn warning(&self) -> Option<String> {
        let n = self.left_out;
        (n > 0)
            .then(|| format!("{n} lines that a [[pin]] matches found no room: they go with the messages they stand in"))
    }

    /// Tells the planner.
    pub(super) fn tell(&self, facts: &mut Facts) {
        facts.pinned.clone_from(&self.messages);
        (facts.pins, facts.paused) = (self.tokens, self.paused);
    }
}

/// A line that a pattern pins.
pub(super) struct Matched {
    /// Its words.
    pub(super) line: String,
    /// The message that it stands in.
    pub(super) at: usize,
    /// Which pattern.
    pub(super) pattern: usize,
}

/// The lines of people's words that patterns pin, the oldest first.
pub(super) fn matched(body: &[Message], patterns: &[PinPattern]) -> Vec<Matched> {
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

impl App {
    /// What is wanted of a conversation; of a fork that nobody said anything of, what was wanted of the one it parted from.
    pub(super) fn standing(&self, id: &str, parent: Option<&str>) -> Result<Arc<Standing>, Error> {
        for name in [Some(id), parent].into_iter().flatten() {
            if let Some(json) = self.store.standing(name)? {
                // By way of a tree: numbers keep their digits here, and a flattened type cannot read them otherwise.
                let read = serde_json::from_str::<serde_json::Value>(&json).and_then(serde_json::from_value);
                return read
                    .map(Arc::new)
                    .map_err(|e| Error::Internal { doing: "read what is pinned", source: Box::new(e) });
            }
        }
        Ok(Arc::default())
    }

    /// What is wanted of the conversation of a request, and what that means for its history. What cannot be read is no reason
    /// to refuse the request.
    pub(super) fn wanted(
        &self,
        situation: &Situation<'_>,
        request: &Request,
        warnings: &mut Vec<String>,
    ) -> (Arc<Standing>, Held) {
        let Situation { history, key, policy, .. } = situation;
        let standing = self.standing(&history.id, history.inherits.as_deref()).unwrap_or_else(|e| {
            tracing::warn!(conversation = %history.id, error = %e, "what is pinned cannot be read");
            warnings.push("what is pinned could not be read".into());
            Arc::default()
        });
        let held = self.held(key, &standing, &policy.pins, &request.conversation.body, situation.known_window());
        warnings.extend(held.warning());
        (standing, held)
    }

    /// Changes what is wanted of a conversation, and waits until that is in the record.
    pub(super) async fn change_standing<T>(
        &self,
        id: &str,
        change: impl FnOnce(&mut Standing) -> T,
    ) -> Result<T, Error> {
        // One at a time: each reads what the last one wrote.
        let _turn = self.standing_turn.lock().await;
        let mut standing = Standing::clone(&*self.standing(id, None)?);
        let done = change(&mut standing);
        self.store
            .record(Batch { standing: Some((id.to_owned(), text(&standing))), durable: true, ..Batch::default() })
            .await?;
        Ok(done)
    }

    /// What is wanted, for this history at this window.
    pub(super) fn held(
        &self,
        key: &ModelKey,
        standing: &Standing,
        patterns: &[PinPattern],
        body: &[Message],
        window: Tokens,
    ) -> Held {
        let mut out = Held { paused: standing.paused, ..Held::default() };
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
            let tokens = self.measure.count(key, &line);
            if tokens <= room.min(window / LARGEST_PIN) {
                room -= tokens;
                lines.push(Pin { text: line.into(), at: Some(at) });
            } else {
                out.left_out += 1;
            }
        }
        out.texts.extend(lines.into_iter().rev());
        let block = pinned::block(&out.texts, &|_| false);
        out.tokens = if block.is_empty() { 0 } else { self.measure.count(key, &block) };
        out
    }
}

/// The changes that waited for a break, made.
#[derive(Debug, Default)]
pub(super) struct Granted {
    pub(super) originals: Vec<Original>,
    pub(super) because: Vec<String>,
    done: bool,
}

impl App {
    /// Makes the changes that wait for a break, where this request brings one: the view to go on from, in place of the old one.
    /// `breaks`: whether it does.
    pub(super) fn grant(
        &self,
        subject: &Subject<'_>,
        standing: &Standing,
        breaks: impl FnOnce() -> bool,
    ) -> Option<(View, Granted)> {
        if standing.wishes.is_empty() || !breaks() {
            return None;
        }
        let (view, originals, because) = self.wished(subject, &standing.wishes);
        Some((view, Granted { originals, because, done: true }))
    }
}

impl Granted {
    /// What is to be recorded as wanted from now on, where that is something else: changes were made, or a fork takes over
    /// what was wanted of the conversation that it parted from.
    pub(super) fn to_record(&self, standing: &Standing, is_fork: bool, folded: bool) -> Option<String> {
        match self.done {
            true => Some(text(&standing.after_break(folded))),
            false => (is_fork && *standing != Standing::default()).then(|| text(standing)),
        }
    }
}

/// As it is kept.
pub(super) fn text(standing: &Standing) -> String {
    serde_json::to_string(standing).unwrap_or_else(|_| "{}".to_owned())
}

/// The first message of a person that says a text word for word: while that stands in the prompt, nobody need repeat it.
fn said_at(body: &[Message], text: &str) -> Option<usize> {
    body.iter().position(|message| message.role == Role::User && message.text.contains(text))
}
