//! The proxy's own endpoints: health, metrics, conversations, events, records, windows.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::error::reply;
use super::mcp;
use super::query::Query;
use super::steering;
use super::table::Found;
use crate::proxy::relay::{Body, full};
use crate::proxy::{self, App, Error, Exported, Filter, TraceQuery, json_reply, lines, page, search};

/// The OpenAPI description of every path.
const DESCRIPTION: &str = include_str!("../../docs/openapi.json");

/// Most events or conversations in one answer.
const PAGE: usize = 1000;

/// Most hits of a search in one answer.
const HITS: usize = 200;

/// Whether a path is the proxy's own.
pub(super) fn is_ours(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics" | "/mcp")
        || path == "/windowsill"
        || path.starts_with("/windowsill/")
}

/// Somebody is there.
pub(super) fn alive() -> Response<Body> {
    text("text/plain", "windowsill is running\n")
}

/// What Ollama says there, word for word: its clients look for it.
pub(super) fn running() -> Response<Body> {
    text("text/plain; charset=utf-8", "Ollama is running")
}

/// `GET /v1/models`. Anthropic's clients, which say so, ask at the same place as OpenAI's. So does Codex where
/// its provider has an `auth` command or its user is logged in: it names its version and reads a list of its own shape in `models`
/// (codex-rs/protocol, `ModelsResponse`). That list stays empty, and Codex goes by what it knows itself: an entry must have
/// `base_instructions`, which take the place of Codex's own prompt. Without that field Codex 0.169.0 refuses the whole list, and with an
/// empty one it sends its model no instructions. llama-server's `models` have another shape, which it cannot read.
pub(super) async fn models(app: &App, id: Option<&str>, parts: &Parts) -> Result<Response<Body>, Error> {
    let mut list = match parts.headers.contains_key("anthropic-version") {
        true => proxy::anthropic_models(app, id).await?,
        false => proxy::models(app, id).await?,
    };
    let mut asked = parts.uri.query().unwrap_or_default().split('&');
    if id.is_none() && asked.any(|one| one.split('=').next() == Some("client_version")) {
        list["models"] = Value::Array(Vec::new());
    }
    Ok(json_reply(StatusCode::OK, &list))
}

/// What is asked of the proxy itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Own {
    Description,
    Health,
    Ready,
    Metrics,
    Windows,
    Upstreams,
    Report,
    Events,
    Record,
    Ask,
    Conversations,
    Conversation,
    View,
    Request,
    Insight,
    Messages,
    Message,
    Pins,
    Search,
    SearchAll,
    Segments,
    Export,
    Rules,
    AddRule,
    EditRule,
    RemoveRule,
    Mcp,
    NoMcp,
}

/// Answers one of the proxy's own paths.
pub(super) async fn answer(
    app: &Arc<App>,
    own: Own,
    found: &Found,
    parts: &Parts,
    body: &Bytes,
    stopping: &CancellationToken,
) -> Result<Response<Body>, Error> {
    let (id, headers) = (found.named(0), &parts.headers);
    let query = || Query::read(parts.uri.query(), found.route.query);
    let ok = |value: Value| Ok(json_reply(StatusCode::OK, &value));
    match own {
        Own::Description => Ok(text("application/json", DESCRIPTION)),
        Own::Health => Ok(text("text/plain", "ok\n")),
        Own::Ready => proxy::ready(app).await.map(|()| text("text/plain", "ready\n")),
        Own::Mcp => mcp::answer(app, &query()?, parts, body).await,
        Own::NoMcp => Ok(mcp::no_stream()),
        Own::Metrics => Ok(text("text/plain; version=0.0.4", &proxy::metrics_text(app))),
        Own::Windows => ok(proxy::windows(app).await?),
        Own::Upstreams => ok(proxy::upstreams(app)),
        Own::Report => {
            let since = query()?.number("since")?.unwrap_or(0);
            json_bytes(app.shared.answer(&format!("report {since}"), || proxy::report(app, since)).await)
        }
        Own::Events => events(app, &query()?, headers, stopping),
        Own::Record => record(app, id, &query()?, headers),
        Own::Ask => ok(steering::ask(app, id, body).await?),
        Own::Conversations => json_bytes(app.shared.answer("conversations", || proxy::conversations(app, PAGE)).await),
        Own::Conversation => ok(proxy::conversation(app, id)?),
        Own::View => {
            let query = query()?;
            ok(proxy::view(app, id, query.number("messages")?, flag(&query, "client")?)?)
        }
        Own::Request => {
            let query = query()?;
            ok(proxy::request_of(app, id, query.number("messages")?, flag(&query, "replaced")?)?)
        }
        Own::Insight => json_bytes(app.shared.answer(&format!("insight {id}"), || proxy::insight(app, id)).await),
        Own::Messages => {
            let query = query()?;
            let (from, limit, filter) = (query.number("from")?, query.number("limit")?.unwrap_or(100), filter(&query)?);
            ok(match filter.is_empty() {
                true => proxy::timeline(app, id, from, limit)?,
                false => proxy::filtered(app, id, from.unwrap_or(0), limit, &filter)?,
            })
        }
        Own::Message => {
            let unnamed = |_| Error::client(404, "not_found", "messages are named by their index, from 0", "");
            ok(proxy::timeline_message(app, id, found.named(1).parse().map_err(unnamed)?)?)
        }
        Own::Pins => ok(proxy::pins(app, id).await?),
        Own::Search | Own::SearchAll => {
            let (query, id) = (query()?, matches!(own, Own::Search).then_some(id));
            let limit = query.number::<usize>("limit")?.unwrap_or(20).min(HITS);
            ok(search(app, id, query.get("query").unwrap_or(""), limit)?)
        }
        Own::Segments => ok(proxy::segments(app, id)?),
        Own::Export => export(app, id, query()?.get("format")),
        Own::Rules => ok(proxy::rules(app)?),
        Own::AddRule => ok(steering::add_rule(app, body).await?),
        Own::EditRule => ok(steering::edit_rule(app, id, body).await?),
        Own::RemoveRule => ok(steering::remove_rule(app, id, body).await?),
    }
}

/// Which messages of a history are asked for. An empty value asks for nothing in particular.
fn filter(query: &Query) -> Result<Filter, Error> {
    let named = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let changed = flag(query, "changed")?;
    Ok(Filter { role: named("role"), tool: named("tool"), changed, text: named("text") })
}

/// A name alone, or with `true` or `false`.
fn flag(query: &Query, name: &str) -> Result<bool, Error> {
    match query.get(name) {
        None | Some("false") => Ok(false),
        Some("" | "true") => Ok(true),
        Some(_) => Err(Error::client(400, "bad_parameter", format!("`{name}` is `true` or `false`"), "")),
    }
}

/// A conversation as a file.
fn export(app: &App, id: &str, format: Option<&str>) -> Result<Response<Body>, Error> {
    let (how, kind, ending) = match format.unwrap_or("markdown") {
        "markdown" => (Exported::Markdown, "text/markdown; charset=utf-8", "md"),
        "jsonl" => (Exported::Lines, "application/jsonl", "jsonl"),
        other => {
            let message = format!("`format` is `markdown` or `jsonl`, not `{other}`");
            return Err(Error::client(400, "bad_request", message, ""));
        }
    };
    let mut response = text(kind, &proxy::export(app, id, how)?);
    // Names of conversations are letters, digits, dots and the like; what a client named otherwise is left out.
    let name: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')).collect();
    set(&mut response, header::CONTENT_DISPOSITION, &format!("attachment; filename=\"windowsill-{name}.{ending}\""));
    Ok(response)
}

/// An answer that is JSON already.
fn json_bytes(answer: Result<Bytes, Error>) -> Result<Response<Body>, Error> {
    let mut response = Response::new(full(answer?));
    set(&mut response, header::CONTENT_TYPE, "application/json");
    Ok(response)
}

/// A page of the trace as JSON; or, to whoever accepts `text/event-stream` or says `?follow`, the trace as it happens.
/// `Last-Event-ID` says where a client that lost the connection stood.
fn events(
    app: &App,
    query: &Query,
    headers: &HeaderMap,
    stopping: &CancellationToken,
) -> Result<Response<Body>, Error> {
    let kinds = query.all("kind").flat_map(|kinds| kinds.split(',')).filter(|kind| !kind.is_empty());
    let mut asked = TraceQuery {
        since: query.number("since")?,
        last: query.number::<usize>("last")?.map(|n| n.min(PAGE)),
        conversation: query.get("conversation").map(str::to_owned),
        kinds: kinds.map(str::to_owned).collect(),
    };
    let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let accepts = text(header::ACCEPT).split(',').any(|kind| kind.split(';').next().is_some_and(is_event_stream));
    let follows = match query.get("follow") {
        None => accepts,
        Some(value) => !matches!(value, "false" | "0"),
    };
    if !follows {
        return Ok(json_reply(StatusCode::OK, &proxy::events(app, &asked, PAGE)?));
    }
    if let Ok(last) = text(header::HeaderName::from_static("last-event-id")).trim().parse() {
        asked.since = Some(last);
    }
    let mut response = Response::new(proxy::follow(app, &asked, stopping.clone())?);
    set(&mut response, header::CONTENT_TYPE, "text/event-stream");
    set(&mut response, header::CACHE_CONTROL, "no-store");
    Ok(response)
}

fn is_event_stream(kind: &str) -> bool {
    kind.trim().eq_ignore_ascii_case("text/event-stream")
}

/// `?range=A..B`: lines A to B, counted from 1, both included (of a result wrapped in JSON, those of the text inside); or `?offset=A&limit=N`, as the recall tool has it; or bytes,
/// by the header `Range`. `?conversation=ID`: only what that one recorded.
fn record(app: &App, id: &str, query: &Query, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    let found = proxy::record(app, id, query.get("conversation"))?;
    let (range, offset, limit) = (query.get("range"), query.get("offset"), query.get("limit"));
    // Lines are those of the text inside a wrapping; who asks for none gets it as it came.
    let by_lines = range.is_some() || offset.is_some() || limit.is_some();
    let inner = if by_lines { found.inner() } else { None };
    let whole = inner.as_deref().unwrap_or(&found.text);
    let part = match range {
        Some(range) => lines(whole, range)?,
        None => page(whole, offset, limit)?,
    };
    let asked = headers.get(header::RANGE).and_then(|v| v.to_str().ok());
    let whole = part.len();
    let mut response = match asked.and_then(|asked| bytes_range(asked, whole)) {
        None => text("text/plain; charset=utf-8", part),
        Some(Some((from, to))) => {
            let bytes = Bytes::copy_from_slice(&part.as_bytes()[from..to]);
            let mut response = Response::new(full(bytes));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            set(&mut response, header::CONTENT_TYPE, "text/plain; charset=utf-8");
            set(&mut response, header::CONTENT_RANGE, &format!("bytes {from}-{}/{whole}", to - 1));
            response
        }
        Some(None) => {
            let message = format!("it has {whole} bytes: the range begins behind its end");
            let mut response = reply(&Error::client(416, "bad_range", message, ""));
            set(&mut response, header::CONTENT_RANGE, &format!("bytes */{whole}"));
            response
        }
    };
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    if inner.is_some() {
        set(&mut response, header::HeaderName::from_static("x-windowsill-lines"), "of the text inside its JSON");
    }
    // A text of anyone's making is never a page.
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Ok(response)
}

fn set(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = header::HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// The bytes that a header `Range` asks for, of `total` (RFC 9110, 14.2). `None` for what is to be ignored: other units,
/// several ranges, nonsense; `Some(None)` when it begins behind the end.
fn bytes_range(asked: &str, total: usize) -> Option<Option<(usize, usize)>> {
    let (from, to) = asked.trim().strip_prefix("bytes=")?.trim().split_once('-')?;
    let range = match (from.trim(), to.trim()) {
        ("", last) => {
            let last: usize = last.parse().ok()?;
            (last > 0).then(|| (total.saturating_sub(last), total))
        }
        (from, "") => Some((from.parse().ok()?, total)),
        (from, to) => {
            let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
            if to < from {
                return None;
            }
            Some((from, to.saturating_add(1).min(total)))
        }
    };
    Some(range.filter(|(from, _)| *from < total))
}

fn text(kind: &'static str, body: &str) -> Response<Body> {
    let mut response = Response::new(full(body.to_owned()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bytes() {
        for (asked, expect) in [
            ("bytes=0-3", Some(Some((0, 4)))),
            ("bytes=8-99", Some(Some((8, 10)))),
            ("bytes=5-", Some(Some((5, 10)))),
            ("bytes=-4", Some(Some((6, 10)))),
            ("bytes=-99", Some(Some((0, 10)))),
            ("bytes=10-", Some(None)),
            ("bytes=-0", Some(None)),
            ("bytes=4-2", None),
            ("bytes=0-1,4-5", None),
            ("lines=0-1", None),
            ("bytes=x-", None),
            ("bytes=-", None),
            ("bytes=0-99999999999999999999", None),
        ] {
            assert_eq!(bytes_range(asked, 10), expect, "{asked}");
        }
        assert_eq!(bytes_range("bytes=0-", 0), Some(None));
    }
}
