//! Facts in tool results: errors, notes, constants, items that report trouble, how commands ended.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::safe::one_line;
use super::section::push;
use super::{Facts, Part};
use crate::conversation::{Message, ToolCall};
use crate::preview::clean::{clean, floor, shorten};
use crate::preview::code::{Definition, definition, unnumbered};
use crate::preview::json::{object, trouble};
use crate::preview::place::place;
use crate::preview::signal::{Grade, Graded, grade};
use crate::preview::{Call, exit_code, plural};
use crate::unwrap::{Inner, unwrap};

/// Of one result so many facts of a kind are taken; a log of a thousand errors must not drive out all else.
const OF_ONE_RESULT: usize = 6;

/// Results are read up to here: bounds the time a fold takes.
const READ: usize = 1 << 20;

/// Whether a message of the user is really output: text-only agents hand results over in the user's name.
pub(super) fn is_output(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).take(200).collect();
    if text.trim_end().ends_with("bash-$") {
        return true;
    }
    if lines.len() < 8 {
        return false;
    }
    // pytest marks the lines of a failure with `>` and `E`, and people do not indent what they write by hand.
    let set_off =
        |l: &str| l.starts_with("    ") || l.starts_with('\t') || l.starts_with("E   ") || l.starts_with(">   ");
    let is_code = |l: &str| set_off(l) || unnumbered(l).0.is_some() || l.ends_with([';', '{', '}', ')', ':', ',']);
    let listed = lines.iter().filter(|l| is_code(l)).count();
    let trace = lines.iter().any(|l| l.contains("Traceback (most recent call last)"));
    listed * 10 > lines.len() * 6 || trace && lines.len() < 80
}

/// What of a result would be missed most: its errors, notes, constants, reports of trouble, at most `most` of them, each
/// in one short line. What a placeholder keeps beside its pointer.
pub fn findings(message: &Message, call: Option<&ToolCall>, most: usize) -> Vec<String> {
    let mut facts = Facts::default();
    read(message, call, &mut facts);
    let mut items: Vec<_> = [Part::Errors, Part::Findings].iter().flat_map(|p| facts.part(*p).items.clone()).collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.base));
    items.iter().take(most).map(|item| shorten(&one_line(&item.text), FINDING).into_owned()).collect()
}

/// Bytes of one finding beside a pointer.
const FINDING: usize = 160;

/// Reads one result.
pub(super) fn read(message: &Message, call: Option<&ToolCall>, facts: &mut Facts) {
    let inner = unwrap(&message.text);
    let whole = inner.as_ref().map_or(message.text.as_str(), |inner| inner.text.as_str());
    let text = &whole[..floor(whole, READ)];
    if text.trim().is_empty() && inner.is_none() && !message.failed {
        return;
    }
    let call = call_of(call);
    let label = one_line(&call.label(60));
    // How a dialect says that a call failed; see `blocks::failed`.
    let (begins_so, text) = match text.trim_start().strip_prefix("Error:") {
        Some(why) => (true, why.trim_start()),
        None => (false, text),
    };
    let is_said = begins_so || message.failed;
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str::<Value>(text.trim())
    {
        json(&value, &label, facts);
        if is_said {
            let why = value.to_string();
            push(facts, Part::Errors, &format!("{label} failed: {}", shorten(&why, 200)));
        }
        return;
    }
    let failed = is_said || inner.as_ref().is_some_and(Inner::failed);
    let cleaned = clean(text);
    let graded = grade(&cleaned);
    let errors = lines(&graded, &call, facts);
    if failed && errors == 0 && (is_said || !call.runs()) {
        let why =
            graded.lines.iter().map(|line| line.trim()).find(|line| !line.is_empty()).unwrap_or("no reason given");
        push(facts, Part::Errors, &format!("{label} failed: {}", shorten(why, 200)));
    }
    outcome(&graded, inner.as_ref(), &call, &label, (failed, errors), facts);
}

/// Errors, notes, constants and words of trouble in lines. Returns how many error lines there were.
fn lines(graded: &Graded<'_>, call: &Call<'_>, facts: &mut Facts) -> usize {
    let file = call.path();
    let mut taken: HashMap<Part, usize> = HashMap::new();
    let mut room = |part: Part| {
        let n = taken.entry(part).or_default();
        *n += 1;
        *n <= OF_ONE_RESULT
    };
    let mut errors = 0;
    let mut constants = Vec::new();
    let mut troubles = Vec::new();
    for (i, line) in graded.lines.iter().enumerate() {
        let (number, code) = unnumbered(line);
        let at = |number: Option<u64>| match (&file, number) {
            (Some(file), Some(n)) => format!(" ({file}:{n})"),
            (Some(file), None) => format!(" ({file})"),
            _ => String::new(),
        };
        match graded.grades[i] {
            Grade::Error => {
                errors += 1;
                // A bare `ERROR` says nothing without the lines around it.
                let says = line.chars().filter(|c| c.is_alphanumeric()).take(14).count() >= 14;
                if says && !line.contains("Traceback (most recent") && room(Part::Errors) {
                    push(facts, Part::Errors, &located(graded, i));
                }
            }
            Grade::Mark if room(Part::Findings) => {
                let note = if place(line).is_some() {
                    line.trim().to_owned()
                } else {
                    format!("{}{}", code.trim(), at(number))
                };
                push(facts, Part::Findings, &note);
            }
            Grade::Trouble if number.is_none() => troubles.push(i),
            _ if definition(code) == Some(Definition::Constant) && code.len() < 200 => {
                constants.push(format!("{}{}", code.trim(), at(number)));
            }
            _ => {}
        }
    }
    // A file of hundreds of constants has none that stands out; one or two in a file do.
    let few = if constants.len() > 12 { 2 } else { 4 };
    constants.iter().take(few).for_each(|c| push(facts, Part::Findings, c));
    if errors == 0 && troubles.len() <= 12 && file.is_none() {
        let specific = troubles
            .iter()
            .filter(|&&i| graded.lines[i].bytes().any(|b| b.is_ascii_digit()) && graded.lines[i].len() < 300);
        specific.take(2).for_each(|&i| push(facts, Part::Findings, graded.lines[i]));
    }
    errors
}

/// An error line with the place that the next lines name, as rustc writes it.
fn located(graded: &Graded<'_>, i: usize) -> String {
    let line = shorten(graded.lines[i].trim(), 200);
    if place(&line).is_some() {
        return line.into_owned();
    }
    let next = graded.lines[i + 1..].iter().take(2).find_map(|l| place(l));
    next.map_or_else(|| line.to_string(), |found| format!("{line} ({})", found.whole))
}

/// How a command ended.
fn outcome(
    graded: &Graded<'_>,
    inner: Option<&Inner>,
    call: &Call<'_>,
    label: &str,
    (failed, errors): (bool, usize),
    facts: &mut Facts,
) {
    if !call.runs() {
        return;
    }
    let exit = inner.and_then(|inner| inner.exit).or_else(|| exit_code(&graded.lines));
    let totals = graded
        .lines
        .iter()
        .zip(&graded.grades)
        .rev()
        .filter(|(_, g)| **g == Grade::Summary)
        .map(|(l, _)| l.trim_matches([' ', '=', '-']));
    let total = totals.into_iter().find(|l| l.len() < 120);
    let mut how = Vec::new();
    if let Some(code) = exit {
        how.push(format!("exit {code}"));
    } else if failed {
        how.push("failed".to_owned());
    }
    if errors > 0 {
        how.push(plural(errors, "error line"));
    }
    if let Some(total) = total.filter(|t| !t.to_ascii_lowercase().contains("exit")) {
        how.push(shorten(total, 100).into_owned());
    }
    if how.is_empty() {
        let only = graded.lines.iter().map(|l| l.trim()).find(|l| !l.is_empty()).unwrap_or("");
        how.push(if graded.lines.len() <= 2 && only.len() < 100 { only.to_owned() } else { "ok".to_owned() });
    }
    push(facts, Part::Commands, &format!("{label} → {}", how.join(", ")));
}

/// JSON results: which items report trouble, else what a small object says.
fn json(value: &Value, label: &str, facts: &mut Facts) {
    let mut bad = Vec::new();
    let mut visits = 0;
    troubled(value, &mut bad, &mut visits, 0);
    if !bad.is_empty() {
        let named: Vec<String> = odd_first(bad.iter().map(|map| tag(map)).collect());
        let shown: Vec<&str> = named.iter().take(4).map(String::as_str).collect();
        let more =
            if named.len() > shown.len() { format!(", +{} more", named.len() - shown.len()) } else { String::new() };
        push(facts, Part::Findings, &format!("{label}: {} in trouble: {}{more}", bad.len(), shown.join(", ")));
        return;
    }
    if let Value::Object(map) = value
        && map.len() <= 24
    {
        push(facts, Part::Findings, &format!("{label}: {}", shorten(&object(map), 180)));
    }
}

fn troubled<'v>(value: &'v Value, bad: &mut Vec<&'v Map<String, Value>>, visits: &mut usize, depth: usize) {
    *visits += 1;
    if *visits > 20_000 || depth > 24 {
        return;
    }
    match value {
        Value::Object(map) => {
            if trouble(map) {
                bad.push(map);
            }
            map.values().for_each(|inner| troubled(inner, bad, visits, depth + 1));
        }
        Value::Array(items) => items.iter().for_each(|inner| troubled(inner, bad, visits, depth + 1)),
        _ => {}
    }
}

/// What tells an object apart from its like, and its state: `bld-7 failed (disk full)`.
fn tag(map: &Map<String, Value>) -> String {
    let get = |keys: &[&str]| keys.iter().find_map(|k| map.get(*k)).and_then(scalar);
    let id = get(&["id", "name", "key", "uid", "number", "title", "path", "file", "test"])
        .unwrap_or_else(|| shorten(&object(map), 80).into_owned());
    let state = get(&["status", "state", "result", "conclusion", "outcome", "severity", "level"]).unwrap_or_default();
    let why = get(&["error", "message", "reason", "error_message", "detail"]).unwrap_or_default();
    let mut out = shorten(&id, 60).into_owned();
    if !state.is_empty() {
        out.push_str(&format!(" {}", shorten(&state, 24)));
    }
    if !why.is_empty() {
        out.push_str(&format!(" ({})", shorten(&why, 90)));
    }
    out
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) if !s.is_empty() => Some(one_line(s)),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

/// Names whose shape (letters before the first digit) is rare among the others come first: they are the odd ones out.
fn odd_first(names: Vec<String>) -> Vec<String> {
    let shape = |name: &str| name.split(|c: char| c.is_ascii_digit()).next().unwrap_or("").to_owned();
    let mut counts: HashMap<String, usize> = HashMap::new();
    names.iter().for_each(|n| *counts.entry(shape(n)).or_default() += 1);
    let mut names = names;
    names.sort_by_key(|n| counts[&shape(n)]);
    names
}

/// A call as the preview module knows it.
pub(super) fn call_of(call: Option<&ToolCall>) -> Call<'_> {
    call.map_or(Call { tool: "", arguments: "" }, |c| Call { tool: &c.name, arguments: &c.arguments })
}
