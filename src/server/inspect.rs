//! The proxy's own endpoints: health, metrics, conversations, events, records, windows.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use serde_json::Value;

use super::error::reply;
use crate::proxy::relay::{Body, full};
use crate::proxy::{App, Error, json_reply, lines, page};

/// Most events or conversations in one answer.
const PAGE: usize = 1000;

/// Whether a path is the proxy's own.
pub(super) fn is_ours(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics") || path == "/windowsill" || path.starts_with("/windowsill/")
}

/// Somebody is there.
pub(super) fn alive() -> Response<Body> {
    text("text/plain", "windowsill is running\n")
}

/// `GET /v1/models`. Anthropic's clients, which say so, ask at the same place as OpenAI's.
pub(super) async fn models(app: &App, id: Option<&str>, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    let id = id.map(decode);
    let list = match headers.contains_key("anthropic-version") {
        true => app.anthropic_models(id.as_deref()).await?,
        false => app.models(id.as_deref()).await?,
    };
    Ok(json_reply(StatusCode::OK, &list))
}

/// Answers one of the proxy's own paths.
pub(super) async fn answer(
    app: &Arc<App>,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response<Body>, Error> {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ok = |value: Value| Ok(json_reply(StatusCode::OK, &value));
    match (method.as_str(), parts.as_slice()) {
        ("GET" | "HEAD", ["healthz"]) => Ok(text("text/plain", "ok\n")),
        ("GET" | "HEAD", ["readyz"]) => app.ready().await.map(|()| text("text/plain", "ready\n")),
        ("GET", ["metrics"]) => Ok(text("text/plain; version=0.0.4", &app.metrics_text())),
        ("GET", ["windowsill", "models"]) => ok(app.windows().await?),
        ("GET", ["windowsill", "conversations"]) => ok(app.conversations(PAGE)?),
        ("GET", ["windowsill", "conversations", id]) => ok(app.conversation(id)?),
        ("GET", ["windowsill", "conversations", id, "view"]) => ok(app.view(id)?),
        ("POST", ["windowsill", "conversations", id, "compact"]) => {
            let focus = focus(body)?;
            ok(app.compact(id, focus.as_deref()).await?)
        }
        ("GET", ["windowsill", "events"]) => {
            let since = parameter(query, "since").and_then(|v| v.parse().ok()).unwrap_or(0);
            ok(app.events(since, PAGE)?)
        }
        ("GET" | "HEAD", ["windowsill", "records", id]) => record(app, id, query, headers),
        _ => Err(Error::client(404, "not_found", format!("windowsill has no {method} {path}"), "")),
    }
}

/// `?range=A..B`: lines A to B, counted from 1, both included (of a result wrapped in JSON, those of the text inside); or `?offset=A&limit=N`, as the recall tool has it; or bytes,
/// by the header `Range`. `?conversation=ID`: only what that one recorded.
fn record(app: &App, id: &str, query: Option<&str>, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    let found = app.record(id, parameter(query, "conversation").as_deref())?;
    let (range, offset, limit) = (parameter(query, "range"), parameter(query, "offset"), parameter(query, "limit"));
    // Lines are those of the text inside a wrapping; who asks for none gets it as it came.
    let by_lines = range.is_some() || offset.is_some() || limit.is_some();
    let inner = if by_lines { found.inner() } else { None };
    let whole = inner.as_deref().unwrap_or(&found.text);
    let part = match &range {
        Some(range) => lines(whole, range)?,
        None => page(whole, offset.as_deref(), limit.as_deref())?,
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

fn focus(body: &Bytes) -> Result<Option<String>, Error> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let value: Value = serde_json::from_slice(body).map_err(|e| {
        Error::client(400, "bad_json", format!("the body is not JSON: {e}"), "send {\"focus\": \"…\"} or nothing")
    })?;
    Ok(value.get("focus").and_then(Value::as_str).map(str::to_owned))
}

fn text(kind: &'static str, body: &str) -> Response<Body> {
    let mut response = Response::new(full(body.to_owned()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

fn parameter(query: Option<&str>, key: &str) -> Option<String> {
    let pairs = query?.split('&').filter_map(|p| p.split_once('='));
    pairs.into_iter().find(|(k, _)| *k == key).map(|(_, v)| decode(v))
}

/// Percent-decodes a path segment or value.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = text.get(i + 1..i + 3).and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[i], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 3;
            }
            (other, _) => {
                out.push(other);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
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
