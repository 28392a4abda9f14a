//! llama.cpp's own dry run: what a model and a context would take, to the byte, with nothing read but the header and
//! nothing allocated. What `--fit` of llama-server does, too.
//!
//! llama.cpp ends the process on some files that are broken or made to harm, so it runs in a process of its own: the same
//! program as a worker, which is asked over its standard input and output. It dies with what asked it.
//!
//! ```text
//! DryRun::start(program, file) ──spawns──► windowsill dry-run-worker FILE ──► work(file, stdin, stdout)
//!        .ask(&Ask) -> Told     ◄─ a line of JSON each way ─►                      └─► memory.cpp ─► llama.cpp
//! ```

#[cfg(feature = "engine")]
mod native;
mod worker;

use serde::{Deserialize, Serialize};

pub use worker::{DryRun, work};

/// A context to be set up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ask {
    /// Whether there is a GPU.
    pub gpu: bool,
    /// Layers on the GPU, from the last, the output layer counted as one; negative for all.
    pub layers: i32,
    /// Of how many blocks, from the first, the experts stay in RAM; negative for all.
    pub cpu_moe: i32,
    /// The window (tokens), of all sequences together; 0 for the trained length.
    pub n_ctx: u32,
    /// Tokens a request is cut into.
    pub n_batch: u32,
    /// Tokens evaluated at once.
    pub n_ubatch: u32,
    /// Sequences at once.
    pub sequences: u32,
    /// Rows of logits at once; 0 for `n_batch`.
    pub outputs: u32,
    /// Snapshots of recurrent state a sequence.
    pub rollback: u32,
    /// How the cache is kept.
    pub cache: Cache,
    /// Whether flash attention is on.
    pub flash_attn: FlashAttn,
    /// A GPU takes over what is evaluated for many tokens at once though its weights are in RAM.
    pub op_offload: bool,
}

/// How the cache of keys and values is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cache {
    /// The type of cached keys, by ggml's number.
    pub type_k: u32,
    /// The type of cached values, by ggml's number.
    pub type_v: u32,
    /// Sliding windows keep the whole window.
    pub swa_full: bool,
    /// All sequences share one cache.
    pub unified: bool,
    /// The cache is where its layer is.
    pub kv_offload: bool,
}

/// Whether flash attention is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FlashAttn {
    /// It is not.
    Off,
    /// It is.
    On,
    /// Where each layer's can run where the layer is: what servers do unless told.
    Auto,
}

/// Bytes on each side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    /// On GPUs.
    pub device: u64,
    /// In RAM.
    pub host: u64,
}

/// What it would take, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The model's tensors.
    pub weights: Sides,
    /// KV cache and recurrent state.
    pub context: Sides,
    /// Scratch buffers.
    pub compute: Sides,
    /// The window set up (tokens), of all sequences together.
    pub n_ctx: u64,
    /// The window of one sequence (tokens).
    pub n_ctx_seq: u64,
}

/// What runs the dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covers {
    /// llama.cpp's version.
    pub version: String,
    /// The GPUs that llama.cpp computes on in this build, by name; empty where a GPU is only stood in for.
    pub devices: Vec<String>,
}

#[cfg(all(test, feature = "engine"))]
mod tests;
