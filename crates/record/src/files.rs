//! The readable files beside the database: names that cannot leave their folder, writes that are whole or not there.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windowsill_core::conversation::Digest;

use super::schema::{file_error, private_dir, private_file};
use super::types::Error;
use super::watcher::Watch;

/// Longest file name that is made of an id, without the ending.
const NAME: usize = 100;

/// Start of the name of a file that is being written.
const UNFINISHED: &str = ".tmp-";

/// An unfinished file older than this was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The two folders of readable files.
#[derive(Debug, Clone)]
pub(super) struct Files {
    results: PathBuf,
    histories: PathBuf,
    /// Is told of each write, those to the database included.
    pub(super) watch: Watch,
}

impl Files {
    /// Names the folders; creates nothing.
    pub(super) fn new(data_dir: &Path) -> Files {
        Files {
            results: data_dir.join("large_tool_results"),
            histories: data_dir.join("conversation_history"),
            watch: Watch::default(),
        }
    }

    /// The same, with somebody who is told of each write.
    pub(super) fn watched(self, watch: Watch) -> Files {
        Files { watch, ..self }
    }

    /// Creates the folders and clears away what a killed process left unfinished.
    pub(super) fn create(&self) -> Result<(), Error> {
        private_dir(&self.results)?;
        private_dir(&self.histories)?;
        for entry in fs::read_dir(&self.results).map_err(|e| file_error(&self.results, e))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
                if age.is_some_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }

    /// Where an original's text is.
    pub(super) fn result(&self, id: &str) -> PathBuf {
        self.results.join(format!("{}.txt", file_name(id)))
    }

    /// Where a conversation's folded messages are.
    pub(super) fn history(&self, conversation: &str) -> PathBuf {
        self.histories.join(format!("{}.md", file_name(conversation)))
    }

    /// Writes an original's text, unless it is there already.
    pub(super) fn write_result(&self, id: &str, text: &[u8], durable: bool) -> Result<(), Error> {
        let path = self.result(id);
        let there = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() == text.len() as u64)
            && fs::read(&path).is_ok_and(|old| old == text);
        let write = || {
            if there {
                // It may have been written by a batch that was not durable.
                return if durable { sync(&File::open(&path)?, &self.results) } else { Ok(()) };
            }
            let unfinished = self.unfinished();
            self.watch.at("a result: before its file");
            let written = private_file().write(true).create_new(true).open(&unfinished).and_then(|mut file| {
                self.watch.at("a result: its file is empty");
                file.write_all(text)?;
                self.watch.at("a result: written");
                if durable { file.sync_all() } else { Ok(()) }
            });
            let named = written.and_then(|()| fs::rename(&unfinished, &path));
            self.watch.at("a result: named");
            if named.is_err() {
                let _ = fs::remove_file(&unfinished);
            }
            named?;
            if durable { sync_dir(&self.results) } else { Ok(()) }
        };
        write().map_err(|e| file_error(&path, e))
    }

    /// Removes a file; returns its bytes. One that is not there is no error.
    pub(super) fn remove(&self, path: &Path) -> io::Result<u64> {
        let bytes = fs::metadata(path).map_or(0, |m| m.len());
        self.watch.at("a file: before it is removed");
        let removed = fs::remove_file(path);
        self.watch.at("a file: removed");
        match removed {
            Ok(()) => Ok(bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for dir in [&self.results, &self.histories] {
            for entry in fs::read_dir(dir).map_err(|e| file_error(dir, e))?.flatten() {
                sum += entry.metadata().map_or(0, |m| m.len());
            }
        }
        Ok(sum)
    }

    /// Opens a history for appending after its first `bytes`; what follows them was never committed and goes.
    pub(super) fn open_history(&self, conversation: &str, bytes: u64) -> Result<(PathBuf, File, u64), Error> {
        let path = self.history(conversation);
        let open = || {
            let mut file = private_file().read(true).write(true).create(true).truncate(false).open(&path)?;
            if file.metadata()?.len() > bytes {
                file.set_len(bytes)?;
            }
            self.watch.at("a history: open");
            let end = file.seek(SeekFrom::End(0))?;
            Ok((file, end))
        };
        let (file, end) = open().map_err(|e| file_error(&path, e))?;
        Ok((path, file, end))
    }

    /// Makes sure that a history survives a power cut.
    pub(super) fn sync_history(&self, file: &File) -> io::Result<()> {
        sync(file, &self.histories)
    }

    fn unfinished(&self) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        self.results.join(format!("{UNFINISHED}{}-{count}", process::id()))
    }
}

fn sync(file: &File, dir: &Path) -> io::Result<()> {
    file.sync_all()?;
    sync_dir(dir)
}

/// A new name is only safe when its folder is.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// A file name for an id that anyone may have chosen: itself where it is harmless, else with a `%` in it, so that no
/// two ids share a name.
fn file_name(id: &str) -> Cow<'_, str> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if !id.is_empty() && id.len() <= NAME && !id.starts_with('.') && id.as_bytes().iter().all(plain) {
        return Cow::Borrowed(id);
    }
    if id.is_empty() {
        return Cow::Borrowed("%");
    }
    let mut name = String::new();
    for (i, byte) in id.bytes().enumerate() {
        if plain(&byte) && !(i == 0 && byte == b'.') {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
        if name.len() > NAME {
            name.truncate(NAME - 34);
            // `%%` never comes of the loop above, so a cut name is unlike every whole one.
            return Cow::Owned(format!("{name}%%{}", Digest::of(id.as_bytes()).hex()));
        }
    }
    Cow::Owned(name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        let long = "a".repeat(101);
        let longer = "a".repeat(102);
        let accents = "é".repeat(60);
        let cases = [
            ("abc-1.2_X", "abc-1.2_X"),
            ("", "%"),
            (".", "%2E"),
            ("..", "%2E."),
            (".hidden", "%2Ehidden"),
            ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
            ("a/b", "a%2Fb"),
            ("a\\b", "a%5Cb"),
            ("a%2Fb", "a%252Fb"),
            ("nul\0", "nul%00"),
            ("line\nbreak", "line%0Abreak"),
            ("日", "%E6%97%A5"),
        ];
        let mut seen = HashSet::new();
        for (id, want) in cases {
            assert_eq!(file_name(id), want);
            assert!(seen.insert(want.to_owned()));
        }
        for id in [&long, &longer, &accents] {
            let name = file_name(id).into_owned();
            assert!(name.len() <= NAME, "{name}");
            assert!(seen.insert(name));
        }
        let files = Files::new(Path::new("/data"));
        assert_eq!(files.history("../x"), Path::new("/data/conversation_history/%2E.%2Fx.md"));
        assert_eq!(files.result("/etc/passwd"), Path::new("/data/large_tool_results/%2Fetc%2Fpasswd.txt"));
    }

    #[test]
    fn a_result_is_written_once_and_mended() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        files.create().unwrap();
        files.write_result("r1", b"abc", true).unwrap();
        let written = || fs::metadata(files.result("r1")).unwrap().modified().unwrap();
        let first = written();
        files.write_result("r1", b"abc", false).unwrap();
        assert_eq!(written(), first);
        fs::write(files.result("r1"), b"ab").unwrap();
        files.write_result("r1", b"abc", false).unwrap();
        assert_eq!(fs::read(files.result("r1")).unwrap(), b"abc");
        assert_eq!(fs::read_dir(&files.results).unwrap().count(), 1);
    }

    #[test]
    fn what_was_not_committed_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        files.create().unwrap();
        fs::write(files.history("c"), b"committed, not").unwrap();
        let (_, mut file, end) = files.open_history("c", 9).unwrap();
        assert_eq!(end, 9);
        file.write_all(b"!").unwrap();
        assert_eq!(fs::read(files.history("c")).unwrap(), b"committed!");
    }
}
