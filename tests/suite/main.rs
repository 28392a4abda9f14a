//! The test suite: one binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands, helpers included")]

mod planning;
mod templates;
