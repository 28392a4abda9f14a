//! The settings a profile may override, as layers: what one place says of them, and what holds when all have spoken.
//!
//! A setting is one line in `settings!` and one in `config.toml`. No layer is read twice, and none is ever changed.

use crate::admission::Listing;
use crate::conversation::Tokens;
use crate::conversation::managed::Edits;
use crate::plan::{ClearLine, FoldAt, KeepRecent, Policy, ResultRules, Size, Strategy, TemplateFacts};

use super::file::Layer;
use super::model::SizeClass;
use super::problem::Problem;
use super::written::{self as read, Sourced, Value};

/// Declares the settings of one table: their names, a layer that may leave any of them out, and the whole.
macro_rules! settings {
    ($keys:ident, $layer:ident, $whole:ident, $about:literal,
     $($(#[$doc:meta])* $key:ident: $type:ty = $read:expr, $show:expr;)*) => {
        /// The keys of the table, in the order they are shown.
        pub(crate) const $keys: &[&str] = &[$(stringify!($key)),*];

        #[doc = concat!($about, ", as far as one place says.")]
        #[derive(Debug, Clone, Default, PartialEq)]
        pub(crate) struct $layer {
            $($(#[$doc])* pub(crate) $key: Option<Sourced<$type>>,)*
        }

        #[doc = concat!($about, ", each with where it comes from.")]
        #[derive(Debug, Clone, PartialEq)]
        pub struct $whole {
            $($(#[$doc])* pub $key: Sourced<$type>,)*
        }

        #[allow(dead_code, reason = "not every table needs every method")]
        impl $layer {
            /// Reads the keys below `prefix`; wrong values become problems and are left out.
            pub(crate) fn read(layer: &Layer, prefix: &str, problems: &mut Vec<Problem>) -> $layer {
                $layer {
                    $($key: layer.values.get(&format!("{prefix}.{}", stringify!($key)))
                        .and_then(|written| written.read($read, problems)),)*
                }
            }

            /// This layer, and `below` where it is silent.
            pub(crate) fn or(&self, below: &$layer) -> $layer {
                $layer { $($key: self.$key.clone().or_else(|| below.$key.clone()),)* }
            }

            /// This layer over what already holds.
            pub(crate) fn over(&self, below: &$whole) -> $whole {
                $whole { $($key: self.$key.clone().unwrap_or_else(|| below.$key.clone()),)* }
            }

            /// The whole, if nothing is left out.
            pub(crate) fn whole(&self) -> Option<$whole> {
                Some($whole { $($key: self.$key.clone()?,)* })
            }
        }

        impl $whole {
            /// Key, value and source of each setting, as text.
            pub(crate) fn shown(&self) -> Vec<(String, String, String)> {
                vec![$((
                    stringify!($key).to_owned(),
                    ($show)(&self.$key.value),
                    self.$key.source.clone(),
                )),*]
            }
        }
    };
}

settings! {
    CONTEXT_KEYS, ContextLayer, Context, "The settings of `[context]`",
    /// One tool result larger than this is evicted when it arrives.
    evict_over: Size = read::size, read::show_size;
    /// One tool result larger than this is condensed by the digest model when it arrives.
    digest_over: Option<Size> = read::size_or_off, read::show_size_or_off;
    /// Which model condenses results.
    digest_model: Option<OtherModel> = digest_model, show_digest_model;
    /// Pressure from which old tool results are cleared.
    clear_at: f64 = read::share, f64::to_string;
    /// Pressure that clearing goes down to.
    clear_to: f64 = read::share, f64::to_string;
    /// Which line clearing waits for.
    clear_line: ClearLine = read::clear_line, read::show_clear_line;
    /// Pressure from which old steps are folded into a brief.
    summarize_at: f64 = read::share, f64::to_string;
    /// Pressure that folding goes down to.
    summarize_to: f64 = read::share, f64::to_string;
    /// Whether a fold comes once the prompt passes `summarize_at`, or only where it would not fit otherwise.
    fold_at: FoldAt = read::fold_at, read::show_fold_at;
    /// Newest messages that are neither cleared nor folded.
    keep_recent: KeepRecent = read::keep_recent, read::show_keep_recent;
    /// Names of tools whose results stay.
    never_clear: Vec<String> = read::names, |names: &Vec<String>| format!("{names:?}");
    /// Whether progress output is shown in its final state.
    clean: bool = read::boolean, bool::to_string;
    /// What to do when clearing is not enough.
    strategy: Strategy = read::strategy, read::show_strategy;
    /// Most tokens that a model may write into a brief.
    summary_max_tokens: Tokens = read::brief_tokens, Tokens::to_string;
    /// The temperature of summaries and digests.
    summary_temperature: f64 = read::temperature, f64::to_string;
    /// Which model writes briefs.
    summary_model: SummaryModel = summary_model, SummaryModel::to_string;
    /// Turns after which there is a fold, whatever the pressure; 0 for none.
    fold_every_turns: u64 = read::at_most, u64::to_string;
    /// Tool calls after which there is a fold; 0 for none.
    fold_every_calls: u64 = read::at_most, u64::to_string;
    /// Seconds after a fold in which nothing is rewritten short of the wall.
    cooldown_seconds: u64 = read::at_most, u64::to_string;
    /// Turns after a fold in which nothing is rewritten short of the wall.
    cooldown_turns: u64 = read::at_most, u64::to_string;
    /// Which model names conversations.
    title_model: Option<OtherModel> = digest_model, show_digest_model;
    /// Whether to summarize ahead of need, between requests.
    background: bool = read::boolean, bool::to_string;
    /// Whether the model gets a tool to read back what left its prompt.
    recall: bool = read::boolean, bool::to_string;
    /// Whether what the last message points at comes back by itself.
    recall_ahead: bool = read::auto_or_off, read::show_auto_or_off;
    /// Whether the model gets a tool to say that a task is done.
    done_tool: bool = read::boolean, bool::to_string;
    /// Whether new conversations begin with the rules of their project.
    rules: bool = read::boolean, bool::to_string;
    /// What is done with a client's tools.
    tools: Listing = read::listing, |listing: &Listing| listing.as_str().to_owned();
    /// What is done with a client's system text.
    system: Listing = read::system_listing, |listing: &Listing| listing.as_str().to_owned();
    /// Most tokens of one section of it, where it is said by index.
    system_section_max_tokens: Tokens = read::brief_tokens, Tokens::to_string;
    /// Most tokens of all of it.
    system_max_tokens: Tokens = read::brief_tokens, Tokens::to_string;
}

settings! {
    TEMPLATE_KEYS, TemplateLayer, Template, "Facts about a chat template, the `[template]` of a profile",
    /// User and assistant turns must alternate strictly.
    strict_alternation: bool = read::boolean, bool::to_string;
    /// A system message after the first is accepted and kept.
    later_system: bool = read::boolean, bool::to_string;
    /// The template has a `tool` role.
    tool_role: bool = read::boolean, bool::to_string;
    /// Length that a tool call id must have; 0 when any id is accepted.
    tool_call_id_length: Option<usize> = read::id_length, |length: &Option<usize>| length.unwrap_or(0).to_string();
}

/// Folds at a pace of the user's; 0 for none of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Turns after which there is a fold.
    pub fold_every_turns: u64,
    /// Tool calls after which there is a fold.
    pub fold_every_calls: u64,
    /// Seconds after a fold in which nothing is rewritten short of the wall.
    pub cooldown_seconds: u64,
    /// Turns after a fold in which nothing is rewritten short of the wall.
    pub cooldown_turns: u64,
}

/// The settings of `[context]` as one place says them: for all models, and what differs for those of a size
/// (`[size.small]`, …).
#[derive(Debug, Clone, Default)]
pub(crate) struct Tiers {
    pub(crate) all: ContextLayer,
    pub(crate) sizes: [ContextLayer; 3],
}

impl Tiers {
    /// Reads `[context]` and the tables of sizes; wrong values become problems and are left out.
    pub(crate) fn read(layer: &Layer, problems: &mut Vec<Problem>) -> Tiers {
        Tiers {
            all: ContextLayer::read(layer, "context", problems),
            sizes: SizeClass::ALL.map(|size| ContextLayer::read(layer, &format!("size.{}", size.name()), problems)),
        }
    }

    /// What it says for a model of this size; of an unknown size, only what it says for all.
    pub(crate) fn of(&self, size: Option<SizeClass>) -> ContextLayer {
        match size {
            Some(size) => self.sizes[size as usize].or(&self.all),
            None => self.all.clone(),
        }
    }

    /// All that it says, table by table.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &ContextLayer> {
        std::iter::once(&self.all).chain(&self.sizes)
    }
}

/// A model of a named upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherModel {
    /// Name of a configured upstream.
    pub upstream: String,
    /// The model's id there.
    pub model: String,
}

fn show_digest_model(model: &Option<OtherModel>) -> String {
    model.as_ref().map_or_else(|| "\"\"".to_owned(), |m| format!("{}/{}", m.upstream, m.model))
}

fn digest_model(value: &Value) -> Result<Option<OtherModel>, String> {
    let wanted = "must be \"\" (none) or \"UPSTREAM/MODEL\"";
    let text = read::any_text(value).map_err(|_| wanted.to_owned())?;
    match text.split_once('/') {
        _ if text.is_empty() => Ok(None),
        Some((upstream, model)) if !upstream.is_empty() && !model.is_empty() => {
            Ok(Some(OtherModel { upstream: upstream.to_owned(), model: model.to_owned() }))
        }
        _ => Err(wanted.to_owned()),
    }
}

/// Which model writes the briefs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SummaryModel {
    /// The conversation's own model.
    Own,
    /// The model that windowsill serves itself.
    Embedded,
    /// A model of a named upstream.
    Other {
        /// Name of a configured upstream.
        upstream: String,
        /// The model's id there.
        model: String,
    },
}

impl std::fmt::Display for SummaryModel {
    /// As it is written in the config.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SummaryModel::Own => f.write_str("\"\""),
            SummaryModel::Embedded => f.write_str("embedded"),
            SummaryModel::Other { upstream, model } => write!(f, "{upstream}/{model}"),
        }
    }
}

fn summary_model(value: &Value) -> Result<SummaryModel, String> {
    let wanted = "must be \"\" (the conversation's own model), \"UPSTREAM/MODEL\" or \"embedded\"";
    let text = read::any_text(value).map_err(|_| wanted.to_owned())?;
    match text.split_once('/') {
        _ if text.is_empty() => Ok(SummaryModel::Own),
        _ if text == "embedded" => Ok(SummaryModel::Embedded),
        Some((upstream, model)) if !upstream.is_empty() && !model.is_empty() => {
            Ok(SummaryModel::Other { upstream: upstream.to_owned(), model: model.to_owned() })
        }
        _ => Err(wanted.to_owned()),
    }
}

/// A threshold and where it goes down to: `(name, its value, name of the target, the target)`.
type Pair<'a> = (&'static str, &'a Sourced<f64>, &'static str, &'a Sourced<f64>);

impl Context {
    fn pairs(&self) -> [Pair<'_>; 2] {
        [
            ("clear_at", &self.clear_at, "clear_to", &self.clear_to),
            ("summarize_at", &self.summarize_at, "summarize_to", &self.summarize_to),
        ]
    }

    /// A problem for each target that is not below its threshold, at `place` or else where one of the two is set.
    pub(crate) fn check(&self, place: Option<&str>) -> Vec<Problem> {
        let wrong = |(at_name, at, to_name, to): Pair| {
            (to.value >= at.value).then(|| {
                let message = format!(
                    "`{to_name}` ({}, {}) must be below `{at_name}` ({}, {})",
                    to.value, to.source, at.value, at.source
                );
                let set = if at.source == "default" { &to.source } else { &at.source };
                let room = (at.value * 2.0 / 3.0 * 100.0).floor() / 100.0;
                Problem::new(place.unwrap_or(set), message).hint(format!("for instance, `{to_name} = {room}`"))
            })
        };
        self.pairs().into_iter().filter_map(wrong).collect()
    }

    /// The pace of folds.
    pub(crate) fn triggers(&self) -> Triggers {
        Triggers {
            fold_every_turns: self.fold_every_turns.value,
            fold_every_calls: self.fold_every_calls.value,
            cooldown_seconds: self.cooldown_seconds.value,
            cooldown_turns: self.cooldown_turns.value,
        }
    }

    /// The policy these settings and the template's facts make.
    pub(crate) fn policy(&self, template: &Template) -> Policy {
        Policy {
            results: ResultRules {
                evict_over: self.evict_over.value,
                // Without a model to write them there are none.
                digest_over: self.digest_over.value.filter(|_| self.digest_model.value.is_some()),
                never_clear: self.never_clear.value.clone(),
                clean: self.clean.value,
            },
            clear_at: self.clear_at.value,
            clear_to: self.clear_to.value,
            clear_line: self.clear_line.value,
            summarize_at: self.summarize_at.value,
            summarize_to: self.summarize_to.value,
            fold_at: self.fold_at.value,
            keep_recent: self.keep_recent.value,
            strategy: self.strategy.value,
            summary_max_tokens: self.summary_max_tokens.value,
            template: TemplateFacts {
                strict_alternation: template.strict_alternation.value,
                later_system: template.later_system.value,
                tool_role: template.tool_role.value,
                tool_call_id_length: template.tool_call_id_length.value,
            },
            client: Edits::default(),
        }
    }
}

impl ContextLayer {
    /// This layer over `below`, where a threshold of one meets a target of the other: the one below gives way, and its
    /// source says so. Layers are checked on their own when they are loaded, but any profile may meet any config.
    pub(crate) fn settled_over(&self, below: &Context) -> Context {
        let defaults = Policy::default();
        let mut whole = self.over(below);
        let clear = defaults.clear_to / defaults.clear_at;
        settle(self.clear_at.is_some(), &mut whole.clear_at, &mut whole.clear_to, clear);
        let summarize = defaults.summarize_to / defaults.summarize_at;
        settle(self.summarize_at.is_some(), &mut whole.summarize_at, &mut whole.summarize_to, summarize);
        whole
    }
}

/// Moves the weaker of a threshold and its target so that the target lies below, `ratio` times the threshold.
fn settle(threshold_wins: bool, at: &mut Sourced<f64>, to: &mut Sourced<f64>, ratio: f64) {
    if to.value < at.value {
        return;
    }
    if threshold_wins {
        to.source = format!("{}, lowered from {} to stay below the threshold", to.source, to.value);
        to.value = at.value * ratio;
    } else {
        at.source = format!("{}, raised from {} to stay above its target", at.source, at.value);
        at.value = (to.value / ratio).min(1.0);
    }
}

impl Template {
    /// What holds for a template nobody knows.
    pub(crate) fn unknown() -> Template {
        fn default<T>(value: T) -> Sourced<T> {
            Sourced { value, source: "default".to_owned() }
        }
        let facts = TemplateFacts::default();
        Template {
            strict_alternation: default(facts.strict_alternation),
            later_system: default(facts.later_system),
            tool_role: default(facts.tool_role),
            tool_call_id_length: default(facts.tool_call_id_length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(value: f64, source: &str) -> Sourced<f64> {
        Sourced { value, source: source.to_owned() }
    }

    #[test]
    fn the_weaker_of_a_pair_gives_way() {
        let (mut at, mut to) = (from(0.3, "environment"), from(0.4, "profile x"));
        settle(true, &mut at, &mut to, 0.5);
        assert_eq!((at.value, to.value), (0.3, 0.15));
        assert_eq!(to.source, "profile x, lowered from 0.4 to stay below the threshold");

        let (mut at, mut to) = (from(0.3, "profile x"), from(0.4, "environment"));
        settle(false, &mut at, &mut to, 0.5);
        assert_eq!((at.value, to.value), (0.8, 0.4));

        let (mut at, mut to) = (from(0.3, "profile x"), from(0.99, "environment"));
        settle(false, &mut at, &mut to, 0.5);
        assert!(to.value < at.value);
    }

    #[test]
    fn a_pair_in_order_is_left_alone() {
        let (mut at, mut to) = (from(0.6, "a"), from(0.4, "b"));
        settle(true, &mut at, &mut to, 0.5);
        assert_eq!((at, to), (from(0.6, "a"), from(0.4, "b")));
    }

    #[test]
    fn a_summary_model_names_its_upstream_up_to_the_first_slash() {
        let read = |text: &str| summary_model(&Value::Text(text.to_owned()));
        assert_eq!(read(""), Ok(SummaryModel::Own));
        let other = SummaryModel::Other { upstream: "gpu".into(), model: "hf.co/a/b".into() };
        assert_eq!(read("gpu/hf.co/a/b"), Ok(other));
        assert_eq!(read("embedded"), Ok(SummaryModel::Embedded));
        for wrong in ["gpu", "/model", "gpu/"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
