//! The reply to the client, byte for byte as it arrives, while a copy is read for its figures.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};

use crate::upstream::{self, sse};
use crate::usage::Reported;

/// The body of every reply.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that streams through and is not read.
pub fn through(body: Pin<Box<dyn Stream<Item = Result<Bytes, upstream::Error>> + Send>>) -> Body {
    let frames = body.map(|chunk| chunk.map(Frame::data).map_err(io::Error::other));
    StreamBody::new(frames).boxed_unsync()
}

/// A server-sent-events body that streams through while `done` waits for what it says. `done` is called once: at the
/// end, at an error, or when the client goes away.
pub fn tapped<F>(body: Pin<Box<dyn Stream<Item = Result<Bytes, upstream::Error>> + Send>>, done: F) -> Body
where
    F: FnOnce(Reported, End) + Send + 'static,
{
    let tap = Tap {
        body,
        parser: Some(sse::Parser::new(sse::BLOCK_LIMIT)),
        reported: Reported::default(),
        done: Some(Box::new(done)),
        over: false,
    };
    StreamBody::new(tap).boxed_unsync()
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Complete,
    /// The server broke off, or said so itself.
    Failed(String),
    /// The client went away.
    Canceled,
}

struct Tap {
    body: Pin<Box<dyn Stream<Item = Result<Bytes, upstream::Error>> + Send>>,
    /// `None` once the stream held something that cannot be read; it is relayed all the same.
    parser: Option<sse::Parser>,
    reported: Reported,
    done: Option<Done>,
    over: bool,
}

type Done = Box<dyn FnOnce(Reported, End) + Send>;

impl Tap {
    fn listen(&mut self, chunk: &[u8]) {
        let Some(parser) = &mut self.parser else { return };
        match parser.push(chunk) {
            Ok(blocks) => {
                for data in blocks.into_iter().filter_map(|b| b.data) {
                    self.reported.read(&String::from_utf8_lossy(&data));
                }
            }
            Err(_) => self.parser = None,
        }
    }

    fn finish(&mut self, end: End) {
        self.over = true;
        if let Some(done) = self.done.take() {
            done(std::mem::take(&mut self.reported), end);
        }
    }

    /// The event that ends a stream which must not look complete.
    fn broken(&mut self, why: &str) -> Bytes {
        self.finish(End::Failed(why.to_owned()));
        let error = serde_json::json!({"error": {"message": why, "type": "upstream_error", "param": null, "code": "upstream_died"}});
        // A blank line first: the server may have stopped in the middle of an event.
        Bytes::from(format!("\n\ndata: {error}\n\n"))
    }
}

impl Stream for Tap {
    type Item = Result<Frame<Bytes>, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        match self.body.as_mut().poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => {
                self.listen(&chunk);
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Poll::Ready(Some(Err(e))) => {
                let event = self.broken(&format!("the inference server broke off in the middle of the reply: {e}"));
                Poll::Ready(Some(Ok(Frame::data(event))))
            }
            Poll::Ready(None) => {
                if let Some(data) = self.parser.as_mut().and_then(sse::Parser::finish).and_then(|b| b.data) {
                    self.reported.read(&String::from_utf8_lossy(&data));
                }
                if self.parser.is_none() || self.reported.complete() {
                    self.finish(End::Complete);
                    return Poll::Ready(None);
                }
                if self.reported.failed {
                    self.finish(End::Failed("the server reported an error".into()));
                    return Poll::Ready(None);
                }
                let event = self.broken("the inference server ended the stream before the reply was complete");
                Poll::Ready(Some(Ok(Frame::data(event))))
            }
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if !self.over {
            self.finish(End::Canceled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const STREAM: &str = ": ping\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":3,\"prompt_n\":4}}\n\ndata: [DONE]\n\n";

    fn run(chunks: Vec<Bytes>) -> (Vec<u8>, Reported, End) {
        let seen = Arc::new(Mutex::new(None));
        let keep = seen.clone();
        let source = futures_util::stream::iter(chunks.into_iter().map(Ok)).boxed();
        let body = tapped(source, move |r, e| *keep.lock().unwrap() = Some((r, e)));
        let collect = body.collect();
        let bytes =
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(collect).unwrap().to_bytes();
        let (reported, end) = seen.lock().unwrap().take().unwrap();
        (bytes.to_vec(), reported, end)
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
            assert!(text.starts_with(&*String::from_utf8_lossy(&STREAM.as_bytes()[..at])) || at == 40);
            assert!(
                text.trim_end().ends_with('}') && text.contains("upstream_died") && !text.contains("[DONE]"),
                "{text}"
            );
            assert!(matches!(end, End::Failed(_)));
        }
    }
}
