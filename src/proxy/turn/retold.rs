//! A history before a server that does not take all of it. What is known of the server decides before anything is sent
//! ([`tell`]). Where nothing is known, pictures, sounds and files go out as they came; a server that refuses them gets the same
//! request once more with lines in their place, and what it said of itself is remembered. So does one that wants no two
//! replies in a row at the end.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use serde_json::Value;
use tracing::{info, warn};

use super::prepared::{Prepared, Wording};
use super::refused::{error_body, is_too_long, send};
use crate::conversation::{Conversation, Message, Role, Tokens};
use crate::measure::tokens;
use crate::proxy::{App, Error};
use crate::upstream::{Reply, Upstream, overflow};
use crate::wire::openai_chat::{self, Request};
use crate::wire::parts::{self, Takes};

/// llama-server's words for two replies in a row at the end (tools/server/server-common.cpp), in small letters.
const TWO_REPLIES: &str = "2 or more assistant messages at the end";

/// Has the messages of a request say what its server takes, and lines for the rest. Returns what the client is told.
pub(super) fn tell(request: &mut Request, takes: &Takes) -> Option<String> {
    let conversation = &mut request.conversation;
    conversation.system.iter_mut().chain(&mut conversation.body).for_each(|message| parts::tell(message, takes));
    warning(conversation)
}

/// Sends a request once more where the server refused it and its history may be why, told otherwise. A reply that is no
/// better is none: then the first one stands.
pub(super) async fn retold(
    app: &App,
    upstream: &Arc<Upstream>,
    parts: &Parts,
    prepared: Prepared,
    mut reply: Reply,
) -> Result<(Prepared, Reply), Error> {
    if !matches!(reply.status.as_u16(), 400 | 404 | 406 | 413 | 415 | 422 | 500 | 501) {
        return Ok((prepared, reply));
    }
    let Some(body) = error_body(&mut reply).await else { return Ok((prepared, reply)) };
    if overflow::overflow(reply.status.as_u16(), &body).is_some() {
        return Ok((prepared, reply));
    }
    let before = prepared.wording();
    let said = said(&body);
    let refused = if said.contains(TWO_REPLIES) { None } else { refuses(&said) };
    let mut other = before.clone();
    let changed = if said.contains(TWO_REPLIES) { other.join_replies() } else { other.without_media(refused.as_ref()) };
    if !changed {
        return Ok((prepared, reply));
    }
    info!(conversation = %prepared.id, status = reply.status.as_u16(), "the server refused the history; once more in other words");
    let mut prepared = prepared.said(other);
    let mut again = send(app, upstream, parts, &mut prepared).boxed().await?;
    if !again.status.is_success() && !is_too_long(&mut again).await {
        warn!(conversation = %prepared.id, status = again.status.as_u16(), "the server refuses it in other words, too");
        return Ok((prepared.said(before), reply));
    }
    if let Some(takes) = refused {
        app.measure.windows.refuses(upstream, &prepared.request.model, takes);
    }
    // What was known before is told in the new words.
    let (was, now) = (warning(&before.conversation), warning(&prepared.request.conversation));
    let others = prepared.told.warnings.iter().filter(|warning| Some(*warning) != was.as_ref()).cloned();
    let warnings = others.chain(now).collect();
    Ok((prepared.warning(warnings), again))
}

/// What the client is told of a conversation whose parts stand as lines.
fn warning(conversation: &Conversation) -> Option<String> {
    parts::warning(conversation.system.iter().chain(&conversation.body))
}

impl Wording {
    /// Has lines stand for what a server says that it does not take; where it says no such thing, for all that is no text before
    /// the newest turn: one broken picture there would end the session. Returns whether anything changed.
    fn without_media(&mut self, refused: Option<&Takes>) -> bool {
        let media = |message: &Message| !message.media.is_empty();
        let conversation = &self.conversation;
        if !conversation.body.iter().chain(&conversation.system).any(media) {
            return false;
        }
        let newest = self.out.iter().rposition(|out| out.role == Role::Assistant).unwrap_or(0);
        refused.is_some_and(|takes| self.say(takes, usize::MAX)) || self.say(&Takes::TEXT, newest)
    }

    /// Makes one of several replies in a row at the end, which llama-server refuses. Returns whether there are such.
    fn join_replies(&mut self) -> bool {
        let mut changed = false;
        while let [.., first, last] = &self.out[..]
            && [first, last].iter().all(|out| out.role == Role::Assistant && !out.calls)
        {
            let Ok(read) = openai_chat::message(last.bytes.clone()) else { break };
            let text = format!("\n\n{}", read.text.as_str());
            self.out.pop();
            if let Some(out) = self.out.last_mut() {
                out.bytes = openai_chat::with_text_appended(&out.bytes, &text);
                (out.changed, changed) = (true, true);
            }
        }
        if changed {
            self.write_body();
        }
        changed
    }

    fn write_body(&mut self) {
        let messages: Vec<Bytes> = self.out.iter().map(|out| out.bytes.clone()).collect();
        self.body = openai_chat::with_messages(&self.body, &messages);
    }

    /// Has the messages before `end` of the view say lines for what is not taken. Returns whether anything changed.
    fn say(&mut self, takes: &Takes, end: usize) -> bool {
        let mut changed = false;
        let mut less: Tokens = 0;
        let leading = self.conversation.system.len();
        for (n, out) in self.out.iter_mut().enumerate().take_while(|(n, _)| *n < end) {
            let Some(bytes) = parts::bytes(&out.bytes, takes) else { continue };
            (out.bytes, out.changed, changed) = (bytes, true, true);
            let conversation = &mut self.conversation;
            let own = match out.at {
                Some(at) => conversation.body.get_mut(at),
                None => conversation.system.get_mut(n).filter(|_| n < leading),
            };
            if let Some(message) = own {
                let seen = |message: &Message| message.media.iter().map(tokens::media).fold(0, Tokens::saturating_add);
                less = less.saturating_add(seen(message));
                parts::tell(message, takes);
                less = less.saturating_sub(seen(message));
            }
        }
        if changed {
            self.tokens = self.tokens.saturating_sub(less);
            self.write_body();
        }
        changed
    }
}

/// What an error says, in small letters: its message, not what it quotes.
fn said(body: &[u8]) -> String {
    let message = |value: &Value| {
        let error = &value["error"];
        [&error["message"], error, &value["message"], &value["detail"]]
            .into_iter()
            .find_map(Value::as_str)
            .map(str::to_owned)
    };
    let text = serde_json::from_slice::<Value>(body).ok().and_then(|value| message(&value));
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    text.chars().take(1000).collect::<String>().to_lowercase()
}

/// How servers say that they do not take something at all.
const DENIALS: [&str; 20] = [
    "not support",
    "n't support",
    "unsupported",
    "not a multimodal",
    "not multimodal",
    "isn't multimodal",
    "is not a vision",
    "not enabled",
    "not accept",
    "n't accept",
    "text-only",
    "text only",
    "only text",
    "only support",
    "mmproj",
    "no endpoints found that support",
    "unknown part type",
    "unknown content type",
    "is either 'text'",
    "are currently not",
];

/// What a server says that it does not take; `None` where it says no such thing.
fn refuses(said: &str) -> Option<Takes> {
    if !DENIALS.iter().any(|denial| said.contains(denial)) {
        return None;
    }
    let names = |words: &[&str]| words.iter().any(|word| said.contains(word)).then_some(false);
    let all = names(&[
        "multimodal",
        "multi-modal",
        "part type",
        "content type",
        "content[]",
        "'content'",
        "text-only",
        "text only",
        "only text",
    ]);
    let takes = Takes {
        pictures: names(&["image", "picture", "vision", "mmproj"]).or(all),
        sounds: names(&["audio", "sound"]).or(all),
        videos: names(&["video"]).or(all),
        others: names(&["file", "document", "pdf"]).or(all),
        links: None,
    };
    (takes != Takes::default()).then_some(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_of_pictures() {
        let of = |body: &str| refuses(&said(body.as_bytes()));
        let pictures = |body: &str| of(body).and_then(|takes| takes.pictures);
        for refusal in [
            r#"{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}"#,
            r#"{"error":{"message":"this model does not support images","type":"api_error"}}"#,
            r#"{"object":"error","message":"m is not a multimodal model None","code":400}"#,
            r#"{"error":"Model does not support image inputs"}"#,
            r#"{"detail":"The model does not support vision"}"#,
            r#"{"error":{"message":"unsupported content[].type"}}"#,
        ] {
            assert_eq!(pictures(refusal), Some(false), "{refusal}");
        }
        let sound = of(r#"{"error":{"message":"audio input is not supported - hint: mmproj"}}"#).unwrap();
        assert_eq!(sound.sounds, Some(false));
        for other in [
            r#"{"error":{"message":"Failed to load image or audio file"}}"#,
            r#"{"error":{"message":"temperature is not supported"}}"#,
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
