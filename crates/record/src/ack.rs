//! Who waits for a batch that is written.

use tokio::sync::oneshot;

use super::types::Error;

/// Who waits for a batch.
pub(super) struct Ack {
    /// Gets what became of it.
    pub(super) to: oneshot::Sender<Result<(), Error>>,
    /// Whether it is enough that no kill can take the batch: while the database of a shared record is away, it waits on the disk.
    pub(super) once_kept: bool,
}

impl Ack {
    /// Tells what became of it. Whoever waited may have gone away; it is done all the same.
    pub(super) fn send(self, outcome: Result<(), Error>) {
        let _ = self.to.send(outcome);
    }
}
