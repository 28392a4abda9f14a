//! What do we have? Fills [`crate::plan::Facts`]; each number with where it came from.

pub mod afford;
pub mod count;
pub mod estimate;
pub mod firsts;
pub mod hardware;
mod key;
pub mod memory;
pub mod model_file;
pub mod own;
pub mod process;
pub mod shown;
pub mod spread;
pub mod tokens;
pub mod window;

use std::sync::Arc;

use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Tokens};
use crate::plan::{Cost, Facts};
use estimate::Estimates;
pub use estimate::Sample;
pub use key::ModelKey;

/// The longest text that is counted with the vocabulary while a plan is made (bytes): a millisecond or two.
const COUNTED_TEXT: usize = 64 * 1024;

/// A prompt whose exact size is known, to build the next count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// How many messages of the body it held.
    pub messages: usize,
    /// Its size.
    pub tokens: Tokens,
}

/// Where a model's vocabulary comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The model's own file.
    File,
    /// What Ollama tells of a file that is not on this machine.
    Show,
}

impl Origin {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::File => "the model's own vocabulary",
            Origin::Show => "the vocabulary that Ollama's /api/show gives",
        }
    }
}

/// How prompts of a model would be counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// With the model's vocabulary.
    Own(Origin),
    /// By an estimate, until its server has told the vocabulary, for which the first request asks.
    Asks,
    /// By its server.
    Server,
    /// By an estimate.
    Estimate,
}

impl Counting {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Counting::Own(origin) => origin.as_str(),
            Counting::Asks => {
                "an estimate, until Ollama's /api/show gives the vocabulary, which the first request asks for"
            }
            Counting::Server => "the server's own count",
            Counting::Estimate => "an estimate",
        }
    }

    /// In a word, for tables.
    pub fn word(self) -> &'static str {
        match self {
            Counting::Own(Origin::File) => "own file",
            Counting::Own(Origin::Show) | Counting::Asks => "/api/show",
            Counting::Server => "the server",
            Counting::Estimate => "estimate",
        }
    }
}

/// How sure a count is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sureness {
    /// Counted by the server.
    Counted,
    /// Counted with the model's own vocabulary, and the server counts the same or its replies told the difference.
    Own(Origin),
    /// Counted with the model's own vocabulary, but the server renders prompts in a way of its own, which no reply has
    /// told the size of yet: errs high.
    OwnUnchecked(Origin),
    /// Estimated, and corrected by what the server reported.
    Calibrated,
    /// Estimated; nothing was reported yet.
    Estimated,
}

impl Sureness {
    /// Whether it is a count, not an estimate.
    pub fn is_exact(self) -> bool {
        matches!(self, Sureness::Counted | Sureness::Own(_) | Sureness::OwnUnchecked(_))
    }

    /// As it stands in headers and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Sureness::Counted => "counted by the server",
            Sureness::Own(Origin::File) => "counted with the model's own vocabulary",
            Sureness::Own(Origin::Show) => "counted with the vocabulary that Ollama's /api/show gives",
            Sureness::OwnUnchecked(Origin::File) => {
                "counted with the model's own vocabulary, with an allowance for the server's template"
            }
            Sureness::OwnUnchecked(Origin::Show) => {
                "counted with the vocabulary that Ollama's /api/show gives, with an allowance for the server's template"
            }
            Sureness::Calibrated => "estimated, calibrated",
            Sureness::Estimated => "estimated",
        }
    }
}

/// Tokens left unused beside an exact count: llama.cpp refuses a prompt that fills the window exactly, and evaluates at
/// least one token.
const SLACK: Tokens = 16;

/// Share of the window left unused beside an estimate.
const ESTIMATE_SLACK: f64 = 0.04;

/// Counts and estimates of everything in use.
#[derive(Default)]
pub struct Measure {
    /// Windows of the models in use.
    pub windows: window::Windows,
    /// Vocabularies of the models in use.
    pub counters: Arc<own::Counters>,
    /// The first counts of system prompts, tools and briefs.
    pub firsts: firsts::Firsts,
    /// System prompts and tools as their servers count them.
    pub heads: firsts::Firsts,
    estimates: Estimates,
}

impl Measure {
    /// Nothing is known yet; `machine` is where models are fitted, and has what servers tell of models that are not here.
    pub fn on(machine: afford::Machine) -> Measure {
        let counters = Arc::new(own::Counters::with(machine.shown(), machine.program()));
        Measure { windows: window::Windows::on(machine), counters, ..Measure::default() }
    }

    /// The facts of a request with estimated costs: everything but window and reserve.
    ///
    /// `known` is a prompt of this very conversation and view whose
    /// size the server told.
    pub fn facts(&self, model: &ModelKey, conversation: &Conversation, view: &View, known: Option<Known>) -> Facts {
        self.estimates.facts(model.as_str(), conversation, view, known)
    }

    /// The same by nothing that a server ever reported.
    pub fn unreported(&self, model: &ModelKey, conversation: &Conversation, view: &View) -> Facts {
        self.estimates.unreported(model.as_str(), conversation, view)
    }

    /// The estimated cost of each message of the body.
    pub fn costs(&self, model: &ModelKey, conversation: &Conversation) -> Vec<Cost> {
        self.estimates.costs(model.as_str(), conversation)
    }

    /// Tokens of a text, erring high.
    pub fn count(&self, model: &ModelKey, text: &str) -> Tokens {
        self.estimates.text(model.as_str(), text)
    }

    /// Tokens of a text: by the model's own vocabulary, where that is on this machine and the text is no longer than
    /// 64 KB; else erring high.
    pub fn text(&self, model: &ModelKey, own: Option<&own::Model>, text: &str) -> Tokens {
        let own = own.filter(|_| text.len() <= COUNTED_TEXT);
        own.and_then(|own| own.text(text)).unwrap_or_else(|| self.count(model, text))
    }

    /// Tokens of what an edit put in place, erring high.
    pub fn edit_cost(&self, model: &ModelKey, conversation: &Conversation, edit: &Edit) -> Tokens {
        self.estimates.edit_cost(model.as_str(), conversation, edit)
    }

    /// What there is to learn from once the server has counted a view.
    pub fn sample(&self, model: &ModelKey, conversation: &Conversation, view: &View, known: Option<Known>) -> Sample {
        self.estimates.sample(model.as_str(), conversation, view, known)
    }

    /// Whether a model's template writes the calls of tools; `None` where nobody has found out.
    pub fn writes_calls(&self, model: &ModelKey) -> Option<bool> {
        self.estimates.writes_calls(model.as_str()).map(|(written, _)| written)
    }

    /// Whether that was learned since the server was last recognized. After a restart, its template may be another.
    pub fn knows_calls(&self, model: &ModelKey, recognized: u64) -> bool {
        self.estimates.writes_calls(model.as_str()).is_some_and(|(_, by)| by == recognized)
    }

    /// Keeps whether a model's template writes the calls of tools: what it does not write costs nothing. `recognized`: how often the
    /// server had been recognized that told it.
    pub fn note_calls(&self, model: &ModelKey, written: bool, recognized: u64) {
        self.estimates.note_calls(model.as_str(), (written, recognized));
    }

    /// Learns from a view that the server counted.
    pub fn learn(&self, model: &ModelKey, sample: &Sample, reported: Tokens) {
        self.estimates.learn(model.as_str(), sample, reported);
    }

    /// How sure an estimate of this model is.
    pub fn sureness(&self, model: &ModelKey) -> Sureness {
        if self.estimates.is_corrected(model.as_str()) { Sureness::Calibrated } else { Sureness::Estimated }
    }
}

/// What a server may add to a prompt that nobody here sees (tokens), and at most a quarter of its window: a system prompt of its
/// own, a template's preamble.
const ADDED: Tokens = 2048;

/// What is known of a prompt that a server says it has counted.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Its size, as it was planned.
    pub planned: Tokens,
    /// Whether that was counted.
    pub exact: bool,
    /// The window that it was sent to.
    pub window: Option<Tokens>,
    /// The most that its bytes can be, where they tell.
    pub most: Option<Tokens>,
}

/// Whether a server can have counted so many tokens in a prompt. `usage` is not taken on trust: one wrong number would be the
/// base of every later count of a conversation.
pub fn is_plausible(reported: Tokens, sent: Sent) -> bool {
    let Sent { planned, exact, window, most } = sent;
    let added = window.map_or(ADDED, |window| ADDED.min(window / 4));
    let (above, below) = match exact {
        true => (planned.saturating_add(planned / 4 + added / 4), planned / 2),
        false => (planned.saturating_mul(4).saturating_add(added), planned / 4),
    };
    window.is_none_or(|window| reported <= window)
        && can_be_of(reported, most)
        && reported <= above
        && (planned <= 512 || reported >= below)
}

/// Whether a prompt can have so many tokens, by the most that its bytes can be.
pub fn can_be_of(reported: Tokens, most: Option<Tokens>) -> bool {
    most.is_none_or(|most| reported <= most.saturating_add(ADDED))
}

/// The tokens to leave unused.
pub fn slack(window: Tokens, sureness: Sureness) -> Tokens {
    match sureness {
        Sureness::Counted | Sureness::Own(_) | Sureness::OwnUnchecked(_) => SLACK,
        _ => SLACK + (f64::from(window) * ESTIMATE_SLACK) as Tokens,
    }
}

#[cfg(test)]
mod reported {
    use super::*;

    #[test]
    fn a_size_that_cannot_be_is_not_taken() {
        let sent = |planned, exact, window| Sent { planned, exact, window, most: Some(planned * 6) };
        for (reported, sent, plausible) in [
            (1_000_000, sent(500, false, Some(4096)), false),
            (1_000_000, sent(500, false, None), false),
            (4097, sent(3000, false, Some(4096)), false),
            (4096, sent(3000, false, Some(4096)), true),
            // An estimate may be off by a lot, a count by little.
            (1400, sent(500, false, Some(4096)), true),
            (1400, sent(500, true, Some(4096)), false),
            (700, sent(500, true, Some(4096)), true),
            // More than its bytes, and far too little.
            (60_000, sent(8000, false, None), false),
            (1000, sent(8000, false, None), false),
            (3, sent(400, false, None), true),
        ] {
            assert_eq!(is_plausible(reported, sent), plausible, "{reported} {sent:?}");
        }
    }
}

#[cfg(all(test, feature = "engine"))]
mod tests;
