//! What a client's own API asks to be done with its history, and what was done: Anthropic's `context_management` and `compaction`.
//! The planner acts ([`crate::plan::client`]).

use std::sync::Arc;

use crate::config::Resolved;
use crate::conversation::Tokens;
use crate::conversation::managed::{Edits, Taken};
use crate::plan;

/// What was done with a history.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Outcome {
    /// Prompt tokens of the history as the client sent it.
    pub(in crate::proxy) original: Tokens,
    /// What was taken out of the prompt: the kind, how many uses of tools or turns, and tokens.
    pub(in crate::proxy) taken: Vec<(Taken, usize, Tokens)>,
    /// The brief, where the client is to get it with this reply.
    pub(in crate::proxy) brief: Option<Arc<str>>,
    /// Tokens that a model read and wrote for it.
    pub(in crate::proxy) spent: (u64, u64),
    /// The client wants that and nothing else.
    pub(in crate::proxy) alone: bool,
}

/// The settings of a request whose client asks for something.
pub(in crate::proxy) fn asked(edits: &Edits, policy: Arc<Resolved>) -> Arc<Resolved> {
    if edits.is_none() {
        return policy;
    }
    let instructions = edits.compact.as_ref().and_then(|compact| compact.instructions.clone());
    let mut own = Resolved::clone(&policy);
    own.policy = plan::client::over(edits, &own.policy);
    own.focus = instructions.or(own.focus);
    Arc::new(own)
}
