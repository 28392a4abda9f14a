//! The calls of a reply, as they arrive: parts of several may come by turns, and are told one call after another.

use std::collections::{HashMap, VecDeque};

use super::super::said::CallPart;
use super::super::whole::Whole;
use crate::wire::reply::grow_name;

/// The calls of one reply.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Those that wait for the one before them to be whole. The first may be open.
    waiting: VecDeque<Call>,
    /// The last call of each number, as its place in the reply.
    latest: HashMap<u64, usize>,
    /// Calls seen.
    pub(super) seen: usize,
    /// Of these, told to their end.
    told: usize,
}

/// A call in the making.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) id: String,
    /// The server gave the id.
    given: bool,
    pub(super) name: String,
    pub(super) arguments: String,
    whole: Whole,
    /// Bytes of the arguments that were sent.
    sent: usize,
}

/// The id of a call: the server's own, or one made of the reply's.
pub(super) fn id_of(reply: &str, call: &CallPart, nth: usize) -> String {
    call.id.clone().unwrap_or_else(|| format!("toolu_{reply}_{nth}"))
}

impl Calls {
    /// Takes in a part of a call of the reply of this id. Returns whether there may be something new to tell.
    pub(super) fn take(&mut self, part: &CallPart, reply: &str) -> bool {
        // Some servers number all calls of a reply 0: another id and a name are another call.
        let another = |c: &Call| part.name.is_some() && part.id.as_ref().is_some_and(|id| c.given && c.id != *id);
        let latest = self.latest.get(&part.index).copied();
        let waits = latest.and_then(|nth| nth.checked_sub(self.told));
        let known = waits.filter(|at| self.waiting.get(*at).is_some_and(|call| !another(call)));
        if known.is_none() && part.name.is_none() && latest.is_some() {
            // Behind arguments that are whole comes white space, or nonsense.
            return false;
        }
        let at = known.unwrap_or_else(|| {
            let id = id_of(reply, part, self.seen);
            self.latest.insert(part.index, self.seen);
            self.seen += 1;
            let given = part.id.is_some();
            self.waiting.push_back(Call { id, given, ..Call::default() });
            self.waiting.len() - 1
        });
        if let Some(call) = self.waiting.get_mut(at) {
            if let Some(name) = &part.name {
                grow_name(&mut call.name, name, !call.arguments.is_empty());
            }
            call.arguments.push_str(&part.arguments);
        }
        true
    }

    /// Whether a call has begun of which more may come.
    pub(super) fn is_open(&mut self) -> bool {
        self.waiting.iter_mut().any(|call| !call.whole.is(&call.arguments))
    }

    /// The call that is told now, or next.
    pub(super) fn first(&self) -> Option<&Call> {
        self.waiting.front()
    }

    /// What of the first call's arguments was not told yet, and whether that ends the call: `all` says that nothing more comes.
    pub(super) fn news(&mut self, all: bool) -> Option<(String, bool)> {
        let several = self.waiting.len() > 1;
        let first = self.waiting.front_mut()?;
        let new = first.arguments.get(first.sent..).unwrap_or_default().to_owned();
        first.sent = first.arguments.len();
        // The next one begins once this one is whole: parts of several may come by turns.
        Some((new, all || several && first.whole.is(&first.arguments)))
    }

    /// The first call was told to its end: the next one is first.
    pub(super) fn end_first(&mut self) -> Option<CallPart> {
        let Call { id, name, arguments, .. } = self.waiting.pop_front()?;
        self.told += 1;
        Some(CallPart { index: 0, id: Some(id), name: Some(name), arguments })
    }
}
