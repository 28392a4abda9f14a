//! The test binary: one module a subject.

mod config;
mod profiles;
mod tidy;
