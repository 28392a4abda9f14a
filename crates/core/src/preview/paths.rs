//! Outputs that are about many files: search results and directory listings. Every file is named, in short.

use std::collections::{BTreeMap, HashMap};

use super::fit::Draft;
use super::signal::{Grade, Graded};

/// Bytes of one piece; more names become a second piece, so that one large folder does not go out whole.
const PIECE: usize = 110;

/// Files with counts, one string a folder: `src/net/{pool.rs 3, retry.rs}`. A count of 0 is not shown.
pub(super) fn grouped(files: &[(String, usize)]) -> Vec<String> {
    let mut folders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, times) in files {
        // A folder among the entries (`a/b/`) is a name like the others.
        let cut = path.trim_end_matches('/').rfind(['/', '\\']).map_or(0, |i| i + 1);
        let (folder, name) = path.split_at(cut);
        let shown = if *times > 0 { format!("{name} {times}") } else { name.to_owned() };
        folders.entry(folder).or_default().push(shown);
    }
    let mut out = Vec::new();
    for (folder, names) in folders {
        let mut chunk: Vec<String> = Vec::new();
        let mut bytes = folder.len();
        for name in names {
            if !chunk.is_empty() && bytes + name.len() > PIECE {
                out.push(braced(folder, &chunk));
                chunk.clear();
                bytes = folder.len();
            }
            bytes += name.len() + 2;
            chunk.push(name);
        }
        out.push(braced(folder, &chunk));
    }
    out
}

/// The folder that all paths have in common, with the mark that ends it; empty where there is none.
pub(super) fn common_folder<'p>(mut paths: impl Iterator<Item = &'p str>) -> &'p str {
    let Some(first) = paths.next() else { return "" };
    let folder = |path: &str| path.rfind(['/', '\\']).map_or(0, |at| at + 1);
    let mut end = folder(first);
    for path in paths {
        while !path.starts_with(&first[..end]) {
            end = folder(&first[..end - 1]);
        }
    }
    &first[..end]
}

fn braced(folder: &str, names: &[String]) -> String {
    match names {
        [one] => format!("{folder}{one}"),
        many => format!("{folder}{{{}}}", many.join(", ")),
    }
}

/// One line of a search result: the file, and what follows its line number.
pub(super) fn hit(line: &str) -> Option<(&str, &str)> {
    let line_head = &line[..super::clean::floor(line, 400)];
    let bytes = line_head.as_bytes();
    // `C:\path:12:` — the drive's colon is no border.
    let from = if bytes.len() > 2 && bytes[1] == b':' && matches!(bytes[2], b'\\' | b'/') { 2 } else { 0 };
    for at in memchr::memchr2_iter(b':', b'-', &bytes[from..]).map(|i| i + from) {
        let digits = bytes[at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
        if digits > 0 && bytes.get(at + 1 + digits) == Some(&bytes[at]) && is_path(&line[..at]) {
            return Some((&line[..at], &line[at + 2 + digits..]));
        }
    }
    let (path, rest) = line_head.split_once(':')?;
    // `name.x: text` is a tool's own line: a file's text follows the colon as it stands.
    let spoken = rest.starts_with(' ') && !rest.starts_with("  ");
    (is_path(path) && path.contains('.') && !rest.starts_with("//") && !rest.starts_with(':') && !spoken)
        .then_some((path, &line[path.len() + 1..]))
}

fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 260
        && !text.contains([' ', '\t', '"', '(', '<', '{', '='])
        && text.contains(['/', '\\', '.'])
        && !text.starts_with('-')
}

/// Drafts search results: files with exact counts, the first match of each, marks and errors among the matches.
pub(super) fn grep(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let mut files: Vec<(String, usize)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut heading: Option<&str> = None;
    let mut matches = 0;
    let mut firsts = Vec::new();
    for (i, line) in graded.lines.iter().enumerate() {
        let found = hit(line).map(|(path, _)| path).or_else(|| {
            // With headings (rg on a terminal) the path stands alone above `12:text`.
            let numbered = line.bytes().take_while(u8::is_ascii_digit).count();
            let is_match = numbered > 0 && line.as_bytes().get(numbered) == Some(&b':');
            if is_match { heading } else { None }
        });
        let Some(path) = found else {
            heading = is_path(line.trim()).then(|| line.trim());
            continue;
        };
        matches += 1;
        let at = *index.entry(path).or_insert_with(|| {
            files.push((path.to_owned(), 0));
            files.len() - 1
        });
        files[at].1 += 1;
        if graded.grades[i] != Grade::Plain {
            draft.line(i, 88, line);
        } else if files[at].1 <= 3 {
            firsts.push((i, files[at].1));
        }
    }
    draft.numbered = true;
    draft.summary = format!("{matches} matches in {} files", files.len());
    let mut sorted = files.clone();
    sorted.sort();
    if files.len() > 60 {
        let folders: Vec<(String, usize)> = by_folder(&sorted).into_iter().collect();
        draft.top(95, format!("matches by folder: {}", grouped(&folders).join(", ")));
    }
    for group in grouped(&sorted) {
        draft.top(90, group);
    }
    for (i, nth) in firsts {
        draft.line(i, [0, 70, 44, 40][nth], graded.lines[i]);
    }
    draft
}

/// Sums by the folder that a path stands in.
pub(super) fn by_folder(files: &[(String, usize)]) -> BTreeMap<String, usize> {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for (path, times) in files {
        *folders.entry(path[..path.trim_end_matches('/').rfind('/').unwrap_or(0)].to_owned()).or_default() += times;
    }
    folders
}

/// Drafts a directory listing (`ls -l`, `ls -R`, `find`, `tree`, plain names): folders with their entries, counts.
pub(super) fn listing(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let mut folder = String::new();
    let mut entries: Vec<(String, usize)> = Vec::new();
    let mut by_type: BTreeMap<String, usize> = BTreeMap::new();
    let mut folders = 0;
    for (i, raw) in graded.lines.iter().enumerate() {
        let line = raw.trim();
        if line.is_empty() {
            continue;
        }
        if let Some(path) = line.strip_suffix(':').filter(|p| !p.contains(' ') || p.starts_with(['/', '.'])) {
            folder = format!("{}/", path.trim_end_matches('/'));
            folders += 1;
            continue;
        }
        let name = match ls_entry(line) {
            Some((true, name)) => {
                folders += usize::from(folder.is_empty());
                if name != "." && name != ".." {
                    entries.push((format!("{folder}{name}/"), 0));
                }
                continue;
            }
            Some((false, name)) => name,
            None if line.starts_with("total ") => continue,
            None if line.contains(' ') && !line.contains(['/', '─']) => {
                draft.line(i, if graded.grades[i] >= Grade::Trouble { 97 } else { 60 }, raw);
                continue;
            }
            None => line.trim_start_matches(['│', '├', '└', '─', ' ', '\u{a0}', '|', '`', '-']),
        };
        if graded.grades[i] >= Grade::Trouble {
            draft.line(i, 97, raw);
        }
        let base = name.rsplit('/').next().unwrap_or(name);
        let ext = base.rfind('.').filter(|&d| d > 0).map_or("", |d| &base[d..]);
        *by_type.entry(ext.to_owned()).or_default() += 1;
        entries.push((format!("{folder}{name}"), 0));
    }
    let mut types: Vec<(String, usize)> = by_type.into_iter().filter(|(e, _)| e.len() < 12).collect();
    types.sort_by_key(|(ext, n)| (std::cmp::Reverse(*n), ext.clone()));
    let types: Vec<String> =
        types.iter().take(8).map(|(e, n)| format!("{} {n}", if e.is_empty() { "(no extension)" } else { e })).collect();
    let ones: Vec<(String, usize)> = entries.iter().map(|(path, _)| (path.clone(), 1)).collect();
    let counts: Vec<(String, usize)> = by_folder(&ones).into_iter().filter(|(folder, _)| !folder.is_empty()).collect();
    let folders = folders.max(counts.len()).max(1);
    draft.summary = format!("{} entries in {folders} folders: {}", entries.len(), types.join(", "));
    if entries.len() > 60 {
        draft.top(91, format!("entries by folder: {}", grouped(&counts).join(", ")));
    }
    // Shallow entries first: they say how the tree is laid out.
    for group in grouped(&entries) {
        let depth = group.matches('/').count().min(12);
        draft.remark(0, 90 - depth as u16, group);
    }
    draft
}

/// An entry of `ls -l`: whether it is a folder, and its name.
pub(super) fn ls_entry(line: &str) -> Option<(bool, &str)> {
    let mode = line.split_ascii_whitespace().next()?;
    let is_mode = mode.len() >= 10
        && mode.starts_with(['d', '-', 'l', 'c', 'b', 's', 'p'])
        && mode.bytes().skip(1).take(9).all(|b| matches!(b, b'r' | b'w' | b'x' | b'-' | b's' | b'S' | b't' | b'T'));
    if !is_mode {
        return None;
    }
    // mode links owner group size, a date of two or three words, name
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let date_words = match words.get(5) {
        Some(month) if month.starts_with(|c: char| c.is_alphabetic()) => 3,
        Some(day) if day.len() == 10 && day.contains('-') => 2,
        _ => 1,
    };
    let name_word = words.get(5 + date_words)?;
    let start = name_word.as_ptr() as usize - line.as_ptr() as usize;
    let name = &line[start..];
    Some((mode.starts_with('d'), name.split(" -> ").next().unwrap_or(name)))
}

#[cfg(test)]
mod tests {
    use super::super::signal::grade;
    use super::*;

    #[test]
    fn hits_are_read() {
        for (line, path, rest) in [
            ("./a/b.rs:129:$ rg", "./a/b.rs", "$ rg"),
            ("src/x-y.rs-12-context", "src/x-y.rs", "context"),
            ("C:\\a\\b.cs:3:x", "C:\\a\\b.cs", "x"),
            ("a/b.py:import os", "a/b.py", "import os"),
        ] {
            assert_eq!(hit(line), Some((path, rest)), "{line}");
        }
        for line in
            ["a/b.py::test_c PASSED", "12:41: started", "https://x.example/y", "key: value", "let a = b::c(3:4);", ""]
        {
            assert_eq!(hit(line), None, "{line}");
        }
    }

    #[test]
    fn folders_in_common() {
        for (paths, want) in [
            (&["a/b/c.rs", "a/b/d/e.rs"][..], "a/b/"),
            (&["a/b.rs", "ab/c.rs"], ""),
            (&["é/b.rs", "é/c.rs"], "é/"),
            (&["C:\\x\\a.cs", "C:\\x\\b.cs"], "C:\\x\\"),
            (&["a.rs"], ""),
            (&[], ""),
        ] {
            assert_eq!(common_folder(paths.iter().copied()), want, "{paths:?}");
        }
    }

    #[test]
    fn every_file_and_count() {
        let text = "a/x.rs:1:fn a\na/x.rs:9:fn b\na/y.rs:3:// HACK(k): spare 4\nz.rs:5:fn z";
        let draft = grep(&grade(text));
        assert_eq!(draft.summary, "4 matches in 3 files");
        let (shown, _) = draft.render(&draft.order(), 4000);
        for want in ["a/{x.rs 2, y.rs 1}", "z.rs 1", "spare 4"] {
            assert!(shown.contains(want), "{want} in {shown}");
        }
    }

    #[test]
    fn listings() {
        let text = ".:\ntotal 4\ndrwxr-xr-x 2 root root 4096 2026 .cargo\n-rw-r--r-- 1 r r 292 Jan  3 10:00 my file.rs\n\n./src:\n-rw-r--r-- 1 r r 9 2026-01-01 10:00 lib.rs";
        let draft = listing(&grade(text));
        let (shown, _) = draft.render(&draft.order(), 4000);
        for want in [".cargo/", "my file.rs", "./src/lib.rs", "3 entries"] {
            assert!(shown.contains(want), "{want} in {shown}");
        }
    }
}
