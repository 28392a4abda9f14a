//! The test suite: one binary, so that it links once; one module a subject.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands, helpers included")]
#![allow(clippy::print_stderr, reason = "a test that skips says so")]

mod config;
mod planning;
mod profiles;
mod templates;
mod tidy;
