//! Replies to clients that know no `tools`: they sent `functions`, the form that OpenAI had before, and read no other. A server
//! that was told them as tools answers with tool calls.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde_json::Value;

use super::prepared::Prepared;
use crate::proxy::aside;
use crate::upstream::event::{Event, Says};
use crate::wire::legacy;

/// Whether the client of a request reads calls in the older form alone.
pub(super) fn is_wanted(prepared: &Prepared) -> bool {
    let body = &prepared.request.body;
    aside::once(body.len(), || legacy::tools(body).is_some())
}

/// The events of a reply, with calls in the older form.
pub(super) fn streamed(events: BoxStream<'static, Event>) -> BoxStream<'static, Event> {
    events.map(event).boxed()
}

fn event(event: Event) -> Event {
    let Event { raw, says: Says::Chunk(mut chunk) } = event else { return event };
    if legacy::told(&mut chunk) { Event::chunk(chunk) } else { Event { raw, says: Says::Chunk(chunk) } }
}

/// A whole reply, with its call in the older form.
pub(super) fn whole(reply: Bytes) -> Bytes {
    let say = || {
        let mut said = serde_json::from_slice::<Value>(&reply).ok()?;
        legacy::told(&mut said).then(|| Bytes::from(said.to_string()))
    };
    aside::once(reply.len(), say).unwrap_or(reply)
}
