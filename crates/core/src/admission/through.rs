//! Calls of tools that the list does not show, as the model makes them: through the index. The client knows them by their own
//! names, and sends them back so; a model that sees such a name, and cannot call it so, would be misled.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::NAME;
use crate::wire::json::{self, Fields};

/// The bytes of a message with its calls of hidden tools made through the index; `None` where it has none.
pub fn through(message: &[u8], hidden: &HashSet<String>) -> Option<Bytes> {
    let text = std::str::from_utf8(message).ok()?;
    let calls = Fields::read(text).ok()?.get("tool_calls")?;
    let all: Vec<&RawValue> = serde_json::from_str(calls).ok()?;
    let mut changed = false;
    let said: Vec<String> = all
        .iter()
        .map(|call| match renamed(call.get(), hidden) {
            Some(renamed) => {
                changed = true;
                renamed
            }
            None => call.get().to_owned(),
        })
        .collect();
    if !changed {
        return None;
    }
    json::with_fields(text, &[("tool_calls", Some(&format!("[{}]", said.join(","))))]).ok()
}

fn renamed(call: &str, hidden: &HashSet<String>) -> Option<String> {
    let function = Fields::read(call).ok()?.get("function")?;
    let fields = Fields::read(function).ok()?;
    let name = fields.string("name").filter(|n| hidden.contains(n))?;
    let written = fields.get("arguments").unwrap_or("{}");
    // A string that holds an object, mostly; some clients send the object itself.
    let arguments = json::string(written).unwrap_or_else(|| written.to_owned());
    let inner = if serde_json::from_str::<&RawValue>(&arguments).is_ok() { arguments } else { json::quote(&arguments) };
    let given = format!("{{\"name\": {}, \"arguments\": {}}}", json::quote(&name), inner.trim());
    let changes = [("name", Some(json::quote(NAME))), ("arguments", Some(json::quote(&given)))];
    let changes: Vec<(&str, Option<&str>)> = changes.iter().map(|(k, v)| (*k, v.as_deref())).collect();
    let function = json::with_fields(function, &changes).ok()?;
    let function = String::from_utf8_lossy(&function);
    Some(String::from_utf8_lossy(&json::with_fields(call, &[("function", Some(&function))]).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn hidden_tools_are_called_through_the_index_and_all_else_keeps_its_bytes() {
        let hidden = HashSet::from(["Grep".to_owned()]);
        let call = |name: &str, arguments: Value| {
            json!({"id": "a", "type": "function", "x": 1.50,
            "function": {"name": name, "arguments": arguments}})
        };
        let none = json!({"role": "assistant", "tool_calls": [call("Bash", json!("{}"))]}).to_string();
        assert_eq!(through(none.as_bytes(), &hidden), None);
        assert_eq!(through(b"{\"role\":\"user\",\"content\":\"Grep\"}", &hidden), None);
        for (arguments, given) in [
            (json!("{\"p\" : 1.0}"), "{\"name\": \"Grep\", \"arguments\": {\"p\" : 1.0}}"),
            (json!({"p": 1}), "{\"name\": \"Grep\", \"arguments\": {\"p\":1}}"),
            (json!("no json"), "{\"name\": \"Grep\", \"arguments\": \"no json\"}"),
        ] {
            let message = json!({"role": "assistant", "content": null,
                "tool_calls": [call("Bash", json!("{}")), call("Grep", arguments)]});
            let out: Value =
                serde_json::from_slice(&through(message.to_string().as_bytes(), &hidden).unwrap()).unwrap();
            let mut expected = message.clone();
            expected["tool_calls"][1]["function"] = json!({"name": NAME, "arguments": given});
            assert_eq!(out, expected);
        }
    }
}
