//! Shadow: requests go to the server untouched, and what windowsill would have sent is only worked out and said. What it
//! remembers goes into a record of its own, beside the real one (see `config`). No model is asked for anything.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::json;
use tracing::{debug, info};

use super::pass;
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::conversation::edit::View;
use crate::measure::{Sureness, count, shown};
use crate::plain;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::headers;
use crate::proxy::turn::attempt::Attempt;
use crate::proxy::turn::prepare::prepare;
use crate::proxy::turn::prepared::Prepared;
use crate::proxy::turn::relay::Body;
use crate::proxy::turn::save::save;
use crate::proxy::{App, Error};
use crate::store::{Batch, Event};
use crate::upstream::Upstream;
use crate::wire::openai_chat;

/// What would have become of a request.
struct Foreseen {
    prepared: Prepared,
    /// Tokens of the prompt as the client sent it.
    sent: Tokens,
    /// How sure that is.
    sureness: Sureness,
}

impl Foreseen {
    /// Whether the prompt that is sent leaves the room that is kept for the reply.
    fn fits(&self) -> bool {
        self.prepared.window.tokens.is_none_or(|window| self.sent + self.prepared.made.after.output_reserved <= window)
    }
}

/// Passes a request through untouched, and says in the reply's headers what would have been done with it. `chat` is the
/// request in the words of chat completions.
pub(in crate::proxy) async fn shadowed(
    app: &Arc<App>,
    parts: &Parts,
    body: Bytes,
    chat: Result<Bytes, Error>,
) -> Result<Response<Body>, Error> {
    let (owned, from_client, size) = (Arc::clone(app), parts.headers.clone(), body.len());
    let foreseen = async move { in_shadow(&owned, chat?, &from_client).await };
    // Both at once: working it out delays nothing that takes longer anyway.
    let (reply, foreseen) = tokio::join!(pass(app, parts, body), app.aside.run(size, foreseen.boxed()));
    let mut reply = reply?;
    match foreseen.and_then(|foreseen| foreseen) {
        Ok(foreseen) => mark_shadow(app, reply.headers_mut(), &foreseen),
        Err(e) => {
            let why = format!("error; {}", plain::line(&e.to_string()));
            headers::set(reply.headers_mut(), "x-windowsill-shadow", &why);
        }
    }
    Ok(reply)
}

async fn in_shadow(app: &Arc<App>, body: Bytes, from_client: &HeaderMap) -> Result<Foreseen, Error> {
    let request = openai_chat::parse(&body)?;
    let upstream = upstream_of(app, &request.model).boxed().await?;
    let mut prepared = prepare(app, &upstream, request, from_client, Attempt::DryRun).boxed().await?;
    // A record of what would have been done is nobody else's.
    let _ = save(app, &upstream, &mut prepared).boxed().await?;
    let (sent, sureness) = as_sent(app, &upstream, &prepared, &body).boxed().await;
    let foreseen = Foreseen { prepared, sent, sureness };
    note_shadow(app, &foreseen);
    Ok(foreseen)
}

/// The size of what the client sent, `body`. Of a prompt that would have been rewritten, only the rewrite was counted.
async fn as_sent(app: &App, upstream: &Upstream, prepared: &Prepared, body: &Bytes) -> (Tokens, Sureness) {
    if prepared.made.view.edits.is_empty() {
        return (prepared.made.tokens, prepared.made.sureness);
    }
    let conversation = &prepared.request.conversation;
    let (model, window) = (&prepared.request.model, &prepared.window);
    if let Some(own) = app.measure.counters.of(upstream, model, window, shown::QUESTION_WAITS).boxed().await
        && let Some(exact) =
            own.total(upstream, body, count::media(conversation), window.tokens.unwrap_or(Tokens::MAX)).await
    {
        return (exact.tokens, exact.sureness());
    }
    if upstream.can_count()
        && let Ok(counted) = upstream.count(body).await
    {
        return (counted, Sureness::Counted);
    }
    let facts = app.measure.facts(&prepared.key, conversation, &View::default(), None);
    (facts.head() + facts.costs.iter().map(|cost| cost.total()).sum::<Tokens>(), Sureness::Estimated)
}

fn mark_shadow(app: &App, to: &mut HeaderMap<HeaderValue>, foreseen: &Foreseen) {
    let Foreseen { prepared, sent, sureness } = foreseen;
    prepared.mark(to, &app.config.gauge);
    // These are about what was forwarded.
    for name in ["x-windowsill-pressure", "x-windowsill-severity", "x-windowsill-max-tokens"] {
        to.remove(name);
    }
    headers::set(to, "x-windowsill-action", "none");
    headers::set(to, "x-windowsill-prompt-tokens", &sent.to_string());
    headers::set(to, "x-windowsill-prompt-tokens-source", sureness.as_str());
    let would =
        format!("action={}; prompt-tokens={}; fits={}", prepared.action(), prepared.made.tokens, foreseen.fits());
    headers::set(to, "x-windowsill-shadow", &would);
}

fn note_shadow(app: &App, foreseen: &Foreseen) {
    let Foreseen { prepared, sent, .. } = foreseen;
    info!(
        conversation = %prepared.id,
        model = %plain::line(&prepared.request.model),
        window = prepared.window.tokens,
        sent,
        would_send = prepared.made.tokens,
        action = %prepared.action(),
        "shadow"
    );
    let event = Event {
        now_ms: now_ms(),
        conversation: Some(prepared.id.clone()),
        kind: "shadow".into(),
        data: json!({
            "model": prepared.request.model, "window": prepared.window.tokens, "action": prepared.action(),
            "sent_tokens": sent, "prompt_tokens": prepared.made.tokens, "fits": foreseen.fits(),
        }),
    };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
}
