//! Edits: what was changed between the client's history and the view that is forwarded.
//!
//! An edit refers to messages by their index in [`super::Conversation::body`] and, so that parallel results may come
//! back in another order, by the digest of what they say. A [`View`] is the complete set of edits for one prefix of a
//! history; it is remembered under the chain hash of that prefix and applied again with the same bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Digest;

/// Which rule made an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A single large result became a preview and a pointer.
    Evict,
    /// An old result, or old arguments, became a one-line placeholder.
    Clear,
    /// A result that stands in full elsewhere in the view became a pointer to it.
    Repeat,
    /// A pointer was added to a client's "unchanged, see above" whose target had left the view.
    Restore,
    /// A message that alone passes the window was cut with a marker.
    Truncate,
    /// Progress output became its final state, as a terminal shows it.
    Settle,
    /// A line was added to a result: what the watchdog saw. Nothing of it left the prompt.
    Note,
}

/// One change of one message, or of one run of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case")]
pub enum Edit {
    /// The text of a message is replaced; media parts of it are dropped.
    Text {
        /// Index of the message in the body.
        at: usize,
        /// What the message says in the client's history.
        digest: Digest,
        /// The rule that asked for it.
        rule: Rule,
        /// The new text.
        text: Arc<str>,
        /// Record id of the original.
        record: String,
    },
    /// The arguments of one tool call are replaced by another valid JSON object.
    Arguments {
        /// Index of the assistant message in the body.
        at: usize,
        /// What the message says in the client's history.
        digest: Digest,
        /// Which call of the message.
        call: usize,
        /// The rule that asked for it.
        rule: Rule,
        /// The new arguments: the text of a JSON object.
        arguments: Arc<str>,
        /// Record id of the original arguments.
        record: String,
    },
    /// Passages of earlier messages stand behind the message's own words, which stay as they are, media included.
    Recalled {
        /// Index of the message in the body.
        at: usize,
        /// What the message says in the client's history.
        digest: Digest,
        /// The passages, marked as what they are.
        text: Arc<str>,
        /// Indexes of the messages that are quoted.
        of: Vec<usize>,
    },
    /// The messages `from..to` are folded into a brief. There is at most one in a view.
    Fold {
        /// First folded message.
        from: usize,
        /// One past the last folded message.
        to: usize,
        /// Messages inside the range that stay: the newest user messages of a turn that is still running.
        keep: Vec<usize>,
        /// The brief that stands for them, appended to the first user message.
        brief: Arc<str>,
        /// Messages that stand beside the brief and that it was not made from: see [`View::unread`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unread: Vec<usize>,
        /// How many messages the brief was made from, at least `to`: a model that writes it between requests reads the newest ones,
        /// too, which stay in view. `None` in records of versions that did not say: see [`View::read`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read: Option<usize>,
        /// Lines that a person took out of this brief or an earlier one. They stay out of later briefs until a user says them again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        struck: Vec<Arc<str>>,
    },
}

/// What the digest begins with that a model made of a result. It read the question, too.
pub const DIGEST_OF: &str = "[digest of ";

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Digest::from_hex(&text).ok_or_else(|| serde::de::Error::custom("a digest is 32 hexadecimal digits"))
    }
}

/// The complete set of edits for one prefix of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// How many messages of the body the view was made for.
    pub messages: usize,
    /// The edits, in the order of the messages they touch; a fold stands first.
    pub edits: Vec<Edit>,
    /// Whether the tool that reads things back was left out for want of room. It stays out while the view stays as it is.
    #[serde(default)]
    pub bare: bool,
    /// Messages that the client just put in the place of others, as far as they are not folded. Not kept with the view.
    #[serde(skip)]
    pub changing: Vec<usize>,
}

impl Edit {
    /// Whether it changes this message.
    pub fn touches(&self, message: usize) -> bool {
        match self {
            Edit::Text { at, .. } | Edit::Arguments { at, .. } => *at == message,
            // It stands behind a message, which stays as it is.
            Edit::Recalled { .. } => false,
            Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&message) && !keep.contains(&message),
        }
    }
}

impl View {
    /// Messages that the client is likely to replace again, such as aider's map of the repository. They stay in view while there is
    /// room, and no brief is made from them: it could not stand any more once they are gone.
    pub fn unread(&self) -> Vec<usize> {
        let folds = self.edits.iter().filter_map(|edit| match edit {
            Edit::Fold { unread, .. } => Some(unread),
            _ => None,
        });
        let mut all: Vec<usize> = self.changing.iter().chain(folds.flatten()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How many messages the brief of its fold was made from; where nobody noted that, all that there were. 0 without a fold.
    pub fn read(&self) -> usize {
        let read = self.edits.iter().find_map(|edit| match edit {
            Edit::Fold { to, read, .. } => Some(read.unwrap_or(self.messages).max(*to)),
            _ => None,
        });
        read.unwrap_or(0)
    }

    /// The lines that a person took out of the briefs of its fold.
    pub fn struck(&self) -> &[Arc<str>] {
        let struck = self.edits.iter().find_map(|edit| match edit {
            Edit::Fold { struck, .. } => Some(struck.as_slice()),
            _ => None,
        });
        struck.unwrap_or_default()
    }

    /// What tells its edits from those of another view.
    pub fn mark(&self) -> Digest {
        Digest::of(&serde_json::to_vec(&self.edits).unwrap_or_default())
    }

    /// The brief of its fold.
    pub fn brief(&self) -> Option<&str> {
        self.edits.iter().find_map(|edit| match edit {
            Edit::Fold { brief, .. } => Some(&**brief),
            _ => None,
        })
    }

    /// Whether this edit removes something from the prompt. A fold of no messages only carries the pins, and what was recalled only
    /// adds.
    pub fn lacks(&self) -> bool {
        let adds = |edit: &Edit| match edit {
            Edit::Fold { from, to, .. } => from == to,
            Edit::Recalled { .. } => true,
            Edit::Text { .. } | Edit::Arguments { .. } => false,
        };
        !self.edits.iter().all(adds)
    }
}
