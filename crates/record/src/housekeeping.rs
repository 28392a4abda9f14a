//! What people do with single conversations: call them something, and delete them though others forked from them.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::large::text;
use super::passages::{self, New, Source};

/// Characters of a title.
const TITLE: usize = 80;

/// A title on one line, without anything that steers a terminal or turns the text around it; `None` where nothing is left.
pub(super) fn title(written: &str) -> Option<String> {
    let hidden =
        |c: &char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let line = written.split_whitespace().collect::<Vec<_>>().join(" ");
    let kept: String = line.chars().filter(|c| !c.is_control() && !hidden(c)).take(TITLE).collect();
    let kept = kept.trim();
    (!kept.is_empty()).then(|| kept.to_owned())
}

/// A message that stays: its row, the one before it, its depth, and when it came.
struct Left {
    node: i64,
    parent: Option<i64>,
    depth: usize,
    now_ms: Option<i64>,
}

/// The name of the conversation that gets what is left of this one when it goes; `None` where none forked from it.
pub(super) fn heir(conn: &Connection, row: i64) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT name FROM conversation WHERE parent = ?1 ORDER BY parent_depth DESC, id LIMIT 1";
    conn.prepare_cached(sql)?.query_row([row], |r| r.get(0)).optional()
}

/// Leaves what conversations that forked from this one have of it to them: its messages up to where each parted, with the originals
/// of these. They become those of the fork that has most of them, and the other forks are forks of that one. Returns how many
/// messages stay.
pub(super) fn leave_to_forks(tx: &Connection, row: i64) -> rusqlite::Result<usize> {
    let heir = "SELECT id FROM conversation WHERE parent = ?1 ORDER BY parent_depth DESC, id LIMIT 1";
    let Some(heir) = tx.prepare_cached(heir)?.query_row([row], |r| r.get::<_, i64>(0)).optional()? else {
        return Ok(0);
    };
    let left = left(tx, row)?;
    for one in &left {
        tx.prepare_cached("UPDATE node SET conversation = ?2 WHERE id = ?1")?.execute([one.node, heir])?;
    }
    let originals = originals(tx, row, heir, &left)?;
    let deepest = left.iter().map(|one| one.depth).max().unwrap_or(0);
    let line = "UPDATE conversation SET deepest = max(deepest, ?3), (parent, parent_depth) =
        (SELECT parent, parent_depth FROM conversation WHERE id = ?2) WHERE id = ?1";
    tx.execute(line, params![heir, row, deepest])?;
    tx.execute("UPDATE conversation SET parent = ?1 WHERE parent = ?2", [heir, row])?;
    index(tx, heir, &left, &originals)?;
    Ok(left.len())
}

/// The messages of a conversation that those of its forks stand behind, the first ones first.
fn left(tx: &Connection, row: i64) -> rusqlite::Result<Vec<Left>> {
    let sql = "WITH RECURSIVE fork(id) AS (
            SELECT id FROM conversation WHERE parent = ?1
            UNION
            SELECT c.id FROM fork f JOIN conversation c ON c.parent = f.id
        ), stays(id, parent) AS (
            SELECT p.id, p.parent FROM fork f JOIN node n ON n.conversation = f.id JOIN node p ON p.id = n.parent
                WHERE p.conversation = ?1
            UNION
            SELECT p.id, p.parent FROM stays s JOIN node p ON p.id = s.parent WHERE p.conversation = ?1
        )
        SELECT n.id, n.parent, n.depth, t.now_ms FROM stays s JOIN node n ON n.id = s.id LEFT JOIN told t ON t.node = n.id
        ORDER BY n.depth, n.id";
    let one = |r: &Row<'_>| Ok(Left { node: r.get(0)?, parent: r.get(1)?, depth: r.get(2)?, now_ms: r.get(3)? });
    tx.prepare_cached(sql)?.query_map([row], one)?.collect()
}

/// Hands over the originals of the messages that the heir has now. Returns them, each with its index.
fn originals(tx: &Connection, row: i64, heir: i64, left: &[Left]) -> rusqlite::Result<Vec<(i64, usize)>> {
    let sql = "SELECT l.original, l.at FROM original_link l WHERE l.conversation = ?1
        AND NOT EXISTS (SELECT 1 FROM original_link o WHERE o.conversation = ?2 AND o.original = l.original)";
    let all: rusqlite::Result<Vec<(i64, usize)>> =
        tx.prepare_cached(sql)?.query_map([row, heir], |r| Ok((r.get(0)?, r.get(1)?)))?.collect();
    let depths: HashSet<usize> = left.iter().map(|one| one.depth).collect();
    let all: Vec<(i64, usize)> = all?.into_iter().filter(|(_, at)| depths.contains(&(at + 1))).collect();
    for (original, _) in &all {
        let sql = "UPDATE original_link SET conversation = ?2 WHERE conversation = ?1 AND original = ?3";
        tx.prepare_cached(sql)?.execute([row, heir, *original])?;
    }
    Ok(all)
}

/// Has the heir's search find what it has now.
fn index(tx: &Connection, heir: i64, left: &[Left], originals: &[(i64, usize)]) -> rusqlite::Result<()> {
    // What of it is still to be indexed in the background is left to that.
    let sql = "SELECT depth, node, node_upto FROM unindexed WHERE conversation = ?1";
    let cursor = |r: &Row<'_>| Ok(((r.get::<_, usize>(0)?, r.get::<_, i64>(1)?), r.get::<_, i64>(2)?));
    let cursor = tx.prepare_cached(sql)?.query_row([heir], cursor).optional()?;
    let is_later = |one: &&Left| cursor.is_some_and(|(done, upto)| (one.depth, one.node) > done && one.node <= upto);
    for one in left.iter().filter(|one| !is_later(one)) {
        passages::remove_source(tx, Source::Node(one.node))?;
        let raw = tx.prepare_cached("SELECT raw FROM node WHERE id = ?1")?.query_row([one.node], |r| r.get(0))?;
        let text = passages::said(raw);
        let Left { node, parent, depth, now_ms } = *one;
        passages::add_message(tx, &New { conversation: heir, node, parent, at: depth - 1, text: &text, now_ms })?;
    }
    const TEXT: &str = concat!("SELECT ", text!(), " FROM original o WHERE o.id = ?1");
    for (original, at) in originals {
        let text: String = tx.prepare_cached(TEXT)?.query_row([original], |r| r.get(0))?;
        passages::add_original(tx, heir, *original, *at, &text)?;
    }
    Ok(())
}
