//! What a server does wrong, once, with the next prompt it gets.

use serde_json::json;

use crate::support::script::{TOOL, stream, whole_reply};
use crate::support::*;

#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// It says that the prompt is too long for a window of so many tokens, in some server's words.
    Refuses(u16, String),
    /// An error of another kind.
    Fails(u16, &'static str),
    /// These bytes, and then the connection is gone.
    Cuts(Vec<u8>),
    /// A reply that is none.
    Babbles(&'static str, &'static str),
    /// These bytes, and then nothing, for ever: no time passes until the client gives up.
    Silent(Vec<u8>),
    /// It cannot count.
    CountsNothing,
    /// It writes no usable brief.
    Summarizes(u16, &'static str),
    /// It answers, and reports a prompt of a size that it made up.
    Lies(u32),
    /// A status of 200, and an error behind it: the type, and the body.
    Pretends(&'static str, String),
    /// The pool that its slots share is full.
    PoolFull(u16),
}

/// What servers say of a prompt of `p` tokens at a window of `w`.
fn refusals(p: u32, w: u32) -> [String; 6] {
    [
        too_long(p, w).to_string(),
        json!({"error": {"message": format!("This model's maximum context length is {w} tokens. However, your messages resulted in {p} tokens. Please reduce the length of the messages."), "code": 400}}).to_string(),
        json!({"object": "error", "message": format!("The input ({p} tokens) is longer than the model's context length ({w} tokens).")}).to_string(),
        json!({"error": format!("input length ({p} tokens) exceeds the maximum context length ({w} tokens)")}).to_string(),
        json!({"error": {"message": "prompt is too long", "type": "invalid_request_error"}}).to_string(),
        format!("context size has been exceeded, {w} is all there is"),
    ]
}

/// The head of an event stream and part of its first event.
fn broken_stream(cut: usize) -> Vec<u8> {
    let event = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "half a "}, "finish_reason": null}]});
    let mut out = sse_head();
    out.extend(chunk(format!("data: {event}\n\n").as_bytes()));
    let event = chunk(format!("data: {event}\n\n").as_bytes());
    out.extend(&event[..cut.min(event.len())]);
    out
}

/// The same of a reply of Ollama's.
fn broken_lines(cut: usize) -> Vec<u8> {
    let line = json!({"model": MODEL, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": "half a "}, "done": false});
    let mut out =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let event = chunk(format!("{line}\n").as_bytes());
    out.extend(&event);
    out.extend(&event[..cut.min(event.len())]);
    out
}

fn broken(kind: Kind, dice: &mut Dice) -> Vec<u8> {
    let cut = dice.below(200);
    match dice.below(6) {
        0 => Vec::new(),
        1 => b"HTTP/1.1 200 OK\r\nContent-Ty".to_vec(),
        2 => b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{\"id\": \"c1\", \"choi"
            .to_vec(),
        3 => sse_head(),
        _ if kind == Kind::Ollama => broken_lines(cut),
        _ => broken_stream(cut),
    }
}

/// A reply with a size of the prompt that was made up. A prompt that does not fit is refused as usual.
fn lie(kind: Kind, window: u32, said: u32, seen: &Seen) -> Play {
    let body = seen.json();
    if !has_room(kind, window, &body) {
        return Play::Usual;
    }
    if kind == Kind::Ollama {
        let line = json!({"model": MODEL, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": "Yes."},
            "done": true, "done_reason": "stop", "prompt_eval_count": said, "eval_count": 2});
        return Play::Json(200, line);
    }
    let usage = json!({"prompt_tokens": said, "completion_tokens": 2, "total_tokens": said.saturating_add(2)});
    let head = json!({"id": "c1", "created": 1, "model": MODEL});
    let with = |fields: serde_json::Value| {
        let mut all = head.clone();
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    if body["stream"] != true {
        let message = json!({"role": "assistant", "content": "Yes."});
        let choice = json!({"index": 0, "finish_reason": "stop", "message": message});
        return Play::Json(200, with(json!({"object": "chat.completion", "choices": [choice], "usage": usage})));
    }
    let piece = with(json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Yes."}}]}));
    let last = with(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}));
    let events = format!("data: {piece}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    Play::Pieces(vec![sse_head(), chunk(events.as_bytes()), b"0\r\n\r\n".to_vec()])
}

impl Fault {
    pub(super) fn any(kind: Kind, window: u32, dice: &mut Dice) -> Fault {
        match dice.below(12) {
            0 | 1 => {
                let claimed = if dice.chance(50) { window } else { window - dice.below(window as usize / 4) as u32 };
                let said = refusals(claimed + 1 + dice.below(4_000) as u32, claimed);
                Fault::Refuses([400, 400, 413, 500][dice.below(4)], said[dice.below(said.len())].clone())
            }
            2 => {
                let bodies = [
                    "",
                    "<html>Bad Gateway</html>",
                    "{\"error\":{\"message\":\"slot unavailable\"}}",
                    "{\"error\":\"llama runner process has terminated\"}",
                ];
                Fault::Fails([500, 502, 503, 429][dice.below(4)], bodies[dice.below(bodies.len())])
            }
            3 | 4 => Fault::Cuts(broken(kind, dice)),
            5 => {
                let said = [
                    "",
                    "{",
                    "null",
                    "[]",
                    "{\"choices\":[]}",
                    "data: {not json}\n\n",
                    "{\"done\":true}\n",
                    "\u{0}\u{1b}]0;x\u{7}",
                ];
                let kinds = ["application/json", "text/event-stream", "application/x-ndjson", "text/html"];
                Fault::Babbles(kinds[dice.below(kinds.len())], said[dice.below(said.len())])
            }
            6 => Fault::Silent(match dice.below(3) {
                0 => Vec::new(),
                1 => b"HTTP/1.1 200 OK\r\n".to_vec(),
                _ => broken(kind, dice),
            }),
            7 => Fault::CountsNothing,
            9 => Fault::Lies([1_000_000, window * 2, window - 1, window / 2, 1][dice.below(5)]),
            10 => {
                let words = "the model crashed, and its context is gone";
                let error = json!({"error": {"message": words}});
                let kinds = ["application/json", "text/event-stream", "text/plain", "application/x-ndjson"];
                let bodies = [
                    error.to_string(),
                    json!({ "detail": words }).to_string(),
                    format!("event: error\ndata: {error}\n\n"),
                    format!("data: {error}\n\ndata: [DONE]\n\n"),
                    format!("{}\n", json!({ "error": words })),
                ];
                Fault::Pretends(kinds[dice.below(kinds.len())], bodies[dice.below(bodies.len())].clone())
            }
            11 => Fault::PoolFull([500, 200][dice.below(2)]),
            _ => Fault::Summarizes(
                [200, 500][dice.below(2)],
                ["", "{}", "null", "{\"choices\":[{\"message\":{\"content\":\"\"}}]}"][dice.below(4)],
            ),
        }
    }

    /// Whether the reply to the client's own prompt is what it would be without it.
    pub(super) fn is_aside(&self) -> bool {
        matches!(self, Fault::CountsNothing | Fault::Summarizes(..) | Fault::Lies(..) | Fault::PoolFull(..))
    }
}

/// What a server does with the requests of one step.
#[derive(Clone, Default)]
pub(super) struct Turn {
    pub(super) fault: Option<Fault>,
    /// What the model asks the recall tool in its first round.
    pub(super) recalls: Option<String>,
    /// Never opened: what waits for it is ended by the other side.
    pub(super) never: Gate,
    /// Prompts that came so far.
    pub(super) prompts: usize,
    /// The machine sleeps in the middle of the next question about the server: when it is awake, the connection is gone.
    pub(super) sleeps: bool,
}

impl Turn {
    pub(super) fn play(&mut self, kind: Kind, window: u32, seen: &Seen) -> Play {
        if !seen.is_main() {
            return self.aside(seen);
        }
        self.prompts += 1;
        if self.prompts > 1 {
            return Play::Usual;
        }
        match &self.fault {
            Some(Fault::Refuses(status, said)) => {
                Play::Pieces(vec![whole(*status, "application/json", said.as_bytes())])
            }
            Some(Fault::Fails(status, said)) => Play::Pieces(vec![whole(*status, "application/json", said.as_bytes())]),
            Some(Fault::Cuts(bytes)) => Play::Cut(bytes.clone()),
            Some(Fault::Babbles(kind, said)) => Play::Pieces(vec![whole(200, kind, said.as_bytes())]),
            Some(Fault::Silent(bytes)) => {
                Play::Then(bytes.clone(), self.never.clone(), Box::new(Play::Cut(Vec::new())))
            }
            Some(Fault::Pretends(kind, said)) => Play::Pieces(vec![whole(200, kind, said.as_bytes())]),
            Some(Fault::PoolFull(status)) => {
                let error = json!({"code": 500, "message": "Context size has been exceeded.", "type": "server_error"});
                Play::Json(*status, json!({ "error": error }))
            }
            Some(Fault::Lies(tokens)) => lie(kind, window, *tokens, seen),
            Some(Fault::CountsNothing | Fault::Summarizes(..)) => Play::Usual,
            None => self.recall(kind, window, seen),
        }
    }

    fn aside(&mut self, seen: &Seen) -> Play {
        if seen.method == "GET" && std::mem::take(&mut self.sleeps) {
            return Play::Cut(Vec::new());
        }
        match &self.fault {
            Some(Fault::CountsNothing) if seen.path().contains("tokens") || seen.path() == "/tokenize" => {
                Play::Json(500, json!({"error": "no"}))
            }
            Some(Fault::Summarizes(status, said)) if seen.is_summary() => {
                Play::Pieces(vec![whole(*status, "application/json", said.as_bytes())])
            }
            _ => Play::Usual,
        }
    }

    /// A call of the recall tool, where it is offered.
    fn recall(&self, kind: Kind, window: u32, seen: &Seen) -> Play {
        let Some(arguments) = &self.recalls else { return Play::Usual };
        let body = seen.json();
        let offered = body["tools"].as_array().is_some_and(|t| t.iter().any(|t| t["function"]["name"] == TOOL));
        // A prompt that does not fit is refused as usual.
        if !offered || kind == Kind::Ollama || !has_room(kind, window, &body) {
            return Play::Usual;
        }
        let calls = [("call_r", TOOL.to_owned(), arguments.clone())];
        if body["stream"] == true {
            let bytes = stream(seen, 0, "", &calls);
            return Play::Pieces(vec![sse_head(), chunk(bytes.as_bytes()), b"0\r\n\r\n".to_vec()]);
        }
        Play::Json(200, whole_reply(seen, 0, "", &calls))
    }
}
