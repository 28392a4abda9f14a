//! `windowsill fit`: the memory a model needs at each window, and the largest window that fits.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use windowsill::config::Config;
use windowsill::gguf::CacheTypes;
use windowsill::measure::afford::dry_run;
use windowsill::measure::afford::gpu_layers;
use windowsill::measure::afford::report::{Method, Wish, bytes};
use windowsill::proxy;

use crate::{Failure, out, out_json, runtime};

#[derive(Args)]
pub(crate) struct Fit {
    /// A GGUF file (its header is enough), an Ollama name, or a model that a server serves.
    model: String,
    /// A window to show, in tokens, as `-c` and `num_ctx` mean it (may be given several times).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Vec<u32>,
    /// Types of the KV cache: q8_0, or q8_0,q4_0 for keys and values.
    #[arg(long, value_name = "K[,V]")]
    kv_type: Option<String>,
    /// Requests at once. They divide the window, unless --unified; on Ollama each has a whole one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    parallel: Option<u32>,
    /// Requests at once share one window.
    #[arg(long)]
    unified: bool,
    /// Tokens evaluated at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ubatch: Option<u32>,
    /// Without flash attention.
    #[arg(long)]
    no_flash_attn: bool,
    /// Layers on the GPU.
    #[arg(long, value_name = "all|N")]
    gpu_layers: Option<String>,
    /// What may be used instead of what is free: bytes, or 24GiB. Of the GPU where layers go there, else of RAM.
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// How to find the numbers out.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = By::Auto)]
    method: By,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// llama.cpp's formulas: the header is enough, and any server is covered.
    Formula,
    /// A dry run of llama.cpp itself, as built into this program: nothing is loaded or allocated.
    DryRun,
    /// A dry run where there can be one, else formulas.
    Auto,
}

impl From<By> for Method {
    fn from(by: By) -> Method {
        match by {
            By::Formula => Method::Formula,
            By::DryRun => Method::DryRun,
            By::Auto => Method::Auto,
        }
    }
}

impl Fit {
    fn wish(&self) -> Result<Wish, Failure> {
        let usage = |flag: &'static str| move |why: String| Failure::Usage(format!("{flag}: {why}"));
        Ok(Wish {
            ctx: self.ctx.iter().map(|n| u64::from(*n)).collect(),
            kv_type: self.kv_type.as_deref().map(CacheTypes::named).transpose().map_err(usage("--kv-type"))?,
            parallel: self.parallel.map(u64::from),
            unified: self.unified,
            ubatch: self.ubatch.map(u64::from),
            no_flash_attn: self.no_flash_attn,
            gpu_layers: self.gpu_layers.as_deref().map(gpu_layers).transpose().map_err(usage("--gpu-layers"))?,
            memory: self.memory.as_deref().map(bytes).transpose().map_err(usage("--memory"))?,
            method: self.method.into(),
        })
    }
}

pub(crate) fn run(config: &Config, fit: &Fit) -> Result<ExitCode, Failure> {
    let wish = fit.wish()?;
    let report = runtime()?.block_on(proxy::fit(config, &fit.model, &wish))?;
    if fit.json {
        out_json(&report.json())?
    } else {
        out(&report.text())?
    }
    Ok(ExitCode::SUCCESS)
}

/// The process that dry runs are made in: asked over standard input, answers on standard output.
pub(crate) fn dry_run_worker(file: &Path) -> ExitCode {
    match dry_run::work(file, io::stdin().lock(), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
