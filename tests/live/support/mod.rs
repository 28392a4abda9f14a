//! What the live tests are made of.

pub(crate) mod check;
pub(crate) mod http;
pub(crate) mod models;
pub(crate) mod relay;
pub(crate) mod servers;
pub(crate) mod session;

use std::io::Write as _;

/// A line of progress. Past the harness's capture: these tests take minutes.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "    {line}");
}
