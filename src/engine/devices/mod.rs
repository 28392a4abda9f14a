//! The GPUs that llama.cpp computes on in this build, and how much of their memory is free.
//!
//! Asked for its memory, a GPU's driver may set up a context that takes some of it for as long as the process lives; and some
//! drivers end the process. So a process of its own is asked, the same program as a worker, which says one line and ends.
//!
//! ```text
//! ask(program) ──spawns──► windowsill devices-worker ──► tell(stdout): a line of JSON
//! ```

#[cfg(feature = "engine")]
mod native;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::{self, Calls};

/// The hidden command of this program that [`tell`]s.
pub const COMMAND: &str = "devices-worker";

/// The kinds of GPUs that this build has a backend for, as they were named when it was built; without any, nobody is asked.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "CUDA",
    #[cfg(all(feature = "engine", target_os = "macos"))]
    "Metal",
    #[cfg(feature = "rocm")]
    "ROCm",
    #[cfg(feature = "vulkan")]
    "Vulkan",
];

/// How long the drivers may take: they start GPUs that sleep, and compile what they need.
const PATIENCE: Duration = Duration::from_secs(30);

/// A GPU that llama.cpp has a backend for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// llama.cpp's name for it, such as `CUDA0`.
    pub name: String,
    /// What its driver calls it.
    pub description: String,
    /// llama.cpp's name for its kind, such as `CUDA`.
    pub backend: String,
    /// Its PCI address in lower case, such as `0000:c1:00.0`, where the driver tells.
    pub bus: Option<String>,
    /// It is part of the processor, and computes in RAM.
    pub integrated: bool,
    /// Bytes that are free now; 0 of 0 where the driver does not tell.
    pub free: u64,
    /// Bytes of memory.
    pub total: u64,
}

/// Those that a model is spread over unless somebody names others: each GPU once, whatever its backends, and integrated ones
/// only where there is no other (`llama_prepare_model_devices` in llama.cpp).
pub fn computed_on(devices: &[Device]) -> Vec<&Device> {
    let mut chosen: Vec<&Device> = Vec::new();
    for device in devices.iter().filter(|device| !device.integrated) {
        let twice = device.bus.is_some() && chosen.iter().any(|other| other.bus == device.bus);
        if !twice {
            chosen.push(device);
        }
    }
    if chosen.is_empty() {
        let first = devices.iter().find(|device| device.integrated).map(|device| &device.backend);
        chosen.extend(devices.iter().filter(|device| device.integrated && Some(&device.backend) == first));
    }
    chosen
}

/// Asks. `program` is this program. A build without backends for GPUs has none.
///
/// # Errors
/// Why nobody answered, in words: a driver that ended the process, one that takes for ever.
pub fn ask(program: &Path) -> Result<Vec<Device>, String> {
    if BACKENDS.is_empty() {
        return Ok(Vec::new());
    }
    let command = |command: &mut Command| _ = command.arg(COMMAND);
    Ok(Calls::start(program, command, PATIENCE, " on the GPUs")?.1)
}

/// The process's side: says what there is.
///
/// # Errors
/// When nobody takes the answer, or llama.cpp cannot work on this machine's processor.
pub fn tell(output: impl Write) -> std::io::Result<()> {
    if let Some(why) = super::processor::lack() {
        return Err(std::io::Error::other(why));
    }
    calls::tell(output, &here())
}

/// Those of this process: not for one that has to live.
#[cfg(feature = "engine")]
pub(super) fn here() -> Vec<Device> {
    native::list()
}

#[cfg(not(feature = "engine"))]
fn here() -> Vec<Device> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, bus: Option<&str>, integrated: bool) -> Device {
        let backend = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let (bus, description) = (bus.map(str::to_owned), "a GPU".to_owned());
        Device { name: name.to_owned(), description, backend, bus, integrated, free: 1, total: 2 }
    }

    #[test]
    fn a_gpu_of_two_backends_is_computed_on_once_and_integrated_ones_only_without_others() {
        let (a, b) = (Some("0000:01:00.0"), Some("0000:02:00.0"));
        let cases: [(&[Device], &[&str]); 6] = [
            (&[], &[]),
            (&[device("CUDA0", a, false), device("Vulkan0", a, false)], &["CUDA0"]),
            (&[device("CUDA0", a, false), device("CUDA1", b, false)], &["CUDA0", "CUDA1"]),
            // Which are the same is not known.
            (&[device("CUDA0", None, false), device("Vulkan0", None, false)], &["CUDA0", "Vulkan0"]),
            (&[device("Vulkan0", a, true), device("Vulkan1", b, false)], &["Vulkan1"]),
            (&[device("Metal0", None, true), device("Vulkan0", None, true)], &["Metal0"]),
        ];
        for (all, want) in cases {
            let names: Vec<&str> = computed_on(all).iter().map(|device| device.name.as_str()).collect();
            assert_eq!(names, want);
        }
    }

    #[cfg(unix)]
    #[test]
    fn nobody_is_asked_without_a_backend() {
        let asked = ask(Path::new("/nonexistent"));
        assert_eq!(asked.is_ok(), BACKENDS.is_empty(), "{asked:?}");
    }
}
