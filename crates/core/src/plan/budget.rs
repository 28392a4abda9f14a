//! The budget: what a prompt may cost at each line of the policy.

use super::Plan;
use super::facts::Facts;
use super::policy::{FoldAt, Policy, Size, Strategy};
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
    /// Where a fold comes: `summarize_at` or the wall.
    pub fold_at: Tokens,
    /// One result above this is evicted when it arrives.
    pub evict_over: Tokens,
    /// One result above this is condensed by a model when it arrives.
    pub digest_over: Option<Tokens>,
    /// Most tokens of a brief, and of the pinned texts in front of it.
    pub brief: Tokens,
    /// Whether system prompt and tools leave so little that the lines are shares of the room above them.
    pub tight: bool,
    /// Whether what is never touched takes more than half of the window.
    pub crowded: bool,
    /// Of these, about what a model is asked for, and as much again.
    pub summary: Tokens,
}

impl Lines {
    /// Half way between the folding lines: what comes down to here has room for a while.
    pub fn half_way(&self) -> Tokens {
        self.summarize_to.midpoint(self.summarize_at)
    }

    /// Why a model is asked for no brief, in words; `None` where one is.
    pub fn no_summary(&self) -> Option<String> {
        let room = self.summary;
        (room < LEAST_SUMMARY).then(|| {
            format!(
                "a brief may take {room} tokens, and one with a summary takes {LEAST_SUMMARY}: the window is small, system prompt \
                 and tools take most of it, or summary_max_tokens is low"
            )
        })
    }

    /// From where on a brief may be made ahead of a prompt of `used` tokens, and for a fold at which line. A prompt that is past
    /// a line short of the wall was not folded there, since that would not pay.
    pub fn brief_at(&self, used: Tokens) -> (Tokens, Tokens) {
        match self.fold_at < self.limit && used <= self.fold_at {
            true => (self.summarize_to, self.fold_at),
            false => (self.summarize_at, self.limit),
        }
    }

    /// The lines for a request. Shares are of the window and count the reserved output, as pressure does; where system
    /// prompt and tools leave so little room that a line would cut into them, the share is taken of the room instead.
    pub fn of(facts: &Facts, policy: &Policy) -> Lines {
        Lines::above(facts, policy, facts.head())
    }

    /// [`Lines::of`] a request whose first `fixed` tokens are never touched.
    pub(super) fn above(facts: &Facts, policy: &Policy, fixed: Tokens) -> Lines {
        let limit = facts.window.saturating_sub(facts.output_reserved).saturating_sub(facts.slack);
        let room = limit.saturating_sub(fixed);
        let of_window =
            |share: f64| (f64::from(facts.window) * share - f64::from(facts.output_reserved)).max(0.0) as Tokens;
        let of_room = |share: f64| fixed + (f64::from(room) * share) as Tokens;
        // One measure for all lines, or those that belong together would fall upon each other.
        let lowest = policy.clear_to.min(policy.summarize_to);
        let tight = of_window(lowest) < of_room(lowest / 2.0);
        let line = |share: f64| if tight { of_room(share).min(limit) } else { of_window(share).min(limit) };
        let size = |size: Size| size.tokens(facts.window).max(SMALLEST_EVICTED);
        let crowded = fixed > facts.window / 2;
        // One result must leave room for a brief and the next call.
        let most = if crowded { (room / 3 * 2).max(SMALLEST_EVICTED) } else { Tokens::MAX };
        let (evict_over, digest_over) =
            (size(policy.results.evict_over).min(most), policy.results.digest_over.map(size));
        let summary = brief_budget(facts.window, room, policy.summary_max_tokens);
        let (clear_at, summarize_at) = (line(policy.clear_at), line(policy.summarize_at));
        let summarize_to = line(policy.summarize_to).min(summarize_at);
        let depth = match policy.fold_at {
            FoldAt::Line | FoldAt::Now => summarize_to,
            FoldAt::Wall => summarize_to.max(sparse(limit, facts.window)),
        };
        let small = tight || facts.window < LEAST_WITH_WORK;
        let brief = if small { summary } else { with_work(summary, depth.saturating_sub(fixed), facts.window) };
        Lines {
            limit,
            clear_at,
            clear_to: line(policy.clear_to).min(clear_at),
            summarize_at,
            summarize_to,
            fold_at: match policy.fold_at {
                FoldAt::Line | FoldAt::Now if policy.strategy != Strategy::Off => summarize_at,
                _ => limit,
            },
            // Where no digest comes of it, there is a preview.
            evict_over: digest_over.map_or(evict_over, |over| over.min(evict_over)),
            digest_over,
            brief: brief.saturating_add(facts.pins.tokens),
            summary,
            tight,
            crowded,
        }
    }
}

/// Results below this many tokens are never evicted, whatever the share says: a preview would cost as much.
const SMALLEST_EVICTED: Tokens = 160;

/// Share of what a fold leaves of the history, in hundredths, that a brief may take with the work that it quotes. What is
/// quoted is worth more for its length than older messages kept whole (docs/notes/memory.md).
const WITH_WORK: Tokens = 70;

/// A brief with the work that it quotes is at most so many times as long as one without.
const MOST_WITH_WORK: Tokens = 4;

/// In a smaller window (tokens) a brief quotes only what fits beside the rest: the newest steps need the room.
const LEAST_WITH_WORK: Tokens = 4096;

/// Tokens of a brief, the work that it quotes included, where a fold in a window of so many tokens leaves so many of the
/// history. Where windows keep more, it takes a seventh more of them.
fn with_work(brief: Tokens, left: Tokens, window: Tokens) -> Tokens {
    let (share, most) = match KEEPS_MORE.contains(&window) {
        true => (WITH_WORK / 7 * 8, MOST_WITH_WORK + 1),
        false => (WITH_WORK, MOST_WITH_WORK),
    };
    (left / 100 * share).min(brief * most).max(brief)
}

/// In windows of these sizes (tokens) a rewrite keeps more: what it leaves free is what the next step lacks, and a prompt is soon
/// evaluated. A smaller window is full again after one or two steps; a larger one holds most of what is needed anyway
/// (docs/notes/memory.md).
const KEEPS_MORE: std::ops::Range<Tokens> = 8_192..16_384;

/// Tokens of a prompt that leaves a third of the window empty, or a fifth where windows keep more: a rewrite at the wall
/// goes no deeper.
pub(super) fn sparse(limit: Tokens, window: Tokens) -> Tokens {
    limit.saturating_sub(if KEEPS_MORE.contains(&window) { window / 5 } else { window / 3 })
}

/// Tokens of what was used that placeholders keep together at most, of so many that clearing frees. In a large window more of
/// it makes the next rewrite come sooner, and says little.
pub(super) fn most_used(freed: Tokens, window: Tokens) -> Tokens {
    if KEEPS_MORE.contains(&window) { (freed / 2).min(2048) } else { (freed / 3).min(1024) }
}

/// Tokens a brief may take without what it quotes: an eighth of the window, a quarter of the `room` above what is never
/// touched, and no more than what the model may write and as much again for the part made without a model. A brief that
/// fills the room leaves none for the steps that it is for.
pub fn brief_budget(window: Tokens, room: Tokens, summary_max_tokens: Tokens) -> Tokens {
    (window / 8).min(room / 4).min(summary_max_tokens.saturating_mul(2)).max(LEAST_BRIEF)
}

/// A brief of fewer tokens has no room for what a model writes: half of it is marks and the last thing that the person said.
const LEAST_SUMMARY: Tokens = 112;

/// The smallest brief, in tokens.
pub(super) const LEAST_BRIEF: Tokens = 96;

/// Tokens to keep for the reply: what the client asks for, else the configured amount, but never more than a quarter of
/// the window. What a client asks for beyond the configured amount is a wish (Claude Code always asks for 32,000; Kimi
/// Code for its whole context less the last usage): it gets at most a quarter of what `head`, the tokens of system prompt
/// and tools, leaves of the window, and an eighth where that is less than half of it. Otherwise the history would have no
/// room, and would be rewritten every turn.
pub fn output_reserved(window: Tokens, head: Tokens, asked: Option<Tokens>, configured: Tokens) -> Tokens {
    let usual = usual_reserve(window, configured);
    let share = if head > window / 2 { 8 } else { 4 };
    let most = usual.max(window.saturating_sub(head) / share).min(window / 4);
    asked.map_or(usual, |asked| asked.min(most)).max(1)
}

/// The configured reserve for the reply, in tokens, where the window is large enough for it.
pub fn usual_reserve(window: Tokens, configured: Tokens) -> Tokens {
    configured.min(window / 4).max(1)
}

/// Keeps less for the reply, where a plan costs more than that: a shorter answer is the smaller loss. Before anything of
/// the person's or of the newest step goes, down to what is `configured` or an eighth of the window; before the request is
/// refused, down to the least. False when there is nothing more to give.
pub fn gives_way(facts: &mut Facts, plan: &Plan, configured: Tokens) -> bool {
    let least = match plan.fits {
        false => least_reserve(facts.window),
        true if plan.hard => usual_reserve(facts.window, configured).min(facts.window / 8),
        true => return false,
    };
    let more = facts.output_reserved > least;
    facts.output_reserved = facts.output_reserved.min(least);
    more
}

/// The least that is kept for the reply, in tokens.
pub fn least_reserve(window: Tokens) -> Tokens {
    (window / 32).max(16)
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
        assert_eq!((l.limit, l.clear_at, l.summarize_at, l.summarize_to), (7664, 5632, 6451, 3174));
        // The system prompt takes most of the window: lines are shares of what is left.
        let l = lines(2048, 1200);
        assert_eq!((l.limit, l.clear_at, l.summarize_at), (1520, 1440, 1472));
        // It takes all of it.
        let l = lines(2048, 4000);
        assert!(l.clear_at <= l.limit && l.summarize_at <= l.limit);
        // A brief with the work it quotes is most of what a fold leaves; without it, an eighth of the window or a quarter of a
        // small room.
        let briefs = [(8192, 1000), (8192, 6000), (2048, 1900)].map(|(window, system)| lines(window, system).brief);
        assert_eq!(briefs, [4000, 416, LEAST_BRIEF]);
    }

    #[test]
    fn a_shorter_answer_is_the_smaller_loss() {
        let facts = |window, output_reserved| Facts { window, output_reserved, ..Default::default() };
        let conversation = crate::conversation::Conversation::default();
        for (window, reserved, hard, fits, left) in [
            (30_720, 2180, true, true, 1024),
            (30_720, 2180, false, true, 2180),
            (4096, 1024, true, true, 512),
            (4096, 512, true, false, 128),
        ] {
            let mut facts = facts(window, reserved);
            let plan = Plan { hard, fits, ..crate::plan::plan(&conversation, &facts, &Policy::default()) };
            assert_eq!(gives_way(&mut facts, &plan, 1024), left < reserved, "{window}");
            assert_eq!(facts.output_reserved, left, "{window}");
        }
    }

    #[test]
    fn a_client_that_asks_for_everything_gets_a_quarter_reserved() {
        assert_eq!(output_reserved(8192, 0, Some(131_072), 1024), 2048);
        assert_eq!(output_reserved(8192, 0, None, 1024), 1024);
        assert_eq!(output_reserved(2048, 0, None, 1024), 512);
        // A client's tools leave 8,720 tokens: a wish for 108,000 gets an eighth of that, a modest one all of it.
        assert_eq!(output_reserved(30_720, 22_000, Some(108_000), 1024), 1090);
        assert_eq!(output_reserved(30_720, 10_000, Some(108_000), 1024), 5180);
        assert_eq!(output_reserved(30_720, 22_000, Some(900), 1024), 900);
        assert_eq!(output_reserved(24_000, 23_000, Some(32_000), 1024), 1024);
    }
}
