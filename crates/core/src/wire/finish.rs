//! Why a reply ended, in the words of OpenAI's API. Servers and gateways have others for the same ends.

use serde_json::Value;

/// A finish reason that says something, in the usual word: some servers send an empty one with each chunk.
pub fn finish_of(choice: &Value) -> Option<&str> {
    choice.get("finish_reason")?.as_str().filter(|reason| !reason.is_empty()).map(usual)
}

/// The usual word for a finish reason; one that nobody knows stays.
///
/// Beside OpenAI's own: Anthropic's (`end_turn`, `max_tokens`, `tool_use`, `refusal`), Gemini's (`STOP`, `MAX_TOKENS`, `SAFETY`…),
/// Mistral's (`model_length`), those of text-generation-inference (`eos_token`) and GLM's (`sensitive`).
pub fn usual(reason: &str) -> &str {
    let is = |words: &[&str]| words.iter().any(|word| reason.eq_ignore_ascii_case(word));
    match () {
        () if is(&["stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed", "finished"]) => {
            "stop"
        }
        () if is(&["length", "max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"]) => {
            "length"
        }
        () if is(&["tool_calls", "tool_call", "tool_use"]) => "tool_calls",
        () if is(&["content_filter", "content_filtered", "safety", "refusal", "sensitive", "recitation"]) => {
            "content_filter"
        }
        () if is(&["blocklist", "prohibited_content", "spii", "guardrail_intervened"]) => "content_filter",
        () => reason,
    }
}

/// Whether a finish reason says that the reply broke off: vLLM's and SGLang's `abort`, OpenRouter's `error`, GLM's `network_error`,
/// DeepSeek's `insufficient_system_resource`, and gateways' words for a time limit.
pub fn is_failure(finish: &str) -> bool {
    let words = [
        "error",
        "abort",
        "aborted",
        "network_error",
        "insufficient_system_resource",
        "timeout",
        "cancelled",
        "canceled",
    ];
    words.iter().any(|word| finish.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ends_have_one_word() {
        for (said, told) in [
            ("stop", "stop"),
            ("STOP", "stop"),
            ("end_turn", "stop"),
            ("MAX_TOKENS", "length"),
            ("model_length", "length"),
            ("tool_use", "tool_calls"),
            ("SAFETY", "content_filter"),
            ("function_call", "function_call"),
            ("model_context_window_exceeded", "model_context_window_exceeded"),
            ("something new", "something new"),
        ] {
            assert_eq!(finish_of(&json!({"finish_reason": said})), Some(told));
            assert!(!is_failure(told));
        }
        assert_eq!(finish_of(&json!({"finish_reason": ""})), None);
        assert!(["abort", "network_error", "CANCELLED", "insufficient_system_resource"].into_iter().all(is_failure));
    }
}
