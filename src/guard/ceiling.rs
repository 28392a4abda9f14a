//! Ceilings: what a turn and a session may take, and how near they are.

use super::books::Spent;
use crate::config::{Ceiling, Most};

/// From this share of a ceiling on there is a warning.
const NEAR: f64 = 0.8;

/// Milliseconds of a minute.
const MINUTE: u64 = 60_000;

/// A ceiling that is near, or reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    /// Its key in `[ceiling]`.
    pub key: &'static str,
    /// What was spent, in its unit.
    pub spent: u64,
    /// The most that may be.
    pub most: u64,
    /// `spent` as a share of it.
    pub share: f64,
    /// Which of the six it is.
    place: u32,
}

impl Near {
    /// Whether no more may be spent.
    pub fn is_reached(&self) -> bool {
        self.share >= 1.0
    }

    /// The bit by which it is remembered that this was said: of the turn's ceilings the lower 12.
    pub fn bit(&self) -> u32 {
        1 << (2 * self.place + u32::from(self.is_reached()))
    }

    /// In words: what was spent of what.
    pub fn words(&self) -> String {
        let (whose, unit) = self.key.split_once('_').unwrap_or(("turn", self.key));
        format!("this {whose} has taken {} of {} {unit} (`{}`)", self.spent, self.most, self.key)
    }
}

/// The ceilings that a request meets, before it is sent. Those reached come first.
pub fn near(ceiling: &Ceiling, turn: &Spent, session: &Spent) -> Vec<Near> {
    let mut near = all(ceiling, turn, session);
    near.retain(|near| near.share >= NEAR);
    near.sort_by(|a, b| b.share.total_cmp(&a.share));
    near
}

/// All ceilings that are set, with what was spent.
pub fn all(ceiling: &Ceiling, turn: &Spent, session: &Spent) -> Vec<Near> {
    let [a, b, c] = of(["turn_tokens", "turn_requests", "turn_minutes"], 0, &ceiling.turn, turn);
    let [d, e, f] = of(["session_tokens", "session_requests", "session_minutes"], 6, &ceiling.session, session);
    [a, b, c, d, e, f].into_iter().flatten().collect()
}

fn of(keys: [&'static str; 3], first: u32, most: &Most, spent: &Spent) -> [Option<Near>; 3] {
    let one = |i: usize, spent: u64, most: u64, unit: u64| {
        let share = spent as f64 / most.saturating_mul(unit).max(1) as f64;
        let place = first + i as u32;
        (most > 0).then_some(Near { key: keys[i], spent: spent / unit, most, share, place })
    };
    [
        one(0, spent.tokens, most.tokens, 1),
        one(1, spent.requests, most.requests, 1),
        one(2, spent.milliseconds, most.minutes, MINUTE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Response;

    #[test]
    fn a_ceiling_is_near_from_80_percent_on() {
        let most = Most { tokens: 1_000, requests: 5, minutes: 2 };
        let ceiling = Ceiling {
            turn: most,
            session: Most::default(),
            action: Response::Warn,
            price_per_million: 0.0,
            watts: 0.0,
        };
        let keys = |tokens, requests, milliseconds| -> Vec<(&str, bool)> {
            let spent = Spent { tokens, requests, milliseconds };
            near(&ceiling, &spent, &spent).iter().map(|near| (near.key, near.is_reached())).collect()
        };
        assert_eq!(keys(799, 3, 95_999), []);
        assert_eq!(keys(800, 0, 0), [("turn_tokens", false)]);
        assert_eq!(keys(1_000, 4, 0), [("turn_tokens", true), ("turn_requests", false)]);
        assert_eq!(keys(0, 0, 120_000), [("turn_minutes", true)]);
        let far = Spent { tokens: u64::MAX, requests: u64::MAX, milliseconds: u64::MAX };
        let all = near(&Ceiling { session: most, ..ceiling }, &far, &far);
        let bits: u32 = all.iter().map(Near::bit).fold(0, |all, bit| all | bit);
        assert_eq!((all.len(), bits.count_ones()), (6, 6), "each is told on its own");
        let turn = all.iter().filter(|near| near.key.starts_with("turn")).map(Near::bit);
        assert!(turn.fold(0, |all, bit| all | bit) <= 0xfff);
    }
}
