//! Where several windowsills share a record: what others did is taken up before a request goes on from it.

use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::conversation::Tokens;
use crate::measure::{ModelKey, Sample};
use crate::proxy::App;
use crate::proxy::routing::Served;

/// Conversations whose servers are looked up at a start, those used last.
const SERVED: usize = 1024;

/// What a conversation's state says to others than its own windowsill.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::proxy) struct Told {
    /// What became of its last request at its server, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) served: Option<Served>,
    /// What its last reply taught of its model, where the record is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) learned: Option<Learned>,
}

/// What a reply taught of the tokens that a model makes of texts. Those who share a record learn the same, for what a new rewrite shows
/// depends on it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(in crate::proxy) struct Learned {
    sample: [u64; 7],
    reported: Tokens,
}

impl Learned {
    pub(in crate::proxy) fn of(sample: &Sample, reported: Tokens) -> Learned {
        Learned { sample: sample.numbers(), reported }
    }
}

impl Told {
    /// Whether it says nothing.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.served.is_none() && self.learned.is_none()
    }

    /// The same of a request that is under way at one of several servers, if it is.
    pub(in crate::proxy) fn open_where(self, is_open: bool) -> Told {
        if is_open { Told { served: Some(Served::Open), ..Told::default() } } else { self }
    }

    fn in_state(state: &str) -> Told {
        serde_json::from_str::<State>(state).map(|state| state.told).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    told: Told,
}

/// Takes up what other windowsills recorded. What is remembered of the conversations that they wrote to is forgotten, as at a restart:
/// the record knows better. Where nobody shares the record, it does nothing.
pub async fn caught_up(app: &App) {
    app.store.elsewhere().caught_up().await;
    for id in app.store.elsewhere().changed() {
        app.lives.changed_elsewhere(&id);
    }
    for update in app.store.elsewhere().updated() {
        let Told { served, learned } = Told::in_state(&update.state);
        if let Some(at) = app.servers.index_of(&update.upstream) {
            app.servers.routing.served(&update.id, at, served);
        }
        if let Some(Learned { sample, reported }) = learned
            && let Some(sample) = Sample::of_numbers(&sample)
        {
            app.measure.learn(&ModelKey::new(&update.upstream, &update.model), &sample, reported);
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
        let served = serde_json::from_value::<State>(row.state).ok().and_then(|state| state.told.served);
        // One that was under way has ended, with whoever sent it.
        let left = served.filter(|served| *served != Served::Open);
        if let Some(at) = left.and_then(|_| app.servers.index_of(&row.upstream)) {
            app.servers.routing.served(&row.id, at, left);
        }
    }
}
