//! `windowsill record copy`: an existing record into a database that several windowsills share.
//!
//! Its rows go there as entries, in an order that is the same each time. So a copy that was interrupted is gone on with behind the
//! entries that are there already, and what is there that is not of this record is found out. At the end a record is built from the
//! database alone and held against the old one, row by row.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};

use super::files::Files;
use super::log::entry::{Cell, Change, Rows};
use super::log::{Appended, Log, NewEntry, Origin, Shared};
use super::presence::Presence;
use super::replica::log_error;
use super::rows::{HISTORY, TABLES, Table};
use super::schema::{self, file_error, sqlite_error};
use super::secret::Secret;
use super::types::Error;
use super::{Store, passages};

/// Bytes and rows of one entry at most, about.
const BYTES: usize = 1 << 20;
const ROWS: usize = 500;

/// Bytes of entries that are written at once, about.
const GROUP: usize = 4 << 20;

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Rows that are in the database, of all.
    Copied(u64, u64),
    /// Rows were compared that a new record was built with, of all.
    Verified(u64, u64),
}

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Of each table, its name, its rows, and the digest of them all in the new record, which is that of the old one.
    pub tables: Vec<(String, u64, String)>,
    /// Entries that an earlier copy had brought there.
    pub found: u64,
}

/// Copies the record in a folder into a shared one, which is new or has the beginning of the same copy; and verifies it. `scratch` is
/// an empty folder, for the record that is built from the database to compare. Not to be called from async code.
///
/// # Errors
/// When the record is in use or cannot be read, the database has another record, or what comes out of it is not what went in.
pub fn copy(from: &Path, to: &Shared, scratch: &Path, told: &mut dyn FnMut(Progress)) -> Result<Copied, Error> {
    let path = schema::database(from);
    drop(schema::open_reader(&path)?);
    let presence = Presence::new(from)?;
    let copied = presence.alone(|| {
        let source = Source::open(from)?;
        let found = source.send(to, told)?;
        Ok::<_, Error>((source, found))
    });
    let Some(copied) = copied else {
        return Err(Error::Unfit(format!("a windowsill uses `{}`: stop that one first", from.display())));
    };
    let (source, found) = copied?;
    drop(Store::open_shared(scratch, to)?);
    let tables = source.verify(scratch, told)?;
    Ok(Copied { tables, found })
}

/// The record that is copied.
struct Source {
    conn: Connection,
    path: std::path::PathBuf,
    files: Files,
    secret: [u8; 32],
    rows: u64,
}

/// Rows of one table with one owner.
struct Chunk {
    table: &'static str,
    owner: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
    bytes: usize,
}

impl Source {
    fn open(from: &Path) -> Result<Source, Error> {
        let path = schema::database(from);
        let wrap = |e| sqlite_error(&path, e);
        let conn = schema::open_reader(&path)?;
        if passages::unindexed(&conn).map_err(wrap)? > 0 {
            let why = "is still being indexed for search: let a windowsill run on it for a while, then copy it";
            return Err(Error::Unfit(format!("`{}` {why}", from.display())));
        }
        // Who depends on whom, and which conversations an edit is of.
        let ready = "CREATE TEMP TABLE line AS WITH RECURSIVE line(id, level) AS (
                SELECT id, 0 FROM conversation WHERE parent IS NULL
                UNION ALL SELECT c.id, l.level + 1 FROM line l JOIN conversation c ON c.parent = l.id
            ) SELECT id, level FROM line;
            CREATE INDEX temp.line_id ON line(id);
            CREATE TEMP TABLE used AS SELECT j.value AS edit, v.chain AS chain FROM view v, json_each(v.edits) j;
            CREATE INDEX temp.used_edit ON used(edit);";
        conn.execute_batch(ready).map_err(wrap)?;
        let mut rows = 0;
        for table in TABLES {
            let sql = format!("SELECT count(*) FROM {}", table.name);
            rows += conn.query_row(&sql, [], |r| r.get::<_, u64>(0)).map_err(wrap)?;
        }
        let secret = Secret::default().read(from)?;
        Ok(Source { conn, files: Files::new(from), secret, rows, path })
    }

    /// Brings everything into the log; returns how many entries were there already.
    fn send(&self, to: &Shared, told: &mut dyn FnMut(Progress)) -> Result<u64, Error> {
        let mut log = to.logs.open(&to.name);
        log.begin(&self.secret).map_err(log_error)?;
        let head = log.join().map_err(log_error)?.head;
        let mut sending = Sending {
            log: log.as_mut(),
            head,
            known: Vec::new().into_iter(),
            read: 0,
            at: 0,
            group: Vec::new(),
            bytes: 0,
        };
        let mut done = 0;
        self.chunks(&mut |chunk| {
            done += if chunk.table == HISTORY { 0 } else { chunk.rows.len() as u64 };
            sending.send(chunk)?;
            told(Progress::Copied(done, self.rows));
            Ok(())
        })?;
        sending.flush()?;
        if sending.at != head.max(sending.at) {
            return Err(other_record());
        }
        Ok(head.min(sending.at))
    }

    /// Goes through all rows, and then the files.
    fn chunks(&self, send: &mut dyn FnMut(Chunk) -> Result<(), Error>) -> Result<(), Error> {
        TABLES.iter().try_for_each(|table| self.chunks_of(table, send))?;
        let wrap = |e| sqlite_error(&self.path, e);
        let sql = "SELECT name, history_bytes FROM conversation WHERE history_bytes > 0 ORDER BY id";
        let mut statement = self.conn.prepare(sql).map_err(wrap)?;
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, String>(0)?, r.get::<_, u64>(1)?));
        for found in statement.query_map([], row).map_err(wrap)? {
            let (name, bytes) = found.map_err(wrap)?;
            self.pieces(&name, bytes, send)?;
        }
        Ok(())
    }

    fn chunks_of(&self, table: &Table, send: &mut dyn FnMut(Chunk) -> Result<(), Error>) -> Result<(), Error> {
        let wrap = |e| sqlite_error(&self.path, e);
        let Table { name, owner, order } = table;
        let sql = format!("SELECT coalesce({owner}, ''), t.* FROM {name} t ORDER BY {order}");
        let mut statement = self.conn.prepare(&sql).map_err(wrap)?;
        let columns: Vec<String> = statement.column_names()[1..].iter().map(|name| (*name).to_owned()).collect();
        let mut rows = statement.query([]).map_err(wrap)?;
        let begun = |owner: String| Chunk { table: name, owner, columns: columns.clone(), rows: Vec::new(), bytes: 0 };
        let mut chunk = begun(String::new());
        while let Some(row) = rows.next().map_err(wrap)? {
            let owner: String = row.get(0).map_err(wrap)?;
            let full = chunk.rows.len() >= ROWS || chunk.bytes >= BYTES || owner != chunk.owner;
            if full {
                let whole = std::mem::replace(&mut chunk, begun(owner));
                if !whole.rows.is_empty() {
                    send(whole)?;
                }
            }
            let mut cells = Vec::with_capacity(columns.len());
            for at in 0..columns.len() {
                let cell = cell(row.get_ref(at + 1).map_err(wrap)?);
                chunk.bytes += size(&cell);
                cells.push(cell);
            }
            chunk.rows.push(cells);
        }
        if chunk.rows.is_empty() { Ok(()) } else { send(chunk) }
    }

    /// The file of a conversation's folded messages, piece by piece. One that somebody removed is not missed.
    fn pieces(&self, name: &str, bytes: u64, send: &mut dyn FnMut(Chunk) -> Result<(), Error>) -> Result<(), Error> {
        let path = self.files.history(name);
        let Ok(mut file) = std::fs::File::open(&path) else { return Ok(()) };
        let mut start = 0;
        while start < bytes {
            let mut piece = Vec::new();
            let read = file
                .seek(SeekFrom::Start(start))
                .and_then(|_| (&file).take((bytes - start).min(BYTES as u64)).read_to_end(&mut piece));
            if read.map_err(|e| file_error(&path, e))? == 0 {
                break;
            }
            let columns = ["conversation", "start", "bytes"].map(str::to_owned).to_vec();
            let length = piece.len();
            let row = vec![
                Cell::Text(name.to_owned()),
                Cell::Integer(i64::try_from(start).unwrap_or(i64::MAX)),
                Cell::Blob(Bytes::from(piece)),
            ];
            send(Chunk { table: HISTORY, owner: name.to_owned(), columns, rows: vec![row], bytes: length })?;
            start += length as u64;
        }
        Ok(())
    }

    /// Holds a record that was built from the database against this one.
    fn verify(&self, built: &Path, told: &mut dyn FnMut(Progress)) -> Result<Vec<(String, u64, String)>, Error> {
        let path = schema::database(built);
        let new = schema::open_reader(&path)?;
        let mut out = Vec::new();
        let mut done = 0;
        for table in TABLES {
            let (rows, digest) = digest_of(&self.conn, &self.path, table.name)?;
            let (found, other) = digest_of(&new, &path, table.name)?;
            if (rows, digest) != (found, other) {
                return Err(Error::Unfit(format!(
                    "what came out of the database is not what went in: `{}` had {rows} rows and has {found} now, with digests {} and {}. \
                     The old record is as it was; go on with that one",
                    table.name,
                    digest.to_hex(),
                    other.to_hex()
                )));
            }
            done += rows;
            told(Progress::Verified(done, self.rows));
            out.push((table.name.to_owned(), rows, digest.to_hex().to_string()));
        }
        Ok(out)
    }
}

/// Entries on their way into the log.
struct Sending<'a> {
    log: &'a mut dyn Log,
    /// How many entries the log had at first.
    head: u64,
    /// Origins of these, as they were read.
    known: std::vec::IntoIter<Origin>,
    read: u64,
    /// How many entries were dealt with.
    at: u64,
    group: Vec<NewEntry>,
    bytes: usize,
}

impl Sending<'_> {
    /// Sends a chunk, unless it is there already.
    fn send(&mut self, chunk: Chunk) -> Result<(), Error> {
        let Chunk { table, owner, columns, rows, bytes } = chunk;
        let change = Change::Rows(Rows { table: table.to_owned(), columns, rows });
        let (body, texts) = change.encode().map_err(Error::Invalid)?;
        // What it says and where it stands: the same copy gives the same.
        let mut hash = blake3::Hasher::new();
        hash.update(&self.at.to_be_bytes()).update(body.as_bytes());
        let mut origin = Origin::default();
        origin.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        self.at += 1;
        if self.at <= self.head {
            return if self.next_known()? == Some(origin) { Ok(()) } else { Err(other_record()) };
        }
        self.bytes += bytes;
        self.group.push(NewEntry { origin, conversation: owner, body, texts, claim: None, ends: Vec::new() });
        if self.bytes >= GROUP { self.flush() } else { Ok(()) }
    }

    fn next_known(&mut self) -> Result<Option<Origin>, Error> {
        if let Some(origin) = self.known.next() {
            return Ok(Some(origin));
        }
        let entries = self.log.read(self.read).map_err(log_error)?;
        self.read = entries.last().map_or(self.read, |entry| entry.seq);
        self.known = entries.iter().map(|entry| entry.origin).collect::<Vec<_>>().into_iter();
        Ok(self.known.next())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let group = std::mem::take(&mut self.group);
        self.bytes = 0;
        if group.is_empty() {
            return Ok(());
        }
        match self.log.append(self.at - group.len() as u64, &group).map_err(log_error)? {
            Appended::Done(_) => Ok(()),
            Appended::Behind => {
                Err(Error::Unfit("somebody else writes into that database: stop the windowsills that use it".into()))
            }
        }
    }
}

fn other_record() -> Error {
    Error::Unfit(
        "that database holds another record already: name an empty one. Where an earlier copy of this record stands there and the \
         record was written to since, empty that database first"
            .into(),
    )
}

/// How many rows a table has, and a digest of them all.
fn digest_of(conn: &Connection, path: &Path, table: &str) -> Result<(u64, blake3::Hash), Error> {
    let order = TABLES.iter().find(|known| known.name == table).map_or("1", |known| known.order);
    // The order that a copy has depends on tables that are not there.
    let order = if order.contains("temp.") { "t.id" } else { order };
    let digest = || -> rusqlite::Result<(u64, blake3::Hash)> {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table} t ORDER BY {order}"))?;
        let columns = statement.column_count();
        let mut rows = statement.query(params![])?;
        let (mut count, mut hash) = (0, blake3::Hasher::new());
        while let Some(row) = rows.next()? {
            count += 1;
            for at in 0..columns {
                let (kind, bytes): (u8, Vec<u8>) = match row.get_ref(at)? {
                    ValueRef::Null => (0, Vec::new()),
                    ValueRef::Integer(number) => (1, number.to_be_bytes().to_vec()),
                    ValueRef::Real(number) => (2, number.to_be_bytes().to_vec()),
                    ValueRef::Text(text) => (3, text.to_vec()),
                    ValueRef::Blob(blob) => (4, blob.to_vec()),
                };
                hash.update(&[kind]).update(&(bytes.len() as u64).to_be_bytes()).update(&bytes);
            }
        }
        Ok((count, hash.finalize()))
    };
    digest().map_err(|e| sqlite_error(path, e))
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(blob) => Cell::Blob(Bytes::copy_from_slice(blob)),
    }
}

fn size(cell: &Cell) -> usize {
    match cell {
        Cell::Text(text) => text.len(),
        Cell::Blob(bytes) => bytes.len(),
        _ => 8,
    }
}
