//! A stream of chat completion chunks, said in a client's words as it comes.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http_body::Frame;
use tokio::time::{Instant, Sleep};

use super::items::Keeper;
use crate::upstream::event::{Event, Says};
use crate::upstream::unique::unix_seconds;
use crate::wire::dialect::said::Said;
use crate::wire::dialect::{Managed, ReplyEncoder};

/// What is done before a reply, and what comes after it.
pub(super) type Ahead = BoxFuture<'static, (Said, BoxStream<'static, Event>)>;
/// What was done with the history of a request, once that is known.
pub(super) type Managing = Box<dyn FnOnce() -> Option<Managed> + Send>;

/// A stream of chat completion chunks, said in a client's words as it comes.
pub(super) struct EncodedStream {
    /// What is waited for before the events.
    ahead: Option<Ahead>,
    events: BoxStream<'static, Event>,
    encoder: Box<dyn ReplyEncoder>,
    /// Said, and not yet sent.
    ready: VecDeque<Bytes>,
    /// When to say something that means nothing.
    quiet: Pin<Box<Sleep>>,
    /// How long it may be silent.
    patience: Duration,
    /// When something was sent last.
    spoke: Option<Instant>,
    /// Tells what was done with the history, once that is known.
    pub(super) managing: Option<Managing>,
    /// Takes what the client may refer to later.
    pub(super) keeper: Option<Keeper>,
    over: bool,
}

impl EncodedStream {
    /// A reply to which something is done first.
    pub(super) fn after(
        ahead: Ahead,
        encoder: Box<dyn ReplyEncoder>,
        begin: String,
        patience: Duration,
    ) -> EncodedStream {
        let events = futures_util::stream::empty().boxed();
        EncodedStream { ahead: Some(ahead), ..EncodedStream::new(events, encoder, begin, patience) }
    }

    /// A reply whose events come now; `begin` is said before them.
    pub(super) fn new(
        events: BoxStream<'static, Event>,
        encoder: Box<dyn ReplyEncoder>,
        begin: String,
        patience: Duration,
    ) -> EncodedStream {
        let quiet = Box::pin(tokio::time::sleep(patience));
        let ready = VecDeque::new();
        let mut encoded = EncodedStream {
            ahead: None,
            events,
            encoder,
            ready,
            quiet,
            patience,
            spoke: None,
            managing: None,
            keeper: None,
            over: false,
        };
        encoded.say(begin);
        encoded
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() {
            self.ready.push_back(text.into());
        }
    }

    /// Says something that means nothing.
    fn ping(&mut self) {
        self.quiet.as_mut().reset(Instant::now() + self.patience);
        let ping = self.encoder.ping();
        self.say(ping);
    }

    fn hear(&mut self, event: Event) {
        match event.says {
            Says::Chunk(value) => {
                self.manage();
                if let Some(said) = Said::of(&value) {
                    let text = self.encoder.chunk(&said);
                    self.say(text);
                }
            }
            // A ping keeps the connection alive on this side too. Some servers send very many.
            Says::Nothing if event.raw.starts_with(b":") => {
                let silent = self.spoke.map_or(self.patience, |at| at.elapsed());
                if self.ready.is_empty() && silent >= self.patience / 2 {
                    self.ping();
                }
            }
            Says::Nothing | Says::Done | Says::Other => {}
        }
    }

    /// Says what was done with the history before anything else.
    fn manage(&mut self) {
        if let Some(managed) = self.managing.take().and_then(|told| told()) {
            self.encoder.managed(&managed);
        }
    }

    fn end(&mut self) {
        self.manage();
        self.encoder.at(unix_seconds());
        let text = self.encoder.end();
        if let Some(keep) = self.keeper.take() {
            keep(self.encoder.kept());
        }
        self.say(text);
        self.over = true;
    }
}

impl Stream for EncodedStream {
    type Item = Result<Frame<Bytes>, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                let now = Instant::now();
                self.spoke = Some(now);
                let again = now + self.patience;
                self.quiet.as_mut().reset(again);
                return Poll::Ready(Some(Ok(Frame::data(text))));
            }
            if self.over {
                return Poll::Ready(None);
            }
            match self.ahead.as_mut().map(|ahead| ahead.as_mut().poll(cx)) {
                Some(Poll::Ready((said, events))) => {
                    (self.ahead, self.events) = (None, events);
                    let text = self.encoder.chunk(&said);
                    self.say(text);
                    continue;
                }
                Some(Poll::Pending) if self.quiet.as_mut().poll(cx).is_ready() => {
                    self.ping();
                    continue;
                }
                Some(Poll::Pending) => return Poll::Pending,
                None => {}
            }
            match self.events.as_mut().poll_next(cx) {
                Poll::Pending if self.quiet.as_mut().poll(cx).is_ready() => self.ping(),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => self.hear(event),
                Poll::Ready(None) => self.end(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::dialect::{Head, anthropic};

    #[test]
    fn a_stream_that_is_silent_for_long_is_pinged() {
        let asked = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
        let mut encoder = anthropic::request(asked).unwrap().encoder;
        let begin = encoder.start(&Head { id: "x".into(), created: 0, prompt_tokens: None, window: None });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let never = futures_util::stream::pending().boxed();
            let mut encoded = EncodedStream::new(never, encoder, begin, Duration::from_millis(1));
            let mut said = String::new();
            for _ in 0..4 {
                let data = encoded.next().await.unwrap().unwrap().into_data().unwrap();
                said.push_str(&String::from_utf8_lossy(&data));
            }
            assert_eq!(said.matches("event: ping").count(), 4, "{said}");
            assert!(said.starts_with("event: message_start") && !said.contains("message_stop"), "{said}");
        });
    }
}
