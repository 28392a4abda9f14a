//! A task is done: its completion record is kept, and the history is folded with it.

use serde_json::json;

use super::support::*;

/// A task of a few steps, done.
fn task() -> Chat {
    let begin = chat().system("s").user("Please mend the harbor's parser.").tools();
    let steps = (0..6).fold(begin, |chat, n| chat.step(n, &prose(n as u64, 5_000)));
    let id = "call_t";
    let tested = steps.call(id, "run", json!({"command": "cargo test"})).result(id, "test result: ok. 12 passed");
    tested.assistant("The parser takes empty input now.").user("Thank you.")
}

#[test]
fn a_task_that_is_done_is_kept_and_folded() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let sent = task();
    let first = proxy.chat(&sent).ok();
    let id = first.header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/checkpoint");
    let asked = fake.summaries().len();
    let done = proxy.post(&path, &[], b"{\"note\": \"Empty input parses.\"}").ok().json();
    assert_eq!((done["folded"].as_bool(), fake.summaries().len()), (Some(true), asked), "no model is asked: {done}");
    let text = done["completion"].as_str().unwrap();
    for (section, fact) in [
        ("Task:", "mend the harbor's parser"),
        ("Outcome:", "Empty input parses."),
        ("Files:", "part_"),
        ("Decisions:", ""),
        ("Verification:", "cargo test"),
        ("Where we are:", ""),
    ] {
        assert!(text.contains(section) && text.contains(fact), "{section} {fact}: {text}");
    }
    // It stands in the next prompt, and is read back like any original.
    proxy.chat(&sent.assistant("You are welcome.").user("Now the next one.")).ok();
    let forwarded = fake.last();
    assert!(tokens(&forwarded.json()) < tokens(&task().value()) / 2);
    assert!(String::from_utf8_lossy(&forwarded.body).contains("Empty input parses."));
    let record = done["record"].as_str().unwrap();
    assert_eq!(proxy.get(&format!("/windowsill/records/{record}")).ok().text(), text);
    let events = proxy.get("/windowsill/events?kind=checkpoint,context_compaction").ok().json();
    let all = events["events"].as_array().unwrap();
    assert_eq!((&all[0]["kind"], &all[0]["data"]["note"]), (&json!("checkpoint"), &json!(true)));
    assert!(all[1]["data"]["because"][0].as_str().unwrap().starts_with("checkpoint: a task is done"), "{events}");
    assert!(!events.to_string().contains("Empty input"), "no text in the trace");
}

#[test]
fn the_second_record_is_of_the_second_task() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let sent = task();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/checkpoint");
    proxy.post(&path, &[], b"").ok();
    assert_eq!(proxy.post(&path, &[], b"").error().0, "nothing_done");
    proxy.chat(&sent.assistant("You are welcome.").user("Write the poem of the lighthouse.")).ok();
    let second = proxy.post(&path, &[], b"{}").ok().json();
    let text = second["completion"].as_str().unwrap();
    assert!(text.contains("lighthouse") && !text.contains("harbor"), "{text}");
    assert_eq!(proxy.post(&path, &[], b"{\"notes\": 1}").status, 400);
    assert_eq!(proxy.post(&path, &[], json!({"note": "x".repeat(5_000)}).to_string().as_bytes()).status, 400);
    assert_eq!(proxy.post("/windowsill/conversations/nope/checkpoint", &[], b"").status, 404);
}
