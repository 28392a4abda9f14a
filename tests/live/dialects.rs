//! Other dialects than chat completions, before real servers: the same prompt, the same reply, in other words.

use serde_json::{Value, json};

use crate::support::servers::{Llama, Ollama, Windowsill};
use crate::support::{http, say};

/// What a reply says, and what its prompt came to.
type Said = (String, u64);

/// A dialect: where it is asked, and how.
struct Dialect {
    path: &'static str,
    /// A request of a system prompt, turns of the user and the model by turns, and whether it is streamed.
    ask: fn(&str, &[&str], bool) -> Value,
    whole: fn(&Value) -> Said,
    stream: fn(&str) -> Said,
}

const TOKENS: u32 = 16;

const ALL: [Dialect; 3] = [
    Dialect {
        path: "/v1/messages",
        ask: |system, turns, stream| {
            json!({"model": "smollm2", "system": [{"type": "text", "text": system}], "messages": messages(turns), "stream": stream,
            "max_tokens": TOKENS, "temperature": 0})
        },
        whole: |body| {
            let usage = |key: &str| body["usage"][key].as_u64().expect("a figure");
            let text = body["content"][0]["text"].as_str().expect("text").to_owned();
            assert_eq!((&body["type"], &body["stop_reason"]), (&json!("message"), &json!("max_tokens")), "{body}");
            (text, usage("input_tokens") + usage("cache_read_input_tokens"))
        },
        stream: |text| {
            let events =
                text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
            let events: Vec<Value> = events.collect();
            assert_eq!(events.last().expect("events")["type"], "message_stop", "{text}");
            let said = events.iter().filter_map(|e| e["delta"]["text"].as_str()).collect();
            let last = events.iter().find(|e| e["type"] == "message_delta").expect("the usage");
            let usage = |key: &str| last["usage"][key].as_u64().expect("a figure");
            (said, usage("input_tokens") + usage("cache_read_input_tokens"))
        },
    },
    Dialect {
        path: "/api/chat",
        ask: |system, turns, stream| {
            let all = [vec![json!({"role": "system", "content": system})], messages(turns)].concat();
            json!({"model": "smollm2", "messages": all, "stream": stream, "options": {"num_predict": TOKENS, "temperature": 0}})
        },
        whole: |body| ollama(&body.to_string()),
        stream: ollama,
    },
    Dialect {
        path: "/v1/responses",
        ask: |system, turns, stream| {
            json!({"model": "smollm2", "instructions": system, "input": messages(turns), "stream": stream,
                "max_output_tokens": TOKENS, "temperature": 0})
        },
        whole: response,
        stream: |text| {
            let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
            let last: Value = serde_json::from_str(data.last().expect("events")).expect("JSON");
            assert_eq!(last["type"], "response.incomplete", "{text}");
            response(&last["response"])
        },
    },
];

fn response(body: &Value) -> Said {
    assert_eq!(body["incomplete_details"]["reason"], "max_output_tokens", "{body}");
    let text = body["output"][0]["content"][0]["text"].as_str().expect("text").to_owned();
    (text, body["usage"]["input_tokens"].as_u64().expect("a figure"))
}

/// Ollama's lines; a reply that is not streamed is one.
fn ollama(text: &str) -> Said {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last = lines.last().expect("lines");
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")), "{text}");
    let said = lines.iter().map(|line| line["message"]["content"].as_str().expect("text")).collect();
    (said, last["prompt_eval_count"].as_u64().expect("a figure"))
}

/// The user and the model by turns.
fn messages(turns: &[&str]) -> Vec<Value> {
    let roles = ["user", "assistant"].into_iter().cycle();
    turns.iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text})).collect()
}

/// Asks a model the same in every dialect.
fn alike(name: &str, windowsill: &Windowsill) {
    let system = "You are terse.";
    let turns = ["Count: one, two, three,", "four, five, six,", "Go on counting, please."];
    let mut chat = vec![json!({"role": "system", "content": system})];
    chat.extend(messages(&turns));
    let body = json!({"model": "smollm2", "messages": chat, "max_tokens": TOKENS, "temperature": 0});
    // The prompt is in the server's cache from here on, so that every reply is reckoned alike, to the last bit.
    http::post(&windowsill.chat_url(), &body);
    let first = http::post(&windowsill.chat_url(), body);
    assert_eq!(first.status, 200, "{}", first.text);
    let reply = first.json();
    let want = (
        reply["choices"][0]["message"]["content"].as_str().expect("text").to_owned(),
        reply["usage"]["prompt_tokens"].as_u64().expect("a figure"),
    );
    say(&format!("{name}: {want:?}"));
    for dialect in &ALL {
        let url = format!("{}{}", windowsill.url(), dialect.path);
        for stream in [false, true] {
            let reply = http::post(&url, (dialect.ask)(system, &turns, stream));
            assert_eq!(reply.status, 200, "{name}, {}: {}", dialect.path, reply.text);
            let said = if stream { (dialect.stream)(&reply.text) } else { (dialect.whole)(&reply.json()) };
            assert_eq!(said, want, "{name}, {}, streamed {stream}", dialect.path);
            assert_eq!(reply.ours("conversation"), first.ours("conversation"));
            assert_eq!(reply.ours("prompt-tokens"), want.1.to_string());
        }
    }
    let count = json!({"model": "smollm2", "system": system, "messages": messages(&turns)});
    let counted = http::post(&format!("{}/v1/messages/count_tokens", windowsill.url()), count);
    let told = json!({"input_tokens": want.1, "context_management": {"original_input_tokens": want.1}});
    assert_eq!(counted.json(), told, "{name}");
}

/// Of a history several times the window, each dialect gets an answer; the server drops nothing in silence. The same history is
/// the same in every dialect: what was folded for one stays folded for the others.
fn outlives_the_window(name: &str, windowsill: &Windowsill, window: u64) {
    let long = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all. ".repeat(12);
    let turns: Vec<&str> = (0..41).map(|_| long.as_str()).collect();
    let mut folded = None;
    for dialect in &ALL {
        let url = format!("{}{}", windowsill.url(), dialect.path);
        let reply = http::post(&url, (dialect.ask)("You are terse.", &turns, false));
        assert_eq!(reply.status, 200, "{name}, {}: {}", dialect.path, reply.text);
        let (_, prompt) = (dialect.whole)(&reply.json());
        let action = reply.ours("action");
        match folded {
            None => assert!(action.contains("summarize"), "{name}: {action}"),
            Some(before) => assert_eq!((action, prompt), ("none", before), "{name}, {}", dialect.path),
        }
        folded = Some(prompt);
        assert!(prompt > 100 && prompt < window, "{name}: {prompt} of {window}");
        say(&format!("{name}, {}: {} messages in {prompt} tokens", dialect.path, turns.len()));
    }
}

#[test]
fn every_dialect_before_every_server() {
    let llama = Llama::start(2048);
    let ollama = Ollama::start();
    let window = ["--num-ctx", "2048"];
    let short = [("CONTEXT_SUMMARY_MAX_TOKENS", "64")];
    for (name, windowsill) in [
        ("llama-server", Windowsill::before(&llama.url(), &short)),
        ("ollama", Windowsill::with(&ollama.url(), &short, &window)),
        ("embedded", Windowsill::itself(&short, &window)),
    ] {
        alike(name, &windowsill);
        outlives_the_window(name, &windowsill, 2048);
    }
}
