//! PLaMo 2's recurrent blocks: Mamba with heads, whose projections stand head by head (src/models/plamo2.cpp,
//! `build_plamo2_mamba_layer`).

use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    pub(super) fn plamo_mamba(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let number = |key: &str| self.model.number(key);
        let (inner, size, heads) =
            (number("ssm.inner_size"), number("ssm.state_size"), number("ssm.time_step_rank").max(1));
        let taps = number("ssm.conv_kernel").saturating_sub(1);
        let head = inner / heads;
        let (conv, state) = self.states(layer);
        let past = self.gather(conv, |_, _, _| None);
        let past = self.g.reshape(past, [taps, inner, seqs, 1]);
        let width = self.g.ne(cur)[0];
        let input = self.g.reshape(cur, [width, per_seq, seqs, 1]);
        let Some(weight) = self.weight(layer, "ssm_in.weight") else { return cur };
        let joint = self.g.matmul(weight, input);
        let joint = self.g.fresh([head.saturating_mul(2), heads, per_seq, seqs], &[joint]);
        let nb = self.g.at(joint).nb;
        let part = [head, heads, per_seq, seqs];
        let x = self.g.view_strided(joint, part, nb);
        let x = self.g.fresh([inner, per_seq, seqs, 1], &[x]);
        let z = self.g.view_strided(joint, part, nb);
        let turned = self.g.permute(x, [1, 0, 2, 3]);
        let all = self.g.fresh([taps.saturating_add(per_seq), inner, seqs, 1], &[past, turned]);
        self.keep_conv(conv, all, taps, inner);
        let x = self.convolved(layer, all, inner);
        let [b, c, dt] = self.plamo_steps(layer, x, size);
        let x = self.g.view_strided(x, part, [4, head.saturating_mul(4), self.g.at(x).nb[1], self.g.at(x).nb[2]]);
        let scanned = self.scan(layer, state, [x, dt, b, c], inner, [size, head, heads]);
        let row = inner.saturating_mul(4);
        let strides = [4, head.saturating_mul(4), row, row.saturating_mul(per_seq)];
        let y = self.g.view_strided(scanned, part, strides);
        let d = self.weight(layer, "ssm_d").unwrap_or(x);
        // A view of a weight is not followed to its device.
        let d = self.g.reshape(d, [1, heads, 1, 1]);
        let skip = self.g.each(&[x, d]);
        let y = self.g.each(&[y, skip]);
        let z = self.g.same(&[z]);
        let y = self.g.same(&[z, y]);
        let y = self.g.reshape(y, [inner, per_seq, seqs, 1]);
        self.out_projection(layer, y)
    }

    /// What is written, what is read, and how large the steps are.
    fn plamo_steps(&mut self, layer: usize, x: Id, size: u64) -> [Id; 3] {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let Some(weight) = self.weight(layer, "ssm_x.weight") else { return [x; 3] };
        let joint = self.g.matmul(weight, x);
        let [width, ..] = self.g.ne(joint);
        let nb = self.g.at(joint).nb;
        let names = [("ssm_b_norm", size), ("ssm_c_norm", size), ("ssm_dt_norm", width.saturating_sub(size * 2))];
        let [b, c, dt] = names.map(|(name, width)| {
            let part = self.g.view_strided(joint, [width, per_seq, seqs, 1], nb);
            self.norm(part, layer, name)
        });
        let dt = self.weight(layer, "ssm_dt.weight").map_or(dt, |weight| self.g.matmul(weight, dt));
        let dt = self.biased(layer, "ssm_dt.bias", dt);
        let [b, c] = [b, c].map(|id| self.g.reshape(id, [size, 1, per_seq, seqs]));
        [b, c, dt]
    }
}
