//! In which of llama-server's slots a call of ours is answered, so that it never takes the place of a conversation's prompt.
//!
//! The server itself gives a prompt the slot that holds most of it, else the one used longest ago. That is right for a
//! request whose bytes stay as they are, and for a summary that continues a prompt. It is wrong for a prompt that was just
//! rewritten and shares little with the old one (it would take another conversation's slot, and leave the old one behind), and
//! for a transcript, which has nothing in common with any.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use crate::conversation::Tokens;
use crate::proxy::App;
use crate::proxy::routing::BATCHED;
use crate::proxy::state::live::Switched;
use crate::upstream::{Flavor, Kind, Slot, Upstream};

/// Names of models of which something is remembered: clients choose them, and may not fill the memory.
pub(super) const NAMES: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// Slots by their use; `None`: the server's own choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Slots {
    /// The one that holds the conversation's prompt.
    pub(in crate::proxy) own: Option<u32>,
    /// One that no conversation under way needs.
    pub(in crate::proxy) spare: Option<u32>,
}

/// The slot that was last lent to a call of ours, by server and model.
#[derive(Debug)]
pub(in crate::proxy) struct Lent(Mutex<LruCache<String, u32>>);

impl Default for Lent {
    fn default() -> Lent {
        Lent(Mutex::new(LruCache::new(NAMES)))
    }
}

/// The slot for a request of a client's own helper: one that nobody goes on with, or else the one with the least to read again. The
/// server goes by what prompts have in common, or takes the slot used longest ago, whatever it holds. `None` where it is to choose:
/// there is one slot, it holds nothing of anybody's, or all are at work.
pub(in crate::proxy) async fn slot_for_helper(app: &App, upstream: &Upstream, model: &str) -> Option<u32> {
    let with = Switched { model: upstream.canonical(model), upstream: upstream.name().to_owned() };
    let prompts = app.lives.prompts(&with);
    if prompts.is_empty() {
        return None;
    }
    let all = upstream.slots(model).await;
    let key = format!("{}/{model}", upstream.name());
    let lent = app.turn.lent.0.lock().get(&key).copied();
    let chosen = cheapest(&all, &prompts, lent)?;
    app.turn.lent.0.lock().put(key, chosen);
    Some(chosen)
}

/// The idle slot with the least that somebody goes on with; of several, the one that was lent before, then the one used longest ago.
fn cheapest(all: &[Slot], prompts: &[(String, (Tokens, Option<Tokens>))], lent: Option<u32>) -> Option<u32> {
    let worth =
        |slot: &Slot| if prompts.iter().any(|(_, last)| holds(slot, *last)) { slot.held.unwrap_or(0) } else { 0 };
    if all.len() < 2 || all.iter().all(|slot| worth(slot) == 0) {
        return None;
    }
    let idle = all.iter().filter(|slot| !slot.busy);
    idle.min_by_key(|slot| (worth(slot), Some(slot.id) != lent, slot.task)).map(|slot| slot.id)
}

/// The slots of a conversation whose last reply was to `prompt` tokens and took `wrote`.
pub(in crate::proxy) async fn slots(
    app: &App,
    upstream: &Upstream,
    model: &str,
    last: Option<(Tokens, Option<Tokens>)>,
) -> Slots {
    let all = upstream.slots(model).await;
    let key = format!("{}/{model}", upstream.name());
    let lent = app.turn.lent.0.lock().get(&key).copied();
    let chosen = choose(&all, last, lent, app.lives.lately());
    if let Some(spare) = chosen.spare {
        app.turn.lent.0.lock().put(key, spare);
    }
    chosen
}

/// Requests that a server works on at once, where that is known. An Ollama does not tell: it has one slot, unless it was started
/// with `OLLAMA_NUM_PARALLEL`.
pub(in crate::proxy) fn at_once(app: &App, upstream: &Upstream, model: &str) -> Option<usize> {
    let told = app.measure.windows.last(upstream, model).and_then(|(_, slots)| slots);
    let usual = match upstream.kind()? {
        Kind::Ollama | Kind::Embedded => Some(1),
        // They batch whatever comes.
        Kind::OpenAi(Flavor::Vllm | Flavor::SgLang) => Some(BATCHED),
        Kind::LlamaServer { .. } | Kind::OpenAi(_) => None,
    };
    told.or(usual).map(|slots| slots as usize)
}

/// Whether a slot holds a prompt of so many tokens and its reply but for the last token, or a part of that reply.
pub(super) fn holds(slot: &Slot, (prompt, wrote): (Tokens, Option<Tokens>)) -> bool {
    slot.held.is_some_and(|held| (prompt..=prompt.saturating_add(wrote.unwrap_or(Tokens::MAX))).contains(&held))
}

/// The one idle slot that holds a prompt. Of two that look alike, the server knows better.
pub(in crate::proxy) fn only_holder(all: &[Slot], last: (Tokens, Option<Tokens>)) -> Option<u32> {
    let mut found = all.iter().filter(|slot| all.len() > 1 && holds(slot, last));
    let slot = found.next()?;
    (found.next().is_none() && !slot.busy).then_some(slot.id)
}

/// What a server's slots show of the prompt that was sent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Shown {
    /// One holds it.
    Held,
    /// None was ever used: the server is new, or its model is.
    Unused,
    /// Other prompts, or nothing, stand in all of them.
    Others,
    /// They are at work, or not shown.
    Nothing,
}

/// What slots show of the prompt that was sent last.
pub(in crate::proxy) fn shown(all: &[Slot], last: Option<(Tokens, Option<Tokens>)>) -> Shown {
    let unused = |slot: &Slot| slot.task.is_none() && slot.held.is_none();
    let Some(last) = last.filter(|_| !all.is_empty()) else { return Shown::Nothing };
    if all.iter().any(|slot| holds(slot, last)) {
        return Shown::Held;
    }
    match () {
        () if all.iter().any(|slot| slot.busy) => Shown::Nothing,
        () if all.iter().all(unused) => Shown::Unused,
        () if all.iter().all(|slot| slot.held.is_some() || unused(slot)) => Shown::Others,
        () => Shown::Nothing,
    }
}

fn choose(all: &[Slot], last: Option<(Tokens, Option<Tokens>)>, lent: Option<u32>, conversations: usize) -> Slots {
    if all.len() < 2 {
        return Slots::default();
    }
    // It is the slot that worked last, of several that look alike.
    let own = all.iter().filter(|slot| last.is_some_and(|last| holds(slot, last))).max_by_key(|slot| slot.task);
    let own = own.map(|slot| slot.id);
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
    fn a_rewritten_request_goes_where_its_conversation_is() {
        let slot = |id, busy, held| Slot { id, busy, task: Some(u64::from(id)), held: Some(held) };
        let idle = [slot(0, false, 378), slot(1, false, 340)];
        assert_eq!(only_holder(&idle, (333, Some(8))), Some(1));
        assert_eq!(only_holder(&idle, (500, Some(9))), None, "nobody holds it");
        assert_eq!(only_holder(&idle, (333, None)), None, "two may hold it");
        assert_eq!(only_holder(&idle[1..], (333, Some(8))), None, "there is no other");
        assert_eq!(only_holder(&[idle[0], slot(1, true, 340)], (333, Some(8))), None, "it would wait");
    }

    #[test]
    fn slots_show_whether_a_prompt_is_still_there() {
        let slot = |id, busy, held| Slot { id, busy, task: Some(1), held };
        let fresh = |id| Slot { id, ..Slot::default() };
        let last = Some((333, Some(8)));
        for (all, last, told) in [
            (vec![slot(0, false, Some(900))], last, Shown::Others),
            (vec![slot(0, false, Some(340))], last, Shown::Held),
            (vec![slot(0, false, Some(900)), slot(1, false, Some(333))], last, Shown::Held),
            (vec![slot(0, false, Some(900)), slot(1, true, Some(12))], last, Shown::Nothing),
            // An older server does not tell what they hold.
            (vec![slot(0, false, None)], last, Shown::Nothing),
            (vec![fresh(0), fresh(1)], last, Shown::Unused),
            (vec![fresh(0), slot(1, false, Some(12))], last, Shown::Others),
            (vec![slot(0, false, Some(900))], None, Shown::Nothing),
            (Vec::new(), last, Shown::Nothing),
        ] {
            assert_eq!(shown(&all, last), told, "{all:?} {last:?}");
        }
    }

    #[test]
    fn a_helper_takes_the_slot_with_the_least_to_read_again() {
        let slot = |id, task, held| Slot { id, busy: false, task: Some(task), held: Some(held) };
        let (large, small) = ((900, Some(8)), (333, Some(8)));
        let named =
            |all: &[(Tokens, Option<Tokens>)]| all.iter().map(|one| (one.0.to_string(), *one)).collect::<Vec<_>>();
        let two = [slot(0, 4, 907), slot(1, 7, 340)];
        let three = [two[0], two[1], slot(2, 9, 50)];
        let fresh = [two[0], two[1], Slot { id: 2, ..Slot::default() }];
        let busy = [two[0], Slot { busy: true, ..two[1] }];
        let cases: [(&str, &[Slot], &[_], _, _); 8] = [
            ("the smaller prompt goes, though the other was used longer ago", &two, &[large, small], None, Some(1)),
            ("nobody goes on with one of them", &two, &[small], None, Some(0)),
            ("nor with the last helper's", &three, &[large, small], None, Some(2)),
            ("one was never used", &fresh, &[large, small], None, Some(2)),
            ("the one lent before", &[two[0], slot(1, 2, 60), slot(2, 9, 50)], &[large], Some(2), Some(2)),
            ("nothing of anybody's", &two, &[(77, Some(1))], None, None),
            ("the only one that is idle", &busy, &[large, small], None, Some(0)),
            ("one slot", &two[..1], &[large], None, None),
        ];
        for (what, all, prompts, lent, expect) in cases {
            assert_eq!(cheapest(all, &named(prompts), lent), expect, "{what}");
        }
    }

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
