//! Policy: thresholds, what is kept, what may be touched. Plain data, filled by `config` from defaults, config file,
//! profile, request header, environment and flags.

use crate::conversation::Tokens;
use crate::conversation::managed::Edits;

/// What to do when clearing is not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Fold old steps into a brief that a model writes (with the part made without a model).
    Summarize,
    /// Fold old steps into a short reminder made without a model.
    Truncate,
    /// Never fold: when evicting and clearing are not enough, the request is refused with the counts.
    Off,
}

/// A size that is either a share of the window or a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Share of the window, above 0 and at most 1.
    Share(f64),
    /// Tokens.
    Tokens(Tokens),
}

impl Size {
    /// The size in tokens at a window of `window` tokens.
    pub fn tokens(self, window: Tokens) -> Tokens {
        match self {
            Size::Share(share) => (f64::from(window) * share) as Tokens,
            Size::Tokens(n) => n,
        }
    }
}

/// Which line a fold waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldAt {
    /// It comes once the prompt passes `summarize_at`, if it goes as deep as the lines promise.
    Line,
    /// It comes only where the prompt would not fit otherwise.
    Wall,
    /// It comes at once, whatever the prompt takes and whatever it costs: a pace asks for it, or a task is done.
    Now,
}

/// Which line a clearing waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearLine {
    /// It comes from `clear_at` on, as soon as it frees enough for what the server must evaluate again.
    Pays,
    /// It comes once the prompt passes `clear_at`, whatever that costs, if it frees as much as a step takes.
    Line,
    /// It comes only where the prompt would not fit otherwise.
    Wall,
}

/// How many of the newest messages are neither cleared nor folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepRecent {
    /// As many as came out best at the window: 6, and 4 from 16,384 tokens on (docs/cache-economics.md).
    ByWindow,
    /// This many.
    Messages(usize),
}

impl KeepRecent {
    /// From this window on fewer messages are kept (tokens): what four messages hold is enough to go on with there, and
    /// each more is evaluated again by every rewrite.
    const LARGE: Tokens = 16_384;

    /// Messages at a window of `window` tokens.
    pub fn messages(self, window: Tokens) -> usize {
        match self {
            KeepRecent::Messages(n) => n,
            KeepRecent::ByWindow if window < Self::LARGE => 6,
            KeepRecent::ByWindow => 4,
        }
    }
}

/// Facts about a model's chat template that decide which shapes of conversation it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFacts {
    /// User and assistant turns must alternate strictly (tool blocks aside): Mistral, Gemma.
    pub strict_alternation: bool,
    /// A system message after the first is accepted and kept: false for Mistral, Qwen3.5, gpt-oss, SmolLM3, …
    pub later_system: bool,
    /// The template has a `tool` role; when false, tool blocks are folded as plain text only.
    pub tool_role: bool,
    /// Length that a tool call id must have (alphanumeric); `None` when any id is accepted. Mistral: 9.
    pub tool_call_id_length: Option<usize>,
}

impl Default for TemplateFacts {
    fn default() -> Self {
        TemplateFacts { strict_alternation: false, later_system: true, tool_role: true, tool_call_id_length: None }
    }
}

/// What is done with a single tool result, whatever the prompt takes.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultRules {
    /// One that is larger than this is evicted when it arrives.
    pub evict_over: Size,
    /// One that is larger than this is condensed by a model when it arrives, and evicted all the same; `None`: none is.
    pub digest_over: Option<Size>,
    /// Names of tools whose results are never cleared or evicted.
    pub never_clear: Vec<String>,
    /// Whether progress output is shown in its final state, as a terminal shows it, whatever its size.
    pub clean: bool,
}

impl Default for ResultRules {
    fn default() -> Self {
        ResultRules { evict_over: Size::Share(0.25), digest_over: None, never_clear: Vec::new(), clean: false }
    }
}

/// Everything the planner needs to know about what the user wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What is done with a single tool result, whatever the prompt takes.
    pub results: ResultRules,
    /// Pressure from which old tool results are cleared.
    pub clear_at: f64,
    /// Pressure that clearing goes down to.
    pub clear_to: f64,
    /// Which line clearing waits for.
    pub clear_line: ClearLine,
    /// Pressure from which old steps are folded into a brief.
    pub summarize_at: f64,
    /// Pressure that folding goes down to.
    pub summarize_to: f64,
    /// Which line folding waits for.
    pub fold_at: FoldAt,
    /// Newest messages that are neither cleared nor folded (whole steps).
    pub keep_recent: KeepRecent,
    /// What to do when clearing is not enough.
    pub strategy: Strategy,
    /// Most tokens that a model may write into a brief.
    pub summary_max_tokens: Tokens,
    /// Facts about the model's chat template.
    pub template: TemplateFacts,
    /// What the client of this request asks for beside.
    pub client: Edits,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            results: ResultRules::default(),
            clear_at: 0.75,
            clear_to: 0.40,
            clear_line: ClearLine::Pays,
            summarize_at: 0.85,
            summarize_to: 0.45,
            fold_at: FoldAt::Wall,
            keep_recent: KeepRecent::ByWindow,
            strategy: Strategy::Summarize,
            summary_max_tokens: 1024,
            template: TemplateFacts::default(),
            client: Edits::default(),
        }
    }
}
