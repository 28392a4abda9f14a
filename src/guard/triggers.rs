//! Folds at a pace that the user sets: every so many turns or calls, and not again for a while after one.

use serde::{Deserialize, Serialize};

use crate::config::Triggers;
use crate::conversation::{Message, step};
use crate::plan::{Action, FoldAt, KeepRecent, Plan, Policy};

/// Where a conversation stood when it was last folded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Folded {
    /// One past the last message that was folded; 0 where none was.
    pub to: usize,
    /// What a person had said by then, in messages.
    pub turns: u64,
    /// Tool calls by then.
    pub calls: u64,
    /// When (Unix milliseconds).
    pub at_ms: i64,
}

/// What the pace asks of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Pace {
    /// Nothing: the lines decide.
    #[default]
    Usual,
    /// A fold, and why.
    Fold(String),
    /// A fold of all that can go, since a task is done, and why.
    Done(String),
    /// No rewrite short of the wall: the last one was only just made.
    Hold,
}

impl Folded {
    /// Where a body stands that is folded up to `to`.
    pub fn at(body: &[Message], to: usize, now_ms: i64) -> Folded {
        let (turns, calls) = counted(body);
        Folded { to, turns, calls, at_ms: now_ms }
    }
}

/// What a person said, in messages, and tool calls.
fn counted(body: &[Message]) -> (u64, u64) {
    let turns = body.iter().filter(|m| step::is_persons(m)).count();
    let calls: usize = body.iter().map(|m| m.calls.len()).sum();
    (turns as u64, calls as u64)
}

/// What the pace asks of a request with this body.
pub fn pace(triggers: &Triggers, body: &[Message], last: &Folded, now_ms: i64) -> Pace {
    if *triggers == Triggers::default() {
        return Pace::Usual;
    }
    let (turns, calls) = counted(body);
    // A client that dropped messages has fewer than there were.
    let (turns, calls) = (turns.saturating_sub(last.turns), calls.saturating_sub(last.calls));
    let seconds = now_ms.saturating_sub(last.at_ms) / 1000;
    let was_folded = last.to > 0;
    let cools = |now: u64, wait: u64| was_folded && now < wait;
    if cools(turns, triggers.cooldown_turns) || cools(u64::try_from(seconds).unwrap_or(0), triggers.cooldown_seconds) {
        return Pace::Hold;
    }
    let since = if was_folded { "since the last fold" } else { "so far" };
    let due = |now: u64, every: u64| every > 0 && now >= every;
    if due(turns, triggers.fold_every_turns) {
        return Pace::Fold(format!("fold_every_turns: {turns} turns {since} (every {})", triggers.fold_every_turns));
    }
    if due(calls, triggers.fold_every_calls) {
        return Pace::Fold(format!("fold_every_calls: {calls} calls {since} (every {})", triggers.fold_every_calls));
    }
    Pace::Usual
}

impl Pace {
    /// Why a fold is due, where one is.
    pub fn why(&self) -> Option<&str> {
        match self {
            Pace::Fold(why) | Pace::Done(why) => Some(why),
            Pace::Usual | Pace::Hold => None,
        }
    }

    /// Why a plan folds, where it is for the pace.
    pub fn reason(&self, plan: &Plan) -> Option<String> {
        let folds = plan.actions.iter().any(|action| matches!(action, Action::Fold { .. }));
        self.why().filter(|_| folds).map(str::to_owned)
    }

    /// Why a plan does not fold though the pace asks for it, with the count.
    pub fn waits(&self, plan: &Plan) -> Option<String> {
        let why = self.why().filter(|_| self.reason(plan).is_none())?;
        let waits = plan.waits.iter().find(|waiting| waiting.rule == "summarize");
        Some(format!("{why} waits: {}", waits.map_or("nothing is left to fold", |waiting| &waiting.why)))
    }

    /// The policy that a request is planned by.
    pub fn policy(&self, usual: &Policy) -> Policy {
        match self {
            Pace::Usual => usual.clone(),
            Pace::Fold(_) => {
                // Clearing instead would leave the pace where it is.
                let (clear_at, clear_to) = (1.0, 0.99);
                let (summarize_at, summarize_to) = (0.000_1, 0.000_05);
                Policy { clear_at, clear_to, summarize_at, summarize_to, fold_at: FoldAt::Now, ..usual.clone() }
            }
            // The steps of a task that is done are no longer needed, however new they are.
            Pace::Done(_) => Policy {
                summarize_at: 0.000_1,
                summarize_to: 0.000_05,
                clear_at: 1.0,
                clear_to: 0.99,
                fold_at: FoldAt::Now,
                keep_recent: KeepRecent::Messages(1),
                ..usual.clone()
            },
            Pace::Hold => Policy { clear_at: 1.0, summarize_at: 1.0, ..usual.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::openai_chat::message;

    fn body(turns: usize) -> Vec<Message> {
        let all = [
            r#"{"role":"user","content":"Please go on."}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"ls","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"a","content":"one"}"#,
        ];
        let read = |text: &&str| message(Bytes::copy_from_slice(text.as_bytes())).unwrap();
        (0..turns).flat_map(|_| all.iter().map(read)).collect()
    }

    #[test]
    fn the_pace_is_counted_from_the_last_fold() {
        let every = |turns, calls| Triggers { fold_every_turns: turns, fold_every_calls: calls, ..Triggers::default() };
        let folds = |triggers: &Triggers, turns, last: &Folded| match pace(triggers, &body(turns), last, 10_000) {
            Pace::Fold(why) => why,
            other => format!("{other:?}"),
        };
        let none = Folded::default();
        assert_eq!(folds(&Triggers::default(), 99, &none), "Usual");
        assert_eq!(folds(&every(4, 0), 3, &none), "Usual");
        assert_eq!(folds(&every(4, 0), 4, &none), "fold_every_turns: 4 turns so far (every 4)");
        assert_eq!(folds(&every(0, 3), 3, &none), "fold_every_calls: 3 calls so far (every 3)");
        let last = Folded::at(&body(4), 7, 9_000);
        assert_eq!(folds(&every(4, 0), 7, &last), "Usual");
        assert_eq!(folds(&every(4, 0), 8, &last), "fold_every_turns: 4 turns since the last fold (every 4)");
        assert_eq!(folds(&every(4, 0), 2, &last), "Usual", "the client dropped messages");
        assert_eq!(Folded::deserialize(serde_json::json!(last)).unwrap(), last);
    }

    #[test]
    fn after_a_fold_nothing_is_rewritten_for_a_while() {
        let cooldown = |seconds, turns| Triggers {
            fold_every_turns: 1,
            cooldown_seconds: seconds,
            cooldown_turns: turns,
            ..Triggers::default()
        };
        let last = Folded::at(&body(4), 7, 100_000);
        assert_eq!(pace(&cooldown(60, 0), &body(9), &last, 159_999), Pace::Hold);
        assert!(matches!(pace(&cooldown(60, 0), &body(9), &last, 160_000), Pace::Fold(_)));
        assert_eq!(pace(&cooldown(0, 6), &body(9), &last, 900_000), Pace::Hold);
        assert!(matches!(pace(&cooldown(0, 6), &body(10), &last, 0), Pace::Fold(_)), "a clock that went back");
        assert!(
            matches!(pace(&cooldown(60, 6), &body(1), &Folded::default(), 1), Pace::Fold(_)),
            "nothing was folded yet"
        );
        let held = Pace::Hold.policy(&Policy::default());
        assert_eq!((held.clear_at, held.summarize_at), (1.0, 1.0));
    }
}
