//! What a client's own API asks to be done with its history: old results cleared, thoughts left out, a compaction, each by a line
//! of its own (Anthropic's `context_management` and `compaction`, OpenAI's `compact_threshold`). It holds for one request.

use serde::{Deserialize, Serialize};

use super::Tokens;

/// What a client asks to be done with its history. By default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Edits {
    /// What the model thought is left out, but for so many of the newest turns that have thoughts.
    pub thinking: Option<usize>,
    /// Old results of tools are cleared.
    pub uses: Option<Uses>,
    /// Old messages are folded into a brief.
    pub compact: Option<Compact>,
    /// A brief that was made before stands for the beginning of the history.
    pub stands: Option<Stands>,
}

/// A brief that stands for the first messages of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stands {
    /// How many messages.
    pub depth: usize,
    /// The brief.
    pub text: String,
}

/// Old results of tools are cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// When.
    pub trigger: Trigger,
    /// So many of the newest stay.
    pub keep: usize,
    /// Nothing is cleared that does not free so many tokens.
    pub at_least: Tokens,
    /// Results of these tools stay.
    pub exclude: Vec<String>,
    /// Whether arguments of calls go, too.
    pub inputs: Inputs,
}

/// When results are cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// The prompt has more tokens.
    Tokens(Tokens),
    /// It holds more results.
    Uses(usize),
}

/// Which arguments of calls are cleared with their results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inputs {
    /// None.
    Stay,
    /// All.
    Go,
    /// Those of these tools.
    Of(Vec<String>),
}

/// Old messages are folded into a brief.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compact {
    /// A prompt of more tokens is folded; with 0, what can be folded is folded now.
    pub at: Tokens,
    /// All messages are folded now, whatever the prompt takes: nothing is sampled behind the brief.
    pub whole: bool,
    /// The client gets the brief alone, and goes on by itself.
    pub pause: bool,
    /// What the brief is to dwell on.
    pub instructions: Option<String>,
}

impl Compact {
    /// What can be folded is folded now: the newest messages stay.
    pub fn now() -> Compact {
        Compact::default()
    }

    /// Whether it is asked for now, whatever the prompt takes.
    pub fn is_now(&self) -> bool {
        self.whole || self.at == 0
    }
}

impl Edits {
    /// Whether nothing is asked.
    pub fn is_none(&self) -> bool {
        *self == Edits::default()
    }

    /// The lowest number of prompt tokens from which something is done; `None` where no number decides.
    pub fn first_line(&self) -> Option<Tokens> {
        let uses = self.uses.as_ref().and_then(|uses| match uses.trigger {
            Trigger::Tokens(line) => Some(line),
            Trigger::Uses(_) => None,
        });
        uses.into_iter().chain(self.compact.as_ref().map(|compact| compact.at)).min()
    }
}

/// What was taken out of a prompt for one of a client's edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Taken {
    /// Results of tools, and arguments of calls.
    Uses,
    /// Thoughts.
    Thinking,
}
