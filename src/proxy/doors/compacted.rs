//! Compactions that clients send back: one that was made here is the messages that it stands for, out of the record, so that
//! recall and all else works as if the client had sent them. What was done with a history is told with the reply.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::HeaderMap;
use tracing::debug;

use crate::conversation::managed::Stands;
use crate::plain;
use crate::proxy::state::whose::is_of_key;
use crate::proxy::turn::early::{Early, Tip};
use crate::proxy::{App, Error};
use crate::store;
use crate::wire::compacted::{self, Origin};
use crate::wire::dialect::{Before, Compaction, Managed, Unsaid, anthropic};
use crate::wire::{WireError, dialect};

/// What the client is told of a compaction of ours whose messages cannot be had.
const BY_ITS_WORDS: &str = "a compaction block stands in the prompt by its words: the messages behind it are not in the record, or \
                            not for this key";

/// The messages that a compaction stands for, where it was made here, for this key, and the record still has them all.
pub(super) async fn stood_for(
    app: &App,
    compaction: &Compaction,
    from_client: &HeaderMap,
) -> Result<Option<Before>, Error> {
    let key = match app.store.marks_key() {
        Ok(key) => key,
        Err(e) => {
            debug!(error = %e, "no mark can be proved");
            return Ok(None);
        }
    };
    let Some(origin) = compacted::opened(&key, &compaction.mark, &compaction.text) else { return Ok(None) };
    // The messages may be queued still.
    app.store.flush().await;
    let most = app.config.limits.max_body_bytes;
    store::blocking(|| {
        if !is_of_key(app, &origin.conversation, from_client)? {
            return Ok(None);
        }
        let messages = app.store.messages_to(&origin.chain)?;
        let before = Before { messages, ..Before::default() };
        let is_whole = before.messages.len() == origin.depth && before.bytes() as u64 <= most;
        Ok(is_whole.then_some(before))
    })
}

/// Reads a request of the Messages API again where a compaction of ours stands in it, with the messages themselves.
pub(super) async fn opened(
    app: &App,
    from_client: &HeaderMap,
    body: &Bytes,
    heard: Result<dialect::Heard, WireError>,
) -> Result<Result<dialect::Heard, WireError>, Error> {
    let Ok(mut first) = heard else { return Ok(heard) };
    let Some(stands) = first.unsaid.stands_for.take().filter(|_| !app.config.shadow) else { return Ok(Ok(first)) };
    let Some(stood) = stood_for(app, &stands, from_client).await? else {
        first.unsaid.warnings.push(BY_ITS_WORDS.into());
        return Ok(Ok(first));
    };
    let (read, size, depth) = (body.clone(), body.len() + stood.bytes(), stood.messages.len());
    let heard = app.aside.reading(size, async move { anthropic::opened(&read, &stood) }.boxed()).await?;
    Ok(heard.map(|mut heard| {
        stand(&mut heard.unsaid, stands, depth);
        heard
    }))
}

/// Has the words of a compaction stand for the first messages, as the client has it.
pub(super) fn stand(unsaid: &mut Unsaid, compaction: Compaction, depth: usize) {
    let edits = unsaid.edits.get_or_insert_default();
    edits.stands = Some(Stands { depth, text: compaction.text });
}

/// Reads a request to count tokens, likewise.
pub(super) async fn opened_to_count(
    app: &App,
    from_client: &HeaderMap,
    body: &Bytes,
) -> Result<(Bytes, Unsaid), Error> {
    let (chat, mut unsaid) = anthropic::counted(body, None)?;
    let Some(stands) = unsaid.stands_for.take() else { return Ok((chat, unsaid)) };
    match stood_for(app, &stands, from_client).await? {
        Some(stood) => {
            let (chat, mut unsaid) = anthropic::counted(body, Some(&stood))?;
            stand(&mut unsaid, stands, stood.messages.len());
            Ok((chat, unsaid))
        }
        None => Ok((chat, unsaid)),
    }
}

/// The mark of a text that stands for the history up to `tip`.
pub(super) fn marked(app: &App, tip: Tip, text: &str) -> Result<String, store::Error> {
    let origin = Origin { conversation: tip.conversation, chain: tip.chain, depth: tip.depth };
    Ok(origin.mark(&app.store.marks_key()?, text))
}

/// What was done with the history of a request, once that is known; for its reply.
pub(super) fn managed(app: &Arc<App>, early: Early) -> impl FnOnce() -> Option<Managed> + Send + use<> {
    let app = Arc::clone(app);
    move || {
        let (outcome, tip) = (early.outcome()?, early.tip()?);
        let taken = outcome.taken.iter().map(|(kind, count, tokens)| (*kind, *count, u64::from(*tokens))).collect();
        let compaction = outcome.brief.map(|brief| {
            let mark = marked(&app, tip, &brief).unwrap_or_else(|e| {
                debug!(error = %plain::line(&e.to_string()), "a compaction has no mark");
                String::new()
            });
            Compaction { mark, text: brief.to_string() }
        });
        Some(Managed { taken, compaction, spent: outcome.spent })
    }
}
