//! What llama.cpp takes for granted of a vocabulary, kind by kind (`llama-vocab.cpp`): without it, it would end the
//! process, never come back, or read what is not its own.

use std::collections::HashSet;

/// Kinds of tokenizer that are known not to end the process on a vocabulary that passed the checks here.
const KINDS: [&str; 9] = ["llama", "gpt2", "gemma4", "bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace"];

/// Bytes of a word where words are kept in a tree that is built, and taken down, by one call within the other a byte.
const LONGEST: usize = 1024;
/// Bytes of all words there: a byte may take a hundred bytes of memory.
const MOST: usize = 8 << 20;

/// What PLaMo 2's table takes: a row for each part of a word, and steps for each character of a row.
const MOST_ROWS: usize = 1 << 25;
const MOST_STEPS: usize = 1 << 34;

/// The parts of a vocabulary as a file has them.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub(super) tokenizer: &'a str,
    /// `tokenizer.ggml.pre`: the expression that divides texts into words.
    pub(super) pre: &'a str,
    /// `tokenizer.ggml.tokens`.
    pub(super) words: &'a [Vec<u8>],
    /// `tokenizer.ggml.token_type`, as many as there are words, or none.
    pub(super) kinds: &'a [i64],
    /// It has `tokenizer.ggml.merges`.
    pub(super) merges: bool,
    /// `tokenizer.ggml.precompiled_charsmap`.
    pub(super) charsmap: Option<Vec<u8>>,
}

/// Whether llama.cpp survives a vocabulary.
///
/// # Errors
/// What it would not survive.
pub(super) fn check(lists: &Lists<'_>) -> Result<(), String> {
    let tokenizer = lists.tokenizer;
    if !KINDS.contains(&tokenizer) {
        let shown: String = tokenizer.chars().filter(|c| !c.is_control()).take(32).collect();
        return Err(format!("its tokenizer is of a kind not known here: {shown}"));
    }
    spelled(lists)?;
    // Its expression leaves white space as it is, which only that kind has taken out before.
    if lists.pre == "whitespace" && tokenizer != "whitespace" {
        return Err(format!("its tokenizer is of the kind {tokenizer}, and its expression of another: whitespace"));
    }
    match tokenizer {
        "llama" => fallback(lists.words),
        // Kimi K2 is the one that may come without.
        "gpt2" | "hybriddna" | "whitespace" if !lists.merges && lists.pre != "kimi-k2" => {
            Err("its vocabulary has no merges".into())
        }
        "bert" if lists.words.len() < 104 => {
            Err(format!("a vocabulary of {} words is too small for its tokenizer", lists.words.len()))
        }
        "t5" => tree(lists.words).and_then(|()| lists.charsmap.as_deref().map_or(Ok(()), charsmap)),
        "rwkv" => tree(lists.words).and_then(|()| stepwise(lists.words)),
        "plamo2" => table(lists.words),
        _ => Ok(()),
    }
}

/// A byte token is read by its spelling, `<0x41>`; that of a kind that has none ends the process.
fn spelled(lists: &Lists<'_>) -> Result<(), String> {
    let bytes = || lists.kinds.iter().zip(lists.words).enumerate().filter(|(_, (kind, _))| **kind == 6);
    let wrong = match lists.tokenizer {
        "bert" => bytes().next(),
        _ => bytes().find(|(_, (_, word))| word.len() < 5),
    };
    match wrong {
        Some((at, _)) => Err(format!("word {at} of its vocabulary is to be a byte and is not")),
        None => Ok(()),
    }
}

/// SentencePiece falls back to bytes, and llama.cpp throws where they are missing; nothing can catch that.
fn fallback(words: &[Vec<u8>]) -> Result<(), String> {
    let all: HashSet<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let found = |b: &u8| all.contains(format!("<0x{b:02X}>").as_bytes()) || all.contains(std::slice::from_ref(b));
    match (0..=255u8).find(|b| !found(b)) {
        Some(byte) => Err(format!("its vocabulary has no word for the byte 0x{byte:02X}")),
        None => Ok(()),
    }
}

/// Words that go into a tree of bytes.
fn tree(words: &[Vec<u8>]) -> Result<(), String> {
    if let Some(at) = words.iter().position(|word| word.len() > LONGEST) {
        return Err(format!("word {at} of its vocabulary has {} bytes, more than {LONGEST}", words[at].len()));
    }
    let bytes: usize = words.iter().map(Vec::len).sum();
    if bytes > MOST { Err(format!("the words of its vocabulary have {bytes} bytes, more than {MOST}")) } else { Ok(()) }
}

/// RWKV takes the longest word that stands at a place, and stays there for ever where words begin so and none ends.
fn stepwise(words: &[Vec<u8>]) -> Result<(), String> {
    let texts: Vec<Vec<u8>> = words.iter().map(|word| unescaped(word)).collect();
    let alone: HashSet<u8> = texts.iter().filter(|text| text.len() == 1).map(|text| text[0]).collect();
    match texts.iter().filter_map(|text| text.first()).find(|first| !alone.contains(first)) {
        Some(byte) => Err(format!("its vocabulary has no word for the byte 0x{byte:02X}")),
        None => Ok(()),
    }
}

/// The bytes that a word of RWKV's stands for, read as llama.cpp reads it: `\t`, `\n`, `\r`, `\xNN`, and any other
/// character behind a backslash for itself.
pub(super) fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let digit = |b: u8| if (b'a'..128).contains(&b) { b - b'a' + 10 } else { b.wrapping_sub(b'0') };
                if let (Some(high), Some(low)) = (rest.next(), rest.next()) {
                    out.push((digit(high) << 4).wrapping_add(digit(low)));
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

/// PLaMo 2 makes a table of all that its words end with and how that begins. It reads words as UTF-8, and where they are
/// not, what it finds by the table is longer than the text.
fn table(words: &[Vec<u8>]) -> Result<(), String> {
    let (mut rows, mut steps) = (0usize, 0usize);
    for (at, word) in words.iter().enumerate() {
        let Some(text) = std::str::from_utf8(word).ok().filter(|text| !text.contains('\0')) else {
            return Err(format!("word {at} of its vocabulary is not UTF-8"));
        };
        let n = text.chars().count();
        rows = rows.saturating_add(n.saturating_mul(n));
        steps = steps.saturating_add(n.saturating_mul(n).saturating_mul(n));
    }
    match rows > MOST_ROWS || steps > MOST_STEPS {
        true => Err("the words of its vocabulary are too long for its tokenizer".into()),
        false => Ok(()),
    }
}

/// Every way through a precompiled map of characters must end within it: llama.cpp throws where one does not.
///
/// The format is SentencePiece's: the bytes of a double array, four bytes; its units; texts, each ended by a zero byte.
/// From a unit, byte `c` leads to the one at its offset xor `c` if that one's label is `c`; bit 8 of it says that the
/// bytes so far are replaced by the text at the value of the unit at its own offset.
fn charsmap(map: &[u8]) -> Result<(), String> {
    let beyond = || Err("its map of characters leads beyond its end".to_owned());
    let Some((size, rest)) = map.split_first_chunk::<4>() else { return beyond() };
    let size = u32::from_le_bytes(*size) as usize;
    let Some((units, texts)) = rest.split_at_checked(size).filter(|(_, texts)| texts.last() == Some(&0)) else {
        return beyond();
    };
    let units: Vec<u32> = units.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let offset = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
    let mut seen: HashSet<u32> = units.first().map(|unit| offset(*unit)).into_iter().collect();
    let mut open: Vec<u32> = seen.iter().copied().collect();
    while let Some(from) = open.pop() {
        for c in 1..=255u32 {
            let at = from ^ c;
            let Some(unit) = units.get(at as usize) else { return beyond() };
            if unit & (1 << 31 | 0xff) != c {
                continue;
            }
            let next = at ^ offset(*unit);
            if unit >> 8 & 1 == 1 {
                let text = units.get(next as usize).map(|unit| (unit & !(1 << 31)) as usize);
                if text.is_none_or(|text| text >= texts.len()) {
                    return beyond();
                }
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_rwkv_are_read_as_llama_cpp_reads_them() {
        let cases: [(&str, &[u8]); 7] = [
            ("plain", b"plain"),
            (r"\t\n\r\\", b"\t\n\r\\"),
            (r"\x00\xff", &[0, 255]),
            (r"\'", b"'"),
            (r"a\", b"a"),
            (r"a\x4", b"a"),
            ("é", "é".as_bytes()),
        ];
        for (word, bytes) in cases {
            assert_eq!(unescaped(word.as_bytes()), bytes, "{word}");
        }
    }

    /// A map that replaces `A` by a text, of 256 units from the root's offset on.
    fn map(units: &[(usize, u32)], size: usize, texts: &[u8]) -> Vec<u8> {
        let mut all = vec![0u32; size];
        units.iter().for_each(|(at, unit)| all[*at] = *unit);
        let bytes: Vec<u8> = all.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&u32::try_from(bytes.len()).expect("it is short").to_le_bytes()[..], &bytes, texts].concat()
    }

    #[test]
    fn a_map_of_characters_ends_where_it_ends() {
        // The root's offset is 256; `A` leads to unit 321, whose offset is 64: its value is in unit 257.
        let root = (0, 256 << 10);
        let leaf = (256 ^ 65, 64 << 10 | 1 << 8 | 65);
        let value = |at: u32| (257, 1 << 31 | at);
        let good = map(&[root, leaf, value(1)], 512, b"\0a\0");
        assert_eq!(charsmap(&good), Ok(()));
        let broken = [
            (b"".to_vec(), "empty"),
            (good[..good.len() - 3].to_vec(), "no texts"),
            (good[..good.len() - 1].to_vec(), "a text without its end"),
            (map(&[root, leaf, value(3)], 512, b"\0a\0"), "a text beyond the end"),
            (map(&[root, leaf, value(1)], 500, b"\0a\0"), "a byte that leads beyond the end"),
            (map(&[(0, 1 << 20)], 512, b"\0"), "a root beyond the end"),
            (map(&[root, (321, 2048 << 10 | 1 << 8 | 65)], 512, b"\0"), "a unit beyond the end"),
        ];
        for (map, why) in broken {
            assert!(charsmap(&map).is_err(), "{why}");
        }
        assert_eq!(charsmap(&map(&[], 0, b"\0")), Ok(()), "no units at all");
    }
}
