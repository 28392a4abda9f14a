//! Whether two spellings of one message are the same to every model. The chain hash is more generous: it finds a
//! conversation again whatever its client did to the edges of texts. What is *forwarded* in the place of a message must give
//! the same prompt, whatever chat template makes it.
//!
//! No model sees the order of keys, `cache_control`, fields that are null or empty, the white space inside arguments, or
//! whether a single text stands alone or as the one part of a list. The ids of calls are compared by the place of the call: some
//! templates print them, and a result belongs to its call by them, so a step is only ever exchanged whole. All else counts:
//! edges of texts, names, reasoning, fields that nobody here knows.

use serde_json::{Map, Value};

use super::Message;
use crate::wire::json;

/// What a client may have left out since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// Nothing: the reasoning counts as all else.
    Counts,
    /// The reasoning of a call that it sent once: clients take it out of a turn's earlier steps. Other reasoning counts.
    MayBeGone,
}

const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Whether a run of messages that belong together (a step: the calls of an assistant and their results, or any other message
/// alone) reads the same to every model in both spellings. Results of parallel calls may stand in another order: each is
/// compared with the one that answers the same call.
pub fn same_step(before: &[Message], now: &[Message], reasoning: Reasoning) -> bool {
    let (Some((first, results)), Some((now_first, now_results))) = (before.split_first(), now.split_first()) else {
        return before.is_empty() && now.is_empty();
    };
    if results.len() != now_results.len() || !same(first, now_first, reasoning) {
        return false;
    }
    let answers = |caller: &Message, results: &[Message]| -> Option<Vec<(usize, Value)>> {
        let place = |(nth, result): (usize, &Message)| {
            let id = result.call_id.as_deref().unwrap_or("");
            let by_id = caller.calls.iter().position(|call| !id.is_empty() && call.id == id);
            Some((by_id.unwrap_or(nth), normal(result)?.into()))
        };
        let mut all: Vec<(usize, Value)> = results.iter().enumerate().map(place).collect::<Option<_>>()?;
        all.sort_by_key(|(call, _)| *call);
        Some(all)
    };
    let both = answers(first, results).zip(answers(now_first, now_results));
    both.is_some_and(|(before, now)| before == now)
}

fn same(before: &Message, now: &Message, reasoning: Reasoning) -> bool {
    let (Some(mut before), Some(now)) = (normal(before), normal(now)) else { return false };
    let thinks = |message: &Map<String, Value>| REASONING.iter().any(|key| message.contains_key(*key));
    if reasoning == Reasoning::MayBeGone && before.contains_key("tool_calls") && !thinks(&now) {
        before.retain(|key, _| !REASONING.contains(&key.as_str()));
    }
    before == now
}

/// A message without what no model sees. `None` for what is no object.
fn normal(message: &Message) -> Option<Map<String, Value>> {
    let raw = if message.raw.is_empty() { message.bytes() } else { &message.raw };
    let Ok(Value::Object(fields)) = json::value(&String::from_utf8_lossy(raw)) else { return None };
    let mut out = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            "cache_control" | "tool_call_id" => continue,
            "content" => content(value),
            "tool_calls" => calls(value),
            "function_call" => function(value),
            _ => value,
        };
        if !says_nothing(&value) {
            out.insert(key, value);
        }
    }
    Some(out)
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn content(content: Value) -> Value {
    let Value::Array(parts) = content else { return content };
    let mut parts: Vec<Value> = parts.into_iter().map(part).collect();
    match parts.as_slice() {
        [Value::String(_)] => parts.remove(0),
        _ => Value::Array(parts),
    }
}

/// A part; one that holds a text and nothing else is that text.
fn part(part: Value) -> Value {
    let Value::Object(mut fields) = part else { return part };
    fields.retain(|key, value| key != "cache_control" && (key == "text" || !says_nothing(value)));
    let is_text = fields.len() == 2 && fields.get("type").is_some_and(|kind| kind == "text");
    match fields.get_mut("text") {
        Some(text @ Value::String(_)) if is_text => text.take(),
        _ => Value::Object(fields),
    }
}

fn calls(calls: Value) -> Value {
    let Value::Array(calls) = calls else { return calls };
    let one = |call: Value| {
        let Value::Object(mut fields) = call else { return call };
        fields.retain(|key, value| !matches!(key.as_str(), "id" | "cache_control") && !says_nothing(value));
        if let Some(called) = fields.get_mut("function") {
            *called = function(called.take());
        }
        Value::Object(fields)
    };
    Value::Array(calls.into_iter().map(one).collect())
}

/// A call with its arguments as a value, where they are one.
fn function(function: Value) -> Value {
    let Value::Object(mut fields) = function else { return function };
    if let Some(Value::String(text)) = fields.get("arguments")
        && let Ok(arguments @ Value::Object(_)) = json::value(text.trim())
    {
        fields.insert("arguments".into(), arguments);
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::openai_chat::message;

    fn say(raw: &str) -> Message {
        message(Bytes::from(raw.to_owned())).unwrap()
    }

    fn is_same(before: &str, now: &str) -> bool {
        same_step(&[say(before)], &[say(now)], Reasoning::Counts)
    }

    #[test]
    fn what_no_model_sees() {
        let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\" : 1,\"a\":2}"}}]}"#;
        for (before, now) in [
            (r#"{"role":"user","content":"caf\u00e9"}"#, r#"{ "content" : "café", "role":"user" }"#),
            (
                r#"{"role":"user","content":"a"}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}"#,
            ),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}]}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"cache_control":{}}"#,
            ),
            (
                call,
                r#"{"role":"assistant","content":"","reasoning_content":"","refusal":null,"tool_calls":[{"id":"2","type":"function","function":{"name":"f","arguments":"{\"a\":2,\"b\":1}"}}]}"#,
            ),
            (
                call,
                r#"{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"a":2,"b":1}}}]}"#,
            ),
        ] {
            assert!(is_same(before, now) && is_same(now, before), "{before} {now}");
        }
    }

    #[test]
    fn what_a_model_may_see() {
        let user = |content: &str| format!(r#"{{"role":"user","content":{content}}}"#);
        let with = |field: &str| format!(r#"{{"role":"user","content":"a",{field}}}"#);
        let calls = |arguments: &str| {
            format!(
                r#"{{"role":"assistant","tool_calls":[{{"id":"1","type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}]}}"#
            )
        };
        for (before, now) in [
            (user(r#""a""#), user(r#""a\n""#)),
            (user(r#""a""#), user(r#"" a""#)),
            (user(r#""ab""#), user(r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#)),
            (user(r#""a""#), r#"{"role":"assistant","content":"a"}"#.to_owned()),
            (with(r#""name":"alice""#), with(r#""name":"bob""#)),
            (with(r#""name":"alice""#), user(r#""a""#)),
            (with(r#""prefix":true"#), user(r#""a""#)),
            (with(r#""x":1.10"#), with(r#""x":1.1"#)),
            (with(r#""refusal":"no""#), user(r#""a""#)),
            (with(r#""reasoning_content":"x""#), user(r#""a""#)),
            (
                user(r#"[{"type":"image_url","image_url":{"url":"x","detail":"low"}}]"#),
                user(r#"[{"type":"image_url","image_url":{"url":"x","detail":"high"}}]"#),
            ),
            (calls(r#"{\"n\":12345678901234567890123}"#), calls(r#"{\"n\":12345678901234567890124}"#)),
            (calls("{ "), calls("{")),
        ] {
            assert!(!is_same(&before, &now) && !is_same(&now, &before), "{before} {now}");
        }
    }

    #[test]
    fn steps_are_compared_whole() {
        let call = |a: &str, b: &str, more: &str| {
            say(&format!(
                r#"{{"role":"assistant"{more},"tool_calls":[{{"id":"{a}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}},{{"id":"{b}","type":"function","function":{{"name":"g","arguments":"{{}}"}}}}]}}"#
            ))
        };
        let result =
            |id: &str, text: &str| say(&format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{text}"}}"#));
        let before = [call("a", "b", ""), result("a", "x"), result("b", "y")];
        let turned = [call("c", "d", ""), result("d", "y"), result("c", "x")];
        let crossed = [call("c", "d", ""), result("d", "x"), result("c", "y")];
        let shorter = [call("a", "b", ""), result("a", "x")];
        assert!(same_step(&before, &turned, Reasoning::Counts));
        assert!(!same_step(&before, &crossed, Reasoning::Counts) && !same_step(&before, &shorter, Reasoning::Counts));
        let thought = [call("a", "b", r#","reasoning_content":"hm""#), result("a", "x"), result("b", "y")];
        assert!(same_step(&thought, &before, Reasoning::MayBeGone));
        assert!(!same_step(&before, &thought, Reasoning::MayBeGone));
        assert!(!same_step(&thought, &before, Reasoning::Counts));
    }
}
