//! Whose a conversation is: the key and the program that ask, what the program calls its session, and the fixed parts of its
//! system prompt. Histories that say the same are one conversation only where these are the same.

use std::sync::Arc;

use http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::{headers, scope};
use crate::conversation::fixed::Fixed;
use crate::conversation::{Conversation, Digest};
use crate::proxy::{App, Error};

/// What tells the conversations of one client from those of others. It is kept with the conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::proxy) struct Whose {
    /// A mark of the key that the client sends; the key itself is kept nowhere.
    key: Option<String>,
    /// The program, without its version.
    client: String,
    /// What it calls its session.
    session: Option<String>,
    /// What it says that it works on.
    project: Option<String>,
    /// The fixed parts of its system prompt.
    system: Fixed,
    /// Whether parts of it were other ones before: then those that never changed are the fixed ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    moved: bool,
    /// Messages of its first request: they may be those of a template, with examples of replies.
    begun: usize,
}

/// So many messages that come back word for word, with more behind them, are those of the same conversation, also where something
/// was added to the system prompt since, or left it: what clients say of a folder when they go on another day.
const LONG: usize = 24;

/// How near two of them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::proxy) enum Kin {
    /// Not the same.
    Not,
    /// The same as far as both say.
    Near,
    /// The same.
    Same,
}

impl Whose {
    /// Of a request. `session`: what the client calls its session in the body.
    pub(in crate::proxy) fn of(from_client: &HeaderMap, conversation: &Conversation, session: Option<&str>) -> Whose {
        let named = || headers::firm_session(from_client).or_else(|| session.map(str::to_owned));
        Whose {
            key: key(from_client).map(|key| key.hex()),
            client: scope::program(from_client),
            session: headers::text(from_client, &headers::SESSION).or_else(named),
            project: headers::text(from_client, &headers::PROJECT),
            system: Fixed::of(&conversation.system),
            moved: false,
            begun: 0,
        }
    }

    /// What makes the chain of its histories: what nothing is ever shared across.
    pub(in crate::proxy) fn seed(&self, wish: &str) -> String {
        match &self.key {
            Some(key) => format!("{wish}\n\n#{key}"),
            None => wish.to_owned(),
        }
    }

    /// Whether the client names its session.
    pub(in crate::proxy) fn names_session(&self) -> bool {
        self.session.is_some()
    }

    /// How near a request is to the conversation that this one is of. `goes_on`: messages of the conversation, where the request
    /// has all of them, and more; else 0.
    pub(in crate::proxy) fn kin(&self, asks: &Whose, goes_on: usize) -> Kin {
        let moved = || goes_on > 0 && self.moved && self.system.stands_in(&asks.system);
        let system = self.system == asks.system || moved() || goes_on >= LONG && self.system.is_part_of(&asks.system);
        if !self.same_but_system(asks) || !system {
            return Kin::Not;
        }
        if self.project == asks.project { Kin::Same } else { Kin::Near }
    }

    fn same_but_system(&self, other: &Whose) -> bool {
        let projects = self.project.is_none() || other.project.is_none() || self.project == other.project;
        self.key == other.key && self.client == other.client && self.session == other.session && projects
    }

    /// As it is from now on, where a history of this one's goes on with another system prompt: clients put what they found for
    /// a request into it. What both have is what stays. `None` where that is nothing.
    pub(in crate::proxy) fn moved_to(&self, asks: &Whose) -> Option<Whose> {
        let system = self.system.shared(&asks.system);
        (self.same_but_system(asks) && !system.is_empty()).then(|| Whose { system, moved: true, ..asks.clone() })
    }

    /// As it is from now on, once a request is known to be this one's.
    pub(in crate::proxy) fn with(&self, asks: Whose) -> Whose {
        let (project, begun) = (asks.project.clone().or_else(|| self.project.clone()), self.begun);
        match self.moved {
            true => Whose { system: self.system.shared(&asks.system), moved: true, project, begun, ..asks },
            false => Whose { project, begun, ..asks },
        }
    }

    /// Of a conversation that begins with so many messages.
    pub(in crate::proxy) fn begun(self, messages: usize) -> Whose {
        Whose { begun: messages, ..self }
    }

    /// Whether a history that shares its first `depth` messages with this one went on with it for a while: what began alike
    /// shares its first request at most.
    pub(in crate::proxy) fn went_on(&self, depth: usize) -> bool {
        depth > self.begun
    }
}

/// A mark of the keys that a client sends.
fn key(from_client: &HeaderMap) -> Option<Digest> {
    let bare = |value: &[u8]| {
        let value = value.trim_ascii();
        let (scheme, rest) = value.split_at(value.len().min(6));
        let is_scheme = scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(u8::is_ascii_whitespace);
        if is_scheme { rest.trim_ascii().to_vec() } else { value.to_vec() }
    };
    if let Some(name) = headers::text(from_client, &headers::KEY_NAME) {
        // By its name, so that a conversation outlives its token.
        return Some(Digest::of(format!("windowsill: the name of a key\n{name}").as_bytes()));
    }
    let sent = headers::KEYS.into_iter().flat_map(|name| from_client.get_all(name));
    let sent = sent.map(|value| bare(value.as_bytes()));
    let mut keys: Vec<Vec<u8>> = sent.filter(|key| !key.is_empty()).collect();
    keys.sort();
    keys.dedup();
    let all = [b"windowsill: the key of a client".to_vec()].into_iter().chain(keys.iter().cloned());
    (!keys.is_empty()).then(|| Digest::of(&all.collect::<Vec<_>>().join(&b'\n')))
}

/// The mark of a conversation's key: that of its name, or of what its client sends.
pub(in crate::proxy) fn mark_of(whose: &Whose) -> Option<&str> {
    whose.key.as_deref()
}

/// The mark of the keys that a client sends, as text; empty without one.
pub(in crate::proxy) fn mark_of_key(from_client: &HeaderMap) -> String {
    key(from_client).map(|key| key.hex()).unwrap_or_default()
}

/// Whose a conversation is; `None` where it was recorded before that was kept.
pub(in crate::proxy) fn whose_is(app: &App, id: &str) -> Result<Option<Arc<Whose>>, Error> {
    if let Some(known) = app.lives.with(id, |live| live.whose.clone()) {
        return Ok(Some(known));
    }
    let row = match app.store.conversation(id) {
        Err(crate::store::Error::Ambiguous { .. }) => None,
        found => found?.filter(|row| row.id == id),
    };
    let read = row.and_then(|row| Whose::deserialize(row.state.get("whose")?).ok()).map(Arc::new);
    if let Some(read) = &read {
        app.lives.with(id, |live| live.whose.get_or_insert_with(|| Arc::clone(read)).clone());
    }
    Ok(read)
}

/// Whether a conversation is of the key that a client sends.
pub(in crate::proxy) fn is_of_key(app: &App, id: &str, from_client: &HeaderMap) -> Result<bool, Error> {
    let key = key(from_client).map(|key| key.hex());
    Ok(whose_is(app, id)?.map_or(key.is_none(), |whose| whose.key == key))
}

/// How near a request is to a conversation. One that was recorded before it was kept whose it is goes to the first client
/// that has its history, unless that one names another session.
pub(in crate::proxy) fn kin(app: &App, id: &str, asks: &Whose, goes_on: usize) -> Result<Kin, Error> {
    if let Some(whose) = whose_is(app, id)? {
        return Ok(whose.kin(asks, goes_on));
    }
    let session = match app.store.conversation(id) {
        Err(crate::store::Error::Ambiguous { .. }) => None,
        found => found?.filter(|row| row.id == id).and_then(|row| row.session),
    };
    let same = session.is_none() || asks.session.is_none() || session == asks.session;
    Ok(if same { Kin::Same } else { Kin::Not })
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::wire::openai_chat;
    use serde_json::json;

    fn of(sent: &[(&str, &str)], system: &str) -> Whose {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": "hi"}]);
        let request = openai_chat::parse(&json!({"model": "m", "messages": messages}).to_string().into()).unwrap();
        Whose::of(&headers, &request.conversation, None)
    }

    #[test]
    fn a_key_is_kept_as_a_mark_alone() {
        let mine = of(&[("authorization", "Bearer secret-1")], "s");
        assert_eq!(mine.key, of(&[("x-api-key", "secret-1")], "s").key, "in whatever header it comes");
        assert_ne!(mine.key, of(&[("authorization", "Bearer secret-2")], "s").key);
        assert_ne!(mine.key, of(&[("authorization", "Bearer secret-1"), ("x-api-key", "k")], "s").key);
        assert_eq!(of(&[("authorization", "Bearer ")], "s").key, None);
        assert!(!serde_json::to_string(&mine).unwrap().contains("secret") && !mine.seed("").contains("secret"));
        assert_eq!(of(&[], "s").seed("mine"), "mine", "as before keys were looked at");
    }

    #[test]
    fn whatever_differs_sets_apart() {
        let agent = ("user-agent", "agent-a/1.0");
        let mine = of(&[agent], "Be brief. Today is Friday.");
        assert_eq!(mine.kin(&of(&[("user-agent", "agent-a/2.1")], "Be brief. Today is Monday."), 0), Kin::Same);
        assert_eq!(mine.kin(&of(&[agent, ("x-windowsill-project", "p")], "Be brief."), 0), Kin::Near);
        for other in [
            of(&[("user-agent", "agent-b/1.0")], "Be brief."),
            of(&[agent, ("authorization", "Bearer k")], "Be brief."),
            of(&[agent, ("session_id", "s")], "Be brief."),
            of(&[agent], "Be brief. You work for CORP."),
            of(&[agent], ""),
        ] {
            assert_eq!(mine.kin(&other, 9), Kin::Not, "{other:?}");
            assert_eq!(other.kin(&mine, 9), Kin::Not, "{other:?}");
        }
        assert_eq!(mine.kin(&of(&[agent, ("x-client-request-id", "7")], "Be brief."), 0), Kin::Same);
    }

    #[test]
    fn a_system_prompt_that_moves_is_told_by_what_stays() {
        let found = |found: &str| of(&[], &format!("Be brief.\nUse what was found.\n{found}"));
        let (one, two, three) = (found("Roses are red."), found("The sky is blue."), found("Grass is green."));
        let moved = one.moved_to(&two).unwrap();
        assert_eq!((moved.kin(&three, 9), moved.kin(&three, 0)), (Kin::Same, Kin::Not));
        assert_eq!(moved.with(three).kin(&two, 9), Kin::Same);
        assert_eq!(moved.kin(&of(&[], "Write a title."), 9), Kin::Not);
        assert_eq!(one.moved_to(&of(&[], "Write a title.")), None);
        let more = of(&[], "Be brief.\nUse what was found.\nRoses are red. They smell.");
        assert_eq!((one.kin(&more, 9), one.kin(&more, 40), one.kin(&two, 40)), (Kin::Not, Kin::Same, Kin::Not));
    }
}
