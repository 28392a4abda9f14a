//! Why a request is prepared, and what the stages of its way have in common.

use bytes::Bytes;

use crate::conversation::edit::View;
use crate::conversation::{Digest, Tokens};
use crate::measure::ModelKey;
use crate::plan::emergency::Refusal;
use crate::plan::rewrite::Out;
use crate::plan::{self, Plan};
use crate::wire::openai_chat::{self, Request};

/// Why a request is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Attempt {
    /// It came from the client.
    First,
    /// Nothing will be sent: no model is asked, either.
    DryRun,
    /// So, too, and whatever it takes: it is only counted, so no window is too small for it.
    Count,
    /// The server refused it.
    Emergency {
        /// What the refusal taught.
        refusal: Refusal,
        /// What we took the refused prompt for.
        counted: Tokens,
    },
}

impl Attempt {
    /// Whether nothing will be sent.
    pub(in crate::proxy) fn is_dry(self) -> bool {
        matches!(self, Attempt::DryRun | Attempt::Count)
    }
}

/// The layers that a plan's actions belong to.
pub(in crate::proxy) fn layers(plan: &Plan, strategy: plan::Strategy) -> Vec<&'static str> {
    let mut out = plan.actions.iter().map(|action| action.layer(strategy)).collect();
    in_order(&mut out);
    out
}

/// Brings layers in the order of their price, each once.
pub(in crate::proxy) fn in_order(layers: &mut Vec<&'static str>) {
    let order = ["evict", "clear", "summarize", "truncate"];
    layers.sort_by_key(|a| order.iter().position(|o| o == a));
    layers.dedup();
}

/// What tells one view from another, and the same view before another model, which counts it otherwise.
pub(in crate::proxy) fn fingerprint(view: &View, key: &ModelKey) -> Digest {
    Digest::of(&serde_json::to_vec(&(key.as_str(), &view.edits)).unwrap_or_default())
}

/// The bytes of a request with the messages of a view; the client's own where nothing differs.
pub(in crate::proxy) fn bytes_of(request: &Request, out: &[Out]) -> Bytes {
    let conversation = &request.conversation;
    let same = out.len() == conversation.system.len() + conversation.body.len()
        && out.iter().all(|m| !m.changed)
        && request.listed_tools.is_none();
    if same {
        return request.body.clone();
    }
    let messages: Vec<Bytes> = out.iter().map(|m| m.bytes.clone()).collect();
    openai_chat::write(request, &messages, &[])
}
