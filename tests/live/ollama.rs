//! A real Ollama behind windowsill: translated, never cut in silence.

use serde_json::{Value, json};

use crate::support::relay::Relay;
use crate::support::servers::{Ollama, Windowsill};
use crate::support::session::Session;
use crate::support::{http, say};

fn usage(reply: &http::Reply) -> (u64, u64) {
    let whole = reply.text.starts_with('{').then(|| reply.json());
    let usage =
        whole.into_iter().chain(reply_events(reply)).find_map(|e| e.get("usage").filter(|u| u.is_object()).cloned());
    let usage = usage.unwrap_or_else(|| panic!("no usage: {}", reply.text));
    (usage["prompt_tokens"].as_u64().expect("tokens"), usage["completion_tokens"].as_u64().expect("tokens"))
}

fn reply_events(reply: &http::Reply) -> Vec<Value> {
    if reply.text.starts_with('{') { Vec::new() } else { reply.events() }
}

fn loaded_window(ollama: &Ollama) -> u64 {
    let ps = http::get(&format!("{}/api/ps", ollama.url())).json();
    ps["models"][0]["context_length"].as_u64().unwrap_or_else(|| panic!("nothing is loaded: {ps}"))
}

#[test]
fn a_long_session_through_ollama_at_2048() {
    let session = Session::demo();
    let ollama = Ollama::start();
    let relay = Relay::before(&ollama.url());
    let windowsill = Windowsill::with(&relay.url(), &[("CONTEXT_STRATEGY", "truncate")], &["--num-ctx", "2048"]);
    let url = windowsill.chat_url();

    for (at, end) in session.turns().into_iter().take(24).enumerate().filter(|(at, _)| *at < 8 || at % 4 == 0) {
        // Streamed and whole by turns, tools in each.
        let stream = at % 2 == 0;
        relay.take();
        let reply = http::post(&url, session.request(end, 6, stream));
        let name = format!("message {end}");
        assert_eq!((reply.status, reply.ours("window")), (200, "2048"), "{name}: {}", reply.text);
        if stream {
            let events = reply.events();
            assert!(events.iter().any(|e| e["choices"][0]["finish_reason"].is_string()) && reply.is_done(), "{name}");
        } else {
            let choice = reply.json()["choices"][0].clone();
            assert!(
                choice["finish_reason"].is_string() && choice["message"]["role"] == "assistant",
                "{name}: {choice}"
            );
        }
        let (prompt, completion) = usage(&reply);
        let planned: u64 = reply.ours("prompt-tokens").parse().unwrap();
        let forwarded: Value = serde_json::from_str(relay.take().last().expect("one was sent")).unwrap();
        assert_eq!((&forwarded["truncate"], &forwarded["options"]["num_ctx"]), (&json!(false), &json!(2048)), "{name}");
        assert!(prompt + 6 <= 2048 && (1..=6).contains(&completion), "{name}: {prompt} in, {completion} out");
        say(&format!(
            "ollama, {name}: {planned} planned, {prompt} reported, {} ({})",
            reply.ours("action"),
            reply.ours("prompt-tokens-source")
        ));
        // An estimate may be as much too low as is left unused beside it; far below it, messages would be missing.
        assert!(prompt <= planned + 2048 / 25, "{name}: {planned} planned, {prompt} reported");
        assert!(prompt as f64 >= planned as f64 * 0.6, "{name}: {planned} planned, {prompt} reported");
    }
    assert_eq!(loaded_window(&ollama), 2048);
    let events = http::get(&format!("{}/windowsill/events?since=0", windowsill.url())).text;
    assert!(!events.contains("silent_truncation"), "{events}");
    other_endpoints(&windowsill);
}

/// What is not managed passes, and mistakes come back in OpenAI's shape.
fn other_endpoints(windowsill: &Windowsill) {
    let url = windowsill.url();
    let tags = http::get(&format!("{url}/api/tags"));
    assert_eq!((tags.status, &tags.json()["models"][0]["name"]), (200, &json!("smollm2:latest")));
    let show = http::post(&format!("{url}/api/show"), json!({"model": "smollm2"})).json();
    assert!(show["capabilities"].as_array().is_some_and(|c| c.contains(&json!("tools"))), "{show}");
    let models = http::get(&format!("{url}/v1/models")).json();
    assert_eq!(models["data"][0]["loaded_context"], 2048, "{models}");

    for stream in [false, true] {
        let body = json!({"model": "nope", "messages": [{"role": "user", "content": "Hello?"}], "stream": stream});
        let reply = http::post(&windowsill.chat_url(), body);
        assert_eq!(reply.status, 404, "{}", reply.text);
        let error = &reply.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| m.contains("nope")), "{}", reply.text);
        assert!(error.get("type").is_some() && error.get("code").is_some(), "{}", reply.text);
    }
}

/// Ollama cannot count, and a first estimate is too low where a model spells its letters in bytes. Ollama refuses, and the same
/// request is answered all the same.
#[test]
fn a_refusal_is_answered_within_the_request() {
    let ollama = Ollama::start();
    let relay = Relay::before(&ollama.url());
    relay.hide_vocabularies();
    // Nothing is rewritten before the wall, and each length meets an estimate that nothing was reported for yet.
    let late = [
        ("WINDOW_OUTPUT_RESERVED", "256"),
        ("CONTEXT_STRATEGY", "truncate"),
        ("CONTEXT_CLEAR_AT", "0.98"),
        ("CONTEXT_SUMMARIZE_AT", "0.99"),
        ("CONTEXT_SUMMARIZE_TO", "0.5"),
    ];
    // Korean words, which this model spells in bytes.
    let speech = "모든 사람은 태어날 때부터 자유로우며 존엄하다. ";
    let refused = (4..14).any(|pairs| {
        // By a name that is not taken for this machine, and with nobody to tell it, the model's own vocabulary is out of reach.
        let elsewhere = relay.url().replace("127.0.0.1", "0.0.0.0");
        let windowsill = Windowsill::with(&elsewhere, &late, &["--num-ctx", "1024"]);
        let pair =
            [json!({"role": "user", "content": speech.repeat(2)}), json!({"role": "assistant", "content": speech})];
        let last = json!({"role": "user", "content": "What was said?"});
        let history: Vec<Value> = pair.iter().cycle().take(pairs * 2).chain([&last]).cloned().collect();
        let body = json!({
            "model": "smollm2", "messages": history, "max_tokens": 4, "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true},
        });
        relay.take();
        let reply = http::post(&windowsill.chat_url(), body);
        let sent = relay.take();
        say(&format!(
            "{pairs} pairs: {} planned, {} reported, {} ({} sent)",
            reply.ours("prompt-tokens"),
            usage(&reply).0,
            reply.ours("action"),
            sent.len()
        ));
        assert_eq!((reply.status, reply.is_done()), (200, true), "{}", reply.text);
        let forwarded: Value = serde_json::from_str(sent.last().expect("sent")).unwrap();
        let newest = forwarded["messages"].as_array().expect("messages").last().expect("some");
        let words = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        // What was recalled ahead may stand behind it.
        assert!(words(newest).starts_with(&words(&last)), "the last user message is intact: {newest}");
        // The load, where there was one, has no messages.
        let tries = sent.iter().filter(|b| !b.contains("\"messages\":[]")).count();
        assert_eq!(tries, if reply.ours("action").contains("emergency") { 2 } else { 1 });
        tries == 2
    });
    assert!(refused, "it was refused at least once");
}

/// `num_ctx = "fit"`: loaded once with what the memory allows, and not again while nothing changes; another program's
/// window is noticed before the next request.
#[test]
fn the_window_is_fitted_to_the_memory() {
    let ollama = Ollama::start();
    let windowsill = Windowsill::with(&ollama.url(), &[], &["--num-ctx", "fit"]);
    let ask = |text: &str| {
        let body = json!({"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4});
        let reply = http::post(&windowsill.chat_url(), body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply
    };
    let first = ask("Hello!");
    // A model this small fits whole: 8,192 tokens are all it was trained for.
    assert_eq!(first.ours("window"), "8192", "{}", first.ours("window-source"));
    assert!(first.ours("window-source").starts_with("fit: "), "{}", first.ours("window-source"));
    assert_eq!(loaded_window(&ollama), 8192);
    ask("And again.");
    assert_eq!(loaded_window(&ollama), 8192);

    let elsewhere = json!({"model": "smollm2", "messages": [], "options": {"num_ctx": 2048}});
    http::post(&format!("{}/api/chat", ollama.url()), elsewhere);
    assert_eq!(loaded_window(&ollama), 2048);
    assert_eq!(ask("Still there?").ours("window"), "8192");
    assert_eq!(loaded_window(&ollama), 8192);
    let models = http::get(&format!("{}/windowsill/models", windowsill.url())).json();
    let model = &models["models"][0];
    assert_eq!((&model["window"], &model["num_ctx"]["decided"]), (&json!(8192), &json!(8192)), "{model}");
    assert!(model["memory"]["ram_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{model}");
    say(&format!("ollama, fitted: {}", first.ours("window-source")));
}

/// In the smallest window, the first request that a model ever gets is answered, though nothing is known yet of how its server
/// renders prompts: what may come on top of a count is no reason to refuse what the server alone answers.
#[test]
fn a_first_request_in_the_smallest_window_is_answered() {
    let ollama = Ollama::start();
    let numbers: Vec<String> = (0..300).map(|n| format!("word{n}")).collect();
    let hex: Vec<String> = (0..60_u32).map(|n| format!("{:08x}", n.wrapping_mul(0x9e37_79b9))).collect();
    let tool = json!({"type": "function", "function": {"name": "find", "description": "Finds a thing.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}}});
    for (window, words, tools) in [
        (128, numbers[..20].join(" "), json!([])),
        (128, numbers.join(" "), json!([])),
        (128, hex.join(" "), json!([])),
        (256, hex.join(""), json!([tool])),
    ] {
        let body = json!({"model": "smollm2", "stream": false, "tools": tools, "options": {"num_ctx": window, "num_predict": 8},
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": format!("{words} What is it?")}]});
        let direct = http::post(&format!("{}/api/chat", ollama.url()), &body);
        assert_eq!(direct.status, 200, "Ollama alone keeps the end: {}", direct.text);
        // A fresh record each time: nothing is known of the model.
        let windowsill = Windowsill::before(&ollama.url(), &[]);
        let through = http::post(&format!("{}/api/chat", windowsill.url()), &body);
        assert_eq!(through.status, 200, "{window} {}: {}", words.chars().take(20).collect::<String>(), through.text);
    }
}

/// Another program had the model loaded with a small window. A request that names none gets Ollama's own, alone and through
/// windowsill, and is planned for that.
#[test]
fn a_window_that_another_program_asked_for_is_not_taken_for_the_requests_own() {
    let ollama = Ollama::start();
    let chat = |options: Value, words: usize| {
        let long: Vec<String> = (0..words).map(|n| format!("w{n}")).collect();
        json!({"model": "smollm2", "stream": false, "options": options,
            "messages": [{"role": "system", "content": long.join(" ")}, {"role": "user", "content": "Hello?"}]})
    };
    let other =
        || http::post(&format!("{}/api/chat", ollama.url()), chat(json!({"num_ctx": 256, "num_predict": 1}), 3));
    let windowsill = Windowsill::before(&ollama.url(), &[]);
    for _ in 0..2 {
        assert_eq!((other().status, loaded_window(&ollama)), (200, 256));
        let reply = http::post(&format!("{}/api/chat", windowsill.url()), chat(json!({"num_predict": 4}), 150));
        assert_eq!((reply.status, reply.ours("window")), (200, "4096"), "{}", reply.text);
        assert_eq!((reply.ours("action"), loaded_window(&ollama)), ("none", 4096));
    }
}
