//! What of a history could not be said, counted for the client and kept for the record.

use std::collections::BTreeMap;

use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::super::super::json::Fields;
use super::super::Unsaid;

/// How many kinds are named in a warning; a client may make up as many as it likes.
const NAMED: usize = 8;

/// Items and parts by their types, and what else the history says of the request.
#[derive(Default)]
pub(super) struct Tally {
    /// They stand as a line.
    lines: BTreeMap<String, usize>,
    /// They do not stand in the prompt.
    left_out: BTreeMap<String, usize>,
    originals: Vec<String>,
    references: Vec<String>,
    /// Fields that refer to what is kept somewhere else.
    pub(super) elsewhere: Vec<&'static str>,
    /// What else the client is told.
    pub(super) warnings: Vec<String>,
    /// `reasoning` and `text` of the last `configuration_update` that has them.
    pub(super) update: Map<String, Value>,
}

impl Tally {
    /// Counts what stands as a line, and keeps it.
    pub(super) fn line(&mut self, kind: &str, item: &Fields<'_>) {
        *self.lines.entry(named(kind)).or_default() += 1;
        self.originals.extend(spelled(item));
    }

    /// Counts what is left out, and keeps it.
    pub(super) fn left_out(&mut self, kind: &str, item: Option<&Fields<'_>>) {
        *self.left_out.entry(named(kind)).or_default() += 1;
        self.originals.extend(item.and_then(spelled));
    }

    /// Counts a reference that leads nowhere yet.
    pub(super) fn reference(&mut self, id: &str) {
        *self.left_out.entry("item_reference".into()).or_default() += 1;
        self.references.push(id.to_owned());
    }

    /// What the client is told, and what is kept. `tools` are the types of those that are not offered.
    pub(super) fn unsaid(self, tools: &[String]) -> Unsaid {
        let mut of_tools = BTreeMap::new();
        tools.iter().for_each(|kind| *of_tools.entry(named(kind)).or_default() += 1);
        let told = [
            ("a line in the prompt stands for what no local server takes", &self.lines),
            ("left out of the prompt", &self.left_out),
            ("left out of the tools, as no local server can run them", &of_tools),
        ];
        let warnings = told.into_iter().filter(|(_, kinds)| !kinds.is_empty());
        let warnings = warnings.map(|(what, kinds)| format!("{what}: {}", list(kinds))).chain(self.warnings).collect();
        let Tally { originals, references, elsewhere, .. } = self;
        Unsaid { warnings, originals, references, elsewhere, ..Unsaid::default() }
    }
}

/// A type as a header may hold it.
fn named(kind: &str) -> String {
    let usual = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name: String = kind.chars().filter(usual).take(40).collect();
    if name.is_empty() { "item".into() } else { name }
}

fn list(kinds: &BTreeMap<String, usize>) -> String {
    let one = |(kind, n): (&String, &usize)| if *n == 1 { kind.clone() } else { format!("{kind} ({n})") };
    let mut all: Vec<String> = kinds.iter().take(NAMED).map(one).collect();
    if kinds.len() > NAMED {
        all.push(format!("{} other kinds", kinds.len() - NAMED));
    }
    all.join(", ")
}

/// An object as the client spelled it.
fn spelled(item: &Fields<'_>) -> Option<String> {
    let mut out = Vec::new();
    let mut to = serde_json::Serializer::new(&mut out);
    let mut map = to.serialize_map(Some(item.0.len())).ok()?;
    item.0.iter().try_for_each(|(key, raw)| map.serialize_entry(key, raw)).ok()?;
    map.end().ok()?;
    String::from_utf8(out).ok()
}
