//! `windowsill resume` lets a conversation go on that a guardrail stopped, `windowsill done` says that a task is done. Both ask
//! the running proxy.

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

#[derive(Args)]
pub(crate) struct Done {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// What is to be said of the outcome.
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn done(config: &Config, of: &Done) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, "checkpoint", &serde_json::json!({"note": of.note}))?;
    if of.json {
        out_json(&answer)?;
    } else {
        let text = |key: &str| answer[key].as_str().unwrap_or("").to_owned();
        let folded = match (answer["folded"].as_bool(), answer["fold_after_reply"].as_bool()) {
            (Some(true), _) => format!("folded, {} tokens are left", tokens(&answer["after"])),
            (_, Some(true)) => "it is folded after the reply that is under way".to_owned(),
            _ => "there was nothing to fold".to_owned(),
        };
        out(&format!("{}: kept as {}; {folded}\n\n{}\n", text("conversation"), text("record"), text("completion")))?;
    }
    Ok(ExitCode::SUCCESS)
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
        out(&format!(
            "{id} goes on; it is counted from zero again\n  the turn had taken {turn}\n  the session {session}\n"
        ))?;
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
