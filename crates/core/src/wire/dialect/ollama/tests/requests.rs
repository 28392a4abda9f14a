//! Settings, what is refused and where, and that no request panics.

use super::*;

#[test]
fn a_plain_chat_is_streamed_unless_it_says_otherwise() {
    let hi = json!([{"role": "user", "content": "hi"}]);
    let streamed = json!({"model": "m", "messages": hi, "stream": true, "stream_options": {"include_usage": true}});
    for stream in [json!({}), json!({"stream": null}), json!({"stream": true})] {
        let mut request = json!({"model": "m", "messages": hi, "stream_options": {"mine": 1}});
        request.as_object_mut().unwrap().extend(stream.as_object().unwrap().clone());
        assert_eq!(asked(request), streamed);
    }
    let whole = json!({"model": "m", "messages": hi, "stream": false, "stream_options": {}});
    assert_eq!(asked(whole), json!({"model": "m", "messages": hi, "stream": false}));
}

#[test]
fn loading_and_unloading_is_no_chat() {
    for request in [
        json!({"model": "m"}),
        json!({"model": "m", "messages": []}),
        json!({"model": "m", "messages": null, "keep_alive": 0}),
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "_debug_render_only": true}),
    ] {
        assert!(chat(request.to_string().as_bytes()).unwrap().is_none(), "{request}");
    }
    for fields in [
        json!({}),
        json!({"prompt": ""}),
        json!({"prompt": null, "keep_alive": 0, "images": []}),
        json!({"prompt": "", "system": "be brief"}),
        json!({"prompt": "[INST] hi", "raw": true}),
        json!({"prompt": "def f(", "suffix": "return 1"}),
        json!({"prompt": "hi", "template": "{{ .Prompt }}"}),
        json!({"prompt": "hi", "context": [1, 2, 3]}),
        json!({"prompt": "hi", "_debug_render_only": true}),
        json!({"prompt": "", "images": ["/9j/4AAQ"], "keep_alive": "0s"}),
    ] {
        let mut request = json!({"model": "m"});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert!(generate(request.to_string().as_bytes()).unwrap().is_none(), "{request}");
    }
}

#[test]
fn what_has_no_messages_is_known() {
    use Unsayable::{Loads, OllamaAlone, Unloads};
    for (fields, generate, is) in [
        (json!({}), true, Loads),
        (json!({"messages": [], "keep_alive": "5m"}), false, Loads),
        (json!({"messages": [], "keep_alive": 0}), false, Unloads),
        (json!({"prompt": "", "images": ["/9j/4AAQ"], "keep_alive": 0.0}), true, Unloads),
        (json!({"prompt": "hi", "keep_alive": 0, "raw": true}), true, OllamaAlone(vec!["raw"])),
        (json!({"_debug_render_only": true}), false, OllamaAlone(vec!["_debug_render_only"])),
    ] {
        assert_eq!(unsayable(fields.to_string().as_bytes(), generate), is, "{fields}");
    }
    // Where it says nothing, it is no field for other servers.
    let hi = json!([{"role": "user", "content": "hi"}]);
    let off = asked(json!({"model": "m", "messages": hi, "stream": false, "_debug_render_only": false}));
    assert_eq!(off, json!({"model": "m", "messages": hi, "stream": false}));
}

#[test]
fn a_prompt_is_a_message_of_the_user() {
    let all = json!({"model": "m", "prompt": "hi", "system": "be brief", "images": ["iVBORw0KGgo="], "raw": false,
        "suffix": "", "template": null, "context": [], "stream": false, "format": "json", "keep_alive": "5m",
        "messages": "what is this"});
    assert_eq!(
        generated(all),
        json!({"model": "m", "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ]},
        ], "response_format": {"type": "json_object"}, "keep_alive": "5m", "stream": false})
    );
    let image = generated(json!({"model": "m", "prompt": "", "images": ["/9j/4AAQ"]}));
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQ"}});
    assert_eq!(image["messages"], json!([{"role": "user", "content": [part]}]));
}

#[test]
fn litellm_generates() {
    let prompt = "### System:\nYou are a helper.\n\n### User:\nLook around…\n\n### Assistant:\nScripted answer 9…\n\n\n\n### User:\ngo on 0\n\n";
    let request =
        json!({"model": "m", "prompt": prompt, "options": {"num_predict": 300}, "stream": false, "images": []});
    assert_eq!(
        generated(request),
        json!({"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 300,
            "options": {"num_predict": 300}, "stream": false})
    );
}

#[test]
fn options_are_said_in_both_words() {
    let options = json!({"num_ctx": 8192, "num_predict": 64, "temperature": 0.5, "top_p": 0.9, "top_k": 20,
        "min_p": 0.05, "typical_p": 1.0, "seed": 7, "stop": ["a", "b"], "repeat_penalty": 1.1, "repeat_last_n": -1,
        "presence_penalty": 0.25, "frequency_penalty": 0.5});
    let mut expected = options.clone();
    let top = expected.as_object_mut().unwrap();
    top.shift_remove("num_ctx");
    top.shift_remove("num_predict");
    top.insert("max_tokens".into(), 64.into());
    top.insert("options".into(), options.clone());
    assert_eq!(rest(json!({"options": options, "temperature": 2})), expected);
    for (options, expected) in [
        (json!({"num_predict": -1}), json!({"options": {"num_predict": -1}})),
        (json!({"num_predict": 0}), json!({"options": {"num_predict": 0}})),
        (json!({"num_predict": 9.0}), json!({"options": {"num_predict": 9.0}, "max_tokens": 9})),
        (json!({"stop": "x"}), json!({"options": {"stop": "x"}, "stop": "x"})),
        (json!({"stop": ""}), json!({})),
        (json!({"seed": null, "top_k": 1}), json!({"options": {"top_k": 1}, "top_k": 1})),
        (json!({}), json!({})),
        (Value::Null, json!({})),
    ] {
        assert_eq!(rest(json!({"options": options})), expected, "{options}");
    }
}

#[test]
fn thinking_is_said_in_both_words() {
    for (think, kwargs) in [
        (json!(false), json!({"enable_thinking": false})),
        (json!(true), json!({"enable_thinking": true})),
        (json!("low"), json!({"enable_thinking": true, "reasoning_effort": "low"})),
        (json!("max"), json!({"enable_thinking": true, "reasoning_effort": "max"})),
    ] {
        assert_eq!(rest(json!({"think": think})), json!({"think": think, "chat_template_kwargs": kwargs}));
    }
    assert_eq!(rest(json!({"think": null})), json!({}));
    let own = rest(json!({"think": true, "chat_template_kwargs": {"enable_thinking": false, "x": 1}}));
    assert_eq!(own["chat_template_kwargs"], json!({"enable_thinking": false, "x": 1}));
}

#[test]
fn other_fields_are_kept_or_said_otherwise() {
    let kept = json!({"keep_alive": "5m", "logprobs": true, "top_logprobs": 3, "mine": {"z": 1, "a": 2}});
    let mut request = kept.clone();
    request.as_object_mut().unwrap().extend([
        ("truncate".to_owned(), true.into()),
        ("shift".to_owned(), false.into()),
        ("nothing".to_owned(), Value::Null),
    ]);
    assert_eq!(rest(request), kept);
    assert_eq!(rest(json!({"format": ""})), json!({}));
    assert_eq!(rest(json!({"format": "json"})), json!({"response_format": {"type": "json_object"}}));
    let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}});
    assert_eq!(rest(json!({"format": schema, "response_format": 1})), json!({ "response_format": format }));
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1}}});
    assert_eq!(rest(json!({"tools": [tool]})), json!({"tools": [tool]}));
    assert_eq!(rest(json!({"tools": [{"function": tool["function"]}]}))["tools"][0], tool);
    assert_eq!(rest(json!({"tools": []})), json!({}));
}

#[test]
fn half_a_surrogate_pair_is_read() {
    let heard = chat(br#"{"model":"m","messages":[{"role":"user","content":"a\ud83d"}]}"#);
    assert_eq!(said(heard)["messages"][0]["content"], "a\u{fffd}");
}

#[test]
fn each_wrong_shape_is_named() {
    let message = |message: Value| json!({ "messages": [message] });
    let chats = [
        (json!({"model": null}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": 1}), "model"),
        (json!({"messages": {}}), "messages"),
        (message(json!({"role": "user", "images": "x"})), "messages[0].images"),
        (message(json!({"role": "user", "images": ["x", {}]})), "messages[0].images[1]"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"tools": {}}), "tools"),
        (json!({"format": "yaml"}), "format"),
        (json!({"format": true}), "format"),
        (json!({"think": "hard"}), "think"),
        (json!({"think": 1}), "think"),
        (json!({"think": true, "chat_template_kwargs": 1}), "chat_template_kwargs"),
        (json!({"options": []}), "options"),
        (json!({"options": {"temperature": "hot"}}), "options.temperature"),
        (json!({"options": {"num_predict": "all"}}), "options.num_predict"),
        (json!({"options": {"stop": 1}}), "options.stop"),
        (json!({"options": {"stop": ["a", 1]}}), "options.stop"),
    ];
    let generates = [
        (json!({"model": null}), "model"),
        (json!({"prompt": 1}), "prompt"),
        (json!({"prompt": "hi", "system": []}), "system"),
        (json!({"prompt": "hi", "images": [{}]}), "images[0]"),
        (json!({"prompt": "", "images": "x"}), "images"),
        (json!({"prompt": "hi", "options": 1}), "options"),
    ];
    type Entry = fn(&[u8]) -> Result<Option<Heard>, WireError>;
    let chats = chats.into_iter().map(|case| (chat as Entry, json!([{"role": "user", "content": "hi"}]), case));
    let generates = generates.into_iter().map(|case| (generate as Entry, Value::Null, case));
    for (read, messages, (fields, param)) in chats.chain(generates) {
        let mut request = json!({"model": "m", "messages": messages});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let error = read(request.to_string().as_bytes()).err().expect(param);
        assert_eq!(error.param(), Some(param), "{request}");
        assert!(error.to_string().starts_with(&format!("`{param}` ")), "{error}");
    }
    for body in [&b"{"[..], b"[]", b"\xff", b""] {
        assert!(matches!(chat(body), Err(WireError::NotJson(_))));
        assert!(matches!(generate(body), Err(WireError::NotJson(_))));
    }
}

#[test]
fn no_input_makes_it_panic() {
    let seed = json!({"model": "m", "messages": [
        {"role": "user", "content": "hi é", "images": ["UklGRiQAAABXQVZF"]},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "thinking": "t",
            "tool_calls": [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_name": "f", "tool_call_id": "a", "content": "r"},
    ], "prompt": "p", "system": "s", "images": ["/9j/"], "options": {"num_predict": 1e300, "stop": ["x"]},
        "format": {"type": "object"}, "think": "low", "tools": [{"function": {"name": "f"}}], "stream": true})
    .to_string()
    .into_bytes();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let (mut heard, mut wrong) = (0, 0);
    for _ in 0..30_000 {
        let mut body = seed.clone();
        for _ in 0..=next(3) {
            let (at, length) = (next(body.len()), next(8));
            let new: &[u8] =
                [&b"null"[..], b"1", b"\"\"", b"{}", b"[]", b"\"", b",", b"\\ud800", b"-1e9", b"x", b""][next(11)];
            body.splice(at..(at + length).min(body.len()), new.iter().copied());
        }
        for out in [chat(&body), generate(&body)] {
            match out {
                Ok(Some(out)) => {
                    heard += 1;
                    assert!(serde_json::from_slice::<Value>(&out.chat).unwrap().is_object());
                }
                Ok(None) => {}
                Err(_) => wrong += 1,
            }
        }
    }
    assert!(heard > 100 && wrong > 100, "{heard} {wrong}");
}
