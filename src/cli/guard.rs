//! `windowsill resume` lets a conversation go on that a guardrail stopped, `windowsill done` says that a task is done. Both ask
//! the running proxy.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use windowsill::config::Config;

use super::paint::tokens;
use super::pin::ask;
use crate::{Failure, out, out_json};

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
    let answer = ask(config, &of.id, Method::POST, "checkpoint", Some(&json!({"note": of.note})))?;
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
    let answer = ask(config, &of.id, Method::POST, "resume", Some(&json!({})))?;
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
