//! The edges of windowsill, from outside: one test binary, one module a subject.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may")]

mod background;
mod cli;
mod errors;
mod proxy;
mod random;
mod real_input;
mod record;
mod relay;
mod support;
