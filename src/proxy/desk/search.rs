//! What was said, found again: by words, in one conversation or everywhere; and the messages of a history that fit a filter.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::record::{hit_json, row, row_of, searchable};
use super::timeline::{Calls, fold, line, view_of};
use crate::conversation::edit::View;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::{App, Error};
use crate::store::NodeRow;
use crate::wire::openai_chat;

/// Most messages of one answer.
const PAGE: usize = 500;

/// Messages that are read at once.
const BLOCK: usize = 256;

/// Messages that one answer looks at: the next one goes on behind them.
const LOOKED_AT: usize = 4_096;

/// Roles that a filter takes.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// What a search finds, the best first: in one conversation and what it forked from, or, without an id, in all of them. Then each
/// hit says what its conversation is called.
///
/// # Errors
/// 404 for an unknown conversation, 400 where there is no word to search for.
pub fn search(app: &App, id: Option<&str>, query: &str, limit: usize) -> Result<Value, Error> {
    searchable(query)?;
    let scope = match id {
        Some(id) => Some(row(&app.store, id, "`windowsill context` and the page list them")?.id),
        None => None,
    };
    let hits = app.store.search(query, scope.as_deref(), limit)?;
    let mut out: Vec<Value> = hits.iter().map(hit_json).collect();
    if id.is_none() {
        let mut titles: HashMap<&str, Option<String>> = HashMap::new();
        for (hit, told) in hits.iter().zip(&mut out) {
            let title = match titles.get(hit.conversation.as_str()) {
                Some(title) => title.clone(),
                None => {
                    let title = app.store.conversation(&hit.conversation)?.map(|row| row.title);
                    titles.insert(&hit.conversation, title.clone());
                    title
                }
            };
            told["title"] = json!(title);
        }
    }
    Ok(json!({"hits": out, "unindexed": app.store.unindexed()?}))
}

/// Which messages of a history are asked for. A message has to fit all that is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Who said it.
    pub role: Option<String>,
    /// The tool that is called in it, or whose result it is.
    pub tool: Option<String>,
    /// Only what the model does not see as it is.
    pub changed: bool,
    /// Words that stand in it, in small or large letters.
    pub text: Option<String>,
}

impl Filter {
    /// Whether all messages fit.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    fn fits(&self, node: &NodeRow, line: &Value) -> bool {
        let named = |name: &str| name.split_whitespace().next() == self.tool.as_deref();
        let names = |value: &Value| value.as_str().is_some_and(named);
        let called = || line["calls"].as_array().is_some_and(|calls| calls.iter().any(names)) || names(&line["call"]);
        self.role.as_deref().is_none_or(|role| said_by(&node.role) == role)
            && (!self.changed || line["became"] != "same")
            && (self.tool.is_none() || called())
            && self.text.as_deref().is_none_or(|text| holds(node, text))
    }
}

/// The role that a filter names a message by: clients have several words for two of them.
fn said_by(role: &str) -> &str {
    match role {
        "developer" => "system",
        "function" => "tool",
        role => role,
    }
}

/// Whether a message says this, in small or large letters.
fn holds(node: &NodeRow, text: &str) -> bool {
    let Ok(message) = openai_chat::message(node.raw.clone()) else { return false };
    let text = text.to_lowercase();
    let calls = message.calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
    std::iter::once(message.text.as_str()).chain(calls).any(|part| part.to_lowercase().contains(&text))
}

/// `GET /windowsill/conversations/{id}/messages` with a filter: the messages from index `from` on that fit, at most so many, and in
/// `next` where the rest begins. One answer looks at a part of a long history only, so that it may hold fewer, and have a `next`.
///
/// # Errors
/// 404 for an unknown conversation, 400 for a role that there is not.
pub fn filtered(app: &App, id: &str, from: usize, limit: usize, filter: &Filter) -> Result<Value, Error> {
    if let Some(role) = filter.role.as_deref().filter(|role| !ROLES.contains(role)) {
        let message = format!("there is no role `{}`", super::record::short(role));
        return Err(Error::client(400, "bad_parameter", message, &format!("roles are {}", ROLES.join(", "))));
    }
    let row = row_of(app, id)?;
    let view = view_of(&app.store, &row)?;
    let reply = app.store.last_reply(&row.id)?;
    let total = row.depth + usize::from(reply.is_some());
    let (sizes, limit) = (Sizes::of(&row.state), limit.clamp(1, PAGE));
    let mut found = Found { from, limit, sizes, filter, view: &view, calls: Calls::default(), lines: Vec::new() };
    let end = from.saturating_add(LOOKED_AT).min(total);
    // The calls that the first results answer stand before them.
    let mut at = from.saturating_sub(super::timeline::CALLS_BEFORE);
    let mut next = None;
    while at < end && next.is_none() {
        let to = (at + BLOCK).min(end);
        let mut rows = app.store.messages_between(&row.id, at, to)?;
        rows.extend(reply.clone().filter(|node| (at..to).contains(&node.at)));
        next = found.take(&rows);
        at = to;
    }
    let next = next.or((end < total).then_some(end));
    Ok(
        json!({"conversation": row.id, "total": total, "from": from, "messages": found.lines, "fold": fold(&view, &row.state), "next": next}),
    )
}

/// What was found so far.
struct Found<'a> {
    from: usize,
    limit: usize,
    sizes: Sizes,
    filter: &'a Filter,
    view: &'a View,
    calls: Calls,
    lines: Vec<Value>,
}

impl Found<'_> {
    /// Takes what fits of these rows; where there is no room for more, says at which message the rest begins.
    fn take(&mut self, rows: &[NodeRow]) -> Option<usize> {
        let called = self.calls.answered(rows);
        for node in rows.iter().filter(|node| node.at >= self.from) {
            if self.lines.len() == self.limit {
                return Some(node.at);
            }
            let mut line = line(node, self.view, self.sizes);
            line["call"] = json!(called.get(&node.at));
            if self.filter.fits(node, &line) {
                self.lines.push(line);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::conversation::Digest;

    fn node(at: usize, raw: Value) -> NodeRow {
        let role = raw["role"].as_str().unwrap().to_owned();
        let (chain, digest) = (Digest([at as u8; 16]), Digest([0; 16]));
        NodeRow { at, chain, digest, role, conversation: "c".into(), raw: Bytes::from(raw.to_string()) }
    }

    #[test]
    fn a_filter_takes_what_fits_all_of_it() {
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"path\":\"Cargo.toml\"}"}});
        let rows = [
            node(0, json!({"role": "developer", "content": "Be brief."})),
            node(1, json!({"role": "user", "content": "Read the Manifest."})),
            node(
                2,
                json!({"role": "assistant", "content": null, "tool_calls": [call("a", "read"), call("b", "grep")]}),
            ),
            node(3, json!({"role": "tool", "tool_call_id": "a", "content": "[package]"})),
            node(4, json!({"role": "tool", "tool_call_id": "b", "content": "nothing"})),
            node(5, json!({"role": "user", "content": "read it again"})),
        ];
        let some = |text: &str| Some(text.to_owned());
        let at = |filter: Filter| {
            let view = View::default();
            let (sizes, calls) = (Sizes::default(), Calls::default());
            let mut found = Found { from: 0, limit: 9, sizes, filter: &filter, view: &view, calls, lines: Vec::new() };
            assert_eq!(found.take(&rows), None);
            found.lines.iter().map(|line| line["at"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(at(Filter::default()), [0, 1, 2, 3, 4, 5]);
        assert_eq!(at(Filter { role: some("system"), ..Filter::default() }), [0]);
        assert_eq!(at(Filter { tool: some("read"), ..Filter::default() }), [2, 3]);
        assert_eq!(at(Filter { tool: some("read"), role: some("tool"), ..Filter::default() }), [3]);
        assert_eq!(at(Filter { text: some("MANIFEST"), ..Filter::default() }), [1]);
        assert_eq!(at(Filter { text: some("cargo.toml"), ..Filter::default() }), [2]);
        assert_eq!(at(Filter { changed: true, ..Filter::default() }), [] as [u64; 0]);
        let (view, filter) = (View::default(), Filter { role: some("user"), ..Filter::default() });
        let mut found = Found {
            from: 1,
            limit: 1,
            sizes: Sizes::default(),
            filter: &filter,
            view: &view,
            calls: Calls::default(),
            lines: Vec::new(),
        };
        assert_eq!(found.take(&rows), Some(2), "the rest begins behind the last one that was taken");
    }
}
