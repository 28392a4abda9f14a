//! What the record knows of a request's history: which conversation it continues, the view that was remembered or made ahead
//! for it, and the bytes that its messages had before.

use http::HeaderMap;

use super::live::Ahead;
use super::prefix::client_marks;
use super::prepare::{Attempt, fingerprint};
use super::{App, Error, headers};
use crate::config::Resolved;
use crate::conversation::Digest;
use crate::conversation::edit::View;
use crate::conversation::wire::openai_chat::Request;
use crate::measure::Known;
use crate::store::Located;

/// What is known of a history before anything is planned.
pub(super) struct History {
    /// Chain hash of each prefix of the body.
    pub(super) chain: Vec<Digest>,
    /// Where the record knew it before.
    pub(super) located: Option<Located>,
    /// Name of the conversation.
    pub(super) id: String,
    /// Name of the session that the client gave.
    pub(super) session: Option<String>,
    /// The view that was remembered for it.
    pub(super) stored: View,
    /// The view that was made ahead of need for what now comes.
    pub(super) ahead: Option<Ahead>,
    /// What tells the messages as the client sent them from others.
    pub(super) client_marks: Vec<u64>,
}

impl History {
    /// How many messages of it were sent before.
    pub(super) fn forwarded(&self) -> usize {
        self.located.as_ref().map_or(0, |l| l.depth)
    }
}

impl App {
    /// What the record knows of a request's history. Its messages become those that were forwarded before, where only their
    /// spelling differs.
    pub(super) async fn history(
        &self,
        request: &mut Request,
        policy: &Resolved,
        from_client: &HeaderMap,
        attempt: Attempt,
    ) -> Result<History, Error> {
        let session = headers::text(from_client, &headers::SESSION);
        let seed = format!("{}\n{}", session.as_deref().unwrap_or(""), request.model);
        let (body, chain) = self.woven(&seed, std::mem::take(&mut request.conversation.body));
        request.conversation.body = body;
        request.withdraw();
        let located = self.store.locate(&chain)?;
        let id = self.name(located.as_ref(), &chain, session.as_deref())?;
        let stored = self.store.view(&chain)?.map(|(_, view)| View::clone(&view)).unwrap_or_default();
        let ahead = self.ahead(&id, &chain, located.as_ref().map_or(0, |l| l.depth), attempt);
        let conversation = &mut request.conversation;
        let client_marks = client_marks(conversation.tools.as_deref(), &conversation.system, &conversation.body);
        if let Some(located) = &located {
            let length = policy.policy.template.tool_call_id_length;
            let place = (located, id.as_str(), seed.as_str());
            if let Some(body) = self.settled(&conversation.body, &chain, &client_marks, place, length).await {
                conversation.body = body;
            }
        }
        Ok(History { chain, located, id, session, stored, ahead, client_marks })
    }

    /// The view that was made ahead for what now comes, if it is the next request: longer than what was forwarded.
    fn ahead(&self, id: &str, chain: &[Digest], forwarded: usize, attempt: Attempt) -> Option<Ahead> {
        let fits =
            |a: &mut Ahead| a.depth == forwarded && chain.len() > a.depth && chain.get(a.depth - 1) == Some(&a.chain);
        self.lives.with(id, |live| {
            let ahead = live.ahead.take_if(|a| attempt == Attempt::First && fits(a))?;
            if let Some(tokens) = ahead.tokens {
                live.known = Some((ahead.chain, fingerprint(&ahead.view), Known { messages: ahead.depth, tokens }));
            }
            Some(ahead)
        })
    }

    /// The prompt of this conversation with this view whose size the server told last.
    pub(super) fn known(&self, id: &str, chain: &[Digest], view: &View) -> Option<Known> {
        let print = fingerprint(view);
        let fits = |(at, view, known): &(Digest, Digest, Known)| {
            *view == print && known.messages >= 1 && chain.get(known.messages - 1) == Some(at)
        };
        self.lives.with(id, |live| live.known.filter(fits)).map(|(.., known)| known)
    }
}

impl App {
    /// The name of the conversation: the one that this history continues, else a new one. A session that a client names is
    /// only a wish: it never takes the name of a conversation that this history does not continue.
    fn name(&self, located: Option<&Located>, chain: &[Digest], session: Option<&str>) -> Result<String, Error> {
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
            (None, Some(wish)) if !self.is_taken(wish, root)? => wish.to_owned(),
            (_, session) => own(session),
        })
    }

    /// Whether another history has a name already, in the record or on its way there.
    fn is_taken(&self, name: &str, root: &Digest) -> Result<bool, Error> {
        let recorded = match self.store.conversation(name) {
            Err(crate::store::Error::Ambiguous { .. }) => false,
            found => found?.is_some_and(|row| row.id == name),
        };
        Ok(recorded || !self.lives.claim(name, root))
    }
}

/// Whether a session reads like a name that windowsill gives itself: `c` and 12 hexadecimal digits, or `….` and 8.
fn has_form_of_id(session: &str) -> bool {
    let hex = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
    session == "empty"
        || session.strip_prefix('c').is_some_and(|rest| hex(rest, 12))
        || session.rsplit_once('.').is_some_and(|(_, rest)| hex(rest, 8))
}
