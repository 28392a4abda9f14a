//! Tests of the Ollama response translation, field by field.
use super::*;
use crate::upstream::event::Says;
use crate::upstream::sse;

fn head() -> Head {
    Head { id: "chatcmpl-x".into(), created: 7, call_id: || "callid123".into() }
}

/// The events of a stream of lines; the last `None` is `[DONE]`.
fn events(lines: &[&str], include_usage: bool) -> Vec<Option<Value>> {
    let mut chunks = Chunks::new(head(), include_usage);
    let mut out = Vec::new();
    lines.iter().for_each(|line| chunks.line(line.as_bytes(), &mut out));
    chunks.end(&mut out);
    // What they say is what their bytes say.
    let bytes = out.iter().flat_map(|event| event.raw.to_vec()).collect::<Vec<u8>>();
    let blocks = sse::Parser::default().push(&bytes).unwrap();
    let read = |b: &sse::Block| serde_json::from_slice::<Value>(b.data.as_ref().unwrap()).ok();
    let said = |event: &Event| match &event.says {
        Says::Chunk(value) => Some(value.clone()),
        _ => None,
    };
    let all: Vec<Option<Value>> = out.iter().map(said).collect();
    assert_eq!(all, blocks.iter().map(read).collect::<Vec<_>>());
    all
}

const THINK: &str = r#"{"model":"qwen3:8b","created_at":"x","message":{"role":"assistant","content":"","thinking":"Let"},"done":false}"#;
const TEXT: &str = r#"{"model":"qwen3:8b","message":{"role":"assistant","content":"Hi é"},"done":false}"#;
const CALL: &str = r#"{"model":"qwen3:8b","message":{"role":"assistant","content":"","tool_calls":[{"id":"call_ab","function":{"index":0,"name":"w","arguments":{"city": "Paris","n":1.0}}}]},"done":false}"#;
const CALL_WITHOUT_ID: &str = r#"{"model":"qwen3:8b","message":{"role":"assistant","tool_calls":[{"function":{"name":"v","arguments":{}}}]},"done":false}"#;
const DONE: &str = r#"{"model":"qwen3:8b","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":9,"load_duration":2000000,"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}"#;

/// What `CreateChatCompletionStreamResponse` requires.
fn assert_chunk(chunk: &Value) {
    assert_eq!((&chunk["id"], &chunk["object"]), (&json!("chatcmpl-x"), &json!("chat.completion.chunk")));
    assert_eq!((&chunk["created"], &chunk["model"]), (&json!(7), &json!("qwen3:8b")));
    for choice in chunk["choices"].as_array().unwrap() {
        assert_eq!(choice["index"], 0);
        assert!(choice["delta"].is_object() && choice.get("finish_reason").is_some());
    }
}

#[test]
fn a_stream_of_thoughts_text_and_calls() {
    let all = events(&[THINK, TEXT, CALL, CALL_WITHOUT_ID, DONE], true);
    assert_eq!(all.last(), Some(&None), "[DONE] is last");
    let chunks: Vec<&Value> = all.iter().flatten().collect();
    chunks.iter().for_each(|chunk| assert_chunk(chunk));
    let delta = |i: usize| chunks[i]["choices"][0]["delta"].clone();
    assert_eq!(delta(0), json!({"role": "assistant", "reasoning_content": "Let"}));
    assert_eq!(delta(1), json!({"content": "Hi é"}));
    assert_eq!(
        delta(2)["tool_calls"],
        json!([{"index": 0, "id": "call_ab", "type": "function",
                "function": {"name": "w", "arguments": "{\"city\": \"Paris\",\"n\":1.0}"}}])
    );
    assert_eq!(delta(3)["tool_calls"][0]["index"], 1);
    assert_eq!(delta(3)["tool_calls"][0]["id"], "callid123");
    assert_eq!((delta(4), &chunks[4]["choices"][0]["finish_reason"]), (json!({}), &json!("tool_calls")));
    assert_eq!(chunks[5]["choices"], json!([]));
    assert_eq!(chunks[5]["usage"], json!({"prompt_tokens": 26, "completion_tokens": 282, "total_tokens": 308}));
    let timings =
        json!({"prompt_n": 26, "prompt_ms": 342.546, "predicted_n": 282, "predicted_ms": 4535.599, "load_ms": 2.0});
    assert_eq!(chunks[5]["timings"], timings);
    assert_eq!(chunks.len(), 6);
}

#[test]
fn usage_comes_only_when_asked_for_and_only_when_known() {
    let last = |lines: &[&str], asked| events(lines, asked).into_iter().flatten().next_back().unwrap();
    let unasked = last(&[TEXT, DONE], false);
    assert_eq!((unasked.get("usage"), &unasked["timings"]["prompt_n"]), (None, &json!(26)));
    assert_eq!(unasked["choices"][0]["finish_reason"], "stop");
    let old = r#"{"model":"qwen3:8b","message":{"content":"x"},"done":true,"eval_count":3}"#;
    let unknown = last(&[old], true);
    assert_eq!((unknown.get("usage"), &unknown["timings"]), (None, &json!({"predicted_n": 3})));
}

#[test]
fn the_last_line_may_hold_everything() {
    let line = r#"{"model":"m","message":{"content":"a","tool_calls":[{"id":"c","function":{"name":"f","arguments":{}}}]},"done":true,"done_reason":"stop","prompt_eval_count":1}"#;
    let all = events(&[line], false);
    assert_eq!(all.len(), 3);
    assert_eq!(all[0].as_ref().unwrap()["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(all[1].as_ref().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    let cut = line.replace("\"stop\"", "\"length\"");
    assert_eq!(events(&[&cut], false)[1].as_ref().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_stream_that_fails_ends_with_an_error_and_without_done() {
    let nested = json!({"error": json!({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}).to_string()});
    let cases = [
        (vec![TEXT, r#"{"error":"model runner has crashed"}"#, DONE], "model runner has crashed", "api_error"),
        (vec![TEXT], "Ollama ended the reply before it was done", "api_error"),
        (vec![], "Ollama ended the reply before it was done", "api_error"),
        (vec![TEXT, "not json"], "Ollama sent a line that is not JSON: not json", "api_error"),
        (vec![nested.to_string().leak() as &str], "Context size has been exceeded.", "server_error"),
    ];
    for (lines, message, kind) in cases {
        let all = events(&lines, true);
        let last = all.last().unwrap().as_ref().expect("no [DONE]");
        assert_eq!((&last["error"]["message"], &last["error"]["type"]), (&json!(message), &json!(kind)));
    }
}

#[test]
fn logprobs_go_into_their_choice() {
    let line = r#"{"model":"m","message":{"content":"a"},"done":false,"logprobs":[{"token":"a","logprob":-0.1,"bytes":[97]}]}"#;
    let first = events(&[line, DONE], false).remove(0).unwrap();
    assert_eq!(first["choices"][0]["logprobs"]["content"][0]["token"], "a");
}

fn whole(body: &str) -> Value {
    match completion(head(), body.as_bytes()).unwrap() {
        Completion::Reply(reply) => serde_json::from_str(&reply).unwrap(),
        Completion::Error(error) => panic!("{error}"),
    }
}

/// Required by `CreateChatCompletionResponse`: choices (finish_reason, index, message with role, content, refusal,
/// and logprobs), created, id, model, object; by `CompletionUsage`: its three counts.
#[test]
fn a_whole_reply() {
    let body = DONE.replace(r#""content":"""#, r#""content":"Hi","thinking":"hm""#);
    let want = json!({
        "id": "chatcmpl-x", "object": "chat.completion", "created": 7, "model": "qwen3:8b",
        "system_fingerprint": "fp_ollama",
        "choices": [{"index": 0, "finish_reason": "stop", "logprobs": null, "message":
            {"role": "assistant", "content": "Hi", "refusal": null, "reasoning_content": "hm"}}],
        "usage": {"prompt_tokens": 26, "completion_tokens": 282, "total_tokens": 308},
        "timings": {"prompt_n": 26, "prompt_ms": 342.546, "predicted_n": 282, "predicted_ms": 4535.599, "load_ms": 2.0}
    });
    assert_eq!(whole(&body), want);

    let called = CALL.replace(r#""done":false"#, r#""done":true,"done_reason":"stop","eval_count":4"#);
    let reply = whole(&called);
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(reply["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(
        reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
        r#"{"city": "Paris","n":1.0}"#
    );
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    assert_eq!(reply["timings"], json!({"predicted_n": 4}));
}

#[test]
fn a_whole_reply_that_is_none() {
    assert!(matches!(completion(head(), br#"{"error":"x"}"#), Ok(Completion::Error(e)) if e.contains("\"x\"")));
    assert!(completion(head(), b"<html>").is_err());
    assert!(completion(head(), br#"{"message":{"content":""},"done":false}"#).is_err(), "not done");
    assert_eq!(whole(TEXT)["choices"][0]["finish_reason"], Value::Null, "it broke off behind its words");
    assert_eq!(whole(r#"{"message":null,"done":true,"done_reason":"load"}"#)["choices"][0]["message"]["content"], "");
}

#[test]
fn errors_in_openais_shape() {
    let inner = json!({"error": {"code": 400, "message": "request (9000 tokens) exceeds", "type": "exceed_context_size_error",
        "n_prompt_tokens": 9000, "n_ctx": 4096}});
    let cases = [
        // Ollama 0.13, as captured.
        (
            400,
            json!({"error": "the input length exceeds the context length"}).to_string(),
            json!({"message": "the input length exceeds the context length", "type": "invalid_request_error",
                   "param": null, "code": null}),
        ),
        (
            404,
            json!({"error": "model 'x' not found"}).to_string(),
            json!({"message": "model 'x' not found", "type": "not_found_error", "param": null, "code": null}),
        ),
        (
            400,
            json!({ "error": inner.to_string() }).to_string(),
            json!({"message": "request (9000 tokens) exceeds", "type": "exceed_context_size_error", "param": null, "code": 400,
                "n_prompt_tokens": 9000, "n_ctx": 4096}),
        ),
        (
            503,
            "server busy".to_owned(),
            json!({"message": "server busy", "type": "api_error", "param": null, "code": null}),
        ),
        (
            500,
            json!({"error": "a \"quoted\" text"}).to_string(),
            json!({"message": "a \"quoted\" text", "type": "api_error", "param": null, "code": null}),
        ),
        (403, String::new(), json!({"message": "", "type": "authentication_error", "param": null, "code": null})),
    ];
    for (status, body, want) in cases {
        let out: Value = serde_json::from_str(&error(status, body.as_bytes())).unwrap();
        assert_eq!(out, json!({ "error": want }), "{body}");
    }
    let told = error(400, json!({ "error": inner.to_string() }).to_string().as_bytes());
    let overflow = crate::upstream::overflow::overflow(400, told.as_bytes()).unwrap();
    assert_eq!((overflow.prompt, overflow.window), (Some(9000), Some(4096)));
}

#[test]
fn a_value_of_another_type_is_the_requests_fault() {
    for (status, said, expect) in [
        (500, r#"{"error":"option \"temperature\" must be of type float32"}"#, 400),
        (500, r#"{"error":"llama runner process has terminated"}"#, 500),
        (404, r#"{"error":"option \"x\" must be of type array"}"#, 404),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(blamed(status, said.as_bytes()).as_u16(), expect, "{said}");
    }
}
