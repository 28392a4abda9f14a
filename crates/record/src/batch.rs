//! What a batch must satisfy before it is queued, and how much of the queue it takes.

use bytes::Bytes;

use super::types::{About, Batch, KeptChange, RuleChange};
use super::{QUEUE_BYTES, recent};

/// What a batch must satisfy by itself. A mistake here is the caller's, not the client's.
pub(super) fn check(batch: &Batch) -> Result<(), String> {
    if batch.conversation.is_none() && !batch.nodes.is_empty() {
        return Err("nodes without a conversation".into());
    }
    if let Some(update) = &batch.conversation
        && let Some((parent, _)) = &update.parent
        && *parent == update.id
    {
        return Err(format!("conversation `{parent}` forks from itself"));
    }
    for node in &batch.nodes {
        if node.depth == 0 || (node.depth == 1) != node.parent.is_none() {
            return Err(format!("a node of depth {} with parent {:?}: depths count from 1", node.depth, node.parent));
        }
    }
    for original in &batch.originals {
        let id = original.id.as_bytes();
        let hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if !(13..=65).contains(&id.len()) || id[0] != b'r' || !id[1..].iter().all(hex) {
            return Err(format!("`{}` is not a record id", original.id.escape_debug()));
        }
    }
    Ok(())
}

/// Bytes that a batch holds, about.
pub(super) fn weigh(batch: &Batch) -> usize {
    let nodes: usize = batch.nodes.iter().map(|n| n.raw.len() + n.text.len() + 200).sum();
    let respelled: usize = batch.respelled.iter().map(|(_, raw)| raw.len() + 100).sum();
    let originals: usize =
        batch.originals.iter().map(|o| o.text.len() + o.raw.as_ref().map_or(0, |raw| raw.len()) + 300).sum();
    let view = batch.view.as_ref().map_or(0, |(_, view)| recent::view_bytes(view));
    let recalled = batch.recalled.iter().flat_map(|r| &r.messages).map(Bytes::len).sum::<usize>();
    let items = batch.told.items.iter().map(|item| item.json.len() + 200).sum::<usize>();
    let last_reply = batch.last_reply.as_ref().map_or(0, |reply| reply.raw.len() + reply.text.len() + 200);
    let reply = batch.told.reply.as_ref().map_or(0, |reply| reply.head.len() + reply.json.len() + 300);
    let about = match &batch.about {
        Some((_, About::Standing(json))) => json.len(),
        _ => 0,
    };
    let rule = match &batch.rule {
        Some(RuleChange::Put(rule)) => rule.text.len() + rule.client.len() + rule.project.len(),
        _ => 0,
    };
    let kept = match &batch.kept {
        Some(KeptChange::Add(rows)) => rows.iter().map(|row| row.json.len() + row.name.len() + 200).sum(),
        _ => 0,
    };
    nodes
        + respelled
        + originals
        + view
        + recalled
        + items
        + last_reply
        + reply
        + about
        + rule
        + kept
        + 500 * (batch.events.len() + 1)
}

/// A batch larger than the queue takes all of it, and is written alone.
pub(super) fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.clamp(1, QUEUE_BYTES)).expect("the queue is smaller than 4 GiB")
}
