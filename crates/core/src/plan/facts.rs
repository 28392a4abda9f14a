//! Facts: what was measured about one request. Plain data, filled by `measure`, read by the rules.

use crate::conversation::edit::View;
use crate::conversation::{Conversation, Tokens};

/// What one message of the body costs, in tokens, as the client sent it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// Its text, reasoning that counts, and the template's words around it.
    pub text: Tokens,
    /// The arguments of each of its calls, names included.
    pub calls: Vec<Tokens>,
    /// Its images, audio and other media.
    pub media: Tokens,
}

impl Cost {
    /// The whole message.
    pub fn total(&self) -> Tokens {
        self.text + self.media + self.calls.iter().sum::<Tokens>()
    }
}

/// Everything the planner needs to know about the request at hand.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Tokens the server has loaded for this model.
    pub window: Tokens,
    /// Tokens kept for the reply.
    pub output_reserved: Tokens,
    /// Tokens left unused because a server refuses a prompt that fills the window exactly, and more where counts are
    /// estimates.
    pub slack: Tokens,
    /// Leading system messages.
    pub system: Tokens,
    /// Tool definitions.
    pub tools: Tokens,
    /// Each message of the body.
    pub costs: Vec<Cost>,
    /// Edits made already for a prefix of this body.
    pub view: View,
    /// Tokens that each edit of `view` put in place, in the same order: of a text edit, the whole message but for its
    /// calls; of an arguments edit, that call; of a fold, the brief alone.
    pub edit_costs: Vec<Tokens>,
    /// Messages of the body that were forwarded before: the server may hold them in its prompt cache.
    pub forwarded: usize,
    /// Messages that a person pinned, by index: they are not cleared or cut, and their steps stay inside a fold.
    pub pinned: Vec<usize>,
    /// Tokens of the pinned texts that stand in front of a brief.
    pub pins: Tokens,
    /// A person stopped the rewriting of this conversation: nothing changes, and what no longer fits is refused.
    pub paused: bool,
    /// The tokens are only estimated, and no reply has told yet how far off that is.
    pub guessed: bool,
    /// Tokens that the next step is expected to add, where a plan is made ahead of it.
    pub foreseen: Tokens,
}

impl Facts {
    /// Tokens that come before the body and are never touched.
    pub fn head(&self) -> Tokens {
        self.system + self.tools
    }
}

/// Tokens by region, as they are reported to people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Regions {
    /// Leading system messages.
    pub system: Tokens,
    /// Tool definitions.
    pub tools: Tokens,
    /// The brief.
    pub brief: Tokens,
    /// All other messages.
    pub history: Tokens,
    /// Images, audio and other media.
    pub media: Tokens,
    /// Kept for the reply.
    pub output_reserved: Tokens,
}

impl Regions {
    /// Prompt tokens: all regions but the reply's.
    pub fn prompt(&self) -> Tokens {
        self.system + self.tools + self.brief + self.history + self.media
    }

    /// The same where the whole prompt was counted to be this long: what is more or less goes to the history.
    #[must_use]
    pub fn of_prompt(self, tokens: Tokens) -> Regions {
        let others = self.system + self.tools + self.brief + self.media;
        Regions { history: tokens.saturating_sub(others), ..self }
    }
}

/// A message is the same size or smaller than this many tokens: not worth an edit, since its placeholder costs as much.
pub(crate) const SMALL: Tokens = 120;

/// What the placeholder of a result of `original` tokens costs at most: its line (`apply::preview::placeholder` aims at
/// 40), and of a larger result the findings that stay.
pub(crate) fn placeholder(original: Tokens) -> Tokens {
    if original < 280 { 60 } else { 90 }
}

/// Asserts in debug builds that facts belong to a conversation.
pub(crate) fn belong(facts: &Facts, conversation: &Conversation) -> bool {
    facts.costs.len() == conversation.body.len() && facts.edit_costs.len() == facts.view.edits.len()
}
