//! Counts by the model's own vocabulary and template, against a real llama.cpp server's: prompt for prompt, token for token.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windowsill::measure::count::Counter;
use windowsill::wire::openai_chat;

use crate::support::servers::{Llama, Windowsill, place};
use crate::support::session::Session;
use crate::support::{http, say};

/// Templates of many families, where the larger data set is beside the repository.
const TEMPLATES: [&str; 8] = [
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "deepseek-ai-DeepSeek-V3.1",
    "GLM-4.6",
    "Qwen3-Coder",
];

fn templates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = vec![root.join("demo/chat-template.jinja")];
    let places = ["../shared", "../../shared"].map(|p| root.join(p).join("data/templates"));
    match places.iter().find(|p| p.is_dir()) {
        Some(dir) => out.extend(TEMPLATES.iter().map(|t| dir.join(format!("{t}.jinja")))),
        None => say("the larger set of templates is not here, left out"),
    }
    out
}

/// Prefixes of a recorded session, and shapes that templates treat in ways of their own.
fn requests(session: &Session) -> Vec<Value> {
    let turns = session.turns();
    let mut out: Vec<Value> =
        turns.iter().step_by((turns.len() / 4).max(1)).map(|end| session.request(*end, 8, false)).collect();
    let call = json!({"id": "call00001", "type": "function", "function": {"name": "look", "arguments": "{\"at\": [1, 2.50, null], \"é\": true}"}});
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks \"there\"\nnow", "parameters": {"type": "object", "properties": {"at": {"type": "array"}}}}});
    let talk = json!([
        {"role": "system", "content": " You are\n"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]},
        {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call00001", "content": "<|im_start|>system\n<|eot_id|></s> {\"a\": 1}"},
        {"role": "assistant", "content": "It is. "},
        {"role": "user", "content": "\t\nAnd  now?\n\n"},
    ]);
    for more in [
        json!({}),
        json!({"tools": [tool]}),
        json!({"tools": [tool], "chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let mut body = json!({"model": "smollm2", "messages": talk});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        out.push(body);
    }
    out
}

#[test]
fn every_count_is_the_servers_own() {
    let session = Session::demo();
    let model = PathBuf::from(place("WINDOWSILL_MODEL"));
    let (mut equal, mut refused) = (0, 0);
    for file in templates() {
        let llama = Llama::start_with(512, &["--chat-template", file.to_str().unwrap()]);
        let counter = Counter::open(&model, Some(&std::fs::read_to_string(&file).unwrap())).unwrap();
        for body in requests(&session) {
            let asked = http::post(&format!("{}/v1/chat/completions/input_tokens", llama.url()), body.to_string());
            let bytes = bytes::Bytes::from(body.to_string());
            if asked.status != 200 {
                refused += 1;
                continue;
            }
            let theirs = asked.json()["input_tokens"].as_u64().unwrap() as u32;
            let name = format!("{}, {} messages", file.display(), body["messages"].as_array().unwrap().len());
            assert_eq!(counter.total(&bytes).unwrap().0, theirs, "{name}");
            let talk = openai_chat::parse(&bytes).unwrap().conversation;
            let shares = counter.counted(&bytes, &talk, false).unwrap();
            assert_eq!(shares.total(), theirs, "{name}: the shares add up");
            assert_eq!(
                shares.tools > 0,
                body.get("tools").is_some() && !file.to_string_lossy().contains("V3.1"),
                "{name}"
            );
            equal += 1;
        }
    }
    say(&format!("{equal} counts equal, {refused} requests refused by the server"));
    assert!(equal > 4, "{equal}");
}

#[test]
fn requests_are_counted_here_and_the_server_agrees() {
    let llama = Llama::start(4096);
    let windowsill = Windowsill::before(&llama.url(), &[]);
    let talk = |n: usize| {
        let user = |i| json!({"role": "user", "content": format!("question {i} <|im_end|> é")});
        let reply = json!({"role": "assistant", "content": "answer"});
        let mut messages: Vec<Value> = (0..n).flat_map(|i| [user(i), reply.clone()]).collect();
        messages.push(user(n));
        json!({"model": "smollm2", "messages": messages, "max_tokens": 2})
    };
    for n in [0, 1, 4, 5] {
        let reply = http::post(&windowsill.chat_url(), talk(n).to_string());
        let reported = reply.json()["usage"]["prompt_tokens"].to_string();
        assert_eq!((reply.status, reply.ours("prompt-tokens")), (200, reported.as_str()), "{}", reply.text);
        assert_eq!(reply.ours("prompt-tokens-source"), "counted with the model's own vocabulary");
    }
}
