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
    _notes: &mut Vec<String>,
) -> (Split, Option<String>) {
    let (mut graph, assumed) = build::build(model, settings, window);
    let plan = schedule::schedule(&mut graph, settings.gpu_layers != GpuLayers::None);
    let (device, host) = allocate::peaks(&graph, &plan);
    (Split { device, host }, assumed)
}
