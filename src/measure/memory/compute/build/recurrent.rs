//! Recurrent parts: Mamba 1 and 2, gated delta nets, short convolutions, RWKV.

use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    /// The recurrent part of a block, by its tensors.
    pub(super) fn recurrent(&mut self, layer: usize, cur: Id) -> Id {
        if self.model.arch == "minimax-01" {
            self.lightning(layer, cur)
        } else if self.model.arch == "plamo2" {
            self.plamo_mamba(layer, cur)
        } else if self.has(layer, "shortconv.conv.weight") {
            self.short_convolution(layer, cur)
        } else if self.has(layer, "ssm_conv1d_q.weight") {
            self.kimi_delta(layer, cur)
        } else if self.has(layer, "ssm_x.weight") {
            self.mamba(layer, cur)
        } else if self.has(layer, "ssm_ba.weight") || self.has(layer, "ssm_beta.weight") {
            self.delta_net(layer, cur)
        } else if self.has(layer, "ssm_in.weight") {
            self.mamba2(layer, cur)
        } else {
            self.some_recurrence(layer, cur)
        }
    }

    pub(super) fn per_seq(&self) -> u64 {
        self.tokens / self.seqs.max(1)
    }

    /// The caches of a recurrent layer: rows of the convolution and of the state.
    pub(super) fn states(&mut self, layer: usize) -> (Id, Id) {
        let state =
            self.model.layers[layer].state.unwrap_or(super::super::super::shape::State { conv: 0, recurrent: 0 });
        let rows = self.settings.sequences().saturating_mul(self.settings.rollback.saturating_add(1));
        let side = self.cache_side(layer);
        let mut cache = |width: u64| self.g.cache([width, rows, 1, 1], width.saturating_mul(4), side);
        (cache(state.conv), cache(state.recurrent))
    }

    /// `build_rs`: the states of this batch, and a copy of the others. A `scan` reads them from the cache itself.
    pub(super) fn gather(&mut self, states: Id, scan: impl FnOnce(&mut Self, Id, Id) -> Option<Id>) -> Id {
        let width = self.g.ne(states)[0];
        let Some((copy, main, tail)) = self.inputs.state_copy else { return states };
        let shape = self.g.ne(states);
        let flat = self.g.reshape(states, shape);
        let first = self.g.view(flat, [width, 1, 1, 1]);
        let cleared = self.g.write(first, &[]);
        self.g.expand(cleared);
        let scanned = scan(self, flat, main);
        let ids = if scanned.is_some() { tail } else { copy };
        let all = self.g.get_rows(flat, ids);
        let result = scanned.unwrap_or_else(|| self.g.view(all, [width, self.seqs, 1, 1]));
        self.g.expand(result);
        let others = self.settings.sequences() - self.seqs.min(self.settings.sequences());
        let extra = self.g.view(all, [width, others, 1, 1]);
        let place = self.g.view(states, [width, others, 1, 1]);
        let write = self.g.write(place, &[extra]);
        self.g.expand(write);
        result
    }

    /// The inputs of the convolution with those kept before them; what is to be kept goes back to the cache.
    fn with_past(&mut self, cache: Id, cur: Id, channels: u64, taps: u64) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let past = self.gather(cache, |_, _, _| None);
        let past = self.g.reshape(past, [taps, channels, seqs, 1]);
        let turned = self.g.permute(cur, [1, 0, 2, 3]);
        let all = self.g.fresh([taps + per_seq, channels, seqs, 1], &[past, turned]);
        let nb = self.g.at(all).nb;
        let keep = self.g.view_strided(all, [taps, channels, seqs, 1], nb);
        let place = self.g.view(cache, [taps.saturating_mul(channels).saturating_mul(seqs), 1, 1, 1]);
        let write = self.g.write(place, &[keep]);
        self.g.expand(write);
        all
    }

    /// `ssm_conv`, bias, SiLU.
    pub(super) fn convolved(&mut self, layer: usize, all: Id, channels: u64) -> Id {
        let kernel = self.weight(layer, "ssm_conv1d.weight").unwrap_or(all);
        let cur = self.g.fresh([channels, self.per_seq(), self.seqs, 1], &[all, kernel]);
        let cur = self.biased(layer, "ssm_conv1d.bias", cur);
        self.g.each(&[cur])
    }

    /// Puts the last states back.
    pub(super) fn keep_state(&mut self, cache: Id, scanned: Id, width: u64) {
        let size = width.saturating_mul(self.seqs);
        let last = self.g.view(scanned, [size, 1, 1, 1]);
        let place = self.g.view(cache, [size, 1, 1, 1]);
        let write = self.g.write(place, &[last]);
        self.g.expand(write);
    }

    /// src/models/mamba-base.cpp, `build_mamba_layer`.
    fn mamba(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let inner = self.model.number("ssm.inner_size");
        let (size, rank) = (self.model.number("ssm.state_size"), self.model.number("ssm.time_step_rank"));
        let taps = self.model.number("ssm.conv_kernel").saturating_sub(1);
        let (conv, state) = self.states(layer);
        let embd = self.g.ne(cur)[0];
        let cur3 = self.g.reshape(cur, [embd, per_seq, seqs, 1]);
        let Some(weight) = self.weight(layer, "ssm_in.weight") else { return cur };
        // The past is gathered before the projection is run: the order of the source.
        let past = self.gather(conv, |_, _, _| None);
        let past = self.g.reshape(past, [taps, inner, seqs, 1]);
        let xz = self.g.matmul(weight, cur3);
        let nb = self.g.at(xz).nb;
        let x = self.g.view_strided(xz, [inner, per_seq, seqs, 1], nb);
        let z = self.g.view_strided(xz, [inner, per_seq, seqs, 1], nb);
        let turned = self.g.permute(x, [1, 0, 2, 3]);
        let all = self.g.fresh([taps + per_seq, inner, seqs, 1], &[past, turned]);
        self.keep_conv(conv, all, taps, inner);
        let x = self.convolved(layer, all, inner);
        let Some(weight) = self.weight(layer, "ssm_x.weight") else { return cur };
        let joint = self.g.matmul(weight, x);
        let nb = self.g.at(joint).nb;
        let mut dt = self.g.view_strided(joint, [rank, per_seq, seqs, 1], nb);
        let strides = [nb[0], size.saturating_mul(4), nb[1], nb[2]];
        let mut b = self.g.view_strided(joint, [size, 1, per_seq, seqs], strides);
        let mut c = self.g.view_strided(joint, [size, 1, per_seq, seqs], strides);
        if self.model.number("ssm.dt_b_c_rms") != 0 || self.has(layer, "ssm_dt_norm.weight") {
            dt = self.norm(dt, layer, "ssm_dt_norm");
            b = self.norm(b, layer, "ssm_b_norm");
            c = self.norm(c, layer, "ssm_c_norm");
        } else {
            dt = self.g.same(&[dt]);
        }
        let dt = match self.weight(layer, "ssm_dt.weight") {
            Some(weight) => self.g.matmul(weight, dt),
            None => dt,
        };
        let dt = self.biased(layer, "ssm_dt.bias", dt);
        let x4 = self.g.reshape(x, [1, inner, per_seq, seqs]);
        let a = self.weight(layer, "ssm_a").unwrap_or(x);
        let total = inner.saturating_mul(self.tokens).saturating_add(size.saturating_mul(inner).saturating_mul(seqs));
        let scanned = self.gather(state, |builder, states, ids| {
            let rows = builder.g.ne(states)[1];
            let states = builder.g.reshape(states, [size, 1, inner, rows]);
            Some(builder.g.fresh([total, 1, 1, 1], &[states, x4, dt, a, b, c, ids]))
        });
        self.keep_state(state, scanned, size.saturating_mul(inner));
        let y = self.g.reshape(scanned, [inner, per_seq, seqs, 1]);
        let d = self.weight(layer, "ssm_d").unwrap_or(x);
        let skip = self.g.each(&[x, d]);
        let y = self.g.each(&[y, skip]);
        let z = self.g.same(&[z]);
        let y = self.g.same(&[z, y]);
        self.out_projection(layer, y)
    }

    pub(super) fn keep_conv(&mut self, cache: Id, all: Id, taps: u64, channels: u64) {
        let nb = self.g.at(all).nb;
        let keep = self.g.view_strided(all, [taps, channels, self.seqs, 1], nb);
        let place = self.g.view(cache, [taps.saturating_mul(channels).saturating_mul(self.seqs), 1, 1, 1]);
        let write = self.g.write(place, &[keep]);
        self.g.expand(write);
    }

    pub(super) fn out_projection(&mut self, layer: usize, y: Id) -> Id {
        let cur = match self.weight(layer, "ssm_out.weight") {
            Some(weight) => self.g.matmul(weight, y),
            None => y,
        };
        let width = self.g.ne(cur)[0];
        self.g.reshape(cur, [width, self.tokens, 1, 1])
    }

    /// A scan by heads, from the state kept of each sequence: what comes out, with the new states behind it, which are kept.
    ///
    /// `by`: size of a state, width and number of heads.
    pub(super) fn scan(&mut self, layer: usize, state: Id, inputs: [Id; 4], inner: u64, by: [u64; 3]) -> Id {
        let ([x, dt, b, c], [size, head, heads]) = (inputs, by);
        let a = self.weight(layer, "ssm_a").unwrap_or(dt);
        let states = size.saturating_mul(inner).saturating_mul(self.seqs);
        let total = inner.saturating_mul(self.tokens).saturating_add(states);
        let scanned = self.gather(state, |builder, states, ids| {
            let rows = builder.g.ne(states)[1];
            let states = builder.g.reshape(states, [size, head, heads, rows]);
            Some(builder.g.fresh([total, 1, 1, 1], &[states, x, dt, a, b, c, ids]))
        });
        self.keep_state(state, scanned, size.saturating_mul(inner));
        scanned
    }

    /// src/models/mamba-base.cpp, `build_mamba2_layer`.
    fn mamba2(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let number = |key: &str| self.model.number(key);
        let (inner, size) = (number("ssm.inner_size"), number("ssm.state_size"));
        let (heads, groups) = (number("ssm.time_step_rank").max(1), number("ssm.group_count").max(1));
        let taps = number("ssm.conv_kernel").saturating_sub(1);
        let head = inner / heads;
        let channels = inner.saturating_add(groups.saturating_mul(size).saturating_mul(2));
        let (conv, state) = self.states(layer);
        let past = self.gather(conv, |_, _, _| None);
        let past = self.g.reshape(past, [taps, channels, seqs, 1]);
        let Some(weight) = self.weight(layer, "ssm_in.weight") else { return cur };
        let joint = self.g.matmul(weight, cur);
        let width = self.g.ne(joint)[0];
        let joint = self.g.reshape(joint, [width, per_seq, seqs, 1]);
        let nb = self.g.at(joint).nb;
        let by_head = [nb[0], head.saturating_mul(4), nb[1], nb[2]];
        let z = self.g.view_strided(joint, [head, heads, per_seq, seqs], by_head);
        let mixed = self.g.view_strided(joint, [channels, per_seq, seqs, 1], nb);
        let dt = self.g.view_strided(joint, [heads, per_seq, seqs, 1], nb);
        let turned = self.g.permute(mixed, [1, 0, 2, 3]);
        let all = self.g.fresh([taps + per_seq, channels, seqs, 1], &[past, turned]);
        self.keep_conv(conv, all, taps, channels);
        let mixed = self.convolved(layer, all, channels);
        let nb = self.g.at(mixed).nb;
        let x = self.g.view_strided(mixed, [head, heads, per_seq, seqs], [nb[0], head.saturating_mul(4), nb[1], nb[2]]);
        let by_group = [nb[0], size.saturating_mul(4), nb[1], nb[2]];
        let b = self.g.view_strided(mixed, [size, groups, per_seq, seqs], by_group);
        let c = self.g.view_strided(mixed, [size, groups, per_seq, seqs], by_group);
        let dt = self.g.same(&[dt]);
        let dt = self.biased(layer, "ssm_dt.bias", dt);
        let scanned = self.scan(layer, state, [x, dt, b, c], inner, [size, head, heads]);
        let y = self.g.reshape(scanned, [head, heads, per_seq, seqs]);
        let d = self.weight(layer, "ssm_d").unwrap_or(dt);
        let skip = self.g.each(&[x, d]);
        let y = self.g.each(&[y, skip]);
        let z = self.g.same(&[z]);
        let mut y = self.g.same(&[z, y]);
        if self.has(layer, "ssm_norm.weight") {
            y = self.g.reshape(y, [inner / groups, groups, per_seq, seqs]);
            y = self.norm(y, layer, "ssm_norm");
        }
        let y = self.g.reshape(y, [inner, self.tokens, 1, 1]);
        // No reshape behind it: its memory can be taken over.
        match self.weight(layer, "ssm_out.weight") {
            Some(weight) => self.g.matmul(weight, y),
            None => y,
        }
    }

    /// src/models/qwen3next.cpp, `build_layer_attn_linear`, and the same of qwen35.
    fn delta_net(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs, tokens) = (self.per_seq(), self.seqs, self.tokens);
        let number = |key: &str| self.model.number(key);
        let (inner, k_head) = (number("ssm.inner_size"), number("ssm.state_size"));
        let (v_heads, k_heads) = (number("ssm.time_step_rank").max(1), number("ssm.group_count").max(1));
        let taps = number("ssm.conv_kernel").saturating_sub(1);
        let v_head = inner / v_heads;
        let channels = inner.saturating_add(k_heads.saturating_mul(k_head).saturating_mul(2));
        let Some(weight) = self.weight(layer, "attn_qkv.weight").or_else(|| self.weight(layer, "ssm_in.weight")) else {
            return cur;
        };
        let mixed = self.g.matmul(weight, cur);
        let mixed = self.g.reshape(mixed, [channels, per_seq, seqs, 1]);
        let z = match self.weight(layer, "attn_gate.weight") {
            Some(weight) => self.g.matmul(weight, cur),
            None => self.g.fresh([inner, tokens, 1, 1], &[mixed]),
        };
        let (beta, gate) = self.delta_gates(layer, cur, v_heads);
        let (conv, state) = self.states(layer);
        let all = self.with_past(conv, mixed, channels, taps);
        let states = self.gather(state, |_, _, _| None);
        let states = self.g.reshape(states, [v_head, v_head, v_heads, seqs]);
        let mixed = self.convolved(layer, all, channels);
        let nb = self.g.at(mixed).nb;
        let by_head = |head: u64| [4, head.saturating_mul(4), nb[1], nb[1].saturating_mul(per_seq)];
        let mut q = self.g.view_strided(mixed, [k_head, k_heads, per_seq, seqs], by_head(k_head));
        let mut k = self.g.view_strided(mixed, [k_head, k_heads, per_seq, seqs], by_head(k_head));
        let v = self.g.view_strided(mixed, [v_head, v_heads, per_seq, seqs], by_head(v_head));
        (q, k) = (self.l2_norm(q), self.l2_norm(k));
        if k_heads != v_heads && self.has(layer, "ssm_ba.weight") {
            let times = v_heads / k_heads;
            [q, k] = [q, k].map(|id| {
                let id = self.g.reshape(id, [k_head, 1, k_heads, tokens]);
                let id = self.g.fresh([k_head, times, k_heads, tokens], &[id]);
                self.g.reshape(id, [k_head, v_heads, per_seq, seqs])
            });
        }
        let rows = tokens.saturating_add(v_head.saturating_mul(seqs));
        let out = self.g.fresh([v_head.saturating_mul(v_heads), rows, 1, 1], &[q, k, v, gate, beta, states]);
        let output = self.g.reshape(out, [v_head, v_heads, per_seq, seqs]);
        self.keep_state(state, out, v_head.saturating_mul(v_head).saturating_mul(v_heads));
        let z = self.g.reshape(z, [v_head, v_heads, per_seq, seqs]);
        let normed = self.norm(output, layer, "ssm_norm");
        let gated = self.g.each(&[z]);
        let cur = self.g.each(&[normed, gated]);
        let cur = self.g.reshape(cur, [inner, per_seq, seqs, 1]);
        self.out_projection(layer, cur)
    }

    /// `build_gdn_l2_norm`: an RMS norm, scaled.
    pub(super) fn l2_norm(&mut self, id: Id) -> Id {
        let normed = self.g.each(&[id]);
        self.g.each(&[normed])
    }

    /// Beta and the decay of a gated delta net.
    fn delta_gates(&mut self, layer: usize, cur: Id, heads: u64) -> (Id, Id) {
        let (per_seq, seqs) = (self.per_seq(), self.seqs);
        let shape = [1, heads, per_seq, seqs];
        let (beta, alpha) = if let Some(weight) = self.weight(layer, "ssm_ba.weight") {
            let joint = self.g.matmul(weight, cur);
            let b = self.g.reshape(joint, [heads, per_seq, seqs, 1]);
            let a = self.g.reshape(joint, [heads, per_seq, seqs, 1]);
            (self.g.same(&[b]), self.g.same(&[a]))
        } else {
            let [b, a] = ["ssm_beta.weight", "ssm_alpha.weight"].map(|name| {
                let weight = self.weight(layer, name).unwrap_or(cur);
                self.g.matmul(weight, cur)
            });
            (self.g.reshape(b, shape), self.g.reshape(a, [heads, per_seq, seqs, 1]))
        };
        let beta = self.g.each(&[beta]);
        let alpha = self.biased(layer, "ssm_dt.bias", alpha);
        let alpha = self.g.each(&[alpha]);
        let a = self.weight(layer, "ssm_a").unwrap_or(alpha);
        let gate = self.g.each(&[alpha, a]);
        (self.g.reshape(beta, shape), self.g.reshape(gate, shape))
    }

    /// src/models/lfm2.cpp, `build_shortconv_block`.
    fn short_convolution(&mut self, layer: usize, cur: Id) -> Id {
        let (per_seq, seqs, embd) = (self.per_seq(), self.seqs, self.model.embd);
        let taps = self.model.number("shortconv.l_cache").saturating_sub(1);
        let Some(weight) = self.weight(layer, "shortconv.in_proj.weight") else { return cur };
        let joint = self.g.matmul(weight, cur);
        let joint = self.g.reshape(joint, [embd.saturating_mul(3), per_seq, seqs, 1]);
        let nb = self.g.at(joint).nb;
        let [b, c, x] = [0, 1, 2].map(|_| self.g.view_strided(joint, [embd, per_seq, seqs, 1], nb));
        let bx = self.g.each(&[b, x]);
        let bx = self.g.permute(bx, [1, 0, 2, 3]);
        let (conv, _) = self.states(layer);
        let past = self.gather(conv, |_, _, _| None);
        let past = self.g.reshape(past, [taps, embd, seqs, 1]);
        let all = self.g.fresh([taps + per_seq, embd, seqs, 1], &[past, bx]);
        self.keep_conv(conv, all, taps, embd);
        let kernel = self.weight(layer, "shortconv.conv.weight").unwrap_or(all);
        let out = self.g.fresh([embd, per_seq, seqs, 1], &[all, kernel]);
        let y = self.g.each(&[c, out]);
        let cur = match self.weight(layer, "shortconv.out_proj.weight") {
            Some(weight) => self.g.matmul(weight, y),
            None => y,
        };
        self.g.reshape(cur, [embd, self.tokens, 1, 1])
    }

    /// A recurrence that is not known here: room for its widest projections at once, erring high.
    fn some_recurrence(&mut self, layer: usize, cur: Id) -> Id {
        let prefix = format!("blk.{layer}.");
        let widths =
            self.model.tensors.iter().filter(|(name, ne)| name.starts_with(&prefix) && ne[0] == self.model.embd);
        let total = widths.fold(self.model.embd, |sum: u64, (_, ne)| sum.saturating_add(ne[1]));
        // RWKV 7 keeps about twice as many intermediate results as RWKV 6.
        let times = if self.model.arch.ends_with("rwkv7") { 2 } else { 1 };
        let total = total.min(self.model.embd.saturating_mul(24)).saturating_mul(times);
        let (conv, state) = self.states(layer);
        let past = self.gather(conv, |_, _, _| None);
        let states = self.gather(state, |_, _, _| None);
        let high = self.g.fresh([total, self.tokens, 1, 1], &[cur, past, states]);
        let weight = self.g.weight([total, self.model.embd, 1, 1], self.side(layer));
        self.g.matmul(weight, high)
    }
}
