//! Takes the facts out of messages: who said what, which files and commands there were, how they ended.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::safe::{defuse, one_line};
use super::section::{add, cap, push};
use super::talk::{SPOKEN_MOST, is_talk};
use super::words::{CONCLUSION, concludes, condense, sentences};
use super::worth::WRITTEN;
use super::{Facts, Item, Material, Part, done, render, results, statements};
use crate::conversation::files::PATH_KEYS;
use crate::conversation::person::{self, Said};
use crate::conversation::{Message, Role, ToolCall};
use crate::preview::clean::{sanitize, shorten};

/// A single message of the user is kept up to this many bytes; the rest is in the record.
const MESSAGE_MOST: usize = 3000;

/// What is known of the folded messages without a model, the last brief folded in.
pub fn facts(material: &Material<'_>) -> Facts {
    let mut new = Facts {
        folded: u32::try_from(material.messages.len()).unwrap_or(u32::MAX),
        history: one_line(material.history_path),
        // Parentheses end the name in the brief's first line.
        conversation: one_line(material.conversation).replace(['(', ')'], ""),
        ..Facts::default()
    };
    let calls = calls_of(material.messages);
    let two_talk = is_talk(material.messages.iter().copied());
    let mut last_text: Option<&Message> = None;
    // What a client shows as examples of how to answer, nobody said and nobody did.
    let own = material.messages.iter().rposition(|message| person::ends_examples(message)).map_or(0, |at| at + 1);
    for (i, message) in material.messages.iter().enumerate().skip(own) {
        match message.role {
            Role::User => {
                last_text = None;
                user(message, material.numbers.get(i).copied(), &mut new);
            }
            Role::Assistant => {
                let ends_turn =
                    message.calls.is_empty() && material.messages.get(i + 1).is_none_or(|m| m.role == Role::User);
                match two_talk && message.text.len() <= SPOKEN_MOST {
                    true => said(message, &mut new),
                    false => assistant(message, ends_turn, &mut new),
                }
                if !message.text.trim().is_empty() {
                    last_text = Some(message);
                }
            }
            Role::Tool | Role::System | Role::Other => {
                let call = calls.get(i).copied().flatten();
                results::read(message, call, &mut new);
            }
        }
    }
    if let Some(message) = last_text {
        let asked = sentences(&message.text).into_iter().filter(|s| s.ends_with(['?', '？']));
        asked.rev().take(2).for_each(|question| push(&mut new, Part::Open, question));
    }
    for (id, what) in material.records {
        push(&mut new, Part::Records, &format!("{} {}", one_line(id), shorten(&one_line(what), 60)));
    }
    for part in Part::ALL {
        cap(&mut new.sections[part as usize], part);
    }
    let Some(mut known) = material.previous.and_then(render::parse) else { return new };
    // A task that is done stands as a line from the next fold on: what is read as today's state is another one's.
    for line in known.summary.as_deref().map(done::outcomes).into_iter().flatten() {
        push(&mut known, Part::Done, &line);
        known.summary = None;
    }
    known.merge(new)
}

/// For each message that is a result, the call that it answers. Ids are used again within a session: the latest call counts.
fn calls_of<'m>(messages: &[&'m Message]) -> Vec<Option<&'m ToolCall>> {
    let mut by_id: HashMap<&str, &ToolCall> = HashMap::new();
    let mut waiting: Vec<&ToolCall> = Vec::new();
    messages
        .iter()
        .map(|message| {
            if message.role == Role::Assistant {
                waiting = message.calls.iter().rev().collect();
                by_id.extend(message.calls.iter().filter(|c| !c.id.is_empty()).map(|c| (c.id.as_str(), c)));
            }
            if message.role != Role::Tool {
                return None;
            }
            // Ollama's clients send no ids: results come in the order of the calls.
            let in_order = waiting.pop();
            message.call_id.as_deref().and_then(|id| by_id.get(id).copied()).or(in_order)
        })
        .collect()
}

/// What the user said, without what clients add and without an older brief. Of what no person wrote, output is read as
/// output, and the client's own summary as the assistant's words.
fn user(message: &Message, number: Option<usize>, facts: &mut Facts) {
    let text = render::without_brief(&message.text);
    let text = match person::said(&text) {
        Said::Person(words) => words,
        Said::Output => return results::read(message, None, facts),
        Said::Handover => return concluded(&text, true, facts),
        Said::Rules | Said::Files | Said::Task | Said::Reminder => return,
    };
    let text = text.trim();
    let text = match (text.is_empty(), message.media.len()) {
        (true, 0) => return,
        (true, n) => format!("[{n} attachments]"),
        // The first message is the task, whatever it looks like.
        (false, _) if !facts.part(Part::User).items.is_empty() && results::is_output(text) => {
            results::read(message, None, facts);
            return;
        }
        (false, _) => condense(text, MESSAGE_MOST),
    };
    let item = Item::new(Part::User, defuse(&sanitize(&text)), 1);
    let own = &mut facts.sections[Part::User as usize];
    let item = statements::supersede(own, item, number);
    facts.said.extend(number.map(|number| (item.key, number)));
    add(&mut facts.sections[Part::User as usize], Part::User, item);
}

/// Statements that are looked at, the newest: more than a brief could hold.
const MOST_STATED: usize = 300;

/// Puts back what a person states in the folded messages (with their numbers), all of them each time: what an earlier, smaller
/// brief had no room for may have it now. Where the last brief, of the messages before `done`, left nothing out, what it does
/// not say was taken out of it by a person, and stays out. What stands in it alone stays.
pub fn restate<'m>(facts: &mut Facts, messages: impl Iterator<Item = (usize, &'m Message)>, done: usize) {
    let mut all = Facts::default();
    let user = Part::User as usize;
    let mut messages: Vec<(usize, &Message)> = messages.filter(|(_, message)| message.role == Role::User).collect();
    let own = messages.iter().rposition(|(_, message)| person::ends_examples(message)).map_or(0, |at| at + 1);
    messages.drain(..own);
    for (number, message) in &messages {
        self::user(message, Some(*number), &mut all);
        all.sections[user].items.retain(|item| !item.stated.is_empty());
        let over = all.sections[user].items.len().saturating_sub(MOST_STATED);
        all.sections[user].items.drain(..over);
    }
    let own = &mut facts.sections[user];
    let holds = |items: &[Item], item: &Item| {
        item.stated.iter().all(|stated| items.iter().any(|other| other.text.contains(stated.text())))
    };
    let old = |item: &Item| all.said.iter().any(|(key, number)| *key == item.key && *number < done);
    let mut stated = std::mem::take(&mut all.sections[user].items);
    // A brief that was short of room shows a statement cut, and says so with a mark: it is the same statement.
    let is_cut = |item: &Item| stated.iter().any(|whole| is_cut_of(&item.text, &whole.text));
    let cut: Vec<Item> = own.items.extract_if(.., |item| !item.stated.is_empty() && is_cut(item)).collect();
    let shown = |item: &Item| cut.iter().any(|cut| is_cut_of(&cut.text, &item.text));
    stated.retain(|item| own.dropped > 0 || !old(item) || holds(&own.items, item) || shown(item));
    let back = stated.iter().filter(|item| !holds(&own.items, item) && !shown(item)).count();
    own.dropped = own.dropped.saturating_sub(u32::try_from(back).unwrap_or(u32::MAX));
    own.items.retain(|item| item.stated.is_empty() || !holds(&stated, item));
    own.items.extend(stated);
    in_order(&mut own.items, &messages);
}

/// Puts what the user said in the order of the messages that say it. What none of them says, a person wrote into the brief: it
/// stays behind what stood before it.
fn in_order(items: &mut [Item], messages: &[(usize, &Message)]) {
    let said = |(number, message): &(usize, &Message)| Some((*number, person_words(message)?));
    let said: Vec<(usize, String)> = messages.iter().filter_map(said).collect();
    let mut taken = HashSet::new();
    let mut last = 0;
    let mut places = HashMap::new();
    for item in items.iter_mut() {
        let plain = statements::unmarked(&item.text);
        let parts: Vec<&str> = plain.split(['…', '\n']).map(str::trim).filter(|part| !part.is_empty()).collect();
        let mut free = said.iter().filter(|(number, _)| !taken.contains(number));
        let whole = free.clone().find(|(_, text)| *text == plain);
        let found = whole.or_else(|| free.find(|(_, text)| parts.iter().all(|part| text.contains(part))));
        if let Some((number, _)) = found {
            taken.insert(*number);
            last = *number;
        } else if !said.iter().any(|(_, text)| parts.iter().all(|part| text.contains(part))) {
            item.base += WRITTEN;
        }
        places.entry(item.text.clone()).or_insert(last);
    }
    items.sort_by_key(|item| places.get(&item.text).copied());
}

/// What a person says in a message, as a brief has it.
fn person_words(message: &Message) -> Option<String> {
    let text = render::without_brief(&message.text);
    let Said::Person(words) = person::said(&text) else { return None };
    let words = words.trim();
    (!words.is_empty()).then(|| defuse(&sanitize(&condense(words, MESSAGE_MOST))))
}

/// Whether a text with marks where something was left out is a shorter form of another.
fn is_cut_of(cut: &str, whole: &str) -> bool {
    let mut parts = cut.split(['…', '\n']).map(str::trim).filter(|part| !part.is_empty());
    cut.contains('…') && cut != whole && parts.all(|part| whole.contains(part))
}

/// A user message as a summarizer sees it: without reminders and without an older brief.
pub(super) fn told(text: &str) -> String {
    let text = render::without_brief(text);
    match person::said(&text) {
        Said::Person(words) => words.into_owned(),
        Said::Output | Said::Handover | Said::Files => text,
        Said::Rules | Said::Task | Said::Reminder => String::new(),
    }
}

/// What the other one says in a talk, but for what says nothing.
fn said(message: &Message, facts: &mut Facts) {
    let text = condense(message.text.trim(), MESSAGE_MOST);
    if super::words::said(&text) > 0 {
        push(facts, Part::Said, &defuse(&sanitize(&text)));
    }
}

/// Conclusions among an assistant's sentences, files and commands among its calls.
fn assistant(message: &Message, ends_turn: bool, facts: &mut Facts) {
    concluded(&message.text, ends_turn, facts);
    for call in &message.calls {
        files(call, facts);
        tasks(call, facts);
    }
}

/// Conclusions among sentences.
fn concluded(text: &str, ends_turn: bool, facts: &mut Facts) {
    let all = sentences(text);
    let mut best: Vec<(i32, usize)> = all
        .iter()
        .enumerate()
        .map(|(i, s)| (concludes(s) + if ends_turn { 2 } else { 0 }, i))
        .filter(|(worth, _)| *worth >= CONCLUSION)
        .collect();
    best.sort_by_key(|(worth, i)| (std::cmp::Reverse(*worth), *i));
    best.truncate(if ends_turn { 3 } else { 2 });
    best.sort_by_key(|(_, i)| *i);
    for (_, i) in best {
        push(facts, Part::Conclusions, all[i].trim_start_matches(['-', '*', '•', '#', '>', ' ']));
    }
}

/// Files that a call names, and whether it writes them.
fn files(call: &ToolCall, facts: &mut Facts) {
    if call.arguments.len() > 1 << 20 {
        return;
    }
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(call.arguments.trim()) else { return };
    let action = map.get("command").and_then(Value::as_str).unwrap_or("");
    let name = call.name.to_ascii_lowercase();
    let changes = [
        "write", "edit", "create", "replace", "patch", "insert", "delete", "rename", "move", "save", "append", "update",
    ];
    let looks = matches!(action, "view" | "read" | "open" | "cat" | "list");
    let writes = !looks && changes.iter().any(|w| name.contains(w) || action.starts_with(w));
    let how = if writes { "written" } else { "read" };
    named_paths(&Value::Object(map.clone()), 0, &mut |path| push(facts, Part::Files, &format!("{how} {path}")));
    if action.contains(' ') {
        for (path, written) in shell_files(action) {
            push(facts, Part::Files, &format!("{} {path}", if written { "written" } else { "read" }));
        }
    }
}

/// Strings under keys that name files, also one level down.
fn named_paths(value: &Value, depth: usize, found: &mut dyn FnMut(&str)) {
    /// Keys of several files, or of two.
    const MORE: &[&str] = &["paths", "files", "source", "destination", "old_path", "new_path"];
    let names_files = |key: &str| PATH_KEYS.iter().chain(MORE).any(|known| known.eq_ignore_ascii_case(key));
    let Value::Object(map) = value else { return };
    for inner in map.iter().filter(|(key, _)| names_files(key)).map(|(_, inner)| inner) {
        match inner {
            Value::String(s) if is_file(s) => found(s),
            Value::Array(items) if depth < 2 => items.iter().take(20).for_each(|item| match item {
                Value::String(s) if is_file(s) => found(s),
                other => named_paths(other, depth + 1, found),
            }),
            _ => {}
        }
    }
}

fn is_file(text: &str) -> bool {
    let name = text.rsplit(['/', '\\']).next().unwrap_or(text);
    let dotted = name.rfind('.').is_some_and(|dot| dot + 1 < name.len() && name.len() - dot <= 12);
    text.len() < 300
        && !text.contains(['\n', ';', '*', '"', '<', '>', '|'])
        && !text.contains("://")
        && (dotted || name == "Makefile" || name == "Dockerfile")
}

/// Files that a shell command names: written ones stand after `>` or `tee`, or are edited in place.
fn shell_files(command: &str) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    let line = command.lines().next().unwrap_or("");
    let in_place = line.contains("sed -i") || line.contains("perl -pi");
    let mut writes = false;
    for word in line.split_whitespace().take(60) {
        let bare = word.trim_matches(['"', '\'', ';', ')', '(']);
        if matches!(word, ">" | ">>" | "tee") {
            writes = true;
            continue;
        }
        let (bare, redirected) = match bare.strip_prefix(">>").or_else(|| bare.strip_prefix('>')) {
            Some(target) => (target, true),
            None => (bare, false),
        };
        if !bare.starts_with('-')
            && bare.contains(['.'])
            && !bare.contains(['=', '$', '{', ',', ':', '&'])
            && !bare.starts_with(['.', '$']) | bare.starts_with("./")
            && is_file(bare)
            && !bare.ends_with(|c: char| c.is_ascii_digit())
        {
            out.push((bare.to_owned(), writes || redirected || in_place));
        }
        writes = false;
    }
    out.truncate(6);
    out
}

/// The last task list is what is open; older ones are not.
fn tasks(call: &ToolCall, facts: &mut Facts) {
    let name = call.name.to_ascii_lowercase();
    if !name.contains("todo") && !name.contains("task_list") && !name.contains("update_plan")
        || call.arguments.len() > 65_536
    {
        return;
    }
    let Ok(value) = serde_json::from_str::<Value>(call.arguments.trim()) else { return };
    let mut open = Vec::new();
    open_tasks(&value, &mut open);
    if open.is_empty() {
        return;
    }
    facts.sections[Part::Open as usize].items.retain(|item| !item.text.starts_with("tasks: "));
    push(facts, Part::Open, &format!("tasks: {}", open.join("; ")));
}

fn open_tasks(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            out.extend(text.lines().map(one_line).filter(|l| !l.is_empty() && !l.contains("[x]")).take(12))
        }
        Value::Array(items) => items.iter().take(20).for_each(|item| open_tasks(item, out)),
        Value::Object(map) => {
            let done = ["status", "state"]
                .iter()
                .filter_map(|k| map.get(*k))
                .any(|v| matches!(v.as_str(), Some("completed" | "done" | "cancelled")));
            let text = ["content", "step", "title", "task", "description", "text"]
                .iter()
                .find_map(|k| map.get(*k))
                .and_then(Value::as_str);
            match text {
                Some(text) if !done => out.push(one_line(text)),
                Some(_) => {}
                None => map.values().for_each(|inner| open_tasks(inner, out)),
            }
        }
        _ => {}
    }
}
