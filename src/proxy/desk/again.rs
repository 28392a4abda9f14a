//! A request of the record is sent again with another brief, focus or line, to see what the model answers then. The conversation
//! stays as it is: its history, its view and its gauge. Only what a model read and wrote for a brief is accounted for, as ever.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Fold, Ground, ground_at, written_for};
use crate::apply::{Words, Written};
use crate::conversation::edit::View;
use crate::conversation::{Role, Tokens};
use crate::plan::{Facts, rewrite};
use crate::proxy::servers::upstream_of;
use crate::proxy::state::headers;
use crate::proxy::state::steer::Steer;
use crate::proxy::state::view::{Intent, Subject, make_view, planned};
use crate::proxy::traffic::using;
use crate::proxy::turn::steering::{focused, nothing, steered};
use crate::proxy::turn::{LARGEST_BUFFERED, read_up_to, too_large};
use crate::proxy::{App, Error, aside};
use crate::upstream::ChatOptions;
use crate::wire::{json as spelled, openai_chat};

/// What is to be other than it was.
#[derive(Debug, Default)]
pub struct Other {
    /// The request that had so many messages; without it, the last one.
    pub messages: Option<usize>,
    /// The brief, in a person's words.
    pub brief: Option<String>,
    /// What a brief that a model writes is to dwell on.
    pub focus: Option<String>,
    /// The share of the window from which the history is folded.
    pub line: Option<f64>,
}

impl Other {
    /// # Errors
    /// 400 where nothing is to be other, or a value makes no sense.
    fn check(&self) -> Result<(), Error> {
        let wrong = |message: &str, hint: &str| Err(Error::client(400, "bad_request", message, hint));
        if self.brief.is_none() && self.focus.is_none() && self.line.is_none() {
            return wrong("nothing is to be other", "send a `brief`, a `focus` or a `line`");
        }
        if self.brief.is_some() && self.focus.is_some() {
            return wrong("a `brief` of yours has no `focus`", "send one of them");
        }
        if self.line.is_some_and(|line| !(line > 0.0 && line <= 1.0)) {
            return wrong("`line` is a share of the window", "send a number above 0 and at most 1, such as 0.5");
        }
        self.focus.as_deref().map_or(Ok(()), focused)
    }
}

/// Sends a request of a conversation again with something other in its view. Returns the answer, and the one on record.
///
/// # Errors
/// 400 for what makes no sense, 404 for an unknown conversation, 409 where nothing would be other; what the server says else.
pub async fn again(app: &Arc<App>, id: &str, other: Other) -> Result<Value, Error> {
    other.check()?;
    let (owned, id) = (Arc::clone(app), id.to_owned());
    let work = async move { asked_again(&owned, &id, &other).await };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

async fn asked_again(app: &Arc<App>, id: &str, other: &Other) -> Result<Value, Error> {
    let ground = ground_at(app, id, other.messages).await?;
    let body = &ground.request.conversation.body;
    let count = body.len();
    if other.messages.is_some_and(|messages| messages != count) || count == 0 {
        let message = format!("the last request of this conversation had {count} messages");
        return Err(Error::client(404, "not_found", message, "name a request by how many messages it had"));
    }
    let recorded = app.store.messages_and_reply(id)?.get(count).map(|row| openai_chat::recorded(row.raw.clone()));
    let recorded = recorded.filter(|message| message.role == Role::Assistant);
    let recorded = recorded.and_then(|message| serde_json::from_slice::<Value>(message.bytes()).ok());
    let (view, by_model) = other_view(app, &ground, other).await?;
    let reply = answer(app, &ground, &view).await?;
    let number = |path: &str| reply.pointer(path).and_then(Value::as_u64);
    Ok(json!({
        "conversation": ground.row.id, "messages": count, "has_head": ground.has_head,
        "brief": view.brief(), "written_by_a_model": by_model,
        "recorded": recorded, "answer": reply.pointer("/choices/0/message"),
        "finish_reason": reply.pointer("/choices/0/finish_reason"),
        "prompt_tokens": number("/usage/prompt_tokens"), "completion_tokens": number("/usage/completion_tokens"),
    }))
}

/// The view with what is to be other, and whether a model wrote its brief.
async fn other_view(app: &Arc<App>, ground: &Ground, other: &Other) -> Result<(View, bool), Error> {
    let (mut view, mut by_model) = (ground.old().clone(), false);
    if other.line.is_some() || other.focus.is_some() {
        (view, by_model) = folded_anew(app, ground, other).await?;
    }
    if let Some(text) = &other.brief {
        let subject = Subject { old: &view, ..ground.subject() };
        view = steered(app, &subject, &Steer::Brief(text.clone()))?.0;
    }
    Ok((view, by_model))
}

/// The history as its client sent it, folded at another line; without one, all that can be folded.
async fn folded_anew(app: &Arc<App>, ground: &Ground, other: &Other) -> Result<(View, bool), Error> {
    let conversation = &ground.request.conversation;
    let bare = View::default();
    let fresh = app.measure.facts(&ground.situation.key, conversation, &bare, None);
    let facts = Facts { view: fresh.view, edit_costs: fresh.edit_costs, told: None, ..ground.facts.clone() };
    let line = other.line.map_or(0, |share| (f64::from(facts.window) * share) as Tokens);
    let plan = planned(conversation, &facts, &ground.policy().policy, Intent::Line(line));
    let plan = plan.ok_or_else(|| nothing("nothing is folded at that line"))?;
    let fold = Fold::of(ground, plan, other.focus.as_deref())?;
    let text = match &other.brief {
        Some(_) => None,
        None => written_for(app, ground, &bare, &fold).await.flatten(),
    };
    let written = text.as_deref().map(|text| Written { text, read: fold.to, unread: &[] });
    let (keep, pins) = (ground.policy().keep, &*ground.held.texts);
    let words = Words { focus: fold.focus, written, keep, pins, ..Words::default() };
    let subject = Subject { old: &bare, ..ground.subject() };
    Ok((make_view(app, &subject, &fold.plan, words)?.view, text.is_some()))
}

/// What the model answers to the conversation in a view.
async fn answer(app: &Arc<App>, ground: &Ground, view: &View) -> Result<Value, Error> {
    let Ground { request, situation, .. } = ground;
    let out = rewrite::rewrite(&request.conversation, view, &ground.policy().policy.template);
    let messages: Vec<Bytes> = out.into_iter().map(|message| message.bytes).collect();
    let body = openai_chat::with_messages(&request.body, &messages);
    let changes = [("stream", Some("false")), ("stream_options", None)];
    let body = spelled::with_fields(&String::from_utf8_lossy(&body), &changes).unwrap_or(body);
    let upstream = upstream_of(app, &request.model).await?;
    let _using = using(app, &upstream, &request.model).await;
    let options = ChatOptions { num_ctx: situation.window.set, ..ChatOptions::default() };
    let reply = upstream.chat(&headers::json(), "/v1/chat/completions", body, options).await?;
    let status = reply.status;
    let (read, rest) = read_up_to(reply.body, LARGEST_BUFFERED).await?;
    if rest.is_some() {
        return Err(too_large("sent again"));
    }
    let said: Value = serde_json::from_slice(&read).unwrap_or_default();
    if status.is_success() && said["choices"].is_array() {
        return Ok(said);
    }
    let why = said.pointer("/error/message").and_then(Value::as_str).unwrap_or("it gave no reason");
    let message = format!("the server answered with status {status}: {why}");
    Err(Error::client(502, "upstream_error", message, "a view that is too long for the window wants a lower line"))
}
