//! Rewrites as they are told: by what was forwarded, which may be known only from the reply behind, and without those that were
//! undone. What stands is worked out here alone: an undo takes back the newest change that does, and the books go by the same.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::rows::event_json;
use crate::conversation::Tokens;
use crate::measure::Sureness;
use crate::plan::reason::{AskedBy, Rewrite, named, sentence};
use crate::plan::{Kept, Regions};
use crate::proxy::state::gauge::regions;
use crate::store::{EventFilter, EventRow, Store};

/// Events that are read at once.
const PAGE: usize = 5_000;

/// Kinds of events that tell what was done to views.
const KINDS: [&str; 3] = ["context_compaction", "model_usage", "recalled_ahead"];

/// The rewrites of any number of conversations, added up event by event, the oldest first.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Rewrites(HashMap<Option<String>, Changes>);

/// What was done to the view of one conversation, the oldest first, and what of it stands.
#[derive(Debug, Default)]
struct Changes {
    all: Vec<Change>,
    /// How many rewrites stand.
    count: u64,
    /// Tokens that they took out of prompts, less those that they put back.
    balance: i64,
}

/// One change of a view.
#[derive(Debug)]
struct Change {
    event: i64,
    now_ms: i64,
    what: What,
    /// The mark of the view before it. `None` where none was made, or an older version did not say.
    was: Option<String>,
    before: u64,
    after: u64,
    /// What was there before was only estimated.
    rough: bool,
    /// What was forwarded was only estimated, and no reply has told it yet.
    open: bool,
    /// What was forwarded, where a reply told it.
    told: Option<u64>,
    /// A person took it back.
    undone: bool,
}

/// What changed a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A rewrite.
    Rewrite,
    /// Something was pinned, or a pin was taken back: no undo is about that.
    Pin,
    /// A brief that a client asked for, and that is its to use: the view stayed as it was.
    Told,
    /// Something came back by itself, behind the last message.
    Recall,
}

/// A change of a view that an undo may take back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) struct Undoable {
    /// The mark of the view before it; `None` where an older version did not say.
    pub(in crate::proxy) was: Option<String>,
    /// What it is, for people: "the rewrite that folded 13 messages (3,562 → 1,204 tokens)".
    pub(in crate::proxy) named: String,
    /// The message behind which something came back with it.
    pub(in crate::proxy) behind: Option<usize>,
}

/// The rewrites of one conversation, or of all, from the beginning of the record on.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn of(store: &Store, conversation: Option<&str>) -> Result<Rewrites, crate::store::Error> {
    let mut rewrites = Rewrites::default();
    each(store, conversation, &KINDS, |event| rewrites.add(event))?;
    Ok(rewrites)
}

/// How many rewrites of each conversation stand.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn counts(store: &Store) -> Result<HashMap<String, u64>, crate::store::Error> {
    let mut all = Rewrites::default();
    each(store, None, &["context_compaction", "recalled_ahead"], |event| all.add(event))?;
    Ok(all.0.into_iter().filter_map(|(id, changes)| Some((id?, changes.count))).collect())
}

/// Reads events of these kinds, the oldest first.
fn each(
    store: &Store,
    conversation: Option<&str>,
    kinds: &[&str],
    mut act: impl FnMut(&EventRow),
) -> Result<(), crate::store::Error> {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let of = EventFilter { conversation: conversation.map(str::to_owned), kinds };
    let mut from = 0;
    loop {
        let events = store.trace().since(from, PAGE, &of)?;
        events.iter().for_each(&mut act);
        match events.last() {
            Some(last) if events.len() == PAGE => from = last.id,
            _ => return Ok(()),
        }
    }
}

impl Rewrites {
    /// How many stand.
    pub(in crate::proxy) fn count(&self) -> u64 {
        self.0.values().map(|changes| changes.count).sum()
    }

    /// Tokens that they took out of prompts, and that are not back there: what is restored or pinned takes room again.
    pub(in crate::proxy) fn freed(&self) -> u64 {
        u64::try_from(self.0.values().map(|changes| changes.balance).sum::<i64>()).unwrap_or(0)
    }

    /// Whether that is an estimate: of one that stands, a size was never counted.
    pub(in crate::proxy) fn freed_is_estimated(&self) -> bool {
        let mut all = self.0.values().flat_map(|changes| &changes.all);
        all.any(|change| change.is_booked() && (change.rough || change.open))
    }

    /// Tokens of what the client of a conversation sent, where its prompt had so many and an older version did not say.
    pub(in crate::proxy) fn sent(&self, conversation: &Option<String>, prompt: u64) -> u64 {
        prompt.saturating_add_signed(self.0.get(conversation).map_or(0, |changes| changes.balance))
    }

    /// Takes in an event.
    pub(in crate::proxy) fn add(&mut self, event: &EventRow) {
        match self.0.get_mut(&event.conversation) {
            Some(changes) => changes.add(event),
            None if KINDS.contains(&event.kind.as_str()) => {
                self.0.entry(event.conversation.clone()).or_default().add(event)
            }
            None => {}
        }
    }
}

impl Changes {
    fn of(events: &[EventRow]) -> Changes {
        let mut changes = Changes::default();
        events.iter().for_each(|event| changes.add(event));
        changes
    }

    /// Takes in an event.
    fn add(&mut self, event: &EventRow) {
        let data = &event.data;
        if let Some(prompt) = forwarded(event) {
            let rewrite = self.all.iter().rposition(|change| change.what != What::Recall);
            if let Some(at) = rewrite.filter(|at| std::mem::take(&mut self.all[*at].open) && !self.all[*at].undone) {
                self.book(at, -1);
                (self.all[at].after, self.all[at].told) = (prompt, Some(prompt));
                self.book(at, 1);
            }
        } else if is_undo(event) {
            let named = data["undoes"].as_str();
            let is_it = |change: &&Change| named.is_none() || change.was.as_deref() == named;
            let made = self.standing().find(is_it).map(|change| (change.was.clone(), change.now_ms));
            let Some(made) = made else { return };
            for at in 0..self.all.len() {
                let change = &self.all[at];
                let together = (&change.was, change.now_ms) == (&made.0, made.1) && change.is_undoable();
                if together && !change.undone {
                    self.book(at, -1);
                    self.all[at].undone = true;
                }
            }
        } else if let Some(change) = Change::read(event) {
            self.all.push(change);
            self.book(self.all.len() - 1, 1);
        }
    }

    /// What an undo may take back, the newest first.
    fn standing(&self) -> impl Iterator<Item = &Change> {
        self.all.iter().rev().filter(|change| change.is_undoable() && !change.undone)
    }

    /// Books a change, or takes it out of the books (-1).
    fn book(&mut self, at: usize, sign: i64) {
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let change = &self.all[at];
        if change.is_booked() {
            self.count = self.count.saturating_add_signed(sign);
            self.balance += sign * signed(change.before).saturating_sub(signed(change.after));
        }
    }
}

impl Change {
    /// That of an event; `None` of one that tells of none, or of an undo.
    fn read(event: &EventRow) -> Option<Change> {
        let data = &event.data;
        let size = |key: &str| data[key]["prompt"].as_u64().unwrap_or(0);
        let what = match event.kind.as_str() {
            "recalled_ahead" => What::Recall,
            "context_compaction" if is_pin(event) => What::Pin,
            "context_compaction" if data.get("was").is_some_and(Value::is_null) => What::Told,
            "context_compaction" => What::Rewrite,
            _ => return None,
        };
        Some(Change {
            event: event.id,
            now_ms: event.now_ms,
            what,
            was: data["was"].as_str().map(str::to_owned),
            before: size("before"),
            after: size("after"),
            rough: is_rough(data),
            open: is_open(data),
            told: None,
            undone: false,
        })
    }

    /// Whether it is in the books.
    fn is_booked(&self) -> bool {
        self.what != What::Recall && !self.undone
    }

    /// Whether an undo may be about it. An older version did not say which view something came back to.
    fn is_undoable(&self) -> bool {
        match self.what {
            What::Rewrite => true,
            What::Recall => self.was.is_some(),
            What::Pin | What::Told => false,
        }
    }
}

/// What an undo may take back of a conversation, the newest first, and whether one took something back before. `newest`: events
/// that are looked at.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn undoable(
    store: &Store,
    conversation: &str,
    newest: usize,
) -> Result<(Vec<Undoable>, bool), crate::store::Error> {
    let kinds = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    let of = EventFilter { conversation: Some(conversation.to_owned()), kinds };
    let events = store.trace().newest(newest, &of)?;
    Ok((standing(&events), events.iter().any(is_undo)))
}

/// What stands of these events, the newest first. What one request changed is one.
fn standing(events: &[EventRow]) -> Vec<Undoable> {
    let (changes, told) = (Changes::of(events), told(events));
    let rewrite = |id: i64| told.iter().find(|event| event["id"] == id).map(|event| in_words(&event["data"], named));
    let at = |id: i64| events.iter().find(|event| event.id == id).and_then(|event| event.data["message"].as_u64());
    let mut out: Vec<(i64, Undoable)> = Vec::new();
    for change in changes.standing() {
        let recall = change.what == What::Recall;
        let behind = at(change.event).filter(|_| recall).and_then(|at| usize::try_from(at).ok());
        let named = match behind {
            Some(at) => format!("what came back by itself with message {at}"),
            None => rewrite(change.event).unwrap_or_default(),
        };
        match out.last_mut().filter(|(now_ms, last)| *now_ms == change.now_ms && last.was == change.was) {
            Some((_, last)) => {
                last.named = format!("{named}, and {}", last.named);
                last.behind = last.behind.or(behind);
            }
            None => out.push((change.now_ms, Undoable { was: change.was.clone(), named, behind })),
        }
    }
    out.into_iter().map(|(_, undoable)| undoable).collect()
}

/// The rewrites of one conversation as events, each with what was forwarded and whether it was undone.
pub(in crate::proxy) fn told(events: &[EventRow]) -> Vec<Value> {
    let changes = Changes::of(events);
    let mut changes = changes.all.iter().filter(|change| change.what != What::Recall).peekable();
    let mut out = Vec::new();
    for event in events.iter().filter(|event| event.kind == "context_compaction") {
        let mut rewrite = event_json(event);
        if let Some(change) = changes.next_if(|_| !is_undo(event)) {
            if let Some(prompt) = change.told {
                let data = &mut rewrite["data"];
                data["after"] = with_prompt(&data["after"], prompt);
                data["prompt_tokens"] = json!(prompt);
                data["prompt_tokens_source"] = json!(Sureness::Counted.as_str());
            }
            if change.undone {
                rewrite["undone"] = json!(true);
            }
        }
        rewrite["told"] = json!(sentence_of(&rewrite["data"]));
        out.push(rewrite);
    }
    out
}

/// What a rewrite did, and why, in a sentence for people. `data` is that of its event.
pub fn sentence_of(data: &Value) -> String {
    in_words(data, sentence)
}

/// A rewrite in these words.
fn in_words(data: &Value, words: impl Fn(&Rewrite<'_>) -> String) -> String {
    let tokens = |value: &Value| value.as_u64().map(|n| Tokens::try_from(n).unwrap_or(Tokens::MAX));
    let because: Vec<&str> = data["because"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    words(&Rewrite {
        action: data["action"].as_str().unwrap_or_default(),
        because: &because,
        tokens: (tokens(&data["before"]["prompt"]).unwrap_or(0), tokens(&data["after"]["prompt"]).unwrap_or(0)),
        estimated: (is_rough(data), is_open(data)),
        reserved: tokens(&data["before"]["output_reserved"]).unwrap_or(0),
        window: tokens(&data["window"]),
        asked_by: data["asked_by"].as_str().and_then(AskedBy::read),
    })
}

/// Prompt tokens of a request, as its server counted them; of one that is answered in rounds, the first tells.
fn forwarded(event: &EventRow) -> Option<u64> {
    let role = event.data["role"].as_str();
    let is_request = event.kind == "model_usage" && matches!(role, Some("main" | "recall"));
    event.data["prompt_tokens"].as_u64().filter(|_| is_request)
}

fn is_undo(event: &EventRow) -> bool {
    event.kind == "context_compaction" && event.data["action"] == "undo"
}

/// Whether something was pinned, or taken back: that is no rewrite that an undo is about.
fn is_pin(event: &EventRow) -> bool {
    matches!(event.data["action"].as_str(), Some("pin" | "unpin"))
}

/// Whether the size of the prompt before a rewrite was only estimated. An older version did not say.
fn is_rough(data: &Value) -> bool {
    is_estimate(&data["before_source"])
}

/// Whether the size of the prompt after a rewrite was only estimated.
fn is_open(data: &Value) -> bool {
    is_estimate(&data["prompt_tokens_source"])
}

/// What [`Sureness::as_str`] says of an estimate.
fn is_estimate(source: &Value) -> bool {
    source.as_str().is_some_and(|source| source.starts_with("estimated"))
}

/// Regions that add up to another prompt.
fn with_prompt(told: &Value, prompt: u64) -> Value {
    let of = |key: &str| Tokens::try_from(told[key].as_u64().unwrap_or(0)).unwrap_or(Tokens::MAX);
    let (system, tools, brief) = (of("system"), of("tools"), of("brief"));
    let all = Regions {
        system,
        tools,
        brief,
        history: of("history"),
        media: of("media"),
        output_reserved: of("output_reserved"),
    };
    let kept = Kept { system: Some(system), tools: Some(tools), brief: Some(brief) };
    regions(&all.settled(kept, Tokens::try_from(prompt).unwrap_or(Tokens::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, data: Value) -> EventRow {
        EventRow { id: 0, now_ms: 0, conversation: Some("c".into()), kind: kind.into(), data }
    }

    /// Events in order, each with an id and at a time of its own.
    fn in_order(events: &[EventRow]) -> Vec<EventRow> {
        let numbered = |(event, id): (&EventRow, i64)| EventRow { id, now_ms: id, ..event.clone() };
        events.iter().zip(1..).map(numbered).collect()
    }

    fn rewrite(action: &str, before: u64, after: u64, source: &str) -> EventRow {
        event(
            "context_compaction",
            json!({"action": action, "before": {"prompt": before}, "after": {"prompt": after}, "prompt_tokens_source": source}),
        )
    }

    /// A change of the view with this mark.
    fn from(was: &str, mut event: EventRow) -> EventRow {
        event.data["was"] = json!(was);
        event
    }

    fn undo(was: &str, before: u64, after: u64) -> EventRow {
        let mut event = rewrite("undo", before, after, COUNTED);
        event.data["undoes"] = json!(was);
        event
    }

    fn reply(prompt: u64) -> EventRow {
        event("model_usage", json!({"role": "main", "prompt_tokens": prompt}))
    }

    fn sums(events: &[EventRow]) -> (u64, u64) {
        let mut sums = Rewrites::default();
        in_order(events).iter().for_each(|event| sums.add(event));
        (sums.count(), sums.freed())
    }

    fn undone(events: &[EventRow]) -> Vec<bool> {
        told(&in_order(events)).iter().map(|event| event["undone"] == true).collect()
    }

    const COUNTED: &str = "counted by the server";

    #[test]
    fn what_was_forwarded_is_told_and_not_what_was_planned() {
        let planned =
            [reply(14_000), rewrite("clear", 15_435, 9_343, "estimated, calibrated"), reply(5_035), reply(6_000)];
        assert_eq!(sums(&planned), (1, 10_400));
        let told = told(&in_order(&planned));
        assert_eq!(
            (&told[0]["data"]["after"]["prompt"], &told[0]["data"]["prompt_tokens_source"]),
            (&json!(5_035), &json!(COUNTED))
        );
        let exact = [rewrite("clear", 15_435, 5_035, COUNTED), reply(5_040)];
        assert_eq!(sums(&exact), (1, 10_400), "a count stands");
    }

    #[test]
    fn sums_of_what_nobody_counted_are_told_as_estimates() {
        let is_estimated = |events: &[EventRow]| {
            let mut sums = Rewrites::default();
            in_order(events).iter().for_each(|event| sums.add(event));
            sums.freed_is_estimated()
        };
        let with_source = |source: &str, mut event: EventRow| {
            event.data["before_source"] = json!(source);
            event
        };
        let clear = from("0", rewrite("clear", 900, 500, COUNTED));
        assert!(!is_estimated(&[clear.clone(), with_source(COUNTED, clear.clone())]));
        let open = rewrite("clear", 500, 300, "estimated");
        assert!(is_estimated(std::slice::from_ref(&open)));
        assert!(!is_estimated(&[open, reply(280)]), "a reply told it");
        let ahead = with_source("estimated, calibrated", from("1", rewrite("summarize", 800, 300, COUNTED)));
        let all = [clear, ahead, reply(310)];
        assert!(is_estimated(&all));
        assert_eq!(told(&in_order(&all))[1]["told"], "Folded older messages: about 800 → 300 tokens.");
        assert!(!is_estimated(&[&all[..], &[undo("1", 310, 800)]].concat()), "what was undone is in no sum");
    }

    #[test]
    fn what_was_undone_does_not_count() {
        let clear = from("0", rewrite("clear", 900, 500, COUNTED));
        let fold = from("1", rewrite("summarize", 800, 300, COUNTED));
        let back = undo("1", 300, 800);
        let all = [clear.clone(), reply(500), fold.clone(), back.clone()];
        assert_eq!(sums(&all), (1, 400));
        assert_eq!(undone(&all), [false, true, false]);
        let twice = [clear.clone(), fold.clone(), back.clone(), undo("0", 800, 1_200)];
        assert_eq!((sums(&twice), undone(&twice)), ((0, 0), vec![true, true, false, false]));
        let pinned = [clear.clone(), fold.clone(), rewrite("unpin", 300, 280, COUNTED), back.clone()];
        assert_eq!(sums(&pinned), (2, 420), "a pin is taken back by itself");
        assert_eq!(undone(&pinned), [false, true, false, false]);
        let open = [fold.clone(), rewrite("pin", 300, 310, "estimated"), reply(340)];
        assert_eq!(sums(&open), (2, 460), "a reply tells the newest alone");
        let folded_again = [clear.clone(), fold.clone(), back.clone(), fold.clone()];
        assert_eq!(undone(&folded_again), [false, true, false, false]);
        // An older version did not say what it took back.
        let older = [clear, fold, rewrite("undo", 300, 800, COUNTED)];
        assert_eq!((sums(&older), undone(&older)), ((1, 400), vec![false, true, false]));
    }

    /// What came back by itself is taken back as what it is: no rewrite is marked for it, and nothing else is booked.
    #[test]
    fn what_came_back_by_itself_is_no_rewrite() {
        let preview = from("0", rewrite("evict", 5_793, 2_246, COUNTED));
        let recall = from("1", event("recalled_ahead", json!({"message": 31, "tokens": 360})));
        let all = [preview.clone(), reply(2_246), recall.clone(), reply(2_600)];
        let may = standing(&in_order(&all));
        assert_eq!((may[0].named.as_str(), may[0].behind), ("what came back by itself with message 31", Some(31)));
        assert_eq!(
            may[1].named,
            "the rewrite that put a preview in the place of a large result (5,793 → 2,246 tokens)"
        );
        let back = [&all[..], &[undo("1", 2_600, 2_246)]].concat();
        assert_eq!((sums(&back), undone(&back)), ((1, 3_547), vec![false, false]));
        assert_eq!(standing(&in_order(&back)), may[1..]);
        let all_back = [&back[..], &[undo("0", 2_246, 5_793)]].concat();
        assert_eq!((sums(&all_back), standing(&in_order(&all_back))), ((0, 0), Vec::new()));
        // What one request changed is taken back at once.
        let mut together = in_order(&[preview, from("0", recall)]);
        together.iter_mut().for_each(|event| event.now_ms = 7);
        let may = standing(&together);
        assert_eq!((may.len(), may[0].behind), (1, Some(31)));
        assert!(may[0].named.ends_with("tokens), and what came back by itself with message 31"), "{}", may[0].named);
        together.push(EventRow { id: 3, now_ms: 8, ..undo("0", 1, 2) });
        assert_eq!(standing(&together), []);
        // A brief that a client asked for changed no view.
        let of_client = from("0", rewrite("summarize", 9, 3, COUNTED));
        let of_client = EventRow {
            data: {
                let mut data = of_client.data;
                data["was"] = Value::Null;
                data
            },
            ..of_client
        };
        assert_eq!(standing(&[of_client]), []);
    }

    #[test]
    fn what_takes_room_again_is_not_freed() {
        let all = |more: &[EventRow]| sums(&[&[rewrite("clear", 900, 500, COUNTED)], more].concat());
        assert_eq!(all(&[rewrite("pin", 500, 540, COUNTED), rewrite("unpin", 540, 500, COUNTED)]), (3, 400));
        assert_eq!(all(&[rewrite("restore", 500, 900, COUNTED)]), (2, 0));
        assert_eq!(sums(&[rewrite("pin", 500, 540, COUNTED)]), (1, 0));
    }
}
