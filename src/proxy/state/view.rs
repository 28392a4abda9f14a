//! Turns a plan into a view. Requests, the work ahead of them, and a person's fold or clearing all use it.

use crate::apply::{self, Applied, Words};
use crate::conversation::Conversation;
use crate::conversation::edit::View;
use crate::measure::{ModelKey, own};
use crate::plan::Plan;
use crate::proxy::App;
use crate::store;

/// A conversation and its view, for whoever changes that.
pub(in crate::proxy) struct Subject<'a> {
    pub(in crate::proxy) conversation: &'a Conversation,
    pub(in crate::proxy) id: &'a str,
    pub(in crate::proxy) key: &'a ModelKey,
    /// The model's own vocabulary, where its file is on this machine.
    pub(in crate::proxy) own: Option<&'a own::Model>,
    pub(in crate::proxy) old: &'a View,
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
    let count = |text: &str| app.measure.text(of.key, of.own, text);
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
