//! Machines where the GPU has no memory of its own and no driver library says so: Apple's, NVIDIA's Jetson.

use super::{Gpu, GpuMemory, Hardware, Memory, Place, text};

pub(super) fn add(place: &Place, hardware: &mut Hardware) {
    // Compatible strings are ended by NUL each.
    let board = text(&place.root.join("proc/device-tree/compatible")).unwrap_or_default();
    let seen = hardware.gpus.iter().any(|gpu| !matches!(gpu.memory, GpuMemory::Unknown(_)));
    if board.split('\0').any(|name| name.starts_with("nvidia,tegra")) && !seen {
        hardware.gpus.retain(|gpu| !matches!(gpu.memory, GpuMemory::Unknown(_)));
        let source = "the device tree says that it is a Tegra".to_owned();
        let memory = GpuMemory::Unified { part: None, source };
        hardware.gpus.push(Gpu::new("NVIDIA Tegra".into(), None, memory));
    }
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) && place.is_this_machine() {
        let gpu = hardware.ram.as_ref().map(|ram| apple(ram, wired_limit()));
        hardware.gpus.extend(gpu);
    }
}

/// What an Apple GPU may take of RAM: the limit that was set, else what Metal recommends, about two thirds of up to
/// 36 GiB and three quarters of more.
pub(super) fn apple(ram: &Memory, limit_mib: Option<u64>) -> Gpu {
    let (total, source) = match limit_mib.filter(|limit| *limit > 0) {
        Some(limit) => ((limit << 20).min(ram.total), "sysctl iogpu.wired_limit_mb"),
        None if ram.total <= 36 << 30 => (ram.total / 3 * 2, "two thirds of RAM, as Metal recommends"),
        None => (ram.total / 4 * 3, "three quarters of RAM, as Metal recommends"),
    };
    let part = Memory { total, free: ram.free.min(total), source: source.into() };
    Gpu::new("Apple GPU".into(), None, GpuMemory::Unified { part: Some(part), source: "Apple silicon".into() })
}

/// `iogpu.wired_limit_mb` (MiB); 0 and nothing mean that macOS decides.
fn wired_limit() -> Option<u64> {
    let asked = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "iogpu.wired_limit_mb"]).output().ok()?;
    String::from_utf8_lossy(&asked.stdout).trim().parse().ok()
}
