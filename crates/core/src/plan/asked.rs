//! Plans that no request asks for: the fold that a person wants now, and the one that the next request will need.

use super::policy::{FoldAt, KeepRecent, Policy, ResultRules, Size, Strategy};
use super::{Action, Facts, Plan, Regions, client, plan};
use crate::conversation::edit::Edit;
use crate::conversation::managed::{Compact, Edits};
use crate::conversation::{Conversation, Tokens};

/// A fold ahead of need must leave no more than this share of the prompt.
const WORTH_IT: f64 = 0.8;

/// The plan of a fold that a person asked for. One that would not pay by itself is made all the same, where it frees anything: as
/// if the window ended where the prompt does. What the last brief says has to have room in the new one, and nothing is cut for it.
pub fn fold(conversation: &Conversation, facts: &Facts, policy: &Policy) -> Plan {
    let policy = at_any_pressure(policy);
    let now = plan(conversation, facts, &policy);
    if now.actions.iter().any(is_fold) {
        return now;
    }
    // A brief that only gets shorter is no fold that anybody asked for.
    let stands = facts.view.edits.iter().zip(&facts.edit_costs).find_map(|(edit, tokens)| match edit {
        Edit::Fold { to, .. } => Some((*to, *tokens)),
        _ => None,
    });
    let (reached, brief) = stands.unwrap_or((0, 0));
    let takes_more =
        |action: &Action| matches!(action, Action::Fold { to, budget, .. } if *to > reached && *budget >= brief);
    let at_wall = plan(conversation, &ending_at(facts, now.before.prompt()), &policy);
    let only_folds = !at_wall.hard && at_wall.actions.iter().all(is_fold);
    if only_folds && at_wall.actions.iter().any(takes_more) { at_wall } else { now }
}

/// The plan of a history that is folded at another line than the policy's (prompt tokens); with 0, as far as it can be.
pub fn at_line(conversation: &Conversation, facts: &Facts, policy: &Policy, line: Tokens) -> Plan {
    let compact = Some(Compact { at: line, ..Compact::default() });
    plan(conversation, facts, &client::over(&Edits { compact, ..policy.client.clone() }, policy))
}

fn is_fold(action: &Action) -> bool {
    matches!(action, Action::Fold { .. })
}

/// The same facts in a window that ends where the prompt does.
fn ending_at(facts: &Facts, prompt: Tokens) -> Facts {
    let room = facts.window.saturating_sub(facts.output_reserved);
    Facts { slack: room.saturating_sub(prompt.saturating_sub(1)), ..facts.clone() }
}

/// The policy of a fold that a person asked for: now, whatever the pressure, and nothing but the fold.
fn at_any_pressure(policy: &Policy) -> Policy {
    Policy {
        summarize_at: 0.000_1,
        summarize_to: 0.000_05,
        clear_at: 1.0,
        clear_to: 0.99,
        results: ResultRules { evict_over: Size::Tokens(Tokens::MAX), ..policy.results.clone() },
        fold_at: FoldAt::Line,
        // Who asks for a fold wants all of it that can go.
        keep_recent: KeepRecent::Messages(1),
        strategy: if policy.strategy == Strategy::Off { Strategy::Summarize } else { policy.strategy },
        ..policy.clone()
    }
}

/// The next request, as it is foreseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// Tokens that the server holds: the last prompt and its reply.
    pub used: Tokens,
    /// Tokens that the next request adds to these.
    pub more: Tokens,
    /// Prompt tokens that the last request could have had at most.
    pub limit: Tokens,
    /// A fold is due for another reason than the wall, and the policy says so.
    pub is_due: bool,
}

/// The plan that the next request would make, where that folds or clears and pays.
pub fn foreseen(conversation: &Conversation, facts: &Facts, policy: &Policy, next: Next) -> Option<Plan> {
    let Next { used, more, limit, is_due } = next;
    let total = Regions::of(conversation, facts, policy).prompt();
    let at_wall = !is_due && used.saturating_add(more) > limit;
    let facts = match (at_wall, is_due) {
        // The wall stands where the prompt is.
        (true, _) => ending_at(facts, total),
        (false, true) => facts.clone(),
        (false, false) => Facts { foreseen: used.saturating_add(more).saturating_sub(total), ..facts.clone() },
    };
    let made = plan(conversation, &facts, policy);
    let acts = |action: &Action| is_fold(action) || !is_due && matches!(action, Action::Placeholder { .. });
    let cuts = made.actions.iter().any(|action| matches!(action, Action::Cut { .. }));
    let pays = !at_wall || f64::from(made.after.prompt()) <= f64::from(total) * WORTH_IT;
    (made.fits && made.actions.iter().any(acts) && !cuts && pays).then_some(made)
}

/// Whether planning would rewrite something among the first `facts.forwarded` messages, which the server may hold: then other
/// changes come at no price of their own.
pub fn breaks(conversation: &Conversation, facts: &Facts, policy: &Policy) -> bool {
    plan(conversation, facts, policy).actions.iter().any(|action| action.first() < facts.forwarded)
}
