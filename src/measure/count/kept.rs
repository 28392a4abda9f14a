//! The messages of earlier requests, ready for the template: the next request of a conversation is read, but for its new
//! messages, by the digests of what the client sent.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::conversation::{Digest, Tokens};
use crate::template::{Ready, Template};

/// Messages that are kept, at most.
const MESSAGES: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");

/// Bytes of the messages that are kept, as they were sent: some of the longest histories.
const BYTES: usize = 8 << 20;

/// A request, its messages not yet looked into.
#[derive(Deserialize)]
struct Sent<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A message that is kept.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// As the template sees it.
    pub(super) ready: Ready,
    /// Tokens of its words and calls by themselves, where they were asked for.
    pub(super) words: Option<Tokens>,
    bytes: usize,
}

/// A request whose messages are ready.
pub(super) struct Prepared {
    /// Its messages, in order.
    pub(super) messages: Vec<Message>,
    /// All else of it.
    pub(super) rest: Value,
}

/// Messages by what they are ready for (the template for tools, or the other) and their digests.
type Key = (bool, Digest);

/// What is kept.
#[derive(Debug)]
struct Messages {
    all: LruCache<Key, Message>,
    bytes: usize,
}

/// Messages that are kept, for all conversations of a model.
#[derive(Debug)]
pub(super) struct Kept(Mutex<Messages>);

impl Default for Kept {
    fn default() -> Kept {
        Kept(Mutex::new(Messages { all: LruCache::new(MESSAGES), bytes: 0 }))
    }
}

impl Kept {
    /// Makes the messages of a request ready. `template`: the one for a request with tools or without; `words`: counts those
    /// of a message, where they are wanted. `None` where the request is not of the plain shape, or its messages
    /// cannot be seen one by one: it is for those that take it as a whole, and say what is wrong with it.
    pub(super) fn prepare<'t>(
        &self,
        request: &[u8],
        template: impl FnOnce(bool) -> &'t Template,
        words: Option<&dyn Fn(&Value) -> Tokens>,
    ) -> Option<Prepared> {
        let sent: Sent<'_> = serde_json::from_slice(request).ok()?;
        let rest = Value::Object(sent.rest);
        let tools = super::has_tools(&rest);
        let template = template(tools);
        let mut messages = Vec::with_capacity(sent.messages.len());
        for raw in sent.messages {
            let key = (tools, Digest::of(raw.get().as_bytes()));
            let known = self.0.lock().all.get(&key).filter(|m| words.is_none() || m.words.is_some()).cloned();
            if let Some(known) = known {
                messages.push(known);
                continue;
            }
            let value: Value = serde_json::from_str(raw.get()).ok()?;
            let (ready, words) = (template.ready(&value)?, words.map(|words| words(&value)));
            let message = Message { ready, words, bytes: raw.get().len() };
            messages.push(message.clone());
            self.0.lock().keep(key, message);
        }
        Some(Prepared { messages, rest })
    }
}

impl Messages {
    /// Keeps a message, and gives up those that were longest out of use where there are too many.
    fn keep(&mut self, key: Key, message: Message) {
        self.bytes += message.bytes;
        let gone = self.all.push(key, message);
        self.bytes -= gone.map_or(0, |(_, m)| m.bytes);
        while self.bytes > BYTES
            && let Some((_, old)) = self.all.pop_lru()
        {
            self.bytes -= old.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_kept_is_bounded_and_never_wrong() {
        let template = Template::new(crate::template::CHATML).unwrap();
        let kept = Kept::default();
        let size = 300_000;
        for n in 0..60 {
            let messages = json!([{"role": "user", "content": format!("{n} {}", "x".repeat(size))}]);
            let body = serde_json::to_vec(&json!({"model": "m", "messages": messages})).unwrap();
            for _ in 0..2 {
                let got = kept.prepare(&body, |_| &template, (n % 2 == 0).then_some(&|_: &Value| n)).unwrap();
                assert_eq!((got.messages.len(), got.messages[0].words), (1, (n % 2 == 0).then_some(n)));
                assert_eq!(got.rest, json!({"model": "m"}));
            }
            // Words that are asked for later are counted then.
            let asked = kept.prepare(&body, |_| &template, Some(&|_: &Value| 7)).unwrap();
            assert_eq!(asked.messages[0].words, Some(if n % 2 == 0 { n } else { 7 }));
        }
        let state = kept.0.lock();
        assert_eq!(state.bytes, state.all.iter().map(|(_, m)| m.bytes).sum::<usize>());
        assert!(state.bytes <= BYTES && state.all.len() == BYTES / (size + 40), "{}", state.all.len());
        drop(state);
        for odd in
            ["{}", "[]", r#"{"messages": 1}"#, r#"{"messages": [], "messages": []}"#, r#"{"messages": ["\ud800"]}"#]
        {
            assert!(kept.prepare(odd.as_bytes(), |_| &template, None).is_none(), "{odd}");
        }
    }

    #[test]
    fn conversations_at_the_same_time_get_each_their_own() {
        let template = Template::new(crate::template::CHATML).unwrap();
        let kept = Kept::default();
        let length = |message: &Value| Tokens::try_from(message["content"].as_str().unwrap().len()).unwrap();
        let go_on = |conversation: usize| {
            for turns in 1..40 {
                // Two of them say the same; all together more than is kept.
                let say =
                    |turn: usize| format!("{} {turn} {}", conversation / 2, "x".repeat(turn * 4000 + conversation / 2));
                let said: Vec<String> = (0..turns).map(say).collect();
                let messages: Vec<Value> = said.iter().map(|s| json!({"role": "user", "content": s})).collect();
                let body = serde_json::to_vec(&json!({"messages": messages})).unwrap();
                let got = kept.prepare(&body, |_| &template, Some(&length)).unwrap().messages;
                let words: Vec<Option<Tokens>> = got.iter().map(|m| m.words).collect();
                assert_eq!(words, messages.iter().map(|m| Some(length(m))).collect::<Vec<_>>());
            }
        };
        std::thread::scope(|s| {
            let go_on = &go_on;
            (0..8).for_each(|conversation| drop(s.spawn(move || go_on(conversation))));
        });
        let state = kept.0.lock();
        assert_eq!(state.bytes, state.all.iter().map(|(_, m)| m.bytes).sum::<usize>());
        assert!(state.bytes <= BYTES);
    }
}
