//! What counting with the model's own vocabulary costs in the process that counts, for every vocabulary of the larger data set:
//! the first count of a history of 300 KB, one message more, and the shares of all messages; beside llama.cpp's tokenizer over
//! the same bytes in one go, in the same run. `cargo bench --bench count [VOCABULARY]`. `cargo bench --bench count templates
//! [NAME|FILE]` shows what one message more costs with each template, and the part of rendering in it.
//!
//! Read the ratios: the times are those of the machine, and of what else runs on it.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot read its data has nothing to say")]

#[path = "support/data.rs"]
mod data;

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};
use windowsill::engine::{ChatTemplate, Vocabulary};
use windowsill::measure::count::Counter;
use windowsill::wire::openai_chat;

/// Bytes of the history.
const SIZE: usize = 300_000;

/// The template of vocabularies that have none here.
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

/// Templates of the vocabularies' own models; ChatML for the others.
const TEMPLATES: [(&str, &str); 8] = [
    ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct"),
    ("qwen2", "Qwen-Qwen3-0.6B"),
    ("qwen35", "Qwen3.5-4B"),
    ("gemma-4", "google-gemma-4-31B-it"),
    ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
    ("llama-spm", "mistralai-Mistral-Nemo-Instruct-2407"),
    ("deepseek-llm", "deepseek-ai-DeepSeek-V3.1"),
    ("deepseek-coder", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
];

fn main() {
    let Some(data) = data::folder() else { return };
    let data = &*data;
    let mut words = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let only = words.next();
    if only.as_deref() == Some("templates") {
        return templates(data, words.next().as_deref());
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(data.join("vocab")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    let messages = history(data);
    println!("history of {} messages, ms; bar: first 100", messages.len());
    println!(
        "{:<16}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}",
        "vocabulary", "load", "whole", "parse", "first", "next", "shares", "again", "first/wh", "tokens"
    );
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().replace("ggml-vocab-", "");
        if name != "bert-bge" && only.as_ref().is_none_or(|o| name.contains(o.as_str())) {
            one(data, &file, &name, messages.clone());
        }
    }
}

/// What one message more costs with each of the templates, and the part of rendering in it.
fn templates(data: &Path, only: Option<&str>) {
    let vocabulary = data.join("vocab/ggml-vocab-qwen2.gguf");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("templates")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "jinja"));
    files.sort();
    let file = only.map(PathBuf::from).filter(|f| f.is_file());
    let only = only.filter(|_| file.is_none());
    let files = file.map_or(files, |file| vec![file]);
    let columns = ["count", "foreign", "render"].map(|c| format!("{c:>10}")).concat();
    println!("one message more, qwen2's vocabulary, ms\n{:<52}{columns}", "template");
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        let counter = Counter::open(&vocabulary, Some(&source)).unwrap();
        let template = ChatTemplate::read(&source, ("", "")).unwrap();
        let mut messages = history(data);
        // As models that think have it: some templates treat it in ways of their own.
        for message in messages.iter_mut().filter(|m| m["tool_calls"].is_array()) {
            message["reasoning_content"] = "I should look at that first.".into();
        }
        let mut least = [f64::MAX; 3];
        // One template by itself is measured longer: for a profiler to see.
        for i in 0..if only.is_some() { 60 } else { 4 } {
            messages.push(json!({"role": "user", "content": format!("And another thing, number {i}.")}));
            let body = body(&messages);
            let (time, counted) = ms(|| counter.total(&body));
            if let Err(e) = counted {
                println!("{name:<52} {e}");
                break;
            }
            let request: Value = serde_json::from_slice(&body).unwrap();
            // As for a server that renders in a way of its own.
            let (foreign, _) = ms(|| counter.at_least(&body));
            let (rendering, _) = ms(|| template.render(&request));
            if i > 0 {
                least = std::array::from_fn(|at| least[at].min([time, foreign, rendering][at]));
            }
            messages.push(json!({"role": "assistant", "content": "Done."}));
        }
        if least[0] < f64::MAX {
            let shown = |ms: f64| if ms < f64::MAX { format!("{ms:>10.1}") } else { format!("{:>10}", "-") };
            println!("{name:<52}{}", least.map(shown).concat());
        }
    }
}

/// Messages of recorded sessions, one after the other.
fn history(data: &Path) -> Vec<Value> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("sessions/dev")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut out: Vec<Value> = Vec::new();
    let mut size = 0;
    for file in files.iter().filter(|f| {
        let name = f.to_string_lossy();
        ["before-compaction", "django", "aider"].iter().any(|n| name.contains(n))
    }) {
        let session: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for message in session["messages"].as_array().unwrap() {
            let repeats = out.last().is_some_and(|m| m["role"] == message["role"] && m["role"] != "tool");
            if repeats || message["role"] == "system" && !out.is_empty() {
                continue;
            }
            size += message.to_string().len();
            if size > SIZE {
                return out;
            }
            out.push(message.clone());
        }
    }
    out
}

fn body(messages: &[Value]) -> Bytes {
    Bytes::from(serde_json::to_vec(&json!({"model": "m", "messages": messages})).unwrap())
}

fn ms<T>(act: impl FnOnce() -> T) -> (f64, T) {
    let started = Instant::now();
    let out = act();
    (started.elapsed().as_secs_f64() * 1000.0, out)
}

fn one(data: &Path, file: &Path, name: &str, mut messages: Vec<Value>) {
    let template = TEMPLATES.iter().find(|(v, _)| *v == name).map_or_else(
        || CHATML.to_owned(),
        |(_, t)| std::fs::read_to_string(data.join(format!("templates/{t}.jinja"))).unwrap(),
    );
    let (load, counter) = ms(|| Counter::open(file, Some(&template)).unwrap());
    let text: String = messages.iter().filter_map(|m| m["content"].as_str()).collect();
    let vocabulary = Vocabulary::load(file).unwrap();
    let (whole, _) = ms(|| vocabulary.tokenize(&text).len());
    messages.push(json!({"role": "user", "content": "go on"}));
    let first_body = body(&messages);
    let (parse, _) = ms(|| serde_json::from_slice::<Value>(&first_body).unwrap());
    let (first, counted) = ms(|| counter.total(&first_body));
    if let Err(e) = counted {
        println!("{name:<16} {e}");
        return;
    }
    let mut next = Vec::new();
    let (mut shares, mut again) = (0.0, f64::MAX);
    let mut tokens = 0;
    for i in 0..5 {
        messages.push(json!({"role": "assistant", "content": "Done."}));
        messages.push(json!({"role": "user", "content": format!("And another thing, number {i}: ").repeat(40)}));
        let body = body(&messages);
        let (time, total) = ms(|| counter.total(&body).unwrap().0);
        next.push(time);
        let talk = openai_chat::parse(&body).unwrap().conversation;
        let (time, counted) = ms(|| counter.counted(&body, &talk, false).unwrap());
        assert_eq!(counted.total(), total);
        if i == 0 {
            shares = time;
        }
        again = again.min(time);
        tokens = total;
    }
    next.sort_by(f64::total_cmp);
    println!(
        "{name:<16}{load:>8.0}{whole:>8.0}{parse:>8.1}{first:>8.0}{:>8.1}{shares:>8.1}{again:>8.1}{:>9.2}{tokens:>9}",
        next[2],
        first / whole
    );
}
