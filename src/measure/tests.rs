//! How far estimates are off, against the counts of real vocabularies, where these are at hand (`shared/data`).

use super::count::tests::{counter, data, parsed, requests};
use super::near::{Kinship, Near};
use super::{Known, Measure, ModelKey};
use crate::conversation::Tokens;
use crate::conversation::edit::View;

/// Replies from which on estimates are judged.
const REPLIES: usize = 3;

/// Models as a server names them, with the template and the vocabulary that tell the truth about them; the last two are of
/// names that tell nothing.
const MODELS: [(&str, &str, &str); 7] = [
    ("llama3.1:8b", "meta-llama-Llama-3.1-8B-Instruct", "llama-bpe"),
    ("qwen2.5-coder", "Qwen-Qwen2.5-7B-Instruct", "qwen2"),
    ("gemma-4-31b", "google-gemma-4-31B-it", "gemma-4"),
    ("phi-3.5-mini", "Qwen-Qwen2.5-7B-Instruct", "phi-3"),
    ("deepseek-llm", "Qwen-Qwen2.5-7B-Instruct", "deepseek-llm"),
    ("my-model", "Qwen-Qwen2.5-7B-Instruct", "qwen2"),
    ("another", "Qwen-Qwen2.5-7B-Instruct", "phi-3"),
];

/// What is pinned of a model's estimates: shares of all.
struct Found {
    errors: Vec<f64>,
}

impl Found {
    fn share(&self, of: impl Fn(f64) -> bool) -> f64 {
        self.errors.iter().filter(|e| of(**e)).count() as f64 / self.errors.len() as f64
    }
}

#[test]
fn after_three_replies_estimates_are_near_and_seldom_low() {
    let Some(data) = data() else { return };
    let requests = requests(40_000, 36);
    for (at, (model, template, vocabulary)) in MODELS.into_iter().enumerate() {
        let counter = counter(&data, template, vocabulary);
        let key = ModelKey::new("", model);
        let mut found = Found { errors: Vec::new() };
        // Every second session with each: `benches/estimates.rs` has them all.
        for (_, request) in requests.iter().skip(at % 2).step_by(2) {
            let messages = request["messages"].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
            let measure = Measure::default();
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
                let (body, talk) = parsed(&prompt);
                let Ok((truth, _)) = counter.total(&body) else { continue };
                let facts = measure.facts(&key, &talk, &View::default(), known);
                let estimate = facts.head() + facts.costs.iter().map(|c| c.total()).sum::<Tokens>();
                if replies >= REPLIES {
                    found.errors.push(f64::from(estimate) / f64::from(truth) - 1.0);
                }
                replies += 1;
                measure.learn(&key, &measure.sample(&key, &talk, &View::default(), known), truth);
                known = Some(Known { messages: talk.body.len(), tokens: truth });
            }
        }
        let (low, high) = (found.share(|e| e < -0.01), found.share(|e| e > 0.05));
        let mean = found.errors.iter().map(|e| e.abs()).sum::<f64>() / found.errors.len() as f64;
        let worst = found.errors.iter().copied().fold((0.0, 0.0), |(a, b): (f64, f64), e| (a.min(e), b.max(e)));
        eprintln!(
            "{model}, {vocabulary}: {} prompts, off by {:.2}% on average, {:.1}% to {:+.1}%; {:.2}% of them more than 1% low, {:.1}% more than 5% high",
            found.errors.len(),
            mean * 100.0,
            worst.0 * 100.0,
            worst.1 * 100.0,
            low * 100.0,
            high * 100.0
        );
        assert!(found.errors.len() > 50, "{model}: {} prompts", found.errors.len());
        let most = if Near::of(model).1 == Kinship::Own { (0.015, 0.02, 0.006) } else { (0.03, 0.08, 0.016) };
        assert!(
            low <= most.0 && high <= most.1 && mean <= most.2,
            "{model}: {low} low, {high} high, {mean} on average"
        );
    }
}
