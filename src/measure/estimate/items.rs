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
                Edit::Recalled { at, .. } if *at < upto => costs[*at] = costs[*at] + *put,
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
    /// Facts that add up to `before` for head and the first `known` messages, and to `after` for the others.
    pub(super) fn facts(&self, known: usize, before: f64, after: f64) -> Facts {
        let factor = |target: f64, sum: f64| if sum > 0.0 { target.max(0.0) / sum } else { 1.0 };
        let all = self.total(self.body.len());
        let (head_factor, old_factor, new_factor) = match known {
            0 => (factor(after, all), 1.0, factor(after, all)),
            _ => {
                let old = self.total(known);
                (factor(before, old), factor(before, old), factor(after, all - old))
            }
        };
        // Each figure rounded by itself would add up to another sum over a long history.
        let mut carried = 0.0;
        let mut whole = |n: f64| {
            carried += n;
            let out = carried.round().max(0.0);
            carried -= out;
            out as Tokens
        };
        let (system, tools) = (whole(self.system * head_factor), whole(self.tools * head_factor));
        let factor = |at: usize| if at < known { old_factor } else { new_factor };
        let mut costs = Vec::with_capacity(self.body.len());
        for (at, item) in self.body.iter().enumerate() {
            let scaled = item.map(&mut |n| whole(n * factor(at)));
            costs.push(Cost { text: scaled.text, calls: scaled.calls, media: scaled.media });
        }
        let put = self.view.edits.iter().zip(&self.edits).map(|(edit, cost)| {
            let (Edit::Text { at, .. }
            | Edit::Recalled { at, .. }
            | Edit::Arguments { at, .. }
            | Edit::Fold { from: at, .. }) = edit;
            (cost * factor(*at)).round() as Tokens
        });
        let edit_costs = put.collect();
        Facts { system, tools, costs, edit_costs, view: self.view.clone(), ..Facts::default() }
    }
}
