//! The record as one log that several windowsills share: every change of it, in one order.
//!
//! Each windowsill keeps its own database as before, a *replica*, and builds it by doing what the log says, in order (see
//! `replica`). So a write goes to the log first, and what is numbered, ranked or worded by the record is the same everywhere.
//! What a change needs of a clock or of chance is in its entry. Texts are kept once, beside the entries, by their digest: with a
//! conversation that is deleted they go, and its entries stay without them.

pub(super) mod entry;
#[cfg(test)]
pub(super) mod memory;
pub(super) mod postgres;
mod tls;

use std::collections::HashMap;
use std::sync::Arc;

use windowsill_core::conversation::Digest;

/// Digest of a text that stands beside the entries (BLAKE3).
pub(super) type Key = [u8; 32];

/// Texts that stand beside the entries.
pub(super) type Texts = Vec<(Key, Vec<u8>)>;

/// Tells one writing from all others, so that a writer finds out whether it was done when the connection broke meanwhile.
pub(super) type Origin = [u8; 16];

/// What can go wrong with the log.
#[derive(Debug, Clone)]
pub(super) enum LogError {
    /// It cannot be reached, or not used at present. Whether what was asked for is done is not known.
    Away(String),
    /// It can be reached, and is not what was expected.
    Unfit(String),
}

/// A log that a windowsill has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Joined {
    /// Tells this log from all others.
    pub(super) id: [u8; 16],
    /// The secret of its marks, which all windowsills share.
    pub(super) secret: [u8; 32],
    /// The number of its newest entry; 0 where there is none.
    pub(super) head: u64,
}

/// An entry that is to be written.
#[derive(Debug, Clone)]
pub(super) struct NewEntry {
    /// Tells this writing from others.
    pub(super) origin: Origin,
    /// The conversation that its texts belong to, and go with; empty for none.
    pub(super) conversation: String,
    /// What changes, without texts.
    pub(super) body: String,
    /// The texts.
    pub(super) texts: Texts,
    /// What it makes a view of, and the newest entry that was known then. Where another one made a view of the same since, this
    /// entry is not written.
    pub(super) claim: Option<(Digest, u64)>,
    /// Messages that go with it: what was prepared with a view of them before does not stand.
    pub(super) ends: Vec<Digest>,
}

/// An entry as it was written.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Its number: they count from 1, without gaps.
    pub(super) seq: u64,
    /// Tells this writing from others.
    pub(super) origin: Origin,
    /// What changes, without texts.
    pub(super) body: String,
    /// The texts that are still there.
    pub(super) texts: HashMap<Key, Vec<u8>>,
}

/// What came of an attempt to write.
pub(super) enum Appended {
    /// Others were faster: nothing was written, and what they wrote comes first.
    Behind,
    /// The numbers that the entries got; `None` for one whose claim came second.
    Done(Vec<Option<u64>>),
}

/// The log of one record. Used by one thread; connects by itself, and again after an error.
pub(super) trait Log: Send {
    /// Joins the log, which begins with the first one that does.
    fn join(&mut self) -> Result<Joined, LogError>;

    /// Names the log that is expected, where it could not be joined yet.
    fn expect(&mut self, id: [u8; 16]);

    /// Has a log that has no entries yet use this secret.
    fn begin(&mut self, secret: &[u8; 32]) -> Result<(), LogError>;

    /// The entries behind `after`, some megabytes of them at most; none where that is the newest.
    fn read(&mut self, after: u64) -> Result<Vec<Entry>, LogError>;

    /// Writes entries behind `after`, all in one step.
    fn append(&mut self, after: u64, new: &[NewEntry]) -> Result<Appended, LogError>;

    /// Removes the texts that only this conversation had up to the entry `upto`; or leaves them to the one that forked from it.
    fn forget(&mut self, conversation: &str, upto: u64, heir: Option<&str>) -> Result<(), LogError>;
}

/// Where logs are.
pub(super) trait Logs: Send + Sync {
    /// The log of the record with this name.
    fn open(&self, name: &str) -> Box<dyn Log>;

    /// Calls `news` from a thread of its own whenever there may be a new entry in the log with this name, until it returns false.
    fn listen(&self, name: &str, news: Box<dyn FnMut() -> bool + Send>);
}

/// A record that several windowsills share, in a PostgreSQL database.
#[derive(Clone)]
pub struct Shared {
    pub(super) logs: Arc<dyn Logs>,
    pub(super) name: String,
}

impl Shared {
    /// The record of this name in the database that a `postgres://` URL names. Nothing is connected to yet.
    ///
    /// # Errors
    /// Why the URL cannot be used. It quotes nothing of it, for there may be a password in it.
    pub fn postgres(url: &str, name: &str) -> Result<Shared, String> {
        Ok(Shared { logs: Arc::new(postgres::Database::of(url)?), name: name.to_owned() })
    }

    /// Another record in the same database.
    pub(super) fn beside(&self, name: &str) -> Shared {
        Shared { logs: Arc::clone(&self.logs), name: name.to_owned() }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({})", self.name)
    }
}
