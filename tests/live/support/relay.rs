//! A relay between windowsill and a server that passes every byte and keeps the body of each chat request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

/// One request, one connection: `Connection: close` goes both ways, so that no framing needs to be understood.
pub(crate) struct Relay {
    address: SocketAddr,
    chats: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
}

impl Relay {
    /// Listens on a port of its own and passes on to `server`, such as `http://127.0.0.1:8080`.
    pub(crate) fn before(server: &str) -> Relay {
        let server: SocketAddr = server.trim_start_matches("http://").parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (chats, over) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
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

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bodies since the last call. Conversations stream here and summaries do not: only the former.
    pub(crate) fn conversations(&self) -> Vec<String> {
        self.all().into_iter().filter(|b| b.contains("\"stream\":true")).collect()
    }

    /// All bodies since the last call.
    pub(crate) fn all(&self) -> Vec<String> {
        std::mem::take(&mut *self.chats.lock())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}

fn pass(client: TcpStream, server: SocketAddr, chats: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length, mut is_chat) = (String::new(), 0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if head.is_empty() {
            is_chat = line.starts_with("POST /v1/chat/completions ");
        }
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        assert!(!lower.starts_with("transfer-encoding:"), "bodies have a length");
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if is_chat {
        chats.lock().push(String::from_utf8(body.clone()).expect("chat bodies are UTF-8"));
    }
    let mut server = TcpStream::connect(server)?;
    server.write_all(head.as_bytes())?;
    server.write_all(&body)?;
    // A client that goes away takes its request with it: the server must see that at once.
    let (mut gone, upstream) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = gone.read(&mut [0]);
        upstream.shutdown(Shutdown::Both)
    });
    let mut back = client.try_clone()?;
    let mut buffer = [0; 16 * 1024];
    loop {
        let n = server.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        back.write_all(&buffer[..n])?;
    }
    client.shutdown(Shutdown::Both)
}
