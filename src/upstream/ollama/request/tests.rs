//! Tests of the Ollama request translation, field by field.
use super::*;
use serde_json::Value;

fn asked(request: &str, num_ctx: Option<u32>) -> Result<Asked, Refused> {
    translate(&Bytes::from(request.to_owned()), num_ctx, &Effort::Any)
}

fn whole(request: &str, num_ctx: Option<u32>) -> String {
    let pieces: Vec<Bytes> = asked(request, num_ctx).unwrap().body.sending().collect();
    String::from_utf8(pieces.concat()).unwrap()
}

fn translated(request: &Value) -> Value {
    serde_json::from_str(&whole(&request.to_string(), None)).unwrap()
}

/// One message as Ollama gets it, after a call that it may answer.
fn message(message: Value) -> Value {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
    translated(&json!({"model": "m", "messages": [call, message]}))["messages"][1].clone()
}

#[test]
fn a_plain_request_says_nothing_that_the_client_did_not() {
    let out = translated(&json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}));
    let want =
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": false, "truncate": false});
    assert_eq!(out, want);
}

/// An effort that the model has no word for is said with fewer words. That no thoughts are wanted is always said.
#[test]
fn an_effort_is_said_as_far_as_the_model_has_it() {
    let think = |request: &str, effort: &Effort| {
        let asked = translate(&Bytes::from(request.to_owned()), None, effort).unwrap();
        let body: Value = serde_json::from_slice(&asked.body.sending().collect::<Vec<_>>().concat()).unwrap();
        (body.get("think").cloned(), asked.changed)
    };
    let low = Effort::Among(vec!["low"]);
    let high = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"reasoning_effort":"high"}"#;
    let own = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low","think":"high"}"#;
    for request in [high, own] {
        assert_eq!(think(request, &Effort::Any), (Some(json!("high")), false));
        assert_eq!(think(request, &low), (Some(json!("low")), true));
        assert_eq!(think(request, &Effort::OnOff), (Some(json!(true)), true));
        assert_eq!(think(request, &Effort::Unsaid), (None, true));
    }
    let on = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"think":true}"#;
    assert_eq!(think(on, &Effort::OnOff), (Some(json!(true)), false));
    assert_eq!(think(on, &Effort::Unsaid), (None, true));
    for none in [
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"reasoning_effort":"none"}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"think":false}"#,
    ] {
        assert_eq!(think(none, &Effort::Unsaid), (Some(json!(false)), false));
    }
}

#[test]
fn texts_are_spelled_alike_however_the_client_spells_them() {
    for content in [
        r#""""#,
        r#""plain""#,
        r#""\n\t\r\b\f\"\\""#,
        r#""a\/b""#,
        r#""caf\u00e9 \u0001 \u000A""#,
        r#""\ud83d\ude00""#,
        r#""\\u00e9\\""#,
        "\"\u{e9}\u{7f} \u{1f600}\\n\"",
        &format!("\"{}\"", "long \\n".repeat(200)),
    ] {
        let text: String = serde_json::from_str(content).unwrap();
        let request = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
        let out = whole(&request, None);
        let want =
            json!({"model": "m", "messages": [{"role": "user", "content": text}], "stream": false, "truncate": false});
        assert_eq!(out, want.to_string());
    }
}

#[test]
fn messages_one_by_one() {
    let png = "data:image/png;base64,iVBORw0=";
    let cases = [
        (json!({"role": "developer", "content": "s"}), json!({"role": "system", "content": "s"})),
        (
            json!({"role": "user", "name": "bob", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]}),
            json!({"role": "user", "content": "a\nb\n"}),
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": png}}]}),
            json!({"role": "user", "content": "see", "images": ["iVBORw0="]}),
        ),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": "DATA:;base64,QQ=="}]}),
            json!({"role": "user", "content": "", "images": ["QQ=="]}),
        ),
        (
            json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]}),
            json!({"role": "user", "content": "", "images": ["UklGRg=="]}),
        ),
        (json!({"role": "assistant", "content": null}), json!({"role": "assistant", "content": ""})),
        (
            json!({"role": "assistant", "content": "x", "reasoning_content": "hm"}),
            json!({"role": "assistant", "content": "x", "thinking": "hm"}),
        ),
        (
            json!({"role": "assistant", "content": "", "reasoning": "hm"}),
            json!({"role": "assistant", "content": "", "thinking": "hm"}),
        ),
        (
            json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
            json!({"role": "assistant", "content": "no"}),
        ),
        (
            json!({"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "out"}]}),
            json!({"role": "tool", "content": "out", "tool_name": "ls", "tool_call_id": "a"}),
        ),
        (
            json!({"role": "tool", "tool_call_id": "a", "name": "dir", "content": "out"}),
            json!({"role": "tool", "content": "out", "tool_name": "dir", "tool_call_id": "a"}),
        ),
        (
            json!({"role": "tool", "tool_call_id": "unknown", "content": "out"}),
            json!({"role": "tool", "content": "out", "tool_call_id": "unknown"}),
        ),
        (
            json!({"role": "function", "name": "dir", "content": "out"}),
            json!({"role": "tool", "content": "out", "tool_name": "dir"}),
        ),
        (
            json!({"role": "assistant", "content": null, "function_call": {"name": "dir", "arguments": "{\"a\":1}"}}),
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"function": {"index": 0, "name": "dir", "arguments": {"a": 1}}}]}),
        ),
    ];
    for (given, want) in cases {
        assert_eq!(message(given.clone()), want, "{given}");
    }
}

#[test]
fn a_result_is_named_after_the_nearest_call_of_its_id() {
    let call = |name: &str| {
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": name, "arguments": "{}"}}]})
    };
    let result = json!({"role": "tool", "tool_call_id": "call_0", "content": ""});
    let out = translated(&json!({"model": "m", "messages": [call("first"), result, call("second"), result]}));
    assert_eq!(out["messages"][1]["tool_name"], "first");
    assert_eq!(out["messages"][3]["tool_name"], "second");
}

#[test]
fn half_a_surrogate_pair_loses_itself_alone() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a\ud83d\n\u00e9"}]}"#;
    let out: Value = serde_json::from_str(&whole(body, None)).unwrap();
    let content = out["messages"][0]["content"].as_str().unwrap();
    assert!(content.starts_with("a\u{fffd}") && content.ends_with("\n\u{e9}"), "{content:?}");
}

#[test]
fn arguments_become_an_object_and_keep_order_and_spelling() {
    let cases = [
        (r#""{\"b\": 1.0, \"a\":1e400}""#, r#"{"b": 1.0, "a":1e400}"#),
        (r#""  {}\n""#, "{}"),
        (r#""""#, "{}"),
        (r#"{"z":0.70}"#, r#"{"z":0.70}"#),
        (r#""{\"cut\": \"of""#, r#"{"_unparsed":"{\"cut\": \"of"}"#),
        (r#""[1]""#, r#"{"_unparsed":"[1]"}"#),
    ];
    for (given, want) in cases {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":{given}}}}}]}}]}}"#
        );
        let out = whole(&body, None);
        let want = format!(r#""name":"f","arguments":{want}"#);
        assert!(out.contains(&want), "{given}: {out}");
    }
}

#[test]
fn fields_of_the_request() {
    let cases = [
        (json!({"max_tokens": 5}), json!({"options": {"num_predict": 5}})),
        (json!({"max_tokens": 5, "max_completion_tokens": 7}), json!({"options": {"num_predict": 7}})),
        (json!({"max_tokens": null, "temperature": null}), json!({})),
        (
            json!({"temperature": 0, "top_p": 0.5, "seed": 1, "frequency_penalty": 1, "presence_penalty": 2, "top_k": 3,
                   "min_p": 0.1, "repeat_penalty": 1.1}),
            json!({"options": {"temperature": 0, "top_p": 0.5, "seed": 1, "frequency_penalty": 1, "presence_penalty": 2,
                   "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1}}),
        ),
        (json!({"stop": "a"}), json!({"options": {"stop": ["a"]}})),
        (json!({"stop": ["a", "b"]}), json!({"options": {"stop": ["a", "b"]}})),
        (
            json!({"options": {"num_thread": 2, "num_predict": 9}, "max_tokens": 5}),
            json!({"options": {"num_thread": 2, "num_predict": 5}}),
        ),
        (json!({"response_format": {"type": "json_object"}}), json!({"format": "json"})),
        (json!({"response_format": {"type": "text"}}), json!({})),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}),
            json!({"format": {"type": "object"}}),
        ),
        (json!({"reasoning_effort": "none"}), json!({"think": false})),
        (json!({"reasoning_effort": "minimal"}), json!({"think": "low"})),
        (json!({"reasoning": {"effort": "xhigh"}}), json!({"think": "max"})),
        (json!({"think": true, "reasoning_effort": "low"}), json!({"think": true})),
        (json!({"keep_alive": "10m"}), json!({"keep_alive": "10m"})),
        (json!({"logprobs": true, "top_logprobs": 3}), json!({"logprobs": true, "top_logprobs": 3})),
        (json!({"tools": [{"a": 1}], "tool_choice": "auto"}), json!({"tools": [{"a": 1}]})),
        (json!({"tools": [{"a": 1}], "tool_choice": "none"}), json!({})),
        (json!({"functions": [{"name": "f"}]}), json!({"tools": [{"type": "function", "function": {"name": "f"}}]})),
        // No word for these.
        (
            json!({"n": 2, "logit_bias": {"1": 2}, "user": "u", "store": true, "metadata": {}, "shift": false}),
            json!({}),
        ),
    ];
    for (extra, want) in cases {
        let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let mut expected =
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": false, "truncate": false});
        let add = |to: &mut Value, from: &Value| to.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
        add(&mut request, &extra);
        add(&mut expected, &want);
        assert_eq!(translated(&request), expected, "{extra}");
    }
}

#[test]
fn numbers_keep_their_spelling_and_the_window_wins() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.70,"seed":1e3,"options":{"num_ctx":1,"top_k":4.0}}"#;
    let out = whole(body, Some(8192));
    assert!(out.contains(r#""options":{"num_ctx":8192,"top_k":4.0,"temperature":0.70,"seed":1e3}"#), "{out}");
}

#[test]
fn the_reply_that_is_wanted() {
    let ask = |extra: &str| {
        asked(&format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{extra}}}"#), None).unwrap()
    };
    assert!(!ask("").reply.stream);
    let streamed = ask(r#","stream":true,"stream_options":{"include_usage":true}"#);
    assert!(streamed.reply.stream && streamed.reply.include_usage);
    assert!(!ask(r#","stream":true,"stream_options":null"#).reply.include_usage);
}

#[test]
fn what_cannot_be_said_is_refused_in_openais_shape() {
    let image = |url: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        )
    };
    let cases = [
        ("[]".to_owned(), "JSON object"),
        (r#"{"messages":[]}"#.to_owned(), "no model"),
        (r#"{"model":"m"}"#.to_owned(), "no messages"),
        (r#"{"model":"m","messages":[1]}"#.to_owned(), "message 0"),
        (r#"{"model":"m","messages":[{"content":"x"}]}"#.to_owned(), "no role"),
        (r#"{"model":"m","messages":[{"role":"user","content":7}]}"#.to_owned(), "neither a string nor an array"),
        (r#"{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{}}]}]}"#.to_owned(), "`file`"),
        (image("https://example.org/a.png"), "fetches no images"),
        (image("data:image/png,raw"), "fetches no images"),
    ];
    for (body, words) in cases {
        let refused = asked(&body, None).unwrap_err();
        assert!(refused.0.contains(words), "{body}: {}", refused.0);
        let shape: Value = serde_json::from_str(&refused.body()).unwrap();
        assert_eq!(shape["error"]["type"], "invalid_request_error");
        assert_eq!(shape["error"]["message"], refused.0.as_str());
    }
}

/// Requests that real clients sent: none loses a message, and what is refused is
/// refused for a part that Ollama has no word for.
#[test]
fn recorded_requests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places =
        ["../shared/data", "../../shared/data", "tests/data/excerpts"].iter().map(|place| root.join(place));
    let data = places.find(|place| place.is_dir()).expect("tests/data/excerpts is in the repository");
    let least = if data.ends_with("excerpts") { 4 } else { 10 };
    let mut translated = 0;
    for file in std::fs::read_dir(data.join("requests")).unwrap() {
        let recorded: Value = serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap();
        for exchange in recorded["exchanges"].as_array().unwrap() {
            let request = &exchange["request"];
            let Some(messages) = request["messages"].as_array() else { continue };
            match asked(&request.to_string(), None) {
                Ok(asked) => {
                    assert_eq!(asked.reply.stream, request["stream"] == true);
                    let body: Value =
                        serde_json::from_slice(&asked.body.sending().collect::<Vec<_>>().concat()).unwrap();
                    assert_eq!(body["messages"].as_array().unwrap().len(), messages.len(), "{}", recorded["id"]);
                    translated += 1;
                }
                Err(refused) => {
                    let known = ["of type `", "not base64"].iter().any(|words| refused.0.contains(words));
                    assert!(known, "{}: {}", recorded["id"], refused.0);
                }
            }
        }
    }
    assert!(translated > least, "{translated}");
}
