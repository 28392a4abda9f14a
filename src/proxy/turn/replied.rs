//! What a model answers goes into the record before its client has the end of it: a client may never come back, and a kill may
//! come right behind the reply. When the client does come back, its own words take the place of these.

use bytes::Bytes;
use serde_json::Value;
use tracing::{debug, warn};

use super::prepared::Prepared;
use super::save::SLOWEST_WRITE;
use crate::conversation::Digest;
use crate::store::{Batch, LastReply, Store};
use crate::wire::openai_chat;

/// Keeps one reply, as far as it came.
pub(super) struct Keeper {
    store: Store,
    conversation: String,
    after: Digest,
    depth: usize,
    /// What of it is on record.
    kept: Option<Digest>,
}

impl Keeper {
    /// `None` for the reply to a request that is not the newest of its conversation.
    pub(super) fn of(store: &Store, prepared: &Prepared) -> Option<Keeper> {
        let after = *prepared.history.chain.last().filter(|_| !prepared.history.repeats_a_beginning)?;
        let (conversation, depth) = (prepared.id.clone(), prepared.history.chain.len());
        Some(Keeper { store: store.clone(), conversation, after, depth, kept: None })
    }

    /// Keeps a reply, and returns once a kill cannot take it any more.
    pub(super) async fn keep(&mut self, said: Option<Value>) {
        if let Some(reply) = self.reply(said) {
            recorded(&self.store, Batch { last_reply: Some(reply), ..Batch::default() }).await;
        }
    }

    /// The reply, where it is not on record yet: it is from now on, so it must be put there.
    pub(super) fn reply(&mut self, said: Option<Value>) -> Option<LastReply> {
        let message = openai_chat::message(Bytes::from(said?.to_string())).ok()?;
        let digest = message.digest;
        if self.kept.replace(digest) == Some(digest) {
            return None;
        }
        Some(LastReply {
            conversation: self.conversation.clone(),
            after: self.after,
            depth: self.depth,
            digest,
            raw: message.raw.clone(),
            text: crate::passage::searched(&message),
        })
    }
}

/// Puts what belongs to a reply on record, and returns once it is there, or where that takes long.
pub(super) async fn recorded(store: &Store, batch: Batch) {
    match tokio::time::timeout(SLOWEST_WRITE, store.keep(batch)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a reply is not in the record"),
        Err(_) => warn!("the record is slow: a reply goes out before it is written"),
    }
}
