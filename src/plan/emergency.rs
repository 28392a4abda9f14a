//! Emergency: the server refused the prompt all the same. The window and the counts were wrong; plan again with what the
//! refusal taught, and harder.

use super::facts::Facts;
use super::policy::Policy;
use crate::conversation::Tokens;

/// What a refusal taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusal {
    /// Prompt tokens as the server counted them, where it said.
    pub prompt: Option<Tokens>,
    /// The window as the server said.
    pub window: Option<Tokens>,
}

/// The facts for the second try. `counted` is what we took the refused prompt for.
pub fn facts(facts: &Facts, counted: Tokens, refusal: Refusal) -> Facts {
    let mut new = facts.clone();
    if let Some(window) = refusal.window.filter(|w| *w > 0) {
        new.window = window;
    } else {
        // No number was given: what was refused is the best bound there is.
        new.window = new.window.min(counted.saturating_add(new.output_reserved)) / 4 * 3;
    }
    new.output_reserved = new.output_reserved.min(new.window / 4);
    new.slack = new.slack.max(new.window / 50);
    new.background = false;
    if let Some(prompt) = refusal.prompt.filter(|p| *p > counted && counted > 0) {
        scale(&mut new, f64::from(prompt) / f64::from(counted));
    }
    new
}

/// Makes every count larger by a factor.
pub fn scale(facts: &mut Facts, factor: f64) {
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

/// The policy for the second try: half as much is kept, and nothing waits for a line or for a model.
pub fn policy(policy: &Policy) -> Policy {
    Policy {
        keep_recent: policy.keep_recent / 2,
        clear_at: policy.clear_at / 2.0,
        clear_to: policy.clear_to / 2.0,
        summarize_at: policy.summarize_at / 2.0,
        summarize_to: policy.summarize_to / 2.0,
        ..policy.clone()
    }
}
