//! What is the least that a conversation can be brought down to? Slow, obvious, and written without the planner: every
//! way to fold, with everything that stays cut to the least that still says something.

use windowsill::conversation::{Conversation, Role, Tokens, step};
use windowsill::plan::Facts;

/// A cut message keeps this much.
const LEAST_SHARE: Tokens = 48;

/// The last user message keeps this much.
const LEAST_USER: Tokens = 64;

/// The smallest brief, with what stands around it at most.
pub(crate) const LEAST_BRIEF: Tokens = 96 + 12 + 32;

/// The least tokens that a view can have.
#[derive(Debug)]
pub(crate) struct Best {
    pub with_user_whole: Tokens,
    pub with_user_cut: Tokens,
}

/// Tries every fold: none, and every run of units, with the last user message kept where it is inside.
pub(crate) fn best(conversation: &Conversation, facts: &Facts) -> Best {
    let body = &conversation.body;
    let last_user = step::request(body);
    let units = step::units(body);
    let mut least = Tokens::MAX;
    let rest = |at: usize| -> Tokens {
        let cost = &facts.costs[at];
        match body[at].role {
            _ if Some(at) == last_user => 0,
            // Roles nobody knows are passed through as they are.
            Role::Other => cost.total(),
            _ => {
                (cost.text + cost.media).min(LEAST_SHARE)
                    + cost.calls.iter().map(|c| (*c).min(LEAST_SHARE)).sum::<Tokens>()
            }
        }
    };
    for from in 0..=units.len() {
        for to in from..=units.len() {
            let folded = |at: usize| {
                let unit = units.iter().position(|u| (u.start..u.end).contains(&at)).expect("units cover the body");
                (from..to).contains(&unit)
            };
            let brief = if from == to { 0 } else { LEAST_BRIEF };
            // Only folds that the planner may make: from the start, or from behind the first user message.
            let anchor = body.iter().take(4).position(|m| m.role == Role::User).map_or(0, |at| at + 1);
            let allowed = from == to || from == 0 || units.get(from).is_some_and(|u| u.start == anchor);
            if allowed {
                least = least.min(brief + (0..body.len()).filter(|at| !folded(*at)).map(rest).sum::<Tokens>());
            }
        }
    }
    let user = last_user.map_or(0, |at| facts.costs[at].total());
    let head = facts.head();
    Best { with_user_whole: head + least + user, with_user_cut: head + least + user.min(LEAST_USER) }
}

/// Least tokens any plan can come down to, without trying: the brief and what is left of the last user message.
pub(crate) fn lower_bound(conversation: &Conversation, facts: &Facts) -> Tokens {
    let user = step::request(&conversation.body).map_or(0, |at| facts.costs[at].total().min(LEAST_USER));
    // What a planner may add to keep strict templates content.
    let fillers = 36;
    facts.head() + LEAST_BRIEF + fillers + user
}
