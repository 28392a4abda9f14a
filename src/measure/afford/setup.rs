//! PURE: how a server would set a context up, by kind of server: from what its process was started with, its environment
//! and its own answers, else from its defaults. What is assumed is noted.

use std::collections::BTreeMap;

use super::Ours;
use crate::engine::devices::BACKENDS;
use crate::engine::generate::SNAPSHOTS;
use crate::gguf::{CacheTypes, Kind};
use crate::measure::memory::{GpuLayers, Model, Settings};
use crate::measure::process::Process;
use crate::upstream::Loaded;

/// llama-server's prompt cache in RAM where nobody set another (`--cache-ram`, bytes).
const CACHE_RAM: u64 = 8192 << 20;

/// llama-server's context checkpoints a slot where nobody set another number (`--ctx-checkpoints`).
const CHECKPOINTS: u64 = 32;

/// Architectures that Ollama works on one request at a time with, whatever was asked (ollama/ollama server/sched.go).
const ONE_AT_A_TIME: [&str; 6] = ["mllama", "qwen3vl", "qwen35", "qwen3next", "lfm2", "nemotron_h"];

/// How a server sets contexts up.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Everything but the window.
    pub settings: Settings,
    /// Each slot has a whole window (`true`, Ollama), or the slots divide what was asked for (llama-server with `-np`).
    pub whole_each: bool,
    /// The most that the server keeps of earlier prompts in RAM (bytes); 0 for none.
    pub cache_ram: u64,
    /// How many copies of what a slot cannot rewind (recurrent state, sliding windows) the server keeps in RAM.
    pub checkpoints: u64,
    /// Memory of a GPU that the server leaves alone (bytes).
    pub gpu_overhead: u64,
    /// What was found or assumed, and what is in no figure.
    pub notes: Vec<String>,
}

/// What an Ollama runs models with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// Its own runner, around llama.cpp's library.
    Runner,
    /// llama-server, as its child.
    LlamaServer,
}

impl Runs {
    /// The last minor version 0.N known to have the runner.
    const LAST_RUNNER: u32 = 13;

    /// By the process that serves a model, else by the server's version, else as the newest.
    pub fn of(process: Option<&Process>, version: Option<&str>) -> Runs {
        let program =
            |process: &Process| process.arguments.first().is_some_and(|program| program.contains("llama-server"));
        match process {
            Some(process) if process.arguments.get(1).is_some_and(|word| word == "runner") => return Runs::Runner,
            Some(process) if program(process) => return Runs::LlamaServer,
            // Somebody else who has the file open.
            _ => {}
        }
        let minor = version.and_then(|v| v.strip_prefix("0.")?.split('.').next()?.parse::<u32>().ok());
        if minor.is_some_and(|minor| minor <= Runs::LAST_RUNNER) { Runs::Runner } else { Runs::LlamaServer }
    }
}

impl Setup {
    /// A model by itself: one slot, no server's caches.
    pub fn plain() -> Setup {
        let settings = Settings::llama_server_parallel(0, 1);
        Setup { settings, whole_each: false, cache_ram: 0, checkpoints: 0, gpu_overhead: 0, notes: Vec::new() }
    }

    /// That of a model that this program serves itself: one slot. `gpu`: there is one that it computes on; `any`: there is one.
    pub fn embedded(ours: Ours, model: &Model, gpu: bool, any: bool) -> Setup {
        let mut setup = Setup { checkpoints: SNAPSHOTS as u64, ..Setup::plain() };
        setup.settings.flash_auto = true;
        if let Some(types @ CacheTypes { k, v }) = ours.kv_type {
            setup.settings.cache.types = types;
            setup.notes.push(format!("KV cache {} and {}, as configured (kv_type)", k.name, v.name));
        }
        setup.settings.gpu_layers = match ours.gpu_layers {
            Some(0) => GpuLayers::None,
            _ if !gpu => GpuLayers::None,
            // What somebody asked for is not second-guessed, as it would be for all.
            Some(layers) => GpuLayers::Last(u64::from(layers).min(model.blocks.saturating_add(1))),
            None => GpuLayers::All,
        };
        let kept = "earlier prompts are kept in RAM while it is free, up to 8 GiB, which is in no figure";
        setup.notes.push(kept.to_owned());
        let unused = match BACKENDS {
            [] => "this build of windowsill computes on the CPU alone: the GPU is left out".to_owned(),
            some => format!(
                "this build of windowsill computes by {}, which has no GPU here: the GPU is left out",
                some.join(" and ")
            ),
        };
        setup.notes.extend((any && !gpu).then_some(unused));
        setup
    }

    /// The settings for a window: that of one request, except where slots divide it.
    pub fn at(&self, window: u64) -> Settings {
        let n_ctx = if self.whole_each { window.saturating_mul(self.settings.parallel.max(1)) } else { window };
        Settings { n_ctx, ..self.settings.clone() }
    }

    /// The window that such settings stand for.
    pub fn window(&self, n_ctx: u64) -> u64 {
        if self.whole_each { n_ctx / self.settings.parallel.max(1) } else { n_ctx }
    }

    /// What one request gets of a window asked for.
    pub fn share(&self, window: u64) -> u64 {
        let divides = !self.whole_each && !self.settings.cache.unified;
        if divides { window / self.settings.parallel.max(1) } else { window }
    }

    /// How the slots share, in words; nothing where there is one.
    pub fn sharing(&self) -> Option<String> {
        let slots = self.settings.parallel;
        match (slots, self.whole_each, self.settings.cache.unified) {
            (0 | 1, ..) => None,
            (_, true, _) => {
                Some(format!("{slots} slots, each with a window of its own: the memory of {slots} windows"))
            }
            (_, _, true) => Some(format!("{slots} slots share one window: requests at once have it together")),
            _ => Some(format!("{slots} slots divide the window: each request has 1/{slots} of it")),
        }
    }

    /// Ollama's, by the environment of `ollama serve` and what it runs models with.
    pub fn ollama(
        environment: &BTreeMap<String, String>,
        from: &str,
        model: &Model,
        runs: Runs,
        has_gpu: bool,
    ) -> Setup {
        let get =
            |name: &str| environment.get(name).map(|v| v.trim().trim_matches(['"', '\''])).filter(|v| !v.is_empty());
        let asked = get("OLLAMA_NUM_PARALLEL").and_then(|n| n.parse::<u64>().ok()).filter(|n| *n > 0);
        let one = ONE_AT_A_TIME.iter().any(|arch| model.arch.starts_with(arch));
        let parallel = if one { 1 } else { asked.unwrap_or(1) };
        let mut settings = Settings::ollama(0, parallel);
        if runs == Runs::Runner {
            // Read in the log of Ollama 0.13.5: batches of 512, logits for each of their tokens.
            settings = Settings { n_batch: 512, n_ubatch: 512, outputs: 0, ..settings };
        }
        // Unset, the runner has llama.cpp decide, which can anywhere; with llama-server it is on where GPUs can.
        let unset = runs == Runs::Runner || has_gpu;
        settings.flash_attn =
            get("OLLAMA_FLASH_ATTENTION").map_or(unset, |v| matches!(v, "1" | "true" | "TRUE" | "on"));
        settings.flash_auto = get("OLLAMA_FLASH_ATTENTION").is_none();
        let mut notes = Vec::new();
        if let Some(kind) = get("OLLAMA_KV_CACHE_TYPE").and_then(Kind::named) {
            if settings.flash_attn || !kind.quantized() {
                settings.cache.types = CacheTypes { k: kind, v: kind };
            } else {
                notes.push(format!(
                    "OLLAMA_KV_CACHE_TYPE={} needs flash attention, which is off: f16 is reckoned with",
                    kind.name
                ));
            }
        }
        let found = format!(
            "{parallel} at once (OLLAMA_NUM_PARALLEL), KV cache {} (OLLAMA_KV_CACHE_TYPE), flash attention {}, by {from}",
            settings.cache.types.k.name,
            if settings.flash_attn { "on" } else { "off" }
        );
        notes.insert(0, found);
        let gpu_overhead = get("OLLAMA_GPU_OVERHEAD").and_then(|n| n.parse().ok()).unwrap_or(0);
        Setup { settings, whole_each: true, gpu_overhead, notes, ..Setup::plain() }
    }

    /// llama-server's, by its command line, where its process was found, and by what it says.
    pub fn llama_server(process: Option<&Process>, loaded: &Loaded, has_gpu: bool) -> Setup {
        let option = |names: &[&str]| process.and_then(|process| process.option(names));
        let flag = |names: &[&str]| process.is_some_and(|process| process.has(names));
        let number = |names: &[&str]| option(names).and_then(|n| n.parse::<u64>().ok());
        let told = number(&["-np", "--parallel"])
            .filter(|n| *n > 0)
            .or_else(|| loaded.slots.map(u64::from).filter(|n| *n != 4));
        let unified = flag(&["-kvu", "--kv-unified"]) || loaded.unified == Some(true);
        let mut settings = match told {
            Some(slots) => Settings::llama_server_parallel(0, slots),
            None => Settings::llama_server(0),
        };
        settings.cache.unified |= unified;
        let kind = |names: &[&str]| option(names).and_then(Kind::named);
        settings.cache.types.k = kind(&["-ctk", "--cache-type-k"]).unwrap_or(settings.cache.types.k);
        settings.cache.types.v = kind(&["-ctv", "--cache-type-v"]).unwrap_or(settings.cache.types.v);
        settings.n_batch = number(&["-b", "--batch-size"]).unwrap_or(settings.n_batch);
        settings.n_ubatch = number(&["-ub", "--ubatch-size"]).unwrap_or(settings.n_ubatch);
        let flash_attn = option(&["-fa", "--flash-attn"]);
        settings.flash_attn = !matches!(flash_attn, Some("off" | "0" | "false"));
        settings.flash_auto = !matches!(flash_attn, Some("on" | "1" | "true"));
        settings.cache.swa_full = flag(&["--swa-full"]);
        settings.cache.kv_offload = !flag(&["-nkvo", "--no-kv-offload"]);
        settings.op_offload = !flag(&["--no-op-offload"]);
        settings.cpu_moe =
            if flag(&["-cmoe", "--cpu-moe"]) { u64::MAX } else { number(&["-ncmoe", "--n-cpu-moe"]).unwrap_or(0) };
        settings.gpu_layers = match option(&["-ngl", "--gpu-layers", "--n-gpu-layers"]) {
            _ if !has_gpu => GpuLayers::None,
            Some(n) => n.parse().map_or(GpuLayers::All, GpuLayers::Last),
            None => GpuLayers::All,
        };
        let mut notes = vec![match process {
            Some(process) => format!("settings by the command line of process {}", process.id),
            None => "the server's process was not found: its defaults are assumed".to_owned(),
        }];
        let beside = [
            (&["--mmproj", "-mm"][..], "an image projector"),
            (&["-md", "--model-draft"][..], "a draft model"),
            (&["--lora"][..], "LoRA adapters"),
        ];
        for (names, what) in beside {
            if option(names).is_some() {
                notes.push(format!("{what} is loaded too, and in no figure here"));
            }
        }
        let cache_ram = match option(&["-cram", "--cache-ram"]).map(str::parse::<i64>) {
            Some(Ok(mib)) => u64::try_from(mib).map_or(u64::MAX, |mib| mib << 20),
            _ => CACHE_RAM,
        };
        let checkpoints = number(&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"]).unwrap_or(CHECKPOINTS);
        Setup { settings, whole_each: false, cache_ram, checkpoints, gpu_overhead: 0, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(line: &str) -> Process {
        Process { id: 7, arguments: line.split(' ').map(str::to_owned).collect(), anonymous: 0 }
    }

    #[test]
    fn an_ollama_is_told_by_its_process_and_its_version() {
        let version = |v: &str| Runs::of(None, Some(v));
        assert_eq!([version("0.13.5"), version("0.9.0-rc1")], [Runs::Runner; 2]);
        assert_eq!([version("0.14.0"), version("1.2.3"), version(""), Runs::of(None, None)], [Runs::LlamaServer; 4]);
        assert_eq!(Runs::of(Some(&process("ollama runner --model x")), Some("9")), Runs::Runner);
        assert_eq!(Runs::of(Some(&process("llama-server -m x")), Some("0.13.5")), Runs::LlamaServer);
        assert_eq!(Runs::of(Some(&process("sha256sum x")), Some("0.13.5")), Runs::Runner);
    }

    #[test]
    fn slots_share_or_divide_as_the_server_was_told() {
        let of = |line: &str| Setup::llama_server(Some(&process(line)), &Loaded::default(), true);
        let default = of("llama-server -m x");
        assert_eq!((default.settings.parallel, default.settings.cache.unified, default.share(8192)), (4, true, 8192));
        assert!(default.sharing().unwrap().contains("share one window"));
        let divided = of("llama-server -m x -np 4");
        assert_eq!((divided.share(8192), divided.at(8192).n_ctx), (2048, 8192));
        assert!(divided.sharing().unwrap().contains("1/4"));
        let unified = of("llama-server -m x -np 4 -kvu");
        assert_eq!((unified.settings.cache.unified, unified.share(8192)), (true, 8192));
        let one = of("llama-server -m x -np 1 -ctk q8_0 -ctv q8_0 -ub 1024 -ngl 10 -fa on --cache-ram 0 --mmproj y");
        assert_eq!((one.settings.cache.types.k.name, one.settings.n_ubatch, one.cache_ram), ("q8_0", 1024, 0));
        assert_eq!((one.settings.gpu_layers, one.sharing()), (GpuLayers::Last(10), None));
        assert!(one.notes.iter().any(|note| note.contains("projector")), "{:?}", one.notes);
        assert_eq!(default.cache_ram, 8 << 30);
        assert_eq!(of("llama-server -cram -1").cache_ram, u64::MAX);

        let asked = Loaded { slots: Some(2), ..Loaded::default() };
        let unseen = Setup::llama_server(None, &asked, false);
        assert_eq!((unseen.settings.parallel, unseen.settings.cache.unified), (2, false));
        assert_eq!(unseen.settings.gpu_layers, GpuLayers::None);
        assert!(unseen.notes[0].contains("not found"));
    }

    #[test]
    fn the_embedded_engine_puts_on_gpus_what_it_was_told_to_and_has_a_backend_for() {
        let header = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-3.1-8b.gguf");
        let model = Model::of(&crate::gguf::Gguf::open(&header).unwrap()).unwrap();
        let of = |gpu_layers: Option<u32>, gpu: bool| {
            let ours = Ours { gpu_layers, ..Ours::default() };
            Setup::embedded(ours, &model, gpu, true)
        };
        let layers = |gpu_layers, gpu| of(gpu_layers, gpu).settings.gpu_layers;
        assert_eq!([layers(None, true), layers(Some(0), true)], [GpuLayers::All, GpuLayers::None]);
        assert_eq!([layers(Some(5), true), layers(Some(u32::MAX), true)], [GpuLayers::Last(5), GpuLayers::Last(33)]);
        assert_eq!([layers(None, false), layers(Some(5), false)], [GpuLayers::None; 2]);
        let left_out = |setup: &Setup| setup.notes.iter().any(|note| note.contains("the GPU is left out"));
        assert!(left_out(&of(None, false)) && !left_out(&of(None, true)));
    }
}
