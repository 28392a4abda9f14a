//! Reading rows back.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use serde_json::value::RawValue;

use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::{Edit, View};

use super::Original;
use super::history::{CHAIN, walk};
use super::large::{self, text};
use super::recent::Tip;
use super::schema::sqlite_error;
use super::types::{
    ConversationRow, Counted, Error, EventFilter, EventRow, Gone, Item, NodeRow, PathRow, Recalled, Reply, Rule,
};

/// Columns of [`conversation_row`].
const CONVERSATION: &str =
    "SELECT c.name, p.name, c.parent_depth, c.session, c.model, c.upstream, c.tip, c.depth, c.state,
    coalesce(c.named, c.title), c.created_ms, c.updated_ms, c.named IS NOT NULL, c.starred FROM conversation c LEFT JOIN conversation p ON p.id = c.parent";

/// Columns of [`original_row`]; `?2` is the conversation whose call is preferred, or null.
const ORIGINAL: &str = concat!(
    "SELECT o.name, c.name, l.at, l.kind, l.tool, l.call, ",
    text!(),
    ", o.raw
    FROM original o JOIN original_link l ON l.original = o.id JOIN conversation c ON c.id = l.conversation"
);

/// The conversation named `?2` and those it forked from, each with the depth up to which it is shared.
pub(super) const LINE: &str = "WITH RECURSIVE line(id, upto) AS (
        SELECT id, 9223372036854775807 FROM conversation WHERE name = ?2
        UNION
        SELECT c.parent, min(l.upto, coalesce(c.parent_depth, 0)) FROM line l JOIN conversation c ON c.id = l.id
            WHERE c.parent IS NOT NULL
    )";

/// Owner and depth of a node.
pub(super) fn node(conn: &Connection, chain: &Digest) -> rusqlite::Result<Option<Tip>> {
    let sql = "SELECT c.name, n.depth FROM node n JOIN conversation c ON c.id = n.conversation WHERE n.chain = ?1";
    let tip = |r: &Row<'_>| Ok(Tip { conversation: r.get(0)?, depth: r.get(1)? });
    conn.prepare_cached(sql)?.query_row([chain.0], tip).optional()
}

/// The deepest node that a conversation recorded; 0 when it is unknown.
pub(super) fn deepest(conn: &Connection, conversation: &str) -> rusqlite::Result<usize> {
    let sql = "SELECT deepest FROM conversation WHERE name = ?1";
    Ok(conn.prepare_cached(sql)?.query_row([conversation], |r| r.get(0)).optional()?.unwrap_or(0))
}

/// Row of the newest view of each prefix that has one.
pub(super) fn view_rows(conn: &Connection) -> rusqlite::Result<HashMap<Digest, i64>> {
    let mut statement = conn.prepare("SELECT chain, max(id) FROM view GROUP BY chain")?;
    statement.query_map([], |r| Ok((Digest(r.get(0)?), r.get(1)?)))?.collect()
}

/// A chain digest, and a row that belongs to it.
pub(super) type At = (Digest, i64);

/// What was written after these two rows, by whichever process, the oldest first: views, and prefixes whose replies recalled
/// something. One statement, for each request asks, and nearly always there is nothing.
pub(super) fn newer(conn: &Connection, (view, recalled): (i64, i64)) -> rusqlite::Result<(Vec<At>, Vec<At>)> {
    let sql = "SELECT 0, chain, id FROM view WHERE id > ?1 UNION ALL
        SELECT 1, chain, id FROM recalled WHERE id > ?2 ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([view, recalled])?;
    let (mut views, mut all_recalled) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let is_view = row.get::<_, i64>(0)? == 0;
        let to = if is_view { &mut views } else { &mut all_recalled };
        to.push((Digest(row.get(1)?), row.get(2)?));
    }
    Ok((views, all_recalled))
}

/// What a server said of the size of a prompt.
pub(super) fn counted(conn: &Connection, chain: &Digest) -> rusqlite::Result<Option<Counted>> {
    let row = |r: &Row<'_>| Ok(Counted { chain: *chain, view: Digest(r.get(0)?), tokens: r.get(1)? });
    conn.prepare_cached("SELECT view, tokens FROM counted WHERE chain = ?1")?.query_row([chain.0], row).optional()
}

/// What people want of a conversation.
pub(super) fn standing(conn: &Connection, conversation: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT s.json FROM standing s JOIN conversation c ON c.id = s.conversation WHERE c.name = ?1";
    conn.prepare_cached(sql)?.query_row([conversation], |r| r.get(0)).optional()
}

/// All rules by number, and the highest number that one ever had.
pub(super) fn rules(conn: &Connection) -> rusqlite::Result<(Vec<Rule>, i64)> {
    let sql = "SELECT id, client, project, text, conversation, created_ms, updated_ms FROM rule ORDER BY id";
    let row = |r: &Row<'_>| {
        Ok(Rule {
            id: r.get(0)?,
            client: r.get(1)?,
            project: r.get(2)?,
            text: r.get(3)?,
            conversation: r.get(4)?,
            created_ms: r.get(5)?,
            updated_ms: r.get(6)?,
        })
    };
    let all = conn.prepare_cached(sql)?.query_map([], row)?.collect::<rusqlite::Result<Vec<Rule>>>()?;
    let highest = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'rule'";
    Ok((all, conn.prepare_cached(highest)?.query_row([], |r| r.get(0))?))
}

/// Whether a conversation, or one that it forked from, begins with this message.
pub(super) fn begins_with(conn: &Connection, conversation: &str, root: &Digest) -> rusqlite::Result<bool> {
    let sql = format!(
        "{LINE} SELECT EXISTS (SELECT 1 FROM node n JOIN line ON line.id = n.conversation
            WHERE n.chain = ?1 AND n.depth = 1)"
    );
    conn.prepare_cached(&sql)?.query_row(params![root.0, conversation], |r| r.get(0))
}

/// Prefixes whose replies recalled something.
pub(super) fn with_recalled(conn: &Connection) -> rusqlite::Result<HashSet<Digest>> {
    let mut statement = conn.prepare("SELECT DISTINCT chain FROM recalled")?;
    statement.query_map([], |r| Ok(Digest(r.get(0)?)))?.collect()
}

/// What replies to a prefix recalled, the newest first.
pub(super) fn recalled(conn: &Connection, chain: &Digest) -> rusqlite::Result<Vec<Recalled>> {
    let mut statement =
        conn.prepare_cached("SELECT reply, messages FROM recalled WHERE chain = ?1 ORDER BY id DESC")?;
    let row = |r: &Row<'_>| {
        let text = r.get_ref(1)?.as_str()?;
        let all: Vec<&RawValue> = serde_json::from_str(text)
            .map_err(|e| rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(e)))?;
        let messages = all.iter().map(|m| Bytes::copy_from_slice(m.get().as_bytes())).collect();
        Ok(Recalled { chain: *chain, reply: Digest(r.get(0)?), messages })
    };
    statement.query_map([chain.0], row)?.collect()
}

/// Row of the view that a history had before the row `before` was written: the newest of the deepest prefix that had one.
pub(super) fn view_before(conn: &Connection, chain: &[Digest], before: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = conn.prepare_cached("SELECT max(id) FROM view WHERE chain = ?1 AND id < ?2")?;
    for digest in chain.iter().rev() {
        if let Some(row) = statement.query_row(params![digest.0, before], |r| r.get(0))? {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// One view, put together from its edits.
pub(super) fn view(conn: &Connection, path: &Path, row: i64) -> Result<View, Error> {
    let wrap = |e| sqlite_error(path, e);
    let corrupt = |why: &dyn std::fmt::Display| Error::Corrupt {
        path: path.to_owned(),
        what: format!("view {row}"),
        why: why.to_string(),
    };
    let (messages, ids, bare) = conn
        .prepare_cached("SELECT messages, edits, bare FROM view WHERE id = ?1")
        .and_then(|mut s| {
            s.query_row([row], |r| Ok((r.get::<_, usize>(0)?, r.get::<_, String>(1)?, r.get::<_, bool>(2)?)))
        })
        .map_err(wrap)?;
    let ids: Vec<i64> = serde_json::from_str(&ids).map_err(|e| corrupt(&e))?;
    let mut edits = Vec::with_capacity(ids.len());
    let mut statement = conn.prepare_cached("SELECT json FROM edit WHERE id = ?1").map_err(wrap)?;
    for id in ids {
        let json: String = statement.query_row([id], |r| r.get(0)).map_err(wrap)?;
        // By way of a tree: numbers keep their digits here, and a tagged type cannot read them otherwise.
        let edit = serde_json::from_str::<Value>(&json).and_then(serde_json::from_value::<Edit>);
        edits.push(edit.map_err(|e| corrupt(&e))?);
    }
    Ok(View { messages, edits, bare, ..View::default() })
}

/// An item of an earlier reply.
pub(super) fn item(conn: &Connection, id: &str) -> rusqlite::Result<Option<Item>> {
    let sql = "SELECT c.name, i.json FROM item i JOIN conversation c ON c.id = i.conversation WHERE i.id = ?1";
    let row = |r: &Row<'_>| Ok(Item { id: id.to_owned(), conversation: r.get(0)?, json: r.get(1)? });
    conn.prepare_cached(sql)?.query_row([id], row).optional()
}

/// An earlier reply.
pub(super) fn reply(conn: &Connection, id: &str) -> rusqlite::Result<Option<Reply>> {
    let sql =
        "SELECT c.name, r.chain, r.depth, r.head, r.json FROM reply r JOIN conversation c ON c.id = r.conversation
        WHERE r.id = ?1";
    let row = |r: &Row<'_>| {
        Ok(Reply {
            id: id.to_owned(),
            conversation: r.get(0)?,
            chain: Digest(r.get(1)?),
            depth: r.get(2)?,
            head: r.get(3)?,
            json: r.get(4)?,
        })
    };
    conn.prepare_cached(sql)?.query_row([id], row).optional()
}

/// The messages of the history that a chain digest ends, in order, as they came.
pub(super) fn messages_to(conn: &Connection, tip: &Digest) -> rusqlite::Result<Vec<Bytes>> {
    let mut statement = conn.prepare_cached("SELECT raw FROM node WHERE id = ?1")?;
    let raw = |r: &Row<'_>| Ok(Bytes::from(r.get::<_, Vec<u8>>(0)?));
    walk(conn, tip, 0)?.into_iter().map(|(id, _)| statement.query_row([id], raw)).collect()
}

/// One original, with the call of its first conversation.
pub(super) fn original(conn: &Connection, id: &str) -> rusqlite::Result<Option<Original>> {
    let sql = format!("{ORIGINAL} WHERE o.name = ?1 ORDER BY c.id LIMIT 1");
    conn.prepare_cached(&sql)?.query_row([id], original_row).optional()
}

/// Ids of originals that begin so, a few.
pub(super) fn original_names(conn: &Connection, beginning: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM original WHERE name >= ?1 AND name < ?1 || char(0x10ffff) ORDER BY name LIMIT 4";
    conn.prepare_cached(sql)?.query_map([beginning], |r| r.get(0))?.collect()
}

/// One original, if this conversation or one it forked from recorded it.
pub(super) fn original_in(conn: &Connection, id: &str, conversation: &str) -> rusqlite::Result<Option<Original>> {
    let sql = format!(
        "{LINE} {ORIGINAL} JOIN line ON line.id = l.conversation AND l.at < line.upto
        WHERE o.name = ?1 ORDER BY c.name = ?2 DESC LIMIT 1"
    );
    conn.prepare_cached(&sql)?.query_row([id, conversation], original_row).optional()
}

/// The conversations that recorded an original.
pub(super) fn recorded_in(conn: &Connection, id: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT c.name FROM original o JOIN original_link l ON l.original = o.id
        JOIN conversation c ON c.id = l.conversation WHERE o.name = ?1 ORDER BY c.id";
    conn.prepare_cached(sql)?.query_map([id], |r| r.get(0))?.collect()
}

/// Whether an id is taken by another text.
pub(super) fn id_taken(conn: &Connection, id: &str, text: &str) -> rusqlite::Result<bool> {
    Ok(large::original(conn, id, text)?.is_some_and(|(_, same)| !same))
}

fn original_row(r: &Row<'_>) -> rusqlite::Result<Original> {
    Ok(Original {
        id: r.get(0)?,
        conversation: r.get(1)?,
        at: r.get(2)?,
        kind: r.get(3)?,
        tool: r.get(4)?,
        call: r.get(5)?,
        text: r.get::<_, Arc<str>>(6)?.into(),
        raw: r.get::<_, Option<Vec<u8>>>(7)?.map(Bytes::from),
    })
}

/// Conversations, the last active first.
pub(super) fn conversations(conn: &Connection, limit: usize) -> rusqlite::Result<Vec<ConversationRow>> {
    let sql = format!("{CONVERSATION} ORDER BY c.updated_ms DESC, c.id DESC LIMIT ?1");
    conn.prepare_cached(&sql)?.query_map([bounded(limit)], |r| conversation_row(conn, r))?.collect()
}

/// The conversation of this id, or the only one whose id starts so, or the last active one of this session.
pub(super) fn conversation(conn: &Connection, path: &Path, id: &str) -> Result<Option<ConversationRow>, Error> {
    let wrap = |e| sqlite_error(path, e);
    let exact = |name: &str| {
        let sql = format!("{CONVERSATION} WHERE c.name = ?1");
        conn.prepare_cached(&sql)
            .and_then(|mut s| s.query_row([name], |r| conversation_row(conn, r)).optional())
            .map_err(wrap)
    };
    if let Some(row) = exact(id)? {
        return Ok(Some(row));
    }
    if id.is_empty() {
        return Ok(None);
    }
    let sql = "SELECT name FROM conversation WHERE name >= ?1 AND name < ?1 || char(0x10ffff) ORDER BY updated_ms DESC";
    let names = conn
        .prepare_cached(sql)
        .and_then(|mut s| s.query_map([id], |r| r.get(0))?.collect::<rusqlite::Result<Vec<String>>>())
        .map_err(wrap)?;
    match &names[..] {
        [] => {
            let sql = format!("{CONVERSATION} WHERE c.session = ?1 ORDER BY c.updated_ms DESC LIMIT 1");
            conn.prepare_cached(&sql)
                .and_then(|mut s| s.query_row([id], |r| conversation_row(conn, r)).optional())
                .map_err(wrap)
        }
        [name] => exact(name),
        _ => Err(Error::Ambiguous {
            prefix: id.to_owned(),
            count: names.len(),
            examples: names.iter().take(3).cloned().collect(),
        }),
    }
}

/// What stands for the chain digest of a conversation's last reply.
pub(super) fn place(conversation: &str) -> Digest {
    Digest::of(format!("last reply of {conversation}").as_bytes())
}

/// Whether a conversation that stands at `tip` has a last reply.
fn has_reply(conn: &Connection, conversation: &str, tip: &Digest) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM node n JOIN node p ON p.id = n.parent WHERE n.chain = ?1 AND p.chain = ?2)";
    conn.prepare_cached(sql)?.query_row(params![place(conversation).0, tip.0], |r| r.get(0))
}

fn conversation_row(conn: &Connection, r: &Row<'_>) -> rusqlite::Result<ConversationRow> {
    let (id, tip) = (r.get::<_, String>(0)?, Digest(r.get::<_, [u8; 16]>(6).unwrap_or_default()));
    let replied = has_reply(conn, &id, &tip)?;
    let parent: Option<String> = r.get(1)?;
    let parent_depth: Option<usize> = r.get(2)?;
    Ok(ConversationRow {
        id,
        replied,
        parent: parent.zip(parent_depth),
        session: r.get(3)?,
        model: r.get(4)?,
        upstream: r.get(5)?,
        tip,
        depth: r.get(7)?,
        state: json(r, 8)?,
        title: r.get(9)?,
        created_ms: r.get(10)?,
        updated_ms: r.get(11)?,
        is_named: r.get(12)?,
        is_starred: r.get(13)?,
    })
}

/// Columns of [`node_row`].
pub(super) const NODE: &str = "SELECT n.depth - 1, n.chain, n.digest, n.role, c.name, n.raw
    FROM node n JOIN conversation c ON c.id = n.conversation WHERE n.id = ?1";

pub(super) fn node_row(r: &Row<'_>) -> rusqlite::Result<NodeRow> {
    Ok(NodeRow {
        at: r.get(0)?,
        chain: Digest(r.get(1)?),
        digest: Digest(r.get(2)?),
        role: r.get(3)?,
        conversation: r.get(4)?,
        raw: Bytes::from(r.get::<_, Vec<u8>>(5)?),
    })
}

fn tip(conn: &Connection, conversation: &str) -> rusqlite::Result<Option<Digest>> {
    conn.prepare_cached("SELECT tip FROM conversation WHERE name = ?1")?
        .query_row([conversation], |r| Ok(Digest(r.get::<_, [u8; 16]>(0).unwrap_or_default())))
        .optional()
}

/// A conversation's messages in order, along the chain of its tip and so through what it forked from.
pub(super) fn messages(conn: &Connection, conversation: &str) -> rusqlite::Result<Vec<NodeRow>> {
    let Some(tip) = tip(conn, conversation)? else { return Ok(Vec::new()) };
    let mut statement = conn.prepare_cached(NODE)?;
    walk(conn, &tip, 0)?.into_iter().map(|(id, _)| statement.query_row([id], node_row)).collect()
}

/// What each message is on the way to a conversation's tip.
pub(super) fn path(conn: &Connection, conversation: &str) -> rusqlite::Result<Vec<PathRow>> {
    let Some(tip) = tip(conn, conversation)? else { return Ok(Vec::new()) };
    let mut statement = conn.prepare_cached("SELECT chain, digest, role = 'assistant' FROM node WHERE id = ?1")?;
    let row = |r: &Row<'_>| Ok(PathRow { chain: Digest(r.get(0)?), digest: Digest(r.get(1)?), is_reply: r.get(2)? });
    walk(conn, &tip, 0)?.into_iter().map(|(id, _)| statement.query_row([id], row)).collect()
}

/// Rows of the messages on the way to a conversation's tip.
pub(super) fn path_rows(conn: &Connection, conversation: &str) -> rusqlite::Result<HashSet<i64>> {
    let Some(tip) = tip(conn, conversation)? else { return Ok(HashSet::new()) };
    Ok(walk(conn, &tip, 0)?.into_iter().map(|(id, _)| id).collect())
}

/// The conversations whose names begin so, the last active first.
pub(super) fn named(conn: &Connection, prefix: &str, most: usize) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM conversation WHERE name >= ?1 AND name < ?1 || char(0x10ffff)
        ORDER BY updated_ms DESC, id DESC LIMIT ?2";
    conn.prepare_cached(sql)?.query_map(params![prefix, most], |r| r.get(0))?.collect()
}

/// A number from outside as SQLite has it: what is larger than any is as good as the largest.
pub(super) fn bounded(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A conversation and those that forked from it, the one itself first, then the last active.
pub(super) fn family(conn: &Connection, conversation: &str, most: usize) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT c.name FROM conversation c LEFT JOIN conversation p ON p.id = c.parent
        WHERE c.name = ?1 OR p.name = ?1 ORDER BY c.name <> ?1, c.updated_ms DESC LIMIT ?2";
    conn.prepare_cached(sql)?.query_map(params![conversation, bounded(most)], |r| r.get(0))?.collect()
}

/// When a conversation was last used, up to a time.
pub(super) fn last_used(conn: &Connection, until_ms: i64) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT max(updated_ms) FROM conversation WHERE updated_ms <= ?1";
    conn.prepare_cached(sql)?.query_row([until_ms], |r| r.get(0))
}

/// The conversations of a session, the last active first.
pub(super) fn of_session(conn: &Connection, session: &str, most: usize) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM conversation WHERE session = ?1 ORDER BY updated_ms DESC LIMIT ?2";
    conn.prepare_cached(sql)?.query_map(params![session, bounded(most)], |r| r.get(0))?.collect()
}

/// The messages `from..to` of a conversation, in order.
pub(super) fn messages_between(
    conn: &Connection,
    conversation: &str,
    from: usize,
    to: usize,
) -> rusqlite::Result<Vec<NodeRow>> {
    let Some(tip) = tip(conn, conversation)? else { return Ok(Vec::new()) };
    let mut statement = conn.prepare_cached(NODE)?;
    let nodes = walk(conn, &tip, from)?.into_iter().take(to.saturating_sub(from));
    nodes.map(|(id, _)| statement.query_row([id], node_row)).collect()
}

/// The chain digests of a conversation's messages, in order.
pub(super) fn chain(conn: &Connection, conversation: &str) -> rusqlite::Result<Vec<Digest>> {
    let Some(tip) = tip(conn, conversation)? else { return Ok(Vec::new()) };
    let mut statement = conn.prepare_cached(CHAIN)?;
    let mut digests =
        statement.query_map([tip.0], |r| Ok(Digest(r.get(0)?)))?.collect::<rusqlite::Result<Vec<Digest>>>()?;
    digests.reverse();
    Ok(digests)
}

/// One message of a conversation by its index. What it recorded there first stays what that index names, whatever the client sent
/// in its place since; before that, it is what stood there where the conversation forked.
pub(super) fn message(conn: &Connection, conversation: &str, at: usize) -> rusqlite::Result<Option<NodeRow>> {
    let wanted = at.saturating_add(1);
    let sql = "SELECT n.id FROM node n JOIN conversation c ON c.id = n.conversation
        WHERE c.name = ?1 AND n.depth = ?2 ORDER BY n.id LIMIT 1";
    let row = params![conversation, bounded(wanted)];
    let mut found = conn.prepare_cached(sql)?.query_row(row, |r| r.get(0)).optional()?;
    if found.is_none() {
        let Some(tip) = tip(conn, conversation)? else { return Ok(None) };
        found = walk(conn, &tip, at)?.into_iter().find(|(_, depth)| *depth == wanted).map(|(id, _)| id);
    }
    found.map(|id| conn.prepare_cached(NODE)?.query_row([id], node_row)).transpose()
}

/// Events after the one with id `since`, in order.
pub(super) fn events(conn: &Connection, since: i64, limit: usize, of: &EventFilter) -> rusqlite::Result<Vec<EventRow>> {
    const ALL: &str = "SELECT id, now_ms, conversation, kind, data FROM event
        WHERE id > ?1 AND ?3 IS NULL AND (?4 = '[]' OR kind IN (SELECT value FROM json_each(?4)))
        ORDER BY id LIMIT ?2";
    const ONE: &str = "SELECT id, now_ms, conversation, kind, data FROM event
        WHERE conversation = ?3 AND id > ?1 AND (?4 = '[]' OR kind IN (SELECT value FROM json_each(?4)))
        ORDER BY id LIMIT ?2";
    let row = |r: &Row<'_>| {
        let data = json(r, 4)?;
        Ok(EventRow { id: r.get(0)?, now_ms: r.get(1)?, conversation: r.get(2)?, kind: r.get(3)?, data })
    };
    let sql = if of.conversation.is_some() { ONE } else { ALL };
    conn.prepare_cached(sql)?.query_map(params![since, bounded(limit), of.conversation, kinds(of)], row)?.collect()
}

/// The id of the event before the newest `newest` of those asked for; 0 where there are no more than these.
pub(super) fn event_before(conn: &Connection, newest: usize, of: &EventFilter) -> rusqlite::Result<i64> {
    const ALL: &str = "SELECT id FROM event WHERE ?2 IS NULL
        AND (?3 = '[]' OR kind IN (SELECT value FROM json_each(?3))) ORDER BY id DESC LIMIT 1 OFFSET ?1";
    const ONE: &str = "SELECT id FROM event WHERE conversation = ?2
        AND (?3 = '[]' OR kind IN (SELECT value FROM json_each(?3))) ORDER BY id DESC LIMIT 1 OFFSET ?1";
    let sql = if of.conversation.is_some() { ONE } else { ALL };
    let found = conn.prepare_cached(sql)?.query_row(params![bounded(newest), of.conversation, kinds(of)], |r| r.get(0));
    Ok(found.optional()?.unwrap_or(0))
}

/// The kinds of a filter as a JSON array.
fn kinds(of: &EventFilter) -> String {
    Value::from(of.kinds.as_slice()).to_string()
}

fn json(r: &Row<'_>, column: usize) -> rusqlite::Result<Value> {
    let text = r.get_ref(column)?.as_str()?;
    serde_json::from_str(text)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(e)))
}

/// When and why something was pruned: a record (`original`), a `conversation` or a `reply`.
pub(super) fn gone(conn: &Connection, kind: &str, name: &str) -> rusqlite::Result<Option<Gone>> {
    let sql = "SELECT date(now_ms / 1000, 'unixepoch'), why FROM pruned WHERE kind = ?1 AND name = ?2";
    let row = |r: &rusqlite::Row<'_>| Ok(Gone { date: r.get(0)?, why: r.get(1)? });
    conn.prepare_cached(sql)?.query_row([kind, name], row).optional()
}
