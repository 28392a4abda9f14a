//! The name that everything measured of a model is kept under.

use std::fmt;

/// A model of one upstream. Two servers may serve different models under one name, so a name alone is never enough: what is
/// believed of token counts is kept under this key, and under nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelKey(String);

impl ModelKey {
    /// The key of this model on this upstream.
    pub fn new(upstream: &str, model: &str) -> ModelKey {
        ModelKey(format!("{upstream}/{model}"))
    }

    /// The key as text, such as `ollama/qwen3:4b`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::edit::View;
    use crate::measure::Measure;
    use crate::wire::openai_chat;

    /// What one server's replies teach is believed of its model, and not of the same name on another server.
    #[test]
    fn beliefs_are_kept_by_server_and_model() {
        let words = "The quick brown fox jumps over the lazy dog. ".repeat(60);
        let body = serde_json::json!({"model": "m", "messages": [{"role": "user", "content": words}]}).to_string();
        let talk = openai_chat::parse(&body.into()).unwrap().conversation;
        let (measure, view) = (Measure::default(), View::default());
        let (taught, other) = (ModelKey::new("a", "m"), ModelKey::new("b", "m"));
        let cost = |key: &ModelKey| measure.costs(key, &talk)[0].total();
        let before = cost(&taught);
        assert_eq!(cost(&other), before);
        for _ in 0..4 {
            let sample = measure.sample(&taught, &talk, &view, None);
            measure.learn(&taught, &sample, before * 2);
        }
        assert!(cost(&taught) > before, "{} and {before}", cost(&taught));
        assert_eq!(cost(&other), before);
    }
}
