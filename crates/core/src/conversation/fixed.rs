//! The fixed parts of a system prompt: what is left of it without dates, times and the state of a repository, which clients write
//! anew for the same conversation. Two conversations whose fixed parts differ are never one.
//!
//! Pure. Only marks of the parts are kept, never their text.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::{Digest, Message};

/// Parts of one system prompt at most: a longer one has several lines in a part.
const MOST: usize = 48;

/// A clause that holds one of these says when, and nothing that stays: a day of the week, a date, a time of the day.
static WHEN: LazyLock<Regex> = LazyLock::new(|| {
    let day = "(?:mon|tues|wednes|thurs|fri|satur|sun)day";
    let month = "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)";
    let date = format!(
        r"{month}\.? \d{{1,2}}\b|\b\d{{1,2}}(?:st|nd|rd|th)?\.? {month}\b|\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}"
    );
    let numbers = r"\b\d{1,2}[/.]\d{1,2}[/.](?:\d{4}|\d{2})\b|\b\d{1,2}:\d{2}(?::\d{2})?\b";
    Regex::new(&format!(r"(?i)\b(?:{day}|{date}|{numbers}|unix time)")).expect("it is a constant")
});

/// Where a part about the state of a repository begins; it ends with an empty line, a heading or a tag.
static REPOSITORY: LazyLock<Regex> = LazyLock::new(|| {
    let heads = r"git ?status|recent commits|last commits|git log|git diff|status|untracked files|changes not staged.*|changes to be committed";
    Regex::new(&format!(r"(?i)^[\W_]*(?:{heads})[\W_]*(?:\(.*\))?:?[\W_]*$")).expect("it is a constant")
});

/// A line about the state of a repository.
static STATE: LazyLock<Regex> = LazyLock::new(|| {
    let branch = r"(?:current |main |default |git |on )*branch\b.*|your branch .*|(?:nothing to commit|no changes added|working tree).*";
    let file = r"(?-i:[MADRCU?!]{1,2}) +\S+(?: -> \S+)?|(?:modified|new file|deleted|renamed|untracked): .*";
    let commit = r"(?:[-*] )?[0-9a-f]{7,40} .*|git ?status:? .*";
    Regex::new(&format!(r"(?i)^[\s>*-]*(?:{branch}|{file}|{commit})$")).expect("it is a constant")
});

/// Words of which marks are kept at most: those with the smallest ones, which are the same words in every prompt.
const WORDS: usize = 128;

/// Marks of the fixed parts of a system prompt, sorted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fixed {
    parts: Vec<u32>,
    /// Its words.
    words: Vec<u32>,
}

impl PartialEq for Fixed {
    fn eq(&self, other: &Fixed) -> bool {
        self.parts == other.parts
    }
}

impl Eq for Fixed {}

impl Fixed {
    /// Those of the system messages that lead a request.
    pub fn of(system: &[Message]) -> Fixed {
        let (mut lines, mut words) = (Vec::new(), BTreeSet::new());
        for message in system {
            collect(&message.text, &mut lines, &mut words);
        }
        Fixed { parts: gathered(&lines), words: words.into_iter().take(WORDS).collect() }
    }

    /// Whether one is the other one without some words, and most of it stands in both.
    pub fn is_part_of(&self, other: &Fixed) -> bool {
        let shared = self.shared(other).parts.len() * 2 >= self.parts.len().max(other.parts.len());
        // Of longer prompts only the words up to the larger marks that both have are known.
        let full = |all: &[u32]| if all.len() < WORDS { u32::MAX } else { all.last().copied().unwrap_or(u32::MAX) };
        let known = full(&self.words).min(full(&other.words));
        let within = |a: &Fixed, b: &Fixed| {
            a.words.iter().take_while(|word| **word <= known).all(|word| b.words.binary_search(word).is_ok())
        };
        shared && (within(self, other) || within(other, self))
    }

    /// The parts that both have.
    pub fn shared(&self, other: &Fixed) -> Fixed {
        let both = |a: &[u32], b: &[u32]| a.iter().filter(|one| b.binary_search(one).is_ok()).copied().collect();
        Fixed { parts: both(&self.parts, &other.parts), words: both(&self.words, &other.words) }
    }

    /// Whether all parts of this one are in the other one, and there are any.
    pub fn stands_in(&self, other: &Fixed) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| other.parts.binary_search(part).is_ok())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Puts neighboring lines together where there are many. Where a part ends, its last line says: so a line that is another one changes
/// its own part alone.
fn gathered(lines: &[u32]) -> Vec<u32> {
    let every = (lines.len() / MOST + 1) as u32;
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    for line in lines {
        part.extend_from_slice(&line.to_le_bytes());
        if line % every == 0 {
            parts.push(mark(&std::mem::take(&mut part)));
        }
    }
    if !part.is_empty() {
        parts.push(mark(&part));
    }
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Marks of the lines of a text that stay, and of their words.
fn collect(text: &str, out: &mut Vec<u32>, all: &mut BTreeSet<u32>) {
    let mut in_repository = false;
    for line in text.lines().map(str::trim) {
        let ends = line.is_empty() || line.starts_with(['#', '<']);
        in_repository = REPOSITORY.is_match(line) || in_repository && !ends;
        if in_repository || line.is_empty() || STATE.is_match(line) {
            continue;
        }
        let clauses = line.split_inclusive(['.', ';', '!', '?', ',']).collect::<Vec<_>>();
        // A date has points and commas of its own.
        let kept: String = if WHEN.is_match(line) { without_dates(&clauses) } else { line.to_owned() };
        let words: Vec<&str> = kept.split_whitespace().collect();
        let said = words.join(" ");
        let said = said.trim_end_matches(['.', ';', ',', '!', '?', ' ']);
        if said.chars().any(char::is_alphanumeric) {
            out.push(mark(said.as_bytes()));
            // A word that ends a line here may go on with a comma there.
            let bare = said.split(' ').map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
            all.extend(bare.filter(|word| !word.is_empty()).map(|word| mark(word.as_bytes())));
        }
    }
}

/// The clauses that say nothing of a date or a time. What stands between two parts of one date belongs to it.
fn without_dates(clauses: &[&str]) -> String {
    let is_part = |clause: &str| {
        let words: Vec<&str> = clause.split_whitespace().collect();
        let year =
            |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).parse::<u16>().is_ok_and(|n| n > 1900);
        WHEN.is_match(clause) || !words.is_empty() && words.len() < 3 && words.iter().any(|word| year(word))
    };
    let joined = clauses.concat();
    // An ISO date or a time may itself be cut by a point or a comma.
    let Some(found) = WHEN.find(&joined) else { return joined };
    let (mut at, mut kept) = (0, String::new());
    for clause in clauses {
        let (start, end) = (at, at + clause.len());
        at = end;
        let holds = found.start() < end && start < found.end();
        if !holds && !is_part(clause) {
            kept.push_str(clause);
        }
    }
    kept
}

fn mark(bytes: &[u8]) -> u32 {
    let [a, b, c, d, ..] = Digest::of(bytes).0;
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat::message;

    fn of(text: &str) -> Fixed {
        let raw = serde_json::json!({"role": "system", "content": text}).to_string();
        Fixed::of(&[message(raw.into()).unwrap()])
    }

    #[test]
    fn dates_times_and_the_state_of_a_repository_do_not_count() {
        let git = |branch: &str, file: &str, commit: &str| {
            format!(
                "You are an agent.\n\ngitStatus: This is the git status at the start of the conversation.\nCurrent branch: {branch}\n\n\
                 Status:\nM {file}\n?? notes.txt\n\nRecent commits:\n{commit} Mend it\n\nBe brief."
            )
        };
        for (a, b) in [
            ("s".to_owned(), "s; today is Friday".to_owned()),
            ("Be brief. Today's date is 2026-11-27.".into(), "Be brief. Today's date is 2026-12-01.".into()),
            ("Today is Friday, November 27, 2026. Be brief.".into(), "Today is Monday, May 4, 2026. Be brief.".into()),
            ("Now: 10:31:05 PM\nBe brief.".into(), "Now: 9:02:11 AM\nBe brief.".into()),
            ("It is the 27th November 2026.\nBe brief.".into(), "It is the 1st December 2027.\nBe brief.".into()),
            ("Date: 27.11.2026\nBe brief.".into(), "Date: 28.11.2026\nBe brief.".into()),
            ("Date: 11/27/2026\nBe brief.".into(), "Date: 1/2/27\nBe brief.".into()),
            (git("main", "src/a.rs", "92445f7"), git("fix", "b.rs", "d5f4eb1")),
            ("Be brief.\n# Git status\n M a.rs\n".into(), "Be brief.\n# Git status\n D b.rs\n R c -> d\n".into()),
            (
                "Be brief.\nOn branch main\nnothing to commit, working tree clean".into(),
                "Be brief.\nOn branch fix".into(),
            ),
        ] {
            assert_eq!(of(&a), of(&b), "{a} / {b}");
            assert!(!of(&a).is_empty());
        }
    }

    #[test]
    fn whatever_else_differs_does() {
        for (a, b) in [
            ("You work for ACME.", "You work for CORP."),
            ("You work for ACME. Today is Friday.", "You work for CORP. Today is Friday."),
            ("The customer is 4711.", "The customer is 4712."),
            ("You may call ACME, in March or later.", "You may call CORP, in March or later."),
            ("cwd: /home/a\nBe brief.", "cwd: /home/b\nBe brief."),
            ("Answer.", ""),
        ] {
            assert_ne!(of(a), of(b), "{a} / {b}");
        }
    }

    #[test]
    fn a_changed_line_of_a_long_prompt_changes_one_part() {
        let long = |n: usize| {
            (0..400).map(|i| format!("Rule {i} is rule {}.\n", if i == 200 { n } else { i })).collect::<String>()
        };
        let (a, b) = (of(&long(1)), of(&long(2)));
        let shared = a.shared(&b);
        assert!(a != b && shared.stands_in(&a) && shared.stands_in(&b), "{a:?} {b:?}");
        let (kept, all) = (shared.parts.len(), a.parts.len());
        assert!(all <= MOST * 2 && kept + 3 >= all, "{kept} of {all}");
        assert!(!Fixed::default().stands_in(&a));
    }

    #[test]
    fn a_prompt_without_some_words_is_part_of_the_other() {
        let base = "Be brief.\nUse the tools.\nThe folder holds main";
        assert!(of(base).is_part_of(&of("Be brief.\nUse the tools.\nThe folder holds main and the tests")));
        assert!(!of(base).is_part_of(&of("Be brief.\nUse the tools.\nThe folder holds tests")));
        assert!(!of(base).is_part_of(&of("Be brief.")));
    }
}
