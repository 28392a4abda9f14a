//! Where requests come in: each dialect's door says what its client asked in the words of chat completions, has [`super::turn`]
//! answer it, and says the reply in the client's words again. What is off, or cannot be read, passes through.

pub(super) mod background;
mod compacted;
mod compaction;
pub(super) mod conversations;
pub(super) mod counts;
pub(super) mod dialect;
pub(super) mod embeds;
mod encoded;
mod items;
pub(in crate::proxy) mod lasting;
pub(super) mod responses;
mod shadow;
pub(super) mod stored;
mod waiting;

use std::sync::Arc;

use bytes::Bytes;
use dialect::unread;
use futures_util::{FutureExt as _, StreamExt as _};
use http::Response;
use http::request::Parts;
use shadow::shadowed;
use waiting::{answer, body_of};

use super::state::headers;
use super::turn::early::Early;
use super::turn::relay;
use super::{App, Body, Error};
use crate::proxy::servers::upstream_to_pass;
use crate::proxy::traffic::using;
use crate::wire::json::Fields;

/// Answers a chat completion request.
///
/// # Errors
/// What the caller must be told: its own mistake, no upstream, or a prompt that cannot be made to fit.
pub async fn chat(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) {
        return pass(app, parts, body).await;
    }
    if app.config.shadow {
        return shadowed(app, parts, body.clone(), Ok(body)).await;
    }
    match answer(app, parts, body.clone(), &Early::default()).await {
        Err(Error::Unread(why)) => unread(app, parts, body, why).await,
        answered => Ok(answered?.map(|answer| body_of(app, answer))),
    }
}

/// Passes a request through untouched.
///
/// # Errors
/// When no upstream can be reached.
pub async fn pass(app: &App, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    let read = body.clone();
    let model = app.aside.reading(body.len(), async move { model_in(&read) }.boxed()).await?;
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let headers = app.outgoing(&parts.headers);
    let (reply, using) = loop {
        let upstream = upstream_to_pass(app, &model).await?;
        let using = using(app, &upstream, &model).await;
        match upstream.pass(parts.method.clone(), path, &headers, body.clone().into()).await {
            Ok(reply) => break (reply, using),
            // It has seen nothing of the request: the next one may have it.
            Err(e) if e.is_connect() && app.servers.is_newly_down(&upstream, &e.to_string()) => {}
            Err(e) => return Err(e.into()),
        }
    };
    let mut response = Response::builder().status(reply.status);
    if let Some(h) = response.headers_mut() {
        *h = reply.headers;
    }
    response
        .body(relay::through(reply.body.inspect(move |_| _ = &using)))
        .map_err(|e| Error::Internal { doing: "build the reply", source: Box::new(e) })
}

/// The `model` a request body names, if it is a JSON object that names one.
pub(in crate::proxy) fn model_in(body: &Bytes) -> String {
    let text = std::str::from_utf8(body).ok().filter(|t| t.trim_start().starts_with('{'));
    text.and_then(|t| Fields::read(t).ok()).and_then(|f| f.string("model")).unwrap_or_default()
}
