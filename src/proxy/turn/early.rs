//! What is known of a reply before it is there, for a client that is waiting.

use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;

use super::prepared::Prepared;
use super::save::mark_record;
use super::situation::Situation;
use super::wished::Outcome;
use crate::conversation::Digest;
use crate::proxy::App;
use crate::wire::openai_chat::Request;

/// What is known of an answer so far.
#[derive(Default)]
pub(in crate::proxy) struct Known {
    /// Whether the client asked for a stream; `None` before its request was read.
    pub(in crate::proxy) stream: Option<bool>,
    /// The headers of ours, as far as they are known.
    pub(in crate::proxy) headers: HeaderMap,
    /// The conversation, once it is known and on record.
    pub(in crate::proxy) conversation: Option<String>,
    /// The model, once it is known.
    pub(in crate::proxy) model: Option<String>,
    /// What was done of what the client asks for.
    pub(in crate::proxy) outcome: Option<Outcome>,
    /// Where the reply will stand in the record.
    pub(in crate::proxy) tip: Option<Tip>,
}

/// What is known of a reply before it is there.
#[derive(Clone, Default)]
pub(in crate::proxy) struct Early(pub(in crate::proxy) Arc<Mutex<Known>>);

/// A history that is answered, by its place in the record.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Tip {
    pub(in crate::proxy) conversation: String,
    /// Chain digest of its last message.
    pub(in crate::proxy) chain: Digest,
    /// How many messages it has.
    pub(in crate::proxy) depth: usize,
}

impl Early {
    /// Notes what the client asked for.
    pub(in crate::proxy) fn read(&self, request: &Request) {
        let mut known = self.0.lock();
        (known.stream, known.model) = (Some(request.stream), Some(request.model.clone()));
    }

    /// Notes which conversation of the record a request goes on with.
    pub(in crate::proxy) fn goes_on(&self, situation: &Situation) {
        if situation.history.located.is_some() {
            self.0.lock().conversation = Some(situation.id().to_owned());
        }
    }

    /// Notes what is sent to the server.
    pub(in crate::proxy) fn prepared(&self, prepared: &Prepared, app: &App) {
        let mut known = self.0.lock();
        known.conversation = Some(prepared.id.clone());
        known.model = Some(prepared.request.model.clone());
        prepared.mark(&mut known.headers, &app.config.gauge);
        mark_record(app, &mut known.headers);
        known.outcome.clone_from(&prepared.told.client);
        known.tip = prepared.history.chain.last().map(|chain| Tip {
            conversation: prepared.id.clone(),
            chain: *chain,
            depth: prepared.history.chain.len(),
        });
    }

    /// What was done of what the client asks for, once it is known.
    pub(in crate::proxy) fn outcome(&self) -> Option<Outcome> {
        self.0.lock().outcome.clone()
    }

    /// The history that is answered, once it is known.
    pub(in crate::proxy) fn tip(&self) -> Option<Tip> {
        self.0.lock().tip.clone()
    }
}
