//! A conversation replayed request by request, as windowsill would forward it: what examples that judge the planner share.

use std::path::PathBuf;

use windowsill_core::apply::{self, Archive};
use windowsill_core::brief;
use windowsill_core::conversation::edit::{Edit, View};
use windowsill_core::conversation::{Conversation, Digest, Tokens};
use windowsill_core::plan::fit::{Fitting, Ours, fit};
use windowsill_core::plan::rewrite::{self, Out};
use windowsill_core::plan::{Action, Cost, Facts, Policy};

/// Tokens that are configured to be kept for a reply.
pub(crate) const RESERVE: Tokens = 1024;

/// A record that keeps nothing and names everything.
struct Names;

impl Archive for Names {
    type Error = std::convert::Infallible;

    fn free_id(&self, text: &str) -> Result<String, Self::Error> {
        Ok(format!("r{}", &Digest::of(text.as_bytes()).hex()[..12]))
    }

    fn result_path(&self, id: &str) -> PathBuf {
        format!("/data/large_tool_results/{id}.txt").into()
    }

    fn history_path(&self, conversation: &str) -> PathBuf {
        format!("/data/conversation_history/{conversation}.md").into()
    }
}

/// How texts are sized, and what stands where a model would write.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Tokens of a text.
    pub(crate) tokens: fn(&str) -> Tokens,
    /// Tokens of the messages of a view.
    pub(crate) size: fn(&[Out]) -> Tokens,
    /// What stands where a model would write a brief.
    pub(crate) blank: &'static str,
}

/// What is known between the requests of a conversation.
#[derive(Clone)]
pub(crate) struct Replay {
    pub(crate) rules: Rules,
    /// What each of its messages costs.
    pub(crate) costs: Vec<Cost>,
    /// The view of the last request.
    pub(crate) view: View,
    /// Messages that were forwarded.
    pub(crate) forwarded: usize,
}

impl Replay {
    /// Before the first request.
    pub(crate) fn new(rules: Rules, costs: Vec<Cost>) -> Replay {
        Replay { rules, costs, view: View::default(), forwarded: 0 }
    }

    /// The messages that are forwarded of a history, and their tokens; `None` where nothing fits. `head`: facts of the window and of
    /// what stands before the messages.
    pub(crate) fn turn(&mut self, conversation: &Conversation, head: Facts) -> Option<(Vec<Out>, Tokens)> {
        let Rules { tokens, size, blank } = self.rules;
        let edit_cost = |edit: &Edit| match edit {
            Edit::Arguments { arguments: text, .. }
            | Edit::Text { text, .. }
            | Edit::Recalled { text, .. }
            | Edit::Fold { brief: text, .. } => tokens(text) + 8,
        };
        let facts = Facts {
            costs: self.costs[..conversation.body.len()].to_vec(),
            edit_costs: self.view.edits.iter().map(edit_cost).collect(),
            told: brief::told(&self.view),
            view: self.view.clone(),
            forwarded: self.forwarded,
            ..head
        };
        let policy = Policy::default();
        let fixed = facts.tools;
        let fitting = Fitting::new(conversation, facts, &policy, RESERVE, Ours::default());
        let made = fit(fitting, &mut |plan, _| {
            let asks = plan.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. }));
            let input = apply::Input {
                conversation,
                id: "c0123456789ab",
                plan,
                old: &self.view,
                store: &Names,
                count: &tokens,
                words: apply::Words {
                    written: asks.then_some(apply::Written { text: blank, read: 0, unread: &[] }),
                    ..apply::Words::default()
                },
            };
            let view = match plan.actions.is_empty() {
                true => self.view.clone(),
                false => apply::apply(&input).unwrap().view,
            };
            let out = rewrite::rewrite(conversation, &view, &policy.template);
            (size(&out) + fixed, (view, out))
        });
        let made = made.ok()?;
        let (view, out) = made.what;
        (self.view, self.forwarded) = (view, conversation.body.len());
        Some((out, made.tokens))
    }
}
