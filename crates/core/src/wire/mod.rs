//! Bytes ⇄ [`crate::conversation::Conversation`], one file a dialect. What is not changed keeps its bytes: numbers, key order,
//! spacing and fields nobody here knows.

pub mod compacted;
pub mod dialect;
pub mod extra;
pub mod finish;
pub mod json;
pub mod known;
pub mod legacy;
pub mod names;
pub mod openai_chat;
pub mod parts;
pub mod reply;
pub mod session;
mod settings;

/// Why a request body could not be read. The texts are for the caller: they name the place and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body is not JSON, or not an object.
    #[error("the request body is not valid JSON: {0}")]
    NotJson(String),
    /// A field has the wrong shape.
    #[error("{message}")]
    Field {
        /// Path of the field, such as `messages[3].content`.
        param: String,
        /// What is wrong and what it must be.
        message: String,
    },
}

impl WireError {
    /// The field that is wrong, for the `param` member of an error reply.
    pub fn param(&self) -> Option<&str> {
        match self {
            WireError::NotJson(_) => None,
            WireError::Field { param, .. } => Some(param),
        }
    }
}
