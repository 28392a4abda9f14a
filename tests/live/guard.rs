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
