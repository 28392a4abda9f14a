//! The tools of `windowsill mcp`: what an agent may ask of the record and of the running proxy, and how it is answered. What changes
//! a conversation stands in [`change`].
//!
//! An agent reads what it can name: a record's id is a hash that stands in its own prompt and nowhere else. Nobody tells it
//! the ids of other conversations, and a search stays within the one that is named, unless the person who set the server up
//! opened all of them.

mod arguments;
mod change;
mod tools;

use std::path::PathBuf;
use std::sync::Arc;

use arguments::Arguments;

use serde_json::{Map, Value, json};
pub(super) use tools::{Effect, Tool};

use super::ask::ask_original;
use super::machine::windows;
use super::record::{self, Text};
use super::running::{ask, ask_original_running};
use crate::config::Config;
use crate::conversation::Tokens;
use crate::passage::{Filled, Found, Said, fill};
use crate::proxy::{App, Error, Record};
use crate::recall::{Page, Reference, Span, page};
use crate::store::{ConversationRow, Passage, Store};

/// Tokens of an answer at most, at four characters each. Nothing is known of the model that asks.
const ANSWER: Tokens = 6_000;

/// Hits that a search shows unless told, and at most.
const HITS: usize = 10;
const MOST_HITS: usize = 100;

/// Conversations that are listed at most, the newest.
const LISTED: usize = 100;

/// Compactions that `context` tells of, the newest.
const COMPACTIONS: usize = 10;

/// What an agent may look at.
#[derive(Clone)]
pub struct Agent {
    data_dir: PathBuf,
    running: Running,
    /// The only conversation that may be looked at, where one was named.
    conversation: Option<String>,
    /// Whether all conversations may be listed and searched.
    all: bool,
}

/// The proxy that runs.
#[derive(Clone)]
enum Running {
    /// In another process, where it listens, with its key.
    At(String, Option<String>),
    /// This one.
    Here(Arc<App>),
}

impl Agent {
    /// An agent of the record and the proxy that these settings name; `conversation`: nothing but that one; `all`: every one.
    pub fn new(config: &Config, conversation: Option<String>, all: bool) -> Agent {
        let key = config.api_key.as_ref().map(|k| k.expose().to_owned());
        let running = Running::At(config.listen.to_string(), key);
        Agent { data_dir: config.data_dir.clone(), running, conversation, all }
    }

    /// As [`Agent::new`], within the proxy itself.
    pub fn within(app: &Arc<App>, conversation: Option<String>, all: bool) -> Agent {
        let running = Running::Here(Arc::clone(app));
        Agent { data_dir: app.config.data_dir.clone(), running, conversation, all }
    }

    /// The tools, always in the same order.
    pub fn tools(&self) -> Vec<Tool> {
        tools::tools(self.conversation.is_some(), self.all)
    }

    /// Runs a tool. `None` for one that does not exist; an error is in words for the model.
    pub async fn call(&self, tool: &str, arguments: &Map<String, Value>) -> Option<Result<String, String>> {
        let known = tools::arguments_of(tool)?;
        if let Some(other) = arguments.keys().find(|key| !known.contains(key)) {
            let known = known.join("`, `");
            return Some(Err(format!("`{tool}` takes no `{}`; it takes `{known}`", record::short(other))));
        }
        match tool {
            "window" => return Some(self.window(&Arguments(arguments)).await),
            "ask" => return Some(self.ask(&Arguments(arguments)).await),
            "pins" | "pin" | "unpin" | "done" => return Some(self.change(tool, &Arguments(arguments)).await),
            _ => {}
        }
        let (agent, tool, arguments) = (self.clone(), tool.to_owned(), arguments.clone());
        // The record is on disk: whoever reads it may wait.
        let work = move || {
            let record = Record::open(&agent.data_dir).map_err(say)?;
            let arguments = Arguments(&arguments);
            match tool.as_str() {
                "recall" => agent.recall(&record.store, &arguments),
                "search" => agent.search(&record, &arguments),
                "build" => agent.build(&record, &arguments),
                _ => agent.context(&record, &arguments),
            }
        };
        let done = tokio::task::spawn_blocking(work).await;
        Some(done.unwrap_or_else(|e| Err(format!("failed to run the tool: {e}"))))
    }

    fn recall(&self, store: &Store, arguments: &Arguments<'_>) -> Result<String, String> {
        let id = arguments.text("id")?.ok_or("give `id`, as a marker names it: r3f9a0c12d4e5")?;
        let span = arguments.span()?;
        let scope = self.scope(store, arguments)?.map(|row| row.id);
        let found = self.whole(store, &id, scope.as_deref())?;
        let what = found.call.as_deref().unwrap_or(&found.kind);
        let what: String = what.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect();
        let inner = found.inner();
        let what = if inner.is_some() { format!("{what}; the text inside its JSON") } else { what };
        let text = if found.id.is_none() && found.at.is_some() && found.kind != record::MESSAGES {
            record::spoken(&found.text)
        } else {
            inner.unwrap_or(found.text)
        };
        let Some(Page { text, first, last, total }) = page(&text, span, ANSWER, &count) else {
            return Err(format!("`{}` is shorter: offset is behind its end", record::short(&id)));
        };
        let more = match total - last {
            0 => String::new(),
            more => format!("\n[{more} more lines: call again with offset={}]", last + 1),
        };
        Ok(format!("[{}: {what}; lines {first}-{last} of {total}]\n{text}{more}", record::short(&id)))
    }

    /// An original as it came, by its id or as `CONVERSATION:MESSAGE`; `None` where there is no such thing to read.
    pub async fn original(&self, id: &str) -> Option<String> {
        let (agent, id) = (self.clone(), id.to_owned());
        let read = move || {
            let record = Record::open(&agent.data_dir).map_err(say)?;
            let scope = agent.scope(&record.store, &Arguments(&Map::new()))?.map(|row| row.id);
            agent.whole(&record.store, &id, scope.as_deref()).map(|found| found.text)
        };
        tokio::task::spawn_blocking(read).await.ok()?.ok()
    }

    /// The conversations that may be listed: id and title of each, the newest first.
    pub async fn listed(&self) -> Vec<(String, String)> {
        let agent = self.clone();
        let read = move || {
            let record = Record::open(&agent.data_dir).ok()?;
            let rows = record.store.conversations(LISTED).ok()?;
            let only = agent.conversation.as_deref();
            let open = |row: &ConversationRow| agent.all || only.is_some_and(|id| row.id.starts_with(id));
            Some(rows.into_iter().filter(open).map(|row| (row.id, row.title)).collect())
        };
        tokio::task::spawn_blocking(read).await.ok().flatten().unwrap_or_default()
    }

    /// Has the running proxy ask a model, once it is sure that the agent may see the text.
    async fn ask(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let id = arguments.text("id")?.ok_or("give `id`, as a marker names it: r3f9a0c12d4e5")?;
        let question = arguments.text("question")?.ok_or("give `question`: what you want to know of it")?;
        let record = Record::open(&self.data_dir).map_err(say)?;
        let scope = self.scope(&record.store, arguments)?.map(|row| row.id);
        let found = self.whole(&record.store, &id, scope.as_deref())?;
        let name = found.id.unwrap_or(id);
        let scope = scope.as_deref();
        let answer = match &self.running {
            Running::At(address, key) => ask_original_running(address, key.as_deref(), &name, scope, &question).await,
            Running::Here(app) => ask_original(app, &name, scope, &question).await,
        };
        let answer = answer.map_err(say)?;
        answer["text"].as_str().map(str::to_owned).ok_or_else(|| "windowsill gave no answer".to_owned())
    }

    /// The text that an id names. A conversation is found by its whole id only: what is guessed is not shown.
    fn whole(&self, store: &Store, id: &str, scope: Option<&str>) -> Result<Text, String> {
        if let Reference::Message(None, _) | Reference::Messages(None, ..) = Reference::read(id)
            && scope.is_none()
        {
            return Err("give `conversation`, too: which one's message is meant?".into());
        }
        let named = match Reference::read(id) {
            Reference::Record(_) => None,
            Reference::Message(conversation, _) | Reference::Messages(conversation, ..) => conversation,
            Reference::Other(other) => Some(other),
        };
        if let Some(name) = named.filter(|_| scope.is_none() && !self.all)
            && store.conversation(&name).is_ok_and(|row| row.is_none_or(|row| row.id != name))
            && store.pruned_conversation(&name).is_ok_and(|gone| gone.is_none())
        {
            return Err(say(record::unknown(id)));
        }
        // Whatever a model writes around an id.
        let bare = match Reference::read(id) {
            Reference::Record(bare) => bare,
            _ => id.to_owned(),
        };
        let found = record::whole(store, &bare, scope).map_err(say)?;
        found.ok_or_else(|| say(record::unknown(id)))
    }

    fn search(&self, record: &Record, arguments: &Arguments<'_>) -> Result<String, String> {
        let query = arguments.text("query")?.ok_or("give `query`: the words to search for")?;
        let span = arguments.span()?;
        let scope = self.scope(&record.store, arguments)?.map(|row| row.id);
        if scope.is_none() && !self.all {
            return Err(WHICH.into());
        }
        let found = record.passages(&query, scope.as_deref(), MOST_HITS + 1).map_err(say)?;
        if found.is_empty() {
            return Err(format!("nothing matches `{}`", record::short(&query)));
        }
        let limit = span.limit.unwrap_or(HITS as i64).clamp(1, MOST_HITS as i64);
        let total = found.len();
        let (from, most) = (Span { limit: Some(limit), ..span })
            .of(total)
            .ok_or_else(|| format!("there are {total} hits: offset is behind the last"))?;
        let passages: Vec<Found> =
            found.into_iter().skip(from).map(|passage| as_shown(passage, scope.is_none())).collect();
        let Filled { text, shown } = fill(&passages, ANSWER, most, &count);
        let last = from + shown;
        let more = if last < total { format!("\n[more: call again with offset={}]", last + 1) } else { String::new() };
        Ok(format!("[hits {}-{last}; read one whole by its id; in the order of time]\n{text}{more}", from + 1))
    }

    fn context(&self, record: &Record, arguments: &Arguments<'_>) -> Result<String, String> {
        let Some(row) = self.scope(&record.store, arguments)? else {
            return if self.all {
                record.context(None).map(|all| format!("{all:#}")).map_err(say)
            } else {
                Err(WHICH.into())
            };
        };
        let mut shown = record::context(&record.store, &row).map_err(say)?;
        if let Some(all) = shown["compactions"].as_array_mut() {
            all.drain(..all.len().saturating_sub(COMPACTIONS));
        }
        Ok(format!("{shown:#}"))
    }

    /// What the running proxy says; where none runs, what the record last saw.
    async fn window(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let model = arguments.text("model")?;
        let is_meant = |m: &Value| model.as_deref().is_none_or(|name| m.as_str() == Some(name));
        let asked = match &self.running {
            Running::At(address, key) => {
                ask(address, key.as_deref(), http::Method::GET, "/windowsill/models", None).await
            }
            Running::Here(app) => windows(app).await,
        };
        let gone = match asked {
            Ok(answer) => {
                let all = answer["models"].as_array().cloned().unwrap_or_default();
                let found: Vec<&Value> = all.iter().filter(|m| is_meant(&m["model"])).collect();
                if let Some(model) = model.filter(|_| found.is_empty()) {
                    let names: Vec<&str> = all.iter().filter_map(|m| m["model"].as_str()).collect();
                    return Err(format!("no model `{}`; there are: {}", record::short(&model), names.join(", ")));
                }
                return Ok(format!("{:#}", json!({"models": found})));
            }
            Err(e) => say(e),
        };
        let dir = self.data_dir.clone();
        let rows = move || Record::open(&dir).ok().and_then(|r| r.store.conversations(200).ok()).unwrap_or_default();
        let rows = tokio::task::spawn_blocking(rows).await.unwrap_or_default();
        let mut seen: Vec<Value> = Vec::new();
        for row in rows.iter().filter(|row| is_meant(&json!(row.model))) {
            if !seen.iter().any(|s| s["model"] == row.model.as_str()) {
                let (window, source) = (&row.state["window"], &row.state["window_source"]);
                seen.push(json!({"model": row.model, "window": window, "source": source, "seen_ms": row.updated_ms}));
            }
        }
        if seen.is_empty() {
            return Err(gone);
        }
        Ok(format!("{:#}", json!({"note": format!("{gone}; this is what the record last saw"), "models": seen})))
    }

    /// The conversation that is meant; `None` where none is named.
    fn scope(&self, store: &Store, arguments: &Arguments<'_>) -> Result<Option<ConversationRow>, String> {
        let find = |id: &str| record::row(store, id, "give it as a marker names it").map_err(say);
        let asked = arguments.text("conversation")?;
        if let Some(only) = &self.conversation {
            let only = find(only)?;
            return match asked {
                Some(other) if other != only.id => {
                    Err("only one conversation is open to you; leave `conversation` out".into())
                }
                _ => Ok(Some(only)),
            };
        }
        let Some(asked) = asked else { return Ok(None) };
        if let Reference::Record(id) = Reference::read(&asked) {
            return match store.catalog().recorded_in(&id).map_err(|e| say(e.into()))?.as_slice() {
                [] => Err(say(record::missing(store, &id).unwrap_or_else(Error::from))),
                [one] => find(one).map(Some),
                _ => Err(format!("`{id}` stands in several conversations: name another text of yours")),
            };
        }
        let row = find(&asked)?;
        // The beginning of an id, or the name of a session, may be guessed.
        if row.id != asked && !self.all {
            return Err(format!("no conversation `{}` in the record: give the whole id", record::short(&asked)));
        }
        Ok(Some(row))
    }
}

/// What to answer where no conversation is named.
const WHICH: &str =
    "give `conversation`: its id, or the id of any text of it (r…), as a marker in your prompt names it";

/// A passage with ids that `recall` takes.
fn as_shown(passage: Passage, with_conversation: bool) -> Found {
    let said = passage.said.into_iter().map(|hit| {
        let who = hit.call.or(hit.role).unwrap_or(hit.kind);
        let of = if with_conversation { format!(" of {}", hit.conversation) } else { String::new() };
        let id = hit.id.unwrap_or_else(|| format!("{}:{}", hit.conversation, hit.at));
        let who = format!("message {}{of}, {who}", hit.at);
        Said {
            of: hit.conversation,
            id,
            at: hit.at,
            span: hit.span,
            goes_on: hit.goes_on,
            who,
            date: hit.date,
            text: hit.text,
        }
    });
    Found { said: said.collect(), center: passage.center, rank: passage.rank }
}

/// Tokens of a text, at four characters each.
fn count(text: &str) -> Tokens {
    Tokens::try_from(text.chars().count() / 4 + 1).unwrap_or(Tokens::MAX)
}

/// An error in one line, with what to do.
fn say(e: Error) -> String {
    match &e {
        Error::Client { hint: Some(hint), .. } | Error::Upstream { hint: Some(hint), .. } => format!("{e}; {hint}"),
        Error::Internal { source, .. } => format!("{e}: {source}"),
        _ => e.to_string(),
    }
}
