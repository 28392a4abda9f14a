//! Retention: what nobody continues is forgotten, whole conversations at a time, and leaves word of when and why.
//!
//! A conversation goes with its messages, its views and whatever only it recorded, rows and files alike. It stays as long as
//! anything depends on it: while it is in use, and while a conversation that forked from it is there. So what a view that
//! may still be sent points at is never gone.
//!
//! Rows first, then files, and a row that says which files are still to go: a kill in between leaves work for the next
//! pass, never a text without a trace. One conversation a transaction, so that no request waits long behind it.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use serde_json::json;

use windowsill_core::conversation::Digest;

use super::files::Files;
use super::log::entry::Change;
use super::replica::Outcome;
use super::schema::{file_error, sqlite_error};
use super::types::{Error, Event, Pruned, Retention};
use super::writer::Writer;
use super::{housekeeping, kept, passages, schema};

/// A conversation that was used this lately is in use, whatever the limits say.
const IN_USE_MS: i64 = 60 * 60 * 1000;

/// Why a conversation is gone that somebody deleted; see [`Gone`](crate::Gone).
const DELETED: &str = "somebody who deleted its conversation";

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// How many pruned ids are remembered: some 10 MB of them.
const REMEMBERED: usize = 100_000;

/// Free pages that are given back to the system at once: 8 MiB of 4 KiB pages.
const PAGES: usize = 2_048;

/// Pages of the index that are merged at once: some milliseconds.
const INDEX_PAGES: i64 = 500;

/// What a pass did so far.
#[derive(Debug)]
pub(super) struct Pass {
    retention: Retention,
    /// The only conversation that is to go, where somebody asked for that.
    only: Option<String>,
    now_ms: i64,
    files: u64,
    stage: Stage,
    done: Pruned,
}

/// What a pass does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Clear away what a killed pass left, and measure.
    Begin,
    /// Remove conversations, one a step.
    Remove,
    /// Remove the one that is to go.
    RemoveOnly,
    /// Write the index anew where it still holds words of what was removed: the first step, a further one.
    Merge { first: bool },
    /// Give free pages back to the system.
    GiveBack,
}

/// Where a pass stands after a step.
#[derive(Debug)]
pub(super) enum Step {
    /// There may be more to do.
    More(Box<Pass>),
    /// Nothing is left to do.
    Done(Pruned),
}

/// What to remove, and why.
struct Victim {
    row: i64,
    name: String,
    why: String,
}

/// What was removed with a conversation.
pub(super) struct Removed {
    /// Names of the originals that only it had.
    pub(super) originals: Vec<String>,
    /// Its messages.
    pub(super) messages: usize,
    /// Messages that were left to those that forked from it.
    pub(super) left: usize,
}

impl Pass {
    pub(super) fn new(retention: Retention, now_ms: i64) -> Pass {
        Pass { retention, only: None, now_ms, files: 0, stage: Stage::Begin, done: Pruned::default() }
    }

    /// A pass that removes one conversation.
    pub(super) fn of(conversation: &str, now_ms: i64) -> Pass {
        Pass { only: Some(conversation.to_owned()), ..Pass::new(Retention::default(), now_ms) }
    }
}

impl Writer {
    /// One step of a pass; the pass ends where another process writes the record too: what that one remembers in RAM may
    /// not go.
    pub(super) fn prune(&mut self, pass: Box<Pass>) -> Result<Step, Error> {
        let shared = Pruned { shared: true, ..pass.done.clone() };
        let presence = Arc::clone(&self.presence);
        presence.alone(|| self.overwriting(|writer| writer.step(pass))).unwrap_or(Ok(Step::Done(shared)))
    }

    /// Acts with what is deleted overwritten: else the text stands on in free parts of the database.
    fn overwriting<T>(&mut self, act: impl FnOnce(&mut Writer) -> Result<T, Error>) -> Result<T, Error> {
        let set = |writer: &Writer, on: bool| {
            writer.conn.pragma_update(None, "secure_delete", on).map_err(|e| sqlite_error(&writer.path, e))
        };
        set(self, true)?;
        let done = act(self);
        set(self, false)?;
        done
    }

    /// One step: one conversation, or what comes before the first or behind the last.
    fn step(&mut self, mut pass: Box<Pass>) -> Result<Step, Error> {
        match pass.stage {
            Stage::Begin => {
                self.sweep()?;
                self.kept(&pass)?;
                if pass.only.is_some() {
                    pass.stage = Stage::RemoveOnly;
                    return Ok(Step::More(pass));
                }
                if pass.retention == Retention::default() {
                    return Ok(Step::Done(pass.done));
                }
                pass.files = self.files.bytes()?;
                pass.stage = Stage::Remove;
                pass.done.bytes_before = self.used(&pass)?;
            }
            Stage::Remove => {}
            Stage::RemoveOnly => return self.remove_only(pass),
            Stage::Merge { first } => return self.merge(pass, first),
            Stage::GiveBack => return self.give_back(pass),
        }
        let Some(victim) = self.victim(&pass)? else {
            if pass.done.conversations == 0 {
                return self.finish(pass);
            }
            pass.stage = Stage::Merge { first: true };
            return Ok(Step::More(pass));
        };
        self.remove_victim(&mut pass, &victim)?;
        Ok(Step::More(pass))
    }

    /// Removes a conversation that was condemned, rows and files.
    fn remove_victim(&mut self, pass: &mut Pass, victim: &Victim) -> Result<(), Error> {
        let removed = self.remove_condemned(victim, pass.now_ms);
        self.recent.lock().reprieve();
        let removed = removed?;
        let freed = self.remove_files(&removed.originals, &victim.name)?;
        pass.files = pass.files.saturating_sub(freed);
        pass.done.conversations += 1;
        pass.done.originals += removed.originals.len();
        pass.done.messages += removed.messages;
        pass.done.left += removed.left;
        Ok(())
    }

    /// Removes the one conversation that is to go. Where something of it is about to be written, that is written first.
    fn remove_only(&mut self, mut pass: Box<Pass>) -> Result<Step, Error> {
        let wrap = |e| sqlite_error(&self.path, e);
        let name = pass.only.clone().unwrap_or_default();
        let sql = "SELECT id FROM conversation WHERE name = ?1";
        let row: Option<i64> = self.conn.query_row(sql, [&name], |r| r.get(0)).optional().map_err(wrap)?;
        let Some(row) = row else { return Ok(Step::Done(pass.done)) };
        let (chains, views) = known(&self.conn, row).map_err(wrap)?;
        if !self.recent.lock().condemn(&name, &chains, &views, i64::MAX) {
            return Ok(Step::More(pass));
        }
        self.remove_victim(&mut pass, &Victim { row, name, why: DELETED.into() })?;
        pass.stage = Stage::Merge { first: true };
        Ok(Step::More(pass))
    }

    /// Removes the files that an earlier pass was killed before.
    fn sweep(&self) -> Result<(), Error> {
        let left = |kind: &str| {
            let read = || {
                let mut statement = self.conn.prepare("SELECT name FROM pruned WHERE kind = ?1 AND file = 1")?;
                statement.query_map([kind], |r| r.get(0))?.collect::<rusqlite::Result<Vec<String>>>()
            };
            read().map_err(|e| sqlite_error(&self.path, e))
        };
        self.remove_files(&left("original")?, "")?;
        for conversation in left("conversation")? {
            self.remove_files(&[], &conversation)?;
        }
        Ok(())
    }

    /// Removes the files of what is gone from the tables; returns their bytes.
    pub(super) fn remove_files(&self, originals: &[String], conversation: &str) -> Result<u64, Error> {
        let mut freed = 0;
        let results = originals.iter().map(|id| ("original", id.as_str(), self.files.result(id)));
        let history = ("conversation", conversation, self.files.history(conversation));
        for (kind, name, path) in results.chain((!conversation.is_empty()).then_some(history)) {
            freed += self.files.remove(&path).map_err(|e| file_error(&path, e))?;
            let sql = "UPDATE pruned SET file = 0 WHERE kind = ?1 AND name = ?2";
            let done = self.conn.prepare_cached(sql).and_then(|mut s| s.execute([kind, name]));
            done.map_err(|e| sqlite_error(&self.path, e))?;
        }
        Ok(freed)
    }

    /// Removes what clients keep under ids and did not use for so long.
    fn kept(&mut self, pass: &Pass) -> Result<(), Error> {
        let days = pass.retention.days;
        if days == 0 {
            return Ok(());
        }
        let before_ms = pass.now_ms.saturating_sub(i64::from(days).saturating_mul(DAY_MS));
        let why = format!("retention_days = {days}");
        if !self.is_shared {
            let removed = kept::remove_unused(&self.conn, before_ms, pass.now_ms, &why);
            return removed.map_err(|e| sqlite_error(&self.path, e));
        }
        if !kept::any_unused(&self.conn, before_ms).map_err(|e| sqlite_error(&self.path, e))? {
            return Ok(());
        }
        self.replicate_change(Change::Unused { before_ms, why, now_ms: pass.now_ms }).map(|_| ())
    }

    /// Bytes of the record: what is used of the database, and the files.
    fn used(&self, pass: &Pass) -> Result<u64, Error> {
        let number = |what: &str| self.conn.query_row(&format!("PRAGMA {what}"), [], |r| r.get::<_, i64>(0));
        let pages = || Ok((number("page_count")? - number("freelist_count")?) * number("page_size")?);
        let bytes = pages().map_err(|e| sqlite_error(&self.path, e))?;
        Ok(u64::try_from(bytes).unwrap_or(0) + pass.files)
    }

    /// The next conversation to go, and marks it: from here on nobody finds it.
    fn victim(&self, pass: &Pass) -> Result<Option<Victim>, Error> {
        let Retention { days, bytes } = pass.retention;
        if days > 0 {
            let before = pass.now_ms.saturating_sub(i64::from(days).saturating_mul(DAY_MS));
            if let Some(victim) = self.last_used_before(before, pass.now_ms, &format!("retention_days = {days}"))? {
                return Ok(Some(victim));
            }
        }
        if bytes > 0 && self.used(pass)? > bytes {
            let before = pass.now_ms.saturating_sub(IN_USE_MS);
            return self.last_used_before(before, pass.now_ms, &format!("retention_bytes = {bytes}"));
        }
        Ok(None)
    }

    /// The conversation that was not used for longest, before a time, and that no other one depends on.
    fn last_used_before(&self, before: i64, now_ms: i64, why: &str) -> Result<Option<Victim>, Error> {
        let wrap = |e| sqlite_error(&self.path, e);
        let sql = "SELECT c.id, c.name FROM conversation c WHERE c.updated_ms < ?1 AND c.starred = 0
                AND NOT EXISTS (SELECT 1 FROM conversation k WHERE k.parent = c.id)
            ORDER BY c.updated_ms, c.id";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrap)?;
        let mut rows = statement.query([before]).map_err(wrap)?;
        while let Some(row) = rows.next().map_err(wrap)? {
            let (row, name): (i64, String) = (row.get(0).map_err(wrap)?, row.get(1).map_err(wrap)?);
            let (chains, views) = known(&self.conn, row).map_err(wrap)?;
            if self.recent.lock().condemn(&name, &chains, &views, now_ms - IN_USE_MS) {
                return Ok(Some(Victim { row, name, why: why.to_owned() }));
            }
        }
        Ok(None)
    }

    fn remove_condemned(&mut self, victim: &Victim, now_ms: i64) -> Result<Removed, Error> {
        self.files.watch.at("pruning: before the commit");
        if self.is_shared {
            return self.remove_shared(victim, now_ms);
        }
        let removed = remove(&mut self.conn, victim, now_ms).map_err(|e| sqlite_error(&self.path, e));
        self.files.watch.at("pruning: committed");
        if removed.as_ref().map_or(true, |removed| removed.left > 0) {
            // It is all there still, or what others have of it is: what was forgotten is read again.
            let rows = super::read::view_rows(&self.conn).map_err(|e| sqlite_error(&self.path, e))?;
            let recalled = super::read::with_recalled(&self.conn).map_err(|e| sqlite_error(&self.path, e))?;
            self.recent.lock().relearn(rows, recalled);
        }
        removed
    }

    /// Removes a conversation for all that share the record, and its texts from where they share it.
    fn remove_shared(&mut self, victim: &Victim, now_ms: i64) -> Result<Removed, Error> {
        let Victim { name, why, .. } = victim;
        let heir = housekeeping::heir(&self.conn, victim.row).map_err(|e| sqlite_error(&self.path, e))?;
        let change = Change::Remove { name: name.clone(), why: why.clone(), now_ms };
        let (done, upto) = self.replicate_change(change)?;
        self.files.watch.at("pruning: committed");
        self.forget_texts(name, upto, heir.as_deref());
        match done {
            Outcome::Removed(Some(removed)) => Ok(removed),
            // Another one was faster.
            _ => Ok(Removed { originals: Vec::new(), messages: 0, left: 0 }),
        }
    }

    /// What is left behind: edits that no view has, old events.
    fn finish(&mut self, mut pass: Box<Pass>) -> Result<Step, Error> {
        let after = self.used(&pass)?;
        let Retention { days, bytes } = pass.retention;
        pass.done.over = bytes > 0 && after > bytes;
        let before_ms = (days > 0).then(|| pass.now_ms.saturating_sub(i64::from(days).saturating_mul(DAY_MS)));
        let event = (pass.done.conversations > 0).then(|| told(&pass, after));
        let wrap = |e| sqlite_error(&self.path, e);
        if !self.is_shared {
            let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrap)?;
            tidy(&tx, before_ms, event.as_ref()).and_then(|()| tx.commit()).map_err(wrap)?;
        } else if event.is_some() || any_before(&self.conn, before_ms).map_err(wrap)? {
            self.replicate_change(Change::Tidy { before_ms, event })?;
        }
        pass.done.bytes_after = after;
        pass.stage = Stage::GiveBack;
        Ok(if pass.done.conversations > 0 { Step::More(pass) } else { Step::Done(pass.done) })
    }

    /// Gives some of the free pages back to the system.
    /// Merges a part of the index. What was deleted stands there until its segment is merged
    /// (<https://sqlite.org/fts5.html#the_merge_command>: below zero begins with all segments; fewer than two changes say
    /// that nothing was left to do).
    fn merge(&mut self, mut pass: Box<Pass>, first: bool) -> Result<Step, Error> {
        let pages = if first { -INDEX_PAGES } else { INDEX_PAGES };
        let before = self.conn.total_changes();
        let sql = "INSERT INTO words(words, rank) VALUES('merge', ?1)";
        self.conn.execute(sql, [pages]).map_err(|e| sqlite_error(&self.path, e))?;
        let done = self.conn.total_changes() - before < 2;
        if done {
            return self.finish(pass);
        }
        pass.stage = Stage::Merge { first: false };
        Ok(Step::More(pass))
    }

    fn give_back(&self, pass: Box<Pass>) -> Result<Step, Error> {
        let free = || self.conn.query_row("PRAGMA freelist_count", [], |r| r.get::<_, i64>(0));
        let vacuum = || {
            let before = free()?;
            // It gives back as many pages as it is stepped for.
            let mut statement = self.conn.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
            let after = free()?;
            Ok(after == 0 || after >= before)
        };
        let done = vacuum().map_err(|e| sqlite_error(&self.path, e))?;
        Ok(if done { Step::Done(pass.done) } else { Step::More(pass) })
    }
}

/// What the trace says of a pass.
fn told(pass: &Pass, after: u64) -> Event {
    let (Retention { days, bytes }, done) = (pass.retention, &pass.done);
    let (kind, data) = match &pass.only {
        None => {
            let data = json!({
                "conversations": done.conversations, "originals": done.originals, "messages": done.messages,
                "bytes_before": done.bytes_before, "bytes_after": after, "over": done.over,
                "retention_days": days, "retention_bytes": bytes,
            });
            ("record_pruned", data)
        }
        Some(_) => {
            let left = done.left;
            let data = json!({"originals": done.originals, "messages": done.messages, "left_to_forks": left});
            ("conversation_deleted", data)
        }
    };
    Event { now_ms: pass.now_ms, conversation: None, kind: kind.into(), data }
}

/// Removes old events, and what nobody needs any more; and notes what went.
pub(super) fn tidy(tx: &Connection, before_ms: Option<i64>, event: Option<&Event>) -> rusqlite::Result<()> {
    if let Some(before_ms) = before_ms {
        tx.execute("DELETE FROM event WHERE now_ms < ?1", [before_ms])?;
    }
    // Also where nothing went now: a pass before this one may have been killed between its last conversation and this.
    tx.execute("DELETE FROM counted WHERE chain NOT IN (SELECT chain FROM node)", [])?;
    tx.execute("DELETE FROM edit WHERE id NOT IN (SELECT j.value FROM view, json_each(view.edits) j)", [])?;
    let Some(event) = event else { return Ok(()) };
    tx.execute(
        "DELETE FROM pruned WHERE file = 0 AND (kind, name) IN
            (SELECT kind, name FROM pruned ORDER BY now_ms DESC LIMIT -1 OFFSET ?1)",
        [REMEMBERED],
    )?;
    let sql = "INSERT INTO event (now_ms, conversation, kind, data) VALUES (?1, ?2, ?3, ?4)";
    tx.execute(sql, params![event.now_ms, event.conversation, event.kind, event.data.to_string()]).map(|_| ())
}

fn any_before(conn: &Connection, before_ms: Option<i64>) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM event WHERE now_ms < ?1)";
    before_ms.map_or(Ok(false), |before| conn.query_row(sql, [before], |r| r.get(0)))
}

/// As [`known`], of a conversation by its name.
pub(super) fn known_of(conn: &Connection, name: &str) -> rusqlite::Result<(Vec<Digest>, Vec<i64>)> {
    row_of(conn, name)?.map_or(Ok((Vec::new(), Vec::new())), |row| known(conn, row))
}

fn row_of(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.query_row("SELECT id FROM conversation WHERE name = ?1", [name], |r| r.get(0)).optional()
}

/// Chain digests of the messages that a conversation owns, and the rows of their views.
fn known(conn: &Connection, row: i64) -> rusqlite::Result<(Vec<Digest>, Vec<i64>)> {
    let mut statement = conn.prepare_cached("SELECT chain FROM node WHERE conversation = ?1")?;
    let chains = statement.query_map([row], |r| Ok(Digest(r.get(0)?)))?.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT id FROM view WHERE chain IN (SELECT chain FROM node WHERE conversation = ?1)";
    let mut statement = conn.prepare_cached(sql)?;
    let views = statement.query_map([row], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok((chains, views))
}

/// Removes the rows of a conversation, and of what only it recorded, in one transaction that survives a power cut: the files
/// go next.
fn remove(conn: &mut Connection, victim: &Victim, now_ms: i64) -> rusqlite::Result<Removed> {
    conn.pragma_update(None, "synchronous", "FULL")?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let removed = remove_rows(&tx, victim, now_ms)?;
    tx.commit()?;
    Ok(removed)
}

/// As [`remove`], within a transaction, of a conversation by its name; `None` where there is none.
pub(super) fn remove_named(tx: &Connection, name: &str, why: &str, now_ms: i64) -> rusqlite::Result<Option<Removed>> {
    let Some(row) = row_of(tx, name)? else { return Ok(None) };
    let victim = Victim { row, name: name.to_owned(), why: why.to_owned() };
    schema::overwriting(tx, |tx| remove_rows(tx, &victim, now_ms)).map(Some)
}

fn remove_rows(tx: &Connection, victim: &Victim, now_ms: i64) -> rusqlite::Result<Removed> {
    let Victim { row, name, why } = victim;
    let ids =
        |sql: &str| -> rusqlite::Result<Vec<i64>> { tx.prepare_cached(sql)?.query_map([row], |r| r.get(0))?.collect() };
    let gone = |kind: &str, name: &str| {
        let sql = "INSERT OR REPLACE INTO pruned (kind, name, now_ms, why, file) VALUES (?1, ?2, ?3, ?4, 1)";
        tx.prepare_cached(sql)?.execute(params![kind, name, now_ms, why])
    };
    let left = housekeeping::leave_to_forks(tx, *row)?;
    let alone = "SELECT l.original FROM original_link l WHERE l.conversation = ?1
        AND NOT EXISTS (SELECT 1 FROM original_link o WHERE o.original = l.original AND o.conversation <> ?1)";
    let alone = ids(alone)?;
    tx.execute("DELETE FROM original_link WHERE conversation = ?1", [row])?;
    let mut originals = Vec::with_capacity(alone.len());
    for id in alone {
        tx.prepare_cached("DELETE FROM original_part WHERE original = ?1")?.execute([id])?;
        let sql = "DELETE FROM original WHERE id = ?1 RETURNING name";
        let name: String = tx.prepare_cached(sql)?.query_row([id], |r| r.get(0))?;
        gone("original", &name)?;
        originals.push(name);
    }
    let nodes = ids("SELECT id FROM node WHERE conversation = ?1")?;
    passages::remove(tx, *row)?;
    for table in ["view", "recalled"] {
        let sql = format!("DELETE FROM {table} WHERE chain IN (SELECT chain FROM node WHERE conversation = ?1)");
        tx.execute(&sql, [row])?;
    }
    tx.execute("DELETE FROM node WHERE conversation = ?1", [row])?;
    tx.execute("DELETE FROM event WHERE conversation = ?1", [name])?;
    tx.execute("DELETE FROM standing WHERE conversation = ?1", [row])?;
    tx.execute("DELETE FROM item WHERE conversation = ?1", [row])?;
    // A client that goes on from one of its replies is told when it went.
    let replies = "INSERT OR REPLACE INTO pruned (kind, name, now_ms, why, file)
        SELECT 'reply', id, ?2, ?3, 0 FROM reply WHERE conversation = ?1";
    tx.execute(replies, params![row, now_ms, why])?;
    tx.execute("DELETE FROM reply WHERE conversation = ?1", [row])?;
    kept::remove_with(tx, name, now_ms, why)?;
    tx.execute("DELETE FROM conversation WHERE id = ?1", [row])?;
    gone("conversation", name)?;
    Ok(Removed { originals, messages: nodes.len(), left })
}

/// What is recorded again is not gone. A file that was still to go is removed before something new takes its name.
pub(super) fn is_back(conn: &Connection, path: &Path, files: &Files, kind: &str, name: &str) -> Result<(), Error> {
    let sql = "DELETE FROM pruned WHERE kind = ?1 AND name = ?2 RETURNING file";
    let left = conn.prepare_cached(sql).and_then(|mut s| s.query_row([kind, name], |r| r.get::<_, bool>(0)).optional());
    if left.map_err(|e| sqlite_error(path, e))? == Some(true) && kind == "conversation" {
        let file = files.history(name);
        files.remove(&file).map_err(|e| file_error(&file, e))?;
    }
    Ok(())
}
