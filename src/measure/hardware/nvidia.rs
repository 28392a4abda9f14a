//! NVIDIA's GPUs by NVML, the driver's own library, which creates no CUDA context. It is looked for at run time; a
//! machine without it has no NVIDIA GPU to speak of.

use std::path::Path;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml as Library};

use super::ram::{self, Meminfo};
use super::{Gpu, GpuMemory, Hardware, Memory, entries, text};

/// What NVML said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nvml {
    /// It is not there; why.
    Absent(String),
    /// The GPUs it lists.
    Devices(Vec<NvmlDevice>),
}

/// A GPU as NVML lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmlDevice {
    /// Its product name.
    pub name: String,
    /// Its PCI address as `0000:01:00.0`, where told.
    pub bus: Option<String>,
    /// Its memory.
    pub memory: NvmlMemory,
    /// Bytes taken, by process id.
    pub processes: Vec<(u32, u64)>,
}

/// What `nvmlDeviceGetMemoryInfo_v2` said (bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlMemory {
    /// Numbers.
    Known {
        /// Installed, what the driver keeps for itself included.
        total: u64,
        /// Not taken.
        free: u64,
    },
    /// `NOT_SUPPORTED`: the GPU has no memory of its own (GB10).
    NotSupported,
    /// An error, in words.
    Error(String),
}

/// Asks the driver.
pub(super) fn ask() -> Nvml {
    let library = match Library::init() {
        Ok(library) => library,
        Err(e) => return Nvml::Absent(e.to_string()),
    };
    let count = match library.device_count() {
        Ok(count) => count,
        Err(e) => return Nvml::Absent(e.to_string()),
    };
    let mut devices = Vec::new();
    for index in 0..count {
        match library.device_by_index(index) {
            Ok(device) => devices.extend(parts(&device)),
            Err(e) => devices.push(NvmlDevice {
                name: format!("NVIDIA GPU {index}"),
                bus: None,
                memory: NvmlMemory::Error(e.to_string()),
                processes: Vec::new(),
            }),
        }
    }
    Nvml::Devices(devices)
}

/// The device, or, where it is split (MIG), its parts: a process gets one of those, and the whole has no free memory.
fn parts(device: &Device<'_>) -> Vec<NvmlDevice> {
    let split = device.mig_mode().is_ok_and(|mode| mode.current != 0);
    if !split {
        return vec![of_device(device, None)];
    }
    let most = device.mig_device_count().unwrap_or(0);
    let all: Vec<_> =
        (0..most).filter_map(|at| device.mig_device_by_index(at).ok().map(|part| of_device(&part, Some(at)))).collect();
    if all.is_empty() { vec![of_device(device, None)] } else { all }
}

fn of_device(device: &Device<'_>, part: Option<u32>) -> NvmlDevice {
    let memory = match device.memory_info() {
        Ok(info) => NvmlMemory::Known { total: info.total, free: info.free },
        Err(NvmlError::NotSupported) => NvmlMemory::NotSupported,
        Err(e) => NvmlMemory::Error(e.to_string()),
    };
    let used = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| match process.used_gpu_memory {
        nvml_wrapper::enums::device::UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
        nvml_wrapper::enums::device::UsedGpuMemory::Unavailable => None,
    };
    let name = device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned());
    NvmlDevice {
        name: part.map_or(name.clone(), |at| format!("{name} MIG {at}")),
        bus: device.pci_info().ok().map(|pci| pci.bus_id.to_lowercase()),
        memory,
        processes: device.running_compute_processes().unwrap_or_default().into_iter().filter_map(used).collect(),
    }
}

/// Adds NVIDIA's GPUs. What NVML cannot tell of a GPU without memory of its own, RAM does; where GPU memory also shows
/// as a NUMA node of the machine (GH200), it is taken out of RAM and its page cache counts as free.
pub(super) fn add(root: &Path, nvml: &Nvml, hardware: &mut Hardware) {
    let devices = match nvml {
        Nvml::Devices(devices) => devices,
        Nvml::Absent(why) => {
            if root.join("proc/driver/nvidia/version").exists() {
                hardware.notes.push(format!("an NVIDIA driver is loaded, and NVML cannot be asked: {why}"));
                let memory = GpuMemory::Unknown(format!("NVML cannot be asked: {why}"));
                hardware.gpus.push(Gpu::new("NVIDIA GPU".into(), None, memory));
            }
            return;
        }
    };
    for device in devices {
        let memory = match &device.memory {
            NvmlMemory::Known { total: 0, .. } | NvmlMemory::NotSupported => {
                GpuMemory::Unified { part: None, source: "NVML says that this GPU has no memory of its own".into() }
            }
            NvmlMemory::Error(why) => GpuMemory::Unknown(format!("NVML: {why}")),
            NvmlMemory::Known { total, free } => {
                let mut memory = Memory { total: *total, free: (*free).min(*total), source: "NVML".into() };
                if let Some(node) = node_of(root, device) {
                    as_node(&node, &mut memory, hardware.ram.as_mut());
                }
                GpuMemory::Own(memory)
            }
        };
        let gpu = Gpu::new(device.name.clone(), device.bus.as_deref().map(short), memory);
        hardware.gpus.push(Gpu { processes: device.processes.clone(), ..gpu });
    }
}

/// An address with a domain of four digits, as all others write it: NVML's has eight.
fn short(bus: &str) -> String {
    match bus.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && domain.is_ascii() => {
            let zeros = domain.len() - 4;
            if domain[..zeros].bytes().all(|b| b == b'0') {
                format!("{}:{rest}", &domain[zeros..])
            } else {
                bus.to_owned()
            }
        }
        _ => bus.to_owned(),
    }
}

/// The NUMA node that is this GPU's memory, where the driver hands it to the kernel as one.
fn node_of(root: &Path, device: &NvmlDevice) -> Option<Meminfo> {
    let bus = device.bus.as_deref()?;
    // The driver writes the domain with four digits, NVML with eight.
    let tail = bus.get(bus.len().checked_sub(10)?..)?;
    let folder = entries(&root.join("proc/driver/nvidia/gpus"))
        .into_iter()
        .find(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().ends_with(tail)))?;
    let status = text(&folder.join("numa_status"))?;
    let value = |key: &str| {
        status.lines().find_map(|line| line.split_once(':').filter(|(k, _)| k.trim() == key)).map(|(_, v)| v.trim())
    };
    let node: u32 = value("Node")?.parse().ok()?;
    value("Status").filter(|status| *status == "online")?;
    text(&root.join(format!("sys/devices/system/node/node{node}/meminfo"))).map(|all| ram::lines(&all))
}

fn as_node(node: &Meminfo, memory: &mut Memory, ram: Option<&mut Memory>) {
    let get = |key: &str| node.get(key).copied().unwrap_or(0);
    let cache = get("FilePages").saturating_sub(get("Shmem"));
    memory.free = memory.free.saturating_add(cache).min(memory.total);
    memory.source = "NVML, and the page cache of its NUMA node".into();
    if let Some(ram) = ram {
        ram.total = ram.total.saturating_sub(get("MemTotal"));
        ram.free = ram.free.saturating_sub(get("MemFree").saturating_add(cache)).min(ram.total);
        ram.source = format!("{}, less the GPU's NUMA node", ram.source);
    }
}
