//! Recorded sessions, and their replay turn by turn as the agent's client sent them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::servers::{Llama, Windowsill};
use super::{check, http, relay::Relay, say};

/// `{"messages": […], "tools": […]}`.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) messages: Vec<Value>,
    tools: Value,
}

impl Session {
    /// The repository's own: an agent's work on a Django issue, 40 turns, 53,000 tokens.
    pub(crate) fn demo() -> Session {
        Self::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/demo/session.json")))
    }

    /// One of the larger set beside the repository, or of the excerpts in it; `None` where neither has it.
    pub(crate) fn shared(name: &str) -> Option<Session> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let places: [PathBuf; 3] =
            ["../shared/data", "../../shared/data", "tests/data/excerpts"].map(|p| root.join(p).join("sessions/dev"));
        let file = places.iter().map(|p| p.join(format!("{name}.json"))).find(|f| f.is_file());
        if file.is_none() {
            say(&format!("{name}: not here, left out"));
        }
        file.map(|f| Self::read(&f))
    }

    fn read(file: &Path) -> Session {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut value: Value = serde_json::from_str(&text).unwrap();
        let name = file.file_stem().expect("a file").to_string_lossy().into_owned();
        let Value::Array(messages) = value["messages"].take() else { panic!("{name}: no messages") };
        Session { name, messages, tools: value["tools"].take() }
    }

    /// Where the model was asked: the index of each assistant message behind some history. Where one speaks several times in
    /// a row there is one turn: llama.cpp refuses a history that ends with two messages of the assistant's.
    pub(crate) fn turns(&self) -> Vec<usize> {
        let assistant = |i: usize| self.messages[i]["role"] == "assistant";
        let twice = |i: usize| i >= 2 && assistant(i - 1) && assistant(i - 2);
        (1..self.messages.len()).filter(|i| assistant(*i) && !twice(*i)).collect()
    }

    /// The request of a turn: the first `end` messages.
    pub(crate) fn request(&self, end: usize, max_tokens: u32, stream: bool) -> Value {
        let mut body = json!({
            "model": "smollm2", "messages": self.messages[..end], "max_tokens": max_tokens, "temperature": 0, "seed": 1,
            "stream": stream,
        });
        if self.tools.as_array().is_some_and(|t| !t.is_empty()) {
            body["tools"] = self.tools.clone();
        }
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

/// What became of one turn.
pub(crate) struct Turn {
    /// How many messages the client sent.
    pub(crate) end: usize,
    /// The header of that name.
    pub(crate) action: String,
    pub(crate) conversation: String,
    pub(crate) window: u32,
    /// As the server reported.
    pub(crate) prompt: u32,
    pub(crate) cached: u32,
    pub(crate) evaluated: u32,
    /// The body that the server got.
    pub(crate) forwarded: String,
    /// Whether it is another than the client's.
    pub(crate) rewritten: bool,
    /// What a model was asked for a brief while this turn waited.
    pub(crate) summaries: Vec<String>,
    /// Until the first token came.
    pub(crate) first: Duration,
}

/// windowsill between a relay and a client.
pub(crate) struct Bench {
    pub(crate) llama: Llama,
    pub(crate) relay: Relay,
    pub(crate) windowsill: Windowsill,
}

impl Bench {
    /// All three, fresh.
    pub(crate) fn start(window: u32, settings: &[(&str, &str)]) -> Bench {
        let llama = Llama::start(window);
        let relay = Relay::before(&llama.url());
        // A head that goes out before the prompt is known lacks the figures that every turn here is checked by: on a busy machine a
        // brief takes longer than the usual ten seconds.
        let settings: Vec<(&str, &str)> = [("LIMITS_HEAD_SECONDS", "300")].iter().chain(settings).copied().collect();
        let windowsill = Windowsill::before(&relay.url(), &settings);
        Bench { llama, relay, windowsill }
    }

    /// One turn, with all that must hold of any.
    pub(crate) fn turn(&self, session: &Session, end: usize) -> Turn {
        let name = format!("{}, turn at message {end}", session.name);
        let sent = session.request(end, 8, true);
        self.relay.take();
        let started = Instant::now();
        let mut live = http::open(&self.windowsill.chat_url(), &[], &sent);
        live.until("data:");
        let first = started.elapsed();
        let reply = live.whole();
        let header = |what: &str| reply.ours(what).to_owned();
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
        let events = reply.events();
        assert!(events.iter().all(|e| e["error"].is_null()), "{name}: {}", reply.text);
        let finished = events.iter().any(|e| e["choices"][0]["finish_reason"].is_string());
        assert!(finished && reply.is_done(), "{name}: not complete: {}", reply.text);

        let number = |pointer: &str| events.iter().find_map(|e| e.pointer(pointer).and_then(Value::as_u64));
        let prompt = number("/usage/prompt_tokens").expect("usage") as u32;
        let (cached, evaluated) =
            (number("/timings/cache_n").unwrap_or(0), number("/timings/prompt_n").expect("timings"));
        let told: u32 = header("prompt-tokens").parse().unwrap();
        if header("prompt-tokens-source") == "counted by the server" {
            assert_eq!(told, prompt, "{name}: what was counted is what was evaluated");
        } else {
            // Only prompts a tenth below every line are not counted; an estimate may be half of that too low.
            assert!(told + told / 20 + 16 >= prompt, "{name}: {told} estimated, {prompt} evaluated");
        }
        let window: u32 = header("window").parse().unwrap();
        // Conversations stream here and summaries do not.
        let is_chat = |body: &String| body.contains("\"stream\":true");
        let (mut chats, summaries): (Vec<String>, Vec<String>) = self.relay.take().into_iter().partition(is_chat);
        let forwarded = chats.pop().expect("one was forwarded");
        let what: Value = serde_json::from_str(&forwarded).unwrap();
        let reserve = what["max_tokens"].as_u64().expect("the client named it") as u32;
        assert!(prompt + reserve <= window, "{name}: {prompt} + {reserve} of {window}");

        check::structure(&name, &sent, &what);
        let rewritten = what != sent;
        if rewritten {
            let rendered = http::post(&format!("{}/apply-template", self.llama.url()), &forwarded);
            assert_eq!(rendered.status, 200, "{name}: the server's template refuses it: {}", rendered.text);
        } else {
            assert_eq!(forwarded, sent.to_string(), "{name}: what needs no rewriting goes byte for byte");
        }
        let turn = Turn {
            end,
            action: header("action"),
            conversation: header("conversation"),
            window,
            prompt,
            cached: cached as u32,
            evaluated: evaluated as u32,
            forwarded,
            rewritten,
            summaries,
            first,
        };
        say(&format!(
            "{} {end:>3}: {prompt:>5} of {window} tokens, {evaluated:>5} evaluated, {:<20} {:.1} s {}",
            session.name,
            turn.action,
            started.elapsed().as_secs_f64(),
            reply.ours("warning"),
        ));
        turn
    }
}
