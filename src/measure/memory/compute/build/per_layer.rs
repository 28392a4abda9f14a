//! Embeddings of a layer's own, as the later Gemmas have them (src/models/gemma4.cpp, gemma3n.cpp).

use super::super::graph::{Id, Side};
use super::Builder;

impl Builder<'_> {
    /// Embeddings of each layer, looked up and projected before the first (src/models/gemma4.cpp).
    pub(super) fn per_layer_inputs(&mut self, embeddings: Id) -> Option<Id> {
        let width = self.per_layer_width();
        let table = self.global("per_layer_token_embd.weight", Side::Host)?;
        let (tokens, layers) = (self.tokens, self.model.trunk);
        let (shape, side) = ([width, layers, tokens, 1], self.side(0));
        let ids = self.g.input([tokens, 1, 1, 1], 4);
        let looked_up = self.g.get_rows(table, ids);
        let looked_up = self.g.reshape(looked_up, shape);
        let scaled = self.g.each(&[looked_up]);
        self.g.expand(scaled);
        let projection = self.global("per_layer_model_proj.weight", side)?;
        let projected = self.g.matmul(projection, embeddings);
        let projected = self.g.each(&[projected]);
        let projected = self.g.reshape(projected, shape);
        let weight = self.global("per_layer_proj_norm.weight", side);
        let projected = self.norm_by(projected, weight, None, None);
        let sum = self.g.each(&[projected, scaled]);
        let sum = self.g.each(&[sum]);
        let turned = self.g.permute(sum, [0, 2, 1, 3]);
        // Not run before the first block reads it.
        Some(self.g.same(&[turned]))
    }

    /// Elements of a layer's own embedding.
    fn per_layer_width(&self) -> u64 {
        let row = self.model.tensors.get("per_layer_token_embd.weight").map_or(0, |ne| ne[0]);
        row / self.model.trunk.max(1)
    }

    pub(super) fn per_layer(&mut self, layer: usize, cur: Id, extra: Option<Id>) -> Id {
        let mut cur = cur;
        if let (Some(extra), Some(gate)) = (extra, self.weight(layer, "inp_gate.weight")) {
            let before = cur;
            cur = self.g.matmul(gate, cur);
            cur = self.g.each(&[cur]);
            let width = self.per_layer_width();
            let mine = self.g.view(extra, [width, self.tokens, 1, 1]);
            cur = self.g.each(&[cur, mine]);
            if let Some(projection) = self.weight(layer, "proj.weight") {
                cur = self.g.matmul(projection, cur);
            }
            cur = self.norm(cur, layer, "post_norm");
            cur = self.g.each(&[before, cur]);
        }
        if let Some(scale) = self.weight(layer, "layer_output_scale.weight") {
            cur = self.g.each(&[cur, scale]);
        }
        cur
    }
}
