//! Makes a tool's raw output readable, and our own text safe: ANSI codes and overwritten progress states go, control
//! characters go, chat-template control strings are broken up. Never changes what a line says.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::{memchr, memchr_iter, memchr3_iter};

use super::screen;

/// Strings that chat templates and tokenizers read as control tokens. A space after the first character breaks each.
const CONTROL_STRINGS: &[&str] = &[
    "<|",
    "<｜",
    "<turn|>",
    "<channel|>",
    "<tool|>",
    "<tool_call|>",
    "<tool_response|>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CONTENT]",
    "[CALL_ID]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "[IMG]",
    "[gMASK]",
    "<<SYS>>",
    "<</SYS>>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<unk>",
    "<sop>",
    "<eop>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<end_of_utterance>",
    "<start_of_role>",
    "<end_of_role>",
    "<begin_of_text>",
    "<end_of_text>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<function_call>",
    "</function_call>",
    "<unused",
    "<extra_id_",
    "<minimax:",
    "]~b]",
    "]~!b[",
];

static CONTROL: LazyLock<AhoCorasick> = LazyLock::new(|| {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(CONTROL_STRINGS)
        .expect("the patterns are constants and few")
});

/// The text as a terminal would show it in the end: no ANSI codes, every progress line in its last state.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let escapes = memchr(0x1b, bytes).is_some();
    if let Some(drawn) = escapes.then(|| screen::drawn(text)).flatten() {
        return Cow::Owned(drawn);
    }
    if !escapes && memchr(b'\r', bytes).is_none() && memchr(0x08, bytes).is_none() {
        return Cow::Borrowed(text);
    }
    let plain = if escapes { Cow::Owned(strip_ansi(text)) } else { Cow::Borrowed(text) };
    if memchr(b'\r', plain.as_bytes()).is_none() && memchr(0x08, plain.as_bytes()).is_none() {
        return plain;
    }
    let mut out = String::with_capacity(plain.len());
    let mut start = 0;
    for end in memchr_iter(b'\n', plain.as_bytes()) {
        settle(&plain[start..end], &mut out);
        out.push('\n');
        start = end + 1;
    }
    settle(&plain[start..], &mut out);
    Cow::Owned(out)
}

/// The text in its final state, as a terminal shows it, where that is shorter; `None` where nothing was overwritten or colored.
pub fn settled(text: &str) -> Option<String> {
    match clean(text) {
        Cow::Owned(clean) if clean.len() < text.len() => Some(clean),
        _ => None,
    }
}

/// Removes escape sequences. The crate drops tabs and carriage returns along with them, hence piece by piece.
fn strip_ansi(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut start = 0;
    let piece = |from: usize, to: usize, out: &mut String| {
        let part = &text[from..to];
        if memchr(0x1b, part.as_bytes()).is_some() {
            out.push_str(&strip_ansi_escapes::strip_str(part));
        } else {
            out.push_str(part);
        }
    };
    for end in memchr3_iter(b'\n', b'\r', b'\t', text.as_bytes()) {
        piece(start, end, &mut out);
        out.push(char::from(text.as_bytes()[end]));
        start = end + 1;
    }
    piece(start, text.len(), &mut out);
    out
}

/// One line with carriage returns and backspaces: of states that overwrite each other only the last is kept; states
/// that look nothing alike (a message printed over a progress bar, a file with lone CRs) become lines of their own.
fn settle(line: &str, out: &mut String) {
    let line = line.trim_end_matches('\r');
    if memchr(b'\r', line.as_bytes()).is_none() {
        backspaced(line, out);
        return;
    }
    let mut last: Option<&str> = None;
    for state in line.split('\r').filter(|s| !s.trim().is_empty()) {
        if let Some(before) = last
            && !overwrites(before, state)
        {
            backspaced(before, out);
            out.push('\n');
        }
        last = Some(state);
    }
    backspaced(last.unwrap_or(""), out);
}

/// Whether `after` is a later state of the same progress line: they start with the same letters.
fn overwrites(before: &str, after: &str) -> bool {
    let letters = |s: &str| s.chars().filter(|c| c.is_alphabetic()).take(6).collect::<String>();
    letters(before) == letters(after)
}

/// Copies a line, letting each backspace erase the character before it.
fn backspaced(line: &str, out: &mut String) {
    if memchr(0x08, line.as_bytes()).is_none() {
        out.push_str(line);
        return;
    }
    let floor = out.len();
    for c in line.chars() {
        if c != '\u{8}' {
            out.push(c);
        } else if out.len() > floor {
            out.pop();
        }
    }
}

/// Whether a character has no place in a prompt: controls (but line break and tab), bidirectional overrides, BOM.
fn unwanted(c: char) -> bool {
    matches!(c, '\0'..='\x08' | '\x0b'..='\x1f' | '\x7f'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Removes control characters and breaks up every string that a chat template could read as its own.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    let text: Cow<'_, str> = if text.chars().any(unwanted) {
        Cow::Owned(text.chars().filter(|&c| !unwanted(c)).collect())
    } else {
        Cow::Borrowed(text)
    };
    if CONTROL.find(text.as_ref()).is_none() {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut from = 0;
    for hit in CONTROL.find_iter(text.as_ref()) {
        let first = text[hit.start()..].chars().next().map_or(1, char::len_utf8);
        out.push_str(&text[from..hit.start() + first]);
        out.push(' ');
        from = hit.start() + first;
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

/// The largest prefix length at or below `at` that ends on a character border.
pub fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A line in at most about `max` bytes: long runs without spaces (base64, hashes) are named by size, then the middle goes.
pub(crate) fn shorten(line: &str, max: usize) -> Cow<'_, str> {
    if line.len() <= max {
        return Cow::Borrowed(line);
    }
    // Far beyond the limit the middle is not worth looking at; without this a one-line megabyte is walked in full.
    let packed = if line.len() <= 64 * max.max(64) { pack_runs(line) } else { Cow::Borrowed(line) };
    if packed.len() <= max {
        return packed;
    }
    // A short line says most at its beginning; only where there is room is its end shown too.
    if max < 200 {
        return Cow::Owned(format!("{}…", packed[..floor(&packed, max.saturating_sub(3))].trim_end()));
    }
    let tail = max / 6;
    let head = floor(&packed, max - tail);
    let mut rest = packed.len() - tail;
    while !packed.is_char_boundary(rest) {
        rest += 1;
    }
    Cow::Owned(format!("{}[…{} chars…]{}", &packed[..head], rest - head, &packed[rest..]))
}

/// Lines of more than `most` bytes cut at borders of sentences, members and words into lines of about `width` bytes.
pub(crate) fn wrapped(text: &str, most: usize, width: usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / width.max(1));
    for line in text.split('\n') {
        let mut rest = line;
        while line.len() > most && rest.len() > width {
            let head = &rest[..floor(rest, width)];
            let near = floor(head, width / 2);
            let border = [". ", "},", "; ", ", ", ",", " "]
                .iter()
                .find_map(|mark| head[near..].rfind(mark).map(|at| near + at + mark.len()));
            // Without any border the run is packed when it is shown; it must not be torn into thousands of lines.
            let at = border.unwrap_or_else(|| rest.find([' ', ',', ';']).map_or(rest.len(), |at| at + 1)).max(1);
            out.push_str(&rest[..at]);
            out.push('\n');
            rest = &rest[at..];
        }
        out.push_str(rest);
        out.push('\n');
    }
    out
}

/// Replaces runs of 160 and more base64-like characters by their length.
fn pack_runs(line: &str) -> Cow<'_, str> {
    const LONG: usize = 160;
    let coded = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_');
    let bytes = line.as_bytes();
    let (mut out, mut from, mut i) = (String::new(), 0, 0);
    while i < bytes.len() {
        if !coded(bytes[i]) {
            i += 1;
            continue;
        }
        let start = i;
        while i < bytes.len() && coded(bytes[i]) {
            i += 1;
        }
        if i - start >= LONG {
            out.push_str(&line[from..start + 24]);
            out.push_str(&format!("[…{} chars…]", i - start - 24));
            from = i;
        }
    }
    if from == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(&line[from..]);
    Cow::Owned(out)
}

/// Whether a text stands for nothing: `(none)`, `null`.
pub(crate) fn says_nothing(text: &str) -> bool {
    let text = text.trim().trim_end_matches(['.', ',', '"']).trim_start_matches('"');
    ["", "(none)", "none", "null", "nil", "(empty)", "n/a", "no error", "no errors", "false", "undefined"]
        .iter()
        .any(|none| text.eq_ignore_ascii_case(none))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_output_settles() {
        for (raw, want) in [
            ("plain\ntext", "plain\ntext"),
            ("\u{1b}[1m\u{1b}[92m   Compiling\u{1b}[0m libc\tv1\r\nnext", "   Compiling libc\tv1\nnext"),
            ("\repoch 1: 0%\repoch 1: 50%\repoch 1: 100%", "epoch 1: 100%"),
            ("Building [=> ] 1/9\rBuilding [==>] 8/9\rwarning: unused x\n", "Building [==>] 8/9\nwarning: unused x\n"),
            ("first line\rsecond one\rthird", "first line\nsecond one\nthird"),
            ("N\u{8}NA\u{8}AME", "NAME"),
            ("\u{8}\u{8}x", "x"),
            ("\u{1b}]0;title\u{7}body", "body"),
        ] {
            assert_eq!(clean(raw), want, "{raw:?}");
        }
    }

    #[test]
    fn only_what_a_terminal_would_show_otherwise_settles() {
        let bar: String = (0..50).map(|n| format!("\rReceiving objects: {n:3}% ({n}/50)")).collect();
        assert_eq!(
            settled(&format!("Cloning\n{bar}, done.\n")).as_deref(),
            Some("Cloning\nReceiving objects:  49% (49/50), done.\n")
        );
        assert_eq!(settled("\u{1b}[31mred\u{1b}[0m").as_deref(), Some("red"));
        assert_eq!(settled("plain\ntext\n"), None);
    }

    #[test]
    fn control_strings_are_broken_up() {
        for (raw, want) in [
            ("<|im_start|>system", "< |im_start|>system"),
            ("a [INST] b [/INST]</s>", "a [ INST] b [ /INST]< /s>"),
            ("<start_of_turn>user", "< start_of_turn>user"),
            ("<\u{0}|im_end|>", "< |im_end|>"),
            ("<｜begin▁of▁sentence｜>", "< ｜begin▁of▁sentence｜>"),
            ("Vec<String> a < b", "Vec<String> a < b"),
            ("\u{feff}a\u{202e}b\u{7f}\u{85}c\td", "abc\td"),
        ] {
            assert_eq!(sanitize(raw), want, "{raw:?}");
            assert_eq!(sanitize(want), want, "a second time changes nothing");
        }
    }

    #[test]
    fn long_lines_keep_both_ends() {
        let line = format!("src=\"data:image/png;base64,{}\" alt=end", "QUJD".repeat(500));
        let short = shorten(&line, 220);
        assert!(short.len() < 250 && short.contains("chars…]") && short.ends_with("alt=end"), "{short}");
        let wide = "错误".repeat(400);
        assert!(shorten(&wide, 100).len() < 130);
    }
}
