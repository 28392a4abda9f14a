//! `windowsill doctor`: what is installed and running, and what is wrong with it.

use std::process::ExitCode;

use windowsill::config::{self, Config, Flags, Problem};
use windowsill::proxy::doctor;

use crate::{Failure, out, out_json, runtime};

/// Looks, prints, and fails if something is broken. A config that cannot be used is a finding like others: the rest is
/// looked at with the defaults, and with what the command line says.
pub(crate) fn run(config: Result<Config, Vec<Problem>>, flags: &Flags, json: bool) -> Result<ExitCode, Failure> {
    let (config, problems) = match config {
        Ok(config) => (config, Vec::new()),
        Err(problems) => match config::defaults(flags) {
            Some(plain) => (plain, problems),
            None => return Err(Failure::Usage(config::report(&problems, "nothing was looked at"))),
        },
    };
    let report = runtime()?.block_on(doctor(&config, &problems));
    if json {
        out_json(&report.json())?
    } else {
        out(&report.text())?
    }
    Ok(if report.is_broken() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
