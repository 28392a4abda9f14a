//! Summarize: steps from after the first user message up to a safe cut become one brief. There is always exactly one:
//! the next one folds the last one in.

use super::sheet::{Fold, Sheet};
use super::{Action, Strategy, economics};
use crate::conversation::edit::Edit;
use crate::conversation::{Role, Tokens};

/// Where the first user message may stand to be the anchor of the brief: further down it is not how the session began.
const ANCHOR_WITHIN: usize = 4;

/// Share of the summarize-to line that a first user message may take and still stay whole in front of the brief.
const LARGEST_ANCHOR: f64 = 0.35;

/// Newest user messages of the running turn that are kept, where a client sends several in a row.
const KEEP_RUN: usize = 4;

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let total = sheet.total();
    if sheet.policy.strategy == Strategy::Off || total <= sheet.lines.summarize_at {
        return None;
    }
    let at_wall = total > sheet.lines.limit;
    // A brief can be made between requests: nobody has to wait for it before the wall.
    let can_wait = sheet.facts.background && sheet.policy.strategy == Strategy::Summarize;
    if can_wait && !at_wall {
        return None;
    }
    let fold = choose(sheet, sheet.keep_recent(), sheet.lines.summarize_to)?;
    let old = sheet.fold.replace(fold.clone());
    let freed = total - sheet.total().min(total);
    let again = sheet.evaluated_again(fold.from) + fold.brief;
    let lines = &sheet.lines;
    let pays =
        economics::worthwhile(freed, again) && economics::deep_fold(freed, lines.summarize_at, lines.summarize_to);
    if freed == 0 || !at_wall && !pays {
        sheet.fold = old;
        return None;
    }
    Some(commit(sheet, fold))
}

/// Records a fold as the plan's action.
pub(super) fn commit(sheet: &mut Sheet<'_>, fold: Fold) -> String {
    let Fold { from, to, keep, brief } = fold.clone();
    sheet.fold = Some(fold);
    sheet.actions.retain(|a| !matches!(a, Action::Fold { .. }));
    // What is folded away needs no edit of its own.
    let gone = |at: &usize| (from..to).contains(at) && !keep.contains(at);
    sheet.actions.retain(|a| match a {
        Action::Preview { at, .. }
        | Action::Placeholder { at }
        | Action::Repeat { at, .. }
        | Action::Restore { at, .. }
        | Action::Elide { at, .. }
        | Action::Cut { at, .. } => !gone(at),
        Action::Fold { .. } => false,
    });
    let folded_before = sheet.facts.view.edits.iter().find_map(|e| match e {
        Edit::Fold { to, .. } => Some(*to),
        _ => None,
    });
    let fresh: Tokens = (folded_before.unwrap_or(from).min(to)..to).map(|i| sheet.cost[i]).sum();
    let ask_model = sheet.policy.strategy == Strategy::Summarize && economics::worth_a_summary(fresh, brief);
    let what = format!("messages {from}..{to} folded into a brief of at most {brief} tokens");
    sheet.actions.push(Action::Fold { from, to, keep, budget: brief, ask_model });
    what
}

/// The fold that keeps as much as fits under `target`, at least the newest unit, and `keep_recent` messages where they
/// fit; `None` when nothing new can be folded.
pub(super) fn choose(sheet: &Sheet<'_>, keep_recent: usize, target: Tokens) -> Option<Fold> {
    let body = &sheet.conversation.body;
    let from = start(sheet);
    let newest = sheet.units.last()?.start;
    let done = sheet.fold.as_ref().map_or(from, |f| f.to);
    let brief = sheet.lines.brief;
    let head = sheet.facts.head() + (0..from).map(|i| sheet.cost[i]).sum::<Tokens>() + brief;
    let last_user = sheet.last_user();
    let kept = |to: usize| keep(sheet, from, to, last_user);
    let pinned = |to: usize| {
        let kept = kept(to);
        kept.iter().map(|i| sheet.cost[*i]).sum::<Tokens>() + sheet.fold_frame(to, &kept)
    };
    // What is recent stays as long as that leaves half of the room between the lines; else the next turns would fold again.
    let half_way = sheet.lines.half_way();
    // Walk the cuts from the end: the tail grows until it no longer fits.
    let mut tail: Tokens = 0;
    let mut best = None;
    let recent = sheet.recent(keep_recent);
    for unit in sheet.units.iter().rev().take_while(|u| u.start >= from) {
        tail += (unit.start..unit.end).map(|i| sheet.cost[i]).sum::<Tokens>();
        let fits = head + pinned(unit.start) + tail <= target;
        let wanted = unit.start >= recent && head + pinned(unit.start) + tail <= half_way;
        if unit.start == newest || fits || wanted {
            best = Some((unit.start, tail));
        } else {
            break;
        }
    }
    let (mut to, tail) = best?;
    // A turn's border is a better place than the middle of one, if it is not far.
    let spare = tail / 3;
    let mut given: Tokens = 0;
    for unit in sheet.units.iter().filter(|u| u.start >= to) {
        if body[unit.start].role == Role::User && unit.start <= newest {
            to = unit.start;
            break;
        }
        given += (unit.start..unit.end).map(|i| sheet.cost[i]).sum::<Tokens>();
        if given > spare {
            break;
        }
    }
    // What is folded stays folded; new may also be a message that was kept for being the last of the user's.
    to = to.max(done);
    let keep = kept(to);
    let goes = (from..to).any(|at| !sheet.folded(at) && !keep.contains(&at));
    goes.then_some(Fold { from, to, keep, brief })
}

/// Where folding starts: behind the first user message, if the session begins with it; else at the very start.
pub(super) fn start(sheet: &Sheet<'_>) -> usize {
    let body = &sheet.conversation.body;
    let largest = (f64::from(sheet.lines.summarize_to) * LARGEST_ANCHOR) as Tokens;
    if let Some(fold) = &sheet.fold {
        // A large first message that was the request itself when folding began is history once there is another.
        let asked = sheet.last_user().is_some_and(|at| at < fold.from);
        let large = (0..fold.from).map(|i| sheet.cost[i]).sum::<Tokens>() > largest;
        return if large && !asked { 0 } else { fold.from };
    }
    let anchor = body.iter().take(ANCHOR_WITHIN).position(|m| m.role == Role::User);
    match anchor {
        // A step must not be cut off from its results, so what stands before the anchor must end a unit: it does, since a
        // user message starts one.
        Some(at) if sheet.span(0..at + 1) <= largest || Some(at) == sheet.last_user() => at + 1,
        _ => 0,
    }
}

/// The last user messages of a turn that is still running stay, though the steps before and behind them are folded.
fn keep(sheet: &Sheet<'_>, from: usize, to: usize, last_user: Option<usize>) -> Vec<usize> {
    let Some(last) = last_user.filter(|last| (from..to).contains(last)) else { return Vec::new() };
    let body = &sheet.conversation.body;
    let run = body[from..=last].iter().rev().take(KEEP_RUN).take_while(|m| m.role == Role::User).count();
    let small = |at: usize| at == last || sheet.cost[at] <= sheet.lines.brief;
    (last + 1 - run..=last).filter(|at| small(*at)).collect()
}
