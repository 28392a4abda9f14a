//! A process killed at any moment loses nothing that was answered, and after restart finds the same views.
//!
//! The test starts itself as a child that writes and prints what was answered; kills it; and looks.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

/// Names the folder to write to; only the child has it.
const DIR: &str = "WINDOWSILL_TEST_KILL_DIR";
/// First batch to write.
const START: &str = "WINDOWSILL_TEST_KILL_START";

/// How many times a child is killed; 50 unless it is set.
const KILLS: &str = "WINDOWSILL_KILLS";
/// Kills that one record lives through. Every check reads the whole record, so the cost grows with the square of its life.
const KILLS_A_RECORD: usize = 10;

/// Message `i` of the one growing history.
fn text(i: usize) -> String {
    format!("message {i} {}", "word ".repeat(i * 37 % 900))
}

/// Batch `i` adds two messages, an original, and a view that folds everything but the last four messages now and then.
pub(super) fn nth(i: usize) -> (Vec<Digest>, Batch) {
    let texts: Vec<String> = (0..2 * i + 2).map(text).collect();
    let chain = chain_of(&texts);
    let mut batch = batch("c", &texts, 2 * i);
    batch.originals.push(original("c", 2 * i, &texts[2 * i]));
    batch.view = Some((chain[2 * i + 1], nth_view(i)));
    batch.events.push(Event { now_ms: 0, conversation: None, kind: "n".into(), data: json!(i) });
    batch.durable = i.is_multiple_of(3);
    (chain, batch)
}

fn nth_view(i: usize) -> View {
    let folded = (2 * i / 10 * 10).saturating_sub(4);
    let mut edits = Vec::new();
    if folded > 1 {
        edits.push(fold(1, folded, &format!("brief of {folded}")));
    }
    edits.extend((folded / 2 + 1..=i).map(|n| text_edit(2 * n, &text(2 * n))));
    view_of(2 * i + 2, edits)
}

#[test]
fn child() {
    let (Some(dir), Some(start)) = (env::var_os(DIR), env::var_os(START)) else { return };
    let start: usize = start.to_str().unwrap().parse().unwrap();
    let store = Store::open(Path::new(&dir)).unwrap();
    runtime().block_on(async {
        for i in start..start + 10_000 {
            let (_, batch) = nth(i);
            // Both ways of writing, and groups of several batches.
            if i % 4 == 1 {
                store.record_later(batch).unwrap();
                continue;
            }
            store.record(batch).await.unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "\nack {i}").unwrap();
            out.flush().unwrap();
        }
    });
}

#[test]
fn nothing_answered_is_lost_by_a_kill() {
    let kills =
        env::var_os(KILLS).map_or(50, |n| n.to_str().and_then(|n| n.parse().ok()).expect("the number of kills"));
    for first in (0..kills).step_by(KILLS_A_RECORD) {
        let dir = tempfile::tempdir().unwrap();
        let rounds = KILLS_A_RECORD.min(kills - first);
        let mut start = 0;
        for round in first..first + rounds {
            let random = RandomState::new().hash_one(round);
            let acked = run_and_kill(dir.path(), start, random);
            // What was committed without an answer stays as well: the next child goes on after it.
            start = verify(dir.path(), acked);
        }
        assert!(start > rounds, "the child wrote");
    }
}

/// Runs the child until it has answered a few times, and a random moment longer. Returns the last batch answered.
fn run_and_kill(dir: &Path, start: usize, random: u64) -> usize {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "tests::kill::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(START, start.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acks = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("ack ").and_then(|n| n.parse().ok()));
    let mut last = start;
    for _ in 0..1 + random % 6 {
        last = acks.next().expect("the child goes on until it is killed");
    }
    // A commit takes about a millisecond: the kill falls anywhere in one.
    let until = std::time::Instant::now() + std::time::Duration::from_micros(random / 7 % 3000);
    while std::time::Instant::now() < until {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    acks.last().unwrap_or(last)
}

/// Everything up to batch `acked` is there, and everything that is there is whole. Returns the number of batches.
pub(super) fn verify(dir: &Path, acked: usize) -> usize {
    let store = Store::open(dir).unwrap();
    let integrity: String = store.inner.read(|c| c.query_row("PRAGMA integrity_check", [], |r| r.get(0))).unwrap();
    assert_eq!(integrity, "ok");
    let rows = store.messages("c").unwrap();
    assert!(rows.len() >= 2 * acked + 2, "{} messages of {}", rows.len(), 2 * acked + 2);
    assert!(rows.len().is_multiple_of(2), "half a batch");
    for i in 0..rows.len() / 2 {
        let (chain, batch) = nth(i);
        assert_eq!(store.locate(&chain).unwrap().unwrap().depth, 2 * i + 2);
        let (at, view) = store.view(&chain).unwrap().unwrap();
        assert_eq!((at, &*view), (2 * i + 1, &nth_view(i)));
        for (node, row) in batch.nodes.iter().zip(&rows[2 * i..]) {
            assert_eq!((&node.raw, node.chain, node.digest), (&row.raw, row.chain, row.digest));
        }
        let kept = store.original(&batch.originals[0].id).unwrap().unwrap();
        assert_eq!(kept, batch.originals[0]);
        assert_eq!(fs::read_to_string(store.result_path(&kept.id)).unwrap(), kept.text);
    }
    let events = store.trace().since(0, usize::MAX >> 1, &EventFilter::default()).unwrap();
    let numbers: Vec<u64> = events.iter().map(|e| e.data.as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..rows.len() as u64 / 2).collect::<Vec<_>>());
    verify_history(&store, rows.len() / 2 - 1);
    rows.len() / 2
}

/// Every folded message stands in the file once, in order, up to the newest fold. The file may hold more: what a
/// killed process had appended before its commit is cut off by the next append.
fn verify_history(store: &Store, last: usize) {
    let Some(Edit::Fold { to, .. }) = nth_view(last).edits.into_iter().next() else { return };
    let bytes: usize = store
        .inner
        .read(|c| c.query_row("SELECT history_bytes FROM conversation WHERE name = 'c'", [], |r| r.get(0)))
        .unwrap();
    let file = fs::read(store.history_path("c")).unwrap();
    let committed = std::str::from_utf8(&file[..bytes]).unwrap();
    let headings: Vec<usize> = committed
        .lines()
        .filter_map(|l| l.strip_prefix("## ").and_then(|l| l.split(' ').next()).and_then(|n| n.parse().ok()))
        .collect();
    assert_eq!(headings, (1..to).collect::<Vec<_>>());
}
