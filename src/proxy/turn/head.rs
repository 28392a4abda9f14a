//! What stands before the messages of a prompt.

use std::sync::Arc;

use bytes::Bytes;

use super::admission::{Admitted, admit};
use super::recall::offer::{offer_at_head, tool_for};
use super::situation::Situation;
use super::system::{Indexed, index_system};
use crate::proxy::{App, Error};
use crate::recall::AtHead;
use crate::wire::openai_chat::Request;

/// What stands before the messages of a prompt: the client's tools and instructions, by index where that is asked for, and the
/// tools of ours.
pub(in crate::proxy) struct Head {
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    pub(in crate::proxy) tools: Option<Bytes>,
    /// Tools of ours that the model has from the first prompt on.
    pub(in crate::proxy) at_head: AtHead,
    /// The client's tools and the list that stands for them, where they are named by index.
    pub(in crate::proxy) admitted: Option<Arc<Admitted>>,
    /// What was left out of the system text, where that is said by index.
    pub(in crate::proxy) indexed: Option<Indexed>,
    /// What the client is told.
    pub(in crate::proxy) warnings: Vec<String>,
}

/// Puts together what stands before the messages.
pub(in crate::proxy) fn head(app: &App, situation: &Situation, request: &mut Request) -> Result<Head, Error> {
    let Situation { history, policy, from_client, .. } = situation;
    let mut warnings = Vec::new();
    let admitted = admit(app, request, situation, &mut warnings)?;
    let at_head = offer_at_head(app, request, policy, from_client);
    let tools = tool_for(app, request, policy, from_client);
    let (listed, readable) = (admitted.as_deref(), tools.is_some());
    let indexed = index_system(app, request, situation, listed, readable, &mut warnings)?;
    // Where the view had no room for it, it stays out while the view is the same.
    let wanted = history.old().lacks() && !history.old().bare || indexed.is_some();
    if let Some(tools) = tools.as_ref().filter(|_| wanted) {
        request.offer(tools.clone());
    }
    Ok(Head { tools, at_head, admitted, indexed, warnings })
}
