//! A model's file served by windowsill itself, without any server.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::models;
use crate::support::servers::{Llama, Windowsill, place};
use crate::support::session::Session;
use crate::support::{http, say};

/// A chat of one message, answered greedily.
fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "any name", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[test]
fn a_file_is_served_with_the_window_that_fits() {
    let windowsill = Windowsill::itself(&[], &[]);
    let models = http::get(&format!("{}/v1/models", windowsill.url())).json();
    assert_eq!(models["data"][0]["loaded_context"], 8192, "{models}");
    assert_eq!(models["data"][0]["context_length"], 8192, "{models}");

    let question = "Write one sentence about the sea.";
    let whole = http::post(&windowsill.chat_url(), chat(question, json!({})));
    assert_eq!((whole.status, whole.ours("window")), (200, "8192"), "{}", whole.text);
    assert!(whole.ours("window-source").starts_with("fit: all 8192 tokens"), "{}", whole.ours("window-source"));
    let said = whole.json()["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    assert!(!said.is_empty());
    let usage = whole.json()["usage"].clone();

    // In parts it is the same, and costs one token of the prompt.
    let parts = http::post(
        &windowsill.chat_url(),
        chat(question, json!({"stream": true, "stream_options": {"include_usage": true}})),
    );
    let events = parts.events();
    let told: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(told, said);
    let last = events.last().expect("events");
    assert!(parts.is_done() && last["usage"]["completion_tokens"] == usage["completion_tokens"], "{}", parts.text);
    assert_eq!(last["timings"]["prompt_n"], 1, "{last}");
    // What windowsill counted is what was evaluated.
    assert_eq!(parts.ours("prompt-tokens"), usage["prompt_tokens"].to_string());

    // A text without a chat passes through.
    let text = http::post(
        &format!("{}/v1/completions", windowsill.url()),
        json!({"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}),
    );
    assert_eq!((text.status, &text.json()["object"]), (200, &json!("text_completion")), "{}", text.text);
    let other = http::post(&format!("{}/v1/embeddings", windowsill.url()), json!({"input": "x"}));
    assert_eq!(other.status, 404);
    assert!(other.text.contains("embedded engine has no POST /v1/embeddings"), "{}", other.text);

    let doctor = windowsill.cli(&["doctor", "--json", "--upstream", &windowsill.url()]);
    assert!(doctor.is_ok(), "{doctor:?}");
}

/// Prompts, limits and refusals are those of llama.cpp's own server; only numbers in the last place may differ, and with
/// them what so small a model says.
#[test]
fn it_answers_as_llama_server_does() {
    let windowsill = Windowsill::itself(&[], &[]);
    let llama = Llama::start_with(8192, &["--chat-template", &own_template()]);
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]});
    let cases = [
        chat("Count to ten.", json!({"stop": ["five"], "max_tokens": 40})),
        chat("Yes or no?", json!({"grammar": "root ::= \"yes\" | \"no\""})),
        chat("A person.", json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})),
        chat(
            "Hi",
            json!({"logit_bias": {"17": -100}, "repeat_penalty": 1.2, "presence_penalty": 0.5, "max_tokens": 3}),
        ),
        json!({"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}], "max_tokens": 4}),
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
            {"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}], "max_tokens": 2}),
        chat(&"word ".repeat(9000), json!({})),
        json!({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}),
        json!({"messages": "none"}),
    ];
    for body in cases {
        let off = [("x-windowsill", "off")];
        let ours = http::post_with(&windowsill.chat_url(), &off, &body);
        let theirs = http::post(&format!("{}/v1/chat/completions", llama.url()), &body);
        assert_eq!(ours.status, theirs.status, "{body}: {} / {}", ours.text, theirs.text);
        let (ours, theirs) = (ours.json(), theirs.json());
        for pointer in ["/usage/prompt_tokens", "/error/code", "/error/type", "/error/n_prompt_tokens", "/error/n_ctx"]
        {
            assert_eq!(ours.pointer(pointer), theirs.pointer(pointer), "{pointer} of {body}: {ours} / {theirs}");
        }
        let said = |reply: &Value| reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        if body["grammar"].is_string() {
            assert!(["yes", "no"].contains(&said(&ours).as_str()), "{ours}");
        }
        if body["response_format"]["type"] == "json_schema" && ours["choices"][0]["finish_reason"] == "stop" {
            let value: Value = serde_json::from_str(&said(&ours)).unwrap_or_else(|e| panic!("{e}: {ours}"));
            assert!(value["age"].is_i64(), "{ours}");
        }
        if body["stop"].is_array() {
            assert!(!said(&ours).contains("five"), "{ours}");
        }
    }
}

#[test]
fn it_tells_tokens_prompts_and_odds_as_llama_server_does() {
    let windowsill = Windowsill::itself(&[], &[]);
    let llama = Llama::start_with(8192, &["--chat-template", &own_template()]);
    let both = |path: &str, body: &Value| {
        let off = [("x-windowsill", "off")];
        let ours = http::post_with(&format!("{}{path}", windowsill.url()), &off, body);
        let theirs = http::post(&format!("{}{path}", llama.url()), body);
        assert_eq!(ours.status, theirs.status, "{path} {body}: {} / {}", ours.text, theirs.text);
        (ours.json(), theirs.json())
    };
    let tool =
        json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}});
    for (path, body) in [
        ("/tokenize", json!({"content": "What is the capital of France ?"})),
        ("/tokenize", json!({"content": "<|im_start|>user"})),
        ("/tokenize", json!({"content": "<|im_start|>user", "parse_special": false, "add_special": true})),
        ("/tokenize", json!({"content": "unicode \u{5abd} and emoji \u{1f917}", "with_pieces": true})),
        ("/detokenize", json!({"tokens": [19556, 665, 1]})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "Say hi."}]})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "Say hi."}], "tools": [tool]})),
    ] {
        let (ours, theirs) = both(path, &body);
        assert_eq!(ours, theirs, "{path} {body}");
    }

    // A text, tokens, or both are gone on with in its own words. Greedily, the first token is the same.
    for prompt in [json!("The sky is"), json!([504, 6376, 314]), json!([504, "sky is"])] {
        let body = json!({"prompt": prompt, "n_predict": 1, "temperature": 0, "return_tokens": true});
        let (ours, theirs) = both("/completion", &body);
        let same = [
            "content",
            "tokens",
            "tokens_predicted",
            "tokens_evaluated",
            "stop",
            "stop_type",
            "stopping_word",
            "truncated",
        ];
        for key in same.iter().chain(&["has_new_line", "id_slot", "index"]) {
            assert_eq!(ours[key], theirs[key], "{key}: {ours} / {theirs}");
        }
        let keys =
            |reply: &Value| reply.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(keys(&ours), keys(&theirs));
    }

    // Its odds are as the model has them.
    let odds = |reply: &Value| reply["choices"][0]["logprobs"]["content"].as_array().expect("odds").clone();
    for (more, top) in [(json!({}), 20), (json!({"top_logprobs": 3}), 3)] {
        let mut body = chat("Hi", json!({"logprobs": true, "max_tokens": 3}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (ours, theirs) = both("/v1/chat/completions", &body);
        let (own, other) = (odds(&ours), odds(&theirs));
        assert_eq!((own.len(), own[0]["id"].as_u64()), (3, other[0]["id"].as_u64()), "{ours} / {theirs}");
        let off = own[0]["logprob"].as_f64().unwrap() - other[0]["logprob"].as_f64().unwrap();
        assert!(off.abs() < 0.1, "{ours} / {theirs}");
        for of in [&own[0], &other[0]] {
            assert_eq!(of["top_logprobs"].as_array().map(Vec::len), Some(top), "{of}");
            let keys: Vec<&String> = of.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["id", "token", "bytes", "logprob", "top_logprobs"], "{of}");
        }
        let spelled: String = own.iter().map(|of| of["token"].as_str().unwrap()).collect();
        assert_eq!(ours["choices"][0]["message"]["content"], json!(spelled));
    }
    let body = chat("Hi", json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 4, "stream": true}));
    let events = http::post(&windowsill.chat_url(), &body).events();
    let told = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
    let said: String = events.iter().map(told).collect();
    let spelled: String = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .map(|of| of["token"].as_str().unwrap().to_owned())
        .collect();
    assert!(!said.is_empty() && said == spelled, "{said} / {spelled}");

    // Odds once all is done to them to choose a token, biases by token and by text, and a reply of which some is wanted.
    let sky = |more: Value| {
        let mut body = json!({"prompt": "The sky is", "n_predict": 1, "temperature": 0, "return_tokens": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (ours, theirs) =
        both("/completion", &sky(json!({"temperature": 1, "n_probs": 4, "post_sampling_probs": true})));
    let [own, other] = [&ours, &theirs].map(|reply| &reply["completion_probabilities"][0]["top_probs"][0]);
    let off = own["prob"].as_f64().unwrap() - other["prob"].as_f64().unwrap();
    assert!(own["id"] == other["id"] && off.abs() < 0.1, "{ours} / {theirs}");
    let first = both("/completion", &sky(json!({}))).0;
    for biases in [
        json!([[first["tokens"][0], false]]),
        json!({first["tokens"][0].to_string(): -100}),
        json!([[first["content"], -100]]),
        json!({first["content"].as_str().unwrap(): false}),
    ] {
        let (ours, theirs) = both("/completion", &sky(json!({"logit_bias": biases})));
        assert_eq!(ours["tokens"], theirs["tokens"], "{biases}");
        assert_ne!(ours["tokens"], first["tokens"], "{biases}");
    }
    let fields = json!(["content", "generation_settings/n_predict", "timings/predicted_n", "nothing"]);
    let (ours, theirs) = both("/completion", &sky(json!({"response_fields": fields})));
    assert_eq!(ours, theirs);

    // Several prompts get a reply each.
    let prompts = json!(["The sky is", [504, 6376], "Two and two is"]);
    let (ours, theirs) = both("/completion", &sky(json!({"prompt": prompts})));
    for key in ["index", "content", "tokens", "tokens_evaluated"] {
        let [own, other] = [&ours, &theirs]
            .map(|all| all.as_array().expect("replies").iter().map(|one| &one[key]).collect::<Vec<_>>());
        assert_eq!(own, other, "{key}");
    }
    let body = json!({"prompt": prompts, "max_tokens": 1, "temperature": 0});
    let (ours, theirs) = both("/v1/completions", &body);
    let texts = |reply: &Value| -> Vec<Value> {
        reply["choices"].as_array().expect("choices").iter().map(|one| json!([one["index"], one["text"]])).collect()
    };
    assert_eq!(texts(&ours), texts(&theirs));

    // Several replies to one prompt, which counts once.
    let body = chat("Name a color.", json!({"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 8}));
    let reply = http::post(&windowsill.chat_url(), &body).json();
    let choices = reply["choices"].as_array().expect("choices");
    let indexes: Vec<u64> = choices.iter().filter_map(|choice| choice["index"].as_u64()).collect();
    assert_eq!(indexes, [0, 1, 2], "{reply}");
    assert!(choices.iter().any(|choice| choice["message"] != choices[0]["message"]), "{reply}");
    assert!(reply["usage"]["completion_tokens"].as_u64() > Some(8), "{reply}");
    let again = http::post(&windowsill.chat_url(), &body).json();
    assert_eq!(again["choices"], reply["choices"], "the same seed gives the same replies");
}

/// The model's own template, as a file.
fn own_template() -> String {
    let windowsill = windowsill::engine::Vocabulary::load(place("WINDOWSILL_MODEL").as_ref()).expect("a vocabulary");
    let file = std::env::temp_dir().join(format!("windowsill-live-{}.jinja", std::process::id()));
    std::fs::write(&file, windowsill.chat_template().expect("a template")).unwrap();
    file.to_string_lossy().into_owned()
}

#[test]
fn a_long_session_stays_alive_in_a_small_window() {
    let session = Session::demo();
    let windowsill = Windowsill::itself(&[("CONTEXT_STRATEGY", "truncate")], &["--num-ctx", "4096"]);
    let (mut before, mut cached, mut rewrites) = (None::<u32>, 0, 0);
    for end in session.turns().into_iter().take(14) {
        let reply = http::post(&windowsill.chat_url(), session.request(end, 8, false));
        assert_eq!((reply.status, reply.ours("window")), (200, "4096"), "message {end}: {}", reply.text);
        let number = |pointer: &str| reply.json().pointer(pointer).and_then(Value::as_u64).expect(pointer) as u32;
        let prompt = number("/usage/prompt_tokens");
        assert!(prompt + 8 <= 4096, "message {end}: {prompt}");
        let kept = number("/timings/cache_n");
        let rewritten = reply.ours("action") != "none";
        if let Some(before) = before.filter(|_| !rewritten) {
            // All of the last prompt but the opening of its reply.
            assert!(kept + 40 >= before, "message {end}: {kept} of {before} cached");
        }
        (before, cached, rewrites) = (Some(prompt), cached + kept, rewrites + u32::from(rewritten));
    }
    assert!(rewrites >= 2, "it passes the window");
    say(&format!("{rewrites} rewrites, {cached} tokens of prompts cached"));
    // What left the prompt is in the record: a tool's first result, word for word.
    let result = session.messages.iter().find(|m| m["role"] == "tool").expect("a result");
    let text = result["content"].as_str().expect("text");
    let line = text.lines().max_by_key(|line| line.len()).expect("lines");
    assert!(windowsill.recall(&line.chars().take(60).collect::<String>()).contains(line.trim()), "{line}");
}

#[test]
fn the_process_that_generates_may_end_and_the_proxy_does_not() {
    let windowsill = Windowsill::itself(&[], &["--num-ctx", "1000"]);
    let ask = || http::post(&windowsill.chat_url(), chat("Hello there.", json!({"max_tokens": 4})));
    let first = ask();
    assert_eq!((first.status, first.ours("window")), (200, "1000"), "{}", first.text);
    let children = windowsill.children();
    let [child] = children[..] else { panic!("one child: {children:?}") };

    // In the middle of a reply: the stream says so, in its own dialect.
    let mut live =
        http::open(&windowsill.chat_url(), &[], chat("Tell me a story.", json!({"stream": true, "max_tokens": 900})));
    live.until("data:");
    assert!(Command::new("kill").args(["-KILL", &child.to_string()]).status().unwrap().success());
    let broken = live.whole();
    assert!(broken.text.contains("\"error\"") && broken.text.contains("process that generates"), "{}", broken.text);

    let again = ask();
    assert_eq!((again.status, again.ours("window")), (200, "1000"), "{}", again.text);
    assert_eq!(again.json()["choices"], first.json()["choices"]);
    let new = windowsill.children();
    assert!(new.len() == 1 && new != children, "{children:?} {new:?}");
}

/// Whatever is asked of it, the process that generates goes on, and what it holds evaluated stays.
#[test]
fn no_grammar_or_schema_ends_the_process() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("made.gguf");
    models::write(&file, models::GEMMA3);
    let windowsill = Windowsill::serving(&file, &[], &["--num-ctx", "4096"]);
    let ask = |more: Value| http::post(&windowsill.chat_url(), chat("Hello there.", more));
    assert_eq!(ask(json!({"max_tokens": 4})).status, 200);
    let children = windowsill.children();
    let nested = |levels: usize| format!("root ::= {}\"a\"{}", "(".repeat(levels), ")".repeat(levels));
    let chain = |rules: usize| {
        let all: String = (0..rules).map(|n| format!("r{n} ::= \"a\" r{}\n", n + 1)).collect();
        format!("root ::= r0\n{all}r{rules} ::= \"b\"\n")
    };
    for (grammar, part) in [(nested(20_000), "20000 levels deep"), (chain(20_000), "chain of 20002 rules")] {
        let refused = ask(json!({"grammar": grammar}));
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(part) && refused.text.contains("at most"), "{}", refused.text);
    }
    // What is let through is taken.
    for grammar in [nested(256), chain(1_000)] {
        assert_eq!(ask(json!({"grammar": grammar, "max_tokens": 2})).status, 200);
    }
    assert_eq!(windowsill.children(), children, "it is the same process");
}

/// The reader of a model's own template, or of the user's, does not wait for one without end.
#[test]
fn a_chat_template_without_end_is_said_before_anything_starts() {
    let home = tempfile::tempdir().unwrap();
    let (endless, sound) = (home.path().join("endless.gguf"), home.path().join("sound.gguf"));
    models::write_with(&endless, models::GEMMA3, models::ENDLESS);
    models::write(&sound, models::GEMMA3);
    let template = home.path().join("endless.jinja");
    std::fs::write(&template, models::ENDLESS).unwrap();
    let own = ["--chat-template-file", template.to_str().expect("UTF-8")];
    for (file, flags) in [(&endless, &[][..]), (&sound, &own[..])] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windowsill"));
        command.env_clear().env("HOME", home.path()).current_dir(home.path());
        command.args(["serve", "--listen", "127.0.0.1:0", "--num-ctx", "1000", "--model"]).arg(file).args(flags);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{flags:?}: {said}");
        assert!(said.contains("template does not end") && said.contains("10 s"), "{flags:?}: {said}");
    }
}

/// The process that generates does not outlive the one that started it, also where it is still loading.
#[cfg(target_os = "linux")]
#[test]
fn nothing_is_loaded_for_nobody() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("endless.gguf");
    models::write_with(&file, models::GEMMA3, models::ENDLESS);
    let mut command = Command::new(env!("CARGO_BIN_EXE_windowsill"));
    command.env_clear().env("HOME", home.path()).current_dir(home.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--num-ctx", "1000", "--model"]).arg(&file);
    let mut serving = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let is_worker = |id: &str| {
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.contains("engine-worker") && line.contains(file.to_str().expect("UTF-8"))
    };
    let worker = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok()).find(|id| is_worker(id))
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let found = loop {
        if let Some(id) = worker() {
            break id;
        }
        assert!(std::time::Instant::now() < until, "no worker was started");
        std::thread::yield_now();
    };
    serving.kill().unwrap();
    serving.wait().unwrap();
    let killed = std::time::Instant::now();
    while is_worker(&found) {
        assert!(killed.elapsed().as_secs() < 8, "it loads on, for nobody");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_goes_away_takes_its_request_back() {
    let windowsill = Windowsill::itself(&[], &[]);
    let long = || chat("Tell me a very long story.", json!({"stream": true, "max_tokens": 8000, "ignore_eos": true}));
    for _ in 0..3 {
        let mut live = http::open(&windowsill.chat_url(), &[], long());
        live.until("data:");
        // Dropped: each of these replies would take a minute.
    }
    // Three at once, behind what is left of those.
    let asked: Vec<_> = (0..3)
        .map(|n| {
            let (url, body) = (windowsill.chat_url(), chat(&format!("Say {n}."), json!({"max_tokens": 4})));
            std::thread::spawn(move || http::post(&url, body).status)
        })
        .collect();
    for asked in asked {
        assert_eq!(asked.join().expect("it answers"), 200);
    }
}

#[test]
fn what_cannot_be_served_is_said_before_anything_starts() {
    let home = tempfile::tempdir().unwrap();
    let whole = std::fs::read(place("WINDOWSILL_MODEL")).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = home.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let cases = [
        (home.path().join("none.gguf"), "none.gguf"),
        (file("empty.gguf", b""), "empty.gguf"),
        (file("text.gguf", b"this is no model at all, but a text"), "text.gguf"),
        (file("short.gguf", &whole[..whole.len() / 2]), "short.gguf"),
    ];
    for (path, part) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windowsill"));
        command.env_clear().env("HOME", home.path()).current_dir(home.path());
        let out = command.args(["serve", "--listen", "127.0.0.1:0", "--model"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{part}: {said}");
        assert!(said.contains("error: ") && said.contains(part), "{part}: {said}");
        assert!(!String::from_utf8_lossy(&out.stdout).contains("listening"), "{part}");
    }
}

/// A reply must not depend on what was asked before: what is kept of other prompts is the very state that evaluating this one
/// comes to. For models whose state cannot be cut back to any token, too: sliding windows, recurrent layers, both.
#[test]
fn what_is_kept_of_a_prompt_is_what_evaluating_it_comes_to() {
    let home = tempfile::tempdir().unwrap();
    for arch in [models::GEMMA3, models::MAMBA, models::LFM2] {
        let file = home.path().join(format!("{arch}.gguf"));
        models::write(&file, arch);
        let windowsill = Windowsill::serving(&file, &[], &["--num-ctx", "4096"]);
        let ask = |messages: &[Value]| {
            let body = json!({"messages": messages, "temperature": 0, "max_tokens": 12, "ignore_eos": true});
            let reply = http::post_with(&windowsill.chat_url(), &[("x-windowsill", "off")], body);
            assert_eq!(reply.status, 200, "{arch}: {}", reply.text);
            let json = reply.json();
            let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).expect(pointer);
            let (prompt, cached) = (number("/usage/prompt_tokens"), number("/timings/cache_n"));
            (json["choices"][0]["message"]["content"].as_str().expect("text").to_owned(), prompt, cached)
        };
        let user = |n: usize| json!({"role": "user", "content": format!("Question {n}: {}", "why is that so? ".repeat(45 + n))});
        let assistant = |text: &str| json!({"role": "assistant", "content": text});
        // A conversation of three turns, another end to its second, the first again, and one of its own.
        let mut one = vec![user(1)];
        let first = ask(&one);
        one.extend([assistant(&first.0), user(2)]);
        let second = ask(&one);
        let mut whole = one.clone();
        whole.extend([assistant(&second.0), user(3)]);
        let third = ask(&whole);
        let other = [&one[..2], &[user(4)]].concat();
        let fourth = ask(&other);
        let again = ask(&one[..1]);
        let new = ask(&[user(9)]);
        assert_eq!(again.0, first.0, "{arch}");
        // What was cached for these is taken back.
        let back = ask(&whole);
        assert_eq!(back.0, third.0, "{arch}: another reply than before it was cached");
        assert!(back.2 + 60 >= third.1, "{arch}: {} of {} cached, {} before", back.2, back.1, third.1);
        // Each turn goes on from the last one's question at least, and so does another end.
        for (turn, before) in [(&second, &first), (&third, &second), (&fourth, &first)] {
            assert!(turn.2 + 60 >= before.1, "{arch}: {} of {} cached, {} before", turn.2, turn.1, before.1);
        }
        say(&format!(
            "{arch}: {:?} of {:?} tokens cached",
            [second.2, third.2, fourth.2, again.2],
            [second.1, third.1, fourth.1, again.1]
        ));
        for (messages, told) in [(&whole[..], &third), (&other, &fourth), (&one, &second), (&[user(9)], &new)] {
            let children = windowsill.children();
            assert!(Command::new("kill").args(["-KILL", &children[0].to_string()]).status().unwrap().success());
            let cold = ask(messages);
            assert_eq!((cold.1, cold.2), (told.1, 0), "{arch}");
            assert_eq!(cold.0, told.0, "{arch}: another reply than from what was kept");
        }
    }
}

/// Another conversation in between, and a short question: neither costs the first one its prompt.
#[test]
fn a_conversation_that_waited_goes_on_where_it_was() {
    let windowsill = Windowsill::itself(&[], &["--num-ctx", "4096"]);
    let ask = |messages: &[Value]| {
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
        let reply = http::post_with(&windowsill.chat_url(), &[("x-windowsill", "off")], body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let json = reply.json();
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).expect(pointer);
        let said = json["choices"][0]["message"].clone();
        (said, number("/timings/prompt_n"), number("/timings/cache_n"))
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let mut one = vec![user(&format!("{} What is this?", "The garden has beds of beans and rye. ".repeat(60)))];
    let other = [user(&format!("{} And this?", "A river runs behind the old mill. ".repeat(60)))];
    let (said, first, _) = ask(&one);
    one.extend([said, user("Why?")]);
    let (_, second, _) = ask(&other);
    ask(&[user("A title for it, in three words.")]);
    let (_, evaluated, cached) = ask(&one);
    say(&format!("{first} and {second} tokens evaluated, then {evaluated} behind {cached} that were cached"));
    assert!(evaluated < 60 && cached + 20 > first, "{evaluated} evaluated, {cached} cached");
    let (_, evaluated, cached) = ask(&other);
    assert!(evaluated < 20 && cached + 20 > second, "{evaluated} evaluated, {cached} cached");
}

/// As Ctrl-C does it: what is under way is answered to its end, and no process is left.
#[test]
fn an_interrupt_lets_the_reply_under_way_end() {
    let mut windowsill = Windowsill::itself(&[], &["--num-ctx", "2048"]);
    let long = json!({"stream": true, "max_tokens": 60, "ignore_eos": true});
    let mut live = http::open(&windowsill.chat_url(), &[], chat("Tell me a story.", long));
    live.until("data:");
    let children = windowsill.children();
    windowsill.signal("INT");
    let whole = live.whole();
    assert!(whole.is_done(), "{}", whole.text);
    assert_eq!(whole.events().last().expect("events")["choices"][0]["finish_reason"], "length", "{}", whole.text);
    assert_eq!(windowsill.ended(), Some(0));
    for child in children {
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists(), "{child} is left");
    }
}
