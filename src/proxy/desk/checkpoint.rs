//! A checkpoint: somebody says that a task is done. Its completion record is kept and searched like any original, and the history is
//! folded with it: at once, or after the reply that is under way. A task's end is the best moment to fold.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::compact::{Asked, Ground, Recorded, at_any_pressure, unchanged};
use crate::apply;
use crate::completion;
use crate::conversation::{Digest, Message, Tokens};
use crate::guard::triggers::Pace;
use crate::plan::{self, Action, Because, Plan};
use crate::proxy::live::Brief;
use crate::proxy::turn::prepare::Prepared;
use crate::proxy::turn::save::now_ms;
use crate::proxy::{App, Error, aside};
use crate::recall::done::{self, LONGEST_NOTE as LONGEST};
use crate::store::{Batch, Event, EventFilter, Original};

/// What a model is told whose task was noted before.
const NOTED: &str = "[nothing was done since the last task that was noted as done. Give the user your closing answer]";

/// What a model is told where the record cannot be written.
const UNWRITABLE: &str = "[not noted: the record cannot be written now. Give the user your closing answer]";

/// Why the fold is made.
const WHY: &str = "checkpoint: a task is done";

/// A completion record as it was made.
struct Made<'a> {
    text: &'a str,
    /// How many messages it is about.
    messages: usize,
    /// How many messages the history has.
    to: usize,
    /// Whether somebody said anything of the outcome.
    noted: bool,
}

impl App {
    /// `POST /windowsill/conversations/{id}/checkpoint`: a task is done. `note`: what is to be said of the outcome.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 400 for a note that is too long.
    pub async fn checkpoint(self: &Arc<Self>, id: &str, note: &str) -> Result<Value, Error> {
        if note.len() > LONGEST {
            let message = format!("`note` has {} bytes, and {LONGEST} are taken", note.len());
            return Err(Error::client(400, "note_too_long", message, "say the outcome in a few sentences"));
        }
        let (app, id, note) = (Arc::clone(self), id.to_owned(), note.to_owned());
        let work = async move { app.checkpoint_now(&id, &note).await };
        self.aside.run(aside::LARGE, work.boxed()).await?
    }

    async fn checkpoint_now(self: &Arc<Self>, id: &str, note: &str) -> Result<Value, Error> {
        let ground = self.ground(id).await?;
        let Recorded { row, chain, request, .. } = &ground.recorded;
        let messages = self.since_checkpoint(id, &request.conversation.body)?;
        let Some(tip) = chain.last().copied().filter(|_| !messages.is_empty()) else {
            return Err(Error::client(409, "nothing_done", "nothing was said since the last checkpoint", ""));
        };
        let text = completion::completion(&messages, note);
        let made = Made { text: &text, messages: messages.len(), to: chain.len(), noted: !note.trim().is_empty() };
        let update = Batch { conversation: Some(unchanged(row, now_ms())), ..Batch::default() };
        let record = self.keep_completion(&row.id, &made, "user", update).await?;
        // A request under way goes on with what it has; the fold comes after its reply.
        let covers = chain.len();
        let busy = self.lives.with(id, |live| {
            let busy = live.in_flight > 0;
            if busy {
                live.fold_with(completed(covers, tip, &text), Pace::Done(WHY.to_owned()));
            }
            busy
        });
        let after = if busy { None } else { self.fold_done(&ground, &text).await? };
        Ok(json!({
            "conversation": row.id, "record": record, "completion": text, "folded": after.is_some(), "fold_after_reply": busy,
            "after": after,
        }))
    }

    /// Answers a model that calls `windowsill_done`: the completion record is kept now, and the fold is made after this reply.
    pub(in crate::proxy) async fn done_within(&self, prepared: &Prepared, arguments: &str) -> String {
        match self.noted_done(prepared, &done::note(arguments)).await {
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
    async fn noted_done(&self, prepared: &Prepared, note: &str) -> Result<Option<String>, Error> {
        // The conversation itself may still be queued.
        self.store.flush().await;
        let body = &prepared.request.conversation.body;
        let messages = self.since_checkpoint(&prepared.id, body)?;
        let Some(tip) = prepared.chain.last().copied().filter(|_| !messages.is_empty()) else { return Ok(None) };
        let text = completion::completion(&messages, note);
        let covers = prepared.chain.len();
        let made = Made { text: &text, messages: messages.len(), to: covers, noted: !note.is_empty() };
        let record = self.keep_completion(&prepared.id, &made, "model", Batch::default()).await?;
        self.lives.with(&prepared.id, |live| live.fold_with(completed(covers, tip, &text), Pace::Done(WHY.to_owned())));
        info!(conversation = %prepared.id, messages = made.messages, "a task is done");
        Ok(Some(record))
    }

    /// The messages since the last checkpoint.
    fn since_checkpoint<'a>(&self, id: &str, body: &'a [Message]) -> Result<Vec<&'a Message>, Error> {
        let of = EventFilter { conversation: Some(id.to_owned()), kinds: vec!["checkpoint".into()] };
        let last = self.store.events_of(self.store.event_before(1, &of)?, 1, &of)?;
        let covered = last.first().and_then(|event| event.data["to"].as_u64()).unwrap_or(0);
        let covered = usize::try_from(covered).unwrap_or(usize::MAX).min(body.len());
        Ok(body[covered..].iter().collect())
    }

    /// Keeps a completion record, with what else is recorded. Returns its id.
    async fn keep_completion(&self, id: &str, made: &Made<'_>, by: &str, batch: Batch) -> Result<String, Error> {
        let record = self.store.free_id(made.text)?;
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
        let data = json!({"record": record, "messages": made.messages, "to": made.to, "note": made.noted, "by": by});
        let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: "checkpoint".into(), data };
        let batch = Batch { originals: vec![original], events: vec![event], durable: true, ..batch };
        self.store.record(batch).await?;
        Ok(record)
    }

    /// Folds with a completion record. Returns what the prompt takes then; `None` where there is nothing to fold.
    async fn fold_done(&self, ground: &Ground, text: &str) -> Result<Option<Tokens>, Error> {
        let started = Instant::now();
        let Ground { recorded, facts, resolved, .. } = ground;
        let conversation = &recorded.request.conversation;
        let mut plan: Plan = plan::plan(conversation, facts, &at_any_pressure(&resolved.policy));
        if !plan.actions.iter().any(|action| matches!(action, Action::Fold { .. })) {
            return Ok(None);
        }
        let (before, after) = (plan.before.prompt(), plan.after.prompt());
        plan.because
            .insert(0, Because { rule: "checkpoint", before, after, line: before, what: "a task is done".into() });
        let written = Some((text, conversation.body.len()));
        let apply::Applied { view, originals } = self.folded_view(ground, &plan, None, written)?;
        let asked = Asked { action: "summarize", focus: None, started };
        let batch = Batch { originals, ..Batch::default() };
        self.record_view(recorded, &plan, view, asked, batch).await?;
        Ok(Some(after))
    }
}

/// The completion record of all messages up to a chain hash, as a brief.
fn completed(covers: usize, chain: Digest, text: &str) -> Brief {
    Brief { covers, chain, text: text.into(), seconds: 0.0, reply: None, unread: Vec::new() }
}
