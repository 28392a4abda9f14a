//! Attention with keys and values: projections, rotations, the cache, with flash attention or without.

use super::super::super::shape::Attention;
use super::super::graph::{Id, Side};
use super::Builder;
use super::style::Rope;

impl Builder<'_> {
    /// Queries, keys and values as `[head, heads, tokens]` (`build_qkv`).
    pub(super) fn qkv(&mut self, layer: usize, cur: Id, at: Attention) -> (Id, Id, Id) {
        let tokens = self.tokens;
        let shapes = [[at.key, at.heads], [at.key, at.kv_heads], [at.value, at.kv_heads]];
        if let Some(fused) = self.weight(layer, "attn_qkv.weight") {
            let mut all = self.g.matmul(fused, cur);
            all = self.biased(layer, "attn_qkv.bias", all);
            if self.style.clamped {
                all = self.g.each(&[all]);
            }
            let [q, k, v] = shapes.map(|[head, heads]| {
                let nb = self.g.at(all).nb;
                let nb = [nb[0], head.saturating_mul(4), nb[1], nb[1].saturating_mul(tokens)];
                self.g.view_strided(all, [head, heads, tokens, 1], nb)
            });
            return (q, k, v);
        }
        let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|name| self.projected(layer, name, cur));
        let k = k.unwrap_or(cur);
        let [q, k, v] = [q.unwrap_or(cur), k, v.unwrap_or(k)];
        let [sq, sk, sv] = shapes.map(|[head, heads]| [head, heads, tokens, 1]);
        (self.g.reshape(q, sq), self.g.reshape(k, sk), self.g.reshape(v, sv))
    }

    pub(super) fn projected(&mut self, layer: usize, name: &str, cur: Id) -> Option<Id> {
        let weight = self.weight(layer, &format!("{name}.weight"))?;
        let mut result = self.g.matmul(weight, cur);
        result = self.biased(layer, &format!("{name}.bias"), result);
        if self.style.clamped {
            result = self.g.each(&[result]);
        }
        Some(result)
    }

    pub(super) fn biased(&mut self, layer: usize, name: &str, cur: Id) -> Id {
        match self.weight(layer, name) {
            Some(bias) => self.g.each(&[cur, bias]),
            None => cur,
        }
    }

    /// A norm of heads, where the block has it.
    pub(super) fn head_norm(&mut self, layer: usize, name: &str, cur: Id) -> Id {
        if !self.has(layer, &format!("{name}.weight")) {
            return cur;
        }
        let rms = self.style.rms;
        self.style.rms &= self.model.arch != "chameleon";
        let normed = self.norm(cur, layer, name);
        self.style.rms = rms;
        normed
    }

    /// Whether a block turns queries and keys by position.
    pub(super) fn turns(&self, layer: usize) -> bool {
        let sliding = |layer: usize| self.model.layers[layer].attention.is_some_and(|at| at.sliding);
        if self.model.turning.get(layer) == Some(&0) {
            return false;
        }
        match self.style.rope {
            Rope::All => true,
            Rope::None => false,
            Rope::Sliding => sliding(layer) || self.model.window.is_none(),
            Rope::SlidingOrFirst(count) => sliding(layer) || (layer as u64) < count,
            Rope::AllBut(step) => !(layer as u64 + 1).is_multiple_of(step),
        }
    }

    pub(super) fn rope(&mut self, layer: usize, cur: Id) -> Id {
        match self.inputs.positions {
            Some(positions) if self.turns(layer) => {
                let factors = self.style.rope_factors.clone().and_then(|name| self.global(&name, self.side(layer)));
                let all: Vec<Id> = [Some(cur), Some(positions), factors].into_iter().flatten().collect();
                self.g.rope(&all)
            }
            _ => cur,
        }
    }

    /// `build_attn` with a cache: writes keys and values, attends, projects. Without keys the cache of an earlier layer
    /// is read.
    pub(super) fn attend(&mut self, layer: usize, q: Id, kv: Option<(Id, Id)>, at: Attention, out: bool) -> Id {
        let Some(inputs) = self.inputs.attention[usize::from(at.sliding)] else { return q };
        let rotate = |builder: &mut Self, cur: Id, rot: Option<Id>| rot.map_or(cur, |rot| builder.hadamard(cur, rot));
        let q = rotate(self, q, inputs.k_rot);
        self.g.expand(q);
        let kv = kv.map(|(k, v)| (rotate(self, k, inputs.k_rot), rotate(self, v, inputs.v_rot)));
        if let Some((k, v)) = kv {
            // The caches of windows take keys first, as does attention without a cache.
            let keys_first =
                !self.style.cached || self.model.window.is_some() || self.model.layers[layer].rows.is_empty();
            for id in if keys_first { [k, v] } else { [v, k] } {
                self.g.expand(id);
            }
        }
        let (k, v) = if !self.style.cached || self.model.layers.iter().all(|layer| layer.rows.is_empty()) {
            kv.unwrap_or((q, q))
        } else {
            if let Some((k, v)) = kv {
                self.store(layer, k, v, at);
            }
            self.cached(layer, at)
        };
        let sinks = self.weight(layer, "attn_sinks.weight");
        let mut cur = self.attention(q, (k, v), inputs.mask, sinks, None);
        cur = rotate(self, cur, inputs.v_rot);
        if self.has(layer, "attn_sub_norm.weight") {
            cur = self.norm(cur, layer, "attn_sub_norm");
        }
        if out { self.projected_out(layer, cur) } else { cur }
    }

    pub(super) fn projected_out(&mut self, layer: usize, cur: Id) -> Id {
        let clamped = std::mem::replace(&mut self.style.clamped, false);
        let name = if self.is_t5() { "attn_o" } else { "attn_output" };
        let result = self.projected(layer, name, cur).unwrap_or(cur);
        self.style.clamped = clamped;
        result
    }

    /// `llama_mul_mat_hadamard`.
    pub(super) fn hadamard(&mut self, cur: Id, rot: Id) -> Id {
        let (ne, size) = (self.g.ne(cur), self.g.ne(rot)[0].max(1));
        let elements = ne.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim));
        let rows = [size, elements / size, 1, 1];
        let flat = if self.contiguous(cur) { self.g.reshape(cur, rows) } else { self.g.fresh(rows, &[cur]) };
        let turned = self.g.matmul(rot, flat);
        self.g.reshape(turned, ne)
    }

    pub(super) fn contiguous(&self, id: Id) -> bool {
        let tensor = self.g.at(id);
        let mut next = tensor.nb[0];
        (0..4).all(|dim| {
            let fits = tensor.ne[dim] == 1 || tensor.nb[dim] == next;
            next = next.saturating_mul(tensor.ne[dim]);
            fits
        }) && tensor.nb[0] <= 8
    }

    /// The cache of a layer, or of the one whose cache it reads.
    pub(super) fn cache(&mut self, layer: usize) -> (Id, Option<Id>) {
        let owner = self.owner(layer);
        if let Some(cache) = self.caches[owner] {
            return cache;
        }
        let side = self.cache_side(owner);
        let rows = self.model.layers[owner].rows.first().copied();
        let (key, value) = rows.map_or((1, 1), |row| (row.key, row.value));
        let sliding = self.model.layers[owner].attention.is_some_and(|at| at.sliding);
        let (cells, streams) = (if sliding { self.window.sliding } else { self.window.full }, self.window.streams);
        let value = if self.settings.flash_attn { value } else { self.model.widest_value };
        let width = |kind: crate::gguf::Kind, elements: u64| {
            kind.row(elements.next_multiple_of(kind.block)).unwrap_or(u64::MAX)
        };
        let (k_bytes, v_bytes) = (width(self.settings.type_k, key), width(self.settings.type_v, value));
        let k = self.g.cache([key, cells, streams, 1], k_bytes, side);
        let v = self.model.mla.is_none().then(|| self.g.cache([value, cells, streams, 1], v_bytes, side));
        self.caches[owner] = Some((k, v));
        (k, v)
    }

    /// Layers without a cache of their own read that of the last full or the last sliding owner
    /// (src/llama-model.cpp:2797-2806).
    fn owner(&self, layer: usize) -> usize {
        if !self.model.layers[layer].rows.is_empty() {
            return layer;
        }
        let sliding = |layer: usize| self.model.layers[layer].attention.is_some_and(|at| at.sliding);
        let owners = (0..layer).rev().filter(|other| !self.model.layers[*other].rows.is_empty());
        owners.into_iter().find(|other| sliding(*other) == sliding(layer)).unwrap_or(layer)
    }

    pub(super) fn store(&mut self, layer: usize, k: Id, v: Id, at: Attention) {
        let Some(inputs) = self.inputs.attention[usize::from(at.sliding)] else { return };
        let (k_cache, v_cache) = self.cache(layer);
        self.write_rows(k_cache, k, inputs.k_idxs);
        let (Some(v_cache), Some(v_idxs)) = (v_cache, inputs.v_idxs) else { return };
        if self.settings.flash_attn {
            return self.write_rows(v_cache, v, v_idxs);
        }
        let (ne, width) = (self.g.ne(v), self.g.ne(v_cache)[0]);
        let flat = [ne[0].saturating_mul(ne[1]), ne[2], 1, 1];
        let mut v = if self.contiguous(v) { self.g.reshape(v, flat) } else { self.g.fresh(flat, &[v]) };
        if flat[0] < width {
            v = self.g.fresh([width, flat[1], 1, 1], &[v]);
        }
        let elements = width.max(flat[0]).saturating_mul(flat[1]);
        let column = self.g.view(v_cache, [1, elements, 1, 1]);
        let v = self.g.reshape(v, [1, elements, 1, 1]);
        let write = self.g.write(column, &[v, v_idxs]);
        self.g.expand(write);
    }

    /// `cpy_k`: merges heads and, with several streams, those too.
    pub(super) fn write_rows(&mut self, cache: Id, cur: Id, idxs: Id) {
        let ne = self.g.ne(cur);
        let nb = self.g.at(cur).nb;
        let merged = [ne[0].saturating_mul(ne[1]), ne[2], 1, 1];
        let flat = self.g.view_strided(cur, merged, [nb[0], nb[2], nb[2], nb[2]]);
        let cache = if self.window.streams > 1 {
            let ne = self.g.ne(cache);
            self.g.view(cache, [ne[0], ne[1].saturating_mul(ne[2]), 1, 1])
        } else {
            cache
        };
        let write = self.g.write(cache, &[flat, idxs]);
        self.g.expand(write);
    }

    /// The whole cache as attention reads it: `get_k`, `get_v`.
    pub(super) fn cached(&mut self, layer: usize, at: Attention) -> (Id, Id) {
        let (k_cache, v_cache) = self.cache(layer);
        let k = self.cached_keys(k_cache, at.key, at.kv_heads);
        let Some(v_cache) = v_cache else { return (k, k) };
        if self.settings.flash_attn {
            return (k, self.cached_keys(v_cache, at.value, at.kv_heads));
        }
        let (ne, nb) = (self.g.ne(v_cache), self.g.at(v_cache).nb);
        let (cells, element) = (ne[1], nb[0]);
        let row = cells.saturating_mul(element);
        let strides = [element, row.saturating_mul(at.value), row, row.saturating_mul(ne[0])];
        (k, self.g.view_strided(v_cache, [cells, at.kv_heads, at.value, ne[2]], strides))
    }

    pub(super) fn cached_keys(&mut self, cache: Id, head: u64, heads: u64) -> Id {
        let (ne, nb) = (self.g.ne(cache), self.g.at(cache).nb);
        let head_bytes = nb[1] / heads.max(1);
        self.g.view_strided(cache, [head, heads, ne[1], ne[2]], [nb[0], head_bytes, nb[1], nb[2]])
    }

    /// `build_attn_mha`. `unpack` is MLA's matrix from compressed to plain values.
    pub(super) fn attention(&mut self, q: Id, (k, v): (Id, Id), mask: Id, sinks: Option<Id>, unpack: Option<Id>) -> Id {
        let streams = self.g.ne(k)[3].max(1);
        let transposed = self.g.at(v).nb[1] > self.g.at(v).nb[2];
        let (ne, nb) = (self.g.ne(q), self.g.at(q).nb);
        let per_stream = ne[2] / streams;
        let strides = [nb[0], nb[1], nb[2], nb[2].saturating_mul(per_stream)];
        let q = self.g.view_strided(q, [ne[0], ne[1], per_stream, streams], strides);
        let [q, k, v] = [q, k, v].map(|id| self.g.permute(id, [0, 2, 1, 3]));
        let bias = self.score_bias.take();
        let cur = if self.settings.flash_attn && bias.is_none() {
            self.flash(q, k, v, mask, sinks, unpack)
        } else {
            self.plain(q, k, v, (bias, mask, sinks), unpack, transposed)
        };
        self.g.expand(cur);
        cur
    }

    fn flash(&mut self, q: Id, k: Id, v: Id, mask: Id, sinks: Option<Id>, unpack: Option<Id>) -> Id {
        // Without a cache keys and values are floats, and are copied to f16.
        let half = |builder: &mut Self, id: Id| {
            let cached = builder.g.at(id).view_of.is_some_and(|root| builder.g.at(root).lives.is_some());
            let ne = builder.g.ne(id);
            if cached { id } else { builder.g.fresh_of(ne, 2, &[id]) }
        };
        let (k, v) = (half(self, k), half(self, v));
        let (nq, nv) = (self.g.ne(q), self.g.ne(v));
        let operands: Vec<Id> = [Some(q), Some(k), Some(v), Some(mask), sinks].into_iter().flatten().collect();
        let mut cur = self.g.flash([nv[0], nq[2], nq[1], nq[3]], &operands);
        if let Some(unpack) = unpack {
            cur = self.g.permute(cur, [0, 2, 1, 3]);
            cur = self.g.matmul(unpack, cur);
            cur = self.g.permute(cur, [0, 2, 1, 3]);
            cur = self.g.same(&[cur]);
        }
        let ne = self.g.ne(cur);
        self.g.reshape(cur, [ne[0].saturating_mul(ne[1]), ne[2].saturating_mul(ne[3]), 1, 1])
    }

    /// Scores, softmax and sum. `added` stands for what comes to the scores: bias, mask and sinks.
    fn plain(
        &mut self,
        q: Id,
        k: Id,
        v: Id,
        added: (Option<Id>, Id, Option<Id>),
        unpack: Option<Id>,
        transposed: bool,
    ) -> Id {
        let (bias, mask, sinks) = added;
        let mut kq = self.g.matmul(k, q);
        for _ in 0..self.style.score_steps {
            kq = self.g.each(&[kq]);
        }
        if let Some(bias) = bias {
            kq = self.g.each(&[kq, bias]);
        }
        let operands: Vec<Id> = [Some(kq), Some(mask), sinks].into_iter().flatten().collect();
        let kq = self.g.each(&operands);
        let mut v = v;
        if !transposed {
            let element = self.g.at(v).nb[0];
            let turned = self.g.permute(v, [1, 0, 2, 3]);
            let ne = self.g.ne(turned);
            v = self.g.fresh_of(ne, element, &[turned]);
        }
        let mut kqv = self.g.matmul(v, kq);
        if let Some(unpack) = unpack {
            kqv = self.g.matmul(unpack, kqv);
        }
        let turned = self.g.permute(kqv, [0, 2, 1, 3]);
        let ne = self.g.ne(turned);
        let cur = self.g.fresh([ne[0].saturating_mul(ne[1]), ne[2].saturating_mul(ne[3]), 1, 1], &[turned]);
        if self.pinned && !self.settings.kv_offload {
            self.g.force(cur, Side::Host);
        }
        cur
    }
}
