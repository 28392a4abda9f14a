//! The larger data set, which may be beside the repository.
#![allow(clippy::print_stdout, reason = "a benchmark says what it lacks")]

use std::path::{Path, PathBuf};

/// Its folder, for a benchmark that is really to run: `cargo test --benches` only wants to see it build.
pub(crate) fn folder() -> Option<PathBuf> {
    if std::env::args().any(|a| a == "--test") {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = ["../shared/data", "../../shared/data"].iter().map(|p| root.join(p)).find(|p| p.is_dir());
    if found.is_none() {
        println!("the larger data set is not here");
    }
    found
}
