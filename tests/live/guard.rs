//! Guardrails before a real llama.cpp server: a loop that the model is told of, and a ceiling that ends the turn.

use serde_json::{Value, json};

use crate::support::session::Bench;
use crate::support::{http, say};

/// An agent's turn that makes the same call again and again.
fn circling(times: usize) -> Value {
    let tool = json!({"type": "function", "function": {"name": "run", "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}});
    let mut messages = vec![json!({"role": "user", "content": "Please build it."})];
    for n in 0..times {
        let id = format!("call{n}");
        let call =
            json!({"id": id, "type": "function", "function": {"name": "run", "arguments": "{\"command\":\"make\"}"}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "make: nothing to be done"}));
    }
    json!({"model": "smollm2", "messages": messages, "tools": [tool], "max_tokens": 8, "temperature": 0, "stream": false})
}

#[test]
fn a_loop_is_noted_and_a_ceiling_ends_the_turn() {
    let settings = [
        ("WATCH_REPEATED_CALLS", "3"),
        ("WATCH_ACTION", "note"),
        ("CEILING_TURN_REQUESTS", "4"),
        ("CEILING_ACTION", "refuse"),
    ];
    let bench = Bench::start(4096, &settings);
    let mut noted: Vec<Value> = Vec::new();
    for times in 1..=4 {
        bench.relay.take();
        let sent = circling(times);
        let reply = http::post(&bench.windowsill.chat_url(), &sent);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let forwarded: Value =
            serde_json::from_str(bench.relay.take().last().expect("it was forwarded")).expect("JSON");
        let messages = forwarded["messages"].as_array().expect("messages").clone();
        let newest = messages.last().and_then(|m| m["content"].as_str()).expect("a result").to_owned();
        say(&format!("{times}: {newest} ({})", reply.ours("warning")));
        assert_eq!(newest.contains("[windowsill: the same call of run"), times == 3, "{newest}");
        assert!(messages.starts_with(&noted), "what was noted stays as it was");
        noted = messages;
    }
    let refused = http::post(&bench.windowsill.chat_url(), circling(5));
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.text.contains("ceiling_reached") && refused.text.contains("turn_requests"), "{}", refused.text);
    let id = refused.text.split("windowsill resume ").nth(1).and_then(|rest| rest.split('`').next()).expect("an id");
    let resume = format!("{}/windowsill/conversations/{id}/resume", bench.windowsill.url());
    assert_eq!(http::post(&resume, json!({})).status, 200);
    assert_eq!(http::post(&bench.windowsill.chat_url(), circling(5)).status, 200);
}

/// A model that is shown how to say that it is done does so: the call is answered within its reply, the record is kept, and the
/// next prompt is folded with it. The model is small, so examples in its history show it the call, written as text.
#[test]
fn a_model_says_that_its_task_is_done_and_the_next_prompt_is_folded() {
    let bench = Bench::start(4096, &[("CONTEXT_DONE_TOOL", "true")]);
    let tool = json!({"type": "function", "function": {"name": "zzz", "description": "Writes a note.",
        "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}});
    let call = |note: &str| {
        format!("<tool_call>\n{{\"name\": \"windowsill_done\", \"arguments\": {{\"note\": \"{note}\"}}}}\n</tool_call>")
    };
    let mut messages = Vec::new();
    for thing in ["boxes", "paint", "copper", "timber", "wool", "glass", "rope"] {
        let lines: String = (0..8).map(|n| format!("Shelf {n} of the store holds {} {thing}. ", n * 7 % 101)).collect();
        messages
            .push(json!({"role": "user", "content": format!("{lines}\nCount the {thing} and say when it is done.")}));
        messages.push(json!({"role": "assistant", "content": call(&format!("The {thing} are counted."))}));
    }
    let request = |messages: &[Value]| json!({"model": "smollm2", "messages": messages, "tools": [tool], "temperature": 0, "max_tokens": 80, "stream": false});
    let mut noted = None;
    for thing in ["nails", "bricks", "paper", "chairs"] {
        let mut asked = messages.clone();
        asked.push(json!({"role": "user", "content": format!("Count the {thing} and say when it is done.")}));
        bench.relay.take();
        let reply = http::post(&bench.windowsill.chat_url(), request(&asked));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let sent: Vec<Value> = bench.relay.take().iter().filter_map(|b| serde_json::from_str(b).ok()).collect();
        assert_eq!(sent[0]["tools"][1]["function"]["name"], "windowsill_done");
        let id = reply.ours("conversation").to_owned();
        let events = format!("{}/windowsill/events?kind=checkpoint&conversation={id}", bench.windowsill.url());
        let seen = http::get(&events).json()["events"].as_array().cloned().unwrap_or_default();
        say(&format!("{thing}: {} checkpoints, {}", seen.len(), reply.text));
        if let Some(event) = seen.into_iter().next() {
            noted = Some((asked, reply.json(), event, id));
            break;
        }
    }
    let (mut asked, reply, event, id) = noted.expect("the model never took the tool");
    assert_eq!(event["data"]["by"], "model");
    let record = event["data"]["record"].as_str().expect("a record");
    let text = http::get(&format!("{}/windowsill/records/{record}", bench.windowsill.url())).text;
    assert!(text.starts_with("A task is done.\nTask:"), "{text}");
    asked.push(json!({"role": "assistant", "content": reply["choices"][0]["message"]["content"]}));
    asked.push(json!({"role": "user", "content": "Thank you. Now the next one."}));
    let next = http::post(&bench.windowsill.chat_url(), request(&asked));
    assert_eq!((next.status, next.ours("action")), (200, "summarize"), "{}", next.text);
    // In a window this small the brief may have no room for the record itself, which is kept all the same.
    let events = format!("{}/windowsill/events?kind=context_compaction&conversation={id}", bench.windowsill.url());
    let events = http::get(&events).json();
    let why = events["events"].as_array().and_then(|all| all.last()).map(|e| e["data"]["because"][0].clone());
    assert_eq!(why, Some(json!("checkpoint: a task is done")), "{events}");
    let page = http::get(&format!("{}/windowsill/conversations/{id}", bench.windowsill.url())).json();
    assert!(page["state"]["edits"]["fold"].as_u64() == Some(1), "{page}");
}

/// A rule of one conversation stands in the next one's first prompt, whose bytes the server's cache keeps.
#[test]
fn a_rule_stands_in_a_new_conversation_of_its_project() {
    let bench = Bench::start(4096, &[("CONTEXT_RULES", "true")]);
    let headers = [("x-windowsill-project", "garden")];
    let request = |messages: &[Value]| json!({"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16, "stream": false});
    let say_to = |headers: &[(&str, &str)], messages: &[Value]| {
        let reply = http::post_with(&bench.windowsill.chat_url(), headers, request(messages));
        assert_eq!(reply.status, 200, "{}", reply.text);
        (reply.ours("conversation").to_owned(), reply.json(), bench.relay.take().pop().expect("it was forwarded"))
    };
    let first = [json!({"role": "user", "content": "Let us plan the garden."})];
    let (id, _, forwarded) = say_to(&headers, &first);
    let sent: Value = serde_json::from_str(&forwarded).expect("JSON");
    assert_eq!(sent["messages"], json!(first), "no rule yet: nothing changes");
    let rule = json!({"conversation": id, "text": "Always call the pond by its name, Zanzibar."});
    assert_eq!(http::post(&format!("{}/windowsill/rules", bench.windowsill.url()), rule).status, 200);
    let mut talk = vec![json!({"role": "user", "content": "What shall we call the pond?"})];
    let (_, reply, forwarded) = say_to(&headers, &talk);
    assert!(forwarded.contains("[Pinned by the user") && forwarded.contains("Zanzibar"), "{forwarded}");
    say(&format!("{}", reply["choices"][0]["message"]["content"]));
    let begun: Value = serde_json::from_str(&forwarded).expect("JSON");
    talk.push(json!({"role": "assistant", "content": reply["choices"][0]["message"]["content"]}));
    talk.push(json!({"role": "user", "content": "Thank you."}));
    let (_, next, forwarded) = say_to(&headers, &talk);
    let after: Value = serde_json::from_str(&forwarded).expect("JSON");
    assert_eq!(after["messages"][0], begun["messages"][0]);
    let (cached, prompt) = (next["timings"]["cache_n"].as_u64(), reply["usage"]["prompt_tokens"].as_u64());
    say(&format!("{cached:?} cached, the first prompt had {prompt:?}"));
    assert!(cached.is_none_or(|n| n + 8 >= prompt.unwrap_or(0)), "the server's cache holds the first prompt");
    let other = [json!({"role": "user", "content": "What is a pond?"})];
    let (_, _, forwarded) = say_to(&[("x-windowsill-project", "kitchen")], &other);
    assert!(!forwarded.contains("Zanzibar"), "{forwarded}");
}

/// A small model that is given tools is told of; the fold is of the task that a header names, and comes at the
/// user's pace.
#[test]
fn a_task_a_pace_and_a_small_model_before_a_real_server() {
    let settings = [
        ("CONTEXT_FOLD_EVERY_TURNS", "6"),
        ("CONTEXT_BACKGROUND", "false"),
        ("CONTEXT_KEEP_RECENT", "2"),
        ("CONTEXT_SUMMARY_MAX_TOKENS", "64"),
    ];
    let bench = Bench::start(8192, &settings);
    let tool = json!({"type": "function", "function": {"name": "run", "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}});
    let mut messages = Vec::new();
    let (mut folded, mut warned, mut id) = (None, false, String::new());
    for n in 0..7 {
        let errors: String = (0..18).map(|line| format!("error: part {n} fails in src/part{n}.rs:{line}. ")).collect();
        messages.push(json!({"role": "user", "content": format!("What is wrong with part {n}?")}));
        let body = json!({"model": "smollm2-135m", "messages": messages, "tools": [tool], "max_tokens": 8, "temperature": 0, "stream": false});
        let reply = http::post_with(&bench.windowsill.chat_url(), &[("x-windowsill-task", "debug")], body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        warned |= reply.ours("warning").contains("3 billion parameters is given tools");
        reply.ours("conversation").clone_into(&mut id);
        if folded.is_none() && reply.ours("action") != "none" {
            folded = Some((n + 1, reply.ours("action").to_owned()));
        }
        messages.push(json!({"role": "assistant", "content": format!("{errors}A semicolon is missing in part {n}.")}));
    }
    assert!(warned, "the model is small");
    assert_eq!(folded, Some((6, "summarize".to_owned())));
    let seen = http::get(&format!("{}/windowsill/conversations/{id}/insight", bench.windowsill.url())).json();
    assert_eq!((&seen["state"]["task"], &seen["rewrites"][0]["data"]["task"]), (&json!("debug"), &json!("debug")));
    assert!(seen["guardrails"].as_array().is_some_and(|all| all.iter().any(|e| e["kind"] == "small_model")), "{seen}");
    let why = seen["rewrites"][0]["data"]["because"][0].as_str().unwrap_or_default();
    assert!(why.starts_with("fold_every_turns: 6 turns"), "{why}");
}

/// An original is asked a question: the model itself reads it in parts, and whatever line it names is one that exists.
#[test]
fn an_original_is_asked_a_question_and_a_task_is_done_over_http() {
    let bench = Bench::start(2048, &[("CONTEXT_BACKGROUND", "false")]);
    let tool = json!({"type": "function", "function": {"name": "read", "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}});
    let log: String = (1..=200)
        .map(|n| {
            if n == 120 {
                "line 120: ERROR the vault door is open\n".to_owned()
            } else {
                format!("line {n}: all is well\n")
            }
        })
        .collect();
    let messages = json!([
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "read", "arguments": "{\"path\":\"log\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": log}]);
    let body = json!({"model": "smollm2", "messages": messages, "tools": [tool], "max_tokens": 8, "temperature": 0, "stream": false});
    let reply = http::post(&bench.windowsill.chat_url(), body);
    assert_eq!((reply.status, reply.ours("action")), (200, "evict"), "{}", reply.text);
    let forwarded = bench.relay.take().pop().expect("it was forwarded");
    let record = forwarded.split("windowsill recall ").nth(1).expect("a pointer");
    let record: String = record.chars().take_while(char::is_ascii_alphanumeric).collect();
    let ask = format!("{}/windowsill/records/{record}/ask", bench.windowsill.url());
    let told = http::post(&ask, json!({"question": "Which line tells of an error?"}));
    assert_eq!(told.status, 200, "{}", told.text);
    let told = told.json();
    say(&format!("{told}"));
    assert_eq!((&told["lines"], &told["lines_read"]), (&json!(200), &json!(200)), "all of it is read: {told}");
    assert!(told["parts"].as_u64() > Some(1) && told["by"].as_str().is_some_and(|by| !by.is_empty()), "{told}");
    // The same conversation's task is done.
    let done = format!("{}/windowsill/conversations/{}/checkpoint", bench.windowsill.url(), reply.ours("conversation"));
    let done = http::post(&done, json!({"note": "The door was open."}));
    assert_eq!(done.status, 200, "{}", done.text);
    let text = done.json()["completion"].as_str().unwrap_or_default().to_owned();
    assert!(text.contains("Outcome:\n- The door was open.") && text.contains("Where we are:"), "{text}");
}
