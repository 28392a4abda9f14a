//! Requests in other dialects than chat completions: said in its words, answered like any, and the reply said in the
//! client's words again. One conversation has one prompt this way, whoever asks, and servers that lack a dialect have it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited, StreamBody};
use serde_json::{Value, json};
use tracing::debug;

use super::compacted::managed;
use super::encoded::{EncodedStream, Managing};
use super::items::{Joins, hear_messages, keep_unsaid, keeper};
use super::shadow::shadowed;
use super::waiting::{answer, quiet};
use super::{model_in, pass};
use crate::plain;
use crate::proxy::desk::models::models;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::headers;
use crate::proxy::turn::LARGEST_BUFFERED;
use crate::proxy::turn::early::Early;
use crate::proxy::turn::relay::{Answer, Body, full, json_reply};
use crate::proxy::{App, Error, aside};
use crate::upstream::Kind;
use crate::upstream::unique::{unique, unix_seconds};
use crate::wire::WireError;
use crate::wire::dialect::ollama::{self, Unsayable};
use crate::wire::dialect::said::{Compaction, Said};
use crate::wire::dialect::{Dialect, Head, Heard, anthropic};
use crate::wire::json::{self, Fields};
use crate::wire::reply;

/// Fields that refer to what the server would have to remember.
const MEMORY: [&str; 2] = ["previous_response_id", "conversation"];

/// Where requests go once they are said in other words.
const CHAT: &str = "/v1/chat/completions";

/// Answers `POST /v1/messages`.
///
/// # Errors
/// As [`crate::proxy::chat`], and what the dialect has no word for.
pub async fn messages(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) {
        return pass(app, parts, body).await;
    }
    let heard = hear_messages(app, &parts.headers, &body).await?;
    if app.config.shadow {
        return shadowed(app, parts, body, heard.map(|heard| heard.chat).map_err(Error::from)).await;
    }
    let heard = match heard {
        Ok(heard) => heard,
        Err(why) => return unread(app, parts, body, why).await,
    };
    // It can be megabytes, and is said in other words now.
    drop(body);
    told(app, Dialect::Anthropic, parts, heard).await
}

/// `GET /v1/models`, with what clients of Anthropic's want to see beside the rest.
///
/// # Errors
/// As [`crate::proxy::models`].
pub async fn anthropic_models(app: &App, id: Option<&str>) -> Result<Value, Error> {
    Ok(anthropic::models(models(app, id).await?))
}

/// Answers `POST /api/chat`, and `POST /api/generate` where `generate`.
///
/// # Errors
/// As [`crate::proxy::chat`], and what the dialect has no word for.
pub async fn ollama(app: &Arc<App>, parts: &Parts, body: Bytes, generate: bool) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) {
        return pass(app, parts, body).await;
    }
    let read = body.clone();
    let hear = async move { if generate { ollama::generate(&read) } else { ollama::chat(&read) } };
    let heard = app.aside.reading(body.len(), hear.boxed()).await?;
    if app.config.shadow {
        // What is no chat has nothing to be foreseen.
        return match heard.transpose() {
            Some(heard) => shadowed(app, parts, body, heard.map(|heard| heard.chat).map_err(Error::from)).await,
            None => pass(app, parts, body).await,
        };
    }
    match heard {
        Ok(Some(heard)) => {
            drop(body);
            return told(app, Dialect::Ollama, parts, heard).await;
        }
        Ok(None) => {}
        Err(why) => return unread(app, parts, body, why).await,
    }
    // It loads or unloads a model, or is said in words that messages do not have.
    let model = model_in(&body);
    let upstream = upstream_of(app, &model).await?;
    if upstream.probe().await? == Kind::Ollama {
        return pass(app, parts, body).await;
    }
    let unloads = match ollama::unsayable(&body, generate) {
        Unsayable::OllamaAlone(names) => return Err(for_ollama_alone(&names)),
        told => told == Unsayable::Unloads,
    };
    Ok(json_reply(StatusCode::OK, &ollama::models::loaded(&model, &ollama::timestamp(unix_seconds()), unloads)))
}

/// Answers what Ollama's clients ask before they chat: `GET /api/tags`, `/api/ps`, `/api/version`, `POST /api/show`. An
/// Ollama answers itself.
///
/// # Errors
/// When no upstream answers, or none knows the model.
pub async fn ollama_asks(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    // Ollama's own command line still says `name`, beside an empty `model`.
    let named = |key: &&str| asked.get(*key)?.as_str().filter(|name| !name.is_empty());
    let model = ["model", "name"].iter().find_map(named).unwrap_or_default();
    let upstream = upstream_of(app, model).await?;
    if upstream.probe().await? == Kind::Ollama {
        return pass(app, parts, body).await;
    }
    let data = |list: &Value| list.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    let value = match parts.uri.path() {
        "/api/version" => json!({"version": ollama::models::VERSION}),
        "/api/tags" => ollama::models::tags(&data(&models(app, None).await?)),
        "/api/ps" => ollama::models::ps(&data(&models(app, None).await?)),
        _ => {
            let entry = models(app, Some(model)).await?;
            let loaded = upstream.loaded(model).await.unwrap_or_default();
            let caps = loaded.template.caps.unwrap_or_default();
            let tools = caps.get("supports_tools").and_then(Value::as_bool).unwrap_or(true);
            ollama::models::show(&entry, tools, loaded.takes.pictures == Some(true))
        }
    };
    Ok(json_reply(StatusCode::OK, &value))
}

/// Answers a request that cannot be read here: the server may read it all the same, and what it takes alone is never
/// refused. It is passed as it is, and neither measured nor kept, which a warning says. Where the server refuses it, too,
/// the client gets our words, which name the field.
pub(in crate::proxy) async fn unread(
    app: &App,
    parts: &Parts,
    body: Bytes,
    why: WireError,
) -> Result<Response<Body>, Error> {
    // To leave these out is to answer another question.
    let asks_for_memory = why.param().is_some_and(|param| MEMORY.contains(&param) || is_management(param));
    // What is no JSON, no server reads.
    let is_object = Fields::read(&json::mended(&body)).is_ok();
    if asks_for_memory || !is_object || !speaks(app, parts.uri.path(), &body).await {
        return Err(why.into());
    }
    match pass(app, parts, body).await {
        Ok(mut response) if response.status().is_success() => {
            let told = format!("passed to the server as it is, unmeasured: {}", plain::line(&why.to_string()));
            headers::warn(response.headers_mut(), &[told]);
            Ok(response)
        }
        Ok(_) => Err(why.into()),
        Err(e) => {
            debug!(error = %plain::line(&e.to_string()), "what cannot be read could not be passed either");
            Err(why.into())
        }
    }
}

/// Whether a field says what is to be done with the history: a local server would pass over it.
fn is_management(param: &str) -> bool {
    param.split(['.', '[']).next().is_some_and(|field| matches!(field, "context_management" | "compaction"))
}

/// Whether the server may have this path itself: Ollama's are its own alone.
async fn speaks(app: &App, path: &str, body: &Bytes) -> bool {
    if !path.starts_with("/api/") {
        return true;
    }
    match upstream_of(app, &model_in(body)).await {
        Ok(upstream) => upstream.probe().await.is_ok_and(|kind| kind == Kind::Ollama),
        Err(_) => false,
    }
}

/// The head of a request that is said in the words of chat completions.
pub(super) fn asked_in_chat(parts: &Parts, heard: &Heard) -> Parts {
    let mut asked = parts.clone();
    asked.uri = Uri::from_static(CHAT);
    if let Some(session) = heard.session.as_deref().and_then(|name| HeaderValue::try_from(name).ok()) {
        asked.headers.insert(headers::CLIENT_SESSION, session);
    }
    if heard.tells_stop {
        asked.headers.insert(headers::TELLS_STOP, HeaderValue::from_static("on"));
    }
    asked.headers.insert(headers::TRANSLATED, HeaderValue::from_static("on"));
    headers::ask(&mut asked.headers, heard.unsaid.edits.as_ref());
    asked
}

/// Answers a request that was said in the words of chat completions, in the client's own.
async fn told(app: &Arc<App>, dialect: Dialect, parts: &Parts, heard: Heard) -> Result<Response<Body>, Error> {
    told_after(app, dialect, parts, heard, First::default()).await
}

/// What was done before a request is answered, and is to be done with its reply.
#[derive(Default)]
pub(super) struct First {
    /// Told before the reply.
    pub(super) compaction: Option<Compaction>,
    /// The kept conversation that the reply is added to.
    pub(super) joins: Option<Joins>,
}

/// The same where something was done before.
pub(super) async fn told_after(
    app: &Arc<App>,
    dialect: Dialect,
    parts: &Parts,
    heard: Heard,
    First { compaction: before, joins }: First,
) -> Result<Response<Body>, Error> {
    let asked = asked_in_chat(parts, &heard);
    let managing = heard.unsaid.edits.is_some();
    let early = Early::default();
    let managing = managing.then(|| managed(app, early.clone()));
    let response = answer(app, &asked, heard.chat, &early).await?;
    let (mut parts, answer) = response.into_parts();
    headers::warn(&mut parts.headers, heard.encoder.warnings());
    let length = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    length.iter().for_each(|name| drop(parts.headers.remove(name)));
    let head = head(&parts.headers);
    let mut encoder = heard.encoder;
    keep_unsaid(app, heard.unsaid, &mut parts.headers).await;
    let body = match answer {
        Answer::Body(body) => body,
        Answer::Events(events) => {
            let mut begin = encoder.start(&head);
            if before.is_some() {
                begin += &encoder.chunk(&Said { compaction: before, ..Said::default() });
            }
            let kind = HeaderValue::from_static(encoder.stream_type());
            parts.headers.insert(header::CONTENT_TYPE, kind);
            let mut encoded = EncodedStream::new(events, encoder, begin, quiet(app));
            encoded.managing = managing.map(|told| Box::new(told) as Managing);
            encoded.keeper = Some(keeper(app, early, joins));
            return Ok(named(dialect, &head.id, Response::from_parts(parts, StreamBody::new(encoded).boxed_unsync())));
        }
    };
    let bytes = match Limited::new(body, LARGEST_BUFFERED).collect().await {
        Ok(whole) => whole.to_bytes(),
        Err(e) if e.is::<LengthLimitError>() => {
            return Err(crate::proxy::turn::too_large("said in the client's words"));
        }
        Err(source) => return Err(Error::Internal { doing: "read the reply", source }),
    };
    let text = String::from_utf8_lossy(&bytes);
    let said = aside::once(text.len(), || {
        let value: Value = serde_json::from_str(&text).ok()?;
        // What has no choices is no reply, whatever it is.
        value.pointer("/choices/0").and_then(|_| Said::of(&value))
    });
    let out = if !parts.status.is_success() {
        dialect.error(parts.status.as_u16(), &failure(parts.status, &text), &request_id(&head.id))
    } else if let Some(mut said) = said.filter(|said| said.error.is_none()) {
        said.compaction = before;
        if let Some(managed) = managing.and_then(|told| told()) {
            encoder.managed(&managed);
        }
        let out = encoder.whole(&head, &said);
        keeper(app, early, joins)(encoder.kept());
        out
    } else {
        parts.status = StatusCode::BAD_GATEWAY;
        dialect.error(502, &failure(StatusCode::OK, &text), &request_id(&head.id))
    };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(named(dialect, &head.id, Response::from_parts(parts, full(out.to_string()))))
}

/// Why a reply of a server's is none, as an `error` in OpenAI's shape: the server's own, where it has one.
pub(super) fn failure(status: StatusCode, said: &str) -> Value {
    // An error without a word in it is shown as it is.
    let told = |value: &Value| value.get("error").is_none_or(reply::is_told);
    let own = || reply::error_in(&json::lenient(said).filter(told)?);
    if let Some(own) = Some(said).filter(|_| !status.is_success()).and_then(|_| own()) {
        return own;
    }
    let shown = || said.chars().take(300).collect::<String>();
    let (code, message) = match (status.is_success(), said.trim()) {
        (true, _) => {
            let what = "the inference server answered with what is no chat completion";
            ("upstream_unreadable", format!("{what}: {}", shown()))
        }
        (false, "") => {
            ("upstream_error", format!("the inference server answered with status {status} and gave no reason"))
        }
        (false, said) => ("upstream_error", said.to_owned()),
    };
    json!({"message": message, "type": "upstream_error", "param": null, "code": code})
}

/// Refuses what only an Ollama understands.
fn for_ollama_alone(names: &[&str]) -> Error {
    if names.contains(&"context") {
        return Error::client(
            400,
            "unsupported",
            "`context` holds the tokens of an Ollama, and this model is served by another server",
            "start without it and go on with the `context` of windowsill's own reply, or send messages to /api/chat",
        );
    }
    let named: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("{}: for Ollama alone, and this model is served by another server", named.join(", "));
    Error::client(400, "unsupported", message, "leave it out, or send messages to /api/chat")
}

/// An error reply in a dialect, from the `error` of one in OpenAI's shape.
pub fn refusal(dialect: Dialect, status: StatusCode, error: &Value) -> Response<Body> {
    let id = unique(24);
    named(dialect, &id, json_reply(status, &dialect.error(status.as_u16(), error, &request_id(&id))))
}

fn request_id(id: &str) -> String {
    format!("req_{id}")
}

/// Anthropic's SDKs show the id of a request with each error.
fn named(dialect: Dialect, id: &str, mut response: Response<Body>) -> Response<Body> {
    if dialect == Dialect::Anthropic {
        headers::set(response.headers_mut(), "request-id", &request_id(id));
    }
    response
}

pub(super) fn head(headers: &HeaderMap) -> Head {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse().ok();
    let (prompt_tokens, window) = (number("x-windowsill-prompt-tokens"), number("x-windowsill-window"));
    Head { id: unique(24), created: unix_seconds(), prompt_tokens, window }
}
