//! What a person states and expects to hold: rules, limits, facts, preferences, goals. Found by form alone (a label before
//! a colon, words of obligation, a value that is given a name), in the languages that are known here; and which statement a
//! later one takes the place of.
//!
//! Two statements are about the same thing only where that is sure: the older one is dropped then. Where it is not, both
//! stay: a rule that is kept for too long is the smaller loss.

mod lists;
mod slot;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use self::lists::{
    AFTERWARDS, CHANGES, CONDITIONS, DEFINITE, FAVORITES, FORBIDS, GENERIC, GIVES, GOALS, HAPPENED, HOLDS, LABELS,
    ORDERS,
};
use self::slot::Slot;
use super::words::sentences;
use super::{Item, Part, Section};
use crate::preview::clean::floor;

/// Longest statement, in bytes: what is longer tells a story.
const LONGEST: usize = 400;

/// Longest text, in bytes and lines, in which statements are looked for.
const LONGEST_TEXT: usize = 3000;
const MOST_LINES: usize = 40;

/// Whether a sentence states something that is to hold.
pub(super) fn holds(sentence: &str) -> bool {
    let sentence = sentence.trim();
    if sentence.len() > LONGEST || sentence.ends_with(['?', '？']) {
        return false;
    }
    let lower = sentence.to_lowercase();
    let plain = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    if label(sentence).is_some() || HOLD_WORDS.is_match(&lower) || GOAL_WORDS.is_match(&lower) {
        return true;
    }
    let valued = values_in(without_label(sentence), false).len();
    let gives = GIVES.iter().any(|g| lower.contains(g));
    valued > 0 && (gives || CHANGES.iter().any(|c| plain.starts_with(c)) || ORDERS.iter().any(|o| plain.starts_with(o)))
}

/// The statements in a text that are to hold. A labelled line is one statement, however many sentences it has.
pub(super) fn statements(text: &str) -> Vec<&str> {
    // Pasted output and code state nothing.
    if text.len() > LONGEST_TEXT || text.lines().count() > MOST_LINES {
        return Vec::new();
    }
    let of = |line| if label(line).is_some() { vec![line] } else { sentences(line) };
    text.lines().map(str::trim).filter(|l| is_prose(l)).flat_map(of).filter(|s| holds(s)).collect()
}

/// Whether a line is written by a person for a person: it begins with a word or an item's mark and is mostly words. The digits of
/// a sentence do not count: `The port is 8080.` is one.
fn is_prose(line: &str) -> bool {
    let said = line.trim_start_matches(['-', '*', '•', '…', '"', '“', '(', ' ']);
    let is_sentence = said.ends_with(['.', '!', '。', '！']);
    let counted = || said.chars().filter(|c| !(is_sentence && c.is_ascii_digit()));
    let plain = counted().filter(|c| c.is_alphabetic() || c.is_whitespace()).count();
    said.starts_with(|c: char| c.is_alphanumeric() || c == '`')
        && plain * 10 >= counted().count() * 7
        && !said.ends_with([';', '{', '}'])
}

static FORBID_WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| automaton(FORBIDS));
static HOLD_WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| automaton(HOLDS));
static GOAL_WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| automaton(GOALS));

fn automaton(words: &[&str]) -> AhoCorasick {
    AhoCorasick::new(words).expect("the patterns are constants and few")
}

/// The label of a statement, in lower case: a known word, or a few words in capitals, before a colon.
fn label(sentence: &str) -> Option<String> {
    let at = sentence.find([':', '：'])?;
    let label = sentence[..at].trim_matches(|c: char| !c.is_alphanumeric());
    if label.is_empty() || label.chars().count() > 30 || sentence[at..].starts_with("://") {
        return None;
    }
    let lower = label.to_lowercase();
    let letters = label.chars().filter(|c| c.is_alphabetic()).count();
    let capitals = letters >= 3
        && letters + label.matches(' ').count() == label.chars().count()
        && label.chars().all(|c| !c.is_lowercase())
        && label.is_ascii();
    (capitals || LABELS.contains(&lower.as_str()) || lower.split(' ').next_back().is_some_and(|w| LABELS.contains(&w)))
        .then_some(lower)
}

/// What follows the label.
fn without_label(sentence: &str) -> &str {
    match label(sentence) {
        Some(_) => sentence.split_once([':', '：']).map_or(sentence, |(_, rest)| rest.trim()),
        None => sentence,
    }
}

/// A statement, taken apart once: it is compared with many others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stated {
    /// As it was said.
    text: String,
    label: Option<String>,
    /// Without its label, in lower case.
    words: String,
    values: BTreeSet<String>,
    subject: BTreeSet<String>,
    /// What is given a value, where the form is `the next step is …`, and that value.
    left: Option<BTreeSet<String>>,
    given: Given,
    /// The one thing that it gives a value.
    slot: Option<Slot>,
    changes: bool,
    /// It tells what happened once, not what is so.
    happened: bool,
    forbids: bool,
    /// Its values stand in a condition: `no deploy without NAME`.
    conditional: bool,
}

impl Stated {
    fn of(text: &str) -> Stated {
        let label = label(text);
        let rest = without_label(text);
        let words = rest.to_lowercase();
        let still = unchanged(&words);
        let (left, given) = left_side(&still, &values(rest), &in_capitals(rest)).unzip();
        Stated {
            values: values(rest),
            subject: subject(&unchanged(rest)),
            left,
            given: given.unwrap_or_default(),
            slot: Slot::of(rest),
            happened: happened(&words),
            changes: label.as_deref().is_some_and(|l| CHANGES.iter().any(|c| c.starts_with(l)))
                || CHANGES.iter().any(|c| words.contains(c)),
            conditional: is_conditional(rest),
            forbids: FORBID_WORDS.is_match(&words),
            text: text.to_owned(),
            label,
            words,
        }
    }

    /// As it was said.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it forbids something: of all that a person states, the worst to lose.
    pub(super) fn forbids(&self) -> bool {
        self.forbids
    }

    /// Whether it takes the place of an older one: both say the same of the same, and give it different values.
    fn replaces(&self, older: &Stated) -> bool {
        if self.label != older.label && !self.changes {
            return false;
        }
        if self.slot.as_ref().zip(older.slot.as_ref()).is_some_and(|(slot, older)| slot.is_other(older)) {
            return true;
        }
        // What happened twice happened twice.
        if self.happened && older.happened && !self.changes {
            return false;
        }
        if self.left.is_some() && self.left == older.left {
            // What both speak of may be written like a value: German nouns are.
            let share_a_value = !self.given.values.is_disjoint(&older.given.values);
            // Door 42 and door 31 are two doors.
            let (numbers, others) = (&self.given.numbers, &older.given.numbers);
            if !self.changes && !numbers.is_empty() && !others.is_empty() && numbers != others {
                return false;
            }
            return self.words != older.words && !share_a_value && (self.changes || self.given.is_other(&older.given));
        }
        let share_a_value = !self.values.is_disjoint(&older.values);
        if self.values.is_empty() || older.values.is_empty() || share_a_value {
            return false;
        }
        // Two things that are forbidden are both forbidden; a limit has one amount, and a condition one value.
        let conditional = self.conditional && older.conditional && self.subject == older.subject;
        if !self.changes && self.forbids && !conditional && !self.values.iter().all(|v| is_amount(v)) {
            return false;
        }
        // A name by itself is a value; nouns in capitals are many.
        let named = |s: &Stated| s.values.iter().all(|v| v.chars().all(char::is_alphabetic));
        if !self.changes && !conditional && named(self) && named(older) && self.values.len().max(older.values.len()) > 1
        {
            return false;
        }
        let both = self.subject.intersection(&older.subject).count();
        let fewer = self.subject.len().min(older.subject.len());
        // One is about what the other is about, and adds nothing to tell it apart; or nearly all is the same.
        let within = both == fewer && (both >= 2 || both == 1 && self.changes);
        within || (self.changes || self.label.is_some()) && both >= 4 && both * 5 >= fewer * 4
    }
}

/// What a sentence of the form `the port is 8080` gives its subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Given {
    /// Whether it is one thing, and no property of many: a value, `the …`, or what is somebody's favorite.
    names: bool,
    /// The words around the value.
    around: BTreeSet<String>,
    /// The values that it is given.
    values: BTreeSet<String>,
    /// Where it is given a value: the numbers that it is called by.
    numbers: BTreeSet<String>,
}

impl Given {
    /// Whether a subject that has one of these has not the other one: both name what it is, in the same way. `The book is long` and
    /// `the book is by Kafka` are both so.
    fn is_other(&self, older: &Given) -> bool {
        self.names
            && older.names
            && self.values.is_empty() == older.values.is_empty()
            && (self.values.is_empty() || self.around == older.around)
    }
}

/// Whether a sentence in lower case tells what happened at some time.
fn happened(lower: &str) -> bool {
    let mut words = lower.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|w| !w.is_empty());
    words.any(|word| HAPPENED.contains(&word))
}

/// A text without the words that say that something changed.
fn unchanged(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut out = text.to_owned();
    // Positions hold only where lower case is as long.
    if lower.len() != text.len() {
        out.clone_from(&lower);
    }
    for word in CHANGES {
        while let Some(at) = out.to_lowercase().find(word).filter(|at| out.is_char_boundary(*at)) {
            let end = at + word.len();
            if !out.is_char_boundary(end) || end > out.len() {
                break;
            }
            out.replace_range(at..end, " ");
        }
    }
    out
}

/// What a text states, taken apart.
pub(super) fn stated(text: &str) -> Vec<Stated> {
    statements(text).into_iter().map(Stated::of).collect()
}

/// Whether no value stands before a word of condition.
fn is_conditional(sentence: &str) -> bool {
    let lower = sentence.to_lowercase();
    let at = CONDITIONS.iter().filter_map(|word| lower.find(word)).min();
    at.and_then(|at| sentence.get(..at)).is_some_and(|before| values(before).is_empty())
}

fn is_amount(value: &str) -> bool {
    value.bytes().any(|b| b.is_ascii_digit()) && value.chars().all(|c| c.is_ascii_digit() || "$€£¥%.,:-/".contains(c))
}

/// Takes out of older items what an item states anew, and marks that in it. `number` is the message that says it.
pub(super) fn supersede(section: &mut Section, item: Item, number: Option<usize>) -> Item {
    let mut text = item.text.clone();
    for newer in &item.stated {
        let of = |(i, old): (usize, &Item)| -> Vec<(usize, Stated)> {
            old.stated.iter().filter(|older| newer.replaces(older)).map(|older| (i, older.clone())).collect()
        };
        let gone: Vec<(usize, Stated)> = section.items.iter().enumerate().flat_map(of).collect();
        // A correction of one word may be meant for one of several things that are called so: all of them stay.
        let about: BTreeSet<&BTreeSet<String>> = gone.iter().map(|(_, older)| &older.subject).collect();
        if gone.is_empty() || about.len() > 1 && newer.subject.len() < 2 {
            continue;
        }
        for (i, older) in gone {
            let old = &mut section.items[i];
            let rest = old.text.replacen(&older.text, "", 1);
            let lines: Vec<&str> = rest.lines().map(str::trim).filter(|l| !l.is_empty() && !is_mark(l)).collect();
            *old = Item::new(Part::User, lines.join("\n"), old.times);
        }
        let mark = number.map_or_else(|| REPLACES.to_owned(), |n| format!("(said in message {n}; {}", &REPLACES[1..]));
        text = text.replacen(&newer.text, &format!("{} {mark}", newer.text), 1);
    }
    section.items.retain(|old| !old.text.is_empty());
    if text == item.text { item } else { Item::new(Part::User, text, item.times) }
}

/// What is said of a statement that took the place of an older one.
const REPLACES: &str = "(replaces an earlier statement)";

/// The same, as briefs had it that older versions made and a record still holds.
const REPLACED_BEFORE: &str = "in place of what was said before)";

/// A text without the marks that say that a statement took another's place.
pub(super) fn unmarked(text: &str) -> String {
    let mut out = text.to_owned();
    for mark in [&REPLACES[1..], REPLACED_BEFORE] {
        while let Some(end) = out.find(mark).map(|at| at + mark.len()) {
            let Some(start) = out[..end].rfind(" (") else { break };
            out.replace_range(start..end, "");
        }
    }
    out
}

fn is_mark(text: &str) -> bool {
    text.starts_with('(') && (text.ends_with(&REPLACES[1..]) || text.ends_with(REPLACED_BEFORE))
}

/// What is given a value in a sentence in lower case, and what is given: in `the next step is …` it is the next step.
fn left_side(lower: &str, values: &BTreeSet<String>, capitals: &BTreeSet<String>) -> Option<(BTreeSet<String>, Given)> {
    let gives = [
        " is ",
        " are ",
        ": ",
        "是",
        "为",
        "：",
        " es ",
        " est ",
        " ist ",
        " = ",
        "は",
        " belongs to ",
        " gehört ",
        " pertenece a ",
        " appartient à ",
        "属于",
    ];
    let lower = main_clause(lower);
    let (at, word) = gives.iter().filter_map(|g| lower.find(g).map(|at| (at, g))).min()?;
    let left = &lower[..at];
    let words: BTreeSet<String> = stems(left).collect();
    if words.is_empty() || at > 80 {
        return None;
    }
    let right = lower[at + word.len()..].trim();
    let mut around: BTreeSet<String> = words_of(right).map(str::to_owned).collect();
    let parts = || values.iter().flat_map(|value| words_of(value));
    let given: BTreeSet<String> = values.iter().filter(|value| right.contains(value.as_str())).cloned().collect();
    parts().for_each(|part| _ = around.remove(part));
    let article = |word: &String| DEFINITE.iter().any(|article| article.trim_end() == word);
    around.retain(|word| !word.bytes().any(|b| b.is_ascii_digit()) && !capitals.contains(word) && !article(word));
    let begins = |text: &str| DEFINITE.iter().any(|word| text.trim_start().starts_with(word));
    let favorite = FAVORITES.iter().any(|word| left.contains(word));
    let names = !given.is_empty() || favorite || begins(left) && begins(right);
    let digits = |word: &&str| word.bytes().any(|b| b.is_ascii_digit());
    let numbers = words_of(left).filter(digits).filter(|_| !given.is_empty()).map(str::to_owned).collect();
    Some((words, Given { names, around, values: given, numbers }))
}

/// A sentence in lower case without what says when: `after this, the next step is …`, `then the next step is …`.
fn main_clause(lower: &str) -> &str {
    let when = |word: &str| GENERIC.contains(&word) || AFTERWARDS.contains(&word);
    let lower = match lower.split_once([',', '，']) {
        Some((before, rest)) if words_of(before).all(when) => rest,
        _ => lower,
    };
    let lower = lower.trim_start();
    let then = AFTERWARDS.iter().find_map(|word| lower.strip_prefix(word).filter(|rest| rest.starts_with(' ')));
    then.unwrap_or(lower)
}

/// Words that begin with a capital, in lower case.
fn in_capitals(text: &str) -> BTreeSet<String> {
    words_of(text).filter(|word| word.starts_with(char::is_uppercase)).map(str::to_lowercase).collect()
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty())
}

/// The words that a statement is about: no values, nothing generic, endings cut.
fn subject(sentence: &str) -> BTreeSet<String> {
    let values = values(sentence);
    let lower = sentence.to_lowercase();
    stems(&lower)
        .filter(|stem| {
            !values.iter().any(|v| v.split(|c: char| !c.is_alphanumeric()).any(|p| p.starts_with(stem.as_str())))
        })
        .collect()
}

/// Letters of a word that are compared.
const STEM: usize = 6;

fn stems(lower: &str) -> impl Iterator<Item = String> {
    let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
    words
        .filter(|w| !GENERIC.contains(w) && !w.bytes().any(|b| b.is_ascii_digit()))
        .flat_map(|word| {
            let wide = word.chars().any(|c| c as u32 > 0x2e00);
            let chars: Vec<char> = word.chars().collect();
            if wide {
                // Without spaces between words, two characters are about one.
                return chars.windows(2).map(|w| w.iter().collect()).collect::<Vec<String>>();
            }
            let cut = ["ing", "ed", "es", "s"].iter().find_map(|end| {
                // `exceed` and `need` have no ending.
                word.strip_suffix(end).filter(|stem| stem.len() >= 3 && !(*end == "ed" && stem.ends_with('e')))
            });
            let stem: String = cut.unwrap_or(word).chars().take(STEM).collect();
            // `capped` and `cap`, `plan` and `planning`.
            let mut letters: Vec<char> = stem.chars().collect();
            if cut.is_some() && letters.len() >= 4 && letters[letters.len() - 1] == letters[letters.len() - 2] {
                letters.pop();
            }
            if letters.len() < 2 { Vec::new() } else { vec![letters.into_iter().collect()] }
        })
        .collect::<Vec<_>>()
        .into_iter()
}

/// What in a sentence is a value: numbers, dates, codes, addresses, paths, names in capitals further in.
fn values(sentence: &str) -> BTreeSet<String> {
    values_in(sentence, true)
}

/// The same; a word in capitals behind a colon is a value only where that is asked for: mostly it begins a sentence.
fn values_in(sentence: &str, behind_colon: bool) -> BTreeSet<String> {
    let sentence = &sentence[..floor(sentence, 2 * LONGEST)];
    let mut out = BTreeSet::new();
    // Words in capitals are values only where there is no better one: in German all nouns are written so.
    let mut named = BTreeSet::new();
    let (mut begins, mut colon) = (true, false);
    for word in sentence.split_whitespace() {
        let bare =
            word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '$' | '€' | '£' | '¥' | '%' | '/' | '`'));
        let bare = bare.trim_matches('`').trim_end_matches("'s").trim_end_matches('/');
        let digit = bare.chars().any(|c| c.is_ascii_digit());
        let path = bare.contains('/') || bare.contains('_') || bare.trim_matches('.').contains('.') && bare.len() > 3;
        let upper = bare.chars().next().is_some_and(char::is_uppercase);
        // `API`, `URL` and the like are words.
        let word_in_capitals = bare.len() <= 5 && bare.chars().all(char::is_uppercase);
        if digit || path {
            out.insert(bare.to_lowercase());
        } else if upper && !begins && !word_in_capitals && bare.len() > 1 {
            let lower = bare.to_lowercase();
            if !colon || behind_colon && !GENERIC.contains(&lower.as_str()) {
                named.insert(lower);
            }
        }
        (begins, colon) = (word.ends_with(['.', '!', '?', ';']), word.ends_with(':'));
    }
    if out.is_empty() {
        out = named;
    }
    // Where words are not divided, numbers and Latin words among them are values.
    if out.is_empty() && sentence.chars().any(|c| c as u32 > 0x2e00) {
        let runs = sentence.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | ':')));
        out.extend(runs.map(|r| r.trim_matches(['.', ':', '-'])).filter(|r| r.len() > 1).map(str::to_lowercase));
    }
    out
}

#[cfg(test)]
mod tests;
