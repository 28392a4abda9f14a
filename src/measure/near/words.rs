//! A text in the words that a tokenizer divides it into before it merges anything.
//!
//! By hand and not by the tokenizers' regular expressions: counting is on the way of every request. Rare cases differ
//! from the expressions (scripts that write no spaces, letters of numbers); a near count may.

/// How a vocabulary divides texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// A word takes the spaces before it; nothing else divides (SentencePiece).
    Spaces,
    /// By GPT-2's expression and those that came of it.
    Classes(Classes),
}

/// What tells expressions apart that divide by classes of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Classes {
    /// As cl100k has it: any mark may lead a word, marks take the line breaks behind them, white space is divided behind
    /// its last line break. Otherwise as GPT-2: a space leads a word or marks.
    pub(super) cl100k: bool,
    /// Most digits in one number.
    pub(super) digits: usize,
    /// A space may lead a number.
    pub(super) numbers_after_space: bool,
    /// A space that leads a number of more digits than [`Classes::digits`] allows, or just as many, stands alone: those
    /// numbers are divided once more, by another expression.
    pub(super) full_numbers_alone: bool,
    /// A space may lead marks.
    pub(super) marks_after_space: bool,
    /// Each line break stands alone.
    pub(super) breaks_alone: bool,
}

/// Classes of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Break,
    Space,
    Mark,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Digit,
        '\n' | '\r' => Class::Break,
        ' ' | '\t' | '\u{b}' | '\u{c}' => Class::Space,
        '\0'..='\u{7f}' => Class::Mark,
        c if c.is_alphabetic() => Class::Letter,
        c if c.is_numeric() => Class::Digit,
        c if c.is_whitespace() => Class::Space,
        _ => Class::Mark,
    }
}

impl Division {
    /// The end of the word that begins at `from`, which lies within the text.
    pub(super) fn end(self, text: &str, from: usize) -> usize {
        match self {
            Division::Spaces => spaces(text.as_bytes(), from),
            Division::Classes(classes) => classes.end(text, from),
        }
    }
}

/// Behind the spaces at `from` and what follows them, up to the next space or line break. Line breaks keep together.
fn spaces(bytes: &[u8], from: usize) -> usize {
    let rest = &bytes[from..];
    if rest[0] == b'\n' {
        return from + rest.iter().take_while(|b| **b == b'\n').count();
    }
    let blank = rest.iter().take_while(|b| **b == b' ').count();
    from + blank + memchr::memchr2(b' ', b'\n', &rest[blank..]).unwrap_or(rest.len() - blank)
}

impl Classes {
    fn end(self, text: &str, from: usize) -> usize {
        let mut chars = text[from..].chars();
        let Some(first) = chars.next() else { return text.len() };
        let second = chars.next().map(class);
        let next = from + first.len_utf8();
        if let Some(end) = contraction(text.as_bytes(), from, self.cl100k) {
            return end;
        }
        match (class(first), second) {
            (Class::Letter, _) => run(text, from, Class::Letter),
            (Class::Digit, _) => self.number(text, from),
            (Class::Mark, Some(Class::Letter)) if self.cl100k => run(text, next, Class::Letter),
            (Class::Mark, _) => self.marks(text, from),
            (Class::Space, Some(Class::Letter)) if self.cl100k || first == ' ' => run(text, next, Class::Letter),
            (Class::Space, Some(Class::Mark)) if first == ' ' && self.marks_after_space => self.marks(text, next),
            (Class::Space, Some(Class::Digit)) if first == ' ' && self.numbers_after_space => {
                let full = self.full_numbers_alone && run(text, next, Class::Digit) - next >= self.digits;
                if full { next } else { self.number(text, next) }
            }
            (Class::Break, _) if self.breaks_alone => next,
            _ => self.white(text, from),
        }
    }

    fn number(self, text: &str, from: usize) -> usize {
        let end = run(text, from, Class::Digit);
        text[from..end].char_indices().nth(self.digits).map_or(end, |(at, _)| from + at)
    }

    fn marks(self, text: &str, from: usize) -> usize {
        let end = run(text, from, Class::Mark);
        if self.cl100k { run(text, end, Class::Break) } else { end }
    }

    /// White space up to the last line break in it, or all but its last character, if that may lead what follows.
    fn white(self, text: &str, from: usize) -> usize {
        let rest = &text[from..];
        let blank = |c: char| match class(c) {
            Class::Space => true,
            Class::Break => !self.breaks_alone,
            _ => false,
        };
        let whole = rest.find(|c| !blank(c)).unwrap_or(rest.len());
        let white = &rest[..whole];
        if self.cl100k
            && let Some(at) = white.rfind(['\n', '\r'])
        {
            return from + at + 1;
        }
        let led = match rest[whole..].chars().next().map(class) {
            Some(Class::Digit) => self.numbers_after_space || self.cl100k,
            Some(Class::Mark) => self.marks_after_space || self.cl100k,
            Some(Class::Letter) => true,
            _ => false,
        };
        let last = white.char_indices().next_back().map_or(0, |(at, _)| at);
        from + if led && last > 0 { last } else { whole }
    }
}

/// The end of the characters of a class that begin at `from`.
fn run(text: &str, from: usize, of: Class) -> usize {
    let rest = &text[from..];
    from + rest.find(|c| class(c) != of).unwrap_or(rest.len())
}

/// The end of an English contraction (`'s`, `'ll`) at `from`.
fn contraction(bytes: &[u8], from: usize, any_case: bool) -> Option<usize> {
    if bytes[from] != b'\'' {
        return None;
    }
    let letter = |i: usize| bytes.get(from + i).map(|b| if any_case { b.to_ascii_lowercase() } else { *b });
    match (letter(1), letter(2)) {
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => Some(from + 3),
        (Some(b's' | b't' | b'm' | b'd'), _) => Some(from + 2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GPT2, QWEN};
    use super::*;

    fn words(division: Division, text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        let mut from = 0;
        while from < text.len() {
            let end = division.end(text, from);
            assert!(end > from, "{text:?} at {from}");
            out.push(&text[from..end]);
            from = end;
        }
        out
    }

    #[test]
    fn texts_are_divided_as_the_expressions_do() {
        let text = "I'LL say: \"hi\"  42 times;\n\n    x_1 = é世\t \n";
        let cl100k = [
            "I", "'LL", " say", ":", " \"", "hi", "\"", " ", " ", "4", "2", " times", ";\n\n", "   ", " x", "_", "1",
            " =", " é世", "\t \n",
        ];
        assert_eq!(words(Division::Classes(QWEN), text), cl100k);
        let gpt2 = [
            "I", "'", "LL", " say", ":", " \"", "hi", "\"", " ", " 42", " times", ";", "\n\n   ", " x", "_", "1", " =",
            " é世", "\t \n",
        ];
        assert_eq!(words(Division::Classes(GPT2), text), gpt2);
        let spaces = ["I'LL", " say:", " \"hi\"", "  42", " times;", "\n\n", "    x_1", " =", " é世\t", " ", "\n"];
        assert_eq!(words(Division::Spaces, text), spaces);
        let triples = Classes { digits: 3, ..QWEN };
        assert_eq!(words(Division::Classes(triples), " 12345"), [" ", "123", "45"]);
        let falcon = Classes { digits: 3, full_numbers_alone: true, marks_after_space: false, ..GPT2 };
        let numbers = ["  ", " 12", "\t", "\t", "3", "   ", " ", "456", " ", "789", "0"];
        assert_eq!(words(Division::Classes(falcon), "   12\t\t3    456 7890"), numbers);
        let alone = Classes { breaks_alone: true, numbers_after_space: false, ..GPT2 };
        assert_eq!(words(Division::Classes(alone), "a  \n\n  b  42"), ["a", "  ", "\n", "\n", " ", " b", "  ", "42"]);
    }

    #[test]
    fn every_byte_is_in_one_word() {
        let odd = "\0\u{7f}\u{85}\u{3000} \u{1f600}'\r\n'x\u{e9}\u{301}٣ \u{a0}\t";
        for division in [Division::Spaces, Division::Classes(QWEN), Division::Classes(GPT2)] {
            assert_eq!(words(division, odd).concat(), odd);
        }
    }
}
