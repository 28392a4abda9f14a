//! What must hold of every forwarded request, and of every original behind it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::servers::Windowsill;
use super::session::{Session, Turn};

/// What stands behind the text of the first user message once something was folded.
const BRIEF: &str = "[windowsill brief of ";

/// Given for a call that the client never answered.
const NO_RESULT: &str = "[no result was recorded for this call]";

/// Checks a forwarded request against the client's.
pub(crate) fn structure(name: &str, client: &Value, forwarded: &Value) {
    for (key, value) in client.as_object().expect("an object") {
        if key != "messages" && key != "max_tokens" {
            assert_eq!(&forwarded[key], value, "{name}: `{key}` is not ours to change");
        }
    }
    let (theirs, ours) = (list(client), list(forwarded));
    assert!(!ours.is_empty(), "{name}: nothing was forwarded");
    let leading = theirs.iter().take_while(|m| m["role"] == "system").count();
    assert_eq!(&ours[..leading], &theirs[..leading], "{name}: leading system messages");
    last_user(name, theirs, ours);
    pairs(name, ours);
    order(name, theirs, ours);
    assert_eq!(ours.last().expect("some")["role"], theirs.last().expect("some")["role"], "{name}: the newest message");
}

fn list(request: &Value) -> &[Value] {
    request["messages"].as_array().expect("messages")
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or("")
}

/// The last user message is as it was; where it is the first too, a brief may stand behind it. One that passes the window
/// alone is cut with a marker.
fn last_user(name: &str, theirs: &[Value], ours: &[Value]) {
    let is_user = |m: &&Value| m["role"] == "user";
    let Some(sent) = theirs.iter().rfind(is_user) else { return };
    let last = ours.iter().rfind(is_user).unwrap_or_else(|| panic!("{name}: no user message is left"));
    let rest = text(last).strip_prefix(text(sent)).map(str::trim_start);
    let intact = last == sent || rest.is_some_and(|r| r.starts_with(BRIEF));
    let cut = text(last).contains("the message alone passes the window; full text: windowsill recall");
    assert!(intact || cut, "{name}: the last user message was changed:\n{last}");
}

/// No result without its call, no call without its result, arguments that are JSON objects.
fn pairs(name: &str, ours: &[Value]) {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut answered: BTreeSet<&str> = BTreeSet::new();
    for message in ours {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().expect("an id");
            assert!(open.remove(id) || answered.contains(id), "{name}: a result without its call: {id}");
            answered.insert(id);
            continue;
        }
        assert!(open.is_empty(), "{name}: calls without their results: {open:?}");
        answered.clear();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            open.insert(call["id"].as_str().expect("an id"));
            let arguments = call["function"]["arguments"].as_str().expect("arguments are a string");
            let read: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{name}: {e}: {arguments}"));
            assert!(read.is_object(), "{name}: {arguments}");
        }
    }
    assert!(open.is_empty(), "{name}: calls without their results: {open:?}");
}

/// What is forwarded is the client's, in its order; what differs says so.
fn order(name: &str, theirs: &[Value], ours: &[Value]) {
    let mut from = 0;
    for message in ours.iter().filter(|m| text(m) != NO_RESULT) {
        let at = theirs[from..].iter().position(|m| m == message || edited(m, message));
        let at = at.unwrap_or_else(|| panic!("{name}: not the client's, or not in its order: {message}"));
        from += at + 1;
    }
}

/// Whether a message is one of the client's with an edit in it.
fn edited(client: &Value, ours: &Value) -> bool {
    let ids = |m: &Value| -> Vec<String> {
        m["tool_calls"].as_array().into_iter().flatten().map(|c| c["id"].to_string()).collect()
    };
    client["role"] == ours["role"]
        && client["tool_call_id"] == ours["tool_call_id"]
        && ids(client) == ids(ours)
        && (client["content"] == ours["content"] || text(ours).contains("windowsill"))
}

/// Ids of records in a text.
fn record_ids(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (at, _) in text.match_indices('r') {
        let free = text[..at].chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric() && c != '/');
        let id: String = text[at + 1..].chars().take_while(char::is_ascii_hexdigit).collect();
        let behind = text[at + 1 + id.len()..].chars().next();
        if free && id.len() == 12 && behind.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '.') {
            out.push(format!("r{id}"));
        }
    }
    out
}

/// What came back from the record.
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    /// Results and arguments that a placeholder or preview stood for.
    pub(crate) originals: usize,
    /// Records that a brief names.
    pub(crate) named: usize,
    /// Messages by their place in the conversation.
    pub(crate) messages: usize,
}

/// Asks for every original that left a prompt in these turns, by the ids that stand in the prompts, and compares with the
/// session.
pub(crate) fn originals(session: &Session, turns: &[Turn], windowsill: &Windowsill) -> Recalled {
    let mut out = Recalled::default();
    // Record id → what must come back.
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    let mut in_briefs: BTreeSet<String> = BTreeSet::new();
    for turn in turns.iter().filter(|t| t.rewritten) {
        let request: Value = serde_json::from_str(&turn.forwarded).unwrap();
        for message in list(&request) {
            match message["role"].as_str() {
                Some("tool") if text(message).contains("windowsill recall r") => {
                    let id = &message["tool_call_id"];
                    let sent = session.messages.iter().find(|m| m["tool_call_id"] == *id).expect("it was sent");
                    let record = record_ids(text(message)).into_iter().next();
                    if let Some(id) = record.filter(|_| message != sent) {
                        expected.insert(id, text(sent).to_owned());
                    }
                }
                Some("user") if text(message).contains(BRIEF) => in_briefs.extend(record_ids(text(message))),
                _ => {}
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let arguments = call["function"]["arguments"].as_str().unwrap_or("");
                let sent = session
                    .messages
                    .iter()
                    .flat_map(|m| m["tool_calls"].as_array().into_iter().flatten())
                    .find(|c| c["id"] == call["id"])
                    .and_then(|c| c["function"]["arguments"].as_str())
                    .expect("it was sent");
                if let Some(id) = record_ids(arguments).into_iter().next().filter(|_| arguments != sent) {
                    expected.insert(id, sent.to_owned());
                }
            }
        }
    }
    for (id, original) in &expected {
        assert_eq!(&windowsill.recall(id), original, "{}: {id} is not what it was", session.name);
        out.originals += 1;
    }
    for id in in_briefs.iter().filter(|id| !expected.contains_key(*id)) {
        let came = windowsill.recall(id);
        let known = session.messages.iter().any(|m| text(m) == came || m.to_string().contains(&Value::from(came.as_str()).to_string()));
        assert!(known, "{}: the brief names {id}, which is none of the session's", session.name);
        out.named += 1;
    }
    let last = turns.last().expect("there were turns");
    let leading = session.messages.iter().take_while(|m| m["role"] == "system").count();
    for (at, message) in session.messages[leading..last.end].iter().enumerate() {
        let came = windowsill.recall(&format!("{}:{at}", last.conversation));
        assert_eq!(came, message.to_string(), "{}: message {at}", session.name);
        out.messages += 1;
    }
    out
}
