//! How texts of megabytes come into the database without SQLite holding whole copies of them: it copies a value when it is
//! bound, and again when it becomes a row. The bytes of a message are written into a row that has room for them; a text is
//! kept in parts.

use rusqlite::{Connection, MAIN_DB, OptionalExtension, ToSql, params};

/// What is larger is not handed over whole (bytes).
pub(super) const LARGE: usize = 1 << 20;

/// The text of an original `o`, in SQL: what stands in its row, and the parts after that.
macro_rules! text {
    () => {
        "o.text || coalesce((SELECT group_concat(p.text, '' ORDER BY p.part) FROM original_part p
        WHERE p.original = o.id), '')"
    };
}
pub(super) use text;

/// What to bind for the bytes of a message: room for them where they are large. Then [`fill`] writes them.
pub(super) fn bound(raw: &[u8]) -> Box<dyn ToSql + '_> {
    match i32::try_from(raw.len()) {
        Ok(room) if raw.len() > LARGE => Box::new(rusqlite::blob::ZeroBlob(room)),
        _ => Box::new(raw),
    }
}

/// Writes the bytes of a large message into the room that its row has for them.
pub(super) fn fill(conn: &Connection, row: i64, raw: &[u8]) -> rusqlite::Result<()> {
    if raw.len() <= LARGE || i32::try_from(raw.len()).is_err() {
        return Ok(());
    }
    let mut blob = conn.blob_open(MAIN_DB, "node", "raw", row, false)?;
    for (at, chunk) in raw.chunks(LARGE).enumerate() {
        blob.write_at(chunk, at * LARGE)?;
    }
    blob.close()
}

/// Writes a new original, its text in parts where it is large. Returns its row.
pub(super) fn insert_original(conn: &Connection, id: &str, text: &str, raw: Option<&[u8]>) -> rusqlite::Result<i64> {
    let mut parts = parts(text);
    let first = parts.next().unwrap_or_default();
    let sql = "INSERT INTO original (name, text, raw) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![id, first, raw])?;
    let row = conn.last_insert_rowid();
    let mut insert = conn.prepare_cached("INSERT INTO original_part (original, part, text) VALUES (?1, ?2, ?3)")?;
    for (part, text) in parts.enumerate() {
        insert.execute(params![row, part + 1, text])?;
    }
    Ok(row)
}

/// The original of this name, and whether it says this text.
pub(super) fn original(conn: &Connection, name: &str, text: &str) -> rusqlite::Result<Option<(i64, bool)>> {
    let sql = "SELECT id FROM original WHERE name = ?1";
    let row: Option<i64> = conn.prepare_cached(sql)?.query_row([name], |r| r.get(0)).optional()?;
    row.map(|row| Ok((row, says(conn, row, text)?))).transpose()
}

fn says(conn: &Connection, row: i64, text: &str) -> rusqlite::Result<bool> {
    let mut rest = text;
    for sql in
        ["SELECT text FROM original WHERE id = ?1", "SELECT text FROM original_part WHERE original = ?1 ORDER BY part"]
    {
        let mut statement = conn.prepare_cached(sql)?;
        let mut rows = statement.query([row])?;
        while let Some(part) = rows.next()? {
            match rest.strip_prefix(part.get_ref(0)?.as_str()?) {
                Some(after) => rest = after,
                None => return Ok(false),
            }
        }
    }
    Ok(rest.is_empty())
}

/// A text in parts of at most [`LARGE`] bytes, whole characters each.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(LARGE);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn large_texts_are_kept_in_parts_and_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let conn = schema::open_writer(&schema::database(dir.path())).unwrap();
        // No part may end inside the character of three bytes.
        let long = "x日".repeat(LARGE);
        for (id, text) in [("r1", ""), ("r2", "short"), ("r3", &long[..LARGE]), ("r4", long.as_str())] {
            let text = text.trim_end_matches(|c: char| !c.is_alphanumeric());
            let row = insert_original(&conn, id, text, None).unwrap();
            let sql = format!("SELECT {} FROM original o WHERE o.id = ?1", text!());
            let read: String = conn.query_row(&sql, [row], |r| r.get(0)).unwrap();
            assert_eq!(read.len(), text.len());
            assert!(read == text, "{id}");
            assert_eq!(original(&conn, id, text).unwrap(), Some((row, true)));
            assert_eq!(original(&conn, id, &format!("{text}!")).unwrap(), Some((row, false)));
            assert_eq!(original(&conn, id, &text[..text.len() / 4]).unwrap(), Some((row, text.is_empty())));
        }
        assert_eq!(original(&conn, "r5", "").unwrap(), None);
    }

    #[test]
    fn large_bytes_are_written_into_their_room() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE node (id INTEGER PRIMARY KEY, raw BLOB NOT NULL) STRICT").unwrap();
        for size in [0, 10, LARGE, LARGE + 1, 3 * LARGE + 17] {
            let raw: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            conn.execute("INSERT INTO node (raw) VALUES (?1)", [bound(&raw)]).unwrap();
            fill(&conn, conn.last_insert_rowid(), &raw).unwrap();
            let sql = "SELECT raw FROM node WHERE id = ?1";
            let read: Vec<u8> = conn.query_row(sql, [conn.last_insert_rowid()], |r| r.get(0)).unwrap();
            assert!(read == raw, "{size} bytes");
        }
    }
}
