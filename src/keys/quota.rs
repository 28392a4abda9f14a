//! What a key may ask for: tokens a minute, and requests at once. What it takes is counted by its name, so that a new token is no new
//! quota.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::KeyConfig;

/// What a minute is.
const MINUTE: Duration = Duration::from_secs(60);

/// When a client may try again whose requests are all open still (seconds): nobody knows when one of them ends.
const AT_ONCE_AGAIN: u64 = 2;

/// What is counted of all keys, by the mark that their conversations carry. Other clients' keys are not counted.
#[derive(Debug, Default)]
pub struct Meters(Mutex<HashMap<String, Arc<Meter>>>);

impl Meters {
    /// The meter behind a mark, from now on.
    pub fn of(&self, mark: &str) -> Arc<Meter> {
        Arc::clone(self.0.lock().entry(mark.to_owned()).or_default())
    }

    /// Counts tokens of the key behind a mark, where it is one of the config's.
    pub fn spend(&self, mark: &str, tokens: u64) {
        let meter = self.0.lock().get(mark).cloned();
        if let Some(meter) = meter {
            meter.spend(tokens, Instant::now());
        }
    }
}

/// What is counted of one key.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Requests that are open.
    open: usize,
    /// Tokens of the last minute, by the second.
    tokens: VecDeque<(Instant, u64)>,
}

/// Why a request has to wait, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// So many requests are open, and no more may be.
    Requests {
        /// Open now.
        open: usize,
    },
    /// So many tokens were taken in the last minute.
    Tokens {
        /// Taken.
        taken: u64,
        /// Seconds until there is room.
        again: u64,
    },
}

impl Full {
    /// When to try again (seconds).
    pub fn again(self) -> u64 {
        match self {
            Full::Requests { .. } => AT_ONCE_AGAIN,
            Full::Tokens { again, .. } => again,
        }
    }

    /// In words, with the numbers and the settings.
    pub fn told(self, key: &KeyConfig) -> String {
        let KeyConfig { name, requests_at_once, tokens_per_minute, .. } = key;
        match self {
            Full::Requests { open } => {
                format!(
                    "the key `{name}` has {open} requests open, and may have {requests_at_once} (`requests_at_once`)"
                )
            }
            Full::Tokens { taken, again } => format!(
                "the key `{name}` took {taken} of {tokens_per_minute} tokens in the last minute (`tokens_per_minute`); \
                 there is room in {again} seconds"
            ),
        }
    }
}

impl Meter {
    /// Lets a request in, until what is returned is dropped.
    ///
    /// # Errors
    /// Why it has to wait.
    pub fn enter(self: &Arc<Meter>, key: &KeyConfig, now: Instant) -> Result<Entered, Full> {
        let mut taken = self.0.lock();
        if key.requests_at_once > 0 && taken.open >= key.requests_at_once {
            return Err(Full::Requests { open: taken.open });
        }
        if key.tokens_per_minute > 0
            && let Some(full) = taken.full(key.tokens_per_minute, now)
        {
            return Err(full);
        }
        taken.open += 1;
        Ok(Entered(Arc::clone(self)))
    }

    /// Counts tokens.
    pub fn spend(&self, tokens: u64, now: Instant) {
        let mut taken = self.0.lock();
        taken.forget(now);
        match taken.tokens.back_mut().filter(|(at, _)| now.saturating_duration_since(*at) < Duration::from_secs(1)) {
            Some((_, of_second)) => *of_second = of_second.saturating_add(tokens),
            None => taken.tokens.push_back((now, tokens)),
        }
    }
}

impl Taken {
    fn forget(&mut self, now: Instant) {
        while self.tokens.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MINUTE) {
            self.tokens.pop_front();
        }
    }

    /// Whether the last minute took all there is, and when it will be less.
    fn full(&mut self, most: u64, now: Instant) -> Option<Full> {
        self.forget(now);
        let taken = self.tokens.iter().fold(0, |sum: u64, (_, tokens)| sum.saturating_add(*tokens));
        let mut left = taken;
        if left < most {
            return None;
        }
        for (at, tokens) in &self.tokens {
            left = left.saturating_sub(*tokens);
            if left < most {
                let wait = MINUTE.saturating_sub(now.saturating_duration_since(*at));
                return Some(Full::Tokens { taken, again: wait.as_secs() + 1 });
            }
        }
        Some(Full::Tokens { taken, again: MINUTE.as_secs() })
    }
}

/// A request that was let in.
#[derive(Debug)]
pub struct Entered(Arc<Meter>);

impl Entered {
    /// Counts tokens of this request.
    pub fn spend(&self, tokens: u64) {
        self.0.spend(tokens, Instant::now());
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut taken = self.0.0.lock();
        taken.open = taken.open.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenHash;

    fn key(tokens_per_minute: u64, requests_at_once: usize) -> KeyConfig {
        let (name, scope, place) = ("ann".to_owned(), "ann".to_owned(), String::new());
        KeyConfig { name, hash: TokenHash::of("a"), scope, admin: false, tokens_per_minute, requests_at_once, place }
    }

    #[test]
    fn a_minute_slides() {
        let (meter, start) = (Arc::new(Meter::default()), Instant::now());
        let (key, at) = (key(100, 0), |seconds| start + Duration::from_secs(seconds));
        meter.spend(60, at(0));
        assert!(meter.enter(&key, at(1)).is_ok(), "below the limit the next one comes in, however large it is");
        meter.spend(70, at(30));
        let full = meter.enter(&key, at(40)).unwrap_err();
        assert_eq!(full, Full::Tokens { taken: 130, again: 21 });
        assert!(full.told(&key).contains("130 of 100 tokens"), "{}", full.told(&key));
        assert!(meter.enter(&key, at(61)).is_ok());
        meter.spend(500, at(62));
        assert_eq!(meter.enter(&key, at(63)).unwrap_err(), Full::Tokens { taken: 570, again: 60 });
        assert!(meter.enter(&key, at(130)).is_ok());
    }

    #[test]
    fn requests_are_open_until_they_are_dropped() {
        let (meter, now) = (Arc::new(Meter::default()), Instant::now());
        let key = key(0, 2);
        let (one, _two) = (meter.enter(&key, now).unwrap(), meter.enter(&key, now).unwrap());
        assert_eq!(meter.enter(&key, now).unwrap_err(), Full::Requests { open: 2 });
        drop(one);
        assert!(meter.enter(&key, now).is_ok());
    }

    #[test]
    fn only_known_marks_are_counted() {
        let meters = Meters::default();
        meters.spend("stranger", 5);
        assert!(meters.0.lock().is_empty());
        let meter = meters.of("ann");
        meters.spend("ann", 5);
        assert_eq!(meter.0.lock().tokens.len(), 1);
    }
}
