//! Rows of an earlier record, as `record copy` carries them into a shared one: word for word, with their numbers. What can be made of
//! rows is made of them again: the index of words, and the files of originals.

use std::io::Write as _;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use windowsill_core::conversation::Text;
use windowsill_core::passage::indexed;

use super::files::Files;
use super::large::text;
use super::log::entry::{Cell, Rows};
use super::passages::{Source, said};
use super::schema::{file_error, sqlite_error};
use super::types::Error;

/// A table that is carried.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// In SQL, the conversation that a row `t` belongs to, and goes with; NULL for several, or none.
    pub(super) owner: &'static str,
    /// In SQL, what rows are in order by.
    pub(super) order: &'static str,
}

const fn table(name: &'static str, owner: &'static str, order: &'static str) -> Table {
    Table { name, owner, order }
}

const BY_ROW: &str = "(SELECT c.name FROM conversation c WHERE c.id = t.conversation)";

const BY_CHAIN: &str =
    "(SELECT c.name FROM node n JOIN conversation c ON c.id = n.conversation WHERE n.chain = t.chain)";

/// Those that only one conversation has: a text that several have goes with none of them.
const BY_LINK: &str = "(SELECT CASE count(*) WHEN 1 THEN max(c.name) END FROM original_link l JOIN conversation c
    ON c.id = l.conversation WHERE l.original = t.id)";

const BY_ORIGINAL: &str = "(SELECT CASE count(*) WHEN 1 THEN max(c.name) END FROM original_link l JOIN conversation c
    ON c.id = l.conversation WHERE l.original = t.original)";

const BY_VIEW: &str = "(SELECT CASE count(DISTINCT n.conversation) WHEN 1 THEN max(c.name) END FROM temp.used u
    JOIN node n ON n.chain = u.chain JOIN conversation c ON c.id = n.conversation WHERE u.edit = t.id)";

/// The tables, in an order in which a row comes behind those that it refers to.
pub(super) const TABLES: &[Table] = &[
    table("conversation", "t.name", "(SELECT level FROM temp.line WHERE line.id = t.id), t.id"),
    table("node", BY_ROW, "t.conversation, t.id"),
    table("told", "NULL", "t.node"),
    table("original", BY_LINK, "t.id"),
    table("original_part", BY_ORIGINAL, "t.original, t.part"),
    table("original_link", BY_ROW, "t.conversation, t.original"),
    table("edit", BY_VIEW, "t.id"),
    table("view", "NULL", "t.id"),
    table("recalled", BY_CHAIN, "t.id"),
    table("counted", "NULL", "t.chain"),
    table("standing", BY_ROW, "t.conversation"),
    table("item", BY_ROW, "t.id"),
    table("reply", BY_ROW, "t.id"),
    table("passage", "NULL", "t.id"),
    table("pruned", "NULL", "t.kind, t.name"),
    table("kept", "NULL", "t.id"),
    table("rule", "NULL", "t.id"),
    table("event", "t.conversation", "t.id"),
    table(SEQUENCE, "NULL", "t.name"),
];

/// The table of the highest numbers that were ever given.
const SEQUENCE: &str = "sqlite_sequence";

/// Stands for the files of folded messages: the conversation, where a piece of its file begins, and the piece.
pub(super) const HISTORY: &str = "history";

/// Writes rows.
pub(super) fn put(tx: &Connection, path: &Path, files: &Files, rows: &Rows) -> Result<(), Error> {
    let table = rows.table.as_str();
    if table == HISTORY {
        return rows.rows.iter().try_for_each(|row| write_history(files, row));
    }
    let is_name = |name: &String| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if !TABLES.iter().any(|known| known.name == table) || !rows.columns.iter().all(is_name) {
        return Err(Error::Invalid(format!("no table is called `{}`", table.escape_debug())));
    }
    put_rows(tx, rows).map_err(|e| sqlite_error(path, e))?;
    match table {
        "original_link" => write_results(tx, path, files, rows),
        "passage" => index(tx, rows).map_err(|e| sqlite_error(path, e)),
        _ => Ok(()),
    }
}

fn put_rows(tx: &Connection, of: &Rows) -> rusqlite::Result<()> {
    let Rows { table, columns, rows } = of;
    let marks = vec!["?"; columns.len()].join(", ");
    let sql = match table.as_str() {
        SEQUENCE => {
            // It has no key, and the rows that were put before have left their numbers in it.
            for row in rows {
                tx.execute(&format!("DELETE FROM {SEQUENCE} WHERE name = ?1"), [value(&row[0])])?;
            }
            format!("INSERT INTO {SEQUENCE} ({}) VALUES ({marks})", columns.join(", "))
        }
        _ => format!("INSERT OR REPLACE INTO {table} ({}) VALUES ({marks})", columns.join(", ")),
    };
    let mut statement = tx.prepare_cached(&sql)?;
    rows.iter().try_for_each(|row| statement.execute(params_from_iter(row.iter().map(value))).map(|_| ()))
}

/// The whole number in a column of a row.
fn number(of: &Rows, row: &[Cell], column: &str) -> Option<i64> {
    let at = of.columns.iter().position(|name| name == column)?;
    if let Cell::Integer(number) = row.get(at)? { Some(*number) } else { None }
}

/// The text of an original.
fn original(tx: &Connection, id: i64) -> rusqlite::Result<(String, String)> {
    const TEXT: &str = concat!("SELECT o.name, ", text!(), " FROM original o WHERE o.id = ?1");
    tx.prepare_cached(TEXT)?.query_row([id], |r| Ok((r.get(0)?, r.get(1)?)))
}

fn write_results(tx: &Connection, path: &Path, files: &Files, of: &Rows) -> Result<(), Error> {
    for id in of.rows.iter().filter_map(|row| number(of, row, "original")) {
        let (name, text) = original(tx, id).map_err(|e| sqlite_error(path, e))?;
        files.write_result(&name, text.as_bytes(), false)?;
    }
    Ok(())
}

/// Puts the words of passages into the index.
fn index(tx: &Connection, of: &Rows) -> rusqlite::Result<()> {
    let mut last: Option<(i64, Text)> = None;
    let mut insert = tx.prepare_cached("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?;
    for row in &of.rows {
        let get = |column| number(of, row, column);
        let (Some(id), Some(source)) = (get("id"), get("source")) else { continue };
        if last.as_ref().is_none_or(|(known, _)| *known != source) {
            let text = match Source::of(source) {
                Source::Node(node) => {
                    said(tx.prepare_cached("SELECT raw FROM node WHERE id = ?1")?.query_row([node], |r| r.get(0))?)
                }
                Source::Original(id) => original(tx, id)?.1.into(),
            };
            last = Some((source, text));
        }
        let start = get("start").and_then(|start| usize::try_from(start).ok()).unwrap_or(0);
        let length = get("length").and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let text = last.as_ref().and_then(|(_, text)| text.get(start..start.saturating_add(length))).unwrap_or("");
        insert.execute(params![id, indexed(text)])?;
    }
    Ok(())
}

/// Writes a piece of a file of folded messages behind what is there before it.
fn write_history(files: &Files, row: &[Cell]) -> Result<(), Error> {
    let [Cell::Text(name), Cell::Integer(start), Cell::Blob(bytes)] = row else {
        return Err(Error::Invalid("no piece of a history".into()));
    };
    let (path, mut file, _) = files.open_history(name, u64::try_from(*start).unwrap_or(0))?;
    file.write_all(bytes).map_err(|e| file_error(&path, e))
}

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Integer(number) => Value::Integer(*number),
        Cell::Real(number) => Value::Real(*number),
        Cell::Text(text) => Value::Text(text.clone()),
        Cell::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}
