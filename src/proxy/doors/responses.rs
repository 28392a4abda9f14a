//! OpenAI's Responses API: requests and what they ask of compaction.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::json;

use super::compaction::{Compacted, compacted, is_due};
use super::dialect::{Ahead, EncodedStream, asked_in_chat, head, input_tokens, json_reply, told_after, unread};
use super::items::{Asked, hear_responses, keep_unsaid, keeper};
use super::pass;
use super::shadow::shadowed;
use super::waiting::{answer, events, quiet};
use crate::proxy::state::headers;
use crate::proxy::turn::early::Early;
use crate::proxy::turn::relay::Body;
use crate::proxy::{App, Error};
use crate::wire::dialect::responses::listed;
use crate::wire::dialect::said::{Compaction, Said};
use crate::wire::dialect::{Dialect, Heard};
use crate::wire::json::Fields;

/// Answers `POST /v1/responses`.
///
/// # Errors
/// As [`crate::proxy::chat`], and what the dialect has no word for.
pub async fn responses(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) {
        return pass(app, parts, body).await;
    }
    let asked = hear_responses(app, &parts.headers, &body).await?;
    if app.config.shadow {
        return shadowed(app, parts, body, asked.map(|asked| asked.heard.chat).map_err(Error::from)).await;
    }
    let Asked { heard, wanted, continues } = match asked {
        Ok(asked) => asked,
        Err(why) => return unread(app, parts, body, why).await,
    };
    // It can be megabytes, and is said in other words now.
    drop(body);
    let parts = &continuing(parts, continues);
    let asked = asked_in_chat(parts, &heard);
    let due = match wanted.within {
        _ if wanted.now => return compacted_now(app, &asked, heard).await,
        Some(threshold) => is_due(app, &heard.chat, &asked.headers, threshold).await?,
        None => false,
    };
    if !due {
        return told_after(app, Dialect::OpenAi, parts, heard, None).await;
    }
    if streams(&heard) {
        return compacted_first(app, &asked, heard).await;
    }
    let text = heard.encoder.compacted();
    let done = compacted(Arc::clone(app), asked.headers, heard.chat.clone(), text, Early::default()).await?;
    told_after(app, Dialect::OpenAi, parts, heard, Some(Compaction::Done(done.content))).await
}

/// Answers `POST /v1/responses/compact`: what people said, and one item that stands for the whole history.
///
/// # Errors
/// As [`responses`] would get.
pub async fn compact_responses(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) || app.config.shadow {
        return pass(app, parts, body).await;
    }
    let Asked { mut heard, continues, .. } = hear_responses(app, &parts.headers, &body).await??;
    drop(body);
    let asked = asked_in_chat(&continuing(parts, continues), &heard);
    let (early, text) = (Early::default(), heard.encoder.compacted());
    let done = compacted(Arc::clone(app), asked.headers, heard.chat.clone(), text, early.clone()).await?;
    let head = head(&http::HeaderMap::new());
    let (id, created) = (head.id.clone(), head.created);
    // The response that a client may go on from is that of the one item.
    let whole = heard.encoder.whole(&head, &said(&done));
    keeper(app, early)(heard.encoder.kept());
    let mut output = listed::of_user(done.messages.iter().map(|raw| &raw[..]), &id);
    output.extend(whole["output"].as_array().into_iter().flatten().cloned());
    let out = json!({"id": whole["id"], "object": "response.compaction", "created_at": created, "output": output,
        "usage": whole["usage"]});
    let mut response = json_reply(StatusCode::OK, &out);
    headers::set(response.headers_mut(), "x-windowsill-conversation", &done.conversation);
    keep_unsaid(app, heard.unsaid, response.headers_mut()).await;
    Ok(response)
}

/// Answers `POST /v1/responses/input_tokens`.
///
/// # Errors
/// As the request itself would get.
pub async fn count_responses(app: &Arc<App>, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    if headers::is_off(&parts.headers, &headers::SWITCH) || app.config.shadow {
        return pass(app, parts, body).await;
    }
    let Asked { heard, continues, .. } = hear_responses(app, &parts.headers, &body).await??;
    let asked = asked_in_chat(&continuing(parts, continues), &heard);
    input_tokens(app, &asked.headers, heard.chat).await
}

/// The head of a request, with the conversation that it names by an id.
fn continuing(parts: &Parts, conversation: Option<String>) -> Parts {
    let mut parts = parts.clone();
    parts.headers.remove(headers::CONTINUES);
    if let Some(id) = conversation.and_then(|id| HeaderValue::try_from(id).ok()) {
        parts.headers.insert(headers::CONTINUES, id);
    }
    parts
}

/// Answers a request that ends in a `compaction_trigger`: with the one item, and nothing else.
async fn compacted_now(app: &Arc<App>, asked: &Parts, mut heard: Heard) -> Result<Response<Body>, Error> {
    let (early, text) = (Early::default(), heard.encoder.compacted());
    let streams = streams(&heard);
    let work = compacted(Arc::clone(app), asked.headers.clone(), heard.chat.clone(), text, early.clone());
    if streams {
        let ahead = async move { (ended(work.await), futures_util::stream::empty().boxed()) };
        return Ok(begun(app, heard, ahead.boxed(), early));
    }
    let done = work.await?;
    let out = heard.encoder.whole(&head(&http::HeaderMap::new()), &said(&done));
    keeper(app, early)(heard.encoder.kept());
    let mut response = json_reply(StatusCode::OK, &out);
    headers::set(response.headers_mut(), "x-windowsill-conversation", &done.conversation);
    keep_unsaid(app, heard.unsaid, response.headers_mut()).await;
    Ok(response)
}

/// Compacts within a stream, then answers in it.
async fn compacted_first(app: &Arc<App>, asked: &Parts, heard: Heard) -> Result<Response<Body>, Error> {
    let (early, text, chat) = (Early::default(), heard.encoder.compacted(), heard.chat.clone());
    let work = compacted(Arc::clone(app), asked.headers.clone(), chat.clone(), text, Early::default());
    let (owned, asked, known) = (Arc::clone(app), asked.clone(), early.clone());
    let ahead = async move {
        match work.await {
            Ok(done) => {
                let said = Said { compaction: Some(Compaction::Done(done.content)), ..Said::default() };
                (said, events(answer(&owned, &asked, chat, &known).await))
            }
            failed => (ended(failed), futures_util::stream::empty().boxed()),
        }
    };
    Ok(begun(app, heard, ahead.boxed(), early))
}

/// A stream that begins before its history is compacted.
fn begun(app: &Arc<App>, heard: Heard, ahead: Ahead, early: Early) -> Response<Body> {
    let mut encoder = heard.encoder;
    let mut begin = encoder.start(&head(&http::HeaderMap::new()));
    begin += &encoder.chunk(&Said { compaction: Some(Compaction::Begun), ..Said::default() });
    let kind = HeaderValue::from_static(encoder.stream_type());
    let mut encoded = EncodedStream::after(ahead, encoder, begin, quiet(app));
    encoded.keeper = Some(keeper(app, early));
    let mut response = Response::new(StreamBody::new(encoded).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    headers::warn(response.headers_mut(), &heard.unsaid.warnings);
    response
}

/// What a reply says of a compaction that it consists of.
fn said(done: &Compacted) -> Said {
    let compaction = Some(Compaction::Done(done.content.clone()));
    Said { compaction, usage: done.usage, finish: Some("stop".into()), ..Said::default() }
}

/// The same, or why there is none.
fn ended(done: Result<Compacted, Error>) -> Said {
    match done {
        Ok(done) => said(&done),
        Err(e) => {
            e.log();
            Said { error: Some(e.openai()), ..Said::default() }
        }
    }
}

/// Whether the client asked for a stream.
fn streams(heard: &Heard) -> bool {
    let text = std::str::from_utf8(&heard.chat).unwrap_or_default();
    Fields::read(text).is_ok_and(|fields| fields.get("stream") == Some("true"))
}
