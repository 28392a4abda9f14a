//! The process that counts, as seen from the proxy: started when it is first wanted, asked, started again when it is gone, and
//! given up when that happens too often.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use super::worker::{Ask, COMMAND, Opening, Told};
use super::{CountError, Counted};
use crate::conversation::{Digest, Tokens};
use crate::engine::calls::Calls;
use crate::engine::vocabulary::{TemplateError, endless};
use crate::engine::{BUILT, VocabularyError};
use crate::store::blocking;

/// How long a vocabulary may take to be read.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// How long llama.cpp may take to try a chat template; real ones take milliseconds.
const TEMPLATE_WITHIN: Duration = Duration::from_secs(10);

/// How long a count may take. The estimate serves a request that takes longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How often the process may go within [`LATELY`].
const MOST_FAILURES: usize = 3;

/// What counts as lately.
const LATELY: Duration = Duration::from_secs(600);

/// Short texts whose tokens are remembered.
const TEXTS: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Counts requests for one model, in a process of its own that ends with this.
#[derive(Debug)]
pub struct CountWorker {
    program: PathBuf,
    file: PathBuf,
    /// What the process renders with; `None` for the file's own template.
    template: Option<String>,
    own_template: Option<String>,
    state: Mutex<State>,
    texts: Mutex<LruCache<Digest, Tokens>>,
    gate: Gate,
}

#[derive(Debug)]
struct State {
    calls: Option<Arc<Calls>>,
    /// When it was last asked.
    asked: Instant,
    /// The process was ended because nobody asked.
    rests: bool,
    /// When the process went.
    failures: VecDeque<Instant>,
}

impl CountWorker {
    /// Starts the process and has it read the vocabulary of a file, and its template unless the server said that it renders
    /// with `served`. Takes up to a second. `program` is this program.
    ///
    /// # Errors
    /// When the file has no vocabulary that can be used, or the template cannot.
    pub fn start(program: &Path, file: &Path, served: Option<&str>) -> Result<CountWorker, CountError> {
        CountWorker::read(program, file)?.with_template(served)
    }

    /// Starts the process and has it read the vocabulary of a file. Nothing can be counted yet.
    ///
    /// # Errors
    /// When the file has no vocabulary that can be used.
    pub fn read(program: &Path, file: &Path) -> Result<CountWorker, CountError> {
        if !BUILT {
            return Err(VocabularyError::NotBuilt.into());
        }
        let (calls, own_template) = opened(program, file)?;
        let calls = Some(Arc::new(calls));
        let state = State { calls, asked: Instant::now(), rests: false, failures: VecDeque::new() };
        Ok(CountWorker {
            program: program.to_owned(),
            file: file.to_owned(),
            template: None,
            own_template,
            state: Mutex::new(state),
            texts: Mutex::new(LruCache::new(TEXTS)),
            gate: Gate::of_cores(),
        })
    }

    /// Has prompts rendered with a template; without one, with the file's.
    ///
    /// # Errors
    /// When llama.cpp cannot use it.
    pub fn with_template(mut self, template: Option<&str>) -> Result<CountWorker, CountError> {
        self.template = template.map(str::to_owned);
        if let Some(calls) = &self.state.get_mut().calls {
            try_template(calls, self.template.as_deref())?;
        }
        Ok(self)
    }

    /// The chat template of the model's file.
    pub fn own_template(&self) -> Option<&str> {
        self.own_template.as_deref()
    }

    /// As [`Counter::total`](super::Counter::total).
    ///
    /// # Errors
    /// When the template refuses it, or nobody answers.
    pub fn total(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        self.tokens(Ask::Total, &[request])
    }

    /// As [`Counter::at_least`](super::Counter::at_least).
    ///
    /// # Errors
    /// When the request is no JSON, or nobody answers.
    pub fn at_least(&self, request: &[u8]) -> Result<(Tokens, usize), CountError> {
        self.tokens(Ask::AtLeast, &[request])
    }

    /// As [`Counter::counted`](super::Counter::counted), of the request's own conversation.
    ///
    /// # Errors
    /// When the template refuses it, or nobody answers.
    pub fn counted(&self, request: &[u8], foreign: bool) -> Result<Counted, CountError> {
        match self.ask(Ask::Counted { foreign }, &[request])? {
            Told::Counted(counted) => Ok(counted),
            _ => Err(unasked()),
        }
    }

    /// As [`Counter::shared`](super::Counter::shared).
    ///
    /// # Errors
    /// As [`CountWorker::total`].
    pub fn shared(&self, a: &[u8], b: &[u8]) -> Result<Tokens, CountError> {
        Ok(self.tokens(Ask::Shared, &[a, b])?.0)
    }

    /// Tokens of a short text on its own; `None` where they cannot be told at once.
    pub fn text(&self, text: &str) -> Option<Tokens> {
        let key = Digest::of(text.as_bytes());
        if let Some(known) = self.texts.lock().get(&key) {
            return Some(*known);
        }
        let told: Result<Told, String> = blocking(|| {
            let calls = self.at_hand()?;
            calls.ask(Ask::Text, &[text.as_bytes()], ANSWER_WITHIN).ok()
        })?;
        let Ok(Told::Tokens(tokens, _)) = told else { return None };
        self.texts.lock().put(key, tokens);
        Some(tokens)
    }

    /// Ends the process where nobody asked it anything for this long. The next question starts it again.
    pub fn rest(&self, idle: Duration) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        // One that is gone is missed by the next question, and one that is held works on a question.
        let is_idle = |calls: &mut Arc<Calls>| !calls.gone() && Arc::get_mut(calls).is_some();
        if state.asked.elapsed() < idle || !state.calls.as_mut().is_some_and(is_idle) {
            return false;
        }
        state.rests = true;
        state.calls.take().is_some()
    }

    fn tokens(&self, ask: Ask, parts: &[&[u8]]) -> Result<(Tokens, usize), CountError> {
        match self.ask(ask, parts)? {
            Told::Tokens(tokens, messages) => Ok((tokens, messages)),
            _ => Err(unasked()),
        }
    }

    fn ask(&self, ask: Ask, parts: &[&[u8]]) -> Result<Told, CountError> {
        let _pass = self.gate.enter();
        let calls = self.running()?;
        let told: Result<Result<Told, String>, String> = calls.ask(ask, parts, ANSWER_WITHIN);
        told.and_then(|told| told).map_err(CountError::Worker)
    }

    /// The process, if it answers or only rests.
    fn at_hand(&self) -> Option<Arc<Calls>> {
        let mut state = self.state.try_lock()?;
        if state.rests {
            drop(state);
            return self.running().ok();
        }
        state.asked = Instant::now();
        state.calls.clone().filter(|calls| !calls.gone())
    }

    /// The process, started again if it is gone.
    fn running(&self) -> Result<Arc<Calls>, CountError> {
        let mut state = self.state.lock();
        (state.asked, state.rests) = (Instant::now(), false);
        if let Some(calls) = state.calls.as_ref().filter(|calls| !calls.gone()) {
            return Ok(Arc::clone(calls));
        }
        if state.calls.take().is_some() {
            state.failures.push_back(Instant::now());
        }
        while state.failures.front().is_some_and(|at| at.elapsed() > LATELY) {
            state.failures.pop_front();
        }
        if state.failures.len() >= MOST_FAILURES {
            let why =
                format!("llama.cpp gave up {MOST_FAILURES} times while it counted, and is left alone for a while");
            return Err(CountError::Worker(why));
        }
        let started = opened(&self.program, &self.file).and_then(|(calls, _)| {
            try_template(&calls, self.template.as_deref())?;
            Ok(calls)
        });
        match started {
            Ok(calls) => Ok(Arc::clone(state.calls.insert(Arc::new(calls)))),
            Err(why) => {
                state.failures.push_back(Instant::now());
                Err(why)
            }
        }
    }
}

/// A process that has read the vocabulary of a file, and the file's template.
fn opened(program: &Path, file: &Path) -> Result<(Calls, Option<String>), CountError> {
    let arguments = |command: &mut std::process::Command| _ = command.arg(COMMAND).arg(file);
    let broken = |what: String| VocabularyError::Broken { path: file.to_owned(), what };
    let (calls, opening) = Calls::start::<Opening>(program, arguments, READ_WITHIN, "").map_err(broken)?;
    Ok((calls, opening.map_err(CountError::Worker)?))
}

fn try_template(calls: &Calls, template: Option<&str>) -> Result<(), CountError> {
    let told = calls.ask::<_, Result<Told, String>>(Ask::Template(template.map(str::to_owned)), &[], TEMPLATE_WITHIN);
    match told {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(why)) => Err(CountError::Worker(why)),
        Err(_) if calls.timed_out() => Err(TemplateError::Endless(endless(TEMPLATE_WITHIN)).into()),
        Err(why) => Err(TemplateError::Syntax(why).into()),
    }
}

fn unasked() -> CountError {
    CountError::Worker("it answers what it was not asked".into())
}

/// Lets as many in at once as there are cores: what waits here is not late yet.
#[derive(Debug)]
struct Gate {
    free: Mutex<usize>,
    left: Condvar,
}

struct Pass<'a>(&'a Gate);

impl Gate {
    fn of_cores() -> Gate {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Gate { free: Mutex::new(cores), left: Condvar::new() }
    }

    fn enter(&self) -> Pass<'_> {
        let mut free = self.free.lock();
        while *free == 0 {
            self.left.wait(&mut free);
        }
        *free -= 1;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.left.notify_one();
    }
}
