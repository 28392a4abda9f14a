//! Who gets in: web pages, other sites, slow bodies; and what never goes further.

use serde_json::{Value, json};

use super::support::*;

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn ask(proxy: &TestProxy, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(proxy.address, method, path, headers, b"")
}

#[test]
fn a_page_that_points_its_own_name_here_is_not_let_in() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "allowed_hosts = [\"proxy.lan\"]\n");
    for path in ["/windowsill/conversations", "/v1/models", "/metrics", "/healthz", "/api/tags"] {
        let answer = ask(&proxy, "GET", path, &[("Host", "evil.test:8484")]);
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().contains("allowed_hosts"), "{}", answer.text());
    }
    for host in ["127.0.0.1:1", "localhost", "[::1]", "proxy.lan:8484"] {
        ask(&proxy, "GET", "/windowsill/conversations", &[("Host", host)]).ok();
    }
    // In the words of each dialect.
    let answer = ask(&proxy, "POST", "/v1/messages", &[("Host", "evil.test"), JSON]);
    assert_eq!((answer.status, answer.json()["type"].as_str()), (403, Some("error")));
    let answer = ask(&proxy, "POST", "/api/chat", &[("Host", "evil.test"), JSON]);
    assert!(answer.status == 403 && answer.json()["error"].is_string(), "{}", answer.text());
    assert_eq!(fake.mains().len(), 0);
}

#[test]
fn a_page_of_another_site_runs_no_model_and_steers_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "allowed_origins = [\"https://chat.example.org\"]\n");
    let body = chat().system("s").user("Hello.").body();
    let post = |headers: &[(&str, &str)]| request(proxy.address, "POST", "/v1/chat/completions", headers, &body);
    let before = fake.count();
    for headers in [
        &[("Origin", "https://evil.test"), ("Content-Type", "text/plain")][..],
        &[("Origin", "null"), JSON],
        &[("Sec-Fetch-Site", "cross-site"), ("Content-Type", "text/plain")],
    ] {
        let answer = post(headers);
        assert_eq!(answer.status, 403, "{headers:?}");
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    assert_eq!(ask(&proxy, "DELETE", "/api/delete", &[("Origin", "https://evil.test")]).status, 403);
    assert_eq!(fake.count(), before, "nothing of it went further");
    // A page that is allowed reads the reply, and our headers on it.
    let answer = post(&[("Origin", "https://chat.example.org"), ("Sec-Fetch-Site", "cross-site"), JSON]).ok();
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://chat.example.org"));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("x-windowsill-action"));
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    proxy.eventually("/windowsill/conversations", |v| v["conversations"].as_array().is_some_and(|c| !c.is_empty()));
    // What steers is JSON, and names the whole conversation.
    let path = format!("/windowsill/conversations/{id}/compact");
    let focus = br#"{"focus": "mine"}"#;
    assert_eq!(request(proxy.address, "POST", &path, &[("Content-Type", "text/plain")], focus).status, 415);
    let answer = request(proxy.address, "POST", "/windowsill/conversations/c/compact", &[JSON], b"{}");
    assert!(matches!(answer.status, 400 | 404), "{}", answer.text());
}

#[test]
fn preflights_are_answered_here() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "allowed_origins = [\"https://chat.example.org\"]\napi_key = \"k\"\n");
    let asks = |origin| {
        let wants =
            [("Origin", origin), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "x-a")];
        ask(&proxy, "OPTIONS", "/v1/chat/completions", &wants)
    };
    let before = fake.count();
    let good = asks("https://chat.example.org");
    assert_eq!((good.status, good.header("access-control-allow-headers")), (204, Some("x-a")));
    assert_eq!(good.header("access-control-allow-origin"), Some("https://chat.example.org"));
    let bad = asks("https://evil.test");
    assert_eq!((bad.status, bad.header("access-control-allow-origin")), (403, None));
    assert_eq!(ask(&proxy, "OPTIONS", "/api/delete", &[]).header("access-control-allow-origin"), None);
    assert_eq!(fake.count(), before, "none went further");
}

#[test]
fn what_is_said_of_a_page_goes_no_further_and_its_server_opens_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let reply =
        "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok";
    fake.script(move |seen| match seen.path() {
        "/custom" => Play::Pieces(vec![reply.as_bytes().to_vec()]),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let page =
        [("Cookie", "a=b"), ("Referer", "http://localhost/x"), ("Origin", "http://localhost:3000"), ("X-Own", "1")];
    let answer = ask(&proxy, "GET", "/custom", &page).ok();
    assert_eq!(answer.header("access-control-allow-origin"), Some("http://localhost:3000"));
    let seen = fake.all().into_iter().find(|s| s.path() == "/custom").unwrap();
    assert_eq!(seen.header("x-own"), Some("1"));
    for name in ["cookie", "referer", "origin", "sec-fetch-site"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!(ask(&proxy, "GET", "/custom", &[]).header("access-control-allow-origin"), None);
}

#[test]
fn a_key_is_for_its_own_server_alone() {
    let (main, other) = (Fake::start(Kind::LlamaServer, 4096), Fake::start(Kind::OpenAi, 2048));
    main.set(|s| s.model = "talker".into());
    other.set(|s| s.model = "writer".into());
    let toml =
        "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\nsummary_model = \"up1/writer\"\n";
    let proxy = TestProxy::with(&[main.url(), other.url()], toml);
    let mut sent = chat().system("s").user("Let us plan the garden.").with("model", json!("talker"));
    for n in 0..9 {
        sent = sent.assistant(&prose(n, 1_300)).user(&format!("And item {n}?"));
    }
    let headers = [("authorization", "bearer of-the-client"), ("x-mine", "1"), JSON];
    let answer = request(proxy.address, "POST", "/v1/chat/completions", &headers, &sent.body()).ok();
    assert_eq!(answer.action(), "summarize");
    assert_eq!(main.last().header("authorization"), Some("bearer of-the-client"));
    let asked = other.summaries();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|s| s.header("authorization").is_none() && s.header("x-mine").is_none()));
}

#[test]
fn a_prompt_that_ends_its_server_is_sent_once() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().system("s").user("Hello.")).ok();
    let before = fake.mains().len();
    fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    assert_eq!(proxy.chat(&chat().system("s").user("Crash.")).status, 502);
    assert_eq!(fake.mains().len(), before + 1);
}

#[test]
fn a_key_is_taken_in_any_case_and_odd_methods_stay_here() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "api_key = \"k\"\n");
    ask(&proxy, "GET", "/v1/models", &[("authorization", "bearer k")]).ok();
    assert_eq!(ask(&proxy, "GET", "/v1/models", &[("authorization", "bearer")]).status, 401);
    let before = fake.count();
    assert_eq!(ask(&proxy, "CONNECT", "localhost:22", &[("authorization", "Bearer k")]).status, 405);
    assert!(matches!(ask(&proxy, "OPTIONS", "*", &[]).status, 204 | 400));
    assert_eq!(fake.count(), before);
}

#[test]
fn own_paths_read_no_body_and_slow_bodies_are_given_up() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(
        &[fake.url()],
        "[limits]\nbody_idle_seconds = 1\nmax_header_bytes = 9000\ndrain_seconds = 60\n",
    );
    let mut conn = Conn::open(proxy.address);
    conn.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n").unwrap();
    assert_eq!(conn.answer().status, 200, "it is answered before the body comes");
    let mut conn = Conn::open(proxy.address);
    conn.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nabc").unwrap();
    let answer = conn.answer();
    assert_eq!(answer.status, 408, "{}", answer.text());
    let mut conn = Conn::open(proxy.address);
    conn.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n")
        .unwrap();
    assert_eq!(conn.answer().status, 413, "its length says that it is too large");
    let wide = "x".repeat(8_990);
    assert_eq!(ask(&proxy, "GET", "/v1/models", &[("x-wide", &wide)]).status, 431);
}

#[test]
fn a_request_that_has_not_arrived_does_not_hold_up_the_end() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[limits]\ndrain_seconds = 600\n");
    let mut conn = Conn::open(proxy.address);
    conn.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nabc").unwrap();
    // The next request is answered once the first was accepted. What is read of that by now is not said: a connection of which nothing
    // was read is closed without a word.
    ask(&proxy, "GET", "/healthz", &[]).ok();
    std::thread::sleep(std::time::Duration::from_millis(500));
    drop(proxy);
    assert_eq!(conn.answer().status, 503);
}

#[test]
fn a_stream_that_breaks_off_says_so_whatever_its_length() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(|seen| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 5000\r\n\r\n";
        let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
        if seen.is_main() { Play::Cut(format!("{head}{event}").into_bytes()) } else { Play::Usual }
    });
    let proxy = TestProxy::before(&fake);
    let answer = proxy.chat(&chat().system("s").user("Hello.").stream());
    assert!(answer.whole && answer.text().contains("\"error\""), "{}", answer.text());
}

#[test]
fn many_small_headers_are_one_small_head() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let names: Vec<String> = (0..300).map(|n| format!("x-own-{n}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    ask(&proxy, "GET", "/v1/models", &headers).ok();
}

#[test]
fn a_head_that_has_not_arrived_does_not_hold_up_the_end() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[limits]\ndrain_seconds = 600\n");
    let mut conn = Conn::open(proxy.address);
    conn.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea").unwrap();
    conn.answer().ok();
    let started = std::time::Instant::now();
    drop(proxy);
    // A head may take 30 seconds.
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn tracing_and_what_is_no_path_stay_here() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for (method, path) in [("TRACE", "/v1/models"), ("GET", "*")] {
        assert!(matches!(ask(&proxy, method, path, &[]).status, 400 | 405), "{method} {path}");
    }
    assert!(fake.all().iter().all(|seen| seen.method != "TRACE" && seen.target != "*"));
}

/// Codex asks for a WebSocket first, and goes on over HTTP at once where it is told that there is none.
#[test]
fn a_websocket_is_refused_in_words_that_clients_go_by() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for (path, protocol) in
        [("/v1/responses", "websocket"), ("/v1/realtime", "WebSocket"), ("/anything", "h2c, websocket")]
    {
        let answer = ask(
            &proxy,
            "GET",
            path,
            &[("connection", "Upgrade"), ("upgrade", protocol), ("sec-websocket-version", "13")],
        );
        assert_eq!((answer.status, answer.error().0.as_str()), (426, "no_websockets"), "{path}");
        assert_eq!(answer.header("upgrade"), Some("HTTP/1.1"));
    }
    assert!(fake.all().iter().all(|seen| seen.header("upgrade").is_none() && seen.path() != "/anything"));
    // Another protocol is no reason to refuse.
    assert_eq!(ask(&proxy, "GET", "/v1/models", &[("connection", "Upgrade"), ("upgrade", "h2c")]).status, 200);
}

/// A name and a message that would steer a terminal or pretend to be another line.
const HOSTILE: &str = "m\u{1b}]0;owned\u{7}\n\u{202e}\u{9b}31m";

#[track_caller]
fn assert_harmless(text: &str) {
    let bad = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(bad), "{text:?}");
}

#[test]
fn names_and_titles_steer_no_terminal() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let answer = proxy.chat(&chat().user(&format!("Hello {HOSTILE} title")).with("model", json!(HOSTILE))).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    for args in [
        &["context"][..],
        &["context", &id],
        &["context", "--json"],
        &["recall", "title"],
        &["recall", "nothing\u{1b}"],
    ] {
        let output = proxy.cli(args);
        assert_harmless(&String::from_utf8_lossy(&output.stdout));
        assert_harmless(&String::from_utf8_lossy(&output.stderr));
    }
    let listed = String::from_utf8_lossy(&proxy.cli(&["context"]).stdout).into_owned();
    assert_eq!(listed.lines().count(), 2, "one line a conversation: {listed}");
    // Into a pipe an original goes as it came.
    let original = proxy.cli(&["recall", &format!("{id}:0")]);
    let message: Value = serde_json::from_slice(&original.stdout).unwrap();
    assert!(text(&message).contains(HOSTILE), "{message}");
}

#[test]
fn names_in_log_lines_are_escaped() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::logging(dir.path(), &[fake.url()], format);
        let body = chat().user("hi").with("model", json!(HOSTILE)).body();
        request(served.address, "POST", "/v1/chat/completions", &[JSON], &body).ok();
        assert_eq!(request(served.address, "GET", "/windowsill/%1b%5D0%0Ax", &[], b"").status, 404);
        let log = served.log_at_end(dir.path());
        assert_harmless(&log);
        assert!(log.contains("owned") && log.lines().all(|line| line.starts_with(['2', '{'])), "{format}: {log}");
    }
}

#[test]
fn the_command_line_knows_the_beginning_of_an_id() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let address = Fake::absent();
    let toml = format!("listen = \"{address}\"\n[context]\nbackground = false\nfold_at = \"line\"\n");
    std::fs::write(dir.path().join("config.toml"), toml).unwrap();
    let data = dir.path().join("data");
    let served = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"))
        .current_dir(dir.path())
        .args(["serve", "--upstream", &fake.url(), "--data-dir"])
        .arg(&data)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut served = Served { address, child: served };
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(served.child.stdout.take().unwrap()), &mut line).unwrap();
    let answer = request(address, "POST", "/v1/chat/completions", &[JSON], &chat().user("hi").body()).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let until = std::time::Instant::now() + PATIENCE;
    while request(address, "GET", &format!("/windowsill/conversations/{id}"), &[], b"").status != 200 {
        assert!(std::time::Instant::now() < until);
    }
    let said = cli(dir.path(), &["compact", &id[..id.len() - 2]]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("nothing to fold"), "it was found: {said}");
}

/// A body as clients pack it, by the name of its coding.
fn packed(name: &str, body: &[u8]) -> Vec<u8> {
    use flate2::Compression;
    use flate2::read::{GzEncoder, ZlibEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let all = |mut from: Box<dyn std::io::Read + '_>| {
        let mut out = Vec::new();
        from.read_to_end(&mut out).unwrap();
        out
    };
    match name {
        "gzip" => all(Box::new(GzEncoder::new(body, Compression::default()))),
        "deflate" => all(Box::new(ZlibEncoder::new(body, Compression::default()))),
        "zstd" => compress_to_vec(body, CompressionLevel::Fastest),
        "gzip, zstd" => packed("zstd", &packed("gzip", body)),
        _ => body.to_vec(),
    }
}

/// Where clients ask, and with what.
fn asked(stream: bool) -> Vec<(&'static str, Value)> {
    let chat = json!([{"role": "user", "content": "Hello."}]);
    vec![
        ("/v1/chat/completions", json!({"model": MODEL, "messages": chat, "stream": stream})),
        ("/v1/responses", json!({"model": MODEL, "input": "Hello.", "stream": stream})),
        ("/v1/messages", json!({"model": MODEL, "max_tokens": 9, "messages": chat, "stream": stream})),
        ("/api/chat", json!({"model": MODEL, "messages": chat, "stream": stream})),
        ("/api/generate", json!({"model": MODEL, "prompt": "Hello.", "stream": stream})),
    ]
}

#[test]
fn a_packed_body_is_read_like_a_plain_one_and_goes_on_plain() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        for (path, body) in asked(false).into_iter().chain(asked(true)) {
            let body = body.to_string().into_bytes();
            let mut forwarded = Vec::new();
            for coding in ["identity", "zstd", "GZip", "deflate", "gzip, zstd"] {
                fake.clear();
                let sent = packed(&coding.to_lowercase(), &body);
                request(proxy.address, "POST", path, &[("Content-Encoding", coding), JSON], &sent).ok();
                let seen = fake.last();
                assert_eq!(seen.header("content-encoding"), None, "{path} {coding}");
                forwarded.push(seen.json());
            }
            forwarded.dedup();
            assert_eq!(forwarded.len(), 1, "{path} to {kind:?}: {forwarded:?}");
        }
    }
}

#[test]
fn what_is_passed_on_or_counted_is_unpacked_too() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let post = |path: &str, headers: &[(&str, &str)], coding: &str, body: &Value| {
        let headers = [headers, &[("Content-Encoding", coding), JSON]].concat();
        request(proxy.address, "POST", path, &headers, &packed(coding, body.to_string().as_bytes()))
    };
    let count = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello."}]});
    assert!(post("/v1/messages/count_tokens", &[], "zstd", &count).ok().json()["input_tokens"].is_u64());
    for (path, headers) in [("/custom", &[][..]), ("/v1/chat/completions", &[("x-windowsill", "off")])] {
        fake.clear();
        post(path, headers, "gzip, zstd", &count);
        let seen = fake.all().into_iter().find(|s| s.path() == path).unwrap();
        assert_eq!((seen.header("content-encoding"), seen.json()), (None, count.clone()), "{path}");
    }
    // What nobody here reads goes on as it came, if it is packed in a way that nobody here knows.
    fake.clear();
    request(proxy.address, "POST", "/custom", &[("Content-Encoding", "br"), JSON], b"\x0b\x02\x80");
    let seen = fake.all().into_iter().find(|s| s.path() == "/custom").unwrap();
    assert_eq!((seen.header("content-encoding"), &seen.body[..]), (Some("br"), &b"\x0b\x02\x80"[..]));
    // The proxy's own paths.
    let rule = json!({"text": "Never push."});
    let plain = post("/windowsill/rules", &[], "identity", &rule);
    assert_eq!(post("/windowsill/rules", &[], "gzip", &rule).text(), plain.text());
    assert_eq!(plain.status, 404, "it names no conversation: {}", plain.text());
}

#[test]
fn a_body_that_cannot_be_unpacked_is_refused_in_the_callers_words() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[limits]\nmax_body_bytes = 1000000\n");
    let said = |answer: &Answer| {
        let value = answer.json();
        let text = value["error"]["message"].as_str().or(value["error"].as_str());
        text.unwrap_or_else(|| panic!("{value}")).to_owned()
    };
    for (path, body) in asked(false).into_iter().chain([("/v1/messages/count_tokens", json!({"model": MODEL}))]) {
        let body = body.to_string().into_bytes();
        let post =
            |coding, body: &[u8]| request(proxy.address, "POST", path, &[("Content-Encoding", coding), JSON], body);
        let answer = post("gzip, br", &body);
        assert_eq!((answer.status, answer.header("accept-encoding")), (415, Some("zstd, gzip, deflate")), "{path}");
        assert!(said(&answer).contains("br") && said(&answer).contains("zstd, gzip, deflate"), "{}", answer.text());
        for coding in ["zstd", "gzip", "deflate"] {
            let broken = post(coding, &packed(coding, &body)[..9]);
            assert_eq!(broken.status, 400, "{path} {coding}");
            assert!(said(&broken).contains(coding), "{}", broken.text());
            // Of 40 MB, packed into less than is let in.
            let bomb = packed(coding, &vec![b' '; 40_000_000]);
            assert!(bomb.len() < 100_000);
            let answer = post(coding, &bomb);
            assert_eq!(answer.status, 413, "{path} {coding}");
            assert!(said(&answer).contains("unpacks to more than 1000000 bytes"), "{}", answer.text());
        }
        let is_anthropic = path.starts_with("/v1/messages");
        assert_eq!(answer.json()["type"] == "error", is_anthropic, "{path}");
    }
    assert_eq!(fake.mains().len(), 0);
}
