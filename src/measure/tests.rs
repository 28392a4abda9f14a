//! How far estimates are off, against the counts of real vocabularies, where these are at hand (`shared/data`).

use serde_json::Value;

use super::count::Counter;
use super::count::tests::{at_hand, at_least, counter, data, parsed, requests};
use super::{Known, Measure, ModelKey};
use crate::conversation::Tokens;
use crate::conversation::edit::View;

/// Replies from which on estimates are judged.
const REPLIES: usize = 3;

/// Templates and vocabularies that tell the truth about a model.
const PAIRS: [(&str, &str); 7] = [
    ("meta-llama-Llama-3.1-8B-Instruct", "llama-bpe"),
    ("Qwen-Qwen2.5-7B-Instruct", "qwen2"),
    ("google-gemma-4-31B-it", "gemma-4"),
    ("Qwen-Qwen2.5-7B-Instruct", "phi-3"),
    ("Qwen-Qwen2.5-7B-Instruct", "deepseek-llm"),
    ("Qwen3-Coder", "qwen2"),
    ("ibm-granite-granite-3.3-2B-Instruct", "starcoder"),
];

/// Sends a session prompt by prompt; what each estimate is off after the third reply, as a share of the truth.
fn replay(request: &Value, counter: &Counter) -> Vec<f64> {
    let messages = request["messages"].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
    let (measure, key) = (Measure::default(), ModelKey::new("", "my-model"));
    let mut known: Option<Known> = None;
    let mut errors = Vec::new();
    for end in 1..=messages.len() {
        // A prompt is sent where the assistant speaks next.
        let next = messages.get(end).is_none_or(|m| m["role"] == "assistant");
        if !next || messages[end - 1]["role"] == "assistant" {
            continue;
        }
        let mut prompt = request.clone();
        prompt["messages"] = messages[..end].to_vec().into();
        let (body, talk) = parsed(&prompt);
        let Ok((truth, _)) = counter.total(&body) else { continue };
        let facts = measure.facts(&key, &talk, &View::default(), known);
        let estimate = facts.head() + facts.costs.iter().map(|c| c.total()).sum::<Tokens>();
        errors.push(f64::from(estimate) / f64::from(truth) - 1.0);
        measure.learn(&key, &measure.sample(&key, &talk, &View::default(), known), truth);
        known = Some(Known { messages: talk.body.len(), tokens: truth });
    }
    errors.split_off(REPLIES.min(errors.len()))
}

#[test]
fn after_three_replies_estimates_err_high_and_by_little() {
    let data = data();
    let requests = requests(60_000, 48);
    for (template, vocabulary) in at_hand(&data, &PAIRS, |(template, vocabulary)| (*template, *vocabulary)) {
        let counter = counter(&data, template, vocabulary);
        // The other half was what constants were fitted to.
        let judged = requests.iter().skip(1).step_by(2);
        let errors: Vec<f64> = judged.flat_map(|(_, request)| replay(request, &counter)).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let (lowest, highest) = errors.iter().fold((0.0, 0.0), |(a, b): (f64, f64), e| (a.min(*e), b.max(*e)));
        eprintln!(
            "{template}, {vocabulary}: {} prompts, {:.2}% high on average, {:.1}% to {:+.1}%",
            errors.len(),
            mean * 100.0,
            lowest * 100.0,
            highest * 100.0
        );
        assert!(errors.len() > at_least(&data, 50, 10), "{template}: {} prompts", errors.len());
        assert!(mean.abs() <= 0.05 && lowest >= -0.02, "{template}: {mean} on average, {lowest} at least");
    }
}
