//! What an architecture's graph does that its tensors do not show.

use std::collections::HashSet;

use super::super::super::Source;
use super::super::super::shape::Model;

/// Where the hidden state leaves the graph for draft heads, and so all its rows are kept to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    No,
    /// It does not, but rows are chosen only behind the last block.
    Late,
    /// All rows get logits.
    All,
    BeforeNorm,
    AfterNorm,
}

/// Which blocks turn queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rope {
    All,
    None,
    /// Those with a sliding window; all, if none has one.
    Sliding,
    /// Those with a sliding window, and the first so many.
    SlidingOrFirst(u64),
    /// All but every n-th.
    AllBut(u64),
}

/// An architecture's habits.
#[derive(Debug, Clone)]
pub(super) struct Style {
    /// Norms are RMS norms, which may run in place; plain ones may not.
    pub(super) rms: bool,
    pub(super) rope: Rope,
    pub(super) rope_factors: Option<String>,
    /// Integers a position has.
    pub(super) positions: u64,
    /// Tokens and vectors may stand in one batch.
    pub(super) mixed: bool,
    /// More embeddings of the same width that come with the input.
    pub(super) deepstack: u64,
    /// Attention reads keys and values from the cache.
    pub(super) cached: bool,
    pub(super) embedding_factor: bool,
    pub(super) scaled_rows: bool,
    pub(super) embedding_norm: bool,
    /// Embeddings are normalized without weights.
    pub(super) plain_embedding_norm: bool,
    pub(super) clamped: bool,
    /// Operations between scores and softmax.
    pub(super) score_steps: u32,
    /// Operations after the logits.
    pub(super) logit_steps: u32,
    /// Squared ReLU.
    pub(super) squared: bool,
    /// Experts' weights come before the experts.
    pub(super) weighted_first: bool,
    /// Softmax over the chosen experts only.
    pub(super) late_softmax: bool,
    pub(super) normed_weights: bool,
    pub(super) scaled_weights: bool,
    /// Attention and feed-forward part read the same input.
    pub(super) parallel: bool,
    /// The residual stands first where attention's, and where the feed-forward part's result is added: that decides
    /// whose memory is taken over.
    pub(super) residual_first: (bool, bool),
    /// Norms have no weights.
    pub(super) bare_norms: bool,
    /// Norms stand behind attention and the feed-forward part, not before.
    pub(super) swin: bool,
    /// Results are scaled before they are added.
    pub(super) residual_scale: bool,
    /// Blocks without rotation scale queries by position, those with it normalize heads.
    pub(super) llama4: bool,
    /// Queries are scaled before attention.
    pub(super) scaled_queries: bool,
    /// Only wanted rows pass the last block.
    pub(super) early_rows: bool,
    pub(super) hidden_out: Hidden,
    /// The norm behind the last block.
    pub(super) final_norm: Option<&'static str>,
    /// Hidden states are turned into logits; encoders end with them.
    pub(super) logits: bool,
    /// What is not known of this architecture's graph.
    pub(super) assumed: Option<String>,
}

impl Style {
    pub(super) fn of(model: &Model) -> Style {
        let arch = model.arch.as_str();
        let is = |archs: &[&str]| archs.contains(&arch);
        let hidden_out = hidden_out(arch);
        let pictures = deepstack(model);
        let factor = model.has_number("embedding_scale");
        Style {
            rms: !is(PLAIN_NORMS) || model.has_number("attention.layer_norm_rms_epsilon") && arch == "cohere2moe",
            rope: rope(model),
            rope_factors: ["rope_freqs.weight", "rope_factors_short.weight"]
                .iter()
                .find(|name| model.tensors.contains_key(**name))
                .map(|name| (*name).to_owned()),
            positions: positions(model),
            mixed: !is(&["cogvlm", "deepseek4", "graniteswitch", "eagle3", "dflash", "gemma4-assistant"]),
            deepstack: pictures,
            cached: !is(&["llama-embed", "t5encoder"]),
            embedding_factor: factor && pictures == 0 || is(&["grok", "minicpm", "gemma", "gemma2"]),
            scaled_rows: factor && pictures > 0 || arch.starts_with("gemma") && !is(&["gemma", "gemma2"]),
            plain_embedding_norm: is(&["talkie", "muse-glimmer"]),
            embedding_norm: model.tensors.contains_key("token_embd_norm.weight") && !is(&["lfm2", "lfm2moe"]),
            clamped: model.has_number("attention.clamp_kqv"),
            score_steps: if is(&["gemma2", "grok"]) { 3 } else { 0 },
            logit_steps: match model.has_number("final_logit_softcapping") || arch == "gemma2" {
                true => 3,
                false => u32::from(model.has_number("logit_scale")),
            },
            squared: is(&["arcee", "jais2", "nemotron", "nemotron_h", "nemotron_h_moe", "plm"]),
            weighted_first: arch == "llama4",
            late_softmax: arch == "gpt-oss" || model.number("expert_gating_func") == 3,
            normed_weights: normed_weights(model),
            scaled_weights: model.has_number("expert_weights_scale")
                && model.floats.get("expert_weights_scale") != Some(&1.0),
            parallel: is(&["falcon", "gptj", "phi2", "command-r", "cohere2", "cohere2moe", "plamo"])
                || (arch == "gptneox" && model.number("use_parallel_residual") != 0),
            residual_first: match arch {
                "lfm2" | "lfm2moe" | "jamba" => (true, true),
                "openelm" => (true, false),
                "phi3" | "phimoe" => (false, true),
                _ => (false, false),
            },
            bare_norms: is(&["talkie", "hrm_text"]),
            swin: model.number("swin_norm") != 0,
            residual_scale: model.has_number("residual_scale"),
            llama4: arch == "llama4",
            scaled_queries: is(&["gemma", "gemma2", "gemma3", "phi2", "phi3"]),
            early_rows: hidden_out == Hidden::No,
            hidden_out,
            final_norm: final_norm(model),
            logits: !model.encodes,
            assumed: estimated(model).then(|| format!("the graph of {arch} is estimated, erring high")),
        }
    }
}

/// Architectures whose norms subtract the mean. Cohere 2 MoE's file says which it has.
const PLAIN_NORMS: &[&str] = &[
    "bert",
    "bloom",
    "codeshell",
    "cohere2",
    "cohere2moe",
    "command-r",
    "dbrx",
    "falcon",
    "gpt2",
    "gptj",
    "gptneox",
    "jais",
    "jais2",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "mpt",
    "nemotron",
    "nomic-bert",
    "nomic-bert-moe",
    "olmo",
    "orion",
    "phi2",
    "pockettts",
    "rwkv6",
    "rwkv7",
    "stablelm",
    "starcoder",
    "starcoder2",
];

fn hidden_out(arch: &str) -> Hidden {
    match arch {
        "gpt-oss" | "step35" => Hidden::BeforeNorm,
        "hrm_text" => Hidden::Late,
        "cogvlm" => Hidden::All,
        "bailingmoe3" | "cohere2moe" | "gemma4" | "hy_v3" | "nemotron_h" | "nemotron_h_moe" | "qwen35"
        | "qwen35moe" | "qwen3next" => Hidden::AfterNorm,
        _ => Hidden::No,
    }
}

fn rope(model: &Model) -> Rope {
    match model.arch.as_str() {
        "bert" | "bloom" | "gpt2" | "jais" | "jamba" | "jina-bert-v2" | "kimi-linear" | "mpt" | "nemotron_h"
        | "nemotron_h_moe" | "refact" | "starcoder" => Rope::None,
        // Only the one of 7B turns (src/models/baichuan.cpp).
        "baichuan" if model.blocks != 32 => Rope::None,
        "granite" | "granitemoe" | "granitehybrid" | "graniteswitch"
            if model.numbers.get("rope.scaling.finetuned") == Some(&0) =>
        {
            Rope::None
        }
        "cohere2" | "exaone4" | "exaone-moe" | "smallthinker" | "maple" | "muse-glimmer" => Rope::Sliding,
        "cohere2moe" => Rope::SlidingOrFirst(model.number("leading_dense_block_count")),
        "llama4" if model.window.is_some() => Rope::AllBut(4),
        "smollm3" | "afmoe" => Rope::AllBut(4),
        _ => Rope::All,
    }
}

/// Four integers where positions have sections: of time, height and width.
fn positions(model: &Model) -> u64 {
    match model.arch.as_str() {
        "paddleocr" | "qwen2vl" | "qwen35" | "qwen35moe" | "qwen3tts" | "qwen3vl" | "qwen3vlmoe" | "qwen4exp" => 4,
        "bailingmoe3" | "glm4" | "glm4moe" | "hunyuan_vl" if model.has_number("rope.dimension_sections") => 4,
        _ => 1,
    }
}

/// Embeddings of a picture that come beside those of a token: so many layers add one (src/models/granite.cpp).
fn deepstack(model: &Model) -> u64 {
    match model.deepstack.iter().filter(|part| part.is_some()).collect::<HashSet<_>>().len() {
        0 => model.number("n_deepstack_layers"),
        parts => parts as u64,
    }
}

/// Whether the weights of the chosen experts are made to sum up to one: as the code has it, or as the file says.
fn normed_weights(model: &Model) -> bool {
    match model.arch.as_str() {
        "deepseek" | "gpt-oss" | "jamba" | "llada-moe" | "llama4" | "nomic-bert-moe" | "olmoe" | "qwen2moe" => false,
        "afmoe" | "bailingmoe" | "bailingmoe2" | "bailingmoe3" | "cohere2moe" | "deepseek2" | "deepseek2-ocr"
        | "deepseek32" | "deepseek4" | "dflash" | "dots1" | "dots3note" | "exaone-moe" | "glm-dsa" | "glm4moe"
        | "glm5-next" | "hy_v3" | "hy_v4" | "kimi-k3" | "laguna" | "minimax-m3" | "mistral4" | "nemotron_h_moe"
        | "step35" => model.number("expert_weights_norm") != 0,
        _ => true,
    }
}

fn final_norm(model: &Model) -> Option<&'static str> {
    match model.arch.as_str() {
        "bert" | "nomic-bert" | "nomic-bert-moe" | "jina-bert-v2" | "jina-bert-v3" | "hrm_text" => None,
        "t5" => Some("dec.output_norm"),
        "t5encoder" | "neo-bert" => Some("enc.output_norm"),
        "lfm2" | "lfm2moe" if model.tensors.contains_key("token_embd_norm.weight") => Some("token_embd_norm"),
        _ => Some("output_norm"),
    }
}

/// Architectures whose graph is not built here node by node.
const ESTIMATED: &[&str] = &[
    "clef",
    "deepseek4",
    "dflash",
    "dots3note",
    "eagle3",
    "glm5-next",
    "graniteswitch",
    "hy_v4",
    "kimi-k3",
    "qwen4exp",
    "rwkv6qwen2",
    "wavtokenizer-dec",
];

fn estimated(model: &Model) -> bool {
    ESTIMATED.contains(&model.arch.as_str()) || model.source != Source::Formula
}
