//! Small servers that say what they are told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};

use http::HeaderValue;
use serde_json::json;

use super::super::*;

/// A request as a server saw it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Which connection it came on, from 0.
    pub(super) connection: usize,
    /// `GET /path?query`.
    pub(super) line: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What a server does with a request.
pub(super) enum Play {
    Json(u16, Value),
    /// These bytes as they are; the connection stays open.
    Raw(Vec<u8>),
    /// The connection is closed without a byte.
    Close,
    /// The connection is handed over.
    Take(mpsc::Sender<TcpStream>),
}

pub(super) struct Stub {
    pub(super) url: String,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
}

impl Stub {
    pub(super) fn start(play: impl Fn(&Seen) -> Play + Send + Sync + 'static) -> Stub {
        Stub::on(TcpListener::bind("127.0.0.1:0").unwrap(), play)
    }

    pub(super) fn on(listener: TcpListener, play: impl Fn(&Seen) -> Play + Send + Sync + 'static) -> Stub {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, play) = (seen.clone(), Arc::new(play));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().flatten().enumerate() {
                let (log, play) = (log.clone(), play.clone());
                std::thread::spawn(move || serve(connection, stream, &log, &*play));
            }
        });
        Stub { url, seen }
    }

    pub(super) fn upstream(&self) -> Upstream {
        self.hinted(KindHint::Auto)
    }

    pub(super) fn hinted(&self, hint: KindHint) -> Upstream {
        Upstream::new(client().unwrap(), "local".into(), &self.url, hint).unwrap()
    }

    pub(super) fn last(&self) -> Seen {
        self.seen.lock().last().unwrap().clone()
    }
}

fn serve(connection: usize, stream: TcpStream, log: &Mutex<Vec<Seen>>, play: &dyn Fn(&Seen) -> Play) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(seen) = read_request(connection, &mut reader) {
        log.lock().push(seen.clone());
        let bytes = match play(&seen) {
            Play::Json(status, body) => answer(status, "application/json", body.to_string().as_bytes()),
            Play::Raw(bytes) => bytes,
            Play::Close => return,
            Play::Take(to) => return to.send(writer).unwrap(),
        };
        if writer.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn read_request(connection: usize, reader: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        Some(line.trim_end().to_owned())
    };
    let line = next()?.strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = HeaderMap::new();
    while let Some(header) = next().filter(|line| !line.is_empty()) {
        let (name, value) = header.split_once(": ")?;
        headers.append(http::HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?);
    }
    let length = headers.get("content-length").map_or(0, |n| n.to_str().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { connection, line, headers, body: body.into() })
}

pub(super) fn answer(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(super) fn not_found() -> Play {
    Play::Json(404, json!({"error": "not found"}))
}
