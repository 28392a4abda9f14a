//! What stands behind a status of 200: errors in every framing, ends that are none, and replies in another form than was asked
//! for. Each in every dialect, streamed and not.

use serde_json::{Value, json};

use super::dialects::{ALL, Dialect, Read, ask, whole_or_streamed};
use super::support::script::{self, TOOL, evicted, id_in, stream as said_stream};
use super::support::*;

/// Chat completions themselves, as OpenAI's SDKs read them.
const CHAT: Dialect = Dialect {
    name: "chat",
    path: "/v1/chat/completions",
    ask: Chat::value,
    whole: |body| {
        let message = &body["choices"][0]["message"];
        Read {
            text: message["content"].as_str().unwrap_or_default().into(),
            calls: calls(&message["tool_calls"]),
            finish: body["choices"][0]["finish_reason"].as_str().unwrap_or_default().into(),
            ..Read::default()
        }
    },
    stream: chat_stream,
    error: |body| body["error"]["message"].as_str().map(str::to_owned),
    ends: ("stop", "tool_calls"),
};

fn calls(all: &Value) -> Vec<(String, Value)> {
    let read = |c: &Value| {
        let arguments = serde_json::from_str(c["function"]["arguments"].as_str().unwrap()).unwrap();
        (c["function"]["name"].as_str().unwrap().to_owned(), arguments)
    };
    all.as_array().into_iter().flatten().map(read).collect()
}

fn chat_stream(text: &str) -> Read {
    let (mut out, mut call, mut done) = (Read::default(), (String::new(), String::new()), false);
    for block in text.split("\n\n").filter(|b| !b.is_empty() && !b.starts_with(':')) {
        let data = block.lines().find_map(|line| line.strip_prefix("data:")).unwrap_or_else(|| panic!("{block:?}"));
        assert!(!done && out.error.is_empty(), "nothing comes behind the end: {text}");
        if data.trim() == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {block:?}"));
        if let Some(error) = event["error"]["message"].as_str() {
            out.error = error.into();
            continue;
        }
        let choice = &event["choices"][0];
        let says = choice["delta"]["content"].as_str().is_some_and(|t| !t.is_empty());
        assert!(!says || out.finish.is_empty(), "more comes behind a finish reason: {text}");
        out.text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        let part = &choice["delta"]["tool_calls"][0]["function"];
        call.0.push_str(part["name"].as_str().unwrap_or_default());
        call.1.push_str(part["arguments"].as_str().unwrap_or_default());
        if let Some(finish) = choice["finish_reason"].as_str() {
            out.finish = finish.into();
        }
    }
    if !call.0.is_empty() && out.error.is_empty() {
        out.calls.push((call.0, serde_json::from_str(&call.1).unwrap()));
    }
    if !out.error.is_empty() {
        out.finish.clear();
    }
    out
}

pub(crate) fn dialects() -> impl Iterator<Item = &'static Dialect> {
    static OWN: Dialect = CHAT;
    static OTHERS: [Dialect; 3] = ALL;
    std::iter::once(&OWN).chain(&OTHERS)
}

pub(crate) fn read(dialect: &Dialect, streamed: bool, answer: &Answer) -> Read {
    if streamed { (dialect.stream)(&answer.text()) } else { (dialect.whole)(&answer.json()) }
}

/// These bytes behind a status of 200.
fn with_200(kind: &str, body: &str) -> Play {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
    Play::Pieces(vec![head.into_bytes(), chunk(body.as_bytes()), b"0\r\n\r\n".to_vec()])
}

const SSE: &str = "text/event-stream";
const JSON: &str = "application/json";

/// How servers say an error behind a status of 200: the type, and the body.
fn framings(words: &str, streamed: bool, kind: Kind) -> Vec<(&'static str, String)> {
    let error = json!({"error": {"message": words}});
    let plain = json!({ "error": words });
    if kind == Kind::Ollama {
        let kind = if streamed { "application/x-ndjson" } else { JSON };
        let others =
            [json!({"success": false, "message": words}), json!({"errors": [{"message": words}]}), json!([error])];
        let others = others.iter().map(|other| (kind, format!("{other}\n")));
        let known = [(kind, format!("{plain}\n")), (kind, format!("{error}\n")), (kind, format!("data: {plain}\n\n"))];
        return known.into_iter().chain(others).collect();
    }
    let mut out = vec![
        (JSON, error.to_string()),
        (JSON, plain.to_string()),
        (JSON, serde_json::to_string_pretty(&error).unwrap()),
        (JSON, json!({ "detail": words }).to_string()),
        (JSON, json!({"object": "error", "message": words, "type": "BadRequestError"}).to_string()),
        (JSON, json!({"success": false, "message": words}).to_string()),
        (JSON, json!({"errors": [{"message": words}]}).to_string()),
        (JSON, json!({"base_resp": {"status_code": 1004, "status_msg": words}, "choices": null}).to_string()),
        (JSON, json!({"choices": [{"index": 0, "error": {"message": words}, "finish_reason": "error"}]}).to_string()),
        (JSON, json!([error]).to_string()),
        ("text/plain", error.to_string()),
    ];
    if !streamed {
        return out;
    }
    let role = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]});
    out.extend([
        (SSE, format!("event: error\ndata: {error}\n\n")),
        (SSE, format!("event: error\r\ndata: {}\r\n\r\n", json!({ "message": words }))),
        (SSE, format!("event: error\ndata: {words}\n\n")),
        (SSE, format!("data: {error}\n\ndata: [DONE]\n\n")),
        (SSE, format!("data: {plain}\n\n")),
        (SSE, format!("data: {}\n\n", json!({ "detail": words }))),
        (SSE, format!("data: {}\n\ndata: [DONE]\n\n", json!({"status": "failed", "reason": words}))),
        (SSE, format!("data: {}\n\n", json!([error]))),
        (SSE, error.to_string()),
        (SSE, format!("{plain}\n\n")),
        (SSE, format!(": ping\n\ndata: {role}\n\n{error}\n")),
        (SSE, format!("data: {role}\n\ndata: {error}\n\n")),
        ("application/x-ndjson", format!("{error}\n")),
        ("text/plain", format!("data: {error}\n\n")),
    ]);
    out
}

fn long_history() -> Chat {
    (0..4).fold(chat().system("s"), |c, n| c.user(&prose(n, 3_000)).assistant(&prose(n + 50, 3_000))).user("Go on.")
}

#[test]
fn an_overflow_behind_a_200_is_learned_and_sent_again_harder() {
    let words = |kind| match kind {
        Kind::Ollama => "input length (6144 tokens) exceeds the model's maximum context length (2048 tokens)",
        _ => "cannot go on: n_keep: 5120 >= n_ctx: 2048",
    };
    for kind in [Kind::OpenAi, Kind::Ollama] {
        for streamed in [true, false] {
            for (how, (content, body)) in framings(words(kind), streamed, kind).into_iter().enumerate() {
                // One framing is enough to see that the dialects meet in one place.
                for dialect in dialects().take(if how < 2 { 4 } else { 1 }) {
                    let what = format!("{} {kind:?} streamed: {streamed} {content} {body}", dialect.name);
                    let fake = Fake::start(kind, 8192);
                    let bytes = body.clone();
                    fake.script(move |seen| match seen.is_main() && tokens(&seen.json()) > 2048 {
                        true => with_200(content, &bytes),
                        false => Play::Usual,
                    });
                    let proxy = TestProxy::with(&[fake.url()], "[context]\nstrategy = \"truncate\"\n");
                    let answer = ask(&proxy, dialect, &whole_or_streamed(long_history(), streamed));
                    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                    let read = read(dialect, streamed, &answer);
                    assert_eq!((read.text.as_str(), read.error.as_str()), ("Done; what is next?", ""), "{what}");
                    assert!(answer.action().contains("emergency"), "{what}: {}", answer.action());
                    assert_eq!(answer.header("x-windowsill-window"), Some("2048"), "{what}");
                    assert_eq!(fake.count(), 2, "{what}");
                }
            }
        }
    }
}

#[test]
fn any_other_error_behind_a_200_is_told_with_a_status_and_in_the_servers_words() {
    let words = "CUDA out of memory, the model is gone";
    for kind in [Kind::LlamaServer, Kind::OpenAi, Kind::Ollama] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for streamed in [true, false] {
            for (content, body) in framings(words, streamed, kind) {
                let bytes = body.clone();
                fake.script(move |seen| if seen.is_main() { with_200(content, &bytes) } else { Play::Usual });
                for dialect in dialects() {
                    let what = format!("{} {kind:?} streamed: {streamed} {content} {body}", dialect.name);
                    let before = fake.count();
                    let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), streamed));
                    assert_eq!(answer.status, 502, "{what}: {}", answer.text());
                    assert_eq!((dialect.error)(&answer.json()).as_deref(), Some(words), "{what}");
                    assert_eq!(fake.count(), before + 1, "{what}");
                }
            }
        }
    }
    // A status of its own.
    let fake = Fake::start(Kind::OpenAi, 8192);
    let proxy = TestProxy::before(&fake);
    for (code, status) in [(json!(503), 503), (json!("429"), 429), (json!("odd"), 502), (json!(7), 502)] {
        let error = json!({"error": {"message": "busy", "code": code}});
        fake.script(move |seen| match seen.is_main() {
            true => with_200(SSE, &format!("data: {error}\n\n")),
            false => Play::Usual,
        });
        assert_eq!(proxy.chat(&chat().user("hi").stream()).status, status);
    }
}

fn word(text: &str, finish: Value) -> Value {
    said(json!({ "content": text }), finish)
}

fn said(delta: Value, finish: Value) -> Value {
    json!({"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
}

fn sse(all: &[Value]) -> String {
    all.iter().map(|value| format!("data: {value}\n\n")).collect()
}

#[test]
fn an_error_behind_words_ends_the_stream_on_a_line_of_its_own() {
    let error = json!({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}});
    let begun = sse(&[word("Let ", Value::Null), word("me ", Value::Null)]);
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for end in [
            format!("data: {error}\n\n"),
            format!("event: error\ndata: {error}\n\ndata: [DONE]\n\n"),
            format!("{error}\n\n"),
            error.to_string(),
            format!("data: {}\n\n", json!({"detail": "Context size has been exceeded."})),
            format!("data: {}", json!({"error": "Context size has been exceeded."})),
        ] {
            let body = format!("{begun}{end}");
            fake.script(move |seen| if seen.is_main() { with_200(SSE, &body) } else { Play::Usual });
            for dialect in dialects() {
                let what = format!("{} {kind:?} {end}", dialect.name);
                let answer = ask(&proxy, dialect, &chat().user("hi").stream()).ok();
                let read = read(dialect, true, &answer);
                assert_eq!((read.text.as_str(), read.finish.as_str()), ("Let me ", ""), "{what}: {}", answer.text());
                assert_eq!(read.error, "Context size has been exceeded.", "{what}");
                assert!(!answer.text().contains("[DONE]"), "{what}");
            }
        }
    }
}

/// What ends a stream.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Done,
    Clean,
    Cut,
}

#[test]
fn a_reply_ends_by_its_end() {
    let (stop, none, empty) = (json!("stop"), Value::Null, json!(""));
    let three = |finish: &Value| ["The ", "answer ", "is "].map(|w| word(w, finish.clone())).to_vec();
    let and = |mut all: Vec<Value>, last: Value| {
        all.push(last);
        all
    };
    let last = |finish: &Value| said(json!({}), finish.clone());
    let usage = json!({"id": "c1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}});
    let cases: Vec<(Vec<Value>, End, bool)> = vec![
        (three(&empty), End::Cut, false),
        (three(&empty), End::Clean, false),
        (and(three(&empty), last(&empty)), End::Clean, false),
        (and(three(&empty), last(&empty)), End::Done, true),
        (and(three(&none), last(&none)), End::Clean, false),
        (three(&none), End::Done, true),
        (three(&stop), End::Cut, false),
        (three(&stop), End::Clean, false),
        (three(&stop), End::Done, true),
        (and(three(&stop), last(&stop)), End::Clean, true),
        (and(three(&none), last(&stop)), End::Clean, true),
        (and(and(three(&none), last(&stop)), usage), End::Done, true),
        (and(three(&none), word("", stop.clone())), End::Clean, true),
        (and(three(&none), last(&json!("abort"))), End::Done, false),
        (and(three(&none), last(&json!("error"))), End::Clean, false),
    ];
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for (chunks, end, whole) in &cases {
            let (body, end) = (sse(chunks) + if *end == End::Done { "data: [DONE]\n\n" } else { "" }, *end);
            let bytes = body.clone();
            fake.script(move |seen| match (seen.is_main(), end) {
                (true, End::Cut) => Play::Cut([sse_head(), chunk(bytes.as_bytes())].concat()),
                (true, _) => with_200(SSE, &bytes),
                (false, _) => Play::Usual,
            });
            for dialect in dialects() {
                let what = format!("{} {kind:?} {body}", dialect.name);
                let answer = ask(&proxy, dialect, &chat().user("hi").stream()).ok();
                let read = read(dialect, true, &answer);
                assert_eq!(read.text, "The answer is ", "{what}: {}", answer.text());
                let (finish, error) = (read.finish.as_str(), !read.error.is_empty());
                assert_eq!((finish, error), if *whole { (dialect.ends.0, false) } else { ("", true) }, "{what}");
            }
        }
    }
}

/// A whole reply that does not say why it ended is told as one that may be cut: never as complete, and never with less than came.
#[test]
fn a_whole_reply_without_a_finish_reason_is_not_told_as_complete() {
    let whole = |finish: Value, calls: Value| {
        let mut choice =
            json!({"index": 0, "message": {"role": "assistant", "content": "The answer is", "tool_calls": calls}});
        if finish != json!("absent") {
            choice["finish_reason"] = finish;
        }
        json!({"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}})
    };
    let call =
        |arguments: &str| json!([{"id": "a", "type": "function", "function": {"name": "run", "arguments": arguments}}]);
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for finish in [Value::Null, json!(""), json!("absent"), json!("abort"), json!("error")] {
            let body = whole(finish.clone(), json!([]));
            fake.script(move |seen| if seen.is_main() { Play::Json(200, body.clone()) } else { Play::Usual });
            for dialect in dialects() {
                for streamed in [true, false] {
                    let what = format!("{} {kind:?} streamed: {streamed} {finish}", dialect.name);
                    let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), streamed)).ok();
                    assert!(answer.text().contains("The answer is"), "{what}: {}", answer.text());
                    if streamed {
                        let read = read(dialect, streamed, &answer);
                        assert_eq!((read.finish.is_empty(), read.error.is_empty()), (true, false), "{what}");
                        continue;
                    }
                    let body = answer.json();
                    match dialect.name {
                        "anthropic" => assert_eq!(body["stop_reason"], Value::Null, "{what}"),
                        "responses" => {
                            assert_eq!(
                                (&body["status"], &body["error"]),
                                (&json!("incomplete"), &Value::Null),
                                "{what}"
                            );
                            assert_eq!(body["output"][0]["status"], "incomplete", "{what}");
                        }
                        "ollama" => {
                            assert_eq!((&body["done"], body.get("done_reason")), (&json!(false), None), "{what}")
                        }
                        _ => assert_ne!(body["choices"][0]["finish_reason"], "stop", "{what}"),
                    }
                    let told = answer.header("x-windowsill-warning").unwrap_or_default();
                    assert!(told.contains("may be cut off"), "{what}: {told}");
                }
            }
        }
        // Calls that are whole are an end of their own.
        for (arguments, ends) in [(r#"{"path":"a"}"#, true), (r#"{"path":"a"#, false)] {
            let body = whole(Value::Null, call(arguments));
            fake.script(move |seen| if seen.is_main() { Play::Json(200, body.clone()) } else { Play::Usual });
            for dialect in dialects().filter(|dialect| ends || dialect.name == "anthropic") {
                let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi").tools(), false)).ok();
                let told = answer.header("x-windowsill-warning").is_some_and(|told| told.contains("may be cut off"));
                assert_eq!(told, !ends, "{} {arguments}", dialect.name);
                if ends && dialect.name != "chat" {
                    assert_eq!(read(dialect, false, &answer).finish, dialect.ends.1, "{}", dialect.name);
                }
            }
        }
    }
}

#[test]
fn a_call_in_pieces_without_finish_reasons_is_one_whole_call() {
    for finish in ["", "tool_calls", "stop"] {
        let part = |delta: Value| said(delta, json!(finish));
        let call = |call: Value| part(json!({ "tool_calls": [call] }));
        let mut chunks = vec![call(
            json!({"index": 0, "id": "c1", "type": "function", "function": {"name": "run", "arguments": ""}}),
        )];
        for piece in ["{\"pa", "th\":\"", "a b\"}"] {
            chunks.push(call(json!({"index": 0, "function": {"arguments": piece}})));
        }
        chunks.push(part(json!({})));
        let body = sse(&chunks) + "data: [DONE]\n\n";
        // With and without a tool of ours in the prompt.
        for request in [chat().user("hi").tools(), evicted()] {
            for dialect in dialects() {
                let fake = Fake::start(Kind::LlamaServer, 4096);
                let bytes = body.clone();
                fake.script(move |seen| if seen.is_main() { with_200(SSE, &bytes) } else { Play::Usual });
                let proxy = TestProxy::before(&fake);
                let answer = ask(&proxy, dialect, &request.clone().stream()).ok();
                let read = read(dialect, true, &answer);
                let what = format!("{} {finish:?}: {}", dialect.name, answer.text());
                assert_eq!(read.calls, [("run".to_owned(), json!({"path": "a b"}))], "{what}");
                if finish != "stop" {
                    assert_eq!(read.finish, dialect.ends.1, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_reply_comes_in_the_form_that_was_asked_for() {
    let whole = json!({"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "all of it"}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}});
    let events = sse(&[
        json!({"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "all "}}]}),
        word("of it", Value::Null),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json!({"id": "c1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}),
    ]) + "data: [DONE]\n\n";
    let lines = events.replace("data: [DONE]\n\n", "").replace("data: ", "").replace("\n\n", "\n");
    let pretty = serde_json::to_string_pretty(&whole).unwrap();
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        for content in [SSE, JSON, "text/plain; charset=utf-8", "application/x-ndjson", "application/octet-stream"] {
            for body in [&events, &lines, &pretty, &whole.to_string()] {
                let bytes = body.clone();
                fake.script(move |seen| if seen.is_main() { with_200(content, &bytes) } else { Play::Usual });
                for dialect in dialects() {
                    for streamed in [true, false] {
                        let what = format!("{} {kind:?} streamed: {streamed} {content} {body}", dialect.name);
                        let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), streamed)).ok();
                        let read = read(dialect, streamed, &answer);
                        let told = (read.text.as_str(), read.finish.as_str(), read.error.as_str());
                        assert_eq!(told, ("all of it", dialect.ends.0, ""), "{what}: {}", answer.text());
                        let kind = answer.header("content-type").unwrap();
                        assert_eq!(kind.starts_with("application/json"), !streamed, "{what}: {kind}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_reply_at_all_is_an_error_where_a_stream_was_asked_for() {
    let fake = Fake::start(Kind::OpenAi, 8192);
    let proxy = TestProxy::before(&fake);
    for (content, body, words) in [
        ("text/html", "<html>Bad gateway</html>", "Bad gateway"),
        ("text/plain", "upstream connect error", "upstream connect error"),
        (SSE, "", "before the reply was complete"),
        (SSE, "data: the model is gone\n\ndata: [DONE]\n\n", "the model is gone"),
        (SSE, "data: \"the model is gone\"\n\ndata: [DONE]\n\n", "the model is gone"),
        (SSE, ": ping\n\n", "before the reply was complete"),
        (JSON, "{\"choi", "before the reply was complete"),
    ] {
        fake.script(move |seen| if seen.is_main() { with_200(content, body) } else { Play::Usual });
        for dialect in dialects() {
            let answer = ask(&proxy, dialect, &chat().user("hi").stream());
            assert_eq!(answer.status, 502, "{} {content}: {}", dialect.name, answer.text());
            let said = (dialect.error)(&answer.json()).unwrap();
            assert!(said.contains(words), "{} {content}: {said}", dialect.name);
        }
    }
}

/// JSON that is no chat completion is no empty reply. In the words of chat completions it is passed on, as the server alone says it.
#[test]
fn json_without_choices_is_no_reply() {
    for kind in [Kind::LlamaServer, Kind::OpenAi, Kind::Ollama] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        let odd = json!({"note": "maintenance until noon"});
        for streamed in [true, false] {
            let play = match (streamed, kind) {
                (true, Kind::LlamaServer | Kind::OpenAi) => with_200(SSE, &format!("data: {odd}\n\ndata: [DONE]\n\n")),
                _ => Play::Json(200, odd.clone()),
            };
            fake.script(move |seen| if seen.is_main() { play.clone() } else { Play::Usual });
            for dialect in dialects() {
                let what = format!("{} {kind:?} streamed: {streamed}", dialect.name);
                let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), streamed));
                assert!(answer.text().contains("maintenance until noon"), "{what}: {}", answer.text());
                let passed = dialect.name == "chat" && !streamed && kind != Kind::Ollama;
                assert_eq!(answer.status, if passed { 200 } else { 502 }, "{what}: {}", answer.text());
            }
        }
    }
}

#[test]
fn an_ollama_that_answers_in_another_form_is_understood() {
    let line = |text: &str, done: bool| {
        let mut line = json!({"model": MODEL, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": text}, "done": done});
        if done {
            let figures = json!({"done_reason": "stop", "prompt_eval_count": 9, "eval_count": 3});
            line.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
        }
        line
    };
    let lines = format!("{}\n{}\n{}\n", line("all ", false), line("of it", false), line("", true));
    let whole = line("all of it", true);
    let pretty = serde_json::to_string_pretty(&whole).unwrap();
    let fake = Fake::start(Kind::Ollama, 8192);
    let proxy = TestProxy::before(&fake);
    for body in [lines, whole.to_string(), pretty] {
        let bytes = body.clone();
        fake.script(move |seen| if seen.is_main() { with_200(JSON, &bytes) } else { Play::Usual });
        for dialect in dialects() {
            for streamed in [true, false] {
                let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), streamed)).ok();
                let read = read(dialect, streamed, &answer);
                let told = (read.text.as_str(), read.finish.as_str());
                assert_eq!(told, ("all of it", dialect.ends.0), "{} streamed: {streamed} {body}", dialect.name);
            }
        }
    }
}

#[test]
fn errors_behind_a_200_in_a_round_of_recall_are_errors() {
    for streamed in [true, false] {
        for (error, refused) in [
            (json!({"error": {"message": "the model is gone"}}), false),
            (json!({"error": {"message": "prompt is too long: 9000 tokens > 4096 maximum"}}), true),
        ] {
            let fake = Fake::start(Kind::LlamaServer, 4096);
            let round = std::sync::atomic::AtomicUsize::new(0);
            let said = error.clone();
            fake.script(move |seen| {
                if !seen.is_main() {
                    return Play::Usual;
                }
                let call = [("call_r", TOOL.to_owned(), json!({"id": id_in(seen)}).to_string())];
                match round.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                    0 if streamed => with_200(SSE, &said_stream(seen, 0, "", &call)),
                    0 => Play::Json(200, script::whole_reply(seen, 0, "", &call)),
                    1 if streamed => with_200(SSE, &format!("data: {said}\n\n")),
                    1 => Play::Json(200, said.clone()),
                    _ => Play::Usual,
                }
            });
            let proxy = TestProxy::before(&fake);
            let answer = proxy.chat(&whole_or_streamed(evicted(), streamed));
            let what = format!("streamed: {streamed} {error}: {}", answer.text());
            if refused {
                // Without the newest results it goes on.
                assert!(answer.status == 200 && answer.text().contains("what is next?"), "{what}");
                assert_eq!(fake.count(), 3, "{what}");
            } else {
                assert!(answer.text().contains("the model is gone"), "{what}");
                assert!(!answer.text().contains("[DONE]") && (streamed || answer.status == 502), "{what}");
            }
        }
    }
}
