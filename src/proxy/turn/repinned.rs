//! A view with the pins that a conversation has today.

use std::sync::Arc;

use crate::config::Resolved;
use crate::conversation::edit::{Edit, View};
use crate::conversation::step;
use crate::plan::Facts;
use crate::proxy::App;
use crate::proxy::state::standing::{Standing, held};
use crate::proxy::state::view::Subject;
use crate::{brief, pinned, plan};

/// A view with what is pinned in it, and no more than that: texts in front of the brief, messages where they stand in the history.
pub(in crate::proxy) fn with_pins(
    app: &App,
    subject: &Subject<'_>,
    (facts, policy): (&Facts, &Resolved),
    mut view: View,
    standing: &Standing,
) -> View {
    let conversation = subject.conversation;
    let held = held(app, subject.key, standing, &policy.pins, &conversation.body, facts.window);
    for at in &held.messages {
        view.edits.retain(|edit| matches!(edit, Edit::Fold { .. }) || !edit.touches(*at));
    }
    let units = step::units(&conversation.body);
    let whole = |at: &usize| units.iter().find(|unit| (unit.start..unit.end).contains(at)).copied();
    let mut has_fold = false;
    for edit in &mut view.edits {
        let Edit::Fold { from, to, keep, brief, .. } = edit else { continue };
        has_fold = true;
        let back = held.messages.iter().filter(|at| (*from..*to).contains(*at)).filter_map(whole);
        keep.extend(back.flat_map(|unit| unit.start..unit.end).filter(|at| (*from..*to).contains(at)));
        keep.sort_unstable();
        keep.dedup();
        let block = pinned::block(&held.texts, &|at| !(*from..*to).contains(&at) || keep.contains(&at));
        // Words of the user that are pinned no more stand where the user's words do.
        let mut words = brief::said_by(pinned::texts(brief), &conversation.body, *from..*to);
        let mut said = pinned::texts(&block);
        words.retain(|text| !said.contains(text));
        said.extend(brief::said_in(&conversation.body, keep));
        let told = brief::without_words(&brief::with_words(pinned::without(brief), &words), &said);
        *brief = Arc::from(pinned::with(&told, &block));
    }
    let block = pinned::block(&held.texts, &|_| true);
    if !has_fold && !block.is_empty() {
        let at = plan::anchor(conversation, facts, &policy.policy);
        let (keep, unread) = (Vec::new(), Vec::new());
        let (brief, read, struck) = (Arc::from(block), Some(at), Vec::new());
        view.edits.insert(0, Edit::Fold { from: at, to: at, keep, brief, unread, read, struck });
    }
    view.edits.retain(|edit| !matches!(edit, Edit::Fold { from, to, brief, .. } if from == to && brief.is_empty()));
    view
}
