//! Bytes that n tokens of context cost a model, from its GGUF header alone; the largest window that fits a budget.
//! Pure: it reads nothing, asks nobody and knows no hardware.
//!
//! ```text
//! Gguf ──► Model::of ──► cost(&Model, &Settings)              ──► Cost: weights, kv, state, compute, output
//!                        largest(&Model, &Settings, &Budget)  ──► Answer: n_ctx, because, cost
//! ```
//!
//! ```text
//! Model::of(&Gguf) -> Result<Model, Error>
//! Settings::llama_server(n_ctx) | llama_server_parallel(n_ctx, n) | ollama(num_ctx, n) | libllama(n_ctx) -> Settings
//! cost(&Model, &Settings) -> Result<Cost, Refused>
//! largest(&Model, &Settings, &Budget, upto) -> Result<Answer, Refused>
//! largest_near(guess, most, fits) -> Result<steps, E>       a search by something dear, near a guess
//! ```
//!
//! Sizes are bytes, [`u64`], saturating. The facts are llama.cpp's (build 11434 unless a [`Build`] says otherwise); each
//! formula names its file and line there. KV cache, recurrent state and output are exact for every architecture of
//! [`shape`]; compute buffers are an upper bound (`scratch`). What is assumed is said: [`Cost::source`] and [`Cost::notes`].
//!
//! Not in any figure: an image projector, LoRA adapters, a draft model, a server's prompt cache and checkpoints, the
//! process itself, and what a device's driver takes.

mod arch;
mod cache;
mod fit;
mod layers;
pub(crate) mod scratch;
mod settings;
pub mod shape;
mod weights;

pub use fit::{Answer, Budget, largest, largest_near};
pub use settings::{Build, Cache, GpuLayers, Refused, Settings};
pub use shape::{Error, Model, Trust, Weights, Widths};
pub use weights::{Place, Weight};

/// Bytes on each side. Without a device, all is `host`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Split {
    /// On the GPU or GPUs.
    pub device: u64,
    /// In RAM.
    pub host: u64,
}

impl Split {
    /// Both sides together.
    pub fn total(self) -> u64 {
        self.device.saturating_add(self.host)
    }

    /// Adds on one side.
    pub(crate) fn add(&mut self, on_device: bool, bytes: u64) {
        let side = if on_device { &mut self.device } else { &mut self.host };
        *side = side.saturating_add(bytes);
    }

    /// Side by side.
    pub(crate) fn plus(self, other: Split) -> Split {
        Split { device: self.device.saturating_add(other.device), host: self.host.saturating_add(other.host) }
    }
}

/// How far a figure is to be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// llama.cpp's own formulas for this architecture.
    Formula,
    /// llama.cpp's own dry run, here: what it covers.
    DryRun(String),
    /// This architecture, or a part of it, is not known here: what was assumed, erring high.
    Assumed(String),
}

impl Source {
    /// As it stands in reports: `formula`, `dry-run` or `assumed`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Source::Formula => "formula",
            Source::DryRun(_) => "dry-run",
            Source::Assumed(_) => "assumed",
        }
    }
}

/// What one context costs, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The window in tokens that llama.cpp sets up for the one asked: all sequences together.
    pub n_ctx: u64,
    /// The window of one sequence, in tokens.
    pub n_ctx_seq: u64,
    /// The model's tensors.
    pub weights: Split,
    /// Keys and values of the attention layers.
    pub kv: Split,
    /// The state of recurrent layers; does not depend on the window.
    pub state: Split,
    /// Scratch space of the graph, where each side evaluates what its own weights are for.
    pub compute: Split,
    /// What a GPU takes beyond that, where it takes over what is evaluated for many tokens at once though the weights are in
    /// RAM (`op_offload`): in no sum. 0 where `compute` has it.
    pub op_offload: u64,
    /// The buffer of logits, in RAM.
    pub output: u64,
    /// What cannot be exact, or should be known beside the figures.
    pub notes: Vec<String>,
    /// How far all this is to be trusted.
    pub source: Source,
}

impl Cost {
    /// Everything, on either side.
    pub fn total(&self) -> u64 {
        self.device().saturating_add(self.host())
    }

    /// Everything on the GPU.
    pub fn device(&self) -> u64 {
        self.weights.plus(self.kv).plus(self.state).plus(self.compute).device
    }

    /// Everything in RAM.
    pub fn host(&self) -> u64 {
        self.weights.plus(self.kv).plus(self.state).plus(self.compute).host.saturating_add(self.output)
    }

    /// KV cache and state: what llama.cpp calls context.
    pub fn context(&self) -> Split {
        self.kv.plus(self.state)
    }
}

/// What a window costs under these settings, or why llama.cpp would refuse them.
pub fn cost(model: &Model, settings: &Settings) -> Result<Cost, Refused> {
    let settings = &settings.as_loaded(model);
    settings.check(model)?;
    let window = settings.window(model);
    let mut notes = model.trust.notes.clone();
    let weights = weights::place(model, settings, &mut notes);
    let (kv, state) = cache::place(model, settings, &window);
    let compute = scratch::reserve(model, settings, &window);
    notes.push(scratch::BOUND.to_owned());
    let op_offload = if settings.offloads_ops(model) {
        notes.push(scratch::OP_OFFLOAD.to_owned());
        // Gate, up and down of one block, copied as they are used.
        model.weights.all.iter().map(|weight| weight.bytes).max().unwrap_or(0).saturating_mul(3)
    } else {
        0
    };
    let source = model.trust.source.clone();
    // src/llama-context.cpp:2118-2203, `output_reserve`: one row of logits a sequence; grows if a request asks for more.
    let output = model.widths.vocab.saturating_mul(settings.sequences()).saturating_mul(4);
    let (n_ctx, n_ctx_seq) = (window.n_ctx, window.n_ctx_seq);
    Ok(Cost { n_ctx, n_ctx_seq, weights, kv, state, compute, op_offload, output, notes, source })
}

#[cfg(test)]
mod tests;
