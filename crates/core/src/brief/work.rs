//! The work log: of the folded messages, what the session itself says that it will need, quoted with the text around it.
//! Calls, edits, the assistant's own sentences and the lines of results that it took up, each under the number of its
//! message. Nothing is paraphrased.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::safe::{defuse, one_line};
use crate::conversation::files::{self, Superseded};
use crate::conversation::step::call_of;
use crate::conversation::{Message, Role, person};
use crate::preview::clean::{floor, sanitize, shorten};
use crate::salience::{Salience, names, spoken};

/// Characters that a quote keeps on either side of a name, spaces in a row counted once: about half a line of code.
const AROUND: usize = 25;

/// Characters more that a quote takes to end between words.
const TO_A_BORDER: usize = 10;

/// Bytes up to which a quote is extended to the beginning of its line.
const TO_LINE_START: usize = 16;

/// Bytes that the mark between two quotes of a message takes.
const BETWEEN: usize = 4;

/// Bytes that the line above the quotes of a message takes.
pub(super) const HEADING: usize = 18;

/// Bytes of a file's path that the line above the quotes of a message shows.
const PATH: usize = 60;

/// Bytes of quotes that are sought at most: more than any brief could show.
const MOST: usize = 24_000;

/// Quotes come from the newest so many bytes of what is folded. Bounds the time a fold takes.
const READ: usize = 1 << 18;

/// Bytes of one message that are read for quotes.
const READ_OF_ONE: usize = 1 << 16;

/// Names beside the quotes that are kept at most.
const MOST_NAMES: usize = 600;

/// How much of its worth a name has for a quote that another name is the middle of.
const BESIDE: f32 = 0.5;

/// How much more a quote from the newest message is worth than one of the same names from long ago: where a name stands
/// in an edit and in the read before it, the edit is quoted.
const NEWER: f32 = 0.5;

/// The heading of the quotes.
pub(super) const HEAD: &str = "Work so far, quoted by the number of the message (… is left out):";

/// The heading of the quotes of a talk.
pub(super) const TALK: &str = "Said so far, quoted by the number of the message (… is left out):";

/// The heading of the names.
pub(super) const ALSO: &str = "Also in use:";

/// What is quoted, and which names are in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    texts: Vec<Quoted>,
    /// In the order of what they are worth for their length.
    quotes: Vec<Quote>,
    /// The names in use, the one that would be missed most first.
    names: Vec<String>,
    /// Whether it is what two said.
    is_talk: bool,
}

/// A message that is quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quoted {
    pub(super) at: usize,
    pub(super) label: String,
    /// When it was said, where that is shown.
    pub(super) date: Option<String>,
    pub(super) text: String,
}

/// A quote, and the bytes that all quotes up to it take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) text: usize,
    pub(super) range: Range<usize>,
    pub(super) bytes: usize,
}

impl Work {
    /// The work in the messages `folded` (indices, in order) of a history. Names that stand in `shown`, messages of the
    /// view, need no quote; what was `superseded` is not quoted.
    pub fn of(
        body: &[Message],
        folded: &[usize],
        shown: &[usize],
        salience: &Salience,
        superseded: &Superseded,
    ) -> Work {
        let mut search = Search::new(body, folded, shown, salience, superseded);
        let quotes = search.run();
        let quoted: HashSet<usize> = quotes.iter().map(|q| q.text).collect();
        let texts = search.texts.iter().enumerate().map(|(i, text)| {
            let kept = if quoted.contains(&i) { text.text.to_string() } else { String::new() };
            Quoted { at: text.at, label: label(body, text.at), date: None, text: kept }
        });
        let ranked = salience.ranked().into_iter().filter(|(name, _)| search.ids.contains_key(*name));
        let mut names: Vec<(&str, f32)> = ranked.take(2 * MOST_NAMES).collect();
        // A list is read by the name: short ones say as much as long ones.
        let value = |(name, worth): &(&str, f32)| worth / (name.len() + 6) as f32;
        names.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| a.0.cmp(b.0)));
        let names = names.into_iter().take(MOST_NAMES).map(|(name, _)| name.to_owned()).collect();
        Work { texts: texts.collect(), quotes, names, is_talk: false }
    }

    /// Quotes of what two said.
    pub(super) fn told(texts: Vec<Quoted>, quotes: Vec<Quote>) -> Work {
        Work { texts, quotes, names: Vec::new(), is_talk: true }
    }

    /// Whether it is what two said.
    pub(super) fn is_talk(&self) -> bool {
        self.is_talk
    }

    fn head(&self) -> &'static str {
        if self.is_talk { TALK } else { HEAD }
    }

    /// Without quotes that say no more than one of these texts does.
    pub(super) fn without(mut self, texts: &[Arc<str>]) -> Work {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let texts: Vec<String> = texts.iter().map(|text| squeezed(text)).collect();
        let says = |quote: &Quote| {
            let words = squeezed(&excerpt(&self.texts[quote.text].text[quote.range.clone()]));
            !words.is_empty() && texts.iter().any(|text| text.contains(&words))
        };
        let (mut all, mut left, mut before) = (Vec::new(), 0, 0);
        for quote in &self.quotes {
            let bytes = quote.bytes - before;
            before = quote.bytes;
            if !says(quote) {
                left += bytes;
                all.push(Quote { bytes: left, ..quote.clone() });
            }
        }
        self.quotes = all;
        self
    }

    /// Bytes of all quotes.
    pub(super) fn need(&self) -> usize {
        self.quotes.last().map_or(0, |q| q.bytes + self.head().len() + 1)
    }

    /// Bytes of all names.
    pub(super) fn names_need(&self) -> usize {
        if self.names.is_empty() { 0 } else { ALSO.len() + self.names.iter().map(|n| n.len() + 1).sum::<usize>() }
    }

    /// The quotes worth most in `room` bytes, in the order of the messages; empty where none fits.
    pub(super) fn quotes(&self, room: usize) -> String {
        let mut out = String::new();
        let mut date: Option<&str> = None;
        for (text, quotes) in self.of_texts(room.saturating_sub(self.head().len() + 1)) {
            out.push_str(if out.is_empty() { self.head() } else { "" });
            if let Some(new) = text.date.as_deref().filter(|new| date != Some(*new)) {
                date = Some(new);
                out.push_str(&format!("\n[{}]", defuse(&sanitize(new))));
            }
            out.push_str(&format!("\n{}\n{quotes}", text.label));
        }
        out
    }

    /// The quotes worth most in `room` bytes, by the message that they are from.
    pub fn by_message(&self, room: usize) -> Vec<(usize, String)> {
        self.of_texts(room).into_iter().map(|(text, quotes)| (text.at, quotes)).collect()
    }

    fn of_texts(&self, room: usize) -> Vec<(&Quoted, String)> {
        let count = self.quotes.partition_point(|q| q.bytes <= room);
        let mut of: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.texts.len()];
        self.quotes[..count].iter().for_each(|q| of[q.text].push(q.range.clone()));
        let quoted = self.texts.iter().zip(of).filter(|(_, ranges)| !ranges.is_empty());
        quoted.map(|(text, ranges)| (text, joined(&text.text, ranges))).collect()
    }

    /// The names worth most that `said` does not hold, in `room` bytes; empty where none fits.
    pub(super) fn names(&self, room: usize, said: &str) -> String {
        let mut out = String::new();
        for name in &self.names {
            let mark = if out.is_empty() { ALSO.len() + 1 } else { 1 };
            if out.len() + mark + name.len() > room {
                break;
            }
            if said.contains(name.as_str()) || out.contains(name.as_str()) {
                continue;
            }
            if out.is_empty() {
                out.push_str(ALSO);
            }
            // No name has a space in it, and a mark between two would cost a token each.
            out.push(' ');
            out.push_str(&sanitize(name));
        }
        out
    }
}

/// What of one text would be missed most, in about `room` bytes; empty where nothing would.
pub fn of_text(text: &str, salience: &Salience, room: usize) -> String {
    let mut search = Search { texts: Vec::new(), ids: HashMap::new(), worth: Vec::new(), covered: Vec::new() };
    search.add(0, Cow::Borrowed(text), floor(text, READ_OF_ONE), salience);
    let ranges: Vec<Range<usize>> =
        search.run().into_iter().take_while(|q| q.bytes <= room + HEADING).map(|q| q.range).collect();
    joined(text, ranges)
}

/// Quotes of one text, with a mark where something is left out between them.
fn joined(text: &str, ranges: Vec<Range<usize>>) -> String {
    let quotes: Vec<String> = union(ranges).into_iter().map(|range| excerpt(&text[range])).collect();
    quotes.join("\n…\n")
}

/// A quote as it is shown: without blank lines and spaces at the ends of lines, safe to show.
fn excerpt(text: &str) -> String {
    let lines = text.lines().map(str::trim_end).filter(|l| !l.trim().is_empty());
    let text = lines.collect::<Vec<_>>().join("\n");
    defuse(&sanitize(&text))
}

/// Who says a message: `#12 assistant`, `#13 read_file src/main.rs`.
pub(super) fn label(body: &[Message], at: usize) -> String {
    let message = &body[at];
    match message.role {
        Role::Assistant => format!("#{at} assistant"),
        Role::User => format!("#{at} user"),
        Role::Tool | Role::System | Role::Other => {
            let call = call_of(body, at).map(|(m, c)| &body[m].calls[c]);
            let tool = call.map(|call| call.name.as_str()).or(message.name.as_deref()).unwrap_or("result");
            let tool = shorten(&one_line(tool), 40).into_owned();
            match call.map(files::accesses).unwrap_or_default().first() {
                Some(file) => format!("#{at} {tool} {}", shorten(&defuse(&one_line(&file.path)), PATH)),
                None => format!("#{at} {tool}"),
            }
        }
    }
}

/// Ranges in order, those that touch joined.
fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end + 1 => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// A message while quotes are sought.
struct Text<'b> {
    at: usize,
    text: Cow<'b, str>,
    /// Names in it: which, and where.
    names: Vec<(usize, Range<usize>)>,
    /// What would be quoted for each; `None` where the name stood in the message before.
    windows: Vec<Option<Range<usize>>>,
    /// What is quoted, joined.
    taken: Vec<Range<usize>>,
}

struct Search<'b> {
    texts: Vec<Text<'b>>,
    ids: HashMap<String, usize>,
    worth: Vec<f32>,
    covered: Vec<bool>,
}

/// A name in a message as a candidate for the middle of a quote.
#[derive(PartialEq)]
struct Candidate {
    value: f32,
    text: usize,
    name: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |c: &Candidate| (c.text, std::cmp::Reverse(c.name));
        self.value.total_cmp(&other.value).then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'b> Search<'b> {
    fn new(
        body: &'b [Message],
        folded: &[usize],
        shown: &[usize],
        salience: &Salience,
        superseded: &Superseded,
    ) -> Search<'b> {
        let mut search = Search { texts: Vec::new(), ids: HashMap::new(), worth: Vec::new(), covered: Vec::new() };
        let mut read = 0;
        for at in folded.iter().rev().copied().filter(|at| *at < body.len()) {
            // The words of a person have a section of their own.
            if read > READ || body[at].role == Role::User && person::words(&body[at]).is_some() {
                continue;
            }
            // What a file said before it was changed is no longer so.
            let Some(message) = superseded.current(at, &body[at]) else { continue };
            let text = match message {
                Cow::Borrowed(message) => spoken(message),
                Cow::Owned(message) => Cow::Owned(spoken(&message).into_owned()),
            };
            let end = floor(&text, READ_OF_ONE);
            read += end;
            search.add(at, text, end, salience);
            search.leave_out(at, superseded);
        }
        search.texts.reverse();
        for at in shown.iter().filter(|at| **at < body.len()) {
            let text = spoken(&body[*at]);
            for name in names(&text[..floor(&text, READ_OF_ONE)]) {
                if let Some(id) = search.ids.get(&text[name]) {
                    search.covered[*id] = true;
                }
            }
        }
        search
    }

    fn add(&mut self, at: usize, text: Cow<'b, str>, end: usize, salience: &Salience) {
        let found: Vec<Range<usize>> = names(&text[..end]).collect();
        let mut once = HashSet::new();
        let (mut of, mut windows) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        for name in found {
            let id = self.id(&text[name.clone()], salience);
            windows.push(once.insert(id).then(|| window(&text, &name)));
            of.push((id, name));
        }
        if !of.is_empty() {
            self.texts.push(Text { at, text, names: of, windows, taken: Vec::new() });
        }
    }

    /// Leaves out the names in lines of the message added last that were taken out of their file.
    fn leave_out(&mut self, at: usize, superseded: &Superseded) {
        let Some(of) = self.texts.last_mut().filter(|of| of.at == at && superseded.has_lines(at)) else { return };
        for (window, (_, name)) in of.windows.iter_mut().zip(&of.names) {
            let start = of.text[..name.start].rfind('\n').map_or(0, |at| at + 1);
            let line = of.text[start..].lines().next().unwrap_or_default();
            if superseded.line(at, line) {
                *window = None;
            }
        }
    }

    fn id(&mut self, name: &str, salience: &Salience) -> usize {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.worth.len();
        self.ids.insert(name.to_owned(), id);
        self.worth.push(salience.name(name));
        self.covered.push(false);
        id
    }

    /// Takes the quote that is worth most for its length, again and again.
    fn run(&mut self) -> Vec<Quote> {
        let mut heap: BinaryHeap<Candidate> = BinaryHeap::new();
        for text in 0..self.texts.len() {
            for name in 0..self.texts[text].names.len() {
                heap.extend(self.candidate(text, name).map(|(candidate, _)| candidate));
            }
        }
        let mut out: Vec<Quote> = Vec::new();
        let mut bytes = 0;
        while let Some(best) = heap.pop().filter(|_| bytes < MOST) {
            let Some((now, cost)) = self.candidate(best.text, best.name) else { continue };
            // What was worth more before others were taken goes back into the queue.
            if heap.peek().is_some_and(|next| now < *next) {
                heap.push(now);
                continue;
            }
            let range = self.take(&best);
            bytes += cost;
            out.push(Quote { text: best.text, range: range.clone(), bytes });
            // What stands beside it costs less now.
            let names = &self.texts[best.text].names;
            let near = names.len().min(best.name + 12);
            for name in best.name.saturating_sub(12)..near {
                heap.extend(self.candidate(best.text, name).map(|(candidate, _)| candidate));
            }
        }
        out
    }

    /// A candidate at its present value, and the bytes that it would add; `None` where it is worth nothing.
    fn candidate(&self, text: usize, name: usize) -> Option<(Candidate, usize)> {
        let of = &self.texts[text];
        let window = of.windows[name].as_ref()?;
        let middle = of.names[name].0;
        if self.covered[middle] {
            return None;
        }
        let first = of.names.partition_point(|(_, at)| at.start < window.start);
        let mut worth = self.worth[middle];
        let mut beside: Vec<usize> = of.names[first..]
            .iter()
            .take_while(|(_, at)| at.end <= window.end)
            .map(|(id, _)| *id)
            .filter(|id| *id != middle && !self.covered[*id])
            .collect();
        beside.sort_unstable();
        beside.dedup();
        worth += beside.into_iter().map(|id| self.worth[id] * BESIDE).sum::<f32>();
        if worth <= 0.0 {
            return None;
        }
        let mut cost = window.len() + if of.taken.is_empty() { HEADING } else { BETWEEN };
        for taken in &of.taken {
            if taken.start <= window.end && window.start <= taken.end {
                let both = window.end.min(taken.end) - window.start.max(taken.start);
                cost = cost.saturating_sub(both + BETWEEN);
            }
        }
        let cost = cost.max(1);
        let newer = 1.0 + NEWER * (text + 1) as f32 / self.texts.len() as f32;
        Some((Candidate { value: worth * newer / cost as f32, text, name }, cost))
    }

    fn take(&mut self, candidate: &Candidate) -> Range<usize> {
        let of = &mut self.texts[candidate.text];
        self.covered[of.names[candidate.name].0] = true;
        let range = of.windows[candidate.name].clone().unwrap_or(0..0);
        of.taken.push(range.clone());
        of.taken = union(std::mem::take(&mut of.taken));
        range
    }
}

/// What is quoted for a name: it and the text around it, from word to word.
fn window(text: &str, name: &Range<usize>) -> Range<usize> {
    let start = name.start - reach(text[..name.start].chars().rev());
    let end = name.end + reach(text[name.end..].chars());
    let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
    (if start - line <= TO_LINE_START { line } else { start })..end
}

/// Bytes that a quote reaches in one direction.
fn reach(chars: impl Iterator<Item = char>) -> usize {
    let (mut seen, mut bytes, mut space) = (0, 0, false);
    for c in chars {
        let is_space = c.is_whitespace();
        if seen >= AROUND && is_space || seen >= AROUND + TO_A_BORDER {
            break;
        }
        seen += usize::from(!(is_space && space));
        space = is_space;
        bytes += c.len_utf8();
    }
    bytes
}
