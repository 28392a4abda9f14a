//! GPUs and RAM of this machine: total, free, and where each number comes from.
//!
//! Everything on Linux is read below a root folder, `/` but for tests and containers that mount the host's elsewhere.
//! Nothing here creates a GPU context or loads a GPU runtime: NVML is looked for at run time, AMD and Intel are read from
//! sysfs, and a part that cannot be read is labelled, never a failure. It judges nothing: [`room`] does.

mod amd;
mod backends;
mod intel;
mod nvidia;
mod ram;
pub mod room;
mod unified;

use std::path::{Path, PathBuf};

pub use nvidia::{Nvml, NvmlDevice, NvmlMemory};
pub use ram::Limit;

use crate::engine::devices::{self, Device};
use crate::upstream::Threads;

/// Threads that models are to be run with here: as many as there are cores for one token after the other, which wait for
/// memory; as many as may run at once for prompts. Where there are two cores, one token after the other is faster with one
/// thread: llama.cpp's threads wait for each other at work, and the other core has more to do. Limits on this process count,
/// where the system tells of them.
pub fn threads() -> Threads {
    let batch = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    let cores = sysinfo::System::physical_core_count().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let one = cores.unwrap_or(batch).min(batch);
    Threads { one: if one == 2 { 1 } else { one }, batch }
}

/// An amount of memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// What there is.
    pub total: u64,
    /// What is free now; page cache that the kernel gives back counts as free.
    pub free: u64,
    /// Where both numbers come from.
    pub source: String,
}

/// Whose memory a GPU computes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuMemory {
    /// Its own: a budget beside RAM.
    Own(Memory),
    /// The machine's: one budget with RAM, never two.
    Unified {
        /// The most that the GPU may take of it (bytes), and how much of that is free; `None`: all of it.
        part: Option<Memory>,
        /// Why it is known to be unified.
        source: String,
    },
    /// Not known; why.
    Unknown(String),
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// What it is called.
    pub name: String,
    /// Its PCI address in lower case, such as `0000:01:00.0`, where it is known.
    pub bus: Option<String>,
    /// Its memory.
    pub memory: GpuMemory,
    /// Bytes taken by processes, by process id, where the driver tells.
    pub processes: Vec<(u32, u64)>,
    /// llama.cpp computes on it in this build.
    pub engine: bool,
}

impl Gpu {
    fn new(name: String, bus: Option<String>, memory: GpuMemory) -> Gpu {
        Gpu { name, bus, memory, processes: Vec::new(), engine: false }
    }
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hardware {
    /// RAM; `None` when it cannot be read, which a note then says.
    pub ram: Option<Memory>,
    /// The tightest limit on the memory of the process asked about, if there is one.
    pub limit: Option<Limit>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// What could not be read, and what was made of it.
    pub notes: Vec<String>,
}

impl Hardware {
    /// The same with no GPUs but those that llama.cpp computes on in this build.
    pub fn of_engine(&self) -> Hardware {
        let gpus = self.gpus.iter().filter(|gpu| gpu.engine).cloned().collect();
        Hardware { gpus, ..self.clone() }
    }
}

/// Where to look, and on whose behalf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The folder that holds `proc` and `sys`; anything but `/` also keeps away from this machine's own GPU driver.
    pub root: PathBuf,
    /// The process whose limits count; `None`: this one's.
    pub process: Option<u32>,
}

impl Default for Place {
    fn default() -> Place {
        Place { root: PathBuf::from("/"), process: None }
    }
}

impl Place {
    fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }
}

/// What drivers and llama.cpp said of the GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// NVML.
    pub nvml: Nvml,
    /// The devices that llama.cpp has backends for in this build, or why they are not known.
    pub devices: Result<Vec<Device>, String>,
}

/// Asks drivers, and llama.cpp in another process of this program. Takes a while where a GPU has to wake; any machine but this
/// one has none.
pub fn ask(place: &Place, program: Option<&Path>) -> Told {
    if !place.is_this_machine() {
        return Told { nvml: Nvml::Absent("not asked".into()), devices: Ok(Vec::new()) };
    }
    Told { nvml: nvidia::ask(), devices: program.map_or_else(|| Ok(Vec::new()), devices::ask) }
}

/// Reads what this machine has, with what was told of its GPUs.
pub fn read(place: &Place, told: &Told) -> Hardware {
    let mut hardware = read_ram(place);
    nvidia::add(&place.root, &told.nvml, &mut hardware);
    amd::add(&place.root, &mut hardware);
    intel::add(&place.root, &mut hardware);
    unified::add(place, &mut hardware);
    backends::add(&told.devices, &mut hardware);
    hardware
}

/// RAM and the limits on it alone.
fn read_ram(place: &Place) -> Hardware {
    let mut hardware = Hardware::default();
    let meminfo = ram::meminfo(&place.root);
    hardware.ram = match &meminfo {
        Some(read) => ram::of_meminfo(read, &mut hardware.notes),
        None if place.is_this_machine() => ram::of_system(),
        None => None,
    };
    if hardware.ram.is_none() {
        hardware.notes.push("how much RAM there is cannot be read".into());
    }
    hardware.limit = ram::limit(&place.root, place.process);
    hardware
}

/// RAM that is free now (bytes), `headroom` (a share of it) left alone. Reads no more than it has to.
pub fn free_ram(place: &Place, headroom: f64) -> u64 {
    room::room(&read_ram(place), room::Taken::default(), headroom).host
}

/// A file's text without the space around it; `None` where it cannot be read.
fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// A file that holds one number.
fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The PCI address of a card's `device`, such as `0000:03:00.0`.
fn slot(device: &Path) -> Option<String> {
    let uevent = text(&device.join("uevent"))?;
    uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).map(str::to_lowercase)
}

/// The entries of a folder by name; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// The cards of one vendor (a PCI id such as `0x1002`) in `/sys/class/drm`, by name.
fn cards(root: &Path, vendor: &str) -> Vec<PathBuf> {
    let is_card = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // `card0`, not its outputs `card0-DP-1`.
        let number = name.strip_prefix("card").filter(|rest| !rest.is_empty());
        number.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
            && text(&path.join("device/vendor")).as_deref() == Some(vendor)
    };
    entries(&root.join("sys/class/drm")).into_iter().filter(is_card).collect()
}

#[cfg(test)]
mod tests;
