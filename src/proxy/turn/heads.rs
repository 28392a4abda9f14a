//! System prompts and tools of the conversations that were asked last: the record holds neither, and whoever changes a view between
//! two requests has to know the whole prompt.

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;

use super::prepared::Prepared;
use crate::conversation::{Conversation, Message};
use crate::proxy::state::sent::mark;
use crate::wire::json;
use crate::wire::openai_chat::{self, Request};

/// Conversations whose system prompt and tools are remembered: the record holds neither.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// Larger ones are not (bytes): all together take 64 MiB at most.
const LARGEST_HEAD: usize = 1 << 20;

/// What of the last request is not in the record.
#[derive(Debug)]
pub(in crate::proxy) struct Head {
    /// Tells it from others.
    mark: u64,
    /// The request's fields but for its messages.
    fields: Bytes,
    system: Vec<Bytes>,
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    pub(in crate::proxy) with_recall: Option<Bytes>,
}

/// The heads of the conversations that were asked last.
pub(in crate::proxy) struct Heads(Mutex<LruCache<String, Arc<Head>>>);

impl Default for Heads {
    fn default() -> Heads {
        Heads(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Heads {
    /// Remembers what a request has besides its history.
    pub(in crate::proxy) fn note(&self, prepared: &Prepared) {
        let mark = prepared.history.client_marks.first().copied().unwrap_or(0) ^ fields_mark(&prepared.request);
        if self.0.lock().get(&prepared.id).is_some_and(|known| known.mark == mark) {
            return;
        }
        let request = &prepared.request;
        let copied = |message: &Message| Bytes::copy_from_slice(message.bytes());
        let system: Vec<Bytes> = request.conversation.system.iter().map(copied).collect();
        let own_tools = request.own_tools().map(|tools| String::from_utf8_lossy(tools).into_owned());
        let changes = [("messages", Some("[]")), ("tools", own_tools.as_deref())];
        let text = String::from_utf8_lossy(&request.body);
        let Ok(fields) = json::with_fields(&text, &changes) else { return };
        let with_recall = prepared.head.tools.clone();
        let size = fields.len() + system.iter().chain(&with_recall).map(Bytes::len).sum::<usize>();
        if size <= LARGEST_HEAD {
            let head = Head { mark, fields, system, with_recall };
            self.0.lock().put(prepared.id.clone(), Arc::new(head));
        } else {
            self.0.lock().pop(&prepared.id);
        }
    }

    /// What the last request of a conversation had, where that is remembered.
    pub(in crate::proxy) fn of(&self, id: &str) -> Option<Arc<Head>> {
        self.0.lock().get(id).cloned()
    }
}

/// Tells the fields of a request from others: the bytes before its first message and behind its last one.
fn fields_mark(request: &Request) -> u64 {
    let Conversation { system, body: said, .. } = &request.conversation;
    let body = &request.body;
    let place = |message: &Message| {
        let start = (message.raw.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        let end = start.checked_add(message.raw.len())?;
        (!message.raw.is_empty() && end <= body.len()).then_some((start, end))
    };
    let first = system.iter().chain(said).find_map(place).map(|(start, _)| start);
    let last = said.iter().rev().chain(system.iter().rev()).find_map(place).map(|(_, end)| end);
    match first.zip(last).filter(|(first, last)| first <= last) {
        Some((first, last)) => mark(&body[..first]).rotate_left(7) ^ mark(&body[last..]),
        None => mark(body),
    }
}

impl Head {
    /// A request with this head and a history.
    pub(in crate::proxy) fn request(&self) -> Option<Request> {
        let mut request = openai_chat::parse(&self.fields).ok()?;
        request.conversation.system =
            self.system.iter().map(|raw| openai_chat::message(raw.clone()).ok()).collect::<Option<_>>()?;
        Some(request)
    }
}
