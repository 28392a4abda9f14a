//! Whether a request's tools are named by index, by which list, and what calls of that index are answered.
//!
//! A list is chosen once for a conversation and kept in the record with the prefix that it was chosen for: a restart, a fork
//! and another process find it there, and prompts begin with the same bytes.

use std::collections::HashSet;

use serde_json::{Value, json};
use tracing::info;

use super::situation::Situation;
use crate::admission::{Catalog, List, Listing, Wanted, budget, choose};
use crate::conversation::{Conversation, Digest, Role, Tokens};
use crate::plan::{Facts, Plan};
use crate::proxy::state::headers;
use crate::proxy::state::standing::standing_of;
use crate::proxy::{App, Error};
use crate::store::{Recalled, TOOLS};
use crate::wire::json::Fields;
use crate::wire::openai_chat::Request;

/// The part of the window that must be left for the conversation: with less, an agent forgets what it read a moment ago.
const FOR_HISTORY: Tokens = 3;

/// The same for a conversation that went on without a list so far: to change its head costs the whole prompt cache.
const FOR_GOING_ON: Tokens = 4;

/// Bytes that a token of a prompt has at most, on the average: below what that makes, nothing is counted.
const BYTES_A_TOKEN: usize = 2;

/// Tools that a conversation which is picked up on the way called last.
const CALLED: usize = 6;

/// Characters of the user's words that tools are looked for by.
const WORDS: usize = 4_000;

/// Tokens that a call of a hidden tool takes beside what the client wrote: the index's name, the braces around it.
const THROUGH: Tokens = 14;

/// The tools of a request that are named by index.
#[derive(Debug)]
pub(in crate::proxy) struct Admitted {
    /// The client's tools.
    pub(in crate::proxy) catalog: Catalog,
    /// The list that stands for them.
    pub(in crate::proxy) list: List,
    /// Names of those that the list does not show.
    pub(in crate::proxy) hidden: HashSet<String>,
    /// Whether the list is not in the record yet.
    pub(in crate::proxy) is_new: bool,
}

impl Admitted {
    fn new(catalog: Catalog, list: List, is_new: bool) -> Admitted {
        let hidden = catalog.tools.iter().filter(|t| t.is_function && !list.shows(&t.name));
        let hidden = hidden.map(|t| t.name.clone()).collect();
        Admitted { catalog, list, hidden, is_new }
    }

    /// Why, in words without names.
    pub(in crate::proxy) fn because(&self) -> String {
        let List { sent, full, level, named, .. } = &self.list;
        let (all, full) = (self.catalog.tools.len(), full.len());
        format!(
            "tools by index: of {all} ({sent} tokens as sent) {full} in full ({}), {named} named, {} found by a search",
            level.as_str(),
            self.hidden.len().saturating_sub(*named)
        )
    }

    /// As it stands in the header.
    pub(in crate::proxy) fn header(&self, tokens: Tokens) -> String {
        let List { sent, full, named, .. } = &self.list;
        let all = self.catalog.tools.len();
        format!("index; tools={all}; full={}; named={named}; tokens={tokens}; sent={sent}", full.len())
    }

    /// As it stands in the event.
    pub(in crate::proxy) fn event(&self, tokens: Tokens) -> Value {
        json!({"tools": self.catalog.tools.len(), "full": self.list.full, "named": self.list.named, "tokens": tokens,
            "sent": self.list.sent, "because": self.because()})
    }

    /// As it is kept with a prefix.
    pub(in crate::proxy) fn kept(&self, chain: Digest) -> Recalled {
        Recalled { chain, reply: TOOLS, messages: vec![self.list.to_json()] }
    }
}

/// Has a list stand for the tools of a request, where it is to.
pub(in crate::proxy) fn admit(
    app: &App,
    request: &mut Request,
    situation: &Situation,
    warnings: &mut Vec<String>,
) -> Result<Option<std::sync::Arc<Admitted>>, Error> {
    let history = &situation.history;
    let answerable = request.choices == 1 && situation.policy.policy.template.tool_role;
    let Some(own) = request.conversation.tools.clone() else { return Ok(None) };
    let listing = wish(app, situation, warnings);
    if listing == Listing::AsSent || !answerable {
        return Ok(None);
    }
    let window = situation.known_window();
    let stored = list_noted(app, &history.chain, Digest::of(&own))?;
    let sent = match &stored {
        Some(list) if list.of == Digest::of(&own) => list.sent,
        _ if listing == Listing::Auto && !is_long(request, &own, window) => return Ok(None),
        _ => app.measure.count(&situation.key, &String::from_utf8_lossy(&own)),
    };
    let crowded = stored.is_some() || listing == Listing::Index || is_crowded(app, request, situation, sent);
    if !crowded {
        return Ok(None);
    }
    let catalog = match Catalog::read(&own) {
        Ok(catalog) if catalog.tools.iter().any(|t| t.is_function) => catalog,
        Ok(_) => return Ok(None),
        Err(why) => {
            warnings.push(format!("the tools were forwarded as sent, not by index: {why}"));
            return Ok(None);
        }
    };
    let (list, is_new) = list_of(app, &catalog, &own, sent, stored, request, situation);
    if is_new && app.measure.count(&situation.key, &String::from_utf8_lossy(&list.tools)) >= sent {
        // So few that naming them takes more than showing them.
        return Ok(None);
    }
    let admitted = Admitted::new(catalog, list, is_new);
    if is_new {
        info!(conversation = history.id, sent, full = admitted.list.full.len(), "tools by index");
        // What the server counted was a prompt with other tools.
        app.lives.with(&history.id, |live| live.prompt.known = None);
    }
    request.list(admitted.list.tools.clone());
    request.conversation.hidden = std::sync::Arc::new(admitted.hidden.clone());
    Ok(Some(std::sync::Arc::new(admitted)))
}

/// The list that a conversation has, or one that is chosen for it now; and whether it is another than the record has.
fn list_of(
    app: &App,
    catalog: &Catalog,
    own: &[u8],
    sent: Tokens,
    stored: Option<List>,
    request: &Request,
    situation: &Situation,
) -> (List, bool) {
    let count = |text: &str| app.measure.count(&situation.key, text);
    let window = situation.known_window();
    let forced = forced(request);
    let mut earlier = Vec::new();
    if let Some(mut list) = stored {
        if list.of == Digest::of(own) {
            let grown = list.grow(catalog, &forced, window, &count);
            return (list, grown);
        }
        earlier = list.full;
    }
    let conversation = &request.conversation;
    let calls = conversation.body.iter().rev().flat_map(|m| m.calls.iter().rev());
    let mut called: Vec<String> = Vec::new();
    for call in calls {
        if called.len() < CALLED && !called.contains(&call.name) {
            called.push(call.name.clone());
        }
    }
    let words = words_of(conversation);
    let wanted = Wanted { forced, earlier, called, words };
    (choose(catalog, own, sent, &wanted, budget(sent, window), &count), true)
}

/// The list that was noted for these tools and the longest part of a history, else for the longest part alone.
fn list_noted(app: &App, chain: &[Digest], of: Digest) -> Result<Option<List>, Error> {
    let mut other = None;
    for digest in chain.iter().rev() {
        let Some(kept) = app.store.recalls().tools(digest)? else { continue };
        match List::from_json(&kept) {
            Some(list) if list.of == of => return Ok(Some(list)),
            found => other = other.or(found),
        }
    }
    Ok(other)
}

/// Whether what the client sends before any history leaves too little of the window.
fn is_crowded(app: &App, request: &Request, situation: &Situation, tools: Tokens) -> bool {
    let Some(window) = situation.window.tokens else { return false };
    let system: Tokens = request
        .conversation
        .system
        .iter()
        .map(|m| app.measure.count(&situation.key, &m.text))
        .fold(0, Tokens::saturating_add);
    let part = if situation.history.forwarded() > 0 { FOR_GOING_ON } else { FOR_HISTORY };
    window.saturating_sub(system.saturating_add(tools)) < window / part
}

/// Adds what calls through the index take beside what the client wrote.
pub(in crate::proxy) fn cost_of_hidden_calls(
    _app: &App,
    conversation: &Conversation,
    facts: &mut Facts,
    counted: bool,
) {
    if counted || conversation.hidden.is_empty() {
        return;
    }
    for (message, cost) in conversation.body.iter().zip(&mut facts.costs) {
        let hidden = message.calls.iter().filter(|c| conversation.hidden.contains(&c.name)).count();
        cost.text += THROUGH * Tokens::try_from(hidden).unwrap_or(0);
    }
}

/// What the request wants, or a person of this conversation, or else the settings. A header that cannot be read is said, and changes
/// nothing.
fn wish(app: &App, situation: &Situation, warnings: &mut Vec<String>) -> Listing {
    let word = headers::text(&situation.from_client, &headers::TOOLS);
    if let Some(listing) = word.as_deref().and_then(Listing::read) {
        return listing;
    }
    if word.is_some() {
        warnings.push("x-windowsill-tools must be as_sent, auto or index".to_owned());
    }
    // What cannot be read is told where the pins are read.
    let standing = standing_of(app, &situation.history.id, situation.history.inherits.as_deref());
    standing.ok().and_then(|standing| standing.tools).unwrap_or(situation.policy.tools)
}

/// Whether a request's tools and system text may be more than what leaves room for a history, by their bytes.
fn is_long(request: &Request, tools: &[u8], window: Tokens) -> bool {
    let system: usize = request.conversation.system.iter().map(|m| m.text.len()).sum();
    let most = (window - window / FOR_HISTORY) as usize;
    (system + tools.len()) / BYTES_A_TOKEN >= most
}

/// The tools that a request's `tool_choice` names.
fn forced(request: &Request) -> Vec<String> {
    let text = String::from_utf8_lossy(&request.body);
    let choice = Fields::read(&text).ok().and_then(|f| f.get("tool_choice").map(str::to_owned));
    let choice: Value = choice.and_then(|c| serde_json::from_str(&c).ok()).unwrap_or_default();
    let name = |value: &Value| value.pointer("/function/name").or(value.get("name"))?.as_str().map(str::to_owned);
    let allowed = choice.pointer("/allowed_tools/tools").or(choice.get("tools")).and_then(Value::as_array);
    name(&choice).into_iter().chain(allowed.into_iter().flatten().filter_map(name)).collect()
}

/// What the user says in the first message and in the newest.
fn words_of(conversation: &Conversation) -> String {
    let mut users = conversation.body.iter().filter(|m| m.role == Role::User);
    let first = users.next();
    let said = first.into_iter().chain(users.next_back());
    said.flat_map(|m| {
        let words = crate::conversation::person::words(m).unwrap_or_default();
        words.chars().take(WORDS).chain([' ']).collect::<Vec<char>>()
    })
    .collect()
}

/// What helps where system prompt and tools leave so little of the window that the next rewrite comes soon.
pub(in crate::proxy) fn advice(
    request: &Request,
    by_index: bool,
    window: Option<Tokens>,
    plan: &Plan,
) -> Option<String> {
    let (window, head) = (window?, plan.after.system.saturating_add(plan.after.tools));
    let helps = request.own_tools().is_some() && !by_index && head > window / 2;
    (helps && plan.is_soon_done_again()).then(|| {
        // From there on "auto" does something.
        let listing = if window - head.min(window) < window / 3 { "auto" } else { "index" };
        format!(
            "system prompt and tools take {head} of {window} tokens, so that this rewrite lasts for less than four steps: \
             tools = \"{listing}\" in [context], or the header x-windowsill-tools: {listing}, leaves more"
        )
    })
}
