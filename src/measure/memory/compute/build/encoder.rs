//! Encoders: the blocks of BERT's line, which normalize behind each part, and those of T5, whose decoder attends to what
//! the encoder made.

use super::super::super::shape::Attention;
use super::super::graph::{F16, F32, Id};
use super::Builder;

impl Builder<'_> {
    /// Whether blocks normalize behind each part.
    pub(super) fn is_bert(&self) -> bool {
        matches!(self.model.arch.as_str(), "bert" | "nomic-bert" | "nomic-bert-moe" | "jina-bert-v2" | "jina-bert-v3")
    }

    /// Whether blocks are T5's.
    pub(super) fn is_t5(&self) -> bool {
        matches!(self.model.arch.as_str(), "t5" | "t5encoder")
    }

    /// src/models/bert.cpp.
    pub(super) fn bert_layer(&mut self, layer: usize, mut input: Id, last: bool) -> Id {
        let Some(at) = self.model.layers[layer].attention else { return input };
        let (q, k, v) = self.qkv(layer, input, at);
        let [q, k] = [(q, "attn_q_norm", at.heads), (k, "attn_k_norm", at.kv_heads)].map(|(id, name, heads)| {
            let id = self.whole_row_norm(layer, name, id, heads);
            self.rope(layer, id)
        });
        let mut cur = self.attend(layer, q, Some((k, v)), at, true);
        if last {
            (cur, input) = (self.wanted_rows(cur), self.wanted_rows(input));
        }
        cur = self.g.each(&[cur, input]);
        cur = self.norm(cur, layer, "attn_output_norm");
        if self.has(layer, "attn_norm_2.weight") {
            cur = self.g.each(&[cur, input]);
            cur = self.norm(cur, layer, "attn_norm_2");
        }
        let high = self.feed_forward(layer, cur).unwrap_or(cur);
        cur = self.g.each(&[high, cur]);
        self.norm(cur, layer, "layer_output_norm")
    }

    /// A norm over all heads at once, where the block has it.
    pub(super) fn whole_row_norm(&mut self, layer: usize, name: &str, cur: Id, heads: u64) -> Id {
        if !self.has(layer, &format!("{name}.weight")) {
            return cur;
        }
        let ne = self.g.ne(cur);
        let row = self.g.reshape(cur, [ne[0].saturating_mul(heads), ne[2], 1, 1]);
        let row = self.norm(row, layer, name);
        self.g.reshape(row, ne)
    }

    /// src/models/t5.cpp: a block of the decoder, or of an encoder that stands alone.
    pub(super) fn t5_layer(&mut self, layer: usize, mut input: Id, last: bool) -> Id {
        let Some(at) = self.model.layers[layer].attention else { return input };
        let normed = self.norm(input, layer, "attn_norm");
        let (q, k, v) = self.qkv(layer, normed, at);
        self.score_bias = self.distance_bias(layer, at);
        let mut cur = self.attend(layer, q, Some((k, v)), at, true);
        if self.has(layer, "cross_attn_q.weight") {
            input = self.g.each(&[cur, input]);
            cur = self.cross_attention(layer, input, at);
        }
        if last {
            (cur, input) = (self.wanted_rows(cur), self.wanted_rows(input));
        }
        let residual = self.g.each(&[cur, input]);
        let normed = self.norm(residual, layer, "ffn_norm");
        let high = self.feed_forward(layer, normed).unwrap_or(normed);
        self.g.each(&[high, residual])
    }

    /// What is added to scores for the distance between tokens (`build_pos_bias`): blocks without a table of their own
    /// use the first's.
    fn distance_bias(&mut self, layer: usize, at: Attention) -> Option<Id> {
        let name = "attn_rel_b.weight";
        let table = if self.has(layer, name) { self.weight(layer, name) } else { self.weight(0, name) }?;
        let mask = self.inputs.attention[0]?.mask;
        let (cells, tokens) = (self.g.ne(mask)[0], self.tokens);
        let buckets = match self.inputs.buckets {
            Some(buckets) => buckets,
            None => self.g.input([cells, tokens, 1, 1], F32),
        };
        self.inputs.buckets = Some(buckets);
        let flat = self.g.reshape(buckets, [cells.saturating_mul(tokens), 1, 1, 1]);
        let bias = self.g.get_rows(table, flat);
        let bias = self.g.reshape(bias, [at.heads, cells, tokens, 1]);
        let bias = self.g.permute(bias, [2, 0, 1, 3]);
        Some(self.g.same(&[bias]))
    }

    /// Attention to what the encoder made, which is taken to be as long as the trained window (src/llama-graph.cpp,
    /// `build_inp_cross_embd`).
    fn cross_attention(&mut self, layer: usize, residual: Id, at: Attention) -> Id {
        let (tokens, encoded) = (self.tokens, self.model.trained);
        let (embeddings, mask) = match self.inputs.encoder {
            Some(inputs) => inputs,
            None => {
                let element = if self.settings.flash_attn { F16 } else { F32 };
                (self.g.input([self.model.embd, encoded, 1, 1], F32), self.g.input([encoded, tokens, 1, 1], element))
            }
        };
        self.inputs.encoder = Some((embeddings, mask));
        let normed = self.norm(residual, layer, "cross_attn_norm");
        let q = self.projected(layer, "cross_attn_q", normed).unwrap_or(normed);
        let k = self.projected(layer, "cross_attn_k", embeddings).unwrap_or(embeddings);
        let v = self.projected(layer, "cross_attn_v", embeddings).unwrap_or(embeddings);
        let q = self.g.reshape(q, [at.key, at.heads, tokens, 1]);
        let k = self.g.reshape(k, [at.key, at.kv_heads, encoded, 1]);
        let v = self.g.reshape(v, [at.value, at.kv_heads, encoded, 1]);
        for id in [q, k, v] {
            self.g.expand(id);
        }
        let cur = self.attention(q, (k, v), mask, None, None);
        self.projected(layer, "cross_attn_o", cur).unwrap_or(cur)
    }
}
