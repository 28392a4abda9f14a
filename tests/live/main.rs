//! Tests against real servers: a real llama.cpp server and a real Ollama with a real small model, started by the tests.
//! `scripts/test` installs them and says where they are; without them these tests fail, they are never skipped.
//!
//! ```sh
//! eval "$(scripts/servers/install --env)" && cargo test --features live --test live -- --test-threads 1
//! ```
//!
//! Nothing here judges by time: the machine may be slow. The model (135M parameters) writes nonsense, and that is no
//! fault: what is tested is what reaches it, and what comes back.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

mod clients;
mod count;
mod dialects;
mod differential;
mod digest;
mod embedded;
mod embedded_chat;
#[path = "../suite/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "few of the other tests' helpers are needed here")]
mod fakes;
mod fleet;
#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan"))]
mod gpu;
mod guard;
mod llama;
mod managed;
mod ollama;
mod openai;
mod recall;
mod restart;
mod routing;
mod sdk;
mod shown;
mod slots;
mod summary;
mod support;
