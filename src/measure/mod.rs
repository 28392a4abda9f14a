//! What do we have? Fills [`crate::plan::Facts`]; each number with where it came from.

pub mod afford;
pub mod count;
pub mod family;
pub mod hardware;
pub mod memory;
pub mod model_file;
pub mod own;
pub mod process;
pub mod spread;
pub mod tokens;
pub mod window;

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Tokens};
use crate::plan::{Facts, emergency};
use family::Family;
use tokens::{Calibration, Estimates};

/// A prompt whose exact size is known, to build the next count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// How many messages of the body it held.
    pub messages: usize,
    /// Its size.
    pub tokens: Tokens,
}

/// How sure a count is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sureness {
    /// Counted by the server.
    Counted,
    /// Counted with the model's own vocabulary, and the server counts the same or its replies told the difference.
    Own,
    /// Counted with the model's own vocabulary, but the server renders prompts in a way of its own, which no reply has
    /// told the size of yet: errs high.
    OwnUnchecked,
    /// Estimated, and corrected by what the server reported.
    Calibrated,
    /// Estimated; nothing was reported yet.
    Estimated,
}

impl Sureness {
    /// Whether it is a count, not an estimate.
    pub fn is_exact(self) -> bool {
        matches!(self, Sureness::Counted | Sureness::Own | Sureness::OwnUnchecked)
    }

    /// As it stands in headers and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Sureness::Counted => "counted by the server",
            Sureness::Own => "counted with the model's own vocabulary",
            Sureness::OwnUnchecked => {
                "counted with the model's own vocabulary, with an allowance for the server's template"
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

/// Counts and calibrations of everything in use.
#[derive(Default)]
pub struct Measure {
    /// Windows of the models in use.
    pub windows: window::Windows,
    /// Vocabularies of the models in use.
    pub counters: own::Counters,
    estimates: Estimates,
    calibrations: Mutex<HashMap<String, Calibration>>,
}

impl Measure {
    /// Nothing is known yet; `machine` is where models are fitted.
    pub fn on(machine: afford::Machine) -> Measure {
        Measure { windows: window::Windows::on(machine), ..Measure::default() }
    }

    /// The facts of a request with estimated costs: everything but window and reserve.
    ///
    /// `model` names the calibration (upstream and model). `known` is a prompt of this very conversation and view whose
    /// size the server told.
    pub fn facts(&self, model: &str, conversation: &Conversation, view: &View, known: Option<Known>) -> Facts {
        let family = Family::of(model);
        let mut facts = self.estimated(family, conversation, view);
        let factor = self.factor(model);
        match known.filter(|k| k.messages <= conversation.body.len()) {
            None => emergency::scale(&mut facts, factor),
            Some(known) => {
                // What was counted is exact as a whole; what is new is estimated, and errs high.
                let raw = total(&facts, 0..known.messages);
                let exact = f64::from(known.tokens) / f64::from(raw.max(1));
                let mut new = facts.clone();
                emergency::scale(&mut facts, exact);
                emergency::scale(&mut new, tokens::factor_of_new(family, factor, exact));
                facts.costs[known.messages..].clone_from_slice(&new.costs[known.messages..]);
            }
        }
        facts
    }

    /// The facts as estimated, without any correction.
    fn estimated(&self, family: Option<Family>, conversation: &Conversation, view: &View) -> Facts {
        let (system, tools) = self.estimates.head(family, conversation);
        Facts {
            system,
            tools,
            costs: self.estimates.body(family, conversation),
            edit_costs: view.edits.iter().map(|e| edit_cost(family, e)).collect(),
            view: view.clone(),
            ..Facts::default()
        }
    }

    /// The estimated cost of each message of the body.
    pub fn costs(&self, model: &str, conversation: &Conversation) -> Vec<crate::plan::Cost> {
        self.estimates.body(Family::of(model), conversation)
    }

    /// Tokens of a text, erring high.
    pub fn count(&self, model: &str, text: &str) -> Tokens {
        (f64::from(tokens::estimate_for(Family::of(model), text)) * self.factor(model)).ceil() as Tokens
    }

    /// The factor that makes estimates of a model err high.
    pub fn factor(&self, model: &str) -> f64 {
        let family = Family::of(model);
        self.calibrations.lock().get(model).map_or_else(|| Calibration::default().factor(family), |c| c.factor(family))
    }

    /// How sure an estimate of this model is.
    pub fn sureness(&self, model: &str) -> Sureness {
        match self.calibrations.lock().get(model) {
            Some(c) if c.is_known() => Sureness::Calibrated,
            _ => Sureness::Estimated,
        }
    }

    /// Learns from a view that the server counted. `estimated` is what [`Self::raw_total`] took it for.
    pub fn learn(&self, model: &str, estimated: Tokens, reported: Tokens) {
        self.calibrations.lock().entry(model.to_owned()).or_default().learn(estimated, reported);
    }

    /// The uncorrected estimate of a view.
    pub fn raw_total(&self, model: &str, conversation: &Conversation, view: &View) -> Tokens {
        total(&self.estimated(Family::of(model), conversation, view), 0..conversation.body.len())
    }

    /// Tokens of what an edit put in place, erring high.
    pub fn edit_cost(&self, model: &str, edit: &Edit) -> Tokens {
        (f64::from(edit_cost(Family::of(model), edit)) * self.factor(model)).ceil() as Tokens
    }
}

/// The tokens to leave unused.
pub fn slack(window: Tokens, sureness: Sureness) -> Tokens {
    match sureness {
        Sureness::Counted | Sureness::Own | Sureness::OwnUnchecked => SLACK,
        _ => SLACK + (f64::from(window) * ESTIMATE_SLACK) as Tokens,
    }
}

/// Estimated tokens of what an edit put in place.
pub fn edit_cost(family: Option<Family>, edit: &Edit) -> Tokens {
    let (Edit::Text { text, .. } | Edit::Arguments { arguments: text, .. } | Edit::Fold { brief: text, .. }) = edit;
    tokens::AROUND + tokens::estimate_for(family, text)
}

/// Tokens of a view of the first messages, as facts have them.
fn total(facts: &Facts, range: std::ops::Range<usize>) -> Tokens {
    let mut costs: Vec<Tokens> = facts.costs[range.clone()].iter().map(crate::plan::Cost::total).collect();
    let mut brief = 0;
    for (edit, tokens) in facts.view.edits.iter().zip(&facts.edit_costs) {
        match edit {
            Edit::Text { at, .. } if *at < costs.len() => {
                costs[*at] = tokens + facts.costs[*at].calls.iter().sum::<Tokens>();
            }
            Edit::Arguments { at, call, .. } if *at < costs.len() => {
                let before = facts.costs[*at].calls.get(*call).copied().unwrap_or(0);
                costs[*at] = costs[*at].saturating_sub(before) + tokens;
            }
            Edit::Fold { from, to, keep, .. } if *to <= costs.len() => {
                brief = *tokens;
                (*from..*to).filter(|i| !keep.contains(i)).for_each(|i| costs[i] = 0);
            }
            _ => {}
        }
    }
    facts.head() + costs.iter().sum::<Tokens>() + brief
}

#[cfg(all(test, feature = "engine"))]
mod tests;
