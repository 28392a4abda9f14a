//! Whether an agent goes in circles: calls that are made again and again and bring nothing new, or an error that keeps
//! coming.
//!
//! Pure. It looks at what happened since a person spoke last, and says what it counted. A result that differs from the last
//! one is progress: so a poll whose answer changes, or a check after each edit, is no loop.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;

use super::{Digest, Message, Role, chain, step};
use crate::preview::clean::floor;

/// A loop lies within this many calls for each repetition that is asked for: an error that came five times over hundreds of
/// calls is bad luck.
const REACH: usize = 8;

/// Results longer than this are compared as they are (bytes). What a clock puts into a long result seldom stands alone.
const MASKED: usize = 16 * 1024;

/// An error of fewer words says too little to be the same error: `error`, `exit status 1`.
const SAYS_SOMETHING: usize = 4;

/// So much of a line is looked at for words of an error (bytes).
const LINE: usize = 400;

/// What goes round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The same call with the same result.
    SameCall,
    /// Two or more calls in turn, each with the same result every time.
    Cycle,
    /// The same error, whatever was tried.
    SameError,
}

impl Kind {
    /// As it stands in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::SameCall => "same_call",
            Kind::Cycle => "cycle",
            Kind::SameError => "same_error",
        }
    }
}

/// A loop that the newest result is part of, and what was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// What goes round.
    pub kind: Kind,
    /// How often.
    pub times: usize,
    /// Calls from the first of these to the last.
    pub calls: usize,
    /// Different calls among them.
    pub distinct: usize,
    /// Name of the tool that was called last.
    pub tool: String,
    /// The newest result, as an index of the body.
    pub at: usize,
}

/// A call and what came of it.
struct Did {
    call: Digest,
    result: Digest,
    /// The error it ended in, if it did.
    error: Option<Digest>,
    tool: String,
    at: usize,
}

/// Looks for a loop that the newest result is part of. `repeats`: how often makes a loop; 0 finds none. `excepted` says of
/// which tools calls are meant to repeat.
pub fn find(body: &[Message], repeats: usize, excepted: &dyn Fn(&str) -> bool) -> Option<Loop> {
    if repeats < 2 || body.last()?.role != Role::Tool {
        return None;
    }
    let done = since_a_person_spoke(body, repeats.saturating_mul(REACH), excepted);
    // A tool that is meant to repeat is no part of a loop, also where it came last.
    let newest = done.last().filter(|did| did.at + 1 == body.len())?;
    circle(&done, newest, repeats).or_else(|| same_error(&done, newest, repeats))
}

/// The newest `most` calls that have a result, oldest first.
fn since_a_person_spoke(body: &[Message], most: usize, excepted: &dyn Fn(&str) -> bool) -> Vec<Did> {
    let from = body.iter().rposition(step::is_persons).map_or(0, |at| at + 1);
    let results = (from..body.len()).rev().filter(|at| body[*at].role == Role::Tool);
    let read = |at: usize| {
        let (message, call) = step::call_of(body, at)?;
        let made = &body[message].calls[call];
        if excepted(&made.name) {
            return None;
        }
        let said = format!("{}\n{}", made.name, chain::canonical(&made.arguments));
        let result = masked(&body[at]);
        let error = has_failed(&body[at]).then_some(result);
        Some(Did { call: Digest::of(said.as_bytes()), result, error, tool: made.name.clone(), at })
    };
    let mut done: Vec<Did> = results.filter_map(read).take(most).collect();
    done.reverse();
    done
}

/// The newest call, made `repeats` times with the same result, with nothing new in between: of the calls from the first of
/// these to the last, at most one in `repeats - 1` is different from all others.
fn circle(done: &[Did], newest: &Did, repeats: usize) -> Option<Loop> {
    let same = |did: &&Did| (did.call, did.result) == (newest.call, newest.result);
    let times = done.iter().filter(same).count();
    let (first, _) = done.iter().enumerate().rev().filter(|(_, did)| same(did)).nth(repeats - 1)?;
    let span = &done[first..];
    let distinct = span.iter().map(|did| (did.call, did.result)).collect::<HashSet<_>>().len();
    if distinct > 1 + (span.len() - 1) / (repeats - 1) {
        return None;
    }
    let kind = if distinct == 1 { Kind::SameCall } else { Kind::Cycle };
    let tool = newest.tool.clone();
    Some(Loop { kind, times, calls: span.len(), distinct, tool, at: newest.at })
}

/// The newest error, `repeats` times.
fn same_error(done: &[Did], newest: &Did, repeats: usize) -> Option<Loop> {
    let error = newest.error?;
    let mut times: HashMap<Digest, usize> = HashMap::new();
    done.iter().filter_map(|did| did.error).for_each(|error| *times.entry(error).or_default() += 1);
    let times = times.get(&error).copied().filter(|times| *times >= repeats)?;
    let (first, _) = done.iter().enumerate().rev().filter(|(_, did)| did.error == Some(error)).nth(repeats - 1)?;
    let span = &done[first..];
    let distinct = span.iter().map(|did| did.call).collect::<HashSet<_>>().len();
    Some(Loop { kind: Kind::SameError, times, calls: span.len(), distinct, tool: newest.tool.clone(), at: newest.at })
}

/// Digest of what a result says, without what differs each time though nothing has changed: durations, times of day, dates,
/// addresses.
fn masked(result: &Message) -> Digest {
    static NOISE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)0x[0-9a-f]+|\b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?\b|\b\d+(?:\.\d+)?\s?(?:ms|s|sec|secs|seconds|min|minutes)\b|\b\d{4}-\d\d-\d\d\b",
        )
        .expect("the pattern is fixed")
    });
    if result.text.len() > MASKED {
        return result.digest;
    }
    Digest::of(NOISE.replace_all(result.text.trim(), "~").as_bytes())
}

/// True where a call failed: its client says so of the result, or the result reads like an error.
pub(crate) fn has_failed(result: &Message) -> bool {
    result.failed || is_error(&result.text)
}

/// Whether a result reads like an error: its first or last line says so, and it says more than that.
pub(crate) fn is_error(text: &str) -> bool {
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)\b(?:error|exception|traceback|failed|failure|fatal|denied|not found|no such|invalid|cannot|can't|unable|timed out)\b",
        )
        .expect("the pattern is fixed")
    });
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (first, last) = (lines.next(), lines.next_back());
    let says = text.split_whitespace().take(SAYS_SOMETHING).count() == SAYS_SOMETHING;
    // A line may be a megabyte long; what it is stands at its beginning.
    let begins = |line: &str| WORDS.is_match(&line[..floor(line, LINE)]);
    says && [first, last].into_iter().flatten().any(begins)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::openai_chat::message;

    /// A body of steps: tool, arguments, result.
    fn steps(all: &[(&str, &str, &str)]) -> Vec<Message> {
        let read = |value: Value| message(Bytes::from(value.to_string())).unwrap();
        let mut body = vec![read(json!({"role": "user", "content": "Please do it."}))];
        for (i, (tool, arguments, result)) in all.iter().enumerate() {
            let id = format!("c{i}");
            let call = json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}});
            body.push(read(json!({"role": "assistant", "content": null, "tool_calls": [call]})));
            body.push(read(json!({"role": "tool", "tool_call_id": id, "content": result})));
        }
        body
    }

    fn found(all: &[(&str, &str, &str)]) -> Option<(&'static str, usize, usize)> {
        find(&steps(all), 5, &|tool| tool == "wait").map(|l| (l.kind.as_str(), l.times, l.distinct))
    }

    #[test]
    fn a_call_that_brings_the_same_five_times_is_a_loop() {
        let same = ("ls", r#"{"a": 1, "b": 2}"#, "one two");
        assert_eq!(found(&[same; 4]), None);
        assert_eq!(found(&[same; 5]), Some(("same_call", 5, 1)));
        // Arguments are compared by what they say, results without what a clock put there.
        let other = ("ls", r#"{"b":2,"a":1}"#, "one two");
        assert_eq!(found(&[same, other, same, other, same, other]), Some(("same_call", 6, 1)));
        let timed: Vec<String> = (0..5).map(|i| format!("2 failed in 0.{i}1s at 12:00:0{i}")).collect();
        let runs: Vec<_> = timed.iter().map(|t| ("run", "{}", t.as_str())).collect();
        assert_eq!(found(&runs), Some(("same_call", 5, 1)));
    }

    #[test]
    fn two_calls_in_turn_are_a_loop_and_a_new_result_is_progress() {
        let (a, b) = (("read", "{}", "text of the file"), ("test", "{}", "it is still red"));
        let turns: Vec<_> = [a, b].into_iter().cycle().take(9).collect();
        assert_eq!(found(&turns[..7]), None);
        assert_eq!(found(&turns), Some(("cycle", 5, 2)));
        let counts: Vec<String> = (0..12).map(|i| format!("{i} files left")).collect();
        let polls: Vec<_> = counts.iter().map(|t| ("status", "{}", t.as_str())).collect();
        assert_eq!(found(&polls), None, "a poll whose answer changes");
    }

    #[test]
    fn a_check_after_each_edit_is_no_loop() {
        let edits: Vec<String> = (0..20).map(|i| format!(r#"{{"line": {i}}}"#)).collect();
        let work: Vec<_> =
            edits.iter().flat_map(|e| [("edit", e.as_str(), "ok"), ("check", "{}", "all is well")]).collect();
        assert_eq!(found(&work), None);
    }

    #[test]
    fn an_error_that_keeps_coming_is_a_loop_within_reach_only() {
        let tries: Vec<String> = (0..200).map(|i| format!(r#"{{"try": {i}}}"#)).collect();
        let error = "Error: bash has not returned in 120 seconds";
        let every = |n: usize| -> Vec<(&str, &str, &str)> {
            let result = |i: usize| if (i + 1).is_multiple_of(n) { error } else { "done" };
            tries.iter().enumerate().map(|(i, t)| ("bash", t.as_str(), result(i))).collect()
        };
        assert_eq!(found(&every(3)[..12]), None, "four times");
        assert_eq!(found(&every(3)[..15]), Some(("same_error", 5, 13)));
        assert_eq!(found(&every(3)[..16]), None, "the newest result is another one");
        assert_eq!(found(&every(20)), None, "too far apart");
        assert_eq!(found(&[("bash", "{}", "a"), ("bash", "[1]", "error")]), None);
    }

    #[test]
    fn polls_persons_and_the_switch() {
        let same = ("wait", "{}", "still running");
        assert_eq!(found(&[same; 9]), None, "excepted");
        let mut body = steps(&[("ls", "{}", "one"); 8]);
        assert!(find(&body, 5, &|_| false).is_some());
        assert!(find(&body, 0, &|_| false).is_none(), "0 looks for nothing");
        body.insert(10, message(Bytes::from_static(br#"{"role":"user","content":"Again, please."}"#)).unwrap());
        assert!(find(&body, 5, &|_| false).is_none(), "a person asked again");
        assert!(find(&[], 5, &|_| false).is_none());
    }
}
