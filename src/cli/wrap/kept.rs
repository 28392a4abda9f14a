//! The originals of wrapped configs: kept on disk before a file is changed, and put back byte for byte. They are kept in
//! `$XDG_STATE_HOME/windowsill/wrapped/CLIENT`, away from the client's folder, which may be deleted meanwhile.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windowsill::config::Environment;
use windowsill::files;

use super::Restored;
use crate::Failure;

/// Larger files are no configs.
const LARGEST: u64 = 1 << 20;

/// A file of a client's as it was found.
pub(super) struct File {
    pub(super) path: PathBuf,
    /// What it held; `None` where there was none.
    held: Option<String>,
    rights: Rights,
}

/// Who may do what with a file.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Rights {
    mode: u32,
    /// Its user and group; `None` where there are none, or where this is a new file.
    #[serde(default)]
    owner: Option<(u32, u32)>,
}

impl Rights {
    /// Those of a new file: nobody else's.
    const MINE: Rights = Rights { mode: 0o600, owner: None };

    /// The same for the owner, and none for others.
    fn private(self) -> Rights {
        Rights { mode: self.mode & !0o077, ..self }
    }

    fn of(meta: &Metadata) -> Rights {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            Rights { mode: meta.mode() & 0o7777, owner: Some((meta.uid(), meta.gid())) }
        }
        #[cfg(not(unix))]
        {
            let _ = meta;
            Rights::MINE
        }
    }

    /// Gives them to a file. The owner stays who it was, also where root does this.
    #[cfg(unix)]
    fn give(self, file: &fs::File) -> io::Result<()> {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
        let mut mode = self.mode;
        if let Some((user, group)) = self.owner
            && let Err(e) = fchown(file, Some(user), Some(group))
        {
            let now = file.metadata()?;
            if now.uid() != user {
                return Err(e);
            }
            // A group that this user is not in cannot be given to a file; another group must not have its rights.
            if now.gid() != group {
                mode &= !0o070;
            }
        }
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    #[cfg(not(unix))]
    fn give(self, _: &fs::File) -> io::Result<()> {
        Ok(())
    }
}

impl File {
    /// Reads a config file.
    ///
    /// # Errors
    /// Where it is nothing that can be changed and put back safely; the reason.
    pub(super) fn read(path: PathBuf) -> Result<File, String> {
        let shown = path.display().to_string();
        if path.to_str().is_none() {
            return Err(format!("{shown}: its path is not UTF-8"));
        }
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(File { path, held: None, rights: Rights::MINE });
            }
            Err(e) => return Err(format!("{shown}: {e}")),
        };
        if meta.is_symlink() {
            return Err(format!("{shown} is a symbolic link: edit what it leads to yourself"));
        }
        if meta.len() > LARGEST {
            return Err(format!("{shown} is too large for a config: {} bytes", meta.len()));
        }
        if meta.permissions().readonly() {
            return Err(format!("{shown} is read-only"));
        }
        let held = files::read_text(&path).map_err(|e| format!("{shown}: {e}"))?;
        Ok(File { path, held: Some(held), rights: Rights::of(&meta) })
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.held.as_deref()
    }

    /// Whether others than its owner may read it.
    pub(super) fn is_open_to_others(&self) -> bool {
        self.rights.mode & 0o077 != 0
    }

    /// Writes it, with its folders. `secret`: for its owner alone.
    pub(super) fn write(&self, bytes: &[u8], secret: bool) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        replace(&self.path, bytes, if secret { self.rights.private() } else { self.rights })
    }

    /// The folders that have to be made for it, the outermost first.
    fn folders_to_make(&self) -> Vec<String> {
        let missing = self.path.ancestors().skip(1).take_while(|folder| !folder.exists());
        let mut missing: Vec<String> = missing.filter_map(|folder| folder.to_str().map(str::to_owned)).collect();
        missing.reverse();
        missing
    }
}

/// Puts bytes in the place of a file, with rights.
fn replace(path: &Path, bytes: &[u8], rights: Rights) -> io::Result<()> {
    files::replace(path, bytes, |file| rights.give(file))
}

/// In the folder of a process that keeps originals, and locked by it.
const LOCK: &str = "lock";

/// The list of a client's originals.
#[derive(Serialize, Deserialize)]
struct List {
    files: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    path: String,
    /// Name of the file beside the list that holds the original; `None` where there was no file.
    original: Option<String>,
    #[serde(flatten)]
    rights: Rights,
    /// What was written, to know whether somebody changed it since.
    written: String,
    /// Folders that were made for it.
    folders: Vec<String>,
}

/// A client's originals.
pub(super) struct Kept {
    folder: PathBuf,
    /// Where texts go that would be lost by putting the original back.
    aside: PathBuf,
}

impl Kept {
    pub(super) fn of(environment: &Environment, client: &str) -> Result<Kept, Failure> {
        let state = environment
            .xdg("XDG_STATE_HOME", ".local/state")
            .ok_or_else(|| Failure::Usage("your home folder is unknown\n  hint: set HOME".into()))?
            .join("windowsill");
        Ok(Kept { folder: state.join("wrapped").join(client), aside: state.join("unwrapped").join(client) })
    }

    pub(super) fn exists(&self) -> bool {
        self.folder.join("list.json").exists()
    }

    /// Keeps the originals of files that are about to be written. Done only once all is on the disk.
    pub(super) fn keep(&self, files: &[(&File, &[u8])]) -> io::Result<()> {
        // Of its own: of two that wrap at once, the second finds the first's originals, and stops.
        self.sweep();
        let new = self.folder.with_extension(std::process::id().to_string());
        let _ = fs::remove_dir_all(&new);
        make_private(&new)?;
        // Held to the end: whoever finds the folder knows by it whether it is still needed.
        let lock = fs::File::create(new.join(LOCK))?;
        lock.lock()?;
        let mut list = List { files: Vec::new() };
        for (at, (file, bytes)) in files.iter().enumerate() {
            let original = file.held.as_ref().map(|_| format!("{at}.original"));
            if let (Some(name), Some(held)) = (&original, &file.held) {
                replace(&new.join(name), held.as_bytes(), Rights::MINE)?;
            }
            list.files.push(Entry {
                path: file.path.to_string_lossy().into_owned(),
                original,
                rights: file.rights,
                written: mark(bytes),
                folders: file.folders_to_make(),
            });
        }
        replace(&new.join("list.json"), format!("{:#}\n", serde_json::to_value(&list)?).as_bytes(), Rights::MINE)?;
        fs::rename(&new, &self.folder).inspect_err(|_| {
            let _ = fs::remove_dir_all(&new);
        })
    }

    /// Removes what killed processes left: copies that no list names.
    pub(super) fn sweep(&self) {
        if !self.exists() {
            let _ = fs::remove_dir_all(&self.folder);
        }
        let Some((parent, client)) = self.folder.parent().zip(self.folder.file_name().and_then(|name| name.to_str()))
        else {
            return;
        };
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(client)?.strip_prefix('.'));
            if process.is_some_and(|id| id.bytes().all(|b| b.is_ascii_digit())) && is_left(&entry.path()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let _ = fs::remove_dir(parent);
    }

    /// Puts all originals back and forgets them.
    ///
    /// # Errors
    /// Where one cannot be put back; they are all kept then.
    pub(super) fn restore(&self) -> Result<Vec<Restored>, String> {
        let kept = |e: &dyn std::fmt::Display| format!("{e}\n  hint: the originals are in {}", self.folder.display());
        let list = files::read_text(&self.folder.join("list.json")).map_err(|e| kept(&e))?;
        // By way of a tree: numbers keep their digits here, and a flattened type cannot read them otherwise.
        let list = serde_json::from_str::<serde_json::Value>(&list).and_then(serde_json::from_value::<List>);
        let list = list.map_err(|e| kept(&format!("list.json: {e}")))?;
        let mut restored = Vec::new();
        for entry in &list.files {
            restored.push(self.restore_one(entry).map_err(|e| kept(&format!("{}: {e}", entry.path)))?);
        }
        // The list first: without it, nothing is left to put back.
        fs::remove_file(self.folder.join("list.json"))
            .and_then(|()| fs::remove_dir_all(&self.folder))
            .map_err(|e| kept(&e))?;
        // What is empty now says nothing.
        for folder in self.folder.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(folder);
        }
        Ok(restored)
    }

    fn restore_one(&self, entry: &Entry) -> io::Result<Restored> {
        let path = PathBuf::from(&entry.path);
        // Of a process that was killed while it wrote; the key is in it.
        let _ = fs::remove_file(files::new_of(&path));
        let original = entry.original.as_ref().map(|name| fs::read(self.folder.join(name))).transpose()?;
        let now = match files::open(&path) {
            Ok(_) => Some(fs::read(&path)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let is_known = now.as_ref().is_none_or(|now| mark(now) == entry.written || original.as_ref() == Some(now));
        let changed = if is_known { None } else { Some(self.put_aside(&path, now.as_deref().unwrap_or_default())?) };
        match &original {
            Some(original) => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)?;
                }
                if now.as_ref() != Some(original) {
                    replace(&path, original, entry.rights)?;
                }
            }
            None => {
                match fs::remove_file(&path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
                // Those that the client put something into meanwhile stay.
                for folder in entry.folders.iter().rev() {
                    let _ = fs::remove_dir(folder);
                }
            }
        }
        Ok(Restored { path, existed: original.is_some(), changed })
    }

    /// Writes a text under the first free number.
    fn put_aside(&self, path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
        make_private(&self.aside)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let free = (1..10_000).map(|n| self.aside.join(format!("{n}-{name}"))).find(|path| !path.exists());
        let free = free.ok_or_else(|| io::Error::other("too many files were put aside"))?;
        replace(&free, bytes, Rights::MINE)?;
        Ok(free)
    }
}

/// Whether no process holds the lock of a folder.
fn is_left(folder: &Path) -> bool {
    match files::open(&folder.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn mark(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
