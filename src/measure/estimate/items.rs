//! A conversation in items that cost something, and the sum of a view of it. What an item costs is a row at first and
//! tokens in the end; both add up alike.

use std::collections::HashMap;
use std::ops::{Add, Sub};

use crate::brief;
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

    /// The same before a template that writes no calls.
    pub(super) fn without_calls(mut self) -> Item<T> {
        self.calls.fill(T::default());
        self
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
        let edited = Edited::of(self.view, &self.edits);
        let costs = self.body[..upto].iter().enumerate().map(|(at, item)| edited.cost(at, item, upto));
        self.head() + costs.fold(edited.brief(upto), |sum, cost| sum + cost)
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

/// What the edits of a view make of the cost of each message.
pub(super) struct Edited<'a, T> {
    view: &'a View,
    /// What each edit put in place.
    put: &'a [T],
    /// The edits of single messages, in their order.
    of_message: HashMap<usize, Vec<usize>>,
    folds: Vec<usize>,
}

impl<'a, T: Copy + Default + Add<Output = T> + Sub<Output = T>> Edited<'a, T> {
    pub(super) fn of(view: &'a View, put: &'a [T]) -> Edited<'a, T> {
        let mut out = Edited { view, put, of_message: HashMap::new(), folds: Vec::new() };
        for (nth, edit) in view.edits.iter().enumerate() {
            match edit {
                Edit::Text { at, .. } | Edit::Arguments { at, .. } | Edit::Recalled { at, .. } => {
                    out.of_message.entry(*at).or_default().push(nth)
                }
                Edit::Fold { .. } => out.folds.push(nth),
            }
        }
        out
    }

    /// What the brief of a fold costs, among the first `upto` messages.
    pub(super) fn brief(&self, upto: usize) -> T {
        let last = self.folds.iter().rfind(|nth| matches!(self.view.edits[**nth], Edit::Fold { to, .. } if to <= upto));
        last.map_or_else(T::default, |nth| self.put[*nth])
    }

    /// What a message costs, among the first `upto`.
    pub(super) fn cost(&self, at: usize, item: &Item<T>, upto: usize) -> T {
        let folded = |nth: &&usize| match &self.view.edits[**nth] {
            Edit::Fold { from, to, keep, .. } => *to <= upto && (*from..*to).contains(&at) && !keep.contains(&at),
            _ => false,
        };
        let fold = self.folds.iter().rfind(folded).copied();
        let whole = if fold.is_some() { T::default() } else { item.text + item.calls() + item.media };
        let own = self.of_message.get(&at).into_iter().flatten().filter(|nth| fold.is_none_or(|fold| **nth > fold));
        own.fold(whole, |cost, nth| match &self.view.edits[*nth] {
            Edit::Text { .. } => self.put[*nth] + item.calls(),
            Edit::Arguments { call, .. } => cost - item.calls.get(*call).copied().unwrap_or_default() + self.put[*nth],
            Edit::Recalled { .. } => cost + self.put[*nth],
            Edit::Fold { .. } => cost,
        })
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
        let told = brief::told(self.view);
        Facts { system, tools, costs, edit_costs, told, view: self.view.clone(), ..Facts::default() }
    }
}
