//! MiniMax's sparse attention: an indexer scores blocks of cells, and each group of heads reads the best of them through a
//! mask of its own (src/models/minimax-m3.cpp).

use super::super::super::shape::Attention;
use super::super::graph::{F16, F32, I64, Id};
use super::Builder;

/// What all sparse blocks of a graph share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    k_idxs: Id,
    /// Blocks that are always read.
    bias: Id,
    positions: Id,
    slots: Id,
    cell_block: Id,
    /// The mask in floats.
    mask: Id,
}

/// Positions in an empty cache, as padded (src/llama-kv-cache-msa.cpp, `get_n_pos`): what a reserved graph is made for.
const POSITIONS: u64 = 256;

impl Builder<'_> {
    /// Whether a block's attention is sparse: it needs flash attention, and sequences with caches of their own.
    pub(super) fn is_block_sparse(&self, layer: usize) -> bool {
        let streams = self.seqs == 1 || !self.settings.unified;
        self.settings.flash_attn && streams && self.has(layer, "indexer.q_proj.weight")
    }

    /// Cells of a block, and how many blocks there are.
    fn blocks(&self) -> (u64, u64) {
        let size = self.model.number("attention.indexer.block_size").max(1);
        (size, POSITIONS.div_ceil(size))
    }

    fn msa_shared(&mut self, mask: Id) -> Shared {
        if let Some(shared) = self.inputs.msa {
            return shared;
        }
        let ((size, count), tokens) = (self.blocks(), self.tokens);
        let positions = count.saturating_mul(size);
        let [cells, _, _, streams] = self.g.ne(mask);
        let shared = Shared {
            k_idxs: self.g.input([tokens, 1, 1, 1], I64),
            bias: self.g.input([count, tokens, 1, 1], F32),
            positions: self.g.input([positions, tokens, 1, 1], F32),
            slots: self.g.input([positions, streams, 1, 1], F32),
            cell_block: self.g.input([cells, streams, 1, 1], F32),
            mask: self.g.same(&[mask]),
        };
        self.inputs.msa = Some(shared);
        shared
    }

    /// `qkv` are queries, keys and values as they come from their projections, turned.
    pub(super) fn block_sparse(&mut self, layer: usize, normed: Id, qkv: (Id, Id, Id), at: Attention) -> Id {
        let Some(inputs) = self.inputs.attention[0] else { return normed };
        let shared = self.msa_shared(inputs.mask);
        let (head, heads) = (
            self.model.number("attention.indexer.key_length"),
            self.model.number("attention.indexer.head_count").max(1),
        );
        let index_q = self.index_part(layer, normed, "q", [head, heads]);
        let index_k = self.index_part(layer, normed, "k", [head, 1]);
        let row = self.settings.type_k.row(head).unwrap_or(head.saturating_mul(2));
        let [cells, per_stream, _, streams] = self.g.ne(inputs.mask);
        let side = self.cache_side(layer);
        let index_cache = self.g.cache([head, cells, streams, 1], row, side);
        self.write_rows(index_cache, index_k, shared.k_idxs);
        let (q, k, v) = qkv;
        let [q, k] = [q, k].map(|id| inputs.k_rot.map_or(id, |rot| self.hadamard(id, rot)));
        let v = inputs.v_rot.map_or(v, |rot| self.hadamard(v, rot));
        for id in [q, k, v] {
            self.g.expand(id);
        }
        self.store(layer, k, v, at);
        let (k, v) = self.cached(layer, at);
        let parts: Vec<Id> = (0..streams)
            .map(|_| {
                let index_q = self.g.view(index_q, [head, heads, per_stream, 1]);
                let keys = self.g.view(index_cache, [head, cells, 1, 1]);
                let mask = self.block_mask(shared, index_q, keys);
                let nb = self.g.at(q).nb;
                let q = self.g.view_strided(q, [at.key, at.heads, per_stream, 1], nb);
                self.grouped_flash(q, (k, v), mask, at)
            })
            .collect();
        let mut cur = parts[0];
        for (index, part) in parts.iter().enumerate().skip(1) {
            let [width, ..] = self.g.ne(*part);
            cur = self.g.fresh([width, per_stream.saturating_mul(index as u64 + 1), 1, 1], &[cur, *part]);
        }
        let cur = inputs.v_rot.map_or(cur, |rot| self.hadamard(cur, rot));
        self.projected_out(layer, cur)
    }

    /// The indexer's queries or keys: projected, normalized and turned.
    fn index_part(&mut self, layer: usize, normed: Id, part: &str, [head, heads]: [u64; 2]) -> Id {
        let name = format!("indexer.{part}_proj.weight");
        let cur = self.weight(layer, &name).map_or(normed, |weight| self.g.matmul(weight, normed));
        let cur = self.g.reshape(cur, [head, heads, self.tokens, 1]);
        let cur = self.norm(cur, layer, &format!("indexer.{part}_norm"));
        self.rope(layer, cur)
    }

    /// The mask of one stream for each group of heads: of the blocks with the best scores, down to cells.
    fn block_mask(&mut self, shared: Shared, q: Id, keys: Id) -> Id {
        let ((size, count), [head, heads, tokens, _]) = (self.blocks(), self.g.ne(q));
        let (positions, rows) = (count.saturating_mul(size), heads.saturating_mul(tokens));
        let cells = self.g.ne(shared.mask)[0];
        let kept = self.model.number("attention.indexer.top_k").clamp(1, count);
        let slots = self.g.view(shared.slots, [positions, 1, 1, 1]);
        let gathered = self.g.get_rows(keys, slots);
        let q = self.g.reshape(q, [head, rows, 1, 1]);
        let scores = self.g.matmul(gathered, q);
        let scores = self.g.reshape(scores, [positions, heads, tokens, 1]);
        let visible = self.by_token(shared.positions, positions, tokens);
        let scores = self.g.each_into(scores, visible);
        let best = self.g.fresh([count, heads, tokens, 1], &[scores]);
        let bias = self.by_token(shared.bias, count, tokens);
        let best = self.g.each(&[best, bias]);
        let chosen = self.g.fresh([kept, heads, tokens, 1], &[best]);
        let closed = self.g.each(&[bias]);
        let closed = self.g.fresh_of([count, 1, tokens, 1], F16, &[closed]);
        let closed = self.g.fresh_of([count, heads, tokens, 1], F16, &[closed]);
        let open = self.g.same(&[chosen]);
        let open = self.g.each(&[open]);
        let column = self.g.reshape(closed, [1, count, rows, 1]);
        let open = self.g.reshape(open, [1, kept, rows, 1]);
        let chosen = self.g.reshape(chosen, [kept, rows, 1, 1]);
        let mask = self.g.write(column, &[open, chosen]);
        let mask = self.g.reshape(mask, [count, heads, tokens, 1]);
        let mask = self.g.permute(mask, [0, 2, 1, 3]);
        let mask = self.g.fresh_of([count, tokens, heads, 1], F16, &[mask]);
        let mask = self.g.reshape(mask, [count, rows, 1, 1]);
        let mask = self.g.permute(mask, [1, 0, 2, 3]);
        let mask = self.g.fresh_of([rows, count, 1, 1], F16, &[mask]);
        let blocks = self.g.view(shared.cell_block, [cells, 1, 1, 1]);
        let mask = self.g.get_rows(mask, blocks);
        let mask = self.g.permute(mask, [1, 0, 2, 3]);
        let mask = self.g.same(&[mask]);
        let mask = self.g.reshape(mask, [cells, tokens, heads, 1]);
        let causal = self.g.view(shared.mask, [cells, tokens, 1, 1]);
        let mask = self.g.each_into(mask, causal);
        let mask = self.g.reshape(mask, [cells, tokens, 1, heads]);
        self.g.fresh_of([cells, tokens, 1, heads], F16, &[mask])
    }

    /// A row of floats for each token, the same for all heads.
    fn by_token(&mut self, rows: Id, width: u64, tokens: u64) -> Id {
        let nb = self.g.at(rows).nb;
        self.g.view_strided(rows, [width, 1, tokens, 1], [nb[0], nb[1], nb[1], nb[2]])
    }

    /// Flash attention of all groups at once, each with its own mask (`build_attn_msa_fa`).
    fn grouped_flash(&mut self, q: Id, (k, v): (Id, Id), mask: Id, at: Attention) -> Id {
        let [cells, tokens, _, groups] = self.g.ne(mask);
        let group = at.heads / groups.max(1);
        let q = self.g.reshape(q, [at.key, group, groups, tokens]);
        let q = self.g.permute(q, [0, 2, 3, 1]);
        let [k, v] = [(k, at.key), (v, at.value)].map(|(id, head)| {
            let nb = self.g.at(id).nb;
            let part = self.g.view_strided(id, [head, groups, cells, 1], nb);
            self.g.permute(part, [0, 3, 1, 2])
        });
        let out = self.g.flash([at.value, group, tokens, groups], &[q, k, v, mask]);
        let turned = self.g.permute(out, [0, 1, 3, 2]);
        let contiguous = if self.contiguous(turned) { turned } else { self.g.same(&[turned]) };
        self.g.reshape(contiguous, [at.value.saturating_mul(at.heads), tokens, 1, 1])
    }
}
