//! What each block keeps: whether it attends or recurs, how wide its rows are, and which blocks have a sliding window.

use super::arch::{Facts, Family, Sliding};
use super::shape::{Attention, Cells, Error, Keys, Layer, MAX_LAYERS, Model, Row, State};

impl Keys<'_> {
    pub(super) fn layers(&self, model: &mut Model, facts: Facts) -> Result<(), Error> {
        let count = usize::try_from(model.blocks).expect("at most MAX_LAYERS");
        let heads = self.per_layer("attention.head_count", count).unwrap_or_else(|| vec![0; count]);
        let kv_heads = self.per_layer("attention.head_count_kv", count).unwrap_or_else(|| heads.clone());
        let ff = self.per_layer("feed_forward_length", count).unwrap_or_else(|| vec![0; count]);
        // src/llama-model.cpp:1437-1461: without heads on the first block there is no attention at all.
        let size = |key: &str| match heads[0] {
            0 => 0,
            heads => self.number(key).unwrap_or(model.widths.embd / heads),
        };
        let mut full = (size("attention.key_length"), size("attention.value_length"));
        if matches!(self.arch, "kimi-k3" | "glm5-next") {
            full.1 = self.number("attention.kv_lora_rank").unwrap_or(full.1);
        }
        let narrow = (
            self.number("attention.key_length_swa").unwrap_or(full.0),
            self.number("attention.value_length_swa").unwrap_or(full.1),
        );
        let (window, sliding) = self.sliding(model, facts.sliding, &kv_heads);
        model.window = window;
        let owners = self.owners(model.blocks);
        for index in 0..count {
            let (key, value) = if sliding[index] { narrow } else { full };
            let attention =
                Attention { heads: heads[index], kv_heads: kv_heads[index], key, value, sliding: sliding[index] };
            model.widths.value = model.widths.value.max(value.saturating_mul(kv_heads[index]));
            let mut layer = self.layer(model, facts.family, index, attention, ff[index]);
            if index as u64 >= owners || index as u64 >= model.trunk {
                layer.rows.clear();
            }
            if index as u64 >= model.trunk {
                layer.state = None;
            }
            model.layers.push(layer);
        }
        self.extra_layers(model)
    }

    /// How many blocks, from the first, own a cache (src/models/gemma3n.cpp:7, src/models/gemma4.cpp:8-11).
    fn owners(&self, blocks: u64) -> u64 {
        match self.arch {
            "gemma3n" => 20.min(blocks),
            "gemma4" => blocks.saturating_sub(self.number("attention.shared_kv_layers").unwrap_or(0)),
            _ => blocks,
        }
    }

    fn layer(&self, model: &Model, family: Family, index: usize, attention: Attention, ff: u64) -> Layer {
        let recurrent = match family {
            Family::Recurrent | Family::Both => true,
            Family::ByHeads => attention.kv_heads == 0,
            Family::NemotronH => attention.kv_heads == 0 && ff == 0,
            Family::ByInterval(interval) => self.interval(index, interval, model),
            _ => false,
        };
        let attends = match family {
            Family::NoCache | Family::Recurrent => false,
            Family::Both => true,
            Family::NemotronH => !recurrent && ff == 0,
            _ => !recurrent,
        };
        Layer {
            rows: if attends { self.rows(model, family, index, &attention) } else { Vec::new() },
            attention: (attends || family == Family::NoCache).then_some(attention),
            state: if family == Family::Dsv4 {
                self.dsv4_state(index, &attention)
            } else {
                recurrent.then(|| self.state(model))
            },
            feed_forward: ff,
        }
    }

    /// Whether a block is recurrent where every n-th is not (src/models/qwen3next.cpp:17-21).
    fn interval(&self, index: usize, default: u64, model: &Model) -> bool {
        if let Some(listed) = self.per_layer("attention.recurrent_layers", model.blocks as usize) {
            return listed[index] != 0;
        }
        let interval = self.number("full_attention_interval").unwrap_or(default).max(1);
        (index as u64) < model.trunk && !(index as u64 + 1).is_multiple_of(interval)
    }

    fn rows(&self, model: &Model, family: Family, index: usize, attention: &Attention) -> Vec<Row> {
        let key_only = model.mla.is_some() || family == Family::Dsv4;
        let cells = if attention.sliding { Cells::Sliding } else { Cells::Full };
        let key = attention.key.saturating_mul(attention.kv_heads);
        let value = if key_only { 0 } else { attention.value.saturating_mul(attention.kv_heads) };
        let per_sequence = family == Family::Dsv4;
        let main = Row { key, value, key_only, padded: true, cells, per_sequence };
        let mut rows = vec![main];
        let indexer = self.number("attention.indexer.key_length").unwrap_or(0);
        match family {
            Family::Dsa if self.owns_indexer(model, index) && !attention.sliding => {
                rows.push(Row { key: indexer, value: 0, key_only: true, ..main });
            }
            Family::Msa if index as u64 >= self.number("leading_dense_block_count").unwrap_or(0) => {
                // One head: the cache behind it keeps values too, of the main head size.
                rows.push(Row { key: indexer, value: attention.value, key_only: false, padded: false, ..main });
            }
            Family::Dsv4 => {
                let ratio = self.per_layer("attention.compress_ratios", model.blocks as usize).map_or(0, |r| r[index]);
                let cells = Cells::Compressed(ratio);
                match ratio {
                    4 => rows.extend([Row { cells, ..main }, Row { key: indexer, cells, ..main }]),
                    128 => rows.push(Row { cells, ..main }),
                    _ => {}
                }
            }
            _ if matches!(self.arch, "qwen4exp" | "glm5-next") && indexer > 0 && self.owns_indexer(model, index) => {
                rows.push(Row { key: indexer.saturating_mul(self.pooled_keys()), value: 0, key_only: true, ..main });
            }
            _ => {}
        }
        rows
    }

    /// How many keys an indexer keeps for a cell: its own, and where it pools keys those it makes of them
    /// (src/llama-memory-hybrid-idx.cpp:57-58).
    fn pooled_keys(&self) -> u64 {
        match self.arch {
            "glm5-next" => 3,
            _ if self.number("attention.compress_ratios").unwrap_or(0) > 0 => 2,
            _ => 1,
        }
    }

    /// Whether a block owns an indexer; all do, unless `attention.indexer.types` says otherwise.
    fn owns_indexer(&self, model: &Model, index: usize) -> bool {
        let listed = self.per_layer("attention.indexer.types", model.blocks as usize);
        let disabled = self.arch == "hy_v4" && self.number("attention.indexer.top_k").unwrap_or(0) == 0;
        !disabled && listed.is_none_or(|listed| listed[index] != 0)
    }

    /// `n_embd_r` and `n_embd_s` of src/llama-hparams.cpp.
    fn state(&self, model: &Model) -> State {
        let number = |key: &str| self.number(key).unwrap_or(0);
        let heads = self.per_layer("attention.head_count", 1).map_or(0, |heads| heads[0]);
        let taps = number("ssm.conv_kernel");
        let head = number("wkv.head_size");
        if head != 0 {
            let shifts = self.number("token_shift_count").unwrap_or(2);
            return State {
                conv: shifts.saturating_mul(model.widths.embd),
                recurrent: model.widths.embd.saturating_mul(head),
            };
        }
        let short = number("shortconv.l_cache");
        if short != 0 {
            return State { conv: model.widths.embd.saturating_mul(short - 1), recurrent: 0 };
        }
        let head = number("kda.head_dim");
        if head != 0 {
            let taps = if taps > 0 { taps - 1 } else { 3 };
            let inner = heads.saturating_mul(head);
            return State { conv: inner.saturating_mul(3 * taps), recurrent: inner.saturating_mul(head) };
        }
        let (inner, size) = (number("ssm.inner_size"), number("ssm.state_size"));
        let width = inner.saturating_add(number("ssm.group_count").saturating_mul(size).saturating_mul(2));
        let conv = taps.saturating_sub(1).saturating_mul(width);
        if self.arch == "minimax-01" {
            let head = self.number("attention.key_length").unwrap_or(model.widths.embd / heads.max(1));
            return State { conv, recurrent: head.saturating_mul(head).saturating_mul(heads) };
        }
        State { conv, recurrent: size.saturating_mul(inner) }
    }

    /// The compressors' states, each of keys and of scores (src/llama-kv-cache-dsv4.cpp:967-969 and 1300-1318).
    fn dsv4_state(&self, index: usize, attention: &Attention) -> Option<State> {
        let indexer = self.number("attention.indexer.key_length").unwrap_or(0);
        let ratios = self.per_layer("attention.compress_ratios", index + 1)?;
        let recurrent = match ratios[index] {
            4 => (2 * 4) * 2 * attention.key + (2 * 4) * 2 * indexer,
            128 => 128 * attention.key,
            _ => return None,
        };
        Some(State { conv: 0, recurrent: recurrent.saturating_mul(2) })
    }

    /// The window, and which blocks have it (src/llama-hparams.cpp:8-22, src/llama-model.cpp:3451-3458).
    fn sliding(&self, model: &Model, facts: Option<Sliding>, kv_heads: &[u64]) -> (Option<u64>, Vec<bool>) {
        let count = kv_heads.len();
        let none = (None, vec![false; count]);
        let Some(facts) = facts else { return none };
        if self.arch == "exaone4" && model.trunk != 64 {
            return none;
        }
        let written = self.number("attention.sliding_window");
        if written == Some(0) {
            return none;
        }
        let window = match facts.forced {
            Some(forced) if written.is_some() || facts.default.is_some() => Some(forced),
            _ => written.or(facts.default),
        };
        let Some(window) = window else { return none };
        if self.arch == "lfm2" {
            return (Some(window), kv_heads.iter().map(|heads| *heads > 0).collect());
        }
        if self.arch == "deepseek4" {
            return (Some(window), vec![true; count]);
        }
        let pattern = self.key("attention.sliding_window_pattern");
        let listed = self.gguf.array(&pattern).and_then(|array| array.items.as_ref());
        if let Some(listed) = listed {
            let mut layers: Vec<bool> = listed.iter().map(|item| item.number() == Some(1)).collect();
            layers.resize(count, false);
            return (Some(window), layers);
        }
        let period = self.number("attention.sliding_window_pattern").unwrap_or(facts.period);
        let slides = |index: u64| match (period, facts.dense_first) {
            (0, _) => facts.period != 0,
            (period, true) => !index.is_multiple_of(period),
            (period, false) => index % period < period - 1,
        };
        (Some(window), (0..count as u64).map(|index| index < model.trunk && slides(index)).collect())
    }

    /// Blocks that the code adds to those of the file.
    fn extra_layers(&self, model: &mut Model) -> Result<(), Error> {
        let loops = if self.arch == "nanbeige" { self.number("num_loops").unwrap_or(1).clamp(1, 64) } else { 1 };
        if model.blocks.saturating_mul(loops) > MAX_LAYERS {
            let why = format!("{} blocks, {loops} times, are more than {MAX_LAYERS} layers", model.blocks);
            return Err(Error::Missing { key: self.key("num_loops"), why });
        }
        if loops > 1 {
            let once = model.layers.clone();
            model.layers.extend((1..loops).flat_map(|_| once.clone()));
            model.blocks = model.blocks.saturating_mul(loops);
            model.trunk = model.blocks;
        }
        if self.arch == "graniteswitch" {
            // One more layer with a single head holds the router's keys (src/models/granite-switch.cpp:55-71).
            let Some(attention) = model.layers.last().and_then(|layer| layer.attention) else { return Ok(()) };
            let one = Attention { heads: 1, kv_heads: 1, ..attention };
            let row = Row {
                key: one.key,
                value: one.value,
                key_only: false,
                padded: true,
                cells: Cells::Full,
                per_sequence: false,
            };
            model.layers.push(Layer { attention: Some(one), rows: vec![row], state: None, feed_forward: 0 });
            model.blocks += 1;
        }
        Ok(())
    }
}
