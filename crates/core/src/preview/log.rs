//! Build and test logs of any tool, stack traces, and texts of unknown kind: what went wrong and where, counts, ends.
//! Reads the shapes that tools share (a message, a place, indented context), not every tool's own grammar.

use std::collections::HashMap;

use super::clean::{floor, shorten};
use super::failed::{self, Failure};
use super::fit::{Draft, rank};
use super::message;
use super::paths::common_folder;
use super::place::{family, gist, place};
use super::reason;
use super::signal::{Grade, Graded};
use super::tally::{FIRST, MANY_FILES, codes, files, rules};

/// How many places of a repeated message are remembered.
const PLACES: usize = 60;

/// How many distinct messages are remembered; a log of more has no one that stands out.
const DISTINCT: usize = 3000;

/// So many further places of a message are told: each is an error to be mended, for a fifth of what another message takes.
const ALSO: usize = 24;

/// So few are named of a message that has more: it is about no place.
const ANYWHERE: usize = 2;

/// A line of places is no longer than this (bytes): no shorter form of a line cuts it.
const PLACES_LINE: usize = 96;

/// Of messages that differ only in what they quote so many come first.
const ALIKE: usize = 3;

/// So many lines at the end are where tools list what went wrong.
const END: usize = 40;

/// One distinct message and where else it was seen.
struct Message {
    line: usize,
    times: usize,
    /// Where it was seen first.
    first: Option<String>,
    places: Vec<String>,
}

/// Drafts a log.
pub(super) fn draft(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let muted = passes(&graded.lines);
    let failures = failed::distinct(&graded.lines, failed::failures(graded, &muted));
    let mut collector = Collector {
        graded,
        lines: &graded.lines,
        taken: vec![false; graded.lines.len()],
        inside: vec![false; graded.lines.len()],
        muted,
        joined: HashMap::new(),
        draft: &mut draft,
    };
    collector.failures(&failures);
    collector.again(&failures);
    collector.told_with_their_place();
    collector.traces();
    collector.sections(&graded.grades);
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
    draft.instead = Some(rank::MORE - 2..=rank::FILES + 2);
    if errors.1 > FIRST + ALIKE {
        codes(&mut draft, graded);
        draft.tally = rules(graded);
    }
    // Few messages name their files themselves.
    let files_rank = if errors.1 > FIRST + ALIKE { rank::FILES } else { rank::MORE - 2 };
    files(&mut draft, error_files, files_rank);
    draft
}

/// Where pytest shows the output of tests that passed: from that heading to the last summary.
fn passes(lines: &[&str]) -> std::ops::Range<usize> {
    let heading = |l: &&str, name: &str| l.starts_with("===") && l.contains(name);
    let Some(start) = lines.iter().position(|l| heading(l, " PASSES ")) else { return 0..0 };
    let end = lines.iter().rposition(|l| heading(l, " short test summary ")).unwrap_or(lines.len());
    start..end.max(start)
}

struct Collector<'a, 't> {
    graded: &'a Graded<'t>,
    lines: &'a [&'t str],
    taken: Vec<bool>,
    /// Lines in the block of a failure that is told already.
    inside: Vec<bool>,
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
            let rank = if self.inside[line] { rank.min(rank::FRAME - 4) } else { rank };
            self.draft.line(line, rank, self.lines[line]);
        }
    }

    /// Where a message points to: in it, above it where messages stand below their file, or on one of the next two lines.
    fn near(&self, i: usize) -> Option<(String, String)> {
        if let Some(&above) = self.graded.named_at.get(&i) {
            let (file, whole) = message::place_below(self.lines, above, i);
            return Some((file.to_owned(), whole));
        }
        let found = [0, 1, 2].into_iter().filter_map(|d| self.lines.get(i + d)).find_map(|l| place(l))?;
        Some((found.file.to_owned(), found.whole.to_owned()))
    }

    /// Whether a line has the form of a compiler's or a linter's message.
    fn is_message(&self, i: usize) -> bool {
        let arrow = || self.lines.get(i + 1).is_some_and(|l| message::is_arrow(l));
        self.graded.named_at.contains_key(&i) || arrow() || message::message(self.lines[i]).is_some()
    }

    /// Which messages a message is like: those of its rule, else those that differ in what they quote.
    fn family(&self, i: usize) -> u64 {
        let rule = if self.is_message(i) { message::rule(self.lines[i]) } else { None };
        rule.map_or_else(|| family(self.lines[i]), gist)
    }

    /// Python tracebacks: the frames next to the error matter most, and they stand last.
    fn traces(&mut self) {
        let mut i = 0;
        while i < self.lines.len() {
            if self.inside[i] || !self.lines[i].contains("Traceback (most recent call last)") {
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

    /// Failed tests, each with its name, its place and why, on lines of its own.
    fn failures(&mut self, failures: &[Failure]) {
        // Many failures: each is told in less.
        let (width, most) = if failures.len() <= 12 { (200, 5) } else { (160, 4) };
        let files = || failures.iter().flat_map(|f| &f.places).map(|(_, place)| failed::file_of(place));
        let below = if failures.len() > 2 { common_folder(files()) } else { "" };
        for failure in failures {
            for line in failure.name..failure.end.min(self.lines.len()) {
                self.inside[line] = true;
            }
            if failure.suite {
                (failure.name..failure.end.min(self.lines.len())).for_each(|line| self.taken[line] = true);
                continue;
            }
            for line in failure.says.iter().map(|(line, _)| *line).chain([failure.name]) {
                self.taken[line] = true;
            }
            // What only announces a stack says nothing beside what it ended with.
            for line in failure.name..failure.end.min(self.lines.len()) {
                if reason::announces(self.lines[line]) {
                    self.take(line, rank::ODD);
                }
            }
            for (line, _) in &failure.places {
                self.taken[*line] = true;
            }
            let text = failure.told(self.lines, width, most, "");
            let brief = failure.told(self.lines, 120, 3, below);
            self.draft.needed(failure.name, rank::ERROR, text, brief);
        }
        self.draft.below = below.to_owned();
    }

    /// Lines that only name once more what a failure is told of: where it ran, and in a list at the end.
    fn again(&mut self, failures: &[Failure]) {
        let names: Vec<&str> = failures.iter().map(|f| f.called.as_str()).collect();
        let all = names.join("\n");
        let places = failures.iter().flat_map(|f| &f.places).map(|(_, p)| p.as_str()).collect::<Vec<_>>().join("\n");
        if all.is_empty() {
            return;
        }
        for (i, line) in self.lines.iter().enumerate() {
            let body = line.trim();
            let listed = self.graded.grades[i] == Grade::Error && !self.is_message(i)
                || body.starts_with(['✕', '✗', '✖', '×', '✘', '●']);
            // `FAIL src/a.test.js`, `❯ src/a.test.js (16 tests | 1 failed) 9ms`: a file whose failures are told.
            let file = || file_of_failures(body).is_some_and(|file| places.contains(file));
            let listed = listed || body.starts_with('❯');
            if listed && !self.inside[i] && (file() || failed::name_in(body).is_some_and(|name| all.contains(name))) {
                self.taken[i] = true;
            }
        }
    }

    /// pytest's `E   KeyError: 'a'` right above `a.py:7: KeyError: 'a'`: the second one says it all.
    fn told_with_their_place(&mut self) {
        for at in 1..self.lines.len() {
            let said = self.lines[at - 1].strip_prefix("E   ").map(str::trim).filter(|said| !said.is_empty());
            let place = said.and_then(|said| self.lines[at].strip_suffix(said)?.strip_suffix(": "));
            self.taken[at - 1] |= place.is_some_and(place_alone);
        }
    }

    /// `____ test_name ____`, `==== FAIL ====`, `● suite › test`, pytest's `E   ` and `>   ` lines.
    fn sections(&mut self, grades: &[Grade]) {
        let mut told = false;
        let is_rule = |c: char| matches!(c, '_' | '=' | '!');
        for (i, &line) in self.lines.iter().enumerate() {
            let Some(first) = line.chars().next() else { continue };
            if self.taken[i] || self.graded.named_at.contains_key(&i) || message::is_total(line) {
                continue;
            }
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
            let near = self.near(i);
            if grade == Grade::Error {
                self.join_place(i);
            }
            if let Some((file, _)) = &near
                && !self.inside[i]
            {
                *files.entry(file.clone()).or_default() += 1;
            }
            // Words of trouble come in families: `Missing entry: a`, `Missing entry: b`.
            let formal = grade == Grade::Error && self.is_message(i);
            let key = if formal {
                message::same(line)
            } else {
                gist(if grade == Grade::Trouble { &line[..floor(line, 44)] } else { line })
            };
            let whole = near.map(|(_, whole)| whole);
            match seen.get(&key) {
                Some(&at) => {
                    let message = &mut all[at];
                    let known =
                        |whole: &String| message.first.as_ref() == Some(whole) || message.places.contains(whole);
                    // What is told once more at the end is the same message, not another one.
                    if whole.as_ref().is_some_and(|whole| !known(whole)) && message.places.len() < PLACES {
                        message.places.extend(whole);
                    }
                    message.times += 1;
                    // Told with the first one.
                    self.taken[i] |= formal;
                    if let Some(&above) = self.graded.named_at.get(&i) {
                        self.taken[above] |= formal;
                    }
                }
                None if all.len() < DISTINCT => {
                    seen.insert(key, all.len());
                    all.push(Message { line: i, times: 1, first: whole, places: Vec::new() });
                }
                None => {}
            }
        }
        let distinct = all.len();
        if grade == Grade::Error && distinct > 3 {
            let paths: Vec<&str> = files.keys().map(String::as_str).collect();
            let below = common_folder(paths.iter().copied());
            if self.draft.below.is_empty() && below.len() > 3 {
                self.draft.below = below.to_owned();
            }
        }
        self.rank(&all, grade, rank, files.len() > MANY_FILES);
        // Where places have to be left out, the list of files stands for them.
        let elided: usize = all.iter().map(|m| m.places.len().saturating_sub(ALSO)).sum();
        self.draft.crowded |= grade == Grade::Error && elided > 100 && elided > 4 * distinct;
        // Many different messages: each still counts, but the context of each does not.
        for message in all.iter().filter(|_| matches!(grade, Grade::Error | Grade::Warning)) {
            self.context(message.line, grades, rank, distinct <= 12);
        }
        ((total, distinct), files)
    }

    /// Adds messages of one grade: those of rare kinds first, then one of each kind, then the second of each.
    fn rank(&mut self, all: &[Message], grade: Grade, rank: u16, crowded: bool) {
        let formal = all.iter().any(|m| self.is_message(m.line));
        let mut families: HashMap<u64, usize> = HashMap::new();
        let nth: Vec<(u64, usize)> = all
            .iter()
            .map(|message| {
                let family = self.family(message.line);
                let alike = families.entry(family).or_default();
                *alike += 1;
                (family, *alike)
            })
            .collect();
        let commonest = families.values().copied().max().unwrap_or(0);
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|&i| (if families[&nth[i].0] <= ALIKE { 0 } else { nth[i].1 }, i));
        let (mut first, mut late) = (0, 0);
        let most = if crowded { FIRST / 4 } else { FIRST };
        for i in order {
            let message = &all[i];
            // After the first ones, and three of a kind, the names of the files say more than one more message; but
            // what stands at the end is the tool's own list of what went wrong.
            let early = nth[i].1 <= ALIKE && first < most;
            first += usize::from(early);
            let at_end = message.line + END > self.lines.len() && late < most && !crowded;
            late += usize::from(at_end && !early);
            // Code in a diff speaks of trouble without having any.
            let quoted = grade != Grade::Error && self.lines[message.line].starts_with(['-', '+']);
            // Beside messages with a place, what only says that something failed comes after them.
            let bare = grade == Grade::Error && formal && !self.is_message(message.line);
            let rank = match () {
                () if self.muted.contains(&message.line) || quoted => rank::ODD,
                () if bare => rank::LAST,
                () if early || at_end => rank,
                // The one real error among hundreds of remarks on style.
                () if grade == Grade::Error && families[&nth[i].0] * 10 <= all.len() => rank::RARE,
                // Of two kinds the rarer one says more: the fortieth unused variable waits for the tenth name that is not defined.
                () if grade == Grade::Error && families[&nth[i].0] < commonest => rank::MORE,
                () if grade == Grade::Error => rank::MORE - 1,
                () => rank - 20,
            };
            self.message(message, rank);
        }
    }

    /// A message with its place on the next line, as rustc writes it, or above it, is told on one line.
    fn join_place(&mut self, i: usize) {
        if self.taken[i] {
            return;
        }
        if let Some(&above) = self.graded.named_at.get(&i) {
            self.joined.insert(i, message::place_below(self.lines, above, i).1);
            self.taken[above] = true;
            return;
        }
        let below = self.lines.get(i + 1).filter(|l| message::is_arrow(l));
        if let Some(found) = below.and_then(|l| place(l))
            && !self.taken[i + 1]
        {
            self.joined.insert(i, found.whole.to_owned());
            self.taken[i + 1] = true;
        }
    }

    /// A message where it came first, how often it came, and where else.
    fn message(&mut self, message: &Message, rank: u16) {
        let i = message.line;
        if self.taken[i] {
            return;
        }
        self.take(i, rank);
        let joined = self.joined.get(&i);
        let graded = self.graded;
        let needed =
            graded.grades[i] == Grade::Error && rank >= rank::MORE - 1 && rank != rank::LAST && !self.inside[i];
        let Some(piece) = self.draft.pieces.last_mut().filter(|p| p.line == i) else { return };
        if let Some(place) = joined {
            piece.text = format!("{place}: {}", message::without_place(&piece.text));
        }
        let times = if message.times > 1 { format!(" (×{})", message.times) } else { String::new() };
        let also = |most: usize| match message.places.as_slice() {
            [] => String::new(),
            all if all.len() <= most => format!("\n    also {}", all.join(", ")),
            all => format!("\n    also {} and {} more", all[..most].join(", "), all.len() - most),
        };
        if needed {
            let whole_also = also(24);
            let whole = if joined.is_some() { message::without_rule(self.lines[i], &piece.text) } else { &piece.text };
            // Below the name of a file the level has a column of its own; of errors, the heading says that they are such.
            let leveled = joined.filter(|_| graded.named_at.contains_key(&i));
            let said = leveled.and_then(|place| whole.strip_prefix(place.as_str())?.strip_prefix(": error "));
            let said = said.zip(joined).map(|(said, place)| format!("{place}: {said}"));
            let short = message::in_short(said.as_deref().unwrap_or(whole), &self.draft.below);
            let also = match message.places.len() {
                ..=ALSO => in_lines(&message.places, &self.draft.below),
                _ => also(ANYWHERE).replace(&self.draft.below, ""),
            };
            piece.brief = Some(format!("{}{times}{also}", shorten(&short, 150)));
            piece.text = format!("{}{times}{whole_also}", shorten(&piece.text, 300));
            return;
        }
        piece.text.push_str(&times);
        if !message.places.is_empty() {
            self.draft.remark(i, rank::AGAIN.min(rank), also(PLACES).trim_start_matches('\n').to_owned());
        }
    }

    /// What tools print below a message: the place first, then the code and the hints.
    fn context(&mut self, i: usize, grades: &[Grade], rank: u16, roomy: bool) {
        let (near, far) = if rank == rank::ERROR { (rank - 2, rank::CONTEXT) } else { (rank - 1, rank::DETAIL - 10) };
        let indent = |line: &str| line.len() - line.trim_start().len();
        let base = indent(self.lines[i]);
        for (d, context) in (i + 1..self.lines.len().min(i + 9)).enumerate() {
            let line = self.lines[context].trim();
            // A line further to the left belongs to what comes next: it is the name of the next file, say.
            let left = indent(self.lines[context]) < base;
            if line.is_empty() || left || grades[context] >= Grade::Warning {
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
            // How it ended stands on the very last lines.
            let rank = [rank::LAST, rank::LAST, rank::END].get(n).copied().unwrap_or(rank::DETAIL);
            self.take(i, rank);
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

/// The file that a line of a test runner's list says to have failed.
pub(super) fn file_of_failures(line: &str) -> Option<&str> {
    if let Some(file) = line.strip_prefix("FAIL ") {
        return Some(file.trim());
    }
    let (file, count) = line.strip_prefix('❯')?.trim().split_once(" (")?;
    (count.contains(" failed") && !file.contains(' ')).then_some(file)
}

/// True where a text is a place and nothing else.
fn place_alone(text: &str) -> bool {
    place(text).is_some_and(|found| found.whole == text)
}

/// Further places of a message, each whole, on lines that nothing cuts.
fn in_lines(places: &[String], below: &str) -> String {
    let mut out = String::new();
    let mut width = PLACES_LINE;
    for place in places {
        let place = place.replacen(below, "", 1);
        let more = if width + place.len() + 2 > PLACES_LINE {
            width = 9;
            if out.is_empty() { "\n    also " } else { ",\n    " }
        } else {
            ", "
        };
        out.push_str(more);
        out.push_str(&place);
        width += place.len() + 2;
    }
    out
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
