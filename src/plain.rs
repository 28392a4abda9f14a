//! Text from clients, models and tools, made harmless for terminals and log lines. Every place that prints such text uses
//! this file. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Text for one line: control characters, line breaks included, and marks that reorder text become escapes such as
/// `\u{1b}`, so that it can neither steer a terminal nor pretend to be another line.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_control(c) || is_hidden(c), braced)
}

/// Text for a page: as [`line()`], but line breaks and tabs stay.
pub fn page(text: &str) -> Cow<'_, str> {
    escaped(text, |c| (is_control(c) && !matches!(c, '\n' | '\t')) || is_hidden(c), braced)
}

/// JSON for a terminal or a log: what JSON lets stand raw in a string is written as its own escapes, so it means the same.
pub fn json(text: &str) -> Cow<'_, str> {
    escaped(
        text,
        |c| (is_control(c) && !c.is_ascii()) || c == '\u{7f}' || is_hidden(c),
        |out, c| {
            let _ = write!(out, "\\u{:04x}", c as u32);
        },
    )
}

/// Whether a character may stand in a line as it is.
pub fn is_harmless(c: char) -> bool {
    !is_control(c) && !is_hidden(c)
}

/// C0 (ESC and BEL among them), DEL and C1.
fn is_control(c: char) -> bool {
    c.is_control()
}

/// Marks that reorder the text around them, and line breaks that are no control characters.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn braced(out: &mut String, c: char) {
    out.extend(c.escape_unicode());
}

fn escaped(text: &str, bad: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let Some(first) = text.find(&bad) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if bad(c) { escape(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;b\u{7}\r\n\tc\u{9b}31m\u{202e}d\u{2066}\u{200f}\u{7f}\u{2028}é世🙂";

    #[test]
    fn nothing_that_steers_a_terminal_is_left() {
        assert_eq!(
            line(HOSTILE),
            "a\\u{1b}]0;b\\u{7}\\u{d}\\u{a}\\u{9}c\\u{9b}31m\\u{202e}d\\u{2066}\\u{200f}\\u{7f}\\u{2028}é世🙂"
        );
        assert_eq!(page("a\tb\nc\r\u{1b}"), "a\tb\nc\\u{d}\\u{1b}");
        assert!(matches!(line("plain text, é 世 🙂"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE] });
        let spelled = value.to_string();
        let safe = json(&spelled);
        assert!(safe.chars().all(|c| !is_control(c) && !is_hidden(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        assert_eq!(json("{\n  \"a\": 1\n}"), "{\n  \"a\": 1\n}", "line breaks between values stay");
    }
}
