//! How servers are found: where they usually listen, later than the proxy starts, below a path, and behind llama-swap.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::support::*;

/// A request in each dialect.
fn asks(model: &str, stream: bool) -> Vec<(&'static str, Value)> {
    let chat = json!([{"role": "user", "content": "Hello."}]);
    vec![
        ("/v1/chat/completions", json!({"model": model, "messages": chat, "stream": stream})),
        ("/v1/responses", json!({"model": model, "input": "Hello.", "stream": stream})),
        ("/v1/messages", json!({"model": model, "max_tokens": 9, "messages": chat, "stream": stream})),
        ("/api/chat", json!({"model": model, "messages": chat, "stream": stream})),
        ("/api/generate", json!({"model": model, "prompt": "Hello.", "stream": stream})),
    ]
}

fn post(proxy: &TestProxy, path: &str, body: &Value) -> Answer {
    proxy.post(path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

fn start_at(address: SocketAddr, kind: Kind) -> Fake {
    Fake::on(TcpListener::bind(address).unwrap(), kind, 4096)
}

#[test]
fn a_server_that_starts_later_is_found_by_the_next_request() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::OpenAi] {
        for stream in [false, true] {
            for (path, body) in asks(MODEL, stream) {
                let (first, second) = (Fake::absent(), Fake::absent());
                let proxy = TestProxy::looking_at(&[first, second]);
                let answer = post(&proxy, path, &body);
                assert_eq!(answer.status, 503, "{path}");
                assert!(answer.text().contains(&second.port().to_string()), "where it looked: {}", answer.text());
                let _fake = start_at(second, kind);
                post(&proxy, path, &body).ok();
            }
        }
    }
}

#[test]
fn a_server_that_starts_later_is_found_without_a_request() {
    let (first, second) = (Fake::absent(), Fake::absent());
    let proxy = TestProxy::looking_at(&[first, second]);
    assert_eq!(proxy.get("/windowsill/models").ok().json()["models"], json!([]));
    assert_eq!(proxy.get("/readyz").status, 503);
    let _fake = start_at(second, Kind::LlamaServer);
    let found = proxy.eventually("/windowsill/models", |v| v["models"].as_array().is_some_and(|m| !m.is_empty()));
    assert_eq!(found["models"][0]["upstream"], "usual1");
    proxy.get("/readyz").ok();
}

#[test]
fn a_server_that_moves_is_found_at_its_new_place() {
    let (old, new) = (Fake::absent(), Fake::absent());
    let fake = start_at(old, Kind::LlamaServer);
    let proxy = TestProxy::looking_at(&[old, new]);
    let (path, body) = asks(MODEL, false).remove(0);
    post(&proxy, path, &body).ok();
    drop(fake);
    let moved = start_at(new, Kind::LlamaServer);
    // The first one finds out that nobody is there any more.
    let tries: Vec<u16> = (0..3).map(|_| post(&proxy, path, &body).status).collect();
    assert_eq!(tries[1..], [200, 200], "{tries:?}");
    assert_eq!(moved.count(), if tries[0] == 200 { 3 } else { 2 });
}

#[test]
fn what_answers_otherwise_is_no_server_and_is_left_alone() {
    let page = Fake::start(Kind::OpenAi, 4096);
    page.script(|_| Play::Json(200, json!({"hello": "world"})));
    let proxy = TestProxy::looking_at(&[page.address]);
    let (path, body) = asks(MODEL, false).remove(0);
    assert_eq!(post(&proxy, path, &body).status, 503);
    assert_eq!(page.all().iter().filter(|seen| seen.method == "POST").count(), 0);
    let gate = Fake::absent();
    assert_ne!(gate, page.address);
}

/// `llama-server --api-prefix /llm`, or a web server in front that has others beside it.
#[test]
fn the_path_of_a_url_stands_before_all_that_is_asked() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm, Kind::OpenAi] {
        for tail in ["", "/", "/v1"] {
            let fake = Fake::start(kind, 4096);
            fake.set(|s| s.prefix = "/llm/a".into());
            let proxy = TestProxy::with(&[format!("{}/llm/a{tail}", fake.url())], "");
            for stream in [false, true] {
                for (path, body) in asks(MODEL, stream) {
                    let answer = post(&proxy, path, &body).ok();
                    let window = answer.header("x-windowsill-window");
                    assert_eq!(window, Some(if kind == Kind::OpenAi { "unknown" } else { "4096" }), "{kind:?} {path}");
                }
            }
            proxy.get("/v1/models").ok();
            proxy.get("/readyz").ok();
            proxy.get("/anything");
            let outside: Vec<_> = fake.all().into_iter().filter(|s| s.path().starts_with("/outside")).collect();
            assert!(outside.is_empty(), "{kind:?}: {outside:?}");
        }
    }
}

/// `/props`, `/slots` and `/tokenize` wake a model that sleeps (ik_llama, PR 2383).
#[test]
fn who_asks_whether_all_is_well_wakes_no_model() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(|seen| match seen.path() {
        "/health" => Play::Json(200, json!({"status": "ok"})),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    fake.clear();
    for _ in 0..3 {
        proxy.get("/readyz").ok();
        proxy.get("/healthz").ok();
        proxy.get("/metrics").ok();
    }
    let paths: Vec<String> = fake.all().iter().map(|seen| seen.path().to_owned()).collect();
    assert_eq!(paths, ["/health", "/health", "/health"]);
}

/// A llama-swap with two models, of which one runs at a time, as its source says. `asleep` gets what was asked of a model that did
/// not run, and would have started it.
struct Swap {
    fake: Fake,
    running: Arc<Mutex<String>>,
    asleep: Arc<Mutex<Vec<String>>>,
}

fn swap(running: &str) -> Swap {
    let fake = Fake::start(Kind::OpenAi, 100_000);
    let running = Arc::new(Mutex::new(running.to_owned()));
    let asleep = Arc::new(Mutex::new(Vec::new()));
    let (now, woken) = (Arc::clone(&running), Arc::clone(&asleep));
    fake.script(move |seen| {
        let mut now = now.lock().unwrap();
        let window = |name: &str| if name == "org/large" { 8192 } else { 4096 };
        match seen.path() {
            "/running" => {
                let list: Vec<Value> = Some(&*now)
                    .filter(|name| !name.is_empty())
                    .map(|name| json!({"model": name, "state": "ready", "cmd": "llama-server", "proxy": "http://localhost:5800"}))
                    .into_iter()
                    .collect();
                Play::Json(200, json!({ "running": list }))
            }
            "/v1/models" => {
                let entry = |id: &str, aliases: &[&str]| json!({"id": id, "object": "model", "created": 1, "owned_by": "llama-swap",
                    "status": {"value": if *now == id { "loaded" } else { "unloaded" }}, "meta": {"llamaswap": {"type": "model", "aliases": aliases}}});
                Play::Json(200, json!({"object": "list", "data": [entry("org/large", &["big"]), entry("small", &[])]}))
            }
            "/api/version" => Play::Json(200, json!({"version": "v210", "commit": "ab", "build_date": "x"})),
            "/props" => Play::Json(400, json!({"error": "model is required"})),
            "/v1/chat/completions" => {
                let model = seen.json()["model"].as_str().unwrap_or_default().to_owned();
                *now = if model == "big" { "org/large".into() } else { model };
                Play::Usual
            }
            path if path.starts_with("/upstream/") => {
                let path = path.trim_start_matches("/upstream/");
                let name = ["org/large", "big", "small"].into_iter().find(|name| path.starts_with(&format!("{name}/")));
                let Some(name) = name else { return Play::Json(404, json!({"error": "model not found"})) };
                let real = if name == "big" { "org/large" } else { name };
                let path = &path[name.len()..];
                if *now != real {
                    woken.lock().unwrap().push(seen.target.clone());
                    *now = real.to_owned();
                }
                match path {
                    "/health" => Play::Json(200, json!({"status": "ok"})),
                    "/props" => Play::Json(200, json!({"default_generation_settings": {"n_ctx": window(real)}, "total_slots": 2,
                        "build_info": "b1-x", "model_path": format!("/m/{real}.gguf"), "chat_template": "", "modalities": {"vision": false, "audio": false}})),
                    "/v1/chat/completions/input_tokens" => Play::Json(200, json!({"input_tokens": 77})),
                    "/v1/models" => Play::Json(200, json!({"data": [{"id": real, "owned_by": "llamacpp", "meta": {"n_ctx": window(real), "n_ctx_train": 32768}}]})),
                    "/slots" => Play::Json(200, json!([{"id": 0, "n_ctx": window(real), "is_processing": false}])),
                    _ => Play::Json(404, json!({"error": "not found"})),
                }
            }
            _ => Play::Json(404, json!({"error": "not found"})),
        }
    });
    Swap { fake, running, asleep }
}

impl Swap {
    fn woken(&self) -> Vec<String> {
        self.asleep.lock().unwrap().clone()
    }
}

#[test]
fn a_llama_swap_is_known_and_tells_what_runs() {
    let swap = swap("small");
    let proxy = TestProxy::before(&swap.fake);
    let seen = proxy.get("/windowsill/models").ok().json();
    assert_eq!((&seen["models"][0]["kind"], &seen["models"][1]["kind"]), (&json!("llama-swap"), &json!("llama-swap")));
    let listed = proxy.get("/v1/models").ok().json();
    let of = |id: &str| listed["data"].as_array().unwrap().iter().find(|m| m["id"] == id).unwrap().clone();
    assert_eq!((&of("small")["loaded_context"], &of("org/large")["loaded_context"]), (&json!(4096), &Value::Null));
    for path in ["/windowsill/models", "/v1/models", "/readyz", "/v1/models/big", "/api/tags", "/api/ps"] {
        proxy.get(path);
    }
    assert_eq!((swap.woken(), &**swap.running.lock().unwrap()), (vec![], "small"), "nothing is started by looking");
}

#[test]
fn the_window_behind_a_llama_swap_is_that_of_the_model_that_answers() {
    for stream in [false, true] {
        for model in ["org/large", "big"] {
            for ((path, large), (_, small)) in asks(model, stream).into_iter().zip(asks("small", stream)) {
                let swap = swap("small");
                let proxy = TestProxy::before(&swap.fake);
                for (body, window) in [(&small, "4096"), (&large, "8192"), (&small, "4096"), (&large, "8192")] {
                    let answer = post(&proxy, path, body).ok();
                    assert_eq!(answer.header("x-windowsill-window"), Some(window), "{path} {body}");
                    assert_eq!(answer.header("x-windowsill-window-source"), Some("asked of /props"));
                }
                // A model is started for its request alone, and before that only by its health.
                assert!(swap.woken().iter().all(|asked| asked.ends_with("/health")), "{:?}", swap.woken());
            }
        }
    }
}

#[test]
fn tokens_behind_a_llama_swap_are_counted_by_what_runs() {
    let swap = swap("small");
    let proxy = TestProxy::before(&swap.fake);
    let body = json!({"model": "small", "messages": [{"role": "user", "content": "Hello."}]});
    assert_eq!(post(&proxy, "/v1/messages/count_tokens", &body).ok().json()["input_tokens"], 77);
    assert_eq!(swap.woken(), Vec::<String>::new());
}

/// What a refusal taught of a model is forgotten once it was ended: it may be started with another window.
#[test]
fn a_swap_forgets_what_was_learned() {
    let swap = swap("small");
    let proxy = TestProxy::before(&swap.fake);
    let ask = |model: &str| {
        let (path, body) = asks(model, false).remove(0);
        post(&proxy, path, &body).ok()
    };
    let before = ask("small").header("x-windowsill-window").unwrap().to_owned();
    swap.fake.set(|s| s.window = 1000);
    let mut long = chat().with("model", json!("small")).user("Let us begin.");
    for n in 0..8 {
        long = long.assistant(&prose(n, 1_000)).user(&format!("And item {n}?"));
    }
    proxy.post("/v1/chat/completions", &[], &long.body());
    swap.fake.set(|s| s.window = 100_000);
    ask("big");
    let after = ask("small");
    assert_eq!(after.header("x-windowsill-window"), Some(before.as_str()));
    assert_eq!(after.header("x-windowsill-window-source"), Some("asked of /props"));
}
