//! What the record knows of a request's history: which conversation it continues, the view that was remembered or made ahead
//! for it, and the bytes that its messages had before.

use std::sync::Arc;

use http::HeaderMap;
use tracing::debug;

use super::attempt::{Attempt, fingerprint};
use super::place::{Place, has_form_of_id, is_talk, place, tagged_name};
use super::spelling::settle;
use crate::config::Resolved;
use crate::conversation::align::Alignment;
use crate::conversation::edit::View;
use crate::conversation::managed::Stands;
use crate::conversation::{Conversation, Digest, Message, Role};
use crate::measure::{Known, ModelKey};
use crate::plan::client::stood;
use crate::proxy::state::fresh::caught_up;
use crate::proxy::state::headers;
use crate::proxy::state::live::{Ahead, Switched};
use crate::proxy::state::notes::key;
use crate::proxy::state::sent::client_marks;
use crate::proxy::state::whose::{Kin, Whose, whose_is};
use crate::proxy::{App, Error};
use crate::recall;
use crate::store::{ConversationRow, Located};
use crate::upstream::{Kind, Upstream};
use crate::wire::openai_chat::{self, Request};

/// Conversations that begin alike, and may be the one that a client rebuilt, the last active first.
const RELATIVES: usize = 8;

/// From so many messages on, a history is told by what it says, however it begins or ends.
const LONG: usize = 6;

/// So many messages at the end of a conversation may be replaced by others: a person words the last request otherwise, or a
/// client (hermes) asks for a review of the session before the person goes on.
const LAST_WORDS: usize = 2;
/// Messages that a history has in common with another of its session, at least, to be the same though they begin differently.
const KEPT: usize = 3;

/// What stood when a history was looked up: what comes after it counts as not known.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::proxy) struct Seen {
    /// How far a shared record was known.
    pub(in crate::proxy) record: Option<u64>,
    /// How often a person had changed its view, or what is wanted of it.
    pub(in crate::proxy) steered: u64,
}

/// What is known of a history before anything is planned.
pub(in crate::proxy) struct History {
    /// What stood when this was looked up.
    pub(in crate::proxy) seen: Seen,
    /// Chain hash of each prefix of the body.
    pub(in crate::proxy) chain: Vec<Digest>,
    /// Where the record knew it before.
    pub(in crate::proxy) located: Option<Located>,
    /// Whether it is the beginning of a longer one that the record has.
    pub(in crate::proxy) repeats_a_beginning: bool,
    /// Name of the conversation.
    pub(in crate::proxy) id: String,
    /// What the client calls its session.
    pub(in crate::proxy) session: Option<String>,
    /// The view that was remembered for it.
    pub(in crate::proxy) stored: View,
    /// The view that was made ahead of need for what now comes.
    pub(in crate::proxy) ahead: Option<Ahead>,
    /// What still holds of the view of an older history that this one was rebuilt from.
    carried: Option<View>,
    /// The conversation's model until now, where it is another.
    pub(in crate::proxy) switched: Option<Switched>,
    /// What tells the messages as the client sent them from others.
    pub(in crate::proxy) client_marks: Vec<u64>,
    /// The conversation that it parted from once both had gone on together: what people want of that one holds here, too.
    pub(in crate::proxy) inherits: Option<String>,
    /// Known messages that are spelled otherwise than in the record, by index.
    pub(in crate::proxy) respelled: Vec<usize>,
}

impl History {
    /// That of a conversation of the record, as far as it is known there.
    pub(in crate::proxy) fn of_record(row: &ConversationRow, chain: Vec<Digest>, stored: View) -> History {
        History {
            seen: Seen::default(),
            chain,
            located: None,
            repeats_a_beginning: false,
            id: row.id.clone(),
            session: row.session.clone(),
            stored,
            ahead: None,
            carried: None,
            switched: None,
            client_marks: Vec::new(),
            inherits: None,
            respelled: Vec::new(),
        }
    }

    /// How many messages of it the model was sent before: it may hold them in its cache.
    pub(in crate::proxy) fn forwarded(&self) -> usize {
        self.located.as_ref().filter(|_| self.switched.is_none()).map_or(0, |l| l.depth)
    }

    /// Has a brief stand for its beginning, as the client has it.
    pub(in crate::proxy) fn stand(&mut self, conversation: &Conversation, stands: &Stands) {
        if let Some(view) = stood(conversation, self.old(), stands) {
            (self.ahead, self.carried) = (None, Some(view));
        }
    }

    /// The view to go on from.
    pub(in crate::proxy) fn old(&self) -> &View {
        self.ahead.as_ref().map(|a| &a.view).or(self.carried.as_ref()).unwrap_or(&self.stored)
    }
}

/// What the record knows of a request's history. Its messages get the bytes that they were forwarded with before, where
/// no model sees the difference.
pub(in crate::proxy) async fn history(
    app: &App,
    request: &mut Request,
    upstream: &Upstream,
    policy: &Resolved,
    from_client: &HeaderMap,
    attempt: Attempt,
) -> Result<History, Error> {
    let wish = headers::text(from_client, &headers::SESSION);
    app.store.begin_anew_if_gone().await;
    caught_up(app).await;
    // Asked before anything is looked up: what comes meanwhile counts as not known.
    let seen = app.store.seen();
    let whose = Whose::of(from_client, &request.conversation, request.session.as_deref());
    // What nobody sends takes no name away from what somebody does.
    let is_real = !attempt.is_dry() || app.config.shadow;
    let place = place(app, request, wish.as_deref(), whose, (from_client, is_real)).await?;
    let Place { seed, chain, located, waited, whose, end } = place;
    request.withdraw_all();
    let session = wish.clone().or_else(|| headers::client_session(from_client)).or_else(|| request.session.clone());
    let place = (&whose, session.as_deref());
    let continued = match waited {
        Some(id) => Some((id, None)),
        None => continued(app, located.as_ref(), place, &chain, &request.conversation.body).await?,
    };
    let (id, carried) = match continued {
        Some((id, carried)) => (id, carried),
        None => {
            let tagged = tagged_name(&seed, wish.as_deref().filter(|wish| !has_form_of_id(wish)), request);
            (name(app, located.as_ref(), &chain, wish.as_deref(), tagged)?, None)
        }
    };
    let inherits = inherits(app, located.as_ref(), &id)?;
    if request.seed.is_none() && is_real {
        end.into_iter().for_each(|end| app.lives.note_end(end, Arc::clone(&seed)));
        app.lives.with(&id, |live| live.whose = Some(Arc::new(whose)));
    }
    request.seed = Some(Arc::clone(&seed));
    let key = key(app, upstream, request);
    let switched = match &located {
        Some(located) if is_talk(&request.conversation.body[..located.depth]) => {
            switched(app, &id, upstream, &request.model)?
        }
        _ => None,
    };
    let seen = Seen { record: seen, steered: app.lives.with(&id, |live| live.work.steered) };
    let mut stored = app.store.view(&chain)?.map(|(_, view)| View::clone(&view)).unwrap_or_default();
    if let Some(carried) = &carried {
        stored.changing.clone_from(&carried.changing);
    }
    let carried = carried.filter(|view| !view.edits.is_empty());
    let counted_by = switched.is_none().then_some(&key);
    let forwarded = located.as_ref().map_or(0, |l| l.depth);
    let goes_on_from = (&stored, forwarded);
    let ahead = ahead(app, &id, (&chain, &request.conversation.body), goes_on_from, attempt, counted_by);
    let conversation = &request.conversation;
    let client_marks = client_marks(conversation.tools.as_deref(), &conversation.system, &conversation.body);
    let respelled = match &located {
        Some(located) => {
            let length = policy.policy.template.tool_call_id_length;
            settle(app, request, &chain, &client_marks, (located, &id, &seed), length).await
        }
        None => Vec::new(),
    };
    let repeats_a_beginning = repeats_a_beginning(app, located.as_ref(), &id, &chain).await?;
    let history = History {
        seen,
        chain,
        located,
        repeats_a_beginning,
        id,
        session,
        stored,
        ahead,
        carried,
        switched,
        client_marks,
        inherits,
        respelled,
    };
    if history.located.is_some() {
        recollect(app, &history.id, &history.chain, history.old(), &key)?;
    }
    Ok(history)
}

/// The conversation whose pins and the like hold for one that parted from it. One that only began alike has none of it.
fn inherits(app: &App, located: Option<&Located>, id: &str) -> Result<Option<String>, Error> {
    let Some(located) = located.filter(|located| located.conversation != id) else { return Ok(None) };
    let whose = whose_is(app, &located.conversation)?;
    Ok(whose.is_none_or(|whose| whose.went_on(located.depth)).then(|| located.conversation.clone()))
}

/// The model that a conversation had until now, where this is another one.
fn switched(app: &App, id: &str, upstream: &Upstream, model: &str) -> Result<Option<Switched>, Error> {
    let before = match app.lives.with(id, |live| live.prompt.model.clone()) {
        Some(before) => before,
        None => match app.store.conversation(id) {
            Ok(Some(row)) if row.id == id => Switched { model: row.model, upstream: row.upstream },
            Ok(_) | Err(crate::store::Error::Ambiguous { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        },
    };
    // A llama-server with one model answers to every name.
    let only = upstream.kind() == Some(Kind::LlamaServer { router: false });
    let same = only || upstream.canonical(&before.model) == upstream.canonical(model);
    Ok((before.upstream != upstream.name() || !same).then_some(before))
}

/// The conversation that a history goes on, though it is not its plain continuation: it parted from an older state of
/// it, or the client rebuilt it; with what still holds of its view. Looks among those of the session that the client names,
/// among those that begin alike, and for a long history with an unknown beginning among those that were last active: Qwen
/// Code begins with a list of the project's files, which is another one when a session is resumed. It is always the messages
/// that tell: a name is no proof of anything, but another name, key, program or system prompt is proof enough that it is
/// another conversation; and so is an answer of the older history that is not there. `place`: whose it is, and the session.
async fn continued(
    app: &App,
    located: Option<&Located>,
    place: (&Whose, Option<&str>),
    chain: &[Digest],
    body: &[Message],
) -> Result<Option<(String, Option<View>)>, Error> {
    let (whose, session) = place;
    let parts = |l: &&Located| l.depth < l.conversation_depth && l.depth < chain.len();
    let known = located.filter(parts);
    // What goes on, or is sent again, needs no search; nor does what is short and nothing is known of.
    if known.is_none() && (located.is_some() || session.is_none() && chain.len() < LONG) {
        return Ok(None);
    }
    // The last request's messages may still be queued.
    app.store.flush().await;
    let alone = |at: usize| body[at].role != Role::Tool && body[at].calls.is_empty();
    let new: Vec<Digest> = body.iter().map(|m| m.digest).collect();
    let begin_alike =
        known.map(|l| app.store.catalog().family(&l.conversation, RELATIVES)).transpose()?.unwrap_or_default();
    let mut relatives =
        session.map(|name| app.store.catalog().of_session(name, RELATIVES)).transpose()?.unwrap_or_default();
    relatives.extend(begin_alike.iter().filter(|id| !relatives.contains(id)).cloned().collect::<Vec<_>>());
    if located.is_none() && chain.len() >= LONG {
        let lately = app.store.conversations(RELATIVES)?.into_iter().map(|row| row.id);
        relatives.extend(lately.filter(|id| !relatives.contains(id)).collect::<Vec<_>>());
    }
    for id in relatives {
        if !may_be(app, &id, whose, session)? {
            continue;
        }
        let rows = app.store.path(&id)?;
        if !rows.is_empty() && rows.last().map(|row| row.chain) == chain.get(rows.len() - 1).copied() {
            return Ok(Some((id, None)));
        }
        let old: Vec<Digest> = rows.iter().map(|row| row.digest).collect();
        let alignment = Alignment::of(&old, &new);
        // Those that do not even begin alike share more than a greeting.
        let alike = begin_alike.contains(&id) || alignment.kept() >= KEPT;
        // The reply at the end may be on record in other words than the client has it. Those before it are as it sent them.
        let answers = alignment.gone().filter(|at| rows[*at].is_reply && at + 1 < rows.len());
        if alike && alignment.is_rebuilt() && are_ours(app, &id, answers)? {
            let path: Vec<Digest> = rows.iter().map(|row| row.chain).collect();
            let changing = alignment.replaced().into_iter().filter(|at| body[*at].role == Role::User);
            let changing: Vec<usize> = changing.collect();
            let view = app.store.view(&path)?.map(|(_, view)| View::clone(&view)).unwrap_or_default();
            let view = alignment.carry(&view, alone, &changing);
            debug!(conversation = id, known = located.map_or(0, |l| l.depth), "the client rebuilt its history");
            return Ok(Some((id, Some(view))));
        }
    }
    let said_otherwise = |l: &&Located| {
        l.depth >= LONG && l.depth + LAST_WORDS >= l.conversation_depth && l.conversation_depth <= chain.len()
    };
    Ok(located.filter(said_otherwise).map(|l| (l.conversation.clone(), None)))
}

/// Whether a history may be that of a conversation, as far as it is told whose it is.
fn may_be(app: &App, id: &str, asks: &Whose, session: Option<&str>) -> Result<bool, Error> {
    Ok(match whose_is(app, id)? {
        Some(whose) => whose.kin(asks, 0) != Kin::Not,
        None => app.store.conversation(id)?.is_some_and(|row| row.session.as_deref() == session),
    })
}

/// Whether messages of a conversation are calls of our own tools, which no client has in its history.
fn are_ours(app: &App, id: &str, messages: impl Iterator<Item = usize>) -> Result<bool, Error> {
    for at in messages {
        let rows = app.store.messages_between(id, at, at + 1)?;
        let read = rows.into_iter().next().and_then(|row| openai_chat::message(row.raw).ok());
        if !read.is_some_and(|message| recall::is_call(&message)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The view that was made ahead for what now comes, if it is the next request: longer than what was forwarded, and in the view that
/// this one goes on from.
/// `counted_by`: the model that evaluated it, if it is still the one that is asked.
fn ahead(
    app: &App,
    id: &str,
    (chain, body): (&[Digest], &[Message]),
    (stored, forwarded): (&View, usize),
    attempt: Attempt,
    counted_by: Option<&ModelKey>,
) -> Option<Ahead> {
    let goes_on = |a: &Ahead| a.depth == forwarded && chain.len() > a.depth && chain.get(a.depth - 1) == Some(&a.chain);
    let is_of = |a: &Ahead| a.of == stored.mark();
    let fits = |a: &mut Ahead| goes_on(a) && is_of(a) && a.reply.is_none_or(|reply| reply.is_in(body));
    app.lives.with(id, |live| {
        let ahead = live.work.ahead.take_if(|a| attempt == Attempt::First && fits(a))?;
        if let (Some(tokens), Some(key)) = (ahead.tokens, counted_by) {
            let print = fingerprint(&ahead.view, key);
            live.prompt.known = Some((ahead.chain, print, Known { messages: ahead.depth, tokens }));
        }
        Some(ahead)
    })
}

/// Reads from the record what a server said of this history's size in this view, where it is not in memory: after a
/// restart, and where another process served the conversation meanwhile. Without it, an estimate would decide anew.
fn recollect(app: &App, id: &str, chain: &[Digest], view: &View, key: &ModelKey) -> Result<(), Error> {
    if known(app, id, chain, view, key).is_some() {
        return Ok(());
    }
    let print = fingerprint(view, key);
    if let Some((messages, tokens)) = app.store.counted(chain, &print)? {
        let known = Known { messages, tokens };
        app.lives.with(id, |live| live.prompt.known = Some((chain[messages - 1], print, known)));
    }
    Ok(())
}

/// Whether a history is the beginning of the longer one that its conversation stands at. Of another branch, to which
/// somebody goes back, it is not.
async fn repeats_a_beginning(app: &App, located: Option<&Located>, id: &str, chain: &[Digest]) -> Result<bool, Error> {
    let ends_here = |l: &Located| l.depth == chain.len() && l.depth < l.conversation_depth && l.conversation == id;
    let Some(last) = chain.len().checked_sub(1).filter(|_| located.is_some_and(ends_here)) else {
        return Ok(false);
    };
    // The last request may still be queued.
    app.store.flush().await;
    Ok(app.store.path(id)?.get(last).is_some_and(|row| row.chain == chain[last]))
}

/// The prompt of this conversation with this view whose size the server told last.
pub(in crate::proxy) fn known(app: &App, id: &str, chain: &[Digest], view: &View, key: &ModelKey) -> Option<Known> {
    let print = fingerprint(view, key);
    let fits = |(at, view, known): &(Digest, Digest, Known)| {
        *view == print && known.messages >= 1 && chain.get(known.messages - 1) == Some(at)
    };
    app.lives.with(id, |live| live.prompt.known.filter(fits)).map(|(.., known)| known)
}

/// The name of the conversation: the one that this history continues, else a new one. A session that a client names is
/// only a wish: it never takes the name of a conversation that this history does not continue.
/// `tagged`: the one that belongs to a chain which was set apart.
fn name(
    app: &App,
    located: Option<&Located>,
    chain: &[Digest],
    session: Option<&str>,
    tagged: Option<String>,
) -> Result<String, Error> {
    let session = session.filter(|session| !has_form_of_id(session));
    let (Some(tip), Some(root)) = (chain.last(), chain.first()) else {
        return Ok(session.unwrap_or("empty").to_owned());
    };
    let own = |session: Option<&str>| match session {
        Some(session) => format!("{session}.{}", &tip.hex()[..8]),
        None => format!("c{}", &tip.hex()[..12]),
    };
    Ok(match (located, session) {
        // It goes on where the record ends, or is sent again.
        (Some(l), _) if l.depth == l.conversation_depth || l.depth == chain.len() => l.conversation.clone(),
        (None, _) if tagged.is_some() => tagged.unwrap_or_default(),
        (None, Some(wish)) if !is_taken(app, wish, root)? => wish.to_owned(),
        (_, session) => own(session),
    })
}

/// Whether another history has a name already, in the record or on its way there.
fn is_taken(app: &App, name: &str, root: &Digest) -> Result<bool, Error> {
    let recorded = match app.store.conversation(name) {
        Err(crate::store::Error::Ambiguous { .. }) => false,
        found => found?.is_some_and(|row| row.id == name),
    };
    // The same history may have been recorded since it was looked for, by a request beside this one.
    Ok((recorded && !app.store.catalog().begins_with(name, root)?) || !app.lives.claim(name, root))
}
