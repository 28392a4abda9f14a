//! An [`Error`] as status and body, in the caller's dialect (OpenAI's, so far).

use http::{Response, StatusCode, header};
use serde_json::{Value, json};
use tracing::{error, warn};

use crate::proxy::Error;
use crate::proxy::relay::{Body, full};

/// The reply for an error.
pub(super) fn reply(e: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(e.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    log(e);
    json_reply(status, &openai(e))
}

/// The body in OpenAI's shape. Details of our own faults stay in the log.
fn openai(e: &Error) -> Value {
    let with_hint = |message: &str, hint: &Option<String>| match hint {
        Some(hint) => format!("{}. Hint: {hint}.", message.trim_end_matches('.')),
        None => message.to_owned(),
    };
    let (kind, code, param, message) = match e {
        Error::Client { code, param, message, hint, status } => {
            let kind = match status {
                401 | 403 => "authentication_error",
                404 | 410 => "not_found_error",
                503 => "service_unavailable_error",
                _ => "invalid_request_error",
            };
            (kind, *code, param.clone(), with_hint(message, hint))
        }
        Error::Upstream { source, hint, .. } => {
            ("upstream_error", Some("upstream_unreachable"), None, with_hint(&chain(source), hint))
        }
        Error::Internal { .. } => {
            ("internal_error", Some("internal_error"), None, format!("windowsill {e}; its log has the details"))
        }
    };
    json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
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
        Error::Client { .. } => warn!(status = e.status(), error = %e, "request refused"),
        Error::Upstream { source, .. } => warn!(status = e.status(), error = %chain(source), "upstream failed"),
        Error::Internal { source, .. } => error!(error = %e, cause = %chain(source.as_ref()), "internal error"),
    }
}

/// A JSON reply.
pub(super) fn json_reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
