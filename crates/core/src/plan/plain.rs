//! Plain: a prompt in the words that every server takes. Clients leave things in their histories that some servers refuse, and a
//! history that is refused once is refused at every turn. So what a server refuses is said again plainly, and what cannot be said
//! plainly becomes a line of text. What the person asks last is the client's to mend: it stays as it is.
//!
//! Pure, and the same for the same messages: a longer history begins with the shorter one.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::rewrite::Out;
use crate::conversation::{Conversation, Plainness, Role, step};
use crate::wire::{json as spelled, openai_chat as wire};

/// What stands before a result whose call is nowhere.
const ORPHAN: &str = "[result of an earlier call]";

/// Says results without their call as text of a user.
pub(super) fn orphans_as_text(messages: &mut [Out], conversation: &Conversation) {
    let is_orphan = |m: &Out| m.at.is_some_and(|at| step::is_orphan(&conversation.body, at));
    for m in messages.iter_mut().filter(|m| m.role == Role::Tool && is_orphan(m)) {
        as_user(m, ORPHAN);
    }
}

/// A message as one of a user, behind a line that says what it was.
fn as_user(m: &mut Out, line: &str) {
    let changed = edited(&m.bytes, |fields| {
        fields.retain(|key, _| matches!(key.as_str(), "role" | "content"));
        fields.insert("role".into(), "user".into());
        let content = match fields.remove("content") {
            Some(Value::String(text)) => format!("{line}\n{text}").into(),
            Some(Value::Array(mut parts)) => {
                parts.insert(0, json!({"type": "text", "text": line}));
                parts.into()
            }
            _ => line.into(),
        };
        fields.insert("content".into(), content);
    });
    if let Some(bytes) = changed {
        (m.bytes, m.role, m.calls, m.changed) = (bytes, Role::User, false, true);
    }
}

/// The bytes of a message with its fields changed; `None` where nothing differs.
fn edited(bytes: &Bytes, change: impl FnOnce(&mut Map<String, Value>)) -> Option<Bytes> {
    let Ok(Value::Object(before)) = spelled::value(&String::from_utf8_lossy(bytes)) else { return None };
    let mut fields = before.clone();
    change(&mut fields);
    (fields != before).then(|| Bytes::from(Value::Object(fields).to_string()))
}

/// Says a view plainly. What it does not change keeps its bytes.
pub fn plain(mut messages: Vec<Out>, conversation: &Conversation, how: Plainness) -> Vec<Out> {
    if how == Plainness::AsItCame {
        return messages;
    }
    let asked = messages.iter().rposition(|m| m.role == Role::User);
    orphans_as_text(&mut messages, conversation);
    let last = messages.len().saturating_sub(1);
    for (at, m) in messages.iter_mut().enumerate().filter(|(at, _)| Some(*at) != asked) {
        if m.role == Role::Other {
            let role = spelled::Fields::read(&String::from_utf8_lossy(&m.bytes)).ok().and_then(|f| f.string("role"));
            as_user(m, &format!("[{}]", short(&role.unwrap_or_default())));
        }
        // An assistant's words at the end are for the model to go on with.
        let goes_on = at == last && m.role == Role::Assistant && !m.calls;
        if let Some(bytes) = edited(&m.bytes, |fields| plainly(fields, how, goes_on)) {
            (m.bytes, m.changed) = (bytes, true);
        }
    }
    calls_without_names(&mut messages);
    one_at_the_end(&mut messages);
    messages
}

/// One message in known words.
fn plainly(fields: &mut Map<String, Value>, how: Plainness, goes_on: bool) {
    fields.retain(|key, value| !value.is_null() || key == "content");
    texts(fields, &["name", "tool_call_id", "reasoning_content", "reasoning", "refusal"]);
    if fields.get("role").is_some_and(|role| role == "developer") {
        fields.insert("role".into(), "system".into());
    }
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        calls.iter_mut().for_each(call);
        if calls.is_empty() {
            fields.shift_remove("tool_calls");
        }
    }
    let calls = fields.contains_key("tool_calls");
    let legacy = fields.contains_key("function_call");
    match fields.get_mut("content") {
        Some(Value::Array(parts)) if !goes_on => {
            parts.iter_mut().for_each(|p| part(p, how));
            if parts.is_empty() {
                fields.insert("content".into(), "".into());
            }
        }
        Some(Value::Null) if !calls && !legacy => drop(fields.insert("content".into(), "".into())),
        None if !calls => drop(fields.insert("content".into(), "".into())),
        _ => {}
    }
}

/// Has fields that are texts be texts.
fn texts(fields: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        if let Some(value) = fields.get_mut(*key).filter(|value| !value.is_string()) {
            *value = value.to_string().into();
        }
    }
}

/// A call as one of a function, with its type.
fn call(call: &mut Value) {
    let Value::Object(fields) = call else { return };
    fields.retain(|_, value| !value.is_null());
    texts(fields, &["id"]);
    if let Some(Value::Object(mut custom)) = fields.shift_remove("custom").filter(|_| !fields.contains_key("function"))
    {
        let name = custom.shift_remove("name").unwrap_or_default();
        let input = json!({"input": custom.shift_remove("input").unwrap_or_default()}).to_string();
        fields.insert("function".into(), json!({"name": name, "arguments": input}));
    }
    fields.insert("type".into(), "function".into());
    if let Some(Value::Object(function)) = fields.get_mut("function") {
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => "{}".into(),
            Some(Value::String(_)) => return,
            Some(other) => other.to_string(),
        };
        function.insert("arguments".into(), arguments.into());
    }
}

/// A part of a content: a text, a picture or a sound.
fn part(part: &mut Value, how: Plainness) {
    if let Value::String(text) = part {
        *part = json!({"type": "text", "text": text});
        return;
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = |key: &str| part.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    *part = match kind.as_str() {
        "text" if part.get("text").is_some_and(Value::is_string) => return,
        "" if part.get("text").is_none_or(|text| !text.is_string()) => left_out("a part without a type"),
        "" | "text" | "input_text" | "output_text" => json!({"type": "text", "text": text("text")}),
        "refusal" => json!({"type": "text", "text": text("refusal")}),
        "image_url" | "input_audio" if how < Plainness::Words => return,
        "image_url" | "input_image" | "image" => left_out("an image"),
        "input_audio" => left_out("a sound"),
        _ => left_out(&format!("a part of type `{}`", short(&kind))),
    };
}

/// The beginning of a name that a client may have made up.
fn short(name: &str) -> String {
    name.chars().take(40).collect()
}

fn left_out(what: &str) -> Value {
    json!({"type": "text", "text": format!("[{what} stood here, which this server does not take]")})
}

/// Calls that name no function, as text, with their results.
fn calls_without_names(messages: &mut [Out]) {
    let mut nameless = false;
    for m in messages {
        if m.role == Role::Tool && nameless {
            as_user(m, ORPHAN);
        } else if m.role != Role::Tool {
            let read = wire::message(m.bytes.clone()).ok().filter(|_| m.calls);
            nameless = read.as_ref().is_some_and(|read| read.calls.iter().any(|call| call.name.is_empty()));
            if let Some(read) = read.filter(|_| nameless) {
                let calls: Vec<String> =
                    read.calls.iter().map(|c| format!("[called {} with {}]", c.name, c.arguments)).collect();
                let text = format!("{}\n{}", read.text, calls.join("\n"));
                (m.bytes, m.calls, m.changed) = (wire::new_message("assistant", text.trim_start()), false, true);
            }
        }
    }
}

/// Two replies in a row at the end become one: the model goes on with the last.
fn one_at_the_end(messages: &mut Vec<Out>) {
    let is_reply = |m: &Out| m.role == Role::Assistant && !m.calls;
    while let [.., before, last] = messages.as_slice()
        && is_reply(before)
        && is_reply(last)
    {
        let text = |m: &Out| wire::message(m.bytes.clone()).map(|m| m.text.to_string()).unwrap_or_default();
        let texts = [text(before), text(last)];
        let all = texts.iter().filter(|t| !t.is_empty()).cloned().collect::<Vec<_>>().join("\n\n");
        let merged = Out { bytes: wire::with_text(&last.bytes, &all), changed: true, ..last.clone() };
        messages.truncate(messages.len() - 2);
        messages.push(merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::edit::View;
    use crate::conversation::repair;
    use crate::plan::TemplateFacts;
    use crate::plan::rewrite::rewrite;

    const USER: &str = r#"{"role":"user","content":"u"}"#;

    /// What a history becomes, with a last question behind it.
    fn said(messages: &[&str], how: Plainness) -> Vec<String> {
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        let mut conversation = wire::parse(&Bytes::from(body)).unwrap().conversation;
        conversation.body = repair::mend(conversation.body, None).body;
        conversation.plainness = how;
        let out = rewrite(&conversation, &View::default(), &TemplateFacts::default());
        out.iter().map(|m| String::from_utf8_lossy(&m.bytes).into_owned()).collect()
    }

    #[test]
    fn what_a_server_may_refuse_is_said_in_known_words() {
        for (raw, expect) in [
            (
                r#"{"role":"tool","tool_call_id":"c7","content":"8080"}"#,
                r#"{"role":"user","content":"[result of an earlier call]\n8080"}"#,
            ),
            (
                r#"{"role":"latest_reminder","content":"r","x":1}"#,
                r#"{"role":"user","content":"[latest_reminder]\nr"}"#,
            ),
            (r#"{"role":"user","content":"a","name":null}"#, r#"{"role":"user","content":"a"}"#),
            (r#"{"role":"user","content":"a","name":1.50}"#, r#"{"role":"user","content":"a","name":"1.50"}"#),
            (
                r#"{"role":"assistant","content":"a","reasoning_content":["b"],"tool_calls":[{"id":7,"type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
                r#"{"role":"assistant","content":"a","reasoning_content":"[\"b\"]","tool_calls":[{"id":"7","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            ),
            (r#"{"role":"user","content":null}"#, r#"{"role":"user","content":""}"#),
            (r#"{"role":"user","content":[]}"#, r#"{"role":"user","content":""}"#),
            (
                r#"{"role":"user","content":["a",{"type":"text","text":null},{"type":"file","file":{}}]}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"[a part of type `file` stood here, which this server does not take]"}]}"#,
            ),
            (
                r#"{"role":"assistant","content":"a","tool_calls":[{"function":{"arguments":"{}"}}]}"#,
                r#"{"role":"assistant","content":"a\n[called  with {}]"}"#,
            ),
        ] {
            // In front of what is asked now, and behind what was said before: the same.
            let first = said(&[raw, USER], Plainness::Plain);
            assert_eq!(first[0], expect, "{raw}");
            assert_eq!(first.last().unwrap(), USER);
            let later = said(&[USER, raw, USER], Plainness::Plain);
            assert_eq!((later[0].as_str(), later[1].as_str()), (USER, expect));
            assert_eq!(said(&[raw, USER], Plainness::AsItCame)[0], raw);
        }
    }

    #[test]
    fn calls_have_a_type_and_arguments_and_results_follow_them() {
        let custom = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"custom","custom":{"name":"f","input":"x"}}]}"#;
        let untyped = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":{"n":1.10}}}]}"#;
        let result = r#"{"role":"tool","tool_call_id":"a","content":"r"}"#;
        for (raw, arguments) in [(custom, r#"{\"input\":\"x\"}"#), (untyped, r#"{\"n\":1.10}"#)] {
            let out = said(&[USER, raw, result, USER], Plainness::Plain);
            assert!(out[1].contains(r#""type":"function""#) && out[1].contains(arguments), "{}", out[1]);
            assert_eq!(out[2], result);
        }
    }

    #[test]
    fn what_is_asked_now_stays_as_it_is() {
        let asked = r#"{"role":"user","content":[{"type":"file","file":{}}],"name":null}"#;
        let picture = r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#;
        for how in [Plainness::AsItCame, Plainness::Plain, Plainness::Words] {
            assert_eq!(said(&[USER, asked], how), [USER, asked]);
            assert_eq!(said(&[USER, picture], how), [USER, picture]);
        }
        assert_eq!(said(&[picture, USER], Plainness::Plain)[0], picture);
        assert!(said(&[picture, USER], Plainness::Words)[0].contains("[an image stood here"));
    }

    #[test]
    fn two_replies_at_the_end_are_one_that_ends_as_the_last() {
        let (a, b) = (r#"{"role":"assistant","content":"a"}"#, r#"{"role":"assistant","content":"def f():\n    "}"#);
        let merged = r#"{"role":"assistant","content":"a\n\ndef f():\n    "}"#;
        assert_eq!(said(&[USER, a, b], Plainness::Plain), [USER, merged]);
        assert_eq!(said(&[USER, a, b], Plainness::AsItCame), [USER, a, b]);
    }

    #[test]
    fn a_view_has_no_results_without_their_call() {
        let orphan = r#"{"role":"tool","tool_call_id":"c7","content":"8080"}"#;
        let broken = r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"[1]"}}]}"#;
        assert_eq!(said(&[orphan, USER], Plainness::AsItCame), [orphan, USER]);
        assert!(said(&[orphan, USER, broken, USER], Plainness::AsItCame)[0].contains("[result of an earlier call]"));
    }
}
