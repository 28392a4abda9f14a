//! The folder of the files: each appears whole or not at all, and the oldest give way.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

/// Files kept: a vocabulary and a header of 16 models.
const MOST_FILES: usize = 32;

/// Bytes kept: sixteen of the largest vocabularies that are known.
const MOST_BYTES: u64 = 256 << 20;

/// How the names of drafts begin.
const DRAFT: &str = ".draft";

/// A draft that is older than this was left by a process that ended.
const LEFT: Duration = Duration::from_secs(3600);

/// Makes the folder of a file, for the user alone, and tries that it can be written to.
pub(super) fn make(file: &Path) -> io::Result<()> {
    let folder = parent(file)?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    NamedTempFile::new_in(folder).map(drop)
}

/// A file under another name until it is known to be good. Deleted, if it is not kept.
pub(super) struct Draft {
    inner: NamedTempFile,
    file: PathBuf,
}

impl Draft {
    /// Writes the draft of a file beside it.
    pub(super) fn write(file: &Path, bytes: &[u8]) -> io::Result<Draft> {
        let mut inner = tempfile::Builder::new().prefix(DRAFT).tempfile_in(parent(file)?)?;
        inner.write_all(bytes)?;
        inner.flush()?;
        Ok(Draft { inner, file: file.to_owned() })
    }

    /// Where it is now.
    pub(super) fn path(&self) -> &Path {
        self.inner.path()
    }

    /// Gives it its name, whoever else did the same, and makes room.
    pub(super) fn keep(self) -> io::Result<()> {
        self.inner.persist(&self.file)?;
        tidy(&self.file, SystemTime::now())
    }
}

fn parent(file: &Path) -> io::Result<&Path> {
    file.parent().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Deletes the oldest files above the limits, never this one, and drafts that were left.
fn tidy(newest: &Path, now: SystemTime) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(parent(newest)?)?.flatten() {
        let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
        let at = meta.modified().unwrap_or(now);
        let is_draft = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DRAFT));
        if !is_draft {
            files.push((path != newest, std::cmp::Reverse(at), meta.len(), path));
        } else if now.duration_since(at).is_ok_and(|age| age > LEFT) {
            let _ = fs::remove_file(path);
        }
    }
    files.sort();
    let mut bytes: u64 = 0;
    for (nth, (_, _, length, path)) in files.into_iter().enumerate() {
        bytes = bytes.saturating_add(length);
        if nth > 0 && (nth >= MOST_FILES || bytes > MOST_BYTES) {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_seen_by_nobody_until_it_is_kept_and_old_files_give_way() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("not/there");
        let name = |n: usize| folder.join(format!("{n:02}.gguf"));
        make(&name(0)).unwrap();
        drop(Draft::write(&name(0), b"GGUF").unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        for n in 0..MOST_FILES + 3 {
            Draft::write(&name(n), b"GGUF").unwrap().keep().unwrap();
            let at = SystemTime::now() - Duration::from_secs(1000 - n as u64);
            fs::File::options().append(true).open(name(n)).unwrap().set_modified(at).unwrap();
        }
        assert!(!name(2).exists() && name(3).exists() && name(MOST_FILES + 2).exists());
        // A draft that was left, and one that is being written.
        fs::write(folder.join(".draft-left"), "").unwrap();
        tidy(&name(3), SystemTime::now()).unwrap();
        assert!(folder.join(".draft-left").exists());
        tidy(&name(3), SystemTime::now() + 2 * LEFT).unwrap();
        assert!(!folder.join(".draft-left").exists() && name(3).exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make(&file.join("vocabularies/a.gguf")).is_err());
    }
}
