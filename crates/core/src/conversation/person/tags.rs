//! Blocks in tags that clients put into a user's message: `<system-reminder>…</system-reminder>`. Which names are a
//! client's own, and the text without them.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Said;

/// Names of blocks that no person writes: reminders, the environment, how the client works.
const REMINDERS: &[&str] = &[
    "system_notice",
    "system_note",
    "system_info",
    "system_warning",
    "environment_details",
    "environment_context",
    "environment_info",
    "environment_information",
    "runtime_information",
    "user_info",
    "session_context",
    "workspace_info",
    "workspace_diagnostics",
    "git_status",
    "git_working_state",
    "editor_context",
    "ide_context",
    "ide_opened_file",
    "ide_selection",
    "new_diagnostics",
    "collaboration_mode",
    "turn_aborted",
    "command_name",
    "command_message",
    "info_msg",
    "permissions_instructions",
    "apps_instructions",
    "skills_instructions",
    "plugins_instructions",
    "reminder_instructions",
];

/// Names of blocks of output.
const OUTPUT: &[&str] = &[
    "returncode",
    "tool_response",
    "tool_responses",
    "tool_result",
    "tool_results",
    "tool_output",
    "function_result",
    "function_results",
    "function_response",
    "observation",
    "command_output",
    "execution_result",
    "bash_input",
    "bash_stdout",
    "bash_stderr",
    "local_command_stdout",
    "local_command_stderr",
    "user_shell_command",
];

/// Names of blocks of rules.
const RULES: &[&str] = &["user_instructions", "repo_context", "repository_instructions", "custom_instructions"];

/// Names of blocks that come with a person's words, and could be a person's own where nothing else is there.
const SOFT: &[&str] = &[
    "file_content",
    "file_contents",
    "folder_content",
    "url_content",
    "attachment",
    "attachments",
    "attached_file",
    "attached_files",
    "uploaded_files",
    "context_items",
    "editable",
];

/// Blocks whose text is a person's words: all around them is the client's.
const PERSONS: &[&str] = &["user_query", "user_input", "user_message", "user_request", "command_args"];

/// Blocks that hold the whole of a person's words in older clients: only the tags go.
const WRAPPERS: &[&str] = &["task", "feedback", "answer"];

/// A message holds fewer blocks than this; more are left as they are.
const MOST: usize = 1000;

/// A message without what a client put into it.
pub(super) struct Stripped<'a> {
    /// What is left.
    pub(super) rest: Cow<'a, str>,
    /// What the blocks were, the most important kind.
    pub(super) kind: Option<Said<'static>>,
    /// Whether a block among them could be a person's.
    pub(super) soft: bool,
}

/// A block in a text: where it begins, where its inside is, where it ends.
struct Block<'a> {
    start: usize,
    inner: &'a str,
    end: usize,
    name: String,
}

/// Takes out the blocks of clients.
pub(super) fn strip(text: &str) -> Stripped<'_> {
    let mut out = Stripped { rest: Cow::Borrowed(text), kind: None, soft: false };
    if memchr::memchr(b'<', text.as_bytes()).is_none() {
        return out;
    }
    let (mut rest, mut from, mut said) = (String::new(), 0, Vec::new());
    let mut unclosed: HashSet<String> = HashSet::new();
    let mut at = 0;
    for _ in 0..MOST {
        let Some(block) = next(text, at, &mut unclosed) else { break };
        at = block.end;
        let kind = match class(&block.name, text, block.start) {
            Class::Person => {
                said.push(block.inner.trim());
                None
            }
            Class::Wrapper => {
                rest.push_str(&text[from..block.start]);
                rest.push_str(block.inner);
                from = block.end;
                continue;
            }
            Class::Soft => {
                out.soft = true;
                None
            }
            Class::Hard(kind) => Some(kind),
            Class::None => {
                at = block.start + 1;
                continue;
            }
        };
        rest.push_str(&text[from..block.start]);
        from = block.end;
        if rank(kind.as_ref()) > rank(out.kind.as_ref()) {
            out.kind = kind;
        }
    }
    said.retain(|words| !words.is_empty());
    if !said.is_empty() {
        out.rest = Cow::Owned(said.join("\n"));
    } else if from > 0 {
        rest.push_str(&text[from..]);
        out.rest = Cow::Owned(rest);
    }
    out
}

/// What stands inside the last block of a name, if there is one.
pub(super) fn inside<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (before, _) = text.rsplit_once(&format!("</{name}>"))?;
    Some(before.rsplit_once(&format!("<{name}>"))?.1.trim())
}

enum Class {
    Person,
    Wrapper,
    Soft,
    Hard(Said<'static>),
    None,
}

fn class(name: &str, text: &str, start: usize) -> Class {
    let listed = |names: &[&str]| names.contains(&name);
    if listed(PERSONS) {
        return Class::Person;
    }
    if listed(RULES) || name == "instructions" && is_after_agents(&text[..start]) {
        return Class::Hard(Said::Rules);
    }
    if listed(OUTPUT) {
        return Class::Hard(Said::Output);
    }
    let telling = ["reminder", "reminders", "notification", "caveat", "hook"];
    if listed(REMINDERS) || name.rsplit_once('_').is_some_and(|(_, last)| telling.contains(&last)) {
        return Class::Hard(Said::Reminder);
    }
    // A wrapper counts where it wraps the message from its beginning on: a person may write about a `<task>`.
    if listed(WRAPPERS) && (start == 0 || text[..start].trim_end().ends_with([':', '>'])) {
        return Class::Wrapper;
    }
    let first = name.split('_').next().unwrap_or("");
    let around = name.contains('_') && ["environment", "workspace", "session", "ide", "editor"].contains(&first);
    if listed(SOFT) || around { Class::Soft } else { Class::None }
}

fn is_after_agents(before: &str) -> bool {
    before.trim_end().lines().next_back().is_some_and(|line| line.contains(".md instructions"))
}

fn rank(kind: Option<&Said<'_>>) -> u8 {
    match kind {
        None => 0,
        Some(Said::Reminder) => 1,
        Some(Said::Output) => 2,
        Some(_) => 3,
    }
}

/// The next block of any name that is closed again, from a place on. Tags in backticks are quoted, and no tags.
fn next<'a>(text: &'a str, from: usize, unclosed: &mut HashSet<String>) -> Option<Block<'a>> {
    let bytes = text.as_bytes();
    for at in memchr::memchr_iter(b'<', &bytes[from..]).map(|i| from + i) {
        if at > 0 && bytes[at - 1] == b'`' {
            continue;
        }
        let Some((name, inner)) = open(&text[at + 1..]) else { continue };
        let inner = at + 1 + inner;
        let first = name.split(' ').next().unwrap_or(name);
        if unclosed.contains(first) {
            continue;
        }
        let close = format!("</{first}");
        let found = text[inner..].find(&close).and_then(|n| {
            let end = inner + n + close.len();
            memchr::memchr(b'>', &bytes[end..]).map(|more| (inner + n, end + more + 1))
        });
        match found {
            Some((stop, end)) => {
                return Some(Block { start: at, inner: &text[inner..stop], end, name: normal(name) });
            }
            None => {
                unclosed.insert(first.to_owned());
            }
        }
    }
    None
}

/// Reads the rest of an opening tag: its name, and where its inside begins. The name of a tag may be two words.
fn open(text: &str) -> Option<(&str, usize)> {
    let head = &text[..floor(text, 400)];
    let close = memchr::memchr3(b'>', b'<', b'\n', head.as_bytes())?;
    if text.as_bytes()[close] != b'>' || !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let inside = &text[..close];
    let name = match inside.split_once(' ') {
        // `<permissions instructions>`: words, none of them an attribute.
        Some((_, more)) if more.chars().all(|c| c.is_ascii_alphabetic() || c == ' ') => inside,
        Some((first, _)) => first,
        None => inside,
    };
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' '));
    (plain && name.len() <= 60).then_some((name, close + 1))
}

/// A name in one spelling: `system-reminder`, `SystemReminder` and `SYSTEM_REMINDER` are one.
fn normal(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    let mut after_small = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && after_small {
            out.push('_');
        }
        after_small = c.is_ascii_lowercase() || c.is_ascii_digit();
        out.push(if matches!(c, '-' | ' ') { '_' } else { c.to_ascii_lowercase() });
    }
    out
}

/// The largest index up to `most` at which the text may be cut.
fn floor(text: &str, most: usize) -> usize {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
