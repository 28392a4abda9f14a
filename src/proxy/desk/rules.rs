//! Rules: what a person wants in every new conversation of a project. A new conversation of the same client and project begins with
//! them as pins, so they hold through every fold and can be taken back there. They are listed, changed and removed, and never go
//! from one client to another.

use serde_json::{Value, json};

use super::compact::{unchanged, whole_row};
use crate::clock::now_ms;
use crate::proxy::state::scope::Scope;
use crate::proxy::{App, Error};
use crate::store::{Batch, Event, Rule, RuleChange};

/// Bytes of one rule.
const LONGEST: usize = 2_000;

/// Rules of one project.
const MOST: usize = 50;

/// `GET /windowsill/rules`: every rule, by number.
///
/// # Errors
/// When the record cannot be read.
pub fn rules(app: &App) -> Result<Value, Error> {
    let (all, _) = app.store.rules()?;
    Ok(json!({"rules": all.iter().map(shown).collect::<Vec<_>>()}))
}

/// `POST /windowsill/rules`: a rule for new conversations of the client and project that a conversation is of.
///
/// # Errors
/// 404 for an unknown conversation, 409 where it has no project that rules could be of, 400 for a text that is no rule.
pub async fn add_rule(app: &App, id: &str, text: &str) -> Result<Value, Error> {
    let text = worded(text)?;
    let row = whole_row(app, id).await?;
    let scope = Scope::from_json(&row.state["scope"]).ok_or_else(no_project)?;
    let _turn = app.standing_turn.lock().await;
    let seen = app.store.seen();
    let (all, highest) = app.store.rules()?;
    let own: Vec<&Rule> = all.iter().filter(|rule| scope.has(rule)).collect();
    if let Some(same) = own.iter().find(|rule| rule.text == text) {
        return Err(Error::client(409, "nothing_to_do", format!("that is rule {} already", same.id), ""));
    }
    if own.len() >= MOST {
        let message = format!("this project has {MOST} rules, which is the most");
        return Err(Error::client(400, "bad_rule", message, "remove one first: `windowsill rules`"));
    }
    let (now_ms, Scope { client, project }) = (now_ms(), scope);
    let conversation = row.id.clone();
    let rule = Rule { id: highest + 1, client, project, text, conversation, created_ms: now_ms, updated_ms: now_ms };
    let told = shown(&rule);
    change_rule(app, RuleChange::Put(rule), ("added", seen), Some(unchanged(&row, now_ms))).await?;
    Ok(told)
}

/// `PUT /windowsill/rules/{n}`: other words for a rule. Conversations that have the old ones keep them.
///
/// # Errors
/// 404 for an unknown rule, 400 for a text that is no rule.
pub async fn edit_rule(app: &App, number: i64, text: &str) -> Result<Value, Error> {
    let text = worded(text)?;
    let _turn = app.standing_turn.lock().await;
    let seen = app.store.seen();
    let rule = Rule { text, updated_ms: now_ms(), ..rule(app, number)? };
    let told = shown(&rule);
    change_rule(app, RuleChange::Put(rule), ("edited", seen), None).await?;
    Ok(told)
}

/// `DELETE /windowsill/rules/{n}`: new conversations no longer get it.
///
/// # Errors
/// 404 for an unknown rule.
pub async fn remove_rule(app: &App, number: i64) -> Result<Value, Error> {
    let _turn = app.standing_turn.lock().await;
    let rule = rule(app, number)?;
    change_rule(app, RuleChange::Remove(number), ("removed", None), None).await?;
    Ok(shown(&rule))
}

fn rule(app: &App, number: i64) -> Result<Rule, Error> {
    let (all, _) = app.store.rules()?;
    all.into_iter().find(|rule| rule.id == number).ok_or_else(|| {
        Error::client(404, "not_found", format!("there is no rule {number}"), "`windowsill rules` lists them")
    })
}

async fn change_rule(
    app: &App,
    change: RuleChange,
    (action, seen): (&str, Option<u64>),
    of: Option<crate::store::ConversationUpdate>,
) -> Result<(), Error> {
    let number = match &change {
        RuleChange::Put(rule) => rule.id,
        RuleChange::Remove(number) => *number,
    };
    let conversation = of.as_ref().map(|update| update.id.clone());
    let data = json!({"rule": number, "action": action});
    let event = Event { now_ms: now_ms(), conversation, kind: "rule".into(), data };
    let batch = Batch { conversation: of, rule: Some(change), events: vec![event], durable: true, ..Batch::default() };
    Ok(app.store.record_over(batch, seen).await?)
}

fn shown(rule: &Rule) -> Value {
    json!({
        "rule": rule.id, "client": rule.client, "project": rule.project, "text": rule.text,
        "conversation": rule.conversation, "created_ms": rule.created_ms, "updated_ms": rule.updated_ms,
    })
}

/// The words of a rule.
fn worded(text: &str) -> Result<String, Error> {
    let text = text.trim();
    let bad = |message: String| Error::client(400, "bad_rule", message, "say in a few sentences what always holds");
    match text.len() {
        0 => Err(bad("an empty text is no rule".into())),
        1..=LONGEST => Ok(text.to_owned()),
        bytes => Err(bad(format!("it has {bytes} bytes, and a rule may have {LONGEST}"))),
    }
}

fn no_project() -> Error {
    let message = "windowsill does not know which client and project this conversation is of";
    let hint = "set `rules = true` in [context] and send the next request; a client can name its project with the header \
                x-windowsill-project";
    Error::client(409, "no_project", message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_words_and_not_too_many() {
        assert_eq!(worded("  Use tabs. ").unwrap(), "Use tabs.");
        assert!(worded(" ").is_err() && worded(&"x".repeat(LONGEST + 1)).is_err());
    }
}
