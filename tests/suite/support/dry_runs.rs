//! Recorded dry runs of llama.cpp (`tests/data/memory`, `shared/data/memory`), a line of CSV each. Read by the tests of
//! the formulas and by those of the dry run; who includes it has the names of the types in scope.

use std::collections::HashMap;
use std::path::Path;

use super::{Cache, CacheTypes, GpuLayers, Kind, Settings, Split};

/// What was set, and what it took in bytes.
pub(super) struct Row {
    pub(super) model: String,
    /// `cpu`, `gpu_all`, `gpu_all_cpu_moe`, or `gpu_N_layers`.
    pub(super) placement: String,
    pub(super) settings: Settings,
    /// Tokens after padding: of all sequences, of one.
    pub(super) windows: (u64, u64),
    pub(super) weights: Split,
    pub(super) context: Split,
    pub(super) compute: Split,
    pub(super) output: u64,
}

/// All rows of a file. Those with repacked weights are left out: they depend on the CPU and stand nowhere in a header.
pub(super) fn rows(file: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines.filter(|line| !line.contains(",cpu_repack,")).map(|line| row(&columns, line)).collect()
}

fn row(columns: &[&str], line: &str) -> Row {
    let cells: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
    let number = |name: &str| cells[name].parse::<u64>().unwrap();
    let split = |name: &str| Split { device: number(&format!("{name}_dev")), host: number(&format!("{name}_host")) };
    let placement = cells["placement"];
    let gpu_layers = match placement {
        "cpu" => GpuLayers::None,
        "gpu_all" | "gpu_all_cpu_moe" => GpuLayers::All,
        layers => GpuLayers::Last(layers[4..].trim_end_matches("_layers").parse().unwrap()),
    };
    let settings = Settings {
        cache: Cache {
            types: CacheTypes { k: Kind::named(cells["type_k"]).unwrap(), v: Kind::named(cells["type_v"]).unwrap() },
            unified: number("kv_unified") == 1,
            swa_full: number("swa_full") == 1,
            kv_offload: number("kv_offload") == 1,
        },
        parallel: number("n_seq_max"),
        n_batch: number("n_batch"),
        n_ubatch: number("n_ubatch"),
        flash_attn: number("flash_attn") == 1,
        gpu_layers,
        cpu_moe: if placement == "gpu_all_cpu_moe" { u64::MAX } else { 0 },
        outputs: number("n_outputs_max"),
        ..Settings::libllama(number("n_ctx_req"))
    };
    Row {
        model: cells["model"].to_owned(),
        placement: placement.to_owned(),
        settings,
        windows: (number("n_ctx"), number("n_ctx_seq")),
        weights: split("model"),
        context: split("context"),
        compute: split("compute"),
        output: number("output_host"),
    }
}
