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
    /// Item by item, from these and others of the same conversation.
    pub(super) fn zip(mut self, others: &Self, with: impl Fn(f64, f64) -> f64) -> Self {
        let each = |to: &mut f64, other: &f64| *to = with(*to, *other);
        each(&mut self.system, &others.system);
        each(&mut self.tools, &others.tools);
        for (item, other) in self.body.iter_mut().zip(&others.body) {
            each(&mut item.text, &other.text);
            item.calls.iter_mut().zip(&other.calls).for_each(|(to, other)| each(to, other));
            each(&mut item.media, &other.media);
        }
        self.edits.iter_mut().zip(&others.edits).for_each(|(to, other)| each(to, other));
        self
    }

    /// Facts that add up to `before` for head and the first `known` messages, shared out as these items cost, and to
    /// `after` for the others, shared out as the `new` ones do.
    pub(super) fn facts(&self, new: &Self, known: usize, before: f64, after: f64) -> Facts {
        let factor = |target: f64, sum: f64| if sum > 0.0 { target.max(0.0) / sum } else { 1.0 };
        let old_factor = factor(before, self.total(known));
        let new_factor = factor(after, new.total(new.body.len()) - new.total(known));
        // Each figure rounded by itself would add up to another sum over a long history.
        let mut carried = 0.0;
        let mut whole = |n: f64| {
            carried += n;
            let out = carried.round().max(0.0);
            carried -= out;
            out as Tokens
        };
        let (system, tools) = (whole(self.system * old_factor), whole(self.tools * old_factor));
        let part = |at: usize| if at < known { (self, old_factor) } else { (new, new_factor) };
        let mut costs = Vec::with_capacity(self.body.len());
        for at in 0..self.body.len() {
            let (items, factor) = part(at);
            let scaled = items.body[at].map(&mut |n| whole(n * factor));
            costs.push(Cost { text: scaled.text, calls: scaled.calls, media: scaled.media });
        }
        let put = self.view.edits.iter().enumerate().map(|(edit, of)| {
            let (Edit::Text { at, .. } | Edit::Arguments { at, .. } | Edit::Fold { from: at, .. }) = of;
            let (items, factor) = part(*at);
            (items.edits[edit] * factor).round() as Tokens
        });
        let edit_costs = put.collect();
        Facts { system, tools, costs, edit_costs, view: self.view.clone(), ..Facts::default() }
    }
}
