//! Which conversations there are: by name, by session, by what they begin with and what they hold.

use windowsill_core::conversation::Digest;

use super::types::Error;
use super::{Inner, read};

/// Finds names of conversations; see [`Store::catalog`](super::Store::catalog).
pub struct Catalog<'a> {
    pub(super) inner: &'a Inner,
}

impl Catalog<'_> {
    /// Whether a conversation, or one that it forked from, begins with this message.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn begins_with(&self, conversation: &str, root: &Digest) -> Result<bool, Error> {
        self.inner.read(|conn| read::begins_with(conn, conversation, root))
    }

    /// The conversations that recorded an original.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn recorded_in(&self, id: &str) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::recorded_in(conn, id))
    }

    /// The names of conversations that begin so, at most `most`, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn named(&self, prefix: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::named(conn, prefix, most))
    }

    /// A conversation and those that forked from it, at most `most`: the one itself first, then the last active.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn family(&self, conversation: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::family(conn, conversation, most))
    }

    /// When a conversation was last used, of those that were used at `until_ms` or before (Unix time in milliseconds).
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_used(&self, until_ms: i64) -> Result<Option<i64>, Error> {
        self.inner.read(|conn| read::last_used(conn, until_ms))
    }

    /// The conversations of a session, as clients name it, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn of_session(&self, session: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::of_session(conn, session, most))
    }
}
