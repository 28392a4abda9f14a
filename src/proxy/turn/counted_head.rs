//! System prompt and tools by the server's own count. An estimate of a long list of tools may be off by half, and what is wrong with
//! it would be looked for in the history: rewrites would come too late, and leave room for less than the next steps need.

use bytes::Bytes;

use super::drafts::Draft;
use crate::conversation::edit::View;
use crate::conversation::{Role, Tokens};
use crate::measure::count::Counted;
use crate::measure::{ModelKey, own, tokens};
use crate::plan::rewrite::Out;
use crate::proxy::App;
use crate::proxy::state::gauge::{Marks, without_ours};
use crate::upstream::Upstream;
use crate::wire::openai_chat::{self, Request};

/// What stands for the messages where the head alone is counted: templates want a user.
const STAND_IN: &str = ".";

/// Leaves out what takes room beside messages.
const BARE: [(&str, Option<&str>); 2] = [("tools", None), ("tool_choice", None)];

/// About what it takes.
const STAND_IN_TOKENS: Tokens = tokens::AROUND + 1;

/// Has the server count the brief of a view where nobody has: an estimate would stand for as long as the brief does, and what is wrong
/// with it would be told of the history.
pub(in crate::proxy) async fn count_brief(
    app: &App,
    upstream: &Upstream,
    model: (&ModelKey, Option<&own::Model>),
    request: &Request,
    view: &View,
) {
    let Some(text) = Marks::brief_of(request, view).filter(|_| upstream.can_count()) else { return };
    let Some((mark, None)) = Marks::of(&app.measure, model, request, view, (false, false)).brief else { return };
    let mut counted = [0; 2];
    for (tokens, said) in counted.iter_mut().zip([STAND_IN, &text]) {
        let body = openai_chat::write(request, &[openai_chat::new_message("user", said)], &BARE);
        let Ok(told) = upstream.count(&body).await else { return };
        *tokens = told;
    }
    let [stand_in, whole] = counted;
    app.measure.firsts.note(mark, (whole + 1).saturating_sub(stand_in));
}

/// System prompt and tools of the messages `out`, as the server counts them; `None` where it did not, and where that leaves less of
/// the `exact` count of the whole than messages take at least. Each is asked about once, and kept for all conversations that
/// have the same.
pub(in crate::proxy) async fn counted_head(
    app: &App,
    draft: &Draft<'_>,
    out: &[Out],
    exact: Tokens,
) -> Option<Counted> {
    let request = &draft.request;
    let asks = draft.situation.policy.digest_model.is_some();
    let tool = (request.offers(), asks);
    let marks = Marks::of(&app.measure, (&draft.situation.key, None), request, &View::default(), tool);
    let ours = marks.ours.map_or(0, |(_, tokens)| tokens);
    let heads = &app.measure.heads;
    let leading: Vec<Bytes> =
        out.iter().take_while(|m| m.at.is_none() && m.role == Role::System).map(|m| m.bytes.clone()).collect();
    let mut messages = leading.clone();
    messages.push(openai_chat::new_message("user", STAND_IN));
    let system = match heads.of(&marks.system) {
        Some(known) => known,
        None => {
            let body = openai_chat::write(request, &messages, &BARE);
            let counted = draft.situation.upstream.count(&body).await.ok()?.saturating_sub(STAND_IN_TOKENS);
            heads.note(marks.system, counted);
            counted
        }
    };
    let tools = match heads.of(&marks.tools) {
        _ if request.conversation.tools.is_none() => 0,
        Some(known) => known.saturating_add(ours),
        None => {
            let body = openai_chat::write(request, &messages, &[]);
            let whole = draft.situation.upstream.count(&body).await.ok()?.saturating_sub(STAND_IN_TOKENS);
            let counted = whole.saturating_sub(system);
            if let Some(tools) = without_ours(counted, ours) {
                heads.note(marks.tools, tools);
            }
            counted
        }
    };
    let least = Tokens::try_from(out.len() - leading.len()).unwrap_or(Tokens::MAX).saturating_mul(tokens::AROUND);
    (system.saturating_add(tools).saturating_add(least) <= exact).then_some(Counted {
        system,
        tools,
        costs: Vec::new(),
    })
}
