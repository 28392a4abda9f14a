//! How much a fact would be missed: by itself, and at its place.

use super::section::{Item, Part};
use super::statements::Stated;
use super::words::{said, specifics};

/// What something that a person expects to hold is worth more than other words.
const STATED: i32 = 40;

/// What something that a person forbids is worth more than what else is stated.
const FORBIDDEN: i32 = 10;

/// What a person wrote into a brief is worth more than anything that was said before.
pub(super) const WRITTEN: i32 = 200;

/// Worth of a fact by itself.
pub(super) fn base_worth(part: Part, text: &str, stated: &[Stated]) -> i32 {
    match part {
        Part::User if stated.is_empty() => said(text),
        Part::Said => said(text),
        Part::User => said(text) + STATED + if stated.iter().any(Stated::forbids) { FORBIDDEN } else { 0 },
        Part::Conclusions => super::words::concludes(text),
        Part::Findings => finding(text),
        Part::Errors => 6 + specifics(text) as i32,
        Part::Files => i32::from(text.starts_with("written")) * 12,
        Part::Commands => i32::from(!text.ends_with("→ ok") && !text.ends_with("→ exit 0")) * 4,
        Part::Done | Part::Open | Part::Records => 0,
    }
}

/// Notes that people left and named constants are rarer, and missed more, than one more item that failed.
fn finding(text: &str) -> i32 {
    let note =
        ["HACK", "FIXME", "XXX", "NOTE", "TODO"].iter().position(|w| text.contains(w)).map_or(0, |i| 14 - i as i32);
    let constant = if text.contains(" = ") || text.starts_with("#define") { 9 } else { 0 };
    let trouble = text.split_once(" in trouble: ").map_or(0, |(_, list)| if is_odd(list) { 11 } else { 5 });
    // Digits in a row: ports, ids, sizes. 0 and 1 say little.
    let digits = text.bytes().filter(u8::is_ascii_digit).count().min(4) as i32;
    note.max(constant).max(trouble) + digits
}

/// Whether the first of the items named is unlike the second: `bld-7` among `run-1`, `run-2`.
fn is_odd(list: &str) -> bool {
    let shape = |name: &str| name.split(|c: char| c.is_ascii_digit()).next().unwrap_or("").to_owned();
    let mut names = list.split(", ");
    match (names.next(), names.next()) {
        (Some(first), Some(second)) => !second.starts_with('+') && shape(first) != shape(second),
        _ => false,
    }
}

/// Worth of a fact at its place: what is recent counts more, what came first from the user counts most.
pub(super) fn worth(part: Part, item: &Item, at: usize, total: usize) -> i32 {
    let from_end = (total - 1 - at.min(total - 1)).min(1000) as i32;
    let recent = match part {
        // `ok` and `go on` say little, however recent.
        Part::User => (6 - from_end).max(0) * if item.base > 0 { 2 } else { 0 } + if at == 0 { 24 } else { 0 },
        Part::Said => (6 - from_end).max(0) * 2,
        Part::Done | Part::Records | Part::Open => 1000 - from_end,
        _ => (8 - from_end).max(0) / 2,
    };
    item.base + recent + item.times.min(4) as i32 - 1
}
