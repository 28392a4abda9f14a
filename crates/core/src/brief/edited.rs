//! A brief that a person changed: what they wrote stands among the user's words, so that the briefs after it hold it, too.

use std::collections::HashSet;

use super::Facts;
use super::render::{self, END};
use super::said::with_words;

/// The brief that a person made of another one, which stands for `folded` messages. Lines that the other one does not have are the
/// person's words. Text without the frame of a brief gets that of the other one; where it has none of a brief's headings, either, all
/// of it is the person's, whatever it has in common with the other one.
pub fn edited(old: &str, new: &str, folded: u32) -> String {
    let is_free = render::framed(new).is_none() && !new.lines().any(render::is_heading);
    let known: HashSet<&str> = if is_free { HashSet::new() } else { old.lines().map(plain).collect() };
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
