//! Rules: what is pinned "always" comes into new conversations of the same client and project, and into no others.

use serde_json::{Value, json};

use super::support::*;

const RULE: &str = "Rule: the gate stays green.";

const ON: &str = "[context]\nrules = true\nbackground = false\n";

const A: &[(&str, &str)] = &[("user-agent", "agent-a/1.0"), ("x-windowsill-project", "garden")];

fn ask(proxy: &TestProxy, headers: &[(&str, &str)], sent: &Chat) -> Answer {
    proxy.post("/v1/chat/completions", headers, &sent.body()).ok()
}

/// A conversation of client A's in which the rule was made.
fn made(proxy: &TestProxy) -> String {
    let sent = chat().system("s").user("Let us plan the garden.").assistant("Gladly.").user("Begin.");
    let id = ask(proxy, A, &sent).header("x-windowsill-conversation").unwrap().to_owned();
    let body = json!({"text": RULE, "always": true}).to_string();
    let told = proxy.post(&format!("/windowsill/conversations/{id}/pins"), &[], body.as_bytes()).ok().json();
    assert_eq!((&told["rule"], &told["pin"]), (&json!(1), &json!(1)), "{told}");
    id
}

fn change(proxy: &TestProxy, method: &str, path: &str, body: &Value) -> Answer {
    request(proxy.address, method, path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
}

fn forwarded(fake: &Fake) -> String {
    fake.last().messages().iter().map(|m| text(m) + "\n").collect()
}

#[test]
fn a_rule_comes_into_new_conversations_of_its_project_and_stays_through_a_fold() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], ON);
    made(&proxy);
    let first = chat().system("s").user("Draw the pond.").tools();
    let answer = ask(&proxy, A, &first);
    assert_eq!(answer.action(), "none", "nothing left the prompt");
    let begun = fake.last();
    let opening = text(&begun.messages()[1]);
    assert!(opening.starts_with("Draw the pond.\n\n[Pinned by the user") && opening.contains(RULE), "{opening}");
    assert!(begun.header("x-windowsill-project").is_none(), "the header goes no further");
    assert_eq!(begun.json()["tools"], first.value()["tools"], "nothing can be read back yet");
    // The bytes stay as they are, after a restart and without the header, too.
    let next = first.assistant("Done.").user("Now the fence.");
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], ON);
    ask(&proxy, &A[..1], &next);
    let after = fake.last();
    assert_eq!(after.messages()[..2], begun.messages()[..2]);
    assert_eq!(after.json()["tools"], begun.json()["tools"]);
    // It holds through a fold, and is listed as what it is.
    let long = (0..10).fold(next, |chat, n| chat.assistant(&prose(n, 1_600)).user(&format!("And item {n}?")));
    let folded = ask(&proxy, A, &long);
    assert_ne!(folded.action(), "none");
    assert!(forwarded(&fake).contains(RULE));
    let id = folded.header("x-windowsill-conversation").unwrap().to_owned();
    let pins = proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json();
    assert_eq!((&pins["pins"][0]["by"], &pins["pins"][0]["rule"]), (&json!("rule 1"), &json!(1)), "{pins}");
    let events = proxy.get("/windowsill/events?kind=rule,rules_applied").ok().json();
    let all = events["events"].as_array().unwrap();
    let data = |n: usize| &all[n]["data"];
    assert_eq!((data(0), &data(1)["rules"]), (&json!({"rule": 1, "action": "added"}), &json!([1])), "{events}");
    assert!(all.len() == 2 && !events.to_string().contains("green"), "told once, and no text: {events}");
    let page = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(page.contains("rule"), "{page}");
}

#[test]
fn a_rule_never_goes_to_another_client_key_or_project() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], ON);
    made(&proxy);
    let project = ("x-windowsill-project", "garden");
    let others: [&[(&str, &str)]; 5] = [
        &[("user-agent", "agent-b/1.0"), project],
        &[("user-agent", "agent-a/1.0"), ("x-windowsill-project", "kitchen")],
        &[("user-agent", "agent-a/1.0"), ("authorization", "Bearer somebody"), project],
        &[("user-agent", "agent-a/1.0")],
        &[project],
    ];
    for (n, headers) in others.iter().enumerate() {
        let sent = chat().system("s").user(&format!("Another talk, {n}."));
        ask(&proxy, headers, &sent);
        assert_eq!(fake.last().body, sent.body(), "{headers:?}");
    }
    // Nor do they share a conversation that begins with the same words, however often it goes on.
    let mut same = chat().system("s").user("Again.");
    ask(&proxy, A, &same);
    assert!(forwarded(&fake).contains(RULE));
    for turn in 0..3 {
        for (n, headers) in others.iter().enumerate() {
            // The same client that goes on with its own words, and no longer names the project, has the same conversation.
            if turn > 0 && n == 3 {
                continue;
            }
            ask(&proxy, headers, &same);
            assert!(!forwarded(&fake).contains(RULE), "turn {turn}, {headers:?}");
        }
        same = same.assistant("Yes?").user(&format!("Go on {turn}."));
        ask(&proxy, A, &same);
        assert!(forwarded(&fake).contains(RULE), "turn {turn}");
    }
    // Another version of the same client is the same client.
    ask(&proxy, &[("user-agent", "agent-a/2.0"), project], &chat().system("s").user("Once more."));
    assert!(forwarded(&fake).contains(RULE));
    // A client's own helper, which asks for a title, gets none.
    let task = "### Task:\nGenerate a title.\n### Guidelines:\n- Be short.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>";
    let helper = chat().user(task);
    ask(&proxy, A, &helper);
    assert_eq!(fake.last().body, helper.body());
}

#[test]
fn rules_are_listed_changed_and_removed() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], ON);
    let id = made(&proxy);
    let list = proxy.get("/windowsill/rules").ok().json();
    let rule = &list["rules"][0];
    assert_eq!(
        (&rule["client"], &rule["project"], &rule["text"]),
        (&json!("agent-a"), &json!("name:garden"), &json!(RULE))
    );
    // The command line asks the running proxy.
    let file = proxy.dir.path().join("config.toml");
    let listen = format!("listen = \"{}\"\n", proxy.address);
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("listen = \"127.0.0.1:0\"\n", &listen)).unwrap();
    let run = |args: &[&str]| {
        let out = proxy.cli(args);
        String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap()
    };
    let shown = run(&["rules"]);
    assert!(shown.contains("agent-a, name:garden\n   1  Rule: the gate"), "{shown}");
    let said = run(&["pin", &id, "Rule: no lawn.", "--always"]);
    assert!(said.contains("rule 2: new conversations"), "{said}");
    let changed = run(&["rules", "edit", "1", "Rule: the gate is blue."]);
    assert!(changed.contains("rule 1 is changed: Rule: the gate is blue."), "{changed}");
    assert!(run(&["rules", "remove", "2"]).contains("rule 2 is removed"));
    ask(&proxy, A, &chat().system("s").user("A new talk."));
    let seen = forwarded(&fake);
    assert!(seen.contains("the gate is blue") && !seen.contains("green") && !seen.contains("lawn"), "{seen}");
    // A number is never given twice.
    let again = json!({"conversation": id, "text": "Rule: no roses."});
    let path = "/windowsill/rules";
    assert_eq!(change(&proxy, "POST", path, &again).ok().json()["rule"], 3);
    assert_eq!(change(&proxy, "POST", path, &again).error().0, "nothing_to_do");
    for (method, path, body, status) in [
        ("PUT", "/windowsill/rules/9", json!({"text": "x"}), 404),
        ("DELETE", "/windowsill/rules/9", json!({}), 404),
        ("DELETE", "/windowsill/rules/x", json!({}), 404),
        ("PUT", "/windowsill/rules/1", json!({"text": " "}), 400),
        ("PUT", "/windowsill/rules/1", json!({"txt": "x"}), 400),
        ("POST", "/windowsill/rules", json!({"conversation": "nope", "text": "x"}), 404),
        ("POST", "/windowsill/rules", json!({"conversation": id, "text": "x".repeat(3_000)}), 400),
        ("POST", "/windowsill/conversations/nope/undo", json!({"always": true}), 400),
    ] {
        assert_eq!(change(&proxy, method, path, &body).status, status, "{method} {path} {body}");
    }
}

#[test]
fn with_rules_off_nothing_is_kept_and_no_byte_changes() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let on = TestProxy::with(&[fake.url()], ON);
    made(&on);
    let off = TestProxy::at(on.stop(), &[fake.url()], "");
    let sent = chat().system("s").user("A new talk.").tools();
    let id = ask(&off, A, &sent).header("x-windowsill-conversation").unwrap().to_owned();
    assert_eq!(fake.last().body, sent.body());
    let refused = change(&off, "POST", "/windowsill/rules", &json!({"conversation": id, "text": RULE}));
    assert_eq!((refused.status, refused.error().0.as_str()), (409, "no_project"));
    assert!(refused.error().1.contains("rules = true"), "{}", refused.text());
    let pins = off.get(&format!("/windowsill/conversations/{id}/pins")).ok().json();
    assert_eq!(pins["pins"], json!([]));
}

#[test]
fn rules_that_find_no_room_are_told_of() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], ON);
    let id = made(&proxy);
    for n in 0..2 {
        let body = json!({"conversation": id, "text": prose(n, 1_900)});
        change(&proxy, "POST", "/windowsill/rules", &body).ok();
    }
    let small = Fake::start(Kind::LlamaServer, 2048);
    let proxy = TestProxy::at(proxy.stop(), &[small.url()], ON);
    let answer = ask(&proxy, A, &chat().system("s").user("A new talk."));
    assert!(forwarded(&small).contains(RULE));
    let warning = answer.header("x-windowsill-warning").unwrap();
    assert!(warning.contains("2 rules of this project found no room"), "{warning}");
}
