//! Kimi Delta Attention: three convolutions and a gated delta rule with a decay for each channel
//! (src/models/kimi-linear.cpp, src/models/bailingmoe3.cpp).

use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    pub(super) fn kimi_delta(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs, tokens) = (self.per_seq(), self.seqs, self.tokens);
        let (head, heads) = (self.model.number("kda.head_dim"), self.model.number("attention.head_count"));
        let inner = head.saturating_mul(heads);
        let (conv, state) = self.states(layer);
        let past = self.gather(conv, |_, _, _| None);
        let inputs = self.kda_inputs(layer, cur, inner);
        let mut heads_of = |part: usize, name: &str| {
            let convolved = self.kda_convolved(layer, (conv, past), inputs[part], name, inner);
            self.g.reshape(convolved, [head, heads, per_seq, seqs])
        };
        let [q, k, v] = [heads_of(0, "ssm_conv1d_q"), heads_of(1, "ssm_conv1d_k"), heads_of(2, "ssm_conv1d_v")];
        let decay = self.kda_low_rank(layer, cur, ["ssm_f_a", "ssm_f_b"]);
        let decay = self.biased(layer, "ssm_dt.bias", decay);
        // Softplus before the factor, or a sigmoid behind it.
        let soft = self.has(layer, "ssm_f_b.weight");
        let decay = if soft { self.g.each(&[decay]) } else { decay };
        let decay = self.g.reshape(decay, [head, heads, tokens, 1]);
        let a = self.weight(layer, "ssm_a").unwrap_or(decay);
        let decay = self.g.each(&[decay, a]);
        let decay = if soft { decay } else { self.g.each(&[decay]) };
        let decay = self.g.reshape(decay, [head, heads, per_seq, seqs]);
        let beta = self.weight(layer, "ssm_beta.weight").map_or(cur, |weight| self.g.matmul(weight, cur));
        let beta = self.g.reshape(beta, [1, heads, per_seq, seqs]);
        let beta = self.g.each(&[beta]);
        let states = self.gather(state, |_, _, _| None);
        let states = self.g.reshape(states, [head, head, heads, seqs]);
        let (q, k) = (self.l2_norm(q), self.l2_norm(k));
        let rows = tokens.saturating_add(head.saturating_mul(seqs));
        let out = self.g.fresh([inner, rows, 1, 1], &[q, k, v, decay, beta, states]);
        self.keep_state(state, out, inner.saturating_mul(head));
        let output = self.g.view(out, [head, heads, per_seq, seqs]);
        let output = self.g.same(&[output]);
        let output = self.g.reshape(output, [head, heads, tokens, 1]);
        let normed = self.norm(output, layer, "ssm_norm");
        let gate = self.kda_low_rank(layer, cur, ["ssm_g_a", "ssm_g_b"]);
        let gate = self.g.reshape(gate, [head, heads, tokens, 1]);
        let gate = self.g.each(&[gate]);
        let gated = self.g.each(&[normed, gate]);
        let gated = self.g.fresh([inner, tokens, 1, 1], &[gated]);
        self.projected_out(layer, gated)
    }

    /// What the convolutions of queries, keys and values read: projections of their own, or parts of a common one.
    fn kda_inputs(&mut self, layer: usize, cur: Id, inner: u64) -> [Id; 3] {
        if let Some(fused) = self.weight(layer, "attn_qkv.weight") {
            let all = self.g.matmul(fused, cur);
            return [0, 1, 2].map(|_| {
                let part = self.g.view(all, [inner, self.tokens, 1, 1]);
                self.g.same(&[part])
            });
        }
        ["attn_q.weight", "attn_k.weight", "attn_v.weight"]
            .map(|name| self.weight(layer, name).map_or(cur, |weight| self.g.matmul(weight, cur)))
    }

    /// A convolution over time; the last inputs go back to the cache.
    fn kda_convolved(&mut self, layer: usize, (cache, past): (Id, Id), input: Id, name: &str, inner: u64) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let taps = self.model.number("ssm.conv_kernel").saturating_sub(1);
        // The pasts of queries, keys and values stand one behind the other for each sequence.
        let row = taps.saturating_mul(4);
        let all_rows = row.saturating_mul(inner).saturating_mul(3);
        let past = self.g.view_strided(past, [taps, inner, seqs, 1], [4, row, all_rows, all_rows.saturating_mul(seqs)]);
        let input = self.g.reshape(input, [inner, per_seq, seqs, 1]);
        let turned = self.g.permute(input, [1, 0, 2, 3]);
        let all = self.g.fresh([taps.saturating_add(per_seq), inner, seqs, 1], &[past, turned]);
        self.keep_conv(cache, all, taps, inner);
        let kernel = self.weight(layer, &format!("{name}.weight")).unwrap_or(all);
        let out = self.g.fresh([inner, per_seq, seqs, 1], &[all, kernel]);
        let out = self.g.reshape(out, [inner, self.tokens, 1, 1]);
        self.g.each(&[out])
    }

    /// A projection, through a narrower one where the block has both.
    fn kda_low_rank(&mut self, layer: usize, cur: Id, names: [&str; 2]) -> Id {
        names.into_iter().fold(cur, |cur, name| {
            self.weight(layer, &format!("{name}.weight")).map_or(cur, |weight| self.g.matmul(weight, cur))
        })
    }
}
