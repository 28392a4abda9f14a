//! What a conversation stands on, resolved once and never asked again: its server, the window, the policy, what the record knows
//! of its history, and what its prompt can be counted with. It is born of a request that came in, or of the record, where a
//! person or an agent asks about a conversation. Nothing is measured here yet.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::json;

use super::attempt::Attempt;
use super::guard::{Note, guard, pace};
use super::history::{History, history};
use super::stage::Stage;
use super::wished::asked as asked_for;
use crate::config::{ModelHints, Resolved};
use crate::conversation::edit::View;
use crate::conversation::managed::Edits;
use crate::conversation::{Conversation, Digest, Message, Plainness, Tokens, repair};
use crate::guard::triggers::Pace;
use crate::measure::window::Window;
use crate::measure::{ModelKey, own, shown};
use crate::plan::Policy;
use crate::proxy::servers::{upstream_near, window_of, window_without_loading};
use crate::proxy::state::gauge::UNKNOWN_WINDOW;
use crate::proxy::state::headers;
use crate::proxy::state::live::Switched;
use crate::proxy::state::notes::key;
use crate::proxy::{App, Error};
use crate::store::ConversationRow;
use crate::upstream::Upstream;
use crate::wire::openai_chat::{self, Request};

/// Places of what is wrong with a history that a header names.
const TOLD: usize = 4;

/// What the client is told of a history that was said plainly.
pub(super) const SAID_PLAINLY: &str = "the server refused something in this history: it was said to it in plain words";

/// What a conversation stands on.
pub(in crate::proxy) struct Situation {
    pub(in crate::proxy) upstream: Arc<Upstream>,
    /// The client's headers; none where it is born of the record.
    pub(in crate::proxy) from_client: HeaderMap,
    pub(in crate::proxy) attempt: Attempt,
    /// The window, and where it is known from.
    pub(in crate::proxy) window: Window,
    /// Its policy, resolved once with the profile that its request named and with what the client asks for.
    pub(in crate::proxy) policy: Arc<Resolved>,
    pub(in crate::proxy) history: History,
    /// What is believed of its model is kept under this key.
    pub(in crate::proxy) key: ModelKey,
    /// The model's own vocabulary, where its file is on this machine.
    pub(in crate::proxy) own: Option<Arc<own::Model>>,
    /// What the user's pace of folds asks for.
    pub(in crate::proxy) pace: Pace,
    /// What the model is told of what the watchdog saw.
    pub(in crate::proxy) note: Option<Note>,
    /// What the client asks to be done with its history, where it asks for that at all.
    pub(in crate::proxy) client: Option<Edits>,
    /// What had to be mended in its messages.
    pub(in crate::proxy) repaired: Vec<String>,
    /// What the client is told.
    pub(in crate::proxy) warnings: Vec<String>,
}

impl Situation {
    /// The window that is planned for.
    pub(in crate::proxy) fn known_window(&self) -> Tokens {
        self.window.tokens.unwrap_or(UNKNOWN_WINDOW)
    }

    /// Name of the conversation.
    pub(in crate::proxy) fn id(&self) -> &str {
        &self.history.id
    }

    /// Whether a prompt can be counted exactly.
    pub(in crate::proxy) fn can_count(&self) -> bool {
        self.own.is_some() || self.upstream.can_count()
    }

    /// Whether the same history was sent before, as it is.
    pub(in crate::proxy) fn is_sent_again(&self, request: &Request) -> bool {
        self.attempt == Attempt::First && self.history.forwarded() >= request.conversation.body.len()
    }
}

/// Resolves what a request stands on. Its messages are mended, and get the bytes that they were forwarded with before
/// where no model sees the difference.
///
/// # Errors
/// What the guardrails refuse, and a record that cannot be read.
pub(in crate::proxy) async fn of_request(
    app: &Arc<App>,
    upstream: &Arc<Upstream>,
    request: &mut Request,
    from_client: &HeaderMap,
    attempt: Attempt,
) -> Result<Situation, Error> {
    Stage::Situation.begins("");
    if let Some(wanted) = request.num_ctx.filter(|_| !attempt.is_dry()) {
        app.measure.windows.want(upstream, &request.model, wanted).await;
    }
    let window = match attempt {
        Attempt::DryRun => window_without_loading(app, upstream, &request.model).boxed().await,
        Attempt::Count => {
            Window { tokens: None, ..window_without_loading(app, upstream, &request.model).boxed().await }
        }
        _ => window_of(app, upstream, &request.model).boxed().await,
    };
    let header = headers::text(from_client, &headers::PROFILE);
    let policy = policy(app, &request.model, &window, header, request.task.as_deref());
    request.settle(&policy.settings);
    let client = headers::edits(from_client);
    let policy = client.iter().fold(policy, |policy, edits| asked_for(edits, policy));
    let mut warnings: Vec<String> = policy.warning.iter().cloned().collect();
    let repaired = repair(request, &policy.policy, &mut warnings);
    let mut history = history(app, request, upstream, &policy, from_client, attempt).boxed().await?;
    if let Some(stands) = client.as_ref().and_then(|edits| edits.stands.as_ref()) {
        history.stand(&request.conversation, stands);
    }
    request.conversation.plainness = plainness_of(app, &history.id, upstream, &request.model);
    if request.conversation.plainness != Plainness::AsItCame {
        warnings.push(SAID_PLAINLY.into());
    }
    let guarded = guard(app, request, &history, attempt)?;
    warnings.extend(guarded.warnings);
    let pace = pace(app, &policy, &history, &request.conversation.body, attempt);
    let patience = if attempt.is_dry() { shown::QUESTION_WAITS } else { shown::REQUEST_WAITS };
    let own = app.measure.counters.of(upstream, &request.model, &window, patience).boxed().await;
    let key = key(app, upstream, request);
    Ok(Situation {
        upstream: Arc::clone(upstream),
        from_client: from_client.clone(),
        attempt,
        window,
        policy,
        history,
        key,
        own,
        pace,
        note: guarded.note,
        client,
        repaired,
        warnings,
    })
}

/// Resolves what a conversation of the record stands on. Nothing of it will be sent. `head`: its last request without the
/// messages, where that is remembered. Returns the request that the record makes of it, too.
///
/// # Errors
/// A model that no server has, a record that cannot be read, and a history that ends in open tool calls.
pub(in crate::proxy) async fn of_record(
    app: &App,
    row: &ConversationRow,
    head: Option<Request>,
    messages: Option<usize>,
) -> Result<(Situation, Request), Error> {
    let upstream = upstream_near(app, &row.model, Some(&row.upstream)).await?;
    let window = window_without_loading(app, &upstream, &row.model).await;
    let policy = policy_of(app, row, &window);
    let mut request = head.unwrap_or_else(|| request_of(&row.model));
    let history = recorded(app, row, &mut request, messages, &policy.policy)?;
    let key = key(app, &upstream, &request);
    let own = app.measure.counters.of(&upstream, &row.model, &window, shown::QUESTION_WAITS).await;
    let situation = Situation {
        upstream,
        from_client: HeaderMap::new(),
        attempt: Attempt::DryRun,
        window,
        policy,
        history,
        key,
        own,
        pace: Pace::default(),
        note: None,
        client: None,
        repaired: Vec::new(),
        warnings: Vec::new(),
    };
    Ok((situation, request))
}

/// Puts the messages that are recorded of a conversation into a request.
fn recorded(
    app: &App,
    row: &ConversationRow,
    request: &mut Request,
    messages: Option<usize>,
    policy: &Policy,
) -> Result<History, Error> {
    let mut rows = app.store.messages(&row.id)?;
    rows.truncate(messages.unwrap_or(usize::MAX));
    let chain: Vec<Digest> = rows.iter().map(|r| r.chain).collect();
    let body = rows.iter().map(|row| openai_chat::recorded(row.raw.clone())).collect();
    let repaired = repair::mend(body, policy.template.tool_call_id_length).body;
    if repaired.len() != chain.len() {
        let message = "the recorded history ends in open tool calls";
        return Err(Error::client(409, "not_foldable", message, "send the next request first"));
    }
    request.conversation.body = repaired;
    let stored = app.store.view(&chain)?.map(|(_, v)| View::clone(&v)).unwrap_or_default();
    Ok(History::of_record(row, chain, stored))
}

/// A request of which nothing is known but its model.
fn request_of(model: &str) -> Request {
    Request {
        body: Bytes::from(json!({"model": model, "messages": []}).to_string()),
        conversation: Conversation::default(),
        model: model.to_owned(),
        max_tokens: None,
        choices: 1,
        stream: false,
        num_ctx: None,
        session: None,
        client_tools: None,
        task: None,
        keep_alive: None,
        listed_tools: None,
        seed: None,
    }
}

/// How plainly the history of a conversation has to be said to a model.
pub(in crate::proxy) fn plainness_of(app: &App, id: &str, upstream: &Upstream, model: &str) -> Plainness {
    let to = asked(app, upstream, model);
    app.lives
        .with(id, |live| live.prompt.plainness.as_ref().filter(|(of, _)| *of == to).map(|(_, how)| *how))
        .unwrap_or_default()
}

/// A model of a server.
pub(in crate::proxy) fn asked(_app: &App, upstream: &Upstream, model: &str) -> Switched {
    Switched { model: upstream.canonical(model), upstream: upstream.name().to_owned() }
}

/// The policy of a recorded conversation: by the profile and the task that its last request went by.
pub(in crate::proxy) fn policy_of(app: &App, row: &ConversationRow, window: &Window) -> Arc<Resolved> {
    let text = |key: &str| row.state[key].as_str();
    policy(app, &row.model, window, text("named_profile").map(str::to_owned), text("task"))
}

/// The policy of a model, worked out once.
pub(in crate::proxy) fn policy(
    app: &App,
    model: &str,
    window: &Window,
    header: Option<String>,
    task: Option<&str>,
) -> Arc<Resolved> {
    // What the server says of a model may be another once it is loaded, and nothing while the server does not answer.
    let key = (model.to_owned(), header, window.identity.clone(), task.map(str::to_owned));
    if let Some(known) = app.turn.policies.lock().get(&key) {
        return Arc::clone(known);
    }
    let hints = ModelHints { parameters: window.parameters, template: window.template.as_deref() };
    let resolved = Arc::new(app.config.policy_for(model, &hints, key.1.as_deref(), task));
    let mut all = app.turn.policies.lock();
    // Names come from clients: they may not fill the memory.
    if all.len() > 512 {
        all.clear();
    }
    all.insert(key, Arc::clone(&resolved));
    resolved
}

/// Mends what servers and strict templates do not take. Returns what was done.
fn repair(request: &mut Request, policy: &Policy, warnings: &mut Vec<String>) -> Vec<String> {
    let body = std::mem::take(&mut request.conversation.body);
    let leading = request.conversation.system.len();
    let repaired = repair::mend(body, policy.template.tool_call_id_length);
    request.conversation.body = repaired.body;
    let places: Vec<String> =
        repaired.orphans.iter().take(TOLD).map(|o| format!("messages[{}]", o.at + leading)).collect();
    if !places.is_empty() {
        let more = if repaired.orphans.len() > TOLD { " and others" } else { "" };
        warnings.push(format!("{}{more}: a tool result that answers no call of this history", places.join(", ")));
    }
    let unanswered = |m: &&Message| m.raw.is_empty() && m.text.as_str() == repair::NO_RESULT;
    let unanswered = request.conversation.body.iter().filter(unanswered).count();
    if unanswered > 0 {
        let calls = if unanswered == 1 { "a call" } else { "calls" };
        warnings.push(format!("the model is told that {calls} of this history got no result ({unanswered})"));
    }
    repaired.notes
}
