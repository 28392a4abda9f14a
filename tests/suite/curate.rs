//! A new conversation from chosen turns of an old one.

use serde_json::{Value, json};

use super::support::*;

fn talk() -> Chat {
    chat()
        .system("You are terse.")
        .user("Read a.")
        .call("call_1", "read", json!({"path": "a"}))
        .result("call_1", "alpha")
        .assistant("It says alpha.")
        .user("And what is b?")
        .assistant("I do not know.")
        .user("Never mind.")
}

#[test]
fn chosen_turns_become_messages_word_for_word() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = talk();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    let segments = proxy.eventually(&format!("{base}/segments"), |v| v["turns"].is_array());
    let spans: Vec<(u64, u64)> = segments["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["from"].as_u64().unwrap(), t["to"].as_u64().unwrap()))
        .collect();
    assert_eq!(spans, [(0, 4), (4, 6), (6, 8)], "the answer to the last ask is in its turn");
    let steps: Vec<&str> =
        segments["turns"][0]["steps"].as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["1.0", "1.1", "1.2"], "what was asked, the call with its result, the answer");
    let build = |body: &Value| proxy.post(&format!("{base}/build"), &[], body.to_string().as_bytes());
    let built = build(&json!({"turns": [2, "1.1", "1.0"]})).ok().json();
    let expect: Vec<Value> = [1, 2, 3, 5, 6].iter().map(|n| sent.messages[*n].clone()).collect();
    assert_eq!(built["messages"], json!(expect), "in the order of the conversation, each call with its result");
    // What was built is taken by the server behind it.
    let mut next = chat();
    next.messages = expect;
    proxy.chat(&next.user("Go on.")).ok();
    let view = proxy.get(&format!("{base}/view")).ok().json();
    assert_eq!(view["messages"].as_array().unwrap()[..], sent.messages[1..], "the original is untouched");
    let out = proxy.cli(&["build", &id, "--turns", "1.0,1.1,2-2"]);
    let printed: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(printed["messages"], built["messages"]);
    let whole = build(&json!({"turns": [1]})).ok().json();
    assert_eq!(whole["messages"].as_array().unwrap()[..], sent.messages[1..5], "a turn with all that follows");
    assert!(String::from_utf8(proxy.cli(&["build", &id]).stdout).unwrap().contains("Never mind."));
    for (body, status) in [
        (json!({}), 400),
        (json!({"turns": [5]}), 400),
        (json!({"turns": ["1.3"]}), 400),
        (json!({"turns": ["one"]}), 400),
        (json!({"turns": [0]}), 400),
        (json!({"briefs": [1]}), 400),
        (json!({"turns": "1"}), 400),
        (json!({"select": [1]}), 400),
    ] {
        assert_eq!(build(&body).status, status, "{body}");
    }
    assert_eq!(proxy.cli(&["build", &id, "--turns", "one"]).status.code(), Some(2));
    assert_eq!(proxy.cli(&["build", &id, "--turns", "9"]).status.code(), Some(1));
}

#[test]
fn a_brief_stands_for_its_turns() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut sent = chat().user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    proxy.post(&format!("{base}/compact"), &[], b"{}").ok();
    let segments = proxy.get(&format!("{base}/segments")).ok().json();
    let (brief, all) = (&segments["briefs"][0], segments["turns"].as_array().unwrap());
    let folded = brief["turns"][0].as_u64().unwrap();
    let last = all.len();
    let build = |body: &Value| proxy.post(&format!("{base}/build"), &[], body.to_string().as_bytes());
    let built = build(&json!({"turns": [last], "briefs": [1]})).ok().json();
    assert_eq!(built["messages"][0]["content"], brief["text"]);
    let [.., asked, reply] = &built["messages"].as_array().unwrap()[..] else { panic!("{built}") };
    assert_eq!((Some(asked), &reply["role"]), (sent.messages.last(), &json!("assistant")));
    let (code, message) = build(&json!({"turns": [folded], "briefs": [1]})).error();
    assert_eq!(code, "bad_selection", "{message}");
}
