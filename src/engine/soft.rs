//! Where a text without special tokens may be cut so that the counts of its parts add up: between the words that a
//! tokenizer's own regular expression divides it into.
//!
//! A vocabulary of the kind `gpt2` divides a text by such an expression before it merges anything, and a word of ASCII
//! letters with the one space before it begins anew after a letter in all the expressions named here; so does a letter at
//! the beginning of a line, behind a line break that stands alone.

use super::pieces::Special;

/// Expressions that divide a text at words, by the names that files give them (`tokenizer.ggml.pre`).
const WORDS: [&str; 19] = [
    "gpt-2",
    "llama-bpe",
    "llama3",
    "llama-v3",
    "qwen2",
    "qwen35",
    "deepseek-r1-qwen",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "starcoder",
    "refact",
    "smollm",
    "command-r",
    "glm4",
    "chatglm-bpe",
    "tekken",
    "gpt-4o",
];

/// Whether llama.cpp divides by an expression in code of its own. Others it compiles anew for each text, which makes many
/// short texts slower than a long one.
pub(super) fn is_quick(pre: &str) -> bool {
    matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "qwen2" | "qwen35" | "deepseek-r1-qwen")
}

/// Where a vocabulary allows to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Soft {
    /// Nowhere.
    None,
    /// Before a letter at the beginning of a line.
    Lines,
    /// There, and before a space between two letters.
    Words,
}

impl Soft {
    /// Where the vocabulary with this kind of tokenizer, this expression and these special tokens allows it.
    pub(super) fn of(tokenizer: &str, pre: &str, specials: &[Special]) -> Soft {
        let soft = match (tokenizer, pre) {
            ("gemma4", _) => Soft::Lines,
            ("gpt2", pre) if WORDS.contains(&pre) => Soft::Words,
            _ => return Soft::None,
        };
        // None may reach over a cut, nor swallow white space across it.
        let apart = |soft: Soft| {
            specials.iter().all(|s| !s.strips_left && !s.strips_right && soft.next(s.text.as_bytes(), 0).is_none())
        };
        [soft, Soft::Lines].into_iter().find(|s| apart(*s)).unwrap_or(Soft::None)
    }

    /// The first place at or behind `from`, and behind the beginning, where the text may be cut.
    pub(super) fn next(self, bytes: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        loop {
            at += match self {
                Soft::None => return None,
                Soft::Lines => memchr::memchr(b'\n', bytes.get(at..)?)?,
                Soft::Words => memchr::memchr2(b'\n', b' ', bytes.get(at..)?)?,
            };
            let before = at.checked_sub(1).and_then(|i| bytes.get(i));
            let letter_next = bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic);
            if bytes[at] == b'\n' {
                if letter_next
                    && before.is_some_and(|b| !b.is_ascii_whitespace() && *b != 0x0B && *b < 0x80)
                    && at + 1 > from
                {
                    return Some(at + 1);
                }
            } else if letter_next && before.is_some_and(u8::is_ascii_alphabetic) && at > from {
                return Some(at);
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(soft: Soft, text: &str) -> Vec<&str> {
        let mut from = 0;
        let mut out = Vec::new();
        while let Some(at) = soft.next(text.as_bytes(), from) {
            out.push(&text[from..at]);
            from = at;
        }
        out.push(&text[from..]);
        out
    }

    #[test]
    fn cuts_are_between_words_and_lines() {
        let text = "one two  three 4 five, six\nseven\n\neight\r\nnine\n ten";
        assert_eq!(cut(Soft::None, text), [text]);
        assert_eq!(cut(Soft::Lines, text), ["one two  three 4 five, six\n", "seven\n\neight\r\nnine\n ten"]);
        assert_eq!(cut(Soft::Words, text), ["one", " two  three 4 five, six\n", "seven\n\neight\r\nnine\n ten"]);
        assert_eq!(cut(Soft::Words, "a b c"), ["a", " b", " c"]);
        assert_eq!(cut(Soft::Words, ""), [""]);
        assert_eq!(cut(Soft::Words, "\nx y"), ["\nx", " y"]);
    }

    #[test]
    fn special_tokens_forbid_what_they_reach_over() {
        let special =
            |text: &str| Special { text: text.into(), strips_left: false, strips_right: false, control: true };
        assert_eq!(Soft::of("gpt2", "qwen2", &[special("<|x|>")]), Soft::Words);
        assert_eq!(Soft::of("gpt2", "qwen2", &[special("<a b>")]), Soft::Lines);
        assert_eq!(Soft::of("gpt2", "qwen2", &[special("<a>\nb")]), Soft::None);
        let strips = Special { strips_right: true, ..special("<a>") };
        assert_eq!(Soft::of("gpt2", "qwen2", &[strips]), Soft::None);
        assert_eq!(Soft::of("gpt2", "unheard-of", &[]), Soft::None);
        assert_eq!(Soft::of("llama", "default", &[]), Soft::None);
    }
}
