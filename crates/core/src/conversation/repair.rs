//! Makes a history well-formed where real clients leave it broken and servers would refuse it: arguments that are not a
//! JSON object, calls that were never answered, results that come after another message, replies of which nothing but the
//! reasoning came, ids of a shape that the model's template rejects. Deterministic, and append-only for a history that is: what
//! was repaired once is repaired the same way next turn. Nothing is lost: unreadable arguments travel inside a valid object.
//!
//! A result whose call is nowhere stays where it is: many servers take it. Where a view is made, or the server refuses it, it is
//! said as text.

use bytes::Bytes;

use super::{Message, Role, step};
use crate::wire::{json, openai_chat};

/// What stands in for the result of a call that was never answered.
pub const NO_RESULT: &str = "[no result was recorded for this call]";

/// Key under which arguments that are no JSON object travel.
pub const INVALID_ARGUMENTS: &str = "_invalid_arguments";

/// A tool result without its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Index in the body.
    pub at: usize,
    /// The id it names, if any.
    pub call_id: Option<String>,
}

/// A body with what was repaired in it.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The well-formed body.
    pub body: Vec<Message>,
    /// One line for each repair, without any message text.
    pub notes: Vec<String>,
    /// Results without their call: they stay where they are.
    pub orphans: Vec<Orphan>,
}

/// Repairs a body that must be well-formed.
///
/// # Errors
/// The first result without its call.
pub fn repair(body: Vec<Message>, call_id_length: Option<usize>) -> Result<Repaired, Orphan> {
    let mut repaired = mend(body, call_id_length);
    if repaired.orphans.is_empty() { Ok(repaired) } else { Err(repaired.orphans.swap_remove(0)) }
}

/// Repairs a body as far as that can be done. Messages stay where they are in memory, but for results that are moved and messages
/// that are added: a history of ten thousand turns is gone through without a copy.
pub fn mend(body: Vec<Message>, call_id_length: Option<usize>) -> Repaired {
    let last = body.len().saturating_sub(1);
    let mut out = Repaired { body, ..Repaired::default() };
    // Calls of earlier steps that still wait for a result: (index of the caller, id).
    let mut open: Vec<(usize, String)> = Vec::new();
    // Calls of the step before the message at hand.
    let mut current: Vec<(usize, String)> = Vec::new();
    for at in 0..out.body.len() {
        let message = &mut out.body[at];
        if message.role == Role::Tool {
            place_result(&mut out, &mut current, &mut open, at);
            continue;
        }
        open.append(&mut current);
        if message.role == Role::Assistant && says_nothing(message, at == last) {
            message.repaired = Some(openai_chat::with_text(message.bytes(), ""));
            out.notes.push(format!("message {at}: a reply without words or calls got empty words"));
        }
        if !message.calls.is_empty() {
            fix_arguments(message, at, &mut out.notes);
            current = message.calls.iter().map(|c| (at, c.id.clone())).collect();
        }
    }
    open.append(&mut current);
    answer_open_calls(&mut out, &open);
    if let Some(length) = call_id_length {
        name_calls(&mut out.body);
        out.body.iter_mut().for_each(|m| fix_ids(m, length));
    }
    out
}

/// Whether a reply has neither words nor calls, as it does that was cut while the model thought. Servers refuse it without
/// `content`, and some with one that is `null`. The last message is for the model to go on with: it stays unless all refuse it.
fn says_nothing(message: &Message, is_last: bool) -> bool {
    if !message.text.is_empty() || !message.media.is_empty() || !message.calls.is_empty() {
        return false;
    }
    let text = String::from_utf8_lossy(message.bytes());
    let Ok(fields) = json::Fields::read(&text) else { return false };
    match fields.get("content") {
        None => true,
        Some(content) => content == "null" && !is_last,
    }
}

/// Leaves the result at `at` where it is, behind the step before it; or moves it behind the earlier step that still waits for it.
fn place_result(out: &mut Repaired, current: &mut Vec<(usize, String)>, open: &mut Vec<(usize, String)>, at: usize) {
    let (before, rest) = out.body.split_at(at);
    let id = rest[0].call_id.clone().unwrap_or_default();
    // By id; in order where one of both has none.
    let by_id = current.iter().position(|(_, c)| *c == id);
    if let Some(i) = by_id.or_else(|| current.iter().position(|(_, c)| id.is_empty() || c.is_empty())) {
        current.remove(i);
        return;
    }
    // A second result for a call of the step before: servers take it, and it says something.
    let caller = before.iter().rposition(|m| m.role != Role::Tool);
    if caller.is_some_and(|c| before[c].calls.iter().any(|call| call.id == id)) {
        return;
    }
    let Some(i) = open.iter().rposition(|(_, c)| *c == id) else {
        out.orphans.push(Orphan { at, call_id: rest[0].call_id.clone() });
        return;
    };
    let (caller, _) = open.remove(i);
    let place = caller + 1 + before[caller + 1..].iter().take_while(|m| m.role == Role::Tool).count();
    out.notes.push(format!("message {at}: late result moved behind its call"));
    // In another place it is not what the client sent, though its bytes are.
    let message = &mut out.body[at];
    message.repaired = Some(message.bytes().clone());
    out.body[place..=at].rotate_right(1);
    for (index, _) in open.iter_mut().chain(current.iter_mut()) {
        if *index >= place {
            *index += 1;
        }
    }
}

fn answer_open_calls(out: &mut Repaired, open: &[(usize, String)]) {
    let mut open: Vec<_> = open.iter().collect();
    open.sort_by_key(|(caller, _)| *caller);
    // From the back, so that indices in front stay true; behind the recorded results, which have bytes of their own.
    for (caller, id) in open.into_iter().rev() {
        let recorded = |m: &&Message| m.role == Role::Tool && !m.raw.is_empty();
        let results = out.body[caller + 1..].iter().take_while(recorded).count();
        let raw = match id.as_str() {
            "" => openai_chat::new_result_without_id(&out.body[*caller], NO_RESULT),
            id => openai_chat::new_result(id, NO_RESULT),
        };
        let Ok(mut message) = openai_chat::message(raw.clone()) else { continue };
        message.raw = Bytes::new();
        message.repaired = Some(raw);
        out.notes.push(format!("message {caller}: call without a result answered with a note"));
        out.body.insert(caller + 1 + results, message);
    }
}

fn fix_arguments(message: &mut Message, at: usize, notes: &mut Vec<String>) {
    let mut new = Vec::new();
    for (i, call) in message.calls.iter_mut().enumerate() {
        if let Some(fixed) = valid_arguments(&call.arguments) {
            notes.push(format!("message {at}: arguments of a call were not a JSON object"));
            call.arguments = fixed;
            new.push(i);
        }
    }
    if !new.is_empty() {
        let changes: Vec<_> = new.iter().map(|i| (*i, message.calls[*i].arguments.as_str())).collect();
        message.repaired = Some(openai_chat::with_arguments(message.bytes(), &changes));
    }
}

/// `None` when the arguments are a JSON object; else an object that says the same.
fn valid_arguments(arguments: &str) -> Option<String> {
    let trimmed = arguments.trim();
    if trimmed.is_empty() || trimmed == "null" {
        return Some("{}".into());
    }
    let is_object = |s: &str| s.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(s).is_ok();
    if is_object(trimmed) {
        return None;
    }
    // An object that was spelled as a string once too often.
    if let Some(inner) = serde_json::from_str::<String>(trimmed).ok().filter(|inner| is_object(inner.trim())) {
        return Some(inner);
    }
    Some(format!("{{{}:{}}}", json::quote(INVALID_ARGUMENTS), json::quote(arguments)))
}

/// Gives an id to calls that have none (Ollama's clients send none), and the same one to their results: it says which call
/// of which message it is, so it is the same next turn.
fn name_calls(body: &mut [Message]) {
    for at in 0..body.len() {
        let result = step::call_of(body, at).filter(|_| body[at].call_id.as_deref().unwrap_or("").is_empty());
        if let Some((caller, call)) = result {
            body[at].call_id = Some(body[caller].calls[call].id.clone());
        }
        let nameless: Vec<usize> = (0..body[at].calls.len()).filter(|i| body[at].calls[*i].id.is_empty()).collect();
        // What answers them: the results behind them that name no other call, in order.
        let of_others = |result: &Message| {
            let id = result.call_id.as_deref().unwrap_or("");
            !id.is_empty() && body[at].calls.iter().any(|call| call.id == id)
        };
        let behind = (at + 1..body.len()).take_while(|r| !nameless.is_empty() && body[*r].role == Role::Tool);
        let results: Vec<usize> = behind.filter(|r| !of_others(&body[*r])).collect();
        let last = nameless.len().saturating_sub(1);
        for (n, i) in nameless.into_iter().enumerate() {
            let id = format!("call {at}.{i}");
            // What stands behind the result of the last call is more of it.
            let until = if n == last { results.len() } else { n + 1 };
            for (more, result) in results.get(n..until).unwrap_or_default().iter().enumerate() {
                if more == 0 || body[*result].call_id.as_deref().unwrap_or("").is_empty() {
                    body[*result].call_id = Some(id.clone());
                }
            }
            body[at].calls[i].id = id;
        }
    }
}

fn fix_ids(message: &mut Message, length: usize) {
    let good = |id: &str| id.len() == length && id.bytes().all(|b| b.is_ascii_alphanumeric());
    let text = |m: &Message| String::from_utf8_lossy(m.bytes()).into_owned();
    if let Some(id) = message.call_id.clone().filter(|id| !good(id)) {
        let new = short_id(&id, length);
        message.repaired = Some(openai_chat::patch(message.bytes(), "tool_call_id", &json::quote(&new)));
        message.call_id = Some(new);
    }
    if message.calls.iter().all(|c| good(&c.id)) {
        return;
    }
    let source = text(message);
    let list = json::Fields::read(&source).ok().and_then(|f| f.get("tool_calls").map(str::to_owned));
    for call in &mut message.calls {
        call.id = short_id(&call.id, length);
    }
    // A call in the older form (`function_call`) has no place for an id: that of its result is its own all the same.
    let Some(list) = list.and_then(|l| serde_json::from_str::<Vec<serde_json::Value>>(&l).ok()) else { return };
    let spelled: Vec<String> = list
        .into_iter()
        .zip(&message.calls)
        .map(|(mut call, new)| {
            call["id"] = serde_json::Value::String(new.id.clone());
            call.to_string()
        })
        .collect();
    let array = format!("[{}]", spelled.join(","));
    message.repaired = Some(openai_chat::patch(message.bytes(), "tool_calls", &array));
}

/// An id of `length` alphanumerics that stands for another id, always the same.
fn short_id(id: &str, length: usize) -> String {
    if id.len() == length && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let hash = blake3::hash(id.as_bytes());
    hash.as_bytes().iter().cycle().take(length).map(|b| char::from(ALPHABET[usize::from(*b) % 62])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(raws: &[&str]) -> Vec<Message> {
        raws.iter().map(|r| openai_chat::message(Bytes::from((*r).to_owned())).unwrap()).collect()
    }

    const CALL: &str = r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}"#;
    const RESULT_A: &str = r#"{"role":"tool","tool_call_id":"a","content":"ra"}"#;
    const RESULT_B: &str = r#"{"role":"tool","tool_call_id":"b","content":"rb"}"#;
    const NAMELESS: &str = r#"{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}}]}"#;
    const LEGACY: &str = r#"{"role":"assistant","content":"","function_call":{"name":"f","arguments":"{}"}}"#;
    const USER: &str = r#"{"role":"user","content":"u"}"#;

    fn shape(raws: &[&str]) -> String {
        match repair(body(raws), None) {
            Err(orphan) => format!("orphan at {}", orphan.at),
            Ok(r) => r
                .body
                .iter()
                .map(|m| {
                    format!("{}{}", m.call_id.as_deref().unwrap_or("-"), if m.repaired.is_some() { "*" } else { "" })
                })
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    #[test]
    fn every_call_has_its_result_and_the_reverse() {
        for (raws, expect) in [
            (vec![USER, CALL, RESULT_A, RESULT_B], "- - a b"),
            (vec![USER, CALL, RESULT_B, RESULT_A, USER], "- - b a -"),
            (vec![USER, CALL, RESULT_A, USER], "- - a b* -"),
            (vec![USER, CALL], "- - a* b*"),
            (vec![USER, CALL, RESULT_A, USER, RESULT_B], "- - a b* -"),
            (vec![USER, CALL, RESULT_A, RESULT_B, CALL, RESULT_A, RESULT_B], "- - a b - a b"),
            (vec![CALL, RESULT_A, RESULT_A, RESULT_B], "- a a b"),
            // Without ids, in order.
            (vec![USER, NAMELESS, "{\"role\":\"tool\",\"content\":\"r\"}"], "- - - -*"),
            (vec![USER, NAMELESS, USER], "- - -* -* -"),
            (vec![USER, LEGACY, USER], "- - -* -"),
            (vec![USER, RESULT_A], "orphan at 1"),
            (vec![RESULT_A], "orphan at 0"),
            (vec![CALL, RESULT_A, RESULT_B, USER, RESULT_A], "orphan at 4"),
        ] {
            assert_eq!(shape(&raws), expect, "{raws:?}");
        }
    }

    #[test]
    fn orphans_stay_where_they_are_and_are_told() {
        for raws in [
            vec![USER, RESULT_A],
            vec![RESULT_A, USER],
            vec![RESULT_A, USER, CALL, RESULT_A, RESULT_B],
            vec![CALL, RESULT_A, RESULT_B, USER, RESULT_A, USER],
        ] {
            let mended = mend(body(&raws), None);
            let told: Vec<usize> = mended.orphans.iter().map(|orphan| orphan.at).collect();
            let are: Vec<usize> = (0..raws.len()).filter(|at| step::is_orphan(&mended.body, *at)).collect();
            assert_eq!((told.len(), &told), (1, &are), "{raws:?}");
            assert!(mended.body.iter().zip(&raws).all(|(m, raw)| m.bytes() == raw.as_bytes()), "{raws:?}");
            assert_eq!(mend(mended.body.clone(), None).orphans, mended.orphans);
        }
        let nameless = [USER, NAMELESS, r#"{"role":"tool","tool_call_id":"x","content":"r"}"#];
        assert!(!step::is_orphan(&body(&nameless), 2));
    }

    #[test]
    fn replies_that_say_nothing_get_empty_words() {
        let thought = r#"{"role":"assistant","reasoning_content":"hm"}"#;
        let null = r#"{"role":"assistant","content":null,"tool_calls":[]}"#;
        for (raw, last, expect) in [
            (thought, false, Some(r#"{"role":"assistant","reasoning_content":"hm","content":""}"#)),
            (thought, true, Some(r#"{"role":"assistant","reasoning_content":"hm","content":""}"#)),
            (null, false, Some(r#"{"role":"assistant","content":"","tool_calls":[]}"#)),
            (null, true, None),
            (r#"{"role":"assistant","content":""}"#, false, None),
            (r#"{"role":"assistant","content":[]}"#, false, None),
            (r#"{"role":"assistant","refusal":"no"}"#, false, None),
            (LEGACY, false, None),
        ] {
            let raws = if last { vec![USER, raw] } else { vec![USER, raw, USER] };
            let mended = mend(body(&raws), None).body;
            assert_eq!(mended[1].repaired.as_deref(), expect.map(str::as_bytes), "{raw}");
            assert_eq!(mended[1].digest, body(&[raw])[0].digest);
        }
    }

    #[test]
    fn arguments_become_objects_and_say_the_same() {
        for (arguments, expect) in [
            ("{\"a\": 1}", None),
            ("", Some("{}")),
            ("   \n", Some("{}")),
            ("null", Some("{}")),
            ("\"{\\\"a\\\":1}\"", Some("{\"a\":1}")),
            ("[1]", Some("{\"_invalid_arguments\":\"[1]\"}")),
            ("{\"a\": \"x   ", Some("{\"_invalid_arguments\":\"{\\\"a\\\": \\\"x   \"}")),
        ] {
            assert_eq!(valid_arguments(arguments).as_deref(), expect, "{arguments}");
        }
    }

    #[test]
    fn ids_get_the_shape_a_template_wants() {
        let fixed = repair(body(&[USER, CALL, RESULT_A, RESULT_B]), Some(9)).unwrap().body;
        let ids: Vec<_> = fixed[1].calls.iter().map(|c| c.id.clone()).collect();
        assert!(ids.iter().all(|i| i.len() == 9));
        assert_eq!(fixed[2].call_id.as_ref(), ids.first());
        assert_eq!(fixed[3].call_id.as_ref(), ids.last());
        // Calls without ids get one, and their results the same.
        let result = r#"{"role":"tool","content":"r"}"#;
        let named = repair(body(&[USER, NAMELESS, result, result]), Some(9)).unwrap().body;
        for i in 0..2 {
            let result = openai_chat::message(named[2 + i].bytes().clone()).unwrap();
            assert_eq!(result.call_id.as_ref(), Some(&named[1].calls[i].id));
            assert_eq!(named[1].calls[i].id.len(), 9);
        }
        let read = openai_chat::message(fixed[1].bytes().clone()).unwrap();
        assert_eq!(read.calls[1].id, ids[1]);
        assert_eq!(read.digest, fixed[1].digest);
    }
}
