//! What a user may write: flags, environment, `config.toml` and profiles, resolved into one whole [`Config`].
//!
//! Loading reports every problem at once and changes nothing on disk. A value's source travels with it. The room
//! never talks to the network, and no other room reads the environment or TOML.
//!
//! Precedence, strongest first: flag, environment, the request's header (it picks the profile), profile, file, default.

mod context;
mod door;
mod env;
mod file;
mod gauge;
mod glob;
mod guard;
mod key;
mod model;
mod pin;
pub mod print;
mod problem;
mod profile;
mod secret;
mod serve;
mod settings;
mod task;
mod telemetry;
mod upstream;
mod written;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::admission::{Caps, Listing};
use crate::conversation::task::Keep;
use crate::plan::Policy;
use crate::settings::Settings;

pub use context::{Context, OtherModel, SummaryModel, Template, Triggers};
pub use env::{Environment, scratch_dir};
pub use gauge::{Gauge, Severity};
pub use glob::Glob;
pub use guard::{Ceiling, Most, Response, Watch};
pub use key::{DEFAULT_SCOPE, KeyConfig, TokenHash, is_name, keys_in};
pub use model::{ModelHints, SizeClass, parameters_in_name};
pub use pin::PinPattern;
pub use problem::{Problem, report};
pub use profile::{DEFAULT as DEFAULT_PROFILE, Profile};
pub use secret::Secret;
pub use serve::{Limits, LogConfig, LogFormat, MachineConfig, NumCtx, ToldWindow, WindowConfig};
pub use task::{AUTO as TASK_AUTO, Task};
pub use telemetry::Telemetry;
pub use upstream::{ModelConfig, UpstreamConfig, UpstreamKind};
pub use written::Sourced;

use context::{CONTEXT_KEYS, ContextLayer, Tiers};
use file::{Label, Layer, Section};

/// The repository's own `config.toml`: the base layer, and what documents every key.
pub const DEFAULT_FILE: &str = include_str!("../../config.toml");

/// The tables of `config.toml`.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        path: "",
        keys: &[
            "listen",
            "data_dir",
            "record",
            "retention_days",
            "retention_bytes",
            "shadow",
            "api_key",
            "allowed_hosts",
            "allowed_origins",
            "profile_dir",
            "task",
        ],
        repeated: false,
    },
    Section { path: "upstream", keys: upstream::KEYS, repeated: true },
    Section { path: "key", keys: key::KEYS, repeated: true },
    Section { path: "pin", keys: pin::KEYS, repeated: true },
    Section {
        path: "window",
        keys: &["num_ctx", "output_reserved", "memory_headroom", "told_window"],
        repeated: false,
    },
    Section { path: "context", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.small", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.medium", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.large", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "gauge", keys: gauge::KEYS, repeated: false },
    Section { path: "ceiling", keys: guard::CEILING_KEYS, repeated: false },
    Section { path: "watch", keys: guard::WATCH_KEYS, repeated: false },
    Section {
        path: "limits",
        keys: &[
            "max_body_bytes",
            "max_inflight_bytes",
            "max_header_bytes",
            "max_connections",
            "max_connections_per_peer",
            "body_idle_seconds",
            "head_seconds",
            "ping_seconds",
            "drain_seconds",
        ],
        repeated: false,
    },
    Section { path: "memory", keys: &["dir"], repeated: false },
    Section { path: "telemetry", keys: telemetry::KEYS, repeated: false },
];

/// What the command line says; everything else is silent.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config FILE`: read this and look nowhere else.
    pub config: Option<PathBuf>,
    /// It is `serve` that asks: what it is to serve must be named. Other commands may not know what a `serve` was told.
    pub serves: bool,
    /// `--listen ADDR`.
    pub listen: Option<String>,
    /// `--upstream URL`, each time it is given; they replace those of the file.
    pub upstream: Vec<String>,
    /// `--model FILE.gguf`: windowsill serves it itself, instead of the file's upstreams or besides those of `upstream`.
    pub model: Option<PathBuf>,
    /// `--chat-template-file FILE`: for `model`.
    pub chat_template_file: Option<PathBuf>,
    /// `--kv-type K[,V]`: for `model`.
    pub kv_type: Option<String>,
    /// `--gpu-layers auto|all|N`: for `model`.
    pub gpu_layers: Option<String>,
    /// `--num-ctx N|fit|loaded`.
    pub num_ctx: Option<String>,
    /// `--data-dir DIR`.
    pub data_dir: Option<PathBuf>,
    /// `--task NAME`.
    pub task: Option<String>,
    /// `--log FORMAT`.
    pub log: Option<String>,
    /// `--shadow`.
    pub shadow: bool,
}

/// Every setting, resolved and checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the front door listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the record is kept.
    pub data_dir: PathBuf,
    /// The database that the record is in, where several windowsills share it: a `postgres://` URL, which may hold a password.
    pub record: Option<Secret>,
    /// Days that a conversation is kept after it was last used; 0 for always.
    pub retention_days: u32,
    /// Bytes that the record may take; 0 for any.
    pub retention_bytes: u64,
    /// Whether requests are forwarded untouched, and what would have been done is only said. The record is then one beside
    /// the real one.
    pub shadow: bool,
    /// What clients must send as a bearer token, if anything.
    pub api_key: Option<Secret>,
    /// Who may come in, each with a record of their own. Empty where one `api_key`, or none, is for all.
    pub keys: Vec<KeyConfig>,
    /// Names that requests may call this proxy by, besides IP addresses and `localhost`; `*.` stands for any subdomain.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may use this proxy, besides its own and those of this machine; `*` stands for any host.
    pub allowed_origins: Vec<String>,
    /// The upstreams named; empty when windowsill should look for them.
    pub upstreams: Vec<UpstreamConfig>,
    /// The window and what is kept free in it.
    pub window: WindowConfig,
    /// What people say that holds through every fold, by pattern; a profile adds its own.
    pub pins: Vec<PinPattern>,
    /// When a window counts as nearly full.
    pub gauge: Gauge,
    /// What a turn and a session may take.
    pub ceiling: Ceiling,
    /// When an agent goes in circles, and which models are too small.
    pub watch: Watch,
    /// Bounds on what is accepted.
    pub limits: Limits,
    /// Where the files of the memory tool are, a folder for each scope, where models have that tool.
    pub memory: Option<PathBuf>,
    /// How to log.
    pub log: LogConfig,
    /// Whether the environment asks for output without color (`NO_COLOR`, no-color.org).
    pub no_color: bool,
    /// Where to look at this machine.
    pub machine: MachineConfig,
    /// All profiles, by name.
    pub profiles: Vec<Profile>,
    /// All tasks, by name.
    pub tasks: Vec<Task>,
    /// The task of conversations that name none: empty for none, `auto` where the first turns decide.
    pub task: String,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Key, value and source of each setting outside `[context]`; secrets are not shown.
    pub sources: Vec<(String, String, String)>,
    /// The defaults of `[context]`, and the tables of sizes above them.
    defaults: (Context, Tiers),
    /// What the file says of these; it stands below a profile.
    below_profile: Tiers,
    /// What the environment says; it stands above a profile.
    above_profile: Tiers,
}

/// The settings that hold for one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// What the planner goes by.
    pub policy: Policy,
    /// Name of the profile.
    pub profile: String,
    /// The profile that the request named, where it named one: the same name again gives the same policy.
    pub named_profile: Option<String>,
    /// Name of the task, where there is one.
    pub task: Option<String>,
    /// What briefs of this task keep above all.
    pub focus: Option<String>,
    /// What is kept longest, for that task.
    pub keep: Option<Keep>,
    /// The model's size, where its name or the server tells it.
    pub size: Option<SizeClass>,
    /// Why this profile and size, in one line.
    pub because: String,
    /// Folds at a pace of the user's.
    pub triggers: Triggers,
    /// Whether to summarize ahead of need.
    pub background: bool,
    /// Whether the model gets a tool to read back what left its prompt.
    pub recall: bool,
    /// Whether what the last message points at comes back by itself.
    pub recall_ahead: bool,
    /// Whether the model gets a tool to say that a task is done.
    pub done_tool: bool,
    /// Whether new conversations begin with the rules of their project.
    pub rules: bool,
    /// What is done with a client's tools.
    pub tools: Listing,
    /// What is done with a client's system text.
    pub system: Listing,
    /// How long its sections may be, where it is said by index.
    pub system_caps: Caps,
    /// What people say that holds through every fold, by pattern.
    pub pins: Vec<PinPattern>,
    /// Settings of requests that hold whatever a client sends.
    pub settings: Settings,
    /// Which model writes briefs.
    pub summary_model: SummaryModel,
    /// The temperature of summaries and digests, whatever a client wants for its own replies.
    pub summary_temperature: f64,
    /// Which model condenses large results, where one does.
    pub digest_model: Option<OtherModel>,
    /// Which model names conversations, where one does.
    pub title_model: Option<OtherModel>,
    /// Something that was asked for and could not be done: an unknown profile in the request's header.
    pub warning: Option<String>,
    /// Key, value and source of each setting of `[context]` and each fact `template.…`.
    pub sources: Vec<(String, String, String)>,
}

/// Reads flags, environment, file and profiles.
///
/// # Errors
/// Every problem found, in the order flags, environment, file by line, profiles.
pub fn load(flags: &Flags) -> Result<Config, Vec<Problem>> {
    load_from(flags, &Environment::of_process())
}

/// [`load`], with the environment as a value.
///
/// # Errors
/// As [`load`].
pub fn load_from(flags: &Flags, environment: &Environment) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let layers = Layers::gather(flags, environment, &mut problems);
    let config = serve::resolve(&layers, flags, environment, &mut problems);
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => {
            let file = layers.path.as_ref().map(|path| display(path, &environment.cwd));
            problem::in_order(&mut problems, file.as_deref().unwrap_or_default());
            Err(problems)
        }
    }
}

/// The settings that hold where nobody wrote any, but for those of the command line: for looking at the rest when what was
/// written cannot be used. `None` only where not even those can be had (no home folder).
pub fn defaults(flags: &Flags) -> Option<Config> {
    let mut problems = Vec::new();
    let base = file::parse(DEFAULT_FILE, "built-in config.toml", &Label::Default, SECTIONS, &mut problems).ok()?;
    let none = Layer::default;
    let of = |flags: &Flags| Layers {
        flags: env::flags(flags),
        env: none(),
        file: none(),
        base: base.clone(),
        path: None,
        readable: true,
    };
    let environment = Environment::of_process();
    let meant = serve::resolve(&of(flags), flags, &environment, &mut problems);
    // Where a flag is what is wrong, none holds.
    if problems.is_empty() && meant.is_some() {
        return meant;
    }
    let plain = Flags::default();
    serve::resolve(&of(&plain), &plain, &environment, &mut problems)
}

/// Every key of `config.toml`: its table (empty for the top) and its name.
pub fn known_keys() -> Vec<(&'static str, &'static str)> {
    SECTIONS.iter().flat_map(|section| section.keys.iter().map(|key| (section.path, *key))).collect()
}

/// Everything that was written, by who wrote it.
pub(crate) struct Layers {
    flags: Layer,
    env: Layer,
    file: Layer,
    base: Layer,
    /// The file, and whether it could be read; what depends on it is not judged when it could not.
    path: Option<PathBuf>,
    readable: bool,
}

impl Layers {
    fn gather(flags: &Flags, environment: &Environment, problems: &mut Vec<Problem>) -> Layers {
        let env_layer = environment.layer(SECTIONS, problems);
        let path = find_file(flags, environment);
        let file = match &path {
            Some(path) => read_file(path, environment, problems),
            None => Some(Layer::default()),
        };
        let base = file::parse(DEFAULT_FILE, "built-in config.toml", &Label::Default, SECTIONS, problems);
        Layers {
            flags: env::flags(flags),
            env: env_layer,
            readable: file.is_some(),
            file: file.unwrap_or_default(),
            base: base.unwrap_or_default(),
            path,
        }
    }

    /// The strongest value of a key; weaker ones are read too, so that their problems show.
    pub(crate) fn take<T>(
        &self,
        key: &str,
        read: written::Reader<T>,
        problems: &mut Vec<Problem>,
    ) -> Option<Sourced<T>> {
        let mut strongest = None;
        for layer in [&self.flags, &self.env, &self.file, &self.base] {
            let value = layer.values.get(key).and_then(|written| written.read(read, problems));
            strongest = strongest.or(value);
        }
        strongest
    }

    /// A path; a relative one starts where it is written: at the file's folder, or at the working directory.
    pub(crate) fn take_path(
        &self,
        key: &str,
        environment: &Environment,
        problems: &mut Vec<Problem>,
    ) -> Option<Sourced<PathBuf>> {
        let folder = self.path.as_deref().and_then(Path::parent).unwrap_or(&environment.cwd);
        let mut strongest = None;
        for (layer, base) in [(&self.env, environment.cwd.as_path()), (&self.file, folder)] {
            let text = layer.values.get(key).and_then(|written| written.read(written::text, problems));
            let path = text.map(|text| Sourced { value: environment.path(&text.value, base), source: text.source });
            strongest = strongest.or(path);
        }
        strongest
    }

    /// The path that a value is: of the file's, a relative one starts at its folder; of others, at the working directory.
    pub(crate) fn path_of(&self, written: &written::Written, environment: &Environment) -> PathBuf {
        let in_file = self.file.repeated.iter().flat_map(|(_, table)| table.values()).any(|known| known == written);
        let folder = self.path.as_deref().and_then(Path::parent).filter(|_| in_file);
        environment.path(written.value.text().unwrap_or_default(), folder.unwrap_or(&environment.cwd))
    }
}

/// `--config`, else `./config.toml`, else the one in the user's config folder; the last two only if they exist.
fn find_file(flags: &Flags, environment: &Environment) -> Option<PathBuf> {
    if let Some(path) = &flags.config {
        return Some(environment.cwd.join(path));
    }
    let own = environment.xdg("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("windowsill/config.toml"));
    [Some(environment.cwd.join("config.toml")), own].into_iter().flatten().find(|path| path.is_file())
}

/// A path as messages show it: relative to the working directory where it lies below it.
pub(crate) fn display(path: &Path, cwd: &Path) -> String {
    path.strip_prefix(cwd).unwrap_or(path).display().to_string()
}

fn read_file(path: &Path, environment: &Environment, problems: &mut Vec<Problem>) -> Option<Layer> {
    let display = display(path, &environment.cwd);
    let text = file::read(path, &display, problems).ok()?;
    file::parse(&text, &display, &Label::File, SECTIONS, problems).ok()
}

impl Config {
    /// The settings for a model: which profile it gets, and what holds once every layer has spoken.
    ///
    /// `profile_header` is the request's `x-windowsill-profile`; a name that no profile has is ignored with a warning.
    pub fn policy(&self, model: &str, hints: &ModelHints, profile_header: Option<&str>) -> Resolved {
        self.policy_for(model, hints, profile_header, None)
    }

    /// Whether nobody gets in without a key.
    pub fn is_guarded(&self) -> bool {
        self.api_key.is_some() || !self.keys.is_empty()
    }

    /// The task of this name.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// [`Config::policy`] for a task, which lies over the model's profile field by field; a name that no task has is ignored
    /// with a warning.
    pub fn policy_for(
        &self,
        model: &str,
        hints: &ModelHints,
        profile_header: Option<&str>,
        task_name: Option<&str>,
    ) -> Resolved {
        let task_name = task_name.map(str::trim).filter(|name| !name.is_empty());
        let task = task_name.and_then(|name| self.task(name));
        let asked = profile_header.map(str::trim).filter(|name| !name.is_empty());
        let picked = asked.and_then(|name| self.profiles.iter().find(|profile| profile.name == name));
        let warning = match (asked, picked) {
            (Some(name), None) => Some(format!("there is no profile `{name}`")),
            _ => task_name.filter(|_| task.is_none()).map(|name| format!("there is no task `{name}`")),
        };
        let (profiles, because) = match profile::choose(&self.profiles, model, hints, picked) {
            Some(choice) => (choice.profiles, choice.because),
            // Only a `profile_dir` with a broken `default.toml` has none, and loading refuses that.
            None => (Vec::new(), String::new()),
        };
        let sizing = profile::sizing(model, hints, &profiles);
        let size = sizing.map(|sizing| sizing.class);
        let context = self.context_of(size, &profiles, task);
        let pins = self.pins.iter().chain(profiles.iter().flat_map(|profile| &profile.pins)).cloned().collect();
        let below = profiles.iter().rev();
        let template = below.fold(Template::unknown(), |facts, profile| profile.template.over(&facts));
        let mut sources = context.shown();
        sources.extend(
            template.shown().into_iter().map(|(key, value, source)| (format!("template.{key}"), value, source)),
        );
        let (settings, shown) = settings::holding(profiles.iter().map(|profile| profile.models.as_slice()), model);
        sources.extend(shown);
        Resolved {
            policy: context.policy(&template),
            profile: profiles.first().map_or(profile::DEFAULT, |profile| &profile.name).to_owned(),
            named_profile: asked.map(str::to_owned),
            task: task.map(|task| task.name.clone()),
            focus: task.and_then(|task| task.focus.clone()),
            keep: task.and_then(|task| task.keep),
            size,
            because: format!("{because}; {}", print::sizing(sizing)),
            triggers: context.triggers(),
            background: context.background.value,
            recall: context.recall.value,
            recall_ahead: context.recall_ahead.value,
            done_tool: context.done_tool.value,
            rules: context.rules.value,
            tools: context.tools.value,
            system: context.system.value,
            system_caps: Caps {
                section: context.system_section_max_tokens.value,
                all: context.system_max_tokens.value,
            },
            pins,
            settings,
            summary_model: context.summary_model.value,
            summary_temperature: context.summary_temperature.value,
            digest_model: context.digest_model.value,
            title_model: context.title_model.value,
            warning,
            sources,
        }
    }

    /// The settings of `[context]` for models of a size, once every layer has spoken; of `profiles`, the first wins.
    fn context_of(&self, size: Option<SizeClass>, profiles: &[&Profile], task: Option<&Task>) -> Context {
        let (defaults, tiers) = &self.defaults;
        let mut context = tiers.of(size).settled_over(defaults);
        let above = profiles.iter().rev().map(|profile| &profile.tiers);
        for layer in std::iter::once(&self.below_profile).chain(above) {
            context = layer.of(size).settled_over(&context);
        }
        let context = task.map_or_else(|| context.clone(), |task| task.context.settled_over(&context));
        self.above_profile.of(size).settled_over(&context)
    }
}

/// The settings of `[context]` in the embedded base layer.
pub(crate) fn default_context(problems: &mut Vec<Problem>) -> Option<Context> {
    let base = file::parse(DEFAULT_FILE, "built-in config.toml", &Label::Default, SECTIONS, problems).ok()?;
    ContextLayer::read(&base, "context", problems).whole()
}
