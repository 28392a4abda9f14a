//! The process that dry runs happen in, from both sides.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Ask, Covers, Told};
use crate::engine::calls::{self, Calls, Desk};
#[cfg(feature = "engine")]
use crate::engine::devices::{Device, computed_on};
use crate::engine::processor;

/// The hidden command of this program that [`work`]s.
const COMMAND: &str = "dry-run-worker";

/// How long one answer may take; the largest models take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Dry runs of one file, in a process that is ended with this. Where llama.cpp gave up over a question, the next is put to
/// another process.
#[derive(Debug)]
pub struct DryRun {
    program: PathBuf,
    file: PathBuf,
    calls: Calls,
    covers: Covers,
}

impl DryRun {
    /// Starts the process: `program` is this program.
    ///
    /// # Errors
    /// Why it does not start, in words.
    pub fn start(program: &Path, file: &Path) -> Result<DryRun, String> {
        let (calls, covers) = started(program, file)?;
        Ok(DryRun { program: program.to_owned(), file: file.to_owned(), calls, covers })
    }

    /// What its figures cover.
    pub fn covers(&self) -> &Covers {
        &self.covers
    }

    /// What a context would take.
    ///
    /// # Errors
    /// Why llama.cpp does not set it up, or that it ended over it, in words.
    pub fn ask(&mut self, ask: &Ask) -> Result<Told, String> {
        if self.calls.gone() {
            (self.calls, _) = started(&self.program, &self.file)?;
        }
        self.calls.ask::<_, Result<Told, String>>(ask, &[], PATIENCE)?
    }
}

fn started(program: &Path, file: &Path) -> Result<(Calls, Covers), String> {
    let command = |command: &mut Command| _ = command.arg(COMMAND).arg(file);
    let (calls, covers) = Calls::start::<Result<Covers, String>>(program, command, PATIENCE, " on this file")?;
    Ok((calls, covers?))
}

/// The process's side: answers until its input ends.
///
/// # Errors
/// When the input cannot be read.
pub fn work(file: &Path, input: impl BufRead, output: impl Write + Send + 'static) -> std::io::Result<()> {
    calls::serve(Runs { file: file.to_owned(), kept: Mutex::default() }, input, output)
}

/// Answers with dry runs of one file, one at a time.
struct Runs {
    file: PathBuf,
    kept: Mutex<Kept>,
}

impl Desk for Runs {
    type Ask = Ask;
    type Answer = Result<Told, String>;
    type Opening = Result<Covers, String>;

    fn open(&self) -> Result<Covers, String> {
        match processor::lack() {
            Some(why) => Err(why),
            None => Kept::covers().ok_or_else(|| ABSENT.to_owned()),
        }
    }

    fn answer(&self, ask: Ask, _parts: &[Vec<u8>]) -> Result<Told, String> {
        self.kept.lock().cost(&self.file, &ask)
    }
}

/// What is said where there is no llama.cpp.
const ABSENT: &str = "this build has no llama.cpp in it (feature `engine`)";

/// The model as it was last opened, and for what place.
#[derive(Default)]
struct Kept {
    #[cfg(feature = "engine")]
    model: Option<(super::native::Place, super::native::Opened)>,
}

#[cfg(feature = "engine")]
impl Kept {
    fn covers() -> Option<Covers> {
        let all = crate::engine::devices::here();
        let named = |device: &&Device| format!("{} ({})", device.name, device.description);
        Some(Covers { version: super::native::version(), devices: computed_on(&all).iter().map(named).collect() })
    }

    fn cost(&mut self, file: &Path, ask: &Ask) -> Result<Told, String> {
        let place = super::native::place(ask);
        let opened = match self.model.take().filter(|(there, _)| *there == place) {
            Some((_, opened)) => opened,
            None => super::native::Opened::open(file, place)?,
        };
        let (_, model) = self.model.insert((place, opened));
        model.cost(ask)
    }
}

#[cfg(not(feature = "engine"))]
impl Kept {
    fn covers() -> Option<Covers> {
        None
    }

    fn cost(&mut self, _file: &Path, _ask: &Ask) -> Result<Told, String> {
        Err(ABSENT.into())
    }
}
