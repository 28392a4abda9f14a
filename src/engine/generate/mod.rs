//! llama.cpp at work: a model's file loaded with a window, and chats answered by it.
//!
//! It runs in a process of its own, the same program as a worker: llama.cpp ends the process on some files and when memory
//! runs out, and whoever talks to the proxy must not lose it over that. One request is worked on at a time, and what is
//! evaluated stays: the next prompt costs what it does not share with the last. A prompt that another takes the place of is
//! cached in RAM, and taken back when its conversation goes on.
//!
//! ```text
//! Generator::start(program, file, setup) ──spawns──► windowsill engine-worker --model FILE … ──► work(…)
//!          .ask(&Request) -> Answers      ◄─ a line of JSON each way ─►                           └─► session ─► edge.cpp
//! ```

mod generator;
#[cfg(feature = "engine")]
mod native;
#[cfg(feature = "engine")]
mod session;
#[cfg(feature = "engine")]
mod text;
mod worker;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gguf::CacheTypes;

pub use generator::{Answers, Generator};
pub use worker::work;

/// The hidden command of this program that [`work`]s.
pub const COMMAND: &str = "engine-worker";

/// How a context is set up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// The window (tokens).
    pub n_ctx: u32,
    /// The most tokens handed to llama.cpp at once.
    pub n_batch: u32,
    /// Tokens evaluated at once.
    pub n_ubatch: u32,
    /// Threads that choose tokens one after the other.
    pub threads: u32,
    /// Threads that evaluate prompts.
    pub threads_batch: u32,
    /// The types of the KV cache.
    pub kv_type: CacheTypes,
    /// Layers on GPUs, from the last, the output layer counted as one; more than there are for all, `None` for as many as fit.
    pub gpu_layers: Option<u32>,
    /// The share of each GPU's memory to leave free where as many layers as fit go there.
    pub headroom: f64,
}

/// Copies of the state that are kept of a model that cannot be cut back to any token, to go on from.
pub const SNAPSHOTS: usize = 8;

/// The most that cached prompts may take of RAM (bytes): as llama-server's `--cache-ram` by default.
pub const CACHE_RAM: u64 = 8 << 30;

/// What there is to know of a loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The window it has (tokens): what was asked for, as llama.cpp rounds it.
    pub n_ctx: u32,
    /// The context length it was trained for (tokens).
    pub trained: u32,
    /// The most tokens handed to llama.cpp at once.
    pub n_batch: u32,
    /// Tokens of its vocabulary.
    pub n_vocab: u32,
    /// Its tensors (bytes).
    pub bytes: u64,
    /// Its parameters.
    pub parameters: u64,
    /// What model, context and scratch buffers take on GPUs (bytes).
    pub on_gpus: u64,
    /// What they take in RAM (bytes), what is mapped from the file included.
    pub in_ram: u64,
    /// The GPUs that hold some of it, by name.
    pub gpus: Vec<String>,
    /// Its state can be cut back to any token: no sliding windows, no recurrent layers.
    pub rewinds: bool,
}

/// What is asked of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// `messages`, `tools` and what else the prompt is made of, or `prompt`; and `sampling`: llama-server's names. `likely`: of so
    /// many of the likeliest tokens at each place the odds are wanted, `as_chosen` once all is done to them to choose one.
    /// `sampling.logit_bias` are pairs of a token or a text, and a number or `false` for never.
    pub body: Value,
    /// Texts that end the reply, and are not part of it.
    pub stop: Vec<String>,
    /// The most tokens of the reply; `None` for what the window has room for.
    pub max_tokens: Option<u32>,
    /// The reply is wanted as it is made; else all of it at its end.
    pub stream: bool,
    /// What is wanted of it.
    pub wants: Wants,
    /// RAM that is free now (bytes), for the prompt cache.
    pub spare: u64,
}

/// What is wanted of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wants {
    /// A reply.
    #[default]
    Reply,
    /// The number of the prompt's tokens: nothing is evaluated.
    Count,
    /// What llama.cpp tells of a text, of tokens, or of messages: nothing is evaluated, either. `body` holds `content`, `tokens` or
    /// `messages`.
    Words,
}

/// What becomes of a request, in this order: it is taken up, it begins, the reply is told, it ends; or it is counted, or refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The process works on it from now on.
    Taken,
    /// The prompt has so many tokens, and that was all.
    Counted(u32),
    /// What was asked of words, and that was all.
    Words(Value),
    /// The prompt was read, and is being evaluated.
    Began {
        /// Its tokens.
        prompt_tokens: u32,
        /// How many of them need no evaluation.
        cached_tokens: u32,
    },
    /// The odds of the next token of the reply: an entry of OpenAI's `logprobs`.
    Odds(Value),
    /// More of a chat's reply: OpenAI's deltas.
    Said(Vec<Value>),
    /// More of a text.
    Text(String),
    /// The next token of a text.
    Token(i32),
    /// The reply is whole.
    Ended(Ended),
    /// There is no reply, or no more of it.
    Refused(Refused),
}

/// How a reply came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The limit of tokens was reached, or the window is full; else the model came to an end, or to a text that ends replies.
    pub cut: bool,
    /// The text that ended the reply, where one did.
    pub stopped: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that needed no evaluation.
    pub cached_tokens: u32,
    /// Tokens of the reply.
    pub completion_tokens: u32,
    /// How long the prompt's evaluation took (milliseconds).
    pub prompt_ms: f64,
    /// How long the reply took (milliseconds).
    pub completion_ms: f64,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// The prompt is longer than the window.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens of the window.
        n_ctx: u32,
    },
    /// The request cannot be answered by this model, and why.
    Bad(String),
    /// llama.cpp gave up, and why.
    Failed(String),
}
