//! What a step reads again after it left the prompt: the price of forgetting, as far as it shows.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::is_ours;
use crate::conversation::chain::canonical;
use crate::conversation::edit::{Edit, View};
use crate::conversation::files;
use crate::conversation::step::Links;
use crate::conversation::{Message, Role, ToolCall};

/// Arguments longer than this, in bytes, write something: a call that repeats them reads nothing.
const LONGEST_QUESTION: usize = 600;

/// What a call reads again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The same part of the same file.
    File,
    /// Anything else with the same words and the same answer: a search, a page, a command.
    Query,
    /// The record, by the tool that reads it back.
    Recall,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::File, Kind::Query, Kind::Recall];

    /// As metrics and events name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Query => "query",
            Kind::Recall => "recall",
        }
    }
}

/// A call that reads again what was read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// What kind of reading it is.
    pub kind: Kind,
    /// The message that makes the call.
    pub at: usize,
    /// The message whose text has left the prompt; none for a recall, which may be of anything.
    pub of: Option<usize>,
}

/// Which calls from message `from` on read again what the view has taken out. A result that still stands in the view is not
/// missed, whatever reads it again; and a command that says something else now is no reading.
pub fn missed(body: &[Message], view: &View, from: usize) -> Vec<Missed> {
    let mut out = Vec::new();
    let new = || body.iter().skip(from).flat_map(|message| &message.calls);
    if view.edits.is_empty() || new().next().is_none() {
        return out;
    }
    let asked: HashSet<&str> = new().filter(|call| !is_ours(&call.name)).map(|call| call.name.as_str()).collect();
    let links = Links::of(body);
    // The newest result of each question so far.
    let mut answers: HashMap<(&str, String), usize> = HashMap::new();
    for (at, message) in body.iter().enumerate() {
        if message.role == Role::Tool {
            let call =
                links.call_of(at).map(|(m, c)| &body[m].calls[c]).filter(|call| asked.contains(call.name.as_str()));
            if let Some(question) = call.and_then(question) {
                answers.insert(question, at);
            }
        }
        for (nth, call) in message.calls.iter().enumerate().filter(|_| at >= from) {
            if is_ours(&call.name) {
                out.push(Missed { kind: Kind::Recall, at, of: None });
                continue;
            }
            let Some(of) = question(call).and_then(|question| answers.get(&question).copied()) else { continue };
            if !is_gone(view, of) {
                continue;
            }
            let names_file = read(&call.arguments).as_ref().and_then(files::path).is_some();
            let answer = links.result_of(at, nth);
            let unchanged = answer.is_some_and(|i| body[i].text == body[of].text);
            if names_file || unchanged {
                let kind = if names_file { Kind::File } else { Kind::Query };
                out.push(Missed { kind, at, of: Some(of) });
            }
        }
    }
    out
}

/// What a call asks for, however it is spelled; `None` where it writes something, or asks for nothing that can be told.
fn question(call: &ToolCall) -> Option<(&str, String)> {
    let short = call.arguments.len() <= LONGEST_QUESTION;
    let says = short && read(&call.arguments).is_some_and(|arguments| !arguments.is_empty());
    says.then(|| (call.name.as_str(), canonical(&call.arguments)))
}

fn read(arguments: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(arguments).ok()
}

/// Whether the text of a message has left the view.
fn is_gone(view: &View, message: usize) -> bool {
    view.edits.iter().any(|edit| match edit {
        Edit::Text { at, .. } => *at == message,
        Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&message) && !keep.contains(&message),
        Edit::Arguments { .. } | Edit::Recalled { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::wire::openai_chat;

    /// A step: one call with its result.
    fn step(id: usize, tool: &str, arguments: Value, result: &str) -> [Message; 2] {
        let read = |value: Value| openai_chat::message(value.to_string().into()).unwrap();
        let id = format!("call_{id}");
        let call =
            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}});
        [
            read(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            read(json!({"role": "tool", "tool_call_id": id, "content": result})),
        ]
    }

    #[test]
    fn what_is_read_again_after_it_left_is_missed() {
        let fold = Edit::Fold {
            from: 0,
            to: 8,
            keep: vec![6, 7],
            brief: Arc::from("b"),
            unread: vec![],
            read: Some(8),
            struck: vec![],
        };
        let body: Vec<Message> = [
            step(0, "read_file", json!({"path": "a.rs"}), "fn a() {}"),
            step(1, "search", json!({"query": "retry"}), "a.rs:3"),
            step(2, "run", json!({"cmd": "cargo test"}), "1 failed"),
            step(3, "read_file", json!({"path": "kept.rs"}), "fn kept() {}"),
            // From here on it is new.
            step(4, "read_file", json!({"path": "a.rs"}), "fn a() { 1 }"),
            step(5, "search", json!({"query": "retry"}), "a.rs:3"),
            step(6, "run", json!({"cmd": "cargo test"}), "all passed"),
            step(7, "read_file", json!({"path": "kept.rs"}), "fn kept() {}"),
            step(8, "read_file", json!({"path": "a.rs", "offset": 90}), "}"),
            step(9, "windowsill_recall", json!({"query": "port"}), "8080"),
            step(10, "run", json!({}), "1 failed"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let view = View { messages: 8, edits: vec![fold], ..View::default() };
        let found: Vec<_> = missed(&body, &view, 8).into_iter().map(|m| (m.kind, m.at, m.of)).collect();
        assert_eq!(found, [(Kind::File, 8, Some(1)), (Kind::Query, 10, Some(3)), (Kind::Recall, 18, None)]);
        assert_eq!(missed(&body, &View::default(), 8), []);
        assert_eq!(missed(&body, &view, body.len()), []);
        // Read a second time, it is the newer reading that counts, and that one still stands.
        assert!(missed(&body, &view, 12).iter().all(|m| m.kind == Kind::Recall));
    }
}
