//! A streamed reply as events: the bytes of each, and what they say, parsed once. Who comes after reads no bytes again, and
//! passes on those of what is not touched.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;

use super::error::Error;
use super::ndjson::{Documents, Lines, TooLong};
use super::order::Order;
use super::sse::{Block, Parser};
use crate::wire::{json, reply};

/// One event of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its bytes, with the blank line that ends them.
    pub raw: Bytes,
    /// What they say.
    pub says: Says,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq)]
pub enum Says {
    /// A chunk of the reply, or an error.
    Chunk(Value),
    /// `[DONE]`.
    Done,
    /// What is no JSON.
    Other,
    /// Nothing: a comment that keeps the connection alive.
    Nothing,
}

impl Event {
    /// A chunk of our own.
    pub fn chunk(value: Value) -> Event {
        Event { raw: Bytes::from(format!("data: {value}\n\n")), says: Says::Chunk(value) }
    }

    /// The last event of a reply.
    pub fn done() -> Event {
        Event { raw: Bytes::from_static(b"data: [DONE]\n\n"), says: Says::Done }
    }

    /// What a block says, and each line of it that is JSON without being data.
    fn read(block: Block) -> Vec<Event> {
        let named_error = block
            .event
            .as_deref()
            .is_some_and(|event| [&b"error"[..], b"exception"].iter().any(|name| event.eq_ignore_ascii_case(name)));
        let bare: Vec<Event> = block.bare.iter().filter_map(|line| Event::bare(line)).collect();
        let Some(data) = &block.data else {
            return match bare.is_empty() {
                true => vec![Event { raw: block.raw, says: Says::Nothing }],
                false => bare,
            };
        };
        let text = String::from_utf8_lossy(data);
        // Half of an emoji stays as it came: the client has the other half with the next event.
        let (read, is_strict) = match serde_json::from_str::<Value>(&text).or_else(|_| json::value(&text)) {
            Ok(value) => (Some(value), true),
            Err(_) => (json::lenient(&text), false),
        };
        let event = match read {
            Some(value) if named_error && !reply::is_plain(&value) => Event::error(reply::error_named(&text)),
            Some(value) if value.is_object() || value.is_array() => match is_strict {
                true => Event { raw: block.raw, says: Says::Chunk(value) },
                // Whoever reads it gets JSON.
                false => Event::chunk(value),
            },
            Some(_) => Event { raw: block.raw, says: Says::Other },
            None if data.trim_ascii() == b"[DONE]" => Event { raw: block.raw, says: Says::Done },
            None if named_error => Event::error(reply::error_named(&text)),
            None => Event { raw: block.raw, says: Says::Other },
        };
        let event = match (event.says, Event::several(&text)) {
            (Says::Other, Some(several)) => several,
            (says, _) => vec![Event { raw: event.raw, says }],
        };
        event.into_iter().chain(bare).collect()
    }

    /// Lines of data that are JSON each for itself, where a server forgot what parts two events.
    fn several(text: &str) -> Option<Vec<Event>> {
        let each = || text.lines().map(|line| json::lenient(line).filter(Value::is_object));
        (text.lines().nth(1).is_some() && each().all(|value| value.is_some()))
            .then(|| each().flatten().map(Event::chunk).collect())
    }

    /// JSON that came without the framing of an event.
    fn bare(document: &[u8]) -> Option<Event> {
        let value = json::lenient(&String::from_utf8_lossy(document))?;
        value.is_object().then(|| Event::chunk(value))
    }

    /// An event that says an error, given as OpenAI's `error`.
    pub fn error(error: Value) -> Event {
        Event::chunk(serde_json::json!({ "error": error }))
    }
}

/// The body of a reply: bytes as they come, or events where the server's own are put into other words.
pub enum Content {
    /// Bytes.
    Bytes(BoxStream<'static, Result<Bytes, Error>>),
    /// Events.
    Events(BoxStream<'static, Result<Event, Error>>),
    /// Events that were read ahead, and those behind them.
    Opened(Events),
}

impl Content {
    /// A body that is there already.
    pub fn whole(body: Bytes) -> Content {
        Content::Bytes(stream::once(async { Ok(body) }).boxed())
    }

    /// Nothing.
    pub fn empty() -> Content {
        Content::Bytes(stream::empty().boxed())
    }

    /// The events of a stream. `Err` is the last item, and says why there are no more: the server broke off, or sent what
    /// cannot be read.
    pub fn events(self) -> Events {
        match self {
            Content::Opened(events) => events,
            Content::Events(events) => ordered(events.map(|event| event.map_err(|e| broke_off(&e))).boxed()),
            Content::Bytes(body) => ordered(read(body)),
        }
    }
}

impl Stream for Content {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Content::Bytes(body) => body.as_mut().poll_next(cx),
            Content::Events(events) => events.as_mut().poll_next(cx).map(|next| next.map(|e| e.map(|event| event.raw))),
            Content::Opened(events) => events
                .as_mut()
                .poll_next(cx)
                .map(|next| next.map(|e| e.map(|event| event.raw).map_err(|what| Error::Stream { what }))),
        }
    }
}

/// Events, and at the end of those that break off, why.
pub type Events = BoxStream<'static, Result<Event, String>>;

/// The same events, in order: see [`Order`].
fn ordered(events: Events) -> Events {
    let start = Some((events, Order::default()));
    let pieces = stream::unfold(start, async |state| {
        let (mut events, mut order) = state?;
        let mut out = Vec::new();
        match events.next().await {
            Some(Ok(event)) => {
                order.event(event, &mut out);
                Some((out.into_iter().map(Ok).collect::<Vec<_>>(), Some((events, order))))
            }
            Some(Err(why)) => {
                order.end(true, &mut out);
                Some((out.into_iter().map(Ok).chain([Err(why)]).collect(), None))
            }
            None => {
                order.end(false, &mut out);
                Some((out.into_iter().map(Ok).collect(), None))
            }
        }
    });
    pieces.flat_map(stream::iter).boxed()
}

/// Cuts bytes into events: server-sent ones, or JSON documents where the body begins with one.
enum Cutter {
    /// Nothing but white space came yet.
    Unknown(Vec<u8>),
    Events(Parser),
    Documents(Lines, Documents),
}

impl Cutter {
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        if let Cutter::Unknown(held) = self {
            held.extend_from_slice(bytes);
            let start = held.strip_prefix(b"\xef\xbb\xbf").unwrap_or(held).trim_ascii_start().first().copied();
            let first = match start {
                None if held.len() < 64 => return Ok(Vec::new()),
                Some(b'{') => Cutter::Documents(Lines::default(), Documents::default()),
                _ => Cutter::Events(Parser::default()),
            };
            let held = std::mem::take(held);
            *self = first;
            // A byte order mark is no part of what follows (WHATWG HTML, 9.2.5).
            return self.push(held.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&held));
        }
        match self {
            Cutter::Events(parser) => Ok(parser.push(bytes)?.into_iter().flat_map(Event::read).collect()),
            Cutter::Documents(lines, documents) => {
                let lines = lines.push(bytes)?;
                Ok(lines.iter().filter_map(|line| documents.line(line)).filter_map(|d| Event::bare(&d)).collect())
            }
            Cutter::Unknown(_) => Ok(Vec::new()),
        }
    }

    /// What is left when the body has ended. Some servers forget the last blank line; an event that is not whole is none.
    fn finish(&mut self) -> Vec<Event> {
        match self {
            Cutter::Unknown(held) if held.is_empty() => Vec::new(),
            Cutter::Unknown(held) => vec![Event { raw: std::mem::take(held).into(), says: Says::Nothing }],
            Cutter::Events(parser) => {
                let Some(block) = parser.finish() else { return Vec::new() };
                let ended = [&block.raw[..], b"\n\n"].concat();
                let mut all = Event::read(block);
                all.retain(|event| event.says != Says::Other);
                for event in all.iter_mut().filter(|e| !e.raw.ends_with(b"\n\n")) {
                    event.raw = ended.clone().into();
                }
                all
            }
            Cutter::Documents(lines, documents) => {
                let last = lines.finish().and_then(|line| documents.line(&line));
                last.or_else(|| documents.finish()).iter().filter_map(|d| Event::bare(d)).collect()
            }
        }
    }
}

fn read(body: BoxStream<'static, Result<Bytes, Error>>) -> Events {
    let start = Some((body, Cutter::Unknown(Vec::new()), VecDeque::new()));
    stream::unfold(start, async |state| {
        let (mut body, mut cutter, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((Ok(event), Some((body, cutter, ready))));
            }
            match body.next().await {
                Some(Ok(bytes)) => match cutter.push(&bytes) {
                    Ok(events) => ready.extend(events),
                    Err(e) => return Some((Err(format!("the inference server sent what cannot be read: {e}")), None)),
                },
                Some(Err(e)) => return Some((Err(broke_off(&e)), None)),
                None => {
                    ready.extend(cutter.finish());
                    // Nothing more comes.
                    body = stream::empty().boxed();
                    cutter = Cutter::Unknown(Vec::new());
                    let event = ready.pop_front()?;
                    return Some((Ok(event), Some((body, cutter, ready))));
                }
            }
        }
    })
    .boxed()
}

fn broke_off(e: &Error) -> String {
    format!("the inference server broke off in the middle of the reply: {e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&'static [u8]]) -> Vec<Result<Event, String>> {
        let body = Content::Bytes(stream::iter(parts.to_vec()).map(|part| Ok(Bytes::from_static(part))).boxed());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(body.events().collect())
    }

    /// At every split the same events come, which have all the bytes; one without its blank line counts.
    #[test]
    fn events_say_what_their_bytes_say() {
        let stream: &[u8] = b": ping\n\ndata: {\"a\":1}\r\n\r\ndata: no json\n\ndata: [DONE]";
        let says = [Says::Nothing, Says::Chunk(serde_json::json!({"a": 1})), Says::Other, Says::Done];
        for at in 0..=stream.len() {
            let (a, b) = stream.split_at(at);
            let events: Vec<Event> = all(&[a, b]).into_iter().map(Result::unwrap).collect();
            assert_eq!(events.iter().map(|e| e.says.clone()).collect::<Vec<_>>(), says, "cut at {at}");
            let bytes: Vec<u8> = events.iter().flat_map(|e| e.raw.to_vec()).collect();
            assert_eq!(bytes, [stream, b"\n\n"].concat(), "cut at {at}: what lacks its blank line gets it");
        }
        let own = Event::chunk(serde_json::json!({"a": 1}));
        assert_eq!((&own.raw[..], own.says), (&b"data: {\"a\":1}\n\n"[..], says[1].clone()));
    }

    /// JSON that is none for a strict reader is said so that all can read it.
    #[test]
    fn json_that_is_nearly_some_is_mended() {
        let stream: &[u8] =
            b"\xef\xbb\xbfdata: {\"a\":\"\\ud83d\",\"b\":NaN}\n\nerror: {\"code\":500,\"message\":\"boom\"}\n\n";
        let says: Vec<Says> = all(&[stream]).into_iter().map(|event| event.unwrap().says).collect();
        let Says::Chunk(error) = &says[1] else { panic!("{says:?}") };
        assert_eq!(says[0], Says::Chunk(serde_json::json!({"a": "\u{fffd}", "b": null})));
        assert_eq!(error["error"]["message"], "boom");
    }
}
