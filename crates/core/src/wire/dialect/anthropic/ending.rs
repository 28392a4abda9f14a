//! Why a reply ended, in Anthropic's words.

use super::super::said::{Said, Usage};
use crate::wire::reply;

/// A reply that ends so many tokens before the window's end was ended by it.
const NEAR: u64 = 16;

/// What may end a reply, and what did.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The client's stop sequences.
    stops: Vec<String>,
    /// The longest reply that the client wants (tokens).
    most: Option<u64>,
    /// The window, prompt and reply together (tokens).
    pub(super) window: Option<u64>,
    /// Of the client's stop sequences, the one that ended the reply.
    pub(super) stop: Option<String>,
    /// What the server said of the end.
    finish: Option<String>,
    /// The model refused.
    refused: bool,
}

impl Ending {
    /// Of a reply that the client wants to end at these sequences, and at this length (tokens).
    pub(super) fn of(stops: Vec<String>, most: Option<u64>) -> Ending {
        Ending { stops, most, ..Ending::default() }
    }

    /// Takes in what a part of the reply says of its end. A template has stop sequences of its own, which are nobody's.
    pub(super) fn note(&mut self, said: &Said) {
        if said.finish.is_some() {
            self.finish.clone_from(&said.finish);
        }
        if let Some(stop) = said.stop.as_ref().filter(|stop| self.stops.contains(stop)) {
            self.stop = Some(stop.clone());
        }
        self.refused |= !said.refusal.is_empty();
    }

    /// Whether the reply is a summary of the history, and nothing else.
    pub(super) fn is_compaction(&self) -> bool {
        self.finish.as_deref() == Some(reply::COMPACTION)
    }

    /// The reason of a reply that took so many tokens, and made calls.
    pub(super) fn reason(&self, usage: &Usage, calls: bool) -> Option<&'static str> {
        Some(match self.finish.as_deref() {
            Some(reply::BROKEN_OFF) => return None,
            Some(reply::COMPACTION) => "compaction",
            Some("model_context_window_exceeded") => "model_context_window_exceeded",
            Some("length") if self.fills_window(usage) => "model_context_window_exceeded",
            Some("length") => "max_tokens",
            Some("content_filter") => "refusal",
            _ if self.refused => "refusal",
            _ if calls => "tool_use",
            _ if self.stop.is_some() => "stop_sequence",
            _ => "end_turn",
        })
    }

    /// Whether it was the window that ended a reply, and not the client's `max_tokens`.
    fn fills_window(&self, usage: &Usage) -> bool {
        let (Some(window), Some(prompt), Some(wrote)) = (self.window, usage.prompt, usage.completion) else {
            return false;
        };
        // llama-server ends a reply with the window's last token or the one before, and pads windows to 256.
        self.most.is_none_or(|most| wrote < most) && prompt.saturating_add(wrote) + NEAR >= window
    }
}
