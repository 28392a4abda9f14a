//! The prompt that was forwarded last, message by message, and what the next one has in common with it.

use std::hash::{DefaultHasher, Hasher as _};

use serde_json::{Value, json};

use crate::conversation::{Message, Tokens};

/// A prompt that was forwarded, message by message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Sent {
    /// What was forwarded: tools first, then each message.
    pub(in crate::proxy) forwarded: Vec<Item>,
    /// What the client sent: tools and leading system messages as one, then each message of the body.
    pub(in crate::proxy) client: Vec<u64>,
}

/// One message of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) struct Item {
    /// Tells its bytes from others.
    pub(in crate::proxy) mark: u64,
    /// Its tokens.
    pub(in crate::proxy) tokens: Tokens,
    /// Where it stands in what the client sent, as an index into [`Sent::client`].
    pub(in crate::proxy) at: Option<usize>,
}

/// Why a prompt does not begin with the whole of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Because {
    /// The client changed its own history.
    Client,
    /// A view was made anew.
    Rewrite,
}

impl Because {
    /// As it stands in events and metrics.
    pub(in crate::proxy) fn as_str(self) -> &'static str {
        match self {
            Because::Client => "client",
            Because::Rewrite => "rewrite",
        }
    }
}

/// What two prompts in a row have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) struct Prefix {
    /// Tokens that both begin with. Counted by whole messages.
    pub(in crate::proxy) tokens: Tokens,
    /// Tokens of the last prompt behind these.
    pub(in crate::proxy) lost: Tokens,
    /// Tokens of the new prompt behind these that stand for what the client had sent before: what the server reads again.
    pub(in crate::proxy) again: Tokens,
    /// Why any were lost.
    pub(in crate::proxy) because: Option<Because>,
}

impl Prefix {
    /// As fields of an event of a prompt of which the server evaluated so many tokens, where it says so. What it had put aside and took
    /// back, it did not read again.
    pub(in crate::proxy) fn json(&self, evaluated: Option<Tokens>) -> Value {
        let again = self.again.min(evaluated.unwrap_or(Tokens::MAX));
        json!({"tokens": self.tokens, "lost": self.lost, "again": again, "because": self.because.map(Because::as_str)})
    }
}

/// Compares a prompt with the last one of its conversation.
pub(in crate::proxy) fn compare(last: &Sent, now: &Sent) -> Prefix {
    let same = last.forwarded.iter().zip(&now.forwarded).take_while(|(a, b)| a.mark == b.mark).count();
    let sum = |items: &[Item]| items.iter().map(|i| i.tokens).fold(0, Tokens::saturating_add);
    let lost = sum(&last.forwarded[same..]);
    let because = (same < last.forwarded.len()).then(|| {
        let unchanged = last.client.iter().zip(&now.client).take_while(|(a, b)| a == b).count();
        // The client's doing where the first message that differs is one that it changed or took back.
        let broken_at = last.forwarded[same].at.or_else(|| now.forwarded.get(same).and_then(|i| i.at));
        if broken_at.is_some_and(|at| at >= unchanged) { Because::Client } else { Because::Rewrite }
    });
    // What is ours, such as a brief, is written for what the client had sent before.
    let is_old = |item: &&Item| item.at.is_none_or(|at| at < last.client.len());
    let old = now.forwarded[same..].iter().filter(is_old).map(|i| i.tokens);
    let again = because.map_or(0, |_| old.fold(0, Tokens::saturating_add));
    Prefix { tokens: sum(&now.forwarded[..same]), lost, again, because }
}

/// Tells bytes from others, in this process alone: every message of a history is marked with each request.
pub(in crate::proxy) fn mark(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The client's own bytes of a message.
pub(in crate::proxy) fn own_bytes(message: &Message) -> &[u8] {
    if message.raw.is_empty() { message.bytes() } else { &message.raw }
}

/// What tells the messages that a client sent from others.
pub(in crate::proxy) fn client_marks(tools: Option<&[u8]>, system: &[Message], body: &[Message]) -> Vec<u64> {
    let mut head = mark(tools.unwrap_or_default());
    for message in system {
        head = head.rotate_left(1) ^ mark(own_bytes(message));
    }
    std::iter::once(head).chain(body.iter().map(|m| mark(own_bytes(m)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(forwarded: &[(u64, Option<usize>)], client: &[u64]) -> Sent {
        let item = |(mark, at): &(u64, Option<usize>)| Item { mark: *mark, tokens: 10, at: *at };
        Sent { forwarded: forwarded.iter().map(item).collect(), client: client.to_vec() }
    }

    #[test]
    fn what_was_lost_and_whose_doing_it_was() {
        let last = sent(&[(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(3))], &[0, 1, 2, 3]);
        let longer = sent(&[(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(3)), (4, Some(4))], &[0, 1, 2, 3, 4]);
        assert_eq!(compare(&last, &longer), Prefix { tokens: 40, lost: 0, again: 0, because: None });
        // A result was cleared.
        let cleared = sent(&[(0, Some(0)), (1, Some(1)), (9, Some(2)), (3, Some(3)), (4, Some(4))], &[0, 1, 2, 3, 4]);
        let rewritten = |tokens, lost, again| Prefix { tokens, lost, again, because: Some(Because::Rewrite) };
        assert_eq!(compare(&last, &cleared), rewritten(20, 20, 20));
        // The client edited message 2.
        let edited = sent(&[(0, Some(0)), (1, Some(1)), (8, Some(2)), (3, Some(3))], &[0, 1, 8, 3]);
        assert_eq!(compare(&last, &edited), Prefix { tokens: 20, lost: 20, again: 20, because: Some(Because::Client) });
        // The client took messages back.
        let shorter = sent(&[(0, Some(0)), (1, Some(1))], &[0, 1]);
        assert_eq!(compare(&last, &shorter), Prefix { tokens: 20, lost: 20, again: 0, because: Some(Because::Client) });
        // Another system prompt: the head is the client's.
        let system = sent(&[(7, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(3))], &[7, 1, 2, 3]);
        assert_eq!(compare(&last, &system).because, Some(Because::Client));
        // A fold: the anchor is another, though the client's own message is the same.
        let folded = sent(&[(0, Some(0)), (5, Some(1)), (6, None), (4, Some(4))], &[0, 1, 2, 3, 4]);
        assert_eq!(compare(&last, &folded), rewritten(10, 30, 20));
    }
}
