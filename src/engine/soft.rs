//! Where a text may be cut so that the counts of its parts add up, told by the two ASCII characters at the place alone.
//!
//! A vocabulary of the kind `gpt2` divides a text by a regular expression before it merges anything. In all the expressions
//! named here a run of letters, or of digits, ends a word, whatever follows but an apostrophe (`'s` may belong to the word
//! before it), and no expression looks back. Vocabularies of the kinds `llama` and `gemma4` merge neighbors as long as the
//! result is a word of the vocabulary, and those of the kind `rwkv` take the longest word that stands at a place: two
//! characters that stand side by side in none of their words are never joined.

use std::collections::HashSet;

use super::pieces::Special;

/// Expressions that end a word behind a run of letters or digits, by the names that files give them
/// (`tokenizer.ggml.pre`; `llama-vocab.cpp` has the expressions); the first is that of files that name none. Not among
/// them: `superbpe`, whose words hold spaces; `poro-chat`, `bloom`, `viking`, whose words hold marks; `chameleon`, which
/// has expressions for the names of images; and those that no model which chats has.
pub(super) const ENDING: [&str; 69] = [
    "",
    "a.x-4.0",
    "afmoe",
    "bailingmoe",
    "bailingmoe2",
    "chatglm-bpe",
    "codeshell",
    "command-r",
    "dbrx",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-r1-qwen",
    "deepseek-v3",
    "default",
    "exaone",
    "exaone4",
    "falcon",
    "falcon-h1",
    "falcon3",
    "gigachat",
    "glm4",
    "glm5",
    "gpt-2",
    "gpt-4o",
    "granite-docling",
    "grok-2",
    "hunyuan",
    "hunyuan-dense",
    "hy_v4",
    "jais",
    "jais-2",
    "jina-v5-nano",
    "joyai-llm",
    "kanana2",
    "kimi-k2",
    "kormo",
    "laguna",
    "lfm2",
    "llada-moe",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "llama4",
    "megrez",
    "mellum",
    "mellum2",
    "midm-2.0",
    "minerva-7b",
    "minicpm5",
    "minimax-m2",
    "mpt",
    "olmo",
    "phi-2",
    "pixtral",
    "qwen2",
    "qwen35",
    "refact",
    "seed-coder",
    "smaug-bpe",
    "smollm",
    "solar-open",
    "spark2_5",
    "stablelm2",
    "starcoder",
    "talkie",
    "tekken",
    "trillion",
    "ufakzeka",
    "youtu",
];

/// Kinds of a place where a text may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Behind a run of letters or digits.
    Runs {
        /// Behind digits, too.
        digits: bool,
        /// Also where a space follows on letters.
        spaces: bool,
    },
    /// Between characters that stand side by side in no word.
    Words,
}

impl Rule {
    /// That of a kind of tokenizer and its expression, where it is known.
    pub(super) fn of(tokenizer: &str, pre: &str) -> Option<Rule> {
        match (tokenizer, pre) {
            ("llama" | "gemma4" | "rwkv", _) | ("gpt2", "gemma4" | "sarvam-moe") => Some(Rule::Words),
            // How digits are grouped depends on what follows them.
            ("gpt2", "tiny_aya" | "cohere2moe") => Some(Rule::Runs { digits: false, spaces: true }),
            // A word goes on behind a space.
            ("gpt2", "exaone-moe") => Some(Rule::Runs { digits: true, spaces: false }),
            ("gpt2", pre) if ENDING.contains(&pre) => Some(Rule::Runs { digits: true, spaces: true }),
            _ => None,
        }
    }
}

/// The character that stands for the space in words of the kinds `llama` and `gemma4`.
pub(super) const SPACE: char = '\u{2581}';

/// Places that allow a cut: bit `b` of entry `a` says so of the place between the ASCII characters `a` and `b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Borders {
    allowed: [u128; 128],
    /// The same, seen from behind: bit `a` of entry `b`.
    before: [u128; 128],
    /// Characters that are special tokens by themselves, and part nothing but are found before all else.
    special: u128,
}

impl Borders {
    /// Those of a vocabulary with this rule, these words, these characters that meet in its merges, and these special tokens;
    /// `None` where there are none.
    pub(super) fn of(
        rule: Rule,
        mut words: impl Iterator<Item = impl AsRef<str>>,
        joints: &HashSet<(u8, u8)>,
        specials: &[Special],
    ) -> Option<Borders> {
        let mut allowed = match rule {
            Rule::Runs { digits, spaces } => behind_runs(digits, spaces),
            Rule::Words => {
                let mut allowed = [u128::MAX; 128];
                words.by_ref().for_each(|word| forbid(&mut allowed, word.as_ref()));
                // What is joined need not be a word.
                joints.iter().for_each(|(a, b)| allowed[usize::from(*a)] &= !(1 << b));
                allowed
            }
        };
        // Nor may a special token reach over a cut.
        specials.iter().for_each(|s| forbid(&mut allowed, &s.text));
        let column = |b: usize| (0..128).fold(0, |bits, a| bits | (allowed[a] >> b & 1) << a);
        let before = std::array::from_fn(column);
        let alone = |s: &Special| s.text.as_bytes().first().copied().filter(|b| b.is_ascii() && s.text.len() == 1);
        let special = specials.iter().filter_map(alone).fold(0, |bits, b| bits | 1 << b);
        (allowed.iter().any(|bits| *bits != 0)).then_some(Borders { allowed, before, special })
    }

    /// Whether a text may be cut between these two bytes.
    pub(super) fn between(&self, a: u8, b: u8) -> bool {
        a < 128 && b < 128 && self.allowed[usize::from(a)] >> b & 1 == 1
    }

    /// The first place behind `from` where the text may be cut.
    pub(super) fn next(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let rest = bytes.get(from..)?;
        rest.windows(2).position(|pair| self.between(pair[0], pair[1])).map(|at| from + at + 1)
    }

    /// A character that may be cut off from `a` before it and from `b` behind it, from `b` alone without `a`: one that is
    /// seen where there is one.
    pub(super) fn joiner(&self, a: Option<u8>, b: u8) -> Option<char> {
        const SEEN: u128 = (u128::MAX << b'!') & !(1 << 127);
        let behind = match a {
            Some(a) if a < 128 => self.allowed[usize::from(a)],
            Some(_) => 0,
            None => u128::MAX,
        };
        let any = behind & self.before.get(usize::from(b)).copied().unwrap_or(0) & !self.special & !1;
        let found = if any & SEEN == 0 { any } else { any & SEEN };
        u8::try_from(found.trailing_zeros()).ok().filter(|j| *j < 128).map(char::from)
    }
}

/// Behind a letter or a digit, before anything of another kind.
fn behind_runs(digits: bool, spaces: bool) -> [u128; 128] {
    let kind = |b: u8| (b.is_ascii_alphabetic(), b.is_ascii_digit());
    let text = |b: u8| b.is_ascii_graphic() || matches!(b, b' ' | b'\n' | b'\r' | b'\t');
    let run = |a: u8, b: u8| match a.is_ascii_digit() {
        true => digits,
        false => a.is_ascii_alphabetic() && (spaces || b != b' '),
    };
    let ends = |a: u8, b: u8| run(a, b) && kind(a) != kind(b) && text(b) && b != b'\'';
    std::array::from_fn(|a| (0..128u8).filter(|b| ends(a as u8, *b)).fold(0, |bits, b| bits | 1 << b))
}

/// Forbids the places within a word.
fn forbid(allowed: &mut [u128; 128], word: &str) {
    let mut before: Option<usize> = None;
    for c in word.chars().map(|c| if c == SPACE { ' ' } else { c }) {
        let at = u8::try_from(c).ok().filter(u8::is_ascii);
        if let (Some(a), Some(b)) = (before, at) {
            allowed[a] &= !(1 << b);
        }
        before = at.map(usize::from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str) -> Special {
        Special { text: text.into(), strips_left: false, strips_right: false, control: true }
    }

    fn cut<'a>(borders: &Borders, text: &'a str) -> Vec<&'a str> {
        let mut from = 0;
        let mut out = Vec::new();
        while let Some(at) = borders.next(text.as_bytes(), from) {
            out.push(&text[from..at]);
            from = at;
        }
        out.push(&text[from..]);
        out
    }

    fn of(tokenizer: &str, pre: &str, words: &[&str], specials: &[Special]) -> Option<Borders> {
        Borders::of(Rule::of(tokenizer, pre)?, words.iter(), &HashSet::new(), specials)
    }

    fn gpt2(specials: &[Special]) -> Borders {
        of("gpt2", "gpt-4o", &[], specials).expect("it is known")
    }

    #[test]
    fn runs_of_letters_and_digits_end_a_word() {
        let plain = gpt2(&[]);
        assert_eq!(cut(&plain, "one two\n\n (3.14) x1y"), ["one", " two", "\n\n (3", ".14", ") x", "1", "y"]);
        assert_eq!(cut(&plain, "don't é, ça va"), ["don't", " é, ça", " va"]);
        assert_eq!(cut(&plain, ""), [""]);
        assert_eq!(cut(&plain, "!?"), ["!?"]);
        assert_eq!(cut(&gpt2(&[special("<a b>")]), "a b a c <a b>"), ["a b", " a c", " <a b>"]);
        assert_eq!(of("gpt2", "", &[], &[]), Some(plain));
        assert_eq!((of("gpt2", "superbpe", &[], &[]), of("bert", "gpt-2", &[], &[])), (None, None));
        let digits = of("gpt2", "cohere2moe", &[], &[]).expect("it is known");
        assert_eq!(cut(&digits, "one 1234,5 x1y"), ["one", " 1234,5 x", "1y"]);
        let spaces = of("gpt2", "exaone-moe", &[], &[]).expect("it is known");
        assert_eq!(cut(&spaces, "one two. 12 x1y"), ["one two", ". 12", " x", "1", "y"]);
    }

    #[test]
    fn characters_that_no_word_holds_side_by_side_are_never_joined() {
        let words = ["\u{2581}the", "th", ").", "\u{2581}\u{2581}", "é."];
        let borders = of("llama", "", &words, &[special("x>")]).expect("it is known");
        assert_eq!(cut(&borders, "the  th).x>é."), ["the", "  th", ").", "x>é."]);
        let joined = Borders::of(Rule::Words, words.iter(), &HashSet::from([(b'e', b' ')]), &[]).expect("it is known");
        assert_eq!(cut(&joined, "the  th).x"), ["the  th", ").", "x"]);
        let all: Vec<String> = (0..=127u8)
            .flat_map(|a| (0..=127u8).map(move |b| [a, b]))
            .map(|p| p.map(char::from).iter().collect())
            .collect();
        assert_eq!(Borders::of(Rule::Words, all.iter(), &HashSet::new(), &[]), None);
    }

    #[test]
    fn a_joiner_is_cut_off_on_both_sides() {
        let plain = gpt2(&[]);
        for (a, b) in [(b'a', b'a'), (b'1', b'2')] {
            let joiner = u8::try_from(plain.joiner(Some(a), b).expect("there is one")).expect("it is ASCII");
            assert!(plain.between(a, joiner) && plain.between(joiner, b));
        }
        assert_eq!(plain.joiner(Some(b'.'), b'a'), None);
        assert_eq!(plain.joiner(Some(0xC3), b'a'), None);
        assert_eq!(plain.joiner(Some(b'a'), 0xC3), None);
        assert!(plain.joiner(None, b' ').is_some());
        // Nor is it a special token by itself.
        let first = plain.joiner(None, b' ').expect("there is one");
        assert_ne!(gpt2(&[special(&first.to_string())]).joiner(None, b' '), Some(first));
    }
}
