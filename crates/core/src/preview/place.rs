//! Where a message points to, and when two messages are the same.

use std::hash::{Hash, Hasher};

use super::clean::floor;

/// The place a message speaks of: `path.ext:12:5`, `path.ext(5,36)`, `path.ext:[5,36]`, `path.ext line 4`.
pub(crate) struct Place<'t> {
    /// The file's path as it is written.
    pub(crate) file: &'t str,
    /// Path, line and column as they are written.
    pub(crate) whole: &'t str,
}

/// Finds the first place named in a line.
pub(crate) fn place(line: &str) -> Option<Place<'_>> {
    let line = &line[..floor(line, 600)];
    if let Some(rest) = line.split_once("File \"").map(|(_, rest)| rest)
        && let Some((file, rest)) = rest.split_once("\", line ")
    {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let start = line.len() - rest.len() - "\", line ".len() - file.len();
        return Some(Place { file, whole: &line[start..start + file.len() + "\", line ".len() + digits] });
    }
    let bytes = line.as_bytes();
    let in_path = |c: u8| {
        c.is_ascii_alphanumeric()
            || matches!(c, b'/' | b'\\' | b'.' | b'_' | b'-' | b'+' | b'@' | b'~' | b'$')
            || c >= 0x80
    };
    for at in memchr::memchr2_iter(b':', b'(', bytes) {
        let bracket = usize::from(bytes[at] == b':' && bytes.get(at + 1) == Some(&b'['));
        let digits = bytes[at + 1 + bracket..].iter().take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 || digits > 7 {
            continue;
        }
        let mut start = at;
        while start > 0 && in_path(bytes[start - 1]) {
            start -= 1;
        }
        while start < at && !line.is_char_boundary(start) {
            start += 1;
        }
        // A Windows drive: `C:\…`
        if start >= 2 && bytes[start - 1] == b':' && bytes[start] == b'\\' && bytes[start - 2].is_ascii_alphabetic() {
            start -= 2;
        }
        let file = &line[start..at];
        if !is_file(file) {
            continue;
        }
        let mut end = at + 1 + bracket + digits;
        if let Some(&sep) = bytes.get(end)
            && matches!(sep, b':' | b',')
        {
            let more = bytes[end + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
            end += if more > 0 { 1 + more } else { 0 };
        }
        if bracket > 0 {
            if bytes.get(end) != Some(&b']') {
                continue;
            }
            end += 1;
        }
        if bytes[at] == b'(' {
            // `Math.max(0,50-x)` is a call.
            if bytes.get(end) != Some(&b')') {
                continue;
            }
            end += 1;
        }
        return Some(Place { file, whole: &line[start..end] });
    }
    in_words(line)
}

/// Whether a word is the name of a file: with an extension, or like `Makefile`.
fn is_file(name: &str) -> bool {
    let bare = name.rsplit(['/', '\\']).next().unwrap_or(name);
    if bare.ends_with("file") && bare.starts_with(|c: char| c.is_ascii_uppercase()) {
        return true;
    }
    name.rsplit_once('.').is_some_and(|(stem, ext)| {
        !stem.is_empty() && ext.len() <= 8 && ext.starts_with(|c: char| c.is_ascii_alphabetic())
    })
}

/// A place told in words: `t/a.t line 12`, `(in test file a.bats, line 7)`, `in A.cs:line 12`, `a.php on line 3`.
fn in_words(line: &str) -> Option<Place<'_>> {
    for (at, word) in line.match_indices("line ") {
        let number = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let digits = number(&line[at + word.len()..]);
        let before = line[..at].strip_suffix(" on ").or_else(|| line[..at].strip_suffix([' ', ':']));
        let Some(before) = before.filter(|_| digits > 0) else { continue };
        let before = before.trim_end_matches([',', ':', ' ', '"', '\'']);
        let start = before.rfind([' ', '(', '"', '\'', '\t']).map_or(0, |i| i + 1);
        let file = &before[start..];
        if is_file(file) {
            let mut end = at + word.len() + digits;
            // JSHint: `a.js: line 2, col 18, text`.
            if let Some(column) = line[end..].strip_prefix(", col ").map(number).filter(|n| *n > 0) {
                end += ", col ".len() + column;
            }
            return Some(Place { file, whole: &line[start..end] });
        }
    }
    None
}

/// Whether a place lies in what others wrote: a frame of a library says little.
pub(super) fn is_foreign(line: &str) -> bool {
    const OTHERS: [&str; 16] = [
        "node_modules",
        "site-packages",
        "dist-packages",
        "/lib/python",
        "node:internal",
        "/rustc/",
        "/.cargo/registry",
        "/usr/",
        "/go/pkg/",
        "/go/src/",
        "java.base/",
        "jdk.internal",
        "org.junit",
        "/vendor/",
        "/gems/",
        "<frozen",
    ];
    OTHERS.iter().any(|part| line.contains(part))
}

/// What makes two messages the same: their words, without places, numbers and times.
pub(crate) fn gist(line: &str) -> u64 {
    let line = line.trim();
    let line = &line[..floor(line, 400)];
    let mut hasher = std::hash::DefaultHasher::new();
    let skip = place(line).map(|p| {
        let start = p.whole.as_ptr() as usize - line.as_ptr() as usize;
        start..start + p.whole.len()
    });
    let mut digits = false;
    for (i, c) in line.bytes().enumerate() {
        if skip.as_ref().is_some_and(|s| s.contains(&i)) {
            continue;
        }
        if c.is_ascii_digit() {
            if !digits {
                b'#'.hash(&mut hasher);
            }
            digits = true;
        } else {
            digits = false;
            c.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Messages of one family differ only in what they quote: `cannot find 'a'`, `cannot find 'b'`.
pub(crate) fn family(line: &str) -> u64 {
    let mut bare = String::with_capacity(line.len());
    let mut until: Option<char> = None;
    for c in line[..floor(line, 300)].chars() {
        match until {
            Some(end) if c == end => until = None,
            Some(_) => {}
            None => {
                until = match c {
                    '"' | '`' | '\'' => Some(c),
                    '‘' => Some('’'),
                    _ => None,
                };
                bare.push(c);
            }
        }
    }
    gist(&bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (line, file, whole) in [
            ("  --> src/lease/table.rs:91:14", "src/lease/table.rs", "src/lease/table.rs:91:14"),
            ("a/b.ts(5,36): error TS1: x", "a/b.ts", "a/b.ts(5,36)"),
            ("  File \"/t/x.py\", line 70, in f", "/t/x.py", "/t/x.py\", line 70"),
            ("c:\\W\\M.targets(2703,9): error MSB3021: x", "c:\\W\\M.targets", "c:\\W\\M.targets(2703,9)"),
            ("at 12:41 in main.go:33", "main.go", "main.go:33"),
            ("[ERROR] /s/A.java:[8,16] x", "/s/A.java", "/s/A.java:[8,16]"),
            ("#   at t/a_0.t line 5.", "t/a_0.t", "t/a_0.t line 5"),
            (" (in test file test/s.bats, line 7)", "test/s.bats", "test/s.bats, line 7"),
            ("at X.Y() in /s/A.cs:line 12", "/s/A.cs", "/s/A.cs:line 12"),
            ("PHP Fatal error in /s/a.php on line 3", "/s/a.php", "/s/a.php on line 3"),
            ("│   on main.tf line 12, in resource", "main.tf", "main.tf line 12"),
            ("Dockerfile:5 DL3004 error: x", "Dockerfile", "Dockerfile:5"),
            ("src/a.js: line 2, col 18, Missing semicolon.", "src/a.js", "src/a.js: line 2, col 18"),
        ] {
            let found = place(line).unwrap_or_else(|| panic!("no place in {line:?}"));
            assert_eq!((found.file, found.whole), (file, whole));
        }
        assert!(place("at 12:41.882 nothing (3)").is_none() && place("return Math.max(0,50-x)").is_none());
        assert_eq!(gist("a.ts(5,36): error TS1: x"), gist("b/c.ts(7,1): error TS1: x"));
        assert_ne!(gist("a.ts(5,36): error TS1: x"), gist("a.ts(5,36): error TS1: y"));
    }
}
