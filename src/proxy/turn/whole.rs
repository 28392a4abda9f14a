//! Replies that are read whole.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;

use crate::proxy::Error;
use crate::upstream::event::Content;

/// A reply that is not streamed is read whole before it is passed on, up to this size; a larger one is relayed as it
/// comes.
pub(in crate::proxy) const LARGEST_BUFFERED: usize = 64 << 20;

/// Reads a body whole, up to a limit; what is left of a larger one comes back as a stream.
pub(in crate::proxy) async fn read_up_to(mut body: Content, limit: usize) -> Result<(Bytes, Option<Content>), Error> {
    let mut out = BytesMut::new();
    while let Some(chunk) = body.next().await {
        out.extend_from_slice(&chunk?);
        if out.len() > limit {
            return Ok((out.freeze(), Some(body)));
        }
    }
    Ok((out.freeze(), None))
}

/// A reply that is larger than what is held in memory, where it has to be held to be `what`.
pub(in crate::proxy) fn too_large(what: &str) -> Error {
    let message = format!(
        "the inference server's reply is larger than {LARGEST_BUFFERED} bytes ({} MiB), the most that can be {what}",
        LARGEST_BUFFERED >> 20
    );
    Error::client(502, "reply_too_large", message, "ask for it as a stream (`\"stream\": true`), or for fewer tokens")
}
