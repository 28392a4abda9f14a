//! A person steers what the model sees: priced first, done when told to, and forwarded with the next request.

use serde_json::{Value, json};

use super::record::rewritten;
use super::support::*;

struct Steered {
    fake: Fake,
    proxy: TestProxy,
    sent: Chat,
    base: String,
}

/// A conversation of which one result was replaced by a preview.
fn previewed() -> Steered {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nevict_over = 500\n");
    let sent = rewritten();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    Steered { fake, proxy, sent, base: format!("/windowsill/conversations/{id}") }
}

impl Steered {
    fn ask(&self, what: &str, body: &Value) -> Answer {
        self.proxy.post(&format!("{}/{what}", self.base), &[], body.to_string().as_bytes())
    }

    fn edits(&self) -> Value {
        self.proxy.get(&format!("{}/view", self.base)).ok().json()["edits"].clone()
    }

    /// The message that was replaced.
    fn replaced(&self) -> usize {
        usize::try_from(self.edits()[0]["message"].as_u64().expect("one was replaced")).unwrap()
    }

    /// What the model sees of a message with the next request; the history begins with a system message.
    fn forwarded(&self, at: usize) -> String {
        self.proxy.chat(&self.sent.clone().assistant("Read.").user("And?")).ok();
        text(&self.fake.last().messages()[at + 1]).to_owned()
    }
}

#[test]
fn a_result_comes_back_in_full_and_leaves_again() {
    let it = previewed();
    let (at, before) = (it.replaced(), it.edits());
    let original = text(&it.sent.messages[at + 1]).to_owned();
    let price = it.ask("restore", &json!({"message": at, "dry_run": true})).ok().json();
    assert!(price["after"].as_u64() > price["before"].as_u64(), "{price}");
    let gauge = it.proxy.get(&it.base).ok().json()["state"]["prompt_tokens"].as_u64().unwrap();
    assert!(price["before"].as_u64().unwrap().abs_diff(gauge) <= 8, "{price} against {gauge}");
    let again = price["evaluated_again"].as_u64().unwrap();
    assert!(again > 0 && again <= price["after"].as_u64().unwrap(), "{price}");
    assert_eq!(it.edits(), before, "the price changes nothing");
    it.ask("restore", &json!({"message": at})).ok();
    assert_eq!(it.forwarded(at), original, "the next request has it word for word");
    assert_eq!(it.ask("restore", &json!({"message": at})).error().0, "nothing_to_do");
    // Out of the prompt again, on its own.
    it.ask("clear", &json!({"message": at})).ok();
    let cleared = it.forwarded(at);
    assert!(cleared.len() < original.len() / 2 && cleared.contains("windowsill recall"), "{cleared}");
    assert_eq!(it.ask("clear", &json!({"message": at})).error().0, "nothing_to_do");
    let events = it.proxy.get("/windowsill/events?kind=context_compaction").ok().json();
    let actions: Vec<&str> =
        events["events"].as_array().unwrap().iter().map(|e| e["data"]["action"].as_str().unwrap()).collect();
    assert!(actions.ends_with(&["restore", "clear"]), "{actions:?}");
    assert!(!events.to_string().contains("Part 1:"), "no text in the trace");
}

#[test]
fn an_undo_says_what_it_takes_back_and_the_next_one_goes_further_back() {
    let it = previewed();
    let (before, at) = (it.edits(), it.replaced());
    let did = || it.proxy.get(&format!("{}/insight", it.base)).ok().json()["did"].clone();
    let freed = did();
    it.ask("restore", &json!({"message": at})).ok();
    let restored = it.edits();
    assert_ne!(restored, before);
    let price = it.ask("undo", &json!({"dry_run": true})).ok().json();
    let said = price["takes_back"].as_str().unwrap();
    assert!(said.starts_with(&format!("the rewrite that brought message {at} back in full (")), "{price}");
    assert_eq!(it.edits(), restored, "the price changes nothing");
    assert_eq!(it.ask("undo", &json!({})).ok().json()["takes_back"], said);
    assert_eq!((it.edits(), did()["freed_tokens"].clone()), (before, freed["freed_tokens"].clone()));
    // The next one is about the rewrite before, and then there is nothing left.
    let next = it.ask("undo", &json!({})).ok().json();
    let said = next["takes_back"].as_str().unwrap();
    assert!(said.starts_with("the rewrite that put a preview in the place of 2 large results ("), "{next}");
    assert_eq!((it.edits(), did()["compactions"].clone()), (json!([]), json!(0)));
    let (code, message) = it.ask("undo", &json!({"dry_run": true})).error();
    assert!(code == "nothing_to_do" && message.contains("undone already"), "{message}");
    let seen = it.proxy.get(&format!("{}/insight", it.base)).ok().json();
    let told: Vec<(bool, &str)> = seen["rewrites"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["undone"] == true, event["told"].as_str().unwrap()))
        .collect();
    assert_eq!(told.iter().map(|(undone, _)| *undone).collect::<Vec<_>>(), [true, true, false, false]);
    assert!(told[3].1.starts_with("Took back the rewrite that put a preview"), "{told:?}");
}

#[test]
fn a_brief_says_what_a_person_wrote() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut sent = chat().user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    let it = Steered { fake, proxy, sent, base };
    assert_eq!(it.ask("brief", &json!({"text": "x"})).error().0, "nothing_to_do", "there is none yet");
    it.ask("compact", &json!({})).ok();
    it.ask("brief", &json!({"text": "The fence is painted; keep the gate green."})).ok();
    it.proxy.chat(&it.sent.clone().assistant("Read.").user("And?")).ok();
    assert!(it.fake.last().json().to_string().contains("keep the gate green"));
    assert_eq!(it.ask("brief", &json!({"text": " "})).error().0, "bad_brief");
    let folded = it.edits()[0]["to"].as_u64().unwrap() - 1;
    assert_eq!(it.ask("restore", &json!({"message": folded})).error().0, "folded");
}

/// Seen with a real model: the words were gone with the next fold, and a fold of two small messages took the whole brief with it.
#[test]
fn words_in_a_brief_stay_in_the_briefs_after_it() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nstrategy = \"truncate\"\n");
    let mut sent = chat().user("Let us plan the garden.");
    for n in 0..5 {
        sent = sent.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    let mut it = Steered { fake, proxy, sent, base };
    it.ask("compact", &json!({})).ok();
    it.ask("brief", &json!({"text": "The fence is painted, and ZEBRA is the code word."})).ok();
    let brief = |it: &Steered| it.edits()[0]["brief"].as_str().unwrap_or_default().to_owned();
    let stands_for = |brief: &str| -> u64 {
        let number = brief.split("brief of ").nth(1).and_then(|rest| rest.split(' ').next());
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{brief}"))
    };
    let first = stands_for(&brief(&it));
    for round in 1..4 {
        for n in 0..4 {
            it.sent = it.sent.assistant(&prose(10 * round + n, 800)).user(&format!("And thing {n} of {round}?"));
        }
        it.proxy.chat(&it.sent).ok();
        it.ask("compact", &json!({})).ok();
        let now = brief(&it);
        assert!(now.contains("ZEBRA is the code word"), "round {round}: {now}");
        assert!(stands_for(&now) > first && now.contains("[end of windowsill brief]"), "{now}");
    }
    // With next to nothing left to fold, the brief is not what gives way.
    let stands = brief(&it);
    it.sent = it.sent.assistant("Yes.").user("And now?");
    it.proxy.chat(&it.sent).ok();
    let again = it.ask("compact", &json!({}));
    assert!(brief(&it).contains("ZEBRA is the code word"), "{}\n{stands}\n{}", again.text(), brief(&it));
}

/// What a person takes out of a brief stays out of the briefs after it, though the folded messages say it.
#[test]
fn what_is_taken_out_of_a_brief_stays_out_of_the_briefs_after_it() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nstrategy = \"truncate\"\n");
    let rule = |n: u64| format!("Rule: the key of shed {n} hangs behind door {}.", n + 300);
    let talk = |sent: Chat, n: u64| sent.user(&format!("{} And item {n}?", rule(n))).assistant(&prose(n, 900));
    let mut sent = (0..6).fold(chat(), talk).user("And now?");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    let it = Steered { fake, proxy, sent: sent.clone(), base };
    it.ask("compact", &json!({})).ok();
    let brief = || it.edits()[0]["brief"].as_str().unwrap_or_default().to_owned();
    let first = brief();
    assert!(first.contains("behind door 301") && first.contains("behind door 302"), "{first}");
    let lines: Vec<&str> = first.lines().filter(|line| !line.contains("door 301")).collect();
    it.ask("brief", &json!({"text": lines.join("\n")})).ok();
    for round in 1..5 {
        sent = (10 * round..10 * round + 4).fold(sent.assistant("Yes."), talk).user("And now?");
        it.proxy.chat(&sent).ok();
        // Where the request was folded already, there is nothing left to fold.
        assert!([200, 409].contains(&it.ask("compact", &json!({})).status));
        let now = brief();
        assert!(!now.contains("door 301") && now.contains("door 302"), "round {round}: {now}");
    }
    assert!(!brief().contains("brief of 12 earlier"), "it is another brief: {}", brief());
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let it = previewed();
    let before = it.edits();
    for (what, body, status) in [
        ("restore", json!({}), 400),
        ("restore", json!({"message": 999}), 404),
        ("restore", json!({"message": -1}), 400),
        ("restore", json!({"message": 1, "text": "x"}), 400),
        ("clear", json!({"message": 0}), 400),
        ("clear", json!({"message": 999}), 404),
        ("undo", json!({"message": 1}), 400),
        ("undo", json!({"surprise": 1}), 400),
    ] {
        assert_eq!(it.ask(what, &body).status, status, "{what} {body}");
    }
    let prefix = &it.base[..it.base.len() - 4];
    assert_eq!(it.proxy.post(&format!("{prefix}/undo"), &[], b"{}").status, 404, "whole ids alone change something");
    let form = [("Content-Type", "text/plain")];
    assert_eq!(request(it.proxy.address, "POST", &format!("{}/undo", it.base), &form, b"{}").status, 415);
    assert_eq!(it.edits(), before);
}

#[test]
fn a_clear_that_frees_nothing_says_so() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    // Longer than what stands in its place, and shorter than that and the tool that reads it back.
    let sent = chat().user("Read it.").call("c", "read", json!({})).result("c", &prose(7, 500));
    let sent = sent.assistant("Read.").user("And?").tools();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let it = Steered { fake, proxy, sent, base: format!("/windowsill/conversations/{id}") };
    let price = it.ask("clear", &json!({"message": 2, "dry_run": true})).ok().json();
    assert!(price["after"].as_u64() >= price["before"].as_u64(), "{price}");
    assert!(price["note"].as_str().is_some_and(|note| note.contains("this frees nothing")), "{price}");
}

#[test]
fn what_would_not_fit_is_not_restored() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = chat().user("Read it.").call("call_1", "read", json!({"path": "a"})).result("call_1", &prose(7, 30_000));
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let answer = proxy.post(&format!("/windowsill/conversations/{id}/restore"), &[], b"{\"message\": 2}");
    let (code, message) = answer.error();
    assert_eq!((answer.status, code.as_str()), (409, "cannot_fit"), "{message}");
}

/// What the price says is what the next request makes the server evaluate: what stands behind the first message that changed, by
/// the server's own count.
#[test]
fn a_price_is_counted_with_the_prompt_that_the_next_request_has() {
    let it = previewed();
    let at = it.replaced();
    let count = |messages: &[Value]| {
        let body = json!({"model": "m", "messages": messages});
        let path = format!("{}/v1/chat/completions/input_tokens", it.fake.url());
        let address = path.strip_prefix("http://").unwrap().split('/').next().unwrap().parse().unwrap();
        let json_type = [("Content-Type", "application/json")];
        let answer =
            request(address, "POST", "/v1/chat/completions/input_tokens", &json_type, body.to_string().as_bytes());
        answer.ok().json()["input_tokens"].as_u64().unwrap()
    };
    let price = it.ask("restore", &json!({"message": at, "dry_run": true})).ok().json();
    assert_eq!(price["counted"], true, "{price}");
    it.ask("restore", &json!({"message": at})).ok();
    let before = it.fake.last().json();
    it.proxy.chat(&it.sent).ok();
    let after = it.fake.last().json();
    let (was, is) = (before["messages"].as_array().unwrap(), after["messages"].as_array().unwrap());
    let same = was.iter().zip(is).take_while(|(a, b)| a == b).count();
    let evaluated = if before["tools"] == after["tools"] { count(is) - count(&is[..same]) } else { count(is) };
    let said = price["evaluated_again"].as_u64().unwrap();
    assert!(said.abs_diff(evaluated) * 20 <= evaluated, "{said} foretold, {evaluated} evaluated: {price}");
}

#[test]
fn a_fold_near_the_wall_can_be_undone_and_says_what_comes_of_it() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut sent = chat().system("s").user("Let us plan the garden.");
    let mut id = String::new();
    // As far as it goes without a rewrite.
    for n in 0.. {
        let longer = sent.clone().assistant(&prose(n, 700)).user(&format!("And item {n}?"));
        let answer = proxy.chat(&longer).ok();
        id = answer.header("x-windowsill-conversation").unwrap().to_owned();
        sent = longer;
        if answer.action() != "none" {
            break;
        }
    }
    let base = format!("/windowsill/conversations/{id}");
    let it = Steered { fake, proxy, sent, base };
    let price = it.ask("undo", &json!({"dry_run": true})).ok().json();
    // The last turn may have been rewritten for what was still to come: then it fits as it is.
    let fits = price["after"].as_u64() <= price["limit"].as_u64();
    assert!(fits || price["note"].as_str().is_some_and(|note| note.contains("may be folded again")), "{price}");
    it.ask("undo", &json!({})).ok();
    // Where it really does not fit, the numbers say so.
    let large = chat().user("Read it.").call("c", "read", json!({})).result("c", &prose(9, 30_000));
    let id = it.proxy.chat(&large).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let refused = it.proxy.post(&format!("/windowsill/conversations/{id}/undo"), &[], b"{}");
    let (code, message) = refused.error();
    assert!(code == "cannot_fit" && message.contains("4,096") && message.contains("more than"), "{message}");
}

#[test]
fn a_result_becomes_a_preview_and_what_waits_comes_with_a_rewrite() {
    let it = previewed();
    let at = it.replaced();
    it.ask("restore", &json!({"message": at})).ok();
    it.ask("evict", &json!({"message": at})).ok();
    assert_eq!(it.edits()[0]["rule"], "evict");
    it.ask("restore", &json!({"message": at, "when": "next_break"})).ok();
    let long = it.forwarded(at);
    assert!(long.contains("windowsill recall"), "it waits: {long}");
    let waiting = request(it.proxy.address, "DELETE", &format!("{}/waiting", it.base), &[], b"");
    assert_eq!(waiting.ok().json()["taken_back"], 1);
    for (body, code) in [(json!({"focus": " "}), "bad_focus"), (json!({"focus": "x".repeat(100_000)}), "bad_focus")] {
        assert_eq!(it.ask("compact", &body).error().0, code);
    }
}

/// What the page can do, the terminal can do, by the same words.
#[test]
fn the_terminal_steers_as_the_page_does() {
    let Steered { fake: _fake, proxy, base, .. } = previewed();
    let id = base.rsplit('/').next().unwrap().to_owned();
    let view = || proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json()["edits"].clone();
    let at = view()[0]["message"].as_u64().expect("a result was evicted").to_string();
    let said = |args: &[&str]| {
        let done = proxy.cli(args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let before = view();
    let short = &id[..6];
    assert!(said(&["restore", short, &at, "--dry-run"]).contains("nothing was changed"), "the price alone");
    assert_eq!(view(), before);
    assert!(said(&["restore", short, &at]).contains("stands in full again\nthe prompt is "), "what was done");
    assert_ne!(view(), before, "restored");
    said(&["clear", short, &at]);
    assert!(view().to_string().contains("\"clear\""), "{}", view());
    let undone = said(&["undo", short]);
    assert!(undone.contains("the last change is undone\ntaken back: the rewrite that cleared message "), "{undone}");
    assert!(!view().to_string().contains("\"clear\""), "{}", view());
    said(&["evict", short, &at]);
    assert_eq!(view()[0]["rule"], "evict");
    assert_eq!(proxy.cli(&["brief", short]).status.code(), Some(1), "nothing is folded");
    assert!(said(&["pause", short]).contains("nothing is rewritten"));
    assert!(said(&["context", short]).contains("You stopped rewriting here"), "the terminal says so");
    assert!(said(&["pin", short]).contains("nothing is pinned"), "a list takes the beginning of an id");
    assert_eq!(proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json()["paused"], true);
    said(&["unpause", short]);
    assert_eq!(proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json()["paused"], false);
    let line = said(&["status", "--short"]);
    assert!(line.trim_end().split(" · ").next().unwrap().ends_with('%') && line.lines().count() == 1, "{line}");
    assert!(said(&["status", short]).contains(" · "), "with its title");
}
