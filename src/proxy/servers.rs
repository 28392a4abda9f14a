//! Which server serves which model, and with which window.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tracing::{debug, warn};

use super::{App, Error};
use crate::clock::now_ms;
use crate::measure::window::{Change, Window};
use crate::proxy::lookout::{look, servers};
use crate::store::{Batch, Event};
use crate::upstream::{Kind, Upstream};

/// The servers behind the proxy.
pub(super) struct Servers {
    /// Those that are named; where none is, all places where one may be.
    pub(super) all: Vec<Arc<Upstream>>,
    /// Which of them lists which model.
    places: Mutex<HashMap<String, usize>>,
}

impl Servers {
    /// These; which models they list shows when one is asked for.
    pub(super) fn of(all: Vec<Arc<Upstream>>) -> Servers {
        Servers { all, places: Mutex::default() }
    }

    /// The one of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.all.iter().find(|upstream| upstream.name() == name)
    }

    /// The one that listed a model before, while it is there.
    fn place_of(&self, model: &str) -> Option<&Arc<Upstream>> {
        let at = self.places.lock().get(model).copied()?;
        self.all.get(at).filter(|upstream| upstream.is_there())
    }
}

/// The upstream that serves a model. With one upstream there is nothing to choose: it knows its own names best.
pub(in crate::proxy) async fn upstream_of(app: &App, model: &str) -> Result<Arc<Upstream>, Error> {
    if servers(app).next().is_none() {
        look(app).await;
    }
    let servers: Vec<(usize, &Arc<Upstream>)> = servers(app).collect();
    let (_, first) = servers.first().ok_or_else(|| {
        let usual: Vec<&str> = app.config.machine.usual.iter().map(|(_, url)| url.as_str()).collect();
        let hint = format!("start one (they are looked for at {}), or name it with --upstream URL", usual.join(", "));
        Error::client(503, "no_upstream", "no inference server is configured and none was found", &hint)
    })?;
    if servers.len() == 1 || model.is_empty() {
        return Ok(Arc::clone(first));
    }
    if let Some(known) = app.servers.place_of(model) {
        return Ok(Arc::clone(known));
    }
    let mut names = Vec::new();
    let mut any = None;
    for (at, upstream) in servers {
        let Ok(models) = upstream.models().await else { continue };
        if models.iter().any(|m| same_model(&m.id, model)) {
            app.servers.places.lock().insert(model.to_owned(), at);
            return Ok(Arc::clone(upstream));
        }
        // A single-model llama-server takes every name.
        if upstream.kind() == Some(Kind::LlamaServer { router: false }) {
            any = any.or(Some(upstream));
        }
        names.extend(models.into_iter().map(|m| m.id));
    }
    if let Some(upstream) = any {
        return Ok(Arc::clone(upstream));
    }
    names.truncate(20);
    let near = names.iter().max_by(|a, b| strsim::jaro_winkler(a, model).total_cmp(&strsim::jaro_winkler(b, model)));
    let hint = near.map_or_else(String::new, |n| format!("did you mean `{n}`? Served: {}", names.join(", ")));
    Err(Error::client(404, "model_not_found", format!("no upstream serves the model `{model}`"), &hint))
}

/// The window of a model now. That it changed is logged, and is an event.
pub(in crate::proxy) async fn window_of(app: &App, upstream: &Upstream, model: &str) -> Window {
    let window = app.measure.windows.of(upstream, model, &app.config.window.num_ctx).await;
    if let Some(change) = &window.changed {
        note_change(app, upstream, model, &window, change);
    }
    window
}

/// The window that a model has, or would be loaded with: who only looks has no model loaded.
pub(in crate::proxy) async fn window_without_loading(app: &App, upstream: &Upstream, model: &str) -> Window {
    app.measure.windows.without_loading(upstream, model, &app.config.window.num_ctx).await
}

fn note_change(app: &App, upstream: &Upstream, model: &str, window: &Window, change: &Change) {
    let (was, found, now, why) = (change.was, change.found, change.now, &change.why);
    warn!(upstream = upstream.name(), model, was, found, window = now, why, "the window changed");
    let event = Event {
        now_ms: now_ms(),
        conversation: None,
        kind: "window_changed".into(),
        data: json!({
            "model": upstream.canonical(model), "upstream": upstream.name(), "was": was, "found": found, "window": now, "why": why,
            "source": window.source,
        }),
    };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
}

/// Whether two names mean the same model: Ollama's ignore case, and `:latest` may be left out.
pub(in crate::proxy) fn same_model(listed: &str, asked: &str) -> bool {
    let bare = |s: &str| s.strip_suffix(":latest").unwrap_or(s).to_lowercase();
    listed == asked || bare(listed) == bare(asked)
}
