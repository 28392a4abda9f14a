//! Scratch buffers: what llama.cpp reserves for the largest graph it will run.
//!
//! The graph is built from the tensors' shapes ([`build`]), split between the GPU and the CPU ([`schedule`]) and laid out
//! in memory ([`allocate`]) as llama.cpp and ggml do it; the peaks are the sizes of the buffers. Nothing is fitted to
//! measurements.

mod allocate;
mod build;
mod graph;
mod schedule;

use super::settings::Window;
use super::shape::Model;
use super::{GpuLayers, Settings, Split};

/// The scratch buffers in bytes, and what had to be assumed, if anything.
pub(super) fn reserve(
    model: &Model,
    settings: &Settings,
    window: &Window,
    notes: &mut Vec<String>,
) -> (Split, Option<String>) {
    let has_device = settings.gpu_layers != GpuLayers::None;
    let peaks = |pinned: bool| {
        let (mut graph, assumed) = build::build(model, settings, window, pinned);
        let plan = schedule::schedule(&mut graph, has_device);
        let (device, host) = allocate::peaks(&graph, &plan);
        (Split { device, host }, assumed)
    };
    let (split, assumed) = peaks(false);
    if has_device && !settings.kv_offload && !settings.flash_attn {
        // A dry run of llama.cpp forgets where scores are pinned; its real load keeps them in RAM.
        let real = peaks(true).0;
        notes.push(format!(
            "without KV offload and flash attention a real load puts the scores in RAM: {} bytes of compute buffers on \
             the GPU and {} in RAM, where llama.cpp's own dry run says what stands here",
            real.device, real.host
        ));
    }
    (split, assumed)
}
