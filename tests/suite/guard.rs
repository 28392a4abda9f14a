//! Guardrails before a scripted server: what they count, what they say, and that they change nothing while they are off.

use serde_json::{Value, json};

use super::support::*;

/// An agent's turn: one question, and `steps` calls that each bring something new.
fn turn(steps: usize) -> Chat {
    (0..steps).fold(chat().system("s").user("Please tidy up.").tools(), |chat, n| chat.step(n, &format!("part {n}")))
}

/// An agent that makes the same call again and again.
fn circling(times: usize) -> Chat {
    (0..times).fold(chat().system("s").user("Please tidy up.").tools(), |chat, n| {
        let id = format!("call_{n}");
        chat.call(&id, "run", json!({"command": "make"})).result(&id, "make: nothing to be done")
    })
}

fn events(proxy: &TestProxy, kind: &str) -> Vec<Value> {
    let all = proxy.eventually(&format!("/windowsill/events?kind={kind}"), |_| true);
    all["events"].as_array().unwrap().clone()
}

/// Events of a kind, once there are so many: they are recorded when there is time.
fn wait_for(proxy: &TestProxy, kind: &str, count: usize) -> Vec<Value> {
    let path = format!("/windowsill/events?kind={kind}");
    let all = proxy.eventually(&path, |v| v["events"].as_array().is_some_and(|e| e.len() >= count));
    all["events"].as_array().unwrap().clone()
}

#[test]
fn a_ceiling_warns_stops_the_turn_and_lets_it_go_on() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let toml = "[ceiling]\nturn_requests = 5\naction = 'refuse'\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    for steps in 0..4 {
        let answer = proxy.chat(&turn(steps)).ok();
        assert_eq!(answer.header("x-windowsill-warning"), None, "step {steps}");
    }
    let fifth = proxy.chat(&turn(4)).ok();
    let warning = fifth.header("x-windowsill-warning").unwrap();
    assert!(warning.contains("4 of 5 requests (`turn_requests`)"), "{warning}");
    let id = fifth.header("x-windowsill-conversation").unwrap().to_owned();
    let sent = fake.count();
    let refused = proxy.chat(&turn(5));
    assert_eq!((refused.status, fake.count()), (429, sent), "it is stopped before the server is asked");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let (code, message) = refused.error();
    assert_eq!(code, "ceiling_reached");
    assert!(message.contains("5 of 5") && message.contains(&format!("windowsill resume {id}")), "{message}");
    let seen = wait_for(&proxy, "ceiling", 2);
    let said: Vec<_> = seen.iter().map(|e| (e["data"]["spent"].as_u64(), e["data"]["action"].as_str())).collect();
    assert_eq!(said, [(Some(4), Some("warn")), (Some(5), Some("refuse"))]);
    // It is the same after a restart.
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
    assert_eq!(proxy.chat(&turn(5)).status, 429);
    let page = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(page.contains("turn_requests") && page.contains("5 of 5"), "{page}");
    let resumed = proxy.post(&format!("/windowsill/conversations/{id}/resume"), &[], b"{}").ok().json();
    assert_eq!(resumed["was"]["turn"]["requests"], 5, "{resumed}");
    proxy.chat(&turn(5)).ok();
    // A person who speaks begins a turn of their own.
    for steps in 6..10 {
        proxy.chat(&turn(steps)).ok();
    }
    assert_eq!(proxy.chat(&turn(10)).status, 429);
    proxy.chat(&turn(10).assistant("Done.").user("And now the rest.")).ok();
    assert_eq!(wait_for(&proxy, "resumed", 1).len(), 1);
}

#[test]
fn tokens_of_a_session_are_counted_and_every_dialect_is_told() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy =
        TestProxy::with(&[fake.url()], "[ceiling]\nsession_tokens = 20\naction = 'refuse'\nprice_per_million = 2\n");
    let asked = |words: &[&str]| {
        let messages: Vec<Value> = words
            .iter()
            .enumerate()
            .map(|(i, text)| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": text}))
            .collect();
        json!({"model": MODEL, "max_tokens": 50, "messages": messages}).to_string()
    };
    proxy.post("/v1/messages", &[], asked(&["Tell me all that you know of the harbor, please."]).as_bytes()).ok();
    // A reply is counted when it has ended, which may be after the client has it.
    let report = proxy.eventually("/windowsill/report", |report| report["cost"].as_f64() > Some(0.0));
    assert!(report["watt_hours"].is_null(), "{report}");
    let next = asked(&["Tell me all that you know of the harbor, please.", "No.", "Why not?"]);
    let refused = proxy.post("/v1/messages", &[], next.as_bytes());
    assert_eq!(refused.status, 429, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert!(error["message"].as_str().unwrap().contains("`session_tokens`"), "{error}");
}

#[test]
fn with_every_guardrail_off_no_byte_changes_and_nothing_is_said() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let off = "[watch]\nrepeated_calls = 0\nsmall_model = 'allow'\n";
    let proxy = TestProxy::with(&[fake.url()], off);
    let sent = circling(9).with("model", json!("tiny:135m"));
    let answer = proxy.chat(&sent).ok();
    assert_eq!(fake.last().body, sent.body());
    assert_eq!((answer.header("x-windowsill-warning"), answer.action()), (None, "none"));
    for kind in ["ceiling", "loop", "small_model"] {
        assert!(events(&proxy, kind).is_empty(), "{kind}");
    }
}

#[test]
fn a_loop_is_told_of_and_leaves_the_bytes_as_they_are() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    for times in 1..=7 {
        let sent = circling(times);
        let answer = proxy.chat(&sent).ok();
        assert_eq!(fake.last().body, sent.body(), "a warning changes no byte");
        let warning = answer.header("x-windowsill-warning");
        assert_eq!(warning.is_some_and(|w| w.contains("goes in circles")), times >= 5, "{times}: {warning:?}");
    }
    let seen = wait_for(&proxy, "loop", 1);
    assert_eq!(seen.len(), 1, "told once, not with every request: {seen:?}");
    let data = &seen[0]["data"];
    assert_eq!((&data["kind"], &data["times"], &data["tool"]), (&json!("same_call"), &json!(5), &json!("run")));
    // The tool is meant to repeat.
    let proxy = TestProxy::with(&[fake.url()], "[watch]\nexcept = ['r?n']\n");
    assert_eq!(proxy.chat(&circling(9)).ok().header("x-windowsill-warning"), None);
}

#[test]
fn a_note_stands_in_the_newest_result_and_stays_there() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let toml = "[watch]\naction = 'note'\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    proxy.chat(&circling(4)).ok();
    proxy.chat(&circling(5)).ok();
    let noted = fake.last().messages();
    let newest = text(noted.last().unwrap()).to_owned();
    assert!(
        newest.starts_with("make: nothing to be done\n\n[windowsill: the same call of run gave the same"),
        "{newest}"
    );
    assert!(noted[..noted.len() - 1].iter().all(|m| !text(m).contains("windowsill:")));
    // From then on it has these bytes, after a restart, too.
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
    proxy.chat(&circling(6)).ok();
    let after = fake.last().messages();
    assert_eq!(after[..noted.len()], noted[..]);
    assert_eq!(text(after.last().unwrap()), "make: nothing to be done", "it is not said with every call");
    for times in 7..=10 {
        proxy.chat(&circling(times)).ok();
    }
    assert!(text(fake.last().messages().last().unwrap()).contains("10 times"), "but when it goes on");
}

#[test]
fn a_loop_is_refused_until_somebody_says_go_on() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[watch]\naction = 'refuse'\n");
    let id = proxy.chat(&circling(4)).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let refused = proxy.chat(&circling(5));
    assert_eq!((refused.status, refused.error().0.as_str()), (429, "loop"), "{}", refused.text());
    assert!(String::from_utf8(proxy.cli(&["resume", "nothing"]).stderr).unwrap().contains("windowsill"));
    proxy.post(&format!("/windowsill/conversations/{id}/resume"), &[], b"").ok();
    proxy.chat(&circling(5)).ok();
    assert_eq!(proxy.post("/windowsill/conversations/nope/resume", &[], b"{}").status, 404);
    assert_eq!(proxy.post(&format!("/windowsill/conversations/{id}/resume"), &[], b"{\"x\": 1}").status, 400);
}

#[test]
fn a_large_result_of_a_loop_is_evicted_and_noted() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nevict_over = 500\n[watch]\naction = 'note'\n");
    let long = prose(7, 6_000);
    let chat = (0..5).fold(chat().system("s").user("Please look.").tools(), |chat, n| {
        let id = format!("call_{n}");
        chat.call(&id, "run", json!({"command": "make"})).result(&id, &long)
    });
    proxy.chat(&chat).ok();
    let newest = text(fake.last().messages().last().unwrap()).to_owned();
    assert!(newest.contains("windowsill recall r") && newest.contains("[windowsill: the same call"), "{newest}");
    assert!(newest.len() < long.len());
}

#[test]
fn a_model_too_small_for_tools_is_told_of_once_and_refused_if_asked() {
    let fake = Fake::start(Kind::LlamaServer, 16_384);
    let proxy = TestProxy::before(&fake);
    let sent = turn(1).with("model", json!("tiny:135m"));
    let answer = proxy.chat(&sent).ok();
    assert!(answer.header("x-windowsill-warning").unwrap().contains("3 billion parameters is given tools"));
    assert_eq!(fake.last().body, sent.body());
    proxy.chat(&turn(2).with("model", json!("tiny:135m"))).ok();
    assert_eq!(wait_for(&proxy, "small_model", 1).len(), 1);
    let plain = chat().user("Hello.").with("model", json!("tiny:135m"));
    assert_eq!(proxy.chat(&plain).ok().header("x-windowsill-warning"), None, "it may talk");
    let long = chat().user(&prose(3, 60_000)).with("model", json!("tiny:135m"));
    assert!(proxy.chat(&long).ok().header("x-windowsill-warning").unwrap().contains("it holds 8192"));
    let proxy = TestProxy::with(&[fake.url()], "[watch]\nsmall_model = 'refuse'\n");
    let refused = proxy.chat(&sent);
    assert_eq!((refused.status, refused.error().0.as_str()), (400, "small_model"));
    proxy.chat(&turn(1).with("model", json!("large:70b"))).ok();
}

/// Every recorded session, request by request as a client sends it. The loops were found by reading the sessions: a query that
/// was run six times in a row, and a patch that timed out seven times while the agent went on trying.
#[test]
fn every_loop_of_the_recorded_sessions_is_found_and_hardly_anything_else() {
    use windowsill::conversation::{Role, watch};
    let sessions = super::planning::sessions::recorded();
    // The few sessions that come with the sources may lack them.
    let known = ["intercode-sql-7", "dgm-django__django-12774"];
    let known: Vec<&str> = known.into_iter().filter(|name| sessions.iter().any(|(of, ..)| of == name)).collect();
    let (mut requests, mut steps, mut left_out, mut found) = (0, 0, 0, Vec::new());
    for (name, messages, tools) in sessions {
        let Some(conversation) = super::planning::sessions::read(&messages, &tools, None) else {
            left_out += 1;
            continue;
        };
        let body = &conversation.body;
        // A client asks after what a person said, and after the last result of a step.
        let after_step =
            |to: usize| body[to - 1].role == Role::Tool && body.get(to).is_none_or(|m| m.role != Role::Tool);
        requests += (1..=body.len()).filter(|to| body[*to - 1].role == Role::User || after_step(*to)).count();
        let looks: Vec<usize> = (1..=body.len()).filter(|to| after_step(*to)).collect();
        steps += looks.len();
        let hits = looks.iter().filter(|to| watch::find(&body[..**to], 5, &|_| false).is_some()).count();
        if hits > 0 {
            found.push((name, hits));
        }
    }
    assert!(requests > 0, "no session was read");
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert!(known.iter().all(|loops| names.contains(loops)), "{found:?} of {steps} steps");
    let false_alarms: usize =
        found.iter().filter(|(name, _)| !known.contains(&name.as_str())).map(|(_, hits)| hits).sum();
    // Of the steps alone, since nothing can be found elsewhere.
    assert!(false_alarms * 1_000 < steps, "{found:?} of {steps} steps");
    eprintln!("{requests} requests, {steps} of them after a step; {left_out} sessions left out: {found:?}");
}
