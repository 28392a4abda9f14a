//! One request, told top to bottom: [`answered`] measures, plans, applies, sends, relays, accounts.

pub(super) mod account;
pub(super) mod admission;
pub(super) mod asking;
pub(super) mod attempt;
pub(super) mod brief;
pub(super) mod class;
pub(super) mod client;
pub(super) mod completed;
mod counted_head;
pub(super) mod digest;
pub(super) mod draft;
pub(super) mod drafts;
pub(super) mod early;
mod gauge;
pub(super) mod guard;
mod head;
pub(super) mod history;
pub(super) mod measured;
pub(super) mod opening;
pub(super) mod place;
pub(super) mod plainly;
pub(super) mod prefix;
pub(super) mod prepare;
pub(super) mod prepared;
pub(super) mod recall;
pub(super) mod refused;
pub mod relay;
mod remind;
mod replied;
mod retold;
mod rules;
pub(super) mod save;
pub(super) mod situation;
pub(super) mod slots;
mod spelling;
pub(super) mod steering;
mod streaming;
pub(super) mod system;
pub(super) mod task;
pub(super) mod titles;
pub(super) mod wished;

use std::sync::Arc;
use std::time::{Duration, Instant};

use account::account;
use attempt::Attempt;
use bytes::{Bytes, BytesMut};
use early::Early;
use futures_util::{FutureExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, Response};
use plainly::or_plainly;
use prefix::note_sent;
use prepare::prepare;
use prepared::Prepared;
use refused::{learned, read_refusal, send};
use relay::Answer;
use retold::retold;
use save::{mark_record, save};
use serde_json::{Value, json};
use streaming::{Books, Taker, streamed};
use task::{note_task, take_task};
use tracing::{info, warn};

use super::state::headers;
use super::{App, Error, aside};
use crate::config::Response as GuardResponse;
use crate::guard::small;
use crate::plain;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::notes::note_event;
use crate::proxy::traffic::using;
use crate::proxy::turn::refused::refused_twice;
use crate::upstream::event::Content;
use crate::upstream::{Reply, Upstream};
use crate::wire::known;
use crate::wire::reply::said;

/// A reply that is not streamed is read whole before it is passed on, up to this size; a larger one is relayed as it
/// comes.
pub(super) const LARGEST_BUFFERED: usize = 64 << 20;

/// Longest that a reply waits for its request to be written.
const SLOWEST_WRITE: Duration = Duration::from_secs(1);

/// Answers a request that is neither passed nor shadowed, however long that takes. What is known of the answer before it is
/// there goes to `early`.
pub(in crate::proxy) async fn answered(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    early: &Early,
) -> Result<Response<Answer>, Error> {
    let started = Instant::now();
    let size = body.len();
    let (owned, headers, known) = (Arc::clone(app), parts.headers.clone(), early.clone());
    let first = async move { first(&owned, body, &headers, &known).await };
    let (upstream, mut prepared) = app.aside.run(size, first.boxed()).await??;
    early.prepared(&prepared, app);
    let overhead = started.elapsed();
    if client::is_alone(&prepared) {
        app.metrics.request(&prepared.action(), 200, overhead.as_secs_f64());
        in_record(app).await;
        return client::alone(app, &prepared);
    }
    let mut reply = send(app, &upstream, parts, &mut prepared).boxed().await?;
    reply = retold(app, &upstream, parts, &mut prepared, reply).boxed().await?;
    if let Some(refused) = read_refusal(app, &upstream, &prepared, &mut reply).await {
        let attempt = learned(app, &upstream, &prepared, &refused)?;
        let (owned, to, headers) = (Arc::clone(app), Arc::clone(&upstream), parts.headers.clone());
        let harder = async move { harder(&owned, &to, prepared, attempt, &headers).await };
        prepared = match app.aside.run(size, harder.boxed()).await? {
            Err(e) if e.is_too_long() => return Err(refused.own_words().unwrap_or(e)),
            harder => harder?,
        };
        early.prepared(&prepared, app);
        reply = send(app, &upstream, parts, &mut prepared).boxed().await?;
        // Where the words stand in the request, the server's own say more than ours.
        let again = read_refusal(app, &upstream, &prepared, &mut reply).await.filter(|again| !again.echoed);
        if let Some(again) = again {
            return Err(refused_twice(app, &prepared, again.refusal));
        }
    }
    let reply = or_plainly(app, &upstream, parts, &mut prepared, reply).boxed().await?;
    app.metrics.request(&prepared.action(), reply.status.as_u16(), overhead.as_secs_f64());
    if prepared.window.tokens.is_some() {
        app.metrics.pressure(class::Class::of(&prepared.request.conversation).as_str(), prepared.pressure());
    }
    info!(
        conversation = %prepared.id,
        model = %plain::line(&prepared.request.model),
        upstream = upstream.name(),
        window = prepared.window.tokens,
        window_source = %prepared.window.source,
        before = prepared.made.before.prompt(),
        prompt_tokens = prepared.made.tokens,
        action = %prepared.action(),
        status = reply.status.as_u16(),
        overhead_ms = overhead.as_secs_f64() * 1000.0,
        "request"
    );
    relay(app, upstream, parts, prepared, reply, started).boxed().await
}

/// Reads a request and prepares it for the upstream that serves its model.
async fn first(
    app: &Arc<App>,
    body: Bytes,
    headers: &HeaderMap,
    early: &Early,
) -> Result<(Arc<Upstream>, Prepared), Error> {
    // Taken out while it is read on, so that nobody waits.
    let before = app.read.lock().take(&body);
    let (mut request, known) = known::parse(&body, before)?;
    app.read.lock().put(known);
    early.read(request.stream);
    take_task(app, &mut request, headers).boxed().await?;
    let upstream = upstream_of(app, &request.model).boxed().await?;
    let using = using(app, &upstream, &request.model).await;
    let mut prepared = prepare(app, &upstream, request, headers, Attempt::First).boxed().await?;
    too_small(app, &mut prepared)?;
    note_task(app, &prepared);
    prepared.sending.flight = Some(app.lives.fly(&prepared.id, using));
    save(app, &upstream, &mut prepared).boxed().await?;
    if !client::is_alone(&prepared) {
        prepared.sending.prefix = note_sent(app, &upstream, &prepared);
    }
    Ok((upstream, prepared))
}

/// Whether the model is too small for what it is asked.
///
/// # Errors
/// 400 where the config says so.
pub(in crate::proxy) fn too_small(app: &App, prepared: &mut Prepared) -> Result<(), Error> {
    let response = app.config.watch.small_model;
    if response == GuardResponse::Allow {
        return Ok(());
    }
    let tools = prepared.request.own_tools().is_some();
    let Some(much) = small::too_much(prepared.policy.size, tools, prepared.made.tokens) else { return Ok(()) };
    let message = format!("a model below 3 billion parameters is given {much}");
    if app.lives.with(&prepared.id, |live| !std::mem::replace(&mut live.small_told, true)) {
        warn!(conversation = %prepared.id, "{message}");
        let data = json!({"tools": tools, "prompt_tokens": prepared.made.tokens, "holds": small::HOLDS, "action": response.as_str()});
        note_event(app, &prepared.id, "small_model", data);
    }
    if response == GuardResponse::Refuse {
        let hint = "take a larger model, or set `small_model = \"warn\"` in [watch] of config.toml";
        return Err(Error::client(400, "small_model", message, hint));
    }
    prepared.told.warnings.push(message);
    Ok(())
}

/// Prepares a request again, harder.
async fn harder(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    mut prepared: Prepared,
    attempt: Attempt,
    headers: &HeaderMap,
) -> Result<Prepared, Error> {
    let mut harder = prepare(app, upstream, prepared.request.clone(), headers, attempt).boxed().await?;
    harder.told.actions.push("emergency");
    harder.sending.flight = prepared.sending.flight.take();
    // The client's own bytes are those of the first try.
    harder.history.client_marks = std::mem::take(&mut prepared.history.client_marks);
    save(app, upstream, &mut harder).boxed().await?;
    harder.sending.prefix = note_sent(app, upstream, &harder);
    Ok(harder)
}

async fn relay(
    app: &Arc<App>,
    upstream: Arc<Upstream>,
    parts: &Parts,
    prepared: Prepared,
    reply: Reply,
    started: Instant,
) -> Result<Response<Answer>, Error> {
    in_record(app).await;
    let mut response = Response::builder().status(reply.status);
    if let Some(h) = response.headers_mut() {
        *h = reply.headers.clone();
        prepared.mark(h, &app.config.gauge);
        mark_record(app, h);
    }
    let is_stream = headers::is_event_stream(&reply.headers);
    if let Some(h) = response.headers_mut().filter(|_| is_stream) {
        // A stream that breaks off ends with an event that says so: it may be longer than the server said.
        h.remove(http::header::CONTENT_LENGTH);
    }
    let ok = reply.status.is_success();
    let mut keeper = replied::Keeper::of(&app.store, &prepared);
    let owned = Arc::clone(app);
    let sent = app.outgoing(&parts.headers);
    let build = |r: http::response::Builder, answer: Answer| {
        r.body(answer).map_err(|e| Error::Internal { doing: "build the reply", source: Box::new(e) })
    };
    if is_stream && ok {
        let taker = if prepared.request.changes_tools() {
            let answering = recall::Answering::new(owned, upstream, sent, path_of(parts), prepared, started);
            Taker::Answering(Box::new(answering))
        } else {
            let done = move |reported, end| account(&owned, upstream, &sent, prepared, reported, end, started);
            Taker::Books(Box::new(Books::new(keeper, done)))
        };
        return build(response, Answer::Events(streamed(reply.body.events(), taker)));
    }
    let (bytes, rest) = read_up_to(reply.body, LARGEST_BUFFERED).await?;
    if let Some(rest) = rest {
        let whole = futures_util::stream::iter([Ok(bytes)]).chain(rest).boxed();
        return build(response, Answer::Body(relay::through(whole)));
    }
    if ok && prepared.request.changes_tools() {
        let mut answering = recall::Answering::new(owned, upstream, sent, path_of(parts), prepared, started);
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
            serde_json::from_slice::<Value>(&bytes).ok().and_then(|whole| said(whole.pointer("/choices/0/message")?))
        });
        if let Some(keeper) = &mut keeper {
            keeper.keep(said).await;
        }
        account(app, upstream, &sent, prepared, reported, relay::End::Complete, started);
    }
    if let Some(h) = response.headers_mut() {
        h.remove(http::header::CONTENT_LENGTH);
    }
    build(response, Answer::Body(relay::full(bytes)))
}

/// Waits until the request is in the record, so that a crash after the reply loses nothing of it. It was queued before it
/// was forwarded, and a model takes longer than a write: this waits only for a disk that is slow.
pub(in crate::proxy) async fn in_record(app: &App) {
    if tokio::time::timeout(SLOWEST_WRITE, app.store.flush()).await.is_err() {
        warn!("the record is slow: it is not waited for");
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
