//! Pins: texts and messages that a person wants the model to have through every fold and clear. Each is listed, priced and can be
//! taken back.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Asked, Ground, ground, record_view};
use super::price::{Price, price_of, priced};
use super::record::{row_of, spoken};
use super::steer::{SHORTEN, fitting, note_steered, why};
use super::timeline::{size, view_of};
use crate::clock::now_ms;
use crate::conversation::edit::Edit;
use crate::conversation::{Message, Tokens};
use crate::pinned;
use crate::plan::reason::AskedBy;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::state::standing::{ALL_PINS, LARGEST_PIN, Pinned, Standing, What, matched, standing_of, text};
use crate::proxy::state::steer::{Steer, When};
use crate::proxy::turn::repinned::with_pins;
use crate::proxy::turn::steering::absent;
use crate::proxy::{App, Error, aside, grouped};
use crate::store::{About, Batch};

/// Pins of one conversation.
const MOST: usize = 100;

/// What is to be pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinning {
    /// A text, word for word.
    Text(String),
    /// A message of the history.
    Message(usize),
}

/// A pin that is taken back, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpinned(pub u64);

/// `GET /windowsill/conversations/{id}/pins`: what is pinned, by whom, and what it costs.
///
/// # Errors
/// 404 for an unknown conversation.
pub async fn pins(app: &Arc<App>, id: &str) -> Result<Value, Error> {
    let (owned, id) = (Arc::clone(app), row_of(app, id)?.id);
    let work = async move {
        match ground(&owned, &id).await {
            Ok(ground) => Ok(listed(&ground)),
            // What is on record is readable without a server.
            Err(e) if e.status() >= 500 => listed_without_server(&owned, &id).map_err(|_| e),
            Err(e) => Err(e),
        }
    };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

/// What is pinned, as the record says it: sizes are estimates, and the window is that of the last request.
fn listed_without_server(app: &App, id: &str) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    let standing = standing_of(app, &row.id, None)?;
    let view = view_of(&app.store, &row)?;
    let folded = |at: usize| view.edits.iter().any(|e| matches!(e, Edit::Fold { .. }) && e.touches(at));
    let said = |at: usize| app.store.messages_between(&row.id, at, at.saturating_add(1)).ok()?.into_iter().next();
    let sizes = Sizes::of(&row.state);
    let mut sum: Tokens = 0;
    let mut pins = Vec::new();
    for pin in &standing.pins {
        let (text, at, tokens) = match &pin.what {
            What::Text(text) => (text.to_string(), None, sizes.text(text)),
            What::Message(at, _) => {
                let node = said(*at);
                let words = node.as_ref().map(|node| spoken(&String::from_utf8_lossy(&node.raw)));
                (words.unwrap_or_default(), Some(*at), node.map_or(0, |node| size(sizes, &node)))
            }
        };
        sum = sum.saturating_add(tokens);
        let stands = if at.is_some_and(|at| !folded(at)) { "history" } else { "brief" };
        pins.push(
            json!({"pin": pin.id, "by": by(pin), "rule": pin.rule, "message": at, "text": text, "tokens": tokens,
            "stands": stands, "created_ms": pin.created_ms}),
        );
    }
    let window = row.state["window"].as_u64().and_then(|n| Tokens::try_from(n).ok());
    Ok(json!({
        "conversation": row.id, "pins": pins, "tokens": sum, "window": window, "most": window.map(|w| w / ALL_PINS),
        "most_each": window.map(|w| w / LARGEST_PIN), "paused": standing.paused, "waiting": standing.waiting(&view), "tools": standing.tools,
    }))
}

/// Pins a text or a message, or says what that would cost.
///
/// # Errors
/// 404 for an unknown conversation or message; 400 for a pin that says nothing or takes too much of the window.
pub async fn pin(
    app: &Arc<App>,
    id: &str,
    what: Pinning,
    (when, dry_run): (When, bool),
    by: AskedBy,
) -> Result<Value, Error> {
    let (owned, id) = (Arc::clone(app), id.to_owned());
    let work = async move {
        let ground = ground(&owned, &id).await?;
        let what = pinnable(&owned, &ground, what)?;
        let id = ground.standing.numbered + 1;
        let pin = Pinned { id, what: what.clone(), created_ms: now_ms(), rule: None, by_agent: by == AskedBy::Agent };
        let mut standing = Standing { numbered: id, ..Standing::clone(&ground.standing) };
        standing.pins.push(pin);
        if let (When::NextBreak, Some(at)) = (when, what.place(&ground.request.conversation.body)) {
            let left = ground.old().edits.iter().any(|e| !matches!(e, Edit::Fold { .. }) && e.touches(at));
            standing.wishes.extend(left.then_some(Steer::Restore(at)));
        }
        let mut told = restand(&owned, &ground, standing, ("pin", by), (when, dry_run)).await?;
        told["pin"] = json!(id);
        Ok(told)
    };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

/// Takes a pin back, or says what that would cost.
///
/// # Errors
/// 404 for an unknown conversation or pin.
pub async fn unpin(
    app: &Arc<App>,
    id: &str,
    Unpinned(number): Unpinned,
    (when, dry_run): (When, bool),
    by: AskedBy,
) -> Result<Value, Error> {
    let (owned, id) = (Arc::clone(app), id.to_owned());
    let work = async move {
        let ground = ground(&owned, &id).await?;
        let mut standing = Standing::clone(&ground.standing);
        standing.pins.retain(|pin| pin.id != number);
        if standing.pins.len() == ground.standing.pins.len() {
            let message = format!("conversation {id} has no pin {number}");
            return Err(Error::client(404, "not_found", message, "`windowsill pin ID` lists them"));
        }
        restand(&owned, &ground, standing, ("unpin", by), (when, dry_run)).await
    };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

/// Goes over to other pins: now, with a view that has them, or at the next break.
async fn restand(
    app: &App,
    ground: &Ground,
    standing: Standing,
    (action, by): (&'static str, AskedBy),
    (when, dry_run): (When, bool),
) -> Result<Value, Error> {
    let started = Instant::now();
    let id = &ground.row.id;
    let with = |standing: &Standing| {
        with_pins(app, &ground.subject(), (&ground.facts, ground.policy()), ground.old().clone(), standing)
    };
    let mut view = if when == When::Now { with(&standing) } else { ground.old().clone() };
    // Where this change by itself rewrites nothing, pins that wait for a rewrite go on waiting.
    if view.edits != ground.old().edits && view.edits == with(&ground.standing).edits {
        view = ground.old().clone();
    }
    let changes = view.edits != ground.old().edits;
    let price = if changes { price_of(app, ground, &view).await } else { Price::nothing(ground) };
    fitting(ground, &price, SHORTEN)?;
    if !dry_run {
        let about = Some((id.clone(), About::Standing(text(&standing))));
        let _turn = app.standing_turn.lock().await;
        if *standing_of(app, id, None)? != *ground.standing {
            let message = "somebody else changed this conversation at the same moment";
            return Err(Error::client(409, "changed", message, "look again, and then try again"));
        }
        if changes {
            let because = vec![why(&price, action, format!("what is pinned changed: {action}"))];
            let batch = Batch { about, ..Batch::default() };
            let asked = Asked { by, action, because, focus: None, undoes: None, started };
            record_view(app, ground, &price, view, asked, batch).await?;
        } else {
            app.store.record(Batch { about, durable: true, ..Batch::default() }).await?;
        }
        note_steered(app, id, action, when);
    }
    Ok(priced(app, ground, &price, when, dry_run))
}

/// What may be pinned; refused with numbers where it takes too much.
fn pinnable(app: &App, ground: &Ground, what: Pinning) -> Result<What, Error> {
    let window = ground.facts.window;
    let (body, sizes) = (&ground.request.conversation.body, Sizes::of(&ground.row.state));
    let (what, tokens) = match what {
        Pinning::Text(text) => {
            let text = text.trim();
            if text.is_empty() {
                return Err(bad("an empty text cannot be pinned".into(), "send what the model should always have"));
            }
            (What::Text(Arc::from(text)), sizes.text(text))
        }
        Pinning::Message(at) => {
            let message = body.get(at).ok_or_else(|| absent(app, &ground.row.id, at))?;
            (What::Message(at, message.digest), sizes.message(message))
        }
    };
    if ground.standing.pins.iter().any(|pin| pin.what == what) {
        return Err(Error::client(409, "nothing_to_do", "it is pinned already", ""));
    }
    if ground.standing.pins.len() >= MOST {
        return Err(bad(format!("{MOST} things are pinned already, which is the most"), "take one back first"));
    }
    if tokens > window / LARGEST_PIN {
        let most = window / LARGEST_PIN;
        let message = format!(
            "it has about {} tokens, and a pin may have {}: a tenth of the window of {}, or little room is left for work",
            grouped(tokens),
            grouped(most),
            grouped(window)
        );
        return Err(bad(message, "pin the sentence that matters, as a text"));
    }
    let held = weight(ground);
    if held.saturating_add(tokens) > window / ALL_PINS {
        let most = window / ALL_PINS;
        let message = format!(
            "about {} tokens are pinned already and this has about {}: all pins may have {}, a quarter of the window of {}",
            grouped(held),
            grouped(tokens),
            grouped(most),
            grouped(window)
        );
        return Err(bad(message, "take another one back first"));
    }
    Ok(what)
}

/// About the tokens of all that is pinned: those that the list tells of each pin, added up.
fn weight(ground: &Ground) -> Tokens {
    let (body, sizes) = (&ground.request.conversation.body, Sizes::of(&ground.row.state));
    let of = |pin: &Pinned| told_size(pin, body, sizes);
    let own = ground.standing.pins.iter().map(of);
    let lines = matched(body, &ground.policy().pins).into_iter().map(|found| sizes.text(&found.line));
    own.chain(lines).fold(0, Tokens::saturating_add)
}

/// About the tokens of a pin: as any other place tells of that message, or of the text by itself.
fn told_size(pin: &Pinned, body: &[Message], sizes: Sizes) -> Tokens {
    match &pin.what {
        What::Text(text) => sizes.text(text),
        What::Message(..) => pin.what.place(body).map_or(0, |at| sizes.message(&body[at])),
    }
}

fn listed(ground: &Ground) -> Value {
    let sizes = Sizes::of(&ground.row.state);
    let body = &ground.request.conversation.body;
    let old = ground.old();
    let folded = |at: usize| old.edits.iter().any(|e| matches!(e, Edit::Fold { .. }) && e.touches(at));
    let brief = old.edits.iter().find_map(|e| if let Edit::Fold { brief, .. } = e { Some(brief) } else { None });
    let in_brief = |text: &str| {
        let block = brief.map(|brief| &brief[..brief.len() - pinned::without(brief).len()]);
        block.is_some_and(|block| block.contains(&text.replace('\n', "\n  ")))
    };
    let stands = |at: Option<usize>, text: &str| match at {
        Some(at) if !folded(at) => "history",
        _ if in_brief(text) => "brief",
        _ => "waits",
    };
    let own = ground.standing.pins.iter().map(|pin| {
        let place = pin.what.place(body);
        let (text, at) = match &pin.what {
            What::Text(text) => (text.as_ref(), ground.held.texts.iter().find(|p| p.text == *text).and_then(|p| p.at)),
            What::Message(..) => (place.map_or("", |at| body[at].text.as_str()), place),
        };
        let tokens = told_size(pin, body, sizes);
        json!({"pin": pin.id, "by": by(pin), "rule": pin.rule, "message": place, "text": text, "tokens": tokens,
            "stands": stands(at, text), "created_ms": pin.created_ms})
    });
    let by_pattern = matched(body, &ground.policy().pins).into_iter().map(|found| {
        let pattern = &ground.policy().pins[found.pattern];
        json!({"pin": Value::Null, "by": pattern.source, "match": pattern.text(), "message": found.at,
            "text": found.line, "tokens": sizes.text(&found.line),
            "stands": stands(Some(found.at), &found.line)})
    });
    json!({
        "conversation": ground.row.id, "pins": own.chain(by_pattern).collect::<Vec<_>>(),
        "tokens": weight(ground), "window": ground.facts.window, "most": ground.facts.window / ALL_PINS,
        "most_each": ground.facts.window / LARGEST_PIN, "paused": ground.standing.paused,
        "waiting": ground.standing.waiting(ground.old()), "tools": ground.standing.tools,
    })
}

/// Who pinned it.
fn by(pin: &Pinned) -> String {
    let who = if pin.by_agent { AskedBy::Agent } else { AskedBy::User };
    pin.rule.map_or_else(|| who.as_str().to_owned(), |n| format!("rule {n}"))
}

fn bad(message: String, hint: &str) -> Error {
    Error::client(400, "bad_pin", message, hint)
}
