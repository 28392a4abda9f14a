//! What is known of several servers of one model, so that each request gets the right one: who is ready, what is open there, how
//! fast it is, and what it holds of which conversation. The choice itself is [`crate::route::choose`].

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::servers::Servers;
use crate::conversation::{Conversation, Tokens};
use crate::route::{Choice, Server, Standing};
use crate::upstream::{Flavor, Kind, Upstream};
use crate::usage::Reported;

/// Histories of which is known which server holds them.
const HISTORIES: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");

/// Share of a new figure in a running mean.
const NEWEST: f64 = 0.3;

/// Fewer prompt tokens tell nothing of a server's speed.
const TELLING: Tokens = 64;

/// What a request takes where none was measured yet.
const USUAL_MS: f64 = 2000.0;

/// Requests that servers with continuous batching begin at once, where they do not say.
pub(super) const BATCHED: u32 = 16;

/// The least of a history that a server is trusted to hold, whatever it reports: some report no cached tokens at all.
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

/// What one server holds of a history (tokens).
#[derive(Debug, Clone, Copy)]
struct Warm {
    at: usize,
    held: Tokens,
}

/// All that is known of servers, by their index.
pub(super) struct Routing {
    servers: Mutex<Vec<Known>>,
    warm: Mutex<LruCache<u64, Vec<Warm>>>,
}

/// A history, by what tells each beginning of it from others.
pub(super) struct Ends {
    /// After each message.
    ends: Vec<u64>,
    /// Bytes of each message.
    sizes: Vec<usize>,
    /// Bytes of what stands before them.
    head: usize,
}

impl Ends {
    /// Of a conversation. `whose`: what nothing is ever shared across.
    pub(super) fn of(conversation: &Conversation, whose: &str, model: &str) -> Ends {
        let mut state = DefaultHasher::new();
        (whose, model).hash(&mut state);
        conversation.system.iter().for_each(|message| message.digest.0.hash(&mut state));
        let ends = conversation.body.iter().map(|message| {
            message.digest.0.hash(&mut state);
            state.finish()
        });
        let ends = ends.collect();
        let sizes = conversation.body.iter().map(|message| message.raw.len()).collect();
        let system: usize = conversation.system.iter().map(|message| message.raw.len()).sum();
        Ends { ends, sizes, head: system + conversation.tools.as_ref().map_or(0, |tools| tools.len()) }
    }

    /// The whole history.
    fn tip(&self) -> Option<u64> {
        self.ends.last().copied()
    }

    fn tokens_from(&self, at: usize) -> Tokens {
        let bytes: usize = self.sizes.get(at..).unwrap_or_default().iter().sum();
        Tokens::try_from(bytes / BYTES).unwrap_or(Tokens::MAX)
    }
}

impl Routing {
    pub(super) fn of(servers: usize) -> Routing {
        Routing { servers: Mutex::new(vec![Known::default(); servers]), warm: Mutex::new(LruCache::new(HISTORIES)) }
    }

    /// About the tokens of a prompt, and what each of these servers was left with of it.
    pub(super) fn held(&self, ends: &Ends, among: &[usize]) -> (Tokens, Vec<Tokens>) {
        let mut held = vec![0; among.len()];
        let mut prompt = None;
        let mut warm = self.warm.lock();
        for (depth, end) in ends.ends.iter().enumerate().rev() {
            for one in warm.get(end).into_iter().flatten() {
                prompt = prompt.or_else(|| Some(one.held.saturating_add(ends.tokens_from(depth + 1))));
                if let Some(place) = among.iter().position(|at| *at == one.at).filter(|place| held[*place] == 0) {
                    held[place] = one.held;
                }
            }
            if held.iter().all(|held| *held > 0) {
                break;
            }
        }
        let whole = ends.tokens_from(0).saturating_add(Tokens::try_from(ends.head / BYTES).unwrap_or(Tokens::MAX));
        (prompt.unwrap_or(whole), held)
    }

    /// A server as it stands now. `window` and `slots`: as they were last seen.
    pub(super) fn server(
        &self,
        at: usize,
        upstream: &Upstream,
        (window, slots): (Option<Tokens>, Option<u32>),
        held: Tokens,
    ) -> Server {
        let known = self.servers.lock().get(at).cloned().unwrap_or_default();
        let batched = matches!(upstream.kind(), Some(Kind::OpenAi(Flavor::Vllm | Flavor::SgLang)));
        let slots = f64::from(slots.unwrap_or(if batched { BATCHED } else { 1 }).max(1));
        let open = known.open as f64;
        let before_it = (open + 1.0 - slots).max(0.0) / slots * known.took.unwrap_or(USUAL_MS);
        // Of what it was left with, the share that it kept lately.
        let held = (f64::from(held) * known.kept.unwrap_or(1.0).clamp(TRUSTED, 1.0)) as Tokens;
        // Of those that begin at once, the one with less to do.
        Server {
            standing: known.standing(),
            window,
            held,
            waiting: before_it + open,
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
            self.warm.lock().iter_mut().for_each(|(_, all)| all.retain(|one| one.at != at));
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
    left: Tokens,
    tip: Option<u64>,
}

impl Route {
    pub(super) fn begin(
        servers: &Arc<Servers>,
        (at, tried): (usize, &[usize]),
        choice: Choice,
        (ends, left): (&Ends, Tokens),
    ) -> Route {
        servers.routing.with(at, |known| {
            known.open += 1;
            known.had += 1;
        });
        Route { servers: Arc::clone(servers), at, tried: tried.to_vec(), choice, left, tip: ends.tip() }
    }

    /// The indexes of the servers that had the request before.
    pub(in crate::proxy) fn tried(&self) -> &[usize] {
        &self.tried
    }

    /// The index of its server.
    pub(in crate::proxy) fn at(&self) -> usize {
        self.at
    }

    /// Which server, and why, as the header says it. The sizes are what the choice was made by: nobody counts before it.
    pub(in crate::proxy) fn header(&self, upstream: &str) -> String {
        let Choice { because, held, new, .. } = self.choice;
        format!("{upstream}; because={}; held={held}; new={new}; sizes=estimated", because.as_str())
    }

    /// The same as a field of an event.
    pub(in crate::proxy) fn json(&self) -> Value {
        let Choice { because, held, new, milliseconds, .. } = self.choice;
        json!({"because": because.as_str(), "held": held, "new": new, "milliseconds": milliseconds.round()})
    }

    /// Takes in what a reply told. `first`: from when it was sent until its first word.
    pub(in crate::proxy) fn answered(&self, reported: &Reported, first: Option<Duration>, took: Duration) {
        let evaluated =
            reported.evaluated.or_else(|| Some(reported.prompt?.saturating_sub(reported.cached.unwrap_or(0))));
        let by_server = reported.prompt_ms.map(|ms| ms / 1000.0);
        let seconds = by_server.or_else(|| first.map(|first| first.as_secs_f64())).filter(|seconds| *seconds > 0.0);
        let speed = evaluated.filter(|tokens| *tokens >= TELLING).zip(seconds).map(|(tokens, s)| f64::from(tokens) / s);
        let kept = reported.cached.filter(|_| self.left >= TELLING);
        let kept = kept.map(|cached| (f64::from(cached) / f64::from(self.left)).min(1.0));
        self.servers.routing.with(self.at, |known| {
            known.answered += 1;
            known.took = Some(mean(known.took, took.as_secs_f64() * 1000.0));
            known.speed = speed.map(|speed| mean(known.speed, speed)).or(known.speed);
            known.kept = kept.map(|kept| mean(known.kept, kept)).or(known.kept);
        });
        let (Some(tip), Some(prompt)) = (self.tip, reported.prompt) else { return };
        let held = prompt.saturating_add(reported.completion.unwrap_or(0));
        let mut warm = self.servers.routing.warm.lock();
        let of = warm.get_or_insert_mut(tip, Vec::new);
        of.retain(|one| one.at != self.at);
        of.push(Warm { at: self.at, held });
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

    #[test]
    fn a_server_that_was_away_holds_nothing() {
        let (routing, ends) = (Routing::of(2), Ends { ends: vec![7], sizes: vec![30], head: 0 });
        routing.warm.lock().put(7, vec![Warm { at: 0, held: 900 }, Warm { at: 1, held: 800 }]);
        routing.down(0, "the connection was refused");
        assert_eq!(routing.held(&ends, &[0, 1]).1, [900, 800]);
        assert!(routing.up(0) && !routing.up(1));
        assert_eq!(routing.held(&ends, &[0, 1]).1, [0, 800]);
    }
}
