//! The words of one vocabulary, and counting with them: a word of the text that is none of the vocabulary is put together
//! from bytes, the preferred pair first, as byte-pair encoding and SentencePiece's BPE both do.
//!
//! Words are packed by `scripts/vocab/pack.py`, which describes the format.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

use super::words::Division;
use crate::conversation::Tokens;

/// Words that are put together are remembered in this many places (half a megabyte).
const PLACES: usize = 1 << 16;

/// Bits of a place that hold a count; the others tell the word.
const COUNT_BITS: u32 = 12;

/// Longest word that is put together in one piece, in bytes. Longer are base64, minified code, scripts without spaces.
const LONGEST: usize = 2048;

/// Bytes of a part of a longer word. A cut makes a token more, at most.
const PART: usize = 1024;

/// Parts of a longer word that are counted, about: what has so many is of one kind.
const PARTS: usize = 64;

/// Most bytes that a packed vocabulary may unpack to.
const UNPACKED: usize = 16 << 20;

/// What there is to know of a packed vocabulary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pack {
    /// As `scripts/vocab/pack.py` wrote it.
    pub(super) bytes: &'static [u8],
    /// How texts are divided.
    pub(super) division: Division,
    /// Characters are put together, not bytes: SentencePiece.
    pub(super) by_characters: bool,
    /// A number of up to three digits is a word, though the pack has none of two.
    pub(super) numbers: bool,
    /// Which of the words are used.
    pub(super) extent: Extent,
}

/// Which words of a pack are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    All,
    /// So many of the first.
    First(u32),
    /// So many of the first, and those behind them that have a letter in them, or a number: the others, box drawings above
    /// all, are not shared.
    FirstAndLetters(u32),
}

/// A vocabulary, unpacked.
#[derive(Debug)]
pub(super) struct Vocabulary {
    pack: Pack,
    /// All words, one after the other.
    bytes: Box<[u8]>,
    /// Where each begins, and the end.
    starts: Box<[u32]>,
    ranks: HashTable<u32>,
    hash: FixedState,
    counted: Box<[AtomicU64]>,
}

/// A pair of neighbors that is a word: its rank, where it begins and ends.
type Pair = Reverse<(u32, u32, u32)>;

impl Vocabulary {
    /// Unpacks; some milliseconds. A pack that is not one gives no words at all, and a token for each byte.
    pub(super) fn unpack(pack: Pack) -> Vocabulary {
        let all = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(pack.bytes, UNPACKED).unwrap_or_default();
        let (lengths, words) = parts(&all).unwrap_or_default();
        let mut starts = vec![0u32];
        let mut end = 0;
        for length in lengths {
            end += u32::from(*length);
            starts.push(end);
        }
        let bytes = words.get(..end as usize).unwrap_or_default().into();
        let counted = std::iter::repeat_with(|| AtomicU64::new(0)).take(PLACES).collect();
        let mut out = Vocabulary {
            pack,
            bytes,
            starts: starts.into(),
            ranks: HashTable::new(),
            hash: FixedState::default(),
            counted,
        };
        let words = if out.bytes.len() == end as usize { out.starts.len() - 1 } else { 0 };
        let mut ranks = HashTable::with_capacity(words);
        for rank in (0..words as u32).filter(|rank| out.is_used(*rank)) {
            ranks.insert_unique(out.hash.hash_one(out.word(rank)), rank, |r| out.hash.hash_one(out.word(*r)));
        }
        out.ranks = ranks;
        out
    }

    fn is_used(&self, rank: u32) -> bool {
        let letters = |word: &str| word.chars().any(char::is_alphanumeric);
        match self.pack.extent {
            Extent::All => true,
            Extent::First(first) => rank < first,
            Extent::FirstAndLetters(first) => rank < first || std::str::from_utf8(self.word(rank)).is_ok_and(letters),
        }
    }

    fn word(&self, rank: u32) -> &[u8] {
        let at = rank as usize;
        &self.bytes[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    fn rank(&self, word: &[u8]) -> Option<u32> {
        self.find(word, self.hash.hash_one(word))
    }

    fn find(&self, word: &[u8], hash: u64) -> Option<u32> {
        self.ranks.find(hash, |rank| self.word(*rank) == word).copied()
    }

    /// Tokens of a text.
    pub(super) fn count(&self, text: &str) -> Tokens {
        let mut total: usize = 0;
        let mut from = 0;
        while from < text.len() {
            let end = self.pack.division.end(text, from);
            total += self.one(&text[from..end]);
            from = end;
        }
        Tokens::try_from(total).unwrap_or(Tokens::MAX)
    }

    /// Tokens of one word of a text.
    fn one(&self, word: &str) -> usize {
        let bytes = word.as_bytes();
        if self.pack.numbers && bytes.len() <= 3 && bytes.iter().all(u8::is_ascii_digit) {
            return 1;
        }
        if bytes.len() > LONGEST {
            return self.long(word);
        }
        let hash = self.hash.hash_one(bytes);
        let place = &self.counted[hash as usize % PLACES];
        let known = place.load(Ordering::Relaxed);
        let mask = (1u64 << COUNT_BITS) - 1;
        if known & !mask == hash & !mask && known & mask != 0 {
            return (known & mask) as usize;
        }
        let tokens = if self.find(bytes, hash).is_some() { 1 } else { self.merge(word) };
        place.store((hash & !mask) | tokens as u64, Ordering::Relaxed);
        tokens
    }

    /// Tokens of a word that is longer than [`LONGEST`]: of all its parts, or of some that lie evenly in it.
    fn long(&self, word: &str) -> usize {
        let border = |near: usize| (near..word.len()).find(|at| word.is_char_boundary(*at)).unwrap_or(word.len());
        let step = (word.len() / PART / PARTS).max(1) * PART;
        let (mut tokens, mut seen) = (0, 0);
        for near in (0..word.len()).step_by(step) {
            let part = &word[border(near)..border(near + PART)];
            tokens += if part.is_empty() { 0 } else { self.one(part) };
            seen += part.len();
        }
        tokens * word.len() / seen.max(1)
    }

    /// Puts a word together, pair by pair, the preferred one first, and counts what is left.
    fn merge(&self, word: &str) -> usize {
        let bytes = word.as_bytes();
        // Of each part, by where it begins: where it ends, and where the part before it begins.
        let mut ends = vec![0u32; bytes.len() + 1];
        let mut befores = vec![0u32; bytes.len() + 1];
        let mut before = 0;
        for (at, c) in word.char_indices() {
            let step = if self.pack.by_characters { c.len_utf8() } else { 1 };
            for from in (at..at + c.len_utf8()).step_by(step) {
                ends[from] = (from + step) as u32;
                befores[from] = before;
                before = from as u32;
            }
        }
        let pair = |at: u32, ends: &[u32]| -> Option<Pair> {
            let end = ends[ends[at as usize] as usize];
            (end > 0).then_some(())?;
            Some(Reverse((self.rank(&bytes[at as usize..end as usize])?, at, end)))
        };
        let mut heap: BinaryHeap<Pair> =
            (0..bytes.len() as u32).filter(|at| ends[*at as usize] > 0).filter_map(|at| pair(at, &ends)).collect();
        while let Some(Reverse((_, at, end))) = heap.pop() {
            let middle = ends[at as usize];
            // One of its parts has become part of another since.
            if middle == 0 || middle == end || ends[middle as usize] != end {
                continue;
            }
            ends[middle as usize] = 0;
            ends[at as usize] = end;
            befores[end as usize] = at;
            heap.extend(pair(at, &ends));
            if at > 0 {
                heap.extend(pair(befores[at as usize], &ends));
            }
        }
        let left = (0..bytes.len()).filter(|at| ends[*at] > 0).map(|at| &bytes[at..ends[at] as usize]);
        // What is in no vocabulary is spelled in bytes.
        left.map(|part| if part.len() == 1 || self.rank(part).is_some() { 1 } else { part.len() }).sum()
    }

    /// Words in the vocabulary.
    #[cfg(test)]
    pub(super) fn words(&self) -> usize {
        self.ranks.len()
    }
}

/// The lengths of the words and their bytes.
fn parts(all: &[u8]) -> Option<(&[u8], &[u8])> {
    let (words, rest) = all.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*words) as usize)
}
