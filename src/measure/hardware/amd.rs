//! AMD's GPUs by sysfs, as the `amdgpu` driver shows them: no ROCm is needed.
//!
//! A card has VRAM of its own. An APU has a part of RAM set aside by the firmware (VRAM) and may take more of it (GTT);
//! since Linux 6.10 it computes in GTT where that is the larger (`apu_prefer_gtt` in `amdgpu_ttm.c`).

use std::path::Path;

use super::{Gpu, GpuMemory, Hardware, Memory, cards, number, slot, text};

/// AMD's PCI vendor id.
const AMD: &str = "0x1002";

/// VRAM up to this (bytes) with more GTT beside it is taken for an APU's where nothing better tells.
const CARVE_OUT: u64 = 4 << 30;

pub(super) fn add(root: &Path, hardware: &mut Hardware) {
    for card in cards(root, AMD) {
        let device = card.join("device");
        let name = text(&device.join("product_name")).filter(|n| !n.is_empty()).unwrap_or_else(|| {
            let id = text(&device.join("device")).unwrap_or_default();
            let name = card.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            format!("AMD GPU {name} {id}").trim_end().to_owned()
        });
        let memory = read(&device, hardware);
        hardware.gpus.push(Gpu::new(name, slot(&device), memory));
    }
}

/// `mem_info_X_total` and `mem_info_X_used`; the used half may be missing, which is said.
fn pool(device: &Path, which: &str, notes: &mut Vec<String>) -> Option<Memory> {
    let total = number(&device.join(format!("mem_info_{which}_total"))).filter(|total| *total > 0)?;
    let source = format!("sysfs mem_info_{which}");
    let Some(used) = number(&device.join(format!("mem_info_{which}_used"))) else {
        notes.push(format!("{source}_used of an AMD GPU cannot be read: none of it is taken for free"));
        return Some(Memory { total, free: 0, source });
    };
    Some(Memory { total, free: total.saturating_sub(used), source })
}

fn read(device: &Path, hardware: &mut Hardware) -> GpuMemory {
    let vram = pool(device, "vram", &mut hardware.notes);
    let gtt = pool(device, "gtt", &mut hardware.notes);
    let Some(vram) = vram else {
        return GpuMemory::Unknown("sysfs does not tell its VRAM".into());
    };
    let (apu, why) = is_apu(device, &vram, gtt.as_ref());
    match gtt {
        Some(gtt) if apu && gtt.total > vram.total => {
            GpuMemory::Unified { source: format!("an APU ({why}): it computes in RAM, by GTT"), part: Some(gtt) }
        }
        _ if apu => {
            GpuMemory::Own(Memory { source: format!("{}, set aside of RAM for an APU ({why})", vram.source), ..vram })
        }
        _ => GpuMemory::Own(Memory { source: format!("{} ({why})", vram.source), ..vram }),
    }
}

/// Whether the GPU is part of the processor, and what says so.
fn is_apu(device: &Path, vram: &Memory, gtt: Option<&Memory>) -> (bool, &'static str) {
    // `struct metrics_table_header` in kgd_pp_interface.h: size (2 bytes), format, content. Format 1 is for cards, 2 and 3
    // are for APUs.
    match std::fs::read(device.join("gpu_metrics")).ok().and_then(|bytes| bytes.get(2).copied()) {
        Some(1) => return (false, "a card by gpu_metrics"),
        Some(2 | 3) => return (true, "by gpu_metrics"),
        _ => {}
    }
    // Only memory chips of a card have a maker.
    if text(&device.join("mem_info_vram_vendor")).is_some_and(|v| !v.is_empty() && v != "unknown") {
        return (false, "a card by mem_info_vram_vendor");
    }
    if vram.total <= CARVE_OUT && gtt.is_some_and(|gtt| gtt.total > vram.total) {
        return (true, "by its little VRAM beside GTT");
    }
    (false, "a card by its VRAM")
}
