//! The recall tool with a real llama.cpp server: its template, its parser, its cache. The model is small; a few examples in its
//! history make it write calls.

use serde_json::{Value, json};

use crate::support::relay::Relay;
use crate::support::servers::{Ollama, Windowsill};
use crate::support::session::Bench;
use crate::support::{http, say};

const TOOL: &str = "windowsill_recall";

/// Tokens of a prompt's end that may be evaluated again: the opening of the reply, the call that the model wrote itself.
const TAIL: u64 = 120;

fn request(messages: &[Value]) -> Value {
    let tool = json!({"type": "function", "function": {"name": "zzz", "description": "Writes a note.",
        "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}});
    json!({"model": "smollm2", "messages": messages, "tools": [tool], "stream": true,
        "stream_options": {"include_usage": true}, "temperature": 0, "max_tokens": 200})
}

fn calls_ours(forwarded: &Value) -> bool {
    let all = forwarded["messages"].as_array().expect("messages");
    all.iter().any(|m| m["tool_calls"][0]["function"]["name"] == TOOL)
}

/// A history that shows a model how to call the tool: a result that is evicted, then a few calls written as text.
fn examples() -> Vec<Value> {
    let large: String = (0..900).map(|n| format!("line {n}: shelf {} holds {} boxes\n", n % 17, n * 7 % 101)).collect();
    let mut messages = vec![
        json!({"role": "user", "content": "Read the inventory."}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "zzz", "arguments": "{\"x\":true}"}}]}),
        json!({"role": "tool", "tool_call_id": "c1", "content": large}),
    ];
    for word in ["boxes", "paint", "copper", "timber", "wool"] {
        messages.push(json!({"role": "user", "content": format!("Look up {word}.")}));
        let call =
            format!("<tool_call>\n{{\"name\": \"{TOOL}\", \"arguments\": {{\"query\": \"{word}\"}}}}\n</tool_call>");
        messages.push(json!({"role": "assistant", "content": call}));
    }
    messages
}

#[test]
fn a_model_reads_back_within_its_reply() {
    let bench = Bench::start(4096, &[("CONTEXT_BACKGROUND", "false")]);
    let messages = examples();
    let mut recalled = 0;
    for word in ["shelf", "holds", "line", "yellow", "inventory"] {
        let mut messages = messages.clone();
        messages.push(json!({"role": "user", "content": format!("Look up {word}.")}));
        bench.relay.take();
        let reply = http::post(&bench.windowsill.chat_url(), request(&messages));
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.is_done(), "{}", reply.text);
        let events = reply.events();
        assert!(events.iter().all(|e| e["error"].is_null()), "{}", reply.text);
        let rounds: Vec<Value> = bench.relay.take().iter().filter_map(|b| serde_json::from_str(b).ok()).collect();
        assert_eq!(rounds[0]["tools"][1]["function"]["name"], TOOL);
        if !rounds.iter().any(calls_ours) {
            continue;
        }
        recalled += 1;
        // The rounds go on where the first ended, in the server's cache too.
        let first = rounds[0]["messages"].as_array().expect("messages");
        let second = rounds.last().expect("a round")["messages"].as_array().expect("messages");
        assert_eq!(second[..first.len()], first[..]);
        let number = |pointer: &str| events.iter().rev().find_map(|e| e.pointer(pointer).and_then(Value::as_u64));
        let (prompt, cached) =
            (number("/usage/prompt_tokens").expect("usage"), number("/timings/cache_n").unwrap_or(0));
        // Far from any line a prompt is only estimated: the server says how long the first round's was.
        let count = format!("{}/v1/chat/completions/input_tokens", bench.llama.url());
        let begun = http::post(&count, rounds[0].to_string()).json()["input_tokens"].as_u64().expect("a count");
        say(&format!("{word}: {} rounds, {begun} then {prompt} tokens, {cached} cached", rounds.len()));
        if rounds.len() < 5 {
            // The last possible round has another head.
            assert!(cached + TAIL >= begun, "{cached} cached of {begun}");
        }
        assert!(prompt > begun && prompt < 4096);
        if recalled == 1 {
            assert_next_begins_so(&bench, messages, &events, second);
        }
        if recalled == 2 {
            break;
        }
    }
    assert!(recalled > 0, "the model never took the tool");
}

/// The same before Ollama: its template, its parser of calls, its own shape of messages.
#[test]
fn a_model_reads_back_through_ollama() {
    let ollama = Ollama::start();
    let relay = Relay::before(&ollama.url());
    let windowsill = Windowsill::with(&relay.url(), &[("CONTEXT_BACKGROUND", "false")], &["--num-ctx", "4096"]);
    let mut recalled = 0;
    for word in ["shelf", "holds", "line", "yellow", "inventory"] {
        let mut messages = examples();
        messages.push(json!({"role": "user", "content": format!("Look up {word}.")}));
        relay.take();
        let reply = http::post(&windowsill.chat_url(), request(&messages));
        assert_eq!((reply.status, reply.is_done()), (200, true), "{}", reply.text);
        let events = reply.events();
        assert!(events.iter().all(|e| e["error"].is_null()), "{}", reply.text);
        let sent: Vec<Value> = relay.take().iter().filter_map(|b| serde_json::from_str(b).ok()).collect();
        // Loading the model is a request without messages.
        let rounds: Vec<&Value> =
            sent.iter().filter(|b| b["messages"].as_array().is_some_and(|m| !m.is_empty())).collect();
        assert_eq!(rounds[0]["tools"][1]["function"]["name"], TOOL);
        let (first, last) =
            (rounds[0]["messages"].as_array().unwrap(), rounds[rounds.len() - 1]["messages"].as_array().unwrap());
        assert_eq!(last[..first.len()], first[..], "the rounds go on where the first ended");
        let usage = events.iter().rev().find_map(|e| e.pointer("/usage/prompt_tokens").and_then(Value::as_u64));
        say(&format!(
            "ollama, {word}: {} rounds, {} planned, {usage:?} at last",
            rounds.len(),
            reply.ours("prompt-tokens")
        ));
        if rounds.len() > 1 {
            recalled += 1;
            let answers: Vec<&Value> = last[first.len()..].iter().filter(|m| m["role"] == "tool").collect();
            assert!(
                !answers.is_empty()
                    && answers.iter().all(|m| m["content"].as_str().is_some_and(|t| t.starts_with('[')))
            );
            assert!(usage.is_some_and(|n| n < 4096));
        }
        if recalled == 2 {
            break;
        }
    }
    assert!(recalled > 0, "the model never took the tool");
}

/// The next turn's prompt begins with the last round's.
fn assert_next_begins_so(bench: &Bench, mut messages: Vec<Value>, events: &[Value], held: &[Value]) {
    let mut calls: Vec<Value> = Vec::new();
    let mut text = String::new();
    for delta in events.iter().map(|e| &e["choices"][0]["delta"]) {
        text.push_str(delta["content"].as_str().unwrap_or(""));
        for fragment in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = fragment["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                calls.push(json!({"id": fragment["id"], "type": "function",
                    "function": {"name": fragment["function"]["name"], "arguments": ""}}));
            }
            let more = fragment["function"]["arguments"].as_str().unwrap_or("");
            let whole = format!("{}{more}", calls[index]["function"]["arguments"].as_str().unwrap());
            calls[index]["function"]["arguments"] = json!(whole);
        }
    }
    let mut reply = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        reply["tool_calls"] = json!(calls);
    }
    messages.push(reply);
    messages.extend(calls.iter().map(|c| json!({"role": "tool", "tool_call_id": c["id"], "content": "noted"})));
    messages.push(json!({"role": "user", "content": "Thanks."}));
    bench.relay.take();
    let body = request(&messages);
    assert_eq!(http::post(&bench.windowsill.chat_url(), &body).status, 200);
    let sent: Value = serde_json::from_str(&bench.relay.take()[0]).unwrap();
    assert_eq!(sent["messages"].as_array().expect("messages")[..held.len()], held[..]);
}
