//! Tasks that are done, as the briefs behind them tell of them: a line each, out of the completion record.

use super::{Facts, Part, parse};
use crate::preview::clean::shorten;

/// How a completion record begins.
pub const START: &str = "A task is done.";

/// Its section of the tasks that were done before it.
pub const BEFORE: &str = "Done before";

/// Bytes of a task and of its outcome, in one line about both.
const TASK: usize = 90;
const OUTCOME: usize = 130;

/// What a completion record tells of: each task with its outcome in one line, its own last. Nothing, for any other text.
pub fn outcomes(record: &str) -> Vec<String> {
    let Some(record) = record.trim_start().strip_prefix(START) else { return Vec::new() };
    let (mut heading, mut task, mut outcome, mut all) = ("", None, None, Vec::new());
    for line in record.lines() {
        match line.strip_prefix("- ") {
            None => heading = line.trim_end_matches(':'),
            Some(said) if heading == "Task" => task = task.or(Some(said)),
            Some(said) if heading == "Outcome" => outcome = outcome.or(Some(said)),
            Some(said) if heading == BEFORE => all.push(said.to_owned()),
            Some(_) => {}
        }
    }
    let own = task.zip(outcome).map(|(task, end)| format!("{} → {}", shorten(task, TASK), shorten(end, OUTCOME)));
    all.extend(own);
    all
}

/// Whether a brief tells how a task ended: this line is one of [`outcomes`].
pub fn tells(brief: &str, line: &str) -> bool {
    let Some(Facts { sections, summary, .. }) = parse(brief) else { return false };
    let stands = sections[Part::Done as usize].items.iter().any(|item| item.text == line);
    stands || summary.is_some_and(|summary| outcomes(&summary).iter().any(|own| own == line))
}
