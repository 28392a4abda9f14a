//! The user's words in a brief, changed from outside: what is pinned, or stands in a message that stays in full, is said once.

use std::ops::Range;

use super::render::{self, shape};
use super::safe::defuse;
use super::section::add;
use super::{Facts, Item, Part, statements};
use crate::conversation::{Message, Role};
use crate::preview::clean::sanitize;

/// Words that are shorter than this are only the same where they are all of it (bytes).
const SHORTEST_PART: usize = 12;

/// A brief without those of the user's words that stand in one of these texts.
pub fn without_words(brief: &str, texts: &[String]) -> String {
    let stands = |item: &str| {
        let words = statements::unmarked(item);
        let parts = || words.split(['…', '\n']).map(str::trim).filter(|part| !part.is_empty());
        let within = |text: &String| item.len() >= SHORTEST_PART && parts().all(|part| text.contains(part));
        texts.iter().any(|text| text.trim() == words.trim() || within(text))
    };
    edit_words(brief, |items| items.retain(|item| !stands(item)))
}

/// A brief that has these words of the user, too.
pub fn with_words(brief: &str, words: &[String]) -> String {
    edit_words(brief, |items| items.extend(words.iter().map(|text| defuse(&sanitize(text)))))
}

/// A brief with its list of the user's words changed.
fn edit_words(brief: &str, change: impl FnOnce(&mut Vec<String>)) -> String {
    let heading = shape(Part::User).0;
    let Some(at) = brief.find(&format!("\n{heading}\n")).map(|at| at + 1) else { return begun(brief, change) };
    let list = at + heading.len() + 1;
    let is_of_it = |line: &&str| line.starts_with("- ") || line.starts_with("  ");
    let length: usize = brief[list..].split_inclusive('\n').take_while(is_of_it).map(str::len).sum();
    let (before, after) = (&brief[..at], &brief[list + length..]);
    let mut items: Vec<String> = Vec::new();
    for line in brief[list..list + length].lines() {
        match (line.strip_prefix("- "), items.last_mut()) {
            (Some(first), _) => items.push(first.to_owned()),
            (None, Some(text)) => *text = format!("{text}\n{}", line.strip_prefix("  ").unwrap_or(line)),
            (None, None) => {}
        }
    }
    change(&mut items);
    let lines = listed(&items);
    // Words that went out and are counted still have their heading.
    let heading = if lines.is_empty() && !after.starts_with("(+") { String::new() } else { format!("{heading}\n") };
    format!("{before}{heading}{lines}{after}")
}

/// A brief without such a list, with the one that a change makes.
fn begun(brief: &str, change: impl FnOnce(&mut Vec<String>)) -> String {
    let mut items = Vec::new();
    change(&mut items);
    let Some(at) = render::facts_at(brief).filter(|_| !items.is_empty()) else { return brief.to_owned() };
    let (before, after) = brief.split_at(at);
    let fence = if render::needs_fence(before) { format!("{}\n", render::FACTS) } else { String::new() };
    format!("{before}{fence}{}\n{}{after}", shape(Part::User).0, listed(&items))
}

/// Words as lines of a list.
fn listed(items: &[String]) -> String {
    items.iter().map(|text| format!("- {}\n", text.replace('\n', "\n  "))).collect()
}

/// Puts words of the user that were pinned back among the others: they did not stand there while they were pinned. Texts that
/// the user says in none of these messages are nobody's words there.
pub fn unpin(facts: &mut Facts, pinned: Vec<String>, body: &[Message], within: Range<usize>) {
    for text in said_by(pinned, body, within) {
        add(&mut facts.sections[Part::User as usize], Part::User, Item::new(Part::User, defuse(&sanitize(&text)), 1));
    }
}

/// Of these texts, those that the user says in one of these messages.
pub fn said_by(texts: Vec<String>, body: &[Message], within: Range<usize>) -> Vec<String> {
    let messages = body.get(within).unwrap_or_default();
    let says = |text: &String| messages.iter().any(|m| m.role == Role::User && m.text.contains(text.as_str()));
    texts.into_iter().filter(says).collect()
}

/// What the user says in messages that stay in full though those around them are folded.
pub fn said_in(body: &[Message], keep: &[usize]) -> Vec<String> {
    let kept = keep.iter().filter_map(|at| body.get(*at)).filter(|message| message.role == Role::User);
    kept.map(|message| message.text.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{parse, render as rendered};
    use super::*;

    fn count(text: &str) -> u32 {
        u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX)
    }

    #[test]
    fn words_come_back_where_no_others_stand() {
        let words = ["Rule: stay off the pier.".to_owned()];
        let mut found = Facts { folded: 3, ..Facts::default() };
        for has_findings in [false, true] {
            for summary in [None, Some("## Goal\nMend the harbor.")] {
                let brief = rendered(summary, &found, 400, &count);
                let with = with_words(&brief, &words);
                let read = parse(&with).unwrap();
                assert_eq!(read.part(Part::User).items[0].text, words[0], "{with}");
                assert_eq!(read.summary.as_deref(), summary, "{with}");
                assert_eq!(read.part(Part::Findings).items.len(), usize::from(has_findings), "{with}");
                // Taken out again, and where there is nothing to take.
                assert!(!without_words(&with, &words).contains("pier"), "{with}");
                assert_eq!(without_words(&brief, &words), brief);
            }
            found.sections[Part::Findings as usize].items.push(Item::new(Part::Findings, "PORT = 8411".into(), 1));
        }
    }
}
