//! Writing: what is queued is seen at once, what fails is told, and nobody waits for ever.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use crate::writer::Written;

use super::*;

/// Holds the database's write lock until dropped, so that batches stay in the queue.
struct Lock(Connection);

impl Lock {
    fn take(store: &Store) -> Lock {
        let conn = Connection::open(&store.inner.path).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        Lock(conn)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

fn present(dir: &Path) -> Arc<presence::Presence> {
    Arc::new(presence::Presence::new(dir).unwrap())
}

#[test]
fn queued_batches_are_seen_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = ["a", "b", "c", "d", "e"];
    let chain = chain_of(&texts);
    runtime().block_on(store.record(batch("c", &texts[..2], 0))).unwrap();
    let lock = Lock::take(&store);
    let mut more = batch("c", &texts[..3], 2);
    more.originals.push(original("c", 1, "the text"));
    more.view = Some((chain[2], view_of(3, vec![text_edit(1, "the text")])));
    store.record_later(more).unwrap();
    store.record_later(batch("c", &texts[..4], 3)).unwrap();

    let located = Located { depth: 4, conversation: "c".into(), conversation_depth: 4 };
    assert_eq!(store.locate(&chain).unwrap(), Some(located.clone()));
    assert_eq!(store.locate(&chain[..1]).unwrap().unwrap(), Located { depth: 1, ..located.clone() });
    let (at, view) = store.view(&chain).unwrap().unwrap();
    assert_eq!((at, view.messages), (2, 3));
    assert_eq!(store.original(&original_id("the text")).unwrap().unwrap().text, "the text");
    assert!(store.original_in(&original_id("the text"), "other").unwrap().is_none());
    assert!(!store.inner.recent.lock().is_settled());

    drop(lock);
    runtime().block_on(store.flush());
    assert!(store.inner.recent.lock().is_settled());
    assert_eq!(store.locate(&chain).unwrap(), Some(located));
    assert_eq!(store.messages("c").unwrap().len(), 4);
}

#[test]
fn a_commit_leaves_what_a_later_batch_queued() {
    let mut recent = Recent::new(Default::default(), Default::default());
    let chain = chain_of(&["a"]);
    let works = [1, 2].map(|messages| {
        let mut batch = batch("c", &["a"], 0);
        batch.originals.push(original("c", 0, "text"));
        Arc::new(Work { batch, view: Some((chain[0], Arc::new(view_of(messages, vec![])))), now_ms: 0, over: None })
    });
    let seqs = works.each_ref().map(|work| recent.queue(work));
    let applied = |row| Some(recent::Applied { view_row: Some(row), tip: None });
    let newest = |recent: &mut Recent| match recent.find_view(&chain) {
        Some((0, Found::Here(view))) => view.messages,
        _ => 0,
    };
    assert_eq!(newest(&mut recent), 2);
    recent.settle(seqs[0], &works[0], applied(7));
    assert_eq!(newest(&mut recent), 2, "the second one is still queued");
    assert!(recent.queued_node(&chain[0]).is_some() && recent.queued_original(&original_id("text")).is_some());
    recent.settle(seqs[1], &works[1], None);
    assert_eq!(newest(&mut recent), 1, "the second one failed");
    assert!(recent.is_settled());
}

#[test]
fn a_full_queue_is_busy_and_record_waits_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let lock = Lock::take(&store);
    let large = |i: usize| {
        let mut batch = Batch::default();
        let text = format!("{i}{}", " ".repeat(QUEUE_BYTES / 2 - (1 << 16)));
        batch.originals.push(original("c", i, &text));
        batch
    };
    store.record_later(large(1)).unwrap();
    store.record_later(large(2)).unwrap();
    assert!(matches!(store.record_later(large(3)), Err(Error::Busy)));
    runtime().block_on(async {
        let (waiting, soon) = (store.record(large(3)), store.record_soon(large(7)));
        tokio::pin!(waiting, soon);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(futures_util::poll!(&mut soon).is_pending());
        drop(lock);
        waiting.await.unwrap();
        soon.await.unwrap();
        // Larger than the whole queue: it waits for an empty one, and is written.
        let mut whole = large(4);
        whole.originals.extend([large(5), large(6)].into_iter().flat_map(|b| b.originals));
        store.record(whole).await.unwrap();
    });
    assert_eq!(store.inner.space.available_permits(), QUEUE_BYTES);
    assert_eq!(fs::read_dir(dir.path().join("large_tool_results")).unwrap().count(), 7);
}

#[test]
fn a_batch_that_fails_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = ["a", "b", "c"];
    let chain = chain_of(&texts);
    let lock = Lock::take(&store);
    store.record_later(batch("x", &texts[..1], 0)).unwrap();
    store.record_later(batch("x", &texts, 2)).unwrap();
    store.record_later(batch("y", &["other"], 0)).unwrap();
    assert_eq!(store.locate(&chain[2..]).unwrap().unwrap().depth, 3, "seen while queued");
    drop(lock);
    runtime().block_on(store.flush());
    assert_eq!(
        store.locate(&chain).unwrap().unwrap(),
        Located { depth: 1, conversation: "x".into(), conversation_depth: 1 }
    );
    assert_eq!(store.locate(&chain_of(&["other"])).unwrap().unwrap().conversation, "y");
    assert_eq!(store.conversation("x").unwrap().unwrap().depth, 1, "nothing of the failed batch stays");
    let error = runtime().block_on(store.record(batch("x", &texts, 2))).unwrap_err();
    assert!(matches!(error, Error::Gap { depth: 3 }), "{error}");
    // The gap heals as soon as what is missing comes again.
    runtime().block_on(store.record(batch("x", &texts, 1))).unwrap();
    assert_eq!(store.locate(&chain).unwrap().unwrap().depth, 3);
    assert!(store.inner.recent.lock().is_settled());
}

#[test]
fn trouble_is_told_until_a_write_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.record_later(batch("x", &["a", "b"], 1)).unwrap();
    runtime().block_on(store.flush());
    assert!(store.trouble().is_none(), "a batch that contradicts the record is no trouble of the disk's");
    // A file where a folder should be: no original can be written.
    let folder = dir.path().join("large_tool_results");
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    store.record_later(Batch { originals: vec![original("x", 0, "a text")], ..Batch::default() }).unwrap();
    runtime().block_on(store.flush());
    let trouble = store.trouble().unwrap();
    assert!(trouble.error.to_string().contains("large_tool_results"), "{}", trouble.error);
    assert_eq!(store.failures(), 1);
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    runtime().block_on(store.writable()).unwrap();
    assert!(store.trouble().is_none());
}

#[test]
fn a_deleted_record_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = Store::open(&data).unwrap();
    runtime().block_on(store.record(batch("x", &["a", "b"], 0))).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    let error = runtime().block_on(store.record(batch("x", &["a", "b", "c"], 2))).unwrap_err();
    assert!(matches!(error, Error::Gap { depth: 3 }), "{error}");
    assert!(store.locate(&chain_of(&["a", "b", "c"])).unwrap().is_none());
    runtime().block_on(store.record(batch("x", &["a", "b", "c"], 0))).unwrap();
    drop(store);
    assert_eq!(Store::open(&data).unwrap().messages("x").unwrap().len(), 3, "it is on the disk again");
}

#[test]
fn views_of_another_process_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Store::open(dir.path()).unwrap(), Store::open(dir.path()).unwrap());
    let chain = chain_of(&["a", "b"]);
    assert!(two.view(&chain).unwrap().is_none());
    let mut with_view = batch("x", &["a", "b"], 0);
    let view = View { messages: 2, ..View::default() };
    with_view.view = Some((chain[1], view.clone()));
    with_view.counted = Some(Counted { chain: chain[1], view: Digest::default(), tokens: 7 });
    runtime().block_on(one.record(with_view)).unwrap();
    assert_eq!(*two.view(&chain).unwrap().unwrap().1, view);
    let longer = chain_of(&["a", "b", "c"]);
    assert_eq!(two.counted(&longer, &Digest::default()).unwrap(), Some((2, 7)));
    assert_eq!(two.counted(&longer, &Digest::of(b"another view")).unwrap(), None);
}

/// The writer of a new record, without its queue.
fn writer(dir: &Path) -> Writer {
    drop(Store::open(dir).unwrap());
    let path = schema::database(dir);
    let recent = Arc::new(Mutex::new(Recent::new(Default::default(), Default::default())));
    recent.lock().base.opened = schema::identity(&path);
    Writer {
        conn: schema::open_writer(&path).unwrap(),
        readers: Arc::new(Readers::open(&path).unwrap()),
        path,
        files: Files::new(dir),
        recent,
        presence: present(dir),
        commits: Default::default(),
        replica: None,
        is_shared: false,
        outbox: Outbox::default(),
    }
}

#[test]
fn a_full_disk_is_an_error_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    writer.conn.query_row("PRAGMA max_page_count = 60", [], |_| Ok(())).unwrap();
    let work = |text: &str| {
        let batch = Batch { originals: vec![original("c", 0, text)], ..Batch::default() };
        Arc::new(Work { batch, view: None, now_ms: 0, over: None })
    };
    let results = writer.commit_caught(&[work("small"), work(&"large".repeat(100_000))]);
    assert_eq!(results.len(), 2);
    let errors: Vec<String> = results.into_iter().filter_map(|r| r.err()).map(|e| e.to_string()).collect();
    assert!(errors.last().unwrap().contains("windowsill.sqlite`: database or disk is full"), "{errors:?}");
    assert!(writer.commit_caught(&[work("small")])[0].is_ok(), "the writer goes on");
}

#[test]
fn a_panic_costs_the_batch_and_not_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    let good = batch("c", &["a", "b"], 0);
    // The check before the queue refuses this one; past it, the depth before 0 overflows.
    let mut bad = good.clone();
    bad.nodes[1].depth = 0;
    let mut commit =
        |batch: Batch| writer.commit_caught(&[Arc::new(Work { batch, view: None, now_ms: 0, over: None })]).remove(0);
    assert!(commit(bad).is_err());
    let Ok(Written::Done(applied)) = commit(good) else { panic!("it is written") };
    assert_eq!(applied.tip.unwrap().1, Tip { conversation: "c".into(), depth: 2 });
}

#[test]
fn a_durable_batch_is_synced_even_if_it_repeats_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    let mut commit = |durable: bool| {
        let batch = Batch { originals: vec![original("c", 0, "text")], durable, ..Batch::default() };
        assert!(writer.commit_caught(&[Arc::new(Work { batch, view: None, now_ms: 0, over: None })])[0].is_ok());
        let level: i64 = writer.conn.query_row("PRAGMA synchronous", [], |r| r.get(0)).unwrap();
        (level, fs::metadata(dir.path().join("windowsill.sqlite-wal")).unwrap().len())
    };
    let (first, repeated, durable) = (commit(false), commit(false), commit(true));
    assert_eq!((first.0, repeated.0, durable.0), (1, 1, 2), "normal, normal, full");
    assert_eq!(first.1, repeated.1, "the same again writes nothing");
    assert!(durable.1 > repeated.1, "the durable one writes, and so syncs what is before it");
}

#[test]
fn processes_may_start_together() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| Store::open(dir.path()).map(drop))).collect();
            for start in starts {
                start.join().unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fs::remove_dir(dir.path().join("large_tool_results")).unwrap();
    let batch = Batch { originals: vec![original("c", 0, "text")], durable: true, ..Batch::default() };
    let error = runtime().block_on(store.record(batch)).unwrap_err();
    assert!(error.to_string().contains("large_tool_results/r"), "{error}");
    assert_eq!(store.original(&original_id("text")).unwrap(), None, "nothing of it is recorded");
}

#[test]
fn a_batch_that_contradicts_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let good = batch("c", &["a"], 0);
    let mut bad = vec![Batch { conversation: None, ..good.clone() }, good.clone(), good.clone(), good.clone()];
    bad[1].nodes[0].depth = 0;
    bad[2].conversation.as_mut().unwrap().parent = Some(("c".into(), 1));
    bad[3].originals.push(Original { id: "../../r".into(), ..original("c", 0, "x") });
    for batch in bad {
        assert!(matches!(store.record_later(batch), Err(Error::Invalid(_))));
    }
}

#[test]
fn the_last_store_to_go_writes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts: Vec<String> = (0..200).map(|i| format!("message {i}")).collect();
    for depth in 1..=texts.len() {
        store.record_later(batch("c", &texts[..depth], depth - 1)).unwrap();
    }
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.messages("c").unwrap().len(), 200);
}

#[test]
fn two_processes_may_write() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Store::open(dir.path()).unwrap(), Store::open(dir.path()).unwrap());
    let texts: Vec<String> = (0..40).map(|i| format!("message {i}")).collect();
    for depth in 1..=texts.len() {
        one.record_later(batch("one", &texts[..depth], depth - 1)).unwrap();
        let other: Vec<String> = texts[..depth].iter().map(|t| format!("other {t}")).collect();
        two.record_later(batch("two", &other, depth - 1)).unwrap();
    }
    runtime().block_on(async { tokio::join!(one.flush(), two.flush()) });
    assert!(one.trouble().is_none() && two.trouble().is_none());
    assert_eq!(one.messages("two").unwrap().len(), 40);
    assert_eq!(two.messages("one").unwrap().len(), 40);
}
