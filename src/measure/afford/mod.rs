//! What a model may have on this machine: its file, how its server would set it up and what memory there is, put together.
//! It decides nothing and loads nothing: [`super::window`] does.

pub mod dry_run;
pub mod fits;
pub mod report;
pub mod setup;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::hardware::room::{Room, Taken, room};
use super::hardware::{self, GpuMemory, Hardware, Place, Told};
use super::memory::{GpuLayers, Model};
use super::model_file::{self, ModelFile};
use super::process;
use super::shown::Shown;
use crate::config::{Config, MachineConfig};
use crate::conversation::Tokens;
use crate::gguf::{CacheTypes, Gguf};
use crate::upstream::{Embedded, Held, Kind, Loaded, Upstream};
use fits::{Case, Fits};
use setup::{Runs, Setup};

/// Where Ollama's service on Linux keeps models.
const SERVICE_MODELS: &str = "usr/share/ollama/.ollama/models";

/// How long what was told of the GPUs is taken as it is: far less than a load takes.
const TOLD_HOLDS: Duration = Duration::from_secs(1);

/// How long llama.cpp is not asked for GPUs again after it could not be.
const UNTOLD_HOLDS: Duration = Duration::from_secs(600);

/// How long the decision on a window waits for what Ollama tells of a file that is not here: loading the model takes longer,
/// and the decision stands.
pub const DECISION_WAITS: Duration = Duration::from_secs(10);

/// Why there is no figure for the memory of another machine.
pub const UNSEEN: &str = "the server runs on another machine, whose memory cannot be seen from here";

/// Where a header comes from that is not the file's.
const TOLD: &str = "the model's file is not here: its header is what Ollama's /api/show tells";

/// As above, where the server tells no tensors.
const OUTLINED: &str = "the model's file is not here: its layers and heads are what Ollama's /api/show tells, its size is what \
                        /api/tags tells, and a GPU is taken to hold all of it";

/// Models whose headers are kept.
const KEPT: usize = 16;

/// This machine, as far as models are fitted to it.
#[derive(Clone, Default)]
pub struct Machine {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    config: MachineConfig,
    headroom: f64,
    /// Headers that servers tell.
    shown: Arc<Shown>,
    /// Headers by the identity of their file.
    models: Mutex<HashMap<String, Arc<Model>>>,
    /// What was told of the GPUs, and when: a list of models asks many times at once.
    told: Mutex<Option<(Instant, Told)>>,
    /// Why llama.cpp could not be asked for GPUs, and when.
    untold: Mutex<Option<(Instant, String)>>,
}

/// A model of a server, and who serves it.
#[derive(Debug, Clone)]
pub struct Served {
    /// Its name there.
    pub name: String,
    /// The kind of the server.
    pub kind: Option<Kind>,
    /// The port it listens on.
    pub port: u16,
    /// Whether it runs on this machine.
    pub local: bool,
    /// Its version.
    pub version: Option<String>,
    /// What it says of the model.
    pub loaded: Loaded,
    /// A file with the header, where the server tells it and the model's own is not here.
    pub told: Option<PathBuf>,
    /// That file holds no table of tensors, only how large all of them are.
    pub in_outline: bool,
    /// How this program was told to serve it, where it does.
    pub ours: Ours,
}

/// How this program was told to serve a model itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ours {
    /// The types of its KV cache; `None` for f16.
    pub kv_type: Option<CacheTypes>,
    /// Its layers on GPUs, from the last; more than there are for all, `None` for as many as fit.
    pub gpu_layers: Option<u32>,
}

impl Ours {
    fn told(engine: &Embedded) -> Ours {
        Ours { kv_type: engine.kv_type(), gpu_layers: engine.gpu_layers() }
    }
}

impl Served {
    /// Where a header that was told comes from.
    fn source_of_header(&self) -> &'static str {
        if self.in_outline { OUTLINED } else { TOLD }
    }

    /// A model of an upstream.
    pub async fn by(upstream: &Upstream, name: &str, loaded: &Loaded) -> Served {
        Served {
            version: upstream.version().await,
            name: name.to_owned(),
            kind: upstream.kind(),
            port: upstream.authority().1,
            local: upstream.is_local(),
            loaded: loaded.clone(),
            told: None,
            in_outline: false,
            ours: upstream.embedded_engine().map(Ours::told).unwrap_or_default(),
        }
    }
}

/// A model, how it is set up, and what it may take.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The model.
    pub model: Arc<Model>,
    /// Its file.
    pub file: ModelFile,
    /// How the server sets it up.
    pub setup: Setup,
    /// What it may take of the machine.
    pub room: Room,
    /// The same, were the server's other models unloaded; `None` where there are none, or the server keeps them.
    pub alone: Option<Room>,
    /// This program, for dry runs.
    pub program: Option<PathBuf>,
}

/// What a model may have.
#[derive(Debug, Clone)]
pub struct Afforded {
    /// The largest windows, of one request.
    pub fits: Fits,
    /// What it was trained for (tokens).
    pub trained: Tokens,
    /// What it may take of the machine.
    pub room: Room,
    /// The identity of its file.
    pub file: String,
    /// How its server's slots share the window, where there are several.
    pub sharing: Option<String>,
    /// They divide it: one request has only a part.
    pub divided: bool,
    /// What the server as a whole is to be given for the best window of one request (`-c`, tokens).
    pub whole: Option<Tokens>,
    /// What was found, assumed, and is in no figure.
    pub notes: Vec<String>,
    /// What the best window is to take, where all of it is to be on the GPU.
    pub on_gpu: Option<OnGpu>,
}

/// A window that fits the GPU: what it was reckoned to take, to compare with what the server then says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnGpu {
    /// What stays in RAM all the same: the input embedding, buffers (bytes).
    pub host: u64,
    /// One of the model's blocks (bytes): the least that a server moves to RAM.
    pub block: u64,
    /// What a token of the window takes on the GPU (bytes).
    pub per_token: u64,
}

impl Machine {
    /// The machine of a config, and what servers tell of models that are not on it.
    pub fn of(config: &Config, shown: Shown) -> Machine {
        let (headroom, shown) = (config.window.memory_headroom, Arc::new(shown));
        Machine { inner: Arc::new(Inner { config: config.machine.clone(), headroom, shown, ..Inner::default() }) }
    }

    /// What servers tell of models that are not here.
    pub fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.inner.shown)
    }

    /// This program, which works in processes of its own.
    pub fn program(&self) -> Option<PathBuf> {
        self.inner.config.program.clone()
    }

    /// What this machine has now.
    pub fn hardware(&self) -> Hardware {
        self.inner.hardware(None)
    }

    /// What a served model may have here. What its server must be asked for of its header is waited for this long; without
    /// patience it is not asked.
    ///
    /// # Errors
    /// Why that cannot be said, in words: its server is elsewhere, its file cannot be read, its header is not understood.
    pub async fn afford(
        &self,
        upstream: &Upstream,
        name: &str,
        loaded: &Loaded,
        patience: Duration,
    ) -> Result<Afforded, String> {
        here(upstream)?;
        self.looked_at(upstream, name, loaded, patience, |subject| subject.afforded(None)).await
    }

    /// As [`Machine::afford`], to decide how a model is loaded: where the bound of the formulas does not fit, llama.cpp's dry run
    /// is asked. That starts a process, so lists of models go without it.
    ///
    /// # Errors
    /// As [`Machine::afford`].
    pub async fn decide(
        &self,
        upstream: &Upstream,
        name: &str,
        loaded: &Loaded,
        patience: Duration,
    ) -> Result<Afforded, String> {
        here(upstream)?;
        let look = |subject: &Subject| {
            let afforded = subject.afforded(None)?;
            if afforded.whole.is_some_and(|whole| u64::from(whole) >= subject.model.trained) {
                return Ok(afforded);
            }
            let told = subject.dry_runner().ok().and_then(|runner| subject.afforded(Some(&runner)).ok());
            Ok(told.unwrap_or(afforded))
        };
        self.looked_at(upstream, name, loaded, patience, look).await
    }

    /// A served model as it is and would be set up. One of another machine is by the header that its server tells and by
    /// defaults, without room: that is to be given.
    ///
    /// # Errors
    /// As [`Machine::afford`].
    pub async fn served(
        &self,
        upstream: &Upstream,
        name: &str,
        loaded: &Loaded,
        patience: Duration,
    ) -> Result<Subject, String> {
        self.looked_at(upstream, name, loaded, patience, |subject| Ok(subject.clone())).await
    }

    async fn looked_at<T: Send + 'static>(
        &self,
        upstream: &Upstream,
        name: &str,
        loaded: &Loaded,
        patience: Duration,
        look: fn(&Subject) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut served = Served::by(upstream, name, loaded).await;
        let looked = |served: Served| {
            let inner = Arc::clone(&self.inner);
            async move {
                let looked = tokio::task::spawn_blocking(move || look(&inner.subject(&served)?)).await;
                looked.map_err(|e| format!("looking at the machine failed: {e}"))?
            }
        };
        let from_file = looked(served.clone()).await;
        if from_file.is_ok() {
            return from_file;
        }
        if let Some(path) = loaded.model_path.as_deref() {
            served.told = self.inner.shown.header(upstream, name, path, patience).await;
        }
        if served.told.is_none() {
            served.told = self.inner.shown.outline(upstream, name, patience).await;
            served.in_outline = served.told.is_some();
        }
        if served.told.is_some() { looked(served).await } else { from_file }
    }

    /// A GGUF file by itself.
    ///
    /// # Errors
    /// Why it cannot be read or is not understood, in words.
    pub fn file(&self, path: &Path) -> Result<Subject, String> {
        let file = model_file::at(path, "named")?;
        let model = self.inner.model(&file)?;
        let room = room(&self.hardware(), Taken::default(), self.inner.headroom);
        let program = self.inner.config.program.clone();
        Ok(Subject { model, file, setup: Setup::plain(), room, alone: None, program })
    }

    /// A model by its name in Ollama's folders, whether Ollama runs or not; `None` if no folder has it.
    pub fn in_ollama_folders(&self, name: &str) -> Option<Result<Subject, String>> {
        let (environment, from) = self.inner.environment(11434);
        let file = model_file::of_ollama(name, &self.inner.folders(&environment))?;
        Some(file.and_then(|file| {
            let model = self.inner.model(&file)?;
            let hardware = self.hardware();
            let setup = Setup::ollama(&environment, &from, &model, Runs::of(None, None), has_gpu(&hardware));
            let room = room(&hardware, Taken::default(), self.inner.headroom);
            let program = self.inner.config.program.clone();
            Ok(Subject { model, file, setup, room, alone: None, program })
        }))
    }
}

/// Whether a server is on this machine.
fn here(upstream: &Upstream) -> Result<(), String> {
    if upstream.is_local() { Ok(()) } else { Err(UNSEEN.to_owned()) }
}

impl Subject {
    /// The case to reckon with.
    pub fn case(&self) -> Case<'_> {
        Case::new(&self.model, &self.setup, &self.room)
    }

    /// The largest windows of one request, and where they come from.
    fn afforded(&self, runner: Option<&dry_run::DryRunner>) -> Result<Afforded, String> {
        let mut subject = std::borrow::Cow::Borrowed(self);
        let mut fits = self.case().with_dry_runs(runner).by_slot().fits()?;
        let enough = u32::try_from(self.model.trained).unwrap_or(u32::MAX).min(fits::WORTH_RAM);
        if let Some(alone) = self.alone.clone().filter(|_| fits.best.is_none_or(|best| best < enough)) {
            let without = Subject { room: alone, alone: None, ..self.clone() };
            let more = without.case().with_dry_runs(runner).by_slot().fits()?;
            if more.best > fits.best {
                let others = "what other models hold counts as free, for Ollama unloads them for this one";
                fits = Fits { because: format!("{}; {others}", more.because), ..more };
                subject = std::borrow::Cow::Owned(without);
            }
        }
        let case = subject.case().with_dry_runs(runner);
        let mut notes = [&self.setup.notes[..], &self.model.trust.notes[..]].concat();
        notes.extend(case.beside(fits.best.map_or(self.model.trained, u64::from)));
        let whole = fits.best;
        let on_gpu = fits.best.filter(|best| fits.gpu == Some(*best)).and_then(|best| case.on_gpu(u64::from(best)));
        let share = |n: Option<Tokens>| n.and_then(|n| u32::try_from(self.setup.share(u64::from(n))).ok());
        let fits = Fits { gpu: share(fits.gpu), gpu_and_ram: share(fits.gpu_and_ram), best: share(fits.best), ..fits };
        Ok(Afforded {
            fits,
            trained: u32::try_from(self.model.trained).unwrap_or(u32::MAX),
            room: subject.room.clone(),
            file: self.file.identity.clone(),
            sharing: self.setup.sharing(),
            whole,
            divided: self.setup.share(1 << 20) < 1 << 20,
            notes,
            on_gpu,
        })
    }
}

impl Inner {
    fn subject(&self, served: &Served) -> Result<Subject, String> {
        if !served.local {
            return self.elsewhere(served);
        }
        let ollama = served.kind == Some(Kind::Ollama);
        let (environment, from) = if ollama { self.environment(served.port) } else { Default::default() };
        let folders = if ollama { self.folders(&environment) } else { Vec::new() };
        let own = model_file::of_served(served.loaded.model_path.as_deref(), &served.name, &folders);
        let told = served.told.as_deref().filter(|_| own.is_err());
        let file = match told {
            Some(told) => model_file::at(told, served.source_of_header())?,
            None => own?,
        };
        let model = self.model(&file)?;
        // A server in a container was started with the path that it says.
        let path = told.and(served.loaded.model_path.as_deref()).map_or(file.path.as_path(), Path::new);
        let embedded = served.kind == Some(Kind::Embedded);
        let process = match embedded {
            true => process::generating(&self.config.root, path),
            false => process::serving(&self.config.root, path),
        };
        let mut hardware = self.hardware(process.as_ref().map(|process| process.id));
        let mut setup = if ollama {
            let runs = Runs::of(process.as_ref(), served.version.as_deref());
            Setup::ollama(&environment, &from, &model, runs, has_gpu(&hardware))
        } else if embedded {
            let unused = has_gpu(&hardware);
            hardware = hardware.of_engine();
            Setup::embedded(served.ours, &model, has_gpu(&hardware), unused)
        } else {
            Setup::llama_server(process.as_ref(), &served.loaded, has_gpu(&hardware))
        };
        if told.is_some() {
            setup.notes.push(served.source_of_header().into());
        }
        let taken = taken(&hardware, process.as_ref(), served.loaded.held, &model);
        let others = served.loaded.others;
        let without_others = Taken {
            device: taken.device.saturating_add(others.device),
            host: taken.host.saturating_add(others.total.saturating_sub(others.device)),
        };
        // Ollama unloads other models for one that does not fit beside them.
        let alone = (ollama && others.total > 0).then(|| room(&hardware, without_others, self.headroom));
        let room = room(&hardware, taken, self.headroom);
        Ok(Subject { model, file, setup, room, alone, program: self.config.program.clone() })
    }

    /// A model of another machine's Ollama. What memory it may take is to be given, as a whole.
    fn elsewhere(&self, served: &Served) -> Result<Subject, String> {
        let from = served.source_of_header();
        let file = model_file::at(served.told.as_deref().ok_or(UNSEEN)?, from)?;
        let model = self.model(&file)?;
        let runs = Runs::of(None, served.version.as_deref());
        let mut setup = Setup::ollama(&BTreeMap::new(), "Ollama's defaults", &model, runs, true);
        setup.notes.push(from.into());
        let room = Room { devices: Vec::new(), host: 0, unified: false, because: vec![UNSEEN.into()] };
        Ok(Subject { model, file, setup, room, alone: None, program: self.config.program.clone() })
    }

    /// What this machine has, within the limits on a process.
    fn hardware(&self, process: Option<u32>) -> Hardware {
        let place = Place { root: self.config.root.clone(), process };
        let mut known = self.told.lock();
        let told = match known.take().filter(|(at, _)| at.elapsed() < TOLD_HOLDS) {
            Some(fresh) => fresh,
            None => (Instant::now(), self.ask(&place)),
        };
        let hardware = hardware::read(&place, &told.1);
        *known = Some(told);
        hardware
    }

    /// Asks for the GPUs. Drivers that failed or took for ever are left alone for a while.
    fn ask(&self, place: &Place) -> Told {
        let mut untold = self.untold.lock();
        if let Some((_, why)) = untold.as_ref().filter(|(at, _)| at.elapsed() < UNTOLD_HOLDS) {
            return Told { devices: Err(why.clone()), ..hardware::ask(place, None) };
        }
        let told = hardware::ask(place, self.config.program.as_deref());
        *untold = told.devices.as_ref().err().map(|why| (Instant::now(), why.clone()));
        told
    }

    /// The environment of `ollama serve` on a port, else what ours says of Ollama; and which it is.
    fn environment(&self, port: u16) -> (BTreeMap<String, String>, String) {
        match process::ollama_environment(&self.config.root, port) {
            Some((id, environment)) => (environment, format!("the environment of `ollama serve` (process {id})")),
            None => (self.config.ollama.clone(), "our own environment and Ollama's defaults".into()),
        }
    }

    /// Where Ollama may keep its models, likeliest first.
    fn folders(&self, environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
        let home = |home: &Path| home.join(".ollama/models");
        let named = environment.get("OLLAMA_MODELS").or_else(|| self.config.ollama.get("OLLAMA_MODELS"));
        let mut all: Vec<PathBuf> = named.filter(|path| !path.is_empty()).map(PathBuf::from).into_iter().collect();
        all.extend(environment.get("HOME").map(|path| home(Path::new(path))));
        all.extend(self.config.home.as_deref().map(home));
        all.push(self.config.root.join(SERVICE_MODELS));
        all
    }

    /// The header of a file, read once.
    fn model(&self, file: &ModelFile) -> Result<Arc<Model>, String> {
        if let Some(known) = self.models.lock().get(&file.identity) {
            return Ok(Arc::clone(known));
        }
        let gguf = Gguf::open(&file.path).map_err(|e| format!("{}: {e}", file.path.display()))?;
        let model = Arc::new(Model::of(&gguf).map_err(|e| format!("{}: {e}", file.path.display()))?);
        let mut models = self.models.lock();
        if models.len() >= KEPT {
            models.clear();
        }
        models.insert(file.identity.clone(), Arc::clone(&model));
        Ok(model)
    }
}

/// Whether there is a GPU to reckon with.
fn has_gpu(hardware: &Hardware) -> bool {
    hardware.gpus.iter().any(|gpu| !matches!(gpu.memory, GpuMemory::Unknown(_)))
}

/// What the model takes now: by the server's word, by the driver's, by the kernel's. What is mapped from its file is page
/// cache, and counts as free already.
fn taken(hardware: &Hardware, process: Option<&process::Process>, held: Option<Held>, model: &Model) -> Taken {
    let by_driver = |id: u32| {
        let used = hardware.gpus.iter().flat_map(|gpu| &gpu.processes).filter(|(process, _)| *process == id);
        used.map(|(_, bytes)| bytes).fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    };
    let device = held.map(|held| held.device).unwrap_or_else(|| process.map_or(0, |process| by_driver(process.id)));
    let host = match (process, held) {
        (Some(process), _) => process.anonymous,
        (None, Some(held)) => {
            let weights = model.weights.all.iter().map(|weight| weight.bytes).fold(0u64, u64::saturating_add);
            held.total.saturating_sub(held.device).saturating_sub(weights)
        }
        (None, None) => 0,
    };
    Taken { device, host }
}

/// How many layers go to the GPU, as people write it: `all`, or a number.
///
/// # Errors
/// What was expected.
pub fn gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match text.trim() {
        "all" | "-1" => Ok(GpuLayers::All),
        "0" => Ok(GpuLayers::None),
        n => n.parse().map(GpuLayers::Last).map_err(|_| format!("`{n}` is neither \"all\" nor a number of layers")),
    }
}

#[cfg(test)]
mod tests {
    use super::report::Wish;
    use super::*;

    #[test]
    fn a_model_elsewhere_is_reckoned_with_the_memory_that_is_named() {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-3.1-8b.gguf");
        let served = Served {
            name: "m".into(),
            kind: Some(Kind::Ollama),
            port: 11434,
            local: false,
            version: None,
            loaded: Loaded::default(),
            told: None,
            in_outline: false,
            ours: Ours::default(),
        };
        let inner = Inner::default();
        assert_eq!(inner.subject(&served).unwrap_err(), UNSEEN);
        let subject = inner.subject(&Served { told: Some(header), ..served }).unwrap();
        let wish = Wish { memory: Some(12 << 30), ..Wish::default() };
        let report = subject.with(&wish).report("m", &wish).unwrap();
        assert!(report.fits.best.is_some_and(|n| (16_384..131_072).contains(&n)), "{:?}", report.fits);
        let page = report.text();
        assert!(page.contains(TOLD) && page.contains("12.0 GiB were given"), "{page}");
    }
}
