//! `windowsill launch`: starts a client that is pointed at the running windowsill, for this run alone. Nothing of the
//! client's own settings is changed: all it needs goes by environment, arguments and, for some, a temporary file.

use std::io::Write as _;
use std::process::{Command, ExitCode};

use clap::Args;
use windowsill::config::Config;

use super::clients::{Places, find, models};
use crate::{Failure, note, runtime};

#[derive(Args)]
pub(crate) struct Launch {
    /// The client: claude, codex, opencode, aider, continue, qwen, mini, cline, kimi, pi, hermes, goose, openhands, vibe or
    /// gptme.
    client: String,
    /// The model, as `GET /v1/models` lists it. Default: the first one.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Arguments for the client.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Starts the client, waits for it, and ends with its exit code.
pub(crate) fn run(config: &Config, of: &Launch) -> Result<ExitCode, Failure> {
    let client = find(&of.client)?;
    let runtime = runtime()?;
    // Asked also where the model is named: a client in front of nothing would fail in its own words.
    let models = models(&runtime, config)?;
    let mut places = Places::of(config, of.model.as_deref(), Some(models))?;
    // Kept until the client has ended.
    let file = client.file.map(|(ending, text)| temporary(ending, &places.fill(text))).transpose()?;
    if let Some(file) = &file {
        places.file = file.path().display().to_string();
    }
    note(&format!("{} goes through {} with the model {}", client.name, places.root, places.model));
    let mut command = Command::new(client.program);
    for name in client.unset {
        command.env_remove(name);
    }
    command.envs(client.set.iter().map(|(name, text)| (name, places.fill(text))));
    command.args(client.arguments.iter().map(|text| places.fill(text))).args(&of.arguments);
    let _entered = runtime.enter();
    let _signals = signals_are_the_clients()?;
    let status = command.status().map_err(|e| {
        let hint = format!("install {} first, so that `{}` is in your PATH", client.name, client.program);
        Failure::Bad(format!("{} cannot be started: {e}\n  hint: {hint}", client.program))
    })?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// While this is kept, Ctrl-C and Ctrl-\\ end the client, if it wants that, and not this process, which waits for it and then
/// removes its file. The client itself starts with the usual reactions.
#[cfg(unix)]
fn signals_are_the_clients() -> Result<[tokio::signal::unix::Signal; 2], Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::quit())?])
}

#[cfg(not(unix))]
fn signals_are_the_clients() -> Result<(), Failure> {
    Ok(())
}

fn temporary(ending: &str, text: &str) -> Result<tempfile::NamedTempFile, Failure> {
    let mut file = tempfile::Builder::new().prefix("windowsill-").suffix(ending).tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    Ok(file)
}
