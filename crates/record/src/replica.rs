//! A writer whose record is one that several windowsills share: what it writes goes into the log first, and comes from there into
//! the database, with what others wrote in between.
//!
//! The database knows up to which entry it is built, in the same transaction, so a kill between the two costs nothing: the entry
//! is done at the next start. An entry that contradicts the record is refused, and so it is everywhere, for all have the same before
//! it. Where this machine cannot write, nothing is skipped: the same entry is tried again. While the log cannot be reached, what is to
//! be written waits in the `outbox`.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tokio::sync::watch;
use windowsill_core::conversation::Digest;

use super::apply::Apply;
use super::log::entry::Change;
use super::log::{Appended, Entry, Joined, Log, LogError, NewEntry, Origin};
use super::outbox::{self, Row, Waiting};
use super::prune::{self, Removed};
use super::recent::{Applied, Recent, Work};
use super::schema::sqlite_error;
use super::types::{Error, RuleChange};
use super::writer::{Writer, Written};
use super::{health, kept, rows, secret};

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

    fn entry_of(&mut self, work: &Work) -> Result<NewEntry, Error> {
        let entry = self.entry(&Change::of(work), work.batch.owner())?;
        Ok(NewEntry { claim: claimed(work).zip(work.over), ..entry })
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
    /// Writes batches into the log and then here, with what others wrote before them. Where the database is away, they wait for it on
    /// the disk, in this order.
    pub(super) fn replicate(&mut self, works: &[Arc<Work>]) -> Vec<Result<Written, Error>> {
        let Some(mut replica) = self.replica.take() else { return works.iter().map(|_| Err(Error::Closed)).collect() };
        let entries: Vec<Result<NewEntry, Error>> = works.iter().map(|work| replica.entry_of(work)).collect();
        let good: Vec<(NewEntry, Arc<Work>)> = entries
            .iter()
            .zip(works)
            .filter_map(|(entry, work)| Some((entry.as_ref().ok()?.clone(), work.clone())))
            .collect();
        // Where others wait, these come behind them.
        let done: Vec<Result<Written, Error>> = if self.outbox.is_empty() {
            let since = Instant::now();
            let open = good.iter().map(|(entry, work)| (entry.clone(), Step::Own(Arc::clone(work)))).collect();
            let done = self.persist(&mut replica, open);
            let away = good.iter().zip(&done).filter(|(_, done)| done.as_ref().is_err_and(Error::is_away));
            let away: Vec<_> = away.map(|((entry, work), _)| (entry.origin, Arc::clone(work))).collect();
            let waits = self.waits(&away);
            if !waits.is_empty() {
                self.outbox.tried(since);
            }
            let written = |(entry, done): (&NewEntry, Result<Outcome, Error>)| match done {
                Err(_) if waits.contains(&entry.origin) => Ok(Written::Waits(entry.origin)),
                Ok(Outcome::Batch(applied)) => Ok(Written::Done(applied)),
                other => other.map(|_| Written::Done(Applied::default())),
            };
            good.iter().map(|(entry, _)| entry).zip(done).map(written).collect()
        } else {
            let all: Vec<_> = good.iter().map(|(entry, work)| (entry.origin, Arc::clone(work))).collect();
            let waits = self.waits(&all);
            let written = |origin: &Origin| {
                if waits.contains(origin) {
                    Ok(Written::Waits(*origin))
                } else {
                    Err(health::away(&self.recent.lock()))
                }
            };
            all.iter().map(|(origin, _)| written(origin)).collect()
        };
        self.replica = Some(replica);
        let mut done = done.into_iter();
        let result = |entry: Result<NewEntry, Error>| entry.and_then(|_| done.next().unwrap_or(Err(Error::Closed)));
        entries.into_iter().map(result).collect()
    }

    /// Puts entries on the disk, to wait for the database; returns those that are there.
    fn waits(&mut self, all: &[(Origin, Arc<Work>)]) -> HashSet<Origin> {
        if all.is_empty() {
            return HashSet::new();
        }
        let put = self.mend().and_then(|()| self.outbox.put(&mut self.conn, &self.path, all));
        self.files.watch.at("the outbox: written");
        match put {
            Ok(()) => all.iter().map(|(origin, _)| *origin).collect(),
            Err(error) => {
                tracing::error!(%error, "what waits for the database of the record cannot be put on the disk");
                HashSet::new()
            }
        }
    }

    /// Finds what waited for the database when this folder was used last.
    pub(super) fn find_waiting(&mut self) -> Result<(), Error> {
        let Writer { conn, path, outbox, recent, .. } = self;
        outbox::all(conn, path, |row| {
            match &row.work {
                Some(work) => outbox.found(&row, recent.lock().queue(work)),
                None => tracing::warn!("an entry that waited for the database of the record does not read"),
            }
            Ok(())
        })
    }

    /// Writes what waits into the log, and then here. Where the database is away still, it goes on waiting.
    pub(super) fn send_out(&mut self) {
        let since = Instant::now();
        let sent = catch_unwind(AssertUnwindSafe(|| self.send_all()));
        match sent {
            Ok(Ok(())) => tracing::info!("what waited for the database of the record is in it"),
            Ok(Err(_)) => self.outbox.tried(since),
            Err(_) => {
                tracing::error!("what waited for the database of the record made the writer panic");
                self.outbox.tried(since);
            }
        }
        self.commits.send_modify(|n| *n += 1);
    }

    fn send_all(&mut self) -> Result<(), Error> {
        loop {
            let rows = outbox::first(&self.conn, &self.path)?;
            if rows.is_empty() {
                // Somebody deleted the database while it was open.
                if let Some(newest) = self.outbox.give_up() {
                    self.recent.lock().give_up(newest);
                }
                return Ok(());
            }
            let Some(mut replica) = self.replica.take() else { return Err(Error::Closed) };
            let (mut open, mut unread) = (Vec::with_capacity(rows.len()), Vec::new());
            let mut works = HashMap::new();
            for Row { origin, work, .. } in rows {
                let entry = work.as_ref().map(|work| replica.entry_of(work));
                match (work, entry) {
                    (Some(work), Some(Ok(entry))) => {
                        works.insert(origin, Arc::clone(&work));
                        open.push((NewEntry { origin, ..entry }, Step::Own(work)));
                    }
                    _ => unread.push(origin),
                }
            }
            let order: Vec<Origin> = open.iter().map(|(entry, _)| entry.origin).collect();
            let done = self.persist(&mut replica, open);
            self.replica = Some(replica);
            for origin in unread {
                self.forget(&origin, None, Error::Invalid("it does not read".into()))?;
            }
            for (origin, done) in order.into_iter().zip(done) {
                match done {
                    Err(error) if error.is_ours() => return Err(error),
                    // One that was written is done with already.
                    Ok(_) => {}
                    Err(error) => self.forget(&origin, works.get(&origin), error)?,
                }
            }
            self.show_applied();
        }
    }

    /// Takes an entry that is not to be written off the disk.
    fn forget(&mut self, origin: &Origin, work: Option<&Arc<Work>>, why: Error) -> Result<(), Error> {
        outbox::remove(&self.conn, origin).map_err(|e| sqlite_error(&self.path, e))?;
        if let Some(waiting) = self.outbox.done(origin) {
            settled(&mut self.recent.lock(), waiting, work, Err(why));
        }
        Ok(())
    }

    /// Writes a change that is no batch into the log and then here. Where the database is away, nothing is changed.
    pub(super) fn replicate_change(&mut self, change: Change) -> Result<(Outcome, u64), Error> {
        if !self.outbox.is_empty() {
            return Err(health::away(&self.recent.lock()));
        }
        let Some(mut replica) = self.replica.take() else { return Err(Error::Closed) };
        let done = replica.entry(&change, "").and_then(|mut entry| {
            if let Change::Remove { name, .. } = &change {
                entry.ends = prune::known_of(&self.conn, name).map_err(|e| sqlite_error(&self.path, e))?.0;
            }
            let done = self.persist(&mut replica, vec![(entry, Step::Other(change))]);
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

    /// Has entries in the log and here. Where the database is away, it gives up.
    fn persist(&mut self, replica: &mut Replica, mut open: Vec<(NewEntry, Step)>) -> Vec<Result<Outcome, Error>> {
        let order: Vec<Origin> = open.iter().map(|(entry, _)| entry.origin).collect();
        let mut done = HashMap::new();
        let tried = self.mend().and_then(|()| self.try_once(replica, &mut open, &mut done));
        self.note(&replica.link, tried.as_ref().err());
        let failed = tried.err().unwrap_or(Error::Closed);
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
        // Also where a process before this one put it there.
        let is_waited_for = outbox::any(&tx).map_err(wrap)?;
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
            if is_waited_for {
                outbox::remove(&tx, &origin).map_err(wrap)?;
            }
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
        let recent = Arc::clone(&self.recent);
        let mut recent = recent.lock();
        let (mut is_strange, mut is_settled) = (false, true);
        for (origin, prepared, result, is_own) in results {
            if let Some(waiting) = self.outbox.done(&origin) {
                let told = result.as_ref().map(|_| Outcome::Done).map_err(Error::clone);
                let result = result
                    .map(|outcome| if let Outcome::Batch(applied) = outcome { applied } else { Applied::default() });
                settled(&mut recent, waiting, prepared.written(), result);
                if is_own {
                    done.insert(origin, told);
                }
                continue;
            }
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

/// Tells who waited for an entry, if anyone, what became of it.
fn settled(recent: &mut Recent, waiting: Waiting, work: Option<&Arc<Work>>, result: Result<Applied, Error>) {
    let Waiting { seq, ack } = waiting;
    let (applied, told) = match result {
        Ok(applied) => (Some(applied), Ok(())),
        Err(error) => {
            health::failed(recent, &error, ack.is_none());
            (None, Err(error))
        }
    };
    match work {
        Some(work) => recent.settle(seq, work, applied),
        None => recent.give_up(seq),
    }
    if let Some(ack) = ack {
        ack.send(told);
    }
}

impl Prepared {
    /// The batch that it is.
    fn written(&self) -> Option<&Arc<Work>> {
        match &self.step {
            Step::Own(work) => Some(work),
            Step::Other(_) => self.work.as_ref(),
        }
    }

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
