//! Where a history stands in the record: what is queued, what was used lately, and what is on the disk, in this order.

use windowsill_core::conversation::Digest;

use super::recent::Tip;
use super::types::{Error, Located};
use super::{Inner, health, read};

/// How many results of parallel calls may come in another order than before without the history being taken for a fork.
const PARALLEL: usize = 16;

/// How many messages from the end [`locate`] looks for a known tip before it searches: a turn adds a few.
const FAST_STEPS: usize = 8;

/// How much of a history is known, and to which conversation; `None` when not even its first message is.
pub(super) fn locate(inner: &Inner, chain: &[Digest]) -> Result<Option<Located>, Error> {
    let mut seen: Option<Tip> = None;
    loop {
        let removals = inner.recent.lock().removals;
        let Some(tip) = deepest_known(inner, chain)? else { return Ok(None) };
        {
            let mut recent = inner.recent.lock();
            // Retention leaves alone what a request continues; what it took meanwhile is looked for again.
            if recent.removals != removals || !recent.note_use(&tip.conversation, health::unix_ms()) {
                continue;
            }
        }
        let conversation_depth = conversation_depth(inner, &tip)?;
        // The same history may have been recorded by another request between the two looks: then it is no fork.
        if conversation_depth > tip.depth && tip.depth < chain.len() && seen.as_ref() != Some(&tip) {
            seen = Some(tip);
            continue;
        }
        return Ok(Some(Located { depth: tip.depth, conversation: tip.conversation.to_string(), conversation_depth }));
    }
}

fn deepest_known(inner: &Inner, chain: &[Digest]) -> Result<Option<Tip>, Error> {
    // A turn extends a tip used lately by a few messages. The one after it is checked, for only newest tips are
    // remembered and the history may have been known further.
    for (i, digest) in chain.iter().enumerate().rev().take(FAST_STEPS) {
        let tip = {
            let mut recent = inner.recent.lock();
            recent.tip(digest).or_else(|| recent.queued_node(digest))
        };
        if let Some(tip) = tip {
            let further = chain.get(i + 1).map_or(Ok(None), |next| known(inner, next))?;
            if further.is_none() {
                return Ok(Some(tip));
            }
            break;
        }
    }
    // Whoever knows a message knows those before it, so halves can be thrown away. Except among results of parallel
    // calls: sent in another order, those in the middle of the run are new though its end is known. So the search goes
    // on behind what it found.
    let (mut from, mut best) = (0, None);
    loop {
        let (mut low, mut high) = (from, chain.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match known(inner, &chain[middle])? {
                Some(tip) => {
                    best = Some(tip);
                    low = middle + 1;
                }
                None => high = middle,
            }
        }
        let Some(further) = known_within(inner, chain, low + 1, PARALLEL)? else { return Ok(best) };
        from = further;
    }
}

/// The first index in `from..from + count` whose prefix is known.
fn known_within(inner: &Inner, chain: &[Digest], from: usize, count: usize) -> Result<Option<usize>, Error> {
    for (at, digest) in chain.iter().enumerate().skip(from).take(count) {
        if known(inner, digest)?.is_some() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// A node, committed or queued. RAM is asked first, so that a commit in between hides nothing.
fn known(inner: &Inner, digest: &Digest) -> Result<Option<Tip>, Error> {
    let (tip, queued, removals) = {
        let mut recent = inner.recent.lock();
        (recent.tip(digest), recent.queued_node(digest), recent.removals)
    };
    if tip.is_some() {
        return Ok(tip);
    }
    let stored = inner.read(|conn| read::node(conn, digest))?;
    let Some(tip) = stored else { return Ok(queued) };
    let mut recent = inner.recent.lock();
    if recent.is_condemned(&tip.conversation) {
        return Ok(queued);
    }
    if recent.removals == removals {
        recent.keep_tip(*digest, tip.clone());
    }
    Ok(Some(tip))
}

fn conversation_depth(inner: &Inner, tip: &Tip) -> Result<usize, Error> {
    let (known, queued) = inner.recent.lock().deepest(&tip.conversation);
    let known = match known {
        Some(depth) => depth,
        None => {
            let depth = inner.read(|conn| read::deepest(conn, &tip.conversation))?;
            if depth > 0 {
                inner.recent.lock().note_deepest(tip.conversation.clone(), depth);
            }
            depth
        }
    };
    Ok(known.max(queued.unwrap_or(0)).max(tip.depth))
}

/// Takes up the views that another process wrote into the same record since the last look.
pub(super) fn catch_up(inner: &Inner) -> Result<(), Error> {
    let (newest, removals) = {
        let recent = inner.recent.lock();
        (recent.newest(), recent.removals)
    };
    let (views, recalled) = inner.read(|conn| read::newer(conn, newest))?;
    if !views.is_empty() || !recalled.is_empty() {
        inner.recent.lock().catch_up(&views, &recalled, removals);
    }
    Ok(())
}
