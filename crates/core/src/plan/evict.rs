//! Evict: a single result over `evict_over` is replaced, on the turn it arrives, by a preview and a pointer; with `clean`, one
//! that shows progress by its final state, whatever its size. Nothing before it changes, so it costs the prompt cache nothing.

use super::Action;
use super::sheet::Sheet;
use crate::conversation::edit::Rule;
use crate::conversation::{Role, Tokens};
use crate::preview::settled;

/// Bytes of the note below a text in its final state.
const SETTLED_NOTE: usize = 100;

/// Share of `evict_over` that the preview of an evicted result takes at least.
const PREVIEW_SHARE: Tokens = 4;

/// A preview saves at least one part in this many of a result that there is room for.
const WORTH_A_CUT: Tokens = 4;

/// A preview of less than this many tokens has no room for the lines that matter beside its marker.
const LEAST_PREVIEW: Tokens = 256;

/// A preview of more than this many tokens costs later steps more than it tells the next one.
const LARGEST_PREVIEW: Tokens = 2048;

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let over = sheet.lines.evict_over;
    let budget = (over / PREVIEW_SHARE).max(LEAST_PREVIEW.min(over / 2));
    // What a person's client says is left alone while the prompt fits: pasted output, files, repository maps.
    let passes = sheet.total() > sheet.lines.limit;
    let (mut count, mut settled) = (0, 0);
    for at in sheet.marks.forwarded..sheet.sizes.whole.len() {
        if sheet.touched[at].is_some() || sheet.folded(at) {
            continue;
        }
        let text = sheet.text(at);
        // Pasted output in an older user message is output too.
        let said = sheet.conversation.body[at].role == Role::User;
        let may = match said {
            true => passes && !sheet.is_held(at) && text > over.saturating_mul(2),
            false => sheet.is_output(at) && !sheet.is_protected(at),
        };
        if !said && may && settle(sheet, at, text, over) {
            settled += 1;
            continue;
        }
        if text > over && may {
            // The model has just asked for it: as much as a result that is no longer than the line may take, where there is
            // room short of where old results are cleared.
            let room = sheet.lines.clear_at.saturating_sub(sheet.total().saturating_sub(text));
            let budget = if said { budget } else { budget.max(over.min(room).min(LARGEST_PREVIEW)) };
            // A preview of nearly all of it hides lines and saves nothing: it stays whole where there is room.
            if said || text > room || budget < text / WORTH_A_CUT * (WORTH_A_CUT - 1) {
                sheet.replace(at, Rule::Evict, budget, Action::Preview { at, budget, rule: Rule::Evict });
                count += 1;
            }
        }
        for call in 0..sheet.sizes.calls[at].len() {
            if sheet.sizes.calls[at][call] > over && !sheet.is_protected(at) {
                elide(sheet, at, call, budget, Rule::Evict);
                count += 1;
            }
        }
    }
    let previews = (count > 0).then(|| format!("{count} over {over} tokens replaced by a preview"));
    let finals = (settled > 0).then(|| format!("{settled} shown in their final state"));
    let said: Vec<String> = previews.into_iter().chain(finals).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Decides that a result of `text` tokens is shown as a terminal shows it in the end, where that is wanted, saves more than
/// its note costs, and leaves no more than the line for a single result.
fn settle(sheet: &mut Sheet<'_>, at: usize, text: Tokens, over: Tokens) -> bool {
    if !sheet.policy.results.clean {
        return false;
    }
    let original = sheet.conversation.body[at].text.len();
    let Some(left) = settled(&sheet.conversation.body[at].text).map(|t| t.len() + SETTLED_NOTE) else { return false };
    // Tokens are counted when it is made; until then by its share of the bytes, and some more.
    let tokens = u64::from(text) * left as u64 / original.max(1) as u64;
    let budget = Tokens::try_from(tokens + tokens / 8).unwrap_or(Tokens::MAX).saturating_add(1);
    if budget >= text || budget > over {
        return false;
    }
    sheet.replace(at, Rule::Settle, budget, Action::Preview { at, budget, rule: Rule::Settle });
    true
}

/// Decides that the arguments of a call are replaced by at most `budget` tokens.
pub(super) fn elide(sheet: &mut Sheet<'_>, at: usize, call: usize, budget: Tokens, rule: Rule) {
    let budget = budget.min(sheet.sizes.calls[at][call]);
    sheet.decided.actions.retain(|a| !matches!(a, Action::Elide { at: m, call: c, .. } if (*m, *c) == (at, call)));
    sheet.set_call(at, call, budget);
    sheet.decided.actions.push(Action::Elide { at, call, budget, rule });
}

#[cfg(test)]
mod tests {
    use crate::conversation::edit::Rule;
    use crate::plan::{Action, Cost, Facts, Policy, ResultRules, plan};
    use crate::wire::openai_chat;

    #[test]
    fn progress_of_any_size_settles_by_choice() {
        let bar: String = (0..60).map(|n| format!("\\rReceiving objects: {n}% ({n}/60)")).collect();
        let body = format!(
            r#"{{"model": "m", "messages": [{{"role": "user", "content": "Clone it."}}, {{"role": "assistant", "tool_calls":
            [{{"id": "a", "type": "function", "function": {{"name": "bash", "arguments": "{{}}"}}}},
            {{"id": "b", "type": "function", "function": {{"name": "bash", "arguments": "{{}}"}}}}]}},
            {{"role": "tool", "tool_call_id": "a", "content": "{bar}, done."}}, {{"role": "tool", "tool_call_id": "b", "content": "plain"}}]}}"#
        );
        let request = openai_chat::parse(&body.into()).expect("a request");
        let cost = |m: &crate::conversation::Message| Cost {
            text: m.text.len() as u32 / 4 + 4,
            calls: vec![9; m.calls.len()],
            ..Cost::default()
        };
        let costs: Vec<Cost> = request.conversation.body.iter().map(cost).collect();
        let facts = Facts { window: 16_384, output_reserved: 512, costs, ..Facts::default() };
        let results = ResultRules { clean: true, ..ResultRules::default() };
        let cleaned = Policy { results, ..Policy::default() };
        assert!(plan(&request.conversation, &facts, &Policy::default()).actions.is_empty(), "it is off by default");
        let made = plan(&request.conversation, &facts, &cleaned);
        let settled = |a: &Action| matches!(a, Action::Preview { at: 2, rule: Rule::Settle, budget } if *budget < 100);
        assert!(made.actions.len() == 1 && settled(&made.actions[0]), "{made:?}");
        // What was forwarded already keeps its bytes.
        let later = Facts { forwarded: 4, ..facts };
        assert!(plan(&request.conversation, &later, &cleaned).actions.is_empty());
    }
}
