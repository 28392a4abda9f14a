//! Whether a summary is in a language of its conversation. Small models fall into the language that they were mostly trained
//! on, and a brief that the person cannot read is of no use to the model either.
//!
//! Guessing a language from a few words, paths and numbers goes wrong easily: only what is certain counts, and English, which
//! the instruction is written in, is never wrong.

use std::collections::HashSet;

use whatlang::{Info, Lang, Script, detect, detect_script};

use super::Material;
use super::judge::Fault;
use crate::conversation::Role;
use crate::preview::clean::floor;

/// Bytes of a message that are looked at.
const LOOKED_AT: usize = 2000;

/// Letters of prose that a language can be told from.
const ENOUGH: usize = 160;

/// How sure a language must be, of the languages that share a script.
const SURE: f64 = 0.9;

/// Words that English prose is never without.
const ENGLISH: [&str; 12] = ["the", "and", "of", "to", "is", "was", "in", "for", "with", "that", "not", "has"];

/// Refuses a text in a script or a language that no message has.
pub(super) fn shared(text: &str, material: &Material<'_>) -> Result<(), Fault> {
    let said = prose(text);
    let (Some(script), Some(info)) = (detect_script(&said), detect(&said)) else { return Ok(()) };
    let messages = || material.messages.iter().map(|m| (m.role, &m.text[..floor(&m.text, LOOKED_AT)]));
    if script != Script::Latin {
        let used = messages().any(|(_, text)| text.chars().any(|c| script_of(c) == Some(script)));
        let previous = material.previous.is_some_and(|p| p.chars().any(|c| script_of(c) == Some(script)));
        return if used || previous { Ok(()) } else { Err(Fault::Language) };
    }
    if letters(&said) < ENOUGH || !certain(&info) || info.lang() == Lang::Eng || is_english(&said) {
        return Ok(());
    }
    let dialog =
        messages().filter(|(role, _)| matches!(role, Role::User | Role::Assistant)).map(|(_, text)| prose(text));
    let texts: Vec<String> = dialog.filter(|text| !text.is_empty()).collect();
    let spoken: HashSet<Lang> = texts.iter().filter_map(|text| detect(text)).map(|info| info.lang()).collect();
    // Where little was said, nobody can tell what it was said in.
    let known = texts.iter().map(|text| letters(text)).sum::<usize>() >= ENOUGH / 2;
    if known && !spoken.contains(&info.lang()) { Err(Fault::Language) } else { Ok(()) }
}

fn certain(info: &Info) -> bool {
    info.is_reliable() && info.confidence() >= SURE
}

fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphabetic()).count()
}

fn is_english(text: &str) -> bool {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let english = words.iter().filter(|w| ENGLISH.contains(&w.as_str())).count();
    english * 10 >= words.len()
}

/// The words of a text that may be prose: no headings, code, paths, numbers, names with digits or underscores.
fn prose(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '`', '|', '{', '<']));
    let words = lines.flat_map(str::split_whitespace).filter(|word| {
        let bare = word.trim_matches(|c: char| c.is_ascii_punctuation());
        !bare.is_empty() && bare.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '’' | '-') || !c.is_ascii())
    });
    words.collect::<Vec<_>>().join(" ")
}

fn script_of(c: char) -> Option<Script> {
    if c.is_ascii() { None } else { detect_script(c.encode_utf8(&mut [0; 4])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Message;
    use crate::wire::openai_chat;

    fn said(role: &str, text: &str) -> Message {
        let raw = serde_json::json!({"role": role, "content": text}).to_string();
        openai_chat::message(raw.into()).unwrap()
    }

    const ENGLISH: &str = "Please find out why the importer is so slow and make it faster, but do not touch the database \
        schema. The nightly job has to be done before six in the morning, and it was late three times this week.";
    const GERMAN: &str = "## Ziel\nDer Import soll schneller werden, ohne dass sich das Schema der Datenbank ändert. Der \
        nächtliche Lauf muss vor sechs Uhr morgens fertig sein und war in dieser Woche schon dreimal zu spät. Als nächstes \
        wird gemessen, welcher Teil von lib/importer/window.py die meiste Zeit braucht.";
    const CHINESE: &str = "## 目标\n让导入程序更快，但不要修改数据库模式。夜间任务必须在早上六点之前完成。下一步：测量 lib/importer/window.py。";

    #[test]
    fn only_a_language_that_nobody_used_is_refused() {
        let english = said("user", ENGLISH);
        let german = said("user", &GERMAN.replace("## Ziel\n", ""));
        let log = said("tool", "error: 无法打开文件 /srv/a.csv");
        let short = said("user", "go on");
        let judged = |text: &str, messages: &[&Message]| {
            let material =
                Material { messages, numbers: &[], previous: None, history_path: "", conversation: "", records: &[] };
            shared(text, &material)
        };
        for (text, messages, fine) in [
            (ENGLISH, &[&english][..], true),
            (GERMAN, &[&english], false),
            (CHINESE, &[&english], false),
            (GERMAN, &[&english, &german], true),
            // The instruction is English.
            (ENGLISH, &[&german], true),
            (CHINESE, &[&english, &log], true),
            (GERMAN, &[&short], true),
            ("- src/a.rs: fixed\n- `cargo test`: 3 failed, ECONNRESET 0x7f", &[&german], true),
        ] {
            assert_eq!(judged(text, messages).is_ok(), fine, "{text}");
        }
    }
}
