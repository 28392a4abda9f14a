//! A new conversation from parts of an old one: its turns are told apart, and those that somebody chose become messages for a
//! client. Whole turns only, so that no call loses its result; the old conversation stays as it is. Reads only.

use bytes::Bytes;
use serde_json::{Value, json};

use super::record;
use super::record::clipped;
use super::timeline::{fold, size, view_of};
use crate::conversation::Tokens;
use crate::proxy::{App, Error, Record};
use crate::store::{ConversationRow, NodeRow, Store};
use crate::wire::openai_chat;

/// Characters of a turn that stand in a list.
const SHOWN: usize = 120;

/// Turns that a list of segments names one by one.
const LISTED: usize = 10_000;

impl App {
    /// `GET /windowsill/conversations/{id}/segments`: turns and briefs, each with its number.
    ///
    /// # Errors
    /// 404 for an unknown conversation.
    pub fn segments(&self, id: &str) -> Result<Value, Error> {
        segments(&self.store, &self.row(id)?)
    }

    /// `POST /windowsill/conversations/{id}/build`: the messages of these turns and briefs, in the order of the conversation.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 400 for turns or briefs that it does not have, or that exclude each other.
    pub fn build(&self, id: &str, turns: &[usize], briefs: &[usize]) -> Result<Value, Error> {
        build(&self.store, &self.row(id)?, turns, briefs)
    }
}

impl Record {
    /// As the running proxy builds it: see [`App::build`].
    ///
    /// # Errors
    /// As there.
    pub fn build(&self, id: &str, turns: &[usize], briefs: &[usize]) -> Result<Value, Error> {
        build(&self.store, &record::row(&self.store, id, "`windowsill context` lists them")?, turns, briefs)
    }

    /// As the running proxy tells them: see [`App::segments`].
    ///
    /// # Errors
    /// As there.
    pub fn segments(&self, id: &str) -> Result<Value, Error> {
        segments(&self.store, &record::row(&self.store, id, "`windowsill context` lists them")?)
    }
}

/// A reply of the model, with what led to it and the results of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    from: usize,
    to: usize,
}

/// Splits a history into turns: each begins where a person speaks, or where the model does so again after the results of its
/// calls. They cover it without gaps.
fn turns<'a>(roles: impl Iterator<Item = &'a str>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::new();
    let (mut replied, mut last) = (true, "");
    for (at, role) in roles.enumerate() {
        let begins = match role {
            // Results, and the like, belong to what they follow.
            "tool" => false,
            "assistant" => replied,
            _ => replied || last == "tool",
        };
        match out.last_mut() {
            Some(turn) if !begins => turn.to = at + 1,
            _ => {
                out.push(Turn { from: at, to: at + 1 });
                replied = false;
            }
        }
        replied |= role == "assistant";
        last = role;
    }
    out
}

/// The messages of a conversation with what it was answered last, unless that is calls whose results are not there yet.
fn rows(store: &Store, row: &ConversationRow) -> Result<Vec<NodeRow>, crate::store::Error> {
    let mut rows = store.messages(&row.id)?;
    let calls = |node: &NodeRow| openai_chat::message(node.raw.clone()).is_ok_and(|reply| !reply.calls.is_empty());
    rows.extend(store.last_reply(&row.id)?.filter(|reply| !calls(reply)));
    Ok(rows)
}

fn segments(store: &Store, row: &ConversationRow) -> Result<Value, Error> {
    let (rows, fold) = (rows(store, row)?, fold(&view_of(store, row)?));
    let all = turns(rows.iter().map(|n| n.role.as_str()));
    let of = |turn: &Turn| &rows[turn.from..turn.to.min(rows.len())];
    let list: Vec<Value> = all
        .iter()
        .enumerate()
        .take(LISTED)
        .map(|(n, turn)| {
            let tokens: Tokens = of(turn).iter().map(|node| size(&node.raw)).fold(0, Tokens::saturating_add);
            let words = of(turn).first().map(words).unwrap_or_default();
            json!({"turn": n + 1, "from": turn.from, "to": turn.to, "tokens": tokens, "words": words,
                "folded": is_in(turn, &fold)})
        })
        .collect();
    let briefs: Vec<Value> = briefs(&fold, &all).into_iter().collect();
    Ok(json!({"conversation": row.id, "turns": list, "briefs": briefs}))
}

/// The brief of a conversation, with the turns that it stands for.
fn briefs(fold: &Value, all: &[Turn]) -> Option<Value> {
    fold.is_object().then(|| {
        let turns: Vec<usize> = (1..).zip(all).filter(|(_, turn)| is_in(turn, fold)).map(|(n, _)| n).collect();
        json!({"brief": 1, "from": fold["from"], "to": fold["to"], "turns": turns, "tokens": fold["brief_tokens"],
            "text": fold["brief"]})
    })
}

/// Whether a brief says anything of a turn.
fn is_in(turn: &Turn, fold: &Value) -> bool {
    let index = |name: &str| fold[name].as_u64().and_then(|n| usize::try_from(n).ok());
    matches!((index("from"), index("to")), (Some(from), Some(to)) if turn.from < to && from < turn.to)
}

fn words(node: &NodeRow) -> String {
    let text = record::spoken(&String::from_utf8_lossy(&node.raw));
    clipped(&text.split_whitespace().take(SHOWN).collect::<Vec<_>>().join(" "), SHOWN)
}

fn build(store: &Store, row: &ConversationRow, wanted: &[usize], briefs_wanted: &[usize]) -> Result<Value, Error> {
    let (rows, fold) = (rows(store, row)?, fold(&view_of(store, row)?));
    let all = turns(rows.iter().map(|n| n.role.as_str()));
    let brief = briefs(&fold, &all);
    check(wanted, briefs_wanted, all.len(), brief.as_ref())?;
    let brief = brief.filter(|_| !briefs_wanted.is_empty());
    let (mut messages, mut tokens) = (Vec::new(), 0_u64);
    for (n, turn) in (1..).zip(&all) {
        // A brief stands where the first of its turns did.
        if let Some(brief) = brief.as_ref().filter(|brief| brief["turns"][0] == n) {
            messages.push(json!({"role": "user", "content": brief["text"]}));
            tokens += brief["tokens"].as_u64().unwrap_or(0);
        }
        if wanted.contains(&n) {
            messages.extend(rows[turn.from..turn.to].iter().filter_map(|node| value(&node.raw)));
            tokens += rows[turn.from..turn.to].iter().map(|node| u64::from(size(&node.raw))).sum::<u64>();
        }
    }
    let mut notes = vec!["leading system messages and tools are not in the record: the client adds its own".to_owned()];
    if messages.first().is_some_and(|first| first["role"] != "user") {
        notes.push(
            "it does not begin with a user message, which many chat templates want: choose the turn that asked, too"
                .into(),
        );
    }
    Ok(json!({"conversation": row.id, "messages": messages, "tokens": tokens, "notes": notes}))
}

fn value(raw: &Bytes) -> Option<Value> {
    serde_json::from_slice(raw).ok()
}

/// Whether what was chosen is there, and once only.
fn check(wanted: &[usize], briefs_wanted: &[usize], turns: usize, brief: Option<&Value>) -> Result<(), Error> {
    let bad = |message: String, hint: &str| Err(Error::client(400, "bad_selection", message, hint));
    if wanted.is_empty() && briefs_wanted.is_empty() {
        return bad("nothing was chosen".into(), "name turns, briefs or both; …/segments lists them");
    }
    if let Some(n) = wanted.iter().find(|n| **n == 0 || **n > turns) {
        return bad(format!("there is no turn {n}: the conversation has turns 1 to {turns}"), "…/segments lists them");
    }
    if let Some(n) = briefs_wanted.iter().find(|n| **n != 1 || brief.is_none()) {
        let there = if brief.is_some() { "there is brief 1 alone" } else { "nothing was folded" };
        return bad(format!("there is no brief {n}: {there}"), "…/segments lists them");
    }
    let of_brief = brief.filter(|_| !briefs_wanted.is_empty()).and_then(|b| b["turns"].as_array());
    if let Some(n) = wanted.iter().find(|n| of_brief.is_some_and(|turns| turns.contains(&json!(n)))) {
        return bad(format!("turn {n} stands in brief 1 already"), "choose the brief or its turns");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_cover_a_history_and_never_part_a_call_from_its_result() {
        for (roles, expect) in [
            ("user assistant user assistant", vec![(0, 2), (2, 4)]),
            ("user assistant tool tool assistant user", vec![(0, 4), (4, 5), (5, 6)]),
            ("user user assistant", vec![(0, 3)]),
            ("assistant tool user", vec![(0, 2), (2, 3)]),
            ("user assistant assistant tool", vec![(0, 2), (2, 4)]),
            ("", vec![]),
        ] {
            let found: Vec<(usize, usize)> = turns(roles.split_whitespace()).iter().map(|t| (t.from, t.to)).collect();
            assert_eq!(found, expect, "{roles}");
        }
    }

    #[test]
    fn a_brief_and_its_turns_exclude_each_other() {
        let brief = json!({"turns": [1, 2]});
        assert!(check(&[3], &[1], 3, Some(&brief)).is_ok() && check(&[2, 3], &[], 3, Some(&brief)).is_ok());
        for (turns, briefs) in [(&[2][..], &[1][..]), (&[0], &[]), (&[4], &[]), (&[], &[2]), (&[], &[])] {
            assert!(check(turns, briefs, 3, Some(&brief)).is_err(), "{turns:?} {briefs:?}");
        }
        assert!(check(&[1], &[1], 3, None).is_err());
    }
}
