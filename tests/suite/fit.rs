//! What the machine can carry: `fit`, `doctor`, and `num_ctx = "fit"` before an Ollama that loads and reloads. The machine
//! is a folder, so that its memory comes and goes as a test wants it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::config::root;
use super::support::*;

/// The model all of this is about: 128 KiB of KV cache a token, about 4.6 GiB of weights.
fn header() -> String {
    root().join("tests/data/llama-3.1-8b.gguf").display().to_string()
}

const GIB: u64 = 1 << 30;

/// A machine with this much RAM free, of 64 GiB.
pub(crate) fn memory(dir: &Path, free: u64) {
    std::fs::create_dir_all(dir.join("machine/proc")).unwrap();
    let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 64 * GIB / 1024, free / 1024);
    std::fs::write(dir.join("machine/proc/meminfo"), text).unwrap();
}

/// What an Ollama has loaded.
#[derive(Default)]
struct Loads {
    /// The window, and how much memory it takes.
    window: Option<u32>,
    /// The `num_ctx` of each load; `None`: its own default.
    history: Vec<Option<u32>>,
    /// It loads no window larger than this.
    most: Option<u32>,
    /// It fails to load one that is asked for.
    fails: bool,
    /// What another model holds (bytes).
    other: u64,
    /// What it finds free on the GPU (bytes): the rest of a model goes to RAM.
    vram: u64,
}

impl Loads {
    /// As a request does, with messages or without.
    fn ask(&mut self, num_ctx: Option<u32>) {
        let wanted = num_ctx.unwrap_or(4096).min(131_072).min(self.most.unwrap_or(u32::MAX));
        if self.window != Some(wanted) {
            self.history.push(num_ctx);
            self.window = Some(wanted);
        }
    }
}

/// An Ollama that loads a model with the window it is asked for.
fn ollama() -> (Fake, Arc<Mutex<Loads>>) {
    let fake = Fake::start(Kind::Ollama, 131_072);
    let loads = Arc::new(Mutex::new(Loads::default()));
    let mine = Arc::clone(&loads);
    let show = json!({
        "modelfile": format!("FROM {}\n", header()), "parameters": "", "template": "", "capabilities": ["completion"],
        "model_info": {"general.architecture": "llama", "llama.context_length": 131_072}, "details": {},
    });
    fake.script(move |seen| {
        let mut loads = mine.lock().unwrap();
        match seen.path() {
            "/api/ps" => {
                let entry = |n: u32| {
                    // What the KV cache takes shows in RAM.
                    let size = 5 * GIB + u64::from(n) * (128 << 10);
                    let vram = size.min(loads.vram);
                    json!({"name": MODEL, "model": MODEL, "digest": "d", "context_length": n, "size": size, "size_vram": vram})
                };
                let other = json!({"name": "other:latest", "digest": "o", "context_length": 4096, "size": loads.other, "size_vram": 0});
                let mut models: Vec<Value> = loads.window.map(entry).into_iter().collect();
                models.extend((loads.other > 0).then_some(other));
                Play::Json(200, json!({"models": models}))
            }
            "/api/show" => Play::Json(200, show.clone()),
            "/api/chat" => {
                let num_ctx = seen.json()["options"]["num_ctx"].as_u64().map(|n| n as u32);
                if loads.fails && num_ctx.is_some() {
                    return Play::Json(500, json!({"error": "model requires more system memory than is available"}));
                }
                loads.ask(num_ctx);
                Play::Usual
            }
            _ => Play::Usual,
        }
    });
    (fake, loads)
}

/// A graphics card with this much free memory.
fn card(dir: &Path, free: u64) {
    let device = dir.join("machine/sys/class/drm/card0/device");
    std::fs::create_dir_all(&device).unwrap();
    let files = [
        ("vendor", "0x1002".to_owned()),
        ("product_name", "Radeon".to_owned()),
        ("mem_info_vram_vendor", "samsung".to_owned()),
        ("mem_info_vram_total", (24 * GIB).to_string()),
        ("mem_info_vram_used", (24 * GIB - free).to_string()),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(device.join(name), text).unwrap());
}

/// A proxy on a machine with a card.
fn with_card(fake: &Fake, free: u64) -> TestProxy {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    memory(dir.path(), 40 * GIB);
    card(dir.path(), free);
    TestProxy::on_machine(dir, &[fake.url()], "[window]\nnum_ctx = 'fit'\n")
}

fn proxy(fake: &Fake, free: u64) -> TestProxy {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    memory(dir.path(), free);
    TestProxy::on_machine(dir, &[fake.url()], "[window]\nnum_ctx = 'fit'\n")
}

fn hello() -> Chat {
    chat().user("Hello!")
}

/// The `num_ctx` of each chat that was forwarded.
fn sent(fake: &Fake) -> Vec<u64> {
    fake.mains().iter().map(|s| s.json()["options"]["num_ctx"].as_u64().unwrap_or(0)).collect()
}

/// The events of changed windows, once there are as many: they are written behind the reply.
fn changes(proxy: &TestProxy, count: usize) -> Vec<Value> {
    let of = |events: &Value| -> Vec<Value> {
        let all = events["events"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|e| e["kind"] == "window_changed").map(|e| e["data"].clone()).collect()
    };
    of(&proxy.eventually("/windowsill/events?since=0", |events| of(events).len() >= count))
}

/// A person has a model loaded, with a window, and given up: what its server is told.
#[test]
fn a_model_is_loaded_and_given_up_when_a_person_asks() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&fake);
    let tell = |what: &str, body: Value| {
        proxy.post(
            &format!("/windowsill/models/{what}"),
            &[("Content-Type", "application/json")],
            body.to_string().as_bytes(),
        )
    };
    let model = proxy.get("/windowsill/models").ok().json()["models"][0].clone();
    assert!(model["can_be_told"] == true && model["takes_window"] == true, "{model}");
    let done = tell("load", json!({"model": MODEL, "num_ctx": 24_576})).ok().json();
    assert_eq!((&done["model"], &done["loaded"]), (&json!(MODEL), &json!(true)));
    let last = || fake.all().iter().rev().find(|seen| seen.path() == "/api/chat").unwrap().json();
    let asked = last();
    assert_eq!((&asked["messages"], &asked["options"]["num_ctx"]), (&json!([]), &json!(24_576)), "{asked}");
    tell("unload", json!({"model": MODEL})).ok();
    let asked = last();
    assert_eq!((&asked["messages"], &asked["keep_alive"]), (&json!([]), &json!(0)), "{asked}");
    assert_eq!(tell("load", json!({"model": MODEL, "num_ctx": 0})).status, 400);
    assert_eq!(tell("load", json!({"model": MODEL, "upstream": "nowhere"})).status, 404);
    // Not under the hands of a client.
    let gate = Gate::default();
    let held_back = gate.clone();
    fake.script(move |seen| match seen.is_main() && seen.json()["messages"] != json!([]) {
        true => Play::Wait(held_back.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let mut conn = proxy.begin(&chat().user("Take your time."));
    fake.wait("a held request", |all| all.last().is_some_and(|s| s.json().to_string().contains("Take your")));
    assert_eq!(tell("unload", json!({"model": MODEL})).error().0, "busy");
    gate.open();
    conn.answer().ok();
    // A server that has one model for good is left alone.
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let refused = proxy.post(
        "/windowsill/models/load",
        &[("Content-Type", "application/json")],
        json!({"model": MODEL}).to_string().as_bytes(),
    );
    assert_eq!(refused.error().0, "not_here");
}

/// Copies of a model that are loaded: the id of each, and its window.
type Copies = Arc<Mutex<Vec<(String, u32)>>>;

/// LM Studio with one model: the copies that are loaded, each with its window (docs: REST API v1).
fn lm_studio() -> (Fake, Copies) {
    let fake = Fake::start(Kind::OpenAi, 4096);
    let copies = Copies::default();
    let held = Arc::clone(&copies);
    fake.script(move |seen| {
        let mut copies = held.lock().unwrap();
        match (seen.method.as_str(), seen.path()) {
            ("GET", "/api/v1/models") => {
                let copy = |(id, window): &(String, u32)| json!({"id": id, "config": {"context_length": window}});
                let loaded: Vec<Value> = copies.iter().map(copy).collect();
                Play::Json(200, json!({"models": [{"type": "llm", "key": MODEL, "max_context_length": 32_768, "loaded_instances": loaded}]}))
            }
            ("POST", "/api/v1/models/load") => {
                let asked = seen.json();
                assert_eq!(asked["model"], MODEL, "{asked}");
                let id = if copies.is_empty() { MODEL.to_owned() } else { format!("{MODEL}:{}", copies.len() + 1) };
                copies.push((id.clone(), asked["context_length"].as_u64().unwrap_or(4096) as u32));
                Play::Json(200, json!({"type": "llm", "instance_id": id, "load_time_seconds": 1.5, "status": "loaded"}))
            }
            ("POST", "/api/v1/models/unload") => {
                let id = seen.json()["instance_id"].clone();
                let before = copies.len();
                copies.retain(|(copy, _)| id != copy.as_str());
                match copies.len() < before {
                    true => Play::Json(200, json!({"instance_id": id})),
                    false => Play::Json(404, json!({"error": {"message": "no such instance", "type": "model_not_found"}})),
                }
            }
            _ => Play::Usual,
        }
    });
    (fake, copies)
}

#[test]
fn lm_studio_loads_a_model_with_a_window_and_gives_it_up() {
    let (fake, copies) = lm_studio();
    let proxy = TestProxy::before(&fake);
    let tell = |what: &str, body: Value| {
        let json = [("Content-Type", "application/json")];
        proxy.post(&format!("/windowsill/models/{what}"), &json, body.to_string().as_bytes())
    };
    let now = || copies.lock().unwrap().clone();
    let named = |window| vec![(MODEL.to_owned(), window)];
    let model = proxy.get("/windowsill/models").ok().json()["models"][0].clone();
    assert!(model["can_be_told"] == true && model["takes_window"] == true, "{model}");
    tell("load", json!({"model": MODEL})).ok();
    assert_eq!(now(), named(4096));
    // What is loaded already is not loaded twice, and another window takes its place.
    tell("load", json!({"model": MODEL})).ok();
    tell("load", json!({"model": MODEL, "num_ctx": 4096})).ok();
    assert_eq!(now(), named(4096));
    tell("load", json!({"model": MODEL, "num_ctx": 24_576})).ok();
    assert_eq!(now(), named(24_576));
    // One of several copies by its own name, and all of them by the model's.
    copies.lock().unwrap().push((format!("{MODEL}:2"), 8192));
    tell("unload", json!({"model": format!("{MODEL}:2")})).ok();
    assert_eq!(now(), named(24_576));
    copies.lock().unwrap().push((format!("{MODEL}:2"), 8192));
    tell("unload", json!({"model": MODEL})).ok();
    assert_eq!(now(), []);
    // An older LM Studio has no such paths: its answer is told.
    fake.script(|seen| match seen.path() {
        "/api/v1/models" => Play::Json(404, json!({"error": "Unexpected endpoint"})),
        "/api/v0/models" => {
            Play::Json(200, json!({"data": [{"id": MODEL, "state": "not-loaded", "max_context_length": 32_768}]}))
        }
        "/api/v1/models/load" => Play::Json(404, json!({"error": {"message": "Unexpected endpoint"}})),
        _ => Play::Usual,
    });
    assert!(tell("load", json!({"model": MODEL})).status >= 400);
}

#[test]
fn a_window_that_clients_ask_for_is_one_for_all_of_them() {
    let (fake, loads) = ollama();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    memory(dir.path(), 40 * GIB);
    let left = TestProxy::on_machine(dir, &[fake.url()], "");
    let ask = |proxy: &TestProxy, num_ctx: Option<u32>| {
        let options = num_ctx.map_or(json!({"top_k": 3}), |n| json!({"num_ctx": n, "top_k": 3}));
        let answer = proxy.chat(&hello().with("options", options)).ok();
        (
            answer.header("x-windowsill-window").unwrap().to_owned(),
            answer.header("x-windowsill-window-source").unwrap().to_owned(),
        )
    };
    let (window, source) = ask(&left, Some(16_384));
    assert_eq!((window.as_str(), source.as_str()), ("16384", "set as a client asked, confirmed by /api/ps"));
    // Less, and nothing said, load nothing anew: the prompt fits what is there.
    for num_ctx in [None, Some(8192), Some(16_384), Some(0)] {
        assert_eq!(ask(&left, num_ctx).0, "16384", "{num_ctx:?}");
    }
    assert_eq!(ask(&left, Some(32_768)).0, "32768");
    assert_eq!(ask(&left, Some(16_384)).0, "32768");
    assert_eq!(loads.lock().unwrap().history, [Some(16_384), Some(32_768)]);
    assert_eq!(sent(&fake), [16_384, 16_384, 16_384, 16_384, 16_384, 32_768, 32_768]);

    // Where the settings say what it is to be, they count.
    let (fake, loads) = ollama();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    memory(dir.path(), 40 * GIB);
    let set = TestProxy::on_machine(dir, &[fake.url()], "[window]\nnum_ctx = 8192\n");
    assert_eq!(ask(&set, Some(32_768)).0, "8192");
    assert_eq!(loads.lock().unwrap().history, [Some(8192)]);
    assert_eq!(sent(&fake), [8192]);
}

#[test]
fn fit_sends_one_window_while_memory_comes_and_goes() {
    let (fake, loads) = ollama();
    let proxy = proxy(&fake, 20 * GIB);
    let first = proxy.chat(&hello()).ok();
    let window: u64 = first.header("x-windowsill-window").unwrap().parse().unwrap();
    // 20 GiB less 8 % of 64, less weights: a multiple of 256 that fits, and no multiple more.
    assert!(window.is_multiple_of(256) && (40_000..90_000).contains(&window), "{window}");
    let source = first.header("x-windowsill-window-source").unwrap();
    assert!(source.contains("fit: 256 tokens more would need") && source.contains("confirmed by /api/ps"), "{source}");
    for (turn, free) in [18, 30, 12, 9, 60, 20].into_iter().enumerate() {
        memory(proxy.dir.path(), free * GIB);
        proxy.chat(&hello().assistant("Hi.").user(&format!("And {turn}?"))).ok();
    }
    assert!(sent(&fake).iter().all(|n| *n == window), "{:?}", sent(&fake));
    assert_eq!(loads.lock().unwrap().history, [Some(window as u32)], "loaded once");
    assert_eq!(changes(&proxy, 0), Vec::<Value>::new());

    // Unloaded, memory as it was: the same again, though a little less is free.
    loads.lock().unwrap().window = None;
    memory(proxy.dir.path(), 20 * GIB - 200 * (1 << 20));
    proxy.chat(&hello().user("Still there?")).ok();
    assert_eq!(loads.lock().unwrap().history, [Some(window as u32); 2]);
    // Unloaded, and much less is free: decided anew.
    loads.lock().unwrap().window = None;
    memory(proxy.dir.path(), 14 * GIB);
    let less = proxy.chat(&hello().user("And now?")).ok();
    let less: u64 = less.header("x-windowsill-window").unwrap().parse().unwrap();
    assert!(less < window / 2 && less.is_multiple_of(256), "{less} after {window}");
    assert_eq!(*sent(&fake).last().unwrap(), less);
    let told = changes(&proxy, 1);
    assert_eq!((told.len(), &told[0]["was"], &told[0]["window"]), (1, &json!(window), &json!(less)), "{told:?}");
}

#[test]
fn another_programs_window_is_noticed_before_the_next_request() {
    let (fake, loads) = ollama();
    let proxy = proxy(&fake, 20 * GIB);
    let window = proxy.chat(&hello()).ok().header("x-windowsill-window").unwrap().to_owned();
    let ours: u32 = window.parse().unwrap();

    loads.lock().unwrap().ask(Some(2048));
    let reply = proxy.chat(&hello().user("Again?")).ok();
    assert_eq!(reply.header("x-windowsill-window").unwrap(), window);
    assert_eq!(loads.lock().unwrap().window, Some(ours));
    let told = changes(&proxy, 1);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["was"], &told[0]["found"], &told[0]["window"]), (&json!(ours), &json!(2048), &json!(ours)));
    assert!(told[0]["why"].as_str().unwrap().contains("another program"), "{told:?}");

    // It insists: it is let be, and nothing is loaded back and forth.
    loads.lock().unwrap().ask(Some(2048));
    let before = loads.lock().unwrap().history.len();
    for n in 0..3 {
        let reply = proxy.chat(&hello().user(&format!("And {n}?"))).ok();
        assert_eq!(reply.header("x-windowsill-window").unwrap(), "2048");
    }
    assert_eq!(loads.lock().unwrap().history.len(), before);
    assert_eq!(*sent(&fake).last().unwrap(), 2048);
    assert_eq!(changes(&proxy, 2).len(), 2);

    let models = proxy.get("/windowsill/models").json();
    let model = &models["models"][0];
    assert_eq!(
        (&model["window"], &model["trained"], &model["source"]),
        (&json!(2048), &json!(131_072), &json!("/api/ps"))
    );
    assert_eq!((&model["num_ctx"]["asked"], &model["num_ctx"]["decided"]), (&json!("fit"), &json!(ours)));
    assert!(model["affordable"]["num_ctx"].as_u64().unwrap() > 8192, "{model}");
    assert!(model["memory"]["because"][0].as_str().unwrap().starts_with("RAM: "), "{model}");
}

#[test]
fn a_server_that_can_do_less_than_asked_is_believed() {
    let (fake, loads) = ollama();
    loads.lock().unwrap().most = Some(16_384);
    let proxy = proxy(&fake, 20 * GIB);
    for n in 0..3 {
        let reply = proxy.chat(&hello().user(&format!("{n}"))).ok();
        assert_eq!(reply.header("x-windowsill-window").unwrap(), "16384");
    }
    assert_eq!(loads.lock().unwrap().history.len(), 1);
    let told = changes(&proxy, 1);
    assert_eq!((told.len(), &told[0]["window"]), (1, &json!(16_384)), "{told:?}");
    assert!(told[0]["why"].as_str().unwrap().contains("smaller window than was asked for"), "{told:?}");
}

#[test]
fn a_window_that_spilled_to_ram_is_lowered_once_and_told() {
    let (fake, loads) = ollama();
    loads.lock().unwrap().vram = 12 * GIB;
    let proxy = with_card(&fake, 16 * GIB);
    let reply = proxy.chat(&hello()).ok();
    let window: u32 = reply.header("x-windowsill-window").unwrap().parse().unwrap();
    let history = loads.lock().unwrap().history.clone();
    let [Some(first), Some(second)] = history[..] else { panic!("{history:?}") };
    assert!(second == window && second < first && second > first / 2, "{history:?}");
    // 12 GiB, less 5 of weights: 128 KiB a token. What always stays in RAM is not counted against it.
    assert!((50_000..64_000).contains(&window), "{window}");
    let told = changes(&proxy, 1);
    assert_eq!((&told[0]["was"], &told[0]["window"]), (&json!(first), &json!(window)), "{told:?}");
    let why = told[0]["why"].as_str().unwrap();
    assert!(why.contains("were to fit the GPU, but the server put") && why.contains("instead"), "{why}");

    // Loaded again, it is the same window again, whatever fits by the numbers.
    loads.lock().unwrap().window = None;
    proxy.chat(&hello().user("Again?")).ok();
    assert_eq!(loads.lock().unwrap().history[2..], [Some(window)]);
    // Still less is free: told, and not lowered a second time.
    (loads.lock().unwrap().window, loads.lock().unwrap().vram) = (None, 9 * GIB);
    proxy.chat(&hello().user("And now?")).ok();
    proxy.chat(&hello().user("And now?").assistant("Yes.").user("Well?")).ok();
    assert_eq!(loads.lock().unwrap().history[3..], [Some(window)]);
    let told = changes(&proxy, 2);
    assert!(told.len() == 2 && told[1]["why"].as_str().unwrap().contains("lowered before"), "{told:?}");

    // All of it on the GPU: nothing to tell.
    let (fake, loads) = ollama();
    loads.lock().unwrap().vram = 64 * GIB;
    let proxy = with_card(&fake, 16 * GIB);
    proxy.chat(&hello()).ok();
    assert_eq!((loads.lock().unwrap().history.len(), changes(&proxy, 0).len()), (1, 0));
}

#[test]
fn requests_at_once_decide_once() {
    let (fake, loads) = ollama();
    let proxy = proxy(&fake, 20 * GIB);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let proxy = &proxy;
            scope.spawn(move || {
                memory(proxy.dir.path(), (20 - n % 3) * GIB);
                proxy.chat(&hello().user(&format!("{n}"))).ok();
            });
        }
    });
    assert_eq!(loads.lock().unwrap().history.len(), 1, "{:?}", loads.lock().unwrap().history);
    assert!(sent(&fake).windows(2).all(|two| two[0] == two[1]), "{:?}", sent(&fake));
}

#[test]
fn a_load_that_fails_falls_back_to_what_the_server_does_by_itself() {
    let (fake, loads) = ollama();
    loads.lock().unwrap().fails = true;
    let proxy = proxy(&fake, 20 * GIB);
    for n in 0..3 {
        let reply = proxy.chat(&hello().user(&format!("{n}"))).ok();
        assert_eq!(reply.header("x-windowsill-window").unwrap(), "4096");
        let source = reply.header("x-windowsill-window-source").unwrap();
        assert!(source.contains("`fit` has no effect: the server could not load it"), "{source}");
    }
    assert_eq!(loads.lock().unwrap().history, [None], "and it is not tried again and again");
    assert_eq!(sent(&fake), [0, 0, 0]);
}

#[test]
fn what_ollamas_other_models_hold_is_counted_only_where_it_must_be() {
    let (fake, loads) = ollama();
    loads.lock().unwrap().other = 10 * GIB;
    // Beside the other model this one does not fit; without it, it does.
    let proxy = proxy(&fake, 8 * GIB);
    let reply = proxy.chat(&hello()).ok();
    let window: u64 = reply.header("x-windowsill-window").unwrap().parse().unwrap();
    assert!(window > 8192, "{window}");
    let models = proxy.get("/windowsill/models").json();
    let because = models["models"][0]["num_ctx"]["because"].as_str().unwrap();
    assert!(because.contains("what other models hold counts as free"), "{models}");
    // With room enough beside it, it is left alone.
    let (fake, loads) = ollama();
    loads.lock().unwrap().other = 10 * GIB;
    let roomy = TestProxy::on_machine(
        {
            let dir = Arc::new(tempfile::tempdir().unwrap());
            memory(dir.path(), 20 * GIB);
            dir
        },
        &[fake.url()],
        "[window]\nnum_ctx = 'fit'\n",
    );
    roomy.chat(&hello()).ok();
    let models = roomy.get("/windowsill/models").json();
    assert!(!models.to_string().contains("what other models hold counts as free"), "{models}");
}

#[test]
fn where_it_cannot_be_fitted_the_loaded_window_counts_and_the_reason_is_told() {
    let dir = || {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        memory(dir.path(), 20 * GIB);
        dir
    };
    let toml = "[window]\nnum_ctx = 'fit'\n";
    let llama = Fake::start(Kind::LlamaServer, 4096);
    let reply = TestProxy::on_machine(dir(), &[llama.url()], toml).chat(&hello()).ok();
    assert_eq!(reply.header("x-windowsill-window").unwrap(), "4096");
    let source = reply.header("x-windowsill-window-source").unwrap();
    assert!(
        source.starts_with("asked of /props; `fit` has no effect: a llama-server takes its window at its start"),
        "{source}"
    );

    // The model's file is nowhere here.
    let unknown = Fake::start(Kind::Ollama, 4096);
    let reply = TestProxy::on_machine(dir(), &[unknown.url()], toml).chat(&hello()).ok();
    assert_eq!(reply.header("x-windowsill-window").unwrap(), "4096");
    let source = reply.header("x-windowsill-window-source").unwrap();
    assert!(source.contains("`fit` has no effect: the server does not say where the model's file is"), "{source}");
    assert_eq!(sent(&unknown), [0], "no num_ctx is sent");

    // Not even the weights fit.
    let (fake, loads) = ollama();
    let small = Arc::new(tempfile::tempdir().unwrap());
    memory(small.path(), 6 * GIB);
    let reply = TestProxy::on_machine(small, &[fake.url()], toml).chat(&hello()).ok();
    assert!(reply.header("x-windowsill-window-source").unwrap().contains("not even 256 tokens fit"));
    assert_eq!(loads.lock().unwrap().history, [None]);
}

fn document(out: &std::process::Output) -> Value {
    let said = String::from_utf8_lossy(&out.stderr);
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{said}", String::from_utf8_lossy(&out.stdout)))
}

#[test]
fn fit_answers_for_a_header_alone() {
    let dir = tempfile::tempdir().unwrap();
    memory(dir.path(), 20 * GIB);
    let run = |args: &[&str]| cli_on_machine(dir.path(), &[&["fit", &header()], args].concat());
    let answer = document(&run(&["--json", "--ctx", "8192", "--ctx", "131072"]));
    let keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["model", "arch", "trained", "rows", "num_ctx"]);
    assert_eq!((&answer["arch"], &answer["trained"]), (&json!("llama"), &json!(131_072)));
    let row = &answer["rows"][0];
    let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
    let wanted = [
        "n_ctx",
        "weights_bytes",
        "kv_bytes",
        "state_bytes",
        "compute_bytes",
        "output_bytes",
        "total_bytes",
        "source",
        "fits",
    ];
    assert_eq!(keys, wanted);
    assert_eq!((&row["n_ctx"], &row["kv_bytes"], &row["fits"]), (&json!(8192), &json!(GIB), &json!(true)));
    assert_eq!((&answer["rows"][1]["kv_bytes"], &answer["rows"][1]["fits"]), (&json!(16 * GIB), &json!(false)));
    let sum: u64 = wanted[1..6].iter().map(|key| row[*key].as_u64().unwrap()).sum();
    assert_eq!(row["total_bytes"], json!(sum));
    assert_eq!(answer["num_ctx"]["gpu"], Value::Null);
    let best = answer["num_ctx"]["gpu_and_ram"].as_u64().unwrap();
    assert!(best.is_multiple_of(256) && (40_000..90_000).contains(&best), "{best}");

    // The answer is the edge: it fits, and the next step does not.
    let edge = document(&run(&["--json", "--ctx", &best.to_string(), "--ctx", &(best + 256).to_string()]));
    assert_eq!((&edge["rows"][0]["fits"], &edge["rows"][1]["fits"]), (&json!(true), &json!(false)));

    // Keys and values of their own type; slots; a budget somebody names.
    let q8 = document(&run(&["--json", "--ctx", "8192", "--kv-type", "q8_0"]));
    assert_eq!(q8["rows"][0]["kv_bytes"], json!(GIB / 64 * 34));
    let given = document(&run(&["--json", "--memory", "24GiB", "--gpu-layers", "all"]));
    let gpu = given["num_ctx"]["gpu"].as_u64().unwrap();
    assert!(gpu > 100_000, "{given}");
    let none = document(&run(&["--json", "--gpu-layers", "all", "--ctx", "4096"]));
    assert_eq!(none["num_ctx"]["gpu"], Value::Null, "{none}");
    let small = document(&run(&["--json", "--memory", "1GiB"]));
    assert_eq!(small["num_ctx"]["gpu_and_ram"], Value::Null);
    assert!(small["num_ctx"]["because"].as_str().unwrap().contains("not even 256 tokens fit"), "{small}");

    let page = run(&["--ctx", "8192"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("8192") && page.contains("1.0 GiB") && page.contains("\nnum_ctx: "), "{page}");
}

#[test]
fn fit_finds_a_served_model_and_says_what_it_cannot_do() {
    let (fake, loads) = ollama();
    let dir = tempfile::tempdir().unwrap();
    memory(dir.path(), 20 * GIB);
    let url = fake.url();
    let run = |args: &[&str]| cli_on_machine(dir.path(), &[&["fit"], args, &["--upstream", &url]].concat());
    let answer = document(&run(&[MODEL, "--json", "--ctx", "8192"]));
    // Without a GPU Ollama leaves flash attention off; the cache of this model is the same.
    assert_eq!((&answer["model"], &answer["rows"][0]["kv_bytes"]), (&json!(MODEL), &json!(GIB)));
    assert!(loads.lock().unwrap().history.is_empty(), "nothing is loaded for it");
    let code = |out: &std::process::Output| out.status.code();
    let unknown = run(&["no-such-model"]);
    assert_eq!(code(&unknown), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no-such-model"));
    let broken = dir.path().join("x.gguf");
    std::fs::write(&broken, "not a model").unwrap();
    assert_eq!(code(&run(&[broken.to_str().unwrap()])), Some(1));
    for bad in [
        &["--kv-type", "q4_k"][..],
        &["--memory", "much"],
        &["--gpu-layers", "some"],
        &["--ctx", "0"],
        &["--method", "guess"],
        &["--parallel", "0"],
    ] {
        assert_eq!(code(&run(&[&[header().as_str()], bad].concat())), Some(2), "{bad:?}");
    }
}

#[test]
fn doctor_says_what_is_wrong_and_how_to_fix_it() {
    let (fake, _) = ollama();
    let dir = tempfile::tempdir().unwrap();
    memory(dir.path(), 20 * GIB);
    let run = |args: &[&str]| cli_on_machine(dir.path(), &[&["doctor"], args].concat());
    let with = ["--json", "--upstream", &fake.url()];
    let report = document(&run(&with));
    assert_eq!(report["ok"], true, "{report}");
    let server = &report["servers"][0];
    assert_eq!((&server["kind"], &server["version"]), (&json!("ollama"), &json!("0.13.0")));
    assert_eq!(server["models"][0]["trained"], 131_072);
    assert!(server["models"][0]["affordable"]["num_ctx"].as_u64().unwrap() > 8192);
    assert_eq!(report["machine"]["ram"]["free_bytes"], json!(20 * GIB));
    let problem = |report: &Value, word: &str| {
        let all = report["problems"].as_array().unwrap();
        let found = all.iter().find(|p| p["message"].as_str().unwrap().contains(word));
        found.cloned().unwrap_or_else(|| panic!("no problem says `{word}`: {report}"))
    };
    let small = problem(&report, "4,096");
    assert!(small["fix"].as_str().unwrap().contains("num_ctx = \"fit\""), "{small}");
    // With `fit` it is settled.
    let settled = document(&run(&["--json", "--upstream", &fake.url(), "--num-ctx", "fit"]));
    assert!(!settled.to_string().contains("4,096"), "{settled}");

    let page = run(&["--upstream", &fake.url()]);
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(text.contains("fix: ") && text.contains("20.0 GiB free of 64.0 GiB") && text.contains("131,072"), "{text}");

    // Broken: nobody answers; a port that is taken; a config that cannot be used.
    let gone = format!("http://{}", Fake::absent());
    let out = run(&["--json", "--upstream", &gone]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(problem(&document(&out), "does not answer")["severity"], "broken");
    std::fs::write(dir.path().join("config.toml"), format!("listen = \"{}\"\n", fake.address)).unwrap();
    let out = run(&with);
    assert_eq!(
        (out.status.code(), &problem(&document(&out), "another program listens")["severity"]),
        (Some(1), &json!("broken"))
    );
    let other = TestProxy::before(&fake);
    std::fs::write(dir.path().join("config.toml"), format!("listen = \"{}\"\n", other.address)).unwrap();
    let out = run(&with);
    assert_eq!(
        (out.status.code(), &problem(&document(&out), "a windowsill is running")["severity"]),
        (Some(0), &json!("note"))
    );
    std::fs::write(dir.path().join("config.toml"), "listenn = 3\n[context]\nclear_at = 7\n").unwrap();
    let out = run(&with);
    assert_eq!(out.status.code(), Some(1));
    let report = document(&out);
    assert!(problem(&report, "listenn")["fix"].as_str().unwrap().contains("listen"), "{report}");
    problem(&report, "clear_at");
}

#[test]
fn doctor_knows_slots_that_divide_a_window() {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    let file = header();
    fake.script(move |seen| match seen.path() {
        "/props" => Play::Json(
            200,
            json!({"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2, "build_info": "b11434-x",
                "model_path": file, "chat_template": "", "modalities": {}}),
        ),
        _ => Play::Usual,
    });
    let dir = tempfile::tempdir().unwrap();
    memory(dir.path(), 40 * GIB);
    let report = document(&cli_on_machine(dir.path(), &["doctor", "--json", "--upstream", &fake.url()]));
    let text = report["problems"].to_string();
    assert!(text.contains("2 slots divide the window") && text.contains("-np 1"), "{text}");
    assert!(text.contains("start the server with -c "), "{text}");
    assert_eq!(report["servers"][0]["version"], "b11434-x");
}
