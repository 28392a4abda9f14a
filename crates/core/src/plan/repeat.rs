//! Repeat: a result that says word for word what another result in the view says costs a pointer, not its text. On
//! arrival only, when the window is filling, so that it costs the prompt cache nothing.

use std::collections::HashMap;

use super::Action;
use super::facts::SMALL;
use super::sheet::Sheet;
use crate::conversation::edit::Rule;

/// What a pointer to another result costs at most.
const POINTER: u32 = 40;

/// Takes back the pointers of this plan whose text a fold has taken out of the view: the model has just asked for it.
pub(super) fn whole_again(sheet: &mut Sheet<'_>) {
    let (lost, stay): (Vec<Action>, Vec<Action>) = std::mem::take(&mut sheet.decided.actions)
        .into_iter()
        .partition(|action| matches!(action, Action::Repeat { of, .. } if sheet.folded(*of)));
    sheet.decided.actions = stay;
    for action in lost {
        if let Action::Repeat { at, .. } = action {
            sheet.take_back(at);
        }
    }
}

pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    if sheet.total() <= sheet.lines.clear_at / 2 {
        return None;
    }
    let mut seen = HashMap::new();
    let mut count = 0;
    for at in 0..sheet.sizes.whole.len() {
        // Whether a user message is output takes longest to tell.
        let may = sheet.facts.costs[at].text >= SMALL && !sheet.folded(at) && sheet.touched[at].is_none();
        if !may || !sheet.is_output(at) {
            continue;
        }
        let digest = sheet.conversation.body[at].digest;
        match seen.get(&digest) {
            Some(of) if at >= sheet.marks.forwarded && !sheet.is_protected(at) => {
                sheet.replace(at, Rule::Repeat, POINTER, Action::Repeat { at, of: *of });
                count += 1;
            }
            Some(_) => {}
            None => {
                seen.insert(digest, at);
            }
        }
    }
    (count > 0).then(|| format!("{count} repeated results replaced by a pointer"))
}
