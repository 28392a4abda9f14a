//! The GPUs that llama.cpp computes on in this build: which of those that drivers told of they are, and the memory of those
//! that no driver told of (Vulkan's on Windows; Metal's, by what it recommends to take).

use super::{Gpu, GpuMemory, Hardware, Memory};
use crate::engine::devices::{Device, computed_on};

/// llama.cpp's name for Metal.
const METAL: &str = "MTL";

pub(super) fn add(devices: &Result<Vec<Device>, String>, hardware: &mut Hardware) {
    match devices {
        Ok(devices) => computed_on(devices).into_iter().for_each(|device| put(device, hardware)),
        Err(why) => hardware.notes.push(format!("which GPUs this program computes on is not known: {why}")),
    }
}

fn put(device: &Device, hardware: &mut Hardware) {
    let ram = hardware.ram.as_ref().map(|ram| ram.free);
    let Some(gpu) = same(device, &mut hardware.gpus) else {
        let name = format!("{} ({})", device.description, device.name);
        let mut gpu = Gpu::new(name, device.bus.clone(), memory(device));
        gpu.engine = true;
        hardware.gpus.push(gpu);
        return;
    };
    gpu.engine = true;
    let told = memory(device);
    gpu.memory = match (&gpu.memory, told) {
        (GpuMemory::Unknown(_), told) => told,
        // What the GPU may take, Metal says; how much of it is free it says of this process alone.
        (GpuMemory::Unified { part, source }, GpuMemory::Own(told) | GpuMemory::Unified { part: Some(told), .. })
            if part.is_none() || device.backend == METAL =>
        {
            let free = ram.map_or(told.free, |free| told.total.min(free));
            GpuMemory::Unified { part: Some(Memory { free, ..told }), source: source.clone() }
        }
        (known, _) => known.clone(),
    };
}

/// The GPU that a device is: by its address, else the first that could be it. Two budgets of one memory would be worse than a
/// GPU overlooked.
fn same<'a>(device: &Device, gpus: &'a mut [Gpu]) -> Option<&'a mut Gpu> {
    let open = |gpu: &&mut Gpu| !gpu.engine;
    match &device.bus {
        Some(bus) if gpus.iter().any(|gpu| !gpu.engine && gpu.bus.as_ref() == Some(bus)) => {
            gpus.iter_mut().filter(open).find(|gpu| gpu.bus.as_ref() == Some(bus))
        }
        Some(_) => gpus.iter_mut().filter(open).find(|gpu| gpu.bus.is_none()),
        None => gpus.iter_mut().find(open),
    }
}

fn memory(device: &Device) -> GpuMemory {
    let source = format!("llama.cpp's {}", device.name);
    if device.total == 0 {
        return GpuMemory::Unknown(format!("{source} does not tell it"));
    }
    let memory = Memory { total: device.total, free: device.free.min(device.total), source: source.clone() };
    if device.integrated {
        return GpuMemory::Unified { part: Some(memory), source: "an integrated GPU: it computes in RAM".into() };
    }
    GpuMemory::Own(memory)
}
