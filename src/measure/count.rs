//! Counting a request with the model's own vocabulary and chat template, message by message.
//!
//! The whole prompt is rendered and counted in pieces, of which only new ones cost anything. The shares of messages are
//! read off where their words stand in it, so that they add up to the whole, exactly.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use memchr::memmem;
use serde_json::Value;

use super::tokens;
use crate::conversation::template::{CHATML, Options, Template, TemplateError};
use crate::conversation::{Conversation, Message, Role, Tokens};
use crate::engine::{Vocabulary, VocabularyError};
use crate::plan::Cost;

/// Bytes of a message that are looked for in the prompt.
const PROBE: usize = 64;

/// Tokens of the marks around a message, and around a call.
const MARKS: usize = 5;
/// As above, around a call.
const CALL_MARKS: usize = 12;

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
}

/// Counts requests for one model.
#[derive(Debug)]
pub struct Counter {
    vocabulary: Vocabulary,
    template: Template,
    tool_template: Option<Template>,
}

/// A request, counted: its parts add up to what the server evaluates.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Counter {
    /// Reads the vocabulary of a GGUF file, and its template unless the server said that it renders with `served`. Takes
    /// up to a second.
    ///
    /// # Errors
    /// When the file has no vocabulary that can be used, or the template cannot be read.
    pub fn open(path: &Path, served: Option<&str>) -> Result<Counter, CountError> {
        let vocabulary = Vocabulary::load(path)?;
        let own = vocabulary.chat_template().filter(|t| !t.is_empty() && *t != "chatml");
        let template = Template::new(served.or(own).unwrap_or(CHATML))?;
        let tool_template = match (served, vocabulary.tool_template()) {
            (None, Some(source)) => Template::new(source).ok(),
            _ => None,
        };
        Ok(Counter { vocabulary, template, tool_template })
    }

    /// The prompt tokens of a chat request (OpenAI's shape) without its media, and its number of messages.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn total(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let request: Value = serde_json::from_slice(request)?;
        let text = self.render(&request)?;
        Ok((self.vocabulary.count(&text), request["messages"].as_array().map_or(0, Vec::len)))
    }

    /// The prompt tokens of a request for a server that renders prompts in a way of its own: by the model's template, or
    /// all words and tool definitions as they stand, whichever is more (some templates leave the tools out).
    ///
    /// # Errors
    /// When the request is no JSON.
    pub fn at_least(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        let request: Value = serde_json::from_slice(request)?;
        let rendered = self.render(&request).map_or(0, |text| self.vocabulary.count(&text));
        let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
        // Words that introduce the tools, and a wider spelling of them.
        let mut words = match self.tools_spelled(&request) {
            0 => 0,
            tools => tools + tools / 8 + INTRODUCTION,
        };
        let mut add = |text: Option<&str>| words = words.saturating_add(text.map_or(0, |t| self.vocabulary.count(t)));
        let calls = messages.iter().filter_map(|m| m["tool_calls"].as_array()).map(Vec::len).sum::<usize>();
        for message in messages {
            add(message["content"].as_str());
            message["content"].as_array().into_iter().flatten().for_each(|part| add(part["text"].as_str()));
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                add(call["function"]["name"].as_str());
                add(call["function"]["arguments"].as_str());
            }
        }
        let marks = messages.len() * MARKS + calls * CALL_MARKS;
        Ok((rendered.max(words.saturating_add(Tokens::try_from(marks).unwrap_or(Tokens::MAX))), messages.len()))
    }

    /// The tool definitions as text.
    fn tools_spelled(&self, request: &Value) -> Tokens {
        let tools = request["tools"].as_array().filter(|t| !t.is_empty());
        tools.map_or(0, |t| self.vocabulary.count(&Value::Array(t.clone()).to_string()))
    }

    /// As [`Counter::total`], media included, with the share of each message. `weights` are the estimated costs of the body's messages:
    /// what cannot be told apart in the prompt is shared out by them. `foreign`: the server renders in a way of its own.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn counted(
        &self,
        request: &[u8],
        conversation: &Conversation,
        weights: &[Cost],
        foreign: bool,
    ) -> Result<Counted, CountError> {
        let request: Value = serde_json::from_slice(request)?;
        let text = self.render(&request)?;
        let pieces = self.vocabulary.pieces(&text);
        let (mut head, mut body) = shares(&text, &pieces, conversation, weights);
        let tools = self.tools(&request).min(pieces.iter().map(|(_, n)| n).sum());
        // Another rendering may have the tools where the model's own template leaves them out.
        let unseen = if tools == 0 && foreign { self.tools_spelled(&request) } else { 0 };
        // Most templates put the tools before the messages; some into the first or the last user message.
        let mut rest = tools.saturating_sub(head);
        head -= tools - rest;
        while rest > 0 {
            let Some(largest) = body.iter_mut().max() else { break };
            let taken = rest.min(*largest);
            if taken == 0 {
                break;
            }
            *largest -= taken;
            rest -= taken;
        }
        let costs = body.iter().zip(weights).zip(&conversation.body).map(|((n, w), m)| split(*n, w, m)).collect();
        let seen: Tokens = conversation.system.iter().flat_map(|m| &m.media).map(tokens::media).sum();
        Ok(Counted { system: head.saturating_add(seen), tools: tools - rest + unseen, costs })
    }

    /// Tokens of a text on its own.
    pub fn text(&self, text: &str) -> Tokens {
        self.vocabulary.count(text)
    }

    /// What the tools add to the shortest prompt they can be part of.
    fn tools(&self, request: &Value) -> Tokens {
        if request["tools"].as_array().is_none_or(Vec::is_empty) {
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

    fn render(&self, request: &Value) -> Result<String, TemplateError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let options = Options {
            bos_token: self.vocabulary.bos().to_owned(),
            eos_token: self.vocabulary.eos().to_owned(),
            adds_bos: self.vocabulary.adds_bos(),
            adds_eos: self.vocabulary.adds_eos(),
            now: i64::try_from(since.as_secs()).unwrap_or(0),
            ..Options::default()
        };
        let tools = request["tools"].as_array().is_some_and(|t| !t.is_empty());
        let template = self.tool_template.as_ref().filter(|_| tools).unwrap_or(&self.template);
        template.render_request(request, &options)
    }
}

/// What images, audio and other parts cost beside the text, by the rule or the stated figure of [`tokens::media`].
pub fn media(conversation: &Conversation) -> Tokens {
    let all = conversation.system.iter().chain(&conversation.body);
    all.flat_map(|m| &m.media).fold(0, |sum, m| sum.saturating_add(tokens::media(m)))
}

/// The tokens before the body (and after it: the opening of the reply), and those of each message of the body.
fn shares(
    text: &str,
    pieces: &[(usize, Tokens)],
    conversation: &Conversation,
    weights: &[Cost],
) -> (Tokens, Vec<Tokens>) {
    let sums = Sums::new(pieces);
    let leading = conversation.system.len();
    let all: Vec<&Message> = conversation.system.iter().chain(&conversation.body).collect();
    let places = places(text, &all);
    let mut out = vec![0; conversation.body.len()];
    let mut head = 0;
    let mut from = 0;
    // Messages that were not found are shared with the next one that was.
    let mut waiting: Vec<usize> = Vec::new();
    let mut give = |upto: usize, to: &mut Vec<usize>, head: &mut Tokens, from: &mut usize| {
        let n = sums.until(upto).saturating_sub(sums.until(*from));
        *from = (*from).max(upto);
        let body: Vec<usize> = to.drain(..).filter(|i| *i >= leading).map(|i| i - leading).collect();
        if body.is_empty() {
            *head += n;
            return;
        }
        let shares = distribute(n, &body.iter().map(|i| weights.get(*i).map_or(1, text_weight)).collect::<Vec<_>>());
        body.into_iter().zip(shares).for_each(|(i, share)| out[i] += share);
    };
    let mut opened = false;
    for (i, place) in places.iter().enumerate() {
        if let Some((start, _)) = place
            && i >= leading
            && !opened
        {
            // What stands before the first message of the body is not its own, but for the mark that opens it.
            opened = true;
            let before: Vec<usize> = waiting.extract_if(.., |w| *w < leading).collect();
            give(sums.last_end(*start).max(from), &mut before.clone(), &mut head, &mut from);
        }
        waiting.push(i);
        if let Some((_, end)) = place {
            let next = places[i + 1..].iter().flatten().next().map_or(text.len(), |(start, _)| *start);
            let cut = sums.first_end(*end).filter(|cut| *cut <= next).unwrap_or(*end);
            give(cut, &mut waiting, &mut head, &mut from);
        }
    }
    if waiting.iter().any(|i| *i >= leading) {
        give(text.len(), &mut waiting, &mut head, &mut from);
    }
    head += sums.until(text.len()).saturating_sub(sums.until(from));
    (head, out)
}

fn text_weight(cost: &Cost) -> u64 {
    u64::from(cost.text) + cost.calls.iter().map(|c| u64::from(*c)).sum::<u64>()
}

/// Where each message's words begin and end in the prompt, as far as they are found, in order.
fn places(text: &str, messages: &[&Message]) -> Vec<Option<(usize, usize)>> {
    let mut cursor = 0;
    let mut out = Vec::with_capacity(messages.len());
    for message in messages {
        let words = message.text.trim();
        let name = message.calls.first().map_or("", |c| c.name.as_str());
        let probe = if words.is_empty() && message.role == Role::Assistant { name } else { words };
        let cut = (0..=probe.len().min(PROBE)).rev().find(|at| probe.is_char_boundary(*at)).unwrap_or(0);
        let found = if cut == 0 { None } else { memmem::find(&text.as_bytes()[cursor..], &probe.as_bytes()[..cut]) };
        out.push(found.map(|at| {
            let start = cursor + at;
            let whole = text[start..].starts_with(probe);
            let mut end = start + if whole { probe.len() } else { cut };
            // Calls stand behind the words; the last one's arguments end the message.
            for call in &message.calls {
                let within = &text.as_bytes()[end..];
                end += memmem::find(within, call.name.as_bytes()).map_or(0, |at| at + call.name.len());
            }
            cursor = end;
            (start, end)
        }));
    }
    out
}

/// Tokens up to each byte of the prompt: exact at the ends of pieces, by bytes within them.
struct Sums<'a> {
    pieces: &'a [(usize, Tokens)],
    before: Vec<u64>,
}

impl<'a> Sums<'a> {
    fn new(pieces: &'a [(usize, Tokens)]) -> Sums<'a> {
        let mut before = Vec::with_capacity(pieces.len());
        let mut sum = 0;
        for (_, tokens) in pieces {
            before.push(sum);
            sum += u64::from(*tokens);
        }
        Sums { pieces, before }
    }

    fn until(&self, at: usize) -> Tokens {
        let i = self.pieces.partition_point(|(end, _)| *end < at);
        let Some((end, tokens)) = self.pieces.get(i) else {
            let whole = self.pieces.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
            return Tokens::try_from(whole).unwrap_or(Tokens::MAX);
        };
        let start = i.checked_sub(1).map_or(0, |i| self.pieces[i].0);
        let part = u64::from(*tokens) * (at - start.min(at)) as u64 / (end - start).max(1) as u64;
        Tokens::try_from(self.before[i] + part).unwrap_or(Tokens::MAX)
    }

    /// The first end of a piece at or behind a byte.
    fn first_end(&self, at: usize) -> Option<usize> {
        self.pieces.get(self.pieces.partition_point(|(end, _)| *end < at)).map(|(end, _)| *end)
    }

    /// The last end of a piece at or before a byte.
    fn last_end(&self, at: usize) -> usize {
        self.pieces.partition_point(|(end, _)| *end <= at).checked_sub(1).map_or(0, |i| self.pieces[i].0)
    }
}

/// Shares out a sum by weights, to the last token.
fn distribute(total: Tokens, weights: &[u64]) -> Vec<Tokens> {
    let whole: u64 = weights.iter().sum();
    let mut given = 0;
    let mut seen = 0;
    let last = weights.len();
    weights
        .iter()
        .enumerate()
        .map(|(i, weight)| {
            seen += weight;
            let upto = match whole {
                0 => u64::from(total) * (i as u64 + 1) / last as u64,
                whole => (u128::from(total) * u128::from(seen) / u128::from(whole)) as u64,
            };
            Tokens::try_from(upto - std::mem::replace(&mut given, upto)).unwrap_or(Tokens::MAX)
        })
        .collect()
}

/// A message's tokens, its words and each of its calls apart; its media come on top.
fn split(tokens: Tokens, weight: &Cost, message: &Message) -> Cost {
    let mut weights = vec![u64::from(weight.text)];
    weights.extend(weight.calls.iter().map(|c| u64::from(*c)));
    let mut shares = distribute(tokens, &weights).into_iter();
    Cost {
        text: shares.next().unwrap_or(0),
        calls: shares.collect(),
        media: message.media.iter().fold(0, |sum, m| sum.saturating_add(tokens::media(m))),
    }
}
