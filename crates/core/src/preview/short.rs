//! The short forms: a cleared result's one line, a call's elided arguments, a message cut in the middle.

use serde_json::{Map, Value};

use super::clean::{clean, floor, sanitize, shorten};
use super::fit::{first_that_fits, largest};
use super::signal::{Grade, grade};
use super::{Call, Pointer, grouped_digits, size};
use crate::conversation::person;
use crate::unwrap::{Inner, unwrap};

/// String values of arguments longer than this many characters are elided.
const LONG_ARGUMENT: usize = 200;

/// Of results up to this size the one decisive fact is worked out for the placeholder.
const LOOK_AT: usize = 2 << 20;

/// One line that stands for a cleared result: what it was, how large, how it ended, how to get it back. `replaced` says that
/// it is an earlier version of a file.
///
/// About 40 tokens: the short forms of call and path are capped, whatever the client sent.
pub fn placeholder(text: &str, call: &Call<'_>, pointer: &Pointer<'_>, replaced: bool) -> String {
    let what = call.label(48);
    let inner = unwrap(text).filter(|_| text.len() <= LOOK_AT);
    let within = inner.as_ref().map_or(text, |inner| inner.text.as_str());
    let lines = super::signal::lines(within).len();
    let fact = if text.len() <= LOOK_AT { decisive(within, inner.as_ref(), call) } else { None };
    let fact = fact.map(|f| format!(", {f}")).unwrap_or_default();
    let file = if pointer.path.is_empty() || pointer.path.len() > 80 {
        String::new()
    } else {
        format!(" or {}", pointer.path)
    };
    let why = if replaced { "an earlier version, cleared" } else { "cleared to save context" };
    let line = format!(
        "[{what}: {}, {}{fact}, {why}; full text: windowsill recall {}{file}]",
        plural(lines, "line"),
        size(text.len()),
        pointer.id
    );
    sanitize(&line).replace(['\n', '\t'], " ")
}

/// `1 line`, `1,204 lines`.
pub fn plural(n: usize, word: &str) -> String {
    format!("{} {word}{}", grouped_digits(n), if n == 1 { "" } else { "s" })
}

/// The one fact of a log that decides what comes next: how it ended, or how many errors it has.
fn decisive(text: &str, inner: Option<&Inner>, call: &Call<'_>) -> Option<String> {
    let text = clean(text);
    let graded = grade(&text);
    let errors = graded.grades.iter().filter(|g| **g == Grade::Error).count();
    let exit = inner.and_then(|inner| inner.exit).or_else(|| exit_code(&graded.lines));
    let total = graded
        .lines
        .iter()
        .zip(&graded.grades)
        .rev()
        .find(|(l, g)| **g == Grade::Summary && l.len() < 90)
        .map(|(l, _)| l.trim_matches([' ', '=']));
    match (exit, total, errors) {
        (Some(code), _, 0) => Some(format!("exit {code}")),
        (Some(code), _, n) => Some(format!("exit {code}, {}", plural(n, "error line"))),
        (None, Some(total), _) => Some(shorten(total, 60).into_owned()),
        (None, None, n) if n > 0 && !call.names_code() => Some(plural(n, "error line")),
        _ if inner.is_some_and(Inner::failed) => Some("failed".to_owned()),
        _ => None,
    }
}

/// The exit code that a result names in its first or last lines.
pub(crate) fn exit_code(lines: &[&str]) -> Option<i64> {
    let near = lines.iter().rev().take(6).chain(lines.iter().take(3));
    for line in near {
        let lower = line[..floor(line, 200)].to_ascii_lowercase();
        for word in ["exit code", "exit status", "exited with", "exit_code", "exitcode", "returncode", "return code"] {
            let Some(at) = lower.find(word) else { continue };
            let rest = lower[at + word.len()..].trim_start_matches([' ', ':', '=', '"', '\'', '>']);
            let rest = rest.strip_prefix("code ").or_else(|| rest.strip_prefix("status ")).unwrap_or(rest);
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
            if let Ok(code) = rest[..end].parse() {
                return Some(code);
            }
        }
    }
    None
}

/// A call's arguments with long strings elided: always a valid JSON object with the same keys.
///
/// `max_tokens` bounds the result roughly (at 3 bytes a token): beyond it ever shorter values are elided too, and at
/// last the values of all but the first keys. Where there is room, `quote` says what stays of a long string in so many bytes.
pub fn elide_arguments(
    arguments: &str,
    pointer: &Pointer<'_>,
    max_tokens: u32,
    quote: &dyn Fn(&str, usize) -> String,
) -> String {
    let body = arguments.trim();
    if body.is_empty() {
        return "{}".to_owned();
    }
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(body) else {
        let text: String = body.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
        let text = sanitize(&text).into_owned();
        let mark = if body.len() > text.len() { format!("{text} …") } else { text };
        return Value::Object(Map::from_iter([("_invalid_arguments".to_owned(), Value::String(mark))])).to_string();
    };
    let room = max_tokens as usize * 3;
    let mut out = String::new();
    for limit in [LONG_ARGUMENT, 100, 40, 0] {
        let mut short = map.clone();
        let elided = elide_all(&mut short, limit, pointer, &|_| String::new());
        out = Value::Object(short).to_string();
        if out.len() <= room.max(64) {
            let each = (room.saturating_sub(out.len()) / elided.max(1)).saturating_sub(QUOTE_MARK);
            if elided > 0 && each >= LEAST_QUOTE {
                let mut quoted = map.clone();
                elide_all(&mut quoted, limit, pointer, &|text| quote(text, each * 9 / 10));
                let quoted = Value::Object(quoted).to_string();
                return if quoted.len() <= room { quoted } else { out };
            }
            break;
        }
    }
    out
}

/// Bytes that the words before a quote take.
const QUOTE_MARK: usize = 12;

/// A quote of fewer bytes says nothing.
const LEAST_QUOTE: usize = 80;

/// Elides the long values of a call; how many strings were.
fn elide_all(
    map: &mut Map<String, Value>,
    limit: usize,
    pointer: &Pointer<'_>,
    quote: &dyn Fn(&str) -> String,
) -> usize {
    let count = std::cell::Cell::new(0);
    let counted = |text: &str| {
        count.set(count.get() + 1);
        quote(text)
    };
    map.values_mut().for_each(|v| elide(v, limit, pointer, 0, &counted));
    count.get()
}

fn elide(value: &mut Value, limit: usize, pointer: &Pointer<'_>, depth: usize, quote: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => {
            let chars = text.chars().count();
            if chars > limit.max(60) || limit == 0 && chars > 60 {
                let mark = format!("[elided {} chars; windowsill recall {}", grouped_digits(chars), pointer.id);
                let kept = quote(text);
                let text = if kept.is_empty() { format!("{mark}]") } else { format!("{mark}; of it:]\n{kept}") };
                *value = Value::String(text);
            } else if let std::borrow::Cow::Owned(safe) = sanitize(text) {
                *value = Value::String(safe);
            }
        }
        Value::Array(items) => {
            // A long list of short values is as large as one long string.
            if depth > 6 || items.len() > limit.max(8) {
                *value = Value::String(format!(
                    "[elided {} items; windowsill recall {}]",
                    grouped_digits(items.len()),
                    pointer.id
                ));
            } else {
                items.iter_mut().for_each(|v| elide(v, limit, pointer, depth + 1, quote));
            }
        }
        Value::Object(map) => {
            if depth > 6 || depth > 0 && map.len() > limit.max(8) {
                *value = Value::String(format!(
                    "[elided {} keys; windowsill recall {}]",
                    grouped_digits(map.len()),
                    pointer.id
                ));
            } else {
                map.values_mut().for_each(|v| elide(v, limit, pointer, depth + 1, quote));
            }
        }
        _ => {}
    }
}

/// Head and tail of a message that alone passes the window, cut on line borders, with a marker between them.
///
/// Never over `budget` by `count`; the user's own text, so nothing in it is changed but what is left out. Where the marker would
/// take most of the budget, a short one stands before the end alone.
pub fn cut(text: &str, budget: u32, count: &dyn Fn(&str) -> u32, pointer: &Pointer<'_>) -> String {
    let fits = |text: &str| text.len() <= budget as usize * 16 && count(text) <= budget;
    if fits(text) {
        return text.to_owned();
    }
    let mut lean = None;
    for shorter in without_reminders(text, pointer) {
        if fits(&shorter) {
            return shorter;
        }
        lean = Some(shorter);
    }
    let text = lean.as_deref().unwrap_or(text);
    let whole = |allowance: usize| {
        // The end of a message holds the question more often than its beginning does.
        let room = allowance.min(text.len());
        let head = border_before(text, room * 45 / 100);
        let tail = border_after(text, text.len() - (room - head).min(text.len() - head));
        if head >= tail {
            return text.to_owned();
        }
        let gone = &text[head..tail];
        format!("{}\n{}\n{}", text[..head].trim_end_matches('\n'), marker(gone, pointer), &text[tail..])
    };
    let marks = [marker(text, pointer), format!("[cut; windowsill recall {}]", pointer.id), "[cut]".to_owned()];
    let usual = budget / 4 >= count(&marks[0]);
    if let Some(out) = largest(budget, count, &whole).filter(|_| usual) {
        return out;
    }
    for (mark, share) in [(&marks[1], 8), (&marks[2], 2)] {
        let end = |allowance: usize| {
            let mut at = text.len() - allowance.min(text.len());
            while !text.is_char_boundary(at) {
                at += 1;
            }
            // The last line may be all there is room for; then its end begins with a whole word.
            let line = Some(border_after(text, at)).filter(|line| *line != at && *line < text.trim_end().len());
            format!("{mark}\n{}", &text[line.unwrap_or_else(|| word_after(text, at))..])
        };
        let out = largest(budget, count, &end).filter(|out| out.len() > mark.len() + 1);
        if let Some(out) = out.filter(|_| budget / share >= count(mark)) {
            return out;
        }
    }
    first_that_fits(&marks, budget, count)
}

/// A person's message with ever fewer of the blocks that the client put into it: reminders first, the largest first, then
/// rules.
fn without_reminders(text: &str, pointer: &Pointer<'_>) -> Vec<String> {
    let all = person::blocks(text);
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| (person::is_rules(&text[all[*i].clone()]), std::cmp::Reverse(all[*i].len())));
    let without = |gone: &[usize]| {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for (i, range) in all.iter().enumerate().filter(|(i, _)| gone.contains(i)) {
            out.push_str(&text[at..range.start]);
            if gone.iter().all(|other| i <= *other) {
                out.push_str(&marker(&text[range.clone()], pointer));
            }
            at = range.end;
        }
        out + &text[at..]
    };
    let one_by_one = 1..=order.len().min(MOST_BLOCKS);
    let all_at_once = (order.len() > MOST_BLOCKS).then_some(order.len());
    one_by_one.chain(all_at_once).map(|n| without(&order[..n])).collect()
}

/// Blocks of a message that are taken out one by one; where there are more, the rest goes at once.
const MOST_BLOCKS: usize = 16;

fn marker(gone: &str, pointer: &Pointer<'_>) -> String {
    let lines = gone.bytes().filter(|b| *b == b'\n').count().max(1);
    let file = if pointer.path.is_empty() { String::new() } else { format!(" or {}", pointer.path) };
    format!(
        "[… {}, {} cut here: the message alone passes the window; full text: windowsill recall {}{file} …]",
        plural(lines, "line"),
        size(gone.len()),
        pointer.id
    )
}

/// The last line border at or before `at`, if one is near; else a character border.
fn border_before(text: &str, at: usize) -> usize {
    let at = floor(text, at);
    let near = at.saturating_sub(200.max(at / 4));
    memchr::memrchr(b'\n', &text.as_bytes()[near..at]).map_or(at, |i| near + i + 1)
}

/// The first line border at or after `at`, if one is near; else a character border.
fn border_after(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at += 1;
    }
    let far = (at + 200.max((text.len() - at) / 4)).min(text.len());
    memchr::memchr(b'\n', &text.as_bytes()[at..far]).map_or(at, |i| at + i + 1)
}

/// Where the next word begins, if one does soon.
fn word_after(text: &str, at: usize) -> usize {
    let mut near = text[at..].char_indices().take(40);
    let space = near.find(|(_, c)| c.is_whitespace()).filter(|_| at > 0);
    space.map_or(at, |(i, c)| at + i + c.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Pointer<'static> = Pointer { id: "r3f9a", path: "/data/records/r3f9a.txt" };

    #[test]
    fn reminders_go_before_the_words_of_a_person() {
        let count = |text: &str| text.len() as u32 / 4;
        let rules = format!("<system-reminder>\n# CLAUDE.md\n{}\n</system-reminder>", "Never push. ".repeat(40));
        let reminder = format!("<system-reminder>\n{}\n</system-reminder>", "A skill. ".repeat(200));
        let request = "Rename the parser's entry point and update every caller.";
        let text = format!("{reminder}\n{rules}\n{request}");
        let some = cut(&text, 400, &count, &AT);
        assert!(some.contains("Never push") && some.contains(request) && !some.contains("A skill"), "{some}");
        let less = cut(&text, 90, &count, &AT);
        assert!(!less.contains("Never push") && less.ends_with(request), "{less}");
    }

    #[test]
    fn placeholders() {
        for (text, call, want) in [
            (
                "fn a\nfn b\n",
                Call { tool: "read_file", arguments: r#"{"path":"src/net/retry.rs"}"# },
                "[read_file src/net/retry.rs: 2 lines, 10 B, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
            (
                "x\nerror: bad\nerror: worse\nProcess finished with exit code 101",
                Call { tool: "bash", arguments: r#"{"command":"cargo test"}"# },
                "[bash cargo test: 4 lines, 61 B, exit 101, 2 error lines, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
            (
                r#"{"output":"x\nerror: bad\n","exit_code":1,"error":null}"#,
                Call { tool: "terminal", arguments: r#"{"command":"make"}"# },
                "[terminal make: 2 lines, 55 B, exit 1, 1 error line, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
            (
                "Command: ls\nDirectory: (root)\nOutput: a\nError: (none)\nExit Code: 0\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 2371",
                Call { tool: "run_shell_command", arguments: r#"{"command":"ls"}"# },
                "[run_shell_command ls: 8 lines, 130 B, exit 0, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
            (
                "<returncode>0</returncode>\n<output>\na\n</output>",
                Call { tool: "bash", arguments: r#"{"command":"ls"}"# },
                "[bash ls: 4 lines, 47 B, exit 0, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
            (
                r#"[{"query":"cat b","result":"","error":"no b","success":false}]"#,
                Call { tool: "run_commands", arguments: r#"{"commands":["cat b"]}"# },
                "[run_commands cat b: 1 line, 62 B, 1 error line, cleared to save context; full text: windowsill recall r3f9a or /data/records/r3f9a.txt]",
            ),
        ] {
            assert_eq!(placeholder(text, &call, &AT, false), want);
        }
        let wild = placeholder("<|im_end|>\n", &Call { tool: "t\n<|im_start|>", arguments: "\u{0}{]" }, &AT, true);
        assert!(!wild.contains("<|") && !wild.contains('\n'), "{wild}");
    }

    #[test]
    fn arguments_stay_an_object() {
        for (raw, want) in [
            ("", "{}"),
            ("   \n", "{}"),
            (r#"{"path":"a","n":3}"#, r#"{"path":"a","n":3}"#),
            ("{\"path\": \"a", r#"{"_invalid_arguments":"{\"path\": \"a"}"#),
            ("[1]", r#"{"_invalid_arguments":"[1]"}"#),
        ] {
            assert_eq!(elide_arguments(raw, &AT, 300, &|_, _| String::new()), want);
        }
        let long = format!(r#"{{"path":"a.rs","content":"{}"}}"#, "x".repeat(12_034));
        assert_eq!(
            elide_arguments(&long, &AT, 300, &|_, _| String::new()),
            r#"{"path":"a.rs","content":"[elided 12,034 chars; windowsill recall r3f9a]"}"#
        );
        let blank = format!("{}{{", " ".repeat(370_000));
        assert_eq!(elide_arguments(&blank, &AT, 300, &|_, _| String::new()), r#"{"_invalid_arguments":"{"}"#);
    }

    #[test]
    fn cuts_in_the_middle() {
        let text: String = (0..4000).map(|i| format!("line {i}\n")).collect();
        let count = |t: &str| u32::try_from(t.len().div_ceil(4)).unwrap_or(u32::MAX);
        let out = cut(&text, 500, &count, &AT);
        assert!(count(&out) <= 500 && count(&out) > 400, "{}", count(&out));
        assert!(out.starts_with("line 0\n") && out.ends_with("line 3999\n") && out.contains("cut here"), "{out}");
        assert_eq!(cut("short", 500, &count, &AT), "short");
        // Where there is little room, the end of it holds the question.
        for (budget, text) in [(40, text + "What is the password?\n"), (16, format!("{}Who?", "word ".repeat(900)))] {
            let out = cut(&text, budget, &count, &AT);
            let end = &text[text.len() - 20..];
            assert!(count(&out) <= budget && out.starts_with("[cut") && out.ends_with(end), "{budget}: {out}");
        }
    }

    proptest! {
        #[test]
        fn cut_is_never_over(text in "(?s).{0,3000}", budget in 0u32..300) {
            let count = |t: &str| u32::try_from(t.chars().count().div_ceil(2)).unwrap_or(u32::MAX);
            prop_assert!(count(&cut(&text, budget, &count, &AT)) <= budget);
        }

        #[test]
        fn elided_is_always_an_object(text in "(?s).{0,400}") {
            let out = elide_arguments(&text, &AT, 100, &|_, _| String::new());
            prop_assert!(serde_json::from_str::<Map<String, Value>>(&out).is_ok(), "{}", out);
        }
    }
}
