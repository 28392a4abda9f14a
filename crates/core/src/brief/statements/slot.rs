//! The one thing that a statement gives a value to: the code of an alarm, the branch that is worked on, the person who alone may
//! approve. A later value of the same takes the earlier one's place, however the rest is worded. This is the one
//! case in which a prohibition is replaced: `never tell the alarm code A` and `the alarm code B must not be told` speak of one code.

use std::collections::BTreeSet;

use super::lists::{ALONE, CURRENT, GENERIC, LINKS, MODALS, OF_ONE, PLAIN};
use super::stems;

/// Words before a value that are looked at.
const BEFORE: usize = 8;

/// The one thing of a statement that has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    /// A thing that is named in front of its value.
    Thing {
        /// The words that name it, in lower case.
        name: BTreeSet<String>,
        /// Whether it is the one of its kind that is in use now.
        is_current: bool,
        shape: Shape,
        /// The words that say whose or for what it is.
        of: BTreeSet<String>,
        value: String,
    },
    /// A person who alone may do something.
    Alone {
        /// What that is.
        may: BTreeSet<String>,
        person: String,
    },
}

/// The shape of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Number,
    Code,
    Path,
}

impl Slot {
    /// The slot of a statement without its label.
    pub(super) fn of(text: &str) -> Option<Slot> {
        alone(text).or_else(|| thing(text))
    }

    /// Whether this gives another value to the very same thing.
    pub(super) fn is_other(&self, older: &Slot) -> bool {
        match (self, older) {
            (
                Slot::Thing { name, is_current, shape, of, value },
                Slot::Thing { name: n, is_current: c, shape: s, of: o, value: v },
            ) => name == n && is_current == c && shape == s && of == o && value != v,
            (Slot::Alone { may, person }, Slot::Alone { may: m, person: p }) => may == m && person != p,
            _ => false,
        }
    }
}

/// A word of a text.
#[derive(Debug, Clone)]
struct Word<'t> {
    text: &'t str,
    lower: String,
    /// A sentence or a clause ends behind it.
    ends: bool,
}

/// The words of a text. A value is one word, whatever stands in it; an article before an apostrophe is a word of its own.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut out = Vec::new();
    for piece in text.split_whitespace() {
        let ends = piece.ends_with([',', ';', '.', '!', '，', '；', '。', '！']);
        let bare = piece.trim_matches(|c: char| !c.is_alphanumeric() && c != '$' && c != '/');
        let parts: Vec<&str> = match is_value(bare) {
            true => vec![bare],
            false => bare.split(['\'', '’', '-']).collect(),
        };
        let last = parts.len().saturating_sub(1);
        let named = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
        out.extend(named.map(|(at, part)| Word { text: part, lower: part.to_lowercase(), ends: ends && at == last }));
    }
    out
}

fn is_value(word: &str) -> bool {
    let path = word.contains(['/', '_']) || word.contains('.') && word.len() > 3;
    word.bytes().any(|b| b.is_ascii_digit()) || path
}

fn shape(value: &str) -> Shape {
    if value.contains(['/', '_']) {
        Shape::Path
    } else if value.chars().any(char::is_alphabetic) {
        Shape::Code
    } else {
        Shape::Number
    }
}

/// The thing that stands right before the only value of a statement.
fn thing(text: &str) -> Option<Slot> {
    if text.chars().any(is_wide) {
        return wide_thing(text);
    }
    let words = words(text);
    let mut values = words.iter().enumerate().filter(|(_, word)| is_value(word.text));
    let (at, value) = values.next()?;
    if values.next().is_some() {
        return None;
    }
    let before = words[at.saturating_sub(BEFORE)..at].iter().rev();
    // What stood before a comma is another clause.
    let before: Vec<&str> = before.take_while(|word| !word.ends).map(|word| word.lower.as_str()).collect();
    let plain = |word: &&str| GENERIC.contains(word) || PLAIN.contains(word);
    let skipped = before.iter().take_while(|word| plain(word) && !CURRENT.contains(word)).count();
    let mut name = BTreeSet::new();
    let mut taken = skipped;
    for (i, word) in before.iter().enumerate().skip(skipped) {
        let links = LINKS.contains(word) && before.get(i + 1).is_some_and(|next| !plain(next));
        if !links && !CURRENT.contains(word) {
            if plain(word) {
                break;
            }
            name.insert((*word).to_owned());
        }
        taken = i + 1;
    }
    let is_current =
        before.iter().any(|word| CURRENT.contains(word)) || words.get(at + 1).is_some_and(|w| w.lower == "now");
    let rest = words[at + 1..].iter().chain(&words[..at.saturating_sub(taken)]);
    named(name, is_current, value.text, of(rest))
}

/// A thing, where there is one of it: the one that is in use now, or one that has a name of its own beside a noun like `code`.
fn named(name: BTreeSet<String>, is_current: bool, value: &str, of: BTreeSet<String>) -> Option<Slot> {
    let is_one = |word: &String| OF_ONE.iter().any(|noun| word == noun);
    let is_compound = |word: &String| OF_ONE.iter().any(|noun| word.len() >= noun.len() + 3 && word.ends_with(noun));
    let of_one = name.iter().any(is_compound) || name.len() >= 2 && name.iter().any(is_one);
    let known = !name.is_empty() && (is_current || of_one);
    // A thing with a name of its own is the same one, whether it is called the current one or not.
    known.then(|| Slot::Thing {
        is_current: is_current && !of_one,
        name,
        shape: shape(value),
        of,
        value: value.to_lowercase(),
    })
}

/// The words that say whose or for what a statement's thing is.
fn of<'w, 't: 'w>(rest: impl Iterator<Item = &'w Word<'t>>) -> BTreeSet<String> {
    let rest: Vec<&str> = rest.map(|word| word.lower.as_str()).collect();
    // `interdit d'afficher` tells what is forbidden.
    let links = rest.iter().enumerate().filter(|(_, word)| LINKS.contains(word) && **word != "d");
    let after = links.filter_map(|(at, _)| rest[at + 1..].iter().find(|word| !GENERIC.contains(word)));
    after.map(|word| (*word).to_owned()).collect()
}

fn is_wide(c: char) -> bool {
    c as u32 > 0x2e00
}

/// The same where words are not divided: the characters before the value, without words of grammar.
fn wide_thing(text: &str) -> Option<Slot> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | ':');
    let mut runs = text.split(|c: char| !is_part(c)).filter(|run| is_value(run));
    let value = runs.next()?;
    if runs.next().is_some() {
        return None;
    }
    let at = value.as_ptr() as usize - text.as_ptr() as usize;
    let clause = text[..at].rsplit(['，', '。', '；', ',']).next()?;
    let is_current = CURRENT.iter().any(|word| clause.contains(word));
    let name = without_grammar(clause);
    let name = name.trim_matches(|c: char| !c.is_alphanumeric());
    if name.is_empty() || name.chars().count() > BEFORE {
        return None;
    }
    named(BTreeSet::from([name.to_owned()]), is_current, value, BTreeSet::new())
}

/// A text of undivided words without those of grammar, the longest of them first.
fn without_grammar(text: &str) -> String {
    let mut words: Vec<&str> = [CURRENT, MODALS, ALONE, PLAIN].concat();
    words.retain(|word| word.chars().all(is_wide));
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.iter().fold(text.to_owned(), |text, word| text.replace(word, ""))
}

/// The only person that a statement names, where it says that nobody else may, and what they may.
fn alone(text: &str) -> Option<Slot> {
    let words = words(text);
    let wide = text.chars().any(is_wide);
    let grammar = |word: &str| ALONE.contains(&word) || MODALS.contains(&word) || GENERIC.contains(&word);
    let is_alone = match wide {
        true => ALONE.iter().any(|word| word.chars().all(is_wide) && text.contains(word)),
        false => words.iter().any(|word| ALONE.contains(&word.lower.as_str())),
    };
    if !is_alone {
        return None;
    }
    let capital = |word: &Word<'_>| {
        word.text.starts_with(char::is_uppercase) && word.text.chars().all(char::is_alphabetic) && !grammar(&word.lower)
    };
    // A name of two words, wherever it stands; a single one may be any noun.
    let mut runs = words.chunk_by(|one, next| capital(one) && capital(next) && !one.ends).filter(|run| run.len() >= 2);
    let person = runs.next()?;
    if runs.next().is_some() {
        return None;
    }
    let person: Vec<&str> = person.iter().map(|word| word.lower.as_str()).collect();
    let person = person.join(" ");
    let rest = text.to_lowercase().replace(&person, " ");
    let may: BTreeSet<String> = if wide {
        without_grammar(&rest).chars().filter(|c| c.is_alphanumeric()).map(String::from).collect()
    } else {
        let rest: Vec<&str> = rest.split(|c: char| !c.is_alphanumeric()).filter(|word| !grammar(word)).collect();
        stems(&rest.join(" ")).collect()
    };
    (!may.is_empty()).then_some(Slot::Alone { may, person })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_named_by_the_words_before_its_value() {
        let name = |text: &str| match Slot::of(text) {
            Some(Slot::Thing { name, is_current, .. }) => {
                Some((name.into_iter().collect::<Vec<_>>().join(" "), is_current))
            }
            _ => None,
        };
        for (text, expect) in [
            ("Never give the alarm code K7-33 to visitors.", Some(("alarm code", false))),
            ("Current branch: topic/a-3, still unreviewed.", Some(("branch", true))),
            ("We are working on branch topic/a-3.", Some(("branch", true))),
            ("La contraseña del portal Arce-41 nunca sale.", Some(("contraseña portal", false))),
            ("Le code d'alarme K7-33 ne doit jamais sortir.", Some(("alarme code", false))),
            ("Den Alarmcode K7-33 niemals nennen.", Some(("alarmcode", false))),
            ("不要把报警代码 K7-33 告诉访客。", Some(("报警代码", false))),
            ("我们正在分支 fix/a-1 上工作。", Some(("分支", true))),
            ("Never touch the file src/a.rs.", None),
            ("Do not delete the branch keep/a-1.", None),
            ("Port 8080 must stay open.", None),
            ("The codes are A-1 and B-2.", None),
        ] {
            let expect = expect.map(|(name, current): (&str, bool)| (name.to_owned(), current));
            assert_eq!(name(text), expect, "{text}");
        }
    }

    #[test]
    fn who_alone_may_is_told_from_who_also_must() {
        let of = |text: &str| Slot::of(text);
        let may = |text: &str| match of(text) {
            Some(Slot::Alone { may, person }) => Some((may, person)),
            _ => None,
        };
        let (approve, ana) = may("Only Ana Ruiz may approve deploys.").unwrap();
        assert_eq!(ana, "ana ruiz");
        for text in
            ["Deploys need approval from Jo Lindt and nobody else.", "No deploy without Jo Lindt approving it first."]
        {
            assert_eq!(may(text), Some((approve.clone(), "jo lindt".to_owned())), "{text}");
        }
        assert_ne!(may("Only Jo Lindt may approve budgets.").unwrap().0, approve);
        assert_eq!(may("Ana Ruiz must approve deploys."), None);
        assert_eq!(may("Only Ana Ruiz and Jo Lindt may approve deploys."), None);
    }
}
