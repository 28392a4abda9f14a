//! What is believed of a model before any reply, by how near the vocabulary is that its texts are counted with.

use super::super::near::{Kinship, Near};
use super::row::{FEATURES, Feature, Ground};

/// What is believed at first.
#[derive(Debug)]
pub(super) struct Prior {
    /// Tokens for each number of a row.
    pub(super) means: [f64; FEATURES],
    /// How far these may be off: standard deviations.
    pub(super) deviations: [f64; FEATURES],
    /// What no weight explains, as a share of the near tokens: a standard deviation.
    pub(super) noise: f64,
}

/// What templates add, whatever the vocabulary: mean and deviation.
const TEMPLATE: [(Feature, f64, f64); 9] = [
    (Feature::Prompt, 15.0, 20.0),
    (Feature::NoSystem, 8.0, 25.0),
    (Feature::Messages, 5.5, 2.5),
    (Feature::Replies, 6.0, 3.0),
    (Feature::Results, 12.0, 10.0),
    (Feature::Calls, 17.0, 10.0),
    (Feature::Tools, 110.0, 60.0),
    (Feature::ArgumentEscapes, 0.4, 0.5),
    (Feature::Media, 1.0, 0.3),
];

/// What is believed of a vocabulary that is the model's own, of one that is its kin, and of any: mean, and the deviations.
const TEXTS: [(Feature, f64, [f64; 3]); 13] = [
    (Feature::Words, 1.0, [0.01, 0.06, 0.1]),
    (Feature::Asides, 0.95, [0.2, 0.2, 0.25]),
    (Feature::ResultWords, 1.0, [0.02, 0.08, 0.12]),
    (Feature::Arguments, 0.95, [0.15, 0.2, 0.25]),
    (Feature::Reasoning, 0.5, [0.5, 0.5, 0.5]),
    (Feature::Definitions, 1.1, [0.25, 0.25, 0.3]),
    (Feature::ResultEscapes, 0.0, [0.1, 0.2, 0.3]),
    (Feature::Digits, 0.0, [0.01, 0.15, 0.3]),
    (Feature::TwoBytes, 0.0, [0.05, 0.2, 0.4]),
    (Feature::ThreeBytes, 0.0, [0.05, 0.2, 0.5]),
    (Feature::Blanks, 0.0, [0.01, 0.05, 0.15]),
    (Feature::Breaks, 0.0, [0.03, 0.2, 0.3]),
    (Feature::Marks, 0.0, [0.02, 0.06, 0.12]),
];

/// Shares of the texts that no weight explains, for each kinship.
const NOISE: [f64; 3] = [0.005, 0.015, 0.03];

static PRIORS: [Prior; 3] = [prior(0), prior(1), prior(2)];

/// What is believed of a vocabulary of some kinship, by its place in [`TEXTS`].
const fn prior(kinship: usize) -> Prior {
    let mut out = Prior { means: [0.0; FEATURES], deviations: [0.0; FEATURES], noise: NOISE[kinship] };
    let mut at = 0;
    while at < TEMPLATE.len() {
        let (feature, mean, deviation) = TEMPLATE[at];
        out.means[feature as usize] = mean;
        out.deviations[feature as usize] = deviation;
        at += 1;
    }
    at = 0;
    while at < TEXTS.len() {
        let (feature, mean, deviations) = TEXTS[at];
        out.means[feature as usize] = mean;
        out.deviations[feature as usize] = deviations[kinship];
        at += 1;
    }
    out
}

/// What is believed of a model at first.
pub(super) fn of(kinship: Kinship) -> &'static Prior {
    &PRIORS[match kinship {
        Kinship::Own => 0,
        Kinship::Kin => 1,
        Kinship::Unknown => 2,
    }]
}

/// What the texts of a model are counted with: the templates of Llama 3 spell tool results as JSON does.
pub(super) fn ground(near: Near, kinship: Kinship) -> Ground {
    Ground::Near { near, escaped: near == Near::Cl100k && kinship == Kinship::Own }
}
