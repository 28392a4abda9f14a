//! The test suite: one binary, so that it links once.

mod planning;
mod templates;
