//! Compactions in a history, and replies that tell what was done with one.

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::said::Said;
use super::super::{Before, Compaction, Head, Heard, Managed};
use super::{opened, request};
use crate::conversation::Digest;
use crate::conversation::managed::Taken;
use crate::wire::compacted::Origin;
use crate::wire::reply::COMPACTION;

fn asked(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 100, "system": "Be brief.", "messages": messages})
}

fn heard(body: &Value) -> Heard {
    request(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn messages(heard: &Heard) -> Vec<Value> {
    let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
    chat["messages"].as_array().unwrap().clone()
}

/// A block of ours with these words.
fn ours(text: &str) -> (Value, String) {
    let mark = Origin { conversation: "c1".into(), chain: Digest::of(b"x"), depth: 2 }.mark(&[1; 32], text);
    (json!({"type": "compaction", "content": text, "signature": mark, "encrypted_content": mark}), mark)
}

const SUMMARY: &str = "[summary of the earlier conversation]\nThe user chose Rust.";

#[test]
fn a_compaction_stands_for_what_came_before_it() {
    let block = json!({"type": "compaction", "content": "The user chose Rust.", "encrypted_content": "EqQB"});
    let behind = [json!({"role": "user", "content": "Go on."})];
    for before in [json!([]), json!([{"role": "user", "content": "old"}, {"role": "assistant", "content": "older"}])] {
        let mut all = before.as_array().unwrap().clone();
        all.push(json!({"role": "assistant", "content": [block, {"type": "text", "text": "I go on."}]}));
        all.extend(behind.clone());
        let body = asked(all.into());
        let heard = heard(&body);
        let expect = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": SUMMARY},
            {"role": "assistant", "content": "I go on."}, {"role": "user", "content": "Go on."}]);
        assert_eq!(Value::from(messages(&heard)), expect);
        assert!(heard.unsaid.stands_for.is_none() && heard.encoder.warnings().is_empty(), "it is another server's");
    }
    // Alone, as the block of a compaction on demand comes back.
    let alone =
        heard(&asked(json!([{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}])));
    assert_eq!(messages(&alone)[1], json!({"role": "user", "content": format!("{SUMMARY}\nGo on.")}));
    // One that failed changes nothing; one that cannot be read is told.
    for (block, warned) in [
        (json!({"type": "compaction", "content": null}), 0),
        (json!({"type": "compaction", "content": ""}), 0),
        (json!({"type": "compaction", "content": null, "encrypted_content": "EqQB"}), 1),
    ] {
        let heard = heard(&asked(
            json!([{"role": "user", "content": "old"}, {"role": "assistant", "content": [block]}, {"role": "user", "content": "new"}]),
        ));
        assert_eq!(messages(&heard)[1]["content"], "old", "{block}");
        assert_eq!(heard.encoder.warnings().len(), warned, "{block}");
    }
}

#[test]
fn one_of_ours_is_read_with_its_messages() {
    let (block, mark) = ours("the brief");
    let body = asked(
        json!([{"role": "assistant", "content": [block, {"type": "text", "text": "Done."}]}, {"role": "user", "content": "Go on."}]),
    );
    let first = heard(&body);
    assert_eq!(first.unsaid.stands_for, Some(Compaction { mark, text: "the brief".into() }));
    assert!(
        messages(&first)[1]["content"].as_str().unwrap().ends_with("the brief"),
        "unless it is known, it is its words"
    );
    let stood = Before {
        head: String::new(),
        messages: vec![
            Bytes::from(r#"{"role":"user","content":"old"}"#),
            Bytes::from(r#"{"role":"assistant","content":"older"}"#),
        ],
        reply: String::new(),
    };
    let again = opened(body.to_string().as_bytes(), &stood).unwrap();
    let expect = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "old"},
        {"role": "assistant", "content": "older"}, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]);
    assert_eq!(Value::from(messages(&again)), expect);
    assert!(again.unsaid.stands_for.is_none());
}

#[test]
fn tools_are_offered_as_the_compaction_says() {
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let block = json!({"type": "compaction", "content": "Earlier.", "tool_changes": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "a"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("c")}}]});
    let mut body = asked(json!([
        {"role": "user", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "b"}}]},
        {"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]));
    body["tools"] = json!([tool("a"), tool("b")]);
    let names = |body: &Value| {
        let chat: Value = serde_json::from_slice(&heard(body).chat).unwrap();
        let tools = chat["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&body), ["b", "c"]);
    // A block that does not say it leaves them as they were.
    body["messages"][1]["content"][0].as_object_mut().unwrap().remove("tool_changes");
    assert_eq!(names(&body), ["a"]);
}

fn head() -> Head {
    Head { id: "1".into(), created: 0, prompt_tokens: Some(50), window: Some(8192) }
}

fn said(finish: &str) -> Said {
    let whole = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 2}});
    Said::of(&whole).unwrap()
}

/// The data of the events of a stream.
fn events(stream: &str) -> Vec<Value> {
    stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn what_was_done_is_told_in_whole_replies_and_in_streams() {
    let mut body = asked(json!([{"role": "user", "content": "Hi."}]));
    body["context_management"] = json!({"edits": [{"type": "clear_tool_uses_20250919"}]});
    let taken = vec![(Taken::Uses, 3, 900), (Taken::Thinking, 1, 10)];
    let managed = Managed { taken, ..Managed::default() };
    let applied = json!({"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3, "cleared_input_tokens": 900}]});
    let mut encoder = heard(&body).encoder;
    encoder.managed(&managed);
    let whole = encoder.whole(&head(), &said("stop"));
    assert_eq!(whole["context_management"], applied);
    assert!(whole["usage"].get("iterations").is_none() && whole["content"].as_array().unwrap().len() == 1);
    let mut encoder = heard(&body).encoder;
    let mut stream = encoder.start(&head());
    encoder.managed(&managed);
    stream += &encoder.chunk(&said("stop"));
    stream += &encoder.end();
    let delta = events(&stream).into_iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["context_management"], applied);
    // Nothing was done, and nobody asked.
    let mut encoder = heard(&body).encoder;
    assert_eq!(encoder.whole(&head(), &said("stop"))["context_management"], json!({"applied_edits": []}));
    body.as_object_mut().unwrap().remove("context_management");
    let mut encoder = heard(&body).encoder;
    encoder.managed(&managed);
    assert!(encoder.whole(&head(), &said("stop")).get("context_management").is_none());
}

#[test]
fn a_compaction_is_the_first_block_of_its_reply() {
    let mut body = asked(json!([{"role": "user", "content": "Hi."}]));
    body["context_management"] = json!({"edits": [{"type": "compact_20260112"}]});
    let compaction = Some(Compaction { mark: "windowsill-compacted:x".into(), text: "the brief".into() });
    let managed = Managed { compaction, spent: (700, 80), ..Managed::default() };
    let block = json!({"type": "compaction", "content": "the brief", "signature": "windowsill-compacted:x", "encrypted_content": "windowsill-compacted:x"});
    for (finish, reason) in [("stop", "end_turn"), (COMPACTION, "compaction")] {
        let text = if finish == "stop" { "Hi." } else { "" };
        let said = Said { text: text.into(), ..said(finish) };
        let mut encoder = heard(&body).encoder;
        encoder.managed(&managed);
        let whole = encoder.whole(&head(), &said);
        assert_eq!((&whole["content"][0], whole["stop_reason"].as_str()), (&block, Some(reason)));
        assert_eq!(whole["content"].as_array().unwrap().len(), 1 + usize::from(finish == "stop"));
        let rounds = whole["usage"]["iterations"].as_array().unwrap();
        let round = |at: usize| (rounds[at]["type"].as_str().unwrap(), rounds[at]["input_tokens"].as_u64().unwrap());
        assert_eq!((round(0), rounds.len()), (("compaction", 700), whole["content"].as_array().unwrap().len()));
        assert!(finish != "stop" || round(1) == ("message", 40), "{rounds:?}");
        let mut encoder = heard(&body).encoder;
        let mut stream = encoder.start(&head());
        encoder.managed(&managed);
        stream += &encoder.chunk(&said);
        stream += &encoder.end();
        let events = events(&stream);
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<_>>();
        let start = &of("content_block_start")[0];
        assert_eq!(
            start["content_block"],
            json!({"type": "compaction", "content": null, "signature": "windowsill-compacted:x"})
        );
        let delta =
            json!({"type": "compaction_delta", "content": "the brief", "encrypted_content": "windowsill-compacted:x"});
        assert_eq!((&of("content_block_delta")[0]["delta"], start["index"].as_u64()), (&delta, Some(0)));
        assert_eq!(of("content_block_stop").len(), whole["content"].as_array().unwrap().len());
        assert_eq!(of("message_delta")[0]["delta"]["stop_reason"], reason);
        assert!(of("message_delta")[0]["usage"]["iterations"].is_array());
    }
    // One that failed is told as such.
    let mut encoder = heard(&body).encoder;
    let whole = encoder.whole(&head(), &Said { text: String::new(), ..said(COMPACTION) });
    assert_eq!(whole["content"], json!([{"type": "compaction", "content": null}]));
}
