//! The window really loaded: asked of the server, kept a short while, corrected by what a refusal teaches; and, where the
//! server lets a client set it, the window that the settings ask for. It loads a model anew only where that gives another
//! window, and never back and forth.

mod goal;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::NumCtx;
use crate::conversation::Tokens;
use crate::upstream::turn::Turn;
use crate::upstream::{Error, Flavor, Kind, Loaded, Upstream};
use crate::wire::parts::Takes;

use super::afford::Machine;
pub use goal::Decision;
use goal::Goal;

/// How long an answer is taken as it is; after that it is asked anew.
const FRESH: Duration = Duration::from_secs(5);

/// How long a window holds that a refusal taught: then what the server says of itself counts again, and the window is tried.
const LEARNED: Duration = Duration::from_secs(300);

/// So many models are told apart. Names come from clients: they may not fill the memory.
const MOST: usize = 512;

/// A window, and where the number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Tokens; `None` when nobody knows yet. Then requests go on untouched until a refusal teaches it.
    pub tokens: Option<Tokens>,
    /// Where it comes from, in words: `asked of /props`, `set by us`, `learned from a refusal`, …
    pub source: String,
    /// The `num_ctx` to send with each request, where the server lets a client set it.
    pub set: Option<Tokens>,
    /// The trained length, where known. Never used as the window.
    pub trained: Option<Tokens>,
    /// The chat template, where the server shows it.
    pub template: Option<Arc<str>>,
    /// Where the model's file lies on the server's machine, where it says so.
    pub model_path: Option<Arc<str>>,
    /// How many parameters the model has, where the server says so.
    pub parameters: Option<u64>,
    /// What the model takes beside text, as far as the server says, or showed by a refusal.
    pub takes: Takes,
    /// Changes when the server loaded the model anew.
    pub identity: String,
    /// What happened to the window since it was last looked at; told once.
    pub changed: Option<Change>,
}

/// A window that is not what it was, or not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What it was, or was to be (tokens).
    pub was: Option<Tokens>,
    /// What the server was found to have (tokens).
    pub found: Option<Tokens>,
    /// What it is from now on (tokens).
    pub now: Option<Tokens>,
    /// Why.
    pub why: String,
}

/// What is remembered of one model of one server.
#[derive(Default)]
struct Entry {
    loaded: Loaded,
    /// When the server was asked; `None` when it is to be asked again.
    at: Option<Instant>,
    /// A window that a refusal taught.
    learned: Option<Learned>,
    /// The longest prompt that this load answered.
    answered: Tokens,
    /// What it refused to take beside text, and the identity of the load that did.
    refused: Option<(Takes, String)>,
    /// The window this model is to have, and how it is going with that.
    goal: Goal,
}

/// A window that a refusal taught.
#[derive(Debug, Clone)]
struct Learned {
    tokens: Tokens,
    /// The identity of the load it was learned of.
    identity: String,
    /// The server's own code said it, and not words alone.
    coded: bool,
    at: Instant,
}

impl Learned {
    /// Whether it still holds at a moment.
    fn holds(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < LEARNED
    }

    /// Whether it counts beside what the server says of itself: llama-server and vLLM name the very number that they go by, so
    /// words alone do not count there.
    fn counts_beside(&self, loaded: &Loaded, upstream: &Upstream) -> bool {
        let goes_by_it = matches!(
            upstream.kind(),
            Some(Kind::LlamaServer { .. } | Kind::Embedded | Kind::OpenAi(Flavor::Vllm | Flavor::SgLang))
        );
        self.coded || !goes_by_it || loaded.provisional || loaded.window.is_none()
    }
}

/// The windows of all models in use.
#[derive(Default)]
pub struct Windows {
    machine: Machine,
    entries: Mutex<HashMap<Key, Entry>>,
    /// One at a time asks about a model, and those who wait use what it found: two that decide at once might decide
    /// differently.
    turns: Mutex<HashMap<Key, Arc<Looking>>>,
    /// The largest window that clients asked for themselves.
    wanted: Mutex<HashMap<Key, Tokens>>,
}

/// A look at a model's window, what it was to be by the settings, and whether the model was loaded for it.
type Looking = Turn<(NumCtx, Loads, Window)>;

/// Whether a model may be loaded to know its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loads {
    /// A request for it follows, which would load it anyway.
    Yes,
    /// Somebody only wants to know.
    Never,
}

/// Whether the server starts another one for the model that a request names.
fn is_swapped(upstream: &Upstream) -> bool {
    upstream.kind() == Some(Kind::OpenAi(Flavor::LlamaSwap))
}

/// The names of an upstream and of a model.
type Key = (String, String);

impl Entry {
    /// Nothing is known of the model, and its server was not asked.
    fn unasked() -> Entry {
        Entry { loaded: Loaded::default(), at: None, learned: None, answered: 0, refused: None, goal: Goal::default() }
    }
}

impl Windows {
    /// No window is known yet. `machine` is where models are fitted.
    pub fn on(machine: Machine) -> Windows {
        Windows { machine, ..Windows::default() }
    }

    /// The machine that models are fitted to.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Notes the window that a client asked for itself, in Ollama's way. It holds where the settings leave the window to the
    /// server (`num_ctx = "loaded"`), for all requests to this model: clients ask for one each, some for another each turn,
    /// and Ollama would load the model anew every time. So the largest counts.
    pub async fn want(&self, upstream: &Upstream, model: &str, tokens: Tokens) {
        recognize(upstream).await;
        let mut wanted = self.wanted.lock();
        let key = key(upstream, model);
        // Names come from clients: they may not fill the memory.
        if wanted.get(&key).is_some_and(|most| *most >= tokens) || wanted.len() >= MOST {
            return;
        }
        if let Some(entry) = self.entries.lock().get_mut(&key) {
            // What was got was got for another number.
            (entry.at, entry.goal.settled) = (None, None);
        }
        wanted.insert(key, tokens);
    }

    /// The window of a model now. A server that does not answer leaves the last known one, or none.
    pub async fn of(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx) -> Window {
        self.known(upstream, model, num_ctx, Loads::Yes).await
    }

    /// The window that a model has, or would be loaded with. Loads nothing.
    pub async fn without_loading(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx) -> Window {
        self.known(upstream, model, num_ctx, Loads::Never).await
    }

    async fn known(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx, loads: Loads) -> Window {
        recognize(upstream).await;
        let wanted = self.wanted.lock().get(&key(upstream, model)).copied();
        let Some(wanted) = wanted.filter(|_| *num_ctx == NumCtx::Loaded && upstream.kind() == Some(Kind::Ollama))
        else {
            return self.seen(upstream, model, num_ctx, loads).await;
        };
        let window = self.seen(upstream, model, &NumCtx::Fixed(wanted), loads).await;
        Window { source: window.source.replacen("set by us", "set as a client asked", 1), ..window }
    }

    async fn seen(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx, loads: Loads) -> Window {
        // Nobody but us loads it: what it is to have is for us to say.
        let ours = upstream.kind() == Some(Kind::Embedded) && *num_ctx == NumCtx::Loaded;
        let num_ctx = if ours { &NumCtx::Fit } else { num_ctx };
        let key = key(upstream, model);
        let turn = self.turn(&key);
        let look = Box::pin(async { (*num_ctx, loads, self.look(upstream, model, num_ctx, key, loads).await) });
        let fits = |found: &(NumCtx, Loads, Window)| found.0 == *num_ctx && (found.1 == loads || found.1 == Loads::Yes);
        let ((.., window), shared) = turn.find(fits, look).await;
        // Who looked tells what happened.
        let changed = window.changed.filter(|_| !shared);
        Window { changed, ..window }
    }

    async fn look(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx, key: Key, loads: Loads) -> Window {
        let known = {
            let entries = self.entries.lock();
            let seen = |e: &Entry| {
                (
                    window(e, num_ctx),
                    e.loaded.identity.clone(),
                    e.at.is_some_and(|at| at.elapsed() < FRESH),
                    e.goal.clone(),
                )
            };
            entries.get(&key).map(seen)
        };
        if let Some((window, identity, true, _)) = &known
            && self.still(upstream, model, identity).await
        {
            return window.clone();
        }
        let (known, goal) = match known {
            Some((window, _, _, goal)) => (Some(window), goal),
            None => (None, Goal::default()),
        };
        if loads == Loads::Never && can_set(upstream, model) {
            return self.foretold(upstream, model, num_ctx, (known, goal)).await;
        }
        match self.ask(upstream, model, num_ctx, goal, loads).await {
            Ok((loaded, goal)) => {
                // What the server calls the model may be known by now.
                let key = self::key(upstream, model);
                let mut entries = self.entries.lock();
                let before = entries.remove(&key).unwrap_or_default();
                let same = before.loaded.identity == loaded.identity;
                let learned = before.learned.filter(|l| {
                    l.identity == loaded.identity && l.holds(Instant::now()) && l.counts_beside(&loaded, upstream)
                });
                let refused = before.refused.filter(|(_, id)| *id == loaded.identity);
                let answered = if same { before.answered } else { 0 };
                let entry = Entry { loaded, at: Some(Instant::now()), learned, answered, refused, goal };
                let mut out = window(&entry, num_ctx);
                out.changed = change(known.as_ref(), &out, &entry);
                entries.insert(key, entry);
                out
            }
            Err(why) => known.unwrap_or_else(|| unknown(num_ctx, upstream, &why)),
        }
    }

    /// The window that a model has, or would be loaded with. Nothing of it is kept: what a request finds once the model is loaded
    /// is not known by this. `known`: what was seen last.
    async fn foretold(
        &self,
        upstream: &Upstream,
        model: &str,
        num_ctx: &NumCtx,
        (known, goal): (Option<Window>, Goal),
    ) -> Window {
        match self.ask(upstream, model, num_ctx, goal, Loads::Never).await {
            Ok((loaded, goal)) => match known.filter(|known| known.identity == loaded.identity) {
                Some(known) => known,
                None => window(&Entry { loaded, goal, ..Entry::default() }, num_ctx),
            },
            Err(why) => known.unwrap_or_else(|| unknown(num_ctx, upstream, &why)),
        }
    }

    fn turn(&self, key: &Key) -> Arc<Looking> {
        let mut turns = self.turns.lock();
        if turns.len() >= MOST {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        Arc::clone(turns.entry(key.clone()).or_default())
    }

    /// Whether what was seen a moment ago still holds. Ollama loads models anew whenever any program asks for it, so
    /// there it is asked each time, as are llama-swap, which ends a model for another one, and the embedded engine, whose process
    /// may have ended; another server would have to be started anew.
    async fn still(&self, upstream: &Upstream, model: &str, identity: &str) -> bool {
        if !can_set(upstream, model) && !is_swapped(upstream) {
            return true;
        }
        upstream.identity(model).await.is_none_or(|now| now == identity)
    }

    /// Asks the server. A model that Ollama has not loaded yet, or not with the window it is to have, is loaded first,
    /// with the `num_ctx` that requests will carry: only then its window is known for sure.
    async fn ask(
        &self,
        upstream: &Upstream,
        model: &str,
        num_ctx: &NumCtx,
        mut goal: Goal,
        loads: Loads,
    ) -> Result<(Loaded, Goal), Error> {
        let mut loaded = upstream.loaded(model).await?;
        (goal.found, goal.spill) = (None, None);
        if loads == Loads::Yes && loaded.provisional && is_swapped(upstream) {
            // Only what runs tells its window. Where it cannot be started, the request is told why.
            let _ = upstream.load(model, None).await;
            loaded = upstream.loaded(model).await?;
        }
        if !can_set(upstream, model) {
            goal.cannot(num_ctx, upstream);
            return Ok((loaded, goal));
        }
        let set = goal.decide(num_ctx, upstream, model, &loaded, &self.machine).await;
        if !upstream.loads() || loads == Loads::Never && !goal.holds(&loaded) {
            return Ok((Loaded { window: set.or(loaded.window), ..loaded }, goal));
        }
        if goal.holds(&loaded) {
            goal.settle(&loaded);
            return Ok((loaded, goal));
        }
        match upstream.load(model, set).await {
            Ok(()) => {}
            Err(Error::Status { .. } | Error::Unloadable { .. }) if *num_ctx == NumCtx::Fit && set.is_some() => {
                // It does not fit after all: what the server would load by itself is better than nothing.
                goal.give_up("the server could not load it with the window that was to fit");
                upstream.load(model, None).await?;
            }
            Err(why) => return Err(why),
        }
        let mut loaded = upstream.loaded(model).await?;
        // At most twice: what was lowered once is not lowered again, only told.
        for _ in 0..2 {
            let Some(lower) = goal.spilled(&loaded) else { break };
            upstream.load(model, Some(lower)).await?;
            loaded = upstream.loaded(model).await?;
        }
        goal.settle(&loaded);
        Ok((loaded, goal))
    }

    /// Remembers a window that a refusal taught, for some minutes; `coded`: the server's own code said it. Returns whether it is
    /// news. One that is no larger than a prompt that this load answered is no window; and the server is asked again.
    pub fn learn(&self, upstream: &Upstream, model: &str, tokens: Tokens, coded: bool) -> bool {
        let mut entries = self.entries.lock();
        let entry = entries.entry(key(upstream, model)).or_insert_with(Entry::unasked);
        entry.at = None;
        if tokens <= entry.answered {
            return false;
        }
        let known = entry.learned.as_ref().filter(|l| l.holds(Instant::now())).map(|l| l.tokens);
        let identity = entry.loaded.identity.clone();
        entry.learned = Some(Learned { tokens, identity, coded, at: Instant::now() });
        entry.loaded.window != Some(tokens) && known != Some(tokens)
    }

    /// Notes that a prompt of so many tokens was answered: no window is smaller, whatever an error says.
    pub fn answered(&self, upstream: &Upstream, model: &str, prompt: Tokens) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&key(upstream, model)) else { return };
        entry.answered = entry.answered.max(prompt);
        entry.learned.take_if(|learned| learned.tokens <= prompt);
    }

    /// The longest prompt that this load answered.
    pub fn most_answered(&self, upstream: &Upstream, model: &str) -> Tokens {
        self.entries.lock().get(&key(upstream, model)).map_or(0, |entry| entry.answered)
    }

    /// Whether the slots of the server share one window, as far as it says.
    pub fn is_shared(&self, upstream: &Upstream, model: &str) -> bool {
        let entries = self.entries.lock();
        entries.get(&key(upstream, model)).is_some_and(|e| e.loaded.unified == Some(true) && e.loaded.slots != Some(1))
    }

    /// Remembers what a server refused to take beside text, for as long as it has the model loaded.
    pub fn refuses(&self, upstream: &Upstream, model: &str, takes: Takes) {
        let mut entries = self.entries.lock();
        let key = key(upstream, model);
        // Names come from clients: they may not fill the memory.
        if entries.len() >= MOST && !entries.contains_key(&key) {
            return;
        }
        let entry = entries.entry(key).or_default();
        let before = entry.refused.as_ref().map_or_else(Takes::default, |(before, _)| *before);
        entry.refused = Some((before.and(takes), entry.loaded.identity.clone()));
    }

    /// The window and the slots that a model was last seen with. Asks nobody.
    pub fn last(&self, upstream: &Upstream, model: &str) -> Option<(Option<Tokens>, Option<u32>)> {
        let entries = self.entries.lock();
        let entry = entries.get(&key(upstream, model))?;
        Some((window(entry, &NumCtx::Loaded).tokens, entry.loaded.slots))
    }

    /// What tells the load that a model was last seen with from others. Asks nobody.
    pub fn identity(&self, upstream: &Upstream, model: &str) -> Option<String> {
        self.entries.lock().get(&key(upstream, model)).map(|entry| entry.loaded.identity.clone())
    }

    /// What was decided for a model with `num_ctx = "fit"`, if anything was.
    pub fn decision(&self, upstream: &Upstream, model: &str) -> Option<Decision> {
        let key = key(upstream, model);
        self.entries.lock().get(&key).and_then(|entry| entry.goal.decision.clone())
    }

    /// Forgets what was asked of a server, so that the next request asks anew. What was decided stays.
    pub fn forget(&self, upstream: &Upstream) {
        let mut entries = self.entries.lock();
        for ((name, _), entry) in entries.iter_mut() {
            if name == upstream.name() {
                entry.at = None;
            }
        }
    }
}

/// What a server is decides what names mean, and what can be asked of it.
async fn recognize(upstream: &Upstream) {
    if upstream.kind().is_none() {
        // Whether it answers shows when it is asked.
        let _ = upstream.probe().await;
    }
}

/// Whether it is for us to say what window this model is loaded with.
fn can_set(upstream: &Upstream, model: &str) -> bool {
    match upstream.kind() {
        Some(Kind::Ollama) => !model.is_empty(),
        kind => kind.is_some_and(Kind::takes_num_ctx),
    }
}

fn key(upstream: &Upstream, model: &str) -> Key {
    (upstream.name().to_owned(), upstream.canonical(model))
}

/// The window where the server does not answer and never did.
fn unknown(num_ctx: &NumCtx, upstream: &Upstream, why: &Error) -> Window {
    let (tokens, source) = match num_ctx {
        NumCtx::Fixed(n) => (Some(*n), "configured".to_owned()),
        _ => (None, format!("unknown: {why}")),
    };
    let set = tokens.filter(|_| upstream.kind().is_some_and(Kind::takes_num_ctx));
    Window {
        tokens,
        source,
        set,
        trained: None,
        template: None,
        model_path: None,
        parameters: None,
        takes: Takes::default(),
        identity: String::new(),
        changed: None,
    }
}

fn window(entry: &Entry, num_ctx: &NumCtx) -> Window {
    let loaded = &entry.loaded;
    let asked = loaded.window.filter(|w| *w > 0);
    let set = entry.goal.set;
    let learned = entry.learned.as_ref().filter(|learned| learned.holds(Instant::now()));
    let (tokens, source) = match (learned, num_ctx, asked) {
        (Some(learned), _, _) => (Some(learned.tokens), "learned from a refusal".to_owned()),
        // A load by us shows in the server's answer too, clamped to what it could do.
        (None, _, Some(asked)) if set.is_some() && !loaded.provisional => (
            Some(asked.min(set.unwrap_or(asked))),
            format!("{}, confirmed by {}", entry.goal.because(), loaded.asked_of),
        ),
        (None, _, Some(asked)) if set == Some(asked) => (set, format!("{}, not loaded yet", entry.goal.because())),
        (None, NumCtx::Fixed(n), Some(asked)) if *n < asked => {
            (Some(*n), "configured, below the loaded window".to_owned())
        }
        (None, NumCtx::Fixed(n), None) => (Some(*n), "configured".to_owned()),
        (None, _, Some(asked)) => {
            let guess = if loaded.provisional { ", not loaded yet" } else { "" };
            (Some(asked), format!("asked of {}{guess}{}", loaded.asked_of, entry.goal.excuse()))
        }
        (None, _, None) => (None, format!("unknown: the server does not say{}", entry.goal.excuse())),
    };
    Window {
        tokens,
        source,
        set,
        trained: loaded.trained,
        template: loaded.template.text.as_deref().map(Arc::from),
        model_path: loaded.model_path.as_deref().map(Arc::from),
        parameters: loaded.parameters,
        takes: entry.refused.as_ref().map_or(loaded.takes, |(refused, _)| loaded.takes.and(*refused)),
        identity: loaded.identity.clone(),
        changed: None,
    }
}

/// What happened between two looks, or at the first one between what was asked for and what was got.
fn change(before: Option<&Window>, now: &Window, entry: &Entry) -> Option<Change> {
    if let Some(spill) = &entry.goal.spill {
        let was = before.and_then(|before| before.tokens).or(Some(spill.window));
        return Some(Change { was, found: Some(spill.window), now: now.tokens, why: spill.why.clone() });
    }
    let was = match before {
        Some(before) => before.tokens,
        None => entry.goal.set,
    };
    let found = entry.goal.found.or(now.tokens);
    if was.is_none() || found == was && now.tokens == was {
        return None;
    }
    let why = if let Some(found) = entry.goal.found {
        let then = match now.tokens {
            Some(now) if now == found => "and that is left so",
            _ => "and it was loaded again with the window it is to have",
        };
        format!("another program had the model loaded with {found} tokens, {then}")
    } else if before.is_none() || entry.goal.set.is_some_and(|set| now.tokens.is_some_and(|now| now < set)) {
        let trained = now.trained.is_some_and(|trained| now.tokens == Some(trained));
        let limit = if trained { ": the model was trained for no more" } else { "" };
        format!("the server loaded the model with a smaller window than was asked for{limit}")
    } else {
        "the server loaded the model anew, with another window".to_owned()
    };
    Some(Change { was, found, now: now.tokens, why })
}
