//! A checkpoint: somebody says that a task is done. Its completion record is kept and searched like any original, and the history is
//! folded with it: at once, or after the reply that is under way. A task's end is the best moment to fold.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Asked, Ground, Recorded, at_any_pressure, unchanged};
use super::live::Brief;
use super::save::now_ms;
use super::{App, Error, aside};
use crate::apply;
use crate::completion;
use crate::conversation::{Message, Tokens};
use crate::plan::{self, Action, Because, Plan};
use crate::store::{Batch, Event, EventFilter, Original};

/// Longest note, in bytes.
const LONGEST: usize = 4_000;

/// Why the fold is made.
const WHY: &str = "checkpoint: a task is done";

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
        let body = &request.conversation.body;
        let messages: Vec<&Message> = body[self.last_checkpoint(id)?.min(body.len())..].iter().collect();
        let Some(tip) = chain.last().copied().filter(|_| !messages.is_empty()) else {
            return Err(Error::client(409, "nothing_done", "nothing was said since the last checkpoint", ""));
        };
        let text = completion::completion(&messages, note);
        let record = self.keep_completion(&ground, &text, messages.len(), !note.trim().is_empty()).await?;
        // A request under way goes on with what it has; the fold comes after its reply.
        let covers = chain.len();
        let busy = self.lives.with(id, |live| {
            let busy = live.in_flight > 0;
            if busy {
                live.brief = Some(Brief { covers, chain: tip, text: text.as_str().into(), seconds: 0.0 });
                live.fold_due = Some(WHY.to_owned());
            }
            busy
        });
        let after = if busy { None } else { self.fold_done(&ground, &text).await? };
        Ok(json!({
            "conversation": row.id, "record": record, "completion": text, "folded": after.is_some(), "fold_after_reply": busy,
            "after": after,
        }))
    }

    /// How many messages the last checkpoint covered.
    fn last_checkpoint(&self, id: &str) -> Result<usize, Error> {
        let of = EventFilter { conversation: Some(id.to_owned()), kinds: vec!["checkpoint".into()] };
        let last = self.store.events_of(self.store.event_before(1, &of)?, 1, &of)?;
        let covered = last.first().and_then(|event| event.data["to"].as_u64()).unwrap_or(0);
        Ok(usize::try_from(covered).unwrap_or(usize::MAX))
    }

    /// Keeps a completion record. Returns its id.
    async fn keep_completion(
        &self,
        ground: &Ground,
        text: &str,
        messages: usize,
        noted: bool,
    ) -> Result<String, Error> {
        let Recorded { row, chain, .. } = &ground.recorded;
        let record = self.store.free_id(text)?;
        let original = Original {
            id: record.clone(),
            conversation: row.id.clone(),
            at: chain.len().saturating_sub(1),
            kind: "checkpoint".into(),
            tool: None,
            call: Some("completion record".into()),
            text: text.to_owned(),
            raw: None,
        };
        let data = json!({"record": record, "messages": messages, "to": chain.len(), "note": noted});
        let event = Event { now_ms: now_ms(), conversation: Some(row.id.clone()), kind: "checkpoint".into(), data };
        let batch = Batch {
            conversation: Some(unchanged(row, now_ms())),
            originals: vec![original],
            events: vec![event],
            durable: true,
            ..Batch::default()
        };
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
        let apply::Applied { view, originals } = self.folded_view(ground, &plan, None, Some(text))?;
        let asked = Asked { action: "summarize", focus: None, started };
        let batch = Batch { originals, ..Batch::default() };
        self.record_view(recorded, &plan, view, asked, batch).await?;
        Ok(Some(after))
    }
}
