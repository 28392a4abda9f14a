//! A server that has no reply, before anything of one was given to the client: the request goes to the next server, once each. A
//! prompt that may have ended a server is tried at one more alone.

use tracing::{info, warn};

use super::prepared::Prepared;
use super::refused::Refused;
use crate::proxy::App;
use crate::proxy::Error;
use crate::proxy::state::notes::note_event;
use crate::upstream::{self, Reply, Upstream};

/// The servers that a request was sent to, by their index.
#[derive(Debug, Clone, Default)]
pub(super) struct Tried {
    pub(super) servers: Vec<usize>,
    /// Those of them that only had too small a window.
    outgrown: Vec<usize>,
    /// How many of them may have ended over its prompt.
    ended: usize,
}

/// Why a server has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    /// It was not reached, or is loading or full: it did nothing for the request.
    Unready(String),
    /// It broke off, or failed at work.
    Failed(String),
}

/// Whether there is no reply, and the server is to blame.
fn why<T>(sent: &Result<(T, Reply), Error>) -> Option<Why> {
    match sent {
        Err(Error::Upstream { source, .. }) => match source {
            upstream::Error::Connect { .. } | upstream::Error::Timeout { .. } => Some(Why::Unready(source.to_string())),
            upstream::Error::Broken { .. } | upstream::Error::Stream { .. } | upstream::Error::Protocol { .. } => {
                Some(Why::Failed(source.to_string()))
            }
            upstream::Error::Status { status, .. } if status.is_server_error() => {
                Some(Why::Unready(source.to_string()))
            }
            _ => None,
        },
        Ok((_, reply)) => match reply.status.as_u16() {
            503 => Some(Why::Unready("it answered with status 503".to_owned())),
            status @ (500 | 502 | 504) => Some(Why::Failed(format!("it answered with status {status}"))),
            _ => None,
        },
        Err(_) => None,
    }
}

/// Whether a prompt that its server refused as too long may fit another one, which was not asked yet.
pub(super) fn has_larger(app: &App, prepared: &Prepared, refused: &Refused) -> bool {
    let Some(route) = prepared.sending.route.as_ref().filter(|_| !refused.echoed) else { return false };
    let model = &prepared.request.model;
    // Where it says nothing of its window, that is less than what it refused.
    let window = refused.refusal.window.or(prepared.window.tokens).unwrap_or(prepared.made.tokens);
    app.servers.has_larger(app, &[route.tried(), &[route.at()]].concat(), model, window)
}

impl Tried {
    /// Whether a request that its server refused as too long goes to one with a larger window.
    pub(super) fn outgrew(
        &mut self,
        app: &App,
        (upstream, at): (&Upstream, Option<usize>),
        id: &str,
        does: bool,
    ) -> bool {
        let Some(at) = at.filter(|_| does) else { return false };
        self.servers.push(at);
        self.outgrown.push(at);
        app.servers.routing.moved(at);
        info!(
            conversation = id,
            upstream = upstream.name(),
            "the prompt is too long there: it goes to a server with a larger window"
        );
        let because = "the prompt is too long there, and another one has a larger window";
        note_event(app, id, "failover", serde_json::json!({"upstream": upstream.name(), "because": because}));
        true
    }

    /// Whether the request is to go to another server. Notes why. `at`: the server's index, where there are several.
    pub(super) fn goes_on<T>(
        &mut self,
        app: &App,
        (upstream, at): (&Upstream, Option<usize>),
        (id, model): (&str, &str),
        sent: &Result<(T, Reply), Error>,
    ) -> bool {
        let (Some(at), Some(why)) = (at, why(sent)) else { return false };
        self.servers.push(at);
        let text = match &why {
            Why::Unready(text) | Why::Failed(text) => text,
        };
        let unreached = matches!((&why, sent), (Why::Unready(_), _) | (Why::Failed(_), Err(_)));
        if unreached {
            app.servers.routing.down(at, text);
        }
        self.ended += usize::from(matches!(why, Why::Failed(_)));
        if !app.servers.has_other(&self.servers, model) {
            // What is left are those with a small window: there it is rewritten.
            let outgrown = std::mem::take(&mut self.outgrown);
            self.servers.retain(|tried| !outgrown.contains(tried));
        }
        if self.ended > 1 || !app.servers.has_other(&self.servers, model) {
            return false;
        }
        app.servers.routing.moved(at);
        warn!(conversation = id, upstream = upstream.name(), why = %crate::plain::line(text), "the request goes to another server");
        note_event(app, id, "failover", serde_json::json!({"upstream": upstream.name(), "because": text}));
        true
    }
}
