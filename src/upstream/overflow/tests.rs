//! Every row of the reference's table, as its server sends it.

use super::*;
use serde_json::json;

fn exact(prompt: u32, window: u32) -> Overflow {
    Overflow { prompt: Some(prompt), window: Some(window), ..Overflow::default() }
}

fn at_least(prompt: u32, window: u32) -> Overflow {
    Overflow { prompt: Some(prompt), prompt_is_lower_bound: true, window: Some(window), ..Overflow::default() }
}

fn window(window: u32) -> Overflow {
    Overflow { window: Some(window), ..Overflow::default() }
}

fn prompt(prompt: u32) -> Overflow {
    Overflow { prompt: Some(prompt), ..Overflow::default() }
}

const SOME: Overflow =
    Overflow { prompt: None, prompt_is_lower_bound: false, window: None, coded: false, shared_pool: false };

/// What the words alone say, whether a code says it too or not.
fn told(status: u16, body: &[u8]) -> Option<Overflow> {
    overflow(status, body).map(|o| Overflow { coded: false, ..o })
}

/// The texts of section 5, each tried in every envelope that errors come in.
fn texts() -> Vec<(&'static str, Overflow)> {
    vec![
        (
            "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            exact(9000, 4096),
        ),
        ("the request exceeds the available context size, try increasing it", SOME),
        ("Context size has been exceeded.", Overflow { shared_pool: true, ..SOME }),
        ("context size has been exceeded, 4096 is all there is", SOME),
        (
            "input (9000 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
            prompt(9000),
        ),
        ("input (9000 tokens) is larger than the max context size (4096 tokens). skipping", exact(9000, 4096)),
        (
            "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the context length in settings, or use a model with a longer context length",
            SOME,
        ),
        ("input length (9000 tokens) exceeds the model's maximum context length (4096 tokens)", exact(9000, 4096)),
        ("the input length exceeds the context length", SOME),
        ("prompt too long; exceeded max context length by 17 tokens", SOME),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 9500 tokens (9000 in the messages, 500 in the completion). Please reduce the length of the messages or completion.",
            exact(9000, 4096),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 4096 tokens and your request has 4000 input tokens (500 > 4096 - 4000).",
            exact(4000, 4096),
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 500 output tokens and your prompt contains at least 3597 input tokens, for a total of at least 4097 tokens. Please reduce the length of the input prompt.",
            at_least(3597, 4096),
        ),
        (
            "You passed 4097 input tokens and requested 500 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3596 tokens. Please reduce",
            at_least(4097, 4096),
        ),
        (
            "You passed 90000 input characters and requested 500 output tokens. However, the model's context length is only 4096 tokens, resulting in",
            window(4096),
        ),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length",
            SOME,
        ),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 9000 >= n_ctx: 4096). Try to load",
            at_least(9000, 4096),
        ),
        ("Cannot truncate prompt with n_keep (9000) >= n_ctx (4096)", at_least(9000, 4096)),
        (
            "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
            at_least(9000, 4096),
        ),
        ("The input (9000 tokens) is longer than the model's context length (4096 tokens).", exact(9000, 4096)),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 9500 tokens: 9000 tokens from the input messages and 500 tokens for the completion.",
            exact(9000, 4096),
        ),
        ("Request length 9000 + 500 is greater than max_seq_len 4096", exact(9000, 4096)),
        ("Request length 9000 is greater than max_seq_len 4096.", exact(9000, 4096)),
        ("Job requires 40 pages (only 16 available) and cannot be enqueued.", SOME),
        ("Requested tokens (9000) exceed context window of 4096", exact(9000, 4096)),
        ("This model's maximum context length is 4096 tokens. However, you requested 9500 tokens", window(4096)),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens and 500 `max_new_tokens`",
            exact(9000, 4096),
        ),
        ("This model maximum context length is 4096 tokens", window(4096)),
        (
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens.",
            exact(9000, 4096),
        ),
        (
            "This model’s maximum context length is 4,096 tokens. However, your messages resulted in 9,000 tokens. Please reduce the length of the messages.",
            exact(9000, 4096),
        ),
        (
            "Input tokens exceed the configured limit of 272,000 tokens. Your messages resulted in 300,123 tokens.",
            exact(300_123, 272_000),
        ),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", SOME),
        ("prompt is too long: 9000 tokens > 4096 maximum", exact(9000, 4096)),
        (
            "input length and `max_tokens` exceed context limit: 4000 + 500 > 4096, decrease input length or `max_tokens` and try again",
            exact(4000, 4096),
        ),
        ("The input token count (9000) exceeds the maximum number of tokens allowed (4096).", exact(9000, 4096)),
        ("Input is too long for requested model", SOME),
        ("Too many input tokens. Max input tokens: 4096, request input token count: 9000", exact(9000, 4096)),
        (
            "Prompt contains 9000 tokens and 0 draft tokens, too large for model with 4096 maximum context length",
            exact(9000, 4096),
        ),
        ("Please reduce the length of the messages or completion.", SOME),
        ("This model's maximum prompt length is 4096 but the request contains 9000 tokens", exact(9000, 4096)),
        (
            "This endpoint's maximum context length is 4096 tokens. However, you requested about 9000 tokens",
            exact(9000, 4096),
        ),
        (
            "This endpoint's maximum context length is 4096 tokens. However, you requested about 9000 tokens (8800 of text input, 200 in the output).",
            exact(8800, 4096),
        ),
        ("Current length is 9000 while limit is 4096", exact(9000, 4096)),
        ("prompt token count of 9000 exceeds the limit of 4096", exact(9000, 4096)),
        ("invalid params, context window exceeds limit", SOME),
        ("Your request exceeded model token limit: 4096 (requested: 9000)", exact(9000, 4096)),
        ("Range of input length should be [1, 4096]", window(4096)),
        ("Input length 9000 exceeds the maximum allowed input length of 4096 tokens.", exact(9000, 4096)),
        (
            "litellm.ContextWindowExceededError: OpenAIException - This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens.",
            exact(9000, 4096),
        ),
        ("litellm.BadRequestError: ContextWindowExceededError: no numbers here", SOME),
    ]
}

fn envelopes(text: &str) -> Vec<(u16, String)> {
    let nested = json!({"error": {"code": 400, "message": text, "type": "x"}}).to_string();
    vec![
        (
            400,
            json!({"error": {"message": text, "type": "invalid_request_error", "param": null, "code": null}})
                .to_string(),
        ),
        (400, json!({"error": text}).to_string()),
        (
            400,
            json!({"object": "error", "message": text, "type": "BadRequest", "param": null, "code": 400}).to_string(),
        ),
        (422, json!({"detail": text}).to_string()),
        (422, json!({"detail": [{"loc": ["body"], "msg": text, "input": "x"}]}).to_string()),
        (400, json!({"error": nested}).to_string()),
        (500, json!({"error": {"message": nested}}).to_string()),
        (400, json!({"type": "error", "error": {"type": "invalid_request_error", "message": text}}).to_string()),
        (200, format!("event: error\ndata: {}\n\n", json!({"error": {"message": text}}))),
        (200, format!(": ping\n\ndata: {{\"choices\":[]}}\n\ndata: {}\n\n", json!({"error": {"message": text}}))),
        (200, format!("event: error\r\ndata: {}", json!({"message": text}))),
        (200, json!({"error": text}).to_string()),
        (400, text.to_owned()),
    ]
}

#[test]
fn every_row_in_every_envelope() {
    for (text, want) in texts() {
        for (status, body) in envelopes(text) {
            // With other statuses than 400 and 413 words alone say nothing, unless they are a known sentence.
            let known = want.prompt.is_some() && want.window.is_some() || phrases::is_shape(text) || want.shared_pool;
            let nested_400 = body.contains("\\\"code\\\":400");
            let want = (matches!(status, 200 | 400 | 413) || known || nested_400).then_some(want);
            assert_eq!(overflow(status, body.as_bytes()), want, "{status} {body}");
        }
    }
}

#[test]
fn what_the_request_says_itself_is_no_word_of_the_server() {
    let said =
        |text: &str| json!({"error": {"message": text, "type": "invalid_request_error", "code": 400}}).to_string();
    let asked = |text: &str| json!({"messages": [{"role": "user", "content": "hi"}], "tool_choice": text}).to_string();
    let sentence = "This model's maximum context length is 64 tokens. However, you requested 900 tokens";
    for (answer, request, echo) in [
        (format!("Invalid tool_choice: {sentence}"), asked(sentence), true),
        // Parts of it, cut, respelled or put together.
        (format!("Invalid tool_choice: {sentence}"), asked("THIS model\u{2019}s  maximum\ncontext length is 64"), true),
        ("bad value `maximum context length is 64`".to_owned(), asked(sentence), true),
        (
            "prompt is too long: 900 tokens > 64 maximum".to_owned(),
            asked("x prompt is too long: 900 tokens > 64 maximum"),
            true,
        ),
        // A conversation that speaks of such things, and a real refusal.
        (sentence.to_owned(), asked("the maximum context length is what matters; 64 of them"), false),
        (
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5120 tokens."
                .to_owned(),
            asked(sentence),
            false,
        ),
        (sentence.to_owned(), asked("hi"), false),
    ] {
        let body = said(&answer);
        assert!(overflow(400, body.as_bytes()).is_some(), "{body}");
        assert_eq!(is_echo(400, body.as_bytes(), request.as_bytes()), echo, "{body} {request}");
    }
    // The server's own code is nobody's quotation; JSON inside of a text may be one.
    let inner =
        json!({"error": {"type": "exceed_context_size_error", "message": "no", "n_ctx": 64, "n_prompt_tokens": 900}});
    let request = asked(&inner.to_string());
    assert!(!is_echo(400, inner.to_string().as_bytes(), request.as_bytes()));
    assert!(is_echo(400, said(&inner.to_string()).as_bytes(), request.as_bytes()));
    assert!(!is_echo(400, said(&inner.to_string()).as_bytes(), asked("hi").as_bytes()));
}

#[test]
fn fields_and_codes_count_before_texts() {
    let fields = json!({"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}});
    assert_eq!(told(400, fields.to_string().as_bytes()), Some(exact(9000, 4096)));
    let in_ollama = json!({ "error": fields.to_string() });
    assert_eq!(told(400, in_ollama.to_string().as_bytes()), Some(exact(9000, 4096)));
    let on_v1 =
        json!({"error": {"message": fields.to_string(), "type": "invalid_request_error", "param": null, "code": null}});
    assert_eq!(told(400, on_v1.to_string().as_bytes()), Some(exact(9000, 4096)));
    let line =
        json!({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "no"}}});
    assert_eq!(told(200, format!("data: {line}\n\n").as_bytes()), Some(SOME));
    for stop in [
        json!({"stop_reason": "model_context_window_exceeded"}),
        json!({"choices": [{"finish_reason": "model_context_window_exceeded"}]}),
    ] {
        assert_eq!(told(200, stop.to_string().as_bytes()), Some(SOME));
    }
}

#[test]
fn what_only_sounds_like_it() {
    let long = "This model's maximum context length is 4096 tokens";
    let not = [
        (429, json!({"error": {"message": long}})),
        (413, json!({"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}})),
        (413, json!({"error": {"message": "Payload Too Large"}})),
        (
            413,
            json!({"error": {"message": "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce the length of the messages"}}),
        ),
        (
            400,
            json!({"error": {"message": "max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000."}}),
        ),
        (400, json!({"error": {"message": "Rate limit reached: too many tokens"}})),
        (400, json!({"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}})),
        (400, json!({"error": {"message": "image exceeds 5 MB maximum"}})),
        (
            400,
            json!({"error": {"message": "Invalid 'user': string too long. Expected a string with maximum length 64"}}),
        ),
        (500, json!({"error": {"message": "image input is not supported", "type": "server_error"}})),
        (400, json!({"error": {"message": "model 'x' not found"}})),
        // What the request says is not what the server says.
        (422, json!({"detail": [{"msg": "field required", "input": long}], "request": long})),
        (200, json!({"choices": [{"message": {"content": long}, "finish_reason": "stop"}]})),
        (200, json!({"message": {"role": "assistant", "content": long}, "done": true})),
        (404, json!({"error": long})),
    ];
    for (status, body) in not {
        assert_eq!(overflow(status, body.to_string().as_bytes()), None, "{status} {body}");
    }
    assert_eq!(overflow(200, long.as_bytes()), None);
    assert_eq!(overflow(400, b""), None);
    assert_eq!(overflow(500, b"\xff\xfe{"), None);
}

#[test]
fn no_number_and_no_depth_is_too_much() {
    let huge = json!({"error": "request (99999999999999 tokens) exceeds the available context size (4096 tokens)"});
    assert_eq!(told(400, huge.to_string().as_bytes()), Some(window(4096)));
    let mut nested = json!("prompt too long");
    for _ in 0..60 {
        nested = json!({ "error": nested });
    }
    assert_eq!(told(400, nested.to_string().as_bytes()), None);
}
