//! The wire to a collector of telemetry: one POST, and what its answer means. It knows nothing of spans.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::Value;

use super::error::Error;
use super::link::client;

/// Bytes of an answer that are read.
const ANSWER: usize = 64 * 1024;

/// Where deliveries go.
#[derive(Debug)]
pub struct Collector {
    client: reqwest::Client,
    url: String,
    headers: HeaderMap,
    timeout: Duration,
}

/// What became of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The collector has it.
    Taken {
        /// Spans that it did not want.
        rejected: u64,
    },
    /// It may be tried again.
    Later {
        /// What happened.
        why: String,
        /// The wait that the collector asks for.
        after: Option<Duration>,
    },
    /// Trying again would come to the same.
    Refused(String),
}

impl Collector {
    /// One at a whole address. Nothing is sent yet.
    ///
    /// # Errors
    /// When there can be no HTTP client.
    pub fn new(url: &str, headers: HeaderMap, timeout: Duration) -> Result<Collector, Error> {
        Ok(Collector { client: client()?, url: url.to_owned(), headers, timeout })
    }

    /// Where deliveries go.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Delivers JSON once. What may be tried again is what the specification lists
    /// (<https://opentelemetry.io/docs/specs/otlp/#otlphttp-response>).
    pub async fn post(&self, body: String) -> Delivered {
        let request = self.client.post(&self.url).headers(self.headers.clone()).timeout(self.timeout);
        let mut reply = match request.header(CONTENT_TYPE, "application/json").body(body).send().await {
            Ok(reply) => reply,
            Err(e) => return Delivered::Later { why: chain(&e.without_url()), after: None },
        };
        let status = reply.status().as_u16();
        if matches!(status, 429 | 502 | 503 | 504) {
            let after = reply.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok());
            return Delivered::Later { why: format!("status {status}"), after: after.map(Duration::from_secs) };
        }
        if !reply.status().is_success() {
            return Delivered::Refused(format!("status {status}"));
        }
        let mut answer = Vec::new();
        while let Ok(Some(more)) = reply.chunk().await {
            answer.extend_from_slice(&more);
            if answer.len() > ANSWER {
                break;
            }
        }
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let rejected = &answer["partialSuccess"]["rejectedSpans"];
        let rejected = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0);
        Delivered::Taken { rejected }
    }
}

/// An error with what it came from.
fn chain(e: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(e), |e| e.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
