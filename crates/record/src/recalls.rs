//! What stands between a prefix and a reply to it that no client sees: our own tools' calls and results.

use bytes::Bytes;
use windowsill_core::conversation::Digest;

use super::types::{Error, Recalled, TOOLS};
use super::{Inner, read};

/// Reads what our own tools were asked and answered; see [`Store::recalls`](super::Store::recalls).
pub struct Recalls<'a> {
    pub(super) inner: &'a Inner,
}

impl Recalls<'_> {
    /// Whether any reply to this prefix recalled something.
    pub fn any(&self, chain: &Digest) -> bool {
        self.inner.recent.lock().recalled(chain).0
    }

    /// The messages between a prefix and a reply to it that no client sees; see [`Recalled`]. Of a reply that is not known
    /// word for word (clients trim), what the last one recalled.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn before(&self, chain: &Digest, reply: &Digest) -> Result<Vec<Bytes>, Error> {
        let (any, queued) = self.inner.recent.lock().recalled(chain);
        if !any {
            return Ok(Vec::new());
        }
        let mut all: Vec<Recalled> = queued.into_iter().collect();
        all.extend(self.inner.read(|conn| read::recalled(conn, chain))?);
        all.retain(|r| r.reply != TOOLS);
        let found = all.iter().position(|r| r.reply == *reply).unwrap_or(0);
        Ok(if all.is_empty() { Vec::new() } else { all.swap_remove(found).messages })
    }

    /// The list of tools that was noted for a prefix: see [`TOOLS`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn tools(&self, chain: &Digest) -> Result<Option<Bytes>, Error> {
        if !self.any(chain) {
            return Ok(None);
        }
        let all = self.inner.read(|conn| read::recalled(conn, chain))?;
        Ok(all.into_iter().find(|r| r.reply == TOOLS).and_then(|mut r| r.messages.pop()))
    }
}
