//! The last reply of a conversation, until its client comes back with it, or with something else.
//!
//! It is a row among the messages, so it is read and searched like one, and goes with its conversation. No history leads to
//! it: its digest is made of the conversation's name. So it makes no fork of a client that spells it otherwise, and the
//! first message in its place puts it away.

use rusqlite::{Connection, OptionalExtension, params};

use windowsill_core::conversation::Digest;

use super::apply::Apply;
use super::passages::{self, Source};
use super::read::{NODE, node_row, place};
use super::types::{Error, LastReply, Node, NodeRow};
use super::{large, schema};

/// The role of a reply.
const ROLE: &str = "assistant";

/// The last reply of a conversation, if it answers the history that the conversation stands at.
pub(super) fn last(conn: &Connection, conversation: &str) -> rusqlite::Result<Option<NodeRow>> {
    let sql = "SELECT n.id FROM node n JOIN conversation c ON c.id = n.conversation JOIN node p ON p.id = n.parent
        WHERE n.chain = ?1 AND p.chain = c.tip";
    let id: Option<i64> = conn.prepare_cached(sql)?.query_row([place(conversation).0], |r| r.get(0)).optional()?;
    id.map(|id| conn.prepare_cached(NODE)?.query_row([id], node_row)).transpose()
}

impl Apply<'_> {
    /// Keeps a reply in place of the one before. One whose client has gone on meanwhile comes too late.
    pub(super) fn last_reply(&self, reply: &LastReply, now_ms: i64) -> Result<(), Error> {
        let sql =
            "SELECT c.id, n.id FROM conversation c JOIN node n ON n.chain = c.tip WHERE c.name = ?1 AND c.tip = ?2";
        let rows = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?));
        let LastReply { conversation, after, depth, digest, raw, text } = reply;
        let found =
            self.tx.prepare_cached(sql).and_then(|mut s| s.query_row(params![conversation, after.0], rows).optional());
        let Some((owner, parent)) = self.wrap(found)? else { return Ok(()) };
        if self.waiting(conversation, parent, digest)?.is_some_and(|(_, kept)| kept == **raw) {
            // The same request was answered with the same words again.
            return Ok(());
        }
        self.let_reply_go(conversation, None)?;
        let sql = "INSERT INTO node (chain, parent, depth, conversation, role, digest, raw)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let chain = place(conversation).0;
        self.run(sql, params![chain, parent, depth + 1, owner, ROLE, digest.0, large::bound(raw)])?;
        let row = self.tx.last_insert_rowid();
        self.wrap(large::fill(self.tx, row, raw))?;
        let new = passages::New {
            conversation: owner,
            node: row,
            parent: Some(parent),
            at: *depth,
            text,
            now_ms: Some(now_ms),
        };
        self.wrap(passages::add_message(self.tx, &new))
    }

    /// Makes the last reply of a conversation the message that its client came back with, where that says the same; returns
    /// whether it does. So the words of a turn are indexed once, and nothing of it is removed again.
    pub(super) fn came_back(&self, conversation: &str, node: &Node, parent: Option<i64>) -> Result<bool, Error> {
        let Some(parent) = parent.filter(|_| node.role == ROLE) else { return Ok(false) };
        let Some((row, kept)) = self.waiting(conversation, parent, &node.digest)? else { return Ok(false) };
        let is_same = kept == *node.raw;
        // Where it has other spaces around it, its passages stand elsewhere.
        if !is_same && passages::said(kept) != node.text {
            return Ok(false);
        }
        self.run("UPDATE node SET chain = ?2 WHERE id = ?1", params![row, node.chain.0])?;
        if !is_same {
            self.wrap(schema::overwriting(self.tx, |tx| {
                let sql = "UPDATE node SET raw = ?2 WHERE id = ?1";
                tx.prepare_cached(sql)?.execute(params![row, large::bound(&node.raw)])
            }))?;
            self.wrap(large::fill(self.tx, row, &node.raw))?;
        }
        Ok(true)
    }

    /// The row and the bytes of a conversation's last reply, where it answers this message and says what has this digest.
    fn waiting(&self, conversation: &str, parent: i64, digest: &Digest) -> Result<Option<(i64, Vec<u8>)>, Error> {
        let sql = "SELECT id, raw FROM node WHERE chain = ?1 AND parent = ?2 AND digest = ?3";
        let row = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, r.get(1)?));
        let values = params![place(conversation).0, parent, digest.0];
        self.wrap(self.tx.prepare_cached(sql).and_then(|mut s| s.query_row(values, row).optional()))
    }

    /// Puts the last reply of a conversation away, unless it answers the history that ends with `tip`.
    pub(super) fn let_reply_go(&self, conversation: &str, tip: Option<&Digest>) -> Result<(), Error> {
        let sql = "SELECT n.id, p.chain FROM node n LEFT JOIN node p ON p.id = n.parent WHERE n.chain = ?1";
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, Option<[u8; 16]>>(1)?));
        let found = self.tx.prepare_cached(sql).and_then(|mut s| s.query_row([place(conversation).0], row).optional());
        let Some((id, after)) = self.wrap(found)? else { return Ok(()) };
        if tip.is_some_and(|tip| after == Some(tip.0)) {
            return Ok(());
        }
        self.wrap(passages::remove_source(self.tx, Source::Node(id)))?;
        // Words that no client came back with are in nobody's history: they do not stand on in free parts of the file.
        self.wrap(schema::overwriting(self.tx, |tx| {
            tx.prepare_cached("DELETE FROM node WHERE id = ?1")?.execute([id])
        }))?;
        Ok(())
    }
}
