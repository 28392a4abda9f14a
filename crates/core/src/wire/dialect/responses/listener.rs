//! A client in tests: what it asks, and what it makes of the events.

use serde_json::{Value, json};

use super::super::said::{CallPart, Said};
use super::super::{Head, ReplyEncoder};

pub(super) fn encoder(body: Value) -> Box<dyn ReplyEncoder> {
    super::request(body.to_string().as_bytes(), &super::Items::new()).unwrap_or_else(|error| panic!("{error}")).encoder
}

/// A request with all kinds of tools, that wants its reasoning back.
pub(super) fn asked() -> Value {
    json!({"model": "asked", "instructions": "Be.", "input": "x", "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "db", "tools": [{"type": "function", "name": "query"}]}]})
}

pub(super) fn head() -> Head {
    Head { id: "1a".into(), created: 1_700_000_000, prompt_tokens: Some(4), window: None }
}

pub(super) fn said(text: &str) -> Said {
    Said { text: text.into(), ..Said::default() }
}

pub(super) fn thought(text: &str) -> Said {
    Said { reasoning: text.into(), ..Said::default() }
}

pub(super) fn part(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> Said {
    let call =
        CallPart { index, id: id.map(str::to_owned), name: name.map(str::to_owned), arguments: arguments.into() };
    Said { calls: vec![call], ..Said::default() }
}

pub(super) fn finish(reason: &str) -> Said {
    Said { finish: Some(reason.into()), ..Said::default() }
}

/// The events of a stream: names and data agree, and the numbers run on from 0.
pub(super) fn stream(encoder: &mut dyn ReplyEncoder, chunks: &[Said]) -> Vec<Value> {
    let mut all = encoder.start(&head());
    for chunk in chunks {
        all += &encoder.chunk(chunk);
    }
    all += &encoder.end();
    let mut out: Vec<Value> = Vec::new();
    for event in all.strip_suffix("\n\n").unwrap().split("\n\n") {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((data["type"].as_str(), data["sequence_number"].as_u64()), (Some(name), Some(out.len() as u64)));
        out.push(data);
    }
    out
}

pub(super) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
}

/// Puts the output together from the events as SDKs do, and checks that it is what the last event holds.
pub(super) fn told(events: &[Value]) -> Value {
    let mut output: Vec<Value> = Vec::new();
    let mut open = false;
    for event in events {
        let kind = event["type"].as_str().unwrap().strip_prefix("response.").unwrap();
        // The commands of a shell call are told beside it, without the id of the item.
        if event.get("output_index").is_none() || kind.starts_with("shell_call_command") {
            continue;
        }
        // One item at a time.
        let at = event["output_index"].as_u64().unwrap() as usize;
        if kind == "output_item.added" {
            assert_eq!((at, open), (output.len(), false));
            output.push(event["item"].clone());
            open = true;
            continue;
        }
        assert_eq!((at + 1, open), (output.len(), true));
        let item = &mut output[at];
        let nth = event.get("content_index").map_or(0, |n| n.as_u64().unwrap() as usize);
        if kind != "output_item.done" {
            assert_eq!(event["item_id"], item["id"]);
        }
        let grow =
            |value: &mut Value| *value = (value.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap()).into();
        match kind {
            "content_part.added" => item["content"].as_array_mut().unwrap().push(event["part"].clone()),
            "content_part.done" => assert_eq!(item["content"][nth], event["part"]),
            "output_text.delta" | "reasoning_text.delta" => grow(&mut item["content"][nth]["text"]),
            "refusal.delta" => grow(&mut item["content"][nth]["refusal"]),
            "function_call_arguments.delta" => grow(&mut item["arguments"]),
            "custom_tool_call_input.delta" => grow(&mut item["input"]),
            "output_text.done" | "reasoning_text.done" => assert_eq!(item["content"][nth]["text"], event["text"]),
            "refusal.done" => assert_eq!(item["content"][nth]["refusal"], event["refusal"]),
            "function_call_arguments.done" => {
                assert_eq!((&item["arguments"], &item["name"]), (&event["arguments"], &event["name"]));
            }
            "custom_tool_call_input.done" => assert_eq!(item["input"], event["input"]),
            "output_item.done" => {
                open = false;
                let mut done = event["item"].clone();
                for key in ["content", "arguments", "input"] {
                    assert_eq!(item.get(key), done.get(key));
                }
                std::mem::swap(item, &mut done);
            }
            other => panic!("{other}"),
        }
    }
    let last = &events.last().unwrap()["response"];
    assert!(!open);
    assert_eq!(last["output"], Value::from(output));
    last.clone()
}
