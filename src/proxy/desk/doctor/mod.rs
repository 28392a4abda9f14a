//! `windowsill doctor`: looks at servers, models, memory, config and folders, and says what is wrong and how to fix it.
//! It changes nothing and loads no model.

mod checks;
mod page;

use std::sync::Arc;

use serde_json::{Value, json};

use super::machine::{Seen, VOCABULARIES};
use crate::config::{Config, Problem};
use crate::measure::afford::Machine;
use crate::measure::hardware::{Gpu, GpuMemory, Hardware, Memory};
use crate::measure::own::Counters;
use crate::measure::shown::Shown;
use crate::proxy::find::find;
use crate::upstream::{Loaded, ModelInfo, Upstream};

/// Of a long list of models, so many are looked at closely; those that are loaded come first.
const CLOSELY: usize = 24;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Severity {
    /// It does not work.
    Broken,
    /// It works, and not as well as it could.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Broken => "broken",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Something found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) struct Finding {
    severity: Severity,
    message: String,
    fix: String,
}

impl Finding {
    fn new(severity: Severity, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { severity, message: message.into(), fix: fix.into() }
    }
}

/// A server, and what was seen of it.
struct Server {
    name: String,
    url: String,
    /// Its kind, or why it does not answer.
    kind: Result<&'static str, String>,
    version: Option<String>,
    models: Vec<(ModelInfo, Option<Seen>, Value)>,
}

/// What was found.
pub struct Diagnosis {
    servers: Vec<Server>,
    hardware: Hardware,
    config: Value,
    findings: Vec<Finding>,
}

/// Looks at everything. `problems` are those of a config that could not be used.
pub async fn doctor(config: &Config, problems: &[Problem]) -> Diagnosis {
    let machine =
        Machine::of(config, Shown::within(config.data_dir.join(VOCABULARIES), config.machine.program.clone()));
    let counters = Counters::with(machine.shown(), machine.program());
    let mut findings: Vec<Finding> = problems.iter().map(checks::of_config).collect();
    let (mut upstreams, _) = match find(config).await {
        Ok(found) => found,
        Err(e) => {
            findings.push(Finding::new(Severity::Broken, e.to_string(), "correct the upstream's `url` in the config"));
            (Vec::new(), Vec::new())
        }
    };
    upstreams.retain(|upstream| upstream.is_there());
    if upstreams.is_empty() {
        findings.push(match checks::served_by_ours(config).await {
            Some(finding) => finding,
            None => checks::no_server(config),
        });
    }
    let mut servers = Vec::new();
    for upstream in &upstreams {
        let server = look(&machine, &counters, upstream).await;
        checks::server(&server, upstream, &mut findings);
        for (model, seen, _) in &server.models {
            checks::small(config, model, &mut findings);
            if let Some(seen) = seen {
                checks::model(config, upstream, model, seen, &mut findings);
                checks::count(&counters, upstream, model, seen, &mut findings).await;
            }
        }
        servers.push(server);
    }
    checks::summaries(config, &servers, &mut findings);
    let hardware = machine.hardware();
    checks::hardware(&hardware, &mut findings);
    checks::data_dir(&config.data_dir, &mut findings);
    checks::memory(config, &mut findings);
    checks::listen(config, &mut findings).await;
    checks::pages(config, &mut findings);
    let findings = in_order(findings);
    let config = json!({
        "file": config.file.as_ref().map(|file| file.display().to_string()), "usable": problems.is_empty(),
        "data_dir": config.data_dir.display().to_string(), "listen": config.listen.to_string(),
        "allowed_hosts": config.allowed_hosts, "allowed_origins": config.allowed_origins,
        "settings": config.sources.iter().map(|(k, v, s)| json!({"key": k, "value": v, "source": s})).collect::<Vec<_>>(),
        "profiles": config.profiles.len(),
    });
    Diagnosis { servers, hardware, config, findings }
}

/// The worst first, and each once: two servers of one model have the same trouble with it.
fn in_order(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.severity as u8);
    let mut told: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings {
        if !told.contains(&finding) {
            told.push(finding);
        }
    }
    told
}

async fn look(machine: &Machine, counters: &Counters, upstream: &Arc<Upstream>) -> Server {
    let (name, url) = (upstream.name().to_owned(), upstream.url().to_owned());
    let kind = match upstream.probe().await {
        Ok(kind) => kind.as_str(),
        Err(e) => return Server { name, url, kind: Err(e.to_string()), version: None, models: Vec::new() },
    };
    let version = upstream.version().await;
    let mut listed = match upstream.models().await {
        Ok(listed) => listed,
        Err(e) => return Server { name, url, kind: Err(e.to_string()), version, models: Vec::new() },
    };
    listed.sort_by_key(|model| model.loaded != Some(true));
    let mut models = Vec::new();
    for (nth, model) in listed.into_iter().enumerate() {
        let seen = if nth < CLOSELY { Some(Seen::of(machine, counters, upstream, &model).await) } else { None };
        let shown =
            seen.as_ref().map_or(json!({"model": model.id, "loaded": model.loaded}), |s| s.json(upstream, &model));
        models.push((model, seen, shown));
    }
    Server { name, url, kind: Ok(kind), version, models }
}

impl Diagnosis {
    /// Whether something does not work.
    pub fn is_broken(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Broken)
    }

    /// `--json`.
    pub fn json(&self) -> Value {
        let servers: Vec<Value> = self.servers.iter().map(Server::json).collect();
        let problems: Vec<Value> = self
            .findings
            .iter()
            .map(|f| json!({"severity": f.severity.as_str(), "message": f.message, "fix": f.fix}))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"), "ok": !self.is_broken(), "servers": servers,
            "machine": hardware_json(&self.hardware), "config": self.config, "problems": problems,
        })
    }
}

impl Server {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "url": self.url, "kind": self.kind.as_ref().ok(), "error": self.kind.as_ref().err(),
            "version": self.version, "models": self.models.iter().map(|(_, _, shown)| shown).collect::<Vec<_>>(),
        })
    }
}

fn memory_json(memory: &Memory) -> Value {
    json!({"total_bytes": memory.total, "free_bytes": memory.free, "source": memory.source})
}

fn gpu_json(gpu: &Gpu) -> Value {
    let (kind, memory) = match &gpu.memory {
        GpuMemory::Own(memory) => ("own", memory_json(memory)),
        GpuMemory::Unified { part, source } => {
            ("unified", part.as_ref().map_or_else(|| json!({"source": source}), memory_json))
        }
        GpuMemory::Unknown(why) => ("unknown", json!({"source": why})),
    };
    json!({"name": gpu.name, "memory": kind, "bytes": memory, "bus": gpu.bus, "embedded_engine": gpu.engine})
}

fn hardware_json(hardware: &Hardware) -> Value {
    json!({
        "ram": hardware.ram.as_ref().map(memory_json),
        "limit": hardware.limit.as_ref().map(|l| json!({"max_bytes": l.max, "room_bytes": l.room, "source": l.source})),
        "gpus": hardware.gpus.iter().map(gpu_json).collect::<Vec<_>>(), "notes": hardware.notes,
    })
}

/// The window a model has now or would be given, where that is known for sure.
fn loaded_window(loaded: Option<&Loaded>) -> Option<u32> {
    loaded.filter(|loaded| !loaded.provisional).and_then(|loaded| loaded.window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_servers_share_is_told_once() {
        let finding = |severity, message: &str| Finding::new(severity, message, "mend it");
        let (small, down) = (finding(Severity::Note, "m is small"), finding(Severity::Broken, "b is down"));
        assert_eq!(in_order(vec![small.clone(), small.clone(), down.clone()]), [down, small]);
    }
}
