//! The tool by which a model says that a task is done: its definition, its argument, and how it stands behind a client's tools.
//!
//! Pure: what follows from a call is decided elsewhere.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::wire::openai_chat::Request;

/// The tool's name.
pub const NAME: &str = "windowsill_done";

/// The tool as it stands behind the client's own. These bytes are part of every prompt of a conversation that has the tool: to
/// change them makes the server evaluate all of these prompts once more.
pub const DEFINITION: &str = r#"{"type":"function","function":{"name":"windowsill_done","description":"Call this once when the task that the user gave is done and checked, just before your closing answer. A record of the task is kept, and its working steps leave the context afterwards.","parameters":{"type":"object","properties":{"note":{"type":"string","description":"the outcome in a few sentences: what was done, how it was checked, what is left"}},"required":["note"]}}}"#;

/// The most of a note that is kept, in bytes.
pub const LONGEST_NOTE: usize = 4_000;

/// Whether a model that writes this name means the tool. Some models put a namespace before it, or spell it differently.
pub fn is_ours(name: &str) -> bool {
    super::is_named(name, NAME)
}

/// The tools with this one behind them. `None` where there are none, or where one of them has its name.
pub fn offered(tools: &[u8]) -> Option<Bytes> {
    super::with_tool(tools, DEFINITION, NAME)
}

/// Has a request offer the tool. Returns false where it cannot.
pub fn offer(request: &mut Request) -> bool {
    let Some(tools) = request.own_tools().and_then(|own| offered(own)) else { return false };
    request.list_more(tools);
    true
}

/// What a call says of the outcome, cut to [`LONGEST_NOTE`]. A model that sends other arguments than it was told to still means
/// something by them: the longest text counts.
pub fn note(arguments: &str) -> String {
    let read = serde_json::from_str::<Value>(arguments).unwrap_or_else(|_| Value::String(arguments.to_owned()));
    let said = match &read {
        Value::Object(fields) => match fields.get("note").and_then(Value::as_str) {
            Some(note) => note,
            None => fields.values().filter_map(Value::as_str).max_by_key(|text| text.len()).unwrap_or(""),
        },
        Value::String(text) => text,
        _ => "",
    };
    let shown: Cow<'_, str> = crate::preview::clean::shorten(said.trim(), LONGEST_NOTE);
    shown.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recall::AtHead;
    use crate::wire::openai_chat;

    #[test]
    fn the_tool_stands_behind_the_clients_and_can_be_taken_off_again() {
        let own = br#"[{"type":"function","function":{"name":"f"}}]"#;
        let all = offered(own).unwrap();
        let read: Value = serde_json::from_slice(&all).unwrap();
        assert_eq!((read[1]["function"]["name"].as_str(), read.as_array().unwrap().len()), (Some(NAME), 2));
        let at_head = AtHead { done: true, memory: false };
        assert_eq!(&at_head.without(&all)[..], &own[..]);
        assert_eq!(offered(&all), None, "never twice");
        assert_eq!(offered(b"[]"), None);
        // The tool that reads back comes behind it, so that the head of the prompt only grows.
        let both = crate::recall::offered(&all, false).unwrap();
        assert!(both.starts_with(&all[..all.len() - 1]));
    }

    #[test]
    fn a_request_offers_it_and_is_the_clients_own_without() {
        let body = br#"{"tools":[{"type":"function","function":{"name":"f"}}],"messages":[]}"#;
        let mut request = openai_chat::parse(&Bytes::from_static(body)).unwrap();
        let own = request.conversation.tools.clone();
        assert!(offer(&mut request) && request.changes_tools() && !request.offers());
        assert!(!offer(&mut request), "never twice");
        let with_done = request.conversation.tools.clone();
        request.offer(crate::recall::offered(request.own_tools().unwrap(), false).unwrap());
        assert!(request.offers());
        request.withdraw();
        assert_eq!((&request.conversation.tools, request.offers()), (&with_done, false));
        let mut one = request.clone();
        AtHead { done: true, memory: false }.withdraw(&mut one);
        request.withdraw_all();
        for bare in [&one, &request] {
            assert_eq!((&bare.conversation.tools, bare.changes_tools()), (&own, false));
        }
        let none = br#"{"messages":[]}"#;
        assert!(!offer(&mut openai_chat::parse(&Bytes::from_static(none)).unwrap()));
    }

    #[test]
    fn notes_as_models_send_them() {
        for (arguments, said) in [
            (r#"{"note":" It works. "}"#, "It works."),
            (r#"{"summary":"It works.","ok":"y"}"#, "It works."),
            (r#""It works.""#, "It works."),
            ("It works.", "It works."),
            ("{}", ""),
            ("[1]", ""),
            ("", ""),
        ] {
            assert_eq!(note(arguments), said, "{arguments}");
        }
        assert!(note(&"x".repeat(9_000)).len() <= LONGEST_NOTE + 8);
        for (name, ours) in [(NAME, true), ("functions.windowsill-done", true), ("done", false)] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
    }
}
