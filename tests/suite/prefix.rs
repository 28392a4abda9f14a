//! The prompt cache: each prompt begins with the last one, and where it does not the record says whose doing that was.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::support::script::{TOOL, tools_of};
use super::support::*;

/// A step with two calls at once, as the client first sends it.
fn pair(sent: Chat, n: usize, bytes: usize) -> Chat {
    let (a, b) = (format!("a{n}"), format!("b{n}"));
    let arguments = format!(r#"{{"path":"src/{n}.rs","lines":[1,{n}]}}"#);
    let mut sent = sent.calls(&[(&a, "read_file", &arguments), (&b, "run", &arguments)]);
    let last = sent.messages.last_mut().unwrap();
    last["reasoning_content"] = json!(format!("I should look at part {n}."));
    sent.result(&a, &prose(n as u64, bytes)).result(&b, &prose(1000 + n as u64, bytes))
}

/// The same history as real clients send it a turn later: `cache_control` moved to the newest message, reasoning stripped,
/// arguments spelled otherwise, results of parallel calls in another order.
fn wandering(sent: &Chat, turn: usize) -> Chat {
    let mut out = sent.clone();
    let count = out.messages.len();
    for at in 0..count {
        let message = &mut out.messages[at];
        if message["tool_calls"].is_array() && at + 3 < count {
            message.as_object_mut().unwrap().remove("reasoning_content");
            let n = message["tool_calls"][0]["id"].as_str().unwrap()[1..].to_owned();
            let other = format!(r#"{{ "lines": [1, {n}],  "path": "src/{n}.rs" }}"#);
            for call in message["tool_calls"].as_array_mut().unwrap() {
                call["function"]["arguments"] = json!(other);
            }
            if (at + turn).is_multiple_of(2) {
                out.messages.swap(at + 1, at + 2);
            }
        }
    }
    let last = out.messages.last_mut().unwrap();
    let text = text(last);
    last["content"] = json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    out
}

/// What the replies' events say of the prompts' common beginnings, oldest first.
fn prefixes(proxy: &TestProxy, replies: usize) -> Vec<Value> {
    let read = |events: &Value| -> Vec<Value> {
        let all = events["events"].as_array().unwrap().iter();
        all.filter(|e| e["data"]["role"] == "main").map(|e| e["data"]["prefix"].clone()).collect()
    };
    read(&proxy.eventually("/windowsill/events", |events| read(events).len() >= replies))
}

/// The count of a server that is busy may fail, and an estimate is not what the view was made by.
#[test]
fn a_history_that_cannot_be_counted_again_is_sent_as_before() {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut warned = 0;
    for n in 0..12 {
        // The result is cut to the room that the person's words leave.
        let asked = chat().user(&prose(n, 5000 + 150 * n as usize));
        let asked = asked.calls(&[("a", "read_file", r#"{"path":"a.rs"}"#)]).result("a", &prose(100 + n, 4000));
        fake.script(|_| Play::Usual);
        assert_ne!(proxy.chat(&asked).ok().action(), "none", "{n}");
        let sent = fake.last().json()["messages"].clone();
        fake.script(|seen| match seen.path().ends_with("/input_tokens") {
            true => Play::Json(500, json!({"error": {"message": "busy"}})),
            false => Play::Usual,
        });
        let again = proxy.chat(&asked).ok();
        let warning = again.header("x-windowsill-warning").unwrap_or_default();
        warned += usize::from(warning.contains("could not be counted"));
        assert_eq!((again.action(), &fake.last().json()["messages"]), ("none", &sent), "{n}: {warning}");
    }
    assert!(warned >= 6, "{warned} of 12 came near a line");
}

/// A server whose template takes many tokens for tools has no room for the recall tool, and a plan with it comes to nothing.
/// Nobody waits twice for a brief that such a plan would need.
#[test]
fn no_second_brief_is_asked_for_where_the_recall_tool_has_no_room() {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    fake.script(|seen| {
        let body = seen.json();
        match seen.path().ends_with("/input_tokens") && body["tools"].is_array() {
            true => Play::Json(200, json!({"input_tokens": tokens(&body) + 900})),
            false => Play::Usual,
        }
    });
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut bare = 0;
    for n in 0..12 {
        let mut sent = chat().system("You are a helpful assistant.").user(&format!("Let us plan garden {n}."));
        for turn in 0..6 {
            sent = sent.assistant(&prose(100 * n + turn, 1_300)).user(&format!("And what about item {turn}?"));
        }
        let sent = sent.assistant("Done; what is next?").user(&prose(9_000 + n, 1_500 + 200 * n as usize));
        let before = fake.summaries().len();
        let first = proxy.chat(&sent).ok();
        if first.action() == "none" || tools_of(&fake.last()).iter().any(|name| name == TOOL) {
            continue;
        }
        bare += 1;
        let (forwarded, asked) = (fake.last(), fake.summaries().len());
        assert!(asked > before, "{n}: a brief was asked for once");
        let again = proxy.chat(&sent).ok();
        assert_eq!((again.action(), &fake.last().body), ("none", &forwarded.body), "{n}");
        assert_eq!(fake.summaries().len(), asked, "{n}: no second brief");
    }
    assert!(bare >= 4, "{bare} of 12 went without the tool");
}

#[test]
fn a_client_that_respells_its_history_does_not_break_the_prefix() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut sent = chat().system("s").user("Work through all parts.").tools();
    let (mut before, mut rewritten) = (Value::Null, Vec::new());
    for turn in 0..16 {
        sent = pair(sent, turn, 700);
        let answer = proxy.chat(&wandering(&sent, turn)).ok();
        let forwarded = fake.last().json();
        rewritten.push(answer.action() != "none");
        if turn > 0 && !rewritten[turn] && rewritten.contains(&true) {
            let (last, now) = (before["messages"].as_array().unwrap(), forwarded["messages"].as_array().unwrap());
            assert_eq!(now[..last.len()], last[..], "turn {turn}");
        }
        before = forwarded;
    }
    let rewrites = rewritten.iter().filter(|r| **r).count();
    assert!((1..=6).contains(&rewrites), "{rewritten:?}");
    let said = prefixes(&proxy, 16);
    let first = rewritten.iter().position(|r| *r).unwrap();
    for (turn, prefix) in said.iter().enumerate().skip(1) {
        match (rewritten[turn], turn >= first) {
            (true, true) => assert_eq!(prefix["because"], "rewrite", "turn {turn}: {prefix}"),
            (false, true) => {
                assert_eq!((&prefix["lost"], &prefix["because"]), (&json!(0), &Value::Null), "turn {turn}")
            }
            // As long as nothing was rewritten all goes on byte for byte, and what breaks is the client's doing.
            (_, false) => assert_ne!(prefix["because"], "rewrite", "turn {turn}: {prefix}"),
        }
    }
    let metrics = String::from_utf8(proxy.get("/metrics").ok().body).unwrap();
    let line = |name: &str| metrics.lines().find(|l| l.starts_with(name)).map(str::to_owned);
    assert!(line("windowsill_prefix_tokens_total ").is_some_and(|l| !l.ends_with(" 0")), "{metrics}");
    assert!(line("windowsill_prefix_lost_tokens_total{because=\"rewrite\"}").is_some(), "{metrics}");
}

#[test]
fn what_the_client_changed_is_counted_as_its_own_doing() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let first = chat().system("It is Monday.").user("Hello.").assistant("Hi.").user("And now?");
    proxy.chat(&first).ok();
    let longer = first.clone().assistant("Go on.").user("Really?");
    proxy.chat(&longer).ok();
    let mut dated = longer.clone().assistant("Yes.").user("Good.");
    dated.messages[0]["content"] = json!("It is Tuesday.");
    proxy.chat(&dated).ok();
    let said = prefixes(&proxy, 3);
    assert_eq!((&said[0], &said[1]["lost"], &said[1]["because"]), (&Value::Null, &json!(0), &Value::Null));
    assert!(said[1]["tokens"].as_u64().unwrap() > 10, "{}", said[1]);
    assert_eq!(said[2]["because"], "client");
    assert!(said[2]["lost"].as_u64().unwrap() > 10, "{}", said[2]);
}

/// As aider does it: examples first, a map of the repository and the files being edited put in anew each time, the chat
/// between them, and the request last.
fn rebuilt(turn: usize, project: &str, map: usize) -> Chat {
    let mut out = chat().system("Act as an expert software developer.");
    out = out.user("Change get_factorial() to use math.factorial").assistant("To make this change we need two blocks.");
    out = out.user(&format!("Map of {project}, state {map}: {}", prose(map as u64, 900))).assistant("Ok.");
    for n in 0..turn {
        out = out.user(&format!("Step {n} of {project}, please: {}", prose(n as u64 + 100, 500)));
        out = out.assistant(&format!("Done with step {n}. {}", prose(n as u64 + 200, 700)));
    }
    out = out.user(&format!("Files of {project} as they are after step {turn}: {}", prose(turn as u64 + 300, 2_000)));
    out.assistant("Ok, any changes to these are mine.").user(&format!("Step {turn} of {project}, please."))
}

#[test]
fn a_history_that_the_client_rebuilds_is_one_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut ids: [BTreeSet<String>; 2] = Default::default();
    let mut rewritten = [0, 0];
    for turn in 0..24 {
        for (n, project) in ["alpha", "beta"].into_iter().enumerate() {
            let sent = rebuilt(turn, project, turn / 12);
            let answer = proxy.chat(&sent).ok();
            ids[n].insert(answer.header("x-windowsill-conversation").unwrap().to_owned());
            rewritten[n] += usize::from(answer.action() != "none");
            let body = fake.last().json();
            assert!(tokens(&body) <= 4096);
            let forwarded = fake.last().messages();
            // What comes back by itself stands behind it.
            let asked = text(forwarded.last().unwrap());
            assert!(asked.starts_with(&format!("Step {turn} of {project}, please.")), "{asked}");
            let files = format!("Files of {project} as they are after step {turn}: ");
            assert!(forwarded.iter().any(|m| text(m).starts_with(&files)), "{project}, turn {turn}");
        }
    }
    // The first turns have too little in common to tell a rebuilt history from a fork.
    assert!(ids.iter().all(|ids| ids.len() <= 2), "{ids:?}");
    assert!(ids[0].is_disjoint(&ids[1]), "two projects that begin alike: {ids:?}");
    assert!(rewritten.iter().all(|n| (1..=8).contains(n)), "at most one rewrite in three turns: {rewritten:?}");
}

#[test]
fn a_resumed_history_with_trimmed_messages_is_the_same_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let mut sent = chat().system("s").user("Work through all parts.\n\nCarefully.").tools();
    for turn in 0..6 {
        sent = sent.step(turn, &format!("{}\n\n  trailing  ", prose(turn as u64, 300)));
    }
    let first = proxy.chat(&sent).ok();
    let mut resumed = Chat { messages: sent.messages.clone(), fields: sent.fields.clone() };
    resumed.messages[3]["content"] = json!("what the client made of an old result");
    let resumed = resumed.assistant("So far.").user("Go on.");
    let again = proxy.chat(&resumed).ok();
    assert_eq!(again.header("x-windowsill-conversation"), first.header("x-windowsill-conversation"));
    let forked =
        chat().system("s").user("Work through all parts.\n\nCarefully.").assistant("No.").user("Something else.");
    assert_ne!(proxy.chat(&forked).ok().header("x-windowsill-conversation"), first.header("x-windowsill-conversation"));
}

/// pydantic-ai: after the first answer with reasoning, all earlier messages of the assistant gain an empty field.
#[test]
fn a_field_that_says_nothing_does_not_break_the_prefix_of_a_prompt_that_fits() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let mut proxy = TestProxy::before(&fake);
    let mut sent = chat().system("s").user("Work through all parts.").tools();
    let mut before: Vec<Value> = Vec::new();
    for turn in 0..6 {
        sent = sent.step(turn, &prose(turn as u64, 300));
        let at = sent.messages.len() - 2;
        if turn >= 2 {
            sent.messages[at]["reasoning_content"] = json!("I should look.");
            for message in sent.messages.iter_mut().filter(|m| m["role"] == "assistant") {
                message.as_object_mut().unwrap().entry("reasoning_content").or_insert_with(|| json!(""));
            }
        }
        let answer = proxy.chat(&sent).ok();
        assert_eq!(answer.action(), "none");
        let now = fake.last().messages();
        assert_eq!(now[..before.len()], before[..], "turn {turn}");
        assert_eq!(now.len(), sent.messages.len());
        before = now;
        if turn == 3 {
            let dir = proxy.stop();
            proxy = TestProxy::at(dir, &[fake.url()], "");
        }
    }
}

#[test]
fn a_resume_with_another_beginning_or_other_last_words_is_the_same_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let id = |answer: Answer| answer.ok().header("x-windowsill-conversation").unwrap().to_owned();
    let session = |files: &str| {
        let mut sent = chat().system("s").user(files).user("Work through all parts.").tools();
        for turn in 0..6 {
            sent = sent.step(turn, &prose(turn as u64, 300));
        }
        sent.assistant("All parts are done.")
    };
    let first = id(proxy.chat(&session("Files: a.rs").user("Thanks. Next?")));
    // Qwen Code's list of files is another one when a session is resumed.
    assert_eq!(
        id(proxy.chat(&session("Files: a.rs, b.rs").user("Thanks. Next?").assistant("b.").user("Go on."))),
        first
    );
    // hermes asks for a review before the person goes on; a person words the last request otherwise.
    let sent = session("Files: a.rs, b.rs").user("Thanks. Next?").assistant("b.").user("Another way, please.");
    assert_eq!(id(proxy.chat(&sent)), first);
    // A short chat that shares some of the words is not.
    assert_ne!(id(proxy.chat(&chat().system("s").user("Files: d.rs").user("Work through all parts."))), first);
}

/// Where nobody counts, an estimate gets better with each reply: first words that were cut by it and never answered are cut the same
/// after a kill.
#[test]
fn first_words_that_were_never_answered_are_forwarded_the_same_after_a_kill() {
    let fake = Fake::start(Kind::OpenAi, 1024);
    let toml = "[window]\nnum_ctx = 1024\n[context]\nbackground = false\n";
    let first = chat().system("s").user(&prose(1, 1800)).user(&prose(2, 1200)).user("Which of both?");
    let proxy = TestProxy::with(&[fake.url()], toml);
    // It says nothing until it is killed.
    fake.script(|seen| match seen.is_main() {
        true => Play::Wait(Gate::default(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let waiting = proxy.begin(&first);
    while fake.count() == 0 {
        std::thread::yield_now();
    }
    let dir = Arc::clone(&proxy.dir);
    proxy.crash();
    drop(waiting);
    let then = fake.last();
    assert_ne!(then.body, first.body(), "some of it was cut");
    // What other replies teach meanwhile: this server counts less than was believed.
    fake.script(|seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let usage = json!({"prompt_tokens": tokens(&seen.json()) / 2, "completion_tokens": 2, "total_tokens": 9});
        let message = json!({"role": "assistant", "content": "Well."});
        let choices = json!([{"index": 0, "finish_reason": "stop", "message": message}]);
        Play::Json(200, json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices, "usage": usage}))
    });
    let proxy = TestProxy::at(dir, &[fake.url()], toml);
    for n in 0..6 {
        proxy.chat(&chat().system("t").user(&prose(10 + n, 1500))).ok();
    }
    let again = proxy.chat(&first).ok();
    assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&then.body));
    // Once it is answered, the same words begin another chat.
    let other = proxy.chat(&first).ok();
    assert_ne!(again.header("x-windowsill-conversation"), other.header("x-windowsill-conversation"));
}
