//! Spans of requests for a collector of OpenTelemetry's: gathered in a queue that is bounded, and delivered in batches behind the
//! requests. No request ever waits for a delivery; what the queue has no room for is dropped, and counted.
//!
//! The body is plain JSON (OTLP over HTTP). It holds figures, names and ids, and never any text of messages.

mod span;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::config::Telemetry;
use crate::upstream::{Collector, Delivered, Error};

/// Requests that wait for their delivery at most. The specification's own queue has as many spans.
const QUEUE: usize = 2048;

/// Requests of one delivery.
const BATCH: usize = 64;

/// The longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long is waited for the last delivery when the program ends.
const AT_THE_END: Duration = Duration::from_secs(2);

/// One request, as its spans tell of it.
pub struct Told {
    /// The data of its event in the record: figures and names, no text of messages.
    pub data: Value,
    /// Its conversation, where that is known.
    pub conversation: Option<String>,
    /// Who answered it, where that is known.
    pub server: Option<Server>,
    /// When it ended, since the beginning of 1970.
    pub ended: Duration,
    /// The span of the client's that it belongs to.
    pub parent: Option<Parent>,
}

/// The server that answered a request.
pub struct Server {
    /// What kind it is, in one word.
    pub kind: &'static str,
    /// Its host; empty where this program answers itself.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A span of the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    trace: u128,
    span: u64,
}

/// What a client says of the trace that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    /// Nothing that can be read.
    None,
    /// It is a part of this trace.
    Of(Parent),
    /// It is a part of a trace that nobody keeps.
    Unkept,
}

/// Reads `traceparent` as <https://www.w3.org/TR/trace-context/> has it.
fn context(headers: &HeaderMap) -> Context {
    let read = || {
        let mut parts = headers.get("traceparent")?.to_str().ok()?.trim().split('-');
        let hex = |text: &str, length: usize| {
            let fits = text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
        };
        let version = hex(parts.next()?, 2).filter(|version| *version != 0xff)?;
        let trace = hex(parts.next()?, 32).filter(|id| *id != 0)?;
        let span = hex(parts.next()?, 16).filter(|id| *id != 0)? as u64;
        let flags = hex(parts.next()?, 2)?;
        // A later version may have more behind it.
        (version > 0 || parts.next().is_none()).then_some((Parent { trace, span }, flags & 1 == 1))
    };
    match read() {
        None => Context::None,
        Some((parent, true)) => Context::Of(parent),
        Some((_, false)) => Context::Unkept,
    }
}

/// The ids of one request's spans.
#[derive(Debug, Clone, Copy)]
struct Ids {
    trace: u128,
    first: u64,
}

impl Ids {
    /// Fresh ones, in the trace of a parent where there is one.
    fn new(parent: Option<Parent>) -> Ids {
        // RandomState is seeded by the system's randomness, and differs from call to call.
        let random = || RandomState::new().hash_one(0).max(1);
        let trace = parent.map_or_else(|| u128::from(random()) << 64 | u128::from(random()), |parent| parent.trace);
        Ids { trace, first: random() }
    }

    fn trace(self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The id of the span of this number; 0 is the request's own.
    fn span(self, number: usize) -> String {
        let id = self.first.wrapping_add(number as u64);
        // An id of zeros is none.
        format!("{:016x}", if id < self.first { id.wrapping_add(1) } else { id })
    }
}

/// How many requests' spans were delivered, and how many were not.
#[derive(Clone, Default)]
pub struct Counts {
    /// The collector has them.
    pub sent: Counter,
    /// There was no room for them, or the collector wants none of them.
    pub dropped: Counter,
}

/// The spans that wait for their delivery.
pub struct Outbox {
    collector: Collector,
    /// How long spans are gathered.
    delay: Duration,
    /// What is said of this program.
    resource: Vec<(String, String)>,
    queue: Mutex<VecDeque<(Arc<Told>, Ids)>>,
    came: Notify,
    counts: Counts,
}

impl Outbox {
    /// An empty one.
    ///
    /// # Errors
    /// When there can be no HTTP client.
    pub fn new(target: Telemetry, counts: Counts) -> Result<Outbox, Error> {
        let Telemetry { url, headers, timeout, delay, resource } = target;
        let collector = Collector::new(&url, headers, timeout)?;
        Ok(Outbox { collector, delay, resource, queue: Mutex::default(), came: Notify::new(), counts })
    }

    /// Takes a request's spans, where the client's trace is kept; `headers` are the client's. Never waits.
    pub fn tell(&self, headers: &HeaderMap, told: impl FnOnce(Option<Parent>) -> Told) {
        let parent = match context(headers) {
            Context::Unkept => return,
            Context::Of(parent) => Some(parent),
            Context::None => None,
        };
        if self.queue.lock().len() >= QUEUE {
            self.counts.dropped.inc();
            return;
        }
        let told = (Arc::new(told(parent)), Ids::new(parent));
        let mut queue = self.queue.lock();
        queue.push_back(told);
        if queue.len() >= BATCH {
            self.came.notify_one();
        }
    }

    /// Delivers what comes, for as long as it is polled.
    pub async fn deliver(&self) {
        let address = self.collector.url();
        info!(address, "spans of requests go to a collector");
        let mut failures = 0;
        loop {
            let _ = tokio::time::timeout(self.delay, self.came.notified()).await;
            while let Some((body, requests)) = self.first() {
                match self.collector.post(body).await {
                    Delivered::Later { why, after } => {
                        if failures == 0 {
                            warn!(
                                address,
                                why, "spans cannot be delivered; those of {QUEUE} requests are kept at most"
                            );
                        }
                        failures += 1;
                        tokio::time::sleep(after.unwrap_or_else(|| wait(failures)).min(LONGEST_WAIT)).await;
                        continue;
                    }
                    Delivered::Refused(why) => {
                        warn!(address, why, "the collector takes no such spans; they are dropped");
                        self.done(requests, &self.counts.dropped);
                    }
                    Delivered::Taken { rejected } => {
                        if rejected > 0 {
                            warn!(address, rejected, "the collector did not want all spans");
                        }
                        self.done(requests, &self.counts.sent);
                    }
                }
                if failures > 0 {
                    info!(address, dropped = self.counts.dropped.get(), "the collector answers again");
                }
                failures = 0;
            }
        }
    }

    /// Delivers what is left, once, before the program ends.
    pub async fn flush(&self) {
        let rest = async {
            while let Some((body, requests)) = self.first() {
                let taken = matches!(self.collector.post(body).await, Delivered::Taken { .. });
                self.done(requests, if taken { &self.counts.sent } else { &self.counts.dropped });
                if !taken {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(AT_THE_END, rest).await;
    }

    /// The next delivery: its body, and of how many requests it is. They stay in the queue until it is done.
    fn first(&self) -> Option<(String, usize)> {
        let batch: Vec<_> = self.queue.lock().iter().take(BATCH).cloned().collect();
        let spans: Vec<Value> = batch.iter().flat_map(|(told, ids)| span::spans(told, *ids)).collect();
        (!batch.is_empty()).then(|| (span::delivery(&self.resource, &spans).to_string(), batch.len()))
    }

    fn done(&self, requests: usize, counted: &Counter) {
        counted.inc_by(requests as u64);
        self.queue.lock().drain(..requests);
    }
}

/// The wait before the next try: twice as long after each failure, and never the same for two programs.
fn wait(failures: u32) -> Duration {
    let longest = Duration::from_secs(1).saturating_mul(1 << failures.clamp(1, 7)).min(LONGEST_WAIT);
    let share = f64::from((RandomState::new().hash_one(failures) % 500) as u32) / 1000.0;
    longest.mul_f64(0.5 + share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(traceparent: &str) -> Context {
        let mut headers = HeaderMap::new();
        if let Ok(value) = traceparent.parse() {
            headers.insert("traceparent", value);
        }
        context(&headers)
    }

    #[test]
    fn a_clients_trace_is_read_as_its_specification_says() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let parent = Parent { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad_6b71_6920_3331 };
        assert_eq!(of(&format!("00-{trace}-{span}-01")), Context::Of(parent));
        assert_eq!(of(&format!("00-{trace}-{span}-00")), Context::Unkept);
        assert_eq!(of(&format!("cc-{trace}-{span}-01-what-comes-later")), Context::Of(parent));
        for wrong in [
            String::new(),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-0"),
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        ] {
            assert_eq!(of(&wrong), Context::None, "{wrong}");
        }
    }

    #[test]
    fn waits_grow_and_end_at_a_minute() {
        for failures in [1, 2, 6, 7, 40, u32::MAX] {
            let longest = Duration::from_secs(60.min(1 << failures.min(7)));
            let waited = wait(failures);
            assert!(waited >= longest / 2 && waited <= longest, "{failures}: {waited:?}");
        }
    }

    #[tokio::test]
    async fn a_full_queue_drops_what_comes_and_counts_it() {
        let target = Telemetry {
            url: "http://127.0.0.1:1/v1/traces".into(),
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            delay: Duration::from_secs(1),
            resource: Vec::new(),
        };
        let outbox = Outbox::new(target, Counts::default()).unwrap();
        let told = |parent| Told { data: Value::Null, conversation: None, server: None, ended: Duration::ZERO, parent };
        for _ in 0..QUEUE + 3 {
            outbox.tell(&HeaderMap::new(), told);
        }
        assert_eq!((outbox.queue.lock().len(), outbox.counts.dropped.get()), (QUEUE, 3));
        let (body, requests) = outbox.first().expect("a batch");
        assert_eq!((requests, outbox.first().expect("the same").0 == body), (BATCH, true), "ids stay over tries");
        // Nobody listens: what is left is given up once, and the program ends.
        outbox.flush().await;
        assert_eq!(outbox.counts.sent.get(), 0);
        assert_eq!(outbox.queue.lock().len(), QUEUE - BATCH);
    }
}
