//! A digest: what a small model makes of one large result, which it sees with the call and the user's question and nothing
//! else. Asks that model, judges what it wrote, and puts it under a marker. It never sees the conversation, and nothing is
//! lost by it: the original is kept as with any preview.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

pub use super::Answer;
use super::{exchange, number};
use crate::brief;
use crate::conversation::Tokens;
use crate::conversation::edit::DIGEST_OF;
use crate::preview::{self, Call, Pointer, largest, plural, sanitize, size};
use crate::upstream::{ChatOptions, Upstream};

/// Fewer tokens than this hold no digest worth waiting for.
const LEAST: Tokens = 96;

/// Of the digest model's window the question may take this share, and the call as much again.
const QUESTION: Tokens = 10;

/// Names and figures of a digest that may be missing in the result before it counts as invented, in percent.
const INVENTED: usize = 34;

/// What is asked of the model, behind the result and the user's question. Of the wordings tried, this one had the
/// smallest model (SmolLM2-135M) answer and stop; a longer one it repeats, or goes on for ever.
const INSTRUCTION: &str =
    "Answer in a few lines from this output. Copy names, messages and figures exactly, and invent nothing.";

/// Stands below a digest that came to its end too early.
const CUT: &str = "[the digest was cut off here]";

/// What a digest is made of and by whom.
pub struct Job<'a> {
    /// Who writes it.
    pub upstream: &'a Upstream,
    /// The model's id there.
    pub model: &'a str,
    /// The client's headers: its authorization, mostly.
    pub headers: &'a HeaderMap,
    /// How requests to this model are sent.
    pub options: ChatOptions,
    /// The temperature that it is written at.
    pub temperature: f64,
    /// The model's own window.
    pub window: Tokens,
    /// The result.
    pub text: &'a str,
    /// The call that it answers.
    pub call: Call<'a>,
    /// Where the original will be.
    pub pointer: Pointer<'a>,
    /// What the user wants to know now.
    pub question: &'a str,
    /// Tokens that the digest may take with its marker, by `count`.
    pub budget: Tokens,
    /// Tokens of a text in the conversation's own prompt, erring high.
    pub count: &'a (dyn Fn(&str) -> Tokens + Send + Sync),
    /// Tokens of a text for the digest model, erring high.
    pub theirs: &'a (dyn Fn(&str) -> Tokens + Send + Sync),
    /// The longest it may take.
    pub limit: Duration,
}

/// Asks for a digest.
pub async fn ask(job: &Job<'_>) -> Answer {
    let nothing = |reply: Bytes, how: String| Answer { text: None, reply, how, ..Answer::default() };
    let marker = marker(job);
    let room = job.budget.saturating_sub((job.count)(&marker) + (job.count)(CUT) + 8);
    if room < LEAST {
        return nothing(Bytes::new(), format!("no room for one in {} tokens", job.budget));
    }
    let Some((prompt, instruction)) = prompt(job, room) else {
        return nothing(Bytes::new(), format!("a window of {} tokens is too small", job.window));
    };
    let body = json!({
        "model": job.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": room,
        "temperature": number(job.temperature),
        "stream": false,
    });
    let body = Bytes::from(body.to_string());
    let asked = tokio::time::timeout(job.limit, exchange(job.upstream, job.headers, job.options, &body)).await;
    let reply = match asked {
        Err(_) => return nothing(Bytes::new(), format!("no answer within {} s", job.limit.as_secs())),
        Ok(Err(why)) => return nothing(Bytes::new(), why),
        Ok(Ok(reply)) => reply,
    };
    let said = serde_json::from_slice::<Value>(&reply).unwrap_or_default();
    let finish = said.pointer("/choices/0/finish_reason").and_then(Value::as_str).unwrap_or_default();
    let text = said.pointer("/choices/0/message/content").and_then(Value::as_str).unwrap_or_default();
    let (text, end) = if finish == "length" { (whole_lines(text), format!("\n{CUT}")) } else { (text, String::new()) };
    match judge(text, (&prompt, &instruction), job, room) {
        Ok(text) => {
            let text = Some(format!("{marker}\n{text}{end}"));
            Answer { text, reply, how: "digest".into(), ..Answer::default() }
        }
        Err(_) if finish == "length" && text.is_empty() => nothing(reply, "the digest is too long".into()),
        Err(why) => nothing(reply, why),
    }
}

/// What stands above a digest.
fn marker(job: &Job<'_>) -> String {
    let what = job.call.label(60);
    let text = format!(
        "{DIGEST_OF}{what} by {}: {}, {} condensed; not the exact text, which is: windowsill recall {} or {}]",
        job.model,
        plural(job.text.lines().count(), "line"),
        size(job.text.len()),
        job.pointer.id,
        job.pointer.path
    );
    sanitize(&text).into_owned()
}

/// What the model is asked with, and the part of it that is the instruction; `None` where its window has no room for
/// anything. Question and instruction stand behind the result: small models do what they read last.
fn prompt(job: &Job<'_>, room: Tokens) -> Option<(String, String)> {
    let share = job.window / QUESTION;
    let question = cut(job.question, share, job.theirs);
    let call = cut(&format!("{} {}", job.call.tool, job.call.arguments), share, job.theirs);
    let head = format!("Output of {call}:\n");
    let instruction = format!("{question}\n{INSTRUCTION}");
    // A tenth is left for what the estimate may miss.
    let whole = (job.window / 10 * 9).saturating_sub(room + 32);
    let left = whole.saturating_sub((job.theirs)(&head) + (job.theirs)(&instruction));
    if left < LEAST {
        return None;
    }
    let clean = sanitize(job.text);
    let result = if clean.len() / 16 <= left as usize && (job.theirs)(&clean) <= left {
        clean.into_owned()
    } else {
        // What matters of it, with a marker of what is missing.
        preview::preview(&clean, &job.call, &job.pointer, left, &|text| (job.theirs)(text)).text
    };
    Some((format!("{head}{result}\n\n{instruction}"), instruction))
}

/// A text without the line that it breaks off in.
fn whole_lines(text: &str) -> &str {
    text.trim_end_matches(|c| c != '\n').trim_end()
}

/// The beginning of a text, in so many tokens.
fn cut(text: &str, budget: Tokens, count: &dyn Fn(&str) -> Tokens) -> String {
    let clean = sanitize(text);
    if clean.len() / 16 <= budget as usize && count(&clean) <= budget {
        return clean.into_owned();
    }
    let head = |allowance: usize| format!("{}…", &clean[..preview::floor(&clean, allowance)]);
    largest(budget, count, &head).unwrap_or_default()
}

/// The digest, cleaned, or why it is of no use. What it repeats of the result is what it is for; of the instruction, not.
fn judge(answer: &str, (prompt, instruction): (&str, &str), job: &Job<'_>, room: Tokens) -> Result<String, String> {
    let material = brief::Material {
        messages: &[],
        numbers: &[],
        previous: None,
        history_path: "",
        conversation: "",
        records: &[],
    };
    let text = brief::judge(answer, instruction, &material, room, &|text| (job.count)(text))
        .map_err(|fault| fault.to_string())?;
    if (job.count)(&text) >= (job.count)(&job.text[..preview::floor(job.text, text.len().saturating_mul(8))]) / 2 {
        // A few lines, and hardly any shorter.
        return Err("the digest is as long as the result".into());
    }
    let bare = |s: &str| s.split_whitespace().collect::<String>();
    let (said, source) = (bare(&text), bare(job.text));
    if source.contains(&said) {
        return Err("the digest only copies a part of the result".into());
    }
    let known = |word: &str| source.contains(word) || prompt.contains(word);
    let telling = telling(&text);
    let invented = telling.iter().filter(|word| !known(word)).count();
    if invented * 100 > telling.len() * INVENTED {
        return Err(format!("{invented} of {} names and figures do not stand in the result", telling.len()));
    }
    Ok(text)
}

/// Words that a digest cannot know of itself: those with digits, paths, names in code.
fn telling(text: &str) -> Vec<String> {
    let edge = |c: char| !c.is_alphanumeric() && !matches!(c, '/' | '_');
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '(' | ')' | '"' | '`' | '\''));
    let bare = words.map(|w| w.trim_matches(edge)).filter(|w| w.len() > 2);
    let tells =
        |w: &&str| w.bytes().filter(u8::is_ascii_digit).count() > 1 || w.contains(['/', '_', '\\']) || w.contains("::");
    bare.filter(tells).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_tell() {
        assert_eq!(
            telling("Two of `src/net/pool.rs:91` failed: 9120 tests, exit_code 1, at step 3; std::io"),
            ["src/net/pool.rs:91", "9120", "exit_code", "std::io"]
        );
    }

    #[test]
    fn the_line_that_a_digest_breaks_off_in_goes() {
        for (text, kept) in [("one\ntwo\nthr", "one\ntwo"), ("one\ntwo\n", "one\ntwo"), ("one two", ""), ("", "")] {
            assert_eq!(whole_lines(text), kept, "{text:?}");
        }
    }

    #[test]
    fn a_question_is_cut_to_its_share() {
        let count = |text: &str| (text.len() / 4) as Tokens;
        assert_eq!(cut("short", 10, &count), "short");
        let long = cut(&"word ".repeat(1000), 50, &count);
        assert!(count(&long) <= 50 && count(&long) >= 40 && long.ends_with('…'), "{long}");
    }
}
