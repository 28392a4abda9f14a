//! What stands in a request or a reply of another dialect beside its messages: items that a client refers to instead of sending
//! them, and what of a history could not be said.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use tracing::debug;

use super::headers;
use crate::conversation::Digest;
use crate::plain;
use crate::proxy::{App, Error};
use crate::store::{self, Batch, Item, Original};
use crate::wire::WireError;
use crate::wire::dialect::responses::{self, Items};
use crate::wire::dialect::{Heard, Unsaid};

/// Keeps items of a reply, by their ids.
pub(super) type Keeper = Box<dyn FnOnce(Vec<(String, String)>) + Send>;

/// How many references of one request are followed; a history that has more is no agent's.
const REFERENCES: usize = 4096;

impl App {
    /// Reads a request of the Responses API. Where it refers to items of earlier replies, it is read with these once more.
    pub(super) async fn hear_responses(&self, body: &Bytes) -> Result<Result<Heard, WireError>, Error> {
        let read = body.clone();
        let hear = async move { responses::request(&read, &Items::new()) };
        let heard = self.aside.reading(body.len(), hear.boxed()).await?;
        let wanted: Vec<String> = match &heard {
            Ok(heard) => heard.unsaid.references.iter().take(REFERENCES).cloned().collect(),
            Err(_) => Vec::new(),
        };
        if wanted.is_empty() {
            return Ok(heard);
        }
        // The reply that they stood in may be queued still.
        self.store.flush().await;
        let find = |id: String| Some((self.store.item(&id).ok().flatten()?, id));
        let known: Items =
            store::blocking(|| wanted.into_iter().filter_map(find).map(|(json, id)| (id, json)).collect());
        if known.is_empty() {
            return Ok(heard);
        }
        let read = body.clone();
        self.aside.reading(body.len(), async move { responses::request(&read, &known) }.boxed()).await
    }

    /// What keeps the items of the reply with these headers.
    pub(super) fn keeper(self: &Arc<Self>, headers: &HeaderMap) -> Option<Keeper> {
        let conversation = conversation(headers)?;
        let app = Arc::clone(self);
        Some(Box::new(move |items| {
            let item = |(id, json)| Item { id, conversation: conversation.clone(), json };
            let items: Vec<Item> = items.into_iter().map(item).collect();
            if items.is_empty() {
                return;
            }
            if let Err(e) = app.store.record_later(Batch { items, ..Batch::default() }) {
                debug!(error = %e, "the items of a reply are not in the record");
            }
        }))
    }

    /// Says on a reply what of its request could not be said, and keeps that in the record, once for each conversation.
    pub(super) async fn keep_unsaid(&self, unsaid: Unsaid, to: &mut HeaderMap<HeaderValue>) {
        if !unsaid.warnings.is_empty() {
            let said = headers::text(to, &headers::WARNING);
            let all: Vec<String> = said.into_iter().chain(unsaid.warnings).collect();
            headers::set(to, "x-windowsill-warning", &plain::line(&all.join("; ")));
        }
        let Some(conversation) = conversation(to).filter(|_| !unsaid.originals.is_empty()) else { return };
        let originals = self.lives.with(&conversation, |live| {
            let new = |text: &String| live.unsaid.insert(Digest::of(text.as_bytes()));
            unsaid.originals.into_iter().filter(new).collect::<Vec<String>>()
        });
        if originals.is_empty() {
            return;
        }
        let original = |text: String| Original {
            id: store::original_id(&text),
            conversation: conversation.clone(),
            at: 0,
            kind: "item".into(),
            tool: None,
            call: None,
            text: text.into(),
            raw: None,
        };
        let originals = originals.into_iter().map(original).collect();
        if let Err(e) = self.store.record_soon(Batch { originals, ..Batch::default() }).await {
            debug!(error = %e, "items that stand as lines are not in the record");
        }
    }
}

fn conversation(headers: &HeaderMap) -> Option<String> {
    headers.get("x-windowsill-conversation")?.to_str().ok().map(str::to_owned)
}
