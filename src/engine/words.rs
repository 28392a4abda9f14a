//! Tokens of the words of texts: most words of a text have been counted before, and the others are counted many in one call,
//! since llama.cpp takes longer to begin than to count a word.
//!
//! What is read off such a call is checked against the length of every token: a cut that a token reaches over shows that the
//! vocabulary is not as assumed, and its texts are then counted whole.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use aho_corasick::AhoCorasick;

use super::soft::{Borders, SPACE};
use crate::conversation::Tokens;

/// Bytes of text in one call.
const CALL: usize = 64 * 1024;

/// Words longer than this many bytes are not remembered.
const LONG: usize = 64;

/// Words remembered since the last time that the older ones were forgotten: about a hundred bytes each.
const YOUNG: usize = 1 << 16;

/// Counts a text without what is added to a whole prompt: the numbers of its tokens.
pub(super) type Tokenize<'a> = &'a dyn Fn(&str) -> Vec<i32>;

/// Words that were counted. Those not asked for while [`YOUNG`] others came are forgotten.
#[derive(Debug, Default)]
pub(super) struct Words {
    young: HashMap<Box<str>, Tokens>,
    old: HashMap<Box<str>, Tokens>,
}

impl Words {
    /// The tokens of a word.
    pub(super) fn get(&mut self, word: &str) -> Option<Tokens> {
        if let Some(known) = self.young.get(word) {
            return Some(*known);
        }
        let (word, known) = self.old.remove_entry(word)?;
        self.put(word, known);
        Some(known)
    }

    /// Remembers a word, unless it is long.
    pub(super) fn put(&mut self, word: impl Into<Box<str>> + AsRef<str>, tokens: Tokens) {
        if word.as_ref().len() > LONG {
            return;
        }
        if self.young.len() >= YOUNG {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(word.into(), tokens);
    }
}

/// What is known of a vocabulary whose texts may be counted word by word.
#[derive(Debug)]
pub(super) struct Lexicon {
    /// Where texts may be cut.
    pub(super) borders: Borders,
    /// Bytes of text that each token stands for.
    pub(super) lengths: Vec<u32>,
    /// A text that begins a prompt, or stands behind a special token, gets a space before it.
    pub(super) prefix: bool,
    /// A special token behind which a text begins afresh, and its number.
    pub(super) divider: Option<(String, i32)>,
    /// Finds special tokens, where a text that holds one cannot be cut: they change what stands beside them.
    pub(super) apart: Option<AhoCorasick>,
    /// Finds what is not as long in a text as the length of its token says.
    pub(super) unmeasured: Option<AhoCorasick>,
    /// A token was found to reach over a cut.
    broken: AtomicBool,
}

impl Lexicon {
    /// One of these parts.
    pub(super) fn new(borders: Borders, lengths: Vec<u32>) -> Lexicon {
        Lexicon {
            borders,
            lengths,
            prefix: false,
            divider: None,
            apart: None,
            unmeasured: None,
            broken: AtomicBool::new(false),
        }
    }

    /// Whether a text may be counted by its words.
    pub(super) fn takes(&self, text: &str) -> bool {
        self.holds() && !self.apart.as_ref().is_some_and(|find| find.is_match(text))
    }

    /// Whether no token was found to reach over a cut.
    pub(super) fn holds(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    /// The words of a text. `begins`: it begins a prompt, or stands behind a special token.
    pub(super) fn words<'a>(&self, text: &'a str, begins: bool) -> impl Iterator<Item = Cow<'a, str>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let rest = text.get(from..).filter(|rest| !rest.is_empty())?;
            let end = self.borders.next(text.as_bytes(), from).unwrap_or(text.len());
            let word = &rest[..end - from];
            let first = from == 0 && begins && self.prefix;
            from = end;
            Some(if first { Cow::Owned(format!(" {word}")) } else { Cow::Borrowed(word) })
        })
    }

    /// The tokens of each of some words.
    pub(super) fn count(&self, words: &[Cow<'_, str>], tokenize: Tokenize<'_>) -> Vec<Tokens> {
        let mut out = Vec::with_capacity(words.len());
        while out.len() < words.len() {
            let rest = &words[out.len()..];
            let call = self.call(rest);
            match call.words.len() {
                0 => out.push(self.alone(&rest[0], tokenize)),
                n => match self.read(&call, &tokenize(&call.text)) {
                    Some(counts) => out.extend(counts),
                    None if n == 1 => out.push(self.alone(&rest[0], tokenize)),
                    None => {
                        let (first, second) = rest[..n].split_at(n / 2);
                        out.extend(self.count(first, tokenize));
                        out.extend(self.count(second, tokenize));
                    }
                },
            }
        }
        out
    }

    /// The tokens of one word.
    fn alone(&self, word: &str, tokenize: Tokenize<'_>) -> Tokens {
        let count = |text: &str| tokenize(text).len();
        let first = word.bytes().next().unwrap_or(0);
        // Where a text gets a space before it, one that begins with a space is had without it.
        let tokens = match (self.prefix, word.strip_prefix(' ').filter(|rest| !rest.is_empty())) {
            (true, Some(rest)) => count(rest),
            (true, None) => {
                let joiner = self.borders.joiner(None, first).map(String::from).unwrap_or_default();
                count(&format!("{joiner}{word}")).saturating_sub(count(&joiner))
            }
            (false, _) => count(word),
        };
        Tokens::try_from(tokens).unwrap_or(Tokens::MAX)
    }

    /// As many of the words as go together into one call; none where the first has to be counted alone.
    fn call(&self, words: &[Cow<'_, str>]) -> Call {
        let mut out = Call::default();
        let mut before: Option<u8> = None;
        for word in words {
            let (Some(first), Some(last)) = (word.bytes().next(), word.bytes().last()) else { break };
            let full = !out.words.is_empty() && out.text.len() + word.len() > CALL;
            if full || self.unmeasured.as_ref().is_some_and(|find| find.is_match(word.as_ref())) {
                break;
            }
            if !self.join(&mut out, before, first) {
                break;
            }
            out.words.push((out.at, out.at + word.len()));
            out.text.push_str(word);
            out.at += word.len();
            before = Some(last);
        }
        out
    }

    /// Puts between a word that ended with `before` and one that begins with `first` what parts them.
    fn join(&self, call: &mut Call, before: Option<u8>, first: u8) -> bool {
        if before.is_some_and(|before| self.borders.between(before, first)) {
            return true;
        }
        if let Some(joiner) = before.and_then(|before| self.borders.joiner(Some(before), first)) {
            call.text.push(joiner);
            call.at += 1;
            return true;
        }
        let joiner = self.borders.joiner(None, first).filter(|_| self.prefix);
        if self.prefix && joiner.is_none() {
            return false;
        }
        if before.is_some() {
            let Some((divider, number)) = &self.divider else { return false };
            call.text.push_str(divider);
            call.at += self.length(*number);
        }
        if let Some(joiner) = joiner {
            call.text.push(joiner);
            call.at += 2;
        }
        true
    }

    fn length(&self, token: i32) -> usize {
        usize::try_from(token).ok().and_then(|at| self.lengths.get(at)).map_or(0, |n| *n as usize)
    }

    /// The tokens of each word of a call; `None` where a token does not end where its word does.
    fn read(&self, call: &Call, tokens: &[i32]) -> Option<Vec<Tokens>> {
        let mut out = Vec::with_capacity(call.words.len());
        let mut rest = tokens.iter();
        let mut at = 0;
        let mut upto = |end: usize| {
            let mut n: Tokens = 0;
            while at < end {
                let length = rest.next().map_or(0, |t| self.length(*t));
                if length == 0 {
                    return None;
                }
                at += length;
                n += 1;
            }
            (at == end).then_some(n)
        };
        for (start, end) in &call.words {
            match upto(*start).and_then(|_| upto(*end)) {
                Some(n) => out.push(n),
                None => {
                    // All of the text is there, and yet a token ends elsewhere.
                    if tokens.iter().map(|t| self.length(*t)).sum::<usize>() == call.at {
                        self.broken.store(true, Ordering::Relaxed);
                    }
                    return None;
                }
            }
        }
        rest.next().is_none().then_some(out)
    }
}

/// Words in one text, with what parts them.
#[derive(Debug, Default)]
struct Call {
    text: String,
    /// Where each word begins and ends, as the lengths of tokens have it.
    words: Vec<(usize, usize)>,
    /// The end of the last.
    at: usize,
}

/// Whether a text holds what words of the kinds `llama` and `gemma4` have for a space.
pub(super) fn space_sign() -> Option<AhoCorasick> {
    AhoCorasick::new([SPACE.to_string()]).ok()
}
