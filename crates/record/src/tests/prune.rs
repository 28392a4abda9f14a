//! Retention: what goes, what stays, and what is told of it.

use std::fs;
use std::sync::mpsc;

use super::*;

const DAY: i64 = 24 * 60 * 60 * 1000;

/// A conversation last used at `now_ms`: four messages, an original, a fold, something recalled, an event.
fn full(id: &str, now_ms: i64) -> Batch {
    let texts =
        [format!("{id} asks"), format!("{id} long {}", "word ".repeat(30_000)), format!("{id} two"), "end".into()];
    let chain = chain_of(&texts);
    let mut all = batch(id, &texts, 0);
    all.conversation.as_mut().unwrap().now_ms = now_ms;
    all.originals = vec![original(id, 1, &format!("original of {id}\n{}", "line of it\n".repeat(20_000)))];
    all.view = Some((chain[3], view_of(4, vec![fold(1, 3, &format!("brief of {id}")), text_edit(3, id)])));
    let messages = vec![Bytes::from_static(b"{}")];
    all.recalled = Some(Recalled { chain: chain[3], reply: Digest::of(id.as_bytes()), messages });
    all.events = vec![Event { now_ms, conversation: Some(id.into()), kind: "x".into(), data: json!({}) }];
    all
}

fn chain_of_full(id: &str) -> Vec<Digest> {
    chain_of(&[
        format!("{id} asks"),
        format!("{id} long {}", "word ".repeat(30_000)),
        format!("{id} two"),
        "end".into(),
    ])
}

fn id_of(conversation: &str) -> String {
    original_id(&format!("original of {conversation}\n{}", "line of it\n".repeat(20_000)))
}

fn count(store: &Store, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    store.inner.read(|c| c.query_row(&sql, [], |r| r.get(0))).unwrap()
}

fn counts(store: &Store) -> Vec<i64> {
    let tables = [
        "conversation",
        "node",
        "original",
        "original_link",
        "view",
        "edit",
        "recalled",
        "words_docsize",
        "original_part",
    ];
    tables.iter().map(|t| count(store, t)).collect()
}

fn prune(store: &Store, days: u32, bytes: u64, now_ms: i64) -> Pruned {
    runtime().block_on(store.prune(Retention { days, bytes }, now_ms)).unwrap()
}

fn files(dir: &Path) -> usize {
    ["large_tool_results", "conversation_history"].iter().map(|f| fs::read_dir(dir.join(f)).unwrap().count()).sum()
}

#[test]
fn what_is_too_old_goes_rows_and_files_alike() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let now = 100 * DAY;
    runtime().block_on(store.record(full("young", now - DAY))).unwrap();
    let alone = counts(&store);
    runtime().block_on(store.record(full("old", now - 31 * DAY))).unwrap();
    assert_eq!((files(dir.path()), counts(&store) != alone), (4, true));
    assert!(store.view(&chain_of_full("old")).unwrap().is_some());

    assert_eq!(prune(&store, 32, 0, now).conversations, 0);
    let done = prune(&store, 30, 0, now);
    assert_eq!((done.conversations, done.originals, done.messages, done.over), (1, 1, 4, false));
    assert!(done.bytes_after < done.bytes_before, "{done:?}");
    assert_eq!(counts(&store), alone, "as if it had never been");
    assert_eq!(files(dir.path()), 2);
    assert!(!store.result_path(&id_of("old")).exists() && store.result_path(&id_of("young")).exists());

    // Nothing of it is found, by no way, also where it was in RAM.
    let chain = chain_of_full("old");
    assert_eq!((store.locate(&chain).unwrap(), store.view(&chain).unwrap()), (None, None));
    assert!(!store.recalls().any(&chain[3]));
    assert_eq!(store.original(&id_of("old")).unwrap(), None);
    assert_eq!(store.search("old", None, 9).unwrap(), []);
    assert_eq!(store.conversation("old").unwrap(), None);
    assert!(store.trace().since(0, 99, &EventFilter::of("old")).unwrap().is_empty());
    // But word of it.
    let gone = store.pruned_original(&id_of("old")).unwrap().unwrap();
    assert_eq!(gone.to_string(), "was pruned on 1970-04-11 by retention_days = 30");
    assert_eq!(store.pruned_conversation("old").unwrap(), Some(gone));
    assert_eq!(store.pruned_original(&id_of("young")).unwrap(), None);
    let events = store.trace().since(0, 99, &EventFilter::default()).unwrap();
    let told = events.iter().find(|e| e.kind == "record_pruned").unwrap();
    assert_eq!((&told.data["conversations"], &told.data["retention_days"]), (&json!(1), &json!(30)));
    assert!(!told.data.to_string().contains("old"));
    // The other one is whole.
    assert_eq!(store.messages("young").unwrap().len(), 4);
    assert!(store.view(&chain_of_full("young")).unwrap().is_some());
    assert_eq!(store.search("original of young", None, 9).unwrap()[0].conversation, "young");
    assert_eq!(
        prune(&store, 30, 0, now),
        Pruned { bytes_before: done.bytes_after, bytes_after: done.bytes_after, ..Pruned::default() }
    );
}

#[test]
fn what_comes_back_is_recorded_as_if_it_were_new() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    for restart in [false, true] {
        runtime().block_on(store.record(full("c", DAY))).unwrap();
        assert_eq!(prune(&store, 1, 0, 9 * DAY).conversations, 1);
        if restart {
            drop(store);
            store = Store::open(dir.path()).unwrap();
        }
        assert!(store.pruned_conversation("c").unwrap().is_some());
        runtime().block_on(store.record(full("c", 9 * DAY))).unwrap();
        assert_eq!(store.locate(&chain_of_full("c")).unwrap().unwrap().depth, 4);
        assert_eq!(store.view(&chain_of_full("c")).unwrap().unwrap().1.edits.len(), 2);
        assert!(store.original(&id_of("c")).unwrap().is_some() && store.result_path(&id_of("c")).exists());
        assert_eq!(
            (store.pruned_original(&id_of("c")).unwrap(), store.pruned_conversation("c").unwrap()),
            (None, None)
        );
        let history = fs::read_to_string(store.history_path("c")).unwrap();
        assert_eq!(history.matches("# title of c").count(), 1);
        // The next round begins with it as old as the first.
        let mut batch = full("c", DAY);
        batch.nodes.clear();
        runtime().block_on(store.record(batch)).unwrap();
        // It was found for a request just now, by the real clock: a new process knows nothing of that.
        drop(store);
        store = Store::open(dir.path()).unwrap();
        assert_eq!(prune(&store, 1, 0, 9 * DAY).conversations, 1);
    }
}

/// The index keeps the words of a deleted row until it is written anew.
#[test]
fn the_index_holds_no_words_of_what_went() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let holds = |dir: &Path| {
        let file = fs::read(schema::database(dir)).unwrap();
        memchr::memmem::find(&file, b"ylophonist").is_some()
    };
    let mut old = batch("old", &["the xylophonist".to_owned(), "plays".to_owned()], 0);
    old.conversation.as_mut().unwrap().now_ms = DAY;
    runtime().block_on(store.record(old)).unwrap();
    runtime().block_on(store.record(full("young", 9 * DAY))).unwrap();
    drop(store);
    assert!(holds(dir.path()));
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(prune(&store, 2, 0, 9 * DAY).conversations, 1);
    assert_eq!(store.search("original of young", None, 9).unwrap()[0].conversation, "young", "the rest is found");
    drop(store);
    assert!(!holds(dir.path()));
}

#[test]
fn nothing_goes_while_another_process_writes_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(full("c", DAY))).unwrap();
    let other = Store::open(dir.path()).unwrap();
    for (one, n) in [(&store, 0), (&other, 0)] {
        let done = prune(one, 1, 0, 9 * DAY);
        assert_eq!((done.conversations, done.shared), (n, true));
    }
    assert!(store.original(&id_of("c")).unwrap().is_some());
    // One that only reads is in nobody's way.
    drop(other);
    let _reader = Store::open_readonly(dir.path()).unwrap();
    let done = prune(&store, 1, 0, 9 * DAY);
    assert_eq!((done.conversations, done.shared), (1, false));
}

#[test]
fn what_others_depend_on_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let now = 100 * DAY;
    // A fork of an old conversation, and another that recorded the same text.
    runtime().block_on(store.record(full("trunk", DAY))).unwrap();
    let mut fork = full("fork", now);
    let texts = ["trunk asks".to_owned(), "elsewhere".to_owned()];
    fork.nodes = batch("fork", &texts, 1).nodes;
    (fork.view, fork.recalled) = (None, None);
    let head = fork.conversation.as_mut().unwrap();
    (head.parent, head.tip, head.depth) = (Some(("trunk".into(), 1)), chain_of(&texts)[1], 2);
    runtime().block_on(store.record(fork.clone())).unwrap();
    let mut twin = full("twin", DAY);
    twin.originals = vec![Original { conversation: "twin".into(), ..fork.originals[0].clone() }];
    runtime().block_on(store.record(twin)).unwrap();

    let done = prune(&store, 30, 0, now);
    assert_eq!((done.conversations, done.originals), (1, 0), "twin goes, its original is the fork's too");
    assert!(store.conversation("trunk").unwrap().is_some());
    assert_eq!(store.messages("fork").unwrap().len(), 2);
    assert!(store.original_in(&id_of("fork"), "fork").unwrap().is_some());
    // Once the fork is old, both go, the fork first.
    let done = prune(&store, 30, 0, now + 31 * DAY);
    assert_eq!((done.conversations, done.originals), (2, 2));
    assert_eq!(counts(&store), [0; 9]);
    assert_eq!(files(dir.path()), 0);
}

#[test]
fn past_its_size_the_oldest_go_until_it_fits_but_none_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let now = 100 * DAY;
    for n in 0..6 {
        runtime().block_on(store.record(full(&format!("c{n}"), now - (10 - n) * DAY))).unwrap();
    }
    runtime().block_on(store.record(full("used", now - 60_000))).unwrap();
    let all = prune(&store, 0, u64::MAX, now).bytes_before;
    // A request goes on with the second oldest.
    assert!(store.locate(&chain_of_full("c1")).unwrap().is_some());
    let real = health::unix_ms();
    let done = prune(&store, 0, all / 2, real);
    assert!(done.bytes_after <= all / 2 && !done.over && done.conversations >= 3, "{done:?} of {all}");
    let left: Vec<String> = store.conversations(9).unwrap().into_iter().map(|c| c.id).collect();
    assert!(
        left.contains(&"c1".to_owned()) && !left.contains(&"c0".to_owned()) && !left.contains(&"c2".to_owned()),
        "{left:?}"
    );
    let why = store.pruned_conversation("c0").unwrap().unwrap().why;
    assert_eq!(why, format!("retention_bytes = {}", all / 2));
    drop(store);
    let before = Store::open(dir.path()).unwrap();
    let done = prune(&before, 0, 1, now);
    assert!(done.over, "{done:?}");
    let left: Vec<String> = before.conversations(9).unwrap().into_iter().map(|c| c.id).collect();
    assert_eq!(left, ["used"]);
}

#[test]
fn a_pass_that_was_killed_is_taken_up_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(full("c", DAY))).unwrap();
    let (result, history) = (store.result_path(&id_of("c")), store.history_path("c"));
    let kept = (fs::read(&result).unwrap(), fs::read(&history).unwrap());
    prune(&store, 1, 0, 9 * DAY);
    drop(store);
    // Killed behind the commit, before the files went.
    let killed = || {
        let conn = Connection::open(schema::database(dir.path())).unwrap();
        conn.execute("UPDATE pruned SET file = 1", []).unwrap();
        fs::write(&result, &kept.0).unwrap();
        fs::write(&history, &kept.1).unwrap();
    };
    killed();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(prune(&store, 0, 0, 9 * DAY).conversations, 0);
    assert!(!result.exists() && !history.exists());
    drop(store);
    // Killed there, and recorded again before the next pass: the file is the new one's.
    killed();
    let store = Store::open(dir.path()).unwrap();
    let mut again = full("c", 9 * DAY);
    again.view = None;
    runtime().block_on(store.record(again)).unwrap();
    assert!(!history.exists(), "nothing of it is folded yet");
    prune(&store, 0, 0, 9 * DAY);
    assert_eq!(fs::read(&result).unwrap(), kept.0);
}

#[test]
fn a_file_that_cannot_be_removed_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(full("c", DAY))).unwrap();
    let file = store.result_path(&id_of("c"));
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let error = runtime().block_on(store.prune(Retention { days: 1, bytes: 0 }, 9 * DAY)).unwrap_err().to_string();
    assert!(error.contains(&id_of("c")), "{error}");
    assert_eq!(store.original(&id_of("c")).unwrap(), None);
    fs::remove_dir_all(&file).unwrap();
    fs::write(&file, "left").unwrap();
    prune(&store, 1, 0, 9 * DAY);
    assert!(!file.exists());
}

#[test]
fn a_request_that_comes_at_the_same_moment_finds_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut found, mut lost) = (0, 0);
    for round in 0..60 {
        let id = format!("c{round}");
        let texts: Vec<String> = (0..6).map(|n| format!("{id} {n}")).collect();
        let mut first = batch(&id, &texts[..5], 0);
        first.conversation.as_mut().unwrap().now_ms = DAY;
        let mut with = original(&id, 1, &format!("text of {id}"));
        first.originals.push(with.clone());
        let chain = chain_of(&texts);
        first.view = Some((chain[4], view_of(5, vec![text_edit(1, &id)])));
        runtime.block_on(store.record(first)).unwrap();
        let pruning = runtime.spawn({
            let store = store.clone();
            async move { store.prune(Retention { days: 1, bytes: 0 }, 9 * DAY).await.unwrap() }
        });
        (0..round * 40).for_each(|n| {
            std::hint::black_box(n);
        });
        // As a request does it: locate, look for a view, record what is new; all of it where nothing was known.
        let located = store.locate(&chain).unwrap();
        let depth = located.as_ref().map_or(0, |l| l.depth);
        let view = store.view(&chain).unwrap();
        assert!(located.is_none() || view.is_some(), "{id}: known to depth {depth}, and no view");
        let mut next = batch(&id, &texts, depth);
        next.conversation.as_mut().unwrap().now_ms = 9 * DAY;
        if view.is_none() {
            with.at = 1;
            next.originals.push(with);
        }
        next.durable = true;
        runtime.block_on(store.record(next)).unwrap();
        runtime.block_on(pruning).unwrap();
        match view {
            Some(_) => found += 1,
            None => lost += 1,
        }
        assert_eq!(store.messages(&id).unwrap().len(), 6, "{id}, located {depth}");
        assert!(store.original(&original_id(&format!("text of {id}"))).unwrap().is_some(), "{id}, located {depth}");
        assert!(store.result_path(&original_id(&format!("text of {id}"))).exists(), "{id}");
    }
    eprintln!("{found} found, {lost} pruned first");
}

/// Names the folder to prune; only the child has it.
const DIR: &str = "WINDOWSILL_TEST_PRUNE_DIR";
const MANY: usize = 150;

fn small(n: usize) -> Batch {
    let (id, texts) = (format!("k{n:03}"), [format!("{n} asks"), format!("{n} answer"), format!("{n} thanks")]);
    let mut all = batch(&id, &texts, 0);
    all.conversation.as_mut().unwrap().now_ms = DAY + n as i64;
    all.originals = vec![original(&id, 1, &format!("text of {n}"))];
    all.view = Some((chain_of(&texts)[2], view_of(3, vec![fold(1, 2, &format!("brief {n}"))])));
    all
}

#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = Store::open(Path::new(&dir)).unwrap();
    println!("\nready");
    prune(&store, 1, 0, 9 * DAY);
    std::thread::park();
}

#[test]
fn killed_at_any_moment_a_conversation_is_whole_or_gone() {
    use std::hash::{BuildHasher, RandomState};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let mut partly = 0;
    for round in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for n in 0..MANY {
            runtime().block_on(store.record(small(n))).unwrap();
        }
        drop(store);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::prune::child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|l| l.unwrap() == "ready"));
        let wait = std::time::Duration::from_micros(RandomState::new().hash_one(round) % 120_000);
        let until = std::time::Instant::now() + wait;
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let integrity: String = store.inner.read(|c| c.query_row("PRAGMA integrity_check", [], |r| r.get(0))).unwrap();
        assert_eq!(integrity, "ok");
        let left: Vec<bool> = (0..MANY).map(|n| whole_or_gone(&store, n)).collect();
        let count = left.iter().filter(|there| **there).count();
        partly += usize::from(count > 0 && count < MANY);
        // The next pass takes it up, and leaves nothing behind.
        assert_eq!(prune(&store, 1, 0, 9 * DAY).conversations, count);
        assert_eq!((counts(&store), files(dir.path())), (vec![0; 9], 0));
    }
    assert!(partly > 0, "no kill fell into a pass");
}

/// Whether conversation `n` is there; all of it, or nothing but word of it.
fn whole_or_gone(store: &Store, n: usize) -> bool {
    let (id, record) = (format!("k{n:03}"), original_id(&format!("text of {n}")));
    let chain = chain_of(&[format!("{n} asks"), format!("{n} answer"), format!("{n} thanks")]);
    let there = store.conversation(&id).unwrap().is_some();
    let (file, history) = (store.result_path(&record).exists(), store.history_path(&id).exists());
    assert_eq!(store.messages(&id).unwrap().len(), if there { 3 } else { 0 }, "{id}");
    assert_eq!(store.original(&record).unwrap().is_some(), there, "{id}");
    assert_eq!(store.view(&chain).unwrap().is_some(), there, "{id}");
    assert_eq!(store.search(&format!("text of {n}"), None, 9).unwrap().iter().any(|h| h.exact && h.at == 1), there);
    assert_eq!(store.pruned_original(&record).unwrap().is_none(), there, "{id}");
    if there {
        assert!(file && history, "{id}");
    } else {
        let sql = "SELECT count(*) FROM pruned WHERE file = 1 AND name IN (?1, ?2)";
        let to_go: usize = store.inner.read(|c| c.query_row(sql, [&id, &record], |r| r.get(0))).unwrap();
        assert!(to_go >= usize::from(file) + usize::from(history), "{id}: a file that nothing speaks of");
    }
    there
}

/// At every single write of retention: what is left is opened, and pruned again.
#[test]
fn a_crash_while_pruning_leaves_all_of_a_conversation_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, told) = mpsc::channel();
    let from = dir.path().to_owned();
    let watcher = move |at: &'static str| {
        let left = tempfile::tempdir().unwrap();
        super::crash::copy(&from, left.path());
        tell.send((at, left)).unwrap();
    };
    let store = Store::open(dir.path()).unwrap();
    let now = 100 * DAY;
    // One of them is so large that it is kept in parts.
    let with_large = |id: &str, now_ms: i64| {
        let mut all = full(id, now_ms);
        all.originals.push(original(id, 1, &format!("large of {id}\n{}", "line of it\n".repeat(100_000))));
        all
    };
    runtime().block_on(store.record(with_large("young", now - DAY))).unwrap();
    let alone = counts(&store);
    runtime().block_on(store.record(with_large("old", now - 31 * DAY))).unwrap();
    let both = counts(&store);
    assert!(both[8] > alone[8] && alone[8] > 0, "{both:?}");
    drop(store);
    let store = Store::open_watched(dir.path(), Arc::new(watcher)).unwrap();
    assert_eq!(prune(&store, 30, 0, now).conversations, 1);
    drop(store);
    let mut points = Vec::new();
    for (at, left) in told {
        let store = Store::open(left.path()).unwrap();
        let there = store.conversation("old").unwrap().is_some();
        // Edits that no view has go last.
        let rows = |of: &[i64]| [&of[..5], &of[6..]].concat();
        assert_eq!(rows(&counts(&store)), rows(if there { &both } else { &alone }), "{at}");
        assert_eq!(there, store.original(&id_of("old")).unwrap().is_some(), "{at}");
        assert!(!there || store.result_path(&id_of("old")).exists(), "{at}: its file is gone before it");
        prune(&store, 30, 0, now);
        assert_eq!((store.conversation("old").unwrap(), files(left.path())), (None, 3), "{at}");
        assert_eq!(counts(&store), alone, "{at}: the next pass leaves nothing behind");
        assert_eq!(store.messages("young").unwrap().len(), 4, "{at}");
        assert!(store.original(&id_of("young")).unwrap().is_some(), "{at}");
        points.push(at);
    }
    points.dedup();
    for at in ["pruning: before the commit", "pruning: committed", "a file: before it is removed", "a file: removed"] {
        assert!(points.contains(&at), "{at} in {points:?}");
    }
}
