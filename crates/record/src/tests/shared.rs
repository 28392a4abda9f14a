//! Records that several share: over a log in memory, and over PostgreSQL where it is installed. Each test does the same over both.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::postgres::{PASSWORD, Server};
use super::*;
use crate::log::memory::Memory;
use crate::types::{About, KeptChange, KeptRow, LastReply, Reply, Retention, Rule as Ruled, RuleChange, Told};

/// Runs a test over a log in memory, and over a database of its own.
fn over_both(test: impl Fn(&Shared)) {
    test(&Shared { logs: Arc::new(Memory::default()), name: "main".into() });
    if let Some(server) = Server::start() {
        test(&Shared::postgres(&server.url(), "main").unwrap());
    }
}

fn timed() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn open(shared: &Shared) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_shared(dir.path(), shared).unwrap();
    (dir, store)
}

/// Everything in a database but what the search index has inside, table by table.
fn dump(dir: &Path) -> String {
    let conn = Connection::open(schema::database(dir)).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'words_%' ORDER BY name";
    let tables: Vec<String> =
        conn.prepare(sql).unwrap().query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect();
    let mut out = String::new();
    for table in tables {
        // The index keeps no text; what it finds is looked at by searches.
        let what = if table == "words" { "rowid" } else { "*" };
        let mut statement = conn
            .prepare(&format!("SELECT {what} FROM {table} ORDER BY 1, 2"))
            .or_else(|_| conn.prepare(&format!("SELECT {what} FROM {table} ORDER BY 1")))
            .unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        out.push_str(&format!("== {table}\n"));
        while let Some(row) = rows.next().unwrap() {
            let value = |i| match row.get_ref(i).unwrap() {
                rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                rusqlite::types::ValueRef::Blob(blob) => String::from_utf8_lossy(blob).escape_debug().to_string(),
                other => format!("{other:?}"),
            };
            let values: Vec<String> = (0..columns).map(value).collect();
            out.push_str(&values.join(" | "));
            out.push('\n');
        }
    }
    out
}

/// A bit of everything that can be written.
async fn write_all(one: &Store, other: &Store) {
    let texts = ["hello there", "general kenobi", "what is in the file?", "port 8080 is taken"];
    one.record(batch("a", &texts[..2], 0)).await.unwrap();
    other.elsewhere().caught_up().await;
    let chain = chain_of(&texts);
    let view = Some((chain[3], view_of(4, vec![text_edit(1, "general kenobi"), fold(0, 2, "They greeted.")])));
    let originals = vec![original("a", 1, "general kenobi"), original("a", 3, &"line of a log 8080\n".repeat(300))];
    let second = Batch { view, originals, durable: true, ..batch("a", &texts, 2) };
    other.record_over(second, other.seen()).await.unwrap();
    let event = Event { now_ms: 5, conversation: Some("a".into()), kind: "k".into(), data: json!({"$": "x", "n": 1}) };
    one.record(Batch { events: vec![event], ..Batch::default() }).await.unwrap();
    let recalled =
        Recalled { chain: chain[1], reply: chain[2], messages: vec![Bytes::from_static(b"{\"role\":\"tool\"}")] };
    one.record(Batch { recalled: Some(recalled), ..Batch::default() }).await.unwrap();
    let raw = Bytes::from_static(b"{\"role\":\"assistant\",\"content\":\"the last word\"}");
    let reply = LastReply {
        conversation: "a".into(),
        after: chain[3],
        depth: 4,
        digest: Digest::of(&raw),
        raw,
        text: "the last word".into(),
    };
    let counted = Some(Counted { chain: chain[3], view: chain[0], tokens: 77 });
    other.record(Batch { last_reply: Some(reply), counted, ..Batch::default() }).await.unwrap();
    let item = Item { id: "msg_1".into(), conversation: "a".into(), json: "{}".into() };
    let reply = Reply {
        id: "resp_1".into(),
        conversation: "a".into(),
        chain: chain[3],
        depth: 4,
        head: "{}".into(),
        json: "{\"x\": 1}".into(),
    };
    let told = Told { items: vec![item], reply: Some(reply) };
    one.record(Batch { told, ..Batch::default() }).await.unwrap();
    one.rename("a", "A short title").await.unwrap();
    other.star("a", true).await.unwrap();
    let about = Some(("a".to_owned(), About::Standing("{\"pins\":[]}".into())));
    let rule = Ruled {
        id: 1,
        client: "c".into(),
        project: "p".into(),
        text: "Say please.".into(),
        conversation: "a".into(),
        created_ms: 1,
        updated_ms: 2,
    };
    one.record(Batch { about, rule: Some(RuleChange::Put(rule)), ..Batch::default() }).await.unwrap();
    let row = KeptRow {
        name: "conv_1".into(),
        owner: String::new(),
        kind: "begun".into(),
        item: String::new(),
        now_ms: 3,
        json: "{}".into(),
    };
    other.record(Batch { kept: Some(KeptChange::Add(vec![row])), ..Batch::default() }).await.unwrap();
    let respelled = vec![(chain[0], Bytes::from_static(b"{\"content\":\"hello there\",\"role\":\"user\"}"))];
    one.record(Batch { respelled, ..Batch::default() }).await.unwrap();
    // One that contradicts the record is refused everywhere.
    let gap = other.record(batch("z", &["a", "b", "c"], 2)).await;
    assert!(matches!(gap, Err(Error::Gap { depth: 3 })), "{gap:?}");
    other.record(batch("b", &["hello there", "another way"], 0)).await.unwrap();
}

#[test]
fn replicas_are_alike_and_a_new_one_becomes_like_them() {
    over_both(|shared| {
        let runtime = timed();
        let ((d1, one), (d2, other)) = (open(shared), open(shared));
        runtime.block_on(async {
            write_all(&one, &other).await;
            one.elsewhere().caught_up().await;
            other.elsewhere().caught_up().await;
        });
        let (d3, third) = open(shared);
        let dumps = [&d1, &d2, &d3].map(|dir| dump(dir.path()));
        assert_eq!(dumps[0], dumps[1]);
        assert_eq!(dumps[0], dumps[2]);
        let found = |store: &Store| store.search("8080", None, 10).unwrap();
        assert!(!found(&one).is_empty());
        assert_eq!(found(&one), found(&other));
        assert_eq!(found(&one), found(&third));
        assert_eq!(one.marks_key().unwrap(), third.marks_key().unwrap(), "marks of one are known to the other");
        let chain = chain_of(&["hello there", "general kenobi", "what is in the file?", "port 8080 is taken"]);
        assert_eq!(one.view(&chain).unwrap(), third.view(&chain).unwrap());
        assert_eq!(one.locate(&chain).unwrap(), third.locate(&chain).unwrap());
    });
}

#[test]
fn what_one_writes_the_other_goes_on_from() {
    over_both(|shared| {
        let runtime = timed();
        let ((_d1, one), (_d2, other)) = (open(shared), open(shared));
        let texts: Vec<String> = (0..20).map(|i| format!("message {i}")).collect();
        runtime.block_on(async {
            for to in 1..=texts.len() {
                let store = if to % 2 == 0 { &one } else { &other };
                store.elsewhere().caught_up().await;
                let located = store.locate(&chain_of(&texts[..to])).unwrap();
                assert_eq!(located.map_or(0, |l| l.depth), to - 1);
                store.record(batch("c", &texts[..to], to - 1)).await.unwrap();
            }
        });
        // The last message is the first one's. The other may have been told of it meanwhile, and knows it as soon as it asks.
        assert!((19..=20).contains(&other.messages("c").unwrap().len()));
        runtime.block_on(other.elsewhere().caught_up());
        assert_eq!(other.messages("c").unwrap().len(), 20);
    });
}

#[test]
fn of_two_views_of_the_same_the_second_does_not_stand() {
    over_both(|shared| {
        let runtime = timed();
        let ((_d1, one), (_d2, other)) = (open(shared), open(shared));
        let texts = ["a", "b"];
        let chain = chain_of(&texts);
        let made = |brief: &str| Batch {
            view: Some((chain[1], view_of(2, vec![fold(0, 1, brief)]))),
            originals: vec![original("c", 0, brief)],
            durable: true,
            ..batch("c", &texts, 0)
        };
        runtime.block_on(async {
            let (seen_one, seen_other) = (one.seen(), other.seen());
            one.record_over(made("first"), seen_one).await.unwrap();
            let second = other.record_over(made("second"), seen_other).await;
            assert!(matches!(second, Err(Error::Overtaken)), "{second:?}");
            let stands = other.view(&chain).unwrap().unwrap().1;
            assert_eq!(stands, one.view(&chain).unwrap().unwrap().1);
            assert!(other.original(&original_id("second")).unwrap().is_none(), "nothing of it is written");
            // Whoever knows the view that stands may make the next one.
            other.record_over(made("third"), other.seen()).await.unwrap();
            one.elsewhere().caught_up().await;
            assert_eq!(one.view(&chain).unwrap().unwrap().1.edits, [fold(0, 1, "third")]);
        });
    });
}

#[test]
fn races_of_two_replicas_never_diverge() {
    over_both(|shared| {
        let runtime = timed();
        let ((d1, one), (d2, other)) = (open(shared), open(shared));
        let rounds: usize = std::env::var_os("WINDOWSILL_RACES").map_or(30, |n| n.to_str().unwrap().parse().unwrap());
        let won: Vec<usize> = runtime.block_on(async {
            let mut won = Vec::new();
            for round in 0..rounds {
                let texts = [format!("round {round}"), "folded".to_owned()];
                let chain = chain_of(&texts);
                let seen = [one.seen(), other.seen()];
                let race = |store: &Store, who: usize| {
                    let made = Batch {
                        view: Some((chain[1], view_of(2, vec![fold(0, 1, &format!("by {who} in {round}"))]))),
                        durable: true,
                        ..batch(&format!("c{round}"), &texts, 0)
                    };
                    let (store, seen) = (store.clone(), seen[who % 2]);
                    tokio::runtime::Handle::current().spawn(async move { store.record_over(made, seen).await })
                };
                let all: Vec<_> = (0..10).map(|who| race(if who % 2 == 0 { &one } else { &other }, who)).collect();
                let mut stood = Vec::new();
                for (who, task) in all.into_iter().enumerate() {
                    match task.await.unwrap() {
                        Ok(()) => stood.push(who),
                        Err(Error::Overtaken) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
                assert_eq!(stood.len(), 1, "round {round}: {stood:?}");
                one.elsewhere().caught_up().await;
                other.elsewhere().caught_up().await;
                let views = [&one, &other].map(|store| store.view(&chain).unwrap().unwrap().1);
                assert_eq!(views[0], views[1]);
                assert_eq!(views[0].edits, [fold(0, 1, &format!("by {} in {round}", stood[0]))]);
                won.push(stood[0]);
            }
            won
        });
        assert_eq!(won.len(), rounds);
        drop((one, other));
        assert_eq!(dump(d1.path()), dump(d2.path()));
    });
}

#[test]
fn what_is_deleted_is_gone_everywhere_texts_and_all() {
    over_both(|shared| {
        let runtime = timed();
        let ((d1, one), (d2, other)) = (open(shared), open(shared));
        let secret = "a secret that nobody may keep, and that is long enough to be a text";
        runtime.block_on(async {
            let texts = ["my words", secret];
            let view = Some((chain_of(&texts)[1], view_of(2, vec![text_edit(1, secret)])));
            let originals = vec![original("gone", 1, secret)];
            let batch = Batch { view, originals, ..batch("gone", &texts, 0) };
            one.record(batch).await.unwrap();
            one.record(self::batch("stays", &["my words of another kind", "x"], 0)).await.unwrap();
            other.elsewhere().caught_up().await;
            assert_eq!(other.messages("gone").unwrap().len(), 2);
            let deleted = one.delete("gone", 1 << 40).await.unwrap().unwrap();
            assert_eq!(deleted.messages, 2);
            other.elsewhere().caught_up().await;
            assert_eq!(other.conversation("gone").unwrap(), None);
            assert_eq!(other.view(&chain_of(&texts)).unwrap(), None);
            assert_eq!(other.locate(&chain_of(&texts)).unwrap(), None);
            assert!(other.elsewhere().changed().contains(&"gone".to_owned()));
            assert!(!other.result_path(&original_id(secret)).exists());
            assert!(other.pruned_original(&original_id(secret)).unwrap().is_some());
        });
        // A new one is built without the texts, and comes out the same.
        let (d3, third) = open(shared);
        assert_eq!(third.messages("stays").unwrap().len(), 2);
        assert_eq!(third.conversation("gone").unwrap(), None);
        for dir in [&d1, &d2, &d3] {
            let said = dump(dir.path());
            assert!(said.contains("stays") && !said.contains("a secret"), "{said}");
        }
        // It may come back.
        runtime.block_on(async {
            other.record(batch("gone", &["my words", secret], 0)).await.unwrap();
            third.elsewhere().caught_up().await;
            assert_eq!(third.messages("gone").unwrap().len(), 2);
        });
        let (_d4, fourth) = open(shared);
        assert_eq!(fourth.messages("gone").unwrap(), third.messages("gone").unwrap());
    });
}

#[test]
fn texts_of_a_deleted_conversation_are_no_longer_in_the_database() {
    let Some(server) = Server::start() else { return };
    let shared = Shared::postgres(&server.url(), "main").unwrap();
    let (_dir, store) = open(&shared);
    let secret = "a secret that nobody may keep, and that is long enough to be a text";
    let runtime = timed();
    let held = || server.ask("SELECT count(*) FROM windowsill.original WHERE position('a secret'::bytea IN text) > 0");
    runtime.block_on(async {
        let texts = ["my words", secret];
        let view = Some((chain_of(&texts)[1], view_of(2, vec![fold(0, 1, "a secret, in brief")])));
        let originals = vec![original("gone", 1, secret)];
        store.record(Batch { view, originals, ..batch("gone", &texts, 0) }).await.unwrap();
        assert_ne!(held(), "0");
        store.delete("gone", 1 << 40).await.unwrap().unwrap();
    });
    assert_eq!(held(), "0");
    assert_eq!(server.ask("SELECT count(*) FROM windowsill.entry WHERE position('secret' IN body) > 0"), "0");
}

#[test]
fn retention_is_the_same_for_all() {
    over_both(|shared| {
        let runtime = timed();
        let ((d1, one), (d2, other)) = (open(shared), open(shared));
        let day = 86_400_000;
        runtime.block_on(async {
            write_all(&one, &other).await;
            one.star("a", false).await.unwrap();
            other.elsewhere().caught_up().await;
            let pruned = other.prune(Retention { days: 1, bytes: 0 }, 30 * day).await.unwrap();
            assert_eq!(pruned.conversations, 2);
            one.elsewhere().caught_up().await;
            let again = one.prune(Retention { days: 1, bytes: 0 }, 30 * day).await.unwrap();
            assert_eq!(again.conversations, 0);
            other.elsewhere().caught_up().await;
        });
        assert!(one.conversations(10).unwrap().is_empty());
        drop((one, other));
        assert_eq!(dump(d1.path()), dump(d2.path()));
    });
}

#[test]
fn a_database_that_is_away_delays_what_needs_it_and_nothing_else() {
    let memory = Arc::new(Memory::default());
    let shared = Shared { logs: memory.clone(), name: "main".into() };
    away_and_back(&shared, &|is_away| memory.away.store(is_away, Ordering::SeqCst));
    if let Some(server) = Server::start() {
        let shared = Shared::postgres(&server.url(), "main").unwrap();
        away_and_back(&shared, &|is_away| if is_away { server.down() } else { server.up() });
    }
}

fn away_and_back(shared: &Shared, set_away: &dyn Fn(bool)) {
    let runtime = timed();
    let ((d1, one), (d2, other)) = (open(shared), open(shared));
    let texts: Vec<String> = (0..9).map(|i| format!("message {i}")).collect();
    runtime.block_on(async {
        one.record(batch("c", &texts[..1], 0)).await.unwrap();
        set_away(true);
        // What needs no waiting waits by itself, and is seen by the next request here.
        for to in 2..=8 {
            one.elsewhere().caught_up().await;
            assert_eq!(one.locate(&chain_of(&texts[..to])).unwrap().unwrap().depth, to - 1);
            one.record_soon(batch("c", &texts[..to], to - 1)).await.unwrap();
            one.flush().await;
        }
        let view = Some((chain_of(&texts)[8], view_of(9, vec![fold(0, 1, "in brief")])));
        let refused = one.record_over(Batch { view, ..batch("c", &texts, 8) }, one.seen()).await;
        assert!(matches!(&refused, Err(e) if e.is_away() && e.is_unwritable()), "{refused:?}");
        assert!(!refused.unwrap_err().to_string().contains(PASSWORD));
        assert!(one.trouble().is_some());
        assert!(one.writable().await.is_err());
        set_away(false);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while one.trouble().or(other.trouble()).is_some() {
            assert!(std::time::Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        one.writable().await.unwrap();
        one.flush().await;
        other.elsewhere().caught_up().await;
        let known = other.locate(&chain_of(&texts)).unwrap().unwrap().depth;
        assert!(known >= 8, "nothing is lost: {known}");
    });
    drop((one, other));
    assert_eq!(dump(d1.path()).contains("message 7"), dump(d2.path()).contains("message 7"));
}

#[test]
fn a_start_without_the_database_goes_on_with_what_was_built() {
    let memory = Arc::new(Memory::default());
    let shared = Shared { logs: memory.clone(), name: "main".into() };
    let runtime = timed();
    let (dir, store) = open(&shared);
    runtime.block_on(store.record(batch("c", &["a", "b"], 0))).unwrap();
    let key = store.marks_key().unwrap();
    drop(store);
    memory.away.store(true, Ordering::SeqCst);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open_shared(empty.path(), &shared), Err(Error::Away { .. })));
    let store = Store::open_shared(dir.path(), &shared).unwrap();
    assert_eq!(store.locate(&chain_of(&["a", "b", "c"])).unwrap().unwrap().depth, 2);
    assert_eq!(store.marks_key().unwrap(), key);
    runtime.block_on(store.record_soon(batch("c", &["a", "b", "c"], 2))).unwrap();
    memory.away.store(false, Ordering::SeqCst);
    let (_other_dir, other) = open(&shared);
    runtime.block_on(async {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while other.locate(&chain_of(&["a", "b", "c"])).unwrap().unwrap().depth < 3 {
            assert!(std::time::Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(20)).await;
            other.elsewhere().caught_up().await;
        }
    });
}

#[test]
fn folders_that_do_not_fit_are_refused_with_the_way_out() {
    over_both(|shared| {
        let runtime = timed();
        let dir = tempfile::tempdir().unwrap();
        let own = Store::open(dir.path()).unwrap();
        runtime.block_on(own.record(batch("c", &["a"], 0))).unwrap();
        drop(own);
        let refused = Store::open_shared(dir.path(), shared).err().unwrap().to_string();
        assert!(refused.contains("windowsill record copy --from"), "{refused}");
        // Nothing was changed by the attempt.
        assert_eq!(Store::open(dir.path()).unwrap().messages("c").unwrap().len(), 1);
        // One that was a replica, and then a record of its own, is one of its own.
        let (replica, store) = open(shared);
        runtime.block_on(store.record(batch("r", &["x"], 0))).unwrap();
        drop(store);
        drop(Store::open_shared(replica.path(), shared).unwrap());
        let own = Store::open(replica.path()).unwrap();
        runtime.block_on(own.record(batch("r2", &["y"], 0))).unwrap();
        drop(own);
        assert!(matches!(Store::open_shared(replica.path(), shared), Err(Error::Unfit(_))));
    });
}

#[test]
fn a_replica_is_used_by_one_process_at_a_time() {
    let shared = Shared { logs: Arc::new(Memory::default()), name: "main".into() };
    let (dir, _store) = open(&shared);
    let second = Store::open_shared(dir.path(), &shared).err().unwrap().to_string();
    assert!(second.contains("data_dir"), "{second}");
}

#[test]
fn a_replica_whose_file_is_deleted_is_built_anew() {
    over_both(|shared| {
        let runtime = timed();
        let (dir, store) = open(shared);
        runtime.block_on(store.record(batch("c", &["a", "b"], 0))).unwrap();
        fs::remove_file(schema::database(dir.path())).unwrap();
        runtime.block_on(async {
            store.begin_anew_if_gone().await;
            store.elsewhere().caught_up().await;
        });
        assert_eq!(store.messages("c").unwrap().len(), 2);
        runtime.block_on(store.record(batch("c", &["a", "b", "c"], 2))).unwrap();
        assert_eq!(store.messages("c").unwrap().len(), 3);
    });
}

#[test]
fn urls_say_how_to_connect_and_are_never_quoted() {
    for (url, error) in [
        ("mysql://u:pw12@h/d", "it must begin with postgres://"),
        ("postgres://u:pw12@h:x/d", ""),
        ("postgres://u:pw12@h/d?sslmode=maybe", "`sslmode` is disable, require or verify-full"),
        ("postgres://u:pw12@h/d?sslrootcert=/nowhere/pw.pem", "`sslrootcert`: /nowhere/pw.pem"),
    ] {
        let refused = Shared::postgres(url, "main").unwrap_err();
        assert!(refused.contains(error) && !refused.contains("pw12"), "{refused}");
    }
    assert!(!format!("{:?}", Shared::postgres("postgres://u:pw12@h/d", "main").unwrap()).contains("pw12"));
}

#[test]
fn a_record_is_copied_with_all_that_is_in_it_and_gone_on_with() {
    over_both(|shared| {
        let runtime = timed();
        let dir = tempfile::tempdir().unwrap();
        let own = Store::open(dir.path()).unwrap();
        runtime.block_on(async {
            write_all(&own, &own).await;
            let texts: Vec<String> = (0..40).map(|i| format!("message {i}, with words")).collect();
            own.record(batch("long", &texts, 0)).await.unwrap();
            let chain = chain_of(&texts);
            let view = Some((chain[39], view_of(40, vec![fold(0, 20, "brief")])));
            own.record(Batch { view, durable: true, ..batch("long", &texts, 40) }).await.unwrap();
            let large = "a line of three megabytes\n".repeat(120_000);
            own.record(Batch { originals: vec![original("long", 3, &large)], ..Batch::default() }).await.unwrap();
            let forked = ["message 0, with words", "elsewhere"];
            let conversation =
                ConversationUpdate { parent: Some(("long".into(), 1)), ..update("fork", &chain_of(&forked)) };
            own.record(Batch { conversation: Some(conversation), ..batch("fork", &forked, 1) }).await.unwrap();
            own.delete("b", 1 << 40).await.unwrap();
        });
        let key = own.marks_key().unwrap();
        let scratch = || tempfile::tempdir().unwrap();
        let busy = copy(dir.path(), shared, scratch().path(), &mut |_| {}).unwrap_err().to_string();
        assert!(busy.contains("stop that one first"), "{busy}");
        drop(own);
        // It breaks off in the middle, and is begun once more.
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = copy(dir.path(), shared, scratch().path(), &mut |at| {
                if matches!(at, Progress::Copied(done, all) if done > all / 2) {
                    panic!("broken off");
                }
            });
        }));
        drop(broken);
        let mut last = None;
        let copied = copy(dir.path(), shared, scratch().path(), &mut |at| last = Some(at)).unwrap();
        assert!(matches!(last, Some(Progress::Verified(done, all)) if done == all));
        assert!(copied.tables.iter().any(|(name, rows, _)| name == "node" && *rows > 40));
        let again = copy(dir.path(), shared, scratch().path(), &mut |_| {}).unwrap();
        assert_eq!(again.tables, copied.tables);
        assert!(again.found > copied.found || copied.found > 0);

        let (new_dir, new) = open(shared);
        let old = Store::open(dir.path()).unwrap();
        assert_eq!(new.marks_key().unwrap(), key);
        for query in ["8080", "\"the last word\"", "words", "three megabytes"] {
            assert_eq!(new.search(query, None, 20).unwrap(), old.search(query, None, 20).unwrap(), "{query}");
        }
        let history = |store: &Store| fs::read_to_string(store.history_path("long")).unwrap();
        assert_eq!(history(&new), history(&old));
        assert_eq!(
            fs::read_dir(new_dir.path().join("large_tool_results")).unwrap().count(),
            fs::read_dir(dir.path().join("large_tool_results")).unwrap().count()
        );
        runtime.block_on(async {
            let texts: Vec<String> = (0..41).map(|i| format!("message {i}, with words")).collect();
            new.record(batch("long", &texts, 40)).await.unwrap();
            assert_eq!(new.delete("long", 1 << 41).await.unwrap().unwrap().left, 1);
        });
        // What a fork has of a conversation that is gone is there for whoever comes next, too.
        let (_later_dir, later) = open(shared);
        assert_eq!(later.messages("fork").unwrap(), new.messages("fork").unwrap());
        assert_eq!(later.messages("fork").unwrap().len(), 2);
        // What was written since is not of the copy.
        let other = copy(dir.path(), shared, scratch().path(), &mut |_| {});
        assert!(matches!(other, Err(Error::Unfit(_))), "{other:?}");
    });
}
