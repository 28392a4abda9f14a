//! What goes through untouched, in both directions; who is hung up on; how the proxy stops.

use std::net::TcpStream;
use std::time::Instant;

use serde_json::json;

use super::support::*;

const ODD: [&str; 4] = [
    r#"{"model":"test-model","messages":[{"role":"user","content":"hi"}]}"#,
    "\n {  \"messages\" : [ {\"role\":\"system\",\"content\":\"Be\\u0020terse. \\u00e9\"} ,\r\n\t{ \"content\": \"h\u{e9} \u{4e16}\\ud83d\\ude00 \\/\" , \"role\":\"user\", \"x_own\":[1, 2.50, 1e-7, -0.0] } ],\"model\":\"test-model\",\"temperature\":1.0e0,\"top_p\":0.90,\"seed\":18446744073709551617,\"x_vendor\":{\"b\":1,\"a\":[]}, \"max_tokens\": 64.0 }  \n",
    r#"{"model":"test-model","dup":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"name":"n"}],"dup":2,"stop":null,"id_slot":-1,"cache_prompt":true,"chat_template_kwargs":{"enable_thinking":false},"response_format":{"type":"text"}}"#,
    r#"{"model":"test-model","messages":[{"role":"developer","content":"d"},{"role":"user","content":"u"},{"role":"assistant","content":null,"reasoning_content":"t","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{ \"x\" : 1.0 }"}}]},{"role":"tool","tool_call_id":"a","content":"r"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","additionalProperties":false}}}]}"#,
];

#[test]
fn a_small_request_arrives_byte_for_byte() {
    for kind in [Kind::LlamaServer, Kind::OpenAi, Kind::Vllm] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        for body in ODD {
            let streamed = body.replacen('{', "{ \"stream\":  true,", 1);
            for body in [body, streamed.as_str()] {
                let answer = proxy.post("/v1/chat/completions", &[], body.as_bytes()).ok();
                assert_eq!(String::from_utf8_lossy(&fake.last().body), body, "{kind:?}");
                assert_eq!(answer.action(), "none");
                assert!(answer.whole);
            }
        }
        assert_eq!(fake.count(), ODD.len() * 2, "{kind:?}: each request is sent once");
        assert!(fake.summaries().is_empty());
    }
}

#[test]
fn headers_are_kept_and_ours_are_not_forwarded() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = [
        ("Authorization", "Bearer sk-secret-42"),
        ("X-Custom-Trace", "abc"),
        ("OpenAI-Organization", "org-1"),
        ("User-Agent", "agent/1 (x)"),
        ("Accept", "*/*"),
    ];
    let ours =
        [("x-windowsill-session", "s1"), ("x-windowsill-profile", "qwen3"), ("Connection", "x-hop"), ("x-hop", "1")];
    let all: Vec<_> = sent.iter().chain(&ours).copied().collect();
    let answer = proxy.post("/v1/chat/completions", &all, &chat().user("hi").body()).ok();
    let seen = fake.last();
    for (name, value) in sent {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(seen.header("host"), Some(fake.address.to_string().as_str()));
    for (name, _) in &seen.headers {
        assert!(!name.to_lowercase().starts_with("x-windowsill") && name != "x-hop", "{name} was forwarded");
    }
    assert_eq!(answer.header("server"), Some("fake"));
    assert_eq!(answer.header("x-windowsill-conversation"), Some("s1"));
    assert_eq!(answer.header("x-windowsill-window"), Some("4096"));
    let count: u32 = answer.header("x-windowsill-prompt-tokens").unwrap().parse().unwrap();
    assert!(count >= 1, "{count}");
}

const STREAM: &[u8] = b": keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\nevent: x\r\ndata:{\"choices\":[{\"delta\":{\"reasoning_content\":\"th\xc3\xa9 \xf0\x9f\x98\x80\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\"}}]}}]}\n\ndata: not json \xff\xfe\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9},\"timings\":{\"prompt_n\":9.0}}\n\ndata: [DONE]\n\n";

#[test]
fn a_stream_arrives_byte_for_byte_however_it_is_cut() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for seed in 0..24 {
        fake.script(move |seen| {
            if !seen.is_main() {
                return Play::Usual;
            }
            let mut dice = Dice(seed);
            let mut pieces = vec![sse_head()];
            let mut left = STREAM;
            while !left.is_empty() {
                let (now, rest) = left.split_at((1 + dice.below(40)).min(left.len()));
                // Chunks of HTTP, and within them writes, at odd places.
                let bytes = chunk(now);
                let at = dice.below(bytes.len());
                pieces.extend([bytes[..at].to_vec(), bytes[at..].to_vec()]);
                left = rest;
            }
            pieces.push(b"0\r\n\r\n".to_vec());
            Play::Pieces(pieces)
        });
        let answer = proxy.chat(&chat().user("hi").stream()).ok();
        assert_eq!(answer.text(), String::from_utf8_lossy(STREAM), "seed {seed}");
        assert_eq!(answer.body, STREAM);
        assert!(answer.whole);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    }
}

#[test]
fn a_reply_that_is_not_streamed_arrives_byte_for_byte() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let reply = b"\n{ \"choices\" :[{\"message\":{\"content\":\"\\u00e9\"},\"finish_reason\":\"stop\"}] , \"x\":1.50,\"x\":2 }\r\n".to_vec();
    for status in [200, 201, 404, 418, 429, 500, 503] {
        let sent = reply.clone();
        fake.script(move |seen| {
            if seen.is_main() {
                Play::Pieces(vec![whole(status, "application/json; charset=x", &sent)])
            } else {
                Play::Usual
            }
        });
        let answer = proxy.chat(&chat().user("hi"));
        assert_eq!((answer.status, &answer.body), (status, &reply));
        assert_eq!(answer.header("content-type"), Some("application/json; charset=x"));
    }
}

#[test]
fn what_is_not_ours_passes_through() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(|seen| match seen.path() {
        "/props" | "/v1/models" if seen.header("x-test").is_none() => Play::Usual,
        _ => Play::Pieces(vec![whole(207, "text/odd", format!("{} {}", seen.method, seen.target).as_bytes())]),
    });
    let proxy = TestProxy::before(&fake);
    let nothing: &[u8] = b"";
    for (method, target, body) in [
        ("GET", "/props", nothing),
        ("GET", "/slots?fail_on_no_slot=1&x=%20+b", nothing),
        ("POST", "/v1/embeddings", br#"{"model":"test-model","input":["a"]}"#),
        ("POST", "/v1/completions", b"{ \"prompt\": \"p\" , \"model\":\"test-model\"}"),
        ("POST", "/tokenize?add_special=true", b"not json \xff"),
        ("DELETE", "/v1/files/a%2Fb", nothing),
        ("PUT", "/anything/at/all", b"x"),
        ("PATCH", "/", b"y"),
        ("GET", "/v1/chat/completions", nothing),
    ] {
        let answer = request(proxy.address, method, target, &[("x-test", "1"), ("Authorization", "Bearer k")], body);
        assert_eq!((answer.status, answer.text()), (207, format!("{method} {target}")));
        let all = fake.all();
        let seen = all.iter().rev().find(|s| s.header("x-test").is_some()).unwrap();
        assert_eq!((seen.method.as_str(), seen.target.as_str(), seen.body.as_slice()), (method, target, body));
        assert_eq!(seen.header("authorization"), Some("Bearer k"));
        assert_eq!(answer.header("content-type"), Some("text/odd"));
        assert_eq!(answer.header("x-windowsill-action"), None);
    }
    let answer = proxy.post("/v1/chat/completions?api-version=2&x=%2F", &[("x-test", "1")], &chat().user("hi").body());
    assert_eq!(answer.text(), "POST /v1/chat/completions?api-version=2&x=%2F");
}

#[test]
fn off_means_off() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let body = chat().user("hi").step(1, &prose(1, 60_000)).with("max_tokens", json!(1_000_000)).body();
    let answer = proxy.post("/v1/chat/completions", &[("X-Windowsill", "OFF")], &body);
    assert_eq!(answer.status, 400, "the server's own refusal");
    assert_eq!(answer.error().0, "");
    assert_eq!(answer.json()["error"]["type"], "exceed_context_size_error");
    assert_eq!(fake.last().body, body);
    assert_eq!(fake.count(), 1);
    assert_eq!(answer.header("x-windowsill-action"), None);
    assert_eq!(fake.last().header("x-windowsill"), None);
}

#[test]
fn max_tokens_is_lowered_to_the_room_and_nothing_else_changes() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let text = prose(3, 2000);
    let body = |n: &str, key: &str| {
        format!(
            r#"{{"{key}":{n},"model":"test-model","x":1.50,"messages":[{{ "role":"user","content":"{}"}}]}}"#,
            text.replace('\n', "\\n")
        )
    };
    for key in ["max_tokens", "max_completion_tokens"] {
        for n in ["1", "100", "3000", "2e3"] {
            let sent = body(n, key);
            let answer = proxy.post("/v1/chat/completions", &[], sent.as_bytes()).ok();
            assert_eq!(String::from_utf8_lossy(&fake.last().body), sent);
            assert_eq!(answer.header("x-windowsill-max-tokens"), None);
        }
        for n in ["4096", "1000000", "1e9", "32768"] {
            let sent = body(n, key);
            let answer = proxy.post("/v1/chat/completions", &[], sent.as_bytes()).ok();
            let seen = fake.last();
            let lowered = seen.json()[key].as_u64().unwrap() as u32;
            let prompt = tokens(&seen.json());
            let told = format!("{lowered}; asked={}", n.parse::<f64>().unwrap());
            assert_eq!((answer.header("x-windowsill-max-tokens"), answer.action()), (Some(told.as_str()), "none"));
            assert!(prompt + lowered <= 4096, "{prompt} + {lowered}");
            assert!(prompt + lowered >= 2500, "much room was left unused: {prompt} + {lowered}");
            assert_eq!(String::from_utf8_lossy(&seen.body), sent.replacen(n, &lowered.to_string(), 1));
        }
    }
}

#[test]
fn a_stream_arrives_as_it_comes() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let first = [sse_head(), chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"first\"}}]}\n\n")].concat();
        let rest = [
            chunk(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"),
            b"0\r\n\r\n".to_vec(),
        ]
        .concat();
        Play::Then(first, held.clone(), Box::new(Play::Pieces(vec![rest])))
    });
    let mut conn = proxy.begin(&chat().user("hi").stream());
    let head = conn.head().unwrap();
    conn.until("first");
    gate.open();
    let answer = conn.rest(head);
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
}

/// A fake that begins a stream and then waits for the gate.
fn stalls(fake: &Fake, gate: &Gate) {
    let held = gate.clone();
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        if seen.json()["stream"] != true {
            return Play::Wait(held.clone(), Box::new(Play::Usual));
        }
        let first = [sse_head(), chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"first\"}}]}\n\n")].concat();
        let rest = [
            chunk(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"),
            b"0\r\n\r\n".to_vec(),
        ];
        Play::Then(first, held.clone(), Box::new(Play::Pieces(vec![rest.concat()])))
    });
}

#[test]
fn a_client_that_goes_away_is_gone_for_the_server_too() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    stalls(&fake, &Gate::default());
    let mut streamed = proxy.begin(&chat().user("hi").stream());
    streamed.head().unwrap();
    streamed.until("first");
    drop(streamed);
    fake.wait_hung_up(1);

    let waiting = proxy.begin(&chat().user("hi"));
    fake.wait("the second request", |seen| seen.iter().filter(|s| s.is_main()).count() == 2);
    drop(waiting);
    fake.wait_hung_up(2);
}

#[test]
fn one_connection_serves_many_requests() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut conn = Conn::open(proxy.address);
    for n in 0..5 {
        let body = chat().user(&format!("hi {n}")).body();
        conn.send("POST", "/v1/chat/completions", &[], &body);
        conn.answer().ok();
        assert_eq!(fake.last().body, body);
    }
}

fn refuses(address: std::net::SocketAddr) {
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < until, "still accepts connections");
        std::thread::yield_now();
    }
}

#[test]
fn shutdown_lets_a_stream_end_and_takes_nothing_new() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let gate = Gate::default();
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path(), &[fake.url()], "");
    stalls(&fake, &gate);
    let mut conn = Conn::open(served.address);
    conn.send("POST", "/v1/chat/completions", &[], &chat().user("hi").stream().body());
    let head = conn.head().unwrap();
    conn.until("first");
    served.terminate();
    refuses(served.address);
    gate.open();
    let answer = conn.rest(head);
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path(), &[fake.url()], "[limits]\ndrain_seconds = 1\n");
    stalls(&fake, &Gate::default());
    let mut conn = Conn::open(served.address);
    conn.send("POST", "/v1/chat/completions", &[], &chat().user("hi").stream().body());
    conn.head().unwrap();
    conn.until("first");
    served.terminate();
    let until = Instant::now() + PATIENCE;
    let code = loop {
        if let Some(status) = served.child.try_wait().unwrap() {
            break status.code();
        }
        assert!(Instant::now() < until, "still running long after drain_seconds");
        std::thread::yield_now();
    };
    assert_eq!(code, Some(0));
    fake.wait_hung_up(1);
}

#[test]
fn a_second_signal_waits_for_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::logging(dir.path(), &[fake.url()], "text");
    stalls(&fake, &Gate::default());
    let mut conn = Conn::open(served.address);
    conn.send("POST", "/v1/chat/completions", &[], &chat().user("hi").stream().body());
    conn.head().unwrap();
    conn.until("first");
    served.terminate();
    refuses(served.address);
    // The first is waited for with 30 seconds.
    assert_eq!(served.child.try_wait().unwrap(), None);
    let log = served.log_at_end(dir.path());
    assert!(log.contains("told to stop twice") && !log.contains("did not end in time"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    fake.wait_hung_up(1);
}

#[test]
fn two_servers_are_told_apart_by_their_models() {
    let (a, b) = (Fake::start(Kind::LlamaServer, 4096), Fake::start(Kind::OpenAi, 4096));
    a.set(|s| s.model = "model-a".into());
    b.set(|s| s.model = "model-b".into());
    // With a llama-server among them any name would do; with two others it would not.
    let proxy = TestProxy::with(&[a.url(), b.url()], "");
    for (model, here, there) in [("model-a", &a, &b), ("model-b", &b, &a), ("model-a", &a, &b)] {
        let before = there.count();
        let body = chat().user("hi").with("model", json!(model)).body();
        proxy.post("/v1/chat/completions", &[], &body).ok();
        assert_eq!(here.last().json()["model"], model);
        assert_eq!(there.count(), before);
    }
    let listed = proxy.get("/v1/models").ok().json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["model-a", "model-b"]);
    assert_eq!(listed["data"][0]["loaded_context"], 4096);
    assert_eq!(listed["data"][0]["trained_context"], 131072);
    // Where clients look for the window, it is the one that a prompt really has.
    for window in ["/context_length", "/max_model_len", "/meta/n_ctx"] {
        assert_eq!(listed["data"][0].pointer(window), Some(&json!(4096)), "{window}");
    }
    assert!(listed["data"][0]["context_window"].as_u64().unwrap() < 4096);
    assert_eq!(listed["data"][0]["owned_by"], "llamacpp", "the server's own fields stay");
    assert_eq!(proxy.get("/v1/models/model-b").ok().json()["id"], "model-b");
    assert_eq!(proxy.get("/v1/models/model-c").error().0, "model_not_found");
}

#[test]
fn clients_are_told_another_window_where_somebody_wants_that() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        let fake = Fake::start(kind, 4096);
        for (told, expect) in [("loaded", 4096), ("trained", 131_072), ("endless", 10_000_000)] {
            let proxy = TestProxy::with(&[fake.url()], &format!("[window]\ntold_window = \"{told}\"\n"));
            proxy.chat(&chat().user("hi")).ok();
            for path in ["/v1/models", &format!("/v1/models/{MODEL}")] {
                let answer = proxy.get(path).ok().json();
                let model = if answer["data"].is_array() { answer["data"][0].clone() } else { answer };
                // vLLM tells no other window than the one it has.
                let expect = if told == "trained" && model["trained_context"].is_null() { 4096 } else { expect };
                for window in [&model["context_length"], &model["max_model_len"], &model["meta"]["n_ctx"]] {
                    assert_eq!(*window, expect, "{kind:?} {told}: {model}");
                }
                assert_eq!(model["loaded_context"], 4096, "{kind:?} {told}: {model}");
            }
        }
    }
}

#[test]
fn a_prompt_never_meets_a_dead_connection_and_is_never_sent_twice() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for n in 0..3 {
        proxy.chat(&chat().user(&format!("turn {n}"))).ok();
    }
    let connections: std::collections::HashSet<usize> = fake.mains().iter().map(|s| s.connection).collect();
    assert_eq!(connections.len(), 3, "each prompt has a connection of its own");
    fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    fake.clear();
    let answer = proxy.chat(&chat().user("three"));
    assert_eq!((answer.status, answer.error().0.as_str()), (502, "upstream_unreachable"));
    assert_eq!(fake.mains().len(), 1);
}

#[test]
fn ollama_is_asked_in_its_own_words() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&fake);
    let reply = proxy.chat(&chat().system("s").user("hi").tools()).ok().json();
    assert_eq!(reply["choices"][0]["message"]["content"], "Done; what is next?");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let seen = fake.last();
    assert_eq!(seen.path(), "/api/chat");
    assert_eq!(seen.json()["truncate"], false, "it may not drop messages in silence");
    assert_eq!(reply["usage"]["prompt_tokens"], tokens(&seen.json()));
    let streamed = proxy.chat(&chat().user("hi").stream()).ok();
    assert!(
        streamed.text().ends_with("data: [DONE]\n\n") && streamed.text().contains("what is next"),
        "{}",
        streamed.text()
    );
    // A refusal inside a refusal is understood, and the window learned from it.
    fake.set(|s| (s.says, s.window) = (8192, 2048));
    let proxy = TestProxy::before(&fake);
    let mut long = chat().system("s").user("begin");
    for n in 0..20 {
        long = long.assistant(&prose(n, 600)).user(&prose(n + 100, 300));
    }
    let answer = proxy.chat(&long).ok();
    assert!(answer.action().contains("emergency"), "{}", answer.action());
    assert_eq!(answer.header("x-windowsill-window"), Some("2048"));
}

/// Codex asks with its version and reads `models` of a shape of its own; llama-server's `models` have another one.
/// An Ollama takes any case of a model's name in `/api/generate`, which goes out as a chat, and in a chat its own alone.
#[test]
fn a_models_name_in_another_case_is_found_as_an_ollama_alone_finds_it() {
    let fake = Fake::start(Kind::Ollama, 4096);
    fake.script(|seen| match seen.path() == "/api/chat" && seen.json()["model"] != MODEL {
        true => {
            Play::Json(404, json!({"error": format!("model '{}' not found", seen.json()["model"].as_str().unwrap())}))
        }
        false => Play::Usual,
    });
    let proxy = TestProxy::with(&[fake.url()], "[window]\nnum_ctx = 4096\n");
    let chats =
        || fake.all().into_iter().filter(|seen| seen.path() == "/api/chat" && seen.json()["model"] != MODEL).count();
    for stream in [false, true] {
        for (path, body) in [
            ("/api/generate", json!({"prompt": "hi"})),
            ("/api/chat", json!({"messages": [{"role": "user", "content": "hi"}]})),
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]})),
            ("/v1/messages", json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})),
            ("/v1/responses", json!({"input": "hi"})),
        ] {
            for name in ["TEST-Model", "Test-Model:latest"] {
                let mut body = body.clone();
                (body["model"], body["stream"]) = (json!(name), json!(stream));
                let answer = proxy.post(path, &[], body.to_string().as_bytes()).ok();
                assert!(answer.text().contains("Done; what is next?"), "{path} {name}: {}", answer.text());
                assert_eq!(fake.last().json()["model"], MODEL, "{path} {name}");
            }
        }
    }
    // Each name was looked up once.
    assert_eq!(chats(), 2);
    // What there is none of stays unknown.
    let body = json!({"model": "another", "prompt": "hi", "stream": false});
    assert_eq!(proxy.post("/api/generate", &[], body.to_string().as_bytes()).status, 404);
}

#[test]
fn a_list_of_models_is_one_that_its_client_reads() {
    let beside = json!([{"name": "m.gguf", "model": "m.gguf", "capabilities": ["completion"]}]);
    let codex = [("user-agent", "codex_cli_rs/0.169.0")];
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        let plain = proxy.get("/v1/models").ok().json();
        assert_eq!(plain.get("models"), None, "{kind:?}");
        let own = beside.clone();
        let data = plain["data"].clone();
        fake.script(move |seen| match (seen.path(), kind) {
            ("/v1/models", Kind::LlamaServer) => {
                Play::Json(200, json!({"models": own, "object": "list", "data": [{"id": MODEL, "meta": {"n_ctx": 4096, "n_ctx_train": 131_072}}]}))
            }
            _ => Play::Usual,
        });
        let expect = if kind == Kind::LlamaServer { Some(&beside) } else { None };
        for path in ["/v1/models", "/v1/models?client=x", "/v1/models?x=client_version"] {
            assert_eq!(proxy.get(path).ok().json().get("models"), expect, "{kind:?} {path}");
        }
        let answer = request(proxy.address, "GET", "/v1/models?client_version=0.169.0", &codex, b"").ok().json();
        assert_eq!(answer["models"], json!([]), "{kind:?}");
        assert_eq!(answer["data"][0]["id"], data[0]["id"], "{kind:?}");
        let one = request(proxy.address, "GET", &format!("/v1/models/{MODEL}?client_version=1"), &codex, b"").ok();
        assert_eq!(one.json().get("models"), None);
    }
}
