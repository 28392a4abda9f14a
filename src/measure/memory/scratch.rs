//! Scratch buffers: an upper bound of what llama.cpp reserves for the largest graph it will run. Where the engine is built in,
//! its dry run says what it really is.
//!
//! What is alive at once is the hidden state in a few copies, the masks, and the widest of: one block's products with its
//! weights, the scores of its attention (without flash attention), or the logits. Held against llama.cpp's dry runs of 138
//! architectures: it is never below (`tests/data/memory`).

use std::collections::HashMap;

use super::settings::Window;
use super::shape::{Attention, Model};
use super::{GpuLayers, Settings, Split};

/// What is said of every figure that comes from here.
pub(crate) const BOUND: &str = "compute buffers are an upper bound: a build with the engine asks llama.cpp itself";

/// What is said where a GPU takes over work of RAM's.
pub(crate) const OP_OFFLOAD: &str = "what a GPU takes over for large batches of what is in RAM (weights are copied to it) is in no column, and \
                          counted in what fits";

/// Copies of the hidden state that are alive at once: the residual, its norm, the sum of both, and what is being made of them.
const COPIES: u64 = 8;

/// Products with weights that are alive at once in a block: gate, up, what comes of both, and one that is read.
const PRODUCTS: usize = 4;

/// One part in this many goes on top: for what some architectures do beside.
const MARGIN: u64 = 4;

/// Bytes on either side that any graph has room for.
const SMALLEST: u64 = 10 << 20;

/// T5 has it: a bias for each pair of tokens, which is made in several steps.
const PAIRS: &str = "attention.relative_buckets_count";

/// The scratch buffers on each side: a side that evaluates blocks takes all of it, RAM beside a GPU what goes in.
pub(super) fn reserve(model: &Model, settings: &Settings, window: &Window) -> Split {
    let margin = |bytes: u64| bytes.saturating_add(bytes / MARGIN).saturating_add(SMALLEST);
    let all = margin(peak(model, settings, window));
    let enters = margin(enters(model, window));
    let apart = !settings.cache.kv_offload || settings.cpu_moe > 0 || model.has_number(PAIRS);
    // What attention reads and gives is copied between both sides.
    let all = if settings.cache.kv_offload { all } else { all.saturating_add(all / 2) };
    match settings.gpu_layers {
        GpuLayers::None => Split { device: 0, host: all },
        GpuLayers::All if !apart => Split { device: all, host: enters },
        GpuLayers::All | GpuLayers::Last(_) => Split { device: all, host: all },
    }
}

/// Streams of hidden states that hyper-connections keep.
fn streams(model: &Model) -> u64 {
    model.number("hyper_connection.count").max(model.number("altup.num_inputs")).clamp(1, 16)
}

/// What stands in RAM beside a GPU that has all blocks: the prompt's embeddings, positions and masks.
fn enters(model: &Model, window: &Window) -> u64 {
    // Vision models of Qwen's add a part of a wider input after each of their first blocks.
    let wide = model.number("n_deepstack_layers").min(64).saturating_mul(2).saturating_add(4);
    let rows = model.widths.embd.saturating_mul(wide).saturating_mul(streams(model)).saturating_add(64);
    rows.saturating_mul(window.ubatch).saturating_mul(4).saturating_add(masks(model, window))
}

/// Masks of all kinds of caches, as they are made (4 bytes) and as flash attention reads them (2 bytes), and a copy of a part.
fn masks(model: &Model, window: &Window) -> u64 {
    let bytes = 7;
    let has = |sliding: bool| model.layers.iter().filter_map(|l| l.attention).any(|a| a.sliding == sliding);
    let cells = if has(false) { window.full } else { 0 } + if has(true) { window.sliding } else { 0 };
    cells.saturating_mul(window.ubatch).saturating_mul(bytes)
}

fn peak(model: &Model, settings: &Settings, window: &Window) -> u64 {
    let n = window.ubatch;
    let block = widest_block(model).saturating_mul(n).saturating_mul(4);
    let scores = model.layers.iter().filter_map(|l| l.attention).map(|a| scores(model, settings, window, &a)).max();
    let state = model.layers.iter().filter_map(|l| l.state).map(|s| s.conv.saturating_add(s.recurrent)).max();
    let state = state.unwrap_or(0).saturating_mul(settings.sequences()).saturating_mul(4 * 3);
    let outputs = if settings.outputs == 0 { window.batch } else { settings.outputs }.min(n);
    let logits = if model.encodes { 0 } else { model.widths.vocab.saturating_mul(outputs).saturating_mul(6) };
    let within = block.saturating_add(scores.unwrap_or(0)).saturating_add(state);
    let hidden =
        model.widths.embd.saturating_mul(n).saturating_mul(4).saturating_mul(COPIES).saturating_mul(streams(model));
    within.max(logits).saturating_add(hidden).saturating_add(enters(model, window))
}

/// Elements a token of what attention holds at once.
fn scores(model: &Model, settings: &Settings, window: &Window, attention: &Attention) -> u64 {
    let cells = if attention.sliding { window.sliding } else { window.full };
    let width = attention.key.saturating_add(attention.value).max(model.mla.map_or(0, |mla| mla.rank * 2));
    let heads = attention.heads.saturating_mul(width).saturating_mul(2);
    let scores = if settings.flash_attn { 0 } else { attention.heads.saturating_mul(cells) };
    // The indexers of DeepSeek and MiniMax score every cell.
    let biased = if model.has_number(PAIRS) { attention.heads.saturating_mul(cells).saturating_mul(26) } else { 0 };
    let indexed = if model.has_number("attention.indexer.head_count") { cells.saturating_mul(4) } else { 0 };
    let scores = scores.saturating_add(biased).saturating_add(indexed);
    heads.saturating_add(scores).saturating_mul(window.ubatch).saturating_mul(4)
}

/// Elements a token of the products with weights that are alive at once in the widest block.
fn widest_block(model: &Model) -> u64 {
    let used = model.number("expert_used_count").max(1);
    let mut widths: HashMap<&str, Vec<u64>> = HashMap::new();
    for (name, [_, rows, ..]) in &model.header.tensors {
        let Some((block, tensor)) = name.split_once("blk.").and_then(|(_, rest)| rest.split_once('.')) else {
            continue;
        };
        if !tensor.ends_with(".weight") || tensor.contains("norm") {
            continue;
        }
        let times = if tensor.contains("_exps") { used } else { 1 };
        widths.entry(block).or_default().push(rows.saturating_mul(times));
    }
    let alive = |mut of: Vec<u64>| {
        of.sort_unstable_by(|a, b| b.cmp(a));
        of.into_iter().take(PRODUCTS).fold(0, u64::saturating_add)
    };
    widths.into_values().map(alive).max().unwrap_or(0)
}
