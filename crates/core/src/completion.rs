//! A completion record: what stands of a task that is done, in six sections, made without any model. It takes the place of the part
//! of a brief that a model would write.
//!
//! Pure. Facts are copied, as in [`crate::brief`].

use crate::brief::done::{BEFORE, START};
use crate::brief::{self, Material, Part};
use crate::conversation::{Message, Role, person};
use crate::preview::clean::{sanitize, shorten};

/// Bytes of what was asked, and of the outcome.
const SAID: usize = 600;

/// Bytes of one line of a list, and lines of one.
const LINE: usize = 180;
const LINES: usize = 8;

/// A completion record of these messages. `note`: what somebody says of the outcome; empty where nobody does. `before`: the tasks
/// done before that no brief tells of, a line each.
pub fn completion(messages: &[&Message], note: &str, before: &[String]) -> String {
    let material =
        Material { messages, previous: None, history_path: "", conversation: "", records: &[], numbers: &[] };
    let facts = brief::facts(&material);
    let list = |part: Part| -> Vec<String> {
        let items = &facts.part(part).items;
        let newest = items[items.len().saturating_sub(LINES)..].iter();
        newest.map(|item| shorten(&one_line(&item.text), LINE).into_owned()).collect()
    };
    let asked = messages.iter().filter_map(|m| person::words(m)).filter(|words| !words.trim().is_empty());
    let asked: Vec<String> = asked.map(|words| one_line(&words)).collect();
    let answer = messages.iter().rev().find(|m| m.role == Role::Assistant && !m.text.trim().is_empty());
    let said = |text: &str| shorten(&one_line(text), SAID).into_owned();
    let last = answer.map(|m| said(&m.text));
    let outcome = if note.trim().is_empty() { last.clone() } else { Some(said(note)) };
    let mut checked = list(Part::Commands);
    checked.extend(list(Part::Errors).into_iter().map(|error| format!("seen on the way: {error}")));
    let mut now = list(Part::Open);
    if now.is_empty() && !note.trim().is_empty() {
        now.extend(last);
    }
    let none = |lines: Vec<String>, none: &str| if lines.is_empty() { vec![none.to_owned()] } else { lines };
    let mut sections = vec![
        ("Task", none(asks(&asked), "not said in words")),
        ("Outcome", none(outcome.into_iter().collect(), "nothing was said of it")),
        ("Files", none(list(Part::Files), "none")),
        ("Decisions", none(list(Part::Conclusions), "none that were said")),
        ("Verification", none(checked, "no command was run")),
        ("Where we are", none(now, "nothing is open")),
    ];
    if !before.is_empty() {
        sections.push((BEFORE, before.to_vec()));
    }
    let section = |(heading, lines): &(&str, Vec<String>)| format!("{heading}:\n- {}", lines.join("\n- "));
    let text = sections.iter().map(section).collect::<Vec<_>>().join("\n");
    sanitize(&format!("{START}\n{text}")).into_owned()
}

/// What was asked, a line each: the first, which says what it is all about, and the newest.
fn asks(all: &[String]) -> Vec<String> {
    let newest = all.len().saturating_sub(LINES - 1).max(1);
    let left_out = newest - 1;
    let shown = all.iter().take(1).chain(all.iter().skip(newest));
    let room = (SAID / all.len().clamp(1, LINES)).max(LINE);
    let mut lines: Vec<String> = shown.map(|words| shorten(words, room).into_owned()).collect();
    if left_out > 0 {
        lines.insert(1, format!("({left_out} more asks)"));
    }
    lines
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::brief::done::outcomes;
    use crate::wire::openai_chat::message;

    #[test]
    fn a_record_has_six_sections_and_says_what_is_not_known() {
        let read = |value: Value| message(Bytes::from(value.to_string())).unwrap();
        let call = json!([{"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"cargo test\"}"}}]);
        let all = [
            read(json!({"role": "user", "content": "Please mend the parser."})),
            read(json!({"role": "assistant", "content": null, "tool_calls": call})),
            read(
                json!({"role": "tool", "tool_call_id": "1", "content": "error: expected `;` in src/parse.rs:9\ntest result: FAILED"}),
            ),
            read(json!({"role": "assistant", "content": "The parser takes empty input now."})),
        ];
        let messages: Vec<&Message> = all.iter().collect();
        let text = completion(&messages, "Empty input parses. <|im_end|>", &[]);
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(':')).collect();
        assert_eq!(headings, ["Task", "Outcome", "Files", "Decisions", "Verification", "Where we are"], "{text}");
        for fact in
            ["Please mend the parser.", "Empty input parses.", "cargo test", "expected `;`", "takes empty input now"]
        {
            assert!(text.contains(fact), "{fact}: {text}");
        }
        assert!(!text.contains("<|im_end|>"), "{text}");
        let none = completion(&[], "", &[]);
        assert!(none.contains("Outcome:\n- nothing was said of it") && none.contains("Files:\n- none"), "{none}");
        let unsaid = completion(&messages, " ", &[]);
        assert!(unsaid.contains("Outcome:\n- The parser takes empty input now."), "{unsaid}");
    }

    #[test]
    fn a_record_names_all_that_was_asked_and_what_was_done_before() {
        let read =
            |role: &str, text: &str| message(Bytes::from(json!({"role": role, "content": text}).to_string())).unwrap();
        let asks = ["Mend the parser.", "Also handle tabs.", "And write the note."];
        let mut all: Vec<Message> = asks.iter().map(|ask| read("user", ask)).collect();
        all.push(read("assistant", "We decided to use a state machine. Tabs parse now."));
        let messages: Vec<&Message> = all.iter().collect();
        let first = completion(&messages, "", &[]);
        for fact in asks.iter().chain(&["Outcome:\n- We decided to use a state machine."]) {
            assert!(first.contains(fact), "{fact}: {first}");
        }
        let line = "Mend the parser. → We decided to use a state machine. Tabs parse now.";
        assert_eq!(outcomes(&first), [line]);
        let second = completion(&[&read("user", "Sail.")], "Sailed.", &outcomes(&first));
        assert_eq!(outcomes(&second), [line, "Sail. → Sailed."]);
        assert!(outcomes("## Goal\nTask:\n- x\nOutcome:\n- y").is_empty());
        let many: Vec<Message> = (0..20).map(|n| read("user", &format!("Take step {n} now."))).collect();
        let long = completion(&many.iter().collect::<Vec<_>>(), "", &[]);
        for fact in ["Take step 0 now.", "(12 more asks)", "Take step 13 now.", "Take step 19 now."] {
            assert!(long.contains(fact), "{fact}: {long}");
        }
        assert!(!long.contains("step 12"), "{long}");
    }
}
