//! The guardrails' edge: what a conversation has taken is counted, and [`crate::guard`] is asked before a request is planned.

use serde_json::{Value, json};
use tracing::warn;

use super::attempt::Attempt;
use super::history::History;
use super::situation::Situation;
use crate::apply;
use crate::clock::now_ms;
use crate::config::{Ceiling, Resolved, Response};
use crate::conversation::edit::{Edit, Rule};
use crate::conversation::watch::{self, Loop};
use crate::conversation::{Conversation, Message, Tokens, step};
use crate::guard::books::{Books, Spent};
use crate::guard::triggers::{self, Pace};
use crate::guard::{ceiling, loops, small};
use crate::proxy::state::live::{Live, Misses, Spend, Whole, kept};
use crate::proxy::state::notes::note_event;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::{App, Error};
use crate::store::Original;
use crate::wire::openai_chat::Request;

/// A line that is added to a result, for the model to see.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Note {
    /// The result, as an index of the body.
    pub(in crate::proxy) at: usize,
    /// The line.
    pub(in crate::proxy) line: String,
}

/// What the guardrails say of a request that may go on.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Guarded {
    /// What the client is told.
    pub(in crate::proxy) warnings: Vec<String>,
    /// What the model is told.
    pub(in crate::proxy) note: Option<Note>,
}

/// Opens the books for a request and asks the guardrails.
///
/// # Errors
/// 429 at a ceiling or in a loop, where the config says so.
pub(in crate::proxy) fn guard(
    app: &App,
    request: &Request,
    history: &History,
    attempt: Attempt,
) -> Result<Guarded, Error> {
    if attempt != Attempt::First || history.chain.is_empty() {
        return Ok(Guarded::default());
    }
    remember(app, &history.id);
    let body = &request.conversation.body;
    let turn = step::request(body).and_then(|at| history.chain.get(at).copied());
    app.lives.with(&history.id, |live| {
        let (tokens, requests) = taken(&live.accounts.spend);
        live.accounts.books.open(turn, tokens, requests, now_ms());
    });
    let mut guarded = Guarded::default();
    ceilings(app, &history.id, &mut guarded)?;
    // The same request sent again was looked at before.
    if history.forwarded() < body.len() {
        watch(app, &history.id, body, &mut guarded)?;
    }
    Ok(guarded)
}

/// What a conversation has spent, from the record where it is not in memory.
pub(in crate::proxy) fn remember(app: &App, id: &str) {
    if app.lives.with(id, |live| std::mem::replace(&mut live.accounts.loaded, true)) {
        return;
    }
    let row = app.store.conversation(id).ok().flatten();
    if let Some(row) = row.filter(|row| row.id == id) {
        app.measure.firsts.take(&row.state["counts"]);
        app.lives.with(id, |live| {
            live.accounts.spend = kept(&row.state["spend"]);
            live.accounts.books = kept(&row.state["books"]);
            live.accounts.missed = Misses::from_json(&row.state["missed"]);
            live.accounts.folded = kept(&row.state["folded"]);
            live.accounts.sizes = Sizes::of(&row.state);
            live.accounts.walls = kept(&row.state["walls"]);
            live.accounts.whole = Whole::of(&row.state);
        });
    }
}

fn ceilings(app: &App, id: &str, guarded: &mut Guarded) -> Result<(), Error> {
    let config = &app.config.ceiling;
    let (near, fresh) = app.lives.with(id, |live| {
        let (turn, session) = spent(live);
        let near = ceiling::near(config, &turn, &session);
        let fresh: Vec<_> = near.iter().copied().filter(|near| live.accounts.books.tell(near.bit())).collect();
        (near, fresh)
    });
    for near in fresh {
        let data = json!({
            "key": near.key, "spent": near.spent, "most": near.most, "share": (near.share * 100.0).round() / 100.0,
            "action": if near.is_reached() { config.action.as_str() } else { "warn" },
        });
        warn!(conversation = id, key = near.key, spent = near.spent, most = near.most, "a ceiling is near");
        note_event(app, id, "ceiling", data);
    }
    if let Some(reached) = near.first().filter(|near| near.is_reached() && config.action == Response::Refuse) {
        let hint = format!("`windowsill resume {id}` lets it go on and counts from zero; or raise `{}`", reached.key);
        return Err(Error::client(429, "ceiling_reached", reached.words(), &hint));
    }
    guarded.warnings.extend(near.iter().map(ceiling::Near::words));
    Ok(())
}

fn watch(app: &App, id: &str, body: &[Message], guarded: &mut Guarded) -> Result<(), Error> {
    let config = &app.config.watch;
    let excepted = |tool: &str| config.except.iter().any(|glob| glob.fits(tool));
    let Some(seen) = watch::find(body, config.repeated_calls, &excepted) else { return Ok(()) };
    let (due, pardoned) = app.lives.with(id, |live| {
        (live.accounts.books.tell_loop(seen.at, config.repeated_calls), live.accounts.books.is_pardoned())
    });
    let words = loops::words(&seen);
    if due {
        warn!(conversation = id, kind = seen.kind.as_str(), times = seen.times, "an agent goes in circles");
        note_event(app, id, "loop", loop_json(&seen, config.action));
    }
    if config.action == Response::Refuse && !pardoned {
        let hint = format!("say what to do instead, or let it go on with `windowsill resume {id}`");
        return Err(Error::client(429, "loop", format!("the agent goes in circles: {words}"), &hint));
    }
    if due && config.action == Response::Note && body[seen.at].media.is_empty() {
        guarded.note = Some(Note { at: seen.at, line: loops::line(&seen) });
    }
    guarded.warnings.push(format!("the agent goes in circles: {words}"));
    Ok(())
}

/// What the pace of folds asks of a request. Where there is time, the fold is made after the reply; a fold that found none
/// is made now.
pub(in crate::proxy) fn pace(
    app: &App,
    policy: &Resolved,
    history: &History,
    body: &[Message],
    attempt: Attempt,
) -> Pace {
    // The same history gets the same view.
    if attempt != Attempt::First || history.forwarded() >= body.len() {
        return Pace::Usual;
    }
    app.lives.with(&history.id, |live| {
        if history.ahead.is_some() {
            live.work.fold_due = None;
            return Pace::Usual;
        }
        let asked = live.work.fold_due.take();
        let due = triggers::pace(&policy.triggers, body, &live.accounts.folded, now_ms());
        match (due, asked) {
            (Pace::Hold, _) => Pace::Hold,
            (_, Some(done @ Pace::Done(_))) => done,
            (Pace::Usual, _) => Pace::Usual,
            (due, asked) => {
                let now = asked.is_some() || !policy.background;
                // Should there be nothing to fold, it is tried again behind this reply, and with the next request.
                live.work.fold_due = Some(due.clone());
                if now { due } else { Pace::Usual }
            }
        }
    })
}

/// Adds what the model is told to a view. What the result says stays in the record, too.
pub(in crate::proxy) fn noted(
    app: &App,
    id: &str,
    conversation: &Conversation,
    note: &Note,
    applied: &mut apply::Applied,
) -> Result<(), Error> {
    let Some(message) = conversation.body.get(note.at) else { return Ok(()) };
    let with_line = |text: &str| format!("{text}\n\n{}", note.line).into();
    let edits = &mut applied.view.edits;
    let there = edits.iter_mut().find_map(|edit| match edit {
        Edit::Text { at, text, .. } if *at == note.at => Some(text),
        _ => None,
    });
    if let Some(text) = there {
        *text = with_line(text);
        return Ok(());
    }
    let record = app.store.free_id(&message.text)?;
    let call = apply::call(conversation, note.at);
    applied.originals.push(Original {
        id: record.clone(),
        conversation: id.to_owned(),
        at: note.at,
        kind: "tool_result".into(),
        tool: (!call.tool.is_empty()).then(|| call.tool.to_owned()),
        call: None,
        text: message.text.clone(),
        raw: None,
    });
    let text = with_line(&message.text);
    edits.push(Edit::Text { at: note.at, digest: message.digest, rule: Rule::Note, text, record });
    Ok(())
}

/// Tokens that servers evaluated or wrote for a conversation, and its requests.
pub(in crate::proxy) fn taken(spend: &Spend) -> (u64, u64) {
    let read = spend.prompt.saturating_sub(spend.cached) + spend.summary_evaluated + spend.digest_prompt;
    let written = spend.completion + spend.summary_completion + spend.digest_completion;
    (read + written, spend.requests)
}

/// What the turn and the session of a conversation have taken.
pub(in crate::proxy) fn spent(live: &Live) -> (Spent, Spent) {
    let (tokens, requests) = taken(&live.accounts.spend);
    (live.accounts.books.turn(tokens, requests), live.accounts.books.session(tokens, requests))
}

/// What a conversation has taken, how near its ceilings are, and what it cost. `busy_ms`: how long models worked.
pub(in crate::proxy) fn books_json(state: &Value, ceiling: &Ceiling, busy_ms: u64) -> Value {
    let (tokens, requests) = taken(&kept(&state["spend"]));
    let books: Books = kept(&state["books"]);
    let (turn, session) = (books.turn(tokens, requests), books.session(tokens, requests));
    let all: Vec<Value> = ceiling::all(ceiling, &turn, &session)
        .iter()
        .map(|near| json!({"key": near.key, "spent": near.spent, "most": near.most, "share": near.share}))
        .collect();
    json!({
        "turn": spent_json(&turn), "session": spent_json(&session), "ceilings": all,
        "cost": cost(ceiling, tokens), "watt_hours": watt_hours(ceiling, busy_ms),
    })
}

/// What so many tokens cost, where the config has a price.
pub(in crate::proxy) fn cost(ceiling: &Ceiling, tokens: u64) -> Option<f64> {
    (ceiling.price_per_million > 0.0).then(|| tokens as f64 / 1e6 * ceiling.price_per_million)
}

/// What the machine drew while models worked, where the config has its watts.
pub(in crate::proxy) fn watt_hours(ceiling: &Ceiling, busy_ms: u64) -> Option<f64> {
    (ceiling.watts > 0.0).then(|| busy_ms as f64 / 3_600_000.0 * ceiling.watts)
}

/// As it is told.
pub(in crate::proxy) fn spent_json(spent: &Spent) -> Value {
    json!({"tokens": spent.tokens, "requests": spent.requests, "minutes": spent.milliseconds / 60_000})
}

fn loop_json(seen: &Loop, action: Response) -> Value {
    json!({
        "kind": seen.kind.as_str(), "times": seen.times, "calls": seen.calls, "distinct": seen.distinct, "tool": seen.tool,
        "message": seen.at, "action": action.as_str(),
    })
}

/// Whether the model is too small for what it is asked: what the client is told.
///
/// # Errors
/// 400 where the config says so.
pub(super) fn too_small(
    app: &App,
    situation: &Situation,
    request: &Request,
    prompt: Tokens,
) -> Result<Option<String>, Error> {
    let response = app.config.watch.small_model;
    if response == Response::Allow {
        return Ok(None);
    }
    let tools = request.own_tools().is_some();
    let Some(much) = small::too_much(situation.policy.size, tools, prompt) else { return Ok(None) };
    let message = format!("a model below 3 billion parameters is given {much}");
    if app.lives.with(situation.id(), |live| !std::mem::replace(&mut live.small_told, true)) {
        warn!(conversation = %situation.id(), "{message}");
        let data = json!({"tools": tools, "prompt_tokens": prompt, "holds": small::HOLDS, "action": response.as_str()});
        note_event(app, situation.id(), "small_model", data);
    }
    if response == Response::Refuse {
        let hint = "take a larger model, or set `small_model = \"warn\"` in [watch] of config.toml";
        return Err(Error::client(400, "small_model", message, hint));
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_counts_what_briefs_read_and_wrote_too() {
        let spend = Spend { requests: 2, prompt: 1_000, cached: 400, completion: 50, ..Spend::default() };
        assert_eq!(taken(&spend), (650, 2));
        let briefs = Spend { summary_prompt: 900, summary_evaluated: 300, summary_completion: 70, ..spend };
        assert_eq!(taken(&briefs), (650 + 300 + 70, 2));
    }
}
