//! History never kills a session: whatever odd messages stand in it, before servers that are as strict as llama-server or that
//! take anything. What the person asks now is the client's to mend.

use serde_json::{Value, json};

use super::support::*;

/// What llama.cpp's server (`common/chat.cpp`, `server-common.cpp`) refuses of messages, in short.
fn refusal(body: &[u8]) -> Option<(u16, String)> {
    let text = std::str::from_utf8(body).ok()?;
    let Ok(read) = serde_json::from_str::<Value>(text) else { return Some((500, "parse_error.101".into())) };
    let messages = read["messages"].as_array()?;
    for message in messages {
        if let Some(why) = refused(message) {
            return Some((400, format!("{why}: {message}")));
        }
    }
    if let [.., before, last] = messages.as_slice()
        && before["role"] == "assistant"
        && last["role"] == "assistant"
    {
        return Some((400, "Cannot have 2 or more assistant messages at the end of the list.".into()));
    }
    None
}

fn refused(message: &Value) -> Option<&'static str> {
    let Some(fields) = message.as_object() else { return Some("Expected 'message' to be an object") };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Some("Missing 'role'");
    }
    match fields.get("content") {
        None if message["role"] != "assistant" => return Some("All non-assistant messages must contain 'content'"),
        None if !fields.contains_key("tool_calls") => return Some("Expected 'content' or 'tool_calls'"),
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for part in parts {
                match part["type"].as_str() {
                    Some("text") if part["text"].is_string() => {}
                    Some("image_url") => {}
                    _ => return Some("Unsupported content part"),
                }
            }
        }
        Some(_) => return Some("Invalid 'content' type"),
    }
    if fields.get("tool_calls").is_some_and(|calls| !calls.is_array() && !calls.is_null()) {
        return Some("Missing tool call type");
    }
    for call in fields.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        if call["type"] != "function"
            || !call["function"]["name"].is_string()
            || call["function"].get("arguments").is_none()
        {
            return Some("Missing tool call type, function or name");
        }
    }
    let texts = ["reasoning_content", "name", "tool_call_id"];
    texts
        .iter()
        .any(|key| fields.get(*key).is_some_and(|v| !v.is_string()))
        .then_some("type must be string, but is null")
}

fn strict() -> Fake {
    let fake = Fake::start(Kind::LlamaServer, 1 << 16);
    fake.script(|seen| match refusal(&seen.body).filter(|_| seen.is_main()) {
        Some((status, why)) => {
            Play::Json(status, json!({"error": {"code": status, "message": why, "type": "invalid_request_error"}}))
        }
        None => Play::Usual,
    });
    fake
}

/// Histories that hold something odd, as JSON text of their messages.
const ODD: [&str; 34] = [
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\":\"a\ud83d\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"shipped \ud83d\u2026) cut"}"#,
    r#"{"role":"user","content":"a","\udc00":"\ud800"}"#,
    r#"{"role":"assistant","reasoning_content":"Let me see. 7 times 13"}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[]}"#,
    r#"{"role":"assistant"}"#,
    r#"{"role":"assistant","content":null}"#,
    r#"{"role":"assistant","content":[]}"#,
    r#"{"role":"tool","tool_call_id":"call_7","content":"port = 8080"}"#,
    r#"{"role":"tool","content":"port = 8080"}"#,
    r#"{"role":"developer","content":"Be brief."}"#,
    r#"{"role":"latest_reminder","content":"It is Monday."}"#,
    r#"{"role":"ipython","content":null}"#,
    r#"{"role":"function","name":"ls","content":"a"}"#,
    r#"{"role":"assistant","content":null,"function_call":{"name":"ls","arguments":"{}"}},{"role":"function","name":"ls","content":"a"}"#,
    r#"{"role":"assistant","function_call":{"name":"ls","arguments":null}}"#,
    r#"{"role":"user","content":7}"#,
    r#"{"role":"user","content":{"type":"text","text":"a"}}"#,
    r#"{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}"#,
    r#"{"role":"user","content":[{"text":"a"}]}"#,
    r#"{"role":"user","content":["a",{"type":"text","text":null}]}"#,
    r#"{"role":"user","content":[1,null]}"#,
    r#"{"role":"user"}"#,
    r#"{"role":"user","content":"a","name":null}"#,
    r#"{"role":"assistant","content":"a","reasoning_content":null,"refusal":null,"tool_calls":null}"#,
    r#"{"role":"assistant","content":"a","tool_calls":"ls"}"#,
    r#"{"role":"assistant","content":"a","tool_calls":["ls"]}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"ls"}}]},{"role":"tool","content":"a"}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"ls","arguments":{"n":1}}}]},{"role":"tool","tool_call_id":"c","content":"a"}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"ls","arguments":null}}]},{"role":"tool","tool_call_id":"c","content":"a"}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"custom","custom":{"name":"ls","input":"a"}}]},{"role":"tool","tool_call_id":"c","content":"a"}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function"}]},{"role":"tool","tool_call_id":"c","content":"a"}"#,
    r#"{"content":"a"}"#,
    r#""a""#,
    "null",
];

fn body(messages: &str) -> String {
    format!(r#"{{"model":"{MODEL}","max_tokens":8,"messages":[{messages}]}}"#)
}

#[test]
fn no_odd_message_of_a_history_ends_a_session() {
    let (any, strict) = (Fake::start(Kind::LlamaServer, 1 << 16), strict());
    for fake in [&any, &strict, &Fake::start(Kind::Ollama, 1 << 16)] {
        let proxy = TestProxy::before(fake);
        for (n, odd) in ODD.iter().enumerate() {
            let asked = |more: &str| format!(r#"{{"role":"user","content":" And {n}{more}?\n"}}"#);
            for before in ["", r#"{"role":"system","content":"s"},"#, r#"{"role":"user","content":"first"},"#] {
                let first = format!("{before}{odd},{}", asked(""));
                let longer = format!(r#"{first},{{"role":"assistant","content":"Yes."}},{}"#, asked(" too"));
                for (turn, messages) in [&first, &first, &longer].into_iter().enumerate() {
                    let answer = proxy.post("/v1/chat/completions", &[], body(messages).as_bytes());
                    assert_eq!(answer.status, 200, "{messages}: {}", answer.text());
                    let forwarded = fake.last().messages();
                    let last = text(forwarded.last().unwrap());
                    let more = if turn == 2 { " too" } else { "" };
                    assert_eq!(last, format!(" And {n}{more}?\n"), "{messages}");
                }
            }
        }
    }
}

/// A server that takes anything gets what the client sent, but for what no server takes.
#[test]
fn what_a_server_takes_it_gets_as_it_came() {
    let fake = Fake::start(Kind::LlamaServer, 1 << 16);
    let proxy = TestProxy::before(&fake);
    for odd in ODD {
        let Ok(read) = serde_json::from_str::<Value>(&format!("[{odd}]")) else { continue };
        let all = read.as_array().unwrap();
        // Replies that say nothing get empty words everywhere, and calls arguments that are an object.
        let is_empty = |m: &Value| m["content"].is_null() && m.get("tool_calls").is_none_or(|c| *c == json!([]));
        let is_bare = |m: &Value| m.pointer("/tool_calls/0/function/arguments").is_some_and(Value::is_null);
        if all.iter().any(|m| refused(m).is_some() || is_empty(m) || is_bare(m)) {
            continue;
        }
        let sent = body(&format!(r#"{odd},{{"role":"user","content":"And?"}}"#));
        proxy.post("/v1/chat/completions", &[], sent.as_bytes()).ok();
        let forwarded = fake.last().json();
        assert_eq!(forwarded["messages"], serde_json::from_str::<Value>(&sent).unwrap()["messages"], "{odd}");
    }
}

/// An orphan passes as it is with a warning, is said as text once the server refuses it, and from then on at once.
#[test]
fn a_result_without_its_call_passes_and_is_text_where_it_cannot() {
    let orphan = r#"{"role":"system","content":"s"},{"role":"tool","tool_call_id":"call_7","content":"port = 8080"},{"role":"assistant","content":"It is 8080."},{"role":"user","content":"Which port?"}"#;
    let fake = Fake::start(Kind::LlamaServer, 1 << 16);
    let proxy = TestProxy::before(&fake);
    let answer = proxy.post("/v1/chat/completions", &[], body(orphan).as_bytes()).ok();
    assert!(answer.header("x-windowsill-warning").is_some_and(|w| w.contains("messages[1]")), "{:?}", answer.headers);
    assert_eq!(fake.last().json()["messages"], serde_json::from_str::<Value>(&body(orphan)).unwrap()["messages"]);
    fake.script(|seen| {
        let stray = seen.is_main() && seen.messages().iter().any(|m| m["role"] == "tool");
        if stray { Play::Json(500, json!({"error": {"message": "Jinja Exception: no call"}})) } else { Play::Usual }
    });
    let before = fake.count();
    let answer = proxy.post("/v1/chat/completions", &[], body(orphan).as_bytes()).ok();
    let said = |fake: &Fake| fake.last().messages()[1].clone();
    assert_eq!(said(&fake), json!({"role": "user", "content": "[result of an earlier call]\nport = 8080"}));
    assert!(answer.header("x-windowsill-warning").is_some_and(|w| w.contains("plain words")), "{:?}", answer.headers);
    assert_eq!(fake.count(), before + 2);
    proxy.post("/v1/chat/completions", &[], body(orphan).as_bytes()).ok();
    assert_eq!((fake.count(), said(&fake)["role"].as_str()), (before + 3, Some("user")));
}

/// Where a prompt is rewritten, no result stands without its call, at any window, and the same history gets the same bytes.
#[test]
fn a_view_has_no_result_without_its_call() {
    for window in [2048, 3072, 4096] {
        let fake = Fake::start(Kind::LlamaServer, window);
        let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
        let mut sent = chat().system("s").result("call_7", &prose(7, 2_000)).user("Go through all parts.").tools();
        let mut rewritten = 0;
        for n in 0..10 {
            sent = sent.step(n, &prose(n as u64, 900));
            if n == 4 {
                sent = sent.user("And on.").result("call_x", &prose(99, 1_500));
            }
            let answer = proxy.chat(&sent).ok();
            let first = fake.last();
            rewritten += usize::from(answer.action() != "none");
            if first.messages() != sent.messages {
                assert_eq!(faults(&sent.value(), &first.json()), Vec::<String>::new(), "{window}, step {n}");
            }
            proxy.chat(&sent).ok();
            assert_eq!(fake.last().json()["messages"], first.json()["messages"], "{window}, step {n}");
        }
        assert!(rewritten > 0, "{window}");
    }
}

/// What is asked now is refused in the server's own words, however much of the history could be said otherwise.
#[test]
fn what_is_asked_now_is_refused_in_the_servers_words() {
    let fake = strict();
    let proxy = TestProxy::before(&fake);
    let history = r#"{"role":"user","content":"a","name":null},{"role":"assistant","content":"b"}"#;
    let asked = body(&format!("{history},{}", r#"{"role":"user"}"#));
    let answer = proxy.post("/v1/chat/completions", &[], asked.as_bytes());
    assert_eq!((answer.status, answer.error().1), (400, refusal(asked.as_bytes()).unwrap().1));
    // What a server cannot take beside words becomes a line, wherever it stands.
    let asked = body(&format!("{history},{}", r#"{"role":"user","content":[{"type":"file"}]}"#));
    let answer = proxy.post("/v1/chat/completions", &[], asked.as_bytes()).ok();
    assert!(answer.header("x-windowsill-warning").is_some());
    // The end of a request is the model's to go on with.
    let prefilled = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"assistant","content":"def f():\n    "}"#;
    proxy.post("/v1/chat/completions", &[], body(prefilled).as_bytes()).ok();
    assert!(text(fake.last().messages().last().unwrap()).ends_with("def f():\n    "));
}

/// A client that was stopped in the middle of a step is told what stands for the results that it never had.
#[test]
fn calls_that_got_no_result_are_told_of() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = chat().user("Look.").call("c1", "read_file", json!({"path": "a"})).user("And now?").tools();
    let answer = proxy.chat(&sent).ok();
    assert_eq!(
        answer.header("x-windowsill-warning"),
        Some("the model is told that a call of this history got no result (1)")
    );
    assert!(proxy.chat(&chat().user("Look.")).ok().header("x-windowsill-warning").is_none());
}

/// What a server answers alone, windowsill does not refuse for want of reading it: it is passed as it is, and told.
#[test]
fn what_only_the_server_can_read_is_the_servers_to_judge() {
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    for (kind, path, body) in [
        (
            Kind::LlamaServer,
            "/v1/messages",
            format!(r#"{{"model":"{MODEL}","max_tokens":9,"x":{deep},"messages":[{{"role":"user","content":"a"}}]}}"#),
        ),
        (
            Kind::LlamaServer,
            "/v1/messages",
            format!(r#"{{"model":"{MODEL}","max_tokens":9,"system":5,"messages":[{{"role":"user","content":"a"}}]}}"#),
        ),
        (Kind::LlamaServer, "/v1/responses", format!(r#"{{"model":"{MODEL}","x":{deep},"input":"a"}}"#)),
        (Kind::LlamaServer, "/v1/responses", format!(r#"{{"model":"{MODEL}","tools":{{}},"input":"a"}}"#)),
        (
            Kind::LlamaServer,
            "/v1/messages/count_tokens",
            format!(r#"{{"model":"{MODEL}","system":5,"messages":[{{"role":"user","content":"a"}}]}}"#),
        ),
        (Kind::Ollama, "/v1/chat/completions", format!(r#"{{"model":"{MODEL}","messages":[{{"content":"a"}}]}}"#)),
        (
            Kind::Ollama,
            "/api/chat",
            format!(r#"{{"model":"{MODEL}","x":{deep},"messages":[{{"role":"user","content":"a"}}]}}"#),
        ),
        (Kind::Ollama, "/api/generate", format!(r#"{{"model":"{MODEL}","x":{deep},"prompt":"a"}}"#)),
    ] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        let (whole, own) = (body.clone(), path);
        fake.script(move |seen| match seen.path() == own && seen.body == whole.as_bytes() {
            true => Play::Json(200, json!({"said": "by the server"})),
            false => Play::Usual,
        });
        let answer = proxy.post(path, &[], body.as_bytes()).ok();
        assert_eq!(answer.json(), json!({"said": "by the server"}), "{path}: {body}");
        let warning = answer.header("x-windowsill-warning").unwrap_or_default();
        assert!(warning.starts_with("passed to the server as it is, unmeasured: "), "{path}: {warning:?}");
        // Where the server refuses it, too, our words name the field.
        let whole = body.clone();
        fake.script(move |seen| match seen.body == whole.as_bytes() {
            true => Play::Json(400, json!({"error": {"message": "no"}})),
            false => Play::Usual,
        });
        let answer = proxy.post(path, &[], body.as_bytes());
        assert!(answer.status == 400 && !answer.text().contains("\"no\""), "{path}: {}", answer.text());
    }
}

/// .NET and Windows' editors write a byte order mark before a text, and servers pass over it.
#[test]
fn a_byte_order_mark_is_passed_over() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for (path, key) in [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
        ("/api/chat", "messages"),
    ] {
        let mut body = json!({"model": MODEL, "max_tokens": 9, "stream": false});
        body[key] = json!([{"role": "user", "content": "a"}]);
        let answer = proxy.post(path, &[], format!("\u{feff}{body}").as_bytes()).ok();
        assert!(answer.header("x-windowsill-warning").is_none(), "{path}");
        assert_eq!(fake.last().messages(), [json!({"role": "user", "content": "a"})], "{path}");
    }
}

/// Ollama's own endpoint passes over what is no text in `stop`, and its `options` would refuse it.
#[test]
fn what_is_no_text_in_stop_is_passed_over_before_an_ollama() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&fake);
    for (stop, sent) in [
        (json!("x"), json!(["x"])),
        (json!(["x", 1, null]), json!(["x"])),
        (json!(1), json!([])),
        (json!([null]), json!([])),
    ] {
        proxy.chat(&chat().user("a").with("stop", stop.clone())).ok();
        assert_eq!(fake.last().json()["options"]["stop"], sent, "{stop}");
    }
}

/// A reply that says nothing, at the end of a request in another dialect: there is nothing to go on from, and the model begins its
/// own. Within a history it stays.
#[test]
fn a_last_reply_that_says_nothing_is_nothing_to_go_on_from() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let user = json!({"role": "user", "content": "Hello?"});
    for (path, field, nothing) in [
        ("/v1/messages", "messages", json!({"role": "assistant", "content": []})),
        ("/v1/messages", "messages", json!({"role": "assistant", "content": [{"type": "text", "text": ""}]})),
        (
            "/v1/responses",
            "input",
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}),
        ),
        ("/v1/responses", "input", json!({"role": "assistant", "content": ""})),
        ("/api/chat", "messages", json!({"role": "assistant", "content": ""})),
    ] {
        for goes_on in [false, true] {
            let mut all = vec![user.clone(), nothing.clone()];
            all.extend(goes_on.then(|| user.clone()));
            let body = json!({"model": MODEL, "max_tokens": 64, "stream": false, field: all});
            proxy.post(path, &[], body.to_string().as_bytes()).ok();
            let sent = fake.last().messages();
            assert_eq!(sent.last().unwrap()["role"], "user", "{path} {nothing}");
            assert_eq!(sent.len(), if goes_on { 3 } else { 1 }, "{path} {nothing}: {sent:?}");
        }
    }
}
