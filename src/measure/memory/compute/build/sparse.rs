//! Sparse attention by a lightning indexer: which cells each token reads (src/models/deepseek32.cpp, and `build_attn`
//! with `llm_graph_input_attn_k_dsa` in src/llama-graph.cpp).

use super::super::super::settings::Window;
use super::super::graph::{F16, F32, I64, Id};
use super::Builder;

/// What the indexer reads besides its weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexerInputs {
    k_idxs: Id,
    mask: Id,
    rotation: Id,
}

impl Builder<'_> {
    fn indexer_inputs(&mut self, head: u64) -> IndexerInputs {
        if let Some(inputs) = self.inputs.indexer {
            return inputs;
        }
        let Window { full, streams, .. } = *self.window;
        let mut size = 64;
        while head > 0 && head.is_multiple_of(2 * size) {
            size *= 2;
        }
        let inputs = IndexerInputs {
            k_idxs: self.g.input([self.tokens, 1, 1, 1], I64),
            mask: self.g.input([full, self.tokens / streams, 1, streams], F16),
            rotation: self.g.input([size, size, 1, 1], F32),
        };
        self.inputs.indexer = Some(inputs);
        inputs
    }

    /// The cells that each token reads, of a block that owns an indexer; else those of the block before.
    pub(super) fn chosen_cells(&mut self, layer: usize, normed: Id, low: Id) -> Option<Id> {
        let Some(weight) = self.weight(layer, "indexer.attn_q_b.weight") else { return self.chosen };
        let (head, heads) =
            (self.model.number("attention.indexer.key_length"), self.model.number("attention.indexer.head_count"));
        let tokens = self.tokens;
        let inputs = self.indexer_inputs(head);
        let q = self.g.matmul(weight, low);
        let q = self.g.reshape(q, [head, heads, tokens, 1]);
        let q = self.rope(layer, q);
        let weight = self.weight(layer, "indexer.attn_k.weight")?;
        let k = self.g.matmul(weight, normed);
        // A plain norm, whatever the model's others are.
        let rms = std::mem::replace(&mut self.style.rms, false);
        let k = self.norm(k, layer, "indexer.k_norm");
        self.style.rms = rms;
        let k = self.g.reshape(k, [head, 1, tokens, 1]);
        let k = self.rope(layer, k);
        let (q, k) = (self.g.matmul(inputs.rotation, q), self.g.matmul(inputs.rotation, k));
        let Window { full, streams, .. } = *self.window;
        let row = self.settings.type_k.row(head).unwrap_or(head.saturating_mul(2));
        let side = self.cache_side(layer);
        let cache = self.g.cache([head, full, streams, 1], row, side);
        self.write_rows(cache, k, inputs.k_idxs);
        let weight = self.weight(layer, "indexer.proj.weight")?;
        let weights = self.g.matmul(weight, normed);
        let keys = self.cached_keys(cache, head, 1);
        let per_stream = tokens / streams;
        let q = self.g.reshape(q, [head, heads, per_stream, streams]);
        let weights = self.g.reshape(weights, [heads, per_stream, 1, streams]);
        let weights = self.g.each(&[weights]);
        let scores = self.g.fresh([full, per_stream, 1, streams], &[q, keys, weights, inputs.mask]);
        let count = self.model.number("attention.indexer.top_k").min(full);
        let top = self.g.fresh([count, per_stream, 1, streams], &[scores]);
        self.chosen = Some(self.g.same(&[top]));
        self.chosen
    }

    /// The mask, closed but for the chosen cells.
    pub(super) fn sparse_mask(&mut self, mask: Id, chosen: Id) -> Id {
        let (ne, element) = (self.g.ne(mask), self.g.at(mask).nb[0]);
        let all = self.g.each_of(element, &[mask]);
        let column = self.g.reshape(all, [1, ne[0], ne[1], ne[3]]);
        let count = self.g.ne(chosen);
        let ids = self.g.reshape(chosen, [count[0], count[1], count[3], 1]);
        let zeros = self.g.constant([1, count[0], count[1], count[3]]);
        let zeros = self.g.each(&[zeros]);
        let written = self.g.write(column, &[zeros, ids]);
        let written = self.g.reshape(written, ne);
        self.g.each_of(element, &[written, mask])
    }
}
