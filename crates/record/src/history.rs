//! A conversation's folded messages as Markdown, for people and agents that open files.
//!
//! The file is generated from the record and only ever grows; how far it goes is committed with the fold.

use std::io::{BufWriter, Seek, Write as _};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use windowsill_core::conversation::Digest;
use windowsill_core::export::{self, message};

use super::files::Files;
use super::schema::{file_error, sqlite_error};
use super::types::Error;

/// Ids of the nodes of a history from the given depth on, the deepest first. Ids only: messages can be large.
pub(super) const WALK: &str = "WITH RECURSIVE up(id, parent, depth) AS (
        SELECT id, parent, depth FROM node WHERE chain = ?1
        UNION ALL
        SELECT n.id, n.parent, n.depth FROM up JOIN node n ON n.id = up.parent WHERE up.depth > ?2 + 1
    )
    SELECT id, depth FROM up WHERE depth > ?2";

/// The chain digests of a history, the deepest first.
pub(super) const CHAIN: &str = "WITH RECURSIVE up(chain, parent) AS (
        SELECT chain, parent FROM node WHERE chain = ?1
        UNION ALL
        SELECT n.chain, n.parent FROM up JOIN node n ON n.id = up.parent
    )
    SELECT chain FROM up";

/// A fold as the file tells of it.
pub(super) struct Fold<'a> {
    /// First folded message.
    pub(super) from: usize,
    /// One past the last.
    pub(super) to: usize,
    /// Messages inside that stay in the prompt.
    pub(super) keep: &'a [usize],
    /// Length of the brief.
    pub(super) brief_chars: usize,
}

/// Appends the folded messages that are not in the file yet, and a line that marks the fold.
pub(super) fn append(
    conn: &Connection,
    path: &Path,
    files: &Files,
    conversation: i64,
    chain: &Digest,
    fold: &Fold<'_>,
    durable: bool,
) -> Result<(), Error> {
    let wrap = |e| sqlite_error(path, e);
    let sql = "SELECT name, coalesce(named, title), history_to, history_bytes FROM conversation WHERE id = ?1";
    let head = conn.query_row(sql, [conversation], |r| {
        Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?, r.get::<_, usize>(2)?, r.get::<_, u64>(3)?))
    });
    let (name, title, done, bytes) = head.map_err(wrap)?;
    let start = fold.from.max(done);
    if fold.to <= start {
        return Ok(());
    }
    let mut nodes = walk(conn, chain, start).map_err(wrap)?;
    nodes.retain(|(_, depth)| *depth <= fold.to);
    if nodes.is_empty() {
        tracing::warn!(conversation = name, "folded messages are not recorded: the history file stays as it is");
        return Ok(());
    }
    let (file_path, file, end) = files.open_history(&name, bytes)?;
    let io = |e| file_error(&file_path, e);
    let mut out = BufWriter::new(file);
    if end == 0 {
        out.write_all(header(&name, &title).as_bytes()).map_err(io)?;
    }
    for (id, depth) in nodes {
        let sql = "SELECT role, raw FROM node WHERE id = ?1";
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, String>(0)?, r.get::<_, Vec<u8>>(1)?));
        if let Some((role, raw)) = conn.query_row(sql, [id], row).optional().map_err(wrap)? {
            out.write_all(message(depth - 1, &role, &raw).as_bytes()).map_err(io)?;
            files.watch.at("a history: some of it is written");
        }
    }
    out.write_all(mark(fold).as_bytes()).map_err(io)?;
    let mut file = out.into_inner().map_err(|e| io(e.into_error()))?;
    let bytes = file.stream_position().map_err(io)?;
    files.watch.at("a history: written");
    if durable {
        files.sync_history(&file).map_err(io)?;
    }
    let sql = "UPDATE conversation SET history_to = ?2, history_bytes = ?3 WHERE id = ?1";
    conn.execute(sql, params![conversation, fold.to, bytes]).map_err(wrap)?;
    Ok(())
}

/// Nodes of the history that ends in `chain`, deeper than `above`, in order: row and depth.
pub(super) fn walk(conn: &Connection, chain: &Digest, above: usize) -> rusqlite::Result<Vec<(i64, usize)>> {
    let mut statement = conn.prepare_cached(WALK)?;
    let rows = statement.query_map(params![chain.0, super::read::bounded(above)], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let mut nodes = rows.collect::<rusqlite::Result<Vec<(i64, usize)>>>()?;
    nodes.reverse();
    Ok(nodes)
}

fn header(name: &str, title: &str) -> String {
    format!(
        "# {}\n\nConversation `{name}`: messages that left the prompt, as the client sent them. Numbers count from 0; \
         leading system messages are not counted.\n\n",
        export::heading(export::Head { id: name, title })
    )
}

fn mark(fold: &Fold<'_>) -> String {
    export::fold(fold.from, fold.to, fold.keep, fold.brief_chars)
}
