//! Rewrites as they are told: by what was forwarded, which may be known only from the reply behind, and without those that were
//! undone.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::rows::event_json;
use crate::conversation::Tokens;
use crate::measure::Sureness;
use crate::plan::reason::{AskedBy, Rewrite, sentence};
use crate::plan::{Kept, Regions};
use crate::proxy::state::gauge::regions;
use crate::store::{EventFilter, EventRow, Store};

/// Events that are read at once.
const PAGE: usize = 5_000;

/// The rewrites of any number of conversations, added up event by event, the oldest first.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Rewrites {
    /// How many stand.
    pub(in crate::proxy) count: u64,
    /// Tokens that they took out of prompts, less those that they put back: what is restored or pinned takes room again.
    balance: i64,
    /// The last one of each conversation, and the last pin behind it.
    last: HashMap<Option<String>, Vec<Last>>,
}

/// The last rewrite of a conversation.
#[derive(Debug)]
struct Last {
    before: u64,
    after: u64,
    /// What was forwarded was only estimated, and no reply has told it yet.
    open: bool,
    /// A person took it back.
    undone: bool,
    /// Something was pinned, or taken back: no undo is about that.
    pin: bool,
}

impl Last {
    fn balance(&self) -> i64 {
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        if self.undone { 0 } else { signed(self.before).saturating_sub(signed(self.after)) }
    }
}

/// The rewrites of one conversation, or of all, from the beginning of the record on.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn of(store: &Store, conversation: Option<&str>) -> Result<Rewrites, crate::store::Error> {
    let mut rewrites = Rewrites::default();
    each(store, conversation, &["context_compaction", "model_usage"], |event| rewrites.add(event))?;
    Ok(rewrites)
}

/// How many rewrites of each conversation stand.
///
/// # Errors
/// When the record cannot be read.
pub(in crate::proxy) fn counts(store: &Store) -> Result<HashMap<String, u64>, crate::store::Error> {
    let mut all: HashMap<String, Rewrites> = HashMap::new();
    each(store, None, &["context_compaction"], |event| {
        if let Some(id) = &event.conversation {
            all.entry(id.clone()).or_default().add(event);
        }
    })?;
    Ok(all.into_iter().map(|(id, rewrites)| (id, rewrites.count)).collect())
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
    /// Tokens that they took out of prompts, and that are not back there.
    pub(in crate::proxy) fn freed(&self) -> u64 {
        u64::try_from(self.balance).unwrap_or(0)
    }

    /// Tokens of what a client sent, where its prompt had so many.
    pub(in crate::proxy) fn sent(&self, prompt: u64) -> u64 {
        prompt.saturating_add_signed(self.balance)
    }

    /// Takes in an event.
    pub(in crate::proxy) fn add(&mut self, event: &EventRow) {
        let data = &event.data;
        if let Some(prompt) = forwarded(event) {
            self.change(&event.conversation, |last| {
                let Some(last) = last.last_mut() else { return };
                if std::mem::take(&mut last.open) && !last.undone {
                    last.after = prompt;
                }
            });
        } else if is_undo(event) {
            self.change(&event.conversation, |last| {
                last.iter_mut().filter(|last| !last.pin).for_each(|last| last.undone = !last.undone);
            });
        } else if event.kind == "context_compaction" {
            let size = |key: &str| data[key]["prompt"].as_u64().unwrap_or(0);
            let pin = is_pin(event);
            let last = Last { before: size("before"), after: size("after"), open: is_open(data), undone: false, pin };
            self.count += 1;
            self.balance += last.balance();
            let before = self.last.entry(event.conversation.clone()).or_default();
            before.retain(|before| pin && !before.pin);
            before.push(last);
        }
    }

    fn change(&mut self, of: &Option<String>, change: impl FnOnce(&mut [Last])) {
        let Some(last) = self.last.get_mut(of) else { return };
        let stand = |last: &[Last]| last.iter().filter(|last| !last.undone).count() as u64;
        let balance = |last: &[Last]| last.iter().map(Last::balance).sum::<i64>();
        self.count -= stand(last);
        self.balance -= balance(last);
        change(last);
        self.count += stand(last);
        self.balance += balance(last);
    }
}

/// The rewrites of one conversation as events, each with what was forwarded and whether it was undone.
pub(in crate::proxy) fn told(events: &[EventRow]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let (mut last, mut rewrite): (Option<usize>, Option<usize>) = (None, None);
    for event in events {
        if let Some(prompt) = forwarded(event) {
            if let Some(data) = last.map(|at| &mut out[at]["data"]).filter(|data| is_open(data)) {
                data["after"] = with_prompt(&data["after"], prompt);
                data["prompt_tokens"] = json!(prompt);
                data["prompt_tokens_source"] = json!(Sureness::Counted.as_str());
            }
        } else if event.kind == "context_compaction" {
            if !is_undo(event) {
                last = Some(out.len());
                // What is undone is the rewrite before a pin.
                rewrite = if is_pin(event) { rewrite } else { last };
            } else if let Some(at) = rewrite {
                let undone = out[at]["undone"] != true;
                out[at]["undone"] = json!(undone);
            }
            out.push(event_json(event));
        }
    }
    for rewrite in &mut out {
        rewrite["told"] = json!(sentence_of(&rewrite["data"]));
    }
    out
}

/// What a rewrite did, and why, in a sentence for people. `data` is that of its event.
pub fn sentence_of(data: &Value) -> String {
    let tokens = |value: &Value| value.as_u64().map(|n| Tokens::try_from(n).unwrap_or(Tokens::MAX));
    let because: Vec<&str> = data["because"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    sentence(&Rewrite {
        action: data["action"].as_str().unwrap_or_default(),
        because: &because,
        tokens: (tokens(&data["before"]["prompt"]).unwrap_or(0), tokens(&data["after"]["prompt"]).unwrap_or(0)),
        estimated: is_open(data),
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

/// Whether the size of the prompt after a rewrite was only estimated.
fn is_open(data: &Value) -> bool {
    data["prompt_tokens_source"].as_str().is_some_and(|source| source.starts_with("estimated"))
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
        EventRow { id: 1, now_ms: 1, conversation: Some("c".into()), kind: kind.into(), data }
    }

    fn rewrite(action: &str, before: u64, after: u64, source: &str) -> EventRow {
        event(
            "context_compaction",
            json!({"action": action, "before": {"prompt": before}, "after": {"prompt": after}, "prompt_tokens_source": source}),
        )
    }

    fn reply(prompt: u64) -> EventRow {
        event("model_usage", json!({"role": "main", "prompt_tokens": prompt}))
    }

    fn sums(events: &[EventRow]) -> (u64, u64) {
        let mut sums = Rewrites::default();
        events.iter().for_each(|event| sums.add(event));
        (sums.count, sums.freed())
    }

    #[test]
    fn what_was_forwarded_is_told_and_not_what_was_planned() {
        let counted = "counted by the server";
        let planned =
            [reply(14_000), rewrite("clear", 15_435, 9_343, "estimated, calibrated"), reply(5_035), reply(6_000)];
        assert_eq!(sums(&planned), (1, 10_400));
        let told = told(&planned);
        assert_eq!(
            (&told[0]["data"]["after"]["prompt"], &told[0]["data"]["prompt_tokens_source"]),
            (&json!(5_035), &json!(counted))
        );
        let exact = [rewrite("clear", 15_435, 5_035, counted), reply(5_040)];
        assert_eq!(sums(&exact), (1, 10_400), "a count stands");
    }

    #[test]
    fn what_was_undone_does_not_count() {
        let counted = "counted by the server";
        let clear = rewrite("clear", 900, 500, counted);
        let fold = rewrite("summarize", 800, 300, counted);
        let undo = rewrite("undo", 300, 800, counted);
        let all = [clear.clone(), reply(500), fold.clone(), undo.clone()];
        assert_eq!(sums(&all), (1, 400));
        assert_eq!(told(&all).iter().map(|e| e["undone"] == true).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(sums(&[clear.clone(), fold.clone(), undo.clone(), undo.clone()]), (2, 900), "undone and done again");
        let pinned = [clear.clone(), fold.clone(), rewrite("unpin", 300, 280, counted), undo.clone()];
        assert_eq!(sums(&pinned), (2, 420), "a pin is taken back by itself");
        assert_eq!(told(&pinned).iter().map(|e| e["undone"] == true).collect::<Vec<_>>(), [false, true, false, false]);
        let open = [fold.clone(), rewrite("pin", 300, 310, "estimated"), reply(340)];
        assert_eq!(sums(&open), (2, 460), "a reply tells the newest alone");
        assert_eq!(sums(&[undo.clone(), clear, fold, undo, rewrite("evict", 800, 700, counted)]), (2, 500));
    }

    #[test]
    fn what_takes_room_again_is_not_freed() {
        let counted = "counted by the server";
        let all = |more: &[EventRow]| sums(&[&[rewrite("clear", 900, 500, counted)], more].concat());
        assert_eq!(all(&[rewrite("pin", 500, 540, counted), rewrite("unpin", 540, 500, counted)]), (3, 400));
        assert_eq!(all(&[rewrite("restore", 500, 900, counted)]), (2, 0));
        assert_eq!(sums(&[rewrite("pin", 500, 540, counted)]), (1, 0));
    }
}
