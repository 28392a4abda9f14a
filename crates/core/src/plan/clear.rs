//! Clear: results older than `keep_recent` become a one-line placeholder, oldest first, in one go down to `clear_to`,
//! and only when that frees enough more than it makes the server evaluate again. Never those of tools in `never_clear`.

use std::collections::{HashMap, HashSet};

use super::facts::{SMALL, placeholder};
use super::reason::grouped;
use super::sheet::{STEPS_AHEAD, Sheet, Sizes};
use super::{Action, ClearLine, Strategy, budget, economics, evict, restore, summarize};
use crate::conversation::edit::{Edit, Rule};
use crate::conversation::{Digest, Tokens};

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    if sheet.total() <= sheet.lines.clear_at {
        return None;
    }
    let recent = sheet.recent(sheet.keep_recent());
    if sheet.total() <= sheet.lines.limit {
        return short_of_the_wall(sheet, recent);
    }
    if sheet.policy.strategy == Strategy::Off {
        return attempt(sheet, recent, |freed, _, _| freed > 0).ok();
    }
    // At the wall the choice is between this and folding; a little clearing would only put that off for a turn, and much
    // that must be evaluated again for it is better spent on a fold, which goes deeper.
    let lines = sheet.lines;
    let fold = fold_instead(sheet);
    let rarely = lines.limit - sheet.ahead();
    let least = if sheet.facts.window < SMALL_WINDOW { sheet.next_steps() / 5 * LEAST_STEPS } else { 0 };
    let instead = |freed, again, total| {
        total <= rarely
            && total + least <= lines.limit
            && economics::deep_clear(freed, lines.summarize_at, lines.summarize_to)
            && fold.is_none_or(|fold| economics::as_good((freed, again), (fold.freed, fold.again)))
    };
    let done = attempt(sheet, recent, instead).ok();
    // Where not even folding can keep all that is recent, clearing results among it is the milder way.
    let newest = sheet.newest();
    let loses_recent = fold.is_some_and(|fold| fold.to > recent);
    if done.is_none() && loses_recent { attempt(sheet, newest, instead).ok() } else { done }
}

/// In a window smaller than this (tokens), clearing at the wall leaves room for at least [`LEAST_STEPS`] steps like the last
/// ones, or a fold comes instead: what buys less would be done again at once, and each time the person waits for it. In a
/// larger one, what clearing leaves in place is worth more.
const SMALL_WINDOW: Tokens = 8192;

const LEAST_STEPS: Tokens = 3;

/// Clears where that goes deep and pays; else it waits, and the plan says for what.
fn short_of_the_wall(sheet: &mut Sheet<'_>, recent: usize) -> Option<String> {
    let (lines, total) = (sheet.lines, sheet.total());
    if sheet.facts.counting.guessed {
        sheet.wait("clear", lines.clear_at, GUESSED);
        return None;
    }
    let line = sheet.policy.clear_line;
    if line == ClearLine::Wall {
        let why = format!("`clear_line = \"wall\"`, and up to {} tokens fit", grouped(lines.limit));
        sheet.wait("clear", lines.clear_at, why);
        return None;
    }
    let (ahead, step) = (sheet.ahead(), sheet.next_steps() / STEPS_AHEAD);
    // Where folding waits for the wall, so may clearing.
    let done = attempt(sheet, recent, |freed, again, _| match line {
        ClearLine::Line => freed >= step,
        _ => {
            economics::deep_clear(freed, lines.clear_at, lines.clear_to)
                && freed >= ahead
                && economics::worth_it_now(freed, again, total, lines.clear_at, lines.fold_at)
        }
    });
    match done {
        Ok(what) => Some(what),
        Err((0, ..)) => {
            sheet.wait("clear", lines.clear_at, "no old result is left to clear");
            None
        }
        Err((_, freed, _)) if line == ClearLine::Line => {
            sheet.wait(
                "clear",
                lines.clear_at,
                format!("that would free {} tokens, and a step takes {}", grouped(freed), grouped(step)),
            );
            None
        }
        Err((_, freed, again)) => {
            let why = format!(
                "that would free {} tokens, and the server would have to read {} again for it",
                grouped(freed),
                grouped(again)
            );
            sheet.wait("clear", lines.clear_at, why);
            None
        }
    }
}

/// Why nothing is rewritten short of the wall.
pub(super) const GUESSED: &str = "its size is only estimated until the server's next reply";

/// What folding would come to.
#[derive(Clone, Copy)]
struct Instead {
    to: usize,
    freed: Tokens,
    again: Tokens,
}

fn fold_instead(sheet: &mut Sheet<'_>) -> Option<Instead> {
    let fold = summarize::choose(sheet, sheet.keep_recent(), sheet.fold_target())?;
    let total = sheet.total();
    let old = sheet.fold.replace(fold.clone());
    let freed = total.saturating_sub(sheet.total());
    let again = sheet.evaluated_again(fold.from) + fold.brief;
    sheet.fold = old;
    Some(Instead { to: fold.to, freed, again })
}

/// Clears before message `end`, and takes it back unless it pays: `(freed, evaluated again, total)`. Then the error says what
/// it would have come to: how many were cleared, what that frees and what is evaluated again for it.
fn attempt(
    sheet: &mut Sheet<'_>,
    end: usize,
    pays: impl Fn(Tokens, Tokens, Tokens) -> bool,
) -> Result<String, (usize, Tokens, Tokens)> {
    let snapshot = Snapshot::of(sheet);
    let (count, first) = clear_before(sheet, end, sheet.lines.clear_to);
    // A clear that only pays without what was used is worse than a fold later, which keeps it.
    spend(sheet, snapshot.total - sheet.total().min(snapshot.total));
    let freed = snapshot.total - sheet.total().min(snapshot.total);
    let again = first.map_or(0, |at| sheet.evaluated_again(at));
    if count == 0 || !pays(freed, again, sheet.total()) {
        snapshot.restore(sheet);
        return Err((count, freed, again));
    }
    Ok(format!("{count} old results cleared, about {freed} tokens freed, about {again} to evaluate again"))
}

/// Clears results and long arguments before message `end`, oldest first, until the prompt is down to `target`. Returns
/// how many, and the first message that changed.
pub(super) fn clear_before(sheet: &mut Sheet<'_>, end: usize, target: u32) -> (usize, Option<usize>) {
    let (mut count, mut first) = (0, None);
    // The text that a recent result only points at is as recent as that.
    let pointers = (end..sheet.sizes.whole.len()).filter(|i| sheet.touched[*i] == Some(Rule::Repeat));
    let pointed: HashSet<Digest> = pointers.map(|i| sheet.conversation.body[i].digest).collect();
    // Kept as a running sum: the total of the sheet is linear in the history.
    let mut total = sheet.total();
    // Earlier versions of files go first; of the rest, what the assistant wrote itself is needed more than what it read.
    for goes in [Goes::Superseded, Goes::Results, Goes::Arguments] {
        for at in 0..end.min(sheet.sizes.whole.len()) {
            if total <= target {
                break;
            }
            let before = sheet.sizes.whole[at];
            if sheet.folded(at) {
                continue;
            }
            if goes == Goes::Superseded && sheet.sizes.behind[at] > 0 {
                sheet.forget(at);
            }
            if goes != Goes::Results {
                clear_arguments(sheet, at, goes == Goes::Superseded);
            }
            if goes == Goes::Superseded && !sheet.superseded().result(at) || goes == Goes::Arguments {
                // Its text has had, or will have, its turn.
            } else if sheet.touched[at] != Some(Rule::Clear) && !pointed.contains(&sheet.conversation.body[at].digest) {
                clear_text(sheet, at);
            }
            if sheet.sizes.whole[at] < before {
                total -= before - sheet.sizes.whole[at];
                count += 1;
                first = Some(first.map_or(at, |first: usize| first.min(at)));
            }
        }
    }
    (count, first)
}

/// What is cleared in a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    Superseded,
    Results,
    Arguments,
}

fn clear_text(sheet: &mut Sheet<'_>, at: usize) {
    if sheet.is_protected(at) {
        return;
    }
    if sheet.touched[at] == Some(Rule::Restore) {
        // The stub says little by itself: it keeps the pointer.
        restore::take_back(sheet, at);
    } else if sheet.is_output(at) && sheet.sizes.whole[at] > SMALL {
        let left = placeholder(sheet.facts.costs[at].text);
        sheet.replace(at, Rule::Clear, left, Action::Placeholder { at, budget: left });
    }
}

/// Long arguments keep one part in this many.
const ELIDED: Tokens = 4;

fn clear_arguments(sheet: &mut Sheet<'_>, at: usize, superseded: bool) {
    for call in 0..sheet.sizes.calls[at].len() {
        let goes = !superseded || sheet.superseded().call(at, call);
        if goes && sheet.sizes.calls[at][call] > 2 * SMALL && !sheet.is_protected(at) && !is_elided(sheet, at, call) {
            let budget = (sheet.sizes.calls[at][call] / ELIDED).max(SMALL);
            evict::elide(sheet, at, call, budget, Rule::Clear);
        }
    }
}

/// Gives the room that clearing frees beyond its line to the placeholders, so that what was used of the results stays. At the
/// wall as deep as a fold would go: more room for later steps is of no use to the next one.
fn spend(sheet: &mut Sheet<'_>, freed: Tokens) {
    let line = sheet.fold_depth().max(sheet.lines.clear_to);
    let spare = line.saturating_sub(sheet.total()).min(budget::most_used(freed, sheet.facts.window));
    let facts = sheet.facts;
    let shortened: HashMap<usize, Tokens> = facts
        .view
        .edits
        .iter()
        .zip(&facts.edit_costs)
        .rev()
        .filter_map(|(edit, cost)| if let Edit::Text { at, .. } = edit { Some((*at, *cost)) } else { None })
        .collect();
    let cleared: Vec<usize> =
        sheet.decided.actions.iter().filter(|a| matches!(a, Action::Placeholder { .. })).map(Action::first).collect();
    let superseded: HashSet<usize> = cleared.into_iter().filter(|at| sheet.superseded().result(*at)).collect();
    let left = |at: usize| {
        if superseded.contains(&at) {
            return 0;
        }
        let text = facts.costs[at].text;
        shortened.get(&at).copied().unwrap_or(text).saturating_sub(placeholder(text))
    };
    let is_cleared = |a: &Action| matches!(a, Action::Placeholder { .. });
    let (cleared, others): (Vec<Action>, Vec<Action>) =
        std::mem::take(&mut sheet.decided.actions).into_iter().partition(is_cleared);
    let all: u64 = cleared.iter().map(|a| u64::from(left(a.first()))).sum();
    sheet.decided.actions = others;
    for action in cleared {
        let at = action.first();
        let share = u64::from(spare) * u64::from(left(at)) / all.max(1);
        let budget = placeholder(facts.costs[at].text) + (share as Tokens).min(left(at));
        sheet.set_text(at, budget);
        sheet.decided.actions.push(Action::Placeholder { at, budget });
    }
}

/// Whether the arguments of a call were replaced, now or earlier.
pub(super) fn is_elided(sheet: &Sheet<'_>, at: usize, call: usize) -> bool {
    let now = sheet
        .decided
        .actions
        .iter()
        .any(|a| matches!(a, Action::Elide { at: m, call: c, .. } if (*m, *c) == (at, call)));
    let earlier = |e: &Edit| matches!(e, Edit::Arguments { at: m, call: c, .. } if (*m, *c) == (at, call));
    now || sheet.facts.view.edits.iter().any(earlier)
}

/// What a rule may have to take back.
pub(super) struct Snapshot {
    total: u32,
    sizes: Sizes,
    touched: Vec<Option<Rule>>,
    actions: Vec<Action>,
}

impl Snapshot {
    pub(super) fn of(sheet: &Sheet<'_>) -> Snapshot {
        Snapshot {
            total: sheet.total(),
            sizes: sheet.sizes.clone(),
            touched: sheet.touched.clone(),
            actions: sheet.decided.actions.clone(),
        }
    }

    /// Prompt tokens then.
    pub(super) fn total(&self) -> Tokens {
        self.total
    }

    pub(super) fn restore(self, sheet: &mut Sheet<'_>) {
        sheet.sizes = self.sizes;
        sheet.touched = self.touched;
        sheet.decided.actions = self.actions;
    }
}
