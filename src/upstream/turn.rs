//! One at a time finds something out, and all who come meanwhile share what it found. A server that is silent is waited for
//! once, not once for each request in line.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

/// Something that is found out by one caller at a time.
pub(crate) struct Turn<T>(Mutex<Option<Found<T>>>);

/// What was found last.
struct Found<T> {
    what: T,
    at: Instant,
    took: Duration,
}

impl<T> Default for Turn<T> {
    fn default() -> Turn<T> {
        Turn(Mutex::new(None))
    }
}

impl<T: Clone> Turn<T> {
    /// What `find` finds, or what another caller found while this one waited for its turn, if it is `fit`; the flag says
    /// which. A caller that is dropped leaves the turn to the next.
    pub(crate) async fn find(&self, fit: impl Fn(&T) -> bool, find: BoxFuture<'_, T>) -> (T, bool) {
        self.find_unless(|what, _, _| fit(what), false, find).await
    }

    /// As [`Turn::find`]. What was found before this caller came will do as well where `lasts` says so of it, of its age, and
    /// of how long it took to find.
    pub(crate) async fn find_lasting(
        &self,
        lasts: impl Fn(&T, Duration, Duration) -> bool,
        find: BoxFuture<'_, T>,
    ) -> (T, bool) {
        self.find_unless(lasts, true, find).await
    }

    async fn find_unless(
        &self,
        fit: impl Fn(&T, Duration, Duration) -> bool,
        before: bool,
        find: BoxFuture<'_, T>,
    ) -> (T, bool) {
        let came = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(found) = &*last {
            // To those who waited for it, it is as new as can be.
            let age = if found.at >= came { Duration::ZERO } else { found.at.elapsed() };
            if (before || age.is_zero()) && fit(&found.what, age, found.took) {
                return (found.what.clone(), true);
            }
        }
        let began = Instant::now();
        let what = find.await;
        let at = Instant::now();
        *last = Some(Found { what: what.clone(), at, took: at - began });
        (what, false)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn those_who_wait_share_what_was_found_and_those_who_come_later_ask_anew() {
        let asked = AtomicU32::new(0);
        let find = || {
            let find = async {
                asked.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                asked.load(Ordering::SeqCst)
            };
            find.boxed()
        };
        run(async {
            let turn = Turn::default();
            let all = join_all((0..5).map(|_| turn.find(|_| true, find()))).await;
            assert_eq!(all, [(1, false), (1, true), (1, true), (1, true), (1, true)]);
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(turn.find(|_| true, find()).await, (2, false));
            // What does not fit is asked for.
            let two = futures_util::join!(turn.find(|_| true, find()), turn.find(|_| false, find()));
            assert_eq!(two, ((3, false), (4, false)));
        });
    }

    #[test]
    fn what_took_long_may_last_and_a_caller_that_is_dropped_holds_nobody_up() {
        run(async {
            let turn = Turn::default();
            let slow = async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                1
            };
            let lasts = |_: &i32, age: Duration, took: Duration| took >= Duration::from_millis(30) && age < took * 1000;
            assert_eq!(turn.find_lasting(lasts, slow.boxed()).await, (1, false));
            assert_eq!(turn.find_lasting(lasts, async { 2 }.boxed()).await, (1, true));
            assert_eq!(turn.find(|_| true, async { 3 }.boxed()).await, (3, false));
            assert_eq!(turn.find_lasting(lasts, async { 4 }.boxed()).await, (4, false));
            let dropped = turn.find(|_| true, std::future::pending().boxed());
            assert!(tokio::time::timeout(Duration::from_millis(1), dropped).await.is_err());
            assert_eq!(turn.find(|_| true, async { 5 }.boxed()).await, (5, false));
        });
    }
}
