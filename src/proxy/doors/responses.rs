//! OpenAI's Responses API: requests and what they ask of compaction.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::json;

use super::background;
use super::compaction::{Compacted, compacted, is_due};
use super::counts::input_tokens;
use super::dialect::{First, asked_in_chat, head, told_after, unread};
use super::encoded::{Ahead, EncodedStream};
use super::items::{Asked, hear_responses, keep_unsaid, keeper};
use super::pass;
use super::shadow::shadowed;
use super::stored::streamed;
use super::waiting::{answer, events, quiet};
use crate::keys::quota::Entered;
use crate::proxy::state::headers;
use crate::proxy::state::whose::mark_of_key;
use crate::proxy::turn::early::Early;
use crate::proxy::turn::relay::{Body, json_reply};
use crate::proxy::{App, Error};
use crate::wire::dialect::responses::listed;
use crate::wire::dialect::responses::stored::rewritten;
use crate::wire::dialect::said::{Compaction, Said};
use crate::wire::dialect::{Dialect, Heard, Summarized};
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
    let mut asked = match asked {
        Ok(asked) => asked,
        Err(why) => return unread(app, parts, body, why).await,
    };
    let background = asked.wanted.background;
    let streams = streams(&asked.heard);
    if background && !streams {
        // It is told in events here, whatever the client asks for.
        let body = rewritten(&body, None, true).map_err(Error::from)?.into();
        asked = hear_responses(app, &parts.headers, &body).await??;
    }
    // It can be megabytes, and is said in other words now.
    drop(body);
    let parts = continuing(parts, asked.continues.take());
    let head = asked_in_chat(&parts, &asked.heard);
    let due = match asked.wanted.within {
        _ if asked.wanted.now => true,
        Some(threshold) => is_due(app, &asked.heard.chat, &head.headers, threshold).await?,
        None => false,
    };
    if background {
        return in_background(app, &head, asked, due, streams).await;
    }
    match (asked.wanted.now, due) {
        (_, true) if streams => {
            let begun = begun(app, &head, asked, true);
            Ok(begun.response())
        }
        (true, _) => compacted_now(app, &head, asked).await,
        (false, true) => {
            let text = asked.heard.encoder.compacted();
            let chat = asked.heard.chat.clone();
            let done = compacted(Arc::clone(app), head.headers, chat, text, Early::default()).await?;
            let compaction = Some(Compaction::Done(done.content));
            told_after(app, Dialect::OpenAi, &parts, asked.heard, First { compaction, joins: asked.joins }).await
        }
        (false, false) => {
            let first = First { joins: asked.joins, ..First::default() };
            told_after(app, Dialect::OpenAi, &parts, asked.heard, first).await
        }
    }
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
    keeper(app, early, None)(heard.encoder.kept());
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
async fn compacted_now(app: &Arc<App>, asked: &Parts, of: Asked) -> Result<Response<Body>, Error> {
    let Asked { mut heard, joins, .. } = of;
    let (early, text) = (Early::default(), heard.encoder.compacted());
    let chat = heard.chat.clone();
    let done = compacted(Arc::clone(app), asked.headers.clone(), chat, text, early.clone()).await?;
    let out = heard.encoder.whole(&head(&http::HeaderMap::new()), &said(&done));
    keeper(app, early, joins)(heard.encoder.kept());
    let mut response = json_reply(StatusCode::OK, &out);
    headers::set(response.headers_mut(), "x-windowsill-conversation", &done.conversation);
    keep_unsaid(app, heard.unsaid, response.headers_mut()).await;
    Ok(response)
}

/// A reply whose stream begins before its history is compacted, or its request is read.
struct Begun {
    id: String,
    early: Early,
    encoded: EncodedStream,
    kind: HeaderValue,
    warnings: Vec<String>,
}

impl Begun {
    fn response(self) -> Response<Body> {
        let mut response = Response::new(StreamBody::new(self.encoded).boxed_unsync());
        response.headers_mut().insert(header::CONTENT_TYPE, self.kind);
        headers::warn(response.headers_mut(), &self.warnings);
        response
    }
}

/// Begins a stream. `compacts`: the history is compacted first, and that may be all.
fn begun(app: &Arc<App>, asked: &Parts, of: Asked, compacts: bool) -> Begun {
    let Asked { heard, wanted, joins, .. } = of;
    let mut encoder = heard.encoder;
    let head = head(&http::HeaderMap::new());
    let (id, early, text) = (format!("resp_{}", head.id), Early::default(), encoder.compacted());
    let mut begin = encoder.start(&head);
    if compacts {
        begin += &encoder.chunk(&Said { compaction: Some(Compaction::Begun), ..Said::default() });
    }
    let ahead =
        ahead(Arc::clone(app), asked.clone(), heard.chat, early.clone(), compacts.then_some((text, wanted.now)));
    let kind = HeaderValue::from_static(encoder.stream_type());
    let mut encoded = EncodedStream::after(ahead, encoder, begin, quiet(app));
    encoded.keeper = Some(keeper(app, early.clone(), joins));
    Begun { id, early, encoded, kind, warnings: heard.unsaid.warnings }
}

/// Compacts a history where that is due, and answers, unless it was all that was asked.
fn ahead(app: Arc<App>, asked: Parts, chat: Bytes, early: Early, compacts: Option<(Summarized, bool)>) -> Ahead {
    async move {
        let Some((text, only)) = compacts else {
            return (Said::default(), events(answer(&app, &asked, chat, &early).await));
        };
        let known = if only { early.clone() } else { Early::default() };
        match compacted(Arc::clone(&app), asked.headers.clone(), chat.clone(), text, known).await {
            Ok(done) if !only => {
                let said = Said { compaction: Some(Compaction::Done(done.content)), ..Said::default() };
                (said, events(answer(&app, &asked, chat, &early).await))
            }
            done => (ended(done), futures_util::stream::empty().boxed()),
        }
    }
    .boxed()
}

/// Makes the reply in the background, and says so.
async fn in_background(
    app: &Arc<App>,
    head: &Parts,
    asked: Asked,
    compacts: bool,
    streams: bool,
) -> Result<Response<Body>, Error> {
    let Begun { id, early, encoded, warnings, .. } = begun(app, head, asked, compacts);
    // The request is open until its work has ended, not until it is told of.
    let place = head.extensions.get::<Arc<Entered>>().cloned();
    let encoded = encoded.inspect(move |_| {
        let _ = &place;
    });
    let running = background::begin(app, (id, mark_of_key(&head.headers)), early, encoded).await?;
    let mut response = match streams {
        true => streamed(&running, None)?,
        false => json_reply(StatusCode::OK, &running.response()),
    };
    headers::warn(response.headers_mut(), &warnings);
    Ok(response)
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
