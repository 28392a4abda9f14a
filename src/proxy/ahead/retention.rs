//! Keeps the record within its limits: at the start, and from time to time.
//!
//! Everything looks old at once to a clock that jumps ahead, as those of boards without a battery do once they reach a network. So
//! what goes for its age goes by a clock that is believed; a doubt lasts a day, and stands in the record, since the process may be
//! started anew meanwhile.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::clock::now_ms;
use crate::proxy::App;
use crate::store::{self, Batch, Event, EventFilter, Retention, Store};

/// Time between two passes: limits are in days.
const EVERY: Duration = Duration::from_secs(60 * 60);

/// Starts the passes. The first also clears away what a killed one left.
pub(in crate::proxy) fn keep_house(app: &App) {
    let retention = Retention { days: app.config.retention_days, bytes: app.config.retention_bytes };
    let store = app.store.clone();
    let mut clock = Clock::at(Instant::now(), now_ms());
    app.tasks.spawn(async move {
        let mut passes = tokio::time::interval(EVERY);
        passes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            passes.tick().await;
            let allowed = clock.checked(&store, retention).await;
            pass(&store, allowed).await;
            if retention == Retention::default() {
                return;
            }
        }
    });
}

/// A day, in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// How long a clock that may be wrong is given to be set right, before anything goes for its age.
const DOUBT: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the clock may move against the time that has passed: a night's sleep of the machine.
const DRIFT_MS: i64 = DAY_MS / 2;

/// Who comes back after a year, or after the clock was set a year ahead, gets a day to notice before everything goes.
const LONG_ABSENCE_DAYS: i64 = 365;

/// The kind of the events that say what the clock showed.
const KIND: &str = "clock";

/// Whether the clock is to be believed. A wrong one would make everything look old at once.
struct Clock {
    /// A moment, and what the clock said then.
    anchor: (Instant, i64),
    /// Nothing goes for its age before this.
    not_before: Option<Instant>,
    /// Whether the record was looked at.
    began: bool,
}

/// What the record tells a process that starts.
#[derive(Debug, Default)]
struct Before {
    /// When it was last used, as far as the clock has come.
    used_ms: Option<i64>,
    /// What the clock of the last process showed.
    shown: Option<Shown>,
}

/// What a clock showed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    now_ms: i64,
    /// The start of the machine, and the time since then, sleep included (milliseconds); where the system tells them.
    up: Option<(String, i64)>,
    /// Until when, by this clock, nothing goes for its age.
    doubt_until_ms: Option<i64>,
}

impl Shown {
    fn json(&self) -> Value {
        json!({
            "boot": self.up.as_ref().map(|(boot, _)| boot), "up_ms": self.up.as_ref().map(|(_, up)| up),
            "doubt_until_ms": self.doubt_until_ms,
        })
    }

    fn read(now_ms: i64, data: &Value) -> Shown {
        let up = data["boot"].as_str().map(str::to_owned).zip(data["up_ms"].as_i64());
        Shown { now_ms, up, doubt_until_ms: data["doubt_until_ms"].as_i64() }
    }
}

impl Clock {
    fn at(now: Instant, now_ms: i64) -> Clock {
        Clock { anchor: (now, now_ms), not_before: None, began: false }
    }

    /// The retention that may be applied now. What this process begins with, and each new doubt, is noted in the record.
    async fn checked(&mut self, store: &Store, retention: Retention) -> Retention {
        if retention.days == 0 {
            return retention;
        }
        let (now, now_ms, up) = (Instant::now(), now_ms(), up());
        let (began, until) = (self.began, self.not_before);
        let before = if began { Ok(Before::default()) } else { Before::of(store, now_ms) };
        let doubted = match &before {
            Ok(before) => self.in_doubt(now, now_ms, up.as_ref(), before, retention.days),
            // What was known is known again once the record can be read.
            Err(e) => {
                warn!(error = %e, "the record cannot be asked what the clock showed: nothing is pruned for its age");
                true
            }
        };
        if before.is_ok() && (!began || self.not_before != until) {
            let left = self.not_before.map(|until| millis(until.saturating_duration_since(now)));
            let shown = Shown {
                now_ms,
                up,
                doubt_until_ms: left.filter(|left| *left > 0).map(|left| now_ms.saturating_add(left)),
            };
            let event = Event { now_ms, conversation: None, kind: KIND.into(), data: shown.json() };
            if let Err(e) = store.record(Batch { events: vec![event], ..Batch::default() }).await {
                debug!(error = %e, "what the clock shows was not recorded");
            }
        }
        if doubted { Retention { days: 0, ..retention } } else { retention }
    }

    fn in_doubt(&mut self, now: Instant, now_ms: i64, up: Option<&(String, i64)>, before: &Before, days: u32) -> bool {
        let mut drift_ms =
            now_ms.saturating_sub(self.anchor.1).saturating_sub(millis(now.saturating_duration_since(self.anchor.0)));
        let long = |since_ms: i64| {
            let most = i64::from(days).saturating_add(LONG_ABSENCE_DAYS).saturating_mul(DAY_MS);
            now_ms.saturating_sub(since_ms) > most
        };
        let mut absent = false;
        if !self.began {
            absent = before.used_ms.is_some_and(long);
            if let Some(shown) = &before.shown {
                absent |= long(shown.now_ms);
                drift_ms = drift_ms.max(drift_since(shown, now_ms, up));
                // A clock that was set back since does not make it longer.
                let left = shown.doubt_until_ms.map_or(0, |until| until.saturating_sub(now_ms)).clamp(0, millis(DOUBT));
                self.not_before = (left > 0).then(|| now + Duration::from_millis(left.unsigned_abs()));
            }
        }
        if drift_ms > DRIFT_MS || absent {
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

impl Before {
    fn of(store: &Store, now_ms: i64) -> Result<Before, store::Error> {
        // What was used in the future says nothing of how long ago anything was.
        let used_ms = store.catalog().last_used(now_ms.saturating_add(DRIFT_MS))?;
        let of = EventFilter { conversation: None, kinds: vec![KIND.to_owned()] };
        let last = store.trace().newest(1, &of)?.pop();
        Ok(Before { used_ms, shown: last.map(|event| Shown::read(event.now_ms, &event.data)) })
    }
}

/// How far the clock has moved against the time that has passed since another process looked at it; 0 where the machine was
/// started anew meanwhile.
fn drift_since(shown: &Shown, now_ms: i64, up: Option<&(String, i64)>) -> i64 {
    match (&shown.up, up) {
        (Some((then, was_up)), Some((boot, is_up))) if then == boot => {
            now_ms.saturating_sub(shown.now_ms).saturating_sub(is_up.saturating_sub(*was_up))
        }
        _ => 0,
    }
}

/// Which start of the machine this is, and the time since then, sleep included (proc(5), proc_uptime(5)).
fn up() -> Option<(String, i64)> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let up: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    Some((boot.trim().to_owned(), (up * 1000.0) as i64))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
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
    use crate::conversation::Digest;
    use crate::store::{ConversationUpdate, Node};

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const HOUR_MS: i64 = DAY_MS / 24;

    fn used(used_ms: i64) -> Before {
        Before { used_ms: Some(used_ms), shown: None }
    }

    fn later(clock: &mut Clock, now: Instant, now_ms: i64) -> bool {
        clock.in_doubt(now, now_ms, None, &Before::default(), 30)
    }

    #[test]
    fn a_clock_that_jumps_prunes_nothing_for_a_day() {
        let start = Instant::now();
        let mut clock = Clock::at(start, 0);
        assert!(!clock.in_doubt(start, 0, None, &used(0), 30));
        assert!(!later(&mut clock, start + HOUR, HOUR_MS), "an hour is an hour");
        let jumped = 400 * DAY_MS;
        assert!(later(&mut clock, start + 2 * HOUR, jumped));
        assert!(later(&mut clock, start + 20 * HOUR, jumped + 18 * HOUR_MS));
        assert!(!later(&mut clock, start + 27 * HOUR, jumped + 25 * HOUR_MS));
    }

    #[test]
    fn a_start_after_years_waits_a_day() {
        let (start, years) = (Instant::now(), 4_000 * DAY_MS);
        let mut clock = Clock::at(start, years);
        assert!(clock.in_doubt(start, years, None, &used(0), 30));
        assert!(later(&mut clock, start + HOUR, years + HOUR_MS));
        assert!(!later(&mut clock, start + 25 * HOUR, years + DAY_MS + HOUR_MS));
        let mut holiday = Clock::at(start, 40 * DAY_MS);
        assert!(!holiday.in_doubt(start, 40 * DAY_MS, None, &used(0), 30), "what is 40 days old goes at once");
        assert!(!Clock::at(start, 0).in_doubt(start, 0, None, &Before::default(), 30), "nor does nothing wait");
    }

    #[test]
    fn a_doubt_outlives_the_process_and_ends_in_a_day() {
        let (start, now_ms) = (Instant::now(), 1_000 * DAY_MS);
        let shown = |ago: i64, left: Option<i64>, up: Option<(&str, i64)>| Before {
            used_ms: Some(now_ms),
            shown: Some(Shown {
                now_ms: now_ms - ago,
                up: up.map(|(boot, up)| (boot.to_owned(), up)),
                doubt_until_ms: left.map(|left| now_ms + left),
            }),
        };
        let boot = ("this".to_owned(), 10 * HOUR_MS);
        let doubts = |before: &Before, after: Duration| {
            let mut clock = Clock::at(start, now_ms);
            let first = clock.in_doubt(start, now_ms, Some(&boot), before, 30);
            let then = now_ms + millis(after);
            (first, clock.in_doubt(start + after, then, Some(&boot), &Before::default(), 30))
        };
        // Five hours of it are left.
        assert_eq!(doubts(&shown(HOUR_MS, Some(5 * HOUR_MS), None), 4 * HOUR), (true, true));
        assert_eq!(doubts(&shown(HOUR_MS, Some(5 * HOUR_MS), None), 6 * HOUR), (true, false));
        assert_eq!(doubts(&shown(HOUR_MS, Some(-HOUR_MS), None), HOUR), (false, false), "it is over");
        assert_eq!(doubts(&shown(0, Some(900 * DAY_MS), None), 25 * HOUR), (true, false), "the clock was set back");
        // The board was started with an old clock, which was set while no process looked.
        assert_eq!(doubts(&shown(40 * DAY_MS, None, Some(("this", 9 * HOUR_MS))), HOUR), (true, true));
        assert_eq!(doubts(&shown(9 * HOUR_MS, None, Some(("this", HOUR_MS))), HOUR), (false, false));
        assert_eq!(doubts(&shown(40 * DAY_MS, None, Some(("other", 9 * HOUR_MS))), HOUR), (false, false), "a holiday");
        assert_eq!(
            doubts(&shown(900 * DAY_MS, None, Some(("other", 0))), HOUR),
            (true, true),
            "it began in another year"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_doubt_is_in_the_record_and_a_row_of_the_future_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let now = now_ms();
        let row = |id: &str, now_ms: i64| {
            let chain = Digest::of(id.as_bytes());
            let raw = bytes::Bytes::from(json!({"role": "user", "content": id}).to_string());
            let node =
                Node { chain, parent: None, depth: 1, role: "user", digest: Digest::of(&raw), raw, text: id.into() };
            let conversation = ConversationUpdate {
                id: id.into(),
                parent: None,
                session: None,
                model: String::new(),
                upstream: String::new(),
                tip: chain,
                depth: 1,
                state: "null".into(),
                now_ms,
                title: String::new(),
            };
            Batch { conversation: Some(conversation), nodes: vec![node], ..Batch::default() }
        };
        store.record(row("c01", now - 900 * DAY_MS)).await.unwrap();
        store.record(row("c02", now + 900 * DAY_MS)).await.unwrap();
        let retention = Retention { days: 30, bytes: 0 };
        for process in 0..3 {
            let mut clock = Clock::at(Instant::now(), now);
            assert_eq!(clock.checked(&store, retention).await.days, 0, "process {process}");
            // From the second one on, the record is in use, and what it says of the clock is all there is.
            store.record(row("c03", now)).await.unwrap();
        }
        assert_eq!(Clock::at(Instant::now(), now).checked(&store, Retention { days: 0, bytes: 9 }).await.bytes, 9);
    }
}
