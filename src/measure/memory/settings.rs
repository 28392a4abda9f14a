//! How a server sets a context up: the numbers its flags decide, the defaults of each kind of server, and the settings
//! that llama.cpp refuses.

use super::shape::Model;
use crate::gguf::{CacheTypes, Kind};

/// How many layers go to the GPU (`--n-gpu-layers`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLayers {
    /// There is no GPU, or nothing is to go there.
    None,
    /// The last N of the blocks and the output layer, which counts as one more.
    Last(u64),
    /// Everything but the input embedding.
    All,
}

/// A build of llama.cpp, by its number, where builds differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build(pub u32);

impl Build {
    /// The newest build whose formulas are known here.
    pub const NEWEST: Build = Build(11434);
}

impl Default for Build {
    fn default() -> Self {
        Build::NEWEST
    }
}

/// `LLAMA_MAX_SEQ` (src/llama-cparams.h).
const MAX_SEQUENCES: u64 = 256;

/// Everything besides the model that decides what a context costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The window asked for, in tokens, of all sequences together (`-c`); 0 means the trained length.
    pub n_ctx: u64,
    /// How the cache is kept.
    pub cache: Cache,
    /// How many sequences at once (`-np`, `n_seq_max`); at least 1.
    pub parallel: u64,
    /// Tokens a request is cut into (`-b`).
    pub n_batch: u64,
    /// Tokens evaluated at once (`-ub`): what compute buffers grow with.
    pub n_ubatch: u64,
    /// Whether flash attention is on.
    pub flash_attn: bool,
    /// It is so as `auto` has it: on, unless some layer's would run elsewhere than the layer.
    pub flash_auto: bool,
    /// Whether a GPU takes over what is evaluated for many tokens at once though its weights are in RAM; else (`--no-op-offload`)
    /// the CPU evaluates it. GPUs of other machines (RPC) never do.
    pub op_offload: bool,
    /// Which layers go to the GPU.
    pub gpu_layers: GpuLayers,
    /// Of how many blocks, from the first, the experts stay in RAM (`--n-cpu-moe N`; `--cpu-moe` is `u64::MAX`).
    pub cpu_moe: u64,
    /// The most rows of logits in one evaluation (`n_outputs_max`); 0 means as many as `n_batch`.
    pub outputs: u64,
    /// Snapshots of the recurrent state kept a sequence, for speculation (`n_rs_seq`); 0 for none.
    pub rollback: u64,
    /// The llama.cpp build whose formulas count.
    pub build: Build,
}

/// How the cache of keys and values is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// The types of cached keys and values (`-ctk`, `-ctv`).
    pub types: CacheTypes,
    /// Whether all sequences share one cache (`--kv-unified`); else each has its own part of the window.
    pub unified: bool,
    /// Whether sliding-window layers keep the whole window all the same (`--swa-full`).
    pub swa_full: bool,
    /// Whether the cache lives where its layer does; else all of it, and attention, stays in RAM (`-nkvo`).
    pub kv_offload: bool,
}

/// A setting that llama.cpp does not load, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// Why, with the values meant.
    pub reason: String,
}

/// The sizes that follow from the settings and the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// All sequences together, after padding.
    pub(crate) n_ctx: u64,
    /// One sequence, after padding.
    pub(crate) n_ctx_seq: u64,
    /// Caches side by side: 1 if unified.
    pub(crate) streams: u64,
    /// Cells a stream of a layer with full attention.
    pub(crate) full: u64,
    /// Cells a stream of a layer with a sliding window.
    pub(crate) sliding: u64,
    /// The same where each sequence has its own, though the cache is unified.
    pub(crate) own_sliding: u64,
    /// Tokens of one evaluation.
    pub(crate) ubatch: u64,
    /// Tokens of one request's part.
    pub(crate) batch: u64,
}

impl Settings {
    /// Whether a GPU takes over what is evaluated for many tokens at once though its weights are in RAM.
    pub fn offloads_ops(&self, model: &Model) -> bool {
        let has_device = self.gpu_layers != GpuLayers::None;
        has_device && self.op_offload && (self.partly(model) || self.cpu_moe > 0)
    }

    /// Some layers are on the GPU, and some in RAM.
    fn partly(&self, model: &Model) -> bool {
        matches!(self.gpu_layers, GpuLayers::Last(layers) if layers <= model.blocks)
    }

    /// What `llama-server -c n_ctx` does without `-np`: four unified slots, each of which sees the whole window
    /// (tools/server/server.cpp:168-172, tools/server/server-context.cpp:46-56).
    pub fn llama_server(n_ctx: u64) -> Settings {
        let mut settings = Settings::llama_server_parallel(n_ctx, 4);
        settings.cache.unified = true;
        settings
    }

    /// What `llama-server -c n_ctx -np parallel` does: each slot has its own share of the window
    /// (common/common.h:456-463, 577-578).
    pub fn llama_server_parallel(n_ctx: u64, parallel: u64) -> Settings {
        let parallel = parallel.max(1);
        let mut settings = Settings { parallel, outputs: parallel, ..Settings::libllama(n_ctx) };
        settings.cache.swa_full = false;
        settings
    }

    /// What Ollama does for `num_ctx` with `OLLAMA_NUM_PARALLEL`: it asks its llama-server for a window of their product
    /// and as many slots (ollama/ollama llm/llama_server.go:375, server/sched.go:859-868). Its micro-batch is 512 up to
    /// 2,048 by version and window; this takes 512.
    pub fn ollama(num_ctx: u64, num_parallel: u64) -> Settings {
        let parallel = num_parallel.max(1);
        Settings::llama_server_parallel(num_ctx.saturating_mul(parallel), parallel)
    }

    /// What `llama_context_default_params` does (src/llama-context.cpp:3757-3796).
    pub fn libllama(n_ctx: u64) -> Settings {
        let f16 = Kind::of(1).expect("f16 is type 1");
        Settings {
            n_ctx,
            cache: Cache { types: CacheTypes { k: f16, v: f16 }, unified: false, swa_full: true, kv_offload: true },
            parallel: 1,
            n_batch: 2048,
            n_ubatch: 512,
            flash_attn: true,
            flash_auto: false,
            op_offload: true,
            gpu_layers: GpuLayers::All,
            cpu_moe: 0,
            outputs: 0,
            rollback: 0,
            build: Build::NEWEST,
        }
    }

    /// Sequences at once, at least 1.
    pub(crate) fn sequences(&self) -> u64 {
        self.parallel.max(1)
    }

    /// The sizes that follow (src/llama-context.cpp:248-250 and 292-305; src/llama-kv-cache-iswa.cpp:73).
    pub(crate) fn window(&self, model: &Model) -> Window {
        let asked = if self.n_ctx == 0 { model.trained } else { self.n_ctx };
        let sequences = self.sequences();
        let padded = pad(asked.max(1));
        let n_ctx_seq = if self.cache.unified { padded } else { pad((padded / sequences).max(1)) };
        let n_ctx = if self.cache.unified { padded } else { n_ctx_seq.saturating_mul(sequences) };
        // The batch is cut to the window as it was asked for, before padding.
        let batch = if model.causal { self.n_batch.min(asked) } else { self.n_batch }.max(1);
        let ubatch = if self.n_ubatch == 0 { batch } else { batch.min(self.n_ubatch) };
        let shared = if self.cache.unified { sequences } else { 1 };
        let sliding = |shared: u64| {
            let reach = model.window.unwrap_or(0).saturating_mul(shared).saturating_add(ubatch);
            if self.cache.swa_full { n_ctx_seq } else { pad(n_ctx_seq.min(reach)) }
        };
        let streams = if self.cache.unified { 1 } else { sequences };
        let (own_sliding, sliding) = (sliding(1), sliding(shared));
        Window { n_ctx, n_ctx_seq, streams, full: n_ctx_seq, sliding, own_sliding, ubatch, batch }
    }

    /// What llama.cpp makes of the settings for this model: it has no flash attention for Grok (src/llama-context.cpp,
    /// `llama_init_from_model`).
    pub(crate) fn as_loaded(&self, model: &Model) -> Settings {
        Settings { flash_attn: self.flash_attn && model.arch != "grok", ..self.clone() }
    }

    /// Refuses what `llama_init_from_model` refuses (src/llama-context.cpp:3838-3870).
    pub(crate) fn check(&self, model: &Model) -> Result<(), Refused> {
        let refused = |reason: String| Err(Refused { reason });
        let CacheTypes { k, v } = self.cache.types;
        let numbers = [self.n_ctx, self.n_batch, self.n_ubatch, self.outputs, self.rollback, model.trained];
        if numbers.iter().any(|number| *number > u64::from(u32::MAX)) {
            return refused("windows and batches of more than 4,294,967,295 tokens are not possible".to_owned());
        }
        if self.parallel > MAX_SEQUENCES {
            return refused(format!("{} sequences at once: at most {MAX_SEQUENCES} are possible", self.parallel));
        }
        if self.n_batch == 0 && self.n_ubatch == 0 {
            return refused("n_batch and n_ubatch cannot both be zero".to_owned());
        }
        if (model.mla.is_some() || model.arch == "deepseek4") && k != v {
            return refused(format!(
                "{} keeps no values of its own: K ({}) and V ({}) must be of one type",
                model.arch, k.name, v.name
            ));
        }
        if v.quantized() && !self.flash_attn {
            return refused(format!("a quantized V cache ({}) needs flash attention", v.name));
        }
        for layer in &model.layers {
            let Some(attention) = &layer.attention else { continue };
            if k.quantized() && self.flash_attn && attention.key % k.block != 0 {
                return refused(format!(
                    "K cache type {} (blocks of {}) does not divide the head size {}",
                    k.name, k.block, attention.key
                ));
            }
            if v.quantized() && self.flash_attn && attention.value % v.block != 0 {
                return refused(format!(
                    "V cache type {} (blocks of {}) does not divide the head size {}",
                    v.name, v.block, attention.value
                ));
            }
            // Without flash attention only whole rows must fill blocks.
            if layer.rows.iter().any(|row| k.row(row.key).is_none()) {
                return refused(format!(
                    "K cache type {} (blocks of {}) does not divide a row of keys",
                    k.name, k.block
                ));
            }
        }
        Ok(())
    }
}

/// Rounds up to a multiple of 256, as `GGML_PAD(x, 256)`.
pub(crate) fn pad(cells: u64) -> u64 {
    cells.checked_next_multiple_of(256).unwrap_or(u64::MAX / 256 * 256)
}
