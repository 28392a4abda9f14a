//! What a server's refusal means: a prompt that is too long, a pool that is full, or something else whose words only sound like
//! it. What it teaches for other requests is for `measure::windows` to say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use tracing::{debug, info, warn};

use super::attempt::Attempt;
use super::class::Class;
use super::prepared::Prepared;
use super::slots::{at_once, only_holder, slot_for_helper};
use super::whole::read_up_to;
use super::{opening, parked};
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::plan::emergency::Refusal;
use crate::proxy::state::headers;
use crate::proxy::state::notes::note_event;
use crate::proxy::{App, Error};
use crate::store::{Batch, Event};
use crate::upstream::event::Content;
use crate::upstream::{ChatOptions, Flavor, Kind, Reply, Upstream, overflow};
use crate::wire::reply;

/// The longest error that is read (bytes).
const LONGEST: usize = 1 << 20;

/// How long a prompt waits before it is sent once more to a server whose pool was full.
const PAUSE: Duration = Duration::from_secs(1);

/// When a client that was turned away for a full pool may try again (seconds).
const TRY_AGAIN: &str = "5";

/// Share of the window up to which a counted prompt is known to fit.
const FITS: f64 = 0.9;

/// Longest that a request waits to learn which slot holds its conversation.
const PATIENCE: Duration = Duration::from_secs(1);

/// A prompt that a server called too long.
pub(in crate::proxy) struct Refused {
    pub(in crate::proxy) refusal: Refusal,
    /// The server's words.
    pub(in crate::proxy) body: Bytes,
    /// A code of the server's says it, and not words alone.
    coded: bool,
    /// The words stand in the request, too.
    pub(in crate::proxy) echoed: bool,
}

impl Refused {
    /// The server's own words as the client's error, where ours would only repeat what the request says itself.
    pub(in crate::proxy) fn own_words(&self) -> Option<Error> {
        let error = self.echoed.then(|| serde_json::from_slice(&self.body).ok()).flatten();
        let error = error.as_ref().and_then(reply::error_in)?;
        Some(Error::Client {
            status: 400,
            code: None,
            param: None,
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            hint: None,
            sizes: None,
        })
    }
}

/// The body of an error, which is put back.
pub(in crate::proxy) async fn error_body(reply: &mut Reply) -> Option<Bytes> {
    if reply.status.is_success() || reply.status == StatusCode::UNAUTHORIZED {
        return None;
    }
    let body = std::mem::replace(&mut reply.body, Content::empty());
    let (bytes, rest) = read_up_to(body, LONGEST).await.unwrap_or_default();
    let whole = rest.is_none().then(|| bytes.clone());
    let again = futures_util::stream::iter([Ok(bytes)]);
    reply.body = Content::Bytes(match rest {
        Some(rest) => again.chain(rest).boxed(),
        None => again.boxed(),
    });
    whole
}

/// Whether a reply says that the prompt is too long. For prompts of which nothing else is known.
pub(in crate::proxy) async fn is_too_long(reply: &mut Reply) -> bool {
    let Some(body) = error_body(reply).await else { return false };
    overflow::overflow(reply.status.as_u16(), &body).is_some_and(|o| !o.shared_pool)
}

async fn is_pool_full(reply: &mut Reply) -> bool {
    let Some(body) = error_body(reply).await else { return false };
    overflow::overflow(reply.status.as_u16(), &body).is_some_and(|o| o.shared_pool)
}

/// Whether a reply says that the prompt is too long, and is to be believed.
pub(in crate::proxy) async fn read_refusal(
    app: &App,
    upstream: &Upstream,
    prepared: &Prepared,
    reply: &mut Reply,
) -> Option<Refused> {
    let body = error_body(reply).await?;
    let status = reply.status.as_u16();
    let found = overflow::overflow(status, &body)?;
    let fits = known_to_fit(upstream, prepared);
    let answered = app.measure.windows.most_answered(upstream, &prepared.request.model);
    let was_answered = prepared.made.tokens <= answered && prepared.made.sureness.is_exact();
    if found.shared_pool {
        // A prompt that nobody counted may be too long after all.
        let near = prepared.window.tokens.is_some_and(|w| f64::from(prepared.made.tokens) > f64::from(w) * FITS);
        if !near || prepared.made.sureness.is_exact() {
            return None;
        }
    } else if !found.coded && (fits || was_answered) {
        warn!(conversation = %prepared.id, status, "an error reads as if the prompt were too long, which it is not");
        return None;
    }
    let echoed = !found.coded && overflow::is_echo(status, &body, &prepared.request.body);
    // A load that answered more has no smaller window, unless it is another load, unseen: then this prompt is too long, too.
    let window = found.window.filter(|w| *w > answered || prepared.made.tokens > *w);
    let prompt = found.prompt.filter(|_| !found.prompt_is_lower_bound);
    Some(Refused { refusal: Refusal { prompt, window }, body, coded: found.coded, echoed })
}

/// What a refusal taught, for another try.
pub(in crate::proxy) fn learned(
    app: &App,
    upstream: &Upstream,
    prepared: &Prepared,
    refused: &Refused,
) -> Result<Attempt, Error> {
    let refusal = refused.refusal;
    warn!(conversation = %prepared.id, prompt = refusal.prompt, window = refusal.window, echoed = refused.echoed, "the server refused the prompt as too long");
    if let Some(window) = refusal.window.filter(|w| *w > 0) {
        // What the request says itself holds for this request alone.
        if !refused.echoed && app.measure.windows.learn(upstream, &prepared.request.model, window, refused.coded) {
            note_window(app, upstream, prepared, window);
        }
    } else if prepared.window.tokens.is_none() && refusal.prompt.is_none() {
        // Nothing is known of the window and nothing was said: guessing would cut blindly.
        return Err(refused.own_words().unwrap_or_else(|| pass_refusal(app, prepared, &refused.body)));
    }
    Ok(Attempt::Emergency { refusal, counted: prepared.made.tokens })
}

/// Sends a prompt. Where slots share a pool and it is full, it waits its turn; where the pool runs full all the same, the
/// same bytes are sent once more after a pause. A prompt is never cut for that.
pub(in crate::proxy) async fn send(
    app: &App,
    upstream: &Arc<Upstream>,
    parts: &Parts,
    prepared: &mut Prepared,
) -> Result<Reply, Error> {
    prepared.sending.tells_stop = parts.headers.contains_key(headers::TELLS_STOP);
    take_room(app, upstream, prepared).await;
    prepared.sending.phases.sent = Some(Instant::now());
    let mut reply = send_once(app, upstream, parts, prepared).await?;
    if !is_pool_full(&mut reply).await {
        return Ok(reply);
    }
    info!(conversation = %prepared.id, upstream = upstream.name(), "the pool that slots share is full; the prompt is sent once more");
    note_event(
        app,
        &prepared.id,
        "pool_full",
        json!({"upstream": upstream.name(), "prompt_tokens": prepared.made.tokens}),
    );
    let size = prepared.window.tokens.unwrap_or(Tokens::MAX);
    pool_of(app, upstream, prepared).share(&prepared.window.identity, size);
    prepared.sending.room = None;
    tokio::time::sleep(PAUSE).await;
    take_room(app, upstream, prepared).await;
    prepared.sending.phases.sent = Some(Instant::now());
    let mut reply = send_once(app, upstream, parts, prepared).await?;
    if is_pool_full(&mut reply).await {
        reply.headers.insert(header::RETRY_AFTER, HeaderValue::from_static(TRY_AGAIN));
    }
    Ok(reply)
}

async fn send_once(app: &App, upstream: &Upstream, parts: &Parts, prepared: &Prepared) -> Result<Reply, Error> {
    let headers = app.outgoing_of(&parts.headers, upstream, &prepared.id);
    let path = path_of(parts);
    parked::make_place(app, upstream, prepared).await;
    let id_slot = slot_of(app, upstream, prepared).await;
    let translated = parts.headers.contains_key(headers::TRANSLATED);
    let options =
        ChatOptions { num_ctx: prepared.window.set, id_slot, tells_stop: prepared.sending.tells_stop, translated };
    match upstream.chat(&headers, &path, prepared.made.body.clone(), options).await {
        Ok(reply) => opening::opened(reply, prepared.request.stream).await,
        Err(e) => {
            app.measure.windows.forget(upstream);
            Err(e.into())
        }
    }
}

fn pool_of(app: &App, upstream: &Upstream, prepared: &Prepared) -> Arc<crate::proxy::pool::Pool> {
    app.turn.pools.of(upstream.name(), &upstream.canonical(&prepared.request.model))
}

/// Takes room for a prompt and its reply in the pool of its server, and says where it has to wait for it: until there is room for all
/// of it, or, for a client's own helper, until what people wait for leaves a slot.
async fn take_room(app: &App, upstream: &Upstream, prepared: &mut Prepared) {
    // Room that is still held from an earlier try would be waited for.
    prepared.sending.room = None;
    let pool = pool_of(app, upstream, prepared);
    if let Some(window) = prepared.window.tokens
        && (pool.is_shared(&prepared.window.identity)
            || app.measure.windows.is_shared(upstream, &prepared.request.model))
    {
        pool.share(&prepared.window.identity, window);
    }
    let tokens = prepared.made.tokens.saturating_add(prepared.made.after.output_reserved);
    let helper = Class::of(&prepared.request.conversation) == Class::Helper;
    pool.works_on(at_once(app, upstream, &prepared.request.model));
    if !pool.is_full(tokens, helper) {
        prepared.sending.room = Some(pool.enter(tokens, helper).await);
        return;
    }
    let waits = Instant::now();
    if pool.is_full(tokens, false) {
        info!(conversation = %prepared.id, upstream = upstream.name(), tokens, "waits for room in the pool that slots share");
        app.metrics.waited_for_room();
        note_event(app, &prepared.id, "waits_for_room", json!({"upstream": upstream.name(), "tokens": tokens}));
    } else {
        info!(conversation = %prepared.id, upstream = upstream.name(), "a client's helper waits until what people wait for leaves a slot");
        note_event(app, &prepared.id, "gives_way", json!({"upstream": upstream.name()}));
    }
    prepared.sending.room = Some(pool.enter(tokens, helper).await);
    prepared.sending.waited += waits.elapsed();
}

/// Whether the server itself would say that a prompt fits: it goes by the window that it names, and the prompt is short enough.
fn known_to_fit(upstream: &Upstream, prepared: &Prepared) -> bool {
    let goes_by_it = matches!(
        upstream.kind(),
        Some(Kind::LlamaServer { .. } | Kind::Embedded | Kind::OpenAi(Flavor::Vllm | Flavor::SgLang))
    );
    let Some(window) = prepared.window.tokens.filter(|_| goes_by_it) else { return false };
    // An estimate errs high, and by no more than half.
    let prompt =
        if prepared.made.sureness.is_exact() { prepared.made.tokens } else { prepared.made.tokens.saturating_mul(2) };
    let asked = prepared.request.max_tokens.unwrap_or(0).min(window.saturating_sub(prepared.made.tokens));
    f64::from(prompt.saturating_add(asked)) <= f64::from(window) * FITS
}

/// The slot that holds the last prompt of a request's conversation, where the request is rewritten and may look like no
/// slot's to the server; of a client's own helper, the one that costs others the least. `None` where the server is to choose: nothing
/// was rewritten, it has one slot, or that slot is busy.
pub(in crate::proxy) async fn slot_of(app: &App, upstream: &Upstream, prepared: &Prepared) -> Option<u32> {
    if Class::of(&prepared.request.conversation) == Class::Helper {
        let chosen = slot_for_helper(app, upstream, &prepared.request.model);
        return tokio::time::timeout(PATIENCE, chosen).await.ok()?;
    }
    if !prepared.made.view_changed || prepared.history.located.is_none() {
        return None;
    }
    let last = app.lives.with(&prepared.id, |live| live.prompt.held)?;
    let all = tokio::time::timeout(PATIENCE, upstream.slots(&prepared.request.model)).await.ok()?;
    only_holder(&all, last)
}

/// Notes that the window is another than it was taken for.
pub(in crate::proxy) fn note_window(app: &App, upstream: &Upstream, prepared: &Prepared, window: Tokens) {
    let event = Event {
        now_ms: now_ms(),
        conversation: Some(prepared.id.clone()),
        kind: "window_changed".into(),
        data: json!({"model": upstream.canonical(&prepared.request.model), "was": prepared.window.tokens, "window": window, "source": "learned from a refusal"}),
    };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
}

/// The error when the server refuses the second, harder try too.
pub(in crate::proxy) fn refused_twice(_app: &App, prepared: &Prepared, refusal: Refusal) -> Error {
    let window = refusal.window.or(prepared.window.tokens).unwrap_or(0);
    let regions = refusal.prompt.map_or(prepared.made.after, |prompt| prepared.made.after.of_prompt(prompt));
    Error::cannot_fit(&prepared.request.model, window, "learned from a refusal", &regions, prepared.made.lines.limit)
}

/// A refusal that teaches nothing is passed on in words that clients know, with the server's own.
pub(in crate::proxy) fn pass_refusal(_app: &App, prepared: &Prepared, body: &[u8]) -> Error {
    let said = String::from_utf8_lossy(&body[..body.len().min(600)]).into_owned();
    Error::client(
        400,
        "context_length_exceeded",
        format!(
            "the prompt is too long for `{}`: about {} tokens were sent and the server refused them without saying its \
             maximum context length: {said}",
            prepared.request.model, prepared.made.tokens
        ),
        "set `num_ctx` in windowsill's config to the window the server was started with",
    )
}

/// Where a chat request goes.
pub(super) fn path_of(parts: &Parts) -> String {
    parts.uri.path_and_query().map_or("/v1/chat/completions", |p| p.as_str()).to_owned()
}
