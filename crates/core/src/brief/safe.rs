//! Text that is safe to stand in a brief.

use crate::preview::clean::sanitize;

/// Text on one line, safe to show.
pub(super) fn one_line(text: &str) -> String {
    sanitize(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text that looks like the brief's own marks is broken up, so that a brief is found where it is, and only there.
pub(super) fn defuse(text: &str) -> String {
    if memchr::memchr(b'[', text.as_bytes()).is_none() {
        return text.to_owned();
    }
    text.replace("[windowsill brief", "[ windowsill brief")
        .replace("[end of windowsill brief", "[ end of windowsill brief")
}
