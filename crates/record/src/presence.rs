//! Whether another process writes the same record: each that does holds a shared lock on a file of `data_dir`, and
//! retention, which may take what the other remembers in RAM, asks for it alone.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::schema::{file_error, private_file};
use super::types::Error;

/// The file, beside the database. It is empty, and may be removed when no windowsill runs.
const NAME: &str = "in_use.lock";

/// How long a start waits for a step of another process's retention, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says, as long as it lives, that this process writes the record.
#[derive(Debug)]
pub(super) struct Presence {
    /// `None` on a file system without locks: nothing is known of others there, as before a second one is started.
    file: Option<File>,
}

impl Presence {
    /// Notes that this process is there.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn new(data_dir: &Path) -> Result<Presence, Error> {
        let path = data_dir.join(NAME);
        let file = private_file().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(|e| file_error(&path, e))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Ok(Presence { file: Some(file) }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
                // One that is stopped half-way holds nobody up: what it removes, it removes row by row.
                Err(TryLockError::WouldBlock) => return Ok(Presence { file: Some(file) }),
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(%error, path = %path.display(), "no locks on this file system");
                    return Ok(Presence { file: None });
                }
            }
        }
    }

    /// Acts where no other process writes the record, and keeps others from starting meanwhile; `None` where one does.
    pub(super) fn alone<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let Some(file) = &self.file else { return Some(act()) };
        // Locks are not turned into each other in one step everywhere: given up, then taken anew.
        let alone = file.unlock().is_ok() && file.try_lock().is_ok();
        let done = alone.then(act);
        if let Err(error) = file.unlock().and_then(|()| file.lock_shared()) {
            tracing::warn!(%error, "this process can no longer say that it writes the record");
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_or_not() {
        let dir = tempfile::tempdir().unwrap();
        // Two handles are to each other as two processes are.
        let first = Presence::new(dir.path()).unwrap();
        assert_eq!(first.alone(|| 1), Some(1));
        let second = Presence::new(dir.path()).unwrap();
        assert_eq!((first.alone(|| 1), second.alone(|| 2)), (None, None));
        assert_eq!((first.alone(|| 1), second.alone(|| 2)), (None, None), "both are still there");
        drop(second);
        assert_eq!(first.alone(|| 3), Some(3));
        // Whoever comes while one is alone waits until it is done.
        let third = first.alone(|| {
            let path = dir.path().to_owned();
            let third = thread::spawn(move || Presence::new(&path).unwrap());
            thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            third
        });
        let third = third.unwrap().join().unwrap();
        assert_eq!(third.alone(|| 4), None);
    }
}
