//! The facts of one kind: what makes two the same, and which of them are held.

use std::hash::{Hash, Hasher};

use super::Facts;
use super::safe::{defuse, one_line};
use super::statements::{self, Stated};
use super::worth::{base_worth, worth};
use crate::preview::clean::shorten;

/// Of a fact other than the user's words so many bytes are kept.
const FACT_MOST: usize = 240;

/// A section of the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// What the user said, word for word.
    User,
    /// What the other one said, word for word, in a chat of two who say as much.
    Said,
    /// Tasks that were done, and how each ended.
    Done,
    /// What the assistant concluded, decided or did.
    Conclusions,
    /// Values, notes and odd items seen in results.
    Findings,
    /// Error lines, exactly.
    Errors,
    /// Files written and read.
    Files,
    /// Commands and how they ended.
    Commands,
    /// Questions and tasks still open.
    Open,
    /// Ids of the originals.
    Records,
}

impl Part {
    /// All sections in the order in which they are shown.
    pub const ALL: [Part; 10] = [
        Part::User,
        Part::Said,
        Part::Done,
        Part::Conclusions,
        Part::Findings,
        Part::Errors,
        Part::Files,
        Part::Commands,
        Part::Open,
        Part::Records,
    ];
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The fact, copied; may have several lines.
    pub text: String,
    /// How often it was seen.
    pub times: u32,
    /// What makes two facts the same, as a hash.
    pub(super) key: u64,
    /// How much it would be missed, without regard to where it stands.
    pub(super) base: i32,
    /// What a person states in it and expects to hold.
    pub(super) stated: Vec<Stated>,
}

impl Item {
    /// A fact of a section.
    pub fn new(part: Part, text: String, times: u32) -> Item {
        let stated = if part == Part::User { statements::stated(&text) } else { Vec::new() };
        let (key, base) = (key(part, &text), base_worth(part, &text, &stated));
        Item { text, times, key, base, stated }
    }
}

/// One section's facts, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// The facts.
    pub items: Vec<Item>,
    /// How many more there were, which are only in the record now.
    pub dropped: u32,
}

/// Adds a fact.
pub(super) fn push(facts: &mut Facts, part: Part, text: &str) {
    let text = if matches!(part, Part::User | Part::Said) {
        text.to_owned()
    } else {
        shorten(&defuse(&one_line(text)), FACT_MOST).into_owned()
    };
    if !text.trim().is_empty() {
        add(&mut facts.sections[part as usize], part, Item::new(part, text, 1));
    }
}

/// What makes two facts the same: a file's path, a command, an id, else the letters and digits.
pub(super) fn key(part: Part, text: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    match part {
        Part::Files => text.split_once(' ').map_or(text, |(_, path)| path).hash(&mut hasher),
        Part::Records => text.split(' ').next().unwrap_or("").hash(&mut hasher),
        Part::Commands => text.split(" → ").next().unwrap_or(text).hash(&mut hasher),
        Part::User | Part::Said => text.hash(&mut hasher),
        _ => text.chars().filter(|c| c.is_alphanumeric()).take(160).for_each(|c| c.hash(&mut hasher)),
    }
    hasher.finish()
}

/// Adds an item unless it is known; of commands, files and records the newer form wins.
pub(super) fn add(section: &mut Section, part: Part, item: Item) {
    // The same short word said again much later is not the same statement.
    let recent = if part == Part::User { 40 } else { usize::MAX };
    let known = section.items.iter().rev().take(recent).position(|old| old.key == item.key);
    let Some(at) = known.map(|from_end| section.items.len() - 1 - from_end) else {
        section.items.push(item);
        if section.items.len() > 2 * most(part) {
            cap(section, part);
        }
        return;
    };
    let times = section.items[at].times.saturating_add(item.times);
    match part {
        Part::User | Part::Said => {}
        Part::Files => {
            let old = section.items.remove(at);
            let keep = if old.text.starts_with("written") { old } else { item };
            section.items.push(Item { times: 1, ..keep });
        }
        Part::Records => section.items[at].text = item.text,
        Part::Commands | Part::Errors => {
            section.items.remove(at);
            section.items.push(Item { times, ..item });
        }
        _ => section.items[at].times = times,
    }
}

/// Facts of a section that are held at most; more than any brief could show.
fn most(part: Part) -> usize {
    if matches!(part, Part::User | Part::Said) { 300 } else { 120 }
}

/// Keeps a section within what could ever be shown: the lowest worth goes first.
pub(super) fn cap(section: &mut Section, part: Part) {
    let total = section.items.len();
    if total <= most(part) {
        return;
    }
    let mut order: Vec<usize> = (0..total).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(worth(part, &section.items[i], i, total)), std::cmp::Reverse(i)));
    let mut keep = vec![false; total];
    order.iter().take(most(part)).for_each(|&i| keep[i] = true);
    let mut kept = keep.into_iter();
    section.items.retain(|_| kept.next().unwrap_or(false));
    section.dropped = section.dropped.saturating_add(u32::try_from(total - most(part)).unwrap_or(u32::MAX));
}
