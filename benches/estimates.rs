//! How far estimates of prompt tokens are off where nothing counts, against real templates and vocabularies: recorded sessions
//! are sent prompt by prompt, each reply reports the true count, and what was estimated from the fourth prompt of a session
//! on is compared with it. Once by the model's name, and once as a model of a name that tells nothing (not for Qwen's
//! vocabulary, which such a model is counted with at first); beside a quarter of the bytes and the rule of thumb, both
//! corrected by the highest ratio of the last eight replies. `cargo bench --bench estimates [NAME]`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot read its data has nothing to say")]

#[path = "support/data.rs"]
mod data;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use windowsill::conversation::edit::View;
use windowsill::conversation::{Conversation, Message, Tokens};
use windowsill::measure::count::Counter;
use windowsill::measure::{Known, Measure, ModelKey, tokens};
use windowsill::wire::openai_chat;

/// Replies from which on estimates are judged.
const REPLIES: usize = 3;

/// Bytes and messages of a session that are sent.
const LONGEST: (usize, usize) = (60_000, 48);

/// Models as a server names them, each with a template and the vocabulary that tell the truth about it. The template is the
/// model's own but where the name stands for its vocabulary alone.
const MODELS: [(&str, &str, &str); 24] = [
    ("llama3.1:8b", "meta-llama-Llama-3.1-8B-Instruct", "llama-bpe"),
    ("llama3.2:3b", "meta-llama-Llama-3.2-3B-Instruct", "llama-bpe"),
    ("hermes-3-llama-3.1", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "llama-bpe"),
    ("smollm3", "HuggingFaceTB-SmolLM3-3B", "llama-bpe"),
    ("qwen2.5-coder", "Qwen-Qwen2.5-7B-Instruct", "qwen2"),
    ("qwen3:8b", "Qwen-Qwen3-0.6B", "qwen2"),
    ("qwen3-coder", "Qwen3-Coder", "qwen2"),
    ("qwen3-next", "Qwen3.5-4B", "qwen35"),
    ("qwq", "Qwen-QwQ-32B", "qwen2"),
    ("deepseek-r1-distill-qwen", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "qwen2"),
    ("gemma-4-31b", "google-gemma-4-31B-it", "gemma-4"),
    ("gemma3:4b", "google-gemma-2-2b-it", "gemma-4"),
    ("phi-3.5-mini", "microsoft-Phi-3.5-mini-instruct", "phi-3"),
    ("phi-3.5-tools", "Qwen-Qwen2.5-7B-Instruct", "phi-3"),
    ("deepseek-v2.5", "deepseek-ai-DeepSeek-V3.1", "deepseek-llm"),
    ("deepseek-coder", "Qwen-Qwen2.5-7B-Instruct", "deepseek-coder"),
    ("granite3.3", "ibm-granite-granite-3.3-2B-Instruct", "starcoder"),
    ("falcon", "Qwen-Qwen2.5-7B-Instruct", "falcon"),
    ("granite4", "ibm-granite-granite-4.0", "cl100k"),
    ("gpt-oss:20b", "openai-gpt-oss-120b", "o200k"),
    ("mistral-nemo", "mistralai-Mistral-Nemo-Instruct-2407", "tekken"),
    ("mistral-small3.2", "Mistral-Small-3.2-24B-Instruct-2506", "tekken"),
    ("devstral", "unsloth-mistral-Devstral-Small-2507", "tekken"),
    ("ministral-3", "mistralai-Ministral-3-14B-Reasoning-2512", "tekken"),
];

/// Where `scripts/vocab/gguf.py` is told to put the vocabularies of which llama.cpp has no file.
const MADE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/vocab");

/// A name that tells nothing.
const UNKNOWN: &str = "my-model";

fn main() {
    let Some(data) = data::folder() else { return };
    let data = &*data;
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let requests = sessions(data);
    println!("{} sessions, prompts from the fourth on; shares and errors in %", requests.len());
    println!("{:<26}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}", "", "prompts", "mean", "lowest", "highest", "1% low", "5% off");
    let mut all: [Found; 4] = Default::default();
    for (name, template, vocabulary) in MODELS {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let source = std::fs::read_to_string(data.join(format!("templates/{template}.jinja"))).unwrap();
        let file = format!("ggml-vocab-{vocabulary}.gguf");
        let Some(file) = [data.join("vocab"), MADE.into()].map(|f| f.join(&file)).into_iter().find(|f| f.exists())
        else {
            println!("{name:<26}without {file}: scripts/vocab/gguf.py");
            continue;
        };
        let counter = Counter::open(&file, Some(&source)).unwrap();
        let mut found: [Found; 4] = Default::default();
        // Servers refuse tools for a template that does not know them.
        let tools = source.contains("tool");
        for request in requests.iter().filter(|r| tools || !r.to_string().contains("tool_call")) {
            replay(request, name, &counter, !vocabulary.starts_with("qwen"), &mut found);
        }
        found[0].print(name);
        found[1].print("  by no name");
        all.iter_mut().zip(found).for_each(|(all, one)| all.errors.extend(one.errors));
    }
    println!();
    let labels = ["all, by name", "all, by no name", "bytes / 4", "rule of thumb"];
    labels.iter().zip(&all).for_each(|(label, found)| found.print(label));
    times(&requests);
}

/// What estimating costs before any reply: a long history at first, and with one message more.
fn times(requests: &[Value]) {
    let mut size = 0;
    let fits = |m: &&Value| {
        size += m.to_string().len();
        size < 2_000_000
    };
    let messages: Vec<Value> =
        requests.iter().flat_map(|r| r["messages"].as_array().unwrap()).take_while(fits).cloned().collect();
    println!("\na history of {:.1} MB, {} messages, ms", size as f64 / 1e6, messages.len());
    for name in ["qwen3:8b", UNKNOWN] {
        let measure = Measure::default();
        let estimate = |messages: &[Value]| {
            let body = Bytes::from(json!({"model": "m", "messages": messages}).to_string());
            let talk = openai_chat::parse(&body).unwrap().conversation;
            let started = std::time::Instant::now();
            std::hint::black_box(measure.facts(&ModelKey::new("", name), &talk, &View::default(), None));
            started.elapsed().as_secs_f64() * 1000.0
        };
        let first = estimate(&messages[..messages.len() - 1]);
        println!("{name:<26}first {first:>9.1}, one more {:>7.1}", estimate(&messages));
    }
}

/// Sends a session prompt by prompt.
fn replay(request: &Value, name: &str, counter: &Counter, unknown: bool, found: &mut [Found; 4]) {
    let messages = request["messages"].as_array().unwrap();
    let models: &[&str] = if unknown { &[name, UNKNOWN] } else { &[name] };
    let measures = [Measure::default(), Measure::default()];
    let mut baselines = [Ratios::default(), Ratios::default()];
    let mut known: Option<Known> = None;
    let mut replies = 0;
    for end in 1..=messages.len() {
        // A prompt is sent where the assistant speaks next.
        let next = messages.get(end).is_none_or(|m| m["role"] == "assistant");
        if !next || messages[end - 1]["role"] == "assistant" {
            continue;
        }
        let mut prompt = request.clone();
        prompt["messages"] = messages[..end].to_vec().into();
        let body = Bytes::from(prompt.to_string());
        let talk = openai_chat::parse(&body).unwrap().conversation;
        let Ok((truth, _)) = counter.total(&body) else { continue };
        let judged = replies >= REPLIES;
        for (at, (model, measure)) in models.iter().zip(&measures).enumerate() {
            let key = &ModelKey::new("", model);
            let facts = measure.facts(key, &talk, &View::default(), known);
            let estimate = facts.head() + facts.costs.iter().map(|c| c.total()).sum::<Tokens>();
            found[at].add(judged, estimate, truth);
            measure.learn(key, &measure.sample(key, &talk, &View::default(), known), truth);
        }
        let figures: [fn(&Message) -> f64; 2] = [|m| m.bytes().len() as f64 / 4.0, rule_of_thumb];
        for (at, (ratios, figure)) in baselines.iter_mut().zip(figures).enumerate() {
            let (before, whole) = (sum(&talk, known.map(|k| k.messages), figure), sum(&talk, None, figure));
            let counted = known.map_or(0.0, |k| f64::from(k.tokens));
            let new = if known.is_some() { whole - before } else { whole };
            found[2 + at].add(judged, (counted + new * ratios.factor()) as Tokens, truth);
            ratios.learn(f64::from(truth) / whole);
        }
        replies += 1;
        known = Some(Known { messages: talk.body.len(), tokens: truth });
    }
}

fn rule_of_thumb(message: &Message) -> f64 {
    let calls = message.calls.iter().map(|c| tokens::message(&c.arguments));
    f64::from(tokens::message(&message.text) + calls.sum::<Tokens>())
}

/// A figure of a conversation or of its first messages.
fn sum(talk: &Conversation, upto: Option<usize>, figure: fn(&Message) -> f64) -> f64 {
    let tools = talk.tools.as_ref().map_or(0.0, |t| t.len() as f64 / 4.0);
    let body = &talk.body[..upto.unwrap_or(talk.body.len())];
    tools + talk.system.iter().chain(body).map(figure).sum::<f64>()
}

/// The last ratios of what was reported to what was expected.
#[derive(Default)]
struct Ratios(VecDeque<f64>);

impl Ratios {
    fn factor(&self) -> f64 {
        self.0.iter().copied().reduce(f64::max).map_or(1.2, |highest| highest * 1.01)
    }

    fn learn(&mut self, ratio: f64) {
        self.0.push_back(ratio.clamp(0.2, 5.0));
        if self.0.len() > 8 {
            self.0.pop_front();
        }
    }
}

/// Errors as shares of the truth.
#[derive(Default)]
struct Found {
    errors: Vec<f64>,
}

impl Found {
    fn add(&mut self, judged: bool, estimate: Tokens, truth: Tokens) {
        if judged {
            self.errors.push(f64::from(estimate) / f64::from(truth) - 1.0);
        }
    }

    fn print(&self, label: &str) {
        if self.errors.is_empty() {
            return;
        }
        let n = self.errors.len() as f64;
        let share = |of: fn(&f64) -> bool| 100.0 * self.errors.iter().filter(|e| of(e)).count() as f64 / n;
        let mean = 100.0 * self.errors.iter().map(|e| e.abs()).sum::<f64>() / n;
        let lowest = 100.0 * self.errors.iter().copied().fold(0.0, f64::min);
        let highest = 100.0 * self.errors.iter().copied().fold(0.0, f64::max);
        let (low, off) = (share(|e| *e < -0.01), share(|e| e.abs() > 0.05));
        println!("{label:<26}{n:>9}{mean:>9.2}{lowest:>9.1}{highest:>9.1}{low:>9.2}{off:>9.2}");
    }
}

/// Beginnings of the recorded sessions, as requests.
fn sessions(data: &Path) -> Vec<Value> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("sessions/dev")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let session: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut size = 0;
        let fits = |m: &&Value| {
            size += m.to_string().len();
            size < LONGEST.0
        };
        let all = session["messages"].as_array().unwrap().iter();
        let messages: Vec<Value> = all.take(LONGEST.1).take_while(fits).cloned().collect();
        let mut request = json!({"model": "m", "messages": messages});
        if session["tools"].as_array().is_some_and(|t| !t.is_empty()) {
            request["tools"] = session["tools"].clone();
        }
        request
    };
    files.iter().map(read).collect()
}
