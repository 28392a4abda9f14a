//! What is known of several servers of one model, so that each request gets the right one: who is ready, what is open there, how
//! fast it is, and what it holds of which conversation. The choice itself is [`crate::route::choose`].
//!
//! What a server was left with is kept with each conversation ([`Served`]), so that a windowsill that is started again, and those that
//! share the record, know it, too.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::servers::Servers;
use crate::conversation::{Conversation, Digest, Tokens};
use crate::route::{self, Choice, Server, Standing};
use crate::upstream::{Flavor, Kind, Upstream};
use crate::usage::Reported;

/// Requests of other windowsills that are known to be open.
const ELSEWHERE: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// After so long, a request of another windowsill that was never told to have ended counts as over: that one may have been killed.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// Share of a new figure in a running mean.
const NEWEST: f64 = 0.3;

/// Fewer prompt tokens tell nothing of a server's speed.
const TELLING: Tokens = 64;

/// What a request takes where none was measured yet.
const USUAL_MS: f64 = 2000.0;

/// Requests that servers with continuous batching begin at once, where they do not say.
pub(super) const BATCHED: u32 = 16;

/// What of a history a server is trusted to hold that it most likely lost: some report no cached tokens at all.
const TRUSTED: f64 = 0.2;

/// Bytes of a token, for what was never counted.
const BYTES: usize = 4;

/// What is known of one server.
#[derive(Debug, Clone, Default)]
struct Known {
    draining: bool,
    /// Why it is not ready.
    down: Option<String>,
    /// Requests that are open there.
    open: usize,
    /// Requests that it was given.
    had: u64,
    /// Prompt tokens that it evaluates in a second.
    speed: Option<f64>,
    /// Milliseconds that a request takes.
    took: Option<f64>,
    /// Requests that it answered.
    answered: u64,
    /// Requests that went to another server instead.
    moved: u64,
    /// Share of what it was thought to hold that it really took from its cache.
    kept: Option<f64>,
}

/// What became of a conversation's last request, where there are several servers: it is a part of the conversation's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::proxy) enum Served {
    /// It is under way.
    Open,
    /// It was answered, and left something with its server.
    Left(Left),
}

/// What a server was left with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::proxy) struct Left {
    /// Names the history.
    end: Digest,
    /// Tokens of the prompt, and with the reply.
    prompt: Tokens,
    tokens: Tokens,
    /// The history that it went on from there, and how much of that the server still had, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<(Digest, Option<Tokens>)>,
}

/// All that is known of servers, by their index.
pub(super) struct Routing {
    servers: Mutex<Vec<Known>>,
    /// What each holds.
    caches: Mutex<Vec<route::Cache<Digest>>>,
    /// Requests of other windowsills that are open, by conversation: where, and since when.
    elsewhere: Mutex<LruCache<String, (usize, Instant)>>,
}

/// What a server holds of a history.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// What it was left with.
    left: Option<route::Left<Digest>>,
}

/// A history, by what tells each beginning of it from others.
pub(super) struct Ends {
    /// After each message.
    ends: Vec<Digest>,
    /// Bytes of each message.
    sizes: Vec<usize>,
    /// Bytes of what stands before them.
    head: usize,
}

impl Ends {
    /// Of a conversation. `whose`: what nothing is ever shared across.
    pub(super) fn of(conversation: &Conversation, whose: &str, model: &str) -> Ends {
        let next = |before: Digest, of: &Digest| Digest::of(&[before.0, of.0].concat());
        let begins = Digest::of(format!("{whose}\n{model}").as_bytes());
        let begins = conversation.system.iter().fold(begins, |before, message| next(before, &message.digest));
        let ends = conversation.body.iter().scan(begins, |before, message| {
            *before = next(*before, &message.digest);
            Some(*before)
        });
        let ends = ends.collect();
        let sizes = conversation.body.iter().map(|message| message.raw.len()).collect();
        let system: usize = conversation.system.iter().map(|message| message.raw.len()).sum();
        Ends { ends, sizes, head: system + conversation.tools.as_ref().map_or(0, |tools| tools.len()) }
    }

    /// The whole history.
    fn tip(&self) -> Option<Digest> {
        self.ends.last().copied()
    }

    fn tokens_from(&self, at: usize) -> Tokens {
        let bytes: usize = self.sizes.get(at..).unwrap_or_default().iter().sum();
        Tokens::try_from(bytes / BYTES).unwrap_or(Tokens::MAX)
    }
}

impl Routing {
    pub(super) fn of(servers: usize) -> Routing {
        Routing {
            servers: Mutex::new(vec![Known::default(); servers]),
            caches: Mutex::new(vec![route::Cache::default(); servers]),
            elsewhere: Mutex::new(LruCache::new(ELSEWHERE)),
        }
    }

    /// About the tokens of a prompt, and what each of these servers was left with of it.
    pub(super) fn held(&self, ends: &Ends, among: &[usize]) -> (Tokens, Vec<Held>) {
        let depths: HashMap<Digest, usize> = ends.ends.iter().enumerate().map(|(depth, end)| (*end, depth)).collect();
        let caches = self.caches.lock();
        let find = |at: &usize| Held { left: caches.get(*at).and_then(|one| one.find(|end| depths.get(end).copied())) };
        let held: Vec<Held> = among.iter().map(find).collect();
        let deepest = held.iter().filter_map(|held| held.left).max_by_key(|left| depths.get(&left.name).copied());
        let prompt = deepest.map(|left| {
            let behind = depths.get(&left.name).map_or(0, |depth| depth + 1);
            left.tokens.saturating_add(ends.tokens_from(behind))
        });
        let whole = ends.tokens_from(0).saturating_add(Tokens::try_from(ends.head / BYTES).unwrap_or(Tokens::MAX));
        (prompt.unwrap_or(whole), held)
    }

    /// Takes in what became of a conversation's request that another windowsill answered, or this one before it was started again.
    pub(super) fn served(&self, conversation: &str, at: usize, served: Option<Served>) {
        match served {
            Some(Served::Open) => {
                self.elsewhere.lock().put(conversation.to_owned(), (at, Instant::now()));
                self.with(at, |known| known.had += 1);
            }
            ended => {
                self.elsewhere.lock().pop(conversation);
                if let Some(Served::Left(left)) = ended {
                    self.take(at, left);
                }
            }
        }
    }

    fn take(&self, at: usize, left: Left) {
        if let Some(cache) = self.caches.lock().get_mut(at) {
            cache.takes(left.end, (left.prompt, left.tokens), left.before);
        }
    }

    /// Requests of other windowsills that are open at a server.
    fn open_elsewhere(&self, at: usize) -> usize {
        self.elsewhere.lock().iter().filter(|(_, (of, since))| *of == at && since.elapsed() < FORGOTTEN).count()
    }

    /// A server as it stands now. `window` and `slots`: as they were last seen.
    pub(super) fn server(
        &self,
        at: usize,
        upstream: &Upstream,
        (window, slots): (Option<Tokens>, Option<u32>),
        held: Held,
    ) -> Server {
        let known = self.servers.lock().get(at).cloned().unwrap_or_default();
        let batched = matches!(upstream.kind(), Some(Kind::OpenAi(Flavor::Vllm | Flavor::SgLang)));
        let slots = f64::from(slots.unwrap_or(if batched { BATCHED } else { 1 }).max(1));
        let open = (known.open + self.open_elsewhere(at)) as f64;
        let before_it = (open + 1.0 - slots).max(0.0) / slots * known.took.unwrap_or(USUAL_MS);
        let held = held.left.map_or(0, |left| {
            // Of what it should still have, the share that it had lately.
            let share = if left.is_there { known.kept.unwrap_or(1.0).clamp(TRUSTED, 1.0) } else { TRUSTED };
            (f64::from(left.tokens) * share) as Tokens
        });
        // Of those that begin at once, the one with less to do.
        Server {
            standing: known.standing(),
            window,
            held,
            waiting: before_it + open,
            busy: (open / slots).min(1.0),
            speed: known.speed,
            had: known.had,
        }
    }

    pub(super) fn standing(&self, at: usize) -> Standing {
        self.servers.lock().get(at).map_or(Standing::Ready, Known::standing)
    }

    /// Whether it did not answer when it was last asked.
    pub(super) fn is_down(&self, at: usize) -> bool {
        self.servers.lock().get(at).is_some_and(|known| known.down.is_some())
    }

    fn with<T: Default>(&self, at: usize, change: impl FnOnce(&mut Known) -> T) -> T {
        self.servers.lock().get_mut(at).map(change).unwrap_or_default()
    }

    /// Notes that a server did not answer as it should.
    pub(super) fn down(&self, at: usize, why: &str) {
        self.with(at, |known| known.down = Some(why.to_owned()));
    }

    /// Notes that it answers again. Returns whether that is news.
    pub(super) fn up(&self, at: usize) -> bool {
        let was_down = self.with(at, |known| known.down.take().is_some());
        if was_down {
            // A server that was away was most often started again, and holds nothing of what it held.
            if let Some(cache) = self.caches.lock().get_mut(at) {
                *cache = route::Cache::default();
            }
        }
        was_down
    }

    /// Notes that a request went elsewhere.
    pub(super) fn moved(&self, at: usize) {
        self.with(at, |known| known.moved += 1);
    }

    /// Has a server get no more requests, or takes that back.
    pub(super) fn drain(&self, at: usize, draining: bool) {
        self.with(at, |known| known.draining = draining);
    }

    /// What is known of a server, for people.
    pub(super) fn told(&self, at: usize) -> Value {
        let known = self.servers.lock().get(at).cloned().unwrap_or_default();
        json!({
            "standing": match known.standing() {
                Standing::Ready => "ready",
                Standing::Down => "down",
                Standing::Draining => "draining",
            },
            "why": known.down,
            "open": known.open,
            "answered": known.answered,
            "moved": known.moved,
            "prompt_tokens_per_second": known.speed.map(|speed| (speed * 10.0).round() / 10.0),
            "milliseconds": known.took.map(f64::round),
        })
    }
}

impl Known {
    fn standing(&self) -> Standing {
        match (self.draining, &self.down) {
            (true, _) => Standing::Draining,
            (_, Some(_)) => Standing::Down,
            _ => Standing::Ready,
        }
    }
}

/// A request's way to a server, open until it is dropped.
pub(in crate::proxy) struct Route {
    servers: Arc<Servers>,
    at: usize,
    tried: Vec<usize>,
    choice: Choice,
    /// What the server was left with of the history, by the last request there.
    before: Held,
    tip: Option<Digest>,
}

impl Route {
    pub(super) fn begin(
        servers: &Arc<Servers>,
        (at, tried): (usize, &[usize]),
        choice: Choice,
        (ends, before): (&Ends, Held),
    ) -> Route {
        servers.routing.with(at, |known| {
            known.open += 1;
            known.had += 1;
        });
        Route { servers: Arc::clone(servers), at, tried: tried.to_vec(), choice, before, tip: ends.tip() }
    }

    /// The indexes of the servers that had the request before.
    pub(in crate::proxy) fn tried(&self) -> &[usize] {
        &self.tried
    }

    /// The index of its server.
    pub(in crate::proxy) fn at(&self) -> usize {
        self.at
    }

    /// Which server, and why, as the header says it.
    pub(in crate::proxy) fn header(&self, upstream: &str) -> String {
        let Choice { because, held, new, .. } = self.choice;
        format!("{upstream}; because={}; held={held}; new={new}", because.as_str())
    }

    /// The same as a field of an event.
    pub(in crate::proxy) fn json(&self) -> Value {
        let Choice { because, held, new, milliseconds, .. } = self.choice;
        json!({"because": because.as_str(), "held": held, "new": new, "milliseconds": milliseconds.round()})
    }

    /// Takes in what a reply told, and returns what the server is left with. `first`: from when it was sent until its first word.
    /// `rewritten`: the prompt was another one than the last, so that what the server still had of that tells nothing.
    pub(in crate::proxy) fn answered(
        &self,
        reported: &Reported,
        (first, took): (Option<Duration>, Duration),
        rewritten: bool,
    ) -> Option<Served> {
        let evaluated =
            reported.evaluated.or_else(|| Some(reported.prompt?.saturating_sub(reported.cached.unwrap_or(0))));
        let by_server = reported.prompt_ms.map(|ms| ms / 1000.0);
        let seconds = by_server.or_else(|| first.map(|first| first.as_secs_f64())).filter(|seconds| *seconds > 0.0);
        let speed = evaluated.filter(|tokens| *tokens >= TELLING).zip(seconds).map(|(tokens, s)| f64::from(tokens) / s);
        let before =
            self.before.left.map(|left| (left, reported.cached.filter(|_| !rewritten && left.tokens >= TELLING)));
        let kept = before.filter(|(left, _)| left.is_there);
        let kept = kept.and_then(|(left, cached)| Some((f64::from(cached?) / f64::from(left.tokens)).min(1.0)));
        self.servers.routing.with(self.at, |known| {
            known.answered += 1;
            known.took = Some(mean(known.took, took.as_secs_f64() * 1000.0));
            known.speed = speed.map(|speed| mean(known.speed, speed)).or(known.speed);
            known.kept = kept.map(|kept| mean(known.kept, kept)).or(known.kept);
        });
        let (end, prompt) = (self.tip?, reported.prompt?);
        let tokens = prompt.saturating_add(reported.completion.unwrap_or(0));
        let left = Left { end, prompt, tokens, before: before.map(|(left, cached)| (left.name, cached)) };
        self.servers.routing.take(self.at, left);
        Some(Served::Left(left))
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.servers.routing.with(self.at, |known| known.open = known.open.saturating_sub(1));
    }
}

fn mean(before: Option<f64>, now: f64) -> f64 {
    before.map_or(now, |before| before + (now - before) * NEWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(end: u8, tokens: Tokens) -> Option<Served> {
        Some(Served::Left(Left { end: Digest([end; 16]), prompt: tokens, tokens, before: None }))
    }

    fn held(routing: &Routing, end: u8) -> Vec<Tokens> {
        let ends = Ends { ends: vec![Digest([end; 16])], sizes: vec![30], head: 0 };
        routing.held(&ends, &[0, 1]).1.iter().map(|held| held.left.map_or(0, |left| left.tokens)).collect()
    }

    #[test]
    fn a_server_that_was_away_holds_nothing() {
        let routing = Routing::of(2);
        routing.served("c", 0, left(7, 900));
        routing.served("c", 1, left(7, 800));
        routing.down(0, "the connection was refused");
        assert_eq!(held(&routing, 7), [900, 800]);
        assert!(routing.up(0) && !routing.up(1));
        assert_eq!(held(&routing, 7), [0, 800]);
    }

    #[test]
    fn what_other_windowsills_have_open_is_counted_until_it_ends() {
        let routing = Routing::of(2);
        routing.served("c", 1, Some(Served::Open));
        routing.served("d", 1, Some(Served::Open));
        assert_eq!((routing.open_elsewhere(0), routing.open_elsewhere(1)), (0, 2));
        routing.served("c", 1, left(7, 900));
        routing.served("d", 1, None);
        assert_eq!((routing.open_elsewhere(1), held(&routing, 7)), (0, vec![0, 900]));
        let state = serde_json::to_string(&[Some(Served::Open), left(7, 900)]).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Option<Served>>>(&state).unwrap(), [Some(Served::Open), left(7, 900)]);
    }
}
