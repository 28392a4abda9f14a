//! What clients of stateful APIs go on from by an id alone: replies, their items, and conversations that they keep here.

use super::types::{Error, Gone, Item, KeptRow, Reply};
use super::{Inner, kept, read};

/// Reads what clients go on from by an id; see [`Store::continued`](super::Store::continued). What is still queued is not seen.
pub struct Continued<'a> {
    pub(super) inner: &'a Inner,
}

impl Continued<'_> {
    /// An item of an earlier reply, by its id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn item(&self, id: &str) -> Result<Option<Item>, Error> {
        self.inner.read(|conn| read::item(conn, id))
    }

    /// An earlier reply that a client may go on from, by its id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reply(&self, id: &str) -> Result<Option<Reply>, Error> {
        self.inner.read(|conn| read::reply(conn, id))
    }

    /// When such a reply was pruned, if it was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reply_gone(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| read::gone(conn, "reply", id))
    }

    /// The log of a kept conversation in order; empty for an unknown one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn kept(&self, name: &str) -> Result<Vec<KeptRow>, Error> {
        self.inner.read(|conn| kept::rows(conn, name))
    }

    /// When a kept conversation was pruned, if it was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn kept_gone(&self, name: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| read::gone(conn, kept::KIND, name))
    }
}
