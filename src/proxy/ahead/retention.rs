//! Keeps the record within its limits: at the start, and from time to time.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use crate::proxy::App;
use crate::proxy::turn::save::now_ms;
use crate::store::{Retention, Store};

/// Time between two passes: limits are in days.
const EVERY: Duration = Duration::from_secs(60 * 60);

impl App {
    /// Starts the passes. The first also clears away what a killed one left.
    pub(in crate::proxy) fn keep_house(&self) {
        let retention = Retention { days: self.config.retention_days, bytes: self.config.retention_bytes };
        let store = self.store.clone();
        let mut clock = Clock::at(Instant::now(), now_ms());
        self.tasks.spawn(async move {
            let mut passes = tokio::time::interval(EVERY);
            passes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                passes.tick().await;
                pass(&store, clock.checked(&store, retention)).await;
                if retention == Retention::default() {
                    return;
                }
            }
        });
    }
}

/// A day, in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// How long a clock that may be wrong is given to be set right, before anything goes for its age.
const DOUBT: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the clock may move against the time that has passed: a night's sleep of the machine.
const DRIFT_MS: i64 = DAY_MS / 2;

/// Who comes back after a year, or after the clock was set a year ahead, gets a day to notice before everything goes.
const LONG_ABSENCE_DAYS: i64 = 365;

/// Whether the clock is to be believed. A wrong one would make everything look old at once.
struct Clock {
    /// A moment, and what the clock said then.
    anchor: (Instant, i64),
    /// Nothing goes for its age before this.
    not_before: Option<Instant>,
    /// Whether the record was looked at.
    began: bool,
}

impl Clock {
    fn at(now: Instant, now_ms: i64) -> Clock {
        Clock { anchor: (now, now_ms), not_before: None, began: false }
    }

    /// The retention that may be applied now.
    fn checked(&mut self, store: &Store, retention: Retention) -> Retention {
        let newest = store.conversations(1).ok().and_then(|rows| rows.first().map(|row| row.updated_ms));
        let (now, now_ms) = (Instant::now(), now_ms());
        if self.in_doubt(now, now_ms, newest, retention.days) { Retention { days: 0, ..retention } } else { retention }
    }

    fn in_doubt(&mut self, now: Instant, now_ms: i64, newest_ms: Option<i64>, days: u32) -> bool {
        if days == 0 {
            return false;
        }
        let passed = i64::try_from(now.saturating_duration_since(self.anchor.0).as_millis()).unwrap_or(i64::MAX);
        let drift_ms = now_ms.saturating_sub(self.anchor.1).saturating_sub(passed);
        let unused_ms = newest_ms.map_or(0, |at| now_ms.saturating_sub(at));
        let implausible = unused_ms > i64::from(days).saturating_add(LONG_ABSENCE_DAYS).saturating_mul(DAY_MS);
        if drift_ms > DRIFT_MS || (!self.began && implausible) {
            warn!(
                drift_hours = drift_ms / (DAY_MS / 24),
                retention_days = days,
                "by the clock, a long time has passed at once: nothing is pruned for its age in the next 24 hours"
            );
            self.not_before = Some(now + DOUBT);
        }
        self.anchor = (now, now_ms);
        self.began = true;
        self.not_before.is_some_and(|until| now < until)
    }
}

async fn pass(store: &Store, retention: Retention) {
    match store.prune(retention, now_ms()).await {
        Ok(done) => {
            let (before, after) = (done.bytes_before, done.bytes_after);
            if done.conversations > 0 {
                info!(
                    conversations = done.conversations,
                    originals = done.originals,
                    bytes_before = before,
                    bytes_after = after,
                    "pruned the record"
                );
            }
            if done.over {
                warn!(
                    bytes = after,
                    retention_bytes = retention.bytes,
                    "the record is larger than it may be: the rest is in use"
                );
            }
            if done.shared && retention != Retention::default() {
                warn!("another windowsill writes the same `data_dir`: nothing is pruned until it has ended");
            }
            debug!(bytes = after, "retention looked at the record");
        }
        Err(e) => warn!(error = %e, "the record could not be pruned"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn a_clock_that_jumps_prunes_nothing_for_a_day() {
        let start = Instant::now();
        let mut clock = Clock::at(start, 0);
        assert!(!clock.in_doubt(start, 0, Some(0), 30));
        assert!(!clock.in_doubt(start + HOUR, DAY_MS / 24, Some(0), 30), "an hour is an hour");
        let jumped = 400 * DAY_MS;
        // A request was recorded since, so the newest one is not old.
        assert!(clock.in_doubt(start + 2 * HOUR, jumped, Some(jumped), 30));
        assert!(clock.in_doubt(start + 20 * HOUR, jumped + 18 * DAY_MS / 24, Some(jumped), 30));
        assert!(!clock.in_doubt(start + 27 * HOUR, jumped + 25 * DAY_MS / 24, Some(jumped), 30));
        assert!(!clock.in_doubt(start + 28 * HOUR, jumped, Some(jumped), 0), "without a limit there is no doubt");
    }

    #[test]
    fn a_start_after_years_waits_a_day() {
        let (start, years) = (Instant::now(), 4_000 * DAY_MS);
        let mut clock = Clock::at(start, years);
        assert!(clock.in_doubt(start, years, Some(0), 30));
        assert!(clock.in_doubt(start + HOUR, years + DAY_MS / 24, Some(years), 30));
        assert!(!clock.in_doubt(start + 25 * HOUR, years + DAY_MS + DAY_MS / 24, Some(years), 30));
        let mut holiday = Clock::at(start, 40 * DAY_MS);
        assert!(!holiday.in_doubt(start, 40 * DAY_MS, Some(0), 30), "what is 40 days old goes at once");
        let mut empty = Clock::at(start, 0);
        assert!(!empty.in_doubt(start, 0, None, 30));
    }
}
