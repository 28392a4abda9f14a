//! A crash at every single write. What is on the disk then is copied, opened as after a restart, and looked at: nothing that
//! was answered is lost, nothing is there by half, and the record goes on.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::kill::{nth, verify};
use super::*;

/// Batches of the session: enough for folds that append to a history.
const BATCHES: usize = 16;

/// Cuts of each commit.
const CUTS: usize = 6;

/// Where a write-ahead log has its first frame, and how long a frame is (<https://sqlite.org/fileformat2.html#walformat>).
const WAL_HEAD: u64 = 32;
const WAL_FRAME: u64 = 24 + 4096;

/// What a process that dies at one moment leaves, and what it had answered.
struct Left {
    dir: tempfile::TempDir,
    at: &'static str,
    /// Batches that were answered.
    answered: usize,
}

impl Left {
    fn of(from: &Path, at: &'static str, answered: usize) -> Left {
        let dir = folder();
        copy(from, dir.path());
        Left { dir, at, answered }
    }

    fn log(&self) -> std::path::PathBuf {
        let mut path = schema::database(self.dir.path()).into_os_string();
        path.push("-wal");
        path.into()
    }

    fn database(&self) -> Vec<u8> {
        fs::read(schema::database(self.dir.path())).unwrap()
    }

    fn log_size(&self) -> u64 {
        fs::metadata(self.log()).map_or(0, |m| m.len())
    }

    /// Opens it and looks, then goes on where it ends and looks again.
    fn look(&self) {
        let mut next = 0;
        if self.answered > 0 {
            next = verify(self.dir.path(), self.answered - 1);
        } else if Store::open(self.dir.path()).unwrap().conversation("c").unwrap().is_some() {
            next = verify(self.dir.path(), 0);
        }
        let store = Store::open(self.dir.path()).unwrap();
        runtime().block_on(store.record(nth(next).1)).unwrap();
        drop(store);
        assert_eq!(verify(self.dir.path(), next), next + 1, "it goes on");
    }
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else if !path.to_string_lossy().ends_with("-shm") {
            // The index of the log in shared memory dies with its process.
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// A folder in memory where there is one: what is on the disk when a process dies is the same there.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Plays the session. `each` gets what is left by a crash at each write.
fn play(mut each: impl FnMut(Left) + Send) {
    let dir = folder();
    let answered = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::sync_channel(0);
    let (from, seen) = (dir.path().to_owned(), Arc::clone(&answered));
    let watcher = move |at| {
        let left = Left::of(&from, at, seen.load(Ordering::SeqCst));
        // Nobody listens any more once the last batch is answered.
        let _ = tell.send(left);
    };
    let store = Store::open_watched(dir.path(), Arc::new(watcher)).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || told.into_iter().for_each(&mut each));
        runtime().block_on(async {
            for i in 0..BATCHES {
                // Both ways of writing, and groups of several batches.
                if i % 4 == 1 {
                    store.record_later(nth(i).1).unwrap();
                    continue;
                }
                store.record(nth(i).1).await.unwrap();
                answered.store(i + 1, Ordering::SeqCst);
            }
        });
        drop(store);
    });
}

#[test]
fn a_crash_at_any_write_loses_nothing_that_was_answered() {
    let mut points = std::collections::BTreeMap::new();
    play(|left| {
        left.look();
        *points.entry(left.at).or_insert(0) += 1;
    });
    let expected = [
        "a group: answered",
        "a group: a batch is in",
        "a group: begun",
        "a group: committed",
        "a history: open",
        "a history: some of it is written",
        "a history: written",
        "a message: in",
        "a result: before its file",
        "a result: its file is empty",
        "a result: named",
        "a result: written",
    ];
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(points.keys().copied().collect::<Vec<_>>(), expected, "{points:?}");
}

/// A commit is itself many writes: the pages go to the write-ahead log one by one. A crash may come between any two, and in
/// the middle of one.
#[test]
fn a_crash_inside_a_commit_loses_nothing_that_was_answered() {
    let mut before: Option<Left> = None;
    let mut cuts = 0;
    play(|left| {
        if let Some(before) = before.as_ref().filter(|_| left.at == "a group: committed")
            && before.database() == left.database()
        {
            let (from, to) = (before.log_size().max(WAL_HEAD), left.log_size());
            let frames: Vec<u64> = (from..to).step_by(WAL_FRAME as usize).collect();
            // Some of them: each is a whole record to look at.
            for at in frames.iter().step_by(frames.len().div_ceil(CUTS)) {
                // Between two, after the head of one, and in its middle.
                let cut = at + [0, 24, WAL_FRAME / 2][cuts % 3];
                let torn = Left::of(left.dir.path(), left.at, left.answered);
                fs::OpenOptions::new().write(true).open(torn.log()).unwrap().set_len(cut).unwrap();
                torn.look();
                cuts += 1;
            }
        }
        before = Some(left);
    });
    assert!(cuts > BATCHES, "{cuts} cuts");
}
