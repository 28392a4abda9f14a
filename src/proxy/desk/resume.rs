//! A conversation that a ceiling or the watchdog stopped goes on.

use serde_json::{Value, json};

use super::compact::unchanged;
use crate::clock::now_ms;
use crate::proxy::turn::guard::{spent, spent_json, taken};
use crate::proxy::{App, Error};
use crate::store::{Batch, Event};

impl App {
    /// `POST /windowsill/conversations/{id}/resume`: lets a conversation go on that a ceiling or the watchdog stopped. What it
    /// takes is counted from zero again.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 400 for the beginning of an id.
    pub async fn resume(&self, id: &str) -> Result<Value, Error> {
        self.store.flush().await;
        let row = self.whole_row(id).await?;
        self.remember(&row.id);
        let (turn, session, books) = self.lives.with(&row.id, |live| {
            let (turn, session) = spent(live);
            let (tokens, requests) = taken(&live.spend);
            live.books.resume(tokens, requests, now_ms());
            (turn, session, live.books)
        });
        let data = json!({"turn": spent_json(&turn), "session": spent_json(&session)});
        let mut update = unchanged(&row, now_ms());
        let mut state = row.state.clone();
        state["books"] = json!(books);
        update.state = state.to_string();
        let event =
            Event { now_ms: now_ms(), conversation: Some(row.id.clone()), kind: "resumed".into(), data: data.clone() };
        self.store.record(Batch { conversation: Some(update), events: vec![event], ..Batch::default() }).await?;
        Ok(json!({"conversation": row.id, "was": data}))
    }
}
