//! The counters of the models in use: found by the file that the server says it has loaded, or by what it tells of a file
//! that is not here, kept while that file stays as it is, checked against the server's own count where it has one, and
//! corrected by its `usage` where it has none.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tracing::{debug, info, warn};

use super::count::{CountError, CountWorker, Counted, INTRODUCTION};
use super::shown::{STAND_IN, Shown};
use super::window::Window;
use super::{Counting, Origin, Sureness};
use crate::conversation::{Digest, Tokens};
use crate::engine::{BUILT, FileId};
use crate::upstream::{Embedded, Upstream};

/// Processes that count, at most: each takes some tens of megabytes.
const KEPT: usize = 4;

/// A process that counts ends after this long without a question.
const IDLE: Duration = Duration::from_secs(600);

/// Counts that are remembered until the server reports what it evaluated.
const REMEMBERED: usize = 256;

/// Replies whose figures correct the count.
const REPLIES: usize = 3;

/// What another rendering than ours may add to a prompt before anything is known of it: a message, and the whole.
const UNKNOWN_PER_MESSAGE: f64 = 6.0;
/// As above, of the whole.
const UNKNOWN_WHOLE: f64 = 48.0;
/// The most of a window that is left free for it: in a small one, the little that fits would give way to a guess. A server that
/// refuses a prompt says how long it is, and the next try is right.
const UNKNOWN_SHARE: f64 = 0.125;

/// Tokens that another rendering than ours may add to a prompt of so many messages, before anything is known of it.
fn unknown(messages: usize, window: Tokens) -> Tokens {
    let whole = UNKNOWN_WHOLE.min(f64::from(window) * UNKNOWN_SHARE);
    (whole + UNKNOWN_PER_MESSAGE * messages as f64) as Tokens
}

/// Tokens of an unchecked count that another rendering may not have: of a prompt of so many messages, with tools or without.
pub fn doubt(messages: usize, window: Tokens, tools: bool) -> Tokens {
    unknown(messages, window).saturating_add(if tools { INTRODUCTION } else { 0 })
}

/// A count, and how far it is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exact {
    /// Prompt tokens.
    pub tokens: Tokens,
    /// The vocabulary it was counted with; `None` where the server counted.
    pub own: Option<Origin>,
    /// The server counts the same, or its replies have told the difference.
    pub sure: bool,
}

impl Exact {
    /// As a word.
    pub fn sureness(self) -> Sureness {
        match (self.own, self.sure) {
            (None, _) => Sureness::Counted,
            (Some(origin), true) => Sureness::Own(origin),
            (Some(origin), false) => Sureness::OwnUnchecked(origin),
        }
    }
}

type Loading = Arc<OnceCell<Option<Arc<Model>>>>;

/// The counters in use.
pub struct Counters {
    models: Mutex<LruCache<Key, Loading>>,
    /// The one to use whatever a server says: a file named on the command line.
    named: OnceLock<Arc<Model>>,
    /// Of models whose files are not here.
    shown: Arc<Shown>,
    /// This program, which counts in processes of its own.
    program: Option<PathBuf>,
}

/// A model as one server renders it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    file: FileId,
    template: Option<Digest>,
    upstream: String,
}

/// One model's counter, and what is known of its server's counts.
#[derive(Debug)]
pub struct Model {
    counter: Arc<CountWorker>,
    origin: Origin,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The server's own count was the same once.
    verified: bool,
    /// The server counts otherwise, and is right.
    differs: bool,
    /// Our count and the server's, where they differ.
    mismatch: Option<(Tokens, Tokens)>,
    /// Somebody was told of that.
    told: bool,
    /// What was counted of requests whose reply is still out.
    pending: VecDeque<Pending>,
    /// Messages, and the server's count less ours, of the last replies.
    replies: VecDeque<(usize, f64)>,
}

#[derive(Debug)]
struct Pending {
    /// What it was said to be.
    told: Tokens,
    /// What was counted.
    own: Tokens,
    messages: usize,
}

impl Default for Counters {
    fn default() -> Self {
        let models = Mutex::new(LruCache::new(NonZeroUsize::new(KEPT).expect("not zero")));
        Counters { models, named: OnceLock::new(), shown: Arc::default(), program: None }
    }
}

impl Counters {
    /// Takes the vocabularies that servers tell from there, too. `program` is this program.
    pub fn with(shown: Arc<Shown>, program: Option<PathBuf>) -> Counters {
        Counters { shown, program, ..Counters::default() }
    }

    /// Counts everything with the vocabulary and the template of this file from now on. Reads it at once.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn name(&self, file: &Path) -> Result<(), CountError> {
        let program = self.program.as_deref();
        let program =
            program.ok_or_else(|| CountError::Worker("where this program's own file is, is not known".into()))?;
        let counter = Arc::new(CountWorker::start(program, file, None)?);
        let state = Mutex::new(State { verified: true, ..State::default() });
        let _ = self.named.set(Arc::new(Model { counter, origin: Origin::File, state }));
        Ok(())
    }

    /// The counter for a model, where its file is on this machine and can be used, or its server tells the vocabulary; for
    /// that, no longer than `patience` is waited. The first call for a file reads it, and others wait for that.
    pub async fn of(
        &self,
        upstream: &Upstream,
        model: &str,
        window: &Window,
        patience: Duration,
    ) -> Option<Arc<Model>> {
        if let Some(named) = self.named.get() {
            return Some(Arc::clone(named));
        }
        let path = window.model_path.as_deref()?;
        // The file that we serve ourselves says all there is, a template of its own for tools included.
        let by_file = upstream.embedded_engine().is_some_and(Embedded::renders_by_file);
        let served = window.template.clone().filter(|_| !by_file);
        self.of_file(upstream, model, path, served, patience).await
    }

    /// As [`Counters::of`], for a file that a server says it has loaded and the template that it says it renders with.
    pub async fn of_file(
        &self,
        upstream: &Upstream,
        model: &str,
        path: &str,
        served: Option<Arc<str>>,
        patience: Duration,
    ) -> Option<Arc<Model>> {
        let program = self.program.clone().filter(|_| BUILT)?;
        let (file, origin) = match here(upstream, path) {
            Some(file) => (file, Origin::File),
            None => (self.shown.file(upstream, model, path, patience).await?, Origin::Show),
        };
        let file = FileId::of(&file).ok()?;
        let key = Key {
            file: file.clone(),
            template: served.as_deref().map(|t| Digest::of(t.as_bytes())),
            upstream: upstream.name().to_owned(),
        };
        let cell = Arc::clone(self.models.lock().get_or_insert(key, Loading::default));
        let loaded = cell.get_or_init(|| load(program, file.clone(), served, origin)).await.clone();
        let Some(loaded) = loaded else {
            if origin == Origin::Show {
                self.shown.spoiled(file.path());
            }
            return None;
        };
        let usable = !loaded.state.lock().differs;
        usable.then_some(loaded)
    }

    /// How prompts of the model whose file a server has loaded would be counted now. Asks nothing.
    pub fn counting(&self, upstream: &Upstream, model_path: Option<&str>) -> Counting {
        let (here, told) = match model_path {
            Some(path) => (here(upstream, path), self.shown.known(upstream, path)),
            None => (None, None),
        };
        match (here, told) {
            (Some(_), _) => Counting::Own(Origin::File),
            (None, Some(told)) if told.is_here => Counting::Own(Origin::Show),
            (None, Some(told)) if !told.is_refused => Counting::Asks,
            _ if upstream.can_count() => Counting::Server,
            _ => Counting::Estimate,
        }
    }
}

impl Counters {
    /// Ends the processes that nobody has asked anything for a while. They start again at need.
    pub fn rest(&self) {
        let all: Vec<_> = self.models.lock().iter().filter_map(|(_, loading)| loading.get()?.clone()).collect();
        for model in all.iter().filter(|model| model.counter.rest(IDLE)) {
            debug!("{} rests: nobody asked", model.origin.as_str());
        }
    }

    /// Our count and the server's of a request that they counted otherwise, for the model that an upstream has loaded from
    /// this file: the server's counts are taken since.
    pub fn mismatch(&self, upstream: &str, file: &Path) -> Option<(Tokens, Tokens)> {
        let models = self.models.lock();
        let mut of_file = models.iter().filter(|(key, _)| key.upstream == upstream && key.file.path() == file);
        of_file.find_map(|(_, loading)| loading.get()?.as_ref()?.state.lock().mismatch)
    }
}

/// Whether it is this program that renders prompts, and has not loaded the model yet: by the file's own template, then.
fn is_ours(upstream: &Upstream) -> bool {
    upstream.embedded_model().is_some() && !upstream.can_count()
}

/// The file that a server says it has loaded, where it is this machine's and can be read.
fn here(upstream: &Upstream, path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let local = upstream.embedded_model().is_some() || is_local(upstream.url());
    (local && crate::files::open(path).is_ok()).then(|| path.to_owned())
}

async fn load(program: PathBuf, file: FileId, served: Option<Arc<str>>, origin: Origin) -> Option<Arc<Model>> {
    let path = file.path().display().to_string();
    let read = tokio::task::spawn_blocking(move || {
        // No template comes with a vocabulary that was told.
        let stand_in = (origin == Origin::Show).then_some(STAND_IN);
        CountWorker::start(&program, file.path(), served.as_deref().or(stand_in))
    });
    match read.await {
        Ok(Ok(counter)) => {
            info!(file = %path, "prompts are counted with {}", origin.as_str());
            Some(Arc::new(Model { counter: Arc::new(counter), origin, state: Mutex::default() }))
        }
        Ok(Err(e)) => {
            let what = origin.as_str();
            warn!(file = %path, error = %e, "{what} cannot be used; prompts are counted by the server, or estimated");
            None
        }
        Err(_) => None,
    }
}

impl Model {
    /// The tokens of a request for a window, `media` of which are for images and the like. Where the server can count, it is asked
    /// the first time: if it counts otherwise, its word holds, now and from then on.
    pub async fn total(&self, upstream: &Upstream, body: &Bytes, media: Tokens, window: Tokens) -> Option<Exact> {
        let counter = Arc::clone(&self.counter);
        let request = body.clone();
        let foreign = self.is_foreign(upstream);
        let count = move || if foreign { counter.at_least(&request) } else { counter.total(&request) };
        let counted = tokio::task::spawn_blocking(count).await.ok()?;
        let (own, messages) = match counted {
            Ok(own) => own,
            Err(e) => {
                info!(error = %e, "this request cannot be counted with the model's own template");
                return None;
            }
        };
        let plain = media == 0;
        let own = own.saturating_add(media);
        let verified = self.state.lock().verified || is_ours(upstream);
        if upstream.can_count() && (!verified || !plain) {
            let theirs = upstream.count(body).await.ok()?;
            let mut state = self.state.lock();
            if plain && theirs == own {
                state.verified = true;
            } else if plain {
                state.differs = true;
                state.mismatch = Some((own, theirs));
                warn!(
                    upstream = upstream.name(),
                    own,
                    theirs,
                    "the server counts otherwise than its model's own vocabulary and template; its count is taken"
                );
            }
            return Some(Exact { tokens: theirs, own: state.verified.then_some(self.origin), sure: true });
        }
        let mut state = self.state.lock();
        if verified {
            return Some(Exact { tokens: own, own: Some(self.origin), sure: true });
        }
        let (more, sure) = state.difference(messages, window);
        let tokens = own.saturating_add_signed(more.ceil() as i32);
        state.pending.push_back(Pending { told: tokens, own, messages });
        if state.pending.len() > REMEMBERED {
            state.pending.pop_front();
        }
        Some(Exact { tokens, own: Some(self.origin), sure })
    }

    /// The shares of the messages of a request.
    pub async fn shares(&self, upstream: &Upstream, body: &Bytes) -> Option<Counted> {
        let counter = Arc::clone(&self.counter);
        let body = body.clone();
        let foreign = self.is_foreign(upstream);
        tokio::task::spawn_blocking(move || counter.counted(&body, foreign)).await.ok()?.ok()
    }

    /// The tokens that two requests' prompts begin with.
    pub async fn shared(&self, a: &Bytes, b: &Bytes) -> Option<Tokens> {
        let (counter, a, b) = (Arc::clone(&self.counter), a.clone(), b.clone());
        tokio::task::spawn_blocking(move || counter.shared(&a, &b)).await.ok()?.ok()
    }

    /// Whether the server may render prompts otherwise than by the model's template, and cannot be asked for its count.
    fn is_foreign(&self, upstream: &Upstream) -> bool {
        !self.state.lock().verified && !upstream.can_count() && !is_ours(upstream)
    }

    /// Tokens of a short text on its own; `None` where they cannot be told at once.
    pub fn text(&self, text: &str) -> Option<Tokens> {
        self.counter.text(text)
    }

    /// Our count and the server's, where the server counts otherwise: told once.
    pub fn take_mismatch(&self) -> Option<(Tokens, Tokens)> {
        let mut state = self.state.lock();
        let mismatch = state.mismatch.filter(|_| !state.told);
        state.told |= mismatch.is_some();
        mismatch
    }

    /// Learns what the server evaluated of a request that was said to have `told` tokens.
    pub fn learn(&self, told: Tokens, reported: Tokens) {
        let mut state = self.state.lock();
        let Some(at) = state.pending.iter().rposition(|p| p.told == told) else { return };
        if let Some(counted) = state.pending.remove(at) {
            state.replies.push_back((counted.messages, f64::from(reported) - f64::from(counted.own)));
            if state.replies.len() > REPLIES {
                state.replies.pop_front();
            }
        }
    }
}

impl State {
    /// What the server's own rendering adds to a prompt of so many messages, erring high, and whether that is known.
    fn difference(&self, messages: usize, window: Tokens) -> (f64, bool) {
        let n = messages as f64;
        let Some(newest) = self.replies.back() else { return (f64::from(unknown(messages, window)), false) };
        // It tends to be a constant for the whole and one for each message.
        let slope = match self.replies.iter().find(|r| r.0 != newest.0) {
            Some(other) => (newest.1 - other.1) / (newest.0 as f64 - other.0 as f64),
            // One reply tells the whole, not what each new message will add.
            None => (newest.1 / (newest.0.max(1) as f64)).max(UNKNOWN_PER_MESSAGE),
        };
        let slope = slope.clamp(-UNKNOWN_PER_MESSAGE, 4.0 * UNKNOWN_PER_MESSAGE);
        let at = |r: &(usize, f64)| r.1 + slope * (n - r.0 as f64);
        (self.replies.iter().map(at).fold(f64::MIN, f64::max), true)
    }
}

/// Whether a server runs on this machine: the file it names is then the one that lies here. More narrowly than
/// [`Upstream::is_local`]: behind 0.0.0.0 may be a container with files of its own.
fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split(['/', '?']).next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host == "::1" || host.starts_with("127.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        for url in ["http://127.0.0.1:11434", "http://localhost:8080", "http://[::1]:8080", "https://LOCALHOST"] {
            assert!(is_local(url), "{url}");
        }
        for url in ["http://10.0.0.2:11434", "http://example.org", "http://localhost.example.org", "http://[fe80::1]:1"]
        {
            assert!(!is_local(url), "{url}");
        }
    }

    #[test]
    fn the_difference_to_another_rendering_is_learned_and_errs_high() {
        let mut state = State::default();
        assert_eq!((state.difference(10, 4096), state.difference(10, 128)), ((108.0, false), (76.0, false)));
        // Ollama's own template: 7 tokens more, and 2 a message.
        let truth = |n: usize| 7.0 + 2.0 * n as f64;
        state.replies.push_back((4, truth(4)));
        assert!(state.difference(6, 4096).1 && state.difference(6, 4096).0 >= truth(6));
        state.replies.push_back((6, truth(6)));
        for n in [6, 8, 40] {
            assert!((state.difference(n, 4096).0 - truth(n)).abs() < 0.01, "{n}");
        }
        // One that renders less.
        let mut less = State::default();
        less.replies.push_back((4, -30.0));
        assert_eq!(less.difference(8, 4096), (-6.0, true));
    }
}
