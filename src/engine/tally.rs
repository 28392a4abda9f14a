//! The counts of the parts of a prompt: parts that were counted before are known, the others are counted by their words, and
//! what cannot be is handed to llama.cpp as it is.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use super::words::{Lexicon, Tokenize, Words};
use crate::conversation::{Digest, Tokens};

/// Parts whose counts are kept: 40 bytes each.
const REMEMBERED: usize = 1 << 16;

/// Parts shorter than this many bytes are counted again rather than looked up.
const WORTH_REMEMBERING: usize = 64;

/// A part of a prompt whose tokens are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// The text, without the special token that ends it.
    pub(super) text: &'a str,
    /// It begins the prompt, or stands behind a special token.
    pub(super) begins: bool,
    /// It may be counted by its words.
    pub(super) by_words: bool,
}

/// What was counted.
#[derive(Debug)]
pub(super) struct Memory {
    parts: LruCache<(Digest, bool), Tokens>,
    words: Words,
}

impl Default for Memory {
    fn default() -> Self {
        let parts = LruCache::new(NonZeroUsize::new(REMEMBERED).expect("not zero"));
        Memory { parts, words: Words::default() }
    }
}

/// A part that is not known.
struct New {
    at: usize,
    key: Option<(Digest, bool)>,
    /// The sum of its words that are known.
    tokens: Tokens,
    /// Its other words, by their places among those to count.
    words: Vec<usize>,
}

/// The tokens of each part.
pub(super) fn count(
    parts: &[Part<'_>],
    lexicon: Option<&Lexicon>,
    memory: &Mutex<Memory>,
    tokenize: Tokenize<'_>,
) -> Vec<Tokens> {
    let mut out = vec![0; parts.len()];
    let mut news: Vec<New> = Vec::new();
    let mut words: Vec<Cow<'_, str>> = Vec::new();
    let mut places: HashMap<Cow<'_, str>, usize> = HashMap::new();
    {
        let mut memory = memory.lock();
        for (at, part) in parts.iter().enumerate() {
            let worth = part.text.len() >= WORTH_REMEMBERING;
            let key = worth.then(|| (Digest::of(part.text.as_bytes()), part.begins));
            if let Some(known) = key.as_ref().and_then(|key| memory.parts.get(key)) {
                out[at] = *known;
                continue;
            }
            let mut new = New { at, key, tokens: 0, words: Vec::new() };
            for word in lexicon.filter(|_| part.by_words).iter().flat_map(|l| l.words(part.text, part.begins)) {
                if let Some(known) = memory.words.get(&word) {
                    new.tokens = new.tokens.saturating_add(known);
                    continue;
                }
                let place = *places.entry(word).or_insert_with_key(|word| {
                    words.push(word.clone());
                    words.len() - 1
                });
                new.words.push(place);
            }
            news.push(new);
        }
    }
    let counts = lexicon.map_or_else(Vec::new, |lexicon| lexicon.count(&words, tokenize));
    let holds = lexicon.is_some_and(Lexicon::holds);
    for new in &mut news {
        let part = &parts[new.at];
        if holds && part.by_words {
            let more = new.words.iter().map(|place| counts[*place]);
            new.tokens = more.fold(new.tokens, Tokens::saturating_add);
        } else if !part.text.is_empty() {
            new.tokens = Tokens::try_from(tokenize(part.text).len()).unwrap_or(Tokens::MAX);
        }
        out[new.at] = new.tokens;
    }
    let mut memory = memory.lock();
    if holds {
        words.into_iter().zip(counts).for_each(|(word, tokens)| memory.words.put(word.into_owned(), tokens));
    }
    news.into_iter().filter_map(|new| Some((new.key?, new.tokens))).for_each(|(key, tokens)| {
        memory.parts.put(key, tokens);
    });
    out
}
