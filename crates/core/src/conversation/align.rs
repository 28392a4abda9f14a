//! What a client kept of a history that it rebuilt. Some (aider) put new texts of files and maps into the middle each time,
//! some (Qwen Code) trim old messages when a session is resumed: the chain breaks there, and most of what follows is the same.

use std::collections::BTreeSet;

use similar::DiffOp;
use similar::algorithms::{Capture, Compact, Replace, myers};

use super::Digest;
use super::edit::{DIGEST_OF, Edit, Rule, View};

/// Of five messages of the older history, how many must still be there for the newer one to be the same conversation.
const KEPT_OF_FIVE: usize = 3;

/// Where each message of an older history stands in a newer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    /// By index in the older history: the index in the newer one.
    to: Vec<Option<usize>>,
    /// Messages of the newer history.
    messages: usize,
}

impl Alignment {
    /// Compares what messages say, in order.
    pub fn of(old: &[Digest], new: &[Digest]) -> Alignment {
        let mut to = vec![None; old.len()];
        // As `capture_diff_slices` does it, which would bring all of its six algorithms into the program.
        let mut hook = Compact::new(Replace::new(Capture::new()), old, new);
        let Ok(()) = myers::diff(&mut hook, old, 0..old.len(), new, 0..new.len());
        for op in hook.into_inner().into_inner().into_ops() {
            if let DiffOp::Equal { old_index, new_index, len } = op {
                (0..len).for_each(|n| to[old_index + n] = Some(new_index + n));
            }
        }
        Alignment { to, messages: new.len() }
    }

    /// Whether the newer history is the older one, rebuilt: it is no shorter, most of the older one is still there, and some of
    /// that stands after the first difference. Where nothing does, a person went back and took another way; where it is
    /// shorter, somebody chose what to go on with.
    pub fn is_rebuilt(&self) -> bool {
        let kept = self.kept();
        let shared = self.to.iter().enumerate().take_while(|(at, to)| **to == Some(*at)).count();
        self.messages >= self.to.len() && kept > shared && kept * 5 >= self.to.len() * KEPT_OF_FIVE
    }

    /// Messages of the older history that are no longer there.
    pub fn gone(&self) -> impl Iterator<Item = usize> {
        self.to.iter().enumerate().filter(|(_, to)| to.is_none()).map(|(at, _)| at)
    }

    /// Messages of the older history that are still there, in order.
    pub fn kept(&self) -> usize {
        self.to.iter().flatten().count()
    }

    /// Messages of the newer history that stand in the place of as many others, between two that are still the same.
    pub fn replaced(&self) -> Vec<usize> {
        let (mut out, mut before) = (Vec::new(), (0, 0));
        for (old, new) in self.to.iter().enumerate().filter_map(|(old, new)| Some((old, (*new)?))) {
            if old - before.0 == new - before.1 {
                out.extend(before.1..new);
            }
            before = (old + 1, new + 1);
        }
        out
    }

    /// The edits of a view that still hold: those of messages that are there, and a fold where every message that its brief was
    /// made from is. Those are the messages in front of it, inside of it and, as far as it was read ([`View::read`]), behind it, but
    /// for what no brief is made from ([`View::unread`]). What is new in between (aider's map of the repository changes each turn)
    /// stays in view; where it cannot stay without what is folded, as a result cannot without its call, the fold does not hold.
    /// `alone`: whether a message of the newer history can. `changing`: those of [`Alignment::replaced`] that are likely to be
    /// replaced again. A text that speaks of another message's holds where nothing is missing, and a digest where nothing in front
    /// of it is: the model that made it read the question.
    pub fn carry(&self, view: &View, alone: impl Fn(usize) -> bool, changing: &[usize]) -> View {
        let were = view.unread().into_iter().filter_map(|at| self.to.get(at).copied().flatten());
        let changing: BTreeSet<usize> = were.chain(changing.iter().copied()).collect();
        View {
            messages: self.messages,
            edits: view.edits.iter().filter_map(|edit| self.carried(edit, &alone, &changing, view.read())).collect(),
            bare: view.bare,
            changing: changing.into_iter().collect(),
        }
    }

    /// What is left of an edit. `were_read`: how many messages of the older history the brief was made from.
    fn carried(
        &self,
        edit: &Edit,
        alone: &impl Fn(usize) -> bool,
        changing: &BTreeSet<usize>,
        were_read: usize,
    ) -> Option<Edit> {
        let place = |at: &usize| self.to.get(*at).copied().flatten();
        let mut edit = edit.clone();
        match &mut edit {
            Edit::Text { rule: Rule::Restore, .. } if self.to.contains(&None) => return None,
            Edit::Text { at, text, .. } if text.starts_with(DIGEST_OF) && !(0..*at).all(|at| place(&at).is_some()) => {
                return None;
            }
            Edit::Text { at, .. } | Edit::Arguments { at, .. } => *at = place(at)?,
            // Words of a message that is gone go, too.
            Edit::Recalled { at, of, .. } => {
                *at = place(at)?;
                *of = of.iter().map(place).collect::<Option<_>>()?;
            }
            Edit::Fold { from, to, keep, unread, read, .. } => {
                let last = to.checked_sub(1).filter(|last| last >= from)?;
                let (start, end) = (place(from)?, place(&last)? + 1);
                // The model that wrote the brief read what stands in front of the fold, too, and most of what stayed in view.
                let is_there = |at: usize| place(&at).is_some() || at >= *from && unread.contains(&at);
                if !(0..were_read).all(is_there) {
                    return None;
                }
                let ends = (*to..were_read).filter_map(|at| place(&at)).next_back().map_or(end, |last| last + 1);
                let known: Vec<usize> = (*from..*to).filter_map(|at| place(&at)).collect();
                let new = (start..end).filter(|at| known.binary_search(at).is_err());
                let kept = keep.iter().filter_map(place);
                let stay: BTreeSet<usize> = new.chain(kept).collect();
                if known.len() * 5 < (end - start) * KEPT_OF_FIVE || !stay.iter().all(|at| alone(*at)) {
                    return None;
                }
                // The brief was made before there was any of what is new.
                let beside: BTreeSet<usize> = stay.iter().copied().chain(end..ends).collect();
                *unread = beside.intersection(changing).copied().collect();
                (*from, *to, *keep, *read) = (start, end, stay.into_iter().collect(), Some(ends));
            }
        }
        Some(edit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(text: &str) -> Vec<Digest> {
        text.split(' ').map(|word| Digest::of(word.as_bytes())).collect()
    }

    fn rebuilt(old: &str, new: &str) -> bool {
        Alignment::of(&digests(old), &digests(new)).is_rebuilt()
    }

    #[test]
    fn a_history_with_another_middle_is_rebuilt_and_one_with_another_end_is_not() {
        assert!(rebuilt("example map1 u1 a1 files1 u2", "example map2 u1 a1 u2 a2 files2 u3"));
        assert!(rebuilt("u1 a1 u2 a2 u3", "u1 trimmed u2 a2 u3 a3 u4"));
        assert!(!rebuilt("u1 a1 u2 a2 u3 a3", "u1 a1 u2 a2 other"), "a fork");
        assert!(!rebuilt("u1 a1 u2 a2", "u1 a1 u2 a2 u3"), "a continuation");
        assert!(
            !rebuilt("example map1 u1 a1 u2 a2 u3", "example map2 other a9 u3"),
            "another session that begins alike"
        );
        assert!(!rebuilt("u1 a1 u2 a2 u3", "u1 u2 a2 u3"), "chosen from it");
        assert!(!rebuilt("", "u1"));
    }

    #[test]
    fn edits_move_with_their_messages() {
        let any = |_: usize| true;
        let text = |at: usize| Edit::Text {
            at,
            digest: Digest::default(),
            rule: Rule::Clear,
            text: "[cleared]".into(),
            record: "r".into(),
        };
        let fold = |from: usize, to: usize, keep: Vec<usize>| Edit::Fold {
            from,
            to,
            keep,
            brief: "b".into(),
            unread: vec![],
            read: Some(to),
            struck: vec![],
        };
        let alignment = Alignment::of(&digests("u1 a1 u2 a2 map1 u3"), &digests("new u1 a1 u2 a2 map2 u3"));
        let of = |edits: Vec<Edit>, messages: usize| View { messages, edits, ..View::default() };
        let view = of(vec![fold(1, 4, vec![2]), text(4), text(5)], 6);
        assert_eq!(alignment.carry(&view, any, &[]), of(vec![fold(2, 5, vec![3]), text(6)], 7));
        // What is new among the folded messages stays, if it can; without its ends a fold does not hold.
        let held = |old: &str, new: &str, alone: bool| {
            let view = of(vec![fold(1, 5, vec![])], 0);
            Alignment::of(&digests(old), &digests(new)).carry(&view, |_| alone, &[]).edits
        };
        let old = "u1 map1 a1 u2 a2 u3";
        assert_eq!(held(old, "u1 map1 a1 new u2 a2 u3", true), [fold(1, 6, vec![3])]);
        assert_eq!(held(old, "u1 map1 a1 new u2 a2 u3", false), []);
        assert_eq!(held(old, "u1 map1 map2 u2 a2 u3", true), [], "a1 is gone, and the brief was made from it");
        assert_eq!(held(old, "u1 map2 a1 u2 a2 u3", true), []);
        assert_eq!(held("u1 map1 a1 u2 a2 u3", "other map1 a1 u2 a2 u3", true), [], "it was read for the brief");
        assert_eq!(held(old, "u1 map1 n1 n2 n3 n4 a2 u3", true), []);
    }

    #[test]
    fn what_changes_with_each_request_is_in_no_brief_and_ends_none() {
        let any = |_: usize| true;
        let fold = |keep: Vec<usize>, unread: Vec<usize>| Edit::Fold {
            from: 1,
            to: 5,
            keep,
            brief: "b".into(),
            unread,
            read: Some(5),
            struck: vec![],
        };
        let (old, new) = (digests("u1 a1 map1 a2 u2 files1 a3 u3"), digests("u1 a1 map2 a2 u2 u3 a4 files2 a3 u4"));
        let alignment = Alignment::of(&old, &new);
        assert_eq!(alignment.replaced(), [2], "files1 was replaced by a whole step");
        let carried = |keep: Vec<usize>, unread: Vec<usize>| {
            let view = View { messages: 8, edits: vec![fold(keep, unread)], ..View::default() };
            alignment.carry(&view, any, &[2])
        };
        assert_eq!(carried(vec![], vec![]).edits, [], "the brief was made from it");
        assert_eq!(carried(vec![2], vec![]).edits, [], "it was read though it stayed in view");
        assert_eq!(carried(vec![], vec![]).unread(), [2], "the next brief is made without it");
        assert_eq!(carried(vec![2], vec![2]).edits, [fold(vec![2], vec![2])]);
    }

    #[test]
    fn what_was_recalled_goes_with_the_words_that_it_quotes() {
        let recalled =
            |at: usize, of: Vec<usize>| Edit::Recalled { at, digest: Digest::default(), text: "t".into(), of };
        let view = |edit: Edit| View { messages: 4, edits: vec![edit], ..View::default() };
        let alignment = Alignment::of(&digests("u1 map1 u2 u3"), &digests("u1 u2 u3"));
        let carried = |edit: Edit| alignment.carry(&view(edit), |_| true, &[]).edits;
        assert_eq!(carried(recalled(3, vec![0, 2])), [recalled(2, vec![0, 1])]);
        assert_eq!(carried(recalled(3, vec![0, 1])), []);
    }

    #[test]
    fn a_brief_goes_with_what_it_was_made_from_behind_its_fold() {
        let carried = |read: Option<usize>, unread: &[usize], new: &str| {
            let unread = unread.to_vec();
            let fold = Edit::Fold { from: 1, to: 3, keep: vec![], brief: "b".into(), unread, read, struck: vec![] };
            let view = View { messages: 6, edits: vec![fold], ..View::default() };
            let carried = Alignment::of(&digests("u1 a1 u2 a2 u3 a3"), &digests(new)).carry(&view, |_| true, &[4]);
            carried.edits.into_iter().next().map(|edit| (edit, carried.messages))
        };
        let fold = |unread: Vec<usize>, read: usize| {
            let read = Some(read);
            Some((Edit::Fold { from: 1, to: 3, keep: vec![], brief: "b".into(), unread, read, struck: vec![] }, 7))
        };
        let (same, other, longer) = ("u1 a1 u2 a2 u3 a3 u4", "u1 a1 u2 a2 x a3 u4", "u1 a1 u2 a2 new u3 a3");
        assert_eq!(carried(Some(3), &[], other), fold(vec![], 3), "it was not read");
        assert_eq!(carried(Some(5), &[], other), None);
        assert_eq!(carried(Some(4), &[], other), fold(vec![], 4));
        assert_eq!(carried(Some(5), &[], same), fold(vec![4], 5), "the next brief is made without it");
        assert_eq!(carried(Some(6), &[4], other), fold(vec![4], 6), "it was left out");
        assert_eq!(carried(Some(5), &[], longer), fold(vec![4], 6));
        assert_eq!(carried(None, &[], other), None, "nobody noted how far an older version read");
        assert_eq!(carried(None, &[], same), fold(vec![4], 6));
        let digest = |at: usize| Edit::Text {
            at,
            digest: Digest::default(),
            rule: Rule::Evict,
            text: format!("{DIGEST_OF}read by small: 9 lines").into(),
            record: "r".into(),
        };
        let view = View { messages: 6, edits: vec![digest(3), digest(5)], ..View::default() };
        let carried = Alignment::of(&digests("u1 a1 u2 a2 u3 a3"), &digests(other)).carry(&view, |_| true, &[]);
        assert_eq!(carried.edits, [digest(3)], "the model that made the other one read what was replaced");
    }
}
