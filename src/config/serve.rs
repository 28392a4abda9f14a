//! The settings outside `[context]`: the front door, the data folder, the window, limits and logs; and the checks of
//! what must go together.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::conversation::Tokens;

use super::context::{Context, ContextLayer, OtherModel, SummaryModel, Tiers};
use super::model::SizeClass;
use super::problem::Problem;
use super::written::{self as read, Sourced, Sources, Value, Written, note};
use super::{
    Config, DEFAULT_SCOPE, Environment, Flags, Layers, Secret, Telemetry, door, gauge, guard, key, pin, profile, task,
    telemetry, upstream,
};

/// Which window a model is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumCtx {
    /// Take what the server has loaded.
    Loaded,
    /// The largest that fits the machine, where the server lets a client set it.
    Fit,
    /// This many tokens.
    Fixed(Tokens),
}

/// Which window clients are told of in lists of models: many plan by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToldWindow {
    /// The one that the server has loaded; where that is not known, the trained one.
    Loaded,
    /// The one that the model was trained for.
    Trained,
    /// One that no client ever fills.
    Endless,
}

impl ToldWindow {
    /// As it stands in the config.
    fn as_str(self) -> &'static str {
        match self {
            ToldWindow::Loaded => "loaded",
            ToldWindow::Trained => "trained",
            ToldWindow::Endless => "endless",
        }
    }

    fn read(value: &Value) -> Result<ToldWindow, String> {
        let all = [ToldWindow::Loaded, ToldWindow::Trained, ToldWindow::Endless];
        let found = value.text().and_then(|text| all.into_iter().find(|one| one.as_str() == text.trim()));
        found.ok_or_else(|| "must be \"loaded\", \"trained\" or \"endless\"".to_owned())
    }
}

/// The window, and what of it is not for the prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowConfig {
    /// Which window a model is to have.
    pub num_ctx: NumCtx,
    /// Tokens kept for the reply when the request names none.
    pub output_reserved: Tokens,
    /// Share of each device's memory left free by `fit`.
    pub memory_headroom: f64,
    /// Which window clients are told of.
    pub told: ToldWindow,
}

/// Where to look at this machine, and what its environment says of Ollama.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineConfig {
    /// The folder that holds `proc` and `sys`: `/`, or `WINDOWSILL_MACHINE_ROOT` for tests and for containers that mount
    /// the host's elsewhere.
    pub root: PathBuf,
    /// The home folder.
    pub home: Option<PathBuf>,
    /// The variables `OLLAMA_…` of our own environment: the server's may be others.
    pub ollama: BTreeMap<String, String>,
    /// This program, to run in a process of its own what may end the process; `None` where that is not known.
    pub program: Option<PathBuf>,
    /// Where inference servers are looked for when none is named: a name and a URL each.
    pub usual: Vec<(String, String)>,
}

/// The ports that servers listen on by default: Ollama, llama-server (9931 since October 2026), LM Studio and vLLM.
const USUAL: [(&str, u16); 5] =
    [("ollama", 11434), ("llama.cpp", 8080), ("llama.cpp-9931", 9931), ("lm-studio", 1234), ("vllm", 8000)];

impl Default for MachineConfig {
    fn default() -> MachineConfig {
        let usual = USUAL.map(|(name, port)| (name.to_owned(), format!("http://127.0.0.1:{port}"))).to_vec();
        MachineConfig { root: PathBuf::from("/"), home: None, ollama: BTreeMap::new(), program: None, usual }
    }
}

impl MachineConfig {
    fn of(environment: &Environment) -> MachineConfig {
        let ours = environment.vars.iter().filter(|(name, _)| name.starts_with("OLLAMA_"));
        MachineConfig {
            root: environment.get("WINDOWSILL_MACHINE_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from),
            home: environment.home(),
            ollama: ours.map(|(name, value)| (name.clone(), value.clone())).collect(),
            program: std::env::current_exe().ok(),
            ..MachineConfig::default()
        }
    }
}

/// Bounds on what the front door accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, in bytes.
    pub max_body_bytes: u64,
    /// Bytes of all request bodies held at once; never less than the largest body.
    pub max_inflight_bytes: u64,
    /// Largest request head, in bytes; at least 8192.
    pub max_header_bytes: usize,
    /// Connections open at once.
    pub max_connections: usize,
    /// Connections open at once from one address that is not this machine's own.
    pub max_connections_per_peer: usize,
    /// Seconds that the next part of a request body may take.
    pub body_idle_seconds: u64,
    /// Seconds until a client that asked for a stream gets the head of its reply.
    pub head_seconds: u64,
    /// Seconds that a stream is silent at most.
    pub ping_seconds: u64,
    /// Seconds that requests under way get to end at shutdown.
    pub drain_seconds: u64,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What the program tells of itself: how to log, and how much.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// How lines look: `--log`, else `WINDOWSILL_LOG`, else text.
    pub format: LogFormat,
    /// Which lines: the filter in `RUST_LOG`, else `info`.
    pub filter: String,
    /// Where the spans of requests go, where they are wanted.
    pub telemetry: Option<Telemetry>,
}

/// The URL of a database.
fn record(value: &Value) -> Result<String, String> {
    let url = read::text(value)?;
    if ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(url);
    }
    Err("must be the URL of a PostgreSQL database\nan example: postgres://windowsill:PASSWORD@db.example.org/windowsill".into())
}

/// Resolves every setting; `None` when something is missing, which a problem then says.
pub(crate) fn resolve(
    layers: &Layers,
    flags: &Flags,
    environment: &Environment,
    problems: &mut Vec<Problem>,
) -> Option<Config> {
    let listen = layers.take("listen", listen, problems);
    let api_key = layers.take("api_key", read::text, problems);
    let allowed_hosts = layers.take("allowed_hosts", door::hosts, problems);
    let allowed_origins = layers.take("allowed_origins", door::origins, problems);
    let shadow = layers.take("shadow", read::boolean, problems);
    let is_shadow = shadow.as_ref().is_some_and(|shadow| shadow.value);
    let data_dir = data_dir(layers, flags, environment, problems).map(|dir| beside(dir, is_shadow));
    let record = layers.take("record", record, problems);
    let retention_days = layers.take("retention_days", read::days, problems);
    let retention_bytes = layers.take("retention_bytes", read::record_bytes, problems);
    let profile_dir = layers.take_path("profile_dir", environment, problems);
    let at = |written: &Written| layers.path_of(written, environment);
    let upstreams = upstream::resolve(&layers.flags, &layers.env, &layers.file, &at, problems);
    let mut sources = Vec::new();
    let window = window(layers, &mut sources, problems);
    let pins = [&layers.env, &layers.file].into_iter().flat_map(|layer| pin::resolve(layer, problems)).collect();
    let gauge = gauge::resolve(layers, &mut sources, problems);
    let watch = guard::watch(layers, &mut sources, problems);
    let ceiling = guard::ceiling(layers, &mut sources, problems);
    let limits = limits(layers, &mut sources, problems);
    let memory = layers.take_path("memory.dir", environment, problems);
    let telemetry = telemetry::resolve(layers, environment, &mut sources, problems);
    let log = LogConfig { telemetry, ..log(flags, environment, problems) };

    let Contexts { above_profile, below_profile, tiers, base, context } = contexts(layers, problems)?;
    let folder = profile_dir.as_ref().map(|dir| dir.value.as_path());
    let profiles = profile::load(folder, &base, problems);
    let tasks = task::load(folder, problems);
    let task = layers.take("task", read::any_text, problems);
    task::check(task.as_ref(), &tasks, problems);
    let keys = key::resolve(&layers.file, problems);
    let named = !layers.file.keys.is_empty();
    check_door(listen.as_ref(), api_key.is_some() || named || !layers.readable, problems);
    if layers.readable {
        let of_sizes = above_profile.sizes.iter().chain(&below_profile.sizes);
        let above: Vec<_> = of_sizes.chain(profiles.iter().flat_map(|p| p.tiers.layers())).collect();
        check_models(&context, &above, &upstreams, flags.serves, problems);
    }

    note("memory.dir", memory.as_ref(), |dir| dir.display().to_string(), &mut sources);
    note("task", task.as_ref(), |name| name.clone(), &mut sources);
    note("profile_dir", profile_dir.as_ref(), |dir| dir.display().to_string(), &mut sources);
    note("allowed_origins", allowed_origins.as_ref(), |names| names.join(", "), &mut sources);
    note("allowed_hosts", allowed_hosts.as_ref(), |names| names.join(", "), &mut sources);
    note("api_key", api_key.as_ref(), |_| "(set)".to_owned(), &mut sources);
    note("retention_bytes", retention_bytes.as_ref(), u64::to_string, &mut sources);
    note("retention_days", retention_days.as_ref(), u32::to_string, &mut sources);
    note("shadow", shadow.as_ref(), bool::to_string, &mut sources);
    note("record", record.as_ref(), |_| "(set)".to_owned(), &mut sources);
    note("data_dir", data_dir.as_ref(), |dir| dir.display().to_string(), &mut sources);
    note("listen", listen.as_ref(), SocketAddr::to_string, &mut sources);
    sources.reverse();
    Some(Config {
        listen: listen?.value,
        data_dir: data_dir?.value,
        shadow: shadow?.value,
        // What would only have been done is nobody else's.
        record: record.filter(|_| !is_shadow).map(|url| Secret::new(url.value)),
        retention_days: retention_days?.value,
        retention_bytes: retention_bytes?.value,
        api_key: api_key.map(|key| Secret::new(key.value)),
        keys,
        allowed_hosts: allowed_hosts?.value,
        allowed_origins: allowed_origins?.value,
        upstreams,
        window: window?,
        pins,
        gauge: gauge?,
        ceiling: ceiling?,
        watch: watch?,
        limits: limits?,
        memory: memory.map(|dir| dir.value.join(DEFAULT_SCOPE)),
        log,
        no_color: environment.get("NO_COLOR").is_some(),
        machine: MachineConfig::of(environment),
        profiles,
        tasks,
        task: task?.value,
        file: layers.path.clone(),
        sources,
        defaults: (base, tiers),
        below_profile,
        above_profile,
    })
}

/// `[context]` and the tables of sizes, as they are written above and below the profiles.
struct Contexts {
    above_profile: Tiers,
    below_profile: Tiers,
    /// The defaults, and those of them that hold for every size.
    tiers: Tiers,
    base: Context,
    /// What holds where no profile says otherwise.
    context: Context,
}

fn contexts(layers: &Layers, problems: &mut Vec<Problem>) -> Option<Contexts> {
    let above_profile = Tiers::read(&layers.env, problems);
    let below_profile = Tiers::read(&layers.file, problems);
    let tiers = Tiers::read(&layers.base, problems);
    let base = tiers.all.whole()?;
    let context = above_profile.all.over(&below_profile.all.over(&base));
    problems.extend(context.check(None));
    check_sizes(&above_profile, &below_profile, &tiers, &base, problems);
    Some(Contexts { above_profile, below_profile, tiers, base, context })
}

fn window(layers: &Layers, sources: &mut Sources, problems: &mut Vec<Problem>) -> Option<WindowConfig> {
    let num_ctx = layers.take("window.num_ctx", num_ctx, problems);
    let output_reserved = layers.take("window.output_reserved", read::tokens, problems);
    let headroom = layers.take("window.memory_headroom", read::headroom, problems);
    let told = layers.take("window.told_window", ToldWindow::read, problems);
    note("window.told_window", told.as_ref(), |told| told.as_str().to_owned(), sources);
    note("window.memory_headroom", headroom.as_ref(), f64::to_string, sources);
    note("window.output_reserved", output_reserved.as_ref(), Tokens::to_string, sources);
    note("window.num_ctx", num_ctx.as_ref(), show_num_ctx, sources);
    let (num_ctx, output_reserved) = (num_ctx?, output_reserved?);
    // The default gives way: never more than a quarter of the window is kept. What somebody wrote should be meant.
    if let NumCtx::Fixed(window) = num_ctx.value
        && output_reserved.value >= window
        && output_reserved.source != "default"
    {
        let place = &num_ctx.source;
        let message = format!(
            "`output_reserved` ({}, {}) leaves nothing of `num_ctx` ({window}, {}) for the prompt",
            output_reserved.value, output_reserved.source, num_ctx.source
        );
        let hint = format!("for instance, `output_reserved = {}`", (window / 4).max(1));
        problems.push(Problem::new(place, message).hint(hint));
    }
    Some(WindowConfig {
        num_ctx: num_ctx.value,
        output_reserved: output_reserved.value,
        memory_headroom: headroom?.value,
        told: told?.value,
    })
}

fn show_num_ctx(num_ctx: &NumCtx) -> String {
    match num_ctx {
        NumCtx::Loaded => "loaded".to_owned(),
        NumCtx::Fit => "fit".to_owned(),
        NumCtx::Fixed(tokens) => tokens.to_string(),
    }
}

fn num_ctx(value: &Value) -> Result<NumCtx, String> {
    match (value, value.text().map(str::trim)) {
        (_, Some("loaded")) => Ok(NumCtx::Loaded),
        (_, Some("fit")) => Ok(NumCtx::Fit),
        (Value::Text(text), _) if text.trim().parse::<u32>().is_ok() => {
            Err("must be \"loaded\", \"fit\" or a number of tokens\nwrite the number without quotes".to_owned())
        }
        _ => read::tokens(value).map(NumCtx::Fixed).map_err(|_| {
            let meant = value.text().and_then(thousands).map_or(String::new(), |n| format!("\ndid you mean {n}?"));
            format!("must be \"loaded\", \"fit\" or a whole number of tokens{meant}")
        }),
    }
}

/// What "16k" stands for where windows are meant: 16,384.
fn thousands(text: &str) -> Option<u32> {
    let digits = text.trim().strip_suffix(['k', 'K'])?;
    digits.trim().parse::<u32>().ok()?.checked_mul(1024)
}

fn limits(layers: &Layers, sources: &mut Sources, problems: &mut Vec<Problem>) -> Option<Limits> {
    let drain = layers.take("limits.drain_seconds", read::seconds, problems);
    let ping = layers.take("limits.ping_seconds", read::wait_seconds, problems);
    let head = layers.take("limits.head_seconds", read::wait_seconds, problems);
    let idle = layers.take("limits.body_idle_seconds", read::wait_seconds, problems);
    let of_peer = layers.take("limits.max_connections_per_peer", read::connections, problems);
    let connections = layers.take("limits.max_connections", read::connections, problems);
    let header_bytes = layers.take("limits.max_header_bytes", read::header_bytes, problems);
    let inflight = layers.take("limits.max_inflight_bytes", read::body_bytes, problems);
    let body = layers.take("limits.max_body_bytes", read::body_bytes, problems);
    note("limits.drain_seconds", drain.as_ref(), u64::to_string, sources);
    note("limits.ping_seconds", ping.as_ref(), u64::to_string, sources);
    note("limits.head_seconds", head.as_ref(), u64::to_string, sources);
    note("limits.body_idle_seconds", idle.as_ref(), u64::to_string, sources);
    note("limits.max_connections_per_peer", of_peer.as_ref(), usize::to_string, sources);
    note("limits.max_connections", connections.as_ref(), usize::to_string, sources);
    note("limits.max_header_bytes", header_bytes.as_ref(), usize::to_string, sources);
    note("limits.max_inflight_bytes", inflight.as_ref(), u64::to_string, sources);
    note("limits.max_body_bytes", body.as_ref(), u64::to_string, sources);
    let body = body?.value;
    Some(Limits {
        max_body_bytes: body,
        max_inflight_bytes: inflight?.value.max(body),
        max_header_bytes: header_bytes?.value,
        max_connections: connections?.value,
        max_connections_per_peer: of_peer?.value,
        body_idle_seconds: idle?.value,
        head_seconds: head?.value,
        ping_seconds: ping?.value,
        drain_seconds: drain?.value,
    })
}

fn log(flags: &Flags, environment: &Environment, problems: &mut Vec<Problem>) -> LogConfig {
    let flag = flags.log.as_deref().map(|text| Written::word("--log", text, "--log", "flag --log"));
    let variable = || {
        let name = "WINDOWSILL_LOG";
        environment.get(name).map(|text| Written::word(name, text, "environment", "environment WINDOWSILL_LOG"))
    };
    let format = flag.or_else(variable).and_then(|written| written.read(log_format, problems));
    LogConfig {
        format: format.map_or(LogFormat::Text, |format| format.value),
        filter: environment.get("RUST_LOG").unwrap_or("info").to_owned(),
        telemetry: None,
    }
}

fn log_format(value: &Value) -> Result<LogFormat, String> {
    Ok(if read::choice(value, &["text", "json"])? == "json" { LogFormat::Json } else { LogFormat::Text })
}

/// An address to listen on: `IP:PORT`, or `localhost:PORT`.
fn listen(value: &Value) -> Result<SocketAddr, String> {
    let wanted = "must be an address and a port, such as \"127.0.0.1:8484\"";
    let text = read::text(value).map_err(|_| wanted.to_owned())?;
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        let port = text.trim_start_matches(':');
        match port.parse::<u16>() {
            Ok(port) => format!("{wanted}\ndid you mean \"127.0.0.1:{port}\"?"),
            Err(_) if text.parse::<IpAddr>().is_ok() => format!("{wanted}\nthe port is missing"),
            Err(_) => wanted.to_owned(),
        }
    })
}

/// `--data-dir`, else what is written, else the user's data folder.
fn data_dir(
    layers: &Layers,
    flags: &Flags,
    environment: &Environment,
    problems: &mut Vec<Problem>,
) -> Option<Sourced<PathBuf>> {
    let written = layers.take_path("data_dir", environment, problems);
    if let Some(path) = &flags.data_dir {
        return Some(Sourced { value: environment.cwd.join(path), source: "flag --data-dir".to_owned() });
    }
    let usual = || {
        let value = environment.xdg("XDG_DATA_HOME", ".local/share")?.join("windowsill");
        Some(Sourced { value, source: "default".to_owned() })
    };
    let found = written.or_else(usual);
    if found.is_none() {
        let problem = Problem::new("environment", "there is no `HOME` to keep the record in");
        problems.push(problem.hint("set `data_dir`, or give --data-dir"));
    }
    found
}

/// What shadow foresees is kept apart: the real record only holds what happened.
fn beside(dir: Sourced<PathBuf>, shadow: bool) -> Sourced<PathBuf> {
    if shadow { Sourced { value: dir.value.join("shadow"), ..dir } } else { dir }
}

/// Whoever listens beyond this machine needs a key.
fn check_door(listen: Option<&Sourced<SocketAddr>>, guarded: bool, problems: &mut Vec<Problem>) {
    let Some(listen) = listen.filter(|listen| !guarded && !listen.value.ip().to_canonical().is_loopback()) else {
        return;
    };
    let address = listen.value;
    let message = format!("`listen` is \"{address}\", which others can reach, and there is no `api_key`");
    let hint = format!(
        "set `api_key` or WINDOWSILL_API_KEY, or a [[key]] for each person, or listen on 127.0.0.1:{}",
        address.port()
    );
    problems.push(Problem::new(&listen.source, message).hint(hint));
}

/// Thresholds of a table of a size that contradict each other, over the defaults for that size.
fn check_sizes(above: &Tiers, below: &Tiers, tiers: &Tiers, base: &Context, problems: &mut Vec<Problem>) {
    for size in SizeClass::ALL.map(|size| size as usize) {
        let written = above.sizes[size].or(&below.sizes[size]);
        if written != ContextLayer::default() {
            problems.extend(written.over(&tiers.sizes[size].over(base)).check(None));
        }
    }
}

/// Every model that writes briefs or digests names an upstream there is; and digests need a model. `above` is what is said
/// of models of a size, and by profiles.
fn check_models(
    context: &Context,
    above: &[&ContextLayer],
    upstreams: &[super::UpstreamConfig],
    serves: bool,
    problems: &mut Vec<Problem>,
) {
    let summaries =
        std::iter::once(&context.summary_model).chain(above.iter().filter_map(|l| l.summary_model.as_ref()));
    let digests = std::iter::once(&context.digest_model).chain(above.iter().filter_map(|l| l.digest_model.as_ref()));
    let titles = std::iter::once(&context.title_model).chain(above.iter().filter_map(|l| l.title_model.as_ref()));
    let others = digests.map(|model| ("digest_model", model)).chain(titles.map(|model| ("title_model", model)));
    let mut named: Vec<(&str, &str, String, &str)> = Vec::new();
    for model in summaries {
        match &model.value {
            SummaryModel::Own => {}
            SummaryModel::Other { upstream, .. } => {
                named.push(("summary_model", upstream, model.value.to_string(), &model.source));
            }
            SummaryModel::Embedded if !serves || upstreams.iter().any(|known| known.model.is_some()) => {}
            SummaryModel::Embedded => {
                let message = "`summary_model` is \"embedded\", and windowsill serves no model itself";
                let hint = "name a file: --model FILE.gguf, or an [[upstream]] with model = \"FILE.gguf\"";
                problems.push(Problem::new(&model.source, message).hint(hint));
            }
        }
    }
    for (key, model) in others {
        if let Some(OtherModel { upstream, model: name }) = &model.value {
            named.push((key, upstream, format!("{upstream}/{name}"), &model.source));
        }
    }
    for (key, upstream, written, source) in named {
        if upstreams.iter().any(|known| known.name == upstream) {
            continue;
        }
        let names: Vec<&str> = upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        let hint = match names.as_slice() {
            [] => "name the upstreams in [[upstream]]; none is named".to_owned(),
            names => super::problem::nearest(upstream, names),
        };
        let message = format!("`{key}` is \"{written}\", and there is no upstream `{upstream}`");
        problems.push(Problem::new(source, message).hint(hint));
    }
    if context.digest_over.value.is_some() && context.digest_model.value.is_none() {
        let message = "`digest_over` is set, and there is no `digest_model` to write digests";
        let hint = "such as digest_model = \"local/qwen3:0.6b\", or digest_over = \"off\"";
        problems.push(Problem::new(&context.digest_over.source, message).hint(hint));
    }
}
