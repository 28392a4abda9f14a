//! What is remembered of a conversation between its requests, in memory only and bounded: the last exact count, a brief
//! made ahead, spend. Losing it costs a count or a brief, never a message.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::conversation::Digest;
use crate::measure::Known;
use crate::usage::Reported;

/// Conversations that are remembered.
const REMEMBERED: usize = 4096;

/// A brief that a model wrote ahead of need.
#[derive(Debug, Clone)]
pub struct Brief {
    /// How many messages of the body it covers.
    pub covers: usize,
    /// The chain hash of the last of them.
    pub chain: Digest,
    /// What the model wrote.
    pub text: Arc<str>,
}

/// A brief that is being made.
#[derive(Debug, Clone)]
pub struct Making {
    /// Stops it.
    pub cancel: CancellationToken,
    /// Turns true when it is over, whatever came of it.
    pub over: watch::Receiver<bool>,
}

/// Tokens spent on a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spend {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens forwarded.
    pub prompt: u64,
    /// Of these, taken from the server's cache.
    pub cached: u64,
    /// Of these, evaluated.
    pub evaluated: u64,
    /// Tokens generated.
    pub completion: u64,
    /// Prompt tokens of summaries.
    pub summary_prompt: u64,
    /// Of these, evaluated.
    pub summary_evaluated: u64,
    /// Rewrites.
    pub rewrites: u64,
}

impl Spend {
    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "requests": self.requests, "prompt_tokens": self.prompt, "cached_tokens": self.cached,
            "evaluated_tokens": self.evaluated, "completion_tokens": self.completion,
            "summary_prompt_tokens": self.summary_prompt, "summary_evaluated_tokens": self.summary_evaluated,
            "rewrites": self.rewrites,
        })
    }

    /// Reads what [`Spend::json`] wrote; absent figures are zero.
    pub fn from_json(value: &Value) -> Spend {
        let n = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
        Spend {
            requests: n("requests"),
            prompt: n("prompt_tokens"),
            cached: n("cached_tokens"),
            evaluated: n("evaluated_tokens"),
            completion: n("completion_tokens"),
            summary_prompt: n("summary_prompt_tokens"),
            summary_evaluated: n("summary_evaluated_tokens"),
            rewrites: n("rewrites"),
        }
    }

    /// Adds a reply of the conversation's own.
    pub fn add(&mut self, reported: &Reported) {
        let n = |t: Option<u32>| t.map_or(0, u64::from);
        self.requests += 1;
        self.prompt += n(reported.prompt);
        self.cached += n(reported.cached);
        self.evaluated += n(reported.evaluated);
        self.completion += n(reported.completion);
    }

    /// Adds a summary.
    pub fn add_summary(&mut self, reported: &Reported) {
        self.summary_prompt += reported.prompt.map_or(0, u64::from);
        self.summary_evaluated += reported.evaluated.map_or(0, u64::from);
    }
}

/// One conversation.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// The last prompt that the server counted, with the chain hash of its last message and the view's fingerprint.
    pub known: Option<(Digest, Digest, Known)>,
    /// A brief made ahead.
    pub brief: Option<Brief>,
    /// A brief in the making.
    pub making: Option<Making>,
    /// Requests under way.
    pub in_flight: usize,
    /// Spend since the record began.
    pub spend: Spend,
}

/// All conversations in memory.
pub struct Lives {
    lives: Mutex<LruCache<String, Live>>,
}

impl Default for Lives {
    fn default() -> Self {
        Lives { lives: Mutex::new(LruCache::new(NonZeroUsize::new(REMEMBERED).expect("not zero"))) }
    }
}

impl Lives {
    /// Looks at, or changes, one conversation.
    pub fn with<T>(&self, id: &str, act: impl FnOnce(&mut Live) -> T) -> T {
        let mut lives = self.lives.lock();
        act(lives.get_or_insert_mut_ref(id, Live::default))
    }

    /// Whether a conversation is in memory.
    pub fn knows(&self, id: &str) -> bool {
        self.lives.lock().contains(id)
    }
}
