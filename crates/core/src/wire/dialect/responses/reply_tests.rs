//! Replies: whole and in events, which say the same however a stream is split.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::said::{CallPart, Compaction, Said, Usage};
use super::Items;
use super::listener::{asked, encoder, finish, head, part, said, stream, thought, told, types};

#[test]
fn a_whole_reply() {
    let mut reply = thought("Hm.");
    reply.text = "Hello".into();
    reply.model = Some("served".into());
    reply.calls = vec![
        CallPart { index: 0, id: Some("call_x".into()), name: Some("query".into()), arguments: r#"{"q" : 1}"#.into() },
        CallPart { index: 0, id: None, name: Some("patch".into()), arguments: r#"{"input":"*** a\n"}"#.into() },
        CallPart { index: 2, id: None, name: Some("f".into()), arguments: String::new() },
    ];
    reply.finish = Some("tool_calls".into());
    reply.usage =
        Usage { prompt: Some(9), cached: Some(5), completion: Some(3), reasoning: Some(1), ..Usage::default() };
    let got = encoder(asked()).whole(&head(), &reply);
    let expect = json!({"id": "resp_1a", "object": "response", "created_at": 1_700_000_000,
        "completed_at": 1_700_000_000, "status": "completed", "error": null, "incomplete_details": null, "model": "served", "output": [
            {"id": "rs_1a", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": "windowsill:Hm."},
            {"id": "msg_1a", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]},
            {"id": "fc_1a_0", "type": "function_call", "status": "completed", "call_id": "call_x", "name": "query",
                "namespace": "db", "arguments": "{\"q\" : 1}"},
            {"id": "ctc_1a_1", "type": "custom_tool_call", "status": "completed", "call_id": "call_1a_1", "name": "patch",
                "input": "*** a\n"},
            {"id": "fc_1a_2", "type": "function_call", "status": "completed", "call_id": "call_1a_2", "name": "f",
                "arguments": "{}"}],
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 12},
        "background": false, "instructions": "Be.", "max_output_tokens": null, "max_tool_calls": null, "metadata": {},
        "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "frequency_penalty": 0.0,
        "presence_penalty": 0.0, "service_tier": "default", "store": true, "temperature": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [
            {"type": "function", "name": "f", "description": null, "parameters": null, "strict": null},
            {"type": "custom", "name": "patch"}, asked()["tools"][2]],
        "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": null});
    assert_eq!(got, expect);
    // The same in chunks ends in the same object.
    let events = stream(
        &mut *encoder(asked()),
        &[
            thought("H"),
            thought("m."),
            said("Hel"),
            Said { model: Some("served".into()), ..said("lo") },
            part(0, Some("call_x"), Some("query"), ""),
            part(0, None, None, r#"{"q" "#),
            part(0, None, None, ": 1}"),
            part(1, None, Some("patch"), r#"{"input":"***"#),
            part(1, None, None, r#" a\n"}"#),
            part(2, None, Some("f"), ""),
            finish("tool_calls"),
            Said { usage: reply.usage, ..Said::default() },
        ],
    );
    assert_eq!(told(&events), expect);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!((&events[1]["response"]["output"], &events[1]["response"]["usage"]), (&json!([]), &Value::Null));
    assert_eq!(events[0]["response"]["model"], "asked");
    assert_eq!(
        types(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    assert_eq!(
        &events[11],
        &json!({"type": "response.output_text.delta", "sequence_number": 11, "item_id": "msg_1a",
        "output_index": 1, "content_index": 0, "delta": "Hel", "logprobs": []})
    );
    assert_eq!(
        events[16]["item"],
        json!({"id": "fc_1a_0", "type": "function_call", "status": "in_progress",
        "call_id": "call_x", "name": "query", "namespace": "db", "arguments": ""})
    );
}

#[test]
fn what_the_request_says_is_repeated() {
    let body = json!({"model": "m", "input": "x", "store": true, "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9,
        "max_output_tokens": 5, "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "truncation": "auto",
        "user": "u", "parallel_tool_calls": false, "tool_choice": "none", "service_tier": "flex"});
    let got = encoder(body.clone()).whole(&head(), &said("a"));
    for (key, value) in body.as_object().unwrap() {
        match key.as_str() {
            "input" => assert_eq!(got.get(key), None),
            "text" => assert_eq!(got[key], json!({"verbosity": "low", "format": {"type": "text"}})),
            "reasoning" => assert_eq!(got[key], json!({"effort": "low", "summary": null})),
            _ => assert_eq!(&got[key], value, "{key}"),
        }
    }
    let open = encoder(body.clone()).whole(&head(), &thought("Hm."));
    assert_eq!(open["output"][0].get("encrypted_content"), None);
    assert_eq!((&got["usage"], &got["model"]), (&Value::Null, &json!("m")));
    // Only the completion was counted: the prompt was, before.
    let some = Said { usage: Usage { completion: Some(2), ..Usage::default() }, ..said("a") };
    assert_eq!(encoder(body).whole(&head(), &some)["usage"]["total_tokens"], 6);
}

#[test]
fn replies_that_end_early_or_say_nothing() {
    let cut = Said { finish: Some("length".into()), ..said("Hel") };
    let whole = encoder(asked()).whole(&head(), &cut);
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(whole["output"][0]["status"], "incomplete");
    let events = stream(&mut *encoder(asked()), &[said("Hel"), finish("length")]);
    assert_eq!((types(&events).last(), told(&events)), (Some(&"incomplete"), whole));
    let filtered = encoder(asked()).whole(&head(), &finish("content_filter"));
    assert_eq!(filtered["incomplete_details"]["reason"], "content_filter");
    // Half of a call is handed on as it is, and nothing is made up for one that has not begun.
    let events = stream(&mut *encoder(asked()), &[part(0, None, Some("f"), "{\"a"), finish("length")]);
    assert_eq!(
        (&told(&events)["output"][0]["arguments"], &events[4]["type"]),
        (&json!("{\"a"), &json!("response.function_call_arguments.done"))
    );
    let events = stream(&mut *encoder(asked()), &[part(0, None, Some("f"), ""), finish("length")]);
    assert_eq!(told(&events)["output"][0]["arguments"], "");
    let empty = encoder(asked()).whole(&head(), &finish("stop"));
    assert_eq!(
        empty["output"],
        json!([{"id": "msg_1a", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]}])
    );
    let events = stream(&mut *encoder(asked()), &[]);
    assert_eq!(told(&events), empty);
    assert_eq!(
        types(&events)[2..],
        [
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let refusal = Said { refusal: "No.".into(), ..said("Well: ") };
    let whole = encoder(asked()).whole(&head(), &refusal);
    assert_eq!(told(&stream(&mut *encoder(asked()), std::slice::from_ref(&refusal))), whole);
    assert_eq!(whole["output"][0]["content"][1], json!({"type": "refusal", "refusal": "No."}));
    let mut parted = encoder(asked());
    parted.start(&head());
    parted.chunk(&said("Well: "));
    let second = parted.chunk(&Said { text: String::new(), ..refusal });
    assert!(second.contains("output_text.done") && second.contains("refusal.delta"));
    assert_eq!(
        (parted.end().contains("\"refusal\":\"No.\""), &whole["output"][0]["status"]),
        (true, &json!("completed"))
    );
}

#[test]
fn parallel_calls_may_interleave() {
    let calls = |chunks: &[Said]| -> Vec<(String, String)> {
        let events = stream(&mut *encoder(asked()), chunks);
        let output = told(&events)["output"].clone();
        let text = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
        let calls = output.as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
        calls.map(|item| (text(item, "call_id"), text(item, "arguments"))).collect()
    };
    let expect = [("a".to_owned(), r#"{"x":1}"#.to_owned()), ("b".to_owned(), r#"{"y":2}"#.to_owned())];
    let open = |index, id| part(index, Some(id), Some("f"), "");
    let more = |index, arguments| part(index, None, None, arguments);
    assert_eq!(
        calls(&[open(0, "a"), more(0, r#"{"x":"#), open(1, "b"), more(1, r#"{"y""#), more(0, "1}"), more(1, ":2}")]),
        expect
    );
    assert_eq!(calls(&[open(0, "a"), open(1, "b"), more(1, r#"{"y":2}"#), more(0, r#"{"x":1}"#)]), expect);
    // Every call with the index 0, as older servers send them.
    let all = |id, arguments| part(0, Some(id), Some("f"), arguments);
    assert_eq!(calls(&[all("a", r#"{"x":1}"#), all("b", r#"{"y":2}"#)]), expect);
    let blank = [("a".to_owned(), "{}".to_owned()), expect[1].clone()];
    assert_eq!(calls(&[all("a", ""), all("b", r#"{"y":2}"#)]), blank);
    let bare = |arguments| part(0, None, Some("f"), arguments);
    assert_eq!(calls(&[bare(r#"{"x":1}"#), bare("{}")])[1], ("call_1a_1".to_owned(), "{}".to_owned()));
    // The first parts of the second call are told as soon as the first one is whole.
    let mut encoder = encoder(asked());
    encoder.start(&head());
    encoder.chunk(&part(0, Some("a"), Some("f"), r#"{"x":1}"#));
    assert!(encoder.chunk(&part(1, Some("b"), Some("f"), r#"{"y"#)).contains("\"call_id\":\"b\""));
    assert!(encoder.chunk(&more(1, r#"":"#)).contains("function_call_arguments.delta"));
}

#[test]
fn a_name_may_come_late_and_kinds_may_alternate() {
    let mut late = encoder(asked());
    late.start(&head());
    assert_eq!(late.chunk(&part(0, Some("a"), None, r#"{"input":"#)), "");
    assert!(late.chunk(&part(0, None, Some("patch"), r#""p"}"#)).contains("\"type\":\"custom_tool_call\""));
    assert!(late.end().contains("\"delta\":\"p\""));
    let events = stream(
        &mut *encoder(asked()),
        &[
            part(0, None, None, "{"),
            part(0, None, Some("f"), "}"),
            said("a"),
            thought("b"),
            said("c"),
            part(1, None, Some("patch"), "not JSON"),
            part(2, None, Some("patch"), r#"{"patch":"p"}"#),
            part(3, None, Some("patch"), ""),
        ],
    );
    let output = told(&events)["output"].clone();
    let ids: Vec<&str> = output.as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["fc_1a_0", "msg_1a", "rs_1a", "msg_1a_1", "ctc_1a_1", "ctc_1a_2", "ctc_1a_3"]);
    let inputs: Vec<&Value> = output.as_array().unwrap()[4..].iter().map(|item| &item["input"]).collect();
    assert_eq!(inputs, ["not JSON", "p", ""]);
}

#[test]
fn an_error_ends_the_stream() {
    let broken = |error: Value| Said { error: Some(error), ..Said::default() };
    let events = stream(
        &mut *encoder(asked()),
        &[thought("Hm."), said("Hel"), broken(json!({"message": "gone", "code": 500})), said("lo"), finish("stop")],
    );
    let last = events.last().unwrap();
    assert_eq!(types(&events).iter().filter(|kind| ["completed", "incomplete", "failed"].contains(kind)).count(), 1);
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "gone"}));
    assert_eq!(last["response"]["output"][0]["id"], "rs_1a");
    assert_eq!(last["response"]["output"][1]["status"], "incomplete");
    for error in [
        json!({"message": "m", "code": "context_length_exceeded"}),
        json!({"message": "m", "code": 400, "type": "exceed_context_size_error"}),
    ] {
        let events = stream(&mut *encoder(asked()), &[broken(error)]);
        assert_eq!(types(&events), ["created", "in_progress", "failed"]);
        assert_eq!(events[2]["response"]["error"], json!({"code": "context_length_exceeded", "message": "m"}));
    }
    assert_eq!(stream(&mut *encoder(asked()), &[broken(json!("bare"))])[2]["response"]["error"]["message"], "bare");
}

/// Reasoning, a text and calls, cut into chunks; the parts of the calls take turns.
fn chunks(text: &str, arguments: &[String], cuts: &[usize]) -> Vec<Said> {
    let mut cuts = cuts.iter().cycle();
    let mut pieces = |text: &str| -> Vec<String> {
        let mut rest: Vec<char> = text.chars().collect();
        let mut out = Vec::new();
        while !rest.is_empty() {
            let at = (*cuts.next().unwrap()).clamp(1, rest.len());
            out.push(rest.drain(..at).collect());
        }
        out
    };
    let mut out: Vec<Said> = pieces(text).iter().map(|piece| thought(piece)).collect();
    out.extend(pieces(text).iter().map(|piece| said(piece)));
    let calls: Vec<Vec<String>> = arguments.iter().map(|all| pieces(all)).collect();
    out.extend((0..calls.len()).map(|at| part(at as u64, Some(&format!("id{at}")), Some(["f", "patch"][at % 2]), "")));
    for round in 0..calls.iter().map(Vec::len).max().unwrap_or(0) {
        let turn = calls.iter().enumerate().filter_map(|(at, call)| Some((at, call.get(round)?)));
        out.extend(turn.map(|(at, piece)| part(at as u64, None, None, piece)));
    }
    out
}

proptest! {
    #[test]
    fn any_split_gives_the_same_reply(text in "[a-z\"é😀\n]{1,9}", values in prop::collection::vec("[a{}\"\\\\]{0,5}", 0..4),
        cuts in prop::collection::vec(1usize..6, 1..6)) {
        let arguments: Vec<String> = values.iter().map(|value| json!({"input": value, "n": {}}).to_string()).collect();
        let calls = arguments.iter().enumerate().map(|(at, all)| part(0, Some(&format!("id{at}")), Some(["f", "patch"][at % 2]), all).calls.remove(0));
        let whole = Said { reasoning: text.clone(), text: text.clone(), calls: calls.collect(), ..Said::default() };
        let whole = encoder(asked()).whole(&head(), &whole);
        let events = stream(&mut *encoder(asked()), &chunks(&text, &arguments, &cuts));
        prop_assert_eq!(told(&events), whole);
    }
}

#[test]
fn an_mcp_server_that_nobody_connects_to_is_told_once() {
    let mcp = |label: &str| json!({"type": "mcp", "server_label": label, "server_url": "https://x.invalid/mcp"});
    let asked = json!({"model": "m", "input": "x", "tools": [mcp("b"), mcp("a"), mcp("a")]});
    let whole = encoder(asked.clone()).whole(&head(), &said("Hi"));
    let item = |at: usize| whole["output"][at].clone();
    for (at, label) in ["a", "b"].into_iter().enumerate() {
        let told = item(at);
        assert_eq!((&told["type"], &told["server_label"]), (&json!("mcp_list_tools"), &json!(label)), "{whole}");
        assert!(told["error"].as_str().unwrap().contains("as functions") && told["tools"] == json!([]), "{told}");
    }
    assert_eq!(item(2)["content"][0]["text"], "Hi");

    let events = stream(&mut *encoder(asked.clone()), &[said("Hi"), finish("stop")]);
    let about = ["output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.failed", "output_item.done"];
    assert_eq!(types(&events)[2..10], [about, about].concat());
    assert_eq!(events.last().unwrap()["response"]["output"], whole["output"]);
    // Where nothing was said, too; but a history that is compacted is one item and no other.
    assert_eq!(
        stream(&mut *encoder(asked.clone()), &[finish("stop")]).last().unwrap()["response"]["output"][0],
        item(0)
    );
    let compacted = Said { compaction: Some(Compaction::Done("x".into())), ..Said::default() };
    let only = encoder(asked.clone()).whole(&head(), &compacted);
    assert_eq!(only["output"].as_array().unwrap().len(), 1, "{only}");

    let said_before =
        json!([{"role": "user", "content": "x"}, item(0), item(1), item(2), {"role": "user", "content": "y"}]);
    let again = json!({"model": "m", "input": said_before, "tools": asked["tools"]});
    let heard = super::request(again.to_string().as_bytes(), &Items::new()).unwrap();
    let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
    assert!(chat["messages"].as_array().unwrap().len() == 3 && !chat.to_string().contains("mcp_list"), "{chat}");
    let mut encoder = heard.encoder;
    assert_eq!(encoder.whole(&head(), &said("Ho"))["output"].as_array().unwrap().len(), 1);
}
