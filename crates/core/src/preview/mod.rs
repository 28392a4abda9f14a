//! What is left in the prompt of a result that was too large: a preview that keeps what matters by kind of output, a
//! one-line placeholder, elided arguments, a message cut in the middle. Pure: it never reads, stores or asks anything.
//!
//! A text is cleaned (`clean`), its lines are graded (`signal`), its kind is found (`sniff`), and that kind's file drafts
//! what could be shown, each piece with a rank; `fit` takes the best pieces that fit the budget.

pub(crate) mod clean;
pub(crate) mod code;
mod diff;
mod failed;
pub(crate) mod fit;
mod html;
pub(crate) mod json;
mod log;
mod message;
mod opaque;
mod paths;
pub(crate) mod place;
mod reason;
mod screen;
mod short;
pub(crate) mod signal;
pub(crate) mod sniff;
mod table;
mod tally;

use serde_json::Value;

use self::clean::{clean, shorten, wrapped};
use self::fit::{Draft, first_that_fits};
use self::signal::{Graded, grade};
use crate::unwrap::unwrap;

pub use self::clean::{floor, sanitize, settled};
pub use self::fit::largest;
pub(crate) use self::short::exit_code;
pub use self::short::{cut, elide_arguments, placeholder, plural};
pub use self::sniff::Kind;

/// The call whose result is being replaced.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Name of the tool; empty if unknown.
    pub tool: &'a str,
    /// The call's arguments as JSON text, or empty.
    pub arguments: &'a str,
}

/// Where the original is.
#[derive(Debug, Clone, Copy)]
pub struct Pointer<'a> {
    /// The record's id, as `windowsill recall` takes it.
    pub id: &'a str,
    /// The file that holds the original.
    pub path: &'a str,
}

/// What stands in the prompt instead of a large result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The preview with its marker, within the budget.
    pub text: String,
    /// What kind of output the result was taken for.
    pub kind: Kind,
}

/// Argument names that say best what a call was about, the most telling first.
const TELLING: &[&str] = &[
    "command",
    "commands",
    "cmd",
    "script",
    "path",
    "file_path",
    "filePath",
    "filepath",
    "absolute_path",
    "target_file",
    "filename",
    "file",
    "files",
    "paths",
    "notebook_path",
    "uri",
    "url",
    "pattern",
    "query",
    "regex",
    "glob",
    "args",
    "directory",
    "dir",
    "code",
    "name",
    "id",
];

/// Arguments longer than this are not parsed for a label.
const LABEL_FROM: usize = 256 * 1024;

impl Call<'_> {
    /// The most telling argument, on one line: a command, a path, a pattern.
    pub(crate) fn command(&self) -> String {
        if self.arguments.len() > LABEL_FROM {
            return String::new();
        }
        let Ok(Value::Object(map)) = serde_json::from_str::<Value>(self.arguments.trim()) else { return String::new() };
        let one_line = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        let named = TELLING.iter().find_map(|key| map.get(*key)).or_else(|| map.values().find(|v| v.is_string()));
        match named {
            Some(Value::String(s)) => one_line(s),
            Some(Value::Array(items)) => {
                // Cline runs several commands and reads several files at once.
                let file = |item: &'_ Value| {
                    item.get("path").or(item.get("file_path")).and_then(Value::as_str).map(str::to_owned)
                };
                let texts = items.iter().filter_map(|item| item.as_str().map(str::to_owned).or_else(|| file(item)));
                one_line(&texts.take(8).collect::<Vec<_>>().join(" "))
            }
            _ => String::new(),
        }
    }

    /// Tool and its most telling argument, in at most about `max` bytes after the tool's name.
    pub fn label(&self, max: usize) -> String {
        let tool: String = self.tool.chars().filter(|c| !c.is_control()).take(40).collect();
        let tool = if tool.is_empty() { "tool" } else { &tool };
        let command = self.command();
        // Where a command runs says less than what it runs.
        let command =
            command.strip_prefix("cd ").and_then(|c| c.split_once(" && ")).map_or(command.as_str(), |(_, rest)| rest);
        if command.is_empty() { tool.to_owned() } else { format!("{tool} {}", shorten(command, max)) }
    }

    /// The file that the call reads, if it names one.
    pub(crate) fn path(&self) -> Option<String> {
        let command = self.command();
        let file =
            command.contains('.') && !command.contains([' ', '*', '<', '>', '|', '"']) && !command.contains("://");
        (file && command.len() < 200).then_some(command)
    }

    /// Whether the call ran something (rather than read or looked up).
    pub(crate) fn runs(&self) -> bool {
        let tool = self.tool.to_ascii_lowercase();
        let words = [
            "bash", "shell", "exec", "run", "command", "terminal", "build", "test", "python", "sql", "deploy", "lint",
            "cmd",
        ];
        words.iter().any(|w| tool.contains(w))
    }

    /// Whether the call names a file of source code.
    fn names_code(&self) -> bool {
        const CODE: &[&str] = &[
            "rs", "py", "ts", "tsx", "js", "jsx", "go", "java", "c", "h", "cpp", "hpp", "cc", "cs", "rb", "php",
            "swift", "kt", "scala", "sh", "lua", "ex", "hs", "ml", "sql", "zig", "dart", "vue", "pony", "m", "jl",
            "pl", "r",
        ];
        let command = self.command();
        let shows = ["cat ", "sed -n", "head ", "tail ", "nl ", "bat ", "less "].iter().any(|w| command.contains(w));
        if self.runs() && !shows {
            return false;
        }
        command.split([' ', '"', '\'']).any(|word| word.rsplit_once('.').is_some_and(|(_, ext)| CODE.contains(&ext)))
    }
}

/// Digits in groups of three.
pub(crate) fn grouped_digits(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A size in bytes, kB or MB (decimal).
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..100_000 => format!("{:.1} kB", bytes as f64 / 1000.0),
        100_000..1_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{:.1} MB", bytes as f64 / 1_000_000.0),
    }
}

/// A preview of `text` in at most `budget` tokens by `count`, with a marker that says what is missing and where it is.
///
/// Deterministic. With a budget too small for the marker, its shortest form that fits; in the end the empty text.
pub fn preview(
    text: &str,
    call: &Call<'_>,
    pointer: &Pointer<'_>,
    budget: u32,
    count: &dyn Fn(&str) -> u32,
) -> Preview {
    let inner = unwrap(text);
    let (kind, mut draft) = draft(inner.as_ref().map_or(text, |inner| inner.text.as_str()), call);
    if let Some(around) = inner.as_ref().map(|inner| inner.around.as_str()).filter(|around| !around.is_empty()) {
        draft.summary = [around, &draft.summary].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ");
    }
    let order = draft.order();
    let total = signal::lines(inner.as_ref().map_or(text, |inner| inner.text.as_str())).len();
    let what = call.label(60);
    let head = |kept: usize| {
        let shown = if kept > 0 && kept < total { format!(", {} shown", plural(kept, "line")) } else { String::new() };
        format!(
            "[preview of {what} ({}): {}, {}{shown}; cut to save context, full text: windowsill recall {} or {}]",
            kind.name(),
            plural(total, "line"),
            size(text.len()),
            pointer.id,
            pointer.path
        )
    };
    let whole = |allowance: usize| {
        let (body, kept) = draft.render(&order, allowance);
        sanitize(&format!("{}\n{body}", head(kept))).into_owned()
    };
    let made = largest(budget, count, &whole).filter(|text| text.contains(pointer.id));
    let text = made.unwrap_or_else(|| first_that_fits(&markers(text, total, &what, pointer), budget, count));
    Preview { text, kind }
}

/// What stands below a text that is shown in its final state.
pub(crate) fn settled_note(id: &str) -> String {
    format!("\n[progress shown in its final state; as it came: windowsill recall {id}]")
}

/// The marker alone, in ever shorter forms.
fn markers(text: &str, lines: usize, what: &str, pointer: &Pointer<'_>) -> Vec<String> {
    let size = size(text.len());
    vec![
        format!(
            "[{what}: {}, {size} cut; full text: windowsill recall {} or {}]",
            plural(lines, "line"),
            pointer.id,
            pointer.path
        ),
        format!("[{}, {size} cut: windowsill recall {} or {}]", plural(lines, "line"), pointer.id, pointer.path),
        format!("[{}, {size} cut: windowsill recall {}]", plural(lines, "line"), pointer.id),
        format!("[{size} cut: windowsill recall {}]", pointer.id),
        format!("[cut: {}]", pointer.id),
        "[cut]".to_owned(),
    ]
}

/// In lines longer than this errors are looked for piece by piece.
const LONG_LINE: usize = 4000;

/// Of texts with such lines so many bytes are looked at.
const WRAP_MOST: usize = 2 << 20;

fn draft(text: &str, call: &Call<'_>) -> (Kind, Draft) {
    if let Some(value) = sniff::parse_json(text)
        && (value.is_object() || value.is_array())
    {
        let mut draft = json::document(&value);
        if !text.trim_end().ends_with(['}', ']']) {
            draft.summary.push_str(" (cut off at its end)");
        }
        return (Kind::Json, draft);
    }
    if sniff::is_json_lines(text)
        && let Some(draft) = json::lines(text)
    {
        return (Kind::JsonLines, draft);
    }
    let cleaned = clean(text);
    let mut graded = grade(&cleaned);
    message::regrade(&mut graded);
    let kind = sniff::by_lines(text, &graded, call);
    let mut draft = match kind {
        Kind::Binary => opaque::binary_draft(text),
        Kind::Base64 => opaque::base64_draft(opaque::base64_body(text).unwrap_or(text)),
        Kind::Markup => {
            let readable = html::readable(&cleaned);
            let graded = grade(&readable);
            let mut draft = running_text(&graded);
            draft.pieces.iter_mut().for_each(|piece| piece.lines = 0);
            draft
        }
        Kind::Search => paths::grep(&graded),
        Kind::Listing => paths::listing(&graded),
        Kind::Diff => diff::diff(&graded),
        Kind::History => diff::history(&graded),
        Kind::Source => code::source(&graded),
        Kind::Disassembly => code::disassembly(&graded),
        Kind::Minified => code::minified(&graded, &cleaned),
        Kind::Table => {
            table::delimiter(&graded.lines).map_or_else(|| log::draft(&graded), |mark| table::draft(&graded, mark))
        }
        Kind::Log | Kind::Text
            if (kind == Kind::Text || graded.lines.len() < 3) && graded.lines.iter().any(|l| l.len() > LONG_LINE) =>
        {
            let narrow = wrapped(&cleaned[..floor(&cleaned, WRAP_MOST)], LONG_LINE, 240);
            let mut draft = running_text(&grade(&narrow));
            // Lines of ours, not of the text: their numbers would mislead.
            draft.pieces.iter_mut().for_each(|piece| piece.lines = 0);
            draft
        }
        Kind::Log => log::draft(&graded),
        Kind::Text => running_text(&graded),
        Kind::Json | Kind::JsonLines => Draft::default(),
    };
    let numbered = draft.pieces.iter().any(|piece| piece.lines > 0);
    if numbered && matches!(kind, Kind::Log | Kind::Source | Kind::Search | Kind::Text) {
        fill(&mut draft, &graded);
    }
    (kind, draft)
}

/// Text of no known structure: beginning and end, and the lines that matter between them.
fn running_text(graded: &Graded<'_>) -> Draft {
    let mut draft = log::draft(graded);
    draft.loose = true;
    let full: Vec<usize> = (0..graded.lines.len()).filter(|&i| !graded.lines[i].trim().is_empty()).collect();
    // Words of trouble are common in prose; the beginning says more there.
    for piece in draft.pieces.iter_mut().filter(|p| p.rank == fit::rank::TROUBLE) {
        piece.rank = fit::rank::CONTEXT;
    }
    let ends = full
        .iter()
        .take(120)
        .enumerate()
        .chain(full.iter().rev().take(60).map(|i| (i, i)).enumerate().map(|(n, (i, _))| (n * 2, i)));
    // A line like one before it (a listing, data in markup) says less.
    let mut seen = std::collections::HashSet::new();
    let mut best: std::collections::HashMap<usize, u16> = std::collections::HashMap::new();
    for (n, &i) in ends {
        let rank = if n < 8 { 97 - n as u16 } else { 80u16.saturating_sub(n as u16 / 2) };
        let rank = if best.contains_key(&i) || seen.insert(place::gist(graded.lines[i])) { rank } else { rank / 4 };
        let known = best.entry(i).or_default();
        *known = (*known).max(rank);
    }
    for piece in draft.pieces.iter_mut().filter(|p| p.lines == 1) {
        if let Some(rank) = best.remove(&piece.line) {
            piece.rank = piece.rank.max(rank);
        }
    }
    let mut rest: Vec<(usize, u16)> = best.into_iter().collect();
    rest.sort_unstable();
    for (i, rank) in rest {
        draft.line(i, rank, graded.lines[i]);
    }
    // Headings carry the outline.
    for &i in &full {
        if graded.lines[i].starts_with('#')
            && graded.lines[i].len() < 120
            && draft.pieces.len() < 4000
            && !draft.pieces.iter().any(|p| p.line == i && p.lines == 1)
        {
            draft.line(i, 68, graded.lines[i]);
        }
    }
    draft
}

/// The first lines that nothing else took: what is left of the budget may as well show them.
fn fill(draft: &mut Draft, graded: &Graded<'_>) {
    let mut taken = vec![false; graded.lines.len()];
    for piece in draft.pieces.iter().filter(|p| p.lines > 0) {
        if let Some(seen) = taken.get_mut(piece.line) {
            *seen = true;
        }
    }
    // `test a::b1 ... ok` a hundred times says nothing that once does not.
    let mut seen = std::collections::HashSet::new();
    let free = (0..graded.lines.len()).filter(|&i| !graded.lines[i].trim().is_empty()).take(2000);
    for i in free.filter(|&i| seen.insert(place::gist(graded.lines[i])) && !taken[i]).take(400).collect::<Vec<_>>() {
        draft.line(i, 5, graded.lines[i]);
    }
}

#[cfg(test)]
#[path = "runs/tests.rs"]
mod runs;
#[cfg(test)]
mod survey;
