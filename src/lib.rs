//! windowsill: a proxy between a chat client and a local inference server that keeps a long session alive in a small
//! context window, and never loses what it takes out of the prompt.
//!
//! Each turn the client sends its whole history; the server gets a *view* of it that fits the window the model really
//! has. The rooms, in the order of a request's life:
//!
//! ```text
//! client ─► server ─► wire ─► measure ─► plan ─► apply ─► wire ─► upstream ─► inference server
//!                     (pure)   (asks)   (pure)   (acts)  (pure)      │
//! client ◄─ server ◄──────────────── relay ◄─────────────────────────┘
//! ```
//!
//! What is pure lives in `crates/core`, the record in `crates/record`. Start reading at [`proxy`].
//!
//! Threads: async workers move bytes and wait. What reads the disk, plans, previews or tokenizes is done elsewhere:
//!
//! - A request is read, measured, planned and written on blocking threads (`proxy/aside.rs`), as many at once as there are cores;
//!   so is what is made ahead of need, and what a person asks of a whole conversation (`steer`, `compact`, pins).
//! - One thread writes the record. Whoever reads it goes through [`store::blocking`], which moves a worker's other tasks away
//!   first; so does whoever waits for a process that counts. Files of models are opened on blocking threads.
//! - On a worker itself stays what is bounded: going once through less than 256 KB (a body that is read or translated, a reply
//!   that came whole, the books behind it), and one event of a stream. What is larger moves the worker's other tasks away.

pub mod clock;
pub mod config;
pub mod engine;
pub mod files;
pub mod gguf;
pub mod guard;
pub mod keys;
pub mod measure;
pub mod plain;
pub mod proxy;
pub mod server;
pub mod summarizer;
pub mod telemetry;
pub mod upstream;
pub mod usage;

pub use windowsill_core::{
    admission, apply, brief, completion, conversation, export, passage, pinned, plan, preview, question, recall,
    remind, salience, settings, unwrap, wire,
};
/// The record, under the name that it has in this program.
pub use windowsill_record as store;
