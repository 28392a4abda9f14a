//! A conversation message by message: what the client has, and what became of it in the view that the model gets. A page at a
//! time, so that long sessions open at once.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::record::{self, row_of, spoken};
use super::rewrites::sentence_of;
use crate::conversation::Tokens;
use crate::conversation::edit::{Edit, Rule, View};
use crate::pinned;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::state::standing::standing_of;
use crate::proxy::turn::steering::no_message;
use crate::proxy::{App, Error};
use crate::store::{ConversationRow, EventFilter, EventRow, NodeRow, Store};
use crate::wire::openai_chat;

/// Most messages of one page.
const PAGE: usize = 500;

/// Characters of a message that stand in a list.
const SHOWN: usize = 200;

/// Rewrites that are looked at for who asked for one, the newest.
const LOOKED_AT: usize = 50;

/// Messages before a page that are looked at for the calls that its first results answer.
pub(in crate::proxy) const CALLS_BEFORE: usize = 16;

/// `GET /windowsill/conversations/{id}/messages?from=A&limit=N`: messages of the client's history from index A on, each
/// in one line, and what became of it; without `from`, the last page of so many.
///
/// # Errors
/// 404 for an unknown conversation.
pub fn timeline(app: &App, id: &str, from: Option<usize>, limit: usize) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    let view = view_of(&app.store, &row)?;
    let limit = limit.clamp(1, PAGE);
    let reply = app.store.last_reply(&row.id)?;
    let total = row.messages();
    let from = from.unwrap_or(total.saturating_sub(1) / limit * limit);
    let to = from.saturating_add(limit).min(total);
    // The calls that the first results of the page answer stand before it.
    let mut rows = app.store.messages_between(&row.id, from.saturating_sub(CALLS_BEFORE), to)?;
    rows.extend(reply.filter(|node| (from..to).contains(&node.at)));
    let called = called(&rows);
    let sizes = Sizes::of(&row.state);
    let named = |node: &NodeRow| {
        let mut line = line(node, &view, sizes);
        line["call"] = json!(called.get(&node.at));
        line
    };
    let messages: Vec<Value> = rows.iter().filter(|node| node.at >= from).map(named).collect();
    Ok(
        json!({"conversation": row.id, "total": total, "from": from, "messages": messages, "fold": fold(&view, &row.state)}),
    )
}

/// `GET /windowsill/conversations/{id}/messages/{at}`: one message whole, what the model sees of it, and why.
///
/// # Errors
/// 404 for an unknown conversation or message.
pub fn timeline_message(app: &App, id: &str, at: usize) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    let view = view_of(&app.store, &row)?;
    let mut rows = app.store.messages_between(&row.id, at, at.saturating_add(1))?;
    let reply = app.store.last_reply(&row.id)?;
    rows.extend(reply.filter(|node| node.at == at));
    let Some(node) = rows.first() else { return Err(no_message(&row, at)) };
    let mut out = line(node, &view, Sizes::of(&row.state));
    out["text"] = json!(spoken(&String::from_utf8_lossy(&node.raw)));
    let edits = view.edits.iter().filter(|edit| stands_at(edit, at) || carries(edit, at, &node.role));
    let rewrites = rewrites_of(&app.store, &row)?;
    let told_of = |edit: &Edit| match edit {
        Edit::Fold { .. } if carries(edit, at, &node.role) => carried(edit, &row.state),
        edit => edit_for_people(edit, &row.state, why(edit, at, &rewrites)),
    };
    let mut told: Vec<Value> = edits.clone().map(told_of).collect();
    for (edit, told) in edits.zip(&mut told) {
        if let Edit::Recalled { of, .. } = edit {
            told["useful"] = json!(is_useful(app, &row, of)?);
        }
    }
    out["edits"] = told.into();
    Ok(out)
}

/// Whether nobody said of the messages that came back by themselves that they do not help.
fn is_useful(app: &App, row: &ConversationRow, of: &[usize]) -> Result<bool, Error> {
    let parent = row.parent.as_ref().map(|(id, _)| id.as_str());
    let standing = standing_of(app, &row.id, parent)?;
    for at in of.iter().filter(|_| !standing.unwanted.is_empty()) {
        let digest = app.store.message(&row.id, *at)?.map(|node| node.digest);
        if digest.is_some_and(|digest| standing.unwanted.contains(&digest)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The view that a conversation was last forwarded with.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn view_of(store: &Store, row: &ConversationRow) -> Result<View, crate::store::Error> {
    // The tip nearly always has none of its own: views hang on the prefixes that they were made for.
    let chain = store.chain(&row.id)?;
    Ok(store.view(&chain)?.map(|(_, view)| View::clone(&view)).unwrap_or_default())
}

/// Whether an edit changes a message, or stands behind it.
fn stands_at(edit: &Edit, at: usize) -> bool {
    edit.touches(at) || matches!(edit, Edit::Recalled { at: behind, .. } if *behind == at)
}

/// Whether the brief of a fold, or what is pinned, stands behind the words of this message: that of a user right before the fold,
/// where roles have to alternate (see `plan::rewrite`).
fn carries(edit: &Edit, at: usize, role: &str) -> bool {
    matches!(edit, Edit::Fold { from, brief, .. } if *from == at + 1 && role == "user" && !brief.is_empty())
}

/// About the tokens of a recorded message as the client has it; none of one that cannot be read.
pub(in crate::proxy) fn size(sizes: Sizes, node: &NodeRow) -> Tokens {
    openai_chat::message(node.raw.clone()).map_or(0, |message| sizes.message(&message))
}

/// About the tokens of a recorded message as it stands in a view.
pub(in crate::proxy) fn size_in(sizes: Sizes, view: &View, node: &NodeRow) -> Tokens {
    sizes.in_view(view, node.at, openai_chat::message(node.raw.clone()).ok().as_ref())
}

/// What each result answers: the call's name and arguments, by the result's index.
pub(in crate::proxy) fn called(rows: &[NodeRow]) -> HashMap<usize, String> {
    Calls::default().answered(rows)
}

/// The calls of a history that is read part by part, by their ids.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Calls(HashMap<String, String>);

impl Calls {
    /// What each result of the next part answers, by the result's index.
    pub(in crate::proxy) fn answered(&mut self, rows: &[NodeRow]) -> HashMap<usize, String> {
        let mut out = HashMap::new();
        for node in rows {
            let Ok(message) = openai_chat::message(node.raw.clone()) else { continue };
            for call in &message.calls {
                self.0.insert(call.id.to_string(), short(&format!("{} {}", call.name, call.arguments)));
            }
            if let Some(call) = message.call_id.as_ref().and_then(|id| self.0.get(id.as_str())) {
                out.insert(node.at, call.clone());
            }
        }
        out
    }
}

/// The beginning of what stands in the prompt for a message that was changed there.
fn seen(view: &View, at: usize) -> Option<String> {
    let text = view.edits.iter().find_map(|edit| match edit {
        Edit::Text { at: changed, text, .. } | Edit::Recalled { at: changed, text, .. } if *changed == at => Some(text),
        _ => None,
    })?;
    Some(short(&text.split_whitespace().take(SHOWN).collect::<Vec<_>>().join(" ")))
}

/// A message in one line.
pub(in crate::proxy) fn line(node: &NodeRow, view: &View, sizes: Sizes) -> Value {
    let message = openai_chat::message(node.raw.clone()).ok();
    let text = message.as_ref().map(|m| m.text.as_str()).unwrap_or_default();
    let words: String = text.split_whitespace().take(SHOWN).collect::<Vec<_>>().join(" ");
    let calls: Vec<String> =
        message.iter().flat_map(|m| &m.calls).map(|c| short(&format!("{} {}", c.name, c.arguments))).collect();
    let media = message.as_ref().map_or(0, |m| m.media.len());
    json!({
        "at": node.at, "role": node.role, "words": short(&words), "calls": calls, "media": media,
        "tool": message.as_ref().and_then(|m| m.name.clone()),
        "seen": seen(view, node.at),
        "tokens": message.as_ref().map_or(0, |message| sizes.message(message)),
        "view_tokens": sizes.in_view(view, node.at, message.as_ref()),
        "became": became(view, node.at, &node.role),
    })
}

/// What became of a message, in one word.
pub(in crate::proxy) fn became(view: &View, at: usize, role: &str) -> &'static str {
    match view.edits.iter().find(|edit| stands_at(edit, at)) {
        None => match view.edits.iter().find(|edit| carries(edit, at, role)) {
            Some(Edit::Fold { from, to, .. }) if from < to => "with_brief",
            Some(_) => "with_pins",
            None => "same",
        },
        Some(Edit::Fold { .. }) => "folded",
        Some(Edit::Text { rule, .. } | Edit::Arguments { rule, .. }) => word(*rule),
        Some(Edit::Recalled { .. }) => "recalled",
    }
}

fn word(rule: Rule) -> &'static str {
    match rule {
        Rule::Evict => "preview",
        Rule::Clear => "placeholder",
        Rule::Repeat => "pointer",
        Rule::Restore => "restored",
        Rule::Truncate => "cut",
        Rule::Settle => "settled",
        Rule::Note => "noted",
    }
}

/// Tokens of the brief in force: those that the gauge tells, where it does.
fn brief_tokens(edit: &Edit, state: &Value) -> u64 {
    let told = state["regions"]["brief"].as_u64().filter(|told| *told > 0);
    told.unwrap_or_else(|| u64::from(Sizes::of(state).edit(edit)))
}

/// The fold of a view, for a list.
pub(in crate::proxy) fn fold(view: &View, state: &Value) -> Value {
    let fold = view.edits.iter().find_map(|edit| match edit {
        // One that folds nothing only carries what is pinned.
        Edit::Fold { from, to, keep, brief, .. } if from < to => Some(json!({
            "from": from, "to": to, "kept": keep, "brief": pinned::without(brief), "brief_tokens": brief_tokens(edit, state),
        })),
        _ => None,
    });
    fold.unwrap_or(Value::Null)
}

/// What stands behind the words of a message.
fn carried(edit: &Edit, state: &Value) -> Value {
    let Edit::Fold { brief, from, to, .. } = edit else { return Value::Null };
    let why = match from < to {
        true => format!("The brief of messages {from} to {} stands behind its words.", to - 1),
        false => "What is pinned stands behind its words.".to_owned(),
    };
    json!({"kind": "carried", "text": brief.as_ref(), "from": from, "to": to, "why": why, "tokens": brief_tokens(edit, state)})
}

/// The newest rewrites of a conversation, the last one first.
fn rewrites_of(store: &Store, row: &ConversationRow) -> Result<Vec<EventRow>, Error> {
    let of = EventFilter { conversation: Some(row.id.clone()), kinds: vec!["context_compaction".into()] };
    let mut events = store.trace().newest(LOOKED_AT, &of)?;
    events.reverse();
    Ok(events)
}

/// Why an edit of a message was made, as far as the rewrites tell it and its rule does not: what made the fold, or that a person
/// asked for this.
fn why(edit: &Edit, at: usize, rewrites: &[EventRow]) -> Option<String> {
    let did = |event: &EventRow, wanted: &[&str]| {
        event.data["action"].as_str().is_some_and(|action| action.split(',').any(|layer| wanted.contains(&layer)))
    };
    if matches!(edit, Edit::Fold { .. }) {
        let last = rewrites.iter().find(|event| did(event, &["summarize", "truncate"]))?;
        return Some(format!("It is in the brief. {}", sentence_of(&last.data)));
    }
    // As `Steer::because` says it.
    let this = format!("message {at} became");
    let of_this = |event: &EventRow| {
        event.data["because"].as_array().into_iter().flatten().filter_map(Value::as_str).any(|why| why.contains(&this))
    };
    rewrites.iter().any(of_this).then(|| "You asked for it.".to_owned())
}

/// An edit: what stands in the prompt instead, where the original is, and why it was made.
fn edit_for_people(edit: &Edit, state: &Value, why: Option<String>) -> Value {
    let line = |name: &str| {
        let tokens = state["lines"][name].as_u64().unwrap_or(0);
        super::rows::grouped(Tokens::try_from(tokens).unwrap_or(Tokens::MAX))
    };
    let by_rule = match edit {
        Edit::Fold { .. } => "It is in the brief.".to_owned(),
        Edit::Recalled { .. } => "What it points at had left the prompt, and was found.".to_owned(),
        Edit::Text { rule, .. } | Edit::Arguments { rule, .. } => match rule {
            Rule::Evict => format!("It was larger than {} tokens, the line for a single result.", line("evict_over")),
            Rule::Clear => format!("The prompt had passed {} tokens, and older results gave way.", line("clear_at")),
            Rule::Repeat => "The same text stands in full elsewhere in the prompt.".to_owned(),
            Rule::Restore => "It points at a text that had left the prompt; where to find that was added.".to_owned(),
            Rule::Truncate => "Alone it would not have fit the window.".to_owned(),
            Rule::Settle => {
                "It showed progress that was overwritten since: its final state stays (`clean`).".to_owned()
            }
            Rule::Note => "The watchdog saw a loop and added a line that says so.".to_owned(),
        },
    };
    let why = why.unwrap_or(by_rule);
    match edit {
        Edit::Text { rule, text, record, .. } => {
            json!({"kind": word(*rule), "text": text.as_ref(), "record": record, "why": why, "tokens": Sizes::of(state).edit(edit)})
        }
        Edit::Arguments { rule, arguments, record, .. } => json!({
            "kind": word(*rule), "text": arguments.as_ref(), "record": record, "why": why, "tokens": Sizes::of(state).edit(edit)
        }),
        Edit::Recalled { text, of, .. } => json!({
            "kind": "recalled", "text": text.as_ref(), "of": of, "why": why, "tokens": Sizes::of(state).edit(edit)
        }),
        Edit::Fold { brief, from, to, .. } => json!({
            "kind": "folded", "text": brief.as_ref(), "from": from, "to": to, "why": why, "tokens": brief_tokens(edit, state)
        }),
    }
}

fn short(text: &str) -> String {
    record::clipped(text, SHOWN)
}
