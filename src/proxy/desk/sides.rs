//! Both sides of a request: what the client sent, and what went out. Leading system messages and tools are outside the record.

use serde_json::{Value, json};

use super::record::row_of;
use super::rows::edit_json;
use crate::conversation::Conversation;
use crate::conversation::edit::View;
use crate::export::masked;
use crate::plan::{TemplateFacts, rewrite};
use crate::proxy::{App, Error};
use crate::store::{ConversationRow, NodeRow, Store};
use crate::wire::openai_chat;

/// `GET /windowsill/conversations/{id}/view`: the messages as last forwarded, and in `places` which of the client's each is. `messages`:
/// as of the request that had so many. `client`: with what the client sent.
///
/// # Errors
/// 404 for an unknown one.
pub fn view(app: &App, id: &str, messages: Option<usize>, client: bool) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    let (rows, view) = request(&app.store, &row, messages)?;
    let body = rows.iter().map(|r| openai_chat::recorded(r.raw.clone())).collect();
    let conversation = Conversation { body, ..Default::default() };
    let out = rewrite::rewrite(&conversation, &view, &TemplateFacts::default());
    let sent: Vec<(Option<usize>, Value)> =
        out.iter().filter_map(|m| Some((m.at, serde_json::from_slice(&m.bytes).ok()?))).collect();
    let (places, sent): (Vec<Option<usize>>, Vec<Value>) = sent.into_iter().unzip();
    let edits: Vec<Value> = view.edits.iter().map(edit_json).collect();
    let mut told = json!({"conversation": row.id, "messages": sent, "edits": edits, "places": places});
    if client {
        told["client"] = rows.iter().map(said).collect();
    }
    Ok(told)
}

/// `GET /windowsill/conversations/{id}/request`: a request of the conversation as an input that gives the same plan again, for
/// `windowsill plan` and others. `messages`: the request that had so many. `replaced`: without what the texts say.
///
/// # Errors
/// 404 for an unknown one.
pub fn request_of(app: &App, id: &str, messages: Option<usize>, replaced: bool) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    let (rows, _) = request(&app.store, &row, messages)?;
    let said = |row: &NodeRow| if replaced { masked(&said(row)) } else { said(row) };
    Ok(json!({"model": row.model, "messages": rows.iter().map(said).collect::<Vec<Value>>()}))
}

/// The messages of a request, and the view that they were forwarded with.
fn request(
    store: &Store,
    row: &ConversationRow,
    messages: Option<usize>,
) -> Result<(Vec<NodeRow>, View), crate::store::Error> {
    let mut rows = store.messages(&row.id)?;
    rows.truncate(messages.unwrap_or(usize::MAX));
    let chain: Vec<_> = rows.iter().map(|r| r.chain).collect();
    let view = store.view(&chain)?.map(|(_, v)| View::clone(&v)).unwrap_or_default();
    Ok((rows, view))
}

fn said(row: &NodeRow) -> Value {
    serde_json::from_slice(&row.raw).unwrap_or_else(|_| String::from_utf8_lossy(&row.raw).into())
}
