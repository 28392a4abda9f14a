//! Keeping house: one conversation renamed, starred, deleted, or written down for somebody to keep.

use serde_json::{Value, json};

use super::compact::whole_row;
use super::record::row_of;
use crate::clock::now_ms;
use crate::proxy::{App, Error, Record};
use crate::store::Store;

/// How a conversation is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exported {
    /// For people.
    Markdown,
    /// A message a line, as the client sent it.
    Lines,
}

/// `PUT /windowsill/conversations/{id}/title`: calls a conversation what a person calls it. Without a title, it is called what was
/// found for it again.
///
/// # Errors
/// 404 for an unknown conversation, 400 for the beginning of an id.
pub async fn rename(app: &App, id: &str, title: &str) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    let kept = app.store.rename(&row.id, title).await?;
    let title = match kept {
        Some(kept) => kept,
        None => row_of(app, &row.id)?.title,
    };
    Ok(json!({"conversation": row.id, "title": title}))
}

/// `PUT /windowsill/conversations/{id}/star`: retention leaves what has a star alone.
///
/// # Errors
/// 404 for an unknown conversation, 400 for the beginning of an id.
pub async fn star(app: &App, id: &str, on: bool) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    app.store.star(&row.id, on).await?;
    Ok(json!({"conversation": row.id, "starred": on}))
}

/// `DELETE /windowsill/conversations/{id}`: what conversations that forked from it have of it stays theirs.
///
/// # Errors
/// 404 for an unknown conversation, 400 for the beginning of an id, 409 while a request of it is under way, or another windowsill
/// writes the record.
pub async fn delete(app: &App, id: &str) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    if app.lives.is_under_way(&row.id) {
        let message = format!("a request of `{}` is under way", row.id);
        return Err(Error::client(409, "busy", message, "try again when it is answered"));
    }
    let deleted = app.store.delete(&row.id, now_ms()).await.map_err(|e| match e {
        crate::store::Error::Shared => {
            let hint = "stop the other windowsill that uses this data_dir";
            Error::client(409, "record_shared", e.to_string(), hint)
        }
        e => e.into(),
    })?;
    app.lives.forget(&row.id);
    let Some(deleted) = deleted else {
        return Err(Error::client(404, "not_found", format!("no conversation `{id}` in the record"), ""));
    };
    Ok(json!({
        "conversation": row.id, "messages": deleted.messages, "originals": deleted.originals, "left": deleted.left,
    }))
}

impl Record {
    /// `windowsill export`: a whole conversation, by its id or the beginning of it.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub fn export(&self, id: &str, how: Exported) -> Result<String, Error> {
        let row = super::record::row(&self.store, id, "`windowsill context` lists them")?;
        exported(&self.store, &row.id, how)
    }
}

/// `GET /windowsill/conversations/{id}/export`: a whole conversation, by its id or the beginning of it.
///
/// # Errors
/// 404 for an unknown one.
pub fn export(app: &App, id: &str, how: Exported) -> Result<String, Error> {
    let row = row_of(app, id)?;
    exported(&app.store, &row.id, how)
}

fn exported(store: &Store, id: &str, how: Exported) -> Result<String, Error> {
    let text = match how {
        Exported::Markdown => store.history(id)?,
        Exported::Lines => store.jsonl(id)?,
    };
    text.ok_or_else(|| Error::client(404, "not_found", format!("no conversation `{id}` in the record"), ""))
}
