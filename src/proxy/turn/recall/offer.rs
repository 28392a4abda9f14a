//! Whether a request offers our tools, and what earlier replies recalled with them.

use crate::admission::Answer;
use crate::admission::taught;
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::proxy::turn::prepared::Prepared;
use crate::proxy::turn::recall::Answered;
use crate::store::Batch;
use crate::store::Event;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use std::collections::HashSet;
use tracing::{debug, warn};

use crate::config::Resolved;
use crate::conversation::{Digest, Message};
use crate::proxy::App;
use crate::proxy::state::headers;
use crate::recall;
use crate::wire::openai_chat::Request;

impl App {
    /// The body with what earlier replies recalled, as the server knows it, and its chain hashes.
    pub(in crate::proxy) fn woven(&self, seed: &str, body: Vec<Message>) -> (Vec<Message>, Vec<Digest>) {
        recall::weave(seed, body, |chain, reply| {
            self.store.recalled(chain, &reply.digest).unwrap_or_else(|e| {
                warn!(error = %e, "what an earlier reply recalled cannot be read");
                Vec::new()
            })
        })
    }

    /// Has a request offer the tool that says that a task is done, where that is wanted: from the first request on, since the
    /// tools stand at the head of a prompt. Returns whether it does.
    pub(in crate::proxy) fn offer_done(
        &self,
        request: &mut Request,
        policy: &Resolved,
        from_client: &HeaderMap,
    ) -> bool {
        let wanted = headers::switched(from_client, &headers::DONE).unwrap_or(policy.done_tool);
        let may = request.choices <= 1 && policy.policy.template.tool_role;
        wanted && may && recall::done::offer(request)
    }

    /// The tools of a request with ours behind them, where the model may have it at all.
    pub(in crate::proxy) fn tool_for(
        &self,
        request: &Request,
        policy: &Resolved,
        from_client: &HeaderMap,
    ) -> Option<Bytes> {
        let off = !policy.recall || headers::is_off(from_client, &headers::RECALL);
        if off || request.choices > 1 || !policy.policy.template.tool_role {
            return None;
        }
        recall::offered(request.own_tools()?, policy.digest_model.is_some())
    }
}

impl App {
    /// The answer to a call that is answered here, and the tools that it tells of.
    pub(in crate::proxy) fn told_of_tools(
        &self,
        prepared: &Prepared,
        answered: &Answered,
        (name, arguments): (&str, &str),
        room: Tokens,
    ) -> (String, Vec<String>) {
        let count = |text: &str| self.measure.count(&prepared.key, text);
        let (text, names) = match answered.answer(name, arguments, false, room, &count) {
            Some(Answer::Told(text, names)) => (text, names),
            // It could have gone to the client, had the reply ended in time.
            _ => ("[it was not called: the reply ended too early. Call it again]".to_owned(), Vec::new()),
        };
        let data = json!({"tools": names, "tokens": count(&text)});
        let event =
            Event { now_ms: now_ms(), conversation: Some(prepared.id.clone()), kind: "tools_told".into(), data };
        if let Err(e) = self.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
            debug!(error = %e, "an event was not recorded");
        }
        (text, names)
    }
}

impl Prepared {
    /// What is known of the tools when the reply begins.
    pub(in crate::proxy) fn answered(&self) -> Answered {
        let taught = match &self.admitted {
            Some(_) => taught(&self.request.conversation.body, &self.view),
            None => HashSet::new(),
        };
        Answered { admitted: self.admitted.clone(), taught, done: self.done }
    }
}
