//! A server that counts and remembers, and evaluates nothing: prompt tokens by windowsill's own estimate, a window, and a
//! prompt cache that knows the last prompt (one slot of llama-server) or the best of the last four (several slots).

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use windowsill::conversation::{Message, Role, Tokens};
use windowsill::measure::tokens::{self, estimate};
use windowsill::plan::Cost;
use windowsill::wire::openai_chat as wire;

/// Words that a template puts around a call.
const PER_CALL: Tokens = 10;

/// Prompts that the kinder of the two caches remembers.
const REMEMBERED: usize = 4;

/// One message of a prompt, as a template spells it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) text: String,
    pub(crate) tokens: Tokens,
}

impl Segment {
    pub(crate) fn new(text: String, tokens: Tokens) -> Rc<Segment> {
        Rc::new(Segment { text, tokens })
    }

    /// A message of one's own.
    pub(crate) fn of_text(role: &str, text: &str) -> Rc<Segment> {
        Segment::new(format!("{role}\n{text}"), tokens::message(text))
    }

    pub(crate) fn of(message: &Message) -> Rc<Segment> {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Other => "other",
        };
        let mut text = format!("{role}\n{}", message.text);
        for call in &message.calls {
            text.push_str(&format!("\n<tool_call>{} {}</tool_call>", call.name, call.arguments));
        }
        Segment::new(text, cost(message).total())
    }
}

/// A prompt.
pub(crate) type Prompt = Vec<Rc<Segment>>;

/// Tokens of a prompt.
pub(crate) fn size(prompt: &[Rc<Segment>]) -> Tokens {
    prompt.iter().map(|s| s.tokens).sum()
}

/// All that a prompt says.
pub(crate) fn text(prompt: &[Rc<Segment>]) -> String {
    prompt.iter().map(|s| s.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// What the server counts for a message.
pub(crate) fn cost(message: &Message) -> Cost {
    Cost {
        text: tokens::message(&message.text),
        calls: message.calls.iter().map(|c| call_cost(&c.name, &c.arguments)).collect(),
        media: message.media.iter().map(tokens::media).sum(),
    }
}

/// What the server counts for a call.
pub(crate) fn call_cost(name: &str, arguments: &str) -> Tokens {
    PER_CALL + estimate(name) + estimate(arguments)
}

/// Tokens that two prompts have in common from the start.
pub(crate) fn common(a: &[Rc<Segment>], b: &[Rc<Segment>]) -> Tokens {
    let mut known = 0;
    for (x, y) in a.iter().zip(b) {
        if Rc::ptr_eq(x, y) || x.text == y.text {
            known += x.tokens;
            continue;
        }
        let mut end = x.text.bytes().zip(y.text.bytes()).take_while(|(p, q)| p == q).count();
        while !x.text.is_char_boundary(end) {
            end -= 1;
        }
        return known + estimate(&x.text[..end]).min(x.tokens).min(y.tokens);
    }
    known
}

/// What one prompt took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    /// Its size.
    pub(crate) tokens: Tokens,
    /// Evaluated with one prompt remembered.
    pub(crate) one: Tokens,
    /// Evaluated with the best of the last four.
    pub(crate) four: Tokens,
}

/// The server.
pub(crate) struct Server {
    pub(crate) window: Tokens,
    past: VecDeque<Prompt>,
}

impl Server {
    pub(crate) fn new(window: Tokens) -> Server {
        Server { window, past: VecDeque::new() }
    }

    /// Takes a prompt; `None` when it does not fit, as llama.cpp refuses what fills the window exactly.
    pub(crate) fn take(&mut self, prompt: &[Rc<Segment>]) -> Option<Served> {
        let tokens = size(prompt);
        if tokens >= self.window {
            return None;
        }
        let of = |p: &Prompt| tokens - common(p, prompt).min(tokens);
        let one = self.past.back().map_or(tokens, of);
        let four = self.past.iter().map(of).min().unwrap_or(tokens);
        self.past.push_back(prompt.to_vec());
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        Some(Served { tokens, one, four })
    }
}

/// The segments of messages that are no longer as the client sent them.
#[derive(Default)]
pub(crate) struct Made {
    known: HashMap<Bytes, Rc<Segment>>,
}

impl Made {
    pub(crate) fn segment(&mut self, bytes: &Bytes) -> Rc<Segment> {
        let read = || Segment::of(&wire::message(bytes.clone()).expect("a view consists of messages"));
        Rc::clone(self.known.entry(bytes.clone()).or_insert_with(read))
    }
}
