//! The rules for what a client's own API asks to be done with its history ([`Edits`]), beside the policy: whichever line is lower
//! acts first, and what was done once stays done in the view. A compaction is a fold: see `summarize`.

use super::facts::{SMALL, placeholder};
use super::policy::{Policy, Strategy};
use super::sheet::Sheet;
use super::{Action, clear, evict};
use crate::conversation::edit::{Edit, Rule, View};
use crate::conversation::managed::{Edits, Inputs, Stands, Taken, Trigger, Uses};
use crate::conversation::step::{self, call_of};
use crate::conversation::{Conversation, Message, Role, Tokens, person};

/// The policy of a request whose client asks for these.
pub fn over(edits: &Edits, policy: &Policy) -> Policy {
    let mut out = Policy { client: edits.clone(), ..policy.clone() };
    let excluded = edits.uses.iter().flat_map(|uses| &uses.exclude);
    let new: Vec<String> = excluded.filter(|name| !policy.results.never_clear.contains(name)).cloned().collect();
    out.results.never_clear.extend(new);
    if edits.compact.is_some() && out.strategy == Strategy::Off {
        out.strategy = Strategy::Summarize;
    }
    out
}

/// The fold of the first `to` messages: where it begins, and what stays inside. Rules that a client puts before what a person says
/// first hold on, and so does what a person asked last.
pub(super) fn whole(body: &[Message], to: usize) -> (usize, Option<usize>) {
    let body = &body[..to.min(body.len())];
    let opening = step::opening(body);
    let has_rules = body[..opening].iter().any(person::has_context);
    let from = if has_rules { opening } else { 0 };
    let asked = body.iter().rposition(step::is_persons).or_else(|| step::last_user(body));
    (from, asked.filter(|at| *at >= from))
}

/// The view of a history whose beginning a brief stands for, unless the view so far tells as much.
pub fn stood(conversation: &Conversation, old: &View, stands: &Stands) -> Option<View> {
    let reached = old.edits.iter().find_map(|edit| match edit {
        Edit::Fold { to, .. } => Some(*to),
        _ => None,
    });
    let is_told = old.brief() == Some(&stands.text) || reached.is_some_and(|to| to >= stands.depth);
    if is_told || stands.depth == 0 || stands.depth > conversation.body.len() {
        return None;
    }
    let (from, asked) = whole(&conversation.body, stands.depth);
    let keep: Vec<usize> = asked.into_iter().collect();
    let fold = Edit::Fold {
        from,
        to: stands.depth,
        keep,
        brief: stands.text.as_str().into(),
        unread: Vec::new(),
        read: Some(stands.depth),
        struck: Vec::new(),
    };
    let stays = |edit: &&Edit| match edit {
        Edit::Fold { .. } => false,
        Edit::Text { at, .. } | Edit::Arguments { at, .. } | Edit::Recalled { at, .. } => !fold.touches(*at),
    };
    let rest: Vec<Edit> = old.edits.iter().filter(stays).cloned().collect();
    let messages = conversation.body.len();
    let edits = std::iter::once(fold.clone()).chain(rest).collect();
    Some(View { messages, edits, bare: false, changing: old.changing.clone() })
}

/// Leaves out thoughts and clears results, as the client asks.
pub(super) fn apply(sheet: &mut Sheet<'_>) -> Option<String> {
    let asked = &sheet.policy.client;
    let (quiet, cleared) = (asked.thinking, asked.uses.as_ref());
    let turns = quiet.map_or(0, |keep| leave_out_thoughts(sheet, keep));
    let results = cleared.map_or(0, |uses| clear_results(sheet, uses));
    let turns = (turns > 0).then(|| format!("the thoughts of {turns} messages left out"));
    let results = (results > 0).then(|| format!("{results} old results cleared"));
    let said: Vec<String> = turns.into_iter().chain(results).collect();
    (!said.is_empty()).then(|| format!("the client asks: {}", said.join("; ")))
}

/// Leaves out what was thought before the `keep` newest turns with thoughts. Returns of how many messages.
fn leave_out_thoughts(sheet: &mut Sheet<'_>, keep: usize) -> usize {
    let body = &sheet.conversation.body;
    let turns = turns(body);
    let thinks = |at: &usize| !body[*at].reasoning.is_empty();
    let mut newest: Vec<usize> = (0..body.len()).rev().filter(thinks).map(|at| turns[at]).collect();
    newest.dedup();
    let Some(last) = newest.get(keep) else { return 0 };
    let goes = |at: &usize| thinks(at) && turns[*at] <= *last;
    let goes: Vec<usize> = (0..body.len()).filter(goes).collect();
    let mut count = 0;
    for at in goes {
        if sheet.touched[at].is_some() || sheet.folded(at) || sheet.is_protected(at) {
            continue;
        }
        let (thought, said) = (body[at].reasoning.len() as u64, body[at].text.len() as u64);
        let left = u64::from(sheet.text(at)) * said / (thought + said).max(1);
        sheet.replace(at, Rule::Clear, Tokens::try_from(left).unwrap_or(0), Action::Quiet { at });
        count += 1;
    }
    count
}

/// The turn of each message: what stands between two messages of the user is one.
fn turns(body: &[Message]) -> Vec<usize> {
    let mut turn = 0;
    let of = |message: &Message| {
        turn += usize::from(message.role == Role::User);
        turn
    };
    body.iter().map(of).collect()
}

/// Clears all old results at once, so that the next ones are cleared only once there are as many again. Returns how many.
fn clear_results(sheet: &mut Sheet<'_>, uses: &Uses) -> usize {
    let body = &sheet.conversation.body;
    let stands =
        |at: &usize| body[*at].role == Role::Tool && !sheet.folded(*at) && sheet.touched[*at] != Some(Rule::Clear);
    let results: Vec<usize> = (0..body.len()).filter(stands).collect();
    let due = match uses.trigger {
        // A guess is no reason to take anything away; the first reply tells.
        Trigger::Tokens(_) if sheet.facts.counting.guessed => {
            sheet.wait("clear", 0, clear::GUESSED);
            false
        }
        Trigger::Tokens(line) => sheet.total() > line,
        Trigger::Uses(most) => results.len() > most,
    };
    if !due {
        return 0;
    }
    let before = clear::Snapshot::of(sheet);
    let mut count = 0;
    for at in results[..results.len().saturating_sub(uses.keep)].iter().copied() {
        let was = sheet.sizes.whole[at];
        let left = placeholder(sheet.facts.costs[at].text);
        if was > SMALL && was > left && !sheet.is_protected(at) {
            sheet.replace(at, Rule::Clear, left, Action::Placeholder { at, budget: left });
            count += 1;
        }
        clear_input(sheet, at, &uses.inputs);
    }
    let freed = before.total().saturating_sub(sheet.total());
    if freed == 0 || freed < uses.at_least {
        if count > 0 {
            let why = format!("it would free {freed} tokens, and the client wants {} at least", uses.at_least);
            before.restore(sheet);
            sheet.wait("clear", 0, why);
        } else {
            before.restore(sheet);
        }
        return 0;
    }
    count
}

/// Clears the arguments of the call that a result answers, where that is asked for.
fn clear_input(sheet: &mut Sheet<'_>, result: usize, inputs: &Inputs) {
    let body = &sheet.conversation.body;
    let Some((at, call)) = call_of(body, result) else { return };
    let goes = match inputs {
        Inputs::Stay => false,
        Inputs::Go => true,
        Inputs::Of(names) => names.contains(&body[at].calls[call].name),
    };
    if goes && sheet.sizes.calls[at][call] > SMALL && !sheet.is_protected(at) && !clear::is_elided(sheet, at, call) {
        evict::elide(sheet, at, call, SMALL, Rule::Clear);
    }
}

/// The part of a view that such an edit made, and how many uses of tools or turns it has to do with.
pub fn part(conversation: &Conversation, view: &View, of: Taken) -> (View, usize) {
    let body = &conversation.body;
    let role = |at: usize| body.get(at).map(|message| message.role);
    let is_of = |edit: &&Edit| match edit {
        Edit::Text { at, rule: Rule::Clear, .. } => match of {
            Taken::Uses => role(*at) == Some(Role::Tool),
            Taken::Thinking => role(*at) == Some(Role::Assistant),
        },
        Edit::Arguments { rule: Rule::Clear, .. } => of == Taken::Uses,
        _ => false,
    };
    let edits: Vec<Edit> = view.edits.iter().filter(is_of).cloned().collect();
    let turns = turns(body);
    let mut places: Vec<usize> = edits
        .iter()
        .filter_map(|edit| match edit {
            Edit::Text { at, .. } if of == Taken::Thinking => Some(turns[*at]),
            Edit::Text { at, .. } => Some(*at),
            _ => None,
        })
        .collect();
    places.dedup();
    let count = places.len();
    (View { messages: view.messages, edits, ..View::default() }, count)
}

#[cfg(test)]
mod tests;
