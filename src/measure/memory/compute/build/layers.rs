//! A block: what mixes tokens, then what works on each; residuals and norms between, by the tensors the block has.

use super::super::super::shape::Attention;
use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    /// One block; `extra` are the embeddings that some models add in every block.
    pub(super) fn layer(&mut self, layer: usize, input: Id, last: bool, extra: Option<Id>) -> Id {
        let model = self.model;
        let kind = &model.layers[layer];
        self.g.layer = Some(self.side(layer));
        if self.streams_of_embeddings() > 1 {
            return self.streamed_layer(layer, input, extra);
        }
        if self.is_rwkv() {
            return self.rwkv_layer(layer, input, last);
        }
        if self.is_bert() {
            return self.bert_layer(layer, input, last);
        }
        if self.is_t5() {
            return self.t5_layer(layer, input, last);
        }
        let input = self.deep_added(layer, input);
        let normed = self.pre_norm(layer, input);
        if kind.state.is_some() && kind.attention.is_some() {
            return self.both(layer, input, normed, last);
        }
        // A norm of attention's own beside that of the feed-forward part (src/models/falcon.cpp).
        let own = self.has(layer, "attn_norm_2.weight") && model.arch == "falcon";
        let reads = if own { self.norm(input, layer, "attn_norm_2") } else { normed };
        if model.arch == "smallthinker" {
            // The router reads what the block does, not what attention made of it.
            let router = self.weight(layer, "ffn_gate_inp.weight");
            self.early_logits = router.map(|router| self.g.matmul(router, input));
        }
        let mixed = match (kind.state.is_some(), kind.attention) {
            (true, _) => Some(self.recurrent(layer, normed)),
            (false, Some(at)) if at.heads > 0 || model.mla.is_some() => Some(self.attention_part(layer, reads, at)),
            _ => None,
        };
        let Some(mut mixed) = mixed else {
            if !self.has(layer, "attn_norm.weight") && self.has(layer, "ffn_norm.weight") {
                // Attention is left out (src/models/deci.cpp).
                let normed = self.norm(input, layer, "ffn_norm");
                let high = self.feed_forward(layer, normed).unwrap_or(normed);
                return self.g.each(&[high, input]);
            }
            // Neither: the block is a feed-forward part alone.
            let high = self.feed_forward(layer, normed).unwrap_or(normed);
            return self.g.each(&[high, input]);
        };
        let mut input = input;
        if last && self.style.early_rows {
            (mixed, input) = (self.wanted_rows(mixed), self.wanted_rows(input));
            self.early_logits = self.early_logits.map(|logits| self.wanted_rows(logits));
        }
        if model.arch == "minimax-01" {
            let normed = if last { self.wanted_rows(normed) } else { normed };
            return self.minimax_half(layer, normed, mixed);
        }
        if self.style.parallel && (self.model.arch == "gptneox" || !self.has(layer, "ffn_norm.weight")) {
            return self.parallel_half(layer, (input, normed, mixed), last);
        }
        self.second_half(layer, input, mixed, extra, last)
    }

    /// The feed-forward part beside attention: both read the same input.
    fn parallel_half(&mut self, layer: usize, (input, normed, mixed): (Id, Id, Id), last: bool) -> Id {
        let source = match self.model.arch.as_str() {
            "gptneox" => self.norm(input, layer, "ffn_norm"),
            _ if last && self.style.early_rows => self.wanted_rows(normed),
            _ => normed,
        };
        let high = self.feed_forward(layer, source).unwrap_or(source);
        let (first, second, third) = match self.model.arch.as_str() {
            "phi2" => (mixed, high, input),
            "falcon" | "plamo" => (high, mixed, input),
            _ => (high, input, mixed),
        };
        let sum = self.g.each(&[first, second]);
        self.g.each(&[sum, third])
    }

    fn pre_norm(&mut self, layer: usize, input: Id) -> Id {
        if self.style.swin {
            return input;
        }
        if !self.has(layer, "attn_norm.weight") && self.has(layer, "post_attention_norm.weight") {
            return input;
        }
        let normed = self.norm(input, layer, "attn_norm");
        if matches!(self.model.arch.as_str(), "qwen3next" | "qwen35" | "qwen35moe" | "kimi-linear") {
            self.g.expand(normed);
        }
        normed
    }

    /// Residual, feed-forward part and its residual.
    fn second_half(&mut self, layer: usize, input: Id, mixed: Id, extra: Option<Id>, last: bool) -> Id {
        let has_ffn_norm = self.has(layer, "ffn_norm.weight");
        let post_is_pre = !has_ffn_norm && self.has(layer, "attn_norm.weight");
        let mut mixed = mixed;
        if self.has(layer, "post_attention_norm.weight") && !post_is_pre {
            mixed = self.norm(mixed, layer, "post_attention_norm");
        }
        if !self.has_feed_forward(layer) {
            return self.g.each(&[mixed, input]);
        }
        for (name, here) in [("attn_output_norm", true), ("attn_norm", self.style.swin)] {
            if here && self.has(layer, &format!("{name}.weight")) {
                mixed = self.norm(mixed, layer, name);
            }
        }
        let residual = self.added(mixed, input, self.style.residual_first.0);
        if self.has(layer, "ffn_norm_exps.weight") {
            return self.arctic_half(layer, input, residual);
        }
        let mut cur = if self.style.bare_norms {
            self.norm_by(residual, None, None, None)
        } else if has_ffn_norm && !self.style.swin {
            self.norm(residual, layer, "ffn_norm")
        } else if self.style.swin {
            mixed
        } else if post_is_pre && self.has(layer, "post_attention_norm.weight") {
            self.norm(residual, layer, "post_attention_norm")
        } else {
            residual
        };
        cur = match self.side_by_side(layer, residual, cur) {
            Some(both) => both,
            None => self.feed_forward(layer, cur).unwrap_or(cur),
        };
        if self.style.swin {
            cur = self.norm(cur, layer, "ffn_norm");
        }
        // Grok's has two names (src/models/grok.cpp).
        let post = ["post_ffw_norm.weight", "layer_output_norm.weight"].into_iter().find(|name| self.has(layer, name));
        if let Some(post) = post {
            let weight = self.weight(layer, post);
            cur = self.norm_by(cur, weight, None, None);
        }
        cur = self.added(cur, residual, self.style.residual_first.1);
        if self.model.arch == "talkie" {
            // Every block adds the embeddings again, scaled.
            let skip = if last { self.wanted_rows(self.embedded) } else { self.embedded };
            let scale = self.weight(layer, "layer_output_scale.weight").unwrap_or(skip);
            let skip = self.g.each(&[skip, scale]);
            return self.g.each(&[cur, skip]);
        }
        cur = self.per_layer(layer, cur, extra);
        if self.loops_on(layer, last) {
            cur = self.norm_with(cur, "output_norm");
        }
        self.deep_stacked(layer, cur)
    }

    /// Two stacks of blocks in turn, the low one several times for each time of the high one (src/models/hrm-text.cpp).
    pub(super) fn stacks(&mut self, embeddings: Id) -> Id {
        let number = |key: &str| usize::try_from(self.model.number(key)).unwrap_or(usize::MAX).max(1);
        let (size, rounds) = (number("hrm.layers_per_stack"), number("hrm.l_cycles").saturating_add(1));
        let mut low = self.global("hrm.z_l_init", self.side(0)).unwrap_or(embeddings);
        let mut high = embeddings;
        let stacks = self.model.layers.len() / size;
        for stack in 0..stacks {
            let mut cur = self.g.each(&[high, low]);
            for layer in stack * size..(stack + 1) * size {
                cur = self.layer(layer, cur, false, None);
            }
            cur = self.norm_by(cur, None, None, None);
            if (stack + 1).is_multiple_of(rounds) { high = cur } else { low = cur }
        }
        high
    }

    /// Whether all blocks are run once more behind this one (src/models/nanbeige.cpp).
    fn loops_on(&self, layer: usize, last: bool) -> bool {
        let again = self.model.stored(layer + 1) < self.model.stored(layer);
        self.model.arch == "nanbeige" && !last && again && self.model.number("skip_loop_final_norm") == 0
    }

    /// Residuals are the normed inputs, scaled (src/models/minimax-01.cpp).
    fn minimax_half(&mut self, layer: usize, normed: Id, mixed: Id) -> Id {
        let residual = self.g.each(&[normed]);
        let residual = self.g.each(&[mixed, residual]);
        let normed = self.norm(residual, layer, "ffn_norm");
        let high = self.feed_forward(layer, normed).unwrap_or(normed);
        let residual = self.g.each(&[normed]);
        self.g.each(&[high, residual])
    }

    /// A dense part behind attention, and experts that read what the block did (src/models/arctic.cpp).
    fn arctic_half(&mut self, layer: usize, input: Id, residual: Id) -> Id {
        let normed = self.norm(residual, layer, "ffn_norm");
        let dense = self.dense(layer, normed, "").unwrap_or(normed);
        let dense = self.g.each(&[dense, residual]);
        let normed = self.norm(input, layer, "ffn_norm_exps");
        let routed = self.experts(layer, normed, None).unwrap_or(normed);
        self.g.each(&[routed, dense])
    }

    /// A result and the residual, in the order of the source.
    fn added(&mut self, cur: Id, residual: Id, residual_first: bool) -> Id {
        let cur = if self.style.residual_scale { self.g.each(&[cur]) } else { cur };
        if residual_first { self.g.each(&[residual, cur]) } else { self.g.each(&[cur, residual]) }
    }

    /// The first blocks of some models with eyes add a part of the input (src/models/qwen3vl.cpp).
    fn deep_stacked(&mut self, layer: usize, cur: Id) -> Id {
        if layer as u64 >= self.style.deepstack || !self.model.deepstack.is_empty() {
            return cur;
        }
        let part = self.g.view(self.looked_up, [self.model.embd, self.tokens, 1, 1]);
        self.g.each(&[cur, part])
    }

    /// Others say which block adds which part before it does anything; the first is the input itself.
    fn deep_added(&mut self, layer: usize, input: Id) -> Id {
        if layer == 0 || !self.model.deepstack.get(layer).is_some_and(Option::is_some) {
            return input;
        }
        let part = self.g.view(self.looked_up, [self.model.embd, self.tokens, 1, 1]);
        self.g.each(&[input, part])
    }

    fn has_feed_forward(&self, layer: usize) -> bool {
        ["ffn_down.weight", "ffn_down_exps.weight"].iter().any(|name| self.has(layer, name))
    }

    /// gemma4's experts beside a dense part, each with norms of its own (src/models/gemma4.cpp).
    fn side_by_side(&mut self, layer: usize, residual: Id, normed: Id) -> Option<Id> {
        if self.model.arch != "gemma4" || !self.has(layer, "ffn_gate_inp.weight") {
            return None;
        }
        let dense = self.dense(layer, normed, "")?;
        let dense = self.norm(dense, layer, "post_ffw_norm_1");
        let pre = self.norm(residual, layer, "pre_ffw_norm_2");
        let plain = self.g.each(&[residual]);
        let plain = self.g.each(&[plain]);
        let scale = self.weight(layer, "ffn_gate_inp.scale");
        let plain = scale.map_or(plain, |scale| self.g.each(&[plain, scale]));
        let router = self.weight(layer, "ffn_gate_inp.weight")?;
        let logits = self.g.matmul(router, plain);
        let routed = self.experts(layer, pre, Some(logits))?;
        let routed = self.norm(routed, layer, "post_ffw_norm_2");
        Some(self.g.each(&[dense, routed]))
    }

    /// Attention of any kind: plain, gated, or compressed.
    pub(super) fn attention_part(&mut self, layer: usize, normed: Id, at: Attention) -> Id {
        if self.model.mla.is_some() || self.has(layer, "attn_kv_a_mqa.weight") {
            return self.latent_attention(layer, normed, at);
        }
        if at.kv_heads == 0 {
            return self.projected_out(layer, normed);
        }
        if self.gated(layer, at) {
            return self.gated_attention(layer, normed, at);
        }
        if self.model.layers[layer].rows.is_empty() && self.model.layers.iter().any(|layer| !layer.rows.is_empty()) {
            // Reads another layer's cache.
            let q = self.projected(layer, "attn_q", normed).unwrap_or(normed);
            let q = self.g.reshape(q, [at.key, at.heads, self.tokens, 1]);
            let q = self.head_norm(layer, "attn_q_norm", q);
            let q = self.rope(layer, q);
            return self.attend(layer, q, None, at, true);
        }
        let (q, k, v) = self.qkv(layer, normed, at);
        let (q, k) = match self.model.arch.as_str() {
            "mpt" => (
                self.whole_row_norm(layer, "attn_q_norm", q, at.heads),
                self.whole_row_norm(layer, "attn_k_norm", k, at.kv_heads),
            ),
            _ => (self.head_norm(layer, "attn_q_norm", q), self.head_norm(layer, "attn_k_norm", k)),
        };
        let mut q = self.rope(layer, q);
        let mut k = self.rope(layer, k);
        if self.style.llama4 {
            (q, k) = self.llama4_heads(layer, q, k);
        }
        let v = if matches!(self.model.arch.as_str(), "gemma4" | "gemma3n") { self.g.each(&[v]) } else { v };
        if self.style.scaled_queries {
            q = self.g.each(&[q]);
        }
        q = self.tempered(q);
        if self.is_block_sparse(layer) {
            return self.block_sparse(layer, normed, (q, k, v), at);
        }
        let Some(gate) = self.weight(layer, "attn_gate.weight") else {
            return self.attend(layer, q, Some((k, v)), at, true);
        };
        // A gate beside the projections (src/models/afmoe.cpp, src/models/step35.cpp).
        let cur = self.attend(layer, q, Some((k, v)), at, false);
        let gate = self.g.matmul(gate, normed);
        let gate = self.g.each(&[gate]);
        let (shape, heads) = (self.g.ne(cur), at.heads.max(1));
        if self.g.ne(gate)[0] != at.heads {
            let cur = self.g.each(&[cur, gate]);
            return self.projected_out(layer, cur);
        }
        // One factor a head.
        let gate = self.g.reshape(gate, [1, heads, self.tokens, 1]);
        let cur = self.g.reshape(cur, [shape[0] / heads, heads, self.tokens, 1]);
        let cur = self.g.each(&[cur, gate]);
        let cur = self.g.reshape(cur, shape);
        self.projected_out(layer, cur)
    }

    /// src/models/llama4.cpp: blocks without rotation scale queries, the others may normalize heads.
    fn llama4_heads(&mut self, layer: usize, q: Id, k: Id) -> (Id, Id) {
        if self.turns(layer) {
            let normed = self.model.number("expert_count") != 128;
            return if normed { (self.g.each(&[q]), self.g.each(&[k])) } else { (q, k) };
        }
        let scale = self.attention_scale();
        (self.g.each(&[q, scale]), k)
    }

    /// What queries are scaled with by position.
    fn attention_scale(&mut self) -> Id {
        let scale = match self.inputs.attention_scale {
            Some(scale) => scale,
            None => self.g.input([1, 1, self.tokens, 1], 4),
        };
        self.inputs.attention_scale = Some(scale);
        scale
    }

    /// Queries scaled by position, where the file says so (src/models/mistral3.cpp, src/models/deepseek2.cpp).
    pub(super) fn tempered(&mut self, q: Id) -> Id {
        let asks = matches!(self.model.arch.as_str(), "mistral3" | "mistral4" | "deepseek2");
        if !asks || !self.model.has_number("attention.temperature_scale") {
            return q;
        }
        let scale = self.attention_scale();
        self.g.each(&[q, scale])
    }

    /// Whether the projection of queries holds a gate too (qwen3next, qwen35).
    fn gated(&self, layer: usize, at: Attention) -> bool {
        let width = at.heads.saturating_mul(at.key);
        self.model.tensor(layer, "attn_q.weight").is_some_and(|ne| ne[1] == width.saturating_mul(2) && width > 0)
    }

    /// src/models/qwen3next.cpp, `build_layer_attn`.
    fn gated_attention(&mut self, layer: usize, normed: Id, at: Attention) -> Id {
        let tokens = self.tokens;
        let full = self.projected(layer, "attn_q", normed).unwrap_or(normed);
        let full = self.g.reshape(full, [at.key * 2, at.heads, tokens, 1]);
        let nb = self.g.at(full).nb;
        let q = self.g.view_strided(full, [at.key, at.heads, tokens, 1], nb);
        let gate = self.g.view_strided(full, [at.key, at.heads, tokens, 1], nb);
        let k = self.projected(layer, "attn_k", normed).unwrap_or(normed);
        let v = self.projected(layer, "attn_v", normed).unwrap_or(normed);
        let k = self.g.reshape(k, [at.key, at.kv_heads, tokens, 1]);
        let v = self.g.reshape(v, [at.value, at.kv_heads, tokens, 1]);
        let q = self.head_norm(layer, "attn_q_norm", q);
        let k = self.head_norm(layer, "attn_k_norm", k);
        let (q, k) = (self.rope(layer, q), self.rope(layer, k));
        let cur = self.attend(layer, q, Some((k, v)), at, false);
        let gate = self.g.fresh([at.key.saturating_mul(at.heads), tokens, 1, 1], &[gate]);
        let gate = self.g.each(&[gate]);
        let cur = self.g.each(&[cur, gate]);
        self.projected_out(layer, cur)
    }

    /// Attention and a recurrent part side by side (src/models/falcon-h1.cpp).
    fn both(&mut self, layer: usize, input: Id, normed: Id, last: bool) -> Id {
        let Some(at) = self.model.layers[layer].attention else { return normed };
        let attended = self.attention_part(layer, normed, at);
        let again = self.norm(input, layer, "attn_norm");
        let scanned = self.recurrent(layer, again);
        let cur = self.g.each(&[attended, scanned]);
        let mut residual = self.g.each(&[cur, input]);
        if last && self.style.early_rows {
            residual = self.wanted_rows(residual);
        }
        let cur = self.norm(residual, layer, "ffn_norm");
        let cur = self.feed_forward(layer, cur).unwrap_or(cur);
        self.g.each(&[cur, residual])
    }
}
