//! The diagnosis for people. What servers say of themselves and their models stands in one line each, whatever it holds.

use serde_json::Value;

use super::{Diagnosis, Server};
use crate::measure::hardware::room::size;
use crate::measure::hardware::{Gpu, GpuMemory, Memory};
use crate::plain;
use crate::proxy::grouped;

impl Diagnosis {
    /// The page.
    pub fn text(&self) -> String {
        let mut page = format!("windowsill {}\n\nServers\n", env!("CARGO_PKG_VERSION"));
        if self.servers.is_empty() {
            page += "  none\n";
        }
        self.servers.iter().for_each(|server| page += &server_text(server));
        page += "\nMemory\n";
        if let Some(ram) = &self.hardware.ram {
            page += &format!("  RAM       {}\n", memory_text(ram));
        }
        if let Some(limit) = &self.hardware.limit {
            page += &format!("  limit     {} free of {} ({})\n", size(limit.room), size(limit.max), limit.source);
        }
        if self.hardware.gpus.is_empty() {
            page += "  no GPU\n";
        }
        self.hardware.gpus.iter().for_each(|gpu| page += &gpu_text(gpu));
        let text = |key: &str| plain::line(self.config[key].as_str().unwrap_or("none")).into_owned();
        page += &format!(
            "\nConfig\n  file      {}\n  data_dir  {}\n  listen    {}\n",
            text("file"),
            text("data_dir"),
            text("listen")
        );
        let names = |key: &str, usual: &str| {
            let more = self.config[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            plain::line(&std::iter::once(usual).chain(more).collect::<Vec<_>>().join(", ")).into_owned()
        };
        page += &format!(
            "  hosts     {}\n  pages     {} (others: add their origin to `allowed_origins`)\n",
            names("allowed_hosts", "IP addresses, localhost"),
            names("allowed_origins", "of this machine")
        );
        page += "\nProblems\n";
        if self.findings.is_empty() {
            page += "  none\n";
        }
        for finding in &self.findings {
            let (message, fix) = (plain::line(&finding.message), plain::line(&finding.fix));
            page += &format!("  {}: {message}\n    fix: {fix}\n", finding.severity.as_str());
        }
        page
    }
}

fn server_text(server: &Server) -> String {
    let kind = match &server.kind {
        Ok(kind) => format!("{kind} {}", server.version.as_deref().unwrap_or("")).trim_end().to_owned(),
        Err(why) => format!("no answer: {why}"),
    };
    let (name, url, kind) = (plain::line(&server.name), plain::line(&server.url), plain::line(&kind));
    let mut page = format!("  {name} at {url}: {kind}\n");
    if !server.models.is_empty() {
        page +=
            &format!("    {:<36} {:>9} {:>9} {:>10}  {}\n", "MODEL", "TRAINED", "LOADED", "AFFORDABLE", "COUNTED WITH");
    }
    let n = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), grouped);
    for (model, seen, _) in &server.models {
        let trained = seen.as_ref().map_or(model.trained, |seen| seen.trained(model).0);
        let loaded = seen.as_ref().map_or(model.window, |seen| super::loaded_window(seen.loaded.as_ref()));
        let best = seen.as_ref().and_then(|seen| seen.afforded.as_ref().ok()).and_then(|a| a.fits.best);
        let counted = seen.as_ref().map_or("-", |seen| seen.counting.word());
        let id = plain::line(&model.id);
        page += &format!("    {id:<36} {:>9} {:>9} {:>10}  {counted}\n", n(trained), n(loaded), n(best));
    }
    page
}

fn memory_text(memory: &Memory) -> String {
    format!("{} free of {} ({})", size(memory.free), size(memory.total), memory.source)
}

fn gpu_text(gpu: &Gpu) -> String {
    let memory = match &gpu.memory {
        GpuMemory::Own(memory) => memory_text(memory),
        GpuMemory::Unified { part: Some(part), source } => format!("of RAM: {} ({source})", memory_text(part)),
        GpuMemory::Unified { part: None, source } => format!("all of RAM ({source})"),
        GpuMemory::Unknown(why) => format!("memory not known ({why})"),
    };
    let engine = if gpu.engine { "; the embedded engine computes on it" } else { "" };
    format!("  {:<9} {}{engine}\n", plain::line(&gpu.name), plain::line(&memory))
}
