//! Against what llama.cpp's own dry runs say: excerpts in `tests/data/memory`, all of `shared/data/memory` if it is here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::shape::Cells;
use super::*;
use crate::gguf::{CacheTypes, Gguf, Kind};

#[path = "../../../tests/suite/support/dry_runs.rs"]
mod dry_runs;

use dry_runs::{Row, rows};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// `shared/data/memory`, if it is here.
fn shared() -> Option<PathBuf> {
    let found = ["../shared/data/memory", "../../shared/data/memory"].iter().map(|p| here(p)).find(|p| p.is_dir());
    if found.is_none() {
        eprintln!("shared/data/memory is not here: only the excerpt is checked");
    }
    found
}

fn models(rows: &[Row], headers: &Path) -> HashMap<String, Model> {
    let names: std::collections::BTreeSet<&String> = rows.iter().map(|row| &row.model).collect();
    let read = |name: &String| Model::of(&Gguf::open(&headers.join(format!("{name}.gguf"))).unwrap()).unwrap();
    names.into_iter().map(|name| (name.clone(), read(name))).collect()
}

fn off(said: u64, truth: u64) -> f64 {
    (said as f64 - truth as f64) / (truth.max(1) as f64) * 100.0
}

/// Checks every row: windows, weights, context and output to the byte; scratch is never below what llama.cpp reserves, and
/// the whole of a model of the usual size and settings is within two fifths of the truth.
fn check(rows: &[Row], models: &HashMap<String, Model>) {
    for row in rows {
        let name = format!("{} {} {:?}", row.model, row.placement, row.settings);
        let cost = cost(&models[&row.model], &row.settings).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        assert_eq!((cost.n_ctx, cost.n_ctx_seq), row.windows, "{name}");
        assert_eq!(cost.weights, row.weights, "{name}");
        assert_eq!(cost.context(), row.context, "{name}");
        assert_eq!(cost.output, row.output, "{name}");
        let sides = [(cost.compute.device, row.compute.device), (cost.compute.host, row.compute.host)];
        for (said, truth) in sides {
            assert!(said >= truth, "{name}: compute {said}, llama.cpp says {truth}");
        }
        let truth = row.weights.plus(row.context).plus(row.compute).total() + row.output;
        let usual = row.weights.total() > 1 << 30 && row.settings.n_ubatch <= 512;
        let usual = usual && !row.model.starts_with("t5") && row.settings.flash_attn && row.settings.cache.kv_offload;
        assert!(!usual || off(cost.total(), truth) <= 40.0, "{name}: total {} of {truth}", cost.total());
    }
}

#[test]
fn the_excerpt_of_llama_cpps_dry_runs() {
    let rows = rows(&here("tests/data/memory/ground_truth.csv"));
    assert!(rows.len() > 500, "{}", rows.len());
    check(&rows, &models(&rows, &here("tests/data/memory/headers")));
}

#[test]
fn models_of_all_kinds() {
    let rows = rows(&here("tests/data/memory/kinds.csv"));
    assert!(rows.len() > 1_500, "{}", rows.len());
    check(&rows, &models(&rows, &here("tests/data/memory/kinds")));
}

#[test]
fn all_of_llama_cpps_dry_runs() {
    let Some(folder) = shared() else { return };
    let rows = rows(&folder.join("ground_truth.csv"));
    assert!(rows.len() >= 2_350, "{}", rows.len());
    check(&rows, &models(&rows, &folder.join("headers")));
}

#[test]
fn the_largest_window_is_never_above_that_of_the_dry_runs() {
    let rows = rows(&here("tests/data/memory/ground_truth.csv"));
    let models = models(&rows, &here("tests/data/memory/headers"));
    for row in rows.iter().filter(|row| row.context.total() > 0 && row.settings.n_ctx >= 2048).step_by(11) {
        let model = &models[&row.model];
        if model.layers.iter().all(|layer| layer.rows.is_empty()) {
            continue;
        }
        let truth = row.weights.plus(row.context).plus(row.compute);
        // What this window takes and not a byte more: it fits, the next does not.
        let budget = Budget { device: truth.device, host: truth.host + row.output, unified: false };
        let answer = largest(model, &row.settings, &budget, 262_144).unwrap();
        let name = format!("{} {} {:?}: {answer:?}", row.model, row.placement, row.settings);
        assert!(answer.n_ctx <= row.windows.0, "above: {name}");
        assert!(answer.n_ctx == 0 || budget.lacks(&answer.cost).is_none(), "{name}");
    }
}

#[test]
fn largest_equals_a_search_step_by_step() {
    let model = Model::of(&Gguf::open(&here("tests/data/memory/headers/smollm2-135m-instruct.gguf")).unwrap()).unwrap();
    let settings = Settings { gpu_layers: GpuLayers::None, ..Settings::llama_server_parallel(0, 2) };
    for host in [100_000_000, 130_000_000, 150_000_000, 200_000_000_u64, u64::MAX] {
        let budget = Budget { device: 0, host, unified: false };
        let fits = |steps: &u64| {
            let settings = Settings { n_ctx: steps * 512, ..settings.clone() };
            budget.lacks(&cost(&model, &settings).unwrap()).is_none()
        };
        let slow = (1..=16).take_while(fits).last().unwrap_or(0) * 512;
        let answer = largest(&model, &settings, &budget, 8192).unwrap();
        assert_eq!(answer.n_ctx, slow, "{host}: {}", answer.because);
    }
}

#[test]
fn unified_memory_counts_once() {
    let model = Model::of(&Gguf::open(&here("tests/data/memory/headers/llama-3.1-8b.gguf")).unwrap()).unwrap();
    let settings = Settings::llama_server(0);
    let both = Budget { device: 6_000_000_000, host: 6_000_000_000, unified: false };
    let one = Budget { device: 6_000_000_000, host: 6_000_000_000, unified: true };
    let [both, one] = [both, one].map(|budget| largest(&model, &settings, &budget, 0).unwrap());
    assert!(one.n_ctx > 0 && one.n_ctx < both.n_ctx, "{} {}", one.n_ctx, both.n_ctx);
}

#[test]
fn settings_that_llama_cpp_refuses() {
    let open =
        |name: &str| Model::of(&Gguf::open(&here(&format!("tests/data/memory/headers/{name}.gguf"))).unwrap()).unwrap();
    let (llama, deepseek) = (open("llama-3.1-8b"), open("deepseek-v3"));
    let [f16, q8] = ["f16", "q8_0"].map(|name| Kind::named(name).unwrap());
    let settings = Settings::llama_server(8192);
    let of = |k, v| Cache { types: CacheTypes { k, v }, ..settings.cache };
    let refused = |model: &Model, settings: Settings| cost(model, &settings).unwrap_err().reason;
    let no_flash = Settings { cache: of(f16, q8), flash_attn: false, ..settings.clone() };
    assert!(refused(&llama, no_flash).contains("flash attention"));
    let mixed = Settings { cache: of(q8, f16), ..settings.clone() };
    assert!(refused(&deepseek, mixed.clone()).contains("one type"));
    assert!(cost(&llama, &mixed).is_ok());
    let q4_k = Settings { cache: of(Kind::named("q4_K").unwrap(), f16), ..settings };
    assert!(refused(&llama, q4_k).contains("head size 128"));
}

#[test]
fn defaults_of_each_server() {
    let server = Settings::llama_server(8192);
    assert_eq!((server.parallel, server.cache.unified, server.cache.swa_full, server.outputs), (4, true, false, 4));
    let two = Settings::llama_server_parallel(8192, 2);
    assert_eq!((two.parallel, two.cache.unified, two.outputs), (2, false, 2));
    let ollama = Settings::ollama(4096, 2);
    assert_eq!((ollama.n_ctx, ollama.parallel, ollama.cache.unified), (8192, 2, false));
    let library = Settings::libllama(8192);
    assert_eq!((library.parallel, library.cache.swa_full, library.outputs), (1, true, 0));
}

#[test]
fn an_unknown_architecture_is_taken_as_full_attention_and_says_so() {
    let gguf = Gguf::open(&here("tests/data/memory/headers/gemma-3-270m.gguf")).unwrap();
    let known = Model::of(&gguf).unwrap();
    let mut renamed = gguf.clone();
    let metadata = std::mem::take(&mut renamed.metadata);
    renamed.metadata = metadata.into_iter().map(|(key, value)| (key.replace("gemma3.", "gemma9."), value)).collect();
    renamed.metadata.insert("general.architecture".to_owned(), crate::gguf::Value::Text("gemma9".to_owned()));
    let unknown = Model::of(&renamed).unwrap();
    assert!(unknown.layers.iter().all(|layer| layer.rows[0].cells == Cells::Full));
    let settings = Settings::llama_server(32_768);
    let [known, unknown] = [known, unknown].map(|model| cost(&model, &settings).unwrap());
    assert!(unknown.kv.total() > known.kv.total());
    assert!(matches!(unknown.source, Source::Assumed(_)) && !unknown.notes.is_empty());
    assert_eq!(known.source, Source::Formula);
}

#[test]
fn headers_that_lie_give_numbers_or_errors() {
    for name in [
        "headers/gpt-oss-20b",
        "headers/deepseek-v3",
        "headers/qwen3-next-80b-a3b",
        "kinds/gemma3n",
        "kinds/jamba",
        "kinds/lfm2moe",
        "kinds/glm-dsa",
        "kinds/nemotron_h_moe",
        "kinds/gemma4-e",
        "kinds/rwkv7",
        "kinds/step35",
        "kinds/bailingmoe3",
        "kinds/bert",
        "kinds/chameleon",
        "kinds/grovemoe",
        "kinds/hrm_text",
        "kinds/minimax-01",
        "kinds/minimax-m3",
        "kinds/nanbeige",
        "kinds/plamo2",
        "kinds/t5",
    ] {
        lying(&Gguf::open(&here(&format!("tests/data/memory/{name}.gguf"))).unwrap());
    }
}

/// Every number of a header replaced by others, one at a time.
fn lying(gguf: &Gguf) {
    let prefix = format!("{}.", gguf.text("general.architecture").unwrap());
    let keys: Vec<String> = gguf.metadata.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
    for key in keys {
        for value in [0, 1, 7, u64::MAX] {
            let mut changed = gguf.clone();
            changed.metadata.insert(key.clone(), crate::gguf::Value::Unsigned(value));
            let Ok(model) = Model::of(&changed) else { continue };
            for settings in [Settings::llama_server(8192), Settings { flash_attn: false, ..Settings::libllama(0) }] {
                let _ = cost(&model, &settings).map(|cost| cost.total());
            }
        }
    }
}

#[test]
fn numbers_that_no_model_has_are_refused_by_name() {
    use crate::gguf::Writer;
    let header = |arch: &str, blocks: u32, more: &[(&str, u32)]| {
        let key = |name: &str| format!("{arch}.{name}");
        let writer = Writer::default().text("general.architecture", arch).number(&key("block_count"), blocks);
        let writer = writer.number(&key("embedding_length"), 64).number(&key("attention.head_count"), 1);
        let bytes = more.iter().fold(writer, |writer, (name, number)| writer.number(&key(name), *number)).bytes();
        Model::of(&Gguf::read(std::io::Cursor::new(bytes)).unwrap())
    };
    assert_eq!(header("llama", 2, &[("context_length", 10_485_760)]).unwrap().trained, 10_485_760);
    assert_eq!(header("nanbeige", 32, &[("num_loops", 3)]).unwrap().layers.len(), 96);
    for (header, number) in [
        (header("llama", 2, &[("context_length", u32::MAX)]), "4294967295"),
        (header("llama", 1_000_000, &[]), "1000000"),
        (header("nanbeige", 1_000, &[("num_loops", 60)]), "60 times"),
    ] {
        let why = header.unwrap_err().to_string();
        assert!(why.contains(number) && why.contains("no usable `"), "{why}");
    }
}
