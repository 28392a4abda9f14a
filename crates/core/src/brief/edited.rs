//! A brief that a person changed: what they wrote stands among the user's words, so that the briefs after it hold it, too.

use std::collections::HashSet;
use std::sync::Arc;

use super::render::{self, END, FACTS};
use super::said::with_words;
use super::statements;
use super::{Facts, Part};
use crate::conversation::{Message, Role};

/// Lines taken out of briefs that are held at most, the newest.
const STRUCK: usize = 200;

/// The brief that a person made of another one, which stands for `folded` messages. Lines that the other one does not have are the
/// person's words. Text without the frame of a brief gets that of the other one; where it has none of a brief's headings, either, all
/// of it is the person's, whatever it has in common with the other one.
pub fn edited(old: &str, new: &str, folded: u32) -> String {
    let known: HashSet<&str> = if is_free(new) { HashSet::new() } else { old.lines().map(plain).collect() };
    let (head, body) = match render::framed(new) {
        Some((head, body)) => (head.to_owned(), body),
        None => {
            let head = render::framed(old).map(|(head, _)| head.to_owned());
            (head.unwrap_or_else(|| render::header(&Facts { folded, ..Facts::default() }, 0)), new)
        }
    };
    let (mut stays, mut words): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let mut goes_on = false;
    for line in body.lines() {
        let text = plain(line);
        if text.is_empty() || known.contains(text) || render::is_heading(line) {
            stays.push(line);
            goes_on = false;
            continue;
        }
        match words.last_mut().filter(|_| goes_on && !line.starts_with("- ")) {
            Some(last) => *last = format!("{last}\n{}", line.trim_end()),
            None => words.push(text.to_owned()),
        }
        goes_on = true;
    }
    let stays = stays.join("\n");
    let stays = stays.trim();
    let line = if stays.is_empty() { "" } else { "\n" };
    with_words(&format!("{head}\n{stays}{line}{END}"), &words)
}

/// Whether a text has neither the frame nor a heading of a brief.
fn is_free(text: &str) -> bool {
    render::framed(text).is_none() && !text.lines().any(render::is_heading)
}

/// The lines that a person has taken out of the briefs of a conversation, once they changed the brief `old` into `new`. These are the
/// lines of `old` that `new` lacks, adjacent ones as one text, and the earlier ones in `before` that `new` does not bring back. A text
/// without the form of a brief takes nothing out, since it tells nothing about single lines.
pub fn struck(old: &str, new: &str, before: &[Arc<str>]) -> Vec<Arc<str>> {
    let Some((_, body)) = render::framed(old).filter(|_| !is_free(new)) else { return before.to_vec() };
    let stands: HashSet<&str> = new.lines().map(plain).collect();
    let mut out: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in body.lines() {
        let text = plain(line);
        let says = !text.is_empty() && text != FACTS && !text.starts_with("(+") && !render::is_heading(line);
        if !says || stands.contains(text) {
            goes_on = false;
            continue;
        }
        match out.last_mut().filter(|_| goes_on && !line.starts_with("- ")) {
            Some(last) => *last = format!("{last}\n{text}"),
            None => out.push(text.to_owned()),
        }
        goes_on = true;
    }
    let is_out = |text: &&Arc<str>| !text.lines().all(|line| stands.contains(line));
    let mut all: Vec<Arc<str>> = before.iter().filter(is_out).cloned().chain(out.into_iter().map(Arc::from)).collect();
    all.drain(..all.len().saturating_sub(STRUCK));
    all
}

/// The lines taken out of briefs that no user repeats in these messages.
pub fn still_struck<'m>(struck: &[Arc<str>], messages: impl Iterator<Item = &'m Message>) -> Vec<Arc<str>> {
    if struck.is_empty() {
        return Vec::new();
    }
    let said: Vec<&str> = messages.filter(|m| m.role == Role::User).map(|m| m.text.as_str()).collect();
    let is_said = |text: &str| {
        let mut parts = text.split(['…', '\n']).map(str::trim).filter(|part| !part.is_empty()).peekable();
        parts.peek().is_some() && parts.all(|part| said.iter().any(|said| said.contains(part)))
    };
    struck.iter().filter(|text| !is_said(statements::unmarked(text).as_ref())).cloned().collect()
}

/// Removes the lines taken out of briefs from the facts. [`super::without_words`] does the same for the user's words.
pub fn strike(facts: &mut Facts, struck: &[Arc<str>]) {
    if struck.is_empty() {
        return;
    }
    let is_struck = |text: &str| struck.iter().any(|struck| **struck == *text);
    for part in Part::ALL.into_iter().filter(|part| *part != Part::User) {
        facts.sections[part as usize].items.retain(|item| !is_struck(&item.text));
    }
    facts.work = std::mem::take(&mut facts.work).without(struck);
}

/// A line without what makes it a part of a list.
fn plain(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix("- ").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::brief::tests::message;
    use crate::brief::{Item, Part, facts, parse, render, restate};
    use crate::brief::{Material, Work};
    use crate::conversation::{Message, Role};

    fn tokens(text: &str) -> u32 {
        text.len() as u32 / 4
    }

    fn old() -> String {
        let mut facts = Facts { folded: 14, ..Facts::default() };
        for n in 0..40 {
            let item =
                Item::new(Part::User, format!("Step {n} of the plan is to look at module {n} and its tests."), 1);
            facts.sections[Part::User as usize].items.push(item);
        }
        facts.sections[Part::Files as usize].items.push(Item::new(Part::Files, "read src/query.py".into(), 1));
        facts.work = Work::default();
        render(Some("## Goal\nRepair the query.\n## Next\nLook at line 7."), &facts, 700, &tokens)
    }

    /// The next brief after this one, of messages that are folded with no model's help.
    fn next(brief: &str, number: usize) -> String {
        let said = |n: usize| message(Role::User, &format!("Please read the file {n}."));
        let messages: Vec<Message> = (0..4).map(said).collect();
        let new: Vec<&Message> = messages.iter().collect();
        let numbers: Vec<usize> = (number..number + 4).collect();
        let material = Material {
            messages: &new,
            numbers: &numbers,
            previous: Some(brief),
            history_path: "",
            conversation: "c",
            records: &[],
        };
        let mut facts = facts(&material).aged(number, number + 4, None);
        restate(&mut facts, numbers.iter().copied().zip(&messages), number);
        render(None, &facts, 700, &tokens)
    }

    #[test]
    fn what_a_person_wrote_stays_in_the_briefs_after_it() {
        let old = old();
        let written = "The fix goes into query.py line 1017, and ZEBRA is the code word.";
        let end = old.len() - END.len();
        let goal = old.replace("Repair the query.", written);
        for new in [
            written.to_owned(),
            format!("{}{written}\n{END}", &old[..end]),
            goal,
            old.replacen("- Step 3", &format!("- {written}\n- Step 3"), 1),
            old.replacen('\n', &format!("\n{written}\n"), 1),
        ] {
            let mut brief = edited(&old, &new, 14);
            assert_eq!(brief.matches(written).count(), 1, "{brief}");
            assert_eq!(parse(&brief).expect("a brief").folded, 14, "{brief}");
            for round in 0..6 {
                brief = next(&brief, 14 + 4 * round);
                assert!(brief.contains(written), "{new}\n\n{round}: {brief}");
            }
            assert_eq!(parse(&brief).expect("a brief").folded, 14 + 24);
        }
    }

    #[test]
    fn what_a_person_took_out_is_known_until_somebody_says_it_again() {
        let old = old();
        let line = "Step 39 of the plan is to look at module 39 and its tests.";
        assert_eq!(old.matches(line).count(), 1, "{old}");
        let texts = |struck: &[Arc<str>]| struck.iter().map(ToString::to_string).collect::<Vec<_>>();
        let new = old.replacen(&format!("- {line}\n"), "", 1);
        let out = struck(&old, &new, &[]);
        assert_eq!(texts(&out), [line]);
        assert_eq!(texts(&struck(&new, &new.replacen("Look at line 7.", "Look at line 8.", 1), &out)).len(), 2);
        // Written again, it is back; and so it is where a user says it.
        assert_eq!(texts(&struck(&new, &old, &out)), Vec::<String>::new());
        let said = |text: &str| texts(&still_struck(&out, std::iter::once(&message(Role::User, text))));
        assert_eq!((said("Go on.").len(), said(&format!("As I said: {line}")).len()), (1, 0));
        // A text of one's own says nothing of what stood there.
        assert_eq!(texts(&struck(&old, "Mind the gate.", &[])), Vec::<String>::new());
        let mut facts = Facts::default();
        let finding = |text: &str| Item::new(Part::Findings, text.into(), 1);
        facts.sections[Part::Findings as usize].items = vec![finding("PORT = 8411"), finding("PORT = 8412")];
        strike(&mut facts, &["PORT = 8411".into()]);
        assert_eq!(facts.part(Part::Findings).items, [finding("PORT = 8412")]);
    }

    #[test]
    fn what_a_person_left_alone_stays_as_it_was() {
        let old = old();
        assert_eq!(edited(&old, &old, 14), old);
        let without = old.replace("Repair the query.\n", "");
        assert_eq!(edited(&old, &without, 14), without);
        // Several lines are one statement, and items are several.
        let words = "Mind the gate.\nIt is green.\n\n- One.\n- Two.";
        let read = parse(&edited(&old, words, 14)).expect("a brief");
        let texts: Vec<&str> = read.part(Part::User).items.iter().map(|item| item.text.as_str()).collect();
        assert_eq!(texts, ["Mind the gate.\nIt is green.", "One.", "Two."]);
        // A text of one's own is that from its first line to its last, also where a line of it was known.
        let read = parse(&edited(&old, "Look at line 7.\n\nThen stop.", 14)).expect("a brief");
        let texts: Vec<&str> = read.part(Part::User).items.iter().map(|item| item.text.as_str()).collect();
        assert_eq!((texts.as_slice(), read.summary.as_deref()), (["Look at line 7.", "Then stop."].as_slice(), None));
        // Without a frame anywhere, it gets one.
        assert_eq!(parse(&edited("Paint it.", "Paint it red.", 3)).expect("a brief").folded, 3);
        assert!(!edited(&old, "a [end of windowsill brief] b", 14).contains("a [end of"));
    }
}
