//! A log in the memory of this process, for tests: it does what PostgreSQL does, and can be away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use windowsill_core::conversation::Digest;

use super::{Appended, Entry, Joined, Key, Log, LogError, Logs, NewEntry, entry};

/// Logs in memory, by name.
#[derive(Default)]
pub(crate) struct Memory {
    all: Mutex<HashMap<String, Arc<Mutex<Kept>>>>,
    /// Whether they cannot be reached.
    pub(crate) away: Arc<AtomicBool>,
}

#[derive(Default)]
struct Kept {
    secret: [u8; 32],
    entries: Vec<Entry>,
    texts: HashMap<Key, Vec<u8>>,
    holders: HashMap<(Key, String), u64>,
    views: HashMap<Digest, u64>,
}

struct Open {
    kept: Arc<Mutex<Kept>>,
    away: Arc<AtomicBool>,
}

impl Logs for Memory {
    fn open(&self, name: &str) -> Box<dyn Log> {
        let kept = Arc::clone(self.all.lock().entry(name.to_owned()).or_default());
        Box::new(Open { kept, away: Arc::clone(&self.away) })
    }

    fn listen(&self, name: &str, mut news: Box<dyn FnMut() -> bool + Send>) {
        let kept: Weak<_> = Arc::downgrade(self.all.lock().entry(name.to_owned()).or_default());
        thread::spawn(move || {
            let mut seen = 0;
            while let Some(kept) = kept.upgrade() {
                let head = kept.lock().entries.len();
                if std::mem::replace(&mut seen, head) != head && !news() {
                    return;
                }
                drop(kept);
                thread::sleep(Duration::from_millis(5));
            }
        });
    }
}

impl Open {
    fn there(&self) -> Result<(), LogError> {
        if self.away.load(Ordering::SeqCst) { Err(LogError::Away("it was taken away".into())) } else { Ok(()) }
    }
}

impl Kept {
    fn after(&self, after: u64) -> Vec<Entry> {
        let first = usize::try_from(after).unwrap().min(self.entries.len());
        let mut found = self.entries[first..].iter().take(7).cloned().collect::<Vec<_>>();
        for one in &mut found {
            let keys = entry::keys(&one.body).unwrap();
            one.texts = keys.into_iter().filter_map(|key| Some((key, self.texts.get(&key)?.clone()))).collect();
        }
        found
    }
}

impl Log for Open {
    fn join(&mut self) -> Result<Joined, LogError> {
        self.there()?;
        let mut kept = self.kept.lock();
        if kept.secret == [0; 32] {
            kept.secret = [9; 32];
        }
        Ok(Joined { id: [7; 16], secret: kept.secret, head: kept.entries.len() as u64 })
    }

    fn expect(&mut self, _id: [u8; 16]) {}

    fn begin(&mut self, secret: &[u8; 32]) -> Result<(), LogError> {
        self.there()?;
        let mut kept = self.kept.lock();
        if kept.entries.is_empty() {
            kept.secret = *secret;
        }
        Ok(())
    }

    fn read(&mut self, after: u64) -> Result<Vec<Entry>, LogError> {
        self.there()?;
        Ok(self.kept.lock().after(after))
    }

    fn append(&mut self, after: u64, new: &[NewEntry]) -> Result<Appended, LogError> {
        self.there()?;
        let mut kept = self.kept.lock();
        if kept.entries.len() as u64 > after {
            return Ok(Appended::Behind);
        }
        let mut numbers = Vec::new();
        for one in new {
            let seq = kept.entries.len() as u64 + 1;
            if let Some((chain, seen)) = &one.claim {
                if kept.views.get(chain).is_some_and(|at| at > seen) {
                    numbers.push(None);
                    continue;
                }
                kept.views.insert(*chain, seq);
            }
            kept.views.extend(one.ends.iter().map(|chain| (*chain, seq)));
            for (key, text) in &one.texts {
                kept.texts.insert(*key, text.clone());
                kept.holders.insert((*key, one.conversation.clone()), seq);
            }
            let (origin, body) = (one.origin, one.body.clone());
            kept.entries.push(Entry { seq, origin, body, texts: HashMap::new() });
            numbers.push(Some(seq));
        }
        Ok(Appended::Done(numbers))
    }

    fn forget(&mut self, conversation: &str, upto: u64, heir: Option<&str>) -> Result<(), LogError> {
        self.there()?;
        let mut kept = self.kept.lock();
        let of = |((_, name), seq): &(&(Key, String), &u64)| name == conversation && **seq <= upto;
        let gone: Vec<(Key, u64)> = kept.holders.iter().filter(of).map(|((key, _), seq)| (*key, *seq)).collect();
        for (key, seq) in gone {
            kept.holders.remove(&(key, conversation.to_owned()));
            if let Some(heir) = heir {
                kept.holders.entry((key, heir.to_owned())).or_insert(seq);
            } else if !kept.holders.keys().any(|(held, _)| *held == key) {
                kept.texts.remove(&key);
            }
        }
        Ok(())
    }
}
