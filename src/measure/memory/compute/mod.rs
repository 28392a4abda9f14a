//! Scratch buffers: what llama.cpp reserves for the largest graph it will run.
//!
//! The graph is built from the tensors' shapes (`build`), split between the GPU and the CPU (`schedule`) and laid out
//! in memory (`allocate`) as llama.cpp and ggml do it; the peaks are the sizes of the buffers. Nothing is fitted to
//! measurements.

mod allocate;
mod build;
mod graph;
mod schedule;

use super::settings::Window;
use super::shape::Model;
use super::{GpuLayers, Settings, Split};

/// What is said where a GPU takes over work of RAM's.
pub(crate) const OP_OFFLOAD: &str = "what a GPU takes over for large batches of what is in RAM (weights are copied to it) is in no column, and \
                          counted in what fits";

/// Room for what an estimated graph may hold at once beside the blocks as they are built here, on either side: some copies of
/// the hidden state, more where it is kept in several streams (hyper-connections), and scores of an indexer.
fn unknown(model: &Model, window: &Window) -> u64 {
    let streams = model.number("hyper_connection.count").min(16);
    let state = model.embd.saturating_mul(window.ubatch).saturating_mul(4);
    let scores = model.number("attention.indexer.head_count").min(1).saturating_mul(window.full).saturating_mul(16);
    state
        .saturating_mul(streams.saturating_mul(12).saturating_add(16))
        .saturating_add(scores.saturating_mul(window.ubatch))
}

/// The scratch buffers.
pub(super) struct Scratch {
    /// Bytes on each side, where each evaluates what its own weights are for.
    pub(super) split: Split,
    /// Bytes more on the GPU, where it takes over what is evaluated for many tokens at once though its weights are in RAM.
    pub(super) op_offload: u64,
    /// What had to be assumed, if anything.
    pub(super) assumed: Option<String>,
}

/// Whether flash attention, on where it can be, is off: some layer's would run elsewhere than the layer.
pub(super) fn goes_without_flash(model: &Model, settings: &Settings, window: &Window) -> bool {
    let one_token = Window { ubatch: 1, ..*window };
    schedule::flash_is_elsewhere(&build::build(model, settings, &one_token, false).0)
}

/// The scratch buffers of a context.
pub(super) fn reserve(model: &Model, settings: &Settings, window: &Window, notes: &mut Vec<String>) -> Scratch {
    let has_device = settings.gpu_layers != GpuLayers::None;
    let peaks = |pinned: bool, offload: bool| {
        let (mut graph, assumed) = build::build(model, settings, window, pinned);
        let plan = schedule::schedule(&mut graph, has_device, offload);
        let (device, host) = allocate::peaks(&graph, &plan);
        // What is estimated gets a quarter on top, and room for what is not known.
        let margin = |bytes: u64| match assumed {
            Some(_) if bytes > 0 => bytes.saturating_add(bytes / 4).saturating_add(unknown(model, window)),
            _ => bytes,
        };
        (Split { device: margin(device), host: margin(host) }, assumed)
    };
    let (split, assumed) = peaks(false, false);
    if has_device && !settings.kv_offload && !settings.flash_attn {
        // A dry run of llama.cpp forgets where scores are pinned; its real load keeps them in RAM.
        let real = peaks(true, false).0;
        notes.push(format!(
            "without KV offload and flash attention a real load puts the scores in RAM: {} bytes of compute buffers on \
             the GPU and {} in RAM, where llama.cpp's own dry run says what stands here",
            real.device, real.host
        ));
    }
    if let Some(what) = &assumed {
        notes.push(what.clone());
    }
    if has_device && settings.type_v.quantized() | settings.type_k.quantized() && settings.flash_attn {
        notes.push(
            "on CUDA, flash attention may copy a layer's quantized keys and values to f16 beside this; Metal and other \
             devices add copies of their own"
                .to_owned(),
        );
    }
    let op_offload = if settings.offloads_ops(model) {
        notes.push(OP_OFFLOAD.to_owned());
        peaks(false, true).0.device.saturating_sub(split.device)
    } else {
        0
    };
    Scratch { split, op_offload, assumed }
}
