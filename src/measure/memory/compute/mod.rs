//! Scratch buffers: what llama.cpp reserves for the largest graph it will run.

use super::settings::Window;
use super::shape::Model;
use super::{Settings, Split};

/// The scratch buffers in bytes, and what had to be assumed, if anything.
pub(super) fn reserve(
    model: &Model,
    _settings: &Settings,
    window: &Window,
    _notes: &mut Vec<String>,
) -> (Split, Option<String>) {
    let floats = model.embd * 8;
    (Split { device: 0, host: floats * 4 * window.ubatch }, Some("placeholder".to_owned()))
}
