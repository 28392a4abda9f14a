//! The tools that windowsill answers itself: the one by which a model reads back what left its prompt, [`done`] and [`memory`]. Their
//! definitions, what a call of them asks for, how an answer reads, and where such calls stand in a history. Pure: it never reads
//! the record, nor decides who may see what.

mod asked;
pub mod done;
pub mod memory;
pub mod missed;
mod page;
pub mod spoken;

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

pub use asked::{Asked, Reference, question};
pub(crate) use page::lines;
pub use page::{Page, Span, page};

use crate::conversation::chain::Chain;
use crate::conversation::{Digest, Message, Role};
use crate::wire::json::Fields;
use crate::wire::openai_chat;

/// The tool's name.
pub const NAME: &str = "windowsill_recall";

/// The tool as it stands behind the client's own. These bytes are part of every prompt of a conversation: to change them
/// is to have the server evaluate all of these prompts once more.
pub const DEFINITION: &str = r#"{"type":"function","function":{"name":"windowsill_recall","description":"Read back earlier text of this conversation that was cut, cleared or summarized to save context. Give the id that a marker names (windowsill recall ID), numbers of messages (12-40), or a query to search for.","parameters":{"type":"object","properties":{"id":{"type":"string"},"query":{"type":"string"},"offset":{"type":"integer","description":"first line, from 1"},"limit":{"type":"integer","description":"most lines"}}}}}"#;

/// The tool as it stands there; `asks`: where somebody can read a text for the model, and answer a question about it.
pub fn definition(asks: bool) -> Cow<'static, str> {
    if !asks {
        return Cow::Borrowed(DEFINITION);
    }
    let query = r#""query":{"type":"string"},"#;
    let question = r#""question":{"type":"string","description":"with an id: what you want to know of that text, instead of reading it"},"#;
    Cow::Owned(DEFINITION.replace(query, &format!("{query}{question}")))
}

/// A text without what a chat template would take for its own.
pub fn clean(text: &str) -> Cow<'_, str> {
    crate::preview::clean::sanitize(text)
}

/// Whether a model that writes this name means the tool. Some put a namespace before it, or spell it otherwise.
pub fn is_ours(name: &str) -> bool {
    is_named(name, NAME)
}

fn is_named(name: &str, ours: &str) -> bool {
    let bare = name.trim().rsplit(['.', ':', '/']).next().unwrap_or("");
    bare.len() == ours.len()
        && bare
            .bytes()
            .zip(ours.bytes())
            .all(|(a, b)| a.eq_ignore_ascii_case(&b) || b == b'_' && matches!(a, b'-' | b' '))
}

/// The client's `tools` with ours behind them. `None` where the client offers none, or has one of that name itself (another
/// windowsill, say, whose calls are for it to answer).
pub fn offered(tools: &[u8], asks: bool) -> Option<Bytes> {
    with_tool(tools, &definition(asks), NAME)
}

fn with_tool(tools: &[u8], definition: &str, ours: &str) -> Option<Bytes> {
    let text = std::str::from_utf8(tools).ok()?.trim();
    let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    let name = |tool: &&RawValue| {
        let function = Fields::read(tool.get()).ok()?.get("function")?;
        Fields::read(function).ok()?.string("name")
    };
    if all.is_empty() || all.iter().filter_map(name).any(|name| is_named(&name, ours)) {
        return None;
    }
    let before = text.strip_suffix(']')?.trim_end();
    Some(Bytes::from(format!("{before},{definition}]")))
}

/// Tools of ours that a request has from its first prompt on, since tools stand at the head of a prompt: behind the client's, in this
/// order, and before the one that reads back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtHead {
    /// The one that says that a task is done.
    pub done: bool,
    /// The one that reads and writes files that outlive a conversation.
    pub memory: bool,
}

impl AtHead {
    /// Has a request offer these tools. Returns those that it offers then.
    pub fn offer(self, request: &mut openai_chat::Request) -> AtHead {
        AtHead { done: self.done && done::offer(request), memory: self.memory && memory::offer(request) }
    }

    /// Takes back what [`AtHead::offer`] did.
    pub fn withdraw(self, request: &mut openai_chat::Request) {
        let ours = [memory::DEFINITION, done::DEFINITION];
        let Some(listed) = request.listed_tools.clone() else { return };
        let bare = ours.into_iter().fold(listed.clone(), |tools, ours| without_last(&tools, ours).unwrap_or(tools));
        if request.client_tools.as_ref() == Some(&bare) {
            request.listed_tools = None;
            request.conversation.tools = request.client_tools.take();
        } else if bare != listed {
            request.list_more(bare);
        }
    }

    /// The client's tools out of those with ours behind them.
    pub fn without(self, tools: &Bytes) -> Bytes {
        let mut bare = tools.clone();
        for (has, ours) in [(self.memory, memory::DEFINITION), (self.done, done::DEFINITION)] {
            bare = without_last(&bare, ours).filter(|_| has).unwrap_or(bare);
        }
        bare
    }

    /// The definitions of those that are there.
    pub fn definitions(self) -> impl Iterator<Item = &'static str> {
        [(self.done, done::DEFINITION), (self.memory, memory::DEFINITION)]
            .into_iter()
            .filter_map(|(has, ours)| has.then_some(ours))
    }

    /// Whether a call with this name is one of a tool that is there.
    pub fn answers(self, name: &str) -> bool {
        self.done && done::is_ours(name) || self.memory && memory::is_ours(name)
    }
}

/// The tools without the last one, where that is the one of this definition.
fn without_last(tools: &[u8], definition: &str) -> Option<Bytes> {
    let text = std::str::from_utf8(tools).ok()?;
    let before = text.strip_suffix(']')?.strip_suffix(definition)?.strip_suffix(',')?;
    Some(Bytes::from(format!("{before}]")))
}

/// Whether a message calls tools that are answered here, and nothing else.
pub fn is_call(message: &Message) -> bool {
    let ours = |name: &str| is_ours(name) || done::is_ours(name) || memory::is_ours(name);
    !message.calls.is_empty() && message.calls.iter().all(|call| ours(&call.name))
}

/// Puts what was recalled back in front of the replies that it was recalled for. The client never saw it, and sends its
/// history without. `known`: the messages between a prefix and a reply to it.
///
/// Returns the body as the server knows it, and its chain hashes.
pub fn weave(
    seed: &str,
    mut body: Vec<Message>,
    mut known: impl FnMut(&Digest, &Message) -> Vec<Bytes>,
) -> (Vec<Message>, Vec<Digest>) {
    let mut chain = Chain::new(seed);
    let mut digests = Vec::with_capacity(body.len());
    let mut at = 0;
    while at < body.len() {
        // A body that was woven before stays as it is.
        let woven = is_call(&body[at]) || ours_before(&body[..at]);
        if body[at].role == Role::Assistant && !woven {
            let read = known(&chain.tip(), &body[at]).into_iter().map(openai_chat::message);
            // All of them or none: a call without its result is no history.
            let ours = read.collect::<Result<Vec<Message>, _>>().unwrap_or_default();
            digests.extend(ours.iter().map(|message| chain.push(message)));
            let before = at;
            at += ours.len();
            body.splice(before..before, ours);
        }
        digests.push(chain.push(&body[at]));
        at += 1;
    }
    (body, digests)
}

/// Whether the step at the end is a call of the tool.
fn ours_before(body: &[Message]) -> bool {
    body.iter().rev().find(|m| m.role != Role::Tool).is_some_and(is_call)
}

/// Whether a message of a body is a call of the tool or its result.
pub fn is_woven(body: &[Message], at: usize) -> bool {
    match body.get(at) {
        Some(message) if message.role == Role::Tool => ours_before(&body[..at]),
        Some(message) => is_call(message),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::chain;

    #[test]
    fn the_definition_is_json_and_stands_behind_the_clients_own() {
        let own = b" [ {\"type\":\"function\",\"function\":{\"name\":\"f\"}} ] ";
        let all = offered(own, false).unwrap();
        assert!(all.starts_with(&own[1..own.len() - 3]), "{all:?}");
        let read: serde_json::Value = serde_json::from_slice(&all).unwrap();
        assert_eq!(read[1]["function"]["name"], NAME);
        assert_eq!(read.as_array().unwrap().len(), 2);
        let asking: serde_json::Value = serde_json::from_slice(&offered(own, true).unwrap()).unwrap();
        let with = |all: &serde_json::Value| all[1]["function"]["parameters"]["properties"]["question"].is_object();
        assert!(with(&asking) && !with(&read));
        let again = format!("[{DEFINITION}]");
        for none in ["[]", "null", "{}", "", "[1", again.as_str()] {
            assert_eq!(offered(none.as_bytes(), true), None, "{none}");
        }
    }

    #[test]
    fn names_as_models_write_them() {
        for (name, ours) in [
            (NAME, true),
            ("functions.windowsill_recall", true),
            (" Windowsill-Recall", true),
            ("windowsill recall", true),
            ("recall", false),
            ("windowsill_recall2", false),
            ("my_windowsill_recall", false),
            ("", false),
        ] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
    }

    #[test]
    fn what_was_recalled_is_woven_in_once() {
        let say = |raw: &str| openai_chat::message(Bytes::from(raw.to_owned())).unwrap();
        let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"windowsill_recall","arguments":"{}"}}]}"#;
        let result = r#"{"role":"tool","tool_call_id":"1","content":"it was 42"}"#;
        let body = vec![
            say(r#"{"role":"user","content":"q"}"#),
            say(r#"{"role":"assistant","content":"a"}"#),
            say(r#"{"role":"user","content":"r"}"#),
        ];
        let at = chain::chain("s", &body[..1])[0];
        let known = |digest: &Digest, _: &Message| -> Vec<Bytes> {
            if *digest == at { vec![call.into(), result.into()] } else { Vec::new() }
        };
        let (woven, digests) = weave("s", body.clone(), known);
        let roles: Vec<Role> = woven.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Assistant, Role::User]);
        assert_eq!(digests, chain::chain("s", &woven));
        assert_eq!((0..5).map(|i| is_woven(&woven, i)).collect::<Vec<_>>(), [false, true, true, false, false]);
        let (again, same) = weave("s", woven, known);
        assert_eq!((again.len(), same), (5, digests));
        let broken = |_: &Digest, _: &Message| -> Vec<Bytes> { vec![call.into(), "{".into()] };
        assert_eq!(weave("s", body, broken).0.len(), 3);
    }
}
