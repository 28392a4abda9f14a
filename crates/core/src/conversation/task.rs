//! What a conversation is for, told from what a person says at its beginning.
//!
//! Pure. It counts words that people use for one kind of task and hardly for another, and says nothing where they do not
//! agree.

use std::collections::BTreeSet;

use super::{Message, person};

/// The kind of content that a task keeps longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Errors, and commands with how they ended.
    Errors,
    /// Files, and what was decided about them.
    Files,
    /// The words of people.
    Words,
    /// Sources, quotes and figures that were read.
    Sources,
    /// Findings and their locations.
    Findings,
}

impl Keep {
    /// All of them.
    pub const ALL: [Keep; 5] = [Keep::Errors, Keep::Files, Keep::Words, Keep::Sources, Keep::Findings];

    /// As it is written in a task's file.
    pub fn as_str(self) -> &'static str {
        match self {
            Keep::Errors => "errors",
            Keep::Files => "files",
            Keep::Words => "words",
            Keep::Sources => "sources",
            Keep::Findings => "findings",
        }
    }

    /// Reads [`Keep::as_str`].
    pub fn read(word: &str) -> Option<Keep> {
        Keep::ALL.into_iter().find(|keep| keep.as_str() == word)
    }
}

/// Messages of a person that are looked at.
const FIRST: usize = 2;

/// Different cues that a task must have, and how many more than the next.
const LEAST: usize = 2;

/// Characters of a message that are looked at: what is pasted after them is no longer what is asked.
const READ: usize = 2_000;

const CUES: [(&str, &[&str]); 4] = [
    (
        "debug",
        &[
            "error",
            "errors",
            "bug",
            "crash",
            "crashes",
            "crashed",
            "traceback",
            "exception",
            "fails",
            "failing",
            "broken",
            "debug",
            "fix",
            "wrong",
            "regression",
            "panic",
            "segfault",
        ],
    ),
    (
        "implement",
        &[
            "implement",
            "add",
            "create",
            "build",
            "write",
            "feature",
            "support",
            "refactor",
            "endpoint",
            "migrate",
            "port",
            "extend",
        ],
    ),
    (
        "research",
        &[
            "research",
            "sources",
            "source",
            "compare",
            "survey",
            "literature",
            "papers",
            "paper",
            "cite",
            "citations",
            "overview",
            "evidence",
        ],
    ),
    ("review", &["review", "audit", "findings", "diff", "pr", "patch", "vulnerabilities", "critique", "feedback"]),
];

/// What was told, and the cues that told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Name of the task.
    pub task: &'static str,
    /// Different cues that were counted.
    pub cues: usize,
    /// Those of the next best.
    pub next: usize,
}

/// Tells the task from the first messages of a person; `None` where they do not say.
pub fn told(body: &[Message]) -> Option<Told> {
    let said: BTreeSet<String> = body
        .iter()
        .filter_map(person::words)
        .take(FIRST)
        .flat_map(|words| {
            let words: String = words.chars().take(READ).collect();
            let each = words.to_lowercase();
            each.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let mut counts: Vec<(usize, &str)> =
        CUES.iter().map(|(task, cues)| (cues.iter().filter(|cue| said.contains(**cue)).count(), *task)).collect();
    counts.sort_by_key(|(cues, _)| std::cmp::Reverse(*cues));
    let ((cues, task), (next, _)) = (counts[0], counts[1]);
    (cues >= LEAST && cues >= next + LEAST).then_some(Told { task, cues, next })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::wire::openai_chat::message;

    #[test]
    fn a_task_is_told_where_the_words_agree() {
        let task = |text: &str| {
            let body = [message(Bytes::from(json!({"role": "user", "content": text}).to_string())).unwrap()];
            told(&body).map(|told| told.task)
        };
        assert_eq!(task("The build fails with a traceback. Find the bug."), Some("debug"));
        assert_eq!(task("Implement the export and add an endpoint for it."), Some("implement"));
        assert_eq!(task("Compare what the papers say and cite your sources."), Some("research"));
        assert_eq!(task("Please review this PR; list your findings."), Some("review"));
        assert_eq!(task("Add a test for the bug, and fix it."), None, "both, nearly");
        assert_eq!(task("Hello! How are you?"), None);
        assert_eq!(told(&[]), None);
    }
}
