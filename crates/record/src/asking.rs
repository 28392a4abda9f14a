//! What people, agents and later requests read: originals, passages, conversations, replies, the trace.

use bytes::Bytes;

use windowsill_core::apply::Original;
use windowsill_core::conversation::Digest;
use windowsill_core::export::{self, Exported, Head};

use super::types::{ConversationRow, Error, Gone, Hit, NodeRow, Passage, PathRow};
use super::{Store, passages, read, reply, search};

impl Store {
    /// An original by its record id, with the call of the first conversation that recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn original(&self, id: &str) -> Result<Option<Original>, Error> {
        let queued = self.inner.recent.lock().queued_original(id);
        let stored = self.inner.read(|conn| read::original(conn, id))?;
        Ok(stored.or(queued))
    }

    /// The ids of originals that begin so, at most four. What waits to be written is not among them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn originals_like(&self, beginning: &str) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::original_names(conn, beginning))
    }

    /// An original by its record id, if this conversation, or one that it forked from, recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn original_in(&self, id: &str, conversation: &str) -> Result<Option<Original>, Error> {
        let queued = self.inner.recent.lock().queued_original(id).filter(|o| o.conversation == conversation);
        let stored = self.inner.read(|conn| read::original_in(conn, id, conversation))?;
        Ok(stored.or(queued))
    }

    /// The passages that fit a query, the best first, each as one hit; see [`Store::passages`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn search(&self, query: &str, conversation: Option<&str>, limit: usize) -> Result<Vec<Hit>, Error> {
        let found = self.passages(query, conversation, limit, &mut |_| true)?;
        Ok(found.into_iter().filter_map(|mut one| Some(std::mem::take(one.said.get_mut(one.center)?))).collect())
    }

    /// The passages of originals and messages that fit a query, the best first, short messages with those beside them; in one
    /// conversation and what it forked from, or everywhere. What stands there as it is written comes first, then what has its
    /// phrases, paths and identifiers, then what has its rarest words. Nothing in a query is syntax but quotes.
    ///
    /// `keep` says of each passage whether it may be shown, also beside another one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn passages(
        &self,
        query: &str,
        conversation: Option<&str>,
        limit: usize,
        keep: &mut dyn FnMut(&mut Hit) -> bool,
    ) -> Result<Vec<Passage>, Error> {
        self.inner.read(|conn| search::search(conn, query, conversation, limit, keep))
    }

    /// How many conversations that an older windowsill recorded are not searched yet.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn unindexed(&self) -> Result<usize, Error> {
        self.inner.read(passages::unindexed)
    }

    /// Word of a record that retention removed.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pruned_original(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| read::gone(conn, "original", id))
    }

    /// Word of a conversation that retention removed.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pruned_conversation(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| read::gone(conn, "conversation", id))
    }

    /// The messages of a history in order, as they came, by the chain digest of the last one. Holds them all in RAM.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_to(&self, tip: &Digest) -> Result<Vec<Bytes>, Error> {
        self.inner.read(|conn| read::messages_to(conn, tip))
    }

    /// Conversations, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn conversations(&self, limit: usize) -> Result<Vec<ConversationRow>, Error> {
        self.inner.read(|conn| read::conversations(conn, limit))
    }

    /// The conversation of this id, or the only one whose id starts so, or the last active one of this session id.
    ///
    /// # Errors
    /// [`Error::Ambiguous`] when several ids start so; or when the database cannot be read.
    pub fn conversation(&self, id_or_prefix: &str) -> Result<Option<ConversationRow>, Error> {
        self.inner.with(|conn| read::conversation(conn, &self.inner.path, id_or_prefix))
    }

    /// A conversation's messages in order, along the chain of its tip and so through what it forked from. Holds them
    /// all in RAM.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages(&self, conversation: &str) -> Result<Vec<NodeRow>, Error> {
        self.inner.read(|conn| read::messages(conn, conversation))
    }

    /// What a conversation was answered last, where its client has not come back since: the message behind [`Store::messages`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_reply(&self, conversation: &str) -> Result<Option<NodeRow>, Error> {
        self.inner.read(|conn| reply::last(conn, conversation))
    }

    /// All that is known of a conversation: its messages, and what it was answered last.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_and_reply(&self, conversation: &str) -> Result<Vec<NodeRow>, Error> {
        let mut all = self.messages(conversation)?;
        all.extend(self.last_reply(conversation)?);
        Ok(all)
    }

    /// What each message is on the way to a conversation's tip.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn path(&self, conversation: &str) -> Result<Vec<PathRow>, Error> {
        self.inner.read(|conn| read::path(conn, conversation))
    }

    /// The messages `from..to` of a conversation, in order, as far as there are so many.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_between(&self, conversation: &str, from: usize, to: usize) -> Result<Vec<NodeRow>, Error> {
        self.inner.read(|conn| read::messages_between(conn, conversation, from, to))
    }

    /// The chain digests of a conversation's messages, in order: what [`Store::view`] is asked with.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn chain(&self, conversation: &str) -> Result<Vec<Digest>, Error> {
        self.inner.read(|conn| read::chain(conn, conversation))
    }

    /// One message of a conversation by its index: the one that was recorded there first, whoever recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn message(&self, conversation: &str, at: usize) -> Result<Option<NodeRow>, Error> {
        self.inner.read(|conn| read::message(conn, conversation, at))
    }

    /// A conversation as readable Markdown, its newest fold marked; `None` for an unknown one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn history(&self, conversation: &str) -> Result<Option<String>, Error> {
        let Some(row) = self.conversation(conversation)?.filter(|row| row.id == conversation) else { return Ok(None) };
        let mut messages = self.messages(conversation)?;
        let chain: Vec<Digest> = messages.iter().map(|m| m.chain).collect();
        let view = self.view(&chain)?.map(|(_, view)| view);
        messages.extend(self.last_reply(conversation)?);
        let exported: Vec<Exported<'_>> =
            messages.iter().map(|m| Exported { at: m.at, role: &m.role, raw: &m.raw }).collect();
        Ok(Some(export::markdown(Head { id: &row.id, title: &row.title }, &exported, view.as_deref())))
    }

    /// The messages of a conversation as JSON Lines, with what it was answered last; `None` for an unknown one. See
    /// [`export::jsonl`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn jsonl(&self, conversation: &str) -> Result<Option<String>, Error> {
        if self.conversation(conversation)?.is_none_or(|row| row.id != conversation) {
            return Ok(None);
        }
        let messages = self.messages_and_reply(conversation)?;
        Ok(Some(export::jsonl(messages.iter().map(|m| &m.raw[..]))))
    }
}
