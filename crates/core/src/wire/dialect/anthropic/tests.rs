//! What requests become, what replies become; and that any split of a stream is the same message.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::said::{CallPart, Said};
use super::super::{Head, Heard};
use super::*;

fn heard(body: &Value) -> Heard {
    request(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn chat(body: &Value) -> Value {
    serde_json::from_slice(&heard(body).chat).unwrap()
}

fn asked(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 100, "messages": messages})
}

fn messages(of: Value) -> Value {
    chat(&asked(of))["messages"].clone()
}

fn refused(body: Value) -> (String, String) {
    match request(body.to_string().as_bytes()) {
        Err(e) => (e.param().unwrap_or("").to_owned(), e.to_string()),
        Ok(heard) => panic!("{body} became {:?}", heard.chat),
    }
}

/// A turn of Claude Code's: thoughts, text, two calls, results in another order, a reminder in the middle.
fn agent() -> Value {
    json!([
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nctx\n</system-reminder>"},
            {"type": "text", "text": "Look around.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_B", "name": "Bash", "input": {"command": "head notes.txt", "a": 1.0}},
            {"type": "tool_use", "id": "toolu_C", "name": "Read", "input": {}}]},
        {"role": "user", "content": [
            {"tool_use_id": "toolu_C", "type": "tool_result", "content": "unchanged"},
            {"tool_use_id": "toolu_B", "type": "tool_result", "is_error": false, "content": [{"type": "text", "text": "note 1"}, {"type": "text", "text": "note 2"}]},
            {"type": "text", "text": "go on"}]},
        {"role": "system", "content": "The task tools were not used."},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "zzz"}, {"type": "tool_use", "id": "toolu_D", "name": "Bash", "input": {"command": "ls"}}]},
        {"role": "user", "content": [{"tool_use_id": "toolu_D", "type": "tool_result", "content": "", "is_error": true}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ])
}

#[test]
fn an_agents_turns_in_the_words_of_chat_completions() {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let want = json!([
        {"role": "user", "content": "<system-reminder>\nctx\n</system-reminder>\nLook around."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [call("toolu_B", "Bash", r#"{"command":"head notes.txt","a":1.0}"#), call("toolu_C", "Read", "{}")]},
        {"role": "tool", "tool_call_id": "toolu_C", "content": "unchanged"},
        {"role": "tool", "tool_call_id": "toolu_B", "content": "note 1\nnote 2"},
        {"role": "user", "content": "go on\n<system-reminder>\nThe task tools were not used.\n</system-reminder>"},
        {"role": "assistant", "content": null, "tool_calls": [call("toolu_D", "Bash", r#"{"command":"ls"}"#)]},
        {"role": "tool", "tool_call_id": "toolu_D", "content": "Error: the call failed and said nothing."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ]);
    assert_eq!(messages(agent()), want);
}

#[test]
fn a_longer_history_begins_with_the_shorter() {
    let all = agent();
    let all = all.as_array().unwrap();
    // Up to each message of the user's that a reply follows.
    for end in [1, 4, 6, 8] {
        let (short, long) = (messages(all[..end].into()), messages(agent()));
        let short = short.as_array().unwrap();
        assert_eq!(short[..], long.as_array().unwrap()[..short.len()], "{end}");
    }
    // The mark of Anthropic's cache moves each turn.
    let mut unmarked = agent();
    unmarked[0]["content"][1].as_object_mut().unwrap().remove("cache_control");
    assert_eq!(messages(unmarked), messages(agent()));
}

#[test]
fn a_line_for_anthropics_billing_is_no_part_of_the_prompt() {
    let system = |system: Value| {
        let mut body = asked(json!([{"role": "user", "content": "hi"}]));
        body["system"] = system;
        chat(&body)["messages"][0].clone()
    };
    let billing =
        |cch: &str| format!("x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={cch};");
    let block = |text: &str| json!({"type": "text", "text": text});
    let want = json!({"role": "system", "content": "You are Claude Code.\nBe brief."});
    for cch in ["36ee5", "0aaa9"] {
        assert_eq!(system(json!([block(&billing(cch)), block("You are Claude Code."), block("Be brief.")])), want);
        assert_eq!(
            system(json!([block(&format!("{}\nYou are Claude Code.", billing(cch))), block("Be brief.")])),
            want
        );
        assert_eq!(system(json!(format!("{}\n\nYou are Claude Code.\nBe brief.", billing(cch)))), want);
    }
    // Only where it is the first thing said.
    let about = format!("What is this: {}", billing("36ee5"));
    assert_eq!(system(json!(about)), json!({"role": "system", "content": about}));
    assert_eq!(system(json!(billing("1")))["role"], "user");
    // A system message at the head of the messages joins it: templates fail on a second one.
    let mut body = asked(json!([{"role": "system", "content": "two"}, {"role": "user", "content": "hi"}]));
    assert_eq!(chat(&body)["messages"][0], json!({"role": "system", "content": "two"}));
    body["system"] = "one".into();
    assert_eq!(chat(&body)["messages"][0], json!({"role": "system", "content": "one\n\ntwo"}));
    assert_eq!(chat(&body)["messages"].as_array().unwrap().len(), 2);
}

#[test]
fn turns_of_one_role_are_one_turn() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let of = json!([user("a"), user("b"), {"role": "assistant", "content": [{"type": "text", "text": "x"}, call("1")]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "y"}, call("2")]}]);
    let out = messages(of);
    assert_eq!(out.as_array().unwrap().len(), 2, "{out}");
    assert_eq!(out[0]["content"], "a\nb");
    assert_eq!((&out[1]["content"], &out[1]["reasoning_content"]), (&json!("x\n\ny"), &json!("t")));
    assert_eq!(out[1]["tool_calls"].as_array().unwrap().len(), 2);
}

#[test]
fn images_and_documents() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}});
    let far = json!({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}});
    let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let out = messages(json!([{"role": "user", "content": [text("see"), image, far]}]));
    assert_eq!(out[0]["content"], json!([text("see"), url("data:image/png;base64,iVBO"), url("https://x/y.png")]));
    // A tool's image is shown by the user.
    let out = messages(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [text("a picture"), image]}]},
    ]));
    assert_eq!(
        out[2],
        json!({"role": "tool", "tool_call_id": "t1", "content": "a picture\n[image: in the user's message below]"})
    );
    let shown = json!([text("[image of the tool result t1]"), url("data:image/png;base64,iVBO")]);
    assert_eq!(out[3], json!({"role": "user", "content": shown}));
    let document = json!({"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}});
    let found = json!({"type": "search_result", "source": "https://x", "title": "X", "content": [text("said")]});
    let out = messages(json!([{"role": "user", "content": [document, found]}]));
    assert_eq!(out[0]["content"], "T\nwords\nX: https://x\nsaid");
}

#[test]
fn tools_and_settings() {
    let mut body = asked(json!([{"role": "user", "content": "hi"}]));
    let more = json!({
        "stream": true, "temperature": 0.70, "top_k": 5, "top_p": 0.9, "stop_sequences": ["END"], "min_p": 0.1,
        "metadata": {"user_id": "x"}, "context_management": {"edits": []}, "service_tier": "auto",
        "thinking": {"type": "disabled"}, "output_config": {"effort": "max"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}, "cache_control": {"type": "ephemeral"}},
            {"type": "custom", "name": "g", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut out = chat(&body);
    out.as_object_mut().unwrap().remove("messages");
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let want = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 100, "stop": ["END"],
        "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "think": false,
        "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "high"},
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}],
        "tool_choice": "required", "parallel_tool_calls": false,
    });
    assert_eq!(out, want);
    for (choice, said) in [
        (json!({"type": "auto"}), json!("auto")),
        (json!({"type": "none"}), json!("none")),
        (json!({"type": "tool", "name": "f"}), json!({"type": "function", "function": {"name": "f"}})),
    ] {
        body["tool_choice"] = choice;
        assert_eq!(chat(&body)["tool_choice"], said);
    }
    // A model that cannot think is asked to all the same.
    for thinking in [json!({"type": "adaptive"}), json!({"type": "enabled", "budget_tokens": 2000}), Value::Null] {
        body["thinking"] = thinking;
        assert_eq!(chat(&body).get("think"), None);
    }
    body["output_config"] = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
    let want =
        json!({"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": true}});
    assert_eq!(chat(&body)["response_format"], want);
    assert_eq!(chat(&body).get("chat_template_kwargs"), None);
    // What is counted is what is sent.
    let counted: Value = serde_json::from_slice(&counted(body.to_string().as_bytes(), None).unwrap().0).unwrap();
    assert_eq!((&counted["messages"], &counted["tools"]), (&chat(&body)["messages"], &chat(&body)["tools"]));
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let user = |content: Value| asked(json!([{"role": "user", "content": content}]));
    let with = |key: &str, value: Value| {
        let mut body = user("hi".into());
        body[key] = value;
        body
    };
    for (body, param) in [
        (json!({"model": 3, "messages": []}), "model"),
        (json!({"model": "m"}), "messages"),
        (asked(json!("x")), "messages"),
        (with("system", json!(4)), "system"),
        (with("max_tokens", json!("x")), "max_tokens"),
        (with("stream", json!("yes")), "stream"),
        (with("tools", json!({})), "tools"),
    ] {
        let (named, text) = refused(body.clone());
        assert_eq!(named, param, "{body}");
        assert!(text.contains(param), "{text}");
    }
    assert!(matches!(request(b"[1]"), Err(WireError::NotJson(_))));
    assert!(matches!(request(b"\xff"), Err(WireError::NotJson(_))));
    // Text that a client cut in the middle of a character is read.
    let cut = br#"{"model":"m","messages":[{"role":"user","content":"a\ud83d"}]}"#;
    let chat: Value = serde_json::from_slice(&request(cut).unwrap().chat).unwrap();
    assert_eq!(chat["messages"][0]["content"], "a\u{fffd}");
}

/// llama.cpp's own endpoint for this dialect answers these.
#[test]
fn what_a_server_alone_passes_over_is_no_reason_to_refuse() {
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let said = |key: &str, value: Value| {
        let mut body = asked(json!([{"role": "user", "content": "hi"}]));
        body["tools"] = json!([tool]);
        body[key] = value;
        chat(&body)
    };
    for choice in
        [json!({"type": "tool"}), json!({"type": "tool", "name": "g"}), json!({}), json!(3), json!("sometimes")]
    {
        assert_eq!(said("tool_choice", choice.clone())["tool_choice"], "auto", "{choice}");
    }
    for none in [
        json!([]),
        json!([null]),
        json!(["f"]),
        json!([{"input_schema": {}}]),
        json!([{"type": "web_search_20260318", "name": "f"}]),
    ] {
        let mut body = asked(json!([{"role": "user", "content": "hi"}]));
        body["tools"] = none.clone();
        body["tool_choice"] = json!({"type": "tool", "name": "f"});
        let chat = chat(&body);
        assert_eq!((chat.get("tools"), chat.get("tool_choice")), (None, None), "{none}");
    }
    assert_eq!(said("stop_sequences", json!("x"))["stop"], json!(["x"]));
    assert_eq!(said("stop_sequences", json!([1, "x", null]))["stop"], json!(["x"]));
    assert_eq!(said("max_tokens", json!(0))["max_tokens"], 0);
    assert_eq!(said("system", json!({"type": "text", "text": "Be brief."}))["messages"][0]["content"], "Be brief.");
    for (key, value) in [
        ("thinking", json!({})),
        ("thinking", json!(true)),
        ("output_format", json!({"type": "text"})),
        ("output_config", json!({"format": {}})),
    ] {
        assert_eq!(said(key, value.clone()).get("response_format"), None, "{key}: {value}");
    }
}

/// Whatever stands in a history, a session goes on.
#[test]
fn no_odd_message_is_refused() {
    let odd = [
        json!(1),
        json!(null),
        json!("hi"),
        json!({"content": "x"}),
        json!({"role": null, "content": 5}),
        json!({"role": "user", "content": {}}),
        json!({"role": "assistant", "content": true}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 5}]}),
        json!({"role": "user", "content": [null, 5, "x", []]}),
    ];
    for message in odd {
        let chat = chat(&asked(json!([{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}])));
        let all = chat["messages"].as_array().unwrap();
        assert!(all.last().unwrap()["content"].to_string().contains('b'), "{message}: {chat}");
    }
    let five = asked(json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 5}]}]));
    assert_eq!(chat(&five)["messages"][0]["content"], "5");
    let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"f","input":{deep}}}]}}]}}"#
    );
    let chat: Value = serde_json::from_slice(&request(body.as_bytes()).unwrap().chat).unwrap();
    assert_eq!(chat["messages"][0]["tool_calls"][0]["function"]["arguments"], deep);
}

fn head() -> Head {
    Head { id: "a1".into(), created: 0, prompt_tokens: Some(50), window: None }
}

fn encoder() -> Box<dyn super::super::ReplyEncoder> {
    heard(&asked(json!([{"role": "user", "content": "hi"}]))).encoder
}

/// The events of a stream: each with its name, which its data repeats.
fn events(stream: &str) -> Vec<Value> {
    let read = |block: &str| {
        let (name, data) = block.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{block}");
        data
    };
    stream.split("\n\n").filter(|b| !b.is_empty()).map(read).collect()
}

/// What a client makes of the events, as Anthropic's SDKs do; checks that blocks follow each other.
fn put_together(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut open: Option<usize> = None;
    let mut json = String::new();
    for event in &events[1..] {
        let at = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "ping" => {}
            "content_block_start" => {
                assert_eq!((open, at), (None, message["content"].as_array().unwrap().len()));
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                open = Some(at);
                json.clear();
            }
            "content_block_delta" => {
                assert_eq!(open, Some(at));
                let delta = event["delta"].as_object().unwrap();
                let kind = delta["type"].as_str().unwrap().strip_suffix("_delta").unwrap();
                match kind {
                    "input_json" => json.push_str(delta["partial_json"].as_str().unwrap()),
                    key => {
                        let more = delta[key].as_str().unwrap();
                        let before = message["content"][at][key].as_str().unwrap().to_owned();
                        message["content"][at][key] = (before + more).into();
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!(open.take(), Some(at));
                if !json.is_empty() {
                    message["content"][at]["input"] = serde_json::from_str(&json).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => assert_eq!(open, None),
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    message
}

fn streamed(chunks: &[Value]) -> String {
    let mut encoder = encoder();
    let mut out = encoder.start(&head());
    for chunk in chunks {
        out.push_str(&encoder.chunk(&Said::read(&chunk.to_string()).unwrap()));
    }
    out.push_str(&encoder.end());
    out
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn part(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    delta(
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}),
    )
}

fn last(finish: &str) -> [Value; 2] {
    [
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 60, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}}),
    ]
}

#[test]
fn a_whole_reply_and_a_streamed_one_are_the_same_message() {
    let calls = json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2]}"}},
        {"type": "function", "function": {"name": "g", "arguments": ""}}]);
    let whole = json!({"model": "other", "choices": [{"index": 0, "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": "Well.", "reasoning_content": "hm, so", "tool_calls": calls}}],
        "usage": {"prompt_tokens": 60, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}});
    let whole = encoder().whole(&head(), &Said::read(&whole.to_string()).unwrap());
    let want = json!({
        "id": "msg_a1", "type": "message", "role": "assistant", "model": "m",
        "content": [{"type": "thinking", "thinking": "hm, so", "signature": ""}, {"type": "text", "text": "Well."},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1, 2]}},
            {"type": "tool_use", "id": "toolu_a1_1", "name": "g", "input": {}}],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 40, "output_tokens": 9},
    });
    assert_eq!(whole, want);
    let [finish, usage] = last("tool_calls");
    let say = |key: &str, text: &str| delta(json!({ key: text }));
    let stream = streamed(&[
        delta(json!({"role": "assistant", "content": null})),
        say("reasoning_content", "hm,"),
        say("reasoning_content", " so"),
        say("content", "We"),
        say("content", "ll."),
        part(0, Some("c1"), Some("f"), ""),
        part(0, None, None, "{\"a\": "),
        part(0, None, None, "[1, 2]}"),
        part(1, None, Some("g"), ""),
        finish,
        usage,
    ]);
    let events = events(&stream);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 50, "what was counted, before the server says anything");
    assert_eq!(put_together(&events), want);
}

#[test]
fn calls_whose_parts_come_by_turns_are_told_one_after_the_other() {
    let [finish, usage] = last("tool_calls");
    let stream = streamed(&[
        part(0, Some("c0"), None, "{\"a\""),
        part(1, Some("c1"), Some("g"), "{\"b\":"),
        part(0, None, Some("f"), ":1"),
        part(1, None, None, "2}"),
        part(0, None, None, "}"),
        delta(json!({"content": "after"})),
        finish,
        usage,
    ]);
    let message = put_together(&events(&stream));
    let call = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
    let want =
        json!([call("c0", "f", json!({"a": 1})), call("c1", "g", json!({"b": 2})), {"type": "text", "text": "after"}]);
    assert_eq!((&message["content"], &message["stop_reason"]), (&want, &json!("tool_use")));
}

#[test]
fn words_between_the_pieces_of_a_call_stand_behind_it() {
    let [finish, usage] = last("tool_calls");
    let message = put_together(&events(&streamed(&[
        delta(json!({"content": "A"})),
        part(0, Some("c0"), Some("get_"), ""),
        part(0, None, Some("weather"), ""),
        part(0, None, None, "{\"x\":"),
        delta(json!({"content": "B", "reasoning_content": "hm"})),
        part(0, None, Some("get_weather"), "1}"),
        delta(json!({"content": "C"})),
        finish,
        usage,
    ])));
    let text = |text: &str| json!({"type": "text", "text": text});
    let want = json!([
        text("A"),
        {"type": "tool_use", "id": "c0", "name": "get_weather", "input": {"x": 1}},
        {"type": "thinking", "thinking": "hm", "signature": ""},
        text("BC"),
    ]);
    assert_eq!(message["content"], want);
}

#[test]
fn calls_that_a_server_numbers_alike_are_several() {
    let [finish, usage] = last("tool_calls");
    let two = [part(0, Some("c0"), Some("f"), "{}"), part(0, Some("c1"), Some("f"), "{\"b\":2}")];
    let three = [part(1, Some("c2"), Some("f"), "{}"), part(0, None, None, " "), part(0, None, None, "")];
    let whole = [&two[..], &three, &[finish, usage]].concat();
    let message = put_together(&events(&streamed(&whole)));
    let ids: Vec<&Value> = message["content"].as_array().unwrap().iter().map(|block| &block["id"]).collect();
    assert_eq!(
        (ids, &message["content"][1]["input"]),
        (vec![&json!("c0"), &json!("c1"), &json!("c2")], &json!({"b": 2}))
    );
}

#[test]
fn why_it_stopped() {
    for (finish, reason) in [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")] {
        let [end, usage] = last(finish);
        let message = put_together(&events(&streamed(&[delta(json!({"content": "x"})), end, usage])));
        assert_eq!(message["stop_reason"], reason);
        let whole = json!({"choices": [{"message": {"content": "x"}, "finish_reason": finish}]});
        let whole = encoder().whole(&head(), &Said::read(&whole.to_string()).unwrap());
        assert_eq!((&whole["stop_reason"], &whole["usage"]["input_tokens"]), (&json!(reason), &json!(50)));
    }
    let [end, usage] = last("stop");
    let empty = put_together(&events(&streamed(&[end, usage])));
    assert_eq!((&empty["content"], &empty["stop_reason"]), (&json!([]), &json!("end_turn")));
    let refusal = put_together(&events(&streamed(&[delta(json!({"refusal": "no"}))])));
    assert_eq!((&refusal["content"][0]["text"], &refusal["stop_reason"]), (&json!("no"), &json!("refusal")));
}

#[test]
fn a_stream_that_fails_does_not_look_complete() {
    let failed =
        json!({"error": {"message": "the server broke off", "type": "upstream_error", "code": "upstream_died"}});
    let events = events(&streamed(&[delta(json!({"content": "x"})), failed, delta(json!({"content": "y"}))]));
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["message"]), (&json!("error"), &json!("the server broke off")));
    assert!(events.iter().all(|e| e["type"] != "message_stop"), "{events:?}");
}

#[test]
fn errors_in_words_that_claude_code_knows() {
    let ours = json!({"message": "This model's maximum context length is 4096 tokens.", "code": "context_length_exceeded", "n_prompt_tokens": 9000, "n_ctx": 4096});
    let out = error(400, &ours, "req_1");
    let message = "prompt is too long: 9000 tokens > 4096 maximum. This model's maximum context length is 4096 tokens.";
    assert_eq!(
        out,
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "req_1"})
    );
    let servers = json!({"code": 400, "message": "request (40031 tokens) exceeds", "type": "exceed_context_size_error", "n_prompt_tokens": 40031, "n_ctx": 8192});
    assert!(
        error(400, &servers, "")["error"]["message"]
            .as_str()
            .unwrap()
            .starts_with("prompt is too long: 40031 tokens > 8192 maximum")
    );
    for (status, kind) in [
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ] {
        assert_eq!(error(status, &json!("so"), "")["error"], json!({"type": kind, "message": "so"}));
    }
}

#[test]
fn models_for_clients_of_anthropics() {
    let one = |id: &str, more: Value| {
        let mut model = json!({"id": id, "object": "model", "context_window": 3072, "context_length": 8192});
        model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        model
    };
    let capabilities = models(one("a", json!({})))["capabilities"].clone();
    assert_eq!(capabilities["compaction"]["summarize"]["supported"], true);
    assert_eq!(capabilities["context_management"]["clear_tool_uses_20250919"]["supported"], true);
    assert_eq!(capabilities["image_input"]["supported"], false);
    let sees = json!({"architecture": {"input_modalities": ["text", "image"]}});
    assert_eq!(models(one("a", sees))["capabilities"]["image_input"]["supported"], true);
    let theirs = |id: &str| json!({"type": "model", "display_name": id, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active", "max_input_tokens": 3072, "capabilities": capabilities});
    let list = models(json!({"object": "list", "data": [one("a", json!({})), one("b", json!({}))]}));
    let want = json!([one("a", theirs("a")), one("b", theirs("b"))]);
    assert_eq!(list, json!({"object": "list", "data": want, "has_more": false, "first_id": "a", "last_id": "b"}));
    assert_eq!(models(one("a", json!({}))), one("a", theirs("a")));
    assert_eq!(models(json!({"data": []}))["first_id"], Value::Null);
}

proptest! {
    #[test]
    fn any_split_of_a_reply_is_the_same_message(text in "[a-zé\\n]{0,30}", thought in "[a-z ]{0,20}", cuts in proptest::collection::vec(0usize..40, 0..8), calls in 0u64..4) {
        let pieces = |text: &str| {
            let chars: Vec<char> = text.chars().collect();
            let mut at: Vec<usize> = cuts.iter().map(|c| *c.min(&chars.len())).chain([0, chars.len()]).collect();
            at.sort_unstable();
            at.windows(2).map(|w| chars[w[0]..w[1]].iter().collect::<String>()).collect::<Vec<_>>()
        };
        let arguments = json!({"text": text, "n": [1, {"a": thought}]}).to_string();
        let mut chunks: Vec<Value> = pieces(&thought).iter().map(|p| delta(json!({"reasoning_content": p}))).collect();
        chunks.extend(pieces(&text).iter().map(|p| delta(json!({"content": p}))));
        for n in 0..calls {
            let (id, name) = (format!("c{n}"), format!("f{n}"));
            chunks.push(part(n, Some(&id), Some(&name), ""));
            chunks.extend(pieces(&arguments).iter().map(|p| part(n, None, None, p)));
        }
        chunks.extend(last("stop"));
        let message = put_together(&events(&streamed(&chunks)));
        let calls: Vec<Value> = (0..calls).map(|n| json!({"id": format!("c{n}"), "function": {"name": format!("f{n}"), "arguments": arguments}})).collect();
        let whole = json!({"choices": [{"message": {"content": text, "reasoning_content": thought, "tool_calls": calls}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 60, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}});
        prop_assert_eq!(message, encoder().whole(&head(), &Said::read(&whole.to_string()).unwrap()));
    }

    #[test]
    fn no_request_panics(at in 0usize..3000, with in prop::sample::select(vec!["null", "3", "\"x\"", "[]", "{}", "[{}]", ""]), length in 0usize..40) {
        let mut body = asked(agent()).to_string();
        let mut start = at.min(body.len());
        while !body.is_char_boundary(start) { start -= 1 }
        let mut end = (start + length).min(body.len());
        while !body.is_char_boundary(end) { end -= 1 }
        body.replace_range(start.min(end)..end, with);
        let _ = request(body.as_bytes());
    }
}

#[test]
fn what_ended_a_reply_is_told() {
    let ask = |stops: Value| json!({"model": "m", "max_tokens": 500, "stop_sequences": stops, "messages": [{"role": "user", "content": "hi"}]});
    let head = || Head { window: Some(1024), ..head() };
    let usage = |prompt: u64, wrote: u64| json!({"prompt_tokens": prompt, "completion_tokens": wrote});
    let chunk = |finish: &str, more: Value| {
        let mut choice = json!({"index": 0, "delta": {"content": "hello"}, "finish_reason": finish});
        choice.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"choices": [choice], "usage": usage(50, 5)})
    };
    let verbose = |word: &str| {
        let mut value = chunk("stop", json!({}));
        value["__verbose"] = json!({"stop_type": "word", "stopping_word": word});
        value
    };
    let mut cut = chunk("length", json!({}));
    for (chunk, reason, stop) in [
        (chunk("stop", json!({})), "end_turn", Value::Null),
        // vLLM, SGLang, llama-server.
        (chunk("stop", json!({"stop_reason": "END"})), "stop_sequence", json!("END")),
        (chunk("stop", json!({"matched_stop": "END"})), "stop_sequence", json!("END")),
        (verbose("END"), "stop_sequence", json!("END")),
        // The template's own end, and a token's number.
        (verbose("<|im_end|>"), "end_turn", Value::Null),
        (verbose(""), "end_turn", Value::Null),
        (chunk("stop", json!({"stop_reason": 2})), "end_turn", Value::Null),
        // The client's limit, the window, a server that says so, and one that says nothing.
        (
            std::mem::replace(
                &mut cut,
                json!({"choices": [{"finish_reason": "length", "delta": {}}], "usage": usage(600, 423)}),
            ),
            "max_tokens",
            Value::Null,
        ),
        (cut, "model_context_window_exceeded", Value::Null),
        (
            json!({"choices": [{"finish_reason": "length", "delta": {}}], "usage": usage(600, 500)}),
            "max_tokens",
            Value::Null,
        ),
        (
            json!({"choices": [{"finish_reason": "model_context_window_exceeded", "delta": {}}]}),
            "model_context_window_exceeded",
            Value::Null,
        ),
        (json!({"choices": [{"finish_reason": "length", "delta": {}}]}), "max_tokens", Value::Null),
    ] {
        let said = Said::of(&chunk).unwrap();
        let mut encoder = heard(&ask(json!(["END", "x"]))).encoder;
        let begun = encoder.start(&head());
        assert!(begun.contains("\"stop_sequence\":null"), "{begun}");
        let stream = encoder.chunk(&said) + &encoder.end();
        let want = format!("\"delta\":{}", json!({"stop_reason": reason, "stop_sequence": stop}));
        assert!(stream.contains(&want), "{want} in {stream}");
        let whole = heard(&ask(json!(["END", "x"]))).encoder.whole(&head(), &said);
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &stop), "{chunk}");
    }
    assert!(heard(&ask(json!(["END"]))).tells_stop && !heard(&ask(json!([]))).tells_stop);
}

/// What the record gives back of a request and the reply to it.
fn recorded(heard: &super::Heard, answered: &crate::wire::dialect::Answered) -> super::Before {
    let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
    let messages = chat["messages"].as_array().unwrap().iter().skip_while(|message| message["role"] == "system");
    let messages = messages.map(|message| bytes::Bytes::from(message.to_string())).collect();
    super::Before { head: answered.head.clone(), messages, reply: answered.json.clone() }
}

#[test]
fn a_thread_goes_on_with_its_system_prompt_and_its_tools() {
    let tools = json!([{"name": "get_weather", "input_schema": {"type": "object"}}]);
    let user = |content: Value| json!({"role": "user", "content": content});
    let result = json!([{"type": "tool_result", "tool_use_id": "t1", "content": "18"}]);
    let create = json!({"model": "m", "system": "Be brief.", "tools": tools, "thread": {"type": "create"},
        "messages": [user("Weather?".into())]});
    let call =
        CallPart { index: 0, id: Some("t1".into()), name: Some("get_weather".into()), arguments: "{\"a\":1}".into() };
    let said = Said { text: "I look.".into(), reasoning: "Hm.".into(), calls: vec![call], ..Said::default() };
    let on = json!({"model": "m", "thread": {"type": "continue", "previous_message_id": "msg_a1"},
        "messages": [user(result.clone())]});
    assert_eq!(heard(&on).follows.as_deref(), Some("msg_a1"));
    let whole = json!({"model": "m", "system": "Be brief.", "tools": tools, "messages": [user("Weather?".into()),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"a": 1}}]}, user(result)]});
    let chat = |heard: &super::Heard| serde_json::from_slice::<Value>(&heard.chat).unwrap();
    for streamed in [false, true] {
        let mut first = heard(&create);
        if streamed {
            first.encoder.start(&head());
            first.encoder.chunk(&said);
            first.encoder.end();
        } else {
            first.encoder.whole(&head(), &said);
        }
        let answered = first.encoder.kept().reply.unwrap();
        assert_eq!((answered.id.as_str(), first.follows.as_ref()), ("msg_a1", None));
        let before = recorded(&first, &answered);
        let second = super::going_on(on.to_string().as_bytes(), &before).unwrap();
        assert_eq!((chat(&second), second.follows), (chat(&heard(&whole)), None), "streamed: {streamed}");
    }
    // Who wants no thread has none, and a reply that broke off is none to go on from.
    assert_eq!(encoder().kept(), Default::default());
    let mut broken = heard(&create).encoder;
    broken.start(&head());
    broken.chunk(&Said { error: Some(json!({"message": "gone"})), ..Said::default() });
    assert_eq!(broken.kept().reply, None);
    for thread in [json!({"type": "continue"}), json!({"type": "fork"}), json!("x")] {
        let mut odd = create.clone();
        odd["thread"] = thread;
        assert!(refused(odd).0.starts_with("thread."));
    }
}

#[test]
fn sdks_read_why_a_thread_cannot_go_on() {
    let told = super::error(404, &json!({"message": "m", "code": "thread_not_found"}), "req_1");
    assert_eq!(told["error"]["details"], json!({"error_code": "thread_not_found"}));
    assert_eq!(super::error(404, &json!({"message": "m", "code": "other"}), "req_1")["error"].get("details"), None);
}

#[test]
fn a_client_may_name_no_model() {
    let mut heard = heard(&json!({"messages": [{"role": "user", "content": "hi"}]}));
    assert_eq!(serde_json::from_slice::<Value>(&heard.chat).unwrap().get("model"), None);
    let said = Said { model: Some("served".into()), text: "a".into(), ..Said::default() };
    assert_eq!(heard.encoder.whole(&head(), &said)["model"], "served");
}
