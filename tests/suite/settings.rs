//! Settings that a server does not have: an effort, a way to think, a field that it forbids. A request is never lost to one.

use serde_json::{Map, Value, json};

use super::dialects::{ask, whole_or_streamed};
use super::inside::{dialects, read};
use super::support::script::{stream as said_stream, tools_of, whole_reply};
use super::support::*;

const WINDOW: u32 = 8192;

/// A request for an effort in each dialect that has a word for it.
fn efforts(level: &str, stream: bool) -> Vec<(&'static str, Value)> {
    let chat = json!([{"role": "user", "content": "Hello."}]);
    let mut all = vec![
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": chat, "reasoning_effort": level, "stream": stream}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": chat, "reasoning": {"effort": level}, "stream": stream}),
        ),
        ("/v1/responses", json!({"model": MODEL, "input": "Hello.", "reasoning": {"effort": level}, "stream": stream})),
        (
            "/v1/messages",
            json!({"model": MODEL, "max_tokens": 9, "messages": chat, "output_config": {"effort": level}, "stream": stream}),
        ),
    ];
    if matches!(level, "low" | "medium" | "high" | "max") {
        all.push(("/api/chat", json!({"model": MODEL, "messages": chat, "think": level, "stream": stream})));
        all.push(("/api/generate", json!({"model": MODEL, "prompt": "Hello.", "think": level, "stream": stream})));
    }
    all
}

fn post(proxy: &TestProxy, path: &str, body: &Value) -> Answer {
    proxy.post(path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

/// Every effort that a request asks for.
fn asked_for(body: &Value) -> Vec<String> {
    let places = [
        &body["reasoning_effort"],
        &body["reasoning"]["effort"],
        &body["chat_template_kwargs"]["reasoning_effort"],
        &body["think"],
    ];
    places.into_iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// vLLM and SGLang: an effort is one of some levels.
fn has_levels(fake: &Fake, levels: &'static [&'static str]) {
    fake.script(move |seen| {
        let body = seen.json();
        let other = asked_for(&body).into_iter().find(|level| !levels.contains(&level.as_str()));
        match other.filter(|_| seen.is_main()) {
            Some(level) => Play::Json(
                400,
                json!({"object": "error", "type": "BadRequestError", "code": 400, "message": format!(
                    "1 validation error: literal_error at body.reasoning_effort: Input should be '{}', input: '{level}'", levels.join("', '"))}),
            ),
            None => Play::Usual,
        }
    });
}

#[test]
fn a_level_that_a_server_does_not_have_goes_to_the_nearest() {
    for kind in [Kind::LlamaServer, Kind::Vllm, Kind::OpenAi] {
        for (asked, levels, expect) in [
            ("xhigh", &["none", "low", "medium", "high"][..], "high"),
            ("ultra", &["none", "low", "medium", "high"], "high"),
            ("max", &["none", "low", "medium", "high"], "high"),
            ("minimal", &["none", "low", "medium", "high"], "low"),
            ("medium", &["low", "high"], "low"),
        ] {
            for stream in [false, true] {
                for (path, body) in efforts(asked, stream) {
                    let fake = Fake::start(kind, WINDOW);
                    let proxy = TestProxy::before(&fake);
                    has_levels(&fake, levels);
                    post(&proxy, path, &body).ok();
                    let got = asked_for(&fake.last().json());
                    assert!(got.iter().all(|level| level == expect), "{path} {asked} to {kind:?}: {got:?}");
                    // From then on it is said at once.
                    fake.clear();
                    post(&proxy, path, &body).ok();
                    assert_eq!(fake.count(), 1, "{path} {asked} to {kind:?}");
                }
            }
        }
    }
}

#[test]
fn an_effort_that_no_model_there_has_is_left_out_and_the_client_told() {
    let fake = Fake::start(Kind::OpenAi, WINDOW);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| match seen.json().get("reasoning_effort").filter(|_| seen.is_main()) {
        Some(_) => {
            Play::Json(400, json!({"error": {"message": "Unrecognized request argument supplied: reasoning_effort"}}))
        }
        None => Play::Usual,
    });
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "high"});
    for _ in 0..2 {
        let answer = post(&proxy, "/v1/chat/completions", &body).ok();
        assert_eq!(fake.last().json().get("reasoning_effort"), None);
        let told = answer.header("x-windowsill-warning").unwrap_or_default();
        assert!(told.contains("effort high is left out"), "{told}");
    }
    assert_eq!(fake.count(), 3);
    // Another model of the same server may have it.
    let other =
        json!({"model": "another", "messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "high"});
    fake.script(|_| Play::Usual);
    post(&proxy, "/v1/chat/completions", &other).ok();
    assert_eq!(fake.last().json()["reasoning_effort"], "high");
}

/// An Ollama whose model thinks as `can` says, and refuses to be asked otherwise.
fn thinks(fake: &Fake, can: &'static str, tells: bool) {
    fake.script(move |seen| {
        let think = seen.json()["think"].clone();
        let wrong = match can {
            "never" => think == json!(true) || think.is_string(),
            _ => think.is_string(),
        };
        if seen.path() == "/api/show" {
            let capabilities = match (tells, can) {
                (false, _) => json!([]),
                (true, "never") => json!(["completion", "tools"]),
                _ => json!(["completion", "tools", "thinking"]),
            };
            let info = json!({"general.architecture": "llama", "llama.context_length": 131_072});
            return Play::Json(200, json!({"model_info": info, "template": "", "capabilities": capabilities}));
        }
        if !seen.is_main() || !wrong {
            return Play::Usual;
        }
        let said = match can {
            "never" => format!("\"{MODEL}\" does not support thinking"),
            _ => format!("think value {think} is not supported for this model"),
        };
        Play::Json(400, json!({ "error": said }))
    });
}

/// Its capabilities say so before anything is sent; where they do not, its refusal does.
#[test]
fn an_ollama_is_asked_for_what_its_model_can() {
    for (can, tells, expect, tries) in [
        ("never", true, Value::Null, 1),
        ("never", false, Value::Null, 2),
        ("without levels", true, json!(true), 2),
        ("without levels", false, json!(true), 2),
    ] {
        for stream in [false, true] {
            let plain = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "think": true, "stream": stream});
            let mut all = efforts("medium", stream);
            all.retain(|(path, _)| *path != "/v1/messages");
            all.push(("/api/chat", plain));
            for (path, body) in all {
                let fake = Fake::start(Kind::Ollama, WINDOW);
                let proxy = TestProxy::before(&fake);
                thinks(&fake, can, tells);
                post(&proxy, path, &body).ok();
                let think = fake.last().json()["think"].clone();
                assert_eq!(think, expect, "{path} {can} {body}");
                let more = usize::from(can == "without levels" && body["think"] == true);
                assert_eq!(fake.count(), tries - more, "{path} {can} {tells} {body}");
                fake.clear();
                post(&proxy, path, &body).ok();
                assert_eq!(fake.count(), 1, "{path} {can}");
            }
        }
    }
}

/// A server that forbids what it does not know (TensorRT-LLM), in messages, too. `all`: it names all of them at once.
fn strict(fake: &Fake, all: bool, status: u16) {
    const KNOWN: [&str; 8] =
        ["model", "messages", "stream", "max_tokens", "temperature", "tools", "tool_choice", "response_format"];
    const SAID: [&str; 5] = ["role", "content", "name", "tool_calls", "tool_call_id"];
    fake.script(move |seen| {
        let body = seen.json();
        let others = |object: &Map<String, Value>, known: &[&str]| -> Vec<String> {
            object.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect()
        };
        let Some(fields) = body.as_object().filter(|_| seen.is_main()) else { return Play::Usual };
        let mut bad: Vec<Value> = others(fields, &KNOWN).iter().map(|key| json!(["body", key])).collect();
        for (at, message) in seen.messages().iter().enumerate() {
            let keys = others(message.as_object().unwrap(), &SAID);
            bad.extend(keys.iter().map(|key| json!(["body", "messages", at, key])));
        }
        bad.truncate(if all { usize::MAX } else { 1 });
        if bad.is_empty() {
            return Play::Usual;
        }
        let said: Vec<Value> = bad
            .iter()
            .map(|at| json!({"type": "extra_forbidden", "loc": at, "msg": "Extra inputs are not permitted"}))
            .collect();
        Play::Json(status, json!({ "detail": said }))
    });
}

#[test]
fn fields_that_a_strict_server_forbids_are_left_out_from_then_on() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let messages = |more: Value| {
        let mut body = json!({"model": MODEL, "max_tokens": 9, "messages": [user("hi")]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/messages", body)
    };
    let thought = json!([user("hi"), {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Hello."}]}, user("again")]);
    let echoed =
        json!([user("hi"), {"role": "assistant", "content": "Hello.", "reasoning_content": "hm"}, user("again")]);
    let asks = [
        messages(json!({"thinking": {"type": "disabled"}})),
        messages(json!({"messages": thought})),
        messages(json!({"context_hint": {"x": 1}, "output_config": {"effort": "low"}})),
        ("/v1/responses", json!({"model": MODEL, "input": "hi", "reasoning": {"effort": "low"}, "keep_alive": "5m"})),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": echoed, "chat_template_kwargs": {"enable_thinking": false}}),
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": [user("hi")], "think": false, "options": {"num_ctx": 4096, "mirostat": 1}}),
        ),
    ];
    for kind in [Kind::OpenAi, Kind::Vllm, Kind::LlamaServer] {
        for (all, status) in [(true, 400), (false, 422)] {
            for (path, body) in &asks {
                for stream in [false, true] {
                    let fake = Fake::start(kind, WINDOW);
                    let proxy = TestProxy::before(&fake);
                    strict(&fake, all, status);
                    let mut body = body.clone();
                    body["stream"] = json!(stream);
                    post(&proxy, path, &body).ok();
                    fake.clear();
                    let answer = post(&proxy, path, &body).ok();
                    assert_eq!(fake.count(), 1, "{path} {kind:?} {all} {body}");
                    assert!(answer.header("x-windowsill-warning").is_some(), "{path} {body}");
                }
            }
        }
    }
}

#[test]
fn what_a_client_says_to_its_own_server_is_refused_as_the_server_says() {
    let fake = Fake::start(Kind::OpenAi, WINDOW);
    let proxy = TestProxy::before(&fake);
    strict(&fake, true, 400);
    // Without it, the reply would be one to another question.
    let body =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "guided_json": {"type": "object"}});
    let answer = post(&proxy, "/v1/chat/completions", &body);
    assert_eq!((answer.status, fake.count()), (400, 1), "{}", answer.text());
    assert!(answer.text().contains("guided_json"));
    // A refusal that nothing helps against is told once, and nothing is learned from it.
    fake.script(|seen| match seen.is_main() {
        true => Play::Json(400, json!({"error": {"message": "chat_template_kwargs: no"}})),
        false => Play::Usual,
    });
    let body =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"x": 1}});
    assert_eq!(post(&proxy, "/v1/chat/completions", &body).status, 400);
    fake.script(|_| Play::Usual);
    post(&proxy, "/v1/chat/completions", &body).ok();
    assert_eq!(fake.last().json()["chat_template_kwargs"], json!({"x": 1}));
}

/// What is left out lets the server say what else is wrong: that the prompt is too long is acted on as ever.
#[test]
fn a_prompt_that_is_too_long_is_found_out_behind_a_strict_server() {
    let fake = Fake::start(Kind::OpenAi, 2048);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| match seen.json().get("chat_template_kwargs").filter(|_| seen.is_main()) {
        Some(_) => Play::Json(400, json!({"error": {"message": "extra_forbidden: chat_template_kwargs"}})),
        None => Play::Usual,
    });
    let mut messages = vec![json!({"role": "user", "content": "Let us begin."})];
    for n in 0..14 {
        messages.push(json!({"role": "assistant", "content": prose(n, 900)}));
        messages.push(json!({"role": "user", "content": format!("And item {n}?")}));
    }
    let body = json!({"model": MODEL, "max_tokens": 64, "messages": messages, "thinking": {"type": "disabled"}});
    post(&proxy, "/v1/messages", &body).ok();
}

/// A proxy with a profile of its own for the test's model.
fn with_profile(fake: &Fake, profile: &str) -> TestProxy {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("p")).unwrap();
    std::fs::write(dir.path().join("p/mine.toml"), format!("[match]\nnames = [\"{MODEL}\"]\n{profile}")).unwrap();
    TestProxy::at(dir, &[fake.url()], "profile_dir = 'p'\n")
}

#[test]
fn a_profile_sets_and_strips_whatever_a_client_sends() {
    let profile = "[model.\"*\"]\nset = { temperature = 0.25, max_tokens = 77, chat_template_kwargs = { enable_thinking = false }, think = false }\n\
        strip = [\"top_k\", \"seed\"]\n";
    let chat = json!([{"role": "user", "content": "Hello."}]);
    let asks = [
        (
            "/v1/chat/completions",
            json!({"messages": chat, "temperature": 0.9, "top_k": 7, "seed": 1, "max_completion_tokens": 9}),
        ),
        ("/v1/chat/completions", json!({"messages": chat})),
        ("/v1/responses", json!({"input": "Hello.", "temperature": 0.9, "top_k": 7, "max_output_tokens": 9})),
        ("/v1/messages", json!({"messages": chat, "temperature": 0.9, "top_k": 7, "max_tokens": 9})),
        (
            "/api/chat",
            json!({"messages": chat, "think": true, "options": {"temperature": 0.9, "top_k": 7, "seed": 1, "num_predict": 9}}),
        ),
        ("/api/generate", json!({"prompt": "Hello.", "options": {"temperature": 0.9, "top_k": 7, "num_predict": 9}})),
    ];
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::OpenAi] {
        let fake = Fake::start(kind, WINDOW);
        let proxy = with_profile(&fake, profile);
        for (path, body) in &asks {
            for stream in [false, true] {
                let mut body = body.clone();
                (body["model"], body["stream"]) = (json!(MODEL), json!(stream));
                post(&proxy, path, &body).ok();
                let sent = fake.last().json();
                let options = if kind == Kind::Ollama { &sent["options"] } else { &sent };
                let most = if kind == Kind::Ollama { &options["num_predict"] } else { &options["max_tokens"] };
                assert_eq!((&options["temperature"], most), (&json!(0.25), &json!(77)), "{path} to {kind:?}: {sent}");
                for gone in ["top_k", "seed", "max_completion_tokens"] {
                    assert_eq!(options.get(gone), None, "{path} to {kind:?}: {sent}");
                    assert_eq!(sent["options"].get(gone), None, "{path} to {kind:?}: {sent}");
                }
                assert_eq!(sent["think"], false, "{path} to {kind:?}");
                if kind != Kind::Ollama {
                    assert_eq!(sent["chat_template_kwargs"], json!({"enable_thinking": false}), "{path}");
                }
                assert_eq!(sent["stream"], json!(stream));
            }
        }
    }
}

/// They hold before anything is planned: the room for the reply is that of `max_tokens` as it is set.
#[test]
fn what_is_set_is_planned_with() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = with_profile(&fake, "[model.\"*\"]\nset = { max_tokens = 100000 }\n");
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5});
    let answer = post(&proxy, "/v1/chat/completions", &body).ok();
    assert!(answer.header("x-windowsill-max-tokens").is_some_and(|told| told.ends_with("asked=100000")));
    // Another model is as it was.
    let other = json!({"model": "other", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5});
    post(&proxy, "/v1/chat/completions", &other).ok();
    assert_eq!(fake.last().json()["max_tokens"], 5);
    // Passed through untouched means untouched.
    proxy.post("/v1/chat/completions", &[("x-windowsill", "off")], body.to_string().as_bytes()).ok();
    assert_eq!(fake.last().json(), body);
}

/// Two names that begin alike, one with dots, and one that every server takes.
fn long_names() -> [String; 4] {
    let long = |end: &str| format!("mcp__{}__{end}", "continuous_integration".repeat(3));
    [long("read_the_log"), long("read_the_logs"), "ci.jobs.list".into(), "run".into()]
}

/// A server that takes names of 64 characters, letters, digits, `_` and `-`, and calls its first tool.
fn takes_short_names(fake: &Fake, words: &'static str, write: usize) {
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let calls = seen.messages().into_iter().flat_map(|m| m["tool_calls"].as_array().cloned().unwrap_or_default());
        let called = calls.map(|call| call["function"]["name"].as_str().unwrap().to_owned());
        let usual = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let all: Vec<String> = tools_of(seen).into_iter().chain(called).collect();
        if let Some(name) = all.iter().find(|name| name.len() > 64 || !name.chars().all(usual)) {
            return Play::Json(
                400,
                json!({"error": {"message": words.replace("NAME", name), "type": "invalid_request_error"}}),
            );
        }
        let call = [("c9", tools_of(seen)[0].clone(), "{\"path\":\"a\"}".to_owned())];
        if seen.json()["stream"] != true {
            return Play::Json(200, whole_reply(seen, 0, "", &call));
        }
        let text = said_stream(seen, 0, "", &call);
        let mut pieces = vec![sse_head()];
        pieces.extend(text.as_bytes().chunks(write).map(chunk));
        pieces.push(b"0\r\n\r\n".to_vec());
        Play::Pieces(pieces)
    });
}

/// Names of tools go out as they are, until a server refuses one; then they are short ones, and calls come back as ever.
#[test]
fn names_that_a_server_refuses_are_shortened_and_restored_in_calls() {
    let names = long_names();
    let tools: Value = names.iter().map(|name| tool(name)).collect();
    let request = || {
        chat()
            .user("hi")
            .with("tools", tools.clone())
            .call("c1", &names[1], json!({"path": "b"}))
            .result("c1", "x")
            .call("c2", &names[2], json!({"path": "c"}))
            .result("c2", "y")
    };
    for (kind, words) in [
        (
            Kind::Vllm,
            "Function name was NAME but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64.",
        ),
        (
            Kind::OpenAi,
            "Invalid 'tools[20].function.name': string too long. Expected a string with maximum length 64, but got NAME instead.",
        ),
        (
            Kind::OpenAi,
            "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
        ),
        (Kind::LlamaServer, "tools.0.custom.name: String should have at most 64 characters"),
    ] {
        for dialect in dialects() {
            for streamed in [false, true] {
                let fake = Fake::start(kind, WINDOW);
                let proxy = TestProxy::before(&fake);
                takes_short_names(&fake, words, 7);
                let what = format!("{} {kind:?} streamed: {streamed} {words}", dialect.name);
                for first in [true, false] {
                    fake.clear();
                    let answer = ask(&proxy, dialect, &whole_or_streamed(request(), streamed)).ok();
                    let read = read(dialect, streamed, &answer);
                    assert_eq!(read.calls, [(names[0].clone(), json!({"path": "a"}))], "{what}");
                    let sent = tools_of(&fake.last());
                    let unique: std::collections::BTreeSet<&String> = sent.iter().collect();
                    assert_eq!((sent.len(), unique.len(), sent[3].as_str()), (4, 4, "run"), "{what}: {sent:?}");
                    assert_eq!(fake.count() == 1, !first, "{what}: from then on it is known");
                }
            }
        }
    }
    // A server that takes them gets them, but for a Responses request, whose functions have such names at OpenAI.
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    for dialect in dialects().filter(|dialect| dialect.name != "responses") {
        ask(&proxy, dialect, &request()).ok();
        assert_eq!(tools_of(&fake.last()), names, "{}", dialect.name);
    }
}
