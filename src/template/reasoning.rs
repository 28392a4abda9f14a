//! What a template puts before and behind the reasoning of a reply, found out as llama.cpp does
//! (`common/chat-diff-analyzer.cpp`): by rendering a reply with and without reasoning, and a prompt with thinking on and off,
//! and looking at the markers (`<…>`, `[…]`) by which they differ.

use serde_json::{Value, json};

/// Texts of the trial messages.
const REASONING: &str = "REASON_PART I am thinking END_R";
const ANSWER: &str = "A_ASST_MSG I can help END_A";
const QUESTION: &str = "U_USER_MSG Hello END_U";

/// How much of the end of one prompt is looked for in another, bytes.
const ANCHOR: usize = 64;

/// What stands before and behind reasoning; empty where there is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) start: String,
    pub(super) end: String,
    /// The model is one that thinks.
    pub(super) thinks: bool,
}

impl Around {
    pub(super) fn new(start: &str, end: &str) -> Around {
        Around { start: start.into(), end: end.into(), thinks: !start.is_empty() || !end.is_empty() }
    }
}

/// A trial: messages, whether there are tools, whether a reply is begun, whether thinking is on.
pub(super) struct Trial {
    pub(super) messages: Vec<Value>,
    pub(super) tools: bool,
    pub(super) generate: bool,
    pub(super) thinking: bool,
}

/// What a template with this source puts around reasoning. `render` gives nothing where the template refuses.
pub(super) fn around(source: &str, render: &dyn Fn(Trial) -> Option<String>) -> Around {
    let has = |text: &str| source.contains(text);
    if ["<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<TOOL_RESPONSE>"].iter().all(|t| has(t)) {
        return Around::new("<think>\n", "</think>");
    }
    if has("Write your thoughts between <think></think> and write your response between <response></response>") {
        return Around::new("<think>", "</think>");
    }
    let mut found = Around::default();
    shown(render, &mut found);
    switched(render, &mut found);
    beside_calls(render, &mut found);
    found.thinks |= !found.start.is_empty() || !found.end.is_empty();
    let old = has("content.split('</think>')") && !has("reasoning_content") && !has("<SPECIAL_12>");
    if !found.thinks && old {
        return Around::new("<think>", "</think>");
    }
    if has("laguna_glm_thinking") {
        return Around::new(trim(&found.start), trim(&found.end));
    }
    found
}

fn user() -> Value {
    json!({"role": "user", "content": QUESTION})
}

fn reply(thought: bool) -> Value {
    let mut reply = json!({"role": "assistant", "content": ANSWER});
    if thought {
        reply["reasoning_content"] = json!(REASONING);
    }
    reply
}

/// By a reply that is rendered with its reasoning.
fn shown(render: &dyn Fn(Trial) -> Option<String>, found: &mut Around) {
    let rendered = |thought| {
        render(Trial { messages: vec![user(), reply(thought)], tools: false, generate: false, thinking: true })
    };
    let (Some(without), Some(with)) = (rendered(false), rendered(true)) else { return };
    if !differing(&without, &with).1.contains(REASONING) {
        return;
    }
    if let Some((start, end)) = wrapped(&with, true) {
        *found = Around::new(&start, &end);
    } else if let Some((_, behind)) = with.split_once(REASONING) {
        found.end = end(behind, false).unwrap_or_default();
    }
}

/// By what begins a reply with thinking on and off.
fn switched(render: &dyn Fn(Trial) -> Option<String>, found: &mut Around) {
    let rendered = |thinking| render(Trial { messages: vec![user()], tools: false, generate: true, thinking });
    let (Some(off), Some(on)) = (rendered(false), rendered(true)) else { return };
    let (left, right) = differing(&off, &on);
    match (trim(&left), trim(&right)) {
        ("", "") => {}
        ("", more) => {
            if on.ends_with(more) && found.start.is_empty() {
                found.start = right;
            }
        }
        (more, "") => {
            if off.ends_with(more) && found.end.is_empty() {
                let parts: Vec<&str> = segments(&off).into_iter().filter(|s| !trim(s).is_empty()).collect();
                if let [.., before, last] = parts[..]
                    && last == more
                    && is_marker(before)
                {
                    found.start = before.to_owned();
                }
                found.end = left;
            }
        }
        _ => anchored(&off, &on, found),
    }
}

/// As [`switched`], where more than the opening differs: one prompt's end is looked for in the other.
fn anchored(off: &str, on: &str, found: &mut Around) {
    for (base, extended) in [(on, off), (off, on)] {
        let from = (0..=base.len().saturating_sub(ANCHOR)).rev().find(|at| base.is_char_boundary(*at)).unwrap_or(0);
        let anchor = &base[from..];
        let Some(more) = extended.rfind(anchor).map(|at| trim(&extended[at + anchor.len()..])) else { continue };
        let parts: Vec<&str> = segments(more).into_iter().filter(|s| !trim(s).is_empty()).collect();
        if let [start, end] = parts[..]
            && is_marker(start)
            && is_marker(end)
        {
            for (known, now) in [(&mut found.start, start), (&mut found.end, end)] {
                if known.is_empty() {
                    *known = now.to_owned();
                }
            }
            return;
        }
    }
}

/// By a reply whose reasoning is rendered only beside calls.
fn beside_calls(render: &dyn Fn(Trial) -> Option<String>, found: &mut Around) {
    let arguments = json!({"AA_ARG_FST_AA": "VVVV", "BB_ARG_SND_BB": "XXXX"});
    let function = json!({"name": "FFF_FIRST_FUN_F", "arguments": arguments});
    let call = json!({"id": "call00001", "type": "function", "function": function});
    let calling = json!({"role": "assistant", "content": null, "reasoning_content": REASONING, "tool_calls": [call]});
    let rendered = |last| render(Trial { messages: vec![user(), last], tools: true, generate: false, thinking: true });
    let (Some(alone), Some(beside)) = (rendered(reply(true)), rendered(calling)) else { return };
    if alone.contains(REASONING) || !beside.contains(REASONING) {
        return;
    }
    if let Some((start, end)) = wrapped(&beside, false) {
        *found = Around::new(&start, &end);
    } else if let Some((_, behind)) = beside.split_once(REASONING) {
        found.end = end(behind, false).unwrap_or_default();
        found.thinks = true;
    }
}

/// The tool definitions of a trial.
pub(super) fn tools() -> Value {
    let text = |what: &str| json!({"type": "string", "description": what});
    let properties = json!({"AA_ARG_FST_AA": text("First argument"), "BB_ARG_SND_BB": text("Second argument")});
    let parameters = json!({"type": "object", "properties": properties, "required": []});
    let tool = |name: &str, what: &str| json!({"type": "function", "function": {"name": name, "description": what, "parameters": parameters}});
    json!([tool("FFF_FIRST_FUN_F", "Test function foo"), tool("SSS_SECOND_FUN_S", "Test function bar")])
}

/// The markers around the reasoning in a prompt, with the white space behind them, and, if `before`, with that before the
/// second one.
fn wrapped(text: &str, before: bool) -> Option<(String, String)> {
    text.match_indices(['<', '[']).find_map(|(at, _)| {
        let start = marker(&text[at..])?;
        let behind = text[at + start.len()..].strip_prefix(REASONING)?;
        Some((start.to_owned(), end(behind, before)?))
    })
}

/// The marker behind some white space, with the white space behind it, and, if `before`, with that before it.
fn end(text: &str, before: bool) -> Option<String> {
    let trimmed = text.trim_start_matches(is_space);
    let white = text.len() - trimmed.len();
    let found = marker(trimmed)?;
    Some(if before { text[..white + found.len()].to_owned() } else { found.to_owned() })
}

/// The marker with which a text begins, and the white space behind it.
fn marker(text: &str) -> Option<&str> {
    let close = match text.chars().next()? {
        '<' => '>',
        '[' => ']',
        _ => return None,
    };
    let behind = text[text.find(close)? + 1..].trim_start_matches(is_space);
    Some(&text[..text.len() - behind.len()])
}

/// A text in markers and what is between them. One that is not closed is none.
fn segments(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['<', '[']) {
        let close = if rest[at..].starts_with('<') { '>' } else { ']' };
        if at > 0 {
            out.push(&rest[..at]);
        }
        rest = &rest[at..];
        let Some(end) = rest.find(close) else { break };
        out.push(&rest[..=end]);
        rest = &rest[end + 1..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// Whether one of the [`segments`] is a marker.
fn is_marker(segment: &str) -> bool {
    segment.starts_with('<') && segment.ends_with('>') || segment.starts_with('[') && segment.ends_with(']')
}

/// In what two texts differ between what they begin and end with: [`segments`] first, then bytes of the texts between them.
fn differing(left: &str, right: &str) -> (String, String) {
    let (l, r) = (segments(left), segments(right));
    if l.is_empty() || r.is_empty() {
        return (left.to_owned(), right.to_owned());
    }
    // What is left of both: from a segment up to another, that one included.
    let (mut from, mut to) = ((0, 0), (l.len() - 1, r.len() - 1));
    let (mut no_left, mut no_right) = (false, false);
    while from.0 != to.0 && from.1 != to.1 {
        let (begins, ends) = (l[from.0] == r[from.1], l[to.0] == r[to.1]);
        if begins {
            from = (from.0 + 1, from.1 + 1);
        }
        if ends {
            if from.0 != to.0 {
                to.0 -= 1
            } else {
                no_left = true
            }
            if from.1 != to.1 { to.1 -= 1 } else { no_right = true }
        }
        if !begins && !ends {
            break;
        }
    }
    if from.0 == to.0 && from.1 != to.1 {
        if l[from.0] == r[to.1] {
            to.1 -= 1;
            no_left = true;
        } else if l[from.0] == r[from.1] {
            from.1 += 1;
            no_left = true;
        }
    } else if from.1 == to.1 && from.0 != to.0 {
        if l[to.0] == r[from.1] {
            to.0 -= 1;
            no_right = true;
        } else if l[from.0] == r[from.1] {
            from.0 += 1;
            no_right = true;
        }
    } else if from.0 == to.0 && from.1 == to.1 && l[from.0] == r[from.1] && is_marker(l[from.0]) {
        (no_left, no_right) = (true, true);
    }
    let ends_in_text = !is_marker(l[to.0]) && !is_marker(r[to.1]);
    let begins_with_text = !is_marker(l[from.0]) && !is_marker(r[from.1]);
    let rest = |all: &[&str], from: usize, to: usize, none: bool| all[from..to + usize::from(!none)].concat();
    let (mut a, mut b) = (rest(&l, from.0, to.0, no_left), rest(&r, from.1, to.1, no_right));
    if ends_in_text {
        let same =
            a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum::<usize>();
        a.truncate(a.len() - same);
        b.truncate(b.len() - same);
    }
    if begins_with_text {
        let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum::<usize>();
        a.drain(..same);
        b.drain(..same);
    }
    match (a.is_empty(), right.strip_prefix(left)) {
        (true, Some(more)) if !b.is_empty() => (a, more.to_owned()),
        _ => (a, b),
    }
}

/// White space as C has it.
fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
}

fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}
