//! Opens files that people, configs and servers name. Only regular files: a named pipe would hold its reader for ever, and a
//! device is read without end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

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
}
