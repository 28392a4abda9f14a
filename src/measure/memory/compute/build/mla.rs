//! Multi-head latent attention, with the compressed cache or, in old files, unpacked before it
//! (src/models/deepseek2.cpp).

use super::super::super::shape::Attention;
use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    pub(super) fn latent_attention(&mut self, layer: usize, normed: Id, at: Attention) -> Id {
        let tokens = self.tokens;
        let rank = self.model.number("attention.kv_lora_rank");
        let joint = self.model.tensor(layer, "attn_kv_a_mqa.weight").map_or(rank, |ne| ne[1]);
        let turning = joint.saturating_sub(rank);
        let mla = self.model.mla;
        let (key, value) = mla.map_or((at.key, at.value), |mla| (mla.key, mla.value));
        let plain = key.saturating_sub(turning);
        let (low, q) = self.latent_queries(layer, normed);
        let chosen = self.chosen_cells(layer, normed, low);
        let q = self.g.reshape(q, [key, at.heads, tokens, 1]);
        let Some(weight) = self.weight(layer, "attn_kv_a_mqa.weight") else { return normed };
        let compressed = self.g.matmul(weight, normed);
        let nb = self.g.at(compressed).nb;
        let latent = self.g.view_strided(compressed, [rank, tokens, 1, 1], nb);
        let k_turning = self.g.view_strided(compressed, [turning, 1, tokens, 1], [nb[0], nb[1], nb[1], nb[2]]);
        let k_turning = self.rope(layer, k_turning);
        let latent = self.norm(latent, layer, "attn_kv_a_norm");
        if mla.is_none() {
            return self.unpacked(layer, q, latent, k_turning, (plain, turning, value), at);
        }
        let q_nb = self.g.at(q).nb;
        let q_plain = self.g.view_strided(q, [plain, at.heads, tokens, 1], q_nb);
        let q_turning = self.g.view_strided(q, [turning, at.heads, tokens, 1], q_nb);
        let q_turning = self.rope(layer, q_turning);
        let q_plain = self.g.permute(q_plain, [0, 2, 1, 3]);
        let absorb = match self.weight(layer, "attn_k_b.weight") {
            Some(weight) => weight,
            None => self.g.weight([plain, rank, at.heads, 1], self.side(layer)),
        };
        let absorbed = self.g.matmul(absorb, q_plain);
        let absorbed = self.g.permute(absorbed, [0, 2, 1, 3]);
        let q = self.g.fresh([joint, at.heads, tokens, 1], &[absorbed, q_turning]);
        let q = self.tempered(q);
        let latent = self.g.reshape(latent, [rank, 1, tokens, 1]);
        let k = self.g.fresh([joint, 1, tokens, 1], &[latent, k_turning]);
        self.attend_latent(layer, normed, (q, k, latent), chosen, at)
    }

    /// The compressed queries, if there are any, and the queries.
    fn latent_queries(&mut self, layer: usize, normed: Id) -> (Id, Id) {
        if let Some(weight) = self.weight(layer, "attn_q.weight") {
            return (normed, self.g.matmul(weight, normed));
        }
        let Some(first) = self.weight(layer, "attn_q_a.weight") else { return (normed, normed) };
        let low = self.g.matmul(first, normed);
        let low = self.norm(low, layer, "attn_q_a_norm");
        match self.weight(layer, "attn_q_b.weight") {
            Some(second) => (low, self.g.matmul(second, low)),
            None => (low, low),
        }
    }

    /// `build_attn` with the cache of keys alone.
    fn attend_latent(&mut self, layer: usize, normed: Id, qkv: (Id, Id, Id), chosen: Option<Id>, at: Attention) -> Id {
        let (q, k, v) = qkv;
        let rank = self.g.ne(v)[0];
        let Some(inputs) = self.inputs.attention[usize::from(at.sliding)] else { return q };
        for id in [q, v, k] {
            self.g.expand(id);
        }
        let (cache, _) = self.cache(layer);
        self.write_rows(cache, k, inputs.k_idxs);
        let joint = self.g.ne(k)[0];
        let keys = self.cached_keys(cache, joint, 1);
        let (ne, nb) = (self.g.ne(keys), self.g.at(keys).nb);
        let values = self.g.view_strided(keys, [rank, ne[1], ne[2], ne[3]], nb);
        let mask = chosen.map_or(inputs.mask, |chosen| self.sparse_mask(inputs.mask, chosen));
        let unpack = self.weight(layer, "attn_v_b.weight");
        let gate = self.weight(layer, "attn_gate.weight").map(|weight| self.g.matmul(weight, normed));
        let cur = self.attention(q, (keys, values), mask, None, unpack);
        let Some(gate) = gate else { return self.projected_out(layer, cur) };
        // One factor a head (src/models/bailingmoe3.cpp).
        let shape = self.g.ne(cur);
        let gate = self.g.reshape(gate, [1, at.heads, self.tokens, 1]);
        let gate = self.g.each(&[gate]);
        let split = self.g.reshape(cur, [shape[0] / at.heads.max(1), at.heads, self.tokens, 1]);
        let gated = self.g.each(&[split, gate]);
        let gated = self.g.fresh(shape, &[gated]);
        self.projected_out(layer, gated)
    }

    /// Old files: keys and values of every head are unpacked, then cached.
    fn unpacked(
        &mut self,
        layer: usize,
        q: Id,
        latent: Id,
        k_turning: Id,
        sizes: (u64, u64, u64),
        at: Attention,
    ) -> Id {
        let (plain, turning, value) = sizes;
        let tokens = self.tokens;
        let Some(weight) = self.weight(layer, "attn_kv_b.weight") else { return q };
        let both = self.g.matmul(weight, latent);
        let head = plain.saturating_add(value).saturating_mul(4);
        let row = head.saturating_mul(at.heads);
        let strides = [4, head, row, row.saturating_mul(tokens)];
        let k_plain = self.g.view_strided(both, [plain, at.heads, tokens, 1], strides);
        let v = self.g.view_strided(both, [value, at.heads, tokens, 1], strides);
        let v = self.g.same(&[v]);
        let q = self.rope(layer, q);
        let repeated = self.g.fresh([turning, at.heads, tokens, 1], &[k_turning]);
        let k = self.g.fresh([plain.saturating_add(turning), at.heads, tokens, 1], &[k_plain, repeated]);
        self.attend(layer, q, Some((k, v)), at, true)
    }
}
