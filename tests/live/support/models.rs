//! Tiny models of kinds that no small real one is of, with weights made at random, the same each time: what they say means
//! nothing, but depends on every token before it.

use std::path::Path;

use windowsill::gguf::Writer;

/// Numbers of an embedding.
const WIDTH: u64 = 64;

/// Sliding windows: five layers of six see 64 tokens.
pub(crate) const GEMMA3: &str = "gemma3";
/// Recurrent: nothing but state.
pub(crate) const MAMBA: &str = "mamba";
/// Both: convolutions with a state, and attention.
pub(crate) const LFM2: &str = "lfm2";

/// What a model of these renders its prompts with.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A chat template that comes to no end.
pub(crate) const ENDLESS: &str = "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}\
                                  {% endfor %}{% endfor %}{% endfor %}{{ messages[0].content }}";

/// Writes a model of an architecture.
pub(crate) fn write(file: &Path, arch: &str) {
    write_with(file, arch, TEMPLATE);
}

/// As [`write`], with another chat template.
pub(crate) fn write_with(file: &Path, arch: &str, template: &str) {
    let vocabulary = vocabulary();
    let mut model = Made::of(arch, vocabulary.len() as u64);
    match arch {
        GEMMA3 => model.gemma3(),
        MAMBA => model.mamba(),
        LFM2 => model.lfm2(),
        other => panic!("no model of {other}"),
    }
    let words: Vec<&[u8]> = vocabulary.iter().map(|(word, _)| word.as_slice()).collect();
    let kinds: Vec<i32> = vocabulary.iter().map(|(_, kind)| *kind).collect();
    let writer = model
        .writer
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &words)
        .integers("tokenizer.ggml.token_type", &kinds)
        .floats("tokenizer.ggml.scores", &vec![0.0; words.len()])
        .number("tokenizer.ggml.unknown_token_id", 0)
        .number("tokenizer.ggml.bos_token_id", 1)
        .number("tokenizer.ggml.eos_token_id", 3)
        .flag("tokenizer.ggml.add_bos_token", false)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .text("tokenizer.chat_template", template);
    let mut bytes = writer.bytes();
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(model.data);
    std::fs::write(file, bytes).unwrap();
}

/// Words and their kinds: special tokens, and all bytes.
fn vocabulary() -> Vec<(Vec<u8>, i32)> {
    let special = ["<unk>", "<s>", "<|im_start|>", "<|im_end|>"].map(|word| (word.as_bytes().to_vec(), 3));
    let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>").into_bytes(), 6));
    special.into_iter().chain(bytes).collect()
}

/// A model in the making.
struct Made {
    arch: String,
    writer: Writer,
    data: Vec<u8>,
    state: u64,
}

impl Made {
    fn of(arch: &str, words: u64) -> Made {
        let writer = Writer::default().text("general.architecture", arch);
        let mut made = Made { arch: arch.into(), writer, data: Vec::new(), state: 0x5eed };
        for (key, value) in [("context_length", 4096), ("embedding_length", WIDTH as u32), ("vocab_size", words as u32)]
        {
            made.number(key, value);
        }
        let epsilon = format!("{arch}.attention.layer_norm_rms_epsilon");
        made.writer = made.writer.float(&epsilon, 1e-5);
        made.tensor("token_embd.weight", &[WIDTH, words]);
        made
    }

    fn number(&mut self, key: &str, value: u32) {
        self.writer = std::mem::take(&mut self.writer).number(&format!("{}.{key}", self.arch), value);
    }

    /// Norms are about 1, the rest is small and around 0.
    fn tensor(&mut self, name: &str, dims: &[u64]) {
        let at = self.data.len() as u64;
        self.writer = std::mem::take(&mut self.writer).tensor_at(name, dims, 0, at);
        let (middle, spread) = match name {
            name if name.contains("norm") => (1.0, 0.2),
            name if name.ends_with("ssm_a") => (-1.0, 0.5),
            _ => (0.0, 1.5 / (dims[0] as f32).sqrt()),
        };
        for _ in 0..dims.iter().product() {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let any = (self.state >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0;
            self.data.extend((middle + any * spread).to_le_bytes());
        }
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn attention(&mut self, layer: u32, heads: u64, key: u64) {
        for (name, dims) in [("q", [WIDTH, heads * key]), ("k", [WIDTH, key]), ("v", [WIDTH, key])] {
            self.tensor(&format!("blk.{layer}.attn_{name}.weight"), &dims);
        }
        self.tensor(&format!("blk.{layer}.attn_output.weight"), &[heads * key, WIDTH]);
        self.tensor(&format!("blk.{layer}.attn_q_norm.weight"), &[key]);
        self.tensor(&format!("blk.{layer}.attn_k_norm.weight"), &[key]);
    }

    fn feed_forward(&mut self, layer: u32, inner: u64) {
        self.tensor(&format!("blk.{layer}.ffn_norm.weight"), &[WIDTH]);
        self.tensor(&format!("blk.{layer}.ffn_gate.weight"), &[WIDTH, inner]);
        self.tensor(&format!("blk.{layer}.ffn_up.weight"), &[WIDTH, inner]);
        self.tensor(&format!("blk.{layer}.ffn_down.weight"), &[inner, WIDTH]);
    }

    fn gemma3(&mut self) {
        for (key, value) in [
            ("block_count", 6),
            ("feed_forward_length", 128),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 32),
            ("attention.value_length", 32),
            ("attention.sliding_window", 64),
        ] {
            self.number(key, value);
        }
        self.tensor("output_norm.weight", &[WIDTH]);
        for layer in 0..6 {
            self.tensor(&format!("blk.{layer}.attn_norm.weight"), &[WIDTH]);
            self.attention(layer, 2, 32);
            self.tensor(&format!("blk.{layer}.post_attention_norm.weight"), &[WIDTH]);
            self.feed_forward(layer, 128);
            self.tensor(&format!("blk.{layer}.post_ffw_norm.weight"), &[WIDTH]);
        }
    }

    fn mamba(&mut self) {
        let (inner, state, rank) = (2 * WIDTH, 8, 4);
        for (key, value) in [
            ("block_count", 3),
            ("feed_forward_length", 0),
            ("attention.head_count", 0),
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", inner as u32),
            ("ssm.state_size", state as u32),
            ("ssm.time_step_rank", rank as u32),
        ] {
            self.number(key, value);
        }
        self.tensor("output_norm.weight", &[WIDTH]);
        for layer in 0..3 {
            for (name, dims) in [
                ("attn_norm.weight", &[WIDTH][..]),
                ("ssm_in.weight", &[WIDTH, 2 * inner]),
                ("ssm_conv1d.weight", &[4, inner]),
                ("ssm_conv1d.bias", &[inner]),
                ("ssm_x.weight", &[inner, rank + 2 * state]),
                ("ssm_dt.weight", &[rank, inner]),
                ("ssm_dt.bias", &[inner]),
                ("ssm_a", &[state, inner]),
                ("ssm_d", &[inner]),
                ("ssm_out.weight", &[inner, WIDTH]),
            ] {
                self.tensor(&format!("blk.{layer}.{name}"), dims);
            }
        }
    }

    fn lfm2(&mut self) {
        for (key, value) in
            [("block_count", 4), ("feed_forward_length", 128), ("attention.head_count", 2), ("shortconv.l_cache", 3)]
        {
            self.number(key, value);
        }
        let key = "lfm2.attention.head_count_kv";
        self.writer = std::mem::take(&mut self.writer).integers(key, &[0, 0, 1, 0]);
        self.tensor("token_embd_norm.weight", &[WIDTH]);
        for layer in 0..4 {
            self.tensor(&format!("blk.{layer}.attn_norm.weight"), &[WIDTH]);
            self.feed_forward(layer, 128);
            if layer == 2 {
                self.attention(layer, 2, 32);
            } else {
                self.tensor(&format!("blk.{layer}.shortconv.conv.weight"), &[3, WIDTH]);
                self.tensor(&format!("blk.{layer}.shortconv.in_proj.weight"), &[WIDTH, 3 * WIDTH]);
                self.tensor(&format!("blk.{layer}.shortconv.out_proj.weight"), &[WIDTH, WIDTH]);
            }
        }
    }
}
