//! Which path goes where. What is not ours passes through untouched.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::error::reply_in;
use super::inspect;
use crate::proxy::{App, Body, Dialect, Error};

/// Answers one request, whatever happens.
pub(super) async fn answer(app: Arc<App>, request: hyper::Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let dialect = dialect(&path);
    if let Err(e) = authorize(&app, &parts.headers, &path) {
        return reply_in(dialect, &e);
    }
    let body = match read(body, app.config.limits.max_body_bytes).await {
        Ok(body) => body,
        Err(e) => return reply_in(dialect, &e),
    };
    let result = match (&parts.method, path.as_str()) {
        (&Method::POST, "/v1/chat/completions" | "/chat/completions") => app.chat(&parts, body).await,
        (&Method::POST, "/v1/messages") => app.messages(&parts, body).await,
        (&Method::POST, "/v1/messages/count_tokens") => app.count_messages(&parts, body).await,
        (&Method::POST, "/v1/responses" | "/responses") => app.responses(&parts, body).await,
        (&Method::POST, "/api/chat") => app.ollama(&parts, body, false).await,
        (&Method::POST, "/api/generate") => app.ollama(&parts, body, true).await,
        (&Method::GET, "/api/tags" | "/api/ps" | "/api/version") | (&Method::POST, "/api/show") => {
            app.ollama_asks(&parts, body).await
        }
        // Claude Code and Ollama's own command line ask so whether anybody is there.
        (&Method::HEAD, "/") => Ok(inspect::alive()),
        (&Method::GET, "/v1/models") => inspect::models(&app, None, &parts.headers).await,
        (&Method::GET, p) if p.starts_with("/v1/models/") => {
            inspect::models(&app, p.strip_prefix("/v1/models/"), &parts.headers).await
        }
        (method, p) if inspect::is_ours(p) => {
            inspect::answer(&app, method, p, parts.uri.query(), &parts.headers, &body).await
        }
        _ => app.pass(&parts, body).await,
    };
    result.unwrap_or_else(|e| reply_in(dialect, &e))
}

/// What the errors of a path look like.
fn dialect(path: &str) -> Dialect {
    match path {
        "/v1/messages" | "/v1/messages/count_tokens" => Dialect::Anthropic,
        path if path.starts_with("/api/") => Dialect::Ollama,
        _ => Dialect::OpenAi,
    }
}

async fn read(body: Incoming, limit: u64) -> Result<Bytes, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(Error::client(
            413,
            "request_too_large",
            format!("the request body is larger than {limit} bytes"),
            "raise `max_body_bytes` in [limits] of config.toml if this is meant",
        )),
        Err(e) => Err(Error::client(400, "incomplete_body", format!("the request body did not arrive whole: {e}"), "")),
    }
}

/// Checks the key, where one is configured. Health checks need none.
fn authorize(app: &App, headers: &HeaderMap, path: &str) -> Result<(), Error> {
    let Some(key) = &app.config.api_key else { return Ok(()) };
    if matches!(path, "/healthz" | "/readyz") {
        return Ok(());
    }
    let bearer =
        headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("Bearer "));
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
