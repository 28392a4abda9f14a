//! What a person may say of the model that windowsill serves itself: a chat template of one's own, the types of its KV cache;
//! and tools, which its own template leaves out.

use serde_json::{Value, json};

use crate::support::servers::{Windowsill, place};
use crate::support::{http, say};

/// A template that shows tools, and calls and their results as Hermes models have them.
const TEMPLATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/chat-template.jinja");

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "The weather of a city, now.",
        "parameters": {"type": "object", "required": ["city", "unit"], "properties": {
            "city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}})
}

/// Five times asked, called and answered, and a sixth time asked: so small a model calls nothing without examples.
fn asked() -> Vec<Value> {
    let ask = |city: &str| json!({"role": "user", "content": format!("What is the weather in {city}?")});
    let cities = [("Rome", "21"), ("Oslo", "4"), ("Cairo", "33"), ("Lima", "19"), ("Tokyo", "25")];
    let examples = cities.iter().enumerate().flat_map(|(n, (city, degrees))| {
        let arguments = json!({"city": city, "unit": "celsius"}).to_string();
        let call = json!({"id": format!("call_{n}"), "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
        [
            ask(city),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": format!("call_{n}"), "content": format!("{degrees} degrees")}),
            json!({"role": "assistant", "content": format!("It is {degrees} degrees in {city}.")}),
        ]
    });
    examples.chain([ask("Paris")]).collect()
}

fn question(more: Value) -> Value {
    let mut body = json!({"messages": asked(), "tools": [tool()], "temperature": 0, "max_tokens": 200});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// The call's arguments, which must keep to the tool's schema.
fn arguments(call: &Value) -> Value {
    assert_eq!(call["function"]["name"], "get_weather", "{call}");
    let text = call["function"]["arguments"].as_str().expect("a text");
    let arguments: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(arguments["city"].is_string(), "{arguments}");
    assert!([json!("celsius"), json!("fahrenheit")].contains(&arguments["unit"]), "{arguments}");
    arguments
}

#[test]
fn a_template_of_ones_own_shows_tools_and_calls_come_back() {
    let windowsill = Windowsill::itself(&[], &["--chat-template-file", TEMPLATE]);
    let chat = windowsill.chat_url();
    let prompt = |reply: &http::Reply| reply.json()["usage"]["prompt_tokens"].as_u64().expect("tokens");

    // What is a call, and that it keeps to the schema, is llama.cpp's doing.
    let whole = http::post(&chat, question(json!({"tool_choice": "required"})));
    assert_eq!(whole.status, 200, "{}", whole.text);
    // What windowsill counted, tools and all, is what was evaluated.
    assert_eq!(whole.ours("prompt-tokens"), prompt(&whole).to_string());
    let bare = http::post(&chat, question(json!({"tools": null})));
    assert!(prompt(&whole) > prompt(&bare) + 80, "{} and {} tokens", prompt(&whole), prompt(&bare));
    let choice = &whole.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls").clone();
    let called = arguments(&calls[0]);
    say(&format!("called with {called}"));

    let parts = http::post(&chat, question(json!({"tool_choice": "required", "stream": true})));
    let events = parts.events();
    let deltas = || events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"][0].as_object());
    let text: String = deltas().filter_map(|d| d["function"]["arguments"].as_str()).collect();
    let name = deltas().find_map(|d| d["function"]["name"].as_str()).expect("a name");
    let id = deltas().find_map(|d| d.get("id")?.as_str()).expect("an id");
    assert!(!id.is_empty());
    assert_eq!(arguments(&json!({"function": {"name": name, "arguments": text}})), called);
    assert!(events.iter().any(|e| e["choices"][0]["finish_reason"] == "tool_calls"), "{}", parts.text);

    // Another city, and a tool that is to be called by its name.
    let named = question(json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}));
    let named = http::post(&chat, named).json();
    arguments(&named["choices"][0]["message"]["tool_calls"][0]);

    // The conversation goes on: only what is new is evaluated.
    let result = json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "18 degrees, light rain"});
    let messages = [asked(), vec![json!({"role": "assistant", "content": null, "tool_calls": calls}), result]].concat();
    let on = http::post(&chat, question(json!({"messages": messages})));
    assert_eq!(on.status, 200, "{}", on.text);
    assert_eq!(on.ours("prompt-tokens"), prompt(&on).to_string());
    let cached = on.json()["timings"]["cache_n"].as_u64().expect("a figure");
    assert!(cached + 30 > prompt(&whole), "{cached} of {} cached", prompt(&whole));
}

/// A template of a model that thinks, as Qwen 3's.
const THINKS: &str = "\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}\
{%- if m.role == 'assistant' and m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}\
{{- m.content + '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}";

#[test]
fn what_a_model_thinks_is_told_apart_and_a_seed_repeats_a_reply() {
    let home = tempfile::tempdir().unwrap();
    let template = home.path().join("thinks.jinja");
    std::fs::write(&template, THINKS).unwrap();
    let windowsill = Windowsill::itself(&[], &["--chat-template-file", template.to_str().unwrap()]);
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Is it so?"}], "max_tokens": 64});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let reply = http::post(&windowsill.chat_url(), body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.ours("prompt-tokens"), reply.json()["usage"]["prompt_tokens"].to_string(), "{}", reply.text);
        reply.json()
    };
    let message = |reply: &Value| reply["choices"][0]["message"].clone();
    // So small a model thinks nothing by itself. A sampler may spell this letter by letter: there is room for that.
    let grammar = r#"root ::= "<think>\nhm, well\n</think>\n\nyes""#;
    let thought = message(&ask(json!({"grammar": grammar})));
    assert_eq!(thought["reasoning_content"].as_str().map(str::trim), Some("hm, well"), "{thought}");
    assert_eq!(thought["content"].as_str().map(str::trim), Some("yes"), "{thought}");
    let whole = message(&ask(json!({"grammar": grammar, "reasoning_format": "none"})));
    assert!(whole["content"].as_str().is_some_and(|text| text.contains("</think>")), "{whole}");
    let tokens = |more: Value| ask(more)["usage"]["prompt_tokens"].as_u64().expect("tokens");
    let without = tokens(json!({"max_tokens": 1, "chat_template_kwargs": {"enable_thinking": false}}));
    assert!(without > tokens(json!({"max_tokens": 1})));

    let said = |seed: u64| message(&ask(json!({"temperature": 1.0, "seed": seed})))["content"].clone();
    let first = said(7);
    assert_eq!(said(7), first);
    assert!((8..12).any(|seed| said(seed) != first), "{first}");
}

#[test]
fn a_smaller_kind_of_kv_cache_takes_less_memory() {
    let held = |flags: &[&str]| {
        let flags = [&["--num-ctx", "8192"], flags].concat();
        let windowsill = Windowsill::itself(&[], &flags);
        let reply = http::post(
            &windowsill.chat_url(),
            json!({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}),
        );
        assert_eq!((reply.status, reply.ours("window")), (200, "8192"), "{}", reply.text);
        let status = std::fs::read_to_string(format!("/proc/{}/status", windowsill.children()[0])).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a figure");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let kv = |kind: &str| {
        let windowsill = env!("CARGO_BIN_EXE_windowsill");
        let out = std::process::Command::new(windowsill)
            .args(["fit", &place("WINDOWSILL_MODEL"), "--ctx", "8192", "--parallel", "1", "--json", "--kv-type", kind])
            .output()
            .unwrap();
        let fit: Value = serde_json::from_slice(&out.stdout).unwrap();
        let row = fit["rows"].as_array().expect("rows").iter().find(|row| row["n_ctx"] == 8192).cloned();
        row.expect("a row")["kv_bytes"].as_u64().expect("bytes")
    };
    let (plain, small) = (held(&[]), held(&["--kv-type", "q8_0"]));
    let (more, less) = (kv("f16"), kv("q8_0"));
    say(&format!("held {plain} and {small} bytes, reckoned to differ by {}", more - less));
    // The cache is nearly all that differs; allocators keep a little more or less.
    let off = (plain - small).abs_diff(more - less);
    assert!(off < 8 << 20, "{} held less, {} reckoned", plain - small, more - less);
}

#[test]
fn what_cannot_be_rendered_with_is_said_before_anything_starts() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let large = file("large.jinja", &"{{ messages }}".repeat(100_000));
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--chat-template-file", "/nonexistent.jinja"], 1, "/nonexistent.jinja cannot be used as a chat template"),
        (&["--chat-template-file", &file("empty.jinja", "\n")], 1, "it is empty"),
        (&["--chat-template-file", &file("bad.jinja", "{% for m in messages %}{{ m.content }}")], 1, "bad.jinja"),
        (&["--kv-type", "q9"], 2, "must be a type of a KV cache"),
        (&["--chat-template-file", &large], 1, "it is larger than 1048576 bytes"),
        (&["--chat-template-file", "/dev/zero"], 1, "it is a device, not a regular file"),
        (&["--kv-type", "f16,q4_k"], 2, "must be a type of a KV cache"),
    ];
    for (flags, code, part) in cases {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
        command.env_clear().env("HOME", home.path()).current_dir(home.path());
        command.args(["serve", "--listen", "127.0.0.1:0", "--model", &place("WINDOWSILL_MODEL")]);
        let out = command.args(flags).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(part), "{flags:?}: {said}");
    }
}

#[test]
fn a_picture_becomes_a_line_in_every_dialect() {
    let windowsill = Windowsill::itself(&[], &["--num-ctx", "1024"]);
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";
    let url = format!("data:image/png;base64,{png}");
    let source = json!({"type": "base64", "media_type": "image/png", "data": png});
    let user = |parts: Value| json!([{"role": "user", "content": parts}]);
    let text = |kind: &str| json!({"type": kind, "text": "What is this?"});
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    let asked = [
        ("/v1/chat/completions", json!({"max_tokens": 2, "messages": user(json!([text("text"), image]))})),
        (
            "/v1/messages",
            json!({"max_tokens": 2, "messages": user(json!([text("text"), {"type": "image", "source": source}]))}),
        ),
        (
            "/v1/responses",
            json!({"max_output_tokens": 2, "input": user(json!([text("input_text"), {"type": "input_image", "image_url": url}]))}),
        ),
        (
            "/api/chat",
            json!({"options": {"num_predict": 2}, "messages": [{"role": "user", "content": "What is this?", "images": [png]}]}),
        ),
    ];
    for (path, mut body) in asked {
        for stream in [false, true] {
            (body["model"], body["stream"]) = (json!("m"), json!(stream));
            let reply = http::post(&format!("{}{path}", windowsill.url()), &body);
            assert_eq!(reply.status, 200, "{path}: {}", reply.text);
            assert!(reply.ours("warning").starts_with("1 picture said as text"), "{path}: {}", reply.ours("warning"));
        }
    }
}
