//! Pure: a prompt in segments whose tokens add up to those of the whole, and what was counted of them: the next prompt of a
//! conversation costs its new segments.
//!
//! llama.cpp takes special tokens out of a text first, and tokenizes what lies between them piece by piece. So a text may be cut
//! before each token that ends a turn, unless that swallows the white space before it, or another special
//! token could overlap it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use lru::LruCache;
use parking_lot::Mutex;

use super::{Facts, Tokenized};
use crate::conversation::Digest;

/// Tokens whose lengths are kept, at most: 4 bytes each.
const MOST: usize = 4 << 20;

/// Segments that are kept, at most.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");

/// Where prompts may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    find: Option<AhoCorasick>,
}

impl Cuts {
    /// Before the tokens of a vocabulary that end a turn.
    pub(super) fn of(facts: &Facts) -> Cuts {
        let safe = facts.enders.iter().filter(|ender| {
            let spacious = ender.text.starts_with(char::is_whitespace) || ender.text.ends_with(char::is_whitespace);
            ender.special
                && !ender.strips
                && !spacious
                && !facts.specials.iter().any(|other| overlaps(other, &ender.text))
        });
        let texts: Vec<&str> = safe.map(|ender| ender.text.as_str()).collect();
        let find = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        Cuts { find: find.ok().filter(|_| !texts.is_empty()) }
    }

    /// A text in segments, in order.
    pub(super) fn of_text<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let cuts = self.find.iter().flat_map(move |find| find.find_iter(text)).map(|found| found.start());
        let mut from = 0;
        cuts.filter(|at| *at > 0).chain([text.len()]).map(move |at| &text[std::mem::replace(&mut from, at)..at])
    }
}

/// Whether an occurrence of one special token may take a part of another's.
fn overlaps(other: &str, text: &str) -> bool {
    if other == text {
        return false;
    }
    let both = |a: &str, b: &str| b.char_indices().skip(1).any(|(at, _)| a.ends_with(&b[..at]));
    other.contains(text) || text.contains(other) || both(other, text) || both(text, other)
}

/// Segments whose tokens are known.
pub(super) struct Known(Mutex<Kept>);

struct Kept {
    segments: LruCache<Digest, Arc<[i32]>>,
    tokens: usize,
}

impl Default for Known {
    fn default() -> Self {
        Known(Mutex::new(Kept { segments: LruCache::new(SEGMENTS), tokens: 0 }))
    }
}

impl Known {
    /// The lengths of the tokens of a segment, by `count` where they are not known.
    pub(super) fn get(&self, text: &str, count: impl FnOnce() -> Vec<i32>) -> Arc<[i32]> {
        let key = Digest::of(text.as_bytes());
        if let Some(known) = self.0.lock().segments.get(&key) {
            return Arc::clone(known);
        }
        let lengths: Arc<[i32]> = count().into();
        let kept = &mut *self.0.lock();
        kept.tokens += lengths.len();
        let old = kept.segments.push(key, Arc::clone(&lengths));
        kept.tokens -= old.map_or(0, |(_, old)| old.len());
        while kept.tokens > MOST
            && let Some((_, old)) = kept.segments.pop_lru()
        {
            kept.tokens -= old.len();
        }
        lengths
    }
}

/// Adds the places of a segment's tokens. `from`: where it begins in the prompt.
pub(super) fn place(lengths: &[i32], segment: &str, from: usize, out: &mut Tokenized) {
    let whole: usize = lengths.iter().map(|length| length.unsigned_abs() as usize).sum();
    // A space that some vocabularies put before a text, also after a special token.
    let mut more = whole.saturating_sub(segment.len());
    let (mut at, mut begins) = (0, true);
    for length in lengths {
        let special = *length < 0;
        let mut bytes = length.unsigned_abs() as usize;
        if begins && !special && more > 0 && bytes > 0 {
            (bytes, more) = (bytes - 1, more - 1);
        }
        begins = special;
        at = (at + bytes).min(segment.len());
        out.ends.push(from + at);
        if special && segment.is_char_boundary(at) {
            out.specials.push(from + at);
        }
    }
    // Some vocabularies change a text before they divide it, or have no word for a part of it.
    if let Some(last) = out.ends.last_mut().filter(|_| !lengths.is_empty()) {
        *last = from + segment.len();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ender;
    use super::*;

    fn cuts(enders: &[(&str, bool)], specials: &[&str]) -> Cuts {
        let ender = |(text, strips): &(&str, bool)| Ender { text: (*text).into(), strips: *strips, special: true };
        let specials = specials.iter().chain(enders.iter().map(|(text, _)| text)).map(|text| (*text).to_owned());
        Cuts::of(&Facts {
            enders: enders.iter().map(ender).collect(),
            specials: specials.collect(),
            ..Facts::default()
        })
    }

    #[test]
    fn a_text_is_cut_before_each_end_of_a_turn() {
        let plain = cuts(&[("<|end|>", false), ("</s>", false)], &["<|start|>"]);
        let of = |cuts: &Cuts, text: &str| cuts.of_text(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(of(&plain, "<|start|>a<|end|>\n</s>b"), ["<|start|>a", "<|end|>\n", "</s>b"]);
        assert_eq!(of(&plain, "<|end|>a"), ["<|end|>a"]);
        assert_eq!(of(&plain, ""), [""]);
        // Not where it swallows the white space before it, nor where another token may take a part of it.
        assert_eq!(of(&cuts(&[("</s>", true)], &[]), "a</s>b"), ["a</s>b"]);
        for other in ["x</s>", "s>x", "x<", "/s"] {
            assert_eq!(of(&cuts(&[("</s>", false)], &[other]), "a</s>b"), ["a</s>b"], "{other}");
        }
    }

    #[test]
    fn tokens_stand_where_their_bytes_do() {
        let mut out = Tokenized::default();
        place(&[-3, 4, 2], "<a>abcde", 10, &mut out);
        // A space that is not there was put before the second token's.
        assert_eq!((out.ends, out.specials), (vec![13, 16, 18], vec![13]));
        let mut short = Tokenized::default();
        place(&[1, 1], "abcd", 0, &mut short);
        place(&[], "", 4, &mut short);
        assert_eq!(short.ends, [1, 4]);
    }
}
