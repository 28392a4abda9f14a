//! Emergency: the server refused the prompt all the same. The window and the counts were wrong; plan again with what the
//! refusal taught, and harder.

use super::facts::Facts;
use super::policy::{ClearLine, FoldAt, KeepRecent, Policy};
use crate::conversation::Tokens;

/// What a refusal taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusal {
    /// Prompt tokens as the server counted them, where it said.
    pub prompt: Option<Tokens>,
    /// The window as the server said.
    pub window: Option<Tokens>,
}

/// Margin on a count that is known to have been too low, but not by how much.
const LOW_BY_MORE: f64 = 1.15;

/// The facts for the second try. `counted` is what we took the refused prompt for.
pub fn facts(facts: &Facts, counted: Tokens, refusal: Refusal) -> Facts {
    let mut new = facts.clone();
    let counted = counted.max(1);
    let told = refusal.window.filter(|w| *w > 0);
    if told.is_some() || is_plausible(facts, counted) {
        new.window = told.unwrap_or(facts.window);
        // A refused prompt did not fit: where the server does not say how long it was, it filled the window at least.
        let at_least = f64::from(new.window.saturating_sub(new.output_reserved).max(counted)) * LOW_BY_MORE;
        let real = refusal.prompt.map_or(at_least, f64::from);
        scale(&mut new, (real / f64::from(counted)).max(1.0));
    } else {
        // Nobody knows the window: what was refused is the best bound there is.
        let refused = refusal.prompt.unwrap_or(counted);
        new.window = new.window.min(refused.saturating_add(new.output_reserved)) / 4 * 3;
    }
    new.output_reserved = new.output_reserved.min(new.window / 4);
    new.slack = new.slack.max(new.window / 50);
    new.counting.guessed = false;
    new
}

/// Whether the window we know can be what refused the prompt: a count that was low by half explains it.
fn is_plausible(facts: &Facts, counted: Tokens) -> bool {
    facts.window / 2 <= counted.saturating_add(facts.output_reserved)
}

/// Makes every count larger by a factor, and has what is made to a size measured by it, too.
pub fn scale(facts: &mut Facts, factor: f64) {
    facts.counting.scale *= factor;
    let more = |n: &mut Tokens| *n = (f64::from(*n) * factor).ceil() as Tokens;
    more(&mut facts.system);
    more(&mut facts.tools);
    for cost in &mut facts.costs {
        more(&mut cost.text);
        more(&mut cost.media);
        cost.calls.iter_mut().for_each(more);
    }
    facts.edit_costs.iter_mut().for_each(more);
}

/// The policy for the second try: less is kept, and nothing waits for a line or for a model. Where the refusal named
/// neither window nor prompt there is nothing to aim at but "much less": half of it.
pub fn policy(policy: &Policy, window: Tokens, refusal: Refusal) -> Policy {
    let share = if refusal.window.is_some() || refusal.prompt.is_some() { 1.0 } else { 0.5 };
    Policy {
        fold_at: FoldAt::Line,
        clear_line: ClearLine::Pays,
        keep_recent: KeepRecent::Messages(policy.keep_recent.messages(window) / 2),
        clear_at: policy.clear_at / 2.0,
        clear_to: policy.clear_to.min(policy.clear_at / 2.0) * share,
        summarize_at: policy.summarize_at / 2.0,
        summarize_to: policy.summarize_to.min(policy.summarize_at / 2.0) * share,
        ..policy.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cost;

    fn of(window: Tokens, text: Tokens) -> Facts {
        let costs = vec![Cost { text, ..Cost::default() }];
        Facts { window, output_reserved: 256, costs, ..Facts::default() }
    }

    #[test]
    fn what_a_refusal_teaches() {
        let told = |prompt, window| Refusal { prompt, window };
        // (window and prompt as we took them, the refusal, window and least cost in the second try)
        for (window, text, refusal, then, least) in [
            // Both numbers: taken as they are.
            (4096, 3000, told(Some(4500), Some(4096)), 4096, 4500),
            (8192, 3000, told(Some(3000), Some(2048)), 2048, 3000),
            // The window alone: the prompt was longer than it.
            (8192, 3000, told(None, Some(4096)), 4096, 4096 - 256),
            // No numbers, and a window that a low estimate explains.
            (1024, 845, told(None, None), 1024, 845),
            // No numbers, and a window that nobody knows.
            (1 << 30, 3000, told(None, None), 3256 / 4 * 3, 3000),
        ] {
            let new = facts(&of(window, text), text, refusal);
            assert_eq!(new.window, then, "{window} {text} {refusal:?}");
            assert!(new.costs[0].text >= least && new.costs[0].text <= least.max(text) * 3 / 2, "{:?}", new.costs);
            // What is cut to a size of these facts is counted as they are.
            assert_eq!(new.counting.scaled(text), new.costs[0].text, "{window} {text} {refusal:?}");
        }
    }
}
