//! An inference server that answers at once, as llama-server does: `/props`, `/v1/models`, token counts of a third of the
//! bytes (this text is dense), replies whole and streamed. A thread for each connection: nothing of its own to wait for.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Time between two events of a streamed reply.
const PAUSE: Duration = Duration::from_millis(5);

/// Events of a streamed reply that carry text.
const EVENTS: usize = 8;

/// Starts a server with a window of `window` tokens; it ends with the process.
pub(crate) fn start(window: usize) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // An error is a client that went away.
            thread::spawn(move || serve(stream, window).is_ok());
        }
    });
    Ok(address)
}

fn serve(stream: TcpStream, window: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut input = BufReader::with_capacity(64 * 1024, stream);
    let mut body = Vec::new();
    loop {
        let mut first = String::new();
        if input.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let (mut length, mut close) = (0, false);
        loop {
            let mut line = String::new();
            input.read_line(&mut line)?;
            let lower = line.trim().to_ascii_lowercase();
            if lower.is_empty() {
                break;
            }
            if let Some(n) = lower.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0);
            }
            close |= lower == "connection: close";
        }
        body.resize(length, 0);
        input.read_exact(&mut body)?;
        let path = first.split(' ').nth(1).unwrap_or("");
        match path.split('?').next().unwrap_or("") {
            "/v1/chat/completions" if body.ends_with(b"\"stream\":true}") => stream_reply(&mut out, length / 3)?,
            "/v1/chat/completions" => json(&mut out, &reply(length / 3))?,
            "/v1/chat/completions/input_tokens" => json(&mut out, &format!("{{\"input_tokens\":{}}}", length / 3))?,
            "/props" => json(
                &mut out,
                &format!(
                    r#"{{"default_generation_settings":{{"n_ctx":{window}}},"total_slots":1,"model_path":"/stub.gguf","build_info":"b1-stub"}}"#
                ),
            )?,
            "/v1/models" => {
                json(&mut out, r#"{"object":"list","data":[{"id":"stub","object":"model","owned_by":"llamacpp"}]}"#)?
            }
            _ => out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")?,
        }
        if close {
            return Ok(());
        }
    }
}

fn usage(prompt: usize) -> String {
    format!(r#""usage":{{"prompt_tokens":{prompt},"completion_tokens":2,"total_tokens":{}}}"#, prompt + 2)
}

fn reply(prompt: usize) -> String {
    format!(
        r#"{{"id":"c","object":"chat.completion","created":1,"model":"stub","choices":[{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"Done."}}}}],{}}}"#,
        usage(prompt)
    )
}

fn json(out: &mut TcpStream, body: &str) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json";
    out.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

fn stream_reply(out: &mut TcpStream, prompt: usize) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked";
    let event = |data: &str| format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8);
    let delta = |inner: &str, end: &str, rest: &str| {
        event(&format!(
            r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"stub","choices":[{{"index":0,"delta":{{{inner}}},"finish_reason":{end}}}]{rest}}}"#
        ))
    };
    out.write_all(format!("{head}\r\n\r\n{}", delta(r#""role":"assistant","content":"D""#, "null", "")).as_bytes())?;
    for _ in 0..EVENTS {
        thread::sleep(PAUSE);
        out.write_all(delta(r#""content":"one""#, "null", "").as_bytes())?;
    }
    let last = delta("", "\"stop\"", &format!(",{}", usage(prompt)));
    out.write_all(format!("{last}{}0\r\n\r\n", event("[DONE]")).as_bytes())
}
