//! Runs a call of the memory tool on the files of a scope. Paths, answers and edits are [`crate::recall::memory`]'s; here they are
//! read and written, below one folder, through no symbolic link, within bounds.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tracing::info;

use crate::conversation::Tokens;
use crate::files::{open, replace};
use crate::proxy::App;
use crate::proxy::turn::prepared::Prepared;
use crate::recall::memory::{
    Command, Entry, LARGEST_FILE, LARGEST_MEMORY, MOST_FILES, Place, directory, inserted, numbered, replaced,
};
use crate::recall::{Page, Span, page};

/// Levels of a directory that are shown.
const SHOWN: usize = 2;

/// One call at a time: what is read is still so when it is written back.
static TURN: Mutex<()> = Mutex::new(());

/// The answer to a call, in at most `budget` tokens and a few words.
pub(super) async fn answered(app: &App, prepared: &Prepared, arguments: &str, budget: Tokens) -> String {
    let Some(root) = app.config.memory.clone() else { return "[there is no memory here]".to_owned() };
    let command = Command::read(arguments);
    let done = tokio::task::spawn_blocking(move || command.and_then(|command| run(&root, &command))).await;
    let (text, ok) = match done {
        Ok(Ok(text)) => (text, true),
        Ok(Err(why)) => (format!("Error: {why}"), false),
        Err(_) => ("Error: the memory cannot be read now".to_owned(), false),
    };
    info!(conversation = %prepared.id, ok, "the memory was asked");
    let count = |text: &str| app.measure.count(&prepared.key, text);
    match page(&text, Span::default(), budget, &count) {
        Some(Page { text, last, total, .. }) if last < total => {
            format!("{text}\n[{} more lines have no room: ask for some of them with view_range]", total - last)
        }
        Some(Page { text, .. }) => text,
        None => text,
    }
}

/// Does what a call asks for, below a folder that is made where it is not there yet.
fn run(root: &Path, command: &Command) -> Result<String, String> {
    let _turn = TURN.lock();
    make_all(root).map_err(|e| trouble(&e))?;
    match command {
        Command::View { path, range } => view(root, path, *range),
        Command::Create { path, text } => create(root, path, text),
        Command::Replace { path, old, new } => edit(root, path, |text| replaced(path.written(), text, old, new)),
        Command::Insert { path, line, text: new } => {
            edit(root, path, |text| inserted(path.written(), text, *line, new))
        }
        Command::Delete { path } => delete(root, path),
        Command::Rename { old, new } => rename(root, old, new),
    }
}

/// Whether the folder of a memory can be written, or made where it is not there yet: a model that is offered a memory which is
/// none would only meet errors. Leaves nothing behind.
///
/// # Errors
/// Why it cannot be used.
pub(in crate::proxy) fn usable(root: &Path) -> io::Result<()> {
    let there = root.ancestors().find(|folder| folder.exists()).unwrap_or(root);
    let probe = there.join(format!(".windowsill-{}", std::process::id()));
    let wrote = fs::write(&probe, b"");
    let _ = fs::remove_file(&probe);
    wrote
}

fn view(root: &Path, path: &Place, range: Option<(i64, i64)>) -> Result<String, String> {
    let (at, found) = there(root, path)?;
    if found.is_file() {
        return numbered(path.written(), &text_of(&at, path)?, range);
    }
    let mut entries = Vec::new();
    list(&at, "", SHOWN, &mut entries).map_err(|e| trouble(&e))?;
    Ok(directory(path.written().trim_end_matches('/'), found.len(), &entries))
}

fn create(root: &Path, path: &Place, text: &str) -> Result<String, String> {
    let exists = || format!("File {} already exists", path.written());
    let at = walk(root, path)?;
    if at.1.is_some() {
        return Err(exists());
    }
    room_for(root, text.len() as u64, path.names().len())?;
    let made = at.0.parent().map_or(Ok(()), make_all).and_then(|()| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&at.0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    match made {
        Ok(()) => Ok(format!("File created successfully at: {}", path.written())),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(exists()),
        Err(e) => Err(trouble(&e)),
    }
}

fn edit(
    root: &Path,
    path: &Place,
    change: impl FnOnce(&str) -> Result<(String, String), String>,
) -> Result<String, String> {
    let (at, found) = there(root, path)?;
    if !found.is_file() {
        return Err(format!("The path {} is not a file.", path.written()));
    }
    let before = text_of(&at, path)?;
    let (after, answer) = change(&before)?;
    if after.len() > LARGEST_FILE {
        return Err(format!("a memory file may have {LARGEST_FILE} bytes, and this would have {}", after.len()));
    }
    room_for(root, (after.len() as u64).saturating_sub(before.len() as u64), 0)?;
    replace(&at, after.as_bytes(), |_| Ok(())).map_err(|e| trouble(&e))?;
    Ok(answer)
}

fn delete(root: &Path, path: &Place) -> Result<String, String> {
    if path.names().is_empty() {
        return Err("Cannot delete the /memories directory itself".into());
    }
    let gone = || format!("The path {} does not exist", path.written());
    let (at, found) = walk(root, path)?;
    let deleted = match found.ok_or_else(gone)? {
        found if found.is_dir() => fs::remove_dir_all(&at),
        _ => fs::remove_file(&at),
    };
    deleted.map_err(|e| if e.kind() == ErrorKind::NotFound { gone() } else { trouble(&e) })?;
    Ok(format!("Successfully deleted {}", path.written()))
}

fn rename(root: &Path, old: &Place, new: &Place) -> Result<String, String> {
    if old.names().is_empty() {
        return Err("Cannot rename the /memories directory itself".into());
    }
    let (from, found) = walk(root, old)?;
    if found.is_none() {
        return Err(format!("The path {} does not exist", old.written()));
    }
    let (to, taken) = walk(root, new)?;
    if taken.is_some() {
        return Err(format!("The destination {} already exists", new.written()));
    }
    if old.holds(new) {
        return Err(format!("The destination {} is below {}", new.written(), old.written()));
    }
    room_for(root, 0, new.names().len())?;
    let moved = to.parent().map_or(Ok(()), make_all).and_then(|()| fs::rename(&from, &to));
    moved.map_err(|e| trouble(&e))?;
    Ok(format!("Successfully renamed {} to {}", old.written(), new.written()))
}

/// Where a place is, and what stands there, if anything. No link is followed on the way.
fn walk(root: &Path, place: &Place) -> Result<(PathBuf, Option<Metadata>), String> {
    let mut at = root.to_owned();
    let mut found = Some(fs::metadata(root).map_err(|e| trouble(&e))?);
    for name in place.names() {
        if found.as_ref().is_some_and(|above| !above.is_dir()) {
            return Err(format!("The path {} leads through a file", place.written()));
        }
        at.push(name);
        found = match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() || found.is_file() => Some(found),
            Ok(found) if found.is_symlink() => {
                return Err("Path would escape /memories directory via symlink".into());
            }
            Ok(_) => return Err(format!("Unsupported file type for {}", place.written())),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(trouble(&e)),
        };
    }
    Ok((at, found))
}

/// As [`walk`], of what must be there.
fn there(root: &Path, place: &Place) -> Result<(PathBuf, Metadata), String> {
    let (at, found) = walk(root, place)?;
    let gone = || format!("The path {} does not exist. Please provide a valid path.", place.written());
    Ok((at, found.ok_or_else(gone)?))
}

fn text_of(at: &Path, place: &Place) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = open(at).and_then(|file| file.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|e| trouble(&e))?;
    if bytes.len() > LARGEST_FILE {
        return Err(format!("{} has more than {LARGEST_FILE} bytes, which are too many to read", place.written()));
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is no text", place.written()))
}

/// What a directory holds, so many levels deep, in order; without hidden names, links and what is no file.
fn list(at: &Path, before: &str, levels: usize, entries: &mut Vec<Entry>) -> io::Result<()> {
    let mut found: Vec<_> = fs::read_dir(at)?.filter_map(Result::ok).filter_map(|entry| named(&entry)).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    for (name, kind) in found {
        if entries.len() >= MOST_FILES {
            return Ok(());
        }
        if kind.is_file() {
            entries.push(Entry { name: format!("{before}{name}"), bytes: kind.len() });
        } else if kind.is_dir() {
            let inside = format!("{before}{name}/");
            entries.push(Entry { name: inside.clone(), bytes: kind.len() });
            if levels > 1 {
                list(&at.join(name), &inside, levels - 1, entries)?;
            }
        }
    }
    Ok(())
}

/// A name that is shown, and what stands there; a link is itself, not what it leads to.
fn named(entry: &fs::DirEntry) -> Option<(String, Metadata)> {
    let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
    Some((name, fs::symlink_metadata(entry.path()).ok()?))
}

/// Whether so many more bytes and names have room.
fn room_for(root: &Path, bytes: u64, names: usize) -> Result<(), String> {
    let mut entries = Vec::new();
    list(root, "", usize::MAX, &mut entries).map_err(|e| trouble(&e))?;
    let held: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if held.saturating_add(bytes) > LARGEST_MEMORY {
        return Err(format!("the memory holds {held} of {LARGEST_MEMORY} bytes: delete something first"));
    }
    if names > 0 && entries.len() + names > MOST_FILES {
        let many = entries.len();
        return Err(format!("the memory holds {many} of {MOST_FILES} files and directories: delete something first"));
    }
    Ok(())
}

/// Makes a directory with those above it, each its owner's alone.
fn make_all(at: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(at)
}

/// What a model is told of trouble with the disk: nothing of where the files are.
fn trouble(e: &io::Error) -> String {
    format!("the memory cannot be used now ({})", e.kind())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(root: &Path, arguments: &serde_json::Value) -> Result<String, String> {
        Command::read(&arguments.to_string()).and_then(|command| run(root, &command))
    }

    #[test]
    fn files_are_made_edited_moved_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("memory/default");
        let create = json!({"command": "create", "path": "/memories/notes/a.md", "file_text": "one\ntwo\n"});
        assert_eq!(call(&root, &create).unwrap(), "File created successfully at: /memories/notes/a.md");
        assert_eq!(call(&root, &create).unwrap_err(), "File /memories/notes/a.md already exists");
        fs::write(root.join(".hidden"), "x").unwrap();
        let shown = call(&root, &json!({"command": "view", "path": "/memories"})).unwrap();
        assert!(
            shown.contains("\t/memories/notes/\n8B\t/memories/notes/a.md") && !shown.contains(".hidden"),
            "{shown}"
        );
        let file = json!({"command": "view", "path": "/memories/notes/a.md", "view_range": [2, -1]});
        assert!(call(&root, &file).unwrap().ends_with("     2\ttwo\n     3\t"));
        let replace =
            json!({"command": "str_replace", "path": "/memories/notes/a.md", "old_str": "two", "new_str": "2"});
        assert!(call(&root, &replace).unwrap().starts_with("The memory file has been edited."));
        let insert =
            json!({"command": "insert", "path": "/memories/notes/a.md", "insert_line": 0, "insert_text": "zero"});
        assert_eq!(call(&root, &insert).unwrap(), "The file /memories/notes/a.md has been edited.");
        assert_eq!(fs::read_to_string(root.join("notes/a.md")).unwrap(), "zero\none\n2\n");
        let rename = json!({"command": "rename", "old_path": "/memories/notes/a.md", "new_path": "/memories/b/c.md"});
        assert_eq!(call(&root, &rename).unwrap(), "Successfully renamed /memories/notes/a.md to /memories/b/c.md");
        assert_eq!(call(&root, &rename).unwrap_err(), "The path /memories/notes/a.md does not exist");
        let inside = json!({"command": "rename", "old_path": "/memories/b", "new_path": "/memories/b/d"});
        assert!(call(&root, &inside).unwrap_err().contains("is below"));
        let taken = json!({"command": "rename", "old_path": "/memories/b/c.md", "new_path": "/memories/notes"});
        assert_eq!(call(&root, &taken).unwrap_err(), "The destination /memories/notes already exists");
        for (path, says) in [
            ("/memories", "Cannot delete the /memories directory itself"),
            ("/memories/x", "The path /memories/x does not exist"),
        ] {
            assert_eq!(call(&root, &json!({"command": "delete", "path": path})).unwrap_err(), says);
        }
        let delete = json!({"command": "delete", "path": "/memories/b"});
        assert_eq!(call(&root, &delete).unwrap(), "Successfully deleted /memories/b");
        let gone = call(&root, &json!({"command": "view", "path": "/memories/b"})).unwrap_err();
        assert_eq!(gone, "The path /memories/b does not exist. Please provide a valid path.");
        let folder = json!({"command": "insert", "path": "/memories/notes", "insert_line": 0, "insert_text": "x"});
        assert_eq!(call(&root, &folder).unwrap_err(), "The path /memories/notes is not a file.");
    }

    #[cfg(unix)]
    #[test]
    fn no_link_is_followed_and_no_odd_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("memory"), dir.path().join("outside"));
        make_all(&root).unwrap();
        make_all(&outside).unwrap();
        fs::write(outside.join("secret"), "the secret").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.join("secret"), root.join("file")).unwrap();
        std::os::unix::fs::symlink(outside.join("new"), root.join("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
        for (path, says) in [
            ("/memories/link", "symlink"),
            ("/memories/link/secret", "symlink"),
            ("/memories/file", "symlink"),
            ("/memories/dangling", "symlink"),
            ("/memories/pipe", "Unsupported file type"),
        ] {
            for command in [
                json!({"command": "view", "path": path}),
                json!({"command": "create", "path": path, "file_text": "x"}),
                json!({"command": "str_replace", "path": path, "old_str": "the", "new_str": "x"}),
                json!({"command": "insert", "path": path, "insert_line": 0, "insert_text": "x"}),
                json!({"command": "delete", "path": path}),
                json!({"command": "rename", "old_path": path, "new_path": "/memories/mine"}),
                json!({"command": "create", "path": "/memories/mine2", "file_text": "x"}),
                json!({"command": "rename", "old_path": "/memories/mine2", "new_path": path}),
            ] {
                match call(&root, &command) {
                    Ok(said) => assert!(said.contains("/memories/mine2"), "{command}: {said}"),
                    Err(why) => assert!(why.contains(says) || why.contains("already exists"), "{command}: {why}"),
                }
            }
        }
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "the secret");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        let shown = call(&root, &json!({"command": "view", "path": "/memories"})).unwrap();
        assert!(!shown.contains("link") && !shown.contains("pipe") && !shown.contains("dangling"), "{shown}");
    }

    #[test]
    fn a_memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let create = |name: &str, bytes: usize| {
            let text = "x".repeat(bytes);
            call(&root, &json!({"command": "create", "path": format!("/memories/{name}"), "file_text": text}))
        };
        for n in 0..64 {
            create(&n.to_string(), LARGEST_FILE).unwrap();
        }
        assert!(create("more", 1).unwrap_err().contains("delete something first"));
        let grows = json!({"command": "insert", "path": "/memories/1", "insert_line": 0, "insert_text": "y"});
        assert!(call(&root, &grows).unwrap_err().contains("262144"));
        call(&root, &json!({"command": "delete", "path": "/memories/1"})).unwrap();
        create("more", 1).unwrap();
        for n in 64..1_000 {
            fs::write(root.join(n.to_string()), "").unwrap();
        }
        assert!(create("d/e", 0).unwrap_err().contains("of 1000 files"));
        // What somebody else put there is not read whole, and no bytes of it go to the model.
        fs::write(root.join("huge"), vec![b'x'; LARGEST_FILE + 1]).unwrap();
        fs::write(root.join("raw"), [0xff, 0xfe]).unwrap();
        assert!(call(&root, &json!({"command": "view", "path": "/memories/huge"})).unwrap_err().contains("too many"));
        assert!(call(&root, &json!({"command": "view", "path": "/memories/raw"})).unwrap_err().contains("no text"));
    }
}
