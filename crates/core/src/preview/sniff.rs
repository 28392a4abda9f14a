//! Which kind of output a text is, from what it looks like first and from the call that made it second.

use serde_json::Value;

use super::code::{definition, unnumbered};
use super::signal::{Grade, Graded};
use super::{Call, html, message, opaque, paths, table};

/// What kind of output a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Output of a build, a test run or another long-running tool.
    Log,
    /// Search results: a file and a line number on every line.
    Search,
    /// A unified diff.
    Diff,
    /// A commit history.
    History,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    JsonLines,
    /// CSV, TSV or a drawn table.
    Table,
    /// A directory listing.
    Listing,
    /// HTML or XML.
    Markup,
    /// Source code.
    Source,
    /// A disassembly.
    Disassembly,
    /// Minified code.
    Minified,
    /// Base64.
    Base64,
    /// Bytes that are no text.
    Binary,
    /// Prose, or anything else.
    Text,
}

impl Kind {
    /// The kind in a reader's words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Search => "search results",
            Kind::Diff => "diff",
            Kind::History => "commit history",
            Kind::Json => "JSON",
            Kind::JsonLines => "JSON lines",
            Kind::Table => "table",
            Kind::Listing => "listing",
            Kind::Markup => "markup",
            Kind::Source => "source code",
            Kind::Disassembly => "disassembly",
            Kind::Minified => "minified code",
            Kind::Base64 => "base64",
            Kind::Binary => "binary",
            Kind::Text => "text",
        }
    }
}

/// Documents larger than this are not parsed as JSON: it would take too long while a request waits.
const JSON_MOST: usize = 6 << 20;

/// The text as one JSON document.
pub(crate) fn parse_json(text: &str) -> Option<Value> {
    let body = text.trim();
    if body.len() > JSON_MOST || !body.starts_with(['{', '[', '"']) {
        return None;
    }
    match serde_json::from_str(body) {
        Ok(value) => Some(value).filter(|v: &Value| !v.is_string() || body.len() > 200),
        // Tools cut long output; what stands before the cut is a document all the same.
        Err(error) if error.is_eof() && body.len() > 2000 => serde_json::from_str(&closed(body)?).ok(),
        Err(_) => None,
    }
}

/// A document that was cut off, ended after its last whole member: with the brackets closed that were open there.
fn closed(body: &str) -> Option<String> {
    let mut open: Vec<u8> = Vec::new();
    let mut last: Option<(usize, Vec<u8>)> = None;
    let (mut quoted, mut escaped) = (false, false);
    for (i, b) in body.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => {
                open.pop()?;
            }
            b',' if open.len() <= 3 => last = Some((i, open.clone())),
            _ => {}
        }
    }
    let (end, open) = last?;
    let mut out = body[..end].to_owned();
    out.extend(open.iter().rev().map(|&b| char::from(b)));
    Some(out)
}

/// Whether the first lines are JSON objects of their own.
pub(super) fn is_json_lines(text: &str) -> bool {
    let mut tried = 0;
    let mut objects = 0;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()).take(6) {
        tried += 1;
        objects +=
            usize::from(line.starts_with('{') && line.ends_with('}') && serde_json::from_str::<Value>(line).is_ok());
    }
    tried >= 2 && objects * 3 >= tried * 2
}

/// A few dozen lines from all over the text, with their index; empty ones are left out.
fn sample<'t>(graded: &Graded<'t>) -> Vec<(usize, &'t str)> {
    let step = (graded.lines.len() / 160).max(1);
    (0..graded.lines.len()).step_by(step).map(|i| (i, graded.lines[i])).filter(|(_, l)| !l.trim().is_empty()).collect()
}

/// The kind of a text that is no JSON, by its lines.
pub(super) fn by_lines(text: &str, graded: &Graded<'_>, call: &Call<'_>) -> Kind {
    if opaque::is_binary(text) {
        return Kind::Binary;
    }
    if opaque::base64_body(text).is_some() {
        return Kind::Base64;
    }
    if html::looks(text) {
        return Kind::Markup;
    }
    let head: Vec<&str> = graded.lines.iter().take(400).copied().collect();
    let diff_head = head.iter().any(|l| l.starts_with("diff --git "));
    let file_heads = head.windows(2).any(|w| w[0].starts_with("--- ") && w[1].starts_with("+++ "));
    let mostly_diff =
        head.first().is_some_and(|l| l.starts_with("diff ") || l.starts_with("--- ") || l.starts_with("index "));
    if mostly_diff && (diff_head || file_heads)
        || diff_head && head.len() < 400 && !head.iter().any(|l| l.starts_with("+ "))
    {
        return Kind::Diff;
    }
    let commits = head.iter().filter(|l| l.strip_prefix("commit ").is_some_and(super::diff::is_hash)).count();
    if commits >= 1
        && head.iter().any(|l| l.starts_with("Author:"))
        && head.iter().take(3).any(|l| l.starts_with("commit "))
    {
        return Kind::History;
    }
    if head.iter().any(|l| l.starts_with("Disassembly of section")) {
        return Kind::Disassembly;
    }
    let longest = graded.lines.iter().map(|l| l.len()).max().unwrap_or(0);
    let logged = graded.lines.iter().filter(|l| !l.trim().is_empty()).take(5).any(|l| is_log_line(l));
    if !logged && longest > 1000 && text.len() / graded.lines.len().max(1) > 90 && is_dense_code(text) {
        return Kind::Minified;
    }
    by_sample(&sample(graded), graded, call)
}

/// Punctuation of code without the spaces that people put around it.
fn is_dense_code(text: &str) -> bool {
    let sample = &text.as_bytes()[..text.len().min(65_536)];
    let marks = sample.iter().filter(|b| matches!(b, b'{' | b'}' | b'(' | b')' | b';' | b',' | b'=')).count();
    let spaces = sample.iter().filter(|b| **b == b' ').count();
    marks * 10 > sample.len() && spaces * 16 < sample.len()
}

fn by_sample(sample: &[(usize, &str)], graded: &Graded<'_>, call: &Call<'_>) -> Kind {
    let total = sample.len().max(1);
    let share = |n: usize, percent: usize| n * 100 >= total * percent;
    let count = |f: &dyn Fn(usize, &str) -> bool| sample.iter().filter(|(i, l)| f(*i, l)).count();
    let says = |words: &[&str]| words.iter().any(|w| call.tool.contains(w) || call.command().contains(w));

    let troubled = count(&|i, _| graded.grades[i] >= Grade::Warning && graded.grades[i] != Grade::Trouble);
    let hits = count(&|_, l| paths::hit(l).is_some());
    let searched = says(&["grep", "rg ", "search", "ag ", "find_references"]);
    // A compiler's messages have a place at their head as well, and a test runner says at its end how it went.
    let messages = count(&|i, l| message::message(l).is_some() || graded.by_family.contains(&i));
    let ended = !call.names_code() && has_verdict(graded);
    if total >= 3 && share(hits, 60) && messages * 2 < hits && (searched || !ended && !share(troubled, 30)) {
        return Kind::Search;
    }
    let listed = count(&|_, l| {
        let l = l.trim();
        paths::ls_entry(l).is_some()
            || l.starts_with("total ")
            || l.contains("── ")
            || l.contains('/') && !l.contains([' ', '(', ';', '"', '=']) && !l.starts_with("//")
    });
    let names = count(&|_, l| {
        !l.trim().contains([' ', '(', ';', '"', '=', '{', '}']) && l.trim().contains('.') && l.len() < 80
    });
    if total >= 3 && (share(listed, 70) || share(names, 85) && says(&["list", "ls", "find", "glob", "tree", "dir"])) {
        return Kind::Listing;
    }
    let numbers: Vec<u64> = sample.iter().filter_map(|(_, l)| unnumbered(l).0).collect();
    let rising = numbers.windows(2).filter(|w| w[0] < w[1]).count() + 1;
    let numbered = share(numbers.len(), 70) && rising * 10 >= numbers.len() * 9 && numbers.len() >= 3;
    let code = count(&|_, l| is_code(unnumbered(l).1));
    let defined = count(&|_, l| definition(unnumbered(l).1).is_some());
    // Tools quote code with their messages; a message at the left edge says which of the two it is.
    let compiled = ended
        || !call.names_code()
            && (graded.messages > 0
                || graded.lines.iter().any(|l| l.trim_start().starts_with(RESULTS))
                || graded
                    .lines
                    .iter()
                    .zip(&graded.grades)
                    .any(|(l, g)| *g == Grade::Error && !l.starts_with([' ', '\t'])));
    if numbered && (defined > 0 || share(code, 25))
        || !compiled && share(code, 45) && (defined >= 2 || call.names_code())
    {
        return Kind::Source;
    }
    let lines: Vec<&str> = graded.lines.iter().take(60).copied().collect();
    if let Some(mark) = table::delimiter(&lines)
        && (mark != '|' || lines.iter().filter(|l| l.contains('|')).count() * 10 >= lines.len() * 7)
        && !share(troubled, 20)
    {
        return Kind::Table;
    }
    let ran = says(&[
        "build", "test", "make", "cargo", "npm", "mvn", "gradle", "pytest", "tsc", "docker", "install", "log", "bash",
        "shell", "exec", "run",
    ]);
    let machine = count(&|_, l| is_log_line(l));
    if share(machine, 25) || compiled || troubled > 0 && (ran || share(troubled, 4)) {
        return Kind::Log;
    }
    if share(code, 45) && !compiled { Kind::Source } else { Kind::Text }
}

/// Whether one of the last lines counts what failed, passed or was found.
fn has_verdict(graded: &Graded<'_>) -> bool {
    let full = graded.lines.iter().zip(&graded.grades).rev().filter(|(l, _)| !l.trim().is_empty());
    full.take(8).any(|(l, g)| *g == Grade::Summary && paths::hit(l).is_none())
}

/// What test runners put before the name of a test.
const RESULTS: [char; 7] = ['✓', '✔', '✖', '✕', '✗', '✘', '●'];

/// A line that looks like code in some language.
fn is_code(line: &str) -> bool {
    let body = line.trim();
    // A test's result is none.
    if body.starts_with(RESULTS) {
        return false;
    }
    body.ends_with([';', '{', '}', ')', ',', ':']) && !body.contains(". ")
        || body.starts_with("//")
        || body.starts_with("import ")
        || body.starts_with("from ")
        || body.starts_with("#include")
        || body.starts_with("return ")
        || body.contains(" = ") && !body.contains(". ")
        || definition(body).is_some()
}

/// A line as logs have it: a tag, a time, a test's result, a verb of a build tool.
fn is_log_line(line: &str) -> bool {
    let body = line.trim_start();
    let tagged = body.starts_with('[') && body.find(']').is_some_and(|end| (3..40).contains(&end));
    let timed = body.len() > 8
        && body.starts_with(|c: char| c.is_ascii_digit() || c == '[')
        && body.as_bytes()[..8].iter().filter(|b| b.is_ascii_digit()).count() >= 4
        && body[..super::clean::floor(body, 24)].contains([':', '-']);
    let result = [" ok", "PASSED", "FAILED", "... done", "done.", "%]"].iter().any(|e| body.trim_end().ends_with(e));
    let verb = [
        "Compiling ",
        "Checking ",
        "Downloading ",
        "Downloaded ",
        "make[",
        "gcc ",
        "cc ",
        "g++ ",
        "CC ",
        "Building ",
        "Installing ",
        "Collecting ",
        "+ ",
        "=== RUN",
        "--- ",
        "INFO",
        "WARN",
        "DEBUG",
        "ERROR",
        "npm ",
        "remote: ",
        "File \"",
        "E   ",
        "at ",
    ]
    .iter()
    .any(|v| body.starts_with(v));
    let percent = body.contains("%|") || body.contains("% (");
    tagged || timed || result || verb || percent
}

#[cfg(test)]
mod tests {
    use super::super::signal::grade;
    use super::*;

    #[test]
    fn kinds() {
        let code: String = (1..30).map(|i| format!("{i:5}  pub fn a{i}(x: u8) -> u8 {{\n")).collect();
        let grep: String = (1..9).map(|i| format!("src/a{i}.rs:{i}:let x = 1;\n")).collect();
        let gcc: String = (1..9).map(|i| format!("src/a.c:{i}:4: error: bad thing {i}\n  {i} | x;\n")).collect();
        for (text, tool, want) in [
            (code.as_str(), "read_file", Kind::Source),
            (grep.as_str(), "grep", Kind::Search),
            (gcc.as_str(), "bash", Kind::Log),
            ("total 4\n-rw-r--r-- 1 r r 9 Jan 1 10:00 a\n-rw-r--r-- 1 r r 9 Jan 1 10:00 b\n", "bash", Kind::Listing),
            ("a.rs\nb.rs\nc.rs\nmod.rs", "list_dir", Kind::Listing),
            (
                "commit 3fce3b5bb0236da2df6d99672afb8a719642eca7\nAuthor: A <a@b>\nDate: x\n\n    y\n",
                "bash",
                Kind::History,
            ),
            ("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "bash", Kind::Diff),
            ("<!DOCTYPE html><html><p>x</p></html>", "fetch", Kind::Markup),
            ("a,b,c\n1,2,3\n4,5,6\n7,8,9\n", "read", Kind::Table),
            ("It was a dark night.\nNobody came.\nThe end came soon.\n", "read", Kind::Text),
        ] {
            assert_eq!(by_lines(text, &grade(text), &Call { tool, arguments: "" }), want, "{text}");
        }
        let cut = format!("{{\"items\": [{}", "{\"id\": \"a,]\\\"\", \"n\": 3}, ".repeat(200));
        let whole = parse_json(&cut[..cut.len() - 9]).expect("closed where it was cut");
        assert!(whole["items"].as_array().is_some_and(|items| items.len() >= 198), "{whole}");
        assert!(is_json_lines("{\"a\":1}\n{\"a\":2}\n") && !is_json_lines("{\n\"a\":1\n}"));
    }
}
