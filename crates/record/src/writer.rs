//! The one thread that writes. It takes what is queued, commits it together, and answers each batch for itself.
//!
//! Files are written before the commit that speaks of them, so a kill in between leaves a file too many, never one
//! too few. A panic while writing costs the batches at hand, not the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::{Edit, View};

use super::Original;
use super::ack::Ack;
use super::apply::Apply;
use super::files::Files;
use super::log::Origin;
use super::outbox::{Outbox, Waiting};
use super::presence::Presence;
use super::prune::{Pass, Step};
use super::recent::{Applied, Recent, Tip, Work};
use super::replica::Replica;
use super::schema::sqlite_error;
use super::types::{About, ConversationUpdate, Counted, Error, Event, Node, Recalled, Rule, RuleChange};
use super::{Readers, health, history, large, original_ids, passages, prune};

/// Bytes that are committed together at most, so that a waiting batch is never far from its commit.
const GROUP_BYTES: usize = 8 << 20;

/// One entry of the queue.
pub(super) struct Job {
    /// What to write; `None` only asks to be answered when all before it is committed.
    pub(super) work: Option<(u64, Arc<Work>)>,
    /// Its size.
    pub(super) bytes: usize,
    /// Who waits for it, if anyone.
    pub(super) ack: Option<Ack>,
    /// Its share of the queue, given back when it is done.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// A step of retention, done when all before it is committed.
    pub(super) prune: Option<Prune>,
    /// Whether what others wrote into a shared record is to be taken up first.
    pub(super) follows: bool,
}

/// A step of retention, and who waits for it.
pub(super) struct Prune {
    /// Where the pass stands.
    pub(super) pass: Box<Pass>,
    /// Gets where it stands then.
    pub(super) ack: oneshot::Sender<Result<Step, Error>>,
}

/// What the thread owns.
pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) files: Files,
    pub(super) recent: Arc<Mutex<Recent>>,
    pub(super) presence: Arc<Presence>,
    pub(super) readers: Arc<Readers>,
    /// Told of every commit.
    pub(super) commits: watch::Sender<u64>,
    /// The log of a record that several windowsills share.
    pub(super) replica: Option<Replica>,
    /// Whether it has one: nothing is ever written beside it.
    pub(super) is_shared: bool,
    /// What waits for the database of that log.
    pub(super) outbox: Outbox,
}

/// What became of a batch.
pub(super) enum Written {
    /// It is in the record.
    Done(Applied),
    /// It waits on the disk for the database of a shared record.
    Waits(Origin),
}

impl Writer {
    /// Works until every sender is gone and the queue is empty. While nothing waits, what an older windowsill recorded is indexed.
    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        let mut behind = true;
        loop {
            let first = match queue.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) if behind => {
                    behind = self.catch_up();
                    continue;
                }
                Err(TryRecvError::Empty) if self.outbox.is_empty() => match queue.recv() {
                    Ok(job) => job,
                    Err(_) => break,
                },
                Err(TryRecvError::Empty) => match queue.recv_timeout(self.outbox.pause()) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        self.send_out();
                        continue;
                    }
                },
            };
            let mut bytes = first.bytes;
            let mut group = vec![first];
            while bytes < GROUP_BYTES {
                match queue.try_recv() {
                    Ok(job) => {
                        bytes += job.bytes;
                        group.push(job);
                    }
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            let works: Vec<Arc<Work>> = group.iter().filter_map(|j| j.work.as_ref()).map(|(_, w)| w.clone()).collect();
            let results = self.commit_caught(&works);
            let mut is_commit = !works.is_empty();
            drop(works);
            if !is_commit && self.outbox.is_empty() && group.iter().any(|job| job.follows) {
                let followed = self.follow_caught();
                is_commit = matches!(followed, Ok(true));
                if let Err(error) = followed {
                    for ack in group.iter_mut().filter(|job| job.follows).filter_map(|job| job.ack.take()) {
                        ack.send(Err(error.clone()));
                    }
                }
            }
            let steps: Vec<Prune> = group.iter_mut().filter_map(|job| job.prune.take()).collect();
            self.answer(group, results);
            self.show_applied();
            self.files.watch.at("a group: answered");
            if is_commit || !steps.is_empty() {
                self.commits.send_modify(|n| *n += 1);
            }
            if !self.outbox.is_empty() && self.outbox.pause().is_zero() {
                self.send_out();
            }
            for Prune { pass, ack } in steps {
                if !self.outbox.is_empty() {
                    // What is to go may be about to be written.
                    let _ = ack.send(Err(health::away(&self.recent.lock())));
                    continue;
                }
                let step = catch_unwind(AssertUnwindSafe(|| self.prune(pass)));
                // The caller may have gone away; then the pass ends here.
                let _ = ack.send(step.unwrap_or_else(|_| Err(Error::Invalid("pruning made the writer panic".into()))));
            }
        }
        // Leaves a small WAL behind for the next start; the last close removes it.
        if let Err(error) = self.conn.execute_batch("PRAGMA optimize; PRAGMA wal_checkpoint(TRUNCATE);") {
            tracing::debug!(%error, "the record's last checkpoint did not finish");
        }
    }

    /// Indexes some of what is not indexed yet; returns whether more is left. What fails is tried again with the next start.
    fn catch_up(&mut self) -> bool {
        let step = catch_unwind(AssertUnwindSafe(|| passages::catch_up(&mut self.conn)));
        match step {
            Ok(Ok(more)) => more,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the record's search index is not up to date");
                false
            }
            Err(_) => false,
        }
    }

    fn answer(&mut self, group: Vec<Job>, results: Vec<Result<Written, Error>>) {
        let mut results = results.into_iter();
        for mut job in group {
            let mut outcome = Ok(());
            if let Some((seq, work)) = &job.work {
                let result = results.next().unwrap_or(Err(Error::Closed));
                let mut recent = self.recent.lock();
                match result {
                    Ok(Written::Waits(origin)) => {
                        let ack = job.ack.take_if(|ack| !ack.once_kept);
                        self.outbox.wait(origin, Waiting { seq: *seq, ack });
                    }
                    Ok(Written::Done(applied)) => {
                        recent.settle(*seq, work, Some(applied));
                        health::written(&mut recent);
                    }
                    Err(error) => {
                        recent.settle(*seq, work, None);
                        health::failed(&mut recent, &error, job.ack.is_none());
                        outcome = Err(error);
                    }
                }
            }
            drop(job.permit);
            if let Some(ack) = job.ack {
                ack.send(outcome);
            }
        }
    }

    /// Commits, and turns a panic into an error for everyone in the group. Unwinding rolls the transaction back.
    pub(super) fn commit_caught(&mut self, works: &[Arc<Work>]) -> Vec<Result<Written, Error>> {
        let done =
            |results: Vec<Result<Applied, Error>>| results.into_iter().map(|one| one.map(Written::Done)).collect();
        let commit = |writer: &mut Writer| match writer.is_shared {
            true if works.is_empty() => Ok(Vec::new()),
            true => Ok(writer.replicate(works)),
            false => writer.mend().and_then(|()| writer.commit(works)).map(done),
        };
        match catch_unwind(AssertUnwindSafe(|| commit(self))) {
            Ok(Ok(results)) => results,
            Ok(Err(error)) => works.iter().map(|_| Err(error.clone())).collect(),
            Err(_) => {
                let error = Error::Invalid("it made the writer panic".into());
                works.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Takes up what others wrote into a shared record; returns whether there was anything.
    fn follow_caught(&mut self) -> Result<bool, Error> {
        let panicked = || Err(Error::Invalid("what others wrote made the writer panic".into()));
        catch_unwind(AssertUnwindSafe(|| self.follow())).unwrap_or_else(|_| panicked())
    }

    /// One transaction, one savepoint a batch: a batch that fails takes none of the others with it.
    fn commit(&mut self, works: &[Arc<Work>]) -> Result<Vec<Result<Applied, Error>>, Error> {
        if works.is_empty() {
            return Ok(Vec::new());
        }
        let Writer { conn, path, files, .. } = self;
        let wrap = |e| sqlite_error(path, e);
        let durable = works.iter().any(|w| w.batch.durable);
        conn.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" }).map_err(wrap)?;
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrap)?;
        let mut results = Vec::with_capacity(works.len());
        files.watch.at("a group: begun");
        for work in works {
            let savepoint = tx.savepoint().map_err(wrap)?;
            let result = Apply { tx: &savepoint, path, files, durable: work.batch.durable }.work(work);
            match result {
                Ok(applied) => {
                    savepoint.commit().map_err(wrap)?;
                    files.watch.at("a group: a batch is in");
                    results.push(Ok(applied));
                }
                Err(error) => {
                    // Disk full and the like end the whole transaction, not only the savepoint.
                    if savepoint.is_autocommit() {
                        return Err(error);
                    }
                    savepoint.finish().map_err(wrap)?;
                    results.push(Err(error));
                }
            }
        }
        tx.commit().map_err(wrap)?;
        files.watch.at("a group: committed");
        Ok(results)
    }
}

impl Apply<'_> {
    pub(super) fn work(&self, work: &Work) -> Result<Applied, Error> {
        let batch = &work.batch;
        let now_ms = batch.conversation.as_ref().map_or(work.now_ms, |c| c.now_ms);
        let mut applied = Applied::default();
        let mut conversation = None;
        if self.durable && batch.conversation.is_none() {
            // A commit that changes nothing syncs nothing, and what this batch repeats may not be on disk yet. This one
            // writes the first page, whatever there is in the tables.
            let version = self.wrap(self.tx.query_row("PRAGMA user_version", [], |r| r.get::<_, i64>(0)))?;
            self.wrap(self.tx.pragma_update(None, "user_version", version))?;
        }
        if let Some(reply) = &batch.last_reply {
            // First, for the conversation may have gone on meanwhile.
            self.last_reply(reply, now_ms)?;
        }
        if let Some(update) = &batch.conversation {
            let id = self.conversation(update)?;
            conversation = Some(id);
            for (i, node) in batch.nodes.iter().enumerate() {
                let tip = self.node(node, id, &update.id, now_ms)?;
                if i + 1 == batch.nodes.len() {
                    applied.tip = Some((node.chain, tip));
                }
            }
            self.let_reply_go(&update.id, Some(&update.tip))?;
        }
        batch.respelled.iter().try_for_each(|(chain, raw)| self.respelled(chain, raw))?;
        for original in &batch.originals {
            self.original(original, now_ms)?;
        }
        if let Some((digest, view)) = &work.view {
            applied.view_row = Some(self.view(digest, view)?);
            if let Some(id) = conversation {
                self.fold(id, digest, view)?;
            }
        }
        if let Some(recalled) = &batch.recalled {
            self.recalled(recalled)?;
        }
        for item in &batch.told.items {
            let row = self.conversation_row(&item.conversation, now_ms)?;
            let sql = "INSERT OR REPLACE INTO item (id, conversation, json) VALUES (?1, ?2, ?3)";
            self.run(sql, params![item.id, row, item.json])?;
        }
        if let Some(reply) = &batch.told.reply {
            let row = self.conversation_row(&reply.conversation, now_ms)?;
            let sql = "INSERT OR REPLACE INTO reply (id, conversation, chain, depth, head, json)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            self.run(sql, params![reply.id, row, reply.chain.0, reply.depth, reply.head, reply.json])?;
        }
        if let Some(Counted { chain, view, tokens }) = &batch.counted {
            let sql = "INSERT INTO counted (chain, view, tokens) VALUES (?1, ?2, ?3)
                ON CONFLICT(chain) DO UPDATE SET view = excluded.view, tokens = excluded.tokens";
            self.run(sql, params![chain.0, view.0, tokens])?;
        }
        if let Some((name, change)) = &batch.about {
            self.about(name, change, now_ms)?;
        }
        if let Some(change) = &batch.rule {
            self.rule(change)?;
        }
        if let Some(change) = &batch.kept {
            self.kept(change)?;
        }
        for event in &batch.events {
            self.event(event)?;
        }
        Ok(applied)
    }

    fn about(&self, name: &str, change: &About, now_ms: i64) -> Result<usize, Error> {
        match change {
            About::Title(title) => self.run("UPDATE conversation SET title = ?2 WHERE name = ?1", params![name, title]),
            About::Named(title) => self.run("UPDATE conversation SET named = ?2 WHERE name = ?1", params![name, title]),
            About::Starred(starred) => {
                self.run("UPDATE conversation SET starred = ?2 WHERE name = ?1", params![name, starred])
            }
            About::Standing(json) => {
                let row = self.conversation_row(name, now_ms)?;
                let sql = "INSERT INTO standing (conversation, json) VALUES (?1, ?2)
                    ON CONFLICT(conversation) DO UPDATE SET json = excluded.json";
                self.run(sql, params![row, json])
            }
        }
    }

    fn rule(&self, change: &RuleChange) -> Result<usize, Error> {
        match change {
            RuleChange::Put(rule) => {
                let sql = "INSERT INTO rule (id, client, project, text, conversation, created_ms, updated_ms)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                    ON CONFLICT(id) DO UPDATE SET text = excluded.text, updated_ms = excluded.updated_ms";
                let Rule { id, client, project, text, conversation, created_ms, updated_ms } = rule;
                self.run(sql, params![id, client, project, text, conversation, created_ms, updated_ms])
            }
            RuleChange::Remove(id) => self.run("DELETE FROM rule WHERE id = ?1", [id]),
        }
    }

    pub(super) fn wrap<T>(&self, result: rusqlite::Result<T>) -> Result<T, Error> {
        result.map_err(|e| sqlite_error(self.path, e))
    }

    pub(super) fn run(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize, Error> {
        self.wrap(self.tx.prepare_cached(sql).and_then(|mut s| s.execute(params)))
    }

    fn get<T: rusqlite::types::FromSql>(&self, sql: &str, params: impl rusqlite::Params) -> Result<Option<T>, Error> {
        self.wrap(self.tx.prepare_cached(sql).and_then(|mut s| s.query_row(params, |r| r.get(0)).optional()))
    }

    fn conversation(&self, c: &ConversationUpdate) -> Result<i64, Error> {
        let (parent, parent_depth) = match &c.parent {
            Some((name, depth)) => (self.conversation_row(name, c.now_ms).map(Some)?, Some(*depth)),
            None => (None, None),
        };
        let sql = "INSERT INTO conversation
                (name, parent, parent_depth, session, model, upstream, tip, depth, state, title, created_ms, updated_ms)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11)
            ON CONFLICT(name) DO UPDATE SET
                parent = coalesce(parent, excluded.parent), parent_depth = coalesce(parent_depth, excluded.parent_depth),
                session = coalesce(excluded.session, session), model = excluded.model, upstream = excluded.upstream,
                tip = excluded.tip, depth = excluded.depth, state = excluded.state,
                title = CASE title WHEN '' THEN excluded.title ELSE title END, updated_ms = excluded.updated_ms
            RETURNING id";
        let values = params![
            c.id,
            parent,
            parent_depth,
            c.session,
            c.model,
            c.upstream,
            c.tip.0,
            c.depth,
            c.state,
            c.title,
            c.now_ms
        ];
        let id = self.get(sql, values)?;
        prune::is_back(self.tx, self.path, self.files, "conversation", &c.id)?;
        id.ok_or_else(|| Error::Invalid(format!("conversation `{}` was not written", c.id)))
    }

    /// Row of a conversation that must exist; made empty if it does not, for an original is never refused.
    fn conversation_row(&self, name: &str, now_ms: i64) -> Result<i64, Error> {
        if let Some(id) = self.get("SELECT id FROM conversation WHERE name = ?1", [name])? {
            return Ok(id);
        }
        self.run("INSERT INTO conversation (name, created_ms, updated_ms) VALUES (?1, ?2, ?2)", params![name, now_ms])?;
        let row = self.tx.last_insert_rowid();
        prune::is_back(self.tx, self.path, self.files, "conversation", name)?;
        Ok(row)
    }

    fn node(&self, node: &Node, conversation: i64, name: &str, now_ms: i64) -> Result<Tip, Error> {
        let known =
            "SELECT c.name, n.depth FROM node n JOIN conversation c ON c.id = n.conversation WHERE n.chain = ?1";
        let row = |r: &rusqlite::Row<'_>| Ok(Tip { conversation: r.get(0)?, depth: r.get(1)? });
        let found = self.tx.prepare_cached(known).and_then(|mut s| s.query_row([node.chain.0], row).optional());
        if let Some(tip) = self.wrap(found)? {
            return Ok(tip);
        }
        let parent: Option<i64> = match &node.parent {
            None => None,
            Some(parent) => {
                let sql = "SELECT id FROM node WHERE chain = ?1 AND depth = ?2";
                let id = self.get(sql, params![parent.0, node.depth - 1])?;
                Some(id.ok_or(Error::Gap { depth: node.depth })?)
            }
        };
        let depth = node.depth;
        if !self.came_back(name, node, parent)? {
            let sql = "INSERT INTO node (chain, parent, depth, conversation, role, digest, raw)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let Node { chain, role, digest, raw, text, .. } = node;
            self.run(sql, params![chain.0, parent, depth, conversation, role, digest.0, large::bound(raw)])?;
            let row = self.tx.last_insert_rowid();
            self.wrap(large::fill(self.tx, row, raw))?;
            let new = passages::New { conversation, node: row, parent, at: depth - 1, text, now_ms: Some(now_ms) };
            self.wrap(passages::add_message(self.tx, &new))?;
        }
        self.files.watch.at("a message: in");
        self.run("UPDATE conversation SET deepest = max(deepest, ?2) WHERE id = ?1", params![conversation, depth])?;
        Ok(Tip { conversation: name.into(), depth })
    }

    /// Gives a message, if it is known, other bytes.
    fn respelled(&self, chain: &Digest, raw: &[u8]) -> Result<(), Error> {
        let sql = "UPDATE node SET raw = ?2 WHERE chain = ?1 RETURNING id";
        let row: Option<i64> = self.get(sql, params![chain.0, large::bound(raw)])?;
        row.map_or(Ok(()), |row| self.wrap(large::fill(self.tx, row, raw)))
    }

    fn original(&self, o: &Original, now_ms: i64) -> Result<(), Error> {
        let conversation = self.conversation_row(&o.conversation, now_ms)?;
        for id in original_ids(&o.id, &o.text) {
            let original = match self.wrap(large::original(self.tx, &id, &o.text))? {
                // Another text has this id already: a longer one is free.
                Some((_, false)) => continue,
                Some((original, true)) => original,
                None => {
                    let original = self.wrap(large::insert_original(self.tx, &id, &o.text, o.raw.as_deref()))?;
                    prune::is_back(self.tx, self.path, self.files, "original", &id)?;
                    original
                }
            };
            self.files.write_result(&id, o.text.as_bytes(), self.durable)?;
            let sql = "INSERT OR IGNORE INTO original_link (conversation, original, at, kind, tool, call)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            if self.run(sql, params![conversation, original, o.at, o.kind, o.tool, o.call])? > 0 {
                self.wrap(passages::add_original(self.tx, conversation, original, o.at, &o.text))?;
            }
            if id != o.id {
                self.event(&Event {
                    now_ms,
                    conversation: Some(o.conversation.clone()),
                    kind: "record_collision".into(),
                    data: json!({ "wanted": o.id, "recorded_as": id }),
                })?;
            }
            return Ok(());
        }
        Err(Error::Invalid(format!("no free id for original `{}`", o.id)))
    }

    /// Writes a view, each of its edits once; the same view again costs nothing.
    fn view(&self, chain: &Digest, view: &View) -> Result<i64, Error> {
        let mut edits = Vec::with_capacity(view.edits.len());
        for edit in &view.edits {
            let json = serde_json::to_string(edit).map_err(|e| Error::Invalid(format!("edit: {e}")))?;
            let digest = Digest::of(json.as_bytes());
            let id: i64 = match self.get("SELECT id FROM edit WHERE digest = ?1", [digest.0])? {
                Some(id) => id,
                None => {
                    self.run("INSERT INTO edit (digest, json) VALUES (?1, ?2)", params![digest.0, json])?;
                    self.tx.last_insert_rowid()
                }
            };
            edits.push(id);
        }
        let edits = json!(edits).to_string();
        let same = "SELECT id FROM view WHERE id = (SELECT max(id) FROM view WHERE chain = ?1)
            AND messages = ?2 AND edits = ?3 AND bare = ?4";
        if let Some(id) = self.get(same, params![chain.0, view.messages, edits, view.bare])? {
            return Ok(id);
        }
        let sql = "INSERT INTO view (chain, messages, edits, bare) VALUES (?1, ?2, ?3, ?4)";
        self.run(sql, params![chain.0, view.messages, edits, view.bare])?;
        Ok(self.tx.last_insert_rowid())
    }

    /// Brings the conversation's Markdown file up to the view's fold.
    fn fold(&self, conversation: i64, chain: &Digest, view: &View) -> Result<(), Error> {
        let fold = view.edits.iter().find_map(|edit| match edit {
            Edit::Fold { from, to, keep, brief, .. } => Some((*from, *to, keep, brief)),
            _ => None,
        });
        let Some((from, to, keep, brief)) = fold else { return Ok(()) };
        let fold = history::Fold { from, to, keep, brief_chars: brief.chars().count() };
        history::append(self.tx, self.path, self.files, conversation, chain, &fold, self.durable)
    }

    fn recalled(&self, r: &Recalled) -> Result<(), Error> {
        let all: Vec<&str> = r.messages.iter().filter_map(|m| std::str::from_utf8(m).ok()).collect();
        let messages = format!("[{}]", all.join(","));
        let sql = "INSERT INTO recalled (chain, reply, messages) VALUES (?1, ?2, ?3)";
        self.run(sql, params![r.chain.0, r.reply.0, messages]).map(|_| ())
    }

    fn event(&self, e: &Event) -> Result<(), Error> {
        let sql = "INSERT INTO event (now_ms, conversation, kind, data) VALUES (?1, ?2, ?3, ?4)";
        self.run(sql, params![e.now_ms, e.conversation, e.kind, e.data.to_string()]).map(|_| ())
    }
}
