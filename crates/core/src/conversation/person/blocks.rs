//! The blocks that clients put into a person's message: where they are, and which of them carry rules.

use std::ops::Range;

use memchr::memmem;

/// Parts of the names of tags that clients wrap machine text in (`<system-reminder>`, `<environment_context>`,
/// `<permissions instructions>`, `<user_info>`), in lower case.
const WRAPPERS: [&str; 14] = [
    "remind",
    "environment",
    "context",
    "instruction",
    "system",
    "rules",
    "workspace",
    "user_info",
    "local-command",
    "command-",
    "git_status",
    "additional_data",
    "open_files",
    "task_progress",
];

/// The longest name of a tag that is looked at (bytes).
const LONGEST_TAG: usize = 64;

/// Words that stand in blocks which say what the model may and must do, in lower case.
const RULES: [&str; 5] = ["claude.md", "agents.md", "instructions", "must", "rules"];

/// Whether a block of the machine's carries rules for the model, so that it goes after the others.
pub fn is_rules(block: &str) -> bool {
    let lower = block.to_ascii_lowercase();
    RULES.iter().any(|word| lower.contains(word))
}

/// Where the machine's blocks of a text are, first to last, each with its tags.
pub fn blocks(text: &str) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut unclosed: Vec<&str> = Vec::new();
    let mut at = 0;
    while let Some(start) = next_tag(text, at) {
        at = start + 1;
        let Some(name) = tag(&text[start..]).filter(|name| is_wrapper(name) && !unclosed.contains(name)) else {
            continue;
        };
        match closing(text, start, name) {
            Some(end) => {
                out.push(start..end);
                at = end;
            }
            // There is none further down, either; this keeps the search linear.
            None => unclosed.push(name),
        }
    }
    out
}

/// The next `<` at or after `at` that begins a line, or follows another tag.
fn next_tag(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let begins = |i: &usize| {
        let before = bytes[..*i].iter().rposition(|b| !matches!(b, b' ' | b'\t'));
        before.is_none_or(|j| matches!(bytes[j], b'\n' | b'>'))
    };
    memchr::memchr_iter(b'<', bytes.get(at..)?).map(|i| at + i).find(begins)
}

/// What stands between `<` and `>` at the start of a text, if that can be the name of a tag.
fn tag(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('<')?;
    let end = inside.bytes().take(LONGEST_TAG).position(|b| b == b'>')?;
    let name = &inside[..end];
    let may = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ' | '=' | '"' | '.' | '/');
    (name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(may)).then_some(name)
}

/// The part of a tag by which it is closed.
fn name(tag: &str) -> &str {
    if tag.contains('=') { tag.split(' ').next().unwrap_or(tag) } else { tag }
}

fn is_wrapper(tag: &str) -> bool {
    let lower = name(tag).to_ascii_lowercase();
    WRAPPERS.iter().any(|part| lower.contains(part))
}

/// One past the closing tag of the block that begins at `start`. A block inside a block of the same name ends it early,
/// which leaves a closing tag behind at worst.
fn closing(text: &str, start: usize, tag: &str) -> Option<usize> {
    let close = format!("</{}>", name(tag));
    memmem::find(&text.as_bytes()[start..], close.as_bytes()).map(|at| start + at + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_tags() {
        let found = |text: &str| blocks(text).into_iter().map(|r| text[r].to_owned()).collect::<Vec<_>>();
        let (a, b) =
            ("<system-reminder>\nx\n</system-reminder>", "<environment_context cwd=\"/p\">y</environment_context>");
        assert_eq!(found(&format!("{a}\n{b}\nFix it.")), [a, b]);
        assert!(found("<div>\nWhy is this wrong?\n</div>").is_empty());
        assert!(found("What is a <system-reminder> for?</system-reminder>").is_empty());
        assert!(found("<context>\nnever closed").is_empty());
        assert!(is_rules("<x># CLAUDE.md</x>") && !is_rules("<x>The task list is empty.</x>"));
    }

    #[test]
    fn many_tags_that_never_close_are_read_in_linear_time() {
        let text = "<context>\n<system-reminder>\n".repeat(200_000);
        assert!(blocks(&text).is_empty());
    }
}
