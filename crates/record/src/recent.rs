//! What the record knows without asking the disk: batches that are queued but not yet committed, where the views are,
//! and the tips of lately used histories. Bounded; holds no message text beyond the queue and a few views.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use windowsill_core::conversation::Digest;
use windowsill_core::conversation::edit::{Edit, View};

use super::Original;
use super::types::{Batch, ConversationUpdate, Recalled, Trouble};

/// How many tips are remembered: a few hundred bytes each.
const TIPS: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Conversations of other processes whose names are kept until they are asked for.
const STRANGE: usize = 65_536;

/// The same, of what they wrote of conversations.
const STRANGE_UPDATES: usize = 1024;

/// Bytes of parsed views kept in RAM.
const VIEW_BYTES: usize = 8 << 20;

/// A batch on its way to the disk.
#[derive(Debug)]
pub(super) struct Work {
    /// All but the view.
    pub(super) batch: Batch,
    /// The view, shared with readers.
    pub(super) view: Option<(Digest, Arc<View>)>,
    /// When it was handed over, for the few rows that come without a time (Unix milliseconds).
    pub(super) now_ms: i64,
    /// The newest entry of the log that its view was made with; see [`Store::record_over`](crate::Store::record_over).
    pub(super) over: Option<u64>,
}

/// What a commit found out about one batch.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Row of the batch's view.
    pub(super) view_row: Option<i64>,
    /// The batch's last node, as recorded.
    pub(super) tip: Option<(Digest, Tip)>,
}

/// Owner and depth of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tip {
    /// The conversation that recorded it first.
    pub(super) conversation: Arc<str>,
    /// Number of messages of the prefix.
    pub(super) depth: usize,
}

/// A value of a queued batch; `seq` is the last batch that carries it.
#[derive(Debug)]
struct Queued<T> {
    seq: u64,
    value: T,
}

/// What waits to be written.
#[derive(Default)]
struct Line {
    /// The last batch that waits no more: they are written in the order in which they were queued.
    settled: u64,
    nodes: HashMap<Digest, Queued<Tip>>,
    views: HashMap<Digest, Queued<Arc<View>>>,
    originals: HashMap<String, Queued<(Arc<Work>, usize)>>,
    deepest: HashMap<Arc<str>, Queued<usize>>,
    recalled: HashMap<Digest, Queued<Recalled>>,
}

/// The state itself; lives behind one short-held lock.
pub(super) struct Recent {
    seq: u64,
    queued: Line,
    /// Prefixes whose replies recalled something.
    with_recalled: HashSet<Digest>,
    view_rows: HashMap<Digest, i64>,
    view_cache: ViewCache,
    tips: LruCache<Digest, Tip>,
    deepest: LruCache<Arc<str>, usize>,
    /// When a conversation was last found for a request, in Unix milliseconds.
    used: LruCache<Arc<str>, i64>,
    /// The conversation that retention removes just now: nobody finds it any more.
    condemned: Option<Arc<str>>,
    /// How often something was removed: what was read meanwhile may be gone.
    pub(super) removals: u64,
    /// Newest row of a view, and of something recalled, that is known here.
    newest: (i64, i64),
    /// Why the last batch could not be written, while none has been since.
    pub(super) trouble: Option<Trouble>,
    /// Batches that could not be written since the start.
    pub(super) failures: u64,
    /// What is known of the database as a whole.
    pub(super) base: Base,
}

/// What is known of the database as a whole.
#[derive(Default)]
pub(super) struct Base {
    /// Which file it was when it was opened.
    pub(super) opened: Option<(u64, u64)>,
    /// Of a shared record: the newest entry of its log that is seen here.
    pub(super) applied: u64,
    /// Of a shared record: conversations that other processes wrote to since they were last asked for.
    pub(super) strange: HashSet<String>,
    /// Of a shared record: what they wrote of conversations, in this order; of much, the newest.
    pub(super) strange_updates: VecDeque<ConversationUpdate>,
}

/// Where a view is found.
pub(super) enum Found {
    /// In RAM.
    Here(Arc<View>),
    /// In this row.
    Row(i64),
}

impl Recent {
    /// Starts from what is on disk: digest and row of each view, and the prefixes whose replies recalled something.
    pub(super) fn new(view_rows: HashMap<Digest, i64>, with_recalled: HashSet<Digest>) -> Recent {
        let newest_view = view_rows.values().copied().max().unwrap_or(0);
        Recent {
            seq: 0,
            queued: Line::default(),
            with_recalled,
            view_rows,
            view_cache: ViewCache { lru: LruCache::unbounded(), bytes: 0 },
            tips: LruCache::new(TIPS),
            deepest: LruCache::new(TIPS),
            used: LruCache::new(TIPS),
            condemned: None,
            removals: 0,
            newest: (newest_view, 0),
            trouble: None,
            failures: 0,
            base: Base::default(),
        }
    }

    /// Takes in a batch that another process wrote.
    pub(super) fn learn(&mut self, work: &Work, applied: &Applied) {
        if let (Some(row), Some((digest, view))) = (applied.view_row, &work.view) {
            self.view_rows.insert(*digest, row);
            self.view_cache.put(row, view.clone());
        }
        if let Some(recalled) = &work.batch.recalled {
            self.with_recalled.insert(recalled.chain);
        }
        if let Some((chain, tip)) = &applied.tip {
            self.note_deepest(tip.conversation.clone(), tip.depth);
            self.tips.put(*chain, tip.clone());
        }
        let name = work.batch.owner();
        if !name.is_empty() && self.base.strange.len() < STRANGE {
            self.base.strange.insert(name.to_owned());
        }
        if let Some(update) = &work.batch.conversation {
            let updates = &mut self.base.strange_updates;
            if updates.len() == STRANGE_UPDATES {
                updates.pop_front();
            }
            updates.push_back(update.clone());
        }
    }

    /// Forgets a conversation that was removed, by whichever process.
    pub(super) fn lose(&mut self, conversation: &str, chains: &[Digest], views: &[i64]) {
        self.forget_rows(conversation, chains, views);
        self.base.strange.insert(conversation.to_owned());
        self.removals += 1;
        self.newest = (self.view_rows.values().copied().max().unwrap_or(0), 0);
    }

    fn forget_rows(&mut self, conversation: &str, chains: &[Digest], views: &[i64]) {
        for chain in chains {
            self.view_rows.remove(chain);
            self.with_recalled.remove(chain);
            self.tips.pop(chain);
        }
        views.iter().for_each(|row| self.view_cache.forget(*row));
        self.deepest.pop(conversation);
    }

    /// The newest rows of a view and of something recalled that are known here.
    pub(super) fn newest(&self) -> (i64, i64) {
        self.newest
    }

    /// Takes up what another process wrote, and what this one did a moment ago. What was read while something was removed
    /// may be gone, and is left for the next time.
    pub(super) fn catch_up(&mut self, views: &[(Digest, i64)], recalled: &[(Digest, i64)], removals: u64) {
        if self.condemned.is_some() || self.removals != removals {
            return;
        }
        let strange = views.iter().any(|(digest, row)| self.view_rows.get(digest) != Some(row));
        if strange {
            // Its conversations may go on further than was known.
            self.deepest.clear();
        }
        for (digest, row) in views {
            self.view_rows.insert(*digest, *row);
            self.newest.0 = self.newest.0.max(*row);
        }
        for (digest, row) in recalled {
            self.with_recalled.insert(*digest);
            self.newest.1 = self.newest.1.max(*row);
        }
    }

    /// Forgets a view whose row is gone.
    pub(super) fn forget_view(&mut self, digest: &Digest, row: i64) {
        if self.view_rows.get(digest) == Some(&row) {
            self.view_rows.remove(digest);
        }
        self.view_cache.forget(row);
    }

    /// Starts anew over an empty record; what is queued is still to be written.
    pub(super) fn start_anew(&mut self) {
        self.with_recalled = self.queued.recalled.keys().copied().collect();
        self.view_rows.clear();
        self.view_cache = ViewCache { lru: LruCache::unbounded(), bytes: 0 };
        self.tips.clear();
        self.deepest.clear();
        self.used.clear();
        self.newest = (0, 0);
        self.removals += 1;
    }

    /// Notes a batch that goes to the queue, and numbers it.
    pub(super) fn queue(&mut self, work: &Arc<Work>) -> u64 {
        self.seq += 1;
        let seq = self.seq;
        if let Some(update) = &work.batch.conversation {
            let name: Arc<str> = update.id.as_str().into();
            for node in &work.batch.nodes {
                let tip = Tip { conversation: name.clone(), depth: node.depth };
                // The first to record a node owns it.
                self.queued.nodes.entry(node.chain).and_modify(|q| q.seq = seq).or_insert(Queued { seq, value: tip });
            }
            if let Some(deepest) = work.batch.nodes.iter().map(|n| n.depth).max() {
                let entry = self.queued.deepest.entry(name).or_insert(Queued { seq, value: 0 });
                *entry = Queued { seq, value: entry.value.max(deepest) };
            }
        }
        // One that may come second is not seen before it stands.
        if let Some((digest, view)) = work.view.as_ref().filter(|_| work.over.is_none()) {
            self.queued.views.insert(*digest, Queued { seq, value: view.clone() });
        }
        if let Some(recalled) = &work.batch.recalled {
            self.with_recalled.insert(recalled.chain);
            self.queued.recalled.insert(recalled.chain, Queued { seq, value: recalled.clone() });
        }
        for (i, original) in work.batch.originals.iter().enumerate() {
            self.queued
                .originals
                .entry(original.id.clone())
                .and_modify(|q| q.seq = seq)
                .or_insert(Queued { seq, value: (work.clone(), i) });
        }
        seq
    }

    /// Notes that batch `seq` has been committed (`Some`) or given up (`None`).
    pub(super) fn settle(&mut self, seq: u64, work: &Work, applied: Option<Applied>) {
        self.queued.settled = self.queued.settled.max(seq);
        for node in &work.batch.nodes {
            remove(&mut self.queued.nodes, &node.chain, seq);
        }
        for original in &work.batch.originals {
            remove(&mut self.queued.originals, &original.id, seq);
        }
        if let Some(update) = &work.batch.conversation {
            remove(&mut self.queued.deepest, update.id.as_str(), seq);
        }
        if let Some((digest, _)) = &work.view {
            remove(&mut self.queued.views, digest, seq);
        }
        if let Some(recalled) = &work.batch.recalled {
            remove(&mut self.queued.recalled, &recalled.chain, seq);
        }
        let Some(applied) = applied else { return };
        if let (Some(row), Some((digest, view))) = (applied.view_row, &work.view) {
            self.view_rows.insert(*digest, row);
            self.view_cache.put(row, view.clone());
            if row == self.newest.0 + 1 {
                // Where rows are missing in between, another process wrote them: they are still to be read.
                self.newest.0 = row;
            }
        }
        if let Some((chain, tip)) = applied.tip {
            self.note_deepest(tip.conversation.clone(), tip.depth);
            self.tips.put(chain, tip);
        }
    }

    /// Notes that nothing up to batch `seq` will be committed.
    pub(super) fn give_up(&mut self, seq: u64) {
        let Line { settled, nodes, views, originals, deepest, recalled } = &mut self.queued;
        *settled = (*settled).max(seq);
        nodes.retain(|_, queued| queued.seq > seq);
        views.retain(|_, queued| queued.seq > seq);
        originals.retain(|_, queued| queued.seq > seq);
        deepest.retain(|_, queued| queued.seq > seq);
        recalled.retain(|_, queued| queued.seq > seq);
    }

    /// Whether every batch that was queued is committed or given up.
    pub(super) fn is_written(&self) -> bool {
        self.queued.settled == self.seq
    }

    /// The deepest prefix that has a view.
    pub(super) fn find_view(&mut self, chain: &[Digest]) -> Option<(usize, Found)> {
        for (i, digest) in chain.iter().enumerate().rev() {
            if let Some(queued) = self.queued.views.get(digest) {
                return Some((i, Found::Here(queued.value.clone())));
            }
            if let Some(&row) = self.view_rows.get(digest) {
                let found = self.view_cache.get(row).map_or(Found::Row(row), Found::Here);
                return Some((i, found));
            }
        }
        None
    }

    /// Keeps a view that was read from disk.
    pub(super) fn keep_view(&mut self, row: i64, view: Arc<View>) {
        self.view_cache.put(row, view);
    }

    /// A committed node, if it was used lately.
    pub(super) fn tip(&mut self, digest: &Digest) -> Option<Tip> {
        self.tips.get(digest).cloned()
    }

    /// Keeps a node that was read from disk.
    pub(super) fn keep_tip(&mut self, digest: Digest, tip: Tip) {
        self.tips.put(digest, tip);
    }

    /// A node that waits to be committed.
    pub(super) fn queued_node(&self, digest: &Digest) -> Option<Tip> {
        self.queued.nodes.get(digest).map(|q| q.value.clone())
    }

    /// An original that waits to be committed.
    pub(super) fn queued_original(&self, id: &str) -> Option<Original> {
        let (work, i) = &self.queued.originals.get(id)?.value;
        work.batch.originals.get(*i).cloned()
    }

    /// Whether replies to a prefix recalled something, and what the last of them did that waits to be committed.
    pub(super) fn recalled(&self, chain: &Digest) -> (bool, Option<Recalled>) {
        (self.with_recalled.contains(chain), self.queued.recalled.get(chain).map(|q| q.value.clone()))
    }

    /// The deepest node of a conversation: as known from commits, and as queued.
    pub(super) fn deepest(&mut self, conversation: &str) -> (Option<usize>, Option<usize>) {
        (self.deepest.get(conversation).copied(), self.queued.deepest.get(conversation).map(|q| q.value))
    }

    /// Keeps how deep a conversation goes; it only ever grows.
    pub(super) fn note_deepest(&mut self, conversation: Arc<str>, depth: usize) {
        let known = self.deepest.get(&conversation).copied().unwrap_or(0);
        self.deepest.put(conversation, known.max(depth));
    }

    /// Notes that a request continues a conversation. `false` when it is being removed: then it is as if it never was.
    pub(super) fn note_use(&mut self, conversation: &Arc<str>, now_ms: i64) -> bool {
        if self.is_condemned(conversation) {
            return false;
        }
        self.used.put(conversation.clone(), now_ms);
        true
    }

    /// Whether a conversation is being removed.
    pub(super) fn is_condemned(&self, conversation: &str) -> bool {
        self.condemned.as_deref() == Some(conversation)
    }

    /// Forgets a conversation that is about to be removed; `false` when it was used since `since_ms`, or is about to be
    /// written to.
    pub(super) fn condemn(&mut self, conversation: &str, chains: &[Digest], views: &[i64], since_ms: i64) -> bool {
        let in_use = self.used.peek(conversation).is_some_and(|at| *at > since_ms);
        let queued = self.queued.nodes.values().any(|n| &*n.value.conversation == conversation)
            || self
                .queued
                .originals
                .values()
                .any(|o| o.value.0.batch.originals.iter().any(|o| o.conversation == conversation))
            || chains.iter().any(|c| self.queued.views.contains_key(c) || self.queued.recalled.contains_key(c));
        if in_use || queued || self.queued.deepest.contains_key(conversation) {
            return false;
        }
        self.forget_rows(conversation, chains, views);
        self.condemned = Some(conversation.into());
        true
    }

    /// Notes that what was condemned is gone, or stays after all.
    pub(super) fn reprieve(&mut self) {
        self.condemned = None;
        self.removals += 1;
        // The numbers of removed rows are given again.
        self.newest = (self.view_rows.values().copied().max().unwrap_or(0), 0);
    }

    /// Starts again from what is on disk.
    pub(super) fn relearn(&mut self, view_rows: HashMap<Digest, i64>, with_recalled: HashSet<Digest>) {
        self.view_rows = view_rows;
        self.with_recalled.extend(with_recalled);
    }

    /// Whether nothing waits to be committed.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        let Line { nodes, views, originals, deepest, recalled, settled: _ } = &self.queued;
        nodes.len() + views.len() + originals.len() + deepest.len() + recalled.len() == 0
    }
}

/// Removes what batch `seq` queued, unless a later batch queued it again.
fn remove<K, T, Q>(map: &mut HashMap<K, Queued<T>>, key: &Q, seq: u64)
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ?Sized,
{
    if map.get(key).is_some_and(|q| q.seq <= seq) {
        map.remove(key);
    }
}

/// Parsed views by row, the least recently used dropped first, bounded by the bytes of their texts.
struct ViewCache {
    lru: LruCache<i64, (Arc<View>, usize)>,
    bytes: usize,
}

impl ViewCache {
    fn get(&mut self, row: i64) -> Option<Arc<View>> {
        self.lru.get(&row).map(|(view, _)| view.clone())
    }

    fn forget(&mut self, row: i64) {
        if let Some((_, old)) = self.lru.pop(&row) {
            self.bytes -= old;
        }
    }

    fn put(&mut self, row: i64, view: Arc<View>) {
        let bytes = view_bytes(&view);
        if let Some((_, (_, old))) = self.lru.push(row, (view, bytes)) {
            self.bytes -= old;
        }
        self.bytes += bytes;
        while self.bytes > VIEW_BYTES && self.lru.len() > 1 {
            if let Some((_, (_, old))) = self.lru.pop_lru() {
                self.bytes -= old;
            }
        }
    }
}

/// About how much RAM a view takes.
pub(super) fn view_bytes(view: &View) -> usize {
    let texts: usize = view
        .edits
        .iter()
        .map(|edit| match edit {
            Edit::Text { text, record, .. } => text.len() + record.len(),
            Edit::Arguments { arguments, record, .. } => arguments.len() + record.len(),
            Edit::Recalled { text, of, .. } => text.len() + 8 * of.len(),
            Edit::Fold { keep, brief, .. } => brief.len() + 8 * keep.len(),
        })
        .sum();
    texts + 160 * (view.edits.len() + 1)
}
