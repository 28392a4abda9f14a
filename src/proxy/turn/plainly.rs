//! A history that the server refuses for something that stands in it is said again plainly (see [`crate::plan::plain`]), so that
//! a session does not end with it. Only where the server takes that, the client sees it; else it gets the server's own words for
//! what it sent.

use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use tracing::{info, warn};

use super::prefix::note_sent;
use super::prepared::{Prepared, Wording};
use super::refused::{error_body, send};
use super::situation::{SAID_PLAINLY, asked};
use crate::conversation::Plainness;
use crate::plain;
use crate::plan::plain::plain as said_plainly;
use crate::proxy::{App, Error};
use crate::upstream::{Reply, Upstream};
use crate::wire::{json, openai_chat};

/// What servers speak of that refuse a picture or a sound.
const MEDIA: [&str; 8] = ["image", "audio", "vision", "multimodal", "mmproj", "media", "modalit", "content part"];

/// The reply, or the one to the same request said more plainly, where the server refused it and takes that.
pub(super) async fn or_plainly(
    app: &App,
    upstream: &Arc<Upstream>,
    parts: &Parts,
    mut prepared: Prepared,
    mut refused: Reply,
) -> Result<(Prepared, Reply), Error> {
    if !may_be_the_history(refused.status) {
        return Ok((prepared, refused));
    }
    let before = prepared.wording();
    let now = before.conversation.plainness;
    let most = if is_about_media(&mut refused).await { Plainness::Words } else { Plainness::Plain };
    for how in [Plainness::Plain, Plainness::Words].into_iter().filter(|how| *how > now && *how <= most) {
        let out = said_plainly(before.out.clone(), &before.conversation, how);
        if out.iter().map(|m| &m.bytes).eq(before.out.iter().map(|m| &m.bytes)) {
            continue;
        }
        let messages: Vec<_> = out.iter().map(|m| m.bytes.clone()).collect();
        let body = with_messages(&prepared, &messages);
        let mut plainer = prepared.said(Wording { out, body, ..before.clone() });
        match send(app, upstream, parts, &mut plainer).await {
            Ok(reply) if reply.status.is_success() => {
                info!(conversation = %plainer.id, model = %plain::line(&plainer.request.model), ?how, "said plainly");
                let mut told = plainer.wording();
                told.conversation.plainness = how;
                let warnings = plainer.told.warnings.iter().cloned().chain([SAID_PLAINLY.to_owned()]).collect();
                let plainer = plainer.said(told).warning(warnings);
                let to = asked(app, upstream, &plainer.request.model);
                app.lives.with(&plainer.id, |live| live.prompt.plainness = Some((to, how)));
                note_sent(app, upstream, &plainer);
                return Ok((plainer, reply));
            }
            Ok(_) => {}
            Err(e) => warn!(error = %e, "a history could not be said plainly"),
        }
        prepared = plainer.said(before.clone());
    }
    Ok((prepared, refused))
}

/// Whether a refusal may be about the messages: servers say so with 400 and 422, and llama-server with 500 where a template
/// fails.
fn may_be_the_history(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::INTERNAL_SERVER_ERROR)
}

/// Whether a refusal speaks of pictures or sounds. A server that is only busy takes them the next time.
async fn is_about_media(refused: &mut Reply) -> bool {
    let words = error_body(refused).await.unwrap_or_default();
    let words = String::from_utf8_lossy(&words).to_lowercase();
    MEDIA.iter().any(|word| words.contains(word))
}

/// The body as it was sent, with other messages.
fn with_messages(prepared: &Prepared, messages: &[bytes::Bytes]) -> bytes::Bytes {
    let spelled: Vec<std::borrow::Cow<'_, str>> = messages.iter().map(|m| String::from_utf8_lossy(m)).collect();
    let array = format!("[{}]", spelled.join(","));
    let sent = String::from_utf8_lossy(&prepared.made.body);
    let written = json::with_fields(&sent, &[("messages", Some(&array))]);
    written.unwrap_or_else(|_| openai_chat::write(&prepared.request, messages, &[]))
}
