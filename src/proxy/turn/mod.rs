//! One request, from its body to its account. [`answered`] takes it through four stages. Each stage gives a value to the next
//! one, and none goes back to an earlier one. Each says in the log when it begins ([`Stage`]).
//!
//! 1. [`ready`] makes a [`Prepared`] of the body: [`first`] reads it, finds the server of its model, and calls [`prepare()`],
//!    which goes through four values in order: the situation that the request stands on, the head of its prompt, its measure, and
//!    the plan with the view that is made of it. [`save()`] puts what leaves the prompt into the record, before anything is sent.
//! 2. [`sent`] gives it to the server. A server may refuse what stands in a history. Then it gets the same request in other words
//!    ([`retold()`]), prepared once more for a smaller window ([`harder`]), or said plainly ([`or_plainly`]).
//! 3. [`relay`](answer::relay) passes the reply on to the client, event by event or whole. It answers calls of our own tools in
//!    between ([`recall`]), and the client sees one reply.
//! 4. [`account`] comes at the end of the reply, whatever ends it. It takes in what the reply cost and what that teaches of the
//!    model. What the next request will need begins behind it (`ahead`).
//!
//! Two kinds of requests end earlier: one whose client wants a summary and nothing else is answered out of stage 1
//! ([`client::alone`]), and an error in any stage is the answer.

pub(super) mod account;
pub(super) mod admission;
mod answer;
pub(super) mod asking;
pub(super) mod attempt;
pub(super) mod brief;
pub(super) mod class;
pub(super) mod client;
pub(super) mod completed;
mod counted_calls;
pub(super) mod counted_head;
pub(super) mod digest;
pub(super) mod draft;
pub(super) mod drafts;
pub(super) mod early;
mod failover;
mod gauge;
pub(super) mod guard;
mod head;
mod heads;
pub(super) mod history;
pub(super) mod measured;
pub(super) mod memory;
mod older;
pub(super) mod opening;
mod parked;
pub(super) mod phases;
pub(super) mod place;
pub(super) mod plainly;
pub(super) mod prefix;
pub(super) mod prepare;
pub(super) mod prepared;
pub(super) mod recall;
pub(super) mod refused;
pub mod relay;
mod remind;
pub(super) mod repinned;
mod replied;
mod retold;
mod rules;
pub(super) mod save;
pub(super) mod situation;
pub(super) mod slots;
mod spelling;
pub(super) mod stage;
pub(super) mod steering;
mod streaming;
pub(super) mod system;
pub(super) mod task;
pub(super) mod titles;
pub(super) mod traced;
mod whole;
pub(super) mod wished;

use std::sync::Arc;
use std::time::{Duration, Instant};

use attempt::Attempt;
use bytes::Bytes;
use early::Early;
use failover::{Tried, has_larger};
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use plainly::or_plainly;
use prefix::note_sent;
use prepare::{in_situation, prepare};
use prepared::{Past, Prepared, Sending};
use refused::{Refused, learned, read_refusal, refused_twice, send};
use relay::Answer;
use retold::retold;
use save::{Saved, in_record, save};
use situation::of_request;
use stage::Stage;
use task::{note_task, take_task};
use tracing::info;
pub(super) use whole::{LARGEST_BUFFERED, read_up_to, too_large};

use super::routing::Route;
use super::servers::route;
use super::state::fresh::caught_up;
use super::state::whose::mark_of_key;
use super::traffic::using;
use super::{App, Error};
use crate::plain;
use crate::upstream::{Reply, Upstream};
use crate::wire::known;

/// How often a request may come second with its view before it is refused.
const OVERTAKEN: usize = 8;

/// Answers a request that is neither passed nor shadowed, however long that takes. What is known of the answer before it is
/// there goes to `early`.
pub(in crate::proxy) async fn answered(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    early: &Early,
) -> Result<Response<Answer>, Error> {
    let started = Instant::now();
    let mut tried = Tried::default();
    let (upstream, prepared, reply, overhead) = loop {
        let (upstream, prepared) = ready(app, body.clone(), (&parts.headers, &tried), early).await?;
        early.prepared(&prepared, app);
        let overhead = started.elapsed();
        if client::is_alone(&prepared) {
            app.metrics.request(&prepared.action(), 200, overhead.as_secs_f64());
            in_record(app).await;
            return client::alone(app, &prepared);
        }
        let at = prepared.sending.route.as_ref().map(Route::at);
        let (id, model) = (prepared.id.clone(), prepared.request.model.clone());
        let sent = sent(app, &upstream, parts, prepared, early).boxed().await;
        let outgrew = sent.as_ref().is_ok_and(|(prepared, _)| prepared.sending.outgrew);
        if tried.goes_on(app, (&upstream, at), (&id, &model), &sent)
            || tried.outgrew(app, (&upstream, at), &id, outgrew)
        {
            continue;
        }
        let (prepared, reply) = sent?;
        break (upstream, prepared, reply, overhead);
    };
    note(app, &upstream, &prepared, reply.status, overhead);
    answer::relay(app, upstream, parts, prepared, reply, started).boxed().await
}

/// A request that can be sent, and the server of its model. It is made on threads of its own: large ones hold up nobody.
async fn ready(
    app: &Arc<App>,
    body: Bytes,
    (headers, tried): (&HeaderMap, &Tried),
    early: &Early,
) -> Result<(Arc<Upstream>, Prepared), Error> {
    let size = body.len();
    let (owned, headers, tried, known) = (Arc::clone(app), headers.clone(), tried.clone(), early.clone());
    let first = async move { first(&owned, body, (&headers, &tried), &known).await };
    app.aside.run(size, first.boxed()).await?
}

/// Reads a request, prepares it for the server of its model, and puts it into the record.
async fn first(
    app: &Arc<App>,
    body: Bytes,
    (headers, tried): (&HeaderMap, &Tried),
    early: &Early,
) -> Result<(Arc<Upstream>, Prepared), Error> {
    let began = Instant::now();
    Stage::Ready.begins("");
    // Taken out while it is read on, so that nobody waits.
    let before = app.turn.read.lock().take(&body);
    let (mut request, known) = known::parse(&body, before)?;
    app.turn.read.lock().put(known);
    early.read(&request);
    take_task(app, &mut request, headers).boxed().await?;
    let whose = mark_of_key(headers);
    if app.servers.all.len() > 1 {
        // Which server holds the conversation may be known to another windowsill alone.
        caught_up(app).await;
    }
    let (upstream, route) = route(app, &request, &whose, &tried.servers).boxed().await?;
    let using = using(app, &upstream, &request.model).await;
    let queued = began.elapsed();
    let asked = Instant::now();
    let situation = of_request(app, &upstream, &mut request, headers, Attempt::First).boxed().await?;
    early.goes_on(&situation);
    let mut prepared = in_situation(app, situation, request, asked).boxed().await?;
    prepared.sending.phases.queued = queued;
    prepared.sending.route = route;
    note_task(app, &prepared);
    prepared.sending.flight = Some(app.lives.fly(&prepared.id, using));
    prepared.sending.preparing = None;
    let mut prepared = saved(app, &upstream, prepared, Attempt::First, headers).boxed().await?;
    if !client::is_alone(&prepared) {
        prepared.sending.prefix = note_sent(app, &upstream, &prepared);
    }
    Ok((upstream, prepared))
}

/// What was sent in the end, and the reply to it.
async fn sent(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    parts: &Parts,
    mut prepared: Prepared,
    early: &Early,
) -> Result<(Prepared, Reply), Error> {
    Stage::Sent.begins(&prepared.id);
    app.lives.is_at(&prepared.id, "waiting");
    let reply = send(app, upstream, parts, &mut prepared).boxed().await?;
    let (prepared, mut reply) = retold(app, upstream, parts, prepared, reply).boxed().await?;
    let (prepared, reply) = match read_refusal(app, upstream, &prepared, &mut reply).await {
        Some(refused) if has_larger(app, &prepared, &refused) => {
            // Elsewhere it may fit as it is. What this refusal says of the window holds for other requests, too.
            let _ = learned(app, upstream, &prepared, &refused);
            let outgrew = Sending { outgrew: true, ..prepared.sending };
            return Ok((Prepared { sending: outgrew, ..prepared }, reply));
        }
        Some(refused) => harder(app, upstream, parts, (prepared, early), &refused).boxed().await?,
        None => (prepared, reply),
    };
    or_plainly(app, upstream, parts, prepared, reply).boxed().await
}

/// Sends a request that was refused as too long once more, with less in it.
async fn harder(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    parts: &Parts,
    (prepared, early): (Prepared, &Early),
    refused: &Refused,
) -> Result<(Prepared, Reply), Error> {
    let attempt = learned(app, upstream, &prepared, refused)?;
    let size = prepared.request.body.len();
    let (owned, to, headers) = (Arc::clone(app), Arc::clone(upstream), parts.headers.clone());
    let again = async move { again(&owned, &to, prepared, attempt, &headers).await };
    let mut prepared = match app.aside.run(size, again.boxed()).await? {
        Err(e) if e.is_too_long() => return Err(refused.own_words().unwrap_or(e)),
        harder => harder?,
    };
    early.prepared(&prepared, app);
    let mut reply = send(app, upstream, parts, &mut prepared).boxed().await?;
    // Where the words stand in the request, the server's own say more than ours.
    let again = read_refusal(app, upstream, &prepared, &mut reply).await.filter(|again| !again.echoed);
    match again {
        Some(again) => Err(refused_twice(app, &prepared, again.refusal)),
        None => Ok((prepared, reply)),
    }
}

/// Prepares a request again, harder. The client's own bytes are those of the first try.
async fn again(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    prepared: Prepared,
    attempt: Attempt,
    headers: &HeaderMap,
) -> Result<Prepared, Error> {
    let harder = prepared_again(app, upstream, prepared, attempt, headers).boxed().await?;
    let mut harder = saved(app, upstream, harder, attempt, headers).boxed().await?;
    harder.sending.prefix = note_sent(app, upstream, &harder);
    Ok(harder)
}

/// The same request prepared once more.
async fn prepared_again(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    prepared: Prepared,
    attempt: Attempt,
    headers: &HeaderMap,
) -> Result<Prepared, Error> {
    let Prepared { request, history: Past { client_marks, .. }, sending, .. } = prepared;
    let harder = prepare(app, upstream, request, headers, attempt).boxed().await?;
    let history = Past { client_marks, ..harder.history };
    let phases = harder.sending.phases.and(sending.phases);
    let sending = Sending { flight: sending.flight, route: sending.route, phases, ..Sending::default() };
    Ok(Prepared { history, sending, ..harder })
}

/// Puts a request into the record. Where another windowsill made a view of the same messages a moment before, that one stands, and the
/// request is prepared with it.
pub(in crate::proxy) async fn saved(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    mut prepared: Prepared,
    attempt: Attempt,
    headers: &HeaderMap,
) -> Result<Prepared, Error> {
    for _ in 0..OVERTAKEN {
        if save(app, upstream, &mut prepared).boxed().await? == Saved::Stands {
            return Ok(prepared);
        }
        info!(conversation = %prepared.id, "another request rewrote the same history first: its view is taken");
        prepared = prepared_again(app, upstream, prepared, attempt, headers).boxed().await?;
    }
    let message = "other requests kept rewriting the same history while this one was prepared";
    Err(Error::client(503, "overtaken", message, "send it again"))
}

/// Says in a line of the log, and in figures, what was done to a request.
fn note(app: &App, upstream: &Upstream, prepared: &Prepared, status: StatusCode, overhead: Duration) {
    app.metrics.request(&prepared.action(), status.as_u16(), overhead.as_secs_f64());
    if prepared.window.tokens.is_some() {
        app.metrics.pressure(class::Class::of(&prepared.request.conversation).as_str(), prepared.pressure());
    }
    info!(
        conversation = %prepared.id,
        model = %plain::line(&prepared.request.model),
        upstream = upstream.name(),
        window = prepared.window.tokens,
        window_source = %prepared.window.source,
        before = prepared.made.before.0.prompt(),
        prompt_tokens = prepared.made.tokens,
        action = %prepared.action(),
        status = status.as_u16(),
        overhead_ms = overhead.as_secs_f64() * 1000.0,
        "request"
    );
}
