//! What a search looks for.

use std::collections::{HashMap, HashSet};

use super::words::{is_spaceless, words};

/// Longest query, in characters, and most words of it that count.
const LONGEST: usize = 1000;
const WORDS: usize = 64;

/// One thing that a query looks for by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Words of the index that must follow each other: one, or two characters of a script without spaces.
    pub words: String,
    /// Whether words that begin so count, since there are none that are so.
    pub begins: bool,
}

/// A query, read. Nothing in it is syntax but quotes around a phrase.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// What to look for, once each.
    pub units: Vec<Unit>,
    /// All words of it in a row.
    pub row: Vec<String>,
    /// The phrases in quotes, each as its words.
    phrases: Vec<Vec<String>>,
    /// Paths and identifiers, as they are written, in lower case.
    names: Vec<String>,
    /// The query as it is written, in lower case, its white space collapsed.
    literal: String,
}

/// How well a text fits a query. The larger one is the better one.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Rank {
    /// 2 where the query stands there as it is written, 1 where its words follow each other.
    pub exact: u8,
    /// How many of its phrases, paths and identifiers stand there.
    pub named: usize,
    /// What its words are worth: BM25.
    pub worth: f64,
    /// How much of the query stands there, its words by how rare they are: 0 to 1.
    pub share: f64,
    /// How many of its words stand there. Two pairs of characters of a script without spaces count as one: they overlap.
    pub words: f64,
}

/// How rare each unit of a query is, in their order: [`rarity`].
pub type Rarities = [f64];

/// What a word is worth that stands in `with` of `of` passages: BM25's measure, which is never below zero.
pub fn rarity(with: usize, of: usize) -> f64 {
    let (with, of) = (with as f64, of.max(with) as f64);
    ((of - with + 0.5) / (with + 0.5)).ln_1p()
}

/// BM25's usual constants, and the words of a usual passage.
const REPEATED: f64 = 1.2;
const LENGTH: f64 = 0.75;
const USUAL: f64 = 100.0;

impl Query {
    /// Reads a query.
    pub fn read(text: &str) -> Query {
        let short: String = text.chars().take(LONGEST).collect();
        let row = list(&short);
        let mut units = Vec::new();
        let mut seen = HashSet::new();
        for words in units_of(&row) {
            if units.len() < WORDS && seen.insert(words.clone()) {
                units.push(Unit { words, begins: false });
            }
        }
        let names = short.split_whitespace().filter_map(name).collect();
        Query { units, phrases: quoted(&short), names, literal: plain(&short), row }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// How well a text fits, where words are so rare.
    pub fn rank(&self, text: &str, rarities: &Rarities) -> Rank {
        self.look(text).rank(self, rarities)
    }

    /// What of this query stands in a text.
    pub fn look(&self, text: &str) -> Looked {
        let words = list(text);
        let in_row = !self.row.is_empty() && holds(&words, &self.row);
        let lower = plain(text);
        let literal = in_row && !self.literal.is_empty() && lower.contains(&self.literal);
        let named = self.phrases.iter().filter(|phrase| holds(&words, phrase)).count()
            + self.names.iter().filter(|name| lower.contains(name.as_str())).count();
        // Inside of longer words it does not stand: `text of 7` in `text of 70`.
        let exact = u8::from(in_row) + u8::from(literal);
        Looked { exact, named, counts: self.counts(&words), length: words.len() }
    }

    /// How often each unit stands among these words.
    fn counts(&self, words: &[String]) -> Vec<u32> {
        let at: HashMap<&str, usize> =
            self.units.iter().enumerate().map(|(i, unit)| (unit.words.as_str(), i)).collect();
        let mut counts = vec![0; self.units.len()];
        let mut pair = String::new();
        for (i, word) in words.iter().enumerate() {
            if let Some(unit) = at.get(word.as_str()) {
                counts[*unit] += 1;
            }
            if let Some(before) = i.checked_sub(1).map(|i| &words[i]).filter(|before| is_single(before)) {
                pair.clear();
                pair.push_str(before);
                pair.push(' ');
                pair.push_str(word);
                if let Some(unit) = at.get(pair.as_str()) {
                    counts[*unit] += 1;
                }
            }
        }
        for (unit, count) in self.units.iter().zip(&mut counts).filter(|(unit, _)| unit.begins) {
            *count = words.iter().map(|word| u32::from(word.starts_with(&unit.words))).sum();
        }
        counts
    }
}

/// What of a query stands in a text: what its rank is made of. A text is read once, however many passages it stands in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// As in [`Rank`].
    exact: u8,
    /// As in [`Rank`].
    named: usize,
    /// How often each unit stands there, in their order.
    counts: Vec<u32>,
    /// Words of the text.
    length: usize,
}

impl Looked {
    /// How well the text fits a query, where words are so rare.
    pub fn rank(&self, query: &Query, rarities: &Rarities) -> Rank {
        Rank { exact: self.exact, named: self.named, ..self.worth(query, rarities) }
    }

    /// The same words in one text with another's. Nothing stands across both.
    pub fn add(&mut self, other: &Looked) {
        self.exact = self.exact.max(other.exact);
        self.named = self.named.max(other.named);
        self.length += other.length;
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// BM25 of the words, and how much of the query they hold.
    fn worth(&self, query: &Query, rarities: &Rarities) -> Rank {
        let long = 1.0 - LENGTH + LENGTH * self.length as f64 / USUAL;
        let each = || self.counts.iter().map(|count| f64::from(*count)).zip(rarities);
        let worth = each().map(|(count, rarity)| rarity * count * (REPEATED + 1.0) / (count + REPEATED * long)).sum();
        let there: f64 = each().filter(|(count, _)| *count > 0.0).map(|(_, rarity)| rarity).sum();
        let all: f64 = rarities.iter().sum();
        let share = if all > 0.0 { there / all } else { 0.0 };
        let units = query.units.iter().zip(&self.counts).filter(|(_, count)| **count > 0);
        let words = units.map(|(unit, _)| if unit.words.contains(' ') { 0.5 } else { 1.0 }).sum();
        Rank { worth, share, words, ..Rank::default() }
    }
}

/// The words of a text.
fn list(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    words(text, |word| out.push(word.to_owned()));
    out
}

/// Words as they are looked for: by themselves, but two characters of a script without spaces at a time, since one says little.
fn units_of(row: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for (at, word) in row.iter().enumerate() {
        let next = row.get(at + 1).filter(|next| is_single(word) && is_single(next));
        let before = at.checked_sub(1).is_some_and(|before| is_single(&row[before]));
        match next {
            Some(next) => out.push(format!("{word} {next}")),
            None if is_single(word) && before => {}
            None => out.push(word.clone()),
        }
    }
    out
}

fn is_single(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(is_spaceless) && chars.next().is_none()
}

/// Whether these words follow each other somewhere.
fn holds(words: &[String], row: &[String]) -> bool {
    !row.is_empty() && words.windows(row.len()).any(|part| part == row)
}

/// What stands in quotes, as words: every second part, unless the last quote is missing.
fn quoted(text: &str) -> Vec<Vec<String>> {
    let parts: Vec<&str> = text.split('"').collect();
    let inside = parts.iter().enumerate().filter(|(i, _)| i % 2 == 1 && i + 1 < parts.len());
    inside.map(|(_, part)| list(part)).filter(|words| !words.is_empty()).collect()
}

/// A path or an identifier, without what stands around it in a sentence.
fn name(word: &str) -> Option<String> {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric() && !"/\\_~$#".contains(c));
    let (mut letters, mut digits, mut inner, mut camel) = (0, 0, false, false);
    // `e.g` and `a.m` are no names: a part of one has more than a letter.
    let mut parted = false;
    let mut before = ' ';
    for c in word.chars() {
        letters += usize::from(c.is_alphabetic());
        digits += usize::from(c.is_ascii_digit());
        camel |= c.is_uppercase() && before.is_lowercase();
        inner |= matches!(c, '/' | '\\' | '_' | ':' | '.') && before.is_alphanumeric();
        parted |= c.is_alphanumeric() && before.is_alphanumeric();
        before = c;
    }
    let inner = inner && parted;
    // `src/a.rs`, `user_id`, `a::b`, `getName`, `E0308`, `r3f9a0c12d4e5`; a plural such as `10s` or a time is none.
    let is_code = digits >= 2 && letters >= 1 && word.chars().all(char::is_alphanumeric) && word.len() >= 4;
    (word.len() >= 3 && letters > 0 && (inner || camel || is_code)).then(|| word.to_lowercase())
}

/// A text in lower case on one line.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().flat_map(char::to_lowercase));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(query: &str) -> Vec<String> {
        Query::read(query).units.into_iter().map(|unit| unit.words).collect()
    }

    #[test]
    fn queries_as_they_are_read() {
        assert_eq!(units("running cats running"), ["run", "cat"]);
        assert_eq!(units("数据库 x"), ["数 据", "据 库", "x"]);
        assert_eq!(units("库"), ["库"]);
        assert!(Query::read(" \"*\" -- ").is_empty());
        let names = |query: &str| Query::read(query).names;
        assert_eq!(names("What of `src/a.rs`, getName() and E0308?"), ["src/a.rs", "getname", "e0308"]);
        assert_eq!(names("r3f9a0c12d4e5 in user_id"), ["r3f9a0c12d4e5", "user_id"]);
        assert!(names("It's 10:30 on 2023/07/12, well-known e.g. $350,000.").is_empty());
    }

    #[test]
    fn what_is_written_beats_words() {
        let query = Query::read("why does user_id fail in login");
        let even = vec![1.0; query.units.len()];
        let rank = |text: &str| query.rank(text, &even);
        assert!(rank("the user_id") > rank("why does the user fail in login: id"));
        assert!(rank("login fails") > rank("login, login"));
        let query = Query::read("disk quota");
        let rank = |text: &str| query.rank(text, &[1.0, 1.0]);
        assert_eq!(rank("the Disk \n quota").exact, 2);
        assert_eq!(rank("disk-quota").exact, 1);
        assert_eq!(rank("quota of the disk").exact, 0);
        assert_eq!(rank("disk quota5").exact, 0);
        let query = Query::read("\"disk quota\" exceeded");
        assert_eq!(query.rank("disk quota", &[1.0; 3]).named, 1);
        assert_eq!(query.rank("quota disk", &[1.0; 3]).named, 0);
    }

    #[test]
    fn rare_words_count_more() {
        assert!(rarity(1, 1000) > rarity(10, 1000) && rarity(1000, 1000) > 0.0);
        let query = Query::read("walnut table");
        let rarities = [rarity(2, 1000), rarity(700, 1000)];
        assert!(query.rank("walnut", &rarities) > query.rank("table table table", &rarities));
        assert_eq!(query.rank("tables and a table", &rarities).words, 1.0);
        // Pairs of characters overlap.
        let query = Query::read("数据库 table");
        assert_eq!(query.rank("数据库", &[1.0; 3]).words, 1.0);
    }

    #[test]
    fn texts_looked_at_one_by_one_rank_as_one_text() {
        let query = Query::read("where is the walnut table, in src/a.rs");
        let rarities: Vec<f64> = (1..=query.units.len()).map(|with| rarity(with, 1000)).collect();
        let texts = ["A walnut table.", "", "It stands in the hall.\nsrc/a.rs", "tables, tables"];
        let mut looked = Looked::default();
        for text in texts {
            looked.add(&query.look(text));
        }
        assert_eq!(looked.rank(&query, &rarities), query.rank(&texts.join("\n"), &rarities));
    }
}
