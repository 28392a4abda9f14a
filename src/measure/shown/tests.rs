//! Real vocabularies as Ollama tells them, where they are at hand (`shared/data`), and answers that cannot be used.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;
#[cfg(feature = "engine")]
use crate::engine::{ChatTemplate, Vocabulary};
use crate::gguf::{self, Gguf};
#[cfg(feature = "engine")]
use crate::measure::count::tests::{at_least, data, vocabulary_file};
use crate::measure::memory::{Model, Settings, cost};

/// The name of a blob.
pub(super) fn blob(digit: char) -> String {
    format!("/root/.ollama/models/blobs/sha256-{}", digit.to_string().repeat(64))
}

/// What Ollama says of a file: each number as Go prints it in its own width.
fn told(file: &Path) -> Value {
    let keep = ["tokens", "token_type", "scores", "merges"].map(|name| format!("tokenizer.ggml.{name}"));
    let options = gguf::Options { keep: &keep.each_ref().map(String::as_str) };
    let header = Gguf::open_with(file, options).unwrap();
    let mut info = Map::new();
    for (key, value) in &header.metadata {
        if !["general.name", "tokenizer.chat_template"].contains(&key.as_str()) {
            info.insert(key.clone(), spelled(value));
        }
    }
    let tensor = |t: &gguf::Tensor| {
        let dims = t.dims.iter().rposition(|n| *n != 1).map_or(1, |last| last + 1);
        let kind = t.kind.map_or("?", |kind| kind.name).to_uppercase();
        json!({"name": t.name, "type": kind, "shape": t.dims[..dims]})
    };
    let tensors: Vec<Value> = header.tensors.iter().map(tensor).collect();
    json!({"modelfile": "", "template": "{{ .Prompt }}", "model_info": info, "tensors": tensors})
}

fn spelled(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::Unsigned(n) => json!(n),
        gguf::Value::Signed(n) => json!(n),
        gguf::Value::Float(n) => json!(*n as f32),
        gguf::Value::Bool(yes) => json!(yes),
        gguf::Value::Text(text) => json!(text),
        gguf::Value::Array(array) => array.items.as_ref().map_or(Value::Null, |all| all.iter().map(spelled).collect()),
    }
}

#[test]
#[cfg(feature = "engine")]
fn a_told_vocabulary_gives_the_tokens_of_its_file() {
    let data = data();
    let dir = tempfile::tempdir().unwrap();
    // One of each kind, and small: tests/live tries them all, told by a real Ollama.
    let there = |name: &&str| vocabulary_file(&data, name).is_file();
    let names: Vec<&str> = ["bert-bge", "llama-spm", "phi-3", "deepseek-coder"].into_iter().filter(there).collect();
    assert!(names.len() >= at_least(&data, 4, 1), "{names:?}");
    for name in names {
        let file = vocabulary_file(&data, name);
        let kept = dir.path().join("kept.gguf");
        keep(&told(&file).to_string().into(), &kept, &loads).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (own, told) = (Vocabulary::load(&file).unwrap(), Vocabulary::load(&kept).unwrap());
        let texts = std::fs::read_to_string(format!("{}.inp", file.display())).unwrap();
        // By its name, which is not told, Phi-3's special tokens swallow white space: its prompts count higher.
        let marks = if name == "phi-3" { "" } else { "<|user|>\n a</s>\n<s> <|im_end|> \n" };
        for text in texts.split("\n__ggml_vocab_test__\n").chain([marks]) {
            assert_eq!(told.tokenize(text), own.tokenize(text), "{name}: {text:?}");
        }
        assert_eq!((told.ends(), told.enders()), (own.ends(), own.enders()), "{name}");
    }
}

/// As Go prints them, floats without a fraction are whole numbers.
fn without_fractions(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(without_fractions),
        Value::Object(all) => all.values_mut().for_each(without_fractions),
        Value::Number(n) => {
            if let Some(whole) = n.as_f64().filter(|f| n.is_f64() && f.fract() == 0.0) {
                *value = json!(whole as i64);
            }
        }
        _ => {}
    }
}

#[test]
fn a_told_header_costs_what_its_file_costs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/memory/headers");
    let mut models = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let mut told = told(&file);
        without_fractions(&mut told);
        let answer = told.to_string();
        let bytes = header::file(&Described::read(answer.as_bytes()).unwrap()).unwrap();
        let told = Model::of(&Gguf::read(std::io::Cursor::new(bytes)).unwrap()).unwrap();
        let own = Model::of(&Gguf::open(&file).unwrap()).unwrap();
        assert_eq!((told.trained, told.widths.vocab), (own.trained, own.widths.vocab), "{}", file.display());
        for n_ctx in [4096, 32_768] {
            let settings = Settings::ollama(n_ctx, 1);
            assert_eq!(cost(&told, &settings).unwrap(), cost(&own, &settings).unwrap(), "{}", file.display());
        }
        models += 1;
    }
    assert!(models > 3, "{models}");
}

/// Whether llama.cpp can use a vocabulary, found in this process.
#[cfg(feature = "engine")]
fn loads(file: &Path) -> Result<(), String> {
    Vocabulary::load(file).map(drop).map_err(|e| e.to_string())
}

/// A tiny SentencePiece vocabulary, as it is told.
fn tiny(architecture: &str) -> Value {
    let mut words: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    words.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    let kinds = [[2, 3, 3].as_slice(), &[6; 256]].concat();
    json!({"model_info": {
        "general.architecture": architecture, "general.parameter_count": 5, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": vec![-1e-5; 259], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.precompiled_charsmap": "AAECAw=="
    }})
}

#[test]
#[cfg(feature = "engine")]
fn architectures_with_names_of_ollamas_own_are_no_hindrance() {
    let dir = tempfile::tempdir().unwrap();
    for architecture in ["llama", "gptoss", "of next year"] {
        let file = dir.path().join("kept.gguf");
        keep(&tiny(architecture).to_string().into(), &file, &loads).unwrap();
        let v = Vocabulary::load(&file).unwrap();
        assert_eq!((v.ends(), v.count("")), (("<s>", "</s>"), 1), "{architecture}");
        assert_eq!(v.tokenize("<s>A</s>").last(), Some(&2));
    }
}

#[test]
fn answers_that_cannot_be_used_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kept.gguf");
    let with = |key: &str, value: Value| {
        let mut told = tiny("llama");
        told["model_info"][format!("tokenizer.ggml.{key}")] = value;
        told.to_string()
    };
    let cut = tiny("llama").to_string();
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "no JSON"),
        (cut[..cut.len() / 2].to_owned(), "no JSON"),
        ("7".into(), "no JSON"),
        ("{}".into(), "gives no vocabulary"),
        (json!({"model_info": null, "tensors": null}).to_string(), "gives no vocabulary"),
        // Without `verbose`, by the Ollamas of today and of long ago.
        (with("tokens", Value::Null), "gives no vocabulary"),
        (with("tokens", json!([])), "gives no vocabulary"),
        (with("tokens", json!("AAEC")), "`tokenizer.ggml.tokens`"),
        (with("tokens", json!(["a", 7])), "`tokenizer.ggml.tokens`"),
        (with("tokens", json!(vec![""; (1 << 20) + 1])), "at most 1048576 elements"),
        (with("token_type", json!([1.5])), "`tokenizer.ggml.token_type`"),
        (with("bos_token_id", json!(-7)), "no id of a token"),
        (with("bos_token_id", json!(5_000_000_000_u64)), "no id of a token"),
        (with("add_bos_token", json!(1)), "`tokenizer.ggml.add_bos_token`"),
    ];
    for (answer, expected) in cases {
        let shown: String = answer.chars().take(200).collect();
        let why = keep(&answer.into(), &file, &|_| Ok(())).expect_err(&shown);
        assert!(why.contains(expected), "{shown}: {why}");
    }
    // Nor those that llama.cpp cannot use.
    #[cfg(feature = "engine")]
    assert_eq!(keep(&tiny("llama").to_string().into(), &file, &|_| Err("no".into())), Err("no".into()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_model_is_known_by_the_digest_of_its_file() {
    let hex = "0123456789abcdef".repeat(4);
    let name = format!("sha256-{hex}");
    assert_eq!(digest(&format!("/root/.ollama/models/blobs/{name}")), Some(name.as_str()));
    assert_eq!(digest(&format!("C:\\Users\\me\\.ollama\\models\\blobs\\{name}")), Some(name.as_str()));
    for other in ["", "/models/a.gguf", "sha256-12", "/blobs/sha256-../../x", &blob('g'), &format!("{name}.gguf")] {
        assert_eq!(digest(other), None, "{other}");
    }
}

#[test]
#[cfg(feature = "engine")]
fn the_stand_in_holds_every_word_once() {
    let template = ChatTemplate::read(STAND_IN, ("", "</s>")).unwrap();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}});
    let request = json!({
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        ],
    });
    let text = template.render(&request).unwrap();
    for word in ["Be kind.", "\"at\"", "seen", "tool\n"] {
        assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
    }
    assert!(text.contains("one") && text.contains("two"), "{text}");
    assert_eq!((text.matches("look").count(), text.matches("</s>").count()), (2, 9), "{text}");
    assert!(text.ends_with("</s>\n</s>assistant\n"), "{text}");
}
