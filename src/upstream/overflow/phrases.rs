//! Pure: the words by which servers say that a prompt does not fit, and those that only sound like it.
//!
//! `<p>` stands for the prompt's tokens, `<w>` for the window's; `<min>` is a prompt that is at least as long.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};

use super::Overflow;

/// Codes and types that mean overflow by themselves.
pub(super) fn is_overflow_code(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    ["exceed_context_size_error", "context_length_exceeded", "model_context_window_exceeded", "context_window_exceeded"]
        .contains(&code.as_str())
}

/// Codes and types of other errors that may speak of too many tokens.
pub(super) fn is_other_code(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    ["rate_limit", "insufficient_quota", "request_too_large", "string_above_max_length", "overloaded"]
        .iter()
        .any(|other| code.contains(other))
}

/// Texts of other errors: looked for first.
pub(super) fn is_other(text: &str) -> bool {
    static OTHER: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"rate[ _-]?limit|tokens per (minute|day)|\((tpm|tpd|rpm)\)|insufficient_quota|quota exceeded|image exceeds\
            |request_too_large|payload too large|string_above_max_length|invalid 'user'.*string too long\
            |supports at most [\d,]+ (completion|output) tokens",
        )
    });
    OTHER.is_match(text)
}

/// llama-server's words where slots share one pool and together filled it; LM Studio repeats them. They stand alone: a server
/// that adds a number to them means the prompt.
pub(super) fn is_shared_pool(text: &str) -> bool {
    let words = text.trim().trim_end_matches('.').to_ascii_lowercase();
    let words = words.strip_prefix("error: ").unwrap_or(&words);
    words == "context size has been exceeded"
}

/// Whole sentences of servers that say them with other statuses than 400 and that lack one of the numbers: text-generation-webui,
/// and TabbyAPI's of its pages.
pub(super) fn is_shape(text: &str) -> bool {
    static SHAPES: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"^(this model maximum context length is # tokens|job requires # pages|the number of tokens to keep from the initial prompt is greater than the context length)",
        )
    });
    SHAPES.is_match(text.trim_start())
}

/// The words by which [`find`] knows it.
pub(super) fn evidence(text: &str) -> Option<&str> {
    PHRASES.iter().find_map(|phrase| phrase.find(text)).map(|found| found.as_str())
}

static PHRASES: LazyLock<Vec<Regex>> = LazyLock::new(|| TABLE.iter().map(|words| pattern(words)).collect());

/// The first phrase that the text holds, with the numbers it gives.
pub(super) fn find(text: &str) -> Option<Overflow> {
    PHRASES.iter().find_map(|phrase| phrase.captures(text)).map(|found| numbers(&found))
}

/// `#` in a phrase is a number. Phrases with numbers come before those without, longer before shorter.
const TABLE: &[&str] = &[
    // llama-server: chat, then inputs that cannot be split, then embeddings.
    r"request \((?<p>#) tokens\) exceeds the available context size \((?<w>#) tokens\)",
    r"input \((?<p>#) tokens\) is larger than the max context size \((?<w>#) tokens\)",
    r"input \((?<p>#) tokens\) is too large to process",
    // Ollama: MLX, and the runner of 2025.
    r"input length \((?<p>#) tokens\) exceeds the (model's )?(maximum )?context length \((?<w>#) tokens\)",
    // vLLM, one a year.
    r"maximum context length is (?<w>#) tokens\b.{0,80}?your request has (?<p>#) input tokens",
    r"maximum context length is (?<w>#) tokens\b.{0,120}?prompt contains at least (?<min>#) input tokens",
    r"you passed (?<min>#) input tokens\b.{0,120}?context length is only (?<w>#)",
    r"you passed # input characters\b.{0,120}?context length is only (?<w>#)",
    // OpenAI, and all who copy its words.
    r"maximum context length is (?<w>#) tokens\b.{0,80}?requested (about )?# tokens \((?<p>#) (in the messages|in your prompt|of text input)",
    r"maximum context length is (?<w>#) tokens\b.{0,80}?requested about (?<p>#) tokens",
    r"maximum context length is (?<w>#) tokens\b.{0,80}?your (messages|prompt|input) resulted in (?<p>#) tokens",
    r"configured limit of (?<w>#) tokens\b.{0,80}?resulted in (?<p>#) tokens",
    // SGLang.
    r"maximum context length of (?<w>#) tokens\b.{0,120}?(?<p>#) tokens from the input",
    r"the input \((?<p>#) tokens\) is longer than the model's context length \((?<w>#) tokens\)",
    // LM Studio: what it was to keep is the least the prompt can be.
    r"n_keep: (?<min>#) >= n_ctx: (?<w>#)",
    r"n_keep \((?<min>#)\) >= n_ctx \((?<w>#)\)",
    r"trying to keep the first (?<min>#) tokens\b.{0,120}?context length of only (?<w>#)",
    // TabbyAPI, llama-cpp-python, TGI.
    r"request length (?<p>#)( \+ #)? is greater than max_seq_len (?<w>#)",
    r"requested tokens \((?<p>#)\) exceed context window of (?<w>#)",
    r"tokens \+ `max_new_tokens` must be <= (?<w>#)\. given: (?<p>#) `?inputs",
    // Anthropic, Gemini, Bedrock, Mistral.
    r"prompt is too long: (?<p>#) tokens > (?<w>#)",
    r"exceed context limit: (?<p>#) \+ # > (?<w>#)",
    r"input token count \((?<p>#)\) exceeds the maximum number of tokens allowed \((?<w>#)\)",
    r"max input tokens: (?<w>#), request input token count: (?<p>#)",
    r"prompt contains (?<p>#) tokens\b.{0,60}?too large for model with (?<w>#) maximum context",
    // xAI, Cerebras, Copilot, Kimi, DashScope, Poolside.
    r"maximum prompt length is (?<w>#) but the request contains (?<p>#)",
    r"current length is (?<p>#) while limit is (?<w>#)",
    r"prompt token count of (?<p>#) exceeds the limit of (?<w>#)",
    r"exceeded model token limit: (?<w>#) \(requested: (?<p>#)\)",
    r"range of input length should be \[#, (?<w>#)\]",
    r"input length (?<p>#) exceeds the maximum allowed input length of (?<w>#)",
    // One number, in words that several servers share.
    r"maximum context (length|limit) (is|of) (?<w>#)",
    r"context length is only (?<w>#)",
    r"maximum prompt length is (?<w>#)",
    r"exceed context window of (?<w>#)",
    r"greater than max_seq_len (?<w>#)",
    r"must be <= (?<w>#)\b.{0,40}`?inputs",
    r"`inputs` tokens \+ `max_new_tokens` must be",
    // None.
    r"exceeds the available context size",
    r"context size has been exceeded",
    r"exceed_context_size_error|context[_ ]length[_ ]exceeded|model_context_window_exceeded|contextwindowexceedederror",
    r"prompt (is )?too long",
    r"longer than the (model's )?(maximum )?context length",
    r"input length exceeds (the )?(maximum |available )?context (length|size)",
    r"exceeds the (model's )?(maximum )?context (length|window)",
    r"exceeds the context window",
    r"greater than the context length",
    r"exceed context limit",
    r"context window exceeds limit",
    r"exceeds the maximum number of tokens allowed",
    r"input tokens exceed the configured limit",
    r"too large for model with # maximum context",
    r"maximum input length is .{0,40}tokens",
    r"input is too long for requested model",
    r"too many input tokens",
    r"reduce the length of the (messages|input|prompt)",
    r"job requires .{0,40}pages",
];

/// A number as servers write it: `9000`, `9,000`, `9_000`. A comma at its end belongs to the sentence.
const NUMBER: &str = r"\d[\d,_]*";

fn pattern(words: &str) -> Regex {
    RegexBuilder::new(&words.replace('#', NUMBER))
        .case_insensitive(true)
        .dot_matches_new_line(true)
        .build()
        .expect("the table is tested row by row")
}

fn numbers(found: &Captures<'_>) -> Overflow {
    let number = |name: &str| {
        let text = found.name(name)?.as_str();
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok().filter(|n| *n > 0)
    };
    let at_least = number("min");
    Overflow {
        prompt: number("p").or(at_least),
        prompt_is_lower_bound: at_least.is_some(),
        window: number("w"),
        ..Overflow::default()
    }
}
