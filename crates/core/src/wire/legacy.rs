//! The form that OpenAI had for tools before `tools`: `functions` and `function_call` in a request, `function_call` in a message
//! and results of the role `function`. A request in that form is said in the newer one where a server knows no other, and the
//! reply in the older one to a client that knows no other.
//!
//! Pure. It never touches a request that has `tools`.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::json::Fields;
use super::reply;

/// The `functions` of a request as `tools`, each spelled as it came. `None` where it has none, or has `tools` of its own.
pub fn tools(body: &[u8]) -> Option<String> {
    memchr::memmem::find(body, b"\"functions\"")?;
    let text = std::str::from_utf8(body).ok()?;
    let fields = Fields::read(text).ok()?;
    if fields.get("tools").is_some_and(|tools| tools != "null") {
        return None;
    }
    let functions: Vec<&RawValue> = serde_json::from_str(fields.get("functions")?).ok()?;
    let all: Vec<String> =
        functions.iter().map(|function| format!("{{\"type\":\"function\",\"function\":{}}}", function.get())).collect();
    (!all.is_empty()).then(|| format!("[{}]", all.join(",")))
}

/// Says a request in the newer form, as a translation to another API does. Returns whether anything changed.
pub fn modern(request: &mut Value) -> bool {
    let mut changed = false;
    let Some(fields) = request.as_object_mut() else { return false };
    let functions = fields.get("functions").and_then(Value::as_array).filter(|all| !all.is_empty());
    if let Some(functions) = functions
        && fields.get("tools").is_none_or(Value::is_null)
    {
        let tools = functions.iter().map(|function| json!({"type": "function", "function": function})).collect();
        fields.insert("tools".into(), tools);
        changed = true;
    }
    let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
        if message.get("role").is_some_and(|role| role == "function") {
            message.insert("role".into(), "tool".into());
            changed = true;
        }
        let has_calls = message.get("tool_calls").is_some_and(reply::says);
        if let Some(call) = message.remove("function_call").filter(|call| call.is_object() && !has_calls) {
            message.insert("tool_calls".into(), json!([{"type": "function", "function": call}]));
            changed = true;
        }
    }
    changed
}

/// Says a reply, or a chunk of one, in the older form, which has room for one call: the first. Returns whether anything changed.
pub fn told(reply: &mut Value) -> bool {
    let mut changed = false;
    for choice in reply.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten() {
        if choice.get("finish_reason").is_some_and(|finish| finish == "tool_calls") {
            choice["finish_reason"] = "function_call".into();
            changed = true;
        }
        for said in ["delta", "message"] {
            let Some(said) = choice.get_mut(said).and_then(Value::as_object_mut) else { continue };
            let Some(Value::Array(calls)) = said.remove("tool_calls") else { continue };
            changed = true;
            let first = calls.into_iter().enumerate().find(|(at, call)| {
                let index = call.get("index").and_then(Value::as_u64);
                index.unwrap_or(*at as u64) == 0
            });
            if let Some(function) = first.and_then(|(_, call)| call.get("function").cloned()) {
                said.insert("function_call".into(), function);
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_tools() {
        let said = |body: Value| tools(body.to_string().as_bytes());
        let function = json!({"name": "f", "parameters": {"type": "object", "maximum": 1.10}});
        let expected = format!("[{{\"type\":\"function\",\"function\":{function}}}]");
        assert_eq!(said(json!({"messages": [], "functions": [function]})), Some(expected.clone()));
        assert_eq!(said(json!({"functions": [function], "tools": null})), Some(expected));
        for none in
            [json!({"functions": []}), json!({"functions": "f"}), json!({"functions": null}), json!({"a": "functions"})]
        {
            assert_eq!(said(none.clone()), None, "{none}");
        }
        assert_eq!(said(json!({"functions": [function], "tools": []})), None, "what the client says itself counts");
    }

    #[test]
    fn a_history_in_the_older_form_is_said_in_the_newer_one() {
        let call = json!({"name": "f", "arguments": "{}"});
        let mut request = json!({"functions": [{"name": "f"}], "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "function_call": call},
            {"role": "function", "name": "f", "content": "done"}]});
        assert!(modern(&mut request));
        assert_eq!(request["tools"], json!([{"type": "function", "function": {"name": "f"}}]));
        let said = json!([{"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "name": "f", "content": "done"}]);
        assert_eq!(request["messages"], said);
        assert!(!modern(&mut request), "once is enough");
        assert!(!modern(&mut json!([])) && !modern(&mut json!({"messages": ["a", {"role": 7}]})));
    }

    #[test]
    fn a_reply_is_told_in_the_older_form() {
        let call = |index: u64, name: &str| json!({"index": index, "id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}});
        let mut chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call(0, "f"), call(1, "g")]}, "finish_reason": null}]});
        assert!(told(&mut chunk));
        assert_eq!(chunk["choices"][0]["delta"], json!({"function_call": {"name": "f", "arguments": "{}"}}));
        let mut later = json!({"choices": [{"delta": {"tool_calls": [call(1, "g")]}, "finish_reason": "tool_calls"}]});
        assert!(told(&mut later));
        assert_eq!(later["choices"][0], json!({"delta": {}, "finish_reason": "function_call"}));
        let mut words = json!({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]});
        assert!(!told(&mut words));
    }
}
