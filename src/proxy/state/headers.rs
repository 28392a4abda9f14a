//! The headers of this proxy: what clients may send, what replies carry.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::conversation::managed::Edits;
use crate::wire::session::is_name;

/// Names the conversation.
pub(in crate::proxy) const SESSION: HeaderName = HeaderName::from_static("x-windowsill-session");
/// `off`: pass through untouched.
pub(in crate::proxy) const SWITCH: HeaderName = HeaderName::from_static("x-windowsill");
/// Names the profile.
pub(in crate::proxy) const PROFILE: HeaderName = HeaderName::from_static("x-windowsill-profile");

/// Names the task.
pub(in crate::proxy) const TASK: HeaderName = HeaderName::from_static("x-windowsill-task");

/// `off`: the model gets no tool of ours.
pub(in crate::proxy) const RECALL: HeaderName = HeaderName::from_static("x-windowsill-recall");

/// `off`: nothing comes back by itself.
pub(in crate::proxy) const RECALL_AHEAD: HeaderName = HeaderName::from_static("x-windowsill-recall-ahead");

/// `on`, `off`: whether the model gets the tool that says that a task is done.
pub(in crate::proxy) const DONE: HeaderName = HeaderName::from_static("x-windowsill-done");

/// `off`: a request without the tool that keeps files for later conversations.
pub(in crate::proxy) const MEMORY: HeaderName = HeaderName::from_static("x-windowsill-memory");

/// Names what the conversation works on: its rules are those of this project.
pub(in crate::proxy) const PROJECT: HeaderName = HeaderName::from_static("x-windowsill-project");

/// What is done with the tools of this request.
pub(in crate::proxy) const TOOLS: HeaderName = HeaderName::from_static("x-windowsill-tools");

/// What a client should know of a reply, or of what became of its request.
pub(in crate::proxy) const WARNING: HeaderName = HeaderName::from_static("x-windowsill-warning");

/// What a client calls its session, from a body that is said in other words here.
pub(in crate::proxy) const CLIENT_SESSION: HeaderName = HeaderName::from_static("x-windowsill-client-session");

/// Has the server say which of the client's stop sequences ended the reply, where it has to be asked for that.
pub(in crate::proxy) const TELLS_STOP: HeaderName = HeaderName::from_static("x-windowsill-tells-stop");

/// The request was said in other words than its client's.
pub(in crate::proxy) const TRANSLATED: HeaderName = HeaderName::from_static("x-windowsill-translated");

/// The conversation that the history of a request is out of, where its client named that by an id instead of sending it.
pub(in crate::proxy) const CONTINUES: HeaderName = HeaderName::from_static("x-windowsill-continues");

/// Whose key a request came with: the name of a `[[key]]`, which the front door puts in the place of the token.
pub(in crate::proxy) const KEY_NAME: HeaderName = HeaderName::from_static("x-windowsill-key");

/// Which scope's record an admin's request is about.
pub(in crate::proxy) const SCOPE: HeaderName = HeaderName::from_static("x-windowsill-scope");

/// What a client asks to be done with its history, from a body that is said in other words here: JSON.
pub(in crate::proxy) const EDITS: HeaderName = HeaderName::from_static("x-windowsill-edits");

/// Request headers that are meant for this proxy and go no further.
pub(in crate::proxy) const OURS: [HeaderName; 17] = [
    KEY_NAME,
    SCOPE,
    CONTINUES,
    SESSION,
    SWITCH,
    PROFILE,
    TASK,
    RECALL,
    RECALL_AHEAD,
    DONE,
    MEMORY,
    PROJECT,
    TOOLS,
    CLIENT_SESSION,
    TELLS_STOP,
    TRANSLATED,
    EDITS,
];

/// Headers that one part of this proxy tells another. A client's own are not listened to.
const INNER: [HeaderName; 6] = [CLIENT_SESSION, TELLS_STOP, TRANSLATED, CONTINUES, EDITS, KEY_NAME];

/// Takes out of a request what only this proxy tells itself.
pub fn take_inner(headers: &mut HeaderMap) {
    for name in INNER {
        headers.remove(name);
    }
}

/// Headers in which clients send a key.
pub(in crate::proxy) const KEYS: [HeaderName; 3] =
    [header::AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];

/// Puts the name of a `[[key]]` in the place of its token, which goes no further.
pub fn put_key_name(headers: &mut HeaderMap, name: &str) {
    for key in KEYS {
        headers.remove(key);
    }
    if let Ok(value) = HeaderValue::from_str(name) {
        headers.insert(KEY_NAME, value);
    }
}

/// The scope that a request is about, where it says so.
pub fn scope_asked(headers: &HeaderMap) -> Option<String> {
    text(headers, &SCOPE)
}

/// Headers in which clients name their sessions: Codex, Claude Code, opencode, Vibe, OpenHands, pi. The last is one for each
/// request where some SDKs send it.
const SESSIONS: [HeaderName; 10] = [
    CLIENT_SESSION,
    HeaderName::from_static("session_id"),
    HeaderName::from_static("session-id"),
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("x-session-id"),
    HeaderName::from_static("x-session-affinity"),
    HeaderName::from_static("x-opencode-session"),
    HeaderName::from_static("x-affinity"),
    HeaderName::from_static("x-litellm-session-id"),
    HeaderName::from_static(PER_REQUEST),
];

/// Some SDKs send another one with each request.
const PER_REQUEST: &str = "x-client-request-id";

/// What a client calls its session, in the headers.
pub(in crate::proxy) fn client_session(headers: &HeaderMap) -> Option<String> {
    SESSIONS.iter().filter_map(|name| text(headers, name)).find(|name| is_name(name))
}

/// The same, where the name stays as long as the session: without the one that may be another for each request.
pub(in crate::proxy) fn firm_session(headers: &HeaderMap) -> Option<String> {
    let firm = SESSIONS.into_iter().filter(|name| name.as_str() != PER_REQUEST);
    firm.filter_map(|name| text(headers, &name)).find(|name| is_name(name))
}

/// The headers of a request of our own.
pub(in crate::proxy) fn json() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))])
}

/// What a browser says of the page that asks, and of the person before it: for this proxy alone.
pub(in crate::proxy) fn is_of_a_page(name: &HeaderName) -> bool {
    matches!(*name, header::COOKIE | header::ORIGIN | header::REFERER)
        || name.as_str().starts_with("sec-fetch-")
        || name.as_str().starts_with("access-control-request-")
}

/// Whether a client switches something off.
pub(in crate::proxy) fn is_off(headers: &HeaderMap, switch: &HeaderName) -> bool {
    headers.get(switch).is_some_and(|v| v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"off"))
}

/// What a header says that is `on` or `off`.
pub(in crate::proxy) fn switched(headers: &HeaderMap, switch: &HeaderName) -> Option<bool> {
    match text(headers, switch)?.to_ascii_lowercase().as_str() {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Says what a client asks to be done with its history, and nothing where it does not ask.
pub(in crate::proxy) fn ask(headers: &mut HeaderMap, edits: Option<&Edits>) {
    headers.remove(EDITS);
    let spelled = edits.and_then(|edits| serde_json::to_vec(edits).ok());
    if let Some(value) = spelled.and_then(|spelled| HeaderValue::from_bytes(&spelled).ok()) {
        headers.insert(EDITS, value);
    }
}

/// What a client asks to be done with its history, where it asks for that at all.
pub(in crate::proxy) fn edits(headers: &HeaderMap) -> Option<Edits> {
    serde_json::from_slice(headers.get(EDITS)?.as_bytes()).ok()
}

/// A header's text, if it is text.
pub(in crate::proxy) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Whether a reply is a stream of server-sent events.
pub(in crate::proxy) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// Adds to what is told of trouble that was worked around.
pub(in crate::proxy) fn warn(headers: &mut HeaderMap, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    let said = headers.get("x-windowsill-warning").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let all: Vec<String> = said.into_iter().chain(warnings.iter().cloned()).collect();
    set(headers, "x-windowsill-warning", &all.join("; "));
}

/// Sets a header of ours; a value that no header can hold is left out.
pub(in crate::proxy) fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}
