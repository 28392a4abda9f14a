//! RWKV 6 and 7: whole blocks of time mix and channel mix (src/models/rwkv6-base.cpp, rwkv7-base.cpp, rwkv6.cpp,
//! rwkv7.cpp, arwkv7.cpp).

use super::super::graph::Id;
use super::Builder;

impl Builder<'_> {
    /// Whether blocks are RWKV's.
    pub(super) fn is_rwkv(&self) -> bool {
        matches!(self.model.arch.as_str(), "rwkv6" | "rwkv7" | "arwkv7")
    }

    /// One block.
    pub(super) fn rwkv_layer(&mut self, layer: usize, input: Id, last: bool) -> Id {
        let (embd, tokens, seqs) = (self.model.embd, self.tokens, self.seqs);
        let per_seq = tokens / seqs.max(1);
        let plain = self.model.arch != "arwkv7";
        let shifts = if plain { 2 } else { 1 };
        let input = self.g.reshape(input, [embd, per_seq, seqs, 1]);
        let (conv, _) = self.states(layer);
        let shift = self.gather(conv, |_, _, _| None);
        let shift = self.g.reshape(shift, [embd, shifts, seqs, 1]);
        let [first, second] = [0, 1].map(|_| self.one_token(shift));
        let normed = self.norm(input, layer, "attn_norm");
        let past = self.before(if plain { first } else { shift }, normed);
        let mixed = match self.model.arch.as_str() {
            "rwkv6" => self.time_mix_6(layer, normed, past),
            _ => self.time_mix_7(layer, normed, past),
        };
        if !plain {
            let kept = self.one_token(normed);
            self.keep_shift(conv, kept, 1);
        }
        let mut inner = self.g.each(&[mixed, input]);
        if !plain {
            inner = self.g.reshape(inner, [embd, tokens, 1, 1]);
            if last {
                inner = self.wanted_rows(inner);
            }
            let normed = self.norm(inner, layer, "ffn_norm");
            let high = self.feed_forward(layer, normed).unwrap_or(normed);
            return self.g.each(&[high, inner]);
        }
        let mut normed_2 = self.norm(inner, layer, "attn_norm_2");
        let mut past = self.before(second, normed_2);
        let [a, b] = [normed, normed_2].map(|id| self.one_token(id));
        let kept = self.g.fresh([embd, 2, seqs, 1], &[a, b]);
        self.keep_shift(conv, kept, 2);
        [inner, normed_2, past] = [inner, normed_2, past].map(|id| self.g.reshape(id, [embd, tokens, 1, 1]));
        if last {
            [inner, normed_2, past] = [inner, normed_2, past].map(|id| self.wanted_rows(id));
        }
        let cur = self.channel_mix(layer, normed_2, past);
        let cur = self.g.each(&[cur, inner]);
        let every = self.model.number("rescale_every_n_layers");
        if every != 0 && (layer as u64 + 1).is_multiple_of(every) { self.g.each(&[cur]) } else { cur }
    }

    /// A view of one token a sequence.
    fn one_token(&mut self, of: Id) -> Id {
        let nb = self.g.at(of).nb;
        self.g.view_strided(of, [self.model.embd, 1, self.seqs, 1], nb)
    }

    /// Each token's predecessor: those kept, then all but the last.
    fn before(&mut self, kept: Id, cur: Id) -> Id {
        let (embd, per_seq, seqs) = (self.model.embd, self.tokens / self.seqs.max(1), self.seqs);
        let nb = self.g.at(cur).nb;
        let rest = self.g.view_strided(cur, [embd, per_seq.saturating_sub(1), seqs, 1], nb);
        self.g.fresh([embd, per_seq, seqs, 1], &[kept, rest])
    }

    fn keep_shift(&mut self, cache: Id, kept: Id, count: u64) {
        let size = self.model.embd.saturating_mul(self.seqs).saturating_mul(count);
        let flat = self.g.view(kept, [size, 1, 1, 1]);
        let place = self.g.view(cache, [size, 1, 1, 1]);
        let write = self.g.write(place, &[flat]);
        self.g.expand(write);
    }

    /// A block's weight of time mix; one that is missing is of no size.
    fn mix(&mut self, layer: usize, name: &str) -> Id {
        let side = self.side(layer);
        match self.weight(layer, &format!("time_mix_{name}.weight")) {
            Some(weight) => weight,
            None => self.g.weight([1, 1, 1, 1], side),
        }
    }

    fn by_mix(&mut self, layer: usize, name: &str, cur: Id) -> Id {
        let weight = self.mix(layer, name);
        self.g.matmul(weight, cur)
    }

    fn steps(&mut self, cur: Id, count: u32) -> Id {
        (0..count).fold(cur, |cur, _| self.g.each(&[cur]))
    }

    /// The scan and what goes back to the cache; the output as `[embd, tokens]`.
    fn wkv(&mut self, layer: usize, operands: &[Id]) -> Id {
        let (_, state) = self.states(layer);
        let states = self.gather(state, |_, _, _| None);
        let head = self.model.number("wkv.head_size").max(1);
        let (embd, tokens, seqs) = (self.model.embd, self.tokens, self.seqs);
        let all: Vec<Id> = operands.iter().copied().chain([states]).collect();
        let rows = tokens.saturating_add(head.saturating_mul(seqs));
        let out = self.g.fresh([embd, rows, 1, 1], &all);
        let cur = self.g.view(out, [embd.saturating_mul(tokens), 1, 1, 1]);
        self.keep_state(state, out, embd.saturating_mul(head));
        if !self.has(layer, "time_mix_ln.weight") {
            return self.g.reshape(cur, [embd, tokens, 1, 1]);
        }
        let cur = self.g.reshape(cur, [head, embd / head, tokens, 1]);
        let cur = self.g.same(&[cur]);
        let cur = self.g.reshape(cur, [embd, tokens, 1, 1]);
        let scale = self.mix(layer, "ln");
        let cur = self.g.each(&[cur, scale]);
        self.biased(layer, "time_mix_ln.bias", cur)
    }

    fn by_head(&mut self, cur: Id) -> Id {
        let head = self.model.number("wkv.head_size").max(1);
        self.g.reshape(cur, [head, self.model.embd / head, self.tokens, 1])
    }

    fn time_mix_7(&mut self, layer: usize, cur: Id, past: Id) -> Id {
        let (embd, tokens, seqs) = (self.model.embd, self.tokens, self.seqs);
        let per_seq = tokens / seqs.max(1);
        let gated = self.has(layer, "time_mix_g1.weight") && self.has(layer, "time_mix_g2.weight");
        let change = self.g.each(&[past, cur]);
        let change = self.g.fresh([embd, per_seq, seqs, if gated { 6 } else { 5 }], &[change]);
        let lerp = self.mix(layer, "lerp_fused");
        let all = self.g.each(&[change, lerp]);
        let all = self.g.each(&[all, cur]);
        let [xr, xw, xk, xv, xa] = [0; 5].map(|_| self.g.view(all, [embd, tokens, 1, 1]));
        let r = self.by_mix(layer, "receptance", xr);
        let w = self.by_mix(layer, "w1", xw);
        let w = self.g.each(&[w]);
        let w = self.by_mix(layer, "w2", w);
        let w0 = self.mix(layer, "w0");
        let w = self.g.each(&[w, w0]);
        let w = self.steps(w, 3);
        let k = self.by_mix(layer, "key", xk);
        let v = self.by_mix(layer, "value", xv);
        let v = match self.first_value {
            None => *self.first_value.insert(v),
            Some(first) => {
                let apart = self.g.each(&[first, v]);
                let low = self.by_mix(layer, "v1", xv);
                let share = self.by_mix(layer, "v2", low);
                let v0 = self.mix(layer, "v0");
                let share = self.g.each(&[share, v0]);
                let share = self.g.each(&[share]);
                let part = self.g.each(&[apart, share]);
                self.g.each(&[v, part])
            }
        };
        let gate = gated.then(|| {
            let xg = self.g.view(all, [embd, tokens, 1, 1]);
            let low = self.by_mix(layer, "g1", xg);
            let low = self.g.each(&[low]);
            self.by_mix(layer, "g2", low)
        });
        let low = self.by_mix(layer, "a1", xa);
        let a = self.by_mix(layer, "a2", low);
        let a0 = self.mix(layer, "a0");
        let a = self.g.each(&[a, a0]);
        let a = self.g.each(&[a]);
        let (k_k, k_a) = (self.mix(layer, "k_k"), self.mix(layer, "k_a"));
        let kk = self.g.each(&[k, k_k]);
        let kk = self.by_head(kk);
        let kk = self.g.same(&[kk]);
        let ka = self.g.each(&[k, k_a]);
        let part = self.g.each(&[a, ka]);
        let part = self.g.each(&[part, ka]);
        let k = self.g.each(&[k, part]);
        let [r, w, k, v, a] = [r, w, k, v, a].map(|id| self.by_head(id));
        let negative = self.g.each(&[kk]);
        let removed = self.g.each(&[kk, a]);
        let cur = self.wkv(layer, &[r, w, k, v, negative, removed]);
        let r_k = self.mix(layer, "r_k");
        let shape = self.g.ne(r);
        let r_k = self.g.view(r_k, [shape[0], shape[1], 1, 1]);
        let rk = self.g.each(&[k, r]);
        let rk = self.g.each(&[rk, r_k]);
        let rk = self.g.fresh([1, shape[1], shape[2], 1], &[rk]);
        let more = self.g.each(&[v, rk]);
        let more = self.g.reshape(more, [embd, tokens, 1, 1]);
        let mut cur = self.g.each(&[cur, more]);
        if let Some(gate) = gate {
            cur = self.g.each(&[cur, gate]);
        }
        let cur = self.by_mix(layer, "output", cur);
        self.g.reshape(cur, [embd, per_seq, seqs, 1])
    }

    fn time_mix_6(&mut self, layer: usize, cur: Id, past: Id) -> Id {
        let (embd, tokens, seqs) = (self.model.embd, self.tokens, self.seqs);
        let change = self.g.each(&[past, cur]);
        let [change, cur] = [change, cur].map(|id| self.g.reshape(id, [embd, tokens, 1, 1]));
        let lerp = self.mix(layer, "lerp_x");
        let all = self.g.each(&[change, lerp]);
        let all = self.g.each(&[all, cur]);
        let low = self.by_mix(layer, "w1", all);
        let low = self.g.each(&[low]);
        let rank = self.g.ne(low)[0] / 5;
        let low = self.g.reshape(low, [rank, 1, 5, tokens]);
        let low = self.g.permute(low, [0, 1, 3, 2]);
        let low = self.g.same(&[low]);
        let up = self.mix(layer, "w2");
        let up = self.g.view(up, [rank, embd, 1, 5]);
        let all = self.g.fresh([embd, 1, tokens, 5], &[up, low]);
        let [change3, cur3] = [change, cur].map(|id| self.g.reshape(id, [embd, 1, tokens, 1]));
        let lerp = self.mix(layer, "lerp_fused");
        let all = self.g.each(&[all, lerp]);
        let all = self.g.each(&[all, change3]);
        let all = self.g.each(&[all, cur3]);
        let [xw, xk, xv, xr, xg] = [0; 5].map(|_| self.g.view(all, [embd, tokens, 1, 1]));
        let r = self.by_mix(layer, "receptance", xr);
        let k = self.by_mix(layer, "key", xk);
        let v = self.by_mix(layer, "value", xv);
        let gate = self.by_mix(layer, "gate", xg);
        let gate = self.g.each(&[gate]);
        let [k, v, r] = [k, v, r].map(|id| self.by_head(id));
        let low = self.by_mix(layer, "decay_w1", xw);
        let low = self.g.each(&[low]);
        let w = self.by_mix(layer, "decay_w2", low);
        let decay = self.mix(layer, "decay");
        let w = self.g.each(&[w, decay]);
        let w = self.steps(w, 3);
        let w = self.by_head(w);
        let bonus = self.mix(layer, "first");
        let cur = self.wkv(layer, &[k, v, r, bonus, w]);
        let cur = self.g.each(&[cur, gate]);
        let cur = self.by_mix(layer, "output", cur);
        self.g.reshape(cur, [embd, tokens / seqs.max(1), seqs, 1])
    }

    fn channel_mix(&mut self, layer: usize, cur: Id, past: Id) -> Id {
        let part = |builder: &mut Self, name: &str| {
            let side = builder.side(layer);
            let found = builder.weight(layer, &format!("channel_mix_{name}.weight"));
            found.unwrap_or_else(|| builder.g.weight([1, 1, 1, 1], side))
        };
        let change = self.g.each(&[past, cur]);
        let lerped = |builder: &mut Self, name: &str| {
            let lerp = part(builder, name);
            let some = builder.g.each(&[change, lerp]);
            builder.g.each(&[some, cur])
        };
        let xk = lerped(self, "lerp_k");
        let gate = (self.model.arch == "rwkv6").then(|| {
            let xr = lerped(self, "lerp_r");
            let weight = part(self, "receptance");
            let gate = self.g.matmul(weight, xr);
            self.g.each(&[gate])
        });
        let key = part(self, "key");
        let k = self.g.matmul(key, xk);
        let k = self.steps(k, 2);
        let value = part(self, "value");
        let out = self.g.matmul(value, k);
        gate.map_or(out, |gate| self.g.each(&[gate, out]))
    }
}
