//! What calls do to files, and which texts of a file are no longer what it says: an earlier version that was written or read
//! whole since, and lines that an edit took out.
//!
//! Pure. Calls are known by the arguments that coding agents give them: a path with a text (written), with an old and a new
//! text (edited), with neither (read); patches as Codex writes them; and `cat` in a shell. What is not known is not judged.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{Message, Role, ToolCall, step, watch};

/// Arguments of more bytes than this are not read.
const LONGEST: usize = 1 << 20;

/// Arguments and results are read in the newest so many bytes of a history. Bounds the time a rewrite takes.
const READ: usize = 1 << 23;

/// A shorter line (bytes, without its indentation) stands in too many places to say which one an edit took out.
const SHORTEST_LINE: usize = 8;

/// A later version stands for an earlier one that is at most so many times as long: else it was itself cut by the client.
const CUT: usize = 2;

/// How a call uses a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Does {
    /// Reads it, all of it or a part.
    Read {
        /// All of it: the call names no lines and no range.
        whole: bool,
    },
    /// Writes it anew, as so many bytes.
    Write {
        /// Bytes of the new text.
        len: usize,
    },
    /// Puts one text in the place of another.
    Edit {
        /// Lines of the old text.
        old: Vec<String>,
        /// Lines of the new text.
        new: Vec<String>,
    },
}

/// What a call does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The file as the call names it.
    pub path: String,
    /// What is done to it.
    pub does: Does,
}

/// Keys under which tools take the path of a file.
pub const PATH_KEYS: &[&str] = &[
    "path",
    "file_path",
    "filePath",
    "filepath",
    "filename",
    "file",
    "absolute_path",
    "target_file",
    "notebook_path",
    "relative_path",
    "file_name",
];

/// The path of the file that a call's arguments name.
pub fn path(arguments: &Map<String, Value>) -> Option<&str> {
    PATH_KEYS.iter().find_map(|key| arguments.get(*key).and_then(Value::as_str))
}

/// Whether the arguments of two calls are equal or name the same file.
pub fn same_target(a: &str, b: &str) -> bool {
    let read = |arguments: &str| serde_json::from_str::<Map<String, Value>>(arguments).ok();
    let (Some(a), Some(b)) = (read(a), read(b)) else { return a.trim() == b.trim() };
    match (path(&a), path(&b)) {
        (Some(x), Some(y)) => x == y,
        _ => a == b,
    }
}

/// Keys under which the new text of a whole file stands.
const TEXT: &[&str] = &["content", "contents", "file_text", "file_content", "new_content"];

/// Beginnings of words in the name of a tool that reads a file, or in its `command` or `action`. A search, a test or a linter
/// names a file, too, but its answer is not the file's text.
const READS: &[&str] = &["read", "view", "open"];

/// The same for a tool that writes a whole file. A tool that appends is not one.
const WRITES: &[&str] = &["write", "create", "save"];

/// Keys of what is looked for in a file.
const SOUGHT: &[&str] = &["pattern", "query", "regex", "search", "glob"];

/// Keys of an edit's old text.
const OLD: &[&str] = &["old_string", "old_str", "oldString", "oldText", "old_text", "old", "search", "old_content"];

/// Keys of an edit's new text.
const NEW: &[&str] = &["new_string", "new_str", "newString", "newText", "new_text", "new", "replace", "replacement"];

/// Keys that name a part of a file.
const PART: &[&str] = &[
    "offset",
    "limit",
    "start_line",
    "end_line",
    "line",
    "line_number",
    "lines",
    "range",
    "view_range",
    "insert_line",
];

/// What a call does to files, as far as its arguments say it.
pub fn accesses(call: &ToolCall) -> Vec<Access> {
    if call.arguments.len() > LONGEST {
        return Vec::new();
    }
    match serde_json::from_str::<Value>(call.arguments.trim()) {
        Ok(Value::Object(map)) => of_object(&call.name, &map),
        _ => patched(&call.arguments),
    }
}

fn of_object(tool: &str, map: &Map<String, Value>) -> Vec<Access> {
    let text = |keys: &[&str]| keys.iter().find_map(|key| map.get(*key).and_then(Value::as_str));
    let has = |keys: &[&str]| keys.iter().any(|key| map.contains_key(*key));
    let said = format!("{tool} {}", text(&["command", "action"]).unwrap_or_default()).to_ascii_lowercase();
    let parts = || said.split(|c: char| !c.is_alphanumeric());
    let is = |begins: &[&str]| parts().any(|part| begins.iter().any(|word| part.starts_with(word)));
    let Some(path) = path(map) else {
        return command(map).map_or_else(Vec::new, |c| if c.contains(PATCH) { patched(&c) } else { read_by_shell(&c) });
    };
    let does = match (text(OLD), text(NEW), text(TEXT)) {
        (Some(old), new, _) => Does::Edit { old: lines(old), new: lines(new.unwrap_or_default()) },
        (None, None, Some(text)) if is(WRITES) => Does::Write { len: text.len() },
        (None, Some(new), _) => Does::Edit { old: Vec::new(), new: lines(new) },
        (None, None, None) if is(READS) && !has(SOUGHT) => Does::Read { whole: !has(PART) },
        (None, None, _) => return Vec::new(),
    };
    vec![Access { path: path.to_owned(), does }]
}

/// The lines that an edit looks for, file by file: of a patch, also those that it leaves as they are. Empty for other calls.
pub fn sought(call: &ToolCall) -> Vec<(String, Vec<String>)> {
    if call.arguments.len() > LONGEST {
        return Vec::new();
    }
    let map = match serde_json::from_str::<Value>(call.arguments.trim()) {
        Ok(Value::Object(map)) => map,
        _ => return sought_by_patch(&call.arguments),
    };
    let mut out = match (path(&map), command(&map)) {
        (Some(path), _) => vec![(path.to_owned(), sought_at_path(&map))],
        (None, Some(patch)) => sought_by_patch(&patch),
        (None, None) => Vec::new(),
    };
    out.retain(|(_, lines)| !lines.is_empty());
    out
}

/// The lines that an edit of one file looks for: its old text, those of several edits, or blocks between `SEARCH` and `=======`.
fn sought_at_path(map: &Map<String, Value>) -> Vec<String> {
    let old =
        |map: &Map<String, Value>| OLD.iter().find_map(|key| map.get(*key)?.as_str().map(lines)).unwrap_or_default();
    let mut out = old(map);
    let edits = map.get("edits").and_then(Value::as_array).into_iter().flatten();
    out.extend(edits.filter_map(Value::as_object).flat_map(old));
    let mut within = false;
    for line in map.get("diff").and_then(Value::as_str).unwrap_or_default().lines() {
        match line.trim() {
            mark if mark.ends_with(" SEARCH") => within = true,
            mark if mark.starts_with("=====") => within = false,
            _ if within => out.extend(bare(line).map(str::to_owned)),
            _ => {}
        }
    }
    out
}

fn sought_by_patch(patch: &str) -> Vec<(String, Vec<String>)> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix(PATCH) {
            out.push((path.trim().to_owned(), Vec::new()));
        } else if let Some((_, lines)) = out.last_mut().filter(|_| !line.starts_with("***")) {
            lines.extend(line.strip_prefix([' ', '-']).and_then(bare).map(str::to_owned));
        }
    }
    out
}

/// The command or patch of a call that names no path: a string, or words of a command line.
fn command(map: &Map<String, Value>) -> Option<Cow<'_, str>> {
    let value = ["command", "cmd", "input", "patch"].iter().find_map(|key| map.get(*key))?;
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            Some(Cow::Owned(words.join(" ")))
        }
        _ => None,
    }
}

/// How a patch names a file that it changes (Codex's `apply_patch`).
const PATCH: &str = "*** Update File: ";

/// What a patch does to each of its files.
fn patched(patch: &str) -> Vec<Access> {
    let mut out: Vec<Access> = Vec::new();
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix(PATCH) {
            let does = Does::Edit { old: Vec::new(), new: Vec::new() };
            out.push(Access { path: path.trim().to_owned(), does });
        } else if line.starts_with("*** ") {
            continue;
        } else if let Some(Access { does: Does::Edit { old, new }, .. }) = out.last_mut() {
            old.extend(line.strip_prefix('-').and_then(bare).map(str::to_owned));
            new.extend(line.strip_prefix('+').and_then(bare).map(str::to_owned));
        }
    }
    out
}

/// `cat PATH`, and nothing else.
fn read_by_shell(command: &str) -> Vec<Access> {
    let mut words = command.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("cat"), Some(path), None) if !path.contains(['>', '<', '|', ';', '*', '$']) => {
            vec![Access { path: path.to_owned(), does: Does::Read { whole: true } }]
        }
        _ => Vec::new(),
    }
}

/// The lines of a text that say which they are.
fn lines(text: &str) -> Vec<String> {
    text.lines().filter_map(bare).map(str::to_owned).collect()
}

/// A line without indentation and without the number that a client puts before it; `None` where it says too little.
fn bare(line: &str) -> Option<&str> {
    let line = line.trim();
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = rest.len() < line.len() && rest.starts_with(['\t', '|', ':', '→']);
    let line = if numbered { rest.trim_start_matches(['\t', '|', ':', '→', ' ']) } else { line };
    (line.len() >= SHORTEST_LINE).then_some(line)
}

/// Whether a text of `newer` bytes stands for an earlier one of `len` bytes, and is not a piece of it.
fn stands_for(newer: usize, len: usize) -> bool {
    newer > 0 && newer.saturating_mul(CUT) >= len
}

/// Which texts of files in a history were replaced since.
#[derive(Debug, Clone, Default)]
pub struct Superseded {
    results: HashSet<usize>,
    calls: HashSet<(usize, usize)>,
    /// By message: lines in it that an edit took out of their file.
    gone: HashMap<usize, HashSet<String>>,
}

/// What is known of a file from the messages after a place in the history.
#[derive(Default)]
struct File {
    /// Bytes of its longest whole text; 0 where none is known.
    whole: usize,
    /// Bytes of what was read, by the arguments of the call.
    read: HashMap<String, usize>,
    /// Lines that edits took out and put in.
    out: HashSet<String>,
    put: HashSet<String>,
}

impl Superseded {
    /// What was replaced in a history, as it stands at its end.
    pub fn of(body: &[Message]) -> Superseded {
        let mut all = Superseded::default();
        let mut files: HashMap<String, File> = HashMap::new();
        let (links, mut read) = (step::Links::of(body), 0);
        // From the end, so that what came later is known.
        for (at, message) in body.iter().enumerate().rev().filter(|(_, m)| m.role == Role::Assistant) {
            for (nth, call) in message.calls.iter().enumerate().rev() {
                let result = links.result_of(at, nth);
                read += call.arguments.len() + result.map_or(0, |r| body[r].text.len());
                // An edit that failed changed nothing; an error is no text of a file.
                let failed = result.is_some_and(|r| watch::has_failed(&body[r]));
                if read <= READ && !failed {
                    accesses(call).into_iter().for_each(|access| all.note(body, (at, nth), result, access, &mut files));
                }
            }
        }
        all
    }

    fn note(
        &mut self,
        body: &[Message],
        (at, nth): (usize, usize),
        result: Option<usize>,
        access: Access,
        files: &mut HashMap<String, File>,
    ) {
        let file = files.entry(access.path).or_default();
        match access.does {
            Does::Write { len } => {
                if stands_for(file.whole, len) {
                    self.calls.insert((at, nth));
                }
                file.whole = file.whole.max(len);
            }
            Does::Edit { old, new } => {
                // The whole text that is known came later, and has this edit in it.
                if file.whole > 0 {
                    self.calls.insert((at, nth));
                }
                let put: HashSet<String> = new.into_iter().collect();
                let out: Vec<String> = old.into_iter().filter(|line| !put.contains(line)).collect();
                file.out.extend(out.iter().filter(|line| !file.put.contains(*line)).cloned());
                self.leave_out(at, file.out.iter().chain(&out));
                file.put.extend(put);
            }
            Does::Read { whole } => {
                let Some(result) = result else { return };
                let len = body[result].text.len();
                let read = file.read.entry(body[at].calls[nth].arguments.clone()).or_default();
                if stands_for(file.whole, len) || stands_for(*read, len) {
                    self.results.insert(result);
                } else {
                    self.leave_out(result, file.out.iter());
                }
                *read = len.max(*read);
                if whole {
                    file.whole = file.whole.max(len);
                }
            }
        }
    }

    fn leave_out<'l>(&mut self, at: usize, lines: impl Iterator<Item = &'l String>) {
        let mut lines = lines.cloned().peekable();
        if lines.peek().is_some() {
            self.gone.entry(at).or_default().extend(lines);
        }
    }

    /// Whether the text of a result was replaced.
    pub fn result(&self, at: usize) -> bool {
        self.results.contains(&at)
    }

    /// Whether the text in the arguments of a call was replaced.
    pub fn call(&self, at: usize, nth: usize) -> bool {
        self.calls.contains(&(at, nth))
    }

    /// Whether a line of a message was taken out of its file since.
    pub fn line(&self, at: usize, line: &str) -> bool {
        self.gone.get(&at).is_some_and(|gone| bare(line).is_some_and(|line| gone.contains(line)))
    }

    /// Whether any line of a message was taken out of its file since.
    pub fn has_lines(&self, at: usize) -> bool {
        self.gone.contains_key(&at)
    }

    /// A message without the calls whose text was replaced; `None` where nothing is left of it.
    pub fn current<'m>(&self, at: usize, message: &'m Message) -> Option<Cow<'m, Message>> {
        if self.result(at) {
            return None;
        }
        if !(0..message.calls.len()).any(|nth| self.call(at, nth)) {
            return Some(Cow::Borrowed(message));
        }
        let mut message = message.clone();
        let mut nth = 0..;
        message.calls.retain(|_| nth.next().is_some_and(|nth| !self.call(at, nth)));
        Some(Cow::Owned(message))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::wire::openai_chat::message;

    fn call(name: &str, arguments: &Value) -> ToolCall {
        ToolCall { id: "a".into(), name: name.into(), arguments: arguments.to_string() }
    }

    /// A body of calls with their results.
    fn steps(all: &[(Value, &str)]) -> Vec<Message> {
        let read = |value: Value| message(Bytes::from(value.to_string())).unwrap();
        let mut body = vec![read(json!({"role": "user", "content": "Please mend it."}))];
        for (i, (arguments, result)) in all.iter().enumerate() {
            let id = format!("c{i}");
            let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
            let made =
                json!({"id": id, "type": "function", "function": {"name": "read_or_write", "arguments": arguments}});
            body.push(read(json!({"role": "assistant", "content": null, "tool_calls": [made]})));
            body.push(read(json!({"role": "tool", "tool_call_id": id, "content": result})));
        }
        body
    }

    /// The steps whose text was replaced.
    fn replaced(all: &[(Value, &str)]) -> Vec<usize> {
        let superseded = Superseded::of(&steps(all));
        (0..all.len()).filter(|i| superseded.result(2 * i + 2) || superseded.call(2 * i + 1, 0)).collect()
    }

    #[test]
    fn what_a_call_does_is_read_off_its_arguments() {
        let lines = |all: &[&str]| all.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
        let edit = |old: &[&str], new: &[&str]| Does::Edit { old: lines(old), new: lines(new) };
        for (arguments, does) in [
            (json!({"file_path": "a.rs"}), Does::Read { whole: true }),
            (json!({"command": "view", "path": "a.rs", "view_range": [1, 9]}), Does::Read { whole: false }),
            (json!({"command": "cat a.rs"}), Does::Read { whole: true }),
            (json!({"path": "a.rs", "content": "fn main() {}"}), Does::Write { len: 12 }),
            (
                json!({"path": "a.rs", "old_str": "let old = 1;\n}", "new_str": "  let new = 2;"}),
                edit(&["let old = 1;"], &["let new = 2;"]),
            ),
            (
                json!({"input": "*** Begin Patch\n*** Update File: a.rs\n@@\n-let old = 1;\n+let new = 2;\n*** End Patch"}),
                edit(&["let old = 1;"], &["let new = 2;"]),
            ),
        ] {
            let path = "a.rs".to_owned();
            assert_eq!(accesses(&call("read_or_write", &arguments)), [Access { path, does }], "{arguments}");
        }
        for nothing in [json!({"command": "cat a.rs | wc"}), json!({"query": "a.rs"}), json!([1]), json!("a.rs")] {
            assert_eq!(accesses(&call("read", &nothing)), [], "{nothing}");
        }
        // What names a file and neither reads nor writes it says nothing of its text.
        let (file, text) = (json!({"path": "a.rs"}), json!({"path": "a.rs", "content": "more"}));
        for (tool, arguments) in [("run_tests", &file), ("spread_sheet", &file), ("append_to_file", &text)] {
            assert_eq!(accesses(&call(tool, arguments)), [], "{tool}");
        }
        assert_eq!(accesses(&call("read_search", &json!({"path": "src", "pattern": "fn"}))), []);
    }

    #[test]
    fn an_earlier_version_is_replaced_by_a_whole_one_only() {
        let read = (json!({"path": "a.rs"}), "fn one() {}\nfn two() {}");
        let part = (json!({"path": "a.rs", "offset": 3}), "fn two() {}");
        let write = (json!({"path": "a.rs", "content": "fn one() {}\nfn three() {}"}), "written");
        let edit = (json!({"path": "a.rs", "old_string": "fn two() {}", "new_string": "fn four() {}"}), "edited");
        let other = (json!({"path": "b.rs"}), "fn one() {}");
        let failed = (json!({"path": "a.rs"}), "Error: no such file: a.rs");
        assert_eq!(replaced(&[read.clone(), other.clone(), write.clone()]), [0]);
        assert_eq!(replaced(&[write.clone(), edit.clone(), read.clone()]), [0, 1]);
        assert_eq!(replaced(&[part.clone(), read.clone(), part.clone()]), [0], "a part read again");
        assert_eq!(replaced(&[read.clone(), part, edit, other]), [0; 0], "neither a part nor an edit is the whole");
        assert_eq!(replaced(&[read.clone(), failed]), [0; 0]);
        let cut = (json!({"path": "a.rs"}), "fn one()");
        assert_eq!(replaced(&[read, cut]), [0; 0], "the client cut the newer one");
    }

    #[test]
    fn lines_that_an_edit_took_out_are_no_longer_so() {
        let edit = |old: &str, new: &str| (json!({"path": "a.rs", "old_text": old, "new_text": new}), "edited");
        let read = (json!({"path": "a.rs"}), "  12\tfn first() {}\n  13\tfn second() {}\n  14\tfn third() {}");
        let body = steps(&[
            read,
            edit("fn first() {}\nfn third() {}", "fn first() {}\nfn fourth() {}"),
            edit("fn second() {}", "fn fifth() {}"),
            edit("fn fifth() {}", "fn second() {}"),
        ]);
        let superseded = Superseded::of(&body);
        assert!(superseded.line(2, "  14\tfn third() {}"));
        assert!(!superseded.line(2, "  12\tfn first() {}"), "the edit kept it");
        assert!(!superseded.line(2, "  13\tfn second() {}"), "it came back");
        assert!(superseded.line(3, "fn third() {}") && !superseded.line(3, "fn fourth() {}"));
        assert!(superseded.line(5, "fn fifth() {}"));
    }
}
