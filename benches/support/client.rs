//! A client that costs next to nothing: HTTP/1.1 over a blocking socket, a request in one write.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// When the parts of a reply arrived, counted from before the request was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The first byte of the body.
    pub(crate) first: Duration,
    /// The last one.
    pub(crate) whole: Duration,
}

/// A client of one address.
pub(crate) struct Client {
    address: SocketAddr,
    keep: bool,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    /// `keep`: one connection for all requests; else a new one for each.
    pub(crate) fn new(address: SocketAddr, keep: bool) -> Client {
        Client { address, keep, connection: None }
    }

    /// Sends a chat request and reads the whole reply. Anything but status 200 is an error.
    pub(crate) fn chat(&mut self, body: &[u8]) -> io::Result<Times> {
        self.ask("/v1/chat/completions", body)
    }

    /// As [`Client::chat`], at another path.
    pub(crate) fn ask(&mut self, path: &str, body: &[u8]) -> io::Result<Times> {
        let close = if self.keep { "" } else { "Connection: close\r\n" };
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{close}Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let started = Instant::now();
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                BufReader::with_capacity(64 * 1024, stream)
            }
        };
        connection.get_mut().write_all(&request)?;
        let times = read(&mut connection, started)?;
        self.connection = self.keep.then_some(connection);
        Ok(times)
    }
}

fn read(input: &mut BufReader<TcpStream>, started: Instant) -> io::Result<Times> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let good = line.starts_with("HTTP/1.1 200");
    let status = line.clone();
    let (mut length, mut chunked) = (0, false);
    loop {
        line.clear();
        input.read_line(&mut line)?;
        let lower = line.trim().to_ascii_lowercase();
        if lower.is_empty() {
            break;
        }
        if let Some(n) = lower.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap_or(0);
        }
        chunked |= lower == "transfer-encoding: chunked";
    }
    let mut body = Vec::new();
    let mut first = None;
    if chunked {
        loop {
            line.clear();
            input.read_line(&mut line)?;
            first.get_or_insert_with(|| started.elapsed());
            let size = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            body.resize(size + 2, 0);
            input.read_exact(&mut body)?;
            if size == 0 {
                break;
            }
        }
    } else {
        body.resize(length, 0);
        input.read_exact(&mut body)?;
    }
    let whole = started.elapsed();
    if !good {
        return Err(io::Error::other(format!("{}: {}", status.trim(), String::from_utf8_lossy(&body))));
    }
    Ok(Times { first: first.unwrap_or(whole), whole })
}
