//! Briefs with a real model's part. The model here writes nonsense: the request is answered all the same, and the brief
//! holds what is made without a model.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::relay::Relay;
use crate::support::servers::{Llama, Windowsill, place};
use crate::support::session::{Bench, Session};
use crate::support::{check, http, say};

/// A fact of the recorded session that stands in any brief of its beginning: what the person asked for.
const FACT: &str = "resolve_lookup_value";

/// The text behind the first user message, where something was folded.
fn brief_in(forwarded: &str) -> Option<String> {
    let request: Value = serde_json::from_str(forwarded).unwrap();
    let messages = request["messages"].as_array().expect("messages");
    let texts = messages.iter().filter_map(|m| m["content"].as_str());
    let briefs: Vec<&str> = texts.filter_map(|t| t.find("[windowsill brief of ").map(|at| &t[at..])).collect();
    assert!(briefs.len() <= 1, "there is never more than one brief");
    briefs.first().map(|b| (*b).to_owned())
}

/// What each summary came to, as the record has it.
fn summaries(bench: &Bench) -> Vec<String> {
    let events = http::get(&format!("{}/windowsill/events?since=0", bench.windowsill.url())).json();
    let all = events["events"].as_array().expect("events").iter();
    let told = all.filter(|e| e["data"]["role"] == "summary").map(|e| {
        let d = &e["data"];
        format!("{}, used {}, {} tokens in, {} out", d["how"], d["used"], d["prompt_tokens"], d["completion_tokens"])
    });
    told.collect()
}

/// Tokens evaluated ahead of need, once any were.
fn prefilled(bench: &Bench) -> Option<u64> {
    prefill(&bench.windowsill).map(|(evaluated, _)| evaluated)
}

/// As above, and those of the whole prompt.
fn prefill(windowsill: &Windowsill) -> Option<(u64, u64)> {
    let events = http::get(&format!("{}/windowsill/events?since=0", windowsill.url())).json();
    let all = events["events"].as_array().expect("events").iter();
    let mut told = all.filter(|e| e["data"]["role"] == "prefill").map(|e| &e["data"]);
    told.find_map(|d| Some((d["evaluated_tokens"].as_u64()?, d["prompt_tokens"].as_u64()?)))
}

#[test]
fn a_brief_while_the_request_waits() {
    let session = Session::demo();
    let bench = Bench::start(4096, &[("CONTEXT_BACKGROUND", "false"), ("CONTEXT_SUMMARY_MAX_TOKENS", "64")]);
    let mut folded = 0;
    for end in session.turns() {
        let turn = bench.turn(&session, end);
        if turn.action.contains("summarize") {
            folded += 1;
            let brief = brief_in(&turn.forwarded).expect("a brief is there");
            assert!(brief.contains("windowsill recall") && brief.contains("[end of windowsill brief]"), "{brief}");
        }
        // A fold of a few messages asks nobody, and a model that wrote nothing of use is left out for a while.
        if folded >= 2 && !summaries(&bench).is_empty() {
            break;
        }
    }
    assert!(folded >= 2, "the session passes the line twice");
    summaries(&bench).iter().for_each(|s| say(s));
    assert!(!summaries(&bench).is_empty());
}

/// Behind a reply, while nobody waits, a brief is made; the request that needs it does not wait for one.
#[test]
fn a_brief_ahead_of_need() {
    let session = Session::demo();
    let bench = Bench::start(4096, &[("CONTEXT_SUMMARY_MAX_TOKENS", "64"), ("CONTEXT_FOLD_AT", "wall")]);
    let turns: Vec<usize> = session.turns();
    let mut next = turns.iter();
    // On past the line at which a brief is begun, each time with a pause as a person makes.
    while summaries(&bench).is_empty() {
        let turn = bench.turn(&session, *next.next().expect("a brief is made before the session ends"));
        assert!(turn.summaries.is_empty(), "no request waits for a brief");
        let pause = Duration::from_secs(if turn.prompt < 2300 { 0 } else { 45 });
        let started = Instant::now();
        while summaries(&bench).is_empty() && started.elapsed() < pause {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let told = summaries(&bench);
    told.iter().for_each(|s| say(s));
    let made = told.iter().any(|s| s.contains("used true"));
    let asked = bench.relay.take();
    assert!(asked.iter().any(|b| b.contains("\"stream\":false")), "a model was asked");
    // The fold is made and evaluated ahead of need too, if there is time: then the turn that needs it waits for its own
    // new tokens alone, and a little for the brief's end of the prompt.
    let mut before = None;
    let folded = next
        .map(|end| {
            let turn = bench.turn(&session, *end);
            if turn.prompt > 3300 {
                // A slow machine evaluates for minutes: wait as long as the server works, and a little longer, for it may still begin.
                let (started, mut worked) = (Instant::now(), Instant::now());
                while prefilled(&bench).is_none() && worked.elapsed() < Duration::from_secs(20) {
                    assert!(started.elapsed() < Duration::from_secs(600), "the server never ends");
                    std::thread::sleep(Duration::from_millis(200));
                    if bench.relay.is_busy() {
                        worked = Instant::now();
                    }
                }
            }
            turn
        })
        .find(|turn| {
            let found = turn.action.contains("summarize");
            if !found {
                before = Some((turn.evaluated, turn.first));
            }
            found
        });
    let folded = folded.expect("the session passes the line");
    assert!(brief_in(&folded.forwarded).is_some());
    let ((before, waited), ahead) =
        (before.expect("a turn before"), prefilled(&bench).expect("the new prompt was evaluated ahead"));
    say(&format!(
        "evaluated ahead: {ahead}, then {} after {before} in the turn before; first token after {:.2} s and {:.2} s",
        folded.evaluated,
        folded.first.as_secs_f64(),
        waited.as_secs_f64()
    ));
    assert!(f64::from(folded.evaluated) <= f64::from(before) * 1.5, "{} after {before}", folded.evaluated);
    if made {
        assert!(folded.summaries.is_empty(), "it had been made: {:?}", folded.summaries);
    }
}

/// Two conversations on a server with two slots: what is made ahead for one stays in its own slot, and the other finds its
/// prompt where it left it.
/// Asks something in a short conversation of its own; how much of the prompt was cached, and how much was evaluated.
fn gardener(windowsill: &Windowsill, ask: &str) -> (u64, u64) {
    let words = "The garden has beds of beans, peas and rye along the wall. ".repeat(20);
    let sent = serde_json::json!({"model": "smollm2", "max_tokens": 8, "temperature": 0, "messages": [
        {"role": "system", "content": "You are a gardener."},
        {"role": "user", "content": format!("{words}\n{ask}")}]});
    let reply = http::post(&windowsill.chat_url(), &sent);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    let number = |what: &str| json.pointer(what).and_then(Value::as_u64).expect("a figure");
    (number("/timings/cache_n"), number("/timings/prompt_n"))
}

#[test]
fn a_rewrite_within_a_request_leaves_the_other_conversation_its_slot() {
    let session = Session::demo();
    let llama = Llama::start_with(8192, &["--parallel", "2", "--cache-ram", "0"]);
    let relay = Relay::before(&llama.url());
    let settings = [("CONTEXT_SUMMARY_MAX_TOKENS", "64"), ("CONTEXT_FOLD_AT", "wall"), ("CONTEXT_BACKGROUND", "false")];
    let windowsill = Windowsill::before(&relay.url(), &settings);
    let mut rewritten = None;
    let mut first = 0;
    for end in session.turns() {
        let reply = http::post(&windowsill.chat_url(), session.request(end, 8, true));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let asked = relay.take();
        let forwarded = asked.last().and_then(|b| serde_json::from_str::<Value>(b).ok()).expect("a request");
        if reply.ours("action").contains("summarize") {
            rewritten = forwarded["id_slot"].as_u64();
            break;
        }
        if reply.ours("action") == "none" {
            assert_eq!(forwarded.get("id_slot"), None, "the server knows where a prompt that goes on belongs");
        }
        // The other one works in between, so that the session's slot is always the one used longest ago, or never.
        first = gardener(&windowsill, "What grows?").1.max(first);
        relay.take();
    }
    say(&format!("rewritten in slot {rewritten:?}"));
    assert!(rewritten.is_some(), "a rewritten request names its slot");
    let (cached, again) = gardener(&windowsill, "What grows best?");
    say(&format!("the other conversation: {cached} from its slot, {again} evaluated, {first} at first"));
    assert!(again * 4 < first, "its prompt was still there: {again} of {first}");
}

#[test]
fn a_fold_leaves_the_other_conversation_its_slot() {
    let session = Session::demo();
    let llama = Llama::start_with(8192, &["--parallel", "2", "--cache-ram", "0"]);
    let relay = Relay::before(&llama.url());
    let windowsill =
        Windowsill::before(&relay.url(), &[("CONTEXT_SUMMARY_MAX_TOKENS", "64"), ("CONTEXT_FOLD_AT", "wall")]);
    let other = |ask: &str| gardener(&windowsill, ask);
    let (_, first) = other("What grows?");
    let (mut evaluated, mut slot) = (None, None);
    for end in session.turns() {
        let sent = session.request(end, 8, true);
        let reply = http::post(&windowsill.chat_url(), &sent);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let events = reply.events();
        let number = |what: &str| events.iter().find_map(|e| e.pointer(what).and_then(Value::as_u64)).unwrap_or(0);
        if let Some((ahead, prompt)) = evaluated {
            say(&format!("evaluated ahead: {ahead} of {prompt}, then {}", number("/timings/prompt_n")));
            break;
        }
        // From here on a step may pass the wall: who is back at once folds within the request, and may get another slot.
        if number("/usage/prompt_tokens") < 2000 {
            continue;
        }
        // A brief may come first: as long as the server works, and a little longer, for it may still begin.
        let (started, mut worked) = (Instant::now(), Instant::now());
        while evaluated.is_none() && worked.elapsed() < Duration::from_secs(4) {
            assert!(started.elapsed() < Duration::from_secs(600), "the server never ends");
            std::thread::sleep(Duration::from_millis(100));
            if relay.is_busy() {
                worked = Instant::now();
            }
            evaluated = prefill(&windowsill);
            let asked: Vec<Value> = relay.take().iter().filter_map(|b| serde_json::from_str(b).ok()).collect();
            slot = asked.iter().filter(|b| b["max_tokens"] == 1).find_map(|b| b["id_slot"].as_u64()).or(slot);
        }
    }
    say(&format!("evaluated ahead in slot {slot:?}"));
    assert!(evaluated.is_some() && slot.is_some(), "a fold is made ahead, in a slot that is named");
    let (cached, again) = other("What grows best?");
    say(&format!("the other conversation: {cached} from its slot, {again} evaluated, {first} at first"));
    assert!(again * 4 < first, "its prompt was still there: {again} of {first}");
}

#[test]
fn a_brief_on_demand() {
    let session = Session::demo();
    let bench = Bench::start(4096, &[("CONTEXT_BACKGROUND", "false"), ("CONTEXT_SUMMARY_MAX_TOKENS", "64")]);
    let before = [1, 9, 17].map(|end| bench.turn(&session, end)).into_iter().next_back().expect("three");
    let id = before.conversation.clone();
    let said = bench.windowsill.cli(&["compact", &id, "--json"]).unwrap();
    let answer: Value = serde_json::from_str(&said).unwrap();
    let (was, is) = (answer["before"].as_u64().expect("tokens"), answer["after"].as_u64().expect("tokens"));
    let brief = answer["brief"].as_str().expect("a brief");
    say(&format!("compact: {was} -> {is} tokens, written by a model: {}", answer["written_by_a_model"]));
    summaries(&bench).iter().for_each(|s| say(s));
    assert!(is < was, "{said}");
    assert!(brief.contains("[windowsill brief of ") && brief.contains("[end of windowsill brief]"), "{brief}");

    let after = bench.turn(&session, 19);
    assert_eq!(brief_in(&after.forwarded).as_deref(), Some(brief.trim_start()), "the next request carries it");
    assert!(after.forwarded.contains(FACT), "the task is still there");
    let shown = bench.windowsill.cli(&["context", &id, "--json"]).unwrap();
    assert!(shown.contains("\"asked_by\": \"user\""), "{shown}");
    check::originals(&session, &[before, after], &bench.windowsill);

    // Once more, and there is nothing to do, or one brief again.
    match bench.windowsill.cli(&["compact", &id, "--json", "--focus", "the failing test"]) {
        Ok(said) => assert_eq!(said.matches("[windowsill brief of ").count(), 1, "{said}"),
        Err(why) => assert!(why.contains("nothing to fold"), "{why}"),
    }
    assert!(bench.windowsill.cli(&["compact", "c0000"]).is_err_and(|e| e.contains("no conversation")));
}

/// A conversation of a server's, and briefs by the model that windowsill serves itself.
#[test]
fn a_brief_by_the_embedded_engine() {
    let session = Session::demo();
    let llama = Llama::start(4096);
    let relay = Relay::before(&llama.url());
    let settings =
        [("CONTEXT_BACKGROUND", "false"), ("CONTEXT_SUMMARY_MAX_TOKENS", "48"), ("CONTEXT_SUMMARY_MODEL", "embedded")];
    let windowsill = Windowsill::with(&relay.url(), &settings, &["--model", &place("WINDOWSILL_MODEL")]);
    let mut conversation = String::new();
    for end in session.turns().into_iter().take(4) {
        let reply = http::post(&windowsill.chat_url(), session.request(end, 8, false));
        assert_eq!(reply.status, 200, "{}", reply.text);
        conversation = reply.ours("conversation").to_owned();
    }
    relay.take();
    let said = windowsill.cli(&["compact", &conversation, "--json"]).unwrap();
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert!(answer["after"].as_u64() < answer["before"].as_u64(), "{said}");
    assert!(answer["brief"].as_str().is_some_and(|brief| brief.contains("[windowsill brief of ")), "{said}");
    let events = http::get(&format!("{}/windowsill/events?since=0", windowsill.url())).json();
    let all = events["events"].as_array().expect("events").iter();
    let asked: Vec<&Value> = all.map(|e| &e["data"]).filter(|d| d["role"] == "summary").collect();
    asked.iter().for_each(|d| say(&d.to_string()));
    let model = place("WINDOWSILL_MODEL");
    let name = std::path::Path::new(&model).file_stem().and_then(|name| name.to_str()).expect("a name");
    assert!(asked.iter().any(|d| d["by"] == format!("embedded/{name}").as_str()), "{asked:?}");
    assert!(asked.iter().any(|d| d["completion_tokens"].as_u64() > Some(0)), "{asked:?}");
    let server = relay.take();
    assert!(server.iter().all(|body| !body.contains("\"messages\"")), "the server was asked: {server:?}");
}
