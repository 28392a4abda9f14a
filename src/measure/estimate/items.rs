//! A conversation in items that cost something, and the sum of a view of it. What an item costs is a row at first and
//! tokens in the end; both add up alike.

use std::ops::{Add, Range, Sub};

use crate::conversation::Tokens;
use crate::conversation::edit::{Edit, View};
use crate::plan::{Cost, Facts};

/// A message: its text with what is put around it, its calls, its media.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Item<T> {
    pub(super) text: T,
    pub(super) calls: Vec<T>,
    pub(super) media: T,
}

/// A conversation with the edits of a view.
#[derive(Debug, Clone)]
pub(super) struct Items<'a, T> {
    pub(super) system: T,
    pub(super) tools: T,
    pub(super) body: Vec<Item<T>>,
    pub(super) view: &'a View,
    /// What each edit put in place; see [`Facts::edit_costs`].
    pub(super) edits: Vec<T>,
}

impl<T: Copy + Default + Add<Output = T>> Item<T> {
    fn calls(&self) -> T {
        self.calls.iter().fold(T::default(), |sum, c| sum + *c)
    }

    pub(super) fn map<U>(&self, to: &mut impl FnMut(&T) -> U) -> Item<U> {
        Item { text: to(&self.text), calls: self.calls.iter().map(&mut *to).collect(), media: to(&self.media) }
    }
}

impl<'a, T: Copy + Default + Add<Output = T> + Sub<Output = T>> Items<'a, T> {
    /// What goes before the body.
    pub(super) fn head(&self) -> T {
        self.system + self.tools
    }

    /// What the first messages of the view cost, head included.
    pub(super) fn total(&self, upto: usize) -> T {
        self.head() + self.span(0..upto, upto)
    }

    /// What a run of the first `upto` messages of the view costs.
    fn span(&self, range: Range<usize>, upto: usize) -> T {
        let mut costs: Vec<T> = self.body[..upto].iter().map(|item| item.text + item.calls() + item.media).collect();
        let mut brief = T::default();
        for (edit, put) in self.view.edits.iter().zip(&self.edits) {
            match edit {
                Edit::Text { at, .. } if *at < upto => costs[*at] = *put + self.body[*at].calls(),
                Edit::Arguments { at, call, .. } if *at < upto => {
                    let before = self.body[*at].calls.get(*call).copied().unwrap_or_default();
                    costs[*at] = costs[*at] - before + *put;
                }
                Edit::Fold { from, to, keep, .. } if *to <= upto => {
                    brief = *put;
                    (*from..*to).filter(|i| !keep.contains(i)).for_each(|i| costs[i] = T::default());
                }
                _ => {}
            }
        }
        costs[range].iter().fold(brief, |sum, c| sum + *c)
    }

    /// The same with everything turned into something else.
    pub(super) fn map<U>(&self, mut to: impl FnMut(&T) -> U) -> Items<'a, U> {
        Items {
            system: to(&self.system),
            tools: to(&self.tools),
            body: self.body.iter().map(|item| item.map(&mut to)).collect(),
            view: self.view,
            edits: self.edits.iter().map(&mut to).collect(),
        }
    }
}

impl Items<'_, f64> {
    /// Facts that add up to `before` for head and the first `known` messages, and to `new` for the others. What these are more
    /// than the middle costs is laid on each item by how far its cost may be off (`doubts`): one that is in doubt says
    /// nothing of the others.
    pub(super) fn facts(&self, doubts: &Items<'_, f64>, known: usize, before: f64, new: f64) -> Facts {
        let (first, doubted) = (self.total(known), doubts.total(known));
        let (whole, doubted_whole) = (self.total(self.body.len()), doubts.total(self.body.len()));
        let old = Surplus::of(before, first, doubted);
        let new = Surplus::of(new, whole - first, doubted_whole - doubted);
        // Each figure rounded by itself would add up to another sum over a long history.
        let mut carried = 0.0;
        let mut whole = |n: f64| {
            carried += n;
            let out = carried.round().max(0.0);
            carried -= out;
            out as Tokens
        };
        let system = whole(old.laid(self.system, doubts.system));
        let tools = whole(old.laid(self.tools, doubts.tools));
        let part = |at: usize| if at < known { &old } else { &new };
        let mut costs = Vec::with_capacity(self.body.len());
        for (at, (item, doubt)) in self.body.iter().zip(&doubts.body).enumerate() {
            let mut laid = |n: f64, doubt: f64| whole(part(at).laid(n, doubt));
            costs.push(Cost {
                text: laid(item.text, doubt.text),
                calls: item.calls.iter().zip(&doubt.calls).map(|(n, doubt)| laid(*n, *doubt)).collect(),
                media: laid(item.media, doubt.media),
            });
        }
        let edits = self.view.edits.iter().zip(&self.edits).zip(&doubts.edits);
        let put = edits.map(|((edit, n), doubt)| match edit {
            Edit::Text { at, .. } | Edit::Arguments { at, .. } => part(*at).laid(*n, *doubt).round() as Tokens,
            Edit::Fold { from, .. } => part(*from).laid(*n, *doubt).round() as Tokens,
        });
        let edit_costs = put.collect();
        Facts { system, tools, costs, edit_costs, view: self.view.clone(), ..Facts::default() }
    }
}

/// How the items of a part come to its total.
struct Surplus {
    /// Each is this many times its middle cost,
    factor: f64,
    /// and so many deviations more.
    deviations: f64,
}

impl Surplus {
    /// For a part that is to cost `target`, and costs `sum` in the middle.
    fn of(target: f64, sum: f64, doubts: f64) -> Surplus {
        let target = target.max(0.0);
        if target > sum && doubts > 0.0 {
            return Surplus { factor: 1.0, deviations: (target - sum) / doubts };
        }
        Surplus { factor: if sum > 0.0 { target / sum } else { 1.0 }, deviations: 0.0 }
    }

    fn laid(&self, n: f64, doubt: f64) -> f64 {
        n * self.factor + doubt * self.deviations
    }
}
