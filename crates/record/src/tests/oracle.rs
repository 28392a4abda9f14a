//! `locate` and `view` against a map in RAM, over random tries, before and after a restart.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// One request: goes on from a prefix of an earlier history.
#[derive(Debug, Clone)]
struct Step {
    history: prop::sample::Index,
    keep: prop::sample::Index,
    add: Vec<u8>,
    view: Option<(prop::sample::Index, u8)>,
    wait: bool,
    probe: (prop::sample::Index, prop::sample::Index, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let probe = (index(), index(), 0..4u8);
    let fields = (
        index(),
        index(),
        prop::collection::vec(0..3u8, 0..6),
        any::<Option<(prop::sample::Index, u8)>>(),
        any::<bool>(),
        probe,
    );
    fields.prop_map(|(history, keep, add, view, wait, probe)| Step { history, keep, add, view, wait, probe })
}

#[derive(Default)]
struct Oracle {
    nodes: HashMap<Digest, (String, usize)>,
    deepest: HashMap<String, usize>,
    views: HashMap<Digest, View>,
}

impl Oracle {
    fn locate(&self, chain: &[Digest]) -> Option<Located> {
        let (conversation, depth) = chain.iter().rev().find_map(|d| self.nodes.get(d))?;
        let conversation_depth = self.deepest[conversation];
        Some(Located { depth: *depth, conversation: conversation.clone(), conversation_depth })
    }

    fn check(&self, store: &Store, chain: &[Digest]) {
        assert_eq!(store.locate(chain).unwrap(), self.locate(chain));
        let want = chain.iter().enumerate().rev().find_map(|(i, d)| self.views.get(d).map(|v| (i, v.clone())));
        let got = store.view(chain).unwrap().map(|(i, v)| (i, (*v).clone()));
        assert_eq!(got, want);
    }

    fn step(&mut self, store: &Store, histories: &mut Vec<Vec<String>>, step: &Step) {
        let old = step.history.get(histories);
        let mut texts = old[..step.keep.index(old.len() + 1)].to_vec();
        texts.extend(step.add.iter().map(u8::to_string));
        if texts.is_empty() {
            return;
        }
        let chain = chain_of(&texts);
        self.check(store, &chain);
        // As the proxy does: go on with a conversation whose end this is, else fork.
        let located = store.locate(&chain).unwrap();
        let known = located.as_ref().map_or(0, |l| l.depth);
        let id = match &located {
            Some(l) if l.depth == l.conversation_depth => l.conversation.clone(),
            _ => format!("c{}", self.deepest.len()),
        };
        let mut batch = batch(&id, &texts, known);
        let update = batch.conversation.as_mut().unwrap();
        update.parent = located.filter(|l| l.conversation != id).map(|l| (l.conversation, l.depth));
        if let Some((at, content)) = &step.view {
            let at = at.index(chain.len());
            let view = view_of(at + 1, vec![text_edit(at, &content.to_string())]);
            batch.view = Some((chain[at], view.clone()));
            self.views.insert(chain[at], view);
        }
        if step.wait {
            runtime().block_on(store.record(batch)).unwrap();
        } else {
            store.record_later(batch).unwrap();
        }
        for (at, digest) in chain.iter().enumerate().skip(known) {
            self.nodes.insert(*digest, (id.clone(), at + 1));
        }
        let deepest = self.deepest.entry(id).or_default();
        *deepest = (*deepest).max(if known < chain.len() { chain.len() } else { 0 });
        histories.push(texts);
        self.check(store, &chain);
    }
}

/// Some history, cut somewhere and gone on with unheard-of messages.
fn probe(
    histories: &[Vec<String>],
    (history, cut, more): &(prop::sample::Index, prop::sample::Index, u8),
) -> Vec<Digest> {
    let texts = history.get(histories);
    let mut texts = texts[..cut.index(texts.len() + 1)].to_vec();
    texts.extend((0..*more).map(|i| format!("unheard of {i}")));
    chain_of(&texts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn locate_and_view_agree_with_a_map(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let mut oracle = Oracle::default();
        let mut histories = vec![vec![]];
        for (i, step) in steps.iter().enumerate() {
            oracle.step(&store, &mut histories, step);
            oracle.check(&store, &probe(&histories, &step.probe));
            if i == steps.len() / 2 {
                drop(store);
                store = Store::open(dir.path()).unwrap();
            }
        }
        drop(store);
        let readers = [Store::open(dir.path()).unwrap(), Store::open_readonly(dir.path()).unwrap()];
        for store in &readers {
            for texts in &histories {
                oracle.check(store, &chain_of(texts));
            }
            for step in &steps {
                oracle.check(store, &probe(&histories, &step.probe));
            }
        }
    }
}
