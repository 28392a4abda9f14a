//! A client that asked for a stream is never left in silence: it gets the head of its reply in time, also where a server still
//! reads the prompt or a brief is written, and then something that means nothing until there is more to say. What goes wrong
//! after that is told within the stream. A client that asked for one whole reply cannot be kept waiting this way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use serde_json::{Value, json};
use tracing::warn;

use super::dialect::failure;
use crate::clock::now_ms;
use crate::proxy::state::scope::program;
use crate::proxy::turn::early::Early;
use crate::proxy::turn::relay::{Answer, Body};
use crate::proxy::turn::{LARGEST_BUFFERED, answered, traced};
use crate::proxy::{App, Error};
use crate::store::{Batch, Event};
use crate::upstream::event::{self, Says};

/// How often it is looked whether a request asks for a stream that was not even read when its head was due.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Answering = BoxFuture<'static, Result<Response<Answer>, Error>>;

/// Answers a request that is neither passed nor shadowed. Where a stream was asked for and the answer takes long, the head
/// of the reply goes out before it.
pub(in crate::proxy) async fn answer(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    early: &Early,
) -> Result<Response<Answer>, Error> {
    let (owned, parts, known) = (Arc::clone(app), parts.clone(), early.clone());
    let answering = async move {
        let began = Instant::now();
        let answered = answered(&owned, &parts, body, &known).await;
        note_failure(&owned, &known, &answered, (&parts.headers, began));
        answered
    };
    let mut answer = answering.boxed();
    let mut patience = Duration::from_secs(app.config.limits.head_seconds);
    loop {
        if let Ok(answered) = tokio::time::timeout(patience, &mut answer).await {
            return answered;
        }
        let stream = early.0.lock().stream;
        match stream {
            Some(true) => return Ok(begun(early, answer)),
            Some(false) => return answer.await,
            None => patience = LOOK_AGAIN,
        }
    }
}

/// Counts a request that failed, and puts it into the trace: whoever looks there sees failures, too. The event has the status and
/// the code, and the words only where they are ours or the network's: what a server says of a request may quote it.
fn note_failure(
    app: &App,
    early: &Early,
    answered: &Result<Response<Answer>, Error>,
    (headers, began): (&HeaderMap, Instant),
) {
    let (status, code, reason) = match answered {
        Ok(response) if response.status().is_success() => return,
        // The server may answer it yet.
        Err(Error::Unread(_)) => return,
        Ok(response) => (response.status().as_u16(), None, Some("the server's own answer".to_owned())),
        Err(e) => (e.status(), e.code(), e.reason()),
    };
    if answered.is_err() {
        app.metrics.failed(status);
    }
    let (conversation, model) = {
        let known = early.0.lock();
        (known.conversation.clone(), known.model.clone())
    };
    let client = program(headers);
    let data = json!({"status": status, "code": code, "reason": reason, "model": model, "client": client});
    app.metrics.failure(status, code.unwrap_or(if answered.is_ok() { "server" } else { "invalid_request" }));
    let mut timed = data.clone();
    timed["milliseconds"] = json!(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
    traced::failed(app, headers, conversation.as_deref(), &timed);
    let event = Event { now_ms: now_ms(), conversation, kind: "request_failed".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        warn!(error = %e, "a request that failed is not in the trace");
    }
}

/// The bytes of an answer, kept alive where it is a stream.
pub(in crate::proxy) fn body_of(app: &App, answer: Answer) -> Body {
    let events = match answer {
        Answer::Body(body) => return body,
        Answer::Events(events) => events,
    };
    StreamBody::new(kept_alive(events, quiet(app)).map(|e| Ok(Frame::data(e.raw)))).boxed_unsync()
}

/// How long a stream may be silent.
pub(in crate::proxy) fn quiet(app: &App) -> Duration {
    Duration::from_secs(app.config.limits.ping_seconds)
}

/// The head of a reply, before the rest of it is known.
fn begun(early: &Early, answer: Answering) -> Response<Answer> {
    let events = stream::once(async { comment() }).chain(answer.map(events).flatten_stream());
    let mut response = Response::new(Answer::Events(events.boxed()));
    *response.headers_mut() = std::mem::take(&mut early.0.lock().headers);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// An answer as the events of a stream whose head is gone already.
pub(super) fn events(answered: Result<Response<Answer>, Error>) -> BoxStream<'static, event::Event> {
    let response = match answered {
        Ok(response) => response,
        Err(e) => {
            e.log();
            return stream::iter([event::Event::chunk(json!({"error": e.openai()}))]).boxed();
        }
    };
    let (parts, answer) = response.into_parts();
    match answer {
        Answer::Events(events) => events,
        Answer::Body(body) => async move {
            let read = match Limited::new(body, LARGEST_BUFFERED).collect().await {
                Ok(whole) => whole.to_bytes(),
                Err(e) => Bytes::from(e.to_string()),
            };
            let text = String::from_utf8_lossy(&read);
            let completion = serde_json::from_str::<Value>(&text).ok().filter(|v| v["choices"].is_array());
            stream::iter(match completion.filter(|_| parts.status.is_success()) {
                Some(completion) => vec![event::Event::chunk(as_chunk(completion)), event::Event::done()],
                None => vec![event::Event::chunk(json!({"error": failure(parts.status, &text)}))],
            })
        }
        .flatten_stream()
        .boxed(),
    }
}

/// A whole completion as the one chunk of a stream.
fn as_chunk(mut completion: Value) -> Value {
    completion["object"] = json!("chat.completion.chunk");
    for choice in completion["choices"].as_array_mut().into_iter().flatten() {
        let Some(choice) = choice.as_object_mut() else { continue };
        let mut message = choice.remove("message").unwrap_or_default();
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (at, call) in calls.into_iter().flatten().enumerate().filter(|(_, call)| call.is_object()) {
            call["index"] = json!(at);
        }
        choice.insert("delta".into(), message);
    }
    completion
}

/// What chat completions have for a stream that has nothing to say.
fn comment() -> event::Event {
    event::Event { raw: Bytes::from_static(b": keep-alive\n\n"), says: Says::Nothing }
}

/// The events, with a comment wherever none came for so long.
fn kept_alive(events: BoxStream<'static, event::Event>, quiet: Duration) -> BoxStream<'static, event::Event> {
    let next = async |(mut events, quiet): (BoxStream<'static, event::Event>, Duration)| {
        let next = tokio::time::timeout(quiet, events.next()).await;
        next.unwrap_or_else(|_| Some(comment())).map(|event| (event, (events, quiet)))
    };
    stream::unfold((events, quiet), next).boxed()
}
