//! What people ask of a conversation: what fills its window, what each request added, what was done to it, what it cost and what
//! would help. Worked out from the record, so that it says the same with and without a running proxy. Holds no message text
//! but the first words of the largest messages.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::receipt::Names;
use super::record::{self, row_of};
use super::rewrites::{self, Rewrites};
use super::rows::{row_json, severity};
use super::timeline::{called, line, size, size_in, view_of};
use crate::config::{Config, Severity};
use crate::conversation::Tokens;
use crate::conversation::edit::View;
use crate::guard::told;
use crate::plan::shared_out;
use crate::proxy::lookout::servers;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::state::standing::{Standing, standing_in};
use crate::proxy::state::steer::Steer;
use crate::proxy::{App, Error, Record, grouped};
use crate::store::{ConversationRow, EventFilter, EventRow, NodeRow, Store};

/// Events that are looked at, the newest.
const EVENTS: usize = 5_000;

/// Requests that are told of one by one, the newest.
const TURNS: usize = 500;

/// Messages that are named as the largest.
const LARGEST: usize = 5;

/// Events after a prompt that are looked at for those of other conversations.
const AFTER: usize = 200;

/// What guardrails did, the newest.
const GUARDRAILS: usize = 8;

/// Requests between rewrites that are fewer than this come too often.
const OFTEN: f64 = 4.0;

/// Requests before there is advice on what happens again and again.
const SEEN: usize = 6;

/// `GET /windowsill/conversations/{id}/insight`.
///
/// # Errors
/// 404 for an unknown one.
pub fn insight(app: &App, id: &str) -> Result<Value, Error> {
    // A cache is that of the server that answered last, which may be none of those that there are now.
    let is_there = |name: &str| servers(app).any(|(_, upstream)| upstream.name() == name);
    insight_in(&app.store, &row_of(app, id)?, &app.config, &is_there)
}

/// Tokens of a prompt that the server of a conversation evaluates in a second: as measured with that conversation, or
/// else with whatever was asked last.
pub(in crate::proxy) fn measured_speed(app: &App, id: &str) -> Option<f64> {
    usages(app, id, speed)
}

/// Seconds that a brief takes whose model reads so many tokens and may write so many: at the speeds that were measured
/// with this conversation, or else with whatever was asked last, and as much longer as the newest briefs took: a model that wrote
/// nothing of use behind the prompt is asked once more, in another way. `None` where nothing was measured.
pub(in crate::proxy) fn brief_seconds(app: &App, id: &str, reads: Tokens, most: Tokens) -> Option<f64> {
    let reading = usages(app, id, speed)?;
    let writing = usages(app, id, writing_speed)?;
    let foreseen = |read: f64, written: f64| read / reading + written / writing;
    let Some(briefs) = usages(app, id, briefs) else {
        return Some(foreseen(f64::from(reads), f64::from(most)));
    };
    let longer = (briefs.seconds / foreseen(briefs.evaluated, briefs.written)).max(1.0);
    let new = f64::from(reads) * briefs.new;
    Some(foreseen(new, briefs.written.min(f64::from(most))) * longer)
}

/// What the usages of a conversation tell, or else those of all conversations.
fn usages<T>(app: &App, id: &str, tell: impl Fn(&[EventRow]) -> Option<T>) -> Option<T> {
    [Some(id.to_owned()), None].into_iter().find_map(|conversation| {
        let of = EventFilter { conversation, kinds: vec!["model_usage".into()] };
        tell(&app.store.trace().newest(200, &of).ok()?)
    })
}

impl Record {
    /// What people ask of a conversation; as the running proxy tells it.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub fn insight(&self, id: &str, config: &Config) -> Result<Value, Error> {
        let row = record::row(&self.store, id, "`windowsill context` lists them")?;
        insight_in(&self.store, &row, config, &|_| true)
    }
}

/// What the guardrails did lately, the oldest first.
fn guardrails(events: &[EventRow]) -> Value {
    let words = |event: &EventRow| {
        let what = told::told(&event.kind, &event.data)?;
        Some(json!({"time_ms": event.now_ms, "kind": event.kind, "what": what}))
    };
    let mut lately: Vec<Value> = events.iter().rev().filter_map(words).take(GUARDRAILS).collect();
    lately.reverse();
    lately.into()
}

/// `is_there`: whether a server of this name is behind the proxy.
fn insight_in(
    store: &Store,
    row: &ConversationRow,
    config: &Config,
    is_there: &dyn Fn(&str) -> bool,
) -> Result<Value, Error> {
    let gauge = &config.gauge;
    let of = EventFilter { conversation: Some(row.id.clone()), kinds: Vec::new() };
    let events = store.trace().newest(EVENTS, &of)?;
    // A reply writes its events and the gauge at once: what is read behind the events is no older than they are.
    let newest = store.conversation(&row.id)?.filter(|newest| newest.id == row.id);
    let row = newest.as_ref().unwrap_or(row);
    let view = view_of(store, row)?;
    let rows = store.messages(&row.id)?;
    let turns = turns(&events);
    let mut out = row_json(row);
    out["history_file"] = json!(store.history_path(&row.id).display().to_string());
    out["severity"] = json!(severity(row, gauge).map(Severity::as_str));
    out["yellow_at"] = json!(gauge.yellow_at);
    out["red_at"] = json!(gauge.red_at);
    let scale = Sizes::of(&row.state);
    let sizes: Vec<Tokens> = rows.iter().map(|node| size_in(scale, &view, node)).collect();
    // The newest reply may be on record, and was in no prompt yet.
    let told = row.state["messages"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(rows.len());
    let told = told.min(rows.len());
    out["history"] = by_role(&rows[..told], &sizes[..told], row.state["regions"]["history"].as_u64().unwrap_or(0));
    let warm = warm(&events).filter(|last| last.data["upstream"].as_str().is_none_or(is_there));
    let others = warm.map_or(Ok(0), |last| others_since(store, row, last))?;
    // What the server read of this prompt may have given way to theirs.
    out["warm_tokens"] = warm.filter(|_| others == 0).map_or(Value::Null, |last| last.data["prompt_tokens"].clone());
    out["others_since"] = json!(others);
    out["tokens_per_second"] = json!(speed(&events));
    let called = called(&rows);
    out["largest"] = largest(&rows, (&sizes, scale), &view, &called);
    out["tools"] = tools(&rows, &sizes, &called, &row.state);
    let rewrites = rewrites::of(store, Some(&row.id))?;
    let whole = || rows[..told].iter().map(|node| u64::from(size(scale, node))).sum();
    out["client_tokens"] = json!(client_tokens(&row.state, &view, whole));
    out["models"] = models(&events, &row.model);
    out["did"] = did(&events, &turns, &rewrites);
    out["guardrails"] = guardrails(&events);
    out["books"] = crate::proxy::turn::guard::books_json(&row.state, &config.ceiling, busy(&events));
    out["rewrites"] = json!(rewrites::told(&events));
    let standing = standing_in(store, &row.id, None)?;
    out["paused"] = json!(standing.paused);
    out["state"]["waits"] = json!(waits(&row.state, &standing, &view, is_resumed(&events)));
    out["advice"] = json!(advice(&out, &events, turns.len()));
    let adds = grows_by(&turns);
    out["grows_by"] = json!(adds);
    out["fold_in_requests"] = json!(adds.filter(|_| !standing.paused).and_then(|adds| fold_in(&row.state, adds)));
    let newest: Vec<Value> = turns.into_iter().rev().take(TURNS).rev().collect();
    // Until 0.3, also by the name that it had before.
    out["turns"] = json!(newest);
    out["requests"] = json!(newest);
    Ok(out)
}

/// Why nothing happens though a line is passed, what a person stopped, and what they have wait.
fn waits(state: &Value, standing: &Standing, view: &View, is_resumed: bool) -> Vec<Value> {
    let mut out = Vec::new();
    if standing.paused {
        out.push(json!(
            "You stopped rewriting here: nothing is cleared or folded, and what no longer fits is refused. `windowsill unpause ID` takes \
             it up again."
        ));
    } else {
        out.extend(state["waits"].as_array().into_iter().flatten().cloned());
        let line = number(&state["lines"]["fold_at"]);
        if out.is_empty() && is_resumed && number(&state["prompt_tokens"]) > line {
            let line = grouped(Tokens::try_from(line).unwrap_or(Tokens::MAX));
            out.push(json!(format!(
                "Rewriting was resumed, and the prompt has passed the {line} tokens from which it is folded: the next request decides."
            )));
        }
    }
    // A focus waits for a fold, and everything else for whatever rewrites the prompt.
    let (focuses, others): (Vec<&Steer>, Vec<&Steer>) =
        standing.waiting(view).into_iter().partition(|wish| matches!(wish, Steer::Focus(_)));
    if !focuses.is_empty() {
        out.push(json!("A focus of yours waits for the next fold."));
    }
    let names: Vec<&str> = others.into_iter().map(Steer::as_str).collect();
    match names.len() {
        0 => {}
        1 => out.push(json!(format!("One change of yours waits for the next rewrite: {}.", names[0]))),
        n => out.push(json!(format!("{n} changes of yours wait for the next rewrite: {}.", names.join(", ")))),
    }
    out
}

/// Whether rewriting was resumed, and no request came since.
fn is_resumed(events: &[EventRow]) -> bool {
    let steered = |e: &&EventRow| e.kind == "steered" && matches!(e.data["action"].as_str(), Some("pause" | "unpause"));
    let last = events.iter().rev().find(|e| role_is(e, "main") || steered(e));
    last.is_some_and(|e| e.data["action"] == "unpause")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn role_is(event: &EventRow, role: &str) -> bool {
    event.kind == "model_usage" && event.data["role"] == role
}

/// Each request: what its prompt held, and what it added to the last.
fn turns(events: &[EventRow]) -> Vec<Value> {
    let mut last: Option<u64> = None;
    let mut rewritten = false;
    let mut out = Vec::new();
    for event in events {
        rewritten |= event.kind == "context_compaction";
        if !role_is(event, "main") {
            continue;
        }
        let data = &event.data;
        let prompt = data["prompt_tokens"].as_u64().unwrap_or_else(|| number(&data["planned_prompt_tokens"]));
        let window = data["window"].as_u64();
        let full = prompt + number(&data["output_reserved"]);
        let added =
            last.map(|last| i64::try_from(prompt).unwrap_or(i64::MAX) - i64::try_from(last).unwrap_or(i64::MAX));
        out.push(json!({
            "event": event.id, "time_ms": event.now_ms, "prompt_tokens": prompt, "window": window,
            "pressure": window.filter(|w| *w > 0).map(|w| full as f64 / w as f64),
            "added": added, "rewritten": rewritten, "cached_tokens": data["cached_tokens"],
            "evaluated_tokens": data["evaluated_tokens"], "completion_tokens": data["completion_tokens"],
            "milliseconds": data["milliseconds"], "action": data["action"], "end": data["end"],
            "lost": data["prefix"]["lost"], "lost_because": data["prefix"]["because"],
        }));
        last = Some(prompt);
        rewritten = false;
    }
    out
}

/// Requests that tell how a conversation grows, the newest.
const GROWTH: usize = 8;

/// Tokens that a request adds: the mean of the newest that added some and were not rewritten.
fn grows_by(turns: &[Value]) -> Option<u64> {
    let grown = turns.iter().rev().filter(|turn| turn["rewritten"] == false);
    let added: Vec<u64> = grown.filter_map(|turn| turn["added"].as_u64().filter(|n| *n > 0)).take(GROWTH).collect();
    (!added.is_empty()).then(|| added.iter().sum::<u64>() / added.len() as u64).filter(|n| *n > 0)
}

/// With which of the next requests, each of that size, the prompt comes to the line from which it is folded; `None` where it has passed
/// it, or the line is not known.
fn fold_in(state: &Value, adds: u64) -> Option<u64> {
    let lines = &state["lines"];
    let line = lines["fold_at"].as_u64().or(lines["summarize_at"].as_u64())?;
    let left = line.checked_sub(state["prompt_tokens"].as_u64()?).filter(|left| *left > 0)?;
    Some(left.div_ceil(adds))
}

/// The last reply that was to a prompt of the conversation's own.
pub(super) fn last_prompt(events: &[EventRow]) -> Option<&EventRow> {
    let told = |e: &&EventRow| (role_is(e, "main") || role_is(e, "prefill")) && e.data["prompt_tokens"].is_u64();
    events.iter().rev().find(told)
}

/// How far the server's cache reaches: what it evaluated last, unless something was rewritten since.
fn warm(events: &[EventRow]) -> Option<&EventRow> {
    let last =
        events.iter().rev().find(|e| role_is(e, "main") || role_is(e, "prefill") || e.kind == "context_compaction");
    last.filter(|e| e.kind == "model_usage" && e.data["prompt_tokens"].is_u64())
}

/// How many other conversations the same server answered after this event, with the same model.
pub(super) fn others_since(store: &Store, row: &ConversationRow, last: &EventRow) -> Result<usize, Error> {
    let of = EventFilter { conversation: None, kinds: vec!["model_usage".into()] };
    let since = store.trace().since(last.id, AFTER, &of)?;
    let same = |e: &&EventRow| ["model", "upstream"].iter().all(|key| e.data[key] == last.data[key]);
    let others = since.iter().filter(same).filter_map(|e| e.conversation.as_deref()).filter(|id| *id != row.id);
    Ok(others.collect::<HashSet<&str>>().len())
}

/// Tokens of a prompt that the server evaluates in a second, by its own clock; of the newest replies that evaluated enough to
/// tell.
pub(in crate::proxy) fn speed(events: &[EventRow]) -> Option<f64> {
    let usages = events.iter().rev().filter(|e| e.kind == "model_usage");
    let measured = usages.filter_map(|e| {
        let (tokens, ms) = (e.data["evaluated_tokens"].as_f64()?, e.data["prompt_milliseconds"].as_f64()?);
        (tokens >= 32.0 && ms > 0.0).then_some((tokens, ms))
    });
    let (tokens, ms) = measured.take(8).fold((0.0, 0.0), |(t, m), (tokens, ms)| (t + tokens, m + ms));
    (ms > 0.0).then(|| tokens * 1000.0 / ms)
}

/// Tokens that the server writes in a second, of the newest replies that are long enough to tell.
fn writing_speed(events: &[EventRow]) -> Option<f64> {
    let usages = events.iter().rev().filter(|e| e.kind == "model_usage");
    let measured = usages.filter_map(|e| {
        let (written, all) = (e.data["completion_tokens"].as_f64()?, e.data["milliseconds"].as_f64()?);
        let writing = all - e.data["prompt_milliseconds"].as_f64()?;
        (written >= 8.0 && writing > 0.0).then_some((written, writing))
    });
    let (tokens, ms) = measured.take(8).fold((0.0, 0.0), |(t, m), (tokens, ms)| (t + tokens, m + ms));
    (ms > 0.0).then(|| tokens * 1000.0 / ms)
}

/// What the newest briefs took, one with another.
struct Briefs {
    /// The share of their prompts that the server evaluated.
    new: f64,
    /// Tokens that it evaluated for each.
    evaluated: f64,
    /// Tokens that were written for each.
    written: f64,
    /// Seconds that each took, with what was asked for it in vain.
    seconds: f64,
}

fn briefs(events: &[EventRow]) -> Option<Briefs> {
    let of = |e: &EventRow, name: &str| e.data[name].as_f64();
    let measured = events.iter().rev().filter(|e| role_is(e, "summary")).filter_map(|e| {
        let of = |name| of(e, name);
        Some([of("prompt_tokens")?, of("evaluated_tokens")?, of("completion_tokens")?, of("milliseconds")?])
    });
    let all: Vec<[f64; 4]> = measured.take(4).collect();
    let mean = |part: usize| all.iter().map(|brief| brief[part]).sum::<f64>() / all.len() as f64;
    let (prompt, evaluated) = (mean(0), mean(1));
    (prompt > 0.0).then(|| Briefs {
        new: (evaluated / prompt).min(1.0),
        evaluated,
        written: mean(2),
        seconds: mean(3) / 1000.0,
    })
}

/// About the tokens that the client's own history has with its system prompt and tools: those of its last request. `whole`: those of
/// its messages, where an older version did not say.
pub(super) fn client_tokens(state: &Value, view: &View, whole: impl FnOnce() -> u64) -> u64 {
    // Where the model sees all of it as it is, both are one.
    if view.edits.is_empty() {
        return number(&state["prompt_tokens"]);
    }
    if let Some(told) = state["client_tokens"].as_u64() {
        return told;
    }
    let head = ["system", "tools", "media"].map(|region| number(&state["regions"][region]));
    head.into_iter().fold(whole(), u64::saturating_add)
}

/// The history's tokens by who said them: estimates, scaled so that they add up to the count of the whole. What is folded has
/// no size of its own.
fn by_role(rows: &[NodeRow], sizes: &[Tokens], history: u64) -> Value {
    let mut parts: HashMap<&str, u64> = HashMap::new();
    for (node, size) in rows.iter().zip(sizes) {
        let part = match node.role.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            "tool" => "results",
            _ => "other",
        };
        *parts.entry(part).or_default() += u64::from(*size);
    }
    let mut weights = ["user", "assistant", "results", "other"].map(|part| parts.get(part).copied().unwrap_or(0));
    if weights.iter().all(|weight| *weight == 0) {
        weights[3] = 1;
    }
    let shares = shared_out(Tokens::try_from(history).unwrap_or(Tokens::MAX), &weights);
    json!({"user": shares[0], "assistant": shares[1], "results": shares[2], "other": shares[3]})
}

/// The messages that are largest in the view.
fn largest(
    rows: &[NodeRow],
    (sizes, scale): (&[Tokens], Sizes),
    view: &View,
    called: &HashMap<usize, String>,
) -> Value {
    let mut sorted: Vec<(Tokens, &NodeRow)> = sizes.iter().copied().zip(rows).filter(|(size, _)| *size > 0).collect();
    sorted.sort_by_key(|(size, node)| (std::cmp::Reverse(*size), node.at));
    let named = |(_, node): (Tokens, &NodeRow)| {
        let mut line = line(node, view, scale);
        line["call"] = json!(called.get(&node.at));
        line
    };
    sorted.into_iter().take(LARGEST).map(named).collect()
}

/// How many tools the client offers, what they take, and which of them were called: those first whose results take most.
fn tools(rows: &[NodeRow], sizes: &[Tokens], called: &HashMap<usize, String>, state: &Value) -> Value {
    let mut by: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (node, size) in rows.iter().zip(sizes) {
        let Some(name) = called.get(&node.at).and_then(|call| call.split_whitespace().next()) else { continue };
        let (calls, tokens) = by.entry(name).or_default();
        *calls += 1;
        *tokens += u64::from(*size);
    }
    let mut by: Vec<_> = by.into_iter().collect();
    by.sort_by_key(|(name, (_, tokens))| (std::cmp::Reverse(*tokens), *name));
    let called = by.iter().map(|(name, (calls, tokens))| json!({"name": name, "calls": calls, "tokens": tokens}));
    json!({"offered": state["tools_offered"], "tokens": state["regions"]["tools"], "of_ours": state["tools_of_ours"], "called": called.collect::<Vec<_>>()})
}

/// What was spent, by model and role, what cost most first.
fn models(events: &[EventRow], own: &str) -> Value {
    let mut spent: Map<String, Value> = Map::new();
    let mut names = Names::default();
    names.know(own);
    events.iter().for_each(|event| names.see(event));
    for event in events.iter().filter(|e| e.kind == "model_usage") {
        let data = &event.data;
        let role = data["role"].as_str().unwrap_or("");
        let model = names.of(data).unwrap_or_else(|| own.to_owned());
        let entry = spent.entry(format!("{model}\u{0}{role}")).or_insert_with(|| {
            json!({"model": model, "role": role, "requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "evaluated_tokens": 0,
                "completion_tokens": 0, "milliseconds": 0})
        });
        entry["requests"] = json!(number(&entry["requests"]) + 1);
        for key in ["prompt_tokens", "cached_tokens", "evaluated_tokens", "completion_tokens", "milliseconds"] {
            entry[key] = json!(number(&entry[key]) + number(&data[key]));
        }
    }
    let mut list: Vec<Value> = spent.into_iter().map(|(_, entry)| entry).collect();
    let cost = |entry: &Value| {
        let evaluated = number(&entry["prompt_tokens"]).saturating_sub(number(&entry["cached_tokens"]));
        evaluated + number(&entry["completion_tokens"])
    };
    list.sort_by_key(|entry| (std::cmp::Reverse(cost(entry)), entry["model"].to_string()));
    // A brief that was broken off, and a server that tells no counts: what it read is not known to be nothing.
    for entry in
        list.iter_mut().filter(|entry| number(&entry["prompt_tokens"]) + number(&entry["completion_tokens"]) == 0)
    {
        for key in ["prompt_tokens", "cached_tokens", "evaluated_tokens", "completion_tokens"] {
            entry[key] = Value::Null;
        }
    }
    Value::Array(list)
}

/// Milliseconds that models worked.
fn busy(events: &[EventRow]) -> u64 {
    events.iter().filter(|e| e.kind == "model_usage").map(|e| number(&e.data["milliseconds"])).sum()
}

/// What the mechanisms did.
fn did(events: &[EventRow], turns: &[Value], rewrites: &Rewrites) -> Value {
    let mut layers: Map<String, Value> = Map::new();
    for data in events.iter().filter(|e| e.kind == "context_compaction").map(|e| &e.data) {
        for layer in data["action"].as_str().unwrap_or("").split(',').filter(|layer| !layer.is_empty()) {
            let n = layers.get(layer).map_or(0, number);
            layers.insert(layer.to_owned(), json!(n + 1));
        }
    }
    let of = |kind: &str| events.iter().filter(|e| e.kind == kind).count();
    let missed = events.iter().filter(|e| e.kind == "recall" && e.data["outcome"] != "found").count();
    json!({
        "compactions": rewrites.count(), "layers": layers, "freed_tokens": rewrites.freed(),
        "freed_is_estimated": rewrites.freed_is_estimated(),
        "recalls": of("recall"), "recalls_missed": missed, "recalled_ahead": of("recalled_ahead"), "requests": turns.len(), "turns": turns.len(),
        "warnings": {
            "silent_truncation": of("silent_truncation"), "window_changed": of("window_changed"),
            "count_mismatch": of("count_mismatch"), "ceiling": of("ceiling"), "loop": of("loop"),
            "small_model": of("small_model"),
        },
    })
}

/// What would help, from what was seen: a sentence, and the key to change.
fn advice(seen: &Value, events: &[EventRow], turns: usize) -> Vec<Value> {
    let mut out = Vec::new();
    let mut say = |what: String, key: &str| out.push(json!({"what": what, "key": key}));
    let window = number(&seen["state"]["window"]);
    let regions = &seen["state"]["regions"];
    let share = |tokens: u64| if window == 0 { 0.0 } else { tokens as f64 / window as f64 * 100.0 };
    let head = number(&regions["system"]) + number(&regions["tools"]);
    if share(head) >= 40.0 {
        say(
            format!(
                "system prompt and tools alone take {:.0} % of the window: offer fewer tools, or load a larger window",
                share(head)
            ),
            "num_ctx",
        );
    }
    let results = number(&seen["history"]["results"]);
    if share(results) >= 40.0 {
        say(
            format!("tool results take {:.0} % of the window: preview smaller ones, too", share(results)),
            "evict_over",
        );
    }
    // Folds that a person asked for, or took back, tell nothing of the settings.
    let folds = seen["rewrites"].as_array().into_iter().flatten().filter(|rewrite| {
        let data = &rewrite["data"];
        let action = data["action"].as_str().unwrap_or_default();
        let by_itself = data["asked_by"].is_null() && rewrite["undone"] != true;
        by_itself && ["summarize", "truncate"].iter().any(|layer| action.contains(layer))
    });
    let folds = folds.count();
    let between = turns as f64 / folds.max(1) as f64;
    if folds >= 2 && between < OFTEN {
        say(format!("folds every {between:.0} requests: fold deeper, or load a larger window"), "summarize_to");
    }
    let changed = events.iter().filter(|e| role_is(e, "main") && e.data["prefix"]["because"] == "client").count();
    if turns >= SEEN && changed * 3 >= turns {
        say(
            format!(
                "the client changed its own history in {changed} of {turns} requests, and the server's cache was lost each time: set the client's own context size large"
            ),
            "",
        );
    }
    if events.iter().any(|e| e.kind == "silent_truncation") {
        say("the server evaluated far fewer tokens than were sent: it drops messages and says nothing; tell windowsill its real window".into(), "num_ctx");
    }
    if events.iter().any(|e| e.kind == "small_model") {
        say("the model has fewer than 3 billion parameters: it calls tools wrongly and loses long prompts; take a larger one".into(), "small_model");
    }
    let is_summary = |e: &&EventRow| e.kind == "not_summarized" || role_is(e, "summary") && e.data["used"] == true;
    if let Some(event) = events.iter().rev().find(is_summary).filter(|e| e.kind == "not_summarized") {
        let why = event.data["because"].as_str().unwrap_or("");
        say(format!("no model wrote the last brief: {why}"), "summary_model");
    }
    let unread = events.iter().filter(|e| e.kind == "recall" && e.data["outcome"] != "found").count();
    if unread >= 3 {
        say(
            format!("{unread} recalls found nothing or no room: keep a larger reserve for the reply"),
            "output_reserved",
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: i64, kind: &str, data: Value) -> EventRow {
        EventRow { id, now_ms: id, conversation: Some("c".to_owned()), kind: kind.to_owned(), data }
    }

    #[test]
    fn after_rewriting_was_resumed_it_says_so_until_the_next_request() {
        let steered = |id, action: &str| event(id, "steered", json!({"action": action}));
        let asked = event(9, "model_usage", json!({"role": "main"}));
        let stopped = [steered(1, "pause")];
        let resumed = [steered(1, "pause"), steered(2, "unpause")];
        let went_on = [steered(1, "pause"), steered(2, "unpause"), asked];
        assert_eq!([&stopped[..], &resumed, &went_on].map(is_resumed), [false, true, false]);
        let told = |prompt: u64, waits: Value, standing: &Standing| {
            let state = json!({"prompt_tokens": prompt, "lines": {"fold_at": 3_000}, "waits": waits});
            waits_in(&state, standing)
        };
        let waits_in_words = told(3_500, json!([]), &Standing::default());
        assert!(
            waits_in_words.contains("Rewriting was resumed") && waits_in_words.contains("3,000"),
            "{waits_in_words}"
        );
        assert_eq!(told(2_900, json!([]), &Standing::default()), "[]", "short of the line");
        assert_eq!(told(3_500, json!(["why"]), &Standing::default()), r#"["why"]"#, "the reason at hand says more");
        let paused = Standing { paused: true, ..Standing::default() };
        let words = told(3_500, json!([]), &paused);
        assert!(words.contains("You stopped rewriting") && !words.contains("resumed"), "{words}");
    }

    /// What waits, after rewriting was resumed.
    fn waits_in(state: &Value, standing: &Standing) -> String {
        json!(waits(state, standing, &View::default(), true)).to_string()
    }

    #[test]
    fn what_nobody_told_of_a_brief_is_not_told_as_nothing() {
        let used = |id, role: &str, prompt: Value| {
            event(
                id,
                "model_usage",
                json!({"role": role, "model": "m", "prompt_tokens": prompt, "completion_tokens": 0}),
            )
        };
        let told = models(&[used(1, "main", json!(900)), used(2, "summary", json!(null))], "m");
        assert_eq!((&told[0]["prompt_tokens"], &told[0]["cached_tokens"]), (&json!(900), &json!(0)));
        assert_eq!((&told[1]["role"], &told[1]["requests"]), (&json!("summary"), &json!(1)));
        assert!(told[1]["prompt_tokens"].is_null() && told[1]["evaluated_tokens"].is_null(), "{told}");
    }

    #[test]
    fn what_a_person_has_wait_is_told_by_what_it_waits_for() {
        let with = |wishes: Vec<Steer>| {
            json!(waits(&json!({}), &Standing { wishes, ..Standing::default() }, &View::default(), false)).to_string()
        };
        let focus = || Steer::Focus("the gate".to_owned());
        assert_eq!(with(vec![focus()]), r#"["A focus of yours waits for the next fold."]"#);
        assert_eq!(with(vec![Steer::Clear(3)]), r#"["One change of yours waits for the next rewrite: clear."]"#);
        let all = with(vec![focus(), Steer::Clear(3), Steer::Evict(4)]);
        assert!(
            all.contains("next fold") && all.contains("2 changes of yours wait for the next rewrite: clear, evict."),
            "{all}"
        );
    }

    #[test]
    fn folds_that_a_person_asked_for_or_took_back_are_no_sign_of_bad_settings() {
        let fold = |asked_by: Value, undone: bool| json!({"data": {"action": "summarize", "asked_by": asked_by}, "undone": undone});
        let own = || fold(Value::Null, false);
        let told = |rewrites: Vec<Value>| {
            let said = advice(&json!({"state": {"window": 4_096}, "rewrites": rewrites}), &[], 6);
            said.iter().any(|advice| advice["key"] == "summarize_to")
        };
        assert!(told(vec![own(), own()]), "every three requests");
        assert!(!told(vec![own(), fold(json!("user"), false), fold(json!("user"), false)]));
        assert!(!told(vec![own(), fold(Value::Null, true)]));
    }
}
