//! A part of a text that fits a budget, with where it stands in the whole and how to read on.

use crate::conversation::Tokens;
use crate::preview::clean::{floor, sanitize};

/// Longest line, in bytes. A longer one counts as several, so that any text can be read on with, however little fits at once.
const LINE: usize = 400;

/// Which lines are asked for, as the model wrote it: out of bounds, perhaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The first line, from 1; below 0 it counts from the end.
    pub offset: Option<i64>,
    /// How many lines.
    pub limit: Option<i64>,
}

impl Span {
    /// First line from 0, and how many, of `total`. `None` when it begins behind the end.
    pub fn of(&self, total: usize) -> Option<(usize, usize)> {
        let from = match self.offset.unwrap_or(1) {
            back @ ..0 => total.saturating_sub(usize::try_from(back.unsigned_abs()).unwrap_or(usize::MAX)),
            at => usize::try_from(at.max(1) - 1).unwrap_or(usize::MAX),
        };
        let limit = self.limit.filter(|n| *n > 0).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        (from < total || total == 0).then(|| (from.min(total), limit.min(total.saturating_sub(from))))
    }
}

/// Some lines of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The lines, clean of what a chat template would take for its own.
    pub text: String,
    /// The first of them, from 1; 0 where there is none.
    pub first: usize,
    /// The last of them.
    pub last: usize,
    /// Lines of the whole text.
    pub total: usize,
}

/// The lines that a span asks for, as many as fit `budget` tokens by `count`: none, where not even one does.
///
/// `None` when the span begins behind the end.
pub fn page(text: &str, span: Span, budget: Tokens, count: &dyn Fn(&str) -> Tokens) -> Option<Page> {
    let clean = sanitize(text);
    let lines = lines(&clean);
    let (from, most) = span.of(lines.len())?;
    let mut out = String::new();
    let mut spent: Tokens = 0;
    let mut last = from;
    for (line, continues) in &lines[from..from + most] {
        let cost = count(line).saturating_add(1);
        if spent.saturating_add(cost) > budget {
            break;
        }
        spent += cost;
        if last > from && !continues {
            out.push('\n');
        }
        out.push_str(line);
        last += 1;
    }
    Some(Page { text: out, first: if last > from { from + 1 } else { 0 }, last, total: lines.len() })
}

/// The lines of a text, long ones in pieces; and whether a piece goes on with the line before it.
fn lines(text: &str) -> Vec<(&str, bool)> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        let mut continues = false;
        while rest.len() > LINE {
            let (head, tail) = rest.split_at(floor(rest, LINE));
            out.push((head, continues));
            rest = tail;
            continues = true;
        }
        out.push((rest, continues));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Tokens {
        (text.len() / 4) as Tokens
    }

    fn span(offset: Option<i64>, limit: Option<i64>) -> Span {
        Span { offset, limit }
    }

    #[test]
    fn spans_out_of_bounds_are_settled() {
        for (offset, limit, total, expect) in [
            (None, None, 10, Some((0, 10))),
            (Some(0), Some(0), 10, Some((0, 10))),
            (Some(3), Some(2), 10, Some((2, 2))),
            (Some(9), Some(99), 10, Some((8, 2))),
            (Some(11), None, 10, None),
            (Some(-3), None, 10, Some((7, 3))),
            (Some(-99), Some(2), 10, Some((0, 2))),
            (Some(i64::MIN), Some(i64::MIN), 10, Some((0, 10))),
            (Some(i64::MAX), Some(i64::MAX), 10, None),
            (None, None, 0, Some((0, 0))),
        ] {
            assert_eq!(span(offset, limit).of(total), expect, "{offset:?} {limit:?} {total}");
        }
    }

    #[test]
    fn a_text_is_read_to_its_end_page_by_page() {
        let whole: String = (1..=400).map(|n| format!("line {n} of é\n")).collect();
        let one_line = "é".repeat(5_000);
        for text in [whole.as_str(), one_line.as_str(), "a\n\nb", "one"] {
            let (mut read, mut at, mut pages) = (String::new(), 1, 0);
            loop {
                let page = page(text, span(Some(at), None), 300, &count).unwrap();
                assert!(count(&page.text) <= 300 && page.first == usize::try_from(at).unwrap());
                read.push_str(&page.text);
                read.push('\n');
                pages += 1;
                at = i64::try_from(page.last).unwrap() + 1;
                if page.last == page.total {
                    break;
                }
            }
            assert_eq!(read.replace('\n', ""), text.replace('\n', ""), "in {pages} pages");
        }
    }

    #[test]
    fn nothing_is_skipped_for_want_of_room_and_markers_of_templates_are_broken() {
        let none = page(&"x".repeat(900), Span::default(), 10, &count).unwrap();
        assert_eq!((none.text.as_str(), none.first, none.last, none.total), ("", 0, 0, 3));
        let some = page(&"x".repeat(900), Span::default(), 210, &count).unwrap();
        assert_eq!((some.text.len(), some.last), (800, 2), "one line stays one line");
        assert!(!page("<|im_start|>system", Span::default(), 99, &count).unwrap().text.contains("<|im_start|>"));
        assert_eq!(page("", Span::default(), 99, &count).unwrap().first, 0);
        assert_eq!(page("a", span(Some(2), None), 99, &count), None);
    }
}
