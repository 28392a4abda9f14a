//! The record: every message, every original, every view and the trace, append-only.
//!
//! The only SQL of the house, and the readable files beside it. It remembers and finds; it never decides what is
//! edited, never talks to a server, and logs no message text.
//!
//! - A history is a chain: each message is a node known by the digest of the whole prefix that it ends, so forks
//!   share what they have in common. A view hangs on such a digest.
//! - One thread writes (`writer`): batches are queued and committed together. What is queued is seen by
//!   [`Store::view`], [`Store::locate`] and [`Store::original`] at once; all other reads see what is committed.
//! - Texts stay on disk. In RAM are the queue (bounded), a row id for each view, a few views and tips (`recent`).
//! - [`Store`] is the one way in, a file a role: `recording` writes, `views` says what is known of a history, `asking` reads
//!   for people and agents, [`Catalog`] finds names of
//!   conversations, [`Trace`] reads events, [`Recalls`] what our own tools answered, [`Continued`] what an id alone names.
//! - Several processes may share a record ([`Store::open_shared`]): then `log` has every change in one order, in a PostgreSQL database,
//!   and each process builds its own database from it (`replica`). While that database is away, what is to be written waits in the
//!   process' own (`outbox`). `copy` brings an existing record there.
//! - A kill at any moment loses nothing that was answered; `durable` batches survive a power cut as well.

mod ack;
mod anew;
mod apply;
mod as_text;
mod asking;
mod batch;
mod blocking;
mod catalog;
mod continued;
mod copy;
mod files;
mod health;
mod history;
mod housekeeping;
mod kept;
mod large;
mod locate;
mod log;
mod outbox;
mod passages;
mod presence;
mod prune;
mod queue;
mod read;
mod recalls;
mod recent;
mod recording;
mod replica;
mod reply;
mod rows;
mod schema;
mod search;
mod secret;
mod shared;
#[cfg(test)]
mod tests;
mod trace;
mod types;
mod views;
mod watcher;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::{Semaphore, watch};

use windowsill_core::apply::Archive;

pub use blocking::blocking;
pub use catalog::Catalog;
pub use continued::Continued;
pub use copy::{Copied, Progress, copy};
use files::Files;
pub use log::Shared;
use outbox::Outbox;
use presence::Presence;
pub use recalls::Recalls;
use recent::Recent;
use schema::sqlite_error;
use secret::Secret;
pub use shared::Elsewhere;
use shared::Sharing;
pub use trace::Trace;
pub use windowsill_core::apply::Original;

pub use types::{
    About, Batch, ConversationRow, ConversationUpdate, Counted, Deleted, Error, Event, EventFilter, EventRow, Gone,
    Hit, Item, KeptChange, KeptRow, LastReply, Located, Node, NodeRow, Passage, PathRow, Pruned, Recalled, Reply,
    Retention, Rule, RuleChange, TOOLS, Told, Trouble,
};
use watcher::Watch;
pub use watcher::Watcher;
use writer::{Job, Writer};

/// Bytes of batches that may wait to be written: a few long sessions whole, or some thousand turns. Past it the client is
/// slowed rather than RAM filled, which the allocator gives back late.
const QUEUE_BYTES: usize = 8 << 20;

/// Hexadecimal digits of a record id, and of the longer ones taken when it belongs to another text.
const ID_DIGITS: [usize; 4] = [12, 20, 32, 64];

/// The record. Clones share it; the last one to go writes what is queued and closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    files: Files,
    recent: Arc<Mutex<Recent>>,
    readers: Arc<Readers>,
    space: Arc<Semaphore>,
    /// Counts commits.
    commits: watch::Sender<u64>,
    /// `None` when the record was opened for reading.
    queue: Option<Arc<Sender<Job>>>,
    writer: Option<JoinHandle<()>>,
    secret: Secret,
    /// Of a record that several windowsills share.
    sharing: Option<Sharing>,
}

/// Record id of a text: content-addressed, so that the same text is kept once.
pub fn original_id(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes());
    format!("r{}", &hash.to_hex()[..ID_DIGITS[0]])
}

/// The ids under which a text may be kept: the one asked for, then longer ones.
fn original_ids(wanted: &str, text: &str) -> impl Iterator<Item = String> {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let longer = ID_DIGITS[1..].iter().map(move |digits| format!("r{}", &hash[..*digits]));
    std::iter::once(wanted.to_owned()).chain(longer)
}

impl Store {
    /// Opens the record in `data_dir` for reading and writing; creates or upgrades it where needed.
    ///
    /// # Errors
    /// When the folder cannot be written, or the database is not ours, damaged, or of a newer windowsill.
    pub fn open(data_dir: &Path) -> Result<Store, Error> {
        open_with(data_dir, Watch::default(), None)
    }

    /// Opens a record that several windowsills share: `data_dir` has what is built from it. Returns once all is there that the
    /// database has. Where that cannot be reached, and the folder was built from it before, it is opened all the same.
    ///
    /// # Errors
    /// As [`Store::open`]; and when the database cannot be reached, or the folder is not of it.
    pub fn open_shared(data_dir: &Path, shared: &Shared) -> Result<Store, Error> {
        shared::apart(|| open_with(data_dir, Watch::default(), Some(shared)))
    }

    /// Like [`Store::open`], with a hook that is called before and after every write. It is there for tests of crashes.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_watched(data_dir: &Path, watcher: Watcher) -> Result<Store, Error> {
        open_with(data_dir, Watch::by(watcher), None)
    }

    /// Opens the record in `data_dir` for reading, while a server may be writing it.
    ///
    /// # Errors
    /// When there is none, or it has another schema than this program.
    pub fn open_readonly(data_dir: &Path) -> Result<Store, Error> {
        let path = schema::database(data_dir);
        let conn = schema::open_reader(&path)?;
        let recent = recent_of(&conn, &path)?;
        let readers = Arc::new(Readers::open(&path)?);
        let recent = Arc::new(Mutex::new(recent));
        Ok(finish(path, Files::new(data_dir), recent, readers, watch::Sender::new(0), (None, None)))
    }

    /// The id to record a text under: [`original_id`], or a longer one should that belong to another text already.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn free_id(&self, text: &str) -> Result<String, Error> {
        let wanted = original_id(text);
        for id in original_ids(&wanted, text) {
            let queued = self.inner.recent.lock().queued_original(&id);
            let taken =
                queued.is_some_and(|o| o.text != text) || self.inner.read(|conn| read::id_taken(conn, &id, text))?;
            if !taken {
                return Ok(id);
            }
        }
        Ok(wanted)
    }

    /// The secret that marks of compactions are made with. It is a file beside the database.
    ///
    /// # Errors
    /// When it can be neither read nor made.
    pub fn marks_key(&self) -> Result<[u8; 32], Error> {
        self.inner.secret.read(self.inner.path.parent().unwrap_or_else(|| Path::new(".")))
    }

    /// The file that holds an original's text.
    pub fn result_path(&self, id: &str) -> PathBuf {
        self.inner.files.result(id)
    }

    /// The file that holds a conversation's folded messages, once there are any.
    pub fn history_path(&self, conversation: &str) -> PathBuf {
        self.inner.files.history(conversation)
    }

    /// Finds names of conversations.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { inner: &self.inner }
    }

    /// Reads what clients of stateful APIs go on from by an id alone.
    pub fn continued(&self) -> Continued<'_> {
        Continued { inner: &self.inner }
    }

    /// Reads what other windowsills wrote into a shared record.
    pub fn elsewhere(&self) -> Elsewhere<'_> {
        Elsewhere { inner: &self.inner }
    }

    /// Reads what our own tools were asked and answered.
    pub fn recalls(&self) -> Recalls<'_> {
        Recalls { inner: &self.inner }
    }

    /// Reads the trace.
    pub fn trace(&self) -> Trace<'_> {
        Trace { inner: &self.inner }
    }
}

fn open_with(data_dir: &Path, watch: Watch, shared: Option<&Shared>) -> Result<Store, Error> {
    schema::private_dir(data_dir)?;
    let files = Files::new(data_dir).watched(watch);
    files.create()?;
    let presence = Arc::new(Presence::new(data_dir)?);
    let path = schema::database(data_dir);
    let sharing = shared.map(|shared| Sharing::alone(data_dir, shared)).transpose()?;
    let mut conn = schema::open_writer(&path)?;
    let opened = schema::identity(&path);
    let replica = match (shared, &sharing) {
        (Some(shared), Some(sharing)) => Some(sharing.join(shared, &conn, data_dir, &path)?),
        _ => {
            outbox::take_in(&mut conn, &path, &files)?;
            schema::as_own(&conn, &path).map(|()| None)?
        }
    };
    let readers = Arc::new(Readers::open(&path)?);
    let recent = Arc::new(Mutex::new(recent_of(&conn, &path)?));
    recent.lock().base.opened = opened;
    let (queue, jobs) = mpsc::channel();
    let commits = watch::Sender::new(0);
    let mut writer = Writer {
        conn,
        path: path.clone(),
        files: files.clone(),
        recent: recent.clone(),
        presence,
        readers: readers.clone(),
        commits: commits.clone(),
        is_shared: replica.is_some(),
        replica,
        outbox: Outbox::default(),
    };
    let queue = Arc::new(queue);
    if let (Some(shared), Some(sharing)) = (shared, &sharing) {
        sharing.build(&mut writer)?;
        sharing.listen(shared, &queue);
    }
    let spawned = thread::Builder::new().name("record-writer".into()).spawn(move || writer.run(&jobs));
    let writer = spawned.map_err(|e| schema::file_error(&path, e))?;
    Ok(finish(path, files, recent, readers, commits, (Some((queue, writer)), sharing)))
}

/// The way to the writer, and its thread.
type Writing = (Arc<Sender<Job>>, JoinHandle<()>);

fn finish(
    path: PathBuf,
    files: Files,
    recent: Arc<Mutex<Recent>>,
    readers: Arc<Readers>,
    commits: watch::Sender<u64>,
    (writing, sharing): (Option<Writing>, Option<Sharing>),
) -> Store {
    let (queue, writer) = writing.unzip();
    let (space, secret) = (Arc::new(Semaphore::new(QUEUE_BYTES)), Secret::default());
    Store { inner: Arc::new(Inner { path, files, recent, readers, space, commits, queue, writer, secret, sharing }) }
}

/// The two connections for reading.
struct Readers([Mutex<Connection>; 2]);

impl Readers {
    fn open(path: &Path) -> Result<Readers, Error> {
        Ok(Readers([Mutex::new(schema::open_reader(path)?), Mutex::new(schema::open_reader(path)?)]))
    }

    /// The first if it is free, else the second.
    fn get(&self) -> MutexGuard<'_, Connection> {
        self.0[0].try_lock().unwrap_or_else(|| self.0[1].lock())
    }

    /// Opens both again: the file of this name is another one now.
    fn reopen(&self, path: &Path) -> Result<(), Error> {
        for reader in &self.0 {
            let opened = schema::open_reader(path)?;
            *reader.lock() = opened;
        }
        Ok(())
    }
}

impl Inner {
    /// Asks the database; the only way to a reader, so that no async worker waits for a disk.
    fn with<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        blocking(|| query(&self.readers.get()))
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        self.with(query).map_err(|e| sqlite_error(&self.path, e))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(sharing) = &self.sharing {
            sharing.close();
        }
        // Without a sender the writer commits what is queued and ends.
        drop(self.queue.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the record's writer had panicked");
        }
    }
}

/// What is known without asking the disk again.
fn recent_of(conn: &Connection, path: &Path) -> Result<Recent, Error> {
    let read = || Ok(Recent::new(read::view_rows(conn)?, read::with_recalled(conn)?));
    read().map_err(|e| sqlite_error(path, e))
}

impl Archive for Store {
    type Error = Error;

    fn free_id(&self, text: &str) -> Result<String, Error> {
        Store::free_id(self, text)
    }

    fn result_path(&self, id: &str) -> PathBuf {
        Store::result_path(self, id)
    }

    fn history_path(&self, conversation: &str) -> PathBuf {
        Store::history_path(self, conversation)
    }
}
