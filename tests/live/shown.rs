//! A real Ollama that is taken for one on another machine: what it tells of a vocabulary is the vocabulary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windowsill::engine::Vocabulary;
use windowsill::measure::shown::{QUESTION_WAITS, Shown};
use windowsill::proxy::background::Tasks;
use windowsill::upstream::{KindHint, Upstream, client};

use crate::support::servers::{Ollama, Windowsill, place};
use crate::support::{http, say};

/// Texts that are hard to tokenize.
const TEXTS: &str =
    "Hello, World!\n \n\n  \t\té ü 北京 🦙🦙 0123456789 3.14\u{2581}<|im_start|>user\n<s> </s>\nmod<0x0A>ule";

/// Real vocabularies with texts to try them by, where the larger data set is beside the repository; the model's own.
fn vocabularies() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["../shared", "../../shared"].map(|p| root.join(p).join("data/vocab"));
    let mut out = vec![(PathBuf::from(place("WINDOWSILL_MODEL")), TEXTS.to_owned())];
    let Some(dir) = places.iter().find(|p| p.is_dir()) else {
        say("the larger set of vocabularies is not here, left out");
        return out;
    };
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    out.extend(files.filter(|f| f.extension().is_some_and(|e| e == "gguf")).map(|file| {
        let texts = std::fs::read_to_string(format!("{}.inp", file.display())).unwrap();
        // By its name, which is not told, Phi-3's special tokens swallow the white space behind them.
        let more = if file.to_string_lossy().contains("phi-3") { "" } else { TEXTS };
        (file, texts + "\n__ggml_vocab_test__\n" + more)
    }));
    out
}

/// Has Ollama make a model of a file.
fn create(ollama: &Ollama, file: &Path, name: &str) {
    let bytes = std::fs::read(file).unwrap();
    let digest = format!("sha256:{}", sha256(file));
    http::post_bytes(&format!("{}/api/blobs/{digest}", ollama.url()), bytes);
    let made = http::post(
        &format!("{}/api/create", ollama.url()),
        json!({"model": name, "files": {"model.gguf": digest}, "stream": false}),
    );
    assert_eq!(made.status, 200, "{name}: {}", made.text);
}

fn sha256(file: &Path) -> String {
    let out = std::process::Command::new("sha256sum").arg(file).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().expect("a sum").to_owned()
}

#[test]
fn every_vocabulary_that_is_told_is_that_of_its_file() {
    let ollama = Ollama::start();
    let upstream = Upstream::new(client().unwrap(), "ollama".into(), &ollama.url(), KindHint::Ollama).unwrap();
    let (upstream, dir) = (Arc::new(upstream), tempfile::tempdir().unwrap());
    let tasks = Tasks::default();
    let shown = Shown::asking(
        dir.path().join("vocabularies"),
        Some(env!("CARGO_BIN_EXE_windowsill").into()),
        Box::new(move |task| tasks.spawn(task)),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for (nth, (file, texts)) in vocabularies().into_iter().enumerate() {
        let name = format!("v{nth}");
        create(&ollama, &file, &name);
        let began = std::time::Instant::now();
        let told = runtime.block_on(async {
            let path = upstream.loaded(&name).await.unwrap().model_path.expect("a path");
            shown.file(&upstream, &name, &path, QUESTION_WAITS).await
        });
        let told = told.unwrap_or_else(|| panic!("{}", file.display()));
        let took = began.elapsed();
        let (own, told) = (Vocabulary::load(&file).unwrap(), Vocabulary::load(&told).unwrap());
        let mut same = 0;
        for text in texts.split("\n__ggml_vocab_test__\n") {
            assert_eq!(told.tokenize(text), own.tokenize(text), "{}: {text:?}", file.display());
            same += 1;
        }
        say(&format!("{}: {same} texts give the same ids; told and kept in {took:.1?}", file.display()));
    }
}

#[test]
fn prompts_for_a_model_elsewhere_are_counted_as_its_server_counts_them() {
    let ollama = Ollama::start();
    // An address that is not taken for this machine's, as that of a machine beside it would not be.
    let windowsill = Windowsill::before(&ollama.url().replace("127.0.0.1", "0.0.0.0"), &[]);
    let told = "counted with the vocabulary that Ollama's /api/show gives";
    let mut talk = Vec::new();
    for turn in 0..5 {
        talk.push(json!({"role": "user", "content": format!("Question {turn}: {TEXTS}")}));
        let body = json!({"model": "smollm2", "messages": talk, "max_tokens": 4, "temperature": 0});
        let reply = http::post(&windowsill.chat_url(), body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let (counted, reported) = (reply.ours("prompt-tokens"), reply.json()["usage"]["prompt_tokens"].to_string());
        let source = reply.ours("prompt-tokens-source");
        say(&format!("ollama elsewhere, turn {turn}: {counted} counted, {reported} reported ({source})"));
        assert!(source.starts_with(told), "{source}");
        let (n, real): (u32, u32) = (counted.parse().unwrap(), reported.parse().unwrap());
        assert!(n >= real, "never below");
        // Two replies tell what the server's Go template adds: so much for the whole, and so much a message.
        if turn >= 2 {
            assert_eq!((n, source), (real, told));
        }
        talk.push(json!({"role": "assistant", "content": "I see."}));
        let events = format!("{}/windowsill/events?since=0", windowsill.url());
        while http::get(&events).text.matches("model_usage").count() <= turn {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let models: Value = http::get(&format!("{}/windowsill/models", windowsill.url())).json();
    assert_eq!(models["models"][0]["counted_with"], "the vocabulary that Ollama's /api/show gives", "{models}");
    let kept = std::fs::read_dir(windowsill.data().join("vocabularies")).unwrap().count();
    assert_eq!(kept, 2, "a vocabulary and a header");
}
