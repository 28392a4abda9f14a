//! The Model Context Protocol over HTTP: each message is a POST to `/mcp`, answered with JSON, or with a stream where the client asks
//! to hear of progress (<https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http>). There are
//! no sessions. A client that hangs up ends the work on its request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;
use tokio::time::Instant;

use super::query::Query;
use crate::proxy::mcp::{self, Agent, Protocol};
use crate::proxy::relay::{Body, full, through};
use crate::proxy::{App, Error, json_reply};

/// Answers a POST. The query says which conversations are open: `conversation=ID` one and no other, `all` every one.
///
/// # Errors
/// For a query that cannot be read.
pub(super) async fn answer(
    app: &Arc<App>,
    query: &Query,
    parts: &Parts,
    body: &Bytes,
) -> Result<Response<Body>, Error> {
    let agent = Agent::within(app, query.get("conversation").map(str::to_owned), query.get("all").is_some());
    let protocol = Protocol::new(agent);
    let Ok(message) = serde_json::from_slice::<Value>(body) else {
        let refusal = mcp::refused(&Value::Null, mcp::PARSE_ERROR, "Parse error: the body is no JSON", None);
        return Ok(json_reply(StatusCode::BAD_REQUEST, &refusal));
    };
    if let Some(refusal) = mismatch(&parts.headers, &message) {
        return Ok(json_reply(StatusCode::BAD_REQUEST, &refusal));
    }
    if let Some(token) = mcp::progress_token(&message) {
        let token = token.clone();
        return Ok(streamed(protocol, message, token));
    }
    Ok(match protocol.answer(&message).await {
        Some(answer) => json_reply(status(&answer, &message), &answer),
        None => {
            let mut accepted = Response::new(full(""));
            *accepted.status_mut() = StatusCode::ACCEPTED;
            accepted
        }
    })
}

/// What is no POST. Streams that clients open by GET, and sessions that they end, are of earlier versions, where a server may do without.
pub(super) fn no_stream() -> Response<Body> {
    let refusal = mcp::refused(
        &Value::Null,
        -32000,
        "send each message as a POST; there are no sessions and no other streams",
        None,
    );
    let mut response = json_reply(StatusCode::METHOD_NOT_ALLOWED, &refusal);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

/// The status that goes with an answer.
fn status(answer: &Value, message: &Value) -> StatusCode {
    let modern = mcp::declared(message).is_some();
    match answer["error"]["code"].as_i64() {
        None => StatusCode::OK,
        Some(mcp::METHOD_NOT_FOUND) if modern => StatusCode::NOT_FOUND,
        Some(_) if modern || answer["id"].is_null() => StatusCode::BAD_REQUEST,
        Some(_) => StatusCode::OK,
    }
}

/// Where headers and body of a request disagree: what is read by one on the way must be what is done here.
fn mismatch(headers: &HeaderMap, message: &Value) -> Option<Value> {
    let (id, told) = (&message["id"], |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or("\u{fffd}").trim()));
    let refuse =
        |words: String| Some(mcp::refused(id, mcp::HEADER_MISMATCH, format!("Header mismatch: {words}"), None));
    let (version, declared) = (told("mcp-protocol-version"), mcp::declared(message));
    match (version, declared) {
        (Some(version), _) if !mcp::versions().contains(&version) && declared.is_none_or(|of| of == version) => {
            return Some(mcp::unsupported(id, version));
        }
        (Some(version), Some(declared)) if declared != version => {
            return refuse(format!("MCP-Protocol-Version says `{version}`, and `_meta` says another"));
        }
        // A notification has nothing to declare it by.
        (Some(mcp::MODERN), None) if message.get("id").is_some() => {
            let words = "`_meta` must hold the protocol's version and the client's capabilities";
            return Some(mcp::refused(id, mcp::INVALID_PARAMS, words, None));
        }
        (None, Some(_)) => return refuse("MCP-Protocol-Version is missing".to_owned()),
        _ => {}
    }
    if declared != Some(mcp::MODERN) {
        return None;
    }
    let method = message["method"].as_str().unwrap_or_default();
    if told("mcp-method") != Some(method) {
        return refuse("Mcp-Method is not the method of the body".to_owned());
    }
    let name = match method {
        "tools/call" | "prompts/get" => &message["params"]["name"],
        "resources/read" => &message["params"]["uri"],
        _ => return None,
    };
    let is_it = |given: &str| match given.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => name.as_str().is_some_and(|name| base64(name.as_bytes()) == encoded),
        None => name == given,
    };
    match told("mcp-name") {
        Some(given) if !is_it(given) => refuse("Mcp-Name is not the name of the body".to_owned()),
        None if name.is_string() => refuse("Mcp-Name is missing".to_owned()),
        _ => None,
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letter = |at: usize| match at <= three.len() {
            true => char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]),
            false => '=',
        };
        (0..4).map(letter).collect::<Vec<_>>()
    };
    bytes.chunks(3).flat_map(group).collect()
}

/// An answer behind the progress of it. What is not polled any more is not done any more.
fn streamed(protocol: Protocol, message: Value, token: Value) -> Response<Body> {
    let started = Instant::now();
    let mut ticks = tokio::time::interval(mcp::PROGRESS);
    let mut work = Box::pin(async move { protocol.answer(&message).await });
    let mut over = false;
    let events = stream::poll_fn(move |context| {
        use std::task::Poll;
        if over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(answer) = work.as_mut().poll(context) {
            over = true;
            return Poll::Ready(answer.map(|answer| event(&answer)));
        }
        let elapsed = |at: Instant| at.duration_since(started).max(Duration::ZERO).as_secs_f64();
        ticks.poll_tick(context).map(|at| Some(event(&mcp::progress(&token, elapsed(at)))))
    });
    let events: BoxStream<'static, Bytes> = events.boxed();
    let mut response = Response::new(through(events.map(Ok)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_compared_as_they_are_encoded() {
        for (text, is) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("Hello, 世界", "SGVsbG8sIOS4lueVjA==")]
        {
            assert_eq!(base64(text.as_bytes()), is);
        }
    }

    #[test]
    fn headers_say_what_the_body_says() {
        let body = |method: &str, more: Value| {
            let mut params = more;
            params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": mcp::MODERN});
            json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        };
        let code = |headers: &[(&'static str, &str)], message: &Value| {
            let headers =
                headers.iter().map(|(k, v)| ((*k).parse().unwrap(), HeaderValue::try_from(*v).unwrap())).collect();
            mismatch(&headers, message).map(|refusal| refusal["error"]["code"].as_i64().unwrap())
        };
        let version = ("mcp-protocol-version", mcp::MODERN);
        let list = body("tools/list", json!({}));
        let call = body("tools/call", json!({"name": "search"}));
        assert_eq!(code(&[version, ("mcp-method", "tools/list")], &list), None);
        let called = [version, ("mcp-method", "tools/call")];
        for (name, is) in [("search", None), ("=?base64?c2VhcmNo?=", None), ("recall", Some(mcp::HEADER_MISMATCH))] {
            assert_eq!(code(&[called[0], called[1], ("mcp-name", name)], &call), is, "{name}");
        }
        let mismatch = Some(mcp::HEADER_MISMATCH);
        assert_eq!(code(&called, &call), mismatch);
        assert_eq!(code(&[version, ("mcp-method", "tools/call")], &list), mismatch);
        assert_eq!(code(&[version], &list), mismatch);
        assert_eq!(code(&[("mcp-method", "tools/list")], &list), mismatch);
        assert_eq!(code(&[("mcp-protocol-version", "2025-06-18"), ("mcp-method", "tools/list")], &list), mismatch);
        // Earlier versions: no header, or theirs, and nothing declared.
        let early = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        assert_eq!((code(&[], &early), code(&[("mcp-protocol-version", "2025-06-18")], &early)), (None, None));
        assert_eq!(code(&[version], &early), Some(mcp::INVALID_PARAMS));
        assert_eq!(code(&[("mcp-protocol-version", "1900-01-01")], &early), Some(mcp::UNSUPPORTED_VERSION));
    }
}
