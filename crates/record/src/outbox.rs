//! What waits for the database of a shared record while it is away: on this machine's disk, in the order in which it is to be written,
//! so that a kill takes nothing of it and RAM does not fill. Each entry keeps the origin that it was first tried with: one that did
//! reach the log before the connection broke is found there, and is not written twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

use super::ack::Ack;
use super::apply::Apply;
use super::files::Files;
use super::log::Origin;
use super::log::entry::Change;
use super::recent::Work;
use super::schema::{self, sqlite_error};
use super::types::Error;

/// Bytes that may wait on the disk. Past it a batch fails, as on a full disk.
const ROOM: u64 = 1 << 30;

/// Bytes of entries that are read back at once, and how many of them.
const READ_BYTES: usize = 4 << 20;
const READ_ENTRIES: usize = 256;

/// Between two tries to reach a database that is away.
const AGAIN: Duration = Duration::from_millis(250);

/// The entries that wait, as far as they are known in RAM.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: HashMap<Origin, Waiting>,
    /// Bytes of them.
    bytes: u64,
    /// When the database is to be tried next.
    again: Option<Instant>,
}

/// An entry that waits.
pub(super) struct Waiting {
    /// Its number among all that were queued.
    pub(super) seq: u64,
    /// Who waits for it, if anyone.
    pub(super) ack: Option<Ack>,
}

/// An entry that was read back.
pub(super) struct Row {
    pub(super) origin: Origin,
    /// `None` where it does not read.
    pub(super) work: Option<Arc<Work>>,
    bytes: usize,
}

impl Outbox {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How long the database is left alone from now on.
    pub(super) fn pause(&self) -> Duration {
        self.again.map_or(Duration::ZERO, |again| again.saturating_duration_since(Instant::now()))
    }

    /// Notes that the database was tried, and is away. A try that took long is not made again at once: others wait for the writer.
    pub(super) fn tried(&mut self, since: Instant) {
        self.again = Some(Instant::now() + since.elapsed().max(AGAIN));
    }

    /// Notes an entry that waits.
    pub(super) fn wait(&mut self, origin: Origin, waiting: Waiting) {
        self.waiting.insert(origin, waiting);
    }

    /// Notes an entry that a process before this one put on the disk.
    pub(super) fn found(&mut self, row: &Row, seq: u64) {
        self.bytes += row.bytes as u64;
        self.wait(row.origin, Waiting { seq, ack: None });
    }

    /// The entry that waits no more.
    pub(super) fn done(&mut self, origin: &Origin) -> Option<Waiting> {
        let done = self.waiting.remove(origin);
        if self.waiting.is_empty() {
            (self.bytes, self.again) = (0, None);
        }
        done
    }

    /// Gives all up: they are no longer on the disk. Returns the number of the newest.
    pub(super) fn give_up(&mut self) -> Option<u64> {
        let newest = self.waiting.values().map(|waiting| waiting.seq).max();
        for (_, Waiting { ack, .. }) in self.waiting.drain() {
            if let Some(ack) = ack {
                ack.send(Err(Error::Closed));
            }
        }
        *self = Outbox::default();
        newest
    }

    /// Puts entries on the disk, all or none.
    ///
    /// # Errors
    /// When that is full, or more than may wait there.
    pub(super) fn put(&mut self, conn: &mut Connection, path: &Path, all: &[(Origin, Arc<Work>)]) -> Result<(), Error> {
        if self.bytes > ROOM {
            return Err(Error::Busy);
        }
        let mut bytes = 0;
        let mut put = || -> rusqlite::Result<()> {
            let durable = all.iter().any(|(_, work)| work.batch.durable);
            conn.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })?;
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (origin, work) in all {
                let change = serde_json::to_string(&Change::of(work))
                    .map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
                bytes += change.len() as u64;
                let over = work.over.map(|over| i64::try_from(over).unwrap_or(i64::MAX));
                let sql = "INSERT OR IGNORE INTO outbox (origin, over, change) VALUES (?1, ?2, ?3)";
                tx.prepare_cached(sql)?.execute(params![origin, over, change])?;
            }
            tx.commit()
        };
        put().map_err(|e| sqlite_error(path, e))?;
        self.bytes += bytes;
        Ok(())
    }
}

/// The first entries behind the number `after`, and the number of the last of them.
fn read_after(conn: &Connection, after: i64) -> rusqlite::Result<(Vec<Row>, i64)> {
    let mut statement =
        conn.prepare_cached("SELECT id, origin, over, change FROM outbox WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut rows = statement.query(params![after, READ_ENTRIES])?;
    let (mut found, mut bytes, mut last) = (Vec::new(), 0, after);
    while let Some(row) = rows.next()?.filter(|_| bytes < READ_BYTES) {
        let (origin, over, change): (Origin, Option<i64>, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        last = row.get(0)?;
        bytes += change.len();
        let over = over.and_then(|over| u64::try_from(over).ok());
        let work = match serde_json::from_str(&change) {
            Ok(Change::Batch { now_ms, batch }) => Some(Arc::new(Work { over, ..batch.work(now_ms) })),
            _ => None,
        };
        found.push(Row { origin, work, bytes: change.len() });
    }
    Ok((found, last))
}

/// The first entries.
pub(super) fn first(conn: &Connection, path: &Path) -> Result<Vec<Row>, Error> {
    read_after(conn, 0).map(|(rows, _)| rows).map_err(|e| sqlite_error(path, e))
}

/// Calls `each` with all entries, in order.
pub(super) fn all(conn: &Connection, path: &Path, mut each: impl FnMut(Row) -> Result<(), Error>) -> Result<(), Error> {
    let mut after = 0;
    loop {
        let (rows, last) = read_after(conn, after).map_err(|e| sqlite_error(path, e))?;
        if rows.is_empty() {
            return Ok(());
        }
        after = last;
        rows.into_iter().try_for_each(&mut each)?;
    }
}

/// Whether there are any.
pub(super) fn any(conn: &Connection) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM outbox)")?.query_row([], |r| r.get(0))
}

/// Removes an entry. What it said may be deleted later, so nothing of it stays in free parts of the database.
pub(super) fn remove(conn: &Connection, origin: &Origin) -> rusqlite::Result<()> {
    schema::overwriting(conn, |conn| {
        conn.prepare_cached("DELETE FROM outbox WHERE origin = ?1")?.execute([origin]).map(|_| ())
    })
}

/// Writes what waited into a database that is a record of its own from now on.
pub(super) fn take_in(conn: &mut Connection, path: &PathBuf, files: &Files) -> Result<(), Error> {
    let wrap = |e| sqlite_error(path, e);
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'outbox')";
    if !conn.query_row(is_there, [], |r| r.get(0)).map_err(wrap)? {
        return Ok(());
    }
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrap)?;
    let mut works = Vec::new();
    all(&tx, path, |row| {
        works.extend(row.work);
        Ok(())
    })?;
    for work in works {
        let savepoint = tx.savepoint().map_err(wrap)?;
        match (Apply { tx: &savepoint, path, files, durable: work.batch.durable }).work(&work) {
            Ok(_) => savepoint.commit().map_err(wrap)?,
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "what waited for the database of the record does not fit any more");
                savepoint.finish().map_err(wrap)?;
            }
        }
    }
    tx.execute_batch("DROP TABLE outbox").map_err(wrap)?;
    tx.commit().map_err(wrap)
}
