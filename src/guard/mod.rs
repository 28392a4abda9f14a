//! Guardrails: what an agent of its own would watch for itself, done for every client. Ceilings on what a turn and a session
//! take, loops, models that are too small, folds at a set pace, checkpoints.
//!
//! Decisions are pure functions over values; `proxy` counts, asks them and does what they say. No rule acts on a first guess:
//! what it counted and why it acted stands in its event. With every rule off, no byte of a request changes.

pub mod books;
pub mod ceiling;
pub mod loops;
pub mod small;
pub mod told;
pub mod triggers;
