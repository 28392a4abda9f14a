//! The budget: what a prompt may cost at each line of the policy.

use super::facts::Facts;
use super::policy::{Policy, Size};
use crate::conversation::Tokens;

/// Prompt tokens at which something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// The wall: no prompt may pass it.
    pub limit: Tokens,
    /// Clearing starts above this.
    pub clear_at: Tokens,
    /// Clearing goes down to this.
    pub clear_to: Tokens,
    /// Folding starts above this.
    pub summarize_at: Tokens,
    /// Folding goes down to this.
    pub summarize_to: Tokens,
    /// One result above this is evicted when it arrives.
    pub evict_over: Tokens,
    /// One result above this is condensed by a model when it arrives.
    pub digest_over: Option<Tokens>,
    /// Most tokens of a brief.
    pub brief: Tokens,
}

impl Lines {
    /// Half way between the folding lines: what comes down to here has room for a while.
    pub(super) fn half_way(&self) -> Tokens {
        self.summarize_to.midpoint(self.summarize_at)
    }

    /// The lines for a request. Shares are of the window and count the reserved output, as pressure does; where system
    /// prompt and tools leave so little room that a line would cut into them, the share is taken of the room instead.
    pub fn of(facts: &Facts, policy: &Policy) -> Lines {
        let limit = facts.window.saturating_sub(facts.output_reserved).saturating_sub(facts.slack);
        let room = limit.saturating_sub(facts.head());
        let of_window =
            |share: f64| (f64::from(facts.window) * share - f64::from(facts.output_reserved)).max(0.0) as Tokens;
        let of_room = |share: f64| facts.head() + (f64::from(room) * share) as Tokens;
        // One measure for all lines, or those that belong together would fall upon each other.
        let lowest = policy.clear_to.min(policy.summarize_to);
        let tight = of_window(lowest) < of_room(lowest / 2.0);
        let line = |share: f64| if tight { of_room(share).min(limit) } else { of_window(share).min(limit) };
        let size = |size: Size| size.tokens(facts.window).max(SMALLEST_EVICTED);
        let (evict_over, digest_over) = (size(policy.evict_over), policy.digest_over.map(size));
        let (clear_at, summarize_at) = (line(policy.clear_at), line(policy.summarize_at));
        Lines {
            limit,
            clear_at,
            clear_to: line(policy.clear_to).min(clear_at),
            summarize_at,
            summarize_to: line(policy.summarize_to).min(summarize_at),
            // Where no digest comes of it, there is a preview.
            evict_over: digest_over.map_or(evict_over, |over| over.min(evict_over)),
            digest_over,
            brief: brief_budget(facts.window, policy.summary_max_tokens),
        }
    }
}

/// Results below this many tokens are never evicted, whatever the share says: a preview would cost as much.
const SMALLEST_EVICTED: Tokens = 160;

/// Tokens a brief may take: an eighth of the window, and no more than what the model may write and as much again for
/// the part made without a model.
pub fn brief_budget(window: Tokens, summary_max_tokens: Tokens) -> Tokens {
    (window / 8).min(summary_max_tokens.saturating_mul(2)).max(96)
}

/// Tokens to keep for the reply: what the client asks for, else the configured amount, but never more than a quarter of
/// the window. Some clients ask for their whole configured context (Kimi Code: `max_tokens` = window − last usage), which
/// must not be taken off the window as if they needed it.
pub fn output_reserved(window: Tokens, asked: Option<Tokens>, configured: Tokens) -> Tokens {
    asked.unwrap_or(configured).min(window / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_the_window_or_the_room() {
        let lines = |window, system| {
            let facts = Facts { window, output_reserved: 512.min(window / 4), slack: 16, system, ..Default::default() };
            Lines::of(&facts, &Policy::default())
        };
        let l = lines(8192, 1000);
        assert_eq!((l.limit, l.clear_at, l.summarize_at, l.summarize_to), (7664, 4403, 6451, 3174));
        // The system prompt takes most of the window: lines are shares of what is left.
        let l = lines(2048, 1200);
        assert_eq!((l.limit, l.clear_at, l.summarize_at), (1520, 1392, 1472));
        // It takes all of it.
        let l = lines(2048, 4000);
        assert!(l.clear_at <= l.limit && l.summarize_at <= l.limit);
    }

    #[test]
    fn a_client_that_asks_for_everything_gets_a_quarter_reserved() {
        assert_eq!(output_reserved(8192, Some(131_072), 1024), 2048);
        assert_eq!(output_reserved(8192, None, 1024), 1024);
        assert_eq!(output_reserved(2048, None, 1024), 512);
    }
}
