//! Which models of which server clients use at this moment, and what of ours is under way there: so that no work of ours has a
//! server put one model into memory in the place of another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::App;
use super::pool::Working;
use crate::upstream::{Kind, Place, Upstream};

/// Who uses what, by the name of the upstream.
#[derive(Default)]
pub(super) struct Traffic(Mutex<HashMap<String, Server>>);

#[derive(Default)]
struct Server {
    /// Requests of clients under way, or waiting, by model.
    uses: HashMap<String, usize>,
    /// The model of the last one.
    last: Option<String>,
    /// Work of ours: its model, and what stops it.
    errands: Vec<(String, CancellationToken)>,
}

impl Server {
    /// Whether a client uses another model, or waits for it.
    fn uses_another(&self, model: &str) -> bool {
        self.uses.keys().any(|used| used != model)
    }

    /// Stops work for models that nobody uses, where somebody uses others: the server cannot give them up before it is done.
    fn give_way(&mut self) {
        for (model, stop) in &self.errands {
            if !self.uses.contains_key(model) && self.uses_another(model) {
                stop.cancel();
            }
        }
        self.errands.retain(|(_, stop)| !stop.is_cancelled());
    }
}

impl Traffic {
    /// Whether a client uses a model of an upstream, or waits for it.
    pub(super) fn uses(&self, upstream: &Upstream, model: &str) -> bool {
        let all = self.0.lock();
        all.get(upstream.name()).is_some_and(|server| server.uses.contains_key(&upstream.canonical(model)))
    }
}

/// A client's request under way, until it is dropped.
pub(super) struct Using {
    traffic: Arc<Traffic>,
    upstream: String,
    model: String,
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut all = self.traffic.0.lock();
        let Some(server) = all.get_mut(&self.upstream) else { return };
        if let Some(uses) = server.uses.get_mut(&self.model) {
            *uses -= 1;
            if *uses == 0 {
                server.uses.remove(&self.model);
            }
        }
        server.give_way();
    }
}

/// Work of ours under way, until it is dropped.
pub(super) struct Errand {
    traffic: Arc<Traffic>,
    upstream: String,
    stop: CancellationToken,
    /// Its slot, where nobody waits for it.
    working: Option<Working>,
}

impl Errand {
    /// Done once a client wants another model of the server, or its slot.
    pub(super) async fn stopped(&self) {
        let Some(working) = &self.working else { return self.stop.cancelled().await };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = working.stopped() => {}
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(server) = self.traffic.0.lock().get_mut(&self.upstream) {
            server.errands.retain(|(_, stop)| !stop.is_cancelled());
        }
    }
}

/// For whom a model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A conversation that has this model: who wants it in memory has it there.
    Own,
    /// The user, who has this model write briefs, digests or titles: it may be loaded where that pushes no other one out.
    Other,
}

impl Traffic {
    fn begin(self: &Arc<Self>, upstream: &Upstream, model: &str) -> Using {
        let (name, model) = (upstream.name().to_owned(), key(upstream, model));
        let mut all = self.0.lock();
        let server = all.entry(name.clone()).or_default();
        *server.uses.entry(model.clone()).or_default() += 1;
        server.last = Some(model.clone());
        server.give_way();
        Using { traffic: Arc::clone(self), upstream: name, model }
    }

    /// Work of ours for a model begins, which a request waits for or waited for.
    pub(super) fn errand(self: &Arc<Self>, upstream: &Upstream, model: &str) -> Errand {
        let stop = CancellationToken::new();
        let name = upstream.name().to_owned();
        self.0.lock().entry(name.clone()).or_default().errands.push((key(upstream, model), stop.clone()));
        Errand { traffic: Arc::clone(self), upstream: name, stop, working: None }
    }

    /// Whether a client uses another model of a server, or waits for it.
    fn uses_another(&self, upstream: &Upstream, model: &str) -> bool {
        let model = key(upstream, model);
        self.0.lock().get(upstream.name()).is_some_and(|server| server.uses_another(&model))
    }

    /// The model that clients asked a server for last, where it loads by request.
    fn last(&self, upstream: &Upstream) -> Option<String> {
        self.0.lock().get(upstream.name())?.last.clone()
    }
}

/// What tells the models of a server apart. Where no request loads one, they are all the same here.
fn key(upstream: &Upstream, model: &str) -> String {
    if upstream.kind().is_some_and(|kind: Kind| !kind.loads_by_request()) {
        return String::new();
    }
    upstream.canonical(model)
}

/// A client's request for a model begins. Work of ours for other models of that server ends.
pub(in crate::proxy) async fn using(app: &App, upstream: &Upstream, model: &str) -> Using {
    if upstream.kind().is_none() {
        // What the server is decides which names mean the same. Whether it answers shows when it is asked.
        let _ = upstream.probe().await;
    }
    app.traffic.begin(upstream, model)
}

/// Begins work of ours that no request waits for, or only while `needed` is not zero. `None` where the model is not in memory, a
/// client uses another one of that server or waits for it, or requests take all that the server works on at once.
pub(in crate::proxy) async fn begin_errand(
    app: &App,
    upstream: &Upstream,
    model: &str,
    (asked, needed): (Asked, &Arc<AtomicUsize>),
) -> Option<Errand> {
    let mut errand = app.traffic.errand(upstream, model);
    if app.traffic.uses_another(upstream, model) || !moves_nothing(app, upstream, model, asked).await {
        return None;
    }
    errand.working = Some(app.turn.pools.of(upstream.name(), &upstream.canonical(model)).work(needed)?);
    // Somebody may have come meanwhile.
    (!errand.stop.is_cancelled()).then_some(errand)
}

/// Whether a request of ours to a model leaves in memory what is there.
pub(in crate::proxy) async fn moves_nothing(app: &App, upstream: &Upstream, model: &str, asked: Asked) -> bool {
    match upstream.place(model).await {
        Place::Fixed | Place::Loaded => true,
        Place::Unreached => false,
        Place::Away { alone } => alone && asked == Asked::Other && !app.traffic.uses_another(upstream, model),
        // What was asked for last is in memory.
        Place::Untold => match app.traffic.last(upstream) {
            Some(last) => last == key(upstream, model),
            None => asked == Asked::Other,
        },
    }
}

/// Why a model is not asked where [`moves_nothing`] says no, behind its name.
pub(in crate::proxy) async fn why_not(upstream: &Upstream) -> &'static str {
    match upstream.alive().await {
        Ok(()) => "is not in memory, or would push another one out",
        Err(_) => "is not asked: its server does not answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{KindHint, client};

    fn server() -> Upstream {
        Upstream::new(client().unwrap(), "up".into(), "http://127.0.0.1:9", KindHint::Auto).unwrap()
    }

    #[test]
    fn work_gives_way_to_who_wants_another_model() {
        let (traffic, up) = (Arc::new(Traffic::default()), server());
        let ours = traffic.errand(&up, "a");
        let same = traffic.begin(&up, "a");
        assert!(!ours.stop.is_cancelled() && !traffic.uses_another(&up, "a"));
        // Somebody still uses it: the other one waits for that anyway.
        let other = traffic.begin(&up, "b");
        assert!(!ours.stop.is_cancelled() && traffic.uses_another(&up, "a"));
        drop(same);
        assert!(ours.stop.is_cancelled());
        drop(other);
        let ours = traffic.errand(&up, "a");
        assert!(!ours.stop.is_cancelled() && !traffic.uses_another(&up, "a"));
        let _other = traffic.begin(&up, "b");
        assert!(ours.stop.is_cancelled());
        assert_eq!(traffic.last(&up).as_deref(), Some("b"));
        drop(ours);
        assert!(traffic.0.lock()["up"].errands.is_empty());
    }
}
