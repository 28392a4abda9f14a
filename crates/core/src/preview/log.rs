//! Build and test logs of any tool, stack traces, and texts of unknown kind: what went wrong and where, counts, ends.
//! Reads the shapes that tools share (a message, a place, indented context), not every tool's own grammar.

use std::collections::{HashMap, HashSet};

use super::clean::{floor, shorten};
use super::failed;
use super::fit::Draft;
use super::paths::{by_folder, common_folder, grouped};
use super::place::{family, gist, place};
use super::signal::{Grade, Graded};

/// How many places of a repeated message are remembered.
const PLACES: usize = 60;

/// How many distinct messages are remembered; a log of more has no one that stands out.
const DISTINCT: usize = 3000;

/// So many distinct messages come before everything else.
const FIRST: usize = 8;

/// Of messages that differ only in what they quote so many come first.
const ALIKE: usize = 3;

/// So many lines at the end are where tools list what went wrong.
const END: usize = 40;

/// One distinct message and where else it was seen.
struct Message {
    line: usize,
    times: usize,
    places: Vec<String>,
}

/// Of failed tests beyond so many the reasons no longer come before other things.
const REASONS: usize = 24;

/// A log with errors in more files than this names the files before it tells more than a few messages.
const MANY_FILES: usize = 16;

/// Ranks, highest first: what a reader needs to act comes before what helps to understand.
pub(super) mod rank {
    pub(crate) const TOTALS: u16 = 99;
    pub(crate) const ERROR: u16 = 98;
    pub(crate) const FILES: u16 = 90;
    pub(crate) const MORE: u16 = 86;
    pub(crate) const REASON: u16 = 89;
    pub(crate) const NAME: u16 = 91;
    pub(crate) const HEADING: u16 = 88;
    pub(crate) const TROUBLE: u16 = 67;
    pub(crate) const FRAME: u16 = 72;
    pub(crate) const END: u16 = 70;
    pub(crate) const CONTEXT: u16 = 66;
    pub(crate) const START: u16 = 60;
    pub(crate) const MARK: u16 = 58;
    pub(crate) const AGAIN: u16 = 56;
    pub(crate) const WARNING: u16 = 62;
    pub(crate) const DETAIL: u16 = 44;
    pub(crate) const ODD: u16 = 36;
}

/// Drafts a log.
pub(super) fn draft(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let muted = passes(&graded.lines);
    let mut collector = Collector {
        lines: &graded.lines,
        taken: vec![false; graded.lines.len()],
        muted,
        joined: HashMap::new(),
        draft: &mut draft,
    };
    collector.traces();
    collector.again_below();
    collector.sections(&graded.grades);
    collector.reasons(&graded.grades);
    let (errors, error_files) = collector.messages(&graded.grades, Grade::Error, rank::ERROR);
    let (_, _) = collector.messages(&graded.grades, Grade::Trouble, rank::TROUBLE);
    let (warnings, _) = collector.messages(&graded.grades, Grade::Warning, rank::WARNING);
    collector.messages(&graded.grades, Grade::Mark, rank::MARK);
    collector.totals(&graded.grades);
    collector.ends();
    collector.odd();
    let mut facts = Vec::new();
    if errors.0 > 0 {
        facts.push(format!("error lines: {} ({} distinct, {} files)", errors.0, errors.1, error_files.len()));
    }
    if warnings.0 > 0 {
        facts.push(format!("warnings: {} ({} distinct)", warnings.0, warnings.1));
    }
    draft.summary = facts.join("; ");
    draft.wish = errors.1;
    if errors.1 > FIRST + ALIKE {
        codes(&mut draft, graded);
    }
    // Few messages name their files themselves.
    let files_rank = if errors.1 > FIRST + ALIKE { rank::FILES } else { rank::MORE - 2 };
    files(&mut draft, error_files, files_rank);
    draft
}

/// How often each code of an error came (`TS2307`, `E0599`), with one of its messages.
fn codes(draft: &mut Draft, graded: &Graded<'_>) {
    let mut codes: Vec<(&str, usize, &str)> = Vec::new();
    for (line, _) in graded.lines.iter().zip(&graded.grades).filter(|(_, g)| **g == Grade::Error) {
        let Some((code, said)) = code(line) else { continue };
        if let Some((_, times, _)) = codes.iter_mut().find(|(known, ..)| *known == code) {
            *times += 1;
        } else if codes.len() < 100 {
            codes.push((code, 1, said));
        }
    }
    codes.sort_by_key(|(code, times, _)| (std::cmp::Reverse(*times), *code));
    if codes.len() > 1 {
        for (code, times, said) in codes.into_iter().take(FIRST - 2) {
            draft.top(rank::FILES + 2, format!("{code}: {} (×{times})", shorten(said, 70)));
        }
    }
}

/// The code of an error and what is said behind it: `error TS2307: x`, `error[E0599]: x`, `fatal error C1083: x`.
fn code(line: &str) -> Option<(&str, &str)> {
    let rest = &line[line.find("error")? + 5..];
    let (code, said) = rest.trim_start_matches([' ', '[']).split_once(':')?;
    let code = code.trim_end_matches(']');
    let letters = code.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = code.bytes().skip(letters).take_while(u8::is_ascii_digit).count();
    ((1..=8).contains(&letters) && digits > 1 && letters + digits == code.len()).then_some((code, said.trim()))
}

/// The files that errors were found in.
fn files(draft: &mut Draft, files: HashMap<String, usize>, rank: u16) {
    let mut files: Vec<(String, usize)> = files.into_iter().collect();
    if files.len() < 2 {
        return;
    }
    files.sort();
    let above = common_folder(files.iter().map(|(path, _)| path.as_str())).to_owned();
    if files.len() <= 4 || above.len() < 3 {
        return grouped(&files).into_iter().for_each(|group| draft.top(rank, format!("errors in {group}")));
    }
    // What they have in common is said once.
    let below: Vec<(String, usize)> = files.iter().map(|(path, n)| (path[above.len()..].to_owned(), *n)).collect();
    if files.len() > MANY_FILES {
        let folders: Vec<(String, usize)> = by_folder(&below).into_iter().collect();
        draft.top(rank + 2, format!("errors by folder, in {above}: {}", grouped(&folders).join(", ")));
    }
    draft.top(rank + 1, format!("errors by file, in {above}"));
    grouped(&below).into_iter().for_each(|group| draft.top(rank, group));
}

/// Where pytest shows the output of tests that passed: from that heading to the last summary.
fn passes(lines: &[&str]) -> std::ops::Range<usize> {
    let heading = |l: &&str, name: &str| l.starts_with("===") && l.contains(name);
    let Some(start) = lines.iter().position(|l| heading(l, " PASSES ")) else { return 0..0 };
    let end = lines.iter().rposition(|l| heading(l, " short test summary ")).unwrap_or(lines.len());
    start..end.max(start)
}

struct Collector<'a, 't> {
    lines: &'a [&'t str],
    taken: Vec<bool>,
    /// Lines in the output of tests that passed.
    muted: std::ops::Range<usize>,
    /// Places of messages that stand on the line below.
    joined: HashMap<usize, String>,
    draft: &'a mut Draft,
}

impl Collector<'_, '_> {
    fn take(&mut self, line: usize, rank: u16) {
        if line < self.lines.len() && !self.taken[line] && !self.lines[line].trim().is_empty() {
            self.taken[line] = true;
            self.draft.line(line, rank, self.lines[line]);
        }
    }

    /// Python tracebacks: the frames next to the error matter most, and they stand last.
    fn traces(&mut self) {
        let mut i = 0;
        while i < self.lines.len() {
            if !self.lines[i].contains("Traceback (most recent call last)") {
                i += 1;
                continue;
            }
            let indent = |s: &str| s.len() - s.trim_start().len();
            let base = indent(self.lines[i]);
            let mut end = i + 1;
            while end < self.lines.len() && (indent(self.lines[end]) > base || self.lines[end].trim().is_empty()) {
                end += 1;
            }
            self.take(i, rank::FRAME);
            self.take(end, rank::ERROR);
            for frame in end.saturating_sub(4).max(i + 1)..end {
                self.take(frame, rank::FRAME);
            }
            for frame in i + 1..(i + 3).min(end) {
                self.take(frame, rank::CONTEXT - 4);
            }
            // The frames between are the least telling lines of all.
            for middle in i + 3..end.saturating_sub(4) {
                self.taken[middle] = true;
            }
            i = end.max(i + 1);
        }
    }

    /// pytest lists what failed once more at the end: the lines on which it said so while running add nothing to that.
    fn again_below(&mut self) {
        let summary = |l: &&str| l.starts_with("===") && l.contains(" short test summary ");
        let Some(start) = self.lines.iter().rposition(summary) else { return };
        let name = |l: &str| l.split(" - ").next().unwrap_or(l).trim().to_owned();
        let told = self.lines[start..].iter().filter_map(|l| Some(name(l.strip_prefix("FAILED ")?)));
        let told: HashSet<String> = told.collect();
        for (i, line) in self.lines[..start].iter().enumerate() {
            let before = line.split_once(" FAILED").map_or("", |(before, _)| before);
            self.taken[i] |= told.contains(before.trim());
        }
    }

    /// Why tests failed, which stands around their names.
    fn reasons(&mut self, grades: &[Grade]) {
        let mut failures = 0;
        for i in 0..self.lines.len() {
            let line = self.lines[i].trim_start();
            let names = grades[i] == Grade::Error || line.starts_with(['●', '✕', '✗', '✖', '×']);
            if !names || self.muted.contains(&i) {
                continue;
            }
            let found = failed::reasons(self.lines, i);
            failures += usize::from(!found.is_empty());
            for (n, (at, weight)) in found.into_iter().enumerate() {
                let rank = match weight {
                    0 if failures <= REASONS => rank::REASON,
                    0 | 1 if failures <= REASONS => rank::FRAME,
                    _ => rank::ODD - n.min(16) as u16,
                };
                // What a tool calls an error is told as one.
                if grades[at] != Grade::Error {
                    self.take(at, rank);
                }
            }
        }
    }

    /// `____ test_name ____`, `==== FAIL ====`, `● suite › test`, pytest's `E   ` and `>   ` lines.
    fn sections(&mut self, grades: &[Grade]) {
        let mut told = false;
        let is_rule = |c: char| matches!(c, '_' | '=' | '!');
        for (i, &line) in self.lines.iter().enumerate() {
            let Some(first) = line.chars().next() else { continue };
            if is_rule(first) && line.len() > 12 && line.ends_with(first) {
                let name = line.trim_matches(|c| c == first || c == ' ');
                if !name.is_empty() && name.len() < 200 {
                    told = false;
                    self.taken[i] = true;
                    let rank = if self.muted.contains(&i) {
                        rank::ODD
                    } else if first == '=' {
                        rank::CONTEXT
                    } else {
                        rank::HEADING
                    };
                    self.draft.line(i, rank, &format!("__ {name} __"));
                }
            } else if line.starts_with("E   ") && grades[i] < Grade::Error {
                // The first says what, those below it how.
                let rank = if std::mem::replace(&mut told, true) { rank::FRAME + 8 } else { rank::REASON };
                self.take(i, if self.muted.contains(&i) { rank::ODD } else { rank });
            } else if line.starts_with(">   ") {
                self.take(i, rank::CONTEXT);
            } else if line.trim_start().starts_with(['●', '✕', '✗', '✖', '×']) {
                self.take(i, rank::NAME);
            }
        }
    }

    /// All lines of one grade, each distinct message once, with its place and how often it came.
    fn messages(&mut self, grades: &[Grade], grade: Grade, rank: u16) -> ((usize, usize), HashMap<String, usize>) {
        let mut seen: HashMap<u64, usize> = HashMap::new();
        let mut all: Vec<Message> = Vec::new();
        let mut files: HashMap<String, usize> = HashMap::new();
        let mut total = 0;
        for (i, _) in grades.iter().enumerate().filter(|(_, g)| **g == grade) {
            total += 1;
            let line = self.lines[i];
            // The place is in the message, or on one of the next two lines, as rustc writes it.
            let near = [0, 1, 2].into_iter().filter_map(|d| self.lines.get(i + d)).find_map(|l| place(l));
            if grade == Grade::Error {
                self.join_place(i);
            }
            if let Some(near) = &near {
                *files.entry(near.file.to_owned()).or_default() += 1;
            }
            // Words of trouble come in families: `Missing entry: a`, `Missing entry: b`.
            let key = gist(if grade == Grade::Trouble { &line[..floor(line, 44)] } else { line });
            match seen.get(&key) {
                Some(&at) => {
                    let message = &mut all[at];
                    message.times += 1;
                    if message.places.len() < PLACES
                        && let Some(near) = near
                    {
                        message.places.push(near.whole.to_owned());
                    }
                }
                None if all.len() < DISTINCT => {
                    seen.insert(key, all.len());
                    all.push(Message { line: i, times: 1, places: Vec::new() });
                }
                None => {}
            }
        }
        let distinct = all.len();
        // Many different messages: each still counts, but the context of each does not.
        let roomy = distinct <= 12;
        let mut families: HashMap<u64, usize> = HashMap::new();
        let (mut first, mut late) = (0, 0);
        let crowded = files.len() > MANY_FILES;
        let most = if crowded { FIRST / 4 } else { FIRST };
        for message in &all {
            // After the first ones, and three of a kind, the names of the files say more than one more message; but
            // what stands at the end is the tool's own list of what went wrong.
            let alike = families.entry(family(self.lines[message.line])).or_default();
            *alike += 1;
            let early = *alike <= ALIKE && first < most;
            first += usize::from(early);
            let at_end = message.line + END > self.lines.len() && late < most && !crowded;
            late += usize::from(at_end && !early);
            // Code in a diff speaks of trouble without having any.
            let quoted = grade != Grade::Error && self.lines[message.line].starts_with(['-', '+']);
            let later = if grade == Grade::Error { rank::MORE } else { rank - 20 };
            let rank = match (self.muted.contains(&message.line) || quoted, early || at_end) {
                (true, _) => rank::ODD,
                (false, true) => rank,
                (false, false) => later,
            };
            self.message(message, rank);
        }
        for message in all.iter().filter(|_| matches!(grade, Grade::Error | Grade::Warning)) {
            self.context(message.line, grades, rank, roomy);
        }
        ((total, distinct), files)
    }

    /// A message with its place on the next line, as rustc writes it, is told on one line.
    fn join_place(&mut self, i: usize) {
        let below = self.lines.get(i + 1).filter(|l| l.trim_start().starts_with("--> "));
        if let Some(found) = below.and_then(|l| place(l))
            && !self.taken[i]
            && !self.taken[i + 1]
        {
            self.joined.insert(i, found.whole.to_owned());
            self.taken[i + 1] = true;
        }
    }

    /// A message where it came first, how often it came, and where else.
    fn message(&mut self, message: &Message, rank: u16) {
        let i = message.line;
        if !self.taken[i] {
            self.take(i, rank);
            if let Some(piece) = self.draft.pieces.last_mut().filter(|p| p.line == i) {
                if let Some(place) = self.joined.get(&i) {
                    piece.text.insert_str(0, &format!("{place}: "));
                }
                if message.times > 1 {
                    piece.text.push_str(&format!(" (×{})", message.times));
                }
            }
        }
        if !message.places.is_empty() {
            self.draft.remark(i, rank::AGAIN.min(rank), format!("    also {}", message.places.join(", ")));
        }
    }

    /// What tools print below a message: the place first, then the code and the hints.
    fn context(&mut self, i: usize, grades: &[Grade], rank: u16, roomy: bool) {
        let (near, far) = if rank == rank::ERROR { (rank - 2, rank::CONTEXT) } else { (rank - 1, rank::DETAIL - 10) };
        for (d, context) in (i + 1..self.lines.len().min(i + 9)).enumerate() {
            let line = self.lines[context].trim();
            if line.is_empty() || grades[context] >= Grade::Warning {
                break;
            }
            let located = line.starts_with("--> ") || line.starts_with("at ") && d < 2;
            let worth = if located && d < 3 {
                near
            } else if d < 2 {
                far
            } else {
                rank::DETAIL
            };
            if roomy || located {
                self.take(context, worth.saturating_sub(u16::from(!located) * d as u16));
            }
        }
    }

    /// Totals: the last ones are the result of the whole run.
    fn totals(&mut self, grades: &[Grade]) {
        let found: Vec<usize> = (0..grades.len()).filter(|&i| grades[i] == Grade::Summary).collect();
        let last = found.len().saturating_sub(6);
        // Of a run within a run (tests of a test tool) the totals are not the run's own.
        for (n, &i) in found.iter().enumerate() {
            self.take(i, if n >= last && !self.muted.contains(&i) { rank::TOTALS } else { rank::DETAIL });
        }
    }

    /// The last lines, where tools say how it ended, and the first, where they say what they do.
    fn ends(&mut self) {
        let full: Vec<usize> = (0..self.lines.len()).filter(|&i| !self.lines[i].trim().is_empty()).collect();
        for (n, &i) in full.iter().rev().take(6).enumerate() {
            self.take(i, if n < 3 { rank::END } else { rank::DETAIL });
        }
        for (n, &i) in full.iter().take(6).enumerate() {
            self.take(i, if n < 2 { rank::START } else { rank::DETAIL });
        }
    }

    /// Lines whose shape (letters, digits and spaces made alike) hardly any other line of the text has.
    fn odd(&mut self) {
        if self.lines.len() < 40 {
            return;
        }
        let mut shapes: HashMap<u64, (u32, usize)> = HashMap::with_capacity(256);
        for (i, line) in self.lines.iter().enumerate().filter(|(_, l)| l.len() > 3) {
            shapes.entry(shape(line)).or_insert((0, i)).0 += 1;
        }
        // In prose or code every line is odd: then oddness says nothing.
        let single: Vec<usize> = shapes.values().filter(|(n, _)| *n == 1).map(|(_, i)| *i).collect();
        if single.len() * 20 > self.lines.len() {
            return;
        }
        let mut single = single;
        single.sort_unstable();
        for i in single.into_iter().take(60) {
            self.take(i, rank::ODD);
        }
    }
}

/// A line's shape: its first letters and its punctuation, with runs of letters and digits made alike.
fn shape(line: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut last = 0;
    for (i, &c) in line.as_bytes().iter().take(60).enumerate() {
        let class = match c {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => b'a',
            b'0'..=b'9' => b'0',
            b' ' | b'\t' => b' ',
            other => other,
        };
        if class != last || i < 2 {
            hash = (hash ^ u64::from(class)).wrapping_mul(0x0100_0000_01b3);
        }
        last = class;
    }
    hash
}
