//! Truncate: what is left when the prompt still passes the wall. Harder and harder measures, each only if the one before
//! was not enough: fold all but the newest steps, clear everything old, shrink the brief, cut large messages down to a
//! fair share, cut the rules that came with the first message, fold the newest step as well, and at last cut the request.
//! System prompt and tools are never touched. Without folding (`strategy = "off"`) only tool output is cut, never what
//! somebody said.

use super::budget::LEAST_BRIEF;
use super::sheet::{Fold, Sheet};
use super::{Action, Strategy, clear, evict, summarize};
use crate::conversation::edit::Rule;
use crate::conversation::{Role, Tokens};

/// The request is not cut below this many tokens: less than that says nothing. In windows as small as 128 this is still the end
/// of it, which holds the question; Ollama keeps that, too.
const LEAST_USER: Tokens = 16;

/// A message that is cut to its fair share keeps at least this much.
const LEAST_SHARE: Tokens = 48;

/// What is done, and the doing: true when it changed something.
type Measure<'a> = (&'static str, &'a dyn Fn(&mut Sheet<'_>) -> bool);

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let over = |sheet: &Sheet<'_>| sheet.total() > sheet.lines.limit;
    if !over(sheet) {
        return None;
    }
    let folds = sheet.policy.strategy != Strategy::Off;
    let newest = sheet.newest();
    let fold_to = |sheet: &mut Sheet<'_>, target: Tokens| {
        let fold = summarize::choose(sheet, 1, target).filter(|_| folds);
        let (before, old) = (sheet.total(), sheet.fold.clone());
        let Some(fold) = fold else { return false };
        // A brief can cost more than the few small messages it stands for.
        sheet.fold = Some(fold.clone());
        let helps = sheet.total() < before;
        sheet.fold = old;
        if helps {
            summarize::commit(sheet, fold);
        }
        helps
    };
    let mild: [Measure<'_>; 6] = [
        ("what was recalled taken back", &forget),
        ("all but the newest steps folded", &|s| fold_to(s, s.fold_target())),
        ("results before the newest step cleared", &|s| {
            clear::clear_before(s, newest, s.lines.limit - s.ahead()).0 > 0
        }),
        ("all but the newest step folded", &|s| fold_to(s, 0)),
        // What the next reply answers is worth more than what is told of older steps.
        ("all but the newest step folded into a short brief", &|s| folds && fold_small(s)),
        ("brief shortened", &shrink_brief),
    ];
    let hard: [Measure<'_>; 10] = [
        ("request, which alone passes the window, cut", &|s| folds && cut_lonely(s)),
        ("old messages cut to a fair share", &|s| share_out(s, newest, s.lines.half_way())),
        ("large messages cut to a fair share", &|s| share_out(s, s.sizes.whole.len(), s.lines.limit)),
        ("the opening cut to a fair share", &|s| folds && share_opening(s)),
        ("the newest step folded too", &|s| folds && fold_all(s, true)),
        ("what was pinned or protected let go", &|s| folds && let_go(s, newest)),
        ("request cut", &|s| folds && cut_request(s, s.lines.limit)),
        ("the newest step folded too, request cut", &|s| folds && fold_all(s, false) && cut_request(s, s.lines.limit)),
        ("nothing folded, all messages cut", &|s| folds && cut_instead(s)),
        ("all but the end of the request left out", &|s| folds && keep_request_alone(s)),
    ];
    let mut done = Vec::new();
    for (what, measure) in mild {
        if over(sheet) && measure(sheet) {
            done.push(what);
        }
    }
    for (what, measure) in hard {
        if over(sheet) && measure(sheet) {
            done.push(what);
            sheet.decided.hard = true;
        }
    }
    (!done.is_empty()).then(|| done.join(", "))
}

/// Takes back what was recalled ahead: nobody asked for it.
fn forget(sheet: &mut Sheet<'_>) -> bool {
    let behind: Vec<usize> =
        (0..sheet.sizes.whole.len()).filter(|at| sheet.sizes.behind[*at] > 0 && !sheet.folded(*at)).collect();
    behind.iter().for_each(|at| sheet.forget(*at));
    !behind.is_empty()
}

/// Folds all but the newest step into a brief of half of what that leaves: where a usual one costs more than the few
/// messages it stands for.
fn fold_small(sheet: &mut Sheet<'_>) -> bool {
    let (usual, old) = (std::mem::replace(&mut sheet.lines.brief, LEAST_BRIEF + sheet.held.pins), sheet.fold.clone());
    let fold = summarize::choose(sheet, 1, 0);
    sheet.lines.brief = usual;
    let Some(mut fold) = fold else { return false };
    sheet.fold = Some(fold.clone());
    let left = sheet.lines.limit.checked_sub(sheet.total());
    sheet.fold = old;
    let Some(left) = left else { return false };
    fold.brief = (fold.brief + left / 2).min(usual.max(fold.brief));
    summarize::commit(sheet, fold);
    true
}

/// Folds everything but the request into the smallest brief: where even the newest step, cut as far as may be,
/// leaves no room. Keeps the anchor only if that leaves room enough. `must_fit`: or else not at all.
fn fold_all(sheet: &mut Sheet<'_>, must_fit: bool) -> bool {
    let len = sheet.sizes.whole.len();
    let old = sheet.fold.clone();
    let before = sheet.total();
    for from in [summarize::start(sheet), 0] {
        // What is asked stays; where it is the anchor, it stands in front of the brief.
        let mut keep: Vec<usize> =
            sheet.marks.request.iter().chain(&sheet.held.kept).copied().filter(|at| *at >= from).collect();
        keep.sort_unstable();
        keep.dedup();
        if from + keep.len() >= len {
            continue;
        }
        let fold = Fold { from, to: len, keep, brief: LEAST_BRIEF + sheet.held.pins };
        sheet.fold = Some(fold.clone());
        let total = sheet.total();
        if total <= sheet.lines.limit || !must_fit && from == 0 && total < before {
            summarize::commit(sheet, fold);
            return true;
        }
        sheet.fold.clone_from(&old);
    }
    false
}

/// Starts again without a new fold: in a very small window a brief can cost more than what is left of the messages once
/// they are cut. Only if that fits.
fn cut_instead(sheet: &mut Sheet<'_>) -> bool {
    let mut other = Sheet::new(sheet.conversation, sheet.facts, sheet.policy);
    if !sheet.holds_pins() {
        other.let_go();
    }
    let (end, limit) = (other.sizes.whole.len(), other.lines.limit);
    share_out(&mut other, end, limit);
    if other.total() > limit {
        cut_request(&mut other, limit);
    }
    take_if_it_fits(sheet, other)
}

/// Starts again with the end of the request alone, without a brief: in the smallest windows nothing else has room beside it, and
/// servers that drop messages themselves keep no more. Only if that fits.
fn keep_request_alone(sheet: &mut Sheet<'_>) -> bool {
    let mut other = Sheet::new(sheet.conversation, sheet.facts, sheet.policy);
    let (Some(request), len) = (other.marks.request, other.sizes.whole.len()) else { return false };
    // Where it is the system prompt and tools that leave no room, that is for the client to know.
    if len < 2 || other.facts.head() > other.lines.limit / 4 * 3 {
        return false;
    }
    other.let_go();
    summarize::commit(&mut other, Fold { from: 0, to: len, keep: vec![request], brief: 0 });
    let limit = other.lines.limit;
    if other.total() > limit {
        cut_request(&mut other, limit);
    }
    take_if_it_fits(sheet, other)
}

/// Takes another way to do it, if that fits.
fn take_if_it_fits<'a>(sheet: &mut Sheet<'a>, mut other: Sheet<'a>) -> bool {
    let fits = other.total() <= other.lines.limit;
    if fits {
        other.decided.because = std::mem::take(&mut sheet.decided.because);
        other.decided.hard = true;
        *sheet = other;
    }
    fits
}

/// Gives up what was pinned or protected: as much of it is cut and folded as of everything else.
fn let_go(sheet: &mut Sheet<'_>, newest: usize) -> bool {
    sheet.let_go() && (share_out(sheet, newest, sheet.lines.half_way()) | shrink_brief(sheet) | fold_all(sheet, true))
}

/// Cuts the opening too, which is held up to here for the rules in it.
fn share_opening(sheet: &mut Sheet<'_>) -> bool {
    let held = std::mem::take(&mut sheet.marks.holds_opening);
    held && share_out(sheet, sheet.sizes.whole.len(), sheet.lines.limit)
}

/// Cuts the largest messages before `end` that may be cut until all is down to `target`: everyone gets the same share,
/// small ones keep theirs.
fn share_out(sheet: &mut Sheet<'_>, end: usize, target: Tokens) -> bool {
    let speech_stays = sheet.policy.strategy == Strategy::Off;
    // Text and arguments apart: both can be the large part.
    let mut parts: Vec<(usize, Option<usize>, Tokens)> = Vec::new();
    for at in 0..end {
        let role = sheet.conversation.body[at].role;
        if sheet.folded(at) || sheet.is_held(at) || role == Role::Other {
            continue;
        }
        if !speech_stays || sheet.is_output(at) {
            parts.push((at, None, sheet.text(at)));
        }
        parts.extend(sheet.sizes.calls[at].iter().enumerate().map(|(call, tokens)| (at, Some(call), *tokens)));
    }
    let fixed = sheet.total() - parts.iter().map(|p| p.2).sum::<Tokens>().min(sheet.total());
    let room = target.saturating_sub(fixed);
    let share = fair_share(parts.iter().map(|p| p.2).collect(), room).max(LEAST_SHARE);
    let mut cut = false;
    for (at, call, tokens) in parts {
        if tokens <= share {
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
    let brief = fold.brief.saturating_sub(over).max(LEAST_BRIEF + sheet.held.pins);
    if brief >= fold.brief {
        return false;
    }
    summarize::commit(sheet, Fold { brief, ..fold });
    true
}

/// Cuts a request that passes the window with nothing else beside it, so that the steps of its turn have room.
fn cut_lonely(sheet: &mut Sheet<'_>) -> bool {
    let Some(at) = sheet.marks.request else { return false };
    if sheet.facts.head() + sheet.facts.costs[at].total() <= sheet.lines.limit {
        return false;
    }
    let running = at + 1 < sheet.sizes.whole.len();
    let target = if running { sheet.lines.half_way() } else { sheet.lines.limit };
    cut_request(sheet, target)
}

fn cut_request(sheet: &mut Sheet<'_>, target: Tokens) -> bool {
    let Some(at) = sheet.marks.request else { return false };
    let over = sheet.total().saturating_sub(target);
    let budget = sheet.text(at).saturating_sub(over);
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
