//! What a client goes on from by an id, and what OpenResponses and llama.cpp want to see.

use bytes::Bytes;
use serde_json::{Value, json};

use super::listener::{finish, head, part, said, stream, thought, types};
use super::{Before, Items, going_on, request};
use crate::wire::dialect::said::{Said, Telemetry};
use crate::wire::dialect::{Answered, Heard, ReplyEncoder};

fn heard(body: &Value, before: Option<&Before>) -> Heard {
    let body = body.to_string();
    match before {
        Some(before) => going_on(body.as_bytes(), &Items::new(), before).unwrap(),
        None => request(body.as_bytes(), &Items::new()).unwrap(),
    }
}

fn chat(heard: &Heard) -> Value {
    serde_json::from_slice(&heard.chat).unwrap()
}

/// What the record gives back of a request and the reply to it: the messages without leading system messages.
fn recorded(heard: &Heard, answered: &Answered) -> Before {
    let messages = chat(heard)["messages"].as_array().unwrap().clone();
    let messages = messages.iter().skip_while(|message| message["role"] == "system");
    let messages = messages.map(|message| Bytes::from(message.to_string())).collect();
    Before { head: answered.head.clone(), messages, reply: answered.json.clone() }
}

fn answer(encoder: &mut dyn ReplyEncoder, reply: &[Said]) -> Answered {
    stream(encoder, reply);
    encoder.kept().reply.unwrap()
}

#[test]
fn a_request_that_goes_on_says_what_the_whole_history_would() {
    let tools = json!([{"type": "function", "name": "f"}]);
    let developer = json!({"role": "developer", "content": "Be brief."});
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = json!({"model": "m", "instructions": "One.", "tools": tools, "input": [developer, user("Weather?")]});
    let mut one = heard(&first, None);
    let called =
        answer(&mut *one.encoder, &[thought("Hm."), part(0, Some("c1"), Some("f"), "{\"a\":1}"), finish("tool_calls")]);
    assert_eq!(called.id, "resp_1a");
    let before = recorded(&one, &called);
    let result = json!({"type": "function_call_output", "call_id": "c1", "output": "18"});
    let next = json!({"model": "m", "instructions": "Two.", "tools": tools, "previous_response_id": "resp_1a", "input": [result]});
    assert_eq!(heard(&next, None).follows.as_deref(), Some("resp_1a"), "it must be looked for");
    let mut two = heard(&next, Some(&before));
    assert_eq!(two.follows, None);
    let call = json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"});
    let thought = json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]});
    let whole = json!({"model": "m", "instructions": "Two.", "tools": tools,
        "input": [developer, user("Weather?"), thought, call, result]});
    assert_eq!(
        chat(&two),
        chat(&heard(&whole, None)),
        "instructions are those of the request, and the developer's words stay"
    );
    // And so on, from the reply to that.
    let said = answer(&mut *two.encoder, &[said("18 degrees."), finish("stop")]);
    let before = recorded(&two, &said);
    let last = heard(&json!({"model": "m", "previous_response_id": "resp_1a", "input": "Thanks."}), Some(&before));
    let messages = chat(&last)["messages"].clone();
    let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
    assert_eq!((&messages[0]["content"], &messages[4]["content"]), (&json!("Be brief."), &json!("18 degrees.")));
}

#[test]
fn a_reply_is_kept_as_it_was_told() {
    for end in ["stop", "length"] {
        let mut one = heard(&json!({"model": "m", "input": "x"}), None);
        let events = stream(&mut *one.encoder, &[thought("Hm."), said("a"), finish(end)]);
        let kept = one.encoder.kept().reply.unwrap();
        let told = &events.last().unwrap()["response"];
        assert_eq!(super::stored::response("resp_1a", &kept.head, &kept.json), *told, "{end}");
    }
}

#[test]
fn only_a_reply_that_is_whole_and_may_be_stored_is_kept() {
    let of = |body: Value, reply: &[Said]| {
        let mut encoder = heard(&body, None).encoder;
        stream(&mut *encoder, reply);
        encoder.kept()
    };
    let asked = json!({"model": "m", "input": "x"});
    let kept = of(asked.clone(), &[said("a"), finish("stop")]);
    assert_eq!((kept.items.len(), kept.reply.is_some()), (1, true));
    assert_eq!(of(json!({"model": "m", "input": "x", "store": false}), &[said("a")]), Default::default());
    let broken = Said { error: Some(json!({"message": "gone"})), ..Said::default() };
    assert_eq!(of(asked, &[said("a"), broken]).reply, None);
}

#[test]
fn what_is_kept_elsewhere_is_named_for_the_server_to_pass_over() {
    let asked = json!({"input": "x", "conversation": "conv_1", "prompt": {"id": "p"}});
    assert_eq!(heard(&asked, None).unsaid.elsewhere, ["conversation", "prompt"]);
    let nothing = json!({"input": "x", "conversation": null, "previous_response_id": null});
    assert_eq!((heard(&nothing, None).unsaid.elsewhere.len(), heard(&nothing, None).follows), (0, None));
}

#[test]
fn every_field_that_openresponses_wants_is_there_in_each_event() {
    let asked = json!({"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "tools": [{"type": "function", "name": "f", "parameters": {}}]});
    let mut encoder = heard(&asked, None).encoder;
    let mut events = stream(&mut *encoder, &[said("{}"), finish("stop")]);
    events.retain(|event| event.get("response").is_some());
    assert_eq!(types(&events), ["created", "in_progress", "completed"]);
    for event in &events {
        let response = &event["response"];
        for number in ["temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"] {
            assert!(response[number].is_number(), "{number}: {response}");
        }
        assert!(response["service_tier"].is_string() && response.get("completed_at").is_some(), "{response}");
        assert!(response["tools"][0].get("strict").is_some_and(Value::is_null), "{response}");
        let format = &response["text"]["format"];
        assert_eq!((&format["description"], &format["strict"]), (&Value::Null, &json!(false)));
    }
    assert!(events[2]["response"]["completed_at"].is_u64() && events[1]["response"]["completed_at"].is_null());
    let mut later = heard(&asked, None).encoder;
    later.start(&head());
    later.at(1_800_000_000);
    assert!(later.end().contains("\"completed_at\":1800000000"));
}

#[test]
fn logprobs_and_telemetry_are_told_to_those_who_ask() {
    let token = |text: &str| json!({"token": text, "logprob": -0.5, "bytes": [1], "top_logprobs": []});
    let piece = |text: &str| Said {
        logprobs: vec![token(text)],
        telemetry: Telemetry { timings: Some(json!({"predicted_n": 1})), progress: None },
        ..said(text)
    };
    let reading = Said {
        telemetry: Telemetry { timings: None, progress: Some(json!({"total": 9, "processed": 4})) },
        ..Said::default()
    };
    let reply = [reading, piece("a"), piece("b"), finish("stop")];
    let asked = json!({"model": "m", "input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "timings_per_token": true, "return_progress": true});
    let mut asker = heard(&asked, None);
    let sent = chat(&asker);
    for (key, value) in [("logprobs", json!(true)), ("top_logprobs", json!(2)), ("return_progress", json!(true))] {
        assert_eq!(sent[key], value, "{key}");
    }
    let events = stream(&mut *asker.encoder, &reply);
    let of = |kind: &str| events.iter().filter(|e| e["type"] == format!("response.{kind}")).collect::<Vec<_>>();
    assert_eq!(of("in_progress")[1]["prompt_progress"]["processed"], 4);
    for (delta, text) in of("output_text.delta").into_iter().zip(["a", "b"]) {
        assert_eq!((&delta["logprobs"], &delta["timings"]["predicted_n"]), (&json!([token(text)]), &json!(1)));
    }
    let all = json!([token("a"), token("b")]);
    assert_eq!(of("output_text.done")[0]["logprobs"], all);
    assert_eq!(of("completed")[0]["timings"]["predicted_n"], 1);
    assert_eq!(of("completed")[0]["response"]["output"][0]["content"][0]["logprobs"], all);
    let quiet = stream(&mut *heard(&json!({"model": "m", "input": "x"}), None).encoder, &reply);
    assert!(quiet.iter().all(|event| event.get("timings").is_none() && event.get("prompt_progress").is_none()));
}
