//! Whether the record can be written: what the last write said, and a database that was deleted while it was open.

use std::sync::Arc;

use super::presence::Presence;
use super::recent::Recent;
use super::schema;
use super::types::{Error, Trouble};
use super::writer::{Writer, unix_ms};

/// Notes that a batch was written.
pub(super) fn written(recent: &mut Recent) {
    if recent.trouble.take().is_some() {
        tracing::info!("the record can be written again");
    }
}

/// Notes that a batch was not. A batch that contradicts the record is no trouble of the disk's, and is logged only where
/// nobody waits for it.
pub(super) fn failed(recent: &mut Recent, error: &Error, nobody_waits: bool) {
    if !error.is_unwritable() {
        if nobody_waits {
            tracing::warn!(%error, "a batch was not written to the record");
        }
        return;
    }
    recent.failures += 1;
    let since_ms = recent.trouble.as_ref().map_or_else(unix_ms, |t| t.since_ms);
    if recent.trouble.is_none() {
        tracing::error!(%error, "the record cannot be written");
    }
    recent.trouble = Some(Trouble { since_ms, error: error.clone() });
}

impl Writer {
    /// Opens the database again where its file is not the one that was opened: somebody deleted or replaced it. What was in
    /// it is gone; what comes from now on is kept.
    pub(super) fn mend(&mut self) -> Result<(), Error> {
        if schema::identity(&self.path) == self.recent.lock().opened {
            return Ok(());
        }
        let Some(folder) = self.path.parent() else { return Ok(()) };
        tracing::error!(path = %self.path.display(), "the record was deleted or replaced while windowsill ran; it begins anew");
        schema::private_dir(folder)?;
        self.files.create()?;
        let presence = Presence::new(folder)?;
        let conn = schema::open_writer(&self.path)?;
        self.readers.reopen(&self.path)?;
        self.presence = Arc::new(presence);
        self.conn = conn;
        let rows = super::read::view_rows(&self.conn).map_err(|e| schema::sqlite_error(&self.path, e))?;
        let recalled = super::read::with_recalled(&self.conn).map_err(|e| schema::sqlite_error(&self.path, e))?;
        let mut recent = self.recent.lock();
        recent.opened = schema::identity(&self.path);
        recent.start_anew();
        recent.relearn(rows, recalled);
        Ok(())
    }
}
