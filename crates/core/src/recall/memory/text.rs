//! How the text of a memory file is shown and edited.

/// Lines that a file may have to be shown.
const MOST_LINES: usize = 999_999;

/// Lines around a change that are shown, on each side.
const AROUND: usize = 2;

/// What a directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Names from the directory on, with slashes between them; a directory's ends with one.
    pub name: String,
    /// Its size (bytes).
    pub bytes: u64,
}

/// A directory as `view` shows it: what it holds, two levels deep, in order. `bytes`: its own size.
pub fn directory(path: &str, bytes: u64, entries: &[Entry]) -> String {
    let mut out = format!(
        "Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:\n{}\t{path}",
        size(bytes)
    );
    for entry in entries {
        out += &format!("\n{}\t{path}/{}", size(entry.bytes), entry.name);
    }
    out
}

/// A size for people, as `ls -h` and the official tool write it.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "K", "M", "G"];
    let unit = match bytes.checked_ilog2() {
        None => 0,
        Some(log) => (log as usize / 10).min(UNITS.len() - 1),
    };
    let of_unit = 1_u64 << (10 * unit);
    if bytes.is_multiple_of(of_unit) {
        return format!("{}{}", bytes / of_unit, UNITS[unit]);
    }
    format!("{:.1}{}", bytes as f64 / of_unit as f64, UNITS[unit])
}

/// A file's lines with their numbers. `range`: the first and the last line that are shown, from 1; -1 for the end.
///
/// # Errors
/// In words for the model, where it has too many lines, or none of those that were asked for.
pub fn numbered(path: &str, text: &str, range: Option<(i64, i64)>) -> Result<String, String> {
    let lines: Vec<&str> = text.split('\n').collect();
    if lines.len() > MOST_LINES {
        return Err(format!("File {path} exceeds maximum line limit of 999,999 lines."));
    }
    let (from, to) = match range {
        None => (1, lines.len()),
        Some((from, to)) => {
            let to = if to == -1 { lines.len() } else { usize::try_from(to).unwrap_or(0).min(lines.len()) };
            (usize::try_from(from).unwrap_or(0).max(1), to)
        }
    };
    if from > to {
        return Err(format!(
            "Invalid `view_range`: {path} has {} lines, and the first must not stand behind the last.",
            lines.len()
        ));
    }
    Ok(format!("Here's the content of {path} with line numbers:\n{}", with_numbers(&lines, from, to)))
}

/// Lines `from..=to`, counted from 1, each behind its number.
fn with_numbers(lines: &[&str], from: usize, to: usize) -> String {
    let shown = (from..=to).zip(&lines[from - 1..to]);
    shown.map(|(number, line)| format!("{number:>6}\t{line}")).collect::<Vec<_>>().join("\n")
}

/// A text with another one in place of a part of it, and the answer to the model.
///
/// # Errors
/// In words for the model, where that part does not stand there exactly once.
pub fn replaced(path: &str, text: &str, old: &str, new: &str) -> Result<(String, String), String> {
    if old.is_empty() {
        return Err(format!("No replacement was performed, old_str is empty: it stands everywhere in {path}."));
    }
    let at: Vec<usize> = text.match_indices(old).map(|(at, _)| at).collect();
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    let at = match at[..] {
        [] => return Err(format!("No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")),
        [at] => at,
        _ => {
            let lines: Vec<String> = at.iter().map(|at| line_of(*at).to_string()).collect();
            return Err(format!(
                "No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {}. Please ensure it is unique",
                lines.join(", ")
            ));
        }
    };
    let changed = format!("{}{new}{}", &text[..at], &text[at + old.len()..]);
    let lines: Vec<&str> = changed.split('\n').collect();
    let first = line_of(at);
    let snippet = with_numbers(&lines, first.saturating_sub(AROUND).max(1), (first + AROUND).min(lines.len()));
    let answer = format!(
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
    );
    Ok((changed, answer))
}

/// A text with another one behind a line of it, and the answer to the model. Line 0 is the beginning.
///
/// # Errors
/// In words for the model, where there is no such line.
pub fn inserted(path: &str, text: &str, line: i64, new: &str) -> Result<(String, String), String> {
    // The line end of the last line begins no new one.
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.last() == Some(&"") {
        lines.pop();
    }
    let at = usize::try_from(line).ok().filter(|at| *at <= lines.len());
    let Some(at) = at else {
        return Err(format!(
            "Invalid `insert_line` parameter: {line}. It should be within the range [0, {}].",
            lines.len()
        ));
    };
    lines.insert(at, new.trim_end_matches('\n'));
    let mut changed = lines.join("\n");
    if !changed.ends_with('\n') {
        changed.push('\n');
    }
    Ok((changed, format!("The file {path} has been edited.")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_those_of_the_official_tool() {
        assert_eq!(
            numbered("/memories/a", "one\ntwo\n", None).unwrap(),
            "Here's the content of /memories/a with line numbers:\n     1\tone\n     2\ttwo\n     3\t"
        );
        assert!(numbered("/memories/a", "1\n2\n3", Some((2, -1))).unwrap().ends_with("numbers:\n     2\t2\n     3\t3"));
        assert!(numbered("/memories/a", "1\n2\n3", Some((0, 1))).unwrap().ends_with("numbers:\n     1\t1"));
        assert!(
            numbered("/memories/a", "1", Some((2, 9))).is_err()
                && numbered("/memories/a", "1\n2", Some((2, 1))).is_err()
        );
        let (text, said) = replaced("/memories/a", "1\n2\n3\n4\n5\n6", "4", "four\nand more").unwrap();
        assert_eq!(text, "1\n2\n3\nfour\nand more\n5\n6");
        assert_eq!(
            said,
            "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n     2\t2\n     3\t3\n     \
             4\tfour\n     5\tand more\n     6\t5"
        );
        assert_eq!(
            replaced("/memories/a", "x", "y", "z").unwrap_err(),
            "No replacement was performed, old_str `y` did not appear verbatim in /memories/a."
        );
        assert_eq!(
            replaced("/memories/a", "x\n\nx x", "x", "z").unwrap_err(),
            "No replacement was performed. Multiple occurrences of old_str `x` in lines: 1, 3, 3. Please ensure it is unique"
        );
        assert!(replaced("/memories/a", "x", "", "z").is_err());
        assert_eq!(inserted("/memories/a", "1\n2\n", 1, "x\n").unwrap().0, "1\nx\n2\n");
        assert_eq!(inserted("/memories/a", "1\r\n2", 2, "x").unwrap().0, "1\r\n2\nx\n");
        assert_eq!(
            inserted("/memories/a", "", 0, "x").unwrap(),
            ("x\n".into(), "The file /memories/a has been edited.".into())
        );
        for line in [-1, 3] {
            assert_eq!(
                inserted("/memories/a", "1\n2\n", line, "x").unwrap_err(),
                format!("Invalid `insert_line` parameter: {line}. It should be within the range [0, 2].")
            );
        }
    }

    #[test]
    fn directories_and_sizes_as_people_read_them() {
        for (bytes, said) in
            [(0, "0B"), (1, "1B"), (1023, "1023B"), (1024, "1K"), (1536, "1.5K"), (5 << 20, "5M"), (3 << 40, "3072G")]
        {
            assert_eq!(size(bytes), said);
        }
        let entries = [Entry { name: "a/".into(), bytes: 4096 }, Entry { name: "a/b.md".into(), bytes: 12 }];
        assert_eq!(
            directory("/memories", 4096, &entries),
            "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items:\n4K\t/memories\n4K\t/memories/a/\n\
             12B\t/memories/a/b.md"
        );
    }

    proptest! {
        #[test]
        fn a_replacement_can_be_taken_back(before in "[ab\n]{0,20}", after in "[ab\n]{0,20}", new in "[xyz\n]{0,8}") {
            let text = format!("{before}OLD{after}");
            let (changed, _) = replaced("/memories/a", &text, "OLD", &new).unwrap();
            prop_assert_eq!(&changed, &format!("{before}{new}{after}"));
            // What overlaps itself with the text before it stands there earlier.
            let is_first = changed.find(new.as_str()) == Some(before.len());
            if !new.is_empty() && is_first && changed.matches(new.as_str()).count() == 1 {
                prop_assert_eq!(replaced("/memories/a", &changed, &new, "OLD").unwrap().0, text);
            }
        }

        #[test]
        fn nothing_is_lost_by_an_insertion(text in "[ab\r\n]{0,30}", line in -2_i64..40, new in "[xy\n]{0,8}") {
            if let Ok((changed, _)) = inserted("/memories/a", &text, line, &new) {
                let kept: String = changed.chars().filter(|c| "ab\r".contains(*c)).collect();
                let was: String = text.chars().filter(|c| "ab\r".contains(*c)).collect();
                prop_assert_eq!(kept, was);
                prop_assert!(changed.ends_with('\n'));
            }
        }

        #[test]
        fn every_range_is_answered(text in "[ab\n]{0,30}", from in any::<i64>(), to in any::<i64>()) {
            let _ = numbered("/memories/a", &text, Some((from, to)));
        }
    }
}
