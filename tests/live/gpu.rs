//! The embedded engine on a real device of ggml's, in a build with a backend for it: `scripts/test --gpu`. Where there is no
//! GPU, Mesa's Vulkan driver for CPUs is one: slow, and to llama.cpp a GPU as any other.

use std::path::Path;

use serde_json::{Value, json};
use windowsill::gguf::{CacheTypes, Gguf, Kind};
use windowsill::measure::afford::dry_run::DryRunner;
use windowsill::measure::memory::{Cache, GpuLayers, Model, Settings, cost};

use crate::support::servers::{Windowsill, place};
use crate::support::{http, models, say};

/// The GPU that it computes on, as `doctor` shows it.
fn gpu(windowsill: &Windowsill) -> Value {
    let doctor = windowsill.cli(&["doctor", "--json", "--upstream", &windowsill.url()]).expect("it is well");
    let doctor: Value = serde_json::from_str(&doctor).expect("JSON");
    let gpus = doctor["machine"]["gpus"].as_array().expect("a list").clone();
    gpus.into_iter().find(|gpu| gpu["embedded_engine"] == true).expect("a GPU that the embedded engine computes on")
}

/// What `/windowsill/models` says of the model.
fn shown(windowsill: &Windowsill) -> Value {
    http::get(&format!("{}/windowsill/models", windowsill.url())).json()["models"][0].clone()
}

fn said(windowsill: &Windowsill, question: &str) -> (String, Value) {
    let body = json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 3});
    let reply = http::post(&windowsill.chat_url(), body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    (reply["choices"][0]["message"]["content"].as_str().expect("text").to_owned(), reply["timings"].clone())
}

/// What is really held, byte for byte: of all windows, types of caches and numbers of layers.
#[test]
fn what_it_takes_of_a_gpu_is_what_was_reckoned() {
    let file = place("WINDOWSILL_MODEL");
    let model = Model::of(&Gguf::open(Path::new(&file)).unwrap()).unwrap();
    let runner = DryRunner::of(Path::new(env!("CARGO_BIN_EXE_windowsill")), Path::new(&file)).unwrap();
    let all = u64::from(u32::MAX);
    for (window, layers, kind) in [
        (8192, all, "f16"),
        (2048, all, "f16"),
        (8192, all, "q8_0"),
        (8192, 30, "f16"),
        (4096, 5, "f16"),
        (4096, 1, "q8_0"),
    ] {
        let (ctx, number) = (window.to_string(), if layers == all { "all".to_owned() } else { layers.to_string() });
        let windowsill = Windowsill::itself(&[], &["--num-ctx", &ctx, "--gpu-layers", &number, "--kv-type", kind]);
        let model_shown = shown(&windowsill);
        let held = |key: &str| model_shown[key].as_u64().expect(key);
        let kind = Kind::named(kind).unwrap();
        let gpu_layers = GpuLayers::Last(layers.min(model.blocks + 1));
        let basis = Settings::llama_server_parallel(window, 1);
        let cache = Cache { types: CacheTypes { k: kind, v: kind }, ..basis.cache };
        let settings = Settings { gpu_layers, cache, ..basis };
        let told = runner.cost(&model, &settings).unwrap();
        assert_eq!(held("held_gpu_bytes"), told.device(), "{window} {number}: {model_shown}");
        let formula = cost(&model, &settings).unwrap();
        let reckoned = formula.device() + formula.op_offload;
        say(&format!("{window} tokens, {number} layers: {} held, {reckoned} by formula", told.device()));
        // To the byte, but for how ggml packs what is copied.
        assert!(reckoned.abs_diff(told.device()) <= told.device() / 100, "{reckoned} for {}", told.device());
        if layers == all {
            // Tensors start at other multiples there than in RAM.
            assert!(reckoned.abs_diff(told.device()) < 4096, "{reckoned} for {}", told.device());
            // Logits are in no breakdown of llama.cpp's; weights in RAM begin where they do in the file.
            assert!((held("held_bytes") + told.output).abs_diff(told.total()) < 4096, "{model_shown}");
        }
    }
}

/// Sliding windows, recurrent layers, and both: what the driver cannot do stays in RAM.
#[test]
fn models_of_other_kinds_take_what_was_reckoned() {
    let dir = tempfile::tempdir().unwrap();
    for arch in [models::GEMMA3, models::MAMBA, models::LFM2] {
        let file = dir.path().join(format!("{arch}.gguf"));
        models::write(&file, arch);
        let model = Model::of(&Gguf::open(&file).unwrap()).unwrap();
        let runner = DryRunner::of(Path::new(env!("CARGO_BIN_EXE_windowsill")), &file).unwrap();
        for layers in [model.blocks + 1, model.blocks / 2] {
            let windowsill =
                Windowsill::serving(&file, &[], &["--num-ctx", "1024", "--gpu-layers", &layers.to_string()]);
            let settings = Settings {
                gpu_layers: GpuLayers::Last(layers),
                flash_auto: true,
                ..Settings::llama_server_parallel(1024, 1)
            };
            let told = runner.cost(&model, &settings).unwrap();
            let formula = cost(&model, &settings).unwrap();
            let (held, reckoned) =
                (shown(&windowsill)["held_gpu_bytes"].clone(), formula.device() + formula.op_offload);
            say(&format!("{arch}, {layers} layers: {held} held, {} told, {reckoned} by formula", told.device()));
            assert_eq!(held, told.device(), "{arch}, {layers} layers");
            let near = told.device() / 100 * 99..=told.device() / 100 * 115;
            assert!(near.contains(&reckoned), "{arch}, {layers} layers: {reckoned} for {}", told.device());
        }
    }
}

#[test]
fn as_many_layers_go_to_a_gpu_as_fit_and_the_rest_to_ram() {
    let whole = Windowsill::itself(&[], &[]);
    let device = gpu(&whole);
    let total = device["bytes"]["total_bytes"].as_u64().expect("its memory is told");
    let needs = shown(&whole)["held_gpu_bytes"].as_u64().expect("it is on the GPU");
    assert!(shown(&whole)["affordable"]["gpu"] == 8192 && needs > 200 << 20, "{}", shown(&whole));
    say(&format!("{} of {}: {needs} bytes", device["name"], total));
    drop(whole);

    let free = device["bytes"]["free_bytes"].as_u64().unwrap();
    for share in [2, 3] {
        // So much stays free that only a part fits.
        let may = needs / share;
        let headroom = (free - may) as f64 / total as f64;
        let headroom = format!("{headroom:.6}");
        let windowsill = Windowsill::itself(&[("WINDOW_MEMORY_HEADROOM", &headroom)], &["--num-ctx", "8192"]);
        let model = shown(&windowsill);
        let (held, all) = (model["held_gpu_bytes"].as_u64().unwrap(), model["held_bytes"].as_u64().unwrap());
        assert!(held > may / 2 && held <= may + (1 << 20), "{held} of {may}: {model}");
        assert!(all > held && model["affordable"]["gpu_and_ram"] == 8192, "{model}");
        assert_eq!(said(&windowsill, "What is the capital of France?").0, "The capital of");
    }

    let nothing = Windowsill::itself(&[("WINDOW_MEMORY_HEADROOM", "0.9999")], &["--num-ctx", "2048"]);
    assert_eq!(shown(&nothing)["held_gpu_bytes"], 0, "{}", shown(&nothing));
    let none = Windowsill::itself(&[], &["--gpu-layers", "0"]);
    assert_eq!(shown(&none)["held_gpu_bytes"], 0, "{}", shown(&none));
    assert!(shown(&none)["affordable"]["because"].as_str().unwrap().contains("fit RAM"), "{}", shown(&none));
}

/// A prompt that another took the place of comes back from RAM to the GPU.
#[test]
fn conversations_on_a_gpu_go_on_from_what_is_cached() {
    let windowsill = Windowsill::itself(&[], &["--num-ctx", "2048"]);
    let one = format!("{} What is the capital of France?", "The sea is blue. ".repeat(40));
    let other = format!("{} What is the capital of Italy?", "The sky is wide. ".repeat(40));
    let (first, evaluated) = said(&windowsill, &one);
    said(&windowsill, &other);
    let (again, timings) = said(&windowsill, &one);
    assert_eq!(first, again);
    assert!(evaluated["prompt_n"].as_u64() > Some(200) && timings["prompt_n"] == 1, "{evaluated} {timings}");
    // The drivers are in the process that generates alone: they take memory of the GPU where they are.
    let drivers = |process: &str| {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        maps.lines().any(|line| ["libvulkan_", "nvidia", "libcuda"].iter().any(|name| line.contains(name)))
    };
    let workers = windowsill.children();
    assert!(workers.iter().any(|id| drivers(&id.to_string())), "{workers:?}");
    assert!(!drivers(&windowsill.id()));
}
