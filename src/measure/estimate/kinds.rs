//! What is believed of a model before any reply: what its chat template may be like, and how near the vocabulary is that its
//! texts are counted with. Each belief is one hypothesis; replies tell which of them holds (`mixture.rs`).

use std::sync::LazyLock;

use super::super::near::{Kinship, Near};
use super::row::{FEATURES, Feature, Ground};

/// What is believed at first.
#[derive(Debug, Clone)]
pub(super) struct Prior {
    /// Tokens for each number of a row.
    pub(super) means: [f64; FEATURES],
    /// How far these may be off: standard deviations.
    pub(super) deviations: [f64; FEATURES],
    /// What no weight explains, as a share of the near tokens: a standard deviation.
    pub(super) noise: f64,
    /// As above, of letters of three bytes and more: a standard deviation for each.
    pub(super) letters: f64,
    /// What a reply reports is unsure by so many tokens beside.
    pub(super) unsure: f64,
    /// It is for the model's own vocabulary.
    pub(super) own: bool,
    /// Whether a surprise makes it less sure of itself. One of a known template has to be given up instead, or it would
    /// learn from another template what it takes for texts.
    pub(super) doubts: bool,
}

/// How a template spells the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Not at all, and the call neither.
    Dropped,
    /// As the client sent them.
    Sent,
    /// As JSON written anew.
    Json,
    /// Each value as it is, in tags.
    Tags,
}

/// A chat template, as far as it costs tokens.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// What the names of models contain whose template this is.
    names: &'static [&'static str],
    /// Tokens around a message of the user, a reply, a tool result, a call and one of its arguments.
    around: [f64; 5],
    arguments: Form,
    /// What the assistant says beside its calls is there.
    asides: bool,
    /// Tool results are spelled as JSON strings.
    escapes: bool,
}

/// Names of models that were made of others: what their names say of those others tells nothing of the template.
const DERIVED: [&str; 4] = ["hermes", "distill", "functionary", "command"];

const fn kind(names: &'static [&'static str], around: [f64; 5], arguments: Form) -> Kind {
    Kind { names, around, arguments, asides: true, escapes: false }
}

const fn aside(kind: Kind) -> Kind {
    Kind { asides: false, ..kind }
}

const fn escaped(kind: Kind) -> Kind {
    Kind { escapes: true, ..kind }
}

/// Kinds of templates as they were found: fitted to recorded sessions rendered with the templates that llama.cpp's
/// repository collects, one token for each of their markers.
static KINDS: [Kind; 40] = [
    kind(&["qwen", "qwq", "mimo", "granite4", "granite-4"], [5.0, 5.0, 9.1, 10.5, 0.0], Form::Json),
    kind(
        &["qwen3-coder", "qwen3.5", "qwen3.6", "step-3.5", "nemotron-3", "nemotron3"],
        [5.0, 5.0, 10.0, 12.0, 5.0],
        Form::Tags,
    ),
    aside(kind(&["hermes"], [5.0, 5.0, 9.0, 10.3, 0.0], Form::Json)),
    escaped(aside(kind(&["llama3", "llama-3", "llama4", "llama-4"], [5.0, 5.0, 7.8, 7.6, 0.0], Form::Json))),
    kind(&["smollm3", "granite3", "granite-3", "lfm2"], [5.0, 5.0, 4.7, 0.4, 0.0], Form::Dropped),
    kind(&["gemma"], [5.0, 4.9, 6.4, 6.0, 1.2], Form::Tags),
    kind(&["phi", "apriel", "solar", "kimi"], [4.0, 4.0, 17.0, 26.0, 0.0], Form::Json),
    kind(&["deepseek"], [1.0, 3.8, 4.4, 0.0, 0.0], Form::Json),
    kind(&["deepseek", "distill"], [1.0, 2.1, 7.4, 7.0, 0.0], Form::Json),
    kind(&["deepseek", "distill"], [1.0, 2.1, 3.8, -1.3, 0.0], Form::Dropped),
    kind(&["deepseek-v3.2", "deepseek-v4"], [0.5, 3.3, 17.3, 27.0, 18.0], Form::Tags),
    escaped(kind(&["gpt-oss", "gptoss"], [3.9, 6.0, 10.4, 9.6, 0.4], Form::Json)),
    escaped(aside(kind(&["gpt-oss", "gptoss"], [3.9, 6.0, 9.7, 11.6, 0.0], Form::Json))),
    kind(&["glm"], [2.0, 4.9, 6.2, 2.8, 4.1], Form::Tags),
    kind(&["glm"], [1.0, 1.9, 5.1, 0.3, 2.2], Form::Tags),
    escaped(aside(kind(&["command", "cohere", "c4ai"], [5.0, 5.0, 22.9, 39.7, 0.4], Form::Json))),
    escaped(aside(kind(&["command", "cohere", "c4ai"], [3.0, 5.0, 22.5, 38.8, 0.4], Form::Json))),
    kind(&["command", "cohere", "c4ai"], [3.0, 2.9, 14.0, 20.6, 1.3], Form::Json),
    kind(&["kimi"], [5.7, 3.8, 10.2, 13.2, 0.7], Form::Json),
    kind(&["kimi-k3"], [17.7, 17.8, 17.8, 26.4, 11.4], Form::Tags),
    kind(&["minimax"], [4.9, 5.0, 13.6, 18.6, 6.2], Form::Tags),
    kind(&["minimax"], [4.9, 9.8, 17.5, 28.3, 15.2], Form::Tags),
    kind(&["laguna", "ling"], [6.0, 8.0, 6.1, 2.8, 4.1], Form::Tags),
    kind(&["hunyuan", "hy3"], [7.5, 24.0, 20.0, 32.9, 21.6], Form::Tags),
    aside(kind(&["mistral", "mixtral", "nemo"], [2.4, 0.7, 15.4, 24.6, 0.4], Form::Sent)),
    kind(&["mistral", "ministral", "devstral", "magistral"], [2.0, 1.0, 4.2, -0.3, 0.1], Form::Json),
    kind(&["seed"], [10.8, 10.0, 12.8, 18.0, 3.8], Form::Tags),
    kind(&["nemotron"], [7.0, 14.0, 14.4, 20.7, 0.0], Form::Json),
    kind(&["functionary"], [5.0, 7.9, 4.6, 0.1, 0.1], Form::Sent),
    // Models whose vocabulary does not have the markers of their template: each is several tokens.
    kind(&[], [13.7, 14.1, 14.5, 21.8, 0.0], Form::Json),
    aside(kind(&[], [13.7, 14.1, 14.5, 21.8, 0.0], Form::Json)),
    kind(&[], [13.7, 14.1, 14.8, 22.1, 5.0], Form::Tags),
    kind(&[], [13.3, 14.2, 7.3, 5.9, 0.0], Form::Dropped),
    kind(&[], [16.9, 17.9, 15.6, 24.0, 0.0], Form::Json),
    kind(&[], [21.3, 20.5, 15.7, 23.0, 0.0], Form::Json),
    kind(&[], [4.7, 18.1, 22.0, 38.0, 0.0], Form::Json),
    kind(&[], [4.6, 14.3, 26.6, 50.1, 0.0], Form::Json),
    kind(&[], [4.6, 14.3, 11.5, 15.7, 0.0], Form::Dropped),
    escaped(kind(&[], [14.2, 20.9, 14.6, 17.1, 0.4], Form::Json)),
    kind(&[], [9.7, 9.7, 10.5, 15.0, 5.0], Form::Tags),
];

/// How far the numbers around a message, a reply, a result, a call and an argument may be off in a template of one of these
/// kinds.
const NARROW: [f64; 5] = [0.3, 0.5, 1.5, 2.5, 1.0];

/// Any other template: what is put around, and how far that may be off.
const WIDE: ([f64; 5], [f64; 5]) = ([5.5, 7.0, 12.0, 16.0, 2.5], [5.0, 6.0, 8.0, 12.0, 5.0]);

/// Beliefs that hold for any template: a number of a row, its mean and its deviation.
const COMMON: [(Feature, f64, f64); 6] = [
    (Feature::Prompt, 20.0, 40.0),
    (Feature::NoSystem, 10.0, 30.0),
    (Feature::Tools, 90.0, 90.0),
    (Feature::Definitions, 1.0, 0.2),
    (Feature::Reasoning, 0.5, 0.5),
    (Feature::Media, 1.0, 0.3),
];

/// How far what is said, and what vocabularies treat in different ways, may be off: with the model's own vocabulary, its kin,
/// and any other.
const TEXTS: [(Feature, [f64; 3]); 8] = [
    (Feature::Words, [0.005, 0.06, 0.1]),
    (Feature::ResultWords, [0.01, 0.08, 0.06]),
    (Feature::Digits, [0.01, 0.3, 0.15]),
    (Feature::TwoBytes, [0.05, 0.2, 0.4]),
    (Feature::ThreeBytes, [0.05, 0.1, 0.25]),
    (Feature::Blanks, [0.01, 0.05, 0.075]),
    (Feature::Breaks, [0.03, 0.4, 0.6]),
    (Feature::Marks, [0.02, 0.03, 0.06]),
];

/// How far what a template does or does not do may be off from the whole or nothing.
const SWITCH: f64 = 0.03;

/// Shares of the texts that no weight explains.
const NOISE: [f64; 3] = [0.003, 0.035, 0.03];

/// Tokens that nothing explains, whatever the prompt holds: trimmed ends, joined messages.
const UNSURE: [f64; 3] = [1.5, 3.0, 3.0];

/// Llama 3 makes about so many tokens more of an East Asian letter than Qwen's words, and how far that may be off.
const LLAMA_THREE_BYTES: (f64, f64) = (0.16, 0.1);

/// Tokens of an East Asian letter that no weight explains where the vocabulary is not the model's own.
const LETTERS: f64 = 0.06;

/// Odds of the templates that a name tells of, against all others together; of those that are of no known kind, against the
/// known ones.
const NAMED: f64 = 0.95;
/// As above.
const OTHER: f64 = 0.2;

/// Odds of a template that spells tool results as JSON strings, where nothing tells of one, against one that does not.
const ESCAPED: f64 = 0.1;

/// How likely a vocabulary is that of a model whose name does not tell: a guess by what people run. Each takes a count of
/// every text, so those are left out that hardly anybody runs under a name that does not tell (Falcon's, GPT-2's, Mistral's
/// earlier one), and cl100k by itself: only East Asian texts tell it from Llama 3's, so both would be counted with for good.
const VOCABULARIES: [(Near, f64); 8] = [
    (Near::Qwen, 0.25),
    (Near::Llama3, 0.25),
    (Near::O200k, 0.1),
    (Near::Tekken, 0.1),
    (Near::Gemma, 0.12),
    (Near::Spm, 0.1),
    (Near::DeepSeek, 0.04),
    (Near::StarCoder, 0.04),
];

/// One hypothesis: what to count with, what is believed, and how likely that is (weights of a model add up to one).
pub(super) type Candidate = (Ground, &'static Prior, f64);

/// Priors by kind of template (known ones first) and by nearness of the vocabulary, and of Llama 3's.
static PRIORS: LazyLock<Vec<[Prior; 4]>> = LazyLock::new(|| {
    let known = KINDS.iter().map(|kind| (*kind, NARROW, false));
    let forms = [Form::Dropped, Form::Sent, Form::Json, Form::Tags];
    let switches = forms.into_iter().flat_map(|form| [false, true].map(|asides| (form, asides)));
    let other = switches.flat_map(|(arguments, asides)| {
        [false, true].map(|escapes| (Kind { names: &[], around: WIDE.0, arguments, asides, escapes }, WIDE.1, true))
    });
    let all = known.chain(other);
    all.map(|(kind, deviations, doubts)| {
        let [own, kin, any] = [0, 1, 2].map(|nearness| Prior { doubts, ..prior(&kind, &deviations, nearness) });
        let mut llama = own.clone();
        let letters = Feature::ThreeBytes as usize;
        (llama.means[letters], llama.deviations[letters]) = LLAMA_THREE_BYTES;
        llama.letters = LETTERS;
        [own, kin, any, llama]
    })
    .collect()
});

fn prior(kind: &Kind, deviations: &[f64; 5], nearness: usize) -> Prior {
    let mut out = Prior {
        means: [0.0; FEATURES],
        deviations: [0.0; FEATURES],
        noise: NOISE[nearness],
        letters: if nearness == 0 { 0.0 } else { LETTERS },
        unsure: UNSURE[nearness],
        own: nearness == 0,
        doubts: true,
    };
    let mut set = |feature: Feature, mean: f64, deviation: f64| {
        (out.means[feature as usize], out.deviations[feature as usize]) = (mean, deviation);
    };
    COMMON.into_iter().for_each(|(feature, mean, deviation)| set(feature, mean, deviation));
    for (feature, deviation) in TEXTS {
        let mean = if matches!(feature, Feature::Words | Feature::ResultWords) { 1.0 } else { 0.0 };
        set(feature, mean, deviation[nearness]);
    }
    let around = [Feature::Messages, Feature::Replies, Feature::Results, Feature::Calls, Feature::Parameters];
    for (at, feature) in around.into_iter().enumerate() {
        set(feature, kind.around[at], deviations[at]);
    }
    let texts = TEXTS[0].1[nearness] + SWITCH;
    let switch = |on: bool| if on { 1.0 } else { 0.0 };
    set(Feature::Asides, switch(kind.asides), texts);
    set(Feature::ResultEscapes, switch(kind.escapes), texts);
    let (arguments, blanks, values) = match kind.arguments {
        Form::Dropped => (0.0, (0.0, SWITCH), 0.0),
        Form::Sent => (1.0, (0.0, 0.1), 0.0),
        Form::Json => (1.0, (1.0, 0.15), 0.0),
        Form::Tags => (1.0, (0.6, 0.3), 0.97),
    };
    set(Feature::Arguments, arguments, texts);
    set(Feature::ArgumentBlanks, blanks.0, blanks.1);
    set(Feature::ArgumentValues, values, texts + 0.02);
    set(Feature::ArgumentEscapes, 0.0, texts);
    out
}

/// The hypotheses of a model of which only the name is known; of any model where the name misled (`anything`).
pub(super) fn of(name: &str, anything: bool) -> Vec<Candidate> {
    let name = name.to_lowercase();
    let (near, kinship) = Near::of(&name);
    let kinship = if anything { Kinship::Unknown } else { kinship };
    let every = |share: f64| VOCABULARIES.map(|(near, odds)| (near, Kinship::Own, share * odds));
    let mut grounds: Vec<(Near, Kinship, f64)> = match kinship {
        Kinship::Own => vec![(near, Kinship::Own, 0.98), (near, Kinship::Kin, 0.02)],
        Kinship::Kin => every(0.4).into_iter().chain([(near, Kinship::Kin, 0.6)]).collect(),
        Kinship::Unknown => {
            let kin = [Near::Qwen, Near::Spm, Near::StarCoder].map(|near| (near, Kinship::Unknown, 0.1));
            every(0.7).into_iter().chain(kin).collect()
        }
    };
    // The likeliest first: its rows stand for the model until a reply tells.
    grounds.sort_by(|a, b| b.2.total_cmp(&a.2).then((b.0 == near).cmp(&(a.0 == near))));
    let kinds = kinds(&name);
    let every = grounds.iter().flat_map(|ground| kinds.iter().map(move |kind| (ground, kind)));
    every
        .map(|((near, kinship, weight), (kind, share))| {
            let priors = &PRIORS[*kind];
            let prior = match kinship {
                Kinship::Own if *near == Near::Llama3 => &priors[3],
                Kinship::Own => &priors[0],
                Kinship::Kin => &priors[1],
                Kinship::Unknown => &priors[2],
            };
            (Ground::Near(*near), prior, weight * share)
        })
        .collect()
}

/// The kinds of templates that a model may have, by their place in [`PRIORS`], and how likely each is.
fn kinds(name: &str) -> Vec<(usize, f64)> {
    let derived = DERIVED.iter().find(|part| name.contains(*part));
    let fits = |kind: &Kind| match derived {
        Some(part) => kind.names.contains(part),
        None => kind.names.iter().any(|part| name.contains(part)),
    };
    let any = KINDS.iter().any(fits);
    let odds = |at: usize| match KINDS.get(at) {
        Some(kind) if fits(kind) => (1.0, 0.0, 0.0),
        Some(kind) => (0.0, if kind.escapes { ESCAPED } else { 1.0 }, 0.0),
        // The last bit of the place tells the one that escapes.
        None => (0.0, 0.0, if (at - KINDS.len()) % 2 == 1 { ESCAPED } else { 1.0 }),
    };
    let all = (0..PRIORS.len()).map(odds);
    let sums = all.clone().fold((0.0, 0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    let named = if any { NAMED } else { 0.0 };
    let share = |(fitting, known, other): (f64, f64, f64)| {
        let of = |part: f64, sum: f64| if sum > 0.0 { part / sum } else { 0.0 };
        let rest = (1.0 - OTHER) * of(known, sums.1) + OTHER * of(other, sums.2);
        named * of(fitting, sums.0) + (1.0 - named) * rest
    };
    all.map(share).enumerate().collect()
}

/// What is believed where texts are only counted by rule of thumb.
pub(super) fn rough() -> Vec<Candidate> {
    let last = PRIORS.len() - 1;
    vec![(Ground::Rough, &PRIORS[last][2], 1.0)]
}
