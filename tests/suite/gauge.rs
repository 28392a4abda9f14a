//! The gauge is one value: headline, regions, events, a price and the headline after it say the same, before servers that count
//! and before servers that say nothing; and what is told was forwarded.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};

use super::record::{rewritten, session, turns};
use super::support::*;

/// A server that counts, and one that never says how long a prompt was.
fn servers() -> [(Fake, &'static str); 2] {
    let silent = Fake::start(Kind::OpenAi, 8192);
    silent.script(|seen| match seen.is_main() {
        true => Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}]}),
        ),
        false => Play::Usual,
    });
    [(Fake::start(Kind::LlamaServer, 8192), "counts"), (silent, "says nothing")]
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// What is wrong with the numbers that a conversation's insight says.
fn contradictions(seen: &Value) -> Vec<String> {
    let (state, regions) = (&seen["state"], &seen["state"]["regions"]);
    let part = |name: &str| number(&regions[name]);
    let prompt = number(&state["prompt_tokens"]);
    let mut wrong = Vec::new();
    let sum: u64 = ["system", "tools", "brief", "history", "media"].into_iter().map(part).sum();
    if sum != prompt || part("prompt") != prompt {
        wrong.push(format!("regions {sum} of {prompt}: {regions}"));
    }
    let history: u64 =
        ["user", "assistant", "results", "other"].iter().map(|name| number(&seen["history"][name])).sum();
    if history != part("history") {
        wrong.push(format!("who said what {history} of {}", part("history")));
    }
    let pressure = (prompt + part("output_reserved")) as f64 / number(&state["window"]) as f64;
    if (state["pressure"].as_f64().unwrap() - pressure).abs() > 0.0001 {
        wrong.push(format!("pressure {} of {pressure}", state["pressure"]));
    }
    wrong
}

/// Who sends a history once more, for another reply, hears the same numbers of it, and no line has moved.
#[test]
fn a_history_that_is_sent_again_is_told_by_the_same_numbers() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut talk = chat().system("Be brief.").user("Let us talk.");
    for n in 0..5 {
        talk = talk.assistant(&prose(n, 2_100)).user(&prose(n + 50, 2_100));
    }
    let first = proxy.chat(&talk).ok();
    assert_eq!(first.action(), "none");
    let id = first.header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}");
    for pinned in [false, true] {
        if pinned {
            let pin = json!({"text": "Answer in French, and never in verse."}).to_string();
            proxy.post(&format!("{path}/pins"), &[], pin.as_bytes()).ok();
        }
        let before = proxy.get(&path).ok().json();
        let again = proxy.chat(&talk).ok();
        let source = "x-windowsill-prompt-tokens-source";
        assert_eq!(again.header(source), first.header(source), "{pinned}");
        let state = |seen: &Value| seen.get("state").unwrap_or(seen).clone();
        let (before, after) = (state(&before), state(&proxy.get(&path).ok().json()));
        assert_eq!(again.header("x-windowsill-prompt-tokens"), Some(before["prompt_tokens"].to_string().as_str()));
        for told in ["lines", "walls", "regions", "pressure"] {
            assert!(before[told] == after[told] && !before[told].is_null(), "{pinned} {told}: {before} {after}");
        }
    }
}

/// A conversation with results to clear, calls and talk.
fn begun(dice: &mut Dice) -> Chat {
    let mut sent =
        chat().system(&prose(dice.next() % 900, 200 + dice.below(2_000))).user(&prose(dice.next() % 900, 200));
    sent = if dice.chance(80) { sent.tools() } else { sent };
    for n in 0..2 + dice.below(4) {
        let id = format!("call_{n}");
        sent = sent
            .call(&id, "read_file", json!({"path": format!("f{n}.rs")}))
            .result(&id, &prose(dice.next() % 900, 300 + dice.below(4_000)))
            .assistant(&prose(dice.next() % 900, 100 + dice.below(600)));
        sent = if dice.chance(60) { sent.user(&prose(dice.next() % 900, 60 + dice.below(300))) } else { sent };
    }
    sent.user("Go on.")
}

/// Something that a person may ask for: where, and with what.
fn wish(dice: &mut Dice, messages: usize) -> (&'static str, Value) {
    let at = dice.below(messages);
    match dice.below(9) {
        0 | 1 => ("clear", json!({"message": at})),
        2 => ("evict", json!({"message": at})),
        3 => ("restore", json!({"message": at})),
        4 => ("undo", json!({})),
        5 => ("pins", json!({"text": prose(dice.next() % 900, 30 + dice.below(200))})),
        6 => ("brief", json!({"text": prose(dice.next() % 900, 100 + dice.below(1_500))})),
        _ => ("compact", json!({})),
    }
}

struct Told {
    proxy: TestProxy,
    base: String,
    /// The counts of the system prompt and of the tools that were told so far.
    heads: HashMap<&'static str, BTreeSet<u64>>,
}

impl Told {
    fn insight(&mut self) -> Value {
        let seen = self.proxy.get(&format!("{}/insight", self.base)).ok().json();
        for region in ["system", "tools"] {
            self.heads.entry(region).or_default().insert(number(&seen["state"]["regions"][region]));
        }
        let wrong = contradictions(&seen);
        assert!(wrong.is_empty(), "{wrong:?}");
        // The list, the conversation and the report count the same rewrites.
        let listed = self.proxy.get("/windowsill/conversations").ok().json()["conversations"][0]["rewrites"].clone();
        let report = self.proxy.get("/windowsill/report").ok().json();
        let did = &seen["did"];
        assert_eq!((&listed, &report["rewrites"]), (&did["compactions"], &did["compactions"]));
        assert_eq!(report["kept_out_tokens"], did["freed_tokens"]);
        seen
    }

    /// Asks the price, does it, and looks at what is told then. `None` where it is refused.
    fn steered(&mut self, what: &str, body: &Value) -> Option<u64> {
        let before = self.insight();
        let ask = |more: Value| {
            let mut body = body.clone();
            more.as_object().unwrap().iter().for_each(|(k, v)| body[k] = v.clone());
            self.proxy.post(&format!("{}/{what}", self.base), &[], body.to_string().as_bytes())
        };
        let now = number(&before["state"]["prompt_tokens"]);
        let written =
            if what == "compact" { json!({"dry_run": true, "write_brief": true}) } else { json!({"dry_run": true}) };
        let price = ask(written);
        if price.status != 200 {
            return None;
        }
        let price = price.json();
        assert_eq!(number(&price["before"]), now, "{what}: the prompt now {price}");
        let done = ask(json!({})).ok().json();
        let seen = self.insight();
        let said = number(&price["after"]);
        let told = number(&seen["state"]["prompt_tokens"]);
        assert_eq!((told, number(&done["after"])), (said, said), "{what}: {price} {done}");
        let about = seen["state"]["prompt_tokens_source"].as_str().unwrap().starts_with("estimated");
        assert_eq!(about, price["counted"] == false, "{what}: {price}");
        let brief = |seen: &Value| number(&seen["state"]["regions"]["brief"]);
        if what == "pins" {
            assert!(brief(&seen) > brief(&before), "a pin stands in front of the brief: {before} {seen}");
            let history = |seen: &Value| number(&seen["state"]["regions"]["history"]);
            let (was, is) = (history(&before), history(&seen));
            assert!(was.abs_diff(is) <= 48 + was / 50, "a pin moves nothing else: {was} then {is}");
            let freed = |seen: &Value| number(&seen["did"]["freed_tokens"]);
            assert!(freed(&seen) <= freed(&before), "a pin frees nothing");
        }
        if now != said {
            let last = &seen["rewrites"].as_array().unwrap().last().unwrap()["data"];
            assert_eq!(
                (number(&last["before"]["prompt"]), number(&last["after"]["prompt"])),
                (now, said),
                "{what}: {last}"
            );
        }
        Some(said)
    }
}

#[test]
fn a_price_and_the_gauge_after_it_are_one_number_whatever_was_steered_before() {
    for (fake, kind) in servers() {
        let mut done = 0;
        for seed in 0..100 {
            let mut dice = Dice(seed);
            let toml = "[window]\nnum_ctx = 8192\n[context]\nbackground = false\n";
            let proxy = TestProxy::with(&[fake.url()], toml);
            let sent = begun(&mut dice);
            let answer = proxy.chat(&sent).ok();
            let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
            let base = format!("/windowsill/conversations/{id}");
            proxy.eventually(&format!("{base}/insight"), |seen| {
                seen["requests"].as_array().is_some_and(|r| r.len() == 1)
            });
            let mut it = Told { proxy, base, heads: HashMap::new() };
            it.insight();
            let mut last = None;
            for _ in 0..2 + dice.below(5) {
                let (what, body) = wish(&mut dice, sent.messages.len() - 1);
                last = it.steered(what, &body).or(last);
                done += usize::from(last.is_some());
            }
            assert_eq!(it.heads["system"].len(), 1, "{kind}, seed {seed}: {:?}", it.heads);
            // With the tool of ours, and without.
            assert!(it.heads["tools"].len() <= 2, "{kind}, seed {seed}: {:?}", it.heads);
            let Some(said) = last else { continue };
            it.proxy.chat(&sent).ok();
            let path = format!("{}/insight", it.base);
            it.proxy.eventually(&path, |seen| seen["requests"].as_array().is_some_and(|r| r.len() == 2));
            let seen = it.insight();
            assert_eq!(it.heads["system"].len(), 1, "{kind}, seed {seed}: {:?}", it.heads);
            let now = number(&seen["state"]["prompt_tokens"]);
            let rewritten = seen["requests"][1]["rewritten"] == true && seen["requests"][1]["action"] != "none";
            let forwarded = u64::from(tokens(&fake.last().json()));
            if kind == "counts" {
                assert_eq!(now, forwarded, "seed {seed}: what was forwarded");
            }
            if kind == "counts" && !rewritten {
                assert!(said.abs_diff(now) * 50 <= now, "{kind}, seed {seed}: {said} said, {now} then");
            }
        }
        assert!(done > 100, "{kind}: {done} were done");
    }
}

#[test]
fn what_is_told_of_a_rewrite_is_what_was_forwarded() {
    // One that counts before, and one that tells only with its replies.
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";
        let proxy = TestProxy::with(&[fake.url()], toml);
        let all = session(24);
        let (mut rewrites, mut systems, mut id) = (0, BTreeSet::new(), String::new());
        for (n, turn) in turns(&all).into_iter().enumerate() {
            let answer = proxy.chat(&turn).ok();
            id = answer.header("x-windowsill-conversation").unwrap().to_owned();
            let path = format!("/windowsill/conversations/{id}/insight");
            let seen = proxy.eventually(&path, |seen| seen["requests"].as_array().is_some_and(|r| r.len() == n + 1));
            let forwarded = u64::from(tokens(&fake.last().json()));
            assert_eq!(number(&seen["state"]["prompt_tokens"]), forwarded, "{kind:?}, request {n}");
            assert!(contradictions(&seen).is_empty(), "{:?}", contradictions(&seen));
            systems.insert(number(&seen["state"]["regions"]["system"]));
            if answer.action() != "none" {
                rewrites += 1;
                let last = &seen["rewrites"].as_array().unwrap().last().unwrap()["data"];
                assert_eq!(number(&last["after"]["prompt"]), forwarded, "{kind:?}, request {n}: {last}");
                let because = last["because"].to_string();
                let told = format!("-> {} tokens", last["prompt_tokens"]);
                assert!(kind == Kind::OpenAi || because.contains(&told), "{because}");
            }
        }
        assert!(rewrites > 2, "{rewrites}");
        assert_eq!(systems.len(), 1, "{kind:?}: one system prompt has one count: {systems:?}");
        // The same from the record alone, in another process.
        let said = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
        assert!(said.contains(&format!("{rewrites} rewrites freed")), "{said}");
    }
}

#[test]
fn a_system_prompt_keeps_its_count_after_a_restart() {
    let fake = Fake::start(Kind::OpenAi, 4096);
    let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let sent = rewritten();
    let path = |answer: &Answer| {
        format!("/windowsill/conversations/{}/insight", answer.header("x-windowsill-conversation").unwrap())
    };
    let requests = |n: usize| move |seen: &Value| seen["requests"].as_array().is_some_and(|r| r.len() == n);
    let answer = proxy.chat(&sent).ok();
    let first = proxy.eventually(&path(&answer), requests(1));
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
    let answer = proxy.chat(&sent.assistant("Read.").user(&prose(5, 3_000))).ok();
    let second = proxy.eventually(&path(&answer), requests(2));
    for region in ["system", "tools"] {
        assert_eq!(first["state"]["regions"][region], second["state"]["regions"][region], "{region}");
    }
}

#[test]
fn all_percentages_have_one_base() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nclear_at = 0.7\nsummarize_at = 0.8\nfold_at = \"line\"\n");
    let answer = proxy.chat(&chat().user("Hello.")).ok();
    let id = answer.header("x-windowsill-conversation").unwrap();
    let said = String::from_utf8(proxy.cli(&["context", id]).stdout).unwrap();
    for part in ["clear 70 %", "fold 80 %", "limit 100 %"] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
}

#[test]
fn one_model_has_one_name_and_what_cost_most_stands_first() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let all = session(20);
    let mut id = String::new();
    for (n, turn) in turns(&all).into_iter().enumerate() {
        // Ollama takes any of these for one model.
        let name = ["test-model", "Test-Model:latest", "test-model:latest"][n % 3];
        id = proxy.chat(&turn.with("model", json!(name))).ok().header("x-windowsill-conversation").unwrap().to_owned();
    }
    let large = chat().user(&prose(3, 9_000)).with("model", json!("another"));
    proxy.chat(&large).ok();
    proxy.chat(&large.assistant("Yes.").user("And?")).ok();
    let requests = turns(&all).len() + 2;
    let report = proxy.eventually("/windowsill/report", |report| report["requests"] == json!(requests));
    let names: Vec<&str> = report["models"].as_array().unwrap().iter().map(|m| m["model"].as_str().unwrap()).collect();
    assert_eq!(names, ["test-model:latest", "another:latest"], "{report}");
    assert!(!fake.summaries().is_empty(), "briefs were written, too");
    let seen = proxy.get(&format!("/windowsill/conversations/{id}/insight")).ok().json();
    assert!(seen["models"].as_array().unwrap().iter().all(|m| m["model"] == "test-model:latest"), "{}", seen["models"]);
    assert_eq!(seen["model"], "test-model:latest");
    let events = proxy.get("/windowsill/events?kind=model_usage,context_compaction").ok().json();
    let told: BTreeSet<&str> =
        events["events"].as_array().unwrap().iter().filter_map(|e| e["data"]["model"].as_str()).collect();
    assert_eq!(told.into_iter().collect::<Vec<_>>(), ["another:latest", "test-model:latest"]);
}

/// A llama-server with one model answers to every name, a router to aliases: the books know the model by what its server calls it.
#[test]
fn an_alias_is_no_other_model_in_any_book() {
    for router in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        fake.script(move |seen| match (seen.path(), router) {
            ("/v1/models" | "/models", _) => {
                let entry = json!({"id": MODEL, "aliases": ["short", "fast"], "status": {"value": "loaded"},
                    "meta": {"n_ctx": 4096, "n_ctx_train": 32_768, "size": 9}});
                Play::Json(200, json!({"object": "list", "data": [entry]}))
            }
            ("/props", true) => Play::Json(
                200,
                json!({"role": "router", "default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "build_info": "b1",
                    "model_path": "", "chat_template": ""}),
            ),
            _ => Play::Usual,
        });
        let toml = "[context]\nbackground = false\nfold_at = \"line\"\n";
        let proxy = TestProxy::with(&[fake.url()], toml);
        let all = session(20);
        let names = ["short", MODEL, "fast", if router { "short" } else { "whatever" }];
        let mut id = String::new();
        for (n, turn) in turns(&all).into_iter().enumerate() {
            let answer = proxy.chat(&turn.with("model", json!(names[n % 4]))).ok();
            id = answer.header("x-windowsill-conversation").unwrap().to_owned();
            // What is asked of the server stays what the client asked.
            assert_eq!(fake.last().json()["model"], names[n % 4]);
        }
        let requests = turns(&all).len();
        let report = proxy.eventually("/windowsill/report", |report| report["requests"] == json!(requests));
        let models: Vec<&str> =
            report["models"].as_array().unwrap().iter().map(|m| m["model"].as_str().unwrap()).collect();
        assert_eq!(models, [MODEL], "{report}");
        let seen = proxy.get(&format!("/windowsill/conversations/{id}/insight")).ok().json();
        assert_eq!(seen["model"], MODEL);
        let events = proxy.get("/windowsill/events").ok().json();
        let told: BTreeSet<&str> =
            events["events"].as_array().unwrap().iter().filter_map(|e| e["data"]["model"].as_str()).collect();
        assert_eq!(told.into_iter().collect::<Vec<_>>(), [MODEL], "router: {router}");
        let kinds: BTreeSet<&str> =
            events["events"].as_array().unwrap().iter().filter_map(|e| e["kind"].as_str()).collect();
        assert!(!kinds.contains("model_changed") && !kinds.contains("window_changed"), "{kinds:?}");
    }
}

#[test]
fn doctor_knows_that_the_running_windowsill_has_a_model() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.toml"), format!("listen = \"{}\"\n", proxy.address)).unwrap();
    let out = cli(dir.path(), &["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    let problems = told["problems"].as_array().unwrap();
    let of_servers = |p: &&Value| p["message"].as_str().unwrap().contains("no inference server was found");
    assert_eq!(problems.iter().find(of_servers), None, "{told}");
    let running = problems.iter().find(|p| p["message"].as_str().unwrap().contains("a windowsill is running")).unwrap();
    assert!(running["message"].as_str().unwrap().contains(&format!("at {}", fake.url())), "{running}");
    // A server may listen where every machine has one.
    if told["servers"].as_array().unwrap().is_empty() {
        let note = problems.iter().find(|p| p["message"].as_str().unwrap().contains("serves test-model")).unwrap();
        assert_eq!((&note["severity"], &told["ok"]), (&json!("note"), &json!(true)), "{told}");
    }
    drop(proxy);
    let alone: Value = serde_json::from_slice(&cli(dir.path(), &["doctor", "--json"]).stdout).unwrap();
    assert!(!alone["servers"].as_array().unwrap().is_empty() || alone["ok"] == false, "{alone}");
}
