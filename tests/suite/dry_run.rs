//! `windowsill fit --method dry-run`: llama.cpp's own dry run, in a process of its own, against what llama.cpp said when
//! the figures in `tests/data/memory` were recorded, and against the formulas.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use windowsill::gguf::{CacheTypes, Gguf, Kind};
use windowsill::measure::afford::dry_run::DryRunner;
use windowsill::measure::memory::{
    Budget, Cache, Cost, GpuLayers, Model, Settings, Source, Split, cost, largest, largest_near,
};

use super::config::root;

#[path = "support/dry_runs.rs"]
mod dry_runs;

use dry_runs::rows;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_windowsill"))
}

fn data(path: &str) -> PathBuf {
    root().join("tests/data/memory").join(path)
}

fn fit(args: &[&str]) -> Output {
    Command::new(program()).arg("fit").args(args).output().unwrap()
}

/// The dry run here says, to the byte, what llama.cpp said elsewhere: the stand-in for a GPU, the placing of layers and
/// experts, and every setting mean the same.
#[test]
fn dry_runs_are_those_that_were_recorded() {
    for (file, folder, every) in [("ground_truth.csv", "headers", 5), ("kinds.csv", "kinds", 5)] {
        let rows = rows(&data(file));
        let mut open: HashMap<&str, (DryRunner, Model)> = HashMap::new();
        let mut wrong = Vec::new();
        for row in rows.iter().step_by(every) {
            let (runner, model) = open.entry(&row.model).or_insert_with(|| {
                let path = data(&format!("{folder}/{}.gguf", row.model));
                let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
                (DryRunner::of(program(), &path).unwrap_or_else(|why| panic!("{}: {why}", path.display())), model)
            });
            let told = runner.cost(model, &row.settings);
            let same = told.as_ref().is_ok_and(|told| {
                let parts = (told.weights, told.context(), told.compute, told.output);
                parts == (row.weights, row.context, row.compute, row.output)
                    && (told.n_ctx, told.n_ctx_seq) == row.windows
            });
            if !same {
                wrong.push(format!(
                    "{} {} {:?}: {told:?}, recorded {:?} {:?} {:?}",
                    row.model, row.placement, row.settings, row.weights, row.context, row.compute
                ));
            }
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len() / every, wrong.join("\n"));
    }
}

/// What a GPU takes over of the work of layers in RAM, by formula and by dry run: weights are copied to it.
#[test]
fn what_a_gpu_takes_over_of_ram_is_bounded() {
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for folder in ["headers", "kinds"] {
        for file in std::fs::read_dir(data(folder)).unwrap() {
            let path = file.unwrap().path();
            let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
            // Some blocks run several times, each time with weights that are copied again.
            if model.arch == "hrm_text" {
                continue;
            }
            let Ok(runner) = DryRunner::of(program(), &path) else { continue };
            let most = model.blocks;
            for (layers, cpu_moe, n_ctx) in
                [(most / 2, 0, 4096), (most, 0, 8192), (1, 0, 8192), (most + 1, 1, 4096), (most + 1, u64::MAX, 8192)]
            {
                let gpu_layers = GpuLayers::Last(layers);
                let settings = Settings { gpu_layers, cpu_moe, ..Settings::llama_server_parallel(n_ctx, 1) };
                let (Ok(formula), Ok(told)) = (cost(&model, &settings), runner.cost(&model, &settings)) else {
                    continue;
                };
                if formula.source != Source::Formula {
                    continue;
                }
                tried += 1;
                let together = |cost: &Cost| cost.op_offload + cost.compute.device;
                if together(&formula) < together(&told) / 10 * 9 {
                    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                    wrong.push(format!("{name} {layers} of {most}, {cpu_moe} experts: {formula:?}, told {told:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried >= 700, "{tried}");
}

/// What a search over dry runs finds, and what the formulas say.
#[test]
fn the_largest_window_by_formula_is_never_above_a_search_over_dry_runs() {
    let f16 = Kind::named("f16").unwrap();
    let q8 = Kind::named("q8_0").unwrap();
    let mut tried = 0;
    for name in
        ["headers/smollm2-135m-instruct", "headers/gemma-3-270m", "headers/gpt-oss-20b", "kinds/jamba", "kinds/ds2"]
    {
        let path = data(&format!("{name}.gguf"));
        let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
        let runner = DryRunner::of(program(), &path).unwrap();
        for (gpu_layers, kind, parallel, at) in [
            (GpuLayers::None, f16, 1, 3000),
            (GpuLayers::All, q8, 1, 12_000),
            (GpuLayers::All, f16, 4, 20_000),
            (GpuLayers::Last(4), f16, 2, 9000),
        ] {
            let basis = Settings::llama_server_parallel(at, parallel);
            let cache = Cache { types: CacheTypes { k: kind, v: kind }, ..basis.cache };
            let settings = Settings { gpu_layers, cache, ..basis };
            let Ok(there) = runner.cost(&model, &settings) else { continue };
            // What this window takes, and half of the next step.
            let next = runner.cost(&model, &Settings { n_ctx: at + 256 * parallel, ..settings.clone() }).unwrap();
            let middle = |a: u64, b: u64| a + b.saturating_sub(a) / 2;
            let budget = Budget {
                device: middle(there.device(), next.device()),
                host: middle(there.host(), next.host()),
                unified: false,
            };
            let step = 256 * parallel;
            let searched = largest_near(at / step, 131_072 / step, |steps| {
                let settings = Settings { n_ctx: steps * step, ..settings.clone() };
                runner.cost(&model, &settings).map(|cost| budget.lacks(&cost).is_none())
            });
            let searched = searched.unwrap() * step;
            let formula = largest(&model, &settings, &budget, 131_072).unwrap().n_ctx;
            assert!(formula <= searched, "{name} {settings:?}: {formula}, {searched}");
            assert_eq!(cost(&model, &settings).unwrap().context(), there.context(), "{name} {settings:?}");
            tried += 1;
        }
    }
    assert!(tried >= 15, "{tried}");
}

#[test]
fn a_search_near_a_guess_ends_where_a_full_one_does() {
    for most in [1, 2, 7, 100] {
        for edge in 0..=most {
            for guess in 0..=most + 3 {
                let mut asked = 0;
                let found = largest_near(guess, most, |steps| {
                    asked += 1;
                    assert!((1..=most).contains(&steps), "{steps} of {most}");
                    Ok::<bool, ()>(steps <= edge)
                });
                assert_eq!(found, Ok(edge), "{guess} of {most}");
                assert!(guess.min(most) != edge || asked <= 2, "{asked} for a good guess");
            }
        }
    }
}

#[test]
fn fit_says_what_its_dry_run_covers() {
    let header = data("headers/llama-3.1-8b.gguf").display().to_string();
    let run = |args: &[&str]| fit(&[&[header.as_str(), "--memory", "12GiB", "--ctx", "8192"], args].concat());
    let text = |out: &Output| String::from_utf8(out.stdout.clone()).unwrap();
    let json = |args: &[&str]| serde_json::from_slice::<Value>(&run(args).stdout).unwrap();
    for layers in ["all", "0"] {
        let by = |method: &str| json(&["--gpu-layers", layers, "--json", "--method", method]);
        let (dry, formula, auto) = (by("dry-run"), by("formula"), by("auto"));
        assert_eq!((&dry["rows"][0]["source"], &formula["rows"][0]["source"]), (&"dry-run".into(), &"formula".into()));
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let total = |of: &Value| number(&of["rows"][0]["total_bytes"]);
        assert!(total(&dry) <= total(&formula) && total(&formula) < total(&dry) / 10 * 12, "{dry} {formula}");
        assert!(number(&dry["num_ctx"]) >= number(&formula["num_ctx"]));
        assert_eq!(dry, auto);
    }
    let gpu = text(&run(&["--gpu-layers", "all", "--method", "dry-run"]));
    assert!(gpu.contains("no backend for a GPU") && gpu.contains("not in it"), "{gpu}");
    let cpu = text(&run(&["--gpu-layers", "0", "--method", "dry-run"]));
    assert!(cpu.contains("on the CPU"), "{cpu}");
}

/// llama.cpp ends the process over files that are made for it; windowsill says so and lives.
#[test]
fn files_that_llama_cpp_does_not_survive_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(data("headers/smollm2-135m-instruct.gguf")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let find = |key: &str| whole.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len();
    // Behind a key stands the kind of its value, and the value.
    let with = |key: &str, value: u32| {
        let mut bytes = whole.clone();
        let at = find(key) + 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for (name, bytes) in [
        ("no-heads.gguf", with("llama.attention.head_count", 0)),
        ("many-blocks.gguf", with("llama.block_count", 3000)),
        ("wide.gguf", with("llama.embedding_length", 1 << 30)),
        ("many-keys.gguf", with("llama.attention.head_count_kv", u32::MAX)),
        ("cut.gguf", whole[..whole.len() / 2].to_vec()),
        ("empty.gguf", Vec::new()),
        ("text.gguf", b"GGUF is not all it takes".to_vec()),
    ] {
        let path = write(name, &bytes);
        for method in ["formula", "dry-run", "auto"] {
            let out = fit(&[&path, "--method", method, "--ctx", "4096"]);
            let said = String::from_utf8_lossy(&out.stderr);
            let code = out.status.code();
            assert!(
                code == Some(1) && said.starts_with("error: ") || code == Some(0),
                "{name} {method}: {code:?} {said}"
            );
            assert!(!said.contains("panicked"), "{name} {method}: {said}");
            assert!(method != "dry-run" || code == Some(1), "{name}: {}", String::from_utf8_lossy(&out.stdout));
        }
    }
}

/// Formulas against dry runs where they were recorded with other settings, or not at all: without KV offload, with a row of
/// logits for each token, and with sequences that do not divide evenly.
#[test]
fn formulas_are_never_below_dry_runs_for_any_kind_of_model() {
    let (f16, q8) = (Kind::named("f16").unwrap(), Kind::named("q8_0").unwrap());
    let mut wrong = Vec::new();
    let mut tried = 0;
    for entry in std::fs::read_dir(data("kinds")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
        let runner = DryRunner::of(program(), &path).unwrap();
        for (gpu_layers, kv_offload) in
            [(GpuLayers::None, true), (GpuLayers::All, true), (GpuLayers::Last(4), true), (GpuLayers::All, false)]
        {
            for (n_ctx, kind, parallel, flash_attn, outputs) in
                [(4096, f16, 1, true, 0), (700, q8, 3, true, 3), (9000, f16, 2, false, 2)]
            {
                let basis = Settings::llama_server_parallel(n_ctx, parallel);
                let cache = Cache { types: CacheTypes { k: kind, v: kind }, kv_offload, ..basis.cache };
                let settings = Settings { gpu_layers, cache, flash_attn, outputs, ..basis };
                let Ok(said) = cost(&model, &settings) else { continue };
                // llama.cpp gives up over some of its own models with uneven sequences.
                let Ok(truth) = runner.cost(&model, &settings) else { continue };
                tried += 1;
                assert_eq!((said.context(), said.weights), (truth.context(), truth.weights), "{name} {settings:?}");
                for (said, truth) in
                    [(said.compute.device, truth.compute.device), (said.compute.host, truth.compute.host)]
                {
                    if said < truth {
                        wrong.push(format!("{name} {said} {truth} {settings:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 600, "{tried}");
}
