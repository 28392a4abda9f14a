//! A person steers what the model sees of one conversation: a result back in full, a result out of the prompt, another brief, the
//! last change undone, a text or a message pinned. Each has a price, which is told before anything is done, and can wait until
//! something is rewritten anyway. The originals stay as they are, whatever is asked.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Asked, Ground, ground, record_view, whole_row};
use super::price::{Price, price_of, priced};
use super::rewrites::{self, Undoable};
use super::timeline::view_of;
use super::warm::Cache;
use crate::admission::Listing;
use crate::clock::now_ms;
use crate::conversation::edit::{Edit, View};
use crate::plan::reason::{AskedBy, TOOK_BACK};
use crate::plan::{self, Because, Facts, Regions};
use crate::proxy::state::standing::{Standing, UNWANTED, change_standing, standing_of};
use crate::proxy::state::steer::{Steer, When};
use crate::proxy::turn::repinned::with_pins;
use crate::proxy::turn::steering::{nothing, steered};
use crate::proxy::{App, Error, aside, grouped};
use crate::store::{Batch, Event};
use crate::upstream::{Flavor, Kind};

/// Events that are looked at for what can be undone, the newest.
const CHANGES: usize = 5_000;

/// What helps where a change would not fit.
pub(in crate::proxy) const SHORTEN: &str = "clear or fold something first";

/// What is said of a change that frees nothing.
const LONGER: &str = "this frees nothing: what stands in its place, with the tool that reads it back, takes as much as the message or more";

/// Changes that may wait for one break.
const WAITING: usize = 32;

/// Changes a conversation's view, or says what that would cost.
///
/// # Errors
/// 404 for an unknown conversation, 409 where there is nothing to do or it would not fit, 400 for what makes no sense.
pub async fn steer(app: &Arc<App>, id: &str, what: Steer, when: When, dry_run: bool) -> Result<Value, Error> {
    let (owned, id) = (Arc::clone(app), id.to_owned());
    let work = async move { steer_now(&owned, &id, &what, when, dry_run).await };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

async fn steer_now(app: &Arc<App>, id: &str, what: &Steer, when: When, dry_run: bool) -> Result<Value, Error> {
    let started = Instant::now();
    let ground = ground(app, id).await?;
    if *what == Steer::Undo {
        let last = earlier(app, &ground)?;
        return match when {
            When::Now => undo(app, &ground, last, dry_run, started).await,
            When::NextBreak => wish(app, &ground, what, dry_run).await,
        };
    }
    let (view, originals) = steered(app, &ground.subject(), what)?;
    let is_same = view.edits == ground.old().edits;
    // What waits may put back what another change that waits takes out, but nothing gets shorter by waiting.
    if when == When::NextBreak && !(is_same && matches!(what, Steer::Clear(_) | Steer::Evict(_))) {
        return wish(app, &ground, what, dry_run).await;
    }
    if is_same {
        return Err(nothing(match what {
            // A line or a preview may take as many tokens as the result.
            Steer::Clear(_) | Steer::Evict(_) => {
                "that message is short already: nothing shorter would stand in its place"
            }
            _ => "the model sees it like that already",
        }));
    }
    let price = price_of(app, &ground, &view).await;
    fitting(&ground, &price, SHORTEN)?;
    if !dry_run {
        let batch = Batch { originals, ..Batch::default() };
        let because = vec![why(&price, what.as_str(), what.what())];
        let action = what.as_str();
        let asked = Asked { by: AskedBy::User, action, because, focus: None, undoes: None, started };
        record_view(app, &ground, &price, view, asked, batch).await?;
    }
    let mut told = priced(app, &ground, &price, when, dry_run);
    if matches!(what, Steer::Clear(_) | Steer::Evict(_)) && price.after >= price.before && told["note"].is_null() {
        told["note"] = json!(LONGER);
    }
    Ok(told)
}

/// Has a change wait for the next break.
pub(in crate::proxy) async fn wish(app: &App, ground: &Ground, what: &Steer, dry_run: bool) -> Result<Value, Error> {
    let id = &ground.row.id;
    if *what == Steer::Undo {
        let hint = "undo it now, or leave it: at the next break something else is the last rewrite";
        return Err(Error::client(400, "bad_request", "undo cannot wait for the next break", hint));
    }
    if ground.standing.wishes.len() >= WAITING {
        let message = format!("{WAITING} changes of this conversation wait already");
        return Err(Error::client(409, "too_many", message, "do one of them now"));
    }
    let price = Price::nothing(ground);
    if !dry_run {
        let wish = what.clone();
        change_standing(app, id, |standing| {
            standing.wishes.retain(|known| known.as_str() != "focus" || wish.as_str() != "focus");
            if !standing.wishes.contains(&wish) {
                standing.wishes.push(wish);
            }
        })
        .await?;
        note_steered(app, id, what.as_str(), When::NextBreak);
    }
    Ok(priced(app, ground, &price, When::NextBreak, dry_run))
}

/// Takes back the last change of the view that stands, or says what that is and what it would cost.
async fn undo(
    app: &App,
    ground: &Ground,
    (view, last): (View, Undoable),
    dry_run: bool,
    started: Instant,
) -> Result<Value, Error> {
    let mut price = price_of(app, ground, &view).await;
    let keeps_older =
        matches!(ground.situation.upstream.kind(), Some(Kind::LlamaServer { .. } | Kind::OpenAi(Flavor::LlamaSwap)));
    if price.cache == Cache::Held && keeps_older && price.again > 0 {
        price.cache = Cache::MayKeepOlder;
    }
    fitting(ground, &price, "what it would bring back no longer fits: restore single messages instead")?;
    if !dry_run {
        if let Some(behind) = last.behind.and_then(|at| ground.chain().get(at)) {
            change_standing(app, &ground.row.id, |standing| standing.keep_quiet(*behind)).await?;
        }
        let action = Steer::Undo.as_str();
        let because = vec![why(&price, action, format!("{TOOK_BACK}{}", last.named))];
        let undoes = last.was.as_deref();
        let asked = Asked { by: AskedBy::User, action, because, focus: None, undoes, started };
        record_view(app, ground, &price, view, asked, Batch::default()).await?;
    }
    let mut told = priced(app, ground, &price, When::Now, dry_run);
    told["takes_back"] = json!(last.named);
    Ok(told)
}

/// The view before the last change that stands, and what that change is. The view has what is pinned today: a pin is taken back by
/// itself, and one that was taken back does not come back with an older view.
fn earlier(app: &App, ground: &Ground) -> Result<(View, Undoable), Error> {
    let (row, now) = (&ground.row, ground.old());
    let bare = View { messages: now.messages, ..View::default() };
    let today = |view: View| {
        let view = View { messages: now.messages, ..view };
        with_pins(app, &ground.subject(), (&ground.facts, ground.policy()), view, &ground.standing)
    };
    let is_other = |view: &View| today(view.clone()).edits != now.edits;
    let find = |is: &dyn Fn(&View) -> bool| app.store.find_view(ground.chain(), is);
    let (changes, any_undone) = rewrites::undoable(&app.store, &row.id, CHANGES)?;
    let any = !changes.is_empty();
    for change in changes {
        let view = match &change.was {
            Some(was) if *was == bare.mark().hex() => Some(bare.clone()),
            Some(was) => find(&|view| view.mark().hex() == *was)?,
            None => Some(find(&is_other)?.unwrap_or_else(|| bare.clone())),
        };
        // What changed another branch of the conversation does not stand in this one.
        if let Some(view) = view.filter(is_other) {
            return Ok((today(view), change));
        }
    }
    // What was rewritten before it branched off stands in the trace of the other conversation.
    if !any && !any_undone && row.parent.is_some() && is_other(&bare) {
        let named = "what was rewritten before this conversation branched off".to_owned();
        let view = find(&is_other)?.unwrap_or(bare);
        return Ok((today(view), Undoable { was: None, named, behind: None }));
    }
    Err(nothing(match (any, any_undone, now.edits.is_empty()) {
        (false, false, true) => "nothing was rewritten yet",
        (false, true, _) => "nothing stands that could be taken back: all of it was undone already",
        _ => "nothing but pins changed what the model sees: `unpin` takes one back",
    }))
}

/// Refuses what would not fit, with the numbers.
pub(in crate::proxy) fn fitting(ground: &Ground, price: &Price, hint: &str) -> Result<(), Error> {
    let window = ground.facts.window;
    let kept = plan::least_reserve(window);
    let most = window.saturating_sub(kept).saturating_sub(ground.facts.slack);
    if price.after <= most {
        return Ok(());
    }
    let message = format!(
        "the prompt would have {} tokens then, {} more than the {} that fit: the window has {}, of which {} stay free for the \
         shortest reply",
        grouped(price.after),
        grouped(price.after - most),
        grouped(most),
        grouped(window),
        grouped(kept),
    );
    Err(Error::client(409, "cannot_fit", message, hint))
}

/// What a view holds by region, with no rule at work.
pub(in crate::proxy) fn regions_with(app: &App, ground: &Ground, view: &View) -> Regions {
    let facts = facts_with(app, ground, view);
    Regions::of(&ground.request.conversation, &facts, &ground.policy().policy)
}

/// The facts of the conversation under another view.
fn facts_with(app: &App, ground: &Ground, view: &View) -> Facts {
    let conversation = &ground.request.conversation;
    let fresh = app.measure.facts(&ground.situation.key, conversation, view, None);
    let edit_costs = fresh.edit_costs.iter().map(|cost| super::compact::scaled(*cost, ground.calibration)).collect();
    Facts { view: fresh.view, edit_costs, ..ground.facts.clone() }
}

/// Notes in the trace that a person changed what is wanted of a conversation.
pub(in crate::proxy) fn note_steered(app: &App, id: &str, action: &str, when: When) {
    // What was made ahead was made for what was wanted before.
    app.lives.steer(id);
    let data = json!({"action": action, "when": when});
    let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: "steered".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        tracing::debug!(error = %e, "an event was not recorded");
    }
}

/// Stops the rewriting of a conversation, or takes it up again.
///
/// # Errors
/// 404 for an unknown conversation, 409 where it is so already.
pub async fn pause(app: &App, id: &str, on: bool) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    if standing_of(app, &row.id, None)?.paused == on {
        return Err(nothing(if on {
            "nothing is rewritten already"
        } else {
            "it is rewritten as the rules say already"
        }));
    }
    change_standing(app, &row.id, |standing| standing.paused = on).await?;
    note_steered(app, &row.id, if on { "pause" } else { "unpause" }, When::Now);
    Ok(json!({"conversation": row.id, "paused": on}))
}

/// Says what is to be done with the client's tools in a conversation, from its next request on; without a word, what the settings
/// say.
///
/// # Errors
/// 400 for a word that is none, 404 for an unknown conversation.
pub async fn list_tools(app: &App, id: &str, listing: Option<&str>) -> Result<Value, Error> {
    let read = |word: &str| {
        let hint = "send \"as_sent\", \"auto\", \"index\", or null for what the settings say";
        Listing::read(word).ok_or_else(|| Error::client(400, "bad_request", "`listing` is no such word", hint))
    };
    let listing = listing.map(read).transpose()?;
    let row = whole_row(app, id).await?;
    change_standing(app, &row.id, |standing| standing.tools = listing).await?;
    note_steered(app, &row.id, "tools", When::Now);
    Ok(json!({"conversation": row.id, "tools": listing}))
}

/// Takes back every change that waits for the next break.
///
/// # Errors
/// 404 for an unknown conversation.
pub async fn forget_wishes(app: &App, id: &str) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    let had = change_standing(app, &row.id, |standing| std::mem::take(&mut standing.wishes).len()).await?;
    note_steered(app, &row.id, "forget", When::Now);
    Ok(json!({"conversation": row.id, "taken_back": had}))
}

/// `POST /windowsill/conversations/{id}/recalled`: says that what came back by itself behind a message does not help, or that it
/// does after all. What is in the prompt stays; the messages that it quotes do not come back by themselves in this conversation.
///
/// # Errors
/// 404 for an unknown conversation, 409 where nothing came back behind that message.
pub async fn recalled(app: &App, id: &str, at: usize, useful: bool) -> Result<Value, Error> {
    let row = whole_row(app, id).await?;
    let view = view_of(&app.store, &row)?;
    let of = view.edits.iter().find_map(|edit| match edit {
        Edit::Recalled { at: behind, of, .. } if *behind == at => Some(of.clone()),
        _ => None,
    });
    let Some(of) = of else { return Err(nothing(&format!("nothing came back behind message {at}"))) };
    let mut quoted = Vec::with_capacity(of.len());
    for at in &of {
        quoted.extend(app.store.message(&row.id, *at)?.map(|node| node.digest));
    }
    let change = |standing: &mut Standing| {
        standing.unwanted.retain(|digest| !quoted.contains(digest));
        if !useful {
            standing.unwanted.extend(&quoted);
            let many = standing.unwanted.len().saturating_sub(UNWANTED);
            standing.unwanted.drain(..many);
        }
    };
    change_standing(app, &row.id, change).await?;
    note_steered(app, &row.id, if useful { "useful" } else { "not_useful" }, When::Now);
    Ok(json!({"conversation": row.id, "message": at, "of": of, "useful": useful}))
}

/// Why a view changed, with the price of it.
pub(in crate::proxy) fn why(price: &Price, rule: &'static str, what: String) -> Because {
    Because { rule, before: price.before, after: price.after, line: 0, what }
}
