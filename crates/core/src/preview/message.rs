//! Messages as compilers and linters print them: a place at the head of the line, a level or a code, and what is said.
//! Reads the forms that these tools share, so that no list of tools is needed.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use super::clean::floor;
use super::place::{Place, family, place};
use super::signal::{Grade, Graded};

/// Reads a line that starts with a place and goes on with a message: what its own level or code says of it, or `None` in it
/// where it has neither. A line of search results is no message.
pub(super) fn message(line: &str) -> Option<Option<Grade>> {
    let body = line.trim_start();
    // `[ERROR] /path/A.java:[8,16] text` has its level first.
    let (tag, body) = match body.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((tag, rest)) if level(tag).is_some() => (level(tag).map(|(grade, _)| grade), rest),
        _ => (None, body),
    };
    // The place ends within the first bytes, or there is none at the head.
    let head = &body[..floor(body, 260)];
    if !head.contains([':', '(']) || head.starts_with(['"', '\'', '-', '+', '|', '>', '<']) {
        return None;
    }
    let (column, after) = split(body, &place(head)?)?;
    // `12:5-9` is a span.
    let span = after.strip_prefix('-').map_or(0, |rest| 1 + digits(rest));
    let after = if span > 1 { &after[span..] } else { after };
    // What a search prints follows its colon as it stands in the file; a tool puts one space there.
    let said = said(after)?;
    // Hadolint has its code before the level.
    let told = said.split_once(' ').filter(|(code, _)| is_code(code)).map_or(said, |(_, rest)| rest);
    let level = tag
        .or_else(|| self::level(said).or_else(|| self::level(told)).map(|(grade, _)| grade))
        .or_else(|| code_level(said))
        // golangci-lint has no levels: code that does not compile stands among remarks on style.
        .or_else(|| said.ends_with(" (typecheck)").then_some(Grade::Error));
    let coded = is_code(said.split(' ').next().unwrap_or(said));
    (level.is_some() || coded || column && !after.starts_with(' ')).then_some(level)
}

/// Whether a place at the head of a line has a column, and what stands behind it; `None` where it stands elsewhere.
fn split<'t>(body: &'t str, found: &Place<'_>) -> Option<(bool, &'t str)> {
    if found.whole.as_ptr() != body.as_ptr() {
        return None;
    }
    let place = &found.whole[found.file.len()..];
    let column = place.contains(", col ") || place.len() > 1 + digits(&place[1..]);
    Some((column, &body[found.whole.len()..]))
}

/// What is said behind a place: a tool puts one space before it.
fn said(after: &str) -> Option<&str> {
    let mut marks = [": ", " - ", ", ", " "].iter().filter_map(|mark| after.strip_prefix(mark));
    marks.next().filter(|said| !said.is_empty() && !said.starts_with([' ', '\t', '*']))
}

/// Messages that have neither a level nor a code nor a column. One line says nothing of that, many do: a tool says few things of
/// many places, and what a search finds is a different text each time.
fn by_family(lines: &[&str]) -> HashSet<usize> {
    let told = |line: &str| {
        let head = &line[..floor(line, 260)];
        let (_, after) = split(line, &place(head)?)?;
        said(after)?;
        Some(family(line))
    };
    let mut families: HashMap<u64, usize> = HashMap::new();
    let all: Vec<(usize, u64)> = (0..lines.len()).filter_map(|i| Some((i, told(lines[i])?))).collect();
    all.iter().for_each(|(_, family)| *families.entry(*family).or_default() += 1);
    let many = all.len() >= 6 && families.len() * 3 <= all.len();
    if many { all.into_iter().map(|(i, _)| i).collect() } else { HashSet::new() }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// The level that a message begins with, and what follows.
fn level(said: &str) -> Option<(Grade, &str)> {
    let bare = said.trim_start_matches(['[', '(']);
    let end = bare.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(bare.len());
    let (word, rest) = (&bare[..end], &bare[end..]);
    let grade = match word.to_ascii_lowercase().as_str() {
        "error" | "errors" | "failure" | "critical" => Grade::Error,
        "fatal" => Grade::Error,
        "warning" | "warn" => Grade::Warning,
        "note" | "info" | "information" | "hint" | "help" | "style" | "performance" | "portability" | "convention"
        | "refactor" | "suggestion" => Grade::Mark,
        // RuboCop's letters.
        "E" | "F" if rest.starts_with(": ") => Grade::Error,
        "w" if rest.starts_with(": ") => Grade::Warning,
        "c" | "r" | "i" if rest.starts_with(": ") => Grade::Mark,
        "e" | "f" if rest.starts_with(": ") => Grade::Error,
        _ => return None,
    };
    // `error_code` or `error.c` is a word of the source, and `Error return value` one of a sentence.
    let prose = || match rest.strip_prefix(' ') {
        Some(next) => {
            let word = next.split([' ', ':']).next().unwrap_or(next);
            let alone = next.starts_with([' ', '[', '(', '-', '\t']) || is_code(word) || level(next).is_some();
            !alone && next.starts_with(|c: char| c.is_ascii_lowercase())
        }
        None => !(rest.is_empty() || rest.starts_with([':', '[', ']', ')', ','])),
    };
    (!prose()).then_some((grade, rest))
}

/// Whether a word is the code of a rule: `F821`, `E0602`, `SC2086`, `TS2322`, `CS0103`.
pub(super) fn is_code(word: &str) -> bool {
    let word = word.trim_end_matches([':', ',', ']', ')']).trim_start_matches(['[', '(']);
    let letters = word.bytes().take_while(u8::is_ascii_uppercase).count();
    let numbers = word.bytes().skip(letters).take_while(u8::is_ascii_digit).count();
    (1..=6).contains(&letters) && (2..=6).contains(&numbers) && letters + numbers == word.len()
}

/// The level that a code of Pylint's form tells: a letter, four digits and a colon.
fn code_level(said: &str) -> Option<Grade> {
    let (code, _) = said.split_once(": ")?;
    if code.len() != 5 || digits(&code[1..]) != 4 {
        return None;
    }
    match code.as_bytes()[0] {
        b'E' | b'F' => Some(Grade::Error),
        b'W' => Some(Grade::Warning),
        b'C' | b'R' | b'I' => Some(Grade::Mark),
        _ => None,
    }
}

/// A message below the name of its file: `  12:5  error  text`, `  12:5 F821 text`.
fn below_name(line: &str) -> Option<Option<Grade>> {
    let body = line.trim_start();
    if body.len() == line.len() {
        return None;
    }
    let row = digits(body);
    let rest = body[row..].strip_prefix(':').filter(|_| row > 0 && row < 7)?;
    let column = digits(rest);
    let said = rest[column..].strip_prefix([' ', '\t', ':']).filter(|_| column > 0)?;
    let said = said.trim_start_matches([' ', '-', '\t']);
    let graded = level(said).map(|(grade, _)| grade);
    // `✖` and `⚠`, as linters of style sheets draw their levels.
    let drawn = said.starts_with(['✖', '×', '✘']).then_some(Grade::Error);
    let warned = said.starts_with(['⚠', '‼']).then_some(Grade::Warning);
    let level = graded.or(drawn).or(warned);
    let coded = said.split_whitespace().next().is_some_and(is_code);
    (level.is_some() || coded).then_some(level)
}

/// A message below its place: `  × text`, `  ! text`, `   ^-- SC2086 (info): text`.
fn below_place(line: &str) -> Option<Option<Grade>> {
    let body = line.trim_start();
    if body.starts_with(['×', '✖']) {
        return (!is_total(body)).then_some(Some(Grade::Error));
    }
    if body.starts_with("! ") {
        return Some(Some(Grade::Warning));
    }
    let said = body.strip_prefix('^')?.trim_start_matches(['^', '-']).strip_prefix(' ')?;
    let (code, rest) = said.split_once(' ')?;
    // HTMLHint has the name of the rule behind: `^ text (id-unique)`.
    let named =
        || rest.rsplit_once(" (").is_some_and(|(_, rule)| rule.ends_with(')') && is_rule(&rule[..rule.len() - 1]));
    (is_code(code) || named()).then(|| level(rest).map(|(grade, _)| grade))
}

/// ESLint's total, which looks like a message: `✖ 12 problems (9 errors, 3 warnings)`.
pub(super) fn is_total(line: &str) -> bool {
    let rest = line.strip_prefix(['×', '✖']).map_or("", str::trim_start);
    let many = digits(rest);
    many > 0 && rest[many..].starts_with(" problem")
}

/// Whether a word is the name of a rule: `id-unique`.
fn is_rule(word: &str) -> bool {
    word.contains('-') && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The path that stands alone on a line, or before a colon at its end.
fn name_of_file(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_suffix(':').unwrap_or(line.trim_end());
    let name = name.strip_prefix("************* Module ").unwrap_or(name).trim();
    let path = !name.is_empty() && name.len() < 260 && name.contains(['.', '/', '\\']) && !name.contains(" - ");
    let words = name.split(' ').count();
    (path && words <= 3 && !name.contains(['(', '"', '=', '{', ';', '<']) && !name.starts_with(['-', '*', '#']))
        .then_some(name)
}

/// A path alone on a line that is indented a little: below it stands what is said of the file.
fn is_path(line: &str) -> bool {
    let body = line.trim();
    line.len() - line.trim_start().len() <= 4
        && body.contains('/')
        && !body.contains([' ', ':'])
        && name_of_file(line).is_some()
}

/// Lines below which an arrow names the place: `--> path:3:4`, `╭─[path:3:4]`.
pub(super) fn is_arrow(line: &str) -> bool {
    let body = line.trim_start_matches([' ', '│', '|']);
    ["--> ", "╭─[", ",-[", "┌─ ", "╭▸ "].iter().any(|arrow| body.starts_with(arrow))
}

/// Lets the tools' own levels decide what a line is worth, and finds the files that messages stand below.
pub(super) fn regrade(graded: &mut Graded<'_>) {
    let mut bare: Vec<usize> = Vec::new();
    let mut levels = false;
    let mut file: Option<usize> = None;
    graded.by_family = by_family(&graded.lines);
    let mut pointed: Option<usize> = None;
    for i in 0..graded.lines.len() {
        let line = graded.lines[i];
        let found = if is_total(line) {
            graded.grades[i] = Grade::Summary;
            None
        } else if let Some(level) = message(line) {
            file = None;
            Some(level)
        } else if graded.by_family.contains(&i) && graded.grades[i] < Grade::Warning {
            file = None;
            Some(None)
        } else if let Some(at) = file
            && let Some(level) = below_name(line)
        {
            graded.named_at.insert(i, at);
            Some(level)
        } else if let Some(at) = pointed.or(file)
            && let Some(level) = below_place(line)
        {
            graded.named_at.insert(i, at);
            Some(level)
        } else {
            None
        };
        match found {
            Some(Some(grade)) => {
                levels |= grade >= Grade::Warning;
                graded.grades[i] = grade;
                graded.messages += 1;
            }
            Some(None) => {
                bare.push(i);
                graded.messages += 1;
            }
            None if line.trim_start().starts_with("Location: ") && place(line).is_some() => {
                // The message begins the paragraph.
                let full = |at: &usize| !graded.lines[*at].trim_start_matches(['-', '=']).trim().is_empty();
                let above = (i.saturating_sub(8)..i).rev().take_while(full).last().unwrap_or(i);
                graded.named_at.insert(above, i);
                bare.push(above);
                graded.messages += 1;
            }
            None if is_arrow(line) && i > 0 && place(line).is_some() => {
                let above = i - 1;
                if graded.grades[above] < Grade::Warning && !graded.lines[above].trim_start().starts_with(['=', '|']) {
                    bare.push(above);
                }
                graded.messages += 1;
            }
            None if !line.trim().is_empty() && (!line.starts_with([' ', '\t']) || is_path(line)) => {
                file = name_of_file(line).map(|_| i);
                let heads =
                    (line.ends_with('━') || line.ends_with(':') && line.starts_with("In ")) && place(line).is_some();
                pointed = if heads { Some(i) } else { pointed.filter(|at| i - at < 8 && !line.ends_with('━')) };
            }
            None => {}
        }
    }
    grade_bare(graded, bare, levels);
}

/// Grades messages without a level; `levels`: where others have one.
fn grade_bare(graded: &mut Graded<'_>, bare: Vec<usize>, levels: bool) {
    for i in bare {
        // Where others have levels, one without is no error.
        let grade = if levels { Grade::Warning } else { Grade::Error };
        graded.grades[i] = graded.grades[i].max(grade);
        graded.plain_messages += usize::from(!levels);
    }
    if graded.plain_messages > 0 {
        // What a tool itself calls a warning is no less than its remarks without a level.
        let warns = |line: &str| ["WARNING: ", "Warning: ", "warning: "].iter().any(|level| line.starts_with(level));
        for i in (0..graded.lines.len()).filter(|i| warns(graded.lines[*i])) {
            graded.grades[i] = graded.grades[i].max(Grade::Error);
        }
    }
}

/// The file and the place of a message at `at` below a line that names the file, or the whole place, at `above`.
pub(super) fn place_below<'t>(lines: &[&'t str], above: usize, at: usize) -> (&'t str, String) {
    if let Some(found) = place(lines[above]) {
        return (found.file, found.whole.to_owned());
    }
    let file = name_of_file(lines[above]).unwrap_or_default();
    let row = |line: &str| -> String { line.chars().take_while(|c| c.is_ascii_digit() || *c == ':').collect() };
    let mut row = row(lines[at].trim_start());
    // Below the line that is quoted: `L15 | code`, and on the next line a caret.
    if row.is_empty() && lines[at].trim_start().starts_with('^') && at > above + 1 {
        let quoted = lines[at - 1].trim_start().trim_start_matches('L');
        row = quoted.chars().take_while(char::is_ascii_digit).collect();
    }
    (file, format!("{file}:{}", row.trim_end_matches(':')))
}

/// A message without the row and column that it begins with, and with single spaces between its columns.
pub(super) fn without_place(line: &str) -> String {
    let body = line.trim_start();
    let row: usize = body.bytes().take_while(|c| c.is_ascii_digit() || *c == b':').count();
    let said = if row > 1 { &body[row..] } else { body };
    said.split_whitespace().collect::<Vec<_>>().join(" ").trim_start_matches(['^', '-', ' ']).to_owned()
}

/// What makes two messages the same: what they say, without their places. A number counts where it belongs to a name.
pub(super) fn same(line: &str) -> u64 {
    let line = &line[..floor(line, 400)];
    let said = place(line).map_or_else(|| without_place(line), |found| line.replacen(found.whole, "", 1));
    let mut hasher = std::hash::DefaultHasher::new();
    let mut last = ' ';
    for c in said.trim().chars() {
        let measured = c.is_ascii_digit() && !(last.is_alphanumeric() || last == '_');
        if !measured {
            c.hash(&mut hasher);
            last = c;
        }
    }
    hasher.finish()
}

/// The rule that a message is of: its code, or a name in brackets at its end.
pub(super) fn rule(line: &str) -> Option<&str> {
    let words = || line.split([' ', '[', ']', '(', ')']).map(|w| w.trim_end_matches([':', ',']));
    words().find(|w| is_code(w)).or_else(|| column(line)).or_else(|| {
        let last = line.trim_end().rsplit([' ', '\t']).next()?;
        let bare = last.trim_matches(['[', ']', '(', ')']);
        (bare.len() != last.len() || bare.contains('-') && line.contains("  ")).then_some(bare)
    })
}

/// The name of a rule that stands in a column of its own at the end of a message: `no-undef`, `eqeqeq`, `@scope/some-rule`.
fn column(line: &str) -> Option<&str> {
    let (before, last) = line.trim_end().rsplit_once("  ")?;
    let of_rule = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-/@_".contains(c);
    let is_rule = last.len() > 2 && last.len() < 60 && last.chars().all(of_rule);
    (is_rule && last.starts_with(|c: char| c.is_ascii_lowercase() || c == '@') && before.trim().contains(' '))
        .then_some(last)
}

/// A message (as it is shown) without the name of its rule, which stands in a column of its own in the tool's line.
pub(super) fn without_rule<'t>(line: &str, shown: &'t str) -> &'t str {
    let last = line.trim_end().rsplit("  ").next().unwrap_or_default().trim();
    let rule = column(line).is_some() || last.len() < 40 && !last.contains(' ') && last.contains(['-', '/']);
    shown.strip_suffix(last).filter(|_| rule).map_or(shown, str::trim_end)
}

/// A message without the folder that all have in common, its level and the name of its rule: what is left tells it.
pub(super) fn in_short(line: &str, below: &str) -> String {
    let mut short = line.trim().replacen(below, "", 1);
    for level in [": error: ", ": fatal error: ", " - error: ", " - error ", ": error "] {
        if let Some(at) = short.find(level).filter(|at| *at < 120) {
            let said = &short[at + level.len()..];
            // The level stands behind a place, and before a code where it has no mark of its own. In `error: error
            // validating "a"` and `cannot open a: error reading b` the word is part of what is said.
            let coded = || said.split(' ').next().is_some_and(is_code);
            let marked = level != ": error " || coded();
            if marked && place(&short[..at]).is_some() {
                short.replace_range(at..at + level.len(), ": ");
                break;
            }
        }
    }
    // `[attr-defined]`, `(reportReturnType)`: the last word, in brackets.
    let rule = short.rfind(['[', '(']).filter(|at| short.ends_with([']', ')']) && short.len() - at < 40 && *at > 20);
    if let Some(at) = rule.filter(|at| !short[*at..].contains(' ') && short[..*at].ends_with(' ')) {
        short.truncate(at);
    }
    short.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preview::signal::grade;

    #[test]
    fn a_message_is_told_from_a_search_result() {
        for (line, level) in [
            ("src/a.c:3:4: error: x", Some(Grade::Error)),
            ("shop/a.py:5: error: x  [name-defined]", Some(Grade::Error)),
            ("shop/a.py:5: note: x", Some(Grade::Mark)),
            ("a.py:1:8: F401 [*] `os` imported but unused", None),
            ("./a.go:5:2: undefined: x", None),
            ("a/b.py:6:23: W0613: Unused argument 'y'", Some(Grade::Warning)),
            ("a/b.py:6:23: E0602: Undefined variable 'y'", Some(Grade::Error)),
            ("src/a.ts(5,36): error TS2307: x", Some(Grade::Error)),
            ("src/a.ts:15:12 - error TS2339: x", Some(Grade::Error)),
            ("  /home/a/b.py:13:12 - error: x (reportY)", Some(Grade::Error)),
            ("lib/a.rb:6:5: W: [Correctable] Lint/X: y", Some(Grade::Warning)),
            ("src/A.java:8: error: cannot find symbol", Some(Grade::Error)),
            ("a.tf:1:2-9: warning: x", Some(Grade::Warning)),
        ] {
            let found = message(line).unwrap_or_else(|| panic!("no message: {line}"));
            assert_eq!(found, level, "{line}");
        }
        for line in [
            "src/a.rs:12:    let x = 1;",
            "src/a.rs:12:fn error() {}",
            "src/a.rs:12:5:fn x()",
            "src/a.c:12: * @param error",
            "tests/a.py::test_b PASSED",
            "12:41: started",
            "at a.js:3:4",
        ] {
            assert!(message(line).is_none(), "{line}");
        }
    }

    /// A tool that has no levels says few things of many places.
    #[test]
    fn many_lines_alike_are_messages_and_what_a_search_finds_is_not() {
        let of = |line: &dyn Fn(usize) -> String| {
            let text: String = (1..20).map(|n| line(n) + "\n").collect();
            let mut graded = grade(&text);
            regrade(&mut graded);
            (graded.messages, graded.grades.iter().filter(|grade| **grade == Grade::Error).count())
        };
        assert_eq!(of(&|n| format!("src/a.py:{n}: unused function 'f{n}' (60% confidence)")), (19, 19));
        assert_eq!(of(&|n| format!("src/a.js: line {n}, col 4, Missing semicolon.")), (19, 19));
        assert_eq!(
            of(&|n| format!("src/a.py:{n}: {} = {}", "abcdefghijklmnopqrst".get(n..).unwrap(), "x".repeat(n))),
            (0, 0)
        );
        assert_eq!(of(&|n| format!("src/a.rs:{n}:    let x = 1;")), (0, 0));
    }

    #[test]
    fn below_a_caret() {
        let text = "  site/a/b.html\n   L5 |<p id=\"x\">\n       ^ The id must be unique. (id-unique)\n";
        let mut graded = grade(text);
        regrade(&mut graded);
        assert_eq!((graded.grades[2], graded.named_at.get(&2)), (Grade::Error, Some(&0)));
        assert_eq!(place_below(&graded.lines, 0, 2).1, "site/a/b.html:5");
    }

    #[test]
    fn messages_below_the_name_of_their_file() {
        let text = "/home/a/b.js\n   2:7  warning  'z' is never  prefer-const\n  13:3  error    'm' is not defined  no-undef\n\nnothing";
        let mut graded = grade(text);
        regrade(&mut graded);
        assert_eq!(graded.grades[1..3], [Grade::Warning, Grade::Error]);
        assert_eq!(graded.named_at.get(&2), Some(&0));
        assert_eq!(place_below(&graded.lines, 0, 2), ("/home/a/b.js", "/home/a/b.js:13:3".to_owned()));
    }

    #[test]
    fn a_message_in_short_says_what_it_said() {
        for (line, short) in [
            (r#"error: error validating "a.yaml": error validating data"#, ""),
            ("cannot open a.txt: error reading it", ""),
            ("ld: error: undefined symbol: x", ""),
            ("b/a.c:3:4: error reading b", "a.c:3:4: error reading b"),
            ("b/a.c:3:4: error: error of x", "a.c:3:4: error of x"),
            ("b/a.ts(5,36): error TS2307: x", "a.ts(5,36): TS2307: x"),
            ("b/a.py:1:2 - error: it is no number (reportThing)", "a.py:1:2: it is no number"),
        ] {
            assert_eq!(in_short(line, "b/"), if short.is_empty() { line } else { short });
        }
    }
}
