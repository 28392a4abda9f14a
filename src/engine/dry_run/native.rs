//! The edge to C: the functions of `memory.cpp`, and a model opened by them.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::NonNull;

use super::{Ask, FlashAttn, Sides, Told};
use crate::engine::ffi::{RawText, Text};

/// As `sill_asked` in memory.cpp.
#[repr(C)]
struct RawAsked {
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    n_seq_max: u32,
    n_outputs_max: u32,
    n_rs_seq: u32,
    type_k: u32,
    type_v: u32,
    flash_attn: u8,
    swa_full: u8,
    kv_unified: u8,
    offload_kqv: u8,
    op_offload: u8,
}

/// As `sill_told` in memory.cpp: first what is on devices, then what is in RAM.
#[repr(C)]
#[derive(Default)]
struct RawTold {
    model: [u64; 2],
    context: [u64; 2],
    compute: [u64; 2],
    n_ctx: u64,
    n_ctx_seq: u64,
}

/// A model on the other side.
#[repr(C)]
struct RawModel {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn sill_version() -> *const c_char;
    fn sill_open(path: *const c_char, gpu: bool, layers: i32, cpu_moe: i32, why: *mut RawText) -> *mut RawModel;
    fn sill_close(model: *mut RawModel);
    fn sill_cost(model: *mut RawModel, asked: *const RawAsked, told: *mut RawTold, why: *mut RawText) -> bool;
}

/// What the other side says, without what could disturb a terminal.
fn plain(text: &Text) -> String {
    let text = text.words();
    text.trim().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// llama.cpp's version in this build.
pub(super) fn version() -> String {
    // SAFETY: it takes nothing and returns a string constant, which ends in NUL and lives as long as the program.
    unsafe { CStr::from_ptr(sill_version()) }.to_string_lossy().into_owned()
}

/// Whether there is a GPU, the layers there, and the blocks whose experts are not: as in [`Ask`].
pub(super) type Place = (bool, i32, i32);

/// Where a question wants the model.
pub(super) fn place(ask: &Ask) -> Place {
    (ask.gpu, ask.layers, ask.cpu_moe)
}

/// A model that llama.cpp opened without its tensors.
pub(super) struct Opened {
    model: NonNull<RawModel>,
}

// SAFETY: nothing else points there, and llama.cpp does not mind which thread asks, as long as one does at a time.
unsafe impl Send for Opened {}

impl Opened {
    /// Opens a file for questions of one [`place`].
    pub(super) fn open(file: &Path, (gpu, layers, cpu_moe): Place) -> Result<Opened, String> {
        let path = file.to_str().ok_or("its name is not UTF-8")?;
        let path = CString::new(path).map_err(|_| "its name has a zero byte")?;
        let mut why = Text::new();
        // SAFETY: the path ends in NUL and outlives the call; `why` is a struct as on the other side. What is returned is null
        // or a model that nobody else has.
        let model = unsafe { sill_open(path.as_ptr(), gpu, layers, cpu_moe, why.raw()) };
        NonNull::new(model).map(|model| Opened { model }).ok_or_else(|| plain(&why))
    }

    /// What a context would take.
    pub(super) fn cost(&mut self, ask: &Ask) -> Result<Told, String> {
        let asked = RawAsked {
            n_ctx: ask.n_ctx,
            n_batch: ask.n_batch,
            n_ubatch: ask.n_ubatch,
            n_seq_max: ask.sequences,
            n_outputs_max: ask.outputs,
            n_rs_seq: ask.rollback,
            type_k: ask.cache.type_k,
            type_v: ask.cache.type_v,
            flash_attn: match ask.flash_attn {
                FlashAttn::Off => 0,
                FlashAttn::On => 1,
                FlashAttn::Auto => 2,
            },
            swa_full: ask.cache.swa_full.into(),
            kv_unified: ask.cache.unified.into(),
            offload_kqv: ask.cache.kv_offload.into(),
            op_offload: ask.op_offload.into(),
        };
        let (mut told, mut why) = (RawTold::default(), Text::new());
        // SAFETY: the model is open until `self` is dropped, and `&mut self` keeps others away from it; both structs are
        // laid out as on the other side and outlive the call, and so is `why`.
        let done = unsafe { sill_cost(self.model.as_ptr(), &raw const asked, &raw mut told, why.raw()) };
        if !done {
            return Err(plain(&why));
        }
        let sides = |[device, host]: [u64; 2]| Sides { device, host };
        Ok(Told {
            weights: sides(told.model),
            context: sides(told.context),
            compute: sides(told.compute),
            n_ctx: told.n_ctx,
            n_ctx_seq: told.n_ctx_seq,
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened by `sill_open`, is closed nowhere else, and all its contexts are gone.
        unsafe { sill_close(self.model.as_ptr()) };
    }
}
