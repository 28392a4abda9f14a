//! What of Ollama's API is no chat, before servers that do not have it: embeddings, and errors in its words.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};

use super::dialect::{failure, refusal};
use super::{model_in, pass};
use crate::proxy::servers::upstream_to_pass;
use crate::proxy::state::headers;
use crate::proxy::traffic::using;
use crate::proxy::turn::relay::{Body, full, json_reply};
use crate::proxy::turn::{LARGEST_BUFFERED, read_up_to, too_large};
use crate::proxy::{App, Error};
use crate::upstream::Kind;
use crate::wire::dialect::ollama::embed::Embeds;
use crate::wire::dialect::{Dialect, ollama};

/// Answers `POST /api/embed` and `/api/embeddings`. An Ollama answers itself; others are asked for OpenAI's embeddings.
///
/// # Errors
/// When no upstream answers, and what has the wrong shape.
pub async fn ollama_embeds(app: &App, parts: &Parts, body: Bytes, of: Embeds) -> Result<Response<Body>, Error> {
    let model = model_in(&body);
    let upstream = upstream_to_pass(app, &model).await?;
    let untouched = headers::is_off(&parts.headers, &headers::SWITCH) || app.config.shadow;
    if untouched || upstream.probe().await? == Kind::Ollama {
        return pass(app, parts, body).await;
    }
    let mut said = Value::Null;
    if let Some(asked) = ollama::embed::request(&body, of)? {
        let mut headers = app.outgoing(&parts.headers);
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let _using = using(app, &upstream, &model).await;
        let reply = upstream.pass(Method::POST, "/v1/embeddings", &headers, asked.into()).await?;
        let (bytes, rest) = read_up_to(reply.body, LARGEST_BUFFERED).await?;
        if rest.is_some() {
            return Err(too_large("said in the client's words"));
        }
        if !reply.status.is_success() {
            let why = failure(reply.status, &String::from_utf8_lossy(&bytes));
            return Ok(refusal(Dialect::Ollama, reply.status, &why));
        }
        said = serde_json::from_slice(&bytes).unwrap_or_default();
        if said.is_null() {
            said = json!({});
        }
    }
    match ollama::embed::reply(&model, &said, of) {
        Some(value) => Ok(json_reply(StatusCode::OK, &value)),
        None => {
            let why = "the inference server answered with what are no embeddings";
            Err(Error::client(502, "upstream_unreadable", why, "serve a model that makes embeddings"))
        }
    }
}

/// Passes a request below `/api/` through. What a server without Ollama's API says of it is said as Ollama's clients read
/// errors: they take a text alone.
///
/// # Errors
/// As [`crate::proxy::pass`].
pub async fn pass_below_api(app: &App, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    let response = pass(app, parts, body).await?;
    let status = response.status();
    if app.config.shadow || !(status.is_client_error() || status.is_server_error()) {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let Ok(whole) = Limited::new(body, LARGEST_BUFFERED).collect().await else {
        return Err(too_large("said in the client's words"));
    };
    let bytes = whole.to_bytes();
    let said = serde_json::from_slice::<Value>(&bytes).ok();
    let Some(error) = said.as_ref().and_then(|said| said.get("error")).filter(|error| error.is_object()) else {
        return Ok(Response::from_parts(head, full(bytes)));
    };
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, full(ollama::error(&ollama::message_of(error)).to_string())))
}
