//! Whose tokens are whose: the prompt cut into stretches, each of one owner, by where the marks stand in it; and the tokens
//! of the stretches, which add up to those of the prompt.
//!
//! Pure arithmetic over byte places.

use std::collections::HashMap;

use memchr::memmem;

use super::marks::{Owner, Seen, Spot};
use crate::conversation::Tokens;
use crate::engine::vocabulary::Tokenized;

/// Longest words of a template's own before the first message that are taken for its opening.
const OPENING: usize = 64;

/// A stretch of the prompt that is one owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    owner: Owner,
    start: usize,
    end: usize,
}

/// Tokens by owner.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// What no message and no tool definition owns.
    pub(super) own: Tokens,
    /// Of the tool definitions, as far as they stand together.
    pub(super) tools: Tokens,
    /// What each message says, its marks included.
    pub(super) words: HashMap<usize, Tokens>,
    /// Each call.
    pub(super) calls: HashMap<(usize, usize), Tokens>,
    /// What messages share that could not be told apart, with its tokens.
    pub(super) together: Vec<(Vec<usize>, Tokens)>,
}

/// A stretch of the prompt, up to a byte.
#[derive(Debug)]
enum Stretch {
    Own,
    One(Owner),
    Together(Vec<usize>),
}

/// A prompt, and what is known of its text.
pub(super) struct Prompt<'a> {
    /// The rendering.
    pub(super) text: &'a str,
    /// Where its tokens stand.
    pub(super) places: &'a Tokenized,
    /// Texts of tokens that end a turn.
    pub(super) enders: &'a [String],
    /// How many messages it has.
    pub(super) messages: usize,
}

impl Prompt<'_> {
    /// Shares out the tokens: each belongs to the stretch in which it begins.
    pub(super) fn shares(&self, seen: &[Seen], spots: &[Spot<'_>]) -> Shares {
        let stretches = self.stretches(&self.runs(seen, spots));
        let mut out = Shares::default();
        let mut tokens = vec![0u32; stretches.len()];
        let (mut at, mut from) = (0, 0);
        for end in &self.places.ends {
            while at + 1 < stretches.len() && stretches[at].0 <= from {
                at += 1;
            }
            tokens[at] = tokens[at].saturating_add(1);
            from = *end;
        }
        for ((_, stretch), n) in stretches.into_iter().zip(tokens) {
            match stretch {
                Stretch::Own => out.own = out.own.saturating_add(n),
                Stretch::One(Owner::Tools) => out.tools = out.tools.saturating_add(n),
                Stretch::One(Owner::Words(i)) => *out.words.entry(i).or_default() += n,
                Stretch::One(Owner::Call(i, call)) => *out.calls.entry((i, call)).or_default() += n,
                Stretch::Together(who) => out.together.push((who, n)),
            }
        }
        out
    }

    /// The stretches that certainly belong to someone: from mark to mark, and as far beyond as the text is the string's.
    fn runs(&self, seen: &[Seen], spots: &[Spot<'_>]) -> Vec<Run> {
        let mut out: Vec<Run> = Vec::new();
        let bytes = self.text.as_bytes();
        for (i, mark) in seen.iter().enumerate() {
            let Some(spot) = spots.get(mark.spot) else { continue };
            let before = out.last().map_or(0, |r| r.end.min(mark.at));
            let behind = seen.get(i + 1).map_or(bytes.len(), |next| next.at);
            let (head, tail) = spot.text.as_bytes().split_at(spot.at);
            let same = |a: &u8, b: &u8| a == b;
            let back =
                bytes[before..mark.at].iter().rev().zip(head.iter().rev()).take_while(|(a, b)| same(a, b)).count();
            let on = bytes[mark.at..behind].iter().zip(tail).take_while(|(a, b)| same(a, b)).count();
            let (start, end) = (self.boundary(mark.at - back, mark.at), self.boundary(mark.at + on, behind));
            match out.last_mut() {
                Some(last) if last.owner == spot.owner => last.end = end.max(last.end),
                _ => out.push(Run { owner: spot.owner, start, end }),
            }
        }
        out
    }

    /// The next place between two characters.
    fn boundary(&self, at: usize, limit: usize) -> usize {
        (at..=limit).find(|at| self.text.is_char_boundary(*at)).unwrap_or(limit)
    }

    /// The whole prompt in stretches, each with its end.
    fn stretches(&self, runs: &[Run]) -> Vec<(usize, Stretch)> {
        let mut out: Vec<(usize, Stretch)> = Vec::new();
        let mut next = 0;
        let mut before: Option<Run> = None;
        for run in runs {
            match before {
                None => {
                    let cut = self.opening(run);
                    let missing = missing(next, run.owner);
                    // Messages that are not seen before the first that is: what stands there is theirs.
                    out.push((cut, if missing.is_empty() { Stretch::Own } else { Stretch::Together(missing) }));
                }
                Some(last) => {
                    let missing = missing(next, run.owner);
                    let (first, second) = self.cuts(&last, run, !missing.is_empty());
                    out.push((first, Stretch::One(last.owner)));
                    if second > first {
                        out.push((second, Stretch::Together(missing)));
                    }
                }
            }
            next = next.max(run.owner.message().map_or(0, |at| at + 1));
            before = Some(*run);
        }
        let whole = self.text.len();
        let rest: Vec<usize> = (next..self.messages).collect();
        match before {
            None if rest.is_empty() => {}
            None => out.push((whole, Stretch::Together(rest))),
            Some(last) => {
                let end = self.closing(last.end, whole).unwrap_or(last.end);
                out.push((end, Stretch::One(last.owner)));
                if !rest.is_empty() {
                    let until = self.last_closing(end, whole).unwrap_or(end);
                    out.push((until, Stretch::Together(rest)));
                }
                out.push((whole, Stretch::Own));
            }
        }
        if out.last().is_none_or(|last| last.0 < whole) {
            out.push((whole, Stretch::Own));
        }
        // Places are looked for one by one; none may lie before the one before it.
        let mut least = 0;
        for (end, _) in &mut out {
            *end = least.max(*end);
            least = *end;
        }
        out
    }

    /// Where the first owner's stretch begins.
    fn opening(&self, run: &Run) -> usize {
        if run.owner == Owner::Words(0) && run.start <= OPENING && !self.text[..run.start].contains('\n') {
            return 0;
        }
        if let Some(end) = self.last_ender(0, run.start) {
            return end;
        }
        if run.start <= OPENING { 0 } else { self.last_special(0, run.start).unwrap_or(run.start) }
    }

    /// Where the stretch of one owner ends and that of the next begins; between them is what `more` messages share that
    /// are not seen.
    fn cuts(&self, last: &Run, next: &Run, more: bool) -> (usize, usize) {
        let (from, to) = (last.end.min(next.start), next.start);
        if last.owner.message().is_some() && last.owner.message() == next.owner.message() {
            let cut = match next.owner {
                Owner::Call(..) if matches!(last.owner, Owner::Call(..)) => {
                    self.first_special(from, to).unwrap_or(from)
                }
                _ => from,
            };
            return (cut, cut);
        }
        let first = match next.owner {
            // The words that introduce the tools are theirs.
            Owner::Tools => self.ender(from, to).unwrap_or(from),
            _ => self.closing(from, to).unwrap_or(from),
        };
        // Where nothing tells them from what opens the next, they have it all.
        let second = if more { self.last_closing(first, to).filter(|at| *at > first).unwrap_or(to) } else { first };
        (first, second)
    }

    /// Where what closes a message ends: behind the token that ends a turn, else behind the first token that is cut at,
    /// else at a line break.
    fn closing(&self, from: usize, to: usize) -> Option<usize> {
        if let Some(end) = self.ender(from, to).or_else(|| self.first_special(from, to)) {
            return Some(end);
        }
        let between = &self.text[from..to];
        let words = between.trim_end_matches(['\n', ' ']);
        words.rfind('\n').map(|at| from + at + 1)
    }

    /// As [`Prompt::closing`], of the last of several messages.
    fn last_closing(&self, from: usize, to: usize) -> Option<usize> {
        self.last_ender(from, to).or_else(|| {
            let end = self.last_special(from, to)?;
            // The last one opens the next message.
            self.last_special(from, end - 1)
        })
    }

    /// Behind the first text that ends a turn, and the white space after it.
    fn ender(&self, from: usize, to: usize) -> Option<usize> {
        let between = &self.text.as_bytes()[from..to];
        let ends = self.enders.iter().filter_map(|e| Some(memmem::find(between, e.as_bytes())? + e.len()));
        ends.min().map(|end| self.behind_space(from + end, to))
    }

    /// Behind the last text that ends a turn, and the white space after it.
    fn last_ender(&self, from: usize, to: usize) -> Option<usize> {
        let between = &self.text.as_bytes()[from..to];
        let ends = self.enders.iter().filter_map(|e| Some(memmem::rfind(between, e.as_bytes())? + e.len()));
        ends.max().map(|end| self.behind_space(from + end, to))
    }

    fn behind_space(&self, at: usize, limit: usize) -> usize {
        let space = self.text.as_bytes()[at..limit].iter().take_while(|b| matches!(b, b'\n' | b' ' | b'\r')).count();
        at + space
    }

    fn first_special(&self, from: usize, to: usize) -> Option<usize> {
        let ends = &self.places.specials;
        ends.get(ends.partition_point(|end| *end <= from)).copied().filter(|end| *end <= to)
    }

    fn last_special(&self, from: usize, to: usize) -> Option<usize> {
        let ends = &self.places.specials;
        ends.get(ends.partition_point(|end| *end <= to).checked_sub(1)?).copied().filter(|end| *end > from)
    }
}

/// The messages that should stand before an owner and were not seen.
fn missing(next: usize, owner: Owner) -> Vec<usize> {
    owner.message().map_or_else(Vec::new, |at| (next..at).collect())
}
