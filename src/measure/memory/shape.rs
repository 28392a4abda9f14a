//! GGUF keys → what each layer keeps and how wide it is. The traps of the format are handled here and nowhere else:
//! numbers that may be arrays, defaults that the code of llama.cpp holds, layers that own no cache.

use std::collections::HashMap;

use super::Source;
use super::arch::{self, Facts, Family};
use super::weights::{Place, Weight};
use crate::gguf::{Gguf, Kind, Value};

/// The most layers a model may have (`LLAMA_MAX_LAYERS` is 512; much more is a broken file).
pub(super) const MAX_LAYERS: u64 = 1_024;
/// The longest window that a model is trained for (tokens): some dozen times the longest there is.
const MAX_TRAINED: u64 = 1 << 27;
/// Larger numbers are taken as this: no sum of a few of them, nor their bytes, passes a u64.
const MAX_NUMBER: u64 = 1 << 40;

/// A model, as far as memory goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// `general.architecture`.
    pub arch: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// The window it was trained for, in tokens.
    pub trained: u64,
    /// Its blocks, in order; those of draft heads included, which keep nothing.
    pub layers: Vec<Layer>,
    /// How many blocks the file has: what `--n-gpu-layers` counts, less the output layer.
    pub blocks: u64,
    /// How many of them evaluate a prompt: without draft heads.
    pub trunk: u64,
    /// How wide it is.
    pub widths: Widths,
    /// The sliding window in tokens, if any layer has one.
    pub window: Option<u64>,
    /// The compressed attention of DeepSeek's line, if the file has it.
    pub mla: Option<Mla>,
    /// Whether a token sees only those before it.
    pub causal: bool,
    /// Whether hidden states are all that it makes: no logits.
    pub encodes: bool,
    /// Its weights.
    pub weights: Weights,
    /// How far this description can be trusted.
    pub trust: Trust,
    /// What else its header says.
    pub(crate) header: Header,
}

/// How far a description can be trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Trust {
    /// Where it is from.
    pub source: Source,
    /// What should be known beside the figures.
    pub notes: Vec<String>,
}

/// How wide a model is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Widths {
    /// Elements of an embedding.
    pub embd: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// Elements of the widest row of values: what all are padded to without flash attention.
    pub value: u64,
}

/// The weights of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights {
    /// The tensors, one by one.
    pub all: Vec<Weight>,
    /// The bytes of the embedding, if it serves as the output's weights too.
    pub tied: Option<u64>,
    /// Whether there are some that a CPU build repacks.
    pub repackable: bool,
}

/// What a header says beside, for the architectures that need it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Header {
    /// Shapes of the tensors.
    pub(crate) tensors: HashMap<String, [u64; 4]>,
    /// Numbers of the metadata without the architecture's prefix.
    pub(crate) numbers: HashMap<String, u64>,
}

/// A block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layer {
    /// Its attention, whether it owns a cache or not.
    pub attention: Option<Attention>,
    /// What it keeps for each cell; empty without attention and where another layer's cache is used.
    pub rows: Vec<Row>,
    /// What it keeps for each sequence.
    pub state: Option<State>,
    /// Elements of its feed-forward part, 0 without one.
    pub feed_forward: u64,
}

/// The attention of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Elements of a head of keys.
    pub key: u64,
    /// Elements of a head of values.
    pub value: u64,
    /// Whether it sees only a window.
    pub sliding: bool,
}

/// Something kept for each cell of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Elements of keys.
    pub key: u64,
    /// Elements of values.
    pub value: u64,
    /// No values are kept, padded or not.
    pub key_only: bool,
    /// Without flash attention values are padded to the widest layer's.
    pub padded: bool,
    /// How many cells there are.
    pub cells: Cells,
    /// Each sequence has its own, even where the cache is unified.
    pub per_sequence: bool,
}

/// How many cells a cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// One a token of the window.
    Full,
    /// As many as a sliding window needs.
    Sliding,
    /// One for so many tokens.
    Compressed(u64),
}

/// What a recurrent layer keeps for each sequence, in elements of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Inputs of the convolution, or shifted tokens.
    pub conv: u64,
    /// The state itself.
    pub recurrent: u64,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mla {
    /// Elements of the compressed keys and values.
    pub rank: u64,
    /// Elements of a head of keys after decompression.
    pub key: u64,
    /// Elements of a head of values after decompression.
    pub value: u64,
}

/// Why a header cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A key without which nothing can be said.
    #[error("the GGUF header has no usable `{key}`: {why}")]
    Missing {
        /// The key.
        key: String,
        /// What was expected.
        why: String,
    },
    /// A tensor of a type this program does not know.
    #[error("tensor `{tensor}` is of type {id}, which is not known here: the model's size cannot be told")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type's number in ggml's list.
        id: u32,
    },
}

impl Model {
    /// Describes a model by its header.
    pub fn of(gguf: &Gguf) -> Result<Model, Error> {
        let arch = gguf.text("general.architecture").ok_or_else(|| Error::Missing {
            key: "general.architecture".to_owned(),
            why: "a text was expected".to_owned(),
        })?;
        let keys = Keys { gguf, arch };
        let known = arch::facts(arch);
        let facts = known.unwrap_or(Facts { family: Family::Attention, sliding: None });
        let mut model = keys.bare()?;
        if known.is_none() {
            let what = format!(
                "the architecture `{arch}` is not known here: taken as attention on every layer over the whole window"
            );
            model.trust.notes.push(what.clone());
            model.trust.source = Source::Assumed(what);
        }
        keys.layers(&mut model, facts)?;
        keys.tensors(&mut model)?;
        Ok(model)
    }

    /// A number of the metadata by its key without the architecture, such as `ssm.state_size`; 0 if absent.
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.header.numbers.get(key).copied().unwrap_or(0)
    }

    /// The block of the file whose tensors a block runs with: some models run blocks several times.
    pub(crate) fn stored(&self, block: usize) -> usize {
        let number = |key: &str| usize::try_from(self.number(key)).unwrap_or(usize::MAX).max(1);
        match self.arch.as_str() {
            "nanbeige" => block % (self.layers.len() / number("num_loops")).max(1),
            // Some rounds of a low stack, then one of a high stack (src/models/hrm-text.cpp).
            "hrm_text" => {
                let (size, rounds) = (number("hrm.layers_per_stack"), number("hrm.l_cycles"));
                let high = (block / size) % rounds.saturating_add(1) == rounds;
                block % size + if high { size } else { 0 }
            }
            _ => block,
        }
    }

    /// Whether a number of the metadata is there and not zero.
    pub(crate) fn has_number(&self, key: &str) -> bool {
        self.number(key) != 0
    }
}

/// Keys of one architecture.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) arch: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A number; of an array, the largest: erring high where one was expected.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        let number = match self.gguf.get(&self.key(key))? {
            Value::Array(array) => array.items.as_ref()?.iter().filter_map(Value::number).max(),
            value => value.number(),
        };
        number.map(|number| number.min(MAX_NUMBER))
    }

    fn needed(&self, key: &str) -> Result<u64, Error> {
        let number = self.number(key).filter(|number| *number < MAX_NUMBER);
        number.ok_or_else(|| Error::Missing { key: self.key(key), why: "a number was expected".to_owned() })
    }

    pub(super) fn per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        let numbers = self.gguf.per_layer(&self.key(key), layers)?;
        Some(numbers.into_iter().map(|number| number.min(MAX_NUMBER)).collect())
    }

    /// Everything that does not go by layer.
    fn bare(&self) -> Result<Model, Error> {
        let blocks = self.needed("block_count")?;
        if blocks == 0 || blocks > MAX_LAYERS {
            let why = format!("{blocks} blocks are not between 1 and {MAX_LAYERS}");
            return Err(Error::Missing { key: self.key("block_count"), why });
        }
        let trained = self.number("context_length").unwrap_or(0);
        if trained > MAX_TRAINED {
            let why =
                format!("no model was trained for a window of {trained} tokens; at most {MAX_TRAINED} are believed");
            return Err(Error::Missing { key: self.key("context_length"), why });
        }
        let embedding = self.gguf.tensor("token_embd.weight");
        let listed = self.gguf.array("tokenizer.ggml.tokens").map(|tokens| tokens.length);
        let vocab = listed.or(self.number("vocab_size")).or(embedding.map(|tensor| tensor.dims[1])).unwrap_or(0);
        let mut notes = Vec::new();
        if vocab == 0 {
            notes.push("the size of the vocabulary is not known: logits are counted as nothing".to_owned());
        }
        let mut trunk = blocks.saturating_sub(self.number("nextn_predict_layers").unwrap_or(0));
        if trunk == 0 {
            trunk = blocks;
        }
        let prefix = format!("{}.", self.arch);
        let keys = || self.gguf.metadata.keys().filter_map(|key| key.strip_prefix(&prefix));
        let numbers = keys().filter_map(|key| Some((key.to_owned(), self.number(key)?))).collect();
        Ok(Model {
            arch: self.arch.to_owned(),
            name: self.gguf.text("general.name").map(str::to_owned),
            trained,
            layers: Vec::new(),
            blocks,
            trunk,
            widths: Widths { embd: self.needed("embedding_length")?, vocab, value: 0 },
            window: None,
            mla: self.mla(),
            causal: self.number("attention.causal") != Some(0) && self.arch != "gemma-embedding",
            encodes: arch::encodes(self.arch),
            weights: Weights::default(),
            trust: Trust { source: Source::Formula, notes },
            header: Header { tensors: HashMap::new(), numbers },
        })
    }

    /// Both keys, and not zero: else an old file, with plain heads (src/llama-hparams.cpp, `is_mla`).
    fn mla(&self) -> Option<Mla> {
        let key = self.number("attention.key_length_mla").filter(|length| *length > 0)?;
        let value = self.number("attention.value_length_mla").filter(|length| *length > 0)?;
        Some(Mla { rank: self.number("attention.kv_lora_rank").unwrap_or(0), key, value })
    }

    fn tensors(&self, model: &mut Model) -> Result<(), Error> {
        let trunk = model.trunk;
        let mut left_out = 0_u64;
        for tensor in &self.gguf.tensors {
            let Some(bytes) = tensor.bytes else {
                return Err(Error::UnknownType { tensor: tensor.name.clone(), id: tensor.id });
            };
            // Every tensor of a buffer starts at a multiple of 32 (ggml/src/ggml-alloc.c, `ggml_tallocr_alloc`).
            let bytes = bytes.checked_next_multiple_of(32).unwrap_or(u64::MAX);
            let place = Place::of(&tensor.name, self.arch);
            // Draft heads are loaded only for speculation (src/llama-model.cpp:2943, `load_mtp`).
            if matches!(place, Place::Block(block) if block >= trunk && block < model.blocks)
                && self.arch != "graniteswitch"
            {
                left_out = left_out.saturating_add(bytes);
                continue;
            }
            model.weights.repackable |= tensor.kind.is_some_and(Kind::quantized);
            model.header.tensors.insert(tensor.name.clone(), tensor.dims);
            let experts = Place::experts(&tensor.name);
            model.weights.all.push(Weight { name: tensor.name.clone(), bytes, place, experts });
        }
        if self.gguf.tensors.is_empty() {
            model.trust.notes.push("the file has no tensors: the weights are counted as nothing".to_owned());
        }
        if left_out > 0 {
            let note = format!("{left_out} bytes of draft heads are not counted: they load for speculation only");
            model.trust.notes.push(note);
        }
        let head = self.gguf.tensor("output.weight").is_some();
        let embedding = self.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.bytes);
        model.weights.tied = embedding.filter(|_| !head && arch::repeats_embedding(self.arch));
        Ok(())
    }
}
