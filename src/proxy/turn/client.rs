//! What was done of what a client's own API asked for ([`super::wished`]): weighed, told, and answered where the brief is all that
//! the client wants.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use super::drafts::{Draft, Drafted, exact};
use super::prepared::Prepared;
use super::relay::{self, Answer};
use super::save::mark_record;
use super::wished::Outcome;
use crate::conversation::Tokens;
use crate::conversation::edit::{Edit, View};
use crate::conversation::managed::Taken;
use crate::plan::{self, Cost, Regions, rewrite};
use crate::proxy::{App, Error};
use crate::upstream::event::Event;
use crate::upstream::unique::{unique, unix_seconds};
use crate::wire::openai_chat;
use crate::wire::reply::COMPACTION;

/// Weighs what was done with a history, where the client asks: to the token where prompts can be counted.
pub(in crate::proxy) async fn outcome(
    app: &App,
    draft: &Draft<'_>,
    drafted: &Drafted,
    before: &Regions,
) -> Option<Outcome> {
    let edits = draft.situation.client.as_ref()?;
    let view = &drafted.view;
    let kinds = [edits.thinking.map(|_| Taken::Thinking), edits.uses.as_ref().map(|_| Taken::Uses)];
    let part = |kind: Taken| (kind, plan::client::part(&draft.request.conversation, view, kind));
    let parts: Vec<(Taken, (View, usize))> = kinds.into_iter().flatten().map(part).collect();
    let counts = !parts.is_empty() || draft.situation.attempt.is_dry();
    let original = match view.edits.is_empty() || !counts {
        true => drafted.tokens.saturating_sub(drafted.added),
        false => weighed(app, draft, &View::default(), before).await,
    };
    let mut taken = Vec::new();
    for (kind, (part, count)) in parts.into_iter().filter(|(_, (_, count))| *count > 0) {
        let left = weighed(app, draft, &part, before).await;
        taken.push((kind, count, original.saturating_sub(left)));
    }
    let compact = edits.compact.as_ref();
    let is_new = view.brief() != draft.situation.history.stored.brief();
    let told = compact.is_some_and(|compact| compact.is_now() || is_new);
    let brief = view.brief().filter(|_| told && !draft.situation.attempt.is_dry());
    let whole = compact.is_some_and(|compact| compact.whole);
    let alone = whole || compact.is_some_and(|compact| compact.pause) && brief.is_some();
    let spent = match brief {
        Some(_) => app.lives.with(draft.situation.id(), |live| live.work.spent.take()).unwrap_or_default(),
        None => (0, 0),
    };
    Some(Outcome { original, taken, brief: brief.map(Arc::from), spent, alone })
}

/// Prompt tokens of the client's history with some edits and none of our tools: counted where that can be done.
async fn weighed(app: &App, draft: &Draft<'_>, view: &View, before: &Regions) -> Tokens {
    let request = &draft.request;
    if draft.situation.can_count() {
        let body = match view.edits.is_empty() {
            true => request.body.clone(),
            false => {
                let out = rewrite::rewrite(&request.conversation, view, &draft.policy.template);
                let messages: Vec<Bytes> = out.into_iter().map(|m| m.bytes).collect();
                openai_chat::with_messages(&request.body, &messages)
            }
        };
        if let Ok((tokens, _)) = exact(draft, &body).await {
            return tokens;
        }
    }
    let key = &draft.situation.key;
    let costs = app.measure.costs(key, &request.conversation);
    let all = costs.iter().map(Cost::total).fold(0, Tokens::saturating_add);
    let saved = |edit: &Edit| {
        let put = app.measure.edit_cost(key, &request.conversation, edit);
        let was = match edit {
            Edit::Text { at, .. } => costs.get(*at).map(|cost| cost.text.saturating_add(cost.media)),
            Edit::Arguments { at, call, .. } => costs.get(*at).and_then(|cost| cost.calls.get(*call).copied()),
            Edit::Recalled { .. } | Edit::Fold { .. } => None,
        };
        was.unwrap_or(0).saturating_sub(put)
    };
    let saved = view.edits.iter().map(saved).fold(0, Tokens::saturating_add);
    before.system.saturating_add(before.tools).saturating_add(all.saturating_sub(saved))
}

/// Whether the client wants the brief of a request and nothing else.
pub(in crate::proxy) fn is_alone(prepared: &Prepared) -> bool {
    prepared.told.client.as_ref().is_some_and(|outcome| outcome.alone)
}

/// Whether the client gets a brief that it asked for.
pub(super) fn is_told(prepared: &Prepared) -> bool {
    prepared.told.client.as_ref().is_some_and(|outcome| outcome.brief.is_some())
}

/// Whether it is a summary of all messages that the client asks for.
pub(in crate::proxy) fn is_whole(prepared: &Prepared) -> bool {
    prepared.policy.policy.client.compact.as_ref().is_some_and(|compact| compact.whole)
}

/// The reply that only says that the request was summarized: the brief itself is with what is known of it early. Nothing is
/// sent to a server.
pub(in crate::proxy) fn alone(app: &App, prepared: &Prepared) -> Result<Response<Answer>, Error> {
    let stream = prepared.request.stream;
    let (object, says) = if stream { ("chat.completion.chunk", "delta") } else { ("chat.completion", "message") };
    let mut choice = json!({"index": 0, "finish_reason": COMPACTION});
    choice[says] = json!({"role": "assistant", "content": ""});
    let said: Value = json!({
        "id": format!("chatcmpl-{}", unique(24)), "object": object, "created": unix_seconds(), "model": prepared.request.model,
        "choices": [choice], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    });
    let (answer, kind) = match stream {
        true => {
            let events = stream::iter([Event::chunk(said), Event::done()]).boxed();
            (Answer::Events(events), "text/event-stream")
        }
        false => (Answer::Body(relay::full(said.to_string())), "application/json"),
    };
    let mut response = Response::new(answer);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    prepared.mark(headers, &app.config.gauge);
    mark_record(app, headers);
    Ok(response)
}
