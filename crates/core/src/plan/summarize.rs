//! Summarize: steps from after the first user message up to a safe cut become one brief. There is always exactly one:
//! the next one folds the last one in.

use super::budget::LEAST_BRIEF;
use super::reason::{STAY, grouped};
use super::sheet::{Fold, Sheet};
use super::{Action, FoldAt, Strategy, clear, client, economics, repeat};
use crate::conversation::edit::Edit;
use crate::conversation::{Role, Tokens};

/// Share of the summarize-to line that the opening may take and still stay whole in front of the brief.
const LARGEST_OPENING: f64 = 0.35;

/// A brief that quotes the work is at most one part in this many of what is folded.
const BRIEF_OF_FOLDED: Tokens = 3;

/// User messages on either side of the request that are kept with it, where a client sends several in a row.
const KEEP_RUN: usize = 4;

/// A fold leaves at least one part in this many of the window for the next steps and for what recall may bring, unless the newest
/// step takes it.
const ROOM_FOR_STEPS: Tokens = 6;

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let (lines, total) = (sheet.lines, sheet.total());
    if total <= lines.summarize_at {
        return None;
    }
    match fold(sheet, total) {
        Ok(fold) => Some(commit(sheet, fold)),
        Err(why) => {
            sheet.wait("summarize", lines.summarize_at, why);
            None
        }
    }
}

/// The share of the client's own line that a fold must free to be made there: one that frees less would be done again soon.
const LEAST_OF_LINE: Tokens = 10;

/// The fold that the client's own API asks for: of all messages, or once the prompt passes a line of the client's.
pub(super) fn apply_asked(sheet: &mut Sheet<'_>) -> Option<String> {
    let asked = sheet.policy.client.compact.as_ref()?;
    let total = sheet.total();
    if asked.whole {
        let fold = whole(sheet)?;
        let what = commit(sheet, fold);
        // Whoever asks for a summary gets one, however little there is to tell.
        let asks = sheet.policy.strategy == Strategy::Summarize && sheet.lines.no_summary().is_none();
        if let Some(Action::Fold { ask_model, .. }) = sheet.decided.actions.last_mut() {
            *ask_model = asks;
        }
        return Some(format!("the client asks: {what}"));
    }
    // A line above the window means the wall.
    let line = asked.at.min(sheet.lines.limit);
    if total <= line {
        return None;
    }
    if sheet.facts.counting.guessed && total <= sheet.lines.limit && !asked.is_now() {
        sheet.wait("summarize", line, clear::GUESSED);
        return None;
    }
    let fold = choose(sheet, 1, sheet.fold_target().min(line / 2));
    let freed = fold.as_ref().map_or(0, |fold| weighed(sheet, fold, total).0);
    match fold.filter(|_| freed > 0 && freed >= line / LEAST_OF_LINE) {
        Some(fold) => Some(format!("the client asks: {}", commit(sheet, fold))),
        None => {
            sheet.wait("summarize", line, format!("a fold at the client's line would free {} tokens", grouped(freed)));
            None
        }
    }
}

/// A fold of all messages, but for what a person asked last and what is pinned.
fn whole(sheet: &Sheet<'_>) -> Option<Fold> {
    let to = sheet.sizes.whole.len();
    let told = sheet.policy.client.compact.as_ref().is_some_and(|compact| compact.instructions.is_some());
    if sheet.fold.as_ref().is_some_and(|fold| fold.to == to) && !told {
        // It says all of it already.
        return None;
    }
    let (from, asked) = client::whole(&sheet.conversation.body, to);
    let pinned = sheet.held.kept.iter().copied().filter(|at| (from..to).contains(at));
    let mut keep: Vec<usize> = asked.into_iter().chain(pinned).collect();
    keep.sort_unstable();
    keep.dedup();
    let folded: Tokens = (from..to).filter(|at| !keep.contains(at)).map(|at| sheet.facts.costs[at].total()).sum();
    let least = sheet.lines.summary + sheet.facts.pins.tokens;
    let brief = (folded / BRIEF_OF_FOLDED).max(least).min(sheet.lines.brief.max(least));
    (from < to).then_some(Fold { from, to, keep, brief })
}

/// Takes what a person asked last out of the fold that it is in: whoever goes back in a history asks again what was older
/// then. The messages stay folded, and their brief is made anew.
pub(super) fn keep_request(sheet: &mut Sheet<'_>) -> Option<String> {
    let fold = sheet.fold.clone().filter(|_| sheet.marks.request.is_some_and(|at| sheet.folded(at)))?;
    let keep = keep(sheet, fold.from, fold.to);
    let brief = fold.brief.max(sheet.lines.summary);
    Some(commit(sheet, Fold { keep, brief, ..fold }))
}

/// The fold that the lines ask for, or why it waits.
fn fold(sheet: &mut Sheet<'_>, total: Tokens) -> Result<Fold, String> {
    let lines = sheet.lines;
    let at_wall = total > lines.limit;
    let now = at_wall || sheet.policy.fold_at == FoldAt::Now;
    if sheet.policy.strategy == Strategy::Off {
        return Err("`strategy = \"off\"`".into());
    }
    if sheet.policy.fold_at == FoldAt::Wall && !at_wall {
        return Err(format!("`fold_at = \"wall\"`, and up to {} tokens fit", grouped(lines.limit)));
    }
    if sheet.facts.counting.guessed && !now {
        return Err(clear::GUESSED.into());
    }
    let (keep_recent, target) = (sheet.keep_recent(), sheet.fold_target());
    let mut fold = choose(sheet, keep_recent, target).ok_or("all that may be folded is folded already")?;
    let (mut freed, mut again) = weighed(sheet, &fold, total);
    if !now && !economics::worthwhile(freed, again) {
        // Deeper frees more and leaves less to evaluate again.
        let stays = sheet.facts.head() + sheet.span(0..fold.from);
        let deeper = target.min(total.midpoint(stays));
        fold = choose(sheet, keep_recent, deeper).unwrap_or(fold);
        (freed, again) = weighed(sheet, &fold, total);
    }
    let deep = economics::deep_fold(freed, lines.summarize_at, lines.summarize_to);
    if freed == 0 && now {
        return Err("a fold would free nothing".into());
    }
    if !now && lines.crowded && (total - freed).saturating_add(sheet.next_steps()) > lines.summarize_at {
        let left = lines.limit.saturating_sub(lines.summarize_at);
        return Err(format!(
            "system prompt and tools take most of the window, and the next steps need the {} tokens up to the limit",
            grouped(left)
        ));
    }
    if !(now || deep && economics::worthwhile(freed, again)) {
        let least = again.max(lines.summarize_at.saturating_sub(lines.summarize_to));
        return Err(format!(
            "a fold now would free at least {} tokens, and is worth its time from {} on",
            grouped(freed),
            grouped(least)
        ));
    }
    Ok(fold)
}

/// Tokens that a fold frees of `total`, and those that the server evaluates again for it.
fn weighed(sheet: &mut Sheet<'_>, fold: &Fold, total: Tokens) -> (Tokens, Tokens) {
    let old = sheet.fold.replace(fold.clone());
    let freed = total - sheet.total().min(total);
    let again = sheet.evaluated_again(fold.from) + fold.brief;
    sheet.fold = old;
    (freed, again)
}

/// Records a fold as the plan's action.
pub(super) fn commit(sheet: &mut Sheet<'_>, fold: Fold) -> String {
    let Fold { from, to, keep, brief } = fold.clone();
    sheet.fold = Some(fold);
    sheet.decided.actions.retain(|a| !matches!(a, Action::Fold { .. }));
    // What is folded away needs no edit of its own.
    let gone = |at: &usize| (from..to).contains(at) && !keep.contains(at);
    sheet.decided.actions.retain(|a| match a {
        Action::Preview { at, .. }
        | Action::Placeholder { at, .. }
        | Action::Repeat { at, .. }
        | Action::Restore { at, .. }
        | Action::Elide { at, .. }
        | Action::Forget { at }
        | Action::Quiet { at }
        | Action::Cut { at, .. } => !gone(at),
        Action::Fold { .. } => false,
    });
    repeat::whole_again(sheet);
    let ask_model = asks_model(sheet, from, to, brief);
    let stay = match (from..to).filter(|at| keep.contains(at)).count() {
        0 => String::new(),
        n => format!("{STAY}{n}"),
    };
    let last = to.saturating_sub(1);
    let what = format!("messages {from} to {last} folded into a brief of at most {brief} tokens{stay}");
    sheet.decided.actions.push(Action::Fold { from, to, keep, budget: brief, ask_model });
    what
}

/// Whether a model is asked for the brief of a fold: what was folded since it was asked last adds up until that is worth it.
/// No state that it wrote stands for longer than one fold more, where less is worth it, too.
fn asks_model(sheet: &Sheet<'_>, from: usize, to: usize, brief: Tokens) -> bool {
    let last = sheet.facts.view.edits.iter().find_map(|e| match e {
        Edit::Fold { from, to, .. } if from < to => Some(*to),
        _ => None,
    });
    let told = last.and(sheet.facts.told).unwrap_or(from);
    let fresh = (told.min(to)..to).map(|i| sheet.sizes.whole[i]).sum();
    let brief = brief.min(sheet.lines.summary);
    let worth = match last {
        Some(done) if told < done => economics::worth_keeping_up(fresh, brief),
        _ => economics::worth_a_summary(fresh, brief),
    };
    sheet.policy.strategy == Strategy::Summarize && worth && sheet.lines.no_summary().is_none()
}

/// The fold that keeps as much as fits under `target`, at least the newest unit, and `keep_recent` messages wherever they
/// fit; `None` when nothing new can be folded.
pub(super) fn choose(sheet: &Sheet<'_>, keep_recent: usize, target: Tokens) -> Option<Fold> {
    let fold = choose_with(sheet, keep_recent, target, sheet.lines.brief)?;
    // A brief of little is short, and one that a pace asks for has to free something.
    let least = if sheet.policy.fold_at == FoldAt::Now { LEAST_BRIEF } else { sheet.lines.summary };
    let folded = (fold.from..fold.to).filter(|at| !fold.keep.contains(at)).map(|at| sheet.facts.costs[at].total());
    let brief = (folded.sum::<Tokens>() / BRIEF_OF_FOLDED).max(least + sheet.facts.pins.tokens);
    if brief >= fold.brief { Some(fold) } else { choose_with(sheet, keep_recent, target, brief) }
}

fn choose_with(sheet: &Sheet<'_>, keep_recent: usize, target: Tokens, brief: Tokens) -> Option<Fold> {
    let from = start(sheet);
    let newest = sheet.newest();
    let done = sheet.fold.as_ref().map_or(from, |f| f.to);
    let (to, tail) = cut(sheet, from, keep_recent, target, brief)?;
    let to = turn_border(sheet, to, newest, tail / 3);
    // What is folded stays folded; new may also be a message that was kept for being what the user asked last.
    let to = to.max(done);
    let keep = keep(sheet, from, to);
    let goes = (from..to).any(|at| !sheet.folded(at) && !keep.contains(&at));
    goes.then_some(Fold { from, to, keep, brief })
}

/// Where the messages begin that stay, and what they cost. Walks the units from the end while they fit.
fn cut(sheet: &Sheet<'_>, from: usize, keep_recent: usize, target: Tokens, brief: Tokens) -> Option<(usize, Tokens)> {
    let newest = sheet.newest();
    let recent = sheet.recent(keep_recent);
    let opening = (0..from).map(|i| sheet.sizes.whole[i]).sum::<Tokens>();
    let head = sheet.facts.head() + sheet.facts.foreseen + opening + brief;
    let pinned = |to: usize| {
        let kept = keep(sheet, from, to);
        kept.iter().map(|i| sheet.sizes.whole[*i]).sum::<Tokens>() + sheet.fold_frame(to, &kept)
    };
    // Room for the next steps; without it every one of them would fold again.
    let least_room = sheet.facts.window / ROOM_FOR_STEPS;
    let rarely = sheet.lines.limit - sheet.ahead();
    let below = |room: Tokens| sheet.lines.limit.saturating_sub(room).max(sheet.lines.half_way()).min(rarely);
    let most = below(least_room);
    // The files that a client sends with each request stay where that leaves what steps really take here, and so does what a person
    // said, where more would be lost with it than is missing.
    let most_sent = below(least_room.min(sheet.next_steps()));
    let target = target.min(rarely);
    let mut tail: Tokens = 0;
    let mut best = None;
    for unit in sheet.units.iter().rev().take_while(|u| u.start >= from) {
        let own = (unit.start..unit.end).map(|i| sheet.sizes.whole[i]).sum::<Tokens>();
        tail += own;
        let total = head + pinned(unit.start) + tail;
        // What is recent stays wherever that leaves room for the next steps.
        let loses_more = own > total.saturating_sub(most);
        let is_sent = unit.role == Role::User && (loses_more || !sheet.is_persons(unit.start));
        let most = if is_sent { most_sent } else { most };
        let wanted = unit.start >= recent && total <= most;
        if unit.start < newest && total > target && !wanted {
            break;
        }
        best = Some((unit.start, tail));
    }
    best
}

/// The border of a turn at or after `to`, if it is not farther than `spare` tokens: a better place than the middle of one.
fn turn_border(sheet: &Sheet<'_>, to: usize, newest: usize, spare: Tokens) -> usize {
    let mut given: Tokens = 0;
    for unit in sheet.units.iter().filter(|u| u.start >= to && u.start <= newest) {
        if sheet.is_persons(unit.start) {
            return unit.start;
        }
        given += (unit.start..unit.end).map(|i| sheet.sizes.whole[i]).sum::<Tokens>();
        if given > spare {
            break;
        }
    }
    to
}

/// Where folding starts: after the opening, if the session begins with user messages; else at the very start.
pub(super) fn start(sheet: &Sheet<'_>) -> usize {
    let largest = (f64::from(sheet.lines.summarize_to) * LARGEST_OPENING) as Tokens;
    let stays = |end: usize| {
        let asked = sheet.marks.request.is_some_and(|at| at < end);
        asked || sheet.marks.holds_opening && end <= sheet.marks.opening || sheet.span(0..end) <= largest
    };
    if let Some(fold) = &sheet.fold {
        // A large first message that was the request itself when folding began is history once there is another.
        return if stays(fold.from) { fold.from } else { 0 };
    }
    // A step must not be cut off from its results, so what stands before the start must end a unit: it does, since a user
    // message starts one.
    let first = sheet.conversation.body.iter().take(sheet.marks.opening).position(|m| m.role == Role::User);
    [sheet.marks.opening, first.map_or(0, |at| at + 1)].into_iter().find(|end| stays(*end)).unwrap_or(0)
}

/// What stays inside a fold: what a person asked last, and the steps with something protected.
pub(super) fn keep(sheet: &Sheet<'_>, from: usize, to: usize) -> Vec<usize> {
    let mut out = asked(sheet, from, to);
    out.extend(sheet.held.kept.iter().filter(|at| (from..to).contains(*at)));
    out.sort_unstable();
    out.dedup();
    out
}

/// What a person asked last stays though the steps before and after it are folded, and with it the user messages that
/// stand in a row with it.
fn asked(sheet: &Sheet<'_>, from: usize, to: usize) -> Vec<usize> {
    let Some(request) = sheet.marks.request.filter(|at| (from..to).contains(at)) else { return Vec::new() };
    let is_user = |at: &usize| sheet.conversation.body[*at].role == Role::User;
    let before = (from..request).rev().take(KEEP_RUN - 1).take_while(is_user).count();
    let after = (request + 1..to).take(KEEP_RUN).take_while(is_user).count();
    let small = |at: usize| at == request || sheet.sizes.whole[at] <= sheet.lines.summary;
    (request - before..=request + after).filter(|at| small(*at)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conversation::Conversation;
    use crate::plan::{Cost, Facts, Policy, plan};
    use crate::wire::openai_chat as wire;

    proptest! {
        /// A fold of a chat leaves a sixth of the window for what recall may bring, as far as the newest messages do.
        #[test]
        fn a_fold_leaves_room_for_recall(
            sizes in proptest::collection::vec(8u32..900, 8..120),
            window in 4_096u32..40_000,
        ) {
            let message = |at: usize| {
                let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
                wire::message(format!(r#"{{"role":"{role}","content":"What is said as number {at}."}}"#).into()).unwrap()
            };
            let mut sizes = sizes;
            if sizes.len().is_multiple_of(2) {
                sizes.pop();
            }
            let body: Vec<_> = (0..sizes.len()).map(message).collect();
            let costs: Vec<Cost> = sizes.iter().map(|text| Cost { text: *text, ..Cost::default() }).collect();
            let conversation = Conversation { body, ..Conversation::default() };
            let facts = Facts { window, output_reserved: 512, slack: 16, system: 100, costs, ..Facts::default() };
            let made = plan(&conversation, &facts, &Policy::default());
            let fold = |a: &Action| if let Action::Fold { to, budget, .. } = a { Some((*to, *budget)) } else { None };
            if let Some((to, brief)) = made.actions.iter().find_map(fold) {
                let least = facts.head() + sizes[0] + brief + 200 + sizes[sizes.len() - 1];
                let most = (made.lines.limit - window / ROOM_FOR_STEPS).max(least);
                // Of a person's words more would be lost than is missing.
                let oldest = sizes.get(to).copied().unwrap_or(0);
                prop_assert!(made.after.prompt() < most + oldest.max(1), "{} of {most}", made.after.prompt());
            }
        }
    }
}
