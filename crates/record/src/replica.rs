//! A writer whose record is one that several windowsills share: what it writes goes into the log first, and comes from there into
//! the database, with what others wrote in between.
//!
//! The database knows up to which entry it is built, in the same transaction, so a kill between the two costs nothing: the entry
//! is done at the next start. An entry that contradicts the record is refused, and so it is everywhere, for all have the same before
//! it. Where this machine cannot write, nothing is skipped: the same entry is tried again.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tokio::sync::watch;
use windowsill_core::conversation::Digest;

use super::apply::Apply;
use super::log::entry::Change;
use super::log::{Appended, Entry, Joined, Log, LogError, NewEntry, Origin};
use super::prune::{self, Removed};
use super::recent::{Applied, Work};
use super::schema::sqlite_error;
use super::types::{Error, RuleChange};
use super::writer::Writer;
use super::{health, kept, rows, secret};

/// Between two tries to reach a database that is away.
const AGAIN: Duration = Duration::from_millis(250);

/// Between two lines of a log that says how far a rebuilt record is.
const TOLD: Duration = Duration::from_secs(5);

/// The log of a shared record, as its writer holds it.
pub(super) struct Replica {
    log: Box<dyn Log>,
    joined: Joined,
    /// The number of the newest entry that the database has.
    applied: u64,
    /// Begins the origins of this process.
    process: [u8; 8],
    count: u64,
    link: Link,
}

/// Whether the database of the log can be reached, for those who wait for it.
#[derive(Clone)]
pub(super) struct Link {
    /// True while it cannot.
    pub(super) away: watch::Sender<bool>,
    /// Set when the record is closed: then nothing is tried again.
    pub(super) closing: Arc<AtomicBool>,
}

/// What came of an entry.
pub(super) enum Outcome {
    /// A batch was written.
    Batch(Applied),
    /// A conversation was removed, or was not there.
    Removed(Option<Removed>),
    /// What needs no more words.
    Done,
}

/// What is to be done, and where it comes from.
enum Step {
    /// What this process wrote into the log.
    Own(Arc<Work>),
    /// What others wrote, or what this one wrote that is no batch.
    Other(Change),
}

impl Replica {
    /// Holds a log that was joined; the database is built up to `applied`.
    pub(super) fn new(log: Box<dyn Log>, joined: Joined, applied: u64, link: Link) -> Result<Replica, Error> {
        let mut process = [0; 8];
        process.copy_from_slice(&secret::random()?[..8]);
        Ok(Replica { log, joined, applied, process, count: 0, link })
    }

    fn origin(&mut self) -> Origin {
        self.count += 1;
        let mut origin = [0; 16];
        origin[..8].copy_from_slice(&self.process);
        origin[8..].copy_from_slice(&self.count.to_be_bytes());
        origin
    }

    fn entry(&mut self, change: &Change, conversation: &str) -> Result<NewEntry, Error> {
        let (body, texts) = change.encode().map_err(Error::Invalid)?;
        Ok(NewEntry {
            origin: self.origin(),
            conversation: conversation.to_owned(),
            body,
            texts,
            claim: None,
            ends: Vec::new(),
        })
    }
}

/// What only one may write over what was known: a view of these messages, or a rule with this number.
fn claimed(work: &Work) -> Option<Digest> {
    let rule = || match &work.batch.rule {
        Some(RuleChange::Put(rule)) => Some(Digest::of(format!("rule {}", rule.id).as_bytes())),
        _ => None,
    };
    work.view.as_ref().map(|(chain, _)| *chain).or_else(rule)
}

/// Turns what the log said into the record's words.
pub(super) fn log_error(error: LogError) -> Error {
    match error {
        LogError::Away(why) => Error::Away { why },
        LogError::Unfit(why) => Error::Away { why },
    }
}

impl Writer {
    /// Writes batches into the log and then here, with what others wrote before them. Where the database is away, they wait until it is
    /// back, or the record is closed.
    pub(super) fn replicate(&mut self, works: &[Arc<Work>]) -> Vec<Result<Applied, Error>> {
        let Some(mut replica) = self.replica.take() else { return works.iter().map(|_| Err(Error::Closed)).collect() };
        let entries: Vec<Result<NewEntry, Error>> = works
            .iter()
            .map(|work| {
                let mut entry = replica.entry(&Change::of(work), work.batch.owner())?;
                entry.claim = claimed(work).zip(work.over);
                Ok(entry)
            })
            .collect();
        let open: Vec<(NewEntry, Step)> = entries
            .iter()
            .zip(works)
            .filter_map(|(entry, work)| Some((entry.as_ref().ok()?.clone(), Step::Own(Arc::clone(work)))))
            .collect();
        let mut done = self.persist(&mut replica, open, false).into_iter();
        self.replica = Some(replica);
        let outcome =
            |entry: Result<NewEntry, Error>| match entry.and_then(|_| done.next().unwrap_or(Err(Error::Closed)))? {
                Outcome::Batch(applied) => Ok(applied),
                _ => Ok(Applied::default()),
            };
        entries.into_iter().map(outcome).collect()
    }

    /// Writes a change that is no batch into the log and then here. Where the database is away, nothing is changed.
    pub(super) fn replicate_change(&mut self, change: Change) -> Result<(Outcome, u64), Error> {
        let Some(mut replica) = self.replica.take() else { return Err(Error::Closed) };
        let done = replica.entry(&change, "").and_then(|mut entry| {
            if let Change::Remove { name, .. } = &change {
                entry.ends = prune::known_of(&self.conn, name).map_err(|e| sqlite_error(&self.path, e))?.0;
            }
            let done = self.persist(&mut replica, vec![(entry, Step::Other(change))], true);
            done.into_iter().next().unwrap_or(Err(Error::Closed))
        });
        let applied = replica.applied;
        self.replica = Some(replica);
        done.map(|done| (done, applied))
    }

    /// Removes the texts of a conversation that was removed with the entry `upto` from the log; what is left is told to nobody, and stays.
    pub(super) fn forget_texts(&mut self, conversation: &str, upto: u64, heir: Option<&str>) {
        let Some(replica) = &mut self.replica else { return };
        if let Err(LogError::Away(error) | LogError::Unfit(error)) = replica.log.forget(conversation, upto, heir) {
            tracing::warn!(%error, "texts of a conversation that was deleted stay in the database");
        }
    }

    /// Takes up what others wrote. Returns whether there was anything.
    pub(super) fn follow(&mut self) -> Result<bool, Error> {
        let Some(mut replica) = self.replica.take() else { return Err(Error::Closed) };
        let before = replica.applied;
        let followed = self.mend().and_then(|()| self.take_up(&mut replica, &mut HashMap::new()));
        self.note(&replica.link, followed.as_ref().err());
        if followed.is_ok() {
            self.recent.lock().base.applied = replica.applied;
        }
        let changed = replica.applied != before;
        self.replica = Some(replica);
        followed.map(|()| changed)
    }

    /// Lets requests go on from what was done, once all who wait for it were answered.
    pub(super) fn show_applied(&self) {
        if let Some(replica) = &self.replica {
            self.recent.lock().base.applied = replica.applied;
        }
    }

    /// Notes whether the log can be reached.
    fn note(&self, link: &Link, error: Option<&Error>) {
        let mut recent = self.recent.lock();
        match error {
            None => health::written(&mut recent),
            Some(error) => health::failed(&mut recent, error, false),
        }
        let is_away = error.is_some_and(Error::is_away);
        link.away.send_if_modified(|away| std::mem::replace(away, is_away) != is_away);
    }

    /// Has entries in the log and here. `at_once`: gives up where the database is away.
    fn persist(
        &mut self,
        replica: &mut Replica,
        mut open: Vec<(NewEntry, Step)>,
        at_once: bool,
    ) -> Vec<Result<Outcome, Error>> {
        let order: Vec<Origin> = open.iter().map(|(entry, _)| entry.origin).collect();
        let mut done = HashMap::new();
        let mut failed = Error::Closed;
        loop {
            let tried = self.mend().and_then(|()| self.try_once(replica, &mut open, &mut done));
            self.note(&replica.link, tried.as_ref().err());
            let Err(error) = tried else { break };
            failed = error.clone();
            if !error.is_away() || at_once || replica.link.closing.load(Ordering::SeqCst) {
                done.extend(open.drain(..).map(|(entry, _)| (entry.origin, Err(error.clone()))));
                break;
            }
            thread::sleep(AGAIN);
        }
        // What is in the log and could not be done here is done later.
        order.iter().map(|origin| done.remove(origin).unwrap_or_else(|| Err(failed.clone()))).collect()
    }

    /// One try: takes up what others wrote, writes what is still open, and does both here. What was written by a try before this one,
    /// whose connection broke, is found among what is taken up.
    fn try_once(
        &mut self,
        replica: &mut Replica,
        open: &mut Vec<(NewEntry, Step)>,
        done: &mut HashMap<Origin, Result<Outcome, Error>>,
    ) -> Result<(), Error> {
        loop {
            self.take_up_own(replica, open, done)?;
            if open.is_empty() {
                return Ok(());
            }
            let new: Vec<NewEntry> = open.iter().map(|(entry, _)| entry.clone()).collect();
            match replica.log.append(replica.applied, &new).map_err(log_error)? {
                Appended::Behind => continue,
                Appended::Done(numbers) => {
                    self.files.watch.at("the log: written");
                    let steps = std::mem::take(open);
                    let mut todo = Vec::with_capacity(steps.len());
                    for ((entry, step), seq) in steps.into_iter().zip(numbers) {
                        match seq {
                            None => drop(done.insert(entry.origin, Err(Error::Overtaken))),
                            Some(seq) => todo.push((seq, entry.origin, Ok(step), true)),
                        }
                    }
                    return self.apply(replica, todo, done);
                }
            }
        }
    }

    fn take_up_own(
        &mut self,
        replica: &mut Replica,
        open: &mut Vec<(NewEntry, Step)>,
        done: &mut HashMap<Origin, Result<Outcome, Error>>,
    ) -> Result<(), Error> {
        let mut found: HashMap<_, _> = open.iter().map(|(entry, _)| (entry.origin, None)).collect();
        self.take_up(replica, &mut found)?;
        open.retain(|(entry, _)| match found.get_mut(&entry.origin).and_then(Option::take) {
            Some(outcome) => {
                done.insert(entry.origin, outcome);
                false
            }
            None => true,
        });
        Ok(())
    }

    /// Does what the log has behind the newest entry that is done here. What came of those with a wanted origin is put there.
    fn take_up(
        &mut self,
        replica: &mut Replica,
        wanted: &mut HashMap<Origin, Option<Result<Outcome, Error>>>,
    ) -> Result<(), Error> {
        replica.applied = match applied(&self.conn) {
            Ok(applied) => applied,
            // Somebody deleted the database while it was open: it is built anew.
            Err(_) => {
                super::schema::as_replica(&self.conn, &self.path)?;
                adopt(&self.conn, &self.path, &replica.joined)?
            }
        };
        let mut told = Instant::now();
        loop {
            let entries = replica.log.read(replica.applied).map_err(log_error)?;
            if entries.is_empty() {
                return Ok(());
            }
            let todo = entries.into_iter().map(|entry| {
                let Entry { seq, origin, body, texts } = entry;
                (seq, origin, Change::decode(&body, &texts).map(Step::Other), wanted.contains_key(&origin))
            });
            let mut done = HashMap::new();
            self.apply(replica, todo.collect(), &mut done)?;
            for (origin, outcome) in done {
                if let Some(slot) = wanted.get_mut(&origin) {
                    *slot = Some(outcome);
                }
            }
            if told.elapsed() > TOLD {
                told = Instant::now();
                tracing::info!(entries = replica.applied, "the record is built from the database");
            }
        }
    }

    /// Does entries here, in one transaction, one savepoint each. What cannot be read stops everything: it is for a newer windowsill.
    fn apply(
        &mut self,
        replica: &mut Replica,
        todo: Vec<(u64, Origin, Result<Step, String>, bool)>,
        done: &mut HashMap<Origin, Result<Outcome, Error>>,
    ) -> Result<(), Error> {
        let Writer { conn, path, files, .. } = self;
        let wrap = |e| sqlite_error(path, e);
        let durable = todo.iter().any(|(.., step, _)| matches!(step, Ok(Step::Own(work)) if work.batch.durable));
        conn.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" }).map_err(wrap)?;
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrap)?;
        let mut results = Vec::with_capacity(todo.len());
        let mut at = applied(&tx).map_err(wrap)?;
        for (seq, origin, step, is_own) in todo {
            if seq != at + 1 {
                return Err(Error::Away { why: format!("entry {} of its log is missing", at + 1) });
            }
            let step =
                step.map_err(|why| Error::Away { why: format!("entry {seq} of its log does not read: {why}") })?;
            let savepoint = tx.savepoint().map_err(wrap)?;
            let prepared = Prepared::of(step, &savepoint).map_err(wrap)?;
            // What makes this process panic makes all of them, so it must not come back with every start.
            let result = catch_unwind(AssertUnwindSafe(|| prepared.act(&savepoint, path, files)))
                .unwrap_or_else(|_| Err(Error::Invalid(format!("entry {seq} made the writer panic"))));
            match result {
                Ok(_) => savepoint.commit().map_err(wrap)?,
                Err(error) if error.is_ours() => return Err(error),
                Err(_) => savepoint.finish().map_err(wrap)?,
            }
            at = seq;
            results.push((origin, prepared, result, is_own));
        }
        tx.execute("UPDATE replica SET applied = ?1", [at]).map_err(wrap)?;
        files.watch.at("a replica: before the commit");
        tx.commit().map_err(wrap)?;
        files.watch.at("a replica: committed");
        replica.applied = at;
        self.learn(at, results, done)
    }

    /// Takes what was done into memory, and removes the files of what was removed.
    fn learn(
        &mut self,
        at: u64,
        results: Vec<(Origin, Prepared, Result<Outcome, Error>, bool)>,
        done: &mut HashMap<Origin, Result<Outcome, Error>>,
    ) -> Result<(), Error> {
        let mut gone = Vec::new();
        let mut recent = self.recent.lock();
        let (mut is_strange, mut is_settled) = (false, true);
        for (origin, prepared, result, is_own) in results {
            match (&prepared.step, &result) {
                (Step::Other(Change::Batch { .. }), Ok(Outcome::Batch(applied))) if !is_own => {
                    prepared.work.iter().for_each(|work| recent.learn(work, applied));
                }
                (Step::Other(Change::Remove { name, .. }), Ok(Outcome::Removed(Some(removed)))) => {
                    recent.lose(name, &prepared.chains, &prepared.views);
                    is_strange |= removed.left > 0;
                    gone.push((name.clone(), removed.originals.clone()));
                }
                (Step::Other(Change::Rows(_)), Ok(_)) => is_strange = true,
                _ => {}
            }
            if is_own {
                // Batches of this process are settled first.
                is_settled &= !matches!(result, Ok(Outcome::Batch(_)));
                done.insert(origin, result);
            }
        }
        if is_strange {
            let rows = super::read::view_rows(&self.conn).map_err(|e| sqlite_error(&self.path, e))?;
            let recalled = super::read::with_recalled(&self.conn).map_err(|e| sqlite_error(&self.path, e))?;
            recent.relearn(rows, recalled);
        }
        if is_settled {
            recent.base.applied = at;
        }
        drop(recent);
        for (name, originals) in gone {
            if let Err(error) = self.remove_files(&originals, &name) {
                tracing::warn!(%error, "files of a conversation that was deleted are still there");
            }
        }
        Ok(())
    }
}

/// A step, with what must be known before it is done.
struct Prepared {
    step: Step,
    /// A batch of others, as it is written here.
    work: Option<Arc<Work>>,
    /// Of a conversation that goes: the digests of its messages, and the rows of their views.
    chains: Vec<Digest>,
    views: Vec<i64>,
}

impl Prepared {
    fn of(step: Step, conn: &Connection) -> rusqlite::Result<Prepared> {
        let (mut step, mut work, mut known) = (step, None, (Vec::new(), Vec::new()));
        match &mut step {
            Step::Other(Change::Batch { now_ms, batch }) => {
                work = Some(Arc::new(std::mem::take(&mut **batch).work(*now_ms)));
            }
            Step::Other(Change::Remove { name, .. }) => known = prune::known_of(conn, name)?,
            _ => {}
        }
        Ok(Prepared { step, work, chains: known.0, views: known.1 })
    }

    /// Does it.
    fn act(&self, tx: &Connection, path: &std::path::PathBuf, files: &super::files::Files) -> Result<Outcome, Error> {
        let wrap = |e| sqlite_error(path, e);
        let of_batch = |work: &Work, durable| Apply { tx, path, files, durable }.work(work).map(Outcome::Batch);
        match (&self.step, &self.work) {
            (Step::Own(work), _) => of_batch(work, work.batch.durable),
            // What others wrote is safe already, in the log.
            (Step::Other(_), Some(work)) => of_batch(work, false),
            (Step::Other(Change::Remove { name, why, now_ms }), _) => {
                prune::remove_named(tx, name, why, *now_ms).map(Outcome::Removed).map_err(wrap)
            }
            (Step::Other(Change::Unused { before_ms, why, now_ms }), _) => {
                kept::remove_unused(tx, *before_ms, *now_ms, why).map(|()| Outcome::Done).map_err(wrap)
            }
            (Step::Other(Change::Tidy { before_ms, event }), _) => {
                prune::tidy(tx, *before_ms, event.as_ref()).map(|()| Outcome::Done).map_err(wrap)
            }
            (Step::Other(Change::Rows(of)), _) => rows::put(tx, path, files, of).map(|()| Outcome::Done),
            (Step::Other(Change::Batch { .. }), None) => Err(Error::Invalid("an empty batch".into())),
        }
    }
}

/// Up to which entry the database is built.
pub(super) fn applied(conn: &Connection) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT applied FROM replica")?.query_row([], |r| r.get(0))
}

/// What a database knows of the log that it was built from, if it was built from one. Its secret is in its file already.
pub(super) fn known(conn: &Connection, path: &std::path::Path) -> Result<Option<Joined>, Error> {
    let row = |r: &rusqlite::Row<'_>| Ok(Joined { id: r.get(0)?, secret: [0; 32], head: r.get(1)? });
    conn.query_row("SELECT log, applied FROM replica", [], row).optional().map_err(|e| sqlite_error(path, e))
}

/// Makes a database a replica of a log, where it is none yet and empty. Says why it cannot be one.
pub(super) fn adopt(conn: &Connection, path: &std::path::Path, joined: &super::log::Joined) -> Result<u64, Error> {
    let folder = path.parent().unwrap_or(path).display().to_string();
    let adopt = || -> rusqlite::Result<Result<u64, String>> {
        let sql = "SELECT log, applied FROM replica";
        let found = conn.prepare(sql)?.query_map([], |r| Ok((r.get::<_, [u8; 16]>(0)?, r.get::<_, u64>(1)?)))?.next();
        Ok(match found.transpose()? {
            Some((log, _)) if log != joined.id => Err(format!(
                "`{folder}` was built from another database than the one that `record` names: name another folder with `data_dir`, \
                 which is filled from the database"
            )),
            Some((_, applied)) if applied > joined.head => Err(format!(
                "the database that `record` names ends at entry {}, and `{folder}` was built up to entry {applied}: an older state of \
                 the database was brought back. Name an empty folder with `data_dir` to go on from there",
                joined.head
            )),
            Some((_, applied)) => Ok(applied),
            None => {
                let own: bool = conn.query_row(
                    "SELECT EXISTS (SELECT 1 FROM conversation) OR EXISTS (SELECT 1 FROM event)",
                    [],
                    |r| r.get(0),
                )?;
                if own {
                    return Ok(Err(format!(
                        "`{folder}` holds a record of its own, which is not in the database that `record` names. Copy it there with \
                         `windowsill record copy --from {folder} --to postgres://…`, or name an empty folder with `data_dir`"
                    )));
                }
                conn.execute("INSERT INTO replica (log, applied) VALUES (?1, 0)", params![joined.id])?;
                Ok(0)
            }
        })
    };
    adopt().map_err(|e| sqlite_error(path, e))?.map_err(Error::Unfit)
}
