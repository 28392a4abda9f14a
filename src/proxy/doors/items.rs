//! What stands in a request or a reply of another dialect beside its messages: earlier replies and items of them that a client
//! refers to instead of sending them, and what of a history could not be said.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use tracing::debug;

use super::compacted::opened;
use super::conversations::{Missing, entry, kept};
use super::model_in;
use super::stored::about;
use crate::conversation::Digest;
use crate::plain;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::headers;
use crate::proxy::state::whose::{is_of_key, mark_of_key};
use crate::proxy::turn::early::{Early, Tip};
use crate::proxy::{App, Error};
use crate::store::{self, Batch, Gone, Item, KeptChange, Original, Reply, Told};
use crate::upstream::unique::unique;
use crate::wire::WireError;
use crate::wire::compacted;
use crate::wire::dialect::responses::compaction::{self, Wanted};
use crate::wire::dialect::responses::stored::{brought, rewritten};
use crate::wire::dialect::responses::{self, Items, On};
use crate::wire::dialect::{Answered, Before, Heard, Kept, Unsaid, anthropic};

/// Keeps what a client may refer to, once a reply is over.
pub(super) type Keeper = Box<dyn FnOnce(Kept) + Send>;

/// How many references of one request are followed; a history that has more is no agent's.
const REFERENCES: usize = 4096;

/// Why an earlier reply cannot be gone on from.
enum Lost {
    /// Nobody here knows the id, or not for this key.
    Unknown,
    /// Retention took it, or the messages before it.
    Pruned(Option<Gone>),
    /// Its history is larger than a request may be (bytes).
    TooLarge(usize),
}

/// A request of the Responses API that was read.
pub(in crate::proxy) struct Asked {
    pub(in crate::proxy) heard: Heard,
    /// What it asks of compaction.
    pub(in crate::proxy) wanted: Wanted,
    /// The conversation of the record that it names by an id.
    pub(in crate::proxy) continues: Option<String>,
    /// The kept conversation that its reply is added to.
    pub(in crate::proxy) joins: Option<Joins>,
}

/// What is added to a kept conversation with a reply.
pub(in crate::proxy) struct Joins {
    name: String,
    owner: String,
    /// The items of the request.
    brought: Vec<(String, String)>,
}

impl Joins {
    /// The entries, once the reply is over.
    fn with(self, kept: &Kept, tip: &Tip) -> Option<KeptChange> {
        kept.reply.as_ref()?;
        let Joins { name, owner, brought } = self;
        let items = brought.iter().chain(&kept.items).map(|(id, json)| entry(&name, &owner, "item", id, json));
        let answered = entry(&name, &owner, "answered", &tip.conversation, "");
        Some(KeptChange::Add(items.chain([answered]).collect()))
    }
}

/// Reads a request of the Responses API. Where it refers to earlier replies, items of them, or a
/// history that was compacted, it is read with these once more.
pub(in crate::proxy) async fn hear_responses(
    app: &App,
    from_client: &HeaderMap,
    body: &Bytes,
) -> Result<Result<Asked, WireError>, Error> {
    let (mut body, mut on_conversation, mut joins, mut continues) = (body.clone(), false, None, None);
    let (mut heard, mut wanted) = match read(app, &body, false).await? {
        Ok(read) => read,
        Err(e) => return Ok(Err(e)),
    };
    if let Some(id) = wanted.conversation.clone().filter(|_| !app.config.shadow && heard.follows.is_none()) {
        match kept(app, &id, from_client).await? {
            Ok(kept) => {
                let brought = brought(&body, "input", &unique(20)).map_err(Error::from)?;
                let items: Vec<String> = kept.items.into_iter().map(|(_, item)| item).collect();
                body = rewritten(&body, Some(&items), false).map_err(Error::from)?.into();
                joins = Some(Joins { name: id, owner: mark_of_key(from_client), brought });
                (continues, on_conversation) = (kept.answered, true);
                (heard, wanted) = match read(app, &body, true).await? {
                    Ok(read) => read,
                    Err(e) => return Ok(Err(e)),
                };
            }
            // A server may pass over it, see below.
            Err(Missing::Unknown) => {}
            Err(pruned) => return Err(pruned.told(&id, "conversation")),
        }
    }
    let body = &body;
    let (restored, lost) = match &wanted.newest {
        Some((mark, text)) if !app.config.shadow => stands_for(app, mark, text, from_client).await?,
        _ => (None, None),
    };
    let (of_item, restored) = restored.unzip();
    continues = of_item.or(continues);
    let mut before = None;
    if let Some(id) = heard.follows.take() {
        if app.config.shadow {
            // The server itself keeps the replies then, or refuses.
            let message = "windowsill does not see the history that `previous_response_id` stands for in shadow";
            return Ok(Err(WireError::Field { param: PREVIOUS.into(), message: message.into() }));
        }
        match said_before(app, &id, from_client).await? {
            // What stands before a compaction is gone.
            Ok((conversation, found)) if wanted.newest.is_none() => {
                (continues, before) = (Some(conversation), Some(found))
            }
            Ok(_) => {}
            Err(Lost::Unknown) => heard.unsaid.elsewhere.push(PREVIOUS),
            Err(lost) => return Err(lost.of_response(&id, app.config.limits.max_body_bytes)),
        }
    }
    // In shadow, the server says itself what it makes of them.
    let elsewhere = if app.config.shadow { Vec::new() } else { heard.unsaid.elsewhere.clone() };
    let mut warnings = pass_over(app, &elsewhere, body).await?;
    warnings.extend(lost);
    let known = items(app, &heard.unsaid.references, from_client).await;
    if before.is_some() || restored.is_some() || !known.is_empty() {
        let size = body.len() + before.as_ref().or(restored.as_ref()).map_or(0, Before::bytes);
        let read = body.clone();
        let again = async move {
            let (before, restored) = (before.as_ref(), restored.as_ref());
            responses::standing_on(&read, &known, On { before, restored, conversation: on_conversation })
        };
        heard = match app.aside.reading(size, again.boxed()).await? {
            Ok(heard) => heard,
            Err(e) => return Ok(Err(e)),
        };
    }
    heard.unsaid.warnings.extend(warnings);
    heard.follows = None;
    Ok(Ok(Asked { heard, wanted, continues, joins }))
}

/// Reads a request alone, and what it asks for beside a reply. `conversation`: it has the items of its conversation.
async fn read(app: &App, body: &Bytes, conversation: bool) -> Result<Result<(Heard, Wanted), WireError>, Error> {
    let read = body.clone();
    let hear = async move {
        let wanted = if compaction::may_want(&read) { compaction::wanted(&read)? } else { Wanted::default() };
        let on = On { conversation, ..On::default() };
        Ok((responses::standing_on(&read, &Items::new(), on)?, wanted))
    };
    app.aside.reading(body.len(), hear.boxed()).await
}

/// The messages that a compaction stands for, or what the client is told where its text has to do.
async fn stands_for(
    app: &App,
    mark: &str,
    text: &str,
    from_client: &HeaderMap,
) -> Result<(Option<(String, Before)>, Option<String>), Error> {
    let told = |why: &str| Ok((None, Some(format!("a compaction stands as its summary alone: {why}"))));
    let Some(origin) = compacted::opened(&app.store.marks_key()?, mark, text) else {
        return told("it was changed, or made with another record");
    };
    // Its messages may be queued still.
    app.store.flush().await;
    store::blocking(|| {
        if let Some(gone) = app.store.pruned_conversation(&origin.conversation)? {
            return told(&format!("its conversation {gone}"));
        }
        if !is_of_key(app, &origin.conversation, from_client)? {
            return told("its conversation is of another key");
        }
        let messages = app.store.messages_to(&origin.chain)?;
        if messages.len() != origin.depth {
            return told("its conversation is not in the record any more");
        }
        let before = Before { messages, ..Before::default() };
        match before.bytes() as u64 > app.config.limits.max_body_bytes {
            true => told("the messages before it are more bytes than are let in"),
            false => Ok((Some((origin.conversation, before)), None)),
        }
    })
}

/// Reads a request of the Messages API. One that continues a thread is read with what the thread holds.
pub(in crate::proxy) async fn hear_messages(
    app: &App,
    from_client: &HeaderMap,
    body: &Bytes,
) -> Result<Result<Heard, WireError>, Error> {
    let read = body.clone();
    let heard = app.aside.reading(body.len(), async move { anthropic::request(&read) }.boxed()).await?;
    let heard = opened(app, from_client, body, heard).await?;
    let Some(id) = heard.as_ref().ok().and_then(|heard| heard.follows.clone()).filter(|_| !app.config.shadow) else {
        return Ok(heard);
    };
    let Ok((_, before)) = said_before(app, &id, from_client).await? else {
        let message = format!("no thread of this key has a reply `{}`", plain::line(&id));
        return Err(Error::client(404, "thread_not_found", message, "send the whole history under a new thread"));
    };
    let (read, size) = (body.clone(), body.len() + before.bytes());
    app.aside.reading(size, async move { anthropic::going_on(&read, &before) }.boxed()).await
}

/// What an earlier reply of this key answers, and what it says; and the conversation that it stands in.
async fn said_before(app: &App, id: &str, from_client: &HeaderMap) -> Result<Result<(String, Before), Lost>, Error> {
    // The reply may be queued still.
    app.store.flush().await;
    store::blocking(|| {
        let Some(reply) = app.store.continued().reply(id)? else {
            let gone = app.store.continued().reply_gone(id)?;
            return Ok(Err(gone.map_or(Lost::Unknown, |gone| Lost::Pruned(Some(gone)))));
        };
        if !is_of_key(app, &reply.conversation, from_client)? {
            return Ok(Err(Lost::Unknown));
        }
        let messages = app.store.messages_to(&reply.chain)?;
        if messages.len() != reply.depth {
            return Ok(Err(Lost::Pruned(None)));
        }
        let before = Before { head: reply.head, messages, reply: reply.json };
        let bytes = before.bytes();
        if bytes as u64 > app.config.limits.max_body_bytes {
            return Ok(Err(Lost::TooLarge(bytes)));
        }
        Ok(Ok((reply.conversation, before)))
    })
}

/// Items of earlier replies to this key.
async fn items(app: &App, wanted: &[String], from_client: &HeaderMap) -> Items {
    if wanted.is_empty() {
        return Items::new();
    }
    // The reply that they stood in may be queued still.
    app.store.flush().await;
    let find = |id: &String| {
        let item = app.store.continued().item(id).ok().flatten()?;
        let own = is_of_key(app, &item.conversation, from_client).unwrap_or(false);
        own.then_some((item.id, item.json))
    };
    store::blocking(|| wanted.iter().take(REFERENCES).filter_map(find).collect())
}

/// Refuses fields that refer to what is kept somewhere else, unless the server would pass over them: what it answers to a
/// client directly, it answers here. Returns what the client is told then.
async fn pass_over(app: &App, elsewhere: &[&'static str], body: &Bytes) -> Result<Vec<String>, Error> {
    if elsewhere.is_empty() {
        return Ok(Vec::new());
    }
    let upstream = upstream_of(app, &model_in(body)).await?;
    let kind = upstream.probe().await?;
    if let Some(field) = elsewhere.iter().find(|field| !kind.passes_over(field)) {
        return Err(not_here(field));
    }
    let one = |field: &&str| {
        format!(
            "`{field}` is not known here, and this server passes over it: the model sees what the request holds alone"
        )
    };
    Ok(elsewhere.iter().map(one).collect())
}

/// What keeps what the client may refer to of the reply to a request that `early` is told of.
pub(in crate::proxy) fn keeper(app: &Arc<App>, early: Early, joins: Option<Joins>) -> Keeper {
    let owned = Arc::clone(app);
    Box::new(move |kept| {
        let Some(tip) = early.tip() else { return };
        let added = joins.and_then(|joins| joins.with(&kept, &tip));
        let item = |(id, json)| Item { id, conversation: tip.conversation.clone(), json };
        let items: Vec<Item> = kept.items.into_iter().map(item).collect();
        let reply = kept.reply.map(|Answered { id, head, json }| Reply {
            id,
            conversation: tip.conversation.clone(),
            chain: tip.chain,
            depth: tip.depth,
            head,
            json,
        });
        let told = Told { items, reply };
        if told.is_empty() {
            return;
        }
        if let Err(e) = owned.store.record_next(Batch { told, kept: added, ..Batch::default() }) {
            debug!(error = %e, "the items of a reply are not in the record");
        }
    })
}

/// Says on a reply what of its request could not be said, and keeps that in the record, once for each conversation.
pub(in crate::proxy) async fn keep_unsaid(app: &App, unsaid: Unsaid, to: &mut HeaderMap<HeaderValue>) {
    if !unsaid.warnings.is_empty() {
        let said = headers::text(to, &headers::WARNING);
        let all: Vec<String> = said.into_iter().chain(unsaid.warnings).collect();
        headers::set(to, "x-windowsill-warning", &plain::line(&all.join("; ")));
    }
    let Some(conversation) = conversation(to).filter(|_| !unsaid.originals.is_empty()) else { return };
    let originals = app.lives.with(&conversation, |live| {
        let new = |text: &String| live.unsaid.insert(Digest::of(text.as_bytes()));
        unsaid.originals.into_iter().filter(new).collect::<Vec<String>>()
    });
    if originals.is_empty() {
        return;
    }
    let original = |text: String| Original {
        id: store::original_id(&text),
        conversation: conversation.clone(),
        at: 0,
        kind: "item".into(),
        tool: None,
        call: None,
        text: text.into(),
        raw: None,
    };
    let originals = originals.into_iter().map(original).collect();
    if let Err(e) = app.store.record_soon(Batch { originals, ..Batch::default() }).await {
        debug!(error = %e, "items that stand as lines are not in the record");
    }
}

const PREVIOUS: &str = "previous_response_id";

impl Lost {
    /// As OpenAI says it; what retention took is told with its date.
    fn of_response(&self, id: &str, most: u64) -> Error {
        let id = plain::line(id);
        let (status, message, hint) = match self {
            Lost::Unknown => return not_here(PREVIOUS),
            Lost::Pruned(gone) => {
                let when = gone.as_ref().map_or_else(|| "is gone".to_owned(), Gone::to_string);
                (410, format!("the conversation of the response `{id}` {when}"), "send the whole history in `input`")
            }
            Lost::TooLarge(bytes) => {
                let message =
                    format!("the history before the response `{id}` has {bytes} bytes, and {most} are let in");
                (413, message, "raise `max_body_bytes` in [limits] of config.toml if this is meant")
            }
        };
        about(PREVIOUS, Error::client(status, "previous_response_not_found", message, hint))
    }
}

/// Refuses what refers to a memory that is not here: without it, the reply would be one to another question.
fn not_here(field: &'static str) -> Error {
    about(
        field,
        match field {
            PREVIOUS => Error::client(
                404,
                "previous_response_not_found",
                "no response with the id in `previous_response_id` is kept here for this key",
                "send the whole history in `input`; replies to requests with `store: false` are not kept",
            ),
            "conversation" => Error::client(
                404,
                "conversation_not_found",
                "no conversation with the id in `conversation` is kept here for this key",
                "POST /v1/conversations begins one; or send the whole history in `input`",
            ),
            _ => Error::client(
                400,
                "unsupported",
                "`prompt` cannot be used: prompt templates are stored at OpenAI",
                "send its text in `instructions` or `input`",
            ),
        },
    )
}

fn conversation(headers: &HeaderMap) -> Option<String> {
    headers.get("x-windowsill-conversation")?.to_str().ok().map(str::to_owned)
}
