//! Where several windowsills share a record: what others did is taken up before a request goes on from it.

use serde::Deserialize;
use tracing::debug;

use crate::proxy::App;
use crate::proxy::routing::Served;

/// Conversations whose servers are looked up at a start, those used last.
const SERVED: usize = 1024;

/// What a conversation's state says of its servers.
#[derive(Deserialize)]
struct State {
    #[serde(default)]
    served: Option<Served>,
}

/// Takes up what other windowsills recorded. What is remembered of the conversations that they wrote to is forgotten, as at a restart:
/// the record knows better. Where nobody shares the record, it does nothing.
pub async fn caught_up(app: &App) {
    app.store.caught_up().await;
    for id in app.store.changed_elsewhere() {
        app.lives.changed_elsewhere(&id);
    }
    for update in app.store.updated_elsewhere() {
        let served = serde_json::from_str::<State>(&update.state).ok().and_then(|state| state.served);
        if let Some(at) = app.servers.index_of(&update.upstream) {
            app.servers.routing.served(&update.id, at, served);
        }
    }
}

/// Takes up what servers were left with before this windowsill was started, by what the record says of the conversations that were used
/// last. With one server there is nothing to choose.
pub(in crate::proxy) fn know_served(app: &App) {
    if app.servers.all.len() < 2 {
        return;
    }
    let rows = match app.store.conversations(SERVED) {
        Ok(rows) => rows,
        Err(error) => return debug!(%error, "what servers hold is not known"),
    };
    for row in rows.into_iter().rev() {
        let served = serde_json::from_value::<State>(row.state).ok().and_then(|state| state.served);
        // One that was under way has ended, with whoever sent it.
        let left = served.filter(|served| *served != Served::Open);
        if let Some(at) = left.and_then(|_| app.servers.index_of(&row.upstream)) {
            app.servers.routing.served(&row.id, at, left);
        }
    }
}
