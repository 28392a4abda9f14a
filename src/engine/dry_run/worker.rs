//! The process that dry runs happen in, from both sides. It is asked a line of JSON at a time and answers with one.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ask, Covers, Told};
use crate::engine::child::Started;
#[cfg(feature = "engine")]
use crate::engine::devices::{Device, computed_on};

/// The hidden command of this program that [`work`]s.
const COMMAND: &str = "dry-run-worker";

/// How long one answer may take; the largest models take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the process answers: first what it covers, then to each question in turn.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Covers(Covers),
    Told(Told),
    Refused(String),
}

/// Dry runs of one file, in a process that is ended with this. Where llama.cpp gave up over a question, the next is put to
/// another process.
#[derive(Debug)]
pub struct DryRun {
    program: PathBuf,
    file: PathBuf,
    worker: Worker,
    covers: Covers,
}

impl DryRun {
    /// Starts the process: `program` is this program.
    ///
    /// # Errors
    /// Why it does not start, in words.
    pub fn start(program: &Path, file: &Path) -> Result<DryRun, String> {
        let (worker, covers) = Worker::start(program, file)?;
        Ok(DryRun { program: program.to_owned(), file: file.to_owned(), worker, covers })
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
        if self.worker.gone {
            (self.worker, _) = Worker::start(&self.program, &self.file)?;
        }
        self.worker.ask(ask)
    }
}

/// One process.
#[derive(Debug)]
struct Worker {
    process: Started,
    questions: ChildStdin,
    answers: Receiver<String>,
    /// It does not answer any more.
    gone: bool,
}

impl Worker {
    fn start(program: &Path, file: &Path) -> Result<(Worker, Covers), String> {
        let (process, (questions, output)) = Started::new(program, |command| {
            command.arg(COMMAND).arg(file);
        })?;
        let (send, answers) = channel();
        // Ends with the process, whose output it reads.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut started = Worker { process, questions, answers, gone: false };
        match started.answer()? {
            Answer::Covers(covers) => Ok((started, covers)),
            Answer::Refused(why) => Err(why),
            Answer::Told(_) => Err("it answers what it was not asked".into()),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Told, String> {
        let mut line = serde_json::to_string(ask).map_err(|e| e.to_string())?;
        line.push('\n');
        // If it is gone, what it said at last tells more than the broken pipe.
        let _ = self.questions.write_all(line.as_bytes()).and_then(|()| self.questions.flush());
        match self.answer()? {
            Answer::Told(told) => Ok(told),
            Answer::Refused(why) => Err(why),
            Answer::Covers(_) => Err("it answers what it was not asked".into()),
        }
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let why = match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(answer) => return Ok(answer),
                Err(_) => "it answers what cannot be read".to_owned(),
            },
            Err(RecvTimeoutError::Timeout) => format!("llama.cpp did not answer in {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => self.process.last_words("llama.cpp gave up on this file", ""),
        };
        // What it answers from now on may be to another question.
        self.gone = true;
        Err(why)
    }
}

/// The process's side: answers until its input ends.
///
/// # Errors
/// When nobody takes the answers.
pub fn work(file: &Path, input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut say = |answer: &Answer| {
        serde_json::to_writer(&mut output, answer)?;
        output.write_all(b"\n")?;
        output.flush()
    };
    let mut kept = Kept::default();
    say(&match Kept::covers() {
        Some(covers) => Answer::Covers(covers),
        None => Answer::Refused("this build has no llama.cpp in it (feature `engine`)".into()),
    })?;
    for line in input.lines() {
        let answer = match serde_json::from_str::<Ask>(&line?) {
            Ok(ask) => kept.cost(file, &ask).map_or_else(Answer::Refused, Answer::Told),
            Err(why) => Answer::Refused(format!("the question cannot be read: {why}")),
        };
        say(&answer)?;
    }
    Ok(())
}

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
        Err("this build has no llama.cpp in it (feature `engine`)".into())
    }
}
