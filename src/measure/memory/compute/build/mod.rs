//! The graph that llama.cpp reserves at load, layer by layer, made from the shapes of the tensors: what is in the file is
//! what runs. Mirrors src/llama-graph.cpp and src/models/*.cpp of build 11434.

mod altup;
mod attention;
mod encoder;
mod feed_forward;
mod kda;
mod layers;
mod lightning;
mod mla;
mod msa;
mod per_layer;
mod plamo;
mod recurrent;
mod rwkv;
mod sparse;
mod style;

use std::collections::HashMap;

use super::super::settings::Window;
use super::super::shape::Model;
use super::super::{GpuLayers, Settings};
use super::graph::{F16, F32, Graph, I64, Id, Side};
use style::Style;

/// Chameleon's tokens of images (src/models/chameleon.cpp).
const IMAGE_TOKENS: u64 = 8192;

/// Builds one graph.
pub(super) struct Builder<'a> {
    g: Graph,
    model: &'a Model,
    settings: &'a Settings,
    window: &'a Window,
    style: Style,
    /// Tokens, sequences and rows of logits of the graph.
    tokens: u64,
    seqs: u64,
    outputs: u64,
    /// Whether what llama.cpp pins to a side is pinned. Its dry run forgets that (`ggml_backend_sched_reserve_size`
    /// resets it), a real load does not.
    pinned: bool,
    /// Everything is on the device: then norms are pinned to their layer's side.
    full_offload: bool,
    inputs: Inputs,
    /// The cells that the last indexer chose.
    chosen: Option<Id>,
    /// RWKV 7's values of the first block, which all others come back to.
    first_value: Option<Id>,
    /// What the router says, where it reads the block's input.
    early_logits: Option<Id>,
    /// What the next attention adds to its scores.
    score_bias: Option<Id>,
    /// The embeddings as they came in, all parts.
    looked_up: Id,
    /// The embeddings as the first block reads them, where later ones come back to them.
    embedded: Id,
    /// The weights of blocks, by the block of the file and name.
    weights: HashMap<(usize, String), Id>,
    /// The caches of the layers that own one: keys, values.
    caches: Vec<Option<(Id, Option<Id>)>>,
}

/// What is filled before each run.
#[derive(Debug, Clone, Copy, Default)]
struct Inputs {
    positions: Option<Id>,
    out_ids: Option<Id>,
    /// Of full attention, of sliding attention.
    attention: [Option<AttentionInputs>; 2],
    state_copy: Option<(Id, Id, Id)>,
    attention_scale: Option<Id>,
    /// Of lightning attention.
    decays: Option<[Id; 4]>,
    /// Classes of distances between tokens.
    buckets: Option<Id>,
    /// What the encoder made, and who sees it.
    encoder: Option<(Id, Id)>,
    indexer: Option<sparse::IndexerInputs>,
    msa: Option<msa::Shared>,
}

#[derive(Debug, Clone, Copy)]
struct AttentionInputs {
    k_idxs: Id,
    v_idxs: Option<Id>,
    mask: Id,
    k_rot: Option<Id>,
    v_rot: Option<Id>,
}

/// Builds the graph, and says what had to be assumed.
pub(super) fn build(model: &Model, settings: &Settings, window: &Window, pinned: bool) -> (Graph, Option<String>) {
    let seqs = settings.sequences();
    // src/llama-context.cpp:626-735 and 2531-2534: rounded up to a multiple of the sequences.
    let tokens = window.ubatch.min(window.n_ctx).next_multiple_of(seqs).max(seqs);
    // Models with an encoder reserve a row for each token (src/llama-context.cpp:252, `llama_model_has_encoder`).
    let encoder = matches!(model.arch.as_str(), "t5" | "t5encoder" | "eagle3" | "dflash");
    let asked = if settings.outputs == 0 || encoder { window.batch } else { settings.outputs };
    let blocks = model.blocks;
    let full_offload = match settings.gpu_layers {
        GpuLayers::All => true,
        GpuLayers::None => false,
        GpuLayers::Last(count) => count > blocks,
    };
    let style = Style::of(model);
    let assumed = style.assumed.clone();
    let builder = Builder {
        g: Graph::default(),
        model,
        settings,
        window,
        style,
        tokens,
        seqs,
        outputs: window.ubatch.min(window.n_ctx).min(asked).max(1),
        pinned,
        full_offload: full_offload && pinned,
        inputs: Inputs::default(),
        chosen: None,
        early_logits: None,
        first_value: None,
        score_bias: None,
        looked_up: 0,
        embedded: 0,
        weights: HashMap::new(),
        caches: vec![None; model.layers.len()],
    };
    (builder.run(), assumed)
}

impl Builder<'_> {
    fn run(mut self) -> Graph {
        let mut state = self.embeddings();
        self.make_inputs();
        let extra = self.per_layer_inputs(state);
        if self.streams_of_embeddings() > 1 {
            state = self.spread_embeddings(state);
        }
        let trunk = usize::try_from(self.model.trunk).unwrap_or(usize::MAX).min(self.model.layers.len());
        if self.model.arch == "hrm_text" {
            state = self.stacks(state);
        } else {
            for index in 0..trunk {
                state = self.layer(index, state, index + 1 == trunk, extra);
            }
        }
        self.head(state);
        self.g
    }

    fn side(&self, layer: usize) -> Side {
        if self.settings.layer_on_device(self.model, layer) { Side::Device } else { Side::Host }
    }

    /// The side of a layer's cache.
    fn cache_side(&self, layer: usize) -> Side {
        if self.settings.kv_offload { self.side(layer) } else { Side::Host }
    }

    /// A block's weight, if it has it.
    fn weight(&mut self, layer: usize, name: &str) -> Option<Id> {
        // A block that is run several times has its weights copied once.
        let again = self.model.stored(layer) != layer;
        let key = (self.model.stored(layer), name.to_owned());
        if let Some(known) = self.weights.get(&key).filter(|_| again) {
            return Some(*known);
        }
        let stored = self.model.stored_tensor(layer, name)?;
        let kept = name.contains("exps") && (layer as u64) < self.settings.cpu_moe;
        let side = if kept { Side::Host } else { self.side(self.model.stored(layer)) };
        let weight = self.g.stored_weight(stored, side);
        self.weights.insert(key, weight);
        Some(weight)
    }

    fn has(&self, layer: usize, name: &str) -> bool {
        self.model.tensor(layer, name).is_some()
    }

    /// A weight that belongs to no block.
    fn global(&mut self, name: &str, side: Side) -> Option<Id> {
        Some(self.g.stored_weight(self.model.global_tensor(name)?, side))
    }

    fn output_side(&self) -> Side {
        if self.settings.output_on_device() { Side::Device } else { Side::Host }
    }

    /// `build_inp_embd`: the three ways tokens come in are all part of the graph.
    fn embeddings(&mut self) -> Id {
        let (tokens, embd) = (self.tokens, self.model.embd);
        let wide = embd.saturating_mul(1 + self.style.deepstack);
        let table = self.g.weight([embd, self.model.vocab, 1, 1], Side::Host);
        let ids = self.g.input([tokens, 1, 1, 1], F32);
        let direct = self.g.input([wide, tokens, 1, 1], F32);
        let mut looked_up = self.lookup(table, ids, wide);
        let mut all = vec![looked_up, direct];
        if self.style.mixed {
            let ids = self.g.input([tokens, 1, 1, 1], F32);
            let slots = self.g.input([tokens, 1, 1, 1], I64);
            let mixed = self.g.input([wide, tokens, 1, 1], F32);
            let copy = self.g.same(&[mixed]);
            let rows = self.lookup(table, ids, wide);
            all.push(self.g.write(copy, &[rows, slots]));
        }
        for id in all {
            self.g.expand(id);
        }
        self.looked_up = looked_up;
        if wide != embd {
            looked_up = self.g.view(looked_up, [embd, tokens, 1, 1]);
        }
        if self.style.embedding_factor {
            if wide != embd {
                looked_up = self.g.same(&[looked_up]);
            }
            looked_up = self.g.each(&[looked_up]);
        }
        if self.style.scaled_rows {
            let scale = self.g.input([1, tokens, 1, 1], F32);
            if wide != embd {
                looked_up = self.g.same(&[looked_up]);
            }
            looked_up = self.g.each(&[looked_up, scale]);
        }
        self.g.expand(looked_up);
        if let Some(types) = self.global("token_types.weight", Side::Host).filter(|_| self.is_bert()) {
            let first = self.g.view(types, [embd, 1, 1, 1]);
            looked_up = self.g.each(&[looked_up, first]);
        }
        if let Some(table) = self.global("position_embd.weight", Side::Host) {
            let ids = self.g.input([tokens, 1, 1, 1], F32);
            let places = self.g.get_rows(table, ids);
            let sum = if self.is_bert() { [places, looked_up] } else { [looked_up, places] };
            looked_up = self.g.each(&sum);
        }
        if self.style.plain_embedding_norm {
            looked_up = self.norm_by(looked_up, None, None, None);
            self.embedded = looked_up;
        }
        if self.style.embedding_norm {
            let side = self.side(0);
            let weight = self.global("token_embd_norm.weight", side);
            let bias = self.global("token_embd_norm.bias", side);
            looked_up = self.norm_by(looked_up, weight, bias, Some(side));
        }
        looked_up
    }

    fn lookup(&mut self, table: Id, ids: Id, wide: u64) -> Id {
        let rows = self.g.get_rows(table, ids);
        if wide == self.model.embd { rows } else { self.g.fresh([wide, self.tokens, 1, 1], &[rows]) }
    }

    fn make_inputs(&mut self) {
        self.inputs.positions = Some(self.g.input([self.tokens.saturating_mul(self.style.positions), 1, 1, 1], F32));
        let layers = &self.model.layers;
        let wants = |sliding: bool| {
            layers.iter().any(|layer| layer.attention.is_some_and(|attention| attention.sliding == sliding))
        };
        for (slot, sliding) in [(0, false), (1, true)] {
            let caches = self.style.cached && layers.iter().any(|layer| !layer.rows.is_empty());
            if wants(sliding) {
                let inputs = self.attention_inputs(sliding, caches);
                self.inputs.attention[slot] = Some(inputs);
            }
        }
        if layers.iter().any(|layer| layer.state.is_some()) {
            let rows = self.settings.sequences();
            let copy = self.g.input([rows, 1, 1, 1], F32);
            let main = self.g.view(copy, [self.seqs, 1, 1, 1]);
            let tail = self.g.view(copy, [rows - 1, 1, 1, 1]);
            self.inputs.state_copy = Some((copy, main, tail));
        }
        self.inputs.out_ids = Some(self.g.input([self.outputs, 1, 1, 1], F32));
    }

    /// Masks and indices (src/llama-graph.cpp:29-45, src/llama-kv-cache.cpp:1439-1490).
    fn attention_inputs(&mut self, sliding: bool, caches: bool) -> AttentionInputs {
        let tokens = self.tokens;
        let flash = self.settings.flash_attn;
        let k_idxs = self.g.input([tokens, 1, 1, 1], I64);
        let values = if flash { 1 } else { self.model.widest_value };
        let v_idxs = self.model.mla.is_none().then(|| self.g.input([tokens.saturating_mul(values), 1, 1, 1], I64));
        let (cells, streams) = match (caches, sliding) {
            (false, _) => (tokens, 1),
            (true, false) => (self.window.full, self.window.streams),
            (true, true) => (self.window.sliding, self.window.streams),
        };
        let element = if flash { F16 } else { F32 };
        let mask = self.g.input([cells, tokens / streams, 1, streams], element);
        let (k_rot, v_rot) = if caches { self.rotations(sliding) } else { (None, None) };
        AttentionInputs { k_idxs, v_idxs, mask, k_rot, v_rot }
    }

    /// Rotations of a quantized cache: only where all its layers have the same head size
    /// (src/llama-kv-cache.cpp:320-352).
    fn rotations(&mut self, sliding: bool) -> (Option<Id>, Option<Id>) {
        let hybrid_window = self.model.window.is_some() && self.model.layers.iter().any(|layer| layer.state.is_some());
        if self.model.mla.is_some() || hybrid_window {
            return (None, None);
        }
        let owners =
            || self.model.layers.iter().filter(|layer| !layer.rows.is_empty()).filter_map(|layer| layer.attention);
        let mine: Vec<_> = owners().filter(|attention| attention.sliding == sliding).collect();
        let Some(first) = mine.first().copied() else { return (None, None) };
        let Some(zero) = self.model.layers.first().and_then(|layer| layer.attention).or(Some(first)) else {
            return (None, None);
        };
        let same_k = mine.iter().all(|attention| attention.key == first.key);
        let same_v = mine.iter().all(|attention| attention.value == first.value);
        let mut k_rot = None;
        if same_k && first.key > 0 && self.settings.type_k.quantized() && zero.key.is_multiple_of(64) {
            let mut size = 64;
            while first.key.is_multiple_of(2 * size) {
                size *= 2;
            }
            k_rot = Some(self.g.input([size, size, 1, 1], F32));
        }
        let v = same_v && first.value > 0 && self.settings.type_v.quantized() && zero.value.is_multiple_of(64);
        (k_rot, v.then(|| self.g.input([64, 64, 1, 1], F32)))
    }

    /// `build_norm` with the block's weights of this name; `None` as a name normalizes without weights.
    fn norm(&mut self, cur: Id, layer: usize, name: &str) -> Id {
        let weight = self.weight(layer, &format!("{name}.weight"));
        let bias = self.weight(layer, &format!("{name}.bias"));
        let side = self.side(layer);
        self.norm_by(cur, weight, bias, Some(side))
    }

    fn norm_with(&mut self, cur: Id, name: &str) -> Id {
        let side = self.output_side();
        let weight = self.global(&format!("{name}.weight"), side);
        let bias = self.global(&format!("{name}.bias"), side);
        self.norm_by(cur, weight, bias, None)
    }

    fn norm_by(&mut self, cur: Id, weight: Option<Id>, bias: Option<Id>, side: Option<Side>) -> Id {
        let mut cur = if self.style.rms { self.g.each(&[cur]) } else { self.g.same(&[cur]) };
        if let (Some(side), true) = (side, self.full_offload && (weight.is_some() || bias.is_some())) {
            self.g.force(cur, side);
        }
        for operand in [weight, bias].into_iter().flatten() {
            cur = self.g.each(&[cur, operand]);
        }
        cur
    }

    /// Only rows of which logits are wanted go on.
    fn wanted_rows(&mut self, cur: Id) -> Id {
        match self.inputs.out_ids {
            Some(ids) => self.g.get_rows(cur, ids),
            None => cur,
        }
    }

    /// After the last block: norm and logits.
    fn head(&mut self, state: Id) {
        let mut cur = state;
        if self.streams_of_embeddings() > 1 {
            cur = self.joined_embeddings(state);
            cur = self.wanted_rows(cur);
        }
        match self.style.hidden_out {
            style::Hidden::BeforeNorm => {
                self.g.set_output(cur);
                cur = self.wanted_rows(cur);
            }
            style::Hidden::Late => cur = self.wanted_rows(cur),
            _ => {}
        }
        if let Some(name) = self.style.final_norm {
            cur = self.norm_with(cur, name);
        }
        if self.style.hidden_out == style::Hidden::AfterNorm {
            self.g.set_output(cur);
            cur = self.wanted_rows(cur);
        }
        self.g.set_output(cur);
        if !self.style.logits {
            return self.g.expand(cur);
        }
        let side = self.output_side();
        let head = self.global("output.weight", side);
        // BitNet reads the embedding itself, where the others load it again.
        let side = if self.model.arch == "bitnet" { Side::Host } else { side };
        let shared = [self.model.embd, self.model.vocab, 1, 1];
        let bytes = self.model.tensor_bytes.get("token_embd.weight").copied().unwrap_or(0);
        let head = head.unwrap_or_else(|| self.g.stored_weight((shared, bytes), side));
        cur = self.g.matmul(head, cur);
        let [_, rows, ..] = self.g.ne(head);
        if self.model.arch.starts_with("qwen3") && rows < self.model.vocab {
            // Tokens that are never said fill up the logits (src/models/qwen3vl.cpp).
            let norm = self.global("output_norm.weight", side).unwrap_or(head);
            let scalar = self.g.view(norm, [1, 1, 1, 1]);
            let scalar = self.g.each(&[scalar]);
            let [_, outputs, ..] = self.g.ne(cur);
            let filler = self.g.fresh([self.model.vocab - rows, outputs, 1, 1], &[scalar]);
            cur = self.g.fresh([self.model.vocab, outputs, 1, 1], &[filler, cur]);
        }
        if let Some(bias) = self.global("output.bias", side) {
            cur = self.g.each(&[cur, bias]);
        }
        for _ in 0..self.style.logit_steps {
            cur = self.g.each(&[cur]);
        }
        if self.model.arch == "chameleon" {
            // Tokens of images are never said (src/models/chameleon.cpp).
            let images = self.g.constant([IMAGE_TOKENS, 1, 1, 1]);
            let images = self.g.each(&[images]);
            cur = self.g.same(&[cur, images]);
        }
        self.g.set_output(cur);
        self.g.expand(cur);
    }
}
