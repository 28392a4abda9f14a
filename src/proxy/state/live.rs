//! What is remembered of a conversation between its requests, in memory only and bounded: the last exact count, a brief
//! made ahead, spend. Losing it costs a count or a brief, never a message.

use std::collections::{HashMap, HashSet};
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

use super::sent::Sent;
use super::sizes::Sizes;
use super::walls::Walls;
use super::whose::Whose;
use crate::apply::Written;
use crate::clock::now_ms;
use crate::conversation::edit::View;
use crate::conversation::{Digest, Message, Plainness, Tokens};
use crate::guard::books::Books;
use crate::guard::triggers::{Folded, Pace};
use crate::measure::{Known, ModelKey};
use crate::plan::{Because, Regions};
use crate::proxy::traffic::Using;
use crate::recall::missed::Kind;
use crate::store::Original;
use crate::usage::Reported;

/// Conversations that are remembered.
const REMEMBERED: usize = 4096;

/// How often the pause before a brief is doubled when the client keeps coming back before one is done: what is begun in vain costs
/// the server's time, and the user's.
const DOUBLED: u32 = 6;

/// Conversations whose prompts are looked for in a server's slots.
const SLOTS: usize = 64;

/// A conversation that had no request for so long is not under way.
const LATELY: Duration = Duration::from_secs(600);

/// A brief that a model wrote ahead of need.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Brief {
    /// How many messages of the body it covers.
    pub(in crate::proxy) covers: usize,
    /// The chain hash of the last of them.
    pub(in crate::proxy) chain: Digest,
    /// What the model wrote.
    pub(in crate::proxy) text: Arc<str>,
    /// Seconds that this took.
    pub(in crate::proxy) seconds: f64,
    /// The reply that the model read behind these messages, where it did.
    pub(in crate::proxy) reply: Option<Reply>,
    /// Messages among those that it covers and did not read.
    pub(in crate::proxy) unread: Vec<usize>,
}

/// The model that a conversation had until now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) struct Switched {
    /// Its name, as requested.
    pub(in crate::proxy) model: String,
    /// Name of its upstream.
    pub(in crate::proxy) upstream: String,
}

/// A reply that a brief was made from, before the client had it in its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) struct Reply {
    /// Where it stands in the body of the next request.
    at: usize,
    /// Characters of it that were read, white space aside, and what tells them from others.
    length: usize,
    digest: Digest,
}

impl Reply {
    /// The reply with this text, which stands at an index.
    pub(in crate::proxy) fn new(at: usize, text: &str) -> Reply {
        let bare: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        Reply { at, length: bare.chars().count(), digest: Digest::of(bare.as_bytes()) }
    }

    /// Whether all that was read stands in a text: clients break lines otherwise, the end of a long reply was not read, and in front
    /// of one stands what the model said before it recalled something.
    fn stands_in(&self, text: &str) -> bool {
        let bare: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let is = |part: &[char]| Digest::of(part.iter().collect::<String>().as_bytes()) == self.digest;
        bare.get(..self.length).is_some_and(is) || is(&bare[bare.len().saturating_sub(self.length)..])
    }

    /// Whether it is the reply of a history.
    pub(in crate::proxy) fn is_in(&self, body: &[Message]) -> bool {
        body.get(self.at).is_some_and(|message| self.stands_in(&message.text))
    }
}

impl Brief {
    /// Whether a history goes on where this was made. `reply`: the text behind its last message, which it does not have yet.
    pub(in crate::proxy) fn is_of(&self, chain: &[Digest], body: &[Message], reply: Option<&str>) -> bool {
        let goes_on = self.covers.checked_sub(1).and_then(|last| chain.get(last)) == Some(&self.chain);
        let replied = |read: &Reply| match reply {
            Some(text) if self.covers == chain.len() => read.stands_in(text),
            _ => read.is_in(body),
        };
        goes_on && self.reply.as_ref().is_none_or(replied)
    }

    /// As it goes into a view.
    pub(in crate::proxy) fn written(&self) -> Written<'_> {
        let read = self.reply.map_or(self.covers, |reply| reply.at + 1);
        Written { text: &self.text, read, unread: &self.unread }
    }
}

/// What a model wrote for a fold that was not made yet, and which fold that was.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::proxy) struct Unmade {
    /// The chain hash of the last message.
    pub(in crate::proxy) tip: Option<Digest>,
    /// The view that it was to be made in.
    pub(in crate::proxy) old: View,
    /// Messages that it was to take, from the first.
    pub(in crate::proxy) to: usize,
    /// What the brief was to keep above all.
    pub(in crate::proxy) focus: Option<String>,
    /// What was written; `None` where the model wrote nothing of use.
    pub(in crate::proxy) text: Option<Arc<str>>,
}

/// A brief that is being made.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Making {
    /// Stops it.
    pub(in crate::proxy) cancel: CancellationToken,
    /// Turns true when it is over, whatever came of it.
    pub(in crate::proxy) over: watch::Receiver<bool>,
    /// Whether a model was asked already, or it still waits whether the client comes back at once.
    pub(in crate::proxy) asking: Arc<AtomicBool>,
    /// Requests that wait for it.
    pub(in crate::proxy) waiting: Arc<AtomicUsize>,
    /// The chain hash of the last message that it covers.
    pub(in crate::proxy) chain: Digest,
    /// How many messages of the body it covers.
    pub(in crate::proxy) covers: usize,
}

/// A request that waits for a brief, until it is dropped.
pub(in crate::proxy) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Making {
    /// Whether a model writes it now, for a history that this one goes on.
    pub(in crate::proxy) fn is_for(&self, chain: &[Digest]) -> bool {
        let same = self.covers.checked_sub(1).and_then(|last| chain.get(last)) == Some(&self.chain);
        same && self.asking.load(Ordering::Relaxed)
    }

    /// Notes that a request waits for it.
    pub(in crate::proxy) fn waited_for(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(Arc::clone(&self.waiting))
    }

    /// Whether a request waits for it.
    pub(in crate::proxy) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
}

/// A view that was made ahead of need for the histories that go on behind these messages. The same history sent again
/// still gets the view that it had.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Ahead {
    /// How many messages of the body it was made for.
    pub(in crate::proxy) depth: usize,
    /// The chain hash of the last of them.
    pub(in crate::proxy) chain: Digest,
    /// The mark of the view that it goes on from.
    pub(in crate::proxy) of: Digest,
    /// The reply behind it that its brief was made from, where it was.
    pub(in crate::proxy) reply: Option<Reply>,
    /// The complete view.
    pub(in crate::proxy) view: View,
    /// Originals that leave the prompt with it.
    pub(in crate::proxy) originals: Vec<Original>,
    /// The layers that acted.
    pub(in crate::proxy) layers: Vec<&'static str>,
    /// Why it was due, where that is no line; and what its plan says.
    pub(in crate::proxy) because: (Option<String>, Vec<Because>),
    /// The prompt before and after.
    pub(in crate::proxy) regions: (Regions, Regions),
    /// Seconds that it took: its brief, and having it evaluated.
    pub(in crate::proxy) seconds: f64,
    /// Its size, where the server evaluated it already.
    pub(in crate::proxy) tokens: Option<Tokens>,
}

/// What was kept with a conversation; what is absent or cannot be read is as it is at the start.
pub(in crate::proxy) fn kept<'a, T: Default + Deserialize<'a>>(value: &'a Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

/// Tokens spent on a conversation, as they are kept with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::proxy) struct Spend {
    /// Requests.
    pub(in crate::proxy) requests: u64,
    /// Prompt tokens forwarded.
    #[serde(rename = "prompt_tokens")]
    pub(in crate::proxy) prompt: u64,
    /// Of these, taken from the server's cache.
    #[serde(rename = "cached_tokens")]
    pub(in crate::proxy) cached: u64,
    /// Of these, evaluated.
    #[serde(rename = "evaluated_tokens")]
    pub(in crate::proxy) evaluated: u64,
    /// Tokens generated.
    #[serde(rename = "completion_tokens")]
    pub(in crate::proxy) completion: u64,
    /// Prompt tokens of summaries.
    #[serde(rename = "summary_prompt_tokens")]
    pub(in crate::proxy) summary_prompt: u64,
    /// Of these, evaluated.
    #[serde(rename = "summary_evaluated_tokens")]
    pub(in crate::proxy) summary_evaluated: u64,
    /// Tokens that models wrote for summaries.
    #[serde(rename = "summary_completion_tokens")]
    pub(in crate::proxy) summary_completion: u64,
    /// Prompt tokens of prompts that were sent to be evaluated before they are needed.
    #[serde(rename = "prefill_prompt_tokens")]
    pub(in crate::proxy) prefill_prompt: u64,
    /// Of these, evaluated.
    #[serde(rename = "prefill_evaluated_tokens")]
    pub(in crate::proxy) prefill_evaluated: u64,
    /// Prompt tokens of digests.
    #[serde(rename = "digest_prompt_tokens")]
    pub(in crate::proxy) digest_prompt: u64,
    /// Tokens that digest models wrote.
    #[serde(rename = "digest_completion_tokens")]
    pub(in crate::proxy) digest_completion: u64,
}

impl Spend {
    /// Adds a reply of the conversation's own.
    pub(in crate::proxy) fn add(&mut self, reported: &Reported) {
        let n = |t: Option<u32>| t.map_or(0, u64::from);
        self.requests += 1;
        self.prompt += n(reported.prompt);
        self.cached += n(reported.cached);
        self.evaluated += n(reported.evaluated);
        self.completion += n(reported.completion);
    }

    /// Adds a round of a reply that was not its last.
    pub(in crate::proxy) fn add_round(&mut self, reported: &Reported) {
        self.add(reported);
        self.requests -= 1;
    }

    /// Adds a digest.
    pub(in crate::proxy) fn add_digest(&mut self, reported: &Reported) {
        self.digest_prompt += reported.prompt.map_or(0, u64::from);
        self.digest_completion += reported.completion.map_or(0, u64::from);
    }

    /// Adds a prompt that was sent ahead.
    pub(in crate::proxy) fn add_prefill(&mut self, reported: &Reported) {
        self.prefill_prompt += reported.prompt.map_or(0, u64::from);
        self.prefill_evaluated += reported.evaluated.map_or(0, u64::from);
    }

    /// Adds a summary.
    pub(in crate::proxy) fn add_summary(&mut self, reported: &Reported) {
        self.summary_prompt += reported.prompt.map_or(0, u64::from);
        self.summary_evaluated += reported.evaluated.map_or(0, u64::from);
        self.summary_completion += reported.completion.map_or(0, u64::from);
    }
}

/// How often something was read again after it had left the prompt, by the kind of reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Misses([u64; Kind::ALL.len()]);

impl Misses {
    /// Counts one.
    pub(in crate::proxy) fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// Reads what was kept; absent figures are zero.
    pub(in crate::proxy) fn from_json(value: &Value) -> Misses {
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
pub(in crate::proxy) struct Live {
    /// Whose it is.
    pub(in crate::proxy) whose: Option<Arc<Whose>>,
    /// What tells the text of the last reply from others, where it had any.
    pub(in crate::proxy) replied: Option<Digest>,
    /// Requests under way.
    pub(in crate::proxy) in_flight: usize,
    /// Requests that are prepared.
    preparing: usize,
    /// Since when there are any of either (Unix milliseconds).
    flown_ms: i64,
    /// What the newest of them is at, as the phases of a request are called.
    phase: &'static str,
    /// The task that it was last taken for.
    pub(in crate::proxy) task: Option<String>,
    /// What could not be said of its history and is in the record.
    pub(in crate::proxy) unsaid: HashSet<Digest>,
    /// Whether it was said that the model is too small.
    pub(in crate::proxy) small_told: bool,
    /// What was sent last, and what the server said of it.
    pub(in crate::proxy) prompt: LastPrompt,
    /// What is done between its requests.
    pub(in crate::proxy) work: Work,
    /// What it has taken so far, as it is kept with it.
    pub(in crate::proxy) accounts: Accounts,
}

/// What was sent last, and what the server said of it.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct LastPrompt {
    /// The last prompt that the server counted, with the chain hash of its last message and the view's fingerprint.
    pub(in crate::proxy) known: Option<(Digest, Digest, Known)>,
    /// What the server evaluated for it last: tokens of the prompt, and of the reply where they were counted.
    pub(in crate::proxy) held: Option<(Tokens, Option<Tokens>)>,
    /// The model that it was last sent to.
    pub(in crate::proxy) model: Option<Switched>,
    /// The last prompt that was forwarded.
    pub(in crate::proxy) sent: Option<Sent>,
    /// A client's own helper sent it: nobody goes on from it.
    pub(in crate::proxy) of_helper: bool,
    /// The view that it was forwarded in.
    pub(in crate::proxy) sent_view: Option<View>,
    /// The last prompt that a server took: the chain hash of its last message, and how many it had.
    pub(in crate::proxy) taken: Option<(Digest, usize)>,
    /// Marks of the client's messages, as far as they are spelled as the record has them.
    pub(in crate::proxy) as_recorded: Vec<u64>,
    /// When a prompt was last forwarded.
    pub(in crate::proxy) last: Option<Instant>,
    /// How long its model is to stay in memory, as the client spelled it last.
    pub(in crate::proxy) keep_alive: Option<String>,
    /// How plainly its history has to be said, and to which model: the one that refused it otherwise.
    pub(in crate::proxy) plainness: Option<(Switched, Plainness)>,
}

/// What is done between its requests.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Work {
    /// A brief made ahead.
    pub(in crate::proxy) brief: Option<Brief>,
    /// Tokens that a model read and wrote for the newest brief, until somebody is told.
    pub(in crate::proxy) spent: Option<(u64, u64)>,
    /// What a model wrote for a fold whose price was asked.
    pub(in crate::proxy) draft: Option<Unmade>,
    /// A brief in the making.
    pub(in crate::proxy) making: Option<Making>,
    /// Briefs in a row that were stopped in the making, since the next request came first.
    pub(in crate::proxy) stopped: u32,
    /// A view made ahead.
    pub(in crate::proxy) ahead: Option<Ahead>,
    /// How often a person changed its view, or what is wanted of it: what was begun before that is not for what stands now.
    pub(in crate::proxy) steered: u64,
    /// The fold that is due after the next reply, if one is.
    pub(in crate::proxy) fold_due: Option<Pace>,
    /// Why no model wrote a brief of it the last time, where none did.
    pub(in crate::proxy) unsummarized: Option<String>,
    /// A model was asked for a title.
    pub(in crate::proxy) titled: bool,
}

/// What it has taken so far, as it is kept with it.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Accounts {
    /// Spend since the record began.
    pub(in crate::proxy) spend: Spend,
    /// What of it belongs to this turn and this session.
    pub(in crate::proxy) books: Books,
    /// What was read again after it had left the prompt.
    pub(in crate::proxy) missed: Misses,
    /// Where the conversation stood when it was last folded.
    pub(in crate::proxy) folded: Folded,
    /// How the sizes of its messages are told.
    pub(in crate::proxy) sizes: Sizes,
    /// Where its lines stood for the last request.
    pub(in crate::proxy) walls: Walls,
    /// What the client's history took at the last request.
    pub(in crate::proxy) whole: Option<Whole>,
    /// Whether the record was asked what was spent before.
    pub(in crate::proxy) loaded: bool,
}

/// What a client's whole history took at a request, had nothing been rewritten. The next request goes on from it, so that a history that
/// grows never seems to shrink because one estimate of it is lower than another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) struct Whole {
    /// Its messages.
    pub(in crate::proxy) messages: usize,
    /// Its tokens, with system prompt and tools.
    pub(in crate::proxy) tokens: Tokens,
    /// What its system prompt and tools were planned with; unknown after a restart.
    pub(in crate::proxy) head: Option<Tokens>,
    /// Whose tokens they are: another model counts another way. Unknown after a restart.
    pub(in crate::proxy) of: Option<Digest>,
}

impl Whole {
    /// As the record tells of the last request.
    pub(in crate::proxy) fn of(state: &Value) -> Option<Whole> {
        let of = |path: &str| state.pointer(path).and_then(Value::as_u64).and_then(|n| Tokens::try_from(n).ok());
        let messages = usize::try_from(state["messages"].as_u64()?).ok()?;
        Some(Whole { messages, tokens: of("/client_tokens")?, head: None, of: None })
    }

    /// What stands for a model.
    pub(in crate::proxy) fn model(key: &ModelKey) -> Digest {
        Digest::of(key.to_string().as_bytes())
    }

    /// What it takes with another head and with more messages, of so many tokens.
    pub(in crate::proxy) fn grown(self, head: Tokens, more: Tokens) -> Tokens {
        self.tokens.saturating_sub(self.head.unwrap_or(head)).saturating_add(head).saturating_add(more)
    }
}

impl Live {
    /// Notes when the first of the requests under way began.
    fn begin(&mut self) {
        if self.in_flight + self.preparing == 0 {
            self.flown_ms = now_ms();
        }
    }

    /// Has the conversation folded after the reply under way, with this brief.
    pub(in crate::proxy) fn fold_with(&mut self, brief: Brief, due: Pace) {
        self.work.brief = Some(brief);
        self.work.fold_due = Some(due);
    }
}

/// What of a conversation is kept with it in the record.
#[derive(Debug, Clone, Serialize)]
pub(in crate::proxy) struct Kept {
    /// Whose it is.
    pub(in crate::proxy) whose: Option<Whose>,
    /// Spend since the record began.
    pub(in crate::proxy) spend: Spend,
    /// What of it belongs to this turn and this session.
    pub(in crate::proxy) books: Books,
    /// What was read again after it had left the prompt.
    pub(in crate::proxy) missed: Misses,
    /// Where it stood when it was last folded.
    pub(in crate::proxy) folded: Folded,
    /// How the sizes of its messages are told.
    #[serde(flatten)]
    pub(in crate::proxy) sizes: Sizes,
    /// Where its lines stood for the last request.
    pub(in crate::proxy) walls: Walls,
}

impl Kept {
    pub(in crate::proxy) fn of(live: &Live) -> Kept {
        let whose = live.whose.as_deref().cloned();
        Kept {
            whose,
            spend: live.accounts.spend,
            books: live.accounts.books,
            missed: live.accounts.missed,
            folded: live.accounts.folded,
            sizes: live.accounts.sizes,
            walls: live.accounts.walls.clone(),
        }
    }
}

/// All conversations in memory.
pub(in crate::proxy) struct LiveConversations {
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
    pub(in crate::proxy) fn with<T>(&self, id: &str, act: impl FnOnce(&mut Live) -> T) -> T {
        let mut lives = self.lives.lock();
        act(lives.get_or_insert_mut_ref(id, Live::default))
    }

    /// Gives a name to the history that begins with `root`; false where another history has it.
    pub(in crate::proxy) fn claim(&self, name: &str, root: &Digest) -> bool {
        *self.names.lock().get_or_insert(name.to_owned(), || *root) == *root
    }

    /// Gives a name away once: false where anybody has it.
    pub(in crate::proxy) fn take(&self, name: &str, root: &Digest) -> bool {
        let mut names = self.names.lock();
        let free = !names.contains(name);
        if free {
            names.put(name.to_owned(), *root);
        }
        free
    }

    /// Notes what made the chain of a history.
    pub(in crate::proxy) fn note_end(&self, end: u64, seed: Arc<str>) {
        self.ends.lock().put(end, seed);
    }

    /// What made the chain of the longest of these histories that came.
    pub(in crate::proxy) fn last_end(&self, ends: &[u64]) -> Option<Arc<str>> {
        let mut known = self.ends.lock();
        ends.iter().rev().find_map(|end| known.get(end).cloned())
    }

    /// Stops what is under way for a conversation, for a request that comes first.
    pub(in crate::proxy) fn stop_making(&self, id: &str) {
        let making = self.with(id, |l| {
            // Another branch of the conversation may wait for its own.
            let making = l.work.making.take_if(|m| !m.is_waited_for());
            // What had not begun to ask cost nothing.
            if making.as_ref().is_some_and(|m| m.asking.load(Ordering::Relaxed)) {
                l.work.stopped = (l.work.stopped + 1).min(DOUBLED);
            }
            making
        });
        if let Some(making) = making {
            making.cancel.cancel();
        }
    }

    /// Notes that a person changed the view of a conversation, or what is wanted of it. What was made ahead, or is in the making, was for
    /// what stood before.
    pub(in crate::proxy) fn steer(&self, id: &str) {
        let making = self.with(id, |l| {
            (l.work.ahead, l.work.brief) = (None, None);
            l.work.steered += 1;
            l.work.making.take_if(|m| !m.is_waited_for())
        });
        if let Some(making) = making {
            making.cancel.cancel();
        }
    }

    /// Notes that a request of a conversation is under way, until the flight is dropped, and with it what it uses.
    pub(in crate::proxy) fn fly(self: &Arc<Self>, id: &str, using: Using) -> Flight {
        self.with(id, |l| {
            l.begin();
            l.in_flight += 1;
        });
        Flight { lives: Arc::clone(self), id: id.to_owned(), _using: using }
    }

    /// Notes that a request of a conversation is prepared, until what this gives is dropped.
    pub(in crate::proxy) fn prepare(self: &Arc<Self>, id: &str) -> Preparing {
        self.with(id, |l| {
            l.begin();
            l.preparing += 1;
        });
        Preparing { lives: Arc::clone(self), id: id.to_owned() }
    }

    /// Notes what the newest request of a conversation is at.
    pub(in crate::proxy) fn is_at(&self, id: &str, phase: &'static str) {
        self.with(id, |l| l.phase = phase);
    }

    /// Whether a request of this conversation is under way.
    pub(in crate::proxy) fn is_under_way(&self, id: &str) -> bool {
        self.lives.lock().peek(id).is_some_and(|live| live.in_flight > 0)
    }

    /// Conversations with requests under way.
    pub(in crate::proxy) fn under_way(&self) -> HashMap<String, UnderWay> {
        let flown = |(id, live): (&String, &Live)| {
            let requests = live.in_flight + live.preparing;
            let told = UnderWay { requests, since_ms: live.flown_ms, phase: live.phase };
            (requests > 0).then(|| (id.clone(), told))
        };
        self.lives.lock().iter().filter_map(flown).collect()
    }

    /// Forgets a conversation that is gone from the record.
    pub(in crate::proxy) fn forget(&self, id: &str) {
        let gone = self.lives.lock().pop(id);
        if let Some(making) = gone.and_then(|live| live.work.making) {
            making.cancel.cancel();
        }
        self.names.lock().pop(id);
    }

    /// Forgets what the last prompt of a conversation was and what it took so far: another windowsill answered it since.
    pub(in crate::proxy) fn changed_elsewhere(&self, id: &str) {
        if let Some(live) = self.lives.lock().get_mut(id) {
            let LastPrompt { last, keep_alive, plainness, .. } = std::mem::take(&mut live.prompt);
            live.prompt = LastPrompt { last, keep_alive, plainness, ..LastPrompt::default() };
            live.accounts = Accounts::default();
            live.replied = None;
        }
    }

    /// Whether a request of any conversation is under way.
    pub(in crate::proxy) fn is_busy(&self) -> bool {
        self.lives.lock().iter().any(|(_, live)| live.in_flight > 0)
    }

    /// How many conversations are under way: whose prompts a server may still hold for good reason.
    pub(in crate::proxy) fn lately(&self) -> usize {
        let lives = self.lives.lock();
        let lately = |prompt: &LastPrompt| !prompt.of_helper && prompt.last.is_some_and(|at| at.elapsed() < LATELY);
        lives.iter().filter(|(_, live)| lately(&live.prompt)).count()
    }

    /// What a server held after the last reply of each conversation with this model that somebody may go on with: of those that came
    /// lately, for slots are few.
    pub(in crate::proxy) fn prompts(&self, with: &Switched) -> Vec<(String, (Tokens, Option<Tokens>))> {
        let lives = self.lives.lock();
        let theirs =
            lives.iter().filter(|(_, live)| !live.prompt.of_helper && live.prompt.model.as_ref() == Some(with));
        theirs.filter_map(|(id, live)| Some((id.clone(), live.prompt.held?))).take(SLOTS).collect()
    }
}

/// Requests of a conversation that are not answered yet.
#[derive(Debug, Serialize)]
pub(in crate::proxy) struct UnderWay {
    /// How many.
    requests: usize,
    /// Since when there are any (Unix milliseconds).
    since_ms: i64,
    /// What the newest is at.
    phase: &'static str,
}

/// A request that is prepared.
pub(in crate::proxy) struct Preparing {
    lives: Arc<LiveConversations>,
    id: String,
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.lives.with(&self.id, |l| l.preparing = l.preparing.saturating_sub(1));
    }
}

/// A request under way.
pub(in crate::proxy) struct Flight {
    lives: Arc<LiveConversations>,
    id: String,
    _using: Using,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.lives.with(&self.id, |l| l.in_flight = l.in_flight.saturating_sub(1));
    }
}
