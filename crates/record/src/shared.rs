//! A record that several windowsills share, as those see it who open it, write to it and wait for it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::ack::Ack;
use super::batch::permits;
use super::blocking::blocking;
use super::log::Shared;
use super::replica::{Link, Replica, adopt, log_error};
use super::schema::{self, file_error, private_file};
use super::types::{Batch, ConversationUpdate, Error};
use super::writer::{Job, Writer};
use super::{Inner, Store, replica, secret};

/// How long a request waits for a database that is away before it is refused, or goes on without it.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the end of a reply waits for what belongs to it.
const SLOW: Duration = Duration::from_secs(1);

/// How long a start waits for another windowsill that is about to end.
const HANDOVER: Duration = Duration::from_secs(5);

/// The file that a windowsill holds a lock on while it builds the record in a folder.
const LOCK: &str = "replica.lock";

/// What a shared record has beside a plain one.
pub(super) struct Sharing {
    shared: Shared,
    link: Link,
    /// Held as long as it is open.
    _alone: File,
}

impl Sharing {
    /// Makes sure that no other process builds the record in this folder.
    pub(super) fn alone(data_dir: &Path, shared: &Shared) -> Result<Sharing, Error> {
        let path = data_dir.join(LOCK);
        let file = private_file().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(|e| file_error(&path, e))?;
        let until = Instant::now() + HANDOVER;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
                Err(TryLockError::WouldBlock) => {
                    let folder = data_dir.display();
                    return Err(Error::Unfit(format!(
                        "another windowsill uses `{folder}`: of those that share a record, each needs a folder of its own (`data_dir`)"
                    )));
                }
                Err(TryLockError::Error(e)) => return Err(file_error(&path, e)),
            }
        }
        let link = Link { away: watch::Sender::new(false), closing: Arc::default() };
        Ok(Sharing { shared: shared.clone(), link, _alone: file })
    }

    /// Joins the log of a record, and makes the database its replica.
    pub(super) fn join(
        &self,
        shared: &Shared,
        conn: &Connection,
        data_dir: &Path,
        path: &Path,
    ) -> Result<Replica, Error> {
        schema::as_replica(conn, path)?;
        let mut log = shared.logs.open(&shared.name);
        let joined = match log.join().map_err(log_error) {
            Ok(joined) => joined,
            // What was built from it before is there: requests go on with that.
            Err(error) => match replica::known(conn, path)? {
                Some(known) => {
                    tracing::warn!(%error, "the record is opened as far as it was built before");
                    self.link.away.send_replace(true);
                    log.expect(known.id);
                    known
                }
                None => return Err(error),
            },
        };
        let applied = adopt(conn, path, &joined)?;
        if joined.secret != [0; 32] {
            secret::share(data_dir, &joined.secret)?;
        }
        if joined.head > applied {
            tracing::info!(entries = joined.head - applied, "the record is built from the database");
        }
        Replica::new(log, joined, applied, self.link.clone())
    }

    /// Builds the record up to the newest entry, and finds what waits to be written.
    pub(super) fn build(&self, writer: &mut Writer) -> Result<(), Error> {
        if !self.is_away() {
            writer.follow()?;
        }
        writer.find_waiting()?;
        // That was before.
        writer.recent.lock().base.strange_updates.clear();
        Ok(())
    }

    /// Has what others write taken up as they write it.
    pub(super) fn listen(&self, shared: &Shared, queue: &Arc<Sender<Job>>) {
        let (queue, closing): (Weak<Sender<Job>>, _) = (Arc::downgrade(queue), Arc::clone(&self.link.closing));
        let news = move || {
            let Some(queue) = queue.upgrade().filter(|_| !closing.load(Ordering::SeqCst)) else { return false };
            queue.send(Job { work: None, bytes: 0, ack: None, permit: None, prune: None, follows: true }).is_ok()
        };
        shared.logs.listen(&shared.name, Box::new(news));
    }

    /// Has the writer try nothing again.
    pub(super) fn close(&self) {
        self.link.closing.store(true, Ordering::SeqCst);
    }

    /// Whether the database cannot be reached.
    pub(super) fn is_away(&self) -> bool {
        *self.link.away.borrow()
    }

    /// Returns once the database has been away for as long as a request waits.
    pub(super) async fn too_long_away(&self) {
        let mut away = self.link.away.subscribe();
        loop {
            if away.wait_for(|away| *away).await.is_err() {
                return;
            }
            if tokio::time::timeout(PATIENCE, away.wait_for(|away| !*away)).await.is_err() {
                return;
            }
        }
    }

    /// Returns as soon as the database is away.
    pub(super) async fn gone(&self) {
        let _ = self.link.away.subscribe().wait_for(|away| *away).await;
    }
}

/// Does something on a thread of its own: a connection has a runtime of its own, which must not be made within another one.
pub(super) fn apart<T: Send>(act: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| scope.spawn(act).join().map_err(|_| Error::Closed)?)
}

impl Store {
    /// Whether several windowsills share the record.
    pub fn is_shared(&self) -> bool {
        self.inner.sharing.is_some()
    }

    /// Opens another record as this one was: where this one is shared, it is in the same database under that name.
    ///
    /// # Errors
    /// As [`Store::open`] and [`Store::open_shared`].
    pub fn open_beside(&self, data_dir: &Path, name: &str) -> Result<Store, Error> {
        match &self.inner.sharing {
            None => Store::open(data_dir),
            Some(sharing) => Store::open_shared(data_dir, &sharing.shared.beside(name)),
        }
    }

    /// As [`Store::record_later`], for what the next request may ask for. Of a shared record, that one may reach another windowsill:
    /// there it returns only once the batch is written, or where that takes long.
    ///
    /// # Errors
    /// As [`Store::record_later`] and [`Store::record`].
    pub fn record_next(&self, batch: Batch) -> Result<(), Error> {
        let Some(sharing) = self.inner.sharing.as_ref().filter(|sharing| !sharing.is_away()) else {
            return self.record_later(batch);
        };
        let (work, bytes) = self.inner.prepare(batch, None)?;
        let permit = self.inner.space.clone().try_acquire_many_owned(permits(bytes)).map_err(|_| Error::Busy)?;
        let (to, mut done) = oneshot::channel();
        self.inner.enqueue(Some(work), bytes, Some(permit), Some(Ack { to, once_kept: true }))?;
        let until = Instant::now() + SLOW;
        blocking(|| {
            loop {
                match done.try_recv() {
                    Ok(written) => return written,
                    Err(oneshot::error::TryRecvError::Closed) => return Err(Error::Closed),
                    // It is written all the same, later.
                    Err(oneshot::error::TryRecvError::Empty) if sharing.is_away() || Instant::now() > until => {
                        return Ok(());
                    }
                    Err(oneshot::error::TryRecvError::Empty) => thread::sleep(Duration::from_millis(1)),
                }
            }
        })
    }

    /// How far a shared record is known here: what [`Store::record_over`] takes. `None` for one that is not shared. It is to be asked
    /// before a history is looked up.
    pub fn seen(&self) -> Option<u64> {
        self.inner.sharing.as_ref().map(|_| self.inner.recent.lock().base.applied)
    }

    /// As [`Store::record`], for a batch whose view was made with what was known at `seen`.
    ///
    /// # Errors
    /// [`Error::Overtaken`] where another view of the same messages was recorded since: nothing of the batch is written then, and that
    /// view stands.
    pub async fn record_over(&self, batch: Batch, seen: Option<u64>) -> Result<(), Error> {
        self.inner.write(batch, seen, false).await
    }
}

/// Reads what other windowsills wrote into a shared record; see [`Store::elsewhere`]. Of one that is not shared, nothing.
pub struct Elsewhere<'a> {
    pub(super) inner: &'a Inner,
}

impl Elsewhere<'_> {
    /// Takes up what other windowsills wrote into a shared record, so that a request goes on from all that was answered before it.
    /// Where their database cannot be reached, it returns soon: the request goes on with what is known.
    pub async fn caught_up(&self) {
        let Some(sharing) = self.inner.sharing.as_ref().filter(|sharing| !sharing.is_away()) else { return };
        let Some(queue) = &self.inner.queue else { return };
        let (to, done) = oneshot::channel();
        let ack = Some(Ack { to, once_kept: false });
        if queue.send(Job { work: None, bytes: 0, ack, permit: None, prune: None, follows: true }).is_ok() {
            tokio::select! {
                _ = done => {}
                () = sharing.gone() => {}
                () = tokio::time::sleep(PATIENCE) => {}
            }
        }
    }

    /// Conversations that other windowsills wrote to, or removed, since this was asked last.
    pub fn changed(&self) -> Vec<String> {
        if self.inner.sharing.is_none() {
            return Vec::new();
        }
        self.inner.recent.lock().base.strange.drain().collect()
    }

    /// What other windowsills wrote of conversations since this was asked last, in this order; of very much, the newest alone.
    pub fn updated(&self) -> Vec<ConversationUpdate> {
        if self.inner.sharing.is_none() {
            return Vec::new();
        }
        self.inner.recent.lock().base.strange_updates.drain(..).collect()
    }
}
