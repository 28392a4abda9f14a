//! The edge to ggml's list of devices.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use super::Device;

/// A text of ggml's, which may be missing.
///
/// # Safety
/// It is null or ends in NUL, and lives as long as the call.
unsafe fn text(from: *const c_char) -> Option<String> {
    // SAFETY: as said above.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// The GPUs that ggml has a backend for here.
pub(super) fn list() -> Vec<Device> {
    // SAFETY: it takes nothing.
    let count = unsafe { llama_cpp_sys_2::ggml_backend_dev_count() };
    (0..count).filter_map(device).collect()
}

fn device(index: usize) -> Option<Device> {
    // SAFETY: the index is below the count, so it is a device, which lives as long as the program, as do its backend and what
    // its properties point to; they are plain data, for which zeros are valid, and are written by the call.
    unsafe {
        let device = llama_cpp_sys_2::ggml_backend_dev_get(index);
        let mut props = std::mem::zeroed();
        llama_cpp_sys_2::ggml_backend_dev_get_props(device, &raw mut props);
        let integrated = match props.type_ {
            llama_cpp_sys_2::GGML_BACKEND_DEVICE_TYPE_GPU => false,
            llama_cpp_sys_2::GGML_BACKEND_DEVICE_TYPE_IGPU => true,
            _ => return None,
        };
        let backend = llama_cpp_sys_2::ggml_backend_reg_name(llama_cpp_sys_2::ggml_backend_dev_backend_reg(device));
        Some(Device {
            name: text(props.name).unwrap_or_default(),
            description: text(props.description).unwrap_or_default(),
            backend: text(backend).unwrap_or_default(),
            bus: text(props.device_id).map(|id| id.to_ascii_lowercase()),
            integrated,
            free: props.memory_free as u64,
            total: props.memory_total as u64,
        })
    }
}
