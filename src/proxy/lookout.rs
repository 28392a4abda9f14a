//! Servers that nobody named are looked for where they usually listen, and again while none is there: one that starts later is
//! found by the next request, or by itself within seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tracing::info;

use super::App;
use crate::upstream::{Kind, Upstream};

/// Time between two looks while no server is there.
const LOOK: Duration = Duration::from_secs(3);

/// Time between two questions to a server that did not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Time between two looks at an address where something else answers: it is not to be bothered.
const OTHERS: Duration = Duration::from_secs(60);

/// The servers behind this proxy, each with its number: those that were named, and of others those that are there.
pub(in crate::proxy) fn servers(app: &App) -> impl Iterator<Item = (usize, &Arc<Upstream>)> {
    app.servers.all.iter().enumerate().filter(|(_, upstream)| upstream.is_there())
}

/// Looks where servers usually are that nobody named and that are not there yet. Returns whether one was found.
pub(in crate::proxy) async fn look(app: &App) -> bool {
    let away = app.servers.all.iter().filter(|upstream| !upstream.is_there());
    let found = join_all(away.map(|upstream| async move { is_found(upstream, upstream.probe().await.ok()) })).await;
    found.contains(&true)
}

/// Looks again every few seconds while no server is there. Only where none is named.
pub(in crate::proxy) fn keep_looking(app: &App) {
    if !app.config.upstreams.is_empty() {
        return;
    }
    let all = app.servers.all.clone();
    app.tasks.spawn(async move {
        let mut others: Vec<Option<Instant>> = vec![None; all.len()];
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if all.iter().any(|upstream| upstream.is_there()) {
                continue;
            }
            for (upstream, asked) in all.iter().zip(&mut others) {
                if asked.is_some_and(|asked| asked.elapsed() < OTHERS) {
                    continue;
                }
                let probed = upstream.probe().await;
                *asked = probed.as_ref().is_err_and(|e| !e.is_connect()).then(Instant::now);
                is_found(upstream, probed.ok());
            }
        }
    });
}

/// Asks servers that did not answer, until they do. With one alone there is nothing to choose.
pub(in crate::proxy) fn keep_asking(app: &App) {
    if app.servers.all.len() < 2 {
        return;
    }
    let servers = Arc::clone(&app.servers);
    app.tasks.spawn(async move {
        let mut looks = tokio::time::interval(AGAIN);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let down = servers.all.iter().enumerate().filter(|(at, _)| servers.routing.is_down(*at));
            // The list of models: one that is loading answers that with an error.
            let asked = join_all(down.map(|(at, upstream)| async move { (at, upstream.models().await.is_ok()) })).await;
            for (at, _) in asked.into_iter().filter(|(_, answers)| *answers) {
                if servers.routing.up(at) {
                    servers.forget_places();
                    info!(upstream = servers.all[at].name(), "the server answers again");
                }
            }
        }
    });
}

fn is_found(upstream: &Upstream, kind: Option<Kind>) -> bool {
    if let Some(kind) = kind {
        info!("upstream {} at {}: {}", upstream.name(), upstream.url(), kind.as_str());
    }
    kind.is_some()
}
