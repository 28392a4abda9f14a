//! Truncate: what is left when the prompt still passes the wall. Harder and harder measures, each only if the one before
//! was not enough: clear everything old, fold all but the newest unit, cut large messages down to a fair share, shrink
//! the brief, and at last cut the last user message. System prompt and tools are never touched.

use super::facts::SMALL;
use super::sheet::Sheet;
use super::{Action, Strategy, clear, evict, summarize};
use crate::conversation::edit::Rule;
use crate::conversation::{Role, Tokens};

/// The last user message is not cut below this many tokens: less than that says nothing.
const LEAST_USER: Tokens = 64;

/// A message that is cut to its fair share keeps at least this much.
const LEAST_SHARE: Tokens = 48;

/// The smallest brief.
const LEAST_BRIEF: Tokens = 96;

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let over = |sheet: &Sheet<'_>| sheet.total() > sheet.lines.limit;
    if !over(sheet) {
        return None;
    }
    let mut done = Vec::new();
    let newest = sheet.units.last().map_or(0, |u| u.start);
    if sheet.policy.strategy != Strategy::Off {
        if let Some(fold) = summarize::choose(sheet, 1, sheet.lines.summarize_to) {
            summarize::commit(sheet, fold);
            done.push("all but the newest steps folded");
        }
    }
    if over(sheet) {
        let (count, _) = clear::clear_before(sheet, newest, sheet.lines.limit);
        if count > 0 {
            done.push("results before the newest step cleared");
        }
    }
    if over(sheet) && sheet.policy.strategy != Strategy::Off {
        if let Some(fold) = summarize::choose(sheet, 1, 0) {
            summarize::commit(sheet, fold);
            done.push("all but the newest step folded");
        }
    }
    if over(sheet) && share_out(sheet) {
        done.push("large messages cut to a fair share");
    }
    if over(sheet) && shrink_brief(sheet) {
        done.push("brief shortened");
    }
    if over(sheet) && cut_last_user(sheet) {
        done.push("last user message cut");
    }
    (!done.is_empty()).then(|| done.join(", "))
}

/// Cuts the largest messages that may be cut until all fit: everyone gets the same share, small ones keep theirs.
fn share_out(sheet: &mut Sheet<'_>) -> bool {
    let last_user = sheet.last_user();
    let strategy_off = sheet.policy.strategy == Strategy::Off;
    // Text and arguments apart: both can be the large part.
    let mut parts: Vec<(usize, Option<usize>, Tokens)> = Vec::new();
    for at in 0..sheet.cost.len() {
        if sheet.folded(at) || Some(at) == last_user || (strategy_off && sheet.conversation.body[at].role == Role::User)
        {
            continue;
        }
        let arguments: Tokens = sheet.facts.costs[at].calls.iter().sum();
        parts.push((at, None, sheet.cost[at].saturating_sub(arguments)));
        for (call, tokens) in sheet.facts.costs[at].calls.iter().enumerate() {
            if !clear::is_elided(sheet, at, call) {
                parts.push((at, Some(call), *tokens));
            }
        }
    }
    let fixed = sheet.total() - parts.iter().map(|p| p.2).sum::<Tokens>().min(sheet.total());
    let room = sheet.lines.limit.saturating_sub(fixed);
    let share = fair_share(parts.iter().map(|p| p.2).collect(), room).max(LEAST_SHARE);
    let mut cut = false;
    for (at, call, tokens) in parts {
        if tokens <= share.max(SMALL / 2) {
            continue;
        }
        cut = true;
        match call {
            Some(call) => evict::elide(sheet, at, call, share, Rule::Truncate),
            None => {
                let action = Action::Preview { at, budget: share, rule: Rule::Truncate };
                sheet.replace(at, Rule::Truncate, share, action);
            }
        }
    }
    cut
}

/// The largest share so that the sum of `min(size, share)` fits `room`.
fn fair_share(mut sizes: Vec<Tokens>, room: Tokens) -> Tokens {
    sizes.sort_unstable();
    let mut left = room;
    for (i, size) in sizes.iter().enumerate() {
        let share = left / (sizes.len() - i) as Tokens;
        if *size > share {
            return share;
        }
        left -= size;
    }
    Tokens::MAX
}

fn shrink_brief(sheet: &mut Sheet<'_>) -> bool {
    let over = sheet.total() - sheet.lines.limit;
    let Some(fold) = sheet.fold.clone() else { return false };
    let brief = fold.brief.saturating_sub(over).max(LEAST_BRIEF);
    if brief >= fold.brief {
        return false;
    }
    summarize::commit(sheet, super::sheet::Fold { brief, ..fold });
    true
}

fn cut_last_user(sheet: &mut Sheet<'_>) -> bool {
    let Some(at) = sheet.last_user() else { return false };
    let over = sheet.total() - sheet.lines.limit;
    let budget = sheet.cost[at].saturating_sub(over);
    if budget < LEAST_USER {
        return false;
    }
    sheet.replace(at, Rule::Truncate, budget, Action::Cut { at, budget });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fair_and_fit() {
        for (sizes, room, expect) in [
            (vec![10, 20, 1000], 130, 100),
            (vec![500, 500], 100, 50),
            (vec![10, 20], 100, Tokens::MAX),
            (vec![], 10, Tokens::MAX),
            (vec![5], 0, 0),
        ] {
            assert_eq!(fair_share(sizes.clone(), room), expect, "{sizes:?} in {room}");
        }
    }
}
