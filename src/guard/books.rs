//! What a conversation has spent since a person spoke, and since somebody last let it go on. Knows no clock: it is told the
//! time.

use serde::{Deserialize, Serialize};

use crate::conversation::Digest;

/// What was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tokens that a server evaluated or wrote.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
    /// Milliseconds.
    pub milliseconds: u64,
}

/// The books of one conversation: where its counters stood when the turn began, and when the session did. Counters only grow,
/// so that what is spent is a difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Books {
    /// What the turn answers: the chain hash of what a person said last.
    turn: Option<Digest>,
    /// Where tokens and requests stood when the turn began.
    turn_from: (u64, u64),
    /// Where they stood when the session began, or was let go on.
    session_from: (u64, u64),
    /// When the turn began, and when it was last seen (Unix milliseconds).
    #[serde(rename = "began_ms")]
    began: i64,
    #[serde(rename = "seen_ms")]
    seen: i64,
    /// Milliseconds of the turns before this one.
    #[serde(rename = "earlier_ms")]
    earlier: u64,
    /// What was said of this turn already, and of the session: one bit a ceiling and a level.
    told: u32,
    /// The message at which a loop of this turn was last told of.
    looped: Option<usize>,
    /// The turn in which somebody said that it may go on, whatever it repeats.
    pardoned: Option<Digest>,
}

impl Books {
    /// A request arrives that belongs to a turn. `tokens` and `requests` are what the conversation has taken so far.
    pub fn open(&mut self, turn: Option<Digest>, tokens: u64, requests: u64, now_ms: i64) {
        if self.turn != turn || self.began == 0 {
            self.earlier += self.turn_ms();
            (self.turn, self.turn_from) = (turn, (tokens, requests));
            (self.began, self.seen) = (now_ms, now_ms);
            self.told &= !TURN_BITS;
            self.looped = None;
        }
        self.see(now_ms);
    }

    /// It is later. A clock that went back says nothing.
    pub fn see(&mut self, now_ms: i64) {
        self.seen = self.seen.max(now_ms);
    }

    fn turn_ms(&self) -> u64 {
        u64::try_from(self.seen.saturating_sub(self.began)).unwrap_or(0)
    }

    /// What this turn has taken.
    pub fn turn(&self, tokens: u64, requests: u64) -> Spent {
        let (from_tokens, from_requests) = self.turn_from;
        Spent {
            tokens: tokens.saturating_sub(from_tokens),
            requests: requests.saturating_sub(from_requests),
            milliseconds: self.turn_ms(),
        }
    }

    /// What the session has taken.
    pub fn session(&self, tokens: u64, requests: u64) -> Spent {
        let (from_tokens, from_requests) = self.session_from;
        Spent {
            tokens: tokens.saturating_sub(from_tokens),
            requests: requests.saturating_sub(from_requests),
            milliseconds: self.earlier + self.turn_ms(),
        }
    }

    /// Somebody lets the conversation go on: everything is counted from here, and this turn may repeat itself.
    pub fn resume(&mut self, tokens: u64, requests: u64, now_ms: i64) {
        (self.turn_from, self.session_from) = ((tokens, requests), (tokens, requests));
        (self.began, self.seen, self.earlier, self.told) = (now_ms, now_ms, 0, 0);
        self.pardoned = self.turn;
    }

    /// Whether this turn may repeat itself.
    pub fn is_pardoned(&self) -> bool {
        self.turn.is_some() && self.pardoned == self.turn
    }

    /// Whether something is said for the first time. The lower 12 bits are of the turn.
    pub fn tell(&mut self, bit: u32) -> bool {
        let first = self.told & bit == 0;
        self.told |= bit;
        first
    }

    /// Whether a loop at message `at` is told of now: when it is first seen, and each time as many steps have gone by again. A
    /// step is a call and its result.
    pub fn tell_loop(&mut self, at: usize, repeats: usize) -> bool {
        let due = self.looped.is_none_or(|last| at >= last.saturating_add(2 * repeats));
        if due {
            self.looped = Some(at);
        }
        due
    }
}

/// The bits of [`Books::tell`] that are of the turn.
const TURN_BITS: u32 = 0xfff;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn turns_begin_where_a_person_speaks_and_sessions_add_them_up() {
        let turn = |n: u8| Some(Digest([n; 16]));
        let mut books = Books::default();
        books.open(turn(1), 0, 0, 1_000);
        books.open(turn(1), 400, 2, 61_000);
        assert_eq!(books.turn(400, 2), Spent { tokens: 400, requests: 2, milliseconds: 60_000 });
        books.open(turn(2), 500, 3, 100_000);
        assert_eq!(books.turn(500, 3), Spent::default(), "what a person waited before is nobody's");
        books.see(110_000);
        books.see(105_000);
        assert_eq!(books.turn(700, 4), Spent { tokens: 200, requests: 1, milliseconds: 10_000 });
        assert_eq!(books.session(700, 4), Spent { tokens: 700, requests: 4, milliseconds: 70_000 });
        assert_eq!(Books::deserialize(json!(books)).unwrap(), books, "also after a restart");
        assert!(!books.is_pardoned());
        assert!(books.tell_loop(10, 5) && !books.tell_loop(18, 5) && books.tell_loop(20, 5));
        books.resume(700, 4, 200_000);
        assert_eq!((books.turn(700, 4), books.session(700, 4)), (Spent::default(), Spent::default()));
        assert!(books.is_pardoned());
        books.open(turn(3), 700, 4, 300_000);
        assert!(!books.is_pardoned(), "the next turn has to ask again");
        assert_eq!(Books::deserialize(json!({})).unwrap(), Books::default());
        assert!(Books::deserialize(json!({"told": "x", "turn": 7})).is_err());
    }
}
