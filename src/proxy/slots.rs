//! In which of llama-server's slots a call of ours is answered, so that it never takes the place of a conversation's prompt.
//!
//! The server itself gives a prompt the slot that holds most of it, else the one used longest ago. That is right for the
//! client's requests, whose bytes stay as they are, and for a summary that continues a prompt. It is wrong for a prompt that
//! was just rewritten and shares little with the old one (it would take another conversation's slot, and leave the old one
//! behind), and for a transcript, which has nothing in common with any.

use lru::LruCache;
use parking_lot::Mutex;

use super::{App, NAMES};
use crate::conversation::Tokens;
use crate::upstream::{Slot, Upstream};

/// Slots by their use; `None`: the server's own choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// The one that holds the conversation's prompt.
    pub(super) own: Option<u32>,
    /// One that no conversation under way needs.
    pub(super) spare: Option<u32>,
}

/// The slot that was last lent to a call of ours, by server and model.
#[derive(Debug)]
pub(super) struct Lent(Mutex<LruCache<String, u32>>);

impl Default for Lent {
    fn default() -> Lent {
        Lent(Mutex::new(LruCache::new(NAMES)))
    }
}

impl App {
    /// The slots of a conversation whose last reply was to `prompt` tokens and took `wrote`.
    pub(super) async fn slots(
        &self,
        upstream: &Upstream,
        model: &str,
        last: Option<(Tokens, Option<Tokens>)>,
    ) -> Slots {
        let all = upstream.slots(model).await;
        let key = format!("{}/{model}", upstream.name());
        let lent = self.lent.0.lock().get(&key).copied();
        let chosen = choose(&all, last, lent, self.lives.lately());
        if let Some(spare) = chosen.spare {
            self.lent.0.lock().put(key, spare);
        }
        chosen
    }
}

fn choose(all: &[Slot], last: Option<(Tokens, Option<Tokens>)>, lent: Option<u32>, conversations: usize) -> Slots {
    if all.len() < 2 {
        return Slots::default();
    }
    // The prompt and the reply but for its last token are in the slot that worked last, of several that look alike.
    let holds = |slot: &&Slot| {
        last.zip(slot.held).is_some_and(|((prompt, wrote), held)| {
            (prompt..=prompt.saturating_add(wrote.unwrap_or(Tokens::MAX))).contains(&held)
        })
    };
    let own = all.iter().filter(holds).max_by_key(|slot| slot.task).map(|slot| slot.id);
    let free = all.iter().filter(|slot| !slot.busy && Some(slot.id) != own);
    let spare = free
        .min_by_key(|slot| (slot.task.is_some(), Some(slot.id) != lent, slot.task))
        .filter(|_| conversations < all.len())
        .map(|slot| slot.id);
    Slots { own, spare }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_slot_is_whose() {
        let slot = |id, task, held| Slot { id, busy: false, task, held };
        let three = [slot(0, Some(4), Some(378)), slot(1, Some(7), Some(340)), slot(2, None, None)];
        let busy = [Slot { busy: true, ..three[0] }, three[1]];
        let used = [three[0], three[1], slot(2, Some(9), Some(50))];
        let cases: [(&str, &[Slot], _, _, usize, (_, _)); 9] = [
            ("one slot", &three[..1], Some((378, Some(1))), None, 1, (None, None)),
            ("one never used", &three, Some((333, Some(8))), None, 2, (Some(1), Some(2))),
            ("a reply of one token", &three, Some((378, Some(1))), None, 2, (Some(0), Some(2))),
            ("reply not counted", &three, Some((333, None)), None, 2, (Some(1), Some(2))),
            ("nobody holds it", &three, Some((500, Some(9))), None, 2, (None, Some(2))),
            ("none to spare", &three[..2], Some((333, Some(8))), None, 2, (Some(1), None)),
            ("the longest unused", &used, Some((333, Some(8))), None, 2, (Some(1), Some(0))),
            ("the one lent before", &used, Some((333, Some(8))), Some(2), 2, (Some(1), Some(2))),
            ("never a busy one", &busy, Some((333, Some(8))), Some(0), 1, (Some(1), None)),
        ];
        for (what, all, last, lent, conversations, (own, spare)) in cases {
            assert_eq!(choose(all, last, lent, conversations), Slots { own, spare }, "{what}");
        }
    }
}
