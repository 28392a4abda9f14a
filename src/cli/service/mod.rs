//! `windowsill service`: windowsill as a service of this user, started at login: a unit of systemd's user manager, or a
//! launch agent on macOS. It never asks for root.

pub(crate) mod ready;
mod written;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use clap::Subcommand;
use windowsill::config::{self, Config, Environment, Flags};
use windowsill::files;

use super::clients;
use crate::{Failure, note, out, runtime};
use written::{MARK, NAME, agent, unit};

#[derive(Subcommand)]
pub(crate) enum Service {
    /// Write the service with the flags and config that are named here, start it, and start it at each login.
    Install {
        /// Print what would be written, and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop it and remove what was written.
    Uninstall,
    /// Whether it is installed, runs and answers. Exit code 1 if it does not run.
    Status,
}

/// Writes a service. What somebody put there since it was looked at is replaced, never followed.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    files::replace(path, text.as_bytes(), |file| {
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        #[cfg(not(unix))]
        let _ = file;
        Ok(())
    })
}

/// The service manager of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manager {
    Systemd,
    Launchd,
}

/// Where the service is written, and by whom it is run.
struct Place {
    manager: Manager,
    path: PathBuf,
}

impl Place {
    fn of(environment: &Environment) -> Result<Place, Failure> {
        let no_home = || Failure::Usage("your home folder is unknown\n  hint: set HOME".into());
        if cfg!(target_os = "macos") {
            let home = environment.home().ok_or_else(no_home)?;
            let path = home.join("Library/LaunchAgents").join(format!("{NAME}.plist"));
            return Ok(Place { manager: Manager::Launchd, path });
        }
        if !cfg!(target_os = "linux") {
            let hint = "start `windowsill serve` with what starts programs at login here";
            return Err(Failure::Bad(format!("services can be installed on Linux and macOS alone\n  hint: {hint}")));
        }
        let folder = environment.xdg("XDG_CONFIG_HOME", ".config").ok_or_else(no_home)?;
        Ok(Place { manager: Manager::Systemd, path: folder.join("systemd/user/windowsill.service") })
    }

    fn is_installed(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// A file of somebody else's is neither replaced nor removed, nor is a link.
    fn must_be_ours(&self) -> Result<(), Failure> {
        let is_file = self.path.symlink_metadata().is_ok_and(|meta| meta.is_file());
        let is_ours = is_file && files::read_text(&self.path).is_ok_and(|text| text.contains(MARK));
        if !self.is_installed() || is_ours {
            return Ok(());
        }
        let path = self.path.display();
        Err(Failure::Bad(format!("{path} was not written by windowsill\n  hint: remove it yourself if it may go")))
    }
}

pub(crate) fn run(config: &Config, flags: &Flags, of: &Service) -> Result<ExitCode, Failure> {
    let environment = Environment::of_process();
    let place = Place::of(&environment)?;
    match of {
        Service::Install { dry_run } => install(config, flags, &environment, &place, *dry_run),
        Service::Uninstall => uninstall(&place),
        Service::Status => status(config, &place),
    }
}

fn install(
    config: &Config,
    flags: &Flags,
    environment: &Environment,
    place: &Place,
    dry_run: bool,
) -> Result<ExitCode, Failure> {
    let words = command_line(config, flags, environment)?;
    let text = match place.manager {
        Manager::Systemd => unit(&words),
        Manager::Launchd => agent(&words),
    };
    let text = text.map_err(|why| Failure::Bad(format!("the service cannot be written: {why}")))?;
    if dry_run {
        out(&format!("{}\n\n{text}", place.path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    place.must_be_ours()?;
    manager_answers(place)?;
    for (key, _, source) in config.sources.iter().filter(|(.., source)| source.starts_with("environment ")) {
        note(&format!("`{key}` is from the {source}, which the service will not see; put it into config.toml"));
    }
    if let Some(folder) = place.path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let was = files::read_text(&place.path).ok();
    write(&place.path, &text)?;
    if let Err(why) = start(place, was.is_some()) {
        go_back(place, was)?;
        return Err(why);
    }
    out(&format!("{} is installed, and started at each login\n", place.path.display()))?;
    if place.manager == Manager::Systemd {
        note(
            "it ends when you log out; `loginctl enable-linger` keeps it, `journalctl --user -u windowsill` shows its log",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A service that does not start is not left behind, and one that was there before runs again.
fn go_back(place: &Place, was: Option<String>) -> Result<(), Failure> {
    if let Some(was) = was {
        write(&place.path, &was)?;
        // It did run: a failure of this is no news beside the one that is told.
        let _ = start(place, true);
        return Ok(());
    }
    let _ = stop(place);
    remove(place)?;
    Ok(())
}

/// What the service runs: this binary, with the flags that were given and whole paths.
fn command_line(config: &Config, flags: &Flags, environment: &Environment) -> Result<Vec<String>, Failure> {
    let unknown = || Failure::Bad("the path of windowsill is unknown\n  hint: start it by its path".into());
    let program = std::fs::canonicalize(config.machine.program.as_ref().ok_or_else(unknown)?)?;
    if config::scratch_dir().parent().is_some_and(|temporary| program.starts_with(temporary)) {
        let hint = "move it to where it can stay, such as ~/.local/bin, and install it from there";
        return Err(Failure::Bad(format!("{} will not stay where it is\n  hint: {hint}", program.display())));
    }
    let whole = |path: &Path| environment.cwd.join(path);
    let mut words = vec![text(&program)?, "serve".to_owned()];
    let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    if let Some(file) = flags.config.as_deref().or(config.file.as_deref()) {
        add("--config", text(&whole(file))?);
    }
    if let Some(folder) = &flags.data_dir {
        add("--data-dir", text(&whole(folder))?);
    }
    flags.upstream.iter().for_each(|url| add("--upstream", url.clone()));
    for (flag, value) in [("--num-ctx", &flags.num_ctx), ("--log", &flags.log)] {
        if let Some(value) = value {
            add(flag, value.clone());
        }
    }
    if flags.shadow {
        words.push("--shadow".to_owned());
    }
    Ok(words)
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::Bad(format!("{} is not UTF-8, which a service's file has to be", path.display())))
}

/// Whether the service manager can be spoken to, before anything is written.
fn manager_answers(place: &Place) -> Result<(), Failure> {
    if place.manager == Manager::Launchd {
        return Ok(());
    }
    let hint =
        "without systemd's user manager, as in containers, start `windowsill serve` with what starts programs there";
    let refused =
        |why: String| Failure::Bad(format!("systemd's user manager cannot be reached: {why}\n  hint: {hint}"));
    let told = asked("systemctl", &["--user", "show-environment"]).map_err(refused)?;
    if told.status.success() { Ok(()) } else { Err(refused(first_line(&told))) }
}

fn start(place: &Place, again: bool) -> Result<(), Failure> {
    match place.manager {
        Manager::Systemd => {
            must("systemctl", &["--user", "daemon-reload"])?;
            must("systemctl", &["--user", "enable", "windowsill.service"])?;
            // Waits until it listens. One that runs already gets its new flags.
            must("systemctl", &["--user", "restart", "windowsill.service"]).map_err(with_hint)?;
        }
        Manager::Launchd => {
            if again {
                let _ = asked("launchctl", &["unload", &place.path.to_string_lossy()]);
            }
            must("launchctl", &["load", "-w", &place.path.to_string_lossy()])?;
        }
    }
    Ok(())
}

fn uninstall(place: &Place) -> Result<ExitCode, Failure> {
    if !place.is_installed() {
        note("the service is not installed: there is nothing to remove");
        return Ok(ExitCode::SUCCESS);
    }
    place.must_be_ours()?;
    let stopped = stop(place);
    remove(place)?;
    out(&format!("{} is removed\n", place.path.display()))?;
    if let Err(Failure::Bad(why) | Failure::Usage(why)) = stopped {
        note(&format!("it could not be stopped, and may still run: {why}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(place: &Place) -> Result<(), Failure> {
    match place.manager {
        Manager::Systemd => must("systemctl", &["--user", "disable", "--now", "windowsill.service"]),
        Manager::Launchd => must("launchctl", &["unload", "-w", &place.path.to_string_lossy()]),
    }
}

/// Removes what was written, and the folders of systemd's that hold nothing else.
fn remove(place: &Place) -> std::io::Result<()> {
    std::fs::remove_file(&place.path)?;
    if place.manager == Manager::Systemd {
        let _ = asked("systemctl", &["--user", "daemon-reload"]);
        // A unit that failed is remembered until then.
        let _ = asked("systemctl", &["--user", "reset-failed", "windowsill.service"]);
        place.path.ancestors().skip(1).take(2).take_while(|folder| std::fs::remove_dir(folder).is_ok()).for_each(drop);
    }
    Ok(())
}

fn status(config: &Config, place: &Place) -> Result<ExitCode, Failure> {
    let installed = if place.is_installed() { place.path.display().to_string() } else { "no".to_owned() };
    let runs = match place.manager {
        Manager::Systemd => {
            asked("systemctl", &["--user", "is-active", "windowsill.service"]).map(|told| first_line(&told))
        }
        Manager::Launchd => asked("launchctl", &["list", NAME])
            .map(|told| if told.status.success() { "active".to_owned() } else { "inactive".to_owned() }),
    };
    let runs = runs.unwrap_or_else(|why| why);
    let runs =
        if runs.contains("connect to bus") { "systemd's user manager is not running here".to_owned() } else { runs };
    let answers = match clients::models(&runtime()?, config) {
        Ok(models) if models.len() == 1 => "yes, with 1 model".to_owned(),
        Ok(models) => format!("yes, with {} models", models.len()),
        Err(Failure::Bad(why) | Failure::Usage(why)) => format!("no: {}", why.lines().next().unwrap_or_default()),
    };
    out(&format!("installed  {installed}\nservice    {runs}\nanswers    {answers}\n"))?;
    Ok(if runs == "active" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// systemd does not know why a program ended. The log does, which it may keep without the name of the unit.
fn with_hint(failed: Failure) -> Failure {
    match failed {
        Failure::Bad(why) => {
            let hint = "`windowsill serve` with the same flags says why, and so does `journalctl --user -n 20`";
            Failure::Bad(format!("the service does not start: {why}\n  hint: {hint}"))
        }
        other => other,
    }
}

fn asked(program: &str, arguments: &[&str]) -> Result<Output, String> {
    Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))
}

fn must(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let told = asked(program, arguments).map_err(Failure::Bad)?;
    if told.status.success() {
        return Ok(());
    }
    Err(Failure::Bad(format!("`{program} {}` failed: {}", arguments.join(" "), first_line(&told))))
}

/// What a program said: on its first line of output, or of errors.
fn first_line(told: &Output) -> String {
    let lines = [&told.stdout, &told.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let said = lines.into_iter().find(|text| !text.is_empty()).unwrap_or_else(|| told.status.to_string());
    said.lines().next().unwrap_or_default().to_owned()
}
