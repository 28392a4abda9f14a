//! What the code of llama.cpp knows about each architecture and a file does not say: one table, read by [`super::shape`].

/// How the layers of an architecture remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Attention with a cache on every block.
    Attention,
    /// No cache at all: encoders and diffusion models (src/llama-model.cpp:2364-2381).
    NoCache,
    /// A state on every block, no keys (src/llama-arch.cpp:1110-1122).
    Recurrent,
    /// Blocks without key-value heads are recurrent, the others have a cache.
    ByHeads,
    /// As `ByHeads`, but a block with a feed-forward part has neither (src/llama-model.cpp:2698-2704).
    NemotronH,
    /// Every n-th block has a cache, all others are recurrent; n if the file has no `full_attention_interval`.
    ByInterval(u64),
    /// Cache and state on every block.
    Both,
    /// MLA with one more row of keys on blocks that own an indexer (src/llama-kv-cache-dsa.cpp:15-56).
    Dsa,
    /// Grouped-query attention with an indexer's row behind the leading dense blocks (src/llama-kv-cache-msa.cpp).
    Msa,
    /// DeepSeek 4: a sliding cache and compressed ones, keys only, never unified (src/llama-kv-cache-dsv4.cpp:1235-1330).
    Dsv4,
}

/// The sliding window of an architecture whose file may not say which blocks have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sliding {
    /// Every so many blocks one has full attention; 0 where the file must list them.
    pub(super) period: u64,
    /// Whether that one is the first of the period, not the last.
    pub(super) dense_first: bool,
    /// The window where the file has none.
    pub(super) default: Option<u64>,
    /// The window whatever the file says.
    pub(super) forced: Option<u64>,
}

/// An architecture's facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) family: Family,
    pub(super) sliding: Option<Sliding>,
}

/// The facts of an architecture; `None` for one that build 11434 does not know.
pub(super) fn facts(arch: &str) -> Option<Facts> {
    KNOWN.contains(&arch).then(|| Facts { family: family(arch), sliding: sliding(arch) })
}

/// Whether an architecture ends with hidden states and makes no logits.
pub(super) fn encodes(arch: &str) -> bool {
    matches!(
        arch,
        "bert"
            | "nomic-bert"
            | "nomic-bert-moe"
            | "jina-bert-v2"
            | "jina-bert-v3"
            | "neo-bert"
            | "modern-bert"
            | "eurobert"
            | "gemma-embedding"
            | "llama-embed"
            | "t5encoder"
    )
}

/// Whether an architecture without a head of its own loads the embedding a second time (`TENSOR_DUPLICATED`).
pub(super) fn repeats_embedding(arch: &str) -> bool {
    let encoder = encodes(arch) && !matches!(arch, "gemma-embedding" | "llama-embed" | "t5encoder");
    !encoder && !matches!(arch, "bitnet" | "wavtokenizer-dec")
}

fn family(arch: &str) -> Family {
    match arch {
        "bert" | "jina-bert-v2" | "jina-bert-v3" | "nomic-bert" | "nomic-bert-moe" | "neo-bert" | "eurobert"
        | "wavtokenizer-dec" | "modern-bert" | "gemma-embedding" | "dream" | "llada" | "llada-moe" | "rnd1"
        | "clef" => Family::NoCache,
        "mamba" | "mamba2" | "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7" => Family::Recurrent,
        "jamba" | "plamo2" | "granitehybrid" | "lfm2" | "lfm2moe" | "kimi-linear" | "bailingmoe3" | "kimi-k3"
        | "glm5-next" => Family::ByHeads,
        "nemotron_h" | "nemotron_h_moe" => Family::NemotronH,
        "qwen3next" | "qwen35" | "qwen35moe" | "qwen4exp" => Family::ByInterval(4),
        "minimax-01" => Family::ByInterval(8),
        "falcon-h1" => Family::Both,
        "deepseek32" | "glm-dsa" | "hy_v4" | "dots3note" => Family::Dsa,
        "minimax-m3" => Family::Msa,
        "deepseek4" => Family::Dsv4,
        _ => Family::Attention,
    }
}

fn sliding(arch: &str) -> Option<Sliding> {
    let every = |period, dense_first| Sliding { period, dense_first, default: None, forced: None };
    Some(match arch {
        "gemma2" => Sliding { default: Some(4096), ..every(2, false) },
        "gpt-oss" => every(2, false),
        "modern-bert" => every(3, true),
        "exaone4" => Sliding { default: Some(4096), ..every(4, false) },
        "exaone-moe" => Sliding { default: Some(128), ..every(4, false) },
        "llama4" => Sliding { default: Some(8192), forced: Some(8192), ..every(4, false) },
        "afmoe" | "cohere2" | "mellum" | "muse-glimmer" | "olmo2" => every(4, false),
        "smallthinker" => Sliding { forced: Some(4096), ..every(4, true) },
        "cohere2moe" | "laguna" => every(4, true),
        "gemma3n" => every(5, false),
        "gemma3" | "gemma-embedding" => every(6, false),
        "plamo3" => every(8, false),
        "gemma4" | "gemma4-assistant" | "mimo2" | "step35" | "granite_swa" | "maple" | "spark2_5" | "dots3note"
        | "dflash" => every(0, false),
        // Every block that has attention at all (src/models/lfm2.cpp:26-31); src/models/deepseek4.cpp:67-68.
        "lfm2" | "deepseek4" => every(0, false),
        _ => return None,
    })
}

/// Every architecture of build 11434 (src/llama-arch.cpp, `LLM_ARCH_NAMES`).
const KNOWN: &[&str] = &[
    "afmoe",
    "apertus",
    "arcee",
    "arctic",
    "arwkv7",
    "baichuan",
    "bailingmoe",
    "bailingmoe2",
    "bailingmoe3",
    "bert",
    "bitnet",
    "bloom",
    "chameleon",
    "chatglm",
    "clef",
    "codeshell",
    "cogvlm",
    "cohere2",
    "cohere2moe",
    "command-r",
    "dbrx",
    "deci",
    "deepseek",
    "deepseek2",
    "deepseek2-ocr",
    "deepseek32",
    "deepseek4",
    "dflash",
    "dots1",
    "dots3note",
    "dream",
    "eagle3",
    "ernie4_5",
    "ernie4_5-moe",
    "eurobert",
    "exaone",
    "exaone-moe",
    "exaone4",
    "falcon",
    "falcon-h1",
    "gemma",
    "gemma-embedding",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4-assistant",
    "glm-dsa",
    "glm4",
    "glm4moe",
    "glm5-next",
    "gpt-oss",
    "gpt2",
    "gptj",
    "gptneox",
    "granite",
    "granite_swa",
    "granitehybrid",
    "granitemoe",
    "graniteswitch",
    "grok",
    "grovemoe",
    "hrm_text",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan_vl",
    "hy_v3",
    "hy_v4",
    "internlm2",
    "jais",
    "jais2",
    "jamba",
    "jina-bert-v2",
    "jina-bert-v3",
    "kimi-k3",
    "kimi-linear",
    "laguna",
    "lfm2",
    "lfm2moe",
    "llada",
    "llada-moe",
    "llama",
    "llama-embed",
    "llama4",
    "maincoder",
    "mamba",
    "mamba2",
    "maple",
    "mellum",
    "mimo2",
    "minicpm",
    "minicpm3",
    "minimax-01",
    "minimax-m2",
    "minimax-m3",
    "mistral3",
    "mistral4",
    "modern-bert",
    "mpt",
    "muse-glimmer",
    "nanbeige",
    "nemotron",
    "nemotron_h",
    "nemotron_h_moe",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "olmo",
    "olmo2",
    "olmoe",
    "openelm",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "phi2",
    "phi3",
    "phimoe",
    "plamo",
    "plamo2",
    "plamo3",
    "plm",
    "pockettts",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3tts",
    "qwen3vl",
    "qwen3vlmoe",
    "qwen4exp",
    "refact",
    "rnd1",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "spark2_5",
    "stablelm",
    "starcoder",
    "starcoder2",
    "step35",
    "t5",
    "t5encoder",
    "talkie",
    "wavtokenizer-dec",
    "xverse",
];
