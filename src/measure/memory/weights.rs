//! Where the model's tensors go, in bytes. Never parameters times bits: the table of tensors is added up.

use super::shape::{Layer, Model};
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
    /// The place of a tensor (src/llama-arch.cpp:745-1046, `LLM_TENSOR_INFOS`): what belongs to no block, neither to the
    /// input nor to the output, loads with the first block.
    pub(super) fn of(name: &str, arch: &str) -> Place {
        for prefix in ["blk.", "enc.blk.", "dec.blk."] {
            if let Some(number) = name.strip_prefix(prefix).and_then(|rest| rest.split('.').next()?.parse().ok()) {
                return Place::Block(number);
            }
        }
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        match stem {
            "token_embd" | "position_embd" | "token_types" | "per_layer_token_embd" => Place::Input,
            "token_embd_norm" if arch.starts_with("lfm2") => Place::Output,
            "altup_proj" | "altup_unembd_proj" | "dense_2" | "dense_3" | "fc" | "d2t" | "nextn_proj_post" => {
                Place::Output
            }
            stem if ["output", "cls", "dec.output", "enc.output", "hc_head", "decision", "dspark", "dflash"]
                .iter()
                .any(|prefix| stem.starts_with(prefix)) =>
            {
                Place::Output
            }
            _ => Place::Block(0),
        }
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
    // Gemma 4's are read by the blocks without a window alone.
    let reads = |index: usize, layer: &Layer| {
        model.stored(index) == index && (model.arch != "gemma4" || layer.attention.is_some_and(|at| !at.sliding))
    };
    let trunk = model.layers.iter().take(usize::try_from(model.trunk).unwrap_or(usize::MAX)).enumerate();
    let Some(last) = trunk.filter(|(index, layer)| reads(*index, layer)).map(|(index, _)| index).next_back() else {
        return 0;
    };
    if settings.layer_on_device(model, 0) || !settings.layer_on_device(model, last) {
        return 0;
    }
    let shared = model.weights.all.iter().filter(|weight| weight.name.starts_with("rope_f"));
    shared.fold(0, |sum, weight| sum.saturating_add(weight.bytes))
}

/// Adds the tensors up, side by side.
pub(super) fn place(model: &Model, settings: &Settings, notes: &mut Vec<String>) -> Split {
    let mut split = Split::default();
    for weight in &model.weights.all {
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
    if let Some(bytes) = model.weights.tied {
        let on_device = settings.output_on_device();
        if on_device || matches!(model.arch.as_str(), "gemma3n" | "gemma4") {
            split.add(on_device, bytes);
        }
    }
    split.device = split.device.saturating_add(shared_again(model, settings));
    if settings.gpu_layers == GpuLayers::None && model.weights.repackable {
        notes.push(
            "without a GPU, weights of some types are repacked: up to as much again in private memory (a llama-server \
             does without at --no-repack)"
                .to_owned(),
        );
    }
    split
}
