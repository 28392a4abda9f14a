//! What must hold of every forwarded request, and of every original behind it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windowsill::plan::rewrite::ACKNOWLEDGED;

use super::servers::Windowsill;
use super::session::{Session, Turn};

/// What stands behind the text of the first user message once something was folded.
const BRIEF: &str = "[windowsill brief of ";

/// What stands behind a message begins so where windowsill found something of the conversation that it points at.
const RECALLED: &str = "[from earlier in this conversation, found by windowsill";

/// Given for a call that the client never answered.
const NO_RESULT: &str = "[no result was recorded for this call]";

/// Checks a forwarded request against the client's.
pub(crate) fn structure(name: &str, client: &Value, forwarded: &Value) {
    for (key, value) in client.as_object().expect("an object") {
        if key == "tools" {
            // One of ours may stand behind the client's own.
            let (own, all) = (value.as_array().expect("tools"), forwarded[key].as_array().expect("tools"));
            assert_eq!(&all[..own.len()], &own[..], "{name}: the tools are not ours to change");
            let added = all[own.len()..].iter().map(|t| t["function"]["name"].as_str());
            assert!(added.clone().count() <= 1 && added.flatten().all(|n| n == "windowsill_recall"), "{name}: {all:?}");
        } else if key != "messages" && key != "max_tokens" {
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
    let newest = ours.iter().rfind(|m| text(m) != NO_RESULT).expect("some");
    let sent = theirs.last().expect("some");
    assert!(newest == sent || newest["role"] == sent["role"], "{name}: the newest message is not there: {newest}");
}

fn list(request: &Value) -> &[Value] {
    request["messages"].as_array().expect("messages")
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or("")
}

/// The last user message is as it was. Behind its words may stand what was recalled ahead, and a brief where it is the first too.
/// One that passes the window alone is cut with a marker.
fn last_user(name: &str, theirs: &[Value], ours: &[Value]) {
    let is_user = |m: &&Value| m["role"] == "user";
    let Some(sent) = theirs.iter().rfind(is_user) else { return };
    let last = ours.iter().rfind(is_user).unwrap_or_else(|| panic!("{name}: no user message is left"));
    let rest = text(last).strip_prefix(text(sent)).map(str::trim_start);
    let intact = last == sent || rest.is_some_and(|r| r.starts_with(BRIEF) || r.starts_with(RECALLED));
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
    for (i, message) in ours.iter().enumerate().filter(|(_, m)| text(m) != NO_RESULT) {
        if text(message) == ACKNOWLEDGED {
            assert!(text(&ours[i - 1]).contains(BRIEF), "{name}: stands behind a brief only");
            continue;
        }
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
    /// Texts and arguments that a placeholder or preview stood for.
    pub(crate) originals: usize,
    /// Records that only a brief names.
    pub(crate) named: usize,
}

/// Asks for every original that left a prompt in these turns, by the ids that stand in the prompts, and compares with the
/// session.
pub(crate) fn originals(session: &Session, turns: &[Turn], windowsill: &Windowsill) -> Recalled {
    let mut out = Recalled::default();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut in_briefs = BTreeSet::new();
    for turn in turns.iter().filter(|t| t.rewritten) {
        let request: Value = serde_json::from_str(&turn.forwarded).unwrap();
        for message in list(&request).iter().filter(|m| !session.messages.contains(m)) {
            collect(session, message, &mut expected, &mut in_briefs);
        }
    }
    for (id, candidates) in &expected {
        let came = windowsill.recall(id);
        assert!(candidates.contains(&came), "{}: {id} is not what it was:\n{came}", session.name);
        out.originals += 1;
    }
    for id in in_briefs.iter().filter(|id| !expected.contains_key(*id)) {
        let came = windowsill.recall(id);
        let known = session.messages.iter().any(|m| text(m) == came || arguments(m).any(|(_, a)| a == came));
        assert!(known, "{}: the brief names {id}, which is none of the session's:\n{came}", session.name);
        out.named += 1;
    }
    out
}

/// What must come back by the ids that stand in one rewritten message: ids of calls may be used again, so there may be
/// several candidates.
fn collect(
    session: &Session,
    message: &Value,
    expected: &mut BTreeMap<String, Vec<String>>,
    in_briefs: &mut BTreeSet<String>,
) {
    let said = text(message);
    let brief = said.find(BRIEF).unwrap_or(said.len());
    in_briefs.extend(record_ids(&said[brief..]));
    if let Some(id) = record_ids(&said[..brief]).into_iter().next() {
        let same = |m: &&Value| m["role"] == message["role"] && m["tool_call_id"] == message["tool_call_id"];
        expected.insert(id, session.messages.iter().filter(same).map(|m| text(m).to_owned()).collect());
    }
    for (call, ours) in arguments(message) {
        let theirs: Vec<String> = session
            .messages
            .iter()
            .flat_map(arguments)
            .filter(|(id, _)| *id == call)
            .map(|(_, arguments)| arguments.to_owned())
            .collect();
        if let Some(id) = record_ids(ours).into_iter().next().filter(|_| !theirs.iter().any(|a| a == ours)) {
            expected.insert(id, theirs);
        }
    }
}

/// Each call's id and arguments.
fn arguments(message: &Value) -> impl Iterator<Item = (&str, &str)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.map(|c| (c["id"].as_str().unwrap_or(""), c["function"]["arguments"].as_str().unwrap_or("")))
}

/// Asks for every message of a conversation by its place, folded or not. Returns how many came back as they were sent.
pub(crate) fn messages(session: &Session, last: &Turn, windowsill: &Windowsill) -> usize {
    let leading = session.messages.iter().take_while(|m| m["role"] == "system").count();
    let body = &session.messages[leading..last.end];
    for (at, message) in body.iter().enumerate() {
        let came = windowsill.recall(&format!("{}:{at}", last.conversation));
        assert_eq!(came, message.to_string(), "{}: message {at}", session.name);
    }
    body.len()
}
