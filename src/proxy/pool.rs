//! Servers whose slots share one pool of tokens (llama-server's unified KV cache, which is its default; LM Studio). A pool that
//! runs full ends every request in it, however short. So prompts are let in by the sum of what is in flight, in the order in
//! which they came; where nobody knows that a pool is shared, its first error tells.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::conversation::Tokens;

/// So many pools are told apart. Names come from clients: they may not fill the memory.
const MOST: usize = 512;

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
    line: VecDeque<(Tokens, oneshot::Sender<()>)>,
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

    /// Whether so many tokens have to wait now.
    pub(super) fn is_full(&self, tokens: Tokens) -> bool {
        let state = self.0.lock();
        !state.fits(state.least(tokens))
    }

    /// Takes room for so many tokens; waits for its turn where the pool is shared and has none left. What is larger than the
    /// pool waits until it has the pool for itself.
    pub(super) async fn enter(self: &Arc<Pool>, tokens: Tokens) -> Room {
        let (tokens, turn) = {
            let mut state = self.0.lock();
            let tokens = state.least(tokens);
            if state.fits(tokens) {
                state.used += u64::from(tokens);
                return Room { pool: Arc::clone(self), tokens };
            }
            let (give, turn) = oneshot::channel();
            state.line.push_back((tokens, give));
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
        state.let_in();
    }
}

impl State {
    /// Lets in who is next, as far as there is room.
    fn let_in(&mut self) {
        while let Some((wanted, _)) = self.line.front() {
            let wanted = *wanted;
            if !self.has(wanted) {
                return;
            }
            let Some((_, give)) = self.line.pop_front() else { return };
            if give.send(()).is_ok() {
                self.used += u64::from(wanted);
            }
        }
    }

    fn least(&self, tokens: Tokens) -> Tokens {
        self.size.map_or(tokens, |size| tokens.min(size))
    }

    /// Whether there is room; what is alone has it always.
    fn has(&self, tokens: Tokens) -> bool {
        self.used == 0 || self.size.is_none_or(|size| self.used + u64::from(tokens) <= u64::from(size))
    }

    /// Whether there is room, and nobody came before.
    fn fits(&self, tokens: Tokens) -> bool {
        self.line.is_empty() && self.has(tokens)
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
        let first = now(pool.enter(700)).unwrap();
        let second = now(pool.enter(700)).unwrap();
        pool.share("load", 1000);
        assert!(pool.is_full(1));
        let (mut large, mut small) = (Box::pin(pool.enter(900)), Box::pin(pool.enter(100)));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(first);
        // There is room for the small one, but the large one came first.
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(second);
        let large = (&mut large).now_or_never().unwrap();
        let small = (&mut small).now_or_never().unwrap();
        drop((large, small));
        assert!(!pool.is_full(5000), "what is larger than the pool has it for itself");
        // Another load may have slots of their own.
        let held = now(pool.enter(900)).unwrap();
        assert!(pool.is_full(900) && pool.is_shared("load") && !pool.is_shared("another") && !pool.is_full(900));
        drop(held);
    }

    #[test]
    fn who_goes_away_holds_nobody_up() {
        let pool = Pools::default().of("up", "m");
        pool.share("load", 1000);
        let first = now(pool.enter(1000)).unwrap();
        let (mut gone, mut also) = (Box::pin(pool.enter(800)), Box::pin(pool.enter(600)));
        let mut stays = Box::pin(pool.enter(500));
        for waits in [&mut gone, &mut also, &mut stays] {
            assert!(waits.now_or_never().is_none());
        }
        drop(gone);
        drop(first);
        // Its turn came, and it went away without taking it.
        drop(also);
        assert!((&mut stays).now_or_never().is_some());
    }
}
