//! Conversations that clients keep here under names of their API's form, such as OpenAI's `conv_…`: a log of what was added to
//! them and taken away, in which nothing is changed. They are no conversations of the record; one that was answered names that of
//! the record that it was answered in, and goes with it.

use rusqlite::{Connection, Row, params};

use super::apply::Apply;
use super::types::{Error, Gone, KeptChange, KeptRow};
use super::{Store, read};

/// What `pruned` calls them.
const KIND: &str = "kept";

impl Store {
    /// The log of a kept conversation in order; empty for an unknown one. What is still queued is not seen.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn kept(&self, name: &str) -> Result<Vec<KeptRow>, Error> {
        self.inner.read(|conn| rows(conn, name))
    }

    /// When a kept conversation was pruned, if it was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn kept_gone(&self, name: &str) -> Result<Option<Gone>, Error> {
        self.inner.read(|conn| read::gone(conn, KIND, name))
    }
}

fn rows(conn: &Connection, name: &str) -> rusqlite::Result<Vec<KeptRow>> {
    let sql = "SELECT owner, kind, item, now_ms, json FROM kept WHERE name = ?1 ORDER BY id";
    let row = |r: &Row<'_>| {
        Ok(KeptRow {
            name: name.to_owned(),
            owner: r.get(0)?,
            kind: r.get(1)?,
            item: r.get(2)?,
            now_ms: r.get(3)?,
            json: r.get(4)?,
        })
    };
    conn.prepare_cached(sql)?.query_map([name], row)?.collect()
}

impl Apply<'_> {
    pub(super) fn kept(&self, change: &KeptChange) -> Result<(), Error> {
        match change {
            KeptChange::Add(rows) => {
                let sql = "INSERT INTO kept (name, owner, kind, item, now_ms, json) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                let add = |row: &KeptRow| {
                    let KeptRow { name, owner, kind, item, now_ms, json } = row;
                    self.run(sql, params![name, owner, kind, item, now_ms, json]).map(|_| ())
                };
                rows.iter().try_for_each(add)
            }
            KeptChange::Delete(name) => self.wrap(super::schema::overwriting(self.tx, |tx| {
                tx.prepare_cached("DELETE FROM kept WHERE name = ?1")?.execute([name]).map(|_| ())
            })),
            KeptChange::ForgetReply(id, items) => self.wrap(super::schema::overwriting(self.tx, |tx| {
                tx.prepare_cached("DELETE FROM reply WHERE id = ?1")?.execute([id])?;
                let mut item = tx.prepare_cached("DELETE FROM item WHERE id = ?1")?;
                items.iter().try_for_each(|id| item.execute([id]).map(|_| ()))
            })),
        }
    }
}

/// Removes those that were answered in a conversation of the record that goes.
pub(super) fn remove_with(conn: &Connection, conversation: &str, now_ms: i64, why: &str) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO pruned (kind, name, now_ms, why, file)
        SELECT DISTINCT ?4, name, ?2, ?3, 0 FROM kept WHERE kind = 'answered' AND item = ?1";
    conn.execute(sql, params![conversation, now_ms, why, KIND])?;
    let sql = "DELETE FROM kept WHERE name IN (SELECT name FROM kept WHERE kind = 'answered' AND item = ?1)";
    conn.execute(sql, [conversation]).map(|_| ())
}

/// Whether there are any that nobody used since `before_ms`.
pub(super) fn any_unused(conn: &Connection, before_ms: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM kept GROUP BY name HAVING max(now_ms) < ?1)";
    conn.query_row(sql, [before_ms], |r| r.get(0))
}

/// Removes those that nobody used since `before_ms`.
pub(super) fn remove_unused(conn: &Connection, before_ms: i64, now_ms: i64, why: &str) -> rusqlite::Result<()> {
    let unused = "SELECT name FROM kept GROUP BY name HAVING max(now_ms) < ?1";
    let sql = format!(
        "INSERT OR REPLACE INTO pruned (kind, name, now_ms, why, file) SELECT ?4, name, ?2, ?3, 0 FROM ({unused})"
    );
    conn.execute(&sql, params![before_ms, now_ms, why, KIND])?;
    conn.execute(&format!("DELETE FROM kept WHERE name IN ({unused})"), [before_ms]).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::super::types::{Batch, Retention};
    use super::*;

    fn row(name: &str, kind: &str, item: &str, now_ms: i64) -> KeptRow {
        let (name, kind, item) = (name.into(), kind.into(), item.into());
        KeptRow { name, owner: "me".into(), kind, item, now_ms, json: "{}".into() }
    }

    #[test]
    fn they_are_a_log_that_goes_with_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let write = |change| runtime.block_on(store.record(Batch { kept: Some(change), ..Batch::default() })).unwrap();
        let all = vec![row("conv_a", "begun", "", 1), row("conv_a", "item", "msg_1", 2)];
        write(KeptChange::Add(all.clone()));
        write(KeptChange::Add(vec![row("conv_b", "begun", "", 1)]));
        assert_eq!(store.kept("conv_a").unwrap(), all);
        assert_eq!((store.kept("conv_x").unwrap(), store.kept_gone("conv_a").unwrap()), (Vec::new(), None));
        write(KeptChange::Delete("conv_b".into()));
        assert_eq!((store.kept("conv_b").unwrap(), store.kept_gone("conv_b").unwrap()), (Vec::new(), None));
        let day = 86_400_000;
        runtime.block_on(store.prune(Retention { days: 1, bytes: 0 }, day)).unwrap();
        assert_eq!(store.kept("conv_a").unwrap(), all);
        runtime.block_on(store.prune(Retention { days: 1, bytes: 0 }, 3 * day)).unwrap();
        assert_eq!(store.kept("conv_a").unwrap(), Vec::new());
        assert_eq!(store.kept_gone("conv_a").unwrap().unwrap().why, "retention_days = 1");
    }
}
