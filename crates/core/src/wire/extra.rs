//! `extra_content`: what a server says of a call beside its name and arguments, and must hear again with it. Gemini's OpenAI-style
//! API gives the signature of the thoughts before a call there (`extra_content.google.thought_signature`), and its newer models
//! refuse a history without it.
//!
//! Messages and Responses have no field for it, and their clients bring back no field that they do not know. What every client
//! brings back is the id of a call, so it goes there, and is taken out again before the server sees the id.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::conversation::Digest;

/// The field of a call.
pub const FIELD: &str = "extra_content";

/// Stands in an id before what it carries. Ids of Anthropic's calls have letters, digits, `_` and `-` alone.
const MARK: &str = "__extra_content__";

/// Digits of an id that is made up for a call without one.
const DIGITS: usize = 16;

/// The id of a call as its client gets it: its own, and the call's `extra_content` behind it. `None` for a call without either, and
/// for a later piece of one: its id is told already.
pub fn with_extra(call: &Value) -> Option<String> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
    let id = text(call.get("id"));
    let extra = call.get(FIELD).filter(|extra| extra.as_object().is_some_and(|fields| !fields.is_empty()));
    let begins = id.is_some() || text(call.pointer("/function/name")).is_some();
    let Some(extra) = extra.filter(|_| begins).map(Value::to_string) else { return id };
    let id = id.unwrap_or_else(|| format!("call_{}", &Digest::of(extra.as_bytes()).hex()[..DIGITS]));
    Some(format!("{id}{MARK}{}", URL_SAFE_NO_PAD.encode(extra)))
}

/// An id that a client brings back: the server's own, and the `extra_content` that it carries.
pub fn without_extra(id: &str) -> (&str, Option<Value>) {
    let carried = id.split_once(MARK).and_then(|(own, carried)| {
        let extra: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(carried).ok()?).ok()?;
        Some((own, extra)).filter(|(_, extra)| extra.is_object())
    });
    carried.map_or((id, None), |(own, extra)| (own, Some(extra)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::dialect::said::Said;
    use crate::wire::dialect::{Head, Heard, anthropic, ollama, responses};

    fn head() -> Head {
        Head { id: "1".into(), created: 1, prompt_tokens: None, window: None }
    }

    /// The messages of the next request, where a reply to the first called with a signature.
    fn next(hear: impl Fn(Value) -> Heard, user: &Value, go_on: impl Fn(&Value) -> Value) -> (Value, Value) {
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "Ab+/c=="}}});
        let chunk = |key: &str| json!({"choices": [{key: {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        let said = |key: &str| Said::of(&chunk(key)).unwrap();
        let whole = hear(user.clone()).encoder.whole(&head(), &said("message"));
        let mut encoder = hear(user.clone()).encoder;
        let streamed = encoder.start(&head()) + &encoder.chunk(&said("delta")) + &encoder.end();
        let heard = hear(go_on(&whole));
        let id = with_extra(&call).unwrap();
        assert!(streamed.contains(&format!("\"{id}\"")) && whole.to_string().contains(&id), "{streamed}\n{whole}");
        (call, serde_json::from_slice(&heard.chat).unwrap())
    }

    #[test]
    fn a_server_hears_its_signature_again_whatever_its_client_speaks() {
        let user = json!({"role": "user", "content": "go"});
        let messages = json!({"model": "m", "max_tokens": 9, "messages": [user]});
        let input = json!({"model": "m", "input": [user]});
        let chat = json!({"model": "m", "messages": [user]});
        let behind = |asked: &Value, list: &str, more: Vec<Value>| {
            let mut asked = asked.clone();
            asked[list].as_array_mut().unwrap().extend(more);
            asked
        };
        let all = [
            next(
                |asked| anthropic::request(asked.to_string().as_bytes()).unwrap(),
                &messages,
                |reply| {
                    let result =
                        json!({"type": "tool_result", "tool_use_id": reply["content"][0]["id"], "content": "7"});
                    let reply = json!({"role": "assistant", "content": reply["content"]});
                    behind(&messages, "messages", vec![reply, json!({"role": "user", "content": [result]})])
                },
            ),
            next(
                |asked| responses::request(asked.to_string().as_bytes(), &responses::Items::new()).unwrap(),
                &input,
                |reply| {
                    let call = reply["output"][0].clone();
                    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "7"});
                    behind(&input, "input", vec![call, result])
                },
            ),
            next(
                |asked| ollama::chat(asked.to_string().as_bytes()).unwrap().unwrap(),
                &chat,
                |reply| {
                    let call = &reply["message"]["tool_calls"][0]["id"];
                    let result = json!({"role": "tool", "content": "7", "tool_call_id": call});
                    behind(&chat, "messages", vec![reply["message"].clone(), result])
                },
            ),
        ];
        for (mut call, asked) in all {
            call.as_object_mut().unwrap().shift_remove("index");
            assert_eq!(asked["messages"][1]["tool_calls"], json!([call]));
            assert_eq!(asked["messages"][2]["tool_call_id"], "call_1");
        }
    }

    #[test]
    fn an_id_carries_what_a_server_must_hear_again() {
        let extra = json!({"google": {"thought_signature": "Ab+/c==", "z": 1, "a": 2}});
        let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": "{}"}, "extra_content": extra});
        let id = with_extra(&call("call_1")).unwrap();
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')), "{id}");
        let (own, back) = without_extra(&id);
        assert_eq!((own, back.map(|back| back.to_string())), ("call_1", Some(extra.to_string())), "its bytes, too");
        // Older models of Gemini's give no ids.
        let made = with_extra(&call("")).unwrap();
        assert!(without_extra(&made).0.starts_with("call_") && made == with_extra(&call("")).unwrap(), "{made}");
        for plain in [json!({"id": "call_1"}), json!({"id": "call_1", "extra_content": {}})] {
            assert_eq!(with_extra(&plain).as_deref(), Some("call_1"));
        }
        assert_eq!(with_extra(&json!({"function": {"arguments": "{}"}, "extra_content": extra})), None);
        for foreign in ["call_1", "call_1__extra_content__", "a__extra_content__!!", "a__extra_content__MQ"] {
            assert_eq!(without_extra(foreign), (foreign, None));
        }
    }
}
