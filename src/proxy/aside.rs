//! Work that reads the record or keeps the processor busy is done aside: on blocking threads, never on the threads that move
//! bytes. A request of megabytes takes seconds to read, plan and rewrite; every other stream must go on meanwhile.
//!
//! A future is moved whole. Each of its steps (one poll) runs on a blocking thread, and at most as many steps run at once as
//! there are cores, of large requests and of small ones each: a small one never waits until a large one is planned. What only
//! waits, for a server or for a summary, takes neither a thread nor a place.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, Semaphore};

use super::Error;
use crate::store::blocking;

/// From this size on, a request is large (bytes). Below it, reading or translating it alone is done in place: moving that
/// costs more than it saves.
pub(super) const LARGE: usize = 256 * 1024;

/// The places where work is done aside.
#[derive(Debug, Clone)]
pub(super) struct Aside {
    large: Arc<Semaphore>,
    small: Arc<Semaphore>,
}

impl Default for Aside {
    fn default() -> Aside {
        Aside::of(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Aside {
    /// So many steps at once, of each size.
    fn of(places: usize) -> Aside {
        Aside { large: Arc::new(Semaphore::new(places)), small: Arc::new(Semaphore::new(places)) }
    }

    /// Reads or translates so many bytes: here where they are few, else aside. See [`Aside::run`].
    ///
    /// # Errors
    /// As [`Aside::run`].
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        bytes: usize,
        work: BoxFuture<'static, T>,
    ) -> Result<T, Error> {
        if bytes < LARGE { Ok(work.await) } else { self.run(bytes, work).await }
    }

    /// Does the work on so many bytes, which is boxed since it is large itself. Never call it from work that is done aside
    /// itself: with one core, each would wait for the other's place.
    ///
    /// # Errors
    /// When the work panics, or the process shuts down.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        mut work: BoxFuture<'static, T>,
    ) -> Result<T, Error> {
        let places = if bytes < LARGE { &self.small } else { &self.large };
        let woken = Arc::new(Woken::default());
        loop {
            let place = Arc::clone(places).acquire_owned().await.map_err(stopped)?;
            let waker = Waker::from(Arc::clone(&woken));
            let step = move || {
                let _place = place;
                let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
                (work, polled)
            };
            let (rest, polled) = tokio::task::spawn_blocking(step).await.map_err(stopped)?;
            if let Poll::Ready(done) = polled {
                return Ok(done);
            }
            work = rest;
            woken.0.notified().await;
        }
    }
}

/// Goes once through so many bytes, between two awaits: the worker's other tasks move to another one where they are many.
pub(super) fn once<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes < LARGE { work() } else { blocking(work) }
}

fn stopped(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Internal { doing: "work on a large request", source: Box::new(e) }
}

/// Remembers that the work can go on, also where that happens before anybody waits for it.
#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn one_thread() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// The work blocks its thread until another task of the same single-threaded runtime lets it go on: done in place, it
    /// would never end.
    #[test]
    fn the_runtime_goes_on_while_the_work_keeps_its_thread() {
        one_thread().block_on(async {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let work = async move {
                wait.recv_timeout(Duration::from_secs(20)).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                wait.recv_timeout(Duration::from_secs(20)).unwrap();
                7
            };
            let aside = Aside::of(1);
            let others = async {
                for _ in 0..2 {
                    tokio::task::yield_now().await;
                    go.send(()).unwrap();
                }
            };
            let (done, ()) = tokio::join!(aside.run(LARGE, Box::pin(work)), others);
            assert_eq!(done.unwrap(), 7);
        });
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test waits for all of them")]
    fn no_more_steps_at_once_than_there_are_places() {
        one_thread().block_on(async {
            let aside = Arc::new(Aside::of(2));
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let all = (0..12).map(|_| {
                let (aside, now, most) = (Arc::clone(&aside), Arc::clone(&now), Arc::clone(&most));
                tokio::spawn(async move {
                    let work = async move {
                        for _ in 0..20 {
                            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            now.fetch_sub(1, Ordering::SeqCst);
                            tokio::task::yield_now().await;
                        }
                    };
                    aside.run(LARGE, Box::pin(work)).await.unwrap();
                })
            });
            for one in all.collect::<Vec<_>>() {
                one.await.unwrap();
            }
            assert!((1..=2).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        });
    }

    #[test]
    fn work_that_waits_takes_no_place_and_work_that_panics_is_an_error() {
        one_thread().block_on(async {
            let aside = Aside::of(1);
            let (send, receive) = tokio::sync::oneshot::channel::<u8>();
            let waiting = aside.run(LARGE, Box::pin(receive));
            let work = async move { send.send(3).unwrap() };
            let other = aside.run(LARGE, Box::pin(work));
            let (waited, sent) = tokio::join!(waiting, other);
            assert_eq!((waited.unwrap().unwrap(), sent.unwrap()), (3, ()));
            let broken = aside.run(LARGE, Box::pin(async { assert_eq!(1, 2, "on purpose") })).await;
            assert!(matches!(broken, Err(Error::Internal { .. })));
            assert_eq!(aside.run(LARGE, Box::pin(async { 5 })).await.unwrap(), 5);
        });
    }

    #[test]
    fn what_is_small_does_not_wait_for_what_is_large() {
        one_thread().block_on(async {
            let aside = Aside::of(1);
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let large = aside.run(LARGE, Box::pin(async move { wait.recv_timeout(Duration::from_secs(20)) }));
            let small = async {
                let done = aside.run(LARGE - 1, Box::pin(async { std::thread::current().id() })).await.unwrap();
                go.send(()).unwrap();
                done
            };
            let (waited, there) = tokio::join!(large, small);
            assert_eq!(waited.unwrap(), Ok(()));
            assert_ne!(there, std::thread::current().id());
        });
    }

    #[test]
    fn a_few_bytes_are_read_in_place() {
        one_thread().block_on(async {
            let here = std::thread::current().id();
            let there = |bytes| {
                let aside = Aside::of(1);
                async move { aside.reading(bytes, Box::pin(async { std::thread::current().id() })).await.unwrap() }
            };
            assert_eq!(there(LARGE - 1).await, here);
            assert_ne!(there(LARGE).await, here);
        });
    }
}
