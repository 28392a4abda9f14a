//! `windowsill profile`: the profiles, which one a model gets, and whether they are right.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use windowsill::config::{Config, ModelHints, print};

use crate::{Failure, out, out_json};

#[derive(Subcommand)]
pub(crate) enum Profile {
    /// All profiles.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The policy a model or profile gets, and where each value comes from.
    Show {
        /// A model's name, or a profile's.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check profiles: the files named, or else all.
    Check {
        /// Profile files.
        files: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(config: &Config, command: Profile) -> Result<ExitCode, Failure> {
    match command {
        Profile::List { json: true } => out_json(&print::profile_list_json(config))?,
        Profile::List { json: false } => out(&print::profile_list(config))?,
        Profile::Show { name, json } => {
            let shown = print::profile_show(config, &name, &ModelHints::default());
            if json { out_json(&shown.json())? } else { out(&shown.text())? }
        }
        Profile::Check { files, json } => {
            let dir = config
                .sources
                .iter()
                .find(|(key, _, _)| key == "profile_dir")
                .map(|(_, value, _)| PathBuf::from(value));
            let check = print::profile_check(&files, dir.as_deref());
            if json {
                out_json(&check.json())?
            } else {
                out(&check.text())?
            }
            if !check.problems.is_empty() {
                return Ok(ExitCode::from(2));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
