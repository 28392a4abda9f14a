//! A checkpoint: somebody says that a task is done. Its completion record is kept and searched like any original, and the history is
//! folded with it: at once, or after the reply that is under way. A task's end is the best moment to fold.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Asked, Ground, folded_view, ground, record_view, unchanged};
use super::price::price_of;
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::guard::triggers::Pace;
use crate::plan::Because;
use crate::plan::reason::AskedBy;
use crate::proxy::turn::completed::{Made, WHY, completed, keep_completion, since_checkpoint};
use crate::proxy::{App, Error, aside};
use crate::recall::done::LONGEST_NOTE as LONGEST;
use crate::store::Batch;
use crate::wire::openai_chat;
use crate::{apply, completion};

/// `POST /windowsill/conversations/{id}/checkpoint`: a task is done. `note`: what is to be said of the outcome.
///
/// # Errors
/// 404 for an unknown conversation, 400 for a note that is too long.
pub async fn checkpoint(app: &Arc<App>, id: &str, note: &str, by: AskedBy) -> Result<Value, Error> {
    if note.len() > LONGEST {
        let message = format!("`note` has {} bytes, and {LONGEST} are taken", note.len());
        return Err(Error::client(400, "note_too_long", message, "say the outcome in a few sentences"));
    }
    let (owned, id, note) = (Arc::clone(app), id.to_owned(), note.to_owned());
    let work = async move { checkpoint_now(&owned, &id, &note, by).await };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

async fn checkpoint_now(app: &Arc<App>, id: &str, note: &str, by: AskedBy) -> Result<Value, Error> {
    let ground = ground(app, id).await?;
    let Ground { row, request, .. } = &ground;
    let chain = ground.chain();
    // The answer that the client has not come back with yet is the task's, too, unless it is calls.
    let reply = app.store.last_reply(id)?.and_then(|node| openai_chat::message(node.raw).ok());
    let reply = reply.filter(|reply| reply.calls.is_empty());
    let since = since_checkpoint(app, id, &request.conversation.body, reply.as_ref(), ground.old())?;
    let Some(tip) = chain.last().copied().filter(|_| !since.messages.is_empty()) else {
        return Err(Error::client(409, "nothing_done", "nothing was said since the last checkpoint", ""));
    };
    let text = completion::completion(&since.messages, note, &since.before);
    let made = Made {
        text: &text,
        messages: since.messages.len(),
        to: chain.len(),
        noted: !note.trim().is_empty(),
        reply: reply.is_some(),
    };
    let update = Batch { conversation: Some(unchanged(row, now_ms())), ..Batch::default() };
    let record = keep_completion(app, &row.id, &made, by.as_str(), update).await?;
    // A request under way goes on with what it has; the fold comes after its reply.
    let covers = chain.len();
    let busy = app.lives.with(id, |live| {
        let busy = live.in_flight > 0;
        if busy {
            live.fold_with(completed(covers, tip, &text), Pace::Done(WHY.to_owned()));
        }
        busy
    });
    let after = if busy { None } else { fold_done(app, &ground, &text, by).await? };
    Ok(json!({
        "conversation": row.id, "record": record, "completion": text, "folded": after.is_some(), "fold_after_reply": busy,
        "after": after,
    }))
}

/// Folds with a completion record. Returns what the prompt takes then; `None` where there is nothing to fold.
async fn fold_done(app: &App, ground: &Ground, text: &str, by: AskedBy) -> Result<Option<Tokens>, Error> {
    let started = Instant::now();
    let Some(mut plan) = ground.folding() else { return Ok(None) };
    let apply::Applied { view, originals } =
        folded_view(app, ground, &plan, None, Some((text, ground.request.conversation.body.len())))?;
    let price = price_of(app, ground, &view).await;
    let (before, after) = (price.before, price.after);
    plan.because.insert(0, Because { rule: "checkpoint", before, after, line: before, what: "a task is done".into() });
    let asked = Asked { by, action: "summarize", because: plan.because, focus: None, undoes: None, started };
    let batch = Batch { originals, ..Batch::default() };
    record_view(app, ground, &price, view, asked, batch).await?;
    Ok(Some(after))
}
