//! Vocabularies made at random, of every kind: none ends the process, and each that loads is counted in parts as llama.cpp
//! counts the whole.

use super::made::{Value, gguf, load};

/// Vocabularies to make.
const VOCABULARIES: u64 = 400;

/// Texts to count with each.
const TEXTS: usize = 4;

/// What words, merges and texts are made of: letters, marks, bytes as vocabularies name them, special tokens.
const BITS: [&str; 35] = [
    "a",
    "b",
    "ab",
    " ",
    "\u{2581}",
    "\n",
    r"\n",
    r"\x41",
    r"\xff",
    r"\",
    r"\t",
    "\u{e9}",
    "\u{65e5}",
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "<0x",
    "x",
    "<oov>",
    "<dna>",
    "</dna>",
    "ACGTAC\u{e000}",
    "\u{e000}",
    "##a",
    "[",
    "\u{feff}",
    "\u{10ffff}",
    "\0",
    "<|im_end|>",
    "unused",
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "_",
];

const KINDS: [&str; 9] = ["llama", "gpt2", "gemma4", "bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace"];

const EXPRESSIONS: [&str; 15] = [
    "",
    "default",
    "llama3",
    "gpt-2",
    "tekken",
    "kimi-k2",
    "mmbert",
    "gemma4",
    "sarvam-moe",
    "whitespace",
    "superbpe",
    "tiny_aya",
    "afmoe",
    "bloom",
    "chameleon",
];

/// Numbers that look random and are the same each time (xorshift).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n.max(1)
    }

    /// Once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A text of fewer than so many bits.
    fn text(&mut self, most: usize) -> String {
        (0..self.below(most))
            .map(|_| match self.once_in(12) {
                true => char::from_u32(u32::try_from(self.below(0x3000)).unwrap()).unwrap_or('x').to_string(),
                false => self.one_of(&BITS).to_owned(),
            })
            .collect()
    }

    /// The words of a vocabulary, and how many of them are for bytes. `clean`: with nothing in them that is refused at once.
    fn words(&mut self, kind: &str, clean: bool) -> (Vec<Vec<u8>>, usize) {
        let mut out: Vec<Vec<u8>> = match kind {
            _ if self.once_in(8) => Vec::new(),
            "llama" | "plamo2" | "gemma4" => {
                let bytes = (0..=255).map(|b| format!("<0x{b:02X}>").into_bytes());
                std::iter::once(b"<unk>".to_vec()).chain(bytes).collect()
            }
            "rwkv" => (0..=255).map(|b| format!(r"\x{b:02x}").into_bytes()).collect(),
            "bert" => (0..120).map(|n| format!("w{n}").into_bytes()).collect(),
            _ => Vec::new(),
        };
        let bytes = out.len();
        for _ in 0..self.below(30) {
            let bits = 1 + self.below(3);
            let mut word: Vec<u8> = (0..bits).flat_map(|_| self.one_of(&BITS).bytes()).collect();
            if !clean && self.once_in(20) {
                word = (0..self.below(6)).map(|_| u8::try_from(self.below(256)).unwrap()).collect();
            }
            let twice = out.contains(&word) && (clean || !self.once_in(9));
            if !(twice || clean && word.contains(&0)) {
                out.push(word);
            }
        }
        (out, bytes)
    }

    /// A precompiled map of characters, seldom a sound one.
    fn charsmap(&mut self) -> Vec<u8> {
        let units = self.below(3) * 256;
        let mut out = u32::try_from(units * 4).unwrap().to_le_bytes().to_vec();
        for _ in 0..units {
            let (offset, label) = (self.below(2) * 256, self.below(256));
            let flags = usize::from(self.once_in(9)) << 8 | usize::from(self.once_in(9)) << 31;
            let unit = if self.once_in(2) { 0 } else { offset << 10 | label | flags };
            out.extend(u32::try_from(unit).unwrap().to_le_bytes());
        }
        out.extend((0..self.below(9)).map(|_| self.one_of(b"\0a ")));
        out.extend((!self.once_in(4)).then_some(0));
        out
    }

    /// A file, and the kind of its vocabulary.
    fn file(&mut self) -> (Vec<u8>, &'static str) {
        const SCORES: [f32; 9] = [0.0, -1.0, -5.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 3.0];
        let (kind, clean) = (self.one_of(&KINDS), self.once_in(2));
        let (words, bytes) = self.words(kind, clean);
        let named = bytes > 0 && !["rwkv", "bert"].contains(&kind);
        let kind_of = |dice: &mut Dice, at: usize| match dice.below(9) {
            _ if named && (1..bytes).contains(&at) && (clean || !dice.once_in(200)) => 6,
            0..6 => 1,
            6 if clean => 3,
            _ => i32::try_from(dice.below(9)).unwrap() - 1,
        };
        let kinds: Vec<i32> = (0..words.len()).map(|at| kind_of(self, at)).collect();
        let scores: Vec<f32> =
            words.iter().map(|_| if self.once_in(4) { self.one_of(&SCORES) } else { -2.5 }).collect();
        let merges: Vec<String> = (0..self.below(12))
            .map(|_| format!("{}{}{}", self.one_of(&BITS), if self.once_in(8) { "" } else { " " }, self.one_of(&BITS)))
            .collect();
        let (charsmap, expression) = (self.charsmap(), self.one_of(&EXPRESSIONS));
        let texts: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let merges: Vec<&[u8]> = merges.iter().map(|m| m.as_bytes()).collect();
        let mut entries = vec![
            ("general.architecture", Value::Text("llama")),
            ("tokenizer.ggml.model", Value::Text(kind)),
            ("tokenizer.ggml.tokens", Value::Words(&texts)),
        ];
        let mut add = |entry, often: bool| entries.extend(often.then_some(entry));
        add(("tokenizer.ggml.token_type", Value::Kinds(&kinds)), !self.once_in(6));
        add(("tokenizer.ggml.scores", Value::Scores(&scores)), !self.once_in(6));
        add(("tokenizer.ggml.merges", Value::Words(&merges)), !self.once_in(10));
        add(("tokenizer.ggml.precompiled_charsmap", Value::Bytes(&charsmap)), kind == "t5" && self.once_in(2));
        add(("tokenizer.ggml.pre", Value::Text(expression)), self.once_in(2));
        for key in [
            "tokenizer.ggml.add_bos_token",
            "tokenizer.ggml.add_eos_token",
            "tokenizer.ggml.add_sep_token",
            "tokenizer.ggml.add_space_prefix",
            "tokenizer.ggml.remove_extra_whitespaces",
        ] {
            add((key, Value::Flag(self.once_in(2))), self.once_in(3));
        }
        for key in [
            "tokenizer.ggml.bos_token_id",
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.unknown_token_id",
            "tokenizer.ggml.seperator_token_id",
            "tokenizer.ggml.padding_token_id",
            "tokenizer.ggml.eot_token_id",
        ] {
            let within = u32::try_from(self.below(words.len() + usize::from(!clean))).unwrap();
            let id = if self.once_in(9) { u32::MAX } else { within };
            add((key, Value::Number(id)), self.once_in(4));
        }
        (gguf(&entries), kind)
    }
}

#[test]
fn vocabularies_made_at_random_are_counted_or_refused() {
    let mut loaded = KINDS.map(|kind| (kind, 0));
    for seed in 0..VOCABULARIES {
        let mut dice = Dice::new(seed);
        let (file, kind) = dice.file();
        let Ok(vocabulary) = load(&file) else { continue };
        loaded.iter_mut().filter(|(k, _)| *k == kind).for_each(|(_, n)| *n += 1);
        for _ in 0..TEXTS {
            let text = dice.text(40);
            let whole = vocabulary.tokenize(&text).len();
            assert_eq!(vocabulary.count(&text) as usize, whole, "seed {seed}, {kind}: {text:?}");
        }
    }
    assert!(loaded.iter().all(|(_, n)| *n > 2), "{loaded:?}");
}
