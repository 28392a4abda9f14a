//! What is remembered of a conversation between its requests, in memory only and bounded: the last exact count, a brief
//! made ahead, spend. Losing it costs a count or a brief, never a message.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ahead::brief::Reply;
use super::traffic::Using;
use super::turn::history::Switched;
use super::turn::prefix::Sent;
use super::turn::whose::Whose;
use crate::conversation::edit::View;
use crate::conversation::{Digest, Plainness, Tokens};
use crate::guard::books::Books;
use crate::guard::triggers::{Folded, Pace};
use crate::measure::Known;
use crate::plan::Regions;
use crate::recall::missed::Kind;
use crate::store::Original;
use crate::usage::Reported;

/// Conversations that are remembered.
const REMEMBERED: usize = 4096;

/// A conversation that had no request for so long is not under way.
const LATELY: Duration = Duration::from_secs(600);

/// A brief that a model wrote ahead of need.
#[derive(Debug, Clone)]
pub(super) struct Brief {
    /// How many messages of the body it covers.
    pub(super) covers: usize,
    /// The chain hash of the last of them.
    pub(super) chain: Digest,
    /// What the model wrote.
    pub(super) text: Arc<str>,
    /// Seconds that this took.
    pub(super) seconds: f64,
    /// The reply that the model read behind these messages, where it did.
    pub(super) reply: Option<Reply>,
    /// Messages among those that it covers and did not read.
    pub(super) unread: Vec<usize>,
}

/// A brief that is being made.
#[derive(Debug, Clone)]
pub(super) struct Making {
    /// Stops it.
    pub(super) cancel: CancellationToken,
    /// Turns true when it is over, whatever came of it.
    pub(super) over: watch::Receiver<bool>,
    /// Whether a model was asked already, or it still waits whether the client comes back at once.
    pub(super) asking: Arc<AtomicBool>,
    /// Requests that wait for it.
    pub(super) waiting: Arc<AtomicUsize>,
    /// The chain hash of the last message that it covers.
    pub(super) chain: Digest,
    /// How many messages of the body it covers.
    pub(super) covers: usize,
}

/// A request that waits for a brief, until it is dropped.
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Making {
    /// Whether a model writes it now, for a history that this one goes on.
    pub(super) fn is_for(&self, chain: &[Digest]) -> bool {
        let same = self.covers.checked_sub(1).and_then(|last| chain.get(last)) == Some(&self.chain);
        same && self.asking.load(Ordering::Relaxed)
    }

    /// Notes that a request waits for it.
    pub(super) fn waited_for(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(Arc::clone(&self.waiting))
    }

    /// Whether a request waits for it.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
}

/// A view that was made ahead of need for the histories that go on behind these messages. The same history sent again
/// still gets the view that it had.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    /// How many messages of the body it was made for.
    pub(super) depth: usize,
    /// The chain hash of the last of them.
    pub(super) chain: Digest,
    /// The reply behind it that its brief was made from, where it was.
    pub(super) reply: Option<Reply>,
    /// The complete view.
    pub(super) view: View,
    /// Originals that leave the prompt with it.
    pub(super) originals: Vec<Original>,
    /// The layers that acted.
    pub(super) layers: Vec<&'static str>,
    /// Why.
    pub(super) because: Vec<String>,
    /// The prompt before and after.
    pub(super) regions: (Regions, Regions),
    /// Seconds that it took: its brief, and having it evaluated.
    pub(super) seconds: f64,
    /// Its size, where the server evaluated it already.
    pub(super) tokens: Option<Tokens>,
}

/// What was kept with a conversation; what is absent or cannot be read is as it is at the start.
pub(super) fn kept<'a, T: Default + Deserialize<'a>>(value: &'a Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

/// Tokens spent on a conversation, as they are kept with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Spend {
    /// Requests.
    pub(super) requests: u64,
    /// Prompt tokens forwarded.
    #[serde(rename = "prompt_tokens")]
    pub(super) prompt: u64,
    /// Of these, taken from the server's cache.
    #[serde(rename = "cached_tokens")]
    pub(super) cached: u64,
    /// Of these, evaluated.
    #[serde(rename = "evaluated_tokens")]
    pub(super) evaluated: u64,
    /// Tokens generated.
    #[serde(rename = "completion_tokens")]
    pub(super) completion: u64,
    /// Prompt tokens of summaries.
    #[serde(rename = "summary_prompt_tokens")]
    pub(super) summary_prompt: u64,
    /// Of these, evaluated.
    #[serde(rename = "summary_evaluated_tokens")]
    pub(super) summary_evaluated: u64,
    /// Prompt tokens of prompts that were sent to be evaluated before they are needed.
    #[serde(rename = "prefill_prompt_tokens")]
    pub(super) prefill_prompt: u64,
    /// Of these, evaluated.
    #[serde(rename = "prefill_evaluated_tokens")]
    pub(super) prefill_evaluated: u64,
    /// Prompt tokens of digests.
    #[serde(rename = "digest_prompt_tokens")]
    pub(super) digest_prompt: u64,
    /// Tokens that digest models wrote.
    #[serde(rename = "digest_completion_tokens")]
    pub(super) digest_completion: u64,
    /// Rewrites.
    pub(super) rewrites: u64,
}

impl Spend {
    /// Adds a reply of the conversation's own.
    pub(super) fn add(&mut self, reported: &Reported) {
        let n = |t: Option<u32>| t.map_or(0, u64::from);
        self.requests += 1;
        self.prompt += n(reported.prompt);
        self.cached += n(reported.cached);
        self.evaluated += n(reported.evaluated);
        self.completion += n(reported.completion);
    }

    /// Adds a round of a reply that was not its last.
    pub(super) fn add_round(&mut self, reported: &Reported) {
        self.add(reported);
        self.requests -= 1;
    }

    /// Adds a digest.
    pub(super) fn add_digest(&mut self, reported: &Reported) {
        self.digest_prompt += reported.prompt.map_or(0, u64::from);
        self.digest_completion += reported.completion.map_or(0, u64::from);
    }

    /// Adds a prompt that was sent ahead.
    pub(super) fn add_prefill(&mut self, reported: &Reported) {
        self.prefill_prompt += reported.prompt.map_or(0, u64::from);
        self.prefill_evaluated += reported.evaluated.map_or(0, u64::from);
    }

    /// Adds a summary.
    pub(super) fn add_summary(&mut self, reported: &Reported) {
        self.summary_prompt += reported.prompt.map_or(0, u64::from);
        self.summary_evaluated += reported.evaluated.map_or(0, u64::from);
    }
}

/// How often something was read again after it had left the prompt, by the kind of reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Misses([u64; Kind::ALL.len()]);

impl Misses {
    /// Counts one.
    pub(super) fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// Reads what was kept; absent figures are zero.
    pub(super) fn from_json(value: &Value) -> Misses {
        Misses(Kind::ALL.map(|kind| value.get(kind.as_str()).and_then(Value::as_u64).unwrap_or(0)))
    }
}

impl Serialize for Misses {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(Kind::ALL.iter().map(|kind| (kind.as_str(), self.0[*kind as usize])))
    }
}

/// One conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct Live {
    /// The last prompt that the server counted, with the chain hash of its last message and the view's fingerprint.
    pub(super) known: Option<(Digest, Digest, Known)>,
    /// What the server evaluated for it last: tokens of the prompt, and of the reply where they were counted.
    pub(super) held: Option<(Tokens, Option<Tokens>)>,
    /// The model that it was last sent to.
    pub(super) model: Option<Switched>,
    /// Whose it is.
    pub(super) whose: Option<Arc<Whose>>,
    /// What tells the text of the last reply from others, where it had any.
    pub(super) replied: Option<Digest>,
    /// The last prompt that was forwarded.
    pub(super) sent: Option<Sent>,
    /// The view that it was forwarded in.
    pub(super) sent_view: Option<View>,
    /// How plainly its history has to be said, and to which model: the one that refused it otherwise.
    pub(super) plainness: Option<(Switched, Plainness)>,
    /// The last prompt that a server took: the chain hash of its last message, and how many it had.
    pub(super) taken: Option<(Digest, usize)>,
    /// Marks of the client's messages, as far as they are spelled as the record has them.
    pub(super) as_recorded: Vec<u64>,
    /// A brief made ahead.
    pub(super) brief: Option<Brief>,
    /// What a model wrote for a fold whose price was asked.
    pub(super) draft: Option<super::desk::compact::Draft>,
    /// A brief in the making.
    pub(super) making: Option<Making>,
    /// Briefs in a row that were stopped in the making, since the next request came first.
    pub(super) stopped: u32,
    /// A view made ahead.
    pub(super) ahead: Option<Ahead>,
    /// How long its model is to stay in memory, as the client spelled it last.
    pub(super) keep_alive: Option<String>,
    /// When a prompt was last forwarded.
    pub(super) last: Option<Instant>,
    /// A model was asked for a title.
    pub(super) titled: bool,
    /// Requests under way.
    pub(super) in_flight: usize,
    /// Spend since the record began.
    pub(super) spend: Spend,
    /// What of it belongs to this turn and this session.
    pub(super) books: Books,
    /// What was read again after it had left the prompt.
    pub(super) missed: Misses,
    /// Where the conversation stood when it was last folded.
    pub(super) folded: Folded,
    /// The fold that is due after the next reply, if one is.
    pub(super) fold_due: Option<Pace>,
    /// The task that it was last taken for.
    pub(super) task: Option<String>,
    /// What could not be said of its history and is in the record.
    pub(super) unsaid: HashSet<Digest>,
    /// Whether the record was asked what was spent before.
    pub(super) loaded: bool,
    /// Why no model wrote a brief of it the last time, where none did.
    pub(super) unsummarized: Option<String>,
    /// Whether it was said that the model is too small.
    pub(super) small_told: bool,
}

impl Live {
    /// Has the conversation folded after the reply under way, with this brief.
    pub(super) fn fold_with(&mut self, brief: Brief, due: Pace) {
        self.brief = Some(brief);
        self.fold_due = Some(due);
    }
}

/// What of a conversation is kept with it in the record.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Kept {
    /// Whose it is.
    pub(super) whose: Option<Whose>,
    /// Spend since the record began.
    pub(super) spend: Spend,
    /// What of it belongs to this turn and this session.
    pub(super) books: Books,
    /// What was read again after it had left the prompt.
    pub(super) missed: Misses,
    /// Where it stood when it was last folded.
    pub(super) folded: Folded,
}

impl Kept {
    pub(super) fn of(live: &Live) -> Kept {
        let whose = live.whose.as_deref().cloned();
        Kept { whose, spend: live.spend, books: live.books, missed: live.missed, folded: live.folded }
    }
}

/// All conversations in memory.
pub(super) struct LiveConversations {
    lives: Mutex<LruCache<String, Live>>,
    /// First message of the history that a name was given to.
    names: Mutex<LruCache<String, Digest>>,
    /// What made the chains of the histories that came last, by what tells each of them from others.
    ends: Mutex<LruCache<u64, Arc<str>>>,
}

impl Default for LiveConversations {
    fn default() -> Self {
        let remembered = NonZeroUsize::new(REMEMBERED).expect("not zero");
        LiveConversations {
            lives: Mutex::new(LruCache::new(remembered)),
            names: Mutex::new(LruCache::new(remembered)),
            ends: Mutex::new(LruCache::new(remembered)),
        }
    }
}

impl LiveConversations {
    /// Looks at, or changes, one conversation.
    pub(super) fn with<T>(&self, id: &str, act: impl FnOnce(&mut Live) -> T) -> T {
        let mut lives = self.lives.lock();
        act(lives.get_or_insert_mut_ref(id, Live::default))
    }

    /// Gives a name to the history that begins with `root`; false where another history has it.
    pub(super) fn claim(&self, name: &str, root: &Digest) -> bool {
        *self.names.lock().get_or_insert(name.to_owned(), || *root) == *root
    }

    /// Gives a name away once: false where anybody has it.
    pub(super) fn take(&self, name: &str, root: &Digest) -> bool {
        let mut names = self.names.lock();
        let free = !names.contains(name);
        if free {
            names.put(name.to_owned(), *root);
        }
        free
    }

    /// Notes what made the chain of a history.
    pub(super) fn note_end(&self, end: u64, seed: Arc<str>) {
        self.ends.lock().put(end, seed);
    }

    /// What made the chain of the longest of these histories that came.
    pub(super) fn last_end(&self, ends: &[u64]) -> Option<Arc<str>> {
        let mut known = self.ends.lock();
        ends.iter().rev().find_map(|end| known.get(end).cloned())
    }

    /// Notes that a request of a conversation is under way, until the flight is dropped, and with it what it uses.
    pub(super) fn fly(self: &Arc<Self>, id: &str, using: Using) -> Flight {
        self.with(id, |l| l.in_flight += 1);
        Flight { lives: Arc::clone(self), id: id.to_owned(), _using: using }
    }

    /// Whether a request of any conversation is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.lives.lock().iter().any(|(_, live)| live.in_flight > 0)
    }

    /// How many conversations are under way: whose prompts a server may still hold for good reason.
    pub(super) fn lately(&self) -> usize {
        let lives = self.lives.lock();
        lives.iter().filter(|(_, live)| live.last.is_some_and(|at| at.elapsed() < LATELY)).count()
    }
}

/// A request under way.
pub(super) struct Flight {
    lives: Arc<LiveConversations>,
    id: String,
    _using: Using,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.lives.with(&self.id, |l| l.in_flight = l.in_flight.saturating_sub(1));
    }
}
