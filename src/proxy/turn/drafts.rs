//! A request that is being planned, and the view that comes of it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::situation::Situation;
use crate::conversation::Tokens;
use crate::conversation::edit::View;
use crate::measure::{self, Sureness};
use crate::plan::fit::Ours;
use crate::plan::rewrite::Out;
use crate::plan::{Counting, Plan, Policy};
use crate::proxy::state::live::Brief;
use crate::proxy::state::standing::Held;
use crate::proxy::state::view::Subject;
use crate::recall::AtHead;
use crate::store::Original;
use crate::wire::openai_chat::Request;

/// What planning goes on with.
pub(in crate::proxy) struct Draft<'a> {
    pub(in crate::proxy) situation: &'a Situation,
    pub(in crate::proxy) request: Arc<Request>,
    /// The same with the tools that the last prompt had, and without its messages.
    pub(in crate::proxy) held: Request,
    /// The policy that is planned by: the request's, or a milder or harder one.
    pub(in crate::proxy) policy: Policy,
    pub(in crate::proxy) old: View,
    /// What was counted before anything was planned.
    pub(in crate::proxy) counted: Option<(Tokens, Sureness)>,
    pub(in crate::proxy) warnings: Vec<String>,
    /// What a model wrote for the fold, if anything, once one was asked.
    pub(in crate::proxy) written: Option<Option<Brief>>,
    /// How long other models were waited for.
    pub(in crate::proxy) wrote: std::time::Duration,
    /// Digests by message, once they were asked for.
    pub(in crate::proxy) digests: Option<HashMap<usize, String>>,
    /// Tools of ours that the model has from the first prompt on.
    pub(in crate::proxy) at_head: AtHead,
    /// What people want of the conversation.
    pub(in crate::proxy) wanted: Held,
    /// What the next brief is to keep above all.
    pub(in crate::proxy) focus: Option<String>,
}

impl Draft<'_> {
    /// For whoever changes the view.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        Subject {
            conversation: &self.request.conversation,
            id: self.situation.id(),
            key: &self.situation.key,
            own: self.situation.own.as_deref(),
            counting: Counting::default(),
            old: &self.old,
        }
    }

    /// Has the request offer the tools of ours that a plan goes with.
    pub(in crate::proxy) fn go_with(&mut self, ours: Ours, tools: Option<&Bytes>) {
        if let Some(tools) = tools.filter(|_| ours.offered && !self.request.offers()) {
            Arc::make_mut(&mut self.request).offer(tools.clone());
        }
        if !ours.offered && self.request.offers() {
            Arc::make_mut(&mut self.request).withdraw();
        }
        if ours.at_head == 0 && self.at_head != AtHead::default() {
            self.at_head.withdraw(Arc::make_mut(&mut self.request));
            self.at_head = AtHead::default();
        }
    }

    /// What became of the request.
    pub(in crate::proxy) fn settled(self) -> Settled {
        let Draft { request, held, at_head, wanted, warnings, .. } = self;
        // It shares the request's parts, which then need not be copied.
        drop(held);
        Settled { request: Arc::unwrap_or_clone(request), at_head, wanted, warnings }
    }
}

/// What became of a request once it was planned.
pub(in crate::proxy) struct Settled {
    pub(in crate::proxy) request: Request,
    pub(in crate::proxy) at_head: AtHead,
    pub(in crate::proxy) wanted: Held,
    pub(in crate::proxy) warnings: Vec<String>,
}

/// A view that was drafted, with its bytes and size.
pub(in crate::proxy) struct Drafted {
    pub(in crate::proxy) view: View,
    pub(in crate::proxy) originals: Vec<Original>,
    pub(in crate::proxy) out: Vec<Out>,
    pub(in crate::proxy) body: Bytes,
    pub(in crate::proxy) tokens: Tokens,
    pub(in crate::proxy) sureness: Sureness,
    pub(in crate::proxy) plan: Plan,
    /// Tokens of the tools of ours in it that the client's history did not have.
    pub(in crate::proxy) added: Tokens,
    /// What the client asked for as the longest reply, and what was forwarded, where that is less.
    pub(in crate::proxy) lowered: Option<(Tokens, Tokens)>,
}

/// The size of a request: by the model's own vocabulary where its file is on this machine, else by the server.
pub(in crate::proxy) async fn exact(
    draft: &Draft<'_>,
    body: &Bytes,
) -> Result<(Tokens, Sureness), crate::upstream::Error> {
    let Situation { upstream, own, .. } = draft.situation;
    if let Some(own) = own {
        let media = measure::count::media(&draft.request.conversation);
        if let Some(exact) = own.total(upstream, body, media, draft.situation.known_window()).await {
            return Ok((exact.tokens, exact.sureness()));
        }
    }
    Ok((upstream.count(body).await?, Sureness::Counted))
}
