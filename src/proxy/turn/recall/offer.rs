//! Whether a request offers our tools, and what earlier replies recalled with them.

use bytes::Bytes;
use http::HeaderMap;
use tracing::warn;

use crate::config::Resolved;
use crate::conversation::{Digest, Message};
use crate::proxy::App;
use crate::proxy::state::headers;
use crate::recall::{self, AtHead};
use crate::wire::openai_chat::Request;

/// The body with what earlier replies recalled, as the server knows it, and its chain hashes.
pub(in crate::proxy) fn woven(app: &App, seed: &str, body: Vec<Message>) -> (Vec<Message>, Vec<Digest>) {
    recall::weave(seed, body, |chain, reply| {
        app.store.recalls().before(chain, &reply.digest).unwrap_or_else(|e| {
            warn!(error = %e, "what an earlier reply recalled cannot be read");
            Vec::new()
        })
    })
}

/// Has a request offer the tools that say that a task is done, and that keep files for later conversations, where these are wanted:
/// from the first request on, since the tools stand at the head of a prompt. Returns those that it offers.
pub(in crate::proxy) fn offer_at_head(
    app: &App,
    request: &mut Request,
    policy: &Resolved,
    from_client: &HeaderMap,
) -> AtHead {
    let done = headers::switched(from_client, &headers::DONE).unwrap_or(policy.done_tool);
    let memory = app.config.memory.is_some() && !headers::is_off(from_client, &headers::MEMORY);
    let may = request.choices <= 1 && policy.policy.template.tool_role;
    AtHead { done: done && may, memory: memory && may }.offer(request)
}

/// The tools of a request with ours behind them, where the model may have it at all.
pub(in crate::proxy) fn tool_for(
    _app: &App,
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
