//! What a server's answer turns out to be by its first words. A status of 200 is no promise: errors come behind it in many
//! shapes, whole replies come where a stream was asked for, and streams where none was. While nothing has been told to the
//! client, an error gets the status that it should have had, and a reply the form that was asked for.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::whole::{LARGEST_BUFFERED, read_up_to};
use crate::proxy::state::headers;
use crate::proxy::{Error, aside};
use crate::upstream::event::{Content, Event, Events, Says};
use crate::upstream::{Reply, overflow};
use crate::wire::json as spelled;
use crate::wire::reply::{self, Collected};

/// Comments that a server sent before its first words, and that are passed on behind the head, at most.
const COMMENTS: usize = 16;

/// So much of an answer that is no reply is repeated to the client, in characters.
const SHOWN: usize = 600;

/// A reply that is what it says: behind a status of 200 there is a reply, or the beginning of one, in the form that was asked
/// for. `streams`: that is a stream; then its first words are waited for, however long the prompt takes.
///
/// # Errors
/// When the server breaks off in a reply that is not streamed.
pub(in crate::proxy) async fn opened(reply: Reply, streams: bool) -> Result<Reply, Error> {
    let encoded = reply.headers.get(header::CONTENT_ENCODING).is_some_and(|e| e != "identity");
    if !reply.status.is_success() || encoded {
        return Ok(reply);
    }
    if streams { Ok(first_words(reply).await) } else { whole(reply).await }
}

/// What the first words of a stream are.
enum First {
    /// The reply has begun, or its end has come.
    Reply,
    /// An error.
    Error(Value),
    /// Nothing that counts yet.
    Nothing,
}

async fn first_words(mut reply: Reply) -> Reply {
    let mut events = std::mem::replace(&mut reply.body, Content::empty()).events();
    let mut held: Vec<Event> = Vec::new();
    loop {
        match events.next().await {
            Some(Ok(event)) if event.says == Says::Done && held.iter().any(is_no_reply) => {
                return refusal(reply, &nothing_said(&held));
            }
            Some(Ok(event)) => {
                let first = first(&event);
                if event.says != Says::Nothing || held.len() < COMMENTS {
                    held.push(event);
                }
                match first {
                    First::Reply => break,
                    First::Error(error) => return refusal(reply, &error),
                    First::Nothing => {}
                }
            }
            Some(Err(why)) => return refusal(reply, &reply::upstream_error("upstream_died", &why)),
            None => return refusal(reply, &nothing_said(&held)),
        }
    }
    let rest: Events = stream::iter(held.into_iter().map(Ok)).chain(events).boxed();
    reply.body = Content::Opened(rest);
    reply.headers.remove(header::CONTENT_LENGTH);
    if !headers::is_event_stream(&reply.headers) {
        reply.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    }
    reply
}

fn first(event: &Event) -> First {
    let value = match &event.says {
        Says::Nothing | Says::Other => return First::Nothing,
        Says::Done => return First::Reply,
        Says::Chunk(value) => value,
    };
    if let Some(error) = reply::error_in(value) {
        return First::Error(error);
    }
    let choices = value.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let says = |c: &Value| reply::says_something(c) || reply::finish_of(c).is_some();
    // Who asks for the progress of a prompt wants it as it comes.
    let told = ["usage", "timings", "prompt_progress"].iter().any(|key| value.get(*key).is_some_and(|v| !v.is_null()));
    if choices.iter().any(says) || told { First::Reply } else { First::Nothing }
}

/// Whether an event says something that belongs to no reply.
fn is_no_reply(event: &Event) -> bool {
    match &event.says {
        Says::Chunk(value) => value.get("choices").is_none_or(|choices| !choices.is_array()),
        Says::Other => event.raw.trim_ascii() != b"data:",
        Says::Done | Says::Nothing => false,
    }
}

/// The error of a stream that ended before it said anything.
fn nothing_said(held: &[Event]) -> Value {
    let words: String = held
        .iter()
        .filter(|event| !event.raw.starts_with(b":"))
        .filter(|event| matches!(event.says, Says::Nothing | Says::Other) || is_no_reply(event))
        .map(|event| String::from_utf8_lossy(&event.raw).into_owned())
        .collect();
    match words.trim() {
        "" => reply::upstream_error(
            "upstream_died",
            "the inference server ended the stream before the reply was complete",
        ),
        words => serde_json::from_str(words).ok().as_ref().and_then(reply::error_in).unwrap_or_else(|| no_reply(words)),
    }
}

fn no_reply(words: &str) -> Value {
    let shown: String = words.chars().take(SHOWN).collect();
    let message = format!("the inference server answered with what is no chat completion: {shown}");
    reply::upstream_error("upstream_unreadable", &message)
}

/// The answer that an error behind a status of 200 should have been.
fn refusal(mut reply: Reply, error: &Value) -> Reply {
    let body = Bytes::from(json!({ "error": error }).to_string());
    reply.status = overflow::status_behind_200(&body);
    with_json(reply, body)
}

fn with_json(mut reply: Reply, body: Bytes) -> Reply {
    reply.headers.remove(header::CONTENT_LENGTH);
    reply.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply.body = Content::whole(body);
    reply
}

/// The same of a reply that was not to be streamed. One that is too large to be held goes on as it comes.
async fn whole(mut reply: Reply) -> Result<Reply, Error> {
    let body = std::mem::replace(&mut reply.body, Content::empty());
    let (bytes, rest) = read_up_to(body, LARGEST_BUFFERED).await?;
    if let Some(rest) = rest {
        reply.body = Content::Bytes(stream::iter([Ok(bytes)]).chain(rest).boxed());
        return Ok(reply);
    }
    let read = aside::once(bytes.len(), || read(&bytes));
    Ok(match read {
        Whole::Reply => as_it_is(reply, bytes),
        Whole::Mended(value) => with_json(reply, Bytes::from(value.to_string())),
        Whole::Error(error) => refusal(reply, &error),
        Whole::Events => {
            let events = Content::whole(bytes.clone()).events();
            match collected(events).await {
                Ok(Some(all)) => with_json(reply, Bytes::from(all.to_string())),
                // Not a word of a reply: what it is, whoever reads it must see.
                Ok(None) => as_it_is(reply, bytes),
                Err(error) => refusal(reply, &error),
            }
        }
    })
}

/// A body that stays as it came, under a type that is true.
fn as_it_is(mut reply: Reply, bytes: Bytes) -> Reply {
    let kind = reply.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    if is_json && (!kind.contains("json") || kind.contains("ndjson")) {
        return with_json(reply, bytes);
    }
    if headers::is_event_stream(&reply.headers) {
        reply.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    }
    reply.body = Content::whole(bytes);
    reply
}

enum Whole {
    Reply,
    /// What was no JSON for a reader that is strict.
    Mended(Value),
    Error(Value),
    /// It may be a stream.
    Events,
}

fn read(bytes: &Bytes) -> Whole {
    let text = String::from_utf8_lossy(bytes);
    let (value, is_strict) = match serde_json::from_str::<Value>(&text) {
        Ok(value) => (Some(value), true),
        Err(_) => (spelled::lenient(&text), false),
    };
    match value {
        Some(value) => match reply::error_in(&value) {
            Some(error) => Whole::Error(error),
            // One chunk alone is a stream that said it all at once.
            None if value.pointer("/choices/0/delta").is_some() && !reply::is_whole(&value) => Whole::Events,
            None if !is_strict => Whole::Mended(value),
            None => Whole::Reply,
        },
        None if looks_like_events(text.trim_start_matches('\u{feff}').trim_start()) => Whole::Events,
        None => Whole::Reply,
    }
}

/// Whether a text begins as server-sent events do, or as JSON documents, one a line.
fn looks_like_events(text: &str) -> bool {
    ["data:", "event:", "id:", "retry:", ":", "{"].iter().any(|start| text.starts_with(start))
}

/// A whole reply, out of a stream; nothing where no chunk came, and an error where it broke off.
async fn collected(mut events: Events) -> Result<Option<Value>, Value> {
    let (mut all, mut ended) = (Collected::default(), false);
    while let Some(event) = events.next().await {
        let says = match event {
            Ok(event) => event.says,
            Err(why) => return Err(reply::upstream_error("upstream_died", &why)),
        };
        match says {
            Says::Chunk(value) => {
                if let Some(error) = reply::error_in(&value) {
                    return Err(error);
                }
                ended |= value.pointer("/choices/0").is_some_and(|c| reply::finish_of(c).is_some());
                all.add(&value);
            }
            Says::Done => ended = true,
            Says::Other | Says::Nothing => {}
        }
    }
    match () {
        () if all.is_empty() => Ok(None),
        () if ended => Ok(Some(all.value())),
        () => Err(reply::upstream_error(
            "upstream_died",
            "the inference server ended the stream before the reply was complete",
        )),
    }
}
