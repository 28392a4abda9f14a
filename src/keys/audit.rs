//! The audit log: who read or changed what, and when. One line of JSON each, in `audit.jsonl` of the data folder. The file is only
//! appended to, and opened for each line, so that it may be moved away at any time.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file's name.
pub const FILE: &str = "audit.jsonl";

/// The same read by the same key is one line within so many milliseconds: open pages ask again and again.
const AGAIN_MS: i64 = 60_000;

/// So many reads are known again.
const KNOWN: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// One line. It names no text of anybody: no query, no title.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// When (Unix time in milliseconds).
    pub at_ms: i64,
    /// The key's name; `None` where no known key was sent.
    pub key: Option<String>,
    /// The scope whose record was looked into or changed.
    pub scope: Option<String>,
    /// The HTTP method.
    pub method: String,
    /// The path as it is described, with `{id}` for what it names; of MCP also the tool.
    pub path: String,
    /// The conversation, or the original, that it was about.
    pub of: Option<String>,
    /// The status of the answer.
    pub status: u16,
}

/// The log of one data folder.
#[derive(Debug)]
pub struct Audit {
    file: PathBuf,
    reads: Mutex<LruCache<Entry, i64>>,
}

impl Audit {
    /// The log in a data folder.
    pub fn of(data_dir: &Path) -> Audit {
        Audit { file: data_dir.join(FILE), reads: Mutex::new(LruCache::new(KNOWN)) }
    }

    /// Whether an entry is the read that was noted a moment ago. One that changes something is always new.
    pub fn is_known(&self, entry: &Entry) -> bool {
        // What is refused is noted once a minute, too: whoever has no key may not fill the disk.
        if !matches!(entry.method.as_str(), "GET" | "HEAD") && entry.status < 400 {
            return false;
        }
        let mut reads = self.reads.lock();
        let same = Entry { at_ms: 0, ..entry.clone() };
        if reads.get(&same).is_some_and(|at| (0..AGAIN_MS).contains(&(entry.at_ms - at))) {
            return true;
        }
        reads.put(same, entry.at_ms);
        false
    }

    /// Appends an entry. It blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&self.file)?.write_all(&line)
    }
}

/// The last entries in the log of a data folder, the oldest of them first; `of_key`: of one key alone. A line that is none is left
/// out: a full disk may have cut it. It blocks.
///
/// # Errors
/// When the file cannot be read. Where there is none yet, there are no entries.
pub fn last(data_dir: &Path, most: usize, of_key: Option<&str>) -> io::Result<Vec<Value>> {
    let file = match crate::files::open(&data_dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut found = std::collections::VecDeque::new();
    for line in BufReader::new(file).split(b'\n') {
        let Ok(entry) = serde_json::from_slice::<Value>(&line?) else { continue };
        if of_key.is_some_and(|key| entry["key"] != key) {
            continue;
        }
        found.push_back(entry);
        if found.len() > most {
            found.pop_front();
        }
    }
    Ok(found.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at_ms: i64, method: &str, of: &str) -> Entry {
        let (key, scope) = (Some("ann".to_owned()), Some("ann".to_owned()));
        Entry { at_ms, key, scope, method: method.into(), path: "/p/{id}".into(), of: Some(of.into()), status: 200 }
    }

    #[test]
    fn a_read_that_comes_again_is_one_line_and_a_change_is_always_one() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::of(dir.path());
        assert_eq!(last(dir.path(), 9, None).unwrap(), Vec::<Value>::new());
        let all = [
            (entry(1, "GET", "c1"), false),
            (entry(2, "GET", "c1"), true),
            (entry(3, "GET", "c2"), false),
            (entry(4, "POST", "c1"), false),
            (entry(5, "POST", "c1"), false),
            (entry(60_002, "GET", "c1"), false),
        ];
        for (entry, known) in &all {
            assert_eq!(audit.is_known(entry), *known, "{entry:?}");
            if !known {
                audit.note(entry).unwrap();
            }
        }
        let at = |found: Vec<Value>| found.iter().map(|e| e["at_ms"].as_i64().unwrap()).collect::<Vec<_>>();
        assert_eq!(at(last(dir.path(), 9, None).unwrap()), [1, 3, 4, 5, 60_002]);
        assert_eq!(at(last(dir.path(), 2, Some("ann")).unwrap()), [5, 60_002]);
        assert!(last(dir.path(), 9, Some("bob")).unwrap().is_empty());
    }
}
