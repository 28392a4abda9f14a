//! A conversation that a ceiling or the watchdog stopped goes on.

use serde_json::{Value, json};

use super::compact::{unchanged, whole_row};
use crate::clock::now_ms;
use crate::proxy::turn::guard::{remember, spent, spent_json, taken};
use crate::proxy::{App, Error};
use crate::store::{Batch, Event};

/// `POST /windowsill/conversations/{id}/resume`: lets a conversation go on that a ceiling or the watchdog stopped. What it
/// takes is counted from zero again.
///
/// # Errors
/// 404 for an unknown conversation, 400 for the beginning of an id.
pub async fn resume(app: &App, id: &str) -> Result<Value, Error> {
    app.store.flush().await;
    let row = whole_row(app, id).await?;
    remember(app, &row.id);
    let (turn, session, books) = app.lives.with(&row.id, |live| {
        let (turn, session) = spent(live);
        let (tokens, requests) = taken(&live.accounts.spend);
        live.accounts.books.resume(tokens, requests, now_ms());
        (turn, session, live.accounts.books)
    });
    let data = json!({"turn": spent_json(&turn), "session": spent_json(&session)});
    let mut update = unchanged(&row, now_ms());
    let mut state = row.state.clone();
    state["books"] = json!(books);
    update.state = state.to_string();
    let event =
        Event { now_ms: now_ms(), conversation: Some(row.id.clone()), kind: "resumed".into(), data: data.clone() };
    app.store.record(Batch { conversation: Some(update), events: vec![event], ..Batch::default() }).await?;
    Ok(json!({"conversation": row.id, "was": data}))
}
