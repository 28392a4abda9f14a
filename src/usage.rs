//! What was really used: the figures a server reports in its reply, what was planned, cache hits, spend by role, and the
//! counters people scrape. Holds no message text.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::Telemetry;
use crate::conversation::Tokens;
use crate::telemetry::{Counts, Outbox};
use crate::upstream::event::Says;
use crate::upstream::{self, Upstream};
use crate::wire::{finish, reply};

/// What a server says a reply cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reported {
    /// `usage.prompt_tokens`.
    pub prompt: Option<Tokens>,
    /// Prompt tokens taken from the server's cache: `prompt_tokens_details.cached_tokens` or llama.cpp's `cache_n`.
    pub cached: Option<Tokens>,
    /// Prompt tokens evaluated: llama.cpp's `timings.prompt_n`.
    pub evaluated: Option<Tokens>,
    /// `usage.completion_tokens`.
    pub completion: Option<Tokens>,
    /// Milliseconds of prompt evaluation.
    pub prompt_ms: Option<f64>,
    /// The last `finish_reason` that was not null.
    pub finish: Option<String>,
    /// Whether the reply carried tool calls.
    pub called_tools: bool,
    /// An error came inside the stream.
    pub failed: bool,
    /// `data: [DONE]` was seen.
    pub done: bool,
    /// When its first thought came, and the first word of its answer or its first call, where the reply is a stream.
    pub thought: Option<Instant>,
    /// See `thought`.
    pub spoke: Option<Instant>,
    /// The reply's text, for a brief that continues it; cut at `KEPT_TEXT` bytes.
    pub text: String,
}

/// Bytes of a reply's text that are kept for the brief made behind it.
const KEPT_TEXT: usize = 64 * 1024;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Chunk {
    usage: Option<Usage>,
    timings: Option<Timings>,
    choices: Vec<Choice>,
    error: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Usage {
    prompt_tokens: Option<f64>,
    completion_tokens: Option<f64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    cached_tokens: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Timings {
    cache_n: Option<f64>,
    prompt_n: Option<f64>,
    prompt_ms: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice {
    index: u64,
    finish_reason: Option<String>,
    delta: Option<Said>,
    message: Option<Said>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    content: Option<Value>,
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    tool_calls: Option<Vec<Value>>,
    function_call: Option<Called>,
}

/// A call in the form that OpenAI had before `tool_calls`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Called {
    name: Option<Value>,
    arguments: Option<Value>,
}

impl Said {
    fn calls(&self) -> bool {
        let legacy = self.function_call.as_ref().map(|call| [&call.name, &call.arguments]);
        self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
            || legacy.is_some_and(|said| said.into_iter().flatten().any(reply::says))
    }
}

impl Reported {
    /// Reads a whole reply. What is not JSON is passed over.
    pub fn read(&mut self, reply: &[u8]) {
        if let Ok(reply) = serde_json::from_str(&String::from_utf8_lossy(reply)) {
            self.take(reply);
        }
    }

    /// Takes in what an event of a stream says.
    pub fn hear(&mut self, says: &Says) {
        match says {
            Says::Chunk(value) => Chunk::deserialize(value).into_iter().for_each(|chunk| self.take(chunk)),
            Says::Done => self.done = true,
            Says::Other | Says::Nothing => {}
        }
    }

    fn take(&mut self, chunk: Chunk) {
        let tokens = |n: f64| n.clamp(0.0, f64::from(u32::MAX)) as Tokens;
        if let Some(usage) = chunk.usage {
            self.prompt = usage.prompt_tokens.map(tokens).or(self.prompt);
            self.completion = usage.completion_tokens.map(tokens).or(self.completion);
            let cached = usage.prompt_tokens_details.and_then(|d| d.cached_tokens);
            self.cached = cached.map(tokens).or(self.cached);
        }
        if let Some(timings) = chunk.timings {
            self.evaluated = timings.prompt_n.map(tokens).or(self.evaluated);
            self.cached = timings.cache_n.map(tokens).or(self.cached);
            self.prompt_ms = timings.prompt_ms.or(self.prompt_ms);
            if let (Some(cached), Some(evaluated)) = (timings.cache_n, timings.prompt_n) {
                self.prompt = self.prompt.or(Some(tokens(cached + evaluated)));
            }
        }
        self.failed |= chunk.error.is_some_and(|e| reply::is_told(&e));
        for choice in chunk.choices {
            let finish = choice.finish_reason.filter(|reason| !reason.is_empty());
            let finish = finish.map(|reason| finish::usual(&reason).to_owned());
            // What is said in pieces is said now; a whole reply was said before.
            let now = choice.delta.is_some().then(Instant::now);
            let Some(said) = choice.delta.or(choice.message) else {
                self.finish = finish.or(self.finish.take());
                continue;
            };
            // A finish reason that more of the reply follows was none.
            let calls = said.calls();
            let says = calls || said.content.as_ref().is_some_and(|c| !c.is_null() && *c != "");
            self.finish = finish.or(self.finish.take().filter(|_| !says || choice.index > 0));
            let thinks =
                [&said.reasoning_content, &said.reasoning].into_iter().flatten().any(|c| !c.is_null() && *c != "");
            self.thought = self.thought.or(now.filter(|_| thinks));
            self.spoke = self.spoke.or(now.filter(|_| says));
            self.called_tools |= calls;
            if let (Some(Value::String(text)), true) = (said.content, self.text.len() < KEPT_TEXT) {
                self.text.push_str(&text);
            }
        }
    }

    /// Whether the reply came to its proper end.
    pub fn complete(&self) -> bool {
        !self.failed && (self.finish.is_some() || self.done)
    }

    /// The figures as an event's data. `model`: its one name, see [`Upstream::canonical`], and that of its upstream.
    pub fn event(&self, role: &str, (upstream, model): (&Upstream, &str), planned: Tokens, milliseconds: u64) -> Value {
        json!({
            "role": role,
            "model": upstream.canonical(model),
            "upstream": upstream.name(),
            "planned_prompt_tokens": planned,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "evaluated_tokens": self.evaluated,
            "completion_tokens": self.completion,
            "finish_reason": self.finish,
            "milliseconds": milliseconds,
            "prompt_milliseconds": self.prompt_ms,
        })
    }
}

/// Labels of the request counter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    action: String,
    status: u32,
}

/// Labels of the counter of failures.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Failure {
    status: u32,
    code: &'static str,
}

/// Labels of the token counters.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Part {
    role: &'static str,
    kind: &'static str,
}

/// The counters behind `/metrics`.
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Outcome, Counter>,
    failures: Family<Failure, Counter>,
    tokens: Family<Part, Counter>,
    compactions: Family<Layer, Counter>,
    prefix: Counter,
    prefix_lost: Family<Loss, Counter>,
    recalls: Family<Answered, Counter>,
    missed: Family<Again, Counter>,
    waits_for_room: Counter,
    overhead: Histogram,
    pressure: Family<Kind, Histogram>,
    /// 1 while the record can be written, and the batches that could not be.
    record: (Gauge, Gauge),
    /// The spans of requests, where somebody wants them.
    spans: Option<Arc<Outbox>>,
}

/// Labels of the counter of tokens that the last prompt ended with and this one does not begin with.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Loss {
    because: &'static str,
}

/// Labels of the pressure.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    class: &'static str,
}

/// Labels of the counter of recalls.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    outcome: &'static str,
}

/// Labels of the counter of what was read again.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Again {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Layer {
    layer: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("windowsill");
        let metrics = Metrics {
            requests: Family::default(),
            failures: Family::default(),
            tokens: Family::default(),
            compactions: Family::default(),
            prefix: Counter::default(),
            prefix_lost: Family::default(),
            recalls: Family::default(),
            missed: Family::default(),
            waits_for_room: Counter::default(),
            overhead: Histogram::new(exponential_buckets(0.000_05, 4.0, 10)),
            pressure: Family::new_with_constructor(|| Histogram::new((1..=10).map(|n| f64::from(n) / 10.0))),
            record: Default::default(),
            spans: None,
            registry: Mutex::default(),
        };
        registry.register("requests", "Managed requests by what was done to them", metrics.requests.clone());
        let help = "Managed requests that failed, by the status that the client got and by their code (server: in the server's own words; reply_failed: within a reply that had begun)";
        registry.register("failures", help, metrics.failures.clone());
        registry.register(
            "tokens",
            "Tokens by role (main, recall, summary, digest, title, prefill) and kind",
            metrics.tokens.clone(),
        );
        registry.register(
            "compactions",
            "Rewrites by layer, and what somebody asked for by its name",
            metrics.compactions.clone(),
        );
        let help = "Tokens that a prompt began with as the last one of its conversation did";
        registry.register("prefix_tokens", help, metrics.prefix.clone());
        let help = "Tokens of the last prompt that the next one did not begin with, by whose doing (client, rewrite)";
        registry.register("prefix_lost_tokens", help, metrics.prefix_lost.clone());
        registry.register("recalls", "Calls of the recall tool by how they were answered", metrics.recalls.clone());
        let help = "Calls that read again what had left the prompt, by what they read (file, query, recall)";
        registry.register("missed", help, metrics.missed.clone());
        let help = "Requests that waited for room in a pool that the slots of a server share";
        registry.register("waits_for_room", help, metrics.waits_for_room.clone());
        let help = "Time between reading a request and sending it on";
        registry.register_with_unit("overhead", help, Unit::Seconds, metrics.overhead.clone());
        let help = "Pressure of managed requests by the class of their conversation (agent, chat, helper)";
        registry.register("pressure_ratio", help, metrics.pressure.clone());
        let help = "1 while the record can be written, 0 while its last write failed";
        registry.register("record_writable", help, metrics.record.0.clone());
        let help = "Batches that could not be written to the record since the start";
        registry.register("record_failures", help, metrics.record.1.clone());
        *metrics.registry.lock() = registry;
        metrics
    }
}

impl Metrics {
    /// Counters, and the spans of requests for a collector.
    ///
    /// # Errors
    /// When there can be no HTTP client.
    pub fn telling(target: Telemetry) -> Result<Metrics, upstream::Error> {
        let told: Family<Answered, Counter> = Family::default();
        let count = |outcome| told.get_or_create(&Answered { outcome }).clone();
        let counts = Counts { sent: count("sent"), dropped: count("dropped") };
        let metrics = Metrics { spans: Some(Arc::new(Outbox::new(target, counts)?)), ..Metrics::default() };
        let help = "Requests whose spans were delivered to the collector, or not (sent, dropped)";
        metrics.registry.lock().register("traced_requests", help, told);
        Ok(metrics)
    }

    /// The spans of requests, where somebody wants them.
    pub fn spans(&self) -> Option<&Arc<Outbox>> {
        self.spans.as_ref()
    }

    /// Counts a managed request.
    pub fn request(&self, action: &str, status: u16, overhead_seconds: f64) {
        self.requests.get_or_create(&Outcome { action: action.to_owned(), status: u32::from(status) }).inc();
        self.overhead.observe(overhead_seconds);
        for layer in action.split(',').filter(|l| *l != "none") {
            self.compactions.get_or_create(&Layer { layer: layer.to_owned() }).inc();
        }
    }

    /// Counts a rewrite that somebody asked for.
    pub fn rewrote(&self, action: &str) {
        self.compactions.get_or_create(&Layer { layer: action.to_owned() }).inc();
    }

    /// Counts a managed request that failed, by the status that the client got, and why in one word.
    pub fn failure(&self, status: u16, code: &'static str) {
        self.failures.get_or_create(&Failure { status: u32::from(status), code }).inc();
    }

    /// Counts a managed request that got no answer of the server's.
    pub fn failed(&self, status: u16) {
        self.requests.get_or_create(&Outcome { action: "none".to_owned(), status: u32::from(status) }).inc();
    }

    /// Notes how full the window of a managed request is, by the class of its conversation.
    pub fn pressure(&self, class: &'static str, pressure: f64) {
        self.pressure.get_or_create(&Kind { class }).observe(pressure);
    }

    /// Counts what a reply cost; `role` is `main`, `recall`, `summary`, `digest`, `title` or `prefill`.
    pub fn spend(&self, role: &'static str, reported: &Reported) {
        for (kind, tokens) in [
            ("prompt", reported.prompt),
            ("cached", reported.cached),
            ("evaluated", reported.evaluated),
            ("completion", reported.completion),
        ] {
            if let Some(tokens) = tokens {
                self.tokens.get_or_create(&Part { role, kind }).inc_by(u64::from(tokens));
            }
        }
    }

    /// Notes whether the record can be written, and how many batches could not be.
    pub fn record(&self, writable: bool, failures: u64) {
        self.record.0.set(i64::from(writable));
        self.record.1.set(i64::try_from(failures).unwrap_or(i64::MAX));
    }

    /// Counts a call of the recall tool by how it was answered.
    pub fn recalled(&self, outcome: &'static str) {
        self.recalls.get_or_create(&Answered { outcome }).inc();
    }

    /// Counts a request that waits for room in a pool that the slots of its server share.
    pub fn waited_for_room(&self) {
        self.waits_for_room.inc();
    }

    /// Counts a call that reads again what had left the prompt, by the kind of reading.
    pub fn missed(&self, kind: &'static str) {
        self.missed.get_or_create(&Again { kind }).inc();
    }

    /// Counts what a prompt has in common with the last one of its conversation, and what was lost of that, and why.
    pub fn prefix(&self, kept: Tokens, lost: Option<(&'static str, Tokens)>) {
        self.prefix.inc_by(u64::from(kept));
        if let Some((because, tokens)) = lost {
            self.prefix_lost.get_or_create(&Loss { because }).inc_by(u64::from(tokens));
        }
    }

    /// All of it in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        match encode(&mut out, &self.registry.lock()) {
            Ok(()) => out,
            Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_streams_and_whole_replies() {
        let mut r = Reported::default();
        for chunk in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Hé"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":31}},"timings":{"cache_n":31,"prompt_n":1,"prompt_ms":18.7}}"#,
        ] {
            r.hear(&Says::Chunk(serde_json::from_str(chunk).unwrap()));
        }
        r.hear(&Says::Other);
        assert!(!r.done);
        r.hear(&Says::Done);
        assert!(r.done);
        assert_eq!((r.prompt, r.cached, r.evaluated, r.completion), (Some(32), Some(31), Some(1), Some(3)));
        assert_eq!((r.text.as_str(), r.finish.as_deref(), r.complete()), ("Hé", Some("stop"), true));
        assert_eq!((r.thought, r.spoke.is_some()), (None, true));
        r.hear(&Says::Chunk(
            serde_json::from_str(r#"{"choices":[{"index":0,"delta":{"reasoning_content":"Hm"}}]}"#).unwrap(),
        ));
        assert!(r.thought > r.spoke, "the first of each counts");

        let mut r = Reported::default();
        r.read(br#"{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{}]}}],"timings":{"cache_n":2,"prompt_n":3}}"#);
        assert!(r.called_tools && r.prompt == Some(5));
        assert_eq!((r.thought, r.spoke), (None, None), "nobody knows when a whole reply was said");
        r.read(br#"{"error":{"message":"x"}}"#);
        assert!(!r.complete());
    }

    #[test]
    fn metrics_have_our_names() {
        let m = Metrics::default();
        m.request("evict,clear", 200, 0.001);
        m.pressure("agent", 0.45);
        m.spend("main", &Reported { prompt: Some(7), ..Default::default() });
        let text = m.text();
        for line in [
            "windowsill_requests_total{action=\"evict,clear\",status=\"200\"} 1",
            "windowsill_tokens_total{role=\"main\",kind=\"prompt\"} 7",
            "windowsill_compactions_total{layer=\"clear\"} 1",
            "windowsill_pressure_ratio_bucket{le=\"0.5\",class=\"agent\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
