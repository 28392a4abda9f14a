//! One request, told top to bottom: [`App::chat`] measures, plans, applies, sends, relays, accounts.

pub(super) mod account;
pub(super) mod admission;
pub(super) mod class;
pub(super) mod dialect;
pub(super) mod digest;
pub(super) mod draft;
mod embeds;
pub(super) mod guard;
pub(super) mod headers;
pub(super) mod history;
pub(super) mod items;
pub(super) mod measured;
pub(super) mod opening;
pub(super) mod place;
pub(super) mod plainly;
pub(super) mod prefix;
pub(super) mod prepare;
pub(super) mod recall;
pub(super) mod refused;
pub mod relay;
mod remind;
mod replied;
mod retold;
pub(super) mod save;
pub(super) mod shadow;
pub(super) mod situation;
pub(super) mod system;
pub(super) mod task;
mod waiting;
pub(super) mod whose;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, Response};
use serde_json::Value;
use tracing::{info, warn};

use super::desk::models;
use super::{App, Body, Error, aside};
use crate::plain;
use crate::upstream::event::Content;
use crate::upstream::{Reply, Upstream};
use crate::wire::openai_chat;
use crate::wire::reply::said;
use prepare::{Attempt, Prepared};
use relay::{Answer, Books, Taker};
use waiting::Early;

/// A reply that is not streamed is read whole before it is passed on, up to this size; a larger one is relayed as it
/// comes.
pub(super) const LARGEST_BUFFERED: usize = 64 << 20;

/// Longest that a reply waits for its request to be written.
const SLOWEST_WRITE: Duration = Duration::from_secs(1);

impl App {
    /// Answers a chat completion request.
    ///
    /// # Errors
    /// What the caller must be told: its own mistake, no upstream, or a prompt that cannot be made to fit.
    pub async fn chat(self: &Arc<Self>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
        if headers::is_off(&parts.headers, &headers::SWITCH) {
            return self.pass(parts, body).await;
        }
        if self.config.shadow {
            return self.shadowed(parts, body.clone(), Ok(body)).await;
        }
        match self.answer(parts, body.clone(), &Early::default()).await {
            Err(Error::Unread(why)) => self.unread(parts, body, why).await,
            answered => Ok(answered?.map(|answer| self.body_of(answer))),
        }
    }

    /// Answers a request that is neither passed nor shadowed, however long that takes. What is known of the answer before it is
    /// there goes to `early`.
    async fn answered(self: &Arc<Self>, parts: &Parts, body: Bytes, early: &Early) -> Result<Response<Answer>, Error> {
        let started = Instant::now();
        let size = body.len();
        let (app, headers, known) = (Arc::clone(self), parts.headers.clone(), early.clone());
        let first = async move { app.first(body, &headers, &known).await };
        let (upstream, mut prepared) = self.aside.run(size, first.boxed()).await??;
        early.prepared(&prepared, self);
        let overhead = started.elapsed();
        let mut reply = self.send(&upstream, parts, &mut prepared).boxed().await?;
        reply = self.retold(&upstream, parts, &mut prepared, reply).boxed().await?;
        if let Some(refused) = self.refused(&upstream, &prepared, &mut reply).await {
            let attempt = self.learned(&upstream, &prepared, &refused)?;
            let (app, to, headers) = (Arc::clone(self), Arc::clone(&upstream), parts.headers.clone());
            let harder = async move { app.harder(&to, prepared, attempt, &headers).await };
            prepared = match self.aside.run(size, harder.boxed()).await? {
                Err(e) if e.is_too_long() => return Err(refused.own_words().unwrap_or(e)),
                harder => harder?,
            };
            reply = self.send(&upstream, parts, &mut prepared).boxed().await?;
            // Where the words stand in the request, the server's own say more than ours.
            let again = self.refused(&upstream, &prepared, &mut reply).await.filter(|again| !again.echoed);
            if let Some(again) = again {
                return Err(self.refused_twice(&prepared, again.refusal));
            }
        }
        let reply = self.or_plainly(&upstream, parts, &mut prepared, reply).boxed().await?;
        self.metrics.request(&prepared.action(), reply.status.as_u16(), overhead.as_secs_f64());
        if prepared.window.tokens.is_some() {
            self.metrics.pressure(class::Class::of(&prepared.request.conversation).as_str(), prepared.pressure());
        }
        info!(
            conversation = %prepared.id,
            model = %plain::line(&prepared.request.model),
            upstream = upstream.name(),
            window = prepared.window.tokens,
            window_source = %prepared.window.source,
            before = prepared.before.prompt(),
            prompt_tokens = prepared.tokens,
            action = %prepared.action(),
            status = reply.status.as_u16(),
            overhead_ms = overhead.as_secs_f64() * 1000.0,
            "request"
        );
        self.relay(upstream, parts, prepared, reply, started).boxed().await
    }

    /// Reads a request and prepares it for the upstream that serves its model.
    async fn first(
        self: &Arc<Self>,
        body: Bytes,
        headers: &HeaderMap,
        early: &Early,
    ) -> Result<(Arc<Upstream>, Prepared), Error> {
        let mut request = openai_chat::parse(&body)?;
        early.read(request.stream);
        self.take_task(&mut request, headers).boxed().await?;
        let upstream = self.upstream_of(&request.model).boxed().await?;
        let using = self.using(&upstream, &request.model).await;
        let mut prepared = self.prepare(&upstream, request, headers, Attempt::First).boxed().await?;
        self.too_small(&mut prepared)?;
        self.note_task(&prepared);
        prepared.flight = Some(self.lives.fly(&prepared.id, using));
        self.save(&upstream, &mut prepared).boxed().await?;
        prepared.prefix = self.note_sent(&upstream, &prepared);
        Ok((upstream, prepared))
    }

    /// Prepares a request again, harder.
    async fn harder(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        mut prepared: Prepared,
        attempt: Attempt,
        headers: &HeaderMap,
    ) -> Result<Prepared, Error> {
        let mut harder = self.prepare(upstream, prepared.request.clone(), headers, attempt).boxed().await?;
        harder.actions.push("emergency");
        harder.flight = prepared.flight.take();
        // The client's own bytes are those of the first try.
        harder.client_marks = std::mem::take(&mut prepared.client_marks);
        self.save(upstream, &mut harder).boxed().await?;
        harder.prefix = self.note_sent(upstream, &harder);
        Ok(harder)
    }

    async fn relay(
        self: &Arc<Self>,
        upstream: Arc<Upstream>,
        parts: &Parts,
        prepared: Prepared,
        reply: Reply,
        started: Instant,
    ) -> Result<Response<Answer>, Error> {
        self.in_record().await;
        let mut response = Response::builder().status(reply.status);
        if let Some(h) = response.headers_mut() {
            *h = reply.headers.clone();
            prepared.mark(h, &self.config.gauge);
            self.mark_record(h);
        }
        let is_stream = headers::is_event_stream(&reply.headers);
        if let Some(h) = response.headers_mut().filter(|_| is_stream) {
            // A stream that breaks off ends with an event that says so: it may be longer than the server said.
            h.remove(http::header::CONTENT_LENGTH);
        }
        let ok = reply.status.is_success();
        let mut keeper = replied::Keeper::of(&self.store, &prepared);
        let app = Arc::clone(self);
        let sent = self.outgoing(&parts.headers);
        let build = |r: http::response::Builder, answer: Answer| {
            r.body(answer).map_err(|e| Error::Internal { doing: "build the reply", source: Box::new(e) })
        };
        if is_stream && ok {
            let taker = if prepared.request.changes_tools() {
                let answering = recall::Answering::new(app, upstream, sent, path_of(parts), prepared, started);
                Taker::Answering(Box::new(answering))
            } else {
                let done = move |reported, end| app.account(upstream, &sent, prepared, reported, end, started);
                Taker::Books(Box::new(Books::new(keeper, done)))
            };
            return build(response, Answer::Events(relay::streamed(reply.body.events(), taker)));
        }
        let (bytes, rest) = read_up_to(reply.body, LARGEST_BUFFERED).await?;
        if let Some(rest) = rest {
            let whole = futures_util::stream::iter([Ok(bytes)]).chain(rest).boxed();
            return build(response, Answer::Body(relay::through(whole)));
        }
        if ok && prepared.request.changes_tools() {
            let mut answering = recall::Answering::new(app, upstream, sent, path_of(parts), prepared, started);
            let bytes = match answering.whole(bytes).await {
                Ok(bytes) => bytes,
                Err(recall::Stopped::Gone(e)) => return Err(e),
                Err(recall::Stopped::Refused(reply)) => {
                    let (status, said) = recall::refusal(reply).await?;
                    response = response.status(status);
                    said
                }
            };
            if let Some(h) = response.headers_mut() {
                h.remove(http::header::CONTENT_LENGTH);
            }
            return build(response, Answer::Body(relay::full(bytes)));
        }
        if ok {
            let mut reported = crate::usage::Reported::default();
            let said = aside::once(bytes.len(), || {
                reported.read(&bytes);
                serde_json::from_slice::<Value>(&bytes)
                    .ok()
                    .and_then(|whole| said(whole.pointer("/choices/0/message")?))
            });
            if let Some(keeper) = &mut keeper {
                keeper.keep(said).await;
            }
            self.account(upstream, &sent, prepared, reported, relay::End::Complete, started);
        }
        if let Some(h) = response.headers_mut() {
            h.remove(http::header::CONTENT_LENGTH);
        }
        build(response, Answer::Body(relay::full(bytes)))
    }

    /// Waits until the request is in the record, so that a crash after the reply loses nothing of it. It was queued before it
    /// was forwarded, and a model takes longer than a write: this waits only for a disk that is slow.
    async fn in_record(&self) {
        if tokio::time::timeout(SLOWEST_WRITE, self.store.flush()).await.is_err() {
            warn!("the record is slow: it is not waited for");
        }
    }

    /// Passes a request through untouched.
    ///
    /// # Errors
    /// When no upstream can be reached.
    pub async fn pass(&self, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
        let read = body.clone();
        let model = self.aside.reading(body.len(), async move { models::model_in(&read) }.boxed()).await?;
        let upstream = self.upstream_of(&model).await?;
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        let headers = self.outgoing(&parts.headers);
        let using = self.using(&upstream, &model).await;
        let reply = upstream.pass(parts.method.clone(), path, &headers, body.into()).await?;
        let mut response = Response::builder().status(reply.status);
        if let Some(h) = response.headers_mut() {
            *h = reply.headers;
        }
        response
            .body(relay::through(reply.body.inspect(move |_| _ = &using)))
            .map_err(|e| Error::Internal { doing: "build the reply", source: Box::new(e) })
    }
}

/// Where a chat request goes.
fn path_of(parts: &Parts) -> String {
    parts.uri.path_and_query().map_or("/v1/chat/completions", |p| p.as_str()).to_owned()
}

/// Reads a body whole, up to a limit; what is left of a larger one comes back as a stream.
pub(super) async fn read_up_to(mut body: Content, limit: usize) -> Result<(Bytes, Option<Content>), Error> {
    let mut out = BytesMut::new();
    while let Some(chunk) = body.next().await {
        out.extend_from_slice(&chunk?);
        if out.len() > limit {
            return Ok((out.freeze(), Some(body)));
        }
    }
    Ok((out.freeze(), None))
}

/// A reply that is larger than what is held in memory, where it has to be held to be `what`.
pub(super) fn too_large(what: &str) -> Error {
    let message = format!(
        "the inference server's reply is larger than {LARGEST_BUFFERED} bytes ({} MiB), the most that can be {what}",
        LARGEST_BUFFERED >> 20
    );
    Error::client(502, "reply_too_large", message, "ask for it as a stream (`\"stream\": true`), or for fewer tokens")
}
