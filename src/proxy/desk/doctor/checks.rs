//! What may be wrong, one check each, and what to do about it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Finding, Seen, Server, Severity, loaded_window};
use crate::config::{Config, ModelHints, NumCtx, Problem, Response, SizeClass, SummaryModel, parameters_in_name};
use crate::files;
use crate::measure::afford::Afforded;
use crate::measure::afford::fits::Fits;
use crate::measure::hardware::room::size;
use crate::measure::hardware::{GpuMemory, Hardware};
use crate::measure::own::Counters;
use crate::plan::{self, Facts, Lines, Strategy};
use crate::proxy::turn::recall::files::usable;
use crate::proxy::{grouped, running_models};
use crate::upstream::{Kind, KindHint, Loaded, ModelInfo, SMALLEST_DEFAULT_WINDOW, Upstream, client};

/// System prompt and tools of common agents take 3,000 to 20,000 tokens, so a smaller window has little left.
const ROOM_FOR_AGENTS: u32 = 8192;

/// The first minor version 0.N of Ollama whose list of loaded models tells their windows.
const OLLAMA_TELLS: u32 = 10;

/// Models of a running windowsill that are named.
const NAMED: usize = 5;

/// A setting that cannot be used.
pub(super) fn of_config(problem: &Problem) -> Finding {
    let fix =
        problem.hint.clone().unwrap_or_else(|| "correct it; `config.toml` of the repository explains every key".into());
    Finding::new(Severity::Broken, format!("{}: {}", problem.place, problem.message), fix)
}

pub(super) fn no_server(config: &Config) -> Finding {
    let looked: Vec<&str> = config.machine.usual.iter().map(|(_, url)| url.as_str()).collect();
    Finding::new(
        Severity::Broken,
        format!("no inference server was found at {}", looked.join(", ")),
        "start one, or name it: windowsill serve --upstream URL, or [[upstream]] in the config",
    )
}

/// That the windowsill which runs here serves a model itself, or has servers that this config does not name; `None` where none
/// runs or it has none.
pub(super) async fn served_by_ours(config: &Config) -> Option<Finding> {
    if config.listen.port() == 0 || !is_windowsill(config).await {
        return None;
    }
    let address = config.listen.to_string();
    let asked = running_models(&address, config.api_key.as_ref().map(|key| key.expose()));
    let serves = match tokio::time::timeout(crate::upstream::PROBE_LIMIT, asked).await.ok()? {
        Ok(models) if models.is_empty() => return None,
        Ok(models) => {
            let names: Vec<&str> = models.iter().take(NAMED).map(String::as_str).collect();
            format!("serves {}", names.join(", "))
        }
        // It has a key that this config does not.
        Err(e) if e.status() == 401 => "asks for a key before it says what it serves".to_owned(),
        Err(_) => return None,
    };
    let message = format!("no other server was found; the windowsill on {address} {serves}");
    let fix = "nothing: it was started with --model, --upstream or another config";
    Some(Finding::new(Severity::Note, message, fix))
}

pub(super) fn server(server: &Server, upstream: &Upstream, findings: &mut Vec<Finding>) {
    if let Err(why) = &server.kind {
        let message = format!("{} at {} does not answer: {why}", server.name, server.url);
        findings.push(Finding::new(Severity::Broken, message, "start it, or correct its URL and key"));
        return;
    }
    if let (Some(Kind::Ollama), Some(version)) = (upstream.kind(), &server.version)
        && let Some((0, minor)) = numbers(version)
        // Builds from source call themselves 0.0.0.
        && minor > 0
        && minor < OLLAMA_TELLS
    {
        findings.push(Finding::new(
            Severity::Warning,
            format!("Ollama {version} does not tell the window of a loaded model"),
            "update Ollama, or set `num_ctx` to a number",
        ));
    }
    if server.models.is_empty() {
        let fix =
            if upstream.kind() == Some(Kind::Ollama) { "ollama pull MODEL" } else { "start the server with a model" };
        findings.push(Finding::new(Severity::Warning, format!("{} lists no models", server.name), fix));
    }
}

/// Major and minor of `0.13.5`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What may be wrong with a model as it is loaded, or would be.
pub(super) fn model(config: &Config, upstream: &Upstream, model: &ModelInfo, seen: &Seen, findings: &mut Vec<Finding>) {
    let id = &model.id;
    let loaded = seen.loaded.as_ref();
    let (trained, _) = seen.trained(model);
    findings.extend(beyond_training(id, loaded_window(loaded), trained));
    let afforded = match &seen.afforded {
        Ok(afforded) => afforded,
        Err(why) => {
            if upstream.is_local() && matches!(upstream.kind(), Some(Kind::Ollama | Kind::LlamaServer { .. })) {
                let message = format!("{id}: what it may have cannot be said: {why}");
                findings.push(warning(message, "let windowsill run where it can read the model's file"));
            }
            return;
        }
    };
    if let Some(sharing) = afforded.sharing.as_ref().filter(|_| afforded.divided) {
        let fix = "one slot: -np 1; or one window for all: --kv-unified; or a larger -c";
        findings.push(warning(format!("{id}: {sharing}"), fix));
    }
    let Some(best) = afforded.fits.best else {
        let message = format!("{id} does not fit this machine: {}", afforded.fits.because);
        findings.push(warning(message, "a smaller model, or one of fewer bits a weight"));
        return;
    };
    findings.extend(partly_in_ram(id, loaded, &afforded.fits));
    findings.extend(window_of_use(config, upstream, model, seen, (afforded, best)));
}

fn warning(message: String, fix: impl Into<String>) -> Finding {
    Finding::new(Severity::Warning, message, fix)
}

/// A window beyond what the model was trained for.
fn beyond_training(id: &str, window: Option<u32>, trained: Option<u32>) -> Option<Finding> {
    let (window, trained) = (window?, trained?);
    (window > trained.next_multiple_of(256)).then(|| {
        let message = format!("{id} is loaded with {}, and was trained for {}", grouped(window), grouped(trained));
        warning(message, format!("load it with {} at most", grouped(trained)))
    })
}

/// A model that is loaded into RAM where it could be on the GPU.
fn partly_in_ram(id: &str, loaded: Option<&Loaded>, fits: &Fits) -> Option<Finding> {
    let (held, window) = (loaded?.held?, loaded_window(loaded)?);
    let on_gpu = fits.gpu.filter(|_| held.device > 0)?;
    let in_ram = held.total.saturating_sub(held.device);
    // What never is on the GPU is about that much.
    if in_ram <= held.total / 10 {
        return None;
    }
    let message = format!(
        "{id} is loaded with {}, and {} of its {} are in RAM, which is slow",
        grouped(window),
        size(in_ram),
        size(held.total)
    );
    let fix = if on_gpu < window {
        format!("num_ctx = \"fit\" in [window], or --num-ctx fit: {} fit the GPU", grouped(on_gpu))
    } else {
        "unload it, so that it is loaded anew: by what is free now it fits the GPU".to_owned()
    };
    Some(warning(message, fix))
}

/// A window that is much smaller than what fits, too small for an agent, or larger than the memory carries.
fn window_of_use(
    config: &Config,
    upstream: &Upstream,
    model: &ModelInfo,
    seen: &Seen,
    (afforded, best): (&Afforded, u32),
) -> Vec<Finding> {
    let (id, loaded, mut out) = (&model.id, seen.loaded.as_ref(), Vec::new());
    let window = loaded_window(loaded);
    let (trained, _) = seen.trained(model);
    let ollama = upstream.kind() == Some(Kind::Ollama);
    // What nobody set, Ollama takes from the size of the GPU alone.
    let foretold = ollama && window.is_none() && loaded.is_some_and(|loaded| loaded.window.is_none());
    let will_have = window.or(foretold.then_some(SMALLEST_DEFAULT_WINDOW));
    let Some(has) = will_have.filter(|_| config.window.num_ctx == NumCtx::Loaded) else { return out };
    let how = if foretold { "would be loaded with as little as" } else { "is loaded with" };
    if u64::from(has) * 2 <= u64::from(best) {
        let message = format!("{id} {how} {} tokens, and {} fit this machine", grouped(has), grouped(best));
        let fix = if ollama {
            format!("num_ctx = \"fit\" in [window], or --num-ctx fit: {} fit", grouped(best))
        } else {
            let whole = afforded.whole.unwrap_or(best);
            format!("start the server with -c {whole}: a request then has {}", grouped(best))
        };
        out.push(warning(message, fix));
    } else if has < ROOM_FOR_AGENTS && trained.is_none_or(|trained| trained > has) {
        let message = format!(
            "{id} {how} {} tokens: system prompt and tools of an agent alone take 3,000 to 20,000",
            grouped(has)
        );
        let fix = "a model that needs less memory, or a quantized KV cache, leaves more for the window";
        out.push(warning(message, fix));
    }
    let most = afforded.fits.gpu_and_ram.unwrap_or(best);
    if window.is_some_and(|window| f64::from(window) > f64::from(most) * 1.1) {
        let (has, carried, why) = (grouped(has), grouped(most), &afforded.fits.because);
        let message = format!("{id} is loaded with {has}, and the memory carries {carried}: {why}");
        out.push(warning(message, format!("load it with {carried} or less")));
    }
    out
}

/// Conversations that no model can summarize, though `strategy` says so: for want of room, or of the model that is to do it.
pub(super) fn summaries(config: &Config, servers: &[Server], findings: &mut Vec<Finding>) {
    let mut others = BTreeSet::new();
    let all = servers.iter().flat_map(|server| &server.models);
    for (model, seen, _) in all {
        let resolved = config.policy_for(&model.id, &ModelHints::default(), None, None);
        if resolved.policy.strategy != Strategy::Summarize {
            continue;
        }
        if let Some(window) = seen.as_ref().and_then(|seen| loaded_window(seen.loaded.as_ref())) {
            let output_reserved = plan::usual_reserve(window, config.window.output_reserved);
            let facts = Facts { window, output_reserved, ..Facts::default() };
            if let Some(why) = Lines::of(&facts, &resolved.policy).no_summary() {
                let message = format!("no model summarizes conversations of {}: {why}", model.id);
                findings.push(warning(message, "a larger window, or a larger `summary_max_tokens` in [context]"));
            }
        }
        if let SummaryModel::Other { upstream, model } = resolved.summary_model {
            others.insert((upstream, model));
        }
    }
    for (upstream, model) in others {
        let there = servers.iter().find(|server| server.name == upstream);
        let lists = |server: &&Server| {
            let is_it = |id: &str| id == model || id.strip_suffix(":latest") == Some(&model);
            server.kind.is_ok() && server.models.iter().any(|(other, ..)| is_it(&other.id))
        };
        if there.filter(lists).is_none() {
            let message = format!("summary_model {upstream}/{model} is not to be had: briefs are made without a model");
            findings.push(warning(message, "start its server and load it, or leave `summary_model` empty"));
        }
    }
}

/// A model that is too small for agents, by its name.
pub(super) fn small(config: &Config, model: &ModelInfo, findings: &mut Vec<Finding>) {
    let size = parameters_in_name(&model.id).map(SizeClass::of);
    if config.watch.small_model != Response::Allow && size == Some(SizeClass::Small) {
        let message =
            format!("{} has fewer than 3 billion parameters: it calls tools wrongly and loses long prompts", model.id);
        let fix = "a larger model for agents; `small_model` in [watch] says what is done when this one is given tools";
        findings.push(Finding::new(Severity::Note, message, fix));
    }
}

/// Has a small request counted here and by the server, where both can, and says where they differ. Only of a model that is
/// loaded: to count, a router would load it.
pub(super) async fn count(
    counters: &Counters,
    upstream: &Upstream,
    model: &ModelInfo,
    seen: &Seen,
    findings: &mut Vec<Finding>,
) {
    let loaded = upstream.kind() == Some(Kind::LlamaServer { router: false }) || model.loaded == Some(true);
    let said = seen.loaded.as_ref().filter(|_| loaded && upstream.can_count());
    let Some((said, path)) = said.and_then(|said| Some((said, said.model_path.as_deref()?))) else { return };
    let template = said.template.text.as_deref().map(Arc::from);
    let Some(own) = counters.of_file(upstream, &model.id, path, template, Duration::ZERO).await else { return };
    let messages = json!([{"role": "user", "content": "How many tokens is this?\n\n1234567 é 北京"}]);
    let request = json!({"model": model.id, "messages": messages}).to_string();
    own.total(upstream, &request.into(), 0, u32::MAX).await;
    if let Some((ours, theirs)) = own.take_mismatch() {
        let message = format!(
            "{}: the same request has {ours} tokens by the model's own vocabulary and template, and {theirs} by the server: it \
             is asked for every count",
            model.id
        );
        let fix = "update the older of windowsill and the server, or start it with the model's own chat template";
        findings.push(Finding::new(Severity::Warning, message, fix));
    }
}

pub(super) fn hardware(hardware: &Hardware, findings: &mut Vec<Finding>) {
    for gpu in &hardware.gpus {
        if let GpuMemory::Unknown(why) = &gpu.memory {
            let message = format!("{}: its memory is not known ({why})", gpu.name);
            findings.push(Finding::new(
                Severity::Warning,
                message,
                "install or repair its driver; until then only RAM is counted on",
            ));
        }
    }
    for note in &hardware.notes {
        findings.push(Finding::new(Severity::Note, note.clone(), "nothing, if that is as it should be"));
    }
}

/// Tries to write where the record is kept, or would be. Leaves nothing behind.
pub(super) fn data_dir(folder: &Path, findings: &mut Vec<Finding>) {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    let probe = there.join(format!(".windowsill-doctor-{}", std::process::id()));
    let wrote = probe_write(&probe);
    let _ = std::fs::remove_file(&probe);
    if let Some(free) = free_bytes(there).filter(|free| wrote.is_ok() && *free < LITTLE_ROOM) {
        let message = format!("the disk of data_dir {} has {} MiB left", folder.display(), free >> 20);
        let fix = "free some space, or name another folder with `data_dir`: without room, nothing can be rewritten";
        findings.push(Finding::new(Severity::Warning, message, fix));
    }
    if let Some(why) = files::open_to_others(folder) {
        let message = format!("data_dir {} {why}: they could replace or remove the record", folder.display());
        let fix = format!("make it your own: chown \"$USER\" {0}; chmod 700 {0}", folder.display());
        findings.push(Finding::new(Severity::Warning, message, fix));
    }
    if let Err(e) = wrote {
        let message = format!("data_dir {} cannot be written: {e}", folder.display());
        findings.push(Finding::new(
            Severity::Broken,
            message,
            "another folder with `data_dir` or --data-dir, or its owner's rights",
        ));
    }
}

/// The folder of the memory that models have, where they have one.
pub(super) fn memory(config: &Config, findings: &mut Vec<Finding>) {
    let Some(folder) = &config.memory else { return };
    if let Err(e) = usable(folder) {
        let message = format!("the folder of [memory] {} cannot be written: {e}", folder.display());
        let fix = "name another folder with `dir` in [memory], or leave `dir` out: windowsill does not start with it";
        findings.push(Finding::new(Severity::Broken, message, fix));
    }
}

/// Room on the disk below which the record will soon be full: some long sessions.
const LITTLE_ROOM: u64 = 256 << 20;

/// Writes as much as a turn does, to the disk: on a full one an empty file can still be made.
fn probe_write(path: &Path) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    file.write_all(&[0; 64 * 1024])?;
    file.sync_all()
}

/// Bytes that this user may still write on a folder's disk.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Not known here.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Which pages are let in.
pub(super) fn pages(config: &Config, findings: &mut Vec<Finding>) {
    let any = config.allowed_origins.iter().any(|origin| origin == "*");
    if any && !config.is_guarded() {
        findings.push(Finding::new(
            Severity::Warning,
            "every web page may read the record and run models: `allowed_origins` has \"*\", and there is no `api_key`",
            "name the pages in `allowed_origins`, such as \"https://chat.example.org\" or \"vscode-webview://*\"",
        ));
    }
}

/// Whether the front door is free.
pub(super) async fn listen(config: &Config, findings: &mut Vec<Finding>) {
    let address = config.listen;
    if address.port() == 0 {
        return;
    }
    let Err(e) = std::net::TcpListener::bind(address) else { return };
    if e.kind() != std::io::ErrorKind::AddrInUse {
        let message = format!("windowsill cannot listen on {address}: {e}");
        findings.push(Finding::new(Severity::Broken, message, "another address with `listen` or --listen"));
        return;
    }
    let fix = "another port with `listen` or --listen, or 0 for a free one";
    let found = if is_windowsill(config).await {
        findings.extend(out_of_use(config).await);
        Finding::new(
            Severity::Note,
            format!("a windowsill is running on {address}{}", servers_of_ours(config).await),
            format!("nothing, unless a second one is meant: {fix}"),
        )
    } else {
        Finding::new(Severity::Broken, format!("another program listens on {address}"), fix)
    };
    findings.push(found);
}

/// Asks the windowsill that runs there.
async fn asked_there(config: &Config, path: &str) -> Option<serde_json::Value> {
    let (address, key) = (config.listen.to_string(), config.api_key.as_ref().map(|key| key.expose()));
    let asked = super::super::running::ask(&address, key, http::Method::GET, path, None);
    tokio::time::timeout(crate::upstream::PROBE_LIMIT, asked).await.ok()?.ok()
}

/// The servers that get no requests of the windowsill that runs there, and why.
async fn out_of_use(config: &Config) -> Vec<Finding> {
    let Some(told) = asked_there(config, "/windowsill/upstreams").await else { return Vec::new() };
    let finding = |one: &serde_json::Value| {
        let text = |key: &str| crate::plain::line(one[key].as_str().unwrap_or("")).into_owned();
        let name = text("upstream");
        match one["standing"].as_str()? {
            "draining" => Some(warning(
                format!("the windowsill that runs sends no new requests to `{name}`: it is drained"),
                format!("`windowsill drain {name} --undo`, once it may have some again"),
            )),
            "down" => Some(warning(
                format!("the windowsill that runs sends no requests to `{name}`, which is down: {}", text("why")),
                "start that server: it is asked every two seconds, and gets requests again once it answers",
            )),
            _ => None,
        }
    };
    told["upstreams"].as_array().into_iter().flatten().filter_map(finding).collect()
}

/// The servers that the running windowsill uses, as the end of a sentence; empty where it does not say.
async fn servers_of_ours(config: &Config) -> String {
    let Some(told) = asked_there(config, "/windowsill/models").await else { return String::new() };
    let mut servers: Vec<String> = Vec::new();
    for entry in told["models"].as_array().into_iter().flatten() {
        let text = |key: &str| crate::plain::line(entry[key].as_str().unwrap_or("")).into_owned();
        let at = if entry["url"].as_str().is_some_and(|url| url.starts_with("http")) {
            format!(" at {}", text("url"))
        } else {
            String::new()
        };
        let server = format!(
            "{}{at}{}",
            text("upstream"),
            if entry["error"].is_string() { " (it does not answer)" } else { "" }
        );
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() { ", and has no server yet".to_owned() } else { format!(", and uses {}", servers.join(", ")) }
}

/// Whether a windowsill answers there.
async fn is_windowsill(config: &Config) -> bool {
    let Ok(client) = client() else { return false };
    let url = format!("http://{}", config.listen);
    let Ok(door) = Upstream::new(client, "windowsill".into(), &url, KindHint::OpenAi) else { return false };
    let headers = http::HeaderMap::new();
    let asked = door.pass(http::Method::GET, "/healthz", &headers, bytes::Bytes::new().into());
    let Ok(Ok(reply)) = tokio::time::timeout(crate::upstream::PROBE_LIMIT, asked).await else { return false };
    match crate::proxy::turn::read_up_to(reply.body, 1024).await {
        Ok((bytes, None)) => bytes.as_ref() == b"ok\n",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for (version, want) in [("0.13.5", Some((0, 13))), ("v0.9.0-rc1", Some((0, 9))), ("b1234", None), ("", None)] {
            assert_eq!(numbers(version), want, "{version}");
        }
    }

    #[test]
    fn a_folder_is_tried_without_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let mut findings = Vec::new();
        data_dir(&dir.path().join("not/there/yet"), &mut findings);
        assert_eq!(findings, []);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        data_dir(&file.join("below"), &mut findings);
        assert_eq!(findings[0].severity, Severity::Broken);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_in_is_named_with_the_way_to_mend_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut findings = Vec::new();
        data_dir(dir.path(), &mut findings);
        let [found] = &findings[..] else { panic!("{findings:?}") };
        assert!(found.severity == Severity::Warning && found.message.contains("mode 0777"), "{found:?}");
        assert!(found.fix.contains(&format!("chmod 700 {}", dir.path().display())), "{found:?}");
    }
}
