//! PURE: the largest window of a model that a room carries, on the GPU alone and with RAM, and why it is no larger.

use std::cell::OnceCell;

use crate::conversation::Tokens;
use crate::measure::hardware::room::{Room, size};
use crate::measure::memory::{self, Budget, Cost, GpuLayers, Model, Refused, Settings};

use super::OnGpu;
use super::dry_run::DryRunner;
use super::setup::Setup;

/// A window worth leaving the GPU for (tokens): what a model needs in RAM to get here is slow, and still better than a
/// window that holds nothing.
pub const WORTH_RAM: Tokens = 8192;

/// Steps in which windows are set up, as llama.cpp rounds them (tokens).
const STEP: u64 = 256;

/// The largest windows that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fits {
    /// With everything on the GPU; `None` where there is no GPU, or not even the smallest fits.
    pub gpu: Option<Tokens>,
    /// With RAM too, whatever does not fit the GPU there; `None` when not even the smallest fits.
    pub gpu_and_ram: Option<Tokens>,
    /// The one to use, where a window is to be fitted.
    pub best: Option<Tokens>,
    /// Why it is this one, and no larger.
    pub because: String,
}

/// Where a context goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The GPU.
    Gpu,
    /// The GPU, and RAM for the rest.
    Both,
    /// RAM.
    Ram,
    /// Nowhere: it does not fit.
    Nowhere,
}

impl Where {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Where::Gpu => "GPU",
            Where::Both => "GPU + RAM",
            Where::Ram => "RAM",
            Where::Nowhere => "does not fit",
        }
    }
}

/// A model, how it would be set up, and what there is.
pub struct Case<'a> {
    /// The model.
    pub model: &'a Model,
    /// How the server sets it up.
    pub setup: &'a Setup,
    /// What it may take.
    pub room: &'a Room,
    /// Dry runs to take figures from, instead of formulas.
    runner: Option<&'a DryRunner>,
    /// No window is larger than this (tokens, as asked for): the trained length.
    upto: u64,
    /// The largest window with RAM for what does not fit the GPU, once it was worked out.
    spilled: OnceCell<Result<u64, String>>,
}

impl<'a> Case<'a> {
    /// A case.
    pub fn new(model: &'a Model, setup: &'a Setup, room: &'a Room) -> Case<'a> {
        Case { model, setup, room, runner: None, upto: model.trained.max(STEP), spilled: OnceCell::new() }
    }

    /// The same for a server whose slots divide the window: each may have what the model was trained for.
    pub fn by_slot(self) -> Case<'a> {
        // What all of them have together for that: the inverse of a share.
        let slots = (self.upto / self.setup.share(self.upto).max(1)).max(1);
        Case { upto: self.upto.saturating_mul(slots), ..self }
    }

    /// The same with figures from dry runs.
    pub fn with_dry_runs(self, runner: Option<&'a DryRunner>) -> Case<'a> {
        Case { runner, ..self }
    }

    fn device(&self) -> u64 {
        self.room.device_bytes().saturating_sub(self.setup.gpu_overhead)
    }

    /// What a window costs with so many layers on the GPU.
    ///
    /// # Errors
    /// Why llama.cpp would refuse such settings.
    pub fn cost(&self, window: u64, layers: GpuLayers) -> Result<Cost, String> {
        let settings = Settings { gpu_layers: layers, ..self.setup.at(window) };
        self.cost_of(&settings).map_err(|refused| refused.to_string())
    }

    fn cost_of(&self, settings: &Settings) -> Result<Cost, Refused> {
        match self.runner {
            Some(runner) => runner.cost(self.model, settings),
            None => memory::cost(self.model, settings),
        }
    }

    /// The layers to begin with: what was asked for, else all of them where there is a GPU.
    pub fn layers(&self) -> GpuLayers {
        if self.room.devices.is_empty() { GpuLayers::None } else { self.setup.settings.gpu_layers }
    }

    /// Whether a cost fits as it is placed.
    fn carries(&self, cost: &Cost) -> bool {
        self.lacks(cost).is_none()
    }

    /// What is short, in words.
    fn lacks(&self, cost: &Cost) -> Option<String> {
        let over = |what: &str, needs: u64, has: u64| (needs > has).then(|| more(what, needs, has));
        let device = over("GPU memory", cost.device().saturating_add(self.copies(cost)), self.device());
        if self.room.unified {
            return device.or_else(|| over("memory", cost.total(), self.room.total()));
        }
        device.or_else(|| over("RAM", cost.host(), self.room.host))
    }

    /// The largest window with these layers on the GPU, whichever side is counted.
    fn largest(&self, layers: GpuLayers, device: bool, host: bool) -> Result<u64, String> {
        let settings = Settings { gpu_layers: layers, ..self.setup.at(0) };
        let most = self.setup.at(self.upto).n_ctx;
        let of = |budget: Budget| {
            let n_ctx = self.most(&settings, &budget, most).map_err(|refused| refused.to_string())?;
            let window = self.setup.window(n_ctx);
            if budget.unified || budget.device == u64::MAX {
                return Ok::<u64, String>(window);
            }
            self.with_copies(window, layers, budget.device)
        };
        let side = |counts: bool, bytes: u64| if counts { bytes } else { u64::MAX };
        let (d, h) = (side(device, self.device()), side(host, self.room.host));
        if self.room.unified {
            let whole = side(host, self.device().saturating_add(self.room.host));
            let all = of(Budget { device: 0, host: whole, unified: true })?;
            return Ok(all.min(of(Budget { device: d, host: u64::MAX, unified: false })?));
        }
        of(Budget { device: d, host: h, unified: false })
    }

    /// The largest window of all sequences together that fits; with dry runs, near the one by formula.
    fn most(&self, settings: &Settings, budget: &Budget, upto: u64) -> Result<u64, Refused> {
        let by_formula = memory::largest(self.model, settings, budget, upto)?.n_ctx;
        let Some(runner) = self.runner else { return Ok(by_formula) };
        let step = STEP.saturating_mul(if settings.cache.unified { 1 } else { settings.parallel.max(1) });
        let steps = memory::largest_near(by_formula / step, (upto / step).max(1), |steps| {
            let settings = Settings { n_ctx: steps.saturating_mul(step), ..settings.clone() };
            runner.cost(self.model, &settings).map(|cost| budget.lacks(&cost).is_none())
        })?;
        Ok(steps.saturating_mul(step))
    }

    /// What is copied to the GPU beyond what stands in the columns.
    fn copies(&self, cost: &Cost) -> u64 {
        self.copied_cache(cost).saturating_add(cost.op_offload)
    }

    /// What CUDA's flash attention adds on the GPU for a cache that is not f16: f16 copies of one layer's keys and values,
    /// all cells of it (ggml/src/ggml-cuda/fattn.cu). Other backends do with less.
    fn copied_cache(&self, cost: &Cost) -> u64 {
        let settings = &self.setup.settings;
        let plain = |kind: crate::gguf::Kind| kind.name == "f16";
        if !settings.flash_attn || cost.kv.device == 0 || plain(settings.cache.types.k) && plain(settings.cache.types.v)
        {
            return 0;
        }
        let rows = self.model.layers.iter().flat_map(|layer| &layer.rows);
        let widest = rows.map(|row| row.key.saturating_add(row.value)).max().unwrap_or(0);
        widest.saturating_mul(2).saturating_mul(cost.n_ctx)
    }

    /// The largest window up to one that fits without those copies, for which they fit too.
    fn with_copies(&self, window: u64, layers: GpuLayers, device: u64) -> Result<u64, String> {
        let fits = |window: u64| {
            let cost = self.cost(window, layers)?;
            Ok::<bool, String>(cost.device().saturating_add(self.copies(&cost)) <= device)
        };
        if window == 0 || fits(window)? {
            return Ok(window);
        }
        let step =
            STEP.saturating_mul(if self.setup.share(1 << 20) < 1 << 20 { self.setup.settings.parallel } else { 1 });
        let (mut low, mut high) = (0, window / step);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle * step)? { low = middle } else { high = middle - 1 }
        }
        Ok(low * step)
    }

    /// The largest window with whatever share of the layers on the GPU is best for that.
    fn spilled(&self) -> Result<u64, String> {
        self.spilled.get_or_init(|| self.search_layers()).clone()
    }

    fn by_formula(&self) -> Case<'a> {
        Case { runner: None, spilled: OnceCell::new(), ..*self }
    }

    fn search_layers(&self) -> Result<u64, String> {
        let both = |layers: u64| self.largest(GpuLayers::Last(layers), true, true);
        let (mut low, mut high) = (0, self.model.blocks.saturating_add(1));
        // Fewer layers on the GPU: it has more room, and RAM less. The best is where neither is better off.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            // Formulas are good enough to tell where to look.
            let by_device = self.by_formula().largest(GpuLayers::Last(middle), true, false)?;
            let by_host = self.by_formula().largest(GpuLayers::Last(middle), false, true)?;
            if by_device < by_host { high = middle } else { low = middle }
        }
        let best = both(low)?.max(both(high)?);
        if self.runner.is_none() {
            return Ok(best);
        }
        // The formulas are for a GPU that takes every operation. A real one may need more or less: what lies beside is tried
        // for as long as it gets better.
        let beside = |layers: &mut dyn Iterator<Item = u64>| {
            let mut most = best;
            for layers in layers {
                match both(layers)? {
                    window if window > most => most = window,
                    _ => break,
                }
            }
            Ok::<u64, String>(most)
        };
        let fewer = beside(&mut (0..low).rev())?;
        Ok(fewer.max(beside(&mut (high + 1..=self.model.blocks.saturating_add(1)))?))
    }

    /// Where a window would go, with its cost placed as it was asked for.
    ///
    /// # Errors
    /// Why llama.cpp would refuse such settings.
    pub fn place(&self, window: u64) -> Result<(Cost, Where), String> {
        let layers = self.layers();
        let cost = self.cost(window, layers)?;
        if layers == GpuLayers::None {
            let place = if self.carries(&cost) { Where::Ram } else { Where::Nowhere };
            return Ok((cost, place));
        }
        if self.carries(&cost) {
            let partly = matches!(layers, GpuLayers::Last(n) if n <= self.model.blocks);
            return Ok((cost, if partly { Where::Both } else { Where::Gpu }));
        }
        // A number of layers that somebody asked for is not second-guessed.
        let asked = layers != GpuLayers::All;
        let place = if !asked && self.spilled()? >= window { Where::Both } else { Where::Nowhere };
        Ok((cost, place))
    }

    /// The largest windows, and the one to use.
    ///
    /// # Errors
    /// Why llama.cpp would refuse such settings.
    pub fn fits(&self) -> Result<Fits, String> {
        let some = |window: u64| u32::try_from(window).ok().filter(|n| *n > 0);
        let layers = self.layers();
        if layers == GpuLayers::None {
            let all = self.largest(layers, true, true)?;
            return Ok(Fits {
                gpu: None,
                gpu_and_ram: some(all),
                best: some(all),
                because: self.why(all, layers, "RAM")?,
            });
        }
        let gpu = self.largest(layers, true, true)?;
        let all = if layers == GpuLayers::All { self.spilled()?.max(gpu) } else { gpu };
        let enough = self.model.trained.min(u64::from(WORTH_RAM));
        let best = if gpu >= enough { gpu } else { all.min(enough).max(gpu) };
        let because = if best == gpu && best > 0 {
            self.why(gpu, layers, "the GPU")?
        } else if best > 0 {
            format!(
                "the GPU alone carries {gpu} tokens ({}); with RAM it is {all}, of which {best} are worth the slowness",
                self.why(gpu, layers, "the GPU")?
            )
        } else {
            self.why(0, layers, "the GPU")?
        };
        Ok(Fits { gpu: some(gpu), gpu_and_ram: some(all), best: some(best), because })
    }

    /// What a window that fits the GPU takes.
    pub fn on_gpu(&self, window: u64) -> Option<OnGpu> {
        let cost = |window: u64| self.cost(window, self.layers()).ok();
        let (whole, half) = (cost(window)?, cost(window / 2)?);
        let tokens = (window - window / 2).max(1);
        Some(OnGpu {
            host: whole.host(),
            block: whole.weights.device / self.model.blocks.max(1),
            per_token: (whole.device().saturating_sub(half.device()) / tokens).max(1),
        })
    }

    /// What else the server may keep in RAM, in words: it is in no figure, for it grows with use and has its own limit.
    pub fn beside(&self, window: u64) -> Vec<String> {
        let mut notes = Vec::new();
        let Ok(cost) = self.cost(window, self.layers()) else { return notes };
        let there = self.room.total().saturating_sub(cost.total()).min(self.room.host);
        let cache = self.setup.cache_ram;
        if cache > 0 {
            let most = if cache == u64::MAX { "without limit".to_owned() } else { format!("up to {}", size(cache)) };
            let mut note =
                format!("the server keeps earlier prompts in RAM, {most} (--cache-ram), which is in no figure");
            if there < cache {
                note += &format!(
                    "; {} are left for it at {window}: --cache-ram {} keeps within that",
                    size(there),
                    there >> 20
                );
            }
            notes.push(note);
        }
        let copies = self.copies(&cost);
        if copies > 0 {
            notes.push(format!(
                "with CUDA, flash attention copies one layer of this cache as f16: {} at {window}, reckoned with on the GPU and in no figure",
                size(copies)
            ));
        }
        let (count, each) = (self.setup.checkpoints, self.checkpoint(&cost));
        if count > 0 && each > 0 {
            let slots = self.setup.settings.parallel.max(1);
            notes.push(format!(
                "the server keeps up to {count} checkpoints a slot in RAM (--ctx-checkpoints), {} each, {} in all, which are in no figure",
                size(each),
                size(each.saturating_mul(count).saturating_mul(slots))
            ));
        }
        notes
    }

    /// The bytes of what a slot cannot rewind: its recurrent state, and what its sliding windows hold.
    fn checkpoint(&self, cost: &Cost) -> u64 {
        /// More than any sliding window and its batch: beyond, only full attention grows.
        const BEYOND: u64 = 1 << 20;
        let slots = self.setup.settings.parallel.max(1);
        let kv = |window: u64| self.by_formula().cost(window, self.layers()).map_or(0, |cost| cost.kv.total());
        // Linear there: twice as long, less once more, leaves what does not grow.
        let sliding = if self.model.window.is_some() { (2 * kv(BEYOND)).saturating_sub(kv(2 * BEYOND)) } else { 0 };
        cost.state.total().saturating_add(sliding) / slots
    }

    /// Why a window is the largest that fits.
    fn why(&self, window: u64, layers: GpuLayers, side: &str) -> Result<String, String> {
        let trained = self.model.trained;
        if window > 0 && window.saturating_add(STEP) > self.upto {
            let cost = self.cost(window, layers)?;
            let (needs, has) = match layers {
                GpuLayers::None => (cost.host(), self.room.total()),
                _ => (cost.device(), self.device()),
            };
            return Ok(format!("all {trained} tokens it was trained for fit {side}: {} of {}", size(needs), size(has)));
        }
        let next = self.cost(window.saturating_add(STEP), layers)?;
        if window == 0 && next.total() > self.room.total() {
            let lack = more("memory", next.total(), self.room.total());
            return Ok(format!("not even {STEP} tokens fit: they would need {lack}"));
        }
        let lack = self.lacks(&next).unwrap_or_else(|| "more than there is".to_owned());
        Ok(match window {
            0 => format!("not even {STEP} tokens fit: they would need {lack}"),
            _ => format!("{STEP} tokens more would need {lack}"),
        })
    }
}

/// What is short, in words.
fn more(what: &str, needs: u64, has: u64) -> String {
    format!("{} more {what} than the {} that may be used", size(needs.saturating_sub(has)), size(has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{CacheTypes, Gguf};
    use crate::measure::hardware::room::DeviceRoom;

    const GIB: u64 = 1 << 30;

    /// 32 layers, 4.6 GiB of weights, 128 KiB of KV cache a token, trained for 131,072.
    fn llama() -> Model {
        let bytes: &[u8] = include_bytes!("../../../tests/data/llama-3.1-8b.gguf");
        Model::of(&Gguf::read(std::io::Cursor::new(bytes)).unwrap()).unwrap()
    }

    fn room(gpus: &[u64], host: u64, unified: bool) -> Room {
        let devices = gpus.iter().map(|gib| DeviceRoom { name: "GPU".into(), bytes: gib * GIB }).collect();
        Room { devices, host: host * GIB, unified, because: Vec::new() }
    }

    /// The largest window by trying every one.
    fn tried(case: &Case<'_>, layers: GpuLayers) -> u32 {
        let most = case.model.trained / STEP;
        let fits = (1..=most).take_while(|n| case.carries(&case.cost(n * STEP, layers).unwrap()));
        u32::try_from(fits.last().unwrap_or(0) * STEP).unwrap()
    }

    #[test]
    fn the_largest_window_fits_and_the_next_does_not() {
        let (model, setup) = (llama(), Setup::plain());
        for (gpus, host, unified) in [
            (&[8][..], 64, false),
            (&[16], 64, false),
            (&[6, 6], 64, false),
            (&[12], 0, true),
            (&[8], 8, true),
            (&[24], 1, false),
        ] {
            let room = room(gpus, host, unified);
            let case = Case::new(&model, &setup, &room);
            let fits = case.fits().unwrap();
            let want = tried(&case, GpuLayers::All);
            assert_eq!(fits.gpu.unwrap_or(0), want, "{gpus:?} {host} {unified}: {}", fits.because);
            assert!(fits.gpu_and_ram >= fits.gpu, "{fits:?}");
        }
        for host in [5, 6, 12, 100] {
            let room = room(&[], host, false);
            let case = Case::new(&model, &setup, &room);
            let fits = case.fits().unwrap();
            assert_eq!((fits.gpu, fits.gpu_and_ram.unwrap_or(0)), (None, tried(&case, GpuLayers::None)), "{host}");
        }
    }

    #[test]
    fn ram_takes_what_the_gpu_cannot_and_only_as_far_as_it_is_worth_it() {
        let (model, setup) = (llama(), Setup::plain());
        // Weights alone are more than the GPU has.
        let room_4 = room(&[4], 32, false);
        let case = Case::new(&model, &setup, &room_4);
        let fits = case.fits().unwrap();
        assert_eq!((fits.gpu, fits.best), (None, Some(8192)), "{}", fits.because);
        // By hand: the best of every number of layers.
        let best = (0..=33).map(|n| case.largest(GpuLayers::Last(n), true, true).unwrap()).max();
        assert_eq!(fits.gpu_and_ram.map(u64::from), best);
        assert_eq!(case.place(8192).unwrap().1, Where::Both);
        assert!(fits.because.contains("RAM"), "{}", fits.because);

        // The GPU carries a little: not worth leaving it for more than 8,192.
        let room_5 = room(&[5], 32, false);
        let fits = Case::new(&model, &setup, &room_5).fits().unwrap();
        assert!((256..8192).contains(&fits.gpu.unwrap()) && fits.best == Some(8192), "{fits:?}");
        // Nothing at all.
        let none = room(&[1], 1, false);
        let case = Case::new(&model, &setup, &none);
        let fits = case.fits().unwrap();
        assert_eq!((fits.gpu, fits.gpu_and_ram, fits.best), (None, None, None));
        assert!(fits.because.contains("not even 256 tokens fit"), "{}", fits.because);
        assert_eq!(case.place(256).unwrap().1, Where::Nowhere);
    }

    #[test]
    fn slots_cost_windows_or_divide_one() {
        let (model, room) = (llama(), room(&[16], 64, false));
        let best = |setup: &Setup| Case::new(&model, setup, &room).fits().unwrap().gpu.unwrap();
        let one = best(&Setup::plain());
        let environment = [("OLLAMA_NUM_PARALLEL".to_owned(), "2".to_owned())].into();
        let two = Setup::ollama(&environment, "a test", &model, super::super::setup::Runs::LlamaServer, true);
        let each = best(&two);
        // The mask of the graph is a little smaller for two.
        assert!((each * 2).abs_diff(one) < one / 50, "{each} each, {one} alone");
        let mut divided = Setup::plain();
        divided.settings.parallel = 2;
        let all = best(&divided);
        assert!(all.abs_diff(one) < one / 50 && all % 512 == 0, "{all} for both, {one} alone");
        assert_eq!(divided.share(u64::from(all)), u64::from(all) / 2);
    }

    #[test]
    fn a_quantized_cache_leaves_room_for_its_copies() {
        let (model, room) = (llama(), room(&[12], 64, false));
        let mut setup = Setup::plain();
        let q8 = crate::gguf::Kind::named("q8_0").unwrap();
        setup.settings.cache.types = CacheTypes { k: q8, v: q8 };
        let case = Case::new(&model, &setup, &room);
        // 512 MiB at the full window: memory.md's own figure for this model.
        assert_eq!(case.copies(&case.cost(131_072, GpuLayers::All).unwrap()), 512 << 20);
        let fits = case.fits().unwrap();
        assert_eq!(fits.gpu.unwrap(), tried(&case, GpuLayers::All), "{}", fits.because);
        assert!(fits.gpu.unwrap() < 131_072 && case.beside(4096)[0].contains("f16"), "{fits:?}");
    }

    #[test]
    fn slots_that_divide_a_window_may_each_have_what_was_trained() {
        let (model, room) = (llama(), room(&[], 200, false));
        let mut setup = Setup::plain();
        setup.settings.parallel = 2;
        let fits = Case::new(&model, &setup, &room).by_slot().fits().unwrap();
        assert_eq!(fits.gpu_and_ram.map(|n| setup.share(u64::from(n))), Some(131_072));
        assert_eq!(Case::new(&model, &Setup::plain(), &room).by_slot().fits().unwrap().best, Some(131_072));
    }

    /// Every kind of attention and state: the answer fits, the next step does not, and checkpoints are told of models that
    /// cannot rewind.
    #[test]
    fn any_kind_of_model_has_an_edge() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/memory/kinds");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() > 20, "{}", files.len());
        let setup = Setup::llama_server(None, &crate::upstream::Loaded::default(), true);
        for path in files {
            let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
            let name = path.display();
            // Weights and half the trained window.
            let plenty = room(&[1 << 20], 1 << 20, false);
            let all = Case::new(&model, &setup, &plenty);
            let Ok(half) = all.cost(model.trained / 2, GpuLayers::All) else { continue };
            let tight = Room {
                devices: vec![DeviceRoom { name: "GPU".into(), bytes: half.device() }],
                host: half.host() + half.total(),
                ..Room::default()
            };
            let case = Case::new(&model, &setup, &tight);
            let fits = case.fits().unwrap_or_else(|why| panic!("{name}: {why}"));
            let gpu = u64::from(fits.gpu.unwrap_or(0));
            assert!(fits.gpu_and_ram >= fits.gpu && fits.best <= fits.gpu_and_ram, "{name}: {fits:?}");
            if gpu > 0 && gpu + STEP <= model.trained {
                assert!(case.carries(&case.cost(gpu, GpuLayers::All).unwrap()), "{name}: {fits:?}");
                assert!(!case.carries(&case.cost(gpu + STEP, GpuLayers::All).unwrap()), "{name}: {fits:?}");
            }
            let stays = model.window.is_some() || half.state.total() > 0;
            let told = all.beside(4096).iter().any(|note| note.contains("checkpoints"));
            assert!(!told || stays, "{name}: {:?}", all.beside(4096));
            assert!(told || half.state.total() == 0, "{name}");
        }
    }

    #[test]
    fn the_servers_own_caches_are_told() {
        let model = llama();
        let small = room(&[8], 2, false);
        let setup = Setup::llama_server(None, &crate::upstream::Loaded::default(), true);
        let notes = Case::new(&model, &setup, &small).beside(4096);
        assert_eq!(notes.len(), 1, "this model needs no checkpoints: {notes:?}");
        assert!(notes[0].contains("up to 8.0 GiB") && notes[0].contains("--cache-ram 2048"), "{notes:?}");
        let large = room(&[8], 64, false);
        assert!(!Case::new(&model, &setup, &large).beside(4096)[0].contains("keeps within"));
        assert!(Case::new(&model, &Setup::plain(), &large).beside(4096).is_empty());
    }
}
