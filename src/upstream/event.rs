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
use super::sse::{Block, Parser};

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

    fn read(block: Block) -> Event {
        let says = match &block.data {
            None => Says::Nothing,
            Some(data) => match serde_json::from_str(&String::from_utf8_lossy(data)) {
                Ok(value) => Says::Chunk(value),
                Err(_) if data.trim_ascii() == b"[DONE]" => Says::Done,
                Err(_) => Says::Other,
            },
        };
        Event { raw: block.raw, says }
    }
}

/// The body of a reply: bytes as they come, or events where the server's own are put into other words.
pub enum Content {
    /// Bytes.
    Bytes(BoxStream<'static, Result<Bytes, Error>>),
    /// Events.
    Events(BoxStream<'static, Result<Event, Error>>),
}

impl Content {
    /// A body that is there already.
    pub(super) fn whole(body: Bytes) -> Content {
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
            Content::Events(events) => events.map(|event| event.map_err(|e| broke_off(&e))).boxed(),
            Content::Bytes(body) => read(body),
        }
    }
}

impl Stream for Content {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Content::Bytes(body) => body.as_mut().poll_next(cx),
            Content::Events(events) => events.as_mut().poll_next(cx).map(|next| next.map(|e| e.map(|event| event.raw))),
        }
    }
}

/// Events, and at the end of those that break off, why.
pub type Events = BoxStream<'static, Result<Event, String>>;

fn read(body: BoxStream<'static, Result<Bytes, Error>>) -> Events {
    let start = Some((body, Parser::default(), VecDeque::new()));
    stream::unfold(start, async |state| {
        let (mut body, mut parser, mut ready) = state?;
        loop {
            if let Some(block) = ready.pop_front() {
                return Some((Ok(Event::read(block)), Some((body, parser, ready))));
            }
            match body.next().await {
                Some(Ok(bytes)) => match parser.push(&bytes) {
                    Ok(blocks) => ready.extend(blocks),
                    Err(e) => return Some((Err(format!("the inference server sent what cannot be read: {e}")), None)),
                },
                Some(Err(e)) => return Some((Err(broke_off(&e)), None)),
                // Some servers forget the last blank line.
                None => return parser.finish().map(|block| (Ok(Event::read(block)), None)),
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
            assert_eq!(events.iter().flat_map(|e| e.raw.to_vec()).collect::<Vec<_>>(), stream, "cut at {at}");
        }
        let own = Event::chunk(serde_json::json!({"a": 1}));
        assert_eq!((&own.raw[..], own.says), (&b"data: {\"a\":1}\n\n"[..], says[1].clone()));
    }
}
