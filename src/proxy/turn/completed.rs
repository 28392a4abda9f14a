//! The completion record of a task: kept and searched like any original. A model that says within a reply that its task is done has
//! it made here; the history is folded with it after that reply.

use serde_json::json;
use tracing::{info, warn};

use super::prepared::Prepared;
use crate::brief::done as done_before;
use crate::clock::now_ms;
use crate::completion;
use crate::conversation::edit::View;
use crate::conversation::{Digest, Message, Role};
use crate::guard::triggers::Pace;
use crate::proxy::state::live::Brief;
use crate::proxy::{App, Error};
use crate::recall::done;
use crate::store::{Batch, Event, EventFilter, Original};
use crate::wire::openai_chat;

/// What a model is told whose task was noted before.
pub(in crate::proxy) const NOTED: &str =
    "[nothing was done since the last task that was noted as done. Give the user your closing answer]";

/// What a model is told where the record cannot be written.
pub(in crate::proxy) const UNWRITABLE: &str =
    "[not noted: the record cannot be written now. Give the user your closing answer]";

/// Why the fold is made.
pub(in crate::proxy) const WHY: &str = "checkpoint: a task is done";

/// Tasks done before that a completion record tells of, the newest.
pub(in crate::proxy) const BEFORE: usize = 8;

/// What a completion record is about.
pub(in crate::proxy) struct Since<'a> {
    /// What was said.
    pub(in crate::proxy) messages: Vec<&'a Message>,
    /// The tasks done before that the conversation's brief does not tell of, a line each.
    pub(in crate::proxy) before: Vec<String>,
}

/// A completion record as it was made.
pub(in crate::proxy) struct Made<'a> {
    /// Its text.
    pub(in crate::proxy) text: &'a str,
    /// How many messages it is about.
    pub(in crate::proxy) messages: usize,
    /// How many messages the history has.
    pub(in crate::proxy) to: usize,
    /// Whether somebody said anything of the outcome.
    pub(in crate::proxy) noted: bool,
    /// Whether it is about the reply behind these messages, too.
    pub(in crate::proxy) reply: bool,
}

/// Answers a model that calls `windowsill_done`: the completion record is kept now, and the fold is made after this reply.
/// `said`: what the model said in this reply before.
pub(in crate::proxy) async fn done_within(app: &App, prepared: &Prepared, arguments: &str, said: &str) -> String {
    match noted_done(app, prepared, &done::note(arguments), said).await {
        Ok(Some(record)) => format!(
            "[noted: the task is kept as done (windowsill recall {record}), and its steps leave the context after this \
             reply. Give the user your closing answer]"
        ),
        Ok(None) => NOTED.to_owned(),
        Err(e) => {
            warn!(conversation = %prepared.id, error = %e, "a task that is done was not noted");
            UNWRITABLE.to_owned()
        }
    }
}

/// Keeps the completion record of what a request's history holds. Returns its id; `None` where nothing is new.
async fn noted_done(app: &App, prepared: &Prepared, note: &str, said: &str) -> Result<Option<String>, Error> {
    // The conversation itself may still be queued.
    app.store.flush().await;
    let body = &prepared.request.conversation.body;
    let said = json!({"role": "assistant", "content": said.trim()}).to_string();
    let said = openai_chat::message(said.into()).ok().filter(|said| !said.text.is_empty());
    let since = since_checkpoint(app, &prepared.id, body, said.as_ref(), &prepared.made.view)?;
    let Some(tip) = prepared.history.chain.last().copied().filter(|_| !since.messages.is_empty()) else {
        return Ok(None);
    };
    let text = completion::completion(&since.messages, note, &since.before);
    let covers = prepared.history.chain.len();
    // The closing answer that follows is this task's, and no part of the next.
    let (messages, noted) = (since.messages.len(), !note.is_empty());
    let made = Made { text: &text, messages, to: covers, noted, reply: true };
    let record = keep_completion(app, &prepared.id, &made, "model", Batch::default()).await?;
    app.lives.with(&prepared.id, |live| live.fold_with(completed(covers, tip, &text), Pace::Done(WHY.to_owned())));
    info!(conversation = %prepared.id, messages = made.messages, "a task is done");
    Ok(Some(record))
}

/// What was said since the last checkpoint. `reply`: what stands behind the messages.
pub(in crate::proxy) fn since_checkpoint<'a>(
    app: &App,
    id: &str,
    body: &'a [Message],
    reply: Option<&'a Message>,
    view: &View,
) -> Result<Since<'a>, Error> {
    let of = EventFilter { conversation: Some(id.to_owned()), kinds: vec!["checkpoint".into()] };
    let all = app.store.trace().newest(BEFORE, &of)?;
    let last = all.last();
    let covered = last.and_then(|event| event.data["to"].as_u64()).unwrap_or(0);
    let mut covered = usize::try_from(covered).unwrap_or(usize::MAX).min(body.len());
    let with_reply = last.is_some_and(|event| event.data["reply"] == true);
    let reply = reply.filter(|_| !(with_reply && covered == body.len()));
    if with_reply {
        // The reply that it was about, as the client has it, with what was recalled for it.
        covered += body[covered..].iter().take_while(|message| message.role != Role::User).count();
    }
    let messages = body[covered..].iter().chain(reply).collect();
    let brief = view.brief().map(str::to_owned).unwrap_or_default();
    let mut before = Vec::new();
    for record in all.iter().filter_map(|event| event.data["record"].as_str()) {
        let Some(own) = app.store.original(record)?.and_then(|o| done_before::outcomes(&o.text).pop()) else {
            continue;
        };
        if !done_before::tells(&brief, &own) && !before.contains(&own) {
            before.push(own);
        }
    }
    Ok(Since { messages, before })
}

/// Keeps a completion record, with what else is recorded. Returns its id.
pub(in crate::proxy) async fn keep_completion(
    app: &App,
    id: &str,
    made: &Made<'_>,
    by: &str,
    batch: Batch,
) -> Result<String, Error> {
    let record = app.store.free_id(made.text)?;
    let original = Original {
        id: record.clone(),
        conversation: id.to_owned(),
        at: made.to.saturating_sub(1),
        kind: "checkpoint".into(),
        tool: None,
        call: Some("completion record".into()),
        text: made.text.into(),
        raw: None,
    };
    let data = json!({"record": record, "messages": made.messages, "to": made.to, "note": made.noted, "reply": made.reply, "by": by});
    let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: "checkpoint".into(), data };
    let batch = Batch { originals: vec![original], events: vec![event], durable: true, ..batch };
    app.store.record(batch).await?;
    Ok(record)
}

/// The completion record of all messages up to a chain hash, as a brief.
pub(in crate::proxy) fn completed(covers: usize, chain: Digest, text: &str) -> Brief {
    Brief { covers, chain, text: text.into(), seconds: 0.0, reply: None, unread: Vec::new() }
}
