//! A database that was deleted or replaced while it was open: the record begins anew.

use std::sync::Arc;

use super::presence::Presence;
use super::schema;
use super::types::Error;
use super::writer::Writer;

impl Writer {
    /// Opens the database again where its file is not the one that was opened: somebody deleted or replaced it. What was in
    /// it is gone; what comes from now on is kept.
    pub(super) fn mend(&mut self) -> Result<(), Error> {
        if schema::identity(&self.path) == self.recent.lock().base.opened {
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
        recent.base.opened = schema::identity(&self.path);
        recent.start_anew();
        recent.relearn(rows, recalled);
        Ok(())
    }
}
