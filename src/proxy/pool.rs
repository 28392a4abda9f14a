//! Servers whose slots share one pool of tokens (llama-server's unified KV cache, which is its default; LM Studio). A pool that
//! runs full ends every request in it, however short. So prompts are let in by the sum of what is in flight, in the order in
//! which they came; where nobody knows that a pool is shared, its first error tells.
//!
//! And whose turn it is where a server works on few requests at once: a client's own helpers (titles, tags, follow-ups) wait while
//! what people wait for takes every slot, and what is made ahead of need stops for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::conversation::Tokens;

/// So many pools are told apart. Names come from clients: they may not fill the memory.
const MOST: usize = 512;

/// The longest that a helper's request gives way to others: its client waits for it, too.
const GIVES_WAY: Duration = Duration::from_secs(30);

/// The pools of all servers, by upstream and model.
#[derive(Default)]
pub(super) struct Pools(Mutex<HashMap<(String, String), Arc<Pool>>>);

/// What is in flight at one server, for one model.
#[derive(Default)]
pub(super) struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    /// Tokens of the pool, where it is shared.
    size: Option<Tokens>,
    /// The load of the model that this is known of.
    identity: String,
    used: u64,
    /// Requests of clients in flight.
    open: usize,
    /// Requests that the server works on at once, where that is known.
    at_once: Option<usize>,
    /// Who waits: what people wait for, and behind that the helpers.
    line: VecDeque<Waits>,
    /// Work ahead of need that is under way.
    works: Vec<Work>,
}

/// Who waits for room.
struct Waits {
    tokens: Tokens,
    helper: bool,
    give: oneshot::Sender<()>,
}

/// Work of ours, which nobody waits for while `needed` is zero.
#[derive(Clone)]
struct Work {
    stop: CancellationToken,
    needed: Arc<AtomicUsize>,
}

impl Pools {
    /// The pool of a model.
    pub(super) fn of(&self, upstream: &str, model: &str) -> Arc<Pool> {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.retain(|_, pool| Arc::strong_count(pool) > 1);
        }
        Arc::clone(all.entry((upstream.to_owned(), model.to_owned())).or_default())
    }
}

/// Tokens of a pool that a request takes until this is dropped.
pub(super) struct Room {
    pool: Arc<Pool>,
    tokens: Tokens,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.pool.leave(self.tokens);
    }
}

/// Work ahead of need under way, until it is dropped.
pub(super) struct Working {
    pool: Arc<Pool>,
    work: Work,
}

impl Working {
    /// Done once it has to make room.
    pub(super) async fn stopped(&self) {
        self.work.stop.cancelled().await;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.work.stop.cancel();
        self.pool.0.lock().works.retain(|work| !work.stop.is_cancelled());
    }
}

/// A place in the line: given up where nobody waits for it any more.
struct Place<'a> {
    pool: &'a Arc<Pool>,
    tokens: Tokens,
    turn: oneshot::Receiver<()>,
    over: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The turn may have come in the same moment.
        if !self.over && self.turn.try_recv().is_ok() {
            self.pool.leave(self.tokens);
        }
    }
}

impl Pool {
    /// Notes that the slots of this load of the model share their pool, and how large it is.
    pub(super) fn share(&self, identity: &str, size: Tokens) {
        let mut state = self.0.lock();
        state.size = Some(size.max(1));
        identity.clone_into(&mut state.identity);
    }

    /// Whether this load's slots are known to share it. Of another load nothing is known.
    pub(super) fn is_shared(&self, identity: &str) -> bool {
        let mut state = self.0.lock();
        if state.size.is_some() && state.identity != identity {
            state.size = None;
            state.let_in();
        }
        state.size.is_some()
    }

    /// Notes how many requests the server works on at once.
    pub(super) fn works_on(&self, at_once: Option<usize>) {
        self.0.lock().at_once = at_once.map(|n| n.max(1));
    }

    /// Whether so many tokens have to wait now. `helper`: of a client's helper.
    pub(super) fn is_full(&self, tokens: Tokens, helper: bool) -> bool {
        let state = self.0.lock();
        !state.fits(state.least(tokens), helper)
    }

    /// Takes room for so many tokens; waits for its turn where the pool is shared and has none left. What is larger than the
    /// pool waits until it has the pool for itself. A helper waits for a slot that nobody else needs, too, for some time.
    pub(super) async fn enter(self: &Arc<Pool>, tokens: Tokens, helper: bool) -> Room {
        if helper && let Ok(room) = tokio::time::timeout(GIVES_WAY, self.enter_as(tokens, true)).await {
            return room;
        }
        self.enter_as(tokens, false).await
    }

    async fn enter_as(self: &Arc<Pool>, tokens: Tokens, helper: bool) -> Room {
        let (tokens, turn) = {
            let mut state = self.0.lock();
            let tokens = state.least(tokens);
            if state.fits(tokens, helper) {
                state.let_one_in(tokens);
                return Room { pool: Arc::clone(self), tokens };
            }
            let (give, turn) = oneshot::channel();
            let waits = Waits { tokens, helper, give };
            let people = state.line.iter().take_while(|waits| !waits.helper).count();
            let at = if helper { state.line.len() } else { people };
            state.line.insert(at, waits);
            (tokens, turn)
        };
        let mut place = Place { pool: self, tokens, turn, over: false };
        let _ = (&mut place.turn).await;
        place.over = true;
        Room { pool: Arc::clone(self), tokens }
    }

    fn leave(&self, tokens: Tokens) {
        let mut state = self.0.lock();
        state.used = state.used.saturating_sub(u64::from(tokens));
        state.open = state.open.saturating_sub(1);
        state.let_in();
    }

    /// Begins work ahead of need, until a request needs its slot; `None` where requests take all. While `needed` is not zero,
    /// somebody waits for the work itself.
    pub(super) fn work(self: &Arc<Pool>, needed: &Arc<AtomicUsize>) -> Option<Working> {
        let mut state = self.0.lock();
        if state.at_once.is_some_and(|most| state.open >= most) {
            return None;
        }
        let work = Work { stop: CancellationToken::new(), needed: Arc::clone(needed) };
        state.works.push(work.clone());
        Some(Working { pool: Arc::clone(self), work })
    }
}

impl State {
    /// Lets in who is next, as far as there is room.
    fn let_in(&mut self) {
        while let Some(Waits { tokens, helper, .. }) = self.line.front() {
            let (tokens, helper) = (*tokens, *helper);
            if !self.has(tokens) || helper && !self.has_slot() {
                return;
            }
            let Some(Waits { give, .. }) = self.line.pop_front() else { return };
            if give.send(()).is_ok() {
                self.let_one_in(tokens);
            }
        }
    }

    fn let_one_in(&mut self, tokens: Tokens) {
        self.used += u64::from(tokens);
        self.open += 1;
        let full = |state: &State| state.at_once.is_some_and(|most| state.open + state.works.len() > most);
        while full(self) {
            // What somebody waits for goes on.
            let idle = self.works.iter().position(|work| work.needed.load(Ordering::Acquire) == 0);
            let Some(at) = idle else { return };
            self.works.swap_remove(at).stop.cancel();
        }
    }

    /// Whether a slot is left that nobody needs.
    fn has_slot(&self) -> bool {
        self.at_once.is_none_or(|most| self.open < most)
    }

    fn least(&self, tokens: Tokens) -> Tokens {
        self.size.map_or(tokens, |size| tokens.min(size))
    }

    /// Whether there is room; what is alone has it always.
    fn has(&self, tokens: Tokens) -> bool {
        self.used == 0 || self.size.is_none_or(|size| self.used + u64::from(tokens) <= u64::from(size))
    }

    /// Whether there is room, and nobody came before who goes first.
    fn fits(&self, tokens: Tokens, helper: bool) -> bool {
        let comes_first = |waits: &Waits| helper || !waits.helper;
        !self.line.iter().any(comes_first) && self.has(tokens) && (!helper || self.has_slot())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        future.now_or_never()
    }

    #[test]
    fn a_shared_pool_lets_in_what_fits_in_the_order_in_which_it_came() {
        let pool = Pools::default().of("up", "m");
        // Not known to be shared: nobody waits, and all is counted.
        let first = now(pool.enter(700, false)).unwrap();
        let second = now(pool.enter(700, false)).unwrap();
        pool.share("load", 1000);
        assert!(pool.is_full(1, false));
        let (mut large, mut small) = (Box::pin(pool.enter(900, false)), Box::pin(pool.enter(100, false)));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(first);
        // There is room for the small one, but the large one came first.
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(second);
        let large = (&mut large).now_or_never().unwrap();
        let small = (&mut small).now_or_never().unwrap();
        drop((large, small));
        assert!(!pool.is_full(5000, false), "what is larger than the pool has it for itself");
        // Another load may have slots of their own.
        let held = now(pool.enter(900, false)).unwrap();
        assert!(
            pool.is_full(900, false)
                && pool.is_shared("load")
                && !pool.is_shared("another")
                && !pool.is_full(900, false)
        );
        drop(held);
    }

    #[test]
    fn who_goes_away_holds_nobody_up() {
        let pool = Pools::default().of("up", "m");
        pool.share("load", 1000);
        let first = now(pool.enter(1000, false)).unwrap();
        let (mut gone, mut also) = (Box::pin(pool.enter(800, false)), Box::pin(pool.enter(600, false)));
        let mut stays = Box::pin(pool.enter(500, false));
        for waits in [&mut gone, &mut also, &mut stays] {
            assert!(waits.now_or_never().is_none());
        }
        drop(gone);
        drop(first);
        // Its turn came, and it went away without taking it.
        drop(also);
        assert!((&mut stays).now_or_never().is_some());
    }

    #[test]
    fn a_helper_waits_for_a_slot_that_nobody_needs() {
        let pool = Pools::default().of("up", "m");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _in = runtime.enter();
        let helper = now(pool.enter(10, true));
        assert!(helper.is_some(), "nothing is known of its slots");
        drop(helper);
        pool.works_on(Some(2));
        let (first, second) = (now(pool.enter(10, false)).unwrap(), now(pool.enter(10, false)).unwrap());
        assert!(pool.is_full(10, true) && !pool.is_full(10, false));
        let mut helper = Box::pin(pool.enter(10, true));
        assert!((&mut helper).now_or_never().is_none());
        let third = now(pool.enter(10, false)).expect("a person's request goes first");
        drop(first);
        assert!((&mut helper).now_or_never().is_none());
        drop(second);
        let helper = (&mut helper).now_or_never().expect("a slot is left");
        assert!(!pool.is_full(10, false));
        drop((helper, third));
        assert_eq!(pool.0.lock().open, 0);
    }

    #[test]
    fn what_people_wait_for_passes_helpers_that_wait_for_room() {
        let pool = Pools::default().of("up", "m");
        pool.works_on(Some(4));
        pool.share("load", 1000);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _in = runtime.enter();
        let first = now(pool.enter(900, false)).unwrap();
        let (mut helper, mut person) = (Box::pin(pool.enter(500, true)), Box::pin(pool.enter(600, false)));
        assert!((&mut helper).now_or_never().is_none() && (&mut person).now_or_never().is_none());
        drop(first);
        assert!((&mut helper).now_or_never().is_none());
        let person = (&mut person).now_or_never().expect("it came later, and goes first");
        drop(person);
        assert!((&mut helper).now_or_never().is_some());
    }

    #[test]
    fn work_ahead_makes_room_unless_somebody_waits_for_it() {
        let pool = Pools::default().of("up", "m");
        pool.works_on(Some(2));
        let (idle, needed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(1)));
        let (one, other) = (pool.work(&idle).unwrap(), pool.work(&needed).unwrap());
        let first = now(pool.enter(1, false)).unwrap();
        assert!(now(one.stopped()).is_some() && now(other.stopped()).is_none());
        let second = now(pool.enter(1, false)).unwrap();
        assert!(now(other.stopped()).is_none(), "a request waits for it");
        drop((one, other));
        assert!(pool.work(&idle).is_none());
        drop((first, second));
        assert!(pool.work(&idle).is_some() && pool.0.lock().works.is_empty());
    }
}
