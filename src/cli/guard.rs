//! `windowsill resume`: lets a conversation go on that a guardrail stopped. Asks the running proxy.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use windowsill::config::Config;
use windowsill::proxy::{Record, steer_running};

use super::paint::tokens;
use crate::{Failure, out, out_json, runtime};

#[derive(Args)]
pub(crate) struct Resume {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn resume(config: &Config, of: &Resume) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, "resume", &serde_json::json!({}))?;
    if of.json {
        out_json(&answer)?;
    } else {
        let (id, was) = (answer["conversation"].as_str().unwrap_or(&of.id), &answer["was"]);
        let said = |what: &Value| {
            let n = |key: &str| tokens(&what[key]);
            format!("{} tokens, {} requests, {} minutes", n("tokens"), n("requests"), n("minutes"))
        };
        let (turn, session) = (said(&was["turn"]), said(&was["session"]));
        out(&format!("{id} goes on; it is counted from zero again\n  the turn had taken {turn}\n  the session {session}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the running proxy to change a conversation. It takes whole ids alone; the record here knows what the beginning of one
/// means.
pub(crate) fn ask(config: &Config, id: &str, what: &str, body: &Value) -> Result<Value, Failure> {
    let found = Record::open(&config.data_dir).ok().and_then(|record| record.context(Some(id)).ok());
    let whole = found.and_then(|found| found["id"].as_str().map(str::to_owned));
    let id = whole.as_deref().unwrap_or(id);
    let key = config.api_key.as_ref().map(|k| k.expose().to_owned());
    let address = config.listen.to_string();
    Ok(runtime()?.block_on(steer_running(&address, key.as_deref(), id, what, body))?)
}
