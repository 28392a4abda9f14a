//! A task is done: its completion record is kept, and the history is folded with it.

use serde_json::{Value, json};

use super::support::script::*;
use super::support::*;

/// The tool by which a model says that a task is done.
const DONE: &str = "windowsill_done";

/// A task of a few steps, done.
fn task() -> Chat {
    steps().assistant("The parser takes empty input now.").user("Thank you.")
}

/// The steps of that task.
fn steps() -> Chat {
    let begin = chat().system("s").user("Please mend the harbor's parser.").tools();
    let steps = (0..6).fold(begin, |chat, n| chat.step(n, &prose(n as u64, 5_000)));
    let id = "call_t";
    steps.call(id, "run", json!({"command": "cargo test"})).result(id, "test result: ok. 12 passed")
}

/// A model that says it is done, and then gives its answer. `with`: what it calls beside it.
fn done_once(fake: &Fake, with: Option<&'static str>) {
    scripted(fake, 7, move |_, seen| {
        let told = seen.messages().iter().any(|m| m["tool_calls"][0]["function"]["name"] == DONE);
        let mut calls = vec![("call_d", DONE.to_owned(), json!({"note": "Empty input parses."}).to_string())];
        calls.extend(with.map(|name| ("call_o", name.to_owned(), json!({"command": "ls"}).to_string())));
        if told { turn("The parser takes empty input now.", Vec::new()) } else { turn("", calls) }
    });
}

fn checkpoints(proxy: &TestProxy) -> Vec<Value> {
    let all = proxy.get("/windowsill/events?kind=checkpoint").ok().json();
    all["events"].as_array().unwrap().clone()
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

#[test]
fn a_model_says_that_it_is_done_and_the_fold_follows_its_reply() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 16_384);
        let proxy = TestProxy::with(&[fake.url()], "[context]\ndone_tool = true\n");
        done_once(&fake, None);
        let sent = if stream { steps().stream() } else { steps() };
        let answer = proxy.chat(&sent).ok();
        assert!(!answer.text().contains(DONE), "the client sees one ordinary reply: {}", answer.text());
        let rounds = fake.mains();
        assert_eq!(rounds.len(), 2, "it is answered within the reply");
        assert_eq!(tools_of(&rounds[0]), ["read_file", "run", DONE]);
        let told = text(rounds[1].messages().last().unwrap()).to_owned();
        let record = id_in(&rounds[1]);
        assert!(told.starts_with("[noted: the task is kept as done"), "{told}");
        let kept = proxy.get(&format!("/windowsill/records/{record}")).ok().text();
        for fact in ["Empty input parses.", "mend the harbor's parser", "cargo test", "Where we are:"] {
            assert!(kept.contains(fact), "{fact}: {kept}");
        }
        let seen = checkpoints(&proxy);
        assert_eq!((seen.len(), &seen[0]["data"]["by"], &seen[0]["data"]["note"]), (1, &json!("model"), &json!(true)));
        // Behind the reply the history is folded with that record, and the new prompt is evaluated ahead. Where the server does
        // not say how long the prompt was, as in a stream without usage, the next request folds.
        let prefill = |seen: &Seen| seen.path() == "/v1/chat/completions" && seen.json()["max_tokens"] == 1;
        if !stream {
            fake.wait("the folded prompt is sent for evaluation", |all| all.iter().any(prefill));
        }
        assert!(fake.summaries().is_empty(), "no model is asked for a brief");
        let next = steps().assistant("The parser takes empty input now.").user("Now the lighthouse.");
        assert_eq!(proxy.chat(&next).ok().action(), "summarize");
        let forwarded = fake.last();
        assert!(tokens(&forwarded.json()) < tokens(&rounds[0].json()) / 2);
        assert!(String::from_utf8_lossy(&forwarded.body).contains("Empty input parses."));
        let all = proxy.get("/windowsill/events?kind=context_compaction").ok().json();
        assert_eq!(all["events"][0]["data"]["because"][0], "checkpoint: a task is done", "{all}");
    }
}

#[test]
fn the_tool_for_a_task_that_is_done_is_there_only_where_it_is_wanted() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let usual = TestProxy::before(&fake);
    usual.chat(&steps()).ok();
    assert_eq!(fake.last().body, steps().body(), "off by default: byte for byte");
    // A model that calls it all the same calls a tool of the client's, as far as windowsill knows.
    done_once(&fake, None);
    assert!(usual.chat(&steps().user("Is it done?")).ok().text().contains(DONE));
    assert!(checkpoints(&usual).is_empty());
    fake.script(|_| Play::Usual);
    let with = |proxy: &TestProxy, chat: &Chat, word: &str| {
        proxy.post("/v1/chat/completions", &[("x-windowsill-done", word)], &chat.body()).ok();
        let seen = fake.last();
        assert!(seen.header("x-windowsill-done").is_none(), "the header goes no further");
        tools_of(&seen)
    };
    assert_eq!(with(&usual, &steps(), "on"), ["read_file", "run", DONE]);
    let proxy = TestProxy::with(&[fake.url()], "[context]\ndone_tool = true\n");
    assert_eq!(with(&proxy, &steps(), "off"), ["read_file", "run"]);
    assert_eq!(fake.last().body, steps().body());
    // A client without tools gets none, nor one that wants several choices.
    for plain in [chat().user("Hello."), steps().with("n", json!(2))] {
        proxy.chat(&plain).ok();
        assert_eq!(fake.last().body, plain.body());
    }
    // Once something left the prompt, the tool that reads back stands behind it, so that the head only grows.
    proxy.chat(&evicted()).ok();
    assert_eq!(tools_of(&fake.last()), ["read_file", "run", DONE, TOOL]);
}

#[test]
fn a_task_is_not_done_while_a_tool_of_the_clients_is_called() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::with(&[fake.url()], "[context]\ndone_tool = true\n");
    done_once(&fake, Some("run"));
    let answer = proxy.chat(&steps()).ok().json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("run")));
    assert!(checkpoints(&proxy).is_empty());
    // The model is told so with the next request.
    proxy.chat(&steps().call("call_o", "run", json!({"command": "ls"})).result("call_o", "src")).ok();
    let held = fake.last().messages();
    assert!(held.iter().any(|m| text(m).starts_with("[not noted: other tools were called with it")), "{held:?}");
}

#[test]
fn a_second_call_without_anything_new_is_told_so() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::with(&[fake.url()], "[context]\ndone_tool = true\n");
    scripted(&fake, 64, |n, _| match n {
        0 | 1 => turn("", vec![("call_d", DONE.to_owned(), json!({"note": "Done."}).to_string())]),
        _ => turn("Done.", Vec::new()),
    });
    proxy.chat(&steps()).ok();
    let said: Vec<String> = fake.mains()[2].messages().iter().filter(|m| m["role"] == "tool").map(text).collect();
    assert!(said[said.len() - 1].starts_with("[nothing was done since"), "{said:?}");
    assert_eq!(checkpoints(&proxy).len(), 1);
}

/// Steps of a task, each with a large result.
fn worked(chat: Chat, of: usize) -> Chat {
    (of..of + 4).fold(chat, |chat, n| chat.step(n, &prose(n as u64, 5_000)))
}

#[test]
fn the_answer_before_it_counts_and_earlier_outcomes_stay_in_the_brief() {
    for window in [8_192, 16_384, 65_536] {
        let fake = Fake::start(Kind::LlamaServer, window);
        let proxy = TestProxy::before(&fake);
        let tasks = [
            ("Mend the harbor's parser.", "We decided to keep tabs as they are. The parser takes empty input now."),
            ("Paint the lighthouse.", "We decided on white paint. The lighthouse is painted."),
            ("Oil the crane.", "We decided on whale oil. The crane turns again."),
        ];
        let mut talk = chat().system("s").tools();
        let mut records = Vec::new();
        for (n, (ask, answer)) in tasks.into_iter().enumerate() {
            talk = worked(talk.user(ask), 10 * n).user("Go on, and say when it is done.");
            fake.set(|s| s.reply = answer.into());
            let id = proxy.chat(&talk).ok().header("x-windowsill-conversation").unwrap().to_owned();
            // The client has not come back with the answer yet.
            let path = format!("/windowsill/conversations/{id}/checkpoint");
            let done = proxy.post(&path, &[], b"").ok().json();
            assert_eq!(proxy.post(&path, &[], b"").error().0, "nothing_done", "the answer is in it already");
            records.push(done["completion"].as_str().unwrap().to_owned());
            talk = talk.assistant(answer);
        }
        for (n, ((ask, answer), record)) in tasks.iter().zip(&records).enumerate() {
            let outcome = format!("Outcome:\n- {answer}");
            let decided = format!("Decisions:\n- {}", answer.split_inclusive('.').next().unwrap());
            for fact in [*ask, "Go on, and say when it is done.", &outcome, &decided] {
                assert!(record.contains(fact), "{window} {n} {fact}: {record}");
            }
            for (other, _) in tasks.iter().skip(n + 1) {
                assert!(!record.contains(other), "{window} {n}: {record}");
            }
            for (_, answer) in tasks.iter().take(n) {
                let own = record.split("Done before:").next().unwrap();
                assert!(!own.contains(answer), "{window} {n}: the decisions of the task before it: {record}");
            }
        }
        proxy.chat(&talk.user("What is left?")).ok();
        let forwarded = String::from_utf8_lossy(&fake.last().body).into_owned();
        for (ask, answer) in tasks {
            let told = forwarded.matches(&answer[answer.find(". ").unwrap() + 2..]).count();
            assert!(forwarded.contains(ask) && told >= 1, "{window} {ask}: {forwarded}");
        }
        assert!(forwarded.contains("Done before:"), "{window}: {forwarded}");
    }
}

#[test]
fn what_a_model_says_beside_its_done_is_the_outcome() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::with(&[fake.url()], "[context]\ndone_tool = true\n");
    scripted(&fake, 64, |n, _| match n {
        0 => turn(
            "We decided to skip blank lines. Empty input parses.",
            vec![("call_d", DONE.to_owned(), "{}".to_owned())],
        ),
        _ => turn("All of it is done: we decided to skip blank lines.", Vec::new()),
    });
    let id = proxy.chat(&steps()).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let record = id_in(&fake.mains()[1]);
    let kept = proxy.get(&format!("/windowsill/records/{record}")).ok().text();
    assert!(kept.contains("Outcome:\n- We decided to skip blank lines. Empty input parses."), "{kept}");
    // Its closing answer is no part of the next task.
    let next = steps().assistant("All of it is done: we decided to skip blank lines.").user("Now the lighthouse.");
    fake.script(|_| Play::Usual);
    fake.set(|s| s.reply = "The lighthouse is painted.".into());
    proxy.chat(&next).ok();
    let path = format!("/windowsill/conversations/{id}/checkpoint");
    let second = proxy.post(&path, &[], b"").ok().json()["completion"].as_str().unwrap().to_owned();
    let own = second.split("Done before:").next().unwrap();
    assert!(own.contains("Outcome:\n- The lighthouse is painted.") && !own.contains("blank lines"), "{second}");
}
