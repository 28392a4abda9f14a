//! Counting a request with the model's own vocabulary and chat template.
//!
//! llama.cpp does both, in a process of its own for each model (`worker`), which [`CountWorker`] starts and asks. The whole
//! prompt is rendered and tokenized; segments that were tokenized before cost nothing.

use std::path::Path;

use serde_json::Value;

mod client;
mod worker;

pub use client::CountWorker;
pub use worker::{COMMAND, work};

use super::tokens;
use crate::conversation::{Conversation, Tokens};
use crate::engine::VocabularyError;
use crate::engine::vocabulary::{ChatTemplate, TemplateError, Vocabulary};

/// Tokens of the marks around a message, and around a call.
const MARKS: Tokens = 5;
/// As above, around a call.
const CALL_MARKS: Tokens = 12;

/// Tokens with which a template may introduce tool definitions.
const INTRODUCTION: Tokens = 160;

/// Why a request cannot be counted here.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// There is no vocabulary to count with.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The template cannot be read, or refuses the messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The request is no JSON.
    #[error("the request is no JSON: {0}")]
    Request(#[from] serde_json::Error),
    /// The process that counts does not answer, or cannot count this.
    #[error("{0}")]
    Worker(String),
}

/// Counts requests for one model, in this process: only one that may end over a file uses it.
#[derive(Debug)]
pub struct Counter {
    vocabulary: Vocabulary,
    template: ChatTemplate,
}

impl Counter {
    /// Reads the vocabulary of a GGUF file, and its template unless the server said that it renders with `served`. Takes
    /// up to a second.
    ///
    /// # Errors
    /// When the file has no vocabulary that can be used, or the template cannot be read.
    pub fn open(path: &Path, served: Option<&str>) -> Result<Counter, CountError> {
        Counter::with(Vocabulary::load(path)?, served)
    }

    /// As [`Counter::open`], with a vocabulary that was read.
    fn with(vocabulary: Vocabulary, served: Option<&str>) -> Result<Counter, CountError> {
        let template = vocabulary.chat(served)?;
        Ok(Counter { vocabulary, template })
    }

    /// The prompt tokens of a chat request (OpenAI's shape) without its media, and its number of messages.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn total(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let request: Value = serde_json::from_slice(request)?;
        Ok((self.vocabulary.count(&self.render(&request)?), messages(&request).len()))
    }

    /// The prompt tokens of a request for a server that renders prompts in a way of its own: by the model's template, or
    /// all words and tool definitions as they stand, whichever is more (some templates leave the tools out).
    ///
    /// # Errors
    /// When the request is no JSON.
    pub fn at_least(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let request: Value = serde_json::from_slice(request)?;
        let words = messages(&request).iter().map(|m| self.words(m)).fold(0, Tokens::saturating_add);
        let tools = self.tools_spelled(&request);
        // Words that introduce the tools, and a wider spelling of them.
        let tools = if tools == 0 { 0 } else { tools.saturating_add(tools / 8).saturating_add(INTRODUCTION) };
        let rendered = self.render(&request).map_or(0, |text| self.vocabulary.count(&text));
        Ok((rendered.max(words.saturating_add(tools)), messages(&request).len()))
    }

    /// Tokens of what a message says and calls, and of marks around it.
    fn words(&self, message: &Value) -> Tokens {
        let count = |text: Option<&str>| text.map_or(0, |t| self.vocabulary.count(t));
        let parts = message["content"].as_array().into_iter().flatten().map(|part| count(part["text"].as_str()));
        let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
            let called = &call["function"];
            count(called["name"].as_str()) + count(called["arguments"].as_str()) + CALL_MARKS
        });
        parts.chain(calls).fold(count(message["content"].as_str()) + MARKS, Tokens::saturating_add)
    }

    /// The tool definitions as text.
    fn tools_spelled(&self, request: &Value) -> Tokens {
        let tools = request["tools"].as_array().filter(|t| !t.is_empty());
        tools.map_or(0, |t| self.vocabulary.count(&Value::Array(t.clone()).to_string()))
    }

    /// The tokens that the prompts of two requests begin with.
    ///
    /// # Errors
    /// As [`Counter::total`].
    pub fn shared(&self, a: &[u8], b: &[u8]) -> Result<Tokens, CountError> {
        let (a, b): (Value, Value) = (serde_json::from_slice(a)?, serde_json::from_slice(b)?);
        let (a, b) = (self.render(&a)?, self.render(&b)?);
        let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        let end = (0..=same).rev().find(|at| b.is_char_boundary(*at)).unwrap_or(0);
        Ok(self.vocabulary.count(&b[..end]))
    }

    fn render(&self, request: &Value) -> Result<String, TemplateError> {
        self.template.render(request)
    }
}

/// The messages of a request.
fn messages(request: &Value) -> &[Value] {
    request["messages"].as_array().map_or(&[], Vec::as_slice)
}

/// What images, audio and other parts cost beside the text, by the rule or the stated figure of [`tokens::media`].
pub fn media(conversation: &Conversation) -> Tokens {
    let all = conversation.system.iter().chain(&conversation.body);
    all.flat_map(|m| &m.media).fold(0, |sum, m| sum.saturating_add(tokens::media(m)))
}

#[cfg(all(test, feature = "engine"))]
pub(crate) mod tests;
