//! What a request would take, by the counting endpoints of its API: the prompt as it would be forwarded, and as the client sent it.
//! Nothing is loaded for it, and nothing is sent.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;

use super::compacted::opened_to_count;
use super::dialect::unread;
use super::pass;
use crate::conversation::managed::Edits;
use crate::proxy::desk::report::weighed;
use crate::proxy::state::headers;
use crate::proxy::turn::relay::{Body, json_reply};
use crate::proxy::{App, Error};
use crate::wire::openai_chat;

/// Answers `POST /v1/messages/count_tokens`: the prompt as it would be forwarded, and as the client sent it. Nothing is loaded
/// for it.
///
/// # Errors
/// As the request itself would get.
pub async fn count_messages(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    let size = body.len();
    if headers::is_off(&parts.headers, &headers::SWITCH) || app.config.shadow {
        return pass(app, parts, body).await;
    }
    let (owned, read, mut from_client) = (Arc::clone(app), body.clone(), parts.headers.clone());
    let count = async move {
        let (chat, unsaid) = opened_to_count(&owned, &from_client, &read).await?;
        // Who asks for nothing is told what the history had, too.
        headers::ask(&mut from_client, Some(&unsaid.edits.unwrap_or_default()));
        weighed(&owned, openai_chat::parse(&chat)?, &from_client).await
    };
    match app.aside.run(size, count.boxed()).await? {
        Err(Error::Unread(why)) => unread(app, parts, body, why).await,
        Err(e) => Err(e),
        Ok((forwarded, original)) => {
            let managed = json!({"original_input_tokens": original});
            let told = json!({"input_tokens": forwarded, "context_management": managed});
            Ok(json_reply(StatusCode::OK, &told))
        }
    }
}

/// Answers `POST /v1/chat/completions/input_tokens`, which llama-server has: the tokens that would be forwarded, and those of the
/// history as the client sent it.
///
/// # Errors
/// As the request itself would get.
pub async fn count_chat(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) || app.config.shadow {
        return pass(app, parts, body).await;
    }
    input_tokens(app, &parts.headers, body).await
}

/// Counts what is said in the words of chat completions.
///
/// # Errors
/// As the request itself would get.
pub(super) async fn input_tokens(
    app: &Arc<App>,
    from_client: &HeaderMap,
    chat: Bytes,
) -> Result<Response<Body>, Error> {
    let (owned, size, mut asked) = (Arc::clone(app), chat.len(), from_client.clone());
    // Who asks for nothing is told what the history had, too.
    headers::ask(&mut asked, Some(&Edits::default()));
    let count = async move { weighed(&owned, openai_chat::parse(&chat)?, &asked).await };
    let (forwarded, original) = app.aside.run(size, count.boxed()).await??;
    let told = json!({"object": "response.input_tokens", "input_tokens": forwarded, "original_input_tokens": original});
    Ok(json_reply(StatusCode::OK, &told))
}
