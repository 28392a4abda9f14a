//! Recorded requests of real clients: `scripts/clients --record` made these excerpts of a session with a resume. What the
//! person asked, the newest results and the files that a client sends stand in every prompt, in few rewrites, and all of it
//! is one conversation.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::support::*;

/// The window: 1.6 times what the client brings, and at least so much that a few of its steps fit.
fn window_of(client: &str, brings: u32) -> u32 {
    (brings * 8 / 5).max(if client == "aider" { 2304 } else { 3072 })
}

const BRIEF: &str = "[windowsill brief of";

/// One request of a client.
struct Recorded {
    path: String,
    body: Value,
    /// Words of what the person asked last.
    asked: String,
    /// The ends of the newest results.
    results: Vec<String>,
    /// The last line of the files that it sends.
    files: Option<String>,
    /// Whether it only adds to the request before.
    goes_on: bool,
}

/// A client's session: each line has the messages that are new, and the other fields where they changed.
fn session(client: &str) -> Vec<Recorded> {
    let file = format!("{}/tests/data/clients/{client}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let (mut history, mut fields): (Vec<Value>, Map<String, Value>) = Default::default();
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let same = line["same"].as_u64().unwrap() as usize;
        let goes_on = same == history.len();
        let key = if line["input"].is_array() { "input" } else { "messages" };
        history.truncate(same);
        history.extend(line[key].as_array().unwrap().iter().cloned());
        if let Some(changed) = line["fields"].as_object() {
            fields = changed.clone();
        }
        let mut body = fields.clone();
        body.insert(key.into(), json!(history));
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Recorded {
            path: text(&line["path"]).unwrap(),
            body: Value::Object(body),
            asked: text(&line["asked"]).unwrap(),
            results: line["results"].as_array().unwrap().iter().filter_map(text).collect(),
            files: text(&line["files"]),
            goes_on,
        }
    };
    text.lines().map(read).collect()
}

/// What came of a replayed session.
#[derive(Debug, Default)]
struct Outcome {
    conversations: BTreeSet<String>,
    requests: usize,
    rewrites: usize,
    folds: usize,
    /// `max_tokens` as asked, where it was lowered.
    lowered: BTreeSet<u64>,
}

/// Replays a session and checks each prompt.
fn replay(client: &str) -> Outcome {
    let recorded = session(client);
    let fake = Fake::start(Kind::LlamaServer, 1 << 20);
    fake.set(|s| s.model = "scripted".into());
    let brings = {
        let proxy = TestProxy::before(&fake);
        proxy.post(&recorded[0].path, &[], recorded[0].body.to_string().as_bytes()).ok();
        tokens(&fake.last().json())
    };
    let window = window_of(client, brings);
    let fake = Fake::start(Kind::LlamaServer, window);
    fake.set(|s| s.model = "scripted".into());
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let (mut outcome, mut before) = (Outcome::default(), Vec::new());
    for (turn, request) in recorded.iter().enumerate() {
        let answer = proxy.post(&request.path, &[], request.body.to_string().as_bytes()).ok();
        let (forwarded, action) = (fake.last(), answer.action().to_owned());
        let place = format!("{client}, request {turn} at {window}, {action}");
        assert!(tokens(&forwarded.json()) <= window, "{place}");
        check(&place, request, &forwarded.messages());
        outcome.conversations.insert(answer.header("x-windowsill-conversation").unwrap().to_owned());
        let rewritten = action.split(',').any(|layer| !matches!(layer, "none" | "evict"));
        outcome.requests += 1;
        outcome.rewrites += usize::from(rewritten);
        outcome.folds += usize::from(action.contains("summarize"));
        let asked = answer.header("x-windowsill-max-tokens").and_then(|said| said.split_once("asked="));
        outcome.lowered.extend(asked.map(|(_, n)| n.parse::<u64>().unwrap()));
        let messages = forwarded.messages();
        if request.goes_on && !rewritten && turn > 0 {
            assert_eq!(messages[..before.len().min(messages.len())], before[..], "{place}: the prompt goes on");
        }
        before = messages;
    }
    outcome
}

/// Checks one prompt.
fn check(place: &str, request: &Recorded, messages: &[Value]) {
    let outside: Vec<String> = messages.iter().map(|m| text(m).split(BRIEF).next().unwrap().to_owned()).collect();
    let stands = |needle: &str| outside.iter().any(|text| text.contains(needle));
    assert!(stands(&request.asked), "{place}: the person's request is missing: {}", json!(messages));
    for result in &request.results {
        assert!(stands(result), "{place}: a newest result is missing: {result}");
    }
    if let Some(files) = &request.files {
        assert!(stands(files), "{place}: the files are missing");
    }
    for message in messages {
        if let Some((_, brief)) = text(message).split_once(BRIEF) {
            assert!(brief.lines().count() > 3, "{place}: a brief that says nothing: {brief}");
        }
    }
}

#[track_caller]
fn is_as_it_should_be(client: &str) -> Outcome {
    let outcome = replay(client);
    eprintln!("{client}: {outcome:?}");
    assert_eq!(outcome.conversations.len(), 1, "{client}: {outcome:?}");
    assert!(outcome.rewrites * 4 <= outcome.requests + 3, "{client}: {outcome:?}");
    outcome
}

/// It sends reminders as system messages, moves `cache_control` about, and asks for 32,000 tokens of reply.
#[test]
fn claude_code() {
    let outcome = is_as_it_should_be("claude");
    assert!(outcome.folds > 0 && outcome.lowered.contains(&32_000), "{outcome:?}");
}

/// The files come as a message of their own, third from the end and another one each time, behind a history that grows in
/// the middle.
#[test]
fn aider() {
    let outcome = is_as_it_should_be("aider");
    assert!(outcome.folds > 0, "{outcome:?}");
}

/// It asks for its whole context as the reply.
#[test]
fn kimi_code() {
    let outcome = is_as_it_should_be("kimi");
    assert!(outcome.folds > 0 && outcome.lowered.contains(&131_072), "{outcome:?}");
}

/// Its resume begins with another list of files, and trims what the assistant said.
#[test]
fn qwen_code() {
    let outcome = is_as_it_should_be("qwen");
    assert!(outcome.folds > 0, "{outcome:?}");
}

/// It asks for a review of the session in a history that begins like it and goes on otherwise: a conversation of its own.
#[test]
fn hermes() {
    let outcome = replay("hermes");
    assert!(outcome.conversations.len() <= 2 && outcome.rewrites * 4 <= outcome.requests + 3, "{outcome:?}");
}

/// The Responses API.
#[test]
fn codex() {
    is_as_it_should_be("codex");
}

/// Once a reply had reasoning, all earlier messages get an empty one.
#[test]
fn pydantic_ai() {
    is_as_it_should_be("pydantic-ai");
}

/// Results come as JSON.
#[test]
fn cline() {
    is_as_it_should_be("cline");
}

/// Calls and results come as text of the assistant's and the user's.
#[test]
fn smolagents() {
    is_as_it_should_be("smolagents");
}
