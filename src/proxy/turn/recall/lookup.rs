//! Answers one call of the recall tool out of the record. What it may see is the history that the call was made in, and of that
//! what left the prompt: never another conversation, no message that a conversation of this name had before and this history has
//! not, never a file.

use std::collections::HashSet;

use serde_json::json;
use tracing::{debug, warn};

use crate::clock::now_ms;
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Message, Role, Tokens};
use crate::passage::{Filled, Found as Passage, Said, fill};
use crate::proxy::App;
use crate::proxy::state::notes::note_event;
use crate::proxy::turn::asking::ask_within;
use crate::proxy::turn::prepared::Prepared;
use crate::recall::{self, Asked, Page, Reference, Span, page};
use crate::store::{self, Batch, Event, Hit, blocking, original_id};
use crate::unwrap::{Inner, unwrap};
use crate::wire::openai_chat;

/// Passages that are ranked at least and at most, and the tokens of a short one: more than the room holds.
const RANKED: (usize, usize) = (40, 200);
const SHORT: Tokens = 32;

/// Fewer tokens than this hold no answer worth having.
const LEAST: Tokens = 48;

/// Tokens that are kept for the words around a page.
const AROUND: Tokens = 48;

/// Most bytes of messages that are read as one text.
const LONGEST: usize = 1 << 20;

/// The kind of an original that is a part of the system text.
const SYSTEM: &str = "system";

/// Longest part of what a model wrote that is repeated to it, in characters.
const ECHO: usize = 80;

/// What a call was answered with.
pub(super) struct Found {
    /// For the model.
    pub(super) text: String,
    /// `found`, `nothing`, `unclear`, `no_room`, `failed`.
    pub(super) outcome: &'static str,
}

fn found(text: String) -> Found {
    Found { text, outcome: "found" }
}

fn nothing(text: String) -> Found {
    Found { text, outcome: "nothing" }
}

fn no_room() -> Found {
    let text = "[no room: the context window is full. Go on with what is there, or ask again later]";
    Found { text: text.into(), outcome: "no_room" }
}

/// What an id is made of that is the same for whoever records a text.
fn mark(id: &str) -> &str {
    id.get(..original_id("").len()).unwrap_or(id)
}

/// The texts of a history, as the record names them.
struct Own<'a> {
    prepared: &'a Prepared,
    marks: HashSet<String>,
}

impl<'a> Own<'a> {
    fn of(prepared: &'a Prepared) -> Own<'a> {
        let conversation = &prepared.request.conversation;
        let mut marks = HashSet::new();
        for message in conversation.system.iter().chain(&conversation.body) {
            marks.insert(original_id(&message.text));
            marks.insert(original_id(&String::from_utf8_lossy(&message.raw)));
            let sent = message.repaired.as_ref().and_then(|_| openai_chat::message(message.raw.clone()).ok());
            let calls = message.calls.iter().chain(sent.iter().flat_map(|sent| &sent.calls));
            marks.extend(calls.map(|call| original_id(&call.arguments)));
            marks.extend(sent.iter().map(|sent| original_id(&sent.text)));
        }
        Own { prepared, marks }
    }

    /// Whether an original is a text of this history, or a part of its system text.
    fn has(&self, id: &str, kind: &str, text: &str) -> bool {
        let is_part = |message: &Message| {
            let sent = message.repaired.as_ref().and_then(|_| openai_chat::message(message.raw.clone()).ok());
            sent.as_ref().unwrap_or(message).text.contains(text)
        };
        let system = || self.prepared.request.conversation.system.iter().any(is_part);
        self.marks.contains(mark(id)) || kind == SYSTEM && system()
    }
}

/// One call's view of the record.
struct Lookup<'a> {
    app: &'a App,
    prepared: &'a Prepared,
    own: Own<'a>,
    budget: Tokens,
    count: &'a dyn Fn(&str) -> Tokens,
}

/// The answer to one call, in at most `budget` tokens or a few words.
pub(in crate::proxy) async fn recalled(app: &App, prepared: &Prepared, arguments: &str, budget: Tokens) -> Found {
    // What this very request put aside may still be queued.
    app.store.flush().await;
    let key = &prepared.key;
    let own = Own::of(prepared);
    if let Some((id, question)) = recall::question(arguments)
        && let Ok(Some(original)) = app.store.original_in(&id, &prepared.id)
        && own.has(&id, &original.kind, &original.text)
        && let Some(answered) = ask_within(app, prepared, &original, &question).await
        && app.measure.count(key, &answered.text) <= budget
    {
        app.metrics.recalled("found");
        let data = json!({"by": "question", "outcome": "found", "tokens": app.measure.count(key, &answered.text)});
        note_event(app, &prepared.id, "recall", data);
        return found(answered.text);
    }
    let count = |text: &str| app.measure.count(key, text);
    let lookup = Lookup { app, prepared, own, budget, count: &count };
    let asked = Asked::read(arguments);
    let how = match &asked {
        Asked::Text(..) => "id",
        Asked::Search(..) => "query",
        Asked::Unclear => "unclear",
    };
    // A search may take a while in a large record.
    let answer = match blocking(|| lookup.answer(asked)) {
        Ok(answer) => answer,
        Err(e) => {
            warn!(conversation = %prepared.id, error = %e, "the record cannot be read for the model");
            Found { text: "[the record cannot be read now; go on without it]".into(), outcome: "failed" }
        }
    };
    app.metrics.recalled(answer.outcome);
    let data = json!({"by": how, "outcome": answer.outcome, "tokens": app.measure.count(key, &answer.text)});
    let event = Event { now_ms: now_ms(), conversation: Some(prepared.id.clone()), kind: "recall".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
    answer
}

impl Lookup<'_> {
    fn answer(&self, asked: Asked) -> Result<Found, crate::store::Error> {
        if self.budget < LEAST {
            return Ok(no_room());
        }
        match asked {
            Asked::Text(Reference::Record(id), span) => self.record(&id, span),
            Asked::Text(Reference::Message(conversation, at), span) => {
                Ok(self.message(conversation.as_deref(), at, span))
            }
            Asked::Text(Reference::Messages(conversation, from, to), span) => {
                Ok(self.messages(conversation.as_deref(), from, to, span))
            }
            Asked::Text(Reference::Other(text), span) => {
                let about = format!("`{}` is no id of this conversation's record", echo(&text));
                self.search(&text, span, Some(&about))
            }
            Asked::Search(query, span) => self.search(&query, span, None),
            Asked::Unclear => {
                let text = "[the call could not be read: give {\"id\": \"r…\"} as a marker names it, or {\"query\": \"words\"}]";
                Ok(Found { text: text.into(), outcome: "unclear" })
            }
        }
    }

    fn record(&self, id: &str, span: Span) -> Result<Found, crate::store::Error> {
        let found = self.app.store.original_in(id, &self.prepared.id)?;
        let Some(original) = found.filter(|found| self.own.has(id, &found.kind, &found.text)) else {
            if let Some(gone) = self.app.store.pruned_original(id)? {
                return Ok(nothing(format!("[`{}` {gone}: the record holds it no longer]", echo(id))));
            }
            return Ok(nothing(format!(
                "[no text `{}` in the record of this conversation: check the id, or search with `query`]",
                echo(id)
            )));
        };
        let what = original.call.as_deref().or(original.tool.as_deref()).unwrap_or(original.kind.as_str());
        let inner = (original.kind == "tool_result").then(|| unwrap(&original.text)).flatten();
        Ok(match inner {
            Some(inner) => self.page(id, &inside(what, &inner), &inner.text, span),
            None => self.page(id, what, &original.text, span),
        })
    }

    fn message(&self, conversation: Option<&str>, at: usize, span: Span) -> Found {
        let body = &self.prepared.request.conversation.body;
        if conversation.is_some_and(|c| c != self.prepared.id) {
            return nothing("[only this conversation can be recalled]".into());
        }
        let Some(message) = body.get(at) else { return self.no_message() };
        match (message.role == Role::Tool).then(|| unwrap(&message.text)).flatten() {
            Some(inner) => self.page(&at.to_string(), &inside(role(message), &inner), &inner.text, span),
            None => self.page(&at.to_string(), role(message), &spoken(message), span),
        }
    }

    fn no_message(&self) -> Found {
        let last = self.prepared.request.conversation.body.len().saturating_sub(1);
        nothing(format!("[this conversation has messages 0 to {last} only]"))
    }

    /// Several messages as one text, each behind its number and who said it.
    fn messages(&self, conversation: Option<&str>, from: usize, to: usize, span: Span) -> Found {
        if from == to || conversation.is_some_and(|c| c != self.prepared.id) {
            return self.message(conversation, from, span);
        }
        let body = &self.prepared.request.conversation.body;
        let (from, asked) = (from.min(to), from.max(to));
        if from >= body.len() {
            return self.no_message();
        }
        let to = asked.min(body.len() - 1);
        let mut text = String::new();
        let mut last = to;
        for at in (from..=to).filter(|at| !recall::is_woven(body, *at)) {
            if text.len() > LONGEST {
                last = at - 1;
                break;
            }
            let message = &body[at];
            let who = message.name.as_deref().map(|n| format!(" {}", echo(n))).unwrap_or_default();
            text.push_str(&format!("[{at}] {}{who}: {}\n", role(message), spoken(message)));
        }
        let what = match () {
            () if last < to => format!("messages; read on with {}-{asked}", last + 1),
            () if to < asked => format!("messages; {to} is the last there is"),
            () => "messages".into(),
        };
        self.page(&format!("{from}-{last}"), &what, &text, span)
    }

    fn page(&self, id: &str, what: &str, text: &str, span: Span) -> Found {
        let what: String = what.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect();
        let page = page(text, span, self.budget.saturating_sub(AROUND), self.count);
        let Some(Page { text: shown, first, last, total }) = page else {
            let total = page_total(text);
            return nothing(format!("[{id} has {total} lines: offset {} is past its end]", span.offset.unwrap_or(1)));
        };
        if total > 0 && first == 0 {
            return no_room();
        }
        if total == 0 {
            return found(format!("[{id}: {what}; it is empty]"));
        }
        let more = match total - last {
            0 => String::new(),
            more => format!("\n[{more} more lines: call again with offset={}]", last + 1),
        };
        found(format!("[{id}: {what}; lines {first}-{last} of {total}]\n{shown}{more}"))
    }

    /// The best passages of what left the prompt, as many as there is room for, in the order of time.
    fn search(&self, query: &str, span: Span, about: Option<&str>) -> Result<Found, crate::store::Error> {
        let body = &self.prepared.request.conversation.body;
        let mut any = false;
        let mut gone = |hit: &mut Hit| {
            let own = self.is_own(hit);
            any |= own;
            let left = hit.kind == SYSTEM || left_the_prompt(&self.prepared.made.view, hit.at);
            own && left && !recall::is_woven(body, hit.at)
        };
        let most = usize::try_from(self.budget / SHORT).unwrap_or(usize::MAX).clamp(RANKED.0, RANKED.1);
        let all = self.app.store.passages(query, Some(&self.prepared.id), most, &mut gone)?;
        let about = about.map(|a| format!("[{a}; searched for it instead]\n")).unwrap_or_default();
        if all.is_empty() {
            let there = if any { "; what holds these words still stands in the prompt" } else { "" };
            return Ok(nothing(format!("{about}[nothing that left the prompt matches `{}`{there}]", echo(query))));
        }
        let Some((from, most)) = span.of(all.len()) else {
            return Ok(nothing(format!(
                "{about}[{} hits: offset {} is past the last]",
                all.len(),
                span.offset.unwrap_or(1)
            )));
        };
        let passages: Vec<Passage> = all.into_iter().skip(from).map(as_shown).collect();
        let Filled { text, shown } = fill(&passages, self.budget.saturating_sub(AROUND), most, self.count);
        if shown == 0 {
            return Ok(no_room());
        }
        let (last, total) = (from + shown, from + passages.len());
        let more = match total - last {
            0 => String::new(),
            more => format!("\n[{more} more hits: call again with offset={}]", last + 1),
        };
        let head = format!("[hits {}-{last} of {total}; read one whole by its id; in the order of time]", from + 1);
        Ok(found(format!("{about}{head}\n{text}{more}")))
    }
}

impl Lookup<'_> {
    /// Whether what a search found is of this history. The id of a message goes where it is of a text that once stood in its
    /// place. Asks nothing of the record, which is searching just now.
    fn is_own(&self, hit: &mut Hit) -> bool {
        match (&hit.digest, &hit.id) {
            (Some(digest), id) => {
                if id.as_ref().is_some_and(|id| !self.own.marks.contains(mark(id))) {
                    (hit.id, hit.call) = (None, None);
                }
                self.prepared.request.conversation.body.get(hit.at).is_some_and(|own| own.digest == *digest)
            }
            (None, Some(id)) => self.own.has(id, &hit.kind, &hit.text),
            (None, None) => false,
        }
    }
}

/// A passage as the model sees it: a message by its number, which reads it whole; a result that a marker names, and a text that
/// is no message, by its id.
pub(in crate::proxy) fn as_shown(found: store::Passage) -> Passage {
    let said = found.said.into_iter().map(|hit| {
        let Hit { id, at, kind, call, role, span, goes_on, date, text, digest, .. } = hit;
        let id = id.filter(|_| digest.is_none() || kind == "tool_result");
        let who = call.or(role).unwrap_or(kind);
        let who = if id.is_some() && digest.is_some() { format!("message {at}, {who}") } else { who };
        Said { of: String::new(), id: id.unwrap_or_else(|| at.to_string()), at, span, goes_on, who, date, text }
    });
    Passage { said: said.collect(), center: found.center, rank: found.rank }
}

/// Whether a message does not stand in the view as the client sent it.
pub(in crate::proxy) fn left_the_prompt(view: &View, message: usize) -> bool {
    view.edits.iter().any(|edit| match edit {
        Edit::Text { at, .. } | Edit::Arguments { at, .. } => *at == message,
        Edit::Recalled { .. } => false,
        Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&message) && !keep.contains(&message),
    })
}

fn role(message: &Message) -> &'static str {
    match message.role {
        Role::System => "system message",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool result",
        Role::Other => "message",
    }
}

/// What is shown of a result that came wrapped in JSON, and what the wrapping says.
fn inside(what: &str, inner: &Inner) -> String {
    let around = if inner.around.is_empty() { String::new() } else { format!(" ({})", echo(&inner.around)) };
    let what: String = what.chars().take(80).collect();
    format!("{what}; the text inside its JSON{around}")
}

/// What a message says, its calls too.
fn spoken(message: &Message) -> String {
    let calls = message.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
    let parts = std::iter::once(message.text.to_string()).chain(calls);
    parts.filter(|p| !p.is_empty()).collect::<Vec<_>>().join("\n")
}

/// How many lines a text has, as [`page`] counts.
fn page_total(text: &str) -> usize {
    page(text, Span { offset: Some(1), limit: Some(1) }, 1, &|_| 0).map_or(0, |p| p.total)
}

/// What a model wrote, on one short line.
fn echo(text: &str) -> String {
    recall::clean(text).split_whitespace().collect::<Vec<_>>().join(" ").chars().take(ECHO).collect()
}
