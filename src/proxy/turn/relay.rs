//! What a client is answered with: bodies that are there, bodies that stream through, and how a stream ended.

use std::io;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::Value;

use crate::upstream;
use crate::upstream::event::Event;

/// The body of every reply.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A JSON reply.
pub fn json_reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A body that streams through and is not read.
pub fn through(body: impl Stream<Item = Result<Bytes, upstream::Error>> + Send + 'static) -> Body {
    let frames = body.map(|chunk| chunk.map(Frame::data).map_err(io::Error::other));
    StreamBody::new(frames).boxed_unsync()
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

/// What a client is answered with, in the words of chat completions.
pub(in crate::proxy) enum Answer {
    /// A body as it is.
    Body(Body),
    /// A stream of events, up to its end.
    Events(BoxStream<'static, Event>),
}
