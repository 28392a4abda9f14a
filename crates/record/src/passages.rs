//! The index of passages: what of a text goes into it, and how what an older windowsill recorded comes into it afterwards.
//!
//! The index holds words and positions only; a passage's text is read back from its row. The passages of a conversation have
//! numbers that follow each other, so that a search in one conversation looks at nothing else, however large the record is.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use windowsill_core::conversation::Text;
use windowsill_core::export::plain;
use windowsill_core::passage::{self, SEARCHED, indexed, passages, stamp};

use super::large::text;

/// Bits of a passage's number that say which one of its conversation it is.
const BITS: u32 = 32;

/// Bytes of text that one step indexes, of what an older windowsill recorded: some ten milliseconds, for a request may wait.
const STEP: usize = 256 << 10;

/// How long between its first and its last request a conversation counts as one day's.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The conversation `?1` (a row) and those it forked from, each with the depth up to which it is shared.
const LINE_OF_ROW: &str = "WITH RECURSIVE line(id, upto) AS (
        SELECT ?1, 9223372036854775807
        UNION
        SELECT c.parent, min(l.upto, coalesce(c.parent_depth, 0)) FROM line l JOIN conversation c ON c.id = l.id
            WHERE c.parent IS NOT NULL
    )";

/// The row that a passage is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A message.
    Node(i64),
    /// An original.
    Original(i64),
}

impl Source {
    fn number(self) -> i64 {
        match self {
            Source::Node(id) => id << 1,
            Source::Original(id) => id << 1 | 1,
        }
    }

    pub(super) fn of(number: i64) -> Source {
        if number & 1 == 0 { Source::Node(number >> 1) } else { Source::Original(number >> 1) }
    }
}

/// The numbers that a conversation's passages may have: the first and the last.
pub(super) fn numbers(conversation: i64) -> (i64, i64) {
    (conversation << BITS, (conversation << BITS) + ((1 << BITS) - 1))
}

/// The conversation of a passage.
pub(super) fn conversation(passage: i64) -> i64 {
    passage >> BITS
}

/// What is searched of a message, from its JSON: the same as when it was recorded.
pub(super) fn said(raw: Vec<u8>) -> Text {
    let raw = Bytes::from(raw);
    passage::said(raw.clone()).unwrap_or_else(|| plain(&raw).into())
}

/// A message to be indexed.
pub(super) struct New<'a> {
    pub(super) conversation: i64,
    pub(super) node: i64,
    pub(super) parent: Option<i64>,
    pub(super) at: usize,
    pub(super) text: &'a str,
    /// When it came (Unix milliseconds), where that is known.
    pub(super) now_ms: Option<i64>,
}

/// Indexes a message, and notes when it was said: by its client's own stamp, or the last one above it.
pub(super) fn add_message(conn: &Connection, new: &New<'_>) -> rusqlite::Result<()> {
    let own = stamp(new.text).map(str::to_owned);
    let above = || {
        let sql = "SELECT stamp FROM told WHERE node = ?1";
        let found = conn.prepare_cached(sql)?.query_row([new.parent], |r| r.get::<_, Option<String>>(0)).optional();
        found.map(Option::flatten)
    };
    let stamp = own.map_or_else(above, |own| Ok(Some(own)))?;
    let sql = "INSERT OR REPLACE INTO told (node, now_ms, stamp) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![new.node, new.now_ms, stamp])?;
    add(conn, new.conversation, Source::Node(new.node), new.at, new.text)
}

/// Indexes an original as a conversation recorded it, where no message of that conversation is found by its words.
pub(super) fn add_original(
    conn: &Connection,
    conversation: i64,
    original: i64,
    at: usize,
    text: &str,
) -> rusqlite::Result<()> {
    if text.len() <= SEARCHED && stands_in_message(conn, conversation, at, text)? {
        return Ok(());
    }
    add(conn, conversation, Source::Original(original), at, text)
}

/// Whether the message at this index says the text.
fn stands_in_message(conn: &Connection, conversation: i64, at: usize, text: &str) -> rusqlite::Result<bool> {
    let sql = format!(
        "{LINE_OF_ROW} SELECT n.raw FROM line l JOIN node n ON n.conversation = l.id AND n.depth = ?2
            WHERE n.depth <= l.upto LIMIT 8"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(params![conversation, super::read::bounded(at.saturating_add(1))])?;
    while let Some(row) = rows.next()? {
        if said(row.get(0)?).contains(text) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn add(conn: &Connection, conversation: i64, source: Source, at: usize, text: &str) -> rusqlite::Result<()> {
    let (first, last) = numbers(conversation);
    let newest = "SELECT coalesce(max(id), ?1 - 1) FROM passage WHERE id BETWEEN ?1 AND ?2";
    let mut id: i64 = conn.prepare_cached(newest)?.query_row([first, last], |r| r.get(0))?;
    let mut place =
        conn.prepare_cached("INSERT INTO passage (id, source, at, start, length) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut index = conn.prepare_cached("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?;
    for part in passages(text) {
        let words = indexed(&text[part.clone()]);
        if words.is_empty() || id == last {
            continue;
        }
        id += 1;
        place.execute(params![id, source.number(), at, part.start, part.len()])?;
        index.execute(params![id, words])?;
    }
    Ok(())
}

/// Takes all passages of a conversation out of the index.
pub(super) fn remove(conn: &Connection, conversation: i64) -> rusqlite::Result<()> {
    let (first, last) = numbers(conversation);
    let all = conn
        .prepare_cached("SELECT id FROM passage WHERE id BETWEEN ?1 AND ?2")?
        .query_map([first, last], |r| r.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut unindex = conn.prepare_cached("DELETE FROM words WHERE rowid = ?1")?;
    for id in all {
        unindex.execute([id])?;
    }
    conn.execute("DELETE FROM passage WHERE id BETWEEN ?1 AND ?2", [first, last])?;
    conn.execute("DELETE FROM told WHERE node IN (SELECT id FROM node WHERE conversation = ?1)", [conversation])?;
    conn.execute("DELETE FROM unindexed WHERE conversation = ?1", [conversation])?;
    Ok(())
}

/// Takes all passages of one text out of the index.
pub(super) fn remove_source(conn: &Connection, source: Source) -> rusqlite::Result<()> {
    let all = conn
        .prepare_cached("SELECT id FROM passage WHERE source = ?1")?
        .query_map([source.number()], |r| r.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut unindex = conn.prepare_cached("DELETE FROM words WHERE rowid = ?1")?;
    for id in all {
        unindex.execute([id])?;
    }
    conn.prepare_cached("DELETE FROM passage WHERE source = ?1")?.execute([source.number()])?;
    if let Source::Node(node) = source {
        conn.prepare_cached("DELETE FROM told WHERE node = ?1")?.execute([node])?;
    }
    Ok(())
}

/// How many conversations an older windowsill recorded that are not searched yet.
pub(super) fn unindexed(conn: &Connection) -> rusqlite::Result<usize> {
    conn.query_row("SELECT count(*) FROM unindexed", [], |r| r.get(0))
}

/// How far a conversation of an older windowsill is indexed.
struct Cursor {
    conversation: i64,
    /// The last message that is: its depth and row.
    depth: i64,
    node: i64,
    /// The last original that is.
    original: i64,
    /// The newest rows that the older one recorded: newer ones were indexed when they came.
    node_upto: i64,
    original_upto: i64,
    /// When its messages came, where that was within a day.
    now_ms: Option<i64>,
}

/// Indexes some of what an older windowsill recorded, the conversation that was used last first. Returns whether more is left.
pub(super) fn catch_up(conn: &mut Connection) -> rusqlite::Result<bool> {
    if unindexed(conn)? == 0 {
        return Ok(false);
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = "SELECT u.conversation, u.depth, u.node, u.original, u.node_upto, u.original_upto,
            CASE WHEN c.updated_ms - c.created_ms < ?1 THEN c.created_ms END
        FROM unindexed u JOIN conversation c ON c.id = u.conversation ORDER BY c.updated_ms DESC LIMIT 1";
    let cursor = |r: &rusqlite::Row<'_>| {
        let (conversation, depth, node, original) = (r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?);
        let (node_upto, original_upto, now_ms) = (r.get(4)?, r.get(5)?, r.get(6)?);
        Ok(Cursor { conversation, depth, node, original, node_upto, original_upto, now_ms })
    };
    let Some(mut cursor) = tx.prepare_cached(sql)?.query_row([DAY_MS], cursor).optional()? else { return Ok(false) };
    if messages(&tx, &mut cursor)? && originals(&tx, &mut cursor)? {
        tx.execute("DELETE FROM unindexed WHERE conversation = ?1", [cursor.conversation])?;
    } else {
        let sql = "UPDATE unindexed SET depth = ?2, node = ?3, original = ?4 WHERE conversation = ?1";
        tx.execute(sql, params![cursor.conversation, cursor.depth, cursor.node, cursor.original])?;
    }
    tx.commit()?;
    Ok(true)
}

/// Indexes messages until the step is full; returns whether these were the last.
fn messages(conn: &Connection, cursor: &mut Cursor) -> rusqlite::Result<bool> {
    let sql = "SELECT id, depth, parent, raw FROM node
        WHERE conversation = ?1 AND (depth, id) > (?2, ?3) AND id <= ?4 ORDER BY depth, id";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([cursor.conversation, cursor.depth, cursor.node, cursor.node_upto])?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let (node, depth): (i64, i64) = (row.get(0)?, row.get(1)?);
        let text = said(row.get(3)?);
        let new = New {
            conversation: cursor.conversation,
            node,
            parent: row.get(2)?,
            at: usize::try_from(depth - 1).unwrap_or(0),
            text: &text,
            now_ms: cursor.now_ms,
        };
        add_message(conn, &new)?;
        (cursor.depth, cursor.node) = (depth, node);
        bytes += text.len();
        if bytes > STEP {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same for originals.
fn originals(conn: &Connection, cursor: &mut Cursor) -> rusqlite::Result<bool> {
    const SQL: &str = concat!(
        "SELECT o.id, l.at, ",
        text!(),
        " FROM original_link l JOIN original o ON o.id = l.original
        WHERE l.conversation = ?1 AND l.original > ?2 AND l.original <= ?3 ORDER BY l.original"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query([cursor.conversation, cursor.original, cursor.original_upto])?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let original: i64 = row.get(0)?;
        let text = row.get_ref(2)?.as_str()?;
        // It may have been recorded once more since, and indexed then.
        let (first, last) = numbers(cursor.conversation);
        let sql = "SELECT EXISTS (SELECT 1 FROM passage WHERE id BETWEEN ?1 AND ?2 AND source = ?3)";
        let source = Source::Original(original).number();
        let there: bool = conn.prepare_cached(sql)?.query_row([first, last, source], |r| r.get(0))?;
        if !there {
            add_original(conn, cursor.conversation, original, row.get(1)?, text)?;
        }
        cursor.original = original;
        bytes += text.len();
        if bytes > STEP {
            return Ok(false);
        }
    }
    Ok(true)
}
