//! Counting a text with a near vocabulary, where the model's own is not at hand: eleven public vocabularies are built in,
//! and a model's name tells which of them is its own or its kin. A count of a text, never of a prompt: what a template
//! adds is for [`super::estimate`] to learn.
//!
//! Nothing is unpacked before it is asked for; each takes 1 to 8 MB then.

mod vocabulary;
mod words;

use std::sync::OnceLock;

use crate::conversation::Tokens;
use vocabulary::{Extent, Pack, Vocabulary};
use words::{Cased, Classes, Division};

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
    /// cl100k, as Phi 4, Granite 4 and OLMo 2 have it: Qwen's first words are the same in the same order, but for numbers,
    /// which are words of up to three digits.
    Cl100k,
    /// Llama 3: cl100k's words and 28,000 more. Those are not built in, Qwen's of East Asian and other languages stand for
    /// them, so only such texts come out otherwise.
    Llama3,
    /// o200k, as gpt-oss and Phi 4 mini have it.
    O200k,
    /// Mistral's tekken, from Nemo on.
    Tekken,
    /// Qwen 2 and 3.
    Qwen,
    /// Gemma 3 and 4.
    Gemma,
    /// The 32,000 words of Llama 2, Phi 3 and their kin.
    Spm,
    /// Mistral's words before tekken, of which there are as many.
    Mistral,
    /// DeepSeek LLM, V2 and Coder V2.
    DeepSeek,
    /// StarCoder, and Granite up to 3.
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

/// Words of cl100k without its numbers of more than one digit, which Qwen's begin with.
const CL100K_WORDS: u32 = 99_156;

/// Families by what a model's name contains; the first that fits. A distilled model has the vocabulary of the one that was
/// taught, so these stand first. As llama.cpp's converter tells the vocabularies apart, and by how many words the models
/// have: where that is another number, it is another list, and the model of the same family no more than kin.
const NAMES: [(&[&str], Near, Kinship); 28] = [
    (&["distill-llama", "distilled-llama", "llama-distill", "r1-llama", "deepseek-r1:70b"], Near::Llama3, Kinship::Own),
    (&["distill-qwen", "distilled-qwen", "qwen-distill", "r1-qwen", "r1-0528-qwen"], Near::Qwen, Kinship::Own),
    // Ollama calls distilled Qwens so.
    (&["deepseek-r1:1.5b", "deepseek-r1:7b", "deepseek-r1:8b"], Near::Qwen, Kinship::Own),
    (&["deepseek-r1:14b", "deepseek-r1:32b", "deepseek-r1:latest"], Near::Qwen, Kinship::Own),
    // 248,000 words, and CodeQwen's 92,000.
    (&["qwen3.5", "qwen3.6", "qwen3.7", "qwen3.8", "qwen-3.5", "qwen4", "codeqwen"], Near::Qwen, Kinship::Kin),
    (&["qwen", "qwq", "mimo"], Near::Qwen, Kinship::Own),
    (&["deepseek-v2", "deepseek-coder-v2", "deepseek-llm"], Near::DeepSeek, Kinship::Own),
    // From V3 on, 128,000 words and numbers in threes.
    (&["deepseek-v", "deepseek-r"], Near::Llama3, Kinship::Kin),
    (&["deepseek"], Near::DeepSeek, Kinship::Kin),
    // 256,000 words up to Gemma 2, other 262,000 since; MedGemma is made of Gemma 3.
    (&["medgemma"], Near::Gemma, Kinship::Own),
    (&["gemma-1.", "gemma-2-", "gemma-2b", "gemma-7b", "gemma2", "gemma:", "codegemma"], Near::Gemma, Kinship::Kin),
    (&["gemma"], Near::Gemma, Kinship::Own),
    (
        &["codellama", "code-llama", "tinyllama", "llama2", "llama-2", "phi3", "phi-3", "vicuna"],
        Near::Spm,
        Kinship::Own,
    ),
    (&["llama3", "llama-3", "llama_3", "hermes-3", "hermes3", "smollm3", "nemotron:70b"], Near::Llama3, Kinship::Own),
    (&["gpt-oss", "gptoss", "phi4-mini", "phi-4-mini", "phi-4-multimodal"], Near::O200k, Kinship::Own),
    (&["llama4", "llama-4", "minimax"], Near::O200k, Kinship::Kin),
    (
        &["phi4", "phi-4", "granite4", "granite-4", "olmo2", "olmo-2", "olmo3", "olmo-3", "dbrx"],
        Near::Cl100k,
        Kinship::Own,
    ),
    // Mistral's before tekken.
    (&["mistral-small:22b", "mistral-small-22b", "instruct-2409", "pixtral-large"], Near::Mistral, Kinship::Own),
    (
        &["mistral-nemo", "mistral-small", "mistral-24b", "mistral-medium", "mistral-large-3", "mistral-large-25"],
        Near::Tekken,
        Kinship::Own,
    ),
    (&["ministral", "devstral", "magistral", "pixtral", "voxtral"], Near::Tekken, Kinship::Own),
    (&["nemotron", "apertus"], Near::Tekken, Kinship::Kin),
    (&["nemo"], Near::Tekken, Kinship::Own),
    (&["mistral", "mixtral", "codestral", "mathstral", "zephyr-7b", "zephyr:"], Near::Mistral, Kinship::Own),
    // Numbers in threes, as Llama 3 divides texts.
    (&["glm", "kimi", "lfm2", "falcon3", "falcon-3", "falcon-h1"], Near::Llama3, Kinship::Kin),
    (&["starcoder", "granite", "refact"], Near::StarCoder, Kinship::Own),
    (&["smollm"], Near::StarCoder, Kinship::Kin),
    (&["falcon"], Near::Falcon, Kinship::Own),
    (&["gpt2", "gpt-2"], Near::Gpt2, Kinship::Own),
];

impl Near {
    /// All of them.
    pub const ALL: [Near; 12] = [
        Near::Cl100k,
        Near::Llama3,
        Near::O200k,
        Near::Tekken,
        Near::Qwen,
        Near::Gemma,
        Near::Spm,
        Near::Mistral,
        Near::DeepSeek,
        Near::StarCoder,
        Near::Falcon,
        Near::Gpt2,
    ];

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
        let pack =
            |bytes, division| Pack { bytes, division, by_characters: false, numbers: false, extent: Extent::All };
        let classes = |bytes, classes| pack(bytes, Division::Classes(classes));
        let cased = |bytes, cased| pack(bytes, Division::Cased(cased));
        let cl100k = Pack { numbers: true, ..classes(WORDS, Classes { digits: 3, ..QWEN }) };
        let spaces = |bytes| Pack { by_characters: true, ..pack(bytes, Division::Spaces) };
        match self {
            Near::Cl100k => Pack { extent: Extent::First(CL100K_WORDS), ..cl100k },
            Near::Llama3 => Pack { extent: Extent::FirstAndLetters(CL100K_WORDS), ..cl100k },
            Near::O200k => cased(include_bytes!("vocab/o200k.bin"), Cased { digits: 3, contractions: true }),
            Near::Tekken => cased(include_bytes!("vocab/tekken.bin"), Cased { digits: 1, contractions: false }),
            Near::Qwen => classes(WORDS, QWEN),
            Near::Gemma => spaces(include_bytes!("vocab/gemma-4.bin")),
            Near::Spm => spaces(include_bytes!("vocab/phi-3.bin")),
            Near::Mistral => spaces(include_bytes!("vocab/mistral.bin")),
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
