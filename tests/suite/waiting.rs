//! Who waits for a reply: hears something meanwhile, finds again what was begun, and stops what nobody waits for any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::background::{held_summaries, past_the_wall, pressed, summary_is_in};
use super::support::script::{call, evicted, id_in, stream};
use super::support::*;

/// Heads and pings come within a second.
const SHORT: &str = "[limits]\nhead_seconds = 1\nping_seconds = 1\n";

/// A way to ask.
struct Api {
    path: &'static str,
    kind: &'static str,
    /// What keeps a client waiting, and how often the beginning of a stream says it by itself.
    ping: (&'static str, usize),
    /// What ends a reply well, and badly.
    ends: (&'static str, &'static str),
}

const APIS: [Api; 4] = [
    Api {
        path: "/v1/chat/completions",
        kind: "text/event-stream",
        ping: (": keep-alive\n\n", 0),
        ends: ("data: [DONE]\n\n", "data: {\"error\":{"),
    },
    Api {
        path: "/v1/messages",
        kind: "text/event-stream",
        ping: ("event: ping\n", 1),
        ends: ("event: message_stop\n", "event: error\n"),
    },
    Api {
        path: "/v1/responses",
        kind: "text/event-stream",
        ping: ("event: response.in_progress\n", 1),
        ends: ("event: response.completed\n", "event: response.failed\n"),
    },
    Api {
        path: "/api/chat",
        kind: "application/x-ndjson",
        ping: ("\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":false}\n", 0),
        ends: ("\"done\":true", "{\"error\":"),
    },
];

impl Api {
    fn begin(&self, proxy: &TestProxy, stream: bool) -> Conn {
        let said = json!([{"role": "user", "content": "hi"}]);
        let list = if self.path == "/v1/responses" { "input" } else { "messages" };
        let mut body = json!({"model": MODEL, "stream": stream, list: said});
        if self.path == "/v1/messages" {
            body["max_tokens"] = json!(64);
        }
        let mut conn = Conn::open(proxy.address);
        conn.send("POST", self.path, &[("Content-Type", "application/json")], body.to_string().as_bytes());
        conn
    }

    /// Reads the head of a stream, and what comes until it was pinged `n` times.
    fn pinged(&self, conn: &mut Conn, n: usize) -> Answer {
        let mut answer = conn.head().expect("a head").ok();
        assert!(answer.header("content-type").unwrap().starts_with(self.kind), "{}", self.path);
        while answer.text().matches(self.ping.0).count() < self.ping.1 + n {
            let piece = conn.piece().filter(|piece| !piece.is_empty());
            answer.body.extend(piece.unwrap_or_else(|| panic!("{}: ended by {}", self.path, answer.text())));
        }
        answer
    }
}

/// Has a server do this with the client's requests once the gate opens.
fn held(fake: &Fake, play: impl Fn(&Seen, Gate) -> Play + Send + Sync + 'static) -> Gate {
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| if seen.is_main() { play(seen, held.clone()) } else { Play::Usual });
    gate
}

fn waits(_: &Seen, gate: Gate) -> Play {
    Play::Wait(gate, Box::new(Play::Usual))
}

#[test]
fn a_stream_is_kept_alive_while_the_prompt_is_read() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::with(&[fake.url()], SHORT);
        for api in &APIS {
            let gate = held(&fake, waits);
            let (mut whole, mut conn) = (api.begin(&proxy, false), api.begin(&proxy, true));
            let begun = api.pinged(&mut conn, 3);
            // What the prompt is, is known by then.
            assert_eq!(begun.header("x-windowsill-window"), Some("4096"), "{kind:?} {}", api.path);
            assert!(begun.header("x-windowsill-conversation").is_some());
            // Who wants one reply cannot be kept waiting by half of it.
            assert!(!whole.is_readable(), "{kind:?} {}", api.path);
            gate.open();
            let all = conn.rest(begun);
            let (text, end) = (all.text(), api.ends.0);
            assert!(all.whole && text.contains("Done; what is next?") && text.contains(end), "{kind:?}: {text}");
            assert!(!text.contains(api.ends.1), "{text}");
            assert!(whole.answer().ok().text().contains("Done; what is next?"));
        }
    }
}

#[test]
fn a_stream_is_kept_alive_after_the_head_of_the_servers() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], SHORT);
    for api in &APIS {
        let gate = held(&fake, |seen, gate| {
            let body = stream(seen, 0, "Read at last.", &[]);
            Play::Then(sse_head(), gate, Box::new(Play::Pieces(vec![chunk(body.as_bytes()), b"0\r\n\r\n".to_vec()])))
        });
        let mut conn = api.begin(&proxy, true);
        let begun = api.pinged(&mut conn, 2);
        gate.open();
        let all = conn.rest(begun);
        assert!(all.whole && all.text().contains(api.ends.0), "{}", all.text());
    }
}

/// What goes wrong before the head keeps its status; what goes wrong after it is told in the stream.
#[test]
fn an_error_behind_the_head_is_told_in_the_stream() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], SHORT);
    let said = || Play::Json(503, json!({"error": {"code": 503, "type": "server_error", "message": "no more VRAM"}}));
    for api in &APIS {
        fake.script(move |seen| if seen.is_main() { said() } else { Play::Usual });
        let at_once = api.begin(&proxy, true).answer();
        assert!(at_once.status == 503 && at_once.text().contains("no more VRAM"), "{}", at_once.text());
        let gate = held(&fake, move |_, gate| Play::Wait(gate, Box::new(said())));
        let mut conn = api.begin(&proxy, true);
        let begun = api.pinged(&mut conn, 1);
        gate.open();
        let all = conn.rest(begun);
        let text = all.text();
        assert!(all.whole && text.contains(api.ends.1) && text.contains("no more VRAM"), "{text}");
        assert!(!text.contains(api.ends.0), "{text}");
        // Nor is a server that goes away.
        let gate = held(&fake, |_, gate| Play::Wait(gate, Box::new(Play::Cut(Vec::new()))));
        let mut conn = api.begin(&proxy, true);
        let begun = api.pinged(&mut conn, 1);
        gate.open();
        let text = conn.rest(begun).text();
        assert!(text.contains(api.ends.1) && text.contains("broke off") && !text.contains(api.ends.0), "{text}");
    }
}

/// A server that answers a stream's request late, and with one JSON.
#[test]
fn one_reply_behind_the_head_is_told_as_a_stream() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], SHORT);
    let reply = json!({"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "All at once."}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}});
    for api in &APIS {
        let reply = reply.clone();
        let gate = held(&fake, move |_, gate| Play::Wait(gate, Box::new(Play::Json(200, reply.clone()))));
        let mut conn = api.begin(&proxy, true);
        let begun = api.pinged(&mut conn, 1);
        gate.open();
        let text = conn.rest(begun).text();
        assert!(text.contains("All at once.") && text.contains(api.ends.0), "{text}");
        assert!(!text.contains("\"message\":{\"content\""), "{text}");
    }
}

#[test]
fn a_stream_is_kept_alive_while_its_brief_is_written() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let gate = held_summaries(&fake);
    let proxy = TestProxy::with(&[fake.url()], &format!("[context]\nbackground = false\nfold_at = \"line\"\n{SHORT}"));
    let mut conn = proxy.begin(&past_the_wall(pressed()).stream());
    let begun = APIS[0].pinged(&mut conn, 2);
    assert!(fake.mains().is_empty(), "the brief is still being written");
    gate.open();
    let all = conn.rest(begun);
    assert!(all.whole && all.text().contains("Done; what is next?"), "{}", all.text());
    assert!(summary_is_in(&fake.last().json()));
}

/// Between the rounds of a reply, too; and who hangs up there ends the round.
#[test]
fn a_stream_is_kept_alive_between_rounds() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], SHORT);
    for hangs_up in [false, true] {
        let gate = Gate::default();
        let second = gate.clone();
        fake.script(move |seen| {
            if !seen.is_main() {
                return Play::Usual;
            }
            let is_second = seen.messages().iter().any(|m| m["tool_calls"].to_string().contains("windowsill_recall"));
            let (text, calls) = match is_second {
                true => ("It is Zanzibar.", vec![]),
                false => ("Let me look. ", vec![call(json!({"id": id_in(seen)}))]),
            };
            let bytes = stream(seen, usize::from(is_second), text, &calls);
            let reply = Play::Pieces(vec![sse_head(), chunk(bytes.as_bytes()), b"0\r\n\r\n".to_vec()]);
            if is_second { Play::Wait(second.clone(), Box::new(reply)) } else { reply }
        });
        let mut conn = proxy.begin(&evicted().stream());
        // The scripted model sends a comment of its own first.
        let begun = APIS[0].pinged(&mut conn, 2);
        if hangs_up {
            drop(conn);
            fake.wait_hung_up(1);
            return;
        }
        gate.open();
        let all = conn.rest(begun);
        assert!(all.whole && all.text().contains("Zanzibar"), "{}", all.text());
    }
}

/// Whoever hangs up ends the server's work on the reply, wherever that stands.
#[test]
fn who_hangs_up_stops_the_server() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::with(&[fake.url()], SHORT);
        let mut gone = 0;
        for api in &APIS {
            for (stream, pings) in [(false, 0), (true, 0), (true, 1)] {
                held(&fake, waits);
                let before = fake.count();
                let mut conn = api.begin(&proxy, stream);
                fake.wait("the request", |seen| seen.iter().filter(|s| s.is_main()).count() > before);
                if pings > 0 {
                    api.pinged(&mut conn, pings);
                }
                drop(conn);
                gone += 1;
                fake.wait_hung_up(gone);
            }
        }
        // Nor does it write on for nobody.
        for api in &APIS {
            held(&fake, move |_, gate| {
                let (head, first) = match kind {
                    Kind::Ollama => (
                        whole_head("application/x-ndjson"),
                        json!({"message": {"content": "One"}, "done": false}).to_string() + "\n",
                    ),
                    _ => (
                        sse_head(),
                        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": "One"}}]})),
                    ),
                };
                Play::Then([head, chunk(first.as_bytes())].concat(), gate, Box::new(Play::Usual))
            });
            let mut conn = api.begin(&proxy, true);
            conn.head().expect("a head").ok();
            conn.until("One");
            drop(conn);
            gone += 1;
            fake.wait_hung_up(gone);
        }
    }
}

fn whole_head(kind: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes()
}

/// A client that gives up finds the brief that was begun for it: still in the making, or made.
#[test]
fn who_comes_again_finds_the_brief_that_was_begun() {
    for (made_meanwhile, streamed) in [(false, false), (false, true), (true, false)] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let gate = held_summaries(&fake);
        let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
        let mut sent = past_the_wall(pressed());
        if streamed {
            sent = sent.stream();
        }
        for n in 0..4 {
            let conn = proxy.begin(&sent);
            fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
            // It is only given up once it is waited for.
            proxy.eventually("/windowsill/conversations", |_| true);
            drop(conn);
            assert_eq!((fake.summaries().len(), fake.hung_up()), (1, 0), "try {n}");
        }
        if made_meanwhile {
            gate.open();
            proxy.eventually("/windowsill/events", |events| events.to_string().contains("\"role\":\"summary\""));
        }
        let mut conn = proxy.begin(&sent);
        gate.open();
        let answer = conn.answer().ok();
        assert_eq!(answer.action(), "summarize");
        assert!(summary_is_in(&fake.last().json()));
        assert_eq!((fake.summaries().len(), fake.hung_up()), (1, 0));
        assert_eq!(fake.count(), 1, "who gave up got no reply");
    }
}

/// A server that holds one model at a time: `a`, and from then on the one that the last chat named.
struct Router {
    fake: Fake,
    /// The model, and each change of it for a chat.
    held: Arc<Mutex<(String, Vec<String>)>>,
}

impl Router {
    /// Chats are answered as `play` says, which may have another program load another model.
    fn start(play: impl Fn(&Seen, &mut String) -> Play + Send + Sync + 'static) -> Router {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let held = Arc::new(Mutex::new(("a".to_owned(), Vec::new())));
        let mine = Arc::clone(&held);
        fake.script(move |seen| match (seen.method.as_str(), seen.path()) {
            ("GET", "/props") => Play::Json(
                200,
                json!({"role": "router", "default_generation_settings": {"n_ctx": 4096}, "total_slots": 1,
                    "build_info": "b1-fake", "model_path": "", "chat_template": ""}),
            ),
            ("GET", "/models" | "/v1/models") => {
                let now = mine.lock().unwrap().0.clone();
                let entry = |id: &str| {
                    let status = if id == now { "loaded" } else { "unloaded" };
                    json!({"id": id, "status": {"value": status}, "meta": {"n_ctx": 4096, "n_ctx_train": 32768}})
                };
                Play::Json(200, json!({"object": "list", "data": [entry("a"), entry("b")]}))
            }
            ("POST", "/v1/chat/completions") => {
                let model = seen.json()["model"].as_str().unwrap_or_default().to_owned();
                let mut now = mine.lock().unwrap();
                if now.0 != model {
                    let swap = format!("{} -> {model}", now.0);
                    now.1.push(swap);
                    now.0 = model;
                }
                play(seen, &mut now.0)
            }
            _ => Play::Usual,
        });
        Router { fake, held }
    }

    /// The models that were asked for one after the other, in the order in which the requests came: a busy machine may answer them
    /// in another one.
    fn asked_for(&self) -> Vec<String> {
        let chats = self.fake.all().into_iter().filter(|seen| seen.path() == "/v1/chat/completions");
        let mut models: Vec<String> =
            chats.map(|seen| seen.json()["model"].as_str().unwrap_or("").to_owned()).collect();
        models.dedup();
        models
    }

    fn swaps(&self) -> Vec<String> {
        self.held.lock().unwrap().1.clone()
    }
}

fn of(model: &str, chat: Chat) -> Chat {
    chat.with("model", json!(model))
}

fn summary_or_ahead(seen: &Seen) -> bool {
    let body = seen.json();
    seen.is_summary() || body["max_tokens"] == 1 || body["options"]["num_predict"] == 1
}

/// Waits until what is behind the last reply was done, or was left: other conversations' replies are accounted for behind it.
fn behind_the_reply(proxy: &TestProxy, mains: usize) {
    proxy.eventually("/windowsill/events", |events| {
        let all = events["events"].as_array().unwrap();
        all.iter().filter(|e| e["data"]["role"] == "main").count() >= mains
    });
}

#[test]
fn work_of_ours_gives_way_to_another_model() {
    let gate = Gate::default();
    let held = gate.clone();
    let router =
        Router::start(
            move |seen, _| {
                if seen.is_summary() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual }
            },
        );
    let proxy = TestProxy::before(&router.fake);
    let sent = of("a", pressed());
    proxy.chat(&sent).ok();
    router.fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
    // The brief is in the way of who wants the other model.
    proxy.chat(&of("b", chat().user("hi"))).ok();
    router.fake.wait_hung_up(1);
    gate.open();
    proxy.chat(&of("b", chat().user("hi again"))).ok();
    behind_the_reply(&proxy, 3);
    assert_eq!(router.asked_for(), ["a", "b"]);
    assert_eq!(router.fake.summaries().len(), 1);
    // It is made once its model is asked for again.
    proxy.chat(&sent.assistant("Done; what is next?").user("Go on.")).ok();
    router.fake.wait("the brief", |seen| seen.iter().filter(|s| s.is_summary()).count() == 2);
    assert_eq!(router.asked_for(), ["a", "b", "a"]);
}

#[test]
fn nothing_of_ours_is_asked_while_another_model_is_used() {
    let gate = Gate::default();
    let held = gate.clone();
    let router = Router::start(move |seen, _| match seen.json()["model"] == "b" && seen.json()["stream"] == true {
        true => Play::Wait(held.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let proxy = TestProxy::before(&router.fake);
    let mut other = proxy.begin(&of("b", chat().user("hi").stream()));
    router.fake.wait("the other request", |seen| seen.iter().any(Seen::is_main));
    let sent = of("a", pressed());
    proxy.chat(&sent).ok();
    behind_the_reply(&proxy, 1);
    gate.open();
    other.answer().ok();
    behind_the_reply(&proxy, 2);
    assert!(!router.fake.all().iter().any(summary_or_ahead), "nothing is made for a");
    proxy.chat(&sent.assistant("Done; what is next?").user("Go on.")).ok();
    router.fake.wait("the brief, now that nobody else is there", |seen| seen.iter().any(Seen::is_summary));
}

/// Another program has another model loaded behind the reply.
#[test]
fn nothing_of_ours_is_asked_of_a_model_that_is_not_there() {
    let stolen = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&stolen);
    let router = Router::start(move |seen, now| {
        if seen.is_main() && theirs.load(Ordering::SeqCst) {
            *now = "b".into();
        }
        Play::Usual
    });
    let proxy = TestProxy::before(&router.fake);
    let sent = of("a", pressed());
    proxy.chat(&sent).ok();
    let looked = |seen: &[Seen]| {
        let behind = seen.iter().skip_while(|s| !s.is_main());
        behind.filter(|s| s.method == "GET" && s.path() == "/models").count() > 0
    };
    router.fake.wait("a look at what is loaded", looked);
    stolen.store(false, Ordering::SeqCst);
    proxy.chat(&sent.assistant("Done; what is next?").user("Go on.")).ok();
    router.fake.wait("the brief", |seen| seen.iter().any(Seen::is_summary));
    assert_eq!(router.fake.summaries().len(), 1);
    assert_eq!(router.swaps(), ["b -> a"], "as the client's own request had it");
}

/// Sends a conversation turn by turn until a fold is due behind its last reply. Returns how many there were.
fn up_to_the_wall(proxy: &TestProxy, path: &str, keep_alive: &Value) -> usize {
    let mut sent = chat().system("You are a helpful assistant.").user("Let us plan the garden.");
    for n in 0.. {
        sent = sent.assistant(&prose(n, 1_300)).user(&format!("And what about item {n}?"));
        let mut body = sent.clone().with("keep_alive", keep_alive.clone()).with("stream", json!(false)).value();
        if path == "/v1/responses" {
            body["input"] = body["messages"].take();
        }
        let answer = proxy.post(path, &[], body.to_string().as_bytes()).ok();
        assert_eq!(answer.action(), "none", "turn {n}");
        let turns = usize::try_from(n).unwrap() + 1;
        behind_the_reply(proxy, turns);
        if tokens(&sent.value()) > 2_350 {
            return turns;
        }
    }
    unreachable!("it grows")
}

/// Whoever frees the memory with `keep_alive` 0 finds it free.
#[test]
fn nothing_follows_a_reply_that_unloads_the_model() {
    for (path, zero) in [("/api/chat", json!(0)), ("/v1/chat/completions", json!("0s")), ("/v1/responses", json!("0"))]
    {
        let fake = Fake::start(Kind::Ollama, 4096);
        let proxy = TestProxy::before(&fake);
        let turns = up_to_the_wall(&proxy, path, &zero);
        assert_eq!(fake.last().json()["keep_alive"], zero, "{path}");
        // Requests of others: more than enough time for a summary that was begun to be seen.
        for n in 0..8 {
            proxy.chat(&chat().user(&format!("other {n}"))).ok();
        }
        behind_the_reply(&proxy, turns + 8);
        assert!(!fake.all().iter().any(summary_or_ahead), "{path}");
    }
}

#[test]
fn requests_of_ours_keep_the_model_as_long_as_the_client_wants() {
    for (path, long) in [("/api/chat", json!(-1)), ("/v1/chat/completions", json!("24h"))] {
        let fake = Fake::start(Kind::Ollama, 4096);
        let proxy = TestProxy::before(&fake);
        up_to_the_wall(&proxy, path, &long);
        fake.wait("a prompt sent ahead", |seen| seen.iter().any(|s| s.json()["options"]["num_predict"] == 1));
        for seen in fake.all().iter().filter(|s| summary_or_ahead(s)) {
            assert_eq!(seen.json()["keep_alive"], long, "{path}");
        }
    }
    // A brief that a request waits for must not unload the model that the request needs next.
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    proxy.chat(&past_the_wall(pressed()).with("keep_alive", json!(0))).ok();
    assert_eq!(fake.summaries()[0].json()["keep_alive"], "1m");
    assert_eq!(fake.last().json()["keep_alive"], 0);
}

/// A count has no model loaded, nor has a look at a conversation.
#[test]
fn whoever_only_looks_loads_nothing() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| match seen.path() {
        "/api/ps" => Play::Json(200, json!({"models": []})),
        _ => Play::Usual,
    });
    let asked = json!({"model": MODEL, "messages": [{"role": "user", "content": prose(1, 9_000)}]});
    let counted = proxy.post("/v1/messages/count_tokens", &[], asked.to_string().as_bytes()).ok().json();
    assert!(counted["input_tokens"].as_u64().unwrap() > 1_000, "{counted}");
    let chats: Vec<Value> = fake.all().iter().filter(|s| s.path() == "/api/chat").map(Seen::json).collect();
    assert_eq!(chats, Vec::<Value>::new());
}
