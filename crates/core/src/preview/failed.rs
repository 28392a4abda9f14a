//! Failed tests: the line that names one, and in the block around it why it failed and where. Knows how test runners lay out
//! a failure (a name, then what was expected and what came, or the other way round), not any one runner's format.

use std::collections::HashMap;

use super::clean::{floor, shorten};
use super::place::place;
use super::reason::weighed;
use super::signal::{Grade, Graded};

/// Lines below a name that are looked at.
const BELOW: usize = 160;

/// Lines above a name that are looked at, where the reason comes first (Go).
const ABOVE: usize = 24;

/// Of output with more failures than this the rest is left to the totals.
const MOST: usize = 400;

/// One failure: the lines that tell of it.
#[derive(Debug)]
pub(super) struct Failure {
    /// The line that names it.
    pub(super) name: usize,
    /// What it is called.
    pub(super) called: String,
    /// Where: as it is written, on which line.
    pub(super) places: Vec<(usize, String)>,
    /// The lines that say why, with what they weigh: 0 most.
    pub(super) says: Vec<(usize, u16)>,
    /// The line after the block.
    pub(super) end: usize,
    /// Whether it is a suite that failed only because of its tests.
    pub(super) suite: bool,
}

/// All failures that have a reason or a place beside their name.
pub(super) fn failures(graded: &Graded<'_>, muted: &std::ops::Range<usize>) -> Vec<Failure> {
    let (lines, grades) = (&graded.lines[..], &graded.grades[..]);
    // `× text` may be a linter's message.
    let message =
        |at: usize| graded.named_at.contains_key(&at) || lines.get(at + 1).is_some_and(|l| super::message::is_arrow(l));
    let mut found: Vec<Failure> = Vec::new();
    let mut at = 0;
    while at < lines.len() && found.len() < MOST {
        if muted.contains(&at) {
            at = muted.end;
            continue;
        }
        let Some(heading) = heading(lines[at]).or_else(|| ruled(lines, at)).filter(|_| !message(at)) else {
            at += 1;
            continue;
        };
        let failure = read(lines, grades, at, heading, found.last().map_or(0, |f| f.end));
        let mut block = grades[failure.name..failure.end.min(grades.len())].iter();
        let went_well = heading == Look::Scenario && !block.any(|grade| *grade == Grade::Error);
        // A name alone (a list of what failed, a suite above its total) is left to the lines' own grades.
        if !went_well && failure.says.iter().any(|(line, _)| grades[*line] != Grade::Summary) {
            at = failure.end.max(at + 1);
            found.push(failure);
        } else {
            at += 1;
        }
    }
    found
}

/// Failures without those that are told twice: of such the one that says more stays.
pub(super) fn distinct(lines: &[&str], failures: Vec<Failure>) -> Vec<Failure> {
    let mut kept: Vec<Failure> = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for failure in failures {
        let key = key(&failure.called).unwrap_or(&failure.called).to_owned();
        let worth = |f: &Failure| (usize::from(!f.places.is_empty()), f.says.len());
        let said = |f: &Failure| f.says.first().map(|(i, _)| lines[*i].trim_start_matches([' ', '→', '\'']).to_owned());
        match seen.get(&key) {
            Some(&at)
                if said(&kept[at]) == said(&failure) || kept[at].places.is_empty() || failure.places.is_empty() =>
            {
                if worth(&failure) > worth(&kept[at]) {
                    kept[at] = failure;
                }
            }
            _ => {
                seen.insert(key, kept.len());
                kept.push(failure);
            }
        }
    }
    kept
}

/// How the line that names a failure looks.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    /// `____ name ____`, `---- name stdout ----`.
    Ruler,
    /// `1) name`.
    Number,
    /// `✕ name`, `● name`.
    Bullet,
    /// `not ok 3 - name`.
    Tap,
    /// `--- FAIL: name`: the reason may stand above.
    Go,
    /// `FAIL: name`, `FAILED name`, `[  FAILED  ] name`, `x.cc:12: Failure`.
    Word,
    /// `thread 'x' panicked at a.rs:1:2:`, `panic: x`.
    Panic,
    /// `│ Error: text`, in a drawn box.
    Box,
    /// `Failed example:`, below the place and the name.
    Example,
    /// `Scenario: name`: its steps stand below, whether they went well or not.
    Scenario,
}

fn heading(line: &str) -> Option<Look> {
    let body = line.trim();
    let first = body.chars().next()?;
    if body.len() > 400 {
        return None;
    }
    if body.starts_with("--- FAIL") {
        return Some(Look::Go);
    }
    match first {
        '_' | '-' | '─' if body.len() > 8 && body.ends_with(first) => {
            let name = body.trim_matches([first, ' ']);
            let stdout = first == '_' || ["stdout", "stderr"].iter().any(|w| name.ends_with(w));
            return (!name.is_empty() && !name.starts_with("coverage") && stdout && body.starts_with(&line[..1]))
                .then_some(Look::Ruler);
        }
        '●' | '✕' | '✗' | '✖' | '×' | '✘' => return Some(Look::Bullet),
        '0'..='9' => {
            let digits = body.bytes().take_while(u8::is_ascii_digit).count();
            let rest = &body[digits..];
            let numbered = digits <= 4 && rest.strip_prefix(") ").is_some_and(|r| !r.trim().is_empty());
            if numbered {
                return Some(Look::Number);
            }
        }
        _ => {}
    }
    if body.contains(" panicked at ") || body.starts_with("panic: ") {
        return Some(Look::Panic);
    }
    if body.starts_with("│ Error: ") {
        return Some(Look::Box);
    }
    if body.starts_with("not ok ") {
        return Some(Look::Tap);
    }
    if body == "Failed example:" {
        return Some(Look::Example);
    }
    if ["Scenario: ", "Scenario Outline: ", "Example: "].iter().any(|word| body.starts_with(word)) {
        return Some(Look::Scenario);
    }
    if body.trim_start_matches(['#', ' ']).starts_with("Failed test '") {
        return Some(Look::Tap);
    }
    let word =
        ["FAIL: ", "ERROR: ", "FAIL  ", "FAIL [", "FAIL \"", "[  FAILED  ] "].iter().any(|w| body.starts_with(w))
            || body.starts_with("Failed ") && body.ends_with("s]")
            || matches!(body, "[FAIL]" | "[ERROR]");
    let tail = ["<<< FAILURE!", "<<< ERROR!", "| FAIL |", "***Failed", "***Exception: SegFault", ": Failure"]
        .iter()
        .any(|w| body.ends_with(w))
        || body.contains("***Failed ")
        || body.ends_with(" FAILED") && !body.contains("::") && !body.starts_with("test ");
    (word || tail).then_some(Look::Word)
}

/// A name between rules, where a line below says that it failed at a place.
fn ruled(lines: &[&str], at: usize) -> Option<Look> {
    let body = lines[at].trim();
    let name = body.strip_prefix("────")?.strip_suffix("────")?.trim_matches(['─', ' ']);
    let below = lines[at + 1..].iter().filter(|line| !line.trim().is_empty()).take(2);
    let failed = |line: &&str| line.trim_start().starts_with("Failed ") && place(line).is_some();
    (!name.is_empty() && below.into_iter().any(failed)).then_some(Look::Ruler)
}

fn is_indented(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A line of nothing but dashes.
fn is_ruled(line: &str) -> bool {
    line.len() > 20 && line.bytes().all(|byte| byte == b'-')
}

/// A line that says that something else went well, or a rule between sections.
fn ends(line: &str) -> bool {
    let body = line.trim();
    let starts = [
        "ok ",
        "✓",
        "✔",
        "√",
        "--- PASS",
        "--- SKIP",
        "=== RUN",
        "=== PAUSE",
        "=== CONT",
        "=== NAME",
        "[       OK",
        "[ RUN ",
        "[----",
        "PASS ",
        "PASS:",
        "failures:",
        "test result:",
        "Test Suites:",
        "Tests:",
        "Tests run:",
        "[INFO]",
        "# Subtest:",
        "▶ ",
        "=====",
        "⎯⎯⎯⎯⎯⎯",
        "Start ",
    ];
    // The next test of CMake's runner: `test 40`.
    let next = body.strip_prefix("test ").is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()));
    next || starts.iter().any(|s| body.starts_with(s))
        || body.ends_with("... ok")
        || body.ends_with(" PASSED")
        || body.ends_with("| PASS |")
}

/// Reads the block of a failure.
fn read(lines: &[&str], grades: &[Grade], at: usize, look: Look, floor: usize) -> Failure {
    let base = indent(lines[at]);
    let mut end = at + 1;
    let mut named = at + 1;
    let mut blank = 0;
    while end < lines.len() && end - at < BELOW {
        let line = lines[end];
        if line.trim().is_empty() {
            blank += 1;
            if blank > 3 {
                break;
            }
            end += 1;
            continue;
        }
        blank = 0;
        let other = heading(line);
        let over = match look {
            Look::Tap => line.trim() == "..." || other == Some(Look::Tap) || !line.starts_with(['#', ' ']),
            Look::Go => !is_indented(line) || other.is_some(),
            Look::Bullet => other.is_some() && other != Some(Look::Panic) || !is_indented(line) && base > 0,
            Look::Ruler => other == Some(Look::Ruler) || line.starts_with("===") || line.starts_with("────"),
            Look::Example => line.starts_with("*****"),
            Look::Panic => line.starts_with("stack backtrace") || line.starts_with("note: run with") || other.is_some(),
            Look::Box => !line.trim_start().starts_with('│'),
            Look::Scenario => other.is_some() || !is_indented(line),
            // A line that rules off ends a table's cell; below a name it is underlined.
            Look::Number | Look::Word => other.is_some() || end > at + 1 && is_ruled(line),
        };
        if over || look != Look::Ruler && ends(line) {
            break;
        }
        end += 1;
        // The name goes on below a number: `1) Failure:`, or a suite above its test.
        if look == Look::Number && end == named + 1 && line.trim_end().ends_with(':') && grades[named] != Grade::Error {
            named = end;
        }
    }
    let block = gathered(lines, look, (at, named, end), floor);
    // GoogleTest: the place is the heading, the name stands below.
    let mut called: Vec<&str> = (at..named).map(|i| lines[i].trim()).collect();
    if lines[at].trim_end().ends_with(": Failure")
        && let Some(below) = lines.get(end).filter(|l| l.starts_with("[  FAILED  ]"))
    {
        called.push(below.trim());
        end += 1;
    }
    called = named_elsewhere(lines, look, at, &block).unwrap_or(called);
    let name = name(&called.join(" "));
    let (places, says) = weighed(lines, grades, &block, &name);
    let inner = |l: &&str| ["subtestsFailed", "subtest failed'", "subtests failed'"].iter().any(|w| l.contains(w));
    let suite = lines[at..end].iter().any(inner);
    Failure { name: at, called: name, places, says, end, suite }
}

/// The lines of a failure's block, and those above its name that belong to it.
fn gathered(lines: &[&str], look: Look, (at, named, end): (usize, usize, usize), floor: usize) -> Vec<usize> {
    let mut block: Vec<usize> = (named..end).collect();
    // Python's doctest: `File "a.py", line 12, in a.name` stands above.
    let above = at.checked_sub(1).filter(|above| look == Look::Example && lines[*above].contains("\", line "));
    block.splice(0..0, above);
    if look == Look::Go {
        let above = (at.saturating_sub(ABOVE).max(floor)..at).rev();
        let above = above.take_while(|&i| is_indented(lines[i]) && heading(lines[i]).is_none() && !ends(lines[i]));
        block.splice(0..0, above.collect::<Vec<_>>().into_iter().rev());
    }
    // `ctest -V`: what a test printed stands above its verdict, each line behind the test's number.
    if let Some(mark) = ctest_mark(lines[at]) {
        let above = (at.saturating_sub(BELOW)..at).rev().take_while(|&i| lines[i].starts_with(&mark));
        let idle = |i: &usize| CTEST_IDLE.iter().any(|start| lines[*i][mark.len()..].starts_with(start));
        let mut printed: Vec<usize> = above.filter(|i| !idle(i)).collect();
        printed.reverse();
        block.splice(0..0, printed);
    }
    block
}

/// The names of a failure that stand in other lines than its heading.
fn named_elsewhere<'t>(lines: &[&'t str], look: Look, at: usize, block: &[usize]) -> Option<Vec<&'t str>> {
    if look == Look::Example {
        let (_, name) = lines[at.checked_sub(1)?].rsplit_once(", in ")?;
        return Some(vec![name.trim()]);
    }
    // Twisted's trial: a verdict alone, and the names of the tests at the end.
    if !matches!(lines[at].trim(), "[FAIL]" | "[ERROR]") {
        return None;
    }
    let full = block.iter().rev().map(|i| lines[*i].trim()).filter(|line| !line.is_empty());
    let names: Vec<&str> = full.take_while(|line| !line.contains([' ', ':'])).take(3).collect();
    (!names.is_empty()).then_some(names)
}

/// What CMake's runner itself says of a test before that runs.
const CTEST_IDLE: [&str; 4] =
    ["Test command:", "Working Directory:", "Test timeout computed", "Environment variables:"];

/// What stands before each line that a test printed, by its verdict: `39/199 Test #39: a ....***Failed`.
fn ctest_mark(verdict: &str) -> Option<String> {
    let (_, rest) = verdict.split_once(" Test ").filter(|_| verdict.contains("***"))?;
    let number = rest.trim_start().strip_prefix('#')?.split(':').next()?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| format!("{number}: "))
}

/// A heading without what rules it off.
fn name(heading: &str) -> String {
    let bare = heading.trim_matches(|c: char| matches!(c, '_' | '=' | '─' | '━' | '⎯' | '│' | ' '));
    let bare = bare.trim_end_matches('-').trim();
    let bare = bare.strip_prefix("---- ").unwrap_or(bare);
    // unittest says the name once more, behind its class: `FAIL: test_a (tests.test_x.XTest.test_a)`.
    let again = bare.rsplit_once(" (").filter(|(name, path)| {
        let last = path.strip_suffix(')').and_then(|path| path.rsplit('.').next());
        last.is_some_and(|last| name.ends_with(last) && last.len() > 3)
    });
    let bare = again.map_or(bare, |(name, _)| name);
    shorten(&bare.split_whitespace().collect::<Vec<_>>().join(" "), 240).into_owned()
}

/// The name of a failed test in a line that names it once more: its last part, of a path like `file::class::test`.
pub(super) fn name_in(line: &str) -> Option<&str> {
    match line.split([' ', '\t', '\'']).find(|word| word.contains("::")) {
        Some(test) => test.rsplit("::").next().filter(|name| name.len() > 2),
        None => key(line),
    }
}

/// What names a failure, in a line that reports it: without marks, numbers, times and what is said of it.
pub(super) fn key(line: &str) -> Option<&str> {
    let mut body = line.trim().trim_matches(|c: char| matches!(c, '_' | '=' | '─' | '━' | '⎯' | ' ' | '*'));
    for start in ["FAILED", "FAIL", "ERROR", "--- FAIL:", "---- ", "[  FAILED  ]", "not ok", "test ", "Failed"] {
        body = body.strip_prefix(start).unwrap_or(body).trim_start_matches([':', ' ', '\t']);
    }
    body = body.trim_start_matches(['✕', '✗', '✖', '×', '✘', '●', ' ']);
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    body = body[digits..].strip_prefix([')', ' ']).map_or(body, |rest| rest.trim_start_matches(['-', ' ']));
    for end in [" ... FAILED", " ... FAIL", " ... ERROR", " FAILED", " stdout", " stderr"] {
        body = body.strip_suffix(end).unwrap_or(body);
    }
    // `name (0.5ms)`, `name 8ms`, `name (FAILED - 1)`, `name (module.Class)`, `name ──`
    let cut = body.rfind(" (").filter(|at| body.ends_with(')') && *at > 2).unwrap_or(body.len());
    body = body[..cut].trim_end_matches(['─', ':', ' ']);
    if let Some((name, time)) = body.rsplit_once(' ')
        && time.ends_with("ms")
        && time.starts_with(|c: char| c.is_ascii_digit())
    {
        body = name;
    }
    (body.len() > 3 && body.len() < 300).then_some(body)
}

impl Failure {
    /// The failure on a few lines: name, place and reasons, in about `width` bytes a line.
    pub(super) fn told(&self, lines: &[&str], width: usize, most: usize, below: &str) -> String {
        let mut out = shorten(&self.called, width.max(120)).into_owned();
        let says: Vec<&(usize, u16)> = {
            let mut best: Vec<&(usize, u16)> = self.says.iter().collect();
            best.sort_by_key(|(i, weight)| (*weight, *i));
            // In short, what was expected and what came say all.
            let sure = best.iter().filter(|(_, weight)| *weight == 0).count();
            if most <= 3 && sure > 0 {
                best.retain(|(_, weight)| *weight == 0 || *weight == 1 && sure == 1);
            }
            best.truncate(most);
            // RSpec quotes the line; what was expected and what came say more.
            let quotes = |i: usize| lines[i].trim_start().starts_with("Failure/Error:");
            if most <= 3 && best.len() > 2 {
                best.retain(|(i, _)| !quotes(*i));
            }
            best.sort_unstable();
            best
        };
        let mut shown = out.clone();
        let mut add = |text: &str, out: &mut String| {
            // `ArgumentError:` below `raise ArgumentError, 'x'` says nothing more.
            if !shown.contains(text.strip_suffix(':').unwrap_or(text)) {
                out.push_str("\n  ");
                out.push_str(text);
                shown.push_str(text);
            }
        };
        // In short, of two places in one file the one where it broke.
        let one = most <= 3 && self.places.len() == 2 && file_of(&self.places[0].1) == file_of(&self.places[1].1);
        for (_, place) in &self.places[usize::from(one)..] {
            if !says.iter().any(|(i, _)| lines[*i].contains(place.as_str())) {
                add(&shorten(&place.replacen(below, "", 1), width.max(100)), &mut out);
            }
        }
        let mut reasons = String::new();
        for (i, _) in says {
            let body = lines[*i].trim().trim_start_matches(['│', ' ']);
            let body = body.strip_prefix("E ").map_or(body, str::trim_start);
            // `- 4888` below `expected 4309 to be 4888` says nothing more.
            if most <= 3 && compared(body).is_some_and(|value| reasons.contains(value)) {
                continue;
            }
            reasons.push_str(body);
            add(&shorten(&body[..floor(body, 2000)], width), &mut out);
        }
        out
    }
}

/// The value in a line that compares one with another: `- 4888`, `actual: 4903,`.
fn compared(line: &str) -> Option<&str> {
    let value = match line.strip_prefix(['+', '-']) {
        Some(value) => value,
        None => ["actual: ", "expected: "].iter().find_map(|side| line.strip_prefix(side)?.strip_suffix(','))?,
    };
    Some(value.trim().trim_end_matches(',')).filter(|value| value.len() > 2)
}

/// The file of a place.
pub(super) fn file_of(place: &str) -> &str {
    self::place(place).map_or(place, |found| found.file)
}

#[cfg(test)]
mod tests {
    use super::super::signal::grade;
    use super::*;

    #[test]
    fn failures_by_runner() {
        for (text, called, wanted) in [
            (
                "thread 'a' panicked at src/a.rs:3:9:\nassertion `left == right` failed\n  left: 1\n right: 2\nnote: run with\nx",
                "panicked",
                &["assertion `left == right` failed", "left: 1", "right: 2", "src/a.rs:3:9"][..],
            ),
            (
                "=== RUN A\n    a_test.go:5: got 1, want 2\n--- FAIL: A (0.1s)\n--- PASS: B",
                "--- FAIL: A",
                &["a_test.go:5: got 1, want 2"],
            ),
            (
                "--- FAIL: A (0.1s)\n    a_test.go:5: it is late\n=== RUN B\n    b_test.go:1: fine",
                "--- FAIL: A",
                &["a_test.go:5: it is late"],
            ),
            (
                "  ● suite › a\n\n    expect(received).toBe(expected)\n\n    Expected: 3\n    Received: 4\n\n      at x (a.ts:1:2)\n\nPASS b",
                "suite › a",
                &["Expected: 3", "Received: 4", "a.ts:1:2"],
            ),
            ("not ok 3 - a\n  ---\n  message: 'no'\n  ...\nok 4", "not ok 3 - a", &["message: 'no'"]),
            (
                "____ test_a ____\n\n    def test_a():\n>       assert x == 2\nE       assert 1 == 2\n\ntests/t.py:5: AssertionError\n==== short ====",
                "test_a",
                &["assert 1 == 2", "tests/t.py:5"],
            ),
            (
                "  Scenario: keeps a  # f/a.feature:5\n    Given b  # f/s.py:2\n      ASSERT FAILED: costs 7, not 8\n\n  Scenario: c",
                "Scenario: keeps a # f/a.feature:5",
                &["ASSERT FAILED: costs 7, not 8"],
            ),
            (
                "test 39\n    Start 39: a\n\n39: Test command: /b/a\n39: src/a.c:51: check failed: got 1, want 2\n39/199 Test #39: a ....***Failed 0.01 sec\ntest 40\n    Start 40: b",
                "39/199 Test #39: a",
                &["39: src/a.c:51: check failed: got 1, want 2"],
            ),
            (
                "Keeps B 1                 | FAIL |\n754 != 755\n-------------------------\nKeeps C | PASS |",
                "Keeps B 1",
                &["754 != 755"],
            ),
            (
                "*****\nFile \"/s/a.py\", line 12, in a.adds\nFailed example:\n    adds(1)\nExpected:\n    3\nGot:\n    2\n*****\n",
                "a.adds",
                &["3", "2", "/s/a.py\", line 12"],
            ),
            (
                "──────── keeps a 1 ────────\n\n  Failed at t/a.py:9\n\n     8 def _():\n  ❱  9     assert 1 == 2\n\n──────── b ────────\n",
                "keeps a 1",
                &["t/a.py:9", "assert 1 == 2"],
            ),
            (
                "[FAIL]\nTraceback (most recent call last):\n  File \"/s/t.py\", line 9, in test_a\n    self.f()\nx.FailTest: 1 != 2\n\nt.ATests.test_a\n-------------------------\n",
                "t.ATests.test_a",
                &["x.FailTest: 1 != 2", "/s/t.py\", line 9"],
            ),
            (
                "   FAIL  \"keeps a\"\n    Expected values to be equal:  (is)\n\n        ++8  (Expected)\n        --7  (Actual)\n\n    at Object.handler (/s/a.js:5:50)\n",
                "FAIL \"keeps a\"",
                &["--7  (Actual)", "/s/a.js:5:50"],
            ),
            (
                "  1) A service\n       keeps b:\n     Error: no c\n      at Context.<anonymous> (src/a.js:5:11)\n",
                "keeps b",
                &["Error: no c", "src/a.js:5:11"],
            ),
            (
                "t.cc:6: Failure\nExpected equality of these values:\n  got\n    Which is: 7600\n  7601\n[  FAILED  ] A.b (0 ms)\n",
                "A.b",
                &["t.cc:6", "Which is: 7600"],
            ),
        ] {
            let graded = grade(text);
            let found = failures(&graded, &(0..0));
            let told = found.first().map(|f| f.told(&graded.lines, 160, 4, "")).unwrap_or_default();
            assert!(found.len() == 1 && found[0].called.contains(called), "{text}\n{found:?}");
            assert!(wanted.iter().all(|w| told.contains(w)), "{wanted:?} in {told}");
            assert!(!told.contains("fine") && !told.contains("PASS"), "{told}");
        }
        let text = "  1) a service\n     Failure/Error: raise ArgumentError, 'no c'\n\n     ArgumentError:\n       no c\n     # ./a.rb:2:in 'x'\n";
        let graded = grade(text);
        let told = failures(&graded, &(0..0))[0].told(&graded.lines, 160, 4, "");
        assert!(told.contains("'no c'") && !told.contains("ArgumentError:"), "{told}");
        let graded = grade("test a ... ok\n    x");
        assert!(failures(&graded, &(0..0)).is_empty());
    }
}
