//! Intel's GPUs by sysfs, as the `i915` and `xe` drivers show them: no oneAPI or Level Zero is needed.
//!
//! Cards tell how much memory they have: `xe` for each tile (`physical_vram_size_bytes` in `xe_tile_sysfs.c`, only there
//! for cards), `i915` as `lmem_total_bytes` and `lmem_avail_bytes` where it has them. How much of it is in use `xe` tells
//! root alone; others add up what the processes they may look at hold (`drm-resident-vram0` in `/proc/PID/fdinfo`, see
//! drm-usage-stats.rst). What is integrated computes in RAM, and llama.cpp uses it only where there is no card.

use std::collections::HashMap;
use std::path::Path;

use super::{Gpu, GpuMemory, Hardware, Memory, cards, entries, number, slot, text};

/// Intel's PCI vendor id.
const INTEL: &str = "0x8086";

/// Where the integrated GPU always sits.
const INTEGRATED: &str = "0000:00:02.0";

pub(super) fn add(root: &Path, hardware: &mut Hardware) {
    for card in cards(root, INTEL) {
        let device = card.join("device");
        let slot = slot(&device);
        let kind = if slot.as_deref() == Some(INTEGRATED) { "integrated GPU" } else { "GPU" };
        let name = card.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let id = text(&device.join("device")).unwrap_or_default();
        let name = format!("Intel {kind} {name} {id}").trim_end().to_owned();
        let memory = match own(root, &card, slot.as_deref(), &mut hardware.notes) {
            Some(memory) => GpuMemory::Own(memory),
            None if slot.as_deref() == Some(INTEGRATED) => {
                if hardware.gpus.iter().any(|gpu| matches!(gpu.memory, GpuMemory::Own(_))) {
                    continue;
                }
                GpuMemory::Unified { part: None, source: "an integrated GPU: it computes in RAM".into() }
            }
            None => GpuMemory::Unknown("sysfs does not tell its memory".into()),
        };
        hardware.gpus.push(Gpu::new(name, slot, memory));
    }
    // Cards come first, whatever their number.
    if hardware.gpus.iter().any(|gpu| matches!(gpu.memory, GpuMemory::Own(_))) {
        hardware.gpus.retain(|gpu| !gpu.name.starts_with("Intel integrated"));
    }
}

/// A card's own memory.
fn own(root: &Path, card: &Path, slot: Option<&str>, notes: &mut Vec<String>) -> Option<Memory> {
    if let Some(total) = number(&card.join("lmem_total_bytes")).filter(|total| *total > 0) {
        let source = "sysfs lmem_total_bytes".to_owned();
        let Some(free) = number(&card.join("lmem_avail_bytes")) else {
            notes.push("lmem_avail_bytes of an Intel GPU cannot be read: none of it is taken for free".into());
            return Some(Memory { total, free: 0, source });
        };
        return Some(Memory { total, free: free.min(total), source: "sysfs lmem_avail_bytes".into() });
    }
    let tiles: Vec<_> = entries(&card.join("device"))
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tile")))
        .filter_map(|tile| Some((number(&tile.join("physical_vram_size_bytes"))?, tile)))
        .collect();
    let total = tiles.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
    if total == 0 {
        return None;
    }
    let slot = slot.unwrap_or_default();
    let debug = root.join("sys/kernel/debug/dri").join(slot);
    let driver: Option<Vec<u64>> =
        tiles.iter().map(|(_, tile)| usage(&debug.join(tile.file_name()?).join("vram_mm"))).collect();
    let (used, source) = match driver {
        Some(used) => (used.into_iter().fold(0, u64::saturating_add), "debugfs vram_mm"),
        None => {
            notes.push(
                "the driver tells only root how much memory of an Intel GPU is in use: what the processes hold that can \
                 be looked at was added up"
                    .into(),
            );
            (held(root, slot), "sysfs physical_vram_size_bytes less what fdinfo tells of processes")
        }
    };
    Some(Memory { total, free: total.saturating_sub(used), source: source.into() })
}

/// `usage` (bytes) of the driver's memory manager.
fn usage(path: &Path) -> Option<u64> {
    text(path)?.lines().find_map(|line| line.trim().strip_prefix("usage:")?.trim().parse().ok())
}

/// Bytes that processes hold of a card's memory. A client with several open files counts once.
fn held(root: &Path, slot: &str) -> u64 {
    let mut clients: HashMap<u64, u64> = HashMap::new();
    for process in entries(&root.join("proc")) {
        let id = process.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !id.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        for file in entries(&process.join("fdinfo")) {
            let Some(text) = text(&file) else { continue };
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            if value("drm-pdev:") != Some(slot) {
                continue;
            }
            let Some(client) = value("drm-client-id:").and_then(|id| id.parse().ok()) else { continue };
            let resident = text.lines().filter_map(|line| {
                let (region, size) = line.strip_prefix("drm-resident-")?.split_once(':')?;
                (region.starts_with("vram") || region.starts_with("local")).then(|| bytes(size))
            });
            clients.insert(client, resident.fold(0, u64::saturating_add));
        }
    }
    clients.into_values().fold(0, u64::saturating_add)
}

/// `12 KiB`, `3 MiB` or bytes.
fn bytes(size: &str) -> u64 {
    let mut words = size.split_whitespace();
    let count: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let unit = match words.next() {
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        _ => 1,
    };
    count.saturating_mul(unit)
}
