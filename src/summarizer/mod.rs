//! Asks a model for a brief. The call always fits the summarizer's own window: either it continues the very prompt that
//! the server holds, so that only the instruction is evaluated, or it is a flat transcript cut to fit.

pub mod digest;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;

use crate::conversation::{Message, Role, Tokens};
use crate::plan::rewrite::Out;
use crate::upstream::{ChatOptions, Upstream};
use crate::wire::{json, openai_chat};

use crate::brief;

/// The largest reply that is read.
const LARGEST_REPLY: usize = 4 << 20;

/// Request fields that are the client's wishes for its own reply and have no place in a summary's.
const DROPPED: [&str; 15] = [
    "stream_options",
    "max_completion_tokens",
    "n_predict",
    "n",
    "n_cmpl",
    "response_format",
    "grammar",
    "json_schema",
    "stop",
    "logprobs",
    "top_logprobs",
    "prediction",
    "store",
    "return_progress",
    "timings_per_token",
];

/// How the client wants its own replies to be spread: a summary has its own temperature, and nothing else.
const SAMPLING: [&str; 15] = [
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "mirostat",
    "dynatemp_range",
    "xtc_probability",
    "dry_multiplier",
    "logit_bias",
    "samplers",
];

/// What is wanted of a summary.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Most tokens that the model may write.
    pub max_tokens: Tokens,
    /// The temperature that it is written at.
    pub temperature: f64,
    /// What the person who asked wants kept.
    pub focus: Option<&'a str>,
}

/// What a summary is made of and by whom.
pub struct Job<'a> {
    /// Who writes it.
    pub upstream: &'a Upstream,
    /// The client's headers: its authorization, mostly.
    pub headers: &'a HeaderMap,
    /// How requests to this model are sent.
    pub options: ChatOptions,
    /// The client's request, whose other fields a continuation keeps, so that the prompt starts with the same bytes.
    pub request: &'a openai_chat::Request,
    /// The model to ask, where it is not the conversation's own.
    pub other_model: Option<&'a str>,
    /// The view whose first messages the server holds.
    pub view: &'a [Out],
    /// The messages a flat transcript is made of.
    pub messages: &'a [&'a Message],
    /// The last brief.
    pub previous: Option<&'a str>,
    /// The summarizer's own window.
    pub window: Tokens,
    /// What is wanted.
    pub wanted: Wanted<'a>,
    /// Tokens of a text, erring high.
    pub count: &'a (dyn Fn(&str) -> Tokens + Send + Sync),
    /// The longest it may take.
    pub limit: Duration,
    /// Whether a useless answer is worth another try, as a flat transcript: not while somebody waits, nor where that would
    /// take the conversation's prompt out of the server's cache.
    pub retry: bool,
    /// The slot for a prompt that shares nothing with the conversation's; `None`: the server's choice.
    pub spare_slot: Option<u32>,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// What the model wrote, judged and cleaned; `None` when that is of no use.
    pub text: Option<String>,
    /// The reply as it came, for its figures.
    pub reply: Bytes,
    /// In a few words: how it was asked, or why there is nothing.
    pub how: String,
    /// Whether the reply went on from the conversation's own prompt, in the slot that holds it.
    pub continued: bool,
    /// How many messages of the view were read for it: the newest are left out where the window has no room for them.
    pub read: usize,
}

impl Answer {
    /// Of a model that nobody waited for any longer.
    pub fn broken_off() -> Answer {
        Answer { text: None, reply: Bytes::new(), how: "it was broken off".to_owned(), continued: false, read: 0 }
    }
}

/// Asks for a brief; once more, as a flat transcript, when the first answer is of no use.
pub async fn ask(job: &Job<'_>) -> Answer {
    let instruction = brief::instruction(job.wanted.focus, job.wanted.max_tokens, None);
    let mut last = None;
    if let Some((body, read)) = continuation(job, &instruction).await {
        let answer = send(job, &body, job.options, &instruction, "asked behind the prompt").await;
        if answer.text.is_some() || !job.retry {
            return Answer { continued: true, read, ..answer };
        }
        last = Some(answer);
    }
    let options = ChatOptions { id_slot: job.spare_slot, ..job.options };
    let answer = send(job, &flat(job, &instruction), options, &instruction, "asked with a transcript").await;
    match last {
        Some(first) if answer.text.is_none() => Answer { how: format!("{}; {}", first.how, answer.how), ..answer },
        _ => answer,
    }
}

/// A request that only has the server evaluate a prompt: the client's own, with these messages and a reply of one token.
pub fn prefill(request: &openai_chat::Request, view: &[Out]) -> Bytes {
    let messages: Vec<Bytes> = view.iter().map(|m| m.bytes.clone()).collect();
    let mut changes: Vec<(&str, Option<&str>)> = DROPPED.iter().map(|k| (*k, None)).collect();
    changes.extend([("stream", Some("false")), ("max_tokens", Some("1"))]);
    openai_chat::write(request, &messages, &changes)
}

/// A number as it is written: 0, not 0.0.
fn number(of: f64) -> serde_json::Value {
    serde_json::from_str(&of.to_string()).unwrap_or_default()
}

fn changes(job: &Job<'_>) -> Vec<(&'static str, Option<String>)> {
    let mut out: Vec<(&'static str, Option<String>)> = DROPPED.iter().chain(&SAMPLING).map(|k| (*k, None)).collect();
    out.push(("stream", Some("false".into())));
    out.push(("temperature", Some(number(job.wanted.temperature).to_string())));
    out.push(("max_tokens", Some(job.wanted.max_tokens.to_string())));
    if let Some(model) = job.other_model {
        // How long the client wants its own model in memory says nothing of this one.
        out.extend([("model", Some(json::quote(model))), ("keep_alive", None)]);
    } else if job.request.unloads() {
        // The request that waits for this needs the model next, and unloads it itself.
        out.push(("keep_alive", Some("\"1m\"".into())));
    }
    out
}

/// The request that continues the prompt, if it fits the window; without the newest steps, if it must.
async fn continuation(job: &Job<'_>, instruction: &str) -> Option<(Bytes, usize)> {
    if job.other_model.is_some() {
        return None;
    }
    let room = job.window.saturating_sub(job.wanted.max_tokens + 32);
    let mut view = job.view;
    for _ in 0..3 {
        if view.is_empty() {
            return None;
        }
        if let Some(needed) = far_too_long(job, view, room) {
            view = shorter(job, view, needed - room);
            continue;
        }
        let body = continued(job, view, instruction);
        let needed = match job.upstream.can_count() {
            true => job.upstream.count(&body).await.ok(),
            false => None,
        };
        let needed = needed.unwrap_or_else(|| (job.count)(&String::from_utf8_lossy(&body)));
        if needed <= room {
            return Some((body, view.len()));
        }
        view = shorter(job, view, needed - room);
    }
    None
}

/// More bytes for each token of the window than any text has.
const DENSEST: usize = 64;

/// The estimated size of a view that is far too long for the window: then nothing is written, sent or counted to know it.
fn far_too_long(job: &Job<'_>, view: &[Out], room: Tokens) -> Option<Tokens> {
    let bytes: usize = view.iter().map(|m| m.bytes.len()).sum();
    if bytes / DENSEST <= room as usize {
        return None;
    }
    let sizes = view.iter().map(|m| (job.count)(&String::from_utf8_lossy(&m.bytes)));
    Some(sizes.fold(0, Tokens::saturating_add)).filter(|needed| *needed > room)
}

/// The view without newest messages of at least `tokens` tokens; cut where a step begins.
fn shorter<'a>(job: &Job<'_>, view: &'a [Out], tokens: Tokens) -> &'a [Out] {
    let mut dropped: Tokens = 0;
    for at in (1..view.len()).rev() {
        dropped += (job.count)(&String::from_utf8_lossy(&view[at].bytes));
        if dropped >= tokens && view[at].role != Role::Tool {
            return &view[..at];
        }
    }
    &[]
}

/// The same prompt with the instruction behind it. In a user message of its own, or, where the last message is the
/// user's, at its end, since roles must alternate on strict templates.
fn continued(job: &Job<'_>, view: &[Out], instruction: &str) -> Bytes {
    let mut messages: Vec<Bytes> = view.iter().map(|m| m.bytes.clone()).collect();
    match (view.last(), messages.last_mut()) {
        (Some(out), Some(last)) if out.role == Role::User => {
            *last = openai_chat::with_text_appended(last, &format!("\n\n{instruction}"));
        }
        _ => messages.push(openai_chat::new_message("user", instruction)),
    }
    write(job, &messages, &[])
}

fn flat(job: &Job<'_>, instruction: &str) -> Bytes {
    let text = question((job.messages, job.previous), (job.window, job.wanted.max_tokens), instruction, job.count);
    write(job, &[openai_chat::new_message("user", &text)], &FLAT)
}

/// Fields that a request with a flat transcript does not have.
const FLAT: [(&str, Option<String>); 2] = [("tools", None), ("tool_choice", None)];

/// All that a model reads which is asked with a flat transcript of these messages, and of the brief before them, in a window of so many
/// tokens, for so many.
fn question(
    (messages, previous): (&[&Message], Option<&str>),
    (window, max_tokens): (Tokens, Tokens),
    instruction: &str,
    count: &dyn Fn(&str) -> Tokens,
) -> String {
    let own = count(instruction) + max_tokens + 64;
    // A tenth is left for what the estimate may miss.
    let budget = (window.saturating_sub(own) / 10 * 9).max(64);
    format!("{}\n\n{instruction}", brief::transcript(messages, previous, budget, count))
}

/// A prompt as it would be asked with a flat transcript, and its words: what a brief costs is known before.
pub fn foreseen(
    request: &openai_chat::Request,
    folded: (&[&Message], Option<&str>),
    window: Tokens,
    wanted: &Wanted<'_>,
    count: &dyn Fn(&str) -> Tokens,
) -> (Bytes, String) {
    let instruction = brief::instruction(wanted.focus, wanted.max_tokens, None);
    let text = question(folded, (window, wanted.max_tokens), &instruction, count);
    let message = openai_chat::new_message("user", &text);
    (openai_chat::write(request, &[message], &[("tools", None), ("tool_choice", None)]), text)
}

fn write(job: &Job<'_>, messages: &[Bytes], more: &[(&'static str, Option<String>)]) -> Bytes {
    let all = changes(job);
    let refs: Vec<(&str, Option<&str>)> = all.iter().chain(more).map(|(k, v)| (*k, v.as_deref())).collect();
    openai_chat::write(job.request, messages, &refs)
}

async fn send(job: &Job<'_>, body: &Bytes, options: ChatOptions, instruction: &str, how: &str) -> Answer {
    let nothing =
        |reply: Bytes, why: String| Answer { text: None, reply, how: format!("{how}: {why}"), ..Answer::default() };
    let asked = tokio::time::timeout(job.limit, exchange(job.upstream, job.headers, options, body)).await;
    let reply = match asked {
        Err(_) => return nothing(Bytes::new(), format!("no answer within {} s", job.limit.as_secs())),
        Ok(Err(why)) => return nothing(Bytes::new(), why),
        Ok(Ok(reply)) => reply,
    };
    let text = serde_json::from_slice::<serde_json::Value>(&reply)
        .ok()
        .and_then(|v| v.pointer("/choices/0/message/content").and_then(|c| c.as_str().map(str::to_owned)))
        .unwrap_or_default();
    let material = brief::Material {
        messages: job.messages,
        numbers: &[],
        previous: job.previous,
        history_path: "",
        conversation: "",
        records: &[],
    };
    match brief::judge(&text, instruction, &material, job.wanted.max_tokens, job.count) {
        Ok(text) => Answer { text: Some(text), reply, how: how.to_owned(), continued: false, read: job.view.len() },
        Err(fault) => nothing(reply, format!("what it wrote was not used, because {fault}")),
    }
}

/// Sends a request of ours and reads the whole reply.
async fn exchange(
    upstream: &Upstream,
    headers: &HeaderMap,
    options: ChatOptions,
    body: &Bytes,
) -> Result<Bytes, String> {
    let reply =
        upstream.chat(headers, "/v1/chat/completions", body.clone(), options).await.map_err(|e| e.to_string())?;
    let status = reply.status;
    let mut stream = reply.body;
    let mut out = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        out.extend_from_slice(&chunk.map_err(|e| e.to_string())?);
        if out.len() > LARGEST_REPLY {
            return Err("the reply is too large".into());
        }
    }
    if !status.is_success() {
        return Err(format!("the server answered {status}"));
    }
    Ok(out.freeze())
}
