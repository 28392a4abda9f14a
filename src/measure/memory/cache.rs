//! The KV cache and the recurrent state: exact, to the byte.

use super::settings::Window;
use super::shape::{Cells, Layer, Model, Row};
use super::{Settings, Split};

/// Where keys, values and states lie, in bytes: `(kv, state)`.
///
/// KV (src/llama-kv-cache.cpp:209-234): for each layer that owns a cache, rows of keys and of values times cells times
/// streams. Values are stored transposed without flash attention, in rows as wide as the widest layer's. State
/// (src/llama-memory-recurrent.cpp:101-103): always f32, one row a sequence, and one more for each snapshot.
pub(super) fn place(model: &Model, settings: &Settings, window: &Window) -> (Split, Split) {
    let (mut kv, mut state) = (Split::default(), Split::default());
    for (index, layer) in model.layers.iter().enumerate() {
        let on_device = settings.cache.kv_offload && settings.layer_on_device(model, index);
        for row in &layer.rows {
            kv.add(on_device, bytes(model, settings, window, row));
        }
        state.add(on_device, states(settings, layer));
    }
    (kv, state)
}

fn bytes(model: &Model, settings: &Settings, window: &Window, row: &Row) -> u64 {
    let streams = if row.per_sequence { settings.sequences() } else { window.streams };
    let value = match row.value {
        0 if model.mla.is_some() || row.key_only => 0,
        _ if !settings.flash_attn && row.padded => model.widths.value,
        value => value,
    };
    let width = |kind: crate::gguf::Kind, elements: u64| {
        // The settings were checked: a row fills whole blocks; if not, the next whole block is counted.
        kind.row(elements.next_multiple_of(kind.block)).unwrap_or(u64::MAX)
    };
    let row_bytes = width(settings.cache.types.k, row.key).saturating_add(width(settings.cache.types.v, value));
    let cells = match row.cells {
        Cells::Sliding if row.per_sequence => window.own_sliding,
        kind => cells(window, kind),
    };
    row_bytes.saturating_mul(cells).saturating_mul(streams)
}

/// The cells a stream of such a row has.
pub(super) fn cells(window: &Window, cells: Cells) -> u64 {
    match cells {
        Cells::Full => window.full,
        Cells::Sliding => window.sliding,
        Cells::Compressed(ratio) => super::settings::pad(window.full.div_ceil(ratio.max(1)).max(1)),
    }
}

fn states(settings: &Settings, layer: &Layer) -> u64 {
    let Some(state) = &layer.state else { return 0 };
    let rows = settings.sequences().saturating_mul(settings.rollback.saturating_add(1));
    state.conv.saturating_add(state.recurrent).saturating_mul(4).saturating_mul(rows)
}
