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
    listen(window, answer)
}

/// As [`start`], and the server is an Ollama.
#[allow(dead_code, reason = "the benchmark has none")]
pub(crate) fn ollama(window: usize) -> io::Result<SocketAddr> {
    listen(window, answer_as_ollama)
}

/// Answers a path: the window, the length of the body, whether it is to be streamed.
type Answer = fn(&mut TcpStream, &str, usize, usize, bool) -> io::Result<()>;

fn listen(window: usize, answer: Answer) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // An error is a client that went away.
            thread::spawn(move || serve(stream, window, answer).is_ok());
        }
    });
    Ok(address)
}

fn serve(stream: TcpStream, window: usize, answer: Answer) -> io::Result<()> {
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
        let stream = body.ends_with(b"\"stream\":true}");
        answer(&mut out, path.split('?').next().unwrap_or(""), window, length, stream)?;
        if close {
            return Ok(());
        }
    }
}

fn answer(out: &mut TcpStream, path: &str, window: usize, length: usize, stream: bool) -> io::Result<()> {
    match path {
        "/v1/chat/completions" if stream => stream_reply(out, length / 3),
        "/v1/chat/completions" => json(out, &reply(length / 3)),
        "/v1/chat/completions/input_tokens" => json(out, &format!("{{\"input_tokens\":{}}}", length / 3)),
        "/props" => json(
            out,
            &format!(
                r#"{{"default_generation_settings":{{"n_ctx":{window}}},"total_slots":1,"model_path":"/stub.gguf","build_info":"b1-stub"}}"#
            ),
        ),
        "/v1/models" => json(out, r#"{"object":"list","data":[{"id":"stub","object":"model","owned_by":"llamacpp"}]}"#),
        _ => missing(out),
    }
}

fn answer_as_ollama(out: &mut TcpStream, path: &str, window: usize, length: usize, _: bool) -> io::Result<()> {
    let entry = r#""name":"stub:latest","model":"stub:latest","digest":"00","details":{"family":"llama"}"#;
    match path {
        "/api/version" => json(out, r#"{"version":"0.13.0"}"#),
        "/api/tags" => json(out, &format!(r#"{{"models":[{{{entry}}}]}}"#)),
        "/api/ps" => json(out, &format!(r#"{{"models":[{{{entry},"context_length":{window}}}]}}"#)),
        "/api/show" => json(
            out,
            &format!(
                r#"{{"template":"{{{{ .Prompt }}}}","details":{{}},"model_info":{{"general.architecture":"llama","llama.context_length":{window}}}}}"#
            ),
        ),
        "/api/chat" => json(
            out,
            &format!(
                r#"{{"model":"stub","message":{{"role":"assistant","content":"Done."}},"done":true,"done_reason":"stop","prompt_eval_count":{},"eval_count":2}}"#,
                length / 3
            ),
        ),
        _ => missing(out),
    }
}

fn missing(out: &mut TcpStream) -> io::Result<()> {
    out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
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
