//! How a change of the record is written into an entry of the log, and read back. An entry is JSON; its texts are taken out of it
//! and stand beside it, each under its digest.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use windowsill_core::apply::Original;
use windowsill_core::conversation::edit::View;
use windowsill_core::conversation::{Digest, Text};

use super::{Key, Texts};
use crate::as_text::{self, Said};
use crate::passages;
use crate::recent::Work;
use crate::types::{
    About, Batch, ConversationUpdate, Counted, Event, KeptChange, LastReply, Node, Recalled, RuleChange, Told,
};

/// The form of the entries that are written here. Of a larger number, nothing is read.
const FORM: u64 = 1;

/// A longer string is taken out of an entry (bytes): names and digests are shorter.
const NAME: usize = 64;

/// Keys whose strings are taken out of an entry however short they are: they hold words of people and models.
const WORDS: [&str; 13] =
    ["raw", "text", "title", "named", "json", "data", "messages", "brief", "arguments", "call", "standing", "t", "b"];

/// Stands where a text was taken out.
const TAKEN: &str = "$";

/// Stands for a text that is gone. It is read as JSON in places.
const GONE: &[u8] = b"null";

/// A change of the record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// A batch, and the time that it has where it says none.
    Batch { now_ms: i64, batch: Box<Written> },
    /// A conversation goes.
    Remove { name: String, why: String, now_ms: i64 },
    /// What clients keep under ids and did not use since then goes.
    Unused { before_ms: i64, why: String, now_ms: i64 },
    /// The end of a pass that removed something: what nobody needs any more goes, and the trace says what went.
    Tidy { before_ms: Option<i64>, event: Option<Event> },
    /// Rows of an earlier record, as they are.
    Rows(Rows),
}

/// Rows of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rows {
    /// The table.
    pub(crate) table: String,
    /// Its columns.
    pub(crate) columns: Vec<String>,
    /// The rows, each with a value a column.
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A value of a row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Cell {
    #[serde(rename = "n")]
    Null,
    #[serde(rename = "i")]
    Integer(i64),
    #[serde(rename = "r")]
    Real(f64),
    #[serde(rename = "t")]
    Text(String),
    #[serde(rename = "b", with = "as_text::bytes")]
    Blob(Bytes),
}

/// A batch as it stands in an entry.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationUpdate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<WrittenNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    respelled: Vec<Respelled>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    originals: Vec<WrittenOriginal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<(Digest, View)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recalled: Option<Recalled>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_reply: Option<LastReply>,
    #[serde(skip_serializing_if = "Told::is_empty")]
    told: Told,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<(String, About)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event>,
    durable: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct WrittenNode {
    chain: Digest,
    parent: Option<Digest>,
    depth: usize,
    role: String,
    digest: Digest,
    raw: Said,
    /// What is searched of it, where that is not what its JSON says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Respelled {
    chain: Digest,
    raw: Said,
}

#[derive(Debug, Serialize, Deserialize)]
struct WrittenOriginal {
    id: String,
    conversation: String,
    at: usize,
    kind: String,
    tool: Option<String>,
    call: Option<String>,
    text: String,
    raw: Option<Said>,
}

impl Change {
    /// A batch that waits to be written.
    pub(crate) fn of(work: &Work) -> Change {
        let Work { batch, view, now_ms, .. } = work;
        let Batch { conversation, nodes, respelled, originals, recalled, last_reply, told, .. } = batch;
        let written = Written {
            conversation: conversation.clone(),
            nodes: nodes.iter().map(WrittenNode::of).collect(),
            respelled: respelled.iter().map(|(chain, raw)| Respelled { chain: *chain, raw: Said::of(raw) }).collect(),
            originals: originals.iter().map(WrittenOriginal::of).collect(),
            view: view.as_ref().map(|(chain, view)| (*chain, View::clone(view))),
            recalled: recalled.clone(),
            last_reply: last_reply.clone(),
            told: told.clone(),
            counted: batch.counted,
            about: batch.about.clone(),
            rule: batch.rule.clone(),
            kept: batch.kept.clone(),
            events: batch.events.clone(),
            durable: batch.durable,
        };
        Change::Batch { now_ms: *now_ms, batch: Box::new(written) }
    }

    /// The entry's body, and its texts.
    pub(crate) fn encode(&self) -> Result<(String, Texts), String> {
        let mut change = serde_json::to_value(self).map_err(|e| e.to_string())?;
        let mut texts = HashMap::new();
        take_out(&mut change, "", &mut texts);
        Ok((json!({"form": FORM, "change": change}).to_string(), texts.into_iter().collect()))
    }

    /// Reads an entry back. A text that is gone is left out.
    pub(crate) fn decode(body: &str, texts: &HashMap<Key, Vec<u8>>) -> Result<Change, String> {
        let mut entry: Value = serde_json::from_str(body).map_err(|e| e.to_string())?;
        let form = entry["form"].as_u64().unwrap_or(0);
        if !(1..=FORM).contains(&form) {
            return Err(format!(
                "it has form {form}, and this windowsill reads up to {FORM}: use the newer windowsill"
            ));
        }
        let mut change = entry["change"].take();
        put_back(&mut change, texts)?;
        serde_json::from_value(change).map_err(|e| e.to_string())
    }
}

/// The texts that a body names.
pub(crate) fn keys(body: &str) -> Result<Vec<Key>, String> {
    fn walk(value: &Value, out: &mut Vec<Key>) {
        match value {
            Value::Array(all) => all.iter().for_each(|one| walk(one, out)),
            Value::Object(all) => match taken(all) {
                Some(key) => out.push(key),
                None => all.values().for_each(|one| walk(one, out)),
            },
            _ => {}
        }
    }
    let entry: Value = serde_json::from_str(body).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    walk(&entry["change"], &mut out);
    Ok(out)
}

/// The digest under which a text stands beside the entries.
pub(crate) fn key_of(text: &[u8]) -> Key {
    *blake3::hash(text).as_bytes()
}

/// The digest in an object that stands for a text. No object of an entry has this key but those: trees of others are in entries as
/// strings.
fn taken(object: &Map<String, Value>) -> Option<Key> {
    let hex = object.get(TAKEN)?.as_str()?;
    blake3::Hash::from_hex(hex).ok().map(|hash| *hash.as_bytes())
}

fn take_out(value: &mut Value, under: &str, texts: &mut HashMap<Key, Vec<u8>>) {
    match value {
        Value::String(text) if text.len() > NAME || !text.is_empty() && WORDS.contains(&under) => {
            let key = key_of(text.as_bytes());
            texts.entry(key).or_insert_with(|| std::mem::take(text).into_bytes());
            *value = json!({ TAKEN: blake3::Hash::from_bytes(key).to_hex().as_str() });
        }
        Value::Array(all) => all.iter_mut().for_each(|one| take_out(one, under, texts)),
        Value::Object(all) => all.iter_mut().for_each(|(name, one)| take_out(one, name, texts)),
        _ => {}
    }
}

fn put_back(value: &mut Value, texts: &HashMap<Key, Vec<u8>>) -> Result<(), String> {
    match value {
        Value::Array(all) => all.iter_mut().try_for_each(|one| put_back(one, texts)),
        Value::Object(all) => match taken(all) {
            Some(key) => {
                let text = texts.get(&key).map_or(GONE, Vec::as_slice);
                *value = Value::String(String::from_utf8(text.to_vec()).map_err(|e| e.to_string())?);
                Ok(())
            }
            None => all.values_mut().try_for_each(|one| put_back(one, texts)),
        },
        _ => Ok(()),
    }
}

impl WrittenNode {
    fn of(node: &Node) -> WrittenNode {
        let text = (passages::said(node.raw.to_vec()) != node.text).then(|| node.text.as_str().to_owned());
        let Node { chain, parent, depth, role, digest, raw, .. } = node;
        let (role, raw) = ((*role).to_owned(), Said::of(raw));
        WrittenNode { chain: *chain, parent: *parent, depth: *depth, role, digest: *digest, raw, text }
    }

    fn node(self) -> Node {
        let role = ["system", "user", "assistant", "tool"].into_iter().find(|role| *role == self.role);
        let raw = self.raw.bytes();
        let text = self.text.map_or_else(|| passages::said(raw.to_vec()), Text::from);
        let WrittenNode { chain, parent, depth, digest, .. } = self;
        Node { chain, parent, depth, role: role.unwrap_or("other"), digest, raw, text }
    }
}

impl WrittenOriginal {
    fn of(o: &Original) -> WrittenOriginal {
        WrittenOriginal {
            id: o.id.clone(),
            conversation: o.conversation.clone(),
            at: o.at,
            kind: o.kind.clone(),
            tool: o.tool.clone(),
            call: o.call.clone(),
            text: o.text.as_str().to_owned(),
            raw: o.raw.as_deref().map(Said::of),
        }
    }

    fn original(self) -> Original {
        let WrittenOriginal { id, conversation, at, kind, tool, call, text, raw } = self;
        Original { id, conversation, at, kind, tool, call, text: text.into(), raw: raw.map(Said::bytes) }
    }
}

impl Written {
    /// The batch, to be written here.
    pub(crate) fn work(self, now_ms: i64) -> Work {
        let batch = Batch {
            conversation: self.conversation,
            nodes: self.nodes.into_iter().map(WrittenNode::node).collect(),
            respelled: self.respelled.into_iter().map(|one| (one.chain, one.raw.bytes())).collect(),
            originals: self.originals.into_iter().map(WrittenOriginal::original).collect(),
            view: None,
            recalled: self.recalled,
            last_reply: self.last_reply,
            told: self.told,
            counted: self.counted,
            about: self.about,
            rule: self.rule,
            kept: self.kept,
            events: self.events,
            durable: self.durable,
        };
        Work { batch, view: self.view.map(|(chain, view)| (chain, Arc::new(view))), now_ms, over: None }
    }
}
