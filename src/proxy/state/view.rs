//! From what a view is wanted for to the view. Requests, the work ahead of them, and a person's fold or clearing all use it.

use crate::apply::{self, Applied, Words};
use crate::conversation::edit::View;
use crate::conversation::{Conversation, Tokens};
use crate::measure::{ModelKey, own};
use crate::plan::asked::{self, Next};
use crate::plan::{Action, Counting, Facts, Plan, Policy};
use crate::proxy::App;
use crate::store;

/// A conversation and its view, for whoever changes that.
pub(in crate::proxy) struct Subject<'a> {
    pub(in crate::proxy) conversation: &'a Conversation,
    pub(in crate::proxy) id: &'a str,
    pub(in crate::proxy) key: &'a ModelKey,
    /// The model's own vocabulary, where its file is on this machine.
    pub(in crate::proxy) own: Option<&'a own::Model>,
    /// How the sizes that a plan gives were counted.
    pub(in crate::proxy) counting: Counting,
    pub(in crate::proxy) old: &'a View,
}

/// What a view is wanted for where no request waits for it. The plans of a request are made in `turn::draft`: each is counted before
/// the next one.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) enum Intent {
    /// Somebody wants the history folded now: a person, or whoever says that a task is done.
    Fold,
    /// Somebody wants to see it folded at another line (prompt tokens); with 0, as far as it can be.
    Line(Tokens),
    /// The next request is foreseen to need it.
    Ahead(Next),
}

/// The plan for it; `None` where there is nothing that it would do, or that pays.
pub(in crate::proxy) fn planned(
    conversation: &Conversation,
    facts: &Facts,
    policy: &Policy,
    intent: Intent,
) -> Option<Plan> {
    let folds = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::Fold { .. }));
    match intent {
        Intent::Fold => Some(asked::fold(conversation, facts, policy)).filter(folds),
        Intent::Line(line) => Some(asked::at_line(conversation, facts, policy, line)).filter(folds),
        Intent::Ahead(next) => asked::foreseen(conversation, facts, policy, next),
    }
}

/// The view that a plan makes, and what must be saved before it is sent.
///
/// # Errors
/// When the record cannot be asked.
pub(in crate::proxy) fn make_view(
    app: &App,
    of: &Subject<'_>,
    plan: &Plan,
    words: Words<'_>,
) -> Result<Applied, store::Error> {
    let count = |text: &str| of.counting.scaled(app.measure.text(of.key, of.own, text));
    apply::apply(&apply::Input {
        conversation: of.conversation,
        id: of.id,
        plan,
        old: of.old,
        store: &app.store,
        count: &count,
        words,
    })
}
