//! Units: what stays or goes together. A *step* is an assistant message with its tool calls and all their results; any
//! other message stands alone. A *turn* is a user message and the steps up to the next.

use std::collections::HashMap;

use super::{Message, Role, ToolCall, person};

/// A run of messages that may only be kept or folded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First message.
    pub start: usize,
    /// One past the last message.
    pub end: usize,
    /// Role of the first message.
    pub role: Role,
}

/// Splits a body that was repaired into units. They cover it without gaps.
pub fn units(body: &[Message]) -> Vec<Unit> {
    let mut out: Vec<Unit> = Vec::with_capacity(body.len());
    for (i, message) in body.iter().enumerate() {
        match out.last_mut() {
            // A result belongs to the unit before it, whatever that is: it may never be the first thing that stays.
            Some(unit) if message.role == Role::Tool => unit.end = i + 1,
            _ => out.push(Unit { start: i, end: i + 1, role: message.role }),
        }
    }
    out
}

/// Index of the last user message.
pub fn last_user(body: &[Message]) -> Option<usize> {
    body.iter().rposition(|m| m.role == Role::User)
}

/// Index of what a person asked last: the last user message that holds words of a person, wherever it stands. Clients
/// send reminders, tool output and files as user messages too; only where there is nothing else is the last of these it.
pub fn request(body: &[Message]) -> Option<usize> {
    body.iter().rposition(is_persons).or_else(|| last_user(body))
}

/// Whether a message holds words that a person wrote.
pub fn is_persons(message: &Message) -> bool {
    message.role == Role::User && person::words(message).is_some()
}

/// Messages among which the first user message must stand to open the session: further down it is not how it began.
const OPENING_WITHIN: usize = 4;

/// Most user messages in a row that are taken for one opening: more are a transcript.
const LONGEST_OPENING: usize = 4;

/// One past the user messages in a row that a session begins with: clients send their rules, the environment and the first
/// request apart or together. 0 where a session begins otherwise.
pub fn opening(body: &[Message]) -> usize {
    let Some(first) = body.iter().take(OPENING_WITHIN).position(|m| m.role == Role::User) else { return 0 };
    let run = body[first..].iter().take(LONGEST_OPENING + 1).take_while(|m| m.role == Role::User).count();
    first + if run > LONGEST_OPENING { 1 } else { run }
}

/// The call that a tool result answers: the message that made it and which of its calls. By id in the nearest step
/// before it, by position where there are no ids.
pub fn call_of(body: &[Message], result: usize) -> Option<(usize, usize)> {
    let message = body.get(result).filter(|m| m.role == Role::Tool)?;
    let caller = body[..result].iter().rposition(|m| m.role != Role::Tool)?;
    let calls = &body[caller].calls;
    if let Some(id) = message.call_id.as_deref().filter(|id| !id.is_empty()) {
        return calls.iter().position(|c| c.id == id).map(|call| (caller, call));
    }
    let place = result - caller - 1;
    (place < calls.len()).then_some((caller, place))
}

/// Whether a message is a tool result whose call is nowhere: clients that cut their own history leave some behind.
pub fn is_orphan(body: &[Message], at: usize) -> bool {
    let Some(message) = body.get(at).filter(|m| m.role == Role::Tool) else { return false };
    let Some(caller) = body[..at].iter().rfind(|m| m.role != Role::Tool) else { return true };
    // Without ids, results answer in order.
    let id = message.call_id.as_deref().unwrap_or("");
    let answers = |call: &ToolCall| id.is_empty() || call.id.is_empty() || call.id == id;
    !caller.calls.iter().any(answers)
}

/// [`call_of`] of every result of a body, and the other way round: who asks for many asks once.
#[derive(Debug, Default)]
pub struct Links {
    calls: Vec<Option<(usize, usize)>>,
    results: HashMap<(usize, usize), usize>,
}

impl Links {
    /// Those of a body.
    pub fn of(body: &[Message]) -> Links {
        let mut links = Links { calls: Vec::with_capacity(body.len()), results: HashMap::new() };
        let mut caller = None;
        let mut by_id: HashMap<&str, usize> = HashMap::new();
        for (at, message) in body.iter().enumerate() {
            if message.role != Role::Tool {
                caller = Some(at);
                by_id.clear();
                message.calls.iter().enumerate().for_each(|(nth, call)| _ = by_id.entry(&call.id).or_insert(nth));
                links.calls.push(None);
                continue;
            }
            let nth = |caller: usize| match message.call_id.as_deref().filter(|id| !id.is_empty()) {
                Some(id) => by_id.get(id).copied(),
                None => Some(at - caller - 1).filter(|place| *place < body[caller].calls.len()),
            };
            let link = caller.and_then(|caller| Some((caller, nth(caller)?)));
            links.calls.push(link);
            if let Some(link) = link {
                links.results.entry(link).or_insert(at);
            }
        }
        links
    }

    /// The call that a result answers.
    pub fn call_of(&self, result: usize) -> Option<(usize, usize)> {
        self.calls.get(result).copied().flatten()
    }

    /// The first result of a call.
    pub fn result_of(&self, message: usize, call: usize) -> Option<usize> {
        self.results.get(&(message, call)).copied()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::openai_chat::message;

    fn body(roles: &str) -> Vec<Message> {
        let one = |c: char| match c {
            'u' => r#"{"role":"user","content":"u"}"#,
            'a' => r#"{"role":"assistant","content":"a"}"#,
            't' => r#"{"role":"tool","tool_call_id":"x","content":"t"}"#,
            _ => r#"{"role":"system","content":"s"}"#,
        };
        roles.chars().map(|c| message(Bytes::from_static(one(c).as_bytes())).unwrap()).collect()
    }

    #[test]
    fn results_stay_with_their_call() {
        for (roles, expect) in [
            ("", vec![]),
            ("u", vec![(0, 1)]),
            ("uattau", vec![(0, 1), (1, 4), (4, 5), (5, 6)]),
            ("usat", vec![(0, 1), (1, 2), (2, 4)]),
        ] {
            let got: Vec<_> = units(&body(roles)).iter().map(|u| (u.start, u.end)).collect();
            assert_eq!(got, expect, "{roles}");
        }
    }

    #[test]
    fn all_links_at_once_are_those_one_by_one() {
        let calls = |ids: &[&str]| {
            let all: Vec<String> = ids
                .iter()
                .map(|id| format!(r#"{{"id":"{id}","function":{{"name":"f","arguments":"{{}}"}}}}"#))
                .collect();
            format!(r#"{{"role":"assistant","tool_calls":[{}]}}"#, all.join(","))
        };
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"t"}}"#);
        let raw = [
            result("a"),
            calls(&["a", "b", "a"]),
            result("b"),
            result("a"),
            result("a"),
            result("none"),
            calls(&["", ""]),
            result(""),
            result(""),
            result(""),
            r#"{"role":"user","content":"u"}"#.to_owned(),
            result("a"),
        ];
        let body: Vec<Message> = raw.into_iter().map(|raw| message(Bytes::from(raw)).unwrap()).collect();
        let links = Links::of(&body);
        for at in 0..=body.len() {
            assert_eq!(links.call_of(at), call_of(&body, at), "{at}");
            for nth in 0..4 {
                let first = (0..body.len()).find(|result| call_of(&body, *result) == Some((at, nth)));
                assert_eq!(links.result_of(at, nth), first, "{at} {nth}");
            }
        }
    }
}
