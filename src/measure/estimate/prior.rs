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
    /// What a reply reports is unsure by so many tokens beside.
    pub(super) unsure: f64,
}

/// What is believed of a model whose own vocabulary it is, of its kin, and of any: mean, and the deviations. Fitted to
/// recorded sessions in twenty templates, each with one or more of the vocabularies: `cargo bench --bench estimates`.
const BELIEFS: [(Feature, f64, [f64; 3]); FEATURES] = [
    (Feature::Prompt, 15.0, [20.0, 30.0, 20.0]),
    (Feature::NoSystem, 8.0, [25.0, 25.0, 25.0]),
    (Feature::Messages, 5.5, [2.5, 5.0, 5.0]),
    (Feature::Replies, 6.0, [3.0, 6.0, 6.0]),
    (Feature::Results, 12.0, [6.0, 10.0, 8.0]),
    (Feature::Calls, 17.0, [10.0, 10.0, 10.0]),
    (Feature::Tools, 110.0, [80.0, 80.0, 80.0]),
    (Feature::Words, 1.0, [0.005, 0.06, 0.1]),
    (Feature::Asides, 0.95, [0.2, 0.2, 0.25]),
    (Feature::ResultWords, 1.0, [0.01, 0.08, 0.06]),
    (Feature::Arguments, 0.95, [0.15, 0.3, 0.25]),
    (Feature::Reasoning, 0.5, [0.5, 0.5, 0.5]),
    (Feature::Definitions, 1.1, [0.25, 0.25, 0.3]),
    (Feature::Media, 1.0, [0.3, 0.3, 0.3]),
    (Feature::ResultEscapes, 0.0, [0.1, 0.4, 0.3]),
    (Feature::ArgumentEscapes, 0.4, [0.5, 0.5, 0.3]),
    (Feature::Digits, 0.0, [0.01, 0.3, 0.15]),
    (Feature::TwoBytes, 0.0, [0.05, 0.2, 0.4]),
    (Feature::ThreeBytes, 0.0, [0.05, 0.1, 0.25]),
    (Feature::Blanks, 0.0, [0.01, 0.05, 0.075]),
    (Feature::Breaks, 0.0, [0.03, 0.4, 0.6]),
    (Feature::Marks, 0.0, [0.02, 0.03, 0.06]),
];

/// Shares of the texts that no weight explains.
const NOISE: [f64; 3] = [0.003, 0.035, 0.03];

/// Tokens that nothing explains, whatever the prompt holds: trimmed ends, joined messages.
const UNSURE: [f64; 3] = [2.0, 3.0, 3.0];

/// Llama 3 makes about so many tokens more of an East Asian letter than Qwen's words, and how far that may be off.
const LLAMA_THREE_BYTES: (f64, f64) = (0.16, 0.1);

static PRIORS: [Prior; 3] = [prior(0), prior(1), prior(2)];

static CL100K: Prior = {
    let mut out = prior(0);
    (out.means[Feature::ThreeBytes as usize], out.deviations[Feature::ThreeBytes as usize]) = LLAMA_THREE_BYTES;
    out
};

/// What is believed of a vocabulary of some kinship, by its place in [`BELIEFS`].
const fn prior(kinship: usize) -> Prior {
    let mut out =
        Prior { means: [0.0; FEATURES], deviations: [0.0; FEATURES], noise: NOISE[kinship], unsure: UNSURE[kinship] };
    let mut at = 0;
    while at < BELIEFS.len() {
        let (feature, mean, deviations) = BELIEFS[at];
        out.means[feature as usize] = mean;
        out.deviations[feature as usize] = deviations[kinship];
        at += 1;
    }
    out
}

/// What is believed of a model at first.
pub(super) fn of(near: Near, kinship: Kinship) -> &'static Prior {
    match (near, kinship) {
        (Near::Cl100k, Kinship::Own) => &CL100K,
        (_, Kinship::Own) => &PRIORS[0],
        (_, Kinship::Kin) => &PRIORS[1],
        (_, Kinship::Unknown) => &PRIORS[2],
    }
}

/// What is believed where texts are only counted by rule of thumb.
pub(super) fn rough() -> &'static Prior {
    &PRIORS[2]
}

/// Names of models whose template is that of Llama 3 and 4, which spells tool results as JSON does, and of those that have the
/// vocabulary alone.
const LLAMA: [&[&str]; 2] = [&["llama3", "llama-3", "llama4", "llama-4"], &["hermes", "distill", "r1-llama"]];

/// What the texts of a model are counted with.
pub(super) fn ground(name: &str, near: Near) -> Ground {
    let name = name.to_lowercase();
    let [llama, others] = LLAMA.map(|names| names.iter().any(|n| name.contains(n)));
    Ground::Near { near, escaped: near == Near::Cl100k && llama && !others }
}
