//! The window really loaded: asked of the server, kept a short while, corrected by what a refusal teaches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::NumCtx;
use crate::conversation::Tokens;
use crate::upstream::{Kind, Loaded, Upstream};

/// How long an answer is taken as it is; after that it is asked anew.
const FRESH: Duration = Duration::from_secs(5);

/// A window, and where the number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Tokens; `None` when nobody knows yet. Then requests go on untouched until a refusal teaches it.
    pub tokens: Option<Tokens>,
    /// Where it comes from, in words: `asked of /props`, `set by us`, `learnt from a refusal`, …
    pub source: String,
    /// The `num_ctx` to send with each request, where the server lets a client set it.
    pub set: Option<Tokens>,
    /// The trained length, where known. Never used as the window.
    pub trained: Option<Tokens>,
    /// The chat template, where the server shows it.
    pub template: Option<Arc<str>>,
    /// Where the model's file lies on the server's machine, where it says so.
    pub model_path: Option<Arc<str>>,
    /// Changes when the server loaded the model anew.
    pub identity: String,
}

/// What is remembered of one model of one server.
struct Entry {
    loaded: Loaded,
    at: Instant,
    /// A window that a refusal taught, and the identity of the load it was learnt of.
    learnt: Option<(Tokens, String)>,
}

/// The windows of all models in use.
#[derive(Default)]
pub struct Windows {
    entries: Mutex<HashMap<(String, String), Entry>>,
}

impl Windows {
    /// The window of a model now. A server that does not answer leaves the last known one, or none.
    pub async fn of(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx) -> Window {
        let key = (upstream.name().to_owned(), model.to_owned());
        let known = {
            let entries = self.entries.lock();
            entries.get(&key).map(|e| (window(e, upstream, num_ctx), e.at.elapsed() < FRESH))
        };
        if let Some((window, true)) = known {
            return window;
        }
        match self.ask(upstream, model, num_ctx).await {
            Ok(loaded) => {
                let mut entries = self.entries.lock();
                let learnt = entries.remove(&key).and_then(|e| e.learnt).filter(|(_, id)| *id == loaded.identity);
                let entry = Entry { loaded, at: Instant::now(), learnt };
                let out = window(&entry, upstream, num_ctx);
                entries.insert(key, entry);
                out
            }
            Err(why) => known.map(|(w, _)| w).unwrap_or_else(|| {
                let (tokens, source) = match num_ctx {
                    NumCtx::Fixed(n) => (Some(*n), "configured".to_owned()),
                    _ => (None, format!("unknown: {why}")),
                };
                let set = fixed(num_ctx, upstream);
                Window { tokens, source, set, trained: None, template: None, model_path: None, identity: String::new() }
            }),
        }
    }

    /// Asks the server. A model that Ollama has not loaded yet is loaded first, with the `num_ctx` that requests will
    /// carry, since only then its window is known for sure.
    async fn ask(&self, upstream: &Upstream, model: &str, num_ctx: &NumCtx) -> Result<Loaded, crate::upstream::Error> {
        if upstream.kind().is_none() {
            upstream.probe().await?;
        }
        let loaded = upstream.loaded(model).await?;
        if loaded.provisional && upstream.kind() == Some(Kind::Ollama) && !model.is_empty() {
            upstream.load(model, fixed(num_ctx, upstream)).await?;
            return upstream.loaded(model).await;
        }
        Ok(loaded)
    }

    /// Remembers a window that a refusal taught. Returns whether it is news.
    pub fn learn(&self, upstream: &Upstream, model: &str, tokens: Tokens) -> bool {
        let mut entries = self.entries.lock();
        let key = (upstream.name().to_owned(), model.to_owned());
        let entry =
            entries.entry(key).or_insert_with(|| Entry { loaded: Loaded::default(), at: Instant::now(), learnt: None });
        let news = entry.loaded.window != Some(tokens) && entry.learnt.as_ref().map(|l| l.0) != Some(tokens);
        entry.learnt = Some((tokens, entry.loaded.identity.clone()));
        news
    }

    /// Forgets what was asked of a server, so that the next request asks anew.
    pub fn forget(&self, upstream: &Upstream) {
        self.entries.lock().retain(|(name, _), _| name != upstream.name());
    }
}

/// The `num_ctx` to send, where the server takes one.
fn fixed(num_ctx: &NumCtx, upstream: &Upstream) -> Option<Tokens> {
    match num_ctx {
        NumCtx::Fixed(n) if upstream.kind() == Some(Kind::Ollama) => Some(*n),
        _ => None,
    }
}

fn window(entry: &Entry, upstream: &Upstream, num_ctx: &NumCtx) -> Window {
    let loaded = &entry.loaded;
    let asked = loaded.window.filter(|w| *w > 0);
    let set = fixed(num_ctx, upstream);
    let (tokens, source) = match (&entry.learnt, num_ctx, asked) {
        (Some((n, _)), _, _) => (Some(*n), "learnt from a refusal".to_owned()),
        // A load by us shows in the server's answer too, clamped to what it could do.
        (None, NumCtx::Fixed(n), Some(asked)) if set.is_some() && !loaded.provisional => {
            (Some(asked.min(*n)), format!("set by us, confirmed by {}", loaded.asked_of))
        }
        (None, NumCtx::Fixed(n), Some(asked)) if *n < asked => {
            (Some(*n), "configured, below the loaded window".to_owned())
        }
        (None, NumCtx::Fixed(n), None) => (Some(*n), "configured".to_owned()),
        (None, _, Some(asked)) => {
            let guess = if loaded.provisional { ", not loaded yet" } else { "" };
            (Some(asked), format!("asked of {}{guess}", loaded.asked_of))
        }
        (None, _, None) => (None, "unknown: the server does not say".to_owned()),
    };
    Window {
        tokens,
        source,
        set,
        trained: loaded.trained,
        template: loaded.chat_template.as_deref().map(Arc::from),
        model_path: loaded.model_path.as_deref().map(Arc::from),
        identity: loaded.identity.clone(),
    }
}
