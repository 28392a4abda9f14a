//! The test binary: one module a subject.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands, helpers included")]

mod config;
mod profiles;
mod tidy;
