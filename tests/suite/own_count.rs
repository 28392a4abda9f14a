//! Counts with a model's own vocabulary, where the server says which file it has loaded.

use std::path::PathBuf;

use serde_json::{Value, json};
use windowsill::gguf::Writer;

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
