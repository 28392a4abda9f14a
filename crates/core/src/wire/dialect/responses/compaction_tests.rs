//! Compaction: what a request asks for, how the item is told, and what it stands for when it comes back.

use bytes::Bytes;
use serde_json::{Value, json};

use super::compaction::wanted;
use super::listener::{encoder, finish, head, said, stream, types};
use super::{Before, Items, On, request, standing_on};
use crate::conversation::Digest;
use crate::wire::compacted::{Origin, joined, opened, parted};
use crate::wire::dialect::Heard;
use crate::wire::dialect::said::{Compaction, Said};

const KEY: [u8; 32] = [3; 32];

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn compaction(state: Compaction) -> Said {
    Said { compaction: Some(state), ..Said::default() }
}

/// An item for the history of a request, as the door makes it.
fn item(body: &Value, brief: &str) -> Value {
    let text = encoder(body.clone()).compacted()(brief);
    let origin = Origin { conversation: "c1".into(), chain: Digest::of(b"x"), depth: 2 };
    json!({"type": "compaction", "id": "cmp_1", "encrypted_content": joined(&origin.mark(&KEY, &text), &text)})
}

fn messages(heard: &Heard) -> Vec<Value> {
    let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
    chat["messages"].as_array().unwrap().clone()
}

fn heard(input: Value, restored: Option<&[Value]>) -> Heard {
    let body = json!({"model": "m", "instructions": "One.", "input": input}).to_string();
    match restored {
        None => request(body.as_bytes(), &Items::new()).unwrap(),
        Some(all) => {
            let messages = all.iter().map(|message| Bytes::from(message.to_string())).collect();
            let before = Before { messages, ..Before::default() };
            let on = On { restored: Some(&before), ..On::default() };
            standing_on(body.as_bytes(), &Items::new(), on).unwrap()
        }
    }
}

#[test]
fn what_a_request_asks_for_is_read() {
    let of = |body: Value| wanted(body.to_string().as_bytes());
    let trigger = json!({"type": "compaction_trigger"});
    assert!(of(json!({"input": [user("a"), trigger]})).unwrap().now);
    assert!(!of(json!({"input": [trigger, user("a")]})).unwrap().now);
    assert!(!of(json!({"input": "compaction_trigger"})).unwrap().now);
    let within = |entries: Value| of(json!({"input": "a", "context_management": entries}));
    assert_eq!(within(json!(null)).unwrap().within, None);
    assert_eq!(within(json!([])).unwrap().within, None);
    assert_eq!(within(json!([{"type": "compaction"}])).unwrap().within, Some(None));
    let two =
        json!([{"type": "compaction", "compact_threshold": 9000}, {"type": "compaction", "compact_threshold": 5000}]);
    assert_eq!(within(two).unwrap().within, Some(Some(5000)));
    for (wrong, param) in [
        (json!({"type": "compaction"}), "context_management"),
        (json!([{"type": "clear"}]), "context_management[0].type"),
        (json!([{"type": "compaction", "compact_threshold": "many"}]), "context_management[0].compact_threshold"),
        (json!([{"type": "compaction", "compact_threshold": 0}]), "context_management[0].compact_threshold"),
    ] {
        assert_eq!(within(wrong).unwrap_err().param(), Some(param));
    }
    let ours = item(&json!({"input": "a"}), "brief");
    let (mark, text) = of(json!({"input": [ours, user("b")]})).unwrap().newest.unwrap();
    assert!(opened(&KEY, &mark, &text).is_some());
    let foreign = json!({"type": "compaction", "encrypted_content": "gAAAAA"});
    assert_eq!(of(json!({"input": [foreign]})).unwrap().newest, None);
}

#[test]
fn a_reply_that_is_one_item_has_its_events_and_nothing_else() {
    let usage = crate::wire::dialect::said::Usage { prompt: Some(900), completion: Some(40), ..Default::default() };
    let done = Said { usage, finish: Some("stop".into()), ..compaction(Compaction::Done("X".into())) };
    let mut streamed = encoder(json!({"input": "a"}));
    let events = stream(&mut *streamed, &[compaction(Compaction::Begun), done.clone()]);
    assert_eq!(
        types(&events),
        ["created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done", "completed"]
    );
    assert_eq!(events[2]["item"], json!({"id": "cmp_1a", "type": "compaction", "encrypted_content": ""}));
    assert_eq!((&events[3]["item_id"], &events[3]["output_index"]), (&json!("cmp_1a"), &json!(0)));
    let response = &events[5]["response"];
    assert_eq!(response["output"], json!([{"id": "cmp_1a", "type": "compaction", "encrypted_content": "X"}]));
    assert_eq!((&response["usage"]["input_tokens"], &response["usage"]["output_tokens"]), (&json!(900), &json!(40)));
    let whole = encoder(json!({"input": "a"})).whole(&head(), &done);
    assert_eq!((&whole["output"], &whole["status"]), (&response["output"], &json!("completed")));
    // A client goes on from it by its id.
    assert!(streamed.kept().reply.is_some());
}

#[test]
fn a_compaction_comes_before_what_is_said_in_the_same_reply() {
    let mut encoder = encoder(json!({"input": "a"}));
    let all = [compaction(Compaction::Begun), compaction(Compaction::Done("X".into())), said("Hi"), finish("stop")];
    let events = stream(&mut *encoder, &all);
    let response = events.last().unwrap()["response"].clone();
    assert_eq!(response["output"][0]["encrypted_content"], "X");
    assert_eq!(response["output"][1]["content"][0]["text"], "Hi");
    assert_eq!(events.iter().filter(|event| event["type"] == "response.output_item.done").count(), 2);
}

#[test]
fn an_item_of_ours_stands_for_all_before_it() {
    let first =
        json!({"model": "m", "input": [{"role": "developer", "content": "Be brief."}, user("OLD"), user("OLDER")]});
    let ours = item(&first, "[windowsill brief of 2 messages] OLD");
    let answer = json!({"role": "assistant", "content": "GONE"});
    // As a client sends it that prunes nothing, and one that does.
    for input in [json!([user("OLD"), answer, ours, user("NEW")]), json!([ours, user("NEW")])] {
        let got = messages(&heard(input.clone(), None));
        let contents: Vec<&str> = got.iter().map(|m| m["content"].as_str().unwrap()).collect();
        // It says by itself what it is.
        let brief = "[windowsill brief of 2 messages] OLD";
        assert_eq!(contents, ["One.\n\nBe brief.", brief, "NEW"]);
        let recorded = [user("OLD"), json!({"role": "assistant", "content": "KEPT"}), user("OLDER")];
        let heard = heard(input, Some(&recorded));
        assert!(heard.unsaid.warnings.is_empty());
        let got = messages(&heard);
        assert_eq!(got[1..4], recorded);
        assert_eq!((got.len(), &got[4]), (5, &user("NEW")));
    }
}

#[test]
fn what_a_client_says_anew_before_an_item_stays() {
    let ours =
        item(&json!({"model": "m", "input": [{"role": "developer", "content": "First."}, user("OLD")]}), "about OLD");
    // Codex puts its instructions and what it says of the project in front of the item again.
    let input =
        json!([user("OLD"), {"role": "developer", "content": "Second."}, user("# AGENTS.md"), ours, user("NEW")]);
    let got = messages(&heard(input.clone(), Some(&[user("OLD")])));
    assert_eq!(
        got,
        [json!({"role": "system", "content": "One.\n\nSecond."}), user("OLD"), user("# AGENTS.md"), user("NEW")]
    );
    let got = messages(&heard(input, None));
    assert_eq!(got[1]["content"], "[summary of the earlier conversation]\nabout OLD");
    assert_eq!(got[2..], [user("# AGENTS.md"), user("NEW")]);
}

#[test]
fn the_newest_item_counts_and_a_foreign_one_is_left_out_with_a_warning() {
    let old = item(&json!({"input": "a"}), "first brief");
    let new = item(&json!({"input": "b"}), "second brief");
    let got = messages(&heard(json!([old, user("between"), new, user("NEW")]), None));
    assert!(!json!(got).to_string().contains("first brief") && json!(got).to_string().contains("second brief"));
    let foreign = json!({"type": "compaction", "encrypted_content": "gAAAAA"});
    let heard = heard(json!([user("OLD"), foreign, user("NEW")]), None);
    assert_eq!(messages(&heard).len(), 3, "what stands before it is not thrown away for it");
    assert!(heard.unsaid.warnings[0].contains("compaction"), "{:?}", heard.unsaid.warnings);
}

#[test]
fn a_text_that_was_changed_is_only_a_text() {
    let ours = item(&json!({"input": "a"}), "what was said");
    let whole = ours["encrypted_content"].as_str().unwrap();
    let (mark, text) = parted(whole).unwrap();
    let changed = joined(mark, &text.replace("what was said", "other"));
    let (mark, text) = parted(&changed).unwrap();
    assert_eq!(opened(&KEY, mark, text), None);
    let got = messages(&heard(json!([{"type": "compaction", "encrypted_content": changed}, user("NEW")]), None));
    assert_eq!(got[1]["content"], "[summary of the earlier conversation]\nother");
}

#[test]
fn prompt_cache_options_are_taken_without_a_word() {
    let mark = json!({"mode": "explicit"});
    let part = json!({"type": "input_text", "text": "hi", "prompt_cache_breakpoint": mark});
    let body = json!({"model": "m", "input": [{"role": "user", "content": [part]}],
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}});
    let heard = request(body.to_string().as_bytes(), &Items::new()).unwrap();
    assert!(heard.unsaid.warnings.is_empty() && !String::from_utf8_lossy(&heard.chat).contains("cache"));
}
