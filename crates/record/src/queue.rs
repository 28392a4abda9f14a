//! The line before the writer: what is put into it is written in this order.

use std::sync::{Arc, mpsc};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::ack::Ack;
use super::batch::{check, weigh};
use super::prune::{Pass, Step};
use super::recent::Work;
use super::types::{Batch, Error, Pruned};
use super::writer::{Job, Prune};
use super::{Inner, health};

impl Inner {
    /// Checks a batch and weighs it.
    pub(super) fn prepare(&self, mut batch: Batch, over: Option<u64>) -> Result<(Arc<Work>, usize), Error> {
        if self.queue.is_none() {
            return Err(Error::ReadOnly);
        }
        // In a shared record no view is seen before it is in the log: until then others may make another one.
        let over = self.sharing.as_ref().map(|_| over.unwrap_or(u64::MAX));
        check(&batch).map_err(Error::Invalid)?;
        let bytes = weigh(&batch);
        let view = batch.view.take().map(|(digest, view)| (digest, Arc::new(view)));
        Ok((Arc::new(Work { batch, view, now_ms: health::unix_ms(), over }), bytes))
    }

    /// Puts work, or a question to be answered once all before it is committed, into the line.
    pub(super) fn enqueue(
        &self,
        work: Option<Arc<Work>>,
        bytes: usize,
        permit: Option<OwnedSemaphorePermit>,
        ack: Option<Ack>,
    ) -> Result<(), Error> {
        let queue = self.queue.as_ref().ok_or(Error::ReadOnly)?;
        // The lock is held across the send, so that batches are numbered in the order in which they are written.
        let mut recent = self.recent.lock();
        let work = work.map(|work| (recent.queue(&work), work));
        queue.send(Job { work, bytes, ack, permit, prune: None, follows: false }).map_err(|mpsc::SendError(job)| {
            if let Some((seq, work)) = &job.work {
                recent.settle(*seq, work, None);
            }
            Error::Closed
        })
    }

    /// Goes through the record as a pass of retention says.
    pub(super) async fn pass(&self, pass: Pass) -> Result<Pruned, Error> {
        let mut pass = Box::new(pass);
        loop {
            // A step at a time: what else waits to be written is written in between.
            let (ack, done) = oneshot::channel();
            let job =
                Job { work: None, bytes: 0, ack: None, permit: None, prune: Some(Prune { pass, ack }), follows: false };
            let queue = self.queue.as_ref().ok_or(Error::ReadOnly)?;
            queue.send(job).map_err(|_| Error::Closed)?;
            match done.await.map_err(|_| Error::Closed)?? {
                Step::More(next) => pass = next,
                Step::Done(pruned) => return Ok(pruned),
            }
        }
    }
}
