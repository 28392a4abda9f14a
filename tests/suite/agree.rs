//! The page, the terminal and HTTP say the same of a conversation, and what they say is so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::support::*;

const RULE: &str = "Rule: the gate stays green.";

/// A talk that a small window holds.
fn talk(topic: &str) -> Chat {
    let mut sent = chat().system("You mend fences.").user(&format!("Let us plan the {topic}."));
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    sent
}

fn begun(proxy: &TestProxy, sent: &Chat) -> String {
    proxy.chat(sent).ok().header("x-windowsill-conversation").unwrap().to_owned()
}

fn ask(proxy: &TestProxy, id: &str, what: &str, body: &Value) -> Answer {
    proxy.post(&format!("/windowsill/conversations/{id}/{what}"), &[], body.to_string().as_bytes())
}

fn insight(proxy: &TestProxy, id: &str, enough: impl Fn(&Value) -> bool) -> Value {
    proxy.eventually(&format!("/windowsill/conversations/{id}/insight"), enough)
}

fn has_requests(n: usize) -> impl Fn(&Value) -> bool {
    move |seen| seen["requests"].as_array().is_some_and(|requests| requests.len() == n)
}

#[test]
fn a_prompt_whose_slot_was_taken_is_priced_whole() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let held = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&held);
    fake.script(move |seen| match seen.path() {
        "/slots" => {
            let held = told.load(Ordering::Relaxed);
            let slot = json!({"id": 0, "n_ctx": 4096, "is_processing": false, "id_task": 1, "n_prompt_tokens": held});
            Play::Json(200, json!([slot]))
        }
        _ => Play::Usual,
    });
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = talk("garden");
    let id = begun(&proxy, &sent);
    let first = insight(&proxy, &id, has_requests(1));
    held.store(first["requests"][0]["prompt_tokens"].as_u64().unwrap(), Ordering::Relaxed);
    assert_eq!((&first["others_since"], first["warm_tokens"].is_u64()), (&json!(0), true));
    // At the end of a longer talk: what stands before it is still held.
    sent = sent.call("c", "read", json!({})).result("c", &prose(9, 900));
    begun(&proxy, &sent);
    let second = insight(&proxy, &id, has_requests(2));
    held.store(second["requests"][1]["prompt_tokens"].as_u64().unwrap(), Ordering::Relaxed);
    let at = sent.messages.len() - 2;
    let clear = json!({"message": at, "dry_run": true});
    let price = ask(&proxy, &id, "clear", &clear).ok().json();
    let (again, after) = (price["evaluated_again"].as_u64().unwrap(), price["after"].as_u64().unwrap());
    assert!(again < after / 2, "{price}");
    // Another conversation is answered in the same slot.
    begun(&proxy, &chat().system("You bake.").user("A cake, please."));
    held.store(77, Ordering::Relaxed);
    let price = ask(&proxy, &id, "clear", &clear).ok().json();
    assert_eq!(price["evaluated_again"], price["after"], "{price}");
    assert!(price["note"].as_str().unwrap().contains("another prompt"), "{price}");
    let seen = insight(&proxy, &id, |seen| seen["others_since"] == 1);
    assert_eq!(seen["warm_tokens"], Value::Null);
}

/// A restart of windowsill loses no cache, and one of the server loses all of it: a price goes by what the server shows, and says
/// that it is not sure where that tells nothing.
#[test]
fn a_price_knows_who_was_restarted() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let slots = Arc::new(parking_lot::Mutex::new(json!([])));
    let told = Arc::clone(&slots);
    fake.script(move |seen| match seen.path() {
        "/slots" => Play::Json(200, told.lock().clone()),
        _ => Play::Usual,
    });
    let toml = "[context]\nbackground = false\n";
    let mut proxy = TestProxy::with(&[fake.url()], toml);
    let sent = talk("garden").call("c", "read", json!({})).result("c", &prose(9, 900));
    let id = begun(&proxy, &sent);
    let prompt = insight(&proxy, &id, has_requests(1))["requests"][0]["prompt_tokens"].clone();
    let slot =
        |held: &Value| json!([{"id": 0, "n_ctx": 4096, "is_processing": false, "id_task": 1, "n_prompt_tokens": held}]);
    let clear = json!({"message": sent.messages.len() - 2, "dry_run": true});
    let price = |proxy: &TestProxy| ask(proxy, &id, "clear", &clear).ok().json();
    *slots.lock() = slot(&prompt);
    let warm = price(&proxy);
    assert_eq!(warm["cache"], "held", "{warm}");
    assert!(warm["evaluated_again"].as_u64() < warm["after"].as_u64(), "{warm}");
    // Only windowsill was restarted.
    proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
    let again = price(&proxy);
    assert_eq!((&again["cache"], &again["evaluated_again"]), (&json!("held"), &warm["evaluated_again"]), "{again}");
    // The server was: none of its slots was ever used.
    *slots.lock() = json!([{"id": 0, "n_ctx": 4096, "is_processing": false}]);
    let gone = price(&proxy);
    assert_eq!((&gone["cache"], &gone["evaluated_again"]), (&json!("gone"), &gone["after"]), "{gone}");
    assert!(gone["note"].as_str().unwrap().contains("was started"), "{gone}");
    // Another prompt stands there: the server may keep this one in RAM.
    *slots.lock() = slot(&json!(77));
    let taken = price(&proxy);
    assert_eq!((&taken["cache"], &taken["evaluated_again"]), (&json!("unsure"), &taken["after"]), "{taken}");
    assert!(taken["note"].as_str().unwrap().contains("--cache-ram"), "{taken}");
    // It shows no slots, and nothing tells.
    *slots.lock() = json!([]);
    assert_eq!(price(&proxy)["cache"], "unsure");
    let out = proxy.cli(&["clear", &id, &(sent.messages.len() - 2).to_string(), "--dry-run"]);
    let words = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(words.contains("would read about "), "{words} {}", String::from_utf8_lossy(&out.stderr));
}

/// llama-server puts prompts aside in RAM, and tells nobody: an undo that goes back to one may cost next to nothing.
#[test]
fn the_price_of_an_undo_is_no_promise_before_a_llama_server() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let held = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&held);
    fake.script(move |seen| match seen.path() {
        "/slots" => Play::Json(
            200,
            json!([{"id": 0, "n_ctx": 4096, "is_processing": false, "id_task": 1,
                "n_prompt_tokens": told.load(Ordering::Relaxed)}]),
        ),
        _ => Play::Usual,
    });
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = talk("garden").call("c", "read", json!({})).result("c", &prose(9, 900));
    let id = begun(&proxy, &sent);
    let first = insight(&proxy, &id, has_requests(1))["client_tokens"].as_u64().unwrap();
    ask(&proxy, &id, "clear", &json!({"message": sent.messages.len() - 2})).ok();
    sent = sent.assistant("Read.").user("And now?");
    begun(&proxy, &sent);
    let seen = insight(&proxy, &id, has_requests(2));
    let second = seen["client_tokens"].as_u64().unwrap();
    assert!((first + 2..first + 40).contains(&second), "about two short messages more: {first} and {second}");
    held.store(seen["requests"][1]["prompt_tokens"].as_u64().unwrap(), Ordering::Relaxed);
    let price = ask(&proxy, &id, "undo", &json!({"dry_run": true})).ok().json();
    assert!(price["evaluated_again"].as_u64() > Some(0) && price["cache"] == "unsure", "{price}");
    assert!(price["note"].as_str().unwrap().contains("--cache-ram"), "{price}");
    ask(&proxy, &id, "undo", &json!({})).ok();
    // With nothing rewritten, the client has what the model sees.
    let seen = insight(&proxy, &id, |seen| seen["did"]["layers"]["undo"] == 1);
    assert_eq!(seen["client_tokens"], seen["state"]["prompt_tokens"], "{seen}");
    assert_eq!(seen["state"]["edits"], json!({}), "nothing is rewritten");
}

/// Seen with a real model: a history that was sent again was told to be larger by what its tools were estimated to take, its messages by
/// what few of them stood in the prompt, and its lines moved since "another profile or task holds".
#[test]
fn a_history_that_is_sent_again_is_told_by_the_same_numbers() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(
        &[fake.url()],
        "[context]\nbackground = false\nstrategy = \"truncate\"\nfold_at = \"line\"\nsummarize_at = 0.6\n",
    );
    let mut sent = talk("garden").tools();
    let id = begun(&proxy, &sent);
    let is_whole = |seen: &Value| {
        let path = format!("/windowsill/conversations/{id}/messages?limit=500");
        let list = proxy.get(&path).ok().json()["messages"].clone();
        // The reply was in no prompt yet.
        let body = list.as_array().unwrap().iter().filter(|m| m["at"].as_u64() < seen["state"]["messages"].as_u64());
        let sum: u64 = body.map(|message| message["tokens"].as_u64().unwrap()).sum();
        let regions = &seen["state"]["regions"];
        let head: u64 = ["system", "tools"].map(|of| regions[of].as_u64().unwrap()).iter().sum();
        let ours = seen["state"]["tools_of_ours"].as_u64().unwrap_or(0);
        let (whole, all) = (sum + head - ours, seen["client_tokens"].as_u64().unwrap());
        assert!(whole.abs_diff(all) * 33 <= all, "{sum} + {head} - {ours} = {whole}, and {all}: {list}");
    };
    let first = insight(&proxy, &id, has_requests(1));
    is_whole(&first);
    ask(&proxy, &id, "compact", &json!({})).ok();
    for n in 2..4 {
        begun(&proxy, &sent);
        let seen = insight(&proxy, &id, has_requests(n));
        assert_eq!(seen["client_tokens"], first["client_tokens"], "{n}");
        assert_eq!(seen["state"]["walls"]["moved"], Value::Null);
        is_whole(&seen);
    }
    // What was taken back stands behind the line, and it is said why it stays there.
    for n in 5..12 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    begun(&proxy, &sent);
    let folded = insight(&proxy, &id, has_requests(4));
    ask(&proxy, &id, "undo", &json!({})).ok();
    begun(&proxy, &sent);
    let seen = insight(&proxy, &id, has_requests(5));
    assert!(seen["state"]["prompt_tokens"].as_u64() > folded["state"]["prompt_tokens"].as_u64(), "{seen}");
    let (prompt, line) = (&seen["state"]["prompt_tokens"], &seen["state"]["lines"]["fold_at"]);
    let waits = seen["state"]["waits"].to_string();
    assert_eq!(prompt.as_u64() > line.as_u64(), waits.contains("was sent before"), "{waits} {prompt} {line}");
    assert!(prompt.as_u64() > line.as_u64(), "{prompt} {line}");
}

#[test]
fn a_fold_that_no_model_writes_has_no_price_of_writing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.set(|s| s.summary = String::new());
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut shed = chat().system("You paint sheds.").user("Which paint is best for a shed?");
    for n in 40..45 {
        shed = shed.assistant(&prose(n, 800)).user(&format!("And coat {n}?"));
    }
    let (id, other) = (begun(&proxy, &talk("garden")), begun(&proxy, &shed));
    assert_ne!(id, other);
    let price = |id: &str, more: &Value| ask(&proxy, id, "compact", more).ok().json();
    let first = price(&id, &json!({"dry_run": true}));
    assert!(first["brief_reads"].as_u64() > Some(0) && first["brief"].is_null(), "{first}");
    // It writes nothing of use, and is left out for a while, in each conversation.
    price(&id, &json!({"dry_run": true, "write_brief": true}));
    let asked = fake.summaries().len();
    assert!(asked > 0);
    // What it read is what was said.
    let events = proxy.get(&format!("/windowsill/events?kind=model_usage&conversation={id}")).ok().json();
    let summary = events["events"].as_array().unwrap().iter().find(|event| event["data"]["role"] == "summary").unwrap();
    assert_eq!(summary["data"]["prompt_tokens"], first["brief_reads"], "{summary}");
    let second = price(&other, &json!({"dry_run": true}));
    assert_eq!((&second["brief_reads"], &second["brief_seconds"]), (&Value::Null, &Value::Null), "{second}");
    assert!(second["brief"].is_string() && second["written_by_a_model"] == false, "{second}");
    let done = price(&other, &json!({}));
    assert_eq!((fake.summaries().len(), &done["written_by_a_model"]), (asked, &json!(false)));
}

#[test]
fn plan_counts_system_prompt_and_tools_as_context_does() {
    for kind in [Kind::OpenAi, Kind::LlamaServer] {
        let fake = Fake::start(kind, 4096);
        let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\n";
        let proxy = TestProxy::with(&[fake.url()], toml);
        let sent = talk("garden").tools();
        let id = begun(&proxy, &sent);
        let seen = insight(&proxy, &id, has_requests(1));
        let file = proxy.data().join("request.json");
        std::fs::write(&file, sent.body()).unwrap();
        let out = proxy.cli(&["plan", file.to_str().unwrap(), "--json"]);
        let plan: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
        for region in ["system", "tools"] {
            assert_eq!(plan["before"][region], seen["state"]["regions"][region], "{kind:?}, {region}: {plan}");
        }
    }
}

#[test]
fn a_running_request_says_what_it_is_at() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let (brief, reply) = (Gate::default(), Gate::default());
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut sent = talk("garden");
    let id = begun(&proxy, &sent);
    let (for_brief, for_reply) = (brief.clone(), reply.clone());
    fake.script(move |seen| {
        if seen.is_summary() {
            return Play::Wait(for_brief.clone(), Box::new(Play::Usual));
        }
        if seen.is_main() { Play::Wait(for_reply.clone(), Box::new(Play::Usual)) } else { Play::Usual }
    });
    for n in 0..10 {
        sent = sent.assistant(&prose(100 + n, 900)).user(&format!("Next {n}?"));
    }
    let mut under_way = proxy.begin(&sent);
    let at = |phase: &'static str| {
        let list = proxy.eventually("/windowsill/conversations", |list| {
            list["conversations"].as_array().unwrap().iter().any(|row| row["under_way"]["phase"] == phase)
        });
        let row = list["conversations"].as_array().unwrap().iter().find(|row| row["id"] == id.as_str()).unwrap();
        assert_eq!((&row["under_way"]["phase"], &row["under_way"]["requests"]), (&json!(phase), &json!(1)), "{row}");
        row["under_way"]["since_ms"].as_i64().unwrap()
    };
    let since = at("brief");
    brief.open();
    assert!(at("waiting").abs_diff(since) < 5_000, "it is one request");
    reply.open();
    under_way.answer().ok();
    proxy.eventually("/windowsill/conversations", |list| {
        list["conversations"].as_array().unwrap().iter().all(|row| row["under_way"].is_null())
    });
}

#[test]
fn the_message_that_carries_a_pin_or_a_brief_says_so() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    // Beside a system prompt of some length, a person's fold leaves the first message where it is.
    let mut sent = chat().system(&prose(1, 600)).user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = begun(&proxy, &sent);
    let base = format!("/windowsill/conversations/{id}/messages");
    let became = || {
        let page = proxy.get(&base).ok().json();
        page["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["became"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let same = became();
    assert!(same.iter().all(|became| became == "same"), "{same:?}");
    ask(&proxy, &id, "pins", &json!({"text": RULE})).ok();
    let at = became().iter().position(|became| became == "with_pins").expect("it stands behind a message");
    let told = proxy.get(&format!("{base}/{at}")).ok().json();
    assert!(told["edits"][0]["kind"] == "carried" && told["edits"][0]["text"].to_string().contains(RULE), "{told}");
    ask(&proxy, &id, "compact", &json!({})).ok();
    let all = became();
    assert_eq!(all.iter().filter(|became| *became == "with_brief").count(), 1, "{all:?}");
    let folded = all.iter().position(|became| became == "folded").unwrap();
    let told = proxy.get(&format!("{base}/{folded}")).ok().json();
    let why = told["edits"][0]["why"].as_str().unwrap();
    assert!(why.contains("as you asked"), "who made the fold: {why}");
    // A filter for what is not as it came finds it, too.
    let changed = proxy.get(&format!("{base}?changed=true")).ok().json();
    assert!(changed["messages"].as_array().unwrap().iter().any(|m| m["became"] == "with_brief"), "{changed}");
}

/// Before a server that counts, the share of a brief is no estimate: what is wrong with one would be told of the history.
#[test]
fn a_brief_is_counted_by_the_server() {
    const SAID_BEHIND: &str = "Understood. I have the summary of the earlier conversation and continue from here.";
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = chat().system(&prose(1, 600)).user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = begun(&proxy, &sent);
    let folded = ask(&proxy, &id, "compact", &json!({})).ok().json();
    let brief = folded["brief"].as_str().unwrap();
    let alone = |text: &str| u64::from(tokens(&json!({"messages": [{"role": "user", "content": text}]})));
    let counted = [brief.to_owned(), format!("{brief}{SAID_BEHIND}")].map(|text| alone(&text) + 1 - alone("."));
    let seen = insight(&proxy, &id, has_requests(1));
    let told = seen["state"]["regions"]["brief"].as_u64().unwrap();
    assert!(counted.contains(&told), "{told} and {counted:?}");
    let is_brief = |seen: &Seen| seen.messages().len() == 1 && text(&seen.messages()[0]).starts_with(&brief[..40]);
    let is_counted = |seen: &Seen| seen.path().ends_with("input_tokens") && is_brief(seen);
    assert_eq!(fake.all().iter().filter(|seen| is_counted(seen)).count(), 1);
}

#[test]
fn errors_about_ids_say_which_are_meant_and_speak_to_people() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let id = begun(&proxy, &chat().system("a").user("One."));
    let one = ask(&proxy, &id[..7], "undo", &json!({}));
    assert!(one.status == 404 && one.error().1.contains(&id), "{}", one.text());
    begun(&proxy, &chat().system("b").user("Two."));
    let out = proxy.cli(&["undo", "c"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("2 conversations have ids that begin with `c`"), "{said}");
    assert!(said.contains(&id) && said.contains("more of the id"), "{said}");
    for path in [
        "/windowsill/conversations/nope",
        "/windowsill/conversations/nope/insight",
        "/windowsill/search?query=a&conversation=nope",
    ] {
        let (_, message) = proxy.get(path).error();
        assert!(!message.contains("GET ") && message.contains("Hint"), "{path}: {message}");
    }
    // The proxy tells what the beginning of an id means, wherever its record is.
    let elsewhere = proxy.data().join("elsewhere");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
    command.env("WINDOWSILL_LISTEN", proxy.address.to_string()).arg("--data-dir").arg(elsewhere);
    let out = command.args(["pause", &id[..7]]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = proxy.cli(&["undo", "nope"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("no conversation `nope`") && said.contains("hint: "), "{said}");
}

/// The first count of a brief is of another time than that of what is put in front of it: the server counts more by now.
#[test]
fn a_pin_leaves_the_count_of_the_brief_behind_it() {
    let fake = Fake::start(Kind::OpenAi, 4096);
    let percent = Arc::new(AtomicU64::new(170));
    let told = Arc::clone(&percent);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let prompt = u64::from(tokens(&seen.json())) * told.load(Ordering::Relaxed) / 100;
        let message = json!({"role": "assistant", "content": "Yes."});
        Play::Json(
            200,
            json!({"id": "x", "object": "chat.completion", "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}}),
        )
    });
    let toml = "[window]\nnum_ctx = 8192\n[context]\nbackground = false\nstrategy = \"truncate\"\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let mut sent = talk("garden");
    let id = begun(&proxy, &sent);
    insight(&proxy, &id, has_requests(1));
    ask(&proxy, &id, "compact", &json!({})).ok();
    for (n, counted) in [170, 100, 100].into_iter().enumerate() {
        percent.store(counted, Ordering::Relaxed);
        sent = sent.assistant("Yes.").user(&prose(60 + n as u64, 1_500));
        begun(&proxy, &sent);
        insight(&proxy, &id, has_requests(n + 2));
    }
    let region = |seen: &Value, name: &str| seen["state"]["regions"][name].as_i64().unwrap();
    let before = insight(&proxy, &id, |_| true);
    assert!(region(&before, "brief") > 100, "{before}");
    let price = ask(&proxy, &id, "pins", &json!({"text": RULE})).ok().json();
    let after = insight(&proxy, &id, |_| true);
    let grown = price["after"].as_i64().unwrap() - price["before"].as_i64().unwrap();
    let of = |name: &str| region(&after, name) - region(&before, name);
    assert!(of("brief") > 0 && (of("brief") - grown).abs() <= 4, "brief {}, prompt {grown}", of("brief"));
    assert!(of("history").abs() <= 4 && of("system") == 0, "history {}, system {}", of("history"), of("system"));
}

/// One message, one pin and one history have one size each, wherever they are told, and the same with every look.
#[test]
fn a_size_is_the_same_everywhere() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = talk("garden").call("c", "read", json!({"path": "a.rs"})).result("c", &prose(9, 900));
    let id = begun(&proxy, &sent);
    let first = insight(&proxy, &id, has_requests(1));
    assert_eq!(first["client_tokens"], first["state"]["prompt_tokens"], "nothing left the prompt: {first}");
    ask(&proxy, &id, "pins", &json!({"text": RULE})).ok();
    // The result is what is largest.
    let at = sent.messages.len() - 2;
    ask(&proxy, &id, "pins", &json!({"message": at})).ok();
    let messages = || proxy.get(&format!("/windowsill/conversations/{id}/messages")).ok().json()["messages"].clone();
    let size = |at: usize| messages()[at]["tokens"].clone();
    let pins = || proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json();
    let (told, pinned) = (size(at), pins());
    let of = |what: &Value| pinned["pins"].as_array().unwrap().iter().find(|p| p["message"] == *what).unwrap().clone();
    assert_eq!(of(&json!(at))["tokens"], told, "{pinned}");
    let sum: u64 = pinned["pins"].as_array().unwrap().iter().map(|p| p["tokens"].as_u64().unwrap()).sum();
    assert_eq!(pinned["tokens"], sum, "{pinned}");
    let seen = insight(&proxy, &id, |_| true);
    let largest = seen["largest"].as_array().unwrap().iter().find(|m| m["at"] == at).expect("it is one of the largest");
    assert_eq!((&largest["tokens"], &largest["view_tokens"]), (&told, &told), "{largest}");
    // The parts of the history are the sizes of its messages, added up.
    let by = |role: &str| {
        let all = messages();
        let own = all.as_array().unwrap().iter().filter(|m| m["role"] == role);
        own.map(|m| m["view_tokens"].as_u64().unwrap()).sum::<u64>()
    };
    for (role, part) in [("user", "user"), ("assistant", "assistant"), ("tool", "results")] {
        let (sum, told) = (by(role), seen["history"][part].as_u64().unwrap());
        // The last reply is listed, and was in no prompt yet.
        assert!(sum.abs_diff(told) <= told / 20 + 12, "{part}: {sum} and {told}");
    }
    for n in 0..4 {
        sent = sent.assistant("Yes.").user(&prose(70 + n, 400));
        begun(&proxy, &sent);
        insight(&proxy, &id, has_requests(n as usize + 2));
        assert_eq!(size(at), told, "it is the same message");
    }
    // Without its server, the record says the same.
    let with = pins();
    drop(fake);
    assert_eq!(pins()["pins"], with["pins"]);
}

/// SmolLM2's template, as that of many small models, writes no calls: their arguments are part of no message's size, of no price, and
/// of nobody's share.
#[test]
fn calls_that_no_template_writes_are_part_of_no_size() {
    let fake = Fake::start(Kind::LlamaServer, 6000);
    fake.set(|s| s.writes_calls = false);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = chat().system("You mend fences.").user(&prose(90, 1_600));
    for n in 0..12 {
        let arguments = json!({"path": format!("src/part_{n}.rs"), "text": prose(n + 40, 400)});
        sent = sent.assistant(&prose(n + 20, 300)).user(&prose(n + 60, 300));
        sent = sent.call(&format!("call_{n}"), "write", arguments).result(&format!("call_{n}"), &prose(n, 400));
    }
    let id = begun(&proxy, &sent);
    let seen = insight(&proxy, &id, has_requests(1));
    let told = proxy.get(&format!("/windowsill/conversations/{id}/messages?limit=100")).ok().json();
    let of = |role: &str| -> Vec<u64> {
        let messages = told["messages"].as_array().unwrap()[..sent.messages.len() - 1].iter();
        messages.filter(|m| m["role"] == role).map(|m| m["view_tokens"].as_u64().unwrap()).collect()
    };
    let mut all = 0;
    for (role, part) in [("user", "user"), ("assistant", "assistant"), ("tool", "results")] {
        let (sum, told) = (of(role).iter().sum::<u64>(), seen["history"][part].as_u64().unwrap());
        assert!(sum.abs_diff(told) <= told / 20 + 12, "{part}: {sum} and {told}");
        all += sum;
    }
    let history = seen["state"]["regions"]["history"].as_u64().unwrap();
    assert!(all.abs_diff(history) <= history / 20, "{all} of {history}");
    // Every second message of the assistant has calls alone, of 400 letters each.
    assert!(of("assistant").iter().filter(|tokens| **tokens < 12).count() == 12, "{:?}", of("assistant"));
    begun(&proxy, &sent.assistant("Yes.").user("Go on."));
    // It is asked once.
    let counted = |seen: &Seen| seen.path().ends_with("input_tokens") && seen.messages().len() == 3;
    assert_eq!(fake.all().iter().filter(|seen| counted(seen)).count(), 2);
}

/// A server that is busy says nothing of its template, and one that was away may have another when it is back.
#[test]
fn whether_calls_are_written_is_asked_until_it_is_told_and_again_after_a_restart() {
    let fake = Fake::start(Kind::LlamaServer, 6000);
    fake.set(|s| s.writes_calls = false);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    // Each with a system prompt of its own, which is counted.
    let sent = |system: &str| {
        let sent = chat().system(system).user(&prose(90, 1_600));
        (0..12).fold(sent, |sent, n| {
            let (call, arguments) = (format!("call_{n}"), json!({"path": "src/part.rs", "text": prose(n + 40, 400)}));
            sent.call(&call, "write", arguments).result(&call, &prose(n, 400))
        })
    };
    let is_asked = |seen: &Seen| seen.path().ends_with("input_tokens") && seen.messages().len() == 3;
    let asked = || fake.all().iter().filter(|seen| is_asked(seen)).count();
    // The least that is told of a message that has calls alone.
    let least_of_a_call = |id: &str| {
        let told = proxy.eventually(&format!("/windowsill/conversations/{id}/messages?limit=100"), |_| true);
        // The last one is the reply.
        let messages = told["messages"].as_array().unwrap().iter().take(25);
        messages.filter(|m| m["role"] == "assistant").filter_map(|m| m["view_tokens"].as_u64()).min().unwrap()
    };
    fake.script(move |seen| match is_asked(seen) {
        true => {
            Play::Json(503, json!({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}))
        }
        false => Play::Usual,
    });
    begun(&proxy, &sent("You mend fences."));
    assert_eq!(asked(), 1);
    fake.script(|_| Play::Usual);
    let id = begun(&proxy, &sent("You mend gates."));
    assert_eq!((asked(), least_of_a_call(&id) < 12), (3, true));
    begun(&proxy, &sent("You mend doors."));
    assert_eq!(asked(), 3, "it is known");
    fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    proxy.chat(&sent("You mend walls."));
    fake.script(|_| Play::Usual);
    fake.set(|s| s.writes_calls = true);
    let id = begun(&proxy, &sent("You mend roofs."));
    assert_eq!(asked(), 5);
    assert!(least_of_a_call(&id) > 60, "{}", least_of_a_call(&id));
    // A template that takes no calls has none to write.
    fake.script(|seen| if seen.is_main() { Play::Cut(Vec::new()) } else { Play::Usual });
    proxy.chat(&sent("You mend pipes."));
    fake.script(move |seen| match is_asked(seen) {
        true => Play::Json(
            400,
            json!({"error": {"code": 400, "message": "No tools here.", "type": "invalid_request_error"}}),
        ),
        false => Play::Usual,
    });
    begun(&proxy, &sent("You mend wells."));
    begun(&proxy, &sent("You mend boats."));
    assert_eq!(asked(), 6);
}

/// What a client has is what it sent last, whatever was rewritten before: its history may come in parts that are rewritten each from
/// the full text.
#[test]
fn what_the_client_has_is_counted_once() {
    // Where nothing left the prompt, it is what the server counted.
    for kind in [Kind::OpenAi, Kind::Ollama] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::with(&[fake.url()], "[window]\nnum_ctx = 8192\n[context]\nbackground = false\n");
        for (n, more) in ["", "one", "two"].into_iter().enumerate() {
            let id = begun(&proxy, &(0..n).fold(talk("garden"), |sent, _| sent.assistant(more).user(more)));
            let seen = insight(&proxy, &id, |seen| seen["requests"][0].is_object());
            assert_eq!(seen["client_tokens"], seen["state"]["prompt_tokens"], "{kind:?} {n}: {seen}");
        }
    }
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let toml = "[context]\nbackground = false\nevict_over = 500\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let mut sent = chat().system("You mend fences.").user("Read all of it.");
    let mut parts = Vec::new();
    for n in 0..3 {
        let call = format!("call_{n}");
        sent = sent.call(&call, "read", json!({"path": format!("{n}.md")}));
        // It ends with a call that nobody has answered yet.
        parts.push(sent.clone());
        sent = sent.result(&call, &prose(n, 4_000));
    }
    parts.push(sent.clone());
    for (n, part) in [&parts[1], &parts[3]].into_iter().enumerate() {
        let id = begun(&proxy, part);
        let seen = insight(&proxy, &id, |seen| {
            seen["did"]["compactions"].as_u64() > Some(0) && seen["requests"][0].is_object()
        });
        let file = proxy.data().join("request.json");
        std::fs::write(&file, part.body()).unwrap();
        let out = proxy.cli(&["count", file.to_str().unwrap(), "--json"]);
        let count: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
        let has = seen["client_tokens"].as_u64().unwrap();
        let counted = count["total"].as_u64().unwrap_or_else(|| panic!("{count}"));
        assert!(has.abs_diff(counted) * 20 <= counted, "request {n}: {has}, and {counted} counted");
        assert!(has > seen["state"]["prompt_tokens"].as_u64().unwrap(), "{seen}");
        let usage =
            proxy.eventually("/windowsill/events?kind=model_usage", |all| all["events"].as_array().unwrap().len() > n);
        let told: u64 =
            usage["events"].as_array().unwrap().iter().map(|e| e["data"]["client_tokens"].as_u64().unwrap()).sum();
        assert_eq!(proxy.get("/windowsill/report").ok().json()["sent_tokens"], told, "{usage}");
        assert_eq!(usage["events"][n]["data"]["client_tokens"], has, "{usage}");
    }
}

/// A cache is that of the server that answered: another one, or none, has nothing of it.
#[test]
fn another_server_holds_nothing_of_a_conversation() {
    let (one, other) = (Fake::start(Kind::LlamaServer, 4096), Fake::start(Kind::LlamaServer, 4096));
    let named = |name: &str, fake: &Fake| format!("[[upstream]]\nname = \"{name}\"\nurl = \"{}\"\n", fake.url());
    let toml = |of: &str| format!("[context]\nbackground = false\n{of}");
    let mut proxy = TestProxy::with(&[], &toml(&named("one", &one)));
    let sent = talk("garden").call("c", "read", json!({})).result("c", &prose(9, 900));
    let id = begun(&proxy, &sent);
    let warm = insight(&proxy, &id, has_requests(1));
    assert_eq!(warm["warm_tokens"], warm["state"]["prompt_tokens"]);
    proxy = TestProxy::at(proxy.stop(), &[], &toml(&named("other", &other)));
    assert_eq!(insight(&proxy, &id, has_requests(1))["warm_tokens"], Value::Null);
    let clear = json!({"message": sent.messages.len() - 2, "dry_run": true});
    let price = ask(&proxy, &id, "clear", &clear).ok().json();
    assert_eq!((&price["cache"], &price["evaluated_again"]), (&json!("gone"), &price["after"]), "{price}");
    assert!(price["note"].as_str().unwrap().starts_with("Another server answered"), "{price}");
    // Behind none, nothing holds anything either.
    proxy = TestProxy::at(proxy.stop(), &[], "");
    assert_eq!(insight(&proxy, &id, has_requests(1))["warm_tokens"], Value::Null);
    // The one that answered still has it.
    proxy = TestProxy::at(proxy.stop(), &[], &toml(&named("one", &one)));
    assert!(insight(&proxy, &id, has_requests(1))["warm_tokens"].is_u64());
}

/// The last reply is a message wherever messages are counted, and what cannot be done with it is said of it.
#[test]
fn messages_are_counted_the_same_everywhere() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let sent = talk("garden");
    let id = begun(&proxy, &sent);
    let base = format!("/windowsill/conversations/{id}");
    let rows = proxy
        .eventually(&format!("{base}/messages"), |page| page["total"].as_u64() == Some(sent.messages.len() as u64));
    let total = rows["total"].as_u64().unwrap();
    let listed = proxy.get("/windowsill/conversations").ok().json()["conversations"][0]["messages"].clone();
    assert_eq!((rows["messages"].as_array().unwrap().len() as u64, &listed), (total, &json!(total)), "{rows}");
    assert_eq!(insight(&proxy, &id, |_| true)["messages"], total);
    let page = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(page.contains(&format!("{total} messages")), "{page}");
    for (what, status) in [("pins", 404), ("restore", 404), ("clear", 404), ("evict", 404)] {
        let at = |at: u64| ask(&proxy, &id, what, &json!({"message": at}));
        let reply = at(total - 1);
        assert!(reply.status == status && reply.error().1.contains("is the last reply"), "{what}: {}", reply.text());
        let behind = at(total).error().1;
        assert!(behind.contains(&format!("has messages 0 to {}", total - 1)), "{what}: {behind}");
    }
    let (_, message) = proxy.get(&format!("{base}/messages/{total}")).error();
    assert!(message.contains(&format!("has messages 0 to {}", total - 1)), "{message}");
}

/// A request that keeps more for its reply has its lines elsewhere, and says why.
#[test]
fn walls_that_move_say_why() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let lines = "clear_at = 0.35\nclear_to = 0.25\nsummarize_at = 0.5\nsummarize_to = 0.3\n";
    let proxy = TestProxy::with(&[fake.url()], &format!("[context]\nbackground = false\n{lines}"));
    let sent = chat().system(&prose(1, 1_200)).user("Hello?");
    let id = begun(&proxy, &sent.clone().with("max_tokens", json!(64)));
    let first = insight(&proxy, &id, has_requests(1));
    assert_eq!(first["state"]["walls"]["moved"], Value::Null, "{}", first["state"]);
    let next = sent.assistant("Hello! How can I help you today?").user("How are you?");
    begun(&proxy, &next);
    let second = insight(&proxy, &id, has_requests(2));
    let why = second["state"]["walls"]["moved"].as_str().expect("they moved").to_owned();
    assert!(why.contains("the reply may take 1,024 tokens now, and 64 before"), "{why}");
    let out = proxy.cli(&["context", &id]);
    let page = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(page.contains(&why), "{page}");
}
