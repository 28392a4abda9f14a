//! Scripted inference servers. Each records what it gets, answers as its kind does, and can be told to misbehave.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chat::{MODEL, text, tokens};
use super::http::PATIENCE;

/// Which server a fake plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `/props`, `/slots`, `/v1/models` with meta, a token count.
    LlamaServer,
    /// The native API; `/api/ps` tells the window.
    Ollama,
    /// `/v1/models` that says nothing of any window; no count.
    OpenAi,
    /// `max_model_len`, `/tokenize`.
    Vllm,
}

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Which connection it came on, from 0.
    pub(crate) connection: usize,
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    role: Role,
}

impl Seen {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or("")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn messages(&self) -> Vec<Value> {
        self.json()["messages"].as_array().cloned().unwrap_or_default()
    }

    /// A summary that the proxy asks for on its own.
    pub(crate) fn is_summary(&self) -> bool {
        self.role == Role::Summary
    }

    /// A chat request of the client's.
    pub(crate) fn is_main(&self) -> bool {
        self.role == Role::Main
    }

    fn asks_for_one_token(&self) -> bool {
        let body = self.json();
        body["stream"] == false && (body["max_tokens"] == 1 || body["options"]["num_predict"] == 1)
    }

    fn role_of(&self) -> Role {
        let path = matches!(self.path(), "/v1/chat/completions" | "/chat/completions" | "/api/chat");
        if self.method != "POST" || !path {
            return Role::Other;
        }
        match self.messages().last() {
            // Ollama loads a model by a chat without messages.
            None if self.path() == "/api/chat" => Role::Other,
            Some(m) if text(m).contains("write a handoff summary") => Role::Summary,
            // A prompt sent ahead, to be evaluated.
            Some(_) if self.asks_for_one_token() => Role::Other,
            _ => Role::Main,
        }
    }
}

/// What a request is for; looked at once, when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Main,
    Summary,
    Other,
}

/// What a server does with a request.
#[derive(Clone)]
pub(crate) enum Play {
    /// What its kind does.
    Usual,
    Json(u16, Value),
    /// These bytes, one write each; the connection stays open.
    Pieces(Vec<Vec<u8>>),
    /// These bytes, then the connection is cut.
    Cut(Vec<u8>),
    /// Nothing happens until the gate opens or the other side hangs up; then this.
    Wait(Gate, Box<Play>),
    /// These bytes, then as [`Play::Wait`].
    Then(Vec<u8>, Gate, Box<Play>),
}

/// Something that happens once.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap()
    }
}

type Hook = Arc<dyn Fn(&Seen) -> Play + Send + Sync>;

/// What can be changed while it runs.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The window it really has.
    pub(crate) window: u32,
    /// How many requests it says it works on at once.
    pub(crate) slots: u32,
    /// The window it says that it has.
    pub(crate) says: u32,
    pub(crate) model: String,
    /// How many parameters it says that its model has.
    pub(crate) parameters: Option<u64>,
    /// What it answers when a summary is asked for.
    pub(crate) summary: String,
    /// What it answers otherwise.
    pub(crate) reply: String,
    /// Whether its template writes the calls of tools, as SmolLM2's does not.
    pub(crate) writes_calls: bool,
    /// The path before all of its paths; nothing is below others.
    pub(crate) prefix: String,
}

struct Shared {
    kind: Kind,
    seen: Mutex<Vec<Seen>>,
    hung_up: Mutex<Vec<usize>>,
    changed: Condvar,
    hook: Mutex<Hook>,
    settings: Mutex<Settings>,
    stopping: AtomicBool,
}

/// A running fake.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

/// A summary as a good model writes it.
pub(crate) const SUMMARY: &str = "## Goal\nRepair the ingest service so that the build passes again.\n\
    ## Current state\nModules were read one at a time; the flush path is repaired and MARKER-SUMMARY holds.\n\
    ## Exact next steps\nRead the next part and run the build.";

impl Fake {
    pub(crate) fn start(kind: Kind, window: u32) -> Fake {
        Fake::on(TcpListener::bind("127.0.0.1:0").unwrap(), kind, window)
    }

    pub(crate) fn on(listener: TcpListener, kind: Kind, window: u32) -> Fake {
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            window,
            slots: 1,
            says: window,
            model: MODEL.into(),
            parameters: None,
            summary: SUMMARY.into(),
            reply: "Done; what is next?".into(),
            writes_calls: true,
            prefix: String::new(),
        };
        let shared = Arc::new(Shared {
            kind,
            seen: Mutex::default(),
            hung_up: Mutex::default(),
            changed: Condvar::new(),
            hook: Mutex::new(Arc::new(|_: &Seen| Play::Usual)),
            settings: Mutex::new(settings),
            stopping: AtomicBool::new(false),
        });
        let mine = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().flatten().enumerate() {
                if mine.stopping.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&mine);
                std::thread::spawn(move || serve(connection, stream, &shared));
            }
        });
        Fake { address, shared }
    }

    /// An address where nobody listens, and nobody will but the test that asked for it: the system gives ports of this range to no
    /// connection and to no listener that takes whatever is free (Linux from 32,768 on, others from 49,152 on).
    pub(crate) fn absent() -> SocketAddr {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let free = || {
            let port = 21_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
            TcpListener::bind(("127.0.0.1", port)).ok()?.local_addr().ok()
        };
        std::iter::repeat_with(free).take(10_000).flatten().next().expect("a free port")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Decides what happens with each request from now on.
    pub(crate) fn script(&self, hook: impl Fn(&Seen) -> Play + Send + Sync + 'static) {
        *self.shared.hook.lock().unwrap() = Arc::new(hook);
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.settings.lock().unwrap());
    }

    fn log(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.shared.seen.lock().unwrap()
    }

    /// The client's chat requests as forwarded.
    pub(crate) fn mains(&self) -> Vec<Seen> {
        self.log().iter().filter(|s| s.is_main()).cloned().collect()
    }

    pub(crate) fn last(&self) -> Seen {
        self.log().iter().rev().find(|s| s.is_main()).cloned().expect("a request was forwarded")
    }

    /// Those after the first `n`.
    pub(crate) fn since(&self, n: usize) -> Vec<Seen> {
        self.log().iter().filter(|s| s.is_main()).skip(n).cloned().collect()
    }

    /// How many of those there were.
    pub(crate) fn count(&self) -> usize {
        self.log().iter().filter(|s| s.is_main()).count()
    }

    pub(crate) fn summaries(&self) -> Vec<Seen> {
        self.log().iter().filter(|s| s.is_summary()).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.log().clone()
    }

    /// How many requests there were, of whatever kind.
    pub(crate) fn total(&self) -> usize {
        self.log().len()
    }

    /// All requests but the first `n`, of whatever kind.
    pub(crate) fn after(&self, n: usize) -> Vec<Seen> {
        self.log().iter().skip(n).cloned().collect()
    }

    /// Forgets what was seen.
    pub(crate) fn clear(&self) {
        self.log().clear();
    }

    /// Waits until the requests seen satisfy a condition.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, enough: impl Fn(&[Seen]) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut seen = self.log();
        while !enough(&seen) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}");
            seen = self.shared.changed.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// The window it really has.
    pub(crate) fn window(&self) -> u32 {
        self.shared.settings.lock().unwrap().window
    }

    /// How many requests the proxy hung up on while it waited.
    pub(crate) fn hung_up(&self) -> usize {
        self.shared.hung_up.lock().unwrap().len()
    }

    /// Waits until the proxy hung up on `n` requests that it was waiting on.
    #[track_caller]
    pub(crate) fn wait_hung_up(&self, n: usize) {
        let until = Instant::now() + PATIENCE;
        let mut hung = self.shared.hung_up.lock().unwrap();
        while hung.len() < n {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nobody hung up");
            hung = self.shared.changed.wait_timeout(hung, left.min(Duration::from_millis(100))).unwrap().0;
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(connection: usize, stream: TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let Ok(reading) = stream.try_clone() else { return };
    let mut reader = BufReader::new(reading);
    let mut writer = stream;
    while let Some(mut seen) = read_request(connection, &mut reader) {
        let prefix = shared.settings.lock().unwrap().prefix.clone();
        match seen.target.strip_prefix(&prefix) {
            Some(target) => seen.target = target.to_owned(),
            None => seen.target = format!("/outside{}", seen.target),
        }
        seen.role = seen.role_of();
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let number = {
            let mut log = shared.seen.lock().unwrap();
            log.push(seen.clone());
            log.len() - 1
        };
        shared.changed.notify_all();
        let hook = Arc::clone(&shared.hook.lock().unwrap());
        let play = hook(&seen);
        if !perform(play, number, &seen, shared, &mut writer) {
            let _ = writer.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

/// Whether the connection goes on.
fn perform(play: Play, number: usize, seen: &Seen, shared: &Shared, to: &mut TcpStream) -> bool {
    match play {
        Play::Usual => {
            let settings = shared.settings.lock().unwrap().clone();
            to.write_all(&usual(shared.kind, &settings, seen)).is_ok()
        }
        Play::Json(status, value) => {
            to.write_all(&whole(status, "application/json", value.to_string().as_bytes())).is_ok()
        }
        Play::Pieces(pieces) => pieces.iter().all(|p| to.write_all(p).and_then(|()| to.flush()).is_ok()),
        Play::Cut(bytes) => {
            let _ = to.write_all(&bytes);
            false
        }
        Play::Then(bytes, gate, next) => {
            to.write_all(&bytes).is_ok() && perform(Play::Wait(gate, next), number, seen, shared, to)
        }
        Play::Wait(gate, next) => {
            let _ = to.set_read_timeout(Some(Duration::from_millis(5)));
            while !gate.is_open() && !shared.stopping.load(Ordering::Acquire) {
                let gone = match to.peek(&mut [0]) {
                    Ok(n) => n == 0,
                    Err(e) => !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                };
                if gone {
                    shared.hung_up.lock().unwrap().push(number);
                    shared.changed.notify_all();
                    return false;
                }
            }
            let _ = to.set_read_timeout(None);
            perform(*next, number, seen, shared, to)
        }
    }
}

fn read_request(connection: usize, reader: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        Some(line.trim_end().to_owned())
    };
    let line = next()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    while let Some(header) = next().filter(|line| !line.is_empty()) {
        let (name, value) = header.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; length.map_or(0, |(_, v)| v.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { connection, method, target, headers, body, role: Role::Other })
}

/// An HTTP reply with its length.
pub(crate) fn whole(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nServer: fake\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The head of a chunked event stream.
pub(crate) fn sse_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()
}

/// One HTTP chunk.
pub(crate) fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// llama-server's own words for a prompt that does not fit.
pub(crate) fn too_long(prompt: u32, window: u32) -> Value {
    json!({"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": window,
        "message": format!("request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it")}})
}

fn usual(kind: Kind, s: &Settings, seen: &Seen) -> Vec<u8> {
    let json = |status: u16, value: Value| whole(status, "application/json", value.to_string().as_bytes());
    let mut body = seen.json();
    if !s.writes_calls {
        for message in body["messages"].as_array_mut().into_iter().flatten() {
            message.as_object_mut().map(|message| message.remove("tool_calls"));
        }
    }
    match (kind, seen.method.as_str(), seen.path()) {
        (Kind::LlamaServer, "GET", "/props") => json(
            200,
            json!({"default_generation_settings": {"n_ctx": s.says}, "total_slots": s.slots, "build_info": "b1-fake",
                "model_path": "/models/fake.gguf", "chat_template": "", "modalities": {"vision": true, "audio": false}}),
        ),
        // As older servers do, it does not tell what a slot holds.
        (Kind::LlamaServer, "GET", "/slots") => {
            json(200, json!([{"id": 0, "n_ctx": s.says, "is_processing": false, "id_task": 1}]))
        }
        (Kind::LlamaServer, "POST", "/v1/chat/completions/input_tokens") => {
            json(200, json!({"input_tokens": tokens(&body)}))
        }
        (Kind::Vllm, "POST", "/tokenize") => {
            json(200, json!({"count": tokens(&body), "max_model_len": s.says, "tokens": []}))
        }
        (Kind::Ollama, "GET", "/api/version") => json(200, json!({"version": "0.13.0"})),
        (Kind::Ollama, "GET", "/api/tags") => json(200, json!({"models": [{"name": s.model, "model": s.model}]})),
        (Kind::Ollama, "GET", "/api/ps") => {
            json(200, json!({"models": [{"name": s.model, "model": s.model, "digest": "d", "context_length": s.says}]}))
        }
        (Kind::Ollama, "POST", "/api/show") => json(
            200,
            json!({"model_info": {"general.architecture": "llama", "llama.context_length": 131072, "general.parameter_count": s.parameters}, "parameters": "",
                "template": "", "details": {}, "capabilities": ["completion", "tools", "vision"]}),
        ),
        (Kind::Ollama, "POST", "/api/chat") => ollama_chat(s, &body),
        (_, "GET", "/v1/models") => json(200, models(kind, s)),
        (Kind::Ollama, _, _) => json(404, json!({"error": "not found"})),
        (_, "POST", "/v1/chat/completions") => openai_chat(kind, s, seen, &body),
        _ => json(404, json!({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})),
    }
}

fn models(kind: Kind, s: &Settings) -> Value {
    let mut entry = json!({"id": s.model, "object": "model", "created": 1, "owned_by": "someone"});
    match kind {
        Kind::LlamaServer => {
            entry["owned_by"] = json!("llamacpp");
            entry["meta"] = json!({"n_ctx": s.says, "n_ctx_train": 131072, "size": 1000, "n_params": s.parameters});
        }
        Kind::Vllm => {
            entry["owned_by"] = json!("vllm");
            entry["max_model_len"] = json!(s.says);
        }
        Kind::Ollama => entry["owned_by"] = json!("library"),
        Kind::OpenAi => {}
    }
    json!({"object": "list", "data": [entry]})
}

/// Whether a server takes a prompt. vLLM wants room for the whole reply, too.
pub(crate) fn has_room(kind: Kind, window: u32, body: &Value) -> bool {
    let prompt = tokens(body);
    let asked = body["max_tokens"].as_u64().unwrap_or(0) as u32;
    prompt < window && (kind != Kind::Vllm || prompt + asked <= window)
}

fn openai_chat(kind: Kind, s: &Settings, seen: &Seen, body: &Value) -> Vec<u8> {
    let prompt = tokens(body);
    if !has_room(kind, s.window, body) {
        let refusal = match kind {
            Kind::LlamaServer => too_long(prompt, s.window),
            _ => {
                json!({"error": {"message": format!("This model's maximum context length is {} tokens. However, your messages resulted in {prompt} tokens. Please reduce the length of the messages.", s.window),
                "type": "BadRequestError", "param": null, "code": 400}})
            }
        };
        return whole(400, "application/json", refusal.to_string().as_bytes());
    }
    let words = if seen.is_summary() { &s.summary } else { &s.reply };
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": 8, "total_tokens": prompt + 8});
    let timings = json!({"cache_n": 0, "prompt_n": prompt, "predicted_n": 8});
    let llama = kind == Kind::LlamaServer;
    if body["stream"] != true {
        let mut reply = json!({"id": "c1", "object": "chat.completion", "created": 1, "model": s.model,
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": words}}],
            "usage": usage});
        if llama {
            reply["timings"] = timings;
        }
        return whole(200, "application/json", reply.to_string().as_bytes());
    }
    let event = |delta: Value, finish: Value| {
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": s.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    };
    let mut last = event(json!({}), json!("stop"));
    last["usage"] = usage;
    if llama {
        last["timings"] = timings;
    }
    let mut out = sse_head();
    for data in [
        event(json!({"role": "assistant", "content": ""}), Value::Null),
        event(json!({"content": words}), Value::Null),
        last,
    ] {
        out.extend(chunk(format!("data: {data}\n\n").as_bytes()));
    }
    out.extend(chunk(b"data: [DONE]\n\n"));
    out.extend(b"0\r\n\r\n");
    out
}

fn ollama_chat(s: &Settings, body: &Value) -> Vec<u8> {
    let empty = body["messages"].as_array().is_none_or(Vec::is_empty);
    let done = |reason: &str, words: &str, prompt: u32| {
        json!({"model": s.model, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": words},
            "done": true, "done_reason": reason, "total_duration": 1, "prompt_eval_count": prompt, "eval_count": 8})
    };
    if empty {
        return whole(200, "application/json", done("load", "", 0).to_string().as_bytes());
    }
    let prompt = tokens(body);
    if prompt >= s.window {
        let inner = too_long(prompt, s.window).to_string();
        return whole(400, "application/json", json!({"error": inner}).to_string().as_bytes());
    }
    let last = body["messages"].as_array().and_then(|m| m.last()).map(text).unwrap_or_default();
    let words = if last.contains("write a handoff summary") { &s.summary } else { &s.reply };
    if body["stream"] == false {
        return whole(200, "application/json", done("stop", words, prompt).to_string().as_bytes());
    }
    let mut out =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let piece = json!({"model": s.model, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": words}, "done": false});
    for line in [piece, done("stop", "", prompt)] {
        out.extend(chunk(format!("{line}\n").as_bytes()));
    }
    out.extend(b"0\r\n\r\n");
    out
}
