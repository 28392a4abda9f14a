//! `windowsill fit --method dry-run`: llama.cpp's own dry run, in a process of its own, against what llama.cpp said when
//! the figures in `tests/data/memory` were recorded, and against the formulas.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use windowsill::gguf::{Gguf, Kind};
use windowsill::measure::afford::dry_run::Rehearsal;
use windowsill::measure::memory::{Budget, GpuLayers, Model, Settings, Split, cost, largest, largest_near};

use super::config::root;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_windowsill"))
}

fn data(path: &str) -> PathBuf {
    root().join("tests/data/memory").join(path)
}

fn fit(args: &[&str]) -> Output {
    Command::new(program()).arg("fit").args(args).output().unwrap()
}

/// A recorded dry run: of what model, with what settings, and what it took.
struct Row {
    model: String,
    settings: Settings,
    weights: Split,
    context: Split,
    compute: Split,
}

fn rows(file: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(data(file)).unwrap();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    // Weights repacked depend on the CPU.
    lines.filter(|line| !line.contains(",cpu_repack,")).map(|line| row(&columns, line)).collect()
}

fn row(columns: &[&str], line: &str) -> Row {
    let cells: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
    let number = |name: &str| cells[name].parse::<u64>().unwrap();
    let split = |name: &str| Split { device: number(&format!("{name}_dev")), host: number(&format!("{name}_host")) };
    let placement = cells["placement"];
    let settings = Settings {
        type_k: Kind::named(cells["type_k"]).unwrap(),
        type_v: Kind::named(cells["type_v"]).unwrap(),
        parallel: number("n_seq_max"),
        unified: number("kv_unified") == 1,
        n_batch: number("n_batch"),
        n_ubatch: number("n_ubatch"),
        flash_attn: number("flash_attn") == 1,
        swa_full: number("swa_full") == 1,
        kv_offload: number("kv_offload") == 1,
        gpu_layers: match placement {
            "cpu" => GpuLayers::None,
            "gpu_all" | "gpu_all_cpu_moe" => GpuLayers::All,
            layers => GpuLayers::Last(layers[4..].trim_end_matches("_layers").parse().unwrap()),
        },
        cpu_moe: if placement == "gpu_all_cpu_moe" { u64::MAX } else { 0 },
        outputs: number("n_outputs_max"),
        ..Settings::libllama(number("n_ctx_req"))
    };
    let (weights, context, compute) = (split("model"), split("context"), split("compute"));
    Row { model: cells["model"].to_owned(), settings, weights, context, compute }
}

/// The dry run here says, to the byte, what llama.cpp said elsewhere: the stand-in for a GPU, the placing of layers and
/// experts, and every setting mean the same.
#[test]
fn dry_runs_are_those_that_were_recorded() {
    for (file, folder, every) in [("ground_truth.csv", "headers", 5), ("kinds.csv", "kinds", 5)] {
        let rows = rows(file);
        let mut open: HashMap<&str, (Rehearsal, Model)> = HashMap::new();
        let mut wrong = Vec::new();
        for row in rows.iter().step_by(every) {
            let (rehearsal, model) = open.entry(&row.model).or_insert_with(|| {
                let path = data(&format!("{folder}/{}.gguf", row.model));
                let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
                (Rehearsal::of(program(), &path).unwrap_or_else(|why| panic!("{}: {why}", path.display())), model)
            });
            match rehearsal.cost(model, &row.settings) {
                Ok(told) if (told.weights, told.context(), told.compute) == (row.weights, row.context, row.compute) => {}
                told => wrong.push(format!(
                    "{} {:?}: {told:?}, recorded {:?} {:?} {:?}",
                    row.model, row.settings, row.weights, row.context, row.compute
                )),
            }
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len() / every, wrong.join("\n"));
    }
}
