//! Which lines of any output matter: errors, summaries, warnings, marks left by people. Works on words and their
//! surroundings, not on one tool's format; a format's own structure is read in the other files of this folder.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memchr_iter;

use super::clean::says_nothing;

/// How much a line matters by itself, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Grade {
    /// Nothing special.
    #[default]
    Plain,
    /// A note someone left for others: TODO, FIXME, HACK, NOTE, XXX.
    Mark,
    /// A warning.
    Warning,
    /// Words of trouble in running text.
    Trouble,
    /// Totals and ends: "3 failed, 12 passed", "exit code 1".
    Summary,
    /// An error as tools print it.
    Error,
}

/// How a word found in a line is judged by what stands around it.
#[derive(Clone, Copy)]
enum Rule {
    /// As it stands.
    Always(Grade),
    /// As it stands, at the beginning of a line.
    Starts(Grade),
    /// With no letter or digit on either side.
    Word(Grade),
    /// `error` in its many forms.
    ErrorWord,
    /// `exception`, mostly as the end of a class name.
    ExceptionWord,
    /// `fail`, `failed`, `failures`.
    FailWord,
    /// `warn`, `warning`.
    WarnWord,
    /// `passed`, with a number before it.
    Counted,
    /// TODO and its kin.
    MarkWord,
}

use Grade::{Error, Summary, Trouble};
use Rule::{Always, Counted, ErrorWord, ExceptionWord, FailWord, MarkWord, Starts, WarnWord, Word};

const TABLE: &[(&str, Rule)] = &[
    ("error", ErrorWord),
    ("err!", Always(Error)),
    ("exception", ExceptionWord),
    ("fail", FailWord),
    ("warn", WarnWord),
    ("passed", Counted),
    ("passing", Counted),
    ("todo", MarkWord),
    ("fixme", MarkWord),
    ("hack", MarkWord),
    ("xxx", MarkWord),
    ("note", MarkWord),
    ("bug", MarkWord),
    ("panicked at", Always(Error)),
    ("panic:", Word(Error)),
    ("fatal", Word(Error)),
    ("critical", Word(Trouble)),
    ("traceback (most recent", Always(Error)),
    ("segmentation fault", Always(Error)),
    ("core dumped", Always(Error)),
    ("undefined reference", Always(Error)),
    ("undefined symbol", Always(Error)),
    ("unresolved external", Always(Error)),
    ("unresolved import", Always(Error)),
    ("command not found", Always(Error)),
    ("no such file or directory", Always(Error)),
    ("permission denied", Always(Error)),
    ("not ok ", Starts(Error)),
    ("unhandled", Word(Trouble)),
    ("uncaught", Word(Error)),
    ("assertion failed", Always(Error)),
    ("caused by:", Always(Error)),
    ("out of memory", Always(Error)),
    ("stack overflow", Always(Trouble)),
    ("timed out", Word(Trouble)),
    ("connection refused", Always(Error)),
    // Kubernetes: `The Deployment "a" is invalid: spec…`.
    ("\" is invalid: ", Always(Error)),
    ("mismatch", Word(Trouble)),
    ("mismatched", Word(Trouble)),
    ("cannot", Word(Trouble)),
    ("can't", Word(Trouble)),
    ("could not", Word(Trouble)),
    ("unable to", Word(Trouble)),
    ("not found", Word(Trouble)),
    ("denied", Word(Trouble)),
    ("refused", Word(Trouble)),
    ("rejected", Word(Trouble)),
    ("corrupt", Word(Trouble)),
    ("corrupted", Word(Trouble)),
    ("missing", Word(Trouble)),
    ("unexpected", Word(Trouble)),
    ("deadlock", Word(Trouble)),
    ("timeout", Word(Trouble)),
    ("aborted", Word(Trouble)),
    ("abort", Word(Trouble)),
    ("killed", Word(Trouble)),
    ("conflict", Word(Trouble)),
    ("violation", Word(Trouble)),
    ("invalid", Word(Trouble)),
    ("unstable", Word(Trouble)),
    ("deprecated", Word(Grade::Warning)),
    ("test result:", Always(Summary)),
    ("tests run:", Always(Summary)),
    ("tests:", Starts(Summary)),
    ("test suites:", Starts(Summary)),
    ("test files ", Starts(Summary)),
    ("tests finished", Always(Summary)),
    ("build succe", Always(Summary)),
    ("exit code", Word(Summary)),
    ("exit status", Word(Summary)),
    ("exited with", Word(Summary)),
    ("returned non-zero", Always(Summary)),
    ("finished:", Starts(Summary)),
    ("time elapsed", Starts(Summary)),
    ("错误", Always(Trouble)),
    ("錯誤", Always(Trouble)),
    ("失败", Always(Trouble)),
    ("失敗", Always(Trouble)),
    ("异常", Always(Trouble)),
    ("エラー", Always(Trouble)),
    ("오류", Always(Trouble)),
    ("실패", Always(Trouble)),
    ("Ошибка", Always(Error)),
    ("ошибка", Always(Error)),
    ("erreur", Word(Error)),
    ("fehler", Word(Error)),
    ("fehlgeschlagen", Word(Trouble)),
    ("échec", Always(Trouble)),
    ("fallo", Word(Trouble)),
    ("erro", Word(Error)),
];

static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .ascii_case_insensitive(true)
        .build(TABLE.iter().map(|(word, _)| *word))
        .expect("the patterns are constants and few")
});

/// A text cut into lines, each with its grade.
pub(crate) struct Graded<'t> {
    /// The lines, without their line breaks.
    pub(crate) lines: Vec<&'t str>,
    /// One grade a line.
    pub(crate) grades: Vec<Grade>,
    /// Of messages below the name of their file, the line of that name.
    pub(crate) named_at: HashMap<usize, usize>,
    /// Messages of compilers and linters, by their form.
    pub(crate) messages: usize,
    /// Those of them without a level, where none has one.
    pub(crate) plain_messages: usize,
    /// Lines that are messages because many say the same of many places.
    pub(crate) by_family: HashSet<usize>,
}

/// Cuts a text into lines (without `\r`); an empty last line is left out.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    let mut out = Vec::with_capacity(text.len() / 48 + 1);
    let mut start = 0;
    for end in memchr_iter(b'\n', text.as_bytes()) {
        out.push(text[start..end].trim_end_matches('\r'));
        start = end + 1;
    }
    if start < text.len() {
        out.push(text[start..].trim_end_matches('\r'));
    }
    out
}

/// Grades every line of a text in one pass over it.
pub(crate) fn grade(text: &str) -> Graded<'_> {
    let mut starts = vec![0];
    starts.extend(memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1));
    let lines = lines(text);
    let mut grades = vec![Grade::Plain; lines.len()];
    let mut line = 0;
    // Of lines on which every word is a match (a minified file) only so many matches are looked at.
    let mut looked = 0;
    for hit in WORDS.find_iter(text) {
        while starts.get(line + 1).is_some_and(|&next| next <= hit.start()) {
            line += 1;
            looked = 0;
        }
        looked += 1;
        let Some(body) = lines.get(line) else { break };
        if grades[line] == Error || looked > 16 {
            continue;
        }
        let at = hit.start() - starts[line];
        let found = judge(TABLE[hit.pattern().as_usize()].1, body, at, hit.len());
        if found > grades[line] && !(found > Grade::Mark && is_success(body)) && !(found == Trouble && is_chatter(body))
        {
            grades[line] = found;
        }
    }
    Graded { lines, grades, named_at: HashMap::new(), messages: 0, plain_messages: 0, by_family: HashSet::new() }
}

/// Grades one line.
pub(crate) fn grade_line(line: &str) -> Grade {
    grade(line).grades.first().copied().unwrap_or_default()
}

/// A line that reports a success, whatever words its test's name is made of.
fn is_success(line: &str) -> bool {
    let line = line.trim();
    [" ok", "PASSED", " PASS", "skipped", " SKIPPED", "✓", "✔", "... passed"].iter().any(|end| line.ends_with(end))
        || ["PASSED ", "ok ", "✓", "✔", "--- PASS", "--- SKIP", "PASS ", "Skipping "]
            .iter()
            .any(|start| line.starts_with(start))
        || line.contains(" PASSED ")
        || line.contains("... ok")
}

/// A line that its own tool calls unimportant.
fn is_chatter(line: &str) -> bool {
    let head = &line[..super::clean::floor(line, 48)];
    ["INFO", "DEBUG", "TRACE", "level=info", "level=debug"].iter().any(|tag| head.contains(tag))
}

fn judge(rule: Rule, line: &str, at: usize, len: usize) -> Grade {
    let (Some(before), Some(word), Some(after)) = (line.get(..at), line.get(at..at + len), line.get(at + len..)) else {
        return Grade::Plain;
    };
    let b = before.as_bytes().last().copied().unwrap_or(b' ');
    let a = after.as_bytes().first().copied().unwrap_or(b' ');
    let joined = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let alone = !joined(b) && !joined(a);
    match rule {
        Always(grade) => grade,
        Starts(grade) => pick(before.trim().is_empty(), grade),
        Word(grade) => pick(alone && b != b'-' && a != b'(' && a != b'=', grade),
        Counted => pick(alone && number_before(before).is_some(), Summary),
        ErrorWord => error_word(before, word, after, b, a),
        ExceptionWord => class_name(before, word, after, b, a).max(pick(after.starts_with(" in thread"), Error)),
        FailWord => fail_word(before, word, after, b),
        WarnWord => warn_word(before, word, after, b),
        MarkWord => mark_word(before, word, after, b, a),
    }
}

fn pick(yes: bool, grade: Grade) -> Grade {
    if yes { grade } else { Grade::Plain }
}

/// The number that stands right before, as in `12 errors`.
fn number_before(before: &str) -> Option<u64> {
    let digits = before.trim_end();
    let start = digits
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |i| i + digits[i..].chars().next().map_or(1, char::len_utf8));
    digits[start..].parse().ok()
}

/// The number that follows, as in `Errors: 12` or `failures=3`.
fn number_after(after: &str) -> Option<u64> {
    let rest = after.trim_start_matches(['s', 'S', ')', '(', ':', '=', ' ']);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn error_word(before: &str, word: &str, after: &str, b: u8, a: u8) -> Grade {
    if b.is_ascii_alphanumeric() {
        return if word.starts_with('E') { class_name(before, word, after, b, a) } else { Grade::Plain };
    }
    if matches!(b, b'_' | b'-') || matches!(a, b'_' | b'-') || a == b'(' && !after.starts_with("(s)") {
        return Grade::Plain;
    }
    if let Some(plural) = after.strip_prefix("(s)").or_else(|| after.strip_prefix(['s', 'S'])) {
        let next = plural.bytes().next().unwrap_or(b' ');
        return match (number_before(before), number_after(plural)) {
            (Some(0), _) | (None, Some(0)) => Grade::Plain,
            (Some(_), _) | (None, Some(_)) => Summary,
            _ => pick(!joined_or_dot(next) && next == b':', Trouble),
        };
    }
    if joined_or_dot(a) {
        return Grade::Plain;
    }
    // `Error: (none)`, as Qwen Code and Gemini CLI end each command that went well.
    if after.strip_prefix(':').is_some_and(|rest| says_nothing(rest) && !rest.trim().is_empty()) {
        return Grade::Plain;
    }
    if number_before(before) == Some(0) || after.starts_with("::") {
        return Grade::Plain;
    }
    // Code that prints an error is no error: the word stands in a string that is an argument.
    let quoted = |mark: u8| before.bytes().filter(|b| *b == mark).count() % 2 == 1;
    if before.contains('(') && (quoted(b'"') || quoted(b'`')) {
        return Grade::Plain;
    }
    // `error: x`, `error[E0308]`, `error TS2307: x`, `[ERROR] x`, `level=error`, `ERROR x`, `Error x` at the start
    let code = after.strip_prefix(' ').is_some_and(|rest| {
        let letters = rest.bytes().take_while(u8::is_ascii_uppercase).count();
        (1..=8).contains(&letters) && rest.as_bytes().get(letters).is_some_and(u8::is_ascii_digit)
    });
    let start = before.trim().is_empty() || before.trim_end() == "npm";
    // `error parsing a.yaml: x`, as kubectl, git and Terraform say what they were doing.
    let doing = before.trim().is_empty()
        && after.strip_prefix(' ').and_then(|rest| rest.split_once(": ")).is_some_and(|(what, _)| {
            what.split(' ').next().is_some_and(|verb| verb.ends_with("ing") && verb.len() > 4)
        });
    let tagged = b == b'[' && a == b']' || before.ends_with("level=") || before.ends_with("level\":\"");
    let colon = a == b':' && after.as_bytes().get(1) != Some(&b':');
    if colon
        || a == b'['
        || code
        || doing
        || tagged
        || start && word != "error"
        || word == "ERROR"
        || before.trim_end() == "npm"
    {
        return Error;
    }
    pick(a != b'=' && a != b'.', Trouble)
}

fn joined_or_dot(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_'
}

/// `ValueError: x`, `java.lang.IllegalStateException: x` where such a line begins, also after pytest's `E   `.
fn class_name(before: &str, word: &str, after: &str, b: u8, a: u8) -> Grade {
    if !b.is_ascii_alphanumeric() {
        return pick(!joined_or_dot(a) && a != b'(' && a != b's' && word.starts_with(['e', 'E']) && a == b':', Trouble);
    }
    if !word.starts_with('E')
        || !(a == b':' || after.trim().is_empty() || after.starts_with(" ["))
        || after.starts_with("::")
    {
        return Grade::Plain;
    }
    let head = before.trim_start();
    let head = head.strip_prefix("E ").unwrap_or(head).trim_start();
    // `isError: false` is a field.
    let class =
        head.rsplit('.').next().is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_'));
    let named = class && head.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'$'));
    let after_space =
        head.rsplit([' ', '[', '(', '=']).next().is_some_and(|w| w.starts_with(|c: char| c.is_ascii_uppercase()));
    // `except KeyError:` catches one; it says no more than that.
    let told = a == b':' && !after[1..].trim().is_empty();
    pick(named, Error).max(pick(after_space && told, Error))
}

fn fail_word(before: &str, word: &str, after: &str, b: u8) -> Grade {
    if b.is_ascii_alphanumeric() || b == b'_' || b == b'-' && !before.ends_with("--- ") {
        return Grade::Plain;
    }
    let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
    let (rest, next) = (&after[..end], after.as_bytes().get(end).copied().unwrap_or(b' '));
    if matches!(next, b'_' | b'(' | b'-') && !after[end..].starts_with("(s)") || next.is_ascii_digit() {
        return Grade::Plain;
    }
    if !matches!(rest.to_ascii_lowercase().as_str(), "" | "s" | "ed" | "ure" | "ures" | "ing") {
        return Grade::Plain;
    }
    let upper = word == "FAIL" && rest.bytes().all(|c| c.is_ascii_uppercase());
    match (number_before(before), number_after(&after[end..])) {
        (Some(0), _) | (None, Some(0)) => return Grade::Plain,
        (Some(_), _) => return Summary,
        (None, Some(_)) if matches!(next, b':' | b'=') => return Summary,
        // `# fail 4`, as TAP counts.
        (None, Some(n)) if !before.contains(char::is_alphanumeric) && after[end..].trim() == n.to_string() => {
            return Summary;
        }
        _ => {}
    }
    if upper && (rest.is_empty() || rest == "ED" || rest == "URE") {
        return Error;
    }
    if rest == "ed" && after[end..].starts_with(" to ") { Error } else { Trouble }
}

fn warn_word(before: &str, word: &str, after: &str, b: u8) -> Grade {
    if b == b'_' || b == b'-' || b.is_ascii_lowercase() {
        return Grade::Plain;
    }
    let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
    let (rest, next) = (&after[..end], after.as_bytes().get(end).copied().unwrap_or(b' '));
    match rest.to_ascii_lowercase().as_str() {
        "ings" | "ing" if number_before(before).is_some_and(|n| n > 0) => return Summary,
        "ing" | "" => {}
        _ => return Grade::Plain,
    }
    let code = next == b' ' && after.as_bytes().get(end + 1).is_some_and(u8::is_ascii_uppercase);
    let tagged = matches!(next, b':' | b'[' | b']') || code || before.trim_end() == "npm" || word == "WARN";
    pick(tagged && next != b'(' && next != b'_', Grade::Warning)
}

fn mark_word(before: &str, word: &str, after: &str, b: u8, a: u8) -> Grade {
    let closed = matches!(a, b':' | b'(' | b' ' | b']') || after.is_empty();
    if !word.bytes().all(|c| c.is_ascii_uppercase())
        || !closed
        || b.is_ascii_alphanumeric()
        || matches!(b, b'_' | b'.' | b'\\' | b'/' | b'-')
    {
        // `//TODO` is a comment all the same.
        if !(before.trim_end().ends_with("//") && closed && word.bytes().all(|c| c.is_ascii_uppercase())) {
            return Grade::Plain;
        }
    }
    let comment = ["//", "#", "/*", "--", "<!--", "\"\"\"", ";", "%", "* "].iter().any(|c| before.contains(c));
    pick(comment || before.trim().is_empty() && a == b':', Grade::Mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grades() {
        let table: &[(Grade, &[&str])] = &[
            (
                Error,
                &[
                    "error[E0599]: no method named `x`",
                    "src/a.ts(5,36): error TS2307: Cannot find module",
                    "a.cpp:7:120: error: no match",
                    "[12:41.882] ERROR checksum differs",
                    "E   ModuleNotFoundError: No module named 'x'",
                    "ValueError: bad",
                    "Exception in thread \"main\" java.lang.RuntimeException: x",
                    "Caused by: java.io.IOException: y",
                    "FAILED tests/a.py::test_b - assert 1 == 2",
                    "--- FAIL: TestX (0.00s)",
                    "FAIL: test_x (a.B)",
                    "thread 'main' panicked at src/a.rs:1:2:",
                    "npm error Missing script: \"biuld\"",
                    "not ok 3 - adds",
                    "[ERROR] COMPILATION ERROR :",
                    "bash: foo: command not found",
                    "time=\"x\" level=error msg=\"y\"",
                    "fatal: not a git repository",
                ],
            ),
            (
                Summary,
                &[
                    "test result: FAILED. 1 passed; 2 failed; 0 ignored",
                    "1 failed, 80 passed in 2.53s",
                    "    46 Warning(s)",
                    "    11 Error(s)",
                    "FAILED (failures=3, errors=1)",
                    "Process finished with exit code 1",
                ],
            ),
            (
                Grade::Warning,
                &["warning: unused variable: `x`", "a.c:1:2: warning: y", "npm warn config", "[WARNING] z"],
            ),
            (
                Trouble,
                &[
                    "snapshot rejected",
                    "checksum mismatch at offset 5",
                    "构建失败",
                    "the connection was refused by peer",
                ],
            ),
            (
                Grade::Mark,
                &["    // HACK(mlo): keep 9 spare sockets", "# TODO: later", "x = 1  # FIXME now", "NOTE: read this"],
            ),
            (
                Grade::Plain,
                &[
                    "test_message_error (admin.Tests) ... ok",
                    "test error::fails ... ok",
                    "done with 0 errors, 0 failures",
                    "    -   Error(",
                    "    raise ValueError(x)",
                    "        errors = {}",
                    "-            except ValueError:",
                    "  isError: message.isError,",
                    "PASSED testing/test_a.py::test_fail",
                    "[writing ch/ipi/ErrorStatus.class - #141]",
                    "   Compiling thiserror v1.0",
                    "C:\\Dev\\XXX.XXX2.sln",
                    "let note = 1; // nothing",
                    "return Err(Error::SnapshotProbe(158));",
                    "    asprintf(str, \"Unknown error: %d\", errnum);",
                    "   Compiling libc v0.2",
                ],
            ),
        ];
        for (want, lines) in table {
            for line in *lines {
                let got = grade_line(line);
                // A total may be graded as an error as well: both are kept.
                assert!(got == *want || *want == Summary && got == Error, "{line:?}: {got:?}, not {want:?}");
            }
        }
    }
}
