//! The stages and steps of a request, in their order. Each says in the log when it begins (`RUST_LOG=windowsill=debug`), so that
//! a request can be followed there from its first byte to its account; a test walks some and asserts that none goes back.

use tracing::debug;

/// A stage of a request, or a step of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Stage {
    /// 1. It is made ready: read, and prepared in the five steps below.
    Ready,
    /// 1.1. What it stands on: its conversation, its window and its settings.
    Situation,
    /// 1.2. What stands before its messages.
    Head,
    /// 1.3. What it weighs.
    Measured,
    /// 1.4. What is done to it, and the view that comes of it.
    Planned,
    /// 1.5. What leaves the prompt goes into the record.
    Saved,
    /// 2. It is sent.
    Sent,
    /// 3. Its reply goes on to the client.
    Relayed,
    /// 4. What it cost is taken in.
    Accounted,
}

impl Stage {
    /// Says that it begins. `conversation`: its id; empty where it is not known yet.
    pub(in crate::proxy) fn begins(self, conversation: &str) {
        debug!(stage = ?self, conversation, "a stage begins");
    }
}
