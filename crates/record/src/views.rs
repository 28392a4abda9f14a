//! What is known of a history that a client sends: its conversation, its view, its counts, what was recalled in it.

use std::sync::Arc;

use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::View;

use super::recent::Found;
use super::types::{Error, Located, Rule};
use super::{Store, locate, read};

/// How many messages from the end [`Store::counted`] looks back: some turns with their tool steps.
const COUNTED_BACK: usize = 64;

impl Store {
    /// The view of the deepest prefix that has one, and the index of that prefix's last message.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn view(&self, chain: &[Digest]) -> Result<Option<(usize, Arc<View>)>, Error> {
        locate::catch_up(&self.inner)?;
        loop {
            let found = self.inner.recent.lock().find_view(chain);
            let (at, row) = match found {
                None => return Ok(None),
                Some((at, Found::Here(view))) => return Ok(Some((at, view))),
                Some((at, Found::Row(row))) => (at, row),
            };
            match self.inner.with(|conn| read::view(conn, &self.inner.path, row)) {
                Ok(view) => {
                    let view = Arc::new(view);
                    self.inner.recent.lock().keep_view(row, view.clone());
                    return Ok(Some((at, view)));
                }
                // Another process's retention took it: what remains is a view of fewer messages.
                Err(e) if e.is_no_row() => self.inner.recent.lock().forget_view(&chain[at], row),
                Err(e) => return Err(e),
            }
        }
    }

    /// The longest prefix of a history whose prompt a server has counted in this view, by its number of messages, and that
    /// prompt's tokens. Looks back some turns.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn counted(&self, chain: &[Digest], view: &Digest) -> Result<Option<(usize, u32)>, Error> {
        self.inner.read(|conn| {
            for (at, digest) in chain.iter().enumerate().rev().take(COUNTED_BACK) {
                if let Some(counted) = read::counted(conn, digest)?.filter(|c| c.view == *view) {
                    return Ok(Some((at + 1, counted.tokens)));
                }
            }
            Ok(None)
        })
    }

    /// The longest prefix of a history whose prompt a server has counted in any view, by its number of messages; 0 where there is
    /// none. Looks back some turns.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn counted_any(&self, chain: &[Digest]) -> Result<usize, Error> {
        self.inner.read(|conn| {
            for (at, digest) in chain.iter().enumerate().rev().take(COUNTED_BACK) {
                if read::counted(conn, digest)?.is_some() {
                    return Ok(at + 1);
                }
            }
            Ok(0)
        })
    }

    /// What people want of a conversation, as [`About::Standing`](super::About::Standing) wrote it last.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn standing(&self, conversation: &str) -> Result<Option<String>, Error> {
        self.inner.read(|conn| read::standing(conn, conversation))
    }

    /// All rules that people want in new conversations, by number, and the highest number that one ever had.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn rules(&self) -> Result<(Vec<Rule>, i64), Error> {
        self.inner.read(read::rules)
    }

    /// The newest of the views that a history had so far, the one that it has among them, of which this holds.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn find_view(&self, chain: &[Digest], holds: impl Fn(&View) -> bool) -> Result<Option<View>, Error> {
        let mut row = self.inner.read(|conn| read::view_before(conn, chain, i64::MAX))?;
        while let Some(before) = row {
            let view = self.inner.with(|conn| read::view(conn, &self.inner.path, before))?;
            if holds(&view) {
                return Ok(Some(view));
            }
            row = self.inner.read(|conn| read::view_before(conn, chain, before))?;
        }
        Ok(None)
    }

    /// How much of a history is known, and to which conversation; `None` when not even its first message is.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn locate(&self, chain: &[Digest]) -> Result<Option<Located>, Error> {
        locate::locate(&self.inner, chain)
    }
}
