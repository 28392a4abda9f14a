//! Counting a request with the model's own vocabulary and chat template, message by message.
//!
//! llama.cpp does both, in a process of its own for each model (`worker`), which [`CountWorker`] starts and asks. The whole
//! prompt is rendered and tokenized; segments that were tokenized before cost nothing. The shares of messages are read off
//! where their words stand in it, so that they add up to the whole, exactly.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod client;
mod marks;
mod shares;
mod worker;

pub use client::CountWorker;
pub use worker::{COMMAND, work};

use marks::{Kind, Seen, Without};
use shares::{Prompt, Shares};

use super::tokens;
use crate::conversation::{Conversation, Digest, Message, Tokens};
use crate::engine::VocabularyError;
use crate::engine::vocabulary::{ChatTemplate, TemplateError, Vocabulary};
use crate::plan::{Cost, shared_out};
use crate::wire::legacy;

/// How often a request is rendered with marks, with fewer each time.
const ATTEMPTS: usize = 6;

/// From here on not single strings are left without marks, but all of their kind.
const KINDS_FROM: usize = 2;

/// Prompts that are kept.
const PROMPTS: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// Tokens of the marks around a message, and around a call.
const MARKS: Tokens = 5;
/// As above, around a call.
const CALL_MARKS: Tokens = 12;

/// Tokens with which a template may introduce tool definitions.
pub(super) const INTRODUCTION: Tokens = 160;

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
    /// The conversation is not that of the request.
    #[error("the request has other messages than its conversation")]
    Messages,
    /// The process that counts does not answer, or cannot count this.
    #[error("{0}")]
    Worker(String),
}

/// Counts requests for one model, in this process: only one that may end over a file uses it.
#[derive(Debug)]
pub struct Counter {
    vocabulary: Vocabulary,
    template: ChatTemplate,
    /// Kinds of strings that the template looks into, so that no marks can be put there.
    unmarked: AtomicU16,
    /// The prompts of the last requests: the same one is often counted whole and by its messages.
    prompts: Mutex<LruCache<Digest, Arc<str>>>,
}

/// A request, counted: its parts add up to what the server evaluates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Leading system messages, and what the template adds of its own.
    pub system: Tokens,
    /// Tool definitions.
    pub tools: Tokens,
    /// Each message of the body.
    pub costs: Vec<Cost>,
}

impl Counted {
    /// The whole.
    pub fn total(&self) -> Tokens {
        self.costs.iter().fold(self.system.saturating_add(self.tools), |sum, c| sum.saturating_add(c.total()))
    }

    /// The same before a template that writes no calls: what was shared out to them is the message's own.
    #[must_use]
    pub fn without_calls(mut self) -> Counted {
        for cost in &mut self.costs {
            cost.text = cost.text.saturating_add(cost.calls.iter_mut().map(std::mem::take).sum());
        }
        self
    }
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
        let prompts = Mutex::new(LruCache::new(PROMPTS));
        Ok(Counter { vocabulary, template, unmarked: AtomicU16::new(0), prompts })
    }

    /// The prompt tokens of a chat request (OpenAI's shape) without its media, and its number of messages.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn total(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let (request, text) = self.prompt(request, false)?;
        Ok((self.vocabulary.count(&text?), messages(&request).len()))
    }

    /// The prompt tokens of a request for a server that renders prompts in a way of its own: by the model's template, or
    /// all words and tool definitions as they stand, whichever is more (some templates leave the tools out).
    ///
    /// # Errors
    /// When the request is no JSON.
    pub fn at_least(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let (request, text) = self.prompt(request, true)?;
        let words = messages(&request).iter().map(|m| self.words(m)).fold(0, Tokens::saturating_add);
        let tools = self.tools_spelled(&request);
        // Words that introduce the tools, and a wider spelling of them.
        let tools = if tools == 0 { 0 } else { tools.saturating_add(tools / 8).saturating_add(INTRODUCTION) };
        let rendered = text.map_or(0, |text| self.vocabulary.count(&text));
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

    /// As [`Counter::total`], media included, with the share of each message: read off where its words stand in the prompt.
    /// `foreign`: the server renders in a way of its own.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn counted(&self, request: &[u8], conversation: &Conversation, foreign: bool) -> Result<Counted, CountError> {
        let (request, text) = self.prompt(request, foreign)?;
        let text = text?;
        let leading = conversation.system.len();
        let messages = request["messages"].as_array().map_or(0, Vec::len);
        if messages != leading + conversation.body.len() {
            return Err(CountError::Messages);
        }
        let places = self.vocabulary.places(&text);
        let prompt = Prompt { text: &text, places: &places, enders: self.vocabulary.enders(), messages };
        let shares = self.shares(&request, &prompt);
        let all = Shared::new(shares, conversation, &|text| self.vocabulary.part(text));
        // Most templates introduce the tools in words of their own, which stand before them.
        let tools = self.tools(&request).min(all.tools.saturating_add(all.system));
        let unseen = if tools == 0 && foreign { self.tools_spelled(&request) } else { 0 };
        let seen: Tokens = conversation.system.iter().flat_map(|m| &m.media).map(tokens::media).sum();
        let system = all.tools.saturating_add(all.system) - tools;
        Ok(Counted { system: system.saturating_add(seen), tools: tools.saturating_add(unseen), costs: all.costs })
    }

    /// Renders with marks, fewer where the template looks into what is marked, and shares out the tokens by them.
    fn shares(&self, request: &Value, prompt: &Prompt<'_>) -> Shares {
        let mut without = Without::of(self.unmarked.load(Ordering::Relaxed));
        for attempt in 0..ATTEMPTS {
            let marked = marks::mark(request, &without);
            let Ok(rendered) = self.render(&marked.request) else {
                without.next_kind();
                continue;
            };
            let differs = match marks::read(prompt.text, &rendered, marked.spots.len()) {
                Ok(seen) => {
                    self.remember(&without);
                    return prompt.shares(&seen, &marked.spots);
                }
                Err(differs) => differs,
            };
            for spot in [differs.behind, differs.before].into_iter().flatten().filter_map(|n| marked.spots.get(n)) {
                without.string(spot);
                if attempt >= KINDS_FROM {
                    without.kind(spot.kind);
                }
            }
        }
        let nothing: &[Seen] = &[];
        prompt.shares(nothing, &[])
    }

    /// The next request is rendered without these from the start; what a person or the model said may differ another time.
    fn remember(&self, without: &Without) {
        let mut kinds = Without::of(0);
        [Kind::Arguments, Kind::Result, Kind::Reasoning, Kind::Name, Kind::Tools]
            .into_iter()
            .filter(|k| !without.marks(*k))
            .for_each(|k| kinds.kind(k));
        self.unmarked.fetch_or(kinds.kinds(), Ordering::Relaxed);
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

    /// Tokens of a text on its own.
    pub fn text(&self, text: &str) -> Tokens {
        self.vocabulary.count(text)
    }

    /// What the tools add to the shortest prompt they can be part of.
    fn tools(&self, request: &Value) -> Tokens {
        if !has_tools(request) {
            return 0;
        }
        let Some(messages) = request["messages"].as_array() else { return 0 };
        let until = messages.iter().position(|m| m["role"] == "user").map_or(messages.len(), |at| at + 1);
        let mut with = request.clone();
        let mut short = |upto: usize| {
            with["messages"] = Value::Array(messages[..upto].to_vec());
            with["tools"] = request["tools"].clone();
            let all = self.render(&with).ok()?;
            with.as_object_mut()?.shift_remove("tools");
            // With another template for tools, the difference is still what the tools cost.
            let none = self.render(&with).ok()?;
            Some(self.vocabulary.count(&all).saturating_sub(self.vocabulary.count(&none)))
        };
        short(until).or_else(|| short(messages.len())).unwrap_or(0)
    }

    /// A request and its prompt. A server that renders in a way of its own is told tools in the newer form alone.
    fn prompt(&self, request: &[u8], foreign: bool) -> Result<(Value, Result<Arc<str>, TemplateError>), CountError> {
        let key = Digest::of(request);
        let mut request: Value = serde_json::from_slice(request)?;
        let modern = foreign && legacy::modern(&mut request);
        if let Some(known) = self.prompts.lock().get(&key).filter(|_| !modern) {
            return Ok((request, Ok(Arc::clone(known))));
        }
        let text = self.render(&request).map(Arc::<str>::from);
        if let Some(text) = text.as_ref().ok().filter(|_| !modern) {
            self.prompts.lock().put(key, Arc::clone(text));
        }
        Ok((request, text))
    }

    fn render(&self, request: &Value) -> Result<String, TemplateError> {
        self.template.render(request)
    }
}

/// Whether a request offers tools.
fn has_tools(request: &Value) -> bool {
    request["tools"].as_array().is_some_and(|t| !t.is_empty())
}

/// The messages of a request.
fn messages(request: &Value) -> &[Value] {
    request["messages"].as_array().map_or(&[], Vec::as_slice)
}

/// The shares of a conversation: by region, and by message.
struct Shared {
    system: Tokens,
    tools: Tokens,
    costs: Vec<Cost>,
}

impl Shared {
    /// `count` tells the tokens of a text by itself: what could not be told apart is shared out by that.
    fn new(shares: Shares, conversation: &Conversation, count: &dyn Fn(&str) -> Tokens) -> Shared {
        let leading = conversation.system.len();
        let mut system = shares.own;
        let mut whole = vec![0; conversation.body.len()];
        for (messages, n) in shares.together {
            let weight = |at: &usize| {
                let (before, at) = (conversation.system.get(*at), at.checked_sub(leading));
                let m = before.or_else(|| conversation.body.get(at?));
                m.map_or(0, |m| weights(m, count).iter().sum())
            };
            let weights: Vec<u64> = messages.iter().map(weight).collect();
            for (at, n) in messages.iter().zip(shared_out(n, &weights)) {
                match at.checked_sub(leading).and_then(|at| whole.get_mut(at)) {
                    Some(of) => *of += n,
                    None => system += n,
                }
            }
        }
        system += (0..leading).filter_map(|at| shares.words.get(&at)).sum::<Tokens>();
        let cost = |(i, message): (usize, &Message)| {
            let at = leading + i;
            let words = shares.words.get(&at).copied().unwrap_or(0) + whole[i];
            let calls: Vec<Option<Tokens>> =
                (0..message.calls.len()).map(|c| shares.calls.get(&(at, c)).copied()).collect();
            let mut out = if calls.iter().all(Option::is_some) {
                Cost { text: words, calls: calls.into_iter().flatten().collect(), media: 0 }
            } else {
                let seen: Tokens = calls.into_iter().flatten().sum();
                let mut shares = shared_out(words.saturating_add(seen), &weights(message, count)).into_iter();
                Cost { text: shares.next().unwrap_or(0), calls: shares.collect(), media: 0 }
            };
            out.media = message.media.iter().fold(0, |sum, m| sum.saturating_add(tokens::media(m)));
            out
        };
        let costs = conversation.body.iter().enumerate().map(cost).collect();
        Shared { system, tools: shares.tools, costs }
    }
}

/// What a message's words and each of its calls count for by themselves.
fn weights(message: &Message, count: &dyn Fn(&str) -> Tokens) -> Vec<u64> {
    let words = u64::from(MARKS) + u64::from(count(&message.text));
    let call = |c: &crate::conversation::ToolCall| {
        u64::from(CALL_MARKS) + u64::from(count(&c.name)) + u64::from(count(&c.arguments))
    };
    std::iter::once(words).chain(message.calls.iter().map(call)).collect()
}

/// What images, audio and other parts cost beside the text, by the rule or the stated figure of [`tokens::media`].
pub fn media(conversation: &Conversation) -> Tokens {
    let all = conversation.system.iter().chain(&conversation.body);
    all.flat_map(|m| &m.media).fold(0, |sum, m| sum.saturating_add(tokens::media(m)))
}

#[cfg(all(test, feature = "engine"))]
pub(crate) mod tests;
