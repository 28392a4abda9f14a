//! An [`Error`] as status and body, in the caller's dialect.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use super::coding;
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
    e.log();
    let mut response = refusal(dialect, status, &e.openai());
    if let Error::Client { code: Some("overloaded" | "shutting_down" | "draining"), .. } = e {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    if let Error::Client { code: Some("unsupported_encoding"), .. } = e {
        // RFC 9110, 15.5.16: what would be read.
        response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(coding::KNOWN));
    }
    if e.status() == 426 {
        // RFC 9110, 15.5.22: what is spoken.
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    if e.status() == 429 {
        // Official SDKs try again by themselves unless told not to; a ceiling does not rise by waiting.
        response.headers_mut().insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    response
}
