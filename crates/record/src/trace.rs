//! The trace: what was done to requests and by whom, one event a line, in order.

use super::types::{Error, EventFilter, EventRow};
use super::{Inner, read};

/// Reads the trace; see [`Store::trace`](super::Store::trace).
pub struct Trace<'a> {
    pub(super) inner: &'a Inner,
}

impl Trace<'_> {
    /// Events after the one with id `since` (0 for all) of what a filter names, oldest first, at most `limit`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn since(&self, since: i64, limit: usize, of: &EventFilter) -> Result<Vec<EventRow>, Error> {
        self.inner.read(|conn| read::events(conn, since, limit, of))
    }

    /// The newest events of what a filter names, oldest first, at most `most`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn newest(&self, most: usize, of: &EventFilter) -> Result<Vec<EventRow>, Error> {
        self.since(self.before(most, of)?, most, of)
    }

    /// Where to begin so that the newest `newest` events of what a filter names come first: the id before them, for
    /// [`Trace::since`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn before(&self, newest: usize, of: &EventFilter) -> Result<i64, Error> {
        self.inner.read(|conn| read::event_before(conn, newest, of))
    }
}
