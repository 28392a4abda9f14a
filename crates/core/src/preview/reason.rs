//! Which lines of a failure's block say why it failed, and which say where.

use super::place::{Place, is_foreign, place};
use super::signal::Grade;

/// Lines that say why, of one failure.
const REASONS: usize = 6;

/// Words at the head of a line that says why.
const TELLING: [&str; 23] = [
    "expected",
    "received",
    "actual",
    "got",
    "want",
    "left:",
    "right:",
    "left =",
    "right =",
    "have",
    "message:",
    "error:",
    "assert",
    "reason",
    "caused by",
    "failed asserting",
    "which is:",
    "failure/error:",
    "diff:",
    "but was",
    "to be",
    "to equal",
    "value:",
];

/// Beginnings of lines that tell nothing: keys of a report, the head of a traceback, how a difference is to be read.
const IDLE: [&str; 13] = [
    "Traceback (most recent",
    "Error Message:",
    "Stack Trace:",
    "duration",
    "type:",
    "failureType:",
    "code:",
    "operator:",
    "location:",
    "stack:",
    "+ actual - expected",
    "generatedMessage",
    "running ",
];

/// Ends of lines whose value stands below.
const IDLE_ENDS: [&str; 8] =
    ["|-", ": |", "expected:", "actual:", "Expected:", "Received:", "Got:", "Expected nothing"];

/// A line of a picture of the source, or one that only rules off.
fn is_drawn(line: &str) -> bool {
    let body = line.trim_start_matches(['>', ' ', '│', '|', '·']);
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    let quoted = digits > 0 && body[digits..].trim_start().starts_with(['|', '│', '┆']);
    let numbered = digits > 0 && body[digits..].starts_with(":  ");
    quoted || numbered || !line.chars().any(char::is_alphanumeric)
}

/// Whether a line only says that a stack follows, or marks a column of the line above.
pub(super) fn announces(line: &str) -> bool {
    line.trim_start().starts_with("Traceback (most recent")
        || line.trim_start().starts_with("? ") && is_drawn(&line.replacen('?', "", 1))
}

/// Lines, each with its rank.
type Ranked = Vec<(usize, u16)>;

/// Places and reasons in the lines of a block, in the order of the text.
pub(super) fn weighed(lines: &[&str], grades: &[Grade], block: &[usize], name: &str) -> (Vec<(usize, String)>, Ranked) {
    let mut places: Vec<(usize, String)> = Vec::new();
    let mut says: Vec<(usize, u16)> = Vec::new();
    // pytest marks its reasons.
    let marked = block.iter().any(|&i| lines[i].starts_with("E   "));
    let mut scale = Scale { lines, grades, name, first: true, hints: 0, done: false, open: false };
    for &i in block {
        let line = lines[i];
        let body = line.trim().trim_start_matches("# ").trim_start_matches('│').trim_start();
        // What the test printed, and the frames of a panic, come after what counts.
        if body.starts_with("stack backtrace:") || body.starts_with("---") && body.contains(" Captured ") {
            break;
        }
        let idle = IDLE.iter().any(|start| body.starts_with(start)) || IDLE_ENDS.iter().any(|end| body.ends_with(end));
        if body.is_empty() || idle || is_drawn(line) {
            continue;
        }
        let counts = |found: &Place<'_>| !scale.done && !is_foreign(line) && (!marked || line.starts_with(found.whole));
        if let Some(found) = place(line).filter(counts) {
            let said = says_only_place(body, &found) || body.contains(" panicked at ");
            places.push((i, found.whole.to_owned()));
            scale.done |= said && says.iter().any(|(_, weight)| *weight == 0);
            if said {
                continue;
            }
        }
        if let Some(weight) = if marked { scale.marked(i) } else { scale.plain(i, body) } {
            scale.open = weight == 0 && body.ends_with(':');
            scale.first &= weight > 0;
            says.push((i, weight));
        }
    }
    // The best few, in the order of the text.
    says.sort_by_key(|(i, weight)| (*weight, *i));
    says.truncate(REASONS);
    says.retain(|(_, weight)| *weight < 3);
    says.sort_unstable();
    (ends_of(places), says)
}

/// Weighs the lines of one block, in order.
struct Scale<'a> {
    lines: &'a [&'a str],
    grades: &'a [Grade],
    name: &'a str,
    /// Whether nothing has said why so far.
    first: bool,
    /// Lines with a place that were taken for want of better.
    hints: u8,
    /// After the reason and the place come hints.
    done: bool,
    /// `ArgumentError:` and `Expected values to be equal:` have what they speak of below them.
    open: bool,
}

impl Scale<'_> {
    /// What a line weighs where reasons are marked; `None` where it is no reason.
    fn marked(&mut self, i: usize) -> Option<u16> {
        let line = self.lines[i];
        let Some(said) = line.strip_prefix("E   ") else { return line.starts_with(">   ").then_some(2) };
        match () {
            () if std::mem::take(&mut self.first) => Some(0),
            () if is_telling(said) || self.grades[i] == Grade::Error => Some(1),
            () => Some(3),
        }
    }

    /// What a line weighs elsewhere.
    fn plain(&mut self, i: usize, body: &str) -> Option<u16> {
        let above = if i > 0 { self.lines[i - 1] } else { "" };
        let difference = (body.starts_with("+ ") || body.starts_with("- ")) && body.len() < 120 && !is_legend(body);
        let telling = is_telling(body);
        match () {
            // The message of a panic, and the code that a traceback quotes.
            () if above.contains(" panicked at ") || self.open || is_asked_for(above) => Some(0),
            // The line where it broke, among those around it; and what a tool marks as the one side or the other.
            () if body.starts_with('❱') || body.ends_with("(Expected)") || body.ends_with("(Actual)") => Some(0),
            () if above.trim_start().starts_with("File \"") => Some(2),
            () if self.done && !telling => Some(3),
            () if self.grades[i] == Grade::Error && !body.contains(self.name) => Some(0),
            () if telling => Some(0),
            () if is_frame(body) => None,
            () if difference => Some(1),
            () if std::mem::take(&mut self.first) => Some(1),
            () if place(body).is_some() && self.hints < 2 => {
                self.hints += 1;
                Some(2)
            }
            () => Some(3),
        }
    }
}

/// Whether a line stands alone above what was expected, or what came.
fn is_asked_for(above: &str) -> bool {
    matches!(above.trim(), "Expected:" | "Got:" | "Actual:" | "Received:")
}

/// Whether a line begins with a word that says what was expected, what came, or why.
fn is_telling(said: &str) -> bool {
    let said = said.trim_start_matches(['→', ' ']);
    let lower: String = said.chars().take(16).flat_map(char::to_lowercase).collect();
    TELLING.iter().any(|word| lower.starts_with(word))
}

/// The first place and the last one: where the test stands, and where it broke.
fn ends_of(mut places: Vec<(usize, String)>) -> Vec<(usize, String)> {
    places.dedup_by(|b, a| a.1 == b.1);
    if places.len() > 2 {
        places.drain(1..places.len() - 1);
    }
    places
}

/// `- Expected`, `+ Received`: how a difference is to be read.
fn is_legend(body: &str) -> bool {
    let rest = body[2..].trim_start().to_ascii_lowercase();
    ["expected", "received", "actual"].iter().any(|w| rest == *w || rest.starts_with(&format!("{w} ")))
}

/// A frame of a stack.
fn is_frame(body: &str) -> bool {
    ["at ", "on ", "❯ ", "from ", "File \"", "in ", "…", "⋮", "stack:"].iter().any(|s| body.starts_with(s))
        || is_foreign(body)
}

/// Whether a line is a place and no more than the frame that it stands in.
fn says_only_place(body: &str, found: &Place<'_>) -> bool {
    let body = body.trim_start_matches("# ");
    let rest = body.replace(found.whole, "");
    // Ruby's frames: `a.rb:12:in 'x'`.
    let inside = body.starts_with(found.whole) && rest.starts_with(":in ");
    is_frame(body)
        || inside
        || body.starts_with(found.whole) && rest.trim_start_matches([':', ' ']).split(' ').count() <= 1
        || rest.trim().len() < 16 && !(body.starts_with(found.whole) && rest.starts_with(": "))
}
