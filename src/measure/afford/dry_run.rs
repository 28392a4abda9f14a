//! A model's costs by llama.cpp's own dry run, made in a process of its own ([`crate::engine::dry_run`]). It judges nothing,
//! and falls back on nothing: who asked decides what to do without.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::engine::dry_run::{Ask, Cache, Covers, DryRun, FlashAttn, Sides, Told};
use crate::gguf::Gguf;
use crate::measure::memory::scratch::{BOUND, OP_OFFLOAD};
use crate::measure::memory::{self, Cost, GpuLayers, Model, Refused, Settings, Source, Split};

pub use crate::engine::dry_run::work;

/// The largest window that is tried (tokens): a dry run notes each cell of its cache, 50 bytes or so.
const LARGEST_WINDOW: u64 = 1 << 24;

/// The most tensors of a file that is tried: llama.cpp compares their names with each other.
const MOST_TENSORS: usize = 32_768;

/// Dry runs of one file. What was asked once is not asked again.
pub struct DryRunner {
    run: Mutex<DryRun>,
    known: Mutex<HashMap<Ask, Result<Told, String>>>,
    /// A header alone, made as long as the file it is the header of. Goes with this.
    _copy: Option<tempfile::NamedTempFile>,
    covers: Covers,
}

impl std::fmt::Debug for DryRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DryRunner").field("covers", &self.covers).finish_non_exhaustive()
    }
}

impl DryRunner {
    /// Dry runs of a file; `program` is this program.
    ///
    /// # Errors
    /// Why there can be none, in words.
    pub fn of(program: &Path, file: &Path) -> Result<DryRunner, String> {
        let copy = whole(file)?;
        let path = copy.as_ref().map_or_else(|| file.to_owned(), |copy| PathBuf::from(copy.path()));
        let run = DryRun::start(program, &path)?;
        let covers = run.covers().clone();
        Ok(DryRunner { run: Mutex::new(run), known: Mutex::default(), _copy: copy, covers })
    }

    /// What a window costs under these settings.
    ///
    /// # Errors
    /// Why llama.cpp would refuse them, or did.
    pub fn cost(&self, model: &Model, settings: &Settings) -> Result<Cost, Refused> {
        // What is refused by rule is so in words; and the dry run leaves the output buffer out, and tells state and cache
        // together.
        let formula = memory::cost(model, settings)?;
        if formula.n_ctx > LARGEST_WINDOW {
            return Ok(formula);
        }
        // Of GPUs that are here it is what they do; of one that is stood in for, what it does beyond its own weights is told
        // beside the rest, as by formulas.
        let real = !self.covers.devices.is_empty();
        let flash_attn = match settings.flash_attn {
            false => FlashAttn::Off,
            true if real || settings.flash_auto => FlashAttn::Auto,
            true => FlashAttn::On,
        };
        let ask = |op_offload: bool| {
            let ask = Ask { op_offload, flash_attn, ..ask(settings) };
            self.told(&ask).map_err(|reason| Refused { reason })
        };
        let told = ask(real && settings.op_offload)?;
        let op_offload = match !real && settings.offloads_ops(model) {
            true => ask(true)?.compute.device.saturating_sub(told.compute.device),
            false => 0,
        };
        let split = |sides: Sides| Split { device: sides.device, host: sides.host };
        let (context, state) = (split(told.context), formula.state);
        let fits = state.device <= context.device && state.host <= context.host;
        let (kv, state) = if fits {
            (Split { device: context.device - state.device, host: context.host - state.host }, state)
        } else if formula.kv.total() == 0 {
            (Split::default(), context)
        } else {
            (context, Split::default())
        };
        Ok(Cost {
            n_ctx: told.n_ctx,
            n_ctx_seq: told.n_ctx_seq,
            weights: split(told.weights),
            kv,
            state,
            compute: split(told.compute),
            op_offload,
            output: formula.output,
            notes: formula.notes.into_iter().filter(|note| note != BOUND && (!real || note != OP_OFFLOAD)).collect(),
            source: Source::DryRun(self.covered(settings)),
        })
    }

    fn told(&self, ask: &Ask) -> Result<Told, String> {
        if let Some(known) = self.known.lock().get(ask) {
            return known.clone();
        }
        let told = self.run.lock().ask(ask);
        self.known.lock().insert(ask.clone(), told.clone());
        told
    }

    /// What a dry run with such settings covers, in words.
    fn covered(&self, settings: &Settings) -> String {
        let by = format!("by llama.cpp's own dry run (version {}, in this program)", self.covers.version);
        match (settings.gpu_layers, self.covers.devices.as_slice()) {
            (GpuLayers::None, _) => format!("{by}, on the CPU; weights as they are in the file, not repacked"),
            (_, []) => format!(
                "{by}, which has no backend for a GPU: it was laid out for a GPU that takes every operation; what a real \
                 one adds (copies, padding, its driver) is not in it"
            ),
            (_, devices) => format!("{by}, on {}", devices.join(" and ")),
        }
    }
}

fn ask(settings: &Settings) -> Ask {
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let signed = |n: u64| i32::try_from(n).unwrap_or(-1);
    Ask {
        gpu: settings.gpu_layers != GpuLayers::None,
        layers: match settings.gpu_layers {
            GpuLayers::None => 0,
            GpuLayers::Last(layers) => signed(layers),
            GpuLayers::All => -1,
        },
        cpu_moe: signed(settings.cpu_moe),
        n_ctx: small(settings.n_ctx),
        n_batch: small(settings.n_batch),
        n_ubatch: small(settings.n_ubatch),
        sequences: small(settings.sequences()),
        outputs: small(settings.outputs),
        rollback: small(settings.rollback),
        cache: Cache {
            type_k: settings.cache.types.k.id,
            type_v: settings.cache.types.v.id,
            swa_full: settings.cache.swa_full,
            unified: settings.cache.unified,
            kv_offload: settings.cache.kv_offload,
        },
        flash_attn: FlashAttn::On,
        op_offload: false,
    }
}

/// llama.cpp wants a file as long as its header says. Of a header alone this makes one, without its data: it takes no
/// more of the disk than the header. `None` where the file is whole.
fn whole(file: &Path) -> Result<Option<tempfile::NamedTempFile>, String> {
    let trouble = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let gguf = Gguf::open(file).map_err(|e| trouble(&e))?;
    if gguf.tensors.len() > MOST_TENSORS {
        let why = format!(
            "it has {} tensors, and llama.cpp would take minutes over more than {MOST_TENSORS}",
            gguf.tensors.len()
        );
        return Err(trouble(&why));
    }
    let mine = gguf.tensors.iter().filter(|tensor| tensor.part == 0);
    let ends = mine.filter_map(|tensor| gguf.data_offset.checked_add(tensor.offset)?.checked_add(tensor.bytes?));
    let length = ends.max().unwrap_or(0);
    let there = std::fs::metadata(file).map_err(|e| trouble(&e))?.len();
    if gguf.parts > 1 || there >= length {
        return Ok(None);
    }
    let copied = || -> io::Result<tempfile::NamedTempFile> {
        let mut copy = tempfile::NamedTempFile::with_prefix("windowsill-dry-run-")?;
        io::copy(&mut File::open(file)?.take(gguf.data_offset), copy.as_file_mut())?;
        copy.as_file_mut().flush()?;
        copy.as_file().set_len(length)?;
        Ok(copy)
    };
    copied().map(Some).map_err(|e| format!("a file as long as the model's cannot be made: {e}"))
}
