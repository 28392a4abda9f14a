//! What a request stands on, resolved once and never asked again: the window, the policy, what the record knows of its
//! history, and what its prompt can be counted with. Nothing is measured here yet.

use std::sync::Arc;

use futures_util::FutureExt as _;
use http::HeaderMap;

use super::attempt::Attempt;
use super::guard::{Note, guard, pace};
use super::history::{History, history};
use super::wished::asked as asked_for;
use crate::config::{ModelHints, Resolved};
use crate::conversation::managed::Edits;
use crate::conversation::{Message, Plainness, Tokens, repair};
use crate::guard::triggers::Pace;
use crate::measure::window::Window;
use crate::measure::{ModelKey, own, shown};
use crate::plan::Policy;
use crate::proxy::servers::{window_of, window_without_loading};
use crate::proxy::state::gauge::UNKNOWN_WINDOW;
use crate::proxy::state::headers;
use crate::proxy::state::live::Switched;
use crate::proxy::state::notes::key;
use crate::proxy::{App, Error};
use crate::store::ConversationRow;
use crate::upstream::Upstream;
use crate::wire::openai_chat::Request;

/// Places of what is wrong with a history that a header names.
const TOLD: usize = 4;

/// What the client is told of a history that was said plainly.
pub(super) const SAID_PLAINLY: &str = "the server refused something in this history: it was said to it in plain words";

/// What a request stands on.
pub(in crate::proxy) struct Situation<'a> {
    pub(in crate::proxy) upstream: &'a Arc<Upstream>,
    /// The client's headers.
    pub(in crate::proxy) from_client: &'a HeaderMap,
    pub(in crate::proxy) attempt: Attempt,
    /// The window, and where it is known from.
    pub(in crate::proxy) window: Window,
    /// The request's own policy, resolved once with its profile header and with what the client asks for.
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

impl Situation<'_> {
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
pub(in crate::proxy) async fn situation<'a>(
    app: &Arc<App>,
    upstream: &'a Arc<Upstream>,
    request: &mut Request,
    from_client: &'a HeaderMap,
    attempt: Attempt,
) -> Result<Situation<'a>, Error> {
    if let Some(wanted) = request.num_ctx.filter(|_| attempt != Attempt::DryRun) {
        app.measure.windows.want(upstream, &request.model, wanted).await;
    }
    let window = match attempt {
        Attempt::DryRun => window_without_loading(app, upstream, &request.model).boxed().await,
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
    let patience = if attempt == Attempt::DryRun { shown::QUESTION_WAITS } else { shown::REQUEST_WAITS };
    let own = app.measure.counters.of(upstream, &request.model, &window, patience).boxed().await;
    let key = key(app, upstream, request);
    Ok(Situation {
        upstream,
        from_client,
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

/// How plainly the history of a conversation has to be said to a model.
pub(in crate::proxy) fn plainness_of(app: &App, id: &str, upstream: &Upstream, model: &str) -> Plainness {
    let to = asked(app, upstream, model);
    app.lives
        .with(id, |live| live.prompt.plainness.as_ref().filter(|(of, _)| *of == to).map(|(_, how)| *how))
        .unwrap_or_default()
}

/// A model of a server.
pub(in crate::proxy) fn asked(_app: &App, upstream: &Upstream, model: &str) -> Switched {
    Switched { model: model.to_owned(), upstream: upstream.name().to_owned() }
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
    if let Some(known) = app.policies.lock().get(&key) {
        return Arc::clone(known);
    }
    let hints = ModelHints { parameters: window.parameters, template: window.template.as_deref() };
    let resolved = Arc::new(app.config.policy_for(model, &hints, key.1.as_deref(), task));
    let mut all = app.policies.lock();
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
