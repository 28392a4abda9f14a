//! The edge to C++: the functions of `edge.cpp`, a model with its context, and a request in it.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::NonNull;

use serde_json::Value;

use super::session::{Chosen, Evaluated, Machine, Reply};
use super::{Facts, Setup};
use crate::engine::ffi::{RawText, Text};

/// A model and its context on the other side.
#[repr(C)]
struct RawEngine {
    _private: [u8; 0],
}

/// A request on the other side.
#[repr(C)]
struct RawJob {
    _private: [u8; 0],
}

/// As `sill_setup` in edge.cpp.
#[repr(C)]
struct RawSetup {
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    threads: i32,
    threads_batch: i32,
    type_k: i32,
    type_v: i32,
    gpu_layers: i32,
    headroom: f64,
}

/// As in edge.cpp: as many layers on GPUs as fit.
const FIT: i32 = -2;

/// As `sill_facts` in edge.cpp.
#[repr(C)]
#[derive(Default)]
struct RawFacts {
    n_ctx: u32,
    trained: u32,
    n_batch: u32,
    n_vocab: u32,
    bytes: u64,
    parameters: u64,
    on_gpus: u64,
    in_ram: u64,
    no_rewind: u8,
}

unsafe extern "C" {
    fn sill_engine_open(
        path: *const c_char,
        setup: *const RawSetup,
        chat_template: *const c_char,
        length: usize,
        why: *mut RawText,
    ) -> *mut RawEngine;
    fn sill_engine_close(engine: *mut RawEngine);
    fn sill_engine_facts(engine: *const RawEngine, out: *mut RawFacts, gpus: *mut RawText) -> bool;
    fn sill_engine_stop(engine: *mut RawEngine, stop: bool);
    fn sill_engine_keep(engine: *mut RawEngine, n: i32) -> bool;
    fn sill_engine_forget(engine: *mut RawEngine);
    fn sill_engine_evaluate(engine: *mut RawEngine, tokens: *const i32, n: usize, at: i32) -> i32;
    fn sill_engine_state_size(engine: *mut RawEngine, all: bool) -> usize;
    fn sill_engine_state_get(engine: *mut RawEngine, all: bool, out: *mut u8, length: usize) -> bool;
    fn sill_engine_state_set(engine: *mut RawEngine, all: bool, bytes: *const u8, length: usize) -> bool;
    fn sill_job_begin(
        engine: *const RawEngine,
        request: *const c_char,
        length: usize,
        why: *mut RawText,
    ) -> *mut RawJob;
    fn sill_engine_tell(engine: *const RawEngine, request: *const c_char, length: usize, out: *mut RawText) -> bool;
    fn sill_job_end(job: *mut RawJob);
    fn sill_job_prompt(job: *const RawJob, n: *mut usize, asking: *mut usize) -> *const i32;
    fn sill_job_stops(job: *const RawJob, out: *mut RawText) -> bool;
    fn sill_job_next(
        engine: *const RawEngine,
        job: *mut RawJob,
        token: *mut i32,
        out: *mut RawText,
        likely: *mut RawText,
    ) -> i32;
    fn sill_job_read(job: *mut RawJob, text: *const c_char, length: usize, partial: bool, out: *mut RawText) -> bool;
}

/// A model that llama.cpp loaded, with one context.
pub(super) struct Engine {
    engine: NonNull<RawEngine>,
    facts: Facts,
}

impl Engine {
    /// Loads a file and sets its context up, with a chat template of one's own, or the file's.
    pub(super) fn open(file: &Path, setup: &Setup, chat_template: Option<&str>) -> Result<Engine, String> {
        let path = file.to_str().ok_or("its name is not UTF-8")?;
        let path = CString::new(path).map_err(|_| "its name has a zero byte")?;
        let count = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let raw = RawSetup {
            n_ctx: setup.n_ctx,
            n_batch: setup.n_batch,
            n_ubatch: setup.n_ubatch,
            threads: count(setup.threads),
            threads_batch: count(setup.threads_batch),
            type_k: count(setup.kv_type.k.id),
            type_v: count(setup.kv_type.v.id),
            gpu_layers: setup.gpu_layers.map_or(FIT, count),
            headroom: setup.headroom,
        };
        let own = chat_template.unwrap_or_default();
        let mut why = Text::new();
        // SAFETY: the path ends in NUL and outlives the call, as does the setup, which is laid out as on the other side; the
        // template is read within its length and not kept; `why` is a struct as on the other side. What is returned is null or
        // an engine that nobody else has.
        let engine =
            unsafe { sill_engine_open(path.as_ptr(), &raw const raw, own.as_ptr().cast(), own.len(), why.raw()) };
        let engine = NonNull::new(engine).ok_or_else(|| why.words())?;
        let (mut facts, mut gpus) = (RawFacts::default(), Text::new());
        // SAFETY: the engine was just made; the structs are laid out as on the other side.
        unsafe { sill_engine_facts(engine.as_ptr(), &raw mut facts, gpus.raw()) };
        let facts = Facts {
            n_ctx: facts.n_ctx,
            trained: facts.trained,
            n_batch: facts.n_batch,
            n_vocab: facts.n_vocab,
            bytes: facts.bytes,
            parameters: facts.parameters,
            on_gpus: facts.on_gpus,
            in_ram: facts.in_ram,
            gpus: gpus.words().lines().map(str::to_owned).collect(),
            rewinds: facts.no_rewind == 0,
        };
        Ok(Engine { engine, facts })
    }

    /// What is known of it.
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What gives up its evaluations from another thread.
    pub(super) fn brake(&self) -> Brake {
        Brake(self.engine)
    }
}

impl Engine {
    fn state_size(&mut self, all: bool) -> usize {
        // SAFETY: the engine is valid until `self` is dropped, and `&mut self` keeps others away from it.
        unsafe { sill_engine_state_size(self.engine.as_ptr(), all) }
    }

    /// The state: all of it, or only what cannot be cut back. None where there is no memory for it.
    fn state(&mut self, all: bool) -> Option<Vec<u8>> {
        let size = self.state_size(all);
        let mut out = Vec::new();
        out.try_reserve_exact(size).ok()?;
        out.resize(size, 0);
        // SAFETY: as above; the other side writes no more than the length.
        unsafe { sill_engine_state_get(self.engine.as_ptr(), all, out.as_mut_ptr(), size) }.then_some(out)
    }

    fn set_state(&mut self, all: bool, bytes: &[u8]) -> bool {
        // SAFETY: as above; the bytes are read within their length, and come from `state`.
        unsafe { sill_engine_state_set(self.engine.as_ptr(), all, bytes.as_ptr(), bytes.len()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: it is valid until here, and closed once.
        unsafe { sill_engine_close(self.engine.as_ptr()) };
    }
}

/// Gives up the evaluations of an engine, which must outlive it.
#[derive(Clone, Copy)]
pub(super) struct Brake(NonNull<RawEngine>);

// SAFETY: all it does is to set an atomic flag of the engine.
unsafe impl Send for Brake {}
// SAFETY: as above.
unsafe impl Sync for Brake {}

impl Brake {
    /// Has what is evaluated given up, and all that follows until it is taken back.
    pub(super) fn set(self, stop: bool) {
        // SAFETY: the worker's engine lives as long as its process; the other side only writes to an atomic.
        unsafe { sill_engine_stop(self.0.as_ptr(), stop) };
    }
}

impl Machine for Engine {
    type Job = Job;

    fn begin(&mut self, request: &Value) -> Result<Job, String> {
        let request = request.to_string();
        let mut why = Text::new();
        // SAFETY: the engine is valid until `self` is dropped; the request is read within its length and not kept; `why` is a
        // struct as on the other side. What is returned is null or a job that nobody else has.
        let job = unsafe { sill_job_begin(self.engine.as_ptr(), request.as_ptr().cast(), request.len(), why.raw()) };
        let job = NonNull::new(job).ok_or_else(|| why.words())?;
        let (mut n, mut asking) = (0, 0);
        // SAFETY: the job was just made; what is returned are its `n` tokens, which it owns and are copied here.
        let prompt = unsafe {
            let tokens = sill_job_prompt(job.as_ptr(), &raw mut n, &raw mut asking);
            if n == 0 { Vec::new() } else { std::slice::from_raw_parts(tokens, n).to_vec() }
        };
        let mut stops = Text::new();
        // SAFETY: the job is valid; `stops` is a struct as on the other side.
        unsafe { sill_job_stops(job.as_ptr(), stops.raw()) };
        let stops = serde_json::from_slice(stops.bytes()).unwrap_or_default();
        Ok(Job { job, prompt, asking, stops })
    }

    fn tell(&mut self, request: &Value) -> Result<Value, String> {
        let request = request.to_string();
        let mut out = Text::new();
        // SAFETY: the engine is valid until `self` is dropped; the request is read within its length and not kept; `out` is a
        // struct as on the other side.
        let told = unsafe { sill_engine_tell(self.engine.as_ptr(), request.as_ptr().cast(), request.len(), out.raw()) };
        if !told {
            return Err(out.words());
        }
        serde_json::from_slice(out.bytes()).map_err(|e| e.to_string())
    }

    fn keep(&mut self, n: usize) -> bool {
        // SAFETY: the engine is valid until `self` is dropped, and `&mut self` keeps others away from it.
        i32::try_from(n).is_ok_and(|n| unsafe { sill_engine_keep(self.engine.as_ptr(), n) })
    }

    fn forget(&mut self) {
        // SAFETY: as above.
        unsafe { sill_engine_forget(self.engine.as_ptr()) };
    }

    fn evaluate(&mut self, tokens: &[i32], at: usize) -> Evaluated {
        let at = i32::try_from(at).unwrap_or(i32::MAX);
        // SAFETY: as above; the tokens are read within their number, which is no more than the batch has room for.
        match unsafe { sill_engine_evaluate(self.engine.as_ptr(), tokens.as_ptr(), tokens.len(), at) } {
            0 => Evaluated::Done,
            1 => Evaluated::NoRoom,
            2 => Evaluated::Stopped,
            _ => Evaluated::Failed,
        }
    }

    fn snapshot(&mut self) -> Option<Vec<u8>> {
        self.state(false)
    }

    fn restore(&mut self, snapshot: &[u8]) -> bool {
        self.set_state(false, snapshot)
    }

    fn size(&mut self) -> u64 {
        self.state_size(true) as u64
    }

    fn save(&mut self) -> Option<Vec<u8>> {
        self.state(true)
    }

    fn load(&mut self, state: &[u8]) -> bool {
        self.forget();
        let loaded = self.set_state(true, state);
        if !loaded {
            self.forget();
        }
        loaded
    }

    fn next(&mut self, job: &mut Job) -> Result<Chosen, String> {
        let (mut token, mut out, mut likely) = (0, Text::new(), Text::new());
        let (engine, job) = (self.engine.as_ptr(), job.job.as_ptr());
        // SAFETY: engine and job are valid and nobody else has them; token and texts are written as on the other side.
        match unsafe { sill_job_next(engine, job, &raw mut token, out.raw(), likely.raw()) } {
            1 => {
                let odds = serde_json::from_slice(likely.bytes()).ok();
                Ok(Chosen::Token { token, piece: out.bytes().to_vec(), odds })
            }
            0 => Ok(Chosen::End),
            _ => Err(out.words()),
        }
    }
}

/// A request that is being answered.
pub(super) struct Job {
    job: NonNull<RawJob>,
    prompt: Vec<i32>,
    asking: usize,
    stops: Vec<String>,
}

impl Reply for Job {
    fn prompt(&self) -> &[i32] {
        &self.prompt
    }

    fn asking(&self) -> usize {
        self.asking
    }

    fn stops(&self) -> &[String] {
        &self.stops
    }

    fn read(&mut self, text: &str, partial: bool) -> Result<Vec<Value>, String> {
        let mut out = Text::new();
        // SAFETY: the job is valid until `self` is dropped and nobody else has it; the text is read within its length and not
        // kept; `out` is a struct as on the other side.
        let read = unsafe { sill_job_read(self.job.as_ptr(), text.as_ptr().cast(), text.len(), partial, out.raw()) };
        if !read {
            return Err(out.words());
        }
        serde_json::from_slice(out.bytes()).map_err(|e| e.to_string())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: it is valid until here, and ended once.
        unsafe { sill_job_end(self.job.as_ptr()) };
    }
}
