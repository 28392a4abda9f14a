//! Whether a summarizer's answer is a summary. What can be mended is mended; what is not one is named and refused.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::Material;
use super::language;
use super::prompt::SECTIONS;
use super::render::cut_summary;
use crate::preview::clean::{floor, sanitize};
use crate::preview::fit::largest;

/// Why an answer is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing, or next to nothing, is left of it.
    Empty,
    /// The model declined.
    Refusal,
    /// It repeats the instruction.
    Echo,
    /// It goes on with the conversation, or calls a tool.
    Continuation,
    /// It says the same again and again.
    Repetition,
    /// It is in a language that nobody used.
    Language,
    /// Not even its first section fits.
    TooLong,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Empty => "the summary is empty",
            Fault::Refusal => "the model declined to summarize",
            Fault::Echo => "the summary repeats its instruction",
            Fault::Continuation => "the model continued the conversation",
            Fault::Repetition => "the summary repeats itself",
            Fault::Language => "the summary is in a language that nobody used",
            Fault::TooLong => "the summary is too long",
        })
    }
}

impl std::error::Error for Fault {}

/// Fewer letters and digits than this say nothing.
const LEAST: usize = 24;

/// The answer, cleaned and within `max_tokens` by `count`, or why it is not used.
pub fn judge(
    answer: &str,
    instruction: &str,
    material: &Material<'_>,
    max_tokens: u32,
    count: &dyn Fn(&str) -> u32,
) -> Result<String, Fault> {
    let text = sanitize(&without_thoughts(answer)).into_owned();
    let text = without_wrapping(&text);
    let text = without_roles(text)?;
    empty(text)?;
    refused(text)?;
    let text = without_echo(text, instruction)?;
    continued(&text, material)?;
    let text = without_loops(&text)?;
    empty(&text)?;
    language::shared(&text, material)?;
    if count(&text) <= max_tokens {
        return Ok(text);
    }
    let short = largest(max_tokens, count, &|allowance| cut_summary(&text, allowance)).unwrap_or_default();
    empty(&short).map_err(|_| Fault::TooLong)?;
    Ok(short)
}

fn empty(text: &str) -> Result<(), Fault> {
    // One CJK character says about as much as three letters.
    let said: usize =
        text.chars().filter(|c| c.is_alphanumeric()).take(LEAST).map(|c| if c as u32 > 0x2e00 { 3 } else { 1 }).sum();
    if said < LEAST { Err(Fault::Empty) } else { Ok(()) }
}

/// The answer without reasoning, closed or not.
fn without_thoughts(answer: &str) -> String {
    let mut text = answer.to_owned();
    for (open, close) in
        [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("<analysis>", "</analysis>")]
    {
        while let Some(start) = text.find(open) {
            let end = text[start..].find(close).map_or(text.len(), |at| start + at + close.len());
            text.replace_range(start..end, "");
        }
        // Templates that open the block themselves leave only its end in the answer.
        if let Some(end) = text.find(close) {
            text.replace_range(..end + close.len(), "");
        }
    }
    text
}

/// The answer without a code fence around it and without an opening remark.
fn without_wrapping(text: &str) -> &str {
    let mut text = text.trim();
    for tag in ["< summary>", "<summary>"] {
        if let Some(inner) = text.strip_prefix(tag) {
            text = inner.trim_end().strip_suffix("</summary>").unwrap_or(inner).trim();
        }
    }
    if let Some(inner) = text.strip_prefix("```")
        && let Some(inner) = inner.strip_suffix("```")
    {
        text = inner.split_once('\n').map_or(inner, |(_, body)| body).trim();
    }
    let first = text.lines().next().unwrap_or("");
    let lower = first.to_lowercase();
    let remark = first.len() < 160
        && first.trim_end().ends_with(':')
        && !first.starts_with('#')
        && ["here is", "here's", "sure", "below is", "以下是"].iter().any(|w| lower.starts_with(w));
    if remark { text[first.len()..].trim_start() } else { text }
}

const ROLES: &[&str] = &[
    "user:",
    "human:",
    "assistant:",
    "system:",
    "tool:",
    "### user",
    "### assistant",
    "### human",
    "**user**:",
    "**assistant**:",
    "用户：",
    "助手：",
];

/// What stands before the answer begins to play the next turns.
fn without_roles(text: &str) -> Result<&str, Fault> {
    let plays = |line: &str| {
        let line = line.trim_start();
        let lower = line[..floor(line, 24)].to_lowercase();
        ROLES.iter().any(|role| lower.starts_with(role))
    };
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if plays(line) {
            let before = text[..at].trim();
            return if before.len() > 120 { Ok(before) } else { Err(Fault::Continuation) };
        }
        at += line.len();
    }
    Ok(text)
}

fn refused(text: &str) -> Result<(), Fault> {
    let head = text[..floor(text, 200)].to_lowercase();
    let says = [
        "i'm sorry",
        "i am sorry",
        "sorry, ",
        "i cannot",
        "i can't",
        "i can’t",
        "i'm unable",
        "i am unable",
        "as an ai",
        "i won't",
        "抱歉",
        "对不起",
        "我无法",
        "很抱歉",
        "lo siento",
        "je suis désolé",
        "es tut mir leid",
        "申し訳",
        "죄송",
    ];
    let structured = text.lines().filter(|l| l.starts_with('#')).count() >= 2;
    if !structured && text.len() < 1200 && says.iter().any(|s| head.starts_with(s)) {
        Err(Fault::Refusal)
    } else {
        Ok(())
    }
}

/// The answer without lines of the instruction; if that was most of it, it is an echo.
fn without_echo(text: &str, instruction: &str) -> Result<String, Fault> {
    let asked: HashSet<&str> = instruction.lines().map(str::trim).filter(|l| l.len() > 30).collect();
    let mut gone = 0;
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| {
            let echoed = asked.contains(line.trim());
            gone += usize::from(echoed) * line.len();
            !echoed
        })
        .collect();
    let rest = kept.join("\n").trim().to_owned();
    // Section headings copied with their explanations and nothing below them are an echo too.
    if gone > 0 && (gone * 2 > text.len() || empty(&rest).is_err()) {
        return Err(Fault::Echo);
    }
    let opening: String = instruction.chars().take(60).collect();
    if !opening.is_empty() && rest.contains(&opening) { Err(Fault::Echo) } else { Ok(rest) }
}

/// Tool calls, announcements of the next action, or the last answer once more instead of a summary.
fn continued(text: &str, material: &Material<'_>) -> Result<(), Fault> {
    let head = text.trim_start();
    let lower = head[..floor(head, 160)].to_lowercase();
    let calls = (head.starts_with('{') || head.starts_with("[{") || head.starts_with("```json"))
        && ["\"name\"", "\"arguments\"", "\"tool\"", "\"function\""]
            .iter()
            .filter(|k| head[..floor(head, 400)].contains(*k))
            .count()
            >= 2;
    let tags = ["< tool_call", "<tool_call", "<function", "[ tool_calls]", "< function_call"]
        .iter()
        .any(|t| lower.starts_with(t));
    let sections = SECTIONS.iter().filter(|s| text.contains(*s)).count();
    let announces = sections == 0
        && ["let me ", "i'll ", "i will ", "okay, let", "sure, let", "now let", "now i'll", "next, i'll"]
            .iter()
            .any(|w| lower.starts_with(w))
        && text.len() < 600;
    let again = material.messages.last().is_some_and(|m| m.text.len() > 40 && m.text.trim() == text.trim());
    if calls || tags || announces || again { Err(Fault::Continuation) } else { Ok(()) }
}

/// The answer up to where it begins to repeat itself; if little is left, it is refused.
fn without_loops(text: &str) -> Result<String, Fault> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut out: Vec<&str> = Vec::new();
    let mut repeated = 0;
    for line in text.lines() {
        let key = line.trim();
        if key.len() >= 12 {
            let times = seen.entry(key).or_default();
            *times += 1;
            if *times > 1 {
                repeated += line.len();
                continue;
            }
        }
        out.push(line);
    }
    let kept = out.join("\n");
    if repeated * 2 > text.len() {
        return Err(Fault::Repetition);
    }
    // Loops within a line: few different runs of words among many.
    let words: Vec<&str> = kept.split_whitespace().collect();
    if words.len() >= 60 {
        let runs: HashSet<&[&str]> = words.windows(5).collect();
        if runs.len() * 100 < words.len() * 45 {
            return Err(Fault::Repetition);
        }
    }
    // Without spaces (CJK, or one letter for ever): the same by characters.
    let chars: Vec<char> = kept.chars().take(20_000).collect();
    if chars.len() >= 200 {
        let runs: HashSet<&[char]> = chars.windows(8).collect();
        if runs.len() * 100 < chars.len() * 30 {
            return Err(Fault::Repetition);
        }
    }
    Ok(kept)
}
