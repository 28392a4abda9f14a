//! The I/O of this room, against small servers that say what they are told to.

mod stub;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::StreamExt;
use http::HeaderValue;
use serde_json::json;

use super::*;
use stub::{Play, Seen, Stub, answer, not_found};

async fn text(reply: Reply) -> String {
    let parts: Vec<Bytes> = reply.body.map(|part| part.unwrap()).collect().await;
    String::from_utf8(parts.concat()).unwrap()
}

/// Like the benchmark's stub: llama-server's endpoints and Ollama's.
fn both(seen: &Seen) -> Play {
    match seen.line.as_str() {
        "GET /props" => Play::Json(
            200,
            json!({"default_generation_settings": {"n_ctx": 8192, "params": {}},
            "total_slots": 1, "model_path": "m.gguf", "chat_template": "chatml"}),
        ),
        "GET /slots" => Play::Json(200, json!([{"id": 0, "n_ctx": 8192}])),
        "GET /v1/models" => Play::Json(
            200,
            json!({"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}}],
            "models": [{"name": "m"}]}),
        ),
        "GET /api/version" => Play::Json(200, json!({"version": "0.12.0"})),
        "GET /api/ps" => Play::Json(200, json!({"models": [{"name": "m", "context_length": 8192}]})),
        "POST /v1/chat/completions/input_tokens" => Play::Json(200, json!({"input_tokens": 31})),
        "POST /v1/chat/completions" => Play::Json(200, json!({"choices": []})),
        _ => not_found(),
    }
}

fn ollama(seen: &Seen) -> Play {
    match seen.line.as_str() {
        "GET /api/version" => Play::Json(200, json!({"version": "0.12.0"})),
        "GET /api/tags" => Play::Json(200, json!({"models": [{"name": "qwen3:8b"}, {"name": "b:latest"}]})),
        "GET /api/ps" => {
            Play::Json(200, json!({"models": [{"name": "qwen3:8b", "digest": "d", "context_length": 4096}]}))
        }
        "POST /api/show" => Play::Json(
            200,
            json!({"parameters": "", "model_info":
            {"general.architecture": "qwen3", "qwen3.context_length": 40960}}),
        ),
        "POST /api/chat" => Play::Json(
            200,
            json!({"model": "qwen3:8b", "message": {"content": "Hi"}, "done": true,
            "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 1}),
        ),
        _ => not_found(),
    }
}

#[tokio::test]
async fn a_server_that_answers_as_both_is_a_llama_server() {
    let stub = Stub::start(both);
    let upstream = stub.upstream();
    assert_eq!((upstream.kind(), upstream.can_count()), (None, false));
    assert_eq!(upstream.probe().await.unwrap(), Kind::LlamaServer { router: false });
    assert_eq!(upstream.kind(), Some(Kind::LlamaServer { router: false }));
    let loaded = upstream.loaded("any").await.unwrap();
    assert_eq!((loaded.window, loaded.trained, loaded.provisional), (Some(8192), Some(32768), false));
    assert_eq!(loaded.template.text, None, "a name is no template");
    assert!(upstream.can_count());
    assert_eq!(upstream.count(&Bytes::from_static(b"{}")).await.unwrap(), 31);
    assert_eq!(upstream.models().await.unwrap()[0].id, "m");
}

#[tokio::test]
async fn an_older_llama_server_is_asked_once_whether_it_counts() {
    let stub = Stub::start(|seen| if seen.line.ends_with("input_tokens") { not_found() } else { both(seen) });
    let upstream = stub.upstream();
    assert_eq!(upstream.count(&Bytes::from_static(b"{}")).await.unwrap_err().status().unwrap().0, 404);
    assert!(!upstream.can_count());
}

#[tokio::test]
async fn a_router_is_asked_without_loading_anything() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "GET /props" => Play::Json(200, json!({"role": "router", "default_generation_settings": {"n_ctx": 0}})),
        "GET /props?model=a%2Fb&autoload=false" => {
            Play::Json(200, json!({"default_generation_settings": {"n_ctx": 2048}}))
        }
        "GET /props?model=off&autoload=false" => Play::Json(400, json!({"error": {"message": "model is not loaded"}})),
        "GET /models" => Play::Json(
            200,
            json!({"data": [
            {"id": "a/b", "status": {"value": "loaded", "args": []}},
            {"id": "off", "status": {"value": "unloaded", "args": ["--ctx-size", "1024", "-np", "1"]}}]}),
        ),
        "POST /v1/chat/completions/input_tokens?autoload=false" => Play::Json(200, json!({"input_tokens": 5})),
        "POST /models/load" => Play::Json(200, json!({"success": true})),
        "POST /models/unload" => Play::Json(400, json!({"error": {"message": "model is not running"}})),
        _ => not_found(),
    });
    let upstream = stub.upstream();
    upstream.bring("off", None).await.unwrap();
    assert!(upstream.drop_model("off").await.is_err());
    let on = upstream.loaded("a/b").await.unwrap();
    assert_eq!((on.window, on.asked_of, on.provisional), (Some(2048), "/props", false));
    let off = upstream.loaded("off").await.unwrap();
    assert_eq!((off.window, off.asked_of, off.provisional), (Some(1024), "/models status.args", true));
    assert!(upstream.loaded("unknown").await.is_err());
    assert_eq!(upstream.count(&Bytes::from_static(b"{}")).await.unwrap(), 5);
    let list: Vec<_> = upstream.models().await.unwrap().into_iter().map(|m| (m.id, m.loaded)).collect();
    assert_eq!(list, [("a/b".into(), Some(true)), ("off".into(), Some(false))]);
}

#[tokio::test]
async fn vllm_counts_what_its_template_makes_of_the_request() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "GET /v1/models" => Play::Json(200, json!({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})),
        "POST /tokenize" => Play::Json(200, json!({"count": 12, "max_model_len": 4096, "tokens": [1]})),
        _ => not_found(),
    });
    let upstream = stub.upstream();
    assert_eq!(upstream.loaded("m").await.unwrap().window, Some(4096));
    let body =
        r#"{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[],"max_tokens":5,"temperature":0.70}"#;
    assert_eq!(upstream.count(&body.into()).await.unwrap(), 12);
    let asked: Value = serde_json::from_slice(&stub.last().body).unwrap();
    assert_eq!(asked, json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": []}));
}

#[tokio::test]
async fn ollama_windows_and_loading() {
    let stub = Stub::start(ollama);
    let upstream = stub.upstream();
    assert_eq!(upstream.probe().await.unwrap(), Kind::Ollama);
    let loaded = upstream.loaded("Qwen3:8b").await.unwrap();
    assert_eq!((loaded.window, loaded.asked_of, loaded.provisional), (Some(4096), "/api/ps", false));
    let other = upstream.loaded("b").await.unwrap();
    assert_eq!((other.window, other.provisional, other.trained), (None, true, Some(40960)));
    upstream.load("b", Some(8192)).await.unwrap();
    let asked: Value = serde_json::from_slice(&stub.last().body).unwrap();
    assert_eq!(asked, json!({"model": "b", "messages": [], "stream": false, "options": {"num_ctx": 8192}}));
    assert!(upstream.count(&Bytes::new()).await.is_err());
    assert!(!upstream.can_count());
}

fn ask(stream: bool) -> Bytes {
    json!({"model": "qwen3:8b", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).to_string().into()
}

async fn chat(upstream: &Upstream, body: Bytes) -> Result<Reply, Error> {
    upstream
        .chat(
            &HeaderMap::new(),
            "/v1/chat/completions",
            body,
            ChatOptions { num_ctx: Some(4096), ..ChatOptions::default() },
        )
        .await
}

#[tokio::test]
async fn ollama_answers_in_openais_shape() {
    let stub = Stub::start(ollama);
    let upstream = stub.upstream();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let reply = chat(&upstream, ask(false)).await.unwrap();
        assert_eq!(
            (reply.status, reply.headers["content-type"].to_str().unwrap()),
            (StatusCode::OK, "application/json")
        );
        let body: Value = serde_json::from_str(&text(reply).await).unwrap();
        assert_eq!(body["choices"][0]["message"]["content"], "Hi");
        assert_eq!(body["usage"]["total_tokens"], 4);
        ids.push(body["id"].as_str().unwrap().to_owned());
    }
    assert!(ids[0] != ids[1] && ids[0].starts_with("chatcmpl-"), "{ids:?}");
    let sent: Value = serde_json::from_slice(&stub.last().body).unwrap();
    assert_eq!((&sent["options"]["num_ctx"], &sent["truncate"]), (&json!(4096), &json!(false)));
}

#[tokio::test]
async fn ollama_streams_in_openais_shape_at_any_split() {
    let lines = "{\"model\":\"m\",\"message\":{\"content\":\"é\"},\"done\":false}\n{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";
    let stub = Stub::start(move |seen| match seen.line.as_str() {
        "POST /api/chat" => {
            // One byte a chunk.
            let mut raw =
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            lines.bytes().for_each(|byte| raw.extend([b"1\r\n".as_slice(), &[byte], b"\r\n"].concat()));
            raw.extend(b"0\r\n\r\n");
            Play::Raw(raw)
        }
        _ => ollama(seen),
    });
    let upstream = stub.hinted(KindHint::Ollama);
    upstream.probe().await.unwrap();
    for _ in 0..3 {
        let reply = chat(&upstream, ask(true)).await.unwrap();
        assert_eq!(reply.headers["content-type"], "text/event-stream");
        assert!(!reply.headers.contains_key("transfer-encoding"));
        let events = text(reply).await;
        assert!(events.contains(r#""delta":{"role":"assistant","content":"é"}"#), "{events}");
        assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    }
}

#[tokio::test]
async fn an_ollama_stream_cut_off_says_so() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "POST /api/chat" => {
            Play::Raw(answer(200, "application/x-ndjson", b"{\"message\":{\"content\":\"a\"}}\n{\"error\":\"gone\"}"))
        }
        _ => ollama(seen),
    });
    let events = text(chat(&stub.upstream(), ask(true)).await.unwrap()).await;
    assert!(events.contains(r#""message":"gone""#) && !events.contains("[DONE]"), "{events}");
}

#[tokio::test]
async fn ollamas_refusal_keeps_its_numbers() {
    let inner = json!({"error": {"code": 400, "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}});
    let stub = Stub::start(move |seen| match seen.line.as_str() {
        "POST /api/chat" => Play::Json(400, json!({ "error": inner.to_string() })),
        _ => ollama(seen),
    });
    let reply = chat(&stub.upstream(), ask(true)).await.unwrap();
    assert_eq!(reply.status, 400);
    let found = overflow::overflow(400, text(reply).await.as_bytes()).unwrap();
    assert_eq!((found.prompt, found.window), (Some(9000), Some(4096)));
}

#[tokio::test]
async fn what_ollama_cannot_take_is_refused_here() {
    let stub = Stub::start(ollama);
    let upstream = stub.upstream();
    upstream.probe().await.unwrap();
    let asked = stub.seen.lock().len();
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}"#;
    let reply = chat(&upstream, body.into()).await.unwrap();
    assert_eq!((reply.status.as_u16(), stub.seen.lock().len()), (400, asked));
    assert!(text(reply).await.contains("invalid_request_error"));
}

#[tokio::test]
async fn a_dead_pooled_connection_costs_one_more_try() {
    // The first connection answers once, and is closed when the next request arrives on it.
    let served = AtomicBool::new(false);
    let stub = Stub::start(move |seen| {
        let first = seen.connection == 0;
        if first && served.swap(true, Ordering::SeqCst) {
            Play::Close
        } else {
            Play::Json(200, json!({"at": seen.connection}))
        }
    });
    let upstream = stub.hinted(KindHint::OpenAi);
    let headers = HeaderMap::new();
    let pass = || upstream.pass(Method::GET, "/v1/models", &headers, "".into());
    assert_eq!(text(pass().await.unwrap()).await, r#"{"at":0}"#);
    assert_eq!(text(pass().await.unwrap()).await, r#"{"at":1}"#);
    assert_eq!(stub.seen.lock().len(), 3);
}

#[tokio::test]
async fn a_server_that_always_hangs_up_is_asked_twice_and_works_once() {
    let stub = Stub::start(|_| Play::Close);
    let upstream = stub.hinted(KindHint::OpenAi);
    let error = upstream.pass(Method::GET, "/x", &HeaderMap::new(), "".into()).await.err().unwrap();
    assert!(matches!(error, Error::Broken { .. }) && error.is_gone() && !error.is_connect(), "{error}");
    assert_eq!(stub.seen.lock().len(), 2);
    // A prompt that ends a server must not end its restart, too.
    assert!(upstream.pass(Method::POST, "/x", &HeaderMap::new(), "{}".into()).await.is_err());
    assert_eq!(stub.seen.lock().len(), 3);
    assert!(error.to_string().contains("local") && error.to_string().contains(&stub.url), "{error}");
}

#[tokio::test]
async fn headers_pass_but_for_those_of_the_connection() {
    let stub = Stub::start(|_| {
        Play::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nX-Request-Id: 7\r\n\r\n{}".to_vec())
    });
    let upstream = stub.hinted(KindHint::OpenAi).with_api_key(Some("configured".into())).unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("connection", "close, x-mine"),
        ("x-mine", "1"),
        ("te", "trailers"),
        ("host", "windowsill"),
        ("content-length", "99"),
        ("accept-encoding", "gzip"),
        ("x-kept", "a"),
        ("expect", "100-continue"),
        ("proxy-authorization", "p"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let reply = upstream.pass(Method::POST, "/v1/x?beta=true", &headers, "{}".into()).await.unwrap();
    let names: Vec<&str> = reply.headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["content-length", "x-request-id"]);
    let seen = stub.last();
    assert_eq!(seen.line, "POST /v1/x?beta=true");
    for gone in ["x-mine", "te", "expect", "proxy-authorization"] {
        assert!(!seen.headers.contains_key(gone), "{gone}");
    }
    for (name, want) in [("x-kept", "a"), ("accept-encoding", "gzip"), ("content-length", "2")] {
        assert_eq!(seen.headers[name], want);
    }
    assert_eq!(seen.headers["host"], stub.url.trim_start_matches("http://"));
    assert_eq!(seen.headers["authorization"], "Bearer configured");

    headers.insert("authorization", HeaderValue::from_static("Bearer own"));
    upstream.chat(&headers, "/v1/chat/completions", "{}".into(), ChatOptions::default()).await.unwrap();
    let seen = stub.last();
    assert_eq!(seen.headers["authorization"], "Bearer own");
    assert_eq!(seen.headers.get("accept-encoding"), None);
    assert_eq!(seen.body, "{}");
}

#[tokio::test]
async fn dropping_the_reply_cancels_the_request() {
    for dropped_after_head in [true, false] {
        let (give, take) = mpsc::channel();
        let stub = Stub::start(move |_| Play::Take(give.clone()));
        let upstream = stub.hinted(KindHint::OpenAi);
        let headers = HeaderMap::new();
        let reply = upstream.pass(Method::POST, "/v1/x", &headers, "{}".into());
        let mut reply = Box::pin(reply);
        // Polled until the server has the connection.
        let mut server = loop {
            tokio::select! { biased; _ = &mut reply => panic!("nothing was answered"), () = tokio::task::yield_now() => {} }
            if let Ok(stream) = take.try_recv() {
                break stream;
            }
        };
        if dropped_after_head {
            server.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").unwrap();
            let mut reply = reply.await.unwrap();
            assert_eq!(reply.body.next().await.unwrap().unwrap(), "a");
            drop(reply);
        } else {
            drop(reply);
        }
        let closed = tokio::task::spawn_blocking(move || {
            server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            matches!(server.read(&mut [0]), Ok(0))
        });
        assert!(closed.await.unwrap(), "the server sees the end of the connection");
    }
}

#[tokio::test]
async fn limits_on_time_and_size() {
    let (give, _take) = mpsc::channel();
    let stub = Stub::start(move |seen| match seen.line.as_str() {
        "GET /slow?x=1" => Play::Take(give.clone()),
        "GET /large" => Play::Raw(answer(200, "text/plain", &vec![b' '; 5 << 20])),
        _ => Play::Raw(answer(400, "text/plain", &vec![b'x'; 3 << 20])),
    });
    let link = stub.upstream().link;
    let error = link.get("/slow?x=1", Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { path, .. } if path == "/slow"), "{error:?}");
    assert!(matches!(link.get("/large", ASK_LIMIT).await, Err(Error::Protocol { .. })));
    let refused = link.get("/refused", ASK_LIMIT).await.unwrap_err();
    assert_eq!(refused.status().unwrap().1.len(), 1 << 20);
    assert!(format!("{refused} {refused:?}").len() < 500, "no body in what may be logged");
}

#[tokio::test]
async fn a_server_that_comes_back_as_another_is_recognized_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let nobody = Upstream::new(client().unwrap(), "local".into(), &address.to_string(), KindHint::Auto).unwrap();
    drop(listener);
    let error = nobody.probe().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");

    *nobody.known.lock() = Some(Kind::Ollama);
    assert!(nobody.loaded("m").await.unwrap_err().is_connect());
    let _stub = Stub::on(TcpListener::bind(address).unwrap(), both);
    nobody.loaded("m").await.unwrap();
    assert_eq!(nobody.kind(), Some(Kind::LlamaServer { router: false }));
}

#[tokio::test]
async fn a_busy_ollama_that_tells_its_version_late_is_not_taken_for_another_server() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let late = move |seen: &Seen| match seen.line.as_str() {
        "GET /v1/models" => Play::Json(200, json!({"object": "list", "data": [{"id": "m", "owned_by": "library"}]})),
        "GET /api/version" => {
            if asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                std::thread::sleep(PROBE_LIMIT + Duration::from_millis(500));
            }
            Play::Json(200, json!({"version": "0.13.0"}))
        }
        _ => not_found(),
    };
    assert_eq!(Stub::start(late).upstream().probe().await.unwrap(), Kind::Ollama);
}

#[tokio::test]
async fn what_answers_http_but_is_no_such_server() {
    let stub = Stub::start(|_| Play::Raw(answer(200, "text/html", b"<html>")));
    assert!(matches!(stub.upstream().probe().await, Err(Error::Protocol { .. })));
    let guarded = Stub::start(|_| Play::Json(401, json!({"error": {"message": "no key"}})));
    assert_eq!(guarded.upstream().probe().await.unwrap(), Kind::OpenAi(Flavor::Other));
}

#[test]
fn urls_as_people_write_them() {
    let new = |url: &str| Upstream::new(client().unwrap(), "n".into(), url, KindHint::Auto);
    let cases = [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:11434/api", "http://127.0.0.1:11434"),
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("localhost:11434", "http://localhost:11434"),
        ("https://user:secret@host/llm/v1/", "https://host/llm"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ];
    for (given, want) in cases {
        assert_eq!(new(given).unwrap().url(), want, "{given}");
    }
    for bad in ["", "http://", "ftp://host", "http://host/?q=1", "http://host/#f", "http://host:99999"] {
        assert!(matches!(new(bad), Err(Error::Config { .. })), "{bad}");
    }
    assert!(new("host").unwrap().with_api_key(Some("a\nb".into())).is_err());
}

#[test]
fn no_path_leads_outside_the_base_url() {
    let upstream = Upstream::new(client().unwrap(), "n".into(), "http://host/llm/v1", KindHint::Auto).unwrap();
    let url = |path: &str| {
        Some(upstream.link.request(Method::GET, path, HeaderMap::new()).ok()?.build().ok()?.url().to_string())
    };
    assert_eq!(url("/v1/models?a=b%20c&d").as_deref(), Some("http://host/llm/v1/models?a=b%20c&d"));
    assert_eq!(url("/v1/models/a%2Fb").as_deref(), Some("http://host/llm/v1/models/a%2Fb"));
    assert_eq!(url("//evil.example/x").as_deref(), Some("http://host/llm/evil.example/x"));
    for outside in ["/../admin", "/v1/../../admin", "/%2e%2e/admin"] {
        assert_eq!(url(outside), None, "{outside}");
    }
}

#[test]
fn counts_of_tokens_and_names_in_queries() {
    let cases = [
        (json!(5), Some(5)),
        (json!(5.0), Some(5)),
        (json!(0), None),
        (json!(-1), None),
        (json!("5"), None),
        (json!(1e30), None),
    ];
    for (value, want) in cases {
        assert_eq!(tokens(&value), want, "{value}");
    }
    assert_eq!(query_component("a/b c&é~"), "a%2Fb%20c%26%C3%A9~");
}

#[test]
fn only_this_machine_is_local() {
    let local = |url: &str| {
        let upstream = Upstream::new(client().unwrap(), "x".into(), url, KindHint::Auto).unwrap();
        upstream.is_local()
    };
    for url in
        ["http://127.0.0.1:11434", "http://localhost:8080", "http://[::1]:8080", "https://LOCALHOST", "0.0.0.0:1"]
    {
        assert!(local(url), "{url}");
    }
    for url in ["http://10.0.0.2:11434", "http://example.org", "http://localhost.example.org", "http://[fe80::1]:1"] {
        assert!(!local(url), "{url}");
    }
}
