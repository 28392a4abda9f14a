//! Digests by a real model on a real llama.cpp server. So small a model writes some of use and some not; for those there is
//! a preview.

use serde_json::{Value, json};

use crate::support::session::Bench;
use crate::support::{http, say};

/// The log of a test run with one failure at its end: some 1,000 tokens.
fn log(seed: usize) -> String {
    let modules = ["net::pool", "store::writer", "plan::clear", "wire::json"];
    let passed = (0..60).map(|n| format!("test {}::tests::case_{n} ... ok\n", modules[(n * 7 + seed) % 4]));
    let name = format!("journal::tests::flush_{seed}");
    format!(
        "   Compiling ledger v0.1.0\n    Finished `test` profile\n     Running unittests src/lib.rs\nrunning 61 tests\n{}\
         test {name} ... FAILED\n\nfailures:\n\n---- {name} stdout ----\nthread '{name}' panicked at src/journal.rs:9{seed}:9:\n\
         the journal is read-only: cannot write segment 17\n\ntest result: FAILED. 60 passed; 1 failed; 0 ignored; \
         finished in 2.4{seed}s",
        passed.collect::<String>()
    )
}

fn request(seed: usize) -> Value {
    let tool = json!({"type": "function", "function": {"name": "run", "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}});
    json!({"model": "smollm2", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 16,
        "tools": [tool], "temperature": 0, "messages": [
            {"role": "user", "content": "Which test failed, and why?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                "function": {"name": "run", "arguments": "{\"command\":\"cargo test\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": log(seed)}]})
}

/// The result as it was forwarded.
fn shown(sent: &Value) -> String {
    sent["messages"][2]["content"].as_str().expect("a result").to_owned()
}

#[test]
fn a_real_models_digest_takes_the_previews_place() {
    let model = ("CONTEXT_DIGEST_MODEL", "local/smollm2");
    let bench = Bench::start(4096, &[("CONTEXT_BACKGROUND", "false"), ("CONTEXT_DIGEST_OVER", "600"), model]);
    let forwarded = || -> Value {
        let all = bench.relay.take();
        serde_json::from_str(all.last().expect("it was forwarded")).expect("JSON")
    };
    let mut digests = 0;
    for seed in 0..6 {
        let body = request(seed);
        bench.relay.take();
        let reply = http::post(&bench.windowsill.chat_url(), &body);
        assert_eq!((reply.status, reply.is_done()), (200, true), "{}", reply.text);
        let seen = shown(&forwarded());
        let is_digest = seen.starts_with("[digest of run cargo test by smollm2: ");
        assert!(is_digest || seen.starts_with("[preview of run cargo test"), "{seen}");
        assert!(seen.contains("windowsill recall r"), "{seen}");
        say(&format!("{}{seen}", reply.ours("warning")));
        if !is_digest {
            continue;
        }
        digests += 1;
        assert!(seen.contains("FAILED") || seen.contains("journal") || seen.contains("1 failed"), "{seen}");
        // The next turn has it byte for byte.
        let mut next = body;
        let said = [json!({"role": "assistant", "content": "One."}), json!({"role": "user", "content": "Go on."})];
        next["messages"].as_array_mut().expect("messages").extend(said);
        http::post(&bench.windowsill.chat_url(), &next);
        assert_eq!(shown(&forwarded()), seen);
    }
    assert!(digests > 0, "not one digest of six was of use");
    let events = http::get(&format!("{}/windowsill/events?since=0", bench.windowsill.url())).json();
    let all = events["events"].as_array().expect("events");
    let costs: Vec<&Value> = all.iter().map(|e| &e["data"]).filter(|d| d["role"] == "digest").collect();
    assert_eq!(costs.iter().filter(|c| c["used"] == true).count(), digests);
    for cost in &costs {
        say(&format!(
            "{}: {} in, {} out, {} ms",
            cost["how"], cost["prompt_tokens"], cost["completion_tokens"], cost["milliseconds"]
        ));
        assert!(cost["prompt_tokens"].as_u64().is_some_and(|n| n > 100 && n < 4096), "{cost}");
    }
}
