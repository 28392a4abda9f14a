//! Counting a text with a near vocabulary, where the model's own is not at hand: seven public vocabularies are built in,
//! and a model's name tells which of them is its own or its kin. A count of a text, never of a prompt: what a template
//! adds is for [`super::estimate`] to learn.
//!
//! Nothing is unpacked before it is asked for; each takes 1 to 8 MB then.

mod vocabulary;
mod words;

use std::sync::OnceLock;

use crate::conversation::Tokens;
use vocabulary::{Pack, Vocabulary};
use words::{Classes, Division};

/// How near a vocabulary is to a model's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kinship {
    /// It is the model's own, or the same but for words of few languages.
    Own,
    /// Made in the same way, of other words.
    Kin,
    /// Nothing is known.
    Unknown,
}

/// A vocabulary that is built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Near {
    /// cl100k, as Llama 3, Phi 4 and others have it. Qwen's first 99,000 words are the same in the same order, so these are
    /// Qwen's words, with numbers in threes. Only East Asian texts come out otherwise.
    Cl100k,
    /// Qwen 2 and later.
    Qwen,
    /// Gemma.
    Gemma,
    /// The 32,000 words of Llama 2, Phi 3 and their kin.
    Spm,
    /// DeepSeek.
    DeepSeek,
    /// StarCoder and Granite.
    StarCoder,
    /// Falcon.
    Falcon,
    /// GPT-2.
    Gpt2,
}

/// The expression of Qwen 2, which is cl100k's with single digits.
const QWEN: Classes = Classes {
    cl100k: true,
    digits: 1,
    numbers_after_space: false,
    full_numbers_alone: false,
    marks_after_space: true,
    breaks_alone: false,
};

/// The expression of GPT-2.
const GPT2: Classes = Classes {
    cl100k: false,
    digits: usize::MAX,
    numbers_after_space: true,
    full_numbers_alone: false,
    marks_after_space: true,
    breaks_alone: false,
};

/// Families by what a model's name contains; the first that fits. A distilled model has the vocabulary of the one that was
/// taught, so these stand first.
const NAMES: [(&[&str], Near, Kinship); 14] = [
    (&["distill-llama", "distilled-llama", "r1-llama"], Near::Cl100k, Kinship::Own),
    (&["distill-qwen", "distilled-qwen", "r1-qwen", "qwen", "qwq", "mimo"], Near::Qwen, Kinship::Own),
    (&["deepseek-coder"], Near::DeepSeek, Kinship::Kin),
    (&["deepseek"], Near::DeepSeek, Kinship::Own),
    (&["gemma"], Near::Gemma, Kinship::Own),
    (
        &["codellama", "code-llama", "tinyllama", "llama2", "llama-2", "phi3", "phi-3", "vicuna", "zephyr-7b"],
        Near::Spm,
        Kinship::Own,
    ),
    (&["mistral-7b", "mistral:7b", "mixtral"], Near::Spm, Kinship::Kin),
    (
        &["llama3", "llama-3", "llama4", "llama-4", "hermes-3", "hermes3", "smollm3", "phi4", "phi-4"],
        Near::Cl100k,
        Kinship::Own,
    ),
    (
        &["gpt-oss", "gptoss", "glm", "kimi", "mistral", "ministral", "devstral", "codestral", "magistral", "nemo"],
        Near::Cl100k,
        Kinship::Kin,
    ),
    (&["starcoder", "granite", "refact"], Near::StarCoder, Kinship::Own),
    (&["smollm"], Near::StarCoder, Kinship::Kin),
    (&["falcon3", "falcon-3", "falcon-h1"], Near::Falcon, Kinship::Kin),
    (&["falcon"], Near::Falcon, Kinship::Own),
    (&["gpt2", "gpt-2"], Near::Gpt2, Kinship::Own),
];

impl Near {
    /// All of them.
    pub const ALL: [Near; 8] =
        [Near::Cl100k, Near::Qwen, Near::Gemma, Near::Spm, Near::DeepSeek, Near::StarCoder, Near::Falcon, Near::Gpt2];

    /// The vocabulary for a model by its name, and how near it is.
    pub fn of(model: &str) -> (Near, Kinship) {
        let name = model.to_lowercase();
        let fits = |words: &[&str]| words.iter().any(|word| name.contains(word));
        let found = NAMES.iter().find(|(words, ..)| fits(words));
        found.map_or((Near::Qwen, Kinship::Unknown), |(_, near, kinship)| (*near, *kinship))
    }

    /// Tokens of a text by itself, special tokens not looked for. Unpacks the vocabulary where that has not been done yet.
    pub fn count(self, text: &str) -> Tokens {
        if text.is_empty() { 0 } else { self.vocabulary().count(text) }
    }

    fn vocabulary(self) -> &'static Vocabulary {
        static UNPACKED: [OnceLock<Vocabulary>; Near::ALL.len()] = [const { OnceLock::new() }; Near::ALL.len()];
        UNPACKED[self as usize].get_or_init(|| Vocabulary::unpack(self.pack()))
    }

    fn pack(self) -> Pack {
        const WORDS: &[u8] = include_bytes!("vocab/qwen2.bin");
        let pack = |bytes, division| Pack { bytes, division, by_characters: false, numbers: false, shared: None };
        let classes = |bytes, classes| pack(bytes, Division::Classes(classes));
        let spaces = |bytes| Pack { by_characters: true, ..pack(bytes, Division::Spaces) };
        match self {
            Near::Cl100k => {
                Pack { numbers: true, shared: Some(99_000), ..classes(WORDS, Classes { digits: 3, ..QWEN }) }
            }
            Near::Qwen => classes(WORDS, QWEN),
            Near::Gemma => spaces(include_bytes!("vocab/gemma-4.bin")),
            Near::Spm => spaces(include_bytes!("vocab/phi-3.bin")),
            Near::DeepSeek => classes(
                include_bytes!("vocab/deepseek-llm.bin"),
                Classes { numbers_after_space: false, breaks_alone: true, ..GPT2 },
            ),
            Near::StarCoder => classes(
                include_bytes!("vocab/starcoder.bin"),
                Classes { digits: 1, numbers_after_space: false, ..GPT2 },
            ),
            Near::Falcon => classes(
                include_bytes!("vocab/falcon.bin"),
                Classes { digits: 3, full_numbers_alone: true, marks_after_space: false, ..GPT2 },
            ),
            Near::Gpt2 => classes(include_bytes!("vocab/gpt-2.bin"), GPT2),
        }
    }
}

#[cfg(test)]
mod tests;
