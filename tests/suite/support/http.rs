//! A client that sees every byte: plain blocking HTTP/1.1 over a socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No test waits longer than this for anything: then it fails. A busy machine may be ten times slower than an idle one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A whole reply.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as HTTP says it should.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {} {}", self.status, self.text()))
    }

    pub(crate) fn action(&self) -> &str {
        self.header("x-windowsill-action").unwrap_or("-")
    }

    /// The reply, which must be a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Answer {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }

    /// `error.code` and `error.message` of a reply in OpenAI's shape.
    #[track_caller]
    pub(crate) fn error(&self) -> (String, String) {
        let value = self.json();
        let error = &value["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "not OpenAI's shape: {value}");
        (error["code"].as_str().unwrap_or("").to_owned(), error["message"].as_str().unwrap_or("").to_owned())
    }
}

/// One connection.
pub(crate) struct Conn {
    reader: BufReader<TcpStream>,
    chunked: bool,
    left: Option<usize>,
    /// The request asked for a head alone.
    bodiless: bool,
}

impl Conn {
    pub(crate) fn open(to: SocketAddr) -> Conn {
        let stream = TcpStream::connect(to).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Conn { reader: BufReader::new(stream), chunked: false, left: None, bodiless: false }
    }

    /// Waits this long for each piece of a reply, for what takes seconds on an idle machine already.
    pub(crate) fn patiently(self, patience: Duration) -> Conn {
        self.reader.get_ref().set_read_timeout(Some(patience)).unwrap();
        self
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Whether something came, or the other side is gone.
    pub(crate) fn is_readable(&mut self) -> bool {
        let stream = self.reader.get_ref();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let came = match stream.peek(&mut [0]) {
            Ok(_) => true,
            Err(e) => !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        came
    }

    /// Sends a request; the head is written as given.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.bodiless = method == "HEAD";
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut all = head.into_bytes();
        all.extend_from_slice(body);
        // A server may refuse a large body before it has read it.
        let _ = self.write(&all);
    }

    /// Reads the head of a reply; the body is still to come. `None` when the connection ended first.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let status = line.split(' ').nth(1)?.trim().parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok()?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let answer = Answer { status, headers, body: Vec::new(), whole: false };
        self.chunked = answer.header("transfer-encoding").is_some_and(|v| v.contains("chunked"));
        self.left = answer.header("content-length").and_then(|v| v.parse().ok());
        if self.bodiless {
            // What the head says of a body is of the one that GET would have brought.
            (self.chunked, self.left) = (false, Some(0));
        }
        Some(answer)
    }

    /// The next piece of the body; empty at its proper end, `None` when it broke off.
    pub(crate) fn piece(&mut self) -> Option<Vec<u8>> {
        if self.chunked {
            let mut line = String::new();
            if self.reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let length = usize::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
            let mut data = vec![0; length + 2];
            self.reader.read_exact(&mut data).ok()?;
            data.truncate(length);
            return Some(data);
        }
        let left = self.left?;
        let mut data = vec![0; left];
        self.reader.read_exact(&mut data).ok()?;
        self.left = Some(0);
        Some(data)
    }

    /// The rest of the body.
    pub(crate) fn rest(&mut self, mut answer: Answer) -> Answer {
        loop {
            match self.piece() {
                Some(piece) if piece.is_empty() => {
                    answer.whole = true;
                    return answer;
                }
                Some(piece) => answer.body.extend_from_slice(&piece),
                None => return answer,
            }
        }
    }

    /// A whole reply.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.head().expect("the server answers");
        self.rest(head)
    }

    /// Reads the body until it holds `what`.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str) -> String {
        let mut text = String::new();
        while !text.contains(what) {
            match self.piece() {
                Some(piece) if !piece.is_empty() => text.push_str(&String::from_utf8_lossy(&piece)),
                _ => panic!("the body ended before {what:?}: {text}"),
            }
        }
        text
    }
}

/// One request on a connection of its own.
#[track_caller]
pub(crate) fn request(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut conn = Conn::open(to);
    conn.send(method, path, headers, body);
    conn.answer()
}
