//! What is written while the database of a shared record is away, and kills at each step on the way into it: all is there in the end,
//! once.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::crash::copy;
use super::postgres::Server;
use super::*;
use crate::log::memory::Memory;
use crate::watcher::Watch;

/// Names the folder and the database; only the child has them.
const DIR: &str = "WINDOWSILL_TEST_OUTBOX_DIR";
const URL: &str = "WINDOWSILL_TEST_OUTBOX_URL";

fn timed() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn in_memory() -> (Arc<Memory>, Shared) {
    let memory = Arc::new(Memory::default());
    (Arc::clone(&memory), Shared { logs: memory, name: "main".into() })
}

/// Message `i` of the one growing history, with an event that has its number.
fn nth(i: usize) -> Batch {
    let texts: Vec<String> = (0..=i).map(|i| format!("message {i}")).collect();
    let event = Event { now_ms: 0, conversation: Some("c".into()), kind: "n".into(), data: json!(i) };
    Batch { events: vec![event], durable: i.is_multiple_of(2), ..batch("c", &texts, i) }
}

fn depth(store: &Store, of: usize) -> usize {
    let texts: Vec<String> = (0..of).map(|i| format!("message {i}")).collect();
    store.locate(&chain_of(&texts)).unwrap().map_or(0, |located| located.depth)
}

/// The numbers of all events.
fn numbers(store: &Store) -> Vec<u64> {
    let mut all: Vec<u64> = store
        .trace()
        .since(0, usize::MAX >> 1, &EventFilter::default())
        .unwrap()
        .iter()
        .filter_map(|event| event.data.as_u64())
        .collect();
    all.sort_unstable();
    all
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < late, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the first `count` batches are in the record, and looks whether each is there once.
fn all_once(store: &Store, count: usize) {
    until("it was never written", || numbers(store).len() >= count);
    assert_eq!(numbers(store), (0..count as u64).collect::<Vec<_>>());
    assert_eq!((depth(store, count + 3), store.messages("c").unwrap().len()), (count, count));
}

/// A process that dies at a step leaves a copy of its folder: opened, it has all that was answered, once, whether the database is there
/// then or not; and both it and the one that goes on write what waits for the database, which has it once.
#[test]
fn a_kill_at_any_step_loses_nothing_and_doubles_nothing() {
    const ALL: usize = 14;
    let (memory, shared) = in_memory();
    let dir = tempfile::tempdir().unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::sync_channel(0);
    let (looked, seen_to) = mpsc::channel::<()>();
    let (from, seen, seen_to) = (dir.path().to_owned(), Arc::clone(&answered), Mutex::new(seen_to));
    // The process stands still while its copy is looked at.
    let watcher: Watcher = Arc::new(move |at| {
        let left = tempfile::tempdir().unwrap();
        copy(&from, left.path());
        if tell.send((left, at, seen.load(Ordering::SeqCst))).is_ok() {
            let _ = seen_to.lock().recv();
        }
    });
    let store = open_with(dir.path(), Watch::by(watcher), Some(&shared)).unwrap();
    let (memory, shared) = (&memory, &shared);
    let steps = thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let mut steps = std::collections::BTreeMap::new();
            for (left, at, answered) in told {
                *steps.entry(at).or_insert(0) += 1;
                let is_away = memory.away.load(Ordering::SeqCst);
                let store = Store::open_shared(left.path(), shared).unwrap();
                assert!(depth(&store, ALL) >= answered, "{at}: {} of {answered}", depth(&store, ALL));
                if !is_away {
                    let there = depth(&store, ALL);
                    all_once(&store, there);
                }
                drop(store);
                let _ = looked.send(());
            }
            steps
        });
        timed().block_on(async {
            for i in 0..ALL {
                memory.away.store((5..9).contains(&i) || i == 12, Ordering::SeqCst);
                if i % 4 == 2 {
                    store.record_soon(nth(i)).await.unwrap();
                } else {
                    store.keep(nth(i)).await.unwrap();
                    answered.store(i + 1, Ordering::SeqCst);
                }
            }
        });
        all_once(&store, ALL);
        drop(store);
        looks.join().unwrap()
    });
    let needed = ["the log: written", "a replica: before the commit", "a replica: committed", "the outbox: written"];
    for step in needed {
        assert!(steps.get(step).is_some_and(|count| *count > 1), "{step}: {steps:?}");
    }
    let fresh = tempfile::tempdir().unwrap();
    all_once(&Store::open_shared(fresh.path(), shared).unwrap(), ALL);
}

#[test]
fn what_waits_is_seen_and_outlives_a_restart_without_the_database() {
    let (memory, shared) = in_memory();
    let dir = tempfile::tempdir().unwrap();
    let runtime = timed();
    let open = || Store::open_shared(dir.path(), &shared).unwrap();
    runtime.block_on(open().record(nth(0))).unwrap();
    memory.away.store(true, Ordering::SeqCst);
    for i in 1..6 {
        // Another process each time.
        let store = open();
        assert_eq!(depth(&store, 9), i, "the next request goes on from it");
        let began = Instant::now();
        runtime.block_on(store.keep(nth(i))).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "nobody waits for the database");
    }
    memory.away.store(false, Ordering::SeqCst);
    let store = open();
    all_once(&store, 6);
    runtime.block_on(store.record(nth(6))).unwrap();
    all_once(&store, 7);
    assert!(store.inner.recent.lock().is_settled());
    let left: i64 = store.inner.read(|c| c.query_row("SELECT count(*) FROM outbox", [], |r| r.get(0))).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn what_waits_is_written_in_order_and_a_view_that_came_second_is_not() {
    let (memory, shared) = in_memory();
    let (d1, d2) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [one, other] = [&d1, &d2].map(|dir| Store::open_shared(dir.path(), &shared).unwrap());
    let texts = ["message 0", "message 1"];
    let view = |brief: &str| Some((chain_of(&texts)[1], view_of(2, vec![fold(0, 1, brief)])));
    let runtime = timed();
    runtime.block_on(async {
        one.record(nth(0)).await.unwrap();
        memory.away.store(true, Ordering::SeqCst);
        let seen = one.seen();
        one.keep(nth(1)).await.unwrap();
        let refused = one.record_over(Batch { view: view("late"), ..Batch::default() }, seen).await;
        assert!(matches!(&refused, Err(error) if error.is_away()), "{refused:?}");
        assert!(
            matches!(one.delete("c", 1 << 40).await, Err(error) if error.is_away()),
            "nothing is removed meanwhile"
        );
        one.keep(nth(2)).await.unwrap();
        // The other one has the database a moment before.
        memory.away.store(false, Ordering::SeqCst);
        other.elsewhere().caught_up().await;
        let first = other.record_over(Batch { view: view("first"), ..batch("c", &texts, 1) }, other.seen()).await;
        assert!(matches!(first, Ok(()) | Err(Error::Overtaken)), "{first:?}");
    });
    until("it was never written", || numbers(&one) == [0, 1, 2]);
    runtime.block_on(other.elsewhere().caught_up());
    all_once(&other, 3);
    for store in [&one, &other] {
        let stands = store.view(&chain_of(&texts)).unwrap().unwrap().1;
        assert!(stands.edits == [fold(0, 1, "first")] || stands.edits == [fold(0, 1, "late")], "{stands:?}");
    }
    let views = [&one, &other].map(|store| store.view(&chain_of(&texts)).unwrap().unwrap().1);
    assert_eq!(views[0], views[1]);
}

#[test]
fn a_record_of_its_own_takes_in_what_waited() {
    let (memory, shared) = in_memory();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_shared(dir.path(), &shared).unwrap();
    let runtime = timed();
    runtime.block_on(store.record(nth(0))).unwrap();
    memory.away.store(true, Ordering::SeqCst);
    (1..4).for_each(|i| runtime.block_on(store.keep(nth(i))).unwrap());
    drop(store);
    all_once(&Store::open(dir.path()).unwrap(), 4);
    all_once(&Store::open(dir.path()).unwrap(), 4);
}

#[test]
fn child() {
    let (Some(dir), Some(url)) = (env::var_os(DIR), env::var_os(URL)) else { return };
    let store = Store::open_shared(Path::new(&dir), &Shared::postgres(url.to_str().unwrap(), "main").unwrap()).unwrap();
    let first = depth(&store, 10_000);
    timed().block_on(async {
        for i in first..first + 10_000 {
            store.keep(nth(i)).await.unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "\nack {i}").unwrap();
            out.flush().unwrap();
        }
    });
}

#[test]
fn a_process_that_is_killed_while_postgresql_is_away_loses_nothing_that_was_answered() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut acked = 0;
    for round in 0..6 {
        // The database goes while the process writes, or is away from the beginning.
        match round % 3 {
            1 => server.down(),
            0 if round > 0 => server.up(),
            _ => {}
        }
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "tests::outbox::child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acks = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("ack ").and_then(|n| n.parse().ok()));
        for n in 0..20 + round {
            acked = acks.next().expect("the child goes on until it is killed");
            if (round, n) == (3, 7) {
                server.down();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        acked = acks.last().unwrap_or(acked);
        if round == 3 {
            server.up();
        }
    }
    server.up();
    let store = Store::open_shared(dir.path(), &Shared::postgres(&server.url(), "main").unwrap()).unwrap();
    let count = depth(&store, 10_000);
    assert!(count > acked, "{count} messages, and {acked} was answered");
    all_once(&store, count);
    let fresh = tempfile::tempdir().unwrap();
    all_once(&Store::open_shared(fresh.path(), &Shared::postgres(&server.url(), "main").unwrap()).unwrap(), count);
}
