//! Where the model's tensors go, in bytes. Never parameters times bits: the table of tensors is added up.

use super::shape::Model;
use super::{GpuLayers, Settings, Split};

/// Which layer of the model a tensor belongs to, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Embeddings: always in RAM (src/llama-model.cpp:1606-1607).
    Input,
    /// A block.
    Block(u64),
    /// Norm and head after the last block.
    Output,
}

/// A tensor, as far as its cost goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Where it belongs.
    pub place: Place,
    /// Whether `--cpu-moe` keeps it in RAM: `\.ffn_(up|down|gate|gate_up)_(ch|)exps` (common/common.h:1224).
    pub experts: bool,
}

impl Place {
    /// The place of a tensor (src/llama-arch.cpp, `LLM_TENSOR_INFOS`).
    pub(super) fn of(name: &str) -> Place {
        if let Some(number) = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()) {
            return Place::Block(number);
        }
        let input = ["token_embd", "token_types", "position_embd", "per_layer_token_embd", "enc.blk", "dec.blk"];
        if input.iter().take(4).any(|prefix| name.starts_with(prefix)) && !name.contains("norm.") {
            return Place::Input;
        }
        for prefix in ["enc.blk.", "dec.blk."] {
            if let Some(number) = name.strip_prefix(prefix).and_then(|rest| rest.split('.').next()?.parse().ok()) {
                return Place::Block(number);
            }
        }
        // The frequencies stand once in the file and are used by every block; they load with the first.
        if name.starts_with("rope_freqs") || name.starts_with("rope_factors") {
            return Place::Block(0);
        }
        Place::Output
    }

    /// Whether `--cpu-moe` keeps a tensor of this name in RAM.
    pub(super) fn experts(name: &str) -> bool {
        ["up", "down", "gate", "gate_up"]
            .iter()
            .any(|part| name.contains(&format!(".ffn_{part}_exps")) || name.contains(&format!(".ffn_{part}_chexps")))
    }
}

impl Settings {
    /// Whether a block's weights go to the GPU: the last `n_gpu_layers` of the blocks and the output
    /// (src/llama-model.cpp:1591-1604).
    pub(crate) fn layer_on_device(&self, model: &Model, block: usize) -> bool {
        let blocks = model.blocks;
        match self.gpu_layers {
            GpuLayers::None => false,
            GpuLayers::All => true,
            GpuLayers::Last(count) => (block as u64) >= (blocks + 1).saturating_sub(count),
        }
    }

    /// Whether the output layer goes to the GPU.
    pub(crate) fn output_on_device(&self) -> bool {
        match self.gpu_layers {
            GpuLayers::None => false,
            GpuLayers::All => true,
            GpuLayers::Last(count) => count > 0,
        }
    }
}

/// Frequencies stand once in the file; they load with the first block, and once more on the device if only later blocks
/// are there.
fn shared_again(model: &Model, settings: &Settings) -> u64 {
    let last = usize::try_from(model.trunk).unwrap_or(usize::MAX).saturating_sub(1);
    if settings.layer_on_device(model, 0) || !settings.layer_on_device(model, last) {
        return 0;
    }
    let shared = model.weights.iter().filter(|weight| weight.name.starts_with("rope_f"));
    shared.fold(0, |sum, weight| sum.saturating_add(weight.bytes))
}

/// Adds the tensors up, side by side.
pub(super) fn place(model: &Model, settings: &Settings, notes: &mut Vec<String>) -> Split {
    let mut split = Split::default();
    for weight in &model.weights {
        let on_device = match weight.place {
            Place::Input => false,
            Place::Output => settings.output_on_device(),
            Place::Block(block) => {
                let kept = weight.experts && block < settings.cpu_moe;
                !kept && settings.layer_on_device(model, usize::try_from(block).unwrap_or(usize::MAX))
            }
        };
        split.add(on_device, weight.bytes);
    }
    // Without a head of its own the embedding is loaded a second time where the output runs (TENSOR_DUPLICATED), unless
    // that is where it is; two architectures ask for the copy before the embedding and get it always.
    if let Some(bytes) = model.tied {
        let on_device = settings.output_on_device();
        if on_device || matches!(model.arch.as_str(), "gemma3n" | "gemma4") {
            split.add(on_device, bytes);
        }
    }
    split.device = split.device.saturating_add(shared_again(model, settings));
    if settings.gpu_layers == GpuLayers::None && model.repackable {
        notes.push(
            "without a GPU, weights of some types are repacked: up to as much again in private memory, unless \
             --no-repack is given"
                .to_owned(),
        );
    }
    split
}
