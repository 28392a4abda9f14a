//! The form that OpenAI had before `tools`: `functions`, `function_call` and results of the role `function`. Servers and clients
//! that know no other lose nothing.

use serde_json::{Value, json};

use super::dialects::{ALL, ask, whole_or_streamed};
use super::inside::read;
use super::support::script::*;
use super::support::*;

/// A reply that calls a function in the older form: whole, or the events of a stream with the arguments in pieces.
fn calling(streamed: bool, name: &str, arguments: &str) -> Play {
    if !streamed {
        let message =
            json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": arguments}});
        return Play::Json(
            200,
            json!({"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL,
                "choices": [{"index": 0, "message": message, "finish_reason": "function_call"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}),
        );
    }
    let first = json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": ""}});
    let mut all = vec![event(first, Value::Null)];
    for piece in arguments.as_bytes().chunks(5).map(String::from_utf8_lossy) {
        all.push(event(json!({"function_call": {"arguments": piece}}), Value::Null));
    }
    all.push(event(json!({}), json!("function_call")));
    all.push(json!({"id": "c9", "object": "chat.completion.chunk", "created": 7, "model": MODEL, "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}));
    let all: String = all.iter().map(|event| format!("data: {event}\n\n")).collect();
    Play::Pieces(vec![sse_head(), chunk(format!("{all}data: [DONE]\n\n").as_bytes()), b"0\r\n\r\n".to_vec()])
}

#[test]
fn a_call_in_the_older_form_is_a_call_in_every_dialect() {
    let arguments = r#"{"path":"src/main.rs","n":1}"#;
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for (asked, answered) in [(false, false), (true, true), (true, false)] {
            fake.script(move |seen| match seen.is_main() {
                true => calling(answered, "read_file", arguments),
                false => Play::Usual,
            });
            for dialect in &ALL {
                let what = format!("{} {kind:?} streamed: {asked}, answered so: {answered}", dialect.name);
                let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi").tools(), asked));
                assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                let said = read(dialect, asked, &answer);
                let call = ("read_file".to_owned(), serde_json::from_str(arguments).unwrap());
                assert_eq!((said.calls, said.error.as_str()), (vec![call], ""), "{what}: {}", answer.text());
                assert_eq!(said.finish, dialect.ends.1, "{what}: {}", answer.text());
            }
        }
        // What the model called is on record before its client comes back.
        let kept = proxy.chat(&chat().user("hi").tools());
        assert_eq!(
            kept.json()["choices"][0]["message"]["function_call"]["arguments"],
            arguments,
            "chat gets its own bytes"
        );
    }
}

#[test]
fn a_call_of_our_tool_in_the_older_form_is_answered_here() {
    for streamed in [true, false] {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::before(&fake);
        let round = std::sync::atomic::AtomicUsize::new(0);
        fake.script(move |seen| {
            if !seen.is_main() {
                return Play::Usual;
            }
            match round.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => calling(streamed, TOOL, &json!({"query": "vault opens lever"}).to_string()),
                1 => calling(streamed, "read_file", r#"{"path":"b"}"#),
                _ => Play::Usual,
            }
        });
        let answer = proxy.chat(&whole_or_streamed(evicted(), streamed));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains(TOOL), "the client never hears of it: {}", answer.text());
        let asked = fake.mains();
        assert_eq!(asked.len(), 2);
        assert!(asked[1].messages().iter().any(|m| text(m).contains("lever Zanzibar")), "the model was answered");
        let said = read(super::inside::dialects().next().unwrap(), streamed, &answer);
        let call = ("read_file".to_owned(), json!({"path": "b"}));
        assert_eq!((said.calls, said.finish.as_str()), (vec![call], "tool_calls"), "{}", answer.text());
    }
}

/// An Ollama knows `tools` alone: they are told so to it, counted so, and its calls come back as the client knows them.
#[test]
fn before_an_ollama_functions_are_tools_and_calls_come_back_as_they_are_known() {
    let arguments = json!({"path": "a.rs"});
    let function = json!({"name": "read_file", "description": prose(1, 2_000), "parameters": {"type": "object", "properties": {}}});
    let line = |message: Value, done: bool| {
        json!({"model": MODEL, "created_at": "2026-11-28T00:00:00Z", "message": message, "done": done, "done_reason": done.then_some("stop"),
            "prompt_eval_count": 9, "eval_count": 3})
    };
    for streamed in [true, false] {
        let fake = Fake::start(Kind::Ollama, 8192);
        let proxy = TestProxy::before(&fake);
        let call = json!({"function": {"name": "read_file", "arguments": arguments}});
        let other = json!({"function": {"name": "other", "arguments": {}}});
        let said = json!({"role": "assistant", "content": "", "tool_calls": [call, other]});
        fake.script(move |seen| match (seen.is_main(), streamed) {
            (true, false) => Play::Json(200, line(said.clone(), true)),
            (true, true) => {
                let lines = [line(said.clone(), false), line(json!({"role": "assistant", "content": ""}), true)];
                let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
                Play::Pieces(vec![head.into(), chunk(lines.as_bytes()), b"0\r\n\r\n".to_vec()])
            }
            (false, _) => Play::Usual,
        });
        let history = json!([{"role": "user", "content": "Read it."},
            {"role": "assistant", "content": null, "function_call": {"name": "read_file", "arguments": "{}"}},
            {"role": "function", "name": "read_file", "content": "no path"}]);
        let body = json!({"model": MODEL, "stream": streamed, "messages": history, "functions": [function]});
        let answer = proxy.post("/v1/chat/completions", &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let sent = fake.mains().pop().unwrap().json();
        assert_eq!(sent["tools"], json!([{"type": "function", "function": function}]));
        assert_eq!(
            (&sent["messages"][1]["tool_calls"][0]["function"]["name"], &sent["messages"][2]["role"]),
            (&json!("read_file"), &json!("tool"))
        );
        let told: Vec<Value> = match streamed {
            true => {
                answer.text().lines().filter_map(|l| serde_json::from_str(l.strip_prefix("data: ")?).ok()).collect()
            }
            false => vec![answer.json()],
        };
        let choices = || told.iter().filter_map(|value| value.pointer("/choices/0"));
        let of = |choice: &Value| choice.get("delta").or(choice.get("message")).cloned().unwrap_or_default();
        let calls: Vec<Value> = choices().filter_map(|choice| of(choice).get("function_call").cloned()).collect();
        assert_eq!(calls, [json!({"name": "read_file", "arguments": arguments.to_string()})], "{}", answer.text());
        assert!(!answer.text().contains("tool_calls"), "this client reads none: {}", answer.text());
        assert_eq!(
            choices().filter_map(|choice| choice["finish_reason"].as_str()).collect::<Vec<_>>(),
            ["function_call"]
        );
        // What they take is known.
        let taken = |fields: Value| -> u64 {
            let mut body = body.clone();
            body.as_object_mut().unwrap().remove("functions");
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let answer = proxy.post("/v1/chat/completions", &[], body.to_string().as_bytes()).ok();
            answer.header("x-windowsill-prompt-tokens").unwrap().parse().unwrap()
        };
        let (older, newer) = (
            taken(json!({"functions": [function]})),
            taken(json!({"tools": [{"type": "function", "function": function}]})),
        );
        assert!(older.abs_diff(newer) < 20 && older > taken(json!({})) + 300, "{older} for {newer}");
    }
}
