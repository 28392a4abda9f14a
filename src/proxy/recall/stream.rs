//! A streamed reply over its rounds: each event goes on as it comes, byte for byte, but for what is ours.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};

use super::{Answering, Stopped};
use crate::proxy::relay::{Body, End};
use crate::upstream::{self, sse};

type Source = BoxStream<'static, Result<Bytes, upstream::Error>>;

/// The stream that the client gets.
struct Streaming {
    answering: Answering,
    source: Source,
    parser: sse::Parser,
    over: bool,
}

/// A reply whose calls of our tool are answered on the way.
pub(in crate::proxy) fn streamed(source: Source, answering: Answering) -> Body {
    let start = Streaming { answering, source, parser: sse::Parser::new(sse::BLOCK_LIMIT), over: false };
    let chunks = stream::unfold(start, |mut s| async move {
        let bytes = s.next().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(bytes)), s))
    });
    StreamBody::new(chunks).boxed_unsync()
}

impl Streaming {
    /// The next bytes for the client; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            let out = match self.source.next().await {
                Some(Ok(chunk)) => match self.parser.push(&chunk) {
                    Ok(blocks) => self.blocks(blocks).await,
                    Err(e) => self.broken(&format!("the inference server sent what cannot be read: {e}")),
                },
                Some(Err(e)) => self.broken(&format!("the inference server broke off in the middle of the reply: {e}")),
                None => self.ended().await,
            };
            if !out.is_empty() {
                return Some(Bytes::from(out));
            }
        }
        None
    }

    async fn blocks(&mut self, blocks: Vec<sse::Block>) -> Vec<u8> {
        let mut out = Vec::new();
        for block in blocks {
            self.block(block, &mut out).await;
        }
        out
    }

    async fn block(&mut self, block: sse::Block, out: &mut Vec<u8>) {
        let Some(data) = &block.data else { return out.extend_from_slice(&block.raw) };
        let text = String::from_utf8_lossy(data);
        self.answering.reported.read(&text);
        let was_finished = self.answering.filter.is_finished();
        let Ok(value) = serde_json::from_str::<Value>(&text) else {
            // `[DONE]`: of a round that goes on it is not for the client.
            if !self.answering.goes_on_now() {
                self.let_go(out);
                out.extend_from_slice(&block.raw);
            }
            return;
        };
        if value.get("error").is_some_and(|e| !e.is_null()) {
            return out.extend_from_slice(&block.raw);
        }
        let seen = self.answering.filter.chunk(value);
        if !was_finished && self.answering.filter.is_finished() && !self.answering.filter.goes_on() {
            // The client may be back as soon as it sees this.
            let calls = self.answering.filter.ours();
            if !calls.is_empty() && !self.answering.is_last() {
                self.answering.answer(&calls).await;
            }
            self.answering.remember().await;
        }
        match seen {
            Some((_, false)) => out.extend_from_slice(&block.raw),
            Some((value, true)) => out.extend_from_slice(format!("data: {value}\n\n").as_bytes()),
            None => {}
        }
    }

    /// The server has nothing more to say: the reply is over, or its next round begins.
    async fn ended(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(block) = self.parser.finish() {
            self.block(block, &mut out).await;
        }
        if !self.answering.goes_on_now() {
            self.let_go(&mut out);
        }
        let reported = &self.answering.reported;
        if reported.failed {
            self.end(End::Failed("the server reported an error".into()));
            return out;
        }
        if !reported.complete() {
            out.extend(self.broken("the inference server ended the stream before the reply was complete"));
            return out;
        }
        if !self.answering.goes_on_now() {
            self.answering.remember().await;
            self.end(End::Complete);
            return out;
        }
        let calls = self.answering.filter.ours();
        self.answering.answer(&calls).await;
        match self.answering.again().await {
            Ok(reply) => {
                self.source = reply.body;
                self.parser = sse::Parser::new(sse::BLOCK_LIMIT);
            }
            Err(Stopped::Gone(e)) => out.extend(self.broken(&format!("the reply could not go on: {e}"))),
            Err(Stopped::Refused(reply)) => {
                let said = super::refusal(reply).await.map(|(status, said)| {
                    format!("{status}: {}", String::from_utf8_lossy(&said[..said.len().min(600)]))
                });
                let said = said.unwrap_or_else(|e| e.to_string());
                out.extend(self.broken(&format!("the inference server refused to go on: {said}")));
            }
        }
        out
    }

    /// Text that was held back and is no call after all.
    fn let_go(&mut self, out: &mut Vec<u8>) {
        if let Some(chunk) = self.answering.filter.left() {
            out.extend_from_slice(format!("data: {chunk}\n\n").as_bytes());
        }
    }

    fn end(&mut self, end: End) {
        self.over = true;
        self.answering.finish(end);
    }

    /// The event that ends a stream which must not look complete.
    fn broken(&mut self, why: &str) -> Vec<u8> {
        // A blank line first: the server may have stopped in the middle of an event.
        let mut out = b"\n\n".to_vec();
        self.let_go(&mut out);
        self.end(End::Failed(why.to_owned()));
        let error =
            json!({"error": {"message": why, "type": "upstream_error", "param": null, "code": "upstream_died"}});
        out.extend_from_slice(format!("data: {error}\n\n").as_bytes());
        out
    }
}
