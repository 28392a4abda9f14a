//! `windowsill launch`: starts a client that is pointed at the running windowsill, for this run alone. Nothing of the
//! client's own settings is changed: all it needs goes by environment, arguments and, for some, a temporary file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;
use windowsill::config::Config;
use windowsill::plain;

use super::clients::{Places, find, models};
use crate::{Failure, note, runtime};

/// What the names of temporary files begin with. They hold the key.
const PREFIX: &str = "windowsill-launch-";

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
    let model = plain::line(&places.model);
    note(&format!("{} goes through {} with the model {model}", client.name, places.root));
    let mut command = Command::new(client.program);
    for name in client.unset {
        command.env_remove(name);
    }
    command.envs(client.set.iter().map(|(name, text)| (name, places.fill(text))));
    command.args(client.arguments.iter().map(|text| places.fill(text))).args(&of.arguments);
    let _entered = runtime.enter();
    let signals = signals::Signals::of_process()?;
    let mut started = command.spawn().map_err(|e| {
        let hint = format!("install {} first, so that `{}` is in your PATH", client.name, client.program);
        Failure::Bad(format!("{} cannot be started: {e}\n  hint: {hint}", client.program))
    })?;
    runtime.spawn(signals.pass_on(started.id(), file.as_ref().map(|file| file.path().to_owned())));
    let status = started.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// What signals do meanwhile.
#[cfg(unix)]
mod signals {
    use std::path::PathBuf;
    use std::process::Command;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    use crate::Failure;

    /// Ctrl-C and Ctrl-\\ end the client, if it wants that, and not this process, which waits for it and then removes its file.
    /// The client itself starts with the usual reactions.
    pub(super) struct Signals {
        terminate: Signal,
        hangup: Option<Signal>,
        _of_client: [Signal; 2],
    }

    impl Signals {
        pub(super) fn of_process() -> Result<Signals, Failure> {
            // `nohup` has them ignored, and the client, too.
            let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
            let of_client = [signal(SignalKind::interrupt())?, signal(SignalKind::quit())?];
            Ok(Signals { terminate: signal(SignalKind::terminate())?, hangup, _of_client: of_client })
        }

        /// Told to end, removes the file, and tells the client.
        pub(super) async fn pass_on(mut self, client: u32, file: Option<PathBuf>) {
            loop {
                let name = tokio::select! {
                    _ = self.terminate.recv() => "-TERM",
                    () = received(self.hangup.as_mut()) => "-HUP",
                };
                if let Some(file) = &file {
                    let _ = std::fs::remove_file(file);
                }
                let _ = Command::new("kill").args([name, &client.to_string()]).status();
            }
        }
    }

    async fn received(signal: Option<&mut Signal>) {
        match signal {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }

    /// Whether SIGHUP, the first of the mask, is ignored. Known on Linux alone.
    fn ignores_hangup() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
    }
}

#[cfg(not(unix))]
mod signals {
    use std::path::PathBuf;

    use crate::Failure;

    pub(super) struct Signals;

    impl Signals {
        pub(super) fn of_process() -> Result<Signals, Failure> {
            Ok(Signals)
        }

        pub(super) async fn pass_on(self, _: u32, _: Option<PathBuf>) {}
    }
}

/// A file that is locked as long as this process lives, so that whoever finds it knows whether it is still needed.
fn temporary(ending: &str, text: &str) -> Result<tempfile::NamedTempFile, Failure> {
    let mut file = tempfile::Builder::new().prefix(PREFIX).suffix(ending).tempfile()?;
    if let Some(folder) = file.path().parent() {
        sweep(folder);
    }
    // Before anything is in it: an empty file is swept by nobody.
    file.as_file().lock()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    Ok(file)
}

/// Removes the files of processes that were killed.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && is_left(&entry.path()).is_ok_and(|left| left)
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a file of ours belongs to no process.
fn is_left(path: &Path) -> io::Result<bool> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    let file: File = windowsill::files::open(path)?;
    Ok(file.metadata()?.len() > 0 && file.try_lock().is_ok())
}
