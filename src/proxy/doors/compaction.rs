//! A history is compacted because its client asks for it by OpenAI's API. It is prepared like any request whose client asks for a
//! fold, as Anthropic's clients do too ([`crate::proxy::turn::client`]), and put into the record; the client gets an item that
//! stands for it. Nothing of it is lost: when the item comes back, the history stands behind it again, with the fold in its view,
//! so that recall and all else work as before.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::HeaderMap;

use super::compacted::marked;
use crate::brief::transcript;
use crate::conversation::managed::{Compact, Edits};
use crate::conversation::{Message, Tokens};
use crate::plain;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::headers;
use crate::proxy::traffic::using;
use crate::proxy::turn::attempt::Attempt;
use crate::proxy::turn::brief::folded_to;
use crate::proxy::turn::early::{Early, Tip};
use crate::proxy::turn::prepare::prepare;
use crate::proxy::turn::prepared::Prepared;
use crate::proxy::turn::saved;
use crate::proxy::turn::task::take_task;
use crate::proxy::{App, Error};
use crate::wire::compacted::joined;
use crate::wire::dialect::Summarized;
use crate::wire::dialect::said::Usage;
use crate::wire::openai_chat::{self, Request};

/// Tokens of what an item tells of the messages that are not folded, for the day when the record has them no longer.
const TOLD: Tokens = 4_000;

/// Of a prompt that is compacted, the messages that no brief holds are this part at least: with less, the same would be compacted
/// with each request, and free nothing.
const WORTH_IT: f64 = 0.25;

/// A history that was compacted.
pub(super) struct Compacted {
    /// What the client brings back.
    pub(super) content: String,
    /// What was read, and what was written of it.
    pub(super) usage: Usage,
    /// The conversation in the record.
    pub(super) conversation: String,
    /// The messages as the client sent them, without leading system messages.
    pub(super) messages: Vec<Bytes>,
}

/// Compacts the history of a request that is said in the words of chat completions: it is prepared as any request whose client
/// asks for a fold, and put into the record with it. Where the reply will stand in the record goes to `early`.
///
/// # Errors
/// As the request itself would get.
pub(super) async fn compacted(
    app: Arc<App>,
    from_client: HeaderMap,
    chat: Bytes,
    text: Summarized,
    early: Early,
) -> Result<Compacted, Error> {
    let (owned, mut headers, size) = (Arc::clone(&app), from_client, chat.len());
    let asked = headers::edits(&headers).unwrap_or_default();
    headers::ask(&mut headers, Some(&Edits { compact: Some(Compact::now()), ..asked }));
    let folded = async move { folded(&owned, &chat, &headers).await };
    let prepared = app.aside.run(size, folded.boxed()).await??;
    early.prepared(&prepared, &app);
    let (brief, written) = summary(&app, &prepared);
    let text = text(&brief);
    let tip = early.tip().unwrap_or_else(|| Tip {
        conversation: prepared.id.clone(),
        chain: crate::conversation::Digest::of(&[]),
        depth: 0,
    });
    let mark = marked(&app, tip, &text)?;
    let usage = Usage {
        prompt: Some(u64::from(prepared.made.before.0.prompt())),
        completion: Some(u64::from(written)),
        ..Usage::default()
    };
    let body = &prepared.request.conversation.body;
    let messages = body.iter().map(|m| if m.raw.is_empty() { m.bytes().clone() } else { m.raw.clone() }).collect();
    Ok(Compacted { content: joined(&mark, &text), usage, conversation: prepared.id, messages })
}

/// Prepares a request whose client asks for a fold, and puts it into the record. Nothing is sent.
async fn folded(app: &Arc<App>, chat: &Bytes, from_client: &HeaderMap) -> Result<Prepared, Error> {
    let mut request = openai_chat::parse(chat)?;
    take_task(app, &mut request, from_client).boxed().await?;
    let upstream = upstream_of(app, &request.model).boxed().await?;
    let using = using(app, &upstream, &request.model).await;
    let mut prepared = prepare(app, &upstream, request, from_client, Attempt::First).boxed().await?;
    prepared.sending.flight = Some(app.lives.fly(&prepared.id, using));
    saved(app, &upstream, prepared, Attempt::First, from_client).boxed().await
}

/// The text that stands for a history where the record has it no longer, and the tokens of its brief.
fn summary(app: &App, prepared: &Prepared) -> (String, Tokens) {
    let view = &prepared.made.view;
    let brief = view.brief().unwrap_or_default();
    let count = |text: &str| app.measure.count(&prepared.key, text);
    let rest: Vec<&Message> = prepared.request.conversation.body.iter().skip(folded_to(view)).collect();
    let rest = if rest.is_empty() { String::new() } else { transcript(&rest, None, TOLD, &count) };
    let whole: Vec<&str> = [brief, rest.trim()].into_iter().filter(|part| !part.is_empty()).collect();
    let whole = whole.join("\n\n");
    let tokens = count(if brief.is_empty() { &whole } else { brief });
    (whole, tokens)
}

/// Whether a request is to be compacted before it is answered: its prompt has `threshold` tokens, or it would be folded anyway; and
/// there is something to fold.
///
/// # Errors
/// As the request itself would get.
pub(super) async fn is_due(
    app: &Arc<App>,
    chat: &Bytes,
    from_client: &HeaderMap,
    threshold: Option<u64>,
) -> Result<bool, Error> {
    let (owned, headers, size) = (Arc::clone(app), from_client.clone(), chat.len());
    let chat = chat.clone();
    let dry = async move {
        let mut request: Request = openai_chat::parse(&chat)?;
        take_task(&owned, &mut request, &headers).boxed().await?;
        let upstream = upstream_of(&owned, &request.model).boxed().await?;
        prepare(&owned, &upstream, request, &headers, Attempt::DryRun).boxed().await
    };
    let prepared = match app.aside.run(size, dry.boxed()).await? {
        Ok(prepared) => prepared,
        // The request itself says why; what is too long is cut as ever.
        Err(e) => {
            tracing::debug!(error = %plain::line(&e.to_string()), "whether to compact is not known");
            return Ok(false);
        }
    };
    let (before, lines) = (&prepared.made.before.0, &prepared.made.lines);
    let tokens = u64::from(before.prompt().max(prepared.made.tokens));
    let passed = tokens >= threshold.unwrap_or(u64::from(lines.summarize_at));
    let folds = prepared.told.actions.contains(&"summarize");
    let loose = f64::from(before.history) >= WORTH_IT * f64::from(before.prompt());
    Ok(folds || passed && loose)
}
