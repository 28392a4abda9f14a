//! The log in a PostgreSQL database (12 or newer), in a schema of its own.
//!
//! The row of a log in `windowsill.log` is locked by whoever writes to it, so entries are numbered without gaps and become visible
//! in this order. Nothing here is changed once written but for texts, which go with their conversation.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use postgres::config::{Host, SslMode};
use postgres::fallible_iterator::FallibleIterator as _;
use postgres::{Client, Config, NoTls, Transaction};

use super::tls::Tls;
use super::{Appended, Entry, Joined, Key, Log, LogError, Logs, NewEntry, Origin, entry};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);

/// How long a server may leave sent bytes unacknowledged before it counts as gone.
const SILENT: Duration = Duration::from_secs(10);

/// Bytes of entries that are read at once.
const READ_BYTES: i64 = 8 << 20;

/// Entries that are read at once.
const READ_ENTRIES: i64 = 512;

/// Between two looks for news where the server sends none: it may have gone without a word.
const LOOK: Duration = Duration::from_secs(5);

/// Between two tries to listen to a server that is gone.
const AGAIN: Duration = Duration::from_secs(1);

/// Settings of a session. One that stops in the middle of a writing lets others write soon.
const SESSION: &str =
    "SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '10s'; SET statement_timeout = '60s';
    SET synchronous_commit = on; SET client_min_messages = warning";

/// Entry `i` leads from version i of the schema to i + 1. One that was released is never edited.
const MIGRATIONS: &[&str] = &["
CREATE TABLE windowsill.log (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    mark bytea NOT NULL,
    secret bytea NOT NULL,
    head bigint NOT NULL DEFAULT 0
);
CREATE TABLE windowsill.entry (
    log integer NOT NULL REFERENCES windowsill.log(id),
    seq bigint NOT NULL,
    origin bytea NOT NULL,
    conversation text NOT NULL,
    bytes bigint NOT NULL,
    body text NOT NULL,
    written timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (log, seq)
);
CREATE TABLE windowsill.original (
    log integer NOT NULL REFERENCES windowsill.log(id),
    digest bytea NOT NULL,
    text bytea NOT NULL,
    PRIMARY KEY (log, digest)
);
CREATE TABLE windowsill.holder (
    log integer NOT NULL REFERENCES windowsill.log(id),
    digest bytea NOT NULL,
    conversation text NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (log, digest, conversation)
);
CREATE INDEX holder_conversation ON windowsill.holder (log, conversation);
CREATE TABLE windowsill.view (
    log integer NOT NULL REFERENCES windowsill.log(id),
    chain bytea NOT NULL,
    step bigint NOT NULL,
    PRIMARY KEY (log, chain)
);
"];

/// Where a database is, and how it is connected to. Shows nothing of itself: there may be a password in it.
#[derive(Clone)]
pub(crate) struct Database {
    config: Config,
    /// `None` where the connection is to be in the clear.
    tls: Option<Tls>,
}

impl Database {
    /// Reads a URL. What is wrong with it is told without quoting it.
    pub(crate) fn of(url: &str) -> Result<Database, String> {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err("it must begin with postgres://".into());
        }
        let (url, asked) = own_options(url);
        let mut config: Config = url.parse().map_err(|e: postgres::Error| why(&e))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err("it names no server".into());
        }
        let is_near = |host: &Host| match host {
            Host::Tcp(name) => {
                name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
            }
            #[cfg(unix)]
            Host::Unix(_) => true,
        };
        let near = config.get_hosts().iter().all(is_near) && config.get_hostaddrs().iter().all(|one| one.is_loopback());
        let secure = match asked.mode.as_deref() {
            Some("disable") => false,
            Some("require" | "verify-ca" | "verify-full") => true,
            None => !near || asked.roots.is_some(),
            Some(_) => return Err("`sslmode` is disable, require or verify-full".into()),
        };
        let tls = secure.then(|| Tls::with_roots(asked.roots.as_deref())).transpose()?;
        config.ssl_mode(if secure { SslMode::Require } else { SslMode::Disable });
        config.connect_timeout(CONNECT).tcp_user_timeout(SILENT).keepalives_idle(SILENT);
        config.keepalives_interval(Duration::from_secs(3)).keepalives_retries(3).application_name("windowsill");
        Ok(Database { config, tls })
    }

    fn connect(&self) -> Result<Client, LogError> {
        let connected = match &self.tls {
            Some(tls) => self.config.connect(tls.clone()),
            None => self.config.connect(NoTls),
        };
        let mut client = connected.map_err(away)?;
        client.batch_execute(SESSION).map_err(away)?;
        Ok(client)
    }
}

/// Options of a URL that the driver does not know, or takes otherwise.
#[derive(Default)]
struct Asked {
    mode: Option<String>,
    roots: Option<PathBuf>,
}

/// Takes `sslmode` and `sslrootcert` out of a URL.
fn own_options(url: &str) -> (String, Asked) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), Asked::default()) };
    let mut asked = Asked::default();
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", mode)) => asked.mode = Some(mode.to_owned()),
            Some(("sslrootcert", file)) => asked.roots = Some(PathBuf::from(decoded(file))),
            _ => rest.push(pair),
        }
    }
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (url, asked)
}

/// A part of a URL with its `%XX` read.
fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok()).filter(|_| *first == b'%');
        let byte = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a server or a connection said, with its causes.
fn why(error: &postgres::Error) -> String {
    let mut out = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(one) = cause {
        // The driver's own words may hold those of their causes already.
        let said = one.to_string();
        if !out.contains(&said) {
            let _ = write!(out, ": {said}");
        }
        cause = one.source();
    }
    out
}

fn away(error: postgres::Error) -> LogError {
    LogError::Away(why(&error))
}

impl Logs for Database {
    fn open(&self, name: &str) -> Box<dyn Log> {
        Box::new(Connection { database: self.clone(), name: name.to_owned(), open: None, mark: None })
    }

    fn listen(&self, name: &str, mut news: Box<dyn FnMut() -> bool + Send>) {
        let (database, name) = (self.clone(), name.to_owned());
        let spawned = thread::Builder::new().name("record-news".into()).spawn(move || {
            while news() {
                if let Err(LogError::Away(error) | LogError::Unfit(error)) = follow(&database, &name, &mut news) {
                    tracing::debug!(%error, "no news of the record");
                    thread::sleep(AGAIN);
                }
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "what other windowsills record is seen late");
        }
    }
}

/// Listens on one connection as long as it stands, and somebody wants the news.
fn follow(database: &Database, name: &str, news: &mut (dyn FnMut() -> bool + Send)) -> Result<(), LogError> {
    let mut client = database.connect()?;
    let id: i32 = client.query_one("SELECT id FROM windowsill.log WHERE name = $1", &[&name]).map_err(away)?.get(0);
    client.batch_execute(&format!("LISTEN windowsill_{id}")).map_err(away)?;
    // Something may have been written before this.
    while news() {
        // Now and then the writer is told without any news, too: it finds out whether the database is there.
        let told = client.notifications().timeout_iter(LOOK).next().map_err(away)?;
        if told.is_none() && client.is_closed() {
            let _ = news();
            return Err(LogError::Away("the connection was closed".into()));
        }
    }
    Ok(())
}

/// A log, and the connection to it while there is one.
struct Connection {
    database: Database,
    name: String,
    open: Option<(Client, i32)>,
    /// Tells the log from others: behind the same URL there may be another one, one day.
    mark: Option<[u8; 16]>,
}

impl Connection {
    /// Does something on the connection, which is made where there is none, and given up where that fails.
    fn with<T>(&mut self, act: impl FnOnce(&mut Client, i32) -> Result<T, LogError>) -> Result<T, LogError> {
        if self.open.as_ref().is_none_or(|(client, _)| client.is_closed()) {
            let mut client = self.database.connect()?;
            let log = migrated(&mut client, &self.name)?;
            let sql = "SELECT mark FROM windowsill.log WHERE id = $1";
            let mark: Vec<u8> = client.query_one(sql, &[&log]).map_err(away)?.get(0);
            let mark = mark.try_into().map_err(|_| LogError::Unfit("the log has no mark".into()))?;
            if *self.mark.get_or_insert(mark) != mark {
                return Err(LogError::Unfit("it is another one than the record was built from".into()));
            }
            self.open = Some((client, log));
        }
        let Some((client, log)) = &mut self.open else { return Err(LogError::Away("no connection".into())) };
        let done = act(client, *log);
        if done.is_err() {
            self.open = None;
        }
        done
    }
}

/// Brings the schema up to date, and returns the number of the log with this name, which is begun where there is none.
fn migrated(client: &mut Client, name: &str) -> Result<i32, LogError> {
    let known = i32::try_from(MIGRATIONS.len()).expect("there are few migrations");
    let find = "SELECT id FROM windowsill.log WHERE name = $1";
    let there: bool = client
        .query_one("SELECT to_regclass('windowsill.version') IS NOT NULL", &[])
        .and_then(|row| row.try_get(0))
        .map_err(away)?;
    if there {
        let found: i32 = client.query_one("SELECT number FROM windowsill.version", &[]).map_err(away)?.get(0);
        if found > known {
            let why = format!(
                "it has schema {found}, and this windowsill knows schemas up to {known}: use the newer windowsill"
            );
            return Err(LogError::Unfit(why));
        }
        let log = client.query_opt(find, &[&name]).map_err(away)?;
        if let (true, Some(log)) = (found == known, log) {
            return Ok(log.get(0));
        }
    }
    let mut tx = client.transaction().map_err(away)?;
    // Windowsills that start together come one after the other: the number is an arbitrary one that is ours.
    tx.execute("SELECT pg_advisory_xact_lock(875436198)", &[]).map_err(away)?;
    let begin = "CREATE SCHEMA IF NOT EXISTS windowsill; CREATE TABLE IF NOT EXISTS windowsill.version (number integer NOT NULL);
        INSERT INTO windowsill.version SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM windowsill.version)";
    tx.batch_execute(begin).map_err(away)?;
    let found: i32 = tx.query_one("SELECT number FROM windowsill.version", &[]).map_err(away)?.get(0);
    for sql in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        tx.batch_execute(sql).map_err(away)?;
    }
    tx.execute("UPDATE windowsill.version SET number = $1", &[&known]).map_err(away)?;
    let (mark, secret) = crate::secret::random()
        .and_then(|mark| Ok((mark, crate::secret::random()?)))
        .map_err(|e| LogError::Unfit(e.to_string()))?;
    let sql = "INSERT INTO windowsill.log (name, mark, secret) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING";
    tx.execute(sql, &[&name, &&mark[..16], &&secret[..]]).map_err(away)?;
    let log: i32 = tx.query_one(find, &[&name]).map_err(away)?.get(0);
    tx.commit().map_err(away)?;
    Ok(log)
}

impl Log for Connection {
    fn join(&mut self) -> Result<Joined, LogError> {
        self.with(|client, log| {
            let sql = "SELECT mark, secret, head FROM windowsill.log WHERE id = $1";
            let row = client.query_one(sql, &[&log]).map_err(away)?;
            let strange = || LogError::Unfit("a row of windowsill.log is not what it was".into());
            Ok(Joined {
                id: row.get::<_, &[u8]>(0).try_into().map_err(|_| strange())?,
                secret: row.get::<_, &[u8]>(1).try_into().map_err(|_| strange())?,
                head: number(row.get(2)),
            })
        })
    }

    fn expect(&mut self, id: [u8; 16]) {
        self.mark = Some(id);
    }

    fn begin(&mut self, secret: &[u8; 32]) -> Result<(), LogError> {
        self.with(|client, log| {
            let sql = "UPDATE windowsill.log SET secret = $2 WHERE id = $1 AND head = 0";
            client.execute(sql, &[&log, &&secret[..]]).map(|_| ()).map_err(away)
        })
    }

    fn read(&mut self, after: u64) -> Result<Vec<Entry>, LogError> {
        self.with(|client, log| {
            let mut tx = client.transaction().map_err(away)?;
            read(&mut tx, log, after)
        })
    }

    fn append(&mut self, after: u64, new: &[NewEntry]) -> Result<Appended, LogError> {
        self.with(|client, log| {
            let mut tx = client.transaction().map_err(away)?;
            let lock = "SELECT head FROM windowsill.log WHERE id = $1 FOR UPDATE";
            let head = number(tx.query_one(lock, &[&log]).map_err(away)?.get(0));
            if head > after {
                return Ok(Appended::Behind);
            }
            if head < after {
                return Err(LogError::Unfit(behind(after, head)));
            }
            let mut seq = head;
            let mut numbers = Vec::with_capacity(new.len());
            for one in new {
                numbers.push(append(&mut tx, log, seq + 1, one)?);
                seq = numbers.last().copied().flatten().unwrap_or(seq);
            }
            let sql = "UPDATE windowsill.log SET head = $2 WHERE id = $1";
            tx.execute(sql, &[&log, &signed(seq)]).map_err(away)?;
            tx.execute(&format!("NOTIFY windowsill_{log}"), &[]).map_err(away)?;
            tx.commit().map_err(away)?;
            Ok(Appended::Done(numbers))
        })
    }

    fn forget(&mut self, conversation: &str, upto: u64, heir: Option<&str>) -> Result<(), LogError> {
        let gone = "DELETE FROM windowsill.holder WHERE log = $1 AND conversation = $2 AND seq <= $3 RETURNING digest";
        let left = "INSERT INTO windowsill.holder SELECT $1::integer, digest, $2::text, $3::bigint FROM unnest($4::bytea[]) digest ON CONFLICT DO NOTHING";
        let unheld = "DELETE FROM windowsill.original o USING unnest($2::bytea[]) d WHERE o.log = $1 AND o.digest = d
            AND NOT EXISTS (SELECT 1 FROM windowsill.holder h WHERE h.log = $1 AND h.digest = d)";
        self.with(|client, log| {
            let mut tx = client.transaction().map_err(away)?;
            // Nobody writes meanwhile that the same text is theirs, too.
            tx.query_one("SELECT head FROM windowsill.log WHERE id = $1 FOR UPDATE", &[&log]).map_err(away)?;
            let rows = tx.query(gone, &[&log, &named(conversation), &signed(upto)]).map_err(away)?;
            let digests: Vec<&[u8]> = rows.iter().map(|row| row.get(0)).collect();
            match heir {
                Some(heir) => tx.execute(left, &[&log, &named(heir), &signed(upto), &digests]),
                None => tx.execute(unheld, &[&log, &digests]),
            }
            .map_err(away)?;
            tx.commit().map_err(away)
        })
    }
}

/// Writes one entry with this number; `None` where its claim came second.
fn append(tx: &mut Transaction<'_>, log: i32, seq: u64, new: &NewEntry) -> Result<Option<u64>, LogError> {
    if let Some((chain, seen)) = &new.claim {
        let sql = "INSERT INTO windowsill.view AS v (log, chain, step) VALUES ($1, $2, $3)
            ON CONFLICT (log, chain) DO UPDATE SET step = excluded.step WHERE v.step <= $4";
        let values: [&(dyn postgres::types::ToSql + Sync); 4] = [&log, &&chain.0[..], &signed(seq), &signed(*seen)];
        if tx.execute(sql, &values).map_err(away)? == 0 {
            return Ok(None);
        }
    }
    if !new.ends.is_empty() {
        let chains: Vec<&[u8]> = new.ends.iter().map(|chain| &chain.0[..]).collect();
        let sql = "INSERT INTO windowsill.view SELECT DISTINCT $1::integer, c, $3::bigint FROM unnest($2::bytea[]) c
            ON CONFLICT (log, chain) DO UPDATE SET step = excluded.step";
        tx.execute(sql, &[&log, &chains, &signed(seq)]).map_err(away)?;
    }
    let bytes = new.body.len() + new.texts.iter().map(|(_, text)| text.len()).sum::<usize>();
    let sql =
        "INSERT INTO windowsill.entry (log, seq, origin, conversation, bytes, body) VALUES ($1, $2, $3, $4, $5, $6)";
    let (origin, bytes) = (&new.origin[..], i64::try_from(bytes).unwrap_or(i64::MAX));
    let conversation = named(&new.conversation);
    tx.execute(sql, &[&log, &signed(seq), &origin, &conversation, &bytes, &new.body]).map_err(away)?;
    if new.texts.is_empty() {
        return Ok(Some(seq));
    }
    let (digests, texts): (Vec<&[u8]>, Vec<&[u8]>) = new.texts.iter().map(|(key, text)| (&key[..], &text[..])).unzip();
    let sql = "INSERT INTO windowsill.original SELECT $1::integer, t.digest, t.text FROM unnest($2::bytea[], $3::bytea[]) t(digest, text)
        ON CONFLICT DO NOTHING";
    tx.execute(sql, &[&log, &digests, &texts]).map_err(away)?;
    let sql = "INSERT INTO windowsill.holder SELECT $1::integer, d, $3::text, $4::bigint FROM unnest($2::bytea[]) d
        ON CONFLICT (log, digest, conversation) DO UPDATE SET seq = excluded.seq";
    tx.execute(sql, &[&log, &digests, &conversation, &signed(seq)]).map_err(away)?;
    Ok(Some(seq))
}

/// A conversation's name as it stands here: a text of PostgreSQL holds no zero byte, and a name may. (JSON has another word for it.)
fn named(conversation: &str) -> String {
    conversation.replace('\0', "\u{fffd}")
}

/// The entries behind `after`, as many as are read at once, with their texts.
fn read(tx: &mut Transaction<'_>, log: i32, after: u64) -> Result<Vec<Entry>, LogError> {
    let sql = "SELECT seq, origin, body FROM (
            SELECT seq, origin, body, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM (
                SELECT seq, origin, body, bytes FROM windowsill.entry WHERE log = $1 AND seq > $2 ORDER BY seq LIMIT $3
            ) AS next
        ) measured WHERE before < $4::bigint ORDER BY seq";
    let rows = tx.query(sql, &[&log, &signed(after), &READ_ENTRIES, &READ_BYTES]).map_err(away)?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        let origin: Origin =
            row.get::<_, &[u8]>(1).try_into().map_err(|_| LogError::Unfit("an entry has no origin".into()))?;
        entries.push(Entry { seq: number(row.get(0)), origin, body: row.get(2), texts: HashMap::new() });
    }
    let mut wanted: HashMap<Key, Vec<usize>> = HashMap::new();
    for (at, one) in entries.iter().enumerate() {
        for key in entry::keys(&one.body).map_err(LogError::Unfit)? {
            wanted.entry(key).or_default().push(at);
        }
    }
    let digests: Vec<&[u8]> = wanted.keys().map(|key| &key[..]).collect();
    if !digests.is_empty() {
        let sql = "SELECT digest, text FROM windowsill.original WHERE log = $1 AND digest = ANY($2)";
        for row in tx.query(sql, &[&log, &digests]).map_err(away)? {
            let Ok(key) = Key::try_from(row.get::<_, &[u8]>(0)) else { continue };
            for at in wanted.get(&key).into_iter().flatten() {
                entries[*at].texts.insert(key, row.get(1));
            }
        }
    }
    Ok(entries)
}

/// What is said where the database is older than what was read from it.
pub(in crate::log) fn behind(applied: u64, head: u64) -> String {
    format!("it ends at entry {head}, and {applied} were read from it: an older state of it was brought back")
}

fn number(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
