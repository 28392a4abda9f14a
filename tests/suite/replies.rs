//! What a model answered last is on record when its reply ends, whoever comes back or does not.

use serde_json::{Value, json};
use windowsill::store::{EventFilter, Store};

use super::dialects::{ALL, Dialect, Read};
use super::support::script::*;
use super::support::*;

/// What the model answers.
const SAID: &str = "The beacon burns whale oil from Tromso.";

/// Chat completions, as a dialect among the others.
const CHAT: Dialect = Dialect {
    name: "chat",
    path: "/v1/chat/completions",
    ask: |chat| chat.value(),
    whole: |_| Read::default(),
    stream: |_| Read::default(),
    error: |_| None,
    ends: ("stop", "tool_calls"),
};

fn dialects() -> impl Iterator<Item = &'static Dialect> {
    [&CHAT].into_iter().chain(&ALL)
}

fn body(dialect: &Dialect, chat: Chat, stream: bool) -> Vec<u8> {
    (dialect.ask)(&chat.with("stream", json!(stream))).to_string().into_bytes()
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// The text of the last message that the record has of a conversation.
fn last(proxy: &TestProxy, id: &str) -> Value {
    let all = proxy.get(&format!("/windowsill/conversations/{id}/messages")).ok().json();
    let last = all["messages"].as_array().unwrap().last().cloned().unwrap();
    assert_eq!(all["total"], last["at"].as_u64().unwrap() + 1, "{all}");
    proxy.get(&format!("/windowsill/conversations/{id}/messages/{}", last["at"])).ok().json()
}

/// Where these words stand in a conversation, by the record.
fn found(proxy: &TestProxy, id: &str, words: &str) -> Vec<usize> {
    let hits = Store::open_readonly(&proxy.data()).unwrap().search(words, Some(id), 9).unwrap();
    hits.into_iter().map(|hit| hit.at).collect()
}

#[test]
fn a_reply_survives_a_kill_right_behind_its_end() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    fake.set(|s| s.reply = SAID.into());
    for dialect in dialects() {
        for stream in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let served = Served::start(dir.path(), &[fake.url()], "");
            let asked = body(dialect, chat().user("What does the beacon burn?"), stream);
            let answer = request(served.address, "POST", dialect.path, &[JSON], &asked).ok();
            served.kill();
            let id = answer.header("x-windowsill-conversation").unwrap();
            let store = Store::open_readonly(&dir.path().join("data")).unwrap();
            let reply = store.last_reply(id).unwrap().unwrap_or_else(|| panic!("{} {stream}: no reply", dialect.name));
            assert_eq!((reply.at, reply.role.as_str()), (1, "assistant"));
            assert_eq!(serde_json::from_slice::<Value>(&reply.raw).unwrap()["content"], SAID, "{}", dialect.name);
            assert_eq!(store.search("whale oil", Some(id), 5).unwrap().len(), 1);
            if !stream {
                // What it cost came into the record with it.
                let of = EventFilter { conversation: Some(id.to_owned()), kinds: vec!["model_usage".into()] };
                assert_eq!(store.trace().since(0, 9, &of).unwrap().len(), 1, "{}", dialect.name);
            }
        }
    }
}

#[test]
fn a_reply_that_the_client_left_is_on_record_as_far_as_it_came() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let event = |text: &str| chunk(format!("data: {}\n\n", event(json!({"content": text}), json!(null))).as_bytes());
    let begun = [sse_head(), event("The beacon "), event("burns whale")].concat();
    for (nth, dialect) in dialects().enumerate() {
        for offered in [false, true] {
            // Where windowsill's own tool is in the prompt, replies take another way.
            let said = format!("Go on, {}.", dialect.name);
            let asked = if offered { evicted().user(&said) } else { chat().user(&said) };
            let (begun, never) = (begun.clone(), Gate::default());
            fake.script(move |seen| match seen.is_main() {
                true => Play::Then(begun.clone(), never.clone(), Box::new(Play::Usual)),
                false => Play::Usual,
            });
            let mut conn = Conn::open(proxy.address);
            conn.send("POST", dialect.path, &[JSON], &body(dialect, asked, true));
            let head = conn.head().unwrap();
            let id = head.header("x-windowsill-conversation").unwrap().to_owned();
            conn.until("burns whale");
            drop(conn);
            fake.wait_hung_up(2 * nth + usize::from(offered) + 1);
            let path = format!("/windowsill/conversations/{id}/messages");
            let at = proxy.eventually(&path, |all| {
                all["messages"].as_array().unwrap().last().is_some_and(|last| last["role"] == "assistant")
            });
            let at = at["total"].as_u64().unwrap() - 1;
            let kept = proxy.get(&format!("{path}/{at}")).ok().json();
            assert_eq!(kept["text"], "The beacon burns whale", "{} {offered}", dialect.name);
        }
    }
}

#[test]
fn the_record_is_read_with_the_last_reply_and_never_says_it_twice() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    fake.set(|s| s.reply = SAID.into());
    let proxy = TestProxy::before(&fake);
    for (nth, dialect) in dialects().enumerate() {
        let talk = chat().system(&format!("System {nth}.")).user("What does the beacon burn?");
        let send = |talk: &Chat| proxy.post(dialect.path, &[], &body(dialect, talk.clone(), nth % 2 == 0)).ok();
        let id = send(&talk).header("x-windowsill-conversation").unwrap().to_owned();
        assert_eq!(last(&proxy, &id)["text"], SAID);
        assert_eq!(found(&proxy, &id, "whale oil"), [1]);
        let path = format!("/windowsill/conversations/{id}/build");
        let built = proxy.post(&path, &[], b"{\"turns\": [1]}").ok().json();
        assert_eq!(built["messages"][1]["content"], SAID, "{built}");
        // The client has it in other words, which are the ones that count.
        let spelled = format!("{SAID}  Always.");
        let forwarded = talk.clone().assistant(&spelled).user("Thanks.");
        assert_eq!(send(&forwarded).header("x-windowsill-conversation"), Some(id.as_str()), "{}", dialect.name);
        let mut at = found(&proxy, &id, "whale oil from Tromso");
        at.sort_unstable();
        assert_eq!(at, [1, 3], "the first in the client's words, and the new one");
        let first = proxy.get(&format!("/windowsill/conversations/{id}/messages/1")).ok().json();
        assert!(first["text"].as_str().unwrap().ends_with("Always."), "{first}");
    }
}

#[test]
fn a_reply_of_calls_is_on_record_and_waits_for_its_results() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let calls = || vec![("call_1", "run".to_owned(), json!({"command": "ls /harbor"}).to_string())];
    scripted(&fake, 16, move |_, _| turn("I look.", calls()));
    for dialect in dialects() {
        let talk = chat().user(&format!("List it, {}.", dialect.name)).tools();
        let answer = proxy.post(dialect.path, &[], &body(dialect, talk, dialect.name != "ollama")).ok();
        let id = answer.header("x-windowsill-conversation").unwrap();
        let text = last(&proxy, id)["text"].as_str().unwrap().to_owned();
        assert!(text.contains("I look.") && text.contains("/harbor"), "{}: {text}", dialect.name);
        // A conversation that is built of it does not end in a call without a result.
        let path = format!("/windowsill/conversations/{id}/build");
        let built = proxy.post(&path, &[], b"{\"turns\": [1]}").ok().json();
        assert_eq!(built["messages"].as_array().unwrap().len(), 1, "{built}");
    }
}

#[test]
fn the_last_reply_changes_no_prompt_and_no_name() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    fake.set(|s| s.reply = SAID.into());
    let dir = {
        let proxy = TestProxy::before(&fake);
        let talk = chat().user("What does the beacon burn?");
        proxy.chat(&talk).ok();
        proxy.stop()
    };
    let again = TestProxy::at(dir, &[fake.url()], "");
    let talk = chat().user("What does the beacon burn?").assistant("Oil of whales.").user("Since when?");
    let first = again.chat(&talk).ok();
    assert_eq!(fake.last().body, talk.body(), "byte for byte");
    let asked_again = again.chat(&talk).ok();
    let edited =
        again.chat(&chat().user("What does the beacon burn?").assistant("Oil of whales.").user("And why?")).ok();
    let name = |answer: &Answer| answer.header("x-windowsill-conversation").unwrap().to_owned();
    assert_eq!(name(&first), name(&asked_again));
    assert_ne!(name(&first), name(&edited), "another last message is another branch, reply or not");
}

#[test]
fn chats_that_begin_alike_are_told_apart_by_their_replies_after_a_restart() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let replies = ["The first beacon burns oil.", "The second beacon burns wood.", "The third is dark."];
    let ids: Vec<String> = replies
        .iter()
        .map(|reply| {
            fake.set(|s| s.reply = (*reply).into());
            let answer = proxy.chat(&chat().user("What does the beacon burn?")).ok();
            answer.header("x-windowsill-conversation").unwrap().to_owned()
        })
        .collect();
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
    for (reply, id) in replies.iter().zip(&ids).rev() {
        let goes_on = chat().user("What does the beacon burn?").assistant(reply).user("Since when?");
        assert_eq!(proxy.chat(&goes_on).ok().header("x-windowsill-conversation"), Some(id.as_str()), "{reply}");
    }
}
