//! What sentences are worth: how much a reader would miss them. Works in any language as far as digits, names and
//! quotes go; cue words are known in a few.

use std::collections::HashSet;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use crate::preview::clean::floor;

/// Words of rules and corrections: what a user says once and expects to hold.
const RULES: &[&str] = &[
    "never",
    "always",
    "must",
    "do not",
    "don't",
    "only ",
    "rule",
    "correction",
    "instead",
    "from now on",
    "remember",
    "important",
    "not allowed",
    "make sure",
    "forget",
    "no longer",
    "prefer",
    "require",
    "wrong",
    "actually",
    "for later",
    "note that",
    "name is",
    "named",
    "is now",
    "password",
    "deadline",
    "version",
    "port ",
    "called",
    "不要",
    "必须",
    "总是",
    "永远",
    "记住",
    "更正",
    "改成",
    "应该",
    "不能",
    "重要",
    "名字",
    "nunca",
    "siempre",
    "debe",
    "jamais",
    "toujours",
    "immer",
    "niemals",
    "muss",
    "никогда",
    "всегда",
    "必ず",
    "절대",
    "항상",
];

/// Words with which conclusions are told.
const CONCLUDES: &[&str] = &[
    "root cause",
    "caused by",
    "the cause",
    "because",
    "turns out",
    "found",
    "fixed",
    "the fix",
    "the bug",
    "the issue",
    "the problem",
    "decided",
    "decision",
    "conclusion",
    "confirmed",
    "verified",
    "passes",
    "passing",
    "works now",
    "implemented",
    "created",
    "added",
    "changed",
    "updated",
    "replaced",
    "removed",
    "renamed",
    "written",
    "instead of",
    "failed",
    "fails",
    "completed",
    "successfully",
    "summary",
    "result",
    "means that",
    "therefore",
    "根本原因",
    "原因",
    "修复",
    "完成",
    "结论",
    "决定",
    "发现",
    "已经",
    "成功",
    "失败",
    "因此",
    "causa",
    "solución",
    "cause",
    "décid",
    "ursache",
    "behoben",
    "gefunden",
    "причина",
    "исправ",
    "原因は",
    "修正",
];

/// Beginnings of sentences that announce rather than conclude.
const ANNOUNCES: &[&str] = &[
    "let me",
    "i'll",
    "i will",
    "let's",
    "now i",
    "next i",
    "next, i",
    "i need to",
    "i'm going to",
    "checking",
    "looking at",
    "first, i",
    "now let",
    "now, let",
    "we need to",
    "i should",
    "i want to",
    "to do this",
    "让我",
    "接下来",
    "我将",
    "我来",
];

/// Words that acknowledge and nothing else.
const NODS: &[&str] = &[
    "ok", "okay", "yes", "no", "thanks", "thank", "you", "good", "great", "continue", "go", "on", "ahead", "sure",
    "fine", "hi", "hello", "please", "yeah", "yep", "right", "cool", "nice", "perfect", "hmm", "oh", "well", "so",
    "uh", "um", "mm", "mm-hmm", "lol",
];

/// Cuts text into sentences and lines, without code blocks. Each comes with its end mark.
pub(super) fn sentences(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced || line.trim().is_empty() {
            continue;
        }
        let mut start = 0;
        let mut chars = line.char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            let ends = match c {
                '。' | '！' | '？' | '；' => true,
                '.' | '!' | '?' => {
                    let apart = chars.peek().is_none_or(|(_, next)| next.is_whitespace());
                    apart && i > start + 2 && !(c == '.' && is_shortened(&line[start..i], &line[i + 1..]))
                }
                _ => false,
            };
            if ends {
                let end = i + c.len_utf8();
                push(&mut out, &line[start..end]);
                start = end;
            }
        }
        push(&mut out, &line[start..]);
    }
    out
}

/// Words that are nearly always written short before a name or a number, in small letters.
const SHORTENED: &[&str] =
    &["mr", "mrs", "dr", "prof", "mme", "sra", "srta", "e.g", "i.e", "z.b", "bzw", "p.ej", "p.ex"];

/// Whether a period ends a short form and no sentence: that of a title, of a person's initial, or of "e.g.". Some short forms
/// are words or units as well: "no" is one only before a number, and "St" and "Ms" only before a name ("5 ms. Then").
fn is_shortened(before: &str, behind: &str) -> bool {
    let word = before.rsplit(|c: char| c.is_whitespace() || "([\"'".contains(c)).next().unwrap_or("");
    let Some(next) = behind.trim_start().chars().next() else { return false };
    let lower = word.to_lowercase();
    let is_initial =
        word.chars().count() == 1 && word.chars().all(char::is_uppercase) && word != "I" && next.is_uppercase();
    match lower.as_str() {
        "no" | "nr" | "fig" | "vol" | "art" => next.is_ascii_digit(),
        "st" | "ms" | "fr" | "hr" | "sr" | "jr" => next.is_uppercase() && word.starts_with(char::is_uppercase),
        short => is_initial || SHORTENED.contains(&short),
    }
}

fn push<'t>(out: &mut Vec<&'t str>, sentence: &'t str) {
    let sentence = sentence.trim();
    // `1.` and the like are no sentences; one CJK character can be.
    let said: usize =
        sentence.chars().filter(|c| c.is_alphanumeric()).take(3).map(|c| if c as u32 > 0x2e00 { 3 } else { 1 }).sum();
    if said >= 3 {
        out.push(sentence);
    }
}

static RULE_WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| automaton(RULES));
static CONCLUSION_WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| automaton(CONCLUDES));

fn automaton(words: &[&str]) -> AhoCorasick {
    AhoCorasick::builder().ascii_case_insensitive(true).build(words).expect("the patterns are constants and few")
}

/// How many words of a list stand in a text, at most `most`.
fn hits(text: &str, words: &AhoCorasick, most: usize) -> i32 {
    words.find_iter(text).take(most).count() as i32
}

/// How many things in a text are specific: numbers, paths, names of code, quotes.
pub(super) fn specifics(text: &str) -> usize {
    let mut found = 0;
    for word in text[..floor(text, 4000)].split_whitespace() {
        let digit = word.bytes().any(|b| b.is_ascii_digit());
        let inner = word.trim_matches(|c: char| !c.is_alphanumeric());
        let path = inner.contains(['/', '_']) || inner.contains('.') && !inner.ends_with('.') && inner.len() > 3;
        let code = word.starts_with('`') || inner.contains("::");
        let camel = inner.bytes().skip(1).any(|b| b.is_ascii_uppercase()) && inner.len() > 2;
        found += usize::from(digit || path || code || camel);
        if found >= 8 {
            break;
        }
    }
    found
}

/// Worth of a sentence of the assistant; above [`CONCLUSION`] it is one to keep.
pub(super) fn concludes(sentence: &str) -> i32 {
    let lower = sentence[..floor(sentence, 600)].to_lowercase();
    let plain = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    let cues = hits(&lower, &CONCLUSION_WORDS, 3);
    let specifics = specifics(sentence).min(4) as i32;
    let announces = if ANNOUNCES.iter().any(|a| plain.starts_with(a)) { 5 } else { 0 };
    let strong = if ["root cause", "根本原因", "caused by", "turns out", "decided"].iter().any(|c| lower.contains(c))
    {
        4
    } else {
        0
    };
    // A heading announces what follows it.
    let size =
        if sentence.len() < 12 || sentence.starts_with('#') || sentence.ends_with([':', '：']) { -3 } else { 0 };
    cues * 2 + specifics + strong + size - announces
}

/// Worth from which a sentence counts as a conclusion.
pub(super) const CONCLUSION: i32 = 4;

static NOD_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| NODS.iter().copied().collect());

fn is_nod(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|w| !w.is_empty()).all(|w| NOD_WORDS.contains(w))
}

/// Worth of something the user said, without regard to where it stands.
pub(super) fn said(text: &str) -> i32 {
    let head = &text[..floor(text, 1200)];
    // Length in characters of Latin script; one of CJK says about as much as three.
    let length: usize = head.chars().take(400).map(|c| if c as u32 > 0x2e00 { 3 } else { 1 }).sum();
    if length < 40 && is_nod(head) {
        return 0;
    }
    let rules = hits(head, &RULE_WORDS, 4);
    let specifics = specifics(head).min(6) as i32;
    rules * 4 + specifics * 2 + (length / 24).min(10) as i32 + i32::from(head.contains(['?', '？']))
}

/// Whether a message corrects what was said before it.
pub(super) fn corrects(text: &str) -> bool {
    let head = text[..floor(text, 80)].to_lowercase();
    [
        "correction",
        "no,",
        "no ",
        "actually",
        "not ",
        "wrong",
        "i meant",
        "sorry",
        "wait",
        "更正",
        "不对",
        "不是",
        "错了",
        "其实",
    ]
    .iter()
    .any(|w| head.starts_with(w))
}

/// A text in at most about `max` bytes: its beginning, and of the rest the sentences worth most, in order.
pub(super) fn condense(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let parts = sentences(&text[..floor(text, 60_000)]);
    if parts.len() < 2 {
        return crate::preview::clean::shorten(text, max).into_owned();
    }
    let mut order: Vec<usize> = (0..parts.len()).collect();
    // The first and the last sentence frame a message: what it is about, what is wanted.
    let value = |i: usize| {
        said(parts[i]) * 10 / (10 + parts[i].len() as i32 / 40)
            + if i == 0 { 7 } else { 0 }
            + if super::statements::holds(parts[i]) { 12 } else { 0 }
            + if i + 1 == parts.len() { 2 } else { 0 }
    };
    order.sort_by_key(|&i| (std::cmp::Reverse(value(i)), i));
    let mut left = max;
    let mut keep = vec![false; parts.len()];
    for i in order {
        let cost = parts[i].len() + 4;
        if cost <= left {
            keep[i] = true;
            left -= cost;
        }
    }
    let mut out = String::new();
    let mut gap = false;
    for (i, part) in parts.iter().enumerate() {
        if !keep[i] {
            gap = true;
            continue;
        }
        if !out.is_empty() {
            out.push_str(if gap { " … " } else { " " });
        } else if gap {
            out.push_str("… ");
        }
        out.push_str(part);
        gap = false;
    }
    if out.is_empty() {
        return crate::preview::clean::shorten(text, max).into_owned();
    }
    if gap {
        out.push_str(" …");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_form_ends_no_sentence() {
        for (text, expect) in [
            ("Note 9: the fence belongs to Mr. Kovac.", &["Note 9: the fence belongs to Mr. Kovac."][..]),
            ("Ask Dr. J. Weiß at St. Anne. She knows.", &["Ask Dr. J. Weiß at St. Anne.", "She knows."]),
            ("Some tools, e.g. rg and fd. They are fast.", &["Some tools, e.g. rg and fd.", "They are fast."]),
            ("See No. 7 of the list.", &["See No. 7 of the list."]),
            ("I said no. He left.", &["I said no.", "He left."]),
            ("So did I. He left.", &["So did I.", "He left."]),
            ("It is on 5th st. and green.", &["It is on 5th st.", "and green."]),
            ("It took 5 ms. Then it fell.", &["It took 5 ms.", "Then it fell."]),
            ("Ms. Ito took it.", &["Ms. Ito took it."]),
            ("It belongs to Mr.", &["It belongs to Mr."]),
        ] {
            assert_eq!(sentences(text), expect, "{text}");
        }
    }
}
