//! Answers that many ask for at once: each open page looks again whenever something happens. What takes a walk through the record is
//! worked out once for all who wait for it, and at most so often that it takes a tenth of one core.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::proxy::Error;

/// Answers that are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// After an answer, nothing is worked out for so many times as long as that took.
const PAUSE: u32 = 9;

/// The longest that somebody waits for an answer that was worked out just before.
const LONGEST: Duration = Duration::from_secs(5);

/// An answer, and when it was worked out.
struct Answer {
    begun: Instant,
    ended: Instant,
    json: Bytes,
}

type Slot = Arc<tokio::sync::Mutex<Option<Answer>>>;

/// The answers that were asked for lately.
pub struct Shared {
    slots: Mutex<LruCache<String, Slot>>,
}

impl Default for Shared {
    fn default() -> Self {
        Shared { slots: Mutex::new(LruCache::new(KEPT)) }
    }
}

impl Shared {
    /// The answer to a question as JSON. It is never older than the question: it was begun after somebody asked. `work` makes it.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn answer(&self, question: &str, work: impl FnOnce() -> Result<Value, Error>) -> Result<Bytes, Error> {
        let asked = Instant::now();
        let slot = Slot::clone(self.slots.lock().get_or_insert_mut_ref(question, Slot::default));
        let mut last = slot.lock().await;
        if let Some(answer) = &*last {
            if answer.begun > asked {
                return Ok(answer.json.clone());
            }
            let pause = ((answer.ended - answer.begun) * PAUSE).min(LONGEST);
            tokio::time::sleep_until(answer.ended + pause).await;
        }
        let begun = Instant::now();
        let json = Bytes::from(work()?.to_string());
        *last = Some(Answer { begun, ended: Instant::now(), json: json.clone() });
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn one_answer_serves_all_who_wait_and_none_is_older_than_its_question() {
        let (shared, state, worked) = (Shared::default(), AtomicU64::new(0), AtomicU64::new(0));
        let ask = || async {
            let least = state.load(Ordering::Relaxed);
            let work = || {
                worked.fetch_add(1, Ordering::Relaxed);
                let now = state.load(Ordering::Relaxed);
                Ok(json!(now))
            };
            let told: u64 = serde_json::from_slice(&shared.answer("q", work).await.unwrap()).unwrap();
            assert!(told >= least, "{told} is older than {least}");
        };
        for burst in 1..=5 {
            state.store(burst, Ordering::Relaxed);
            futures_util::future::join_all((0..100).map(|_| ask())).await;
        }
        // The first of a burst may find one in the making that was begun before it asked.
        let worked = worked.load(Ordering::Relaxed);
        assert!((5..=10).contains(&worked), "500 questions in 5 bursts: {worked} answers");
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_made_seldom_and_errors_are_not_kept() {
        let shared = Shared::default();
        let slow = |value: u64| move || Ok(json!(value));
        shared.answer("q", slow(1)).await.unwrap();
        // As if it had taken a second.
        let slot = Slot::clone(shared.slots.lock().get("q").unwrap());
        let second = Duration::from_secs(1);
        slot.lock().await.as_mut().unwrap().ended += second;
        let asked = Instant::now();
        assert_eq!(&shared.answer("q", slow(2)).await.unwrap()[..], b"2");
        assert_eq!(asked.elapsed(), second + LONGEST);
        assert_eq!(&shared.answer("other", slow(3)).await.unwrap()[..], b"3");
        assert_eq!(asked.elapsed(), second + LONGEST, "another question waits for nothing");
        let failed = || Err(Error::client(404, "not_found", "gone", ""));
        assert!(shared.answer("bad", failed).await.is_err());
        assert_eq!(&shared.answer("bad", slow(4)).await.unwrap()[..], b"4");
    }
}
