//! GGUF keys → what each layer keeps and how wide it is. The traps of the format are handled here and nowhere else:
//! numbers that may be arrays, defaults that the code of llama.cpp holds, layers that own no cache.

use std::collections::HashMap;

use super::Source;
use super::arch::{self, Facts, Family, Sliding};
use super::weights::{Place, Weight};
use crate::gguf::{Gguf, Kind, Value};

/// The most layers a model may have (`LLAMA_MAX_LAYERS` is 512; a larger number is a broken file).
const MAX_LAYERS: u64 = 4_096;

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
    /// Elements of an embedding.
    pub embd: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// The sliding window in tokens, if any layer has one.
    pub window: Option<u64>,
    /// The compressed attention of DeepSeek's line, if the file has it.
    pub mla: Option<Mla>,
    /// Elements of the widest row of values: what all are padded to without flash attention.
    pub widest_value: u64,
    /// Whether a token sees only those before it.
    pub causal: bool,
    /// Its tensors.
    pub weights: Vec<Weight>,
    /// The bytes of the embedding, if it serves as the output's weights too.
    pub tied: Option<u64>,
    /// Whether it holds weights that a CPU build repacks.
    pub repackable: bool,
    /// How far the description is to be trusted.
    pub source: Source,
    /// What should be known beside the figures.
    pub notes: Vec<String>,
    /// Shapes of the tensors, for the graph.
    pub(crate) tensors: HashMap<String, [u64; 4]>,
    /// Numbers of the metadata without the architecture's prefix, for the graph.
    pub(crate) numbers: HashMap<String, u64>,
    /// Floats likewise.
    pub(crate) floats: HashMap<String, f64>,
    /// Experts used a token, by block.
    pub(crate) experts_used: Vec<u64>,
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
            model.notes.push(what.clone());
            model.source = Source::Assumed(what);
        }
        keys.layers(&mut model, facts)?;
        keys.tensors(&mut model)?;
        Ok(model)
    }

    /// A number of the metadata by its key without the architecture, such as `ssm.state_size`; 0 if absent.
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.numbers.get(key).copied().unwrap_or(0)
    }

    /// Whether a setting of the metadata is there and not zero.
    pub(crate) fn has_number(&self, key: &str) -> bool {
        self.number(key) != 0 || self.floats.get(key).is_some_and(|float| *float != 0.0)
    }

    /// The dimensions of a block's tensor, such as `attn_q.weight`.
    pub(crate) fn tensor(&self, block: usize, name: &str) -> Option<[u64; 4]> {
        self.tensors.get(&format!("blk.{block}.{name}")).copied()
    }
}

/// Keys of one architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A number; of an array, the largest: erring high where one was expected.
    fn number(&self, key: &str) -> Option<u64> {
        match self.gguf.get(&self.key(key))? {
            Value::Array(array) => array.items.as_ref()?.iter().filter_map(Value::number).max(),
            value => value.number(),
        }
    }

    fn float(&self, key: &str) -> Option<f64> {
        match self.gguf.get(&self.key(key))? {
            Value::Float(float) => Some(*float),
            _ => None,
        }
    }

    fn needed(&self, key: &str) -> Result<u64, Error> {
        let number = self.number(key).filter(|number| *number <= 1 << 40);
        number.ok_or_else(|| Error::Missing { key: self.key(key), why: "a number was expected".to_owned() })
    }

    fn per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        self.gguf.per_layer(&self.key(key), layers)
    }

    /// Everything that does not go by layer.
    fn bare(&self) -> Result<Model, Error> {
        let blocks = self.needed("block_count")?;
        if blocks == 0 || blocks > MAX_LAYERS {
            let why = format!("{blocks} blocks are not between 1 and {MAX_LAYERS}");
            return Err(Error::Missing { key: self.key("block_count"), why });
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
        Ok(Model {
            arch: self.arch.to_owned(),
            name: self.gguf.text("general.name").map(str::to_owned),
            trained: self.number("context_length").unwrap_or(0),
            layers: Vec::new(),
            blocks,
            trunk,
            embd: self.needed("embedding_length")?,
            vocab,
            window: None,
            mla: self.mla(),
            widest_value: 0,
            causal: self.number("attention.causal") != Some(0) && self.arch != "gemma-embedding",
            weights: Vec::new(),
            tied: None,
            repackable: false,
            source: Source::Formula,
            notes,
            tensors: HashMap::new(),
            numbers: keys().filter_map(|key| Some((key.to_owned(), self.number(key)?))).collect(),
            floats: keys().filter_map(|key| Some((key.to_owned(), self.float(key)?))).collect(),
            experts_used: self.per_layer("expert_used_count", blocks as usize).unwrap_or_default(),
        })
    }

    /// Both keys, and not zero: else an old file, with plain heads (src/llama-hparams.cpp, `is_mla`).
    fn mla(&self) -> Option<Mla> {
        let key = self.number("attention.key_length_mla").filter(|length| *length > 0)?;
        let value = self.number("attention.value_length_mla").filter(|length| *length > 0)?;
        Some(Mla { rank: self.number("attention.kv_lora_rank").unwrap_or(0), key, value })
    }

    fn layers(&self, model: &mut Model, facts: Facts) -> Result<(), Error> {
        let count = usize::try_from(model.blocks).expect("at most MAX_LAYERS");
        let heads = self.per_layer("attention.head_count", count).unwrap_or_else(|| vec![0; count]);
        let kv_heads = self.per_layer("attention.head_count_kv", count).unwrap_or_else(|| heads.clone());
        let ff = self.per_layer("feed_forward_length", count).unwrap_or_else(|| vec![0; count]);
        // src/llama-model.cpp:1437-1461: without heads on the first block there is no attention at all.
        let size = |key: &str| match heads[0] {
            0 => 0,
            heads => self.number(key).unwrap_or(model.embd / heads),
        };
        let mut full = (size("attention.key_length"), size("attention.value_length"));
        if matches!(self.arch, "kimi-k3" | "glm5-next") {
            full.1 = self.number("attention.kv_lora_rank").unwrap_or(full.1);
        }
        let narrow = (
            self.number("attention.key_length_swa").unwrap_or(full.0),
            self.number("attention.value_length_swa").unwrap_or(full.1),
        );
        let (window, sliding) = self.sliding(model, facts.sliding, &kv_heads);
        model.window = window;
        let owners = self.owners(model.blocks);
        for index in 0..count {
            let (key, value) = if sliding[index] { narrow } else { full };
            let attention =
                Attention { heads: heads[index], kv_heads: kv_heads[index], key, value, sliding: sliding[index] };
            model.widest_value = model.widest_value.max(value.saturating_mul(kv_heads[index]));
            let mut layer = self.layer(model, facts.family, index, attention, ff[index]);
            if index as u64 >= owners || index as u64 >= model.trunk {
                layer.rows.clear();
            }
            if index as u64 >= model.trunk {
                layer.state = None;
            }
            model.layers.push(layer);
        }
        self.extra_layers(model);
        Ok(())
    }

    /// How many blocks, from the first, own a cache (src/models/gemma3n.cpp:7, src/models/gemma4.cpp:8-11).
    fn owners(&self, blocks: u64) -> u64 {
        match self.arch {
            "gemma3n" => 20.min(blocks),
            "gemma4" => blocks.saturating_sub(self.number("attention.shared_kv_layers").unwrap_or(0)),
            _ => blocks,
        }
    }

    fn layer(&self, model: &Model, family: Family, index: usize, attention: Attention, ff: u64) -> Layer {
        let recurrent = match family {
            Family::Recurrent | Family::Both => true,
            Family::ByHeads => attention.kv_heads == 0,
            Family::NemotronH => attention.kv_heads == 0 && ff == 0,
            Family::ByInterval(interval) => self.interval(index, interval, model),
            _ => false,
        };
        let attends = match family {
            Family::NoCache | Family::Recurrent => false,
            Family::Both => true,
            Family::NemotronH => !recurrent && ff == 0,
            _ => !recurrent,
        };
        Layer {
            rows: if attends { self.rows(model, family, index, &attention) } else { Vec::new() },
            attention: (attends || family == Family::NoCache).then_some(attention),
            state: if family == Family::Dsv4 {
                self.dsv4_state(index, &attention)
            } else {
                recurrent.then(|| self.state(model))
            },
            feed_forward: ff,
        }
    }

    /// Whether a block is recurrent where every n-th is not (src/models/qwen3next.cpp:17-21).
    fn interval(&self, index: usize, default: u64, model: &Model) -> bool {
        if let Some(listed) = self.per_layer("attention.recurrent_layers", model.blocks as usize) {
            return listed[index] != 0;
        }
        let interval = self.number("full_attention_interval").unwrap_or(default).max(1);
        (index as u64) < model.trunk && !(index as u64 + 1).is_multiple_of(interval)
    }

    fn rows(&self, model: &Model, family: Family, index: usize, attention: &Attention) -> Vec<Row> {
        let key_only = model.mla.is_some() || family == Family::Dsv4;
        let cells = if attention.sliding { Cells::Sliding } else { Cells::Full };
        let key = attention.key.saturating_mul(attention.kv_heads);
        let value = if key_only { 0 } else { attention.value.saturating_mul(attention.kv_heads) };
        let per_sequence = family == Family::Dsv4;
        let main = Row { key, value, key_only, cells, per_sequence };
        let mut rows = vec![main];
        let indexer = self.number("attention.indexer.key_length").unwrap_or(0);
        match family {
            Family::Dsa if self.owns_indexer(model, index) && !attention.sliding => {
                rows.push(Row { key: indexer, value: 0, key_only: true, ..main });
            }
            Family::Msa if index as u64 >= self.number("leading_dense_block_count").unwrap_or(0) => {
                // One head: the cache behind it keeps values too, of the main head size.
                rows.push(Row { key: indexer, value: attention.value, key_only: false, ..main });
            }
            Family::Dsv4 => {
                let ratio = self.per_layer("attention.compress_ratios", model.blocks as usize).map_or(0, |r| r[index]);
                let cells = Cells::Compressed(ratio);
                match ratio {
                    4 => rows.extend([Row { cells, ..main }, Row { key: indexer, cells, ..main }]),
                    128 => rows.push(Row { cells, ..main }),
                    _ => {}
                }
            }
            _ if matches!(self.arch, "qwen4exp" | "glm5-next") && indexer > 0 && self.owns_indexer(model, index) => {
                rows.push(Row { key: indexer.saturating_mul(2), value: 0, key_only: true, ..main });
            }
            _ => {}
        }
        rows
    }

    /// Whether a block owns an indexer; all do, unless `attention.indexer.types` says otherwise.
    fn owns_indexer(&self, model: &Model, index: usize) -> bool {
        let listed = self.per_layer("attention.indexer.types", model.blocks as usize);
        let disabled = self.arch == "hy_v4" && self.number("attention.indexer.top_k").unwrap_or(0) == 0;
        !disabled && listed.is_none_or(|listed| listed[index] != 0)
    }

    /// `n_embd_r` and `n_embd_s` of src/llama-hparams.cpp.
    fn state(&self, model: &Model) -> State {
        let number = |key: &str| self.number(key).unwrap_or(0);
        let heads = self.per_layer("attention.head_count", 1).map_or(0, |heads| heads[0]);
        let taps = number("ssm.conv_kernel");
        let head = number("wkv.head_size");
        if head != 0 {
            let shifts = self.number("token_shift_count").unwrap_or(2);
            return State { conv: shifts.saturating_mul(model.embd), recurrent: model.embd.saturating_mul(head) };
        }
        let short = number("shortconv.l_cache");
        if short != 0 {
            return State { conv: model.embd.saturating_mul(short - 1), recurrent: 0 };
        }
        let head = number("kda.head_dim");
        if head != 0 {
            let taps = if taps > 0 { taps - 1 } else { 3 };
            let inner = heads.saturating_mul(head);
            return State { conv: inner.saturating_mul(3 * taps), recurrent: inner.saturating_mul(head) };
        }
        let (inner, size) = (number("ssm.inner_size"), number("ssm.state_size"));
        let width = inner.saturating_add(number("ssm.group_count").saturating_mul(size).saturating_mul(2));
        let conv = taps.saturating_sub(1).saturating_mul(width);
        if self.arch == "minimax-01" {
            let head = self.number("attention.key_length").unwrap_or(model.embd / heads.max(1));
            return State { conv, recurrent: head.saturating_mul(head).saturating_mul(heads) };
        }
        State { conv, recurrent: size.saturating_mul(inner) }
    }

    /// The compressors' states, each of keys and of scores (src/llama-kv-cache-dsv4.cpp:967-969 and 1300-1318).
    fn dsv4_state(&self, index: usize, attention: &Attention) -> Option<State> {
        let indexer = self.number("attention.indexer.key_length").unwrap_or(0);
        let ratios = self.per_layer("attention.compress_ratios", index + 1)?;
        let recurrent = match ratios[index] {
            4 => (2 * 4) * 2 * attention.key + (2 * 4) * 2 * indexer,
            128 => 128 * attention.key,
            _ => return None,
        };
        Some(State { conv: 0, recurrent: recurrent.saturating_mul(2) })
    }

    /// The window, and which blocks have it (src/llama-hparams.cpp:8-22, src/llama-model.cpp:3451-3458).
    fn sliding(&self, model: &Model, facts: Option<Sliding>, kv_heads: &[u64]) -> (Option<u64>, Vec<bool>) {
        let count = kv_heads.len();
        let none = (None, vec![false; count]);
        let Some(facts) = facts else { return none };
        if self.arch == "exaone4" && model.trunk != 64 {
            return none;
        }
        let written = self.number("attention.sliding_window");
        if written == Some(0) {
            return none;
        }
        let window = match facts.forced {
            Some(forced) if written.is_some() || facts.default.is_some() => Some(forced),
            _ => written.or(facts.default),
        };
        let Some(window) = window else { return none };
        if self.arch == "lfm2" {
            return (Some(window), kv_heads.iter().map(|heads| *heads > 0).collect());
        }
        if self.arch == "deepseek4" {
            return (Some(window), vec![true; count]);
        }
        let pattern = self.key("attention.sliding_window_pattern");
        let listed = self.gguf.array(&pattern).and_then(|array| array.items.as_ref());
        if let Some(listed) = listed {
            let mut layers: Vec<bool> = listed.iter().map(|item| item.number() == Some(1)).collect();
            layers.resize(count, false);
            return (Some(window), layers);
        }
        let period = self.number("attention.sliding_window_pattern").unwrap_or(facts.period);
        let slides = |index: u64| match (period, facts.dense_first) {
            (0, _) => facts.period != 0,
            (period, true) => !index.is_multiple_of(period),
            (period, false) => index % period < period - 1,
        };
        (Some(window), (0..count as u64).map(|index| index < model.trunk && slides(index)).collect())
    }

    /// Blocks that the code adds to those of the file.
    fn extra_layers(&self, model: &mut Model) {
        let loops = if self.arch == "nanbeige" { self.number("num_loops").unwrap_or(1).clamp(1, 64) } else { 1 };
        if loops > 1 {
            let once = model.layers.clone();
            model.layers.extend((1..loops).flat_map(|_| once.clone()));
            model.blocks = model.blocks.saturating_mul(loops);
            model.trunk = model.blocks;
        }
        if self.arch == "graniteswitch" {
            // One more layer with a single head holds the router's keys (src/models/granite-switch.cpp:55-71).
            let Some(attention) = model.layers.last().and_then(|layer| layer.attention) else { return };
            let one = Attention { heads: 1, kv_heads: 1, ..attention };
            let row = Row { key: one.key, value: one.value, key_only: false, cells: Cells::Full, per_sequence: false };
            model.layers.push(Layer { attention: Some(one), rows: vec![row], state: None, feed_forward: 0 });
            model.blocks += 1;
        }
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
            model.repackable |= tensor.kind.is_some_and(Kind::quantized);
            model.tensors.insert(tensor.name.clone(), tensor.dims);
            let experts = Place::experts(&tensor.name);
            model.weights.push(Weight { name: tensor.name.clone(), bytes, place, experts });
        }
        if self.gguf.tensors.is_empty() {
            model.notes.push("the file has no tensors: the weights are counted as nothing".to_owned());
        }
        if left_out > 0 {
            model
                .notes
                .push(format!("{left_out} bytes of draft heads are not counted: they load for speculation only"));
        }
        let head = self.gguf.tensor("output.weight").is_some();
        let embedding = self.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.bytes);
        model.tied = embedding.filter(|_| !head);
        Ok(())
    }
}
