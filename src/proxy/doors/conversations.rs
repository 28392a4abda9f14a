//! OpenAI's conversations (`/v1/conversations`): their items are kept here under ids, and requests that name one go on from them.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::stored::{about, or_upstream, page};
use crate::clock::now_ms;
use crate::plain;
use crate::proxy::state::whose::mark_of_key;
use crate::proxy::turn::relay::{Body, json_reply};
use crate::proxy::{App, Error};
use crate::store::{self, Batch, KeptChange, KeptRow};
use crate::upstream::unique::unique;
use crate::wire::WireError;
use crate::wire::dialect::responses::stored::{MOST_ITEMS, brought, metadata};

/// How the ids of conversations begin.
const PREFIX: &str = "conv_";

/// A conversation as its log tells it.
pub(super) struct Kept {
    name: String,
    created_ms: i64,
    metadata: Value,
    /// Its items in order: ids, and each as JSON.
    pub(super) items: Vec<(String, String)>,
    /// The conversation of the record that it was answered in last.
    pub(super) answered: Option<String>,
}

impl Kept {
    fn read(name: &str, rows: Vec<KeptRow>) -> Option<Kept> {
        let created_ms = rows.first()?.now_ms;
        let mut kept =
            Kept { name: name.to_owned(), created_ms, metadata: json!({}), items: Vec::new(), answered: None };
        for row in rows {
            match row.kind.as_str() {
                "begun" | "metadata" => kept.metadata = serde_json::from_str(&row.json).unwrap_or_default(),
                "item" => kept.items.push((row.item, row.json)),
                "removed" => kept.items.retain(|(id, _)| *id != row.item),
                "answered" => kept.answered = Some(row.item),
                _ => {}
            }
        }
        Some(kept)
    }

    fn json(&self) -> Value {
        json!({"id": self.name, "object": "conversation", "created_at": self.created_ms / 1000,
            "metadata": self.metadata})
    }

    fn listed(&self) -> Vec<Value> {
        self.items.iter().filter_map(|(_, item)| serde_json::from_str(item).ok()).collect()
    }
}

/// Why a conversation cannot be had.
pub(super) enum Missing {
    /// Nobody here knows the id, or not for this key.
    Unknown,
    /// Retention took it.
    Pruned(store::Gone),
}

/// A conversation of this key.
///
/// # Errors
/// When the record cannot be read.
pub(super) async fn kept(app: &App, id: &str, from_client: &HeaderMap) -> Result<Result<Kept, Missing>, Error> {
    // What was added last may be queued still.
    app.store.flush().await;
    let owner = mark_of_key(from_client);
    let rows = store::blocking(|| app.store.continued().kept(id))?;
    let own = rows.first().is_some_and(|first| first.owner == owner);
    if let Some(kept) = own.then(|| Kept::read(id, rows)).flatten() {
        return Ok(Ok(kept));
    }
    Ok(Err(store::blocking(|| app.store.continued().kept_gone(id))?.map_or(Missing::Unknown, Missing::Pruned)))
}

impl Missing {
    /// As OpenAI says it; what retention took is told with its date. `param` is the field that named it.
    pub(super) fn told(&self, id: &str, param: &str) -> Error {
        let id = plain::line(id);
        let (status, message) = match self {
            Missing::Unknown => {
                (404, format!("Conversation with id '{id}' not found: none is kept here for this key."))
            }
            Missing::Pruned(gone) => (410, format!("Conversation with id '{id}' {gone}.")),
        };
        let hint = "POST /v1/conversations begins one; or send the whole history in `input`";
        about(param, Error::client(status, "conversation_not_found", message, hint))
    }
}

/// An entry for the log of a conversation.
pub(super) fn entry(name: &str, owner: &str, kind: &str, item: &str, json: &str) -> KeptRow {
    let [name, owner, kind, item, json] = [name, owner, kind, item, json].map(str::to_owned);
    KeptRow { name, owner, kind, item, now_ms: now_ms(), json }
}

/// Writes entries.
async fn add(app: &App, rows: Vec<KeptRow>) -> Result<(), Error> {
    app.store.record(Batch { kept: Some(KeptChange::Add(rows)), ..Batch::default() }).await.map_err(Error::from)
}

/// Answers `POST /v1/conversations`.
///
/// # Errors
/// What the request has wrong, and a record that cannot be written.
pub async fn create_conversation(app: &App, parts: &Parts, body: Bytes) -> Result<Response<Body>, Error> {
    let fields = object(&body)?;
    let metadata = metadata(&fields).map_err(told)?;
    let (name, owner) = (format!("{PREFIX}{}", unique(24)), mark_of_key(&parts.headers));
    let items = new_items(&body)?;
    let mut rows = vec![entry(&name, &owner, "begun", "", &Value::from(metadata).to_string())];
    rows.extend(items.iter().map(|(id, item)| entry(&name, &owner, "item", id, item)));
    let made = Kept::read(&name, rows.clone()).map(|kept| kept.json()).unwrap_or_default();
    add(app, rows).await?;
    Ok(json_reply(StatusCode::OK, &made))
}

/// Answers `GET`, `POST` and `DELETE /v1/conversations/{id}`.
///
/// # Errors
/// 404 for an unknown one, and what the request has wrong.
pub async fn conversation_of(app: &Arc<App>, parts: &Parts, body: Bytes, id: &str) -> Result<Response<Body>, Error> {
    let kept = match kept(app, id, &parts.headers).await? {
        Ok(kept) => kept,
        Err(missing) => return or_upstream(app, parts, body, missing.told(id, "conversation_id")).await,
    };
    let done = match parts.method.as_str() {
        "DELETE" => {
            let gone = Batch { kept: Some(KeptChange::Delete(id.to_owned())), ..Batch::default() };
            app.store.record(gone).await?;
            json!({"id": id, "object": "conversation.deleted", "deleted": true})
        }
        "POST" => {
            let metadata = Value::from(metadata(&object(&body)?).map_err(told)?);
            add(app, vec![entry(id, &mark_of_key(&parts.headers), "metadata", "", &metadata.to_string())]).await?;
            Kept { metadata, ..kept }.json()
        }
        _ => kept.json(),
    };
    Ok(json_reply(StatusCode::OK, &done))
}

/// Answers `GET` and `POST /v1/conversations/{id}/items`.
///
/// # Errors
/// 404 for an unknown one, and what the request has wrong.
pub async fn conversation_items(app: &Arc<App>, parts: &Parts, body: Bytes, id: &str) -> Result<Response<Body>, Error> {
    let kept = match kept(app, id, &parts.headers).await? {
        Ok(kept) => kept,
        Err(missing) => return or_upstream(app, parts, body, missing.told(id, "conversation_id")).await,
    };
    if parts.method != http::Method::POST {
        return Ok(json_reply(StatusCode::OK, &page(parts).of(kept.listed()).map_err(told)?));
    }
    let (items, owner) = (new_items(&body)?, mark_of_key(&parts.headers));
    if items.is_empty() {
        return Err(wrong("items", "`items` must hold 1 to 20 items"));
    }
    add(app, items.iter().map(|(item, json)| entry(id, &owner, "item", item, json)).collect()).await?;
    let data: Vec<Value> = items.iter().filter_map(|(_, item)| serde_json::from_str(item).ok()).collect();
    let (first, last) = (data.first().map(|item| &item["id"]), data.last().map(|item| &item["id"]));
    let list = json!({"object": "list", "first_id": first, "last_id": last, "has_more": false, "data": data});
    Ok(json_reply(StatusCode::OK, &list))
}

/// Answers `GET` and `DELETE /v1/conversations/{id}/items/{item}`.
///
/// # Errors
/// 404 for an unknown one.
pub async fn conversation_item(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    (id, item): (&str, &str),
) -> Result<Response<Body>, Error> {
    let kept = match kept(app, id, &parts.headers).await? {
        Ok(kept) => kept,
        Err(missing) => return or_upstream(app, parts, body, missing.told(id, "conversation_id")).await,
    };
    let found = kept.items.iter().find(|(id, _)| id == item);
    let Some(found) = found.and_then(|(_, json)| serde_json::from_str::<Value>(json).ok()) else {
        let message = format!("Item with id '{}' not found in conversation '{}'.", plain::line(item), plain::line(id));
        return Err(about("item_id", Error::client(404, "item_not_found", message, "")));
    };
    if parts.method != http::Method::DELETE {
        return Ok(json_reply(StatusCode::OK, &found));
    }
    add(app, vec![entry(id, &mark_of_key(&parts.headers), "removed", item, "")]).await?;
    Ok(json_reply(StatusCode::OK, &kept.json()))
}

/// The items that a request adds to a conversation.
fn new_items(body: &Bytes) -> Result<Vec<(String, String)>, Error> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let items = brought(body, "items", &unique(20)).map_err(told)?;
    if items.len() > MOST_ITEMS {
        let message = format!("`items` holds {} items, and a request may add {MOST_ITEMS}", items.len());
        return Err(about(
            "items",
            Error::client(400, "array_above_max_length", message, "send the others after them"),
        ));
    }
    Ok(items)
}

fn object(body: &Bytes) -> Result<Map<String, Value>, Error> {
    if body.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(told(WireError::NotJson("it must be an object".into()))),
        Err(e) => Err(told(WireError::NotJson(e.to_string()))),
    }
}

fn wrong(param: &str, message: &str) -> Error {
    about(param, Error::client(400, "invalid_value", message, ""))
}

/// An error of a request that no server reads.
pub(super) fn told(e: WireError) -> Error {
    match e.param() {
        Some(param) => wrong(param, &e.to_string()),
        None => Error::client(400, "invalid_json", e.to_string(), ""),
    }
}
