//! The names that clients give their sessions: they tell where to look, and prove nothing.

use serde_json::json;

use super::support::*;

const ID: &str = "0c6f0f3a-4c65-4c4e-9d7e-2f2a6d1f9f11";

fn id_of(answer: &Answer) -> String {
    answer.header("x-windowsill-conversation").unwrap().to_owned()
}

/// A session whose first message says `first`.
fn session(first: &str, steps: usize) -> Chat {
    (0..steps).fold(chat().user(first), |chat, n| chat.step(n, &format!("part {n}")))
}

#[test]
fn a_history_that_begins_anew_is_found_by_its_session_and_its_messages() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let ways: [&[(&str, &str)]; 4] = [
        &[("session_id", ID)],
        &[("X-Claude-Code-Session-Id", ID)],
        &[("x-session-affinity", ID)],
        &[("x-litellm-session-id", ID)],
    ];
    for headers in ways {
        let proxy = TestProxy::before(&fake);
        let send = |chat: &Chat, headers: &[(&str, &str)]| {
            id_of(&proxy.post("/v1/chat/completions", headers, &chat.body()).ok())
        };
        let first = send(&session("Monday. Repair the build.", 4), headers);
        // The client puts another date into the first message: nothing is a prefix of anything any more.
        assert_eq!(send(&session("Tuesday. Repair the build.", 5), headers), first, "{headers:?}");
        assert_eq!(fake.last().header(headers[0].0), Some(ID), "the server gets the client's own headers");
        let named = proxy.cli(&["context", ID, "--json"]);
        assert!(String::from_utf8_lossy(&named.stdout).contains(&first), "people find it by that name");
    }
    let proxy = TestProxy::before(&fake);
    let send = |chat: &Chat| {
        let chat = chat.clone().with("prompt_cache_key", json!(ID));
        id_of(&proxy.post("/v1/chat/completions", &[], &chat.body()).ok())
    };
    assert_eq!(send(&session("Monday.", 4)), send(&session("Tuesday.", 5)));
}

#[test]
fn the_body_of_another_dialect_names_its_session_too() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let user = json!({"device_id": "d", "session_id": ID}).to_string();
    let send = |day: &str, turns: usize| {
        let mut messages = vec![json!({"role": "user", "content": format!("{day}. Repair the build.")})];
        for n in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("Step {n} is done.")}));
            messages.push(json!({"role": "user", "content": format!("Go on with step {n}.")}));
        }
        let body =
            json!({"model": "test-model", "max_tokens": 64, "metadata": {"user_id": user}, "messages": messages});
        id_of(&proxy.post("/v1/messages", &[], body.to_string().as_bytes()).ok())
    };
    assert_eq!(send("Monday", 3), send("Tuesday", 4));
    assert_eq!(fake.last().header("x-windowsill-client-session"), None);
}

#[test]
fn a_name_never_takes_over_a_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let named = [("session_id", ID)];
    let send = |chat: &Chat| id_of(&proxy.post("/v1/chat/completions", &named, &chat.body()).ok());
    let mine = send(&session("Repair the build.", 4));
    let path = format!("/windowsill/conversations/{mine}/view");
    proxy.eventually(&path, |_| true);
    let view = proxy.get(&path).text();
    // A title, a sub-agent and somebody who knows the name: other histories, other conversations.
    let others = [
        chat().user("Write a title for: Repair the build."),
        session("Search the web.", 1),
        chat().user("Show me everything.").assistant("No.").user("Please.").assistant("No.").user("Go on."),
        // Shorter, with something in common.
        session("Tuesday.", 2),
        // Longer, with too little in common.
        (10..20).fold(session("Another.", 1), |chat, n| chat.step(n, "other")),
    ];
    let ids: std::collections::BTreeSet<String> = others.iter().map(send).collect();
    assert_eq!(ids.len(), others.len(), "{ids:?}");
    assert!(!ids.contains(&mine));
    assert_eq!(proxy.get(&path).text(), view);
    assert_eq!(send(&session("Repair the build.", 5)), mine);
}

/// What one part of this proxy tells another is not listened to where a client says it.
#[test]
fn a_client_cannot_name_the_conversation_that_it_goes_on_in() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let first = chat().system("You write letters.").user("Hello.").assistant("Hello!").user("The word is heron.");
    let post = |headers: &[(&str, &str)], sent: &Chat| proxy.post("/v1/chat/completions", headers, &sent.body()).ok();
    let id = id_of(&post(&[("user-agent", "letters/1")], &first));
    let other = chat().system("You count birds.").user("Hello.").assistant("Hello!").user("How many?");
    let named = post(&[("user-agent", "birds/1"), ("x-windowsill-continues", &id)], &other);
    assert_ne!(id_of(&named), id, "another program's conversation");
    let plain = post(&[("user-agent", "birds/1")], &other);
    assert_eq!(id_of(&plain), id_of(&named));
}
