//! The first counts of texts that stand in many prompts: a system prompt, tools, a brief. They are told with every prompt that
//! has them, and the same bytes must not get another number each time more is learned of a model.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

use crate::conversation::{Digest, Tokens};

/// Texts that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 13).expect("not zero");

/// First counts, by what tells a text before a model from others.
pub struct Firsts(Mutex<LruCache<Digest, Tokens>>);

impl Default for Firsts {
    fn default() -> Firsts {
        Firsts(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Firsts {
    /// The first count of a text.
    pub fn of(&self, mark: &Digest) -> Option<Tokens> {
        self.0.lock().get(mark).copied()
    }

    /// Keeps the count of a text, unless it has one.
    pub fn note(&self, mark: Digest, tokens: Tokens) {
        let mut all = self.0.lock();
        if all.get(&mark).is_none() {
            all.put(mark, tokens);
        }
    }

    /// The counts of these texts, to be kept with a conversation.
    pub fn kept(&self, marks: &[Digest]) -> BTreeMap<String, Tokens> {
        marks.iter().filter_map(|mark| Some((mark.hex(), self.of(mark)?))).collect()
    }

    /// Takes in what [`Firsts::kept`] gave.
    pub fn take(&self, kept: &Value) {
        for (mark, tokens) in kept.as_object().into_iter().flatten() {
            let tokens = tokens.as_u64().and_then(|n| Tokens::try_from(n).ok());
            if let (Some(mark), Some(tokens)) = (Digest::from_hex(mark), tokens) {
                self.note(mark, tokens);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_count_stays_also_in_the_next_process() {
        let (first, text) = (Firsts::default(), Digest::of(b"text"));
        assert_eq!(first.of(&text), None);
        first.note(text, 400);
        first.note(text, 300);
        assert_eq!(first.of(&text), Some(400));
        let next = Firsts::default();
        next.take(&json!(first.kept(&[text, Digest::of(b"unknown")])));
        next.take(&json!({"no digest": 5, "00000000000000000000000000000000": -1}));
        next.take(&Value::Null);
        assert_eq!(next.of(&text), Some(400));
    }
}
