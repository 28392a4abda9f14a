//! A new conversation from parts of an old one: its turns and their steps are told apart, and those that somebody chose become
//! messages for a client. Whole steps only, so that no call loses its result; the old conversation stays as it is. Reads only.

use bytes::Bytes;
use serde_json::{Value, json};

use super::record::{self, clipped, row_of};
use super::sight::client_tokens;
use super::timeline::{fold, size, view_of};
use crate::conversation::edit::View;
use crate::conversation::{Tokens, step};
use crate::proxy::state::sizes::Sizes;
use crate::proxy::{App, Error, Record};
use crate::store::{ConversationRow, NodeRow, Store};
use crate::wire::openai_chat;

/// Characters of a turn that stand in a list.
const SHOWN: usize = 120;

/// Turns that a list of segments names one by one.
const LISTED: usize = 10_000;

/// `GET /windowsill/conversations/{id}/segments`: turns and briefs, each with its number.
///
/// # Errors
/// 404 for an unknown conversation.
pub fn segments(app: &App, id: &str) -> Result<Value, Error> {
    segments_in(&app.store, &row_of(app, id)?)
}

/// `POST /windowsill/conversations/{id}/build`: the messages of these turns and briefs, in the order of the conversation.
///
/// # Errors
/// 404 for an unknown conversation, 400 for turns or briefs that it does not have, or that exclude each other.
pub fn build(app: &App, id: &str, turns: &[Chosen], briefs: &[usize]) -> Result<Value, Error> {
    built(&app.store, &row_of(app, id)?, turns, briefs)
}

impl Record {
    /// As the running proxy builds it: see [`build()`].
    ///
    /// # Errors
    /// As there.
    pub fn build(&self, id: &str, turns: &[Chosen], briefs: &[usize]) -> Result<Value, Error> {
        built(&self.store, &record::row(&self.store, id, "`windowsill context` lists them")?, turns, briefs)
    }

    /// As the running proxy tells them: see [`segments()`].
    ///
    /// # Errors
    /// As there.
    pub fn segments(&self, id: &str) -> Result<Value, Error> {
        segments_in(&self.store, &record::row(&self.store, id, "`windowsill context` lists them")?)
    }
}

/// What somebody chose of a conversation: a whole turn, or one step of it. Counted from 1; step 0 is what the person asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// The turn.
    pub turn: usize,
    /// The step of it, where not all of the turn is meant.
    pub step: Option<usize>,
}

impl std::str::FromStr for Chosen {
    type Err = ();

    /// `4` is a turn, `4.2` a step of it.
    fn from_str(text: &str) -> Result<Chosen, ()> {
        let number = |text: &str| text.parse::<usize>().map_err(|_| ());
        match text.trim().split_once('.') {
            None => Ok(Chosen { turn: number(text.trim())?, step: None }),
            Some((turn, step)) => Ok(Chosen { turn: number(turn)?, step: Some(number(step)?) }),
        }
    }
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            None => write!(f, "{}", self.turn),
            Some(step) => write!(f, "{}.{step}", self.turn),
        }
    }
}

/// What a person asked, with all that follows until a person speaks again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turn {
    from: usize,
    to: usize,
    /// Where each step of the model begins: an assistant message with its calls and their results.
    steps: Vec<usize>,
}

impl Turn {
    /// The messages of a step; step 0 is what stands before the first.
    fn step(&self, step: usize) -> Option<(usize, usize)> {
        let from = match step.checked_sub(1) {
            None => self.from,
            Some(nth) => *self.steps.get(nth)?,
        };
        let to = self.steps.get(step).copied().unwrap_or(self.to);
        (from < to).then_some((from, to))
    }
}

/// What a message is to a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Words of a person.
    Person,
    /// The model speaks.
    Model,
    /// A result, a reminder, and the like: it belongs to what it follows.
    Other,
}

impl Part {
    fn of(node: &NodeRow) -> Part {
        match node.role.as_str() {
            "assistant" => Part::Model,
            "user" if openai_chat::message(node.raw.clone()).is_ok_and(|message| step::is_persons(&message)) => {
                Part::Person
            }
            _ => Part::Other,
        }
    }
}

/// Splits a history into turns. They cover it without gaps: what stands before the first words of a person belongs to the first.
fn turns(parts: impl Iterator<Item = Part>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::new();
    let mut asking = false;
    for (at, part) in parts.enumerate() {
        // Several messages of a person in a row are one request.
        let begins = part == Part::Person && !asking && out.last().is_none_or(|turn| !turn.steps.is_empty());
        if out.is_empty() || begins {
            out.push(Turn { from: at, to: at, steps: Vec::new() });
        }
        asking = part == Part::Person;
        if let Some(turn) = out.last_mut() {
            turn.to = at + 1;
            if part == Part::Model {
                turn.steps.push(at);
            }
        }
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

/// How the sizes of turns are told: so that those of all messages are what the page says that the client has, without its system prompt
/// and tools.
fn sizes(rows: &[NodeRow], view: &View, state: &Value) -> Sizes {
    let sizes = Sizes::of(state);
    let told = state["messages"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(rows.len());
    let sum = |sizes: Sizes| rows.iter().take(told).map(|node| u64::from(size(sizes, node))).sum::<u64>();
    let head: u64 = ["system", "tools", "media"].iter().filter_map(|region| state["regions"][*region].as_u64()).sum();
    // Where nothing is rewritten, the client has what the model sees; else a tool of ours is nothing that it has.
    let ours = state["tools_of_ours"].as_u64().filter(|_| !view.edits.is_empty()).unwrap_or(0);
    let head = head.saturating_sub(ours);
    let all = client_tokens(state, view, || sum(sizes));
    sizes.adding_up(sum(sizes.rule()), all.saturating_sub(head))
}

fn segments_in(store: &Store, row: &ConversationRow) -> Result<Value, Error> {
    let (rows, view) = (rows(store, row)?, view_of(store, row)?);
    let (fold, sizes) = (fold(&view, &row.state), sizes(&rows, &view, &row.state));
    let all = turns(rows.iter().map(Part::of));
    let tokens = |from: usize, to: usize| -> Tokens {
        rows[from..to].iter().map(|node| size(sizes, node)).fold(0, Tokens::saturating_add)
    };
    let said = |at: usize| rows.get(at).map(words).unwrap_or_default();
    let list: Vec<Value> = (1..)
        .zip(&all)
        .take(LISTED)
        .map(|(n, turn)| {
            let steps: Vec<Value> = (0..=turn.steps.len())
                .filter_map(|step| {
                    let (from, to) = turn.step(step)?;
                    let name = Chosen { turn: n, step: Some(step) }.to_string();
                    let folded = in_brief(from, to, &fold) == to - from;
                    Some(json!({"step": name, "from": from, "to": to, "tokens": tokens(from, to), "words": said(from),
                        "folded": folded}))
                })
                .collect();
            let (gone, length) = (in_brief(turn.from, turn.to, &fold), turn.to - turn.from);
            json!({"turn": n, "from": turn.from, "to": turn.to, "tokens": tokens(turn.from, turn.to),
                "words": said(turn.from), "folded": gone == length, "partly_folded": gone > 0 && gone < length,
                "steps": steps})
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
    in_brief(turn.from, turn.to, fold) > 0
}

/// How many of the messages `from..to` a brief stands for: what a fold kept stands in the prompt itself.
fn in_brief(from: usize, to: usize, fold: &Value) -> usize {
    let index = |name: &str| fold[name].as_u64().and_then(|n| usize::try_from(n).ok());
    let (Some(start), Some(end)) = (index("from"), index("to")) else { return 0 };
    let kept =
        |at: usize| fold["kept"].as_array().is_some_and(|kept| kept.iter().any(|k| k.as_u64() == Some(at as u64)));
    (from.max(start)..to.min(end)).filter(|at| !kept(*at)).count()
}

fn words(node: &NodeRow) -> String {
    shown(&record::spoken(&String::from_utf8_lossy(&node.raw)))
}

/// The first words of a text, whole but for one that is longer than all that is shown; a mark says that there are more.
fn shown(text: &str) -> String {
    let words = clipped(&text.split_whitespace().collect::<Vec<_>>().join(" "), SHOWN + 1);
    let Some((cut, _)) = words.char_indices().nth(SHOWN) else { return words };
    let whole = words[..cut].rfind(' ').filter(|_| !words[cut..].starts_with(' ')).unwrap_or(cut);
    format!("{}…", &words[..whole])
}

fn built(store: &Store, row: &ConversationRow, wanted: &[Chosen], briefs_wanted: &[usize]) -> Result<Value, Error> {
    let (rows, view) = (rows(store, row)?, view_of(store, row)?);
    let (fold, sizes) = (fold(&view, &row.state), sizes(&rows, &view, &row.state));
    let all = turns(rows.iter().map(Part::of));
    let brief = briefs(&fold, &all);
    check(wanted, briefs_wanted, &all, brief.as_ref())?;
    let brief = brief.filter(|_| !briefs_wanted.is_empty());
    let (mut messages, mut tokens) = (Vec::new(), 0_u64);
    for (n, turn) in (1..).zip(&all) {
        // A brief stands where the first of its turns did.
        if let Some(brief) = brief.as_ref().filter(|brief| brief["turns"][0] == n) {
            messages.push(json!({"role": "user", "content": brief["text"]}));
            tokens += brief["tokens"].as_u64().unwrap_or(0);
        }
        for step in 0..=turn.steps.len() {
            let is_wanted = wanted.iter().any(|of| of.turn == n && of.step.is_none_or(|wanted| wanted == step));
            let Some((from, to)) = turn.step(step).filter(|_| is_wanted) else { continue };
            messages.extend(rows[from..to].iter().filter_map(|node| value(&node.raw)));
            tokens += rows[from..to].iter().map(|node| u64::from(size(sizes, node))).sum::<u64>();
        }
    }
    let mut notes = vec!["leading system messages and tools are not in the record: the client adds its own".to_owned()];
    if messages.first().is_some_and(|first| first["role"] != "user") {
        notes.push(
            "it does not begin with a user message, which many chat templates want: choose what was asked, too (step 0 of \
             its turn, such as 4.0)"
                .into(),
        );
    }
    Ok(json!({"conversation": row.id, "messages": messages, "tokens": tokens, "notes": notes}))
}

fn value(raw: &Bytes) -> Option<Value> {
    serde_json::from_slice(raw).ok()
}

/// Whether what was chosen is there, and once only.
fn check(wanted: &[Chosen], briefs_wanted: &[usize], turns: &[Turn], brief: Option<&Value>) -> Result<(), Error> {
    let bad = |message: String, hint: &str| Err(Error::client(400, "bad_selection", message, hint));
    if wanted.is_empty() && briefs_wanted.is_empty() {
        return bad("nothing was chosen".into(), "name turns, briefs or both; `windowsill build ID` lists them");
    }
    for of in wanted {
        let turn = of.turn.checked_sub(1).and_then(|at| turns.get(at));
        let Some(turn) = turn else {
            let message = format!("there is no turn {}: the conversation has turns 1 to {}", of.turn, turns.len());
            return bad(message, "`windowsill build ID` lists them");
        };
        if of.step.is_some_and(|step| turn.step(step).is_none()) {
            let (many, s) = (turn.steps.len(), if turn.steps.len() == 1 { "" } else { "s" });
            let message = format!("there is no step {of}: turn {} has {many} step{s}", of.turn);
            return bad(message, "`windowsill build ID` lists them");
        }
    }
    if let Some(n) = briefs_wanted.iter().find(|n| **n != 1 || brief.is_none()) {
        let there = if brief.is_some() { "there is brief 1 alone" } else { "nothing was folded" };
        return bad(format!("there is no brief {n}: {there}"), "`windowsill build ID` lists them");
    }
    let of_brief = brief.filter(|_| !briefs_wanted.is_empty()).and_then(|b| b["turns"].as_array());
    if let Some(of) = wanted.iter().find(|of| of_brief.is_some_and(|turns| turns.contains(&json!(of.turn)))) {
        return bad(format!("turn {} stands in brief 1 already", of.turn), "choose the brief or its turns");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(roles: &str) -> Vec<Turn> {
        turns(roles.split_whitespace().map(|role| match role {
            "user" => Part::Person,
            "assistant" => Part::Model,
            _ => Part::Other,
        }))
    }

    #[test]
    fn turns_cover_a_history_and_never_part_a_call_from_its_result() {
        for (roles, expect) in [
            ("user assistant user assistant", vec![(0, 2), (2, 4)]),
            ("user assistant tool tool assistant user", vec![(0, 5), (5, 6)]),
            ("user user assistant", vec![(0, 3)]),
            ("assistant tool user", vec![(0, 2), (2, 3)]),
            ("user assistant assistant tool", vec![(0, 4)]),
            ("user assistant reminder assistant user", vec![(0, 4), (4, 5)]),
            ("user reminder user assistant", vec![(0, 4)]),
            ("", vec![]),
        ] {
            let found: Vec<(usize, usize)> = told(roles).iter().map(|t| (t.from, t.to)).collect();
            assert_eq!(found, expect, "{roles}");
        }
    }

    #[test]
    fn steps_cover_a_turn() {
        let turn = &told("user user assistant tool tool assistant")[0];
        let steps: Vec<_> = (0..4).map(|step| turn.step(step)).collect();
        assert_eq!(steps, [Some((0, 2)), Some((2, 5)), Some((5, 6)), None]);
        assert_eq!(told("assistant tool")[0].step(0), None, "nobody asked");
        assert_eq!("4.2".parse(), Ok(Chosen { turn: 4, step: Some(2) }));
        assert_eq!(" 4 ".parse(), Ok(Chosen { turn: 4, step: None }));
        for wrong in ["", "4.", ".2", "4.2.1", "four", "-1"] {
            assert_eq!(wrong.parse::<Chosen>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn what_is_cut_says_so_and_ends_with_a_word() {
        assert_eq!(shown(" a\n b "), "a b");
        let word = |n: usize| "x".repeat(n);
        assert_eq!(shown(&word(SHOWN)), word(SHOWN));
        assert_eq!(shown(&word(SHOWN + 1)), format!("{}…", word(SHOWN)));
        assert_eq!(shown(&format!("{} yy", word(SHOWN - 2))), format!("{}…", word(SHOWN - 2)));
        assert_eq!(shown(&format!("{} yy zz", word(SHOWN - 3))), format!("{} yy…", word(SHOWN - 3)));
        assert_eq!(shown(&"é ".repeat(SHOWN)).chars().last(), Some('…'));
    }

    #[test]
    fn a_brief_and_its_turns_exclude_each_other() {
        let brief = json!({"turns": [1, 2]});
        let all = told("user assistant user assistant tool user assistant");
        let check = |turns: &[&str], briefs: &[usize], brief: Option<&Value>| {
            let chosen: Vec<Chosen> = turns.iter().map(|text| text.parse().unwrap()).collect();
            check(&chosen, briefs, &all, brief)
        };
        assert!(check(&["3"], &[1], Some(&brief)).is_ok() && check(&["2.1", "3.0"], &[], Some(&brief)).is_ok());
        let wrong: [(&[&str], &[usize]); 7] =
            [(&["2"], &[1]), (&["2.1"], &[1]), (&["0"], &[]), (&["4"], &[]), (&["2.2"], &[]), (&[], &[2]), (&[], &[])];
        for (turns, briefs) in wrong {
            assert!(check(turns, briefs, Some(&brief)).is_err(), "{turns:?} {briefs:?}");
        }
        assert!(check(&["1"], &[1], None).is_err());
    }
}
