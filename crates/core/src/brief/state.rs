//! How far the part of a brief that a model wrote goes. State and next steps are true when they are written: a part that is
//! older than its brief says so, and what is older than the fold before that holds no state any more.

use super::{Facts, render};
use crate::conversation::edit::{Edit, View};
use crate::pinned;

/// How the line begins that stands above a part that is older than its brief.
const MARK: &str = "[This summary goes as far as message ";

/// How it goes on after the number.
const LATER: &str = "; what came later is told below it]";

/// Headings of what stays true for longer than a fold; the first are sections that the instruction of a summary asks for; see [`COMPLETION`], too.
const LASTING: [&str; 8] =
    ["goal", "files", "technical context", "strategy", "task", "outcome", "decisions", "verification"];

/// Headings of a completion record, which stand in lines of their own, before a colon.
const COMPLETION: [&str; 6] = ["Task", "Outcome", "Files", "Decisions", "Verification", "Where we are"];

/// One past the last message that the model's part of a brief was made from, where the brief's own fold ends at `to`; `None`
/// where it has no such part.
pub fn goes_to(brief: &str, to: usize) -> Option<usize> {
    let facts = render::parse(brief)?;
    facts.summary.map(|_| facts.told.unwrap_or(to).min(to))
}

/// The same of the brief of a view: see [`Facts::told`](crate::plan::Facts::told).
pub fn told(view: &View) -> Option<usize> {
    view.edits.iter().find_map(|edit| match edit {
        Edit::Fold { from, to, brief, .. } if from < to => Some(goes_to(pinned::without(brief), *to)),
        _ => None,
    })?
}

/// The line above a part that goes as far as the message before `told`.
pub(super) fn mark(told: usize) -> String {
    format!("{MARK}{}{LATER}", told.saturating_sub(1))
}

/// A part without its mark, and what the mark says.
pub(super) fn unmarked(summary: &str) -> (Option<usize>, &str) {
    let (line, rest) = summary.split_once('\n').unwrap_or((summary, ""));
    let number =
        line.strip_prefix(MARK).and_then(|line| line.strip_suffix(LATER)).and_then(|n| n.parse::<usize>().ok());
    number.map_or((None, summary), |last| (Some(last.saturating_add(1)), rest))
}

/// What a model wrote, without marks that it copied.
pub(super) fn without_marks(summary: &str) -> String {
    let lines: Vec<&str> = summary.lines().filter(|line| !line.trim_start().starts_with(MARK)).collect();
    lines.join("\n")
}

/// What of a summary stays true for longer than a fold: the sections that are known to. One that has other headings, or none,
/// may say anywhere what is done and what comes next.
fn lasting(summary: &str) -> String {
    let mut stays = false;
    let lines = summary.lines().filter(|line| {
        let of_record = || line.strip_suffix(':').filter(|heading| COMPLETION.contains(heading));
        if let Some(heading) = line.trim_start().strip_prefix('#').or_else(of_record) {
            let heading = heading.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            stays = LASTING.iter().any(|lasting| heading.starts_with(lasting));
        }
        stays
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Facts {
    /// Lets the model's part grow older: the fold reaches `to` now, and the last one reached `done`. `written`: how far a new
    /// part goes that takes its place, if there is one.
    #[must_use]
    pub fn aged(mut self, done: usize, to: usize, written: Option<usize>) -> Facts {
        if let Some(reach) = written {
            self.told = Some(reach).filter(|reach| *reach < to);
            return self;
        }
        if to <= done || self.summary.is_none() {
            return self;
        }
        if self.told.is_some() {
            self.summary = self.summary.map(|summary| lasting(&summary)).filter(|summary| !summary.is_empty());
        }
        self.told = self.summary.as_ref().map(|_| self.told.unwrap_or(done));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::brief::{Facts, parse, render};

    const SUMMARY: &str = "## Goal\nRepair the ledger.\n## Current state\nModule 4 is done.\n## Technical context\nPort 7071.\n\
        ## Exact next steps\n1. Take module 5.";

    fn tokens(text: &str) -> u32 {
        text.len() as u32 / 4
    }

    /// The next brief of a fold up to `to`, after one up to `done`.
    fn next(brief: &str, done: usize, to: usize) -> String {
        let facts = parse(brief).expect("a brief").aged(done, to, None);
        render(None, &facts, 900, &tokens)
    }

    #[test]
    fn a_state_is_marked_when_it_is_a_fold_old_and_gone_when_it_is_older() {
        let first = render(Some(SUMMARY), &Facts { folded: 9, ..Facts::default() }, 900, &tokens);
        assert!(!first.contains(MARK) && goes_to(&first, 10) == Some(10), "{first}");
        let second = next(&first, 10, 16);
        assert!(second.contains("as far as message 9;") && second.contains("Take module 5"), "{second}");
        assert_eq!(goes_to(&second, 16), Some(10));
        // The same fold made again is no older.
        assert_eq!(next(&second, 16, 16), second);
        let third = next(&second, 16, 20);
        assert!(!third.contains("Module 4") && !third.contains("Take module 5"), "{third}");
        assert!(third.contains("as far as message 9;") && third.contains("Port 7071"), "{third}");
        assert_eq!((goes_to(&third, 20), next(&third, 20, 24).contains("Port 7071")), (Some(10), true));
        // A new one stands for itself, with a mark where it did not see all that is folded.
        let known = parse(&third).expect("a brief");
        let renewed = render(Some("Module 9 is done."), &known.clone().aged(20, 24, Some(30)), 900, &tokens);
        assert!(renewed.contains("Module 9") && !renewed.contains(MARK) && !renewed.contains("Port 7071"), "{renewed}");
        let late = render(Some("Module 9 is done."), &known.aged(20, 24, Some(22)), 900, &tokens);
        assert!(late.contains("as far as message 21;") && goes_to(&late, 24) == Some(22), "{late}");
    }

    #[test]
    fn a_summary_without_headings_says_nothing_for_longer_than_a_fold() {
        let first = render(Some("Module 4 is done; module 5 comes next."), &Facts::default(), 900, &tokens);
        let third = next(&next(&first, 10, 16), 16, 20);
        assert!(!third.contains("Module 4") && !third.contains(MARK), "{third}");
        assert_eq!(goes_to(&third, 20), None);
        assert_eq!(goes_to("no brief", 3), None);
    }

    #[test]
    fn what_a_finished_task_came_to_stays_true() {
        let record = "Task:\n- Repair the ledger.\nOutcome:\n- The port is 7071.\nWhere we are:\n- Nothing is open.";
        let first = render(Some(record), &Facts::default(), 900, &tokens);
        let third = next(&next(&first, 10, 16), 16, 20);
        assert!(third.contains("The port is 7071.") && !third.contains("Nothing is open"), "{third}");
    }

    #[test]
    fn a_mark_that_a_model_copies_counts_for_nothing() {
        let copied = format!("{}\n{SUMMARY}\n  {}", mark(4), mark(7));
        let brief = render(Some(&copied), &Facts::default(), 900, &tokens);
        assert!(!brief.contains(MARK) && goes_to(&brief, 30) == Some(30), "{brief}");
    }
}
