//! Feed-forward parts: dense, experts, shared experts.

use super::super::graph::{F32, Id};
use super::Builder;

/// What several experts share, in the names of tensors (src/models/grovemoe.cpp).
const CHUNKS: &str = "chexps";

impl Builder<'_> {
    /// `build_ffn` with the tensors `ffn_up`, `ffn_gate`, `ffn_down` and this suffix, if the block has them.
    pub(super) fn dense(&mut self, layer: usize, cur: Id, suffix: &str) -> Option<Id> {
        let name = |part: &str| format!("ffn_{part}{suffix}.weight");
        let down = self.weight(layer, &name("down"))?;
        let gate = self.weight(layer, &name("gate"));
        let up = self.weight(layer, &name("up"));
        let mut high = match up {
            Some(up) => {
                let high = self.g.matmul(up, cur);
                self.biased(layer, &format!("ffn_up{suffix}.bias"), high)
            }
            None => cur,
        };
        high = match gate {
            Some(gate) => {
                let gated = self.g.matmul(gate, cur);
                let gated = self.biased(layer, &format!("ffn_gate{suffix}.bias"), gated);
                self.gated_high(gated, high, self.clamps(layer, 1))
            }
            None => {
                let (wide, inner) = (self.g.ne(high), self.g.ne(down)[0]);
                if wide[0] == inner.saturating_mul(2) {
                    self.g.fresh([inner, wide[1], wide[2], wide[3]], &[high])
                } else {
                    let steps = if self.style.squared { 2 } else { 1 };
                    (0..steps).fold(high, |high, _| self.g.each(&[high]))
                }
            }
        };
        if self.has(layer, "ffn_sub_norm.weight") && suffix.is_empty() {
            high = self.norm(high, layer, "ffn_sub_norm");
        }
        let low = self.g.matmul(down, high);
        Some(self.biased(layer, &format!("ffn_down{suffix}.bias"), low))
    }

    /// Experts, and shared experts behind them (`build_moe_ffn`); `None` if the block has none.
    pub(super) fn experts(&mut self, layer: usize, cur: Id, logits_in: Option<Id>) -> Option<Id> {
        self.experts_of(layer, cur, logits_in, "exps")
    }

    fn experts_of(&mut self, layer: usize, cur: Id, logits_in: Option<Id>, kind: &str) -> Option<Id> {
        let down = self.weight(layer, &format!("ffn_down_{kind}.weight"))?;
        let mut used = self.used_experts(layer);
        if kind == CHUNKS {
            used = used.min(self.g.ne(down)[2]).max(1);
        }
        let (mut selected, weights) = self.route(layer, cur, logits_in, used);
        if kind == CHUNKS {
            // Experts' numbers become those of what they share, in floats.
            let numbers = self.g.same(&[selected]);
            let numbers = self.g.each(&[numbers]);
            selected = self.g.same(&[numbers]);
        }
        let ne = self.g.ne(cur);
        let mut cur = self.g.reshape(cur, [ne[0], 1, ne[1], 1]);
        if self.style.weighted_first {
            let repeated = self.g.fresh([ne[0], used, ne[1], 1], &[cur]);
            cur = self.g.each(&[repeated, weights]);
        }
        let high = self.expert_high(layer, cur, selected, (self.g.ne(down)[0], kind));
        let mut low = self.g.matmul_id(down, high, selected);
        if let Some(bias) = self.weight(layer, &format!("ffn_down_{kind}.bias")) {
            low = self.g.each(&[low, bias, selected]);
        }
        if !self.style.weighted_first {
            low = self.g.each(&[low, weights]);
        }
        self.g.expand(low);
        Some(self.sum_experts(low, used))
    }

    fn used_experts(&self, layer: usize) -> u64 {
        let listed = self.model.experts_used.get(layer).copied().unwrap_or(0);
        // The most known are 22; a header that lies must not make a graph of millions of nodes.
        listed.clamp(1, 64)
    }

    /// Logits, probabilities and the choice: the experts' numbers and weights.
    fn route(&mut self, layer: usize, cur: Id, logits_in: Option<Id>, used: u64) -> (Id, Id) {
        let tokens = self.g.ne(cur)[1];
        let router = self.weight(layer, "ffn_gate_inp.weight");
        let count = self.model.number("expert_count").max(1);
        let mut logits = match (logits_in, router) {
            (Some(logits), _) => logits,
            (None, Some(router)) => self.g.matmul(router, cur),
            (None, None) => self.g.fresh([count, tokens, 1, 1], &[cur]),
        };
        logits = self.biased(layer, "ffn_gate_inp.bias", logits);
        let probs = if self.style.late_softmax { logits } else { self.g.each(&[logits]) };
        let mut selection = self.biased(layer, "exp_probs_b.bias", probs);
        if self.style.weighted_first {
            selection = logits;
        }
        if self.model.arch == "grovemoe" {
            selection = self.g.each(&[logits]);
        }
        let groups = self.model.number("expert_group_count");
        if groups > 1 {
            selection = self.route_groups(selection, groups, tokens);
        }
        let ne = self.g.ne(selection);
        let sorted = self.g.fresh(ne, &[selection]);
        let selected = self.g.view(sorted, [used, tokens, 1, 1]);
        let column = self.g.reshape(probs, [1, ne[0], tokens, 1]);
        let mut weights = self.g.get_rows(column, selected);
        weights = self.g.reshape(weights, [1, used, tokens, 1]);
        if self.style.late_softmax {
            weights = self.g.reshape(weights, [used, tokens, 1, 1]);
            weights = self.g.each(&[weights]);
            weights = self.g.reshape(weights, [1, used, tokens, 1]);
        }
        if self.style.normed_weights {
            weights = self.g.reshape(weights, [used, tokens, 1, 1]);
            let sum = self.g.fresh([1, tokens, 1, 1], &[weights]);
            let sum = self.g.each(&[sum]);
            weights = self.g.each(&[weights, sum]);
            weights = self.g.reshape(weights, [1, used, tokens, 1]);
        }
        if self.style.scaled_weights {
            weights = self.g.each(&[weights]);
        }
        self.g.expand(weights);
        (selected, weights)
    }

    /// The experts' groups: the best are kept, the others masked.
    fn route_groups(&mut self, selection: Id, groups: u64, tokens: u64) -> Id {
        let ne = self.g.ne(selection);
        let each = ne[0] / groups.max(1);
        let kept = self.model.number("expert_group_used_count").clamp(1, groups);
        let grouped = self.g.reshape(selection, [each, groups, tokens, 1]);
        let sorted = self.g.same(&[grouped]);
        let top = self.g.view(sorted, [2, groups, tokens, 1]);
        let column = self.g.reshape(selection, [1, each, groups, tokens]);
        let scores = self.g.get_rows(column, top);
        let scores = self.g.reshape(scores, [2, groups, tokens, 1]);
        let sums = self.g.fresh([1, groups, tokens, 1], &[scores]);
        let sums = self.g.reshape(sums, [groups, tokens, 1, 1]);
        let sorted = self.g.same(&[sums]);
        let best = self.g.view(sorted, [kept, tokens, 1, 1]);
        let rows = self.g.get_rows(grouped, best);
        let blank = self.g.each(&[grouped]);
        let written = self.g.write(blank, &[rows, best]);
        self.g.reshape(written, ne)
    }

    fn expert_high(&mut self, layer: usize, cur: Id, selected: Id, (inner, kind): (u64, &str)) -> Id {
        if let Some(both) = self.weight(layer, "ffn_gate_up_exps.weight") {
            let both = self.g.matmul_id(both, cur, selected);
            let both = match self.weight(layer, "ffn_gate_up_exps.bias") {
                Some(bias) => self.g.each(&[both, bias, selected]),
                None => both,
            };
            let ne = self.g.ne(both);
            let gate = self.g.view(both, [inner, ne[1], ne[2], 1]);
            let up = self.g.view(both, [inner, ne[1], ne[2], 1]);
            return self.g.fresh([inner, ne[1], ne[2], 1], &[gate, up]);
        }
        let part = |builder: &mut Self, name: &str| {
            let weight = builder.weight(layer, &format!("ffn_{name}_{kind}.weight"))?;
            let high = builder.g.matmul_id(weight, cur, selected);
            Some(match builder.weight(layer, &format!("ffn_{name}_{kind}.bias")) {
                Some(bias) => builder.g.each(&[high, bias, selected]),
                None => high,
            })
        };
        let up = part(self, "up");
        let gate = part(self, "gate");
        match (gate, up) {
            (Some(gate), Some(up)) => {
                let clamped = self.clamps(layer, 0) && !matches!(self.model.arch.as_str(), "maple" | "hy_v4");
                self.gated_high(gate, up, clamped)
            }
            (Some(high), None) | (None, Some(high)) => {
                let steps = if self.style.squared { 2 } else { 1 };
                (0..steps).fold(high, |high, _| self.g.each(&[high]))
            }
            (None, None) => cur,
        }
    }

    /// Whether a block's gates are clamped: of its experts (0), of a dense part (1).
    fn clamps(&self, layer: usize, part: usize) -> bool {
        self.model.clamped[part].get(layer).copied().unwrap_or(false)
    }

    /// SwiGLU and GeGLU are one operation with a result of its own; clamped, they are several in place.
    fn gated_high(&mut self, gate: Id, up: Id, clamped: bool) -> Id {
        if !clamped {
            return self.g.same(&[gate, up]);
        }
        let up = self.g.each(&[up]);
        let gate = self.g.each(&[gate]);
        let gate = self.g.each(&[gate]);
        self.g.each(&[gate, up])
    }

    fn sum_experts(&mut self, low: Id, used: u64) -> Id {
        let (ne, nb) = (self.g.ne(low), self.g.at(low).nb);
        let views: Vec<Id> = (0..used)
            .map(|_| {
                let view = self.g.view_strided(low, [ne[0], ne[2], 1, 1], [F32, nb[2], nb[3], nb[3]]);
                self.g.expand(view);
                view
            })
            .collect();
        let mut sum = views[0];
        for view in &views[1..] {
            sum = self.g.each(&[sum, *view]);
            self.g.expand(sum);
        }
        if used == 1 { self.g.same(&[sum]) } else { sum }
    }

    /// Experts; some work on a narrower input than the router's (src/models/nemotron-h.cpp, `ffn_latent`).
    fn routed(&mut self, layer: usize, cur: Id) -> Option<Id> {
        let early = self.early_logits.take();
        let router = self.weight(layer, "ffn_gate_inp.weight");
        if self.has(layer, "ffn_down_chexps.weight") {
            let logits = router.map(|router| self.g.matmul(router, cur));
            let routed = self.experts(layer, cur, logits)?;
            let shared = self.experts_of(layer, routed, logits, CHUNKS)?;
            let shared = self.g.each(&[shared]);
            return Some(self.g.each(&[routed, shared]));
        }
        let Some(down) = self.weight(layer, "ffn_latent_down.weight") else { return self.experts(layer, cur, early) };
        let router = router?;
        let narrow = self.g.matmul(down, cur);
        let logits = self.g.matmul(router, cur);
        let routed = self.experts(layer, narrow, Some(logits))?;
        let up = self.weight(layer, "ffn_latent_up.weight");
        Some(up.map_or(routed, |up| self.g.matmul(up, routed)))
    }

    /// The feed-forward part of a block, whatever it is; `None` where it has none.
    pub(super) fn feed_forward(&mut self, layer: usize, cur: Id) -> Option<Id> {
        let Some(routed) = self.routed(layer, cur) else { return self.dense(layer, cur, "") };
        let Some(mut shared) = self.dense(layer, cur, "_shexp") else {
            // Some keep a dense part beside the experts (src/models/grok.cpp).
            if self.model.arch != "grok" || !self.has(layer, "ffn_up.weight") {
                return Some(routed);
            }
            let dense = self.dense(layer, cur, "")?;
            let both = self.g.each(&[dense, routed]);
            return Some(self.g.each(&[both]));
        };
        if let Some(gate) = self.weight(layer, "ffn_gate_inp_shexp.weight") {
            let gate = self.g.matmul(gate, cur);
            let gate = self.g.each(&[gate]);
            shared = self.g.each(&[shared, gate]);
        }
        Some(self.g.each(&[routed, shared]))
    }
}
