//! Responses that are stored (`/v1/responses/{id}`): read again, listed, deleted, canceled. All of it is out of the record, in which
//! an id names a history and the reply to it; what is still being made is in [`super::background`].

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::background::Running;
use super::conversations::told;
use super::pass;
use crate::plain;
use crate::proxy::state::headers::KEY_NAME;
use crate::proxy::state::whose::{is_of_key, mark_of_key};
use crate::proxy::turn::early::Tip;
use crate::proxy::turn::relay::{Body, json_reply};
use crate::proxy::{App, Error};
use crate::store::{self, Batch, Gone, KeptChange, Reply};
use crate::wire::dialect::responses::listed;
use crate::wire::dialect::responses::stored::{Page, opening, response};

/// A value of the query.
fn query(parts: &Parts, name: &str) -> Option<String> {
    let pairs = parts.uri.query().unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    pairs.into_iter().find(|(key, _)| decode(key) == name).map(|(_, value)| decode(value))
}

/// Which items the query asks for.
pub(super) fn page(parts: &Parts) -> Page {
    let named = |name: &str| query(parts, name).filter(|value| !value.is_empty());
    Page { after: named("after"), limit: named("limit"), order: named("order") }
}

/// The same error, about a field.
pub(super) fn about(field: &str, mut error: Error) -> Error {
    if let Error::Client { param, .. } = &mut error {
        *param = Some(field.to_owned());
    }
    error
}

/// What is not known here may be known to a server that keeps such things itself: what it answers, the client gets.
///
/// # Errors
/// The one that is given, where no server knows it either.
pub(super) async fn or_upstream(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    error: Error,
) -> Result<Response<Body>, Error> {
    // A server knows nothing of the keys here: what it keeps is everybody's.
    if error.status() != 404 || parts.headers.contains_key(KEY_NAME) {
        return Err(error);
    }
    match pass(app, parts, body).await {
        Ok(response) if response.status().is_success() => Ok(response),
        Ok(_) | Err(_) => Err(error),
    }
}

/// What is known of a response.
enum Found {
    /// It is being made, or was a moment ago.
    Running(Arc<Running>),
    /// It is in the record.
    Stored(Reply),
}

/// A response of this key, or why there is none.
async fn found(app: &App, parts: &Parts, id: &str) -> Result<Result<Found, Error>, Error> {
    if let Some(running) = app.background.of(id, &mark_of_key(&parts.headers)) {
        return Ok(Ok(Found::Running(running)));
    }
    stored(app, parts, id).await.map(|stored| stored.map(Found::Stored))
}

async fn stored(app: &App, parts: &Parts, id: &str) -> Result<Result<Reply, Error>, Error> {
    // It may be queued still.
    app.store.flush().await;
    store::blocking(|| {
        if let Some(reply) = app.store.continued().reply(id)?
            && is_of_key(app, &reply.conversation, &parts.headers)?
        {
            return Ok(Ok(reply));
        }
        let gone = match app.store.continued().reply(id)? {
            Some(_) => None,
            None => app.store.continued().reply_gone(id)?,
        };
        Ok(Err(missing(id, gone.as_ref())))
    })
}

/// As OpenAI says it; what retention took is told with its date.
fn missing(id: &str, gone: Option<&Gone>) -> Error {
    let id = plain::line(id);
    let (status, message) = match gone {
        None => (404, format!("Response with id '{id}' not found: none is kept here for this key.")),
        Some(gone) => (410, format!("Response with id '{id}' {gone}.")),
    };
    let hint = "replies to requests with `store: false`, and those that broke off, are not kept";
    about("response_id", Error::client(status, "response_not_found", message, hint))
}

/// Answers `GET` and `DELETE /v1/responses/{id}`.
///
/// # Errors
/// 404 for an unknown one, 410 for what retention took.
pub async fn response_of(app: &Arc<App>, parts: &Parts, body: Bytes, id: &str) -> Result<Response<Body>, Error> {
    let found = match found(app, parts, id).await? {
        Ok(found) => found,
        Err(missing) => return or_upstream(app, parts, body, missing).await,
    };
    if parts.method == http::Method::DELETE {
        return delete(app, parts, found, id).await;
    }
    let streams = query(parts, "stream").is_some_and(|stream| stream == "true");
    match found {
        Found::Running(running) if streams => {
            let after = match query(parts, "starting_after").filter(|after| !after.is_empty()) {
                None => None,
                Some(after) => Some(after.parse().map_err(|_| {
                    let message = "`starting_after` must be the number of an event";
                    about("starting_after", Error::client(400, "invalid_value", message, ""))
                })?),
            };
            Ok(streamed(&running, after)?)
        }
        Found::Running(running) => Ok(json_reply(StatusCode::OK, &running.response())),
        Found::Stored(_) if streams => {
            let message =
                "the events of this response are not kept: only those of responses in the background are, for a while";
            Err(about("stream", Error::client(400, "events_not_kept", message, "ask for it without `stream`")))
        }
        Found::Stored(reply) => Ok(json_reply(StatusCode::OK, &response(id, &reply.head, &reply.json))),
    }
}

/// The events of a response in the background.
pub(super) fn streamed(running: &Arc<Running>, after: Option<usize>) -> Result<Response<Body>, Error> {
    let mut response = Response::new(StreamBody::new(running.events(after)?).boxed_unsync());
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

async fn delete(app: &App, parts: &Parts, found: Found, id: &str) -> Result<Response<Body>, Error> {
    if let Found::Running(running) = &found {
        running.cancel();
        app.background.forget(id);
    }
    let reply = match found {
        Found::Stored(reply) => Some(reply),
        Found::Running(_) => stored(app, parts, id).await?.ok(),
    };
    if let Some(reply) = reply {
        let items: Value = serde_json::from_str(&reply.json).unwrap_or_default();
        let ids = items.as_array().into_iter().flatten().filter_map(|item| item["id"].as_str().map(str::to_owned));
        let forget = KeptChange::ForgetReply(id.to_owned(), ids.collect());
        app.store.record(Batch { kept: Some(forget), ..Batch::default() }).await?;
    }
    Ok(json_reply(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}

/// Answers `GET /v1/responses/{id}/input_items`: the history that the response answers.
///
/// # Errors
/// As [`response_of`], and a page that is none.
pub async fn input_items(app: &Arc<App>, parts: &Parts, body: Bytes, id: &str) -> Result<Response<Body>, Error> {
    let (tip, head) = match found(app, parts, id).await? {
        Ok(Found::Stored(Reply { conversation, chain, depth, head, .. })) => {
            (Some(Tip { conversation, chain, depth }), head)
        }
        Ok(Found::Running(running)) => (running.early.tip(), String::new()),
        Err(missing) => return or_upstream(app, parts, body, missing).await,
    };
    let name = id.strip_prefix("resp_").unwrap_or(id);
    let mut all = opening(name, &head);
    if let Some(tip) = tip {
        app.store.flush().await;
        let messages = store::blocking(|| app.store.messages_to(&tip.chain))?;
        if messages.len() != tip.depth {
            return Err(missing(id, None));
        }
        let items = messages.iter().enumerate().flat_map(|(at, raw)| listed::items(raw, &format!("{name}_{at}")));
        all.extend(items);
    }
    Ok(json_reply(StatusCode::OK, &page(parts).of(all).map_err(told)?))
}

/// Answers `POST /v1/responses/{id}/cancel`.
///
/// # Errors
/// As [`response_of`], and 400 for a response that is not made in the background.
pub async fn cancel_response(app: &Arc<App>, parts: &Parts, body: Bytes, id: &str) -> Result<Response<Body>, Error> {
    match found(app, parts, id).await? {
        Ok(Found::Running(running)) => Ok(json_reply(StatusCode::OK, &running.cancel())),
        Ok(Found::Stored(reply)) => {
            let stored = response(id, &reply.head, &reply.json);
            // One that is over stays as it is.
            if stored["background"] == true {
                return Ok(json_reply(StatusCode::OK, &stored));
            }
            let message = "Cannot cancel a synchronous response.";
            let hint = "only responses with `background: true` can be canceled";
            Err(about("response_id", Error::client(400, "not_in_background", message, hint)))
        }
        Err(missing) => or_upstream(app, parts, body, missing).await,
    }
}
