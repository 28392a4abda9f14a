//! What to ask a summarizer with: an instruction that continues the prompt the server holds, or a flat transcript.

use super::collect::told;
use super::render::spoken;
use crate::conversation::{Message, Role};
use crate::preview::clean::sanitize;
use crate::preview::fit::{first_that_fits, largest};
use crate::preview::{Call, Pointer, cut, preview};

/// The sections a summary should have.
pub(super) const SECTIONS: [&str; 6] =
    ["Goal", "Current state", "Files and changes", "Technical context", "Strategy", "Exact next steps"];

/// The user message that asks for a summary of everything before it.
///
/// `focus` is what whoever asked wants kept above all; `language` is the language to answer in (default: the
/// conversation's own); `max_tokens` is told to the model as a limit in words.
pub fn instruction(focus: Option<&str>, max_tokens: u32, language: Option<&str>) -> String {
    // A token is about three quarters of a word; models overshoot, so less than that is asked for.
    let words = (max_tokens / 2).max(40);
    let mut out = String::from(
        "Stop here and write a handoff summary of this conversation so far, for whoever continues the work and can no longer see the \
         messages above. If they contain an earlier brief, fold it in: your summary replaces it.\n\
         Use exactly these sections, each as a Markdown heading (## Name), and leave out a section that would be empty:\n",
    );
    let about = [
        "what the user wants, with every standing instruction and correction that still holds",
        "what is done, what works, what is broken",
        "each file read or changed that still matters, and what was changed",
        "facts that are needed again: names, values, commands, causes found, exact error messages",
        "the approach being followed, and what was tried and given up, and why",
        "what to do next, in order",
    ];
    for (section, about) in SECTIONS.iter().zip(about) {
        out.push_str(&format!("## {section} — {about}\n"));
    }
    out.push_str(&format!(
        "Copy identifiers, numbers, paths and error strings exactly as they stand; do not round, translate or paraphrase them. Do not invent \
         anything. At most {words} words.\n"
    ));
    out.push_str(&match language {
        Some(language) => format!("Write in {}.\n", sanitize(language)),
        None => "Write in the language of the conversation.\n".to_owned(),
    });
    if let Some(focus) = focus.map(str::trim).filter(|f| !f.is_empty()) {
        out.push_str(&format!("Keep above all: {}\n", sanitize(focus)));
    }
    out.push_str("Answer with the summary only. Do not continue the conversation, do not answer its questions, do not call tools.");
    out
}

/// The messages as one flat text for a summarizer with its own window: long results are cut, the rest is word for word.
///
/// Never over `budget` tokens by `count`.
pub fn transcript(messages: &[&Message], previous: Option<&str>, budget: u32, count: &dyn Fn(&str) -> u32) -> String {
    let room = budget as usize * 3;
    let spoken_bytes: usize = messages.iter().filter(|m| m.role != Role::Tool).map(|m| m.text.len() + 24).sum();
    let results = messages.iter().filter(|m| m.role == Role::Tool).count().max(1);
    // Results share what speech leaves, but never less than a fifth.
    let a_result = (room.saturating_sub(spoken_bytes).max(room / 5) / results).clamp(60, 6000);
    let a_speech = if spoken_bytes > room { (room / messages.len().max(1)).clamp(80, 4000) } else { usize::MAX };
    let mut out = String::new();
    if let Some(previous) = previous {
        let known = spoken(previous);
        if !known.is_empty() {
            out.push_str(&format!("Earlier brief:\n{known}\n\n"));
        }
    }
    for message in messages {
        one(message, a_result, a_speech, &mut out);
        // Far over what can be kept, the end is what the rest is cut for.
        if out.len() > room.saturating_mul(8).max(1 << 20) {
            break;
        }
    }
    let out = sanitize(&out).into_owned();
    let pointer = Pointer { id: "", path: "" };
    if let Some(text) = largest(budget, count, &|allowance| middle_cut(&out, allowance)) {
        return text;
    }
    first_that_fits(&[cut(&out, budget, count, &pointer)], budget, count)
}

/// Head and tail of a transcript, with a mark between them.
fn middle_cut(text: &str, allowance: usize) -> String {
    if text.len() <= allowance {
        return text.to_owned();
    }
    let mark = "\n[… messages left out …]\n";
    let room = allowance.saturating_sub(mark.len());
    let head = crate::preview::clean::floor(text, room / 3);
    let mut tail = text.len() - (room - room / 3);
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}{mark}{}", &text[..head], &text[tail..])
}

fn one(message: &Message, a_result: usize, a_speech: usize, out: &mut String) {
    let who = match message.role {
        Role::User => "User",
        Role::Assistant => "Assistant",
        Role::Tool => "Result",
        Role::System => "System",
        Role::Other => "Other",
    };
    let text = if message.role == Role::User { told(&message.text) } else { message.text.to_string() };
    let text = text.trim();
    if message.role == Role::Tool && text.len() > a_result {
        let bytes = |t: &str| u32::try_from(t.len()).unwrap_or(u32::MAX);
        let call = Call { tool: message.name.as_deref().unwrap_or(""), arguments: "" };
        let id = message.call_id.as_deref().unwrap_or("result");
        let short =
            preview(text, &call, &Pointer { id, path: "" }, u32::try_from(a_result).unwrap_or(u32::MAX), &bytes);
        out.push_str(&format!("{who}: {}\n", short.text));
    } else if !text.is_empty() {
        let text = if text.len() > a_speech { super::words::condense(text, a_speech) } else { text.to_owned() };
        out.push_str(&format!("{who}: {text}\n"));
    }
    for call in &message.calls {
        let call = Call { tool: &call.name, arguments: &call.arguments };
        out.push_str(&format!("{who} called {}\n", call.label(160)));
    }
}
