//! Counts with a model's own vocabulary, where the server says which file it has loaded.

use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::time::Duration;

use serde_json::{Value, json};
use windowsill::gguf::Writer;
#[cfg(target_os = "linux")]
use windowsill::measure::count::CountWorker;

use crate::support::chat::chat;
use crate::support::fake::{Fake, Kind, Play};
use crate::support::proxy::TestProxy;

/// A tiny SentencePiece vocabulary: special tokens and all bytes; and a chat template.
fn vocabulary(dir: &tempfile::TempDir, template: &str) -> PathBuf {
    let mut words: Vec<String> = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(str::to_owned).to_vec();
    words.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    let kinds = [[2, 3, 3, 3, 3].as_slice(), &[6; 256]].concat();
    let out = Writer::default()
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &words)
        .integers("tokenizer.ggml.token_type", &kinds)
        .text("tokenizer.chat_template", template)
        .bytes();
    let file = dir.path().join("model.gguf");
    std::fs::write(&file, out).unwrap();
    file
}

#[test]
fn a_server_that_counts_otherwise_is_believed_and_it_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
    let file = vocabulary(&dir, template);
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(move |seen| match seen.path() {
        "/props" => Play::Json(
            200,
            json!({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "build_info": "b11434-x",
                "model_path": file, "chat_template": template, "modalities": {}}),
        ),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let said = "a question of many letters, each of them a token";
    let answer = proxy.chat(&chat().user(said)).ok();
    assert_eq!(answer.header("x-windowsill-prompt-tokens-source"), Some("counted by the server"));
    proxy.chat(&chat().user(said).user("and more")).ok();
    let of = |events: &Value, kind: &str| -> Vec<Value> {
        events["events"].as_array().into_iter().flatten().filter(|e| e["kind"] == kind).cloned().collect()
    };
    let events = proxy.eventually("/windowsill/events?since=0", |e| of(e, "model_usage").len() == 2);
    let told = of(&events, "count_mismatch");
    assert_eq!(told.len(), 1, "{events}");
    let data = &told[0]["data"];
    // The space that SentencePiece puts before a text has no word here: three bytes.
    assert!(data["own_tokens"].as_u64().is_some_and(|n| n as usize >= said.len() + 2), "{data}");
    assert!(data["server_tokens"].as_u64().is_some_and(|n| n > 0 && n != data["own_tokens"]), "{data}");
    let models = proxy.get("/windowsill/models").json();
    assert_eq!(models["models"][0]["count_mismatch"]["server_tokens"], data["server_tokens"], "{models}");
    let out = proxy.cli(&["doctor", "--json"]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let differs = |p: &&Value| p["message"].as_str().is_some_and(|m| m.contains("the same request has"));
    let problem = found["problems"].as_array().into_iter().flatten().find(differs);
    assert!(problem.is_some_and(|p| p["severity"] == "warning" && p["fix"].is_string()), "{found}");
}

#[test]
fn templates_are_told_the_time_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    // As many letters as the clock shows hours.
    let file =
        vocabulary(&dir, "{% for hour in range(strftime_now('%H') | int) %}x{% endfor %}{{ messages[0].content }}");
    let request = dir.path().join("request.json");
    std::fs::write(&request, json!({"messages": [{"role": "user", "content": "a"}]}).to_string()).unwrap();
    let hour = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 3600;
    let shown = |zone: &str| loop {
        let before = hour();
        let mut windowsill = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
        windowsill.args(["count", "--json", "--model"]).arg(&file).arg(&request).env("TZ", zone);
        let out = windowsill.current_dir(dir.path()).output().unwrap();
        let counted: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
        if hour() == before {
            break (before, counted["total"].as_u64().unwrap());
        }
    };
    let (hours, none) = shown("UTC0");
    let rest = none - hours % 24;
    for (zone, ahead) in [("AAA-5", 5), ("BBB7", 17)] {
        let (hours, total) = shown(zone);
        assert_eq!(total - rest, (hours + ahead) % 24, "{zone}");
    }
}

/// Files that llama.cpp does not survive end the process that reads them, and nothing else.
#[test]
fn a_file_made_to_harm_ends_no_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let words = vec!["a".to_owned(); 300];
    let twice = Writer::default()
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &words)
        .bytes();
    for (name, bytes) in [("twice", twice), ("short", b"GGUF\x03".to_vec()), ("none", b"no model".to_vec())] {
        let file = dir.path().join(format!("{name}.gguf"));
        std::fs::write(&file, bytes).unwrap();
        let request = dir.path().join("request.json");
        std::fs::write(&request, json!({"messages": [{"role": "user", "content": "a"}]}).to_string()).unwrap();
        let mut windowsill = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
        let out =
            windowsill.args(["count", "--model"]).arg(&file).arg(&request).current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.code() == Some(1) && said.contains(&format!("{name}.gguf cannot be used: ")),
            "{name}: {said}"
        );

        let fake = Fake::start(Kind::LlamaServer, 4096);
        fake.script(move |seen| match seen.path() {
            "/props" => Play::Json(
                200,
                json!({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "build_info": "b11434-x",
                    "model_path": file, "chat_template": "", "modalities": {}}),
            ),
            _ => Play::Usual,
        });
        let proxy = TestProxy::before(&fake);
        for _ in 0..2 {
            let answer = proxy.chat(&chat().user(&"word ".repeat(2500))).ok();
            assert_eq!(answer.header("x-windowsill-prompt-tokens-source"), Some("counted by the server"), "{name}");
        }
    }
}

/// The process that counts with this file.
#[cfg(target_os = "linux")]
fn worker_of(file: &std::path::Path) -> u32 {
    let is_it = |line: Vec<u8>| {
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.get(1) == Some(&&b"count-worker"[..]) && words.get(2) == Some(&file.as_os_str().as_encoded_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|id: &u32| std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(is_it)).last().expect("a worker")
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_is_gone_is_started_again_and_given_up_after_the_third_time() {
    let dir = tempfile::tempdir().unwrap();
    let (file, worker) = counter(&dir);
    let request = json!({"messages": [{"role": "user", "content": "abc"}]}).to_string();
    let count = || worker.total(request.as_bytes()).map_err(|e| e.to_string());
    let first = count();
    assert!(first.is_ok() && worker.text("abc").is_some(), "{first:?}");
    let kill = || signal("-KILL", worker_of(&file));
    for _ in 0..2 {
        kill();
        // One that was asked as it went may say so.
        let again = (0..1000).find_map(|_| count().ok());
        assert_eq!(again, first.clone().ok());
    }
    kill();
    let refused = (0..1000).find_map(|_| count().err().filter(|why| why.contains("left alone")));
    assert!(refused.is_some());
}

/// The counter of a file, in a process of its own.
#[cfg(target_os = "linux")]
fn counter(dir: &tempfile::TempDir) -> (PathBuf, CountWorker) {
    let file = vocabulary(dir, "{% for m in messages %}{{ m.content }}{% endfor %}");
    let worker = CountWorker::start(env!("CARGO_BIN_EXE_windowsill").as_ref(), &file, None).unwrap();
    (file, worker)
}

#[cfg(target_os = "linux")]
fn signal(name: &str, to: u32) {
    assert!(std::process::Command::new("kill").args([name, &to.to_string()]).status().unwrap().success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_nobody_asks_ends_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (file, worker) = counter(&dir);
    let request = json!({"messages": [{"role": "user", "content": "abc"}]}).to_string();
    let (whole, part) = (worker.total(request.as_bytes()).unwrap(), worker.text("abc"));
    assert!(!worker.rest(Duration::from_secs(600)), "it was asked a moment ago");
    // More often than a process may fail.
    for round in 0..4 {
        let id = worker_of(&file);
        assert!(worker.rest(Duration::ZERO) && !worker.rest(Duration::ZERO));
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "{id}");
        // Either question wakes it.
        assert_eq!(worker.total(request.as_bytes()).unwrap(), whole);
        assert!(worker.rest(Duration::ZERO));
        assert_eq!(worker.text(&format!("abc{round}")), part.map(|n| n + 1));
    }
}

#[cfg(target_os = "linux")]
#[test]
#[expect(clippy::disallowed_methods, reason = "the test waits for its tasks")]
fn a_text_that_is_waited_for_holds_up_no_other_task() {
    let dir = tempfile::tempdir().unwrap();
    let (file, worker) = counter(&dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let id = worker_of(&file);
    signal("-STOP", id);
    let told = runtime.block_on(async move {
        let asks = tokio::spawn(async move {
            // Only another task lets the process go on.
            tokio::spawn(async move { signal("-CONT", id) });
            worker.text("abc")
        });
        asks.await.unwrap()
    });
    assert!(told.is_some());
}
