//! What a person asks to be changed in what the model sees.

use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steer {
    /// A message stands in the prompt again as it came.
    Restore(usize),
    /// A result leaves the prompt; a placeholder says where it is.
    Clear(usize),
    /// A result leaves the prompt but for a preview.
    Evict(usize),
    /// The brief says this from now on.
    Brief(String),
    /// The view as it was before the last change that stands.
    Undo,
    /// The next fold keeps this above all.
    Focus(String),
}

/// When it is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// With the next request, whatever that makes the server evaluate again.
    #[default]
    Now,
    /// Once the prompt is rewritten anyway.
    NextBreak,
}

impl Steer {
    /// As it stands in the trace.
    pub(in crate::proxy) fn as_str(&self) -> &'static str {
        match self {
            Steer::Restore(_) => "restore",
            Steer::Clear(_) => "clear",
            Steer::Evict(_) => "evict",
            Steer::Brief(_) => "brief",
            Steer::Undo => "undo",
            Steer::Focus(_) => "focus",
        }
    }

    /// Why the view changed, without any text of it.
    pub(in crate::proxy) fn because(&self) -> String {
        format!("{}: {}", self.as_str(), self.what())
    }

    /// What was done, and who asked for it.
    pub(in crate::proxy) fn what(&self) -> String {
        let what = match self {
            Steer::Restore(at) => format!("message {at} stands in full again"),
            Steer::Clear(at) => format!("message {at} became a placeholder"),
            Steer::Evict(at) => format!("message {at} became a preview"),
            Steer::Brief(_) => "a person wrote it".to_owned(),
            Steer::Undo => "the last change was taken back".to_owned(),
            Steer::Focus(_) => "the fold had a focus".to_owned(),
        };
        format!("{what}, asked for by a person")
    }
}
