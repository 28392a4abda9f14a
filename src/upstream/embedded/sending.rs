//! The engine's replies as HTTP has them: at once, or as server-sent events, several of them one after the other.

use bytes::Bytes;
use futures_util::stream;
use http::{Response, StatusCode, header};
use serde_json::Value;

use super::Told;
use super::reply::{self, Reply};
use super::request::Form;
use crate::engine::generate::{Ended, Event};

pub(super) async fn at_once(
    mut told: Told,
    mut more: impl Iterator<Item = Told>,
    mut shape: Reply,
) -> Response<reqwest::Body> {
    let (mut choices, mut sum) = (Vec::new(), None);
    loop {
        let ended = match told.next().await {
            Event::Ended(ended) => ended,
            Event::Refused(why) => return told.refused(&why),
            Event::Taken
            | Event::Counted(_)
            | Event::Words(_)
            | Event::Began { .. }
            | Event::Odds(_)
            | Event::Said(_)
            | Event::Text(_)
            | Event::Token(_) => continue,
        };
        choices.push(shape.choice(&told.said, &ended));
        let so_far = shape.summed(sum, &ended);
        match more.next() {
            Some(next) => (told, shape.index, sum) = (next, shape.index + 1, Some(so_far)),
            None => return whole(StatusCode::OK, &shape.whole(choices, &so_far)),
        }
    }
}

/// Replies that are streamed, one after the other.
struct Streamed<M> {
    /// The one that is told; none once all are.
    told: Option<Told>,
    more: M,
    shape: Reply,
    /// What the replies before it took.
    sum: Option<Ended>,
    /// What is sent before the next event.
    before: String,
    usage: bool,
}

/// The reply as server-sent events, once it is known that there will be one.
pub(super) fn streamed(
    told: Told,
    more: impl Iterator<Item = Told> + Send + 'static,
    shape: Reply,
    usage: bool,
) -> Response<reqwest::Body> {
    let before = shape.opening().iter().map(event).collect();
    let begun = Streamed { told: Some(told), more, shape, sum: None, before, usage };
    let parts = stream::unfold(begun, |mut going| async move {
        going.told.as_ref()?;
        let text = match std::mem::take(&mut going.before) {
            text if text.is_empty() => going.next().await?,
            text => text,
        };
        Some((Ok::<Bytes, std::io::Error>(text.into()), going))
    });
    respond(StatusCode::OK, "text/event-stream", reqwest::Body::wrap_stream(parts))
}

impl<M: Iterator<Item = Told>> Streamed<M> {
    /// The next events, as they are sent; `None` after the last.
    async fn next(&mut self) -> Option<String> {
        loop {
            let told = self.told.as_mut()?;
            return Some(match told.next().await {
                Event::Taken
                | Event::Counted(_)
                | Event::Words(_)
                | Event::Began { .. }
                | Event::Odds(_)
                | Event::Token(_) => continue,
                Event::Said(deltas) => {
                    let mut odds = std::mem::take(&mut told.said.odds);
                    let mut said = |delta| event(&self.shape.said(delta, std::mem::take(&mut odds)));
                    deltas.iter().map(&mut said).collect()
                }
                Event::Text(text) => event(&self.shape.text(&text, &mut told.said)),
                Event::Ended(ended) => self.ended(&ended),
                // Too late for a status: the stream says so.
                Event::Refused(why) => {
                    self.told = None;
                    event(&reply::refusal(&why).1)
                }
            });
        }
    }

    /// What a reply ends with, and goes on with the next, or to the end.
    fn ended(&mut self, ended: &Ended) -> String {
        let said = self.told.take().map(|told| told.said).unwrap_or_default();
        let last = self.shape.last(&said, ended);
        let sum = self.shape.summed(self.sum.take(), ended);
        self.told = self.more.next();
        if self.told.is_none() {
            let parts = self.shape.closing(last, &sum, self.usage);
            let done = (self.shape.form != Form::Native).then(|| "data: [DONE]\n\n".to_owned());
            return parts.iter().map(event).chain(done).collect();
        }
        self.sum = Some(sum);
        self.shape.index += 1;
        let opening = self.shape.opening();
        std::iter::once(&last).chain(&opening).map(event).collect()
    }
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

pub(super) fn not_loaded() -> Response<reqwest::Body> {
    failed(reply::error(503, "unavailable_error", "the model is not loaded"))
}

pub(super) fn failed((status, body): (u16, Value)) -> Response<reqwest::Body> {
    whole(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body)
}

pub(super) fn whole(status: StatusCode, body: &Value) -> Response<reqwest::Body> {
    respond(status, "application/json; charset=utf-8", body.to_string().into())
}

fn respond(status: StatusCode, kind: &'static str, body: reqwest::Body) -> Response<reqwest::Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
