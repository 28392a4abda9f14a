//! What writing a batch needs: the writer, the pins and the last replies each write a part of it.

use std::path::PathBuf;

use rusqlite::Connection;

use super::files::Files;

/// Writes one batch inside a transaction.
pub(super) struct Apply<'a> {
    pub(super) tx: &'a Connection,
    pub(super) path: &'a PathBuf,
    pub(super) files: &'a Files,
    pub(super) durable: bool,
}
