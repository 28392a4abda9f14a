//! The lines that trouble points at, out of what was read before: the frames of a traceback, the place of a failing test, the text
//! that an edit did not find. They are cut from the newest result of a call that names their file.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::conversation::step::{Links, call_of};
use crate::conversation::{Message, Role, ToolCall, files, watch};
use crate::passage::{Found, LONG, Rank, Said, columns};
use crate::preview::clean::floor;
use crate::preview::signal::{Grade, grade};

/// Places that come at most.
const MOST: usize = 3;

/// Bytes of a result that are read.
const READ: usize = 1 << 18;

/// Longer arguments (bytes) write a text, they do not say what to read.
const ARGUMENTS: usize = 1 << 13;

/// Lines of an edit's old text that are looked for.
const OLD: usize = 40;

/// The rank of what was read at a place: before whatever a search finds.
const FIRST: u8 = u8::MAX;

/// The least likeness of a text to what an edit looks for, from 0 to 1: with less it is another place.
const ALIKE: f64 = 0.5;

/// A place in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    path: String,
    line: Option<usize>,
    /// The function or test that it is in.
    name: Option<String>,
    /// Lines that an edit looked for.
    old: Vec<String>,
}

/// The lines of an edit's file that the edit looked for and did not find, where the last message says so; `None` where the last
/// message is no failed edit.
pub(super) fn unfound(body: &[Message]) -> Option<Vec<Found>> {
    let (at, last) = body.iter().enumerate().next_back()?;
    let (message, nth) = call_of(body, at)?;
    let sought = files::sought(&body[message].calls[nth]);
    if sought.is_empty() || !is_refused(&last.text) {
        return None;
    }
    // Of a patch of several files, the answer mostly names the one that it is about.
    let named = |path: &str| last.text.contains(base(path));
    let any = sought.iter().any(|(path, _)| named(path));
    let wanted = sought.into_iter().filter(|(path, _)| !any || named(path));
    let places: Vec<Place> = wanted.map(|(path, old)| Place { path, old, ..Place::default() }).collect();
    Some(read(body, &places))
}

/// The lines of files that a report of trouble points at.
pub(super) fn pointed_at(body: &[Message], report: &str) -> Vec<Found> {
    read(body, &frames(&report[..floor(report, READ)]))
}

/// Lines at the beginning of an answer that say whether an edit was made.
const ANSWER: usize = 6;

/// Whether the answer to an edit says that it was not made.
fn is_refused(answer: &str) -> bool {
    let lines: Vec<&str> = answer.lines().filter(|line| !line.trim().is_empty()).take(ANSWER).collect();
    let made = lines.first().is_some_and(|line| {
        let lower = line[..floor(line, 400)].to_lowercase();
        ["success", "has been updated", "updated the file", "has been edited"].iter().any(|word| lower.contains(word))
    });
    let bad = |line: &&str| watch::is_error(line) || grade(line).grades.iter().any(|grade| *grade >= Grade::Trouble);
    !made && lines.iter().any(bad)
}

/// The places that a report names, the likeliest first.
fn frames(report: &str) -> Vec<Place> {
    /// `File "a/b.py", line 12, in load`, `a/b.py::test_load`, `a/b.rs:12`.
    static FORMS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r#"File "(?P<py>[^"\n]+)", line (?P<pyline>\d+)(?:, in (?P<pyname>\w+))?|(?P<path>[\w@+~/.-]+\.[A-Za-z]+)(?:::(?P<name>\w+)|:(?P<line>\d+))"#,
        )
        .expect("it is a constant")
    });
    let place = |found: regex::Captures<'_>| {
        let text = |name: &str| found.name(name).map(|m| m.as_str().to_owned());
        let number = |name: &str| found.name(name).and_then(|m| m.as_str().parse().ok());
        Some(Place {
            path: text("py").or_else(|| text("path"))?,
            line: number("pyline").or_else(|| number("line")),
            name: text("pyname").or_else(|| text("name")).filter(|name| name.len() > 3),
            old: Vec::new(),
        })
    };
    let mut places: Vec<Place> = FORMS.captures_iter(report).filter_map(place).collect();
    // The end of such a traceback says where it happened.
    if report.contains("most recent call last") {
        places.reverse();
    }
    let mut seen = HashSet::new();
    places.retain(|place| seen.insert((place.path.clone(), place.line, place.name.clone())));
    places
}

/// What was read at these places.
fn read(body: &[Message], places: &[Place]) -> Vec<Found> {
    let mut out: Vec<Found> = Vec::new();
    if places.is_empty() {
        return out;
    }
    let links = Links::of(body);
    // A name that nothing read has is looked for once.
    let mut unread: HashSet<&str> = HashSet::new();
    for place in places {
        if out.len() == MOST || unread.contains(place.path.as_str()) {
            continue;
        }
        let results = (0..body.len().saturating_sub(1)).rev().filter(|at| body[*at].role == Role::Tool);
        let of_file = results.filter_map(|at| {
            let (message, nth) = links.call_of(at)?;
            let call = &body[message].calls[nth];
            (names(call, &place.path) && !is_refused(&body[at].text)).then_some((at, call))
        });
        let mut any = false;
        let mut of_file = of_file.inspect(|_| any = true);
        let found = of_file.find_map(|(at, call)| Some((at, call, span(&body[at].text, call, place)?)));
        if let Some((at, call, span)) = found {
            let one = quoted(body, (at, call), span, place);
            let overlaps = |other: &Found| {
                let (said, other) = (&one.said[0], &other.said[0]);
                said.at == other.at && said.span.0 < other.span.1 && other.span.0 < said.span.1
            };
            if !out.iter().any(overlaps) {
                out.push(one);
            }
        }
        if !any {
            unread.insert(&place.path);
        }
    }
    out
}

fn quoted(body: &[Message], (at, call): (usize, &ToolCall), span: Range<usize>, place: &Place) -> Found {
    let text = &body[at].text;
    let said = Said {
        of: String::new(),
        id: at.to_string(),
        at,
        span: (span.start, span.end),
        goes_on: span.end < text.trim_end().len(),
        who: format!("{} {}, each line set in by two", call.name, place.path),
        date: None,
        text: format!("\n{}", &text[span]),
    };
    Found { said: vec![said], center: 0, rank: Rank { exact: FIRST, named: 1, share: 1.0, worth: 1.0, words: 1.0 } }
}

fn base(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Whether the arguments of a call name this file: a path may be written from the root in one place and from a folder in another.
fn names(call: &ToolCall, path: &str) -> bool {
    let arguments = call.arguments.as_str();
    let path = path.trim_start_matches("./");
    if arguments.len() > ARGUMENTS || base(path).len() < 3 || !arguments.contains(base(path)) {
        return false;
    }
    let is_part = |c: char| c.is_alphanumeric() || "/._-@+~".contains(c);
    let ends = |long: &str, short: &str| {
        long.strip_suffix(short).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    let mut words = arguments.split(|c: char| !is_part(c)).map(|word| word.trim_start_matches("./"));
    words.any(|word| base(word) == base(path) && (ends(word, path) || ends(path, word)))
}

/// Where a place stands in a result.
fn span(text: &str, call: &ToolCall, place: &Place) -> Option<Range<usize>> {
    let text = &text[..floor(text, READ)];
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let within = match place.old.is_empty() {
        true => {
            let at = match place.line {
                Some(line) => numbered(&lines, line).or_else(|| counted(&lines, call, line)),
                None => None,
            };
            let named = || lines.iter().position(|line| place.name.as_ref().is_some_and(|name| line.contains(name)));
            let at = at.or_else(named)?;
            at..at + 1
        }
        false => alike(&lines, &place.old)?,
    };
    let lines = around(&lines, within);
    (lines.end > lines.start).then(|| bytes(text, &lines))
}

fn bytes(text: &str, lines: &Range<usize>) -> Range<usize> {
    let mut all = text.split_inclusive('\n').map(str::len);
    let start: usize = all.by_ref().take(lines.start).sum();
    start..start + all.take(lines.len()).sum::<usize>()
}

/// The number that a tool put before a line, and the line.
fn number(line: &str) -> Option<(usize, &str)> {
    let line = line.trim_start();
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &line[..line.len() - rest.len()];
    let rest = rest.strip_prefix(['\t', '|', ':', '→']).filter(|_| !digits.is_empty())?;
    Some((digits.parse().ok()?, rest))
}

/// The line of this number, where a tool numbers them.
fn numbered(lines: &[&str], wanted: usize) -> Option<usize> {
    lines.iter().position(|line| number(line).is_some_and(|(number, _)| number == wanted))
}

/// The line of this number, counted from where the call began to read. A report that names the line of a file is no text of it.
fn counted(lines: &[&str], call: &ToolCall, wanted: usize) -> Option<usize> {
    /// `sed -n '10,50p' FILE`.
    static PART: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\bsed -n '?(\d{1,7}),\d{1,7}p").expect("it is a constant"));
    if lines.iter().filter(|line| number(line).is_some()).count() * 2 > lines.len() {
        return None;
    }
    let by_shell = || PART.captures(&call.arguments).and_then(|found| found[1].parse().ok());
    let first = start(&call.arguments).or_else(by_shell).unwrap_or(1);
    wanted.checked_sub(first.max(1)).filter(|at| *at < lines.len())
}

/// The line at which a call begins to read, from 1, as far as its arguments say it.
fn start(arguments: &str) -> Option<usize> {
    let Ok(Value::Object(map)) = serde_json::from_str(arguments) else { return None };
    let first = map.get("view_range").and_then(|range| range.get(0)).or_else(|| {
        let keys = ["offset", "start_line", "startLine", "line_start"];
        keys.iter().find_map(|key| map.get(*key))
    });
    first.and_then(Value::as_u64).and_then(|line| usize::try_from(line).ok())
}

/// The lines that are most like those that were looked for, where any are.
fn alike(lines: &[&str], old: &[String]) -> Option<Range<usize>> {
    let old: Vec<Vec<&str>> = old.iter().take(OLD).map(|line| words(line)).filter(|line| !line.is_empty()).collect();
    let best = |line: &&str| {
        let line = words(number(line).map_or(*line, |(_, rest)| rest));
        old.iter().map(|old| likeness(old, &line)).fold(0.0, f64::max)
    };
    let each: Vec<f64> = lines.iter().map(best).collect();
    let many = old.len().clamp(1, lines.len().max(1));
    let sums = each.windows(many).map(|part| part.iter().sum::<f64>());
    let (at, sum) = sums.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (sum >= ALIKE * many as f64).then_some(at..at + many)
}

fn words(line: &str) -> Vec<&str> {
    let mut words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// How many words two lines share, of all that they have.
fn likeness(one: &[&str], other: &[&str]) -> f64 {
    let both = one.iter().filter(|word| other.binary_search(word).is_ok()).count();
    2.0 * both as f64 / (one.len() + other.len()).max(1) as f64
}

/// These lines, and as many before and behind them as a passage holds.
fn around(lines: &[&str], within: Range<usize>) -> Range<usize> {
    let (mut from, mut to) = (within.start, within.end.min(lines.len()));
    let cost = |range: Range<usize>| lines[range].iter().map(|line| columns(line)).sum::<usize>();
    let mut left = LONG.saturating_sub(cost(from..to));
    let (mut up, mut down) = (true, true);
    while up || down {
        up = up && from > 0 && cost(from - 1..from) <= left;
        if up {
            from -= 1;
            left -= cost(from..from + 1);
        }
        down = down && to < lines.len() && cost(to..to + 1) <= left;
        if down {
            left -= cost(to..to + 1);
            to += 1;
        }
    }
    from..to
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::cue;
    use super::*;
    use crate::wire::openai_chat as wire;

    /// A file of forty functions, each of three lines and an empty one.
    fn source() -> String {
        (0..40)
            .map(|n| format!("def part_{n}(rows):\n    total = sum(rows) + {n}\n    return total * {n}\n\n"))
            .collect()
    }

    /// The same with numbers before the lines, as a client gives it.
    fn shown(between: &str) -> String {
        source().lines().enumerate().map(|(at, line)| format!("{:>6}{between}{line}\n", at + 1)).collect()
    }

    /// A body of steps: tool, arguments, result.
    fn body(steps: &[(&str, Value, &str)]) -> Vec<Message> {
        let read = |value: Value| wire::message(value.to_string().into()).unwrap();
        let mut body = vec![read(json!({"role": "user", "content": "Mend it, please."}))];
        for (at, (tool, arguments, result)) in steps.iter().enumerate() {
            let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
            let call =
                json!({"id": format!("c{at}"), "type": "function", "function": {"name": tool, "arguments": arguments}});
            body.push(read(json!({"role": "assistant", "content": "", "tool_calls": [call]})));
            body.push(read(json!({"role": "tool", "tool_call_id": format!("c{at}"), "content": result})));
        }
        body
    }

    fn quotes(steps: &[(&str, Value, &str)]) -> Vec<(usize, String)> {
        let places = cue(&body(steps)).map(|cue| cue.places).unwrap_or_default();
        places.into_iter().map(|found| (found.said[0].at, found.said[0].text.clone())).collect()
    }

    /// Each client's own edit tool and its own words for a text that is not there.
    #[test]
    fn an_edit_that_finds_no_place_brings_the_true_lines() {
        let (old, new) = ("def part_17(rows):\n    return sum(rows) * 17", "def part_17(rows):\n    return 0");
        let numbered = shown("→");
        let patch = "*** Begin Patch\n*** Update File: src/parts.py\n@@ def part_17(rows):\n-    total = sum(rows) + 18\n \
                     return total * 17\n+    return 0\n*** End Patch";
        let blocks = format!("------- SEARCH\n{old}\n=======\n{new}\n+++++++ REPLACE");
        let cases = [
            (
                "Edit",
                json!({"file_path": "/work/src/parts.py", "old_string": old, "new_string": new}),
                "<tool_use_error>String to replace not found in file.\nString: def part_17(rows):</tool_use_error>",
            ),
            (
                "MultiEdit",
                json!({"file_path": "/work/src/parts.py", "edits": [{"old_string": old, "new_string": new}]}),
                "<tool_use_error>String to replace not found in file.</tool_use_error>",
            ),
            (
                "shell",
                json!({"command": ["apply_patch", patch]}),
                "Exit code: 1\nWall time: 0.1 seconds\nOutput:\napply_patch verification failed: Failed to find expected lines in \
                 /work/src/parts.py:\n    total = sum(rows) + 18",
            ),
            (
                "apply_patch",
                json!({"input": patch}),
                "apply_patch verification failed: Failed to find expected lines in src/parts.py",
            ),
            (
                "apply_patch",
                json!(patch),
                "apply_patch verification failed: Failed to find expected lines in src/parts.py",
            ),
            (
                "edit",
                json!({"filePath": "/work/src/parts.py", "oldString": old, "newString": new}),
                "Could not find oldString in the file. It must match exactly, including whitespace, indentation, and line \
                 endings.",
            ),
            (
                "edit",
                json!({"path": "src/parts.py", "edits": [{"oldText": old, "newText": new}]}),
                "Could not find the exact text in src/parts.py. The old text must match exactly including all whitespace.",
            ),
            (
                "replace_in_file",
                json!({"path": "src/parts.py", "diff": blocks}),
                "The tool execution failed with the following error:\n<error>The SEARCH block does not match anything in the \
                 file.</error>",
            ),
        ];
        for (tool, arguments, answer) in cases {
            for (reader, args, text) in [
                ("Read", json!({"file_path": "/work/src/parts.py"}), numbered.as_str()),
                ("shell", json!({"command": ["bash", "-lc", "sed -n '1,200p' src/parts.py"]}), &source()),
            ] {
                let steps = [
                    (reader, args.clone(), text),
                    ("Read", json!({"file_path": "/work/src/others.py"}), "def part_17(cells):\n    return 17\n"),
                    (tool, arguments.clone(), answer),
                ];
                let found = quotes(&steps);
                assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2], "{tool} {reader}: {found:?}");
                assert!(found[0].1.contains("total = sum(rows) + 17"), "{tool} {reader}: {found:?}");
                // What was made needs nothing, though the file speaks of errors.
                let made =
                    [steps[0].clone(), (tool, arguments.clone(), "The file was changed.\n  raise ValueError(rows)")];
                assert_eq!(quotes(&made), []);
            }
        }
    }

    #[test]
    fn the_newest_text_of_the_file_is_quoted_and_keeps_its_indentation() {
        let edit = |answer| {
            (
                "edit",
                json!({"filePath": "src/parts.py", "oldString": "    return total * 3\n    # the end", "newString": "x"}),
                answer,
            )
        };
        let newer = source().replace("return total * 3\n", "return total * 33\n");
        let (older, newer) = (source(), newer);
        fn read(text: &str) -> (&str, Value, &str) {
            ("read", json!({"filePath": "src/parts.py"}), text)
        }
        let failed = "Error: oldString not found in content";
        let found = quotes(&[read(&older), edit("Edit applied successfully."), read(&newer), edit(failed)]);
        assert!(matches!(found.as_slice(), [(6, text)] if text.contains("    return total * 33\n")), "{found:?}");
        // A text that is nowhere like it is another file's.
        let found = quotes(&[("read", json!({"filePath": "src/parts.py"}), "nothing of\nthis kind\n"), edit(failed)]);
        assert_eq!(found, []);
    }

    #[test]
    fn frames_and_failing_tests_bring_the_lines_that_were_read() {
        let traceback = "Traceback (most recent call last):\n  File \"/usr/lib/python3/runpy.py\", line 198, in _run\n    x()\n  \
                         File \"/work/src/parts.py\", line 70, in part_17\n    total = sum(rows) + 17\nTypeError: unsupported\n";
        let panic = "thread 'main' panicked at src/parts.py:70:5:\nindex out of bounds\nerror: test failed";
        let node =
            "TypeError: rows is not iterable\n    at part_17 (/work/src/parts.py:70:14)\n    at node:internal/main:1:1";
        let pytest = "FAILED src/parts.py::part_17 - TypeError: unsupported\n1 failed, 3 passed";
        for report in [traceback, panic, node, pytest] {
            for (reader, args, text) in [
                ("Read", json!({"file_path": "/work/src/parts.py"}), shown("\t")),
                ("read_file", json!({"path": "./src/parts.py"}), source()),
                (
                    "shell",
                    json!({"cmd": "sed -n '61,90p' src/parts.py"}),
                    source().lines().skip(60).take(30).map(|line| format!("{line}\n")).collect(),
                ),
                (
                    "read",
                    json!({"filePath": "src/parts.py", "offset": 61, "limit": 30}),
                    source().lines().skip(60).take(30).map(|line| format!("{line}\n")).collect(),
                ),
            ] {
                let found = quotes(&[
                    (reader, args, &text),
                    ("run", json!({"cmd": "grep -n other src/other.py"}), "12: other"),
                    ("run", json!({"cmd": "pytest"}), report),
                ]);
                let is_it = |(at, text): &(usize, String)| *at == 2 && text.contains("total = sum(rows) + 17");
                assert!(found.len() == 1 && is_it(&found[0]), "{reader} {report}: {found:?}");
            }
        }
        // A file of the same name in another folder is another file.
        let found =
            quotes(&[("Read", json!({"file_path": "lib/parts.py"}), &shown("\t")), ("run", json!({}), traceback)]);
        assert_eq!(found, []);
    }
}
