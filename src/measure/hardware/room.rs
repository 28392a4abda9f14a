//! PURE: what a model may take of this machine: what is free, what the model that is loaded now would give back, less
//! what is to be left free.

use super::{GpuMemory, Hardware, Memory};

/// What the model in question occupies now (bytes): loading it anew gives it back first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// On GPUs.
    pub device: u64,
    /// In RAM, without what is mapped from its file, which counts as free already.
    pub host: u64,
}

/// What may be taken of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// What may be taken of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Room {
    /// By GPU; empty where there is none to reckon with.
    pub devices: Vec<DeviceRoom>,
    /// RAM beside the GPUs (bytes). Where GPU and RAM are one, this is only what the GPU may not take.
    pub host: u64,
    /// GPU and RAM are one.
    pub unified: bool,
    /// How the numbers came about, a line each.
    pub because: Vec<String>,
}

impl Room {
    /// All GPUs together (bytes).
    pub fn device_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes).fold(0, u64::saturating_add)
    }

    /// GPUs and RAM together (bytes).
    pub fn total(&self) -> u64 {
        self.device_bytes().saturating_add(self.host)
    }

    /// A room of so many bytes and no GPU: somebody's word instead of a measurement.
    pub fn given(bytes: u64) -> Room {
        let because = vec![format!("{} were given", size(bytes))];
        Room { host: bytes, because, ..Room::default() }
    }
}

/// The room for a model, `headroom` (a share of each device) left free.
pub fn room(hardware: &Hardware, taken: Taken, headroom: f64) -> Room {
    let mut out = Room::default();
    let (ram, line) = host(hardware, taken, headroom);
    out.host = ram;
    out.because.push(line);
    // What was taken is given back where there is something in use, the fullest device first.
    let mut back = taken.device;
    for gpu in &hardware.gpus {
        match &gpu.memory {
            GpuMemory::Own(memory) => {
                let mine = back.min(memory.total.saturating_sub(memory.free));
                back -= mine;
                let bytes = left(memory.free.saturating_add(mine), memory.total, headroom);
                out.because.push(line_of(&gpu.name, memory, mine, headroom, bytes));
                out.devices.push(DeviceRoom { name: gpu.name.clone(), bytes });
            }
            GpuMemory::Unified { .. } if out.unified => {}
            GpuMemory::Unified { part, source } => {
                // What the GPU holds is held in RAM: either figure may know of it.
                let mine = taken.device.saturating_add(taken.host);
                let bytes = part.as_ref().map_or(u64::MAX, |part| {
                    let mine = mine.min(part.total.saturating_sub(part.free));
                    left(part.free.saturating_add(mine), part.total, headroom)
                });
                let bytes = bytes.min(out.host);
                out.unified = true;
                out.host -= bytes;
                let part =
                    part.as_ref().map_or_else(String::new, |p| format!(", at most {} ({})", size(p.total), p.source));
                out.because.push(format!(
                    "{}: {} of the same memory as RAM, one budget{part} ({source})",
                    gpu.name,
                    size(bytes)
                ));
                out.devices.push(DeviceRoom { name: gpu.name.clone(), bytes });
            }
            GpuMemory::Unknown(why) => out.because.push(format!("{}: memory not known, left out ({why})", gpu.name)),
        }
    }
    out.because.extend(hardware.notes.iter().cloned());
    out
}

/// RAM: what is available, within the limits on the process.
fn host(hardware: &Hardware, taken: Taken, headroom: f64) -> (u64, String) {
    let unified = hardware.gpus.iter().any(|gpu| matches!(gpu.memory, GpuMemory::Unified { .. }));
    let mine = if unified { taken.host.saturating_add(taken.device) } else { taken.host };
    let Some(ram) = &hardware.ram else { return (0, "RAM: not known, none of it is counted on".into()) };
    let back = mine.min(ram.total.saturating_sub(ram.free));
    let machine = left(ram.free.saturating_add(back), ram.total, headroom);
    let Some(limit) = hardware.limit.as_ref().filter(|limit| limit.max < ram.total) else {
        return (machine, line_of("RAM", ram, back, headroom, machine));
    };
    let inside = left(limit.room.saturating_add(mine).min(limit.max), limit.max, headroom);
    if machine <= inside {
        return (machine, line_of("RAM", ram, back, headroom, machine));
    }
    let as_memory = Memory { total: limit.max, free: limit.room, source: limit.source.clone() };
    (
        inside,
        line_of(
            "RAM within the limit on the server",
            &as_memory,
            mine.min(limit.max - limit.room.min(limit.max)),
            headroom,
            inside,
        ),
    )
}

/// What is left of `free` when `headroom` of `total` stays free.
fn left(free: u64, total: u64, headroom: f64) -> u64 {
    // Rounded up, so that never less stays free than was asked for.
    let kept = (total as f64 * headroom.clamp(0.0, 1.0)).ceil() as u64;
    free.min(total).saturating_sub(kept)
}

fn line_of(name: &str, memory: &Memory, back: u64, headroom: f64, bytes: u64) -> String {
    let back = if back > 0 { format!(" + {} held by this model now", size(back)) } else { String::new() };
    format!(
        "{name}: {} = {} free of {} ({}){back} - {:.0}% left free",
        size(bytes),
        size(memory.free),
        size(memory.total),
        memory.source,
        headroom * 100.0
    )
}

/// Bytes for people, in binary units.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
