//! A text in the words that a tokenizer divides it into before it merges anything.
//!
//! By hand and not by the tokenizers' regular expressions: counting is on the way of every request. Rare cases differ
//! from the expressions (some scripts in DeepSeek's, Unicode's case folding of contractions); a near count may.

use unicode_general_category::{GeneralCategory, get_general_category};

/// How a vocabulary divides texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// A word takes the spaces before it; nothing else divides (SentencePiece).
    Spaces,
    /// By GPT-2's expression and those that came of it.
    Classes(Classes),
    /// By o200k's expression and those that came of it.
    Cased(Cased),
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

/// What tells expressions apart that divide words where small letters are followed by capitals. Otherwise they are as
/// cl100k's, but that a contraction is part of the word before it, slashes go with the line breaks behind marks, and
/// combining marks are letters of either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cased {
    /// Most digits in one number.
    pub(super) digits: usize,
    /// A word takes the English contraction behind it.
    pub(super) contractions: bool,
}

/// Classes of characters: Unicode's general categories, as far as the expressions tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A capital letter, or a titlecase one (Lu, Lt).
    Upper,
    /// A small letter (Ll).
    Lower,
    /// A letter that has no case (Lm, Lo).
    Caseless,
    /// An accent or the like, on the character before it (M).
    Combining,
    Digit,
    Break,
    Space,
    Mark,
}

/// The classes of ASCII.
static ASCII: [Class; 128] = {
    let mut all = [Class::Mark; 128];
    let mut at = 0;
    while at < 128 {
        all[at] = match at as u8 {
            b'a'..=b'z' => Class::Lower,
            b'A'..=b'Z' => Class::Upper,
            b'0'..=b'9' => Class::Digit,
            b'\n' | b'\r' => Class::Break,
            b' ' | b'\t' | 0xb | 0xc => Class::Space,
            _ => Class::Mark,
        };
        at += 1;
    }
    all
};

impl Class {
    fn of(c: char) -> Class {
        use GeneralCategory as Category;
        match c {
            c if c.is_ascii() => ASCII[c as usize],
            c if c.is_whitespace() => Class::Space,
            c => match get_general_category(c) {
                Category::UppercaseLetter | Category::TitlecaseLetter => Class::Upper,
                Category::LowercaseLetter => Class::Lower,
                Category::ModifierLetter | Category::OtherLetter => Class::Caseless,
                Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark => Class::Combining,
                Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => Class::Digit,
                _ => Class::Mark,
            },
        }
    }

    fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Caseless)
    }

    fn is_digit(self) -> bool {
        self == Class::Digit
    }

    fn is_break(self) -> bool {
        self == Class::Break
    }

    /// Neither letter nor number nor white space.
    fn is_mark(self) -> bool {
        matches!(self, Class::Mark | Class::Combining)
    }

    /// May stand among the capitals that begin a word.
    fn is_upper(self) -> bool {
        matches!(self, Class::Upper | Class::Caseless | Class::Combining)
    }

    /// May stand among the small letters that end a word.
    fn is_lower(self) -> bool {
        matches!(self, Class::Lower | Class::Caseless | Class::Combining)
    }
}

impl Division {
    /// The end of the word that begins at `from`, which lies within the text.
    pub(super) fn end(self, text: &str, from: usize) -> usize {
        match self {
            Division::Spaces => spaces(text.as_bytes(), from),
            Division::Classes(classes) => classes.end(text, from),
            Division::Cased(cased) => cased.end(text, from),
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
        let second = chars.next().map(Class::of);
        let next = from + first.len_utf8();
        if let Some(end) = contraction(text.as_bytes(), from, self.cl100k) {
            return end;
        }
        let word = second.is_some_and(Class::is_letter);
        match Class::of(first) {
            class if class.is_letter() => run(text, from, Class::is_letter),
            Class::Digit => number(text, from, self.digits),
            Class::Space if word && (self.cl100k || first == ' ') => run(text, next, Class::is_letter),
            Class::Space if first == ' ' && self.marks_after_space && second.is_some_and(Class::is_mark) => {
                self.marks(text, next)
            }
            Class::Space if first == ' ' && self.numbers_after_space && second == Some(Class::Digit) => {
                let full = self.full_numbers_alone && run(text, next, Class::is_digit) - next >= self.digits;
                if full { next } else { number(text, next, self.digits) }
            }
            Class::Break if self.breaks_alone => next,
            Class::Space | Class::Break => self.white(text, from),
            _ if word && self.cl100k => run(text, next, Class::is_letter),
            _ => self.marks(text, from),
        }
    }

    fn marks(self, text: &str, from: usize) -> usize {
        let end = run(text, from, Class::is_mark);
        if self.cl100k { run(text, end, Class::is_break) } else { end }
    }

    /// White space up to the last line break in it, or all but its last character, if that may lead what follows.
    fn white(self, text: &str, from: usize) -> usize {
        white(text, from, !self.breaks_alone, self.cl100k, |class| match class {
            Class::Digit => self.numbers_after_space || self.cl100k,
            class if class.is_mark() => self.marks_after_space || self.cl100k,
            class => class.is_letter(),
        })
    }
}

impl Cased {
    fn end(self, text: &str, from: usize) -> usize {
        let mut chars = text[from..].chars();
        let Some(first) = chars.next() else { return text.len() };
        let next = from + first.len_utf8();
        let class = Class::of(first);
        // Whatever is no letter, number or line break may lead a word.
        let word = match class {
            Class::Digit => return number(text, from, self.digits),
            Class::Mark | Class::Space => self.word(text, next),
            Class::Break => None,
            _ => self.word(text, from),
        };
        let marks = |at: usize| {
            let end = run(text, at, Class::is_mark);
            end + text.as_bytes()[end..].iter().take_while(|b| matches!(b, b'\r' | b'\n' | b'/')).count()
        };
        match (word, class) {
            (Some(end), _) => end,
            (None, Class::Mark) => marks(from),
            (None, _) if first == ' ' && chars.next().is_some_and(|c| Class::of(c).is_mark()) => marks(next),
            (None, _) => white(text, from, true, true, |_| true),
        }
    }

    /// The end of the capitals and small letters behind them at `from`: small letters at least, or else capitals. What is of
    /// either case is taken for a small letter where no other is to be had.
    fn word(self, text: &str, from: usize) -> Option<usize> {
        let mut last = None;
        let mut end = text.len();
        for (at, c) in text[from..].char_indices() {
            let class = Class::of(c);
            if !class.is_upper() {
                end = from + at;
                break;
            }
            if class.is_lower() {
                last = Some(from + at + c.len_utf8());
            }
        }
        let small = run(text, end, Class::is_lower);
        let end = if small > end { small } else { last.unwrap_or(end) };
        let contraction = contraction(text.as_bytes(), end, true).filter(|_| self.contractions);
        (end > from).then(|| contraction.unwrap_or(end))
    }
}

/// The end of a number of up to so many digits at `from`.
fn number(text: &str, from: usize, digits: usize) -> usize {
    let end = run(text, from, Class::is_digit);
    text[from..end].char_indices().nth(digits).map_or(end, |(at, _)| from + at)
}

/// The end of white space at `from`, line breaks included if `breaks` says so: up to the last line break in it where it is
/// `divided` there, or all but its last character if that may lead what follows, as `leads` tells by the class of that.
fn white(text: &str, from: usize, breaks: bool, divided: bool, leads: impl Fn(Class) -> bool) -> usize {
    let rest = &text[from..];
    let blank = |c: char| match Class::of(c) {
        Class::Space => true,
        Class::Break => breaks,
        _ => false,
    };
    let whole = rest.find(|c| !blank(c)).unwrap_or(rest.len());
    let white = &rest[..whole];
    if divided && let Some(at) = white.rfind(['\n', '\r']) {
        return from + at + 1;
    }
    let led = rest[whole..].chars().next().map(Class::of).is_some_and(leads);
    let last = white.char_indices().next_back().map_or(0, |(at, _)| at);
    from + if led && last > 0 { last } else { whole }
}

/// The end of the characters of a class that begin at `from`.
fn run(text: &str, from: usize, of: fn(Class) -> bool) -> usize {
    // Most are ASCII, and need no decoding.
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() && bytes[at] < 128 {
        if !of(ASCII[usize::from(bytes[at])]) {
            return at;
        }
        at += 1;
    }
    let rest = &text[at..];
    at + rest.find(|c| !of(Class::of(c))).unwrap_or(rest.len())
}

/// The end of an English contraction (`'s`, `'ll`) at `from`.
fn contraction(bytes: &[u8], from: usize, any_case: bool) -> Option<usize> {
    if bytes.get(from) != Some(&b'\'') {
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
    fn words_are_divided_at_capitals() {
        let o200k = Division::Cased(Cased { digits: 3, contractions: true });
        let tekken = Division::Cased(Cased { digits: 1, contractions: false });
        let names = "getHTTPServer2XML don't_I'LL 'so";
        assert_eq!(
            words(o200k, names),
            ["get", "HTTPServer", "2", "XML", " don't", "_I'LL", " '", "so"],
            "a quotation mark leads no word behind a space"
        );
        let tails = ["get", "HTTPServer", "2", "XML", " don", "'t", "_I", "'LL", " '", "so"];
        assert_eq!(words(tekken, names), tails);
        // Letters without case end a word as small ones do, and capitals behind them begin another.
        assert_eq!(words(o200k, "世界ABC世界 ÀÉab cafe\u{301}S"), ["世界ABC世界", " ÀÉab", " cafe\u{301}", "S"]);
        assert_eq!(words(o200k, "世AB \u{301}AB"), ["世", "AB", " \u{301}", "AB"]);
        let blanks = ["//\n/\n", "   ", " x", " //\n\n", "  \n", "\t", " ", "123", "4"];
        assert_eq!(words(o200k, "//\n/\n    x //\n\n  \n\t 1234"), blanks);
        assert_eq!(words(tekken, " 12 "), [" ", "1", "2", " "]);
    }

    #[test]
    fn every_byte_is_in_one_word() {
        let odd = "\0\u{7f}\u{85}\u{3000} \u{1f600}'\r\n'x\u{e9}\u{301}٣ \u{a0}\t";
        let cased = Division::Cased(Cased { digits: 3, contractions: true });
        for division in [Division::Spaces, Division::Classes(QWEN), Division::Classes(GPT2), cased] {
            assert_eq!(words(division, odd).concat(), odd);
        }
    }
}
