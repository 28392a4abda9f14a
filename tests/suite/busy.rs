//! Nobody waits for what is not theirs: not for another's large request, nor in line for a silent server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::*;

/// The proxy on one thread: whatever keeps it busy there keeps everybody waiting.
struct OneThread {
    address: std::net::SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl OneThread {
    fn before(fake: &Fake, dir: &std::path::Path) -> OneThread {
        let file = dir.join("config.toml");
        let toml = format!("listen = \"127.0.0.1:0\"\n[[upstream]]\nname = \"up0\"\nurl = \"{}\"\n", fake.url());
        std::fs::write(&file, toml).unwrap();
        let flags = windowsill::config::Flags {
            config: Some(file),
            data_dir: Some(dir.join("data")),
            ..windowsill::config::Flags::default()
        };
        let environment =
            windowsill::config::Environment { cwd: dir.to_owned(), ..windowsill::config::Environment::default() };
        let config = windowsill::config::load_from(&flags, &environment).unwrap_or_else(|p| panic!("{p:?}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Arc::new(runtime.block_on(windowsill::proxy::App::start(config)).unwrap().0);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                let shutdown = async {
                    let _ = stopped.await;
                };
                windowsill::server::run(listener, Arc::clone(&app), shutdown).await.unwrap();
                app.close().await;
            });
        });
        OneThread { address, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for OneThread {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

/// A request with a result of megabytes, whose preview takes a while to make.
fn huge() -> Chat {
    let lines: Vec<String> = (0..60_000).map(|n| format!("{n} {}", prose(n % 97, 60))).collect();
    chat().system("You are a helpful assistant.").user("Read it.").step(1, &lines.join("\n")).step(2, &prose(7, 900))
}

#[test]
fn a_large_request_keeps_nobody_waiting() {
    let fake = Fake::start(Kind::OpenAi, 8192);
    let dir = tempfile::tempdir().unwrap();
    let proxy = OneThread::before(&fake, dir.path());
    // The window is known, and the connection warm.
    let small = chat().user("hi").body();
    let kind = [("Content-Type", "application/json")];
    assert_eq!(request(proxy.address, "POST", "/v1/chat/completions", &kind, &small).status, 200);
    let over = Arc::new(AtomicBool::new(false));
    let mut conn = Conn::open(proxy.address);
    conn.send("POST", "/v1/chat/completions", &kind, &huge().body());
    let (begun, ended) = (Instant::now(), Arc::clone(&over));
    let waiting = std::thread::spawn(move || {
        let answer = conn.answer();
        ended.store(true, Ordering::SeqCst);
        (answer, begun.elapsed())
    });
    let mut longest = Duration::ZERO;
    let mut answered = 0;
    while !over.load(Ordering::SeqCst) {
        let asked = Instant::now();
        assert_eq!(request(proxy.address, "GET", "/healthz", &[], b"").status, 200);
        longest = longest.max(asked.elapsed());
        answered += 1;
    }
    let (answer, took) = waiting.join().unwrap();
    assert!(answer.ok().whole);
    assert!(answered >= 5, "{answered} answers within {took:?}");
    assert!(longest * 3 < took, "an answer took {longest:?}, the large request {took:?}");
}

#[test]
fn a_silent_server_is_waited_for_once() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |_| Play::Wait(held.clone(), Box::new(Play::Usual)));
    let proxy = TestProxy::before(&fake);
    let begun = Instant::now();
    let one = |_| proxy.begin(&chat().user("hi"));
    let answers: Vec<(u16, Duration)> =
        (0..6).map(one).collect::<Vec<_>>().into_iter().map(|mut c| (c.answer().status, begun.elapsed())).collect();
    gate.open();
    let (first, last) = (answers[0].1, answers[5].1);
    assert!(answers.iter().all(|(status, _)| *status >= 500), "{answers:?}");
    // In single file, each would wait as long again. What start-up learned may answer all of them at once.
    assert!(last < first * 2 + Duration::from_millis(500), "{answers:?}");
    let probes = fake.all().iter().filter(|seen| seen.path() == "/props").count();
    assert!(probes <= 3, "{probes} probes for 6 requests: {}", json!(answers.len()));
}

#[cfg(unix)]
#[test]
fn a_model_that_is_a_named_pipe_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for args in [["fit", pipe.to_str().unwrap()].as_slice(), &["serve", "--model", pipe.to_str().unwrap()]] {
        let done = cli(dir.path(), args);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains("model.gguf"), "{args:?}: {said}");
    }
    // A server that says so of its model is believed no more.
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let path = pipe.to_str().unwrap().to_owned();
    fake.script(move |seen| match seen.path() {
        "/props" => Play::Json(
            200,
            json!({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "build_info": "b1-x", "model_path": path}),
        ),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().user("hi")).ok();
}
