//! gemma3n: several streams of embeddings of which one is active, predicted and corrected in each block
//! (src/models/gemma3n.cpp).

use super::super::graph::{F32, Id};
use super::Builder;

impl Builder<'_> {
    /// How many streams there are; 1 for all other models.
    pub(super) fn streams_of_embeddings(&self) -> u64 {
        if self.model.arch != "gemma3n" {
            return 1;
        }
        let projections = self.model.tensors.get("altup_proj.weight").map_or(1, |ne| ne[2]);
        projections.saturating_add(1).clamp(2, 16)
    }

    fn flat(&self) -> [u64; 4] {
        [self.model.embd, self.tokens, 1, 1]
    }

    /// A stream of `[embd, tokens, streams]`.
    fn stream(&mut self, all: Id) -> Id {
        let ne = self.flat();
        self.g.view(all, ne)
    }

    /// `calc_magnitude`.
    fn magnitude(&mut self, id: Id) -> Id {
        let ne = self.g.ne(id);
        let squared = self.g.each(&[id]);
        let sums = self.g.fresh([1, ne[1], ne[2], 1], &[squared]);
        self.g.each(&[sums])
    }

    fn rescaled(&mut self, id: Id, target: Id) -> Id {
        let own = self.magnitude(id);
        let scaled = self.g.each(&[id, target]);
        self.g.each(&[scaled, own])
    }

    /// The streams before the first block.
    pub(super) fn spread_embeddings(&mut self, input: Id) -> Id {
        let (embd, tokens, count) = (self.model.embd, self.tokens, self.streams_of_embeddings());
        let side = self.output_side();
        let target = self.magnitude(input);
        let repeated = self.g.fresh([embd, tokens, count - 1, 1], &[input]);
        let Some(weight) = self.global("altup_proj.weight", side) else { return input };
        let added = self.g.matmul(weight, repeated);
        let added = self.rescaled(added, target);
        self.g.fresh([embd, tokens, count, 1], &[input, added])
    }

    /// One stream again, behind the last block.
    pub(super) fn joined_embeddings(&mut self, all: Id) -> Id {
        let (embd, tokens, count) = (self.model.embd, self.tokens, self.streams_of_embeddings());
        let side = self.output_side();
        let active = self.stream(all);
        let target = self.magnitude(active);
        let others = self.g.view(all, [embd, tokens, count - 1, 1]);
        let Some(weight) = self.global("altup_unembd_proj.weight", side) else { return active };
        let others = self.g.matmul(weight, others);
        let others = self.rescaled(others, target);
        let mut cur = self.stream(all);
        for _ in 1..count {
            let other = self.stream(others);
            cur = self.g.each(&[cur, other]);
        }
        self.g.each(&[cur])
    }

    fn router(&mut self, layer: usize, id: Id) -> Id {
        let normed = self.norm(id, layer, "altup_router_norm");
        let scaled = self.g.each(&[normed]);
        let weight = self.weight(layer, "altup_router.weight").unwrap_or(scaled);
        let routed = self.g.matmul(weight, scaled);
        self.g.each(&[routed])
    }

    fn predicted(&mut self, layer: usize, cur: Id) -> Id {
        let (embd, tokens, count) = (self.model.embd, self.tokens, self.streams_of_embeddings());
        let active = self.stream(cur);
        let modalities = self.router(layer, active);
        let weight = self.weight(layer, "altup_predict_coef.weight").unwrap_or(modalities);
        let coefficients = self.g.matmul(weight, modalities);
        let coefficients = self.g.reshape(coefficients, [count, count, tokens, 1]);
        let turned = self.g.permute(cur, [1, 2, 0, 3]);
        let turned = self.g.same(&[turned]);
        let predictions = self.g.fresh([count, embd, tokens, 1], &[turned, coefficients]);
        let back = self.g.permute(predictions, [2, 0, 1, 3]);
        let back = self.g.fresh([embd, tokens, count, 1], &[back]);
        self.g.each(&[back, cur])
    }

    fn corrected(&mut self, layer: usize, predictions: Id, activated: Id) -> Id {
        let (embd, tokens, count) = (self.model.embd, self.tokens, self.streams_of_embeddings());
        let modalities = self.router(layer, activated);
        let active = self.stream(predictions);
        let innovation = self.g.each(&[activated, active]);
        let weight = self.weight(layer, "altup_correct_coef.weight").unwrap_or(modalities);
        let coefficients = self.g.matmul(weight, modalities);
        let coefficients = self.g.each(&[coefficients]);
        let turned = self.g.permute(coefficients, [1, 0, 2, 3]);
        let turned = self.g.fresh([1, tokens, count, 1], &[turned]);
        let innovation = self.g.fresh([embd, tokens, count, 1], &[innovation]);
        let corrected = self.g.each(&[innovation, turned]);
        self.g.each(&[corrected, predictions])
    }

    /// A block on all streams.
    pub(super) fn streamed_layer(&mut self, layer: usize, input: Id, extra: Option<Id>) -> Id {
        let Some(at) = self.model.layers[layer].attention else { return input };
        let (embd, tokens, count) = (self.model.embd, self.tokens, self.streams_of_embeddings());
        let predictions = self.predicted(layer, input);
        let active = self.stream(predictions);
        let normed = self.norm(active, layer, "attn_norm");
        let laurel = self.laurel(layer, normed);
        let cur = self.attention_part(layer, normed, at);
        let cur = self.norm(cur, layer, "post_attention_norm");
        let cur = self.g.each(&[cur, active]);
        let sum = self.g.each(&[cur, laurel]);
        let attended = self.g.each(&[sum]);
        let cur = self.norm(attended, layer, "ffn_norm");
        let cur = self.streamed_feed_forward(layer, cur);
        let weight = self.weight(layer, "post_ffw_norm.weight");
        let cur = self.norm_by(cur, weight, None, None);
        let cur = self.g.each(&[cur, attended]);
        let corrected = self.corrected(layer, predictions, cur);
        let first = self.first_prediction(layer, corrected, extra);
        let head = self.stream(corrected);
        let rest = self.g.view(corrected, [embd, tokens, count - 1, 1]);
        let rest = self.g.each(&[rest, first]);
        self.g.fresh([embd, tokens, count, 1], &[head, rest])
    }

    fn laurel(&mut self, layer: usize, cur: Id) -> Id {
        let mut low = cur;
        for name in ["laurel_l.weight", "laurel_r.weight"] {
            if let Some(weight) = self.weight(layer, name) {
                low = self.g.matmul(weight, low);
            }
        }
        let low = self.norm(low, layer, "laurel_post_norm");
        self.g.each(&[low, cur])
    }

    /// The first blocks keep only the largest activations.
    fn streamed_feed_forward(&mut self, layer: usize, cur: Id) -> Id {
        let part = |builder: &mut Self, name: &str| {
            let weight = builder.weight(layer, name).unwrap_or(cur);
            builder.g.matmul(weight, cur)
        };
        let up = part(self, "ffn_up.weight");
        let mut gate = part(self, "ffn_gate.weight");
        if layer < 10 {
            gate = self.sparse(gate);
        }
        let gate = self.g.each(&[gate]);
        let high = self.g.each(&[up, gate]);
        let weight = self.weight(layer, "ffn_down.weight").unwrap_or(high);
        self.g.matmul(weight, high)
    }

    /// `gaussian_topk`.
    fn sparse(&mut self, gate: Id) -> Id {
        let column = [1, self.tokens, 1, 1];
        let mean = self.g.fresh(column, &[gate]);
        let apart = self.g.each(&[gate, mean]);
        let squared = self.g.each(&[apart]);
        let sums = self.g.fresh(column, &[squared]);
        let spread = self.g.each(&[sums]);
        let spread = self.g.each(&[spread]);
        let spread = self.g.each(&[spread]);
        let cutoff = self.g.each(&[mean, spread]);
        let above = self.g.each(&[gate, cutoff]);
        self.g.each(&[above])
    }

    fn first_prediction(&mut self, layer: usize, corrected: Id, extra: Option<Id>) -> Id {
        let width = self.model.number("embedding_length_per_layer_input");
        let mut first = self.stream(corrected);
        if let Some(scale) = self.weight(layer, "altup_correct_scale.weight") {
            first = self.g.each(&[first, scale]);
        }
        if let Some(gate) = self.weight(layer, "inp_gate.weight") {
            first = self.g.matmul(gate, first);
        }
        first = self.g.each(&[first]);
        if let Some(extra) = extra {
            let mine = self.g.view_strided(extra, [width, self.tokens, 1, 1], [F32, width * 4, 0, 0]);
            first = self.g.each(&[first, mine]);
        }
        if let Some(projection) = self.weight(layer, "proj.weight") {
            first = self.g.matmul(projection, first);
        }
        self.norm(first, layer, "post_norm")
    }
}
