//! Lightning attention: linear attention with a decay for each head, over blocks of tokens (src/models/minimax-01.cpp).

use super::super::graph::{F32, Id};
use super::Builder;

impl Builder<'_> {
    pub(super) fn lightning(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let heads = self.model.number("attention.head_count").max(1);
        let width = self.g.ne(cur)[0];
        let (conv, state) = self.states(layer);
        self.gather(conv, |_, _, _| None);
        let [q_decay, k_decay, diagonal, slopes] = self.decays(heads);
        let input = self.g.reshape(cur, [width, per_seq, 1, seqs]);
        let Some(fused) = self.weight(layer, "attn_qkv.weight") else { return cur };
        let joint = self.g.matmul(fused, input);
        let head = self.g.ne(joint)[0] / heads.saturating_mul(3);
        let joint = self.g.each(&[joint]);
        let joint = self.g.reshape(joint, [head.saturating_mul(3), heads, per_seq, seqs]);
        let nb = self.g.at(joint).nb;
        let [q, k, v] = [0; 3].map(|_| self.g.view_strided(joint, [head, heads, per_seq, seqs], nb));
        let old = self.gather(state, |_, _, _| None);
        let old = self.g.reshape(old, [head, head, heads, seqs]);
        let [q_decay, k_decay, diagonal] = [q_decay, k_decay, diagonal].map(|id| self.scaled_exp(id));
        let by_head = |builder: &mut Self, id: Id| builder.g.permute(id, [0, 2, 1, 3]);
        // What the state answers, and what the block's own tokens do.
        let decayed = self.g.each(&[q, q_decay]);
        let decayed = by_head(self, decayed);
        let from_state = self.g.matmul(old, decayed);
        let (q_heads, k_heads) = (by_head(self, q), by_head(self, k));
        let scores = self.g.matmul(k_heads, q_heads);
        let scores = self.g.each(&[scores, diagonal]);
        let v_turned = self.g.permute(v, [1, 2, 0, 3]);
        let v_turned = self.g.same(&[v_turned]);
        let from_block = self.g.matmul(v_turned, scores);
        let answers = self.g.each(&[from_state, from_block]);
        self.g.expand(answers);
        // The next state.
        let decay = self.g.each(&[slopes]);
        let decay = self.scaled_exp(decay);
        let decay = self.g.reshape(decay, [1, 1, heads, 1]);
        let kept = self.g.each(&[old, decay]);
        let keys = self.g.each(&[k, k_decay]);
        let keys = self.g.permute(keys, [1, 2, 0, 3]);
        let keys = self.g.same(&[keys]);
        let learned = self.g.matmul(keys, v_turned);
        let new = self.g.each(&[kept, learned]);
        let place = self.g.view(state, [head.saturating_mul(head).saturating_mul(heads).saturating_mul(seqs), 1, 1, 1]);
        let write = self.g.write(place, &[new]);
        self.g.expand(write);
        let answers = by_head(self, answers);
        let answers = self.g.same(&[answers]);
        let answers = self.g.reshape(answers, [head.saturating_mul(heads), per_seq, 1, seqs]);
        let normed = self.norm(answers, layer, "attn_norm_2");
        let gate = self.weight(layer, "attn_gate.weight").map_or(input, |weight| self.g.matmul(weight, input));
        let gate = self.g.each(&[gate]);
        let gated = self.g.each(&[gate, normed]);
        let out = self.projected_out(layer, gated);
        self.g.reshape(out, [width, self.tokens, 1, 1])
    }

    /// Decays of queries, of keys and between tokens of a block, and each head's slope: inputs that all blocks share.
    fn decays(&mut self, heads: u64) -> [Id; 4] {
        if let Some(decays) = self.inputs.decays {
            return decays;
        }
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let decays = [
            self.g.input([1, heads, per_seq, seqs], F32),
            self.g.input([1, heads, per_seq, seqs], F32),
            self.g.input([per_seq, per_seq, heads, seqs], F32),
            self.g.input([heads, 1, 1, 1], F32),
        ];
        self.inputs.decays = Some(decays);
        decays
    }

    fn scaled_exp(&mut self, id: Id) -> Id {
        let scaled = self.g.each(&[id]);
        self.g.each(&[scaled])
    }
}
