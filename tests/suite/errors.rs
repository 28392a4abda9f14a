//! Every error has OpenAI's shape, the right status, numbers and a hint; and none looks like a complete reply.

use serde_json::{Value, json};

use super::support::*;

#[test]
fn no_server_is_said_with_a_hint() {
    let absent = format!("http://{}", Fake::absent());
    let proxy = TestProxy::with(&[absent], "");
    for answer in [proxy.chat(&chat().user("hi")), proxy.get("/props"), proxy.get("/v1/models")] {
        let (code, message) = answer.error();
        assert_eq!((answer.status, code.as_str()), (502, "upstream_unreachable"), "{message}");
        assert!(message.contains("Hint:") && message.contains("up0"), "{message}");
    }
    assert_eq!(proxy.get("/healthz").ok().text(), "ok\n");
    assert_eq!(proxy.get("/readyz").status, 503);
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    let address = Fake::absent();
    let proxy = TestProxy::with(&[format!("http://{address}")], "");
    assert_eq!(proxy.chat(&chat().user("hi")).status, 502);
    let fake = Fake::on(std::net::TcpListener::bind(address).unwrap(), Kind::LlamaServer, 4096);
    let answer = proxy.chat(&chat().user("hi")).ok();
    assert_eq!(answer.header("x-windowsill-window"), Some("4096"));
    assert_eq!(fake.count(), 1);
    assert_eq!(proxy.get("/readyz").status, 200);
}

#[test]
fn an_unknown_model_among_two_servers_is_not_found() {
    let (a, b) = (Fake::start(Kind::OpenAi, 4096), Fake::start(Kind::Vllm, 4096));
    a.set(|s| s.model = "qwen3:8b".into());
    b.set(|s| s.model = "llama3:8b".into());
    let proxy = TestProxy::with(&[a.url(), b.url()], "");
    let answer = proxy.chat(&chat().user("hi").with("model", json!("qwen3:9b")));
    let (code, message) = answer.error();
    assert_eq!((answer.status, code.as_str()), (404, "model_not_found"));
    assert!(message.contains("qwen3:9b") && message.contains("did you mean `qwen3:8b`"), "{message}");
    assert!(a.mains().is_empty() && b.mains().is_empty());
}

#[test]
fn the_clients_own_mistakes_are_named() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    // As real servers do. What is no JSON does not even reach them.
    fake.script(|seen| {
        let read: Result<Value, _> = serde_json::from_slice(&seen.body);
        let words = |m: &Value| m["content"].is_string();
        match read.as_ref().map(|body| body["messages"].as_array().is_some_and(|all| all.iter().all(words))) {
            Ok(true) => Play::Usual,
            _ if !seen.is_main() => Play::Usual,
            Err(_) if !seen.body.starts_with(b"{\"model\":\"m\",\"messages\":[[") => panic!("{seen:?}"),
            _ => Play::Json(
                400,
                json!({"error": {"code": 400, "message": "no messages", "type": "invalid_request_error"}}),
            ),
        }
    });
    let proxy = TestProxy::before(&fake);
    let huge = format!(r#"{{"model":"m","messages":{}1{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    for (body, param) in [
        ("", None),
        ("not json", None),
        ("[1,2]", None),
        ("\"text\"", None),
        (r#"{"model":"m","messages":[{"role":"user","content":"x"}"#, None),
        (r#"{"model":"m"}"#, Some("messages")),
        (r#"{"model":"m","messages":"hi"}"#, Some("messages")),
        (r#"{"model":"m","messages":{"role":"user"}}"#, Some("messages")),
        (r#"{"model":"m","messages":null}"#, Some("messages")),
        (r#"{"model":"m","messages":["hi"]}"#, Some("messages")),
        (
            r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":7}]}"#,
            Some("messages[1].content"),
        ),
        (huge.as_str(), None),
    ] {
        let answer = proxy.post("/v1/chat/completions", &[], body.as_bytes());
        let shown = &body[..body.len().min(80)];
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        let (_, message) = answer.error();
        assert!(!message.is_empty());
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        if let Some(param) = param {
            let named = answer.json()["error"]["param"].as_str().unwrap_or("").to_owned();
            assert!(named.starts_with(param), "{shown}: param {named:?}; {message}");
        }
    }
    proxy.chat(&chat().user("still alive")).ok();
}

#[test]
fn what_is_too_large_is_refused_by_size() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[limits]\nmax_body_bytes = 100000\nmax_header_bytes = 8192\n");
    let answer = proxy.post("/v1/chat/completions", &[], &chat().user(&"x".repeat(200_000)).body());
    let (code, message) = answer.error();
    assert_eq!((answer.status, code.as_str()), (413, "request_too_large"));
    assert!(message.contains("100000") && message.contains("max_body_bytes"), "{message}");
    // The same without a length that gives it away.
    let mut conn = Conn::open(proxy.address);
    let _ = conn.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..30 {
        let _ = conn.write(&chunk(&[b'x'; 5000]));
    }
    let _ = conn.write(b"0\r\n\r\n");
    assert_eq!(conn.answer().status, 413);
    let mut conn = Conn::open(proxy.address);
    conn.send("GET", "/v1/models", &[("x-long", &"y".repeat(20_000))], b"");
    assert_eq!(conn.answer().status, 431);
    assert!(fake.mains().is_empty());
    proxy.chat(&chat().user("still alive")).ok();
}

#[test]
fn system_and_tools_that_alone_do_not_fit_are_refused_before_anything_is_sent() {
    for kind in [Kind::LlamaServer, Kind::Vllm] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        let many: Vec<_> = (0..150).map(|n| tool(&format!("tool_number_{n}"))).collect();
        for (request, region) in [
            (chat().system(&prose(1, 40_000)).user("hi"), "system"),
            (chat().system("s").user("hi").with("tools", json!(many)), "tools"),
        ] {
            for request in [request.clone(), request.stream()] {
                let answer = proxy.chat(&request);
                let (code, message) = answer.error();
                assert_eq!((answer.status, code.as_str()), (400, "context_length_exceeded"), "{kind:?} {region}");
                assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
                assert!(message.contains("maximum context length is 4096 tokens"), "{message}");
                assert!(message.contains(region) && message.contains("Hint:"), "{message}");
            }
        }
        assert!(fake.mains().is_empty() && fake.summaries().is_empty());
    }
}

/// A server that counts the same, whatever is taken out of the prompt.
#[test]
fn a_refusal_after_several_plans_tells_what_was_counted_and_the_room_that_there_is() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    fake.script(|seen| match seen.path() {
        "/v1/chat/completions/input_tokens" => Play::Json(200, json!({"input_tokens": 8_300})),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let talk = (0..12).fold(chat().system("s").user("Read them all."), |talk, n| talk.step(n, &prose(n as u64, 2_400)));
    let answer = proxy.chat(&talk);
    let (code, message) = answer.error();
    assert_eq!((answer.status, code.as_str()), (400, "context_length_exceeded"), "{message}");
    assert!(message.contains("your messages resulted in 8300 tokens"), "{message}");
    let number = |before: &str, after: &str| -> u32 {
        let (_, rest) = message.split_once(before).unwrap_or_else(|| panic!("no `{before}` in: {message}"));
        rest.split_once(after).unwrap().0.parse().unwrap()
    };
    let reserved = number("media 0; ", " reserved for the reply");
    let room = number("reserved for the reply, ", " left for the prompt");
    let slack = 8192 - reserved - room;
    assert!(reserved > 0 && slack < 8192 / 16, "{message}");
    assert!(fake.mains().is_empty(), "a prompt was sent that was counted as too long");
}

const EVENT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n";

#[test]
fn a_stream_that_breaks_off_ends_with_an_error_event() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let ends = [b"0\r\n\r\n".to_vec(), chunk(b"data: {\"cho"), Vec::new(), b"5\r\nda".to_vec()];
    for (n, end) in ends.into_iter().enumerate() {
        let bytes = [sse_head(), chunk(EVENT), end].concat();
        fake.script(move |seen| if seen.is_main() { Play::Cut(bytes.clone()) } else { Play::Usual });
        let answer = proxy.chat(&chat().user("hi").stream()).ok();
        let text = answer.text();
        assert!(text.starts_with(std::str::from_utf8(EVENT).unwrap()), "{n}: {text}");
        assert!(!text.contains("[DONE]"), "{n}: {text}");
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        let event: serde_json::Value = serde_json::from_str(last.strip_prefix("data: ").expect(last)).unwrap();
        assert!(event["error"]["message"].as_str().unwrap().len() > 10, "{n}: {text}");
        assert!(answer.whole, "{n}: the client can read the error");
    }
    assert_eq!(fake.count(), 4, "what has begun is not sent again");
}

#[test]
fn a_reply_that_is_cut_is_no_reply() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let full = whole(200, "application/json", br#"{"choices":[{"message":{"content":"half of it"}}]}"#);
    for bytes in [
        full[..full.len() - 10].to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Ty".to_vec(),
        b"\x15\x03\x01garbage\r\n\r\n".to_vec(),
    ] {
        fake.script(move |seen| if seen.is_main() { Play::Cut(bytes.clone()) } else { Play::Usual });
        let answer = proxy.chat(&chat().user("hi"));
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(answer.error().0, "upstream_unreachable");
    }
    fake.script(|_| Play::Usual);
    proxy.chat(&chat().user("hi")).ok();
}

#[test]
fn the_servers_own_errors_are_passed_on() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let body = json!({"error": {"message": "slot is broken", "type": "server_error", "code": 500}});
    for status in [400, 401, 404, 422, 429, 500, 503] {
        let said = body.clone();
        fake.script(move |seen| if seen.is_main() { Play::Json(status, said.clone()) } else { Play::Usual });
        for request in [chat().user("hi"), chat().user("hi").stream()] {
            let before = fake.count();
            let answer = proxy.chat(&request);
            assert_eq!((answer.status, answer.json()), (status, body.clone()));
            assert_eq!(fake.count(), before + 1, "{status} is not tried again");
        }
    }
}

#[test]
fn a_key_is_asked_for_where_one_is_set() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "api_key = \"open-sesame\"\n");
    let body = chat().user("hi").body();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "open-sesame")],
        &[("Authorization", "Bearer open-sesam")],
        &[("x-api-key", "")],
    ] {
        let answer = proxy.post("/v1/chat/completions", headers, &body);
        assert_eq!((answer.status, answer.error().0.as_str()), (401, "invalid_api_key"), "{headers:?}");
        assert_eq!(request(proxy.address, "GET", "/props", headers, b"").status, 401);
        assert_eq!(request(proxy.address, "GET", "/windowsill/conversations", headers, b"").status, 401);
    }
    assert!(fake.mains().is_empty());
    for headers in [[("Authorization", "Bearer open-sesame")], [("X-Api-Key", "open-sesame")]] {
        proxy.post("/v1/chat/completions", &headers, &body).ok();
        let seen = fake.last();
        assert_eq!((seen.header("authorization"), seen.header("x-api-key")), (None, None), "the key is ours alone");
        assert_eq!(seen.body, body);
    }
    assert_eq!(proxy.get("/healthz").status, 200);
}

#[test]
fn an_unknown_path_of_ours_is_not_sent_on() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let before = fake.total();
    for path in
        ["/windowsill/nothing", "/windowsill/conversations/cffff", "/windowsill/records/r000000000000", "/windowsill"]
    {
        assert_eq!(proxy.get(path).status, 404, "{path}");
    }
    assert_eq!(proxy.post("/windowsill/conversations/cffff/compact", &[], b"").status, 404);
    assert_eq!(fake.total(), before);
}
