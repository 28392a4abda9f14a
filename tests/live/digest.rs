//! Digests by a real model on a real llama.cpp server. What so small a model writes is seldom of use; then there is a preview.

use serde_json::{Value, json};

use crate::support::session::Bench;
use crate::support::{http, say};

#[test]
fn a_real_model_is_asked_for_a_digest() {
    let model = ("CONTEXT_DIGEST_MODEL", "local/smollm2");
    let bench = Bench::start(4096, &[("CONTEXT_BACKGROUND", "false"), ("CONTEXT_DIGEST_OVER", "600"), model]);
    let tool = json!({"type": "function", "function": {"name": "run", "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}});
    let mut digests = 0;
    for seed in 0..3 {
        let log: String = (0..300 * (seed + 1)).map(|n| format!("test store::tests::case_{n} ... ok\n")).collect();
        let log = format!("{log}test journal::tests::flush_{seed} ... FAILED\nerror: the journal is read-only\n");
        let body = json!({"model": "smollm2", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 16,
            "tools": [tool], "temperature": 0, "messages": [
                {"role": "user", "content": "Which test failed, and why?"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                    "function": {"name": "run", "arguments": "{\"command\":\"cargo test\"}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": log}]});
        bench.relay.take();
        let reply = http::post(&bench.windowsill.chat_url(), &body);
        assert_eq!((reply.status, reply.is_done()), (200, true), "{}", reply.text);
        let sent: Vec<Value> = bench.relay.take().iter().filter_map(|b| serde_json::from_str(b).ok()).collect();
        let last = sent.last().expect("it was forwarded");
        let shown = last["messages"][2]["content"].as_str().expect("a result");
        let asked =
            sent.iter().filter(|b| b["stream"] == false && b["messages"].as_array().is_some_and(|m| m.len() == 1));
        let is_digest = shown.starts_with("[digest of run cargo test by smollm2: ");
        assert!(is_digest || shown.starts_with("[preview of run cargo test"), "{shown}");
        assert!(shown.contains("windowsill recall r"), "{shown}");
        digests += usize::from(is_digest);
        say(&format!("{} asked, {}: {}", asked.count(), reply.ours("warning"), shown.lines().last().unwrap_or("")));
    }
    let events = http::get(&format!("{}/windowsill/events?since=0", bench.windowsill.url())).json();
    let all = events["events"].as_array().expect("events");
    let costs: Vec<&Value> = all.iter().map(|e| &e["data"]).filter(|d| d["role"] == "digest").collect();
    assert!(!costs.is_empty(), "{events}");
    for cost in &costs {
        say(&format!(
            "{}: {} in, {} out, {} ms",
            cost["how"], cost["prompt_tokens"], cost["completion_tokens"], cost["milliseconds"]
        ));
        assert!(cost["prompt_tokens"].as_u64().is_some_and(|n| n > 100 && n < 4096), "{cost}");
    }
    say(&format!("{digests} of {} were of use", costs.len()));
}
