//! What is written: batches, what people do with single conversations, and what retention forgets.

use tokio::sync::{oneshot, watch};

use super::ack::Ack;
use super::batch::permits;
use super::prune::Pass;
use super::shared::Sharing;
use super::types::{About, Batch, Deleted, Error, Pruned, Retention, Trouble};
use super::{Inner, Store, health, housekeeping, schema};

impl Store {
    /// Writes a batch and returns once it is committed. Waits while the queue is full. If the caller stops waiting
    /// after the batch was queued, it is written all the same.
    ///
    /// # Errors
    /// When it could not be written; then nothing of it was. [`Error::Gap`] asks for more of the history.
    pub async fn record(&self, batch: Batch) -> Result<(), Error> {
        self.inner.write(batch, None, false).await
    }

    /// As [`Store::record`], but returns as soon as no kill can take the batch: while the database of a shared record is away, it waits on
    /// the disk of this machine.
    ///
    /// # Errors
    /// As [`Store::record`].
    pub async fn keep(&self, batch: Batch) -> Result<(), Error> {
        self.inner.write(batch, None, true).await
    }

    /// Queues a batch and returns at once. Should the write fail later, it is logged and [`Store::trouble`] says so.
    ///
    /// # Errors
    /// [`Error::Busy`] when the queue is full.
    pub fn record_later(&self, batch: Batch) -> Result<(), Error> {
        let (work, bytes) = self.inner.prepare(batch, None)?;
        let permit = self.inner.space.clone().try_acquire_many_owned(permits(bytes)).map_err(|_| Error::Busy)?;
        self.inner.enqueue(Some(work), bytes, Some(permit), None)
    }

    /// As [`Store::record_later`], but waits for room while the queue is full.
    ///
    /// # Errors
    /// When the batch is not valid, or the record is read-only or closed.
    pub async fn record_soon(&self, batch: Batch) -> Result<(), Error> {
        let (work, bytes) = self.inner.prepare(batch, None)?;
        if self.inner.sharing.as_ref().is_some_and(Sharing::is_away) {
            // A request does not wait for a database that is away.
            let permit = self.inner.space.clone().try_acquire_many_owned(permits(bytes)).map_err(|_| Error::Busy)?;
            return self.inner.enqueue(Some(work), bytes, Some(permit), None);
        }
        let permit = self.inner.space.clone().acquire_many_owned(permits(bytes)).await.map_err(|_| Error::Closed)?;
        self.inner.enqueue(Some(work), bytes, Some(permit), None)
    }

    /// Returns once everything queued so far is committed, or has failed.
    pub async fn flush(&self) {
        if !self.inner.recent.lock().is_written() {
            self.answered().await;
        }
    }

    /// Returns once the writer has done all that is before it, if only to look at its file.
    async fn answered(&self) {
        let (to, done) = oneshot::channel();
        if self.inner.enqueue(None, 0, None, Some(Ack { to, once_kept: true })).is_ok() {
            // An error means that the writer is gone: then nothing is queued either.
            match &self.inner.sharing {
                None => drop(done.await),
                // What waits for a database that is away is waited for by nobody.
                Some(sharing) => tokio::select! {
                    _ = done => {}
                    () = sharing.gone() => {}
                },
            }
        }
    }

    /// Waits until the writer has begun anew, where somebody deleted or replaced the database: no view of the old one may be
    /// used again, for its originals are gone.
    pub async fn begin_anew_if_gone(&self) {
        let opened = self.inner.recent.lock().base.opened;
        if self.inner.queue.is_some() && schema::identity(&self.inner.path) != opened {
            self.answered().await;
        }
    }

    /// Why the last batch could not be written to the disk; `None` once one is again.
    pub fn trouble(&self) -> Option<Trouble> {
        self.inner.recent.lock().trouble.clone()
    }

    /// Batches that could not be written to the disk since the start.
    pub fn failures(&self) -> u64 {
        self.inner.recent.lock().failures
    }

    /// Whether the record can be written now. Writes only where the last write failed: then it tries once more.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn writable(&self) -> Result<(), Error> {
        let Some(trouble) = self.trouble() else { return Ok(()) };
        if trouble.error.is_away() {
            // It is tried by itself, and nothing needs to wait for it.
            return Err(trouble.error);
        }
        self.record(Batch { durable: true, ..Batch::default() }).await
    }

    /// Forgets what is older, or more, than may be kept; see [`Retention`]. What is in use stays, and what that depends on.
    ///
    /// # Errors
    /// When the record cannot be written; what was removed until then stays so.
    pub async fn prune(&self, retention: Retention, now_ms: i64) -> Result<Pruned, Error> {
        self.inner.pass(Pass::new(retention, now_ms)).await
    }

    /// Deletes a conversation as retention does, whenever it was used last; `None` for an unknown one. What conversations that
    /// forked from it have of it stays, as theirs, and so does every text that another one recorded, too. Whoever goes on with it
    /// begins a new one.
    ///
    /// # Errors
    /// [`Error::Shared`] where another process writes the record; and when it cannot be written.
    pub async fn delete(&self, conversation: &str, now_ms: i64) -> Result<Option<Deleted>, Error> {
        let done = self.inner.pass(Pass::of(conversation, now_ms)).await?;
        if done.shared {
            return Err(Error::Shared);
        }
        let Pruned { messages, originals, left, .. } = done;
        Ok((done.conversations > 0).then_some(Deleted { messages, left, originals }))
    }

    /// Calls a conversation what a person calls it, in place of the title that was found for it; without a title, by that one
    /// again. Returns the title as it is kept: on one line, at most 80 characters, nothing that steers a terminal; `None` where that
    /// leaves nothing.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub async fn rename(&self, conversation: &str, title: &str) -> Result<Option<String>, Error> {
        let title = housekeeping::title(title);
        let about = Some((conversation.to_owned(), About::Named(title.clone())));
        self.record(Batch { about, durable: true, ..Batch::default() }).await?;
        Ok(title)
    }

    /// Puts a conversation among those that a person keeps, which retention leaves alone, or takes it from there.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub async fn star(&self, conversation: &str, starred: bool) -> Result<(), Error> {
        let about = Some((conversation.to_owned(), About::Starred(starred)));
        self.record(Batch { about, durable: true, ..Batch::default() }).await
    }

    /// Changes with every commit, so that whoever follows the trace need not ask again and again.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.inner.commits.subscribe()
    }
}

impl Inner {
    /// Writes a batch and returns once it is committed.
    pub(super) async fn write(&self, batch: Batch, over: Option<u64>, once_kept: bool) -> Result<(), Error> {
        let (work, bytes) = self.prepare(batch, over)?;
        let (to, done) = oneshot::channel();
        let written = async {
            let permit = self.space.clone().acquire_many_owned(permits(bytes)).await.map_err(|_| Error::Closed)?;
            self.enqueue(Some(work), bytes, Some(permit), Some(Ack { to, once_kept }))?;
            done.await.map_err(|_| Error::Closed)?
        };
        match &self.sharing {
            None => written.await,
            Some(sharing) => tokio::select! {
                biased;
                written = written => written,
                () = sharing.too_long_away() => Err(health::away(&self.recent.lock())),
            },
        }
    }
}
