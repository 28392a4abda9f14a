//! How figures look in a terminal: bars, colors, ages. One severity, one color, wherever it stands; color only where a
//! terminal reads it and `NO_COLOR` is not set. Pure but for that question.

use std::io::{self, IsTerminal as _};

use serde_json::Value;
use windowsill::plain;
use windowsill::proxy::grouped;

/// Whether and how to color.
#[derive(Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For standard output. `no_color`: as the environment says (no-color.org).
    pub(crate) fn stdout(no_color: bool) -> Paint {
        Paint(io::stdout().is_terminal() && !no_color)
    }

    /// No colors.
    pub(crate) fn none() -> Paint {
        Paint(false)
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// By severity.
    pub(crate) fn severity(self, severity: Option<&str>, text: &str) -> String {
        match severity {
            Some("red") => self.code("31", text),
            Some("yellow") => self.code("33", text),
            Some("green") => self.code("32", text),
            _ => text.to_owned(),
        }
    }

    /// What is less important.
    pub(crate) fn soft(self, text: &str) -> String {
        self.code("2", text)
    }

    /// A heading.
    pub(crate) fn bold(self, text: &str) -> String {
        self.code("1", text)
    }
}

/// Columns of the terminal; `None` where the output goes elsewhere.
pub(crate) fn width() -> Option<usize> {
    let size = ratatui::crossterm::terminal::size().ok().filter(|_| io::stdout().is_terminal());
    size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Tokens with thousands set apart; `-` where nobody knows them.
pub(crate) fn tokens(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |n| grouped(u32::try_from(n).unwrap_or(u32::MAX)))
}

/// A text with the thousands of its numbers set apart.
pub(crate) fn grouped_in(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut word = String::new();
    let end = |word: &mut String, out: &mut String| {
        match word.parse::<u32>() {
            Ok(n) if n >= 1_000 && word.bytes().all(|b| b.is_ascii_digit()) => out.push_str(&grouped(n)),
            _ => out.push_str(word),
        }
        word.clear();
    };
    for c in text.chars() {
        if c.is_alphanumeric() {
            word.push(c);
        } else {
            end(&mut word, &mut out);
            out.push(c);
        }
    }
    end(&mut word, &mut out);
    out
}

/// A model's name in at most so many characters. Of a path that is the file, and what is too long is cut in the middle: names begin
/// with the family and end with the quantization.
pub(crate) fn model_name(name: &str, room: usize) -> String {
    let name = plain::line(name);
    let is_path = name.ends_with(".gguf") || name.starts_with(['/', '.', '~']);
    let file = if is_path { name.rsplit(['/', '\\']).next().unwrap_or(&name) } else { &*name };
    let length = file.chars().count();
    if length <= room {
        return file.to_owned();
    }
    let end = room.saturating_sub(1) / 2;
    let begin = room.saturating_sub(1) - end;
    let head: String = file.chars().take(begin).collect();
    let tail: String = file.chars().skip(length - end).collect();
    format!("{head}…{tail}")
}

/// How long ago something was, as people say it.
pub(crate) fn ago(then_ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(then_ms).max(0) / 1000;
    let (n, unit) = match seconds {
        0..=1 => return "just now".to_owned(),
        2..=89 => (seconds, "second"),
        90..=5_399 => ((seconds + 30) / 60, "minute"),
        5_400..=129_599 => ((seconds + 1_800) / 3_600, "hour"),
        _ => ((seconds + 43_200) / 86_400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

/// A part of a bar: its tokens, and the mark that fills it.
pub(crate) type Part = (u64, char);

/// A bar of `width` cells for `whole` tokens. What is not nothing has at least one cell, as far as there is room; what is left is
/// drawn as `·`.
pub(crate) fn bar(parts: &[Part], whole: u64, width: usize) -> String {
    let mut out = String::new();
    let (mut drawn, mut sum) = (0, 0_u64);
    for (tokens, mark) in parts.iter().filter(|(tokens, _)| *tokens > 0) {
        sum = sum.saturating_add(*tokens);
        let end = cell(sum, whole, width).max(drawn + 1).min(width);
        out.extend(std::iter::repeat_n(*mark, end - drawn));
        drawn = end;
    }
    out.extend(std::iter::repeat_n('·', width - drawn));
    out
}

/// The cell that `tokens` of `whole` end in.
pub(crate) fn cell(tokens: u64, whole: u64, width: usize) -> usize {
    let width = width as u64;
    let cell = tokens.saturating_mul(width).saturating_add(whole / 2) / whole.max(1);
    usize::try_from(cell.min(width)).unwrap_or(0)
}

/// A line below a bar with a pointer at each wall, and one with their names: those that would overlap are left out.
pub(crate) fn walls(walls: &[(u64, &str)], whole: u64, width: usize) -> (String, String) {
    let (mut marks, mut names) = (String::new(), String::new());
    let mut sorted = walls.to_vec();
    sorted.sort_unstable();
    for (tokens, name) in sorted {
        let at = cell(tokens, whole, width);
        let (marked, named) = (marks.chars().count(), names.chars().count());
        if at < marked || at < named {
            continue;
        }
        marks.extend(std::iter::repeat_n(' ', at - marked));
        marks.push('^');
        names.extend(std::iter::repeat_n(' ', at - named));
        names += name;
        names.push(' ');
    }
    (marks, names.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_a_path_is_told_by_its_file() {
        let path = "/home/me/.cache/models/Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf";
        assert_eq!(model_name(path, 60), "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf");
        assert_eq!(model_name(path, 20), "Qwen3-Code…_K_M.gguf");
        assert_eq!(model_name("org/model-8b", 20), "org/model-8b");
        assert_eq!(model_name("qwen3:8b", 3), "q…b");
        assert_eq!(model_name("", 3), "");
    }

    #[test]
    fn ages_as_people_say_them() {
        for (seconds, said) in [
            (0, "just now"),
            (2, "2 seconds ago"),
            (89, "89 seconds ago"),
            (90, "2 minutes ago"),
            (240, "4 minutes ago"),
            (3_599, "60 minutes ago"),
            (5_400, "2 hours ago"),
            (86_400, "24 hours ago"),
            (129_600, "2 days ago"),
            (-5, "just now"),
        ] {
            assert_eq!(ago(0, seconds * 1000), said, "{seconds}");
        }
        assert_eq!(ago(i64::MAX, 0), "just now");
    }

    #[test]
    fn numbers_in_a_text_are_set_apart_and_ids_are_not() {
        for (text, said) in [
            ("3 cleared (14719 -> 10896 tokens; line 11264)", "3 cleared (14,719 -> 10,896 tokens; line 11,264)"),
            ("r3f9a0c12345 of 007", "r3f9a0c12345 of 007"),
            ("99999999999", "99999999999"),
            ("", ""),
        ] {
            assert_eq!(grouped_in(text), said);
        }
    }

    #[test]
    fn bars_are_as_wide_as_they_should_be() {
        assert_eq!(bar(&[(25, 's'), (25, 't')], 100, 8), "sstt····");
        assert_eq!(bar(&[(1, 's'), (0, 't'), (1, 'h')], 1000, 6), "sh····", "a little is not nothing");
        for parts in [&[(u64::MAX, 's'), (1, 't')][..], &[(5, 'x'); 12], &[]] {
            assert_eq!(bar(parts, 10, 8).chars().count(), 8);
        }
        assert_eq!(bar(&[(5, 'x')], 0, 4), "xxxx");
    }

    #[test]
    fn walls_stand_where_they_are() {
        let (marks, names) = walls(&[(850, "fold"), (600, "clear"), (610, "hidden")], 1000, 40);
        let at = |text: &str, what: &str| text.find(what);
        assert_eq!((at(&marks, "^"), marks.rfind('^'), marks.len()), (Some(24), Some(34), 35));
        assert_eq!((at(&names, "clear"), at(&names, "fold"), at(&names, "hidden")), (Some(24), Some(34), None));
    }

    #[test]
    fn nothing_is_colored_where_nobody_asked() {
        assert_eq!(Paint(false).severity(Some("red"), "x"), "x");
        assert_eq!(Paint(true).severity(Some("red"), "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Paint(true).severity(None, "x"), "x");
    }
}
