//! What must hold of every request: the invariants, each as a function that says what is wrong.

use std::collections::HashSet;

use serde_json::Value;
use serde_json::value::RawValue;

use super::session::{REMINDER, Tongue};
use crate::support::script::TOOL;
use crate::support::*;

/// One request of a client's, and what came of it.
pub(super) struct Asked<'a> {
    pub(super) tongue: Tongue,
    pub(super) chat: &'a Chat,
    pub(super) body: &'a [u8],
    pub(super) kind: Kind,
    /// The smallest window that the server ever had, or claimed to have.
    pub(super) window: u32,
    /// Whether the server once did not count a prompt of this client.
    pub(super) uncounted: bool,
    /// Prompt tokens as the answer tells them.
    pub(super) told: Option<u32>,
    /// As the server got it, the rounds of recall included.
    pub(super) forwarded: &'a [Seen],
}

/// The last message that a person wrote.
fn asked_last(chat: &Chat) -> Option<&Value> {
    chat.messages.iter().rev().find(|m| m["role"] == "user" && !text(m).starts_with(REMINDER))
}

impl Asked<'_> {
    /// Tokens of what has to stay: what leads, the tools, and what the person asked last.
    pub(super) fn least(&self) -> u32 {
        let mut chat = self.chat.clone();
        chat.messages = self.leading().into_iter().chain(asked_last(self.chat)).cloned().collect();
        tokens(&chat.value())
    }

    fn estimated(&self) -> bool {
        self.uncounted || matches!(self.kind, Kind::OpenAi | Kind::Ollama)
    }

    /// How many times the real size an estimate may be: a half more for a server that counts as no vocabulary does, and up to
    /// twice as much where the answer says so.
    fn excess(&self) -> f64 {
        let first = self.forwarded.first().map(|seen| tokens(&seen.json()));
        let real = first.zip(self.told).map(|(real, told)| f64::from(told) / f64::from(real));
        real.unwrap_or(0.0).clamp(1.5, 2.0)
    }

    fn leading(&self) -> Vec<&Value> {
        self.chat.messages.iter().take_while(|m| m["role"] == "system").collect()
    }

    /// Invariants 2, 3 and 4 of everything that was forwarded.
    pub(super) fn wrong(&self, refused: bool) -> Vec<String> {
        let mut out = Vec::new();
        for seen in self.forwarded {
            let body = seen.json();
            let none = Vec::new();
            let messages = body["messages"].as_array().unwrap_or(&none);
            out.extend(pairs(messages));
            out.extend(self.kept(&body, messages, refused));
            if self.tongue == Tongue::Chat && self.kind != Kind::Ollama {
                out.extend(self.bytes(&seen.body));
            }
        }
        out
    }

    /// What must be there, unchanged.
    fn kept(&self, body: &Value, messages: &[Value], refused: bool) -> Vec<String> {
        let mut out = Vec::new();
        let leading: Vec<String> = messages.iter().take_while(|m| m["role"] == "system").map(text).collect();
        let own: Vec<String> = self.leading().into_iter().map(text).collect();
        if leading.concat() != own.concat() {
            out.push("the leading system messages were changed".into());
        }
        if tool_names(body) != tool_names(&self.chat.value()) {
            out.push("the tools were changed".into());
        }
        let least = if self.estimated() { (f64::from(self.least()) * self.excess()) as u32 } else { self.least() };
        // In the smallest windows the recall tool alone takes a fifth of it.
        let full = self.estimated() && (self.window < 1536 || tokens(body) > self.window / 3 * 2);
        // A server that names a size far above the real one makes the last words look too large.
        // Beside them stand the recall tool (190 tokens), what is left of the opening, and a brief (130).
        let large = refused || full || least + 320 > self.window / 4 * 3;
        if let Some(last) = asked_last(self.chat).filter(|_| !large) {
            let last = text(last);
            if !messages.iter().any(|m| text(m).contains(last.trim())) {
                out.push(format!("what the person asked last is gone: {last:.80}"));
            }
        }
        out
    }

    /// An unedited message keeps its bytes, and so does a request that nothing was edited in.
    fn bytes(&self, forwarded: &[u8]) -> Vec<String> {
        let (theirs, ours) = (raw_messages(self.body), raw_messages(forwarded));
        let value = |raw: &str| serde_json::from_str::<Value>(raw).unwrap_or_default();
        let sent: Vec<Value> = theirs.iter().map(|raw| value(raw)).collect();
        let respelled = ours.iter().find(|raw| !theirs.contains(raw) && sent.contains(&value(raw)));
        respelled.map(|raw| format!("an unedited message lost its bytes: {raw:.80}")).into_iter().collect()
    }

    /// Whether there is so much room that nothing may be edited.
    pub(super) fn fits_easily(&self) -> bool {
        let asks = self.chat.fields.get("max_tokens").and_then(Value::as_u64).unwrap_or(0) as u32;
        let largest = self.chat.messages.iter().map(|m| text(m).len() / 4).max().unwrap_or(0);
        // As large as it may be taken for.
        let times = if self.estimated() { self.excess() } else { 1.0 };
        let (all, largest) = (f64::from(tokens(&self.chat.value())) * times, largest as f64 * times);
        let window = f64::from(self.window);
        all < window * 0.3 && asks < self.window / 5 && largest < window / 7.0
    }
}

fn raw_messages(body: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Request {
        messages: Vec<Box<RawValue>>,
    }
    let request: Option<Request> = serde_json::from_slice(body).ok();
    request.map_or_else(Vec::new, |r| r.messages.into_iter().map(|m| m.get().to_owned()).collect())
}

fn tool_names(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools.filter_map(|t| t["function"]["name"].as_str()).filter(|n| *n != TOOL).map(str::to_owned).collect()
}

/// No result without its call, no call without its results.
fn pairs(messages: &[Value]) -> Vec<String> {
    let mut out = Vec::new();
    // Calls that wait for their results; those of Ollama's have no ids.
    let mut open: Vec<Option<&str>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str();
            match open.iter().position(|o| id.is_none() || o.is_none() || *o == id) {
                Some(found) => drop(open.remove(found)),
                None => out.push(format!("a result without its call at {at}")),
            }
            continue;
        }
        if !open.is_empty() {
            out.push(format!("a call without its result before {at}"));
        }
        open = message["tool_calls"].as_array().into_iter().flatten().map(|c| c["id"].as_str()).collect();
    }
    if !open.is_empty() {
        out.push("a call without its result at the end".into());
    }
    if messages.is_empty() {
        out.push("no messages".into());
    }
    out
}

/// Invariant 1, of a client that got no answer: an error in its own dialect says why.
pub(super) fn says_why(tongue: Tongue, answer: &Answer) -> Option<String> {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let said = match tongue {
        Tongue::Chat | Tongue::Responses => body["error"]["message"].as_str(),
        Tongue::Anthropic => body["error"]["message"].as_str().filter(|_| body["type"] == "error"),
        Tongue::Ollama => body["error"].as_str(),
    };
    match said {
        Some(said) if !said.is_empty() => None,
        _ => Some(format!("status {} without a reason in the client's dialect: {:.200}", answer.status, answer.text())),
    }
}

/// Invariant 10: whose marks, of all clients', stand in a request.
pub(super) fn marks<'a>(body: &[u8], all: &'a [String]) -> HashSet<&'a str> {
    let text = String::from_utf8_lossy(body);
    all.iter().map(String::as_str).filter(|mark| text.contains(mark)).collect()
}

/// Whether a forwarded request says what the client's does: a message may be spelled as it came first, with other white space.
pub(super) fn says_the_same(client: &[u8], forwarded: &[u8]) -> bool {
    let parse = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap_or_default();
    let said = |body: &Value| -> Vec<(Value, String, Value)> {
        let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let words = |m: &Value| text(m).split_whitespace().collect::<Vec<_>>().join(" ");
        messages.iter().map(|m| (m["role"].clone(), words(m), m["tool_calls"].clone())).collect()
    };
    let (client, forwarded) = (parse(client), parse(forwarded));
    said(&client) == said(&forwarded) && client["tools"] == forwarded["tools"]
}

/// The words of an original: of a message of several parts the record keeps the JSON.
pub(super) fn said_in(original: &str) -> String {
    let message = serde_json::from_str::<Value>(original).ok().filter(|value| value["content"].is_array());
    message.map_or_else(|| original.to_owned(), |message| text(&message))
}
