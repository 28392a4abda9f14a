//! An [`Error`] as status and body, in the caller's dialect.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tracing::{error, warn};

use crate::plain::line;
use crate::proxy::relay::Body;
use crate::proxy::{Dialect, Error, refusal};

/// When a client may try again that found no room (seconds).
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// The reply for an error.
pub(super) fn reply(e: &Error) -> Response<Body> {
    reply_in(Dialect::OpenAi, e)
}

/// The reply for an error, in a dialect.
pub(super) fn reply_in(dialect: Dialect, e: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(e.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    log(e);
    let mut response = refusal(dialect, status, &openai(e));
    if let Error::Client { code: Some("overloaded" | "shutting_down"), .. } = e {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    if e.status() == 429 {
        // Official SDKs try again by themselves unless told not to; a ceiling does not rise by waiting.
        response.headers_mut().insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    response
}

/// The `error` in OpenAI's shape. Details of our own faults stay in the log.
fn openai(e: &Error) -> Value {
    let with_hint = |message: &str, hint: &Option<String>| match hint {
        Some(hint) => format!("{}. Hint: {hint}.", message.trim_end_matches('.')),
        None => message.to_owned(),
    };
    let (kind, code, param, message) = match e {
        Error::Client { code, param, message, hint, status, .. } => {
            let kind = match status {
                401 | 403 => "authentication_error",
                404 | 410 => "not_found_error",
                429 => "rate_limit_error",
                502 => "upstream_error",
                503 => "service_unavailable_error",
                _ => "invalid_request_error",
            };
            (kind, *code, param.clone(), with_hint(message, hint))
        }
        Error::Upstream { source, hint, .. } => {
            ("upstream_error", Some("upstream_unreachable"), None, with_hint(&chain(source), hint))
        }
        Error::Record { source } => {
            let hint = Some(source.hint().to_owned());
            ("service_unavailable_error", Some("record_unwritable"), None, with_hint(&e.to_string(), &hint))
        }
        Error::Internal { .. } => {
            ("internal_error", Some("internal_error"), None, format!("windowsill {e}; its log has the details"))
        }
    };
    let mut error = json!({"message": message, "type": kind, "param": param, "code": code});
    if let Error::Client { sizes: Some((prompt, window)), .. } = e {
        // llama.cpp's names for them: some clients read the numbers there.
        error["n_prompt_tokens"] = json!(prompt);
        error["n_ctx"] = json!(window);
    }
    error
}

/// An error and its causes in one line.
fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        out.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    out
}

fn log(e: &Error) {
    match e {
        Error::Client { .. } => warn!(status = e.status(), error = %line(&e.to_string()), "request refused"),
        Error::Upstream { source, .. } => warn!(status = e.status(), error = %line(&chain(source)), "upstream failed"),
        Error::Record { .. } => error!(status = e.status(), error = %line(&e.to_string()), "request refused"),
        Error::Internal { source, .. } => error!(error = %e, cause = %chain(source.as_ref()), "internal error"),
    }
}
