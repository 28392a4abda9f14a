//! Counts with the vocabulary that an Ollama elsewhere tells by `/api/show`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use windowsill::gguf::{self, Gguf};

use crate::config::root;
use crate::fit::memory;
use crate::support::chat::chat;
use crate::support::fake::{Fake, Gate, Kind, Play, Seen, whole};
use crate::support::proxy::{TestProxy, cli, cli_on_machine};

const TOLD: &str = "counted with the vocabulary that Ollama's /api/show gives";
const UNCHECKED: &str =
    "counted with the vocabulary that Ollama's /api/show gives, with an allowance for the server's template";
const ESTIMATED: &str = "estimated";

/// A vocabulary of special tokens, all bytes and these words, as Ollama tells it of a file with this digest.
fn described(digit: char, words: &[&str]) -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(words.iter().map(|w| (*w).to_owned()));
    let kinds: Vec<i32> = [[2, 3, 3].as_slice(), &[6; 256], &vec![1; words.len()]].concat();
    let scores = vec![-1.5; tokens.len()];
    json!({
        "modelfile": format!("# Modelfile\nFROM /root/.ollama/models/blobs/{}\nTEMPLATE {{{{ .Prompt }}}}", blob(digit)),
        "template": "{{ .Prompt }}", "parameters": "", "details": {}, "capabilities": ["completion", "tools"],
        "model_info": {
            "general.architecture": "llama", "llama.context_length": 131_072, "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        },
        "tensors": [],
    })
}

fn blob(digit: char) -> String {
    format!("sha256-{}", digit.to_string().repeat(64))
}

/// The same without `verbose`: no arrays.
fn in_short(described: &Value) -> Value {
    let mut short = described.clone();
    for value in short["model_info"].as_object_mut().unwrap().values_mut().filter(|v| v.is_array()) {
        *value = Value::Null;
    }
    short
}

fn is_verbose(seen: &Seen) -> bool {
    seen.path() == "/api/show" && seen.json()["verbose"] == true
}

/// An Ollama that answers the long question as told, and the short one by `described`.
fn ollama(described: Value, verbose: impl Fn(&Seen) -> Play + Send + Sync + 'static) -> Fake {
    let fake = Fake::start(Kind::Ollama, 8192);
    fake.script(move |seen| match seen.path() {
        "/api/show" if is_verbose(seen) => verbose(seen),
        "/api/show" => Play::Json(200, in_short(&described)),
        _ => Play::Usual,
    });
    fake
}

/// One that tells its vocabulary.
fn telling(described: &Value) -> Fake {
    let told = described.clone();
    ollama(described.clone(), move |_| Play::Json(200, told.clone()))
}

/// Its address as one that is not taken for this machine's.
fn elsewhere(fake: &Fake) -> Vec<String> {
    vec![fake.url().replace("127.0.0.1", "0.0.0.0")]
}

fn asked(fake: &Fake) -> usize {
    fake.all().iter().filter(|s| is_verbose(s)).count()
}

fn kept(dir: &Path, digit: char) -> PathBuf {
    dir.join(format!("data/vocabularies/{}.gguf", blob(digit)))
}

/// Sends a message of so many words; what the count says of itself.
#[track_caller]
fn source(proxy: &TestProxy, words: usize) -> String {
    let answer = proxy.chat(&chat().user(&"word ".repeat(words))).ok();
    answer.header("x-windowsill-prompt-tokens-source").unwrap().to_owned()
}

#[test]
fn a_vocabulary_is_asked_for_once_and_kept() {
    let fake = telling(&described('a', &["\u{2581}word"]));
    let proxy = TestProxy::with(&elsewhere(&fake), "");
    assert_eq!(source(&proxy, 10), UNCHECKED);
    // The reply told what the server's own template adds.
    proxy.eventually("/windowsill/events?since=0", |e| e.to_string().contains("model_usage"));
    assert_eq!(source(&proxy, 20), TOLD);
    assert_eq!(asked(&fake), 1);
    let models = proxy.get("/windowsill/models").json();
    assert_eq!(models["models"][0]["counted_with"], "the vocabulary that Ollama's /api/show gives", "{models}");

    let dir = proxy.stop();
    assert!(kept(dir.path(), 'a').is_file());
    let again = TestProxy::at(Arc::clone(&dir), &elsewhere(&fake), "");
    assert_eq!(source(&again, 30), UNCHECKED);
    assert_eq!(asked(&fake), 1, "a restart asks nothing");

    let file = dir.path().join("request.json");
    std::fs::write(&file, chat().user("word word").body()).unwrap();
    let out = cli(dir.path(), &["count", file.to_str().unwrap()]);
    let page = String::from_utf8(out.stdout).unwrap();
    assert!(page.contains(UNCHECKED), "{page}{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(asked(&fake), 1);
}

#[test]
fn a_count_on_the_command_line_waits_for_the_vocabulary() {
    let fake = telling(&described('a', &["\u{2581}word"]));
    let dir = TestProxy::with(&elsewhere(&fake), "").stop();
    let doctor = || String::from_utf8(cli(dir.path(), &["doctor", "--json"]).stdout).unwrap();
    assert!(doctor().contains("which the first request asks for") && asked(&fake) == 0);
    let file = dir.path().join("request.json");
    std::fs::write(&file, chat().user("word word").body()).unwrap();
    let out = cli(dir.path(), &["count", "--json", file.to_str().unwrap()]);
    let page: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&page["source"], asked(&fake)), (&json!(UNCHECKED), 1), "{page}");
    assert!(doctor().contains("\"counted_with\": \"the vocabulary that Ollama's /api/show gives\""));
    let out = String::from_utf8(cli(dir.path(), &["doctor"]).stdout).unwrap();
    assert!(out.lines().any(|l| l.contains("test-model") && l.ends_with("/api/show")), "{out}");
}

#[test]
fn a_model_that_is_replaced_has_another_vocabulary() {
    let fake = telling(&described('a', &[]));
    let proxy = TestProxy::with(&elsewhere(&fake), "");
    source(&proxy, 10);
    let now = described('b', &["\u{2581}word"]);
    let told = now.clone();
    fake.script(move |seen| match seen.path() {
        "/api/ps" => Play::Json(
            200,
            json!({"models": [{"name": crate::support::MODEL, "digest": "new", "context_length": 8192}]}),
        ),
        "/api/show" if is_verbose(seen) => Play::Json(200, told.clone()),
        "/api/show" => Play::Json(200, in_short(&now)),
        _ => Play::Usual,
    });
    assert_eq!(source(&proxy, 10), UNCHECKED);
    assert!(kept(proxy.dir.path(), 'a').is_file() && kept(proxy.dir.path(), 'b').is_file());
    assert_eq!(asked(&fake), 2);
}

#[test]
fn what_cannot_be_used_leaves_the_estimate_and_is_not_asked_for_again() {
    let good = described('a', &["\u{2581}word"]);
    let text = good.to_string();
    let with = |key: &str, value: Value| {
        let mut told = good.clone();
        told["model_info"][key] = value;
        Play::Json(200, told)
    };
    let cases = [
        ("an old Ollama", Play::Json(200, in_short(&good))),
        (
            "cut short",
            Play::Cut({
                let answer = whole(200, "application/json", text.as_bytes());
                answer[..answer.len() / 2].to_vec()
            }),
        ),
        ("lengths differ", with("tokenizer.ggml.token_type", json!([1, 1]))),
        ("words twice", with("tokenizer.ggml.tokens", json!(vec!["a"; 259]))),
        ("a kind of next year", with("tokenizer.ggml.model", json!("of next year"))),
        ("refused", Play::Json(500, json!({"error": "json: unsupported value: NaN"}))),
    ];
    for (name, play) in cases {
        let fake = ollama(good.clone(), move |_| play.clone());
        let proxy = TestProxy::with(&elsewhere(&fake), "");
        assert_eq!(source(&proxy, 10), ESTIMATED, "{name}");
        assert!(source(&proxy, 10).starts_with(ESTIMATED), "{name}");
        assert_eq!(asked(&fake), 1, "{name}");
        let left: Vec<PathBuf> =
            std::fs::read_dir(proxy.data().join("vocabularies")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, <[PathBuf; 0]>::default(), "{name}");
        let models = proxy.get("/windowsill/models").json();
        let counted = models["models"][0]["counted_with"].as_str().unwrap();
        // A server that failed may do better another time.
        assert!(counted.starts_with("an estimate"), "{name}: {counted}");
        assert_eq!(counted.contains("/api/show"), ["cut short", "refused"].contains(&name), "{name}: {counted}");
    }
}

#[test]
fn a_slow_answer_holds_no_request_for_long() {
    let (good, gate) = (described('a', &["\u{2581}word"]), Gate::default());
    let (told, wait) = (good.clone(), gate.clone());
    let fake = ollama(good, move |_| Play::Wait(wait.clone(), Box::new(Play::Json(200, told.clone()))));
    let proxy = TestProxy::with(&elsewhere(&fake), "");
    assert_eq!(source(&proxy, 10), ESTIMATED);
    gate.open();
    let until = std::time::Instant::now() + crate::support::PATIENCE;
    while !kept(proxy.dir.path(), 'a').is_file() {
        assert!(std::time::Instant::now() < until, "it never came");
        std::thread::yield_now();
    }
    assert_eq!((source(&proxy, 10).as_str(), asked(&fake)), (UNCHECKED, 1));
}

#[test]
fn a_broken_file_is_deleted_and_asked_for_again() {
    let fake = telling(&described('a', &["\u{2581}word"]));
    let dir = TestProxy::with(&elsewhere(&fake), "").stop();
    let file = kept(dir.path(), 'a');
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "GGUF and no more").unwrap();
    let proxy = TestProxy::at(dir, &elsewhere(&fake), "");
    assert!(source(&proxy, 10).starts_with(ESTIMATED) && !file.exists());
    assert_eq!((source(&proxy, 10).as_str(), asked(&fake)), (UNCHECKED, 1));
    // Not for ever.
    let writes = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        std::fs::write(&file, format!("GGUF {}", writes.fetch_add(1, Ordering::Relaxed))).unwrap();
        source(&proxy, 10);
        source(&proxy, 10);
    }
    assert_eq!(asked(&fake), 2);
}

#[test]
fn where_nothing_can_be_kept_nothing_is_asked() {
    let fake = telling(&described('a', &[]));
    let dir = TestProxy::with(&elsewhere(&fake), "").stop();
    std::fs::write(dir.path().join("data/vocabularies"), "in the way").unwrap();
    let proxy = TestProxy::at(dir, &elsewhere(&fake), "");
    assert_eq!((source(&proxy, 10).as_str(), asked(&fake)), (ESTIMATED, 0));
}

#[test]
fn two_proxies_on_one_record_do_not_disturb_each_other() {
    let fake = telling(&described('a', &["\u{2581}word"]));
    let one = TestProxy::with(&elsewhere(&fake), "");
    let two = TestProxy::at(Arc::clone(&one.dir), &elsewhere(&fake), "");
    std::thread::scope(|scope| {
        for proxy in [&one, &two] {
            scope.spawn(move || assert_eq!(source(proxy, 10), UNCHECKED));
        }
    });
    assert_eq!(std::fs::read_dir(one.data().join("vocabularies")).unwrap().count(), 1);
}

#[test]
fn what_is_here_or_at_nobodys_is_not_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(blob('a'));
    std::fs::write(&file, "GGUF").unwrap();
    let mut here = described('a', &[]);
    here["modelfile"] = json!(format!("FROM {}", file.display()));
    let local = telling(&here);
    let proxy = TestProxy::before(&local);
    assert_eq!((source(&proxy, 10).as_str(), asked(&local)), (ESTIMATED, 0), "a file that is here is read");
    // The file of this machine's server is in a container: its vocabulary can be asked for.
    let contained = telling(&described('b', &[]));
    let proxy = TestProxy::before(&contained);
    assert_eq!((source(&proxy, 10).as_str(), asked(&contained)), (UNCHECKED, 1));

    let mut cloud = described('a', &[]);
    cloud["remote_host"] = json!("https://ollama.com:443");
    let cloud = telling(&cloud);
    let proxy = TestProxy::with(&elsewhere(&cloud), "");
    assert!(source(&proxy, 10).starts_with(ESTIMATED));
    assert_eq!(asked(&cloud), 0);
}

/// What Ollama says of a header that is at hand.
fn of_header(file: &Path) -> Value {
    let header = Gguf::open(file).unwrap();
    let mut told = described('c', &["\u{2581}word"]);
    for (key, value) in &header.metadata {
        told["model_info"][key] = match value {
            gguf::Value::Unsigned(n) => json!(n),
            gguf::Value::Float(n) => json!(*n as f32),
            gguf::Value::Text(text) if key == "general.architecture" => json!(text),
            _ => continue,
        };
    }
    let tensor =
        |t: &gguf::Tensor| json!({"name": t.name, "type": t.kind.unwrap().name.to_uppercase(), "shape": t.dims});
    told["tensors"] = header.tensors.iter().map(tensor).collect();
    told
}

#[test]
fn what_a_context_costs_is_told_of_a_model_in_a_container() {
    let file = root().join("tests/data/llama-3.1-8b.gguf");
    let fake = telling(&of_header(&file));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    memory(dir.path(), 16 << 30);
    let proxy = TestProxy::on_machine(Arc::clone(&dir), &[fake.url()], "[window]\nnum_ctx = 'fit'\n");
    let affordable = || proxy.get("/windowsill/models").json()["models"][0]["affordable"]["num_ctx"].as_u64();
    assert_eq!((affordable(), asked(&fake)), (None, 0), "looking at a list asks nothing");
    let answer = proxy.chat(&chat().user("Hello!")).ok();
    let window = answer.header("x-windowsill-window-source").unwrap().to_owned();
    assert!(window.starts_with("fit: "), "{window}");
    let models = proxy.get("/windowsill/models").json();
    let notes = models["models"][0]["memory"]["notes"].to_string();
    assert!(affordable().is_some() && notes.contains("its header is what Ollama's /api/show tells"), "{models}");
    assert_eq!(asked(&fake), 1, "vocabulary and header come with one answer");

    let fit = |name: &str| -> Value {
        let out = cli_on_machine(dir.path(), &["fit", name, "--parallel", "1", "--json"]);
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
    };
    let (told, own) = (fit(crate::support::MODEL), fit(file.to_str().unwrap()));
    for (told, own) in told["rows"].as_array().unwrap().iter().zip(own["rows"].as_array().unwrap()) {
        for part in ["n_ctx", "weights_bytes", "kv_bytes", "state_bytes"] {
            assert_eq!(told[part], own[part], "{part}");
        }
    }
    assert_eq!((told["rows"].as_array().unwrap().len() > 3, asked(&fake)), (true, 1));
}

/// A server that tells no tensors: layers and heads by `/api/show`, the size of the file by `/api/tags`.
#[test]
fn a_window_is_fitted_to_layers_heads_and_the_size_of_a_file_that_is_out_of_reach() {
    let file = root().join("tests/data/llama-3.1-8b.gguf");
    let told = of_header(&file);
    let size = 4_920_734_272_u64;
    let outlined = Fake::start(Kind::Ollama, 4096);
    let mut short = in_short(&told);
    short["tensors"] = json!([]);
    outlined.script(move |seen| match seen.path() {
        "/api/show" => Play::Json(200, short.clone()),
        "/api/tags" => {
            Play::Json(200, json!({"models": [{"name": crate::support::MODEL, "size": size, "digest": "d"}]}))
        }
        _ => Play::Usual,
    });
    let fitted = |fake: &Fake| {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        memory(dir.path(), 16 << 30);
        let proxy = TestProxy::on_machine(dir, &[fake.url()], "[window]\nnum_ctx = 'fit'\n");
        let answer = proxy.chat(&chat().user("Hello!")).ok();
        let sent = fake.last().json()["options"]["num_ctx"].as_u64();
        (sent, answer.header("x-windowsill-window-source").unwrap().to_owned())
    };
    let whole = telling(&told);
    let (by_tensors, source) = fitted(&whole);
    assert!(source.starts_with("fit: "), "{source}");
    let (by_size, source) = fitted(&outlined);
    assert!(source.starts_with("fit: "), "{source}");
    let (by_tensors, by_size) = (by_tensors.unwrap(), by_size.unwrap());
    assert!(by_size <= by_tensors && by_size * 10 >= by_tensors * 7, "{by_size} of {by_tensors}");
}
