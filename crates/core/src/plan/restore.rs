//! Restore: clients answer a repeated read with "unchanged, see the earlier result". When that result has left the view,
//! such a stub points nowhere; it gets a pointer to the original: when it arrives, or when the plan that takes the result
//! out of the view is made. One that arrives gets the result itself where there is room for it, since the model has just
//! asked for it; that is taken back like any old result.

use super::Action;
use super::facts::SMALL;
use super::sheet::Sheet;
use crate::conversation::edit::Rule;
use crate::conversation::files;
use crate::conversation::step::call_of;
use crate::conversation::{Role, Tokens};

/// A stub is a short text; anything longer says something itself.
const LONGEST_STUB_BYTES: usize = 400;

/// What the added pointer costs at most.
pub(super) const POINTER: Tokens = 60;

/// Phrases of the stubs that clients send (Claude Code, Qwen Code, hermes), in lower case.
const PHRASES: [&str; 8] = [
    "unchanged since",
    "earlier tool_result",
    "earlier tool result",
    "refer to that earlier",
    "see the earlier result",
    "see above",
    "same as before",
    "has not changed since",
];

/// Stubs that arrive.
pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let from = sheet.marks.forwarded;
    restore(sheet, from, |_| true, has_room)
}

/// Whether the whole text of a result may come back with a stub: it would not be evicted, and no line is passed for it.
fn has_room(sheet: &Sheet<'_>, of: usize) -> bool {
    let cost = &sheet.facts.costs[of];
    let after = sheet.total().saturating_add(cost.text).saturating_add(POINTER);
    cost.media == 0 && cost.text <= sheet.lines.evict_over && after <= sheet.lines.clear_at
}

/// Stubs whose original leaves the view in this plan, as long as that crosses no line, so that planning again changes nothing: behind the first change everything
/// is evaluated again anyway.
pub(super) fn apply_behind_changes(sheet: &mut Sheet<'_>) -> Option<String> {
    let from = sheet.first_change();
    let may = |sheet: &Sheet<'_>| {
        let (now, lines) = (sheet.total(), &sheet.lines);
        let crosses = now <= lines.clear_at && now + POINTER > lines.clear_at;
        !crosses && now + POINTER <= lines.summarize_at
    };
    // What leaves now does so for want of room.
    restore(sheet, from, may, |_, _| false)
}

fn restore(
    sheet: &mut Sheet<'_>,
    from: usize,
    may: impl Fn(&Sheet<'_>) -> bool,
    has_room: impl Fn(&Sheet<'_>, usize) -> bool,
) -> Option<String> {
    let mut count = 0;
    for at in from..sheet.sizes.whole.len() {
        let message = &sheet.conversation.body[at];
        if message.role != Role::Tool || sheet.touched[at].is_some() || sheet.folded(at) || !is_stub(&message.text) {
            continue;
        }
        if let Some(of) =
            earlier(sheet, at).filter(|of| sheet.folded(*of) || sheet.touched[*of].is_some()).filter(|_| may(sheet))
        {
            let whole = has_room(sheet, of);
            let tokens = sheet.sizes.whole[at] + POINTER + if whole { sheet.facts.costs[of].text } else { 0 };
            sheet.replace(at, Rule::Restore, tokens, Action::Restore { at, of, whole });
            count += 1;
        }
    }
    (count > 0).then(|| format!("{count} stubs pointed at an original that left the view"))
}

fn is_stub(text: &str) -> bool {
    if text.len() > LONGEST_STUB_BYTES {
        return false;
    }
    let lower = text.to_lowercase();
    PHRASES.iter().any(|p| lower.contains(p))
}

/// Takes a text that came back with a stub out again; `false` where there is none, or nothing to gain.
pub(super) fn take_back(sheet: &mut Sheet<'_>, at: usize) -> bool {
    let left = sheet.facts.costs[at].text + POINTER;
    let Some(of) = earlier(sheet, at).filter(|_| sheet.text(at) > left + SMALL) else { return false };
    sheet.replace(at, Rule::Restore, left, Action::Restore { at, of, whole: false });
    true
}

/// The newest real result of the same tool for the same arguments before a stub.
fn earlier(sheet: &Sheet<'_>, at: usize) -> Option<usize> {
    let body = &sheet.conversation.body;
    let call = |i: usize| call_of(body, i).map(|(m, c)| &body[m].calls[c]);
    let mine = call(at)?;
    (0..at).rev().find(|i| {
        let text = &body[*i].text;
        body[*i].role == Role::Tool
            && !is_stub(text)
            && call(*i).is_some_and(|c| c.name == mine.name && files::same_target(&c.arguments, &mine.arguments))
    })
}
