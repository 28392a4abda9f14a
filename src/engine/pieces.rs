//! Where a prompt may be cut so that the counts of the pieces add up to the count of the whole.
//!
//! llama.cpp takes the special tokens out of a text first, the longest first, and tokenizes what lies between them piece
//! by piece, each on its own. So behind a special token that no other one can overlap, wherever it stands, the count
//! starts afresh. Which tokens these are is worked out once a vocabulary, from their texts alone.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, Anchored, MatchKind, StartKind};

/// A token that llama.cpp looks for before all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    /// Its text.
    pub(super) text: String,
    /// It swallows the white space before it.
    pub(super) strips_left: bool,
    /// It swallows the white space behind it.
    pub(super) strips_right: bool,
    /// It is not a word of texts.
    pub(super) control: bool,
}

/// The places where a prompt may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Finds the tokens behind which to cut; `None` where there are none.
    find: Option<AhoCorasick>,
    /// The tokens it finds.
    cutters: Vec<Special>,
}

/// A piece of a prompt: a text, and the special token that ends it but for the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The end of the text that is tokenized; special tokens may be in it, too.
    pub(super) words: usize,
    /// The end of the piece, what its token swallows included.
    pub(super) end: usize,
    /// Whether a special token ends it.
    pub(super) special: bool,
    /// Whether that token is no word of texts, or the text ends.
    pub(super) control: bool,
}

impl Cuts {
    /// Works out which of the tokens are safe.
    pub(super) fn new(specials: &[Special]) -> Cuts {
        let mut prefixes: HashSet<&str> = HashSet::new();
        let mut suffixes: HashSet<&str> = HashSet::new();
        let proper = |text: &str| text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
        for special in specials {
            for at in proper(&special.text) {
                prefixes.insert(&special.text[..at]);
                suffixes.insert(&special.text[at..]);
            }
        }
        // Tokens of nothing but white space, or with some at an end, meddle with those that swallow it.
        let spacious = specials.iter().any(|s| spacious(&s.text));
        let safe = |s: &&Special| {
            let apart = proper(&s.text)
                .iter()
                .all(|at| !suffixes.contains(&s.text[..*at]) && !prefixes.contains(&s.text[*at..]));
            let plain = !s.strips_left && !s.strips_right;
            !s.text.is_empty() && apart && !spacious_ends(&s.text) && (plain || !spacious)
        };
        let candidates: Vec<&Special> = specials.iter().filter(safe).collect();
        let inside = contained(&candidates, specials);
        let cutters: Vec<&Special> = candidates.into_iter().filter(|s| !inside.contains(s.text.as_str())).collect();
        let find = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Unanchored)
            .build(cutters.iter().map(|s| s.text.as_bytes()))
            .ok()
            .filter(|_| !cutters.is_empty());
        Cuts { find, cutters: cutters.into_iter().cloned().collect() }
    }

    /// A control token behind which a text begins afresh, and which swallows nothing.
    pub(super) fn divider(&self) -> Option<&str> {
        let plain = |s: &&Special| s.control && !s.strips_left && !s.strips_right;
        self.cutters.iter().find(plain).map(|s| s.text.as_str())
    }

    /// The pieces of a text, in order.
    pub(super) fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Piece> + 'a {
        let bytes = text.as_bytes();
        let mut from = 0;
        let inner = self.find.iter().flat_map(move |find| {
            find.find_iter(bytes).map(move |m| {
                let cutter = &self.cutters[m.pattern().as_usize()];
                let kept = if cutter.strips_left {
                    bytes[from..m.start()].iter().rposition(|b| !c_space(*b)).map_or(0, |at| at + 1)
                } else {
                    m.start() - from
                };
                let space = bytes[m.end()..].iter().take_while(|b| cutter.strips_right && c_space(**b)).count();
                let words = from + kept;
                from = m.end() + space;
                Piece { words, end: from, special: true, control: cutter.control }
            })
        });
        let last = Piece { words: text.len(), end: text.len(), special: false, control: true };
        inner.chain(std::iter::once(last))
    }
}

/// The candidates that stand within the text of another token: where that one is found, they are not.
fn contained<'a>(candidates: &[&'a Special], specials: &[Special]) -> HashSet<&'a str> {
    let Ok(find) = AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .start_kind(StartKind::Unanchored)
        .build(candidates.iter().map(|s| s.text.as_bytes()))
    else {
        return candidates.iter().map(|s| s.text.as_str()).collect();
    };
    let mut out = HashSet::new();
    for special in specials {
        let input = aho_corasick::Input::new(special.text.as_bytes()).anchored(Anchored::No);
        for m in find.find_overlapping_iter(input) {
            if m.len() < special.text.len() {
                out.insert(candidates[m.pattern().as_usize()].text.as_str());
            }
        }
    }
    out
}

/// White space as C's `isspace` has it, which llama.cpp strips by.
pub(super) fn c_space(b: u8) -> bool {
    matches!(b, b' ' | 0x09..=0x0D)
}

fn spacious(text: &str) -> bool {
    text.is_empty() || spacious_ends(text)
}

fn spacious_ends(text: &str) -> bool {
    text.bytes().next().is_some_and(c_space) || text.bytes().last().is_some_and(c_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str) -> Special {
        Special { text: text.into(), strips_left: false, strips_right: false, control: true }
    }

    fn cut(specials: &[Special], text: &str) -> Vec<String> {
        let cuts = Cuts::new(specials);
        let mut from = 0;
        cuts.pieces(text).map(|p| text[std::mem::replace(&mut from, p.end)..p.end].to_owned()).collect()
    }

    #[test]
    fn cut_behind_tokens_that_nothing_can_overlap() {
        let plain = [special("<a>"), special("<b>")];
        assert_eq!(cut(&plain, "x<a>y<b><a>"), ["x<a>", "y<b>", "<a>", ""]);
        assert_eq!(cut(&plain, ""), [""]);
        assert_eq!(cut(&plain, "no token"), ["no token"]);
        for (specials, why) in [
            (vec![special("<a>"), special("x<a>y")], "within another"),
            (vec![special("<a>"), special("><b")], "its end begins another"),
            (vec![special("<a>"), special("x<")], "its beginning ends another"),
            (vec![special("<a><")], "it overlaps itself"),
            (vec![special(" <a>")], "white space at an end"),
            (vec![Special { strips_right: true, ..special("<a>") }, special("\n\n")], "white space may be a token"),
        ] {
            assert_eq!(cut(&specials, "1<a>2 <a><3").len(), 1, "{why}");
        }
        assert_eq!(cut(&[special("<a>"), special("<a>x<b>")], "1<a>2"), ["1<a>2"]);
    }

    #[test]
    fn what_a_token_swallows_belongs_to_its_piece() {
        let strips = [Special { strips_right: true, ..special("<a>") }];
        assert_eq!(cut(&strips, "1<a>\n 2<a> \n"), ["1<a>\n ", "2<a> \n", ""]);
        let left = [Special { strips_left: true, ..special("<a>") }];
        let words: Vec<usize> = Cuts::new(&left).pieces("1 \n<a> <a>2").map(|p| p.words).collect();
        assert_eq!(words, [1, 6, 11]);
    }
}
