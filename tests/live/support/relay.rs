//! A relay between windowsill and a server that passes every byte and keeps the body of each chat request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

/// One request, one connection: `Connection: close` goes both ways, so that no framing needs to be understood.
pub(crate) struct Relay {
    address: SocketAddr,
    chats: Arc<Chats>,
    over: Arc<AtomicBool>,
}

#[derive(Default)]
struct Chats {
    /// The tool that every reply calls.
    calls: Mutex<Option<&'static str>>,
    /// Nothing tells a model's vocabulary.
    hides: AtomicBool,
    bodies: Mutex<Vec<String>>,
    came: Condvar,
    /// Chat requests whose replies have not ended.
    under_way: AtomicUsize,
}

impl Relay {
    /// Listens on a port of its own and passes on to `server`, such as `http://127.0.0.1:8080`.
    pub(crate) fn before(server: &str) -> Relay {
        let server: SocketAddr = server.trim_start_matches("http://").parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (chats, over) = (Arc::<Chats>::default(), Arc::<AtomicBool>::default());
        let (kept, stop) = (Arc::clone(&chats), Arc::clone(&over));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let kept = Arc::clone(&kept);
                // A connection that breaks is what some tests are about.
                thread::spawn(move || pass(client, server, &kept).unwrap_or_default());
            }
        });
        Relay { address, chats, over }
    }

    /// From now on, each reply to a client is a call of this tool without arguments: the server evaluates the prompt, and what its
    /// small model would write is left out.
    pub(crate) fn call(&self, tool: &'static str) {
        *self.chats.calls.lock() = Some(tool);
    }

    /// From now on, Ollama's `/api/show` with `verbose` is refused, as if the server could not tell a vocabulary.
    pub(crate) fn hide_vocabularies(&self) {
        self.chats.hides.store(true, Ordering::Relaxed);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bodies since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.chats.bodies.lock())
    }

    /// Whether the server works on a chat request.
    pub(crate) fn is_busy(&self) -> bool {
        self.chats.under_way.load(Ordering::Relaxed) > 0
    }

    /// Waits until there is one. Panics when none comes.
    pub(crate) fn wait(&self) {
        let mut bodies = self.chats.bodies.lock();
        while bodies.is_empty() {
            let late = self.chats.came.wait_for(&mut bodies, Duration::from_secs(100)).timed_out();
            assert!(!late, "no chat request came");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}

/// One request with its body.
struct Request {
    head: String,
    body: Vec<u8>,
    is_chat: bool,
}

fn read(client: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length, mut is_chat) = (String::new(), 0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if head.is_empty() {
            is_chat = ["/v1/chat/completions", "/api/chat"].iter().any(|p| line.starts_with(&format!("POST {p} ")));
        }
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        assert!(!lower.starts_with("transfer-encoding:"), "bodies have a length");
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { head, body, is_chat }))
}

fn pass(client: TcpStream, server: SocketAddr, chats: &Chats) -> std::io::Result<()> {
    let Some(request) = read(&client)? else { return Ok(()) };
    if !request.is_chat {
        return forward(client, server, &request, chats);
    }
    chats.bodies.lock().push(String::from_utf8(request.body.clone()).expect("chat bodies are UTF-8"));
    chats.under_way.fetch_add(1, Ordering::Relaxed);
    chats.came.notify_all();
    let called = *chats.calls.lock();
    let passed = match called.and_then(|tool| Some((tool, of_a_client(&request.body)?))) {
        Some((tool, body)) => called_by(client, server, tool, body),
        None => forward(client, server, &request, chats),
    };
    chats.under_way.fetch_sub(1, Ordering::Relaxed);
    passed
}

fn forward(mut client: TcpStream, server: SocketAddr, request: &Request, chats: &Chats) -> std::io::Result<()> {
    let asks = || String::from_utf8_lossy(&request.body).contains("\"verbose\":true");
    if chats.hides.load(Ordering::Relaxed) && request.head.starts_with("POST /api/show ") && asks() {
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let mut server = TcpStream::connect(server)?;
    server.write_all(request.head.as_bytes())?;
    server.write_all(&request.body)?;
    // A client that goes away takes its request with it: the server must see that at once.
    let (mut gone, upstream) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = gone.read(&mut [0]);
        upstream.shutdown(Shutdown::Both)
    });
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

/// The body of a request that is a client's own: no summary, and nothing that is only evaluated.
fn of_a_client(body: &[u8]) -> Option<Value> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let last = body["messages"].as_array()?.last()?["content"].to_string();
    (body["max_tokens"] != 1 && !last.contains("write a handoff summary")).then_some(body)
}

/// Has the server evaluate a prompt, and answers with a call.
fn called_by(mut client: TcpStream, server: SocketAddr, tool: &str, mut body: Value) -> std::io::Result<()> {
    let stream = body["stream"] == true;
    (body["stream"], body["max_tokens"]) = (json!(false), json!(1));
    body.as_object_mut().expect("an object").remove("stream_options");
    let mut server = TcpStream::connect(server)?;
    let said = body.to_string();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nConnection: close\r\n";
    server.write_all(format!("{head}Content-Length: {}\r\n\r\n{said}", said.len()).as_bytes())?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    let Some(mut reply) = answer.find('{').and_then(|at| Some(answer[at..=answer.rfind('}')?].to_owned())) else {
        return client.write_all(answer.as_bytes());
    };
    if let Ok(mut whole) = serde_json::from_str::<Value>(&reply)
        && whole["choices"].is_array()
    {
        let call =
            json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}});
        let says = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let key = if stream { "delta" } else { "message" };
        whole["choices"] = json!([{"index": 0, key: says, "finish_reason": "tool_calls"}]);
        reply = whole.to_string();
    }
    let (kind, reply) = match stream && !answer.contains("\"error\"") {
        true => ("text/event-stream", format!("data: {reply}\n\ndata: [DONE]\n\n")),
        false => ("application/json", reply),
    };
    let status = answer.lines().next().unwrap_or("HTTP/1.1 502 X").trim();
    let length = reply.len();
    let head = format!("{status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    client.write_all(format!("{head}{reply}").as_bytes())?;
    client.shutdown(Shutdown::Both)
}
