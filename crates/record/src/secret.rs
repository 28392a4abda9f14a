//! The secret of a record: what it marks with it, nobody else can make. It is made when it is first asked for.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process;
use std::sync::OnceLock;

use rusqlite::Connection;

use super::schema::{file_error, private_file, sqlite_error};
use super::types::Error;

/// Bytes that nobody can guess.
pub(super) type Key = [u8; 32];

/// The file, beside the database. Where it is removed, a new one is made, and marks made before are no longer known.
const NAME: &str = "marks.key";

/// The secret, once it was read.
#[derive(Debug, Default)]
pub(super) struct Secret(OnceLock<Key>);

impl Secret {
    /// Reads it, or makes it.
    ///
    /// # Errors
    /// When the file cannot be read or made.
    pub(super) fn read(&self, data_dir: &Path) -> Result<Key, Error> {
        if let Some(key) = self.0.get() {
            return Ok(*key);
        }
        let path = data_dir.join(NAME);
        if let Some(key) = there(&path)? {
            return Ok(*self.0.get_or_init(|| key));
        }
        make(&path)?;
        let unreadable = || file_error(&path, ErrorKind::InvalidData.into());
        let key = there(&path)?.ok_or_else(unreadable)?;
        Ok(*self.0.get_or_init(|| key))
    }
}

/// Has a record have this secret, which it shares with others.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn share(data_dir: &Path, key: &Key) -> Result<(), Error> {
    let path = data_dir.join(NAME);
    if there(&path)?.as_ref() == Some(key) {
        return Ok(());
    }
    let unnamed = path.with_file_name(format!("{NAME}.new-{}", process::id()));
    let mut written = private_file().write(true).create(true).truncate(true).open(&unnamed);
    let named = written
        .as_mut()
        .map_or_else(|e| Err(e.kind().into()), |file| file.write_all(key).and_then(|()| file.sync_all()));
    named.and_then(|()| fs::rename(&unnamed, &path)).map_err(|e| file_error(&path, e))
}

/// The secret in a file; `None` where there is none, or less than one.
fn there(path: &Path) -> Result<Option<Key>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(bytes.try_into().ok()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(file_error(path, e)),
    }
}

/// Writes a new one whole, unless another process was faster.
fn make(path: &Path) -> Result<(), Error> {
    let unnamed = path.with_file_name(format!("{NAME}.new-{}", process::id()));
    let wrap = |e| file_error(path, e);
    let made = || -> std::io::Result<()> {
        let mut file = private_file().write(true).create(true).truncate(true).open(&unnamed)?;
        let key = random().map_err(std::io::Error::other)?;
        file.write_all(&key)?;
        file.sync_all()?;
        let broken = fs::metadata(path).is_ok_and(|m| m.len() != key.len() as u64);
        match fs::hard_link(&unnamed, path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && !broken => Ok(()),
            Ok(()) => Ok(()),
            // A broken one is replaced; and there are file systems without hard links.
            Err(_) => fs::rename(&unnamed, path),
        }
    };
    let made = made();
    let _ = fs::remove_file(&unnamed);
    made.map_err(wrap)
}

/// Bytes out of SQLite's generator, which the operating system's seeds.
pub(super) fn random() -> Result<Key, Error> {
    let draw = || Connection::open_in_memory()?.query_row("SELECT randomblob(32)", [], |row| row.get::<_, Key>(0));
    draw().map_err(|e| sqlite_error(Path::new(":memory:"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_one_secret() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = Secret::default().read(one.path()).unwrap();
        assert_eq!(Secret::default().read(one.path()).unwrap(), key, "it stays");
        assert_ne!(Secret::default().read(other.path()).unwrap(), key);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(one.path().join(NAME)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // What a crash of the machine left of one is replaced.
        fs::write(other.path().join(NAME), b"half").unwrap();
        Secret::default().read(other.path()).unwrap();
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
    }
}
