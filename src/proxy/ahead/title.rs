//! Titles: a small model names a conversation once, after its first reply and between requests. Without one, a conversation is
//! called by the first words of a person.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tracing::debug;

use crate::clock::now_ms;
use crate::conversation::person;
use crate::plain;
use crate::proxy::state::standing::change_standing;
use crate::proxy::traffic::{Asked, begin_errand};
use crate::proxy::turn::class::Class;
use crate::proxy::turn::prepared::Prepared;
use crate::proxy::turn::slots::slots;
use crate::proxy::turn::titles::at_a_word;
use crate::proxy::{App, state::headers, turn::read_up_to};
use crate::store::{About, Batch, Event};
use crate::upstream::{ChatOptions, Upstream};
use crate::usage::Reported;

/// Longest that a title is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Characters of the first request that the model reads.
const READ: usize = 2_000;

/// Characters of a title.
const LONGEST: usize = 80;

/// Tokens that the model may write.
const WRITTEN: u32 = 32;

/// Largest reply (bytes).
const REPLY: usize = 64 << 10;

/// What is asked.
const ASK: &str = "Name what this is about in three to six words. Answer with the title alone, without quotes.";

/// Has a model name a conversation, where the config says which one and nobody named it yet.
pub(in crate::proxy) fn title_behind(app: &Arc<App>, prepared: &Prepared) {
    let conversation = &prepared.request.conversation;
    let Some(model) = prepared.policy.title_model.clone() else { return };
    let named = prepared.wishes.standing.title.is_some()
        || prepared.request.unloads()
        || Class::of(conversation) == Class::Helper;
    let body = person::without_examples(&conversation.body);
    let words = body.iter().filter_map(person::words).find(|words| !words.trim().is_empty());
    let (Some(words), false) = (words, named) else { return };
    let words: String = words.chars().take(READ).collect();
    let Some(other) = app.servers.named(&model.upstream).map(Arc::clone) else { return };
    let id = prepared.id.clone();
    // Once, whatever comes of it.
    if app.lives.with(&id, |live| std::mem::replace(&mut live.work.titled, true)) {
        return;
    }
    let owned = Arc::clone(app);
    app.tasks.spawn(async move {
        let Some(errand) = begin_errand(&owned, &other, &model.model, (Asked::Other, &Arc::default())).await
        else {
            debug!(conversation = %id, "no title yet: others are served, or asking would push another model out of memory");
            return owned.lives.with(&id, |live| live.work.titled = false);
        };
        let asked = tokio::select! {
            () = errand.stopped() => return owned.lives.with(&id, |live| live.work.titled = false),
            asked = tokio::time::timeout(PATIENCE, title(&owned, &other, &model.model, &words, &id)) => asked,
        };
        let Some(title) = asked.ok().flatten() else { return };
        let kept = change_standing(&owned, &id, |standing| standing.title = Some(title.clone())).await;
        let renamed = Batch { about: Some((id.clone(), About::Title(title))), ..Batch::default() };
        if let Err(e) = kept.and(owned.store.record(renamed).await.map_err(Into::into)) {
            debug!(conversation = %id, error = %e, "a title was not recorded");
        }
    });
}

async fn title(app: &App, other: &Upstream, model: &str, words: &str, id: &str) -> Option<String> {
    let started = Instant::now();
    let messages = json!([{"role": "user", "content": format!("{words}\n\n{ASK}")}]);
    let body = json!({"model": model, "messages": messages, "max_tokens": WRITTEN, "temperature": 0, "stream": false});
    let options =
        ChatOptions { num_ctx: None, id_slot: slots(app, other, model, None).await.spare, ..ChatOptions::default() };
    let sent = other.chat(&headers::json(), "/v1/chat/completions", Bytes::from(body.to_string()), options).await;
    let (reply, _) = read_up_to(sent.ok()?.body, REPLY).await.ok()?;
    let mut reported = Reported::default();
    reported.read(&reply);
    app.metrics.spend("title", &reported);
    let data = reported.event("title", (other, model), 0, started.elapsed().as_millis() as u64);
    let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: "model_usage".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
    let reply: Value = serde_json::from_slice(&reply).ok()?;
    clean(reply.pointer("/choices/0/message/content")?.as_str()?)
}

/// What a model wrote as a title: its first line, without what models put around one; `None` where nothing is left.
fn clean(written: &str) -> Option<String> {
    let after_thinking = written.rsplit("</think>").next().unwrap_or(written);
    let line = after_thinking.lines().map(str::trim).find(|line| !line.is_empty())?;
    let line = line.strip_prefix("Title:").unwrap_or(line);
    let line = plain::line(line.trim().trim_matches(['"', '\'', '*', '#', '`', '“', '”', ' ']));
    let title = at_a_word(line.as_ref(), LONGEST).trim_end_matches('.').trim().to_owned();
    (title.chars().any(char::is_alphanumeric)).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_one_line_without_ornaments() {
        for (written, expect) in [
            ("Fix the login bug", Some("Fix the login bug")),
            ("\n**\"Fix the login bug.\"**\nIt is about …", Some("Fix the login bug")),
            ("<think>\nhm\n</think>\n\nTitle: Gardens in May", Some("Gardens in May")),
            ("Gärten 🌱 planen", Some("Gärten 🌱 planen")),
            ("", None),
            ("***", None),
        ] {
            assert_eq!(clean(written).as_deref(), expect, "{written:?}");
        }
        assert_eq!(clean(&"x".repeat(500)).unwrap().chars().count(), LONGEST);
        assert!(!clean("a\u{1b}[31mb").unwrap().contains('\u{1b}'));
    }
}
