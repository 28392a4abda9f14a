//! Real sessions in real templates, by real vocabularies, where they are at hand (`shared/data`).

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Counted, Counter};
use crate::conversation::{Conversation, Role, Tokens};
use crate::wire::openai_chat;

/// Excerpts of the data set, which are in the repository.
const EXCERPTS: &str = "tests/data/excerpts";

/// The data set, where it lies beside this checkout; else the excerpts of it.
pub(crate) fn data() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places = ["../shared/data", "../../shared/data", EXCERPTS].iter().map(|p| here.join(p));
    places.find(|p| p.is_dir()).unwrap_or_else(|| panic!("{EXCERPTS} is missing from the repository"))
}

/// How many there must be: of the whole set, or of the excerpts.
pub(crate) fn at_least(data: &Path, whole: usize, excerpts: usize) -> usize {
    if data.ends_with("excerpts") { excerpts } else { whole }
}

/// Those of the pairs of a template and a vocabulary that the data has: all, or what the excerpts have of them.
pub(crate) fn at_hand<P: Copy>(data: &Path, pairs: &[P], names: impl Fn(&P) -> (&str, &str)) -> Vec<P> {
    let there = |pair: &&P| {
        let (template, vocabulary) = names(pair);
        data.join(format!("templates/{template}.jinja")).is_file() && vocabulary_file(data, vocabulary).is_file()
    };
    let found: Vec<P> = pairs.iter().filter(there).copied().collect();
    assert!(found.len() >= at_least(data, pairs.len(), 1), "{} of {}", found.len(), pairs.len());
    found
}

/// A file with a vocabulary.
pub(crate) fn vocabulary_file(data: &Path, name: &str) -> PathBuf {
    data.join(format!("vocab/ggml-vocab-{name}.gguf"))
}

/// Templates, each with a vocabulary and by how much the shares may be off at most: a few tokens where it is the template's
/// own, and what the template puts around a message where it knows none of its special tokens.
const PAIRS: [(&str, &str, Tokens); 17] = [
    ("Qwen-Qwen2.5-7B-Instruct", "qwen2", 2),
    ("Qwen-Qwen3-0.6B", "qwen2", 2),
    ("Qwen3-Coder", "qwen2", 2),
    ("Qwen3.5-4B", "qwen35", 2),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "qwen2", 2),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama-bpe", 2),
    ("meta-llama-Llama-3.3-70B-Instruct", "llama-bpe", 2),
    ("google-gemma-4-31B-it", "gemma-4", 8),
    ("google-gemma-4-31B-it-interleaved", "gemma-4", 16),
    ("microsoft-Phi-3.5-mini-instruct", "phi-3", 12),
    ("mistralai-Mistral-Nemo-Instruct-2407", "llama-spm", 32),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek-llm", 64),
    ("deepseek-ai-DeepSeek-V4", "deepseek-llm", 64),
    ("openai-gpt-oss-120b", "gpt-2", 48),
    ("GLM-4.6", "falcon", 24),
    ("Kimi-K2-Instruct", "starcoder", 40),
    ("llama-cpp-rwkv-world", "deepseek-coder", 128),
];

/// Beginnings of the recorded sessions, as requests that end with no assistant message.
pub(crate) fn requests(bytes: usize, most: usize) -> Vec<(String, Value)> {
    let data = data();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("sessions/dev")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let session: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut size = 0;
        let fits = |m: &&Value| {
            size += m.to_string().len();
            size < bytes
        };
        let mut messages: Vec<Value> =
            session["messages"].as_array().unwrap().iter().take(most).take_while(fits).cloned().collect();
        while messages.last().is_some_and(|m| m["role"] == "assistant") {
            messages.pop();
        }
        let mut request = json!({"model": "m", "messages": messages});
        if session["tools"].as_array().is_some_and(|t| !t.is_empty()) {
            request["tools"] = session["tools"].clone();
        }
        (file.file_stem().unwrap().to_string_lossy().into_owned(), request)
    };
    files.iter().map(read).filter(|(_, r)| r["messages"].as_array().is_some_and(|m| m.len() > 2)).collect()
}

pub(crate) fn counter(data: &Path, template: &str, vocabulary: &str) -> Counter {
    let template = std::fs::read_to_string(data.join(format!("templates/{template}.jinja"))).unwrap();
    Counter::open(&vocabulary_file(data, vocabulary), Some(&template)).unwrap()
}

pub(crate) fn parsed(request: &Value) -> (Bytes, Conversation) {
    let bytes = Bytes::from(request.to_string());
    let conversation = openai_chat::parse(&bytes).unwrap().conversation;
    (bytes, conversation)
}

#[test]
fn shares_are_those_of_each_messages_own_text() {
    let data = data();
    let requests = requests(16_000, 24);
    let pairs = at_hand(&data, &PAIRS, |(template, vocabulary, _)| (*template, *vocabulary));
    for (at, (template, vocabulary, most)) in pairs.into_iter().enumerate() {
        let counter = counter(&data, template, vocabulary);
        let mut off: Vec<Tokens> = Vec::new();
        for (name, request) in requests.iter().skip(at % 2).step_by(2) {
            let (body, talk) = parsed(request);
            let Ok((total, _)) = counter.total(&body) else { continue };
            let counted = counter.counted(&body, &talk, false).unwrap();
            assert_eq!(counted.total(), total, "{template}, {name}: the shares add up");
            for (i, by) in differences(&counter, request, &talk, &counted, total) {
                assert!(by <= most, "{template}, {vocabulary}, {name}: off by {by} behind message {i}");
                off.push(by);
            }
        }
        let mean = off.iter().sum::<Tokens>() as f64 / off.len() as f64;
        eprintln!("{template}, {vocabulary}: {} places, off by {mean:.1}, {:?} at most", off.len(), off.iter().max());
        assert!(off.len() > at_least(&data, 25, 10), "{template}: {} places", off.len());
    }
}

/// How far the sums of shares are from the count of the prompt up to each message, rendered by itself: the places between
/// messages of which the template puts the second behind the first and leaves the first as it was.
fn differences(
    counter: &Counter,
    request: &Value,
    talk: &Conversation,
    counted: &Counted,
    total: Tokens,
) -> Vec<(usize, Tokens)> {
    let mut request = request.clone();
    request["add_generation_prompt"] = false.into();
    let whole = counter.render(&request).unwrap();
    // What opens the reply is counted to the head.
    let end = total - counter.vocabulary.count(&whole).min(total);
    let mut sum = counted.system + counted.tools;
    let mut out = Vec::new();
    for (i, cost) in counted.costs.iter().enumerate() {
        sum += cost.total();
        // An assistant's message at the end is one that the reply continues.
        if talk.body[i].role == Role::Assistant || i + 1 == counted.costs.len() {
            continue;
        }
        let mut upto = request.clone();
        upto["messages"].as_array_mut().unwrap().truncate(talk.system.len() + i + 1);
        let Ok(text) = counter.render(&upto) else { continue };
        // Some templates put a word of their own at the end, or take white space off it.
        let same = text.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
        let same = (0..=same).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        if text.len() - same <= 32 {
            out.push((i, (counter.vocabulary.count(&text[..same]) + end).abs_diff(sum)));
        }
    }
    out
}

#[test]
fn what_cannot_be_marked_is_shared_out_and_still_adds_up() {
    let data = data();
    let vocabulary = vocabulary_file(&data, "phi-3");
    let print = "{% for m in messages %}<|{{ m.role }}|>\n{{ NOTHING }}<|end|>\n{% endfor %}";
    let request = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two three four five six seven"},
        {"role": "assistant", "content": "a b c d e f g h"},
        {"role": "user", "content": "one two three four five six seven"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "end of it"},
    ]});
    let (body, talk) = parsed(&request);
    for (filter, why) in [
        ("m.content | trim", "as it is"),
        ("m.content | length", "no mark comes out"),
        ("m.content[::-1]", "marks in the wrong order"),
        ("m.content | upper", "another spelling"),
        ("m.content | tojson | replace('t', '')", "another text"),
    ] {
        let counter = Counter::open(&vocabulary, Some(&print.replace("NOTHING", filter))).unwrap();
        let counted = counter.counted(&body, &talk, false).unwrap();
        assert_eq!(counted.total(), counter.total(&body).unwrap().0, "{why}");
        let costs: Vec<Tokens> = counted.costs.iter().map(|c| c.total()).collect();
        assert!(costs.iter().all(|c| (1..=24).contains(c)), "{why}: {costs:?}");
        assert!(costs[0].abs_diff(costs[2]) <= 5, "{why}: the same words cost the same: {costs:?}");
    }
}
