//! Several servers of one model: who gets a request, and what becomes of one whose server has no reply.

use std::time::Instant;

use serde_json::{Value, json};

use super::support::*;

/// The server that answered, by its name; and why it was chosen.
fn by(answer: &Answer) -> (String, String) {
    let told = answer.header("x-windowsill-upstream").expect("it says which server").to_owned();
    let (name, rest) = told.split_once("; because=").unwrap();
    (name.to_owned(), rest.split(';').next().unwrap().to_owned())
}

fn two(kind: Kind) -> (Fake, Fake, TestProxy) {
    two_with(kind, [8192, 8192])
}

fn two_with(kind: Kind, windows: [u32; 2]) -> (Fake, Fake, TestProxy) {
    let [one, other] = windows.map(|window| Fake::start(kind, window));
    let proxy = TestProxy::with(&[one.url(), other.url()], "[context]\nbackground = false\n");
    (one, other, proxy)
}

fn upstream(proxy: &TestProxy, name: &str) -> Value {
    let all = proxy.get("/windowsill/upstreams").ok().json();
    all["upstreams"].as_array().unwrap().iter().find(|one| one["upstream"] == name).unwrap().clone()
}

/// A dialect's path, a request in its words, and where its reply has the text.
fn asked(path: &str, stream: bool) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = match path {
        "/v1/responses" => json!({"model": MODEL, "input": "hi", "stream": stream}),
        _ => json!({"model": MODEL, "max_tokens": 50, "messages": messages, "stream": stream}),
    };
    body.to_string().into_bytes()
}

const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"];

/// What a server does instead of a reply, before anything of one was given to the client.
fn faults() -> Vec<(&'static str, Play)> {
    let begun = [&sse_head()[..], &chunk(b": waits\n\n")].concat();
    let error = json!({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}});
    vec![
        ("it cuts the connection", Play::Cut(Vec::new())),
        ("it cuts it in the head", Play::Cut(b"HTTP/1.1 200 OK\r\nContent-".to_vec())),
        ("it is loading", Play::Json(503, error)),
        ("a gateway has nobody behind it", Play::Json(502, json!({"error": {"message": "bad gateway"}}))),
        ("it fails at work", Play::Json(500, json!({"error": {"message": "llama runner process has terminated"}}))),
        ("its stream ends before a word", Play::Cut(begun)),
    ]
}

#[test]
fn a_request_goes_to_the_next_server_before_anything_of_a_reply() {
    for path in PATHS {
        for stream in [false, true] {
            for (what, play) in faults() {
                let (one, other, proxy) = two(Kind::LlamaServer);
                one.script(move |seen| if seen.is_main() { play.clone() } else { Play::Usual });
                let answer = proxy.post(path, &[], &asked(path, stream));
                let told = format!("{path}, streamed {stream}, {what}");
                assert_eq!(answer.status, 200, "{told}: {}", answer.text());
                assert!(answer.whole && answer.text().contains("Done; what is next?"), "{told}: {}", answer.text());
                assert_eq!((one.count(), other.count()), (1, 1), "{told}");
                // The same bytes, and it is one request on record.
                assert_eq!(one.last().body, other.last().body, "{told}");
                assert_eq!(upstream(&proxy, "up0")["moved"], 1, "{told}");
                let events = proxy.eventually("/windowsill/events", |e| e.to_string().contains("model_usage"));
                let kinds = events.to_string();
                assert_eq!(
                    (kinds.matches("\"failover\"").count(), kinds.matches("\"model_usage\"").count()),
                    (1, 1),
                    "{kinds}"
                );
            }
        }
    }
}

#[test]
fn who_refuses_the_connection_is_left_out_until_it_is_back() {
    for kind in [Kind::LlamaServer, Kind::Vllm, Kind::Ollama] {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        let other = Fake::start(kind, 8192);
        let proxy = TestProxy::with(&[format!("http://{address}"), other.url()], "");
        for _ in 0..3 {
            proxy.chat(&chat().user("hi")).ok();
        }
        assert_eq!(upstream(&proxy, "up0")["standing"], "down");
        let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
        let _back = Fake::on(listener, kind, 8192);
        proxy.eventually("/windowsill/upstreams", |all| all["upstreams"][0]["standing"] == "ready");
        let answer = proxy.chat(&chat().user("Somebody else.")).ok();
        assert_eq!(by(&answer).0, "up0", "{kind:?}: the first of two that hold nothing");
    }
}

#[test]
fn nothing_is_sent_again_once_a_word_was_given() {
    let (one, other, proxy) = two(Kind::LlamaServer);
    one.script(|seen| {
        let head =
            [sse_head(), chunk(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Once\"}}]}\n\n")].concat();
        if seen.is_main() { Play::Cut(head) } else { Play::Usual }
    });
    let answer = proxy.chat(&chat().user("hi").stream());
    assert!(answer.text().contains("Once"), "{}", answer.text());
    assert_eq!((one.count(), other.count()), (1, 0));
}

#[test]
fn a_prompt_that_ends_servers_ends_two_at_most() {
    let fakes: Vec<Fake> = (0..4).map(|_| Fake::start(Kind::LlamaServer, 8192)).collect();
    let urls: Vec<String> = fakes.iter().map(Fake::url).collect();
    let proxy = TestProxy::with(&urls, "");
    for fake in &fakes {
        fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    }
    let answer = proxy.chat(&chat().user("hi"));
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(fakes.iter().map(Fake::count).sum::<usize>(), 2);
    // One that is loading was ended by nothing: all are asked.
    let proxy = TestProxy::with(&urls, "");
    for fake in &fakes {
        fake.clear();
        fake.script(|seen| {
            let busy = json!({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}});
            if seen.is_main() { Play::Json(503, busy) } else { Play::Usual }
        });
    }
    assert_eq!(proxy.chat(&chat().user("hi")).status, 503);
    assert_eq!(fakes.iter().map(Fake::count).sum::<usize>(), 4);
}

#[test]
fn a_conversation_stays_where_it_is_warm() {
    let (one, other, proxy) = two(Kind::LlamaServer);
    let mut talk = chat().system("s").user(&format!("First: {}", prose(1, 400)));
    // The second server begins it: the first one is drained for a moment.
    let drain = |on: bool| {
        proxy.post("/windowsill/upstreams/up0/drain", &[], json!({"on": on}).to_string().as_bytes()).ok().json()
    };
    assert_eq!(drain(true)["standing"], "draining");
    assert_eq!(by(&proxy.chat(&talk).ok()).0, "up1");
    drain(false);
    for n in 0..4 {
        talk = talk.assistant("Done; what is next?").user(&format!("And {n}?"));
        proxy.eventually("/windowsill/upstreams", |all| all["upstreams"][1]["answered"] == n + 1);
        assert_eq!(by(&proxy.chat(&talk).ok()), ("up1".to_owned(), "warm".to_owned()), "turn {n}");
    }
    assert_eq!((one.count(), other.count()), (0, 5));
    // Another one goes to the first; and with the warm one away, this one does, too.
    assert_eq!(by(&proxy.chat(&chat().user("Somebody else.")).ok()).0, "up0");
    other.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    let talk = talk.assistant("Done; what is next?").user("Still there?");
    assert_eq!(by(&proxy.chat(&talk).ok()).0, "up0");
}

#[test]
fn where_a_conversation_is_warm_is_known_after_a_restart() {
    let (one, other) = (Fake::start(Kind::LlamaServer, 8192), Fake::start(Kind::LlamaServer, 8192));
    let (urls, toml) = ([one.url(), other.url()], "[context]\nbackground = false\n");
    let mut talk = chat().system("s").user(&format!("First: {}", prose(1, 400)));
    let mut dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    for n in 0..4 {
        let proxy = TestProxy::at(dir, &urls, toml);
        if n == 0 {
            proxy.post("/windowsill/upstreams/up0/drain", &[], b"{}").ok();
        }
        let (name, because) = by(&proxy.chat(&talk).ok());
        assert_eq!((name.as_str(), because.as_str()), ("up1", if n == 0 { "only" } else { "warm" }), "turn {n}");
        talk = talk.assistant("Done; what is next?").user(&format!("And {n}?"));
        dir = proxy.stop();
    }
}

#[test]
fn a_server_with_more_to_do_waits_and_a_larger_window_is_taken_for_a_longer_prompt() {
    let (one, other, proxy) = two(Kind::LlamaServer);
    let gate = Gate::default();
    let held = gate.clone();
    one.script(move |seen| if seen.is_main() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let mut first = proxy.begin(&chat().user("Take your time."));
    one.wait("the first request", |seen| seen.iter().any(Seen::is_main));
    assert_eq!(by(&proxy.chat(&chat().user("And I?")).ok()).0, "up1", "one slot, and it is taken");
    gate.open();
    assert_eq!(first.answer().status, 200);
    assert_eq!(other.count(), 1);

    let (small, large, proxy) = two_with(Kind::LlamaServer, [2048, 16_384]);
    let talk = chat().user(&prose(3, 300));
    assert_eq!(by(&proxy.chat(&talk).ok()).0, "up0");
    let talk = talk.assistant("Done; what is next?").user(&prose(4, 9_000));
    let answer = proxy.chat(&talk).ok();
    assert_eq!(by(&answer), ("up1".to_owned(), "window".to_owned()));
    assert_eq!((answer.action(), answer.header("x-windowsill-window")), ("none", Some("16384")), "nothing had to go");
    assert_eq!((small.count(), large.count()), (1, 1));
}

#[test]
fn a_drained_server_ends_what_is_open_and_gets_nothing_more() {
    let (one, other, proxy) = two(Kind::LlamaServer);
    let gate = Gate::default();
    let held = gate.clone();
    one.script(move |seen| if seen.is_main() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let mut first = proxy.begin(&chat().user("hi"));
    one.wait("the first request", |seen| seen.iter().any(Seen::is_main));
    let told = proxy.cli(&["drain", "up0"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("draining") && told.contains("1 open"), "{told}");
    for n in 0..3 {
        assert_eq!(by(&proxy.chat(&chat().user(&format!("Another {n}."))).ok()).0, "up1");
    }
    gate.open();
    assert_eq!(first.answer().status, 200, "what was open ends");
    proxy.eventually("/windowsill/upstreams", |all| all["upstreams"][0]["open"] == 0);
    assert_eq!((one.count(), other.count()), (1, 3));
    let doctor = String::from_utf8(proxy.cli(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("sends no new requests to `up0`: it is drained"), "{doctor}");
    assert!(doctor.contains("windowsill drain up0 --undo") && !doctor.contains("to `up1`"), "{doctor}");
    assert!(proxy.cli(&["drain", "up1"]).status.success());
    let refused = proxy.chat(&chat().user("hi"));
    assert_eq!(
        (refused.status, refused.error().0.as_str(), refused.header("retry-after")),
        (503, "draining", Some("2"))
    );
    assert!(proxy.cli(&["drain", "up0", "--undo"]).status.success());
    proxy.chat(&chat().user("hi")).ok();
    assert!(!proxy.cli(&["drain", "nonesuch"]).status.success());
}

/// With one server, nothing is chosen and nothing is told of it; draining it is said.
#[test]
fn one_server_alone_is_as_before() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let answer = proxy.chat(&chat().user("hi")).ok();
    assert_eq!(answer.header("x-windowsill-upstream"), None);
    fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    assert_eq!(proxy.chat(&chat().user("hi")).status, 502);
    assert_eq!(fake.count(), 2);
    proxy.post("/windowsill/upstreams/up0/drain", &[], b"{}").ok();
    assert_eq!(proxy.chat(&chat().user("hi")).status, 503);
}

/// A router that several servers stand behind is told which conversation a request belongs to, in the header that it looks at.
#[test]
fn a_router_is_told_of_the_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let upstream = format!("[[upstream]]\nurl = '{}'\nsession_header = 'X-SMG-Routing-Key'\n", fake.url());
    let proxy = TestProxy::with(&[], &upstream);
    for path in PATHS {
        for stream in [false, true] {
            let before = fake.count();
            let other = [("x-smg-routing-key", "of the client")];
            let answer = proxy.post(path, &other, &asked(path, stream)).ok();
            let id = answer.header("x-windowsill-conversation").unwrap();
            let told = fake.since(before).iter().all(|seen| seen.header("x-smg-routing-key") == Some(id));
            assert!(told, "{path} {stream}");
        }
    }
    let passed = proxy.post(PATHS[0], &[("x-windowsill", "off")], &asked(PATHS[0], false));
    assert_eq!((passed.status, fake.last().header("x-smg-routing-key")), (200, None));
}

#[test]
fn what_passes_through_goes_to_a_server_that_is_there() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[format!("http://{}", Fake::absent()), fake.url()], "");
    let until = Instant::now() + PATIENCE;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let answer = proxy.post("/v1/chat/completions", &[("x-windowsill", "off")], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(Instant::now() < until);
}

/// Its window is too small, which shows in its refusal: another server has room for all of it, so nothing is rewritten.
#[test]
fn what_a_server_refuses_as_too_long_goes_to_one_with_a_larger_window() {
    let long = || chat().user(&prose(3, 9_000)).assistant("Yes.").user(&prose(4, 3_000));
    for path in PATHS {
        let small = Fake::start(Kind::OpenAi, 1024);
        let large = Fake::start(Kind::Vllm, 16_384);
        let proxy = TestProxy::with(&[small.url(), large.url()], "[context]\nbackground = false\n");
        let mut asked: Value = serde_json::from_slice(&asked(path, false)).unwrap();
        match path {
            "/v1/responses" => asked["input"] = json!(prose(3, 12_000)),
            _ => asked["messages"] = long().value()["messages"].clone(),
        }
        let answer = proxy.post(path, &[], asked.to_string().as_bytes()).ok();
        assert_eq!((by(&answer).0.as_str(), answer.header("x-windowsill-action")), ("up1", Some("none")), "{path}");
        assert_eq!((small.count(), large.count()), (1, 1), "{path}");
        let events = proxy.eventually("/windowsill/events?kind=failover", |all| all["events"][0].is_object());
        assert!(events["events"][0]["data"]["because"].as_str().unwrap().contains("larger window"), "{events}");
        // Where the large one fails, the small one gets what fits it.
        large.script(|seen| if seen.is_main() { Play::Json(502, json!({"error": "gone"})) } else { Play::Usual });
        let answer = proxy.post(path, &[], asked.to_string().as_bytes());
        if path != "/v1/responses" {
            assert_eq!((answer.status, by(&answer).0.as_str()), (200, "up0"), "{path}: {}", answer.text());
        }
    }
}

#[test]
fn new_conversations_spread_over_servers_that_are_as_good() {
    let (one, other, proxy) = two(Kind::LlamaServer);
    for n in 0..8 {
        proxy.chat(&chat().user(&format!("Question {n}."))).ok();
    }
    let (one, other) = (one.count(), other.count());
    assert!(one >= 3 && other >= 3, "{one} and {other}");
}
