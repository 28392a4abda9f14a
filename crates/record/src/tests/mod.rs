//! Tests of the record as its callers see it.

mod crash;
mod housekeeping;
mod kill;
mod oracle;
mod outbox;
mod postgres;
mod prune;
mod queue;
mod reading;
mod reply;
mod searching;
mod shared;
mod tls;

use bytes::Bytes;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::recent::{Found, Recent, Tip, Work};
use super::*;
use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::{Edit, Rule, View};

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// Chain digests of a history given as the texts of its messages.
fn chain_of<S: AsRef<str>>(texts: &[S]) -> Vec<Digest> {
    let mut chain = Vec::new();
    let mut last = Digest::default();
    for text in texts {
        last = Digest::of(format!("{}{}", last.hex(), text.as_ref()).as_bytes());
        chain.push(last);
    }
    chain
}

fn node(chain: &[Digest], at: usize, role: &'static str, raw: &serde_json::Value) -> Node {
    let raw = raw.to_string();
    Node {
        chain: chain[at],
        parent: at.checked_sub(1).map(|i| chain[i]),
        depth: at + 1,
        role,
        digest: Digest::of(raw.as_bytes()),
        text: windowsill_core::export::plain(raw.as_bytes()).into(),
        raw: Bytes::from(raw),
    }
}

fn update(id: &str, chain: &[Digest]) -> ConversationUpdate {
    ConversationUpdate {
        id: id.into(),
        parent: None,
        session: None,
        model: "m".into(),
        upstream: "u".into(),
        tip: chain.last().copied().unwrap_or_default(),
        depth: chain.len(),
        state: json!({ "window": 4096 }).to_string(),
        now_ms: 1_000 + chain.len() as i64,
        title: format!("title of {id}"),
    }
}

/// Messages `from..` of a history of plain texts: user and assistant in turn.
fn batch<S: AsRef<str>>(id: &str, texts: &[S], from: usize) -> Batch {
    let chain = chain_of(texts);
    let nodes = (from..texts.len())
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            node(&chain, at, role, &json!({ "role": role, "content": texts[at].as_ref() }))
        })
        .collect();
    Batch { conversation: Some(update(id, &chain)), nodes, ..Batch::default() }
}

fn original(conversation: &str, at: usize, text: &str) -> Original {
    Original {
        id: original_id(text),
        conversation: conversation.into(),
        at,
        kind: "tool_result".into(),
        tool: Some("read".into()),
        call: Some("read(path=\"a\")".into()),
        text: text.into(),
        raw: None,
    }
}

fn text_edit(at: usize, text: &str) -> Edit {
    Edit::Text {
        at,
        digest: Digest::of(text.as_bytes()),
        rule: Rule::Clear,
        text: format!("[cleared {text}]").into(),
        record: original_id(text),
    }
}

fn fold(from: usize, to: usize, brief: &str) -> Edit {
    Edit::Fold { from, to, keep: vec![], brief: brief.into(), unread: vec![], read: Some(to), struck: vec![] }
}

fn view_of(messages: usize, edits: Vec<Edit>) -> View {
    View { messages, edits, ..View::default() }
}
