//! Fits a text to a token budget with few calls of the (possibly slow) counter. Never returns a text over the budget.

use std::borrow::Cow;

use super::clean::{floor, sanitize, shorten};
use super::place::place;

/// Ranks, highest first: what a reader needs to act comes before what helps to understand.
pub(super) mod rank {
    pub(crate) const TOTALS: u16 = 99;
    pub(crate) const ERROR: u16 = 98;
    pub(crate) const RARE: u16 = 94;
    pub(crate) const LAST: u16 = 93;
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

/// Bytes of English or code that one token stands for, roughly: only where the search starts.
const BYTES_PER_TOKEN: usize = 3;

/// How often a text is counted at most while its size is sought.
const TRIES: usize = 9;

/// The largest text that `make` (given an allowance in bytes) yields within `budget` tokens, or `None`.
///
/// `make` should yield longer texts for larger allowances; where it does not, the result is only smaller than it could be.
pub fn largest(budget: u32, count: &dyn Fn(&str) -> u32, make: &dyn Fn(usize) -> String) -> Option<String> {
    let mut allowance = (budget as usize).saturating_mul(BYTES_PER_TOKEN);
    let (mut low, mut high) = (0, usize::MAX);
    let mut best: Option<(u32, String)> = None;
    for _ in 0..TRIES {
        let text = make(allowance);
        let tokens = count(&text);
        let guess = scaled(allowance, budget, tokens);
        if tokens <= budget {
            low = allowance;
            let grown = best.as_ref().is_none_or(|(_, b)| text.len() > b.len());
            // Nothing more to say, or close enough: another try could win less than it costs.
            let done =
                text.len() + text.len() / 4 < allowance || tokens.saturating_mul(100) >= budget.saturating_mul(95);
            if grown {
                best = Some((tokens, text));
            }
            if done || !grown {
                break;
            }
        } else {
            high = allowance;
        }
        if high <= low + 8 {
            break;
        }
        allowance = guess.clamp(low + 1, high.saturating_sub(1).max(low + 1));
        if tokens > budget && allowance > high / 4 * 3 {
            allowance = (high / 4 * 3).max(low + 1);
        }
    }
    best.map(|(_, text)| text)
}

/// The allowance that would have brought `tokens` to just under `budget`.
fn scaled(allowance: usize, budget: u32, tokens: u32) -> usize {
    if tokens == 0 {
        return allowance.saturating_mul(2).saturating_add(16);
    }
    let wanted = (allowance as u128 * u128::from(budget) * 97) / (u128::from(tokens) * 100);
    usize::try_from(wanted).unwrap_or(usize::MAX)
}

/// One part of a text that may be shown: a line or a few.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Line of the (cleaned) text it stands on, from 0; decides the order in which pieces are shown.
    pub(crate) line: usize,
    /// How many lines of the text it stands for; 0 for a remark of our own.
    pub(crate) lines: usize,
    /// What is shown.
    pub(crate) text: String,
    /// Worth: the highest go in first.
    pub(crate) rank: u16,
    /// Of what a reader needs before all else (an error, a failed test): the same, shorter, for where not all has room.
    pub(crate) brief: Option<String>,
}

/// How much of each piece that is needed before all else is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// All of them in full.
    Full,
    /// All of them, in short: lines of at most so many bytes.
    Brief(usize),
    /// As many of them as there is room for, in short.
    Most,
    /// The best of them, in short.
    Crowd,
}

/// Widths of lines in short forms, the best first.
const WIDTHS: [usize; 3] = [150, 120, LEAST];

/// The least width at which most messages still say what is wrong and where.
const LEAST: usize = 100;

/// A text whose lines are cut to so many bytes.
fn lines_within(text: &str, width: usize) -> Cow<'_, str> {
    if text.len() <= width || text.lines().all(|l| l.len() <= width) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.lines().map(|line| shorten(line, width)).collect::<Vec<_>>().join("\n"))
}

/// The line of remarks that stand before all lines.
const TOP: usize = usize::MAX;

/// What a kind of output has to say, before it is cut to size.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// One line of facts about the whole (counts, totals), shown first; may be empty.
    pub(crate) summary: String,
    /// All that could be shown.
    pub(crate) pieces: Vec<Piece>,
    /// Whether lines show their own numbers already.
    pub(crate) numbered: bool,
    /// Whether single lines left out (blank ones, mostly) go without a mark.
    pub(crate) loose: bool,
    /// How many lines there should be room for; the more, the shorter each is cut.
    pub(crate) wish: usize,
    /// How many there are of each kind, where not all are shown; may be empty.
    pub(crate) tally: String,
    /// The folder that the short forms of pieces leave out of their paths.
    pub(crate) below: String,
    /// Whether what is left out of pieces is more than they say.
    pub(crate) crowded: bool,
    /// Pieces of this rank stand in for others that have no room: they go where all have.
    pub(crate) instead: Option<std::ops::RangeInclusive<u16>>,
}

impl Draft {
    /// Adds a line of the text.
    pub(crate) fn line(&mut self, line: usize, rank: u16, text: &str) {
        self.pieces.push(Piece { line, lines: 1, text: shorten(text.trim_end(), 600).into_owned(), rank, brief: None });
    }

    /// Adds what a reader needs before all else, with a shorter form of it.
    pub(crate) fn needed(&mut self, line: usize, rank: u16, text: String, brief: String) {
        let lines = text.lines().count();
        self.pieces.push(Piece { line, lines, text, rank, brief: Some(brief) });
    }

    /// Adds a remark of our own at a place of the text.
    pub(crate) fn remark(&mut self, line: usize, rank: u16, text: String) {
        self.pieces.push(Piece { line, lines: 0, text, rank, brief: None });
    }

    /// Adds a remark that is shown before all lines.
    pub(crate) fn top(&mut self, rank: u16, text: String) {
        self.remark(TOP, rank, text);
    }

    /// Indices of pieces, the most worthwhile first; equal ones in the order of the text.
    pub(crate) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(self.pieces[i].rank), self.pieces[i].line));
        order
    }

    /// How the pieces that a reader needs before all else are shown in `left` bytes.
    fn form(&self, left: usize) -> Form {
        let needed = || self.pieces.iter().filter_map(|p| Some((p, p.brief.as_deref()?)));
        let full: usize = needed().map(|(p, _)| p.text.len() + 10).sum();
        if full <= left / 20 * 17 {
            return Form::Full;
        }
        let within = |width: usize| -> usize { needed().map(|(_, brief)| lines_within(brief, width).len() + 10).sum() };
        let fits = WIDTHS.into_iter().find(|width| within(*width) <= left / 20 * 19);
        match fits {
            _ if self.crowded => Form::Crowd,
            Some(width) => Form::Brief(width),
            // A fifth of them says more than a list of files does.
            None if within(LEAST) <= left * 5 => Form::Most,
            None => Form::Crowd,
        }
    }

    /// What a piece shows in so many bytes a line.
    fn shown<'p>(&'p self, piece: &'p Piece, form: Form, widest: usize) -> Cow<'p, str> {
        match &piece.brief {
            Some(brief) => match form {
                Form::Full => Cow::Borrowed(&piece.text),
                Form::Brief(width) => lines_within(brief, width),
                Form::Most => lines_within(brief, LEAST),
                Form::Crowd => lines_within(brief, 120),
            },
            // Our own remarks are as short as they can be already.
            None if piece.lines == 0 => shorten(&piece.text, widest.max(480)),
            None => narrow(&piece.text, widest.max(if piece.rank >= 90 { 200 } else { 0 })),
        }
    }

    /// The pieces that fit into `allowance` bytes, as text, with the number of lines of the original that it holds.
    pub(crate) fn render(&self, order: &[usize], allowance: usize) -> (String, usize) {
        let widest = (allowance / self.wish.clamp(8, 30)).clamp(90, 480);
        let summary = shorten(&self.summary, allowance.max(60));
        let form = self.form(allowance.saturating_sub(summary.len()));
        let mut summary = summary.into_owned();
        if matches!(form, Form::Most | Form::Crowd) && !self.tally.is_empty() {
            summary.push_str(&format!("; {}", self.tally));
        }
        if form != Form::Full && !self.below.is_empty() {
            summary.push_str(&format!("; paths below {}", self.below));
        }
        let mut left = allowance.saturating_sub(summary.len());
        let mut taken: Vec<(usize, String)> = Vec::new();
        let mut misses = 0;
        // Where all that is needed has room, it goes before everything but the totals.
        let first = |i: &&usize| form != Form::Crowd && self.pieces[**i].brief.is_some();
        let spare = |i: &&usize| {
            form != Form::Crowd
                && self.pieces[**i].lines == 0
                && self.instead.as_ref().is_some_and(|ranks| ranks.contains(&self.pieces[**i].rank))
        };
        // Where they fill all the room, the tool's own totals go before them.
        let total = |i: &&usize| form == Form::Most && !first(i) && self.pieces[**i].rank >= rank::TOTALS;
        let totals = order.iter().filter(total);
        let needed = order.iter().filter(first);
        let others = order.iter().filter(|i| !first(i) && !spare(i) && !total(i));
        for &index in totals.chain(needed).chain(others) {
            let piece = &self.pieces[index];
            let text = self.shown(piece, form, widest);
            let cost = text.len() + 8;
            if cost > left {
                misses += 1;
                if misses > 60 || left < 24 {
                    break;
                }
                continue;
            }
            left -= cost;
            taken.push((index, text.into_owned()));
        }
        // `TOP` wraps to 0.
        taken.sort_by_key(|(index, _)| (self.pieces[*index].line.wrapping_add(1), *index));
        let mut out = summary;
        let mut kept = 0;
        let mut next = 0;
        for (index, text) in taken {
            let piece = &self.pieces[index];
            if !out.is_empty() {
                out.push('\n');
            }
            // A jump is shown by the number of the line jumped to; it serves `recall --range` too.
            let dense = piece.brief.is_some() && matches!(form, Form::Brief(_) | Form::Most);
            if piece.lines > 0 && !self.numbered && !dense && piece.line > next + usize::from(self.loose) {
                out.push_str(&format!("…L{}: ", piece.line + 1));
            }
            out.push_str(&text);
            if piece.lines > 0 {
                kept += piece.lines;
                next = next.max(piece.line + piece.lines);
            }
        }
        (out, kept)
    }
}

/// A line in `width` bytes: of a long path before a message the folders go first, then the end of the line.
fn narrow(line: &str, width: usize) -> Cow<'_, str> {
    if line.len() > width
        && let Some(found) = place(line)
        && let Some(cut) = found.file.rfind(['/', '\\']).filter(|&cut| cut > 24)
    {
        let start = found.file.as_ptr() as usize - line.as_ptr() as usize;
        let short = format!("{}…{}", &line[..start], &line[start + cut..]);
        return Cow::Owned(shorten(&short, width).into_owned());
    }
    shorten(line, width)
}

/// The first of `forms` that fits, cleaned; else as much of the last one as fits; else nothing.
pub(crate) fn first_that_fits(forms: &[String], budget: u32, count: &dyn Fn(&str) -> u32) -> String {
    for form in forms {
        let text = sanitize(form);
        if count(&text) <= budget {
            return text.into_owned();
        }
    }
    let last = forms.last().map(String::as_str).unwrap_or_default();
    for keep in [8, 4, 2, 1] {
        let cut = sanitize(&last[..floor(last, keep)]).into_owned();
        if count(&cut) <= budget {
            return cut;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_seldom_and_fills_well() {
        let calls = std::cell::Cell::new(0);
        let count = |t: &str| {
            calls.set(calls.get() + 1);
            u32::try_from(t.len().div_ceil(7)).unwrap_or(u32::MAX)
        };
        let got = largest(1000, &count, &|n| "x".repeat(n)).expect("the empty text fits");
        let used = calls.get();
        assert!(count(&got) <= 1000 && count(&got) >= 950 && used <= 4, "{} in {used}", count(&got));
    }

    proptest! {
        #[test]
        fn never_over(budget in 0u32..400, weight in 1usize..9, size in 0usize..5000) {
            let count = |t: &str| u32::try_from(t.len() / weight + usize::from(!t.is_empty())).unwrap_or(u32::MAX);
            if let Some(text) = largest(budget, &count, &|n| "y".repeat(n.min(size))) {
                prop_assert!(count(&text) <= budget);
            }
        }
    }
}
