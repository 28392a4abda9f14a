//! `windowsill report`: what was kept out of prompts, how much of it was ever read back, and what that cost. Sums alone, by model:
//! nothing of anybody's words, so it can be shown to others.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::rewrites::Rewrites;
use crate::config::Ceiling;
use crate::proxy::{App, Error, Record};
use crate::store::{EventFilter, EventRow, Store};

/// Events that are read at once.
const PAGE: usize = 5_000;

/// `GET /windowsill/report?since=…`: of what happened since that time (Unix milliseconds).
///
/// # Errors
/// When the record cannot be read.
pub fn report(app: &App, since_ms: i64) -> Result<Value, Error> {
    reported(&app.store, since_ms, &app.config.ceiling)
}

impl Record {
    /// What happened since that time (Unix milliseconds), in sums.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn report(&self, since_ms: i64, ceiling: &Ceiling) -> Result<Value, Error> {
        reported(&self.store, since_ms, ceiling)
    }
}

fn reported(store: &Store, since_ms: i64, ceiling: &Ceiling) -> Result<Value, Error> {
    let (mut from, mut sums) = (0, Sums::default());
    loop {
        let events = store.trace().since(from, PAGE, &EventFilter::default())?;
        let Some(last) = events.last() else { break };
        from = last.id;
        for event in &events {
            sums.rewritten(event);
            if event.now_ms >= since_ms {
                sums.add(event);
            }
        }
    }
    let mut out = sums.json(since_ms);
    let (tokens, busy_ms) = sums.worked();
    out["cost"] = json!(crate::proxy::turn::guard::cost(ceiling, tokens));
    out["watt_hours"] = json!(crate::proxy::turn::guard::watt_hours(ceiling, busy_ms));
    Ok(out)
}

/// What was added up.
#[derive(Debug, Default)]
struct Sums {
    conversations: HashSet<String>,
    turns: u64,
    rewrites: Rewrites,
    /// Those from the beginning on: what prompts lack of what the client sent, where an older version did not say.
    all: Rewrites,
    /// Tokens that clients sent: those of prompts, and what was taken out of them.
    sent: u64,
    recalls: u64,
    recalls_found: u64,
    /// Tokens of what was read back.
    read_back: u64,
    /// Tokens that a rewrite made the server evaluate again.
    again: u64,
    /// What came back by itself: how often, and tokens of it.
    ahead: (u64, u64),
    shadow: Shadow,
    /// By model as it was written: requests and tokens, and of briefs and the like.
    models: BTreeMap<String, Model>,
    names: Names,
}

/// The names of models in events. What was recorded before 0.2 has that of the upstream before some.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Names {
    models: HashSet<String>,
    upstreams: HashSet<String>,
}

impl Names {
    /// Takes in the name that an event has.
    pub(in crate::proxy) fn see(&mut self, event: &EventRow) {
        if event.kind == "model_usage" {
            written(&event.data).into_iter().for_each(|name| self.know(name));
            self.upstreams.extend(event.data["upstream"].as_str().map(str::to_owned));
        }
    }

    /// Takes in a name.
    pub(in crate::proxy) fn know(&mut self, name: &str) {
        self.models.insert(name.to_owned());
    }

    /// The name of the model that an event is about, as it stands in all books.
    pub(in crate::proxy) fn of(&self, data: &Value) -> Option<String> {
        written(data).map(|name| self.bare(name).to_owned())
    }

    fn bare<'a>(&self, name: &'a str) -> &'a str {
        let is_upstream = |name: &str| self.upstreams.is_empty() || self.upstreams.contains(name);
        let bare =
            name.split_once('/').filter(|(upstream, model)| is_upstream(upstream) && self.models.contains(*model));
        bare.map_or(name, |(_, model)| model)
    }
}

/// The name of a model as an event has it.
fn written(data: &Value) -> Option<&str> {
    data["model"].as_str().or_else(|| data["by"].as_str())
}

/// What was only foreseen.
#[derive(Debug, Default)]
struct Shadow {
    requests: u64,
    /// Requests whose prompt left too little of the window for the reply.
    too_long: u64,
    sent: u64,
    would_send: u64,
}

#[derive(Debug, Default)]
struct Model {
    turns: u64,
    prompt: u64,
    cached: u64,
    evaluated: u64,
    completion: u64,
    /// Evaluated and generated for briefs and digests.
    upkeep: u64,
    /// Whether one of these told no counts.
    untold: bool,
    milliseconds: u64,
    /// What the server evaluated in how many milliseconds of its own clock, where it said both.
    timed: (f64, f64),
}

impl Model {
    /// Tokens that its server evaluated or wrote.
    fn cost(&self) -> u64 {
        self.prompt.saturating_sub(self.cached) + self.completion + self.upkeep
    }

    fn add(&mut self, other: &Model) {
        self.turns += other.turns;
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.evaluated += other.evaluated;
        self.completion += other.completion;
        self.upkeep += other.upkeep;
        self.untold |= other.untold;
        self.milliseconds += other.milliseconds;
        self.timed = (self.timed.0 + other.timed.0, self.timed.1 + other.timed.1);
    }

    /// Seconds that what came from the cache would have taken at this server's measured speed.
    fn not_waited(&self) -> Option<f64> {
        let (tokens, ms) = self.timed;
        (tokens > 0.0).then(|| self.cached as f64 * ms / tokens / 1000.0)
    }
}

impl Sums {
    /// Takes in what was rewritten, however long ago: it is still missing in the prompts of today.
    fn rewritten(&mut self, event: &EventRow) {
        self.all.add(event);
    }

    fn add(&mut self, event: &EventRow) {
        let data = &event.data;
        let n = |value: &Value| value.as_u64().unwrap_or(0);
        // A request that was refused leaves events of a conversation that nobody has.
        if matches!(event.kind.as_str(), "model_usage" | "shadow") {
            self.conversations.extend(event.conversation.clone());
        }
        self.rewrites.add(event);
        match event.kind.as_str() {
            "shadow" => {
                self.shadow.requests += 1;
                self.shadow.too_long += u64::from(data["fits"] == false);
                self.shadow.sent += n(&data["sent_tokens"]);
                self.shadow.would_send += n(&data["prompt_tokens"]);
            }
            "recall" => {
                self.recalls += 1;
                if data["outcome"] == "found" {
                    self.recalls_found += 1;
                    self.read_back += n(&data["tokens"]);
                }
            }
            "recalled_ahead" => {
                self.ahead = (self.ahead.0 + 1, self.ahead.1 + n(&data["tokens"]));
            }
            "model_usage" => {
                self.names.see(event);
                let name = written(data).unwrap_or("(its own)").to_owned();
                let model = self.models.entry(name).or_default();
                if data["role"] == "main" || data["role"] == "recall" {
                    let is_turn = u64::from(data["role"] == "main");
                    self.turns += is_turn;
                    model.turns += is_turn;
                    if is_turn > 0 {
                        let older = || self.all.sent(&event.conversation, n(&data["prompt_tokens"]));
                        self.sent += data["client_tokens"].as_u64().unwrap_or_else(older);
                    }
                    model.prompt += n(&data["prompt_tokens"]);
                    model.cached += n(&data["cached_tokens"]);
                    model.evaluated += n(&data["evaluated_tokens"]);
                    model.completion += n(&data["completion_tokens"]);
                    if let (Some(tokens), Some(ms)) =
                        (data["evaluated_tokens"].as_f64(), data["prompt_milliseconds"].as_f64())
                    {
                        model.timed = (model.timed.0 + tokens, model.timed.1 + ms);
                    }
                } else {
                    let told = ["prompt_tokens", "evaluated_tokens", "completion_tokens"].map(|key| data[key].as_u64());
                    model.untold |= data["role"].is_string() && told.iter().all(Option::is_none);
                    model.upkeep += n(&data["evaluated_tokens"]) + n(&data["completion_tokens"]);
                }
                model.milliseconds += n(&data["milliseconds"]);
                if data["prefix"]["because"] == "rewrite" {
                    // An older record tells only what the last prompt lost, most of which the next one does not have.
                    let again = n(data["prefix"].get("again").unwrap_or(&data["prefix"]["lost"]));
                    self.again += again.min(data["evaluated_tokens"].as_u64().unwrap_or(u64::MAX));
                }
            }
            _ => {}
        }
    }

    /// Tokens that servers evaluated or wrote, and milliseconds that this took.
    fn worked(&self) -> (u64, u64) {
        (self.models.values().map(Model::cost).sum(), self.models.values().map(|m| m.milliseconds).sum())
    }

    fn json(&self, since_ms: i64) -> Value {
        let mut by_name: BTreeMap<&str, Model> = BTreeMap::new();
        for (name, model) in &self.models {
            by_name.entry(self.names.bare(name)).or_default().add(model);
        }
        let mut sorted: Vec<(&str, Model)> = by_name.into_iter().collect();
        sorted.sort_by_key(|(name, model)| (std::cmp::Reverse(model.cost()), *name));
        let models: Vec<Value> = sorted
            .iter()
            .map(|(name, m)| {
                json!({"model": name, "requests": m.turns, "turns": m.turns, "prompt_tokens": m.prompt, "cached_tokens": m.cached,
                    "evaluated_tokens": m.evaluated, "completion_tokens": m.completion, "upkeep_tokens": m.upkeep,
                    "upkeep_is_at_least": m.untold,
                    "milliseconds": m.milliseconds, "not_waited_seconds": m.not_waited()})
            })
            .collect();
        let shadow = &self.shadow;
        let shadow = json!({"requests": shadow.requests, "too_long": shadow.too_long, "sent_tokens": shadow.sent,
            "would_send_tokens": shadow.would_send});
        json!({
            "shadow": if self.shadow.requests > 0 { shadow } else { Value::Null },
            "since_ms": since_ms, "conversations": self.conversations.len(), "requests": self.turns, "turns": self.turns, "rewrites": self.rewrites.count(),
            "sent_tokens": self.sent, "kept_out_tokens": self.rewrites.freed(), "kept_out_is_estimated": self.rewrites.freed_is_estimated(), "recalls": self.recalls, "recalls_found": self.recalls_found,
            "read_back_tokens": self.read_back, "evaluated_again_tokens": self.again, "recalled_ahead": self.ahead.0, "recalled_ahead_tokens": self.ahead.1,
            "upkeep_tokens": self.models.values().map(|m| m.upkeep).sum::<u64>(), "upkeep_is_at_least": self.models.values().any(|m| m.untold),
            "cached_tokens": self.models.values().map(|m| m.cached).sum::<u64>(),
            "prompt_tokens": self.models.values().map(|m| m.prompt).sum::<u64>(),
            // A sum of nothing is -0.0.
            "not_waited_seconds": self.models.values().filter_map(Model::not_waited).fold(0.0, std::ops::Add::add), "models": models,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_add_up() {
        let event = |kind: &str, data: Value| EventRow {
            id: 1,
            now_ms: 5,
            conversation: Some("c".into()),
            kind: kind.into(),
            data,
        };
        let mut sums = Sums::default();
        for each in [
            event("context_compaction", json!({"before": {"prompt": 900}, "after": {"prompt": 300}})),
            event("context_compaction", json!({"before": {"prompt": 300}, "after": {"prompt": 500}})),
            event("recall", json!({"outcome": "found", "tokens": 40})),
            event("recall", json!({"outcome": "nothing", "tokens": 9})),
            event("recalled_ahead", json!({"tokens": 31})),
            event(
                "model_usage",
                json!({"role": "main", "model": "m", "prompt_tokens": 70, "cached_tokens": 50,
                "evaluated_tokens": 20, "prompt_milliseconds": 400.0, "prefix": {"lost": 12, "again": 9, "because": "rewrite"}}),
            ),
            // What came back from what the server had put aside was not evaluated again.
            event(
                "model_usage",
                json!({"role": "summary", "by": "m", "evaluated_tokens": 5, "completion_tokens": 2,
                "prefix": {"lost": 12, "again": 900, "because": "rewrite"}}),
            ),
            event("model_usage", json!("no object")),
        ] {
            sums.rewritten(&each);
            sums.add(&each);
        }
        let out = sums.json(0);
        let of = |key: &str| out[key].as_u64().unwrap();
        assert_eq!((of("conversations"), of("turns"), of("rewrites"), of("kept_out_tokens")), (1, 1, 2, 400));
        assert_eq!((of("prompt_tokens"), of("sent_tokens")), (70, 470), "what left the prompt was sent, too");
        assert_eq!((of("recalls"), of("recalls_found"), of("read_back_tokens")), (2, 1, 40));
        assert_eq!(sums.worked(), (27, 0));
        assert_eq!((of("recalled_ahead"), of("recalled_ahead_tokens")), (1, 31));
        assert_eq!((of("evaluated_again_tokens"), of("upkeep_tokens"), of("cached_tokens")), (14, 7, 50));
        assert_eq!(out["not_waited_seconds"], 1.0, "50 tokens from the cache at 50 a second");
        // A request says itself what its client sent, whatever was rewritten before.
        sums.add(&event("model_usage", json!({"role": "main", "prompt_tokens": 30, "client_tokens": 100})));
        assert_eq!(sums.json(0)["sent_tokens"], 570);
        assert_eq!(sums.json(0)["upkeep_is_at_least"], false);
        sums.add(&event(
            "model_usage",
            json!({"role": "summary", "by": "m", "prompt_tokens": null, "milliseconds": 900}),
        ));
        assert_eq!(sums.json(0)["upkeep_is_at_least"], true, "it was broken off");
    }
}
