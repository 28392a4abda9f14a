//! Writes a brief within its budget and reads it again. The two belong together: what is written must be read alike.

use std::collections::HashSet;

use super::safe::defuse;
use super::words::{condense, corrects};
use super::worth::{WRITTEN, worth};
use super::{Facts, Item, Part, Section, state, work};
use crate::conversation::task::Keep;
use crate::preview::clean::{floor, sanitize};
use crate::preview::fit::{first_that_fits, largest};

/// How a brief begins; by this it is found again.
const START: &str = "[windowsill brief of ";

/// How it goes on after the number of messages.
const ORIGINALS: &str = " earlier messages; the originals: windowsill recall";

/// What a brief is worth beside the messages after it.
const HOLDS: &str = "; what it says holds, and where a later message differs, the later one does";

/// A brief of fewer bytes does not name the file of the originals: every word counts there, and `windowsill recall` finds them.
const ROOMY: usize = 1600;

/// The same, in a brief of fewer than so many bytes.
const HOLDS_SHORT: &str = "; later messages win over it";
const TIGHT: usize = 600;

/// How a brief ends.
pub(super) const END: &str = "[end of windowsill brief]";

/// Stands between the part that a model wrote and the facts.
pub(super) const FACTS: &str = "--- kept without a model ---";

/// Heading of a section, its share of the facts' room in percent, and whether its items share lines.
pub(super) const fn shape(part: Part) -> (&'static str, usize, bool) {
    match part {
        Part::User => ("User, word for word:", 38, false),
        // Of what is left over, it has as much as the user's.
        Part::Said => ("Assistant, word for word:", 0, false),
        // It has a share of its own, of the whole room.
        Part::Done => ("Done before:", 0, false),
        Part::Conclusions => ("Concluded:", 10, false),
        Part::Findings => ("Seen in results:", 18, false),
        Part::Errors => ("Errors:", 15, false),
        Part::Files => ("Files:", 7, true),
        Part::Commands => ("Commands:", 4, false),
        Part::Open => ("Open:", 2, false),
        Part::Records => ("Originals (windowsill recall ID):", 6, true),
    }
}

/// Which sections get what others leave over, first to last.
const LEFTOVER: [Part; 10] = [
    Part::User,
    Part::Said,
    Part::Done,
    Part::Findings,
    Part::Errors,
    Part::Conclusions,
    Part::Files,
    Part::Commands,
    Part::Open,
    Part::Records,
];

/// Share of the room, in percent, that the tasks done before may take, where there are any, before the others have theirs.
const DONE: usize = 20;

/// Share of the room, in percent, that such statements may take before anything else has its share.
const STATEMENTS: usize = 45;

/// The brief's text: never over `budget` tokens by `count`.
///
/// `model_part` is a summary that was judged to be one; without one, the last one known stands in. What does not
/// fit goes out lowest worth first, and is counted. Parsing what was rendered gives the facts that it shows.
pub fn render(model_part: Option<&str>, facts: &Facts, budget: u32, count: &dyn Fn(&str) -> u32) -> String {
    let model = model_part.or(facts.summary.as_deref());
    let model = model.map(|m| state::without_marks(&defuse(&sanitize(m)).replace(FACTS, ""))).unwrap_or_default();
    let model = match (facts.told, model.trim()) {
        (Some(told), said) if !said.is_empty() => format!("{}\n{said}", state::mark(told)),
        (_, said) => said.to_owned(),
    };
    let head = header(facts, 0);
    let whole = |allowance: usize| {
        let head = header(facts, allowance);
        let frame = head.len() + END.len() + 2;
        let room = allowance.saturating_sub(frame);
        let summary = cut_summary(&model, room * 55 / 100);
        let body = sections(facts, room.saturating_sub(summary.len() + FACTS.len() + 2));
        let mut out = head;
        for part in
            [summary.as_str(), if body.is_empty() || summary.is_empty() { "" } else { FACTS }, body.as_str(), END]
        {
            if !part.is_empty() {
                out.push('\n');
                out.push_str(part);
            }
        }
        out
    };
    let forms = [
        format!("{head}\n{END}"),
        format!("{START}{}{ORIGINALS}{HOLDS_SHORT}]\n{END}", facts.folded),
        format!("{START}{}{ORIGINALS}]\n{END}", facts.folded),
        format!("{START}{}{ORIGINALS}]", facts.folded),
        format!("[{} earlier messages: windowsill recall]", facts.folded),
        "[cut]".to_owned(),
    ];
    largest(budget, count, &whole).unwrap_or_else(|| first_that_fits(&forms, budget, count))
}

/// The first line of a brief of so many bytes.
pub(super) fn header(facts: &Facts, allowance: usize) -> String {
    let of =
        if facts.conversation.is_empty() { String::new() } else { format!(" (conversation {})", facts.conversation) };
    let named = !facts.history.is_empty() && allowance >= ROOMY;
    let file = if named { format!(", or {}", facts.history) } else { String::new() };
    let holds = if allowance < TIGHT { HOLDS_SHORT } else { HOLDS };
    sanitize(&format!("{START}{}{ORIGINALS}{of}{file}{holds}]", facts.folded)).into_owned()
}

/// A summary cut at the end of a section, a paragraph or a line.
pub(super) fn cut_summary(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = &text[..floor(text, max)];
    let at = ["\n#", "\n\n", "\n"].iter().find_map(|mark| head.rfind(mark).filter(|&at| at * 2 > max)).unwrap_or(0);
    head[..at].trim_end().to_owned()
}

/// Shares of the room where there is work to quote, in percent, in the order of [`Part::ALL`]: quotes say most of what the
/// sections say without them.
const BESIDE_WORK: [usize; 10] = [24, 0, 0, 3, 4, 5, 4, 2, 1, 3];

/// Percent of the room that a section gets on top of its share when the task keeps its content longest.
fn longest(keep: Option<Keep>, part: Part) -> usize {
    match (keep, part) {
        (Some(Keep::Errors), Part::Errors) => 12,
        (Some(Keep::Errors), Part::Commands) => 6,
        (Some(Keep::Files), Part::Files | Part::Conclusions) => 8,
        (Some(Keep::Words), Part::User) => 16,
        (Some(Keep::Sources | Keep::Findings), Part::Findings) => 12,
        (Some(Keep::Findings), Part::Conclusions) => 4,
        _ => 0,
    }
}

/// Of the room that sections leave, quotes get this share in percent, and the names in use the rest.
const QUOTES: usize = 55;

/// In fewer bytes than this nothing of the work is quoted.
const LEAST_WITH_WORK: usize = 1000;

/// All sections in `room` bytes: each gets its share, and what some leave over goes to others, to the quotes first.
fn sections(facts: &Facts, room: usize) -> String {
    let needs: Vec<usize> = Part::ALL.iter().map(|&part| need(part, facts.part(part))).collect();
    let whole = room;
    let done = needs[Part::Done as usize].min(whole * DONE / 100);
    let room = whole - done;
    let has_work = room >= LEAST_WITH_WORK || facts.work.is_talk();
    let work = if has_work { facts.work.need() + facts.work.names_need() } else { 0 };
    // In a small brief the user's words come before everything else.
    let share = |part: Part| match (room < LEAST_WITH_WORK, part) {
        (true, Part::User) => 76,
        (true, Part::Said | Part::Done | Part::Files | Part::Commands | Part::Records | Part::Open) => 0,
        (true, _) => 8,
        (false, part) if work > 0 => BESIDE_WORK[part as usize] + longest(facts.keep, part),
        // Together they are the whole room.
        (false, part) => {
            let more: usize = Part::ALL.iter().map(|&part| longest(facts.keep, part)).sum();
            (shape(part).1 + longest(facts.keep, part)) * 100 / (100 + more)
        }
    };
    let mut grants: Vec<usize> =
        Part::ALL.iter().map(|&part| needs[part as usize].min(room * share(part) / 100)).collect();
    grants[Part::Done as usize] = done;
    let user = facts.part(Part::User);
    let stated = |item: &&Item| !item.stated.is_empty() || item.base >= WRITTEN;
    let stated: usize = user.items.iter().filter(stated).map(|i| i.text.len() + 10).sum();
    let stated = (shape(Part::User).0.len() + 34 + stated).min(room * STATEMENTS / 100).min(needs[0]);
    grants[0] = grants[0].max(stated);
    let mut left = whole.saturating_sub(grants.iter().sum());
    let quoted = left.min(work);
    left -= quoted;
    // Two who talk are quoted alike.
    let (user, said) = (needs[0] - grants[0], needs[Part::Said as usize]);
    grants[Part::Said as usize] = (left * said / (user + said).max(1)).min(said);
    left -= grants[Part::Said as usize];
    for part in LEFTOVER {
        let i = part as usize;
        let more = (needs[i] - grants[i]).min(left);
        grants[i] += more;
        left -= more;
    }
    let mut out = Vec::new();
    let mut shown = HashSet::new();
    for part in Part::ALL {
        let text = section(part, facts.part(part), grants[part as usize], &mut shown);
        if !text.is_empty() {
            out.push(text);
        }
    }
    if quoted > 0 {
        let names = facts.work.names_need().min(quoted * (100 - QUOTES) / 100);
        let quotes = facts.work.quotes(quoted.saturating_sub(names));
        out.extend(Some(quotes).filter(|q| !q.is_empty()));
        let names = facts.work.names(names, &out.join("\n"));
        // Quotes stand last: where they end nothing has to tell.
        out.insert(out.len().saturating_sub(1), names);
        out.retain(|part| !part.is_empty());
    }
    out.join("\n")
}

/// Bytes that a section takes if all of it is shown.
fn need(part: Part, section: &Section) -> usize {
    if section.items.is_empty() && section.dropped == 0 {
        return 0;
    }
    shape(part).0.len()
        + 34
        + section.items.iter().map(|item| item.text.len() + item.text.matches('\n').count() * 2 + 10).sum::<usize>()
}

/// One section in `room` bytes, or nothing if not even one fact fits. No line stands there that is `shown` before it.
fn section(part: Part, section: &Section, room: usize, shown: &mut HashSet<String>) -> String {
    let (heading, _, inline) = shape(part);
    let mut left = room.saturating_sub(heading.len() + 1);
    let texts = shortened(part, section, left);
    let total = texts.len();
    let mut order: Vec<usize> = (0..total).collect();
    let value = |i: usize| worth(part, &section.items[i], i, total) + bonus(part, section, i);
    order.sort_by_key(|&i| (std::cmp::Reverse(value(i)), std::cmp::Reverse(i)));
    let mut keep = vec![false; total];
    let mut dropped = section.dropped;
    // What goes out has to be counted in a line of its own.
    if dropped > 0 || texts.iter().map(|t| t.len() + 4).sum::<usize>() > left {
        left = left.saturating_sub(30);
    }
    for i in order {
        if !inline && shown.contains(&texts[i]) {
            continue;
        }
        let cost = texts[i].len() + texts[i].matches('\n').count() * 2 + if inline { 2 } else { 4 };
        if cost <= left {
            keep[i] = true;
            left -= cost;
            shown.insert(texts[i].clone());
        } else {
            dropped = dropped.saturating_add(1);
        }
    }
    let kept: Vec<&str> = texts.iter().zip(&keep).filter(|(_, k)| **k).map(|(t, _)| t.as_str()).collect();
    if kept.is_empty() {
        return String::new();
    }
    let mut lines = vec![heading.to_owned()];
    if inline {
        lines.extend(inlined(part, &kept));
    } else {
        lines.extend(kept.iter().map(|text| format!("- {}", text.replace('\n', "\n  "))));
    }
    if dropped > 0 {
        lines.push(format!("(+{dropped} more in the record)"));
    }
    lines.join("\n")
}

/// A correction and what it corrects stay together: what stands right before one is worth as much as it.
fn bonus(part: Part, section: &Section, i: usize) -> i32 {
    if part == Part::User && section.items.get(i + 1).is_some_and(|next| corrects(&next.text)) { 6 } else { 0 }
}

/// The items' texts; of the user's words the long ones are condensed first, so that few have to go.
fn shortened(part: Part, section: &Section, room: usize) -> Vec<String> {
    let plain =
        |item: &Item| if item.times > 1 { format!("{} ×{}", item.text, item.times) } else { item.text.clone() };
    if !matches!(part, Part::User | Part::Said) {
        return section.items.iter().map(plain).collect();
    }
    let cost = |cap: usize| section.items.iter().map(|item| item.text.len().min(cap) + 6).sum::<usize>();
    let longest = section.items.iter().map(|item| item.text.len()).max().unwrap_or(0);
    // The lowest cap is about one sentence; below it messages go out whole.
    let lowest = 180.min(room / 2).max(40);
    let (mut low, mut high) = (lowest, longest.max(lowest));
    if cost(high) > room {
        while low + 8 < high {
            let middle = usize::midpoint(low, high);
            if cost(middle) <= room {
                low = middle;
            } else {
                high = middle;
            }
        }
        high = low;
    }
    section.items.iter().map(|item| condense(&item.text, high)).collect()
}

/// Short items on shared lines: files by what was done to them, records one after the other.
fn inlined(part: Part, kept: &[&str]) -> Vec<String> {
    if part != Part::Files {
        return vec![kept.iter().map(|t| t.replace("; ", ", ")).collect::<Vec<_>>().join("; ")];
    }
    let of = |how: &str| {
        let paths: Vec<String> =
            kept.iter().filter_map(|t| t.strip_prefix(how)).map(|t| t.trim().replace("; ", ";")).collect();
        (!paths.is_empty()).then(|| format!("{how}: {}", paths.join("; ")))
    };
    ["written", "read"].iter().filter_map(|how| of(how)).collect()
}

/// Where a brief stands in a text.
fn span(text: &str) -> Option<(usize, usize)> {
    let start = text.rfind(START).filter(|&at| text[at..].lines().next().is_some_and(|l| l.contains(ORIGINALS)))?;
    let end = text[start..].find(END).map_or(text.len(), |at| start + at + END.len());
    Some((start, end))
}

/// The first line of a brief, and what stands between it and the last; `None` where there is none.
pub(super) fn framed(text: &str) -> Option<(&str, &str)> {
    let (start, end) = span(text)?;
    let (head, body) = text[start..end].split_once('\n').unwrap_or((&text[start..end], ""));
    Some((head, body.trim_end().strip_suffix(END).unwrap_or(body)))
}

/// The text without a brief in it.
pub(super) fn without_brief(text: &str) -> String {
    match span(text) {
        Some((start, end)) => format!("{}{}", &text[..start], &text[end..]),
        None => text.to_owned(),
    }
}

/// The facts of a brief that [`render`] wrote, wherever it stands in `brief`; `None` if there is none.
pub fn parse(brief: &str) -> Option<Facts> {
    let (head, body) = framed(brief)?;
    let mut facts = Facts::default();
    let rest = head.strip_prefix(START)?;
    let (folded, rest) = rest.split_once(ORIGINALS)?;
    facts.folded = folded.trim().parse().ok()?;
    let rest = rest.strip_suffix(']').unwrap_or(rest);
    let mut rest = [HOLDS, HOLDS_SHORT].iter().find_map(|holds| rest.strip_suffix(holds)).unwrap_or(rest);
    if let Some(named) = rest.strip_prefix(" (conversation ") {
        let (name, after) = named.split_once(')')?;
        facts.conversation = name.to_owned();
        rest = after;
    }
    facts.history = rest.strip_prefix(", or ").unwrap_or("").to_owned();
    let (summary, body) = match fence(body) {
        Some((summary, body)) => (summary.trim(), body),
        None if body.lines().any(is_heading) => ("", body),
        None => (body.trim(), ""),
    };
    let (told, summary) = state::unmarked(summary);
    facts.summary = (!summary.is_empty()).then(|| summary.to_owned());
    facts.told = told.filter(|_| facts.summary.is_some());
    read_sections(body, &mut facts);
    Some(facts)
}

/// What stands before and after the line that divides summary and facts. In a fact that line would be indented.
fn fence(body: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for line in body.split_inclusive('\n') {
        if line.trim_end() == FACTS {
            return Some((&body[..at], &body[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

/// Where the facts of a brief begin, or would; `None` where it is too short to hold any.
pub(super) fn facts_at(brief: &str) -> Option<usize> {
    let (start, end) = span(brief)?;
    let body = start + brief[start..end].find('\n')? + 1;
    let end = body + brief[body..end].rfind(END)?;
    match fence(&brief[body..end]) {
        Some((_, facts)) => Some(end - facts.len()),
        None if brief[body..end].lines().any(is_heading) => Some(body),
        None => Some(end),
    }
}

/// Whether a summary stands at the end of this part of a brief, with nothing that divides it from facts.
pub(super) fn needs_fence(before: &str) -> bool {
    let last = before.lines().next_back().unwrap_or_default();
    last != FACTS && !last.starts_with(START)
}

/// Whether a line is the heading of facts.
pub(super) fn is_heading(line: &str) -> bool {
    is_quoted(line) || Part::ALL.iter().any(|&part| line == shape(part).0)
}

/// Whether a line is the heading of what is quoted. In a fact that line would be indented.
fn is_quoted(line: &str) -> bool {
    line == work::HEAD || line == work::TALK || line.starts_with(work::ALSO)
}

fn read_sections(body: &str, facts: &mut Facts) {
    let mut part: Option<Part> = None;
    let mut item: Option<String> = None;
    let finish = |part: Option<Part>, item: Option<String>, facts: &mut Facts| {
        if let (Some(part), Some(text)) = (part, item) {
            facts.sections[part as usize].items.push(counted(part, text));
        }
    };
    // What is quoted is not read back.
    let sections = body.lines().take_while(|line| !is_quoted(line));
    for line in sections {
        if let Some(next) = Part::ALL.into_iter().find(|&p| shape(p).0 == line) {
            finish(part, item.take(), facts);
            part = Some(next);
        } else if let Some(dropped) = line.strip_prefix("(+").and_then(|l| l.strip_suffix(" more in the record)")) {
            finish(part, item.take(), facts);
            if let Some(part) = part {
                facts.sections[part as usize].dropped = dropped.parse().unwrap_or(0);
            }
        } else if let Some(part) = part.filter(|&p| shape(p).2) {
            let (how, list) = match line.split_once(": ").filter(|_| part == Part::Files) {
                Some((how, list)) => (format!("{how} "), list),
                None => (String::new(), line),
            };
            let items = list.split("; ").filter(|t| !t.trim().is_empty());
            items.for_each(|text| facts.sections[part as usize].items.push(counted(part, format!("{how}{text}"))));
        } else if let Some(first) = line.strip_prefix("- ") {
            finish(part, item.take(), facts);
            item = Some(first.to_owned());
        } else if let Some(text) = &mut item {
            text.push('\n');
            text.push_str(line.strip_prefix("  ").unwrap_or(line));
        }
    }
    finish(part, item, facts);
}

/// An item with the count at its end taken off.
fn counted(part: Part, text: String) -> Item {
    if !matches!(part, Part::User | Part::Said)
        && let Some((rest, times)) = text.rsplit_once(" ×")
        && let Ok(times) = times.parse()
    {
        return Item::new(part, rest.to_owned(), times);
    }
    Item::new(part, text, 1)
}

/// What a previous brief says, for a transcript: without its marks.
pub(super) fn spoken(previous: &str) -> String {
    match framed(previous) {
        Some((_, body)) => body.trim().to_owned(),
        None => without_brief(previous),
    }
}
