//! What browsers are told about replies: preflights are answered here, of CORS only our own headers go out, and what a server
//! sends runs nowhere.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::proxy::relay::{Body, full};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// What a page may send where it does not ask for more.
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, x-api-key");

/// How long a browser may go by an answer (seconds).
const AGE: HeaderValue = HeaderValue::from_static("600");

/// For all that is not our own page.
const CONFINED: HeaderValue = HeaderValue::from_static(
    "sandbox; default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const ASKS_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Answers `OPTIONS`, which never goes further. `origin` is that of a page which may read the reply.
pub(super) fn options(origin: Option<&HeaderValue>, asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let out = response.headers_mut();
    out.insert(header::ALLOW, METHODS);
    if origin.is_some() && asked.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(HEADERS));
        out.insert(header::ACCESS_CONTROL_MAX_AGE, AGE);
        if asked.get(&ASKS_PRIVATE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"true")) {
            out.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
        }
    }
    response
}

/// Takes what the server says of CORS out of its reply; what we said of it ourselves stays.
pub(super) fn strip_servers(response: &mut Response<Body>, is_ours: bool) {
    if is_ours {
        return;
    }
    let headers = response.headers_mut();
    let theirs: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in theirs {
        headers.remove(name);
    }
}

/// A page of a server, opened at our address, would be one of ours: its scripts could read the record. So it has an origin of its
/// own and runs nothing, and what is no page is taken for none. Our own page says more of itself.
pub(super) fn confine(headers: &mut HeaderMap) {
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(CONFINED);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Lets the page that asked read a reply, its status and our headers on it.
pub(super) fn open_to(origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    let ours = |name: &&HeaderName| {
        let name = name.as_str();
        name.starts_with("x-windowsill") || matches!(name, "request-id" | "retry-after" | "content-range")
    };
    let exposed: Vec<&str> = headers.keys().filter(ours).map(HeaderName::as_str).collect();
    if let Ok(exposed) = HeaderValue::from_str(&exposed.join(", ")) {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}
