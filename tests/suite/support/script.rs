//! A scripted model: what it says round by round, calls of the recall tool among it, as servers write them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Chat, Fake, MODEL, Play, Seen, chat, chunk, prose, sse_head, tokens};

/// Ids of originals that a forwarded request points at.
pub(crate) fn ids(body: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(body);
    let found = text.match_indices("recall r").map(|(at, _)| {
        let rest = &text[at + "recall ".len()..];
        rest.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()
    });
    found.filter(|id| id.len() >= 13).collect()
}

/// The tool that windowsill answers itself.
pub(crate) const TOOL: &str = "windowsill_recall";

/// Something that stands in the middle of a result that is evicted when it arrives, and in no preview of it.
pub(crate) const NEEDLE: &str = "the vault opens at quarter past nine with lever Zanzibar";

/// A result too large for the window, the needle in its middle.
pub(crate) fn large(seed: u64) -> String {
    format!("{}\n{NEEDLE}\n{}", prose(seed, 9_000), prose(seed + 50, 9_000))
}

/// A request whose result is evicted.
pub(crate) fn evicted() -> Chat {
    chat().system("s").user("Read it.").tools().step(1, &large(3))
}

/// The record's id that a forwarded request names.
pub(crate) fn id_in(seen: &Seen) -> String {
    ids(&seen.body).into_iter().next().expect("a pointer stands in the prompt")
}

pub(crate) fn tools_of(seen: &Seen) -> Vec<String> {
    let body = seen.json();
    let name = |t: &Value| t["function"]["name"].as_str().unwrap_or("").to_owned();
    body["tools"].as_array().map(|all| all.iter().map(name).collect()).unwrap_or_default()
}

/// How a scripted model answers a round.
#[derive(Clone)]
pub(crate) enum Says {
    /// Text, and calls as (id, name, arguments).
    Turn(&'static str, Vec<(&'static str, String, String)>),
    /// This, as it is.
    Raw(u16, Value),
}

pub(crate) fn call(arguments: Value) -> (&'static str, String, String) {
    ("call_r", TOOL.into(), arguments.to_string())
}

pub(crate) fn turn(text: &'static str, calls: Vec<(&'static str, String, String)>) -> Says {
    Says::Turn(text, calls)
}

pub(crate) fn event(delta: Value, finish: Value) -> Value {
    json!({"id": "c9", "object": "chat.completion.chunk", "created": 7, "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

/// The bytes of an event stream that says it; the arguments of calls in pieces.
pub(crate) fn stream(seen: &Seen, round: usize, text: &str, calls: &[(&str, String, String)]) -> String {
    let mut all = vec![event(json!({"role": "assistant", "content": null}), Value::Null)];
    for piece in text.split_inclusive(' ') {
        all.push(event(json!({"content": piece}), Value::Null));
    }
    for (i, (id, name, arguments)) in calls.iter().enumerate() {
        let head = json!({"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        all.push(event(json!({"tool_calls": [head]}), Value::Null));
        for piece in arguments.as_bytes().chunks(5).map(String::from_utf8_lossy) {
            all.push(event(json!({"tool_calls": [{"index": i, "function": {"arguments": piece}}]}), Value::Null));
        }
    }
    all.push(event(json!({}), json!(if calls.is_empty() { "stop" } else { "tool_calls" })));
    let body = seen.json();
    if body["stream_options"]["include_usage"] == true {
        let prompt = tokens(&body);
        all.push(json!({"id": "c9", "object": "chat.completion.chunk", "created": 7, "model": MODEL, "choices": [],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10}}));
    }
    let events: String = all
        .into_iter()
        .map(|mut e| {
            e["id"] = json!(format!("c{round}"));
            format!("data: {e}\n\n")
        })
        .collect();
    format!(": ping\n\n{events}data: [DONE]\n\n")
}

pub(crate) fn whole_reply(seen: &Seen, round: usize, text: &str, calls: &[(&str, String, String)]) -> Value {
    let prompt = tokens(&seen.json());
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        let call = |(id, name, arguments): &(&str, String, String)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    json!({"id": format!("c{round}"), "object": "chat.completion", "created": 7, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": if calls.is_empty() { "stop" } else { "tool_calls" }, "message": message}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10}})
}

/// Has the model answer its main requests from now on with these, one after the other; `write` bytes at once.
pub(crate) fn scripted(fake: &Fake, write: usize, says: impl Fn(usize, &Seen) -> Says + Send + Sync + 'static) {
    let round = std::sync::atomic::AtomicUsize::new(0);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let n = round.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match says(n, seen) {
            Says::Raw(status, value) => Play::Json(status, value),
            Says::Turn(text, calls) if seen.json()["stream"] == true => {
                let bytes = stream(seen, n, text, &calls);
                let mut pieces = vec![sse_head()];
                pieces.extend(bytes.as_bytes().chunks(write).map(chunk));
                pieces.push(b"0\r\n\r\n".to_vec());
                Play::Pieces(pieces)
            }
            Says::Turn(text, calls) => Play::Json(200, whole_reply(seen, n, text, &calls)),
        }
    });
}
