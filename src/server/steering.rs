//! What people ask to have changed in a conversation: pins, folds, results in or out of the prompt, a new conversation built from
//! an old one.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::table::Found;
use crate::proxy::{self, App, AskedBy, Chosen, Compaction, Error, Other, Pinning, Steer, Unpinned, When};

/// What can be changed in a conversation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Steering {
    Compact,
    Again,
    Restore,
    Clear,
    Evict,
    Brief,
    Undo,
    Pin,
    Unpin,
    Rewriting,
    Tools,
    ForgetWaiting,
    Recalled,
    Checkpoint,
    Resume,
    Build,
    Rename,
    Star,
    Delete,
    Load,
    Unload,
    Drain,
}

/// Changes a conversation, or says what that would cost.
pub(super) async fn answer(app: &Arc<App>, steering: Steering, found: &Found, body: &Bytes) -> Result<Value, Error> {
    let id = found.named(0);
    match steering {
        Steering::Compact => {
            let Compact { focus, when, dry_run, write_brief } = asked(body)?;
            proxy::compact(app, id, Compaction { focus, when, dry_run, write_brief }).await
        }
        Steering::Again => {
            let Another { messages, brief, focus, line } = asked(body)?;
            proxy::again(app, id, Other { messages, brief, focus, line }).await
        }
        Steering::Restore | Steering::Clear | Steering::Evict | Steering::Brief | Steering::Undo => {
            let wish: Wish = asked(body)?;
            let (when, dry_run) = (wish.when, wish.dry_run);
            proxy::steer(app, id, steer(steering, wish)?, when, dry_run).await
        }
        Steering::Pin => {
            let wish: Wish = asked(body)?;
            let (when, dry_run, always) = (wish.when, wish.dry_run, wish.always);
            let by = wish.by.unwrap_or_default().into();
            let what = pinning(wish)?;
            if always && !dry_run {
                return always_pinned(app, id, what, when).await;
            }
            proxy::pin(app, id, what, (when, dry_run), by).await
        }
        Steering::Unpin => unpin(app, id, found.named(1), body).await,
        Steering::Rewriting => {
            let Rewriting { on } = asked(body)?;
            let hint = "send {\"on\": false} to stop it, {\"on\": true} to take it up again";
            let on = on.ok_or_else(|| Error::client(400, "bad_request", "`rewriting` needs `on`", hint))?;
            proxy::pause(app, id, !on).await
        }
        Steering::Tools => {
            let Tools { listing } = asked(body)?;
            proxy::list_tools(app, id, listing.as_deref()).await
        }
        Steering::ForgetWaiting => proxy::forget_wishes(app, id).await,
        Steering::Recalled => {
            let Useful { message, useful } = asked(body)?;
            let hint = "send {\"message\": N}, counted from 0, and {\"useful\": true} to take it back";
            let at = message.ok_or_else(|| Error::client(400, "bad_request", "`recalled` needs `message`", hint))?;
            proxy::recalled(app, id, at, useful).await
        }
        Steering::Checkpoint => {
            let Done { note, by } = asked(body)?;
            proxy::checkpoint(app, id, &note, by.into()).await
        }
        Steering::Resume => {
            let Nothing {} = asked(body)?;
            proxy::resume(app, id).await
        }
        Steering::Rename => {
            let Titled { title } = asked(body)?;
            proxy::rename(app, id, &title).await
        }
        Steering::Star => {
            let Rewriting { on } = asked(body)?;
            proxy::star(app, id, on.unwrap_or(true)).await
        }
        Steering::Delete => {
            let Nothing {} = asked(body)?;
            proxy::delete(app, id).await
        }
        Steering::Load => proxy::load_model(app, &asked(body)?).await,
        Steering::Unload => proxy::unload_model(app, &asked(body)?).await,
        Steering::Drain => {
            let Rewriting { on } = asked(body)?;
            proxy::drain(app, id, on.unwrap_or(true))
        }
        Steering::Build => {
            let Choice { turns, briefs } = asked(body)?;
            let turns = turns.iter().map(chosen).collect::<Result<Vec<_>, _>>()?;
            proxy::build(app, id, &turns, &briefs)
        }
    }
}

/// Answers `POST /windowsill/rules`.
pub(super) async fn add_rule(app: &Arc<App>, body: &Bytes) -> Result<Value, Error> {
    let Ruling { conversation, text } = asked(body)?;
    proxy::add_rule(app, &conversation, &text).await
}

/// Answers `PUT /windowsill/rules/{number}`.
pub(super) async fn edit_rule(app: &Arc<App>, number: &str, body: &Bytes) -> Result<Value, Error> {
    let Words { text } = asked(body)?;
    proxy::edit_rule(app, rule(number)?, &text).await
}

/// Answers `DELETE /windowsill/rules/{number}`.
pub(super) async fn remove_rule(app: &Arc<App>, number: &str, body: &Bytes) -> Result<Value, Error> {
    let Nothing {} = asked(body)?;
    proxy::remove_rule(app, rule(number)?).await
}

fn rule(number: &str) -> Result<i64, Error> {
    number.parse().map_err(|_| Error::client(404, "not_found", "rules are named by their number, from 1", ""))
}

/// Pins a text here and makes it a rule of the project.
async fn always_pinned(app: &Arc<App>, id: &str, what: Pinning, when: When) -> Result<Value, Error> {
    let Pinning::Text(text) = &what else {
        let hint = "pin the sentence that matters, as a text";
        return Err(Error::client(400, "bad_rule", "a message of one conversation is no rule for others", hint));
    };
    let rule = proxy::add_rule(app, id, text).await?;
    match proxy::pin(app, id, what, (when, false), AskedBy::User).await {
        Ok(mut told) => {
            told["rule"] = rule["rule"].clone();
            Ok(told)
        }
        Err(e) => {
            // It is one or the other: a rule that nobody was told of would be a surprise later.
            let number = rule["rule"].as_i64().unwrap_or(0);
            proxy::remove_rule(app, number).await?;
            Err(e)
        }
    }
}

async fn unpin(app: &Arc<App>, id: &str, number: &str, body: &Bytes) -> Result<Value, Error> {
    let Options { when, dry_run, by } = asked(body)?;
    let unnamed = |_| Error::client(404, "not_found", "pins are named by their number, from 1", "");
    proxy::unpin(app, id, Unpinned(number.parse().map_err(unnamed)?), (when, dry_run), by.into()).await
}

/// Answers `POST /windowsill/records/{id}/ask`.
pub(super) async fn ask(app: &Arc<App>, id: &str, body: &Bytes) -> Result<Value, Error> {
    let Question { question, conversation } = asked(body)?;
    proxy::ask_original(app, id, conversation.as_deref(), &question).await
}

/// What is asked of an original.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Question {
    question: String,
    conversation: Option<String>,
}

/// What of a request is to be other when it is sent again.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Another {
    messages: Option<usize>,
    brief: Option<String>,
    focus: Option<String>,
    line: Option<f64>,
}

/// Whether what came back by itself behind a message helps.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Useful {
    message: Option<usize>,
    useful: bool,
}

/// What is to be done with the client's tools.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Tools {
    listing: Option<String>,
}

/// What is said of a task that is done.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Done {
    note: String,
    by: By,
}

/// A rule for the project of a conversation.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Ruling {
    conversation: String,
    text: String,
}

/// Other words for something.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Words {
    text: String,
}

/// What a conversation is called.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Titled {
    title: String,
}

/// What takes no fields.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Nothing {}

/// What a fold is asked for with.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Compact {
    focus: Option<String>,
    when: When,
    dry_run: bool,
    write_brief: bool,
}

/// Whether a conversation is rewritten at all.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Rewriting {
    on: Option<bool>,
}

/// What a new conversation is built from.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Choice {
    turns: Vec<Named>,
    briefs: Vec<usize>,
}

/// A turn by its number, or a step as text: `"4.2"`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Named {
    Turn(usize),
    Step(String),
}

fn chosen(named: &Named) -> Result<Chosen, Error> {
    match named {
        Named::Turn(turn) => Ok(Chosen { turn: *turn, step: None }),
        Named::Step(text) => text.parse().map_err(|()| {
            let message = format!("`{text}` is neither a turn nor a step of one");
            Error::client(400, "bad_selection", message, "turns are numbers, a step is text: [3, \"4.2\"]")
        }),
    }
}

/// When a pin is taken out.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Options {
    when: When,
    dry_run: bool,
    by: By,
}

/// Who asks.
#[derive(Clone, Copy, serde::Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum By {
    #[default]
    User,
    Agent,
}

impl From<By> for AskedBy {
    fn from(by: By) -> AskedBy {
        match by {
            By::User => AskedBy::User,
            By::Agent => AskedBy::Agent,
        }
    }
}

/// What a view is changed with.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Wish {
    message: Option<usize>,
    text: Option<String>,
    when: When,
    dry_run: bool,
    /// Of a pin: new conversations of the project get it, too.
    always: bool,
    /// Of a pin: who asks for it.
    by: Option<By>,
}

fn pinning(wish: Wish) -> Result<Pinning, Error> {
    match (wish.message, wish.text) {
        (Some(at), None) => Ok(Pinning::Message(at)),
        (None, Some(text)) => Ok(Pinning::Text(text)),
        _ => {
            let hint = "send {\"text\": \"…\"}, or {\"message\": N}, counted from 0";
            Err(Error::client(400, "bad_request", "a pin is a text or a message", hint))
        }
    }
}

fn steer(steering: Steering, wish: Wish) -> Result<Steer, Error> {
    let Wish { message, text, always, by, .. } = wish;
    let hint = match (steering, message, text) {
        _ if always => "`always` is for pins",
        _ if by.is_some() => "`by` is for pins",
        (Steering::Restore, Some(at), None) => return Ok(Steer::Restore(at)),
        (Steering::Clear, Some(at), None) => return Ok(Steer::Clear(at)),
        (Steering::Evict, Some(at), None) => return Ok(Steer::Evict(at)),
        (Steering::Brief, None, Some(text)) => return Ok(Steer::Brief(text)),
        (Steering::Undo, None, None) => return Ok(Steer::Undo),
        (Steering::Brief, ..) => "send {\"text\": \"…\"}",
        (Steering::Undo, ..) => "send {} or {\"dry_run\": true}",
        _ => "send {\"message\": N}, counted from 0",
    };
    let what = format!("{steering:?}").to_lowercase();
    Err(Error::client(400, "bad_request", format!("`{what}` does not take that"), hint))
}

/// The body of a request that steers. An empty one asks for nothing in particular.
pub(super) fn asked<T: serde::de::DeserializeOwned + Default>(body: &Bytes) -> Result<T, Error> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|e| {
        // In words of JSON, not of the types that it is read into.
        let said = e.to_string().replace("usize", "a whole number from 0 on").replace(
            "data did not match any variant of untagged enum Named",
            "a turn is a number, and a step a text such as \"4.2\"",
        );
        let message = format!("the body is not what is taken here: {said}");
        Error::client(400, "bad_json", message, "docs/page.md lists what is")
    })
}
