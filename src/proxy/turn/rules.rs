//! The rules of a project in a new conversation: it begins with them as pins, so that they hold through every fold and can be taken
//! back there.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::json;

use super::class::Class;
use super::drafts::Draft;
use super::history::History;
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::conversation::edit::Edit;
use crate::pinned;
use crate::plan::{self, Facts};
use crate::proxy::App;
use crate::proxy::state::scope::Scope;
use crate::proxy::state::standing::{ALL_PINS, LARGEST_PIN, Pinned, Standing, What, held};
use crate::store::{Event, Rule};

/// The rules that a new conversation begins with.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Ruled {
    ids: Vec<i64>,
    tokens: Tokens,
    left_out: usize,
}

impl Ruled {
    /// What is told of it: numbers, no text.
    pub(in crate::proxy) fn event(&self, conversation: &str, now_ms: i64) -> Event {
        let data = json!({"rules": self.ids, "tokens": self.tokens, "left_out": self.left_out});
        Event { now_ms, conversation: Some(conversation.to_owned()), kind: "rules_applied".into(), data }
    }

    /// In words without text of the rules.
    pub(in crate::proxy) fn because(&self) -> String {
        format!("rules: {} of this project stand in a new conversation ({} tokens)", self.ids.len(), self.tokens)
    }
}

/// Whose rules a request's conversation gets, where rules are on.
pub(in crate::proxy) fn scope(_app: &App, draft: &Draft<'_>, from_client: &HeaderMap) -> Option<Scope> {
    let conversation = &draft.request.conversation;
    let on = draft.situation.policy.rules && Class::of(conversation) != Class::Helper;
    if on { Scope::of(from_client, conversation) } else { None }
}

/// Puts the rules of a project into a new conversation: as pins, which stand at the end of the first message of a person.
/// What cannot be read is no reason to refuse the request.
pub(in crate::proxy) fn put_rules(
    app: &App,
    draft: &mut Draft<'_>,
    facts: &Facts,
    scope: &Scope,
    standing: &mut Arc<Standing>,
) -> Option<Ruled> {
    if !is_new(app, &draft.situation.history) || **standing != Standing::default() {
        return None;
    }
    let rules = rules_of(app, draft, scope);
    let (kept, left_out) = with_room(app, draft, &rules, facts.window);
    if left_out > 0 {
        draft.warnings.push(format!("{left_out} rules of this project found no room in the window"));
    }
    if kept.is_empty() {
        return None;
    }
    let pin = |(at, rule): (usize, &&Rule)| Pinned {
        id: at as u64 + 1,
        what: What::Text(rule.text.as_str().into()),
        created_ms: now_ms(),
        rule: Some(rule.id),
        by_agent: false,
    };
    let pins: Vec<Pinned> = kept.iter().enumerate().map(pin).collect();
    let ruled_for = Some(scope.clone());
    *standing = Arc::new(Standing { numbered: pins.len() as u64, pins, ruled_for, ..Standing::default() });
    let body = &draft.request.conversation.body;
    draft.wanted = held(app, &draft.situation.key, standing, &draft.situation.policy.pins, body, facts.window);
    let block = pinned::block(&draft.wanted.texts, &|_| true);
    if !block.is_empty() {
        let at = plan::anchor(&draft.request.conversation, facts, &draft.policy);
        let (keep, unread, struck) = (Vec::new(), Vec::new(), Vec::new());
        let (brief, read) = (Arc::from(block), Some(at));
        draft.old.edits.insert(0, Edit::Fold { from: at, to: at, keep, brief, unread, read, struck });
    }
    Some(Ruled { ids: kept.iter().map(|rule| rule.id).collect(), tokens: draft.wanted.tokens, left_out })
}

/// The rules of a scope, by number.
fn rules_of(app: &App, draft: &mut Draft<'_>, scope: &Scope) -> Vec<Rule> {
    let all = match app.store.rules() {
        Ok((all, _)) => all,
        Err(e) => {
            tracing::warn!(conversation = draft.situation.id(), error = %e, "the rules cannot be read");
            draft.warnings.push("the rules of this project could not be read".into());
            Vec::new()
        }
    };
    all.into_iter().filter(|rule| scope.has(rule)).collect()
}

/// Whether a history begins a conversation that the record does not have.
fn is_new(app: &App, history: &History) -> bool {
    let known = || matches!(app.store.conversation(&history.id), Ok(Some(row)) if row.id == history.id);
    let begins = history.located.as_ref().is_none_or(|l| l.conversation != history.id && history.inherits.is_none());
    begins && history.old().edits.is_empty() && !history.chain.is_empty() && !known()
}

/// The rules that find room in a window, the oldest first, and how many do not.
fn with_room<'a>(app: &App, draft: &Draft<'_>, rules: &'a [Rule], window: Tokens) -> (Vec<&'a Rule>, usize) {
    let mut room = window / ALL_PINS;
    let fits = |rule: &&Rule| {
        let tokens = app.measure.count(&draft.situation.key, &rule.text);
        let fits = tokens <= room.min(window / LARGEST_PIN);
        room -= if fits { tokens } else { 0 };
        fits
    };
    let kept: Vec<&Rule> = rules.iter().filter(fits).collect();
    let left_out = rules.len() - kept.len();
    (kept, left_out)
}
