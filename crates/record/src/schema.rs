//! The database file: how it is opened, what its tables are, and how an older one becomes the newest.
//!
//! The only file with DDL. A migration is never edited once released: a change is one more entry at the end.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::types::Error;

/// Name of the database in the data folder.
const FILE: &str = "windowsill.sqlite";

/// How long a statement waits for another process's write lock.
const BUSY: Duration = Duration::from_secs(5);

/// How often a new database is tried while another process is creating it, 50 ms apart.
const TRIES: usize = 40;

/// Settings of every connection. The page cache is small (2 MiB) since the system caches the file anyway.
const PRAGMAS: &str = "PRAGMA cache_size = -2048; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = ON;";

/// Settings of the writer. NORMAL survives a kill; a durable batch asks for FULL, which survives a power cut.
const WRITER_PRAGMAS: &str = "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 1000;
    PRAGMA journal_size_limit = 16777216;";

/// Entry `i` leads from `user_version` i to i + 1.
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12];

const V1: &str = "
-- A conversation's head. `deepest` is the deepest node it recorded; `history_*` is how far its Markdown file goes.
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    parent INTEGER REFERENCES conversation(id),
    parent_depth INTEGER,
    session TEXT,
    model TEXT NOT NULL DEFAULT '',
    upstream TEXT NOT NULL DEFAULT '',
    tip BLOB NOT NULL DEFAULT x'',
    depth INTEGER NOT NULL DEFAULT 0,
    deepest INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'null',
    title TEXT NOT NULL DEFAULT '',
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    history_to INTEGER NOT NULL DEFAULT 0,
    history_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX conversation_updated ON conversation(updated_ms);
CREATE INDEX conversation_session ON conversation(session, updated_ms) WHERE session IS NOT NULL;

-- Messages: a trie. `chain` is the digest of the whole prefix, so forks share what they have in common.
CREATE TABLE node (
    id INTEGER PRIMARY KEY,
    chain BLOB NOT NULL UNIQUE,
    parent INTEGER,
    depth INTEGER NOT NULL,
    conversation INTEGER NOT NULL REFERENCES conversation(id),
    role TEXT NOT NULL,
    digest BLOB NOT NULL,
    raw BLOB NOT NULL
) STRICT;

-- Originals, once each, and who recorded them where.
CREATE TABLE original (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    raw BLOB
) STRICT;
CREATE TABLE original_link (
    conversation INTEGER NOT NULL REFERENCES conversation(id),
    original INTEGER NOT NULL REFERENCES original(id),
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    tool TEXT,
    call TEXT,
    PRIMARY KEY (conversation, original)
) STRICT, WITHOUT ROWID;
CREATE INDEX original_link_original ON original_link(original);

-- Views: successive ones differ in few edits, so each edit is kept once. `edits` is a JSON array of edit ids.
CREATE TABLE edit (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    json TEXT NOT NULL
) STRICT;
CREATE TABLE view (
    id INTEGER PRIMARY KEY,
    chain BLOB NOT NULL,
    messages INTEGER NOT NULL,
    edits TEXT NOT NULL
) STRICT;
CREATE INDEX view_chain ON view(chain);

CREATE TABLE event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    now_ms INTEGER NOT NULL,
    conversation TEXT,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE INDEX event_conversation ON event(conversation, id) WHERE conversation IS NOT NULL;

-- Words only, no text: rowid says which row and which piece of it (see search.rs).
CREATE VIRTUAL TABLE words USING fts5(
    text, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);
";

const V2: &str = "
-- Messages between a prompt and its reply that no client ever sees. `messages` is a JSON array.
CREATE TABLE recalled (
    id INTEGER PRIMARY KEY,
    chain BLOB NOT NULL,
    reply BLOB NOT NULL,
    messages TEXT NOT NULL
) STRICT;
CREATE INDEX recalled_chain ON recalled(chain);
";

const V3: &str = "
-- What retention removed: of `original` and `conversation` the name, when, and by which setting. `file` is 1 until its file
-- is gone too.
CREATE TABLE pruned (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    now_ms INTEGER NOT NULL,
    why TEXT NOT NULL,
    file INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX pruned_file ON pruned(kind, name) WHERE file = 1;
CREATE INDEX node_conversation ON node(conversation, depth);
CREATE INDEX conversation_parent ON conversation(parent) WHERE parent IS NOT NULL;
";

const V4: &str = "
-- How large a server said that a prompt was: of the history that ends with `chain`, in the view with this fingerprint.
CREATE TABLE counted (
    chain BLOB PRIMARY KEY,
    view BLOB NOT NULL,
    tokens INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

const V5: &str = "
-- What people want of a conversation beyond the next request: pins, a title, whether it is rewritten. `json` is an object.
CREATE TABLE standing (
    conversation INTEGER PRIMARY KEY REFERENCES conversation(id),
    json TEXT NOT NULL
) STRICT;
";

const V6: &str = "
-- What a person wants in every new conversation of a project. `client` and `project` say whose; a number is never given twice.
CREATE TABLE rule (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    client TEXT NOT NULL,
    project TEXT NOT NULL,
    text TEXT NOT NULL,
    conversation TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX rule_scope ON rule(client, project);
";

const V7: &str = "
-- The rest of a large text, in order: `original.text` is its beginning. No part is so large that a copy of it matters.
CREATE TABLE original_part (
    original INTEGER NOT NULL REFERENCES original(id),
    part INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (original, part)
) STRICT;
-- Whether the prompt with this view had no room for the tool that reads things back.
ALTER TABLE view ADD COLUMN bare INTEGER NOT NULL DEFAULT 0;
";

const V8: &str = "
-- Items of replies in the Responses API, which a client may refer to by their ids. `json` is an object.
CREATE TABLE item (
    id TEXT PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation(id),
    json TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX item_conversation ON item(conversation);
";

const V9: &str = "
-- Replies that a client may go on from by their ids: the history that `chain` ends, of `depth` messages, and the reply to it.
-- `head` is what of the request holds on beside the messages, `json` the reply, both as their dialect keeps them.
CREATE TABLE reply (
    id TEXT PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation(id),
    chain BLOB NOT NULL,
    depth INTEGER NOT NULL,
    head TEXT NOT NULL,
    json TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reply_conversation ON reply(conversation);
";

const V10: &str = "
-- The index of words, by passages (see passages.rs): the conversation is in the upper half of `id`. `source` is a node or, odd, an
-- original; `start` and `length` are bytes of its text.
DROP TABLE words;
CREATE VIRTUAL TABLE words USING fts5(
    text, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TABLE passage (
    id INTEGER PRIMARY KEY,
    source INTEGER NOT NULL,
    at INTEGER NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL
) STRICT;
CREATE INDEX passage_source ON passage(source);
-- When a message was said: when it came, and the last stamp of its client up to it.
CREATE TABLE told (
    node INTEGER PRIMARY KEY,
    now_ms INTEGER,
    stamp TEXT
) STRICT;
-- How far the conversations that are there already are indexed: the last message and original, and the newest of them.
CREATE TABLE unindexed (
    conversation INTEGER PRIMARY KEY,
    depth INTEGER NOT NULL,
    node INTEGER NOT NULL,
    original INTEGER NOT NULL,
    node_upto INTEGER NOT NULL,
    original_upto INTEGER NOT NULL
) STRICT;
INSERT INTO unindexed SELECT id, 0, 0, 0, (SELECT coalesce(max(id), 0) FROM node),
    (SELECT coalesce(max(id), 0) FROM original) FROM conversation;
";

const V11: &str = "
-- What a person calls a conversation, in place of the title that was found for it; and whether it is one of theirs to keep.
ALTER TABLE conversation ADD COLUMN named TEXT;
ALTER TABLE conversation ADD COLUMN starred INTEGER NOT NULL DEFAULT 0;
";

const V12: &str = "
-- Conversations that clients keep under names of their own API's form, as a log (see kept.rs). `owner` is a mark of the key; `kind`
-- is begun, metadata, item, removed or answered; `item` the id of an item, or of the conversation of the record.
CREATE TABLE kept (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    item TEXT NOT NULL,
    now_ms INTEGER NOT NULL,
    json TEXT NOT NULL
) STRICT;
CREATE INDEX kept_name ON kept(name, id);
CREATE INDEX kept_answered ON kept(item) WHERE kind = 'answered';
";

/// Where the database of a data folder is.
pub(super) fn database(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Creates a folder, and those above it, that only the user may enter. One that exists is left as it is.
pub(super) fn private_dir(path: &Path) -> Result<(), Error> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|e| file_error(path, e))
}

/// Options for files that only the user may read.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Wraps an I/O error with its path.
pub(super) fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.to_owned(), source: Arc::new(source) }
}

/// Wraps an SQLite error with the database's path.
pub(super) fn sqlite_error(path: &Path, source: rusqlite::Error) -> Error {
    Error::Sqlite { path: path.to_owned(), source: Arc::new(source) }
}

/// Opens the database for writing; creates and upgrades it where needed.
pub(super) fn open_writer(path: &Path) -> Result<Connection, Error> {
    create(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let wrap = |e| sqlite_error(path, e);
    let mut conn = Connection::open_with_flags(path, flags).map_err(wrap)?;
    conn.busy_timeout(BUSY).map_err(wrap)?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.execute_batch(PRAGMAS).map_err(wrap)?;
    check_version(&conn, path)?;
    check_ours(&conn, path)?;
    // Only now: the path may be a link to a file that is none of ours.
    #[cfg(unix)]
    tighten(path)?;
    enter_wal(&conn).map_err(wrap)?;
    conn.execute_batch(WRITER_PRAGMAS).map_err(wrap)?;
    migrate(&mut conn, path)?;
    Ok(conn)
}

/// Opens an existing database of the newest schema for reading.
pub(super) fn open_reader(path: &Path) -> Result<Connection, Error> {
    if !fs::exists(path).map_err(|e| file_error(path, e))? {
        return Err(Error::Missing { path: path.to_owned() });
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let wrap = |e| sqlite_error(path, e);
    let conn = Connection::open_with_flags(path, flags).map_err(wrap)?;
    conn.busy_timeout(BUSY).map_err(wrap)?;
    conn.set_prepared_statement_cache_capacity(32);
    conn.execute_batch(PRAGMAS).map_err(wrap)?;
    let found = check_version(&conn, path)?;
    match found {
        0 => Err(Error::Missing { path: path.to_owned() }),
        v if v < newest() => Err(Error::OlderSchema { path: path.to_owned(), found, known: newest() }),
        _ => Ok(conn),
    }
}

/// Readies a database for being built from a log: `log` is the mark of the log, `applied` its newest entry that is in here; `outbox` has
/// what is still to be written there (see outbox.rs). A record of its own has no such tables, and one that is opened as such loses
/// them: what is written into it then is in no log.
pub(super) fn as_replica(conn: &Connection, path: &Path) -> Result<(), Error> {
    let sql = "CREATE TABLE IF NOT EXISTS replica (log BLOB NOT NULL, applied INTEGER NOT NULL) STRICT;
        CREATE TABLE IF NOT EXISTS outbox (
            id INTEGER PRIMARY KEY, origin BLOB NOT NULL UNIQUE, over INTEGER, change TEXT NOT NULL
        ) STRICT";
    conn.execute_batch(sql).map_err(|e| sqlite_error(path, e))
}

/// Takes a database from its log, if it was built from one.
pub(super) fn as_own(conn: &Connection, path: &Path) -> Result<(), Error> {
    conn.execute_batch("DROP TABLE IF EXISTS replica").map_err(|e| sqlite_error(path, e))
}

pub(crate) fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA user_version", [], |r| r.get(0))
}

fn check_version(conn: &Connection, path: &Path) -> Result<i64, Error> {
    let found = version(conn).map_err(|e| sqlite_error(path, e))?;
    if found > newest() {
        return Err(Error::NewerSchema { path: path.to_owned(), found, known: newest() });
    }
    Ok(found)
}

/// Refuses the database of another program. A new one is empty; one of ours has the table of messages.
fn check_ours(conn: &Connection, path: &Path) -> Result<(), Error> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE name IN ('conversation', 'node')) FROM sqlite_schema";
    let tables = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?));
    let (all, ours) = conn.query_row(sql, [], tables).map_err(|e| sqlite_error(path, e))?;
    if all > 0 && ours < 2 {
        return Err(Error::Foreign { path: path.to_owned() });
    }
    Ok(())
}

/// Device and inode of a file, to tell it from another one of the same name; `None` where there is none.
#[cfg(unix)]
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// An open file cannot be deleted here, so the name says enough.
#[cfg(not(unix))]
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::exists(path).unwrap_or(true).then_some((0, 0))
}

/// Makes an empty database file that others may not read, not even for a moment; SQLite gives the WAL and its index
/// the same mode. Closing a file drops every lock that this process holds on it, SQLite's too, so the file is closed
/// before it gets its name, and one that exists is not opened at all.
fn create(path: &Path) -> Result<(), Error> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if fs::exists(path).map_err(|e| file_error(path, e))? {
        return Ok(());
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unnamed = path.with_file_name(format!("{FILE}.new-{}-{count}", process::id()));
    let made = private_file().write(true).create_new(true).open(&unnamed).map(drop);
    let named = made.and_then(|()| match fs::hard_link(&unnamed, path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        // File systems without hard links: here two starts at the same moment are not kept apart.
        Err(_) => fs::rename(&unnamed, path),
        Ok(()) => Ok(()),
    });
    let _ = fs::remove_file(&unnamed);
    named.map_err(|e| file_error(path, e))
}

/// A file made too open by an older program or a copy is closed to others.
#[cfg(unix)]
fn tighten(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path).map_err(|e| file_error(path, e))?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|e| file_error(path, e))?;
    }
    Ok(())
}

/// Switches to WAL. SQLite does not wait for the lock here, so two processes that start together need a few tries.
fn enter_wal(conn: &Connection) -> rusqlite::Result<()> {
    let mut tries = 0;
    loop {
        // auto_vacuum only takes effect on an empty file; incremental lets a later prune give space back.
        let done = conn
            .execute_batch("PRAGMA auto_vacuum = INCREMENTAL;")
            .and_then(|()| conn.query_row("PRAGMA journal_mode = WAL", [], |r| r.get::<_, String>(0)));
        match done {
            Ok(_) => return Ok(()),
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) && tries < TRIES => {
                tries += 1;
                thread::sleep(Duration::from_millis(50));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Acts with what is deleted overwritten: else the text stands on in free parts of the database.
pub(super) fn overwriting<T>(
    conn: &Connection,
    act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    conn.pragma_update(None, "secure_delete", true)?;
    let done = act(conn);
    conn.pragma_update(None, "secure_delete", false)?;
    done
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), Error> {
    let wrap = |e| sqlite_error(path, e);
    if check_version(conn, path)? == newest() {
        return Ok(());
    }
    // Read again under the write lock: another process may have upgraded it meanwhile.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrap)?;
    let found = check_version(&tx, path)?;
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0)) {
        tx.execute_batch(sql).map_err(wrap)?;
        tx.pragma_update(None, "user_version", i64::try_from(step).unwrap_or(0) + 1).map_err(wrap)?;
    }
    tx.commit().map_err(wrap)
}
