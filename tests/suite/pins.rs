//! What is pinned holds: through folds and clears, over restarts, in forks; it is listed, priced, refused where it would take too
//! much, and can be taken back.

use serde_json::{Value, json};

use super::support::*;

const RULE: &str = "Rule: the gate stays green.";

/// A long talk in a small window, before it is folded.
fn talk() -> Chat {
    let mut sent = chat().system("s").user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    sent
}

struct Pinned {
    fake: Fake,
    proxy: TestProxy,
    base: String,
}

impl Pinned {
    fn of(window: u32, toml: &str, sent: &Chat) -> Pinned {
        let fake = Fake::start(Kind::LlamaServer, window);
        let proxy = TestProxy::with(&[fake.url()], toml);
        let id = proxy.chat(sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
        Pinned { fake, proxy, base: format!("/windowsill/conversations/{id}") }
    }

    fn ask(&self, what: &str, body: &Value) -> Answer {
        self.proxy.post(&format!("{}/{what}", self.base), &[], body.to_string().as_bytes())
    }

    fn unpin(&self, number: u64) -> Answer {
        let json = [("Content-Type", "application/json")];
        request(self.proxy.address, "DELETE", &format!("{}/pins/{number}", self.base), &json, b"{}")
    }

    fn pins(&self) -> Value {
        self.proxy.get(&format!("{}/pins", self.base)).ok().json()
    }

    /// Sends the history and returns everything that is forwarded of it.
    fn forwarded(&self, sent: &Chat) -> String {
        self.proxy.chat(sent).ok();
        self.fake.last().messages().iter().map(|m| text(m) + "\n").collect()
    }
}

#[test]
fn a_pinned_text_is_read_from_the_next_request_on_and_through_every_fold() {
    let mut sent = talk();
    let mut it = Pinned::of(4096, "", &sent);
    let price = it.ask("pins", &json!({"text": RULE, "dry_run": true})).ok().json();
    assert!(
        price["evaluated_again"].as_u64() > Some(0) && price["after"].as_u64() > price["before"].as_u64(),
        "{price}"
    );
    assert_eq!(it.pins()["pins"], json!([]), "the price changes nothing");
    let done = it.ask("pins", &json!({"text": RULE})).ok().json();
    assert_eq!(done["pin"], 1);
    sent = sent.assistant("Yes.").user("And now?");
    assert!(it.forwarded(&sent).contains(RULE), "with the next request");
    assert_eq!(it.ask("pins", &json!({"text": RULE})).error().0, "nothing_to_do");
    for n in 0..24 {
        sent = sent.assistant(&prose(100 + n, 900)).user(&format!("Next {n}?"));
        let seen = it.forwarded(&sent);
        assert_eq!(seen.matches(RULE).count(), 1, "turn {n}: {seen}");
    }
    let folds = it.proxy.get("/windowsill/events?kind=context_compaction").ok().json();
    let folds = folds["events"].as_array().unwrap().iter().filter(|e| e["data"]["asked_by"].is_null()).count();
    assert!(folds >= 2, "{folds} folds");
    // The same bytes before and after a restart, and the pin goes on.
    let before = it.fake.last().body.clone();
    let dir = it.proxy.stop();
    it.proxy = TestProxy::at(dir, &[it.fake.url()], "");
    it.forwarded(&sent);
    assert_eq!(String::from_utf8_lossy(&it.fake.last().body), String::from_utf8_lossy(&before));
    let pins = it.pins();
    assert_eq!((&pins["pins"][0]["text"], &pins["pins"][0]["stands"]), (&json!(RULE), &json!("brief")), "{pins}");
    assert!(pins["tokens"].as_u64() > Some(0) && pins["most"] == 1024 && pins["most_each"] == 409, "{pins}");
    // A fork takes it along.
    let mut fork = sent.clone();
    fork.messages.truncate(fork.messages.len() - 9);
    let fork = fork.user("Something else?");
    assert!(it.forwarded(&fork).contains(RULE));
    it.unpin(1).ok();
    assert_eq!(it.pins()["pins"], json!([]));
    let sent = sent.assistant("Well.").user("Still?");
    assert!(!it.forwarded(&sent).contains(RULE), "taken back");
    assert_eq!(it.unpin(1).status, 404);
}

#[test]
fn a_pinned_message_stays_where_it_is_whole_steps_only() {
    let secret = "the deploy key is kept in vault 7";
    let mut sent = chat().system("s").user("Begin.").step(1, &format!("{} {secret}", prose(1, 600)));
    for n in 2..5 {
        sent = sent.step(n, &prose(n as u64, 900));
    }
    let sent = sent.assistant("Done.").user("Go on.").tools();
    let it = Pinned::of(4096, "", &sent);
    let at = sent.messages.iter().position(|m| text(m).contains(secret)).unwrap() - 1;
    it.ask("pins", &json!({"message": at})).ok();
    let mut sent = sent;
    for n in 10..40 {
        sent = sent.step(n, &prose(n as u64, 900));
        let seen = it.forwarded(&sent);
        assert!(seen.contains(secret), "step {n}");
        assert_eq!(faults(&sent.value(), &it.fake.last().json()), Vec::<String>::new());
    }
    let pins = it.pins();
    assert_eq!((&pins["pins"][0]["message"], &pins["pins"][0]["stands"]), (&json!(at), &json!("history")), "{pins}");
    let view = it.proxy.get(&format!("{}/view", it.base)).ok().json();
    let fold = view["edits"].as_array().unwrap().iter().find(|e| e["rule"] == "fold").expect("it was folded");
    assert!(fold["kept"].as_array().unwrap().contains(&json!(at)), "{fold}");
}

#[test]
fn lines_of_a_pattern_and_results_that_are_never_cleared_hold_too() {
    let toml = "[[pin]]\nmatch = '(?i)^rule:'\n[context]\nnever_clear = ['charter']\n";
    let mut sent = chat().system("s").user(&format!("Let us begin.\n{RULE}\nAnd be quick."));
    sent = sent.assistant("Yes.").user("Read the charter.");
    sent = sent.call("c1", "charter", json!({})).result("c1", "Article 1: nobody feeds the cat.");
    sent = sent.assistant("Read.").user("rule: no shouting.");
    let it = Pinned::of(4096, toml, &sent);
    for n in 0..30 {
        sent = sent.assistant(&prose(n, 900)).user(&format!("Next {n}?"));
        let seen = it.forwarded(&sent);
        for held in [RULE, "rule: no shouting.", "nobody feeds the cat"] {
            assert!(seen.contains(held), "turn {n} lacks {held:?}: {seen}");
        }
    }
    let pins = it.pins();
    assert_eq!(pins["pins"].as_array().unwrap().len(), 2, "{pins}");
    assert!(pins["pins"][1]["by"].as_str().unwrap().contains("config.toml"), "{pins}");
}

#[test]
fn what_waits_for_a_break_costs_nothing_and_comes_with_it() {
    let mut sent = talk();
    let it = Pinned::of(4096, "", &sent);
    let price = it.ask("pins", &json!({"text": RULE, "when": "next_break"})).ok().json();
    assert_eq!((&price["evaluated_again"], &price["when"]), (&json!(0), &json!("next_break")));
    it.ask("compact", &json!({"focus": "the gate", "when": "next_break"})).ok();
    assert_eq!(it.ask("undo", &json!({"when": "next_break"})).status, 409, "nothing was rewritten");
    sent = sent.assistant("Yes.").user("And now?");
    assert!(!it.forwarded(&sent).contains(RULE), "not yet");
    assert_eq!(it.pins()["pins"][0]["stands"], "waits");
    assert_eq!(it.pins()["waiting"].as_array().unwrap().len(), 1);
    let seen = it.proxy.get(&format!("{}/insight", it.base)).ok().json();
    let waits = seen["state"]["waits"].to_string();
    assert!(waits.contains("A focus of yours waits for the next fold") && !waits.contains("next rewrite"), "{waits}");
    // To pin a message that stands there rewrites nothing: what waits goes on waiting.
    let price = it.ask("pins", &json!({"message": 0})).ok().json();
    assert_eq!((&price["evaluated_again"], &price["before"]), (&json!(0), &price["after"]), "{price}");
    assert_eq!(it.pins()["pins"][0]["stands"], "waits");
    for n in 0..12 {
        sent = sent.assistant(&prose(50 + n, 900)).user(&format!("Next {n}?"));
        it.forwarded(&sent);
    }
    assert_eq!(it.pins()["pins"][0]["stands"], "brief");
    assert_eq!(it.pins()["waiting"], json!([]), "the fold had its focus");
    // One fold had it, and says so.
    it.proxy.eventually(&format!("{}/insight", it.base), |seen| {
        let rewrites = seen["rewrites"].as_array().unwrap();
        rewrites.iter().filter(|rewrite| rewrite["data"]["focus"] == "the gate").count() == 1
    });
}

#[test]
fn a_pin_that_takes_too_much_or_says_nothing_is_refused_with_numbers() {
    let sent = talk();
    let it = Pinned::of(4096, "", &sent);
    for (body, status, says) in [
        (json!({"text": "  \n"}), 400, "empty"),
        (json!({"text": prose(1, 9_000)}), 400, "409"),
        (json!({"message": 99}), 404, "99"),
        (json!({}), 400, "text or a message"),
        (json!({"text": "a", "message": 1}), 400, "text or a message"),
        (json!({"text": "a", "when": "later"}), 400, "later"),
    ] {
        let answer = it.ask("pins", &body);
        let (_, message) = answer.error();
        assert!(answer.status == status && message.contains(says), "{status}: {message}");
    }
    let mut refused = None;
    for n in 0..20 {
        let answer = it.ask("pins", &json!({"text": prose(n, 1_000)}));
        if answer.status != 200 {
            refused = Some(answer.error().1);
            break;
        }
    }
    let refused = refused.expect("a quarter of the window is the most");
    assert!(refused.contains("1,024") && refused.contains("4,096"), "{refused}");
    // All of them stand in the prompt, and it still fits.
    let sent = sent.assistant("Yes.").user("And now?");
    it.proxy.chat(&sent).ok();
}

#[test]
fn the_command_line_pins_lists_and_takes_back() {
    let sent = talk();
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let answer =
        request(served.address, "POST", "/v1/chat/completions", &[("Content-Type", "application/json")], &sent.body());
    let id = answer.ok().header("x-windowsill-conversation").unwrap().to_owned();
    let listen = format!("listen = \"{}\"\n", served.address);
    let config = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(dir.path().join("config.toml"), config.replace("listen = \"127.0.0.1:0\"\n", &listen)).unwrap();
    let run = |args: &[&str]| {
        let out = cli(dir.path(), args);
        (
            out.status.code().unwrap(),
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
        )
    };
    assert_eq!(run(&["pin", &id]), (0, "nothing is pinned\n".into()));
    let (code, said) = run(&["pin", &id[..6], RULE]);
    assert!(code == 0 && said.contains("pinned, as pin 1") && said.contains("again with the next request"), "{said}");
    let (code, said) = run(&["pin", &id]);
    assert!(code == 0 && said.contains(RULE) && said.contains("of at most 1,024"), "{said}");
    let (code, said) = run(&["unpin", &id, "1", "--dry-run"]);
    assert!(code == 0 && said.contains("nothing was changed"), "{said}");
    let (code, said) = run(&["unpin", &id, "1"]);
    assert!(code == 0 && said.contains("unpinned") && !said.contains("would"), "{said}");
    assert_eq!(run(&["unpin", &id, "1"]).0, 1);
    assert_eq!(run(&["pin", &id, ""]).0, 1, "an empty pin");
    let (code, said) = run(&["pin", &id, "9"]);
    assert!(code == 0 && said.contains("--message 9` pins message 9"), "{said}");
}

#[test]
fn nothing_is_rewritten_while_a_person_says_so_and_what_no_longer_fits_is_refused() {
    let mut sent = talk();
    let it = Pinned::of(4096, "", &sent);
    it.ask("rewriting", &json!({"on": false})).ok();
    assert_eq!(it.ask("rewriting", &json!({"on": false})).error().0, "nothing_to_do");
    assert_eq!(it.ask("rewriting", &json!({})).status, 400);
    let mut refused = None;
    for n in 0..20 {
        sent = sent.assistant(&prose(n, 900)).user(&format!("Next {n}?"));
        let answer = it.proxy.chat(&sent);
        if answer.status != 200 {
            refused = Some(answer.text());
            break;
        }
        assert_eq!(answer.action(), "none", "turn {n}");
        assert_eq!(it.fake.last().messages().len(), sent.messages.len());
    }
    let refused = refused.expect("it no longer fits");
    assert!(refused.contains("context_length_exceeded") && refused.contains("rewriting"), "{refused}");
    it.ask("rewriting", &json!({"on": true})).ok();
    assert_ne!(it.proxy.chat(&sent).ok().action(), "none");
}

#[test]
fn words_that_the_user_said_and_pins_are_said_once_and_stay_when_they_are_pinned_no_more() {
    let said = "Rule: never touch the northern breakwater.";
    let mut sent = chat().system("s").user("Let us plan the harbor.").assistant("Gladly.").user(said);
    for n in 0..6 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    for what in [json!({"text": said}), json!({"message": 2})] {
        let it = Pinned::of(4096, "", &sent);
        let mut sent = sent.clone();
        let mut goes_on = |from: u64, of: u64| {
            for n in from..from + of {
                sent = sent.clone().assistant(&prose(100 + n, 900)).user(&format!("Next {n}?"));
                let seen = it.forwarded(&sent);
                assert_eq!(seen.matches(said).count(), 1, "{what} {n}: {seen}");
            }
        };
        goes_on(0, 8);
        it.ask("pins", &what).ok();
        goes_on(8, 12);
        it.unpin(1).ok();
        goes_on(20, 10);
    }
}

/// A pin is taken back by itself, and an undo is about rewrites: what was unpinned does not come back with an older view.
#[test]
fn an_undo_behind_an_unpin_brings_no_pin_back() {
    let sent = talk();
    let it = Pinned::of(4096, "[context]\nbackground = false\n", &sent);
    let before = it.forwarded(&sent);
    it.ask("pins", &json!({"text": RULE})).ok();
    assert_eq!(it.ask("undo", &json!({})).error().0, "nothing_to_do", "nothing but a pin");
    it.ask("compact", &json!({})).ok();
    it.unpin(1).ok();
    it.ask("undo", &json!({})).ok();
    let undone = it.forwarded(&sent);
    assert!(!undone.contains(RULE), "{undone}");
    assert_eq!(undone, before, "the fold is undone");
    let rewrites = it.proxy.get("/windowsill/events?kind=context_compaction").ok().json();
    let actions: Vec<&str> =
        rewrites["events"].as_array().unwrap().iter().map(|e| e["data"]["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["pin", "summarize", "unpin", "undo"]);
    // What is pinned since is no rewrite: undo again does not fold again.
    it.ask("pins", &json!({"text": RULE})).ok();
    let again = it.ask("undo", &json!({"dry_run": true})).error();
    assert!(again.0 == "nothing_to_do" && again.1.contains("undone already"), "{again:?}");
    assert!(it.forwarded(&sent).contains(RULE));
}

/// The sentence and the rows tell one number: what a pin keeps is not folded.
#[test]
fn a_fold_counts_no_message_that_a_pin_kept() {
    let mut sent = talk();
    let it = Pinned::of(4096, "[context]\nbackground = false\n", &sent);
    sent = sent.assistant(&prose(40, 800)).user("And then?");
    it.forwarded(&sent);
    it.ask("pins", &json!({"message": 3})).ok();
    it.ask("compact", &json!({})).ok();
    let seen = it.proxy.get(&format!("{}/insight", it.base)).ok().json();
    let told = seen["rewrites"].as_array().unwrap().iter().find(|e| e["data"]["action"] == "summarize").unwrap();
    let rows = it.proxy.get(&format!("{}/messages", it.base)).ok().json();
    let folded = rows["messages"].as_array().unwrap().iter().filter(|row| row["became"] == "folded").count();
    assert!(told["told"].as_str().unwrap().starts_with(&format!("Folded {folded} messages")), "{told}, {rows}");
}
