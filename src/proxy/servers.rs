//! Which server serves which model, and with which window.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::json;
use tracing::{debug, warn};

use super::routing::{Ends, Route, Routing};
use super::{App, Error};
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::measure::window::{Change, Window};
use crate::proxy::lookout::{look, servers};
use crate::route::{Server, Standing, choose};
use crate::store::{Batch, Event};
use crate::upstream::{Kind, PROBE_LIMIT, Upstream};
use crate::wire::openai_chat::Request;

/// The servers behind the proxy.
pub(super) struct Servers {
    /// Those that are named; where none is, all places where one may be.
    pub(super) all: Vec<Arc<Upstream>>,
    /// Which of them list which model.
    places: Mutex<HashMap<String, Vec<usize>>>,
    /// What is known of them, for the choice between several.
    pub(super) routing: Routing,
}

impl Servers {
    /// These; which models they list shows when one is asked for.
    pub(super) fn of(all: Vec<Arc<Upstream>>) -> Servers {
        Servers { routing: Routing::of(all.len()), all, places: Mutex::default() }
    }

    /// The one of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.all.iter().find(|upstream| upstream.name() == name)
    }

    /// The index of the one of this name.
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|upstream| upstream.name() == name)
    }

    /// Those that listed a model before, while they are there.
    fn places_of(&self, model: &str) -> Option<Vec<usize>> {
        let places = self.places.lock().get(model).cloned()?;
        let there: Vec<usize> = places.into_iter().filter(|at| self.all[*at].is_there()).collect();
        (!there.is_empty()).then_some(there)
    }

    /// Notes that a server was not reached. Returns whether that is news, and there are others.
    pub(super) fn is_newly_down(&self, upstream: &Upstream, why: &str) -> bool {
        let Some(at) = self.index_of(upstream.name()).filter(|_| self.all.len() > 1) else { return false };
        let known = self.routing.is_down(at);
        self.routing.down(at, why);
        !known
    }

    /// Whether some server of a model may still get a request that was sent to these.
    pub(super) fn has_other(&self, tried: &[usize], model: &str) -> bool {
        // Those that take every name are in no list.
        let others = self.places_of(model).unwrap_or_else(|| (0..self.all.len()).collect());
        others.into_iter().any(|other| !tried.contains(&other) && self.routing.standing(other) != Standing::Draining)
    }

    /// Whether a server of a model that was not tried is ready and has a larger window than this, as far as it was seen.
    pub(super) fn has_larger(&self, app: &App, tried: &[usize], model: &str, window: Tokens) -> bool {
        let others = self.places_of(model).unwrap_or_else(|| (0..self.all.len()).collect());
        let seen = |at: usize| app.measure.windows.last(&self.all[at], model).and_then(|(window, _)| window);
        let ready = |at: usize| !tried.contains(&at) && self.routing.standing(at) == Standing::Ready;
        others.into_iter().any(|at| ready(at) && seen(at).is_some_and(|larger| larger > window))
    }

    /// Forgets which servers list which model: one of them is back, and may have another.
    pub(super) fn forget_places(&self) {
        self.places.lock().clear();
    }
}

/// The upstream that serves a model. With one upstream there is nothing to choose: it knows its own names best.
pub(in crate::proxy) async fn upstream_of(app: &App, model: &str) -> Result<Arc<Upstream>, Error> {
    upstream_near(app, model, None).await
}

/// The upstream that serves a model: the one of this name where that is one of several, else the first that is ready.
pub(in crate::proxy) async fn upstream_near(
    app: &App,
    model: &str,
    name: Option<&str>,
) -> Result<Arc<Upstream>, Error> {
    let among = serving(app, model).await?;
    let standing = |at: &usize| app.servers.routing.standing(*at);
    let named = name.and_then(|name| app.servers.index_of(name)).filter(|at| among.contains(at));
    let ready = || among.iter().copied().find(|at| standing(at) == Standing::Ready);
    let left = || among.iter().copied().find(|at| standing(at) == Standing::Down);
    let at = named.or_else(ready).or_else(left).or(among.first().copied());
    at.map(|at| Arc::clone(&app.servers.all[at])).ok_or_else(|| no_model(model, Vec::new()))
}

/// The upstream for a request, and the way there where there are several: the one that is done with its prompt first. `whose`: the
/// mark of its client's key.
///
/// # Errors
/// 404 where none serves the model, 503 where those that do are drained, or `tried` already.
pub(in crate::proxy) async fn route(
    app: &App,
    request: &Request,
    whose: &str,
    tried: &[usize],
) -> Result<(Arc<Upstream>, Option<Route>), Error> {
    let model = &request.model;
    let among = serving(app, model).await?;
    not_drained(app, &among)?;
    if let [only] = among[..] {
        return Ok((Arc::clone(&app.servers.all[only]), None));
    }
    let ends = Ends::of(&request.conversation, whose, model);
    let (prompt, held) = app.servers.routing.held(&ends, &among);
    let seen = join_all(among.iter().map(|at| seen(app, *at, model))).await;
    let servers: Vec<Server> = (0..among.len())
        .map(|n| app.servers.routing.server(among[n], &app.servers.all[among[n]], seen[n], held[n]))
        .collect();
    let before = tried;
    let tried: Vec<usize> = among.iter().enumerate().filter(|(_, at)| tried.contains(at)).map(|(n, _)| n).collect();
    let reply = request.max_tokens.unwrap_or(0).min(app.config.window.output_reserved);
    let choice = choose(prompt, reply, &servers, &tried).ok_or_else(|| {
        Error::client(503, "no_upstream", format!("no other server of `{model}` is left"), "try again in a moment")
    })?;
    let at = among[choice.at];
    let upstream = Arc::clone(&app.servers.all[at]);
    debug!(upstream = upstream.name(), because = choice.because.as_str(), prompt, held = choice.held, "routed");
    Ok((upstream, Some(Route::begin(&app.servers, (at, before), choice, (&ends, held[choice.at])))))
}

/// [`upstream_of`], for a request that is passed on as it is.
///
/// # Errors
/// As [`route`].
pub(in crate::proxy) async fn upstream_to_pass(app: &App, model: &str) -> Result<Arc<Upstream>, Error> {
    not_drained(app, &serving(app, model).await?)?;
    upstream_of(app, model).await
}

/// # Errors
/// 503 where none of these may get a request.
fn not_drained(app: &App, among: &[usize]) -> Result<(), Error> {
    if among.iter().any(|at| app.servers.routing.standing(*at) != Standing::Draining) {
        return Ok(());
    }
    let names: Vec<&str> = among.iter().map(|at| app.servers.all[*at].name()).collect();
    let message = format!("no server takes new requests for this model: drained are {}", names.join(", "));
    Err(Error::client(503, "draining", message, "`windowsill drain NAME --undo` takes that back"))
}

/// The window and the slots that a server was last seen with. One that was never seen is asked, unless it does not answer anyway.
async fn seen(app: &App, at: usize, model: &str) -> (Option<Tokens>, Option<u32>) {
    let upstream = &app.servers.all[at];
    if let Some(seen) = app.measure.windows.last(upstream, model) {
        return seen;
    }
    if app.servers.routing.standing(at) == Standing::Ready {
        let asked = window_without_loading(app, upstream, model);
        let _ = tokio::time::timeout(PROBE_LIMIT, asked).await;
    }
    app.measure.windows.last(upstream, model).unwrap_or_default()
}

/// The indexes of the servers that serve a model, in the order in which they are named.
///
/// # Errors
/// 503 where there is no server, 404 where none serves it.
async fn serving(app: &App, model: &str) -> Result<Vec<usize>, Error> {
    if servers(app).next().is_none() {
        look(app).await;
    }
    let servers: Vec<(usize, &Arc<Upstream>)> = servers(app).collect();
    let (first, _) = *servers.first().ok_or_else(|| {
        let usual: Vec<&str> = app.config.machine.usual.iter().map(|(_, url)| url.as_str()).collect();
        let hint = format!("start one (they are looked for at {}), or name it with --upstream URL", usual.join(", "));
        Error::client(503, "no_upstream", "no inference server is configured and none was found", &hint)
    })?;
    if servers.len() == 1 || model.is_empty() {
        return Ok(vec![first]);
    }
    if let Some(known) = app.servers.places_of(model) {
        return Ok(known);
    }
    // One that did not answer a moment ago is asked only where no other one has the model.
    let (up, down): (Vec<_>, Vec<_>) =
        servers.into_iter().partition(|(at, _)| app.servers.routing.standing(*at) != Standing::Down);
    let mut names = Vec::new();
    for some in [up, down] {
        let found = listed(app, &some, model, &mut names).await;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(no_model(model, names))
}

/// Those of some servers that serve a model. A single-model llama-server takes every name: it is taken where no list has it, with
/// others that list the same models.
async fn listed(app: &App, some: &[(usize, &Arc<Upstream>)], model: &str, names: &mut Vec<String>) -> Vec<usize> {
    let lists = join_all(some.iter().map(|(_, upstream)| upstream.models())).await;
    let (mut found, mut any) = (Vec::new(), Vec::new());
    for ((at, upstream), list) in some.iter().zip(lists) {
        let list: Vec<String> = match list {
            Ok(list) => list.into_iter().map(|model| model.id).collect(),
            Err(e) => {
                app.servers.routing.down(*at, &e.to_string());
                continue;
            }
        };
        if list.iter().any(|id| same_model(id, model)) {
            found.push(*at);
        } else if upstream.kind() == Some(Kind::LlamaServer { router: false }) {
            any.push((*at, list.clone()));
        }
        names.extend(list);
    }
    if !found.is_empty() {
        app.servers.places.lock().insert(model.to_owned(), found.clone());
        return found;
    }
    let same = any.first().map(|(_, list)| list.clone());
    any.into_iter().filter(|(_, list)| Some(list) == same.as_ref()).map(|(at, _)| at).collect()
}

fn no_model(model: &str, mut names: Vec<String>) -> Error {
    names.truncate(20);
    let near = names.iter().max_by(|a, b| strsim::jaro_winkler(a, model).total_cmp(&strsim::jaro_winkler(b, model)));
    let hint = near.map_or_else(String::new, |n| format!("did you mean `{n}`? Served: {}", names.join(", ")));
    Error::client(404, "model_not_found", format!("no upstream serves the model `{model}`"), &hint)
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
