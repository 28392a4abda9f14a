//! Whether a conversation's last prompt still stands in its server's cache: what the next request reads again hangs on that. A
//! restart of windowsill loses no cache, and one of the server loses all of it. So what the server shows is asked first, then what
//! the record says, and where neither tells, a price says "about".

use super::sight::{last_prompt, others_since};
use crate::conversation::Tokens;
use crate::proxy::App;
use crate::proxy::turn::slots::{Shown, shown};
use crate::store::{ConversationRow, EventFilter, EventRow};
use crate::upstream::{Kind, Place, Upstream};

/// Events of a conversation that are looked at for its last prompt, the newest.
const EVENTS: usize = 200;

/// What is known of a conversation's last prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Cache {
    /// The server still has it.
    Held,
    /// The server has it no more: it was started, or took the model into memory, since.
    Gone,
    /// Another server answered last.
    Elsewhere,
    /// The server does not have the model in memory.
    Away,
    /// The server does not answer.
    Down,
    /// Other prompts stand in all slots by now. A llama-server may have put it aside in RAM (`--cache-ram`), which it does not tell.
    Replaced,
    /// The server has it, and may have put the one before aside in RAM (`--cache-ram` of llama-server, on by default), which it does not
    /// tell: what a change goes back to is read anew, or not.
    MayKeepOlder,
    /// Other conversations were answered since, and the server does not show what it kept.
    Others,
    /// The server does not show what it has.
    Untold,
}

impl Cache {
    /// As it is told to programs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Cache::Held => "held",
            Cache::Gone | Cache::Elsewhere | Cache::Away => "gone",
            Cache::Down | Cache::Replaced | Cache::MayKeepOlder | Cache::Others | Cache::Untold => "unsure",
        }
    }

    /// Whether all of the prompt is taken to be read again.
    pub(super) fn reads_all(self) -> bool {
        matches!(self, Cache::Gone | Cache::Elsewhere | Cache::Away | Cache::Down | Cache::Replaced)
    }

    /// What follows from it, for people.
    pub(super) fn note(self) -> Option<&'static str> {
        match self {
            Cache::Held | Cache::Untold => None,
            Cache::Gone => Some(
                "The server was started, or its model loaded, after the last request of this conversation: it reads all of it \
                 again, with this change or without it.",
            ),
            Cache::Elsewhere => Some(
                "Another server answered the last request of this conversation: this one reads all of it, with this change or \
                 without it.",
            ),
            Cache::Away => Some(
                "The server does not have the model in memory: it reads all of the conversation again, with this change or \
                 without it.",
            ),
            Cache::Down => Some(
                "The server does not answer now. If it was stopped, it reads all of the conversation again once it is back, with \
                 this change or without it.",
            ),
            Cache::Replaced => Some(
                "The server has worked on another prompt since the last request of this conversation. Unless it keeps older \
                 prompts in RAM (--cache-ram), it reads all of it again, with this change or without it.",
            ),
            Cache::MayKeepOlder => Some(
                "llama-server may still have the prompt from before in RAM (--cache-ram): then it reads hardly anything again.",
            ),
            Cache::Others => Some(
                "Other conversations were answered since, and the server does not show what its cache kept: it may read more \
                 again, with this change or without it.",
            ),
        }
    }
}

/// What is known of the last prompt of a conversation.
pub(super) async fn cache_of(app: &App, row: &ConversationRow, (upstream, model): (&Upstream, &str)) -> Cache {
    let id = &row.id;
    let (held, sent_here) = app.lives.with(id, |live| (live.prompt.held, live.prompt.sent_view.is_some()));
    let last = recorded(app, row);
    if last.as_ref().and_then(|last| last.data["upstream"].as_str()).is_some_and(|name| name != upstream.name()) {
        return Cache::Elsewhere;
    }
    let held = held.or_else(|| last.as_ref().and_then(prompt_and_reply));
    match shown(&upstream.slots(model).await, held) {
        Shown::Held => return Cache::Held,
        Shown::Unused => return Cache::Gone,
        Shown::Others => return Cache::Replaced,
        Shown::Nothing => {}
    }
    if upstream.kind() == Some(Kind::Embedded) && !sent_here {
        // It lives and dies with this process.
        return Cache::Gone;
    }
    // What is fixed from its start on is not asked where it is.
    let place = match upstream.place(model).await {
        Place::Fixed if upstream.alive().await.is_err() => Place::Unreached,
        place => place,
    };
    match place {
        Place::Away { .. } => return Cache::Away,
        Place::Unreached => return Cache::Down,
        Place::Fixed | Place::Loaded | Place::Untold => {}
    }
    let others = last.map_or(Ok(0), |last| others_since(&app.store, row, &last));
    if !others.is_ok_and(|others| others == 0) {
        return Cache::Others;
    }
    // A model that is in memory was not loaded since, for no other request came.
    if sent_here && place == Place::Loaded { Cache::Held } else { Cache::Untold }
}

/// The last reply on record that was to a prompt of a conversation's own.
fn recorded(app: &App, row: &ConversationRow) -> Option<EventRow> {
    let of = EventFilter { conversation: Some(row.id.clone()), kinds: vec!["model_usage".into()] };
    let events = app.store.trace().newest(EVENTS, &of).ok()?;
    last_prompt(&events).cloned()
}

fn prompt_and_reply(usage: &EventRow) -> Option<(Tokens, Option<Tokens>)> {
    let tokens = |key: &str| usage.data[key].as_u64().and_then(|n| Tokens::try_from(n).ok());
    Some((tokens("prompt_tokens")?, tokens("completion_tokens")))
}
