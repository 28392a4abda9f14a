//! The processes that llama.cpp works in: the one that `serve --model` generates with, those that count prompts, and the one
//! that asks for GPUs.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use windowsill::gguf::CacheTypes;
use windowsill::measure::count;
use windowsill::proxy::{EngineSetup, generate, tell_devices as tell};

/// The stack of the thread that llama.cpp works in (bytes): taken from memory only as far as it is used.
const STACK: usize = 256 << 20;

#[derive(Args)]
pub(crate) struct Worker {
    #[arg(long)]
    model: PathBuf,
    #[arg(long)]
    ctx_size: u32,
    #[arg(long)]
    batch_size: u32,
    #[arg(long)]
    ubatch_size: u32,
    #[arg(long)]
    threads: u32,
    #[arg(long)]
    threads_batch: u32,
    #[arg(long, value_parser = CacheTypes::named)]
    kv_type: CacheTypes,
    #[arg(long)]
    gpu_layers: Option<u32>,
    #[arg(long)]
    memory_headroom: f64,
}

/// Answers on standard output what is asked on standard input, until that ends.
pub(crate) fn work_on(of: &Worker) -> ExitCode {
    let setup = EngineSetup {
        n_ctx: of.ctx_size,
        n_batch: of.batch_size,
        n_ubatch: of.ubatch_size,
        threads: of.threads,
        threads_batch: of.threads_batch,
        kv_type: of.kv_type,
        gpu_layers: of.gpu_layers,
        headroom: of.memory_headroom,
    };
    let model = of.model.clone();
    // While llama.cpp works, nothing else ends this process once nobody reads its answers.
    #[expect(
        clippy::disallowed_methods,
        reason = "the worker holds nothing that must be closed, and main waits for it"
    )]
    let exit = || std::process::exit(1);
    let work = move || generate(&model, &setup, io::BufReader::new(io::stdin()), io::stdout().lock(), exit);
    // llama.cpp reads grammars and schemas by calling itself.
    let done = std::thread::Builder::new().stack_size(STACK).spawn(work).map(std::thread::JoinHandle::join);
    match done {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Counts prompts: asked on standard input, answers on standard output.
pub(crate) fn count_worker(file: &Path) -> ExitCode {
    match count::work(file, io::stdin().lock(), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Says on standard output which GPUs llama.cpp computes on.
pub(crate) fn tell_devices() -> ExitCode {
    match tell(io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The last words of a process like this one are told by whoever started it.
            let _ = writeln!(io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}
