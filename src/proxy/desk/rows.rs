//! Rows of the record as they are shown.

use serde_json::{Value, json};

use crate::config::{Gauge, Severity};
use crate::conversation::Tokens;
use crate::conversation::edit::Edit;
use crate::store::{ConversationRow, EventRow};

pub(in crate::proxy) fn row_json(row: &ConversationRow) -> Value {
    json!({
        "id": row.id, "title": row.title, "model": row.model, "upstream": row.upstream, "session": row.session,
        "parent": row.parent.as_ref().map(|(id, depth)| json!({"conversation": id, "messages": depth})),
        "named": row.is_named, "starred": row.is_starred, "helper": row.state["class"] == "helper", "messages": row.messages(), "created_ms": row.created_ms, "updated_ms": row.updated_ms,
        "last_request_ms": last_request(row), "state": row.state,
    })
}

/// When its last request was; a person may have changed it since (`updated_ms`).
fn last_request(row: &ConversationRow) -> i64 {
    row.state["books"]["seen_ms"].as_i64().filter(|seen| *seen > 0).unwrap_or(row.updated_ms)
}

pub(in crate::proxy) fn edit_json(edit: &Edit) -> Value {
    match edit {
        Edit::Text { at, rule, record, text, .. } => {
            json!({"message": at, "rule": rule, "record": record, "text": text.as_ref()})
        }
        Edit::Arguments { at, call, rule, record, .. } => {
            json!({"message": at, "call": call, "rule": rule, "record": record})
        }
        Edit::Recalled { at, text, of, .. } => {
            json!({"message": at, "rule": "recalled", "of": of, "text": text.as_ref()})
        }
        Edit::Fold { from, to, keep, brief, .. } => {
            json!({"from": from, "to": to, "kept": keep, "rule": "fold", "brief": brief.as_ref()})
        }
    }
}

/// An event as JSON.
pub(in crate::proxy) fn event_json(event: &EventRow) -> Value {
    json!({"id": event.id, "time_ms": event.now_ms, "conversation": event.conversation, "kind": event.kind, "data": event.data})
}

/// How full a conversation's window is; `None` where nobody knows the window.
pub(in crate::proxy) fn severity(row: &ConversationRow, gauge: &Gauge) -> Option<Severity> {
    let pressure = row.state["pressure"].as_f64().filter(|_| row.state["window"].is_u64())?;
    Some(gauge.severity(pressure))
}

/// Tokens, with thousands set apart for people.
pub fn grouped(n: Tokens) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
