//! A streamed reply on its way to the client. It goes on event by event, as its bytes came, while what it says is taken in; and here
//! alone is known how it ended.

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};

use super::account::Closing;
use super::recall::Answering;
use super::relay::End;
use super::replied::Keeper;
use super::whole::LARGEST_BUFFERED;
use crate::store::LastReply;
use crate::upstream::event::{Event, Events, Says};
use crate::usage::Reported;
use crate::wire::reply::{self, Collected};

/// Takes in what a reply says, what the server reports of it, and how it ended.
pub(in crate::proxy) struct Books {
    reported: Reported,
    said: Collected,
    /// Bytes of events that may still be taken in.
    room: usize,
    keeper: Option<Keeper>,
    done: Option<Box<Done>>,
}

/// Takes in how a reply ended, and what it said where that is not on record yet.
type Done = dyn FnOnce(Reported, End, Option<LastReply>) -> Option<Closing> + Send;

impl Books {
    /// `done` is called once: at the end, at an error, or when the client goes away.
    pub(super) fn new(
        keeper: Option<Keeper>,
        done: impl FnOnce(Reported, End, Option<LastReply>) -> Option<Closing> + Send + 'static,
    ) -> Books {
        let (reported, said) = (Reported::default(), Collected::default());
        Books { reported, said, room: LARGEST_BUFFERED, keeper, done: Some(Box::new(done)) }
    }

    fn hear(&mut self, event: &Event) {
        let Says::Chunk(chunk) = &event.says else { return };
        self.room = self.room.saturating_sub(event.raw.len());
        if self.room > 0 && self.keeper.is_some() {
            self.said.add(chunk);
        }
    }

    fn finish(&mut self, end: End) -> Option<Closing> {
        let done = self.done.take()?;
        let reply = self.keeper.take().and_then(|mut keeper| keeper.reply(self.said.said()));
        done(std::mem::take(&mut self.reported), end, reply)
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        if let Some(closing) = self.finish(End::Canceled) {
            closing.later();
        }
    }
}

/// Who takes a streamed reply in as it passes.
pub(in crate::proxy) enum Taker {
    /// Its figures alone are noted.
    Books(Box<Books>),
    /// Calls of our tools are answered, over several rounds.
    Answering(Box<Answering>),
}

impl Taker {
    fn reported(&mut self) -> &mut Reported {
        match self {
            Taker::Books(books) => &mut books.reported,
            Taker::Answering(answering) => &mut answering.reported,
        }
    }

    async fn event(&mut self, event: Event, out: &mut Vec<Event>) {
        self.reported().hear(&event.says);
        match self {
            Taker::Books(books) => {
                books.hear(&event);
                out.push(event);
            }
            Taker::Answering(answering) => answering.event(event, out).await,
        }
    }

    /// Puts what was said on record. A client may be back, or never be, as soon as it sees the end.
    async fn keep(&mut self) {
        match self {
            Taker::Books(books) => {
                let Books { keeper, said, .. } = &mut **books;
                if let Some(keeper) = keeper {
                    keeper.keep(said.said()).await;
                }
            }
            Taker::Answering(answering) => answering.keep().await,
        }
    }

    async fn finish(&mut self, end: End) {
        let closing = match self {
            Taker::Books(books) => books.finish(end),
            Taker::Answering(answering) => answering.finish(end),
        };
        if let Some(closing) = closing {
            closing.now().await;
        }
    }
}

/// A streamed reply: each event goes on as it comes, but for what the taker changes.
struct Streaming {
    source: Events,
    taker: Taker,
    over: bool,
}

/// The events that the client gets of a streamed reply.
pub(in crate::proxy) fn streamed(source: Events, taker: Taker) -> BoxStream<'static, Event> {
    let start = Streaming { source, taker, over: false };
    let pieces = stream::unfold(start, async |mut s| s.next().await.map(|events| (events, s)));
    pieces.flat_map(stream::iter).boxed()
}

impl Streaming {
    /// The next events for the client; `None` at the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        while !self.over {
            let mut out = Vec::new();
            match self.source.next().await {
                Some(Ok(event)) => self.heard(event, &mut out).await,
                // What was said to its end is whole, whatever becomes of the connection.
                Some(Err(_)) if self.taker.reported().done => self.ended(&mut out).await,
                Some(Err(why)) => self.broken(&why, &mut out).await,
                None => self.ended(&mut out).await,
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }

    /// Nothing follows an error: what it ends must not look complete.
    async fn heard(&mut self, event: Event, out: &mut Vec<Event>) {
        let failed = matches!(&event.says, Says::Chunk(value) if reply::error_in(value).is_some());
        if let Taker::Answering(answering) = &mut self.taker
            && failed
        {
            answering.let_go(out);
        }
        self.taker.event(event, out).await;
        if failed {
            return self.end(End::Failed("the server reported an error".into())).await;
        }
        if self.taker.reported().complete() {
            self.taker.keep().await;
        }
    }

    /// The server has nothing more to say: the reply is over, or its next round begins.
    async fn ended(&mut self, out: &mut Vec<Event>) {
        if let Taker::Answering(answering) = &mut self.taker
            && !answering.goes_on_now()
        {
            answering.let_go(out);
        }
        let reported = self.taker.reported();
        if reported.failed {
            return self.end(End::Failed("the server reported an error".into())).await;
        }
        if !reported.complete() {
            return self.broken("the inference server ended the stream before the reply was complete", out).await;
        }
        match &mut self.taker {
            Taker::Answering(answering) if answering.goes_on_now() => match answering.next_round().await {
                Ok(reply) => self.source = reply.body.events(),
                Err(why) => self.broken(&why, out).await,
            },
            Taker::Answering(answering) => {
                answering.remember().await;
                self.end(End::Complete).await;
            }
            Taker::Books(_) => self.end(End::Complete).await,
        }
    }

    async fn end(&mut self, end: End) {
        self.over = true;
        self.taker.finish(end).await;
    }

    /// Ends a stream that must not look complete with an event that says so.
    async fn broken(&mut self, why: &str, out: &mut Vec<Event>) {
        if let Taker::Answering(answering) = &mut self.taker {
            answering.let_go(out);
        }
        self.end(End::Failed(why.to_owned())).await;
        out.push(Event::error(reply::upstream_error("upstream_died", why)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;

    use super::*;
    use crate::upstream::event::Content;

    const STREAM: &str = ": ping\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":3,\"prompt_n\":4}}\n\ndata: [DONE]\n\n";

    fn run(chunks: Vec<Bytes>) -> (Vec<u8>, Reported, End) {
        let seen = Arc::new(Mutex::new(None));
        let keep = seen.clone();
        let source = Content::Bytes(stream::iter(chunks.into_iter().map(Ok)).boxed());
        let books = Books::new(None, move |r, e, _| {
            *keep.lock().unwrap() = Some((r, e));
            None
        });
        let all = streamed(source.events(), Taker::Books(Box::new(books))).collect::<Vec<Event>>();
        let events = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(all);
        let (reported, end) = seen.lock().unwrap().take().unwrap();
        (events.iter().flat_map(|e| e.raw.to_vec()).collect(), reported, end)
    }

    #[test]
    fn arrives_equal_at_every_split() {
        for at in 0..STREAM.len() {
            let (a, b) = STREAM.as_bytes().split_at(at);
            let (bytes, reported, end) = run(vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)]);
            assert_eq!(bytes, STREAM.as_bytes(), "cut at {at}");
            assert_eq!((reported.prompt, reported.text.as_str(), end), (Some(7), "hé", End::Complete), "cut at {at}");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_never_looks_complete() {
        let whole = STREAM.find("data: {\"choices\":[{\"delta\":{}").unwrap();
        for at in [0, 5, 40, whole] {
            let (bytes, _, end) = run(vec![Bytes::copy_from_slice(&STREAM.as_bytes()[..at])]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let whole = STREAM[..at].rfind("\n\n").map_or(0, |blank| blank + 2);
            assert!(text.starts_with(&STREAM[..whole]), "{text}");
            assert!(text.ends_with("}}\n\n") && text.contains("upstream_died") && !text.contains("[DONE]"), "{text}");
            assert!(matches!(end, End::Failed(_)));
        }
    }
}
