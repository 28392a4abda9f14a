//! What should change? Pure: the same conversation, facts and policy give the same plan, with its reasons.
//!
//! Rules run cheapest first, each only if those before did not bring the prompt under its line. A plan says what to do,
//! not how the new text reads: `apply` makes the material, [`rewrite`] puts both together.

pub mod asked;
pub mod budget;
mod clear;
pub mod client;
pub mod economics;
pub mod emergency;
mod evict;
pub mod facts;
pub mod fit;
pub mod plain;
pub mod policy;
pub mod reason;
mod repeat;
mod restore;
pub mod rewrite;
mod sheet;
mod summarize;
mod truncate;

use std::fmt;

pub use budget::{Lines, gives_way, least_reserve, output_reserved, usual_reserve};
pub use facts::{Cost, Counting, Facts, Kept, Pins, Regions, shared_out};
pub use policy::{ClearLine, FoldAt, KeepRecent, Policy, ResultRules, Size, Strategy, TemplateFacts};

use crate::conversation::edit::Rule;
use crate::conversation::{Conversation, Tokens};
use sheet::{STEPS_AHEAD, Sheet};

/// One thing to do. Indices are of the conversation's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Replace the text of a message by a preview of at most `budget` tokens and a pointer.
    Preview {
        /// The message.
        at: usize,
        /// Tokens the preview may take.
        budget: Tokens,
        /// The rule that asks for it: evict or truncate.
        rule: Rule,
    },
    /// Replace an old result by a placeholder: one line, and what of the result was used.
    Placeholder {
        /// The message.
        at: usize,
        /// Tokens that it may take. What one does not need, others of the plan may have.
        budget: Tokens,
    },
    /// Replace a result by a pointer to the same text elsewhere in the view.
    Repeat {
        /// The message.
        at: usize,
        /// The message that stays and says the same.
        of: usize,
    },
    /// Add to a client's "unchanged, see above" where the text it means can be found.
    Restore {
        /// The message.
        at: usize,
        /// The message that it speaks of.
        of: usize,
        /// Whether that message's text comes with the pointer.
        whole: bool,
    },
    /// Replace the long values in the arguments of a call.
    Elide {
        /// The assistant message.
        at: usize,
        /// Which call of it.
        call: usize,
        /// Tokens the new arguments may take.
        budget: Tokens,
        /// The rule that asks for it: evict, clear or truncate.
        rule: Rule,
    },
    /// Cut the last user message, which alone passes the window.
    Cut {
        /// The message.
        at: usize,
        /// Tokens it may keep.
        budget: Tokens,
    },
    /// Leave out what the model thought in an old message.
    Quiet {
        /// The message.
        at: usize,
    },
    /// Take back the passages that were recalled behind an old message.
    Forget {
        /// The message.
        at: usize,
    },
    /// Fold messages into a brief.
    Fold {
        /// First folded message.
        from: usize,
        /// One past the last folded message.
        to: usize,
        /// Messages inside that stay.
        keep: Vec<usize>,
        /// Tokens the brief may take.
        budget: Tokens,
        /// Whether a model may be asked; otherwise the part made without one must do.
        ask_model: bool,
    },
}

impl Action {
    /// The first message that it changes.
    pub fn first(&self) -> usize {
        match self {
            Action::Preview { at, .. }
            | Action::Placeholder { at, .. }
            | Action::Repeat { at, .. }
            | Action::Restore { at, .. }
            | Action::Elide { at, .. }
            | Action::Forget { at }
            | Action::Quiet { at }
            | Action::Cut { at, .. } => *at,
            Action::Fold { from, .. } => *from,
        }
    }

    fn replaces_text_of(&self, message: usize) -> bool {
        match self {
            Action::Preview { at, .. }
            | Action::Placeholder { at, .. }
            | Action::Repeat { at, .. }
            | Action::Restore { at, .. }
            | Action::Quiet { at }
            | Action::Cut { at, .. } => *at == message,
            Action::Elide { .. } | Action::Forget { .. } | Action::Fold { .. } => false,
        }
    }

    /// Whether something of a message is replaced.
    pub fn touches(&self, message: usize) -> bool {
        matches!(self, Action::Elide { at, .. } if *at == message) || self.replaces_text_of(message)
    }

    /// The name of the layer, as it stands in `x-windowsill-action`.
    pub fn layer(&self, ask: Strategy) -> &'static str {
        match self {
            Action::Preview { rule: Rule::Truncate, .. } | Action::Elide { rule: Rule::Truncate, .. } => "truncate",
            Action::Preview { .. } | Action::Repeat { .. } | Action::Elide { rule: Rule::Evict, .. } => "evict",
            Action::Restore { .. } => "evict",
            Action::Placeholder { .. } | Action::Elide { .. } | Action::Quiet { .. } | Action::Forget { .. } => "clear",
            Action::Cut { .. } => "truncate",
            Action::Fold { .. } if ask == Strategy::Summarize => "summarize",
            Action::Fold { .. } => "truncate",
        }
    }
}

/// Why a rule acted, with its numbers in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Because {
    /// The rule.
    pub rule: &'static str,
    /// Prompt tokens before.
    pub before: Tokens,
    /// Prompt tokens after.
    pub after: Tokens,
    /// The line that was passed.
    pub line: Tokens,
    /// What was done, in a few words.
    pub what: String,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Because { rule, before, after, line, what } = self;
        write!(f, "{rule}: {what} ({before} -> {after} tokens; line {line})")
    }
}

/// Why a rule did not act though its line was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The rule.
    pub rule: &'static str,
    /// The line that was passed (tokens).
    pub line: Tokens,
    /// Why, in a few words.
    pub why: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = reason::grouped(self.line);
        let (what, why) = (if self.rule == "clear" { "Old results are not cleared" } else { "Not folded" }, &self.why);
        write!(f, "{what} yet, though the prompt has passed {line} tokens: {why}.")
    }
}

/// What should change, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What to do, in no particular order.
    pub actions: Vec<Action>,
    /// The view's tokens before, edits made earlier applied.
    pub before: Regions,
    /// The view's tokens after, as far as they can be known before the material is made.
    pub after: Regions,
    /// The reasons.
    pub because: Vec<Because>,
    /// Why lines that are still passed did not lead to anything.
    pub waits: Vec<Waiting>,
    /// The lines that were looked at.
    pub lines: Lines,
    /// Whether something of a person's or of the newest step had to go. Less is kept for the reply before that is sent.
    pub hard: bool,
    /// Tokens that the next four steps take, if they are like those so far.
    pub four_steps: Tokens,
    /// Whether the view fits the budget after all of this, with what was asked in it. When false, the request must be
    /// refused with the counts.
    pub fits: bool,
}

impl Plan {
    /// Whether this rewrites what was forwarded before, and leaves less room than the next four steps take.
    pub fn is_soon_done_again(&self) -> bool {
        // What arrives is evicted, and changes nothing before it.
        let rewrites = self.actions.iter().any(|action| action.layer(Strategy::Summarize) != "evict");
        rewrites && self.after.prompt().saturating_add(self.four_steps) > self.lines.limit
    }

    /// These actions and nothing else: a person asked for them.
    pub fn of(actions: Vec<Action>) -> Plan {
        let lines = Lines::of(&Facts::default(), &Policy::default());
        let (before, after) = (Regions::default(), Regions::default());
        Plan {
            actions,
            before,
            after,
            because: Vec::new(),
            waits: Vec::new(),
            lines,
            hard: false,
            four_steps: 0,
            fits: true,
        }
    }
}

/// Where folding a conversation begins: a brief stands in front of this message.
pub fn anchor(conversation: &Conversation, facts: &Facts, policy: &Policy) -> usize {
    summarize::start(&Sheet::new(conversation, facts, policy))
}

/// Plans a request.
pub fn plan(conversation: &Conversation, facts: &Facts, policy: &Policy) -> Plan {
    debug_assert!(facts::belong(facts, conversation), "facts of another conversation");
    let mut sheet = Sheet::new(conversation, facts, policy);
    let before = sheet.regions();
    type Apply = fn(&mut Sheet<'_>) -> Option<String>;
    let first = policy.client.first_line().unwrap_or(0).min(sheet.lines.limit);
    let layers: [(&str, Apply, Tokens); 11] = [
        ("summarize", summarize::keep_request, 0),
        ("evict", evict::apply, sheet.lines.evict_over),
        ("restore", restore::apply, 0),
        ("repeat", repeat::apply, sheet.lines.clear_at / 2),
        ("clear", client::apply, first),
        ("summarize", summarize::apply_asked, first),
        ("clear", clear::apply, sheet.lines.clear_at),
        ("summarize", summarize::apply, sheet.lines.summarize_at),
        // What stays in front of a new fold or behind it: now is the time, since all behind is evaluated again.
        ("clear", clear::apply, sheet.lines.clear_at),
        ("restore", restore::apply_behind_changes, 0),
        ("truncate", truncate::apply, sheet.lines.limit),
    ];
    // Who stopped the rewriting means all of it.
    let layers = layers.into_iter().filter(|_| !facts.paused);
    for (rule, apply, line) in layers {
        let before = sheet.prompt();
        if let Some(what) = apply(&mut sheet) {
            let after = sheet.prompt();
            sheet.decided.because.push(Because { rule, before, after, line, what });
        }
    }
    let total = sheet.total();
    // A rule is asked twice. One that acted waits for nothing.
    let decided = &mut sheet.decided;
    let acted = |rule: &str| decided.because.iter().any(|because| because.rule == rule);
    decided.waits.retain(|waiting| total > waiting.line && !acted(waiting.rule));
    let asks = sheet.marks.request.is_none_or(|at| !sheet.folded(at));
    Plan {
        before,
        after: sheet.regions(),
        hard: sheet.decided.hard,
        four_steps: sheet.next_steps() / STEPS_AHEAD * 4,
        fits: sheet.total() <= sheet.lines.limit && asks,
        lines: sheet.lines,
        actions: sheet.decided.actions,
        because: sheet.decided.because,
        waits: sheet.decided.waits,
    }
}
