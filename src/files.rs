//! Opens files that people, configs and servers name. Only regular files: a named pipe would hold its reader for ever, and a
//! device is read without end. And puts new ones in their place.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Opens a regular file for reading. Never waits: whatever else stands at the path is refused.
///
/// # Errors
/// When there is none, or what stands there is a folder, a named pipe, a socket or a device, which the message names.
pub fn open(path: &Path) -> io::Result<File> {
    regular(&std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    // Something else may stand there by now.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file that holds text.
///
/// # Errors
/// As [`open`], and when it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Where a file stands until it takes the place of another, see [`replace`].
pub fn new_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".windowsill-new");
    path.with_file_name(name)
}

/// Puts bytes in the place of a file, whole or not at all. A link that stands there is replaced, and what it leads to stays as it
/// is. The file is its owner's alone until `set` has given it its rights.
///
/// # Errors
/// When it cannot be written; then nothing was changed.
pub fn replace(path: &Path, bytes: &[u8], set: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let new = new_of(path);
    let _ = std::fs::remove_file(&new);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let done = options.open(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        set(&file)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    done
}

/// What lets others than this user change the files of a folder; `None` where nothing does, where there is no such folder, and
/// where the system knows no such rights.
pub fn open_to_others(folder: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let meta = std::fs::metadata(folder).ok()?;
        // Who this is, where the system tells it without a call of its own.
        let own = std::fs::metadata("/proc/self").ok().map(|process| process.uid());
        if own.is_some_and(|own| own != meta.uid()) {
            return Some(format!("belongs to another user (uid {})", meta.uid()));
        }
        let mode = meta.mode() & 0o7777;
        (mode & 0o022 != 0).then(|| format!("may be written by other users (mode {mode:04o})"))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

fn regular(meta: &std::fs::Metadata) -> io::Result<()> {
    match kind(meta.file_type()) {
        None => Ok(()),
        Some("a folder") => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file"))),
    }
}

/// What stands there; `None` for a regular file.
fn kind(kind: std::fs::FileType) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return Some("a named pipe");
        }
        if kind.is_socket() {
            return Some("a socket");
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Some("a device");
        }
    }
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => None,
        (_, true) => Some("a folder"),
        _ => Some("something else"),
    }
}

/// A folder in another one for what is thrown away; it goes when what this returns is dropped.
///
/// # Errors
/// When it cannot be made.
pub fn scratch_in(folder: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("scratch-").tempdir_in(folder)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let said = |path: &Path| open(path).unwrap_err().to_string();
        assert_eq!(said(&pipe), "it is a named pipe, not a regular file");
        assert_eq!(said(Path::new("/dev/zero")), "it is a device, not a regular file");
        assert!(said(dir.path()).contains("directory"), "{}", said(dir.path()));
        assert_eq!(open(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_text(&link).unwrap(), "text");
    }

    #[test]
    fn a_file_is_replaced_and_never_written_through_a_link() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (path, theirs) = (dir.path().join("unit"), dir.path().join("theirs"));
        std::fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, &path).unwrap();
        // Left by a process that was killed, or put there by somebody else.
        symlink(&theirs, new_of(&path)).unwrap();
        replace(&path, b"ours", |_| Ok(())).unwrap();
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours");
        let meta = path.symlink_metadata().unwrap();
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o600);
        assert!(replace(&path, b"new", |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let mode = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        for (given, told) in
            [(0o700, false), (0o755, false), (0o777, true), (0o770, true), (0o702, true), (0o1777, true)]
        {
            mode(given);
            let why = open_to_others(dir.path());
            assert_eq!(why.is_some(), told, "{given:o}: {why:?}");
            assert!(why.is_none_or(|why| why.contains(&format!("{given:04o}"))));
        }
        mode(0o700);
        assert_eq!(open_to_others(&dir.path().join("none")), None);
    }
}
