//! System text by index: sections that come twice, that speak of tools which are not shown, or that are long reference material
//! become a line with how to read them. What stands before the first heading stays, and rules stay longest.
//!
//! Sizes are taken as a quarter of the bytes: the same text gives the same sections, whatever is learned of the model.

use std::collections::HashSet;

use crate::conversation::Tokens;

/// Sections smaller than this stay: the line in their place would hardly be shorter (tokens).
const SMALL: Tokens = 80;

/// Words of a rule: what an instruction wants or forbids.
const RULES: [&str; 12] = [
    "must",
    "never",
    "always",
    "not",
    "don't",
    "only",
    "important",
    "critical",
    "required",
    "rule",
    "rules",
    "mandate",
];

/// Caps on what a system prompt may hold, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// One section.
    pub section: Tokens,
    /// All that leads the conversation.
    pub all: Tokens,
}

impl Caps {
    /// These caps at a window: a section never takes more than an eighth of it, nor all of them more than a quarter.
    pub fn at(self, window: Tokens) -> Caps {
        Caps { section: self.section.min(window / 8), all: self.all.min(window / 4) }
    }
}

/// Why a section was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It says what an earlier one says.
    Twice,
    /// It is about tools that are not shown.
    Tools,
    /// It is longer than a section may be, or all of them together are.
    Long,
}

/// A section that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its heading.
    pub title: String,
    /// The whole of it, heading included.
    pub text: String,
    /// Why.
    pub why: Why,
}

/// A part of a text: from one heading to the next.
struct Section<'a> {
    text: &'a str,
    title: &'a str,
    /// Which of the texts it stands in.
    of: usize,
    left: Option<Why>,
}

/// The texts with an index line in the place of what is left out, and what that is. `line` makes that line.
pub fn system(
    texts: &[&str],
    shown: &[String],
    hidden: &HashSet<String>,
    caps: Caps,
    line: &dyn Fn(&Left) -> String,
) -> (Vec<String>, Vec<Left>) {
    let mut sections: Vec<Section<'_>> = texts.iter().enumerate().flat_map(|(of, text)| split(text, of)).collect();
    repeated(&mut sections);
    for section in sections.iter_mut().filter(|s| may_go(s)) {
        if tokens(section.text) > caps.section {
            section.left = Some(Why::Long);
        } else if speaks_of_hidden(section.text, shown, hidden) {
            section.left = Some(Why::Tools);
        }
    }
    shorten_to(&mut sections, caps.all);
    let mut out = vec![String::new(); texts.len()];
    let mut all = Vec::new();
    for section in &sections {
        let Some(why) = section.left else {
            out[section.of].push_str(section.text);
            continue;
        };
        let left = Left { title: section.title.to_owned(), text: section.text.to_owned(), why };
        out[section.of].push_str(&line(&left));
        out[section.of].push('\n');
        all.push(left);
    }
    (out, all)
}

fn tokens(text: &str) -> Tokens {
    Tokens::try_from(text.len().div_ceil(4)).unwrap_or(Tokens::MAX)
}

/// A text at its Markdown headings, code blocks apart. The first part has no heading.
fn split(text: &str, of: usize) -> Vec<Section<'_>> {
    let mut starts = vec![0];
    let mut fenced = false;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let hashes = line.bytes().take_while(|b| *b == b'#').count();
        if !fenced && (1..=4).contains(&hashes) && line[hashes..].starts_with(' ') && at > 0 {
            starts.push(at);
        }
        at += line.len();
    }
    starts.push(text.len());
    let title = |part: &'_ str| part.lines().next().unwrap_or("").trim_start_matches('#').trim().len();
    starts
        .windows(2)
        .map(|w| {
            let part = &text[w[0]..w[1]];
            let first = part.lines().next().unwrap_or("");
            let headed = first.starts_with('#');
            let title = if headed { &first.trim_end()[first.trim_end().len() - title(part)..] } else { "" };
            Section { text: part, title, of, left: None }
        })
        .collect()
}

/// Whether a section may become a line at all.
fn may_go(section: &Section<'_>) -> bool {
    section.left.is_none() && !section.title.is_empty() && tokens(section.text) >= SMALL
}

/// Marks sections that say what an earlier one says.
fn repeated(sections: &mut [Section<'_>]) {
    let mut seen: HashSet<String> = HashSet::new();
    for section in sections.iter_mut().filter(|s| tokens(s.text) >= SMALL) {
        let said = section.text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !seen.insert(said) {
            section.left = Some(Why::Twice);
        }
    }
}

/// Whether a section names tools that are not shown, and more often than those that are.
fn speaks_of_hidden(text: &str, shown: &[String], hidden: &HashSet<String>) -> bool {
    let names = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
    let marked = |name: &str| name.contains('_') || name.chars().skip(1).any(char::is_uppercase);
    let (mut of_hidden, mut of_shown) = (0, 0);
    for name in names.filter(|n| marked(n)) {
        of_hidden += usize::from(hidden.contains(name));
        of_shown += usize::from(shown.iter().any(|s| s == name));
    }
    of_hidden >= 2 && of_hidden > of_shown
}

/// Marks the longest sections with the fewest rules until the others are at most so long.
fn shorten_to(sections: &mut [Section<'_>], most: Tokens) {
    let mut left: Tokens =
        sections.iter().filter(|s| s.left.is_none()).map(|s| tokens(s.text)).fold(0, Tokens::saturating_add);
    let mut order: Vec<(u64, usize)> = sections
        .iter()
        .enumerate()
        .filter(|(_, s)| may_go(s))
        .map(|(at, s)| {
            let words = || s.text.split(|c: char| !(c.is_alphanumeric() || c == '\''));
            let rules = words().filter(|w| RULES.iter().any(|r| w.eq_ignore_ascii_case(r))).count() as u64;
            let all = words().filter(|w| !w.is_empty()).count().max(1) as u64;
            // Rules among a hundred words; a section with none counts in full.
            (u64::from(tokens(s.text)) * 100 / (25 + rules * 2_500 / all), at)
        })
        .collect();
    order.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
    for (_, at) in order {
        if left <= most {
            return;
        }
        left = left.saturating_sub(tokens(sections[at].text));
        sections[at].left = Some(Why::Long);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(texts: &[&str], hidden: &[&str], caps: Caps) -> (Vec<String>, Vec<Left>) {
        let hidden = hidden.iter().map(|h| (*h).to_owned()).collect();
        system(texts, &["run_shell".to_owned()], &hidden, caps, &|left| format!("[{}: {:?}]", left.title, left.why))
    }

    const WIDE: Caps = Caps { section: 4_000, all: 12_000 };

    #[test]
    fn what_is_short_or_needed_stays_to_the_byte() {
        let text = "You are an agent.\n\n# Rules\n\nNever push.\n```\n# no heading\n```\n## Style\n\nBe short.";
        for text in [text, "", "no headings at all", "# only\n"] {
            assert_eq!(indexed(&[text], &["task_list"], WIDE), (vec![text.to_owned()], vec![]));
        }
    }

    #[test]
    fn what_comes_twice_or_is_about_hidden_tools_becomes_a_line() {
        let long = "All of it matters to whom it may concern. ".repeat(12);
        let file = format!("# Project\n\n{long}\n");
        let tasks = format!("# Tasks\n\nCall `task_list`, then `task_add`. {long}\n");
        let shell = format!("# Shell\n\nCall run_shell, run_shell or task_list. {long}\n");
        let first = format!("Head. {long}\n{file}{tasks}{shell}");
        let (out, left) = indexed(&[&first, &file], &["task_list", "task_add"], WIDE);
        assert_eq!(out[0], format!("Head. {long}\n{file}[Tasks: Tools]\n{shell}"));
        assert_eq!(out[1], "[Project: Twice]\n");
        assert_eq!(left.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), [tasks.as_str(), file.as_str()]);
    }

    #[test]
    fn under_a_cap_reference_goes_first_and_rules_last() {
        let reference = format!("# Reference\n\n{}\n", "The value of the row is a number of bytes. ".repeat(30));
        let rules = format!("# Rules\n\n{}\n", "You must never push, and you must not ask, only do. ".repeat(25));
        let text = format!("Head.\n{rules}{reference}");
        let (out, left) = indexed(&[&text], &[], Caps { section: 4_000, all: 500 });
        assert_eq!((out[0].as_str(), left.len()), (format!("Head.\n{rules}[Reference: Long]\n").as_str(), 1));
        let (out, _) = indexed(&[&text], &[], Caps { section: 200, all: 12_000 });
        assert_eq!(out[0], "Head.\n[Rules: Long]\n[Reference: Long]\n");
        assert_eq!(WIDE.at(8_192), Caps { section: 1_024, all: 2_048 });
        assert_eq!(WIDE.at(131_072), WIDE);
    }
}
