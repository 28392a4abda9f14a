//! What is noted of conversations and models, and under which name.

use serde_json::Value;
use tracing::debug;

use crate::clock::now_ms;
use crate::measure::ModelKey;
use crate::proxy::App;
use crate::store::{Batch, Event};
use crate::upstream::Upstream;
use crate::wire::openai_chat::Request;

/// What is believed of a request's model is kept under this key.
pub(in crate::proxy) fn key(_app: &App, upstream: &Upstream, request: &Request) -> ModelKey {
    ModelKey::new(upstream.name(), &upstream.canonical(&request.model))
}

/// Records an event of a conversation, when there is time.
pub(in crate::proxy) fn note_event(app: &App, id: &str, kind: &str, data: Value) {
    let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: kind.into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
}
