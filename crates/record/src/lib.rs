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
//! - A kill at any moment loses nothing that was answered; `durable` batches survive a power cut as well.

mod batch;
mod blocking;
mod files;
mod health;
mod history;
mod housekeeping;
mod kept;
mod large;
mod passages;
mod presence;
mod prune;
mod read;
mod recent;
mod reply;
mod schema;
mod search;
mod secret;
#[cfg(test)]
mod tests;
mod types;
mod watcher;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use windowsill_core::apply::Archive;
use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::View;
use windowsill_core::export::{self, Exported, Head};

use batch::{check, permits, weigh};
pub use blocking::blocking;
use files::Files;
use presence::Presence;
use recent::{Found, Recent, Tip, Work};
use schema::sqlite_error;
use secret::Secret;
pub use windowsill_core::apply::Original;

pub use types::{
    Batch, ConversationRow, ConversationUpdate, Counted, Deleted, Error, Event, EventFilter, EventRow, Gone, Hit, Item,
    KeptChange, KeptRow, LastReply, Located, Node, NodeRow, Passage, PathRow, Pruned, Recalled, Reply, Retention, Rule,
    RuleChange, TOOLS, Trouble,
};
use watcher::Watch;
pub use watcher::Watcher;
use writer::{Job, Prune, Writer};

/// Bytes of batches that may wait to be written: a few long sessions whole, or some thousand turns. Past it the client is
/// slowed rather than RAM filled, which the allocator gives back late.
const QUEUE_BYTES: usize = 8 << 20;

/// How many results of parallel calls may come in another order than before without the history being taken for a fork.
const PARALLEL: usize = 16;

/// How many messages from the end [`Store::locate`] looks for a known tip before it searches: a turn adds a few.
const FAST_STEPS: usize = 8;

/// How many messages from the end `Store::counted` looks back: some turns with their tool steps.
const COUNTED_BACK: usize = 64;

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
    queue: Option<Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    secret: Secret,
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
        Store::open_with(data_dir, Watch::default())
    }

    /// Like [`Store::open`], with a hook that is called before and after every write. It is there for tests of crashes.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_watched(data_dir: &Path, watcher: Watcher) -> Result<Store, Error> {
        Store::open_with(data_dir, Watch::by(watcher))
    }

    fn open_with(data_dir: &Path, watch: Watch) -> Result<Store, Error> {
        schema::private_dir(data_dir)?;
        let files = Files::new(data_dir).watched(watch);
        files.create()?;
        let presence = Arc::new(Presence::new(data_dir)?);
        let path = schema::database(data_dir);
        let conn = schema::open_writer(&path)?;
        let opened = schema::identity(&path);
        let readers = Arc::new(Readers::open(&path)?);
        let recent = Arc::new(Mutex::new(recent_of(&conn, &path)?));
        recent.lock().opened = opened;
        let (queue, jobs) = mpsc::channel();
        let commits = watch::Sender::new(0);
        let writer = Writer {
            conn,
            path: path.clone(),
            files: files.clone(),
            recent: recent.clone(),
            presence,
            readers: readers.clone(),
            commits: commits.clone(),
        };
        let spawned = thread::Builder::new().name("record-writer".into()).spawn(move || writer.run(&jobs));
        let writer = spawned.map_err(|e| schema::file_error(&path, e))?;
        Ok(Store::finish(path, files, recent, readers, commits, Some((queue, writer))))
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
        Ok(Store::finish(path, Files::new(data_dir), recent, readers, watch::Sender::new(0), None))
    }

    fn finish(
        path: PathBuf,
        files: Files,
        recent: Arc<Mutex<Recent>>,
        readers: Arc<Readers>,
        commits: watch::Sender<u64>,
        writing: Option<(Sender<Job>, JoinHandle<()>)>,
    ) -> Store {
        let (queue, writer) = writing.unzip();
        let (space, secret) = (Arc::new(Semaphore::new(QUEUE_BYTES)), Secret::default());
        Store { inner: Arc::new(Inner { path, files, recent, readers, space, commits, queue, writer, secret }) }
    }

    /// Writes a batch and returns once it is committed. Waits while the queue is full. If the caller stops waiting
    /// after the batch was queued, it is written all the same.
    ///
    /// # Errors
    /// When it could not be written; then nothing of it was. [`Error::Gap`] asks for more of the history.
    pub async fn record(&self, batch: Batch) -> Result<(), Error> {
        let (work, bytes) = self.prepare(batch)?;
        let permit = self.inner.space.clone().acquire_many_owned(permits(bytes)).await.map_err(|_| Error::Closed)?;
        let (ack, done) = oneshot::channel();
        self.enqueue(Some(work), bytes, Some(permit), Some(ack))?;
        done.await.map_err(|_| Error::Closed)?
    }

    /// Queues a batch and returns at once. Should the write fail later, it is logged and [`Store::trouble`] says so.
    ///
    /// # Errors
    /// [`Error::Busy`] when the queue is full.
    pub fn record_later(&self, batch: Batch) -> Result<(), Error> {
        let (work, bytes) = self.prepare(batch)?;
        let permit = self.inner.space.clone().try_acquire_many_owned(permits(bytes)).map_err(|_| Error::Busy)?;
        self.enqueue(Some(work), bytes, Some(permit), None)
    }

    /// As [`Store::record_later`], but waits for room while the queue is full.
    ///
    /// # Errors
    /// When the batch is not valid, or the record is read-only or closed.
    pub async fn record_soon(&self, batch: Batch) -> Result<(), Error> {
        let (work, bytes) = self.prepare(batch)?;
        let permit = self.inner.space.clone().acquire_many_owned(permits(bytes)).await.map_err(|_| Error::Closed)?;
        self.enqueue(Some(work), bytes, Some(permit), None)
    }

    /// Returns once everything queued so far is committed, or has failed.
    pub async fn flush(&self) {
        let (ack, done) = oneshot::channel();
        if self.enqueue(None, 0, None, Some(ack)).is_ok() {
            // An error means that the writer is gone: then nothing is queued either.
            let _ = done.await;
        }
    }

    /// Waits until the writer has begun anew, where somebody deleted or replaced the database: no view of the old one may be
    /// used again, for its originals are gone.
    pub async fn begin_anew_if_gone(&self) {
        let opened = self.inner.recent.lock().opened;
        if self.inner.queue.is_some() && schema::identity(&self.inner.path) != opened {
            self.flush().await;
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
        if self.trouble().is_none() {
            return Ok(());
        }
        self.record(Batch { durable: true, ..Batch::default() }).await
    }

    /// The view of the deepest prefix that has one, and the index of that prefix's last message.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn view(&self, chain: &[Digest]) -> Result<Option<(usize, Arc<View>)>, Error> {
        self.catch_up()?;
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

    /// Takes up the views that another process wrote into the same record since the last look.
    fn catch_up(&self) -> Result<(), Error> {
        let ((views, recalled), removals) = {
            let recent = self.inner.recent.lock();
            (recent.newest(), recent.removals)
        };
        let views = self.inner.read(|conn| read::newer_views(conn, views))?;
        let recalled = self.inner.read(|conn| read::newer_recalled(conn, recalled))?;
        if !views.is_empty() || !recalled.is_empty() {
            self.inner.recent.lock().catch_up(&views, &recalled, removals);
        }
        Ok(())
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

    /// What people want of a conversation, as [`Batch::standing`] wrote it last.
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

    /// Whether a conversation, or one that it forked from, begins with this message.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn begins_with(&self, conversation: &str, root: &Digest) -> Result<bool, Error> {
        self.inner.read(|conn| read::begins_with(conn, conversation, root))
    }

    /// The view that a history had before the one it has; an empty one where that was its first, `None` where it has none.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn earlier_view(&self, chain: &[Digest]) -> Result<Option<View>, Error> {
        let Some((_, now)) = self.view(chain)? else { return Ok(None) };
        let mut row = self.inner.read(|conn| read::view_before(conn, chain, i64::MAX))?;
        while let Some(before) = row {
            let view = self.inner.with(|conn| read::view(conn, &self.inner.path, before))?;
            if view.edits != now.edits {
                return Ok(Some(view));
            }
            row = self.inner.read(|conn| read::view_before(conn, chain, before))?;
        }
        Ok(Some(View { messages: now.messages, ..View::default() }))
    }

    /// How much of a history is known, and to which conversation; `None` when not even its first message is.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn locate(&self, chain: &[Digest]) -> Result<Option<Located>, Error> {
        let mut seen: Option<Tip> = None;
        loop {
            let removals = self.inner.recent.lock().removals;
            let Some(tip) = self.deepest_known(chain)? else { return Ok(None) };
            {
                let mut recent = self.inner.recent.lock();
                // Retention leaves alone what a request continues; what it took meanwhile is looked for again.
                if recent.removals != removals || !recent.note_use(&tip.conversation, writer::unix_ms()) {
                    continue;
                }
            }
            let conversation_depth = self.conversation_depth(&tip)?;
            // The same history may have been recorded by another request between the two looks: then it is no fork.
            if conversation_depth > tip.depth && tip.depth < chain.len() && seen.as_ref() != Some(&tip) {
                seen = Some(tip);
                continue;
            }
            return Ok(Some(Located {
                depth: tip.depth,
                conversation: tip.conversation.to_string(),
                conversation_depth,
            }));
        }
    }

    fn deepest_known(&self, chain: &[Digest]) -> Result<Option<Tip>, Error> {
        // A turn extends a tip used lately by a few messages. The one after it is checked, for only newest tips are
        // remembered and the history may have been known further.
        for (i, digest) in chain.iter().enumerate().rev().take(FAST_STEPS) {
            let tip = {
                let mut recent = self.inner.recent.lock();
                recent.tip(digest).or_else(|| recent.queued_node(digest))
            };
            if let Some(tip) = tip {
                let further = chain.get(i + 1).map_or(Ok(None), |next| self.known(next))?;
                if further.is_none() {
                    return Ok(Some(tip));
                }
                break;
            }
        }
        // Whoever knows a message knows those before it, so halves can be thrown away. Except among results of parallel
        // calls: sent in another order, those in the middle of the run are new though its end is known. So the search goes
        // on behind what it found.
        let (mut from, mut best) = (0, None);
        loop {
            let (mut low, mut high) = (from, chain.len());
            while low < high {
                let middle = low + (high - low) / 2;
                match self.known(&chain[middle])? {
                    Some(tip) => {
                        best = Some(tip);
                        low = middle + 1;
                    }
                    None => high = middle,
                }
            }
            let Some(further) = self.known_within(chain, low + 1, PARALLEL)? else { return Ok(best) };
            from = further;
        }
    }

    /// The first index in `from..from + count` whose prefix is known.
    fn known_within(&self, chain: &[Digest], from: usize, count: usize) -> Result<Option<usize>, Error> {
        for (at, digest) in chain.iter().enumerate().skip(from).take(count) {
            if self.known(digest)?.is_some() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// A node, committed or queued. RAM is asked first, so that a commit in between hides nothing.
    fn known(&self, digest: &Digest) -> Result<Option<Tip>, Error> {
        let (tip, queued, removals) = {
            let mut recent = self.inner.recent.lock();
            (recent.tip(digest), recent.queued_node(digest), recent.removals)
        };
        if tip.is_some() {
            return Ok(tip);
        }
        let stored = self.inner.read(|conn| read::node(conn, digest))?;
        let Some(tip) = stored else { return Ok(queued) };
        let mut recent = self.inner.recent.lock();
        if recent.is_condemned(&tip.conversation) {
            return Ok(queued);
        }
        if recent.removals == removals {
            recent.keep_tip(*digest, tip.clone());
        }
        Ok(Some(tip))
    }

    fn conversation_depth(&self, tip: &Tip) -> Result<usize, Error> {
        let (known, queued) = self.inner.recent.lock().deepest(&tip.conversation);
        let known = match known {
            Some(depth) => depth,
            None => {
                let depth = self.inner.read(|conn| read::deepest(conn, &tip.conversation))?;
                if depth > 0 {
                    self.inner.recent.lock().note_deepest(tip.conversation.clone(), depth);
                }
                depth
            }
        };
        Ok(known.max(queued.unwrap_or(0)).max(tip.depth))
    }

    /// An original by its record id, with the call of the first conversation that recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn original(&self, id: &str) -> Result<Option<Original>, Error> {
        let queued = self.inner.recent.lock().queued_original(id);
        let stored = self.inner.read(|conn| read::original(conn, id))?;
        Ok(stored.or(queued))
    }

    /// The ids of originals that begin so, at most four. What waits to be written is not among them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn originals_like(&self, beginning: &str) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::original_names(conn, beginning))
    }

    /// An original by its record id, if this conversation, or one that it forked from, recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn original_in(&self, id: &str, conversation: &str) -> Result<Option<Original>, Error> {
        let queued = self.inner.recent.lock().queued_original(id).filter(|o| o.conversation == conversation);
        let stored = self.inner.read(|conn| read::original_in(conn, id, conversation))?;
        Ok(stored.or(queued))
    }

    /// The conversations that recorded an original.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn recorded_in(&self, id: &str) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::recorded_in(conn, id))
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

    /// The passages that fit a query, the best first, each as one hit; see [`Store::passages`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn search(&self, query: &str, conversation: Option<&str>, limit: usize) -> Result<Vec<Hit>, Error> {
        let found = self.passages(query, conversation, limit, &mut |_| true)?;
        Ok(found.into_iter().filter_map(|mut one| Some(std::mem::take(one.said.get_mut(one.center)?))).collect())
    }

    /// The passages of originals and messages that fit a query, the best first, short messages with those beside them; in one
    /// conversation and what it forked from, or everywhere. What stands there as it is written comes first, then what has its
    /// phrases, paths and identifiers, then what has its rarest words. Nothing in a query is syntax but quotes.
    ///
    /// `keep` says of each passage whether it may be shown, also beside another one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn passages(
        &self,
        query: &str,
        conversation: Option<&str>,
        limit: usize,
        keep: &mut dyn FnMut(&mut Hit) -> bool,
    ) -> Result<Vec<Passage>, Error> {
        self.inner.read(|conn| search::search(conn, query, conversation, limit, keep))
    }

    /// How many conversations that an older windowsill recorded are not searched yet.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn unindexed(&self) -> Result<usize, Error> {
        self.inner.read(passages::unindexed)
    }

    /// Forgets what is older, or more, than may be kept; see [`Retention`]. What is in use stays, and what that depends on.
    ///
    /// # Errors
    /// When the record cannot be written; what was removed until then stays so.
    pub async fn prune(&self, retention: Retention, now_ms: i64) -> Result<Pruned, Error> {
        self.pass(prune::Pass::new(retention, now_ms)).await
    }

    /// Deletes a conversation as retention does, whenever it was used last; `None` for an unknown one. What conversations that
    /// forked from it have of it stays, as theirs, and so does every text that another one recorded, too. Whoever goes on with it
    /// begins a new one.
    ///
    /// # Errors
    /// [`Error::Shared`] where another process writes the record; and when it cannot be written.
    pub async fn delete(&self, conversation: &str, now_ms: i64) -> Result<Option<Deleted>, Error> {
        let done = self.pass(prune::Pass::of(conversation, now_ms)).await?;
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
        let named = Some((conversation.to_owned(), title.clone()));
        self.record(Batch { named, durable: true, ..Batch::default() }).await?;
        Ok(title)
    }

    /// Puts a conversation among those that a person keeps, which retention leaves alone, or takes it from there.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub async fn star(&self, conversation: &str, starred: bool) -> Result<(), Error> {
        let starred = Some((conversation.to_owned(), starred));
        self.record(Batch { starred, durable: true, ..Batch::default() }).await
    }

    async fn pass(&self, pass: prune::Pass) -> Result<Pruned, Error> {
        let mut pass = Box::new(pass);
        loop {
            // A step at a time: what else waits to be written is written in between.
            let (ack, done) = oneshot::channel();
            let job = Job { work: None, bytes: 0, ack: None, permit: None, prune: Some(Prune { pass, ack }) };
            let queue = self.inner.queue.as_ref().ok_or(Error::ReadOnly)?;
            queue.send(job).map_err(|_| Error::Closed)?;
            match done.await.map_err(|_| Error::Closed)?? {
                prune::Step::More(next) => pass = next,
                prune::Step::Done(pruned) => return Ok(pruned),
            }
        }
    }

    /// Word of a record that retention removed.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pruned_original(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| prune::gone(conn, "original", id))
    }

    /// Word of a conversation that retention removed.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pruned_conversation(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| prune::gone(conn, "conversation", id))
    }

    /// Whether any reply to this prefix recalled something.
    pub fn has_recalled(&self, chain: &Digest) -> bool {
        self.inner.recent.lock().recalled(chain).0
    }

    /// The messages between a prefix and a reply to it that no client sees; see [`Recalled`]. Of a reply that is not known
    /// word for word (clients trim), what the last one recalled.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn recalled(&self, chain: &Digest, reply: &Digest) -> Result<Vec<Bytes>, Error> {
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

    /// An item of an earlier reply, by its id. What is still queued is not seen.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn item(&self, id: &str) -> Result<Option<Item>, Error> {
        self.inner.read(|conn| read::item(conn, id))
    }

    /// An earlier reply that a client may go on from, by its id. What is still queued is not seen.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reply(&self, id: &str) -> Result<Option<Reply>, Error> {
        self.inner.read(|conn| read::reply(conn, id))
    }

    /// When such a reply was pruned, if it was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reply_gone(&self, id: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| prune::gone(conn, "reply", id))
    }

    /// The messages of a history in order, as they came, by the chain digest of the last one. Holds them all in RAM.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_to(&self, tip: &Digest) -> Result<Vec<Bytes>, Error> {
        self.inner.read(|conn| read::messages_to(conn, tip))
    }

    /// The list of tools that was noted for a prefix: see [`TOOLS`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn listed_tools(&self, chain: &Digest) -> Result<Option<Bytes>, Error> {
        if !self.has_recalled(chain) {
            return Ok(None);
        }
        let all = self.inner.read(|conn| read::recalled(conn, chain))?;
        Ok(all.into_iter().find(|r| r.reply == TOOLS).and_then(|mut r| r.messages.pop()))
    }

    /// Conversations, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn conversations(&self, limit: usize) -> Result<Vec<ConversationRow>, Error> {
        self.inner.read(|conn| read::conversations(conn, limit))
    }

    /// The conversation of this id, or the only one whose id starts so, or the last active one of this session id.
    ///
    /// # Errors
    /// [`Error::Ambiguous`] when several ids start so; or when the database cannot be read.
    pub fn conversation(&self, id_or_prefix: &str) -> Result<Option<ConversationRow>, Error> {
        self.inner.with(|conn| read::conversation(conn, &self.inner.path, id_or_prefix))
    }

    /// A conversation's messages in order, along the chain of its tip and so through what it forked from. Holds them
    /// all in RAM.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages(&self, conversation: &str) -> Result<Vec<NodeRow>, Error> {
        self.inner.read(|conn| read::messages(conn, conversation))
    }

    /// What a conversation was answered last, where its client has not come back since: the message behind [`Store::messages`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_reply(&self, conversation: &str) -> Result<Option<NodeRow>, Error> {
        self.inner.read(|conn| reply::last(conn, conversation))
    }

    /// All that is known of a conversation: its messages, and what it was answered last.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_and_reply(&self, conversation: &str) -> Result<Vec<NodeRow>, Error> {
        let mut all = self.messages(conversation)?;
        all.extend(self.last_reply(conversation)?);
        Ok(all)
    }

    /// The names of conversations that begin so, at most `most`, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn named(&self, prefix: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::named(conn, prefix, most))
    }

    /// What each message is on the way to a conversation's tip.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn path(&self, conversation: &str) -> Result<Vec<PathRow>, Error> {
        self.inner.read(|conn| read::path(conn, conversation))
    }

    /// A conversation and those that forked from it, at most `most`: the one itself first, then the last active.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn family(&self, conversation: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::family(conn, conversation, most))
    }

    /// When a conversation was last used, of those that were used at `until_ms` or before (Unix time in milliseconds).
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_used(&self, until_ms: i64) -> Result<Option<i64>, Error> {
        self.inner.read(|conn| read::last_used(conn, until_ms))
    }

    /// The conversations of a session, as clients name it, the last active first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn of_session(&self, session: &str, most: usize) -> Result<Vec<String>, Error> {
        self.inner.read(|conn| read::of_session(conn, session, most))
    }

    /// The messages `from..to` of a conversation, in order, as far as there are so many.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn messages_between(&self, conversation: &str, from: usize, to: usize) -> Result<Vec<NodeRow>, Error> {
        self.inner.read(|conn| read::messages_between(conn, conversation, from, to))
    }

    /// The chain digests of a conversation's messages, in order: what [`Store::view`] is asked with.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn chain(&self, conversation: &str) -> Result<Vec<Digest>, Error> {
        self.inner.read(|conn| read::chain(conn, conversation))
    }

    /// One message of a conversation by its index: the one that was recorded there first, whoever recorded it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn message(&self, conversation: &str, at: usize) -> Result<Option<NodeRow>, Error> {
        self.inner.read(|conn| read::message(conn, conversation, at))
    }

    /// A conversation as readable Markdown, its newest fold marked; `None` for an unknown one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn history(&self, conversation: &str) -> Result<Option<String>, Error> {
        let Some(row) = self.conversation(conversation)?.filter(|row| row.id == conversation) else { return Ok(None) };
        let mut messages = self.messages(conversation)?;
        let chain: Vec<Digest> = messages.iter().map(|m| m.chain).collect();
        let view = self.view(&chain)?.map(|(_, view)| view);
        messages.extend(self.last_reply(conversation)?);
        let exported: Vec<Exported<'_>> =
            messages.iter().map(|m| Exported { at: m.at, role: &m.role, raw: &m.raw }).collect();
        Ok(Some(export::markdown(Head { id: &row.id, title: &row.title }, &exported, view.as_deref())))
    }

    /// The messages of a conversation as JSON Lines, with what it was answered last; `None` for an unknown one. See
    /// [`export::jsonl`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn jsonl(&self, conversation: &str) -> Result<Option<String>, Error> {
        if self.conversation(conversation)?.is_none_or(|row| row.id != conversation) {
            return Ok(None);
        }
        let messages = self.messages_and_reply(conversation)?;
        Ok(Some(export::jsonl(messages.iter().map(|m| &m.raw[..]))))
    }

    /// Events after the one with id `since` (0 for all), oldest first; of one conversation or of all.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn events(&self, since: i64, limit: usize, conversation: Option<&str>) -> Result<Vec<EventRow>, Error> {
        let of = EventFilter { conversation: conversation.map(str::to_owned), kinds: Vec::new() };
        self.events_of(since, limit, &of)
    }

    /// As [`Store::events`], of what a filter names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn events_of(&self, since: i64, limit: usize, of: &EventFilter) -> Result<Vec<EventRow>, Error> {
        self.inner.read(|conn| read::events(conn, since, limit, of))
    }

    /// Where to begin so that the newest `newest` events of what a filter names come first: the id before them, for
    /// [`Store::events_of`].
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn event_before(&self, newest: usize, of: &EventFilter) -> Result<i64, Error> {
        self.inner.read(|conn| read::event_before(conn, newest, of))
    }

    /// Changes with every commit, so that whoever follows the trace need not ask again and again.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.inner.commits.subscribe()
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

    /// Checks a batch and weighs it.
    fn prepare(&self, mut batch: Batch) -> Result<(Arc<Work>, usize), Error> {
        if self.inner.queue.is_none() {
            return Err(Error::ReadOnly);
        }
        check(&batch).map_err(Error::Invalid)?;
        let bytes = weigh(&batch);
        let view = batch.view.take().map(|(digest, view)| (digest, Arc::new(view)));
        Ok((Arc::new(Work { batch, view }), bytes))
    }

    fn enqueue(
        &self,
        work: Option<Arc<Work>>,
        bytes: usize,
        permit: Option<OwnedSemaphorePermit>,
        ack: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Result<(), Error> {
        let queue = self.inner.queue.as_ref().ok_or(Error::ReadOnly)?;
        // The lock is held across the send, so that batches are numbered in the order in which they are written.
        let mut recent = self.inner.recent.lock();
        let work = work.map(|work| (recent.queue(&work), work));
        queue.send(Job { work, bytes, ack, permit, prune: None }).map_err(|mpsc::SendError(job)| {
            if let Some((seq, work)) = &job.work {
                recent.settle(*seq, work, None);
            }
            Error::Closed
        })
    }
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
