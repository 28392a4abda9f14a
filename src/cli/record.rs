//! `windowsill record copy`: an existing record into a database that several windowsills share.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use windowsill::config::{Config, DEFAULT_SCOPE};
use windowsill::proxy::{Progress, copy_record};

use crate::{Failure, note, out};

/// What is done with a whole record.
#[derive(Subcommand)]
pub(crate) enum Record {
    /// Copy the record of a folder into a PostgreSQL database, and verify it. One that was interrupted goes on where it was.
    #[command(after_help = "Examples:
  windowsill record copy --to postgres://windowsill@db.lan/windowsill
  windowsill record copy --from ~/old --to postgres://windowsill@db.lan/windowsill

A password may stand in WINDOWSILL_RECORD, the whole URL, in place of --to.")]
    Copy(Copy),
}

/// From where to where.
#[derive(Args)]
pub(crate) struct Copy {
    /// Folder of the record. Default: `data_dir`.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// URL of the database. Default: `record` of config.toml.
    #[arg(long, value_name = "postgres://…")]
    to: Option<String>,
    /// The record's name in the database: that of a scope of [[key]].
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCOPE)]
    scope: String,
}

pub(crate) fn run(config: &Config, command: &Record) -> Result<ExitCode, Failure> {
    let Record::Copy(of) = command;
    let from = of.from.as_ref().unwrap_or(&config.data_dir);
    let configured = || config.record.as_ref().map(|url| url.expose().to_owned());
    let url = of.to.clone().or_else(configured).ok_or_else(|| {
        Failure::Usage("--to is missing, and config.toml has no `record`: name the database".to_owned())
    })?;
    let mut bar = Bar::default();
    let copied = copy_record(from, &url, &of.scope, &mut |at| bar.show(at)).map_err(|why| {
        Failure::Bad(format!("the record was not copied: {why}\n  hint: run again, it goes on where it was"))
    })?;
    bar.end();
    let rows = copied.tables.iter().map(|(_, rows, _)| rows).sum::<u64>();
    if copied.found > 0 {
        note(&format!("an earlier copy had brought {} entries of it there", copied.found));
    }
    let mut page = format!("copied and verified: {rows} rows, the same in both\n");
    for (name, rows, digest) in &copied.tables {
        page += &format!("  {name:<16} {rows:>10}  {}\n", &digest[..16]);
    }
    out(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// Says how far it is: on a terminal in one line that is written anew, else every ten seconds.
#[derive(Default)]
struct Bar {
    told: Option<Instant>,
}

impl Bar {
    fn show(&mut self, at: Progress) {
        let is_terminal = io::stderr().is_terminal();
        let pause = Duration::from_millis(if is_terminal { 100 } else { 10_000 });
        if self.told.is_some_and(|told| told.elapsed() < pause) {
            return;
        }
        self.told = Some(Instant::now());
        let (what, done, all) = match at {
            Progress::Copied(done, all) => ("copying", done, all),
            Progress::Verified(done, all) => ("verifying", done, all),
        };
        let percent = done.saturating_mul(100) / all.max(1);
        let full = usize::try_from(percent / 5).unwrap_or(20).min(20);
        let line =
            format!("{what:<9} [{}{}] {percent:>3} %, {done} of {all} rows", "#".repeat(full), " ".repeat(20 - full));
        let _ = if is_terminal { write!(io::stderr(), "\r{line}\x1b[K") } else { writeln!(io::stderr(), "{line}") };
    }

    fn end(&self) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
