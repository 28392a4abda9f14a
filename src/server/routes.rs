//! Which path goes where. What is not ours passes through untouched.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::body::{Arrived, Intake, Share, refuse};
use super::coding::{self, Coding};
use super::door::Door;
use super::error::reply_in;
use super::guests::{self, Guest, Guests};
use super::noted::Asked;
use super::table::{self, Api, Found, To};
use super::{cors, inspect, page, steering};
use crate::keys::quota::Entered;
use crate::proxy::{self, App, Body, Dialect, Error, caught_up, json_reply};

/// Largest body of a request to the proxy's own paths (bytes).
const OWN_BODY: u64 = 1 << 20;

/// What a larger body needs.
const RAISE_LIMIT: &str = "raise `max_body_bytes` in [limits] of config.toml if this is meant";

/// What stands before every route.
pub(super) struct Front {
    app: Arc<App>,
    door: Door,
    /// Those who have keys, where the config names any.
    guests: Option<Arc<Guests>>,
    intake: Intake,
    /// Canceled once nothing more is accepted: what would never end by itself ends then.
    stopping: CancellationToken,
}

impl Front {
    pub(super) fn new(app: Arc<App>, stopping: CancellationToken) -> Front {
        let (door, guests) = (Door::new(&app.config), Guests::of(&app, &stopping));
        Front { door, guests, intake: Intake::new(&app.config.limits, stopping.clone()), stopping, app }
    }

    /// Stops what runs beside requests.
    pub(super) async fn close(&self) {
        if let Some(guests) = &self.guests {
            guests.close().await;
        }
    }

    /// Answers one request, whatever happens.
    pub(super) async fn answer(&self, request: hyper::Request<Incoming>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        proxy::take_inner(&mut parts.headers);
        let dialect = dialect(parts.uri.path());
        let page = match self.door.admit(&parts) {
            Ok(page) => page,
            Err(e) => return reply_in(dialect, &e),
        };
        // A browser asks before it sends a key.
        let mut response = match parts.method {
            Method::OPTIONS => cors::options(page.as_ref(), &parts.headers),
            _ => self.admitted(&mut parts, body).await.unwrap_or_else(|e| reply_in(dialect, &e)),
        };
        cors::strip_servers(&mut response, parts.method == Method::OPTIONS);
        cors::confine(response.headers_mut());
        cors::open_to(page.as_ref(), response.headers_mut());
        response
    }

    async fn admitted(&self, parts: &mut Parts, body: Incoming) -> Result<Response<Body>, Error> {
        let (app, path) = (&self.app, parts.uri.path().to_owned());
        let path = path.as_str();
        // CONNECT asks for a tunnel, TRACE shows headers to whoever asks, and `*` is no path.
        if matches!(parts.method, Method::CONNECT | Method::TRACE) || !path.starts_with('/') {
            let message = format!("windowsill takes no {} for `{}`", parts.method, parts.uri);
            return Err(Error::client(405, "method_not_allowed", message, "send requests to a path of its own"));
        }
        // Codex opens a WebSocket first, and asks over HTTP at once where it is told so; any other refusal it tries seven times.
        if wants_websocket(&parts.headers) {
            let message = format!("windowsill speaks no WebSockets, and was asked for one at `{path}`");
            return Err(Error::client(426, "no_websockets", message, "send the same request over HTTP"));
        }
        head_fits(parts, app.config.limits.max_header_bytes)?;
        let found = table::find(&parts.method, path);
        let open = found.as_ref().is_some_and(|found| is_open(found, path));
        let Some(guests) = &self.guests else {
            if !open {
                authorize(app, &parts.headers)?;
            }
            let guest = Guest::anybody(app, &self.stopping);
            let (bytes, share) = self.whole(parts, body, found.as_ref()).await?;
            return self.answered(&guest, found.as_ref(), parts, bytes, (share, None)).await;
        };
        let guest = match guests.admit(parts, found.as_ref(), open).await {
            Ok(guest) => guest,
            Err(e) => {
                let status = StatusCode::from_u16(e.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let asked = Asked::of(parts, found.as_ref(), &Bytes::new()).by(&parts.headers, found.as_ref());
                guests.note(asked, status, None).await;
                return Err(refuse(body, e));
            }
        };
        let entered = match guest.enter(parts, found.as_ref()) {
            Ok(entered) => entered.map(Arc::new),
            Err(full) => return Ok(*refuse(body, full)),
        };
        // Whoever goes on with the request behind its answer holds its place.
        if let Some(entered) = &entered {
            parts.extensions.insert(Arc::clone(entered));
        }
        let (bytes, share) = self.whole(parts, body, found.as_ref()).await?;
        if let Some(entered) = entered.as_ref().filter(|_| guests::is_unread(&guest.app, parts, found.as_ref())) {
            entered.spend(tokens_of(bytes.len()));
        }
        let noting = guests.noting(Asked::of(parts, found.as_ref(), &bytes), &guest);
        let answered = match guest.permitted(found.as_ref(), bytes) {
            Ok(bytes) => self.answered(&guest, found.as_ref(), parts, bytes, (share, entered)).await,
            Err(e) => Err(e),
        };
        let status = answered.as_ref().map_or_else(
            |e| StatusCode::from_u16(e.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Response::status,
        );
        noting.done(status).await;
        answered
    }

    /// The body of a request that was let in.
    async fn whole(&self, parts: &mut Parts, body: Incoming, found: Option<&Found>) -> Result<(Bytes, Share), Error> {
        let ours = inspect::is_ours(parts.uri.path());
        let asks = matches!(parts.method, Method::GET | Method::HEAD);
        let Arrived { bytes, share } = match ours {
            // They are told nothing by a body.
            true if asks => Arrived::default(),
            true => self.body(parts, body, true, (OWN_BODY, "")).await?,
            false => {
                let limit = (self.app.config.limits.max_body_bytes, RAISE_LIMIT);
                self.body(parts, body, found.is_some() && !asks, limit).await?
            }
        };
        if ours && !asks {
            is_json(&parts.headers, &bytes)?;
        }
        Ok((bytes, share))
    }

    /// The answer to a request that has arrived. It counts until its reply has ended.
    async fn answered(
        &self,
        guest: &Guest,
        found: Option<&Found>,
        parts: &Parts,
        bytes: Bytes,
        (share, entered): (Share, Option<Arc<Entered>>),
    ) -> Result<Response<Body>, Error> {
        if !found.is_some_and(|found| is_open(found, parts.uri.path())) {
            caught_up(&guest.app).await;
        }
        let response = match (found.map(|found| found.route.to), &self.guests) {
            (Some(To::Gate(gate)), Some(guests)) => {
                guests.gate(gate, guest, parts, found.expect("it was found"), &bytes).await?
            }
            (Some(To::Gate(gate)), None) => guests::without_keys(gate, &bytes)?,
            _ => route(&guest.app, found, parts, bytes, &guest.over).await?,
        };
        let unread = guests::is_unread(&guest.app, parts, found);
        let kind = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let streams = kind.starts_with(b"text/event-stream");
        Ok(response.map(|body| {
            body.map_frame(move |frame| {
                let _ = &share;
                if let (Some(entered), true, Some(data)) = (&entered, unread, frame.data_ref()) {
                    // A piece of a stream is about a token.
                    entered.spend(if streams { 1 } else { tokens_of(data.len()) });
                }
                frame
            })
            .boxed_unsync()
        }))
    }

    /// The body of a request as its client meant it, of at most so many bytes. It is plain from here on, and its head says so.
    async fn body(
        &self,
        parts: &mut Parts,
        body: Incoming,
        is_read: bool,
        (limit, hint): (u64, &str),
    ) -> Result<Arrived, Error> {
        let codings = match codings(&parts.headers, is_read) {
            Ok(codings) => codings,
            Err(e) => return Err(refuse(body, e)),
        };
        let arrived = self.intake.read(body, limit, hint).await?;
        let Some(codings) = codings else { return Ok(arrived) };
        let plain = self.intake.decode(arrived, codings, limit, hint).await?;
        parts.headers.remove(header::CONTENT_ENCODING);
        Ok(plain)
    }
}

/// About the tokens of so many bytes, where nobody counts them.
fn tokens_of(bytes: usize) -> u64 {
    /// Bytes of a token, in most languages and vocabularies.
    const BYTES: u64 = 4;
    (bytes as u64).div_ceil(BYTES)
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    let protocols = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    protocols.split(',').any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
}

/// The codings of a body that is to be read; `None` where it goes on as it came, since nobody here reads it.
fn codings(headers: &HeaderMap, is_read: bool) -> Result<Option<Vec<Coding>>, Error> {
    match coding::codings(headers) {
        Ok(codings) => Ok(Some(codings)),
        Err(_) if !is_read => Ok(None),
        Err(named) => {
            let message = format!("the Content-Encoding of the request body is not understood: {named}");
            let hint = format!("send it plain, or as one of {} or several of them in a row", coding::KNOWN);
            Err(Error::client(415, "unsupported_encoding", message, &hint))
        }
    }
}

/// Whether the head is within the limit, as its bytes stand on the wire.
fn head_fits(parts: &Parts, limit: usize) -> Result<(), Error> {
    // A line has a colon, a blank and a line break besides name and value.
    let lines: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    let size = lines + target + parts.method.as_str().len() + " HTTP/1.1\r\n\r\n".len();
    if size <= limit {
        return Ok(());
    }
    let message = format!("the head of the request has {size} bytes, and {limit} are let in");
    Err(Error::client(431, "headers_too_large", message, "raise `max_header_bytes` in [limits] of config.toml"))
}

/// What steers is JSON and says so: a form or a script of another site cannot send that without asking first.
fn is_json(headers: &HeaderMap, body: &Bytes) -> Result<(), Error> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if body.is_empty() && kind.is_empty() || essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Error::client(415, "not_json", "the body is not said to be JSON", "send `Content-Type: application/json`"))
}

async fn route(
    app: &Arc<App>,
    found: Option<&Found>,
    parts: &Parts,
    body: Bytes,
    stopping: &CancellationToken,
) -> Result<Response<Body>, Error> {
    let path = parts.uri.path();
    let missing = || Error::client(404, "not_found", format!("windowsill has no {} {path}", parts.method), "");
    let Some(found) = found else {
        return match path {
            path if inspect::is_ours(path) => Err(missing()),
            path if path.starts_with("/api/") => proxy::pass_below_api(app, parts, body).await,
            _ => proxy::pass(app, parts, body).await,
        };
    };
    match found.route.to {
        To::Api(api) => spoken(app, api, found, parts, body).await,
        To::Own(own) => inspect::answer(app, own, found, parts, &body, stopping).await,
        To::Steering(wanted) => {
            steering::answer(app, wanted, found, &body).await.map(|v| json_reply(StatusCode::OK, &v))
        }
        // Answered before, by who stands at the door.
        To::Gate(_) => Err(missing()),
        To::Page if path == "/" && !wants_a_page(&parts.headers) => Ok(inspect::running()),
        To::Page => page::file(path).ok_or_else(missing),
    }
}

/// Whether a browser asks. Ollama's clients ask at the same place whether Ollama is there, and name no kind of page.
fn wants_a_page(headers: &HeaderMap) -> bool {
    let names = |kinds: &str| kinds.to_ascii_lowercase().contains("text/html");
    headers.get_all(header::ACCEPT).iter().filter_map(|kinds| kinds.to_str().ok()).any(names)
}

/// Answers in the APIs that clients speak.
async fn spoken(app: &Arc<App>, api: Api, found: &Found, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    match api {
        Api::Chat => proxy::chat(app, parts, body).await,
        Api::Messages => proxy::messages(app, parts, body).await,
        Api::CountMessages => proxy::count_messages(app, parts, body).await,
        Api::Responses => proxy::responses(app, parts, body).await,
        Api::OllamaChat => proxy::ollama(app, parts, body, false).await,
        Api::OllamaGenerate => proxy::ollama(app, parts, body, true).await,
        Api::OllamaAsks => proxy::ollama_asks(app, parts, body).await,
        Api::OllamaEmbeds(of) => proxy::ollama_embeds(app, parts, body, of).await,
        Api::CountChat => proxy::count_chat(app, parts, body).await,
        Api::CompactResponses => proxy::compact_responses(app, parts, body).await,
        Api::Response => proxy::response_of(app, parts, body, found.named(0)).await,
        Api::InputItems => proxy::input_items(app, parts, body, found.named(0)).await,
        Api::Cancel => proxy::cancel_response(app, parts, body, found.named(0)).await,
        Api::NewConversation => proxy::create_conversation(app, parts, body).await,
        Api::Conversation => proxy::conversation_of(app, parts, body, found.named(0)).await,
        Api::ConversationItems => proxy::conversation_items(app, parts, body, found.named(0)).await,
        Api::ConversationItem => proxy::conversation_item(app, parts, body, (found.named(0), found.named(1))).await,
        Api::CountResponses => proxy::count_responses(app, parts, body).await,
        Api::Alive => Ok(inspect::alive()),
        Api::Models => inspect::models(app, found.first(), parts).await,
    }
}

/// What the errors of a path look like.
pub(super) fn dialect(path: &str) -> Dialect {
    match path {
        "/v1/messages" | "/v1/messages/count_tokens" => Dialect::Anthropic,
        path if path.starts_with("/api/") => Dialect::Ollama,
        _ => Dialect::OpenAi,
    }
}

/// Whether a request needs no key. Who has none is not told which files of the page there are not.
fn is_open(found: &Found, path: &str) -> bool {
    found.route.open && (!matches!(found.route.to, To::Page) || page::file(path).is_some())
}

/// Checks the key, where one is configured.
fn authorize(app: &App, headers: &HeaderMap) -> Result<(), Error> {
    let Some(key) = &app.config.api_key else { return Ok(()) };
    // The scheme is named in any case (RFC 9110, 11.1).
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer =
        given.and_then(|v| v.trim_start().split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let bearer = bearer.map(|(_, key)| key);
    let other = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    if bearer.or(other).is_some_and(|given| key.is(given.trim())) {
        return Ok(());
    }
    Err(Error::client(
        StatusCode::UNAUTHORIZED.as_u16(),
        "invalid_api_key",
        "the API key is missing or wrong",
        "send the `api_key` of windowsill's config as `Authorization: Bearer KEY`",
    ))
}
