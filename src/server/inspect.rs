//! The proxy's own endpoints: health, metrics, conversations, events, records, windows.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use serde_json::Value;

use super::error::json_reply;
use crate::proxy::relay::{Body, full};
use crate::proxy::{App, Error};

/// Most events or conversations in one answer.
const PAGE: usize = 1000;

/// Whether a path is the proxy's own.
pub(super) fn is_ours(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics") || path == "/windowsill" || path.starts_with("/windowsill/")
}

/// `GET /v1/models`.
pub(super) async fn models(app: &App, id: Option<&str>) -> Result<Response<Body>, Error> {
    Ok(json_reply(StatusCode::OK, &app.models(id.map(decode).as_deref()).await?))
}

/// Answers one of the proxy's own paths.
pub(super) async fn answer(
    app: &Arc<App>,
    method: &Method,
    path: &str,
    query: Option<&str>,
    body: &Bytes,
) -> Result<Response<Body>, Error> {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ok = |value: Value| Ok(json_reply(StatusCode::OK, &value));
    match (method.as_str(), parts.as_slice()) {
        ("GET" | "HEAD", ["healthz"]) => Ok(text("text/plain", "ok\n")),
        ("GET" | "HEAD", ["readyz"]) if app.ready().await => Ok(text("text/plain", "ready\n")),
        ("GET" | "HEAD", ["readyz"]) => Err(Error::client(
            503,
            "not_ready",
            "no inference server answers yet",
            "start one, or name it with --upstream URL",
        )),
        ("GET", ["metrics"]) => Ok(text("text/plain; version=0.0.4", &app.metrics.text())),
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
        ("GET", ["windowsill", "records", id]) => record(app, id, query),
        _ => Err(Error::client(404, "not_found", format!("windowsill has no {method} {path}"), "")),
    }
}

/// `?range=A..B`: lines A to B, counted from 1, both included.
fn record(app: &App, id: &str, query: Option<&str>) -> Result<Response<Body>, Error> {
    let whole = app.record(id)?;
    let Some(range) = parameter(query, "range") else { return Ok(text("text/plain; charset=utf-8", &whole)) };
    let (from, to) = range.split_once("..").unwrap_or((range.as_str(), range.as_str()));
    let number = |s: &str, empty: usize| if s.is_empty() { Some(empty) } else { s.parse::<usize>().ok() };
    let (Some(from), Some(to)) = (number(from, 1), number(to, usize::MAX)) else {
        return Err(Error::client(
            400,
            "bad_range",
            format!("`range={range}` is not a range of lines"),
            "write range=A..B, counted from 1",
        ));
    };
    let lines: Vec<&str> =
        whole.split_inclusive('\n').skip(from.max(1) - 1).take(to.saturating_sub(from.max(1) - 1)).collect();
    Ok(text("text/plain; charset=utf-8", &lines.concat()))
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
