//! What servers and models send to do harm: pages, headers, names, and calls without end.

use std::time::Instant;

use serde_json::{Value, json};
use windowsill::conversation::Message;
use windowsill::conversation::edit::{Edit, View};
use windowsill::conversation::files::Superseded;
use windowsill::recall::missed::missed;
use windowsill::wire::dialect::said::Said;
use windowsill::wire::dialect::{Head, ReplyEncoder, anthropic, ollama, responses};
use windowsill::wire::openai_chat;

use super::support::*;

/// Answers one path with these bytes.
fn answering(path: &'static str, reply: String) -> Fake {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(move |seen| match seen.path() == path {
        true => Play::Pieces(vec![reply.clone().into_bytes()]),
        false => Play::Usual,
    });
    fake
}

#[test]
fn a_page_of_the_server_is_no_page_of_ours() {
    let page = "<script>fetch('/windowsill/conversations')</script>";
    for kind in ["text/html", "image/svg+xml", "application/xhtml+xml", ""] {
        let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
        let own = "Content-Security-Policy: script-src *\r\nX-Content-Type-Options: off\r\n";
        let fake = answering(
            "/index.html",
            format!("HTTP/1.1 200 OK\r\n{kind}{own}Content-Length: {}\r\n\r\n{page}", page.len()),
        );
        let proxy = TestProxy::before(&fake);
        let answer = proxy.get("/index.html").ok();
        assert_eq!(answer.text(), page);
        let policies: Vec<_> = answer.headers.iter().filter(|(name, _)| name == "content-security-policy").collect();
        assert!(policies.len() == 1 && policies[0].1.starts_with("sandbox; default-src 'none'"), "{policies:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        // Our own page says what it may.
        let ours = request(proxy.address, "GET", "/", &[("Accept", "text/html")], b"").ok();
        assert!(ours.header("content-security-policy").is_some_and(|policy| policy.contains("script-src 'self'")));
    }
}

#[test]
fn a_server_does_not_speak_for_the_proxy() {
    let headers = "Set-Cookie: a=b\r\nClear-Site-Data: \"*\"\r\nRefresh: 0; url=https://evil.test\r\nService-Worker-Allowed: /\r\n\
        X-Windowsill-Conversation: c01\r\nx-windowsill: off\r\nX-Windowsill-Forged: 1\r\nX-Accel-Redirect: /etc/passwd\r\n\
        Alt-Svc: h3=\":443\"\r\nX-Request-Id: 7\r\nRetry-After: 5\r\n";
    let body = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#;
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(move |seen| {
        let reply = |kind: &str, body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
            Play::Pieces(vec![format!("{head}{body}").into_bytes()])
        };
        match (seen.path(), seen.is_main() && seen.json()["stream"] == true) {
            ("/custom", _) => reply("text/plain", "ok"),
            (_, true) => reply("text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"),
            (_, false) if seen.is_main() => reply("application/json", body),
            _ => Play::Usual,
        }
    });
    let proxy = TestProxy::before(&fake);
    let asked = chat().system("s").user("Hello.");
    let anthropic =
        json!({"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}).to_string();
    for answer in [
        proxy.get("/custom").ok(),
        proxy.chat(&asked).ok(),
        proxy.chat(&asked.clone().stream()).ok(),
        request(proxy.address, "POST", "/v1/messages", &[("content-type", "application/json")], anthropic.as_bytes())
            .ok(),
    ] {
        for name in [
            "set-cookie",
            "clear-site-data",
            "refresh",
            "service-worker-allowed",
            "x-windowsill",
            "x-windowsill-forged",
            "x-accel-redirect",
            "alt-svc",
        ] {
            assert_eq!(answer.header(name), None, "{name}");
        }
        assert_ne!(answer.header("x-windowsill-conversation"), Some("c01"));
        assert_eq!((answer.header("x-request-id"), answer.header("retry-after")), (Some("7"), Some("5")));
    }
}

#[test]
fn a_server_leads_nobody_elsewhere_and_switches_no_protocol() {
    for (to, expect) in [
        ("/v1/models/", Some("/v1/models/")),
        ("models/?a=b", Some("/models/?a=b")),
        ("HERE/v1/x?y", Some("/v1/x?y")),
        ("https://evil.test/", None),
        ("//evil.test/", None),
        ("HERE//evil.test/", None),
        ("javascript:alert(1)", None),
        ("http://127.0.0.1:1/", None),
    ] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let to = to.replace("HERE", &fake.url());
        let reply = format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        fake.script(move |seen| match seen.path() {
            "/old" => Play::Pieces(vec![reply.clone().into_bytes()]),
            _ => Play::Usual,
        });
        let answer = TestProxy::before(&fake).get("/old");
        assert_eq!((answer.status, answer.header("location")), (307, expect), "{to}");
    }
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    for path in ["/ws", "/v1/chat/completions"] {
        let fake = answering(path, switch.into());
        let proxy = TestProxy::before(&fake);
        let answer = if path == "/ws" { proxy.get(path) } else { proxy.chat(&chat().user("Hello.")) };
        assert_eq!(answer.status, 502, "{path}: {}", answer.text());
        assert!(answer.header("upgrade").is_none() && answer.text().contains("101"), "{}", answer.text());
    }
}

#[test]
fn a_reply_that_is_too_large_to_be_put_into_other_words_is_an_error_with_the_number() {
    let text = "x".repeat((64 << 20) + 1);
    let said = format!(
        r#"{{"id":"c","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}]}}"#
    );
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", said.len());
    let fake = answering("/v1/chat/completions", head + &said);
    let proxy = TestProxy::before(&fake);
    let messages = json!([{"role": "user", "content": "Hello."}]);
    for (path, body) in [
        ("/v1/messages", json!({"model": MODEL, "max_tokens": 9, "messages": messages})),
        ("/v1/responses", json!({"model": MODEL, "input": "Hello."})),
        ("/api/chat", json!({"model": MODEL, "messages": messages, "stream": false})),
    ] {
        let body = body.to_string();
        let answer = request(proxy.address, "POST", path, &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(answer.status, 502, "{path}");
        assert!(answer.text().contains("67108864 bytes") && answer.json()["error"].as_null().is_none(), "{path}");
    }
    // As a chat completion it passes.
    let answer = proxy.chat(&chat().user("Hello.")).ok();
    assert_eq!(answer.body.len(), said.len());
}

/// Some systems count what a thread computed in ticks of 4 ms: less than a few of them says nothing. What grew with the square of
/// the calls took seconds.
const TICKS: u64 = 20_000_000;

/// Nanoseconds that this thread has computed, where the system tells it: what else runs is not in it.
fn computed() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|told| told.split(' ').next()?.parse().ok());
    told.unwrap_or_else(|| START.elapsed().as_nanos() as u64)
}

/// Begins a reply.
type Begin = fn() -> Box<dyn ReplyEncoder>;

/// The encoder of each dialect.
fn encoders() -> Vec<(&'static str, Begin)> {
    vec![
        ("anthropic", || {
            let body = br#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}"#;
            anthropic::request(body).unwrap_or_else(|e| panic!("{e}")).encoder
        }),
        ("ollama", || {
            let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
            ollama::chat(body).unwrap_or_else(|e| panic!("{e}")).unwrap().encoder
        }),
        ("responses", || {
            let body = br#"{"model":"m","input":"x"}"#;
            responses::request(body, &responses::Items::new()).unwrap_or_else(|e| panic!("{e}")).encoder
        }),
    ]
}

/// Calls as servers and models may send them: the parts of call `n` of so many.
fn parts(way: &str, n: usize) -> Vec<Value> {
    let part = |index: usize, id: bool, arguments: &str| {
        let mut part = json!({"index": index, "function": {"arguments": arguments}});
        if id {
            part["id"] = json!(format!("c{n}"));
            part["function"]["name"] = json!("run");
        }
        part
    };
    match way {
        "numbered" => vec![part(n, true, "{\"a\":"), part(n, false, " 1}")],
        "all number 0" => vec![part(0, true, "{\"a\":"), part(0, false, " 1}")],
        // The first is never whole, and all others wait for it while it grows.
        "waiting" if n == 0 => vec![part(0, true, "{\"a\": \"")],
        "waiting" => vec![part(n, true, "{}"), part(0, false, "long, ")],
        // One call, whose parts all have its name.
        _ => vec![
            json!({"index": 0, "id": "c", "function": {"name": "run", "arguments": if n == 0 { "{\"a\": \"" } else { "longer, and " }}}),
        ],
    }
}

#[test]
fn a_call_costs_each_dialect_the_same_however_many_came_before_it() {
    let head = Head { id: "x".into(), created: 0, prompt_tokens: None, window: None };
    let said = |parts: &[Value]| Said::of(&json!({"choices": [{"delta": {"tool_calls": parts}}]})).unwrap();
    for (dialect, encoder) in encoders() {
        for way in ["numbered", "all number 0", "waiting", "one"] {
            let cost = |calls: usize| {
                let mut encoder = encoder();
                encoder.start(&head);
                let started = computed();
                let bytes: usize =
                    (0..calls).flat_map(|n| parts(way, n)).map(|part| encoder.chunk(&said(&[part])).len()).sum();
                let end = encoder.end().len();
                assert!(bytes + end > calls);
                computed() - started
            };
            let least = |calls: usize| (0..3).map(|_| cost(calls)).min().unwrap_or(0).max(1);
            // The square of four is sixteen.
            let (few, many) = (least(4_000), least(16_000));
            assert!(many < 9 * few.max(TICKS), "{dialect}, {way}: {few} ns for 4,000 calls, {many} for 16,000");
        }
    }
}

/// A step of so many calls, and their results behind it.
fn step_of(calls: usize) -> Vec<Message> {
    let call = |n: usize| json!({"id": format!("c{n}"), "type": "function", "function": {"name": "read_file", "arguments": format!("{{\"path\": \"src/{n}.rs\"}}")}});
    let step = json!({"role": "assistant", "content": null, "tool_calls": (0..calls).map(call).collect::<Vec<_>>()});
    let result =
        |n: usize| json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": format!("fn f{n}() {{}}")});
    let all = std::iter::once(step).chain((0..calls).map(result));
    all.map(|raw| openai_chat::message(raw.to_string().into()).unwrap()).collect()
}

#[test]
fn a_call_in_the_history_costs_the_same_however_many_stand_beside_it() {
    let cost = |calls: usize| {
        // Each is read twice, and none of it is in the prompt any more.
        let mut body = step_of(calls);
        body.extend(step_of(calls));
        let fold = Edit::Fold {
            from: 0,
            to: calls + 1,
            keep: Vec::new(),
            brief: "b".into(),
            unread: Vec::new(),
            read: None,
            struck: Vec::new(),
        };
        let view = View { messages: calls + 1, edits: vec![fold], ..View::default() };
        let started = computed();
        assert_eq!(missed(&body, &view, calls + 1).len(), calls);
        std::hint::black_box(Superseded::of(&body));
        computed() - started
    };
    let least = |calls: usize| (0..3).map(|_| cost(calls)).min().unwrap_or(0).max(1);
    let (few, many) = (least(1_000), least(4_000));
    assert!(many < 9 * few.max(TICKS), "{few} ns for 1,000 calls, {many} for 4,000");
}

/// A `cn` that tells its config and then runs until it is ended, or at once where `ends`.
#[cfg(unix)]
fn client(bin: &std::path::Path, ends: bool) {
    use std::os::unix::fs::PermissionsExt as _;
    let waits = if ends { "" } else { "while :; do sleep 0.05; done\n" };
    let program = bin.join("cn");
    std::fs::write(&program, format!("#!/bin/sh\ncat \"$2\" > /dev/null && echo \"$2\"\n{waits}")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn however_a_launch_ends_no_file_with_the_key_stays() {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let (dir, bin, temporary) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(dir.path(), &[fake.url()], "");
    let launch = || {
        // Who runs the tests under nohup has hangups ignored, which launch respects.
        let mut command = Command::new("/usr/bin/env");
        command
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_windowsill")])
            .current_dir(dir.path())
            .env("PATH", format!("{}:/usr/bin:/bin", bin.path().display()))
            .env("WINDOWSILL_LISTEN", served.address.to_string())
            .env("TMPDIR", temporary.path())
            .args(["launch", "cn"])
            .stdout(Stdio::piped())
            .process_group(0);
        command.spawn().unwrap()
    };
    let left = || std::fs::read_dir(temporary.path()).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let kill = |signal: &str, whom: String| {
        assert!(Command::new("kill").args([signal, "--", &whom]).status().unwrap().success());
    };
    let begun = |launched: &mut std::process::Child| {
        let said = BufReader::new(launched.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        assert_eq!(left(), [std::path::PathBuf::from(&said)]);
    };
    client(bin.path(), false);
    for signal in ["-TERM", "-HUP"] {
        let mut launched = launch();
        begun(&mut launched);
        kill(signal, launched.id().to_string());
        assert!(!launched.wait().unwrap().success(), "the client was told, too");
        assert_eq!(left(), Vec::<std::path::PathBuf>::new(), "{signal}");
    }
    let (mut killed, mut runs) = (launch(), launch());
    let of = |launched: &mut std::process::Child| {
        std::path::PathBuf::from(BufReader::new(launched.stdout.take().unwrap()).lines().next().unwrap().unwrap())
    };
    let (lost, kept) = (of(&mut killed), of(&mut runs));
    kill("-KILL", format!("-{}", killed.id()));
    killed.wait().unwrap();
    assert!(lost.exists() && kept.exists());
    // The next launch clears away what nobody needs, and that alone.
    std::fs::write(temporary.path().join("windowsill-launch-link"), "x").unwrap();
    std::fs::create_dir(temporary.path().join("windowsill-launch-folder")).unwrap();
    client(bin.path(), true);
    let mut next = launch();
    assert!(next.wait().unwrap().success());
    assert!(!lost.exists() && kept.exists() && temporary.path().join("windowsill-launch-folder").exists());
    assert_eq!(left().len(), 2, "{:?}", left());
    kill("-TERM", runs.id().to_string());
    runs.wait().unwrap();
    assert_eq!(left().len(), 1);
}
